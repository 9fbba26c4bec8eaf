//! The sending end: datagrams queued in one buffer, so that those of one size to one peer can leave in one call.

use super::sys::{Group, Queued};
use crate::limits::{BURST, GSO_BYTES, GSO_SEGMENTS, GSO_SLICES, OUTBOX_BYTES, OUTBOX_DATAGRAMS};
use crate::r2p2::{Peer, Transmit};

/// Datagrams to be sent. Bounded; what does not fit is dropped and counted, as a network would.
#[derive(Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    queue: Vec<Queued>,
    /// First datagram of `queue` that has not left.
    head: usize,
    /// Up to here `queue` is in the order of [`Outbox::arrange`].
    arranged: usize,
    /// Bytes of datagrams that did not fit and were dropped.
    dropped: u64,
    max_bytes: usize,
    max_datagrams: usize,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox::new(OUTBOX_BYTES, OUTBOX_DATAGRAMS)
    }
}

impl Transmit for Outbox {
    #[inline]
    fn send(&mut self, peer: Peer, parts: &[&[u8]]) {
        let size: usize = parts.iter().map(|part| part.len()).sum();
        if self.queue.len() - self.head >= self.max_datagrams || self.bytes.len() + size > self.max_bytes {
            self.dropped += 1;
            return;
        }
        let start = self.bytes.len() as u32;
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.queue.push(Queued { peer, start, len: size as u32 });
    }

    #[inline]
    fn send_then(&mut self, peer: Peer, parts: &[&[u8]], finish: &mut dyn FnMut(&mut [u8])) {
        let (start, queued) = (self.bytes.len(), self.queue.len());
        self.send(peer, parts);
        if self.queue.len() > queued {
            finish(self.bytes.get_mut(start..).unwrap_or_default());
        }
    }
}

impl Outbox {
    /// An outbox for at most so many bytes and datagrams. It allocates room for two bursts of small datagrams and grows to what is used.
    pub fn new(max_bytes: usize, max_datagrams: usize) -> Outbox {
        Outbox {
            bytes: Vec::with_capacity(max_bytes.min(128 << 10)),
            queue: Vec::with_capacity(max_datagrams.min(256)),
            head: 0,
            arranged: 0,
            dropped: 0,
            max_bytes: max_bytes.min(u32::MAX as usize),
            max_datagrams,
        }
    }

    /// Datagrams that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.queue.len() - self.head
    }

    /// Nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.queue.len()
    }

    /// Datagrams dropped because the outbox was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The datagrams that wait, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Peer, &[u8])> {
        self.queue.iter().skip(self.head).map(|queued| {
            let range = queued.start as usize..queued.start as usize + queued.len as usize;
            (queued.peer, self.bytes.get(range).unwrap_or_default())
        })
    }

    /// Forgets everything that waits.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.queue.clear();
        (self.head, self.arranged) = (0, 0);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The datagrams, those that have left first.
    pub(super) fn queue(&self) -> &[Queued] {
        &self.queue
    }

    /// Puts what has been queued since the last time in an order in which datagrams of one size to one peer are neighbours, the longer ones
    /// first: answers to one client that differ in size leave in as many messages as there are sizes. Those of one size keep their
    /// order, and nothing gets before what was queued earlier and could not leave, so that nothing waits for ever.
    pub(super) fn arrange(&mut self) {
        let from = self.arranged.max(self.head);
        self.arranged = self.queue.len();
        let Some(news) = self.queue.get_mut(from..) else { return };
        if !news.is_sorted_by_key(order) {
            news.sort_unstable_by_key(order);
        }
    }

    /// Fills `groups` with the next messages for the kernel: one datagram each, or with `segment` as many neighbours of equal size to one
    /// peer as may leave in one message (the last may be shorter).
    pub(super) fn groups(&self, segment: bool, groups: &mut Vec<Group>) {
        groups.clear();
        let (mut slices, mut end) = (0, None);
        for (index, queued) in self.queue.iter().enumerate().skip(self.head) {
            let len = queued.len;
            // Neighbours in the buffer go as one slice.
            let slice = usize::from(end != Some(queued.start));
            if slices == GSO_SLICES {
                break;
            }
            end = Some(queued.start + len);
            if let Some(last) = groups.last_mut()
                && segment
                && last.open
                && last.peer == queued.peer
                && len > 0
                && len <= last.segment
                && (last.count as usize) < GSO_SEGMENTS
                && (last.len + len) as usize <= GSO_BYTES
            {
                last.len += len;
                last.count += 1;
                last.open = len == last.segment;
                slices += slice;
                continue;
            }
            if groups.len() == BURST {
                break;
            }
            slices += 1;
            groups.push(Group { peer: queued.peer, first: index, len, segment: len, count: 1, open: len > 0 });
        }
    }

    /// The first `count` datagrams have left.
    pub(crate) fn advance(&mut self, count: usize) {
        self.head = (self.head + count).min(self.queue.len());
        if self.head == self.queue.len() {
            self.clear();
        }
    }

    /// Moves what waits to the front, so that the buffer does not fill up with what has left.
    pub(crate) fn compact(&mut self) {
        if self.head > 0 {
            self.queue.drain(..self.head);
            self.arranged = self.arranged.saturating_sub(self.head);
            self.head = 0;
            let from = self.queue.iter().map(|queued| queued.start).min().unwrap_or(0);
            self.bytes.drain(..from as usize);
            for queued in &mut self.queue {
                queued.start -= from;
            }
        }
    }
}

/// What datagrams are arranged by: a digest of the peer, the size, and the order in which they were queued. (Two peers with one digest
/// only come to be mixed.)
#[inline]
fn order(queued: &Queued) -> (u64, u32) {
    let address = match queued.peer {
        Peer::V4(peer) => u32::from_ne_bytes(peer.ip().octets()),
        Peer::V6(peer) => {
            peer.ip().segments().into_iter().fold(0, |digest: u32, word| digest.rotate_left(5) ^ u32::from(word))
        }
    };
    let peer = address.wrapping_mul(0x9E37_79B1) ^ u32::from(queued.peer.port());
    (u64::from(peer) << 32 | u64::from(!queued.len), queued.start)
}
