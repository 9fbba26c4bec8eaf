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

const GREEDY: &str = r#"
#![no_std]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let deep = core::hint::black_box([args.len() as u8; 200_000]);
    let bytes = vec![deep[199_999]; 2 << 20];
    yield_now().await;
    db.reply(&bytes[..4])
}
"#;

#[test]
fn memories_that_have_grown_go_back_to_the_kernel_however_many_end_at_once() {
    let mut world = World::new();
    let greedy = sandboxed("greedy", GREEDY);
    for _ in 0..3 {
        let mut running: Vec<_> = (0..40).map(|_| world.begin(&greedy, b"seven b", long())).collect();
        for invocation in &mut running {
            assert_eq!(world.poll(invocation), PollOutcome::Pending);
        }
        for mut invocation in running {
            assert_eq!(world.complete(&mut invocation), PollOutcome::Done);
            assert_eq!(invocation.reply(), [7; 4]);
            world.engine.finish(&world.participant, invocation);
        }
        while world.engine.tidy() {}
    }
}

const LARGE: &str = r#"
#![no_std]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, keys) = args.split_first_chunk::<8>().ok_or(Error::new("a table"))?;
    let table = TableId(u64::from_le_bytes(*table));
    let keys: Vec<&[u8]> = keys.split(|byte| *byte == b' ').collect();
    let mut sum = 0_u64;
    for record in db.get_many(table, &keys).await?.into_iter().flatten() {
        let value = record.value();
        sum += value.len() as u64 + u64::from(value[0]) + u64::from(value[value.len() / 2]) + u64::from(value[value.len() - 1]);
    }
    db.reply(&sum.to_le_bytes())
}
"#;

#[test]
fn long_records_are_copied_whole_and_others_have_their_turn_meanwhile() {
    let mut world = World::new();
    let large = sandboxed("large", LARGE);
    let (mut keys, mut expected) = (Vec::new(), 0_u64);
    for (number, len) in [3_usize, 70_000, 1 << 20, 65_536, 5, 4 << 20, 200_001].into_iter().enumerate() {
        let key = format!("k{number}");
        world.put(key.as_bytes(), &vec![number as u8 + 1; len]);
        expected += len as u64 + 3 * (number as u64 + 1);
        keys.push(key);
    }
    let args = table_args(&world, keys.join(" ").as_bytes());
    let (mut switches, start) = (0, std::time::Instant::now());
    while switches == 0 {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "never switched out");
        let mut invocation = world.begin(&large, &args, Budget { slice_us: 1, ..long() });
        loop {
            match world.poll(&mut invocation) {
                PollOutcome::Preempted => switches += 1,
                PollOutcome::Pending => {}
                end => break assert_eq!(end, PollOutcome::Done, "{:?}", String::from_utf8_lossy(invocation.text())),
            }
        }
        assert_eq!(invocation.reply(), expected.to_le_bytes());
        world.engine.finish(&world.participant, invocation);
    }
}

const STATICS: &str = r#"
#![no_std]
use core::sync::atomic::{AtomicU32, AtomicU8, Ordering};
use sandstorm_api::prelude::*;

static ZERO: [AtomicU8; 1000] = [const { AtomicU8::new(0) }; 1000];
static SEVEN: AtomicU32 = AtomicU32::new(7);

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let zero = ZERO.iter().fold(0, |sum, byte| sum + u32::from(byte.fetch_add(1, Ordering::Relaxed)));
    let seven = SEVEN.fetch_add(1, Ordering::Relaxed);
    if args == b"panic" {
        panic!("{zero} {seven}");
    }
    db.reply(&[zero as u8, seven as u8])
}
"#;

#[test]
fn variables_of_a_module_are_as_at_the_start_in_every_call() {
    let mut world = World::new();
    let statics = sandboxed("statics", STATICS);
    for _ in 0..3 {
        assert_eq!(world.run(&statics, b"", long()), (PollOutcome::Done, vec![0, 7], String::new()));
        let (end, _, text) = world.run(&statics, b"panic", long());
        assert_eq!(end, PollOutcome::Killed(KillCause::Panic));
        assert!(text.starts_with("0 7 at"), "{text}");
    }
}
