//! Interrupts of a port, for a worker that is about to sleep: armed, then looked at the port once more, then slept,
//! then called off.
//!
//! A frame that came before the interrupt was asked for may bring none, so nobody sleeps between the two without a
//! look. And a port whose interrupts do not come, or come for nothing, is found out: a sleep never lasts longer than
//! [`ARMED_SLEEP_US`], and after some in a row that were ended so although frames were there the worker sleeps by the
//! clock again.

use super::FramePort;
use super::interrupt_fault::InterruptFault;
use crate::limits::{ARMED_SLEEP_US, INTERRUPTS_FOR_NOTHING, INTERRUPTS_MISSED};

/// How far the way to sleep has been gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArmState {
    /// Nobody waits for an interrupt.
    Off,
    /// One was asked for. The port has to be looked at once more.
    Armed,
    /// It was, at this time, and nothing was there.
    Polled { at_us: u64 },
    /// So whoever waits was let sleep.
    Asleep { since_us: u64 },
}

/// See the module.
#[derive(Debug)]
pub(super) struct InterruptArming {
    state: ArmState,
    /// There are interrupts, and they were not forgone.
    offered: bool,
    /// Sleeps in a row that frames did not end.
    missed: u32,
    /// Interrupts in a row without a frame.
    spurious: u32,
}

impl InterruptArming {
    /// For a port that offers interrupts, or does not.
    pub(super) fn new(offered: bool) -> InterruptArming {
        InterruptArming { state: ArmState::Off, offered, missed: 0, spurious: 0 }
    }

    /// Whether an interrupt ends the sleep that is about to begin.
    pub(super) fn is_set(&self) -> bool {
        matches!(self.state, ArmState::Polled { .. } | ArmState::Asleep { .. })
    }

    /// Whoever waits is about to sleep, and has reason to do so for long if `long`. False: the port is to be looked at
    /// once more before.
    pub(super) fn may_sleep(&mut self, port: &mut impl FramePort, long: bool) -> bool {
        match self.state {
            ArmState::Off if self.offered && long => {
                // What came for an earlier one is not for this one.
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

    /// The port was looked at, and so many frames were there.
    pub(super) fn looked(&mut self, port: &mut impl FramePort, now_us: u64, frames: usize) {
        let slept_us = match self.state {
            ArmState::Off => return,
            // It did not sleep since: what has come by now ends the next sleep at once.
            ArmState::Polled { .. } if frames == 0 => return self.state = ArmState::Polled { at_us: now_us },
            ArmState::Armed | ArmState::Polled { .. } => None,
            ArmState::Asleep { since_us } => Some(now_us.saturating_sub(since_us)),
        };
        let came = port.interrupted();
        if frames == 0 && !came {
            self.state = ArmState::Polled { at_us: now_us };
            if slept_us.is_some() {
                self.spurious = 0;
            }
            return;
        }
        port.disarm();
        self.state = ArmState::Off;
        match (frames > 0, came) {
            (true, true) => (self.missed, self.spurious) = (0, 0),
            (false, _) => self.spurious += 1,
            // One that somebody else has woken may be quicker than the interrupt.
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
