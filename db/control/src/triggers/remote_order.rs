//! The order of requests with calls that one server sends to another one, at the one that runs them.
//!
//! A server sends the next request of a tenant once the last one is answered, or is given up. One that was given up may
//! still come, or run: its calls would then be made behind newer ones of their keys. So requests have numbers that
//! grow, over restarts as well. One that comes behind a later one is refused, and none is begun while calls of an
//! earlier one run.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::limits::{TRIGGER_REMOTE_ORDERS, TRIGGER_SENDER_LETTERS};

/// Which request of a server it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestOrder {
    /// The id of the server that sends it.
    pub(crate) sender: String,
    /// Grows with each request of that server.
    pub(crate) number: u64,
}

/// Why a request is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderRefusal {
    /// A later one has come before, with this number.
    Late(u64),
    /// Calls of an earlier one still run.
    StillRuns,
    /// It names no server.
    NoServer,
}

/// Kept by each call of a request while it runs.
#[derive(Clone, Debug)]
pub(crate) struct RunningCall(#[expect(dead_code, reason = "that it is there says that the call runs")] Arc<()>);

struct SeenRequests {
    /// The highest number.
    last: u64,
    /// When it has come.
    came: Instant,
    /// Whether its calls run.
    running: Weak<()>,
}

/// The requests that have come, by sender and tenant.
#[derive(Default)]
pub(crate) struct RemoteOrders(Mutex<BTreeMap<(String, u32), SeenRequests>>);

impl std::fmt::Debug for RemoteOrders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteOrders").field("senders", &self.0.lock().len()).finish()
    }
}

impl RemoteOrders {
    /// Begins a request with calls of a tenant; each of its calls keeps what this returns until it has ended.
    ///
    /// # Errors
    /// Why it is not run.
    pub(crate) fn begin(&self, order: &RequestOrder, tenant: u32) -> Result<RunningCall, OrderRefusal> {
        let RequestOrder { sender, number } = order;
        if sender.is_empty() || sender.len() > TRIGGER_SENDER_LETTERS {
            return Err(OrderRefusal::NoServer);
        }
        let (mut all, key) = (self.0.lock(), (sender.clone(), tenant));
        let running = Arc::new(());
        if let Some(seen) = all.get_mut(&key) {
            if *number <= seen.last {
                return Err(OrderRefusal::Late(seen.last));
            }
            (seen.last, seen.came) = (*number, Instant::now());
            if seen.running.strong_count() > 0 {
                return Err(OrderRefusal::StillRuns);
            }
            seen.running = Arc::downgrade(&running);
            return Ok(RunningCall(running));
        }
        if all.len() >= TRIGGER_REMOTE_ORDERS {
            let idle = all.iter().filter(|(_, seen)| seen.running.strong_count() == 0);
            // Numbers say nothing of that: they begin with the time of a sender's start.
            let oldest = idle.min_by_key(|(_, seen)| seen.came).map(|(key, _)| key.clone());
            oldest.into_iter().for_each(|key| drop(all.remove(&key)));
        }
        if all.len() >= TRIGGER_REMOTE_ORDERS {
            return Err(OrderRefusal::StillRuns);
        }
        all.insert(key, SeenRequests { last: *number, came: Instant::now(), running: Arc::downgrade(&running) });
        Ok(RunningCall(running))
    }
}

#[cfg(test)]
mod tests {
    //! Promise: over a network that loses and delays, no call for a change begins behind one for a newer change of its
    //! key, and each change is called for.

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const VERSIONS: u64 = 30;

    fn order(number: u64) -> RequestOrder {
        RequestOrder { sender: "a".to_owned(), number }
    }

    /// A sender with the versions of one key, and a server that runs their calls. Each request has one call.
    struct OrderModel {
        random: SmallRng,
        /// Without it: whatever comes is run.
        orders: Option<RemoteOrders>,
        /// Requests on their way: number, version.
        network: Vec<(u64, u64)>,
        /// Calls that run: version, and what they keep.
        running: Vec<(u64, Option<RunningCall>)>,
        /// The highest version whose call has begun.
        begun: u64,
    }

    impl OrderModel {
        /// A request comes. Whether it has begun; an error: a call for an older change begins behind, or beside, a
        /// newer one.
        fn arrive(&mut self, (number, version): (u64, u64)) -> Result<bool, String> {
            let kept = match self.orders.as_ref().map(|orders| orders.begin(&order(number), 1)) {
                Some(Err(_)) => return Ok(false),
                kept => kept.and_then(Result::ok),
            };
            let beside = self.running.iter().find(|(other, _)| *other != version);
            if version < self.begun || beside.is_some() {
                return Err(format!("version {version} begins behind {} and beside {beside:?}", self.begun));
            }
            self.begun = version;
            self.running.push((version, kept));
            Ok(true)
        }

        /// Something late comes, and calls end.
        fn pass(&mut self) -> Result<(), String> {
            if !self.network.is_empty() && self.random.random_bool(0.3) {
                let at = self.random.random_range(0..self.network.len());
                let request = self.network.swap_remove(at);
                self.arrive(request)?;
            }
            let random = &mut self.random;
            self.running.retain(|_| random.random_bool(0.6));
            Ok(())
        }

        fn run(seed: u64, orders: Option<RemoteOrders>) -> Result<(), String> {
            let random = SmallRng::seed_from_u64(seed);
            let mut model = OrderModel { random, orders, network: Vec::new(), running: Vec::new(), begun: 0 };
            let (mut number, mut tries) = (0, 0);
            for version in 1..=VERSIONS {
                loop {
                    (number, tries) = (number + 1, tries + 1);
                    assert!(tries < 10_000, "no call succeeds");
                    model.pass()?;
                    if model.random.random_bool(0.4) {
                        // It is given up, and comes later, or never.
                        model.network.push((number, version));
                        continue;
                    }
                    let begins = model.arrive((number, version))?;
                    if begins && model.random.random_bool(0.5) {
                        // It is answered: its calls have ended.
                        model.running.clear();
                        break;
                    }
                    // The answer is lost, and the call may still run; or it was refused.
                }
            }
            Ok(())
        }
    }

    #[test]
    fn no_call_for_an_older_change_begins_behind_one_for_a_newer_one() {
        for seed in 0..500 {
            assert_eq!(OrderModel::run(seed, Some(RemoteOrders::default())), Ok(()), "seed {seed}");
        }
        let found = (0..500).filter(|seed| OrderModel::run(*seed, None).is_err()).count();
        assert!(found > 400, "without the order it is found: {found} of 500");
    }

    #[test]
    fn senders_and_tenants_have_an_order_each_and_there_are_so_many_at_most() {
        let orders = RemoteOrders::default();
        let begin =
            |sender: &str, tenant, number| orders.begin(&RequestOrder { sender: sender.to_owned(), number }, tenant);
        let runs = begin("a", 1, 7).expect("the first one");
        assert_eq!(begin("a", 1, 7).err(), Some(OrderRefusal::Late(7)), "it came twice");
        assert_eq!(begin("a", 1, 8).err(), Some(OrderRefusal::StillRuns));
        assert!(begin("a", 2, 1).is_ok() && begin("b", 1, 1).is_ok());
        drop(runs);
        assert_eq!(begin("a", 1, 8).err(), Some(OrderRefusal::Late(8)), "one that was refused comes again");
        assert!(begin("a", 1, 9).is_ok());
        assert_eq!(begin("", 1, 1).err(), Some(OrderRefusal::NoServer));
        assert_eq!(begin(&"a".repeat(1_000), 1, 1).err(), Some(OrderRefusal::NoServer));
        let runs = begin("z", 0, 1).expect("it runs, and is the oldest");
        for tenant in 0..TRIGGER_REMOTE_ORDERS as u32 + 10 {
            assert!(begin("c", tenant, 10 + u64::from(tenant)).is_ok());
        }
        assert_eq!(orders.0.lock().len(), TRIGGER_REMOTE_ORDERS);
        assert_eq!(begin("z", 0, 1).err(), Some(OrderRefusal::Late(1)), "what runs is not forgotten");
        drop(runs);
    }

    #[test]
    fn what_has_sent_nothing_for_longest_is_forgotten_whenever_it_was_started() {
        let orders = RemoteOrders::default();
        let begin =
            |sender: &str, tenant, number| orders.begin(&RequestOrder { sender: sender.to_owned(), number }, tenant);
        assert!(begin("started last", 0, 1 << 60).is_ok());
        assert!(begin("runs for long", 0, 1).is_ok());
        for tenant in 1..TRIGGER_REMOTE_ORDERS as u32 {
            assert!(begin("runs for long", tenant, 1).is_ok());
        }
        assert_eq!(begin("runs for long", 0, 1).err(), Some(OrderRefusal::Late(1)), "it has sent a request since");
        assert!(begin("started last", 0, 1).is_ok(), "it has sent none");
    }
}
