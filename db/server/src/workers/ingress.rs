//! The intake of a worker: datagrams between the socket and their turn.
//!
//! The socket hands over what came in the order in which it came, so who sends most would be served most, and all
//! others would wait behind it. Here each tenant has a lane, and all strangers together one: whoever has been served
//! least is next, by CPU time divided by weight (start-time fair queueing, Goyal et al., SIGCOMM'96). So a message
//! waits for one share of each other lane, however much waits there. When there is no buffer left to receive into, the
//! longest lane loses its oldest datagrams ([`super::early_drop`] then has the kernel drop more of the same before they
//! come here).
//!
//! What is served together is a *part*: shares of as many lanes as there is time for, in their order. Of a thousand
//! tenants each has a datagram or two there, and their cache misses overlap all the same. The time that a part takes is
//! charged to its lanes by the work that their datagrams were.
//!
//! A datagram's life here:
//! 1. It is received into a burst ([`IngressScheduler::receive`]). Is it one of few and nothing waits, it is served
//!    next, as it came.
//! 2. Else it is sorted: its class is found, and what the sieve does not let in is left where it lies.
//! 3. It stays in its burst if that is well filled, or small and one of few, else it is copied to a pack, and the burst
//!    is free again. What stayed in the device's buffer waits there as far as its class may hold such
//!    ([`super::rx_zero_copy`]).
//! 4. Its place, with those of its neighbours of the same class a run, goes to the end of its lane. There it may be
//!    shed.
//! 5. It comes into a part with its lane's share ([`IngressScheduler::next_batch`]), is opened where it lies, and
//!    served.
//! 6. Its lane is charged, and its burst or pack is free again with the last datagram in it
//!    ([`IngressScheduler::finish_batch`]).
//!
//! Messages that were not run to their end wait in their tenant's lane as well ([`super::message_pieces`]). They go on
//! before its datagrams are served, in a part of their own.
//!
//! A lane goes by the tenant that a datagram names only if the tenant is open, or the sender has shown its token: a
//! forged name buys no place in another's lane. What came alone and is little is not sorted at all, and what the kernel
//! has coalesced is sorted by runs where it lies: with one or two tenants this costs a few nanoseconds a datagram.

mod flows;

use std::cmp::Reverse;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use sandstorm_net::driver::socket_filter::claimed_tenant;
use sandstorm_net::driver::{Burst, DatagramDriver, NO_PEER};
use sandstorm_net::limits::GRO_BUFFER;
use sandstorm_net::r2p2::PeerAddr;
use sandstorm_net::rx_budget::RxBufferBudget;
use sandstorm_net::seal::requires_opening;
use sandstorm_net::shared_bytes;

use self::flows::{ActiveFlows, BatchDatagram, BufferId, DatagramRange, FlowEnqueuer};
pub(super) use self::flows::{BatchCosts, FlowSlice, FlowStats, IngressFlow};
use super::connections::dynamic_threshold_admits;
use super::message_pieces::PostponedMessage;
use super::rx_zero_copy::may_wait_in_place;
use super::verified_peers::VerifiedPeers;
use crate::limits::{
    BATCH_NS, BURST, DIRECT_DATAGRAMS, MAX_BURSTS, MAX_PACKS, POSTPONED_BYTES, RECEIVES_PER_SERVE, SHED_MIN_DATAGRAMS,
    TENANT_TO_UNAUTHENTICATED_WEIGHT, UNPACKED_BURSTS,
};
use sandstorm_catalog::DirectorySnapshot;

/// Whose datagram: a tenant's, or a stranger's.
pub(super) type FlowKey = Option<u32>;

/// Buffers, and how many of the datagrams in them still wait.
struct DatagramBuffer {
    burst: Burst,
    left: usize,
}

impl DatagramBuffer {
    /// So many of its datagrams wait no more.
    #[inline]
    fn done(&mut self, count: usize) {
        self.left -= count;
        if self.left == 0 {
            self.burst.let_go();
        }
    }
}

/// What a classification needs to know.
pub(super) struct DatagramClassifier<'s> {
    pub(super) snapshot: &'s DirectorySnapshot,
    pub(super) known: &'s mut VerifiedPeers,
    pub(super) now_us: u64,
    /// The buffers in which datagrams may wait.
    pub(super) kept: Option<&'s RxBufferBudget>,
    /// The last answer: datagrams come in runs.
    pub(super) last: Option<(PeerAddr, Option<u32>, FlowKey)>,
}

impl DatagramClassifier<'_> {
    /// Whether a datagram is of the class of the last one, since it comes from the same peer and names the same.
    #[inline]
    fn matches_last(&self, peer: PeerAddr, datagram: &[u8]) -> bool {
        self.last.is_some_and(|(last, named, _)| named == claimed_tenant(datagram) && last == peer)
    }

    fn class(&mut self, peer: PeerAddr, datagram: &[u8]) -> FlowKey {
        if let Some((_, _, class)) = self.last
            && self.matches_last(peer, datagram)
        {
            return class;
        }
        let named = claimed_tenant(datagram);
        let class = match named {
            Some(tenant) => match self.snapshot.tenant(tenant) {
                Some(view) if view.tenant.open || self.known.allows(peer, tenant, self.now_us) => Some(tenant),
                _ => None,
            },
            // Acks and packets of longer messages name nobody.
            None => self.known.whose(peer, self.now_us),
        };
        self.last = Some((peer, named, class));
        class
    }

    fn weight(&self, class: FlowKey) -> u64 {
        let tenant = class.and_then(|tenant| self.snapshot.tenant(tenant));
        tenant.map_or(1, |view| u64::from(view.tenant.quotas.weight) * TENANT_TO_UNAUTHENTICATED_WEIGHT)
    }
}

/// See the head of this file.
pub(super) struct IngressScheduler {
    /// What is received into, and kept while datagrams wait in it.
    bursts: Vec<DatagramBuffer>,
    /// Copies of datagrams that came one by one, close together.
    packs: Vec<DatagramBuffer>,
    pub(super) lanes: HashMap<FlowKey, IngressFlow>,
    active: ActiveFlows,
    /// Datagrams that came alone, to be served as they came.
    direct_range: Option<DatagramRange>,
    /// What is being served.
    part: ArrayVec<BatchDatagram, BURST>,
    /// Whose that is; nobody's in particular where it is served as it came.
    shares: ArrayVec<FlowSlice, BURST>,
    /// Messages that go on now: all of one lane, and nothing else is being served.
    resumed: Vec<PostponedMessage>,
    /// Bytes of all messages that wait to go on.
    postponed_bytes: usize,
    /// The clock of the lane served last, when it was chosen.
    clock: u64,
    /// Datagrams shed since the worker began.
    shed: u64,
    /// Whether `keep` is to be applied here, since the kernel cannot.
    pub(super) random_drop: Option<RandomDrop>,
}

/// Throws dice.
pub(super) struct RandomDrop(u64);

impl RandomDrop {
    pub(super) fn new(seed: u64) -> RandomDrop {
        RandomDrop(seed | 1)
    }

    fn passes(&mut self, keep: f64) -> bool {
        // An LCG's upper bits will do: nobody gains by guessing them.
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        ((self.0 >> 33) as f64) < keep * f64::from(1u32 << 31)
    }
}

impl IngressScheduler {
    pub(super) fn new() -> IngressScheduler {
        IngressScheduler {
            bursts: Vec::new(),
            packs: Vec::new(),
            lanes: HashMap::new(),
            active: ActiveFlows::default(),
            direct_range: None,
            part: ArrayVec::new(),
            shares: ArrayVec::new(),
            resumed: Vec::new(),
            postponed_bytes: 0,
            clock: 0,
            shed: 0,
            random_drop: None,
        }
    }

    /// Datagrams shed since it began.
    pub(super) fn shed(&self) -> u64 {
        self.shed
    }

    /// Receives what there is, as far as there is room for it and up to so many bursts, and sorts it.
    pub(super) fn receive(&mut self, driver: &mut impl DatagramDriver, mut sorter: DatagramClassifier<'_>, own: bool) {
        if let Some(DatagramRange { store: BufferId::Burst(number), from, .. }) = self.direct_range.take() {
            self.sort(number, from, &mut sorter);
        }
        for _ in 0..if own { RECEIVES_PER_SERVE } else { 1 } {
            let Some(number) = self.free_burst(driver) else { return };
            let Some(into) = self.bursts.get_mut(usize::from(number)) else { return };
            let count = driver.receive(&mut into.burst);
            let drained = into.burst.has_drained();
            if drained && self.active.is_empty() && count <= DIRECT_DATAGRAMS {
                into.left = count;
                let run = DatagramRange { store: BufferId::Burst(number), from: 0, to: count as u16 };
                self.direct_range = (count > 0).then_some(run);
                return;
            }
            self.sort(number, 0, &mut sorter);
            if drained {
                return;
            }
        }
    }

    /// Puts the datagrams of a burst from number `from` on into their lanes.
    fn sort(&mut self, number: u16, from: u16, sorter: &mut DatagramClassifier<'_>) {
        let IngressScheduler { bursts, packs, lanes, active, clock, random_drop, shed, .. } = self;
        let mut all = FlowEnqueuer { lanes, active, clock: *clock };
        let held = bursts.iter().filter(|store| store.left > 0).count();
        let Some(DatagramBuffer { burst, left }) = bursts.get_mut(usize::from(number)) else { return };
        *left = 0;
        let packs_it = burst.is_sparse() && !(burst.is_small() && held < UNPACKED_BURSTS);
        let as_it_is = !packs_it && !burst.has_in_place();
        let (mut run, mut all_pass): (Option<(FlowKey, DatagramRange)>, bool) = (None, false);
        for index in usize::from(from)..burst.len() {
            let Some((peer, datagram)) = burst.get(index) else { break };
            // The usual case: one more of those before it.
            if as_it_is
                && all_pass
                && let Some((_, run)) = &mut run
                && sorter.matches_last(peer, datagram)
            {
                run.to += 1;
                *left += 1;
                continue;
            }
            let class = sorter.class(peer, datagram);
            all_pass = true;
            if let Some(random_drop) = random_drop
                && let Some(lane) = all.lanes.get_mut(&class)
                && lane.keep < 1.0
            {
                all_pass = false;
                if !random_drop.passes(lane.keep) {
                    *shed += 1;
                    lane.window.dropped_early += 1;
                    burst.discard_shared(index);
                    continue;
                }
            }
            if burst.share(index).is_some() {
                let waiting = all.lanes.get(&class).map_or(0, |lane| lane.waiting);
                if !may_wait_in_place(sorter.kept, class, waiting) {
                    burst.bring(index);
                }
            }
            let packed = if packs_it { copy_to_pack(packs, burst, index) } else { None };
            let (store, index) = packed.unwrap_or((BufferId::Burst(number), index as u16));
            if packed.is_none() {
                *left += 1;
            }
            match &mut run {
                Some((of, run)) if *of == class && run.store == store && run.to == index => run.to += 1,
                _ => {
                    let begun = DatagramRange { store, from: index, to: index + 1 };
                    if let Some((of, run)) = run.replace((class, begun)) {
                        all.put(of, run, sorter);
                    }
                }
            }
        }
        if let Some((of, run)) = run {
            all.put(of, run, sorter);
        }
        if *left == 0 {
            burst.let_go();
        }
    }

    /// A burst to receive into, with a pack to copy it to; makes room in the longest lane if there is none. None if no
    /// lane is long.
    fn free_burst(&mut self, driver: &impl DatagramDriver) -> Option<u16> {
        loop {
            let burst = self.bursts.iter().position(|store| store.left == 0);
            let has_pack = self.packs.len() < MAX_PACKS || self.packs.iter().any(|store| store.left == 0);
            match burst {
                Some(burst) if has_pack => return u16::try_from(burst).ok(),
                None if self.bursts.len() < MAX_BURSTS => {
                    self.bursts.push(DatagramBuffer { burst: driver.burst(), left: 0 })
                }
                _ => self.shed_longest_flow()?,
            }
        }
    }

    /// Throws away the oldest run of the longest lane, and those behind it until a buffer is free. None if no lane is
    /// long.
    #[cold]
    fn shed_longest_flow(&mut self) -> Option<()> {
        let waiting = |class: FlowKey| Some((self.lanes.get(&class)?.waiting, class));
        let longest = self.active.classes().filter_map(waiting).max()?;
        if longest.0 < SHED_MIN_DATAGRAMS {
            return None;
        }
        while let Some(run) = self.shed_oldest_range(longest.1) {
            if buffer_mut(&mut self.bursts, &mut self.packs, run.store).is_none_or(|store| store.left == 0) {
                break;
            }
        }
        Some(())
    }

    /// Throws away the oldest run of a lane.
    #[cold]
    fn shed_oldest_range(&mut self, class: FlowKey) -> Option<DatagramRange> {
        let lane = self.lanes.get_mut(&class)?;
        let run = lane.runs.pop_front()?;
        let count = run.len();
        lane.waiting -= count;
        lane.window.shed += count as u64;
        self.shed += count as u64;
        if !lane.has_work() {
            self.active.heap.retain(|Reverse((_, _, other))| *other != class);
        }
        if let Some(store) = buffer_mut(&mut self.bursts, &mut self.packs, run.store) {
            store.done(count);
        }
        Some(run)
    }

    /// Chooses what is served next; false if nothing waits.
    pub(super) fn next_batch(&mut self) -> bool {
        self.part.clear();
        self.shares.clear();
        if let Some(run) = &mut self.direct_range {
            let to = run.to.min(run.from + BURST as u16);
            self.part.extend((run.from..to).map(|index| BatchDatagram { store: run.store, index, share: 0 }));
            run.from = to;
            if run.from == run.to {
                self.direct_range = None;
            }
            return true;
        }
        let alone = self.active.heap.len() == 1;
        let mut left_ns = BATCH_NS;
        while !self.part.is_full()
            && let Some(class) = self.active.first()
        {
            let Some(lane) = self.lanes.get_mut(&class) else {
                // There is one for each place; were there none, the others would have to be served all the same.
                self.active.heap.pop();
                continue;
            };
            if lane.has_postponed() && !self.part.is_empty() {
                break;
            }
            let datagram_cost_ns = lane.datagram_cost_ns.max(1);
            let in_time = if alone { BURST } else { (left_ns / datagram_cost_ns) as usize };
            if in_time == 0 && !self.part.is_empty() {
                break;
            }
            self.active.heap.pop();
            if lane.has_postponed() {
                self.resumed = lane.take_postponed();
                self.postponed_bytes -= self.resumed.iter().map(PostponedMessage::bytes).sum::<usize>();
                self.clock = self.clock.max(lane.clock);
                self.shares.push(FlowSlice { class, count: self.resumed.len() as u16, is_resumed: true });
                return true;
            }
            let before = self.part.len();
            lane.take(in_time.clamp(1, BURST - before), self.shares.len() as u8, &mut self.part);
            let count = self.part.len() - before;
            left_ns = left_ns.saturating_sub(count as u64 * datagram_cost_ns);
            self.clock = self.clock.max(lane.clock);
            self.shares.push(FlowSlice { class, count: count as u16, is_resumed: false });
        }
        !self.part.is_empty()
    }

    /// Lets each datagram that is to be served now be changed where it stands, if some may be sealed; with the number
    /// of its share.
    pub(super) fn for_each_sealed(&mut self, mut change: impl FnMut(&mut Burst, usize, u8)) {
        let may_be =
            |stores: &[DatagramBuffer]| stores.iter().any(|store| store.left > 0 && store.burst.may_be_sealed());
        if !may_be(&self.bursts) && !may_be(&self.packs) {
            debug_assert!(
                (0..self.part.len())
                    .filter_map(|number| self.datagram(number))
                    .all(|(_, peer, datagram, _)| !requires_opening(peer, datagram))
            );
            return;
        }
        let IngressScheduler { bursts, packs, part, .. } = self;
        for item in part {
            if let Some(store) = buffer_mut(bursts, packs, item.store) {
                change(&mut store.burst, usize::from(item.index), item.share);
            }
        }
    }

    /// Whether it matters how long serving them takes: lanes are charged for it, or more waits.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        !self.shares.is_empty() || self.direct_range.is_some()
    }

    /// Messages that go on now; none: it is datagrams that are being served.
    pub(super) fn take_resumed(&mut self) -> Vec<PostponedMessage> {
        std::mem::take(&mut self.resumed)
    }

    /// Has a message wait for a further turn of its tenant's.
    ///
    /// # Errors
    /// There is no room for it.
    pub(super) fn postpone(&mut self, message: PostponedMessage) -> Result<(), Box<PostponedMessage>> {
        let held = self.lanes.get(&Some(message.tenant())).map_or(0, IngressFlow::postponed_bytes);
        if !dynamic_threshold_admits(POSTPONED_BYTES, self.postponed_bytes, held) {
            return Err(Box::new(message));
        }
        self.postponed_bytes += message.bytes();
        self.lane_of(&message).put_postponed(message);
        Ok(())
    }

    /// Has a message wait that has done so before, in front of those behind it.
    pub(super) fn postpone_again(&mut self, message: PostponedMessage) {
        self.postponed_bytes += message.bytes();
        self.lane_of(&message).put_postponed_first(message);
    }

    /// The lane of a message's tenant, which has its place among those that are served, or gets it when what is being
    /// served is done.
    fn lane_of(&mut self, message: &PostponedMessage) -> &mut IngressFlow {
        let class = Some(message.tenant());
        let weight = u64::from(message.weight()) * TENANT_TO_UNAUTHENTICATED_WEIGHT;
        let lane = self.lanes.entry(class).or_insert_with(|| IngressFlow::new(weight));
        if !lane.has_work() && !self.shares.iter().any(|share| share.class == class) {
            lane.clock = lane.clock.max(self.clock);
            self.active.push(lane.clock, class);
        }
        lane
    }

    /// How many datagrams are being served.
    #[inline]
    pub(super) fn batch_len(&self) -> usize {
        self.part.len()
    }

    /// One of the datagrams that are being served, with the number of its share, and its memory if it stayed where it
    /// came. None if it is dealt with.
    #[inline]
    pub(super) fn datagram(&self, number: usize) -> Option<(u8, PeerAddr, &[u8], Option<&shared_bytes::SharedBytes>)> {
        let item = self.part.get(number)?;
        let store = match item.store {
            BufferId::Burst(number) => self.bursts.get(usize::from(number)),
            BufferId::Pack(number) => self.packs.get(usize::from(number)),
        };
        let (burst, index) = (&store?.burst, usize::from(item.index));
        let (peer, datagram) = burst.get(index).filter(|(peer, _)| *peer != NO_PEER)?;
        Some((item.share, peer, datagram, burst.share(index)))
    }

    /// Whose is what is being served.
    #[cfg(test)]
    pub(super) fn shares(&self) -> &[FlowSlice] {
        &self.shares
    }

    /// The part has been served, in so much time. Each of its lanes is charged by the work that its share was. Tells
    /// its datagrams, and messages that went on.
    pub(super) fn finish_batch(&mut self, took_ns: u64, bills: &BatchCosts) -> usize {
        for item in &self.part {
            if let Some(store) = buffer_mut(&mut self.bursts, &mut self.packs, item.store) {
                store.done(1);
            }
        }
        let resumed = self.shares.iter().filter(|share| share.is_resumed).map(|share| usize::from(share.count));
        let count = self.part.len() + resumed.sum::<usize>();
        self.part.clear();
        let all: u64 = self.shares.iter().enumerate().map(|(number, share)| bills.of(number, share).0).sum();
        for (number, share) in self.shares.drain(..).enumerate() {
            let Some(lane) = self.lanes.get_mut(&share.class) else { continue };
            let (work, refused) = bills.of(number, &share);
            lane.served(took_ns.saturating_mul(work) / all.max(1), &share, refused);
            if lane.has_work() {
                self.active.push(lane.clock, share.class);
            }
        }
        count
    }

    /// Forgets lanes that are idle and let in as a whole.
    pub(super) fn remove_idle_flows(&mut self) {
        let clock = self.clock;
        self.lanes.retain(|_, lane| !lane.is_idle() || lane.keep < 1.0 || lane.clock > clock);
    }
}

fn buffer_mut<'s>(
    bursts: &'s mut [DatagramBuffer],
    packs: &'s mut [DatagramBuffer],
    store: BufferId,
) -> Option<&'s mut DatagramBuffer> {
    match store {
        BufferId::Burst(number) => bursts.get_mut(usize::from(number)),
        BufferId::Pack(number) => packs.get_mut(usize::from(number)),
    }
}

/// Keeps a copy of a datagram, or a hold on it where it stays where it came. None if all packs are full.
fn copy_to_pack(packs: &mut Vec<DatagramBuffer>, from: &Burst, index: usize) -> Option<(BufferId, u16)> {
    let (peer, datagram) = from.get(index)?;
    let put = |burst: &mut Burst| match from.share(index) {
        None => burst.pack(peer, datagram),
        Some(share) => burst.pack_shared(peer, share),
    };
    // The last one in use is the one with room; emptied ones come before it, or behind.
    let mut candidates = 0..packs.len();
    let at = candidates.find(|at| {
        packs.get_mut(*at).is_some_and(|store| {
            if store.left == 0 {
                store.burst.clear();
            }
            put(&mut store.burst)
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
    let store = packs.get_mut(at)?;
    store.left += 1;
    Some((BufferId::Pack(at as u16), store.burst.len() as u16 - 1))
}

#[cfg(test)]
mod tests;
