//! `sandstorm bench pools`: Facebook's five memcached pools with their sizes and misses, here and on memcached and
//! Redis.

use sandstorm_client::control::{TableMode, TableSpec};
use sandstorm_client::load::peer::{self, PeerLoad, PeerProtocol, PeerWorkload};
use sandstorm_client::load::{Class, Data, MemcachedPool, Mix, Pace, Plan, TenantLoad, fill};

use super::measure::{
    LoadMeasurement, MeasuredSide, P50_US, P99_US, ParameterSweep, THOUSAND_PER_S, axis, measure_interleaved, row,
    run_checked, run_peer,
};
use super::peer_server::PeerServer;
use super::report::{AxisScale, ExperimentFindings, RatioResult};
use super::single_server::table_of;
use super::{BenchArgs, bench_server};
use crate::local_server::{LocalServer, LocalTenant};
use sandstorm_terminal::output::CliError;

/// Requests in flight on each of the peers' 16 connections, and messages in flight here: the same in all.
const PIPELINE: usize = 4;
const DEPTH: usize = 64;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.4;
const ROUNDS: usize = 3;
/// Records over which sizes are averaged.
const SAMPLE: u64 = 10_000;
const NAMES: [&str; 3] = ["sandstorm, own protocol", "memcached, TCP", "Redis, TCP"];

/// One pool's records on all servers.
struct PoolSetup<'s> {
    server: &'s LocalServer,
    at: LocalTenant,
    plan: Plan,
    data: Data,
    peers: [(PeerServer, PeerProtocol); 2],
}

impl<'s> PoolSetup<'s> {
    /// Peers start empty for each pool: records of the same number have the same key in several pools, with different
    /// sizes.
    fn start(
        server: &'s LocalServer,
        tenant: &LocalTenant,
        pool: MemcachedPool,
        records: u64,
    ) -> Result<PoolSetup<'s>, CliError> {
        let create = TableSpec { name: pool.to_string(), mode: TableMode::Store, ..TableSpec::default() };
        let table = server.control().create_table("bench", &create)?.id;
        let at = LocalTenant { id: tenant.id, token: tenant.token.clone(), table };
        let plan: Plan = pool.name().parse().map_err(CliError::new)?;
        let data = plan.data(table, records);
        fill(&server.client(&at), &data, &mut |_, _| {})?;
        let peers = [(PeerServer::memcached()?, PeerProtocol::Memcached), (PeerServer::redis()?, PeerProtocol::Redis)];
        for (peer, speech) in &peers {
            peer::fill(&PeerLoad::new(peer.address, *speech, PeerWorkload::Set, data.clone()))?;
        }
        Ok(PoolSetup { server, at, plan, data, peers })
    }

    fn measure(&self, side: usize, mix: &Mix, seconds: f64) -> Result<LoadMeasurement, CliError> {
        if side > 0 {
            let (peer, speech) = &self.peers[side - 1];
            let load = PeerLoad::new(peer.address, *speech, PeerWorkload::Mixed(mix.clone()), self.data.clone());
            return run_peer(&PeerLoad { pipeline: PIPELINE, skew: self.plan.skew, ..load }, seconds);
        }
        let load = TenantLoad::new("bench", self.server.client(&self.at), self.data.clone(), mix.clone());
        let report = run_checked(vec![load.skew(self.plan.skew).pace(Pace::Closed { depth: DEPTH })], seconds)?;
        // The latency is that of the gets; the throughput counts all operations.
        let per_s = report.per_s;
        Ok(LoadMeasurement { per_s, keys_per_s: per_s, ..row(&report, "bench", Class::Get) })
    }

    /// Mean bytes of a value.
    fn value_bytes(&self) -> f64 {
        (0..SAMPLE).map(|id| self.data.value_len_of(id) as f64).sum::<f64>() / SAMPLE as f64
    }
}

pub(super) fn pools(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let server = bench_server::start_bench_server(1, |_| {})?;
    let tenant = server.tenant("bench", "t", TableMode::Store)?;
    let records = args.records();
    let about = format!(
        "{records} records with the sizes of keys and values that were published of each pool, its share of misses, ETC with its skew: gets \
         alone, and the pool's own mix of gets, writes and deletes (these of what is not there). {DEPTH} messages under way here, 16 \
         connections with {PIPELINE} requests each at the peers, all on the first core."
    );
    let mut findings = ExperimentFindings::new("pools", about);
    let (seconds, rounds) = (args.seconds(SECONDS), args.rounds(ROUNDS));
    let mut at: Vec<(f64, Vec<MeasuredSide>)> = Vec::new();
    let mut sizes = Vec::new();
    for pool in MemcachedPool::ALL {
        let filled = PoolSetup::start(&server, &tenant, pool, records)?;
        let name = pool.name().to_uppercase();
        for (what, mix) in [("gets", Mix::only(Class::Get)), ("its mix", filled.plan.mix.clone())] {
            let sides = measure_interleaved(rounds, &NAMES, |side| filled.measure(side, &mix, seconds))?;
            findings.tables.push(table_of(&format!("{name}: {what}"), &sides));
            for peer in &sides[1..] {
                let spreads = [sides[0].spread(THOUSAND_PER_S), peer.spread(THOUSAND_PER_S)];
                let what = format!("{name}, {what}: {} / {}", NAMES[0], peer.name);
                findings.ratios.push(RatioResult::of(what, "thousand/s", [&spreads[0], &spreads[1]], None));
            }
            if what == "gets" {
                sizes.push(format!("{name} {:.0}", filled.value_bytes()));
                at.push((filled.value_bytes(), sides));
            }
        }
        server.control().drop_table("bench", pool.name())?;
    }
    at.sort_by(|a, b| a.0.total_cmp(&b.0));
    let sweep = ParameterSweep { x: axis("mean bytes of a value", AxisScale::Log), at };
    sweep.show(&mut findings, "Gets a second, by pool", "thousand/s", AxisScale::Log, THOUSAND_PER_S);
    sweep.show(&mut findings, "Median latency of gets, by pool", "p50, us", AxisScale::Log, P50_US);
    sweep.show(&mut findings, "Tail latency of gets, by pool", "p99, us", AxisScale::Log, P99_US);
    findings.notes.push(format!("Mean bytes of a value: {}.", sizes.join(", ")));
    Ok(findings)
}
