//! The watchdog naps while all running code is proven; code that turns out otherwise is ended all the same, and has to
//! prove itself anew.
//!
//! Guarantees: the only unsafe code stands for a library's and reads the invocation that it is given.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use sandstorm_api::abi;

use super::*;
use crate::limits::SHARED_TRUST_AFTER_CALLS;
use sandstorm_extension::CallTrust;
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
    assert_eq!(extension.begun(0), CallTrust::Proven, "it has had thousands of short calls");
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
fn new_code_of_ever_new_tenants_does_not_keep_the_watchdog_awake_and_is_ended_where_it_runs_away() {
    const CALLS: u64 = 50;
    let mut world = World::new();
    let watchdog = Arc::clone(&world.shared.watchdog);
    let mut calls = 0;
    let mut runs_new_code = |world: &mut World| {
        let new = native(returns_without_arguments);
        for _ in 0..CALLS {
            assert_eq!(world.run(&new, b"", long()).0, PollOutcome::Done);
        }
        calls += CALLS;
        calls > SHARED_TRUST_AFTER_CALLS
    };
    for _ in 0..3 {
        while !runs_new_code(&mut world) {}
        let begun = Instant::now();
        loop {
            let (looked, round) = (watchdog.samples(), Instant::now());
            while round.elapsed() < Duration::from_millis(300) {
                runs_new_code(&mut world);
            }
            // Awake it looks ten times in a millisecond; a short nap is one.
            if u128::from(watchdog.samples() - looked) < 3 * round.elapsed().as_millis() {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "it never naps");
        }
        let (runaway, asked) = (native(returns_without_arguments), watchdog.requests());
        assert_eq!(world.run(&runaway, b"endless", short()).0, PollOutcome::Killed(KillCause::TotalBudget));
        assert!(watchdog.requests() > asked);
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
        assert_eq!(extension.begun(0), CallTrust::Unknown, "it has to prove itself anew");
    }
    for _ in 0..=TRUSTED_AFTER_CALLS {
        assert_eq!(world.run(&extension, b"", long()).0, PollOutcome::Done);
    }
    assert_eq!(extension.begun(0), CallTrust::Proven, "and can");
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
    assert_eq!(extension.begun(0), CallTrust::Proven, "which is not the other's fault");
}
