//! Pushed code compared with Redis': extensions called by the own protocol, and the same code as scripts (EVALSHA) and
//! as functions (FCALL). They are sent one at a time, as a client library does, and in pipelines. The last side is a
//! client that uses gets instead.

use sandstorm_client::control::TableMode;
use sandstorm_client::load::keys::{self, write_key};
use sandstorm_client::load::peer::{self, PeerLoad, PeerProtocol, PeerWorkload};
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};
use sandstorm_client::raw::Connection;
use sandstorm_client::{Config, PutOptions};

use super::measure::{
    LoadMeasurement, P50_US, ParameterSweep, THOUSAND_PER_S, axis, measure_interleaved, measure_sweep, run_peer,
    run_single_class,
};
use super::peer_server::{PeerServer, RedisConnection};
use super::report::{AxisScale, ExperimentFindings, RatioResult, RatioTarget};
use super::single_server::table_of;
use super::{BenchArgs, bench_server};
use crate::local_server::{AGGREGATE, CHAIN, GET, LocalServer, LocalTenant};
use sandstorm_terminal::output::CliError;

/// Requests in flight on each connection of the pipelined sides.
const PIPELINE: usize = 32;
/// Calls in flight of the own protocol; and calls in a message, where they are batched.
const DEPTH: usize = 256;
const TOGETHER: usize = 8;
/// Links of a chain that one call follows, and records of the list that one call sums, where they are not varied.
const HOPS: u32 = 8;
const SUMMED: u32 = 32;
const DEPTHS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
const SUMS: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
/// Most lists: as many as the generator uses.
const LISTS: u64 = 10_000;
/// Targets: the speed of calls over scripts that are sent one at a time, and over scripts in pipelines.
const CHAIN_TARGET: f64 = 20.0;
const SUM_TARGET: f64 = 12.0;
/// Seconds of one measurement where one quantity is fixed, and where it is varied; rounds of these.
const SECONDS: f64 = 0.6;
const VARIED_SECONDS: f64 = 0.4;
const ROUNDS: usize = 5;
const VARIED_ROUNDS: usize = 3;

/// The server and the kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallPath {
    /// An extension.
    Call,
    /// An extension with as many calls in flight, so many of them in a message.
    Calls(usize),
    /// The client, by gets; many clients at the same time.
    Gets,
    /// Redis' `EVALSHA`, with so many in flight on a connection.
    Script(usize),
    /// Redis' `FCALL`.
    Function(usize),
}

const CALL_PATHS: [(&str, CallPath); 6] = [
    ("calls of an extension", CallPath::Call),
    ("the client by gets, here", CallPath::Gets),
    ("Redis, EVALSHA one at a time", CallPath::Script(1)),
    ("Redis, EVALSHA in pipelines of 32", CallPath::Script(PIPELINE)),
    ("Redis, FCALL one at a time", CallPath::Function(1)),
    ("Redis, FCALL in pipelines of 32", CallPath::Function(PIPELINE)),
];
const NAMES: [&str; 6] =
    [CALL_PATHS[0].0, CALL_PATHS[1].0, CALL_PATHS[2].0, CALL_PATHS[3].0, CALL_PATHS[4].0, CALL_PATHS[5].0];
/// A side beside [`CALL_PATHS`], where nothing is varied.
const CALLS_TOGETHER: (&str, CallPath) = ("calls of an extension, 8 in a message", CallPath::Calls(TOGETHER));
/// Index into [`CALL_PATHS`].
const CALL: usize = 0;
const ONE_AT_A_TIME: usize = 2;
const IN_PIPELINES: usize = 3;

/// Both servers, with the records in place and the code loaded.
struct ScriptsSetup {
    server: LocalServer,
    tenant: LocalTenant,
    redis: PeerServer,
    control: RedisConnection,
    /// Digests of the scripts for one get, a chain, and a sum.
    scripts: [Vec<u8>; 3],
    data: Data,
}

impl ScriptsSetup {
    fn start(args: &BenchArgs) -> Result<ScriptsSetup, CliError> {
        let server = bench_server::start_bench_server(1, |_| {})?;
        let tenant = server.tenant("bench", "t", TableMode::Store)?;
        for extension in [&GET, &CHAIN, &AGGREGATE] {
            server.push("bench", extension)?;
        }
        let mut data = Data::new(tenant.table, args.records());
        (data.links, data.depth) = ((data.records / 10).max(1), HOPS);
        (data.lists, data.list_len) = (LISTS.min(data.records), SUMMED);
        let redis = PeerServer::redis()?;
        let mut control = RedisConnection::connect(redis.address)?;
        let mut load = |script: &str| control.command(&[b"SCRIPT", b"LOAD", script.as_bytes()]);
        let scripts = [load(GET_SCRIPT)?, load(CHAIN_SCRIPT)?, load(SUM_SCRIPT)?];
        control.command(&[b"FUNCTION", b"LOAD", b"REPLACE", functions().as_bytes()])?;
        let pushed = ScriptsSetup { server, tenant, redis, control, scripts, data };
        peer::fill(&PeerLoad::new(pushed.redis.address, PeerProtocol::Redis, PeerWorkload::Set, pushed.data.clone()))?;
        fill(&pushed.server.client(&pushed.tenant), &pushed.data, &mut |_, _| {})?;
        Ok(pushed)
    }

    fn measure(&self, path: CallPath, class: Class, seconds: f64) -> Result<LoadMeasurement, CliError> {
        let [get, chain, sum] = &self.scripts;
        let (script, function, by_gets) = match class {
            Class::Chain => (chain, "chain", Class::ChainGets),
            Class::Aggregate => (sum, "sum", Class::AggregateGets),
            _ => (get, "one_get", Class::Get),
        };
        let more = if class == Class::Chain { vec![self.data.depth.to_string().into_bytes()] } else { vec![] };
        let (words, pipeline) = match path {
            CallPath::Call => return self.own(class, 1, seconds),
            CallPath::Calls(batch) => return self.own(class, batch, seconds),
            CallPath::Gets => return self.own(by_gets, 1, seconds),
            CallPath::Script(pipeline) => (vec![b"EVALSHA".to_vec(), script.clone()], pipeline),
            CallPath::Function(pipeline) => (vec![b"FCALL".to_vec(), function.as_bytes().to_vec()], pipeline),
        };
        let workload = PeerWorkload::ServerCode { words, more, class };
        let load = PeerLoad::new(self.redis.address, PeerProtocol::Redis, workload, self.data.clone());
        run_peer(&PeerLoad { pipeline, ..load }, seconds)
    }

    fn own(&self, class: Class, batch: usize, seconds: f64) -> Result<LoadMeasurement, CliError> {
        let (config, pace) = (self.server.client(&self.tenant), Pace::Closed { depth: DEPTH / batch });
        let mut load = TenantLoad::new("bench", config, self.data.clone(), Mix::only(class)).pace(pace).batch(batch);
        // The data as it was filled, without the chains and lists that the mix would ask for.
        load.data = self.data.clone();
        run_single_class(load, class, seconds)
    }

    /// Rewrites all lists with so many records each.
    fn list_len(&mut self, list_len: u32) -> Result<(), CliError> {
        self.data.list_len = list_len;
        let data = self.data.clone();
        let mut scratch = Vec::new();
        let mut write = |id: u64, key: &mut Vec<u8>, value: &mut Vec<u8>| {
            data.write_list(id, value, &mut scratch);
            write_key(keys::LIST, id, data.key_len, key);
        };
        self.control.put_all(data.lists, &mut write)?;
        put_all(&self.server.client(&self.tenant), data.table, data.lists, &mut write)
    }
}

/// Puts records one by one, with as many in flight as there is room for.
pub(super) fn put_all(
    config: &Config,
    table: u64,
    count: u64,
    mut write: impl FnMut(u64, &mut Vec<u8>, &mut Vec<u8>),
) -> Result<(), CliError> {
    let mut connection = Connection::connect(config)?;
    let (mut key, mut value, mut failed, mut next) = (Vec::new(), Vec::new(), None, 0);
    while next < count || connection.in_flight() > 0 {
        while next < count && connection.free_slots() > 0 {
            write(next, &mut key, &mut value);
            let mut message = connection.message();
            message.put(table, &key, &value, &PutOptions::default());
            connection.send(next, message)?;
            next += 1;
        }
        connection.flush();
        connection.poll(|_, answer| {
            let refused = |response: sandstorm_client::raw::Response<'_>| {
                response
                    .operations()
                    .find_map(|one| one.map_or_else(Some, |one| sandstorm_client::raw::operation_error(&one)))
            };
            failed = failed.take().or_else(|| answer.map_or_else(Some, refused));
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
    }
    Ok(())
}

pub(super) fn scripts(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let pushed = ScriptsSetup::start(args)?;
    let about = format!(
        "One worker here, {DEPTH} calls under way, each a message of its own or {TOGETHER} in one; Redis with one thread, 16 connections with \
         one call each or pipelines of {PIPELINE}. The targets are for calls in messages of their own and, as in the papers, against scripts \
         that are sent one at a time, as a client library does."
    );
    let paths: Vec<(&str, CallPath)> = CALL_PATHS.into_iter().chain([CALLS_TOGETHER]).collect();
    let (names, together): (Vec<&str>, usize) = (paths.iter().map(|(name, _)| *name).collect(), CALL_PATHS.len());
    let mut findings = ExperimentFindings::new("scripts", about);
    for (class, name, target) in [
        (Class::InvokeGet, "one get", None),
        (Class::Chain, "a chain of 8", Some(CHAIN_TARGET)),
        (Class::Aggregate, "a sum of 32", Some(SUM_TARGET)),
    ] {
        let seconds = args.seconds(SECONDS);
        let sides =
            measure_interleaved(args.rounds(ROUNDS), &names, |side| pushed.measure(paths[side].1, class, seconds))?;
        let mut table = table_of(&format!("Pushed code: {name}"), &sides);
        table.of = "how".into();
        findings.tables.push(table);
        let comparisons = [(CALL, ONE_AT_A_TIME, target), (CALL, IN_PIPELINES, None), (together, ONE_AT_A_TIME, None)];
        for (calls, other, target) in comparisons {
            let what = format!("{name}: {} / {}", names[calls], names[other]);
            let spreads = [calls, other].map(|side| sides[side].spread(THOUSAND_PER_S));
            findings.ratios.push(RatioResult::of(
                what,
                "thousand/s",
                [&spreads[0], &spreads[1]],
                target.map(RatioTarget::AtLeast),
            ));
        }
    }
    Ok(findings)
}

/// Ratios at one value of the varied quantity.
fn ratios(findings: &mut ExperimentFindings, sweep: &ParameterSweep, value: f64, name: &str, target: f64) {
    for (other, target) in [(ONE_AT_A_TIME, Some(target)), (IN_PIPELINES, None), (1, None)] {
        let (Some(call), Some(peer)) = (sweep.side(value, CALL), sweep.side(value, other)) else { continue };
        let what = format!("{name}: calls / {}", peer.name);
        let sides = [&call.spread(THOUSAND_PER_S), &peer.spread(THOUSAND_PER_S)];
        findings.ratios.push(RatioResult::of(what, "thousand/s", sides, target.map(RatioTarget::AtLeast)));
    }
}

pub(super) fn depth(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let mut pushed = ScriptsSetup::start(args)?;
    let about = format!("Chains, each record naming the next. {DEPTH} under way here, in 16 connections at Redis.");
    let mut findings = ExperimentFindings::new("depth", about);
    let seconds = args.seconds(VARIED_SECONDS);
    let x = axis("records in a chain", AxisScale::Log);
    let sweep = measure_sweep(args.rounds(VARIED_ROUNDS), x, &DEPTHS, &NAMES, |depth, side| {
        pushed.data.depth = depth as u32;
        pushed.measure(CALL_PATHS[side].1, Class::Chain, seconds)
    })?;
    sweep.show(&mut findings, "Chains a second", "thousand/s", AxisScale::Log, THOUSAND_PER_S);
    sweep.show(&mut findings, "Median latency of a chain", "p50, us", AxisScale::Log, P50_US);
    ratios(&mut findings, &sweep, f64::from(HOPS), "a chain of 8", CHAIN_TARGET);
    Ok(findings)
}

pub(super) fn aggregate(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let mut pushed = ScriptsSetup::start(args)?;
    let about = format!(
        "Sums over the records that a list names; the client's way is a get of the list and one get of all its records. {DEPTH} \
         under way here, in 16 connections at Redis."
    );
    let mut findings = ExperimentFindings::new("aggregate", about);
    let seconds = args.seconds(VARIED_SECONDS);
    let x = axis("records in a sum", AxisScale::Log);
    let mut filled = SUMMED;
    let sweep = measure_sweep(args.rounds(VARIED_ROUNDS), x, &SUMS, &NAMES, |len, side| {
        if filled != len as u32 {
            filled = len as u32;
            pushed.list_len(filled)?;
        }
        pushed.measure(CALL_PATHS[side].1, Class::Aggregate, seconds)
    })?;
    sweep.show(&mut findings, "Sums a second", "thousand/s", AxisScale::Log, THOUSAND_PER_S);
    sweep.show(&mut findings, "Median latency of a sum", "p50, us", AxisScale::Log, P50_US);
    ratios(&mut findings, &sweep, f64::from(SUMMED), "a sum of 32", SUM_TARGET);
    Ok(findings)
}

/// One get.
pub(super) const GET_SCRIPT: &str = "return redis.call('GET', KEYS[1])";
/// Follows a chain whose values are `next_len u8 | next key | filler`, and answers the last value.
pub(super) const CHAIN_SCRIPT: &str = "local key = KEYS[1] local value \
    for hop = 1, tonumber(ARGV[1]) do value = redis.call('GET', key) key = string.sub(value, 2, 1 + string.byte(value, 1)) end \
    return value";
/// Sums the first bytes of the records that a list names: `key_len u16 | key`, repeated.
pub(super) const SUM_SCRIPT: &str = "local list = redis.call('GET', KEYS[1]) local sum, at = 0, 1 \
    while at < #list do local len = string.byte(list, at) + 256 * string.byte(list, at + 1) \
    local value = redis.call('GET', string.sub(list, at + 2, at + 1 + len)) \
    sum = sum + string.byte(value, 1) at = at + 2 + len end return sum";

/// The same scripts as a library of functions.
fn functions() -> String {
    let function = |(name, script)| format!("redis.register_function('{name}', function(KEYS, ARGV) {script} end)\n");
    let all = [("one_get", GET_SCRIPT), ("chain", CHAIN_SCRIPT), ("sum", SUM_SCRIPT)].map(function);
    format!("#!lua name=bench\n{}", all.concat())
}
