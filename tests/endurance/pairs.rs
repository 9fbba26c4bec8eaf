//! Promise: transactions write and delete records of an ordered table in pairs, by the results of ranges. No reader
//! ever sees half a pair, and never more pairs than a range allowed, over the wire or by invocations, however calls
//! among them end. A killed call leaves nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::alone::ran_alone;
use crate::common::{Stop, await_nothing_charged, client, client_at, data_plane, eventually, library_of, tenant};
use sandstorm_catalog::NewTable;
use sandstorm_client::blocking::Client;
use sandstorm_client::{Direction, Error, KeyedRecord};
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_store::TableStats;

const SORTED: u64 = 2;
/// There are so many that their records are read in several steps. They are few enough that one message's reads (2,048)
/// suffice for four tries to read them at one moment, and one more with the writers blocked.
const ROOMS: u8 = 40;
/// Guests that come and go, in each room.
const GUESTS: u8 = 4;
/// Most guests of a room; `PAIRS` has it, too.
const ROOM_FOR: usize = 3;
/// Only killed calls let guests from this number on in.
const NOBODY: u8 = 200;
/// Writes of each of two writers.
const WRITES: usize = 3_000;

/// A guest of a room is two records, `L room guest` and `R room guest`, with the same value. Arguments: action, room,
/// guest, other room, value.
const PAIRS: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

async fn room_for(tx: &Transaction<'_>, table: TableId, room: u8, guest: u8) -> Result<bool, Error> {
    let guests = tx.range(table, &[b'L', room], &[b'L', room + 1], 10, Direction::Backward).await?;
    Ok(guests.len() < 3 && guests.iter().all(|seen| seen.key() != [b'L', room, guest]))
}

fn enter(tx: &Transaction<'_>, table: TableId, room: u8, guest: u8, value: &[u8]) -> Result<(), Error> {
    tx.put(table, &[b'L', room, guest], value)?;
    tx.put(table, &[b'R', room, guest], value)
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let [what, room, guest, other, value @ ..] = args else { return Err(Error::invalid("args")) };
    let (table, tx, room, guest, other) = (db.table("sorted")?, db.transaction(), *room, *guest, *other);
    let there = tx.range(table, &[b'L', room, guest], &[b'L', room, guest, 0], 1, Direction::Forward).await?;
    let leaves = !there.is_empty();
    // Guards may only look, so who has to wait or may fail does so before.
    let has_room = match what {
        b'e' => room_for(&tx, table, room, guest).await?,
        b'm' => leaves && room_for(&tx, table, other, guest).await?,
        _ => false,
    };
    match what {
        b'e' if has_room => enter(&tx, table, room, guest, value),
        b'l' if leaves => {
            tx.delete(table, &[b'R', room, guest]).await?;
            tx.delete(table, &[b'L', room, guest]).await.map(drop)
        }
        b'm' if has_room => {
            let value = there[0].value();
            for half in [b'L', b'R'] {
                if !tx.delete(table, &[half, room, guest]).await? {
                    return Err(Error::new("half a pair"));
                }
            }
            enter(&tx, table, other, guest, value)
        }
        b'?' => {
            let left = tx.range(table, b"L", b"M", 1_000, Direction::Forward).await?;
            let mut right = tx.range(table, b"R", b"S", 1_000, Direction::Backward).await?;
            right.reverse();
            let same = |(l, r): (&TransactionRecord<'_>, &TransactionRecord<'_>)| {
                l.key()[1..] == r.key()[1..] && l.value() == r.value()
            };
            if left.len() != right.len() || !left.iter().zip(&right).all(same) {
                return Err(Error::new("half a pair"));
            }
            db.reply(&(left.len() as u32).to_le_bytes())
        }
        _ => Ok(()),
    }
}
"#;

/// Lets a guest in by halves and takes others away, then ends in one of several ways.
const CULPRIT: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use core::hint::black_box;
use sandstorm_api::prelude::*;

fn recurse(depth: u64) -> u64 {
    let here = black_box([depth; 16]);
    if black_box(depth) == 0 {
        return 0;
    }
    black_box(recurse(depth + 1)) + here[0]
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, tx) = (db.table("sorted")?, db.transaction());
    let [room, kind @ ..] = args else { return Err(Error::invalid("args")) };
    for guest in 200..210 {
        tx.put(table, &[b'L', *room, guest], b"nobody")?;
    }
    for half in tx.range(table, b"R", b"S", 100, Direction::Backward).await? {
        tx.delete(table, half.key()).await?;
    }
    match kind {
        b"loop" => loop { black_box(args); },
        b"panic" => panic!("as asked"),
        b"yields" => loop { yield_now().await; },
        b"recursion" => {
            black_box(recurse(1));
            Ok(())
        }
        b"allocation" => {
            let mut kept = Vec::new();
            loop {
                kept.push(vec![1_u8; 64 << 10]);
                black_box(&kept);
            }
        }
        b"ranges" => loop {
            black_box(tx.range(table, b"", b"", 1_000, Direction::Forward).await?);
        },
        b"other ranges" => loop {
            black_box(db.range(table, b"", b"", 1_000, Direction::Backward).await?);
        },
        _ => Err(Error::new("as asked")),
    }
}
"#;
const KINDS: [&str; 8] = ["loop", "panic", "yields", "recursion", "allocation", "ranges", "other ranges", "fail"];

fn hotel(plane: &DataPlane) -> u32 {
    let (id, _) = tenant(plane, "hotel", true);
    let sorted = NewTable { id: Some(SORTED), ordered: true, ..NewTable::named("sorted") };
    plane.directory.create_table("hotel", sorted).expect("a table");
    for (name, text, total_us) in [("pairs", PAIRS, 10_000_000), ("culprit", CULPRIT, 1_000)] {
        let budget = BudgetOverride { total_us: Some(total_us), ..BudgetOverride::default() };
        let extension = crate::common::loaded(name, 1, library_of(name, text), budget);
        plane.directory.put_extension("hotel", Arc::new(extension)).expect("an extension is loaded");
    }
    id
}

/// Returns the number of pairs; each must be whole, and no room may have too many.
fn pairs(records: &[KeyedRecord]) -> usize {
    let (mut halves, mut guests) = (BTreeMap::new(), BTreeMap::<u8, usize>::new());
    for record in records {
        let [half, room, guest] = record.key[..] else { panic!("no key of a guest: {record:?}") };
        assert!(guest < NOBODY, "let in by who was ended: {record:?}");
        match half {
            b'L' => {
                halves.insert((room, guest), record.value.clone());
                *guests.entry(room).or_default() += 1;
            }
            _ => assert_eq!(halves.remove(&(room, guest)).as_ref(), Some(&record.value), "half a pair: {record:?}"),
        }
    }
    assert!(halves.is_empty(), "half a pair: {halves:?}");
    assert!(guests.values().all(|guests| *guests <= ROOM_FOR), "{guests:?}");
    guests.values().sum()
}

/// All pairs, by one range of one moment.
fn all_pairs(client: &Client, direction: Direction) -> usize {
    let mut page = client.range_at_once(SORTED, b"", b"", 1_000, direction).expect("an answer");
    assert_eq!(page.on, None, "all fit");
    page.records.sort_by(|a, b| a.key.cmp(&b.key));
    pairs(&page.records)
}

fn write(client: &Client, seed: u64) {
    for number in 0..WRITES as u64 {
        let random = number.wrapping_add(seed << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        let [room, guest, other] = [random as u8 % ROOMS, (random >> 8) as u8 % GUESTS, (random >> 16) as u8 % ROOMS];
        let what = b"eeml"[(random >> 24) as usize % 4];
        let args = [&[what, room, guest, other][..], &random.to_le_bytes()].concat();
        match client.invoke("pairs", &args) {
            Ok(_) | Err(Error::Conflict) => {}
            Err(error) => panic!("write {number}: {error}"),
        }
    }
}

fn end_calls(client: &Client, over: &AtomicBool) {
    for number in 0.. {
        if over.load(Ordering::SeqCst) {
            return;
        }
        let kind = KINDS[number % KINDS.len()];
        let ended = client.invoke("culprit", &[&[number as u8 % ROOMS][..], kind.as_bytes()].concat());
        // Others may have overwritten its reads before it ends with an error of its own.
        let expected = matches!(ended, Err(Error::Killed { .. } | Error::Failed { .. } | Error::Conflict));
        assert!(expected, "{kind}: {ended:?}");
    }
}

fn stats(plane: &DataPlane) -> TableStats {
    plane.directory.snapshot().by_name("hotel").expect("the tenant").table(SORTED).expect("the table").table.stats()
}

#[test]
fn pairs_are_never_seen_by_halves_whatever_ends_the_calls_among_the_writers() {
    if ran_alone(module_path!(), "pairs_are_never_seen_by_halves_whatever_ends_the_calls_among_the_writers") {
        return;
    }
    let plane = data_plane(2);
    let id = hotel(&plane);
    let (writing, over, reads) = (AtomicUsize::new(2), AtomicBool::new(false), AtomicUsize::new(0));
    let (first, empty) = (client(&plane, id), stats(&plane));
    std::thread::scope(|scope| {
        let _stop = Stop(&over);
        for seed in 0..2 {
            let (plane, writing) = (&plane, &writing);
            scope.spawn(move || {
                write(&client_at(plane, id, seed), seed as u64);
                writing.fetch_sub(1, Ordering::SeqCst);
            });
        }
        scope.spawn(|| end_calls(&client(&plane, id), &over));
        scope.spawn(|| {
            let client = client(&plane, id);
            while !over.load(Ordering::SeqCst) {
                match client.invoke("pairs", b"?\0\0\0") {
                    Ok(_) => drop(reads.fetch_add(1, Ordering::SeqCst)),
                    Err(Error::Conflict) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let (mut most, mut fewest) = (0, usize::MAX);
        for direction in [Direction::Forward, Direction::Backward].into_iter().cycle() {
            let pairs = all_pairs(&first, direction);
            (most, fewest) = (most.max(pairs), fewest.min(pairs));
            if writing.load(Ordering::SeqCst) == 0 && reads.load(Ordering::SeqCst) > 0 {
                break;
            }
        }
        assert!(most > fewest, "guests come and go: {most}, {fewest}");
    });
    assert!(all_pairs(&first, Direction::Forward) > 0);
    // A killed call leaves nothing, and neither does a guest that leaves.
    for (room, guest) in (0..ROOMS).flat_map(|room| (0..GUESTS).map(move |guest| (room, guest))) {
        first.invoke("pairs", &[b'l', room, guest, 0]).expect("nobody else is there");
    }
    assert_eq!(first.range(SORTED, b"", b"", 10, Direction::Forward), Ok(Vec::new()));
    assert_eq!((stats(&plane).records, stats(&plane).bytes), (0, empty.bytes));
    assert!(eventually(|| stats(&plane).garbage_bytes == 0), "all is freed: {:?}", stats(&plane));
    await_nothing_charged(&plane, id);
}
