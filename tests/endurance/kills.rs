//! Promise: however an extension ends, only it is affected. Ten thousand kills of each bad kind, with a thousand good
//! calls after each hundred of them: every answer is right, and every kill names its cause. Nothing is left behind: no
//! memory map, no open file, no growth of the process.
//!
//! `KILLS=n` sets the kills of all kinds together. `SANDSTORM_TEST_CODE=sandboxed` kills in that tier.

use crate::common::alone::ran_alone;
use crate::common::{Answer, BAD_KINDS, Wire, await_nothing_charged, data_plane, get_args, load, load_with, tenant};
use sandstorm_extension::BudgetOverride;
use sandstorm_net::rpc::{KillCause, Operation, RpcStatus, encode_message};

/// Kills of each kind by default.
const KILLS: usize = 10_000;
/// Kills of one kind between two rounds of good calls.
const KILLS_PER_ROUND: usize = 100;
/// Good calls of one round.
const GOOD_PER_ROUND: usize = 1_000;
/// Maps that the pools may still add: a sandboxed memory has up to seven, and so many calls are under way.
const POOLED_MAPS: usize = 7 * IN_FLIGHT * PER_MESSAGE;
/// Messages in flight: few enough for the quota of concurrent invocations.
const IN_FLIGHT: usize = 20;
/// Operations of one message: the answers of both kinds fit one packet.
const PER_MESSAGE: usize = 2;

/// The process's maps, files and memory.
#[derive(Debug)]
struct Resources {
    maps: usize,
    files: usize,
    resident_kib: usize,
}

fn resources() -> Resources {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps").lines().count();
    let files = std::fs::read_dir("/proc/self/fd").expect("open files").count();
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    let resident_kib = resident.trim().trim_end_matches("kB").trim().parse().expect("a number");
    Resources { maps, files, resident_kib }
}

/// Sends messages of `PER_MESSAGE` equal calls, several in flight, and gives every answer to `check`.
fn call_many(
    wire: &mut Wire,
    calls: usize,
    operation: impl Fn(usize) -> Vec<u8>,
    name: &[u8],
    check: impl Fn(usize, &Answer),
) {
    let messages = calls / PER_MESSAGE;
    let (mut sent, mut answered) = (0, 0);
    let first = wire.sequence + 1;
    while answered < messages {
        while sent < messages && sent - answered < IN_FLIGHT {
            let args: Vec<Vec<u8>> = (0..PER_MESSAGE).map(|n| operation(sent * PER_MESSAGE + n)).collect();
            let operations: Vec<_> = args.iter().map(|args| Operation::invoke(name, args)).collect();
            let header = wire.header(PER_MESSAGE);
            let mut message = Vec::new();
            encode_message(&header, &operations, &mut message);
            wire.send(header.sequence as u16, &message);
            sent += 1;
        }
        let (_, header, answers) = wire.receive();
        assert_eq!(answers.len(), PER_MESSAGE);
        let message = (header.sequence - first) as usize;
        answers.iter().enumerate().for_each(|(n, answer)| check(message * PER_MESSAGE + n, answer));
        answered += 1;
    }
}

fn good_calls(wire: &mut Wire) {
    let args = |n: usize| get_args(&((n % 100) as u32).to_le_bytes());
    call_many(wire, GOOD_PER_ROUND, args, b"get", |n, answer| {
        let expected = format!("value {}", n % 100);
        assert_eq!((answer.status, answer.text()), (RpcStatus::Ok, expected), "good call {n}");
    });
}

#[test]
fn kills_leave_nothing_behind_and_affect_no_other_tenant() {
    if ran_alone(module_path!(), "kills_leave_nothing_behind_and_affect_no_other_tenant") {
        return;
    }
    let asked = std::env::var("KILLS").ok().and_then(|n| n.parse::<usize>().ok());
    let kills = asked.map_or(KILLS, |all| all.div_ceil(BAD_KINDS.len()));
    let plane = data_plane(1);
    let (alice, _) = tenant(&plane, "alice", true);
    let (mallory, _) = tenant(&plane, "mallory", true);
    load(&plane, "alice", "get", 1);
    let quick = BudgetOverride { slice_us: Some(40), total_us: Some(160), ..BudgetOverride::default() };
    // Filling the quota or the stack takes page faults: so the total budget is large, and there is less to fill.
    let patient =
        BudgetOverride { total_us: Some(100_000), memory_bytes: Some(256 << 10), ..BudgetOverride::default() };
    load_with(&plane, "mallory", "bad", 1, quick);
    let (mut good, mut bad) = (Wire::new(&plane, 0, alice), Wire::new(&plane, 0, mallory));
    for number in 0..100u32 {
        let value = format!("value {number}");
        assert_eq!(good.one(Operation::put(1, &number.to_le_bytes(), value.as_bytes())).status, RpcStatus::Ok);
    }
    let mut versions = 2..;
    let mut kill = |(kind, cause): (&str, KillCause), count: usize| {
        let budget = if cause == KillCause::TotalBudget { quick } else { patient };
        load_with(&plane, "mallory", "bad", versions.next().expect("they do not end"), budget);
        let args = |_| [&1u64.to_le_bytes()[..], kind.as_bytes()].concat();
        for _ in 0..count.div_ceil(KILLS_PER_ROUND) {
            call_many(&mut bad, KILLS_PER_ROUND, args, b"bad", |_, answer| {
                let seen = (answer.status, answer.number);
                assert_eq!(seen, (RpcStatus::Killed, cause as u64), "{kind}: {}", answer.text());
            });
            good_calls(&mut good);
        }
    };
    // A round of each kind fills the pools. From then on nothing grows, but for what more calls at once need.
    BAD_KINDS.into_iter().for_each(|kind| kill(kind, KILLS_PER_ROUND));
    let before = resources();
    assert!(kills > 2 * POOLED_MAPS, "what a kill leaves behind shows");
    for kind in BAD_KINDS {
        kill(kind, kills);
        let now = resources();
        println!("{}: {kills} kills, {now:?}", kind.0);
        assert!(now.maps <= before.maps + POOLED_MAPS, "maps: {before:?} -> {now:?}");
        assert!(now.files <= before.files, "open files: {before:?} -> {now:?}");
        assert!(now.resident_kib <= before.resident_kib + (32 << 10), "memory: {before:?} -> {now:?}");
    }
    [alice, mallory].into_iter().for_each(|id| await_nothing_charged(&plane, id));
}
