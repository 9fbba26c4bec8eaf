//! The receiving end: preallocated buffers and the datagrams in them.

use super::arrivals::MessageArrival;
use super::sys::SocketMessage;
use crate::limits::{BURST, GRO_BUFFER};
use crate::r2p2::PeerAddr;
use crate::seal::requires_opening;
use crate::shared_bytes::SharedBytes;

/// The sender of a datagram that is dealt with.
pub const NO_PEER: PeerAddr = PeerAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Datagrams received in one call, in buffers that are allocated once.
#[derive(Debug)]
pub struct Burst {
    pub(super) bytes: Vec<u8>,
    pub(super) stride: usize,
    pub(super) arrived: Vec<SocketMessage>,
    /// The sender of each datagram, and its range in `bytes`.
    datagrams: Vec<(PeerAddr, u32, u32)>,
    /// Messages of the kernel's that these came in.
    pub(super) messages: usize,
    /// When the kernel received each message, in their order; empty if the driver does not know.
    arrivals: Vec<MessageArrival>,
    /// Bytes of `bytes` taken by [`Burst::pack`].
    packed: usize,
    /// Datagrams that stay in their receive buffers, by the index in their entry of `datagrams`.
    in_place: Vec<InPlaceDatagram>,
    /// True if one of them may be sealed, or comes from an address under which only sealed sessions appear.
    may_be_sealed: bool,
}

/// Set in the offset of a datagram that is not in `bytes`, where no offset is so large. The rest is its index in
/// `in_place`.
const IN_PLACE: u32 = 1 << 31;

/// A datagram in the receiver's memory, until it is released.
#[derive(Debug)]
struct InPlaceDatagram {
    share: Option<SharedBytes>,
    /// Offset of free room for it in `bytes`.
    copy_offset: u32,
}

impl Default for Burst {
    /// Buffers that take the largest datagrams that a UDP driver coalesces: 2 MiB, touched only as far as they are
    /// used.
    fn default() -> Burst {
        Burst::new(BURST, GRO_BUFFER)
    }
}

impl Burst {
    /// Buffers for `messages` (1..=32) messages of `stride` bytes each.
    pub fn new(messages: usize, stride: usize) -> Burst {
        let messages = messages.clamp(1, BURST);
        let stride = stride.clamp(64, GRO_BUFFER);
        Burst {
            bytes: vec![0; messages * stride],
            stride,
            arrived: Vec::with_capacity(BURST),
            datagrams: Vec::with_capacity(BURST * 64),
            messages: 0,
            arrivals: Vec::new(),
            packed: 0,
            in_place: Vec::new(),
            may_be_sealed: false,
        }
    }

    /// Number of datagrams.
    #[inline]
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// No datagram is there.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Returns whether the driver had nothing more to give when this was received.
    #[inline]
    pub fn has_drained(&self) -> bool {
        (self.messages + 1) * self.stride <= self.bytes.len()
    }

    /// Returns whether the kernel had coalesced few of them, so that most of the buffers is empty.
    #[inline]
    pub fn is_sparse(&self) -> bool {
        self.datagrams.len() < 4 * self.messages
    }

    /// Returns whether it takes no more memory than the copies that [`Burst::pack`] makes from a larger one.
    #[inline]
    pub fn is_small(&self) -> bool {
        self.bytes.len() <= GRO_BUFFER
    }

    /// Forgets the datagrams.
    #[inline]
    pub fn clear(&mut self) {
        self.datagrams.clear();
        self.in_place.clear();
        self.arrivals.clear();
        (self.messages, self.packed, self.may_be_sealed) = (0, 0, false);
    }

    /// Returns whether a datagram in it may be sealed, or comes from an address under which only sealed sessions
    /// appear.
    #[inline]
    pub fn may_be_sealed(&self) -> bool {
        self.may_be_sealed
    }

    /// Returns whether a datagram in it stays in the buffer in which it was received.
    #[inline]
    pub fn has_in_place(&self) -> bool {
        !self.in_place.is_empty()
    }

    /// Releases the memory of datagrams that stayed in their receive buffers, after they were handled.
    #[inline]
    pub fn let_go(&mut self) {
        self.in_place.clear();
    }

    /// Datagram `index` and its sender.
    #[inline]
    pub fn get(&self, index: usize) -> Option<(PeerAddr, &[u8])> {
        let (peer, start, len) = *self.datagrams.get(index)?;
        match self.bytes.get(start as usize..(start + len) as usize) {
            Some(bytes) => Some((peer, bytes)),
            None => Some((peer, self.in_place(start)?)),
        }
    }

    /// Returns the datagram with such an offset that stayed in its receive buffer.
    #[cold]
    fn in_place(&self, start: u32) -> Option<&SharedBytes> {
        self.in_place.get((start ^ IN_PLACE) as usize)?.share.as_ref()
    }

    /// The memory of datagram `index`, if it stayed where it came.
    #[inline]
    pub fn share(&self, index: usize) -> Option<&SharedBytes> {
        if self.in_place.is_empty() {
            return None;
        }
        self.in_place(self.datagrams.get(index)?.1)
    }

    /// When the kernel received the messages of the datagrams, in their order; empty if the driver does not know.
    #[inline]
    pub fn arrivals(&self) -> &[MessageArrival] {
        &self.arrivals
    }

    /// Unix time, in nanoseconds, at which the kernel received datagram `index`; `None` if the driver does not know.
    pub fn arrival_unix_ns(&self, index: usize) -> Option<u64> {
        let later = self.arrivals.partition_point(|arrival| arrival.first as usize <= index);
        Some(self.arrivals.get(later.checked_sub(1)?)?.unix_ns)
    }

    /// Notes the Unix time, in nanoseconds, at which the kernel received the message that is put in next.
    #[inline]
    pub fn note_arrival(&mut self, unix_ns: u64) {
        self.arrivals.push(MessageArrival { first: self.datagrams.len() as u32, unix_ns });
    }

    /// All datagrams, in the order in which they came.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (PeerAddr, &[u8])> {
        self.datagrams.iter().map(|(peer, start, len)| {
            let bytes = self.bytes.get(*start as usize..(start + len) as usize);
            (*peer, bytes.or_else(|| Some(self.in_place(*start)?)).unwrap_or_default())
        })
    }

    /// Lets `open` look at datagram `index` and change it. If `open` returns a sender and a part of the datagram, that
    /// part replaces the datagram. Otherwise it is empty from then on, and from [`NO_PEER`].
    #[inline]
    pub fn open(
        &mut self,
        index: usize,
        open: impl FnOnce(PeerAddr, &mut [u8]) -> Option<(PeerAddr, std::ops::Range<usize>)>,
    ) {
        self.bring(index);
        let Some(datagram) = self.datagrams.get_mut(index) else { return };
        let (peer, start, len) = *datagram;
        let Some(bytes) = self.bytes.get_mut(start as usize..(start + len) as usize) else { return };
        *datagram = match open(peer, bytes) {
            Some((peer, part)) if part.start <= part.end && part.end <= len as usize => {
                (peer, start + part.start as u32, (part.end - part.start) as u32)
            }
            _ => (NO_PEER, start, 0),
        };
    }

    /// Copies a datagram that stayed in its receive buffer into `bytes`, and releases that buffer: shared bytes must
    /// not be changed.
    pub fn bring(&mut self, index: usize) {
        let Some((_, start, len)) = self.datagrams.get_mut(index) else { return };
        if *start & IN_PLACE == 0 {
            return;
        }
        let Some(in_place) = self.in_place.get_mut((*start ^ IN_PLACE) as usize) else { return };
        let copy = in_place.copy_offset as usize..(in_place.copy_offset + *len) as usize;
        if let (Some(share), Some(copy)) = (in_place.share.take(), self.bytes.get_mut(copy)) {
            copy.copy_from_slice(&share);
            *start = in_place.copy_offset;
        }
    }

    /// Releases the memory of a datagram that stayed in its receive buffer, and drops the datagram, which is not used
    /// again.
    pub fn discard_shared(&mut self, index: usize) {
        let Some((_, start, _)) = self.datagrams.get(index) else { return };
        if *start & IN_PLACE != 0
            && let Some(in_place) = self.in_place.get_mut((*start ^ IN_PLACE) as usize)
        {
            in_place.share = None;
        }
    }

    /// Lists a datagram that stays where it came, for which there is room at `copy_offset`.
    fn list_in_place(&mut self, peer: PeerAddr, share: SharedBytes, copy_offset: usize) {
        let start = IN_PLACE | self.in_place.len() as u32;
        self.may_be_sealed |= requires_opening(peer, &share);
        self.datagrams.push((peer, start, share.len() as u32));
        self.in_place.push(InPlaceDatagram { share: Some(share), copy_offset: copy_offset as u32 });
    }

    /// Lists the datagrams of message `slot`: `len` bytes that the kernel has coalesced from segments of `segment`
    /// bytes.
    pub(super) fn list(&mut self, slot: usize, peer: PeerAddr, len: usize, segment: usize) {
        let start = slot * self.stride;
        let segment = if segment == 0 { len } else { segment };
        if len == 0 {
            self.may_be_sealed |= requires_opening(peer, &[]);
            self.datagrams.push((peer, start as u32, 0));
        }
        let mut at = 0;
        while at < len {
            let size = segment.min(len - at);
            self.may_be_sealed |= requires_opening(peer, self.bytes.get(start + at..).unwrap_or_default());
            self.datagrams.push((peer, (start + at) as u32, size as u32));
            at += size;
        }
    }

    /// Messages that may yet be put in.
    #[inline]
    pub(crate) fn free_slots(&self) -> usize {
        (self.bytes.len() / self.stride).saturating_sub(self.messages)
    }

    /// The driver has more to give, although there is room.
    pub(crate) fn mark_undrained(&mut self) {
        self.messages = self.messages.max(self.bytes.len() / self.stride);
    }

    /// Puts a datagram in, as a test or another driver would. False if there is no room for it.
    pub fn push(&mut self, peer: PeerAddr, datagram: &[u8]) -> bool {
        self.push_segments(peer, datagram, 0)
    }

    /// Puts many datagrams of one peer in: `bytes` are those of `segment` bytes each behind each other, the last of
    /// which may be shorter. 0: it is one. False if there is no room for them.
    pub fn push_segments(&mut self, peer: PeerAddr, bytes: &[u8], segment: usize) -> bool {
        let slot = self.messages;
        let start = slot * self.stride;
        if bytes.len() > self.stride {
            return false;
        }
        if self.free_slots() == 0 {
            return false;
        }
        let Some(buffer) = self.bytes.get_mut(start..start + bytes.len()) else { return false };
        buffer.copy_from_slice(bytes);
        self.list(slot, peer, bytes.len(), segment);
        self.messages += 1;
        true
    }

    /// Puts a datagram in that stays where it came. False if there would be no room for a copy of it.
    pub fn push_shared(&mut self, peer: PeerAddr, datagram: SharedBytes) -> bool {
        if datagram.len() > self.stride || self.free_slots() == 0 {
            return false;
        }
        self.list_in_place(peer, datagram, self.messages * self.stride);
        self.messages += 1;
        true
    }

    /// Like [`Burst::pack`] for a datagram that stays in its receive buffer.
    pub fn pack_shared(&mut self, peer: PeerAddr, share: &SharedBytes) -> bool {
        let (copy_offset, end) = (self.packed, self.packed + share.len());
        if end > self.bytes.len() || self.datagrams.len() == self.datagrams.capacity() {
            return false;
        }
        self.list_in_place(peer, share.clone(), copy_offset);
        self.packed = end;
        true
    }

    /// Keeps a copy of a datagram, right behind the one before. Returns false if there is no room for it. Not to be
    /// mixed with a driver's datagrams.
    pub fn pack(&mut self, peer: PeerAddr, datagram: &[u8]) -> bool {
        let start = self.packed;
        let Some(buffer) = self.bytes.get_mut(start..start + datagram.len()) else { return false };
        if self.datagrams.len() == self.datagrams.capacity() {
            return false;
        }
        buffer.copy_from_slice(datagram);
        self.may_be_sealed |= requires_opening(peer, datagram);
        self.datagrams.push((peer, start as u32, datagram.len() as u32));
        self.packed += datagram.len();
        true
    }
}
