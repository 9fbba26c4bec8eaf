//! `sandstorm bench peers`: this server beside memcached and Redis, on the same core, from the same kind of generator.

use sandstorm_client::control::TableMode;
use sandstorm_client::load::peer::{self, Ask, PeerLoad, Speech};
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};
use sandstorm_control::config::parse_listen;
use sandstorm_dialects::Protocol;

use super::measure::{
    Figure, Measured, P50_US, P99_US, Side, THOUSAND_KEYS_PER_S, THOUSAND_PER_S, alone, by_turns, run_peer,
};
use super::peer::Peer;
use super::report::{Findings, Ratio, Table, Target};
use super::{BenchArgs, stage};
use crate::cli::local::{LocalServer, LocalTenant};
use crate::cli::output::Failure;

/// Requests under way on each connection of the pipelined experiments.
const PIPELINE: usize = 32;
/// Keys of a request of the experiments with many.
const KEYS: usize = 30;
/// Messages under way, and gets in each, of this server's own protocol.
const DEPTH: usize = 64;
const BATCH: usize = 32;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.8;
const ROUNDS: usize = 5;

/// Everybody, with the records in place.
struct Peers<'a> {
    args: &'a BenchArgs,
    server: LocalServer,
    tenant: LocalTenant,
    memcached: Peer,
    redis: Peer,
    data: Data,
}

/// What is compared: sides, of which the first are peers.
struct Comparison {
    what: String,
    target: f64,
    peers: usize,
    sides: Vec<Side>,
}

impl Comparison {
    fn table(&self) -> Table {
        let figures: [(&str, Figure); 4] = [
            ("thousand requests/s", THOUSAND_PER_S),
            ("thousand keys/s", THOUSAND_KEYS_PER_S),
            ("p50, us", P50_US),
            ("p99, us", P99_US),
        ];
        let mut table = Table::new(&self.what, "", figures.map(|(name, _)| name));
        for side in &self.sides {
            table.row(&side.name, figures.map(|(_, figure)| side.spread(figure)).into());
        }
        table
    }

    /// Of each of this server's sides: its keys per second over the better peer's in the same round, and its p99 over that one's.
    fn ratios(&self) -> Vec<Ratio> {
        let (theirs, ours) = self.sides.split_at(self.peers.min(self.sides.len()));
        let best = |round: usize| {
            let there = theirs.iter().filter_map(|side| side.rounds.get(round));
            there.max_by(|a, b| a.keys_per_s.total_cmp(&b.keys_per_s)).copied()
        };
        let rounds = theirs.first().map_or(0, |side| side.rounds.len());
        let best: Vec<Measured> = (0..rounds).filter_map(best).collect();
        let better = Side { name: "the better peer".into(), rounds: best };
        let ratio = |side: &Side| {
            let names = format!("{}: {} / the better peer", self.what, side.name);
            let of = |figure: Figure| [side.spread(figure), better.spread(figure)];
            let ([keys, their_keys], [p99, their_p99]) = (of(THOUSAND_KEYS_PER_S), of(P99_US));
            let target = Some(Target::AtLeast(self.target));
            [
                Ratio::of(names.clone(), "thousand keys/s", [&keys, &their_keys], target),
                Ratio::of(format!("{names}, p99"), "us", [&p99, &their_p99], None),
            ]
        };
        ours.iter().flat_map(ratio).collect()
    }
}

pub(super) fn peers(args: &BenchArgs) -> Result<Findings, Failure> {
    let peers = Peers::start(args)?;
    let about = "memcached and Redis with one thread each, and this server with one worker, all bound to the first core and idle \
        while another is measured; the same closed-loop generator on the second, Zipf 0.99. Ratios are to the better peer of \
        the same round.";
    let mut findings = Findings::new("peers", about);
    for comparison in peers.compare()? {
        findings.tables.push(comparison.table());
        findings.ratios.extend(comparison.ratios());
    }
    Ok(findings)
}

impl Peers<'_> {
    /// Starts everybody and fills all tables.
    fn start(args: &BenchArgs) -> Result<Peers<'_>, Failure> {
        let port = |protocol| parse_listen(protocol, "127.0.0.1:0=bench/t").map_err(Failure::new);
        let listen = vec![port(Protocol::Memcached)?, port(Protocol::Redis)?];
        let server = stage::server(1, |overrides| overrides.listen = listen)?;
        let tenant = server.tenant("bench", "t", TableMode::Store)?;
        let data = Data::new(tenant.table, args.records());
        let peers = Peers { args, server, tenant, memcached: Peer::memcached()?, redis: Peer::redis()?, data };
        peer::fill(&peers.load(peers.memcached.address, Speech::Memcached, Ask::Set))?;
        peer::fill(&peers.load(peers.redis.address, Speech::Redis, Ask::Set))?;
        fill(&peers.server.client(&peers.tenant), &peers.data, &mut |_, _| {})?;
        Ok(peers)
    }

    fn load(&self, address: std::net::SocketAddr, speech: Speech, ask: Ask) -> PeerLoad {
        PeerLoad::new(address, speech, ask, self.data.clone())
    }

    /// The same request of all those, round by round.
    fn same(&self, what: &str, target: f64, loads: &[(&str, PeerLoad)], peers: usize) -> Result<Comparison, Failure> {
        let names: Vec<&str> = loads.iter().map(|(name, _)| *name).collect();
        let seconds = self.args.seconds(SECONDS);
        let sides = by_turns(self.args.rounds(ROUNDS), &names, |side| run_peer(&loads[side].1, seconds))?;
        Ok(Comparison { what: what.to_owned(), target, peers, sides })
    }

    fn everybody(&self, ask: &Ask, pipeline: usize) -> Result<Vec<(&'static str, PeerLoad)>, Failure> {
        let [like_memcached, like_redis] = self.listening()?;
        let sides = [
            ("memcached", self.memcached.address, Speech::Memcached),
            ("Redis", self.redis.address, Speech::Redis),
            ("sandstorm, memcached's protocol", like_memcached, Speech::Memcached),
            ("sandstorm, Redis' protocol", like_redis, Speech::Redis),
        ];
        let load = |(name, address, speech)| (name, PeerLoad { pipeline, ..self.load(address, speech, ask.clone()) });
        Ok(sides.into_iter().map(load).collect())
    }

    /// Where this server speaks memcached's protocol, and Redis'.
    fn listening(&self) -> Result<[std::net::SocketAddr; 2], Failure> {
        let listening = <[_; 2]>::try_from(self.server.listening().to_vec());
        listening.map_err(|_| Failure::new("the server does not listen where it was asked to"))
    }

    fn compare(&self) -> Result<Vec<Comparison>, Failure> {
        let (get, many, set) = (Ask::Get(1), Ask::Get(KEYS), Ask::Set);
        let pipelined = |verb| format!("{verb} over TCP, 16 connections, {PIPELINE} requests at a time");
        let [like_memcached, _] = self.listening()?;
        let udp = [
            ("memcached", self.load(self.memcached.address, Speech::MemcachedUdp, get.clone())),
            ("sandstorm, memcached's protocol", self.load(like_memcached, Speech::MemcachedUdp, get.clone())),
        ];
        let one = "GET over TCP, 16 connections, one request at a time";
        let many_keys = format!("GET of {KEYS} keys over TCP, 16 connections");
        Ok(vec![
            self.same(one, 1.0, &self.everybody(&get, 1)?, 2)?,
            self.same(&pipelined("GET"), 2.0, &self.everybody(&get, PIPELINE)?, 2)?,
            self.same(&many_keys, 2.0, &self.everybody(&many, 1)?, 2)?,
            self.same(&pipelined("SET"), 1.0, &self.everybody(&set, PIPELINE)?, 2)?,
            self.same("GET over UDP, 16 sockets, one request at a time each", 2.0, &udp, 1)?,
            self.own_gets("one at a time", Ask::Get(1), 20.0)?,
            self.own_gets(&format!("{KEYS} keys a request"), Ask::Get(KEYS), 2.5)?,
        ])
    }

    /// The own protocol's plain gets, deep queue, beside memcached's.
    fn own_gets(&self, how: &str, ask: Ask, target: f64) -> Result<Comparison, Failure> {
        let theirs = self.load(self.memcached.address, Speech::Memcached, ask);
        let names = [&format!("memcached, {how}"), "sandstorm, own protocol, deep queue"];
        let seconds = self.args.seconds(SECONDS);
        let sides = by_turns(self.args.rounds(ROUNDS), &names, |side| {
            if side == 0 {
                return run_peer(&theirs, seconds);
            }
            let config = self.server.client(&self.tenant);
            let load = TenantLoad::new("bench", config, self.data.clone(), Mix::only(Class::Get));
            alone(load.pace(Pace::Closed { depth: DEPTH }).batch(BATCH), Class::Get, seconds)
        })?;
        let what = format!("Plain gets, {DEPTH} messages of {BATCH} over kernel UDP with offloads; memcached {how}");
        Ok(Comparison { what, target, peers: 1, sides })
    }
}
