//! What a device beside the kernel tells of itself.

use std::fmt;

use super::{Metric, Reading, counter, gauge, readings};

/// How a device stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// The other end is there.
    pub up: bool,
    /// The other end is a process (memif): it comes and goes.
    pub comes_and_goes: bool,
    /// What ends the sleep of an idle worker when a packet comes: `interrupt`, or `clock` and why.
    pub wakes: String,
    /// Packets lost because a receive queue was full.
    pub missed: u64,
    /// Packets lost because there was no buffer for them.
    pub no_buffer: u64,
    /// Packets that came damaged.
    pub receive_errors: u64,
    /// Packets that could not be sent.
    pub send_errors: u64,
    /// Packet buffers that are kept now.
    pub kept: u64,
    /// Packets that were copied since as many buffers were kept as may be, or were to wait as copies.
    pub not_kept: u64,
    /// Interrupts that workers had asked for and that came.
    pub interrupts: u64,
}

/// Asks a device how it stands. None: it is closed.
pub type AskDevice = Box<dyn Fn() -> Option<DeviceState> + Send + Sync>;

/// What is read from a device, on servers with one.
pub const DEVICE: &[Metric] = &[
    gauge(
        "device_link_up",
        "1 while the other end of the network device is there; 0 while it is not, or the device is gone.",
    ),
    counter(
        "device_missed",
        "Packets that the device lost because a receive queue was full; in `packets_dropped_early`, too.",
    ),
    counter("device_no_buffer", "Packets that the device lost for want of a buffer; in `packets_dropped_early`, too."),
    counter("device_receive_errors", "Packets that came to the device damaged."),
    counter("device_send_errors", "Packets that the device could not send."),
    gauge(
        "device_kept_buffers",
        "Packet buffers that are kept as the place of large values, or wait to be served (`[net] kept_buffers`).",
    ),
    counter(
        "device_not_kept",
        "Large packets that were copied since as many buffers were kept as may be, or they had to wait and who sent them is a stranger or had its part.",
    ),
    counter("device_interrupts", "Interrupts that sleeping workers had asked the device for, and that came."),
];

impl DeviceState {
    /// The readings of [`DEVICE`].
    pub fn readings(&self) -> Vec<Reading> {
        let DeviceState { up, missed, no_buffer, receive_errors, send_errors, kept, not_kept, interrupts, .. } = *self;
        let values = [u64::from(up), missed, no_buffer, receive_errors, send_errors, kept, not_kept, interrupts];
        readings(DEVICE, values.into_iter().map(|value| vec![value]).collect())
    }
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.up { "link up" } else { "LINK DOWN: nobody is at the other end, or the device is gone" })?;
        let DeviceState { missed, no_buffer, receive_errors, send_errors, .. } = *self;
        for (count, what) in [
            (missed, "lost in full queues"),
            (no_buffer, "lost for want of buffers"),
            (receive_errors, "came damaged"),
            (send_errors, "could not be sent"),
        ] {
            if count > 0 {
                write!(f, ", {count} packets {what}")?;
            }
        }
        write!(f, "; wakes: {}", self.wakes)
    }
}

/// What the workers' datagrams come and go through.
pub(super) struct Network {
    pub(super) about: String,
    pub(super) device: Option<AskDevice>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("about", &self.about).finish_non_exhaustive()
    }
}
