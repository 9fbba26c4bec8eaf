//! Counts each command for `stats`, as memcached does: a get that gives a new time counts as a touch alone.

use super::super::NextAction;
use super::MemcachedSession;
use super::answers::{NOT_FOUND, store_error_text};
use super::context::MemcachedContext;
use sandstorm_accounts::Tally;
use sandstorm_store::StoreError;

impl MemcachedSession {
    /// Counts a connection's turn for its tenant: the used bytes, and the end of the answers.
    pub(super) fn tally(&mut self, work: &MemcachedContext<'_>, (used, end): (usize, usize), next: &NextAction) {
        let Some(tallies) = work.tallies else { return };
        tallies.add(Tally::BytesRead, used as u64);
        tallies.add(Tally::BytesWritten, (end - work.begun) as u64);
        if *next == NextAction::Yield {
            tallies.add(Tally::Yields, 1);
        }
        if !std::mem::replace(&mut self.counted, true) {
            tallies.add(Tally::WorkerConnections, 1);
        }
    }
}

impl MemcachedContext<'_> {
    /// Adds to a count of `stats`.
    #[inline]
    pub(super) fn tally(&self, tally: Tally) {
        if let Some(tallies) = self.tallies {
            tallies.add(tally, 1);
        }
    }

    /// Counts a hit or a miss.
    #[inline]
    pub(super) fn count_found(&self, found: bool, hit: Tally, miss: Tally) {
        if self.has_cold() {
            return;
        }
        self.tally(if found { hit } else { miss });
    }

    /// Counts a write that the store refused. Returns the text of the error.
    #[cold]
    pub(super) fn refused(&self, error: StoreError) -> &'static str {
        match error {
            StoreError::OutOfMemory
            | StoreError::ReclaimPressure
            | StoreError::NotSpilled(_)
            | StoreError::NotBacked(_) => self.tally(Tally::StoreNoMemory),
            StoreError::ValueTooLarge => self.tally(Tally::StoreTooLarge),
            _ => {}
        }
        self.error_text(error)
    }

    /// The text of a store's error.
    #[cold]
    pub(super) fn error_text(&self, error: StoreError) -> &'static str {
        if error == StoreError::WrongServer { self.wrong_server() } else { store_error_text(error) }
    }

    /// Counts a compare-and-set by its result.
    pub(super) fn count_cas(&self, error: Option<&'static str>) {
        self.tally(match error {
            None => Tally::CasHits,
            Some(NOT_FOUND) => Tally::CasMisses,
            Some(_) => Tally::CasBad,
        });
    }

    /// Counts an increment or decrement, which created its record or not.
    pub(super) fn count_arithmetic(&self, up: bool, made: Result<bool, &'static str>) {
        match made {
            Ok(false) => self.tally(if up { Tally::IncrHits } else { Tally::DecrHits }),
            Ok(true) => self.tally(Tally::Stored),
            Err(NOT_FOUND) => self.tally(if up { Tally::IncrMisses } else { Tally::DecrMisses }),
            Err(_) => {}
        }
    }
}
