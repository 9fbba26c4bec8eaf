//! Rules of the agreement on slots that models break on purpose, to show that they find what follows.

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberRule {
    /// A map is founded only where there is none.
    FoundingCompares,
    /// A change of the map by a move compares the map's revision.
    MovesCompare,
    /// A server that starts serves slots that it was giving away only once it has changed the map.
    MovesAreTakenUp,
    /// Slots whose last records are copied are not served.
    FrozenIsNotServed,
    /// Slots that may have been handed over are not served again.
    WhatIsSentStaysFrozen,
    /// A copy does not begin anew while the one before it is handed over.
    NoneBeginsWhileHandedOver,
    /// A copy begins with nothing.
    CopiesBeginEmpty,
    /// Keys that change while they are copied are copied again.
    ChangesAreCopied,
    /// Keys that are removed while they are copied are removed there, too.
    RemovalsAreCopied,
    /// What was copied of a table before it was emptied is removed.
    EmptiedIsCopied,
    /// A change of a server's copies compares the map's revision.
    GenerationsCompare,
    /// A server that starts counts on no copies before it has changed their generation.
    GenerationsAreTakenUp,
    /// A copy is one of a generation only once it has all that was acknowledged.
    NewCopiesHoldAll,
    /// What a generation that was sent will need is needed from then on.
    SentCopiesAreNeeded,
    /// All copies of a generation confirm what is acknowledged.
    AllCopiesConfirm,
    /// A copy for which there is no room has no more than before, though it confirms that.
    #[cfg(test)]
    FullCopiesHoldNoMore,
    /// A copy is sealed before it is read.
    #[cfg(test)]
    CopiesAreSealedFirst,
    /// What is read is shown only within the lease that all copies have given.
    #[cfg(test)]
    ReadsNeedALease,
    /// A copy is made by the link that begins with it; one that is missed is never made again.
    #[cfg(test)]
    OnlyNewCopiesAreMade,
    /// A server whose place was taken never shows what has waited before.
    LostPlacesEndWaits,
    /// What a server has handed over it does not remove while it takes the place of the one that has it.
    InheritedStays,
    /// A server that was stopped knows nothing of the others when it wakes.
    SleepersForget,
    /// A server that was stopped does not take a place that it wanted before.
    SuccessionRequestsEnd,
    /// A copy that is sealed is read only when the leases that it gave are over.
    #[cfg(test)]
    LeasesAreWaitedFor,
}

#[cfg(test)]
thread_local! {
    pub(crate) static BROKEN: std::cell::Cell<Option<MemberRule>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
pub(crate) fn is_broken(rule: MemberRule) -> bool {
    BROKEN.get() == Some(rule)
}

#[cfg(not(test))]
pub(crate) fn is_broken(_rule: MemberRule) -> bool {
    false
}
