//! A pair of queues, as a frame port.
//!
//! Guarantees: a pair is handed out once for each queue of an open port, so one thread at a time receives and sends on
//! it. Each buffer has one owner: the device, a pool, the pair (what it has received and what it writes), or the
//! [`RxBuffer`] that took it out. The owner gives it back once. Bytes of a received frame are lent only while its
//! buffer is the pair's, and are those that the device reports as written. With memif this holds as far as its peer can
//! be trusted. A peer with fewer queues, or one that goes in the middle of a burst, makes its driver touch other memory
//! (docs/dpdk.md).
#![allow(unsafe_code)]

use super::open_port::{FRAME_OVERHEAD, OpenPort, PortCounters};
use super::payload_source::PayloadSource;
use super::pool::MbufPool;
use super::send_memory::SendMemory;
use crate::driver::ReceivePressure;
use crate::limits::{
    BURST, DPDK_EMPTY_RECEIVES_BEFORE_CLEANUP, DPDK_FULL_SENDS_BEFORE_LINK_CHECK, DPDK_LINK_CHECK_MS,
    DPDK_ZERO_COPY_MIN_BYTES,
};
use crate::rx_budget::RxBufferBudget;
use crate::shared_bytes::SharedBytes;
use crate::stack::{ChecksumStatus, FramePart, FramePort, InterruptFault, MacAddress, PortOffloads, RxFrame, TxFrame};
use arrayvec::ArrayVec;
use sandstorm_dpdk_sys as sys;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of an Ethernet header without a tag.
const ETHERNET: u16 = 14;

/// No buffer.
const NO_FRAME: sys::ss_frame =
    sys::ss_frame { mbuf: ptr::null_mut(), data: ptr::null_mut(), len: 0, total: 0, flags: 0, l2: 0, l3: 0, behind: 0 };

/// One receive and one transmit queue of a port.
pub struct QueuePair {
    /// The frames received last: the first `received`, of which those that were taken have no buffer.
    frames: [sys::ss_frame; BURST],
    received: usize,
    /// Frames that came in several buffers, reassembled, each in its part.
    whole: Vec<u8>,
    /// Buffers for frames that are being sent; between two sends they are not the pair's.
    outgoing: [sys::ss_frame; BURST],
    /// Bytes of the largest frame.
    longest: usize,
    offload: PortOffloads,
    queue: u16,
    /// Sends in a row that found no room.
    full: u32,
    /// Empty receives in a row since the last send.
    empty: u32,
    /// Frames that could not be sent.
    send_errors: u64,
    /// Frames that were too long to be received whole.
    cut: u64,
    /// The time of the last look at the link, and whether it was up; only of the first queue.
    link_checked: Option<Instant>,
    was_up: bool,
    port: Arc<OpenPort>,
}

// SAFETY: a queue may be used from any thread as long as it is one at a time, which `&mut` makes sure of.
unsafe impl Send for QueuePair {}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (port, queue) = (self.port.number(), self.queue);
        f.debug_struct("QueuePair").field("port", &port).field("queue", &queue).finish_non_exhaustive()
    }
}

impl QueuePair {
    pub(super) fn new(port: Arc<OpenPort>, queue: u16) -> QueuePair {
        let (ip_fill, udp_fill) = port.info.tx_checksums;
        QueuePair {
            frames: [NO_FRAME; BURST],
            received: 0,
            whole: Vec::new(),
            outgoing: [NO_FRAME; BURST],
            longest: usize::from(port.info.mtu) + usize::from(FRAME_OVERHEAD),
            offload: PortOffloads { ip_fill, udp_fill, udp_checksum_optional: port.checksums_optional },
            queue,
            full: 0,
            empty: 0,
            send_errors: 0,
            cut: 0,
            link_checked: None,
            was_up: false,
            port,
        }
    }

    /// Returns the queue's number in its port.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Returns the budget of its kept buffers.
    pub fn rx_budget(&self) -> Option<&Arc<RxBufferBudget>> {
        self.port.rx_budgets.get(usize::from(self.queue))
    }

    /// Returns whether the link is up.
    pub fn is_up(&self) -> bool {
        self.port.is_up()
    }

    /// Returns the number of frames that were dropped because they were longer than the MTU allows.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Gives back the frames received last.
    fn give_back(&mut self) {
        let received = std::mem::take(&mut self.received);
        if let Some(frames) = self.frames.get_mut(..received)
            && !frames.is_empty()
        {
            // SAFETY: these are the pair's own or none at all, and are forgotten with this.
            unsafe { sys::ss_free(frames.as_mut_ptr(), frames.len() as u16) };
        }
    }

    /// Has a device that reads memory by itself release the sent bytes, once no frame has come for a while. Otherwise
    /// it releases them at the next send.
    fn let_go(&mut self) {
        if self.port.reads.dma().is_some() {
            // SAFETY: the port runs, and this is the only owner of the queue. Drivers that cannot say so.
            let _how_many_or_that_it_cannot =
                unsafe { sys::rte_eth_tx_done_cleanup(self.port.number(), self.queue, 0) };
        }
    }

    /// Reassembles a frame that came in several buffers.
    #[cold]
    fn gather(&mut self, index: usize) {
        let longest = self.longest;
        if self.whole.is_empty() {
            self.whole = vec![0; longest * BURST];
        }
        let Some(slot) = self.whole.get_mut(index * longest..(index + 1) * longest) else { return };
        let Some(frame) = self.frames.get_mut(index) else { return };
        // SAFETY: the frame is the pair's own; it is copied as far as there is room, or not at all.
        let copied = unsafe { sys::ss_copy(frame, slot.as_mut_ptr(), slot.len() as u32) };
        if copied != frame.total {
            (frame.len, frame.total) = (0, 0);
            self.cut += 1;
        }
    }

    /// Writes a frame into a buffer that was taken for it. Shared bytes at its end stay in place, if the port sends
    /// from there. Returns None if it does not fit, otherwise the source of its last bytes.
    fn make(
        buffer: &mut sys::ss_frame,
        frame: &TxFrame<'_>,
        shares: Option<(&MbufPool, &SendMemory)>,
        longest: usize,
    ) -> Option<PayloadSource> {
        let Some((FramePart::Shared(share, range), before)) = frame.parts.split_last() else {
            return Self::write(buffer, frame).then_some(PayloadSource::Unshared);
        };
        let bytes = share.get(range.clone()).unwrap_or_default();
        let len = u16::try_from(bytes.len()).ok()?;
        if len == 0 {
            return Self::write(buffer, frame).then_some(PayloadSource::Unshared);
        }
        let fits = frame.len() <= longest;
        let Some((pool, _)) = shares.filter(|(_, reads)| fits && reads.reach(bytes)) else {
            return Self::write(buffer, frame).then_some(PayloadSource::Copied);
        };
        if !Self::write(buffer, &TxFrame { parts: before, ..*frame }) {
            return None;
        }
        let (owner, release) = SharedBytes::clone(share).into_raw();
        // SAFETY: the pool lives, the buffer is the pair's own and holds the bytes before. The bytes stay where they
        // are until `release` is called, which is done once: by the one that frees the frame.
        let attached =
            unsafe { sys::ss_attach(pool.pointer(), buffer, bytes.as_ptr(), len, owner.as_ptr(), Some(release)) };
        if attached == 0 {
            return Some(PayloadSource::InPlace);
        }
        // SAFETY: nothing was attached, so the hold is still this function's, which gives it up.
        unsafe { release(owner.as_ptr()) };
        Self::write(buffer, frame).then_some(PayloadSource::Copied)
    }

    /// Writes a frame into a buffer that was taken for it. Returns false if it does not fit.
    fn write(buffer: &mut sys::ss_frame, frame: &TxFrame<'_>) -> bool {
        let len = frame.len();
        if len == 0 || len > buffer.total as usize {
            return false;
        }
        // SAFETY: the buffer is the pair's own, and has `total` bytes from `data` on. They may never have been written:
        // the compiler cannot know, since they come from outside, and they are written before they are read.
        let room = unsafe { std::slice::from_raw_parts_mut(buffer.data, len) };
        if frame.copy_to(room) != Some(len) {
            return false;
        }
        (buffer.len, buffer.l2, buffer.l3) = (len as u32, ETHERNET, frame.ip_header_len as u16);
        buffer.flags = if frame.fill.ip { sys::SS_FILL_IP } else { 0 };
        buffer.flags |= if frame.fill.udp { sys::SS_FILL_UDP } else { 0 };
        if frame.header.get(usize::from(ETHERNET)).is_some_and(|first| first >> 4 == 6) {
            buffer.flags |= sys::SS_IPV6;
        }
        true
    }

    /// Sends so many frames. Returns how many were dealt with.
    fn send(&mut self, frames: &[TxFrame<'_>]) -> usize {
        let QueuePair { outgoing: buffers, port, queue, longest, .. } = self;
        let Some(pool) = port.pools.get(usize::from(*queue)) else { return 0 };
        let shares = port.external_pools.get(usize::from(*queue)).map(|pool| (pool, &port.reads));
        let count = frames.len().min(BURST);
        // SAFETY: the pool lives, and there is room for so many.
        if unsafe { sys::ss_allocate(pool.pointer(), buffers.as_mut_ptr(), count as u16) } < 0 {
            return 0;
        }
        // Frames that do not fit are left out, so some buffers at the end remain.
        let mut of = ArrayVec::<(usize, PayloadSource), BURST>::new();
        for (index, frame) in frames.iter().take(count).enumerate() {
            if let Some(buffer) = buffers.get_mut(of.len())
                && let Some(end) = Self::make(buffer, frame, shares, *longest)
            {
                of.push((index, end));
            }
        }
        let written = of.len();
        // SAFETY: `written` buffers are the pair's own and hold frames. Sent buffers are the device's.
        let sent = unsafe { sys::ss_send(port.number(), *queue, buffers.as_ptr(), written as u16) };
        let sent = usize::from(sent).min(written);
        if let Some(counts) = port.ends.get(usize::from(*queue)) {
            counts.add(of.iter().take(sent).map(|(_, end)| *end));
        }
        if let Some(rx_budgets) = buffers.get_mut(sent..count)
            && !rx_budgets.is_empty()
        {
            // SAFETY: these did not leave, and are the pair's own.
            unsafe { sys::ss_free(rx_budgets.as_mut_ptr(), rx_budgets.len() as u16) };
        }
        // Up to the first that fits and did not leave.
        let dealt = if sent == written { count } else { of.get(sent).map_or(count, |(index, _)| *index) };
        self.send_errors += dealt.saturating_sub(sent) as u64;
        dealt
    }
}

impl FramePort for QueuePair {
    type Shared = RxBuffer;

    fn mac(&self) -> MacAddress {
        self.port.info.mac
    }

    fn mtu(&self) -> usize {
        usize::from(self.port.info.mtu)
    }

    fn offload(&self) -> PortOffloads {
        self.offload
    }

    fn listen(&mut self, groups: &[MacAddress]) -> bool {
        self.port.listen(self.queue, groups)
    }

    fn receive(&mut self, most: usize) -> usize {
        self.give_back();
        self.port.eal.enter();
        let most = most.min(BURST);
        if most == 0 {
            return 0;
        }
        // SAFETY: the port runs, this is the only owner of the queue, and there is room for so many.
        let received =
            unsafe { sys::ss_receive(self.port.number(), self.queue, self.frames.as_mut_ptr(), most as u16) };
        self.received = usize::from(received).min(most);
        self.empty = if self.received == 0 { self.empty.saturating_add(1) } else { 0 };
        if self.empty == DPDK_EMPTY_RECEIVES_BEFORE_CLEANUP {
            self.let_go();
        }
        for index in 0..self.received {
            if self.frames.get(index).is_some_and(|frame| frame.len != frame.total) {
                self.gather(index);
            }
        }
        self.received
    }

    fn frame(&self, index: usize) -> Option<RxFrame<'_>> {
        let frame = self.frames.get(..self.received)?.get(index).filter(|frame| !frame.mbuf.is_null())?;
        let bytes = if frame.len == frame.total {
            // SAFETY: the buffer is the pair's own until `&mut self` gives it back, and the device wrote so many bytes
            // there.
            unsafe { std::slice::from_raw_parts(frame.data, frame.len as usize) }
        } else {
            let start = index * self.longest;
            self.whole.get(start..start + frame.total as usize)?
        };
        Some(RxFrame {
            bytes,
            ip: checksum_status(frame.flags, sys::SS_IP_GOOD, sys::SS_IP_BAD),
            udp: checksum_status(frame.flags, sys::SS_UDP_GOOD, sys::SS_UDP_BAD),
            vlan: frame.flags & sys::SS_VLAN != 0,
            segment: 0,
        })
    }

    fn worth_taking(&self) -> usize {
        let may = self.rx_budget().is_some_and(|budget| budget.most() > 0);
        if may { DPDK_ZERO_COPY_MIN_BYTES } else { usize::MAX }
    }

    fn take(&mut self, index: usize) -> Option<RxBuffer> {
        let frame = self.frames.get_mut(..self.received)?.get_mut(index)?;
        // A frame in several buffers cannot be taken.
        if frame.mbuf.is_null() || frame.len != frame.total || frame.len == 0 {
            return None;
        }
        if !self.port.rx_budgets.get(usize::from(self.queue))?.take() {
            return None;
        }
        let frame = std::mem::replace(frame, NO_FRAME);
        Some(RxBuffer { frame, queue: self.queue, port: Arc::clone(&self.port) })
    }

    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> usize {
        let mut dealt = 0;
        self.empty = 0;
        while let Some(rest) = frames.get(dealt..)
            && !rest.is_empty()
        {
            let part: Range<usize> = 0..rest.len().min(BURST);
            let sent = rest.get(part.clone()).map_or(0, |part| self.send(part));
            dealt += sent;
            if sent < part.len() {
                self.full = self.full.saturating_add(1);
                break;
            }
            self.full = 0;
        }
        if self.full > DPDK_FULL_SENDS_BEFORE_LINK_CHECK && dealt < frames.len() {
            self.full = 0;
            if !self.is_up() {
                // The link is down: waiting frames would be stale when it is up again.
                self.send_errors += (frames.len() - dealt) as u64;
                return frames.len();
            }
        }
        dealt
    }

    fn interrupt(&self) -> Option<Arc<OwnedFd>> {
        self.port.interrupts().descriptor(self.queue)
    }

    fn arm(&mut self) -> bool {
        self.port.interrupts().set(self.port.number(), self.queue, true)
    }

    fn disarm(&mut self) {
        self.port.interrupts().set(self.port.number(), self.queue, false);
    }

    fn interrupted(&mut self) -> bool {
        self.port.interrupts().take(self.queue)
    }

    fn forgo_interrupts(&mut self, why: InterruptFault) {
        self.port.interrupts().forgo(self.queue, why);
    }

    fn pressure(&mut self) -> ReceivePressure {
        // SAFETY: the port runs.
        let waiting = unsafe { sys::ss_waiting(self.port.number(), self.queue) };
        let filled = u32::try_from(waiting).unwrap_or(0) * 1000 / self.port.rx_descriptors.max(1);
        // Counted for all queues together, and reported by the first alone, so that a sum over workers is right.
        let lost = |counters: PortCounters| counters.missed + counters.no_buffer;
        let thrown_away = if self.queue == 0 { lost(self.port.counters()) } else { 0 };
        ReceivePressure { filled: filled.min(1000), thrown_away: thrown_away + self.cut }
    }

    fn came_up(&mut self) -> bool {
        let soon = |link_checked: Instant| link_checked.elapsed() < Duration::from_millis(DPDK_LINK_CHECK_MS);
        if self.queue != 0 || self.link_checked.is_some_and(soon) {
            return false;
        }
        self.link_checked = Some(Instant::now());
        let up = self.is_up();
        !std::mem::replace(&mut self.was_up, up) && up
    }

    fn send_errors(&self) -> u64 {
        self.send_errors
    }
}

fn checksum_status(flags: u32, good: u32, bad: u32) -> ChecksumStatus {
    match (flags & good != 0, flags & bad != 0) {
        (_, true) => ChecksumStatus::Invalid,
        (true, false) => ChecksumStatus::Valid,
        (false, false) => ChecksumStatus::Unknown,
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A received frame, in its own buffer. Its port stays open as long as this lives.
pub struct RxBuffer {
    frame: sys::ss_frame,
    queue: u16,
    port: Arc<OpenPort>,
}

// SAFETY: the buffer has one owner, and pools take buffers back from any thread.
unsafe impl Send for RxBuffer {}
// SAFETY: a shared one can only be read.
unsafe impl Sync for RxBuffer {}

impl std::fmt::Debug for RxBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("bytes", &self.frame.len).finish_non_exhaustive()
    }
}

impl AsRef<[u8]> for RxBuffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the buffer is this one's own, and the device wrote so many bytes there.
        unsafe { std::slice::from_raw_parts(self.frame.data, self.frame.len as usize) }
    }
}

impl Drop for RxBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is this one's own, and is given back once.
        unsafe { sys::ss_free(&mut self.frame, 1) };
        if let Some(budget) = self.port.rx_budgets.get(usize::from(self.queue)) {
            budget.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dpdk::{DpdkPort, Eal, PortOptions};
    use crate::stack::ChecksumFill;

    /// A co-hosted sender leaves checksums out, and virtio reports it: the stack must not check missing ones.
    #[test]
    fn what_a_device_says_of_checksums_is_what_the_stack_is_told() {
        let statuses = [ChecksumStatus::Unknown, ChecksumStatus::Invalid, ChecksumStatus::Valid, ChecksumStatus::Valid];
        for (ip, ip_status) in (0..).zip(statuses) {
            for (udp, udp_status) in (0..).zip(statuses) {
                // SAFETY: a function of its arguments alone.
                let flags = unsafe { sys::ss_flags_of(ip, udp) };
                assert_eq!(checksum_status(flags, sys::SS_IP_GOOD, sys::SS_IP_BAD), ip_status);
                assert_eq!(checksum_status(flags, sys::SS_UDP_GOOD, sys::SS_UDP_BAD), udp_status);
            }
        }
    }

    // DPDK starts once in a process: both tests use this one device, which gives back the frames that were sent.
    #[test]
    fn frames_in_pieces_are_put_together_and_a_device_is_asked_for_checksums() {
        let eal = Eal::start(&["--no-huge", "--no-pci", "--no-shconf", "-m", "64", "--vdev", "net_ring0"]).unwrap();
        let options = PortOptions { kept_buffers: 8, ..PortOptions::new(1) };
        let (port, mut queues) = DpdkPort::open(&eal, "", &options).unwrap();
        asked_to_fill_in(&mut queues[0]);
        put_together(&mut queues[0]);
        sent_from_where_they_lie(&mut queues[0]);
        drop((port, queues));
        assert_eq!(eal.orphaned_pools(), 0, "every buffer is back");
    }

    /// Shared bytes at the end of frames are referenced until the receiver releases them. They are copied where no
    /// buffer is left for that.
    fn sent_from_where_they_lie(queue: &mut QueuePair) {
        assert!(queue.port.info.sends_in_place);
        let value = Arc::new((0..4000u32).map(|at| (at >> 2) as u8).collect::<Vec<u8>>());
        let share = SharedBytes::of(Arc::clone(&value));
        let ranges = [0..1200, 700..701, 4000..4000, 3000..4000, 100..1500];
        let parts = ranges.clone().map(|range| [FramePart::Bytes(&[5; 40]), FramePart::Shared(&share, range)]);
        let frames = parts.each_ref().map(|parts| TxFrame { header: &[9; 60], parts, ..TxFrame::EMPTY });
        let arrive_whole = |queue: &mut QueuePair| {
            assert_eq!(queue.receive(BURST), frames.len());
            for (index, range) in ranges.iter().enumerate() {
                let whole = [&[9; 60], &[5; 40][..], &value[range.clone()]].concat();
                assert_eq!(queue.frame(index).unwrap().bytes, whole, "{range:?}");
            }
        };
        assert_eq!(queue.transmit(&frames), frames.len());
        assert_eq!(Arc::strong_count(&value), 2 + 4, "an empty piece is not held");
        assert_eq!(queue.port.ends[0].get(), (4, 0));
        arrive_whole(queue);
        assert_eq!(Arc::strong_count(&value), 2 + 4, "who received them reads them where they lie");
        assert_eq!((queue.receive(BURST), Arc::strong_count(&value)), (0, 2));

        // Sends as many as there is room for; unsent frames are released.
        let mut sent = 0;
        while queue.transmit(&frames[..1]) == 1 {
            sent += 1;
        }
        assert_eq!(Arc::strong_count(&value), 2 + sent);
        while queue.receive(BURST) > 0 {}
        assert_eq!(Arc::strong_count(&value), 2);

        // Takes all buffers that could stand for external memory.
        let (pool, mut all) = (queue.port.external_pools[0].pointer(), Vec::new());
        let mut one = NO_FRAME;
        // SAFETY: the pool lives, and there is room for one.
        while unsafe { sys::ss_allocate(pool, &mut one, 1) } == 0 {
            all.push(one);
        }
        let (in_place, _) = queue.port.ends[0].get();
        assert_eq!((queue.transmit(&frames), Arc::strong_count(&value)), (frames.len(), 2));
        assert_eq!(queue.port.ends[0].get(), (in_place, 4));
        arrive_whole(queue);
        // SAFETY: each is this function's own, and is forgotten with this.
        all.chunks_mut(BURST).for_each(|some| unsafe { sys::ss_free(some.as_mut_ptr(), some.len() as u16) });
        assert_eq!(queue.receive(BURST), 0);
    }

    fn asked_to_fill_in(queue: &mut QueuePair) {
        for (version, ip_header_len, ip, udp) in [
            (4, 20, false, false),
            (4, 20, true, false),
            (4, 20, false, true),
            (4, 24, true, true),
            (6, 40, false, false),
            (6, 40, false, true),
        ] {
            let mut header = vec![0; usize::from(ETHERNET) + ip_header_len + 8];
            header[usize::from(ETHERNET)] = version << 4;
            let sent = TxFrame { header: &header, ip_header_len, fill: ChecksumFill { ip, udp }, parts: &[] };
            assert_eq!((queue.transmit(&[sent]), queue.receive(BURST)), (1, 1));
            let (mut l2, mut l3, mut l4) = (0, 0, 0);
            // SAFETY: the frame is the queue's own; the three numbers are filled in.
            let filled = unsafe { sys::ss_asked_to_fill(&queue.frames[0], &mut l2, &mut l3, &mut l4) };
            let wanted = [(ip, sys::SS_FILL_IP), (udp, sys::SS_FILL_UDP), (udp && version == 6, sys::SS_IPV6)];
            let wanted: u32 = wanted.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
            assert_eq!(filled, wanted, "version {version}: {ip} {udp}");
            if wanted != 0 {
                // Older versions of net_tap need the length of UDP's header to fill its checksum in.
                assert_eq!((l2, usize::from(l3), l4), (ETHERNET, ip_header_len, if udp { 8 } else { 0 }));
            }
        }
    }

    /// Sends a frame of pieces of these lengths, filled with their own number from 1 on.
    fn send_pieces(queue: &QueuePair, lengths: &[usize]) {
        let mut pieces = [NO_FRAME; BURST];
        let (pool, count) = (queue.port.pools[0].pointer(), lengths.len() as u16);
        // SAFETY: the pool lives, and there is room for so many.
        assert_eq!(unsafe { sys::ss_allocate(pool, pieces.as_mut_ptr(), count) }, 0);
        for ((piece, length), fill) in pieces.iter_mut().zip(lengths).zip(1..) {
            assert!(*length <= piece.total as usize);
            // SAFETY: the buffer has `total` bytes from `data` on.
            unsafe { ptr::write_bytes(piece.data, fill, *length) };
            piece.len = *length as u32;
        }
        // SAFETY: so many buffers are this function's own, hold what they say, and are the device's from now on.
        assert_eq!(unsafe { sys::ss_send_joined(queue.port.number(), 0, pieces.as_ptr(), count) }, 1);
    }

    fn put_together(queue: &mut QueuePair) {
        let longest = queue.longest;
        let shapes: [&[usize]; 5] = [&[60, 1, 700], &[0, 60], &[2000, 1000], &[longest - 100, 100], &[longest, 1]];
        for lengths in shapes {
            send_pieces(queue, lengths);
        }
        assert_eq!(queue.transmit(&[TxFrame { header: &[9; 60], ..TxFrame::EMPTY }]), 1);
        assert_eq!(queue.receive(BURST), shapes.len() + 1);
        for (index, lengths) in shapes.into_iter().enumerate() {
            let whole = lengths.iter().zip(1..).flat_map(|(length, fill)| vec![fill; *length]).collect::<Vec<u8>>();
            let fits = whole.len() <= longest;
            assert_eq!(queue.frame(index).unwrap().bytes, if fits { &whole[..] } else { &[] }, "{lengths:?}");
            assert!(queue.take(index).is_none(), "{lengths:?} is not in one piece");
        }
        assert_eq!(queue.frame(shapes.len()).unwrap().bytes, [9; 60]);
        assert_eq!(queue.cut(), 2);
        assert_eq!(queue.receive(BURST), 0);
    }
}
