//! The interface between the stack and a network device: ports that move Ethernet frames.

use super::interrupt_fault::InterruptFault;
use crate::driver::ReceivePressure;
use crate::shared_bytes::SharedBytes;
use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The address that all interfaces listen to.
    pub const BROADCAST: MacAddress = MacAddress([0xFF; 6]);
    /// The address that no interface has.
    pub const ZERO: MacAddress = MacAddress([0; 6]);

    /// Returns whether it names a group of interfaces (broadcast is one).
    #[inline]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Returns whether one interface may have it.
    #[inline]
    pub fn is_unicast(self) -> bool {
        !self.is_group() && self != MacAddress::ZERO
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A port's knowledge of a checksum in a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumStatus {
    /// Nothing: the stack computes it.
    #[default]
    Unknown,
    /// The checksum is right, or the frame never left the machine and needs none.
    Valid,
    /// The checksum is wrong.
    Invalid,
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'p> {
    /// The whole frame, from the destination address on, without the check sequence at its end.
    pub bytes: &'p [u8],
    /// The checksum of the IPv4 header.
    pub ip: ChecksumStatus,
    /// The checksum of UDP.
    pub udp: ChecksumStatus,
    /// The port has removed a VLAN tag: the frame is of another network than the untagged one.
    pub vlan: bool,
    /// Bytes of each datagram if the payload holds many behind each other (the last may be shorter). The kernel has not
    /// split them because they did not leave the machine. 0: it is one datagram.
    pub segment: usize,
}

impl<'p> RxFrame<'p> {
    /// Returns a frame of which its port knows nothing but the bytes.
    #[inline]
    pub const fn plain(bytes: &'p [u8]) -> RxFrame<'p> {
        RxFrame { bytes, ip: ChecksumStatus::Unknown, udp: ChecksumStatus::Unknown, vlan: false, segment: 0 }
    }
}

/// A part of a frame to be sent.
#[derive(Clone, Debug)]
pub enum FramePart<'a> {
    /// Bytes that the port copies, or sends before [`FramePort::transmit`] returns.
    Bytes(&'a [u8]),
    /// Bytes of memory that the port may send from later: it keeps a reference to it for as long as it needs the bytes.
    Shared(&'a SharedBytes, Range<usize>),
}

impl FramePart<'_> {
    /// Returns the bytes; none if its memory does not have them.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            FramePart::Bytes(bytes) => bytes,
            FramePart::Shared(memory, range) => memory.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// Checksums that the port is to put into a frame. The stack asks only for what [`PortOffloads`] offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumFill {
    /// The checksum of the IPv4 header; its field holds zero.
    pub ip: bool,
    /// The checksum of UDP; its field holds the folded sum of the pseudo header, not inverted, as DPDK and virtio want
    /// it.
    pub udp: bool,
}

/// A frame to be sent: `header` and then `parts`, behind each other.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Ethernet, IP and UDP (or a whole frame of another protocol). Always to be copied.
    pub header: &'a [u8],
    /// Bytes of the IP header within `header`, which starts behind 14 bytes of Ethernet. 0: it is no IP packet.
    pub ip_header_len: usize,
    /// The checksums that the port has to compute.
    pub fill: ChecksumFill,
    /// The payload.
    pub parts: &'a [FramePart<'a>],
}

impl<'a> TxFrame<'a> {
    /// An empty frame, to initialise arrays.
    pub const EMPTY: TxFrame<'a> =
        TxFrame { header: &[], ip_header_len: 0, fill: ChecksumFill { ip: false, udp: false }, parts: &[] };

    /// Returns the frame's length, bytes.
    pub fn len(&self) -> usize {
        self.header.len() + self.parts.iter().map(|part| part.bytes().len()).sum::<usize>()
    }

    /// Returns whether the frame has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the frame to the start of `buffer`, for ports that copy. Returns its length; none if it does not fit.
    pub fn copy_to(&self, buffer: &mut [u8]) -> Option<usize> {
        let mut at = 0;
        for bytes in std::iter::once(self.header).chain(self.parts.iter().map(FramePart::bytes)) {
            buffer.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
            at += bytes.len();
        }
        Some(at)
    }
}

/// The services of a port for the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortOffloads {
    /// It computes the IPv4 header checksum of sent frames.
    pub ip_fill: bool,
    /// It computes the UDP checksum of sent frames, over IPv4 and IPv6.
    pub udp_fill: bool,
    /// Frames sent never leave this machine's memory. The stack leaves out the UDP checksum where the protocol allows
    /// it, over IPv4.
    pub udp_checksum_optional: bool,
}

/// The buffer type of ports that give none out: it has no value.
#[derive(Clone, Copy, Debug)]
pub enum NoSharedBuffer {}

impl AsRef<[u8]> for NoSharedBuffer {
    fn as_ref(&self) -> &[u8] {
        match *self {}
    }
}

/// One receive and one transmit queue of a network interface. It moves bursts of frames, at most
/// [`crate::limits::BURST`] each, and never waits; one thread at a time uses it.
///
/// Received frames lie in the port until the next [`FramePort::receive`]. A port that copies has a buffer for each. A
/// port with a pool of buffers then gives those back that were not taken.
pub trait FramePort: Send {
    /// A buffer of received bytes that the port gives out; [`NoSharedBuffer`] for ports that copy.
    type Shared: AsRef<[u8]> + Send + Sync + 'static;

    /// Returns the interface's address.
    fn mac(&self) -> MacAddress;

    /// Returns the bytes of the largest IP packet in a frame, 68 at least (1500 on most networks).
    fn mtu(&self) -> usize;

    /// Returns whether frames may come that hold many datagrams ([`RxFrame::segment`]).
    fn coalesces(&self) -> bool {
        false
    }

    /// Returns the checksums that the port computes by itself. Does not change.
    fn offload(&self) -> PortOffloads {
        PortOffloads::default()
    }

    /// Lets frames to these groups in, in place of the groups before; broadcast always is let in. Returns false if the
    /// port cannot choose, and lets none in.
    fn listen(&mut self, groups: &[MacAddress]) -> bool;

    /// Takes up to `most` received frames, and releases those of the call before. Returns their number: fewer than
    /// `most` if there are no more.
    fn receive(&mut self, most: usize) -> usize;

    /// Returns frame `index` of the last [`FramePort::receive`]. None if there is no such frame, or it was taken.
    fn frame(&self, index: usize) -> Option<RxFrame<'_>>;

    /// Returns the datagram size, in bytes, from which on taking the buffer is better than copying.
    fn worth_taking(&self) -> usize {
        usize::MAX
    }

    /// Takes the buffer of frame `index`, with the whole frame, out of the port, to be kept without a copy. None if the
    /// port copies, or has no buffer to spare.
    fn take(&mut self, _index: usize) -> Option<Self::Shared> {
        None
    }

    /// Sends frames, in order. Returns how many of the first the port has dealt with. It is fewer than all if there is
    /// no room now; the rest is to be offered again. A frame that can never be sent is dropped and counted, and so
    /// dealt with.
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> usize;

    /// Returns the descriptor that is readable when a frame has come, for [`crate::driver::DriverWaiter`]. None: the
    /// port must be polled.
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Returns the descriptor that is readable once an interrupt has come that [`FramePort::arm`] has asked for. It is
    /// for a port without a [`FramePort::descriptor`]. None: the port has no interrupts.
    fn interrupt(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Asks for an interrupt with the next frame that comes. Frames that are there already may bring none: poll for
    /// them afterwards. Returns false if the port cannot interrupt.
    fn arm(&mut self) -> bool {
        false
    }

    /// Calls the interrupt off.
    fn disarm(&mut self) {}

    /// Returns whether an interrupt has come since the last call, and clears the descriptor.
    fn interrupted(&mut self) -> bool {
        false
    }

    /// Tells the port that its interrupts are not waited for any more, so that it can report it.
    fn forgo_interrupts(&mut self, _why: InterruptFault) {}

    /// Returns how full the receive queue is, and how many frames were dropped for lack of room.
    fn pressure(&mut self) -> ReceivePressure {
        ReceivePressure::default()
    }

    /// Returns whether the link has come up since the last call, so that earlier announcements were not heard. Called
    /// often, and cheap.
    fn came_up(&mut self) -> bool {
        false
    }

    /// Returns the number of frames that could not be sent and were dropped.
    fn send_errors(&self) -> u64 {
        0
    }
}

impl<P: FramePort + ?Sized> FramePort for Box<P> {
    type Shared = P::Shared;

    fn mac(&self) -> MacAddress {
        (**self).mac()
    }

    fn mtu(&self) -> usize {
        (**self).mtu()
    }

    fn coalesces(&self) -> bool {
        (**self).coalesces()
    }

    fn offload(&self) -> PortOffloads {
        (**self).offload()
    }

    fn listen(&mut self, groups: &[MacAddress]) -> bool {
        (**self).listen(groups)
    }

    fn receive(&mut self, most: usize) -> usize {
        (**self).receive(most)
    }

    fn frame(&self, index: usize) -> Option<RxFrame<'_>> {
        (**self).frame(index)
    }

    fn worth_taking(&self) -> usize {
        (**self).worth_taking()
    }

    fn take(&mut self, index: usize) -> Option<Self::Shared> {
        (**self).take(index)
    }

    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> usize {
        (**self).transmit(frames)
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        (**self).descriptor()
    }

    fn interrupt(&self) -> Option<Arc<OwnedFd>> {
        (**self).interrupt()
    }

    fn arm(&mut self) -> bool {
        (**self).arm()
    }

    fn disarm(&mut self) {
        (**self).disarm();
    }

    fn interrupted(&mut self) -> bool {
        (**self).interrupted()
    }

    fn forgo_interrupts(&mut self, why: InterruptFault) {
        (**self).forgo_interrupts(why);
    }

    fn pressure(&mut self) -> ReceivePressure {
        (**self).pressure()
    }

    fn came_up(&mut self) -> bool {
        (**self).came_up()
    }

    fn send_errors(&self) -> u64 {
        (**self).send_errors()
    }
}
