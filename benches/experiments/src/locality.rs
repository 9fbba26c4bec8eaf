//! `sandstorm bench locality`: multigets of seven keys that one to seven servers have, as in Rocksteady's figure of
//! spread tables. Seven servers and an etcd, on this machine.

use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use sandstorm_client::Error;
use sandstorm_client::load::{Data, fill, keys};
use sandstorm_client::raw::{Connection, Response, operation_error};
use sandstorm_net::slots::slot_of;
use sandstorm_terminal::output::CliError;

use super::cluster_server::{ClusterFolder, SpawnedServer, has_etcd};
use super::durable::measured;
use super::measure::{LoadMeasurement, P50_US, P99_US, SERVER_US, THOUSAND_PER_S, axis, measure_sweep};
use super::report::{AxisScale, ExperimentFindings, RatioResult, RoundSpread};
use super::{BenchArgs, bench_server};

/// Servers, and keys of a multiget.
const SERVERS: usize = 7;
const TABLES: &str = "{ name = 't', id = 1, durability = 'none' }";
const TABLE: u64 = 1;
const RECORDS: u64 = 100_000;
const KEY_BYTES: usize = 30;
const VALUE_BYTES: usize = 100;
/// Bytes of a record in the answer to a multiget besides its value.
const ENTRY_HEAD_BYTES: usize = 17;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 1.0;
const ROUNDS: usize = 3;
/// Seed of the keys that are drawn.
const SEED: u64 = 7;

/// A multiget under way.
#[derive(Clone, Copy)]
struct SpreadMultiGet {
    begun: Instant,
    /// Servers that have not answered.
    missing: usize,
    /// Keys that each of these was asked for at least.
    keys: usize,
}

/// A client with a connection to each server.
struct SpreadClient {
    connections: Vec<Connection>,
    /// The keys of each server.
    keys: Vec<Vec<Vec<u8>>>,
    rng: SmallRng,
    /// The server with the first key of the next multiget: each has its turn.
    first: usize,
}

impl SpreadClient {
    fn connect(servers: &[SpawnedServer], records: u64) -> Result<SpreadClient, CliError> {
        let (mut connections, mut all_keys, mut key) = (Vec::new(), Vec::new(), Vec::new());
        for server in servers {
            let status = server.status()?;
            let ranges = status.servers.iter().find(|one| one.is_this).map_or(&[][..], |one| &one.slots);
            let mut of_server = Vec::new();
            for id in 0..records {
                keys::write_key(keys::RECORD, id, KEY_BYTES, &mut key);
                let slot = slot_of(&key);
                if ranges.iter().any(|[first, last]| (*first..=*last).contains(&slot)) {
                    of_server.push(key.clone());
                }
            }
            if of_server.is_empty() {
                return Err(CliError::new("a server has no records").hint("give more --records"));
            }
            all_keys.push(of_server);
            connections.push(Connection::connect(&server.client())?);
        }
        Ok(SpreadClient { connections, keys: all_keys, rng: SmallRng::seed_from_u64(SEED), first: 0 })
    }

    /// Sends the parts of a multiget whose keys so many servers have.
    fn send(&mut self, touched: usize, tag: u64) -> Result<SpreadMultiGet, CliError> {
        let begun = Instant::now();
        self.first = (self.first + 1) % SERVERS;
        for part in 0..touched {
            let number = (self.first + part) % SERVERS;
            let (Some(known), Some(connection)) = (self.keys.get(number), self.connections.get_mut(number)) else {
                continue;
            };
            // The keys go round over the servers.
            let count = SERVERS / touched + usize::from(part < SERVERS % touched);
            let wanted: Vec<&[u8]> = (0..count)
                .filter_map(|_| known.get(self.rng.random_range(0..known.len())))
                .map(Vec::as_slice)
                .collect();
            let mut message = connection.message();
            message.multi_get(TABLE, &wanted);
            connection.send(tag, message)?;
            connection.flush();
        }
        Ok(SpreadMultiGet { begun, missing: touched, keys: SERVERS / touched })
    }

    /// Has so many multigets under way for so long. Returns the latency of each in microseconds.
    fn run(&mut self, touched: usize, depth: usize, seconds: f64) -> Result<(Vec<f64>, Duration), CliError> {
        let (begun, mut took_us) = (Instant::now(), Vec::new());
        let mut under_way = Vec::new();
        for tag in 0..depth.max(1) {
            under_way.push(self.send(touched, tag as u64)?);
        }
        let mut left = under_way.len();
        while left > 0 {
            let (mut done, mut failure) = (Vec::new(), None);
            let mut answered = 0;
            for connection in &mut self.connections {
                answered += connection.poll(|tag, answer| {
                    let Some(multi_get) = under_way.get_mut(tag as usize) else { return };
                    if let Err(error) = check(answer, multi_get.keys) {
                        failure = Some(error);
                    }
                    multi_get.missing -= 1;
                    if multi_get.missing == 0 {
                        took_us.push(multi_get.begun.elapsed().as_nanos() as f64 / 1_000.0);
                        done.push(tag);
                    }
                });
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
            if answered == 0 {
                std::thread::yield_now();
            }
            let is_over = begun.elapsed().as_secs_f64() >= seconds;
            for tag in done {
                if is_over {
                    left -= 1;
                } else if let Some(multi_get) = under_way.get_mut(tag as usize) {
                    *multi_get = self.send(touched, tag)?;
                }
            }
        }
        Ok((took_us, begun.elapsed()))
    }
}

/// An error if a part of a multiget was not answered with as many records as it asked for at least.
fn check(answer: Result<Response<'_>, Error>, keys: usize) -> Result<(), CliError> {
    let answer = answer?;
    for operation in answer.operations() {
        let operation = operation?;
        if let Some(error) = operation_error(&operation) {
            return Err(error.into());
        }
        if operation.value.len() < keys * (ENTRY_HEAD_BYTES + VALUE_BYTES) {
            return Err(CliError::new("a multiget's answer has not all records: this is a bug"));
        }
    }
    Ok(())
}

fn busy_us(servers: &[SpawnedServer]) -> Result<f64, CliError> {
    servers.iter().map(SpawnedServer::busy_us).sum()
}

pub(super) fn locality(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let (records, seconds) = (args.records.unwrap_or(RECORDS), args.seconds(SECONDS));
    let about = format!(
        "Seven servers and an etcd on this machine, a table of {records} records of 30 B + 100 B. Multigets of seven \
         keys, {} under way, whose keys one to seven of the servers have, each in its turn. The servers' time is what \
         all workers were busy, for one multiget.",
        args.depth
    );
    let mut findings = ExperimentFindings::new("locality", about);
    if !has_etcd(&mut findings) {
        return Ok(findings);
    }
    bench_server::reset_affinity()?;
    let folder = ClusterFolder::start(TABLES)?;
    let servers = folder.start_servers(SERVERS, "--no-pin")?;
    if let Some(first) = servers.first() {
        fill(&first.client(), &Data::new(TABLE, records), &mut |_, _| {})?;
    }
    let mut client = SpreadClient::connect(&servers, records)?;
    let touched: Vec<f64> = (1..=SERVERS).map(|count| count as f64).collect();
    let x = axis("servers that have the keys", AxisScale::Linear);
    let name = ["multigets of 7 keys"];
    let sweep = measure_sweep(args.rounds(ROUNDS), x, &touched, &name, |touched, _| {
        let touched = touched as usize;
        client.run(touched, args.depth, seconds / 4.0)?;
        let before_us = busy_us(&servers)?;
        let (took_us, all) = client.run(touched, args.depth, seconds)?;
        let server_us = (busy_us(&servers)? - before_us) / took_us.len() as f64;
        Ok(LoadMeasurement { server_us, ..measured(took_us, 1, all) })
    })?;
    sweep.show(&mut findings, "Throughput", "thousand multigets/s", AxisScale::Linear, THOUSAND_PER_S);
    sweep.show(&mut findings, "The servers' time", "us for a multiget", AxisScale::Linear, SERVER_US);
    sweep.show(&mut findings, "Median latency", "p50, us", AxisScale::Linear, P50_US);
    sweep.show(&mut findings, "Tail latency", "p99, us", AxisScale::Log, P99_US);
    let [one, all] = [1.0, SERVERS as f64].map(|touched| sweep.side(touched, 0));
    if let (Some(one), Some(all)) = (one, all) {
        let mut ratio = |what: &str, unit, figure| {
            let sides: [RoundSpread; 2] = [all.spread(figure), one.spread(figure)];
            findings.ratios.push(RatioResult::of(what, unit, [&sides[0], &sides[1]], None));
        };
        ratio("multigets of keys of seven servers / of one", "thousand/s", THOUSAND_PER_S);
        ratio("the servers' time for a multiget of keys of seven servers / of one", "us", SERVER_US);
    }
    Ok(findings)
}
