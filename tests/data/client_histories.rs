//! Promise: transactions of clients are strictly serialisable with each other and with those of calls, on two workers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use sandstorm_client::blocking::Client;
use sandstorm_client::{Direction, Error};
use sandstorm_extension::BudgetOverride;

use super::client_transactions::{SORTED, world};
use crate::common::transaction_graph::{CommittedTransaction, check_serialisable};
use crate::common::{await_nothing_charged, client_at, library_of, loaded};

/// Reads keys of one byte in a transaction, and writes its id to the first ones of them. Args: the id, how many are
/// written, the keys. Replies with the ids that it has read.
const CALL: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let Some((id, [written, keys @ ..])) = args.split_first_chunk::<8>() else { return Err(Error::invalid("args")) };
    let (table, transaction) = (db.table("sorted")?, db.transaction());
    let keys: Vec<&[u8]> = keys.chunks(1).collect();
    let mut read: Vec<[u8; 8]> = Vec::new();
    for found in transaction.get_many(table, &keys).await? {
        read.push(found.map_or(Ok([0; 8]), |record| record.value().try_into())?);
    }
    for key in keys.iter().take(usize::from(*written)) {
        transaction.put(table, key, id)?;
    }
    for id in read {
        db.reply(&id)?;
    }
    Ok(())
}
"#;

#[test]
fn the_checker_of_histories_finds_what_is_wrong() {
    let one = |id, reads: &[(u8, u64)], writes: &[u8], begun, ended| CommittedTransaction {
        id,
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        begun,
        ended,
    };
    let check = check_serialisable;
    assert_eq!(check(&[one(1, &[(7, 0)], &[7], 1, 2), one(2, &[(7, 1)], &[7], 3, 4)]), Ok(()));
    assert!(check(&[one(1, &[(7, 0)], &[7], 1, 9), one(2, &[(7, 0)], &[7], 1, 9)]).is_err(), "a lost update");
    let skew = [one(1, &[(7, 0), (8, 0)], &[7], 1, 9), one(2, &[(7, 0), (8, 0)], &[8], 1, 9)];
    assert!(check(&skew).is_err(), "a write skew");
    let half = [one(1, &[(7, 0), (8, 0)], &[7, 8], 1, 9), one(2, &[(7, 1), (8, 0)], &[], 1, 9)];
    assert!(check(&half).is_err(), "half of a transaction was read");
    let old = [one(1, &[(7, 0)], &[7], 1, 2), one(2, &[(7, 0)], &[], 3, 4)];
    assert!(check(&old).is_err(), "what was replaced before is read");
    assert!(check(&[one(2, &[(7, 1)], &[], 1, 2)]).is_err(), "what was never committed is read");
}

/// Keys of the histories.
const KEYS: u8 = 6;

fn id_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

/// Keys with the ids that were read there, and the keys that were written.
type ReadsAndWrites = (Vec<(u8, u64)>, Vec<u8>);

/// Draws the keys that a transaction reads, each once.
fn draw_keys(random: &mut impl FnMut(u64) -> u64) -> Vec<u8> {
    let mut keys: Vec<u8> = (0..1 + random(4)).map(|_| random(u64::from(KEYS)) as u8).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Reads and writes in a client's transaction; `None`: it met others.
fn run_transaction(client: &Client, id: u64, random: &mut impl FnMut(u64) -> u64) -> Option<ReadsAndWrites> {
    let mut transaction = client.transaction();
    let found: HashMap<u8, u64> = if random(3) == 0 {
        let direction = if random(2) == 0 { Direction::Forward } else { Direction::Backward };
        let all = transaction.range(SORTED, b"", b"", 100, direction).expect("a range");
        let mut found: HashMap<u8, u64> = (0..KEYS).map(|key| (key, 0)).collect();
        found.extend(all.iter().map(|record| (record.key[0], id_of(&record.value))));
        found
    } else {
        let keys = draw_keys(random);
        let bytes: Vec<[u8; 1]> = keys.iter().map(|key| [*key]).collect();
        let records = transaction.multi_get(SORTED, &bytes).expect("records");
        let ids = records.iter().map(|record| record.as_ref().map_or(0, |record| id_of(&record.value)));
        keys.into_iter().zip(ids).collect()
    };
    let mut reads: Vec<_> = found.into_iter().collect();
    reads.sort_unstable();
    let writes: Vec<u8> = reads.iter().map(|(key, _)| *key).filter(|_| random(2) == 0).collect();
    writes.iter().for_each(|key| transaction.put(SORTED, &[*key], &id.to_le_bytes()));
    match transaction.commit() {
        Ok(()) => Some((reads, writes)),
        Err(Error::TransactionConflict { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The same in a call.
fn run_call(client: &Client, id: u64, random: &mut impl FnMut(u64) -> u64) -> Option<ReadsAndWrites> {
    let keys = draw_keys(random);
    let written = random(keys.len() as u64 + 1) as usize;
    let args = [&id.to_le_bytes()[..], &[written as u8], &keys].concat();
    let reply = match client.invoke("reads", &args) {
        Ok(reply) => reply,
        Err(Error::Conflict) => return None,
        Err(error) => panic!("{error}"),
    };
    let reads = keys.iter().copied().zip(reply.chunks(8).map(id_of)).collect();
    Some((reads, keys[..written].to_vec()))
}

#[test]
fn transactions_of_clients_and_of_calls_are_strictly_serialisable_together() {
    const EACH: u64 = 250;
    let (plane, id) = world();
    let extension = loaded("reads", 1, library_of("reads", CALL), BudgetOverride::default());
    plane.directory.put_extension("bank", Arc::new(extension)).expect("an extension is loaded");
    let (ids, moments, conflicts) = (AtomicU64::new(1), AtomicU64::new(1), AtomicUsize::new(0));
    let history: Vec<CommittedTransaction> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let (plane, ids, moments, conflicts) = (&plane, &ids, &moments, &conflicts);
                scope.spawn(move || {
                    let client = client_at(plane, id, thread as usize);
                    let mut state = thread.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let mut random = move |below: u64| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        (state >> 33) % below
                    };
                    let mut happened = Vec::new();
                    for _ in 0..EACH {
                        let (id, begun) = (ids.fetch_add(1, SeqCst), moments.fetch_add(1, SeqCst));
                        let done = match thread {
                            3 => run_call(&client, id, &mut random),
                            _ => run_transaction(&client, id, &mut random),
                        };
                        let ended = moments.fetch_add(1, SeqCst);
                        match done {
                            Some((reads, writes)) => {
                                happened.push(CommittedTransaction { id, reads, writes, begun, ended })
                            }
                            None => drop(conflicts.fetch_add(1, SeqCst)),
                        }
                    }
                    happened
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    });
    assert_eq!(check_serialisable(&history), Ok(()));
    assert!(history.len() as u64 > EACH, "most are committed: {}", history.len());
    let conflicts = conflicts.load(SeqCst);
    println!("{} committed, {conflicts} met others", history.len());
    assert!(conflicts > 0, "none met another: nothing was tried");
    await_nothing_charged(&plane, id);
}
