//! The keys of an ordered table in their order, beside the hash table, which alone decides whether a record is there.
//!
//! How the two agree: a thread that adds or removes a record holds the lock of its stripe. It enters the key here
//! before the record can be found, and removes it after the record cannot be found any more. So every record in the
//! table has its key here, and a key without a record is skipped. Overwriting a record, or moving it to a larger array,
//! changes nothing here. A clear puts an empty set in place while all stripes are locked; the old one is emptied piece
//! by piece.
//!
//! Each key is a copy of its own: records are replaced, and references to them would have to be updated. A short key
//! lies in the tree's node itself, so that a search that compares five keys in each of five nodes does not miss the
//! caches twenty times.
//!
//! A balanced tree with positions ([`KeyTree`]) under one lock, which is the innermost: its holder takes no other, and
//! runs no code but this file's and the tree's. The lock is held for one key's position, or to copy a bounded batch of
//! keys. Removed keys are freed at once; no sequence of keys makes the tree deep.

use arrayvec::ArrayVec;
use parking_lot::RwLock;

use super::key_range::{IndexKey, KeyRange};
use super::key_tree::{KeyTree, TreeParts};
use crate::epochs::IncrementalDrop;
use crate::limits::{INDEX_CHARGE_BYTES, RANGE_KEYS_PER_CALL};

/// The keys of an ordered table.
pub(super) struct KeyIndex(RwLock<KeyTree>);

impl KeyIndex {
    pub(super) fn new() -> KeyIndex {
        KeyIndex(RwLock::new(KeyTree::default()))
    }

    /// Enters a key, for which [`copy_key`] has taken memory. The stripe of the key is locked.
    pub(super) fn insert(&self, key: IndexKey) {
        self.0.write().insert(key);
    }

    /// Removes a key. The stripe of the key is locked.
    pub(super) fn remove(&self, key: &[u8]) {
        let taken = self.0.write().remove(key);
        // Freed when the lock is released.
        drop(taken);
    }

    /// Puts an empty set in place. All stripes are locked. The returned set must be retired.
    pub(super) fn clear(&self) -> Box<dyn IncrementalDrop> {
        let old = std::mem::take(&mut *self.0.write());
        Box::new(ClearedIndex(old.into_parts()))
    }

    /// Appends the first keys of a span in its order to the batch: up to `limit` of them, and, except for the last one,
    /// of up to `bytes` bytes.
    pub(super) fn read(&self, span: &KeyRange<'_>, limit: usize, bytes: usize, batch: &mut KeyBatch) {
        batch.clear();
        if span.is_empty() {
            batch.is_last = true;
            return;
        }
        let is_full =
            |batch: &KeyBatch| batch.ends.len() >= limit.min(RANGE_KEYS_PER_CALL) || batch.keys.len() >= bytes;
        if is_full(batch) {
            return;
        }
        batch.is_last = true;
        // One end is searched in the tree, the other is checked on each key: most spans hold few.
        self.0.read().walk(span, &mut |key| {
            if span.is_beyond(key) {
                return false;
            }
            batch.keys.extend_from_slice(key);
            batch.ends.push(batch.keys.len());
            batch.is_last = !is_full(batch);
            batch.is_last
        });
    }

    /// Returns the number of keys of a span.
    pub(super) fn count(&self, span: &KeyRange<'_>) -> u64 {
        self.0.read().count(span)
    }

    /// Copies the key before which there are `position` others to the end of `copy`; returns whether there is one.
    pub(super) fn copy_at(&self, position: u64, copy: &mut Vec<u8>) -> bool {
        let keys = self.0.read();
        let key = keys.at(position);
        key.into_iter().for_each(|key| copy.extend_from_slice(key));
        key.is_some()
    }
}

/// Returns a copy of a key for the index; `None` when memory is out.
pub(super) fn copy_key(key: &[u8]) -> Option<IndexKey> {
    let mut copy = IndexKey::new();
    copy.try_reserve_exact(key.len()).ok()?;
    copy.extend_from_slice(key);
    Some(copy)
}

/// Copies of keys that follow each other.
#[derive(Default)]
pub(super) struct KeyBatch {
    keys: Vec<u8>,
    ends: ArrayVec<usize, RANGE_KEYS_PER_CALL>,
    /// Nothing of the span comes after them.
    pub(super) is_last: bool,
}

impl KeyBatch {
    fn clear(&mut self) {
        self.keys.clear();
        self.ends.clear();
        self.is_last = false;
    }

    /// Returns the bytes of the keys.
    pub(super) fn bytes(&self) -> usize {
        self.keys.len()
    }

    /// Returns the keys, in the span's order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.keys[start..*end])
    }
}

/// Returns the bytes that the key of a record counts against the quota beside the record.
pub(super) fn index_charge(key_len: usize) -> u64 {
    key_len as u64 + INDEX_CHARGE_BYTES
}

/// The rest of a set that no thread reads any more.
struct ClearedIndex(TreeParts);

impl IncrementalDrop for ClearedIndex {
    fn free_some(&mut self, units: usize) -> usize {
        self.0.free_some(units)
    }

    fn bytes(&self) -> usize {
        0
    }
}
