//! Kernel sockets: one UDP socket per worker, bursts by `recvmmsg` and `sendmmsg`, segmentation offload in both
//! directions where the kernel has it. (Its cost is per packet: offload is worth a factor of three to twenty-six,
//! bursts without it next to nothing.)

use super::socket_filter::BpfInstruction;
use super::stream::bind_shared_udp;
use super::sys::{self, GsoMessage};
use super::{Burst, DatagramDriver, DriverCounters, DriverWaiter, DriverWaker, KernelPathMtu, Outbox, ReceivePressure};
use crate::limits::{BURST, MAX_DATAGRAM_CEILING, SOCKET_BUFFER, UNSEGMENTED_BACKOFF_DOUBLINGS, default_datagram};
use crate::r2p2::PeerAddr;
use rustix::io::Errno;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use thiserror::Error;

/// Options for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Let the kernel coalesce received datagrams (`UDP_GRO`), if it can. Default: true.
    pub gro: bool,
    /// Send runs of equal datagrams to one peer in one call (`UDP_SEGMENT`), if the kernel can. Default: true.
    pub gso: bool,
    /// Kernel buffer asked for, each direction, bytes. Default [`SOCKET_BUFFER`].
    pub socket_buffer: usize,
    /// Share the address with other sockets that are opened so, over which the kernel spreads the datagrams by their
    /// senders (`SO_REUSEPORT`). Default: false.
    pub shared: bool,
    /// Have the kernel say when it received each message, if it can ([`Burst::arrivals`]). Default: false.
    pub receive_times: bool,
}

impl Default for UdpOptions {
    fn default() -> UdpOptions {
        UdpOptions { gro: true, gso: true, socket_buffer: SOCKET_BUFFER, shared: false, receive_times: false }
    }
}

/// The reason why a socket could not be opened.
#[derive(Debug, Error)]
pub enum UdpBindError {
    /// Another process has the port.
    #[error("udp address {0} is in use: another server runs there? stop it or choose another port")]
    InUse(PeerAddr),
    /// The machine does not have this address.
    #[error("udp address {0} does not belong to this machine: choose one of its own, or 127.0.0.1")]
    NotLocal(PeerAddr),
    /// A low port without the right to it.
    #[error("no permission to bind udp address {0}: choose a port from 1024 up")]
    Permission(PeerAddr),
    /// Anything else.
    #[error("cannot bind udp address {0}: {1}")]
    Other(PeerAddr, std::io::Error),
}

/// A driver over one kernel UDP socket.
#[derive(Debug)]
pub struct UdpDriver {
    socket: Arc<OwnedFd>,
    waiter: DriverWaiter,
    local: PeerAddr,
    gso: bool,
    gro: bool,
    /// Datagrams that leave one by one before segments are tried again, and the messages of segments refused in a row.
    unsegmented_left: usize,
    refused: u32,
    groups: Vec<GsoMessage>,
    counters: DriverCounters,
    /// Messages thrown away, and the kernel's count of them at the last look, which wraps.
    thrown_away: (u64, u32),
    receive_buffer: u32,
}

impl UdpDriver {
    /// Binds `address`. Port 0 lets the kernel choose: see [`DatagramDriver::local`].
    ///
    /// # Errors
    /// [`UdpBindError`] names the address and what to do.
    pub fn bind(address: PeerAddr, options: UdpOptions) -> Result<UdpDriver, UdpBindError> {
        let bound = if options.shared { bind_shared_udp(address) } else { UdpSocket::bind(address) };
        let socket = bound.map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => UdpBindError::InUse(address),
            std::io::ErrorKind::AddrNotAvailable => UdpBindError::NotLocal(address),
            std::io::ErrorKind::PermissionDenied => UdpBindError::Permission(address),
            _ => UdpBindError::Other(address, error),
        })?;
        let other = |error| UdpBindError::Other(address, error);
        socket.set_nonblocking(true).map_err(other)?;
        let local = socket.local_addr().map_err(other)?;
        let socket = Arc::new(OwnedFd::from(socket));
        let waiter = DriverWaiter::new(Some(socket.clone())).map_err(other)?;
        sys::set_socket_buffers(socket.as_fd(), options.socket_buffer);
        let gro = options.gro && sys::enable_gro(socket.as_fd());
        let gso = options.gso && sys::has_gso(socket.as_fd());
        if options.receive_times {
            // Without them a burst has none.
            let _has_times = sys::enable_receive_times(socket.as_fd());
        }
        let receive_buffer = u32::try_from(sys::socket_buffers(socket.as_fd()).0).unwrap_or(u32::MAX).max(1);
        Ok(UdpDriver {
            socket,
            waiter,
            local,
            gso,
            gro,
            unsegmented_left: 0,
            refused: 0,
            groups: Vec::with_capacity(BURST),
            counters: DriverCounters::default(),
            thrown_away: (0, 0),
            receive_buffer,
        })
    }

    /// Returns whether the kernel coalesces received datagrams, and whether sends are segmented.
    pub fn offload(&self) -> (bool, bool) {
        (self.gro, self.gso)
    }

    /// Bytes of the kernel's buffers as granted, receiving and sending.
    pub fn socket_buffers(&self) -> (usize, usize) {
        sys::socket_buffers(self.socket.as_fd())
    }
}

impl AsFd for UdpDriver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl DatagramDriver for UdpDriver {
    fn local(&self) -> PeerAddr {
        self.local
    }

    fn receive(&mut self, burst: &mut Burst) -> usize {
        burst.clear();
        // An error that came back for an earlier send is reported once and says nothing about what has arrived.
        for _attempt in 0..4 {
            match sys::receive(self.socket.as_fd(), &mut burst.bytes, burst.stride, &mut burst.arrived) {
                Ok(()) => break,
                Err(Errno::AGAIN) => return 0,
                Err(Errno::INTR) => {}
                Err(_) => self.counters.receive_errors += 1,
            }
        }
        burst.messages = burst.arrived.len();
        for slot in 0..burst.arrived.len() {
            let Some(arrived) = burst.arrived.get(slot).copied() else { break };
            self.counters.received_messages += 1;
            match arrived.peer {
                // Nothing can be sent to port 0.
                Some(peer) if !arrived.truncated && peer.port() != 0 => {
                    self.counters.received_bytes += arrived.len as u64;
                    if arrived.unix_ns > 0 {
                        burst.note_arrival(arrived.unix_ns);
                    }
                    burst.list(slot, peer, arrived.len, arrived.segment);
                }
                _ => self.counters.truncated += 1,
            }
        }
        burst.arrived.clear();
        self.counters.received += burst.len() as u64;
        burst.len()
    }

    fn burst(&self) -> Burst {
        if self.gro { Burst::default() } else { Burst::new(BURST, MAX_DATAGRAM_CEILING) }
    }

    fn transmit(&mut self, outbox: &mut Outbox) -> usize {
        let before = outbox.len();
        if self.gso {
            outbox.sort_for_segmentation();
        }
        while !outbox.is_empty() {
            outbox.groups(self.gso && self.unsegmented_left == 0, &mut self.groups);
            if self.unsegmented_left > 0 {
                self.groups.truncate(self.unsegmented_left);
            }
            match sys::send(self.socket.as_fd(), outbox.buffers(), outbox.queue(), &self.groups) {
                // The kernel does not say this of a message; were it to, the queue must move on.
                Ok(0) => self.send_failed(Errno::FAULT, outbox),
                Ok(messages) => {
                    let taken = self.groups.iter().take(messages);
                    let sent: u32 = taken.clone().map(|group| group.count).sum();
                    if sent as usize > messages {
                        self.refused = 0;
                    }
                    self.unsegmented_left = self.unsegmented_left.saturating_sub(sent as usize);
                    self.counters.sent += u64::from(sent);
                    self.counters.sent_bytes += taken.map(|group| u64::from(group.len)).sum::<u64>();
                    self.counters.sent_messages += messages as u64;
                    outbox.advance(sent as usize);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                    self.counters.send_full += 1;
                    outbox.compact();
                    break;
                }
                Err(error) => self.send_failed(error, outbox),
            }
        }
        before - outbox.len()
    }

    fn waiter(&self) -> DriverWaiter {
        self.waiter.clone()
    }

    fn waker(&self) -> DriverWaker {
        self.waiter.waker()
    }

    fn pressure(&mut self) -> ReceivePressure {
        let Some((bytes, thrown_away)) = sys::receive_queue_state(self.socket.as_fd()) else {
            return ReceivePressure::default();
        };
        let (total, before) = &mut self.thrown_away;
        *total += u64::from(thrown_away.wrapping_sub(*before));
        *before = thrown_away;
        let filled = u64::from(bytes) * 1000 / u64::from(self.receive_buffer);
        ReceivePressure { filled: filled as u32, thrown_away: *total }
    }

    fn set_filter(&mut self, program: &[BpfInstruction]) -> bool {
        sys::set_filter(self.socket.as_fd(), program)
    }

    fn counters(&self) -> DriverCounters {
        self.counters
    }

    /// The size that networks usually bear, even if the interface bears more.
    fn max_datagram(&self) -> usize {
        default_datagram(self.local.is_ipv6())
    }

    /// Returns an outbox that knows of paths that bear less. From then on the kernel does not fragment datagrams.
    fn outbox(&self) -> Outbox {
        Outbox::along(KernelPathMtu::of(self.socket.as_fd(), self.local.ip()))
    }
}

impl UdpDriver {
    /// The kernel refused the first message of a send.
    #[cold]
    fn send_failed(&mut self, error: Errno, outbox: &mut Outbox) {
        let first = self.groups.first().map_or(1, |group| group.count);
        if let (Errno::MSGSIZE | Errno::INVAL, Some(group)) = (error, self.groups.first()) {
            outbox.refused(group.peer, group.segment as usize);
        }
        if first > 1
            && matches!(error, Errno::INVAL | Errno::IO | Errno::MSGSIZE | Errno::OPNOTSUPP | Errno::NOPROTOOPT)
        {
            // The path to this peer takes no segments of this size, or none at all: a tunnel, a small MTU. Its
            // datagrams go one by one, and those behind them as before: other peers keep their segments. If no peer's
            // path takes segments, fewer and fewer tries fail.
            self.unsegmented_left = (first as usize) << self.refused.min(UNSEGMENTED_BACKOFF_DOUBLINGS);
            self.refused = self.refused.saturating_add(1);
            self.counters.unsegmented += u64::from(first);
            return;
        }
        self.counters.send_errors += u64::from(first);
        self.unsegmented_left = self.unsegmented_left.saturating_sub(first as usize);
        outbox.advance(first as usize);
    }
}
