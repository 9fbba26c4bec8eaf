//! Admits changes of a table before they are made: one at a time, or several of which all are made or none.
//!
//! A change is admitted under the lock of its stripe, and noted once it is certain. In between a thread may finish
//! writing the key's earlier change: the key then stays dirty, with its mark, for the change to come.

use std::sync::atomic::Ordering::Relaxed;

use sandstorm_store::backed::{BackedChange, BackedKeyChange, BackingRefusal};
use sandstorm_store::{Participant, StoreError};

use crate::backed_table::BackedTable;
use crate::key_states::{DirtyKey, KeyStates};
use crate::limits::{DIRTY_KEY_BYTES, RETRY_FIRST_MS};
use crate::marks::DirtyMark;
use crate::settings::BackingPolicy;

/// What is admitted of a key that several changes may name.
#[derive(Clone, Copy)]
struct AdmittedKey<'k> {
    hash: u64,
    key: &'k [u8],
    bytes: u64,
    is_delete: bool,
    expires_at_ms: u64,
}

impl<'k> AdmittedKey<'k> {
    fn of(hash: u64, key: &'k [u8], change: BackedChange) -> AdmittedKey<'k> {
        let BackedChange { put_bytes, expires_at_ms } = change;
        let bytes = put_bytes.unwrap_or(key.len()) as u64 + DIRTY_KEY_BYTES;
        AdmittedKey { hash, key, bytes, is_delete: put_bytes.is_none(), expires_at_ms }
    }

    /// The keys of changes, each once, with the most that is said of it.
    fn all_of(changes: &[BackedKeyChange<'k>]) -> Vec<AdmittedKey<'k>> {
        let mut keys: Vec<_> = changes.iter().map(|one| AdmittedKey::of(one.hash, one.key, one.change)).collect();
        keys.sort_unstable_by_key(|one| (one.hash, one.key));
        keys.dedup_by(|further, kept| {
            let is_same = (further.hash, further.key) == (kept.hash, kept.key);
            if is_same {
                kept.bytes = kept.bytes.max(further.bytes);
                kept.is_delete |= further.is_delete;
                kept.expires_at_ms = earlier_of(kept.expires_at_ms, further.expires_at_ms);
            }
            is_same
        });
        keys
    }
}

/// The earlier of two times, of which 0 is never.
fn earlier_of(one_ms: u64, other_ms: u64) -> u64 {
    if one_ms == 0 || other_ms == 0 { one_ms.max(other_ms) } else { one_ms.min(other_ms) }
}

impl BackedTable {
    /// Admits one change, or refuses it.
    pub(crate) fn admit_one(
        &self,
        participant: &Participant,
        (hash, key): (u64, &[u8]),
        change: BackedChange,
    ) -> Result<(), StoreError> {
        let mut states = self.shard(hash);
        let dirty = states.dirty.get(key);
        let (is_promised, held) = dirty.map_or((false, 0), |dirty| (dirty.is_promised, dirty.held_bytes()));
        let policy = self.policy();
        if policy == BackingPolicy::ReadThrough && !is_promised {
            return if change.put_bytes.is_some() { Err(self.refuse(BackingRefusal::ReadOnly)) } else { Ok(()) };
        }
        let admitted = AdmittedKey::of(hash, key, change);
        let is_full = self.dirty_bytes.load(Relaxed) - held + admitted.bytes > self.dirty_limit.load(Relaxed);
        if is_full && !(is_promised && admitted.bytes <= held) {
            drop(states);
            self.hurry();
            return Err(self.refuse(BackingRefusal::DirtyFull));
        }
        if policy == BackingPolicy::WriteThrough && !is_promised && self.is_down() {
            drop(states);
            return Err(self.refuse(BackingRefusal::Down));
        }
        self.mark(participant, &mut states, &admitted)?.is_admitted = true;
        Ok(())
    }

    /// Admits changes of several keys, or none.
    pub(crate) fn admit_together(
        &self,
        participant: &Participant,
        changes: &[BackedKeyChange<'_>],
    ) -> Result<(), StoreError> {
        let policy = self.policy();
        if policy == BackingPolicy::ReadThrough {
            let puts = changes.iter().any(|one| one.change.put_bytes.is_some());
            return if puts { Err(self.refuse(BackingRefusal::ReadOnly)) } else { Ok(()) };
        }
        if policy == BackingPolicy::WriteThrough && self.is_down() {
            return Err(self.refuse(BackingRefusal::Down));
        }
        let keys = AdmittedKey::all_of(changes);
        let held = |one: &AdmittedKey<'_>| self.shard(one.hash).dirty.get(one.key).map_or(0, DirtyKey::held_bytes);
        let growth: u64 = keys.iter().map(|one| one.bytes.saturating_sub(held(one))).sum();
        let limit = self.dirty_limit.load(Relaxed);
        let room = |bytes: u64| bytes.checked_add(growth).filter(|bytes| growth == 0 || *bytes <= limit);
        if self.dirty_bytes.fetch_update(Relaxed, Relaxed, room).is_err() {
            self.hurry();
            return Err(self.refuse(BackingRefusal::DirtyFull));
        }
        let mut reserved = 0_u64;
        for (index, one) in keys.iter().enumerate() {
            let mut states = self.shard(one.hash);
            match self.mark(participant, &mut states, one) {
                Ok(dirty) => {
                    let more = one.bytes.saturating_sub(dirty.held_bytes());
                    (dirty.is_admitted, dirty.is_promised) = (true, true);
                    dirty.reserved_bytes += more;
                    reserved += more;
                }
                Err(error) => {
                    drop(states);
                    keys[..index].iter().for_each(|one| self.end_promise(one.hash, one.key));
                    self.dirty_bytes.fetch_sub(growth.wrapping_sub(reserved), Relaxed);
                    return Err(error);
                }
            }
        }
        // A key may have become clean meanwhile, and has more reserved then.
        self.dirty_bytes.fetch_add(reserved.wrapping_sub(growth), Relaxed);
        Ok(())
    }

    /// Ends what [`BackedTable::admit_together`] has promised for a key.
    pub(crate) fn end_promise(&self, hash: u64, key: &[u8]) {
        if let Some(dirty) = self.shard(hash).dirty.get_mut(key) {
            dirty.is_promised = false;
            self.dirty_bytes.fetch_sub(std::mem::take(&mut dirty.reserved_bytes), Relaxed);
        }
    }

    /// Marks a key as dirty.
    fn mark<'s>(
        &self,
        participant: &Participant,
        states: &'s mut KeyStates,
        admitted: &AdmittedKey<'_>,
    ) -> Result<&'s mut DirtyKey, StoreError> {
        let AdmittedKey { hash, key, is_delete, expires_at_ms, .. } = *admitted;
        let (before, has_change) = match states.dirty.get(key) {
            Some(dirty) => (Some(dirty.mark.clone()), dirty.change != 0),
            None => (None, false),
        };
        // Where the backing does not have a delete yet, or a record that may expire, that stays to be known: this
        // change may be refused after all, and a start finds no record then.
        let kept = before.as_ref().filter(|_| has_change);
        let mark = DirtyMark {
            is_delete: is_delete || kept.is_some_and(|kept| kept.is_delete),
            expires_at_ms: kept.map_or(expires_at_ms, |kept| earlier_of(kept.expires_at_ms, expires_at_ms)),
            base: before.as_ref().map_or_else(|| states.known(hash, key, crate::unix_ms()), |mark| mark.base.clone()),
        };
        if before.as_ref() != Some(&mark) {
            self.write_mark(participant, key, &mark)?;
        }
        if before.is_none() {
            // If the change does not come, the thread that takes it here removes the mark.
            self.queue.lock().push_admitted(key, self.clock_ms() + RETRY_FIRST_MS);
        }
        let now_ms = self.clock_ms();
        let dirty = states.dirty.entry(key.into()).or_insert_with(|| DirtyKey::admitted(mark.clone(), now_ms));
        dirty.mark = mark;
        Ok(dirty)
    }

    fn refuse(&self, refusal: BackingRefusal) -> StoreError {
        self.counters.refusals.fetch_add(1, Relaxed);
        StoreError::NotBacked(refusal)
    }
}
