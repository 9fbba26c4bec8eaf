//! The findings of an experiment: tables, ratios with their targets, and series for plots. Text, JSON and the page are
//! all made from this.

mod html;
pub(super) mod machine;
mod svg;
mod text;

use std::path::{Path, PathBuf};

use serde::Serialize;

use self::machine::MachineDescription;
use sandstorm_terminal::output::CliError;

/// The spread of a value over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RoundSpread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    /// In the order of measurement; empty where there are no rounds.
    pub(super) rounds: Vec<f64>,
}

impl RoundSpread {
    /// Computes the spread of the rounds' values. NaN (nothing was measured in that round) is ignored.
    pub(super) fn of(rounds: Vec<f64>) -> RoundSpread {
        let numbers = || rounds.iter().copied().filter(|value| value.is_finite());
        let least = numbers().fold(f64::NAN, f64::min);
        let most = numbers().fold(f64::NAN, f64::max);
        RoundSpread { median: median(&mut numbers().collect::<Vec<_>>()), least, most, rounds }
    }

    /// The spread of a single value.
    pub(super) fn once(value: f64) -> RoundSpread {
        RoundSpread { median: value, least: value, most: value, rounds: Vec::new() }
    }

    /// The ratio of this value to the other, round by round.
    pub(super) fn over(&self, other: &RoundSpread) -> RoundSpread {
        RoundSpread::of(self.rounds.iter().zip(&other.rounds).map(|(a, b)| a / b).collect())
    }
}

/// The median; sorts the values.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle.wrapping_sub(1)), values.get(middle)) {
        (Some(below), Some(above)) if values.len().is_multiple_of(2) => (below + above) / 2.0,
        (_, Some(middle)) => *middle,
        _ => f64::NAN,
    }
}

/// The target of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RatioTarget {
    AtLeast(f64),
    AtMost(f64),
}

impl RatioTarget {
    fn is_reached(self, value: f64) -> bool {
        match self {
            RatioTarget::AtLeast(bound) => value >= bound,
            RatioTarget::AtMost(bound) => value <= bound,
        }
    }
}

impl std::fmt::Display for RatioTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RatioTarget::AtLeast(bound) => write!(f, "at least {}", text::number(*bound)),
            RatioTarget::AtMost(bound) => write!(f, "at most {}", text::number(*bound)),
        }
    }
}

/// The ratio of one side to another.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RatioResult {
    /// Names the two sides and the figure.
    pub(super) what: String,
    pub(super) ratio: RoundSpread,
    /// Medians of both sides.
    pub(super) sides: [f64; 2],
    pub(super) unit: &'static str,
    pub(super) target: Option<RatioTarget>,
    /// Whether the median reaches the target.
    pub(super) reached: Option<bool>,
}

impl RatioResult {
    /// The ratio of the first to the second, round by round.
    pub(super) fn of(
        what: impl Into<String>,
        unit: &'static str,
        sides: [&RoundSpread; 2],
        target: Option<RatioTarget>,
    ) -> RatioResult {
        RatioResult::measured(what, unit, sides[0].over(sides[1]), sides, target)
    }

    /// A ratio that was measured pair by pair, which is not that of the sides' medians.
    pub(super) fn measured(
        what: impl Into<String>,
        unit: &'static str,
        ratio: RoundSpread,
        sides: [&RoundSpread; 2],
        target: Option<RatioTarget>,
    ) -> RatioResult {
        let reached = target.map(|target| target.is_reached(ratio.median));
        RatioResult { what: what.into(), ratio, sides: sides.map(|side| side.median), unit, target, reached }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ReportRow {
    pub(super) name: String,
    /// NaN means that the value was not measured.
    pub(super) cells: Vec<RoundSpread>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ReportTable {
    pub(super) title: String,
    /// The kind of things that the rows' names stand for.
    pub(super) of: String,
    /// Names with units.
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<ReportRow>,
}

impl ReportTable {
    pub(super) fn new(
        title: impl Into<String>,
        of: &str,
        columns: impl IntoIterator<Item = impl Into<String>>,
    ) -> ReportTable {
        let columns = columns.into_iter().map(Into::into).collect();
        ReportTable { title: title.into(), of: of.to_owned(), columns, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, name: impl Into<String>, cells: Vec<RoundSpread>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(ReportRow { name: name.into(), cells });
    }
}

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AxisScale {
    /// Linear, from zero.
    Linear,
    /// Logarithmic; values that are not above zero are not drawn.
    Log,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PlotAxis {
    /// Its name with the unit.
    pub(super) name: String,
    pub(super) scale: AxisScale,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PlotPoint {
    pub(super) x: f64,
    pub(super) y: RoundSpread,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PlotSeries {
    pub(super) name: String,
    pub(super) points: Vec<PlotPoint>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LinePlot {
    pub(super) title: String,
    pub(super) x: PlotAxis,
    pub(super) y: PlotAxis,
    pub(super) series: Vec<PlotSeries>,
}

/// The findings of one experiment.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ExperimentFindings {
    pub(super) name: &'static str,
    /// The experiment and its method in a few sentences.
    pub(super) about: String,
    pub(super) tables: Vec<ReportTable>,
    pub(super) ratios: Vec<RatioResult>,
    pub(super) plots: Vec<LinePlot>,
    /// Remarks that a reader of the figures needs.
    pub(super) notes: Vec<String>,
    /// Duration of the experiment, filling of tables included.
    pub(super) seconds: f64,
}

impl ExperimentFindings {
    pub(super) fn new(name: &'static str, about: impl Into<String>) -> ExperimentFindings {
        ExperimentFindings {
            name,
            about: about.into(),
            tables: Vec::new(),
            ratios: Vec::new(),
            plots: Vec::new(),
            notes: Vec::new(),
            seconds: 0.0,
        }
    }

    /// Formats the findings for a terminal.
    pub(super) fn text(&self) -> String {
        text::findings(self)
    }
}

/// The findings of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BenchReport {
    /// The version of this shape; grows when a field changes its meaning.
    pub(super) version: u32,
    pub(super) machine: MachineDescription,
    /// The arguments of `sandstorm bench`.
    pub(super) arguments: Vec<String>,
    pub(super) experiments: Vec<ExperimentFindings>,
}

/// The version of the JSON's shape.
const REPORT_VERSION: u32 = 1;
/// The page's file name in the report folder.
const PAGE: &str = "report.html";
/// The file name of the JSON.
const DATA: &str = "report.json";

impl BenchReport {
    pub(super) fn new(machine: MachineDescription, arguments: Vec<String>) -> BenchReport {
        BenchReport { version: REPORT_VERSION, machine, arguments, experiments: Vec::new() }
    }

    /// Writes the page and the data into a folder, which is created if missing. Returns both paths.
    pub(super) fn write(&self, folder: &Path) -> Result<[PathBuf; 2], CliError> {
        let failed = |path: &Path, error: &dyn std::fmt::Display| {
            CliError::new(format!("cannot write {}: {error}", path.display())).hint("choose another folder with --out")
        };
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        let data = serde_json::to_vec_pretty(self).map_err(|error| failed(folder, &error))?;
        let paths = [(PAGE, html::page(self).into_bytes()), (DATA, data)].map(|(name, bytes)| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(|error| failed(&path, &error)).map(|()| path)
        });
        let [page, data] = paths;
        Ok([page?, data?])
    }
}

#[cfg(test)]
mod tests;
