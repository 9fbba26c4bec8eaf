//! The decisions, window by window.

use proptest::prelude::*;

use super::*;
use crate::limits::homes::HOME_WINDOW_MS;

fn tenant(tenant: u32, home: u32, load: f64) -> HomeLoad {
    HomeLoad { tenant, home, is_fixed: false, load }
}

/// A server that makes every move at once.
struct ModelServer {
    balance: HomeBalance,
    workers: usize,
    tenants: Vec<HomeLoad>,
}

impl ModelServer {
    fn new(workers: usize, tenants: &[HomeLoad]) -> ModelServer {
        ModelServer { balance: HomeBalance::new(workers), workers, tenants: tenants.to_vec() }
    }

    fn window(&mut self) -> Vec<HomeMove> {
        let moves = self.balance.end_window(&self.tenants);
        for one in &moves {
            let tenant = self.tenants.iter_mut().find(|tenant| tenant.tenant == one.tenant).expect("a tenant");
            assert!(tenant.home == one.from && one.to != one.from && !tenant.is_fixed);
            tenant.home = one.to;
        }
        moves
    }

    fn windows(&mut self, count: usize) -> usize {
        (0..count).map(|_| self.window().len()).sum()
    }

    fn homes(&self) -> Vec<u32> {
        self.tenants.iter().map(|tenant| tenant.home).collect()
    }

    fn loads(&self) -> Vec<f64> {
        let mut loads = vec![0.0; self.workers];
        self.tenants.iter().for_each(|tenant| loads[tenant.home as usize] += tenant.load);
        loads
    }

    fn largest(&self) -> f64 {
        self.loads().into_iter().fold(0.0, f64::max)
    }
}

#[test]
fn a_busy_pair_at_one_worker_is_separated_within_two_seconds() {
    // Both may begin in the middle of a window, and the first window of a busy server only reads the counts.
    let windows_before = 2;
    let allowed = (2_000 / HOME_WINDOW_MS) as usize - windows_before;
    for load in [0.5, 1.0, 0.3] {
        let mut server = ModelServer::new(2, &[tenant(1, 0, load), tenant(2, 0, load)]);
        let needed = (1..=allowed).find(|_| !server.window().is_empty());
        assert!(needed.is_some(), "two of {load} are at one worker after {allowed} windows");
        assert_ne!(server.homes()[0], server.homes()[1]);
        assert_eq!(server.windows(1_000), 0, "they stay where they are");
    }
}

#[test]
fn a_tenant_that_no_worker_can_serve_alone_stays() {
    for load in [0.9, 1.0, 1.9] {
        let mut server = ModelServer::new(2, &[tenant(1, 0, load)]);
        assert_eq!(server.windows(1_000), 0, "{load}");
    }
    // What is beside it leaves.
    let mut server = ModelServer::new(2, &[tenant(1, 0, 1.0), tenant(2, 0, 0.2), tenant(3, 0, 0.01)]);
    assert_eq!((server.windows(1_000), server.homes()), (1, vec![0, 1, 0]));
}

#[test]
fn equal_loads_idle_servers_bursts_and_fixed_homes_move_nothing() {
    let mut server = ModelServer::new(2, &[tenant(1, 0, 0.8), tenant(2, 1, 0.8)]);
    assert_eq!(server.windows(1_000), 0);
    let mut server = ModelServer::new(2, &[tenant(1, 0, 0.2), tenant(2, 0, 0.2)]);
    assert_eq!(server.windows(1_000), 0, "they hardly disturb each other");
    let mut server = ModelServer::new(2, &[tenant(1, 0, 0.5), tenant(2, 0, 0.5)]);
    for window in 0..1_000 {
        server.tenants[0].load = if window % 2 == 0 { 0.5 } else { 0.0 };
        assert_eq!(server.window(), [], "bursts of one window");
    }
    let fixed = |number| HomeLoad { is_fixed: true, ..tenant(number, 0, 0.5) };
    assert_eq!(ModelServer::new(2, &[fixed(1), fixed(2)]).windows(1_000), 0);
    let mut server = ModelServer::new(2, &[fixed(1), tenant(2, 0, 0.5)]);
    assert_eq!((server.windows(1_000), server.homes()), (1, vec![0, 1]), "the other one leaves");
    assert_eq!(ModelServer::new(1, &[tenant(1, 0, 0.5), tenant(2, 0, 0.5)]).windows(1_000), 0, "one worker");
}

#[test]
fn windows_that_were_not_measured_count_for_nothing() {
    let mut server = ModelServer::new(2, &[tenant(1, 0, 0.5), tenant(2, 0, 0.5)]);
    for _ in 0..100 {
        assert_eq!(server.windows(HOME_WINDOWS - 1), 0);
        server.balance.interrupt();
    }
    assert_eq!(server.windows(HOME_WINDOWS), 1);
}

#[test]
fn a_tenant_that_was_moved_stays_for_a_while_and_moves_have_a_bound() {
    let mut server = ModelServer::new(2, &[tenant(1, 0, 0.5), tenant(2, 0, 0.4)]);
    assert_eq!((server.windows(HOME_WINDOWS), server.homes()), (1, vec![0, 1]));
    // From now on it is beside another one that it disturbs.
    server.tenants.push(tenant(3, 1, 0.9));
    server.tenants[0].load = 0.0;
    server.tenants[2].is_fixed = true;
    let waited = (1..).find(|_| !server.window().is_empty());
    assert_eq!((waited, server.homes()), (Some(HOME_STAY_WINDOWS as usize), vec![0, 0, 1]));
    let many: Vec<HomeLoad> = (0..64).map(|number| tenant(number, 0, 0.5)).collect();
    let mut server = ModelServer::new(64, &many);
    for _ in 0..200 {
        assert!(server.window().len() <= HOME_MOVES_PER_WINDOW);
    }
    assert!(server.largest() <= 1.0, "{:?}", server.loads());
}

proptest! {
    /// Whatever the loads, the largest one never grows by a move, each move levels its two workers, and it comes to an
    /// end.
    #[test]
    fn the_largest_load_never_grows(
        workers in 1usize..9,
        all in prop::collection::vec((0u32..9, 0.0f64..1.5, any::<bool>()), 0..40),
    ) {
        let tenants: Vec<HomeLoad> = (0..)
            .zip(all)
            .map(|(number, (home, load, fixed))| {
                let tenant = tenant(number, home % workers as u32, load);
                HomeLoad { is_fixed: fixed && home == 0, ..tenant }
            })
            .collect();
        let mut server = ModelServer::new(workers, &tenants);
        let squares = |server: &ModelServer| server.loads().iter().map(|load| load * load).sum::<f64>();
        for _ in 0..400 {
            let (largest, before) = (server.largest(), squares(&server));
            let moved = server.window().len();
            prop_assert!(server.largest() <= largest + 1e-9, "{} of {}", server.largest(), largest);
            prop_assert!(moved == 0 || squares(&server) < before);
        }
        prop_assert_eq!(server.windows(100), 0, "it goes on: {:?}", server.loads());
    }

    /// With loads that change in each window at random, moves of a tenant are as far apart as it has to stay.
    #[test]
    fn a_tenant_is_not_moved_to_and_fro(
        seeds in prop::collection::vec(prop::collection::vec(0.0f64..1.0, 6), 100..200),
    ) {
        let tenants: Vec<HomeLoad> = (0..6).map(|number| tenant(number, 0, 0.0)).collect();
        let mut server = ModelServer::new(3, &tenants);
        let mut last: HashMap<u32, u64> = HashMap::new();
        for (window, loads) in (0u64..).zip(seeds) {
            server.tenants.iter_mut().zip(loads).for_each(|(tenant, load)| tenant.load = load);
            for one in server.window() {
                if let Some(before) = last.insert(one.tenant, window) {
                    prop_assert!(window - before >= HOME_STAY_WINDOWS);
                }
            }
        }
    }
}
