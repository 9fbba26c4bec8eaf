//! A port over a packet socket of Linux: frames of an interface bypass the kernel's own stack, which still sees them.
//! The interface should have no address that both the kernel and the stack use.
//!
//! Frames from the same machine (through veth) may lack checksums, and may hold many datagrams. The kernel reports this
//! in a virtio header in front of each frame. Several workers share an interface by a program that gives each socket
//! the frames for its worker's UDP port, and the first one all others.

mod device;
mod sys;
#[cfg(test)]
mod tests;

pub use device::{ClientInterface, InterfaceError, InterfaceOptions, open_interface};
#[cfg(feature = "dpdk")]
pub(crate) use sys::kernel_addresses;

use super::wire::{ETHERNET_HEADER_LEN, ethertype, protocol};
use super::{ChecksumStatus, FramePort, MacAddress, NoSharedBuffer, PortOffloads, RxFrame, TxFrame};
use crate::driver::ReceivePressure;
use crate::driver::socket_filter::BpfInstruction;
use crate::limits::{BURST, SOCKET_BUFFER};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use sys::{LinkAttributes, ReceivedPacket};
use thiserror::Error;

/// The options of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// Leave the checksums of sent frames to the kernel. It may leave them to hardware, or out where nothing leaves the
    /// machine. Default: true.
    pub offload: bool,
    /// Bytes of the kernel's receive buffer. Default [`SOCKET_BUFFER`].
    pub buffer: usize,
}

impl Default for PacketOptions {
    fn default() -> PacketOptions {
        PacketOptions { offload: true, buffer: SOCKET_BUFFER }
    }
}

/// The reason why a port could not be opened.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PacketError {
    /// The process lacks the permission.
    #[error(
        "no permission to open a packet socket: run as root, or give the program the right with `setcap cap_net_raw+ep`"
    )]
    Permission,
    /// No such interface.
    #[error("there is no network interface {0:?} here: `ip link` lists those there are")]
    NoInterface(String),
    /// The interface carries no Ethernet.
    #[error("the network interface {0:?} does not carry Ethernet: choose one that does")]
    NotEthernet(String),
    /// Anything else.
    #[error("cannot open a packet socket on {0:?}: {1}")]
    Other(String, Errno),
}

/// Bytes of virtio's header.
const VNET_HEADER_LEN: usize = 10;
/// The header's flags: a checksum is to be computed; it was found good.
const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;
/// The header's kind of segments: UDP datagrams.
const SEGMENTS_UDP: u8 = 5;
/// The longest message: the largest IP packet, behind both headers.
const STRIDE: usize = (VNET_HEADER_LEN + ETHERNET_HEADER_LEN + 65_535).next_multiple_of(64);

/// A port over a packet socket. See the module.
#[derive(Debug)]
pub struct PacketPort {
    socket: Arc<OwnedFd>,
    link: LinkAttributes,
    offload: bool,
    bytes: Vec<u8>,
    arrived: Vec<ReceivedPacket>,
    /// Frames to be sent, behind each other, and the range of each.
    out: Vec<u8>,
    frames: Vec<Range<usize>>,
    pressure: ReceivePressure,
    errors: u64,
}

impl PacketPort {
    /// Opens a port on the interface of this name.
    ///
    /// # Errors
    /// [`PacketError`], with advice.
    pub fn open(name: &str, options: PacketOptions) -> Result<PacketPort, PacketError> {
        let explain = |error| match error {
            Errno::PERM | Errno::ACCESS => PacketError::Permission,
            Errno::NODEV | Errno::NXIO => PacketError::NoInterface(name.to_owned()),
            Errno::AFNOSUPPORT => PacketError::NotEthernet(name.to_owned()),
            error => PacketError::Other(name.to_owned(), error),
        };
        let socket = sys::open().map_err(explain)?;
        let link = sys::link_attributes(socket.as_fd(), name).map_err(explain)?;
        sys::configure_socket(socket.as_fd()).map_err(explain)?;
        crate::driver::set_socket_buffers(socket.as_fd(), options.buffer);
        sys::bind(socket.as_fd(), link.index).map_err(explain)?;
        Ok(PacketPort {
            socket: Arc::new(socket),
            link,
            offload: options.offload,
            bytes: vec![0; BURST * STRIDE],
            arrived: Vec::with_capacity(BURST),
            out: Vec::new(),
            frames: Vec::with_capacity(BURST),
            pressure: ReceivePressure::default(),
            errors: 0,
        })
    }

    /// Returns whether the interface was up when this was opened.
    pub fn was_up(&self) -> bool {
        self.link.up
    }

    /// Opens ports for `workers` workers, in their order, of which the first has UDP port `port`.
    ///
    /// # Errors
    /// As [`PacketPort::open`].
    pub fn open_all(
        name: &str,
        options: PacketOptions,
        port: u16,
        workers: usize,
    ) -> Result<Vec<PacketPort>, PacketError> {
        let ports = (0..workers).map(|_| PacketPort::open(name, options)).collect::<Result<Vec<_>, _>>()?;
        if workers > 1 {
            let program = fanout_program(port, workers);
            // The kernel chooses the group's number: two servers in one group would each get the other's frames.
            let mut group = None;
            for one in &ports {
                let joined = sys::join_fanout(one.socket.as_fd(), group, &program);
                group = Some(joined.map_err(|error| PacketError::Other(name.to_owned(), error))?);
            }
        }
        Ok(ports)
    }
}

/// Builds the program that chooses a socket by a frame's UDP port. Loads are relative to the network header.
fn fanout_program(port: u16, workers: usize) -> Vec<BpfInstruction> {
    const NET: u32 = 0xFFF0_0000;
    const PROTOCOL: u32 = 0xFFFF_F000;
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const GO: u16 = 0x05;
    const SUBTRACT: u16 = 0x14;
    const EQUAL: u16 = 0x15;
    const AT_LEAST: u16 = 0x35;
    const ANY_BIT: u16 = 0x45;
    const RETURN: u16 = 0x06;
    const RETURN_SUM: u16 = 0x16;
    let step = |code, jt, jf, k| BpfInstruction { code, jt, jf, k };
    vec![
        step(LOAD_HALF, 0, 0, PROTOCOL),
        step(EQUAL, 0, 8, u32::from(ethertype::IPV4_HEADER_LEN)),
        // IPv4 without options, UDP, whole.
        step(LOAD_BYTE, 0, 0, NET),
        step(EQUAL, 0, 13, 0x45),
        step(LOAD_BYTE, 0, 0, NET + 9),
        step(EQUAL, 0, 11, u32::from(protocol::UDP_HEADER_LEN)),
        step(LOAD_HALF, 0, 0, NET + 6),
        step(ANY_BIT, 9, 0, 0x3FFF),
        step(LOAD_HALF, 0, 0, NET + 22),
        step(GO, 0, 0, 4),
        // IPv6.
        step(EQUAL, 0, 6, u32::from(ethertype::IPV6_HEADER_LEN)),
        step(LOAD_BYTE, 0, 0, NET + 6),
        step(EQUAL, 0, 4, u32::from(protocol::UDP_HEADER_LEN)),
        step(LOAD_HALF, 0, 0, NET + 42),
        step(SUBTRACT, 0, 0, u32::from(port)),
        step(AT_LEAST, 1, 0, workers as u32),
        step(RETURN_SUM, 0, 0, 0),
        step(RETURN, 0, 0, 0),
    ]
}

impl FramePort for PacketPort {
    type Shared = NoSharedBuffer;

    fn mac(&self) -> MacAddress {
        self.link.mac
    }

    fn mtu(&self) -> usize {
        self.link.mtu
    }

    fn coalesces(&self) -> bool {
        true
    }

    fn offload(&self) -> PortOffloads {
        PortOffloads { udp_fill: self.offload, ..PortOffloads::default() }
    }

    fn listen(&mut self, groups: &[MacAddress]) -> bool {
        // Groups are joined for good: the stack's groups do not change.
        groups.iter().all(|group| sys::join_group(self.socket.as_fd(), self.link.index, *group).is_ok())
    }

    fn receive(&mut self, most: usize) -> usize {
        for _attempt in 0..4 {
            match sys::receive(self.socket.as_fd(), &mut self.bytes, STRIDE, most.min(BURST), &mut self.arrived) {
                Ok(()) => break,
                Err(Errno::AGAIN) => return 0,
                // An interface that goes down reports this once as an error.
                Err(_) => {}
            }
        }
        self.arrived.len()
    }

    fn frame(&self, index: usize) -> Option<RxFrame<'_>> {
        let arrived = self.arrived.get(index)?;
        let message = self.bytes.get(index * STRIDE..index * STRIDE + arrived.len)?;
        let (head, frame) = message.split_at_checked(VNET_HEADER_LEN)?;
        if arrived.truncated {
            // A truncated frame is passed on as an empty one, so that it is counted as short.
            return Some(RxFrame::plain(&[]));
        }
        let &[flags, kind, _, _, low, high, ..] = head else { return None };
        let good = flags & (NEEDS_CHECKSUM | CHECKSUM_VALID) != 0;
        let udp = if good { ChecksumStatus::Valid } else { ChecksumStatus::Unknown };
        let segment = if kind == SEGMENTS_UDP { usize::from(u16::from_ne_bytes([low, high])) } else { 0 };
        Some(RxFrame { udp, segment, vlan: arrived.vlan, ..RxFrame::plain(frame) })
    }

    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> usize {
        self.out.clear();
        self.frames.clear();
        for frame in frames.iter().take(BURST) {
            let start = self.out.len();
            let mut head = [0; VNET_HEADER_LEN];
            if frame.fill.udp {
                head[0] = NEEDS_CHECKSUM;
                head[6..8].copy_from_slice(&((ETHERNET_HEADER_LEN + frame.ip_header_len) as u16).to_ne_bytes());
                head[8..10].copy_from_slice(&6u16.to_ne_bytes());
            }
            self.out.extend_from_slice(&head);
            self.out.extend_from_slice(frame.header);
            frame.parts.iter().for_each(|part| self.out.extend_from_slice(part.bytes()));
            self.frames.push(start..self.out.len());
        }
        let mut done = 0;
        while let Some(left) = self.frames.get(done..).filter(|left| !left.is_empty()) {
            match sys::send(self.socket.as_fd(), &self.out, left) {
                Ok(sent) => done += sent.max(1),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => break,
                Err(_) => {
                    self.errors += 1;
                    done += 1;
                }
            }
        }
        done
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.socket))
    }

    fn pressure(&mut self) -> ReceivePressure {
        let (used, room) = crate::driver::receive_buffer_usage(self.socket.as_fd());
        self.pressure.thrown_away += u64::from(sys::take_drops(self.socket.as_fd()));
        self.pressure.filled = (used * 1000 / room.max(1)) as u32;
        self.pressure
    }

    fn send_errors(&self) -> u64 {
        self.errors
    }
}
