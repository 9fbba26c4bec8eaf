//! One greedy tenant among many: what it takes from the others.

use sandstorm_client::load::{Class, Mix, Pace, Report, Skew, TenantLoad, TenantReport};
use sandstorm_net::CodeTier;
use sandstorm_terminal::output::CliError;

use super::setup::{DensitySetup, DensitySide, LoadShape, side};
use crate::BenchArgs;
use crate::measure::run_checked;
use crate::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread, median};

/// Tenants, the greedy one among them, and the part of what all can do that the others ask for together.
const TENANTS: usize = 64;
const MODEST_LOAD: f64 = 0.1;
/// Chains that the greedy one has under way.
const GREEDY_DEPTH: usize = 512;
const SECONDS: f64 = 0.8;
const ROUNDS: usize = 3;
/// The p99 of the others beside it over that beside none, and the part of their calls that are answered.
const P99_TARGET: f64 = 3.0;
const SERVED_TARGET: f64 = 0.95;
/// The calls of the others.
const MODEST: DensitySide = side("calls of one get, native", Class::InvokeGet, CodeTier::Native);

/// The others in one measurement.
struct OthersMeasurement {
    /// Thousand calls a second of all of them.
    served: f64,
    /// The p99 of the median tenant and of the one that waits longest.
    median_p99_us: f64,
    longest_p99_us: f64,
    /// Thousand chains a second of the greedy one.
    greedy: f64,
}

impl OthersMeasurement {
    fn of(report: &Report) -> OthersMeasurement {
        let (greedy, others): (Vec<_>, Vec<_>) = report.tenants.iter().partition(|tenant| tenant.name == "greedy");
        let thousand_per_s = |tenants: &[&TenantReport]| tenants.iter().map(|one| one.per_s).sum::<f64>() / 1000.0;
        let mut p99_us: Vec<f64> = others.iter().map(|tenant| tenant.p99_us).collect();
        let longest_p99_us = p99_us.iter().copied().fold(f64::NAN, f64::max);
        OthersMeasurement {
            served: thousand_per_s(&others),
            median_p99_us: median(&mut p99_us),
            longest_p99_us,
            greedy: thousand_per_s(&greedy),
        }
    }
}

/// Adds what tenants get that ask for a tenth of what all can do, without and with one among them that asks for all
/// of it.
pub(super) fn beside_a_greedy_tenant(
    args: &BenchArgs,
    findings: &mut ExperimentFindings,
    setup: &DensitySetup,
    shape: LoadShape,
) -> Result<(), CliError> {
    let (seconds, mut sides) = (args.seconds(SECONDS), [Vec::new(), Vec::new()]);
    let most = run_checked(setup.loads(TENANTS, MODEST, shape), seconds)?.per_s;
    let rate = (most * MODEST_LOAD / TENANTS as f64).max(1.0);
    for _ in 0..args.rounds(ROUNDS) {
        for (is_beside, side) in sides.iter_mut().enumerate() {
            let mut loads: Vec<TenantLoad> =
                setup.loads(TENANTS, MODEST, shape).into_iter().map(|load| load.pace(Pace::per_second(rate))).collect();
            if let Some(first) = loads.first_mut() {
                let (config, data) = (first.config.clone(), first.data.clone());
                let greedy = TenantLoad::new("greedy", config, data.clone(), Mix::only(Class::Chain))
                    .pace(Pace::Closed { depth: GREEDY_DEPTH })
                    .skew(Skew::Uniform);
                *first = TenantLoad { connections: 1, data, ..greedy };
            }
            if is_beside == 0 {
                loads.remove(0);
            }
            side.push(OthersMeasurement::of(&run_checked(loads, seconds)?));
        }
    }
    show(findings, rate, &sides);
    Ok(())
}

fn show(findings: &mut ExperimentFindings, rate: f64, sides: &[Vec<OthersMeasurement>; 2]) {
    type Figure = fn(&OthersMeasurement) -> f64;
    let figures: [(&str, Figure); 4] = [
        ("thousand/s of all of them", |one| one.served),
        ("p99 of the median one, us", |one| one.median_p99_us),
        ("p99 of the one that waits longest, us", |one| one.longest_p99_us),
        ("thousand chains/s of the greedy one", |one| one.greedy),
    ];
    let spread = |side: usize, figure: Figure| RoundSpread::of(sides[side].iter().map(figure).collect());
    let title = format!("{} tenants with {rate:.0} calls of one get a second each", TENANTS - 1);
    let mut table = ReportTable::new(title, "", figures.map(|(name, _)| name));
    for (side, name) in ["beside none", "beside a tenant with 512 chains under way"].into_iter().enumerate() {
        table.row(name, figures.map(|(_, figure)| spread(side, figure)).into());
    }
    findings.tables.push(table);
    let targets =
        [RatioTarget::AtLeast(SERVED_TARGET), RatioTarget::AtMost(P99_TARGET), RatioTarget::AtMost(P99_TARGET)];
    for ((name, figure), target) in figures.into_iter().zip(targets) {
        let what = format!("{name}, beside a greedy tenant / beside none");
        findings.ratios.push(RatioResult::of(what, "", [&spread(1, figure), &spread(0, figure)], Some(target)));
    }
}
