//! What an experiment has found: tables, ratios with their targets, and series for plots. Text, JSON and the page are all made
//! from this.

mod html;
pub(super) mod machine;
mod svg;
mod text;

use std::path::{Path, PathBuf};

use serde::Serialize;

use self::machine::Machine;
use crate::cli::output::Failure;

/// A value over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    /// In the order in which they were measured; empty where there are no rounds.
    pub(super) rounds: Vec<f64>,
}

impl Spread {
    /// Of the rounds' values. What is no number (nothing was measured in that round) counts for nothing.
    pub(super) fn of(rounds: Vec<f64>) -> Spread {
        let numbers = || rounds.iter().copied().filter(|value| value.is_finite());
        let least = numbers().fold(f64::NAN, f64::min);
        let most = numbers().fold(f64::NAN, f64::max);
        Spread { median: median(&mut numbers().collect::<Vec<_>>()), least, most, rounds }
    }

    /// Of a value that was there once.
    pub(super) fn once(value: f64) -> Spread {
        Spread { median: value, least: value, most: value, rounds: Vec::new() }
    }

    /// This one over the other, round by round.
    pub(super) fn over(&self, other: &Spread) -> Spread {
        Spread::of(self.rounds.iter().zip(&other.rounds).map(|(a, b)| a / b).collect())
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

/// What a ratio is meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn is_reached(self, value: f64) -> bool {
        match self {
            Target::AtLeast(bound) => value >= bound,
            Target::AtMost(bound) => value <= bound,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::AtLeast(bound) => write!(f, "at least {}", text::number(*bound)),
            Target::AtMost(bound) => write!(f, "at most {}", text::number(*bound)),
        }
    }
}

/// One side over another.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Ratio {
    /// Which two, and of what.
    pub(super) what: String,
    pub(super) ratio: Spread,
    /// Medians of both sides.
    pub(super) sides: [f64; 2],
    pub(super) unit: &'static str,
    pub(super) target: Option<Target>,
    /// Whether the median is what the target says.
    pub(super) reached: Option<bool>,
}

impl Ratio {
    /// The first over the second, round by round.
    pub(super) fn of(
        what: impl Into<String>,
        unit: &'static str,
        sides: [&Spread; 2],
        target: Option<Target>,
    ) -> Ratio {
        let ratio = sides[0].over(sides[1]);
        let reached = target.map(|target| target.is_reached(ratio.median));
        Ratio { what: what.into(), ratio, sides: sides.map(|side| side.median), unit, target, reached }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    /// What is no number was not measured.
    pub(super) cells: Vec<Spread>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Table {
    pub(super) title: String,
    /// What the rows' names are.
    pub(super) of: String,
    /// Names with units.
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Row>,
}

impl Table {
    pub(super) fn new(
        title: impl Into<String>,
        of: &str,
        columns: impl IntoIterator<Item = impl Into<String>>,
    ) -> Table {
        let columns = columns.into_iter().map(Into::into).collect();
        Table { title: title.into(), of: of.to_owned(), columns, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, name: impl Into<String>, cells: Vec<Spread>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(Row { name: name.into(), cells });
    }
}

/// How an axis runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Scale {
    /// From zero.
    Linear,
    /// By powers; what is not above zero is not drawn.
    Log,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Axis {
    /// Its name with the unit.
    pub(super) name: String,
    pub(super) scale: Scale,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: Spread,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<Point>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
}

/// What one experiment has found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Findings {
    pub(super) name: &'static str,
    /// What was measured, and how, in a few sentences.
    pub(super) about: String,
    pub(super) tables: Vec<Table>,
    pub(super) ratios: Vec<Ratio>,
    pub(super) plots: Vec<Plot>,
    /// What has to be known to read the figures.
    pub(super) notes: Vec<String>,
    /// How long it took, filling of tables included.
    pub(super) seconds: f64,
}

impl Findings {
    pub(super) fn new(name: &'static str, about: impl Into<String>) -> Findings {
        Findings {
            name,
            about: about.into(),
            tables: Vec::new(),
            ratios: Vec::new(),
            plots: Vec::new(),
            notes: Vec::new(),
            seconds: 0.0,
        }
    }

    /// For a terminal.
    pub(super) fn text(&self) -> String {
        text::findings(self)
    }
}

/// What a run has found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// Of this shape; grows when a field changes its meaning.
    pub(super) version: u32,
    pub(super) machine: Machine,
    /// The words that were typed behind `sandstorm bench`.
    pub(super) arguments: Vec<String>,
    pub(super) experiments: Vec<Findings>,
}

/// The version of the JSON's shape.
const REPORT_VERSION: u32 = 1;
/// The page, in the folder that was asked for.
const PAGE: &str = "report.html";
/// The same for programs.
const DATA: &str = "report.json";

impl Report {
    pub(super) fn new(machine: Machine, arguments: Vec<String>) -> Report {
        Report { version: REPORT_VERSION, machine, arguments, experiments: Vec::new() }
    }

    /// Writes the page and the data into a folder, which is made if it is not there; tells where they are.
    pub(super) fn write(&self, folder: &Path) -> Result<[PathBuf; 2], Failure> {
        let failed = |path: &Path, error: &dyn std::fmt::Display| {
            Failure::new(format!("cannot write {}: {error}", path.display())).hint("choose another folder with --out")
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
