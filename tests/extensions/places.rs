//! Promise: of every call that the server ends while its code computes, the caller and the tenant's list of kills are
//! told where the code was: function, file and line, in either tier, with what was inlined. The first bytes of its
//! arguments are kept if the extension's manifest asks for that, and not otherwise.

use crate::common::{BAD_KINDS, Wire, data_plane, library_of, library_with, load_with, loaded, tenant};
use sandstorm_accounts::KillRecord;
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{KillCause, Operation, RpcStatus};
use std::sync::Arc;

/// The source that the kinds are in.
const BAD: &str = include_str!("../../ext/bad/src/lib.rs");

/// For each kind of `ext/bad` a function that is under way when it ends, and a part of the line in it. It yields
/// between two of its steps, and nothing of it is under way then.
const PLACES: [(&str, &str, &str); 13] = [
    ("loop", "spin_forever", ""),
    ("loop-scans", "run", "db.scan(table"),
    ("memcpy", "copy_forever", ""),
    ("slow-drop", "drop", "spin_forever()"),
    ("recursion", "recurse", ""),
    ("frame", "huge_frame", ""),
    ("allocation", "allocate_forever", "filled.push("),
    ("one-allocation", "run_faulting", "with_capacity(1 << 30)"),
    ("panic", "run_faulting", "panic!(\"panicked as asked\")"),
    ("division", "run_faulting", "1 / black_box(0u32)"),
    ("bounds", "run_faulting", "[black_box(3)]"),
    ("unwrap", "run_faulting", "unwrap()"),
    ("overflow", "run_faulting", "no room above the largest number"),
];

fn newest_kill(plane: &DataPlane, tenant: u32) -> KillRecord {
    let usage = &plane.directory.snapshot().tenant(tenant).expect("the tenant is there").tenant.usage.clone();
    let until = std::time::Instant::now() + crate::common::EVENTUALLY;
    loop {
        // The answer may come a moment before its kill is counted.
        match usage.kills().into_iter().next() {
            Some(kill) => return kill,
            None if std::time::Instant::now() < until => std::thread::yield_now(),
            None => panic!("no kill is recorded"),
        }
    }
}

/// The lines of a function in a source, from 1.
fn lines_of(source: &str, function: &str) -> std::ops::RangeInclusive<u32> {
    let starts = |line: &&str| line.contains(&format!("fn {function}("));
    let first = source.lines().position(|line| starts(&line)).expect("the function is there");
    let indent = source.lines().nth(first).map_or(0, |line| line.len() - line.trim_start().len());
    let end = format!("{}}}", " ".repeat(indent));
    let length = source.lines().skip(first).position(|line| line == end).expect("it ends");
    first as u32 + 1..=(first + length) as u32 + 1
}

#[test]
fn each_kind_of_kill_names_its_function_and_line() {
    let source_line = |line: u32| BAD.lines().nth(line as usize - 1).unwrap_or_default();
    for (kind, function, part) in PLACES {
        let (_, cause) = BAD_KINDS.into_iter().find(|(name, _)| *name == kind).expect("a kind");
        let plane = data_plane(1);
        let (mallory, _) = tenant(&plane, "mallory", true);
        let budget = match cause {
            KillCause::TotalBudget => BudgetOverride { total_us: Some(30_000), ..BudgetOverride::default() },
            _ => BudgetOverride {
                total_us: Some(10_000_000),
                memory_bytes: Some(256 << 10),
                ..BudgetOverride::default()
            },
        };
        load_with(&plane, "mallory", "bad", 1, budget);
        let mut wire = Wire::new(&plane, 0, mallory);
        let args = [&1u64.to_le_bytes()[..], kind.as_bytes()].concat();
        let answer = wire.one(Operation::invoke(b"bad", &args));
        assert_eq!((answer.status, answer.number), (RpcStatus::Killed, cause as u64), "{kind}: {}", answer.text());
        let kill = newest_kill(&plane, mallory);
        let shown = kill.places.iter().map(|place| format!("  {place}\n")).collect::<String>();
        println!("{kind}: {}\n{shown}", answer.text());
        let body = lines_of(BAD, function);
        let place = kill.places.iter().find(|place| {
            let names = place.function.contains("bad::") && place.function.contains(function);
            names && place.file == "src/lib.rs" && body.contains(&place.line) && source_line(place.line).contains(part)
        });
        let place = place.unwrap_or_else(|| panic!("{kind}: not in {function} at {part:?}:\n{shown}"));
        assert_eq!(kill.text, answer.text());
        assert!(answer.text().contains("src/lib.rs:"), "{kind}: the caller is told: {}", answer.text());
        // Each was called by `run`, which is known all the way.
        let run = kill.places.iter().any(|place| place.function.contains("bad::run") && place.file == "src/lib.rs");
        // A stack that is full to its end is not followed all the way up.
        assert!(run || ["recursion", "frame"].contains(&kind), "{kind}, {place}: how it came there:\n{shown}");
        assert_eq!(kill.arguments, b"", "nothing asks for them");
    }
}

const NAMED: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;
pub async fn run(_db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    if args.len() > 2 { panic!(\"as asked\") }
    Ok(())
}
";

#[test]
fn arguments_are_kept_where_the_manifest_asks_for_them() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let libraries = [library_of("named", NAMED), library_with("named", "keep_arguments = 5\n", NAMED)];
    for ((version, library), kept) in (1..).zip(libraries).zip([&b""[..], b"\x00abcd"]) {
        let extension = loaded("named", version, library, BudgetOverride::default());
        plane.directory.put_extension("alice", Arc::new(extension)).expect("it is loaded");
        let answer = Wire::new(&plane, 0, id).one(Operation::invoke(b"named", b"\x00abcdefgh"));
        assert_eq!(answer.status, RpcStatus::Killed);
        let usage = plane.directory.snapshot().tenant(id).expect("alice").tenant.usage.clone();
        while usage.kills().first().is_none_or(|kill| kill.version != version) {
            std::thread::yield_now();
        }
        let kill = &usage.kills()[0];
        assert_eq!(kill.arguments, kept, "version {version}");
        assert!(kill.text.contains("as asked") && kill.text.contains("named::run"), "{}", kill.text);
    }
}
