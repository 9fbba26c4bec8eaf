//! Tests of plans that split servers.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_net::slots::SLOTS;
use sandstorm_store::slots::SlotSpan;

use crate::limits::SPLIT_LEAST_PART;
use crate::slot_balance::{ServerLoadReport, SlotLoad};
use crate::slot_plans::{KnownServers, ServerChange, count};
use crate::slot_split::{SplitMeasure, SplitPlan};
use crate::state::{ServerState, StoredSlots};

const FIRST: &str = "server-0";
const SECOND: &str = "server-1";

struct SmallCluster {
    all: BTreeMap<String, ServerState>,
    live: BTreeSet<String>,
    map: StoredSlots,
}

impl SmallCluster {
    fn new(founders: &[&str]) -> SmallCluster {
        let ids = |all: &[&str]| -> Vec<String> { all.iter().map(|id| (*id).to_owned()).collect() };
        let map = StoredSlots::divided(&ids(founders));
        let all = ids(&[FIRST, SECOND, "server-2"]);
        let live = all.iter().cloned().collect();
        SmallCluster { all: all.into_iter().map(|id| (id, ServerState::example())).collect(), live, map }
    }

    fn known(&self) -> KnownServers<'_> {
        KnownServers { all: &self.all, live: &self.live }
    }

    fn split(&self, loads: impl IntoIterator<Item = (u16, f64, u64)>) -> Result<SplitPlan, String> {
        self.split_of(FIRST, SECOND, loads)
    }

    fn split_of(
        &self,
        source: &str,
        target: &str,
        loads: impl IntoIterator<Item = (u16, f64, u64)>,
    ) -> Result<SplitPlan, String> {
        let load = |(slot, accesses_per_s, bytes)| SlotLoad { slot, accesses_per_s, bytes };
        let report = ServerLoadReport { slots: loads.into_iter().map(load).collect(), ..ServerLoadReport::default() };
        self.map.split(self.known(), (source, target), &report)
    }

    /// Begins a plan's moves: a map that every server takes.
    fn begin(&mut self, plan: &SplitPlan) {
        let mut id = 0;
        let begun = self.map.begin_planned(&plan.moves, 7, self.known(), || {
            id += 1;
            id
        });
        let (map, moves) = begun.unwrap();
        assert_eq!((map.check(), moves), (Ok(()), plan.moves.len()));
        self.map = map;
    }
}

fn spans(plan: &SplitPlan) -> Vec<[u16; 2]> {
    plan.moves.iter().map(|one| [one.span.first, one.span.last]).collect()
}

#[test]
fn half_goes_by_accesses_or_by_bytes_or_by_slots() {
    let cluster = SmallCluster::new(&[FIRST]);
    // Where slots count alike, a half is a half of them, and divides one range.
    let plan = cluster.split([]).unwrap();
    assert_eq!((plan.measure, plan.slots, plan.bytes, plan.moves.len()), (SplitMeasure::Slots, 8_192, 0, 1));
    // Of records: the first thousand slots have nine tenths of them.
    let bytes = |slot: u16| if slot < 1_000 { 9_000 } else { 65 };
    let plan = cluster.split((0..SLOTS).map(|slot| (slot, 0.0, bytes(slot)))).unwrap();
    let moved: u64 = plan.moves.iter().flat_map(|one| one.span.first..=one.span.last).map(bytes).sum();
    assert_eq!((plan.measure, plan.bytes), (SplitMeasure::Bytes, moved));
    let all: u64 = (0..SLOTS).map(bytes).sum();
    let part = moved as f64 / all as f64;
    assert!((part - 0.5).abs() < 0.01 && (plan.part - part).abs() < 1e-9 && plan.remarks.is_empty(), "{plan:?}");
    // Few accesses say nothing, many say more than bytes.
    let few = cluster.split((0..SLOTS).map(|slot| (slot, if slot == 9 { 1.0 } else { 0.0 }, 1))).unwrap();
    assert_eq!(few.measure, SplitMeasure::Bytes);
    let plan = cluster.split((0..SLOTS).map(|slot| (slot, if slot >= 16_000 { 100.0 } else { 0.0 }, 1))).unwrap();
    assert_eq!(plan.measure, SplitMeasure::Accesses);
    assert!((plan.part - 0.5).abs() < 0.01 && plan.moves.iter().all(|one| one.source == FIRST && one.target == SECOND));
}

#[test]
fn a_slot_that_has_most_stays_and_is_named_and_one_that_has_all_is_refused() {
    let cluster = SmallCluster::new(&[FIRST]);
    let hot =
        |part: f64| (0..SLOTS).map(move |slot| (slot, if slot == 777 { part } else { (1e6 - part) / 16_383.0 }, 0));
    let plan = cluster.split(hot(8e5)).unwrap();
    assert!(!plan.moves.iter().any(|one| (one.span.first..=one.span.last).contains(&777)), "{plan:?}");
    assert!(plan.part > 0.15 && plan.part < 0.21, "{plan:?}");
    assert_eq!(plan.remarks, ["slot 777 alone has 80 %: a slot is never divided"]);
    let refused = cluster.split(hot(1e6)).unwrap_err();
    assert!(refused.starts_with("slot 777 has 100 % of what server server-0 has to do, by accesses"), "{refused}");
}

#[test]
fn what_is_on_its_way_is_not_moved_again_and_a_split_may_be_repeated() {
    let mut cluster = SmallCluster::new(&[FIRST]);
    let mut has = usize::from(SLOTS);
    for _ in 0..5 {
        let plan = cluster.split([]).unwrap();
        assert!((plan.slots as f64 / has as f64 - 0.5).abs() < 0.02, "{plan:?} of {has}");
        cluster.begin(&plan);
        has -= plan.slots;
    }
    // Ranges that lie apart are counted together.
    let mut map = SmallCluster::new(&[FIRST]).map;
    [(1_000, 1_999), (4_000, 4_999), (9_000, 9_999)]
        .iter()
        .for_each(|(first, last)| map.assign(SlotSpan { first: *first, last: *last }, "server-2"));
    let cluster = SmallCluster { map, ..SmallCluster::new(&[FIRST]) };
    let plan = cluster.split([]).unwrap();
    let own = usize::from(SLOTS) - 3_000;
    assert!((plan.slots as f64 / own as f64 - 0.5).abs() < 0.03, "{:?}", spans(&plan));
}

/// A server whose slots lie apart, in so many ranges of one slot each, with these accesses of each.
fn scattered(ranges: u16, accesses: impl Fn(u16) -> f64) -> Result<SplitPlan, String> {
    let mut map = StoredSlots::divided(&[SECOND.to_owned()]);
    let apart = SLOTS / ranges;
    (0..ranges).for_each(|number| map.assign(SlotSpan { first: number * apart, last: number * apart }, FIRST));
    let cluster = SmallCluster { map, ..SmallCluster::new(&[FIRST]) };
    cluster.split((0..ranges).map(|number| (number * apart, accesses(number), 0)))
}

#[test]
fn slots_that_lie_apart_are_moved_as_far_as_a_plan_goes_and_no_slot_is_blamed() {
    for ranges in [100, 200, 1_000] {
        let plan = scattered(ranges, |_| 0.0).unwrap();
        assert_eq!((plan.moves.len(), plan.slots), (32, 32), "{ranges}: {plan:?}");
        let told = format!("its slots lie in {ranges} ranges, and a plan has at most 32 moves");
        assert_eq!(plan.remarks, [told], "{ranges}");
    }
    let refused = scattered(2_000, |_| 0.0).unwrap_err();
    assert!(refused.contains("its slots lie in 2000 ranges") && !refused.contains("slot 0 has"), "{refused}");
    assert_eq!(scattered(40, |_| 0.0).map(|plan| (plan.moves.len(), plan.remarks)), Ok((20, Vec::new())));
}

#[test]
fn where_slots_lie_apart_those_go_first_that_take_most() {
    // Ten slots in the midst of a thousand have nearly all.
    let plan = scattered(1_000, |number| if (300..310).contains(&number) { 1_000.0 } else { 0.1 }).unwrap();
    assert_eq!((plan.measure, plan.moves.len(), plan.slots), (SplitMeasure::Accesses, 5, 5), "{plan:?}");
    assert!((plan.part - 0.5).abs() < 0.02 && plan.remarks.is_empty(), "{plan:?}");
    // By their number too few slots would go; by what they take that is another matter.
    let plan = scattered(2_000, |number| if number % 500 == 7 { 1_000.0 } else { 0.0 }).unwrap();
    assert_eq!((plan.moves.len(), plan.part), (2, 0.5), "{plan:?}");
}

#[test]
fn what_cannot_be_is_said_with_what_to_do() {
    let mut cluster = SmallCluster::new(&[FIRST, SECOND]);
    let refused =
        |cluster: &SmallCluster, source: &str, target: &str| cluster.split_of(source, target, []).unwrap_err();
    assert!(refused(&cluster, "nosuch", SECOND).contains("of no server"));
    assert!(refused(&cluster, FIRST, "nosuch").contains("of no server"));
    assert!(refused(&cluster, FIRST, FIRST).contains("to itself"));
    // The same without any loads.
    assert!(cluster.map.divisible(cluster.known(), FIRST, FIRST).unwrap_err().contains("to itself"));
    assert!(cluster.map.divisible(cluster.known(), FIRST, SECOND).is_ok());
    assert!(refused(&cluster, "server-2", FIRST).contains("owns no slots"));
    cluster.live.remove(SECOND);
    assert!(refused(&cluster, FIRST, SECOND).contains("server-1 is silent"));
    assert!(refused(&cluster, SECOND, FIRST).contains("server-1 is silent"));
    cluster.live.insert(SECOND.to_owned());
    let mut id = 0;
    let mut new_id = || {
        id += 1;
        id
    };
    let change = ServerChange::Drain { mib_per_s: 0 };
    let drained = cluster.map.change_server(SECOND, change, cluster.known(), &mut new_id).unwrap().0;
    let drained = SmallCluster { map: drained, ..SmallCluster::new(&[FIRST]) };
    assert!(refused(&drained, FIRST, SECOND).contains("cluster add"));
    assert!(refused(&drained, SECOND, FIRST).contains("go away already"));
    let mut map = StoredSlots::divided(&[SECOND.to_owned()]);
    map.assign(SlotSpan { first: 5, last: 5 }, FIRST);
    let one = SmallCluster { map, ..SmallCluster::new(&[FIRST]) };
    assert!(refused(&one, FIRST, SECOND).contains("never divided"));
    let plan = cluster.split([]).unwrap();
    let mut busy = SmallCluster::new(&[FIRST, SECOND]);
    busy.begin(&plan);
    let rest: Vec<SlotSpan> = busy.map.free_spans(FIRST);
    rest.iter().for_each(|span| busy.map.push_move(*span, FIRST, SECOND, 0, 1_000 + u64::from(span.first)));
    assert!(refused(&busy, FIRST, SECOND).contains("on their way already"));
}

/// Whatever the loads, and however the slots lie: what goes is the source's, is not all of it, and is as near to half
/// as its heaviest slot allows.
#[test]
fn a_split_is_as_near_to_half_as_slots_allow() {
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut cluster = SmallCluster::new(&[FIRST]);
        let cuts: BTreeSet<u16> = (0..random.random_range(0..20)).map(|_| random.random_range(1..SLOTS)).collect();
        let cuts: Vec<u16> = cuts.into_iter().collect();
        for pair in cuts.chunks_exact(2) {
            cluster.map.assign(SlotSpan { first: pair[0], last: pair[1] - 1 }, "server-2");
        }
        let loads =
            (0..random.random_range(0..60)).map(|_| (random.random_range(0..SLOTS), random.random_range(0.0..1e5)));
        let weights: BTreeMap<u16, f64> = loads.collect();
        let free = cluster.map.free_spans(FIRST);
        let own = |slot: u16| free.iter().any(|span| (span.first..=span.last).contains(&slot));
        let own_weights: Vec<f64> = weights.iter().filter(|(slot, _)| own(**slot)).map(|(_, load)| *load).collect();
        let all: f64 = own_weights.iter().sum();
        let most = own_weights.iter().fold(0.0, |most: f64, load| most.max(load / all.max(1e-9)));
        let plan = match cluster.split(weights.iter().map(|(slot, load)| (*slot, *load, 0))) {
            Ok(plan) => plan,
            Err(why) => {
                assert!(most > 1.0 - 4.0 * SPLIT_LEAST_PART || count(free.iter().copied()) < 2, "seed {seed}: {why}");
                continue;
            }
        };
        assert!(plan.moves.iter().all(|one| (one.span.first..=one.span.last).all(own)), "seed {seed}: {plan:?}");
        assert!(plan.slots < count(free.iter().copied()) && plan.slots > 0, "seed {seed}: {plan:?}");
        if plan.measure == SplitMeasure::Accesses {
            // Half a slot, and what a plan gives away for fewer moves.
            assert!((plan.part - 0.5).abs() <= most / 2.0 + 0.2, "seed {seed}, {most}: {plan:?}");
        }
        cluster.begin(&plan);
    }
}
