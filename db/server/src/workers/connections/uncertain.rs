//! The ways in which the waits of answers may end: their order, and failure.

use sandstorm_dialects::UncertainAnswer;
use sandstorm_log::waits_for_copies;
use sandstorm_store::backed::waits::{WaitState, is_wait, state_of};

/// Whether a wait may end before those that began sooner, and after those that began later: one for the backing of a
/// table, or for copies.
pub(super) fn ends_in_any_order(position: u64) -> bool {
    is_wait(position) || waits_for_copies(position)
}

/// What an answer has waited for in vain.
pub(super) fn uncertain_of(position: u64) -> UncertainAnswer {
    match is_wait(position) && state_of(position) == WaitState::Failed {
        true => UncertainAnswer::Backing,
        false => UncertainAnswer::Log,
    }
}
