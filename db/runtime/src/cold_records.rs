//! Calls that meet records on the disk, in tables larger than memory: the invocation answers pending, and is polled
//! again once they are in memory.

use sandstorm_api::abi;
use sandstorm_store::spill::{ColdMiss, SpillReadError};
use sandstorm_store::{EpochGuard, Participant, RecordRef, RecordTable, StoreError};

use super::host_call::store_error_status;
use super::invocation::{InvocationHandle, InvocationState, NO_LATE_POLLS};
use super::invocation_trace::ColdWaits;

/// Where a scan goes on, and how it is to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanFrom {
    pub(super) position: u64,
    /// What the cursor says beside its position.
    pub(super) finished: u64,
    pub(super) limit: usize,
    pub(super) now_ms: u64,
    /// The status where it has to wait for the disk.
    pub(super) cold_status: u32,
}

/// Shows the next records of a scan to `f`, and returns where it goes on; `None`: that was the whole table.
///
/// # Errors
/// The status: it waits for the disk, and what `f` was shown does not count; or it would pass records over.
pub(super) fn scan_table<'g>(
    (table, guard): (&'g RecordTable, &'g EpochGuard<'_>),
    participant: &Participant,
    from: ScanFrom,
    f: &mut dyn FnMut(RecordRef<'g>),
) -> Result<Option<u64>, u32> {
    let ScanFrom { position, finished, limit, now_ms, cold_status } = from;
    if !table.is_partial() {
        return Ok(table.scan(guard, position, limit, now_ms, f));
    }
    if table.has_backing() || finished != abi::CURSOR_WAITS {
        return Err(abi::STATUS_NOT_SCANNED);
    }
    let next = table.scan_awaited((guard, participant.shown()), (position, limit), now_ms, f);
    if participant.shown().has_cold() { Err(cold_status) } else { Ok(next) }
}

impl InvocationState {
    /// Returns the status of a call that has met a cold record, and notes where, if a look is under way.
    #[cold]
    pub(super) fn met_cold(&self) -> u32 {
        self.note_look();
        self.cold_status()
    }

    /// Returns the status of a store's error. A cold record that was met is noted, as in [`Self::met_cold`].
    #[cold]
    pub(super) fn write_status(&self, error: StoreError) -> u32 {
        if error == StoreError::Cold { self.met_cold() } else { store_error_status(error) }
    }

    /// Returns the status of a call that meets a cold record. Nothing is noted: it may meet none.
    #[cold]
    pub(super) fn cold_status(&self) -> u32 {
        match self.shown.cold_failure() {
            None => abi::STATUS_COLD,
            // It may be read later.
            Some(SpillReadError::NoMemory) => abi::STATUS_OUT_OF_MEMORY,
            Some(_) => abi::STATUS_NOT_READ,
        }
    }

    /// Notes where the code is that is about to wait, if a look was requested.
    #[cold]
    pub(super) fn note_look(&self) {
        if let Some(look) = &self.notes.look {
            look.note();
        }
    }

    /// The same, of a call that was answered so.
    #[cold]
    pub(super) fn note_if(&self, is_cold: bool) {
        if is_cold {
            self.note_look();
        }
    }

    /// Returns the status of a call that has found nothing: it may have met a cold record.
    #[inline(always)]
    pub(super) fn absent_status(&self) -> u32 {
        if self.shown.has_cold() { self.met_cold() } else { abi::STATUS_NOT_FOUND }
    }

    /// Ends a poll: takes what its writes have met. If these operations have failed, nothing is waited for.
    pub(super) fn end_cold_calls(&mut self, participant: &Participant) {
        self.shown.take_cold_of(participant.shown());
        if self.shown.take_cold_failed() {
            self.shown.take_cold();
        }
    }
}

impl InvocationHandle {
    /// Returns the cold records that its last poll has met, if it waits for them: they are to be in memory before the
    /// next one.
    pub fn take_cold(&mut self) -> Vec<ColdMiss> {
        let body = self.body_mut();
        let own = if body.shown.has_cold() { body.shown.take_cold() } else { Vec::new() };
        match body.calls.as_mut().and_then(|calls| calls.callee.as_mut()) {
            // Its caller waits with it.
            Some(callee) => [own, callee.take_cold()].concat(),
            None => own,
        }
    }

    /// Notes that it has waited for these so long; `is_backing`: any of them was behind its table, in a backing.
    pub fn note_cold_wait(&mut self, waited_ns: u64, is_backing: bool) {
        let ColdWaits { waits, disk_ns, backing_ns } = &mut self.body_mut().cold;
        *waits = waits.saturating_add(1);
        let sum_ns = if is_backing { backing_ns } else { disk_ns };
        *sum_ns = sum_ns.saturating_add(waited_ns);
    }

    /// Has its next poll end it if much memory waits to be freed then, and it is under way for too long: it waits for
    /// its quota, and what it has read must not be freed meanwhile. If that is over by then, nothing comes of it.
    pub fn give_no_late_polls(&mut self) {
        let body = self.body_mut();
        body.late_polls = NO_LATE_POLLS;
        if let Some(callee) = body.calls.as_mut().and_then(|calls| calls.callee.as_mut()) {
            callee.give_no_late_polls();
        }
    }

    /// Notes why one of these could not be read: calls that meet one in the next poll say so.
    pub fn set_cold_failed(&mut self, why: SpillReadError) {
        let body = self.body_mut();
        body.shown.set_cold_failed(why);
        if let Some(callee) = body.calls.as_mut().and_then(|calls| calls.callee.as_mut()) {
            callee.set_cold_failed(why);
        }
    }
}
