//! The effect of other tenants' long calls on a tenant: `misbehave` measures endless calls, `long` honest ones that
//! yield.

use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};

use super::measure::{
    P50_US, P99_US, P999_US, THOUSAND_PER_S, axis, measure_sweep, row, run_checked, run_single_class,
};
use super::report::{AxisScale, ExperimentFindings, RatioResult, RatioTarget};
use super::single_server::TwoTenantSetup;
use super::{BenchArgs, bench_server};
use crate::local_server::{GET, LONG};
use sandstorm_terminal::output::CliError;

/// Endless calls in a million.
const PER_MILLION: [f64; 4] = [1.0, 10.0, 100.0, 1000.0];
/// The rate that has a target, and the target: p99 with the endless calls over p99 without.
const RARE: f64 = 10.0;
const RARE_TARGET: f64 = 2.0;
/// Seconds of one measurement: at 100,000 calls/s one in a million comes every ten seconds.
const MISBEHAVE_SECONDS: f64 = 4.0;
const LONG_SECONDS: f64 = 0.5;
const ROUNDS: usize = 3;
/// Gets between two yields of a long call; it does 128 in all.
const INTERVALS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
/// Calls of a hundred that are long, as in the papers.
const LONG_SHARE: u32 = 15;
/// Offered load, as a part of the closed loop's throughput.
const LOAD: f64 = 0.5;

pub(super) fn misbehave(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let bench = TwoTenantSetup::start(args)?;
    let rate = bench.one_third_rate(args)?;
    let about = format!(
        "Two tenants call an extension that does one get, {rate:.0} times a second each; so many in a million of the other \
         one's calls never end. Latency and throughput of the tenant whose calls end."
    );
    let mut findings = ExperimentFindings::new("misbehave", about);
    let seconds = args.seconds(MISBEHAVE_SECONDS);
    let mut met = PER_MILLION.map(|_| 0);
    let x = axis("endless calls in a million", AxisScale::Log);
    let sweep =
        measure_sweep(args.rounds(ROUNDS), x, &PER_MILLION, &["beside them", "beside none"], |per_million, side| {
            let every = if side == 0 { (1e6 / per_million) as u64 } else { 0 };
            let (measured, bad) = bench.measure(rate, every, seconds)?;
            met.iter_mut().zip(PER_MILLION).filter(|(_, at)| *at == per_million).for_each(|(met, _)| *met += bad);
            Ok(measured)
        })?;
    sweep.show(&mut findings, "Tail latency", "p99, us", AxisScale::Log, P99_US);
    sweep.show(&mut findings, "Far tail", "p99.9, us", AxisScale::Log, P999_US);
    sweep.show(&mut findings, "Throughput", "thousand/s", AxisScale::Linear, THOUSAND_PER_S);
    for value in PER_MILLION {
        let (Some(beside), Some(none)) = (sweep.side(value, 0), sweep.side(value, 1)) else { continue };
        let target = (value == RARE).then_some(RatioTarget::AtMost(RARE_TARGET));
        let what = format!("p99 beside {value} endless calls in a million / beside none");
        findings.ratios.push(RatioResult::of(what, "us", [&beside.spread(P99_US), &none.spread(P99_US)], target));
    }
    let met: Vec<String> = PER_MILLION.iter().zip(met).map(|(at, met)| format!("{met} at {at}")).collect();
    findings.notes.push(format!("Endless calls that were met and ended, over all rounds: {}.", met.join(", ")));
    Ok(findings)
}

pub(super) fn long(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let server = bench_server::start_bench_server(1, |_| {})?;
    let tenant = server.tenant("alice", "t", TableMode::Store)?;
    server.push("alice", &GET)?;
    server.push("alice", &LONG)?;
    let mixed: Mix = format!("invoke-get={},long={LONG_SHARE}", 100 - LONG_SHARE).parse().map_err(CliError::new)?;
    let load = |mix: &Mix, interval: f64| {
        let mut data = Data::new(tenant.table, args.records());
        data.long_yield_every = interval as u32;
        TenantLoad::new("alice", server.client(&tenant), data, mix.clone())
    };
    let seconds = args.seconds(LONG_SECONDS);
    let first = load(&mixed, INTERVALS[3]);
    fill(&first.config, &first.data, &mut |_, _| {})?;
    let most = run_checked(vec![first.pace(Pace::Closed { depth: args.depth })], seconds)?.per_s;
    let rate = (most * LOAD).max(1.0);
    let about = format!(
        "{LONG_SHARE} calls of a hundred do 128 gets each, with a yield behind every so many; the others do one get. {rate:.0} calls/s \
         arrive at random, half of what is done in a closed loop. Latency of the calls of one get."
    );
    let mut findings = ExperimentFindings::new("long", about);
    let short = Mix::only(Class::InvokeGet);
    let x = axis("gets between two yields", AxisScale::Log);
    let sweep =
        measure_sweep(args.rounds(ROUNDS), x, &INTERVALS, &["beside long calls", "alone"], |interval, side| {
            let pace = Pace::per_second(if side == 0 { rate } else { rate * f64::from(100 - LONG_SHARE) / 100.0 });
            if side == 1 {
                return run_single_class(load(&short, interval).pace(pace), Class::InvokeGet, seconds);
            }
            Ok(row(&run_checked(vec![load(&mixed, interval).pace(pace)], seconds)?, "alice", Class::InvokeGet))
        })?;
    sweep.show(&mut findings, "Median latency", "p50, us", AxisScale::Linear, P50_US);
    sweep.show(&mut findings, "Tail latency", "p99, us", AxisScale::Log, P99_US);
    let sides = [8.0, 128.0].map(|interval| sweep.side(interval, 0));
    if let [Some(often), Some(never)] = sides {
        let what = "p50 beside long calls that yield behind every 128th get / every 8th";
        findings.ratios.push(RatioResult::of(what, "us", [&never.spread(P50_US), &often.spread(P50_US)], None));
    }
    Ok(findings)
}
