//! `sandstorm bench peers`: this server beside memcached and Redis, on the same core, from the same kind of generator, in one run
//! with interleaved rounds. The peers are Debian's packages; `scripts/bench` installs them.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sandstorm_client::load::peer::{self, Ask, PeerLoad, PeerReport, Speech};
use sandstorm_client::load::{Class, Data, Mix, Options, Pace, Row, TenantLoad, fill, run};
use serde::Serialize;

use super::median;
use crate::cli::local::{LocalServer, LocalTenant};
use crate::cli::output::{Failure, Out};

/// How long a peer may take until it listens.
const START: Duration = Duration::from_secs(20);
/// Requests under way on each connection of the pipelined experiments.
const PIPELINE: usize = 32;
/// Keys of a request of the experiments with many.
const KEYS: usize = 30;
/// Memory that memcached may use for records, MiB.
const MEMCACHED_MIB: u32 = 4096;
/// Links of a chain that one call follows, and of the list that one call sums.
const HOPS: u32 = 8;
const SUMMED: u32 = 32;

/// A peer: a process of its own, bound to the first core, gone with this value.
struct Peer {
    name: &'static str,
    child: Child,
    address: SocketAddr,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself; nothing of it is to be kept.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Peer {
    fn start(name: &'static str, package: &str, arguments: impl Fn(u16) -> Vec<String>) -> Result<Peer, Failure> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = Command::new("taskset")
            .args(["-c", "0", name])
            .args(arguments(address.port()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.map_err(|error| Failure::new(format!("cannot start {name} under taskset: {error}")))?;
        let mut peer = Peer { name, child, address };
        let begun = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            if peer.child.try_wait()?.is_some() {
                let text = format!("{name} is not there or does not start; install it: apt-get install {package}");
                return Err(Failure::new(text));
            }
            if begun.elapsed() > START {
                return Err(Failure::new(format!("{} does not listen on {address} after {START:?}", peer.name)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(peer)
    }

    fn memcached() -> Result<Peer, Failure> {
        let user = if rustix::process::getuid().is_root() { vec!["-u".to_owned(), "root".to_owned()] } else { vec![] };
        Peer::start("memcached", "memcached", |port| {
            let rest = format!("-l 127.0.0.1 -p {port} -U {port} -t 1 -m {MEMCACHED_MIB} -c 4096");
            rest.split(' ').map(str::to_owned).chain(user.clone()).collect()
        })
    }

    fn redis() -> Result<Peer, Failure> {
        Peer::start("redis-server", "redis-server", |port| {
            let rest = format!("--port {port} --bind 127.0.0.1 --appendonly no --io-threads 1 --save");
            rest.split(' ').map(str::to_owned).chain([String::new()]).collect()
        })
    }
}

/// One of those that are compared, over the rounds.
#[derive(Debug, Serialize)]
struct Side {
    name: String,
    /// Medians.
    thousand_requests_per_s: f64,
    thousand_keys_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    rounds: Vec<Measured>,
}

#[derive(Clone, Debug, Serialize)]
struct Measured {
    requests_per_s: f64,
    keys_per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

impl From<PeerReport> for Measured {
    fn from(report: PeerReport) -> Measured {
        let PeerReport { per_s, keys_per_s, p50_us, p99_us, .. } = report;
        Measured { requests_per_s: per_s, keys_per_s, p50_us, p99_us }
    }
}

/// An experiment: this server's sides against the peers' better one.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    what: String,
    sides: Vec<Side>,
    /// Of each of this server's sides: its keys per second over the better peer's, in each round.
    ratios: Vec<RatioOf>,
    target: f64,
}

#[derive(Debug, Serialize)]
struct RatioOf {
    name: String,
    median: f64,
    least: f64,
    most: f64,
    /// Its p99 over that of the faster peer, median of the rounds.
    p99: f64,
    reached: bool,
}

impl Side {
    fn of(name: &str, rounds: Vec<Measured>) -> Side {
        let of = |value: fn(&Measured) -> f64| median(&mut rounds.iter().map(value).collect::<Vec<_>>());
        Side {
            name: name.to_owned(),
            thousand_requests_per_s: of(|round| round.requests_per_s / 1000.0),
            thousand_keys_per_s: of(|round| round.keys_per_s / 1000.0),
            p50_us: of(|round| round.p50_us),
            p99_us: of(|round| round.p99_us),
            rounds,
        }
    }
}

impl Comparison {
    /// `peers`: how many of the sides, from the first, are peers.
    fn of(what: &str, target: f64, peers: usize, sides: Vec<Side>) -> Comparison {
        let (theirs, ours) = sides.split_at(peers.min(sides.len()));
        let ratio = |side: &Side| {
            let rounds = side.rounds.iter().enumerate().filter_map(|(round, measured)| {
                let there = theirs.iter().filter_map(|peer| peer.rounds.get(round));
                let best = there.max_by(|a, b| a.keys_per_s.total_cmp(&b.keys_per_s))?;
                Some((measured.keys_per_s / best.keys_per_s, measured.p99_us / best.p99_us))
            });
            let (ratios, mut p99): (Vec<f64>, Vec<f64>) = rounds.unzip();
            let middle = median(&mut ratios.clone());
            RatioOf {
                name: side.name.clone(),
                median: middle,
                least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
                most: ratios.iter().copied().fold(0.0, f64::max),
                p99: median(&mut p99),
                reached: middle >= target,
            }
        };
        let ratios = ours.iter().map(ratio).collect();
        Comparison { what: what.to_owned(), sides, ratios, target }
    }

    fn print(&self, out: &Out) -> Result<(), Failure> {
        out.line(&format!("\n{}", self.what))?;
        for side in &self.sides {
            let Side { name, thousand_requests_per_s, thousand_keys_per_s, p50_us, p99_us, .. } = side;
            out.line(&format!(
                "  {name:<34} {thousand_requests_per_s:>9.1} k requests/s {thousand_keys_per_s:>10.1} k keys/s  p50 {p50_us:>8.1} us  p99 {p99_us:>8.1} us"
            ))?;
        }
        for RatioOf { name, median, least, most, p99, reached } in &self.ratios {
            let reached = if *reached { "reached" } else { "NOT reached" };
            out.line(&format!(
                "  {name} / the better peer: {median:.2} ({least:.2} to {most:.2}), p99 {p99:.2}; target {}: {reached}",
                self.target
            ))?;
        }
        Ok(())
    }
}

/// A line for people.
fn tell(out: &Out, text: &str) -> Result<(), Failure> {
    if out.json { Ok(()) } else { out.line(text) }
}

/// How many rounds, how long, how much.
pub(super) struct Extent {
    pub(super) records: u64,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
}

/// Everybody, with the records in place.
pub(super) struct Peers<'s> {
    extent: Extent,
    server: &'s LocalServer,
    tenant: LocalTenant,
    memcached: Peer,
    redis: Peer,
    /// Where this server speaks their protocols.
    like_memcached: SocketAddr,
    like_redis: SocketAddr,
    data: Data,
}

impl<'s> Peers<'s> {
    /// Starts the peers and fills all tables.
    pub(super) fn start(
        server: &'s LocalServer,
        tenant: LocalTenant,
        [like_memcached, like_redis]: [SocketAddr; 2],
        extent: Extent,
        out: &Out,
    ) -> Result<Peers<'s>, Failure> {
        let (memcached, redis) = (Peer::memcached()?, Peer::redis()?);
        let mut data = Data::new(tenant.table, extent.records);
        (data.links, data.depth) = (extent.records / 10, HOPS);
        (data.lists, data.list_len) = (10_000.min(extent.records), SUMMED);
        let peers = Peers { extent, server, tenant, memcached, redis, like_memcached, like_redis, data };
        for (name, address, speech) in
            [("memcached", peers.memcached.address, Speech::Memcached), ("redis", peers.redis.address, Speech::Redis)]
        {
            let took = peer::fill(&peers.load(address, speech, Ask::Set))?;
            tell(out, &format!("{name}: filled in {:.1} s", took.as_secs_f64()))?;
        }
        let filled = fill(&peers.server.client(&peers.tenant), &peers.data, &mut |_, _| {})?;
        let (records, took) = (filled.records, filled.took.as_secs_f64());
        tell(out, &format!("sandstorm: {records} records filled in {took:.1} s"))?;
        Ok(peers)
    }

    fn load(&self, address: SocketAddr, speech: Speech, ask: Ask) -> PeerLoad {
        let duration = Duration::from_secs_f64(self.extent.seconds);
        PeerLoad { duration, warm_up: duration / 4, ..PeerLoad::new(address, speech, ask, self.data.clone()) }
    }

    fn measure(&self, load: &PeerLoad) -> Result<Measured, Failure> {
        let report = peer::run(load)?;
        if report.wrong > 0 || report.errors > 0 {
            let PeerReport { wrong, errors, first_error, .. } = &report;
            let at = load.address;
            return Err(Failure::new(format!("{at}: {wrong} wrong replies, {errors} errors: {first_error:?}")));
        }
        Ok(report.into())
    }

    /// The same request of everybody, round by round.
    fn same(&self, what: &str, target: f64, asks: &[(&str, PeerLoad)], peers: usize) -> Result<Comparison, Failure> {
        let mut rounds: Vec<Vec<Measured>> = vec![Vec::new(); asks.len()];
        for _ in 0..self.extent.rounds.max(1) {
            for ((_, load), rounds) in asks.iter().zip(&mut rounds) {
                rounds.push(self.measure(load)?);
            }
        }
        let sides = asks.iter().zip(rounds).map(|((name, _), rounds)| Side::of(name, rounds)).collect();
        Ok(Comparison::of(what, target, peers, sides))
    }

    fn everybody(&self, ask: &Ask, change: impl Fn(&mut PeerLoad)) -> Vec<(&'static str, PeerLoad)> {
        let sides = [
            ("memcached", self.memcached.address, Speech::Memcached),
            ("Redis", self.redis.address, Speech::Redis),
            ("sandstorm, memcached's protocol", self.like_memcached, Speech::Memcached),
            ("sandstorm, Redis' protocol", self.like_redis, Speech::Redis),
        ];
        sides
            .into_iter()
            .map(|(name, address, speech)| {
                let mut load = self.load(address, speech, ask.clone());
                change(&mut load);
                (name, load)
            })
            .collect()
    }

    /// All experiments, one after another; each is printed as it ends.
    pub(super) fn run(&self, out: &Out) -> Result<Vec<Comparison>, Failure> {
        let mut all = Vec::new();
        let mut done = |comparison: Comparison| -> Result<(), Failure> {
            if !out.json {
                comparison.print(out)?;
            }
            all.push(comparison);
            Ok(())
        };
        let pipelined = |load: &mut PeerLoad| load.pipeline = PIPELINE;
        let (get, many, set) = (Ask::Get(1), Ask::Get(KEYS), Ask::Set);
        let what = "GET over TCP, 16 connections, one request at a time";
        done(self.same(what, 1.0, &self.everybody(&get, |_| {}), 2)?)?;
        let what = format!("GET over TCP, 16 connections, {PIPELINE} requests at a time");
        done(self.same(&what, 2.0, &self.everybody(&get, pipelined), 2)?)?;
        let what = format!("GET of {KEYS} keys over TCP, 16 connections");
        done(self.same(&what, 2.0, &self.everybody(&many, |_| {}), 2)?)?;
        let what = format!("SET over TCP, 16 connections, {PIPELINE} requests at a time");
        done(self.same(&what, 1.0, &self.everybody(&set, pipelined), 2)?)?;
        let udp = [
            ("memcached", self.load(self.memcached.address, Speech::MemcachedUdp, get.clone())),
            ("sandstorm, memcached's protocol", self.load(self.like_memcached, Speech::MemcachedUdp, get)),
        ];
        done(self.same("GET over UDP, 16 sockets, one request at a time each", 2.0, &udp, 1)?)?;
        done(self.own_gets()?)?;
        for (class, target) in [(Class::InvokeGet, 1.0), (Class::Chain, 20.0), (Class::Aggregate, 12.0)] {
            done(self.calls(class, target)?)?;
        }
        Ok(all)
    }

    /// The own protocol's plain gets, deep queue, beside memcached's one at a time.
    fn own_gets(&self) -> Result<Comparison, Failure> {
        let one = self.load(self.memcached.address, Speech::Memcached, Ask::Get(1));
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..self.extent.rounds.max(1) {
            theirs.push(self.measure(&one)?);
            ours.push(self.own(Class::Get, 64, 32)?);
        }
        let sides = vec![Side::of("memcached, one at a time", theirs), Side::of("sandstorm, own protocol, deep", ours)];
        Ok(Comparison::of("Plain gets, own protocol over kernel UDP with offloads", 20.0, 1, sides))
    }

    /// Pushed code: a script of Redis', and an extension, called by Redis' protocol and by the own one.
    fn calls(&self, class: Class, target: f64) -> Result<Comparison, Failure> {
        let (script, name, more) = match class {
            Class::Chain => (CHAIN_SCRIPT, "chain", vec![HOPS.to_string().into_bytes()]),
            Class::Aggregate => (SUM_SCRIPT, "sum of a list", vec![]),
            _ => (GET_SCRIPT, "one get", vec![]),
        };
        let digest = self.load_script(script)?;
        let words = vec![b"EVALSHA".to_vec(), digest];
        let mut lua = self.load(self.redis.address, Speech::Redis, Ask::Call { words, more, class });
        lua.pipeline = PIPELINE;
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..self.extent.rounds.max(1) {
            theirs.push(self.measure(&lua)?);
            ours.push(self.own(class, 256, 1)?);
        }
        let sides = vec![Side::of("Redis, EVALSHA, pipelined", theirs), Side::of("sandstorm, own protocol", ours)];
        Ok(Comparison::of(&format!("Pushed code: {name}"), target, 1, sides))
    }

    /// One class alone by the own protocol.
    fn own(&self, class: Class, depth: usize, batch: usize) -> Result<Measured, Failure> {
        let config = self.server.client(&self.tenant);
        let load = TenantLoad::new("bench", config, self.data.clone(), Mix::only(class));
        let mut load = load.pace(Pace::Closed { depth }).batch(batch);
        // As it was filled: not with the chains and lists that the mix would ask for.
        load.data = self.data.clone();
        let duration = Duration::from_secs_f64(self.extent.seconds);
        let report = run(&Options { duration, warm_up: duration / 4, ..Options::new(vec![load]) }, &mut |_| {})?;
        let row: &Row = report.row("bench", class).ok_or_else(|| Failure::new("nothing was measured"))?;
        if row.ok != row.count || row.wrong > 0 {
            return Err(Failure::new(format!("calls failed or were answered wrongly:\n{report}")));
        }
        let (per_s, p50_us, p99_us) = (row.per_s, row.p50_us, row.p99_us);
        Ok(Measured { requests_per_s: per_s, keys_per_s: per_s, p50_us, p99_us })
    }

    /// Loads a script into Redis; its digest.
    fn load_script(&self, script: &str) -> Result<Vec<u8>, Failure> {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(self.redis.address)?;
        stream.set_read_timeout(Some(START))?;
        let len = script.len();
        write!(stream, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${len}\r\n{script}\r\n")?;
        let mut answer = [0; 256];
        let len = stream.read(&mut answer)?;
        let text = String::from_utf8_lossy(answer.get(..len).unwrap_or_default()).into_owned();
        let digest = text.strip_prefix("$40\r\n").and_then(|rest| rest.get(..40));
        digest.map(|digest| digest.as_bytes().to_vec()).ok_or_else(|| Failure::new(format!("SCRIPT LOAD: {text}")))
    }
}

/// One get.
const GET_SCRIPT: &str = "return redis.call('GET', KEYS[1])";
/// Follows a chain whose values are `next_len u8 | next key | filler`, and answers the last value.
const CHAIN_SCRIPT: &str = "local key = KEYS[1] local value \
    for hop = 1, tonumber(ARGV[1]) do value = redis.call('GET', key) key = string.sub(value, 2, 1 + string.byte(value, 1)) end \
    return value";
/// Sums the first bytes of the records that a list names: `key_len u16 | key`, repeated.
const SUM_SCRIPT: &str = "local list = redis.call('GET', KEYS[1]) local sum, at = 0, 1 \
    while at < #list do local len = string.byte(list, at) + 256 * string.byte(list, at + 1) \
    local value = redis.call('GET', string.sub(list, at + 2, at + 1 + len)) \
    sum = sum + string.byte(value, 1) at = at + 2 + len end return sum";
