//! A request of a load on its way through its steps.

use super::class::Class;

/// A request on its way through its steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadRequest {
    pub(super) class: Class,
    pub(super) id: u64,
    /// Of a chase by gets: hops done; of whatever else takes several gets, or a get and a put: steps done.
    pub(super) step: u32,
    /// Of a scan: its records; of an auth: 1 if the password is wrong; of a get or delete: 1 if there is no such
    /// record; of a transfer: where it goes to; of a graph's request: what else is drawn.
    pub(super) twist: u32,
    /// When it was meant to be sent, in nanoseconds since the run's start.
    pub(super) intended_ns: u64,
    /// Whether to check its reply.
    pub(super) verify: bool,
}

/// What the reply to an [`LoadRequest`] means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyVerdict {
    /// It is done, and the reply, if checked, is right.
    Done,
    /// It goes on with another step.
    NextStep,
    /// The reply is wrong.
    Wrong,
}
