//! How far an invocation's transaction has come.

use sandstorm_api::limits::TRANSACTION_TRIES;
use sandstorm_extension::TransactionCounts;

/// The state of an invocation's transaction so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransactionState {
    /// Runs of the invocation that conflicted with other writes.
    pub(super) conflicts: u32,
    /// The transaction was committed, and has changed something.
    pub(super) committed: bool,
    /// The last commit has met a conflict, so the invocation may begin anew.
    pub(super) may_retry: bool,
    /// A commit was tried in the poll under way.
    pub(super) tried: bool,
}

impl TransactionState {
    /// Returns the counts; `None` where there is nothing to count.
    #[inline]
    pub(super) fn counted(self) -> Option<TransactionCounts> {
        if !self.committed && self.conflicts == 0 {
            return None;
        }
        let given_up = u32::from(self.conflicts >= TRANSACTION_TRIES);
        let retries = u64::from(self.conflicts - given_up);
        Some(TransactionCounts { commits: u64::from(self.committed), retries, conflicts: u64::from(given_up) })
    }
}
