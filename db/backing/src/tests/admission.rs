//! Changes that are admitted: several at a time, before others are written, and in vain.

use sandstorm_log::disk::simulated::{DiskFault, SimulatedDisk};
use sandstorm_log::{LogOptions, LogRefusal, RecoveredLog};
use sandstorm_store::backed::{BackedChange, BackedKeyChange};
use sandstorm_store::{ExclusiveStripes, TableLogging};

use super::*;
use crate::limits::DIRTY_KEY_BYTES;
use crate::marks::DirtyMark;

const VALUE: [u8; 1_000] = [7; 1_000];

fn key(number: usize) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

fn put_of<'k>(table: &RecordTable, key: &'k [u8]) -> BackedKeyChange<'k> {
    let change = BackedChange { put_bytes: Some(key.len() + VALUE.len()), expires_at_ms: 0 };
    BackedKeyChange { hash: table.hash(key), key, change }
}

fn put_locked(locked: &mut ExclusiveStripes<'_>, key: &[u8]) -> Result<u64, StoreError> {
    let put = NewValue { value: VALUE[..].into(), flags: 0, expires_at_ms: 0 };
    locked.replace(locked.table().hash(key), key, unix_ms(), &put)
}

/// The mark of a key in the table that the log has.
fn mark(bench: &BackingBench, key: &[u8]) -> Option<DirtyMark> {
    let (guard, marks) = (bench.participant.guard(), bench.backed.marks());
    marks.get(&guard, marks.hash(key), key, 0).and_then(|record| DirtyMark::decode(record.value()))
}

#[test]
fn changes_of_several_keys_are_admitted_together_or_not_at_all() {
    let each = DIRTY_KEY_BYTES + 10 + VALUE.len() as u64;
    for policy in [BackingPolicy::WriteBack, BackingPolicy::WriteThrough] {
        let bound = 10 * each;
        let settings = BackingSettings { flush_after_ms: 60_000, dirty_limit_bytes: bound, ..settings(policy) };
        let mut bench = bench(settings.clone(), 1 << 20);
        let (table, backed) = (Arc::clone(&bench.table), Arc::clone(&bench.backed));
        let keys: Vec<Vec<u8>> = (0..12).map(key).collect();
        let changes: Vec<_> = keys.iter().map(|key| put_of(&table, key)).collect();
        {
            let mut locked = table.exclusive(&bench.participant, StripeSet::ALL);
            let full = Err(StoreError::NotBacked(BackingRefusal::DirtyFull));
            assert_eq!(locked.admit_backed(&changes), full, "two too many");
            assert_eq!(backed.stats().dirty_bytes, 0, "nothing is reserved of what is refused");
            // A key that is named twice counts once.
            locked.admit_backed(&[&changes[..10], &changes[3..5]].concat()).unwrap();
            assert_eq!(backed.stats().dirty_bytes, bound);
            // No other change gets what is reserved; and whatever happens now, the changes are made.
            let other = put_of(&table, &keys[10]);
            let refused = backed.admit(&bench.participant, other.hash, other.key, other.change);
            assert_eq!(refused, full);
            bench.objects.is_gone.store(true, Relaxed);
            let gone = crate::BackingError::Unavailable("the test said so".to_owned());
            (0..3).for_each(|_| backed.note_health(Some(&gone)));
            assert!(backed.is_down());
            backed.apply(&BackingSettings {
                dirty_limit_bytes: 1,
                policy: BackingPolicy::ReadThrough,
                ..settings.clone()
            });
            for key in &keys[..8] {
                put_locked(&mut locked, key).unwrap();
            }
            backed.apply(&settings);
            changes[..10].iter().for_each(|one| locked.release_backed(one.hash, one.key));
            assert_eq!(backed.stats().dirty_bytes, 8 * each, "what was not used is given back");
            if policy == BackingPolicy::WriteThrough {
                let refused = locked.admit_backed(&changes[..2]);
                assert_eq!(refused, Err(StoreError::NotBacked(BackingRefusal::Down)), "the promise has ended");
            }
        }
        bench.objects.is_gone.store(false, Relaxed);
        bench.flush(ConflictChoice::Keep).unwrap();
        let stats = backed.stats();
        assert_eq!((bench.memory.names().len(), stats.dirty_keys, stats.dirty_bytes), (8, 0, 0));
        let begun = Instant::now();
        while backed.marks().stats().records > 0 {
            assert!(begun.elapsed() < LONG, "a change that has not come leaves its mark");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_key_is_marked_as_long_as_a_change_of_it_may_come() {
    let mut bench = bench(BackingSettings { flush_after_ms: 60_000, ..settings(BackingPolicy::WriteBack) }, 1 << 20);
    let (table, backed) = (Arc::clone(&bench.table), Arc::clone(&bench.backed));
    bench.put(b"a", b"1").unwrap();
    // The next change is admitted, and the write of the first one ends before it comes.
    let next = put_of(&table, b"a");
    backed.admit(&bench.participant, next.hash, b"a", next.change).unwrap();
    bench.flush(ConflictChoice::Keep).unwrap();
    bench.participant.online();
    assert_eq!((bench.object(b"a"), backed.stats().dirty_keys), (Some(b"1".to_vec()), 0));
    backed.note_change(next.hash, b"a", 99, 1);
    let found = mark(&bench, b"a").expect("a start finds the change that came");
    assert!(matches!(found.base, WriteCondition::Tag(_)), "which replaces the first one: {found:?}");
    bench.flush(ConflictChoice::Keep).unwrap();
    assert_eq!((mark(&bench, b"a"), backed.stats().dirty_bytes), (None, 0));
    // One that does not come after all is forgotten.
    bench.put(b"a", b"2").unwrap();
    backed.admit(&bench.participant, next.hash, b"a", next.change).unwrap();
    bench.flush(ConflictChoice::Keep).unwrap();
    let begun = Instant::now();
    while mark(&bench, b"a").is_some() {
        assert!(begun.elapsed() < LONG, "the mark stays");
        bench.participant.offline();
        std::thread::sleep(Duration::from_millis(5));
        bench.participant.online();
    }
    assert_eq!((bench.object(b"a"), backed.stats().dirty_bytes), (Some(b"2".to_vec()), 0));
}

#[test]
fn a_load_that_a_change_has_overtaken_replaces_nothing_also_where_the_change_is_written_already() {
    let mut bench = bench(settings(BackingPolicy::WriteThrough), 1 << 20);
    bench.write_elsewhere(b"a", b"old");
    let hash = bench.table.hash(b"a");
    // The load has read the object, and comes back late.
    bench.backed.shard(hash).loads.insert(b"a"[..].into(), Vec::new());
    bench.put(b"a", b"new").unwrap();
    bench.flush(ConflictChoice::Keep).unwrap();
    bench.participant.online();
    let late = crate::object_store::StoredObject {
        tag: "old".to_owned(),
        bytes: bench.memory.get("a", 1 << 20).unwrap().unwrap().bytes,
    };
    let table = Arc::clone(&bench.table);
    bench.backed.fill(&bench.participant, (&table, hash, b"a"), None).unwrap();
    bench.backed.fill(&bench.participant, (&table, hash, b"a"), Some(&late)).unwrap();
    assert_eq!(bench.get(b"a"), Ok(Some(b"new".to_vec())));
    assert_eq!(bench.backed.stats().loads, 0, "it is the backing's, and known to be");
}

#[test]
fn a_delete_that_the_backing_does_not_have_outlives_a_change_that_is_refused_after_it() {
    let mut before = bench(BackingSettings { flush_after_ms: 60_000, ..settings(BackingPolicy::WriteBack) }, 1 << 20);
    before.write_elsewhere(b"deleted", b"old");
    assert_eq!(before.delete(b"deleted"), Ok(true));
    let next = put_of(&before.table, b"deleted");
    before.backed.admit(&before.participant, next.hash, b"deleted", next.change).unwrap();
    let found = mark(&before, b"deleted").expect("a mark");
    let mut after = over(Arc::clone(&before.memory), settings(BackingPolicy::WriteBack), 1 << 20, 1);
    let hash = after.backed.marks().hash(b"deleted");
    let options = WriteOptions::default();
    after.backed.marks().put(&after.participant, hash, b"deleted", &found.encode(), &options, 0).unwrap();
    assert_eq!(after.backed.restore_dirty(&after.participant, unix_ms()), 1);
    after.flush(ConflictChoice::Keep).unwrap();
    assert_eq!(after.object(b"deleted"), None);
}

#[test]
fn a_load_in_place_of_an_expired_record_says_that_the_log_does_not_take_it() {
    let mut bench = bench(settings(BackingPolicy::WriteThrough), 1 << 20);
    let (disk, options) = (SimulatedDisk::default(), LogOptions { feed_bytes: 0, ..LogOptions::default() });
    let read = RecoveredLog::read(Arc::new(disk.clone()), options, &mut |_, _| Ok(()));
    let log = read.expect("sound").start().expect("started");
    bench.table.set_expiry_logging(true);
    bench.table.set_logging(&log, 1, TableLogging::AtOnce);
    // Longer than a flush takes on a busy machine: one that is over by then is written as a delete.
    let write = WriteOptions { expires_at_ms: unix_ms() + 2_000, ..WriteOptions::default() };
    let hash = bench.table.hash(b"a");
    bench.table.put(&bench.participant, hash, b"a", b"brief", &write, unix_ms()).unwrap();
    bench.flush(ConflictChoice::Keep).unwrap();
    bench.participant.online();
    (1..40).for_each(|after| disk.fail_after(after, DiskFault::Error));
    bench.table.put(&bench.participant, bench.table.hash(b"b"), b"b", b"1", &WriteOptions::default(), 0).unwrap();
    assert!(!log.wait(log.end(), LONG), "it is closed");
    while unix_ms() < write.expires_at_ms {
        std::thread::sleep(Duration::from_millis(1));
    }
    bench.write_elsewhere(b"a", b"2");
    assert_eq!(bench.get(b"a"), Err(SpillReadError::NotLogged(LogRefusal::Closed)));
    assert_eq!(bench.get(b"nowhere"), Ok(None), "others are loaded");
}
