//! `sandstorm bench pools`: Facebook's five pools of memcached, with their sizes and misses, beside memcached and Redis.

use sandstorm_client::control::{CreateTable, TableMode};
use sandstorm_client::load::peer::{self, Ask, PeerLoad, Speech};
use sandstorm_client::load::{Class, Data, Mix, Pace, Plan, Pool, TenantLoad, fill};

use super::measure::{Measured, P50_US, P99_US, Side, Sweep, THOUSAND_PER_S, axis, by_turns, row, run_peer, run_well};
use super::own::table_of;
use super::peer::Peer;
use super::report::{Findings, Ratio, Scale};
use super::{BenchArgs, stage};
use crate::cli::local::{LocalServer, LocalTenant};
use crate::cli::output::Failure;

/// Requests under way on each of the peers' 16 connections, and messages under way here: the same in all.
const PIPELINE: usize = 4;
const DEPTH: usize = 64;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.4;
const ROUNDS: usize = 3;
/// Records whose sizes are averaged.
const SAMPLE: u64 = 10_000;
const NAMES: [&str; 3] = ["sandstorm, own protocol", "memcached, TCP", "Redis, TCP"];

/// One pool's records with everybody.
struct Filled<'s> {
    server: &'s LocalServer,
    at: LocalTenant,
    plan: Plan,
    data: Data,
    peers: [(Peer, Speech); 2],
}

impl<'s> Filled<'s> {
    /// Peers begin anew for each pool: records of the same number have one key in several pools, and other sizes.
    fn start(server: &'s LocalServer, tenant: &LocalTenant, pool: Pool, records: u64) -> Result<Filled<'s>, Failure> {
        let create = CreateTable { name: pool.to_string(), mode: TableMode::Store, ..CreateTable::default() };
        let table = server.control().create_table("bench", &create)?.id;
        let at = LocalTenant { id: tenant.id, token: tenant.token.clone(), table };
        let plan: Plan = pool.name().parse().map_err(Failure::new)?;
        let data = plan.data(table, records);
        fill(&server.client(&at), &data, &mut |_, _| {})?;
        let peers = [(Peer::memcached()?, Speech::Memcached), (Peer::redis()?, Speech::Redis)];
        for (peer, speech) in &peers {
            peer::fill(&PeerLoad::new(peer.address, *speech, Ask::Set, data.clone()))?;
        }
        Ok(Filled { server, at, plan, data, peers })
    }

    fn measure(&self, side: usize, mix: &Mix, seconds: f64) -> Result<Measured, Failure> {
        if side > 0 {
            let (peer, speech) = &self.peers[side - 1];
            let load = PeerLoad::new(peer.address, *speech, Ask::Mixed(mix.clone()), self.data.clone());
            return run_peer(&PeerLoad { pipeline: PIPELINE, skew: self.plan.skew, ..load }, seconds);
        }
        let load = TenantLoad::new("bench", self.server.client(&self.at), self.data.clone(), mix.clone());
        let report = run_well(vec![load.skew(self.plan.skew).pace(Pace::Closed { depth: DEPTH })], seconds)?;
        // Latency is that of the gets; what is counted is all.
        let per_s = report.per_s;
        Ok(Measured { per_s, keys_per_s: per_s, ..row(&report, "bench", Class::Get) })
    }

    /// Mean bytes of a value.
    fn value_bytes(&self) -> f64 {
        (0..SAMPLE).map(|id| self.data.value_len_of(id) as f64).sum::<f64>() / SAMPLE as f64
    }
}

pub(super) fn pools(args: &BenchArgs) -> Result<Findings, Failure> {
    let server = stage::server(1, |_| {})?;
    let tenant = server.tenant("bench", "t", TableMode::Store)?;
    let records = args.records();
    let about = format!(
        "{records} records with the sizes of keys and values that were published of each pool, its share of misses, ETC with its skew: gets \
         alone, and the pool's own mix of gets, writes and deletes (these of what is not there). {DEPTH} messages under way here, 16 \
         connections with {PIPELINE} requests each at the peers, all on the first core."
    );
    let mut findings = Findings::new("pools", about);
    let (seconds, rounds) = (args.seconds(SECONDS), args.rounds(ROUNDS));
    let mut at: Vec<(f64, Vec<Side>)> = Vec::new();
    let mut sizes = Vec::new();
    for pool in Pool::ALL {
        let filled = Filled::start(&server, &tenant, pool, records)?;
        let name = pool.name().to_uppercase();
        for (what, mix) in [("gets", Mix::only(Class::Get)), ("its mix", filled.plan.mix.clone())] {
            let sides = by_turns(rounds, &NAMES, |side| filled.measure(side, &mix, seconds))?;
            findings.tables.push(table_of(&format!("{name}: {what}"), &sides));
            for peer in &sides[1..] {
                let spreads = [sides[0].spread(THOUSAND_PER_S), peer.spread(THOUSAND_PER_S)];
                let what = format!("{name}, {what}: {} / {}", NAMES[0], peer.name);
                findings.ratios.push(Ratio::of(what, "thousand/s", [&spreads[0], &spreads[1]], None));
            }
            if what == "gets" {
                sizes.push(format!("{name} {:.0}", filled.value_bytes()));
                at.push((filled.value_bytes(), sides));
            }
        }
        server.control().drop_table("bench", pool.name())?;
    }
    at.sort_by(|a, b| a.0.total_cmp(&b.0));
    let sweep = Sweep { x: axis("mean bytes of a value", Scale::Log), at };
    sweep.show(&mut findings, "Gets a second, by pool", "thousand/s", Scale::Log, THOUSAND_PER_S);
    sweep.show(&mut findings, "Median latency of gets, by pool", "p50, us", Scale::Log, P50_US);
    sweep.show(&mut findings, "Tail latency of gets, by pool", "p99, us", Scale::Log, P99_US);
    findings.notes.push(format!("Mean bytes of a value: {}.", sizes.join(", ")));
    Ok(findings)
}
