//! Rules of a replica in a stream that tests break on purpose, to see that it is found.

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRule {
    /// A message is added behind the one that its sender has read last, or not at all.
    MessagesAreCompared,
    /// What is needed stays when what is before a checkpoint is purged.
    PurgesLeaveWhatIsNeeded,
}

#[cfg(test)]
thread_local! {
    static BROKEN: std::cell::Cell<Option<StreamRule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule on this thread, or none.
#[cfg(test)]
pub(crate) fn break_rule(rule: Option<StreamRule>) {
    BROKEN.set(rule);
}

/// Whether a rule is broken on this thread.
#[cfg(test)]
pub(crate) fn is_broken(rule: StreamRule) -> bool {
    BROKEN.get() == Some(rule)
}

/// Whether a rule is broken on this thread: none is outside of tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn is_broken(_rule: StreamRule) -> bool {
    false
}
