//! Tables with locked stripes, so that changes of several keys happen at once for all writers.

use hashbrown::HashMap;

use sandstorm_net::slots::slot_of;
use sandstorm_store::backed::BackedKeyChange;
use sandstorm_store::{EpochGuard, ExclusiveStripes, Participant, RecordTable, StoreError, StripeSet};

/// The stripes to be locked, by table.
#[derive(Default)]
pub(super) struct StripeLockRequest<'w> {
    tables: HashMap<usize, (&'w RecordTable, StripeSet)>,
    needed: Vec<NeededKey<'w>>,
    /// In a cluster the slots of the keys, each once.
    slots: Vec<u16>,
}

/// What a command has to know of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyNeed {
    /// Nothing: it writes, whatever is there.
    Nothing,
    /// Whether there is a record, its version and expiry.
    Head,
    /// Its value.
    Value,
}

/// A key of a table that does not have all records in memory, by which a command decides, or which it changes.
struct NeededKey<'w> {
    table: &'w RecordTable,
    hash: u64,
    /// In a table with a backing: it is asked by the key.
    key: Box<[u8]>,
}

impl<'w> StripeLockRequest<'w> {
    fn stripes(&mut self, table: &'w RecordTable) -> &mut StripeSet {
        &mut self.tables.entry(std::ptr::from_ref(table).addr()).or_insert((table, StripeSet::default())).1
    }

    /// Adds a key's stripe.
    pub(super) fn key(&mut self, table: &'w RecordTable, key: &[u8], need: KeyNeed) {
        let hash = crate::hash_key(table, key);
        self.stripes(table).add(hash);
        if table.slots().is_some() {
            let slot = slot_of(key);
            if !self.slots.contains(&slot) {
                self.slots.push(slot);
            }
        }
        let has_backing = table.has_backing();
        // Heads of cold records are in memory.
        if need == KeyNeed::Value && table.is_partial() || need == KeyNeed::Head && has_backing {
            let key = if has_backing { key.into() } else { Box::default() };
            self.needed.push(NeededKey { table, hash, key });
        }
    }

    /// Adds all stripes.
    pub(super) fn all(&mut self, table: &'w RecordTable) {
        *self.stripes(table) = StripeSet::ALL;
    }

    /// Locks the stripes, tables in the order of their addresses. The order is the same for all threads, so no two wait
    /// for each other.
    pub(super) fn lock(self, participant: &'w Participant) -> StripeLocks<'w> {
        let mut tables: Vec<_> = self.tables.into_values().collect();
        tables.sort_by_key(|(table, _)| std::ptr::from_ref::<RecordTable>(table).addr());
        let mut locked: Vec<_> =
            tables.into_iter().map(|(table, stripes)| table.exclusive(participant, stripes)).collect();
        if !self.needed.is_empty() {
            locked.iter_mut().for_each(ExclusiveStripes::keep_in_memory);
        }
        StripeLocks { locked, needed: self.needed, admitted: Vec::new(), slots: self.slots }
    }

    /// Makes room for so many bytes in tables that do not have all in memory, out of which nothing may leave while
    /// stripes are locked.
    pub(super) fn make_room(&self, participant: &Participant, bytes: usize) {
        let tables = self.tables.values().filter(|(table, _)| table.is_partial());
        tables.for_each(|(table, _)| table.make_room(participant, bytes as u64));
    }
}

/// The locked stripes.
pub(super) struct StripeLocks<'w> {
    locked: Vec<ExclusiveStripes<'w>>,
    needed: Vec<NeededKey<'w>>,
    /// Keys that the backings of their tables have been asked for.
    admitted: Vec<NeededKey<'w>>,
    slots: Vec<u16>,
}

impl Drop for StripeLocks<'_> {
    /// Gives back what was reserved in backings, before the stripes are unlocked.
    fn drop(&mut self) {
        for NeededKey { table, hash, key } in std::mem::take(&mut self.admitted) {
            if let Some(locked) = self.of(table) {
                locked.release_backed(hash, &key);
            }
        }
    }
}

impl<'w> StripeLocks<'w> {
    /// The first slot of the keys that this server does not own. What it owns now it owns as long as this lives, as far
    /// as writes here are concerned: a server that gives a slot away waits for these locks.
    pub(super) fn slot_elsewhere(&self) -> Option<u16> {
        let own = self.locked.iter().find_map(|locked| locked.table().slots())?;
        self.slots.iter().copied().find(|slot| !own.owns_slot(*slot))
    }

    /// Reserves room in the log for changes of so many keys, `bytes` of keys and values together, before the first is
    /// made: so a command, or a transaction, is refused before it has begun and not in its middle.
    pub(super) fn reserve_log(&self, changes: usize, bytes: usize) -> Result<(), StoreError> {
        // All tables have one log.
        let logged = self.locked.iter().find(|locked| locked.table().is_logged());
        logged.map_or(Ok(()), |locked| locked.reserve_log(changes, bytes))
    }

    /// Whether one of the tables has a backing.
    pub(super) fn have_backing(&self) -> bool {
        self.locked.iter().any(|locked| locked.table().has_backing())
    }

    /// Makes sure that the backing of a table, if it has one, takes all of these changes, before the first is made.
    pub(super) fn admit_backed(
        &mut self,
        table: &'w RecordTable,
        changes: &[BackedKeyChange<'_>],
    ) -> Result<(), StoreError> {
        let Some(locked) = self.of(table).filter(|_| table.has_backing()) else { return Ok(()) };
        locked.admit_backed(changes)?;
        self.admitted.extend(changes.iter().map(|one| NeededKey { table, hash: one.hash, key: one.key.into() }));
        Ok(())
    }

    /// Whether anything that is needed is on the disk or has to be loaded; notes all that is. What is not stays in
    /// memory while this lives.
    pub(super) fn meet_missing(&self, guard: &EpochGuard<'_>, now_ms: u64) -> bool {
        let meet = |needed: &NeededKey<'_>| needed.table.note_if_missing(guard, needed.hash, &needed.key, now_ms);
        self.needed.iter().fold(false, |met, needed| meet(needed) | met)
    }

    /// The locked stripes of a table.
    pub(super) fn of(&mut self, table: &RecordTable) -> Option<&mut ExclusiveStripes<'w>> {
        self.locked.iter_mut().find(|locked| std::ptr::eq(locked.table(), table))
    }
}

/// Returns the bytes that records of all of a command's words would take.
pub(super) fn room_of(args: &[&[u8]]) -> usize {
    args.iter().map(|word| word.len() + WORD_ROOM_BYTES).sum()
}

/// Bytes of a record beside its key and value, at most.
const WORD_ROOM_BYTES: usize = 128;
