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
