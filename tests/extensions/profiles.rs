//! Promise: a profile finds where an extension's code spends its time while it serves: functions and lines, host calls
//! apart, in either tier. It shows calls of one tenant's extension alone, even if other tenants have the same library.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Stop, Wire, data_plane, library_of, loaded, tenant};
use sandstorm_extension::{BudgetOverride, ExtensionLibrary, LoadedExtension};
use sandstorm_instance::DataPlane;
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
    if args == b\"nested\" {
        db.call(\"second\", b\"loops\").await?;
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

/// Calls that are over in less than a microsecond: each reads one record.
const ONE_GET: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, key: &[u8]) -> Result<(), Error> {
    let table = db.table(\"t\")?;
    let found = db.get(table, key).await?;
    db.reply(found.map_or(0, |record| record.value().len()).to_le_bytes().as_slice())
}
";

/// Samples that make shares of them sure enough.
const ENOUGH: u64 = 300;
/// Calls of one message, whose answers are one packet.
const CALLS_IN_MESSAGE: usize = 32;
/// Samples that show that calls are sampled at all.
const SOME: u64 = 50;

/// Loads a library for a tenant, as an extension of its own.
fn put(plane: &DataPlane, tenant: &str, name: &str, library: &Arc<ExtensionLibrary>) -> Arc<LoadedExtension> {
    let budget = BudgetOverride { total_us: Some(1_000_000), ..BudgetOverride::default() };
    let extension = Arc::new(loaded(name, 1, Arc::clone(library), budget));
    plane.directory.put_extension(tenant, Arc::clone(&extension)).expect("it is loaded");
    extension
}

#[test]
fn two_loops_are_found_with_their_lines_and_host_calls_apart() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let extension = put(&plane, "alice", "two_loops", &library_of("two_loops", TWO_LOOPS));
    let mut wire = Wire::new(&plane, 0, id);
    for key in 0..64_u32 {
        assert_eq!(wire.one(Operation::put(1, &key.to_le_bytes(), b"value")).status, RpcStatus::Ok);
    }
    let mut profile_of = |argument: &[u8]| -> CodeProfile {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| {
                let _ends = Stop(&over);
                let never = AtomicBool::new(false);
                let mut profile = CodeProfile::default();
                // A busy machine gives the worker, or the sampler, little time.
                for seconds in 1..=20 {
                    profile = plane.profiler.profile(&extension, Duration::from_secs(seconds), &never).expect("alone");
                    if profile.samples >= ENOUGH {
                        break;
                    }
                }
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
fn calls_that_are_over_at_once_are_found_with_their_lines() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let extension = put(&plane, "alice", "one_get", &library_of("one_get", ONE_GET));
    let mut wire = Wire::new(&plane, 0, id);
    assert_eq!(wire.one(Operation::put(1, b"key", b"value")).status, RpcStatus::Ok);
    let over = AtomicBool::new(false);
    let (samples, at_lines) = std::thread::scope(|scope| {
        let taken = scope.spawn(|| {
            // Also if a check fails: the calls end only then.
            let _ends = Stop(&over);
            let never = AtomicBool::new(false);
            let (mut samples, mut at_lines) = (0, 0);
            // A busy machine gives the worker, or the sampler, little time.
            for _ in 0..60 {
                let profile = plane.profiler.profile(&extension, Duration::from_secs(2), &never).expect("alone");
                samples += profile.samples;
                let is_own = |place: &sandstorm_accounts::CodePlace| place.file == "src/lib.rs" && place.line > 3;
                let found = profile.stacks.iter().filter(|stack| stack.places.iter().any(is_own));
                at_lines += found.map(|stack| stack.samples).sum::<u64>();
                if at_lines >= SOME {
                    break;
                }
            }
            (samples, at_lines)
        });
        while !over.load(Ordering::Relaxed) {
            // Many in a message: else the worker waits for the client nearly all the time.
            for answer in wire.ask(&[Operation::invoke(b"one_get", b"key"); CALLS_IN_MESSAGE]) {
                assert_eq!(answer.status, RpcStatus::Ok, "{}", answer.text());
            }
        }
        taken.join().expect("profiles")
    });
    println!("{samples} samples, {at_lines} of them at lines of the extension");
    assert!(at_lines >= SOME, "calls of one get: {samples} samples, {at_lines} of them at lines of the extension");
}

#[test]
fn one_profile_is_taken_at_a_time_and_ends_when_it_is_told_to() {
    let plane = data_plane(1);
    let extension = loaded("two_loops", 1, library_of("two_loops", TWO_LOOPS), BudgetOverride::default());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            // The other may be looking just then whether this one has begun, which is a profile, too.
            loop {
                match plane.profiler.profile(&extension, Duration::from_secs(600), &stop) {
                    Err(ProfilerBusy) => std::thread::yield_now(),
                    taken => return taken,
                }
            }
        });
        let none = AtomicBool::new(true);
        // The first may not have begun yet.
        while plane.profiler.profile(&extension, Duration::ZERO, &none) != Err(ProfilerBusy) {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(first.join().expect("no panic").map(|profile| profile.samples), Ok(0), "nothing ran");
    });
}

#[test]
fn who_shares_a_library_sees_its_own_calls_alone() {
    let plane = data_plane(1);
    let library = library_of("two_loops", TWO_LOOPS);
    let (caller, _) = tenant(&plane, "alice", true);
    tenant(&plane, "bob", true);
    let [_, called] = ["two_loops", "second"].map(|name| put(&plane, "alice", name, &library));
    let uncalled = put(&plane, "alice", "third", &library);
    let [others, others_second] = ["two_loops", "second"].map(|name| put(&plane, "bob", name, &library));
    let mut wire = Wire::new(&plane, 0, caller);
    let over = AtomicBool::new(false);
    let (of_called, of_rest) = std::thread::scope(|scope| {
        let taken = scope.spawn(|| {
            let _ends = Stop(&over);
            let samples_of = |extension: &LoadedExtension| {
                let (length, never) = (Duration::from_millis(300), AtomicBool::new(false));
                plane.profiler.profile(extension, length, &never).expect("alone").samples
            };
            let mut sums = (0, 0);
            // A busy machine gives the worker, or the sampler, little time.
            for _ in 0..50 {
                sums.1 +=
                    [&others, &others_second, &uncalled].map(|extension| samples_of(extension)).iter().sum::<u64>();
                sums.0 += samples_of(&called);
                if sums.0 >= SOME {
                    break;
                }
            }
            sums
        });
        while !over.load(Ordering::Relaxed) {
            let answer = wire.one(Operation::invoke(b"two_loops", b"nested"));
            assert_eq!(answer.status, RpcStatus::Ok, "{}", answer.text());
        }
        taken.join().expect("profiles")
    });
    assert!(of_called >= SOME, "what the caller calls is sampled as its own: {of_called}");
    assert_eq!(of_rest, 0, "nobody called these, of the same tenant or of another");
}
