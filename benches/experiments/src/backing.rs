//! `sandstorm bench backing`: a table in front of objects that take their time. Puts by each policy over the time that
//! the backing takes, gets over the size of the working set, the time to flush, and how many changes one write of an
//! object stands for: the figures of the thesis on `cached`, a cache in front of a distributed object store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sandstorm_backing::{
    BackedTable, BackingError, FolderObjects, MemoryObjects, ObjectStore, StoredObject, WriteCondition,
};
use sandstorm_client::control::{
    BackingPatch, BackingSpec, BackingStatus, DurabilityLevel, FlushSpec, TableMode, TablePatch, TableSpec, WritePolicy,
};
use sandstorm_client::load::{Class, Data, Mix, Pace, Skew, TenantLoad, fill};
use sandstorm_terminal::output::CliError;

use super::durable::measured;
use super::measure::{
    LoadMeasurement, MeasuredSide, P50_US, P99_US, THOUSAND_PER_S, axis, measure_sweep, run_single_class,
};
use super::report::{
    AxisScale, ExperimentFindings, LinePlot, PlotPoint, PlotSeries, RatioResult, RatioTarget, ReportTable, RoundSpread,
};
use super::{BenchArgs, bench_server};
use crate::local_server::{LocalServer, LocalTenant};

/// Records that the table's memory has room for, about; the working sets are parts and multiples of it.
const RECORDS: u64 = 20_000;
/// Bytes that the table's quota is charged for a record of 30 + 100 bytes, with its part of the buckets.
const RECORD_BYTES: u64 = 184;
/// Messages under way.
const DEPTH: usize = 64;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.4;
const ROUNDS: usize = 3;
/// Milliseconds that the backing takes for a request.
const LATENCIES_MS: [f64; 3] = [0.0, 2.0, 10.0];
/// Working sets, in sizes of the table's memory.
const WORKING_SETS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
/// Milliseconds that a request takes where that is not what is varied.
const LATENCY_MS: f64 = 1.0;
/// Runs of a load, at most, until memory has what that load leaves there.
const WARMING_RUNS: usize = 8;
/// Milliseconds for which changes are gathered.
const GATHERED_MS: [f64; 3] = [10.0, 100.0, 1_000.0];
/// Requests that a table has under way at its backing: what bounds it beside the latency.
const UNDER_WAY: f64 = sandstorm_backing::limits::REQUESTS_PER_TABLE as f64;

/// Objects that take their time.
#[derive(Debug)]
struct SlowObjects {
    inner: Arc<dyn ObjectStore>,
    latency_us: AtomicU64,
}

impl SlowObjects {
    fn new(inner: Arc<dyn ObjectStore>) -> Arc<SlowObjects> {
        Arc::new(SlowObjects { inner, latency_us: AtomicU64::new(0) })
    }

    fn set_latency_ms(&self, latency_ms: f64) {
        self.latency_us.store((latency_ms * 1_000.0) as u64, Relaxed);
    }

    fn take_time(&self) {
        let latency_us = self.latency_us.load(Relaxed);
        if latency_us > 0 {
            std::thread::sleep(Duration::from_micros(latency_us));
        }
    }
}

impl ObjectStore for SlowObjects {
    fn get(&self, name: &str, most_bytes: usize) -> Result<Option<StoredObject>, BackingError> {
        self.take_time();
        self.inner.get(name, most_bytes)
    }

    fn put(&self, name: &str, bytes: &[u8], condition: &WriteCondition) -> Result<String, BackingError> {
        self.take_time();
        self.inner.put(name, bytes, condition)
    }

    fn delete(&self, name: &str, condition: &WriteCondition) -> Result<(), BackingError> {
        self.take_time();
        self.inner.delete(name, condition)
    }
}

/// A table, and what is behind it.
struct BackedBench {
    name: &'static str,
    objects: Arc<SlowObjects>,
    table: u64,
}

struct BackingSetup {
    server: LocalServer,
    tenant: LocalTenant,
    /// In front of memory, and of a folder.
    tables: [BackedBench; 2],
    records: u64,
    _folder: tempfile::TempDir,
}

impl BackingSetup {
    fn start(args: &BenchArgs) -> Result<BackingSetup, CliError> {
        let records = args.records.unwrap_or(RECORDS);
        let server = bench_server::start_bench_server(1, |overrides| {
            // Nothing is pushed here.
            (overrides.ephemeral, overrides.builder) = (Some(false), Some(false));
        })?;
        let tenant = server.tenant("bench", "first", TableMode::Cache)?;
        let folder = tempfile::tempdir()?;
        let memory = SlowObjects::new(Arc::new(MemoryObjects::default()));
        let in_folder = SlowObjects::new(Arc::new(FolderObjects::open(folder.path())?));
        let quota_bytes = Some((records * RECORD_BYTES).max(1 << 20));
        let make = |name: &'static str, objects: Arc<SlowObjects>| -> Result<BackedBench, CliError> {
            let backing = BackingSpec { url: format!("memory:bench-{name}"), ..BackingSpec::default() };
            let new = TableSpec {
                name: name.to_owned(),
                mode: TableMode::Cache,
                quota_bytes,
                durability: Some(DurabilityLevel::Interval),
                backing: Some(backing),
                ..TableSpec::default()
            };
            let table = server.control().create_table("bench", &new)?.id;
            with_backing(&server, name, |backing| backing.reopen(Arc::clone(&objects) as Arc<dyn ObjectStore>))?;
            Ok(BackedBench { name, objects, table })
        };
        let tables = [make("memory", memory)?, make("folder", in_folder)?];
        Ok(BackingSetup { server, tenant, tables, records, _folder: folder })
    }

    fn data(&self, table: &BackedBench, records: u64) -> Data {
        Data::new(table.table, records.max(1))
    }

    /// Has the objects behind the first table have as many records as the largest working set has.
    fn fill(&self, records: u64) -> Result<(), CliError> {
        let [table, _] = &self.tables;
        // Each is there when its put is answered: so the table keeps none that it has no room for.
        self.set(table, WritePolicy::WriteThrough, 1.0, 0.0)?;
        fill(&self.server.client(&self.tenant), &self.data(table, records), &mut |_, _| {})?;
        Ok(())
    }

    fn set(
        &self,
        table: &BackedBench,
        policy: WritePolicy,
        flush_after_ms: f64,
        latency_ms: f64,
    ) -> Result<(), CliError> {
        let backing = BackingPatch {
            policy: Some(policy),
            flush_after_ms: Some(flush_after_ms as u64),
            dirty_limit_bytes: Some(1 << 30),
            ..BackingPatch::default()
        };
        let change = TablePatch { backing: Some(backing), ..TablePatch::default() };
        self.server.control().change_table("bench", table.name, &change)?;
        table.objects.set_latency_ms(latency_ms);
        Ok(())
    }

    fn flush(&self, table: &BackedBench) -> Result<Duration, CliError> {
        let begun = Instant::now();
        self.server.control().flush_table("bench", table.name, &FlushSpec::default())?;
        Ok(begun.elapsed())
    }

    fn status(&self, table: &BackedBench) -> Result<BackingStatus, CliError> {
        let found = self.server.control().table("bench", table.name)?;
        found.backing.ok_or_else(|| CliError::new("the table has no backing"))
    }

    fn load(&self, data: Data, class: Class, skew: Skew) -> TenantLoad {
        let load = TenantLoad::new("bench", self.server.client(&self.tenant), data, Mix::only(class));
        load.pace(Pace::Closed { depth: DEPTH }).skew(skew)
    }
}

/// Calls a function with the backing of a table.
fn with_backing(server: &LocalServer, name: &str, f: impl FnOnce(&BackedTable)) -> Result<(), CliError> {
    let snapshot = server.directory().snapshot();
    let found = snapshot.iter().find(|view| &*view.tenant.name == "bench").and_then(|view| view.table_by_name(name));
    let backing = found.and_then(|entry| entry.backing()).ok_or_else(|| CliError::new("the table has no backing"))?;
    f(backing);
    Ok(())
}

/// All values, or those that are measured where it has to be quick.
fn points(args: &BenchArgs, all: &[f64], quick: &[f64]) -> Vec<f64> {
    if args.quick { quick.to_vec() } else { all.to_vec() }
}

/// Writes objects one after the other for so long, past the table.
fn write_bare(objects: &SlowObjects, seconds: f64) -> Result<LoadMeasurement, CliError> {
    let (begun, mut took_us, value) = (Instant::now(), Vec::new(), [7; 178]);
    while begun.elapsed() < Duration::from_secs_f64(seconds) {
        let at = Instant::now();
        let written = objects.put("bare", &value, &WriteCondition::Always);
        written.map_err(|error| CliError::new(error.to_string()))?;
        took_us.push(at.elapsed().as_nanos() as f64 / 1_000.0);
    }
    Ok(measured(took_us, 1, begun.elapsed()))
}

/// Puts by each policy, over the time that the backing takes.
fn puts(setup: &BackingSetup, args: &BenchArgs, findings: &mut ExperimentFindings) -> Result<(), CliError> {
    let [table, _] = &setup.tables;
    let (seconds, data) = (args.seconds(SECONDS), setup.data(table, setup.records / 2));
    let names = ["write-back", "write-through", "the backing itself, one object at a time"];
    let x = axis("ms of the backing for a request", AxisScale::Linear);
    let sweep = measure_sweep(
        args.rounds(ROUNDS),
        x,
        &points(args, &LATENCIES_MS, &[2.0]),
        &names,
        |latency_ms, side| -> Result<LoadMeasurement, CliError> {
            let policy = if side == 0 { WritePolicy::WriteBack } else { WritePolicy::WriteThrough };
            setup.set(table, policy, GATHERED_MS[1], latency_ms)?;
            if side == 2 {
                return write_bare(&table.objects, seconds);
            }
            let load = setup.load(data.clone(), Class::Put, Skew::default());
            let measured = run_single_class(load, Class::Put, seconds)?;
            // What is left is not the next side's.
            table.objects.set_latency_ms(0.0);
            setup.flush(table)?;
            Ok(measured)
        },
    )?;
    sweep.show(findings, "Puts", "thousand/s", AxisScale::Log, THOUSAND_PER_S);
    sweep.show(findings, "Puts", "p50, us", AxisScale::Log, P50_US);
    sweep.show(findings, "Puts", "p99, us", AxisScale::Log, P99_US);
    let figure = |index| sweep.side(2.0, index).map(|side: &MeasuredSide| side.spread(THOUSAND_PER_S));
    if let Some((back, through)) = figure(0).zip(figure(1)) {
        let target = Some(RatioTarget::AtLeast(50.0));
        let what = "puts with a backing of 2 ms, write-back / write-through";
        findings.ratios.push(RatioResult::of(what, "thousand/s", [&back, &through], target));
        let bound = RoundSpread::of(vec![UNDER_WAY / 2.0; through.rounds.len()]);
        let what = format!("puts of write-through / {UNDER_WAY} requests of 2 ms under way at a time");
        findings.ratios.push(RatioResult::of(what, "thousand/s", [&through, &bound], Some(RatioTarget::AtLeast(0.8))));
    }
    Ok(())
}

/// Runs a load until memory has what it leaves there: until about as many records have to be loaded as in the run
/// before. Returns the loads so far.
fn warm(
    setup: &BackingSetup,
    table: &BackedBench,
    load: impl Fn() -> TenantLoad,
    seconds: f64,
) -> Result<u64, CliError> {
    let (mut before, mut loaded) = (setup.status(table)?.loads, u64::MAX);
    for _ in 0..WARMING_RUNS {
        run_single_class(load(), Class::Get, seconds)?;
        let now = setup.status(table)?.loads;
        let is_warm = now - before >= loaded / 10 * 9;
        (loaded, before) = (now - before, now);
        if is_warm {
            break;
        }
    }
    Ok(before)
}

/// Gets over the size of the working set, by Zipf's law and evenly; with the part of them that memory had.
fn gets(setup: &BackingSetup, args: &BenchArgs, findings: &mut ExperimentFindings) -> Result<(), CliError> {
    let [table, _] = &setup.tables;
    let sets = points(args, &WORKING_SETS, &[0.5, 2.0]);
    let records = |set: f64| (setup.records as f64 * set) as u64;
    setup.fill(records(sets.iter().copied().fold(0.0, f64::max)))?;
    setup.set(table, WritePolicy::ReadThrough, 1.0, LATENCY_MS)?;
    let (seconds, names) = (args.seconds(SECONDS), ["Zipf's law, 0.99", "all alike"]);
    let mut hits: Vec<(f64, usize, f64)> = Vec::new();
    let x = axis("working set, in sizes of the table's memory", AxisScale::Linear);
    let sweep = measure_sweep(args.rounds(ROUNDS), x.clone(), &sets, &names, |set, side| {
        let skew = if side == 0 { Skew::default() } else { Skew::Uniform };
        let load = || setup.load(setup.data(table, records(set)), Class::Get, skew);
        let before = warm(setup, table, load, seconds)?;
        let found = run_single_class(load(), Class::Get, seconds)?;
        let loads = setup.status(table)?.loads.saturating_sub(before);
        // The warm-up's gets count with the measured ones.
        let gets = found.per_s * seconds * 1.25;
        hits.push((set, side, (1.0 - loads as f64 / gets).clamp(0.0, 1.0)));
        if side == 1 {
            let in_memory = setup.server.control().table("bench", table.name)?.records;
            hits.push((set, 2, (in_memory as f64 / records(set) as f64).min(1.0)));
        }
        Ok(found)
    })?;
    sweep.show(findings, "Gets", "thousand/s", AxisScale::Log, THOUSAND_PER_S);
    sweep.show(findings, "Gets", "p50, us", AxisScale::Log, P50_US);
    sweep.show(findings, "Gets", "p99, us", AxisScale::Log, P99_US);
    let spread = |set: f64, side: usize| {
        let of = hits.iter().filter(|(at, which, _)| *at == set && *which == side);
        RoundSpread::of(of.map(|(_, _, part)| *part).collect())
    };
    // Where all are alike, memory should have the part of the working set that fits.
    let columns = [names[0], names[1], "all alike, calculated"];
    let mut shown = ReportTable::new("Gets, part that memory had", &x.name, columns);
    let mut series: Vec<PlotSeries> =
        names.iter().map(|name| PlotSeries { name: (*name).to_owned(), points: Vec::new() }).collect();
    for set in &sets {
        let cells: Vec<RoundSpread> = (0..columns.len()).map(|side| spread(*set, side)).collect();
        for (series, y) in series.iter_mut().zip(&cells) {
            series.points.push(PlotPoint { x: *set, y: y.clone() });
        }
        shown.row(format!("{set}"), cells);
    }
    findings.tables.push(shown);
    let y = axis("part", AxisScale::Linear);
    findings.plots.push(LinePlot { title: "Gets that memory had".to_owned(), x, y, series });
    let figure = |set: &f64| sweep.side(*set, 1).map(|side| side.spread(THOUSAND_PER_S));
    if let Some((fits, exceeds)) = sets.first().and_then(figure).zip(sets.last().and_then(figure)) {
        let what = "gets, all alike, of the smallest working set / of the largest";
        findings.ratios.push(RatioResult::of(what, "thousand/s", [&fits, &exceeds], None));
    }
    Ok(())
}

/// The time until the backing has all, over the number of changed records, in front of memory and of a folder.
fn flushes(setup: &BackingSetup, args: &BenchArgs, findings: &mut ExperimentFindings) -> Result<(), CliError> {
    let parts = points(args, &[0.0625, 0.125, 0.25], &[0.125]);
    let names = setup.tables.each_ref().map(|table| format!("{}, ms", table.name));
    let mut shown = ReportTable::new("Time to flush", "changed records", &names);
    let mut series: Vec<PlotSeries> =
        names.iter().map(|name| PlotSeries { name: name.clone(), points: Vec::new() }).collect();
    for part in parts {
        let records = ((setup.records as f64 * part) as u64).max(1);
        let mut took_ms: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        for _ in 0..args.rounds(ROUNDS) {
            for (table, took_ms) in setup.tables.iter().zip(&mut took_ms) {
                // Nothing is written before its time.
                setup.set(table, WritePolicy::WriteBack, 600_000.0, LATENCY_MS)?;
                fill(&setup.server.client(&setup.tenant), &setup.data(table, records), &mut |_, _| {})?;
                took_ms.push(setup.flush(table)?.as_secs_f64() * 1_000.0);
            }
        }
        let cells = took_ms.map(RoundSpread::of);
        for (series, y) in series.iter_mut().zip(&cells) {
            series.points.push(PlotPoint { x: records as f64, y: y.clone() });
        }
        shown.row(format!("{records}"), cells.into());
    }
    findings.tables.push(shown);
    let (x, y) = (axis("changed records", AxisScale::Linear), axis("ms", AxisScale::Linear));
    findings.plots.push(LinePlot { title: "Time to flush".to_owned(), x, y, series });
    Ok(())
}

/// How many changes the write of one object stands for, over the time for which they are gathered.
fn gathered(setup: &BackingSetup, args: &BenchArgs, findings: &mut ExperimentFindings) -> Result<(), CliError> {
    let [table, _] = &setup.tables;
    let (seconds, data) = (args.seconds(SECONDS), setup.data(table, setup.records / 2));
    let columns = ["thousand puts/s", "objects written", "puts for each of them"];
    let mut shown =
        ReportTable::new("Changes of write-back that one object stands for", "ms for which it gathers", columns);
    for gathered_ms in points(args, &GATHERED_MS, &[100.0]) {
        let (mut puts, mut objects, mut for_each) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.rounds(ROUNDS) {
            setup.set(table, WritePolicy::WriteBack, gathered_ms, LATENCY_MS)?;
            let before = setup.status(table)?.flushes;
            let found = run_single_class(setup.load(data.clone(), Class::Put, Skew::default()), Class::Put, seconds)?;
            setup.flush(table)?;
            let written = setup.status(table)?.flushes.saturating_sub(before) as f64;
            puts.push(THOUSAND_PER_S(&found));
            objects.push(written);
            for_each.push(found.per_s * seconds * 1.25 / written.max(1.0));
        }
        shown.row(format!("{gathered_ms}"), [puts, objects, for_each].map(RoundSpread::of).into());
    }
    findings.tables.push(shown);
    Ok(())
}

pub(super) fn backing(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let setup = BackingSetup::start(args)?;
    let about = format!(
        "Tables with room for about {} records of 30 + 100 bytes, durability `interval`, in front of objects in memory and in a \
         folder, each request of which is made to take a time; a table has {UNDER_WAY} requests under way. {DEPTH} messages under way. \
         Puts: half as many records, by Zipf's law of 0.99. Gets: read-through, a backing of {LATENCY_MS} ms, after a run that has \
         filled the memory.",
        setup.records,
    );
    let mut findings = ExperimentFindings::new("backing", about);
    puts(&setup, args, &mut findings)?;
    gathered(&setup, args, &mut findings)?;
    flushes(&setup, args, &mut findings)?;
    gets(&setup, args, &mut findings)?;
    let status = setup.status(&setup.tables[0])?;
    if status.load_errors + status.flush_errors > 0 {
        let (loads, flushes) = (status.load_errors, status.flush_errors);
        return Err(CliError::new(format!("{loads} loads and {flushes} writes of objects failed: this is a bug")));
    }
    Ok(findings)
}
