//! Measurements of a load, and interleaved rounds of several sides. Other work of the machine comes and goes within
//! seconds, and interleaving spreads it over all sides alike.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use sandstorm_client::load::peer::{self, PeerLoad, PeerReport};
use sandstorm_client::load::{Class, ClassReport as LoadRow, Options, Report, TenantLoad, run};

use super::report::{
    AxisScale, ExperimentFindings, LinePlot, PlotAxis, PlotPoint, PlotSeries, ReportTable, RoundSpread,
};
use sandstorm_terminal::output::CliError;

/// A figure that was not measured.
const NAN: f64 = f64::NAN;

/// One side in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadMeasurement {
    pub(super) per_s: f64,
    pub(super) keys_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    /// The p99 until the kernel received the answers; NaN where it was not measured. The others last until the
    /// generator looked at them, as the figures of peers do.
    pub(super) received_p99_us: f64,
    /// The workers' time for one operation; NaN where it was not measured.
    pub(super) server_us: f64,
    /// The watchdog's time for one operation; NaN where it was not measured.
    pub(super) watchdog_us: f64,
    /// The p99 of the tenant that waits longest over the median tenant's; NaN where it was not measured.
    pub(super) slowest_p99: f64,
}

/// A figure of a [`LoadMeasurement`].
pub(super) type FigureFn = fn(&LoadMeasurement) -> f64;

pub(super) const THOUSAND_PER_S: FigureFn = |one| one.per_s / 1000.0;
pub(super) const THOUSAND_KEYS_PER_S: FigureFn = |one| one.keys_per_s / 1000.0;
pub(super) const P50_US: FigureFn = |one| one.p50_us;
pub(super) const P99_US: FigureFn = |one| one.p99_us;
pub(super) const P999_US: FigureFn = |one| one.p999_us;
pub(super) const RECEIVED_P99_US: FigureFn = |one| one.received_p99_us;
pub(super) const SERVER_US: FigureFn = |one| one.server_us;
pub(super) const WATCHDOG_US: FigureFn = |one| one.watchdog_us;
pub(super) const SLOWEST_P99: FigureFn = |one| one.slowest_p99;

impl LoadMeasurement {
    /// An empty measurement: a stalled or busy machine may complete nothing in a short one.
    pub(super) const NOTHING: LoadMeasurement = LoadMeasurement {
        per_s: NAN,
        keys_per_s: NAN,
        p50_us: NAN,
        p99_us: NAN,
        p999_us: NAN,
        received_p99_us: NAN,
        server_us: NAN,
        watchdog_us: NAN,
        slowest_p99: NAN,
    };

    /// Calls a second, where another computation needs them.
    pub(super) fn rate(&self) -> Result<f64, CliError> {
        let failure = || CliError::new("nothing was measured").hint("give more --seconds");
        self.per_s.is_finite().then_some(self.per_s).ok_or_else(failure)
    }
}

impl From<&LoadRow> for LoadMeasurement {
    fn from(row: &LoadRow) -> LoadMeasurement {
        let LoadRow { per_s, p99_us: received_p99_us, .. } = *row;
        let LoadRow { seen_p50_us: p50_us, seen_p99_us: p99_us, seen_p999_us: p999_us, .. } = *row;
        let seen = LoadMeasurement { p50_us, p99_us, p999_us, received_p99_us, ..LoadMeasurement::NOTHING };
        LoadMeasurement { per_s, keys_per_s: per_s, ..seen }
    }
}

/// One side's figures over all rounds.
#[derive(Clone, Debug)]
pub(super) struct MeasuredSide {
    pub(super) name: String,
    pub(super) rounds: Vec<LoadMeasurement>,
}

impl MeasuredSide {
    pub(super) fn spread(&self, figure: FigureFn) -> RoundSpread {
        RoundSpread::of(self.rounds.iter().map(figure).collect())
    }
}

/// The memory of this process that is resident, in bytes.
pub(super) fn resident_bytes() -> Result<f64, CliError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
    Ok(resident.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(NAN) * 1024.0)
}

/// Measures the sides in turn.
pub(super) fn measure_interleaved(
    rounds: usize,
    names: &[&str],
    mut measure: impl FnMut(usize) -> Result<LoadMeasurement, CliError>,
) -> Result<Vec<MeasuredSide>, CliError> {
    let mut sides: Vec<MeasuredSide> =
        names.iter().map(|name| MeasuredSide { name: (*name).to_owned(), rounds: Vec::new() }).collect();
    for _ in 0..rounds.max(1) {
        for (index, side) in sides.iter_mut().enumerate() {
            side.rounds.push(measure(index)?);
        }
    }
    Ok(sides)
}

/// The sides over a varied quantity.
pub(super) struct ParameterSweep {
    pub(super) x: PlotAxis,
    /// Values of the quantity, and the sides at each.
    pub(super) at: Vec<(f64, Vec<MeasuredSide>)>,
}

/// Measures all sides at all values, round by round.
pub(super) fn measure_sweep(
    rounds: usize,
    x: PlotAxis,
    values: &[f64],
    names: &[&str],
    mut measure: impl FnMut(f64, usize) -> Result<LoadMeasurement, CliError>,
) -> Result<ParameterSweep, CliError> {
    let sides = || names.iter().map(|name| MeasuredSide { name: (*name).to_owned(), rounds: Vec::new() }).collect();
    let mut at: Vec<(f64, Vec<MeasuredSide>)> = values.iter().map(|value| (*value, sides())).collect();
    for _ in 0..rounds.max(1) {
        for (value, sides) in &mut at {
            for (index, side) in sides.iter_mut().enumerate() {
                side.rounds.push(measure(*value, index)?);
            }
        }
    }
    Ok(ParameterSweep { x, at })
}

impl ParameterSweep {
    /// Adds a plot of a figure, and the table of its values.
    pub(super) fn show(
        &self,
        findings: &mut ExperimentFindings,
        title: &str,
        y: &str,
        scale: AxisScale,
        figure: FigureFn,
    ) {
        let names: Vec<String> =
            self.at.first().map_or(Vec::new(), |(_, sides)| sides.iter().map(|side| side.name.clone()).collect());
        let mut table = ReportTable::new(format!("{title}, {y}"), &self.x.name, &names);
        let mut series: Vec<PlotSeries> =
            names.iter().map(|name| PlotSeries { name: name.clone(), points: Vec::new() }).collect();
        for (x, sides) in &self.at {
            let spreads: Vec<RoundSpread> = sides.iter().map(|side| side.spread(figure)).collect();
            for (series, y) in series.iter_mut().zip(&spreads) {
                series.points.push(PlotPoint { x: *x, y: y.clone() });
            }
            table.row(format_axis_value(*x), spreads);
        }
        findings.tables.push(table);
        let y = PlotAxis { name: y.to_owned(), scale };
        findings.plots.push(LinePlot { title: title.to_owned(), x: self.x.clone(), y, series });
    }

    /// Returns the side of that index at a value, if both exist.
    pub(super) fn side(&self, value: f64, index: usize) -> Option<&MeasuredSide> {
        self.at.iter().find(|(at, _)| *at == value)?.1.get(index)
    }
}

/// Formats a value of an axis as the name of a row.
fn format_axis_value(value: f64) -> String {
    if value == value.round() { format!("{value:.0}") } else { format!("{value:.1}") }
}

pub(super) fn axis(name: &str, scale: AxisScale) -> PlotAxis {
    PlotAxis { name: name.to_owned(), scale }
}

/// Runs loads for so long, after a warm-up of a quarter of that. Wrong answers are an error.
pub(super) fn run_loads(tenants: Vec<TenantLoad>, seconds: f64) -> Result<Report, CliError> {
    run_with_warmup(Options::new(tenants), seconds)
}

/// As [`run_loads`], from a generator that sleeps while it is idle: for servers that need all processors.
pub(super) fn run_sleeping_generator(tenants: Vec<TenantLoad>, seconds: f64) -> Result<Report, CliError> {
    run_with_warmup(Options { doze: true, ..Options::new(tenants) }, seconds)
}

/// As [`run_loads`], with requests of tenants by Zipf's law of this exponent over their order if there is one. One call
/// in a hundred may be answered `Overloaded`: where a thousand wait, some are repeated, and a repeated one is one more.
pub(super) fn run_crowded(tenants: Vec<TenantLoad>, exponent: Option<f64>, seconds: f64) -> Result<Report, CliError> {
    let report = run_with_warmup(Options { tenant_skew: exponent, ..Options::new(tenants) }, seconds)?;
    let rows = || report.tenants.iter().flat_map(|tenant| &tenant.rows);
    let overloaded = rows().map(|row| row.errors.get("overloaded").copied().unwrap_or(0)).sum::<u64>();
    let failed = rows().map(unanswered).sum::<u64>();
    if failed > overloaded || overloaded * 100 > rows().map(|row| row.count).sum() {
        return Err(CliError::new(format!("{failed} calls failed")).below(&report));
    }
    Ok(report)
}

/// The runs of this process so far. Each draws other keys than the one before: the same again would be in memory, where
/// memory does not have all.
static RUNS: AtomicU64 = AtomicU64::new(1);

fn run_with_warmup(options: Options, seconds: f64) -> Result<Report, CliError> {
    let (duration, seed) = (Duration::from_secs_f64(seconds), RUNS.fetch_add(1, Relaxed));
    let report = run(&Options { duration, warm_up: duration / 4, seed, ..options }, &mut |_| {})?;
    if report.wrong > 0 {
        return Err(CliError::new(format!("{} replies were wrong: this is a bug", report.wrong)).below(&report));
    }
    Ok(report)
}

/// As [`run_loads`]; every call must succeed, or, of endless code, be killed.
pub(super) fn run_checked(tenants: Vec<TenantLoad>, seconds: f64) -> Result<Report, CliError> {
    check(run_loads(tenants, seconds)?)
}

/// An error if a call has not ended as it must.
fn check(report: Report) -> Result<Report, CliError> {
    let failed = report.tenants.iter().flat_map(|tenant| &tenant.rows).map(unanswered).sum::<u64>();
    if failed > 0 {
        return Err(CliError::new(format!("{failed} calls failed")).below(&report));
    }
    Ok(report)
}

/// Calls of a row that did not end as they must: with success, or for endless code with a kill, or for a transaction
/// with a conflict.
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
pub(super) fn row(report: &Report, tenant: &str, class: Class) -> LoadMeasurement {
    report.row(tenant, class).map_or(LoadMeasurement::NOTHING, LoadMeasurement::from)
}

/// Runs one load of one class; every call must succeed.
pub(super) fn run_single_class(load: TenantLoad, class: Class, seconds: f64) -> Result<LoadMeasurement, CliError> {
    let name = load.name.clone();
    Ok(row(&run_checked(vec![load], seconds)?, &name, class))
}

/// Runs a load in another protocol; every reply must be right. Where the data may lack records, the rate is that of
/// those that were there.
pub(super) fn run_peer(load: &PeerLoad, seconds: f64) -> Result<LoadMeasurement, CliError> {
    let duration = Duration::from_secs_f64(seconds);
    let report = peer::run(&PeerLoad { duration, warm_up: duration / 4, ..load.clone() })?;
    let PeerReport { per_s, keys_per_s, p50_us, p99_us, p999_us, wrong, errors, first_error, count, missed, .. } =
        report;
    if count == 0 && errors == 0 {
        return Ok(LoadMeasurement::NOTHING);
    }
    if wrong > 0 || errors > 0 {
        let at = load.address;
        let text = format!("{at}: {count} replies, {wrong} wrong, {errors} errors: {first_error:?}");
        return Err(CliError::new(text));
    }
    let found = 1.0 - missed as f64 / count as f64;
    let (per_s, keys_per_s) = (per_s * found, keys_per_s * found);
    Ok(LoadMeasurement { per_s, keys_per_s, p50_us, p99_us, p999_us, ..LoadMeasurement::NOTHING })
}
