//! The tiers of code side by side: two tenants of one server with the same records and the same extensions, one native
//! and one sandboxed, by turns; and Redis' scripts where there is one that does the same.

use sandstorm_client::control::TableMode;
use sandstorm_client::load::peer::{self, PeerLoad, PeerProtocol, PeerWorkload};
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};
use sandstorm_net::CodePolicy;
use sandstorm_terminal::output::CliError;

use super::measure::{LoadMeasurement, MeasuredSide, THOUSAND_PER_S, measure_interleaved, run_peer, run_single_class};
use super::peer_server::{PeerServer, RedisConnection};
use super::report::{ExperimentFindings, RatioResult, RatioTarget};
use super::scripts::{CHAIN_SCRIPT, GET_SCRIPT, SUM_SCRIPT};
use super::single_server::table_of;
use super::{BenchArgs, bench_server};
use crate::local_server::{AGGREGATE, ANALYSIS, CHAIN, CHECKSUM, GET, LocalServer, LocalTenant};

/// Calls in flight.
const DEPTH: usize = 256;
/// Links of a chain, and records of a list.
const HOPS: u32 = 8;
const LISTED: u32 = 32;
/// Most lists: as many as the generator uses.
const LISTS: u64 = 10_000;
/// Rows for the decision tree.
const ROWS: u64 = 10_000;
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 5;

/// The same work in both tiers.
struct TierCase {
    class: Class,
    name: &'static str,
    /// Speed of the sandboxed tier over the native one that is aimed at, and over Redis' scripts.
    target: f64,
    script: Option<(&'static str, Option<f64>)>,
}

const CASES: [TierCase; 5] = [
    TierCase { class: Class::InvokeGet, name: "one get", target: 0.6, script: Some((GET_SCRIPT, None)) },
    TierCase { class: Class::Chain, name: "a chain of 8", target: 0.5, script: Some((CHAIN_SCRIPT, Some(6.0))) },
    TierCase { class: Class::Aggregate, name: "a sum of 32", target: 0.6, script: Some((SUM_SCRIPT, Some(8.0))) },
    TierCase { class: Class::Checksum, name: "a digest of 32", target: 0.7, script: None },
    TierCase { class: Class::Analysis, name: "32 rows through a tree", target: 0.7, script: None },
];

const NAMES: [&str; 3] = ["native", "sandboxed", "Redis, EVALSHA one at a time"];
const NATIVE: usize = 0;
const SANDBOXED: usize = 1;
const REDIS: usize = 2;

/// The server with both tenants, and Redis.
struct TiersSetup {
    server: LocalServer,
    tenants: [(LocalTenant, Data); 2],
    redis: PeerServer,
    control: RedisConnection,
}

impl TiersSetup {
    fn start(args: &BenchArgs) -> Result<TiersSetup, CliError> {
        let server = bench_server::start_bench_server(1, |_| {})?;
        let mut tenants = Vec::new();
        for (name, code) in [("native", CodePolicy::Native), ("sandboxed", CodePolicy::Sandboxed)] {
            let tenant = server.tenant_with_code(name, "t", TableMode::Store, Some(code))?;
            for extension in [&GET, &CHAIN, &AGGREGATE, &CHECKSUM, &ANALYSIS] {
                server.push(name, extension)?;
            }
            let mut data = Data::new(tenant.table, args.records());
            (data.links, data.depth) = ((data.records / 10).max(1), HOPS);
            (data.lists, data.list_len) = (LISTS.min(data.records), LISTED);
            (data.rows, data.row_lists) = (ROWS, ROWS / 10);
            fill(&server.client(&tenant), &data, &mut |_, _| {})?;
            tenants.push((tenant, data));
        }
        let tenants = tenants.try_into().map_err(|_| CliError::new("there are two tenants"))?;
        let redis = PeerServer::redis()?;
        let control = RedisConnection::connect(redis.address)?;
        let setup = TiersSetup { server, tenants, redis, control };
        let data = setup.tenants[NATIVE].1.clone();
        peer::fill(&PeerLoad::new(setup.redis.address, PeerProtocol::Redis, PeerWorkload::Set, data))?;
        Ok(setup)
    }

    fn calls(&self, side: usize, class: Class, seconds: f64) -> Result<LoadMeasurement, CliError> {
        let (tenant, data) = &self.tenants[side];
        let (config, pace) = (self.server.client(tenant), Pace::Closed { depth: DEPTH });
        let mut load = TenantLoad::new(NAMES[side], config, data.clone(), Mix::only(class)).pace(pace);
        // The data as it was filled, without the chains and lists that the mix would ask for.
        load.data = data.clone();
        run_single_class(load, class, seconds)
    }

    fn script(&self, digest: &[u8], class: Class, seconds: f64) -> Result<LoadMeasurement, CliError> {
        let data = self.tenants[NATIVE].1.clone();
        let more = if class == Class::Chain { vec![data.depth.to_string().into_bytes()] } else { vec![] };
        let workload = PeerWorkload::ServerCode { words: vec![b"EVALSHA".to_vec(), digest.to_vec()], more, class };
        run_peer(&PeerLoad::new(self.redis.address, PeerProtocol::Redis, workload, data), seconds)
    }
}

pub(super) fn tiers(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let mut setup = TiersSetup::start(args)?;
    let about = format!(
        "The same extensions of two tenants with the same records, one native and one sandboxed; one worker, {DEPTH} calls under way. \
         Redis with one thread and 16 connections, one script at a time on each, as a client library sends them."
    );
    let mut findings = ExperimentFindings::new("tiers", about);
    for case in &CASES {
        let digest = match case.script {
            Some((script, _)) => Some(setup.control.command(&[b"SCRIPT", b"LOAD", script.as_bytes()])?),
            None => None,
        };
        let sides = if digest.is_some() { &NAMES[..] } else { &NAMES[..REDIS] };
        let seconds = args.seconds(SECONDS);
        let measured = measure_interleaved(args.rounds(ROUNDS), sides, |side| match (side, &digest) {
            (REDIS, Some(digest)) => setup.script(digest, case.class, seconds),
            _ => setup.calls(side, case.class, seconds),
        })?;
        let mut table = table_of(&format!("Tiers of code: {}", case.name), &measured);
        table.of = "how".into();
        findings.tables.push(table);
        findings.ratios.push(ratio(case, &measured, NATIVE, Some(case.target)));
        if let Some((_, target)) = case.script {
            findings.ratios.push(ratio(case, &measured, REDIS, target));
        }
    }
    Ok(findings)
}

/// The sandboxed tier's speed over that of another side.
fn ratio(case: &TierCase, sides: &[MeasuredSide], other: usize, target: Option<f64>) -> RatioResult {
    let what = format!("{}: sandboxed / {}", case.name, NAMES[other]);
    let spreads = [SANDBOXED, other].map(|side| sides[side].spread(THOUSAND_PER_S));
    RatioResult::of(what, "thousand/s", [&spreads[0], &spreads[1]], target.map(RatioTarget::AtLeast))
}
