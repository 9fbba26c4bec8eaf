//! Rules of reading a log again that tests break on purpose, to see that it is found.

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryRule {
    /// Half a unit at the end is dropped.
    UnitsAreWhole,
    /// What a later frame says to have been on the disk is damaged if it is not there.
    PromisedIsThere,
    /// A segment goes on where the one before ends, and that one is there up to its end.
    SegmentsGoOn,
    /// The log is there up to the position of its checkpoint at least.
    CheckpointBoundIsThere,
    /// The first segment begins at the position of the checkpoint, or before it.
    NeededSegmentsAreThere,
    /// What is not known to be on the disk is written again before it is shown.
    TailIsWrittenAgain,
}

#[cfg(test)]
thread_local! {
    static BROKEN: std::cell::Cell<Option<RecoveryRule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule on this thread, or none.
#[cfg(test)]
pub(crate) fn break_rule(rule: Option<RecoveryRule>) {
    BROKEN.set(rule);
}

/// Whether a rule is broken on this thread.
#[cfg(test)]
pub(crate) fn is_broken(rule: RecoveryRule) -> bool {
    BROKEN.get() == Some(rule)
}

/// Whether a rule is broken on this thread: none is outside of tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn is_broken(_rule: RecoveryRule) -> bool {
    false
}
