//! Promise: how long a record has left is told, and changed, without its value; nothing else of it changes but its
//! version. A touch is a write like any other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_catalog::{GrantAccess, GrantIssuer, QuotaChanges};
use sandstorm_client::blocking::Client;
use sandstorm_client::{Error, PutOptions, RecordExpiry, Reply};
use sandstorm_metrics::text::flat;
use sandstorm_net::rpc::{Condition, Operation, RpcStatus};
use sandstorm_store::slots::SlotOwnership;

use super::spill;
use crate::common::{Wire, client, data_plane, eventually, tenant};

const TABLE: u64 = 1;
/// What a record may be seen longer than it was to live.
const SLACK: Duration = Duration::from_secs(60);

/// A record as a test knows it: when it was to live how long, if not for ever.
#[derive(Clone, Debug)]
struct KnownRecord {
    value: Vec<u8>,
    flags: u32,
    life: Option<(Instant, Duration)>,
}

/// Whether a time to live is what is left of a life.
fn is_left(life: Option<(Instant, Duration)>, expiry: RecordExpiry) -> bool {
    match (life, expiry) {
        (None, RecordExpiry::Never) => true,
        (Some((since, life)), RecordExpiry::After(left)) => left <= life + SLACK && left + since.elapsed() >= life,
        _ => false,
    }
}

/// Lives that differ by more than what they may be seen longer; now and then none.
fn some_life(random: &mut StdRng) -> Option<Duration> {
    Some(random.random_range(0..6)).filter(|life| *life > 0).map(|life| Duration::from_secs(life * 100_000))
}

#[test]
fn a_touch_changes_when_a_record_expires_and_nothing_else() {
    let plane = data_plane(2);
    let (id, _) = tenant(&plane, "ada", true);
    let (client, mut random) = (client(&plane, id), StdRng::seed_from_u64(25));
    let mut model: HashMap<Vec<u8>, KnownRecord> = HashMap::new();
    for round in 0..crate::common::rounds(1_000) {
        let key = vec![b'k', random.random_range(0..20)];
        match random.random_range(0..5) {
            0 => {
                let (ttl, flags) = (some_life(&mut random), round as u32);
                // Those that are copied, and those whose memory a touched record takes over.
                let value = vec![round as u8; if round % 7 == 0 { 200_000 } else { 20 }];
                let since = Instant::now();
                client.put(TABLE, &key, &value, &PutOptions { flags, ttl, ..PutOptions::default() }).expect("a put");
                model.insert(key, KnownRecord { value, flags, life: ttl.map(|ttl| (since, ttl)) });
            }
            1 => assert_eq!(client.delete(TABLE, &key), Ok(model.remove(&key).is_some())),
            _ => touch_and_look(&client, &mut model, &key, some_life(&mut random)),
        }
    }
}

/// Touches a record, which may be none, and compares it with what is known.
fn touch_and_look(client: &Client, model: &mut HashMap<Vec<u8>, KnownRecord>, key: &[u8], ttl: Option<Duration>) {
    let before = client.get(TABLE, key).expect("an answer");
    let (since, known) = (Instant::now(), model.get_mut(key));
    assert_eq!(client.touch(TABLE, key, ttl), Ok(known.is_some()));
    let left = client.ttl(TABLE, key).expect("an answer");
    let Some(known) = known else { return assert_eq!((before, left), (None, None)) };
    known.life = ttl.map(|ttl| (since, ttl));
    assert!(left.is_some_and(|left| is_left(known.life, left)), "{left:?} of {known:?}");
    let (before, after) = (before.expect("a record"), client.get(TABLE, key).expect("an answer").expect("a record"));
    assert_eq!((&after.value[..], after.flags), (&known.value[..], known.flags));
    assert!(after.version > before.version, "it has a new version, as after any write");
}

#[test]
fn a_record_that_was_touched_goes_when_its_time_is_over_and_not_before() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "ada", true);
    let client = client(&plane, id);
    let put = |ttl| client.put(TABLE, b"k", b"v", &PutOptions { ttl, ..PutOptions::default() }).expect("a put");
    put(None);
    assert_eq!(client.ttl(TABLE, b"k"), Ok(Some(RecordExpiry::Never)));
    // Less than a millisecond is one: nothing that is given would be for ever.
    assert_eq!(client.touch(TABLE, b"k", Some(Duration::ZERO)), Ok(true));
    assert!(eventually(|| client.get(TABLE, b"k") == Ok(None)));
    assert_eq!((client.ttl(TABLE, b"k"), client.touch(TABLE, b"k", None)), (Ok(None), Ok(false)));
    put(Some(Duration::from_secs(600)));
    assert_eq!(client.touch(TABLE, b"k", None), Ok(true));
    let batch = client.batch().ttl(TABLE, b"k").touch(TABLE, b"k", Some(SLACK)).ttl(TABLE, b"k").ttl(TABLE, b"none");
    let replies = client.send(batch).expect("answers");
    assert_eq!(replies[..2], [Ok(Reply::Expiry(Some(RecordExpiry::Never))), Ok(Reply::Touched(true))]);
    assert!(matches!(&replies[2], Ok(Reply::Expiry(Some(RecordExpiry::After(_))))), "{replies:?}");
    assert_eq!(replies[3], Ok(Reply::Expiry(None)));
    // The longest time there is.
    let mut wire = Wire::new(&plane, 0, id);
    assert_eq!(wire.one(Operation::touch(TABLE, b"k", u64::MAX)).status, RpcStatus::Ok);
    assert!(wire.one(Operation::ttl(TABLE, b"k")).number > u64::MAX / 2);
}

#[test]
fn a_touch_is_a_write() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "ada", true);
    let (client, mut wire) = (client(&plane, id), Wire::new(&plane, 0, id));
    let version = client.put(TABLE, b"k", b"v", &PutOptions::default()).expect("a put");
    // One that arrives twice is made once.
    let header = wire.header(1);
    let touched: Vec<_> = (0..3).map(|_| wire.ask_as(&header, &[Operation::touch(TABLE, b"k", 0)])).collect();
    assert!(touched[0][0].number > version && touched.iter().all(|again| *again == touched[0]), "{touched:?}");
    // A transaction that has read the record has to begin anew.
    let mut transaction = client.transaction();
    assert!(transaction.get(TABLE, b"k").expect("an answer").is_some());
    assert_eq!(client.touch(TABLE, b"k", Some(SLACK)), Ok(true));
    assert_eq!(transaction.commit(), Err(Error::TransactionConflict { table: TABLE, key: b"k".to_vec() }));
    let refused = client.put(TABLE, b"k", b"w", &PutOptions::default().if_version(touched[0][0].number));
    assert_eq!(refused, Err(Error::Conflict));
    // A grant for reading allows the question alone.
    let (bob, _) = tenant(&plane, "bob", true);
    plane.directory.grant("ada", "t", "bob", GrantAccess::Read, GrantIssuer::Owner).expect("a grant");
    let granted = plane.directory.snapshot().by_name("bob").expect("bob").granted_by_name("ada/t").expect("it").id;
    let bob = crate::common::client(&plane, bob);
    assert!(matches!(bob.ttl(granted, b"k"), Ok(Some(RecordExpiry::After(_)))));
    assert_eq!(bob.touch(granted, b"k", None), Err(Error::ReadOnly));
    assert!(matches!(client.ttl(TABLE, b"k"), Ok(Some(RecordExpiry::After(_)))), "it was not touched");
    assert_eq!(
        (client.ttl(9, b"k"), client.touch(9, b"k", None)),
        (Err(Error::UnknownTable), Err(Error::UnknownTable))
    );
}

#[test]
fn records_of_another_server_are_not_touched() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "ada", true);
    let mut wire = Wire::new(&plane, 0, id);
    [b"foo", b"bar"].iter().for_each(|key| drop(wire.one(Operation::put(TABLE, *key, b"v"))));
    let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
    let snapshot = plane.directory.snapshot();
    snapshot.by_name("ada").and_then(|view| view.table_by_name("t")).expect("it").table.set_slots(&slots);
    // `foo` is of slot 12182, `bar` of slot 5061.
    slots.set_owned(|slot| slot > 10_000);
    for (key, status) in [(b"foo", RpcStatus::Ok), (b"bar", RpcStatus::WrongServer)] {
        assert_eq!(wire.one(Operation::ttl(TABLE, key)).status, status);
        assert_eq!(wire.one(Operation::touch(TABLE, key, 100_000)).status, status);
    }
    slots.set_owned(|_| true);
    assert_eq!(wire.one(Operation::ttl(TABLE, b"bar")).number, 0, "it was not touched");
    assert!(wire.one(Operation::ttl(TABLE, b"foo")).number > 0);
}

#[test]
fn records_on_the_disk_are_read_for_it() {
    const RECORDS: u32 = 8_000;
    let (plane, id, _folder) = spill::server(QuotaChanges::default());
    let mut wire = Wire::new(&plane, 0, id);
    spill::fill(&mut wire, RECORDS);
    let reads = spill::stats(&plane).reads;
    // The table's memory is small: a record may leave it again before it is used, and is asked for again.
    let mut patient = |operation: Operation<'_>| loop {
        let answer = wire.one(operation);
        if answer.status != RpcStatus::Overloaded {
            assert_eq!(answer.status, RpcStatus::Ok, "{}", answer.text());
            return answer;
        }
    };
    for number in (0..RECORDS).step_by(37) {
        let key = number.to_le_bytes();
        assert_eq!(patient(Operation::ttl(spill::LARGE, &key)).number, 0);
        patient(Operation::touch(spill::LARGE, &key, 1_000_000));
    }
    assert!(spill::stats(&plane).reads > reads, "some of them were on the disk");
    for number in (0..RECORDS).step_by(37) {
        let key = number.to_le_bytes();
        assert!(patient(Operation::ttl(spill::LARGE, &key)).number > 0);
        assert_eq!(patient(Operation::get(spill::LARGE, &key)).value, spill::value(number));
    }
}

/// What a touch copies is work, as what a put brings is: many of a large record are run in pieces, and no other tenant
/// waits for all of them.
#[test]
fn touches_of_large_records_are_run_in_pieces() {
    // Their answers fit one packet, and what is copied for them is more than a piece.
    const TOUCHES: usize = 36;
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "ada", true);
    // What one packet cannot bring a client brings in several.
    let (client, mut wire) = (client(&plane, id), Wire::new(&plane, 0, id));
    let postponed = || {
        let counters = plane.metrics.read_worker(0);
        flat(&counters).find(|(name, _)| *name == "messages_postponed").expect("a counter").1
    };
    for (len, is_cut) in [(100, false), (60_000, true)] {
        client.put(TABLE, b"key", &vec![7; len], &PutOptions::default()).expect("room");
        let before = postponed();
        let answers = wire.ask(&vec![Operation::touch(TABLE, b"key", 1_000_000); TOUCHES]);
        assert!(answers.iter().all(|answer| answer.status == RpcStatus::Ok));
        assert_eq!(postponed() > before, is_cut, "values of {len} bytes");
    }
    let conditional = Operation { condition: Condition::Present, ..Operation::touch(TABLE, b"key", 0) };
    assert_eq!(wire.one(conditional).status, RpcStatus::Malformed);
}
