//! `sandstorm bench failover`: the time from `kill -9` of a server of a cluster until another one, which takes its
//! place by itself, has acknowledged a write. Three servers and an etcd, on this machine.

use std::time::{Duration, Instant};

use sandstorm_client::control::{ClusterStatus, EventQuery, ServerChangeSpec};
use sandstorm_net::slots::slot_of;
use sandstorm_terminal::output::CliError;

use super::cluster_server::{ClusterFolder, PATIENCE, SpawnedServer, await_that, has_etcd};
use super::peer_server::RedisConnection;
use super::report::{ExperimentFindings, ReportTable, RoundSpread};
use super::{BenchArgs, bench_server};

const SERVERS: usize = 3;
const ROUNDS: usize = 20;
/// Records in the table by default: servers with few records.
const RECORDS: u64 = 1_000;
const VALUE_BYTES: usize = 100;
/// Pause between two attempts to write: far less than a failover takes.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(1);
const TABLES: &str = "{ name = 't', id = 1, durability = 'copies' }";

/// Whether all is as it is before a kill: each server has slots and a copy on another one, and nothing is under way.
fn is_whole(status: &ClusterStatus) -> bool {
    let has_copy = |id: &str| {
        let found = status.copies.generations.iter().find(|one| one.owner == id);
        found.is_some_and(|one| !one.servers.is_empty() && one.successor.is_none())
    };
    let is_well = status.servers.iter().all(|one| one.lives && !one.slots.is_empty() && has_copy(&one.id));
    status.servers.len() == SERVERS && is_well && status.moves.is_empty() && status.unowned.is_empty()
}

fn await_whole(servers: &[SpawnedServer]) -> Result<(), CliError> {
    await_that("the cluster is not whole again", || {
        let mut whole = true;
        for server in servers {
            let status = server.status()?;
            whole &= is_whole(&status) && status.copies.copies.iter().all(|copy| copy.confirms);
        }
        Ok(whole)
    })
}

/// A key whose slot a server owns.
fn key_of(status: &ClusterStatus, owner: &str) -> Result<Vec<u8>, CliError> {
    let owns = |slot: u16| {
        let found = status.servers.iter().find(|one| one.id == owner);
        found.is_some_and(|one| one.slots.iter().any(|[first, last]| (*first..=*last).contains(&slot)))
    };
    let mut keys = (0..100_000).map(|number| format!("failover:{number}").into_bytes());
    keys.find(|key| owns(slot_of(key))).ok_or_else(|| CliError::new("the server owns no slots".to_owned()))
}

/// The number behind a word in a text of an event.
fn number_after(text: &str, word: &str) -> Option<f64> {
    text.split_once(word)?.1.split_whitespace().next()?.parse().ok()
}

/// What a round has found, in milliseconds: from the kill to the first write, and the steps that the successor tells.
#[derive(Default)]
struct FoundTimes {
    first_write: Vec<f64>,
    steps: [Vec<f64>; STEPS.len()],
}

/// Steps as the events of the successor name them, and as they are shown.
const STEPS: [(&str, &str); 7] = [
    ("was heard of it for ", "nothing heard, as the successor counts it"),
    ("seal ", "seal of the copy"),
    ("lease ", "rest of the lease"),
    ("clear ", "records of earlier times removed"),
    ("records ", "records of the copy taken over"),
    ("disk ", "records on the disk and on a copy"),
    ("map ", "change of the map"),
];

/// Kills a server, and writes until its successor acknowledges.
fn round(servers: &mut [SpawnedServer], victim: usize, found: &mut FoundTimes) -> Result<(), CliError> {
    let (gone, witness) = (servers[victim].id.clone(), (victim + 1) % SERVERS);
    let status = servers[witness].status()?;
    let key = key_of(&status, &gone)?;
    let holder = status.copies.generations.iter().find(|one| one.owner == gone).and_then(|one| one.servers.first());
    let holder = holder.and_then(|id| servers.iter().position(|one| one.id == *id));
    let holder = holder.ok_or_else(|| CliError::new("the server has no copy".to_owned()))?;
    let mut connection = RedisConnection::connect(servers[holder].redis)?;
    let control = servers[holder].control();
    let after = Some(control.events(&EventQuery::default())?.next);
    let process = servers[victim].process.take();
    let begun = Instant::now();
    // `kill -9`.
    drop(process);
    // Errors are what it says of slots that are not its own yet.
    while connection.command(&[b"SET", &key, b"1"]).is_err() {
        if begun.elapsed() > PATIENCE {
            return Err(CliError::new(format!("nothing has taken the place of server {gone}")));
        }
        std::thread::sleep(ATTEMPT_PAUSE);
    }
    found.first_write.push(begun.elapsed().as_secs_f64() * 1_000.0);
    let mut texts = Vec::new();
    await_that("the successor tells nothing", || {
        let events = control.events(&EventQuery { after, ..EventQuery::default() })?.events;
        texts = events.into_iter().filter(|event| event.subject.as_ref() == Some(&gone)).map(|one| one.text).collect();
        Ok(texts.iter().any(|text| text.contains("map ")))
    })?;
    for ((word, _), times) in STEPS.iter().zip(&mut found.steps) {
        times.extend(texts.iter().find_map(|text| number_after(text, word)));
    }
    // It is back, and has its share of the slots again.
    servers[victim].start()?;
    let share = ServerChangeSpec { server: gone, give_up_records: false, plan: false, mib_per_s: 0 };
    await_that("the server does not get its slots back", || Ok(servers[holder].control().add_server(&share).is_ok()))?;
    await_whole(servers)
}

/// The part of sorted values that is below a quantile.
fn quantile(sorted: &[f64], quantile: f64) -> f64 {
    let at = ((sorted.len() as f64 * quantile).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

pub(super) fn failover(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let records = args.records.unwrap_or(RECORDS);
    let rounds = args.rounds(ROUNDS);
    let about = format!(
        "A cluster of {SERVERS} servers on this machine, with a table of durability `copies` of {records} records. One \
         server after the other is killed (`kill -9`), and a client writes to the one that has the copy of its log, \
         again each millisecond, until that is acknowledged: {rounds} rounds."
    );
    let mut findings = ExperimentFindings::new("failover", about);
    if !has_etcd(&mut findings) {
        return Ok(findings);
    }
    bench_server::reset_affinity()?;
    let folder = ClusterFolder::start(TABLES)?;
    let mut servers = folder.start_servers(SERVERS, "--no-pin")?;
    await_whole(&servers)?;
    for server in &servers {
        // Each takes those of its own slots.
        let mut connection = RedisConnection::connect(server.redis)?;
        for number in 0..records {
            let key = format!("{number}");
            let _of_another = connection.command(&[b"SET", key.as_bytes(), &[7; VALUE_BYTES]]);
        }
    }
    let mut found = FoundTimes::default();
    for number in 0..rounds {
        round(&mut servers, number % SERVERS, &mut found)?;
    }
    let mut sorted = found.first_write.clone();
    sorted.sort_by(f64::total_cmp);
    let mut table = ReportTable::new("From the kill to the first write that is acknowledged", "quantile", ["ms"]);
    for (name, of) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        table.row(name, vec![RoundSpread::once(quantile(&sorted, of))]);
    }
    findings.tables.push(table);
    let mut table = ReportTable::new("Of that, as the successor tells it", "step", ["ms"]);
    for ((_, name), times) in STEPS.iter().zip(found.steps).filter(|(_, times)| !times.is_empty()) {
        table.row(*name, vec![RoundSpread::of(times)]);
    }
    findings.tables.push(table);
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_the_numbers_of_events_are_read() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|of| quantile(&sorted, of)), [50.0, 99.0, 100.0]);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        let text = "by itself, in 125 ms: seal 2 ms, lease 118 ms, clear 1 ms, records 3 ms, disk 4 ms, map 5 ms";
        let found = STEPS.map(|(word, _)| number_after(text, word));
        assert_eq!(found, [None, Some(2.0), Some(118.0), Some(1.0), Some(3.0), Some(4.0), Some(5.0)]);
        assert_eq!(number_after("nothing was heard of it for 80 ms", STEPS[0].0), Some(80.0));
    }
}
