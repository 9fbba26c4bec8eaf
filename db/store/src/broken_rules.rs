//! Rules of the log, and of copies for other servers, that tests break on purpose, to see that they are found.

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRule {
    /// A reader of a record, or of its absence, gets its position.
    ReadsAreNoted,
    /// A reader of many records gets the table's position.
    WholeReadsAreNoted,
    /// A writer of a record gets the position of what is there then.
    WritesAreNoted,
    /// A writer that is refused gets the position of what was there, too.
    RefusalsAreNoted,
    /// A writer of several changes at once gets their unit's position.
    UnitsAreNoted,
    /// A reader waits until what it has read is in the log.
    UnitsAreWaitedFor,
    /// Of a key's changes that are made again the one with the highest version wins.
    HigherVersionWins,
    /// A start skips the versions that a crash may have taken.
    VersionsLeaveAGap,
    /// That a record of the disk is removed is noted while its slot is copied to another server.
    ColdRemovalsAreCopied,
    /// What was read from the disk is copied only if the table has it still.
    ColdReadsAreChecked,
}

#[cfg(test)]
thread_local! {
    static BROKEN: std::cell::Cell<Option<LogRule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule on this thread, or none.
#[cfg(test)]
pub(crate) fn break_rule(rule: Option<LogRule>) {
    BROKEN.set(rule);
}

/// Whether a rule is broken on this thread.
#[cfg(test)]
pub(crate) fn is_broken(rule: LogRule) -> bool {
    BROKEN.get() == Some(rule)
}

/// Whether a rule is broken on this thread: none is outside of tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn is_broken(_rule: LogRule) -> bool {
    false
}
