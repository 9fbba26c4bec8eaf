//! Ingress scheduling: received datagrams wait here for their turn.
//!
//! A socket delivers datagrams in their order of arrival, so the busiest sender would be served most. Each worker
//! therefore schedules received datagrams with start-time fair queueing (Goyal et al., SIGCOMM'96). Every authenticated
//! tenant is a flow with its weight; all unauthenticated senders share one flow. The flow with the least CPU time by
//! weight is next, so a message waits for one slice of each other flow, however much waits there. When no buffer is
//! left to receive into, the longest flow loses its oldest datagrams ([`super::early_drop`] then has the kernel drop
//! more of the same before they come here).
//!
//! Datagrams are served in *batches*: slices of as many flows as there is time for, in their order. A thousand tenants
//! with a datagram or two each share a batch, so their cache misses overlap, too. The time that a batch takes is
//! charged to its flows by the work of their datagrams.
//!
//! The path of a datagram:
//! 1. It is received into a burst ([`IngressScheduler::receive`]). If it is one of few and nothing waits, it is served
//!    next, unsorted.
//! 2. Else it is sorted: its flow is found; a throttled flow loses a random part of its datagrams.
//! 3. It stays in its burst if that is well filled, or small and one of few, else it is copied to a pack, and the burst
//!    is free again. A datagram in a device buffer waits there as far as its flow may use such
//!    ([`super::rx_zero_copy`]).
//! 4. The range of it and its neighbours of the same flow goes to the end of that flow. There it may be shed.
//! 5. It comes into a batch with its flow's slice ([`IngressScheduler::next_batch`]), is opened in place, and served.
//! 6. Its flow is charged, and its burst or pack is free again with the last datagram in it
//!    ([`IngressScheduler::finish_batch`]).
//!
//! Messages that were not run to their end wait in their tenant's flow, too ([`super::postponed_message`]). They go on
//! before its datagrams are served, in a batch of their own.
//!
//! A datagram belongs to the flow of the tenant that it names only if the tenant is open, or the sender has shown its
//! token: a forged name gains nothing. A lone small burst is not sorted, and what the kernel has coalesced is sorted by
//! ranges in place: with one or two tenants this costs a few nanoseconds a datagram.

mod arrival_groups;
pub(super) mod classifier;
pub(super) mod flows;

use std::cmp::Reverse;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use sandstorm_net::driver::{ArrivalClock, Burst, DatagramDriver, NO_PEER};
use sandstorm_net::dynamic_threshold::DynamicThreshold;
use sandstorm_net::limits::GRO_BUFFER;
use sandstorm_net::r2p2::PeerAddr;
use sandstorm_net::seal::requires_opening;
use sandstorm_net::shared_bytes;

use self::arrival_groups::{ArrivalCursor, ArrivalGroup, ArrivalSampler};
use self::classifier::{DatagramClassifier, FlowKey};
use self::flows::{
    ActiveFlows, BatchCosts, BatchDatagram, BufferId, DatagramRange, FlowEnqueuer, FlowSlice, IngressFlow,
};
use super::postponed_message::PostponedMessage;
use super::rx_zero_copy::may_wait_in_place;
use crate::limits::{
    BATCH_NS, BURST, DIRECT_DATAGRAMS, MAX_BURSTS, MAX_PACKS, POSTPONED_BYTES, RECEIVES_PER_SERVE, SHED_MIN_DATAGRAMS,
    TENANT_TO_UNAUTHENTICATED_WEIGHT, UNPACKED_BURSTS,
};

/// A burst of received datagrams, and how many of them still wait.
struct DatagramBuffer {
    burst: Burst,
    left: usize,
}

impl DatagramBuffer {
    /// Notes that `count` of its datagrams no longer wait.
    #[inline]
    fn done(&mut self, count: usize) {
        self.left -= count;
        if self.left == 0 {
            self.burst.let_go();
        }
    }
}

/// The ingress scheduler: see the head of this file.
pub(super) struct IngressScheduler {
    /// Bursts that are received into. They stay while datagrams in them wait.
    bursts: Vec<DatagramBuffer>,
    /// Bursts with copies of datagrams that came one by one.
    packs: Vec<DatagramBuffer>,
    pub(super) flows: HashMap<FlowKey, IngressFlow>,
    active: ActiveFlows,
    /// Datagrams of a lone small burst, to be served unsorted.
    direct_range: Option<DatagramRange>,
    /// The datagrams that are being served.
    batch: ArrayVec<BatchDatagram, BURST>,
    /// The slices of the batch; empty for a lone small burst.
    slices: ArrayVec<FlowSlice, BURST>,
    /// The messages of the batch that go on: all of one flow, and it has no datagrams then.
    resumed: Vec<PostponedMessage>,
    /// Bytes of all messages that wait to go on.
    postponed_bytes: usize,
    /// The clock of the flow served last, when it was chosen.
    clock: u64,
    /// Datagrams shed since the worker began.
    shed: u64,
    /// The time of the turn, in the workers' nanoseconds.
    now_ns: u64,
    arrivals: ArrivalSampler,
    /// Whether `admit_fraction` is applied here, since the kernel cannot.
    pub(super) random_drop: Option<RandomDrop>,
}

/// A random number generator that decides which datagrams of a throttled flow are dropped.
pub(super) struct RandomDrop(u64);

impl RandomDrop {
    pub(super) fn new(seed: u64) -> RandomDrop {
        RandomDrop(seed | 1)
    }

    fn passes(&mut self, admit_fraction: f64) -> bool {
        // An LCG's upper bits will do: guessing them gains nothing.
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        ((self.0 >> 33) as f64) < admit_fraction * f64::from(1u32 << 31)
    }
}

impl IngressScheduler {
    pub(super) fn new() -> IngressScheduler {
        IngressScheduler {
            bursts: Vec::new(),
            packs: Vec::new(),
            flows: HashMap::new(),
            active: ActiveFlows::default(),
            direct_range: None,
            batch: ArrayVec::new(),
            slices: ArrayVec::new(),
            resumed: Vec::new(),
            postponed_bytes: 0,
            clock: 0,
            shed: 0,
            now_ns: 0,
            arrivals: ArrivalSampler::default(),
            random_drop: None,
        }
    }

    /// Datagrams shed since the worker began.
    pub(super) fn shed(&self) -> u64 {
        self.shed
    }

    /// Begins a turn at that time, in the workers' nanoseconds. `clock` tells what their clock was at a Unix time.
    #[inline]
    pub(super) fn begin_turn(&mut self, now_ns: u64, clock: ArrivalClock) {
        (self.now_ns, self.arrivals.clock) = (now_ns, clock);
    }

    /// Receives waiting datagrams, as far as buffers are free, and sorts them.
    pub(super) fn receive(
        &mut self,
        driver: &mut impl DatagramDriver,
        mut classifier: DatagramClassifier<'_>,
        own: bool,
    ) {
        if let Some(DatagramRange { buffer: BufferId::Burst(number), from, received_ns, .. }) = self.direct_range.take()
        {
            self.sort((number, from), &[ArrivalGroup { until: u16::MAX, received_ns }], &mut classifier);
        }
        for _ in 0..if own { RECEIVES_PER_SERVE } else { 1 } {
            let Some(number) = self.free_burst(driver) else { return };
            let Some(into) = self.bursts.get_mut(usize::from(number)) else { return };
            let count = driver.receive(&mut into.burst);
            let drained = into.burst.has_drained();
            let groups = self.arrivals.groups(&into.burst, self.now_ns);
            if drained
                && self.active.is_empty()
                && count <= DIRECT_DATAGRAMS
                && let [ArrivalGroup { received_ns, .. }] = groups[..]
            {
                into.left = count;
                let range = DatagramRange { buffer: BufferId::Burst(number), from: 0, to: count as u16, received_ns };
                self.direct_range = (count > 0).then_some(range);
                return;
            }
            self.sort((number, 0), &groups, &mut classifier);
            if drained {
                return;
            }
        }
    }

    /// Puts the datagrams of a burst, from index `from` on, into their flows.
    fn sort(&mut self, (number, from): (u16, u16), groups: &[ArrivalGroup], classifier: &mut DatagramClassifier<'_>) {
        let IngressScheduler { bursts, packs, flows, active, clock, random_drop, shed, .. } = self;
        let mut all = FlowEnqueuer { flows, active, clock: *clock };
        let in_use = bursts.iter().filter(|buffer| buffer.left > 0).count();
        let Some(DatagramBuffer { burst, left }) = bursts.get_mut(usize::from(number)) else { return };
        *left = 0;
        let packs_it = burst.is_sparse() && !(burst.is_small() && in_use < UNPACKED_BURSTS);
        let as_it_is = !packs_it && !burst.has_in_place();
        let (mut range, mut all_pass): (Option<(FlowKey, DatagramRange)>, bool) = (None, false);
        let mut times = ArrivalCursor::new(groups);
        for index in usize::from(from)..burst.len() {
            let Some((peer, datagram)) = burst.get(index) else { break };
            if times.begins_group(index)
                && let Some((of, range)) = range.take()
            {
                all.put(of, range, classifier);
            }
            // The usual case: another datagram of the same flow.
            if as_it_is
                && all_pass
                && let Some((_, range)) = &mut range
                && classifier.matches_last(peer, datagram)
            {
                range.to += 1;
                *left += 1;
                continue;
            }
            let key = classifier.flow(peer, datagram);
            all_pass = true;
            if let Some(random_drop) = random_drop
                && let Some(flow) = all.flows.get_mut(&key)
                && flow.admit_fraction < 1.0
            {
                all_pass = false;
                if !random_drop.passes(flow.admit_fraction) {
                    *shed += 1;
                    flow.window.dropped_early += 1;
                    burst.discard_shared(index);
                    continue;
                }
            }
            if burst.share(index).is_some() && !may_wait_in_place(classifier.rx_budget, key, all.waiting(key)) {
                burst.bring(index);
            }
            let packed = if packs_it { copy_to_pack(packs, burst, index) } else { None };
            let (buffer, index) = packed.unwrap_or((BufferId::Burst(number), index as u16));
            if packed.is_none() {
                *left += 1;
            }
            match &mut range {
                Some((of, range)) if *of == key && range.buffer == buffer && range.to == index => range.to += 1,
                _ => {
                    let begun = DatagramRange { buffer, from: index, to: index + 1, received_ns: times.received_ns };
                    if let Some((of, range)) = range.replace((key, begun)) {
                        all.put(of, range, classifier);
                    }
                }
            }
        }
        if let Some((of, range)) = range {
            all.put(of, range, classifier);
        }
        if *left == 0 {
            burst.let_go();
        }
    }

    /// A burst to receive into, with a pack to copy it to. If there is none, the longest flow is shed. None if no flow
    /// is long.
    fn free_burst(&mut self, driver: &impl DatagramDriver) -> Option<u16> {
        loop {
            let burst = self.bursts.iter().position(|buffer| buffer.left == 0);
            let has_pack = self.packs.len() < MAX_PACKS || self.packs.iter().any(|buffer| buffer.left == 0);
            match burst {
                Some(burst) if has_pack => return u16::try_from(burst).ok(),
                None if self.bursts.len() < MAX_BURSTS => {
                    self.bursts.push(DatagramBuffer { burst: driver.burst(), left: 0 })
                }
                _ => self.shed_longest_flow()?,
            }
        }
    }

    /// Drops the oldest ranges of the longest flow until a buffer is free. None if no flow is long.
    #[cold]
    fn shed_longest_flow(&mut self) -> Option<()> {
        let waiting = |key: FlowKey| Some((self.flows.get(&key)?.waiting, key));
        let longest = self.active.keys().filter_map(waiting).max()?;
        if longest.0 < SHED_MIN_DATAGRAMS {
            return None;
        }
        while let Some(range) = self.shed_oldest_range(longest.1) {
            if buffer_mut(&mut self.bursts, &mut self.packs, range.buffer).is_none_or(|buffer| buffer.left == 0) {
                break;
            }
        }
        Some(())
    }

    /// Drops the oldest range of a flow.
    #[cold]
    fn shed_oldest_range(&mut self, key: FlowKey) -> Option<DatagramRange> {
        let flow = self.flows.get_mut(&key)?;
        let range = flow.ranges.pop_front()?;
        let count = range.len();
        flow.waiting -= count;
        flow.window.shed += count as u64;
        self.shed += count as u64;
        if !flow.has_work() {
            self.active.heap.retain(|Reverse((_, _, other))| *other != key);
        }
        if let Some(buffer) = buffer_mut(&mut self.bursts, &mut self.packs, range.buffer) {
            buffer.done(count);
        }
        Some(range)
    }

    /// Chooses the next batch; false if nothing waits.
    pub(super) fn next_batch(&mut self) -> bool {
        self.batch.clear();
        self.slices.clear();
        if let Some(range) = &mut self.direct_range {
            let to = range.to.min(range.from + BURST as u16);
            self.batch.extend((range.from..to).map(|index| range.datagram(index, 0)));
            range.from = to;
            if range.from == range.to {
                self.direct_range = None;
            }
            return true;
        }
        let alone = self.active.heap.len() == 1;
        let mut left_ns = BATCH_NS;
        while !self.batch.is_full()
            && let Some(key) = self.active.first()
        {
            let Some(flow) = self.flows.get_mut(&key) else {
                // Each active key has a flow. If one had none, the others would have to be served all the same.
                self.active.heap.pop();
                continue;
            };
            if flow.has_postponed() && !self.batch.is_empty() {
                break;
            }
            let datagram_cost_ns = flow.datagram_cost_ns.max(1);
            let in_time = if alone { BURST } else { (left_ns / datagram_cost_ns) as usize };
            if in_time == 0 && !self.batch.is_empty() {
                break;
            }
            self.active.heap.pop();
            if flow.has_postponed() {
                self.resumed = flow.take_postponed();
                self.postponed_bytes -= self.resumed.iter().map(PostponedMessage::bytes).sum::<usize>();
                self.clock = self.clock.max(flow.clock);
                self.slices.push(FlowSlice { key, count: self.resumed.len() as u16, is_resumed: true });
                return true;
            }
            let before = self.batch.len();
            flow.take(in_time.clamp(1, BURST - before), self.slices.len() as u8, &mut self.batch);
            let count = self.batch.len() - before;
            left_ns = left_ns.saturating_sub(count as u64 * datagram_cost_ns);
            self.clock = self.clock.max(flow.clock);
            self.slices.push(FlowSlice { key, count: count as u16, is_resumed: false });
        }
        !self.batch.is_empty()
    }

    /// Calls `change` for each datagram of the batch, with its burst, index and slice, if some may be sealed.
    pub(super) fn for_each_sealed(&mut self, mut change: impl FnMut(&mut Burst, usize, u8)) {
        let may_be =
            |buffers: &[DatagramBuffer]| buffers.iter().any(|buffer| buffer.left > 0 && buffer.burst.may_be_sealed());
        if !may_be(&self.bursts) && !may_be(&self.packs) {
            debug_assert!(
                (0..self.batch.len())
                    .filter_map(|number| self.datagram(number))
                    .all(|(_, peer, datagram, _)| !requires_opening(peer, datagram))
            );
            return;
        }
        let IngressScheduler { bursts, packs, batch, .. } = self;
        for item in batch {
            if let Some(buffer) = buffer_mut(bursts, packs, item.buffer) {
                change(&mut buffer.burst, usize::from(item.index), item.slice);
            }
        }
    }

    /// Whether the batch is to be timed: it is charged to flows, or more datagrams wait.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        !self.slices.is_empty() || self.direct_range.is_some()
    }

    /// The messages of the batch that continue; if there are none, it has datagrams.
    pub(super) fn take_resumed(&mut self) -> Vec<PostponedMessage> {
        std::mem::take(&mut self.resumed)
    }

    /// Makes a message wait for a further turn of its tenant's flow.
    ///
    /// # Errors
    /// The limit of postponed bytes is reached.
    pub(super) fn postpone(&mut self, message: PostponedMessage) -> Result<(), Box<PostponedMessage>> {
        let in_use = self.flows.get(&Some(message.tenant())).map_or(0, IngressFlow::postponed_bytes);
        if !DynamicThreshold::of(POSTPONED_BYTES).admits(self.postponed_bytes, in_use) {
            return Err(Box::new(message));
        }
        self.postponed_bytes += message.bytes();
        self.flow_of(&message).put_postponed(message);
        Ok(())
    }

    /// Makes a message wait that has waited before, in front of the later ones.
    pub(super) fn postpone_again(&mut self, message: PostponedMessage) {
        self.postponed_bytes += message.bytes();
        self.flow_of(&message).put_postponed_first(message);
    }

    /// The flow of a message's tenant. It is active already, or becomes active now, or when its batch ends.
    fn flow_of(&mut self, message: &PostponedMessage) -> &mut IngressFlow {
        let key = Some(message.tenant());
        let weight = u64::from(message.weight()) * TENANT_TO_UNAUTHENTICATED_WEIGHT;
        let flow = self.flows.entry(key).or_insert_with(|| IngressFlow::new(weight));
        if !flow.has_work() && !self.slices.iter().any(|slice| slice.key == key) {
            flow.clock = flow.clock.max(self.clock);
            self.active.push(flow.clock, key);
        }
        flow
    }

    /// The number of datagrams in the batch.
    #[inline]
    pub(super) fn batch_len(&self) -> usize {
        self.batch.len()
    }

    /// A datagram of the batch: its slice, sender and bytes, and its memory if it is still in the device buffer. None
    /// if it was handled already.
    #[inline]
    pub(super) fn datagram(&self, number: usize) -> Option<(u8, PeerAddr, &[u8], Option<&shared_bytes::SharedBytes>)> {
        let item = self.batch.get(number)?;
        let buffer = match item.buffer {
            BufferId::Burst(number) => self.bursts.get(usize::from(number)),
            BufferId::Pack(number) => self.packs.get(usize::from(number)),
        };
        let (burst, index) = (&buffer?.burst, usize::from(item.index));
        let (peer, datagram) = burst.get(index).filter(|(peer, _)| *peer != NO_PEER)?;
        Some((item.slice, peer, datagram, burst.share(index)))
    }

    /// When the host received a datagram of the batch, in the workers' nanoseconds.
    #[inline]
    pub(super) fn received_ns(&self, number: usize) -> u64 {
        self.batch.get(number).map_or(self.now_ns, |item| item.received_ns)
    }

    /// The slices of the batch.
    #[cfg(test)]
    pub(super) fn slices(&self) -> &[FlowSlice] {
        &self.slices
    }

    /// Ends a batch that took `took_ns`, and charges its flows. Returns the number of its datagrams, and of messages
    /// that continued.
    pub(super) fn finish_batch(&mut self, took_ns: u64, costs: &BatchCosts) -> usize {
        for item in &self.batch {
            if let Some(buffer) = buffer_mut(&mut self.bursts, &mut self.packs, item.buffer) {
                buffer.done(1);
            }
        }
        let resumed = self.slices.iter().filter(|slice| slice.is_resumed).map(|slice| usize::from(slice.count));
        let count = self.batch.len() + resumed.sum::<usize>();
        self.batch.clear();
        let all: u64 = self.slices.iter().enumerate().map(|(number, slice)| costs.of(number, slice).0).sum();
        for (number, slice) in self.slices.drain(..).enumerate() {
            let Some(flow) = self.flows.get_mut(&slice.key) else { continue };
            let (work, refused) = costs.of(number, &slice);
            flow.served(took_ns.saturating_mul(work) / all.max(1), &slice, refused);
            if flow.has_work() {
                self.active.push(flow.clock, slice.key);
            }
        }
        count
    }

    /// Forgets flows that are idle and not throttled.
    pub(super) fn remove_idle_flows(&mut self) {
        let clock = self.clock;
        self.flows.retain(|_, flow| !flow.is_idle() || flow.admit_fraction < 1.0 || flow.clock > clock);
    }
}

fn buffer_mut<'s>(
    bursts: &'s mut [DatagramBuffer],
    packs: &'s mut [DatagramBuffer],
    buffer: BufferId,
) -> Option<&'s mut DatagramBuffer> {
    match buffer {
        BufferId::Burst(number) => bursts.get_mut(usize::from(number)),
        BufferId::Pack(number) => packs.get_mut(usize::from(number)),
    }
}

/// Copies a datagram to a pack, or moves its part of the device buffer there. None if all packs are full.
fn copy_to_pack(packs: &mut Vec<DatagramBuffer>, from: &Burst, index: usize) -> Option<(BufferId, u16)> {
    let (peer, datagram) = from.get(index)?;
    let put = |burst: &mut Burst| match from.share(index) {
        None => burst.pack(peer, datagram),
        Some(slice) => burst.pack_shared(peer, slice),
    };
    // The last pack in use is the one with room; empty ones come before or behind it.
    let mut candidates = 0..packs.len();
    let at = candidates.find(|at| {
        packs.get_mut(*at).is_some_and(|buffer| {
            if buffer.left == 0 {
                buffer.burst.clear();
            }
            put(&mut buffer.burst)
        })
    });
    let at = match at {
        Some(at) => at,
        None if packs.len() < MAX_PACKS => {
            let mut burst = Burst::new(1, GRO_BUFFER);
            let fits = put(&mut burst);
            packs.push(DatagramBuffer { burst, left: 0 });
            fits.then_some(packs.len() - 1)?
        }
        None => return None,
    };
    let buffer = packs.get_mut(at)?;
    buffer.left += 1;
    Some((BufferId::Pack(at as u16), buffer.burst.len() as u16 - 1))
}

#[cfg(test)]
mod tests;
