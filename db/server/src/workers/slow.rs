//! A request that took longer than the threshold.

use sandstorm_accounts::{RequestSubject, RequestWaits};
use sandstorm_metrics::histogram::RequestClass;

/// A slow request, or several of one tenant that were answered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlowAnswer {
    /// The tenant's id.
    pub(super) tenant: u32,
    pub(super) class: RequestClass,
    /// What it is about; of several, the first.
    pub(super) subject: RequestSubject,
    pub(super) count: u64,
    pub(super) waiting_ns: u64,
    pub(super) service_ns: u64,
    /// What it waited for beside its turn; of several, the first.
    pub(super) waits: RequestWaits,
}
