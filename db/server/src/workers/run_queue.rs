//! The run queue of one worker: decides which invocation is polled next. It is fair between tenants by CPU time and
//! weight.
//!
//! Deficit round robin (Shreedhar & Varghese, SIGCOMM'95) with CPU nanoseconds for bytes. In each round a tenant has a
//! credit of a quantum times its weight. Every poll is charged to it, however short. A tenant without credit waits for
//! the next round, which begins when no tenant has credit left. A poll that took more than the credit leaves a debt,
//! which later rounds pay. Unused CPU time is lent: rounds only wait for tenants with work, and when all are in debt
//! the rounds in between are skipped at once. Unused credit is not saved up.
//!
//! Up to [`MAX_INTERLEAVED`] tasks, of all tenants that have credit, are interleaved poll by poll: their cache misses
//! overlap. They leave when their tenant's credit is used up, so their number follows the shares.
//!
//! A tenant's waiting tasks enter in groups of up to [`GROUPED_TASKS`], and so they are polled one after another: each
//! change of tenant costs the exchange of stacks and registers, and answers that end together leave together. A tenant
//! that had no other task goes before those that had, as in Linux' FQ-CoDel: a lone call does not wait for their
//! groups. Neither changes a tenant's share: in each round it has its credit and no more.
//!
//! The bound: while a tenant always has work, it gets its share of the used CPU time, less [`QUANTUM_NS`] times its
//! weight and one longest poll of each tenant (`tests::shares_are_ideal_within_the_bound`).

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::limits::{
    GROUPED_TASKS, MAX_INTERLEAVED, MAX_TENANT_QUEUES, POLLS_IN_A_ROW, PREFETCH_POLLS_AHEAD, QUANTUM_NS,
    SECOND_PREFETCH_POLLS_AHEAD,
};

/// The tasks and the credit of one tenant on this worker.
struct TenantQueue<T> {
    tenant: u32,
    weight: u32,
    /// Tasks that wait to be interleaved.
    tasks: VecDeque<T>,
    /// Tasks that are interleaved or being polled.
    running: u32,
    /// CPU nanoseconds that the tenant may still use in `round`; negative: debt.
    credit_ns: i64,
    round: u64,
    /// Whether it is in one of the rings, or its tasks enter as a group now.
    in_ring: bool,
}

/// The queue whose tasks enter the interleaved ones now.
#[derive(Clone, Copy, Debug)]
struct TaskGroup {
    queue: u32,
    /// Tasks that may follow before another queue has its turn.
    left: usize,
}

impl<T> TenantQueue<T> {
    fn quantum_ns(&self) -> i64 {
        QUANTUM_NS * i64::from(self.weight.max(1))
    }

    fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.running == 0
    }

    /// The credit in `round`. Each round since the last check has paid a quantum; one unused quantum at most is kept.
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

/// An interleaved task.
pub(crate) struct ScheduledTask<T> {
    pub(crate) task: T,
    queue: u32,
    polls: u32,
    /// Whether its memory was not found at the first prefetch: it needs the second.
    needs_second_prefetch: bool,
}

/// The two prefetches of a task: in a full ring it has both between two of its polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefetchPass {
    /// [`PREFETCH_POLLS_AHEAD`] before its poll.
    First,
    /// [`SECOND_PREFETCH_POLLS_AHEAD`] before it, for tasks that need a second one.
    Second,
}

/// Tasks by tenant. A tenant's queue is kept when it is empty, so the steady state allocates nothing.
pub(crate) struct RunQueue<T> {
    queues: Vec<TenantQueue<T>>,
    by_tenant: HashMap<u32, u32>,
    free: Vec<u32>,
    /// The queue that was looked up last: requests come in runs.
    last: Option<(u32, u32)>,
    /// Queues with waiting tasks, in visiting order: those whose only task came last, others that may have credit in
    /// this round, and those in debt.
    lone: VecDeque<u32>,
    with_credit: VecDeque<u32>,
    in_debt: VecDeque<u32>,
    group: Option<TaskGroup>,
    /// Interleaved tasks.
    turns: VecDeque<ScheduledTask<T>>,
    round: u64,
    /// Tasks that wait.
    waiting: usize,
    /// Queues with tasks, waiting or running.
    active: usize,
}

impl<T> RunQueue<T> {
    pub(crate) fn new() -> RunQueue<T> {
        RunQueue {
            queues: Vec::new(),
            by_tenant: HashMap::new(),
            free: Vec::new(),
            last: None,
            lone: VecDeque::new(),
            with_credit: VecDeque::new(),
            in_debt: VecDeque::new(),
            group: None,
            turns: VecDeque::with_capacity(MAX_INTERLEAVED),
            round: 0,
            waiting: 0,
            active: 0,
        }
    }

    /// Tasks that wait to be interleaved.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether there are interleaved tasks beside the one that is being polled.
    pub(crate) fn has_interleaved(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Has `fetch` prefetch the memory that tasks of the next polls await. In a full ring each task is visited once
    /// between two of its polls, and once more, for the last time, if its memory is in an overflow bucket. `fetch` is
    /// told whether this is the last visit. It returns the CPU time that the task's tenant is charged, and whether the
    /// memory is further on. Returns the total CPU time, nanoseconds.
    #[inline]
    pub(crate) fn prefetch_ahead(&mut self, mut fetch: impl FnMut(&mut T, bool) -> (u64, bool)) -> u64 {
        let mut cpu_ns = 0;
        for pass in [PrefetchPass::First, PrefetchPass::Second] {
            let at = self.prefetch_position(pass);
            let Some(turn) = self.turns.get_mut(at) else { break };
            let is_last = pass == PrefetchPass::Second;
            if is_last && !turn.needs_second_prefetch {
                break;
            }
            let (charge_ns, needs_second_prefetch) = fetch(&mut turn.task, is_last);
            turn.needs_second_prefetch = needs_second_prefetch;
            if charge_ns > 0 {
                let queue = &mut self.queues[turn.queue as usize];
                queue.credit_ns = queue.credit_ns.saturating_sub(i64::try_from(charge_ns).unwrap_or(i64::MAX));
                cpu_ns += charge_ns;
            }
        }
        cpu_ns
    }

    #[inline]
    fn prefetch_position(&self, pass: PrefetchPass) -> usize {
        match pass {
            PrefetchPass::First => PREFETCH_POLLS_AHEAD.min(self.turns.len() / 2),
            PrefetchPass::Second => SECOND_PREFETCH_POLLS_AHEAD.min(self.turns.len() / 4),
        }
    }

    /// Whether one more task would have its first turn soon.
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
        let queue = self.queue(tenant, weight);
        let found = &mut self.queues[queue as usize];
        if found.is_idle() {
            self.active += 1;
        }
        found.running += 1;
        let turn = ScheduledTask { task, queue, polls: 0, needs_second_prefetch: false };
        // Without waiting tasks there is nothing to queue behind.
        if has_room { self.turns.push_back(turn) } else { self.wait(turn) }
    }

    fn queue(&mut self, tenant: u32, weight: u32) -> u32 {
        let queue = match self.last {
            Some((last, queue)) if last == tenant => queue,
            _ => self.find_queue(tenant),
        };
        self.last = Some((tenant, queue));
        self.queues[queue as usize].weight = weight;
        queue
    }

    fn find_queue(&mut self, tenant: u32) -> u32 {
        if let Some(queue) = self.by_tenant.get(&tenant) {
            return *queue;
        }
        if self.free.is_empty() && self.queues.len() >= MAX_TENANT_QUEUES {
            self.reclaim_idle_queues();
        }
        let queue = self.free.pop().unwrap_or_else(|| {
            let tasks = VecDeque::new();
            self.queues.push(TenantQueue {
                tenant,
                weight: 1,
                tasks,
                running: 0,
                credit_ns: 0,
                round: 0,
                in_ring: false,
            });
            (self.queues.len() - 1) as u32
        });
        let found = &mut self.queues[queue as usize];
        (found.tenant, found.weight, found.credit_ns, found.round) = (tenant, 1, QUANTUM_NS, self.round);
        self.by_tenant.insert(tenant, queue);
        queue
    }

    #[cold]
    fn reclaim_idle_queues(&mut self) {
        self.last = None;
        for (number, queue) in (0u32..).zip(&self.queues) {
            if queue.is_idle() && !queue.in_ring && self.by_tenant.remove(&queue.tenant).is_some() {
                self.free.push(number);
            }
        }
    }

    /// The task to poll next. The caller returns it with [`RunQueue::again`], [`RunQueue::switched_out`] or
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
            let (round, has_credited) = (self.round, self.has_credited());
            let queues = &mut self.queues;
            if queues[turn.queue as usize].credit(round) > 0 {
                return Some(turn);
            }
            let alone = self.active == 1
                || (!has_credited && !self.turns.iter().any(|turn| queues[turn.queue as usize].credit(round) > 0));
            if alone {
                self.begin_round(Some(turn.queue));
                self.turns.push_front(turn);
            } else {
                self.wait(turn);
            }
        }
    }

    /// Interleaves waiting tasks while there is room, a group of each queue with credit in turn.
    fn fill(&mut self) {
        while self.turns.len() < MAX_INTERLEAVED
            && let Some(queue) = self.next_of_group()
        {
            let found = &mut self.queues[queue as usize];
            let Some(task) = found.tasks.pop_front() else { break };
            found.running += 1;
            self.waiting -= 1;
            self.turns.push_back(ScheduledTask { task, queue, polls: 0, needs_second_prefetch: false });
        }
    }

    /// The queue that the next task comes from: it has one, and credit.
    fn next_of_group(&mut self) -> Option<u32> {
        loop {
            let TaskGroup { queue, left } = match self.group.take() {
                Some(group) => group,
                None => {
                    let queue = self.lone.pop_front().or_else(|| self.with_credit.pop_front())?;
                    TaskGroup { queue, left: GROUPED_TASKS }
                }
            };
            let found = &mut self.queues[queue as usize];
            if found.tasks.is_empty() {
                found.in_ring = false;
            } else if found.credit(self.round) <= 0 {
                self.in_debt.push_back(queue);
            } else if left == 0 {
                self.with_credit.push_back(queue);
            } else {
                self.group = Some(TaskGroup { queue, left: left - 1 });
                return Some(queue);
            }
        }
    }

    /// Whether a queue may have both a waiting task and credit.
    fn has_credited(&self) -> bool {
        self.group.is_some() || !self.lone.is_empty() || !self.with_credit.is_empty()
    }

    /// Begins the next round in which a tenant has credit: of all that have tasks, none has any now.
    fn begin_round(&mut self, polled: Option<u32>) {
        let round = self.round;
        let queues = &mut self.queues;
        let mut rounds = |queue: u32| queues[queue as usize].rounds_in_debt(round);
        let turns = self.turns.iter().map(|turn| turn.queue);
        let all = polled.into_iter().chain(turns).chain(self.in_debt.iter().copied());
        self.round += match polled {
            Some(queue) if self.active == 1 => rounds(queue),
            _ => all.map(rounds).min().unwrap_or(1),
        };
        self.with_credit.append(&mut self.in_debt);
    }

    /// Charges the tenant of a task for CPU time that a poll of it used.
    #[inline]
    pub(crate) fn charge(&mut self, turn: &ScheduledTask<T>, cpu_ns: u64) {
        let queue = &mut self.queues[turn.queue as usize];
        queue.credit_ns = queue.credit_ns.saturating_sub(i64::try_from(cpu_ns).unwrap_or(i64::MAX));
    }

    /// Charges a tenant for work that is done before tasks are polled, up to a debt of [`MAX_DEBT_ROUNDS`] rounds. More
    /// debt would block the tenant long after it has stopped.
    pub(crate) fn charge_tenant(&mut self, tenant: u32, weight: u32, cpu_ns: u64) {
        let (queue, round) = (self.queue(tenant, weight), self.round);
        let queue = &mut self.queues[queue as usize];
        let floor_ns = (-MAX_DEBT_ROUNDS * queue.quantum_ns()).min(queue.credit(round));
        queue.credit_ns = queue.credit_ns.saturating_sub(i64::try_from(cpu_ns).unwrap_or(i64::MAX)).max(floor_ns);
    }

    /// Returns a task that has yielded: it stays interleaved until it has had [`POLLS_IN_A_ROW`] polls.
    pub(crate) fn again(&mut self, mut turn: ScheduledTask<T>) {
        turn.polls += 1;
        turn.needs_second_prefetch = false;
        if turn.polls < POLLS_IN_A_ROW as u32 { self.turns.push_back(turn) } else { self.wait(turn) }
    }

    /// The tenant of a task.
    #[inline]
    pub(crate) fn tenant(&self, turn: &ScheduledTask<T>) -> u32 {
        self.queues[turn.queue as usize].tenant
    }

    /// Returns a task that was not polled: it is the next one.
    pub(crate) fn put_back(&mut self, turn: ScheduledTask<T>) {
        self.turns.push_front(turn);
    }

    /// Returns a task that was switched out: it goes to the back of its tenant's queue.
    pub(crate) fn switched_out(&mut self, turn: ScheduledTask<T>) {
        self.wait(turn);
    }

    /// Returns a task that has ended.
    pub(crate) fn done(&mut self, turn: ScheduledTask<T>) -> T {
        let queue = &mut self.queues[turn.queue as usize];
        queue.running -= 1;
        if queue.is_idle() {
            self.left(1);
        }
        turn.task
    }

    /// Puts the interleaved tasks back into their queues, where they are the next ones.
    pub(crate) fn requeue(&mut self) {
        while let Some(ScheduledTask { task, queue: number, .. }) = self.turns.pop_back() {
            let queue = &mut self.queues[number as usize];
            queue.running -= 1;
            queue.tasks.push_front(task);
            self.waiting += 1;
            if !queue.in_ring {
                queue.in_ring = true;
                if queue.credit(self.round) > 0 {
                    self.lone.push_front(number);
                } else {
                    self.in_debt.push_back(number);
                }
            }
        }
    }

    /// Puts a task at the end of its tenant's queue.
    fn wait(&mut self, turn: ScheduledTask<T>) {
        let queue = &mut self.queues[turn.queue as usize];
        queue.running -= 1;
        let is_only_one = queue.is_idle();
        queue.tasks.push_back(turn.task);
        self.waiting += 1;
        if !queue.in_ring {
            queue.in_ring = true;
            let ring = match queue.credit(self.round) {
                ..=0 => &mut self.in_debt,
                _ if is_only_one => &mut self.lone,
                _ => &mut self.with_credit,
            };
            ring.push_back(turn.queue);
        }
    }

    /// Notes that `queues` have no tasks any more. When none has, all debts are cancelled.
    fn left(&mut self, queues: usize) {
        self.active -= queues;
        if self.active == 0 {
            self.round += DEBT_RESET_ROUNDS;
        }
    }

    /// Takes up to `count` waiting tasks from the queues' far ends, for a thief, beginning with those that would wait
    /// longest.
    pub(crate) fn take_from_back(&mut self, count: usize, mut take: impl FnMut(T)) {
        let mut left = count.min(self.waiting);
        if let Some(TaskGroup { queue, .. }) = self.group.take() {
            self.with_credit.push_front(queue);
        }
        while left > 0 {
            let RunQueue { lone, with_credit, in_debt, .. } = self;
            let last = in_debt.pop_back().or_else(|| with_credit.pop_back()).or_else(|| lone.pop_back());
            let Some(queue) = last else { return };
            let found = &mut self.queues[queue as usize];
            let task = found.tasks.pop_back();
            found.in_ring = !found.tasks.is_empty();
            if found.in_ring {
                // To the other end: the next task comes from another queue.
                let ring = if found.credit(self.round) > 0 { &mut self.with_credit } else { &mut self.in_debt };
                ring.push_front(queue);
            }
            if let Some(task) = task {
                self.waiting -= 1;
                left -= 1;
                take(task);
                if self.queues[queue as usize].is_idle() {
                    self.left(1);
                }
            }
        }
    }
}

/// Rounds of debt that [`RunQueue::charge_tenant`] leaves at most.
const MAX_DEBT_ROUNDS: i64 = 8;
/// Rounds that pay any debt of a second; few enough that their number does not run out.
const DEBT_RESET_ROUNDS: u64 = 1 << 16;

#[cfg(test)]
mod tests;
