//! The wait of a message that has met cold records.

use std::sync::Arc;

use sandstorm_accounts::RequestWaits;
use sandstorm_store::spill::ColdTicket;

/// What a message waits for, and how often it has waited at its operation.
#[derive(Debug, Default)]
pub(super) struct ColdWait {
    pub(super) ticket: Option<Arc<ColdTicket>>,
    pub(super) tries: u32,
    /// Since when, in the workers' nanoseconds.
    pub(super) since_ns: u64,
    /// What its message has waited for before.
    pub(super) waited: Option<Box<RequestWaits>>,
}

impl ColdWait {
    /// Whether it waits for records.
    pub(super) fn is_cold(&self) -> bool {
        !self.is_over()
    }

    pub(super) fn is_over(&self) -> bool {
        self.ticket.as_ref().is_none_or(|ticket| ticket.is_done())
    }
}
