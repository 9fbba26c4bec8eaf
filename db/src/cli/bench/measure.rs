//! What is measured of a load, and rounds of several sides by turns: whatever else the machine does comes and goes within seconds,
//! and is to meet all sides alike.

use std::time::Duration;

use sandstorm_client::load::peer::{self, PeerLoad, PeerReport};
use sandstorm_client::load::{Class, Options, Report, Row as LoadRow, TenantLoad, run};

use super::report::{Axis, Findings, Plot, Point, Scale, Series, Spread, Table};
use crate::cli::output::Failure;

/// What was not measured.
const NAN: f64 = f64::NAN;

/// One side in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) per_s: f64,
    pub(super) keys_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    /// The workers' time for one operation; no number where it was not asked for.
    pub(super) server_us: f64,
}

/// A figure of a [`Measured`].
pub(super) type Figure = fn(&Measured) -> f64;

pub(super) const THOUSAND_PER_S: Figure = |one| one.per_s / 1000.0;
pub(super) const THOUSAND_KEYS_PER_S: Figure = |one| one.keys_per_s / 1000.0;
pub(super) const P50_US: Figure = |one| one.p50_us;
pub(super) const P99_US: Figure = |one| one.p99_us;
pub(super) const P999_US: Figure = |one| one.p999_us;
pub(super) const SERVER_US: Figure = |one| one.server_us;

impl Measured {
    /// A machine that stands still, or does much else, may not come to anything in a short measurement.
    pub(super) const NOTHING: Measured =
        Measured { per_s: NAN, keys_per_s: NAN, p50_us: NAN, p99_us: NAN, p999_us: NAN, server_us: NAN };

    /// Calls a second, where something else depends on them.
    pub(super) fn rate(&self) -> Result<f64, Failure> {
        let failure = || Failure::new("nothing was measured").hint("give more --seconds");
        self.per_s.is_finite().then_some(self.per_s).ok_or_else(failure)
    }
}

impl From<&LoadRow> for Measured {
    fn from(row: &LoadRow) -> Measured {
        let LoadRow { per_s, p50_us, p99_us, p999_us, .. } = *row;
        Measured { per_s, keys_per_s: per_s, p50_us, p99_us, p999_us, server_us: NAN }
    }
}

/// One side over the rounds.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) name: String,
    pub(super) rounds: Vec<Measured>,
}

impl Side {
    pub(super) fn spread(&self, figure: Figure) -> Spread {
        Spread::of(self.rounds.iter().map(figure).collect())
    }
}

/// Measures the sides by turns.
pub(super) fn by_turns(
    rounds: usize,
    names: &[&str],
    mut measure: impl FnMut(usize) -> Result<Measured, Failure>,
) -> Result<Vec<Side>, Failure> {
    let mut sides: Vec<Side> = names.iter().map(|name| Side { name: (*name).to_owned(), rounds: Vec::new() }).collect();
    for _ in 0..rounds.max(1) {
        for (index, side) in sides.iter_mut().enumerate() {
            side.rounds.push(measure(index)?);
        }
    }
    Ok(sides)
}

/// Sides over a quantity that is varied.
pub(super) struct Sweep {
    pub(super) x: Axis,
    /// Values of the quantity, and the sides at each.
    pub(super) at: Vec<(f64, Vec<Side>)>,
}

/// Measures all sides at all values, round by round.
pub(super) fn sweep(
    rounds: usize,
    x: Axis,
    values: &[f64],
    names: &[&str],
    mut measure: impl FnMut(f64, usize) -> Result<Measured, Failure>,
) -> Result<Sweep, Failure> {
    let sides = || names.iter().map(|name| Side { name: (*name).to_owned(), rounds: Vec::new() }).collect();
    let mut at: Vec<(f64, Vec<Side>)> = values.iter().map(|value| (*value, sides())).collect();
    for _ in 0..rounds.max(1) {
        for (value, sides) in &mut at {
            for (index, side) in sides.iter_mut().enumerate() {
                side.rounds.push(measure(*value, index)?);
            }
        }
    }
    Ok(Sweep { x, at })
}

impl Sweep {
    /// Adds a plot of a figure, and the table of what is in it.
    pub(super) fn show(&self, findings: &mut Findings, title: &str, y: &str, scale: Scale, figure: Figure) {
        let names: Vec<String> =
            self.at.first().map_or(Vec::new(), |(_, sides)| sides.iter().map(|side| side.name.clone()).collect());
        let mut table = Table::new(format!("{title}, {y}"), &self.x.name, &names);
        let mut series: Vec<Series> =
            names.iter().map(|name| Series { name: name.clone(), points: Vec::new() }).collect();
        for (x, sides) in &self.at {
            let spreads: Vec<Spread> = sides.iter().map(|side| side.spread(figure)).collect();
            for (series, y) in series.iter_mut().zip(&spreads) {
                series.points.push(Point { x: *x, y: y.clone() });
            }
            table.row(plain(*x), spreads);
        }
        findings.tables.push(table);
        let y = Axis { name: y.to_owned(), scale };
        findings.plots.push(Plot { title: title.to_owned(), x: self.x.clone(), y, series });
    }

    /// The side of that index at a value, if both are there.
    pub(super) fn side(&self, value: f64, index: usize) -> Option<&Side> {
        self.at.iter().find(|(at, _)| *at == value)?.1.get(index)
    }
}

/// A value of an axis as the name of a row.
fn plain(value: f64) -> String {
    if value == value.round() { format!("{value:.0}") } else { format!("{value:.1}") }
}

pub(super) fn axis(name: &str, scale: Scale) -> Axis {
    Axis { name: name.to_owned(), scale }
}

/// Runs loads for so long, after a quarter of that to warm up; wrong answers are an error.
pub(super) fn run_loads(tenants: Vec<TenantLoad>, seconds: f64) -> Result<Report, Failure> {
    run_as(Options::new(tenants), seconds)
}

/// The same from a generator that sleeps while there is nothing to do: for servers that need all processors.
pub(super) fn run_dozing(tenants: Vec<TenantLoad>, seconds: f64) -> Result<Report, Failure> {
    run_as(Options { doze: true, ..Options::new(tenants) }, seconds)
}

fn run_as(options: Options, seconds: f64) -> Result<Report, Failure> {
    let duration = Duration::from_secs_f64(seconds);
    let report = run(&Options { duration, warm_up: duration / 4, ..options }, &mut |_| {})?;
    if report.wrong > 0 {
        return Err(Failure::new(format!("{} replies were wrong: this is a bug", report.wrong)).below(&report));
    }
    Ok(report)
}

/// The same, where every call is to be answered well, or, of endless code, to be ended.
pub(super) fn run_well(tenants: Vec<TenantLoad>, seconds: f64) -> Result<Report, Failure> {
    let report = run_loads(tenants, seconds)?;
    let failed = report.tenants.iter().flat_map(|tenant| &tenant.rows).map(unanswered).sum::<u64>();
    if failed > 0 {
        return Err(Failure::new(format!("{failed} calls failed")).below(&report));
    }
    Ok(report)
}

/// Calls of a row that did not end as they should: well, or, of endless code, by being killed, of a transaction, by a conflict.
fn unanswered(row: &LoadRow) -> u64 {
    let expected = match row.class {
        Class::Bad => "killed",
        Class::Transfer => "conflict",
        class if class.is_of_graph() => "conflict",
        _ => "",
    };
    row.count - row.ok - row.errors.get(expected).copied().unwrap_or(0)
}

/// The row of a tenant's class.
pub(super) fn row(report: &Report, tenant: &str, class: Class) -> Measured {
    report.row(tenant, class).map_or(Measured::NOTHING, Measured::from)
}

/// One load of one class alone, where every call is to be answered well.
pub(super) fn alone(load: TenantLoad, class: Class, seconds: f64) -> Result<Measured, Failure> {
    let name = load.name.clone();
    Ok(row(&run_well(vec![load], seconds)?, &name, class))
}

/// A load in another protocol, where every reply is to be right.
pub(super) fn run_peer(load: &PeerLoad, seconds: f64) -> Result<Measured, Failure> {
    let duration = Duration::from_secs_f64(seconds);
    let report = peer::run(&PeerLoad { duration, warm_up: duration / 4, ..load.clone() })?;
    let PeerReport { per_s, keys_per_s, p50_us, p99_us, p999_us, wrong, errors, first_error, count, .. } = report;
    if count == 0 && errors == 0 {
        return Ok(Measured::NOTHING);
    }
    if wrong > 0 || errors > 0 {
        let at = load.address;
        let text = format!("{at}: {count} replies, {wrong} wrong, {errors} errors: {first_error:?}");
        return Err(Failure::new(text));
    }
    Ok(Measured { per_s, keys_per_s, p50_us, p99_us, p999_us, server_us: NAN })
}
