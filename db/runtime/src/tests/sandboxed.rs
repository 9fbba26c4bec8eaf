//! Sandboxed extensions: the same sources as native ones, with the same answers and ends.

use super::*;

const GET: &str = include_str!("../../../../ext/get/src/lib.rs");
const BAD: &str = include_str!("../../../../ext/bad/src/lib.rs");

fn table_args(world: &World, rest: &[u8]) -> Vec<u8> {
    [&world.table().id.to_le_bytes(), rest].concat()
}

#[test]
fn a_sandboxed_extension_yields_and_answers() {
    let mut world = World::new();
    world.put(b"one", b"first");
    let get = sandboxed("get", GET);
    let args = table_args(&world, b"one");
    for _ in 0..3 {
        let mut invocation = world.begin(&get, &args, long());
        assert_eq!(world.poll(&mut invocation), PollOutcome::Pending, "the bucket is prefetched");
        assert_eq!(world.poll(&mut invocation), PollOutcome::Done);
        assert_eq!(invocation.reply(), b"first");
        world.engine.finish(&world.participant, invocation);
    }
    let absent = table_args(&world, b"two");
    let (end, _, text) = world.run(&get, &absent, long());
    assert_eq!((end, text.as_str()), (PollOutcome::Failed { code: 1 }, "no record under the key"));
}

#[test]
fn a_sandboxed_bad_extension_ends_in_each_way() {
    let mut world = World::new();
    world.put(b"one", b"first");
    let (get, bad) = (sandboxed("get", GET), sandboxed("bad", BAD));
    let good_args = table_args(&world, b"one");
    let kinds = [
        ("loop", KillCause::TotalBudget),
        ("loop-scans", KillCause::TotalBudget),
        ("memcpy", KillCause::TotalBudget),
        ("slow-drop", KillCause::TotalBudget),
        ("yields", KillCause::TotalBudget),
        ("loop-gets", KillCause::TotalBudget),
        ("recursion", KillCause::StackOverflow),
        ("frame", KillCause::StackOverflow),
        ("allocation", KillCause::OutOfMemory),
        ("one-allocation", KillCause::OutOfMemory),
        ("panic", KillCause::Panic),
        ("division", KillCause::Panic),
        ("bounds", KillCause::Panic),
        ("unwrap", KillCause::Panic),
        ("overflow", KillCause::Panic),
    ];
    for _ in 0..5 {
        for (kind, cause) in kinds {
            let budget = match cause {
                KillCause::TotalBudget => short(),
                _ => long(),
            };
            let args = table_args(&world, kind.as_bytes());
            let (end, reply, text) = world.run(&bad, &args, budget);
            assert_eq!((end, reply.as_slice()), (PollOutcome::Killed(cause), b"".as_slice()), "{kind}: {text}");
            if kind == "panic" {
                assert!(text.starts_with("panicked as asked at src/lib.rs:"), "{text}");
            }
            let (end, reply, _) = world.run(&get, &good_args, long());
            assert_eq!((end, reply.as_slice()), (PollOutcome::Done, b"first".as_slice()), "after {kind}");
        }
    }
    let args = table_args(&world, b"reply");
    assert_eq!(world.run(&bad, &args, Budget { reply_bytes: 1 << 16, ..long() }).0, PollOutcome::Failed { code: 5 });
}

#[test]
fn statics_are_as_at_first_in_each_call() {
    const COUNTS: &str = "#![no_std]
        use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
        use sandstorm_api::prelude::*;
        static ZERO: AtomicU32 = AtomicU32::new(0);
        static SEVEN: AtomicU32 = AtomicU32::new(7);
        pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
            db.reply(&[ZERO.fetch_add(1, Relaxed) as u8, SEVEN.fetch_add(1, Relaxed) as u8])
        }";
    let (mut world, counts) = (World::new(), sandboxed("counts", COUNTS));
    for call in 0..3 {
        let (end, reply, text) = world.run(&counts, b"", long());
        assert_eq!((end, reply.as_slice()), (PollOutcome::Done, [0, 7].as_slice()), "call {call}: {text}");
    }
}
