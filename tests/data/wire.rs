//! Promise: every packet gets an answer with its outcome, or is counted; a refused request changes nothing.

use std::time::{Duration, Instant};

use crate::common;
use crate::common::network::{carries, is_memif};
use crate::common::{BAD_KINDS, Wire, client, data_plane, get_args, load, load_with, tenant, tenant_with};
use sandstorm_catalog::QuotaChanges;
use sandstorm_client::{Error, PutOptions, PutOutcome};
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_metrics::text::flat;
use sandstorm_net::limits::ClientLimits;
use sandstorm_net::r2p2::header::{MessageFragment, R2p2Body, R2p2Packet, fragment_header};
use sandstorm_net::r2p2::{ClientEndpoint, PeerAddr};
use sandstorm_net::rpc::{
    Condition, MAX_OPERATIONS, MESSAGE_FLAG_IDEMPOTENT, MESSAGE_HEADER_LEN, MessageHeader, MultiGetEntries,
    OP_FLAG_NEAR, OP_HEADER_LEN, OpKind, Operation, RpcStatus, encode_message, push_key,
};
use sandstorm_net::slots::SLOTS;

/// Over shared memory a process has devices for 16 servers (DPDK has 32 ports), and each test here has one of its own.
/// Tests that do not depend on the network are left out there.
fn has_no_devices_left() -> bool {
    if is_memif() {
        println!("left out over shared memory: it says nothing of the network");
    }
    is_memif()
}

#[test]
fn records_are_written_read_counted_and_deleted() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let mut wire = Wire::new(&plane, 0, id);
    assert_eq!(wire.one(Operation::get(1, b"k")).status, RpcStatus::NotFound);
    let put = wire.one(Operation { user_flags: 7, ..Operation::put(1, b"k", b"value") });
    assert_eq!(put.status, RpcStatus::Ok);
    let got = wire.one(Operation::get(1, b"k"));
    assert_eq!((got.status, &got.value[..], got.number, got.user_flags), (RpcStatus::Ok, &b"value"[..], put.number, 7));
    let again = wire.one(Operation::put(1, b"k", b"2").under(Condition::Version, put.number));
    assert!(again.number > put.number);
    assert_eq!(
        wire.one(Operation::put(1, b"k", b"3").under(Condition::Version, put.number)).status,
        RpcStatus::Conflict
    );
    assert_eq!(wire.one(Operation::put(1, b"k", b"3").under(Condition::Absent, 0)).status, RpcStatus::Conflict);
    assert_eq!(wire.one(Operation::increment(1, b"k", 40)).number, 42);
    assert_eq!(wire.one(Operation::put(1, b"w", b"word")).status, RpcStatus::Ok);
    assert_eq!(wire.one(Operation::increment(1, b"w", 1)).status, RpcStatus::NotANumber);
    assert_eq!(wire.one(Operation::delete(1, b"k")).status, RpcStatus::Ok);
    assert_eq!(wire.one(Operation::delete(1, b"k")).status, RpcStatus::NotFound);
}

#[test]
fn many_operations_of_a_message_are_answered_in_order() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    load(&plane, "alice", "get", 1);
    let mut wire = Wire::new(&plane, 0, id);
    let args = get_args(b"a");
    let answers = wire.ask(&[
        Operation::put(1, b"a", b"1"),
        Operation::invoke(b"get", &args),
        Operation::get(1, b"a"),
        Operation::get(9, b"a"),
        Operation::increment(1, b"n", 5),
        Operation { value: b"echo", ..Operation::new(OpKind::Ping) },
    ]);
    let seen: Vec<_> = answers.iter().map(|a| (a.op, a.status, a.text())).collect();
    assert_eq!(seen[0], (OpKind::Put, RpcStatus::Ok, String::new()));
    assert_eq!(seen[1], (OpKind::Invoke, RpcStatus::Ok, "1".into()));
    assert_eq!(seen[2], (OpKind::Get, RpcStatus::Ok, "1".into()));
    assert_eq!((seen[3].0, seen[3].1), (OpKind::Get, RpcStatus::UnknownTable));
    assert_eq!((seen[4].0, answers[4].number), (OpKind::Increment, 5));
    assert_eq!(seen[5], (OpKind::Ping, RpcStatus::Ok, "echo".into()));
}

#[test]
fn a_call_near_what_is_no_slot_is_malformed() {
    if has_no_devices_left() {
        return;
    }
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    load(&plane, "alice", "get", 1);
    let mut wire = Wire::new(&plane, 0, id);
    wire.one(Operation::put(1, b"k", b"1"));
    let args = get_args(b"k");
    let near = |slot| Operation { flags: OP_FLAG_NEAR, user_flags: slot, ..Operation::invoke(b"get", &args) };
    for none in [u32::from(SLOTS), 20_000, 1 << 16, u32::MAX] {
        assert_eq!(wire.one(near(none)).status, RpcStatus::Malformed, "{none}");
    }
    assert_eq!(wire.one(near(u32::from(SLOTS) - 1)).status, RpcStatus::Ok);
}

#[test]
fn a_multiget_answers_every_key() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let mut wire = Wire::new(&plane, 0, id);
    for number in 0..20u32 {
        wire.one(Operation::put(1, &number.to_le_bytes(), &[number as u8]));
    }
    let mut body = Vec::new();
    (0..30u32).for_each(|number| push_key(&mut body, &number.to_le_bytes()));
    let got = wire.one(Operation::multiget(1, 30, &body));
    assert_eq!((got.status, got.number), (RpcStatus::Ok, 20));
    let found: Vec<_> = MultiGetEntries::new(&got.value).map(|a| a.expect("well-formed")).collect();
    assert_eq!(found.len(), 30);
    for (number, answer) in found.iter().enumerate() {
        let expected: &[u8] = if number < 20 { &[number as u8] } else { &[] };
        assert_eq!((answer.status == RpcStatus::Ok, answer.value), (number < 20, expected));
    }
    assert_eq!(wire.one(Operation::multiget(1, 31, &body)).status, RpcStatus::Malformed);
    assert_eq!(wire.one(Operation::multiget(1, 29, &body)).status, RpcStatus::Malformed);
}

#[test]
fn unauthenticated_senders_learn_what_is_missing() {
    let plane = data_plane(1);
    let (id, token) = tenant(&plane, "closed", false);
    let mut wire = Wire::new(&plane, 0, id);
    assert_eq!(wire.one(Operation::get(1, b"k")).status, RpcStatus::Unauthenticated);
    assert_eq!(wire.one(Operation::hello(b"wrong")).status, RpcStatus::Unauthenticated);
    assert_eq!(wire.one(Operation::put(1, b"k", b"v")).status, RpcStatus::Unauthenticated);
    assert_eq!(wire.one(Operation::hello(token.as_bytes())).status, RpcStatus::Ok);
    assert_eq!(wire.one(Operation::get(1, b"k")).status, RpcStatus::NotFound);
    assert_eq!(wire.one(Operation::hello(b"wrong")).status, RpcStatus::Unauthenticated);
    assert_eq!(wire.one(Operation::get(2, b"k")).status, RpcStatus::UnknownTable);
    assert_eq!(wire.one(Operation::multiget(1, 1_000_000, b"")).status, RpcStatus::TooLarge);
    assert_eq!(wire.one(Operation::invoke(b"nothing", b"")).status, RpcStatus::UnknownExtension);
    // Another session of the same peer is not authenticated.
    wire.session += 1;
    assert_eq!(wire.one(Operation::get(1, b"k")).status, RpcStatus::Unauthenticated);
    wire.tenant = 999;
    assert_eq!(wire.one(Operation::get(1, b"k")).status, RpcStatus::Unauthenticated);
    wire.tenant = 0;
    assert_eq!(wire.one(Operation::new(OpKind::Ping)).status, RpcStatus::Ok);
}

#[test]
fn an_unauthenticated_sender_is_answered_the_same_byte_for_byte_whether_its_tenant_exists() {
    if has_no_devices_left() {
        return;
    }
    let plane = data_plane(1);
    let (there, _) = tenant(&plane, "closed", false);
    let long = [7; 600];
    let questions = [
        vec![Operation::hello(b"")],
        vec![Operation::hello(b"a token that is nobody's")],
        vec![Operation::hello(&long)],
        vec![Operation::get(1, b"a key of some bytes"), Operation::hello(b"too late for this one")],
        vec![Operation::get(
            1,
            b"a key that is long enough for the whole of the text that is answered to it, and more",
        )],
        vec![Operation::get(77, b"k"); 30],
        vec![Operation::put(1, b"k", &long)],
        vec![Operation::delete(1, b"k"), Operation::increment(1, b"n", 1)],
        vec![Operation::multiget(1, u64::MAX, b"")],
        vec![Operation::range(1, b"a", b"b", u32::MAX, false)],
        vec![Operation::invoke(b"echo", &long)],
        vec![Operation::new(OpKind::Ping)],
        vec![Operation { value: &long, ..Operation::new(OpKind::Ping) }],
    ];
    let mut buffer = vec![0; 65_536];
    for question in &questions {
        let mut told = Vec::new();
        for tenant in [there, there + 1, u32::MAX] {
            let mut wire = Wire::new(&plane, 0, tenant);
            wire.session = 5;
            let mut message = Vec::new();
            encode_message(&wire.header(question.len()), question, &mut message);
            wire.send(1, &message);
            let len = wire.socket.recv(&mut buffer).expect("an answer");
            let mut answer = buffer[..len].to_vec();
            // The tenant's id comes back as it was sent.
            let (header, mut answers) = MessageHeader::decode(&answer[8..]).expect("a response");
            assert_eq!(answers.next().expect("an answer").expect("well-formed").status, RpcStatus::Unauthenticated);
            assert_eq!(header.tenant, tenant);
            let id = answer[8..].windows(4).position(|bytes| bytes == tenant.to_le_bytes()).expect("its id");
            answer[8 + id..12 + id].fill(0);
            told.push(answer);
        }
        assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "{question:?}");
    }
}

#[test]
fn bytes_that_are_no_message_are_answered_with_what_is_wrong_and_change_nothing() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let mut wire = Wire::new(&plane, 0, id);
    let header = wire.header(2);
    let mut message = Vec::new();
    encode_message(&header, &[Operation::put(1, b"k", b"v"), Operation::get(1, b"k")], &mut message);
    let counter = |name: &str| -> u64 {
        plane.metrics.read().iter().find(|r| r.metric.name == name).expect("a metric").values.iter().sum()
    };
    // The shortest possible answer. A shorter request gets none, lest it be sent in a victim's name.
    let shortest = MESSAGE_HEADER_LEN + OP_HEADER_LEN;
    for cut in 0..message.len() {
        wire.send(cut as u16, &message[..cut]);
        if cut >= shortest {
            let (request_id, _, answers) = wire.receive();
            assert_eq!(
                (request_id, answers.len(), answers[0].status),
                (cut as u16, 1, RpcStatus::Malformed),
                "cut at {cut}"
            );
            assert!(cut < shortest + 25 || !answers[0].value.is_empty(), "where there is room, it says what was wrong");
        }
        // A sender whose requests are mostly refused for longer than a window of the early drop has a part of its
        // packets dropped unread.
        for _ in 0..2 {
            assert_eq!(wire.one(Operation::new(OpKind::Ping)).status, RpcStatus::Ok);
        }
    }
    assert_eq!(counter("refusals_unsent"), shortest as u64);
    let mut other_version = message.clone();
    other_version[0] = 99;
    wire.send(1, &other_version);
    assert_eq!(wire.receive().2[0].status, RpcStatus::Version);
    assert_eq!(counter("malformed"), message.len() as u64 + 1);
    assert_eq!(wire.one(Operation::get(1, b"k")).status, RpcStatus::NotFound, "nothing of the cut puts was run");
}

#[test]
fn a_response_to_an_unauthenticated_sender_is_never_longer_than_its_request() {
    let plane = data_plane(1);
    let (closed, _) = tenant(&plane, "closed", false);
    let mut wire = Wire::new(&plane, 0, closed);
    let many = vec![Operation::get(1, b""); MAX_OPERATIONS];
    let questions = [
        vec![Operation::get(1, b"")],
        vec![Operation::get(1, b"a key of a few bytes, and a few more")],
        vec![Operation::hello(b"")],
        vec![Operation::hello(b"wrong")],
        vec![Operation::invoke(b"x", &[7; 500])],
        vec![Operation::multiget(1, u64::MAX, b"")],
        vec![Operation { value: &[1; 900], ..Operation::new(OpKind::Ping) }],
        many[..20].to_vec(),
        many[..40].to_vec(),
    ];
    let (mut answered, mut asked) = (0, 0);
    for tenant in [closed, 999, 0] {
        for question in &questions {
            wire.tenant = tenant;
            let header = wire.header(question.len());
            let mut message = Vec::new();
            encode_message(&header, question, &mut message);
            for message in [&message[..], &message[..message.len() - 1], &message[..message.len().min(40)]] {
                asked += 1;
                wire.send(1, message);
                // The next answer to arrive is the answer to this.
                let only_pings = wire.header(1);
                let mut ping = Vec::new();
                encode_message(&MessageHeader { tenant: 0, ..only_pings }, &[Operation::new(OpKind::Ping)], &mut ping);
                wire.send(2, &ping);
                let mut buffer = vec![0; 65_536];
                loop {
                    let len = wire.socket.recv(&mut buffer).expect("the ping is answered");
                    assert!(len <= 8 + if buffer[5] == 1 { message.len() } else { ping.len() }, "{question:?}");
                    if buffer[5] == 2 {
                        break;
                    }
                    answered += 1;
                }
            }
        }
    }
    assert!(
        (asked / 2..asked).contains(&answered),
        "of {asked} only those too short for any answer got none: {answered}"
    );
}

#[test]
fn a_response_to_an_unauthenticated_sender_is_one_packet_sent_once() {
    if !carries(MAX_OPERATIONS * OP_HEADER_LEN + 100) {
        return;
    }
    let plane = data_plane(1);
    let mut wire = Wire::new(&plane, 0, 0);
    let long = vec![1; 3000];
    let questions = [
        vec![Operation { value: &long, ..Operation::new(OpKind::Ping) }],
        vec![Operation::new(OpKind::Ping); MAX_OPERATIONS],
        vec![Operation { key: &long, ..Operation::new(OpKind::Ping) }; 2],
    ];
    for question in questions {
        // More than a packet would be sent again until it is acked, and the owner of the address did not ask for it.
        let answers = wire.ask(&question);
        assert!(answers.iter().all(|answer| answer.status == RpcStatus::TooLarge), "{}", answers[0].text());
    }
    let fits = vec![1; 400];
    assert_eq!(wire.one(Operation { value: &fits, ..Operation::new(OpKind::Ping) }).status, RpcStatus::Ok);
}

#[test]
fn a_repeated_message_is_answered_again_and_run_once() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let mut wire = Wire::new(&plane, 0, id);
    let header = wire.header(1);
    for repeat in 0..5 {
        let answer = &wire.ask_as(&header, &[Operation::increment(1, b"n", 1)])[0];
        assert_eq!((answer.status, answer.number), (RpcStatus::Ok, 1), "repeat {repeat}: {}", answer.text());
    }
    assert_eq!(wire.one(Operation::increment(1, b"n", 1)).number, 2);
}

#[test]
fn a_conflict_says_the_version_and_to_delete_what_is_not_there_is_none() {
    if has_no_devices_left() {
        return;
    }
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let mut wire = Wire::new(&plane, 0, id);
    let version = wire.one(Operation::put(1, b"k", b"v")).number;
    let put = |condition, number| Operation { condition, number, ..Operation::put(1, b"k", b"w") };
    let delete = |key, number| Operation { condition: Condition::Version, number, ..Operation::delete(1, key) };
    for operation in [put(Condition::Version, version + 1), put(Condition::Absent, 0), delete(b"k", version + 1)] {
        let answer = wire.one(operation);
        assert_eq!((answer.status, answer.number), (RpcStatus::Conflict, version), "{:?}", operation.op);
    }
    let absent = Operation { key: b"absent", ..put(Condition::Version, version) };
    assert_eq!((wire.one(absent).status, wire.one(absent).number), (RpcStatus::Conflict, 0));
    assert_eq!(wire.one(delete(b"absent", version)).status, RpcStatus::NotFound);
    let client = client(&plane, id);
    assert_eq!(client.delete_if_version(1, b"absent", version), Ok(false));
    assert_eq!(client.delete_if_version(1, b"k", version + 1), Err(Error::Conflict));
    let stale = PutOptions::default().if_version(version + 1);
    assert_eq!(client.put(1, b"k", b"w", &stale), Err(Error::Conflict));
    assert_eq!(client.put_outcome(1, b"k", b"w", &stale), Ok(PutOutcome::Conflict { version: Some(version) }));
    assert_eq!(client.put_outcome(1, b"absent", b"w", &stale), Ok(PutOutcome::Conflict { version: None }));
    assert_eq!(client.delete_if_version(1, b"k", version), Ok(true));
}

#[test]
fn what_has_run_is_not_said_to_be_over_a_quota_when_it_is_repeated() {
    let plane = data_plane(1);
    let rate = QuotaChanges { requests_per_s: Some(1), ..QuotaChanges::default() };
    let (id, _) = tenant_with(&plane, "alice", true, rate);
    let mut wire = Wire::new(&plane, 0, id);
    let header = wire.header(1);
    let increment = |wire: &mut Wire, header: &MessageHeader| {
        let answer = wire.ask_as(header, &[Operation::increment(1, b"n", 1)]).remove(0);
        (answer.status, answer.number)
    };
    assert_eq!(increment(&mut wire, &header), (RpcStatus::Ok, 1));
    // These use up the part of the quota that returns in a second.
    let mut refused = 0;
    for _ in 0..20 {
        // Its header says that it still waits for the first answer.
        let other = MessageHeader { acked: 0, ..wire.header(1) };
        let (status, _) = increment(&mut wire, &other);
        refused += u32::from(status == RpcStatus::OverQuota);
        assert_eq!(increment(&mut wire, &header), (RpcStatus::Ok, 1), "the answer that it had");
    }
    assert!(refused > 0);
    // A refused request has not run, and runs when it is repeated later.
    let last = wire.header(1);
    let mut answer = increment(&mut wire, &last);
    let before = u64::from(21 - refused);
    while answer.0 == RpcStatus::OverQuota {
        std::thread::sleep(std::time::Duration::from_millis(200));
        answer = increment(&mut wire, &last);
    }
    assert_eq!(answer, (RpcStatus::Ok, before + 1));
}

#[test]
fn a_repeated_call_runs_again_only_if_the_client_says_that_it_may() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    load(&plane, "alice", "put", 1);
    let mut wire = Wire::new(&plane, 0, id);
    // Table, length of the key, key, value; it replies with the record's version.
    let args = [&1u64.to_le_bytes()[..], &1u32.to_le_bytes(), b"k", b"value"].concat();
    let mut versions = |flags| {
        let header = MessageHeader { flags, ..wire.header(1) };
        [0; 3].map(|_| wire.ask_as(&header, &[Operation::invoke(b"put", &args)]).remove(0).value)
    };
    let (once, again) = (versions(0), versions(MESSAGE_FLAG_IDEMPOTENT));
    assert!(once.iter().all(|version| *version == once[0]), "{once:?}");
    assert!(again[0] != again[1] && again[1] != again[2], "{again:?}");
}

/// A query that takes so long, of a tenant with these quotas.
fn slow_query(plane: &DataPlane, name: &str, total_us: u64, quotas: QuotaChanges) -> (Wire, MessageHeader, Vec<u8>) {
    let (id, _) = tenant_with(plane, name, true, quotas);
    let budget = BudgetOverride { total_us: Some(total_us), ..BudgetOverride::default() };
    load_with(plane, name, "bad", 1, budget);
    let mut wire = Wire::new(plane, 0, id);
    let (header, message) = next_query(&mut wire);
    (wire, header, message)
}

fn next_query(wire: &mut Wire) -> (MessageHeader, Vec<u8>) {
    let args = [&1u64.to_le_bytes()[..], b"loop"].concat();
    let header = MessageHeader { flags: MESSAGE_FLAG_IDEMPOTENT, ..wire.header(1) };
    let mut message = Vec::new();
    encode_message(&header, &[Operation::invoke(b"bad", &args)], &mut message);
    (header, message)
}

fn counted(plane: &DataPlane, name: &str) -> u64 {
    flat(&plane.metrics.read_worker(0)).find(|(other, _)| *other == name).expect("a counter").1
}

#[test]
fn a_query_that_runs_is_not_begun_again_by_its_repeats_and_others_run_beside_it() {
    let plane = data_plane(1);
    its_repeats_begin_nothing(&plane);
    queries_under_one_session_and_sequence_run_beside_each_other(&plane);
    its_repeats_use_up_the_rate(&plane);
}

fn its_repeats_begin_nothing(plane: &DataPlane) {
    let (mut wire, mut header, mut message) = slow_query(plane, "alice", 500_000, QuotaChanges::default());
    let before = counted(plane, "invocations_started");
    for _ in 0..2 {
        for _ in 0..5 {
            wire.send(header.sequence as u16, &message);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let (_, answered, answers) = wire.receive();
        assert_eq!((answered.sequence, answers[0].status), (header.sequence, RpcStatus::Killed));
        // A request whose answer was acked is new when it comes again.
        wire.send(header.sequence as u16, &message);
        assert_eq!(wire.receive().1.sequence, header.sequence);
        (header, message) = next_query(&mut wire);
    }
    assert_eq!(wire.one(Operation::new(OpKind::Ping)).status, RpcStatus::Ok);
    assert_eq!(counted(plane, "invocations_started") - before, 4);
}

fn queries_under_one_session_and_sequence_run_beside_each_other(plane: &DataPlane) {
    let (wire, _, message) = slow_query(plane, "bob", 30_000, QuotaChanges::default());
    let mut another = Wire::new(plane, 0, wire.tenant);
    (another.session, another.sequence) = (wire.session, wire.sequence);
    let before = counted(plane, "duplicates");
    // Two of one client under two ids, and one of another client under the first's id.
    for (from, request_id) in [(&wire, 1), (&wire, 2), (&another, 1)] {
        from.send(request_id, &message);
    }
    let mut answered = [&wire, &wire, &another].map(|from| {
        let (request_id, _, answers) = from.receive();
        assert_eq!(answers[0].status, RpcStatus::Killed);
        request_id
    });
    answered[..2].sort_unstable();
    assert_eq!((answered, counted(plane, "duplicates") - before), ([1, 2, 1], 0), "none was taken for a repeat");
}

fn its_repeats_use_up_the_rate(plane: &DataPlane) {
    let rate = QuotaChanges { requests_per_s: Some(1), ..QuotaChanges::default() };
    let (mut wire, header, message) = slow_query(plane, "carol", 30_000, rate);
    for _ in 0..50 {
        wire.send(header.sequence as u16, &message);
    }
    assert_eq!(wire.receive().2[0].status, RpcStatus::Killed);
    assert_eq!(wire.one(Operation::get(1, b"k")).status, RpcStatus::OverQuota);
}

#[test]
fn what_was_just_created_can_be_used_at_once() {
    let plane = data_plane(1);
    let (first, _) = tenant(&plane, "first", true);
    let mut wire = Wire::new(&plane, 0, first);
    for round in 0..300 {
        // The worker is sometimes in the middle of a turn when the directory changes.
        assert_eq!(wire.one(Operation::new(OpKind::Ping)).status, RpcStatus::Ok);
        let (id, _) = tenant(&plane, "next", true);
        wire.tenant = id;
        assert_eq!(wire.one(Operation::put(1, b"k", b"v")).status, RpcStatus::Ok, "round {round}");
        plane.directory.delete_tenant("next").expect("it is there");
        assert_eq!(wire.one(Operation::get(1, b"k")).status, RpcStatus::Unauthenticated, "round {round}");
        wire.tenant = first;
    }
}

#[test]
fn runaways_end_and_say_why() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "mallory", true);
    // Long enough that the page faults of filling the memory quota do not end it first.
    let budget = BudgetOverride { total_us: Some(50_000), ..BudgetOverride::default() };
    load_with(&plane, "mallory", "bad", 1, budget);
    let mut wire = Wire::new(&plane, 0, id);
    let mut kill = |kind: &[u8]| {
        let args = [&1u64.to_le_bytes()[..], kind].concat();
        let answer = wire.one(Operation::invoke(b"bad", &args));
        println!("{}: {:?} {} {}", String::from_utf8_lossy(kind), answer.status, answer.number, answer.text());
        answer
    };
    for (kind, cause) in BAD_KINDS {
        let answer = kill(kind.as_bytes());
        assert_eq!((answer.status, answer.number), (RpcStatus::Killed, cause as u64), "{kind}: {}", answer.text());
        assert!(!answer.value.is_empty());
    }
    assert_eq!(kill(b"error").text(), "failed as asked");
    assert_eq!(kill(b"ok").text(), "ok");
    let kills = plane.directory.snapshot().by_name("mallory").expect("a tenant").tenant.usage.kills();
    assert_eq!(kills.len(), BAD_KINDS.len());
    assert!(kills.iter().all(|kill| kill.extension == "bad" && !kill.text.is_empty()));
    assert_eq!(wire.one(Operation::get(1, b"k")).status, RpcStatus::NotFound, "the worker goes on");
}

#[test]
fn a_response_has_an_end_however_much_is_asked_for() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    load(&plane, "alice", "get", 1);
    let client = common::client(&plane, id);
    // Nine values of one megabyte do not fit into one response: the last is refused, the others arrive.
    let value = vec![7u8; 1 << 20];
    client.put(1, b"big", &value, &Default::default()).expect("a put");
    let mut gets = client.batch();
    let mut calls = client.batch();
    for _ in 0..9 {
        gets = gets.get(1, b"big");
        calls = calls.invoke("get", &get_args(b"big"));
    }
    for batch in [gets, calls] {
        let answers = client.send(batch).expect("a response");
        assert_eq!(answers.len(), 9);
        let whole = answers.iter().filter(|answer| answer.is_ok()).count();
        let refused = answers.iter().filter(|answer| matches!(answer, Err(Error::TooLarge { .. }))).count();
        assert_eq!((whole, refused), (8, 1), "{answers:?}");
    }
    let keys = [b"big"; 9];
    assert!(matches!(client.multi_get(1, &keys), Err(Error::TooLarge { .. })));
    assert_eq!(client.multi_get(1, &keys[..7]).expect("records").len(), 7);
}

#[test]
fn a_message_has_as_many_keys_as_the_client_sends_at_most() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let client = common::client(&plane, id);
    let most = sandstorm_client::limits::MESSAGE_KEYS;
    let keys: Vec<[u8; 2]> = (0..=most as u16).map(u16::to_be_bytes).collect();
    assert_eq!(client.snapshot(1, &keys[..most]).expect("as many as there can be").len(), most);
    assert_eq!(client.multi_get(1, &keys).expect("in two messages").len(), most + 1);
    let mut wire = Wire::new(&plane, 0, id);
    // Its header is checked before its keys, which are missing.
    for (number, status, says) in
        [(most, RpcStatus::Malformed, "keys"), (most + 1, RpcStatus::TooLarge, "at most 1000 keys")]
    {
        let answer = wire.one(Operation { table: 1, number: number as u64, ..Operation::new(OpKind::MultiGet) });
        assert_eq!((answer.status, answer.text().contains(says)), (status, true), "{}", answer.text());
    }
}

mod largest;
mod senders;
