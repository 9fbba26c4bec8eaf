//! `sandstorm ext calls`.

use clap::Args;
use sandstorm_client::control::{CallLevelReport, CallReport, CallsReport, CodePlaceReport};

use super::latency::format_duration;
use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;
use sandstorm_terminal::escape_one_line;

/// Calls that are under way.
#[derive(Debug, Args)]
pub(super) struct CallsArgs {
    /// Calls of this extension; without it those of all
    name: Option<String>,
    /// Below each call, show the lines at which it runs or waits
    #[arg(long = "where")]
    with_places: bool,
}

pub(super) fn run(session: &CliSession, args: &CallsArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let report = session.control().calls(&session.tenant()?, args.name.as_deref(), args.with_places)?;
    out.show(&report, |report| table(report, args.with_places))
}

/// The calls, and where they are.
fn table(report: &CallsReport, with_places: bool) -> String {
    let heads = ["EXTENSION", "VERSION", "WORKER", "STATE", "AGE", "WAITING", "TURNS", "SWITCHES", "CPU"];
    let rows: Vec<Vec<String>> = report.calls.iter().map(cells).collect();
    let lines = columns(&heads, &rows);
    let mut lines = lines.lines();
    let mut text = String::new();
    for line in lines.by_ref().take(1) {
        text.push_str(&format!("{line}\n"));
    }
    for (line, call) in lines.zip(&report.calls) {
        text.push_str(&format!("{line}\n"));
        if with_places {
            call.levels.iter().for_each(|level| text.push_str(&format!("    {}\n", place_line(level))));
        }
    }
    if report.more > 0 {
        text.push_str(&format!("{} more are under way: name an extension\n", report.more));
    }
    for worker in &report.silent_workers {
        text.push_str(&format!("worker {worker} has not answered: its calls are not listed\n"));
    }
    text
}

fn cells(call: &CallReport) -> Vec<String> {
    let CallReport { extension, version, worker, state, age_us, waiting_us, turns, switches, cpu_us, .. } = call;
    vec![
        extension.clone(),
        version.to_string(),
        worker.to_string(),
        state.clone(),
        format_duration(age_us * 1_000),
        format_duration(waiting_us * 1_000),
        turns.to_string(),
        switches.to_string(),
        format_duration(cpu_us * 1_000),
    ]
}

/// Where a call is, in one of the extensions that it is in.
fn place_line(level: &CallLevelReport) -> String {
    let CallLevelReport { extension, version, state, places } = level;
    let what = match state.as_str() {
        "new" => "has not begun",
        "ready" => "waits for its next turn, and is at no line meanwhile",
        "switched_out" => "computes, and waits for its next turn",
        "disk" => "waits for a record on the disk",
        "backing" => "waits for a record behind its table, in a backing",
        "call" => "waits for its call of the one above",
        other => other,
    };
    let at: Vec<String> = places.iter().map(shown_place).collect();
    let at = if at.is_empty() { String::new() } else { format!(" at {}", at.join(", in ")) };
    escape_one_line(&format!("{extension}@{version} {what}{at}"))
}

fn shown_place(place: &CodePlaceReport) -> String {
    match (place.function.as_str(), place.line) {
        ("", _) => "(no name)".to_owned(),
        (function, 0) => function.to_owned(),
        (function, line) => format!("{function} {}:{line}", place.file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_listed_with_the_lines_at_which_they_wait() {
        let place =
            |function: &str, line| CodePlaceReport { function: function.into(), file: "src/lib.rs".into(), line };
        let level = |extension: &str, state: &str, places| CallLevelReport {
            extension: extension.into(),
            version: 2,
            state: state.into(),
            places,
        };
        let call = CallReport {
            extension: "outer".into(),
            version: 2,
            worker: 1,
            state: "disk".into(),
            age_us: 1_200_000,
            waiting_us: 1_100_000,
            turns: 3,
            levels: vec![
                level("inner", "disk", vec![place("inner::load", 17), place("inner::run", 9)]),
                level("outer", "call", vec![place("outer::run\u{1b}[2J", 5)]),
                level("outer", "ready", Vec::new()),
            ],
            ..CallReport::default()
        };
        let report = CallsReport { calls: vec![call], more: 7, silent_workers: vec![3] };
        let shown = table(&report, true);
        for line in [
            "    inner@2 waits for a record on the disk at inner::load src/lib.rs:17, in inner::run src/lib.rs:9",
            "    outer@2 waits for its call of the one above at outer::run\\u{1b}[2J src/lib.rs:5",
            "    outer@2 waits for its next turn, and is at no line meanwhile",
            "7 more are under way: name an extension",
            "worker 3 has not answered: its calls are not listed",
        ] {
            assert!(shown.lines().any(|found| found == line), "{line:?} is not in\n{shown}");
        }
        let without = table(&report, false);
        assert!(without.contains("1.20s") && without.contains("1.10s") && !without.contains("inner"), "{without}");
    }
}
