//! Lanes: what waits of each class, whose turn it is, and what it is charged.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use arrayvec::ArrayVec;
use hashbrown::HashMap;

use super::{DatagramClassifier, FlowKey};
use crate::limits::{BURST, TENANT_TO_UNAUTHENTICATED_WEIGHT};
use crate::workers::message_pieces::PostponedMessage;

/// Where datagrams lie while they wait, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferId {
    /// Of those that are received into.
    Burst(u16),
    /// Of those that datagrams are copied to.
    Pack(u16),
}

/// Datagrams of one class that stand behind each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramRange {
    pub(super) store: BufferId,
    pub(super) from: u16,
    pub(super) to: u16,
}

impl DatagramRange {
    pub(super) fn len(&self) -> usize {
        usize::from(self.to - self.from)
    }
}

/// What a lane did since it was last looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::workers) struct FlowStats {
    pub(in crate::workers) arrived: u64,
    pub(in crate::workers) served: u64,
    /// Of these, messages refused because the tenant is over its rate, or its sender did not show who it is.
    pub(in crate::workers) refused: u64,
    /// Thrown away for lack of room.
    pub(in crate::workers) shed: u64,
    /// Dropped here, on arrival, since the kernel cannot; not among those that arrived.
    pub(in crate::workers) dropped_early: u64,
}

/// The waiting datagrams of one class.
pub(in crate::workers) struct IngressFlow {
    pub(super) runs: VecDeque<DatagramRange>,
    pub(super) waiting: usize,
    /// Messages that were admitted and are not at their end, the oldest first.
    postponed: VecDeque<PostponedMessage>,
    postponed_bytes: usize,
    /// CPU time used, by weight, as if the lane had always been waiting; the least is next.
    pub(super) clock: u64,
    /// What serving one of its datagrams has cost lately, nanoseconds.
    pub(super) datagram_cost_ns: u64,
    /// Quarters of a tenant's usual share.
    weight: u64,
    pub(in crate::workers) window: FlowStats,
    /// Part of its datagrams that is let in.
    pub(in crate::workers) keep: f64,
}

impl IngressFlow {
    pub(super) fn new(weight: u64) -> IngressFlow {
        let (runs, window) = (VecDeque::new(), FlowStats::default());
        let postponed = VecDeque::new();
        IngressFlow {
            runs,
            waiting: 0,
            postponed,
            postponed_bytes: 0,
            clock: 0,
            datagram_cost_ns: 500,
            weight: weight.max(1),
            window,
            keep: 1.0,
        }
    }

    /// Whether anything waits here.
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

    /// The oldest messages that wait to go on, as many as are served at once.
    pub(super) fn take_postponed(&mut self) -> Vec<PostponedMessage> {
        let count = self.postponed.len().min(BURST);
        let taken: Vec<PostponedMessage> = self.postponed.drain(..count).collect();
        self.postponed_bytes -= taken.iter().map(PostponedMessage::bytes).sum::<usize>();
        taken
    }

    pub(in crate::workers) fn is_idle(&self) -> bool {
        !self.has_work() && self.window.arrived + self.window.dropped_early == 0
    }

    /// Moves up to `most` datagrams, the oldest, to what is served next, as its share of that number.
    pub(super) fn take(&mut self, most: usize, share: u8, part: &mut ArrayVec<BatchDatagram, BURST>) {
        let mut left = most.min(part.remaining_capacity());
        while left > 0
            && let Some(run) = self.runs.front_mut()
        {
            let to = run.to.min(run.from.saturating_add(left as u16));
            let taken = usize::from(to - run.from);
            part.extend((run.from..to).map(|index| BatchDatagram { store: run.store, index, share }));
            (left, self.waiting) = (left - taken, self.waiting - taken);
            run.from = to;
            if run.from == run.to {
                self.runs.pop_front();
            }
        }
    }

    /// A share of it was served in so much time, and so many messages of that refused.
    pub(super) fn served(&mut self, took_ns: u64, share: &FlowSlice, refused: u64) {
        let count = u64::from(share.count);
        self.datagram_cost_ns = (3 * self.datagram_cost_ns + took_ns / count.max(1)) / 4;
        self.clock += took_ns * TENANT_TO_UNAUTHENTICATED_WEIGHT / self.weight;
        // What goes on was counted when it came.
        self.window.served += if share.is_resumed { 0 } else { count };
        self.window.refused += refused;
    }
}

/// What is served of a lane in one go.
#[derive(Clone, Copy, Debug)]
pub(in crate::workers) struct FlowSlice {
    pub(in crate::workers) class: FlowKey,
    pub(in crate::workers) count: u16,
    /// It is messages that go on, and no datagrams.
    pub(in crate::workers) is_resumed: bool,
}

/// A datagram that is being served: where it lies, and which share it is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchDatagram {
    pub(super) store: BufferId,
    pub(super) index: u16,
    pub(super) share: u8,
}

// A share is named by a byte.
const _: () = assert!(BURST <= 256);

/// What the datagrams of a part were, share by share.
#[derive(Debug, Default)]
pub(in crate::workers) struct BatchCosts {
    work: [u32; BURST],
    refused: [u32; BURST],
}

impl BatchCosts {
    /// A datagram was as much work as so many plain gets, beside the one that each counts as.
    #[inline]
    pub(in crate::workers) fn add_work(&mut self, share: u8, gets: u32) {
        if let Some(work) = self.work.get_mut(usize::from(share)) {
            *work = work.saturating_add(gets);
        }
    }

    /// So many messages were refused.
    #[inline]
    pub(in crate::workers) fn add_rejected(&mut self, share: u8, messages: u64) {
        if let Some(refused) = self.refused.get_mut(usize::from(share)) {
            *refused = refused.saturating_add(u32::try_from(messages).unwrap_or(u32::MAX));
        }
    }

    /// The work of a share, and its messages that were refused.
    pub(super) fn of(&self, number: usize, share: &FlowSlice) -> (u64, u64) {
        let work = self.work.get(number).copied().unwrap_or(0);
        let refused = self.refused.get(number).copied().unwrap_or(0);
        (u64::from(work) + u64::from(share.count), u64::from(refused))
    }
}

/// The lanes in which something waits, each once, in the order in which they are served: the least clock first, of
/// equals who has waited longest. Those of which something is being served stand here again after that.
#[derive(Default)]
pub(super) struct ActiveFlows {
    pub(super) heap: BinaryHeap<Reverse<(u64, u64, FlowKey)>>,
    /// Places taken so far.
    places: u64,
}

impl ActiveFlows {
    pub(super) fn push(&mut self, clock: u64, class: FlowKey) {
        self.places += 1;
        self.heap.push(Reverse((clock, self.places, class)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(super) fn first(&self) -> Option<FlowKey> {
        self.heap.peek().map(|Reverse((_, _, class))| *class)
    }

    pub(super) fn classes(&self) -> impl Iterator<Item = FlowKey> {
        self.heap.iter().map(|Reverse((_, _, class))| *class)
    }
}

/// The lanes, while datagrams are put into them.
pub(super) struct FlowEnqueuer<'i> {
    pub(super) lanes: &'i mut HashMap<FlowKey, IngressFlow>,
    pub(super) active: &'i mut ActiveFlows,
    pub(super) clock: u64,
}

impl FlowEnqueuer<'_> {
    /// Appends a run to its class's lane.
    pub(super) fn put(&mut self, class: FlowKey, run: DatagramRange, sorter: &DatagramClassifier<'_>) {
        let lane = self.lanes.entry(class).or_insert_with(|| IngressFlow::new(sorter.weight(class)));
        if !lane.has_work() {
            lane.clock = lane.clock.max(self.clock);
            self.active.push(lane.clock, class);
        }
        let count = run.len();
        lane.waiting += count;
        lane.window.arrived += count as u64;
        lane.runs.push_back(run);
    }
}
