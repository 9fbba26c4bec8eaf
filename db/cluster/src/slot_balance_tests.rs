//! Tests of plans that level the loads of servers.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_net::slots::SLOTS;
use sandstorm_store::slots::SlotSpan;

use crate::limits::{BALANCE_FLOORS, BALANCE_MOVES, BALANCE_WITHIN};
use crate::slot_balance::{BalancePlan, ServerLoadReport, SlotLoad};
use crate::slot_plans::{KnownServers, ServerChange, count};
use crate::state::{ServerState, StoredSlots};

const GIB: u64 = 1 << 30;

/// A cluster whose slots have known loads.
struct LoadedCluster {
    all: BTreeMap<String, ServerState>,
    live: BTreeSet<String>,
    map: StoredSlots,
    /// Of each slot: busy workers, and bytes.
    slots: Vec<(f64, u64)>,
    workers: u32,
}

impl LoadedCluster {
    fn new(servers: usize, load: impl FnMut(u16) -> (f64, u64)) -> LoadedCluster {
        let ids: Vec<String> = (0..servers).map(|number| format!("server-{number:02}")).collect();
        let map = StoredSlots::divided(&ids);
        let (all, live) =
            (ids.iter().map(|id| (id.clone(), ServerState::example())).collect(), ids.into_iter().collect());
        LoadedCluster { all, live, map, slots: (0..SLOTS).map(load).collect(), workers: 4 }
    }

    fn known(&self) -> KnownServers<'_> {
        KnownServers { all: &self.all, live: &self.live }
    }

    fn report(&self, id: &str) -> ServerLoadReport {
        let own = (0..SLOTS).filter(|slot| self.map.owns(id, *slot));
        let own: Vec<(u16, f64, u64)> =
            own.map(|slot| (slot, self.slots[usize::from(slot)].0, self.slots[usize::from(slot)].1)).collect();
        let busy_workers = own.iter().map(|(_, busy, _)| busy).sum();
        let slots = own.iter().map(|(slot, busy, bytes)| SlotLoad {
            slot: *slot,
            // Accesses are told, and what they cost differs from server to server.
            accesses_per_s: busy * 1e6,
            bytes: *bytes,
        });
        ServerLoadReport {
            workers: self.workers,
            busy_workers,
            memory_limit_bytes: 16 * GIB,
            slots: slots.collect(),
            tenant: None,
        }
    }

    fn plan(&self) -> BalancePlan {
        let takers = self.known().takers(&self.map, "");
        let reports = takers.into_iter().map(|id| (id.clone(), self.report(&id))).collect();
        self.map.balance(self.known(), &reports, BALANCE_WITHIN).unwrap()
    }

    /// Makes a plan's moves, to their ends.
    fn make(&mut self, plan: &BalancePlan) {
        let mut id = 0;
        let begun = self.map.begin_planned(&plan.moves, 7, self.known(), || {
            id += 1;
            id
        });
        let (map, moves) = begun.unwrap();
        assert_eq!((map.check(), moves), (Ok(()), plan.moves.len()));
        self.map = map;
        self.end_moves();
    }

    fn end_moves(&mut self) {
        let ids: Vec<u64> = self.map.moves.iter().map(|one| one.id).collect();
        for id in &ids {
            self.map = self.map.hand_over(*id).unwrap();
        }
        self.map = self.map.end(&ids).unwrap_or_else(|| self.map.clone());
    }

    /// Of each server: the parts of its workers and of its memory that are taken.
    fn parts(&self) -> Vec<(f64, f64)> {
        let part = |id: &String| {
            let report = self.report(id);
            (
                report.busy_workers / f64::from(self.workers),
                report.slots.iter().map(|one| one.bytes).sum::<u64>() as f64 / (16 * GIB) as f64,
            )
        };
        self.all.keys().map(part).collect()
    }
}

fn spread(parts: &[(f64, f64)], of: fn(&(f64, f64)) -> f64) -> f64 {
    let mean = parts.iter().map(of).sum::<f64>() / parts.len() as f64;
    parts.iter().map(of).fold(0.0, f64::max) / mean - 1.0
}

#[test]
fn a_busy_server_gives_slots_until_all_are_near_the_mean_and_then_nothing_moves() {
    // The first third of the slots takes four times what the others do; memory is level.
    let load = |slot: u16| (if slot < 5_461 { 4.0 } else { 1.0 } * 2.0 / f64::from(SLOTS), 100_000);
    let mut cluster = LoadedCluster::new(3, load);
    let before = cluster.parts();
    assert!(spread(&before, |part| part.0) > 0.9, "{before:?}");
    let plan = cluster.plan();
    assert!((1..10).contains(&plan.moves.len()), "few moves do it: {plan:?}");
    assert!(plan.moves.iter().all(|one| one.source == "server-00"), "{plan:?}");
    let moved = count(plan.moves.iter().map(|one| one.span)) as u64;
    assert!((plan.bytes as f64 / (moved * 100_000) as f64 - 1.0).abs() < 1e-6, "{plan:?}");
    cluster.make(&plan);
    let after = cluster.parts();
    assert!(spread(&after, |part| part.0) < 0.11, "{after:?}");
    for (server, (cpu, memory)) in plan.after.iter().zip(&after) {
        assert!((server.cpu - cpu).abs() < 1e-6 && (server.memory - memory).abs() < 1e-6, "{server:?}");
    }
    // Memory was level and is not any more; both are within what is wanted where that is possible.
    let again = cluster.plan();
    assert_eq!(again.moves, [], "{again:?} of {after:?}");
}

#[test]
fn one_slot_that_is_too_hot_stays_and_is_named_and_others_leave_it() {
    let load = |slot: u16| (if slot == 9_000 { 2.0 } else { 2.0 / f64::from(SLOTS) }, 1_000);
    let mut cluster = LoadedCluster::new(3, load);
    let plan = cluster.plan();
    assert!(plan.moves.iter().all(|one| !one.span.contains(9_000)), "it would only be hot elsewhere: {plan:?}");
    cluster.make(&plan);
    let parts = cluster.parts();
    // The server with it has nearly nothing else to do.
    assert!(parts[1].0 < 2.1 / 4.0 + 0.01, "{parts:?}");
    let hottest = plan.after[1].hottest.unwrap();
    assert_eq!((hottest.0, (hottest.1 * 10.0).round()), (9_000, 5.0));
    assert!(plan.remarks.iter().any(|remark| remark.contains("server-0")), "{plan:?}");
}

#[test]
fn memory_is_levelled_as_well_and_an_idle_cluster_is_left_alone() {
    let load = |slot: u16| (0.0, if slot < 4_000 { 4_000_000 } else { 1_000_000 });
    let mut cluster = LoadedCluster::new(4, load);
    let plan = cluster.plan();
    cluster.make(&plan);
    assert!(spread(&cluster.parts(), |part| part.1) < 0.11, "{:?}", cluster.parts());
    // One server has all of what is hardly anything.
    let idle = LoadedCluster::new(3, |slot| (if slot < 100 { 1e-5 } else { 0.0 }, 10));
    assert_eq!(idle.plan().moves, []);
}

#[test]
fn moves_under_way_count_as_made_and_servers_that_are_drained_or_silent_are_left_out() {
    let load = |slot: u16| (if slot < 5_461 { 4.0 } else { 1.0 } * 2.0 / f64::from(SLOTS), 100_000);
    let mut cluster = LoadedCluster::new(3, load);
    let plan = cluster.plan();
    let (map, _) = cluster.map.begin_planned(&plan.moves, 0, cluster.known(), rand::random).unwrap();
    cluster.map = map;
    assert_eq!(cluster.plan().moves, [], "what is under way is enough");
    // The same plan again is refused: its slots are on their way.
    let again = cluster.map.begin_planned(&plan.moves, 0, cluster.known(), rand::random).unwrap_err();
    assert!(again.contains("ask for a new one"), "{again}");
    cluster.end_moves();
    let again = cluster.map.begin_planned(&plan.moves, 0, cluster.known(), rand::random).unwrap_err();
    assert!(again.contains("have left server"), "{again}");

    let mut cluster = LoadedCluster::new(3, load);
    let drain = ServerChange::Drain { mib_per_s: 0 };
    cluster.map = cluster.map.change_server("server-02", drain, cluster.known(), rand::random).unwrap().0;
    cluster.end_moves();
    let plan = cluster.plan();
    assert!(plan.moves.iter().all(|one| one.target != "server-02"), "{plan:?}");
    let silent = LoadedCluster { live: ["server-00".to_owned()].into(), ..cluster };
    let refused = silent.map.begin_planned(&plan.moves, 0, silent.known(), rand::random);
    assert!(plan.moves.is_empty() || refused.unwrap_err().contains("went silent"));
    assert_eq!(silent.plan().moves, [], "there is no other one");
    let nothing = silent.map.balance(silent.known(), &BTreeMap::new(), BALANCE_WITHIN).unwrap_err();
    assert!(nothing.contains("has not told"), "{nothing}");
}

/// Whatever the loads: a plan is made as it says, moves nothing twice, and ends.
#[test]
fn plans_of_any_loads_bring_servers_nearer_to_the_mean() {
    for seed in 0..30 {
        let mut random = StdRng::seed_from_u64(seed);
        let servers = random.random_range(2..9);
        let hot: Vec<u16> = (0..random.random_range(0..6)).map(|_| random.random_range(0..SLOTS)).collect();
        let (skewed, until) = (random.random_range(0.0..8.0), random.random_range(1..SLOTS));
        let mut cluster = LoadedCluster::new(servers, |slot| {
            let skew = if slot < until { 1.0 + skewed } else { 1.0 };
            let extra = if hot.contains(&slot) { random.random_range(0.0..2.0) } else { 0.0 };
            (random.random_range(0.0..2.0) * skew / f64::from(SLOTS) + extra, random.random_range(0..4_000_000))
        });
        let mut worst: Vec<f64> = Vec::new();
        for _ in 0..4 {
            let plan = cluster.plan();
            assert!(plan.moves.len() <= BALANCE_MOVES, "seed {seed}");
            let mut slots = BTreeSet::new();
            for span in plan.moves.iter().map(|one| one.span) {
                assert!((span.first..=span.last).all(|slot| slots.insert(slot)), "seed {seed}: moved twice");
            }
            let tension = |parts: &[(f64, f64)]| {
                let sum = |of: fn(&(f64, f64)) -> f64, floor: f64| {
                    let mean = parts.iter().map(of).sum::<f64>() / parts.len() as f64;
                    parts.iter().map(|part| ((of(part) - mean) / mean.max(floor)).powi(2)).sum::<f64>()
                };
                sum(|part| part.0, BALANCE_FLOORS[0]) + sum(|part| part.1, BALANCE_FLOORS[1])
            };
            let before = tension(&cluster.parts());
            cluster.make(&plan);
            let after = tension(&cluster.parts());
            assert!(plan.moves.is_empty() || after < before, "seed {seed}: {before} to {after}");
            worst.push(spread(&cluster.parts(), |part| part.0));
            let owned: usize = cluster.all.keys().map(|id| count(cluster.map.spans_of(id))).sum();
            assert_eq!(owned, usize::from(SLOTS), "seed {seed}");
        }
        if hot.is_empty() {
            // Some more than is wanted: a move may bring one load nearer and the other one away.
            assert!(worst[3] < 0.2, "seed {seed}: {worst:?}");
        }
    }
}

#[test]
fn a_map_of_very_many_ranges_is_divided_no_further() {
    let mut cluster = LoadedCluster::new(2, |slot| (if slot < 8_000 { 1e-3 } else { 0.0 }, 10));
    for slot in (0..SLOTS).step_by(2) {
        cluster.map.assign(SlotSpan { first: slot, last: slot }, "server-01");
    }
    let reports = cluster.all.keys().map(|id| (id.clone(), cluster.report(id))).collect();
    let refused = cluster.map.balance(cluster.known(), &reports, BALANCE_WITHIN).unwrap_err();
    assert!(refused.contains("ranges"), "{refused}");
}
