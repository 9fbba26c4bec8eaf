//! Values that stay where they arrived, such as in a packet's buffer: records that hold them are like any others, and
//! release them.

use super::*;
use crate::limits::{MAX_KEY_BYTES, ZERO_COPY_MIN_VALUE_BYTES};
use crate::{StoreCondition, StoreError};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sandstorm_net::shared_bytes::SharedBytes;

/// The source of values: each owner has more bytes than the value.
struct Buffers(Vec<Arc<Vec<u8>>>);

impl Buffers {
    fn share(&mut self, value: &[u8]) -> SharedBytes {
        let buffer = Arc::new([&[0xEE; 42], value, &[0xEE; 3]].concat());
        self.0.push(Arc::clone(&buffer));
        SharedBytes::of(buffer).into_slice(42..42 + value.len()).expect("it is there")
    }

    /// The owners that are still held.
    fn shares(&self) -> usize {
        self.0.iter().filter(|buffer| Arc::strong_count(buffer) > 1).count()
    }
}

fn put_shared(table: &RecordTable, participant: &Participant, key: &[u8], value: SharedBytes, write: &WriteOptions) {
    table.put_shared(participant, table.hash(key), key, &value, write, 0).expect("there is room");
}

#[test]
fn a_value_outside_is_read_and_counted_like_one_in_its_record() {
    let (epochs, table) = open_table();
    let mut participant = epochs.register();
    let mut buffers = Buffers(Vec::new());
    let lengths = scaled(5, 3);
    for key_len in [0, 1, 7, 8, 9, 300, usize::from(u16::MAX), MAX_KEY_BYTES].into_iter().rev().take(lengths + 3) {
        for len in [0, 1, 100, ZERO_COPY_MIN_VALUE_BYTES - 1, ZERO_COPY_MIN_VALUE_BYTES, 10_000] {
            for (flags, expires_at_ms) in [(0, 0), (9, 0), (0, 5), (9, 5)] {
                let (key, value) = (vec![b'k'; key_len], vec![len as u8; len]);
                let write = WriteOptions { flags, expires_at_ms, ..WriteOptions::default() };
                table.put(&participant, table.hash(&key), &key, &value, &write, 0).expect("there is room");
                let before = table.stats().bytes;
                put_shared(&table, &participant, &key, buffers.share(&value), &write);
                assert_eq!(table.stats().bytes, before, "it counts as if it were copied");
                let guard = participant.guard();
                let record = table.get(&guard, table.hash(&key), &key, 0).expect("it is there");
                assert!(record.key_and_value() == (&key, &value) && record.value().len() == len);
                assert_eq!((record.flags(), record.expires_at_ms()), (flags, expires_at_ms));
                let shares = record.share();
                assert_eq!(shares.is_some(), len >= ZERO_COPY_MIN_VALUE_BYTES.max(key_len));
                assert!(shares.is_none_or(|shares| *shares == value));
                participant.quiescent();
            }
        }
        settle(&epochs, &mut participant);
        assert_eq!(buffers.shares() as u64, table.stats().records);
    }
    drop(table);
    settle(&epochs, &mut participant);
    assert_eq!(buffers.shares(), 0);
}

#[test]
fn a_value_is_let_go_of_when_its_record_goes_and_when_it_was_refused() {
    let (epochs, table) = table(StorageMode::Store, 20_000);
    let mut participant = epochs.register();
    let mut buffers = Buffers(Vec::new());
    let (key, other) = (b"one", b"other");
    put_shared(&table, &participant, key, buffers.share(&[7; 5000]), &WriteOptions::default());
    let reader = epochs.register();
    let guard = reader.guard();
    let read = table.get(&guard, table.hash(key), key, 0).expect("it is there");
    // Refused: nothing holds it.
    let write = WriteOptions { condition: StoreCondition::Absent, ..WriteOptions::default() };
    let refused = buffers.share(&[8; 100]);
    assert_eq!(table.put_shared(&participant, table.hash(key), key, &refused, &write, 0), Err(StoreError::Conflict));
    let large = buffers.share(&[9; 20_000]);
    let put = table.put_shared(&participant, table.hash(other), other, &large, &WriteOptions::default(), 0);
    assert_eq!(put, Err(StoreError::OutOfMemory));
    drop((refused, large));
    assert_eq!(buffers.shares(), 1);
    // Replaced and deleted: it goes after its reader.
    assert_eq!(table.increment(&participant, table.hash(key), key, 1, 0), Err(StoreError::NotANumber));
    put_shared(&table, &participant, key, buffers.share(b"41"), &WriteOptions::default());
    assert_eq!(table.increment(&participant, table.hash(key), key, 1, 0).map(|(sum, _)| sum), Ok(42));
    participant.quiescent();
    assert!(read.value().iter().all(|byte| *byte == 7) && buffers.shares() >= 1);
    let share = read.share().expect("it is large");
    drop(reader);
    table.delete(&participant, table.hash(key), key, StoreCondition::Always, 0).expect("it is there");
    settle(&epochs, &mut participant);
    assert_eq!(buffers.shares(), 1, "a share holds it without its record");
    assert!(share.iter().all(|byte| *byte == 7));
    std::thread::spawn(move || drop(share)).join().expect("on any thread");
    assert_eq!(buffers.shares(), 0);
}

#[test]
fn readers_see_whole_values_wherever_they_lie() {
    let (epochs, table) = table(StorageMode::Cache, 60_000);
    let rounds = scaled(20_000, 100) as u64;
    let value = |round: u64| vec![round as u8; 500 + (round % 7) as usize * 400];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut writer, mut random) = (epochs.register(), SmallRng::seed_from_u64(3));
            for round in 0..rounds {
                let key = (round % 30).to_le_bytes();
                let (hash, write) = (table.hash(&key), WriteOptions::default());
                let put = if random.random_bool(0.7) {
                    table.put_shared(&writer, hash, &key, &SharedBytes::of(Arc::new(value(round))), &write, 0)
                } else {
                    table.put(&writer, hash, &key, &value(round), &write, 0)
                };
                assert!(matches!(put, Ok(_) | Err(StoreError::ReclaimPressure)), "{put:?}");
                writer.quiescent();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut reader = epochs.register();
                let mut shares = None;
                for round in 0..rounds {
                    let guard = reader.guard();
                    let key = (round % 30).to_le_bytes();
                    if let Some(record) = table.get(&guard, table.hash(&key), &key, 0) {
                        let read = record.value();
                        assert!(read.len() >= 500 && read.iter().all(|byte| *byte == read[0]));
                        shares = record.share().or(shares);
                    }
                    reader.quiescent();
                    assert!(
                        shares.as_ref().is_none_or(|shares: &SharedBytes| shares.iter().all(|byte| *byte == shares[0]))
                    );
                }
            });
        }
    });
}
