//! Early drop. When flows of [`super::ingress`] overflow, or consist mostly of rejected messages, the kernel drops a
//! fraction of their datagrams before they reach the socket's buffer.
//!
//! A flow's share is the rate at which fair queueing served it. A flow that lost datagrams in the last window because
//! buffers were full is admitted at one and a half times that rate. A flow that was mostly rejected (over its rate, or
//! unauthenticated) is admitted at twice the rate of messages that were not. While it loses nothing, each window admits
//! half as much again, until all are admitted. So the throttle lifts about a tenth of a second after the flood.

use hashbrown::HashMap;
use rand::Rng;
use sandstorm_net::driver::socket_filter::{EarlyDropFilter, MAX_VERIFIED_PEERS};
use sandstorm_net::driver::{DatagramDriver, ReceivePressure};

use super::ingress::classifier::FlowKey;
use super::ingress::flows::{FlowStats, IngressFlow};
use super::ingress::{IngressScheduler, RandomDrop};
use super::verified_peers::VerifiedPeers;
use crate::limits::{MIN_ADMIT_FRACTION, OVERLOAD_WINDOW_US, THROTTLE_SLACK_DATAGRAMS};

/// The early drop of one port.
pub(super) struct EarlyDropController {
    ends_us: u64,
    /// The admitted fraction of each throttled flow that the kernel has now.
    shares: HashMap<FlowKey, f64>,
    peer_changes_seen: u64,
    throttle: EarlyDropFilter,
    pub(super) pressure: ReceivePressure,
}

impl EarlyDropController {
    pub(super) fn new() -> EarlyDropController {
        let throttle = EarlyDropFilter { keys: rand::rng().random(), ..EarlyDropFilter::default() };
        EarlyDropController {
            ends_us: 0,
            shares: HashMap::new(),
            peer_changes_seen: 0,
            throttle,
            pressure: ReceivePressure::default(),
        }
    }

    /// Whether a window has ended.
    #[inline]
    pub(super) fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.ends_us
    }

    /// The number of throttled flows.
    pub(super) fn throttled(&self) -> usize {
        self.shares.len()
    }

    /// The time of the next check without any packet: a throttle is to be lifted.
    pub(super) fn timer_us(&self) -> Option<u64> {
        (!self.shares.is_empty()).then_some(self.ends_us)
    }

    /// Ends a window: decides the admitted fraction of each flow, and tells the kernel if that has changed. `each` is
    /// called with the windows of flows that are throttled, or were.
    pub(super) fn end_window(
        &mut self,
        now_us: u64,
        ingress: &mut IngressScheduler,
        verified_peers: &VerifiedPeers,
        driver: &mut impl DatagramDriver,
        mut each: impl FnMut(FlowKey, &FlowStats, f64),
    ) {
        self.ends_us = now_us + OVERLOAD_WINDOW_US;
        self.pressure = driver.pressure();
        let full = self.pressure.filled > FULL_PER_MILLE && ingress.flows.values().all(|flow| flow.window.shed == 0);
        let most = ingress.flows.values().map(|flow| flow.window.arrived).max().unwrap_or(0);
        for (key, flow) in &mut ingress.flows {
            let before = flow.admit_fraction;
            flow.admit_fraction = next_admit_fraction(flow, full && flow.window.arrived == most);
            if before.min(flow.admit_fraction) < 1.0 || flow.window.shed + flow.window.dropped_early > 0 {
                each(*key, &flow.window, flow.admit_fraction);
            }
            flow.window = FlowStats::default();
        }
        let throttled = || ingress.flows.iter().filter(|(_, flow)| flow.admit_fraction < 1.0);
        let differs = |key: &FlowKey, admit_fraction: f64| {
            self.shares.get(key).is_none_or(|shares| !(0.8..1.25).contains(&(admit_fraction / shares)))
        };
        let changed = throttled().count() != self.shares.len()
            || throttled().any(|(key, flow)| differs(key, flow.admit_fraction))
            || self.shares.contains_key(&None) && verified_peers.changes() != self.peer_changes_seen;
        if changed {
            self.shares = throttled().map(|(key, flow)| (*key, flow.admit_fraction)).collect();
            self.update_filter(now_us, ingress, verified_peers, driver);
        }
        ingress.remove_idle_flows();
    }

    fn update_filter(
        &mut self,
        now_us: u64,
        ingress: &mut IngressScheduler,
        verified_peers: &VerifiedPeers,
        driver: &mut impl DatagramDriver,
    ) {
        let share = |admit_fraction: f64| (admit_fraction * f64::from(u32::MAX)) as u32;
        let shares = &self.shares;
        self.throttle.tenants =
            shares.iter().filter_map(|(key, admit_fraction)| Some(((*key)?, share(*admit_fraction)))).collect();
        self.throttle.unauthenticated = shares.get(&None).map(|admit_fraction| share(*admit_fraction));
        self.throttle.known.clear();
        if self.throttle.unauthenticated.is_some() {
            self.peer_changes_seen = verified_peers.changes();
            self.throttle.known = verified_peers.unthrottled_peers(
                now_us,
                |tenant| shares.contains_key(&Some(tenant)),
                MAX_VERIFIED_PEERS,
            );
        }
        let program = self.throttle.program();
        let in_kernel = driver.set_filter(&program) && !program.is_empty() || shares.is_empty();
        ingress.random_drop = (!in_kernel).then(|| RandomDrop::new(rand::rng().random()));
        tracing::debug!(throttled = shares.len(), in_kernel, instructions = program.len(), "early drop");
    }
}

/// Thousandths of the socket's buffer in use above which it counts as full.
const FULL_PER_MILLE: u32 = 900;

/// The fraction of a flow's datagrams that is admitted from now on.
fn next_admit_fraction(flow: &IngressFlow, fills_the_socket: bool) -> f64 {
    let FlowStats { arrived, served, refused, shed, .. } = flow.window;
    let fit = |allowed: u64| flow.admit_fraction * (allowed + THROTTLE_SLACK_DATAGRAMS) as f64 / arrived.max(1) as f64;
    let mostly_refused = refused > THROTTLE_SLACK_DATAGRAMS && 2 * refused > served;
    let admit_fraction = match (shed > 0, mostly_refused) {
        (true, false) => fit(served + served / 2),
        (false, true) => fit(2 * (served - refused.min(served))),
        (true, true) => fit((served + served / 2).min(2 * (served - refused.min(served)))),
        (false, false) if fills_the_socket => flow.admit_fraction / 1.5,
        (false, false) => flow.admit_fraction * 1.5,
    };
    admit_fraction.min(flow.admit_fraction * 1.5).clamp(MIN_ADMIT_FRACTION, 1.0)
}
