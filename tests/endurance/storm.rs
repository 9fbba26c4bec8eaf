//! Promise: code is preempted as often as possible, all bad kinds and good code together, on two workers of which one
//! steals from the other. Every end is the right one, every good answer is right, and nothing is left behind.
//!
//! `STORM_SECONDS=n` sets its duration.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::alone::ran_alone;
use crate::common::{BAD_KINDS, await_nothing_charged, data_plane, eventually, get_args, load_with, network, tenant};
use sandstorm_client::raw::{Connection, Message};
use sandstorm_client::{Config, PutOptions, Route};
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{KillCause, Operation, RpcStatus};

/// Duration in seconds, in two halves, unless the environment says otherwise.
const SECONDS: u64 = 6;
/// The smallest slice that a tenant can ask for, microseconds.
const SLICE_US: u64 = 10;
/// Calls that each sender has in flight.
const AT_ONCE: usize = 12;
/// Calls after which the second worker is left idle until it has stolen: a worker that has enough to do never steals.
const CALLS_BETWEEN_STEALS: u64 = 200;
/// Deadlines of requests, for machines under load.
const PATIENCE: Duration = Duration::from_secs(120);
/// Records that good calls read, and reads of a long one: some hundred microseconds, so it is preempted again and
/// again.
const RECORDS: u32 = 100;
const LONG_READS: u32 = 5_000;
/// Senders of calls.
const SENDERS: usize = 4;
/// Mappings that a switched-out call has at most: seven of a sandboxed memory, two of a stack and its guard, one of an
/// arena, and two where neighbours no longer merge.
const MAPS_OF_A_CALL: usize = 12;
/// Most growth in mappings and kilobytes from the first half to the second. The pools keep as much as was needed at
/// once, and all that is in flight may be switched out at once for the first time in the second half. One mapping that
/// each of the thousands of ended calls left would be far more.
const MAPS_GROWTH: usize = SENDERS * AT_ONCE * MAPS_OF_A_CALL;
const RESIDENT_GROWTH_KIB: usize = 64 << 10;

fn counter(plane: &DataPlane, name: &str) -> u64 {
    plane.metrics.read().iter().find(|reading| reading.metric.name == name).expect("a metric").values.iter().sum()
}

/// Maps, open files and resident kilobytes of the process.
fn resources() -> (usize, usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps").lines().count();
    let files = std::fs::read_dir("/proc/self/fd").expect("open files").count();
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let resident = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages");
    (maps, files, resident * 4)
}

fn connect(plane: &DataPlane, worker: u32, tenant: u32) -> Connection {
    let config = Config { route: Route::Worker(worker), ..network::config(plane, tenant) };
    Connection::connect(&config.deadline(PATIENCE)).expect("a connection")
}

/// Keeps messages of one operation in flight until the test stops, while another may go out, and checks every answer.
/// Returns their number.
fn keep_asking(
    mut connection: Connection,
    stop: &AtomicBool,
    mut may_send: impl FnMut(u64) -> bool,
    write: impl Fn(u64, &mut Message),
    check: impl Fn(u64, &Operation<'_>),
) -> u64 {
    let mut number = 0;
    while !stop.load(Relaxed) || connection.in_flight() > 0 {
        while connection.in_flight() < AT_ONCE && !stop.load(Relaxed) && may_send(number) {
            let mut message = connection.message();
            write(number, &mut message);
            connection.send(number, message).expect("room");
            number += 1;
        }
        let ended = connection.poll(|number, answer| {
            let answer = answer.unwrap_or_else(|error| panic!("request {number}: {error}"));
            check(number, &answer.operations().next().expect("an answer").expect("a readable one"));
        });
        if ended == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    number
}

fn good(plane: &DataPlane, worker: u32, tenant: u32, stop: &AtomicBool) -> u64 {
    let write = |number: u64, message: &mut Message| match number % 4 {
        0 => message.invoke("long", 0, &[&get_args(&[])[..], &LONG_READS.to_le_bytes(), &[0; 4], b"list"].concat()),
        1 => message.get(1, &(number as u32 % RECORDS).to_le_bytes()),
        _ => message.invoke("get", 0, &get_args(&(number as u32 % RECORDS).to_le_bytes())),
    };
    let mut stolen_before = counter(plane, "steals");
    let may_send = |number: u64| {
        let pauses = worker == 1 && number.is_multiple_of(CALLS_BETWEEN_STEALS);
        let stolen = if pauses { counter(plane, "steals") } else { 0 };
        let may = !pauses || stolen > stolen_before;
        stolen_before = stolen_before.max(stolen);
        may
    };
    keep_asking(connect(plane, worker, tenant), stop, may_send, write, |number, answer| {
        let text = String::from_utf8_lossy(answer.value);
        let expected = match number % 4 {
            0 => [&LONG_READS.to_le_bytes()[..], &u64::from(LONG_READS * 8).to_le_bytes()].concat(),
            _ => format!("value{:>3}", number as u32 % RECORDS).into_bytes(),
        };
        assert_eq!((answer.status, answer.value), (RpcStatus::Ok, &expected[..]), "good call {number}: {text}");
    })
}

/// Calls of the bad kinds whose cause `of` accepts.
fn bad(plane: &DataPlane, tenant: u32, stop: &AtomicBool, of: impl Fn(KillCause) -> bool) -> u64 {
    let kinds: Vec<_> = BAD_KINDS.into_iter().filter(|(_, cause)| of(*cause)).collect();
    let write = |number: u64, message: &mut Message| {
        let (kind, _) = kinds[number as usize % kinds.len()];
        message.invoke("bad", 0, &[&1u64.to_le_bytes()[..], kind.as_bytes()].concat());
    };
    // All go to the first worker's port: the other worker has only what it steals.
    keep_asking(
        connect(plane, 0, tenant),
        stop,
        |_| true,
        write,
        |number, answer| {
            let (kind, cause) = kinds[number as usize % kinds.len()];
            let text = String::from_utf8_lossy(answer.value);
            assert_eq!((answer.status, answer.number), (RpcStatus::Killed, cause as u64), "{kind}: {text}");
        },
    )
}

/// Writes the records that good calls read, and the list of them that long ones follow.
fn write_records(plane: &DataPlane, tenant: u32) {
    let mut list = Vec::new();
    let mut filler = connect(plane, 0, tenant);
    for number in 0..RECORDS {
        let mut message = filler.message();
        message.put(1, &number.to_le_bytes(), format!("value{number:>3}").as_bytes(), &PutOptions::default());
        list.extend([&4u16.to_le_bytes()[..], &number.to_le_bytes()].concat());
        filler.send(0, message).expect("room");
    }
    let mut message = filler.message();
    message.put(1, b"list", &list, &PutOptions::default());
    filler.send(0, message).expect("room");
    let written = AtomicU64::new(0);
    let all_are_written = || {
        filler.poll(|_, answer| {
            answer.expect("an answer");
            written.fetch_add(1, Relaxed);
        });
        written.load(Relaxed) == u64::from(RECORDS) + 1
    };
    assert!(eventually(all_are_written));
}

#[test]
fn a_storm_of_switches_ends_everything_rightly_and_leaves_nothing() {
    if ran_alone(module_path!(), "a_storm_of_switches_ends_everything_rightly_and_leaves_nothing") {
        return;
    }
    let seconds = std::env::var("STORM_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let plane = data_plane(2);
    let [alice, mallory, mallet] = ["alice", "mallory", "mallet"].map(|name| tenant(&plane, name, true).0);
    let budget = |total_us, memory_bytes| BudgetOverride {
        slice_us: Some(SLICE_US),
        total_us: Some(total_us),
        memory_bytes: Some(memory_bytes),
        ..BudgetOverride::default()
    };
    // Calls that must end by a budget do so soon; all others have more than they use, on any machine.
    for name in ["get", "long"] {
        load_with(&plane, "alice", name, 1, budget(10_000_000, 4 << 20));
    }
    load_with(&plane, "mallory", "bad", 1, budget(1_000, 4 << 20));
    load_with(&plane, "mallet", "bad", 1, budget(10_000_000, 256 << 10));
    write_records(&plane, alice);
    let mut after_half = Vec::new();
    for _ in 0..2 {
        let (stop, begun, stolen_before) = (AtomicBool::new(false), Instant::now(), counter(&plane, "steals"));
        let counts = std::thread::scope(|scope| {
            let (plane, stop) = (&plane, &stop);
            let senders: [_; SENDERS] = [
                scope.spawn(move || good(plane, 0, alice, stop)),
                scope.spawn(move || good(plane, 1, alice, stop)),
                scope.spawn(move || bad(plane, mallory, stop, |cause| cause == KillCause::TotalBudget)),
                scope.spawn(move || bad(plane, mallet, stop, |cause| cause != KillCause::TotalBudget)),
            ];
            let half = Duration::from_millis(500 * seconds);
            // The second worker steals once its sender pauses; a failed sender ends the wait.
            let enough = || {
                let has_stolen = counter(plane, "steals") > stolen_before;
                begun.elapsed() >= half && has_stolen || senders.iter().any(|it| it.is_finished())
            };
            while !enough() && begun.elapsed() < half + PATIENCE {
                std::thread::sleep(Duration::from_millis(10));
            }
            stop.store(true, Relaxed);
            senders.map(|sender| sender.join().expect("all its answers were right"))
        });
        [alice, mallory, mallet].into_iter().for_each(|id| await_nothing_charged(&plane, id));
        println!("good, good, endless, faulty calls: {counts:?}; {} switches so far", counter(&plane, "preemptions"));
        after_half.push(resources());
    }
    assert!(counter(&plane, "steals") > 0 && counter(&plane, "preemptions") > 1_000);
    let [first, second] = after_half[..] else { panic!("two halves") };
    assert!(second.0 <= first.0 + MAPS_GROWTH, "maps: {} -> {}", first.0, second.0);
    assert!(second.1 <= first.1, "open files: {} -> {}", first.1, second.1);
    assert!(second.2 <= first.2 + RESIDENT_GROWTH_KIB, "resident KiB: {} -> {}", first.2, second.2);
}
