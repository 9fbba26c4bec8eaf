//! `sandstorm bench`: the first figures, side by side in one run: a server on one core, the load generator on another,
//! rounds interleaved, ratios with their spread.

mod neighbours;
mod peers;

use std::time::Duration;

use clap::{Args, ValueEnum};
use sandstorm_client::Sealing;
use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Data, Mix, Options, Pace, Report, Row, TenantLoad, fill, run};
use sandstorm_db::config::parse_listen;
use sandstorm_db::limits::SLICE_US;
use sandstorm_db::protocols::Protocol;
use serde::Serialize;

use self::neighbours::Neighbours;
use self::peers::{Extent, Peers};
use crate::cli::local::{AGGREGATE, BAD, CHAIN, GET, LocalServer, LocalTenant};
use crate::cli::output::{Failure, Out};

/// Records of the tenant whose code runs away.
const MALLORYS_RECORDS: u64 = 10_000;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// A plain get against a call of an extension that does one get.
    Invoke,
    /// One call of a chain of 8 against eight gets, one after another.
    Chain,
    /// Gets in a sealed session against plain ones, at depth 1 and at the depth given.
    Sealed,
    /// A tenant's latency while another's code runs away once in so many calls.
    Runaway,
    /// A tenant's latency while another does its worst: calls that never end, floods, junk, pushes.
    Neighbours,
    /// This server beside memcached and Redis, by their protocols and its own; needs both installed, and runs only when named.
    Peers,
}

/// Measure this machine: a server on one core, the load on another.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// What to measure; all if left out
    #[arg(value_enum)]
    experiments: Vec<Experiment>,
    /// Records in the table
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Rounds of each kind, interleaved [default: 5; of neighbours 15]
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of one measurement [default: 2; of neighbours 0.2]
    #[arg(long)]
    seconds: Option<f64>,
    /// Of the neighbours' attacks, those alone that have this in their names
    #[arg(long, value_name = "TEXT")]
    attack: Option<String>,
    /// Messages under way in the throughput measurements
    #[arg(long, default_value_t = 64)]
    depth: usize,
}

/// A ratio over the rounds.
#[derive(Debug, Serialize)]
struct Ratio {
    what: String,
    median: f64,
    least: f64,
    most: f64,
    /// Medians of both sides, in the unit of `what`.
    sides: [f64; 2],
    target: String,
    reached: bool,
}

/// The median; sorts the values.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Ratio {
    /// The ratios of `rounds`: first side over second.
    fn of(what: &str, rounds: &[(f64, f64)], target: &str, reached: impl Fn(f64) -> bool) -> Ratio {
        let mut ratios: Vec<f64> = rounds.iter().map(|(a, b)| a / b).collect();
        let sides = [0, 1].map(|side| {
            median(&mut rounds.iter().map(|round| if side == 0 { round.0 } else { round.1 }).collect::<Vec<_>>())
        });
        let median = median(&mut ratios);
        let (least, most) = (ratios.first().copied().unwrap_or(median), ratios.last().copied().unwrap_or(median));
        Ratio { what: what.into(), median, least, most, sides, target: target.into(), reached: reached(median) }
    }

    fn line(&self) -> String {
        format!(
            "{}: {:.2} ({:.2} to {:.2}; {:.1} against {:.1}); target {}: {}",
            self.what,
            self.median,
            self.least,
            self.most,
            self.sides[0],
            self.sides[1],
            self.target,
            if self.reached { "reached" } else { "NOT reached" }
        )
    }
}

struct Bench<'a> {
    args: &'a BenchArgs,
    server: LocalServer,
    alice: LocalTenant,
    mallory: LocalTenant,
}

pub(super) fn bench(args: &BenchArgs, out: &Out) -> Result<(), Failure> {
    if args.experiments == [Experiment::Neighbours] {
        return neighbours(args, out);
    }
    if args.experiments.contains(&Experiment::Peers) {
        if args.experiments.len() > 1 {
            return Err(Failure::new("peers share the first core with nothing else: name them alone"));
        }
        return peers(args, out);
    }
    let server = LocalServer::start(Some(1), false)?;
    let (alice, mallory) =
        (server.tenant("alice", "t", TableMode::Store)?, server.tenant("mallory", "t", TableMode::Store)?);
    server.push("alice", &GET)?;
    server.push("alice", &CHAIN)?;
    server.push("mallory", &GET)?;
    server.push("mallory", &BAD)?;
    // The worker is bound to the first core; what starts from here on stays off it.
    stay_off_first_core();
    let bench = Bench { args, server, alice, mallory };
    let mix: Mix = "get,chain".parse().map_err(Failure::new)?;
    let filled = fill(&bench.load(mix.clone()).config, &bench.load(mix).data, &mut |_, _| {})?;
    fill(&bench.server.client(&bench.mallory), &Data::new(bench.mallory.table, MALLORYS_RECORDS), &mut |_, _| {})?;
    if !out.json {
        let rate = filled.records as f64 / filled.took.as_secs_f64();
        out.line(&format!("{}; {} records put at {:.0}/s", bench.server.line(), filled.records, rate))?;
    }
    let asked = |experiment| args.experiments.is_empty() || args.experiments.contains(&experiment);
    let mut ratios = Vec::new();
    if asked(Experiment::Invoke) {
        ratios.push(bench.invoke(out)?);
    }
    if asked(Experiment::Chain) {
        ratios.push(bench.chain(out)?);
    }
    if asked(Experiment::Sealed) {
        ratios.push(bench.sealed(out, 1)?);
        ratios.push(bench.sealed(out, args.depth)?);
    }
    if asked(Experiment::Runaway) {
        ratios.extend(bench.runaway(out)?);
    }
    if out.json {
        out.json(&ratios)?;
    }
    drop(bench);
    if asked(Experiment::Neighbours) { neighbours(args, out) } else { Ok(()) }
}

/// On a server of its own: what the others measured has no part in it.
fn neighbours(args: &BenchArgs, out: &Out) -> Result<(), Failure> {
    let server = LocalServer::start(Some(1), false)?;
    stay_off_first_core();
    if !out.json {
        out.line(&server.line())?;
    }
    // Short and many: whatever else the machine does comes and goes within seconds, and is to meet both sides alike.
    Neighbours::new(&server, args.seconds.unwrap_or(0.2))?.run(
        out,
        args.rounds.unwrap_or(15),
        args.attack.as_deref().unwrap_or(""),
    )
}

/// Beside memcached and Redis, on a server of its own.
fn peers(args: &BenchArgs, out: &Out) -> Result<(), Failure> {
    let port = |protocol| parse_listen(protocol, "127.0.0.1:0=bench/t").map_err(Failure::new);
    let listen = vec![port(Protocol::Memcached)?, port(Protocol::Redis)?];
    let server = LocalServer::start_listening(Some(1), false, listen)?;
    let tenant = server.tenant("bench", "t", TableMode::Store)?;
    for extension in [&GET, &CHAIN, &AGGREGATE] {
        server.push("bench", extension)?;
    }
    stay_off_first_core();
    if !out.json {
        out.line(&server.line())?;
    }
    let &[like_memcached, like_redis] = server.listening() else {
        return Err(Failure::new("the server does not listen where it was asked to"));
    };
    let extent =
        Extent { records: args.records, rounds: args.rounds.unwrap_or(5), seconds: args.seconds.unwrap_or(1.0) };
    let comparisons = Peers::start(&server, tenant, [like_memcached, like_redis], extent, out)?.run(out)?;
    if out.json { out.json(&comparisons) } else { Ok(()) }
}

impl Bench<'_> {
    fn load(&self, mix: Mix) -> TenantLoad {
        let data = Data::new(self.alice.table, self.args.records);
        TenantLoad::new("alice", self.server.client(&self.alice), data, mix)
    }

    fn measure(&self, tenants: Vec<TenantLoad>) -> Result<Report, Failure> {
        let duration = Duration::from_secs_f64(self.args.seconds.unwrap_or(2.0));
        let report = run(&Options { duration, warm_up: duration / 4, ..Options::new(tenants) }, &mut |_| {})?;
        let failed = report.tenants.iter().flat_map(|tenant| &tenant.rows).map(unanswered).sum::<u64>();
        if failed > 0 {
            return Err(Failure::new(format!("{failed} calls failed:\n{report}")));
        }
        if report.wrong > 0 {
            return Err(Failure::new(format!("{} replies were wrong: this is a bug", report.wrong)));
        }
        Ok(report)
    }

    fn row(&self, report: &Report, class: Class) -> Result<Row, Failure> {
        report.row("alice", class).cloned().ok_or_else(|| Failure::new("nothing was measured"))
    }

    /// One class alone, at the depth given.
    fn alone(&self, class: Class, depth: usize) -> Result<Row, Failure> {
        let report = self.measure(vec![self.load(Mix::only(class)).pace(Pace::Closed { depth })])?;
        self.row(&report, class)
    }

    fn rounds(
        &self,
        out: &Out,
        ratio: impl Fn(&[(f64, f64)]) -> Ratio,
        mut round: impl FnMut() -> Result<(f64, f64), Failure>,
    ) -> Result<Ratio, Failure> {
        let rounds = (0..self.args.rounds.unwrap_or(5).max(1)).map(|_| round()).collect::<Result<Vec<_>, _>>()?;
        let ratio = ratio(&rounds);
        if !out.json {
            out.line(&ratio.line())?;
        }
        Ok(ratio)
    }

    fn invoke(&self, out: &Out) -> Result<Ratio, Failure> {
        let what = format!("calls of one get / plain gets, thousand/s at depth {}", self.args.depth);
        let ratio = |rounds: &[(f64, f64)]| Ratio::of(&what, rounds, "at least 0.75", |ratio| ratio >= 0.75);
        self.rounds(out, ratio, || {
            let plain = self.alone(Class::Get, self.args.depth)?;
            let call = self.alone(Class::InvokeGet, self.args.depth)?;
            Ok((call.per_s / 1000.0, plain.per_s / 1000.0))
        })
    }

    fn chain(&self, out: &Out) -> Result<Ratio, Failure> {
        let what = "eight gets / one call of a chain of 8, p50 in us at depth 1";
        let ratio = |rounds: &[(f64, f64)]| Ratio::of(what, rounds, "at least 4", |ratio| ratio >= 4.0);
        self.rounds(out, ratio, || {
            let (gets, call) = (self.alone(Class::ChainGets, 1)?, self.alone(Class::Chain, 1)?);
            Ok((gets.p50_us, call.p50_us))
        })
    }

    fn sealed(&self, out: &Out, depth: usize) -> Result<Ratio, Failure> {
        let what = format!("gets in a sealed session / plain ones, thousand/s at depth {depth}");
        let ratio = |rounds: &[(f64, f64)]| Ratio::of(&what, rounds, "at least 0.8", |ratio| ratio >= 0.8);
        let gets = |sealing| -> Result<f64, Failure> {
            let mut load = self.load(Mix::only(Class::Get)).pace(Pace::Closed { depth });
            load.config.sealing = sealing;
            Ok(self.row(&self.measure(vec![load])?, Class::Get)?.per_s / 1000.0)
        };
        self.rounds(out, ratio, || {
            let plain = gets(Sealing::Never)?;
            Ok((gets(Sealing::Always)?, plain))
        })
    }

    /// Alice and Mallory both call at a third of what the server can do; of Mallory's calls one in so many is endless.
    fn runaway(&self, out: &Out) -> Result<Vec<Ratio>, Failure> {
        let rate = self.alone(Class::InvokeGet, self.args.depth)?.per_s.min(300_000.0) / 3.0;
        let beside = |every: u64| -> Result<Row, Failure> {
            let pace = Pace::per_second(rate);
            let data = Data::new(self.mallory.table, MALLORYS_RECORDS);
            let mallory =
                TenantLoad::new("mallory", self.server.client(&self.mallory), data, Mix::only(Class::InvokeGet));
            let alice = self.load(Mix::only(Class::InvokeGet)).pace(pace);
            let report = self.measure(vec![alice, mallory.pace(pace).bad_every(every)])?;
            self.row(&report, Class::InvokeGet)
        };
        let what = format!("p99 beside one endless call in 100,000 / without, us, at {rate:.0} calls/s each");
        let rare = |rounds: &[(f64, f64)]| Ratio::of(&what, rounds, "at most 2", |ratio| ratio <= 2.0);
        let rare = self.rounds(out, rare, || Ok((beside(100_000)?.p99_us, beside(0)?.p99_us)))?;
        let what = "p99 beside one endless call in 1,000 / the budget of a slice, us";
        let often = |rounds: &[(f64, f64)]| Ratio::of(what, rounds, "at most 2, all answered", |ratio| ratio <= 2.0);
        let often = self.rounds(out, often, || Ok((beside(1_000)?.p99_us, SLICE_US as f64)))?;
        Ok(vec![rare, often])
    }
}

/// Calls of a row that did not end as they should: well, or, of endless code, by being killed.
fn unanswered(row: &Row) -> u64 {
    let killed = row.errors.get("killed").copied().unwrap_or(0);
    row.count - row.ok - if row.class == Class::Bad { killed } else { 0 }
}

/// Keeps this thread, and those it starts, off the core of the first worker.
fn stay_off_first_core() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(mut allowed) = sched_getaffinity(None) else { return };
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    if let (Some(first), true) = (first, allowed.count() > 1) {
        allowed.unset(first);
        let _stays_where_it_was = sched_setaffinity(None, &allowed);
    }
}
