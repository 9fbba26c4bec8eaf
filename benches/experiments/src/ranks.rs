//! `sandstorm bench ranks`: a leaderboard as one ordered table. How long ranks, positions and counts take by calls,
//! what it costs to add and to remove a member, and how much memory a key takes, each beside a table without an order.

use std::time::{Duration, Instant};

use sandstorm_client::Error;
use sandstorm_client::blocking::Client;
use sandstorm_client::control::{ExtensionSource, ExtensionSourceFile, TableMode, TableSpec};

use super::durable::measured;
use super::measure::{FigureFn, LoadMeasurement, MeasuredSide, P50_US, P99_US, resident_bytes};
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::{BenchArgs, bench_server};
use crate::local_server::LocalServer;
use sandstorm_terminal::output::CliError;

const TENANT: &str = "bench";
/// The tables: without an order, and with one.
const PLAIN: &str = "plain";
const PLACES: &str = "places";
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 5;
/// Puts of a message while the tables are filled.
const FILL_BATCH: u64 = 64;
/// Bytes of a key: points, then the member.
const KEY_BYTES: usize = 16;
/// What a rank, a position or a count may cost at p99, microseconds.
const RANK_US: f64 = 20.0;
/// What a key of an ordered table took beside its own bytes before the order knew positions.
const BEFORE_RANKS_BYTES: f64 = 136.0;

/// A kind of call: the first byte of its arguments, and its name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RankCall {
    op: u8,
    name: &'static str,
}

/// In their order: what is added is removed after it.
const CALLS: [RankCall; 9] = [
    RankCall { op: b'e', name: "a call that does nothing" },
    RankCall { op: b'g', name: "a get" },
    RankCall { op: b'r', name: "the rank of a member" },
    RankCall { op: b'n', name: "the member of a rank" },
    RankCall { op: b'c', name: "the count between two members" },
    RankCall { op: b'i', name: "a member is added" },
    RankCall { op: b'x', name: "it is removed" },
    RankCall { op: b'I', name: "a member is added, no order" },
    RankCall { op: b'X', name: "it is removed, no order" },
];

const MANIFEST: &str = "name = \"ranks\"\nversion = \"0.1.0\"\n";
const SOURCE: &str = r#"#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (op, key) = args.split_first().ok_or(Error::invalid("args: a letter, and a key or a number"))?;
    let (places, plain) = (db.table("places")?, db.table("plain")?);
    match *op {
        b'e' => Ok(()),
        b'g' => db.get(places, key).await?.map(drop).ok_or(Error::not_found("no such member")),
        b'r' => {
            let rank = db.rank(places, key).await?;
            db.reply(&rank.to_le_bytes())
        }
        b'n' => {
            let number = key.first_chunk::<8>().ok_or(Error::invalid("a number of 8 bytes"))?;
            let found = db.nth(places, u64::from_le_bytes(*number)).await?;
            db.reply(&found.ok_or(Error::not_found("no such rank"))?)
        }
        b'c' => {
            let (from, to) = key.split_at_checked(16).ok_or(Error::invalid("two keys of 16 bytes"))?;
            let count = db.count(places, from, to).await?;
            db.reply(&count.to_le_bytes())
        }
        b'i' => db.put(places, key, b"").if_absent().await.map(drop),
        b'x' => db.delete(places, key).await.map(drop),
        b'I' => db.put(plain, key, b"").if_absent().await.map(drop),
        b'X' => db.delete(plain, key).await.map(drop),
        _ => Err(Error::invalid("no such letter")),
    }
}
"#;

/// A table that was filled: its bytes by its quota, and of the process's memory, a key.
struct MeasuredTable {
    name: &'static str,
    charged_bytes: f64,
    resident_bytes: f64,
}

struct RankSetup {
    client: Client,
    members: u64,
    random: u64,
    /// Numbers of members that were added, each behind the first ones, and not removed yet.
    added: Vec<u64>,
    next_added: u64,
    // Dropped behind its client.
    _server: LocalServer,
}

/// The key of a member: its points are scattered.
fn key_of(member: u64) -> [u8; KEY_BYTES] {
    let points = member.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (u128::from(points) << 64 | u128::from(member)).to_be_bytes()
}

fn fill(client: &Client, table: u64, members: u64) -> Result<(), CliError> {
    for first in (0..members).step_by(FILL_BATCH as usize) {
        let mut batch = client.batch();
        for member in first..members.min(first + FILL_BATCH) {
            batch = batch.put(table, &key_of(member), b"");
        }
        client.send(batch)?.into_iter().collect::<Result<Vec<_>, Error>>()?;
    }
    Ok(())
}

impl RankSetup {
    fn start(args: &BenchArgs) -> Result<(RankSetup, [MeasuredTable; 2]), CliError> {
        let server = bench_server::start_bench_server(1, |_| {})?;
        let tenant = server.tenant(TENANT, "first", TableMode::Store)?;
        let (control, members) = (server.control(), args.records());
        let client = Client::connect(server.client(&tenant))?;
        // A table that grows leaves memory behind, which the next one takes: so each of the two has one before it.
        fill(&client, tenant.table, members)?;
        let fill_table = |name: &'static str, ordered: bool| -> Result<MeasuredTable, CliError> {
            let spec = TableSpec { name: name.to_owned(), ordered, ..TableSpec::default() };
            let before = resident_bytes()?;
            fill(&client, control.create_table(TENANT, &spec)?.id, members)?;
            let resident_bytes = (resident_bytes()? - before) / members as f64;
            let charged_bytes = control.table(TENANT, name)?.bytes as f64 / members as f64;
            Ok(MeasuredTable { name, charged_bytes, resident_bytes })
        };
        let filled = [fill_table(PLAIN, false)?, fill_table(PLACES, true)?];
        let file = ExtensionSourceFile { path: "src/lib.rs".to_owned(), text: SOURCE.to_owned() };
        control.push(TENANT, "ranks", &ExtensionSource { manifest: MANIFEST.to_owned(), files: vec![file] })?;
        let (random, added, next_added) = (1, Vec::new(), members);
        Ok((RankSetup { client, members, random, added, next_added, _server: server }, filled))
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.random ^ self.random >> 29) * u128::from(self.members)) >> 64) as u64
    }

    /// The arguments of the next call of a kind; `None`: all that was added is removed.
    fn next_args(&mut self, op: u8) -> Option<Vec<u8>> {
        let mut args = vec![op];
        match op {
            b'e' => {}
            b'n' => args.extend(self.draw().to_le_bytes()),
            b'c' => {
                let keys = [key_of(self.draw()), key_of(self.draw())];
                let [one, other] = &keys;
                args.extend([one.min(other), one.max(other)].into_iter().flatten());
            }
            b'i' | b'I' => {
                args.extend(key_of(self.next_added));
                self.added.push(self.next_added);
                self.next_added += 1;
            }
            b'x' | b'X' => args.extend(key_of(self.added.pop()?)),
            _ => args.extend(key_of(self.draw())),
        }
        Some(args)
    }

    /// Makes one call after the other; what was added before is removed to its end. Returns the processor's time of
    /// each as the server tells it, and how long after it was sent its answer was there.
    fn calls(&mut self, op: u8, seconds: f64) -> Result<[LoadMeasurement; 2], CliError> {
        let (begun, seconds) = (Instant::now(), Duration::from_secs_f64(seconds));
        let (mut cpu_us, mut trip_us) = (Vec::new(), Vec::new());
        while begun.elapsed() < seconds || !self.added.is_empty() && matches!(op, b'x' | b'X') {
            let Some(args) = self.next_args(op) else { break };
            let at = Instant::now();
            let call = self.client.invoke_measured("ranks", 0, &args)?;
            trip_us.push(at.elapsed().as_nanos() as f64 / 1_000.0);
            call.result?;
            cpu_us.push(call.cost.map_or(f64::NAN, |cost| cost.cpu_ns as f64 / 1_000.0));
        }
        let all = begun.elapsed();
        Ok([measured(cpu_us, 1, all), measured(trip_us, 1, all)])
    }
}

pub(super) fn ranks(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let (mut setup, filled) = RankSetup::start(args)?;
    let about = format!(
        "A leaderboard of {} members as an ordered table with a key of {KEY_BYTES} bytes for each, points and member, \
         and no value; and a table without an order that has the same. One call at a time of an extension: the \
         processor's time as the server tells it, and how long the caller waits.",
        setup.members
    );
    let mut findings = ExperimentFindings::new("ranks", about);
    let side = |call: RankCall| MeasuredSide { name: call.name.to_owned(), rounds: Vec::new() };
    let mut sides = CALLS.map(|call| [side(call), side(call)]);
    for _ in 0..args.rounds(ROUNDS).max(1) {
        for (call, [cpu, trip]) in CALLS.iter().zip(&mut sides) {
            let [in_call, around] = setup.calls(call.op, args.seconds(SECONDS))?;
            cpu.rounds.push(in_call);
            trip.rounds.push(around);
        }
    }
    let columns = ["p50 of the call, us", "p99 of the call, us", "p50 of the caller, us", "p99 of the caller, us"];
    let mut table = ReportTable::new("Calls one at a time", "call", columns);
    for [cpu, trip] in &sides {
        let cell = |side: &MeasuredSide, figure: FigureFn| side.spread(figure);
        table.row(&cpu.name, vec![cell(cpu, P50_US), cell(cpu, P99_US), cell(trip, P50_US), cell(trip, P99_US)]);
    }
    findings.tables.push(table);
    for (call, [cpu, _]) in CALLS.iter().zip(&sides).filter(|(call, _)| matches!(call.op, b'r' | b'n' | b'c')) {
        let target = RoundSpread::of(vec![RANK_US; cpu.rounds.len()]);
        let what = format!("{} / {RANK_US} us, p99", call.name);
        let sides = [&cpu.spread(P99_US), &target];
        findings.ratios.push(RatioResult::of(what, "us", sides, Some(RatioTarget::AtMost(1.0))));
    }
    show_memory(&mut findings, &filled);
    Ok(findings)
}

/// What a key takes: a ratio for the order alone.
fn show_memory(findings: &mut ExperimentFindings, filled: &[MeasuredTable; 2]) {
    let mut table = ReportTable::new("Memory for each key", "table", ["bytes of the quota", "bytes of the process"]);
    for MeasuredTable { name, charged_bytes, resident_bytes } in filled {
        table.row(*name, vec![RoundSpread::once(*charged_bytes), RoundSpread::once(*resident_bytes)]);
    }
    findings.tables.push(table);
    let [plain, places] = filled;
    let allowed = BEFORE_RANKS_BYTES + KEY_BYTES as f64;
    let order = RoundSpread::of(vec![places.resident_bytes - plain.resident_bytes]);
    let what = format!("memory of a key in the order / {BEFORE_RANKS_BYTES} bytes and the key");
    let sides = [&order, &RoundSpread::of(vec![allowed])];
    findings.ratios.push(RatioResult::of(what, "bytes", sides, Some(RatioTarget::AtMost(1.0))));
}
