//! Interrupts of a port, for a worker that is about to sleep. It arms the interrupt, polls the port once more, sleeps,
//! and then disarms it.
//!
//! A frame that came before the interrupt was armed may bring none, so a worker polls between arming and sleeping. This
//! module also detects a port whose interrupts do not come, or come without a frame. A sleep never lasts longer than
//! [`ARMED_SLEEP_US`]. After some sleeps in a row that ended at this limit although frames were there, the worker
//! sleeps by the clock again.

use super::FramePort;
use super::interrupt_fault::InterruptFault;
use crate::limits::{ARMED_SLEEP_US, INTERRUPTS_FOR_NOTHING, INTERRUPTS_MISSED};

/// The progress on the way to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArmState {
    /// No interrupt is armed.
    Off,
    /// An interrupt is armed. The port has to be polled once more.
    Armed,
    /// The port was polled at this time, and had no frame.
    Polled { at_us: u64 },
    /// So the waiting thread was allowed to sleep.
    Asleep { since_us: u64 },
}

/// The state of one port's interrupt. See the module.
#[derive(Debug)]
pub(super) struct InterruptArming {
    state: ArmState,
    /// The port offers interrupts, and they were not forgone.
    offered: bool,
    /// Sleeps in a row that frames did not end.
    missed: u32,
    /// Interrupts in a row without a frame.
    spurious: u32,
}

impl InterruptArming {
    /// Creates the state for a port that offers interrupts, or does not.
    pub(super) fn new(offered: bool) -> InterruptArming {
        InterruptArming { state: ArmState::Off, offered, missed: 0, spurious: 0 }
    }

    /// Returns whether an interrupt ends the sleep that is about to begin.
    pub(super) fn is_set(&self) -> bool {
        matches!(self.state, ArmState::Polled { .. } | ArmState::Asleep { .. })
    }

    /// Prepares a sleep, which is expected to be long if `long`. Returns false if the port is to be polled once more
    /// first.
    pub(super) fn may_sleep(&mut self, port: &mut impl FramePort, long: bool) -> bool {
        match self.state {
            ArmState::Off if self.offered && long => {
                // An interrupt that came for an earlier request is not for this one.
                port.interrupted();
                if port.arm() {
                    self.state = ArmState::Armed;
                } else {
                    self.forgo(port, InterruptFault::Refused);
                }
                self.state != ArmState::Armed
            }
            ArmState::Armed => false,
            ArmState::Polled { at_us } => {
                self.state = ArmState::Asleep { since_us: at_us };
                true
            }
            ArmState::Off | ArmState::Asleep { .. } => true,
        }
    }

    /// Records that the port was polled and had so many frames.
    pub(super) fn after_poll(&mut self, port: &mut impl FramePort, now_us: u64, frames: usize) {
        let slept_us = match self.state {
            ArmState::Off => return,
            // The worker has not slept since: a frame that has come by now ends the next sleep at once.
            ArmState::Polled { .. } if frames == 0 => return self.state = ArmState::Polled { at_us: now_us },
            ArmState::Armed | ArmState::Polled { .. } => None,
            ArmState::Asleep { since_us } => Some(now_us.saturating_sub(since_us)),
        };
        let interrupted = port.interrupted();
        if frames == 0 && !interrupted {
            self.state = ArmState::Polled { at_us: now_us };
            if slept_us.is_some() {
                self.spurious = 0;
            }
            return;
        }
        port.disarm();
        self.state = ArmState::Off;
        match (frames > 0, interrupted) {
            (true, true) => (self.missed, self.spurious) = (0, 0),
            (false, _) => self.spurious += 1,
            // A worker that another thread has woken may be quicker than the interrupt.
            (true, false) if slept_us.is_some_and(|us| us >= ARMED_SLEEP_US) => self.missed += 1,
            (true, false) => {}
        }
        if self.missed >= INTERRUPTS_MISSED {
            self.forgo(port, InterruptFault::Missed);
        } else if self.spurious >= INTERRUPTS_FOR_NOTHING {
            self.forgo(port, InterruptFault::Spurious);
        }
    }

    fn forgo(&mut self, port: &mut impl FramePort, why: InterruptFault) {
        (self.offered, self.state) = (false, ArmState::Off);
        port.forgo_interrupts(why);
    }
}
