//! Ranges of ordered tables through compiled extensions: equal to those of a sorted map, within transactions too, which
//! begin anew when a range has changed. Requests past the API get a status.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use sandstorm_api::abi;

use super::*;
use sandstorm_store::StoreCondition;

/// Follows its arguments: each step is five bytes, an operation, two keys, a limit and a direction. The first byte of
/// all tells whether a transaction does it. Replies with the ranges' content.
const PROGRAM: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

/// Short keys of few letters, the empty one among them.
fn key(number: u8) -> Vec<u8> {
    (0..usize::from(number % 4)).map(|digit| [0, 9, 255][usize::from(number / 4) / [1, 3, 9][digit] % 3]).collect()
}

fn shown<'a>(records: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut reply = vec![0];
    for (key, value) in records {
        reply[0] += 1;
        reply.push(key.len() as u8);
        reply.extend_from_slice(key);
        reply.extend_from_slice(value);
    }
    reply
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = db.table("sorted")?;
    let tx = (args[0] & 1 == 1).then(|| db.transaction());
    let mut checks = 2;
    for step in args[1..].chunks_exact(5) {
        let (from, to, limit) = (key(step[1]), key(step[2]), usize::from(step[3]) + 1);
        let direction = if step[4] & 1 == 0 { Direction::Forward } else { Direction::Backward };
        match (step[0] % 4, &tx) {
            (0, Some(tx)) => tx.put(table, &from, &[step[2]])?,
            (0, None) => _ = db.put(table, &from, &[step[2]]).await?,
            (1, Some(tx)) => _ = tx.delete(table, &from).await?,
            (1, None) => _ = db.delete(table, &from).await?,
            (_, Some(tx)) => {
                let found = tx.range(table, &from, &to, limit, direction).await?;
                db.reply(&shown(found.iter().map(|seen| (seen.key(), seen.value()))))?;
                if checks == 0 {
                    continue;
                }
                // Each of the transaction's own writes counts as a range, of which there is a limit.
                checks -= 1;
                let all = tx.range(table, &from, &to, 1_000, direction).await?;
                if tx.count(table, &from, &to).await? != all.len() as u64 {
                    return Err(Error::new("the count is another"));
                }
                if let Some(first) = all.first() {
                    let position = tx.rank(table, first.key()).await?;
                    if tx.nth(table, position).await?.as_deref() != Some(first.key()) {
                        return Err(Error::new("the position is another"));
                    }
                }
            }
            (_, None) => {
                let found = db.range(table, &from, &to, limit, direction).await?;
                let keys = db.range_keys(table, &from, &to, limit, direction).await?;
                if !keys.iter().eq(found.iter().map(|record| record.key())) {
                    return Err(Error::new("the keys alone are others"));
                }
                let all = db.range_keys(table, &from, &to, 1_000, Direction::Forward).await?;
                if db.count(table, &from, &to).await? != all.len() as u64 {
                    return Err(Error::new("the count is another"));
                }
                for key in &all {
                    let position = db.rank(table, key).await?;
                    if db.nth(table, position).await?.as_deref() != Some(key) {
                        return Err(Error::new("the position is another"));
                    }
                }
                db.reply(&shown(found.iter().map(|record| (record.key(), record.value()))))?;
            }
        }
    }
    Ok(())
}
"#;

/// Reads a range of a transaction, waits, and writes how many records it has met.
const COUNTS: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, tx) = (db.table(if args == b"hashed" { "numbers" } else { "sorted" })?, db.transaction());
    let found = tx.range(table, b"b", b"y", 100, Direction::Forward).await?;
    yield_now().await;
    tx.put(table, b"count", &[found.len() as u8])
}
"#;

fn key(number: u8) -> Vec<u8> {
    let digits = usize::from(number / 4);
    (0..usize::from(number % 4)).map(|digit| [0, 9, 255][digits / [1, 3, 9][digit] % 3]).collect()
}

/// Returns the reply to a program.
fn expected(model: &mut BTreeMap<Vec<u8>, u8>, program: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    for step in program.chunks_exact(5) {
        let (from, to, limit) = (key(step[1]), key(step[2]), usize::from(step[3]) + 1);
        match step[0] % 4 {
            0 => _ = model.insert(from, step[2]),
            1 => _ = model.remove(&from),
            _ => {
                let inside = model.iter().filter(|(key, _)| **key >= from && (to.is_empty() || **key < to));
                let mut inside: Vec<_> = inside.collect();
                if step[4] & 1 == 1 {
                    inside.reverse();
                }
                inside.truncate(limit);
                reply.push(inside.len() as u8);
                for (key, value) in inside {
                    reply.push(key.len() as u8);
                    reply.extend(key);
                    reply.push(*value);
                }
            }
        }
    }
    reply
}

fn world() -> World {
    let shared = SharedWorld::new();
    let sorted = NewTable { quota_bytes: Some(16 << 20), ordered: true, ..NewTable::named("sorted") };
    shared.directory.create_table("ada", sorted).unwrap();
    World::on(shared, 0)
}

fn put(world: &World, key: &[u8], value: &[u8]) {
    let table = &world.view.table_by_name("sorted").unwrap().table;
    table.put(&world.participant, table.hash(key), key, value, &WriteOptions::default(), NOW_MS).unwrap();
}

fn delete(world: &World, key: &[u8]) {
    let table = &world.view.table_by_name("sorted").unwrap().table;
    table.delete(&world.participant, table.hash(key), key, StoreCondition::Always, NOW_MS).unwrap();
}

#[test]
fn ranges_through_an_extension_are_those_of_a_sorted_map() {
    let program = compiled("ranges", PROGRAM);
    let mut world = world();
    let steps = prop::collection::vec(any::<[u8; 5]>(), 0..60);
    let strategy = (any::<bool>(), steps);
    let mut model = BTreeMap::new();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 200, ..Default::default() });
    for _ in 0..200 {
        let (in_transaction, steps) = strategy.new_tree(&mut runner).unwrap().current();
        let args = [&[u8::from(in_transaction)][..], &steps.concat()].concat();
        let expected = expected(&mut model, &steps.concat());
        let (end, reply, text) = world.run(&program, &args, long());
        assert_eq!((end, reply), (PollOutcome::Done, expected), "{text}");
        world.participant.quiescent();
    }
    assert!(!model.is_empty());
}

#[test]
fn a_transaction_whose_range_has_changed_runs_again() {
    let counts = compiled("counts", COUNTS);
    for (meanwhile, retries, met) in [
        ((|world| put(world, b"new", b"")) as fn(&World), 1, 3),
        (|world| put(world, b"c", b"other"), 1, 2),
        (|world| delete(world, b"c"), 1, 1),
        (|world| put(world, b"y", b"its end"), 0, 2),
        (|world| put(world, b"azzz", b"before it"), 0, 2),
        (|world| put(world, b"zzz", b"behind it"), 0, 2),
    ] {
        let mut world = world();
        [&b"c"[..], b"x"].iter().for_each(|key| put(&world, key, b""));
        let mut invocation = world.begin(&counts, b"", long());
        assert_eq!(world.poll(&mut invocation), PollOutcome::Pending);
        meanwhile(&world);
        assert_eq!(world.complete(&mut invocation), PollOutcome::Done);
        assert_eq!(invocation.transactions(), Some(TransactionCounts { commits: 1, retries, conflicts: 0 }));
        world.engine.finish(&world.participant, invocation);
        let table = &world.view.table_by_name("sorted").unwrap().table;
        let guard = world.participant.guard();
        let count = table.get(&guard, table.hash(b"count"), b"count", NOW_MS).map(|record| record.value());
        assert_eq!(count, Some(&[met][..]));
    }
    let (end, _, text) = world().run(&counts, b"hashed", long());
    assert_eq!(end, PollOutcome::Failed { code: abi::STATUS_INVALID });
    assert!(text.contains("--ordered"), "{text}");
}

/// Asks for impossible ranges, and commits such. Replies with the statuses.
unsafe extern "C" fn asks_nonsense(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let mut out = [abi::RawRecord::EMPTY; abi::MAX_CALL_RECORDS];
    let (end, row) = (b"key", abi::RawRow { key: b"key".as_ptr(), key_len: 3, version: 1 });
    let range = abi::RawRange {
        from: end.as_ptr(),
        from_len: 0,
        to: end.as_ptr(),
        to_len: 0,
        backward: 9,
        past: 7,
        finished: 0,
        reserved: 3,
    };
    let read = abi::RawRangeRead {
        table: 2,
        from: end.as_ptr(),
        from_len: 3,
        to: end.as_ptr(),
        to_len: 1,
        rows: &raw const row,
        rows_len: 1,
        included: 5,
        backward: 8,
    };
    let null = std::ptr::null();
    // SAFETY: a live invocation and locals; each pointer is null or has as much as the length says, or the length is
    // beyond the limits, so that the host must not look. There is room for as many records as one call fills.
    unsafe {
        let host = &*(*invocation).host;
        let mut ask = |table, mut range: abi::RawRange, limit| {
            let mut filled = 99;
            let status = (host.range)(invocation, table, &mut range, out.as_mut_ptr(), limit, &mut filled) as u8;
            [status, filled as u8]
        };
        let asked = [
            ask(1, range, 1),
            ask(99, range, 1),
            ask(2, abi::RawRange { from: null, ..range }, 1),
            ask(2, abi::RawRange { to_len: usize::MAX, ..range }, 1),
            ask(2, range, usize::MAX),
            ask(2, range, 0),
            ask(2, abi::RawRange { finished: 1, ..range }, 5),
        ];
        let commit = |reads: *const abi::RawRangeRead, len| {
            let nothing = std::ptr::dangling();
            (host.commit)(invocation, std::ptr::dangling(), 0, reads, len, nothing, 0) as u8
        };
        let committed = [
            commit(null.cast(), 1),
            commit(&raw const read, usize::MAX),
            commit(&abi::RawRangeRead { table: 1, ..read }, 1),
            commit(&abi::RawRangeRead { table: 99, ..read }, 1),
            commit(&abi::RawRangeRead { rows: null.cast(), ..read }, 1),
            commit(&abi::RawRangeRead { rows_len: usize::MAX, ..read }, 1),
            commit(&abi::RawRangeRead { from_len: usize::MAX, ..read }, 1),
            // Its end lies before its beginning: it is empty, though it claims a record.
            commit(&raw const read, 1),
        ];
        asked.iter().for_each(|answer| _ = (host.reply)(invocation, answer.as_ptr(), 2));
        (host.reply)(invocation, committed.as_ptr(), committed.len());
    }
    abi::POLL_DONE
}

#[test]
fn nonsense_gets_a_status() {
    let mut world = world();
    assert_eq!(world.view.table_by_name("sorted").unwrap().id, 2);
    (0..40_u8).for_each(|number| put(&world, &[number; 3], b""));
    let (end, reply, _) = world.run(&native(asks_nonsense), b"", long());
    let (unknown, invalid, large) =
        (abi::STATUS_UNKNOWN_TABLE as u8, abi::STATUS_INVALID as u8, abi::STATUS_TOO_LARGE as u8);
    let (unordered, conflict, most) =
        (abi::STATUS_NOT_ORDERED as u8, abi::STATUS_CONFLICT as u8, abi::MAX_CALL_RECORDS as u8);
    let asked = [[unordered, 0], [unknown, 0], [invalid, 0], [large, 0], [0, most], [0, 0], [0, 0]].concat();
    let committed = [invalid, large, unordered, unknown, invalid, large, large, conflict];
    assert_eq!((end, reply), (PollOutcome::Done, [&asked[..], &committed].concat()));
}
