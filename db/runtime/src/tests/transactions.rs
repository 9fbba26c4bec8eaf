//! Transactions of compiled extensions: all or nothing however a call ends, runs that begin anew, and the counters.

use sandstorm_api::abi;
use sandstorm_api::limits::TRANSACTION_TRIES;

use super::*;
use crate::limits::SWITCH_LATE_US;
use sandstorm_catalog::{GrantAccess, GrantIssuer};
use sandstorm_store::transactions;

const TRANSFER: &str = include_str!("../../../../ext/transfer/src/lib.rs");
/// Writes two records in a transaction, then follows its arguments.
const ENDS: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, tx) = (db.table("numbers")?, db.transaction());
    let found = tx.get(table, b"one").await?.map_or(0, |record| record.value().len());
    let waste = vec![1_u8; 100_000];
    tx.put(table, b"one", args)?;
    tx.put(table, b"two", &waste[..found])?;
    db.reply(&[found as u8])?;
    match args {
        b"panic" => panic!("as asked"),
        b"fail" => Err(Error::new("as asked")),
        b"loop" => loop { core::hint::black_box(()); },
        b"memory" => Err(Error::new(vec![b' '; 1 << 30].len().to_string())),
        b"yield" => { yield_now().await; Ok(()) }
        b"large" => tx.put(table, &vec![0; 60_000], &vec![0; 900_000]),
        b"granted" => tx.put(db.table("bob/numbers")?, b"two", args),
        _ => Ok(()),
    }
}
"#;

/// Adds to two numbers in a transaction, and waits between.
const ADDS: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let (table, tx) = (db.table("numbers")?, db.transaction());
    tx.increment(table, b"one", 1).await?;
    yield_now().await;
    let sum = tx.increment(table, b"one", 1).await? + tx.increment(table, b"two", -2).await?;
    db.reply(sum.to_string().as_bytes())
}
"#;

fn transfer_args(world: &World, amount: u64, from: &[u8], to: &[u8]) -> Vec<u8> {
    let from_len = (from.len() as u16).to_le_bytes();
    [&world.table().id.to_le_bytes()[..], &amount.to_le_bytes(), &from_len, from, to].concat()
}

fn get(world: &World, key: &[u8]) -> Option<Vec<u8>> {
    let (table, guard) = (&world.table().table, world.participant.guard());
    table.get(&guard, table.hash(key), key, NOW_MS).map(|record| record.value().to_vec())
}

fn balance(world: &World, key: &[u8]) -> u64 {
    get(world, key).map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

#[test]
fn a_transfer_that_meets_another_write_runs_again_and_does_not_yield_then() {
    let mut world = World::new();
    world.put(b"ann", &100_u64.to_le_bytes());
    let transfer = compiled("transfer", TRANSFER);
    let args = transfer_args(&world, 30, b"ann", b"bob");
    let mut invocation = world.begin(&transfer, &args, long());
    assert_eq!(
        [0; 2].map(|_| world.poll(&mut invocation)),
        [PollOutcome::Pending; 2],
        "buckets and records are prefetched"
    );
    assert_eq!(world.poll(&mut invocation), PollOutcome::Done);
    assert_eq!(invocation.reply(), [70_u64.to_le_bytes(), 30_u64.to_le_bytes()].concat());
    assert_eq!(invocation.transactions(), Some(TransactionCounts { commits: 1, retries: 0, conflicts: 0 }));
    world.engine.finish(&world.participant, invocation);
    let ends = compiled("ends", ENDS);
    let mut invocation = world.begin(&ends, b"yield", long());
    for _ in 0..2 {
        assert_eq!(world.poll(&mut invocation), PollOutcome::Pending);
    }
    world.put(b"one", b"12345");
    assert_eq!(world.poll(&mut invocation), PollOutcome::Pending, "it is to be run again");
    assert!(invocation.reply().is_empty());
    assert_eq!(world.poll(&mut invocation), PollOutcome::Pending, "its own yield alone");
    assert_eq!(world.poll(&mut invocation), PollOutcome::Done);
    assert_eq!((invocation.reply(), get(&world, b"two").unwrap().len()), (&[5][..], 5));
    assert_eq!(invocation.transactions(), Some(TransactionCounts { commits: 1, retries: 1, conflicts: 0 }));
    world.engine.finish(&world.participant, invocation);
    assert_eq!(ends.stats.read().transactions, TransactionCounts { commits: 1, retries: 1, conflicts: 0 });
}

#[test]
fn increments_of_a_transaction_are_made_together_and_none_is_lost() {
    let mut world = World::new();
    let adds = compiled("adds", ADDS);
    assert_eq!(world.run(&adds, b"", long()), (PollOutcome::Done, b"0".to_vec(), String::new()));
    assert_eq!((get(&world, b"one").unwrap(), get(&world, b"two").unwrap()), (b"2".to_vec(), b"-2".to_vec()));
    let mut invocation = world.begin(&adds, b"", long());
    for _ in 0..2 {
        assert_eq!(world.poll(&mut invocation), PollOutcome::Pending);
    }
    world.put(b"one", b"100");
    assert_eq!(world.complete(&mut invocation), PollOutcome::Done);
    assert_eq!(invocation.transactions(), Some(TransactionCounts { commits: 1, retries: 1, conflicts: 0 }));
    world.engine.finish(&world.participant, invocation);
    assert_eq!((get(&world, b"one").unwrap(), get(&world, b"two").unwrap()), (b"102".to_vec(), b"-4".to_vec()));
    world.put(b"two", b"+4");
    assert_eq!(world.run(&adds, b"", long()).0, PollOutcome::Failed { code: abi::STATUS_NOT_A_NUMBER });
    assert_eq!(get(&world, b"one").unwrap(), b"102");
}

#[test]
fn so_many_conflicts_are_one_for_the_caller() {
    let mut world = World::new();
    let ends = compiled("ends", ENDS);
    let mut invocation = world.begin(&ends, b"yield", long());
    let end = loop {
        world.put(b"one", b"x");
        match world.poll(&mut invocation) {
            PollOutcome::Pending => {}
            end => break end,
        }
    };
    assert_eq!(end, PollOutcome::Failed { code: abi::STATUS_CONTENDED });
    assert!(String::from_utf8_lossy(invocation.text()).contains("call again"));
    let counted = TransactionCounts { commits: 0, retries: u64::from(TRANSACTION_TRIES) - 1, conflicts: 1 };
    assert_eq!(invocation.transactions(), Some(counted));
    world.engine.finish(&world.participant, invocation);
    assert_eq!((ends.stats.read().transactions, get(&world, b"two")), (counted, None));
    // The body is used again, by an invocation that knows nothing of this.
    assert_eq!(world.run(&ends, b"", long()).0, PollOutcome::Done);
    assert_eq!(get(&world, b"two").unwrap().len(), 1);
}

#[test]
fn whatever_ends_a_call_nothing_of_its_transaction_is_written() {
    let mut world = World::new();
    world.put(b"one", b"1");
    let ends = compiled("ends", ENDS);
    let kinds = [
        ("panic", PollOutcome::Killed(KillCause::Panic)),
        ("memory", PollOutcome::Killed(KillCause::OutOfMemory)),
        ("loop", PollOutcome::Killed(KillCause::TotalBudget)),
        ("fail", PollOutcome::Failed { code: 100 }),
        ("large", PollOutcome::Failed { code: abi::STATUS_OUT_OF_MEMORY }),
        ("granted", PollOutcome::Failed { code: abi::STATUS_READ_ONLY }),
    ];
    // As full as it can be, so that the large one does not fit.
    let filling = vec![0; 1 << 20];
    (0..63_u8).for_each(|key| world.put(&[key], &filling));
    world.put(b"rest", &filling[..200_000]);
    world.shared.directory.grant("bob", "numbers", "ada", GrantAccess::Read, GrantIssuer::Owner).unwrap();
    world.view = world.shared.view("ada");
    for (kind, expected) in kinds {
        let budget = if kind == "loop" { Budget { total_us: 2_000, ..Budget::default() } } else { long() };
        let (end, _, text) = world.run(&ends, kind.as_bytes(), budget);
        assert_eq!(end, expected, "{kind}: {text}");
        assert_eq!((get(&world, b"one"), get(&world, b"two")), (Some(b"1".to_vec()), None), "{kind}");
    }
    assert_eq!(ends.stats.read().transactions, TransactionCounts::default());
}

/// Transfers on two workers, among calls that are killed or fail in the middle of the same accounts: the sum stays.
#[test]
fn sums_stay_while_calls_are_killed() {
    const ACCOUNTS: u64 = 6;
    let shared = SharedWorld::new();
    let transfer = compiled("transfer", TRANSFER);
    let ends = compiled("ends", ENDS);
    let first = World::on(Arc::clone(&shared), 9);
    (0..ACCOUNTS).for_each(|account| first.put(&account.to_le_bytes(), &1000_u64.to_le_bytes()));
    let work = |worker: u64| {
        let mut world = World::on(Arc::clone(&shared), worker as usize);
        let mut under_way = Vec::new();
        for number in 0..3_000_u64 {
            let pick = |by: u64| (number.wrapping_mul(by).wrapping_add(worker * 7) >> 3) % ACCOUNTS;
            let invocation = match number % 16 {
                0 => world.begin(&ends, [&b"panic"[..], b"fail"][number as usize / 16 % 2], long()),
                _ => {
                    let (from, to) = (pick(0x9e37_79b9).to_le_bytes(), pick(0x85eb_ca6b).to_le_bytes());
                    let args = transfer_args(&world, pick(0xc2b2_ae35) * 90, &from, &to);
                    world.begin(&transfer, &args, long())
                }
            };
            under_way.push(invocation);
            // Eight at a time, each polled in turn; some end, and some are given up in the middle.
            if under_way.len() == 8 {
                let mut given_up = (number % 5 == 0).then(|| under_way.pop()).flatten();
                if let Some(invocation) = &mut given_up {
                    let _somewhere = world.poll(invocation);
                }
                if let Some(invocation) = given_up {
                    world.engine.finish(&world.participant, invocation);
                }
                while !under_way.is_empty() {
                    let mut next = Vec::new();
                    for mut invocation in under_way.drain(..) {
                        match world.poll(&mut invocation) {
                            PollOutcome::Pending | PollOutcome::Preempted => next.push(invocation),
                            _ => world.engine.finish(&world.participant, invocation),
                        }
                    }
                    under_way = next;
                    world.participant.quiescent();
                }
            }
        }
        under_way.into_iter().for_each(|invocation| world.engine.finish(&world.participant, invocation));
    };
    std::thread::scope(|scope| {
        for worker in 0..2 {
            scope.spawn(move || work(worker));
        }
    });
    let sum: u64 = (0..ACCOUNTS).map(|account| balance(&first, &account.to_le_bytes())).sum();
    assert_eq!(sum, ACCOUNTS * 1000);
    assert_eq!(get(&first, b"two"), None);
    let counted = transfer.stats.read();
    assert!(counted.transactions.commits > 100, "{counted:?}");
}

/// Commits past the API. Replies with the statuses.
unsafe extern "C" fn commits_nonsense(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let key = b"key";
    let read = abi::RawRead { table: 1, hash: 0, key: key.as_ptr(), key_len: 3, version: 0 };
    let change = abi::RawChange {
        table: 1,
        key: key.as_ptr(),
        key_len: 3,
        value: key.as_ptr(),
        value_len: 3,
        expires_at_ms: 0,
        flags: 0,
        kind: abi::CHANGE_PUT,
    };
    let (nowhere, null) = (abi::RawRead { table: 99, ..read }, abi::RawRead { key: std::ptr::null(), ..read });
    let long = abi::RawRead { key_len: usize::MAX, ..read };
    // Each is no longer than it may be, all of them together are.
    let much = vec![0_u8; 60_000];
    let many = [abi::RawRead { key: much.as_ptr(), key_len: much.len(), ..read }; 18];
    let kind = abi::RawChange { kind: 9, ..change };
    let value = abi::RawChange { value_len: usize::MAX, ..change };
    // SAFETY: a live invocation and locals; each pointer is null or has as much as the length says, or the length is
    // beyond the limits, so that the host must not look.
    unsafe {
        let host = &*(*invocation).host;
        let commit = |reads: *const abi::RawRead, reads_len, changes: *const abi::RawChange, changes_len| {
            (host.commit)(invocation, reads, reads_len, std::ptr::dangling(), 0, changes, changes_len) as u8
        };
        let statuses = [
            commit(std::ptr::null(), 1, &raw const change, 1),
            commit((&raw const read).wrapping_byte_add(1), 1, &raw const change, 1),
            commit(&raw const read, usize::MAX, &raw const change, 1),
            commit(&raw const read, 1, &raw const change, usize::MAX),
            commit(&raw const nowhere, 1, &raw const change, 1),
            commit(&raw const null, 1, &raw const change, 1),
            commit(&raw const long, 1, &raw const change, 1),
            commit(&raw const read, 1, &raw const kind, 1),
            commit(&raw const read, 1, &raw const value, 1),
            commit(&raw const read, 1, [change; 2].as_ptr(), 2),
            commit(&raw const read, 1, std::ptr::null(), usize::MAX),
            commit(many.as_ptr(), 18, &raw const change, 1),
        ];
        (host.reply)(invocation, statuses.as_ptr(), statuses.len());
    }
    abi::POLL_DONE
}

#[test]
fn nonsense_gets_a_status_and_changes_nothing() {
    let mut world = World::new();
    assert_eq!(world.table().id, 1);
    let (end, statuses, _) = world.run(&native(commits_nonsense), b"", long());
    let (invalid, large) = (abi::STATUS_INVALID as u8, abi::STATUS_TOO_LARGE as u8);
    let unknown = abi::STATUS_UNKNOWN_TABLE as u8;
    let expected = [invalid, invalid, large, large, unknown, invalid, large, invalid, large, invalid, 0, large];
    assert_eq!((end, &statuses[..]), (PollOutcome::Done, &expected[..]));
    assert_eq!(get(&world, b"key"), None);
}

/// Commits twice. Replies with the statuses.
unsafe extern "C" fn commits_twice(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let (key, kind) = (b"key", abi::CHANGE_DELETE);
    let read = abi::RawRead { table: 1, hash: 0, key: key.as_ptr(), key_len: 3, version: 0 };
    let (value, value_len) = (key.as_ptr(), 0);
    let change =
        abi::RawChange { table: 1, key: key.as_ptr(), key_len: 3, value, value_len, expires_at_ms: 0, flags: 0, kind };
    // SAFETY: a live invocation and locals.
    unsafe {
        let host = &*(*invocation).host;
        let statuses = [(); 2].map(|()| {
            (host.commit)(invocation, &raw const read, 1, std::ptr::dangling(), 0, &raw const change, 1) as u8
        });
        (host.reply)(invocation, statuses.as_ptr(), statuses.len());
    }
    abi::POLL_DONE
}

#[test]
fn what_was_committed_is_not_committed_again() {
    let mut world = World::new();
    let (end, statuses, _) = world.run(&native(commits_twice), b"", long());
    assert_eq!((end, &statuses[..]), (PollOutcome::Done, &[0, abi::STATUS_INVALID as u8][..]));
}

/// Another worker's clock is ahead: a record that still lives by this one's was found expired.
#[test]
fn what_runs_again_reads_by_the_clock_of_commits() {
    let mut world = World::new();
    let expiring = WriteOptions { expires_at_ms: NOW_MS + 3, ..WriteOptions::default() };
    let table = &world.table().table;
    table.put(&world.participant, table.hash(b"one"), b"one", b"12345", &expiring, NOW_MS).unwrap();
    transactions::commit(&world.participant, &[], &mut [], NOW_MS + 5).unwrap();
    let ends = compiled("ends", ENDS);
    let mut invocation = world.begin(&ends, b"", long());
    assert_eq!(world.complete(&mut invocation), PollOutcome::Done);
    assert_eq!(invocation.transactions(), Some(TransactionCounts { commits: 1, retries: 1, conflicts: 0 }));
    world.engine.finish(&world.participant, invocation);
    assert_eq!(get(&world, b"two"), Some(Vec::new()), "none was found to count the bytes of");
}

#[test]
fn the_time_of_a_commit_is_charged_in_full() {
    let mut world = World::new();
    let (budget, charge_ns) = (long(), 5_000_000_000);
    let mut invocation = world.begin(&native(commits_twice), b"", budget);
    // SAFETY: held alone.
    let body = unsafe { invocation.0.as_mut() };
    body.transaction.tried = true;
    assert_eq!(
        engine::finish_poll(body, guest_runner::GuestExit::Returned(abi::POLL_PENDING), charge_ns),
        PollOutcome::Pending
    );
    assert_eq!(body.spent_ns, charge_ns);
    body.spent_ns = 0;
    assert_eq!(
        engine::finish_poll(body, guest_runner::GuestExit::Returned(abi::POLL_PENDING), charge_ns),
        PollOutcome::Pending
    );
    let cut_ns = (budget.slice_us + SWITCH_LATE_US) * 1000;
    assert_eq!(body.spent_ns, cut_ns, "what else takes so long is time that the hypervisor took");
    world.engine.finish(&world.participant, invocation);
}
