//! A table's side of its backing: the reads that ask it, the changes that it is told of, and the records that come from
//! it.

use std::sync::Arc;

use super::{BackedChange, BackedKeyChange, BackedRead, BackingRefusal, TableBackend};
use crate::spill::{ColdMiss, ColdSource, ColdTicket, SpillAddress};
use crate::table::LockedStripe;
use crate::{EpochGuard, ExclusiveStripes, Participant, RecordRef, RecordTable, ShownPosition, StoreError};

/// A record as the backing has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedRecord<'a> {
    /// Its value.
    pub value: &'a [u8],
    /// The caller's flags.
    pub flags: u32,
    /// Milliseconds since the Unix epoch from which on it counts as absent; 0: never.
    pub expires_at_ms: u64,
}

/// A key that has to be loaded, as a miss that is waited for.
#[derive(Debug)]
struct KeyToLoad {
    backend: Arc<dyn TableBackend>,
    hash: u64,
    key: Box<[u8]>,
}

impl ColdSource for KeyToLoad {
    fn fetch(self: Arc<Self>, _miss: ColdMiss, ticket: &Arc<ColdTicket>) {
        Arc::clone(&self.backend).load(self.hash, &self.key, ticket);
    }

    fn is_backing(&self) -> bool {
        true
    }
}

/// Notes that a key has to be loaded.
#[cold]
fn note_load(backend: &Arc<dyn TableBackend>, (hash, key): (u64, &[u8]), shown: &ShownPosition) {
    let source = Arc::new(KeyToLoad { backend: Arc::clone(backend), hash, key: key.into() });
    shown.note_cold(ColdMiss::new(source, hash, 0, SpillAddress::default()));
}

impl RecordTable {
    /// Puts the table in front of a backing, for its life. Before its first use.
    pub fn attach_backing(&self, backend: Arc<dyn TableBackend>) {
        let _once = self.backing.set(backend);
    }

    /// Returns whether the table is a cache in front of a backing: then scans show what is in memory.
    pub fn has_backing(&self) -> bool {
        self.backing.get().is_some()
    }

    /// As [`RecordTable::may_show`], of a table that may have no backing.
    #[inline(always)]
    pub(crate) fn shows(&self, key: (u64, &[u8]), version: Option<u64>, now_ms: u64, shown: &ShownPosition) -> bool {
        self.backing.get().is_none_or(|backing| self.may_show(backing, key, version, now_ms, shown))
    }

    /// Decides whether a read may show what is in memory: `version` of the record, or that there is none. Else notes
    /// what has to be loaded. Not inlined: tables without a backing do without it.
    #[inline(never)]
    pub(crate) fn may_show(
        &self,
        backend: &Arc<dyn TableBackend>,
        (hash, key): (u64, &[u8]),
        version: Option<u64>,
        now_ms: u64,
        shown: &ShownPosition,
    ) -> bool {
        match Arc::clone(backend).on_read(hash, key, version, now_ms) {
            BackedRead::Show(wait) => {
                shown.raise(wait);
                true
            }
            BackedRead::Load => {
                note_load(backend, (hash, key), shown);
                false
            }
        }
    }

    /// Returns whether what is under a key has to be fetched before a command decides by it: its record is cold, or has
    /// to be loaded. Notes it then; else what an answer that shows it waits for.
    pub fn note_if_missing(&self, guard: &EpochGuard<'_>, hash: u64, key: &[u8], now_ms: u64) -> bool {
        match self.backing.get() {
            Some(backing) => {
                let version = self.current_version(guard, hash, key, now_ms);
                !self.may_show(backing, (hash, key), version, now_ms, guard.shown())
            }
            None => self.note_if_cold(guard, hash),
        }
    }

    /// Notes what has to be fetched for a command that comes later, so that it is fetched together with what an earlier
    /// one waits for.
    pub fn foresee(&self, guard: &EpochGuard<'_>, hash: u64, key: &[u8], now_ms: u64) {
        let Some(backing) = self.backing.get() else {
            self.note_if_cold(guard, hash);
            return;
        };
        let version = self.current_version(guard, hash, key, now_ms);
        if Arc::clone(backing).on_read(hash, key, version, now_ms) == BackedRead::Load {
            note_load(backing, (hash, key), guard.shown());
        }
    }

    /// Shows `f` what is in memory of a key, while no other thread changes it.
    pub fn with_stripe<R>(
        &self,
        participant: &Participant,
        (hash, key): (u64, &[u8]),
        now_ms: u64,
        f: impl FnOnce(Option<RecordRef<'_>>) -> R,
    ) -> R {
        let locked = self.lock_stripe_of(participant, hash);
        let live = locked.find(hash, key).map(|found| found.record).filter(|record| !record.is_expired(now_ms));
        f(live)
    }

    /// Replaces what is in memory of a key by what the backing has, if `may` says so under the lock of its stripe. Then
    /// `done` is told the version (`None`: absent), under the lock as well. It is no change: nothing is logged.
    ///
    /// # Errors
    /// `KeyTooLarge`, `ValueTooLarge`; no room: `OutOfMemory`, `NoMemory`, `ReclaimPressure`.
    pub fn fill(
        &self,
        participant: &Participant,
        (hash, key): (u64, &[u8]),
        record: Option<&LoadedRecord<'_>>,
        now_ms: u64,
        (may, done): (impl FnOnce() -> bool, impl FnOnce(Option<u64>)),
    ) -> Result<(), StoreError> {
        if record.is_some_and(|record| record.value.len() > self.max_value_len()) {
            return Err(StoreError::ValueTooLarge);
        }
        self.write(participant, hash, key, |locked| {
            if !may() {
                return Ok(());
            }
            let found = locked.find(hash, key);
            let found = locked.expire_replaced(hash, key, found, now_ms)?;
            locked.begin_fill();
            let live = record.filter(|record| record.expires_at_ms == 0 || record.expires_at_ms > now_ms);
            let version = match (live, found) {
                (Some(record), found) => {
                    let properties = (record.flags, record.expires_at_ms);
                    Some(locked.replace_found(found, hash, key, record.value.into(), properties, now_ms)?)
                }
                (None, Some(found)) => {
                    locked.remove(hash, found);
                    None
                }
                (None, None) => None,
            };
            done(version);
            Ok(())
        })
    }

    /// Refuses to empty a table with a backing, or one with records that are copied here from another server, or are
    /// about to be another server's. With all stripes locked.
    pub(crate) fn check_clear(&self) -> Result<(), StoreError> {
        if self.slots().is_some_and(|slots| slots.is_arriving() || slots.is_frozen()) {
            return Err(StoreError::WrongServer);
        }
        if self.has_backing() { Err(StoreError::NotBacked(BackingRefusal::NotCleared)) } else { Ok(()) }
    }

    /// Returns whether a record stays in memory, since the backing does not have it yet.
    #[inline]
    pub(crate) fn keeps(&self, hash: u64, key: &[u8]) -> bool {
        self.backing.get().is_some_and(|backing| backing.is_dirty(hash, key))
    }

    /// Notes that the record of a hash leaves memory.
    #[inline]
    pub(crate) fn note_gone(&self, hash: u64) {
        if let Some(backing) = self.backing.get() {
            backing.note_gone(hash);
        }
    }
}

impl ExclusiveStripes<'_> {
    /// Reserves room in the table's backing, if there is one, for all of these changes of keys of the locked stripes,
    /// before the first is made. A failure of the backing meanwhile refuses none of them. To be followed by
    /// [`ExclusiveStripes::release_backed`], also where the changes are not made.
    ///
    /// # Errors
    /// `NotBacked`: none of them is to be made. `NotLogged`: the log does not take what has to be in it before them.
    pub fn admit_backed(&self, changes: &[BackedKeyChange<'_>]) -> Result<(), StoreError> {
        self.table().backing.get().map_or(Ok(()), |backing| backing.admit_all(self.participant(), changes))
    }

    /// Ends what [`ExclusiveStripes::admit_backed`] has reserved for a key, as far as it was not used.
    pub fn release_backed(&self, hash: u64, key: &[u8]) {
        if let Some(backing) = self.table().backing.get() {
            backing.release(hash, key);
        }
    }
}

impl LockedStripe<'_> {
    /// Refuses to decide by what is in memory of a key where the backing has to be asked first. While records are kept
    /// in memory, the caller that locked them has asked.
    #[inline]
    pub(crate) fn check_loaded(
        &self,
        hash: u64,
        key: &[u8],
        live: Option<RecordRef<'_>>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        match self.table.backing.get() {
            Some(backing) if !self.is_fill && !self.is_pinned => {
                let (version, shown) = (live.map(|record| record.version()), self.participant.shown());
                if self.table.may_show(backing, (hash, key), version, now_ms, shown) {
                    Ok(())
                } else {
                    Err(StoreError::Cold)
                }
            }
            _ => Ok(()),
        }
    }

    /// Marks a key as dirty, for a change that is about to be made. `value_len`: `None` for a delete.
    #[inline]
    pub(crate) fn admit_backed(
        &self,
        hash: u64,
        key: &[u8],
        value_len: Option<usize>,
        expires_at_ms: u64,
    ) -> Result<(), StoreError> {
        match self.table.backing.get() {
            Some(backing) if !self.is_fill && self.restored_version.is_none() => {
                let put_bytes = value_len.map(|bytes| bytes + key.len());
                backing.admit(self.participant, hash, key, BackedChange { put_bytes, expires_at_ms })
            }
            _ => Ok(()),
        }
    }

    /// Notes that an admitted change is certain.
    #[inline]
    pub(crate) fn note_backed(&self, hash: u64, key: &[u8], version: u64, bytes: usize) {
        if let Some(backing) = self.table.backing.get()
            && !self.is_fill
            && self.restored_version.is_none()
        {
            self.participant.shown().raise(backing.note_change(hash, key, version, bytes));
        }
    }
}
