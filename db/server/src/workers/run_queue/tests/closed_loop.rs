//! The run queue with clients that ask again when they are answered: how many calls are under way at once, how many
//! answers of a peer leave together, and which calls wait.

use super::*;
use crate::limits::TURN_CPU_NS;

/// Calls under way in all, and answers that a worker sends at once.
const CALLS: usize = 256;
const SENT_AT_ONCE: usize = 64;
/// From an answer to the next request of its client, and what a worker does beside polls for each call.
const CLIENT_NS: u64 = 20_000;
const SERVING_NS: u64 = 400;

/// A call of a client, with the polls that it has had.
struct ClientCall {
    tenant: u32,
    peer: u32,
    polls: u32,
    asked_ns: u64,
}

/// What happened to the calls.
#[derive(Default)]
struct ClosedLoopReport {
    /// Calls that had begun and not ended, at each poll, added up; and the polls.
    begun: usize,
    polls: usize,
    /// Answers, and peers in each sending of answers.
    answers: usize,
    sendings: usize,
    /// For each tenant, the times that its calls took.
    times_ns: Vec<Vec<u64>>,
}

impl ClosedLoopReport {
    /// The calls under way that had begun, on average.
    fn calls_begun(&self) -> f64 {
        self.begun as f64 / self.polls as f64
    }

    fn answers_sent_together(&self) -> f64 {
        self.answers as f64 / self.sendings as f64
    }

    /// The time within which 99 of 100 calls of each tenant ended: that of the median tenant, and the longest.
    fn p99_ns(&self) -> (u64, u64) {
        let of_tenant = |times: &Vec<u64>| {
            let mut times = times.clone();
            times.sort_unstable();
            times[times.len() * 99 / 100]
        };
        let mut all: Vec<u64> = self.times_ns.iter().map(of_tenant).collect();
        all.sort_unstable();
        (all[all.len() / 2], all[all.len() - 1])
    }

    fn median_ns(&self) -> u64 {
        let mut all: Vec<u64> = self.times_ns.iter().flatten().copied().collect();
        all.sort_unstable();
        all[all.len() / 2]
    }
}

/// Runs calls of so many tenants, over 64 connections or one for each tenant, as a worker without idle neighbours does.
fn run(tenants: u32, polls: u32, poll_ns: u64) -> ClosedLoopReport {
    let mut queue = RunQueue::new();
    let peers = tenants.max(64);
    let new = |at: usize| {
        let peer = at as u32 / (CALLS as u32 / peers);
        ClientCall { tenant: peer % tenants, peer, polls: 0, asked_ns: 0 }
    };
    let mut coming: VecDeque<ClientCall> = (0..CALLS).map(new).collect();
    let mut report = ClosedLoopReport { times_ns: vec![Vec::new(); tenants as usize], ..ClosedLoopReport::default() };
    let (mut now_ns, mut begun) = (0, 0);
    while report.answers < 200 * CALLS {
        while coming.front().is_some_and(|call| call.asked_ns <= now_ns)
            && let Some(call) = coming.pop_front()
        {
            queue.push(call.tenant, 1, call.peer, call);
            now_ns += SERVING_NS;
        }
        let (turn_ns, mut ended) = (now_ns, Vec::new());
        while now_ns - turn_ns < TURN_CPU_NS
            && ended.len() < SENT_AT_ONCE
            && let Some(mut turn) = queue.next()
        {
            begun += usize::from(turn.task.polls == 0);
            turn.task.polls += 1;
            now_ns += poll_ns;
            queue.charge(&turn, poll_ns);
            (report.begun, report.polls) = (report.begun + begun, report.polls + 1);
            if turn.task.polls == polls {
                begun -= 1;
                ended.push(queue.done(turn));
            } else {
                queue.again(turn);
            }
        }
        let mut peers: Vec<u32> = ended.iter().map(|call| call.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        now_ns += 1_000 + 600 * peers.len() as u64;
        (report.answers, report.sendings) = (report.answers + ended.len(), report.sendings + peers.len());
        for call in ended {
            report.times_ns[call.tenant as usize].push(now_ns - call.asked_ns);
            coming.push_back(ClientCall { polls: 0, asked_ns: now_ns + CLIENT_NS, ..call });
        }
    }
    report
}

/// Tenants; polls of a call, and their time: calls of one record, and chains of eight.
const CASES: [(u32, u32, u64); 8] =
    [(1, 2, 500), (8, 2, 500), (64, 2, 500), (256, 2, 500), (1, 9, 270), (8, 9, 270), (64, 9, 270), (256, 9, 270)];

#[test]
fn few_calls_are_under_way_at_once_however_many_tenants_take_turns() {
    for (tenants, polls, poll_ns) in CASES {
        let begun = run(tenants, polls, poll_ns).calls_begun();
        let most = MAX_INTERLEAVED as f64 * 1.25;
        assert!(begun <= most, "{begun:.1} calls of {CALLS} had begun: {tenants} tenants, {polls} polls a call");
    }
}

#[test]
fn answers_of_a_peer_leave_together() {
    for (tenants, polls, poll_ns) in CASES.into_iter().filter(|(tenants, ..)| *tenants <= 64) {
        let together = run(tenants, polls, poll_ns).answers_sent_together();
        assert!(together > 2.5, "{together:.2} of 4 answers: {tenants} tenants, {polls} polls a call");
    }
}

#[test]
fn a_peer_with_many_calls_does_not_hold_up_those_of_another_one_of_the_tenant() {
    let mut queue = RunQueue::new();
    (0..200).for_each(|_| queue.push(1, 1, 1, 1));
    for _ in 0..50 {
        queue.push(1, 1, 2, 2);
        let mut ended = 0;
        // All that waited before it, and one group, since its peers may enter together.
        while let Some(turn) = queue.next() {
            queue.charge(&turn, 500);
            ended += 1;
            assert!(ended <= 200 + MAX_INTERLEAVED + GROUPED_TASKS, "{ended} calls of the other peer ended before");
            if queue.done(turn) == 2 {
                break;
            }
            queue.push(1, 1, 1, 1);
        }
    }
}

#[test]
fn what_a_tenant_does_beside_calls_does_not_take_its_precedence_for_long() {
    let mut queue = RunQueue::new();
    queue.push(1, 1, 0, 1);
    queue.charge_tenant(2, 1, u64::MAX);
    // The other one's calls use as much as two tenants have in the rounds of the debt.
    for _ in 0..2 * (MAX_DEBT_ROUNDS + 1) {
        let turn = queue.next().expect("there is always one");
        queue.charge(&turn, QUANTUM_NS as u64);
        queue.again(turn);
    }
    (0..MAX_INTERLEAVED).for_each(|_| queue.push(1, 1, 0, 1));
    (0..100).for_each(|_| queue.push(1, 1, 0, 1));
    queue.push(2, 1, 0, 2);
    assert_eq!(queue.lone.len(), 1, "it goes before those that wait");
}

#[test]
fn tenants_that_ask_alike_wait_alike() {
    for (tenants, polls, poll_ns) in CASES {
        let report = run(tenants, polls, poll_ns);
        let ((median_ns, longest_ns), middle_ns) = (report.p99_ns(), report.median_ns());
        let case = format!("{tenants} tenants, {polls} polls a call");
        assert!(longest_ns * 10 <= median_ns * 13, "p99 of {longest_ns} and of {median_ns} ns: {case}");
        assert!(median_ns <= 2 * middle_ns, "p99 of {median_ns} ns and p50 of {middle_ns} ns: {case}");
    }
}
