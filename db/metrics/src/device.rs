//! The state of a kernel-bypass device.

use std::fmt;

use super::{MetricReading, MetricSpec, counter, gauge, readings};

/// The state of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Whether the link is up.
    pub up: bool,
    /// Whether the other end is a process (memif), which comes and goes.
    pub is_peer_process: bool,
    /// The event that ends the sleep of an idle worker when a packet comes: `interrupt`, or `clock` and the reason.
    pub wakes: String,
    /// Packets lost because a receive queue was full.
    pub missed: u64,
    /// Packets lost because there was no buffer for them.
    pub no_buffer: u64,
    /// Packets that came damaged.
    pub receive_errors: u64,
    /// Packets that could not be sent.
    pub send_errors: u64,
    /// Packet buffers that store values now.
    pub rx_retained: u64,
    /// Packets that were copied because the limit of stored buffers was reached, or because they had to wait as copies.
    pub rx_copied: u64,
    /// Packets whose last bytes were sent in place, from their record.
    pub in_place: u64,
    /// Packets whose last bytes were copied, although their record could have been read in place.
    pub copied: u64,
    /// Bytes of tables that the device reads by itself.
    pub reads_bytes: u64,
    /// The reason that no more memory of tables was mapped for it; none: all is mapped.
    pub refused: Option<String>,
    /// Interrupts that workers had asked for.
    pub interrupts: u64,
}

/// Reads the state of a device. `None` if it is closed.
pub type DeviceProbe = Box<dyn Fn() -> Option<DeviceState> + Send + Sync>;

/// The metrics of a device, on servers with one.
pub const DEVICE_METRICS: &[MetricSpec] = &[
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
    gauge("device_kept_buffers", "Packet buffers that hold large values, or wait to be served (`[net] kept_buffers`)."),
    counter(
        "device_rx_copied",
        "Large received packets that were copied: the budget of kept buffers was used up, or the packet had to wait and its sender was unauthenticated or had used its part.",
    ),
    counter("device_in_place", "Packets with a large value, or a part of one, that was sent from where it is stored."),
    counter(
        "device_copied",
        "Packets with a large value, or a part of one, that was copied into the packet: the device does not read where it is stored, or there was no buffer to chain it to.",
    ),
    gauge(
        "device_reads_bytes",
        "Bytes of tables that are mapped for the device to read; they stay in memory. 0 where a processor reads what is sent.",
    ),
    counter("device_interrupts", "Interrupts that sleeping workers had asked the device for, and that came."),
];

impl DeviceState {
    /// The readings of [`DEVICE_METRICS`].
    pub fn readings(&self) -> Vec<MetricReading> {
        let DeviceState { up, missed, no_buffer, receive_errors, send_errors, rx_retained, rx_copied, .. } = *self;
        let values = [u64::from(up), missed, no_buffer, receive_errors, send_errors, rx_retained, rx_copied];
        let values = values.into_iter().chain([self.in_place, self.copied, self.reads_bytes, self.interrupts]);
        readings(DEVICE_METRICS, values.map(|value| vec![value]).collect())
    }
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.up {
            "link up"
        } else {
            "LINK DOWN: the other end does not answer, or the device is gone"
        })?;
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
        if let Some(why) = &self.refused {
            write!(
                f,
                "; no more table memory can be mapped for the device, so values stored from now on may be copied: {why}; look at `ulimit -l` and at vfio's dma_entry_limit"
            )?;
        }
        write!(f, "; wakes: {}", self.wakes)
    }
}

/// A description of the workers' network.
pub(super) struct NetworkDescription {
    pub(super) about: String,
    pub(super) device: Option<DeviceProbe>,
}

impl fmt::Debug for NetworkDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("about", &self.about).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reading_has_its_name_and_what_is_wrong_is_said() {
        let state = DeviceState {
            up: true,
            wakes: "interrupt".to_owned(),
            missed: 1,
            no_buffer: 2,
            receive_errors: 3,
            send_errors: 4,
            rx_retained: 5,
            rx_copied: 6,
            in_place: 7,
            copied: 8,
            reads_bytes: 9,
            interrupts: 10,
            ..DeviceState::default()
        };
        let names = "link_up missed no_buffer receive_errors send_errors kept_buffers rx_copied in_place copied reads_bytes interrupts";
        let wanted: Vec<_> =
            names.split(' ').map(|name| format!("device_{name}")).zip([1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).collect();
        let written: Vec<_> =
            state.readings().iter().map(|reading| (reading.metric.name.to_owned(), reading.values[0])).collect();
        assert_eq!(written, wanted);
        assert!(state.to_string().ends_with("4 packets could not be sent; wakes: interrupt"), "{state}");
        let refused = DeviceState { refused: Some("no memory".to_owned()), ..DeviceState::default() };
        assert!(refused.to_string().contains("may be copied: no memory; look at `ulimit -l`"), "{refused}");
    }
}
