//! Switched-out code continues as if nothing had happened: the same results however often it is interrupted, on the
//! same thread and on another. It can be ended, or given up, at any such moment.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use sandstorm_api::abi;

use super::isolation::{REGISTERS_BYTES, deep, spins};
use super::*;
use crate::limits::SUSPENDED_STACK_BYTES;
use sandstorm_catalog::QuotaChanges;

/// Computes what `args` names and replies with a digest of it.
const PROGRAMS: &str = r#"#![no_std]
#![forbid(unsafe_code)]
use core::hint::black_box;
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = db.table("numbers")?;
    let digest = match args {
        b"sort" => sort(),
        b"tree" => tree(),
        b"recursion" => fibonacci(27),
        b"floats" => floats(),
        b"wide" => wide(),
        b"copies" => copies(),
        b"text" => text(),
        b"blocks" => blocks(),
        b"reads" => reads(db, table).await?,
        b"writes" => writes(db, table).await?,
        b"scans" => scans(db, table)?,
        _ => return Err(Error::new("no such program")),
    };
    db.reply(&digest.to_le_bytes())
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 17
}

fn fold(sum: u64, value: u64) -> u64 {
    sum.rotate_left(7) ^ value.wrapping_mul(0x9e3779b97f4a7c15)
}

fn sort() -> u64 {
    let mut state = 1;
    let mut numbers: Vec<u64> = (0..60_000).map(|_| next(&mut state)).collect();
    numbers.sort();
    let stable = numbers.iter().fold(0, |sum, number| fold(sum, *number));
    numbers.sort_unstable_by_key(|number| number.reverse_bits());
    numbers.iter().fold(stable, |sum, number| fold(sum, *number))
}

fn tree() -> u64 {
    let (mut state, mut tree) = (2, BTreeMap::new());
    for step in 0..20_000u64 {
        tree.insert(next(&mut state) % 5_000, step);
        if step % 3 == 0 {
            tree.remove(&(next(&mut state) % 5_000));
        }
    }
    tree.iter().fold(0, |sum, (key, value)| fold(sum, key ^ value))
}

fn fibonacci(n: u64) -> u64 {
    if n < 2 { n } else { black_box(fibonacci(n - 1)) + black_box(fibonacci(n - 2)) }
}

fn floats() -> u64 {
    let (mut sum, mut product, mut lanes) = (0.0f64, 1.0f64, [0.5f32; 16]);
    for step in 1..200_000u32 {
        sum += 1.0 / f64::from(step);
        product = product * 1.000001 + sum / 3.0;
        for (lane, at) in lanes.iter_mut().zip(1u8..) {
            *lane = *lane * 0.999 + f32::from(at) / step as f32;
        }
    }
    let lanes = lanes.iter().fold(0, |sum, lane| fold(sum, u64::from(lane.to_bits())));
    fold(fold(lanes, sum.to_bits()), product.to_bits())
}

fn wide() -> u64 {
    let (mut state, mut sum) = (3, 1u128);
    for _ in 0..60_000 {
        let (a, b) = (u128::from(next(&mut state)) << 64 | sum, u128::from(next(&mut state)) << 20 | 1);
        sum = (black_box(a) / black_box(b)).wrapping_mul(31) ^ (a % b);
    }
    fold(sum as u64, (sum >> 64) as u64)
}

fn copies() -> u64 {
    let mut from: Vec<u8> = (0..300_000u32).map(|at| (at * 7) as u8).collect();
    let mut to = vec![0u8; from.len()];
    for round in 0..40 {
        to.copy_from_slice(black_box(&from));
        to.rotate_left(round + 1);
        from.copy_within(1000..200_000, 3);
        from[round] ^= to[round * 5_000];
    }
    to.iter().fold(0, |sum, byte| fold(sum, u64::from(*byte)))
}

fn text() -> u64 {
    let mut sum = 0;
    for number in 0..4_000u64 {
        let line = format!("{number:>8} {:x} {:?}", number * number, [number as f64 / 7.0, 1e9 / (number + 1) as f64]);
        let parsed: u64 = line.trim_start().split(' ').next().unwrap_or("").parse().unwrap_or(0);
        sum = line.bytes().fold(fold(sum, parsed), |sum, byte| fold(sum, u64::from(byte)));
    }
    sum
}

fn blocks() -> u64 {
    let (mut state, mut kept, mut sum) = (4, Vec::new(), 0);
    for step in 0..30_000u64 {
        let len = next(&mut state) as usize % 300;
        kept.push(vec![step as u8; len]);
        if kept.len() > 200 {
            let gone: Vec<u8> = kept.swap_remove(next(&mut state) as usize % 200);
            sum = gone.iter().fold(fold(sum, gone.len() as u64), |sum, byte| sum + u64::from(*byte));
        }
    }
    sum
}

async fn reads(db: Db<'_>, table: TableId) -> Result<u64, Error> {
    let mut sum = 0;
    for round in 0..8_000u32 {
        if let Some(record) = db.get(table, &(round % 70).to_le_bytes()).await? {
            sum = record.value().iter().fold(sum, |sum, byte| fold(sum, u64::from(*byte)));
        }
    }
    Ok(sum)
}

async fn writes(db: Db<'_>, table: TableId) -> Result<u64, Error> {
    db.put(table, b"sum", b"0").await?;
    for round in 0..4_000i64 {
        db.increment(table, b"sum", round).await?;
        db.put(table, &[round as u8, 1, 2], &[round as u8; 60]).await?;
    }
    Ok(db.increment(table, b"sum", 0).await? as u64)
}

fn scans(db: Db<'_>, table: TableId) -> Result<u64, Error> {
    let mut sum = 0u64;
    for _ in 0..100 {
        let mut cursor = Some(Cursor::default());
        while let Some(at) = cursor {
            let page = db.scan(table, at, 16)?;
            // The order is the server's, and writers come and go.
            for record in page.records.iter().filter(|record| record.key().len() == 4) {
                sum = sum.wrapping_add(record.value().len() as u64 * 31 + record.key()[0] as u64);
            }
            cursor = page.next;
        }
    }
    Ok(sum)
}
"#;

const NAMES: [&str; 11] =
    ["sort", "tree", "recursion", "floats", "wide", "copies", "text", "blocks", "reads", "writes", "scans"];

/// A budget that switches out as often as the watchdog can, and ends no invocation.
fn shredding() -> Budget {
    Budget { slice_us: 1, total_us: 60_000_000, memory_bytes: 16 << 20, ..Budget::default() }
}

fn fill(world: &World) {
    for number in 0..64_u32 {
        world.put(&number.to_le_bytes(), &[number as u8; 50]);
    }
}

fn programs() -> Arc<LoadedExtension> {
    static PROGRAM: OnceLock<Arc<ExtensionLibrary>> = OnceLock::new();
    let library = PROGRAM.get_or_init(|| Arc::clone(&compiled("programs", PROGRAMS).library));
    Arc::new(LoadedExtension::new("programs", 1, Arc::clone(library), BudgetOverride::default()))
}

/// The reply of each program when no switch interrupts it.
fn undisturbed(world: &mut World, extension: &Arc<LoadedExtension>) -> Vec<Vec<u8>> {
    let run = |name: &&str| {
        let budget = Budget { memory_bytes: 16 << 20, ..long() };
        let (end, reply, text) = world.run(extension, name.as_bytes(), budget);
        assert_eq!(end, PollOutcome::Done, "{name}: {text}");
        reply
    };
    NAMES.iter().map(run).collect()
}

#[test]
fn programs_that_are_switched_out_all_the_time_compute_the_same() {
    let mut world = World::new();
    fill(&world);
    let extension = programs();
    let expected = undisturbed(&mut world, &extension);
    let (start, mut all_switches) = (Instant::now(), 0);
    for name in NAMES.iter().cycle() {
        if all_switches > 100 && name == &NAMES[0] {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "only {all_switches} switches");
        let mut switches = 0;
        let mut invocation = world.begin(&extension, name.as_bytes(), shredding());
        loop {
            match world.poll(&mut invocation) {
                PollOutcome::Preempted => switches += 1,
                PollOutcome::Pending => {}
                end => break assert_eq!(end, PollOutcome::Done, "{name}"),
            }
        }
        let at = NAMES.iter().position(|other| other == name).unwrap();
        assert_eq!(invocation.reply(), expected[at], "{name} after {switches} switches");
        all_switches += switches;
        world.engine.finish(&world.participant, invocation);
    }
}

#[test]
fn programs_that_take_turns_on_one_thread_do_not_disturb_each_other() {
    let mut world = World::new();
    fill(&world);
    let extension = programs();
    let expected = undisturbed(&mut world, &extension);
    let views = ["ada", "bob"].map(|tenant| world.shared.view(tenant));
    let (start, mut switches) = (Instant::now(), 0);
    while switches <= 100 {
        assert!(start.elapsed() < Duration::from_secs(60), "only {switches} switches");
        // The other tenant's table is empty: it runs what reads none.
        let mut running: Vec<(usize, InvocationHandle)> = Vec::new();
        for at in (0..NAMES.len()).filter(|at| NAMES[*at] != "writes") {
            for view in views.iter().take(if at < 8 { 2 } else { 1 }) {
                world.view = Arc::clone(view);
                running.push((at, world.begin(&extension, NAMES[at].as_bytes(), shredding())));
            }
        }
        while !running.is_empty() {
            let mut still = Vec::new();
            for (at, mut invocation) in running.drain(..) {
                match world.poll(&mut invocation) {
                    PollOutcome::Pending | PollOutcome::Preempted => {
                        switches += 1;
                        still.push((at, invocation));
                    }
                    end => {
                        assert_eq!(
                            (end, invocation.reply()),
                            (PollOutcome::Done, expected[at].as_slice()),
                            "{}",
                            NAMES[at]
                        );
                        world.engine.finish(&world.participant, invocation);
                    }
                }
            }
            running = still;
        }
    }
}

/// An invocation on its way between threads, and how many have polled it.
type Travelling = (InvocationHandle, u32);

/// Polls each incoming invocation once and passes it on; gives back the ended ones.
fn pass_on(
    world: &mut World,
    from: &mpsc::Receiver<Travelling>,
    to: &mpsc::Sender<Travelling>,
    end: &mpsc::Sender<(PollOutcome, Vec<u8>, u32)>,
) {
    for (mut invocation, hops) in from {
        match world.poll(&mut invocation) {
            PollOutcome::Pending | PollOutcome::Preempted => {
                world.participant.quiescent();
                to.send((invocation, hops + 1)).unwrap();
            }
            polled => {
                let reply = invocation.take_reply();
                world.engine.finish(&world.participant, invocation);
                // Judged on a thread that no other thread waits for.
                return end.send((polled, reply, hops)).unwrap();
            }
        }
    }
}

#[test]
fn programs_that_move_between_threads_at_each_switch_compute_the_same() {
    let shared = SharedWorld::new();
    let extension = programs();
    let expected = {
        let mut world = World::on(Arc::clone(&shared), 2);
        fill(&world);
        undisturbed(&mut world, &extension)
    };
    // A program that is not watched for its few milliseconds is not switched out: it is run again then.
    let (start, mut moved) = (Instant::now(), [false; NAMES.len()]);
    while let Some(at) = moved.iter().position(|moved| !moved) {
        let (name, reply) = (NAMES[at], &expected[at]);
        assert!(start.elapsed() < Duration::from_secs(60), "{name} never moves");
        let ((to_a, for_a), (to_b, for_b)) = (mpsc::channel::<Travelling>(), mpsc::channel::<Travelling>());
        let (end, ended) = mpsc::channel();
        std::thread::scope(|scope| {
            let (a_shared, b_shared) = (Arc::clone(&shared), Arc::clone(&shared));
            let (a_end, extension) = (end.clone(), Arc::clone(&extension));
            let back = to_a.clone();
            scope.spawn(move || pass_on(&mut World::on(b_shared, 1), &for_b, &back, &end));
            scope.spawn(move || {
                let mut world = World::on(a_shared, 0);
                let invocation = world.begin(&extension, name.as_bytes(), shredding());
                to_a.send((invocation, 0)).unwrap();
                // From here on the other thread alone sends to this one: its end is this one's.
                drop(to_a);
                pass_on(&mut world, &for_a, &to_b, &a_end);
            });
            let (polled, digest, hops) = ended.recv().unwrap();
            assert_eq!((polled, &digest), (PollOutcome::Done, reply), "{name} after {hops} moves");
            moved[at] = hops > 0;
        });
    }
    assert_eq!(extension.stats.read().live(), 0);
}

#[test]
fn every_register_and_the_red_zone_survive() {
    let mut world = World::new();
    let extension = native_with(spins, spins, REGISTERS_BYTES, 64);
    let mut switches = 0;
    while switches < 50 {
        let mut invocation = world.begin(&extension, b"", shredding());
        loop {
            match world.poll(&mut invocation) {
                PollOutcome::Preempted => switches += 1,
                end => break assert_eq!(end, PollOutcome::Done),
            }
        }
        assert_eq!(invocation.reply(), b"", "registers that changed, after {switches} switches");
        world.engine.finish(&world.participant, invocation);
    }
}

/// Switched out at least so often, then as `end` says.
pub(super) fn after_switches(world: &mut World, extension: &Arc<LoadedExtension>, switches: u32) -> InvocationHandle {
    let mut invocation = world.begin(extension, b"", Budget { slice_us: 1, ..long() });
    for _ in 0..switches {
        assert_eq!(world.poll(&mut invocation), PollOutcome::Preempted);
    }
    invocation
}

pub(super) unsafe extern "C" fn endless(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    loop {
        std::hint::spin_loop();
    }
}

/// Computes a little, then does a forbidden thing.
unsafe extern "C" fn faults_late(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    for _ in 0..300_000 {
        std::hint::spin_loop();
    }
    // SAFETY: not mapped: faults.
    unsafe { u32::from(std::hint::black_box(16 as *const u8).read_volatile()) }
}

#[allow(unconditional_recursion)]
fn recurse(depth: u64) -> u64 {
    let here = std::hint::black_box([depth; 16]);
    std::hint::black_box(recurse(depth + 1)) + here[0]
}

unsafe extern "C" fn overflows_late(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    for _ in 0..300_000 {
        std::hint::spin_loop();
    }
    recurse(0) as u32
}

unsafe extern "C" fn panics_late(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    for _ in 0..300_000 {
        std::hint::spin_loop();
    }
    // SAFETY: a live invocation.
    unsafe { ((*(*invocation).host).abort)(invocation, abi::ABORT_PANIC, b"late".as_ptr(), 4) }
}

#[test]
fn what_was_resumed_elsewhere_is_ended_there() {
    let shared = SharedWorld::new();
    let mut here = World::on(Arc::clone(&shared), 0);
    let kinds = [
        (faults_late as stack_switch::GuestFunction, KillCause::MemoryFault),
        (overflows_late, KillCause::StackOverflow),
        (panics_late, KillCause::Panic),
    ];
    for _ in 0..10 {
        for (entry, cause) in kinds {
            let extension = native(entry);
            let (invocation, ended_here) = switched_out(&mut here, &extension, cause);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut there = World::on(Arc::clone(&shared), 1);
                    let mut invocation = invocation;
                    assert_eq!(there.complete(&mut invocation), PollOutcome::Killed(cause));
                    there.engine.finish(&there.participant, invocation);
                });
            });
            assert_eq!(extension.stats.read().killed_total(), ended_here + 1);
        }
    }
}

/// Switches an invocation out before it came to its end, if need be after many attempts; also returns how many came to
/// it. The watchdog may get no processor while it computes.
fn switched_out(world: &mut World, extension: &Arc<LoadedExtension>, cause: KillCause) -> (InvocationHandle, u64) {
    let (start, mut ended) = (Instant::now(), 0);
    loop {
        let mut invocation = world.begin(extension, b"", Budget { slice_us: 1, ..long() });
        match world.poll(&mut invocation) {
            PollOutcome::Preempted => return (invocation, ended),
            end => assert_eq!(end, PollOutcome::Killed(cause)),
        }
        world.engine.finish(&world.participant, invocation);
        ended += 1;
        assert!(start.elapsed() < Duration::from_secs(60), "none of {ended} was switched out");
    }
}

#[test]
fn what_is_given_up_while_it_is_switched_out_leaves_nothing() {
    let mut world = World::new();
    let extension = native(endless);
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let mut before = 0;
    for round in 0..300 {
        let invocation = after_switches(&mut world, &extension, 1 + round % 3);
        world.engine.finish(&world.participant, invocation);
        if round == 20 {
            before = mappings();
        }
    }
    // Other tests of this process map and unmap meanwhile.
    assert!(mappings() < before + 200, "{before} mappings -> {}", mappings());
    let counts = extension.stats.read();
    assert_eq!((counts.killed_total(), counts.live()), (300, 0));
    // The same when its engine goes first, as when the server stops.
    let invocation = after_switches(&mut world, &extension, 2);
    drop(world);
    drop(invocation);
}

#[test]
fn the_stack_of_what_is_switched_out_is_charged_and_no_stack_is_kept_past_the_quota() {
    let mut world = World::new();
    let usage = Arc::clone(&world.view.tenant.usage);
    let extension = native(endless);
    let stack = SUSPENDED_STACK_BYTES as u64;
    let mut one = after_switches(&mut world, &extension, 1);
    let two = after_switches(&mut world, &extension, 3);
    assert_eq!(usage.invocation_memory_bytes(), 2 * stack, "once for each, however often");
    world.engine.finish(&world.participant, two);
    assert_eq!(usage.invocation_memory_bytes(), stack, "given up");
    assert_eq!(world.poll(&mut one), PollOutcome::Preempted);
    assert_eq!(usage.invocation_memory_bytes(), stack);
    world.engine.finish(&world.participant, one);
    let (end, reply, _) = world.run(&programs(), b"recursion", shredding());
    assert_eq!((end, reply.len(), usage.invocation_memory_bytes()), (PollOutcome::Done, 8, 0), "over");
    // With memory for sixteen stacks, one more is not kept: its invocation ends, and the others go on.
    let quotas = QuotaChanges { invocation_memory_bytes: Some(16 * stack), ..Default::default() };
    world.shared.directory.set_quotas("ada", &quotas).unwrap();
    world.view = world.shared.view("ada");
    let mut kept: Vec<InvocationHandle> = (0..16).map(|_| after_switches(&mut world, &extension, 1)).collect();
    let mut more = world.begin(&extension, b"", Budget { slice_us: 1, ..long() });
    assert_eq!(world.poll(&mut more), PollOutcome::Killed(KillCause::OutOfMemory));
    let text = String::from_utf8_lossy(more.text()).into_owned();
    assert!(text.contains("keep its stack") && text.contains("quota invocation_memory_bytes"), "{text}");
    world.engine.finish(&world.participant, more);
    assert!(kept.iter_mut().all(|one| world.poll(one) == PollOutcome::Preempted));
    kept.into_iter().for_each(|one| world.engine.finish(&world.participant, one));
    assert_eq!(usage.invocation_memory_bytes(), 0);
}

#[test]
fn without_another_stack_it_goes_on_until_its_total() {
    let mut world = World::new();
    world.engine.stop_making_stacks();
    let budget = Budget { slice_us: 10, total_us: 2_000, ..Budget::default() };
    let mut invocation = world.begin(&native(endless), b"", budget);
    assert_eq!(world.poll(&mut invocation), PollOutcome::Killed(KillCause::TotalBudget), "in one poll");
    assert!(invocation.cpu_ns() >= 2_000_000);
    world.engine.finish(&world.participant, invocation);
    fill(&world);
    let extension = programs();
    let expected = undisturbed(&mut world, &extension);
    for (name, reply) in NAMES.iter().zip(&expected) {
        let (end, digest, _) = world.run(&extension, name.as_bytes(), shredding());
        assert_eq!((end, &digest), (PollOutcome::Done, reply), "{name}");
    }
}

#[test]
fn where_the_stack_has_no_room_for_a_switch_the_total_ends_it() {
    let mut world = World::new();
    let budget = Budget { slice_us: 20, total_us: 2_000, ..Budget::default() };
    let mut ended = 0;
    // If the machine stood still on the way down, there was room for a switch: another goes down then.
    for _ in 0..1_000 {
        let mut invocation = world.begin(&native(deep), b"", budget);
        match world.poll(&mut invocation) {
            PollOutcome::Preempted => {}
            end => {
                assert_eq!(end, PollOutcome::Killed(KillCause::TotalBudget), "in one poll");
                assert!(invocation.cpu_ns() >= 1_000_000, "{} ns", invocation.cpu_ns());
                ended += 1;
            }
        }
        world.engine.finish(&world.participant, invocation);
        if ended == 5 {
            return;
        }
    }
    panic!("switched out where there is no room for it: {ended} of 1,000 ended");
}

#[test]
fn many_that_are_switched_out_at_once_go_on_in_any_order() {
    let mut world = World::new();
    let extension = native_with(spins, spins, REGISTERS_BYTES, 64);
    let mut waiting: Vec<InvocationHandle> = (0..100).map(|_| world.begin(&extension, b"", shredding())).collect();
    let mut turn = 0;
    while !waiting.is_empty() {
        turn = (turn * 31 + 17) % 1009;
        let mut invocation = waiting.swap_remove(turn % waiting.len());
        match world.poll(&mut invocation) {
            PollOutcome::Preempted => waiting.push(invocation),
            end => {
                assert_eq!((end, invocation.reply()), (PollOutcome::Done, b"".as_slice()));
                world.engine.finish(&world.participant, invocation);
            }
        }
    }
}
