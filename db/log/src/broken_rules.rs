//! Rules of reading a log again, and of replicas, that tests break on purpose, to see that it is found.

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

/// A rule of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaRule {
    /// Nothing of an earlier epoch is taken.
    EarlierEpochsAreRefused,
    /// What is sealed takes nothing any more.
    SealsAreForGood,
    /// An epoch and a seal are on the disk before the answer.
    PromisesAreOnDisk,
    /// What was taken is on the disk before the answer.
    ConfirmedIsOnDisk,
    /// A frame follows the last one.
    FramesFollow,
    /// A file that comes once more ends no earlier than it did.
    ReplacementsEndNoEarlier,
    /// What is trimmed is superfluous.
    TrimsLeaveACheckpoint,
}

#[cfg(test)]
thread_local! {
    static BROKEN_OF_REPLICAS: std::cell::Cell<Option<ReplicaRule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule of replicas on this thread, or none.
#[cfg(test)]
pub(crate) fn break_replica_rule(rule: Option<ReplicaRule>) {
    BROKEN_OF_REPLICAS.set(rule);
}

/// Whether a rule of replicas is broken on this thread.
#[cfg(test)]
pub(crate) fn is_replica_broken(rule: ReplicaRule) -> bool {
    BROKEN_OF_REPLICAS.get() == Some(rule)
}

/// Whether a rule of replicas is broken on this thread: none is outside of tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn is_replica_broken(_rule: ReplicaRule) -> bool {
    false
}
