//! Promise: transactions of clients are strictly serialisable over kills of the server, in a table with durability
//! `disk`: what was acknowledged, and what any client was shown, is there afterwards, and the rest as a whole or not at
//! all. The real binary is killed with SIGKILL; `SANDSTORM_KILLS` sets how many times. The checker is in
//! `common/transaction_graph.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_client::blocking::Client;
use sandstorm_client::control::DurabilityLevel;
use sandstorm_client::{Config, Error, Record};

use crate::common::transaction_graph::{CommittedTransaction, check_serialisable};
use crate::disk::{OWN_DEADLINE, TOKEN, start_with};
use crate::records::{LONG, RecordServer};

/// Few keys, so that clients meet.
const KEYS: u8 = 6;
const CLIENTS: usize = 4;

/// What the clients of one life of a server share.
#[derive(Default)]
struct ServerLife {
    moments: AtomicU64,
    is_killed: AtomicBool,
    /// Those that were acknowledged.
    committed: Mutex<Vec<CommittedTransaction>>,
    /// Those whose commit has no answer.
    uncertain: Mutex<Vec<CommittedTransaction>>,
}

fn client(server: &RecordServer) -> Client {
    let tenant = server.control.tenant("shop").unwrap().id;
    let config = Config::new(server.data.parse().unwrap(), tenant).deadline(LONG);
    Client::connect(config.token(TOKEN)).unwrap()
}

fn bytes_of(keys: &[u8]) -> Vec<[u8; 1]> {
    keys.iter().map(|key| [*key]).collect()
}

/// The ids of the last writers of keys, as they were found; 0: none has written it.
fn ids_of(keys: &[u8], found: &[Option<Record>]) -> Vec<(u8, u64)> {
    let id = |record: &Record| record.value[..].try_into().map_or(u64::MAX, u64::from_le_bytes);
    keys.iter().copied().zip(found.iter().map(|one| one.as_ref().map_or(0, id))).collect()
}

/// Runs transactions until the server is gone; counts those that were acknowledged.
fn transact_on(
    (client, table): (&Client, u64),
    life: &ServerLife,
    (ids, answered): (&AtomicU64, &AtomicU64),
    random: &mut SmallRng,
) -> Result<(), String> {
    loop {
        let keys: BTreeSet<u8> = (0..random.random_range(1..=4)).map(|_| random.random_range(0..KEYS)).collect();
        let keys: Vec<u8> = keys.into_iter().collect();
        let (id, begun) = (ids.fetch_add(1, SeqCst) + 1, life.moments.fetch_add(1, SeqCst));
        let mut transaction = client.transaction();
        let found = match transaction.multi_get(table, &bytes_of(&keys)) {
            Ok(found) => found,
            Err(Error::Timeout { .. } | Error::TransactionConflict { .. }) if !life.is_killed.load(SeqCst) => continue,
            Err(error) => return Err(error.to_string()),
        };
        let reads = ids_of(&keys, &found);
        let writes: Vec<u8> = keys.into_iter().filter(|_| random.random_bool(0.5)).collect();
        writes.iter().for_each(|key| transaction.put(table, &[*key], &id.to_le_bytes()));
        let done = transaction.commit();
        let ended = life.moments.fetch_add(1, SeqCst);
        let ran = CommittedTransaction { id, reads, writes, begun, ended };
        match done {
            Ok(()) => {
                life.committed.lock().unwrap().push(ran);
                answered.fetch_add(1, SeqCst);
            }
            Err(Error::TransactionConflict { .. }) => {}
            // It may have been made, or may be made until the server is gone.
            Err(error) => {
                life.uncertain.lock().unwrap().push(ran);
                if life.is_killed.load(SeqCst) || !matches!(error, Error::Timeout { .. }) {
                    return Err(error.to_string());
                }
            }
        }
    }
}

/// Has all clients run transactions, and kills the server once each has committed some.
fn transact_and_kill(server: RecordServer, table: u64, ids: &AtomicU64, random: &mut SmallRng) -> ServerLife {
    let (life, least) = (ServerLife::default(), random.random_range(1..60));
    let clients: Vec<Client> = (0..CLIENTS).map(|_| client(&server).with_deadline(OWN_DEADLINE)).collect();
    let answered: Vec<_> = clients.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (client, answered) in clients.iter().zip(&answered) {
            let (mut random, life) = (SmallRng::seed_from_u64(random.random()), &life);
            threads.push(scope.spawn(move || {
                let ended = transact_on((client, table), life, (ids, answered), &mut random);
                assert!(life.is_killed.load(SeqCst), "a client of a living server: {ended:?}");
            }));
        }
        let begun = Instant::now();
        while answered.iter().any(|answered| answered.load(SeqCst) < least)
            && !threads.iter().any(|thread| thread.is_finished())
            && begun.elapsed() < LONG
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        life.is_killed.store(true, SeqCst);
        drop(server);
    });
    assert!(answered.iter().all(|answered| answered.load(SeqCst) >= least), "each client is answered: {answered:?}");
    life
}

/// All that happened in a life which began with some ids at the keys and ended with others: what was acknowledged, what
/// else was seen, and a read of all keys behind it.
fn history(life: ServerLife, before: &BTreeMap<u8, u64>, after: &BTreeMap<u8, u64>) -> Vec<CommittedTransaction> {
    let crash = life.moments.into_inner();
    let mut history = life.committed.into_inner().unwrap();
    let reads = after.iter().map(|(key, id)| (*key, *id)).collect();
    history.push(CommittedTransaction {
        id: u64::MAX - 1,
        reads,
        writes: Vec::new(),
        begun: crash + 1,
        ended: crash + 2,
    });
    let mut uncertain = life.uncertain.into_inner().unwrap();
    loop {
        let seen: BTreeSet<u64> = history.iter().flat_map(|one| one.reads.iter().map(|(_, id)| *id)).collect();
        let (made, rest): (Vec<_>, Vec<_>) = uncertain.into_iter().partition(|one| seen.contains(&one.id));
        uncertain = rest;
        if made.is_empty() {
            break;
        }
        history.extend(made.into_iter().map(|one| CommittedTransaction { ended: crash, ..one }));
    }
    for (key, id) in history.iter_mut().flat_map(|one| &mut one.reads) {
        // The state at the beginning is 0. A key that has had an id and has none would pass for that.
        *id = match before.get(key) {
            Some(first) if first == id => 0,
            _ if *id == 0 => u64::MAX,
            _ => *id,
        };
    }
    history
}

#[test]
fn transactions_of_clients_are_strictly_serialisable_over_kills() {
    let kills = std::env::var("SANDSTORM_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(5_u64);
    let folder = tempfile::tempdir().unwrap();
    let (mut random, ids) = (SmallRng::seed_from_u64(kills), AtomicU64::new(0));
    let (mut server, table) = start_with(folder.path(), DurabilityLevel::Disk);
    let keys: Vec<u8> = (0..KEYS).collect();
    let mut before: BTreeMap<u8, u64> = keys.iter().map(|key| (*key, 0)).collect();
    for kill in 0..kills {
        let life = transact_and_kill(server, table, &ids, &mut random);
        server = RecordServer::start(folder.path());
        let found = client(&server).multi_get(table, &bytes_of(&keys)).unwrap();
        let after: BTreeMap<u8, u64> = ids_of(&keys, &found).into_iter().collect();
        let happened = history(life, &before, &after);
        assert_eq!(check_serialisable(&happened), Ok(()), "kill {kill}: {before:?}, then {after:?}");
        before = after;
    }
}

#[test]
fn a_kill_that_loses_or_halves_a_transaction_is_found() {
    let one = |id, reads: &[(u8, u64)], writes: &[u8], begun, ended| CommittedTransaction {
        id,
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        begun,
        ended,
    };
    let check = |committed: Vec<_>, uncertain: Vec<_>, after: [u64; 2]| {
        let (committed, uncertain) = (Mutex::new(committed), Mutex::new(uncertain));
        let life = ServerLife { moments: AtomicU64::new(100), committed, uncertain, ..ServerLife::default() };
        let state = |ids: [u64; 2]| BTreeMap::from([(7, ids[0]), (8, ids[1])]);
        check_serialisable(&history(life, &state([3, 0]), &state(after)))
    };
    let both = || one(4, &[(7, 3), (8, 0)], &[7, 8], 1, 2);
    assert_eq!(check(vec![both()], vec![], [4, 4]), Ok(()));
    assert!(check(vec![both()], vec![], [3, 0]).is_err(), "what was acknowledged is lost");
    assert!(check(vec![both()], vec![], [4, 0]).is_err(), "half of it is lost");
    assert!(check(vec![], vec![], [0, 0]).is_err(), "what was there before is lost");
    // Without an answer, it is there or not, as a whole.
    assert_eq!(check(vec![], vec![both()], [3, 0]), Ok(()));
    assert_eq!(check(vec![], vec![both()], [4, 4]), Ok(()));
    assert!(check(vec![], vec![both()], [4, 0]).is_err(), "half of it is there");
    let shown = || one(5, &[(7, 4)], &[], 3, 4);
    assert_eq!(check(vec![shown()], vec![both()], [4, 4]), Ok(()));
    assert!(check(vec![shown()], vec![both()], [3, 0]).is_err(), "what was shown is lost");
}
