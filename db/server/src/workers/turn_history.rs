//! Whose turns a worker served lately: what a slow request waited for.
//!
//! A ring of windows of a millisecond or more, in which anything was polled. Each has the CPU time of the tenants that
//! were polled in it. Noting a poll is an addition; a request that was slow adds the windows up.

use sandstorm_accounts::TurnShare;

use crate::limits::{TURN_WINDOW_NS, TURN_WINDOWS};

/// Tenants of a window that are counted apart; the others are counted together.
const TENANTS_PER_WINDOW: usize = 6;
/// Tenants that are named to a slow request.
const SHARES_SHOWN: usize = 8;

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
}

impl TurnHistory {
    pub(super) fn new() -> TurnHistory {
        TurnHistory { windows: vec![TurnWindow::default(); TURN_WINDOWS].into(), at: 0, last: 0 }
    }

    /// Notes that polls follow, at `now_ns`.
    #[inline]
    pub(super) fn begin(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.windows[self.at].begun_ns) >= TURN_WINDOW_NS {
            self.at = (self.at + 1) % TURN_WINDOWS;
            self.windows[self.at] = TurnWindow { begun_ns: now_ns.max(1), ..TurnWindow::default() };
            self.last = 0;
        }
    }

    /// Notes a poll.
    #[inline]
    pub(super) fn note(&mut self, tenant: u32, cpu_ns: u64) {
        let shares = &mut self.windows[self.at].shares;
        if shares[self.last].tenant != tenant {
            self.last = place_of(shares, tenant);
        }
        let share = &mut shares[self.last];
        share.turns += 1;
        share.cpu_ns += cpu_ns;
    }

    /// Whose turns there were since `from_ns`, the longest first, and since when they are known.
    #[cold]
    pub(super) fn since(&self, from_ns: u64) -> (Vec<TurnShare>, u64) {
        let mut sums: Vec<TurnShare> = Vec::new();
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
            for share in window.shares.iter().filter(|share| share.turns > 0) {
                match sums.iter_mut().find(|sum| sum.tenant == share.tenant) {
                    Some(sum) => {
                        sum.turns += share.turns;
                        sum.cpu_ns += share.cpu_ns;
                    }
                    None => sums.push(*share),
                }
            }
        }
        sums.sort_by_key(|share| std::cmp::Reverse(share.cpu_ns));
        sums.truncate(SHARES_SHOWN);
        (sums, known_ns.max(from_ns))
    }
}

/// The place of a tenant's share in a window: its own, a free one, or that of all others.
fn place_of(shares: &mut [TurnShare], tenant: u32) -> usize {
    let own = shares[..TENANTS_PER_WINDOW].iter().position(|share| share.tenant == tenant || share.turns == 0);
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
            polls in prop::collection::vec((1u32..12, 1u64..200_000, 0u64..3 * TURN_WINDOW_NS), 1..400),
            from in 0usize..400,
        ) {
            let mut history = TurnHistory::new();
            let (mut now_ns, mut exact) = (TURN_WINDOW_NS, Vec::new());
            for (tenant, cpu_ns, passed_ns) in polls {
                now_ns += passed_ns;
                history.begin(now_ns);
                history.note(tenant, cpu_ns);
                exact.push((now_ns, tenant, cpu_ns));
            }
            let from_ns = exact[from % exact.len()].0;
            let (shares, known_ns) = history.since(from_ns);
            prop_assert_eq!(known_ns, from_ns, "the ring is longer than that");
            let sum = |shares: &[TurnShare]| shares.iter().map(|share| share.cpu_ns).sum::<u64>();
            let since = |ns: u64| exact.iter().filter(|(at_ns, ..)| *at_ns >= ns).map(|(.., cpu_ns)| cpu_ns).sum::<u64>();
            // A window may begin a little before the request.
            prop_assert!(sum(&shares) <= since(from_ns.saturating_sub(TURN_WINDOW_NS)));
            if shares.len() < SHARES_SHOWN {
                prop_assert!(sum(&shares) >= since(from_ns));
            }
            prop_assert!(shares.windows(2).all(|pair| pair[0].cpu_ns >= pair[1].cpu_ns));
            for share in shares.iter().filter(|share| share.tenant != 0) {
                let all = exact.iter().filter(|(_, tenant, _)| *tenant == share.tenant).map(|(.., cpu_ns)| cpu_ns).sum::<u64>();
                prop_assert!(share.cpu_ns <= all, "{share:?}");
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
        let (shares, known_ns) = history.since(TURN_WINDOW_NS);
        assert_eq!(shares, [TurnShare { tenant: 7, turns: TURN_WINDOWS as u32, cpu_ns: 10 * TURN_WINDOWS as u64 }]);
        assert_eq!(known_ns, (turns - TURN_WINDOWS as u64 + 1) * TURN_WINDOW_NS);
        assert_eq!(TurnHistory::new().since(5), (Vec::new(), 5), "no turns at all");
    }
}
