//! The states of a table's keys with respect to the backing.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use sandstorm_store::spill::ColdTicket;

use crate::marks::DirtyMark;
use crate::object_store::WriteCondition;

/// A key whose last change the backing does not have.
#[derive(Debug)]
pub(crate) struct DirtyKey {
    /// The number of its last change; 0: it was admitted, and may not come.
    pub(crate) change: u64,
    /// The number of its first change that the backing does not have.
    pub(crate) first_change: u64,
    /// The bytes that its last change counts.
    pub(crate) bytes: u64,
    /// The bytes that are reserved beside these, for changes that are about to be made.
    pub(crate) reserved_bytes: u64,
    /// Whether a change was admitted that has neither come nor been given up.
    pub(crate) is_admitted: bool,
    /// Whether changes of it were admitted together with those of other keys, all of which are made or none.
    pub(crate) is_promised: bool,
    /// Milliseconds of the table's clock at its first change.
    pub(crate) since_ms: u64,
    /// As it is in the table of marks.
    pub(crate) mark: DirtyMark,
    /// The number of the wait that ends once the backing has its last change; 0: no answer waits for that.
    pub(crate) wait: u64,
    /// The same of the change that is being written.
    pub(crate) written_wait: u64,
    /// Whether a thread writes it, or it is in the queue.
    pub(crate) is_queued: bool,
    /// Attempts that failed one after the other.
    pub(crate) failures: u32,
    /// Whether a delete of it failed: the object may be gone all the same.
    pub(crate) may_be_deleted: bool,
    /// Whether another writer has changed its object as well.
    pub(crate) is_conflicted: bool,
}

impl DirtyKey {
    /// A key of which a change was admitted.
    pub(crate) fn admitted(mark: DirtyMark, since_ms: u64) -> DirtyKey {
        DirtyKey {
            change: 0,
            first_change: 0,
            bytes: 0,
            reserved_bytes: 0,
            is_admitted: false,
            is_promised: false,
            since_ms,
            mark,
            wait: 0,
            written_wait: 0,
            is_queued: false,
            failures: 0,
            may_be_deleted: false,
            is_conflicted: false,
        }
    }

    /// The bytes that it takes of the table's bound.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.bytes + self.reserved_bytes
    }

    pub(crate) fn base(&self) -> &WriteCondition {
        &self.mark.base
    }
}

/// A record in memory that is as the backing has it.
#[derive(Debug)]
pub(crate) struct CleanRecord {
    pub(crate) version: u64,
    pub(crate) tag: Arc<str>,
    /// Milliseconds of the clock at which the backing had it.
    pub(crate) checked_ms: u64,
}

/// The keys of a part of a table.
#[derive(Debug, Default)]
pub(crate) struct KeyStates {
    pub(crate) dirty: HashMap<Box<[u8]>, DirtyKey>,
    /// By the hash of the key.
    pub(crate) clean: HashMap<u64, CleanRecord>,
    /// Keys that are absent in the backing, and until when that is taken for granted.
    pub(crate) absent: HashMap<Box<[u8]>, u64>,
    /// Keys that are being loaded, with the tickets of the requests that wait for each.
    pub(crate) loads: HashMap<Box<[u8]>, Vec<Arc<ColdTicket>>>,
    /// Those of them that were changed since: what is loaded is older, whatever became of the change meanwhile.
    pub(crate) overtaken: HashSet<Box<[u8]>>,
}

impl KeyStates {
    /// Returns whether a key is known to be absent.
    pub(crate) fn is_absent(&self, key: &[u8], now_ms: u64) -> bool {
        self.absent.get(key).is_some_and(|until_ms| *until_ms > now_ms)
    }

    /// Remembers that a key is absent; one beyond the limit has others forgotten.
    pub(crate) fn note_absent(&mut self, key: &[u8], until_ms: u64, now_ms: u64, most: usize) {
        if self.absent.len() >= most {
            self.absent.retain(|_, until_ms| *until_ms > now_ms);
            // All of them are fresh: an eighth goes, whichever.
            let mut left = if self.absent.len() >= most { most / 8 } else { 0 };
            self.absent.retain(|_, _| {
                left = left.saturating_sub(1);
                left == 0
            });
        }
        self.absent.insert(key.into(), until_ms);
    }

    /// Returns what the backing has of a key, as far as that is known.
    pub(crate) fn known(&self, hash: u64, key: &[u8], now_ms: u64) -> WriteCondition {
        match self.clean.get(&hash) {
            Some(clean) if !clean.tag.is_empty() => WriteCondition::Tag(clean.tag.to_string()),
            Some(_) => WriteCondition::Always,
            None if self.is_absent(key, now_ms) => WriteCondition::Absent,
            None => WriteCondition::Always,
        }
    }
}
