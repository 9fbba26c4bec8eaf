//! Watches on absent keys. A record's version reveals every change to a key that is there. An absent key has no
//! version, and a key that was written and deleted again looks as before. So removals of watched keys are counted while
//! a caller watches them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::RecordTable;
use super::buckets::stripe_of;
use super::update::ExclusiveStripes;
use crate::Participant;

/// Locks among which the watched hashes of a table are divided, so that writers that delete seldom meet at one.
const SHARDS: usize = 16;

/// The watched hashes of one table.
#[derive(Default)]
pub(super) struct KeyWatches {
    /// The number of watched hashes.
    watched: AtomicUsize,
    shards: [Mutex<HashMap<u64, HashWatch>>; SHARDS],
}

/// The watches of one hash.
#[derive(Default)]
struct HashWatch {
    count: usize,
    /// Records of the hash that were removed since it was first watched.
    removals: u64,
}

impl KeyWatches {
    fn shard(&self, hash: u64) -> &Mutex<HashMap<u64, HashWatch>> {
        &self.shards[stripe_of(hash) % SHARDS]
    }

    /// Counts the removal of a record of this hash. Called under the lock of its stripe.
    pub(super) fn note_removal(&self, hash: u64) {
        // A watcher has taken the stripe's lock after it was counted: see `RecordTable::watch_absent`.
        if self.watched.load(Ordering::Relaxed) != 0
            && let Some(watchers) = self.shard(hash).lock().get_mut(&hash)
        {
            watchers.removals += 1;
        }
    }

    /// Returns all watched hashes.
    fn hashes(&self) -> Vec<u64> {
        if self.watched.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        self.shards.iter().flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>()).collect()
    }

    fn removals(&self, hash: u64) -> u64 {
        self.shard(hash).lock().get(&hash).map_or(0, |watchers| watchers.removals)
    }
}

/// The watch of a key that was absent. Ends when it is dropped. It does not keep any record of the table alive.
pub struct AbsentKeyWatch {
    of: Arc<KeyWatches>,
    hash: u64,
    removals: u64,
}

impl std::fmt::Debug for AbsentKeyWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Absence").field("hash", &self.hash).finish_non_exhaustive()
    }
}

impl AbsentKeyWatch {
    fn new(of: &Arc<KeyWatches>, hash: u64) -> AbsentKeyWatch {
        of.watched.fetch_add(1, Ordering::Relaxed);
        of.shard(hash).lock().entry(hash).or_default().count += 1;
        AbsentKeyWatch { of: Arc::clone(of), hash, removals: 0 }
    }
}

impl Drop for AbsentKeyWatch {
    fn drop(&mut self) {
        let mut shard = self.of.shard(self.hash).lock();
        if let Some(watchers) = shard.get_mut(&self.hash) {
            watchers.count -= 1;
            if watchers.count == 0 {
                shard.remove(&self.hash);
            }
        }
        self.of.watched.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state of a key when its watch began.
#[derive(Debug)]
pub enum WatchedState {
    /// Its live record had this version.
    Version(u64),
    /// The key had no live record.
    Absent(AbsentKeyWatch),
}

impl RecordTable {
    /// Begins to watch a key: [`ExclusiveStripes::is_unchanged`] tells later whether anything has happened to it since.
    pub fn watch(&self, participant: &Participant, hash: u64, key: &[u8], now_ms: u64) -> WatchedState {
        let absences = self.absences.get_or_init(Arc::default);
        // Before the lock: a removal that comes after it finds this.
        let mut absence = AbsentKeyWatch::new(absences, hash);
        let mut locked = self.lock_stripe(participant, stripe_of(hash));
        locked.note_seen(hash);
        if let Some(found) = locked.find(hash, key) {
            if !found.record.is_expired(now_ms) {
                return WatchedState::Version(found.record.version());
            }
            // A record found in its slot later was written later.
            // While the log has no room it stays, and counts as a change.
            let _stays = locked.expire(hash, key, found);
        }
        absence.removals = absences.removals(hash);
        WatchedState::Absent(absence)
    }
}

impl ExclusiveStripes<'_> {
    /// Returns whether a key of a locked stripe is unchanged: neither written nor deleted nor expired since.
    pub fn is_unchanged(&mut self, hash: u64, key: &[u8], seen: &WatchedState, now_ms: u64) -> bool {
        let Some(index) = self.index_of(hash) else { return false };
        let locked = &mut self.locked[index];
        self.table.refresh(locked);
        locked.note_seen(hash);
        let found = locked.find(hash, key).map(|found| found.record);
        match seen {
            WatchedState::Version(version) => {
                found.is_some_and(|record| record.version() == *version && !record.is_expired(now_ms))
            }
            WatchedState::Absent(absence) => {
                let of_this = self.table.absences.get().is_some_and(|of| Arc::ptr_eq(of, &absence.of));
                // An expired record is a change, too: it was written since.
                found.is_none() && of_this && absence.of.removals(hash) == absence.removals
            }
        }
    }

    /// Tells the watches of absent keys which of their records go when all records do.
    pub(super) fn notify_watchers(&self) {
        let Some(absences) = self.table.absences.get() else { return };
        for hash in absences.hashes() {
            if self.index_of(hash).is_some_and(|index| self.locked[index].has(hash)) {
                absences.note_removal(hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epochs, RecordUpdate, StripeSet, TableConfig};

    #[test]
    fn a_watch_that_ended_leaves_nothing_and_a_record_that_only_came_and_went_is_a_change() {
        let epochs = Epochs::new();
        let table = RecordTable::new(TableConfig::default(), Arc::clone(&epochs));
        let participant = epochs.register();
        let hash = table.hash(b"k");
        let unchanged = |seen: &WatchedState, now_ms| {
            let mut stripes = StripeSet::default();
            stripes.add(hash);
            table.exclusive(&participant, stripes).is_unchanged(hash, b"k", seen, now_ms)
        };
        let put = |expires_at_ms| {
            let put = |_: Option<_>| RecordUpdate::Put { value: b"v"[..].into(), flags: 0, expires_at_ms, answer: () };
            table.update(&participant, hash, b"k", 1, put).expect("room");
        };
        let delete =
            |now_ms| table.update(&participant, hash, b"k", now_ms, |_| RecordUpdate::Delete(())).expect("deleted");
        let watch = |now_ms| table.watch(&participant, hash, b"k", now_ms);

        let seen = watch(1);
        assert!(matches!(seen, WatchedState::Absent(_)) && unchanged(&seen, 1));
        delete(1);
        assert!(unchanged(&seen, 1), "there was nothing to delete");
        put(0);
        assert!(!unchanged(&seen, 1));
        delete(1);
        assert!(!unchanged(&seen, 1), "written and deleted");

        drop(seen);
        let seen = watch(1);
        put(5);
        assert!(!unchanged(&seen, 9), "written, and expired where it is");
        drop(seen);
        let seen = watch(9);
        assert!(matches!(seen, WatchedState::Absent(_)) && unchanged(&seen, 9), "an expired record is none");

        drop(seen);
        let seen = watch(9);
        table.clear(&participant).expect("no log");
        assert!(unchanged(&seen, 9), "the table was cleared without it");
        put(0);
        table.clear(&participant).expect("no log");
        assert!(!unchanged(&seen, 9), "and with it");

        put(0);
        drop(seen);
        let seen = watch(9);
        assert!(matches!(seen, WatchedState::Version(_)) && unchanged(&seen, 9));
        put(0);
        assert!(!unchanged(&seen, 9));
        drop(seen);
        let absences = table.absences.get().expect("made by the first watch");
        assert_eq!((absences.watched.load(Ordering::Relaxed), absences.hashes().len()), (0, 0));
    }
}
