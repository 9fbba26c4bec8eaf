//! What a request waited for beside its turn: records that were not in memory, and, once it was done, the log, its
//! copies or a backing, which must have its changes before its answer may leave.

use sandstorm_accounts::RequestWaits;
use sandstorm_log::waits_for_copies;
use sandstorm_store::backed::waits::is_wait;
use sandstorm_store::spill::ColdTicket;

/// Adds the wait of an answer for a position.
pub(super) fn add_answer_wait(waits: &mut RequestWaits, position: u64, ns: u64) {
    let part = match position {
        position if is_wait(position) => &mut waits.backed_ns,
        position if waits_for_copies(position) => &mut waits.copies_ns,
        _ => &mut waits.log_ns,
    };
    *part += ns;
}

/// Adds the wait for records that a ticket stands for.
pub(super) fn add_cold_wait(waits: &mut RequestWaits, ticket: &ColdTicket, ns: u64) {
    let part = if ticket.has_backing() { &mut waits.backing_ns } else { &mut waits.disk_ns };
    *part += ns;
}
