//! Promise: what is behind a table is written only by the server that owns the key. What a crash brings back of keys
//! that were given away is forgotten, and what was known of them as well.

use sandstorm_store::RestoredRecord;
use sandstorm_store::slots::{ClusterServer, SlotMap, SlotOwnership, SlotRange, SlotSpan};

use super::*;
use crate::moved_slots::DirtySlots;

const ALL: SlotSpan = SlotSpan { first: 0, last: 16_383 };

/// A map in which one of two servers owns everything.
fn map_of(owner: usize) -> SlotMap {
    let all = [SlotRange { first: ALL.first, last: ALL.last, server: Some(owner) }];
    SlotMap::new(1, ["own", "other"].map(ClusterServer::example).to_vec(), &all)
}

fn late() -> BackingSettings {
    BackingSettings { flush_after_ms: 600_000, ..settings(BackingPolicy::WriteBack) }
}

/// A start that finds a record, and the mark that its backing does not have it.
fn after_a_crash(slots: &Arc<SlotOwnership>) -> BackingBench {
    let mut before = bench(late(), 1 << 20);
    before.put(b"k", b"long ago").unwrap();
    let marks = before.backed.marks();
    let mark = marks.get(&before.participant.guard(), marks.hash(b"k"), b"k", 0).unwrap().value().to_vec();
    let after = over(Arc::clone(&before.memory), late(), 1 << 20, 1);
    after.table.set_slots(slots);
    let marks = after.backed.marks();
    marks.put(&after.participant, marks.hash(b"k"), b"k", &mark, &WriteOptions::default(), 0).unwrap();
    let record = RestoredRecord { version: 5, key: b"k", value: b"long ago", flags: 0, expires_at_ms: 0 };
    after.table.restore_record(&after.participant, &record, unix_ms()).unwrap();
    // It was written, and another server has changed it since.
    after.write_elsewhere(b"k", b"new");
    assert_eq!(after.backed.restore_dirty(&after.participant, unix_ms()), 1);
    after
}

#[test]
fn what_a_crash_brings_back_of_keys_that_were_given_away_is_never_written() {
    let slots = Arc::new(SlotOwnership::new("own".to_owned()));
    let mut after = after_a_crash(&slots);
    // No map was read yet; then it is not sure what the last start has given away.
    let new = Some(b"new".to_vec());
    after.backed.run_write(&mut after.participant, b"k");
    assert_eq!((after.object(b"k"), after.backed.dirty_in(ALL).keys), (new.clone(), 1));
    slots.set_owned(|_| false);
    slots.set_map(map_of(0));
    after.backed.run_write(&mut after.participant, b"k");
    assert_eq!((after.object(b"k"), after.backed.dirty_in(ALL).keys), (new.clone(), 1));
    slots.set_map(map_of(1));
    after.backed.run_write(&mut after.participant, b"k");
    let stats = after.backed.stats();
    assert_eq!((after.object(b"k"), stats.dirty_keys, stats.dirty_bytes), (new, 0, 0));
    assert_eq!(after.backed.marks().stats().records, 0);
}

#[test]
fn what_a_crash_brings_back_of_own_keys_is_written_once_that_is_sure() {
    let slots = Arc::new(SlotOwnership::new("own".to_owned()));
    let mut after = after_a_crash(&slots);
    slots.set_owned(|_| false);
    slots.set_map(map_of(0));
    after.backed.run_write(&mut after.participant, b"k");
    assert_eq!(after.backed.dirty_in(ALL).keys, 1);
    slots.set_owned(|_| true);
    after.flush(ConflictChoice::Keep).unwrap();
    assert_eq!((after.object(b"k"), after.backed.dirty_in(ALL)), (Some(b"long ago".to_vec()), DirtySlots::default()));
}

#[test]
fn what_was_known_of_slots_is_forgotten_with_them() {
    let mut bench = bench(BackingSettings { absent_ms: 600_000, ..late() }, 1 << 20);
    bench.write_elsewhere(b"gone", b"old");
    assert_eq!(bench.get(b"absent"), Ok(None));
    assert_eq!(bench.delete(b"gone"), Ok(true));
    bench.put(b"made", b"1").unwrap();
    let half = SlotSpan { first: 0, last: 8_191 };
    let other = SlotSpan { first: 8_192, last: 16_383 };
    let keys = |span| bench.backed.dirty_in(span).keys;
    assert_eq!((keys(ALL), keys(half) + keys(other)), (2, 2), "a delete as well");
    bench.write_elsewhere(b"absent", b"there");
    assert_eq!(bench.get(b"absent"), Ok(None), "it is remembered as absent");
    bench.backed.forget_slots(&bench.participant, ALL);
    let stats = bench.backed.stats();
    assert_eq!((stats.dirty_keys, stats.dirty_bytes, bench.backed.marks().stats().records), (0, 0, 0));
    assert_eq!(bench.get(b"absent"), Ok(Some(b"there".to_vec())));
    bench.flush(ConflictChoice::Keep).unwrap();
    assert_eq!((bench.object(b"gone"), bench.object(b"made")), (Some(b"old".to_vec()), None), "others write them now");
}

#[test]
fn folders_of_one_name_are_told_apart_and_the_same_one_is_known() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let identity = |at: usize| crate::FolderObjects::open(folders[at].path()).unwrap().identity().unwrap();
    assert!(identity(0).is_some());
    assert_eq!((identity(0), identity(0) == identity(1)), (identity(0), false));
    assert_ne!(MemoryObjects::default().identity(), MemoryObjects::default().identity());
}

/// A reader that waits for it asks again, and is told where the key is.
#[test]
fn what_is_loaded_of_a_slot_that_was_given_away_is_neither_taken_nor_an_error() {
    let slots = Arc::new(SlotOwnership::new("own".to_owned()));
    let mut bench = bench(settings(BackingPolicy::WriteThrough), 1 << 20);
    bench.table.set_slots(&slots);
    bench.write_elsewhere(b"k", b"1");
    let hash = bench.table.hash(b"k");
    assert!(bench.table.get(&bench.participant.guard(), hash, b"k", unix_ms()).is_none());
    let misses = bench.participant.shown().take_cold();
    slots.set_owned(|_| false);
    let ticket = ColdMiss::fetch(misses, 1, || {});
    bench.participant.offline();
    while !ticket.is_done() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((ticket.error(), bench.table.stats().records), (None, 0));
}
