//! `sandstorm bench durable`: what it costs that writes are on the disk. Puts to tables of each durability, one at a
//! time and many, beside a bare synchronous write of 4 KiB and Redis with its log; gets while all tables are durable,
//! and while checkpoints are written.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use sandstorm_client::control::{Control, DurabilityLevel, TableMode, TablePatch, TableSpec};
use sandstorm_client::load::peer::{PeerLoad, PeerProtocol, PeerWorkload};
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};
use sandstorm_log::{ChangeKind, ChangeLog, LogError, LogFolder, LogOptions, LoggedChange, RecoveredLog};

use super::measure::{
    FigureFn, LoadMeasurement, MeasuredSide, P50_US, P99_US, P999_US, THOUSAND_PER_S, measure_interleaved,
    resident_bytes, run_peer, run_single_class,
};
use super::peer_server::PeerServer;
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::{BenchArgs, bench_server};
use crate::local_server::{LocalServer, LocalTenant};
use sandstorm_terminal::output::CliError;

/// Records of each table: as many as matter here, since three tables are filled.
const RECORDS: u64 = 100_000;
/// Messages under way, and puts in each; the same number of requests at Redis.
const DEPTH: usize = 64;
const BATCH: usize = 32;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 5;
/// Bytes of a bare write, and of the file that it goes to: filled with zeros before, as a segment of the log is.
const BLOCK: usize = 4096;
const RAW_FILE_BYTES: usize = 32 << 20;
/// Bytes of key and value of the changes that the log is given alone.
const LOGGED_BYTES: (usize, usize) = (30, 100);
/// What a durable put may take beyond a bare write, microseconds at the median.
const BEYOND_RAW_US: f64 = 15.0;
/// What gets may take during checkpoints, over quiet ones, at the 99.9th percentile; and the process' memory.
const CHECKPOINT_P999: f64 = 1.5;
const CHECKPOINT_MEMORY: f64 = 1.03;
/// An empty table. Each time that it becomes durable a checkpoint of all durable tables is written.
const SCRATCH: &str = "scratch";
/// Time between two looks at the process' memory: a checkpoint takes far longer.
const MEMORY_EVERY: Duration = Duration::from_millis(2);

const LEVELS: [(&str, DurabilityLevel); 3] =
    [("none", DurabilityLevel::None), ("interval", DurabilityLevel::Interval), ("disk", DurabilityLevel::Disk)];

/// A file for bare writes.
struct RawFile {
    file: File,
    offset: usize,
}

impl RawFile {
    /// Opens a file that is filled with zeros; `direct`: for synchronous writes past the system's memory.
    fn open(folder: &Path, direct: bool) -> Result<RawFile, CliError> {
        let path = folder.join(if direct { "raw-direct" } else { "raw" });
        let zeros = File::create(&path)?;
        zeros.write_all_at(&vec![0; RAW_FILE_BYTES], 0)?;
        zeros.sync_all()?;
        let mut options = OpenOptions::new();
        if direct {
            let flags = i32::try_from((OFlags::DIRECT | OFlags::DSYNC).bits()).unwrap_or_default();
            options.custom_flags(flags);
        }
        Ok(RawFile { file: options.write(true).open(&path)?, offset: 0 })
    }

    /// Writes blocks one after the other for so long.
    fn write_on(&mut self, direct: bool, seconds: f64) -> Result<LoadMeasurement, CliError> {
        let bytes = vec![7; 2 * BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        let block = bytes.get(start..start + BLOCK).unwrap_or_default();
        let (begun, mut took_us) = (Instant::now(), Vec::new());
        while begun.elapsed() < Duration::from_secs_f64(seconds) {
            let at = Instant::now();
            self.file.write_all_at(block, self.offset as u64)?;
            if !direct {
                self.file.sync_data()?;
            }
            took_us.push(at.elapsed().as_nanos() as f64 / 1_000.0);
            self.offset = (self.offset + BLOCK) % RAW_FILE_BYTES;
        }
        Ok(measured(took_us, 1, begun.elapsed()))
    }
}

/// The figures of operations of so many parts each that took so long each, and all together.
pub(super) fn measured(mut took_us: Vec<f64>, parts: usize, all: Duration) -> LoadMeasurement {
    took_us.sort_by(f64::total_cmp);
    let part = |part: f64| took_us.get((took_us.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN);
    let per_s = (took_us.len() * parts) as f64 / all.as_secs_f64();
    let (p50_us, p99_us, p999_us) = (part(0.5), part(0.99), part(0.999));
    LoadMeasurement { per_s, keys_per_s: per_s, p50_us, p99_us, p999_us, ..LoadMeasurement::NOTHING }
}

/// A log without a server; `direct`: its frames are written directly, where the file system takes that.
fn log_alone(folder: &Path, direct: bool) -> Result<Arc<ChangeLog>, LogError> {
    let disk = LogFolder::lock(folder)?;
    let disk = Arc::new(if direct { disk } else { disk.with_buffered_writes() });
    RecoveredLog::read(disk, LogOptions::default(), &mut |_, _| Ok(()))?.start()
}

/// Appends changes, and waits until they are on the disk, again and again for so long. What has no room is left out:
/// the disk is behind.
fn append_on(log: &Arc<ChangeLog>, changes: usize, seconds: f64) -> LoadMeasurement {
    let (key, value) = (vec![7; LOGGED_BYTES.0], vec![9; LOGGED_BYTES.1]);
    let (begun, mut took_us, mut version) = (Instant::now(), Vec::new(), 0);
    while begun.elapsed() < Duration::from_secs_f64(seconds) {
        let (at, mut end) = (Instant::now(), 0);
        for _ in 0..changes {
            let Ok(_permit) = log.admit(key.len(), value.len()) else { continue };
            version += 1;
            let (kind, key, value) = (ChangeKind::Put, key.as_slice(), value.as_slice());
            let put = LoggedChange { kind, table: 1, version, expires_at_ms: 0, flags: 0, key, value };
            end = log.append(&put, false);
        }
        log.request(end);
        while log.durable() < end && log.failure().is_none() {
            std::hint::spin_loop();
        }
        took_us.push(at.elapsed().as_nanos() as f64 / 1_000.0);
    }
    measured(took_us, changes, begun.elapsed())
}

/// The servers, and the tables of each durability, filled.
struct DurableSetup {
    server: LocalServer,
    tenant: LocalTenant,
    /// In the order of [`LEVELS`].
    tables: Vec<Data>,
    /// Redis with `appendfsync everysec`, and with `always`.
    redis: [PeerServer; 2],
    raw: [RawFile; 2],
    /// Logs without a server: one that is written directly, and one that is not.
    logs: [Arc<ChangeLog>; 2],
    _folder: tempfile::TempDir,
}

impl DurableSetup {
    fn start(args: &BenchArgs) -> Result<DurableSetup, CliError> {
        let folder = tempfile::tempdir()?;
        let server = bench_server::start_bench_server(1, |overrides| overrides.ephemeral = Some(false))?;
        let tenant = server.tenant("bench", "first", TableMode::Cache)?;
        let mut tables = Vec::new();
        for (name, level) in LEVELS {
            let durability = Some(level);
            let create = TableSpec { name: name.to_owned(), durability, ..TableSpec::default() };
            let table = server.control().create_table("bench", &create)?.id;
            let data = Data::new(table, args.records.unwrap_or(RECORDS));
            fill(&server.client(&tenant), &data, &mut |_, _| {})?;
            tables.push(data);
        }
        let (name, durability) = (SCRATCH.to_owned(), Some(DurabilityLevel::None));
        let scratch = TableSpec { name, durability, quota_bytes: Some(1 << 20), ..TableSpec::default() };
        server.control().create_table("bench", &scratch)?;
        let redis = [
            PeerServer::redis_with_log(&folder.path().join("everysec"), "everysec")?,
            PeerServer::redis_with_log(&folder.path().join("always"), "always")?,
        ];
        let raw = [RawFile::open(folder.path(), true)?, RawFile::open(folder.path(), false)?];
        let log = |name: &str, direct| {
            log_alone(&folder.path().join(name), direct).map_err(|error| CliError::new(error.to_string()))
        };
        let logs = [log("log-direct", true)?, log("log", false)?];
        Ok(DurableSetup { server, tenant, tables, redis, raw, logs, _folder: folder })
    }

    /// Requests of one kind to the table of a durability.
    fn own(
        &self,
        level: usize,
        class: Class,
        (depth, batch): (usize, usize),
        seconds: f64,
    ) -> Result<LoadMeasurement, CliError> {
        let data = self.tables.get(level).cloned().unwrap_or_else(|| Data::new(self.tenant.table, 1));
        let load = TenantLoad::new("bench", self.server.client(&self.tenant), data, Mix::only(class));
        run_single_class(load.batch(batch).pace(Pace::Closed { depth }), class, seconds)
    }

    fn redis(
        &self,
        which: usize,
        (connections, pipeline): (usize, usize),
        seconds: f64,
    ) -> Result<LoadMeasurement, CliError> {
        let data = Data::new(0, self.tables.first().map_or(RECORDS, |data| data.records));
        let address = self.redis.get(which).map(|redis| redis.address);
        let address = address.ok_or_else(|| CliError::new("there is no such Redis"))?;
        let load = PeerLoad::new(address, PeerProtocol::Redis, PeerWorkload::Set, data);
        run_peer(&PeerLoad { connections, pipeline, ..load }, seconds)
    }

    /// A put at a time, beside bare writes.
    fn one_at_a_time(&mut self, args: &BenchArgs) -> Result<Vec<MeasuredSide>, CliError> {
        let seconds = args.seconds(SECONDS);
        let names = [
            "a bare write of 4 KiB, direct and synchronous",
            "a bare write of 4 KiB, then fdatasync",
            "put, none",
            "put, interval",
            "put, disk",
            "Redis, everysec",
            "Redis, always",
        ];
        measure_interleaved(args.rounds(ROUNDS), &names, |side| match side {
            0 | 1 => match self.raw.get_mut(side) {
                Some(raw) => raw.write_on(side == 0, seconds),
                None => Ok(LoadMeasurement::NOTHING),
            },
            2..=4 => self.own(side - 2, Class::Put, (1, 1), seconds),
            _ => self.redis(side - 5, (1, 1), seconds),
        })
    }

    fn many_at_once(&self, args: &BenchArgs) -> Result<Vec<MeasuredSide>, CliError> {
        let names = ["put, none", "put, interval", "put, disk", "Redis, everysec", "Redis, always"];
        let seconds = args.seconds(SECONDS);
        measure_interleaved(args.rounds(ROUNDS), &names, |side| match side {
            0..=2 => self.own(side, Class::Put, (DEPTH, BATCH), seconds),
            _ => self.redis(side - 3, (DEPTH, BATCH), seconds),
        })
    }

    /// As many changes as many puts at once are, in a log alone.
    fn log_alone(&self, args: &BenchArgs) -> Result<Vec<MeasuredSide>, CliError> {
        let names = ["written directly", "written, then fdatasync"];
        let seconds = args.seconds(SECONDS);
        measure_interleaved(args.rounds(ROUNDS), &names, |side| match self.logs.get(side) {
            Some(log) => Ok(append_on(log, DEPTH * BATCH, seconds)),
            None => Ok(LoadMeasurement::NOTHING),
        })
    }

    fn gets(&self, args: &BenchArgs) -> Result<Vec<MeasuredSide>, CliError> {
        let names = ["get, none", "get, interval", "get, disk"];
        let seconds = args.seconds(SECONDS);
        measure_interleaved(args.rounds(ROUNDS), &names, |side| self.own(side, Class::Get, (DEPTH, 1), seconds))
    }

    /// Gets of a durable table, without checkpoints and with them.
    fn checkpoints(&self, args: &BenchArgs) -> Result<CheckpointCost, CliError> {
        let names = ["get, disk, quiet", "get, disk, while checkpoints are written"];
        let (seconds, control) = (args.seconds(SECONDS), self.server.control());
        let (mut before, mut most, mut written) = (Vec::new(), Vec::new(), 0);
        let gets = measure_interleaved(args.rounds(ROUNDS), &names, |side| {
            if side == 0 {
                return self.own(2, Class::Get, (DEPTH, 1), seconds);
            }
            before.push(resident_bytes()?);
            let is_over = AtomicBool::new(false);
            let (gets, checkpoints, memory) = std::thread::scope(|scope| {
                let checkpoints = scope.spawn(|| checkpoint_on(control, &is_over));
                let memory = scope.spawn(|| most_resident_bytes(&is_over));
                let gets = self.own(2, Class::Get, (DEPTH, 1), seconds);
                is_over.store(true, Ordering::Relaxed);
                (gets, checkpoints.join(), memory.join())
            });
            let panicked = |_| CliError::new("a thread of the measurement has panicked");
            written += checkpoints.map_err(panicked)??;
            most.push(memory.map_err(panicked)??);
            gets
        })?;
        Ok(CheckpointCost { gets, before, most, written })
    }
}

/// What checkpoints cost clients that read meanwhile.
struct CheckpointCost {
    /// Quiet ones, and those during checkpoints.
    gets: Vec<MeasuredSide>,
    /// Resident bytes of the process before the checkpoints of each round, and at most during them.
    before: Vec<f64>,
    most: Vec<f64>,
    /// The checkpoints.
    written: usize,
}

/// Has checkpoints of all durable tables written, one after the other. Returns how many.
fn checkpoint_on(control: &Control, is_over: &AtomicBool) -> Result<usize, CliError> {
    let mut written = 0;
    loop {
        for level in [DurabilityLevel::Interval, DurabilityLevel::None] {
            let patch = TablePatch { durability: Some(level), ..TablePatch::default() };
            control.change_table("bench", SCRATCH, &patch)?;
        }
        written += 1;
        if is_over.load(Ordering::Relaxed) {
            return Ok(written);
        }
    }
}

/// Looks at this process' memory until it is over: the server's, and the generator's.
fn most_resident_bytes(is_over: &AtomicBool) -> Result<f64, CliError> {
    let mut most = resident_bytes()?;
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(MEMORY_EVERY);
        most = most.max(resident_bytes()?);
    }
    Ok(most)
}

/// The ratios of what checkpoints cost, with their targets.
fn checkpoint_ratios(CheckpointCost { gets, before, most, .. }: CheckpointCost) -> Vec<RatioResult> {
    let [quiet, beside] = gets.as_slice() else { return Vec::new() };
    let sides = [&beside.spread(P999_US), &quiet.spread(P999_US)];
    let target = Some(RatioTarget::AtMost(CHECKPOINT_P999));
    let late = RatioResult::of("gets, during checkpoints / quiet, p99.9", "us", sides, target);
    let mib = |bytes: Vec<f64>| RoundSpread::of(bytes.iter().map(|bytes| bytes / f64::from(1 << 20)).collect());
    let target = Some(RatioTarget::AtMost(CHECKPOINT_MEMORY));
    let memory =
        RatioResult::of("resident memory, during checkpoints / before", "MiB", [&mib(most), &mib(before)], target);
    vec![late, memory]
}

fn table_of(title: &str, sides: &[MeasuredSide]) -> ReportTable {
    let figures: [(&str, FigureFn); 4] =
        [("thousand/s", THOUSAND_PER_S), ("p50, us", P50_US), ("p99, us", P99_US), ("p99.9, us", P999_US)];
    let mut table = ReportTable::new(title, "", figures.map(|(name, _)| name));
    for side in sides {
        table.row(&side.name, figures.map(|(_, figure)| side.spread(figure)).into());
    }
    table
}

/// A ratio of the rates of two sides.
fn rates(what: &str, sides: &[MeasuredSide], [one, other]: [usize; 2], target: f64) -> Option<RatioResult> {
    let spreads = [sides.get(one)?.spread(THOUSAND_PER_S), sides.get(other)?.spread(THOUSAND_PER_S)];
    Some(RatioResult::of(what, "thousand/s", [&spreads[0], &spreads[1]], Some(RatioTarget::AtLeast(target))))
}

pub(super) fn durable(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let mut setup = DurableSetup::start(args)?;
    let records = setup.tables.first().map_or(0, |data| data.records);
    let about = format!(
        "Puts to tables of each durability, of {records} records, in one log on the disk of the temporary folder: one at a time, and {DEPTH} \
         messages of {BATCH} under way; at Redis {DEPTH} connections with pipelines of {BATCH}. Bare writes go to a file that is full of zeros. \
         Gets with {DEPTH} under way, quiet and while checkpoints of all durable tables are written one after the \
         other. The log's own threads have the generator's core. The log alone gets {} changes at a time from one \
         thread, which \
         then waits until they are on the disk.",
        DEPTH * BATCH
    );
    let mut findings = ExperimentFindings::new("durable", about);
    let single = setup.one_at_a_time(args)?;
    let many = setup.many_at_once(args)?;
    let gets = setup.gets(args)?;
    let checkpoints = setup.checkpoints(args)?;
    let alone = setup.log_alone(args)?;
    findings.tables.push(table_of("A write at a time", &single));
    findings.tables.push(table_of("Many at once", &many));
    findings.tables.push(table_of("Gets", &gets));
    let title = format!("Gets beside {} checkpoints", checkpoints.written);
    findings.tables.push(table_of(&title, &checkpoints.gets));
    findings.tables.push(table_of("The log alone", &alone));
    if let [raw, _, _, _, disk, ..] = single.as_slice() {
        let allowed = raw.spread(P50_US).rounds.iter().map(|raw_us| raw_us + BEYOND_RAW_US).collect();
        let what = format!("a durable put at a time / a bare write + {BEYOND_RAW_US} us, p50");
        let sides = [&disk.spread(P50_US), &RoundSpread::of(allowed)];
        findings.ratios.push(RatioResult::of(what, "us", sides, Some(RatioTarget::AtMost(1.0))));
    }
    let ratios = [
        rates("puts, disk / none, many at once", &many, [2, 0], 0.8),
        rates("puts, interval / none, many at once", &many, [1, 0], 0.95),
        rates("puts, disk / Redis with appendfsync always, many at once", &many, [2, 4], 3.0),
        rates("puts, interval / Redis with appendfsync everysec, many at once", &many, [1, 3], 1.0),
        rates("gets, interval / none", &gets, [1, 0], 0.97),
        rates("gets, disk / none", &gets, [2, 0], 0.97),
    ];
    findings.ratios.extend(ratios.into_iter().flatten());
    findings.ratios.extend(checkpoint_ratios(checkpoints));
    Ok(findings)
}
