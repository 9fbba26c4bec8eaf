//! `sandstorm bench peers`: this server beside memcached and Redis, on the same core, from the same kind of generator.

use sandstorm_client::control::TableMode;
use sandstorm_client::load::peer::{self, PeerLoad, PeerProtocol, PeerWorkload};
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};
use sandstorm_control::config::parse_listen;
use sandstorm_dialects::Protocol;

use super::measure::{
    FigureFn, LoadMeasurement, MeasuredSide, P50_US, P99_US, THOUSAND_KEYS_PER_S, THOUSAND_PER_S, measure_interleaved,
    run_peer, run_single_class,
};
use super::peer_server::PeerServer;
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable};
use super::{BenchArgs, bench_server};
use crate::local_server::{LocalServer, LocalTenant};
use sandstorm_terminal::output::CliError;

/// Requests in flight on each connection of the pipelined experiments.
const PIPELINE: usize = 32;
/// Keys of a request of the experiments with many.
const KEYS: usize = 30;
/// Messages in flight, and gets in each, of this server's own protocol.
const DEPTH: usize = 64;
const BATCH: usize = 32;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.8;
const ROUNDS: usize = 5;

/// All servers, with their records in place.
struct PeersSetup<'a> {
    args: &'a BenchArgs,
    server: LocalServer,
    tenant: LocalTenant,
    memcached: PeerServer,
    redis: PeerServer,
    data: Data,
}

/// A comparison: the sides, of which the first are the peers.
struct PeerComparison {
    what: String,
    target: f64,
    peers: usize,
    sides: Vec<MeasuredSide>,
}

impl PeerComparison {
    fn table(&self) -> ReportTable {
        let figures: [(&str, FigureFn); 4] = [
            ("thousand requests/s", THOUSAND_PER_S),
            ("thousand keys/s", THOUSAND_KEYS_PER_S),
            ("p50, us", P50_US),
            ("p99, us", P99_US),
        ];
        let mut table = ReportTable::new(&self.what, "", figures.map(|(name, _)| name));
        for side in &self.sides {
            table.row(&side.name, figures.map(|(_, figure)| side.spread(figure)).into());
        }
        table
    }

    /// For each of this server's sides: its keys per second over the better peer's in the same round, and its p99 over
    /// that peer's.
    fn ratios(&self) -> Vec<RatioResult> {
        let (theirs, ours) = self.sides.split_at(self.peers.min(self.sides.len()));
        let best = |round: usize| {
            let there = theirs.iter().filter_map(|side| side.rounds.get(round));
            there.max_by(|a, b| a.keys_per_s.total_cmp(&b.keys_per_s)).copied()
        };
        let rounds = theirs.first().map_or(0, |side| side.rounds.len());
        let best: Vec<LoadMeasurement> = (0..rounds).filter_map(best).collect();
        let better = MeasuredSide { name: "the better peer".into(), rounds: best };
        let ratio = |side: &MeasuredSide| {
            let names = format!("{}: {} / the better peer", self.what, side.name);
            let of = |figure: FigureFn| [side.spread(figure), better.spread(figure)];
            let ([keys, their_keys], [p99, their_p99]) = (of(THOUSAND_KEYS_PER_S), of(P99_US));
            let target = Some(RatioTarget::AtLeast(self.target));
            [
                RatioResult::of(names.clone(), "thousand keys/s", [&keys, &their_keys], target),
                RatioResult::of(format!("{names}, p99"), "us", [&p99, &their_p99], None),
            ]
        };
        ours.iter().flat_map(ratio).collect()
    }
}

pub(super) fn peers(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let peers = PeersSetup::start(args)?;
    let about = "memcached and Redis with one thread each, and this server with one worker, all bound to the first core and idle \
        while another is measured; the same closed-loop generator on the second, Zipf 0.99. Ratios are to the better peer of \
        the same round.";
    let mut findings = ExperimentFindings::new("peers", about);
    for comparison in peers.compare()? {
        findings.tables.push(comparison.table());
        findings.ratios.extend(comparison.ratios());
    }
    Ok(findings)
}

impl PeersSetup<'_> {
    /// Starts all servers and fills all tables.
    fn start(args: &BenchArgs) -> Result<PeersSetup<'_>, CliError> {
        let port = |protocol| parse_listen(protocol, "127.0.0.1:0=bench/t").map_err(CliError::new);
        let listen = vec![port(Protocol::Memcached)?, port(Protocol::Redis)?];
        let server = bench_server::start_bench_server(1, |overrides| overrides.listen = listen)?;
        let tenant = server.tenant("bench", "t", TableMode::Store)?;
        let data = Data::new(tenant.table, args.records());
        let peers =
            PeersSetup { args, server, tenant, memcached: PeerServer::memcached()?, redis: PeerServer::redis()?, data };
        peer::fill(&peers.load(peers.memcached.address, PeerProtocol::Memcached, PeerWorkload::Set))?;
        peer::fill(&peers.load(peers.redis.address, PeerProtocol::Redis, PeerWorkload::Set))?;
        fill(&peers.server.client(&peers.tenant), &peers.data, &mut |_, _| {})?;
        Ok(peers)
    }

    fn load(&self, address: std::net::SocketAddr, speech: PeerProtocol, workload: PeerWorkload) -> PeerLoad {
        PeerLoad::new(address, speech, workload, self.data.clone())
    }

    /// Sends the same request to all these sides, round by round.
    fn same(
        &self,
        what: &str,
        target: f64,
        loads: &[(&str, PeerLoad)],
        peers: usize,
    ) -> Result<PeerComparison, CliError> {
        let names: Vec<&str> = loads.iter().map(|(name, _)| *name).collect();
        let seconds = self.args.seconds(SECONDS);
        let sides = measure_interleaved(self.args.rounds(ROUNDS), &names, |side| run_peer(&loads[side].1, seconds))?;
        Ok(PeerComparison { what: what.to_owned(), target, peers, sides })
    }

    fn all_loads(&self, workload: &PeerWorkload, pipeline: usize) -> Result<Vec<(&'static str, PeerLoad)>, CliError> {
        let [like_memcached, like_redis] = self.listening()?;
        let sides = [
            ("memcached", self.memcached.address, PeerProtocol::Memcached),
            ("Redis", self.redis.address, PeerProtocol::Redis),
            ("sandstorm, memcached's protocol", like_memcached, PeerProtocol::Memcached),
            ("sandstorm, Redis' protocol", like_redis, PeerProtocol::Redis),
        ];
        let load =
            |(name, address, speech)| (name, PeerLoad { pipeline, ..self.load(address, speech, workload.clone()) });
        Ok(sides.into_iter().map(load).collect())
    }

    /// The addresses at which this server speaks memcached's protocol and Redis'.
    fn listening(&self) -> Result<[std::net::SocketAddr; 2], CliError> {
        let listening = <[_; 2]>::try_from(self.server.listening().to_vec());
        listening.map_err(|_| CliError::new("the server does not listen where it was asked to"))
    }

    fn compare(&self) -> Result<Vec<PeerComparison>, CliError> {
        let (get, many, set) = (PeerWorkload::Get(1), PeerWorkload::Get(KEYS), PeerWorkload::Set);
        let pipelined = |verb| format!("{verb} over TCP, 16 connections, {PIPELINE} requests at a time");
        let [like_memcached, _] = self.listening()?;
        let udp = [
            ("memcached", self.load(self.memcached.address, PeerProtocol::MemcachedUdp, get.clone())),
            ("sandstorm, memcached's protocol", self.load(like_memcached, PeerProtocol::MemcachedUdp, get.clone())),
        ];
        let one = "GET over TCP, 16 connections, one request at a time";
        let many_keys = format!("GET of {KEYS} keys over TCP, 16 connections");
        Ok(vec![
            self.same(one, 1.0, &self.all_loads(&get, 1)?, 2)?,
            self.same(&pipelined("GET"), 2.0, &self.all_loads(&get, PIPELINE)?, 2)?,
            self.same(&many_keys, 2.0, &self.all_loads(&many, 1)?, 2)?,
            self.same(&pipelined("SET"), 1.0, &self.all_loads(&set, PIPELINE)?, 2)?,
            self.same("GET over UDP, 16 sockets, one request at a time each", 2.0, &udp, 1)?,
            self.own_gets("one at a time", PeerWorkload::Get(1), 20.0)?,
            self.own_gets(&format!("{KEYS} keys a request"), PeerWorkload::Get(KEYS), 2.5)?,
        ])
    }

    /// The own protocol's plain gets, deep queue, beside memcached's.
    fn own_gets(&self, how: &str, workload: PeerWorkload, target: f64) -> Result<PeerComparison, CliError> {
        let theirs = self.load(self.memcached.address, PeerProtocol::Memcached, workload);
        let names = [&format!("memcached, {how}"), "sandstorm, own protocol, deep queue"];
        let seconds = self.args.seconds(SECONDS);
        let sides = measure_interleaved(self.args.rounds(ROUNDS), &names, |side| {
            if side == 0 {
                return run_peer(&theirs, seconds);
            }
            let config = self.server.client(&self.tenant);
            let load = TenantLoad::new("bench", config, self.data.clone(), Mix::only(Class::Get));
            run_single_class(load.pace(Pace::Closed { depth: DEPTH }).batch(BATCH), Class::Get, seconds)
        })?;
        let what = format!("Plain gets, {DEPTH} messages of {BATCH} over kernel UDP with offloads; memcached {how}");
        Ok(PeerComparison { what, target, peers: 1, sides })
    }
}
