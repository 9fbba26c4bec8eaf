//! Tables with locked stripes, so that changes of several keys happen at once for all writers.

use hashbrown::HashMap;

use sandstorm_store::{ExclusiveStripes, Participant, RecordTable, StoreError, StripeSet};

/// The stripes to be locked, by table.
#[derive(Default)]
pub(super) struct StripeLockRequest<'w> {
    tables: HashMap<usize, (&'w RecordTable, StripeSet)>,
}

impl<'w> StripeLockRequest<'w> {
    fn stripes(&mut self, table: &'w RecordTable) -> &mut StripeSet {
        &mut self.tables.entry(std::ptr::from_ref(table).addr()).or_insert((table, StripeSet::default())).1
    }

    /// Adds a key's stripe.
    pub(super) fn key(&mut self, table: &'w RecordTable, key: &[u8]) {
        self.stripes(table).add(crate::hash_key(table, key));
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
        StripeLocks(tables.into_iter().map(|(table, stripes)| table.exclusive(participant, stripes)).collect())
    }
}

/// The locked stripes.
pub(super) struct StripeLocks<'w>(Vec<ExclusiveStripes<'w>>);

impl<'w> StripeLocks<'w> {
    /// Reserves room in the log for changes of so many keys, `bytes` of keys and values together, before the first is
    /// made: so a command, or a transaction, is refused before it has begun and not in its middle.
    pub(super) fn reserve_log(&self, changes: usize, bytes: usize) -> Result<(), StoreError> {
        // All tables have one log.
        let logged = self.0.iter().find(|locked| locked.table().is_logged());
        logged.map_or(Ok(()), |locked| locked.reserve_log(changes, bytes))
    }

    /// The locked stripes of a table.
    pub(super) fn of(&mut self, table: &RecordTable) -> Option<&mut ExclusiveStripes<'w>> {
        self.0.iter_mut().find(|locked| std::ptr::eq(locked.table(), table))
    }
}
