//! A request of a load, and its progress through its steps.

use super::class::Class;

/// A request, and its progress through its steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadRequest {
    pub(super) class: Class,
    pub(super) id: u64,
    /// For a chase by gets: hops done. For other classes of several gets, or a get and a put: steps done.
    pub(super) step: u32,
    /// For a scan: the number of its records. For an auth: 1 if the password is wrong. For a get or delete: 1 if there
    /// is no such record. For a transfer: its target. For a graph's request: a further drawn number.
    pub(super) twist: u32,
    /// The time at which it was meant to be sent, in nanoseconds since the run's start.
    pub(super) intended_ns: u64,
    /// True if its reply is to be checked.
    pub(super) verify: bool,
    /// Times that it was sent on to another server of a cluster.
    pub(super) hops: u8,
}

/// The meaning of the reply to a [`LoadRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyVerdict {
    /// It is done, and the reply, if checked, is right.
    Done,
    /// It goes on with another step.
    NextStep,
    /// The reply is wrong.
    Wrong,
}
