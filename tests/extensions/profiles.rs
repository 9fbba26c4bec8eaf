//! Promise: a profile finds where an extension's code spends its time while it serves: functions and lines, host calls
//! apart, in either tier.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Wire, data_plane, library_of, loaded, tenant};
use sandstorm_extension::BudgetOverride;
use sandstorm_net::rpc::{Operation, RpcStatus};
use sandstorm_runtime::{CodeProfile, ProfilerBusy};

/// Seven tenths of its time in one loop and three in another, for longer than a busy kernel lets a thread run at a
/// time: so no sample is in step with the calls. Or reads of records, as its argument says.
const TWO_LOOPS: &str = "#![no_std]
#![forbid(unsafe_code)]
use core::hint::black_box;
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    if args == b\"reads\" {
        let table = db.table(\"t\")?;
        for _ in 0..2_000 {
            black_box(db.scan(table, Default::default(), 64)?);
        }
        return Ok(());
    }
    black_box(long_loop(7_000_000));
    black_box(short_loop(3_000_000));
    Ok(())
}
#[inline(never)]
fn long_loop(turns: u64) -> u64 {
    let mut sum = 0u64;
    for turn in 0..turns {
        sum = black_box(sum.wrapping_add(turn));
    }
    sum
}
#[inline(never)]
fn short_loop(turns: u64) -> u64 {
    let mut sum = 1u64;
    for turn in 0..turns {
        sum = black_box(sum.wrapping_add(turn));
    }
    sum
}
";

/// Samples that make shares of them sure enough.
const ENOUGH: u64 = 300;

#[test]
fn two_loops_are_found_with_their_lines_and_host_calls_apart() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let library = library_of("two_loops", TWO_LOOPS);
    let budget = BudgetOverride { total_us: Some(1_000_000), ..BudgetOverride::default() };
    let extension = loaded("two_loops", 1, library.clone(), budget);
    plane.directory.put_extension("alice", std::sync::Arc::new(extension)).expect("it is loaded");
    let mut wire = Wire::new(&plane, 0, id);
    for key in 0..64_u32 {
        assert_eq!(wire.one(Operation::put(1, &key.to_le_bytes(), b"value")).status, RpcStatus::Ok);
    }
    let mut profile_of = |argument: &[u8]| -> CodeProfile {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| {
                let never = AtomicBool::new(false);
                let mut profile = CodeProfile::default();
                // A busy machine gives the worker, or whoever samples, little time.
                for seconds in 1..=20 {
                    profile = plane.profiler.profile(&library, Duration::from_secs(seconds), &never).expect("alone");
                    if profile.samples >= ENOUGH {
                        break;
                    }
                }
                over.store(true, Ordering::Relaxed);
                profile
            });
            while !over.load(Ordering::Relaxed) {
                let answer = wire.one(Operation::invoke(b"two_loops", argument));
                assert_eq!(answer.status, RpcStatus::Ok, "{}", answer.text());
            }
            taken.join().expect("a profile")
        })
    };
    let profile = profile_of(b"loops");
    let shown =
        |profile: &CodeProfile| profile.stacks.iter().take(9).map(|stack| format!("{stack:?}\n")).collect::<String>();
    println!("{} samples, {} named\n{}", profile.samples, profile.named, shown(&profile));
    assert!(profile.samples >= ENOUGH && profile.named * 100 >= profile.samples * 95, "{}", shown(&profile));
    let share = |profile: &CodeProfile, is_at: &dyn Fn(&sandstorm_accounts::CodePlace) -> bool| {
        let found = profile.stacks.iter().filter(|stack| stack.places.iter().any(is_at));
        found.map(|stack| stack.samples).sum::<u64>() as f64 / profile.samples as f64
    };
    let in_lines = |function: &'static str| {
        let first =
            TWO_LOOPS.lines().position(|line| line.starts_with(&format!("fn {function}"))).expect("a line") as u32 + 1;
        move |place: &sandstorm_accounts::CodePlace| {
            place.function.ends_with(function) && place.file == "src/lib.rs" && (first..first + 7).contains(&place.line)
        }
    };
    let (long, short) = (share(&profile, &in_lines("long_loop")), share(&profile, &in_lines("short_loop")));
    // The machine's other programs decide when the worker is looked at, so nothing rests on how large each share is.
    let found = long > 0.02 && short > 0.02 && long + short > 0.9;
    assert!(found, "{long} and {short}:\n{}", shown(&profile));
    let run = share(&profile, &|place| place.function.contains("two_loops::run"));
    assert!(run > 0.9, "who called them: {run}\n{}", shown(&profile));
    let reads = profile_of(b"reads");
    println!("{} samples, {} named\n{}", reads.samples, reads.named, shown(&reads));
    let in_host = reads.stacks.iter().filter(|stack| stack.in_host).map(|stack| stack.samples).sum::<u64>();
    assert!(
        in_host * 2 > reads.samples,
        "most of it is the host's work: {in_host} of {}\n{}",
        reads.samples,
        shown(&reads)
    );
    let at_call = share(&reads, &|place| place.file == "src/lib.rs" && place.line == 9);
    assert!(at_call > 0.9, "and done for the line that calls it: {at_call}\n{}", shown(&reads));
}

#[test]
fn one_profile_is_taken_at_a_time_and_ends_when_it_is_told_to() {
    let plane = data_plane(1);
    let library = library_of("two_loops", TWO_LOOPS);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            // The other may be looking just then whether this one has begun, which is a profile, too.
            loop {
                match plane.profiler.profile(&library, Duration::from_secs(600), &stop) {
                    Err(ProfilerBusy) => std::thread::yield_now(),
                    taken => return taken,
                }
            }
        });
        let none = AtomicBool::new(true);
        // The first may not have begun yet.
        while plane.profiler.profile(&library, Duration::ZERO, &none) != Err(ProfilerBusy) {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(first.join().expect("no panic").map(|profile| profile.samples), Ok(0), "nothing ran");
    });
}
