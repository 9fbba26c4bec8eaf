//! Which tenants a worker served lately: what a slow request waited for.
//!
//! A ring of windows of a millisecond or more in which anything was polled or answered. Each window has the CPU time of
//! the tenants polled in it, and the number of requests answered. Noting a poll is one addition, as is noting
//! consecutive requests of one tenant. A slow request adds the windows up. The number of windows added up in a second
//! is bounded: where all requests of hundreds of tenants are slow, explaining it would make them slower.

use hashbrown::HashMap;
use sandstorm_accounts::TurnShare;
use sandstorm_net::rate_limiter::{RateLimit, RateLimiter};

use super::latency_ledger::IS_OBSERVED;
use crate::limits::{TURN_WINDOW_NS, TURN_WINDOWS, TURN_WINDOWS_BURST, TURN_WINDOWS_PER_S};

/// Tenants of a window that are counted apart; the others are counted together.
const TENANTS_PER_WINDOW: usize = 6;
/// Tenants that are named to a slow request.
const SHARES_SHOWN: usize = 8;
/// CPU time of a plain request, about: to tell which tenants to name.
const PLAIN_REQUEST_NS: u64 = 200;
const ADDED_UP: RateLimit = RateLimit::per_second(TURN_WINDOWS_PER_S).with_burst(TURN_WINDOWS_BURST);

#[derive(Clone, Copy, Debug, Default)]
struct TurnWindow {
    begun_ns: u64,
    /// The last is that of all other tenants, as tenant 0.
    shares: [TurnShare; TENANTS_PER_WINDOW + 1],
}

/// The ring: see the head of this file.
#[derive(Debug)]
pub(super) struct TurnHistory {
    windows: Box<[TurnWindow]>,
    /// The current window.
    at: usize,
    /// The share that was added to last.
    last: usize,
    /// Windows that were added up lately.
    added_up: RateLimiter,
}

impl TurnHistory {
    pub(super) fn new() -> TurnHistory {
        let windows = vec![TurnWindow::default(); TURN_WINDOWS].into();
        TurnHistory { windows, at: 0, last: 0, added_up: RateLimiter::default() }
    }

    /// Notes that polls or answers follow, at `now_ns`.
    #[inline]
    pub(super) fn begin(&mut self, now_ns: u64) {
        if IS_OBSERVED && now_ns.saturating_sub(self.windows[self.at].begun_ns) >= TURN_WINDOW_NS {
            self.at = (self.at + 1) % TURN_WINDOWS;
            self.windows[self.at] = TurnWindow { begun_ns: now_ns.max(1), ..TurnWindow::default() };
            self.last = 0;
        }
    }

    /// Notes a poll.
    #[inline]
    pub(super) fn note(&mut self, tenant: u32, cpu_ns: u64) {
        if !IS_OBSERVED {
            return;
        }
        let share = self.share(tenant);
        share.turns += 1;
        share.cpu_ns += cpu_ns;
    }

    /// Notes requests that were answered.
    #[inline]
    pub(super) fn note_requests(&mut self, tenant: u32, count: u64) {
        if IS_OBSERVED {
            let share = self.share(tenant);
            share.requests = share.requests.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    /// The share of a tenant in the current window.
    #[inline]
    fn share(&mut self, tenant: u32) -> &mut TurnShare {
        let shares = &mut self.windows[self.at].shares;
        if shares[self.last].tenant != tenant {
            self.last = place_of(shares, tenant);
        }
        &mut shares[self.last]
    }

    /// Whose turns and requests there were from `from_ns` until now, the longest first, and since when they are known:
    /// since now where as many windows were added up lately as may be.
    #[cold]
    pub(super) fn since(&self, from_ns: u64, now_ns: u64) -> (Vec<TurnShare>, u64) {
        let windows = (now_ns.saturating_sub(from_ns) / TURN_WINDOW_NS + 1).min(TURN_WINDOWS as u64);
        if !self.added_up.admit_shared(&ADDED_UP, now_ns, windows as u32) {
            return (Vec::new(), now_ns.max(from_ns));
        }
        let mut sums: HashMap<u32, TurnShare> = HashMap::new();
        let mut known_ns = u64::MAX;
        // The newest first, as far as one that ended before.
        for step in 0..TURN_WINDOWS {
            let window = &self.windows[(self.at + TURN_WINDOWS - step) % TURN_WINDOWS];
            if window.begun_ns == 0 || window.begun_ns.saturating_add(TURN_WINDOW_NS) <= from_ns {
                // What was before is known to be nothing, or not asked for.
                known_ns = known_ns.min(from_ns);
                break;
            }
            known_ns = window.begun_ns;
            for share in window.shares.iter().filter(|share| !is_free(share)) {
                let empty = TurnShare { tenant: share.tenant, ..TurnShare::default() };
                let sum = sums.entry(share.tenant).or_insert(empty);
                sum.turns += share.turns;
                sum.cpu_ns += share.cpu_ns;
                sum.requests = sum.requests.saturating_add(share.requests);
            }
        }
        let mut sums: Vec<TurnShare> = sums.into_values().collect();
        sums.sort_by_key(|share| std::cmp::Reverse(weight_ns(share)));
        sums.truncate(SHARES_SHOWN);
        (sums, known_ns.max(from_ns))
    }
}

/// Whether nothing was noted in a share.
fn is_free(share: &TurnShare) -> bool {
    share.turns == 0 && share.requests == 0
}

/// What a share may have cost: CPU time of calls, and of requests what a plain one takes.
fn weight_ns(share: &TurnShare) -> u64 {
    share.cpu_ns + u64::from(share.requests) * PLAIN_REQUEST_NS
}

/// The place of a tenant's share in a window: its own, a free one, or that of all others.
fn place_of(shares: &mut [TurnShare], tenant: u32) -> usize {
    let own = shares[..TENANTS_PER_WINDOW].iter().position(|share| share.tenant == tenant || is_free(share));
    let Some(own) = own else { return TENANTS_PER_WINDOW };
    shares[own].tenant = tenant;
    own
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a list of all polls: the sums of the windows of the request, nothing lost, nothing made up.
        #[test]
        fn turns_add_up(
            polls in prop::collection::vec((1u32..12, 0u64..200_000, 0u64..3 * TURN_WINDOW_NS), 1..400),
            from in 0usize..400,
        ) {
            let mut history = TurnHistory::new();
            let (mut now_ns, mut exact) = (TURN_WINDOW_NS, Vec::new());
            for (tenant, cpu_ns, passed_ns) in polls {
                now_ns += passed_ns;
                history.begin(now_ns);
                // Every other one is of answers.
                if cpu_ns % 2 == 0 {
                    history.note_requests(tenant, cpu_ns);
                } else {
                    history.note(tenant, cpu_ns);
                }
                exact.push((now_ns, tenant, cpu_ns));
            }
            let from_ns = exact[from % exact.len()].0;
            let (shares, known_ns) = history.since(from_ns, now_ns);
            prop_assert_eq!(known_ns, from_ns, "the ring is longer than that");
            let of = |share: &TurnShare| share.cpu_ns + u64::from(share.requests);
            let sum = |shares: &[TurnShare]| shares.iter().map(of).sum::<u64>();
            let since = |ns: u64| -> u64 {
                exact.iter().filter(|(at_ns, ..)| *at_ns >= ns).map(|(.., cpu_ns)| cpu_ns).sum()
            };
            // A window may begin a little before the request.
            prop_assert!(sum(&shares) <= since(from_ns.saturating_sub(TURN_WINDOW_NS)));
            if shares.len() < SHARES_SHOWN {
                prop_assert!(sum(&shares) >= since(from_ns));
            }
            prop_assert!(shares.windows(2).all(|pair| weight_ns(&pair[0]) >= weight_ns(&pair[1])));
            for share in shares.iter().filter(|share| share.tenant != 0) {
                let own = exact.iter().filter(|(_, tenant, _)| *tenant == share.tenant);
                let all = own.map(|(.., cpu_ns)| cpu_ns).sum::<u64>();
                prop_assert!(of(share) <= all, "{share:?}");
            }
        }
    }

    #[test]
    fn what_the_ring_has_forgotten_is_said_not_to_be_known() {
        let mut history = TurnHistory::new();
        let turns = 2 * TURN_WINDOWS as u64;
        for window in 1..=turns {
            history.begin(window * TURN_WINDOW_NS);
            history.note(7, 10);
        }
        let (shares, known_ns) = history.since(TURN_WINDOW_NS, turns * TURN_WINDOW_NS);
        assert_eq!(
            shares,
            [TurnShare { tenant: 7, turns: TURN_WINDOWS as u32, cpu_ns: 10 * TURN_WINDOWS as u64, requests: 0 }]
        );
        assert_eq!(known_ns, (turns - TURN_WINDOWS as u64 + 1) * TURN_WINDOW_NS);
        assert_eq!(TurnHistory::new().since(5, 9), (Vec::new(), 5), "no turns at all");
    }

    #[test]
    fn hundreds_of_slow_requests_at_once_are_told_within_bounds() {
        let mut history = TurnHistory::new();
        for window in 1..=TURN_WINDOWS as u64 {
            history.begin(window * TURN_WINDOW_NS);
            (1..=6).for_each(|tenant| history.note(6 * window as u32 + tenant, 10));
        }
        let now_ns = TURN_WINDOWS as u64 * TURN_WINDOW_NS;
        let told = |now_ns: u64, from_ns: u64| {
            (0..10_000).filter(|_| history.since(from_ns, now_ns).1 < now_ns).count() as u64
        };
        let whole = told(now_ns, TURN_WINDOW_NS);
        assert!(whole > 0 && whole * TURN_WINDOWS as u64 <= TURN_WINDOWS_BURST, "{whole} of the whole ring");
        told(now_ns, now_ns - TURN_WINDOW_NS);
        let (shares, known_ns) = history.since(now_ns - TURN_WINDOW_NS, now_ns);
        assert!(shares.is_empty() && known_ns == now_ns, "no more is known than was looked at: {shares:?}");
        assert!(told(now_ns + 500_000_000, now_ns) > 0, "others are told later");
    }
}
