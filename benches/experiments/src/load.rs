//! `sandstorm bench load`: latency of plain gets and calls over the offered load, in an open loop.

use sandstorm_client::load::{Class, Mix, Pace};

use super::BenchArgs;
use super::measure::{P50_US, P99_US, THOUSAND_PER_S, axis, measure_sweep, row, run_loads};
use super::report::{AxisScale, ExperimentFindings};
use super::single_server::SingleTenantSetup;
use crate::local_server::GET;
use sandstorm_terminal::output::CliError;

/// Offered loads, as parts of the closed loop's throughput of plain gets.
const SHARES: [f64; 9] = [0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1];
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 3;

pub(super) fn load(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let bench = SingleTenantSetup::start(args, &[&GET], &Mix::only(Class::Get))?;
    let most = bench.alone(Class::Get, args.depth)?.rate()?;
    let about = format!(
        "Plain gets, and calls of an extension that does one get, that arrive at random at a set rate (an open loop: latency \
         counts from when a request was meant to be sent). A closed loop of {} under way does {:.0} thousand gets/s.",
        args.depth,
        most / 1000.0
    );
    let mut findings = ExperimentFindings::new("load", about);
    // Rounded to whole thousands, where the rate is that high.
    let unit = if most > 100_000.0 { 1000.0 } else { 1.0 };
    let offered = SHARES.map(|share| (share * most / unit).round().max(1.0) * unit / 1000.0);
    let classes = [Class::Get, Class::InvokeGet];
    let names = ["plain gets", "calls of one get"];
    let x = axis("offered, thousand/s", AxisScale::Linear);
    let sweep = measure_sweep(args.rounds(ROUNDS), x, &offered, &names, |thousand, side| {
        let load = bench.load(Mix::only(classes[side])).pace(Pace::per_second(thousand * 1000.0));
        // Beyond the server's throughput some requests are not answered in time: that is what is measured.
        Ok(row(&run_loads(vec![load], args.seconds(SECONDS))?, "alice", classes[side]))
    })?;
    sweep.show(&mut findings, "Throughput", "answered, thousand/s", AxisScale::Linear, THOUSAND_PER_S);
    sweep.show(&mut findings, "Median latency", "p50, us", AxisScale::Log, P50_US);
    sweep.show(&mut findings, "Tail latency", "p99, us", AxisScale::Log, P99_US);
    Ok(findings)
}
