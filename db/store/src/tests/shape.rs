//! Limits, growth and eviction: the shape of the table after much work.

use super::*;
use crate::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::{StoreCondition, StoreError};

#[test]
fn the_largest_key_and_value_fit_and_one_byte_more_does_not() {
    let (epochs, table) = open_table();
    let participant = epochs.register();
    for (key_len, value_len) in [(MAX_KEY_BYTES, 3), (3, MAX_VALUE_BYTES), (MAX_KEY_BYTES - 1, 0), (0, 0)] {
        let (key, value) = (vec![1; key_len], vec![2; value_len]);
        let write = WriteOptions { flags: 9, expires_at_ms: 5, ..WriteOptions::default() };
        table.put(&participant, table.hash(&key), &key, &value, &write, 0).expect("within the limits");
        let guard = participant.guard();
        let record = table.get(&guard, table.hash(&key), &key, 4).expect("just written");
        assert!(record.key() == key && record.value() == value && record.flags() == 9 && record.expires_at_ms() == 5);
        assert!(table.get(&guard, table.hash(&key), &key, 5).is_none(), "expired at its time");
    }
    let (key, value) = (vec![1; MAX_KEY_BYTES + 1], vec![2; MAX_VALUE_BYTES + 1]);
    let hash = table.hash(&key);
    let result = table.put(&participant, hash, &key, b"", &WriteOptions::default(), 0);
    assert_eq!(result, Err(StoreError::KeyTooLarge));
    let result = table.put(&participant, table.hash(b"k"), b"k", &value, &WriteOptions::default(), 0);
    assert_eq!(result, Err(StoreError::ValueTooLarge));
}

#[test]
fn records_survive_growth_and_the_array_is_used_well() {
    let (epochs, table) = open_table();
    let mut participant = epochs.register();
    let keys = scaled(300_000, 600) as u64;
    let (mut lowest, mut previous) = (1.0_f64, table.stats().capacity);
    for key in 0..keys {
        put(&table, &participant, &key.to_le_bytes(), &key.to_be_bytes());
        participant.quiescent();
        let stats = table.stats();
        if stats.capacity != previous && key > 1_000 {
            lowest = lowest.min(stats.records as f64 / stats.capacity as f64);
        }
        previous = stats.capacity;
    }
    for key in 0..keys {
        assert_eq!(get(&table, &participant, &key.to_le_bytes()), Some(key.to_be_bytes().to_vec()), "{key}");
    }
    assert!(get(&table, &participant, &keys.to_le_bytes()).is_none());
    let stats = table.stats();
    assert_eq!(stats.records, keys);
    assert!(stats.growths > 1 && stats.records * 4 <= stats.capacity * 3 + 16, "{stats:?}");
    assert!(lowest > 0.36, "an array never grows before it is three quarters full: {lowest}");
    for key in 0..keys {
        let key = key.to_le_bytes();
        assert_eq!(table.delete(&participant, table.hash(&key), &key, StoreCondition::Present, 0), Ok(true));
        participant.quiescent();
    }
    assert_eq!((table.stats().records, table.stats().bytes), (0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "needs arrays that come from the kernel")]
fn a_growing_table_gives_back_what_has_moved_and_an_idle_one_ends_its_growth() {
    let (epochs, table) = open_table();
    let mut participant = epochs.register();
    let (mut keys, mut most, mut calls) = (0u64, 0, 0);
    // Until the growth of an array of two pieces and more has given something back and is not over.
    while most == 0 {
        put(&table, &participant, &keys.to_le_bytes(), &keys.to_be_bytes());
        participant.quiescent();
        keys += 1;
        let guard = participant.guard();
        most = table.released_bytes(&guard);
        assert!(keys < 2_000_000, "nothing is given back: {:?}", table.stats());
    }
    (0..100).for_each(|_| participant.quiescent());
    let all_there = |participant: &Participant| {
        (0..keys).all(|key| get(&table, participant, &key.to_le_bytes()) == Some(key.to_be_bytes().to_vec()))
    };
    assert!(table.is_growing(&participant.guard()) && all_there(&participant));
    assert_eq!(scan_all(&table, &mut participant, 1_000, 0).len() as u64, keys, "a record is shown once");
    for key in (0..keys).step_by(7) {
        let key = key.to_le_bytes();
        assert_eq!(table.delete(&participant, table.hash(&key), &key, StoreCondition::Present, 0), Ok(true));
        put(&table, &participant, &key, &u64::from_le_bytes(key).to_be_bytes());
    }
    while table.is_growing(&participant.guard()) {
        table.sweep(&participant, 0, 4_096);
        participant.quiescent();
        calls += 1;
        assert!(calls < 100_000, "it never ends");
    }
    settle(&epochs, &mut participant);
    assert!(all_there(&participant));
    assert_eq!(table.stats().records, keys);
}

#[test]
#[cfg_attr(miri, ignore = "needs more records than stripes by far, since each stripe has queues of its own")]
fn in_a_cache_what_is_read_again_outlives_a_stream_of_what_is_not() {
    let hot = scaled(2_000, 20) as u64;
    let (epochs, table) = table(StorageMode::Cache, hot * 3 * 100);
    let mut participant = epochs.register();
    for key in 0..hot {
        put(&table, &participant, &key.to_le_bytes(), &[0; 32]);
    }
    let mut hits = 0;
    for n in 0..hot * 20 {
        if get(&table, &participant, &(n % hot).to_le_bytes()).is_some() {
            hits += 1;
        } else {
            put(&table, &participant, &(n % hot).to_le_bytes(), &[0; 32]);
        }
        put(&table, &participant, &(hot + n).to_le_bytes(), &[0; 32]);
        participant.quiescent();
    }
    assert!(table.stats().evictions > hot * 15);
    let miss_percent = (hot * 20 - hits) * 100 / (hot * 20);
    assert!(miss_percent < 15, "{miss_percent} % of the reads of hot keys missed");
}

#[test]
fn a_sweep_removes_what_expired_and_nothing_else() {
    let (epochs, table) = open_table();
    let mut participant = epochs.register();
    let keys = scaled(5_000, 200) as u64;
    for key in 0..keys {
        let write = WriteOptions { expires_at_ms: if key % 2 == 0 { 0 } else { 1 + key }, ..WriteOptions::default() };
        table.put(&participant, table.hash(&key.to_le_bytes()), &key.to_le_bytes(), b"v", &write, 0).expect("room");
    }
    let half = keys / 2;
    let mut removed = 0;
    for _ in 0..keys {
        removed += table.sweep(&participant, 1 + half, 64);
        participant.quiescent();
    }
    let expired = (0..keys).filter(|key| key % 2 == 1 && *key <= half).count();
    assert_eq!((removed, table.stats().expirations), (expired, expired as u64));
    assert_eq!(table.stats().records, keys - expired as u64);
    assert_eq!(scan_all(&table, &mut participant, 100, 1 + half).len() as u64, keys - expired as u64);
}

#[test]
#[should_panic(expected = "other epochs")]
fn a_participant_of_other_epochs_is_refused() {
    let (_epochs, table) = open_table();
    let foreign = Epochs::new().register();
    put(&table, &foreign, b"k", b"v");
}
