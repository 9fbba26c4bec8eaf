//! The sending end: datagrams queued behind each other in one buffer, so that neighbours to one peer can leave in one call.

use super::sys::Group;
use crate::limits::{BURST, GSO_BYTES, GSO_SEGMENTS, OUTBOX_BYTES, OUTBOX_DATAGRAMS};
use crate::r2p2::{Peer, Transmit};

/// Datagrams to be sent. Bounded; what does not fit is dropped and counted, as a network would.
#[derive(Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    queue: Vec<(Peer, u32, u32)>,
    /// First datagram of `queue` that has not left.
    head: usize,
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
        self.queue.push((peer, start, size as u32));
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
        self.queue.iter().skip(self.head).map(|(peer, start, len)| {
            (*peer, self.bytes.get(*start as usize..(start + len) as usize).unwrap_or_default())
        })
    }

    /// Forgets everything that waits.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.queue.clear();
        self.head = 0;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Fills `groups` with the next messages for the kernel: one datagram each, or with `segment` as many neighbours of equal size to one
    /// peer as may leave in one message (the last may be shorter).
    pub(super) fn groups(&self, segment: bool, groups: &mut Vec<Group>) {
        groups.clear();
        for (peer, start, len) in self.queue.iter().skip(self.head).copied() {
            if let Some(last) = groups.last_mut()
                && segment
                && last.open
                && last.peer == peer
                && len > 0
                && len <= last.segment
                && (last.count as usize) < GSO_SEGMENTS
                && (last.len + len) as usize <= GSO_BYTES
            {
                last.len += len;
                last.count += 1;
                last.open = len == last.segment;
                continue;
            }
            if groups.len() == BURST {
                break;
            }
            groups.push(Group { peer, start, len, segment: len, count: 1, open: len > 0 });
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
            let from = self.queue.get(self.head).map_or(0, |(_, start, _)| *start);
            self.bytes.drain(..from as usize);
            self.queue.drain(..self.head);
            for (_, start, _) in &mut self.queue {
                *start -= from;
            }
            self.head = 0;
        }
    }
}
