//! Budgets are CPU time: code that computes too long is ended, code that waits for a processor is not. Neither a switch
//! nor a kill comes in the middle of a host function.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sandstorm_api::abi;

use super::*;
use crate::limits::{LIFE_LATE_POLLS, RECLAIM_PRESSURE_LIFE_US};
use crate::{clock, host_call};
use sandstorm_store::limits::RECLAIM_PRESSURE_BYTES;
use sandstorm_store::spill::SpillReadError;

/// Computes until the calling thread has used so much more CPU time.
fn compute_us(us: u64) {
    let start = clock::cpu_ns(libc::CLOCK_THREAD_CPUTIME_ID);
    while clock::cpu_ns(libc::CLOCK_THREAD_CPUTIME_ID) - start < us * 1000 {
        std::hint::spin_loop();
    }
}

unsafe extern "C" fn computes_300_us(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    compute_us(300);
    abi::POLL_DONE
}

unsafe extern "C" fn computes_and_yields(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    compute_us(100);
    abi::POLL_PENDING
}

unsafe extern "C" fn yields(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    abi::POLL_PENDING
}

/// Waits 2 ms without using the processor, in each of ten polls.
unsafe extern "C" fn waits_at_first(slot: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: the slot has 64 bytes.
    unsafe {
        slot.cast::<u32>().write(0);
        waits(slot, invocation)
    }
}

unsafe extern "C" fn waits(slot: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    std::thread::sleep(Duration::from_millis(2));
    // SAFETY: `waits_at_first` has written the number.
    let polls = unsafe { &mut *slot.cast::<u32>() };
    *polls += 1;
    if *polls < 10 { abi::POLL_PENDING } else { abi::POLL_DONE }
}

unsafe extern "C" fn endless(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    loop {
        std::hint::spin_loop();
    }
}

#[test]
fn the_total_budget_ends_what_yields_in_time() {
    let mut world = World::new();
    let budget = Budget { slice_us: 1_000_000, total_us: 5_000, ..Budget::default() };
    for entry in [computes_and_yields as GuestFunction, yields] {
        let extension = native(entry);
        let mut invocation = world.begin(&extension, b"", budget);
        assert_eq!(world.complete(&mut invocation), PollOutcome::Killed(KillCause::TotalBudget));
        assert!(invocation.cpu_ns() >= 5_000_000, "{} ns", invocation.cpu_ns());
        assert_eq!(invocation.text(), kill_text(KillCause::TotalBudget).as_bytes());
        world.engine.finish(&world.participant, invocation);
        let counts = extension.stats.read();
        assert_eq!(counts.killed_total(), 1);
        assert!(counts.cpu_us >= 5_000);
    }
    // In one poll that has less left of the total than a slice.
    assert_eq!(world.run(&native(endless), b"", budget).0, PollOutcome::Killed(KillCause::TotalBudget));
}

#[test]
fn what_is_under_way_for_long_is_ended_when_much_memory_waits_for_it() {
    const VALUE: usize = 1 << 20;
    let mut world = World::new();
    // By its budget it could be under way for a quarter of an hour.
    let mut invocation = world.begin(&native(yields), b"", long());
    assert_eq!(world.shared.epochs.stats().pins, 0, "what has not run has read nothing");
    while world.poll(&mut invocation) == PollOutcome::Preempted {}
    assert_eq!(world.shared.epochs.stats().pins, 1);
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(2 * RECLAIM_PRESSURE_LIFE_US) {
        std::thread::sleep(Duration::from_millis(1));
        assert!(matches!(world.poll(&mut invocation), PollOutcome::Pending | PollOutcome::Preempted), "nothing waits");
    }
    let mut written = 0;
    while matches!(world.poll(&mut invocation), PollOutcome::Pending | PollOutcome::Preempted) {
        world.put(b"key", &vec![0; VALUE]);
        world.participant.quiescent();
        written += VALUE as u64;
        assert!(written < 2 * RECLAIM_PRESSURE_BYTES, "it is not ended: {:?}", world.shared.epochs.stats());
    }
    assert!(written > RECLAIM_PRESSURE_BYTES, "ended before there was a reason: {written}");
    assert_eq!(world.poll(&mut invocation), PollOutcome::Killed(KillCause::ReclaimPressure));
    let text = String::from_utf8_lossy(invocation.text()).into_owned();
    assert!(text.contains("held up memory reclamation"), "{text}");
    world.engine.finish(&world.participant, invocation);
    for _ in 0..10 {
        world.participant.quiescent();
    }
    let left = (world.shared.epochs.stats().limbo_bytes, world.table().table.stats().garbage_bytes);
    assert_eq!((left, world.shared.epochs.is_crowded()), ((0, 0), false));
}

#[test]
fn a_record_that_no_memory_was_left_for_is_not_one_that_cannot_be_read() {
    let mut world = World::new();
    let mut invocation = world.begin(&native(yields), b"", long());
    assert_eq!(invocation.body().cold_status(), abi::STATUS_COLD);
    for (why, status) in [
        (SpillReadError::NoMemory, abi::STATUS_OUT_OF_MEMORY),
        (SpillReadError::Checksum, abi::STATUS_NOT_READ),
        (SpillReadError::BackingDown, abi::STATUS_NOT_READ),
    ] {
        invocation.set_cold_failed(why);
        assert_eq!(invocation.body().cold_status(), status, "{why}");
    }
    world.engine.finish(&world.participant, invocation);
}

#[test]
fn what_is_under_way_for_too_long_is_ended_though_it_has_used_little() {
    let mut world = World::new();
    let budget = Budget { slice_us: 10, total_us: 9_000, ..Budget::default() };
    for entry in [yields as GuestFunction, endless] {
        let extension = native(entry);
        let mut invocation = world.begin(&extension, b"", budget);
        let first = world.poll(&mut invocation);
        assert!(matches!(first, PollOutcome::Pending | PollOutcome::Preempted), "{first:?}");
        // As if that had been two seconds ago.
        let passed = clock::TickLength::measured().ticks(2_000_000_000);
        // SAFETY: held alone.
        let body = unsafe { invocation.0.as_mut() };
        body.first_poll_ticks -= passed;
        assert_eq!(world.complete(&mut invocation), PollOutcome::Killed(KillCause::TotalBudget));
        assert!(String::from_utf8_lossy(invocation.text()).starts_with("the invocation was under way"));
        assert!(invocation.cpu_ns() < 9_000_000);
        world.engine.finish(&world.participant, invocation);
        assert_eq!((extension.stats.read().killed_total(), extension.stats.read().live()), (1, 0));
    }
}

#[test]
fn a_call_has_its_late_polls_again_once_no_memory_waits_for_it() {
    let mut world = World::new();
    let budget = Budget { slice_us: 1_000_000, total_us: 9_000, ..Budget::default() };
    for is_late_at_once in [true, false] {
        let mut invocation = world.begin(&native(yields), b"", budget);
        let mut wait = |invocation: &mut InvocationHandle| {
            let polled = world.poll(invocation);
            assert!(matches!(polled, PollOutcome::Pending | PollOutcome::Preempted), "{polled:?}");
        };
        wait(&mut invocation);
        invocation.give_no_late_polls();
        if !is_late_at_once {
            wait(&mut invocation);
        }
        // SAFETY: held alone.
        unsafe { invocation.0.as_mut() }.first_poll_ticks -= clock::TickLength::measured().ticks(2_000_000_000);
        if !is_late_at_once {
            (0..LIFE_LATE_POLLS).for_each(|_| wait(&mut invocation));
        }
        assert_eq!(world.poll(&mut invocation), PollOutcome::Killed(KillCause::TotalBudget));
        world.engine.finish(&world.participant, invocation);
    }
}

#[test]
fn what_stood_still_for_longer_than_it_may_be_under_way_comes_to_its_end_if_that_is_near() {
    let mut world = World::new();
    world.put(b"one", b"first");
    let extension = native_with(reads, replies_late, size_of::<Reader>(), 16);
    let budget = Budget { total_us: 9_000, ..Budget::default() };
    let mut invocation = world.begin(&extension, b"", budget);
    while world.poll(&mut invocation) != PollOutcome::Pending {
        assert!(invocation.is_preempted());
    }
    // SAFETY: held alone.
    unsafe { invocation.0.as_mut() }.first_poll_ticks -= clock::TickLength::measured().ticks(2_000_000_000);
    assert_eq!(world.complete(&mut invocation), PollOutcome::Done);
    assert_eq!(invocation.reply(), b"first");
    world.engine.finish(&world.participant, invocation);
}

#[test]
fn waiting_costs_nothing() {
    let mut world = World::new();
    let extension = native_with(waits_at_first, waits, 64, 16);
    let mut invocation = world.begin(&extension, b"", Budget::default());
    assert_eq!(world.complete(&mut invocation), PollOutcome::Done, "20 ms of waiting within a total of 10 ms");
    assert!(invocation.cpu_ns() < 10_000_000);
    world.engine.finish(&world.participant, invocation);
}

#[test]
fn an_oversubscribed_machine_ends_no_innocent() {
    let stop = AtomicBool::new(false);
    let spinners = 3 * std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..spinners {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let ends: Vec<PollOutcome> = {
            let mut world = World::new();
            let honest = native(computes_300_us);
            (0..300).map(|_| world.run(&honest, b"", Budget::default()).0).collect()
        };
        stop.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(|end| *end == PollOutcome::Done), "{ends:?}");
    });
}

#[test]
fn the_watchdog_parks_when_idle_and_wakes_when_needed() {
    let mut world = World::new();
    let watchdog = Arc::clone(&world.shared.watchdog);
    let bad = native(endless);
    for round in 0..10 {
        let start = Instant::now();
        while !watchdog.is_parked() {
            assert!(start.elapsed() < Duration::from_secs(30), "it never parks");
            std::thread::sleep(Duration::from_millis(1));
        }
        let samples = watchdog.samples();
        std::thread::sleep(Duration::from_millis(50));
        assert!(watchdog.samples() <= samples + 1, "it does nothing while it is parked");
        assert_eq!(world.run(&bad, b"", short()).0, PollOutcome::Killed(KillCause::TotalBudget), "round {round}");
    }
    assert!(watchdog.requests() >= 10);
}

#[test]
fn the_watchdog_does_not_park_while_a_worker_that_was_stopped_may_yet_enter_tenant_code() {
    let mut world = World::new();
    let watchdog = Arc::clone(&world.shared.watchdog);
    world.engine.announce_only(|| {
        let looked = watchdog.samples();
        let start = Instant::now();
        // Far more looks than it parks after.
        while watchdog.samples() < looked + 1_000 {
            assert!(start.elapsed() < Duration::from_secs(60), "it sleeps, and nobody will wake it");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert_eq!(world.run(&native(endless), b"", short()).0, PollOutcome::Killed(KillCause::TotalBudget));
}

static CALLS_ENDED: AtomicU32 = AtomicU32::new(0);
static CODE_AFTER_RAN: AtomicBool = AtomicBool::new(false);

/// A host function that takes many slices.
unsafe extern "C" fn slow_host_call(invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: called by library code only, as a host function.
    unsafe {
        host_call::call(invocation, |_, _| {
            compute_us(3_000);
            CALLS_ENDED.fetch_add(1, Ordering::Relaxed);
            abi::STATUS_OK
        })
    }
}

unsafe extern "C" fn calls_slowly(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: a live invocation.
    unsafe { slow_host_call(invocation) };
    // Far more instructions than lie between the call's end and the landing, also where the watchdog gets no processor
    // for a while.
    compute_us(30_000_000);
    CODE_AFTER_RAN.store(true, Ordering::Relaxed);
    abi::POLL_DONE
}

#[test]
fn a_kill_waits_for_the_host_calls_end() {
    let mut world = World::new();
    let extension = native(calls_slowly);
    for round in 1..=20 {
        assert_eq!(world.run(&extension, b"", short()).0, PollOutcome::Killed(KillCause::TotalBudget));
        assert_eq!(CALLS_ENDED.load(Ordering::Relaxed), round, "the call came to its end");
        assert!(!CODE_AFTER_RAN.load(Ordering::Relaxed), "nothing after it did");
    }
}

/// A future of the test's own: polls so far, and a record that was read in the first.
type Reader = (u32, abi::RawRecord);

unsafe extern "C" fn reads(slot: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let mut record = abi::RawRecord::EMPTY;
    // SAFETY: a live invocation; the slot has the size of a `Reader`.
    unsafe {
        ((*(*invocation).host).get)(invocation, 1, 0, b"one".as_ptr(), 3, &mut record);
        slot.cast::<Reader>().write((0, record));
    }
    abi::POLL_PENDING
}

/// Yields seven times more, then replies with the record.
unsafe extern "C" fn replies_late(slot: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: the slot holds what `reads` left there; the record is kept for the invocation.
    unsafe {
        let (polls, record) = &mut *slot.cast::<Reader>();
        *polls += 1;
        if *polls < 8 {
            return abi::POLL_PENDING;
        }
        ((*(*invocation).host).reply)(invocation, record.value, record.value_len);
    }
    abi::POLL_DONE
}

#[test]
fn an_invocation_goes_from_worker_to_worker() {
    let shared = SharedWorld::new();
    let extension = native_with(reads, replies_late, size_of::<Reader>(), 16);
    let (to_thief, stolen) = std::sync::mpsc::channel::<InvocationHandle>();
    let (to_owner, done) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let thief_shared = Arc::clone(&shared);
        scope.spawn(move || {
            let mut world = World::on(thief_shared, 1);
            for mut invocation in stolen {
                world.put(b"one", b"a longer value in place of the first");
                world.participant.quiescent();
                assert_eq!(world.complete(&mut invocation), PollOutcome::Done);
                assert_eq!(invocation.reply(), b"first", "what was read before it was replaced");
                world.engine.finish(&world.participant, invocation);
                world.participant.quiescent();
                to_owner.send(()).unwrap();
            }
        });
        let mut world = World::on(Arc::clone(&shared), 0);
        for _ in 0..200 {
            world.put(b"one", b"first");
            // A slice is over by the clock on the wall: this worker may lose its processor before the read.
            let mut invocation = world.begin(&extension, b"", long());
            while world.poll(&mut invocation) != PollOutcome::Pending {
                assert!(invocation.is_preempted());
            }
            world.participant.quiescent();
            to_thief.send(invocation).unwrap();
            done.recv().unwrap();
        }
        drop(to_thief);
    });
    assert_eq!((extension.stats.read().ok, extension.stats.read().live()), (200, 0));
}

#[test]
fn a_stopping_server_and_a_deleted_tenant_end_calls_that_are_under_way() {
    for (entry, is_stopping) in [(yields as GuestFunction, false), (endless, false), (yields, true), (endless, true)] {
        // A thread has one engine.
        let case = std::thread::spawn(move || ends_what_is_under_way(entry, is_stopping));
        case.join().expect("it is ended");
    }
}

fn ends_what_is_under_way(entry: GuestFunction, is_stopping: bool) {
    let mut world = World::new();
    let hour = Budget { slice_us: 10, total_us: 3_600_000_000, ..Budget::default() };
    let extension = native(entry);
    let mut invocation = world.begin(&extension, b"", hour);
    let first = world.poll(&mut invocation);
    assert!(matches!(first, PollOutcome::Pending | PollOutcome::Preempted), "{first:?}");
    // As if that had been a tenth of a second ago.
    let passed = clock::TickLength::measured().ticks(100_000_000);
    // SAFETY: held alone.
    unsafe { invocation.0.as_mut() }.first_poll_ticks -= passed;
    let again = world.poll(&mut invocation);
    assert!(matches!(again, PollOutcome::Pending | PollOutcome::Preempted), "it has time yet: {again:?}");
    let says = if is_stopping { "the server stopped" } else { "the tenant was deleted" };
    if is_stopping {
        world.engine.stop_calls();
    } else {
        invocation.view().expect("its view").tenant.usage.set_deleted();
    }
    assert_eq!(world.poll(&mut invocation), PollOutcome::Killed(KillCause::Unloaded));
    assert!(String::from_utf8_lossy(invocation.text()).starts_with(says));
    world.engine.finish(&world.participant, invocation);
}
