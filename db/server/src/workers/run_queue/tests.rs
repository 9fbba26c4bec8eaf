//! The run queue compared with ideal shares, by simulation: costs are drawn from seeds, and the time is the cost of the
//! polls.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use super::*;

mod closed_loop;

/// The behaviour of a tenant's tasks.
#[derive(Clone, Debug)]
struct Habit {
    weight: u32,
    /// Tasks that it always has.
    tasks: usize,
    /// CPU nanoseconds of a poll: from, to.
    cost_ns: (u64, u64),
    /// Polls until a task ends, and another one comes.
    polls: u32,
    /// Whether its polls are switched out rather than yield.
    switched_out: bool,
}

fn habit() -> impl Strategy<Value = Habit> {
    let cost = prop_oneof![
        Just((4_900, 4_900)),
        Just((100_000, 100_000)),
        Just((20, 200)),
        (1u64..200_000, 0u64..50_000).prop_map(|(from, more)| (from, from + more)),
    ];
    (1u32..20, 1usize..80, cost, 1u32..40, any::<bool>())
        .prop_map(|(weight, tasks, cost_ns, polls, switched_out)| Habit { weight, tasks, cost_ns, polls, switched_out })
}

/// A small generator; nothing here depends on its quality.
fn random(state: &mut u64, from: u64, to: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    from + (*state >> 33) % (to - from + 1)
}

struct Simulation {
    queue: RunQueue<(usize, u32)>,
    habits: Vec<Habit>,
    used_ns: Vec<u64>,
    total_ns: u64,
    state: u64,
}

impl Simulation {
    fn new(habits: Vec<Habit>, seed: u64) -> Simulation {
        let used_ns = vec![0; habits.len()];
        let mut simulation = Simulation { queue: RunQueue::new(), habits, used_ns, total_ns: 0, state: seed };
        for tenant in 0..simulation.habits.len() {
            (0..simulation.habits[tenant].tasks).for_each(|_| simulation.come(tenant));
        }
        simulation
    }

    fn come(&mut self, tenant: usize) {
        self.queue.push(tenant as u32, self.habits[tenant].weight, 0, (tenant, 0));
    }

    /// Runs one poll as the worker does. Returns its tenant.
    fn step(&mut self) -> usize {
        let mut turn = self.queue.next().expect("there are always tasks");
        let tenant = turn.task.0;
        let habit = self.habits[tenant].clone();
        let cost_ns = random(&mut self.state, habit.cost_ns.0, habit.cost_ns.1);
        self.queue.charge(&turn, cost_ns);
        self.used_ns[tenant] += cost_ns;
        self.total_ns += cost_ns;
        turn.task.1 += 1;
        if turn.task.1 >= habit.polls {
            self.queue.done(turn);
            self.come(tenant);
        } else if habit.switched_out {
            self.queue.switched_out(turn);
        } else {
            self.queue.again(turn);
        }
        // The end of a long turn.
        if random(&mut self.state, 0, 20) == 0 {
            self.queue.requeue();
        }
        tenant
    }

    fn share(&self, tenant: usize) -> f64 {
        let weights: u32 = self.habits.iter().map(|habit| habit.weight).sum();
        f64::from(self.habits[tenant].weight) / f64::from(weights)
    }

    /// The bound of the module's documentation.
    fn bound_ns(&self, tenant: usize) -> f64 {
        let longest: u64 = self.habits.iter().map(|habit| habit.cost_ns.1).sum();
        let weight = f64::from(self.habits[tenant].weight);
        2.0 * (QUANTUM_NS as f64 * weight + longest as f64)
    }
}

fn config() -> Config {
    Config { cases: 200, failure_persistence: None, rng_seed: RngSeed::Fixed(3), ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    /// In any interval, a tenant that always has work gets its share less the bound, whatever the others do.
    #[test]
    fn shares_are_ideal_within_the_bound(habits in prop::collection::vec(habit(), 2..8), seed: u64) {
        let mut simulation = Simulation::new(habits, seed);
        let tenants = simulation.habits.len();
        let mut least_lag_ns = vec![0f64; tenants];
        for _ in 0..4_000 {
            simulation.step();
            for (tenant, least_lag_ns) in least_lag_ns.iter_mut().enumerate() {
                let ideal_ns = simulation.share(tenant) * simulation.total_ns as f64;
                let lag_ns = ideal_ns - simulation.used_ns[tenant] as f64;
                *least_lag_ns = least_lag_ns.min(lag_ns);
                let behind_ns = lag_ns - *least_lag_ns;
                prop_assert!(
                    behind_ns <= simulation.bound_ns(tenant),
                    "tenant {} is {} ns behind its share, allowed {}: {:?}",
                    tenant, behind_ns, simulation.bound_ns(tenant), simulation.habits
                );
            }
        }
    }

    /// Every task that goes in comes out, whatever is charged, billed, given back or surrendered in between, and tasks
    /// of one tenant that only wait come out in order.
    #[test]
    fn nothing_is_lost(steps in prop::collection::vec((0u32..5, 0u64..3_000_000, 0u8..10), 1..300)) {
        let mut queue = RunQueue::new();
        let (mut inside, mut next) = (std::collections::BTreeSet::new(), 0u32);
        for (tenant, cost_ns, what) in steps {
            match what {
                0..=2 => {
                    queue.push(tenant, 1 + tenant, next % 3, next);
                    inside.insert(next);
                    next += 1;
                }
                3 => queue.charge_tenant(tenant, 1 + tenant, cost_ns),
                4 => queue.requeue(),
                9 => queue.charge_polls(tenant, 1 + tenant, cost_ns),
                5 => queue.take_from_back(cost_ns as usize % 3, |task| { inside.remove(&task); }),
                _ => {
                    let Some(turn) = queue.next() else { continue };
                    queue.charge(&turn, cost_ns);
                    match what {
                        6 => queue.again(turn),
                        7 => queue.switched_out(turn),
                        _ => { let task = queue.done(turn); prop_assert!(inside.remove(&task)); }
                    }
                }
            }
            prop_assert_eq!(queue.is_active(), !inside.is_empty());
        }
        while !inside.is_empty() {
            let turn = queue.next();
            prop_assert!(turn.is_some(), "{} tasks are stuck", inside.len());
            let task = queue.done(turn.expect("checked"));
            prop_assert!(inside.remove(&task));
        }
        prop_assert!(queue.next().is_none() && queue.waiting() == 0 && !queue.is_active());
    }
}

fn plain(cost_ns: u64) -> Habit {
    Habit { weight: 1, tasks: 40, cost_ns: (cost_ns, cost_ns), polls: 7, switched_out: false }
}

/// CPU time of each of two tenants, as a ratio, after a simulated second.
fn ratio(habits: [Habit; 2]) -> f64 {
    let mut simulation = Simulation::new(habits.into(), 1);
    while simulation.total_ns < 1_000_000_000 {
        simulation.step();
    }
    simulation.used_ns[0] as f64 / simulation.used_ns[1] as f64
}

#[test]
fn neither_long_nor_short_polls_nor_many_tasks_buy_a_larger_share() {
    let one = Habit { tasks: 1, ..plain(1_000) };
    let quick = Habit { polls: 1, ..plain(300) };
    let slices = Habit { switched_out: true, polls: 100, ..plain(100_000) };
    for (one, other) in [
        (plain(1_000_000), plain(100)),
        (plain(4_900), plain(100_000)),
        (plain(4_900), one.clone()),
        (slices.clone(), one),
        (slices, quick),
    ] {
        let ratio = ratio([one.clone(), other.clone()]);
        assert!((0.95..1.05).contains(&ratio), "{ratio} for {one:?} against {other:?}");
    }
}

#[test]
fn polls_outside_of_turns_count_as_those_in_turns_do() {
    const EACH_NS: u64 = 800_000;
    let mut simulation = Simulation::new(vec![plain(1_000), plain(1_000)], 1);
    // A question that polls some of a tenant's calls, each time that the other one has had as much.
    let mut asked_ns = 0;
    while simulation.total_ns < 1_000_000_000 {
        if simulation.used_ns[1] >= asked_ns {
            simulation.queue.charge_polls(0, 1, EACH_NS);
            asked_ns += EACH_NS;
        }
        simulation.step();
    }
    let own_ns = simulation.used_ns[0];
    assert!(4 * own_ns <= asked_ns, "of its share {asked_ns} ns went to questions, and {own_ns} beside");
}

#[test]
fn weights_divide_the_cpu() {
    let ratio = ratio([Habit { weight: 3, ..plain(30_000) }, plain(4_000)]);
    assert!((2.9..3.1).contains(&ratio), "{ratio}");
}

#[test]
fn an_unused_share_is_lent_without_debt() {
    let mut simulation = Simulation::new(vec![plain(100_000), Habit { tasks: 0, ..plain(10_000) }], 1);
    for _ in 0..1_000 {
        assert_eq!(simulation.step(), 0, "alone, it has all");
    }
    simulation.come(1);
    simulation.come(1);
    let before_ns = simulation.used_ns[0];
    while simulation.used_ns[1] < 10_000_000 {
        simulation.step();
    }
    let since_ns = simulation.used_ns[0] - before_ns;
    assert!((9_000_000..11_000_000).contains(&since_ns), "{since_ns} ns against 10 ms");
}

#[test]
fn one_that_comes_waits_for_no_more_than_what_the_others_have_left_of_a_round() {
    let heavy = Habit { tasks: 256, switched_out: true, polls: 100, ..plain(100_000) };
    let mut simulation = Simulation::new(vec![heavy, Habit { tasks: 0, ..plain(1_000) }], 1);
    for _ in 0..100 {
        (0..10).for_each(|_| {
            simulation.step();
        });
        let before_ns = simulation.total_ns;
        simulation.habits[1].polls = 1;
        simulation.come(1);
        while simulation.step() != 1 {}
        // It came again when it ended: take that one out.
        while let Some(turn) = simulation.queue.next() {
            let light = turn.task.0 == 1;
            if light {
                simulation.queue.done(turn);
                break;
            }
            simulation.queue.switched_out(turn);
        }
        let waited_ns = simulation.total_ns - before_ns - 1_000;
        assert!(waited_ns <= 100_000, "it waited {waited_ns} ns: more than one slice");
    }
}

/// Runs so many polls of these tenants; returns how many of them were of another tenant than the poll before.
fn changes(simulation: &mut Simulation, polls: usize) -> usize {
    let (mut last, mut changes) = (usize::MAX, 0);
    for _ in 0..polls {
        let tenant = simulation.step();
        changes += usize::from(tenant != last);
        last = tenant;
    }
    changes
}

#[test]
fn tasks_of_a_tenant_that_wait_together_are_polled_together() {
    for (tenants, tasks) in [(2, 128), (8, 32), (64, 4)] {
        for polls in [2, 9] {
            let habit = Habit { tasks, polls, ..plain(500) };
            let mut simulation = Simulation::new(vec![habit; tenants], 1);
            let changes = changes(&mut simulation, 50_000);
            assert!(changes < 50_000 / 3, "{changes} of 50,000 polls of {tenants} tenants, {polls} for each task");
        }
    }
}

#[test]
fn a_lone_task_does_not_wait_for_the_groups_of_tenants_whose_tasks_wait() {
    let mut habits = vec![Habit { tasks: 32, polls: 2, ..plain(500) }; 63];
    habits.push(Habit { tasks: 0, polls: 1, ..plain(500) });
    let mut simulation = Simulation::new(habits, 1);
    // At first all others have no task, as it has.
    (0..5_000).for_each(|_| {
        simulation.step();
    });
    for _ in 0..1_000 {
        // It asks for less than its share.
        (0..100).for_each(|_| {
            simulation.step();
        });
        simulation.come(63);
        let before_ns = simulation.total_ns;
        while simulation.step() != 63 {}
        let waited_ns = simulation.total_ns - before_ns;
        // It came again when it ended: take that one out.
        loop {
            let turn = simulation.queue.next().expect("all others always have tasks");
            if turn.task.0 == 63 {
                simulation.queue.done(turn);
                break;
            }
            simulation.queue.again(turn);
        }
        let ring_ns = 3 * MAX_INTERLEAVED as u64 * 500;
        assert!(waited_ns <= ring_ns, "it waited {waited_ns} ns for more than those that took turns already");
    }
}

#[test]
fn a_greedy_tenant_among_many_takes_no_more_than_its_share() {
    let modest = Habit { tasks: 4, polls: 2, ..plain(600) };
    for greedy in [
        Habit { tasks: 1_000, polls: 40, ..plain(700) },
        Habit { tasks: 300, polls: 100, switched_out: true, ..plain(100_000) },
        // As many newcomers as it can make: one task at a time.
        Habit { tasks: 1, polls: 1, ..plain(19_000) },
    ] {
        let mut habits = vec![modest.clone(); 63];
        habits.push(greedy.clone());
        let mut simulation = Simulation::new(habits, 1);
        let (mut least_lag_ns, mut most_behind_ns) = ([0f64; 64], 0f64);
        for _ in 0..100_000 {
            simulation.step();
            for (tenant, least_lag_ns) in least_lag_ns.iter_mut().enumerate() {
                let ideal_ns = simulation.share(tenant) * simulation.total_ns as f64;
                let lag_ns = ideal_ns - simulation.used_ns[tenant] as f64;
                *least_lag_ns = least_lag_ns.min(lag_ns);
                most_behind_ns = most_behind_ns.max(if tenant < 63 { lag_ns - *least_lag_ns } else { 0.0 });
            }
        }
        let quanta = most_behind_ns / QUANTUM_NS as f64;
        let longest = greedy.cost_ns.1 as f64 / QUANTUM_NS as f64;
        assert!(quanta <= 2.0 + longest, "a modest tenant is {quanta:.2} quanta behind its share beside {greedy:?}");
    }
}

#[test]
fn what_is_billed_counts_against_the_share_and_no_more_than_some_rounds() {
    let mut simulation = Simulation::new(vec![plain(1_000), plain(1_000)], 1);
    simulation.queue.charge_tenant(0, 1, u64::MAX);
    let mut others_ns = 0;
    while simulation.step() == 1 {
        others_ns += 1_000;
    }
    let allowed = MAX_DEBT_ROUNDS as u64 * QUANTUM_NS as u64;
    assert!((allowed / 2..=allowed * 2).contains(&others_ns), "{others_ns} ns");
}

#[test]
fn queues_of_tenants_that_left_are_used_again() {
    let mut queue = RunQueue::new();
    for tenant in 0..10 * MAX_TENANT_QUEUES as u32 {
        queue.push(tenant, 1, 0, ());
        let turn = queue.next().expect("just pushed");
        queue.done(turn);
    }
    assert!(queue.queues.len() <= MAX_TENANT_QUEUES);
}

/// An event of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Look(usize),
    LastLook(usize),
    Poll(usize),
}

/// Polls some tasks of one tenant, of which those with odd numbers lie further on: what happened, in order.
fn events(tasks: usize, polls: usize) -> Vec<Event> {
    let (mut queue, mut events) = (RunQueue::new(), Vec::new());
    (0..tasks).for_each(|task| queue.push(1, 1, 0, task));
    for _ in 0..polls {
        let turn = queue.next().expect("there are always tasks");
        let charged = queue.prefetch_ahead(|task, is_last| {
            events.push(if is_last { Event::LastLook(*task) } else { Event::Look(*task) });
            (0, !is_last && *task % 2 == 1)
        });
        assert_eq!(charged, 0);
        events.push(Event::Poll(turn.task));
        queue.again(turn);
    }
    events
}

#[test]
fn each_task_is_looked_at_ahead_of_each_of_its_polls_and_again_if_it_lies_further_on() {
    for tasks in [2, 3, 5, 9, MAX_INTERLEAVED - 1, MAX_INTERLEAVED] {
        // Beyond the polls that a task has in a row.
        let events = events(tasks, (POLLS_IN_A_ROW + 4) * tasks);
        for task in 0..tasks {
            let is_of_task = |event: &Event| match *event {
                Event::Look(of) | Event::LastLook(of) | Event::Poll(of) => of == task,
            };
            let mut its: Vec<Event> = events.iter().copied().filter(is_of_task).collect();
            // Some tasks had their first poll before any prefetch.
            let first = its.iter().position(|event| matches!(event, Event::Poll(_))).expect("it was polled");
            its.drain(..=first);
            let last = its.iter().rposition(|event| matches!(event, Event::Poll(_))).expect("and again");
            its.truncate(last + 1);
            let mut between = vec![Event::Look(task), Event::Poll(task)];
            if task % 2 == 1 {
                between.insert(1, Event::LastLook(task));
            }
            assert!(its.chunks(between.len()).all(|chunk| chunk == between), "{tasks} tasks, {task}: {its:?}");
            assert!(its.len() >= POLLS_IN_A_ROW * between.len(), "{tasks} tasks, {task}: {its:?}");
        }
    }
}

#[test]
fn in_a_full_ring_looks_are_as_many_polls_ahead_as_the_limits_say() {
    let events = events(MAX_INTERLEAVED, 4 * MAX_INTERLEAVED);
    let polls =
        |from: usize, to: usize| events[from..to].iter().filter(|event| matches!(event, Event::Poll(_))).count();
    let mut seen = 0;
    for (at, event) in events.iter().enumerate() {
        let (task, prefetched) = match *event {
            Event::Look(task) => (task, PREFETCH_POLLS_AHEAD),
            Event::LastLook(task) => (task, SECOND_PREFETCH_POLLS_AHEAD),
            Event::Poll(_) => continue,
        };
        let Some(polled) = (at..events.len()).find(|at| events[*at] == Event::Poll(task)) else { continue };
        // The task that is about to be polled, and those between.
        assert_eq!(polls(at, polled), prefetched + 1, "{event:?}");
        seen += 1;
    }
    assert!(seen > 4 * MAX_INTERLEAVED, "{seen} looks");
}

#[test]
fn a_look_ahead_is_charged_to_the_tenant_of_its_task() {
    let mut queue = RunQueue::new();
    // In turns, so that each poll of one tenant visits the other.
    for task in 0..MAX_INTERLEAVED {
        queue.push(task as u32 % 2, 1, 0, task % 2);
    }
    let mut charged = [0_i64; 2];
    for _ in 0..3 * MAX_INTERLEAVED {
        let turn = queue.next().expect("there are always tasks");
        let before: Vec<i64> = queue.queues.iter().map(|queue| queue.credit_ns).collect();
        let mut expected = [0, 0];
        let cost = queue.prefetch_ahead(|task, is_last| {
            let cost_ns = if is_last { 3 } else { 7 };
            expected[*task] += cost_ns as i64;
            (cost_ns, !is_last)
        });
        for (queue, before) in queue.queues.iter().zip(&before) {
            assert_eq!(before - queue.credit_ns, expected[queue.tenant as usize]);
        }
        assert_eq!(cost as i64, expected.iter().sum::<i64>());
        (charged[0], charged[1]) = (charged[0] + expected[0], charged[1] + expected[1]);
        queue.again(turn);
    }
    assert!(charged.iter().all(|charged| *charged > 0), "{charged:?}");
}
