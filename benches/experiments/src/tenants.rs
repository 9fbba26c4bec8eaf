//! `sandstorm bench tenants`: the same load from 1 to 1,024 tenants; `skew`: tenants of very different rates on two
//! workers, with and without stealing.

use rustix::process::{getpriority_process, setpriority_process};
use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};

use super::measure::{
    LoadMeasurement, P99_US, SERVER_US, THOUSAND_PER_S, axis, measure_sweep, row, run_checked, run_sleeping_generator,
};
use super::report::{AxisScale, ExperimentFindings, RatioResult, RatioTarget};
use super::{BenchArgs, bench_server};
use crate::local_server::{LONG, LocalServer, LocalTenant};
use sandstorm_terminal::output::CliError;

const COUNTS: [f64; 5] = [1.0, 8.0, 64.0, 256.0, 1024.0];
/// The number of tenants whose throughput is the reference for the most tenants.
const FEW: f64 = 8.0;
const MANY: f64 = 1024.0;
const MIN_KEPT_RATIO: f64 = 0.85;
/// Messages in flight of all tenants together, and gets in each where there are few tenants: the same for all.
const UNDER_WAY: usize = 1024;
/// Limit of open files: for so many sockets, the server's files and others.
const FILES: u64 = 4096;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.7;
const ROUNDS: usize = 3;

/// Tenants of the experiment with skew (each has its extension compiled, on both servers), and workers.
const SKEWED: usize = 8;
const WORKERS: usize = 2;
/// Exponents of Zipf's law over the tenants' rates; 0: all alike.
const EXPONENTS: [f64; 5] = [0.0, 0.5, 0.99, 1.5, 2.0];
/// At the highest skew: p99 without stealing over that with it.
const STEALING_TARGET: f64 = 2.0;
/// Offered load, as a part of the closed loop's throughput.
const LOAD: f64 = 0.5;
/// Most records of each tenant: calls are long, not large.
const SKEWED_RECORDS: u64 = 10_000;
/// Gets of a call, and gets between two yields. A call takes about a millisecond, in pieces of a few microseconds. So
/// one or two thousand calls a second fill both workers, and the generator needs little of their processors.
const CALL_GETS: u32 = 32_768;
const GETS_AT_ONCE: u32 = 32;
/// Seconds of one measurement.
const SKEW_SECONDS: f64 = 4.0;

/// Lets this process open a socket for each tenant.
pub(super) fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < FILES) {
        let current = Some(limit.maximum.map_or(FILES, |most| most.min(FILES)));
        // If the limit cannot be raised, opening a socket reports it.
        let _as_it_was = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
    }
}

pub(super) fn tenants(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    raise_file_limit();
    let server = bench_server::start_bench_server(1, |_| {})?;
    let mut all = Vec::new();
    let records = |count: f64| (args.records() / count as u64).max(1);
    for count in COUNTS {
        while all.len() < count as usize {
            all.push(server.tenant(&format!("tenant-{}", all.len()), "t", TableMode::Store)?);
            let tenant: &LocalTenant = &all[all.len() - 1];
            fill(&server.client(tenant), &Data::new(tenant.table, records(count)), &mut |_, _| {})?;
        }
    }
    let about = format!(
        "Plain gets of so many tenants, each with its own sessions and table; {UNDER_WAY} messages under way and as many records in all, \
         whatever their number. With as many connections in all, one message each, only the tenants differ; with one connection for each tenant, \
         few tenants also have few sockets, and datagrams that come and go together."
    );
    let mut findings = ExperimentFindings::new("tenants", about);
    let x = axis("tenants", AxisScale::Log);
    let names = [&format!("{UNDER_WAY} connections in all")[..], "a connection each"];
    let sweep = measure_sweep(args.rounds(ROUNDS), x, &COUNTS, &names, |count, side| {
        let each = (UNDER_WAY / count as usize).max(1);
        let (connections, depth) = if side == 0 { (each, 1) } else { (1, each) };
        let load = |tenant: &LocalTenant| {
            let data = Data::new(tenant.table, records(count));
            let load = TenantLoad::new("tenant", server.client(tenant), data, Mix::only(Class::Get));
            TenantLoad { connections, ..load.pace(Pace::Closed { depth }) }
        };
        let (seconds, loads) = (args.seconds(SECONDS), all.iter().take(count as usize).map(load).collect());
        let (report, busy) = server.busy_while(seconds, || run_checked(loads, seconds))?;
        let mut p99: Vec<f64> = report.tenants.iter().flat_map(|one| &one.rows).map(|row| row.p99_us).collect();
        let mut p50: Vec<f64> = report.tenants.iter().flat_map(|one| &one.rows).map(|row| row.p50_us).collect();
        let per_s = report.per_s;
        let median = super::report::median;
        let (p50_us, p99_us) = (median(&mut p50), median(&mut p99));
        Ok(LoadMeasurement {
            per_s,
            keys_per_s: per_s,
            p50_us,
            p99_us,
            server_us: 1e6 * busy / per_s,
            ..LoadMeasurement::NOTHING
        })
    })?;
    sweep.show(&mut findings, "Throughput", "thousand/s", AxisScale::Linear, THOUSAND_PER_S);
    sweep.show(&mut findings, "The worker's time for a get", "us", AxisScale::Linear, SERVER_US);
    sweep.show(&mut findings, "Tail latency, median of the tenants", "p99, us", AxisScale::Log, P99_US);
    if let (Some(many), Some(few)) = (sweep.side(MANY, 0), sweep.side(FEW, 0)) {
        let sides = [&many.spread(THOUSAND_PER_S), &few.spread(THOUSAND_PER_S)];
        let what = format!("gets of 1,024 tenants / of 8, {UNDER_WAY} connections in all");
        findings.ratios.push(RatioResult::of(what, "thousand/s", sides, Some(RatioTarget::AtLeast(MIN_KEPT_RATIO))));
        let what = format!("the worker's time for a get of 8 tenants / of 1,024, {UNDER_WAY} connections in all");
        findings.ratios.push(RatioResult::of(what, "us", [&few.spread(SERVER_US), &many.spread(SERVER_US)], None));
    }
    findings.notes.push(
        "The worker's time is that of the turns in which it found something to do, the kernel's part included: where the generator is the \
         slower one, turns find little, and what each costs counts for few gets."
            .into(),
    );
    findings.notes.push(
        "Where each tenant has a connection, the generator has as many sockets to look after as there are tenants: most of what is lost with \
         their number is lost there."
            .into(),
    );
    Ok(findings)
}

/// Gives this thread, and those that it starts, a higher priority until it is dropped, as far as the system allows it.
/// The generator sleeps most of the time, and must send on time beside workers that fill the processors.
struct RaisedPriority {
    before: i32,
}

impl RaisedPriority {
    fn here() -> Option<RaisedPriority> {
        let before = getpriority_process(None).ok()?;
        setpriority_process(None, -20).ok()?;
        Some(RaisedPriority { before })
    }
}

impl Drop for RaisedPriority {
    fn drop(&mut self) {
        let _stays_as_it_is = setpriority_process(None, self.before);
    }
}

/// A server and its tenants.
struct SkewSetup {
    server: LocalServer,
    tenants: Vec<LocalTenant>,
    records: u64,
}

impl SkewSetup {
    fn start(args: &BenchArgs, steal: bool) -> Result<SkewSetup, CliError> {
        let server = bench_server::start_bench_server(WORKERS, |overrides| overrides.steal = Some(steal))?;
        let records = args.records().min(SKEWED_RECORDS);
        let mut tenants = Vec::new();
        for number in 0..SKEWED {
            let name = format!("tenant-{number}");
            let tenant = server.tenant(&name, "t", TableMode::Store)?;
            server.push(&name, &LONG)?;
            tenants.push(tenant);
        }
        let skewed = SkewSetup { server, tenants, records };
        for load in skewed.loads(|_| Pace::Closed { depth: 1 }) {
            fill(&load.config, &load.data, &mut |_, _| {})?;
        }
        Ok(skewed)
    }

    fn loads(&self, pace: impl Fn(usize) -> Pace) -> Vec<TenantLoad> {
        let load = |(number, tenant): (usize, &LocalTenant)| {
            let mut data = Data::new(tenant.table, self.records);
            (data.long_gets, data.long_yield_every) = (CALL_GETS, GETS_AT_ONCE);
            let name = format!("tenant-{number}");
            TenantLoad::new(&name, self.server.client(tenant), data, Mix::only(Class::Long)).pace(pace(number))
        };
        self.tenants.iter().enumerate().map(load).collect()
    }

    /// Measures calls of all tenants, whose rates fall by Zipf's law; the latency is that of the busiest. Raises
    /// `taken` to the part of a processor that the generator used, if that is the most so far.
    fn measure(&self, rate: f64, exponent: f64, seconds: f64, taken: &mut f64) -> Result<LoadMeasurement, CliError> {
        let weight = |number: usize| (number as f64 + 1.0).powf(-exponent);
        let all: f64 = (0..SKEWED).map(weight).sum();
        let loads = self.loads(|number| Pace::per_second(rate * weight(number) / all));
        let report = run_sleeping_generator(loads, seconds)?;
        *taken = taken.max(report.sender_cpu_s / (1.25 * seconds));
        let busiest = row(&report, "tenant-0", Class::Long);
        Ok(LoadMeasurement { per_s: report.per_s, ..busiest })
    }
}

pub(super) fn skew(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let sides = [SkewSetup::start(args, true)?, SkewSetup::start(args, false)?];
    let seconds = args.seconds(SKEW_SECONDS);
    let _goes_first = RaisedPriority::here();
    let most = run_sleeping_generator(sides[0].loads(|_| Pace::Closed { depth: 4 }), seconds)?.per_s;
    let rate = most * LOAD;
    let about = format!(
        "{SKEWED} tenants on {WORKERS} workers, calls of {CALL_GETS} gets each at {rate:.0}/s in all (half of what is done in a closed loop), \
         their rates by Zipf's law with a growing exponent: at 0 all are alike, at 2 the busiest has 65 of a hundred calls, and its \
         home worker three quarters of the work. Latency of the busiest tenant's calls, with work stealing and on a server with --no-steal. \
         The generator sleeps until an answer comes or a call is due."
    );
    let mut findings = ExperimentFindings::new("skew", about);
    let x = axis("exponent", AxisScale::Linear);
    let names = ["with stealing", "without"];
    let mut taken = 0.0;
    let sweep = measure_sweep(args.rounds(ROUNDS), x, &EXPONENTS, &names, |exponent, side| {
        sides[side].measure(rate, exponent, seconds, &mut taken)
    })?;
    sweep.show(&mut findings, "Tail latency of the busiest tenant", "p99, us", AxisScale::Log, P99_US);
    sweep.show(&mut findings, "Throughput of all", "thousand/s", AxisScale::Linear, THOUSAND_PER_S);
    let [.., highest] = EXPONENTS;
    if let (Some(with), Some(without)) = (sweep.side(highest, 0), sweep.side(highest, 1)) {
        let what = format!("p99 without stealing / with it, exponent {highest}");
        let sides = [&without.spread(P99_US), &with.spread(P99_US)];
        findings.ratios.push(RatioResult::of(what, "us", sides, Some(RatioTarget::AtLeast(STEALING_TARGET))));
    }
    let processors = sandstorm_server::cpu_affinity::allowed_cpus().len();
    if processors <= WORKERS {
        findings.notes.push(format!(
            "{WORKERS} workers and the generator share {processors} processors here: it took {:.1} % of one at the most, which it takes from \
             the workers of either side.",
            100.0 * taken
        ));
    }
    Ok(findings)
}
