//! The intake of a worker: datagrams between the socket and their turn.
//!
//! The socket hands over what came in the order in which it came, so who sends most would be served most, and all others would wait
//! behind it. Here each tenant has a lane, and all strangers together one: whoever has been served least is next, by CPU
//! time divided by weight (start-time fair queueing, Goyal et al., SIGCOMM'96). So a message waits for one part of each other lane, however much
//! waits there. When there is no buffer left to receive into, the longest lane loses its oldest datagrams ([`super::overload`]
//! then has the kernel drop more of the same before they come here).
//!
//! A lane goes by the tenant that a datagram names only if the tenant is open, or the sender has shown its token: a
//! forged name buys no place in another's lane. What came alone and is little is not sorted at all, and what the kernel has coalesced is
//! sorted by runs where it lies: with one or two tenants this costs a few nanoseconds a datagram.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use sandstorm_net::driver::filter::named_tenant;
use sandstorm_net::driver::{Burst, Driver, NOBODY};
use sandstorm_net::limits::GRO_BUFFER;
use sandstorm_net::r2p2::Peer;

use super::known::Known;
use crate::limits::{
    BURST, DIRECT_DATAGRAMS, HELD_BURSTS, HELD_PACKS, PART_NS, RECEIVES_PER_SERVE, SHED_LEAST, STRANGERS_SHARE,
};
use crate::tenants::Snapshot;

/// Whose datagram: a tenant's, or a stranger's.
pub(super) type Class = Option<u32>;

/// Datagrams of one class that stand behind each other.
#[derive(Clone, Copy, Debug)]
struct Run {
    store: u16,
    from: u16,
    to: u16,
}

/// Buffers, and how many of the datagrams in them still wait.
struct Store {
    burst: Burst,
    left: usize,
}

/// What a lane did since it was last looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    pub(super) arrived: u64,
    pub(super) served: u64,
    /// Of these, messages refused because the tenant is over its rate, or its sender did not show who it is.
    pub(super) refused: u64,
    /// Thrown away for lack of room.
    pub(super) shed: u64,
    /// Dropped here, on arrival, since the kernel cannot; not among those that arrived.
    pub(super) sieved: u64,
}

/// The waiting datagrams of one class.
pub(super) struct Lane {
    runs: VecDeque<Run>,
    waiting: usize,
    /// CPU time used, by weight, as if the lane had always been waiting; the least is next.
    clock: u64,
    /// What serving one of its datagrams has cost lately, nanoseconds.
    each_ns: u64,
    /// Quarters of a tenant's usual share.
    weight: u64,
    pub(super) window: Window,
    /// Part of its datagrams that is let in.
    pub(super) keep: f64,
}

impl Lane {
    fn new(weight: u64) -> Lane {
        let (runs, window) = (VecDeque::new(), Window::default());
        Lane { runs, waiting: 0, clock: 0, each_ns: 500, weight: weight.max(1), window, keep: 1.0 }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.window.arrived + self.window.sieved == 0
    }
}

/// What a classification needs to know.
pub(super) struct Sorter<'s> {
    pub(super) snapshot: &'s Snapshot,
    pub(super) known: &'s mut Known,
    pub(super) now_us: u64,
    /// The last answer: datagrams come in runs.
    pub(super) last: Option<(Peer, Option<u32>, Class)>,
}

impl Sorter<'_> {
    fn class(&mut self, peer: Peer, datagram: &[u8]) -> Class {
        let named = named_tenant(datagram);
        if let Some((last, of, class)) = self.last
            && last == peer
            && of == named
        {
            return class;
        }
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

    fn weight(&self, class: Class) -> u64 {
        let tenant = class.and_then(|tenant| self.snapshot.tenant(tenant));
        tenant.map_or(1, |view| u64::from(view.tenant.quotas.weight) * STRANGERS_SHARE)
    }
}

/// See the head of this file.
pub(super) struct Intake {
    /// What is received into, and kept while its datagrams wait if it is well filled.
    bursts: Vec<Store>,
    /// Copies of datagrams that came one by one, close together.
    packs: Vec<Store>,
    pub(super) lanes: HashMap<Class, Lane>,
    /// Lanes in which something waits.
    active: Vec<Class>,
    /// Datagrams that came alone, to be served as they came.
    direct: Option<Run>,
    /// What is being served: where it lies.
    part: ArrayVec<(u16, u16), BURST>,
    part_of: Option<Class>,
    /// The clock of the lane served last.
    clock: u64,
    /// Datagrams shed since the worker began.
    shed: u64,
    /// Whether `keep` is to be applied here, since the kernel cannot.
    pub(super) sieve: Option<Sieve>,
}

/// Throws dice.
pub(super) struct Sieve(u64);

impl Sieve {
    pub(super) fn new(seed: u64) -> Sieve {
        Sieve(seed | 1)
    }

    fn passes(&mut self, keep: f64) -> bool {
        // An LCG's upper bits will do: nobody gains by guessing them.
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        ((self.0 >> 33) as f64) < keep * f64::from(1u32 << 31)
    }
}

/// Stores from this number on are packs.
const PACKS: u16 = 1 << 15;

impl Intake {
    pub(super) fn new() -> Intake {
        Intake {
            bursts: Vec::new(),
            packs: Vec::new(),
            lanes: HashMap::new(),
            active: Vec::new(),
            direct: None,
            part: ArrayVec::new(),
            part_of: None,
            clock: 0,
            shed: 0,
            sieve: None,
        }
    }

    /// Datagrams shed since it began.
    pub(super) fn shed(&self) -> u64 {
        self.shed
    }

    /// Receives what there is, as far as there is room for it and up to so many bursts, and sorts it.
    pub(super) fn receive(&mut self, driver: &mut impl Driver, mut sorter: Sorter<'_>, own: bool) {
        if let Some(run) = self.direct.take() {
            self.sort(usize::from(run.store), run.from, &mut sorter);
        }
        for _ in 0..if own { RECEIVES_PER_SERVE } else { 1 } {
            let Some(store) = self.free_burst(driver) else { return };
            let Some(into) = self.bursts.get_mut(store) else { return };
            let count = driver.receive(&mut into.burst);
            let drained = into.burst.has_drained();
            if drained && self.active.is_empty() && count <= DIRECT_DATAGRAMS {
                into.left = count;
                self.direct = (count > 0).then_some(Run { store: store as u16, from: 0, to: count as u16 });
                return;
            }
            self.sort(store, 0, &mut sorter);
            if drained {
                return;
            }
        }
    }

    /// Puts the datagrams of a burst from number `from` on into their lanes.
    fn sort(&mut self, store: usize, from: u16, sorter: &mut Sorter<'_>) {
        let Intake { bursts, packs, lanes, active, clock, sieve, shed, .. } = self;
        let Some(Store { burst, left }) = bursts.get_mut(store) else { return };
        *left = 0;
        let sparse = burst.is_sparse();
        let mut run: Option<(Class, Run)> = None;
        for index in usize::from(from)..burst.len() {
            let Some((peer, datagram)) = burst.get(index) else { break };
            let class = sorter.class(peer, datagram);
            if let Some(sieve) = sieve
                && let Some(lane) = lanes.get_mut(&class)
                && lane.keep < 1.0
                && !sieve.passes(lane.keep)
            {
                *shed += 1;
                lane.window.sieved += 1;
                continue;
            }
            let packed = if sparse { pack(packs, peer, datagram) } else { None };
            let (at, index) = packed.unwrap_or((store as u16, index as u16));
            if packed.is_none() {
                *left += 1;
            }
            match &mut run {
                Some((of, run)) if *of == class && run.store == at && run.to == index => run.to += 1,
                _ => {
                    let begun = Run { store: at, from: index, to: index + 1 };
                    if let Some((of, run)) = run.replace((class, begun)) {
                        put(lanes, active, *clock, of, run, sorter);
                    }
                }
            }
        }
        if let Some((of, run)) = run {
            put(lanes, active, *clock, of, run, sorter);
        }
    }

    /// A burst to receive into, with a pack to copy it to; makes room in the longest lane if there is none. None if no lane is long.
    fn free_burst(&mut self, driver: &impl Driver) -> Option<usize> {
        loop {
            let burst = self.bursts.iter().position(|store| store.left == 0);
            let has_pack = self.packs.len() < HELD_PACKS || self.packs.iter().any(|store| store.left == 0);
            match burst {
                Some(burst) if has_pack => return Some(burst),
                None if self.bursts.len() < HELD_BURSTS => self.bursts.push(Store { burst: driver.burst(), left: 0 }),
                _ => self.shed_some()?,
            }
        }
    }

    /// Throws away the oldest run of the longest lane, and those behind it until a buffer is free. None if no lane is long.
    #[cold]
    fn shed_some(&mut self) -> Option<()> {
        let longest = self.active.iter().filter_map(|class| Some((self.lanes.get(class)?.waiting, *class))).max()?;
        if longest.0 < SHED_LEAST {
            return None;
        }
        while let Some(run) = self.shed_run(longest.1) {
            if store_mut(&mut self.bursts, &mut self.packs, run.store).is_none_or(|store| store.left == 0) {
                break;
            }
        }
        Some(())
    }

    /// Throws away the oldest run of a lane.
    #[cold]
    fn shed_run(&mut self, class: Class) -> Option<Run> {
        let lane = self.lanes.get_mut(&class)?;
        let run = lane.runs.pop_front()?;
        let count = usize::from(run.to - run.from);
        lane.waiting -= count;
        lane.window.shed += count as u64;
        self.shed += count as u64;
        if lane.waiting == 0 {
            self.active.retain(|other| *other != class);
        }
        if let Some(store) = store_mut(&mut self.bursts, &mut self.packs, run.store) {
            store.left -= count;
        }
        Some(run)
    }

    /// Chooses what is served next; false if nothing waits.
    pub(super) fn next_part(&mut self) -> bool {
        self.part.clear();
        if let Some(run) = &mut self.direct {
            let to = run.to.min(run.from + BURST as u16);
            self.part.extend((run.from..to).map(|index| (run.store, index)));
            run.from = to;
            if run.from == run.to {
                self.direct = None;
            }
            self.part_of = None;
            return true;
        }
        let alone = self.active.len() == 1;
        let rank = |class: &Class| self.lanes.get(class).map_or((u64::MAX, 0), |lane| (lane.clock, lane.waiting));
        let Some(class) = self.active.iter().copied().min_by_key(rank) else { return false };
        let Some(lane) = self.lanes.get_mut(&class) else { return false };
        let most = if alone { BURST } else { ((PART_NS / lane.each_ns.max(1)) as usize).clamp(1, BURST) };
        while let Some(run) = lane.runs.front_mut() {
            let to = run.to.min(run.from.saturating_add((most - self.part.len()) as u16));
            self.part.extend((run.from..to).map(|index| (run.store, index)));
            run.from = to;
            if run.from < run.to {
                break;
            }
            lane.runs.pop_front();
        }
        lane.waiting -= self.part.len();
        self.part_of = Some(class);
        self.clock = self.clock.max(lane.clock);
        true
    }

    /// Lets each datagram that is to be served now be changed where it stands.
    pub(super) fn each_of_part(&mut self, mut change: impl FnMut(&mut Burst, usize)) {
        let Intake { bursts, packs, part, .. } = self;
        for (store, index) in part {
            if let Some(store) = store_mut(bursts, packs, *store) {
                change(&mut store.burst, usize::from(*index));
            }
        }
    }

    /// The datagrams that are being served.
    pub(super) fn part(&self) -> impl Iterator<Item = (Peer, &[u8])> {
        self.part.iter().filter_map(|(store, index)| {
            let store = match store.checked_sub(PACKS) {
                Some(pack) => self.packs.get(usize::from(pack)),
                None => self.bursts.get(usize::from(*store)),
            };
            store?.burst.get(usize::from(*index)).filter(|(peer, _)| *peer != NOBODY)
        })
    }

    /// The part has been served, in so much time, and so many of its messages were refused at the door. Tells its datagrams.
    pub(super) fn finish_part(&mut self, took_ns: u64, refused: u64) -> usize {
        for (store, _) in &self.part {
            if let Some(store) = store_mut(&mut self.bursts, &mut self.packs, *store) {
                store.left -= 1;
            }
        }
        let count = self.part.len();
        self.part.clear();
        let Some(class) = self.part_of.take() else { return count };
        let Some(lane) = self.lanes.get_mut(&class) else { return count };
        lane.each_ns = (3 * lane.each_ns + took_ns / (count as u64).max(1)) / 4;
        lane.clock += took_ns * STRANGERS_SHARE / lane.weight;
        lane.window.served += count as u64;
        lane.window.refused += refused;
        if lane.waiting == 0 {
            self.active.retain(|other| *other != class);
        }
        count
    }

    /// Forgets lanes that are idle and let in as a whole.
    pub(super) fn forget_idle(&mut self) {
        let clock = self.clock;
        self.lanes.retain(|_, lane| !lane.is_idle() || lane.keep < 1.0 || lane.clock > clock);
    }
}

fn store_mut<'s>(bursts: &'s mut [Store], packs: &'s mut [Store], store: u16) -> Option<&'s mut Store> {
    match store.checked_sub(PACKS) {
        Some(pack) => packs.get_mut(usize::from(pack)),
        None => bursts.get_mut(usize::from(store)),
    }
}

/// Appends a run to its class's lane.
fn put(
    lanes: &mut HashMap<Class, Lane>,
    active: &mut Vec<Class>,
    clock: u64,
    class: Class,
    run: Run,
    sorter: &Sorter<'_>,
) {
    let lane = lanes.entry(class).or_insert_with(|| Lane::new(sorter.weight(class)));
    if lane.waiting == 0 {
        active.push(class);
        lane.clock = lane.clock.max(clock);
    }
    let count = usize::from(run.to - run.from);
    lane.waiting += count;
    lane.window.arrived += count as u64;
    lane.runs.push_back(run);
}

/// Keeps a copy of a datagram. None if all packs are full.
fn pack(packs: &mut Vec<Store>, peer: Peer, datagram: &[u8]) -> Option<(u16, u16)> {
    // The last one in use is the one with room; emptied ones come before it, or behind.
    let mut candidates = 0..packs.len();
    let at = candidates.find(|at| {
        packs.get_mut(*at).is_some_and(|store| {
            if store.left == 0 {
                store.burst.clear();
            }
            store.burst.pack(peer, datagram)
        })
    });
    let at = match at {
        Some(at) => at,
        None if packs.len() < HELD_PACKS => {
            let mut burst = Burst::new(1, GRO_BUFFER);
            let fits = burst.pack(peer, datagram);
            packs.push(Store { burst, left: 0 });
            fits.then_some(packs.len() - 1)?
        }
        None => return None,
    };
    let store = packs.get_mut(at)?;
    store.left += 1;
    Some((PACKS + at as u16, store.burst.len() as u16 - 1))
}

#[cfg(test)]
mod tests;
