//! `sandstorm ext profile`.

mod firefox;
mod flame_graph;
mod pprof;
mod stack_tree;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sandstorm_client::control::{CodePlaceReport, ProfileReport, ProfiledStackReport};
use sandstorm_terminal::escape_one_line;

use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;
use stack_tree::{HOST_CALL, UNKNOWN, label};

/// Where the files of an extension are; those of libraries have their crate's name before that.
const OWN_SOURCES: &str = "src/";
/// Rows of the table.
const SHOWN_ROWS: usize = 25;

/// Where an extension's code spends its time.
#[derive(Debug, Args)]
pub(super) struct ProfileArgs {
    /// Name of the extension
    name: String,
    /// Seconds to sample, at most 60
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Write a file instead of the table
    #[arg(long, value_enum)]
    format: Option<ProfileFormat>,
    /// The file to write; - for the standard output [default: NAME with the format's ending]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What a profile can be written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProfileFormat {
    /// A flame graph, for a browser
    Svg,
    /// For `go tool pprof` and what reads its format
    Pprof,
    /// For <https://profiler.firefox.com>
    Firefox,
    /// A line for each stack, for flamegraph.pl and its kin
    Folded,
}

impl ProfileFormat {
    fn ending(self) -> &'static str {
        match self {
            ProfileFormat::Svg => "svg",
            ProfileFormat::Pprof => "pb",
            ProfileFormat::Firefox => "json",
            ProfileFormat::Folded => "folded",
        }
    }

    fn bytes(self, report: &ProfileReport) -> Vec<u8> {
        let report = &shown(report);
        match self {
            ProfileFormat::Svg => flame_graph::svg(report).into_bytes(),
            ProfileFormat::Pprof => pprof::encode(report),
            ProfileFormat::Firefox => firefox::json(report).into_bytes(),
            ProfileFormat::Folded => folded(report).into_bytes(),
        }
    }
}

pub(super) fn run(session: &CliSession, args: &ProfileArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let report = session.control().profile(&session.tenant()?, &args.name, args.seconds)?;
    let Some(format) = args.format else { return out.show(&report, table) };
    let bytes = format.bytes(&report);
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.{}", args.name, format.ending())));
    if path.as_os_str() == "-" {
        return std::io::stdout().write_all(&bytes).map_err(|error| CliError::new(format!("writing it: {error}")));
    }
    std::fs::write(&path, &bytes).map_err(|error| CliError::new(format!("writing {}: {error}", path.display())))?;
    out.done(&format!("{}: {}", path.display(), summary(&report)))
}

/// The same with names that cannot hide or turn round what is beside them: tenants choose them, and a file of them is
/// read in a terminal or a browser.
fn shown(report: &ProfileReport) -> ProfileReport {
    let mut shown = report.clone();
    shown.extension = escape_one_line(&shown.extension);
    for place in &mut shown.places {
        (place.function, place.file) = (escape_one_line(&place.function), escape_one_line(&place.file));
    }
    shown
}

fn summary(report: &ProfileReport) -> String {
    let ProfileReport { extension, version, seconds, samples, named, calls, cpu_us, waiting_us, .. } = report;
    let share = if *samples == 0 { 0.0 } else { 100.0 * *named as f64 / *samples as f64 };
    format!(
        "{samples} samples of {extension} version {version} in {seconds} s, {share:.1} % of them named; {calls} calls took {:.1} ms of CPU time and waited for {:.1} ms",
        *cpu_us as f64 / 1e3,
        *waiting_us as f64 / 1e3
    )
}

/// The place of a stack, counted from the innermost, to which the table gives its time: the line of the extension's own
/// source. Code of libraries that the compiler has put in its place has nearly all the time of most loops, and says
/// nothing about where that is.
fn own_depth(report: &ProfileReport, stack: &ProfiledStackReport) -> usize {
    report.places_of(stack).position(|place| place.file.starts_with(OWN_SOURCES)).unwrap_or(0)
}

/// The lines that the samples were at, and how many were at them or below.
fn table(report: &ProfileReport) -> String {
    let mut counts: HashMap<String, (u64, u64)> = HashMap::new();
    for stack in &report.stacks {
        let mut seen = Vec::new();
        // What the host does for a call is not its own.
        let own = if stack.in_host { 0 } else { own_depth(report, stack) };
        let host = stack.in_host.then(|| HOST_CALL.to_owned());
        let lines: Vec<String> = host.into_iter().chain(report.places_of(stack).map(label)).collect();
        let lines = if lines.is_empty() { vec![UNKNOWN.to_owned()] } else { lines };
        for (depth, line) in lines.into_iter().enumerate() {
            let count = counts.entry(line.clone()).or_default();
            count.0 += if depth == own { stack.samples } else { 0 };
            if !seen.contains(&line) {
                count.1 += stack.samples;
                seen.push(line);
            }
        }
    }
    let mut rows: Vec<(String, (u64, u64))> = counts.into_iter().collect();
    rows.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let percent = |count: u64| format!("{:.1}", 100.0 * count as f64 / report.samples.max(1) as f64);
    let rows: Vec<Vec<String>> =
        rows.into_iter().take(SHOWN_ROWS).map(|(line, (own, all))| vec![percent(own), percent(all), line]).collect();
    format!("{}\n{}", summary(report), columns(&["SELF%", "TOTAL%", "PLACE"], &rows))
}

/// A line for each stack: its functions from the outermost on, and its samples.
fn folded(report: &ProfileReport) -> String {
    let mut text = String::new();
    for stack in &report.stacks {
        // Both separate what is on a line.
        let clean = |place: &CodePlaceReport| label(place).replace([';', '\n'], ":");
        let mut names: Vec<String> = report.places_of(stack).rev().map(clean).collect();
        names.extend(stack.in_host.then(|| HOST_CALL.to_owned()));
        if names.is_empty() {
            names.push(UNKNOWN.to_owned());
        }
        text.push_str(&format!("{};{} {}\n", report.extension, names.join(";"), stack.samples));
    }
    text
}
