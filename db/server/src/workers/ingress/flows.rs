//! Flows: the waiting datagrams of each tenant, the order of the flows, and their charges.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use arrayvec::ArrayVec;
use hashbrown::HashMap;

use super::classifier::{DatagramClassifier, FlowKey};
use crate::limits::{BURST, TENANT_TO_UNAUTHENTICATED_WEIGHT};
use crate::workers::postponed_message::PostponedMessage;

/// The buffer in which datagrams wait, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferId {
    /// A burst that was received into.
    Burst(u16),
    /// A pack, to which datagrams are copied.
    Pack(u16),
}

/// Adjacent datagrams of one flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramRange {
    pub(super) buffer: BufferId,
    pub(super) from: u16,
    pub(super) to: u16,
    /// When the host received them, in the workers' nanoseconds.
    pub(super) received_ns: u64,
}

impl DatagramRange {
    /// One of them, as a part of a batch's slice.
    #[inline]
    pub(super) fn datagram(&self, index: u16, slice: u8) -> BatchDatagram {
        BatchDatagram { buffer: self.buffer, index, slice, received_ns: self.received_ns }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.to - self.from)
    }
}

/// The counts of a flow since its window began.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::workers) struct FlowStats {
    pub(in crate::workers) arrived: u64,
    pub(in crate::workers) served: u64,
    /// Of these, messages rejected because the tenant is over its rate, or the sender is unauthenticated.
    pub(in crate::workers) refused: u64,
    /// Dropped because buffers were full.
    pub(in crate::workers) shed: u64,
    /// Dropped here, on arrival, since the kernel cannot; not among those that arrived.
    pub(in crate::workers) dropped_early: u64,
}

/// The waiting datagrams of one flow.
pub(in crate::workers) struct IngressFlow {
    pub(super) ranges: VecDeque<DatagramRange>,
    pub(super) waiting: usize,
    /// Messages that were admitted and have not finished, the oldest first.
    postponed: VecDeque<PostponedMessage>,
    postponed_bytes: usize,
    /// Virtual time: CPU time used, by weight, as if the flow had always been waiting. The least is next.
    pub(super) clock: u64,
    /// The recent cost of serving one of its datagrams, nanoseconds.
    pub(super) datagram_cost_ns: u64,
    /// Quarters of a tenant's usual slice.
    weight: u64,
    pub(in crate::workers) window: FlowStats,
    /// The fraction of its datagrams that is admitted.
    pub(in crate::workers) admit_fraction: f64,
}

impl IngressFlow {
    pub(super) fn new(weight: u64) -> IngressFlow {
        let (ranges, postponed, window) = (VecDeque::new(), VecDeque::new(), FlowStats::default());
        IngressFlow {
            ranges,
            waiting: 0,
            postponed,
            postponed_bytes: 0,
            clock: 0,
            datagram_cost_ns: 500,
            weight: weight.max(1),
            window,
            admit_fraction: 1.0,
        }
    }

    /// Whether anything waits here.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.waiting > 0 || self.has_postponed()
    }

    #[inline]
    pub(super) fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }

    pub(super) fn postponed_bytes(&self) -> usize {
        self.postponed_bytes
    }

    pub(super) fn put_postponed(&mut self, message: PostponedMessage) {
        self.postponed_bytes += message.bytes();
        self.postponed.push_back(message);
    }

    pub(super) fn put_postponed_first(&mut self, message: PostponedMessage) {
        self.postponed_bytes += message.bytes();
        self.postponed.push_front(message);
    }

    /// Takes the oldest messages that wait to continue, as many as are served at once.
    pub(super) fn take_postponed(&mut self) -> Vec<PostponedMessage> {
        let count = self.postponed.len().min(BURST);
        let taken: Vec<PostponedMessage> = self.postponed.drain(..count).collect();
        self.postponed_bytes -= taken.iter().map(PostponedMessage::bytes).sum::<usize>();
        taken
    }

    pub(in crate::workers) fn is_idle(&self) -> bool {
        !self.has_work() && self.window.arrived + self.window.dropped_early == 0
    }

    /// Moves up to `most` datagrams, the oldest, to the batch, as its slice of that number.
    pub(super) fn take(&mut self, most: usize, slice: u8, batch: &mut ArrayVec<BatchDatagram, BURST>) {
        let mut left = most.min(batch.remaining_capacity());
        while left > 0
            && let Some(range) = self.ranges.front_mut()
        {
            let to = range.to.min(range.from.saturating_add(left as u16));
            let taken = usize::from(to - range.from);
            batch.extend((range.from..to).map(|index| range.datagram(index, slice)));
            (left, self.waiting) = (left - taken, self.waiting - taken);
            range.from = to;
            if range.from == range.to {
                self.ranges.pop_front();
            }
        }
    }

    /// Charges the flow for a slice of it that took `took_ns`, with `refused` rejected messages.
    pub(super) fn served(&mut self, took_ns: u64, slice: &FlowSlice, refused: u64) {
        let count = u64::from(slice.count);
        self.datagram_cost_ns = (3 * self.datagram_cost_ns + took_ns / count.max(1)) / 4;
        self.clock += took_ns * TENANT_TO_UNAUTHENTICATED_WEIGHT / self.weight;
        // Messages that go on were counted when they came.
        self.window.served += if slice.is_resumed { 0 } else { count };
        self.window.refused += refused;
    }
}

/// The slice of one flow in a batch: datagrams, or messages that continue.
#[derive(Clone, Copy, Debug)]
pub(in crate::workers) struct FlowSlice {
    pub(in crate::workers) key: FlowKey,
    pub(in crate::workers) count: u16,
    /// Whether they are messages that continue, and no datagrams.
    pub(in crate::workers) is_resumed: bool,
}

/// A datagram of a batch: its buffer, its index there, its slice, and when it was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchDatagram {
    pub(super) buffer: BufferId,
    pub(super) index: u16,
    pub(super) slice: u8,
    pub(super) received_ns: u64,
}

// The number of a slice is a byte.
const _: () = assert!(BURST <= 256);

/// The work of a batch's datagrams, slice by slice.
#[derive(Debug, Default)]
pub(in crate::workers) struct BatchCosts {
    work: [u32; BURST],
    refused: [u32; BURST],
}

impl BatchCosts {
    /// Adds work beyond that of one plain get, which each datagram counts as.
    #[inline]
    pub(in crate::workers) fn add_work(&mut self, slice: u8, gets: u32) {
        if let Some(work) = self.work.get_mut(usize::from(slice)) {
            *work = work.saturating_add(gets);
        }
    }

    /// Adds messages that were rejected.
    #[inline]
    pub(in crate::workers) fn add_rejected(&mut self, slice: u8, messages: u64) {
        if let Some(refused) = self.refused.get_mut(usize::from(slice)) {
            *refused = refused.saturating_add(u32::try_from(messages).unwrap_or(u32::MAX));
        }
    }

    /// The work of a slice, and its rejected messages.
    pub(super) fn of(&self, number: usize, slice: &FlowSlice) -> (u64, u64) {
        let work = self.work.get(number).copied().unwrap_or(0);
        let refused = self.refused.get(number).copied().unwrap_or(0);
        (u64::from(work) + u64::from(slice.count), u64::from(refused))
    }
}

/// The flows with waiting datagrams, each once, by virtual time, then by how long they have waited. A flow in the
/// current batch is put back when the batch ends.
#[derive(Default)]
pub(super) struct ActiveFlows {
    pub(super) heap: BinaryHeap<Reverse<(u64, u64, FlowKey)>>,
    /// Number of insertions so far: orders flows of equal virtual time.
    insertions: u64,
}

impl ActiveFlows {
    pub(super) fn push(&mut self, clock: u64, key: FlowKey) {
        self.insertions += 1;
        self.heap.push(Reverse((clock, self.insertions, key)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(super) fn first(&self) -> Option<FlowKey> {
        self.heap.peek().map(|Reverse((_, _, key))| *key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = FlowKey> {
        self.heap.iter().map(|Reverse((_, _, key))| *key)
    }
}

/// Puts datagrams into their flows.
pub(super) struct FlowEnqueuer<'i> {
    pub(super) flows: &'i mut HashMap<FlowKey, IngressFlow>,
    pub(super) active: &'i mut ActiveFlows,
    pub(super) clock: u64,
}

impl FlowEnqueuer<'_> {
    /// The number of datagrams that wait in a flow.
    pub(super) fn waiting(&self, key: FlowKey) -> usize {
        self.flows.get(&key).map_or(0, |flow| flow.waiting)
    }

    /// Appends a range to its flow.
    pub(super) fn put(&mut self, key: FlowKey, range: DatagramRange, classifier: &DatagramClassifier<'_>) {
        let flow = self.flows.entry(key).or_insert_with(|| IngressFlow::new(classifier.weight(key)));
        if !flow.has_work() {
            flow.clock = flow.clock.max(self.clock);
            self.active.push(flow.clock, key);
        }
        let count = range.len();
        flow.waiting += count;
        flow.window.arrived += count as u64;
        flow.ranges.push_back(range);
    }
}
