//! Lanes: what waits of each class, whose turn it is, and what it is charged.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use arrayvec::ArrayVec;
use hashbrown::HashMap;

use super::{Class, Sorter};
use crate::limits::{BURST, STRANGERS_SHARE};

/// Where datagrams lie while they wait, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreId {
    /// Of those that are received into.
    Burst(u16),
    /// Of those that datagrams are copied to.
    Pack(u16),
}

/// Datagrams of one class that stand behind each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) store: StoreId,
    pub(super) from: u16,
    pub(super) to: u16,
}

impl Run {
    pub(super) fn len(&self) -> usize {
        usize::from(self.to - self.from)
    }
}

/// What a lane did since it was last looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::workers) struct Window {
    pub(in crate::workers) arrived: u64,
    pub(in crate::workers) served: u64,
    /// Of these, messages refused because the tenant is over its rate, or its sender did not show who it is.
    pub(in crate::workers) refused: u64,
    /// Thrown away for lack of room.
    pub(in crate::workers) shed: u64,
    /// Dropped here, on arrival, since the kernel cannot; not among those that arrived.
    pub(in crate::workers) sieved: u64,
}

/// The waiting datagrams of one class.
pub(in crate::workers) struct Lane {
    pub(super) runs: VecDeque<Run>,
    pub(super) waiting: usize,
    /// CPU time used, by weight, as if the lane had always been waiting; the least is next.
    pub(super) clock: u64,
    /// What serving one of its datagrams has cost lately, nanoseconds.
    pub(super) each_ns: u64,
    /// Quarters of a tenant's usual share.
    weight: u64,
    pub(in crate::workers) window: Window,
    /// Part of its datagrams that is let in.
    pub(in crate::workers) keep: f64,
}

impl Lane {
    pub(super) fn new(weight: u64) -> Lane {
        let (runs, window) = (VecDeque::new(), Window::default());
        Lane { runs, waiting: 0, clock: 0, each_ns: 500, weight: weight.max(1), window, keep: 1.0 }
    }

    pub(in crate::workers) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.window.arrived + self.window.sieved == 0
    }

    /// Moves up to `most` datagrams, the oldest, to what is served next, as its share of that number.
    pub(super) fn take(&mut self, most: usize, share: u8, part: &mut ArrayVec<Item, BURST>) {
        let mut left = most.min(part.remaining_capacity());
        while left > 0
            && let Some(run) = self.runs.front_mut()
        {
            let to = run.to.min(run.from.saturating_add(left as u16));
            let taken = usize::from(to - run.from);
            part.extend((run.from..to).map(|index| Item { store: run.store, index, share }));
            (left, self.waiting) = (left - taken, self.waiting - taken);
            run.from = to;
            if run.from == run.to {
                self.runs.pop_front();
            }
        }
    }

    /// So many of its datagrams were served in so much time, and so many messages of them refused.
    pub(super) fn served(&mut self, took_ns: u64, count: u64, refused: u64) {
        self.each_ns = (3 * self.each_ns + took_ns / count.max(1)) / 4;
        self.clock += took_ns * STRANGERS_SHARE / self.weight;
        self.window.served += count;
        self.window.refused += refused;
    }
}

/// What is served of a lane in one go.
#[derive(Clone, Copy, Debug)]
pub(in crate::workers) struct Share {
    pub(in crate::workers) class: Class,
    pub(in crate::workers) count: u16,
}

/// A datagram that is being served: where it lies, and which share it is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) store: StoreId,
    pub(super) index: u16,
    pub(super) share: u8,
}

// A share is named by a byte.
const _: () = assert!(BURST <= 256);

/// What the datagrams of a part were, share by share.
#[derive(Debug, Default)]
pub(in crate::workers) struct Bills {
    work: [u32; BURST],
    refused: [u32; BURST],
}

impl Bills {
    /// A datagram was as much work as so many plain gets, beside the one that each counts as.
    #[inline]
    pub(in crate::workers) fn add_work(&mut self, share: u8, gets: u32) {
        if let Some(work) = self.work.get_mut(usize::from(share)) {
            *work = work.saturating_add(gets);
        }
    }

    /// So many messages were refused.
    #[inline]
    pub(in crate::workers) fn add_refused(&mut self, share: u8, messages: u64) {
        if let Some(refused) = self.refused.get_mut(usize::from(share)) {
            *refused = refused.saturating_add(u32::try_from(messages).unwrap_or(u32::MAX));
        }
    }

    /// The work of a share, and its messages that were refused.
    pub(super) fn of(&self, number: usize, share: &Share) -> (u64, u64) {
        let work = self.work.get(number).copied().unwrap_or(0);
        let refused = self.refused.get(number).copied().unwrap_or(0);
        (u64::from(work) + u64::from(share.count), u64::from(refused))
    }
}

/// The lanes in which something waits, each once, in the order in which they are served: the least clock first, of equals who has waited
/// longest. Those of which something is being served stand here again after that.
#[derive(Default)]
pub(super) struct Active {
    pub(super) heap: BinaryHeap<Reverse<(u64, u64, Class)>>,
    /// Places taken so far.
    places: u64,
}

impl Active {
    pub(super) fn push(&mut self, clock: u64, class: Class) {
        self.places += 1;
        self.heap.push(Reverse((clock, self.places, class)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(super) fn first(&self) -> Option<Class> {
        self.heap.peek().map(|Reverse((_, _, class))| *class)
    }

    pub(super) fn classes(&self) -> impl Iterator<Item = Class> {
        self.heap.iter().map(|Reverse((_, _, class))| *class)
    }
}

/// The lanes, while datagrams are put into them.
pub(super) struct Lanes<'i> {
    pub(super) lanes: &'i mut HashMap<Class, Lane>,
    pub(super) active: &'i mut Active,
    pub(super) clock: u64,
}

impl Lanes<'_> {
    /// Appends a run to its class's lane.
    pub(super) fn put(&mut self, class: Class, run: Run, sorter: &Sorter<'_>) {
        let lane = self.lanes.entry(class).or_insert_with(|| Lane::new(sorter.weight(class)));
        if lane.waiting == 0 {
            lane.clock = lane.clock.max(self.clock);
            self.active.push(lane.clock, class);
        }
        let count = run.len();
        lane.waiting += count;
        lane.window.arrived += count as u64;
        lane.runs.push_back(run);
    }
}
