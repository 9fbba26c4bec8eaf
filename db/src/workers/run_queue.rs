//! The run queue of one worker: ready invocations, round robin over tenants, deficit by CPU time.
//!
//! Deficit round robin (Shreedhar & Varghese, SIGCOMM'95) with CPU nanoseconds for bytes: a visit polls one task of a
//! tenant that is not in debt; what the poll cost is charged to the tenant; a tenant in debt is passed over, and each
//! pass pays back a quantum times its weight. A share that nobody claims is lent: when all tenants are in debt, the
//! rounds are skipped at once. One poll a visit, rather than a whole quantum, so that the cache misses of many tenants'
//! invocations overlap.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::limits::QUANTUM_NS;

/// One tenant's ready tasks on this worker.
struct Lane<T> {
    tasks: VecDeque<T>,
    /// CPU nanoseconds that the tenant may still use in this round; negative: debt.
    deficit_ns: i64,
    weight: u32,
}

impl<T> Default for Lane<T> {
    fn default() -> Lane<T> {
        Lane { tasks: VecDeque::new(), deficit_ns: 0, weight: 1 }
    }
}

impl<T> Lane<T> {
    fn quantum_ns(&self) -> i64 {
        QUANTUM_NS * i64::from(self.weight.max(1))
    }
}

/// Ready tasks by tenant. Keeps a tenant's lane when it runs empty, so the steady state allocates nothing.
pub(crate) struct RunQueue<T> {
    lanes: HashMap<u32, Lane<T>>,
    /// Tenants with ready tasks, in visiting order.
    ring: VecDeque<u32>,
    tasks: usize,
}

impl<T> RunQueue<T> {
    pub(crate) fn new() -> RunQueue<T> {
        RunQueue { lanes: HashMap::new(), ring: VecDeque::new(), tasks: 0 }
    }

    /// Ready tasks of all tenants.
    pub(crate) fn len(&self) -> usize {
        self.tasks
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks == 0
    }

    /// Puts a ready task at the end of its tenant's lane.
    pub(crate) fn push(&mut self, tenant: u32, weight: u32, task: T) {
        let lane = self.lanes.entry(tenant).or_default();
        lane.weight = weight;
        if lane.tasks.is_empty() {
            self.ring.push_back(tenant);
        }
        lane.tasks.push_back(task);
        self.tasks += 1;
    }

    /// Takes the task to poll next: of the next tenant in the ring that is not in debt.
    pub(crate) fn pop(&mut self) -> Option<(u32, T)> {
        if self.tasks == 0 {
            return None;
        }
        // Two passes find one: the first pays every lane its quantum, or all are in deeper debt and rounds are skipped.
        for _ in 0..self.ring.len() {
            if let Some(found) = self.visit() {
                return Some(found);
            }
        }
        self.skip_rounds();
        for _ in 0..self.ring.len() {
            if let Some(found) = self.visit() {
                return Some(found);
            }
        }
        None
    }

    /// Visits the tenant at the front of the ring: one task if it is not in debt, else a quantum towards its debt.
    fn visit(&mut self) -> Option<(u32, T)> {
        let tenant = self.ring.pop_front()?;
        let lane = self.lanes.get_mut(&tenant)?;
        if lane.deficit_ns < 0 {
            lane.deficit_ns = (lane.deficit_ns + lane.quantum_ns()).min(0);
            self.ring.push_back(tenant);
            return None;
        }
        let task = lane.tasks.pop_front()?;
        self.tasks -= 1;
        if !lane.tasks.is_empty() {
            self.ring.push_back(tenant);
        }
        Some((tenant, task))
    }

    /// All are in debt: pays as many rounds at once as it takes for the first to be out of it.
    fn skip_rounds(&mut self) {
        let rounds = self.ring.iter().filter_map(|tenant| self.lanes.get(tenant)).map(|lane| {
            let quantum_ns = lane.quantum_ns();
            (-lane.deficit_ns).max(0).saturating_add(quantum_ns - 1) / quantum_ns
        });
        let Some(rounds) = rounds.min() else { return };
        for tenant in &self.ring {
            if let Some(lane) = self.lanes.get_mut(tenant) {
                lane.deficit_ns = (lane.deficit_ns + rounds * lane.quantum_ns()).min(0);
            }
        }
    }

    /// Charges a tenant for CPU time that one of its tasks used. Below a quantum a round it never falls into debt.
    pub(crate) fn charge(&mut self, tenant: u32, cpu_ns: u64) {
        let lane = self.lanes.entry(tenant).or_default();
        // A poll is free up to its part of the quantum; what passes it is debt.
        let over = i64::try_from(cpu_ns).unwrap_or(i64::MAX) - lane.quantum_ns();
        if over > 0 {
            lane.deficit_ns = lane.deficit_ns.saturating_sub(over);
        }
    }

    /// Takes up to `count` tasks from the tenants' far ends, for a thief.
    pub(crate) fn surrender(&mut self, count: usize, mut take: impl FnMut(u32, T)) {
        let mut left = count.min(self.tasks);
        while left > 0 {
            let Some(tenant) = self.ring.pop_front() else { return };
            let Some(lane) = self.lanes.get_mut(&tenant) else { continue };
            if let Some(task) = lane.tasks.pop_back() {
                self.tasks -= 1;
                left -= 1;
                take(tenant, task);
            }
            if !lane.tasks.is_empty() {
                self.ring.push_back(tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tenants_take_turns_however_many_tasks_each_has() {
        let mut queue = RunQueue::new();
        for task in 0..6 {
            queue.push(1, 1, task);
        }
        queue.push(2, 1, 100);
        queue.push(3, 1, 200);
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|(tenant, _)| tenant).collect();
        assert_eq!(order, [1, 2, 3, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_tenant_in_debt_waits_while_others_have_work_and_runs_when_they_have_none() {
        let mut queue = RunQueue::new();
        queue.push(1, 1, 0);
        assert_eq!(queue.pop(), Some((1, 0)));
        queue.charge(1, 1_000_000);
        queue.push(1, 1, 1);
        for task in 0..10 {
            queue.push(2, 1, task);
        }
        let order: Vec<u32> = (0..11).filter_map(|_| queue.pop()).map(|(tenant, _)| tenant).collect();
        assert_eq!(order, [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
    }

    /// CPU time that two always-ready tenants get when every poll costs what its tenant's polls cost.
    fn shares(costs_ns: [u64; 2], weights: [u32; 2]) -> [u64; 2] {
        let mut queue = RunQueue::new();
        let mut used = [0, 0];
        for (tenant, weight) in (0..).zip(weights) {
            queue.push(tenant, weight, ());
            queue.push(tenant, weight, ());
        }
        while used[0] + used[1] < 1_000_000_000 {
            let (tenant, ()) = queue.pop().expect("tasks are always ready");
            used[tenant as usize] += costs_ns[tenant as usize];
            queue.charge(tenant, costs_ns[tenant as usize]);
            queue.push(tenant, weights[tenant as usize], ());
        }
        used
    }

    #[test]
    fn long_polls_do_not_buy_a_larger_share() {
        let [long, short] = shares([1_000_000, QUANTUM_NS as u64], [1, 1]);
        let ratio = long as f64 / short as f64;
        assert!((0.9..1.1).contains(&ratio), "shares {long} and {short} ns");
    }

    #[test]
    fn weights_divide_the_cpu() {
        let [heavy, light] = shares([300_000, 300_000], [3, 1]);
        let ratio = heavy as f64 / light as f64;
        assert!((2.6..3.4).contains(&ratio), "shares {heavy} and {light} ns");
    }

    proptest! {
        /// Every task that goes in comes out once, in its tenant's order, whatever is charged in between.
        #[test]
        fn nothing_is_lost(steps in prop::collection::vec((0u32..5, 0u64..3_000_000, any::<bool>()), 1..300)) {
            let mut queue = RunQueue::new();
            let (mut next, mut seen) = ([0u32; 5], [0u32; 5]);
            let mut check = |(tenant, number): (u32, u32)| {
                prop_assert_eq!(number, seen[tenant as usize]);
                seen[tenant as usize] += 1;
                Ok(())
            };
            for (tenant, cost_ns, push) in steps {
                if push {
                    queue.push(tenant, 1 + tenant, next[tenant as usize]);
                    next[tenant as usize] += 1;
                } else if let Some(found) = queue.pop() {
                    queue.charge(found.0, cost_ns);
                    check(found)?;
                }
            }
            while !queue.is_empty() {
                let found = queue.pop();
                prop_assert!(found.is_some(), "{} tasks are stuck", queue.len());
                check(found.expect("checked"))?;
            }
            prop_assert_eq!(next, seen);
        }
    }
}
