//! How long a thread, or an invocation, has waited for other threads that write.

/// How often its owner has waited for other threads that write, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockWaits {
    /// Writes and commits that waited for a lock of a part of a table.
    pub locks: u32,
    /// For how long, nanoseconds.
    pub locks_ns: u64,
    /// Reads that waited until a commit had made all of its changes.
    pub commits: u32,
    /// For how long, nanoseconds.
    pub commits_ns: u64,
}

impl LockWaits {
    /// Adds others.
    pub fn add(&mut self, others: LockWaits) {
        self.locks = self.locks.saturating_add(others.locks);
        self.locks_ns = self.locks_ns.saturating_add(others.locks_ns);
        self.commits = self.commits.saturating_add(others.commits);
        self.commits_ns = self.commits_ns.saturating_add(others.commits_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_add_up_and_do_not_overflow() {
        let mut sum = LockWaits { locks: u32::MAX, commits_ns: u64::MAX, ..LockWaits::default() };
        sum.add(LockWaits { locks: 2, locks_ns: 3, commits: 4, commits_ns: 5 });
        assert_eq!(sum, LockWaits { locks: u32::MAX, locks_ns: 3, commits: 4, commits_ns: u64::MAX });
    }
}
