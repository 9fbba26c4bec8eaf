//! Promise: in a cluster a table takes no write of a key whose slot is another server's, whichever way the write comes,
//! and no range of which others have a part.

use std::sync::Arc;

use super::{open_table, put, table_with};
use crate::slots::SlotOwnership;
use crate::transactions::{CommitError, KeyChange, NewRecord, commit};
use crate::{KeyRange, RecordTable, StorageMode, StoreCondition, StoreError, WriteOptions};

/// Of slot 12182, and of slot 5061.
const KEYS: [&[u8]; 2] = [b"foo", b"bar"];

fn in_cluster(table: &RecordTable) -> Arc<SlotOwnership> {
    let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
    table.set_slots(&slots);
    slots
}

#[test]
fn a_key_of_another_server_is_not_written() {
    let (epochs, table) = open_table();
    let (participant, slots) = (epochs.register(), in_cluster(&table));
    KEYS.iter().for_each(|key| assert!(put(&table, &participant, key, b"1") > 0));
    slots.set_owned(|slot| slot > 10_000);
    let [own, other] = KEYS;
    assert!(table.owns(own) && !table.owns(other) && !table.owns_all());
    let hash = table.hash(other);
    let options = WriteOptions::default();
    assert_eq!(table.put(&participant, hash, other, b"2", &options, 0), Err(StoreError::WrongServer));
    assert_eq!(table.delete(&participant, hash, other, StoreCondition::Always, 0), Err(StoreError::WrongServer));
    assert_eq!(table.increment(&participant, hash, other, 1, 0), Err(StoreError::WrongServer));
    let change = |key| {
        let becomes = Some(NewRecord { value: b"3", flags: 0, expires_at_ms: 0 });
        KeyChange { table: &table, hash: table.hash(key), key, becomes }
    };
    let refused = commit(&participant, &[], &mut [change(own), change(other)], 0);
    assert!(matches!(refused, Err(CommitError::Refused(StoreError::WrongServer))), "{refused:?}");
    assert_eq!(super::get(&table, &participant, own).as_deref(), Some(&b"1"[..]), "nothing of it happened");
    assert!(commit(&participant, &[], &mut [change(own)], 0).is_ok());
    slots.set_owned(|_| true);
    assert_eq!(super::get(&table, &participant, other).as_deref(), Some(&b"1"[..]));
    assert_eq!(table.increment(&participant, hash, other, 1, 0).map(|(sum, _)| sum), Ok(2));
}

#[test]
fn a_range_is_whole_or_refused() {
    let (epochs, table) = table_with(StorageMode::Store, u64::MAX, true);
    let (participant, slots) = (epochs.register(), in_cluster(&table));
    KEYS.iter().for_each(|key| assert!(put(&table, &participant, key, b"1") > 0));
    let all = KeyRange::new(b"", b"", false);
    assert_eq!(table.count_keys(&all), Ok(2));
    slots.set_owned(|slot| slot != 7);
    assert!(table.count_keys(&all).is_err() && table.key_at(0).is_err());
}
