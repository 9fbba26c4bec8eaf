//! The run queue of one worker: whose invocation is polled next. Fair by CPU time between tenants, by their weights.
//!
//! Deficit round robin (Shreedhar & Varghese, SIGCOMM'95) with CPU nanoseconds for bytes. In each round a tenant has a
//! credit of a quantum times its weight; every poll is charged to it, however short; a tenant whose credit is used up
//! waits for the next round, which begins when nobody has credit left. What a poll took beyond the credit is debt, paid
//! by later rounds. A share that nobody claims is lent: rounds only wait for tenants that have work, and when all are
//! in debt the rounds in between are skipped at once. Unused credit is not saved up.
//!
//! Up to [`MAX_INTERLEAVED`] tasks, of all tenants that have credit, take turns poll by poll: their cache misses
//! overlap. They leave these places when their tenant's credit is used up, so the places follow the shares.
//!
//! The bound: between two moments at which a tenant always had work, it gets its share of the CPU time used but for
//! [`QUANTUM_NS`] times its weight, and one longest poll of each tenant (`tests::shares_are_ideal_within_the_bound`).

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::limits::{
    MAX_INTERLEAVED, MAX_TENANT_QUEUES, POLLS_IN_A_ROW, PREFETCH_POLLS_AHEAD, QUANTUM_NS, SECOND_PREFETCH_POLLS_AHEAD,
};

/// One tenant on this worker.
struct TenantQueue<T> {
    tenant: u32,
    weight: u32,
    /// Tasks that wait for a place among those that take turns.
    tasks: VecDeque<T>,
    /// Tasks that take turns, or are being polled.
    running: u32,
    /// CPU nanoseconds that the tenant may still use in `round`; negative: debt.
    credit_ns: i64,
    round: u64,
    /// Whether it stands in one of the rings.
    in_ring: bool,
}

impl<T> TenantQueue<T> {
    fn quantum_ns(&self) -> i64 {
        QUANTUM_NS * i64::from(self.weight.max(1))
    }

    fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.running == 0
    }

    /// The credit in `round`: each round since it was looked at last has paid a quantum, up to one that is left unused.
    fn credit(&mut self, round: u64) -> i64 {
        if self.round != round {
            let rounds = i64::try_from(round - self.round).unwrap_or(i64::MAX);
            let quantum_ns = self.quantum_ns();
            self.credit_ns = self.credit_ns.saturating_add(rounds.saturating_mul(quantum_ns)).min(quantum_ns);
            self.round = round;
        }
        self.credit_ns
    }

    /// Rounds until there is credit again.
    fn rounds_in_debt(&mut self, round: u64) -> u64 {
        let debt_ns = -self.credit(round).min(0);
        debt_ns.unsigned_abs() / self.quantum_ns().unsigned_abs() + 1
    }
}

/// A task whose turn it is, or was.
pub(crate) struct ScheduledTask<T> {
    pub(crate) task: T,
    lane: u32,
    polls: u32,
    /// What it awaits lies further on than was seen at the first look ahead.
    needs_second_prefetch: bool,
}

/// Which look ahead at a task: in a full ring it has both between two of its polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefetchPass {
    /// [`PREFETCH_POLLS_AHEAD`] before its poll.
    First,
    /// [`SECOND_PREFETCH_POLLS_AHEAD`] before it, for those that are further.
    Second,
}

/// Tasks by tenant. Keeps a tenant's lane when it runs empty, so the steady state allocates nothing.
pub(crate) struct RunQueue<T> {
    lanes: Vec<TenantQueue<T>>,
    by_tenant: HashMap<u32, u32>,
    free: Vec<u32>,
    /// The lane that was looked up last: requests come in runs.
    last: Option<(u32, u32)>,
    /// Lanes with waiting tasks, in visiting order: those that may have credit in this round, and those that have none.
    fresh: VecDeque<u32>,
    spent: VecDeque<u32>,
    /// Tasks that take turns.
    turns: VecDeque<ScheduledTask<T>>,
    round: u64,
    /// Tasks that wait.
    waiting: usize,
    /// Lanes with tasks, waiting or running.
    active: usize,
}

impl<T> RunQueue<T> {
    pub(crate) fn new() -> RunQueue<T> {
        RunQueue {
            lanes: Vec::new(),
            by_tenant: HashMap::new(),
            free: Vec::new(),
            last: None,
            fresh: VecDeque::new(),
            spent: VecDeque::new(),
            turns: VecDeque::with_capacity(MAX_INTERLEAVED),
            round: 0,
            waiting: 0,
            active: 0,
        }
    }

    /// Tasks that wait for a place among those that take turns.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether there are tasks that take turns with the one that is being polled.
    pub(crate) fn has_interleaved(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Has `fetch` prefetch what tasks await that are polled a little later than the one that is about to be: in a full
    /// ring each comes by here once between two of its polls, and once more, for the last time, if what it awaits lies
    /// further on. `fetch` is told whether this is the last look, and answers the CPU time that the task's tenant is
    /// charged, and whether it lies further on. Tells the CPU time in all, nanoseconds.
    #[inline]
    pub(crate) fn prefetch_ahead(&mut self, mut fetch: impl FnMut(&mut T, bool) -> (u64, bool)) -> u64 {
        let mut cpu_ns = 0;
        for look in [PrefetchPass::First, PrefetchPass::Second] {
            let at = self.prefetch_position(look);
            let Some(ahead) = self.turns.get_mut(at) else { break };
            let is_last = look == PrefetchPass::Second;
            if is_last && !ahead.needs_second_prefetch {
                break;
            }
            let (charge_ns, needs_second_prefetch) = fetch(&mut ahead.task, is_last);
            ahead.needs_second_prefetch = needs_second_prefetch;
            if charge_ns > 0 {
                let lane = &mut self.lanes[ahead.lane as usize];
                lane.credit_ns = lane.credit_ns.saturating_sub(i64::try_from(charge_ns).unwrap_or(i64::MAX));
                cpu_ns += charge_ns;
            }
        }
        cpu_ns
    }

    #[inline]
    fn prefetch_position(&self, look: PrefetchPass) -> usize {
        match look {
            PrefetchPass::First => PREFETCH_POLLS_AHEAD.min(self.turns.len() / 2),
            PrefetchPass::Second => SECOND_PREFETCH_POLLS_AHEAD.min(self.turns.len() / 4),
        }
    }

    /// Whether another task would have its first turn soon.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting == 0 && self.turns.len() < MAX_INTERLEAVED
    }

    /// Whether any tenant has a task here.
    pub(crate) fn is_active(&self) -> bool {
        self.active > 0
    }

    /// Takes a task in.
    pub(crate) fn push(&mut self, tenant: u32, weight: u32, task: T) {
        let has_room = self.has_room();
        let lane = self.lane(tenant, weight);
        let found = &mut self.lanes[lane as usize];
        if found.is_idle() {
            self.active += 1;
        }
        found.running += 1;
        let turn = ScheduledTask { task, lane, polls: 0, needs_second_prefetch: false };
        // Where nobody waits for a turn there is nothing to queue for.
        if has_room { self.turns.push_back(turn) } else { self.wait(turn) }
    }

    fn lane(&mut self, tenant: u32, weight: u32) -> u32 {
        let lane = match self.last {
            Some((last, lane)) if last == tenant => lane,
            _ => self.find_queue(tenant),
        };
        self.last = Some((tenant, lane));
        self.lanes[lane as usize].weight = weight;
        lane
    }

    fn find_queue(&mut self, tenant: u32) -> u32 {
        if let Some(lane) = self.by_tenant.get(&tenant) {
            return *lane;
        }
        if self.free.is_empty() && self.lanes.len() >= MAX_TENANT_QUEUES {
            self.reclaim_idle_queues();
        }
        let lane = self.free.pop().unwrap_or_else(|| {
            let tasks = VecDeque::new();
            self.lanes.push(TenantQueue {
                tenant,
                weight: 1,
                tasks,
                running: 0,
                credit_ns: 0,
                round: 0,
                in_ring: false,
            });
            (self.lanes.len() - 1) as u32
        });
        let found = &mut self.lanes[lane as usize];
        (found.tenant, found.weight, found.credit_ns, found.round) = (tenant, 1, QUANTUM_NS, self.round);
        self.by_tenant.insert(tenant, lane);
        lane
    }

    #[cold]
    fn reclaim_idle_queues(&mut self) {
        self.last = None;
        for (number, lane) in (0u32..).zip(&self.lanes) {
            if lane.is_idle() && !lane.in_ring && self.by_tenant.remove(&lane.tenant).is_some() {
                self.free.push(number);
            }
        }
    }

    /// The task to poll next. It is to be given back with [`RunQueue::again`], [`RunQueue::switched_out`] or
    /// [`RunQueue::done`].
    pub(crate) fn next(&mut self) -> Option<ScheduledTask<T>> {
        loop {
            self.fill();
            let Some(turn) = self.turns.pop_front() else {
                if self.waiting == 0 {
                    return None;
                }
                self.begin_round(None);
                continue;
            };
            let (round, lanes) = (self.round, &mut self.lanes);
            if lanes[turn.lane as usize].credit(round) > 0 {
                return Some(turn);
            }
            let alone = self.active == 1
                || (self.fresh.is_empty()
                    && !self.turns.iter().any(|turn| lanes[turn.lane as usize].credit(round) > 0));
            if alone {
                self.begin_round(Some(turn.lane));
                self.turns.push_front(turn);
            } else {
                self.wait(turn);
            }
        }
    }

    /// Fills the places of those that take turns, a task from each lane that has credit, and again.
    fn fill(&mut self) {
        while self.turns.len() < MAX_INTERLEAVED
            && let Some(lane) = self.fresh.pop_front()
        {
            let found = &mut self.lanes[lane as usize];
            if found.tasks.is_empty() {
                found.in_ring = false;
            } else if found.credit(self.round) <= 0 {
                self.spent.push_back(lane);
            } else if let Some(task) = found.tasks.pop_front() {
                found.running += 1;
                found.in_ring = !found.tasks.is_empty();
                if found.in_ring {
                    self.fresh.push_back(lane);
                }
                self.waiting -= 1;
                self.turns.push_back(ScheduledTask { task, lane, polls: 0, needs_second_prefetch: false });
            }
        }
    }

    /// Begins the round in which somebody has credit again: of all who have tasks, nobody has any now.
    fn begin_round(&mut self, polled: Option<u32>) {
        let round = self.round;
        let lanes = &mut self.lanes;
        let mut rounds = |lane: u32| lanes[lane as usize].rounds_in_debt(round);
        let turns = self.turns.iter().map(|turn| turn.lane);
        let all = polled.into_iter().chain(turns).chain(self.spent.iter().copied());
        self.round += match polled {
            Some(lane) if self.active == 1 => rounds(lane),
            _ => all.map(rounds).min().unwrap_or(1),
        };
        self.fresh.append(&mut self.spent);
    }

    /// Charges the tenant of a task for CPU time that a poll of it used.
    #[inline]
    pub(crate) fn charge(&mut self, turn: &ScheduledTask<T>, cpu_ns: u64) {
        let lane = &mut self.lanes[turn.lane as usize];
        lane.credit_ns = lane.credit_ns.saturating_sub(i64::try_from(cpu_ns).unwrap_or(i64::MAX));
    }

    /// Charges a tenant for work that is done before tasks are polled, up to a debt of [`MAX_DEBT_ROUNDS`] rounds: more
    /// would shut it out for long after it has stopped.
    pub(crate) fn bill(&mut self, tenant: u32, weight: u32, cpu_ns: u64) {
        let (lane, round) = (self.lane(tenant, weight), self.round);
        let lane = &mut self.lanes[lane as usize];
        let floor_ns = (-MAX_DEBT_ROUNDS * lane.quantum_ns()).min(lane.credit(round));
        lane.credit_ns = lane.credit_ns.saturating_sub(i64::try_from(cpu_ns).unwrap_or(i64::MAX)).max(floor_ns);
    }

    /// Gives back a task that has yielded: it keeps its place until it has had [`POLLS_IN_A_ROW`] polls.
    pub(crate) fn again(&mut self, mut turn: ScheduledTask<T>) {
        turn.polls += 1;
        turn.needs_second_prefetch = false;
        if turn.polls < POLLS_IN_A_ROW as u32 { self.turns.push_back(turn) } else { self.wait(turn) }
    }

    /// The tenant of a task.
    #[inline]
    pub(crate) fn tenant(&self, turn: &ScheduledTask<T>) -> u32 {
        self.lanes[turn.lane as usize].tenant
    }

    /// Gives back a task that was not polled: it is the next one.
    pub(crate) fn put_back(&mut self, turn: ScheduledTask<T>) {
        self.turns.push_front(turn);
    }

    /// Gives back a task that was switched out: it goes to the back of its tenant's lane.
    pub(crate) fn switched_out(&mut self, turn: ScheduledTask<T>) {
        self.wait(turn);
    }

    /// Gives back a task that has ended.
    pub(crate) fn done(&mut self, turn: ScheduledTask<T>) -> T {
        let lane = &mut self.lanes[turn.lane as usize];
        lane.running -= 1;
        if lane.is_idle() {
            self.left(1);
        }
        turn.task
    }

    /// Puts the tasks that take turns back into their lanes.
    pub(crate) fn requeue(&mut self) {
        while let Some(turn) = self.turns.pop_front() {
            self.wait(turn);
        }
    }

    /// Puts a task at the end of its tenant's lane.
    fn wait(&mut self, turn: ScheduledTask<T>) {
        let lane = &mut self.lanes[turn.lane as usize];
        lane.running -= 1;
        lane.tasks.push_back(turn.task);
        self.waiting += 1;
        if !lane.in_ring {
            lane.in_ring = true;
            let ring = if lane.credit(self.round) > 0 { &mut self.fresh } else { &mut self.spent };
            ring.push_back(turn.lane);
        }
    }

    /// Lanes have no tasks any more. When none has, there is nobody to whom anything is owed: all debts are forgiven.
    fn left(&mut self, lanes: usize) {
        self.active -= lanes;
        if self.active == 0 {
            self.round += DEBT_RESET_ROUNDS;
        }
    }

    /// Takes up to `count` waiting tasks from the lanes' far ends, for a thief; first of those that would wait longest.
    pub(crate) fn take_from_back(&mut self, count: usize, mut take: impl FnMut(T)) {
        let mut left = count.min(self.waiting);
        while left > 0 {
            let Some(lane) = self.spent.pop_back().or_else(|| self.fresh.pop_back()) else { return };
            let found = &mut self.lanes[lane as usize];
            let task = found.tasks.pop_back();
            found.in_ring = !found.tasks.is_empty();
            if found.in_ring {
                // To the other end: the next one comes from another lane.
                let ring = if found.credit(self.round) > 0 { &mut self.fresh } else { &mut self.spent };
                ring.push_front(lane);
            }
            if let Some(task) = task {
                self.waiting -= 1;
                left -= 1;
                take(task);
                if self.lanes[lane as usize].is_idle() {
                    self.left(1);
                }
            }
        }
    }
}

/// Rounds of debt that [`RunQueue::bill`] leaves at most.
const MAX_DEBT_ROUNDS: i64 = 8;
/// Rounds that pay any debt of a second; few enough that their number does not run out.
const DEBT_RESET_ROUNDS: u64 = 1 << 16;

#[cfg(test)]
mod tests;
