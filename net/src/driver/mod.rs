//! Drivers move bursts of datagrams between a worker and the network.
//!
//! A worker owns a [`Burst`] to receive into and an [`Outbox`] to send from; a driver owns the socket. So a request can
//! borrow its datagram while its response is queued. A neighbour that steals packets uses its own burst and outbox with
//! this driver, under the lock that the server keeps it in.

mod any;
mod arrivals;
mod burst;
mod kernel_path_mtu;
mod outbox;
pub(crate) mod reduced_mtu;
mod socket_file;
pub mod socket_filter;
mod stream;
mod sys;
#[cfg(test)]
mod tests;
mod udp;
mod unix;
mod wait;

pub use any::{AnyDriver, DriverFactory};
pub use arrivals::{ArrivalClock, MessageArrival};
pub use burst::{Burst, NO_PEER};
pub use kernel_path_mtu::KernelPathMtu;
pub use outbox::{Outbox, QueuedDatagram};
pub use stream::{
    EpollSelector, ListenError, SocketEvent, SocketInterest, StreamListener, StreamProgress, StreamSocket,
};
pub(crate) use sys::{receive_buffer_usage, set_socket_buffers};
pub use udp::{UdpBindError, UdpDriver, UdpOptions};
pub(crate) use wait::SleepPolicy;
pub use wait::{DriverWaiter, DriverWaker, WakeReason};

use crate::limits::{MAX_DATAGRAM, MAX_DATAGRAM_CEILING};
use crate::r2p2::PeerAddr;
use socket_filter::BpfInstruction;

/// A driver's counters since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCounters {
    /// Datagrams received.
    pub received: u64,
    /// Bytes of the datagrams received.
    pub received_bytes: u64,
    /// Messages that the kernel handed over: fewer than datagrams where it coalesced them.
    pub received_messages: u64,
    /// Datagrams thrown away because they were longer than a buffer, and so cut off, or had no sender that could be
    /// answered.
    pub truncated: u64,
    /// Errors of receiving other than "nothing there" (such as a port that was unreachable).
    pub receive_errors: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Bytes of the datagrams sent.
    pub sent_bytes: u64,
    /// Messages that the kernel took for them.
    pub sent_messages: u64,
    /// Datagrams that the kernel refused for good, such as an unreachable address.
    pub send_errors: u64,
    /// Datagrams that were to leave together and went one by one, as the path to their peer took no segments.
    pub unsegmented: u64,
    /// Times that the kernel had no room, so that datagrams stayed in the outbox.
    pub send_full: u64,
}

/// The fill level of a driver's buffer of arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivePressure {
    /// Thousandths of the buffer in use.
    pub filled: u32,
    /// Messages thrown away before they could be received, since the driver began.
    pub thrown_away: u64,
}

/// Knowledge of the paths to peers.
pub trait PathMtu: Send + Sync + std::fmt::Debug {
    /// Bytes of the largest datagram that may be sent to `peer`. It fits a packet of this host's interface, and no
    /// router on the path has said that it does not fit there.
    fn most(&self, peer: PeerAddr) -> usize;

    /// The kernel refused a datagram of so many bytes to `peer`, perhaps because it is too large for its path.
    fn refused(&self, _peer: PeerAddr, _bytes: usize) {}
}

/// Moves datagrams.
pub trait DatagramDriver: Send {
    /// The address that peers send to.
    fn local(&self) -> PeerAddr;

    /// A burst whose buffers are as large as this driver's messages can be. In a smaller one long messages are cut off,
    /// counted and dropped; where the kernel coalesces that can be many datagrams at once.
    fn burst(&self) -> Burst;

    /// Fills `burst` with the arrived datagrams, and returns their number. Never waits.
    fn receive(&mut self, burst: &mut Burst) -> usize;

    /// Sends what is queued. Datagrams that the network has no room for stay queued, to be tried again at the next
    /// call. Never waits. Returns the number of datagrams that left the outbox.
    fn transmit(&mut self, outbox: &mut Outbox) -> usize;

    /// Returns whether the caller may sleep on [`DatagramDriver::waiter`], after a [`DatagramDriver::receive`] that
    /// found nothing. False: call that once more first, since the wake-up was only requested now, and a datagram may
    /// have come in the meantime.
    fn may_sleep(&mut self) -> bool {
        true
    }

    /// Something to sleep on until a datagram or a signal comes, usable while another thread has the driver.
    fn waiter(&self) -> DriverWaiter;

    /// Ends the sleep of a waiting worker, from any thread.
    fn waker(&self) -> DriverWaker;

    /// The fill level, in thousandths, of the buffer that datagrams wait in until they are received. Also the number of
    /// messages dropped before they came there, for lack of room or by the filter, as far as the driver knows. (A
    /// message may be many datagrams that the kernel has coalesced.)
    fn pressure(&mut self) -> ReceivePressure {
        ReceivePressure::default()
    }

    /// Makes `program` look at every datagram (see [`socket_filter`]) before it takes room in that buffer. It replaces
    /// the program before; an empty one lets all in. Returns false if the driver cannot: then all are let in.
    fn set_filter(&mut self, _program: &[BpfInstruction]) -> bool {
        false
    }

    /// Returns the counters.
    fn counters(&self) -> DriverCounters;

    /// Bytes of the largest datagram that leaves this host in one piece. Further on it may be cut, or lost, if it is
    /// larger than [`DatagramDriver::usual_datagram`].
    fn max_datagram(&self) -> usize {
        MAX_DATAGRAM_CEILING
    }

    /// Bytes of the largest datagram that networks bear as a rule, whichever the peer: it fits a packet of 1500 bytes.
    fn usual_datagram(&self) -> usize {
        self.max_datagram().min(MAX_DATAGRAM)
    }

    /// Returns an outbox for this driver: it knows what the driver knows of paths.
    fn outbox(&self) -> Outbox {
        Outbox::default()
    }

    /// Reports the further counters of this kind of driver, by name. `each` gets one after the other, since a worker
    /// asks often, and is to allocate nothing.
    fn details(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let _ = each;
    }
}
