//! Nothing is freed while a thread may read it; nothing is kept once no thread can.

use super::super::record::COUNTED;
use super::*;
use crate::ShownPosition;
use crate::limits::{GARBAGE_MIN_BYTES, TURNS_PER_SIZE_GIVEN_BACK};
use crate::{StoreCondition, StoreError, slabs};
use std::sync::atomic::Ordering;

#[test]
fn a_pinned_record_stays_readable_while_its_key_is_overwritten() {
    let (epochs, table) = open_table();
    let mut writer = epochs.register();
    put(&table, &writer, b"key", b"the first value");
    let pin = writer.pin();
    #[allow(unsafe_code)]
    // SAFETY: the pin is held until after the last use of the record.
    let record =
        unsafe { table.get_pinned(table.hash(b"key"), b"key", 0, &ShownPosition::default()) }.expect("just written");
    let overwrites = scaled(10_000, 200) as u64;
    for n in 0..overwrites {
        put(&table, &writer, b"key", &n.to_le_bytes());
        writer.quiescent();
    }
    assert_eq!(record.value(), b"the first value");
    assert_eq!(record.key(), b"key");
    assert!(epochs.stats().limbo_items >= overwrites && epochs.stats().pins == 1, "{:?}", epochs.stats());
    let mut thief = epochs.register();
    thief.unpin(pin);
    drop(writer);
    settle(&epochs, &mut thief);
    assert_eq!((epochs.stats().pins, epochs.stats().limbo_bytes), (0, 0));
}

#[test]
#[should_panic = "the pin belongs to other epochs"]
fn a_pin_cannot_be_ended_where_it_was_not_counted() {
    let (epochs, others) = (Epochs::new(), Epochs::new());
    let pin = epochs.register().pin();
    others.register().unpin(pin);
}

#[test]
fn a_guarded_thread_holds_reclamation_up_and_a_sleeping_one_does_not() {
    let (epochs, table) = open_table();
    let mut writer = epochs.register();
    let mut other = epochs.register();
    put(&table, &writer, b"key", b"old");
    let guard = other.guard();
    let record = table.get(&guard, table.hash(b"key"), b"key", 0).expect("just written");
    put(&table, &writer, b"key", b"new");
    (0..100).for_each(|_| writer.quiescent());
    assert_eq!((epochs.stats().limbo_items, record.value()), (1, &b"old"[..]));
    other.offline();
    settle(&epochs, &mut writer);
}

#[test]
fn a_thread_that_goes_leaves_its_garbage_to_the_others() {
    let (epochs, table) = open_table();
    let mut stays = epochs.register();
    let guard = stays.guard();
    let _ = guard;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let goes = epochs.register();
            (0..100u64).for_each(|n| {
                put(&table, &goes, b"key", &n.to_le_bytes());
            });
        });
    });
    assert_eq!(epochs.stats().limbo_items, 99);
    assert_eq!(epochs.stats().participants, 1);
    settle(&epochs, &mut stays);
}

#[test]
fn every_record_that_was_allocated_is_in_the_table_or_freed() {
    let (epochs, table) = table(StorageMode::Cache, 60_000);
    let rounds = scaled(20_000, 150) as u64;
    std::thread::scope(|scope| {
        for seed in 0..3u64 {
            let (epochs, table) = (&epochs, &table);
            scope.spawn(move || {
                let mut participant = epochs.register();
                for n in 0..rounds {
                    let key = format!("counted:{}", n.wrapping_mul(seed * 2 + 0x9e37_79b9) % 3_000);
                    let key = key.as_bytes();
                    if n % 7 == 0 {
                        let _ = table.delete(&participant, table.hash(key), key, StoreCondition::Always, 0);
                    } else if n % 7 == 1 {
                        let _ = get(table, &participant, key);
                    } else {
                        // Making room may give up when the others hold the stripes that it needs.
                        let value = vec![0; n as usize % 200];
                        let _ = table.put(&participant, table.hash(key), key, &value, &WriteOptions::default(), 0);
                    }
                    if n % 3 == 0 {
                        participant.quiescent();
                    }
                    if n % 1_000 == 0 {
                        participant.offline();
                    }
                    if n == rounds / 2 && seed == 1 {
                        table.clear(&participant).expect("no log");
                    }
                }
            });
        }
    });
    let mut participant = epochs.register();
    settle(&epochs, &mut participant);
    assert_eq!(COUNTED.load(Ordering::SeqCst), table.stats().records as i64);
    let seen = scan_all(&table, &mut participant, 50, 0);
    assert_eq!(seen.len() as u64, table.stats().records);
    drop(table);
    settle(&epochs, &mut participant);
    assert_eq!(COUNTED.load(Ordering::SeqCst), 0);
}

#[test]
#[cfg(not(miri))]
fn what_is_replaced_is_bounded_though_a_reader_never_ends() {
    const VALUE: usize = 8 << 20;
    let (epochs, table) = table(StorageMode::Store, 64 << 20);
    let other = RecordTable::new(TableConfig::default(), Arc::clone(&epochs));
    let mut writer = epochs.register();
    let pin = writer.pin();
    let value = vec![7; VALUE];
    let key = |n: usize| [b"one", b"two"][n % 2];
    let try_put = |writer: &Participant, table: &RecordTable, n: usize| {
        table.put(writer, table.hash(key(n)), key(n), &value, &WriteOptions::default(), 0)
    };
    let mut written = 0;
    while try_put(&writer, &table, written).is_ok() {
        writer.quiescent();
        written += 1;
        assert!(table.stats().garbage_bytes <= GARBAGE_MIN_BYTES + 2 * VALUE as u64, "it is bounded");
    }
    assert!(written as u64 > GARBAGE_MIN_BYTES / VALUE as u64, "not refused before the limit: {written}");
    assert_eq!(try_put(&writer, &table, 0), Err(StoreError::ReclaimPressure));
    assert_eq!(table.stats().held_back, 2);
    assert!(epochs.is_crowded());
    // Another table's writes do not suffer, and removals are never refused.
    assert!(try_put(&writer, &other, 0).is_ok());
    assert_eq!(table.delete(&writer, table.hash(key(0)), key(0), StoreCondition::Always, 0), Ok(true));
    assert_eq!(get(&table, &writer, key(1)).map(|value| value.len()), Some(VALUE), "it is as it was");
    writer.unpin(pin);
    settle(&epochs, &mut writer);
    assert_eq!((table.stats().garbage_bytes, epochs.is_crowded()), (0, false));
    assert!(try_put(&writer, &table, 0).is_ok());
}

#[test]
fn a_table_that_is_emptied_over_and_over_is_charged_for_it() {
    let (epochs, table) = table(StorageMode::Store, 8 << 20);
    let mut writer = epochs.register();
    let pin = writer.pin();
    let mut before = 0;
    for _ in 0..3 {
        put(&table, &writer, b"key", &[0; 1000]);
        table.clear(&writer).expect("no log");
        writer.quiescent();
        let garbage = table.stats().garbage_bytes;
        assert!(garbage >= before + 1000, "{garbage} after {before}");
        before = garbage;
    }
    writer.unpin(pin);
    settle(&epochs, &mut writer);
    assert_eq!(table.stats().garbage_bytes, 0);
}

#[test]
fn the_array_of_a_table_that_is_emptied_is_charged_for_and_an_empty_one_leaves_nothing() {
    let (epochs, table) = table(StorageMode::Store, 64 << 20);
    let mut writer = epochs.register();
    let pin = writer.pin();
    for n in 0..20_000u64 {
        put(&table, &writer, &n.to_le_bytes(), b"");
        writer.quiescent();
    }
    let before = table.stats();
    let array = before.capacity * 16;
    table.clear(&writer).expect("no log");
    let after = table.stats();
    assert!(after.garbage_bytes >= before.garbage_bytes + before.bytes + array, "{before:?} {after:?}");
    let retired = writer.retired();
    (0..1000).for_each(|_| table.clear(&writer).expect("no log"));
    assert_eq!((table.stats(), writer.retired()), (after, retired), "there is nothing to be freed");
    writer.unpin(pin);
    settle(&epochs, &mut writer);
    assert_eq!(table.stats().garbage_bytes, 0);
}

#[test]
fn what_a_table_left_behind_outlives_it() {
    let (epochs, table) = open_table();
    let mut writer = epochs.register();
    let pin = writer.pin();
    for n in 0..100u64 {
        put(&table, &writer, b"left", &n.to_le_bytes());
    }
    assert!(table.stats().garbage_bytes >= 99 * 36, "{:?}", table.stats());
    drop(table);
    writer.quiescent();
    writer.unpin(pin);
    // The others' threads free it, when there is neither a table nor its writer any more.
    let mut other = epochs.register();
    drop(writer);
    settle(&epochs, &mut other);
    assert_eq!(epochs.stats().limbo_bytes, 0);
}

#[test]
#[cfg_attr(miri, ignore = "nothing is kept at hand there")]
fn a_thread_that_never_sleeps_keeps_no_memory_of_sizes_that_it_does_not_use() {
    let (epochs, table) = open_table();
    let mut participant = epochs.register();
    for length in (8..4_000_usize).step_by(16) {
        put(&table, &participant, &length.to_le_bytes(), &vec![1; length]);
    }
    assert!(slabs::cached_objects() > 100 || cfg!(sanitized), "{} at hand", slabs::cached_objects());
    let mut turns = 0_u32;
    while slabs::cached_objects() != 0 {
        participant.quiescent();
        turns += 1;
        assert!(turns < 400 * TURNS_PER_SIZE_GIVEN_BACK, "{} are kept", slabs::cached_objects());
    }
    assert!((8..4_000_usize).step_by(16).all(|length| get(&table, &participant, &length.to_le_bytes()).is_some()));
}
