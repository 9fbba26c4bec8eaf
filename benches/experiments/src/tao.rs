//! `sandstorm bench tao`: a social graph whose queries run on clients, on the server, or each where it is cheaper.

use sandstorm_client::control::{TableMode, TableSpec};
use sandstorm_client::load::{Data, Graph, Pace, Plan, Report, TenantLoad, fill};
use sandstorm_client::tao::Placement;

use super::measure::{LoadMeasurement, THOUSAND_PER_S, axis, measure_interleaved, run_checked};
use super::report::{
    AxisScale, ExperimentFindings, LinePlot, PlotPoint, PlotSeries, RatioResult, RatioTarget, ReportTable, RoundSpread,
};
use super::single_server::table_of;
use super::{BenchArgs, bench_server};
use crate::local_server::{LocalServer, LocalTenant, TAO};
use sandstorm_terminal::output::CliError;

/// Objects by default; one and a half times as many edges, with their inverses.
const OBJECTS: u64 = 200_000;
/// Messages in flight in the closed loop.
const DEPTH: usize = 256;
/// Messages in flight in the measurements that find the rate at one p99.
const DEPTHS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// The p99s at which rates are compared, as multiples of the highest p99 of the placements with one message in flight.
/// So each placement can stay within them.
const BOUNDS: [f64; 4] = [2.0, 4.0, 8.0, 16.0];
/// The bound that the target is about, four times: some 90 us on two processors, with about ten messages in flight. At
/// twice there are fewer than eight, and the travel time of messages outweighs the server's work. Beyond four times,
/// queues dominate.
const TARGET_BOUND: usize = 1;
/// Short measurements at each depth, of which the median p99 counts; a quick run has one. This machine stalls for
/// milliseconds now and then, which shows in the p99 of any measurement that it meets.
const SHORT_ROUNDS: usize = 5;
/// Length of a short measurement, as a part of a full one.
const SHORT_PART: f64 = 0.16;
/// Seconds of one measurement with [`DEPTH`] in flight, and rounds.
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 3;
const SIDES: [(&str, Placement); 3] =
    [("by the client", Placement::Client), ("as calls", Placement::Invocation), ("combined", Placement::Combined)];
const NAMES: [&str; 3] = [SIDES[0].0, SIDES[1].0, SIDES[2].0];
const CLIENT: usize = 0;
const CALLS: usize = 1;
const COMBINED: usize = 2;
/// Target: the combined placement over all on the client, and over all as calls.
const CLIENT_TARGET: f64 = 1.5;
const CALLS_TARGET: f64 = 1.0;

/// A server with a graph.
struct TaoSetup {
    server: LocalServer,
    tenant: LocalTenant,
    plan: Plan,
    data: Data,
}

/// The result at one offered rate: thousand/s, and p99 in microseconds.
type RatePoint = (f64, f64);

impl TaoSetup {
    fn start(args: &BenchArgs, mix: &str) -> Result<TaoSetup, CliError> {
        let server = bench_server::start_bench_server(1, |_| {})?;
        let tenant = server.tenant("bench", "t", TableMode::Store)?;
        let create = TableSpec { name: "t_lists".into(), ordered: true, ..TableSpec::default() };
        let lists = server.control().create_table("bench", &create)?.id;
        server.push("bench", &TAO)?;
        let plan: Plan = mix.parse().map_err(CliError::new)?;
        let mut data = plan.data(tenant.table, args.records.unwrap_or(OBJECTS));
        // Where the mix changes nothing, replies are checked in full.
        data.graph = Some(Graph { lists, exact: true, ..Graph::default() });
        fill(&server.client(&tenant), &data, &mut |_, _| {})?;
        Ok(TaoSetup { server, tenant, plan, data })
    }

    fn load(&self, side: usize, pace: Pace) -> TenantLoad {
        let mut load =
            TenantLoad::new("bench", self.server.client(&self.tenant), self.data.clone(), self.plan.mix.clone());
        if let Some(graph) = &mut load.data.graph {
            graph.placement = SIDES[side].1;
        }
        load.skew(self.plan.skew).pace(pace)
    }
}

/// The sum over all operations of a run.
fn total_measurement(report: &Report) -> LoadMeasurement {
    let per_s = report.per_s;
    report.tenants.first().map_or(LoadMeasurement::NOTHING, |tenant| LoadMeasurement {
        per_s,
        keys_per_s: per_s,
        p50_us: tenant.p50_us,
        p99_us: tenant.p99_us,
        p999_us: tenant.p999_us,
        ..LoadMeasurement::NOTHING
    })
}

pub(super) fn tao(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let objects = args.records.unwrap_or(OBJECTS);
    let about = format!(
        "A graph of {objects} objects, 45 of a hundred without edges, the others' by a power law; one worker. Queries by the client \
         from plain gets, multi-gets and ranges (a list: a range, then a multi-get of its edges); all as calls of the extension tao; and \
         combined: what lies in one record as a plain get, all else as calls. Changes are calls in all three. First with {DEPTH} messages \
         under way, then with 1 to {DEPTH}, to find what is done at the same p99."
    );
    let mut findings = ExperimentFindings::new("tao", about);
    for (mix, name) in [("tao", "TAO's requests as published"), ("tao-60-40", "Splinter's: 60 objects to 40 lists")] {
        compare(&TaoSetup::start(args, mix)?, args, name, &mut findings)?;
    }
    findings.notes.push(
        "Splinter published 0.35 to 0.4 M operations a second and thread for its mix, over a kernel-bypassing network; here the worker's core \
         serves the kernel's UDP stack as well, and one core is all that the clients have."
            .into(),
    );
    Ok(findings)
}

fn compare(placed: &TaoSetup, args: &BenchArgs, name: &str, findings: &mut ExperimentFindings) -> Result<(), CliError> {
    let (rounds, seconds) = (args.rounds(ROUNDS), args.seconds(SECONDS));
    let mut work: [Vec<f64>; SIDES.len()] = Default::default();
    let closed = measure_interleaved(rounds, &NAMES, |side| {
        let load = vec![placed.load(side, Pace::Closed { depth: DEPTH })];
        let (report, busy) = placed.server.busy_while(seconds, || run_checked(load, seconds))?;
        let measured = total_measurement(&report);
        work[side].push(busy * 1e9 / measured.per_s);
        Ok(measured)
    })?;
    findings.tables.push(table_of(&format!("{name}: {DEPTH} under way (per second of the worker's core)"), &closed));
    let work = work.map(RoundSpread::of);
    let mut table = ReportTable::new(format!("{name}: what the worker does for a request"), "", ["ns"]);
    for (spread, name) in work.iter().zip(NAMES) {
        table.row(name, vec![spread.clone()]);
    }
    findings.tables.push(table);
    for other in [CLIENT, CALLS] {
        let what = format!("{name}, the worker's time for a request: {} / combined", NAMES[other]);
        findings.ratios.push(RatioResult::of(what, "ns", [&work[other], &work[COMBINED]], None));
    }
    let (group, short_seconds) = (if args.quick { 1 } else { SHORT_ROUNDS }, seconds * SHORT_PART);
    // By side, then depth, then round.
    let mut points: Vec<Vec<Vec<RatePoint>>> = vec![vec![Vec::new(); DEPTHS.len()]; SIDES.len()];
    for _ in 0..rounds * group {
        for (at, depth) in DEPTHS.into_iter().enumerate() {
            for (side, points) in points.iter_mut().enumerate() {
                let load = placed.load(side, Pace::Closed { depth });
                let measured = total_measurement(&run_checked(vec![load], short_seconds)?);
                points[at].push((measured.per_s / 1000.0, measured.p99_us));
            }
        }
    }
    show(name, (&points, group), &closed_ratios(name, &closed), findings);
    Ok(())
}

/// The combined placement over each of the others, in the closed loop.
fn closed_ratios(name: &str, closed: &[super::measure::MeasuredSide]) -> Vec<RatioResult> {
    let ratio = |other: usize| {
        let sides = [&closed[COMBINED], &closed[other]].map(|side| side.spread(THOUSAND_PER_S));
        let what = format!("{name}, {DEPTH} under way: combined / {}", NAMES[other]);
        RatioResult::of(what, "thousand/s", [&sides[0], &sides[1]], None)
    };
    [CLIENT, CALLS].map(ratio).into()
}

/// The curves of points in groups of so many rounds, the rates at one p99, and their ratios.
fn show(
    name: &str,
    (points, group): (&[Vec<Vec<RatePoint>>], usize),
    closed: &[RatioResult],
    findings: &mut ExperimentFindings,
) {
    let series = points.iter().zip(NAMES).map(|(depths, name)| PlotSeries {
        name: name.into(),
        points: depths.iter().map(|rounds| PlotPoint { x: rates(rounds).median, y: p99s(rounds) }).collect(),
    });
    findings.plots.push(LinePlot {
        title: format!("{name}: tail latency over what is answered"),
        x: axis("thousand/s", AxisScale::Linear),
        y: axis("p99, us", AxisScale::Log),
        series: series.collect(),
    });
    let columns = DEPTHS.map(|depth| format!("p99, us, {depth} under way")).into_iter();
    let mut curve = ReportTable::new(format!("{name}: tail latency by messages under way"), "", columns);
    for (depths, name) in points.iter().zip(NAMES) {
        curve.row(name, depths.iter().map(|rounds| p99s(rounds)).collect());
    }
    findings.tables.push(curve);
    let idle_us =
        points.iter().filter_map(|depths| depths.first()).map(|rounds| p99s(rounds).median).fold(0.0, f64::max);
    let columns = BOUNDS.map(|times| format!("thousand/s within {:.0} us", idle_us * times)).into_iter();
    let mut equal = ReportTable::new(format!("{name}: what is done within a p99"), "", columns);
    // By side, then bound.
    let within: Vec<Vec<RoundSpread>> = points
        .iter()
        .map(|depths| {
            let within = |times: f64| by_groups(depths, group, |curve| rate_at(curve, idle_us * times));
            BOUNDS.map(|times| RoundSpread::of(within(times))).into()
        })
        .collect();
    for (spreads, name) in within.iter().zip(NAMES) {
        equal.row(name, spreads.clone());
    }
    findings.tables.push(equal);
    for (at, times) in BOUNDS.into_iter().enumerate() {
        for (other, target) in [(CLIENT, CLIENT_TARGET), (CALLS, CALLS_TARGET)] {
            let what = format!("{name}, at a p99 of {:.0} us: combined / {}", idle_us * times, NAMES[other]);
            let sides = [&within[COMBINED][at], &within[other][at]];
            let target = (at == TARGET_BOUND).then_some(RatioTarget::AtLeast(target));
            findings.ratios.push(RatioResult::of(what, "thousand/s", sides, target));
        }
    }
    findings.ratios.extend(closed.iter().cloned());
}

/// A figure of a curve in each group of so many rounds; the groups' medians are the curve's points.
fn by_groups(depths: &[Vec<RatePoint>], group: usize, figure: impl Fn(&[RatePoint]) -> f64) -> Vec<f64> {
    let rounds = depths.iter().map(Vec::len).min().unwrap_or(0);
    let of_group = |from: usize| {
        let rounds = |all: &'_ Vec<RatePoint>| all.get(from..from + group).unwrap_or_default().to_vec();
        let curve = depths.iter().map(rounds).map(|rounds| (rates(&rounds).median, p99s(&rounds).median));
        figure(&curve.collect::<Vec<RatePoint>>())
    };
    (0..rounds / group).map(|number| of_group(number * group)).collect()
}

fn p99s(rounds: &[RatePoint]) -> RoundSpread {
    RoundSpread::of(rounds.iter().map(|(_, p99)| *p99).collect())
}

fn rates(rounds: &[RatePoint]) -> RoundSpread {
    RoundSpread::of(rounds.iter().map(|(rate, _)| *rate).collect())
}

/// The rate up to which p99 stays within the bound, interpolated between the two neighbouring points. For a side that
/// never does, the lowest rate scaled by the bound over its p99.
fn rate_at(points: &[RatePoint], bound_us: f64) -> f64 {
    let Some(within) = points.iter().rposition(|(_, p99)| *p99 <= bound_us) else {
        return points.first().map_or(f64::NAN, |(rate, p99)| rate * bound_us / p99);
    };
    let (rate, p99) = points[within];
    match points.get(within + 1) {
        Some((next, next_p99)) if *next > rate => rate + (next - rate) * (bound_us / p99).ln() / (next_p99 / p99).ln(),
        _ => rate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_of_the_medians_of_a_group_of_rounds() {
        // A stall in one round of five; the second group is twice as slow.
        let depth = |rate: f64| {
            (0..10).map(move |n| if n < 5 { (rate, if n == 2 { 9_000.0 } else { 50.0 }) } else { (rate / 2.0, 100.0) })
        };
        let depths: Vec<Vec<RatePoint>> = vec![depth(10.0).collect(), depth(20.0).collect()];
        assert_eq!(by_groups(&depths, SHORT_ROUNDS, |curve| curve[1].0), [20.0, 10.0]);
        assert_eq!(by_groups(&depths, SHORT_ROUNDS, |curve| curve[0].1), [50.0, 100.0]);
    }

    #[test]
    fn a_rate_is_found_between_the_points_beside_it() {
        let points = [(100.0, 50.0), (200.0, 100.0), (300.0, 10_000.0)];
        assert_eq!(rate_at(&points, 100.0), 200.0);
        assert_eq!(rate_at(&points, 1000.0).round(), 250.0);
        assert_eq!(rate_at(&points, 20_000.0), 300.0);
        assert_eq!(rate_at(&points, 25.0), 50.0);
        // A stall at a low rate does not hide the higher rates.
        assert_eq!(rate_at(&[(100.0, 5_000.0), (200.0, 100.0)], 150.0), 200.0);
    }
}
