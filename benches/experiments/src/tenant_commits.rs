//! Parts of `sandstorm bench tenant-tools`: what types cost a call, what a client's transaction costs beside a call
//! that does the same, and how long a rollback takes under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use sandstorm_client::PutOptions;
use sandstorm_client::blocking::Client;
use sandstorm_client::control::{ExtensionSource, ExtensionSourceFile, TableMode};
use sandstorm_net::CodePolicy;
use sandstorm_terminal::output::CliError;

use super::BenchArgs;
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread, median};
use super::turns::{PairedSides, measure_by_turns};
use crate::local_server::{LocalServer, LocalTenant, TRANSFER};

const ROUNDS: usize = 15;
/// Calls of a slice that are made one by one: some milliseconds.
const CALLS: usize = 64;
/// Messages of a slice whose calls are made together, and calls in each: about as long.
const MESSAGES: usize = 8;
const CALLS_TOGETHER: usize = 256;
/// Records that the lookups find: the processor's caches hold them, so that what types cost is a larger part.
const RECORDS: u64 = 64;
/// What a typed call may take of the processor, beside one whose bytes are read by hand.
const TYPED_TARGET: f64 = 1.05;
/// Transactions of each kind in a round.
const TRANSACTIONS: u64 = 500;
/// What both accounts begin with: more than is ever transferred.
const BALANCE: u64 = 1 << 40;
/// Rollbacks, connections that call meanwhile, and milliseconds that one may take.
const ROLLBACKS: usize = 30;
const CALLERS: usize = 3;
/// Calls that are answered between two rollbacks, at least.
const CALLS_BETWEEN: u64 = 30;
const ROLLBACK_TARGET_MS: f64 = 10.0;

/// An extension of one file.
pub(super) fn source_of(name: &str, version: u32, text: &str) -> ExtensionSource {
    let file = ExtensionSourceFile { path: "src/lib.rs".into(), text: text.into() };
    let manifest =
        format!("name = \"{name}\"\nversion = \"{version}.0.0\"\nedition = \"2024\"\napi = 1\nlibraries = []\n");
    ExtensionSource { manifest, files: vec![file] }
}

fn failed(what: &str) -> impl Fn(&dyn std::fmt::Display) -> CliError {
    move |error| CliError::new(format!("{what}: {error}"))
}

/// A client of a tenant.
pub(super) fn client_of(server: &LocalServer, tenant: &LocalTenant) -> Result<Client, CliError> {
    Client::connect(server.client(tenant)).map_err(|error| CliError::new(error.to_string()))
}

/// CPU time of a call that is made alone, nanoseconds, as the server tells it: the median of a slice.
fn cpu_ns(client: &Client, name: &str, arguments: &[Vec<u8>]) -> Result<f64, CliError> {
    let failed = failed(name);
    let mut times = Vec::with_capacity(CALLS);
    for bytes in arguments.iter().cycle().take(CALLS) {
        let measured = client.invoke_measured(name, 0, bytes).map_err(|error| failed(&error))?;
        measured.result.map_err(|error| failed(&error))?;
        let cost = measured.cost.ok_or_else(|| failed(&"the server does not tell what a call costs"))?;
        times.push(cost.cpu_ns as f64);
    }
    Ok(median(&mut times))
}

/// What the worker takes for a call, nanoseconds, its message and its answer included: of a slice of calls that are
/// made together. It is the worker's own count of the time in which it had work.
fn worker_ns(server: &LocalServer, client: &Client, name: &str, arguments: &[Vec<u8>]) -> Result<f64, CliError> {
    let failed = failed(name);
    let before_us = server.busy_us();
    for _ in 0..MESSAGES {
        let bytes = arguments.iter().cycle().take(CALLS_TOGETHER);
        let batch = bytes.fold(client.batch(), |batch, bytes| batch.invoke(name, bytes));
        for reply in client.send(batch).map_err(|error| failed(&error))? {
            reply.map_err(|error| failed(&error))?;
        }
    }
    Ok((server.busy_us() - before_us) as f64 * 1e3 / (MESSAGES * CALLS_TOGETHER) as f64)
}

/// The same lookup by types and by bytes that are read by hand, in either tier.
pub(super) fn typed_calls(
    args: &BenchArgs,
    server: &LocalServer,
    findings: &mut ExperimentFindings,
) -> Result<(), CliError> {
    let columns = ["ns of CPU time", "ns of the worker"];
    let mut table = ReportTable::new("A call that looks a record up", "", columns);
    for (tier, code) in [("native", CodePolicy::Native), ("sandboxed", CodePolicy::Sandboxed)] {
        let tenant = format!("types-{tier}");
        let made = server.tenant_with_code(&tenant, "t", TableMode::Store, Some(code))?;
        let sources =
            [("typed", include_str!("../../typed_lookup.rs")), ("plain", include_str!("../../untyped_lookup.rs"))];
        for (name, text) in sources {
            server.control().push(&tenant, name, &source_of(name, 1, text))?;
        }
        let client = client_of(server, &made)?;
        let failed = failed("the types of an extension");
        let named = Client::open(&server.control_address().to_string(), &tenant, &made.token);
        let schema = named.map_err(|error| failed(&error))?.schema("typed").map_err(|error| failed(&error))?;
        let schema = schema.ok_or_else(|| failed(&"there are none"))?;
        let fingerprint = schema.functions.first().ok_or_else(|| failed(&"no function"))?.fingerprint;
        let mut arguments = Vec::new();
        for number in 0..RECORDS {
            let key = format!("record {number:020}");
            let put = client.put(made.table, key.as_bytes(), &[7; 100], &PutOptions::default());
            put.map_err(|error| CliError::new(error.to_string()))?;
            let len = (key.len() as u32).to_le_bytes();
            arguments.push([&fingerprint.to_le_bytes()[..], &made.table.to_le_bytes(), &len, key.as_bytes()].concat());
        }
        let (names, rounds) = (["typed", "plain"], args.rounds(ROUNDS));
        let alone = measure_by_turns(rounds, |side| cpu_ns(&client, names[side], &arguments))?;
        let together = measure_by_turns(rounds, |side| worker_ns(server, &client, names[side], &arguments))?;
        for (what, PairedSides { sides: [typed, plain], ratio }) in
            [("CPU time of a typed call", &alone), ("a worker's time for a typed call", &together)]
        {
            let (what, target) = (format!("{what} / of the same by hand, {tier}"), RatioTarget::AtMost(TYPED_TARGET));
            findings.ratios.push(RatioResult::measured(what, "ns", ratio.clone(), [typed, plain], Some(target)));
        }
        for (row, cpu, worker) in
            [("by types", &alone.sides[0], &together.sides[0]), ("by hand", &alone.sides[1], &together.sides[1])]
        {
            table.row(format!("{tier}, {row}"), vec![cpu.clone(), worker.clone()]);
        }
    }
    findings.tables.push(table);
    Ok(())
}

/// A transfer between two accounts by a client's transaction, by one call, and by gets and puts that promise nothing.
pub(super) fn commits(
    args: &BenchArgs,
    server: &LocalServer,
    findings: &mut ExperimentFindings,
) -> Result<(), CliError> {
    let made = server.tenant("bank", "t", TableMode::Store)?;
    server.push("bank", &TRANSFER)?;
    let (client, failed) = (client_of(server, &made)?, failed("a transfer"));
    let (table, options) = (made.table, PutOptions::default());
    for account in [[0], [1]] {
        client.put(table, &account, &BALANCE.to_le_bytes(), &options).map_err(|error| failed(&error))?;
    }
    let read = |value: &[u8]| value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let call = [&table.to_le_bytes()[..], &1_u64.to_le_bytes(), &1_u16.to_le_bytes(), &[0, 1]].concat();
    let by_call = || client.invoke(TRANSFER.name, &call).map(drop);
    let by_transaction = || {
        client.transact(|transaction| {
            let found = transaction.multi_get(table, &[[0], [1]])?;
            let held: Vec<u64> = found.iter().flatten().map(|record| read(&record.value)).collect();
            transaction.put(table, &[0], &(held[0] - 1).to_le_bytes());
            transaction.put(table, &[1], &(held[1] + 1).to_le_bytes());
            Ok::<(), sandstorm_client::Error>(())
        })
    };
    let by_puts = || {
        let found = client.multi_get(table, &[[0], [1]])?;
        let held: Vec<u64> = found.iter().flatten().map(|record| read(&record.value)).collect();
        let [one, other] = [held[0] - 1, held[1] + 1].map(u64::to_le_bytes);
        let batch = client.batch().put(table, &[0], &one).put(table, &[1], &other);
        client.send(batch)?.into_iter().try_for_each(|result| result.map(drop))
    };
    type Transfer<'a> = &'a dyn Fn() -> Result<(), sandstorm_client::Error>;
    let kinds: [(&str, Transfer<'_>); 3] = [
        ("a client's transaction", &by_transaction),
        ("a call", &by_call),
        ("gets, then puts, without a transaction", &by_puts),
    ];
    let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..args.rounds(ROUNDS) {
        for turn in 0..kinds.len() {
            let kind = (round + turn) % kinds.len();
            let begun = Instant::now();
            for _ in 0..TRANSACTIONS {
                kinds[kind].1().map_err(|error| failed(&error))?;
            }
            rounds[kind].push(begun.elapsed().as_secs_f64() * 1e6 / TRANSACTIONS as f64);
        }
    }
    let spreads = rounds.map(RoundSpread::of);
    let mut shown = ReportTable::new("A transfer between two accounts, one at a time", "", ["us"]);
    for (spread, (name, _)) in spreads.iter().zip(kinds) {
        shown.row(name, vec![spread.clone()]);
    }
    findings.tables.push(shown);
    let [transaction, call, puts] = &spreads;
    findings.ratios.push(RatioResult::of("a client's transaction / one call", "us", [transaction, call], None));
    findings.ratios.push(RatioResult::of("a client's transaction / gets, then puts", "us", [transaction, puts], None));
    Ok(())
}

/// Goes back and forth between three versions of an extension that is called all the time, and counts its calls.
pub(super) fn rollbacks(
    args: &BenchArgs,
    server: &LocalServer,
    findings: &mut ExperimentFindings,
) -> Result<(), CliError> {
    let (tenant, name, failed) = ("versions", "counter", failed("a call beside a rollback"));
    let made = server.tenant(tenant, "t", TableMode::Store)?;
    for version in 1..=3_u32 {
        let text = format!(
            "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n\
             pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {{\n    \
             db.increment(db.table(\"t\")?, b\"n\", 1).await?;\n    db.reply(&[{version}])\n}}\n"
        );
        server.control().push(tenant, name, &source_of(name, version, &text))?;
    }
    let (is_done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let times = std::thread::scope(|scope| {
        let call = || {
            let client = client_of(server, &made)?;
            while !is_done.load(Ordering::Relaxed) {
                client.invoke(name, b"").map_err(|error| failed(&error))?;
                calls.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), CliError>(())
        };
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call)).collect();
        let mut times = Vec::new();
        let rolled = (0..args.rounds(ROLLBACKS)).try_for_each(|round| {
            let enough = calls.load(Ordering::Relaxed) + CALLS_BETWEEN;
            while calls.load(Ordering::Relaxed) < enough && !callers.iter().any(ScopedJoinHandle::is_finished) {
                std::thread::yield_now();
            }
            let begun = Instant::now();
            server.control().roll_back(tenant, name, Some([1, 3, 2][round % 3]))?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            Ok::<(), CliError>(())
        });
        is_done.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.join().map_err(|_panic| CliError::new("a thread that calls has panicked"))??;
        }
        rolled.map(|()| times)
    })?;
    let counted = client_of(server, &made)?.increment(made.table, b"n", 0).map_err(|error| failed(&error))?;
    let (counted, sent) = (counted as f64, calls.load(Ordering::Relaxed) as f64);
    let longest = RoundSpread::of(vec![times.iter().copied().fold(0.0, f64::max)]);
    let mut table = ReportTable::new("A rollback, beside three connections that call all the time", "", ["value"]);
    table.row("milliseconds", vec![RoundSpread::of(times)]);
    table.row("the longest, milliseconds", vec![longest.clone()]);
    table.row("calls that were answered", vec![RoundSpread::once(sent)]);
    table.row("lost or doubled", vec![RoundSpread::once((counted - sent).abs())]);
    findings.tables.push(table);
    let target = Some(RatioTarget::AtMost(ROLLBACK_TARGET_MS));
    findings.ratios.push(RatioResult::of(
        "the longest rollback, ms",
        "",
        [&longest, &RoundSpread::of(vec![1.0])],
        target,
    ));
    Ok(())
}
