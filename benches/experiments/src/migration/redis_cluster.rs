//! The same move in Redis Cluster: three masters, and half of the slots go from one to another with `redis-cli
//! --cluster reshard`.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sandstorm_client::load::keys;
use sandstorm_terminal::output::CliError;

use super::super::cluster_server::{ClusterProcess, await_that};
use super::super::peer_server::{REDIS, RedisConnection, free_address, is_installed};
use super::super::report::{ExperimentFindings, ReportTable, RoundSpread};
use super::slot_writer::{AcknowledgedWrites, write_until};
use super::{MOVING, MigrationSetup, PERIOD, RECORD_BYTES, SERVERS};

const REDIS_CLI: &str = "redis-cli";
/// Keys that one `MIGRATE` moves: `redis-cli`'s default of 10 takes several times as long.
const KEYS_OF_ONE_MIGRATE: usize = 100;

/// Three masters; the first one owns all slots.
struct RedisCluster {
    nodes: Vec<(SocketAddr, String)>,
    _processes: Vec<ClusterProcess>,
    _folder: tempfile::TempDir,
}

impl RedisCluster {
    fn start() -> Result<RedisCluster, CliError> {
        let folder = tempfile::tempdir()?;
        let (mut nodes, mut processes, mut buses) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..SERVERS {
            let (address, bus) = (free_address()?, free_address()?);
            let line = format!(
                "--bind 127.0.0.1 --port {} --cluster-enabled yes --cluster-port {} \
                 --cluster-config-file nodes-{number} --dir {} --appendonly no --save",
                address.port(),
                bus.port(),
                folder.path().display()
            );
            processes.push(ClusterProcess::start(Command::new(REDIS).args(line.split(' ')).arg(""))?);
            await_that("redis-server does not serve", || Ok(RedisConnection::connect(address).is_ok()))?;
            let mut connection = RedisConnection::connect(address)?;
            let id = connection.command(&[b"CLUSTER", b"MYID"])?;
            connection.command(&[b"CLUSTER", b"SET-CONFIG-EPOCH", (number + 1).to_string().as_bytes()])?;
            nodes.push((address, String::from_utf8_lossy(&id).into_owned()));
            buses.push(bus);
        }
        let cluster = RedisCluster { nodes, _processes: processes, _folder: folder };
        let mut first = RedisConnection::connect(cluster.node(0)?.0)?;
        first.command(&[b"CLUSTER", b"ADDSLOTSRANGE", b"0", b"16383"])?;
        for ((address, _), bus) in cluster.nodes.iter().zip(&buses).skip(1) {
            let (port, bus) = (address.port().to_string(), bus.port().to_string());
            first.command(&[b"CLUSTER", b"MEET", b"127.0.0.1", port.as_bytes(), bus.as_bytes()])?;
        }
        for (address, _) in &cluster.nodes {
            let mut connection = RedisConnection::connect(*address)?;
            await_that("Redis' servers do not find each other", || {
                let info = connection.command(&[b"CLUSTER", b"INFO"])?;
                let info = String::from_utf8_lossy(&info);
                Ok(info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{SERVERS}")))
            })?;
        }
        Ok(cluster)
    }

    fn node(&self, number: usize) -> Result<&(SocketAddr, String), CliError> {
        self.nodes.get(number).ok_or_else(|| CliError::new("there is no such server"))
    }

    fn fill(&self, records: u64) -> Result<(), CliError> {
        RedisConnection::connect(self.node(0)?.0)?.put_all(records, |id, key, value| {
            keys::write_key(keys::RECORD, id, RECORD_BYTES.0, key);
            keys::write_value(id, 0, RECORD_BYTES.1, value);
        })
    }

    /// Half of the slots go from the first server to the second: the first half, as `redis-cli` takes them.
    fn reshard(&self) -> Result<(), CliError> {
        let ([from, to], slots) = ([self.node(0)?, self.node(1)?], MOVING.len());
        let mut command = Command::new(REDIS_CLI);
        command.args(["--cluster", "reshard", &from.0.to_string(), "--cluster-from", &from.1]);
        command.args(["--cluster-to", &to.1, "--cluster-slots", &slots.to_string(), "--cluster-yes"]);
        let output = command.args(["--cluster-pipeline", &KEYS_OF_ONE_MIGRATE.to_string()]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or_default();
        if output.status.success() { Ok(()) } else { Err(CliError::new(format!("redis-cli ends with {last:?}"))) }
    }
}

/// A move beside one writer alone.
struct WatchedMove {
    took_s: f64,
    /// The longest pause of writes before the move, and in it, in milliseconds.
    pauses_ms: [f64; 2],
}

/// Has slots move while a client of Redis Cluster writes to them, which begins at a server.
fn move_beside_writer(
    first: SocketAddr,
    records: u64,
    seconds: f64,
    has_moved: impl FnOnce() -> Result<f64, CliError>,
) -> Result<WatchedMove, CliError> {
    let stop = AtomicBool::new(false);
    let (times, took_s, writes) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&stop, first, records));
        let sleep = || std::thread::sleep(Duration::from_secs_f64(seconds / 2.0) + PERIOD);
        sleep();
        let quiet = Instant::now();
        sleep();
        let begun = Instant::now();
        let took_s = has_moved();
        let times = [quiet, begun, Instant::now()];
        sleep();
        stop.store(true, Ordering::Relaxed);
        (times, took_s, writer.join())
    });
    let writes: AcknowledgedWrites = writes.map_err(|_| CliError::new("the writer panicked"))??;
    let [quiet, begun, ended] = times;
    let pauses_ms = [writes.longest_pause_ms(quiet, begun), writes.longest_pause_ms(begun, ended)];
    Ok(WatchedMove { took_s: took_s?, pauses_ms })
}

/// Adds what the move takes here and in Redis Cluster, beside a writer that speaks Redis' protocol.
pub(super) fn beside(setup: &MigrationSetup, seconds: f64, findings: &mut ExperimentFindings) -> Result<(), CliError> {
    if [REDIS, REDIS_CLI].iter().any(|program| is_installed(program).is_err()) {
        let note = "left out: Redis Cluster, since `redis-server` or `redis-cli` is missing (Debian's packages \
                    redis-server and redis-tools)";
        findings.notes.push(note.to_owned());
        return Ok(());
    }
    let records = setup.data.records;
    let here = move_beside_writer(setup.server(0)?.redis, records, seconds, || Ok(setup.move_to(1)?.seconds()))?;
    setup.restore()?;
    let redis = RedisCluster::start()?;
    redis.fill(records)?;
    let there = move_beside_writer(redis.node(0)?.0, records, seconds, || {
        let begun = Instant::now();
        redis.reshard()?;
        Ok(begun.elapsed().as_secs_f64())
    })?;
    let columns = ["move, s", "MB/s", "longest pause of writes, ms", "the same without a move, ms"];
    let title = "The same beside one client alone, which writes to these slots by Redis' protocol, one at a time";
    let mut table = ReportTable::new(title, "", columns);
    for (name, moved) in [("this server", here), ("Redis Cluster, redis-cli --cluster reshard", there)] {
        let WatchedMove { took_s, pauses_ms: [quiet_ms, moving_ms] } = moved;
        let cells = [took_s, setup.moving_mb() / took_s, moving_ms, quiet_ms].map(RoundSpread::once);
        table.row(name, cells.into());
    }
    findings.tables.push(table);
    Ok(())
}
