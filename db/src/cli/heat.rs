//! `sandstorm heat` and `sandstorm big`.

use clap::Args;
use sandstorm_client::control::{BigReport, HeatMapReport};

use super::output::{CliError, OutputPrinter, columns, format_bytes};
use super::session::CliSession;
use sandstorm_terminal::escape_one_line;

/// Accesses of a table over key ranges and time.
#[derive(Debug, Args)]
pub(super) struct HeatArgs {
    /// Name of the table
    table: String,
    /// Seconds to count, at most 60
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Key ranges to show
    #[arg(long, default_value_t = 24)]
    ranges: usize,
}

/// The largest records of a table.
#[derive(Debug, Args)]
pub(super) struct BigArgs {
    /// Name of the table
    table: String,
    /// Records to show
    #[arg(long, default_value_t = 10)]
    limit: usize,
}

pub(super) fn heat(session: &CliSession, args: &HeatArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let report = session.control().heat(&session.tenant()?, &args.table, args.seconds, args.ranges)?;
    out.show(&report, heat_map)
}

pub(super) fn big(session: &CliSession, args: &BigArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let report = session.control().big(&session.tenant()?, &args.table, args.limit)?;
    out.show(&report, large_records)
}

/// From no access to as many as the hottest cell has.
const SHADES: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];
/// Letters of a key beside the map.
const KEY_LETTERS: usize = 24;

/// A line for each range, a letter for each second.
fn heat_map(report: &HeatMapReport) -> String {
    let hottest = report.ranges.iter().flat_map(|range| range.accesses.iter().copied()).max().unwrap_or(0);
    let shade = |accesses: u64| match accesses {
        0 => SHADES[0],
        _ => SHADES[(1 + accesses * (SHADES.len() as u64 - 2) / hottest.max(1)).min(SHADES.len() as u64 - 1) as usize],
    };
    let all: u64 = report.accesses.iter().sum();
    let mut text = format!(
        "{all} accesses in {} s; a letter is a second, {} is {hottest} accesses of a range\n",
        report.seconds,
        SHADES[SHADES.len() - 1]
    );
    if report.missed > 0 {
        text.push_str(&format!("{} accesses were not counted: two were at the same time\n", report.missed));
    }
    for (number, range) in (1..).zip(&report.ranges) {
        let label = match (&range.first, &range.last) {
            (Some(first), _) => escape_one_line(first).chars().take(KEY_LETTERS).collect(),
            _ => format!("range {number}"),
        };
        let sum: u64 = range.accesses.iter().sum();
        let share = 100.0 * sum as f64 / all.max(1) as f64;
        let shades: String = range.accesses.iter().map(|accesses| shade(*accesses)).collect();
        text.push_str(&format!("{label:<KEY_LETTERS$} |{shades}| {share:>5.1} %\n"));
    }
    text
}

fn large_records(report: &BigReport) -> String {
    let BigReport { records, looked_at, p50_bytes, p99_bytes, max_bytes, sum_bytes, largest } = report;
    let part = 100.0 * *looked_at as f64 / (*records).max(1) as f64;
    let mean = sum_bytes / (*looked_at).max(1);
    let mut text = format!(
        "{looked_at} of {records} records looked at ({part:.1} %): {} each on average, p50 {}, p99 {}, largest {}\n",
        format_bytes(mean),
        format_bytes(*p50_bytes),
        format_bytes(*p99_bytes),
        format_bytes(*max_bytes)
    );
    if looked_at < records {
        text.push_str("a larger record may be among those that were not looked at\n");
    }
    let rows: Vec<Vec<String>> = largest
        .iter()
        .map(|record| {
            let key = record.key.clone().unwrap_or_else(|| format!("#{}", record.key_digest));
            vec![key, record.key_bytes.to_string(), record.value_bytes.to_string()]
        })
        .collect();
    text.push_str(&columns(&["KEY", "KEY_BYTES", "VALUE_BYTES"], &rows));
    text
}

#[cfg(test)]
mod tests {
    use sandstorm_client::control::{BigRecordReport, HeatMapRange};

    use super::*;

    #[test]
    fn a_map_is_darker_where_more_is_used_and_shows_keys_escaped() {
        let range = |first: Option<&str>, accesses: &[u64]| HeatMapRange {
            first: first.map(str::to_owned),
            last: None,
            accesses: accesses.to_vec(),
        };
        let report = HeatMapReport {
            seconds: 3,
            accesses: vec![100, 110, 0],
            sampled: vec![64; 3],
            missed: 4,
            ranges: vec![range(Some("a\u{1b}[2J"), &[0, 100, 0]), range(None, &[100, 10, 0])],
        };
        let text = heat_map(&report);
        assert!(text.starts_with("210 accesses in 3 s") && text.contains("\n4 accesses were not counted"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[2].starts_with("a\\u{1b}[2J ") && lines[2].contains("| @ |") && lines[2].ends_with("47.6 %"),
            "{text}"
        );
        assert!(lines[3].starts_with("range 2 ") && lines[3].contains("|@. |"), "{text}");
    }

    #[test]
    fn large_records_come_with_the_part_that_was_looked_at() {
        let largest = vec![BigRecordReport { key: None, key_digest: "0f".into(), key_bytes: 3, value_bytes: 9_000 }];
        let report = BigReport { records: 1_000, looked_at: 100, sum_bytes: 20_000, largest, ..BigReport::default() };
        let text = large_records(&report);
        assert!(text.starts_with("100 of 1000 records looked at (10.0 %)"), "{text}");
        assert!(text.contains("a larger record may be") && text.contains("#0f"), "{text}");
    }
}
