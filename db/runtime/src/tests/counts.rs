//! Counts, ranks, positions and deletes of ranges in transactions of compiled extensions, beside a thread whose commits
//! change the same table: what is committed is what a sorted set would say, and would have become, at the moment of the
//! commit.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_api::abi;
use sandstorm_store::transactions::{CommitError, KeyChange, KeyRead, NewRecord, commit};

use super::*;
use sandstorm_store::RecordTable;

/// Keys are single bytes below this.
const KEYS: u8 = 8;
/// Commits that there are at least, and of those of calls that began anew.
const COMMITS: usize = 400;
const RETRIES: u64 = 20;
/// Calls in which that is to be seen.
const TRIES_MOST: u32 = 1_000_000;

/// Follows its arguments, two bytes a step. Then it reads the record `all`, which has the keys that there are, as
/// every change of the table writes it, and writes it itself. It replies with what that was before, and with the
/// answers.
const PROGRAM: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (sorted, numbers, tx) = (db.table("sorted")?, db.table("numbers")?, db.transaction());
    let mut answers = Vec::new();
    for step in args.chunks_exact(2) {
        let (key, wide) = ([step[1] % 8], u64::from(step[1]));
        match step[0] % 7 {
            0 => tx.put(sorted, &key, b"")?,
            1 => _ = tx.delete(sorted, &key).await?,
            2 => answers.push(tx.count(sorted, &key, &[step[1] / 8 % 8]).await? as u8),
            3 => answers.push(tx.rank(sorted, &key).await? as u8),
            4 => answers.push(tx.nth(sorted, u64::MAX - wide).await?.map_or(255, |key| key[0])),
            5 => {
                let limit = usize::from(step[0] / 7 % 4);
                answers.push(tx.delete_range(sorted, &key, &[step[1] / 8 % 8], limit).await? as u8);
            }
            _ => answers.push(tx.nth(sorted, wide % 9).await?.map_or(255, |key| key[0])),
        }
    }
    let before = tx.get(numbers, b"all").await?.map_or(&b""[..], |record| record.value());
    let mut after: BTreeSet<u8> = before.iter().copied().collect();
    for step in args.chunks_exact(2) {
        let key = step[1] % 8;
        match step[0] % 7 {
            0 => _ = after.insert(key),
            1 => _ = after.remove(&key),
            5 => {
                let within = after.iter().copied().filter(|other| *other >= key && *other < step[1] / 8 % 8);
                let gone: Vec<u8> = within.take(usize::from(step[0] / 7 % 4)).collect();
                after.retain(|other| !gone.contains(other));
            }
            _ => {}
        }
    }
    tx.put(numbers, b"all", &after.into_iter().collect::<Vec<u8>>())?;
    db.reply(&[before.len() as u8])?;
    db.reply(before)?;
    db.reply(&answers)
}
"#;

/// The answers to a program where there are these keys.
fn expected(keys: &mut BTreeSet<u8>, args: &[u8]) -> Vec<u8> {
    let mut answers = Vec::new();
    for step in args.chunks_exact(2) {
        let key = step[1] % KEYS;
        let before = |end: u8| keys.iter().filter(|other| **other < end).count() as u8;
        match step[0] % 7 {
            0 => _ = keys.insert(key),
            1 => _ = keys.remove(&key),
            2 => answers.push(before(step[1] / KEYS % KEYS).saturating_sub(before(key))),
            3 => answers.push(before(key)),
            4 => answers.push(255),
            5 => {
                let within = keys.iter().copied().filter(|other| *other >= key && *other < step[1] / KEYS % KEYS);
                let gone: Vec<u8> = within.take(usize::from(step[0] / 7 % 4)).collect();
                keys.retain(|other| !gone.contains(other));
                answers.push(gone.len() as u8);
            }
            _ => answers.push(keys.iter().nth(usize::from(step[1] % 9)).copied().unwrap_or(255)),
        }
    }
    answers
}

/// Adds or removes a key, and notes in `all` which there are, in one commit; until it is told to end.
fn change_until(view: &TenantView, participant: &mut Participant, done: &AtomicBool) {
    let table = |name: &str| -> &RecordTable { &view.table_by_name(name).expect("a table").table };
    let (sorted, numbers) = (table("sorted"), table("numbers"));
    let mut random = SmallRng::seed_from_u64(7);
    while !done.load(Ordering::Acquire) {
        let (version, mut keys) = {
            let guard = participant.guard();
            let all = numbers.get(&guard, numbers.hash(b"all"), b"all", NOW_MS);
            (
                all.map_or(0, |all| all.version()),
                all.map_or(BTreeSet::new(), |all| all.value().iter().copied().collect()),
            )
        };
        let key = [random.random_range(0..KEYS)];
        let stays = keys.insert(key[0]) || !keys.remove(&key[0]);
        let all: Vec<u8> = keys.into_iter().collect();
        fn record(value: &[u8]) -> NewRecord<'_> {
            NewRecord { value, flags: 0, expires_at_ms: 0 }
        }
        let mut changes = [
            KeyChange { table: sorted, hash: sorted.hash(&key), key: &key, becomes: stays.then(|| record(b"")) },
            KeyChange { table: numbers, hash: numbers.hash(b"all"), key: b"all", becomes: Some(record(&all)) },
        ];
        let read = KeyRead { table: numbers, hash: numbers.hash(b"all"), key: b"all", version };
        match commit(participant, &[read], &mut changes, NOW_MS) {
            Ok(()) | Err(CommitError::Conflict) => {}
            Err(error) => panic!("{error}"),
        }
        participant.quiescent();
        // Long enough for most calls to be undisturbed.
        (0..random.random_range(0..3_000)).for_each(|_| std::hint::spin_loop());
    }
}

/// Has a thread end, after a failure too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn what_is_committed_is_what_a_sorted_set_says_beside_other_commits() {
    let program = compiled("counts", PROGRAM);
    let shared = SharedWorld::new();
    let sorted = NewTable { quota_bytes: Some(16 << 20), ordered: true, ..NewTable::named("sorted") };
    shared.directory.create_table("ada", sorted).unwrap();
    let mut world = World::on(Arc::clone(&shared), 0);
    let (view, done, mut random) = (shared.view("ada"), AtomicBool::new(false), SmallRng::seed_from_u64(24));
    std::thread::scope(|scope| {
        let (view, done) = (&view, &done);
        let _ends = Ends(done);
        let mut other = shared.epochs.register();
        scope.spawn(move || change_until(view, &mut other, done));
        let (mut commits, mut tries) = (0, 0);
        while commits < COMMITS || program.stats.read().transactions.retries < RETRIES {
            let args: Vec<u8> = (0..random.random_range(1..8) * 2).map(|_| random.random()).collect();
            tries += 1;
            assert!(tries < TRIES_MOST, "{commits} of {tries} commits");
            let (end, reply, text) = world.run(&program, &args, long());
            world.participant.quiescent();
            if end == (PollOutcome::Failed { code: abi::STATUS_CONTENDED }) {
                continue;
            }
            assert_eq!(end, PollOutcome::Done, "{text}");
            let (before, answers) = reply[1..].split_at(usize::from(reply[0]));
            let mut keys: BTreeSet<u8> = before.iter().copied().collect();
            assert_eq!(answers, expected(&mut keys, &args), "{args:?} of {before:?}");
            commits += 1;
        }
    });
}
