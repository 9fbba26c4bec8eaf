//! `sandstorm bench density`: calls of 1 to 1,024 tenants on one worker, each with a library of its own.

use std::sync::Arc;
use std::time::Duration;

use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Data, Mix, Pace, Report, Skew, TenantLoad, fill};
use sandstorm_net::{CodePolicy, CodeTier};
use sandstorm_terminal::output::CliError;

use super::distinct_library::DistinctLibraries;
use super::measure::{
    FigureFn, LoadMeasurement, P50_US, P99_US, ParameterSweep, SERVER_US, SLOWEST_P99, THOUSAND_PER_S, WATCHDOG_US,
    axis, measure_sweep, run_checked, run_skewed,
};
use super::report::{AxisScale, ExperimentFindings, RatioResult, RatioTarget, median};
use super::tenants::raise_file_limit;
use super::thread_times::ThreadTimes;
use super::{BenchArgs, bench_server};
use crate::local_server::{AGGREGATE, CHAIN, ExampleExtension, GET, LocalServer, LocalTenant};

/// Records of all tenants of a number of them together: each has as many as the others.
const RECORDS: u64 = 640_000;
/// Hops of a chain, and records of a list that one call sums up.
const HOPS: u32 = 8;
const SUMMED: u32 = 4;
const SECONDS: f64 = 0.8;
const ROUNDS: usize = 3;
/// The exponent of Zipf's law over the tenants.
const TENANT_SKEW: f64 = 0.99;

/// Connections and messages under way of all tenants together: the same however many tenants there are.
#[derive(Clone, Copy, Debug)]
struct LoadShape {
    connections: usize,
    /// Messages under way on each connection.
    depth: usize,
    counts: &'static [f64],
}

/// Few connections with several messages each: answers of one connection can leave together.
const FEW_CONNECTIONS: LoadShape = LoadShape { connections: 64, depth: 4, counts: &[1.0, 8.0, 64.0] };
/// As many connections as there are tenants at the most.
const MANY_CONNECTIONS: LoadShape = LoadShape { connections: 1024, depth: 1, counts: &[1.0, 8.0, 64.0, 256.0, 1024.0] };

/// What is sent, and in which tier it runs.
#[derive(Clone, Copy, Debug)]
struct DensitySide {
    name: &'static str,
    class: Class,
    tier: CodeTier,
}

const fn side(name: &'static str, class: Class, tier: CodeTier) -> DensitySide {
    DensitySide { name, class, tier }
}

const SIDES: [DensitySide; 7] = [
    side("plain gets", Class::Get, CodeTier::Native),
    side("calls of one get, native", Class::InvokeGet, CodeTier::Native),
    side("chains of 8, native", Class::Chain, CodeTier::Native),
    side("sums of 4, native", Class::Aggregate, CodeTier::Native),
    side("calls of one get, sandboxed", Class::InvokeGet, CodeTier::Sandboxed),
    side("chains of 8, sandboxed", Class::Chain, CodeTier::Sandboxed),
    side("sums of 4, sandboxed", Class::Aggregate, CodeTier::Sandboxed),
];

/// Tenants, and the part of one tenant's throughput that calls and chains of so many should keep.
const TARGETS: [(f64, [f64; 2]); 3] = [(8.0, [0.9, 0.9]), (64.0, [0.85, 0.8]), (1024.0, [0.8, 0.75])];

/// So many tenants of a tier, each with its records and its libraries.
struct TenantGroup {
    tier: CodeTier,
    tenants: Vec<(LocalTenant, Data)>,
}

/// The server, and a group for each number of tenants and each tier.
struct DensitySetup {
    server: LocalServer,
    groups: Vec<TenantGroup>,
}

impl DensitySetup {
    fn start(args: &BenchArgs, shape: LoadShape, sides: &[DensitySide]) -> Result<DensitySetup, CliError> {
        let server = bench_server::start_bench_server(1, |_| {})?;
        let mut setup = DensitySetup { server, groups: Vec::new() };
        let mut libraries = DistinctLibraries::new()?;
        for tier in [CodeTier::Native, CodeTier::Sandboxed] {
            if sides.iter().any(|side| side.tier == tier) {
                for count in shape.counts {
                    let group = setup.group(args, *count as u64, tier, &mut libraries)?;
                    setup.groups.push(group);
                }
            }
        }
        Ok(setup)
    }

    fn group(
        &self,
        args: &BenchArgs,
        count: u64,
        tier: CodeTier,
        libraries: &mut DistinctLibraries,
    ) -> Result<TenantGroup, CliError> {
        let policy = match tier {
            CodeTier::Native => CodePolicy::Native,
            CodeTier::Sandboxed => CodePolicy::Sandboxed,
        };
        let mut tenants = Vec::new();
        for number in 0..count {
            let name = format!("{tier}-{count}-{number}");
            let tenant = self.server.tenant_with_code(&name, "t", TableMode::Store, Some(policy))?;
            for example in [&GET, &CHAIN, &AGGREGATE] as [&ExampleExtension; 3] {
                let extension = Arc::new(libraries.load(example, tier)?);
                let loaded = self.server.directory().load_extension(&*name, extension, "", 0);
                loaded.map_err(|error| CliError::new(error.to_string()))?;
            }
            let mut data = Data::new(tenant.table, (args.records.unwrap_or(RECORDS) / count).max(1));
            (data.links, data.depth) = ((data.records / 4).max(1), HOPS);
            (data.lists, data.list_len) = ((data.records / 4).max(1), SUMMED);
            fill(&self.server.client(&tenant), &data, &mut |_, _| {})?;
            tenants.push((tenant, data));
        }
        Ok(TenantGroup { tier, tenants })
    }

    fn loads(&self, count: usize, side: DensitySide, shape: LoadShape) -> Vec<TenantLoad> {
        let group = self.groups.iter().find(|group| group.tier == side.tier && group.tenants.len() == count);
        let connections = (shape.connections / count.max(1)).max(1);
        let load = |(tenant, data): &(LocalTenant, Data)| {
            let load = TenantLoad::new("tenant", self.server.client(tenant), data.clone(), Mix::only(side.class))
                .pace(Pace::Closed { depth: shape.depth })
                .skew(Skew::Uniform);
            // The data as it was filled, without the chains and lists that the mix would ask for.
            TenantLoad { connections, data: data.clone(), ..load }
        };
        group.into_iter().flat_map(|group| &group.tenants).map(load).collect()
    }

    fn measure(
        &self,
        loads: Vec<TenantLoad>,
        exponent: Option<f64>,
        seconds: f64,
    ) -> Result<LoadMeasurement, CliError> {
        let watch = || {
            std::thread::sleep(Duration::from_secs_f64(seconds * 0.4));
            let (before, busy) = (ThreadTimes::read(), self.server.busy_us());
            std::thread::sleep(Duration::from_secs_f64(seconds * 0.7));
            (ThreadTimes::read(), before, self.server.busy_us() - busy)
        };
        let (report, (after, before, busy_us)) = std::thread::scope(|scope| {
            let watch = scope.spawn(watch);
            let report = match exponent {
                Some(exponent) => run_skewed(loads, exponent, seconds),
                None => run_checked(loads, seconds),
            }?;
            let watched = watch.join().map_err(|_| CliError::new("the clock's thread has ended"))?;
            Ok::<_, CliError>((report, watched))
        })?;
        let watched_us = seconds * 0.7e6;
        // Of the worker's time on its processor, the part that is not spent looking for work.
        let is_busy = (busy_us as f64 / watched_us).min(1.0);
        let per_operation = |time: Duration| 1e6 * time.as_secs_f64() / (report.per_s * seconds * 0.7);
        let worker_us = per_operation(after.since(&before, "worker-")) * is_busy;
        let watchdog_us = per_operation(after.since(&before, "watchdog"));
        Ok(LoadMeasurement { server_us: worker_us, watchdog_us, ..measurement(&report) })
    }
}

/// The latencies of all tenants' operations together, and those of the tenant that waits longest.
fn measurement(report: &Report) -> LoadMeasurement {
    let all = report.classes.first().map_or(LoadMeasurement::NOTHING, LoadMeasurement::from);
    let mut p99_us: Vec<f64> = report.tenants.iter().map(|tenant| tenant.p99_us).collect();
    let slowest = p99_us.iter().copied().fold(f64::NAN, f64::max);
    LoadMeasurement { per_s: report.per_s, slowest_p99: slowest / median(&mut p99_us), ..all }
}

/// Figures of a sweep: title, axis, scale.
const FIGURES: [(&str, &str, AxisScale, FigureFn); 6] = [
    ("Throughput", "thousand/s", AxisScale::Linear, THOUSAND_PER_S),
    ("The worker's CPU time for an operation", "us", AxisScale::Linear, SERVER_US),
    ("The watchdog's CPU time for an operation", "us", AxisScale::Linear, WATCHDOG_US),
    ("Median latency", "p50, us", AxisScale::Log, P50_US),
    ("Tail latency", "p99, us", AxisScale::Log, P99_US),
    ("The p99 of the tenant that waits longest over the median tenant's", "ratio", AxisScale::Log, SLOWEST_P99),
];

fn sweep(
    args: &BenchArgs,
    findings: &mut ExperimentFindings,
    setup: &DensitySetup,
    (shape, counts): (LoadShape, &[f64]),
    (sides, exponent): (&[DensitySide], Option<f64>),
) -> Result<ParameterSweep, CliError> {
    let (x, names) = (axis("tenants", AxisScale::Log), sides.iter().map(|side| side.name).collect::<Vec<_>>());
    let seconds = args.seconds(SECONDS);
    let sweep = measure_sweep(args.rounds(ROUNDS), x, counts, &names, |count, side| {
        setup.measure(setup.loads(count as usize, sides[side], shape), exponent, seconds)
    })?;
    let over = match exponent {
        Some(exponent) => format!(", tenants by Zipf's law of {exponent}"),
        None => String::new(),
    };
    let LoadShape { connections, depth, .. } = shape;
    for (title, y, scale, figure) in FIGURES {
        let title = format!("{title}; {connections} connections, {depth} under way on each{over}");
        sweep.show(findings, &title, y, scale, figure);
    }
    Ok(sweep)
}

/// What calls and chains of many tenants keep of the throughput of one.
fn kept(findings: &mut ExperimentFindings, sweep: &ParameterSweep, shape: LoadShape, sides: &[DensitySide]) {
    for (index, side) in sides.iter().enumerate().filter(|(_, side)| side.class != Class::Get) {
        for (count, [calls, chains]) in TARGETS {
            let (Some(many), Some(one)) = (sweep.side(count, index), sweep.side(1.0, index)) else { continue };
            let target = match (side.class, side.tier) {
                (Class::InvokeGet, CodeTier::Native) => Some(RatioTarget::AtLeast(calls)),
                (Class::Chain, CodeTier::Native) => Some(RatioTarget::AtLeast(chains)),
                _ => None,
            };
            let what = format!("{}: {count} tenants / one, {} connections", side.name, shape.connections);
            let spreads = [many.spread(THOUSAND_PER_S), one.spread(THOUSAND_PER_S)];
            findings.ratios.push(RatioResult::of(what, "thousand/s", [&spreads[0], &spreads[1]], target));
        }
    }
}

pub(super) fn density(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    raise_file_limit();
    let is_quick = args.quick || args.is_canonical();
    let about = format!(
        "One worker. Each tenant has its own table and its own library for each kind of call: no two libraries have the same bytes. All tenants of \
         a number have {} records together, and as many connections and messages under way; keys are uniform.",
        args.records.unwrap_or(RECORDS)
    );
    let mut findings = ExperimentFindings::new("density", about);
    let few = if is_quick { &SIDES[..3] } else { &SIDES[..] };
    {
        let setup = DensitySetup::start(args, FEW_CONNECTIONS, few)?;
        let even = sweep(args, &mut findings, &setup, (FEW_CONNECTIONS, FEW_CONNECTIONS.counts), (few, None))?;
        kept(&mut findings, &even, FEW_CONNECTIONS, few);
    }
    if !is_quick {
        let setup = DensitySetup::start(args, MANY_CONNECTIONS, &SIDES)?;
        let counts = MANY_CONNECTIONS.counts;
        let even = sweep(args, &mut findings, &setup, (MANY_CONNECTIONS, counts), (&SIDES, None))?;
        kept(&mut findings, &even, MANY_CONNECTIONS, &SIDES);
        sweep(args, &mut findings, &setup, (MANY_CONNECTIONS, &counts[1..]), (&SIDES, Some(TENANT_SKEW)))?;
    }
    findings.notes.push(
        "The worker's time is its thread's CPU time, less the part of its turns in which it found nothing to do; the watchdog's is all that \
         its thread used. Both are of the middle of each measurement."
            .into(),
    );
    Ok(findings)
}
