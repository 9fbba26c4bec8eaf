//! `sandstorm bench migration`: half of a table's slots move from one server to another, under load. Three servers and
//! an etcd, on this machine.

mod observed_move;
mod redis_cluster;
mod slot_writer;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sandstorm_client::control::SlotMoveSpec;
use sandstorm_client::load::{
    Arrivals, Class, Data, LoadPeriod, Mix, Options, Pace, Report, Skew, TenantLoad, TimeLine, fill, keys, run,
};
use sandstorm_net::slots::slot_of;
use sandstorm_terminal::output::CliError;

use self::observed_move::{MOVE_PATIENCE, MovePoint, ObservedMove};
use super::cluster_server::{ClusterFolder, SpawnedServer, await_that, has_etcd};
use super::measure::{axis, run_loads};
use super::report::{
    AxisScale, ExperimentFindings, LinePlot, PlotPoint, PlotSeries, RatioResult, RatioTarget, ReportTable, RoundSpread,
};
use super::{BenchArgs, bench_server};

const SERVERS: usize = 3;
/// Records by default: a million of them lie in the slots that move.
const RECORDS: u64 = 2_000_000;
const TABLES: &str = "{ name = 't', id = 1, durability = 'interval' }";
const TABLE: u64 = 1;
/// Bytes of key and value of a record.
const RECORD_BYTES: (usize, usize) = (30, 100);
const ROUNDS: usize = 3;
/// Seconds without a move before each one, by default.
const SECONDS: f64 = 2.0;
/// The slots that move: half of all.
const MOVING: RangeInclusive<u16> = 0..=8191;
/// The part of the greatest rate that is offered, by default.
const SHARE: f64 = 0.5;
/// Writes a second to the slots that move, by default.
const WRITES_PER_S: f64 = 100_000.0;
/// The same where they are only to show the pause: one in 200 us.
const PROBES_PER_S: f64 = 5_000.0;
/// Writes in one message, at most.
const WRITE_BATCH: usize = 32;
/// Length of the periods of the time lines.
const PERIOD: Duration = Duration::from_millis(100);
/// The longest load; it is stopped long before.
const MOST_SECONDS: u64 = 3_600;
/// Targets: the rate of the move, the pause of writes, and the gets' tail over that without a move.
const MOVED_MB_PER_S: f64 = 200.0;
const PAUSE_MS: f64 = 5.0;
const TAIL_RATIO: f64 = 3.0;

/// The servers: the first one owns all slots, until half of them move to the second.
struct MigrationSetup {
    servers: Vec<SpawnedServer>,
    data: Data,
    /// Records in the slots that move.
    moving_records: u64,
    _folder: ClusterFolder,
}

/// What a move under a load has found.
struct MoveFindings {
    moved: ObservedMove,
    /// The gets of the load without a move, and while there is one.
    gets: [LoadPeriod; 2],
    /// The same of the writes to the slots that move.
    writes: [LoadPeriod; 2],
    points: Vec<MovePoint>,
    failed: u64,
}

impl MigrationSetup {
    fn start(records: u64) -> Result<MigrationSetup, CliError> {
        let folder = ClusterFolder::start(TABLES)?;
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            let mut server = folder.server(Some(1), "--no-pin")?;
            server.start()?;
            servers.push(server);
        }
        let data = Data::new(TABLE, records);
        let mut setup = MigrationSetup { servers, data, moving_records: 0, _folder: folder };
        let first = setup.server(0)?;
        await_that("the servers do not find each other", || {
            let status = first.status()?;
            Ok(status.servers.iter().filter(|one| one.lives).count() == SERVERS && setup.is_at_start()?)
        })?;
        fill(&first.client(), &setup.data, &mut |_, _| {})?;
        let mut key = Vec::new();
        let is_moving = |id: &u64| {
            keys::write_key(keys::RECORD, *id, RECORD_BYTES.0, &mut key);
            MOVING.contains(&slot_of(&key))
        };
        setup.moving_records = (0..records).filter(is_moving).count() as u64;
        Ok(setup)
    }

    fn server(&self, number: usize) -> Result<&SpawnedServer, CliError> {
        self.servers.get(number).ok_or_else(|| CliError::new("there is no such server"))
    }

    /// Megabytes of keys and values in the slots that move.
    fn moving_mb(&self) -> f64 {
        self.moving_records as f64 * (RECORD_BYTES.0 + RECORD_BYTES.1) as f64 / 1e6
    }

    /// YCSB-B: 95 % gets, by Zipf's law.
    fn load(&self) -> Result<TenantLoad, CliError> {
        let mix: Mix = "ycsb-b".parse().map_err(CliError::new)?;
        Ok(TenantLoad::new("ycsb-b", self.server(0)?.client(), self.data.clone(), mix))
    }

    /// The greatest rate of that load, in a closed loop, by one server.
    fn greatest_rate(&self, args: &BenchArgs) -> Result<f64, CliError> {
        let report = run_loads(vec![self.load()?.pace(Pace::Closed { depth: args.depth })], args.seconds(SECONDS))?;
        Ok(report.per_s)
    }

    /// Has the slots move to a server.
    fn move_to(&self, number: usize) -> Result<ObservedMove, CliError> {
        let target = self.server(number)?;
        let spec = SlotMoveSpec { slots: vec![[*MOVING.start(), *MOVING.end()]], to: target.id.clone(), mib_per_s: 0 };
        ObservedMove::watch(&target.control(), &spec)
    }

    /// Whether the first server owns all slots.
    fn is_at_start(&self) -> Result<bool, CliError> {
        let first = self.server(0)?;
        Ok(first.status()?.servers.iter().any(|one| one.id == first.id && one.slots == [[0, 16383]]))
    }

    /// Waits until nothing is left of moves, and has the slots where they were at first: they still are if the move was
    /// cancelled.
    fn restore(&self) -> Result<(), CliError> {
        self.await_rest()?;
        if !self.is_at_start()? {
            self.move_to(0)?;
            self.await_rest()?;
        }
        let failure = || CliError::new("the slots could not be moved back in time");
        self.is_at_start()?.then_some(()).ok_or_else(failure)
    }

    fn await_rest(&self) -> Result<(), CliError> {
        await_that("a move does not end", || {
            let statuses: Result<Vec<_>, _> = self.servers.iter().map(SpawnedServer::status).collect();
            Ok(statuses?.iter().all(|status| status.moves.is_empty()))
        })
    }

    /// A move beside the load at a set rate, and writes to the slots that move.
    fn measure(&self, per_s: f64, writes_per_s: f64, seconds: f64) -> Result<MoveFindings, CliError> {
        let lines = [Class::Get, Class::Put].map(|class| TimeLine::new(PERIOD, Some(class)));
        let load = self.load()?.pace(Pace::per_second(per_s)).time_line(&lines[0]);
        let client = self.server(0)?.client();
        let writes = TenantLoad::new("writes", client, self.data.clone(), Mix::only(Class::Put))
            .skew(Skew::Uniform)
            .in_slots(MOVING)
            .pace(Pace::Open { per_s: writes_per_s, arrivals: Arrivals::Fixed })
            .batch(WRITE_BATCH)
            .time_line(&lines[1]);
        let duration = Duration::from_secs(MOST_SECONDS);
        let options = Options { warm_up: Duration::ZERO, duration, ..Options::new(vec![load, writes]) };
        let (quiet_from, moved, report) = std::thread::scope(|scope| {
            let load = scope.spawn(|| run(&options, &mut |_| {}));
            let sleep = |seconds: f64| std::thread::sleep(Duration::from_secs_f64(seconds) + PERIOD);
            sleep(seconds / 4.0);
            let quiet_from = Instant::now();
            sleep(seconds);
            let moved = self.move_to(1);
            sleep(seconds / 4.0);
            options.stop.store(true, Ordering::Relaxed);
            (quiet_from, moved, load.join())
        });
        let report = report.map_err(|_| CliError::new("the load panicked"))??;
        let moved = moved?;
        self.restore()?;
        // A period that has a part of both counts as one of the move.
        let quiet_to = moved.begun.checked_sub(PERIOD).unwrap_or(moved.begun);
        let parts = |line: &Arc<TimeLine>| [line.between(quiet_from, quiet_to), line.between(moved.begun, moved.ended)];
        let points = moved.points(&lines[0].periods(), PERIOD);
        let (gets, writes, failed) = (parts(&lines[0]), parts(&lines[1]), failures(&report)?);
        Ok(MoveFindings { moved, gets, writes, points, failed })
    }
}

/// Requests that ended with an error; wrong answers are one of the experiment.
fn failures(report: &Report) -> Result<u64, CliError> {
    if report.wrong > 0 {
        return Err(CliError::new(format!("{} replies were wrong: this is a bug", report.wrong)).below(report));
    }
    Ok(report.classes.iter().map(|row| row.count - row.ok).sum())
}

/// The moves beside one rate of writes.
struct MoveRounds {
    writes_per_s: f64,
    rounds: Vec<MoveFindings>,
}

impl MoveRounds {
    fn name(&self) -> String {
        format!("beside {:.0} writes/s to these slots", self.writes_per_s)
    }

    fn spread(&self, figure: impl Fn(&MoveFindings) -> f64) -> RoundSpread {
        RoundSpread::of(self.rounds.iter().map(figure).collect())
    }

    fn mb_per_s(&self, setup: &MigrationSetup) -> RoundSpread {
        self.spread(|one| setup.moving_mb() / one.moved.seconds())
    }

    fn pause_ms(&self, moving: usize) -> RoundSpread {
        self.spread(|one| one.writes.get(moving).map_or(f64::NAN, |writes| writes.longest_gap_us / 1_000.0))
    }

    fn row(&self, setup: &MigrationSetup, table: &mut ReportTable) {
        let cells = vec![
            self.spread(|one| one.writes[1].per_s / 1_000.0),
            self.spread(|one| one.moved.seconds()),
            self.mb_per_s(setup),
            self.pause_ms(1),
            self.pause_ms(0),
            self.spread(|one| one.failed as f64),
        ];
        table.row(self.name(), cells);
    }

    fn rows_of_gets(&self, table: &mut ReportTable) {
        for (moving, when) in ["no move", "half of the slots move"].into_iter().enumerate() {
            let of = |figure: fn(&LoadPeriod) -> f64| self.spread(|one| one.gets.get(moving).map_or(f64::NAN, figure));
            let cells =
                vec![of(|one| one.per_s / 1_000.0), of(|one| one.p50_us), of(|one| one.p99_us), of(|one| one.p999_us)];
            table.row(format!("{when}, {}", self.name()), cells);
        }
    }

    fn ratios(&self, setup: &MigrationSetup) -> [RatioResult; 3] {
        let (name, same) = (self.name(), |value: f64| self.spread(|_| value));
        let tail = |moving: usize| self.spread(|one| one.gets.get(moving).map_or(f64::NAN, |gets| gets.p999_us));
        let what = format!("p99.9 of gets while half of the slots move / without a move, {name}");
        let target = Some(RatioTarget::AtMost(TAIL_RATIO));
        let tails = RatioResult::of(what, "us", [&tail(1), &tail(0)], target);
        let what = format!("rate of the move / {MOVED_MB_PER_S} MB/s, {name}");
        let (sides, target) = ([&self.mb_per_s(setup), &same(MOVED_MB_PER_S)], Some(RatioTarget::AtLeast(1.0)));
        let rate = RatioResult::of(what, "MB/s", sides, target);
        let what = format!("longest pause of writes / {PAUSE_MS} ms, {name}");
        let (sides, target) = ([&self.pause_ms(1), &same(PAUSE_MS)], Some(RatioTarget::AtMost(1.0)));
        [tails, rate, RatioResult::of(what, "ms", sides, target)]
    }

    /// What there is to say of moves that did not come to their end.
    fn note(&self) -> Option<String> {
        let cancelled = self.rounds.iter().filter(|one| !one.moved.is_done).count();
        let (all, name) = (self.rounds.len(), self.name());
        let text = || format!("{cancelled} of {all} moves {name} did not end within {MOVE_PATIENCE:?}: cancelled");
        (cancelled > 0).then(text)
    }

    /// The time lines of the last round.
    fn plots(&self) -> Vec<LinePlot> {
        let points = self.rounds.last().map_or(&[][..], |round| &round.points);
        let series = |name: &str, figure: fn(&MovePoint) -> f64| PlotSeries {
            name: name.to_owned(),
            points: points.iter().map(|at| PlotPoint { x: at.at_s, y: RoundSpread::once(figure(at)) }).collect(),
        };
        let plot = |what: &str, y: &str, scale: AxisScale, series: Vec<PlotSeries>| LinePlot {
            title: format!("{what}, {}", self.name()),
            x: axis("seconds since the move was begun", AxisScale::Linear),
            y: axis(y, scale),
            series,
        };
        let latencies = vec![
            series("p50", |at| at.gets.p50_us),
            series("p99", |at| at.gets.p99_us),
            series("p99.9", |at| at.gets.p999_us),
        ];
        let rates = vec![series("gets", |at| at.gets.per_s / 1_000.0)];
        let moved = vec![series("records that the target has taken", |at| at.moved_mb_per_s)];
        vec![
            plot("Gets", "thousand/s", AxisScale::Linear, rates),
            plot("Latency of gets", "us", AxisScale::Log, latencies),
            plot("Moved", "MB/s", AxisScale::Linear, moved),
        ]
    }
}

pub(super) fn migration(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let (records, share) = (args.records.unwrap_or(RECORDS), args.share.unwrap_or(SHARE));
    let seconds = args.seconds(SECONDS);
    let about = format!(
        "Three servers and an etcd on this machine, a table of {records} records of 30 B + 100 B, of the durability \
         `interval`. The first server owns all slots, until half of them move to the second one, under YCSB-B (95 % \
         gets, Zipf 0.99) in an open loop at {share} of the rate of a closed one, and writes to the slots that move. A \
         request that finds its slot between servers is sent again, and its latency goes on. MB/s are of keys and \
         values, from the command until the target owns the slots. The pause is the longest time without an \
         acknowledged write."
    );
    let mut findings = ExperimentFindings::new("migration", about);
    if !has_etcd(&mut findings) {
        return Ok(findings);
    }
    bench_server::reset_affinity()?;
    let setup = MigrationSetup::start(records)?;
    let greatest = setup.greatest_rate(args)?;
    let rates = [PROBES_PER_S, args.writes.unwrap_or(WRITES_PER_S)];
    let mut all = rates.map(|writes_per_s| MoveRounds { writes_per_s, rounds: Vec::new() });
    for _ in 0..args.rounds(ROUNDS) {
        for one in &mut all {
            one.rounds.push(setup.measure(greatest * share, one.writes_per_s, seconds)?);
        }
    }
    let columns = [
        "writes reached, thousand/s",
        "move, s",
        "MB/s",
        "longest pause of writes, ms",
        "the same without a move, ms",
        "requests that failed",
    ];
    let mut moves = ReportTable::new("The move of half of the slots", "", columns);
    let mut gets = ReportTable::new("Gets", "", ["thousand/s", "p50, us", "p99, us", "p99.9, us"]);
    for one in &all {
        one.row(&setup, &mut moves);
        one.rows_of_gets(&mut gets);
        findings.ratios.extend(one.ratios(&setup));
        findings.plots.extend(one.plots());
        findings.notes.extend(one.note());
    }
    findings.tables.extend([moves, gets]);
    findings.notes.push(format!(
        "{:.0} thousand/s are the greatest rate, {} records move; the plots are of the last round",
        greatest / 1_000.0,
        setup.moving_records
    ));
    redis_cluster::beside(&setup, seconds, &mut findings)?;
    Ok(findings)
}
