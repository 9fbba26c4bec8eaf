//! Tables with locked stripes, so that changes of several keys happen at once for all writers.

use hashbrown::HashMap;

use sandstorm_store::{EpochGuard, ExclusiveStripes, Participant, RecordTable, StoreError, StripeSet};

/// The stripes to be locked, by table.
#[derive(Default)]
pub(super) struct StripeLockRequest<'w> {
    tables: HashMap<usize, (&'w RecordTable, StripeSet)>,
    /// Keys of tables larger than memory whose values are needed, by their hashes.
    needed: Vec<(&'w RecordTable, u64)>,
}

impl<'w> StripeLockRequest<'w> {
    fn stripes(&mut self, table: &'w RecordTable) -> &mut StripeSet {
        &mut self.tables.entry(std::ptr::from_ref(table).addr()).or_insert((table, StripeSet::default())).1
    }

    /// Adds a key's stripe. `needs_value`: the command reads its value.
    pub(super) fn key(&mut self, table: &'w RecordTable, key: &[u8], needs_value: bool) {
        let hash = crate::hash_key(table, key);
        self.stripes(table).add(hash);
        if needs_value && table.is_larger_than_memory() {
            self.needed.push((table, hash));
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
        StripeLocks { locked, needed: self.needed }
    }

    /// Makes room for so many bytes in tables larger than memory, out of which nothing may leave while stripes are
    /// locked.
    pub(super) fn make_room(&self, participant: &Participant, bytes: usize) {
        let tables = self.tables.values().filter(|(table, _)| table.is_larger_than_memory());
        tables.for_each(|(table, _)| table.make_room(participant, bytes as u64));
    }
}

/// The locked stripes.
pub(super) struct StripeLocks<'w> {
    locked: Vec<ExclusiveStripes<'w>>,
    needed: Vec<(&'w RecordTable, u64)>,
}

impl<'w> StripeLocks<'w> {
    /// Reserves room in the log for changes of so many keys, `bytes` of keys and values together, before the first is
    /// made: so a command, or a transaction, is refused before it has begun and not in its middle.
    pub(super) fn reserve_log(&self, changes: usize, bytes: usize) -> Result<(), StoreError> {
        // All tables have one log.
        let logged = self.locked.iter().find(|locked| locked.table().is_logged());
        logged.map_or(Ok(()), |locked| locked.reserve_log(changes, bytes))
    }

    /// Whether any of the values that are needed is on the disk; notes all that are. Those that are not stay in memory
    /// while this lives.
    pub(super) fn meet_cold(&self, guard: &EpochGuard<'_>) -> bool {
        self.needed.iter().fold(false, |met, (table, hash)| table.note_if_cold(guard, *hash) | met)
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
