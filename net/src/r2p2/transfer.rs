//! The two halves of a transfer of one longer message: a windowed sender and a reassembling receiver. They hold no
//! bytes that they send, no sockets and no clock.

use super::header::{AckReport, MessageFragment, R2p2Kind, fragment_header};
use super::{DatagramSink, MessageSlices, PeerAddr};
use crate::limits::{
    ACK_EVERY, MAX_REQUEST_LIFETIME_US, MAX_RTO_US, RESEND_BURST, STALLED_AGE_US, STALLED_IDLE_US, UNRESPONSIVE_TIMERS,
};

/// The name of a transfer on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferId {
    pub(super) kind: R2p2Kind,
    pub(super) request_id: u16,
    pub(super) ident: u32,
    pub(super) incarnation: u32,
}

/// Chunks of a message: lengths and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkLayout {
    pub(super) message_len: u32,
    pub(super) chunk_len: u16,
    pub(super) count: u16,
}

impl ChunkLayout {
    /// The shape of a message cut for datagrams of `max_datagram` bytes, if it can be cut so.
    pub(super) fn of(message_len: usize, max_datagram: usize) -> Option<ChunkLayout> {
        let chunk_len = u16::try_from(max_datagram.checked_sub(super::header::LONG_HEADER_LEN)?).ok()?;
        let message_len = u32::try_from(message_len).ok()?;
        let count = u16::try_from(message_len.div_ceil(u32::from(chunk_len).max(1))).ok()?;
        Some(ChunkLayout { message_len, chunk_len, count })
    }

    pub(super) fn of_fragment(part: &MessageFragment<'_>) -> ChunkLayout {
        ChunkLayout { message_len: part.message_len, chunk_len: part.chunk_len, count: part.count }
    }

    /// Returns whether its packets are no larger than `max_datagram` bytes.
    pub(super) fn fits(&self, max_datagram: usize) -> bool {
        self.datagram_len() <= max_datagram
    }

    /// Bytes of each packet but the last.
    pub(super) fn datagram_len(&self) -> usize {
        usize::from(self.chunk_len) + super::header::LONG_HEADER_LEN
    }

    fn range(&self, index: u16) -> std::ops::Range<usize> {
        let start = usize::from(index) * usize::from(self.chunk_len);
        start..(start + usize::from(self.chunk_len)).min(self.message_len as usize)
    }
}

/// Sends one packet of a message: chunk `index`, or with `announce` packet 0 without its chunk.
fn send_fragment(
    name: &TransferId,
    shape: &ChunkLayout,
    index: u16,
    announce: bool,
    peer: PeerAddr,
    message: MessageSlices<'_>,
    tx: &mut impl DatagramSink,
) {
    let fields = MessageFragment {
        ident: name.ident,
        incarnation: name.incarnation,
        message_len: shape.message_len,
        chunk_len: shape.chunk_len,
        index,
        count: shape.count,
        chunk: &[],
    };
    let head = fragment_header(name.kind, name.request_id, &fields);
    message.send(peer, &head, if announce { 0..0 } else { shape.range(index) }, tx);
}

/// Sends the packet that announces a message.
pub(super) fn announce(name: &TransferId, shape: &ChunkLayout, peer: PeerAddr, tx: &mut impl DatagramSink) {
    send_fragment(name, shape, 0, true, peer, MessageSlices::of(&[]), tx);
}

/// Progress of the sender of a message.
#[derive(Debug)]
pub(super) struct WindowSender {
    pub(super) shape: ChunkLayout,
    window: u16,
    /// Chunks acked without a gap.
    acked: u16,
    /// Chunks acked behind the gap: bit i is chunk `acked + 1 + i`.
    map: u64,
    /// First chunk that was never sent.
    fresh: u16,
    /// Holes below this chunk were resent since the last timer.
    repaired_below: u16,
    pub(super) due_us: u64,
    rto_us: u64,
    first_rto_us: u64,
    /// Timers in a row without progress.
    pub(super) stalls: u32,
    /// True if anything was ever acked.
    has_heard: bool,
}

impl WindowSender {
    pub(super) fn new(shape: ChunkLayout, window: u16, first_rto_us: u64, now_us: u64) -> WindowSender {
        let window = window.clamp(1, 64);
        let due_us = now_us + first_rto_us;
        WindowSender {
            shape,
            window,
            acked: 0,
            map: 0,
            fresh: 0,
            repaired_below: 0,
            due_us,
            rto_us: first_rto_us,
            first_rto_us,
            stalls: 0,
            has_heard: false,
        }
    }

    /// All chunks are acked.
    pub(super) fn done(&self) -> bool {
        self.acked == self.shape.count
    }

    /// Returns whether no ack has ever come, however often it was sent: the peer is gone, or speaks no such acks.
    pub(super) fn is_unresponsive(&self) -> bool {
        !self.has_heard && self.stalls >= UNRESPONSIVE_TIMERS
    }

    /// Forgets which chunks were acked: the receiver may have forgotten the message.
    pub(super) fn restart(&mut self) {
        (self.acked, self.map, self.fresh, self.repaired_below) = (0, 0, 0, 0);
    }

    /// Forgets which chunks were acked, and cuts the message in another layout.
    pub(super) fn restart_with_layout(&mut self, shape: ChunkLayout) {
        self.restart();
        (self.shape, self.stalls) = (shape, 0);
    }

    fn has(&self, index: u16) -> bool {
        let Some(offset) = index.checked_sub(self.acked) else { return true };
        (1..=64).contains(&offset) && self.map >> (offset - 1) & 1 == 1
    }

    /// Takes an ack. Returns false if it says nothing new, or something impossible.
    pub(super) fn ack(&mut self, report: &AckReport, now_us: u64) -> bool {
        if report.next > self.shape.count || report.next < self.acked {
            return false;
        }
        let shift = u32::from(report.next - self.acked);
        let known = self.map.checked_shr(shift).unwrap_or(0);
        let map = known | report.map;
        if shift == 0 && map == self.map {
            return false;
        }
        self.has_heard = true;
        self.acked = report.next;
        self.map = map;
        self.fresh = self.fresh.max(self.acked);
        self.repaired_below = self.repaired_below.max(self.acked);
        self.stalls = 0;
        self.rto_us = self.first_rto_us;
        self.due_us = now_us + self.rto_us;
        true
    }

    /// Sends the packets that the window has room for, and the holes that acks have shown. Returns packets resent.
    pub(super) fn pump(
        &mut self,
        name: &TransferId,
        peer: PeerAddr,
        message: MessageSlices<'_>,
        tx: &mut impl DatagramSink,
    ) -> u64 {
        let mut resent = 0;
        if self.map.count_ones() >= 3 {
            // Three later chunks arrived: a chunk that is missing below the third highest was lost, not only late.
            let highest = self.acked + (64 - self.map.leading_zeros()) as u16;
            let below = highest.saturating_sub(2).min(self.fresh);
            for index in self.repaired_below.max(self.acked)..below {
                if !self.has(index) {
                    send_fragment(name, &self.shape, index, false, peer, message, tx);
                    resent += 1;
                }
            }
            self.repaired_below = self.repaired_below.max(below);
        }
        let end = self.acked.saturating_add(self.window).min(self.shape.count);
        while self.fresh < end {
            if !self.has(self.fresh) {
                send_fragment(name, &self.shape, self.fresh, false, peer, message, tx);
            }
            self.fresh += 1;
        }
        resent
    }

    /// Backs off: the next timer comes after twice the wait.
    pub(super) fn back_off(&mut self, now_us: u64) {
        self.stalls += 1;
        self.rto_us = (self.rto_us * 2).min(MAX_RTO_US.max(self.first_rto_us));
        self.due_us = now_us + self.rto_us;
    }

    /// The timer expired: resends the oldest chunks that are not acked. Returns how many.
    pub(super) fn resend(
        &mut self,
        name: &TransferId,
        peer: PeerAddr,
        message: MessageSlices<'_>,
        tx: &mut impl DatagramSink,
    ) -> u64 {
        let mut resent = 0;
        self.repaired_below = self.acked;
        for index in self.acked..self.fresh {
            if !self.has(index) {
                send_fragment(name, &self.shape, index, false, peer, message, tx);
                self.repaired_below = index + 1;
                resent += 1;
                if resent == RESEND_BURST as u64 {
                    break;
                }
            }
        }
        resent
    }
}

/// A message under reassembly.
#[derive(Debug)]
pub(super) struct PartialMessage {
    pub(super) shape: ChunkLayout,
    pub(super) incarnation: u32,
    /// At a server: the owner whose room it takes.
    pub(super) owner: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) begun_us: u64,
    last_chunk_us: u64,
    seen: Vec<u64>,
    /// Chunks received without a gap.
    next: u16,
    /// Chunks received.
    have: u16,
    unacked: u16,
}

/// The outcome of receiving a chunk.
pub(super) struct ChunkOutcome {
    /// It was not there before.
    pub(super) new: bool,
    /// The sender should hear of it now.
    pub(super) ack: bool,
    /// The message is complete.
    pub(super) complete: bool,
}

impl PartialMessage {
    /// A reassembly in `bytes`, whose old content does not matter.
    pub(super) fn new(
        shape: ChunkLayout,
        incarnation: u32,
        owner: u32,
        mut bytes: Vec<u8>,
        now_us: u64,
    ) -> PartialMessage {
        if bytes.capacity() == 0 {
            // Zeros from the system: an announced message takes no memory before its chunks come.
            bytes = vec![0; shape.message_len as usize];
        }
        bytes.resize(shape.message_len as usize, 0);
        let seen = vec![0; usize::from(shape.count).div_ceil(64)];
        PartialMessage {
            shape,
            incarnation,
            owner,
            bytes,
            begun_us: now_us,
            last_chunk_us: now_us,
            seen,
            next: 0,
            have: 0,
            unacked: 0,
        }
    }

    fn has(&self, index: u16) -> bool {
        self.seen.get(usize::from(index) / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Takes the chunk of a packet that has this transfer's shape.
    pub(super) fn take(&mut self, part: &MessageFragment<'_>, now_us: u64) -> ChunkOutcome {
        if part.chunk.is_empty() || self.has(part.index) {
            self.unacked = 0;
            return ChunkOutcome { new: false, ack: true, complete: false };
        }
        let Some(slot) = self.bytes.get_mut(self.shape.range(part.index)) else {
            return ChunkOutcome { new: false, ack: false, complete: false };
        };
        if slot.len() != part.chunk.len() {
            return ChunkOutcome { new: false, ack: false, complete: false };
        }
        slot.copy_from_slice(part.chunk);
        if let Some(word) = self.seen.get_mut(usize::from(part.index) / 64) {
            *word |= 1 << (part.index % 64);
        }
        self.last_chunk_us = now_us;
        self.have += 1;
        let had_gap = self.have - 1 > self.next;
        while self.next < self.shape.count && self.has(self.next) {
            self.next += 1;
        }
        self.unacked += 1;
        let complete = self.have == self.shape.count;
        let ack = complete || had_gap || self.have > self.next || self.unacked >= ACK_EVERY;
        if ack {
            self.unacked = 0;
        }
        ChunkOutcome { new: true, ack, complete }
    }

    /// Returns the time at which it is given up, if nothing new comes within `timeout_us`.
    pub(super) fn ends_us(&self, timeout_us: u64) -> u64 {
        (self.last_chunk_us + timeout_us).min(self.begun_us + MAX_REQUEST_LIFETIME_US)
    }

    /// Returns whether nothing came for some time.
    pub(super) fn is_idle(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.last_chunk_us) >= STALLED_IDLE_US
    }

    /// Returns whether it is stalled: nothing came for some time, or so little that it would not be whole within a
    /// request's lifetime.
    pub(super) fn is_stalled(&self, now_us: u64) -> bool {
        let age_us = now_us.saturating_sub(self.begun_us);
        let too_slow = u64::from(self.have) * MAX_REQUEST_LIFETIME_US < u64::from(self.shape.count) * age_us;
        self.is_idle(now_us) || (age_us >= STALLED_AGE_US && too_slow)
    }

    /// Returns which chunks have been received.
    pub(super) fn report(&self, ident: u32) -> AckReport {
        let mut map = 0;
        for bit in 0..64u16 {
            let Some(index) = self.next.checked_add(1 + bit).filter(|index| *index < self.shape.count) else { break };
            map |= u64::from(self.has(index)) << bit;
        }
        AckReport { ident, incarnation: self.incarnation, next: self.next, map }
    }
}

/// Returns whether transmission `new` began after `old`, in wrapping order.
pub(super) fn is_newer_incarnation(new: u32, old: u32) -> bool {
    new != old && new.wrapping_sub(old) < 1 << 31
}
