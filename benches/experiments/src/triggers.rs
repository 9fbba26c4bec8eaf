//! `sandstorm bench triggers`: what it costs the writers of a table that it is watched, how many changes a trigger
//! handles, and how long after a write its call runs.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sandstorm_client::blocking::Client;
use sandstorm_client::control::{
    Control, DurabilityLevel, ExtensionSource, ExtensionSourceFile, TableSpec, TriggerReport, TriggerSpec,
};
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};

use super::durable::measured;
use super::measure::{
    FigureFn, LoadMeasurement, MeasuredSide, P50_US, P99_US, THOUSAND_PER_S, measure_interleaved, run_single_class,
};
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::turns::{PairedSides, measure_by_turns};
use super::{BenchArgs, bench_server};
use crate::local_server::LocalServer;
use sandstorm_terminal::output::CliError;

const TENANT: &str = "bench";
/// Records of each table.
const RECORDS: u64 = 20_000;
/// Messages under way, and puts in each.
const DEPTH: usize = 16;
const BATCH: usize = 32;
/// Messages of a slice of puts, and puts in each: some milliseconds of the worker's.
const SLICE_MESSAGES: usize = 8;
const SLICE_BATCH: usize = 256;
const SLICE_VALUE: [u8; 100] = [7; 100];
/// What a put to a watched table may take of the worker's time, beside one to a table that is not watched.
const WATCHED_TARGET: f64 = 1.05;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 5;
/// Longest wait for calls that are still to be made.
const PATIENCE: Duration = Duration::from_secs(120);
/// Changes of a round at which a call at a time is measured, for each second of a measurement.
const SINGLE_PER_S: f64 = 200.0;
/// What a call may wait behind the disk, microseconds at p99.
const BEHIND_DISK_US: f64 = 1_000.0;
/// When a call is to run after a write that does not wait for the disk, microseconds at p99.
const SOON_US: f64 = 1_000.0;
/// What a trigger is to handle, thousand changes a second.
const HANDLED_THOUSAND_PER_S: f64 = 200.0;

/// A table, and its trigger.
struct WatchedTable {
    name: &'static str,
    /// The changes that the trigger names; none: there is no trigger.
    op: Option<&'static str>,
    /// Changes of its calls, at most; none: each has one.
    batch: Option<u32>,
}

const TABLES: [WatchedTable; 4] = [
    WatchedTable { name: "alone", op: None, batch: None },
    WatchedTable { name: "read", op: Some("clear"), batch: None },
    WatchedTable { name: "called", op: Some("put"), batch: None },
    WatchedTable { name: "together", op: Some("put"), batch: Some(TOGETHER) },
];
/// Of them, those whose puts are calls.
const CALLED: [usize; 2] = [2, 3];
/// Changes of a call, at most, where it has several.
const TOGETHER: u32 = 64;
/// The tables whose writes are made one at a time: to the second one, whose answers do not wait for the disk, with
/// [`SINGLE_PAUSE`] in between.
const SINGLES: [(&str, DurabilityLevel); 2] =
    [("single-disk", DurabilityLevel::Disk), ("single-interval", DurabilityLevel::Interval)];
/// Time between two writes of which each is handled by itself.
const SINGLE_PAUSE: Duration = Duration::from_millis(2);

const MANIFEST: &str = "name = \"delay\"\nversion = \"0.1.0\"\n";
/// Does nothing with each change, or, if its value is a time, keeps how long ago that was.
const SOURCE: &str = r#"#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;
use sandstorm_api::change::Changes;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    for change in Changes::decode(args)? {
        let Ok(written_us) = <[u8; 8]>::try_from(change.value) else { continue };
        let delay_us = db.now_us().saturating_sub(u64::from_le_bytes(written_us));
        db.put(db.table("delays")?, change.key, &delay_us.to_le_bytes()).await?;
    }
    Ok(())
}
"#;

struct TriggerSetup {
    server: LocalServer,
    client: Client,
    token: sandstorm_client::Config,
    tables: Vec<Data>,
    singles: [u64; 2],
    delays: u64,
    records: u64,
    /// Numbers of the keys that were written one at a time.
    written: u64,
}

fn table(control: &Control, name: &str, durability: DurabilityLevel) -> Result<u64, CliError> {
    let spec = TableSpec { name: name.to_owned(), durability: Some(durability), ..TableSpec::default() };
    Ok(control.create_table(TENANT, &spec)?.id)
}

fn trigger(control: &Control, on: &str, op: &str, batch: Option<u32>) -> Result<(), CliError> {
    let (name, extension) = (on.to_owned(), "delay".to_owned());
    let (table, ops) = (Some(on.to_owned()), vec![op.to_owned()]);
    let spec = TriggerSpec { name, extension, table, ops, batch, ..TriggerSpec::default() };
    control.create_trigger(TENANT, &spec)?;
    Ok(())
}

impl TriggerSetup {
    fn start(args: &BenchArgs) -> Result<TriggerSetup, CliError> {
        let server = bench_server::start_bench_server(1, |overrides| overrides.ephemeral = Some(false))?;
        let tenant = server.tenant(TENANT, "first", sandstorm_client::control::TableMode::Store)?;
        let control = server.control();
        let file = ExtensionSourceFile { path: "src/lib.rs".to_owned(), text: SOURCE.to_owned() };
        let source = ExtensionSource { manifest: MANIFEST.to_owned(), files: vec![file] };
        control.push(TENANT, "delay", &source)?;
        let records = args.records.unwrap_or(RECORDS);
        let mut tables = Vec::new();
        for WatchedTable { name, .. } in TABLES {
            let data = Data::new(table(control, name, DurabilityLevel::Interval)?, records);
            fill(&server.client(&tenant), &data, &mut |_, _| {})?;
            tables.push(data);
        }
        let mut singles = [0; 2];
        for (single, (name, durability)) in singles.iter_mut().zip(SINGLES) {
            *single = table(control, name, durability)?;
        }
        let delays = table(control, "delays", DurabilityLevel::None)?;
        for WatchedTable { name, op, batch } in TABLES {
            op.map_or(Ok(()), |op| trigger(control, name, op, batch))?;
        }
        for (name, _) in SINGLES {
            trigger(control, name, "put", None)?;
        }
        let config = server.client(&tenant);
        let client = Client::connect(config.clone())?;
        Ok(TriggerSetup { client, token: config, tables, singles, delays, records, written: 0, server })
    }

    fn trigger(&self, name: &str) -> Result<TriggerReport, CliError> {
        let all = self.server.control().triggers(TENANT)?;
        let found = all.into_iter().find(|one| one.spec.name == name);
        found.ok_or_else(|| CliError::new(format!("there is no trigger {name:?}")))
    }

    /// Waits until a trigger has handled all that the log has; returns the changes for which it has made calls.
    fn wait_for(&self, name: &str) -> Result<u64, CliError> {
        let until = Instant::now() + PATIENCE;
        if let Some(log) = self.server.directory().change_log() {
            log.wait(log.end(), PATIENCE);
        }
        loop {
            let trigger = self.trigger(name)?;
            if trigger.state != "running" || !trigger.last_error.is_empty() {
                let text = format!("the trigger {name} is {}: {}", trigger.state, trigger.last_error);
                return Err(CliError::new(text));
            }
            if trigger.behind_bytes == Some(0) && trigger.open == 0 {
                return Ok(trigger.succeeded);
            }
            if Instant::now() > until {
                return Err(CliError::new(format!("the trigger {name} does not get to the end of the log")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Puts to one of the tables, as fast as answers come. The calls that are left are made before it returns.
    fn puts(&self, side: usize, seconds: f64) -> Result<LoadMeasurement, CliError> {
        let data = self.tables.get(side).cloned().unwrap_or_else(|| Data::new(self.singles[0], 1));
        let load = TenantLoad::new(TENANT, self.token.clone(), data, Mix::only(Class::Put));
        let found = run_single_class(load.batch(BATCH).pace(Pace::Closed { depth: DEPTH }), Class::Put, seconds);
        for table in TABLES.iter().filter(|table| table.op.is_some()) {
            self.wait_for(table.name)?;
        }
        found
    }

    /// What a worker takes for a put to one of the tables, nanoseconds, by its own count of the time in which it had
    /// work. What follows the log has come to its end before and behind the slice, so it is not beside the other's.
    fn put_ns(&self, side: usize) -> Result<f64, CliError> {
        let table = self.tables.get(side).map_or(self.singles[0], |data| data.table);
        let before_us = self.server.busy_us();
        for message in 0..SLICE_MESSAGES {
            // The same keys in each slice: but for the first one all are there.
            let keys = (0..SLICE_BATCH).map(|number| format!("slice {:024}", message * SLICE_BATCH + number));
            let batch = keys.fold(self.client.batch(), |batch, key| batch.put(table, key.as_bytes(), &SLICE_VALUE));
            for reply in self.client.send(batch)? {
                reply?;
            }
        }
        let took_us = self.server.busy_us() - before_us;
        for table in TABLES.iter().filter(|table| table.op.is_some()) {
            self.wait_for(table.name)?;
        }
        Ok(took_us as f64 * 1e3 / (SLICE_MESSAGES * SLICE_BATCH) as f64)
    }

    /// Lets changes gather while a table's trigger is paused, and then has them handled: changes a second.
    fn handled(&self, side: usize, seconds: f64) -> Result<LoadMeasurement, CliError> {
        let name = TABLES[side].name;
        let before = self.wait_for(name)?;
        self.server.control().pause_trigger(TENANT, name)?;
        let data = self.tables.get(side).cloned().unwrap_or_else(|| Data::new(self.singles[0], 1));
        let load = TenantLoad::new(TENANT, self.token.clone(), data, Mix::only(Class::Put));
        run_single_class(load.batch(BATCH).pace(Pace::Closed { depth: DEPTH }), Class::Put, seconds)?;
        let begun = Instant::now();
        self.server.control().resume_trigger(TENANT, name)?;
        let changes = self.wait_for(name)?.saturating_sub(before);
        let per_s = changes as f64 / begun.elapsed().as_secs_f64();
        Ok(LoadMeasurement { per_s, keys_per_s: per_s, ..LoadMeasurement::NOTHING })
    }

    /// Writes one record after the other to one of these tables. Returns how long each write took, and how long after
    /// it began its call ran.
    fn one_at_a_time(&mut self, which: usize, seconds: f64) -> Result<[LoadMeasurement; 2], CliError> {
        let (single, (name, durability)) = (self.singles[which], SINGLES[which]);
        let count = (seconds * SINGLE_PER_S).max(1.0) as u64;
        let first = self.written;
        let (begun, mut took_us) = (Instant::now(), Vec::new());
        for number in first..first + count {
            let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
            let at = Instant::now();
            let options = sandstorm_client::PutOptions::default();
            self.client.put(single, &number.to_be_bytes(), &now_us.to_le_bytes(), &options)?;
            took_us.push(at.elapsed().as_nanos() as f64 / 1_000.0);
            if durability == DurabilityLevel::Interval {
                std::thread::sleep(SINGLE_PAUSE);
            }
        }
        let all = begun.elapsed();
        self.written += count;
        self.wait_for(name)?;
        let mut delays_us = Vec::new();
        for number in first..first + count {
            let record = self.client.get(self.delays, &number.to_be_bytes())?;
            let bytes = record.and_then(|record| <[u8; 8]>::try_from(&record.value[..]).ok());
            let missing = || CliError::new(format!("the call for change {number} has left nothing"));
            delays_us.push(u64::from_le_bytes(bytes.ok_or_else(missing)?) as f64);
        }
        Ok([measured(took_us, 1, all), measured(delays_us, 1, all)])
    }
}

fn table_of(title: &str, sides: &[MeasuredSide], figures: &[(&str, FigureFn)]) -> ReportTable {
    let mut table = ReportTable::new(title, "", figures.iter().map(|(name, _)| *name));
    for side in sides {
        table.row(&side.name, figures.iter().map(|(_, figure)| side.spread(*figure)).collect());
    }
    table
}

/// What a put takes of the worker where its table is not watched and where a trigger watches it; adds the ratio.
fn put_slices(setup: &TriggerSetup, rounds: usize, findings: &mut ExperimentFindings) -> Result<ReportTable, CliError> {
    const UNWATCHED: usize = 0;
    const WATCHED: usize = 1;
    let PairedSides { sides: [watched, alone], ratio } =
        measure_by_turns(rounds, |side| setup.put_ns([WATCHED, UNWATCHED][side]))?;
    let (what, target) = ("the worker's time for a put, watched / not watched", RatioTarget::AtMost(WATCHED_TARGET));
    findings.ratios.push(RatioResult::measured(what, "ns", ratio, [&watched, &alone], Some(target)));
    let mut table = ReportTable::new("What a put takes of the worker, by turns", "", ["ns"]);
    table.row("put, not watched", vec![alone]);
    table.row("put, watched for clears", vec![watched]);
    Ok(table)
}

pub(super) fn triggers(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let mut setup = TriggerSetup::start(args)?;
    let (seconds, rounds) = (args.seconds(SECONDS), args.rounds(ROUNDS));
    let about = format!(
        "Puts to four tables of durability interval with {} records each, {DEPTH} messages of {BATCH} under way: \
         nobody watches the first, a trigger for clears alone reads the log of the second, a trigger calls an \
         extension that does nothing for each put to the third, and one for up to {TOGETHER} puts at a time to the \
         fourth. The worker's time for a put to the second and to the first, by turns in slices of some milliseconds. \
         How many changes a second a trigger handles that have gathered. One put at a time to a table of \
         durability disk and to one of durability interval, and how long after its beginning the trigger's call \
         ran. The threads of triggers and of the log have the generator's core.",
        setup.records
    );
    let mut findings = ExperimentFindings::new("triggers", about);
    let names = ["put, not watched", "put, watched for clears", "put, each is a call", "put, several are a call"];
    let puts = measure_interleaved(rounds, &names, |side| setup.puts(side, seconds))?;
    let slices = put_slices(&setup, rounds, &mut findings)?;
    let names = ["changes handled, one a call", "changes handled, several a call"];
    let handled = measure_interleaved(rounds, &names, |side| setup.handled(CALLED[side], seconds))?;
    let mut single: Vec<MeasuredSide> = SINGLES
        .iter()
        .flat_map(|(name, _)| [format!("the put, {name}"), format!("from the put's beginning to the call, {name}")])
        .map(|name| MeasuredSide { name, rounds: Vec::new() })
        .collect();
    for _ in 0..rounds.max(1) {
        for which in 0..SINGLES.len() {
            for (side, found) in single[2 * which..].iter_mut().zip(setup.one_at_a_time(which, seconds)?) {
                side.rounds.push(found);
            }
        }
    }
    let rates: [(&str, FigureFn); 3] = [("thousand/s", THOUSAND_PER_S), ("p50, us", P50_US), ("p99, us", P99_US)];
    findings.tables.push(table_of("Puts", &puts, &rates));
    findings.tables.push(slices);
    findings.tables.push(table_of("Changes that have gathered", &handled, &rates[..1]));
    findings.tables.push(table_of("One put at a time", &single, &rates[1..]));
    if let ([alone, read, ..], [put, call, _, soon]) = (puts.as_slice(), single.as_slice()) {
        let sides = [&read.spread(THOUSAND_PER_S), &alone.spread(THOUSAND_PER_S)];
        findings.ratios.push(RatioResult::of("puts, watched / not watched", "thousand/s", sides, None));
        for handled in &handled {
            let target = RoundSpread::of(vec![HANDLED_THOUSAND_PER_S; handled.rounds.len()]);
            let what = format!("{} / {HANDLED_THOUSAND_PER_S} thousand a second", handled.name);
            let sides = [&handled.spread(THOUSAND_PER_S), &target];
            findings.ratios.push(RatioResult::of(what, "thousand/s", sides, Some(RatioTarget::AtLeast(1.0))));
        }
        let allowed = put.spread(P99_US).rounds.iter().map(|put_us| put_us + BEHIND_DISK_US).collect();
        let what = format!("from put to call / the put + {BEHIND_DISK_US} us, p99");
        let sides = [&call.spread(P99_US), &RoundSpread::of(allowed)];
        findings.ratios.push(RatioResult::of(what, "us", sides, Some(RatioTarget::AtMost(1.0))));
        let within = RoundSpread::of(vec![SOON_US; soon.rounds.len()]);
        let what = format!("from put to call where the put does not wait for the disk / {SOON_US} us, p99");
        let sides = [&soon.spread(P99_US), &within];
        findings.ratios.push(RatioResult::of(what, "us", sides, Some(RatioTarget::AtMost(1.0))));
    }
    Ok(findings)
}
