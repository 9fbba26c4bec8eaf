//! `sandstorm bench recovery`: the time from the start of a server to its first answer, over records that are on the
//! disk: this server's log and checkpoint, Redis' RDB and AOF. Files are in the system's cache.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sandstorm_client::control::{Control, DurabilityLevel, TableSpec, TenantSpec};
use sandstorm_instance::LOG_FOLDER;
use sandstorm_terminal::output::CliError;

use super::peer_server::{REDIS, RedisConnection, free_address, is_installed};
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::{BenchArgs, bench_server};

const KEY_BYTES: usize = 30;
const VALUE_BYTES: usize = 100;
const ROUNDS: usize = 5;
/// Longest start that is waited for.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest wait for the checkpoint that follows the fill.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(30);
/// Wait until what was written last is on the disk, too: the table's durability is `interval`.
const SETTLE: Duration = Duration::from_millis(300);
/// Pause between two attempts to get an answer: far less than any start takes.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(1);
const NAMES: [&str; 3] = ["sandstorm, log and checkpoint", "Redis, RDB", "Redis, AOF"];

/// A server as a process, with its files in a folder.
struct StoredServer {
    program: std::path::PathBuf,
    arguments: Vec<String>,
    address: SocketAddr,
    child: Option<Child>,
}

impl Drop for StoredServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl StoredServer {
    fn new(program: &Path, arguments: impl FnOnce(u16) -> Vec<String>) -> Result<StoredServer, CliError> {
        let address = free_address()?;
        let arguments = arguments(address.port());
        Ok(StoredServer { program: program.to_owned(), arguments, address, child: None })
    }

    /// Starts it; returns the time until it says that it has a record.
    fn start(&mut self, key: &[u8]) -> Result<Duration, CliError> {
        let begun = Instant::now();
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn()?);
        loop {
            let found =
                RedisConnection::connect(self.address).and_then(|mut connection| connection.command(&[b"EXISTS", key]));
            match found {
                Ok(_) if key.is_empty() => return Ok(begun.elapsed()),
                Ok(count) if count == b"1" => return Ok(begun.elapsed()),
                Ok(_) => return Err(CliError::new(format!("{} has lost records", self.program.display()))),
                // It does not listen yet, or is loading.
                Err(error) if begun.elapsed() > START_TIMEOUT => return Err(error),
                Err(_) => std::thread::sleep(ATTEMPT_PAUSE),
            }
        }
    }

    fn fill(&self, records: u64) -> Result<(), CliError> {
        RedisConnection::connect(self.address)?.put_all(records, |number, key, value| {
            *key = key_of(number);
            value.clear();
            value.resize(VALUE_BYTES, number as u8);
        })
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

fn key_of(number: u64) -> Vec<u8> {
    format!("{number:0KEY_BYTES$}").into_bytes()
}

/// This server with a table that has durability, filled and ended.
fn sandstorm(folder: &Path, records: u64) -> Result<StoredServer, CliError> {
    let state = folder.join("state");
    let control = free_address()?.to_string();
    let mut server = StoredServer::new(&std::env::current_exe()?, |port| {
        let line = format!(
            "serve --no-builder --data 127.0.0.1:0 --control {control} --redis 127.0.0.1:{port}=bench/t --state {}",
            state.display()
        );
        line.split(' ').map(str::to_owned).collect()
    })?;
    // Without its tenant the port answers with an error, so the first start is waited for at the control port.
    let mut command = Command::new(&server.program);
    command.args(&server.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    server.child = Some(command.spawn()?);
    let begun = Instant::now();
    let control = loop {
        let token = std::fs::read_to_string(state.join("operator-token")).unwrap_or_default();
        let control = Control::new(&control, Some(token.trim()));
        match control.tenants() {
            Ok(_) => break control,
            Err(error) if begun.elapsed() > START_TIMEOUT => return Err(error.into()),
            Err(_) => std::thread::sleep(ATTEMPT_PAUSE),
        }
    };
    control.create_tenant(&TenantSpec { name: "bench".into(), open: true, ..TenantSpec::default() })?;
    let durability = Some(DurabilityLevel::Interval);
    let quota_bytes = (1_u64 << 30).max(records * 512);
    let mut quotas = TenantSpec::default().quotas;
    quotas.insert("memory_bytes".to_owned(), quota_bytes * 2);
    let patch = sandstorm_client::control::TenantPatch { quotas, ..Default::default() };
    control.change_tenant("bench", &patch)?;
    let quota_bytes = Some(quota_bytes);
    control.create_table("bench", &TableSpec { name: "t".into(), durability, quota_bytes, ..TableSpec::default() })?;
    server.fill(records)?;
    // A large log is followed by a checkpoint, and a start finds both.
    let begun = Instant::now();
    while folder_bytes(&state.join(LOG_FOLDER), ".new-checkpoint") > 0 || needs_checkpoint(&state, records) {
        if begun.elapsed() > CHECKPOINT_TIMEOUT {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(SETTLE);
    server.kill();
    Ok(server)
}

/// Whether a checkpoint has to follow so many records, and is not there yet.
fn needs_checkpoint(state: &Path, records: u64) -> bool {
    let is_due = records * (KEY_BYTES + VALUE_BYTES) as u64 > sandstorm_server::limits::CHECKPOINT_MIN_LOG_BYTES;
    is_due && folder_bytes(&state.join(LOG_FOLDER), "checkpoint-") == 0
}

/// Bytes of the files in a folder whose names begin like this.
fn folder_bytes(folder: &Path, prefix: &str) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let named = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    named.map(|entry| entry.metadata().map_or(0, |metadata| metadata.len())).sum()
}

/// Redis with its records in a file, filled and ended.
fn redis(folder: &Path, options: &str, records: u64) -> Result<StoredServer, CliError> {
    std::fs::create_dir_all(folder)?;
    let mut server = StoredServer::new(Path::new(REDIS), |port| {
        let line = format!("--port {port} --bind 127.0.0.1 --dir {} {options} --save", folder.display());
        line.split(' ').map(str::to_owned).chain([String::new()]).collect()
    })?;
    server.start(b"")?;
    server.fill(records)?;
    if options.contains("appendonly no") {
        RedisConnection::connect(server.address)?.command(&[b"SAVE"])?;
    }
    server.kill();
    Ok(server)
}

pub(super) fn recovery(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    is_installed(REDIS)?;
    bench_server::reset_affinity()?;
    let (records, folder) = (args.records(), tempfile::tempdir()?);
    let own = folder.path().join("sandstorm");
    std::fs::create_dir(&own)?;
    let aof = "--appendonly yes --appendfsync no --aof-use-rdb-preamble no --auto-aof-rewrite-percentage 0";
    let mut servers = [
        sandstorm(&own, records)?,
        redis(&folder.path().join("rdb"), "--appendonly no", records)?,
        redis(&folder.path().join("aof"), aof, records)?,
    ];
    let log = own.join("state").join(LOG_FOLDER);
    let about = format!(
        "The time from the start of a process to its first answer about a record, with {records} records of {KEY_BYTES} + {VALUE_BYTES} \
         bytes on the disk, and in the system's cache. This server's log has {} MiB, and its checkpoint {} MiB.",
        folder_bytes(&log, "log-") >> 20,
        folder_bytes(&log, "checkpoint-") >> 20,
    );
    let mut findings = ExperimentFindings::new("recovery", about);
    let key = key_of(records - 1);
    let mut took_ms: [Vec<f64>; 3] = Default::default();
    for _ in 0..args.rounds.unwrap_or(ROUNDS) {
        for (server, took_ms) in servers.iter_mut().zip(&mut took_ms) {
            took_ms.push(server.start(&key)?.as_secs_f64() * 1_000.0);
            server.kill();
        }
    }
    let took_ms = took_ms.map(RoundSpread::of);
    let mut table = ReportTable::new("Starts", "server", ["ms until the first answer", "thousand records/s"]);
    for (name, took_ms) in NAMES.iter().zip(&took_ms) {
        let rate = RoundSpread::of(took_ms.rounds.iter().map(|took_ms| records as f64 / took_ms).collect());
        table.row(*name, vec![took_ms.clone(), rate]);
    }
    findings.tables.push(table);
    let [own, rdb, aof] = &took_ms;
    for (peer, name, target) in [(rdb, NAMES[1], 5.0), (aof, NAMES[2], 10.0)] {
        let what = format!("start of {name} / of {}", NAMES[0]);
        findings.ratios.push(RatioResult::of(what, "ms", [peer, own], Some(RatioTarget::AtLeast(target))));
    }
    Ok(findings)
}
