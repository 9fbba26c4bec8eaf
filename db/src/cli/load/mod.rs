//! `sandstorm load`: a load on a running server, as one tenant or as hundreds, and a report of the results.

mod tenants;
mod workload_shape;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use sandstorm_client::limits::MAX_DEADLINE;
use sandstorm_client::load::keys::MIN_KEY_LEN;
use sandstorm_client::load::{
    Arrivals, Class, LoadProgress, Options, Pace, Plan, Report, Skew, TenantLoad, audit, fill, run,
};
use sandstorm_control::config::DriverName;
use serde::Serialize;

use super::device_args::DeviceArgs;
use super::output::{CliError, OutputPrinter};
use super::session::CliSession;
use tenants::{LoadTenants, TargetTenant};
use workload_shape::WorkloadShape;

/// The default mix.
const DEFAULT_MIX: &str = "ycsb-b";

/// Help text about mixes.
const MIXES: &str = "Mixes: ycsb-a to ycsb-f (Cooper et al., SoCC'10); usr, app, etc, var, sys (Facebook's pools of memcached, \
    Atikoglu et al., SIGMETRICS'12: with their sizes and misses); ycsb-t (YCSB+T, Dey et al., ICDEW'14: accounts whose sum must not change, \
    which is checked at the end); tao (Bronson et al., ATC'13: a graph's requests, as published) and tao-60-40 (those that Splinter \
    measured); or shares, such as get=90,put=5,auth=5, of\n  \
    get put insert delete read-modify-write multi-get increment balance, and of calls of the extensions\n  \
    invoke-get (get) scan (range) chain aggregate checksum analysis auth long transfer bad, of a graph's (tao)\n  \
    obj-get obj-add obj-update obj-delete assoc-get assoc-count assoc-range assoc-time-range\n  \
    assoc-add assoc-delete assoc-change-type, and of the same work done by clients: chain-gets aggregate-gets checksum-gets analysis-gets auth-gets long-gets\n\n\
    By default nothing is created: --create creates missing tenants and tables and pushes the extensions that the mix \
    calls, --fill writes the records (and overwrites existing ones), --remove deletes at the end what --create created.\n\n\
    A latency ends when the kernel of this host has received the answer; \"p99 seen\" lasts until the generator looked at it, and so \
    has the generator's own stalls.";

/// Put a load on the server.
#[derive(Debug, Args)]
#[command(after_help = MIXES)]
pub(super) struct LoadArgs {
    /// The workload: the name of a mix, or shares [default: ycsb-b]
    #[arg(value_name = "MIX")]
    workload: Option<Plan>,
    /// The workload: the name of a mix, or shares (as the argument MIX) [default: ycsb-b]
    #[arg(long, value_name = "NAME|SHARES", conflicts_with = "workload")]
    mix: Option<Plan>,
    /// Operations a second, over all tenants, whether answers come or not [default: as fast as answers come]
    #[arg(long, value_name = "PER_S", value_parser = positive, conflicts_with = "depth")]
    rate: Option<f64>,
    /// Distribution of arrivals at a set rate
    #[arg(long, value_enum, default_value_t = ArrivalKind::Poisson, requires = "rate")]
    arrivals: ArrivalKind,
    /// Messages in flight on each connection, if no rate is set
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1023))]
    depth: u16,
    /// Seconds that are measured; 0: fill only
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Seconds of warm-up before the measurement
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    warm_up: f64,
    /// Table of each tenant
    #[arg(long, default_value = "load", value_name = "NAME")]
    table: String,
    /// Plain records of each tenant, or accounts, or objects of its graph
    #[arg(long, alias = "objects", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Write the records first
    #[arg(long)]
    fill: bool,
    /// Create missing tenants and tables, and push the extensions that the mix calls
    #[arg(long)]
    create: bool,
    /// Delete at the end what --create created
    #[arg(long, requires = "create")]
    remove: bool,
    /// Number of tenants, each with its own table and sessions, instead of the one of --tenant
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tenants: Option<u32>,
    /// Prefix of their names: NAME-1, NAME-2 …
    #[arg(long, value_name = "NAME", default_value = "load", requires = "tenants")]
    tenant_prefix: String,
    /// The tenant of rank r gets a share of the rate (without a rate: of the messages) in proportion to r^-EXPONENT; 0:
    /// equal shares
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.0, value_parser = not_negative, requires = "tenants")]
    tenant_skew: f64,
    /// Distribution of the requested records: zipf, zipf:EXPONENT, uniform, hot:KEYS:SHARE, latest [default: the mix's,
    /// else zipf:0.99]
    #[arg(long, value_name = "SKEW")]
    keys: Option<Skew>,
    #[command(flatten, next_help_heading = "Shape of the requests and records")]
    shape: WorkloadShape,
    /// Connections of each tenant
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Operations in a message, at most
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
    /// Threads that send; each takes a core
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Check one reply in so many; 0: none
    #[arg(long, default_value_t = 64, value_name = "N")]
    verify_every: u64,
    /// One operation in so many is a call of `bad`; 0: none
    #[arg(long, default_value_t = 0, value_name = "N")]
    bad_every: u64,
    /// What `bad` does wrong
    #[arg(long, default_value = "loop", value_name = "KIND")]
    bad: String,
    /// What moves datagrams: udp (kernel sockets), packet (packet sockets), or dpdk, a kernel-bypass device
    /// [default: udp]
    #[arg(long, value_name = "NAME")]
    driver: Option<DriverName>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Queues of the device; over memif it must be the server's number of workers [default: over memif as many
    /// as the server has workers, else 1]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: Option<u16>,
    /// Timeout of a request, in seconds
    #[arg(long, default_value_t = 2.0, value_parser = positive)]
    deadline: f64,
    /// Percent of the operations that may end without an answer; with more the run has failed, as it has when the
    /// server shuts down
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT", value_parser = percent)]
    unanswered: f64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Say nothing while it runs
    #[arg(long)]
    quiet: bool,
}

/// How requests arrive at a set rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ArrivalKind {
    /// At random
    Poisson,
    /// With equal gaps
    Even,
    /// With the gaps of Facebook's pool ETC
    Pareto,
}

fn number(text: &str, what: &str, fits: impl Fn(f64) -> bool) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && fits(*number)).ok_or_else(|| format!("write {what}"))
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, "a number above 0", |number| number > 0.0)
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, "a number, 0 or more", |number| number >= 0.0)
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, "seconds, 0 to 86400", |number| (0.0..=86_400.0).contains(&number))
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, "percent, 0 to 100", |number| (0.0..=100.0).contains(&number))
}

/// The records that were written before the run.
#[derive(Debug, Serialize)]
struct FillResult {
    records: u64,
    seconds: f64,
}

/// The results of a run, for programs.
#[derive(Debug, Serialize)]
struct LoadOutcome<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    filled: Option<FillResult>,
    #[serde(flatten)]
    report: Option<&'r Report>,
}

impl LoadArgs {
    /// The plan, with the changes that the options make to it.
    fn plan(&self) -> Result<Plan, CliError> {
        let named = self.workload.as_ref().or(self.mix.as_ref()).cloned();
        let mut plan = named.map_or_else(|| DEFAULT_MIX.parse().map_err(CliError::new), Ok)?;
        plan.skew = self.keys.unwrap_or(plan.skew);
        plan.pool = self.shape.sizes.or(plan.pool);
        plan.check().map_err(CliError::new)?;
        if plan.mix.classes().any(Class::is_of_graph) {
            let answer = "--limit and --edge-bytes say how much a query asks for";
            self.shape.graph(0).check().map_err(|error| CliError::new(error).hint(answer))?;
        }
        if plan.mix.has(Class::Scan) && usize::from(self.shape.key_bytes) < MIN_KEY_LEN {
            return Err(CliError::new(format!(
                "scan reads keys of one length that follow one another: --key-bytes is at least {MIN_KEY_LEN} then"
            )));
        }
        Ok(plan)
    }

    /// The extensions that the plan calls.
    fn extensions(&self, plan: &Plan) -> Vec<&'static str> {
        let bad = (self.bad_every > 0).then_some(Class::Bad);
        let mut names: Vec<_> = plan.mix.classes().chain(bad).filter_map(Class::extension).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The load of tenant number `index` of `count`.
    fn load(&self, plan: &Plan, target: &TargetTenant, shares: &[f64], index: usize) -> TenantLoad {
        let mut data = plan.data(target.table.id, self.records);
        self.shape.give(&mut data, target.lists.as_ref().map(|table| table.id));
        data.bad.clone_from(&self.bad);
        data.may_lack = target.evicts();
        let deadline = Duration::from_secs_f64(self.deadline.min(MAX_DEADLINE.as_secs_f64()));
        let config = target.config.clone().deadline(deadline);
        let pace = match self.rate {
            Some(rate) => {
                let arrivals = match self.arrivals {
                    ArrivalKind::Poisson => Arrivals::Poisson,
                    ArrivalKind::Even => Arrivals::Fixed,
                    ArrivalKind::Pareto => Arrivals::Pareto,
                };
                Pace::Open { per_s: rate * shares.get(index).copied().unwrap_or_default(), arrivals }
            }
            None => Pace::Closed { depth: usize::from(self.depth) },
        };
        let load = TenantLoad::new(&target.name, config, data, plan.mix.clone()).skew(plan.skew).pace(pace);
        let connections = usize::from(self.connections);
        let client_takes = self.shape.client_takes();
        TenantLoad { connections, client_takes, ..load.batch(usize::from(self.batch)).bad_every(self.bad_every) }
    }
}

/// Each tenant's part of the rate: in proportion to its rank to the power of `-exponent`.
fn shares(tenants: usize, exponent: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=tenants).map(|rank| (rank as f64).powf(-exponent)).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

pub(super) fn load(session: &CliSession, args: &LoadArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let plan = args.plan()?;
    if args.seconds == 0.0 && !args.fill {
        return Err(CliError::new("there is nothing to do in 0 seconds").hint("--fill writes the records"));
    }
    let progress = |text: &str| {
        if !args.quiet {
            eprintln!("{text}");
        }
    };
    let names = match args.tenants {
        Some(count) => (1..=count).map(|number| format!("{}-{number}", args.tenant_prefix)).collect(),
        None => vec![session.tenant()?],
    };
    raise_file_limit();
    let mut tenants = LoadTenants::new(session, args.create);
    let result = prepare_and_run(args, &plan, &names, &mut tenants, &progress, out);
    if args.remove {
        tenants.remove(&progress)?;
    }
    result
}

/// The prepared tenants, with clients over the requested drivers.
fn targets(
    args: &LoadArgs,
    plan: &Plan,
    names: &[String],
    tenants: &mut LoadTenants<'_>,
    progress: &dyn Fn(&str),
) -> Result<Vec<TargetTenant>, CliError> {
    let lists = plan.mix.classes().any(Class::is_of_graph).then(|| format!("{}_lists", args.table));
    let mut targets = tenants.prepare(names, (&args.table, lists.as_deref()), &args.extensions(plan), progress)?;
    if let Some(driver) = args.driver
        && let Some(server) = targets.first().map(|target| target.config.address)
    {
        let workers = usize::try_from(tenants.workers()?).unwrap_or(usize::MAX);
        let drivers = args.device.drivers(driver, server, workers, args.queues)?;
        targets.iter_mut().for_each(|target| target.config.drivers = drivers.clone());
    }
    Ok(targets)
}

fn prepare_and_run(
    args: &LoadArgs,
    plan: &Plan,
    names: &[String],
    tenants: &mut LoadTenants<'_>,
    progress: &dyn Fn(&str),
    out: &OutputPrinter,
) -> Result<(), CliError> {
    let targets = targets(args, plan, names, tenants, progress)?;
    let shares = shares(targets.len(), args.tenant_skew);
    let loads: Vec<TenantLoad> =
        targets.iter().enumerate().map(|(index, target)| args.load(plan, target, &shares, index)).collect();
    let filled = if args.fill {
        Some(fill_all(&loads, progress)?)
    } else {
        targets.iter().zip(&loads).try_for_each(|(target, load)| target.check_filled(load.data.total()))?;
        None
    };
    if args.seconds == 0.0 {
        let Some(filled) = filled else { return Ok(()) };
        let words = format!("{} records written in {:.1} s", filled.records, filled.seconds);
        return if out.json { out.json(&LoadOutcome { filled: Some(filled), report: None }) } else { out.line(&words) };
    }
    let accounts = plan.mix.has(Class::Transfer).then(|| loads.clone());
    let options = Options {
        threads: usize::from(args.threads),
        warm_up: Duration::from_secs_f64(args.warm_up),
        duration: Duration::from_secs_f64(args.seconds),
        verify_every: args.verify_every,
        seed: args.seed,
        tenant_skew: (args.rate.is_none() && args.tenant_skew > 0.0).then_some(args.tenant_skew),
        ..Options::new(loads)
    };
    stop_when_interrupted(&options.stop);
    let report = run(&options, &mut |second: &LoadProgress| progress(&second.to_string()))?;
    if out.json {
        out.json(&LoadOutcome { filled, report: Some(&report) })?;
    } else {
        out.line(&report.to_string())?;
    }
    accounts.unwrap_or_default().iter().try_for_each(audit_accounts)?;
    check_outcome(&report, args.unanswered)
}

/// Checks the sum over the accounts: transfers neither lose nor create anything.
fn audit_accounts(load: &TenantLoad) -> Result<(), CliError> {
    let found = audit(&load.config, &load.data)?;
    if found.is_right() {
        return Ok(());
    }
    let text = format!("the accounts of tenant {:?} have {} in all, and had {}", load.name, found.sum, found.wanted);
    Err(CliError::new(text).hint("were they filled with the same --records? else it is a bug").code("wrong"))
}

fn fill_all(loads: &[TenantLoad], progress: &dyn Fn(&str)) -> Result<FillResult, CliError> {
    let begun = Instant::now();
    let mut records = 0;
    for load in loads {
        let mut reported = Instant::now();
        let filled = fill(&load.config, &load.data, &mut |written, total| {
            if reported.elapsed() > Duration::from_secs(1) {
                reported = Instant::now();
                progress(&format!("{}: {written} of {total} records written", load.name));
            }
        });
        let filled = filled.map_err(|error| {
            let failure = CliError::from(error);
            failure.about(&format!("filling the table of tenant {:?}", load.name))
        })?;
        records += filled.records;
    }
    let seconds = begun.elapsed().as_secs_f64();
    progress(&format!("{records} records written in {seconds:.1} s"));
    Ok(FillResult { records, seconds })
}

/// Each connection is a socket: hundreds of tenants need more than a shell's initial limit.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let files = getrlimit(Resource::Nofile);
    // If that is refused, connecting will report it.
    let _refused = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum });
}

/// Lets an interrupt end the run early, with a report of the results so far.
fn stop_when_interrupted(stop: &Arc<AtomicBool>) {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            stop.store(true, Relaxed);
        }
    });
}

/// Returns an error when a reply was wrong, when nothing succeeded, when the server stopped during the run, or when
/// more than this percentage of its operations was not answered.
fn check_outcome(report: &Report, may_lack_percent: f64) -> Result<(), CliError> {
    if report.wrong > 0 {
        let checked: u64 = report.classes.iter().map(|row| row.verified).sum();
        return Err(CliError::new(format!("{} of {checked} replies that were checked were wrong", report.wrong))
            .hint("was the table filled with the same --records, sizes and mix? else it is a bug")
            .code("wrong"));
    }
    if report.server_stopped() {
        return Err(CliError::new(format!("the server shut down after {:.1} s", report.seconds)).code("shutting_down"));
    }
    // A kill is the expected end of a bad call.
    let succeeded = report.classes.iter().any(|row| row.ok > 0 || row.class == Class::Bad);
    if !succeeded {
        let errors = report.classes.iter().flat_map(|row| &row.errors);
        return Err(match errors.max_by_key(|(_, count)| **count) {
            Some((code, _)) => CliError::new(format!("no operation succeeded: {code}")).code(code),
            None => CliError::new("no request was sent: use a higher --rate or more --seconds").code("nothing"),
        });
    }
    let (unanswered, count) = (report.unanswered(), report.count());
    let percent = 100.0 * unanswered as f64 / count.max(1) as f64;
    if percent > may_lack_percent {
        let text = format!("{unanswered} of {count} operations ({percent:.1} %) were not answered");
        return Err(CliError::new(text)
            .hint(format!(
                "more than {may_lack_percent} % is a failure: --unanswered says otherwise; or send less with --rate"
            ))
            .code("unanswered"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_share_the_rate_by_their_rank() {
        assert_eq!(shares(4, 0.0), [0.25; 4]);
        let skewed = shares(256, 0.9);
        assert!((skewed.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((skewed[0] / skewed[9] - 10f64.powf(0.9)).abs() < 1e-9);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for text in ["0", "-1", "inf", "x"] {
            assert!(positive(text).unwrap_err().contains("above 0"), "{text}");
        }
        assert!(not_negative("0").is_ok() && not_negative("-0.1").is_err());
        assert!(seconds("86401").is_err() && seconds("0").is_ok());
    }

    /// A report of so many answered gets, and of gets with these errors.
    fn report(ok: u64, errors: &[(&str, u64)]) -> Report {
        let errors: std::collections::BTreeMap<_, _> = errors.iter().map(|(code, count)| (code, count)).collect();
        let count = ok + errors.values().copied().sum::<u64>();
        let row = serde_json::json!({
            "class": "get", "count": count, "ok": ok, "per_s": 1.0, "errors": errors, "verified": 0, "wrong": 0, "mean_us": 1.0,
            "p50_us": 1.0, "p90_us": 1.0, "p99_us": 1.0, "p999_us": 1.0, "max_us": 1.0,
        });
        let report = serde_json::json!({ "seconds": 1.0, "per_s": 1.0, "wrong": 0, "classes": [row], "tenants": [] });
        serde_json::from_value(report).expect("a report")
    }

    #[test]
    fn a_run_fails_when_more_than_the_named_part_was_not_answered_or_the_server_stopped() {
        let code = |report: &Report, percent| check_outcome(report, percent).err().map(|failure| failure.code);
        assert_eq!(code(&report(990, &[("timeout", 5), ("unsent", 5)]), 1.0), None);
        assert_eq!(code(&report(989, &[("timeout", 6), ("unsent", 5)]), 1.0).as_deref(), Some("unanswered"));
        assert_eq!(code(&report(10, &[("timeout", 20)]), 70.0), None);
        assert_eq!(code(&report(10, &[("over_quota", 20)]), 1.0), None, "an answer is an answer");
        assert_eq!(code(&report(1000, &[("shutting_down", 1)]), 100.0).as_deref(), Some("shutting_down"));
        assert_eq!(code(&report(0, &[("timeout", 3)]), 100.0).as_deref(), Some("timeout"));
    }
}
