//! The sending end: datagrams queued in one buffer, so that those of one size to one peer can leave in one call. Shared
//! bytes stay where they lie until the datagram leaves.

use super::PathMtu;
use super::sys::{GsoMessage, OutboxBuffers, OutboxEntry, SharedSlice};
use crate::limits::{
    BURST, GSO_BYTES, GSO_SEGMENTS, GSO_SLICES, MAX_DATAGRAM_CEILING, OUTBOX_BYTES, OUTBOX_DATAGRAMS,
    OUTBOX_PINNED_BYTES, OUTBOX_SORT_WINDOW, SHARED_SLICE_BYTES,
};
use crate::r2p2::{DatagramSink, PeerAddr};
use crate::seal::limits::REPLAY_WINDOW;
use crate::shared_bytes::SharedBytes;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

// A sealed session's packets, numbered as they are queued, must not leave too late to be taken.
const _: () = assert!(OUTBOX_SORT_WINDOW as u64 * 2 <= REPLAY_WINDOW);

/// Datagrams to be sent. It is bounded; datagrams that do not fit are dropped and counted, as in a network.
#[derive(Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    queue: Vec<OutboxEntry>,
    /// Shared bytes of the datagrams of `queue`, each until its datagram has left.
    slices: Vec<Option<SharedSlice>>,
    /// Bytes that are kept for them: all bytes of the owners, and not only those that are sent.
    pinned_bytes: usize,
    /// First datagram of `queue` that has not left.
    head: usize,
    /// Up to here `queue` is in the order of [`Outbox::sort_for_segmentation`].
    sorted_until: usize,
    /// Datagrams that did not fit and were dropped.
    dropped: u64,
    max_bytes: usize,
    max_datagrams: usize,
    path_mtu: Option<Arc<dyn PathMtu>>,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox::new(OUTBOX_BYTES, OUTBOX_DATAGRAMS)
    }
}

/// A datagram that waits.
#[derive(Clone, Copy, Debug)]
pub struct QueuedDatagram<'o> {
    /// The receiver.
    pub peer: PeerAddr,
    own: &'o [u8],
    slice: Option<&'o SharedSlice>,
}

impl<'o> QueuedDatagram<'o> {
    /// Its bytes, and those behind them that are shared.
    #[inline]
    pub fn parts(&self) -> [&'o [u8]; 2] {
        [self.own, self.slice.map_or(&[], SharedSlice::bytes)]
    }

    /// Returns the shared bytes that its last bytes belong to, and their range.
    #[inline]
    pub fn shared(&self) -> Option<(&'o SharedBytes, Range<usize>)> {
        self.slice.map(|slice| (&slice.share, slice.range.clone()))
    }

    /// Number of its bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.parts().map(<[u8]>::len).iter().sum()
    }

    /// It has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes, in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.parts().concat()
    }
}

impl DatagramSink for Outbox {
    #[inline]
    fn send(&mut self, peer: PeerAddr, parts: &[&[u8]]) {
        let size: usize = parts.iter().map(|part| part.len()).sum();
        if self.queue.len() - self.head >= self.max_datagrams || self.bytes.len() + size > self.max_bytes {
            self.dropped += 1;
            return;
        }
        let start = self.bytes.len() as u32;
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.queue.push(OutboxEntry { peer, start, own: size as u32, len: size as u32, slice: OutboxEntry::OWN });
    }

    #[inline]
    fn send_then(&mut self, peer: PeerAddr, parts: &[&[u8]], finish: &mut dyn FnMut(&mut [u8])) {
        let (start, queued) = (self.bytes.len(), self.queue.len());
        self.send(peer, parts);
        if self.queue.len() > queued {
            finish(self.bytes.get_mut(start..).unwrap_or_default());
        }
    }

    #[inline]
    fn most(&mut self, peer: PeerAddr) -> usize {
        self.path_mtu.as_ref().map_or(MAX_DATAGRAM_CEILING, |path_mtu| path_mtu.most(peer))
    }

    fn send_shared(&mut self, peer: PeerAddr, parts: [&[u8]; 2], share: &SharedBytes, range: Range<usize>) {
        let ([head, own], shared) = (parts, share.get(range.clone()).unwrap_or_default());
        // Packets of one message come in a row.
        let same = self.slices.last().and_then(Option::as_ref).is_some_and(|last| last.share.same_owner(share));
        let pinned_bytes = if same { 0 } else { share.len() };
        if shared.len() < SHARED_SLICE_BYTES || self.pinned_bytes + pinned_bytes > OUTBOX_PINNED_BYTES {
            return self.send(peer, &[head, own, shared]);
        }
        let queued = self.queue.len();
        self.send(peer, &[head, own]);
        if self.queue.len() > queued
            && let Some(last) = self.queue.last_mut()
        {
            (last.len, last.slice) = (last.len + shared.len() as u32, self.slices.len() as u32);
            self.slices.push(Some(SharedSlice { share: share.clone(), range }));
            self.pinned_bytes += pinned_bytes;
        }
    }
}

impl Outbox {
    /// Makes an outbox for at most so many bytes and datagrams. It allocates room for two bursts of small datagrams and
    /// grows as needed.
    pub fn new(max_bytes: usize, max_datagrams: usize) -> Outbox {
        Outbox {
            bytes: Vec::with_capacity(max_bytes.min(128 << 10)),
            queue: Vec::with_capacity(max_datagrams.min(256)),
            slices: Vec::new(),
            pinned_bytes: 0,
            head: 0,
            sorted_until: 0,
            dropped: 0,
            max_bytes: max_bytes.min(u32::MAX as usize),
            max_datagrams,
            path_mtu: None,
        }
    }

    /// Makes an outbox for datagrams that take these paths.
    pub fn along(path_mtu: Arc<dyn PathMtu>) -> Outbox {
        Outbox { path_mtu: Some(path_mtu), ..Outbox::default() }
    }

    /// The kernel refused a datagram of this size to this peer.
    pub(super) fn refused(&self, peer: PeerAddr, bytes: usize) {
        if let Some(path_mtu) = &self.path_mtu {
            path_mtu.refused(peer, bytes);
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
    pub fn iter(&self) -> impl Iterator<Item = QueuedDatagram<'_>> {
        let stock = self.buffers();
        self.queue.iter().skip(self.head).map(move |queued| {
            let (own, _) = stock.parts(queued).unwrap_or_default();
            QueuedDatagram { peer: queued.peer, own, slice: stock.slice(queued) }
        })
    }

    /// Forgets everything that waits.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.queue.clear();
        self.slices.clear();
        (self.head, self.sorted_until, self.pinned_bytes) = (0, 0, 0);
    }

    /// The buffers of which the datagrams are made.
    #[inline]
    pub(super) fn buffers(&self) -> OutboxBuffers<'_> {
        OutboxBuffers { bytes: &self.bytes, slices: &self.slices }
    }

    /// The datagrams, those that have left first.
    pub(super) fn queue(&self) -> &[OutboxEntry] {
        &self.queue
    }

    /// Sorts what has been queued since the last call, so that datagrams of one size to one peer are neighbours, the
    /// longer ones first. Answers to one client that differ in size then leave in as many messages as there are sizes.
    /// Datagrams of one size keep their order. None moves before one that was queued [`OUTBOX_SORT_WINDOW`] earlier,
    /// and none before those that could not leave the last time, so that no datagram waits for ever.
    pub(super) fn sort_for_segmentation(&mut self) {
        let from = self.sorted_until.max(self.head);
        self.sorted_until = self.queue.len();
        let Some(news) = self.queue.get_mut(from..) else { return };
        for part in news.chunks_mut(OUTBOX_SORT_WINDOW) {
            if !part.is_sorted_by(|one, next| compare_entries(one, next).is_le()) {
                part.sort_unstable_by(compare_entries);
            }
        }
    }

    /// Fills `groups` with the next messages for the kernel: one datagram each, or with `segment` as many neighbours of
    /// equal size to one peer as may leave in one message (the last may be shorter).
    pub(super) fn groups(&self, segment: bool, groups: &mut Vec<GsoMessage>) {
        groups.clear();
        let (mut slices, mut end) = (0, None);
        for (index, queued) in self.queue.iter().enumerate().skip(self.head) {
            let len = queued.len;
            // Neighbours in the buffer go as one slice.
            let shared = usize::from(queued.slice != OutboxEntry::OWN);
            let slice = usize::from(end != Some(queued.start)) + shared;
            if slices + 2 > GSO_SLICES {
                break;
            }
            end = (shared == 0).then_some(queued.start + len);
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
            slices += 1 + shared;
            groups.push(GsoMessage { peer: queued.peer, first: index, len, segment: len, count: 1, open: len > 0 });
        }
    }

    /// The first `count` datagrams have left.
    pub(crate) fn advance(&mut self, count: usize) {
        let left = self.head..(self.head + count).min(self.queue.len());
        self.head = left.end;
        if self.head == self.queue.len() {
            return self.clear();
        }
        if !self.slices.is_empty() {
            for queued in self.queue.get(left).unwrap_or_default() {
                if let Some(slice) = self.slices.get_mut(queued.slice as usize) {
                    *slice = None;
                }
            }
        }
    }

    /// Moves the waiting datagrams to the front, so that the buffer does not fill up with those that have left. Bytes
    /// are moved once a quarter of them is no longer wanted, wherever in the buffer that was. So for each byte that
    /// leaves at most three are moved.
    pub(crate) fn compact(&mut self) {
        if self.head == 0 {
            return;
        }
        self.queue.drain(..self.head);
        self.sorted_until = self.sorted_until.saturating_sub(self.head);
        self.head = 0;
        self.compact_slices();
        let waiting: usize = self.queue.iter().map(|queued| queued.own as usize).sum();
        if waiting > self.bytes.len() / 4 * 3 {
            return;
        }
        let mut in_slice_order: Vec<&mut OutboxEntry> = self.queue.iter_mut().collect();
        in_slice_order.sort_unstable_by_key(|queued| queued.start);
        let mut end = 0;
        for queued in in_slice_order {
            let start = queued.start as usize;
            self.bytes.copy_within(start..start + queued.own as usize, end as usize);
            queued.start = end;
            end += queued.own;
        }
        self.bytes.truncate(end as usize);
    }

    /// Moves the waiting slices to the front, and counts the bytes that they keep anew.
    fn compact_slices(&mut self) {
        if self.slices.is_empty() {
            return;
        }
        let mut positions = vec![0; self.slices.len()];
        let (mut count, mut last): (u32, Option<&SharedBytes>) = (0, None);
        self.pinned_bytes = 0;
        for (slice, position) in self.slices.iter().zip(&mut positions) {
            let Some(SharedSlice { share, .. }) = slice else { continue };
            self.pinned_bytes += if last.is_some_and(|last| last.same_owner(share)) { 0 } else { share.len() };
            (*position, count, last) = (count, count + 1, Some(share));
        }
        self.slices.retain(Option::is_some);
        for queued in &mut self.queue {
            if let Some(position) = positions.get(queued.slice as usize) {
                queued.slice = *position;
            }
        }
    }
}

/// Order of datagrams: by a digest of the peer and the size, by the peer, and as they were queued. (Sizes of two peers
/// with one digest alternate, but each peer's of one size are together.)
#[inline]
fn compare_entries(one: &OutboxEntry, other: &OutboxEntry) -> Ordering {
    let by_peer = || one.peer.cmp(&other.peer);
    let as_queued = || one.start.cmp(&other.start);
    // Most are: answers to one client's questions of one kind.
    if one.len == other.len && one.peer == other.peer {
        return as_queued();
    }
    sort_key(one).cmp(&sort_key(other)).then_with(by_peer).then_with(as_queued)
}

#[inline]
fn sort_key(queued: &OutboxEntry) -> u64 {
    let address = match queued.peer {
        PeerAddr::V4(peer) => u32::from_ne_bytes(peer.ip().octets()),
        PeerAddr::V6(peer) => {
            peer.ip().segments().into_iter().fold(0, |digest: u32, word| digest.rotate_left(5) ^ u32::from(word))
        }
    };
    let peer = address.wrapping_mul(0x9E37_79B1) ^ u32::from(queued.peer.port());
    u64::from(peer) << 32 | u64::from(!queued.len)
}
