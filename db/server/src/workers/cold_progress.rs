//! The cold records of a message that is being run.

use std::cell::{Cell, RefCell};

use sandstorm_accounts::RequestWaits;
use sandstorm_log::LogRefusal;
use sandstorm_net::rpc::{OpKind, RpcStatus};
use sandstorm_store::Participant;
use sandstorm_store::spill::{ColdMiss, SpillReadError};

use super::cold_wait::ColdWait;
use super::waits::add_cold_wait;
use crate::limits::COLD_TRIES;

/// The answer to an operation whose records leave memory again before it is run.
const NOT_KEPT_TEXT: &str =
    "the record was read from the disk and left memory again before it was used: the table's memory is too small";

/// The status of an operation whose records cannot be read.
fn read_error_status(error: SpillReadError) -> RpcStatus {
    match error {
        // The log's disk is only slow: the client may ask again.
        SpillReadError::NotLogged(LogRefusal::Busy | LogRefusal::Stalled) => RpcStatus::Overloaded,
        _ => RpcStatus::NotRead,
    }
}

/// The cold records of a message that is being run.
#[derive(Default)]
pub(super) struct ColdProgress {
    /// The operation that has met some.
    parked_at: Cell<Option<usize>>,
    misses: RefCell<Vec<ColdMiss>>,
    /// Why records of the first operation could not be read.
    error: Cell<Option<SpillReadError>>,
    tries: Cell<u32>,
    /// What the message has waited for so far.
    waited: Option<Box<RequestWaits>>,
}

impl ColdProgress {
    /// Continues a message that has waited, at `now_ns` of the workers' clock.
    pub(super) fn resumed(wait: ColdWait, now_ns: u64) -> ColdProgress {
        let ColdWait { ticket, tries, since_ns, mut waited } = wait;
        if let Some(ticket) = &ticket {
            add_cold_wait(waited.get_or_insert_default(), ticket, now_ns.saturating_sub(since_ns));
        }
        let error = ticket.and_then(|ticket| ticket.error());
        ColdProgress { error: Cell::new(error), tries: Cell::new(tries), waited, ..ColdProgress::default() }
    }

    /// What the message has waited for, if it has.
    #[inline]
    pub(super) fn waited(&self) -> Option<&RequestWaits> {
        self.waited.as_deref()
    }

    /// The operation at which the message waits, if it does.
    pub(super) fn parked_at(&self) -> Option<usize> {
        self.parked_at.get()
    }

    /// Parks the message at an operation that has just met cold records, or returns why that is refused.
    pub(super) fn park(&self, participant: &Participant, index: usize) -> Option<(RpcStatus, String)> {
        let misses = participant.shown().take_cold();
        if let Some(error) = self.error.take() {
            self.tries.set(0);
            return Some((read_error_status(error), error.to_string()));
        }
        if self.tries.get() >= COLD_TRIES {
            self.tries.set(0);
            return Some((RpcStatus::Overloaded, NOT_KEPT_TEXT.to_owned()));
        }
        self.tries.set(self.tries.get() + 1);
        self.misses.borrow_mut().extend(misses);
        self.parked_at.set(Some(index));
        None
    }

    /// Adds what a later operation of the message will meet.
    pub(super) fn foresee(&self, participant: &Participant) {
        self.misses.borrow_mut().extend(participant.shown().take_cold());
    }

    /// Notes that an operation was run.
    pub(super) fn passed(&self) {
        if self.tries.get() != 0 {
            self.tries.set(0);
        }
    }

    /// Has the records read that the message of the tenant `reader` waits for. `wake`: called from any thread when it
    /// need not wait any more.
    pub(super) fn wait(self, reader: u32, since_ns: u64, wake: impl Fn() + Send + Sync + 'static) -> ColdWait {
        let is_parked = self.parked_at.get().is_some();
        let ticket = is_parked.then(|| ColdMiss::fetch(self.misses.take(), reader, wake));
        ColdWait { ticket, tries: self.tries.get(), since_ns, waited: self.waited }
    }
}

/// Whether an operation only reads the record under its key: then it can be foreseen that it waits.
pub(super) fn can_foresee(op: OpKind) -> bool {
    matches!(op, OpKind::Get | OpKind::Ttl)
}

#[cfg(test)]
mod tests {
    use sandstorm_store::Epochs;

    use super::*;

    #[test]
    fn a_record_that_waits_for_a_slow_log_is_not_one_that_cannot_be_read() {
        let participant = Epochs::new().register();
        for (error, status) in [
            (SpillReadError::NotLogged(LogRefusal::Busy), RpcStatus::Overloaded),
            (SpillReadError::NotLogged(LogRefusal::Stalled), RpcStatus::Overloaded),
            (SpillReadError::NotLogged(LogRefusal::Closed), RpcStatus::NotRead),
            (SpillReadError::BackingDown, RpcStatus::NotRead),
        ] {
            let waited = ColdProgress { error: Cell::new(Some(error)), ..ColdProgress::default() };
            assert_eq!(waited.park(&participant, 0), Some((status, error.to_string())));
        }
    }
}
