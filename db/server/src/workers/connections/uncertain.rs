//! What answers have waited for in vain.

use sandstorm_dialects::UncertainAnswer;
use sandstorm_store::backed::waits::{WaitState, is_wait, state_of};

/// What an answer has waited for in vain.
pub(super) fn uncertain_of(position: u64) -> UncertainAnswer {
    match is_wait(position) && state_of(position) == WaitState::Failed {
        true => UncertainAnswer::Backing,
        false => UncertainAnswer::Log,
    }
}
