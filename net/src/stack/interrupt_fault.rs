//! Reasons to stop waiting for interrupts.

use crate::limits::{INTERRUPTS_FOR_NOTHING, INTERRUPTS_MISSED};
use thiserror::Error;

/// The reason why a port's interrupts are not waited for any more.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InterruptFault {
    /// The port rejected the request.
    #[error("the device rejected the request for an interrupt")]
    Refused,
    /// Frames were there, but no interrupt had come.
    #[error("{INTERRUPTS_MISSED} times in a row packets were there without an interrupt")]
    Missed,
    /// Interrupts came, but no frame was there.
    #[error("{INTERRUPTS_FOR_NOTHING} times in a row an interrupt came without a packet")]
    Spurious,
}

impl InterruptFault {
    /// All faults.
    pub const ALL: [InterruptFault; 3] = [InterruptFault::Refused, InterruptFault::Missed, InterruptFault::Spurious];
}
