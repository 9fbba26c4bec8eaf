//! What a call waited for is told apart, in both tiers: its turns after a switch, reads, its own yields, calls of other
//! extensions, runs that begin anew, and locks.

use std::sync::Barrier;
use std::time::Duration;

use super::*;
use sandstorm_accounts::{CallPauses, WaitSum};
use sandstorm_store::StripeSet;

const WAITS: &str = r#"#![no_std]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = db.table("numbers")?;
    match args {
        b"yield" => {
            yield_now().await;
            yield_now().await;
            Ok(())
        }
        b"read" => db.get(table, b"one").await.map(|_| ()),
        b"call" => db.call("waits", b"yield").await.map(|_| ()),
        b"anew" => {
            let tx = db.transaction();
            tx.get(table, b"one").await?;
            yield_now().await;
            tx.put(table, b"two", b"x")
        }
        b"write" => db.put(table, b"two", b"x").await.map(|_| ()),
        _ => loop {
            core::hint::black_box(());
        },
    }
}
"#;

/// The time between two polls, at least.
const NAP: Duration = Duration::from_millis(5);

/// A world in which the extension is loaded under the name by which it calls itself.
fn world_with(library: &Arc<ExtensionLibrary>) -> (World, Arc<LoadedExtension>) {
    let mut world = World::new();
    let waits = Arc::new(LoadedExtension::new("waits", 1, Arc::clone(library), BudgetOverride::default()));
    let mut view = (*world.view).clone();
    view.extensions.insert("waits".into(), Arc::clone(&waits));
    world.view = Arc::new(view);
    (world, waits)
}

/// The source in both tiers.
fn libraries() -> [Arc<ExtensionLibrary>; 2] {
    let native = ExtensionLibrary::load(&compile("waits", WAITS), builder::api_fingerprint()).unwrap();
    [native, Arc::clone(&sandboxed("waits", WAITS).library)]
}

/// Polls so often, or until the end, with a nap before each poll but the first; `between` comes after each nap.
fn trace_of(
    world: &mut World,
    extension: &Arc<LoadedExtension>,
    (args, budget, polls): (&[u8], Budget, usize),
    mut between: impl FnMut(&World, usize),
) -> (PollOutcome, InvocationTrace) {
    let mut invocation = world.begin(extension, args, budget);
    let mut polled = world.poll(&mut invocation);
    for poll in 1..polls {
        if !matches!(polled, PollOutcome::Pending | PollOutcome::Preempted) {
            break;
        }
        std::thread::sleep(NAP);
        between(world, poll);
        world.engine.turn();
        polled = world.poll(&mut invocation);
    }
    let trace = invocation.trace();
    world.engine.finish(&world.participant, invocation);
    (polled, trace)
}

/// Whether it was so often, and took about as many naps. (The counter's rate is measured beside whatever else runs.)
fn is_about(sum: WaitSum, count: u32) -> bool {
    sum.count == count && sum.ns >= u64::from(count) * NAP.as_nanos() as u64 / 10
}

const NONE: WaitSum = WaitSum { count: 0, ns: 0 };

#[test]
fn reads_yields_calls_of_others_and_new_beginnings_are_told_apart() {
    for library in libraries() {
        let (mut world, waits) = world_with(&library);
        world.put(b"one", b"1");
        let done = |world: &mut World, args: &[u8]| {
            let (end, trace) = trace_of(world, &waits, (args, long(), 20), |world, poll| {
                if args == b"anew" && poll == 2 {
                    world.put(b"one", b"2");
                }
            });
            assert_eq!(end, PollOutcome::Done, "{}", String::from_utf8_lossy(args));
            trace
        };
        let trace = done(&mut world, b"yield");
        // Where the machine does much else a call may be switched out as well.
        let CallPauses { yields, switched, .. } = trace.pauses;
        let expected = CallPauses { yields, switched, ..CallPauses::default() };
        assert!(is_about(yields, 2) && trace.pauses == expected, "{trace:?}");
        assert!(trace.since_begun_ns >= trace.since_first_poll_ns && trace.since_first_poll_ns >= yields.ns);
        let CallPauses { reads, .. } = done(&mut world, b"read").pauses;
        assert!(is_about(reads, 1), "{reads:?}");
        let trace = done(&mut world, b"call");
        let CallPauses { yields, calls, switched, .. } = trace.pauses;
        assert!(is_about(yields, 2) && is_about(calls, 2), "its callee's are its own: {trace:?}");
        assert_eq!(trace.pauses, CallPauses { yields, calls, switched, ..CallPauses::default() });
        let trace = done(&mut world, b"anew");
        let CallPauses { reads, yields, retries, vain_ns, .. } = trace.pauses;
        assert!(is_about(reads, 1) && is_about(yields, 2) && is_about(retries, 1), "{trace:?}");
        assert!(vain_ns > 0 && vain_ns <= trace.since_begun_ns, "{trace:?}");
        assert_eq!(done(&mut world, b"write").pauses.locks, NONE, "no other commit was in the way");
        let trace = done(&mut world, b"yield");
        assert_eq!((trace.pauses.retries, trace.pauses.vain_ns), (NONE, 0), "nothing is left of the call before");
    }
}

#[test]
fn a_call_that_computes_past_its_slice_tells_how_long_it_waited_for_its_next_turn() {
    for library in libraries() {
        let (mut world, waits) = world_with(&library);
        let budget = Budget { slice_us: 1_000, ..long() };
        let (end, trace) = trace_of(&mut world, &waits, (b"spin", budget, 3), |_, _| {});
        let CallPauses { switched, .. } = trace.pauses;
        assert_eq!((end, trace.switches), (PollOutcome::Preempted, 3));
        assert!(is_about(switched, 2), "the third has not ended: {trace:?}");
        assert_eq!(trace.pauses, CallPauses { switched, ..CallPauses::default() });
    }
}

#[test]
fn a_write_that_waits_for_a_lock_tells_so() {
    for library in libraries() {
        let (mut world, waits) = world_with(&library);
        // This thread may come so late that the lock is free again: then they meet once more.
        let told = (0..1_000).find_map(|_| {
            let (shared, taken) = (Arc::clone(&world.shared), Barrier::new(2));
            let trace = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (other, view) = (shared.epochs.register(), shared.view("ada"));
                    let table = &view.table_by_name("numbers").unwrap().table;
                    let _locked = table.exclusive(&other, StripeSet::ALL);
                    taken.wait();
                    std::thread::sleep(Duration::from_millis(2));
                });
                taken.wait();
                let mut invocation = world.begin(&waits, b"write", long());
                while world.engine.poll(&world.participant, &mut invocation, NOW_MS, false) == PollOutcome::Pending {}
                let trace = invocation.trace();
                world.engine.finish(&world.participant, invocation);
                trace
            });
            Some(trace.pauses).filter(|pauses| pauses.locks.count > 0)
        });
        let CallPauses { locks, .. } = told.expect("it has waited");
        assert!(locks.ns > 0, "{locks:?}");
        assert_eq!(told, Some(CallPauses { locks, ..CallPauses::default() }), "and for nothing else");
    }
}
