//! What moves Ethernet frames: one receive and one transmit queue of a network interface.

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
    /// The address that everybody listens to.
    pub const BROADCAST: MacAddress = MacAddress([0xFF; 6]);
    /// Nobody's address.
    pub const ZERO: MacAddress = MacAddress([0; 6]);

    /// Whether it names a group of interfaces (broadcast is one).
    #[inline]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Whether one interface may have it.
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

/// What a port knows of a checksum in a frame that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumStatus {
    /// Nothing: the stack computes it.
    #[default]
    Unknown,
    /// It is right, or the frame never left the machine and needs none.
    Valid,
    /// It is wrong.
    Invalid,
}

/// A frame that came.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'p> {
    /// The whole frame, from the destination address on, without the check sequence at its end.
    pub bytes: &'p [u8],
    /// The checksum of the IPv4 header.
    pub ip: ChecksumStatus,
    /// The checksum of UDP.
    pub udp: ChecksumStatus,
    /// The port has taken a VLAN tag away: the frame is of another network than the untagged one.
    pub vlan: bool,
    /// Its payload is that of many datagrams behind each other, of so many bytes each (the last may be shorter), which
    /// the kernel has not taken apart because they did not leave the machine. 0: it is one datagram.
    pub segment: usize,
}

impl<'p> RxFrame<'p> {
    /// A frame of which its port knows nothing but the bytes.
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
    /// Bytes of memory that the port may send from later: it keeps a share of it for as long as it needs the bytes.
    Shared(&'a SharedBytes, Range<usize>),
}

impl FramePart<'_> {
    /// The bytes; none if its memory does not have them.
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
    /// That of the IPv4 header; its place holds zero.
    pub ip: bool,
    /// That of UDP; its place holds the folded sum of the pseudo header, not inverted, as DPDK and virtio want it.
    pub udp: bool,
}

/// A frame to be sent: `header` and then `parts`, behind each other.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Ethernet, IP and UDP (or a whole frame of another protocol). Always to be copied.
    pub header: &'a [u8],
    /// Bytes of the IP header within `header`, which starts behind 14 bytes of Ethernet. 0: it is no IP packet.
    pub ip_header_len: usize,
    /// What the port has to compute.
    pub fill: ChecksumFill,
    /// The payload.
    pub parts: &'a [FramePart<'a>],
}

impl<'a> TxFrame<'a> {
    /// An array of frames begins with these: no bytes.
    pub const EMPTY: TxFrame<'a> =
        TxFrame { header: &[], ip_header_len: 0, fill: ChecksumFill { ip: false, udp: false }, parts: &[] };

    /// Bytes of the frame.
    pub fn len(&self) -> usize {
        self.header.len() + self.parts.iter().map(|part| part.bytes().len()).sum::<usize>()
    }

    /// No byte is in it.
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

/// What a port does for the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortOffloads {
    /// It computes the checksum of IPv4 headers that are sent.
    pub ip_fill: bool,
    /// It computes the checksum of UDP, over IPv4 and IPv6.
    pub udp_fill: bool,
    /// What it sends never leaves this machine's memory: where UDP may do without a checksum, over IPv4, it is left
    /// out.
    pub udp_checksum_optional: bool,
}

/// The memory of ports that share none: there is no value of it.
#[derive(Clone, Copy, Debug)]
pub enum NoSharedBuffer {}

impl AsRef<[u8]> for NoSharedBuffer {
    fn as_ref(&self) -> &[u8] {
        match *self {}
    }
}

/// One receive and one transmit queue of a network interface. It moves bursts of frames, at most
/// [`crate::limits::BURST`] each, and never waits; one thread at a time has it.
///
/// Received frames lie in the port until the next [`FramePort::receive`]: a port that copies has a buffer for each, one
/// with a pool of buffers of its own gives those back then that nobody has taken.
pub trait FramePort: Send {
    /// Memory that the port gives out for what it has received; [`NoSharedBuffer`] for ports that copy.
    type Shared: AsRef<[u8]> + Send + Sync + 'static;

    /// The interface's address.
    fn mac(&self) -> MacAddress;

    /// Bytes of the largest IP packet in a frame, 68 at least (1500 on most networks).
    fn mtu(&self) -> usize;

    /// Whether frames may come that hold many datagrams ([`RxFrame::segment`]).
    fn coalesces(&self) -> bool {
        false
    }

    /// What the port computes by itself. Does not change.
    fn offload(&self) -> PortOffloads {
        PortOffloads::default()
    }

    /// Lets frames to these groups in, in place of those before; broadcast always is. False if the port cannot choose,
    /// and lets none in.
    fn listen(&mut self, groups: &[MacAddress]) -> bool;

    /// Takes up to `most` frames that have come, and gives up those of the call before. Returns their number: fewer
    /// than `most` if there are no more.
    fn receive(&mut self, most: usize) -> usize;

    /// Frame `index` of the last [`FramePort::receive`]. None for an index that is not there, or was taken.
    fn frame(&self, index: usize) -> Option<RxFrame<'_>>;

    /// Bytes of a datagram from which on its buffer is worth taking out of the port rather than to copy it.
    fn worth_taking(&self) -> usize {
        usize::MAX
    }

    /// Takes the buffer of frame `index` out of the port, the whole frame in it, to be kept without a copy. None if the
    /// port copies, or has no buffer to spare.
    fn take(&mut self, _index: usize) -> Option<Self::Shared> {
        None
    }

    /// Sends frames, in order. Returns how many of the first the port has dealt with: fewer than all if there is no
    /// room now, and these are to be offered again. A frame that can never be sent is dealt with by being dropped and
    /// counted.
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> usize;

    /// What is readable when a frame has come, for [`crate::driver::DriverWaiter`]. None: the port must be looked at to
    /// know.
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// What is readable once an interrupt has come that [`FramePort::arm`] has asked for, for a port that has no
    /// [`FramePort::descriptor`] and can be asked for interrupts. None: it cannot.
    fn interrupt(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Asks for an interrupt with the next frame that comes. Those that are there already may bring none: look for them
    /// afterwards. False: it cannot be had.
    fn arm(&mut self) -> bool {
        false
    }

    /// Asks for no interrupt any more.
    fn disarm(&mut self) {}

    /// Whether one has come since this was last asked; it is not readable any more then.
    fn interrupted(&mut self) -> bool {
        false
    }

    /// Nobody waits for interrupts of this port any more, so that it can say so.
    fn forgo_interrupts(&mut self, _why: InterruptFault) {}

    /// How full the queue of arrivals is, and what was thrown away for lack of room.
    fn pressure(&mut self) -> ReceivePressure {
        ReceivePressure::default()
    }

    /// Whether its link has come up since this was last asked, so that nobody has heard what was said before. Asked
    /// often, and cheap.
    fn came_up(&mut self) -> bool {
        false
    }

    /// Frames that could not be sent and were dropped.
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
