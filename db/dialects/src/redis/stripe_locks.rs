//! Tables of which some stripes are held, so that what happens to several keys happens at once for everybody who
//! writes.

use hashbrown::HashMap;

use sandstorm_store::{ExclusiveStripes, Participant, RecordTable, StripeSet};

/// Which stripes of which tables are to be held.
#[derive(Default)]
pub(super) struct StripeLockRequest<'w> {
    tables: HashMap<usize, (&'w RecordTable, StripeSet)>,
}

impl<'w> StripeLockRequest<'w> {
    fn stripes(&mut self, table: &'w RecordTable) -> &mut StripeSet {
        &mut self.tables.entry(std::ptr::from_ref(table).addr()).or_insert((table, StripeSet::default())).1
    }

    /// A key's.
    pub(super) fn key(&mut self, table: &'w RecordTable, key: &[u8]) {
        self.stripes(table).add(crate::hash_key(table, key));
    }

    /// All.
    pub(super) fn all(&mut self, table: &'w RecordTable) {
        *self.stripes(table) = StripeSet::ALL;
    }

    /// Holds them. Tables by their addresses, which is the same order for everybody, so that no two wait for each
    /// other.
    pub(super) fn hold(self, participant: &'w Participant) -> StripeLocks<'w> {
        let mut tables: Vec<_> = self.tables.into_values().collect();
        tables.sort_by_key(|(table, _)| std::ptr::from_ref::<RecordTable>(table).addr());
        StripeLocks(tables.into_iter().map(|(table, stripes)| table.exclusive(participant, stripes)).collect())
    }
}

/// What is held.
pub(super) struct StripeLocks<'w>(Vec<ExclusiveStripes<'w>>);

impl<'w> StripeLocks<'w> {
    /// What is held of a table.
    pub(super) fn of(&mut self, table: &RecordTable) -> Option<&mut ExclusiveStripes<'w>> {
        self.0.iter_mut().find(|held| std::ptr::eq(held.table(), table))
    }
}
