//! `sandstorm bench density`: calls of 1 to 1,024 tenants on one worker, each with a library of its own.

use sandstorm_client::load::Class;
use sandstorm_net::CodeTier;
use sandstorm_terminal::output::CliError;

use self::greedy::beside_a_greedy_tenant;
use self::idle::what_idle_tenants_take;
use self::setup::{DensitySetup, DensitySide, LoadShape, RECORDS, side};
use super::BenchArgs;
use super::measure::{
    FigureFn, MeasuredSide, P50_US, P99_US, ParameterSweep, SERVER_US, SLOWEST_P99, THOUSAND_PER_S, WATCHDOG_US, axis,
    measure_sweep,
};
use super::report::{AxisScale, ExperimentFindings, RatioResult, RatioTarget, RoundSpread};
use super::tenants::raise_file_limit;

mod greedy;
mod idle;
mod setup;

const SECONDS: f64 = 0.8;
const ROUNDS: usize = 3;
/// The exponent of Zipf's law over the tenants.
const TENANT_SKEW: f64 = 0.99;

/// Few connections with several messages each: answers of one connection can leave together.
const FEW_CONNECTIONS: LoadShape = LoadShape { connections: 64, depth: 4, counts: &[1.0, 8.0, 64.0] };
/// As many connections as there are tenants at the most.
const MANY_CONNECTIONS: LoadShape = LoadShape { connections: 1024, depth: 1, counts: &[1.0, 8.0, 64.0, 256.0, 1024.0] };

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
            if target.is_some() {
                findings.ratios.extend(promises(side.name, count, many));
            }
        }
    }
}

/// What else is promised of calls of so many tenants.
fn promises(name: &str, count: f64, many: &MeasuredSide) -> [RatioResult; 2] {
    let (slowest, watchdog) = (many.spread(SLOWEST_P99), many.spread(WATCHDOG_US));
    let one = |spread: &RoundSpread| RoundSpread::of(vec![1.0; spread.rounds.len()]);
    let what = format!("{name}: {count} tenants, p99 of the tenant that waits longest / of the median one");
    let waits = RatioResult::of(what, "", [&slowest, &one(&slowest)], Some(RatioTarget::AtMost(1.3)));
    let what = format!("{name}: {count} tenants, the watchdog's CPU time for an operation / 1 us");
    [waits, RatioResult::of(what, "us", [&watchdog, &one(&watchdog)], Some(RatioTarget::AtMost(0.05)))]
}

pub(super) fn density(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    raise_file_limit();
    let is_quick = args.quick || args.is_canonical();
    let about = format!(
        "One worker. Each tenant has its own table and its own library for each kind of call: no two libraries have the same bytes. All tenants of \
         a number have {} records together, and as many connections (one tenant 512 at most) and messages under way; keys \
         are uniform.",
        args.records.unwrap_or(RECORDS)
    );
    let mut findings = ExperimentFindings::new("density", about);
    let few = if is_quick { &SIDES[..3] } else { &SIDES[..] };
    {
        let setup = DensitySetup::start(args, FEW_CONNECTIONS, few)?;
        let even = sweep(args, &mut findings, &setup, (FEW_CONNECTIONS, FEW_CONNECTIONS.counts), (few, None))?;
        kept(&mut findings, &even, FEW_CONNECTIONS, few);
        beside_a_greedy_tenant(args, &mut findings, &setup, FEW_CONNECTIONS)?;
    }
    if !is_quick {
        let setup = DensitySetup::start(args, MANY_CONNECTIONS, &SIDES)?;
        let counts = MANY_CONNECTIONS.counts;
        let even = sweep(args, &mut findings, &setup, (MANY_CONNECTIONS, counts), (&SIDES, None))?;
        kept(&mut findings, &even, MANY_CONNECTIONS, &SIDES);
        sweep(args, &mut findings, &setup, (MANY_CONNECTIONS, &counts[1..]), (&SIDES, Some(TENANT_SKEW)))?;
    }
    if !is_quick {
        what_idle_tenants_take(&mut findings)?;
    }
    findings.notes.push(
        "The worker's time is its thread's CPU time, less the part of its turns in which it found nothing to do; the watchdog's is all that \
         its thread used. Both are of the middle of each measurement."
            .into(),
    );
    Ok(findings)
}
