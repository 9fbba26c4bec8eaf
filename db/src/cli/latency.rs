//! `sandstorm stat latency`.

use std::cmp::Reverse;
use std::time::Duration;

use clap::{Args, ValueEnum};
use sandstorm_client::control::{LatencyReport, LatencyRow};

use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;

/// Latencies at the server.
#[derive(Debug, Args)]
pub(super) struct LatencyArgs {
    /// Tables to print, each of what was served since the one before
    #[arg(long, short = 'n', default_value_t = 1)]
    count: u64,
    /// Seconds that a table covers
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
    /// Print what was served since each tenant was created and each extension loaded, once
    #[arg(long, conflicts_with_all = ["count", "interval"])]
    all: bool,
    /// Order of the rows, largest first
    #[arg(long, value_enum, default_value_t)]
    sort: LatencyOrder,
    /// Rows to print, at most
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum LatencyOrder {
    /// By the 99th percentile from arrival to answer
    #[default]
    P99,
    /// By the median
    P50,
    /// By the number of requests
    Count,
    /// By the 99th percentile of waiting
    Waiting,
}

pub(super) fn run(session: &CliSession, args: &LatencyArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let interval = Duration::try_from_secs_f64(args.interval).ok().filter(|interval| interval.as_millis() >= 10);
    let interval = interval.ok_or_else(|| CliError::new(format!("--interval {} is too short", args.interval)))?;
    let (control, tenant) = (session.control(), session.named_tenant());
    if args.all {
        return print(control.latency(tenant, false)?, args, None, out);
    }
    let mut before = control.latency(tenant, true)?;
    for _ in 0..args.count {
        std::thread::sleep(interval);
        let now = control.latency(tenant, true)?;
        let seconds = now.at_ms.saturating_sub(before.at_ms).max(1) as f64 / 1e3;
        print(now.since(&before), args, Some(seconds), out)?;
        before = now;
    }
    Ok(())
}

/// Prints a report, sorted; with rates, if it is about so many seconds.
fn print(
    mut report: LatencyReport,
    args: &LatencyArgs,
    seconds: Option<f64>,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    report.rows.sort_by_key(|row| Reverse(sort_key(args.sort, row)));
    report.rows.truncate(args.limit);
    for row in &mut report.rows {
        for part in [&mut row.total, &mut row.waiting, &mut row.service, &mut row.sending] {
            part.buckets.clear();
        }
    }
    out.show(&report, |report| table(report, seconds))
}

fn sort_key(order: LatencyOrder, row: &LatencyRow) -> u64 {
    match order {
        LatencyOrder::P99 => row.total.p99_ns,
        LatencyOrder::P50 => row.total.p50_ns,
        LatencyOrder::Count => row.total.count,
        LatencyOrder::Waiting => row.waiting.p99_ns,
    }
}

fn table(report: &LatencyReport, seconds: Option<f64>) -> String {
    let count = |count: u64| match seconds {
        Some(seconds) => format!("{:.0}", count as f64 / seconds),
        None => count.to_string(),
    };
    let rows: Vec<Vec<String>> = report
        .rows
        .iter()
        .map(|row| {
            let durations = [
                row.total.p50_ns,
                row.total.p90_ns,
                row.total.p99_ns,
                row.total.p999_ns,
                row.waiting.p99_ns,
                row.service.p99_ns,
            ];
            let extension =
                row.extension.as_ref().map_or_else(|| "-".to_owned(), |name| format!("{name} v{}", row.version));
            let head = [row.tenant.clone(), row.class.clone(), extension, count(row.total.count)];
            // It is measured for some requests.
            let sending = if row.sending.count > 0 { format_duration(row.sending.p99_ns) } else { "-".to_owned() };
            head.into_iter().chain(durations.map(format_duration)).chain([sending]).collect()
        })
        .collect();
    let counted = if seconds.is_some() { "PER_S" } else { "COUNT" };
    let parts = ["P50", "P90", "P99", "P99.9", "WAITING_P99", "SERVICE_P99", "SENDING_P99"];
    let head: Vec<&str> = ["TENANT", "CLASS", "EXTENSION", counted].into_iter().chain(parts).collect();
    columns(&head, &rows)
}

/// Nanoseconds for people: three digits and a unit.
pub(super) fn format_duration(ns: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let Some((unit_ns, name)) = UNITS.into_iter().find(|(unit_ns, _)| ns >= *unit_ns) else { return format!("{ns}ns") };
    let value = ns as f64 / unit_ns as f64;
    match value {
        ..10.0 => format!("{value:.2}{name}"),
        ..100.0 => format!("{value:.1}{name}"),
        _ => format!("{value:.0}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits_and_a_unit() {
        for (ns, shown) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.00us"),
            (12_340, "12.3us"),
            (150_000_000, "150ms"),
            (2_000_000_000, "2.00s"),
        ] {
            assert_eq!(format_duration(ns), shown);
        }
    }
}
