//! The watchdog's judgement, on a made-up worker: nobody is ended who has not been seen running past a probe, time that the
//! hypervisor takes condemns nobody, and endless code is ended in time.

use proptest::prelude::*;

use crate::extensions::judge::{Act, Judge, Reading, Verdict, longest_ns, period_us};
use crate::limits::{PROBE_GRACE_MIN_US, SLICE_US, WATCHDOG_MAX_PERIOD_US, WATCHDOG_MIN_PERIOD_US, WATCHDOG_RESEND_US};

const US: u64 = 1_000;

/// A worker whose poll starts at 0 and needs some computing; its clock runs on while its processor is taken.
struct Worker {
    need_us: u64,
    /// When the processor is taken, from and to, in order.
    taken_us: Vec<(u64, u64)>,
    limit_us: u64,
}

/// How a poll ended, and when.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Returned(u64),
    Killed(u64),
}

impl Worker {
    /// The first moment at or after `now_us` at which it has its processor.
    fn back_us(&self, now_us: u64) -> u64 {
        let taken = self.taken_us.iter().find(|(from, to)| (*from..*to).contains(&now_us));
        taken.map_or(now_us, |(_, to)| *to)
    }

    /// When the poll returns by itself.
    fn returns_us(&self) -> u64 {
        let (mut done_us, mut at_us) = (0, 0);
        for (from, to) in &self.taken_us {
            let before = from.saturating_sub(at_us);
            if done_us + before >= self.need_us {
                break;
            }
            done_us += before;
            at_us = *to;
        }
        at_us.saturating_add(self.need_us - done_us)
    }

    /// Runs it under a watchdog that first looks at `first_us`, and each time `late_us` later than it wants to. A signal
    /// takes `signal_us` to arrive where there is a processor.
    fn run(&self, first_us: u64, late_us: u64, signal_us: u64) -> End {
        let returns_us = self.returns_us();
        let (mut judge, mut now_us) = (Judge::default(), first_us);
        judge.sees(1);
        let mut acknowledged_us = None;
        while now_us < returns_us {
            let acknowledged_ns = acknowledged_us.filter(|at| *at <= now_us).map(|at: u64| at * US);
            let cpu_ns = now_us * US;
            let reading = Reading { cpu_ns, limit_ns: self.limit_us * US, acknowledged_ns, in_call: false };
            let verdict = judge.decide(&reading);
            judge.note(&reading, verdict.act);
            let arrives_us = self.back_us(now_us + signal_us);
            match verdict.act {
                Act::Wait => {}
                Act::Probe if arrives_us >= returns_us => {}
                Act::Probe => acknowledged_us = acknowledged_us.or(Some(arrives_us)),
                Act::Kill if arrives_us >= returns_us => {}
                Act::Kill => {
                    assert!(acknowledged_ns.is_some(), "a kill without an acknowledged probe");
                    return End::Killed(arrives_us);
                }
            }
            now_us += verdict.next_us + late_us;
        }
        End::Returned(returns_us)
    }
}

#[test]
fn the_steps_to_a_kill() {
    let limit_ns = SLICE_US * US;
    let mut judge = Judge::default();
    assert!(judge.sees(7));
    // CPU clock, acknowledgement, in a host call, what is done about it; microseconds.
    let steps = [
        (5_000, None, false, Act::Wait),
        (5_700, None, false, Act::Wait),
        (5_760, None, false, Act::Probe),
        (6_100, None, false, Act::Wait),
        // Not acknowledged: once more, but no kill however long it takes.
        (6_760, None, false, Act::Probe),
        (7_800, None, false, Act::Wait),
        (8_800, None, false, Act::Probe),
        (900_000, None, false, Act::Probe),
        // Acknowledged: from then on it has a quarter of its slice.
        (900_100, Some(900_050), false, Act::Wait),
        (900_299, Some(900_050), false, Act::Wait),
        (900_300, Some(900_050), false, Act::Kill),
        // Once is enough, but for one that seems to have been lost.
        (900_400, Some(900_050), false, Act::Wait),
        (901_400, Some(900_050), true, Act::Wait),
        (901_400, Some(900_050), false, Act::Kill),
    ];
    for (cpu_us, acknowledged_us, in_call, act) in steps {
        let acknowledged_ns = acknowledged_us.map(|us: u64| us * US);
        let reading = Reading { cpu_ns: cpu_us * US, limit_ns, acknowledged_ns, in_call };
        let verdict = judge.decide(&reading);
        assert_eq!(verdict.act, act, "at {cpu_us} us");
        assert!((WATCHDOG_MIN_PERIOD_US..=WATCHDOG_MAX_PERIOD_US).contains(&verdict.next_us), "{verdict:?}");
        judge.note(&reading, verdict.act);
    }
    assert!(!judge.sees(7));
    assert!(judge.sees(8), "another poll");
    let reading = Reading { cpu_ns: 902_000 * US, limit_ns, acknowledged_ns: None, in_call: false };
    assert_eq!(judge.decide(&reading), Verdict { act: Act::Wait, next_us: 250 }, "it starts from nothing");
}

#[test]
fn a_hiccup_of_the_machine_ends_no_short_poll() {
    for stolen_us in [1, 100, 1_000, 4_000, 7_000, 1_000_000] {
        let worker = Worker { need_us: 2, taken_us: vec![(1, 1 + stolen_us)], limit_us: SLICE_US };
        assert_eq!(worker.run(0, 0, 15), End::Returned(2 + stolen_us), "{stolen_us} us stolen");
    }
}

#[test]
fn a_long_hiccup_does_not_flood_the_worker_with_signals() {
    let (mut judge, mut probes) = (Judge::default(), 0);
    judge.sees(1);
    for cpu_us in (0..10_000_000).step_by(50) {
        let reading = Reading { cpu_ns: cpu_us * US, limit_ns: SLICE_US * US, acknowledged_ns: None, in_call: false };
        let act = judge.decide(&reading).act;
        judge.note(&reading, act);
        probes += u32::from(act == Act::Probe);
    }
    assert!((2..=16).contains(&probes), "{probes} probes in ten seconds, {WATCHDOG_RESEND_US} us at first");
}

#[test]
fn what_is_charged_to_a_poll_that_returned_is_bounded() {
    assert_eq!(longest_ns(1_000_000), 1_250_000);
    assert_eq!(longest_ns(u64::MAX), u64::MAX);
}

fn hiccups() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((1u64..20_000, 1u64..10_000), 0..20).prop_map(|gaps| {
        let mut at_us = 0;
        let spans = gaps.into_iter().map(|(gap, length)| {
            let from = at_us + gap;
            at_us = from + length;
            (from, at_us)
        });
        spans.collect()
    })
}

proptest! {
    /// A poll that needs less than the grace survives any hiccup, whenever the watchdog looks and however late it is.
    #[test]
    fn the_innocent_survives(
        need_us in 1..PROBE_GRACE_MIN_US,
        from_us in 0..PROBE_GRACE_MIN_US,
        length_us in 1u64..1_000_000,
        limit_us in 100u64..20_000,
        first_us in 0u64..60,
        late_us in 0u64..2_000,
        signal_us in 0u64..100,
    ) {
        let worker = Worker { need_us, taken_us: vec![(from_us, from_us + length_us)], limit_us };
        prop_assert_eq!(worker.run(first_us, late_us, signal_us), End::Returned(worker.returns_us()));
    }

    /// Endless code is ended: where nothing is stolen and the watchdog is on time, a period after its limit.
    #[test]
    fn the_endless_is_ended(limit_us in 1u64..100_000, first_us in 0u64..1_000, signal_us in 0u64..50) {
        let worker = Worker { need_us: u64::MAX / 2, taken_us: vec![], limit_us };
        let period_us = period_us(limit_us * US);
        let bound_us = first_us + limit_us + period_us + PROBE_GRACE_MIN_US + 2 * (signal_us + WATCHDOG_MIN_PERIOD_US);
        match worker.run(first_us, 0, signal_us) {
            End::Killed(at_us) => prop_assert!(at_us <= bound_us, "at {at_us} of {bound_us} us"),
            End::Returned(_) => prop_assert!(false, "endless code returned"),
        }
    }

    /// And whatever is stolen and however late the watchdog is, it is ended soon after.
    #[test]
    fn the_endless_is_ended_whatever_the_machine_does(
        limit_us in 1u64..20_000,
        taken_us in hiccups(),
        late_us in 0u64..2_000,
    ) {
        let last_us = taken_us.last().map_or(0, |(_, to)| *to);
        let worker = Worker { need_us: u64::MAX / 2, taken_us, limit_us };
        match worker.run(0, late_us, 15) {
            End::Killed(at_us) => {
                prop_assert!(at_us >= limit_us, "not before its limit");
                let bound_us = 2 * last_us + limit_us + 3 * (WATCHDOG_MAX_PERIOD_US + late_us) + WATCHDOG_RESEND_US;
                prop_assert!(at_us <= bound_us, "at {at_us} of {bound_us} us");
            }
            End::Returned(_) => prop_assert!(false, "endless code returned"),
        }
    }
}
