//! The watchdog's judgement, on made-up polls: no poll is asked for before its slice is over, every poll is soon after,
//! and a worker without a processor is not flooded with signals.

use proptest::prelude::*;

use crate::limits::{SWITCH_LATE_US, WATCHDOG_MIN_PERIOD_US, WATCHDOG_PERIOD_US};
use crate::preemption_policy::{PollReading, PreemptionAction, PreemptionDecision, PreemptionPolicy, max_charge_ns};
use sandstorm_extension::limits::SLICE_US;

const US: u64 = 1_000;

fn reading(passed_us: u64, asked: bool, in_call: bool) -> PollReading {
    PollReading { elapsed_ns: passed_us * US, limit_ns: SLICE_US * US, asked, in_call }
}

#[test]
fn the_steps_to_a_switch() {
    let mut judge = PreemptionPolicy::default();
    assert!(judge.sees(7));
    // Microseconds since the poll began, request unanswered, in a host call, the action.
    let steps = [
        (0, false, false, PreemptionAction::Wait),
        (99, false, true, PreemptionAction::Wait),
        (100, false, true, PreemptionAction::Preempt),
        // Not answered, or answered in a host call: no further signal, however long it takes.
        (300, true, true, PreemptionAction::Wait),
        (900_000, true, false, PreemptionAction::Wait),
        (900_000, false, true, PreemptionAction::Wait),
        // Answered, but the poll goes on: there was no room on its stack.
        (900_000, false, false, PreemptionAction::Preempt),
        (900_050, false, false, PreemptionAction::Wait),
        (900_100, false, false, PreemptionAction::Preempt),
    ];
    for (passed_us, asked, in_call, act) in steps {
        let reading = reading(passed_us, asked, in_call);
        let verdict = judge.decide(&reading);
        assert_eq!(verdict.act, act, "at {passed_us} us");
        assert!((WATCHDOG_MIN_PERIOD_US..=WATCHDOG_PERIOD_US).contains(&verdict.next_us), "{verdict:?}");
        if act == PreemptionAction::Preempt {
            judge.note_requested(&reading);
        }
    }
    assert!(!judge.sees(7));
    assert!(judge.sees(8), "another poll");
    assert_eq!(
        judge.decide(&reading(40, false, false)),
        PreemptionDecision { act: PreemptionAction::Wait, next_us: 60 },
        "from nothing"
    );
}

#[test]
fn what_is_charged_to_a_poll_that_was_not_ended_is_bounded() {
    assert_eq!(max_charge_ns(100 * US), (100 + SWITCH_LATE_US) * US);
    assert_eq!(max_charge_ns(u64::MAX), u64::MAX);
}

proptest! {
    /// A poll may begin at any time between two looks, and each look may be late. The poll is asked for after its slice
    /// and at most one period and two delays later.
    #[test]
    fn a_long_poll_is_asked_for_in_time(limit_us in 1u64..100_000, first_us in 0u64..WATCHDOG_PERIOD_US, late_us in 0u64..50) {
        let mut judge = PreemptionPolicy::default();
        judge.sees(1);
        let mut now_us = first_us;
        loop {
            let reading = PollReading { limit_ns: limit_us * US, ..reading(now_us, false, false) };
            let verdict = judge.decide(&reading);
            if verdict.act == PreemptionAction::Preempt {
                break;
            }
            prop_assert!(now_us < limit_us);
            now_us += verdict.next_us + late_us;
        }
        prop_assert!(now_us >= limit_us);
        prop_assert!(now_us <= limit_us + WATCHDOG_PERIOD_US + late_us, "asked after {} us", now_us);
    }
}
