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
//! overlap. Those that have begun may overdraw their tenant's credit by a quantum, which later rounds pay; beyond that
//! they are set aside, and enter again before those that have not begun. So few are under way at once, and these stay
//! in the caches.
//!
//! A tenant's waiting tasks enter in groups of up to [`GROUPED_TASKS`], and so they are polled one after another: each
//! change of tenant costs the exchange of stacks and registers. Those of one peer enter one after another where they
//! wait near each other: then they end together, and their answers leave in one system call.
//!
//! A tenant that comes without another task goes before those that wait, as in Linux' FQ-CoDel: a lone call does not
//! wait for their groups. But only while it has had no more than its share, by a virtual time as in start-time fair
//! queueing. Else tenants that end all of their tasks and come again would keep the others waiting for the whole round.
//! Neither changes a tenant's share: in each round it has its credit and no more.
//!
//! The bound: while a tenant always has work, it gets its share of the used CPU time, less two times [`QUANTUM_NS`]
//! times its weight and one longest poll of each tenant (`tests::shares_are_ideal_within_the_bound`).

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::limits::{
    GROUPED_TASKS, MAX_INTERLEAVED, MAX_TENANT_QUEUES, PEER_SEARCH_TASKS, POLLS_IN_A_ROW, PREFETCH_POLLS_AHEAD,
    QUANTUM_NS, SECOND_PREFETCH_POLLS_AHEAD,
};

/// The tasks and the credit of one tenant on this worker.
struct TenantQueue<T> {
    tenant: u32,
    weight: u32,
    /// Tasks that wait to be interleaved.
    tasks: VecDeque<WaitingTask<T>>,
    /// Tasks that were interleaved, and are again before the others.
    set_aside: VecDeque<WaitingTask<T>>,
    /// The peer of the task that entered last.
    last_peer: u32,
    /// Tasks that are interleaved or being polled.
    running: u32,
    /// CPU nanoseconds that the tenant may still use in `round`; negative: debt.
    credit_ns: i64,
    round: u64,
    /// The virtual time until which it has had its share.
    served_until_ns: u64,
    /// Whether it is in one of the rings, or its tasks enter as a group now.
    in_ring: bool,
}

/// A task that is not interleaved now.
struct WaitingTask<T> {
    task: T,
    peer: u32,
    has_begun: bool,
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
        !self.has_waiting() && self.running == 0
    }

    fn has_waiting(&self) -> bool {
        !self.tasks.is_empty() || !self.set_aside.is_empty()
    }

    /// Takes the task that is to be interleaved next: one that was before, one of the same peer as the last one, or the
    /// first.
    fn take_next(&mut self) -> Option<WaitingTask<T>> {
        let next = self.set_aside.pop_front().or_else(|| {
            let last_peer = self.last_peer;
            let same = self.tasks.iter().take(PEER_SEARCH_TASKS).position(|waiting| waiting.peer == last_peer);
            self.tasks.remove(same.unwrap_or(0))
        })?;
        self.last_peer = next.peer;
        Some(next)
    }

    /// Notes that it has used CPU time.
    fn use_up(&mut self, cpu_ns: u64) {
        self.credit_ns = self.credit_ns.saturating_sub(i64::try_from(cpu_ns).unwrap_or(i64::MAX));
        let share_ns = if self.weight <= 1 { cpu_ns } else { cpu_ns / u64::from(self.weight) };
        self.served_until_ns = self.served_until_ns.saturating_add(share_ns);
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
    peer: u32,
    polls: u32,
    has_begun: bool,
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
    virtual_clock: VirtualClock,
}

/// The time that has passed for each tenant with tasks, if all have had their shares.
#[derive(Default)]
struct VirtualClock {
    now_ns: u64,
    /// CPU time that was used since then.
    used_ns: u64,
    /// The latest time until which a tenant has had its share.
    latest_ns: u64,
}

impl VirtualClock {
    /// The time, where so many tenants have tasks.
    fn read(&mut self, active: usize) -> u64 {
        self.now_ns += self.used_ns / active.max(1) as u64;
        self.used_ns = 0;
        self.now_ns
    }

    /// No tenant has tasks: the next one to come has had nothing.
    fn reset(&mut self) {
        (self.now_ns, self.used_ns) = (self.latest_ns.max(self.now_ns), 0);
    }
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
            virtual_clock: VirtualClock::default(),
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
                self.queues[turn.queue as usize].use_up(charge_ns);
                self.virtual_clock.used_ns += charge_ns;
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

    /// Takes a task in. `peer` is a number of where its answer goes, for those that can leave together.
    pub(crate) fn push(&mut self, tenant: u32, weight: u32, peer: u32, task: T) {
        let has_room = self.has_room();
        let queue = self.queue(tenant, weight);
        let found = &mut self.queues[queue as usize];
        if found.is_idle() {
            found.served_until_ns = found.served_until_ns.max(self.virtual_clock.read(self.active));
            self.active += 1;
        }
        found.running += 1;
        let turn = ScheduledTask { task, queue, peer, polls: 0, has_begun: false, needs_second_prefetch: false };
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
            self.queues.push(TenantQueue {
                tenant,
                weight: 1,
                tasks: VecDeque::new(),
                set_aside: VecDeque::new(),
                last_peer: 0,
                running: 0,
                credit_ns: 0,
                round: 0,
                served_until_ns: 0,
                in_ring: false,
            });
            (self.queues.len() - 1) as u32
        });
        let found = &mut self.queues[queue as usize];
        (found.tenant, found.weight, found.credit_ns, found.round) = (tenant, 1, QUANTUM_NS, self.round);
        found.served_until_ns = 0;
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
            let queue = &mut queues[turn.queue as usize];
            let floor_ns = if turn.has_begun { -queue.quantum_ns() } else { 0 };
            if queue.credit(round) > floor_ns {
                return Some(turn);
            }
            let alone = self.active == 1
                || (!has_credited && !self.turns.iter().any(|turn| queues[turn.queue as usize].credit(round) > 0));
            if alone {
                self.begin_round(Some(turn.queue));
                self.turns.push_front(turn);
            } else {
                let ScheduledTask { task, queue, peer, has_begun, .. } = turn;
                self.queues[queue as usize].set_aside.push_back(WaitingTask { task, peer, has_begun });
                self.leave_turns(queue, false);
            }
        }
    }

    /// Interleaves waiting tasks while there is room, a group of each queue with credit in turn.
    fn fill(&mut self) {
        while self.turns.len() < MAX_INTERLEAVED
            && let Some(queue) = self.next_of_group()
        {
            let found = &mut self.queues[queue as usize];
            let Some(WaitingTask { task, peer, has_begun }) = found.take_next() else { break };
            found.running += 1;
            self.waiting -= 1;
            let turn = ScheduledTask { task, queue, peer, polls: 0, has_begun, needs_second_prefetch: false };
            self.turns.push_back(turn);
        }
    }

    /// The queue that the next task comes from: it has one, and credit.
    fn next_of_group(&mut self) -> Option<u32> {
        loop {
            let TaskGroup { queue, left } = match self.group.take() {
                Some(group) => group,
                None => {
                    let queue = self.lone.pop_front().or_else(|| self.with_credit.pop_front())?;
                    // What it did not use while it waited is not saved up.
                    let now_ns = self.virtual_clock.read(self.active);
                    let found = &mut self.queues[queue as usize];
                    found.served_until_ns = found.served_until_ns.max(now_ns);
                    // Each group begins with the task that has waited longest: no peer waits for all of another's.
                    found.last_peer = found.tasks.front().map_or(found.last_peer, |first| first.peer);
                    TaskGroup { queue, left: GROUPED_TASKS }
                }
            };
            let found = &mut self.queues[queue as usize];
            if !found.has_waiting() {
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
        queue.use_up(cpu_ns);
        let clock = &mut self.virtual_clock;
        clock.used_ns += cpu_ns;
        clock.latest_ns = clock.latest_ns.max(queue.served_until_ns);
    }

    /// Charges a tenant for work that is done before tasks are polled, up to a debt of [`MAX_DEBT_ROUNDS`] rounds. More
    /// debt would block the tenant long after it has stopped.
    pub(crate) fn charge_tenant(&mut self, tenant: u32, weight: u32, cpu_ns: u64) {
        let (queue, round) = (self.queue(tenant, weight), self.round);
        let now_ns = self.virtual_clock.read(self.active);
        let queue = &mut self.queues[queue as usize];
        let floor_ns = (-MAX_DEBT_ROUNDS * queue.quantum_ns()).min(queue.credit(round));
        let latest_ns = queue.served_until_ns.max(now_ns.saturating_add(MAX_DEBT_ROUNDS as u64 * QUANTUM_NS as u64));
        queue.use_up(cpu_ns);
        queue.credit_ns = queue.credit_ns.max(floor_ns);
        queue.served_until_ns = queue.served_until_ns.min(latest_ns);
    }

    /// Charges a tenant for polls of its tasks that were made outside of their turns, as [`RunQueue::charge`] does:
    /// all of it, since that computes what a turn would have.
    pub(crate) fn charge_polls(&mut self, tenant: u32, weight: u32, cpu_ns: u64) {
        let (queue, round) = (self.queue(tenant, weight), self.round);
        let queue = &mut self.queues[queue as usize];
        // What earlier rounds have paid is no credit for this.
        queue.credit(round);
        queue.use_up(cpu_ns);
        let clock = &mut self.virtual_clock;
        clock.used_ns += cpu_ns;
        clock.latest_ns = clock.latest_ns.max(queue.served_until_ns);
    }

    /// Returns a task that has yielded: it stays interleaved until it has had [`POLLS_IN_A_ROW`] polls.
    pub(crate) fn again(&mut self, mut turn: ScheduledTask<T>) {
        turn.polls += 1;
        turn.has_begun = true;
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
        while let Some(ScheduledTask { task, queue: number, peer, has_begun, .. }) = self.turns.pop_back() {
            let queue = &mut self.queues[number as usize];
            queue.running -= 1;
            queue.set_aside.push_front(WaitingTask { task, peer, has_begun });
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

    /// Shows all tasks of a tenant.
    pub(crate) fn for_each_of(&mut self, tenant: u32, mut f: impl FnMut(&mut T)) {
        let Some(number) = self.by_tenant.get(&tenant).copied() else { return };
        let running = self.turns.iter_mut().filter(|turn| turn.queue == number);
        running.for_each(|turn| f(&mut turn.task));
        let queue = &mut self.queues[number as usize];
        queue.set_aside.iter_mut().chain(&mut queue.tasks).for_each(|waiting| f(&mut waiting.task));
    }

    /// Puts a task at the end of its tenant's queue.
    fn wait(&mut self, turn: ScheduledTask<T>) {
        let ScheduledTask { task, queue: number, peer, has_begun, .. } = turn;
        let queue = &mut self.queues[number as usize];
        let is_only_one = queue.running == 1 && !queue.has_waiting();
        queue.tasks.push_back(WaitingTask { task, peer, has_begun });
        self.leave_turns(number, is_only_one);
    }

    /// Counts a task of a queue among those that wait, of which it is now the last. Its queue enters a ring, if it is
    /// in none.
    fn leave_turns(&mut self, number: u32, is_only_one: bool) {
        let queue = &mut self.queues[number as usize];
        queue.running -= 1;
        self.waiting += 1;
        if queue.in_ring {
            return;
        }
        queue.in_ring = true;
        let may_be_first = is_only_one && queue.served_until_ns <= self.virtual_clock.read(self.active);
        let ring = match queue.credit(self.round) {
            ..=0 => &mut self.in_debt,
            _ if may_be_first => &mut self.lone,
            _ => &mut self.with_credit,
        };
        ring.push_back(number);
    }

    /// Notes that `queues` have no tasks any more. When none has, all debts are cancelled.
    fn left(&mut self, queues: usize) {
        self.virtual_clock.read(self.active);
        self.active -= queues;
        if self.active == 0 {
            self.round += DEBT_RESET_ROUNDS;
            self.virtual_clock.reset();
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
            let task = found.tasks.pop_back().or_else(|| found.set_aside.pop_back());
            found.in_ring = found.has_waiting();
            if found.in_ring {
                // To the other end: the next task comes from another queue.
                let ring = if found.credit(self.round) > 0 { &mut self.with_credit } else { &mut self.in_debt };
                ring.push_front(queue);
            }
            if let Some(WaitingTask { task, .. }) = task {
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
