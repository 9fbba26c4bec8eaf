//! The watchdog naps while all running code is proven; code that turns out otherwise is ended all the same, and has to
//! prove itself anew.
//!
//! Guarantees: the only unsafe code stands for a library's and reads the invocation that it is given.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use sandstorm_api::abi;

use super::*;
use sandstorm_extension::limits::TRUSTED_AFTER_CALLS;

/// Returns at once, or never where it is given arguments.
unsafe extern "C" fn returns_without_arguments(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: a live invocation.
    let is_endless = unsafe { (*invocation).args_len } != 0;
    loop {
        if !is_endless {
            return abi::POLL_DONE;
        }
        std::hint::spin_loop();
    }
}

/// A world, and an extension that is proven there: with slices that no hiccup of the machine is longer than.
fn proven() -> (World, Arc<LoadedExtension>) {
    let (mut world, extension) = (World::new(), native(returns_without_arguments));
    for _ in 0..=TRUSTED_AFTER_CALLS {
        assert_eq!(world.run(&extension, b"", long()).0, PollOutcome::Done);
    }
    assert!(extension.stats.begun(0), "it has had thousands of short calls");
    (world, extension)
}

#[test]
fn the_watchdog_naps_while_only_proven_code_runs() {
    let (mut world, extension) = proven();
    let watchdog = Arc::clone(&world.shared.watchdog);
    let begun = Instant::now();
    loop {
        let (looked, round) = (watchdog.samples(), Instant::now());
        while round.elapsed() < Duration::from_millis(300) {
            assert_eq!(world.run(&extension, b"", long()).0, PollOutcome::Done);
        }
        // Awake it looks ten times in a millisecond; a nap is four.
        if u128::from(watchdog.samples() - looked) < round.elapsed().as_millis() {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it never naps");
    }
}

#[test]
fn what_was_proven_and_runs_away_is_ended_and_no_longer_proven() {
    let (mut world, extension) = proven();
    for round in 0..10 {
        assert_eq!(
            world.run(&extension, b"endless", short()).0,
            PollOutcome::Killed(KillCause::TotalBudget),
            "{round}"
        );
        assert!(!extension.stats.begun(0), "it has to prove itself anew");
    }
    for _ in 0..=TRUSTED_AFTER_CALLS {
        assert_eq!(world.run(&extension, b"", long()).0, PollOutcome::Done);
    }
    assert!(extension.stats.begun(0), "and can");
}

#[test]
fn what_is_new_wakes_the_watchdog_from_its_nap() {
    let (mut world, extension) = proven();
    let watchdog = Arc::clone(&world.shared.watchdog);
    let other = native(returns_without_arguments);
    for round in 0..10 {
        let asked = watchdog.requests();
        for _ in 0..1_000 {
            assert_eq!(world.run(&extension, b"", long()).0, PollOutcome::Done);
        }
        assert_eq!(
            world.run(&other, b"endless", short()).0,
            PollOutcome::Killed(KillCause::TotalBudget),
            "round {round}"
        );
        assert!(watchdog.requests() > asked);
    }
    assert!(extension.stats.begun(0), "which is not the other's fault");
}
