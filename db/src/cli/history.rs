//! `sandstorm history`.

use std::cmp::Reverse;
use std::time::Duration;

use clap::{Args, ValueEnum};
use sandstorm_catalog::format_utc;
use sandstorm_client::control::{HistoryQuery, HistoryReport, PeriodLength, PeriodUse, PeriodUseRow};

use super::events::{parse_age, since_ms};
use super::latency::format_duration;
use super::output::{CliError, OutputPrinter, columns, format_bytes};
use super::session::CliSession;

/// What was used before now.
#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    /// The length of periods: seconds reach back two minutes, minutes a day, hours a month
    #[arg(long, value_enum, default_value_t)]
    by: PeriodName,
    /// Periods from this long ago on, such as 90s, 30m, 12h, 7d [default: the last 20]
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    since: Option<Duration>,
    /// The order within a period, largest first; the whole server is always the first row
    #[arg(long, value_enum, default_value_t)]
    sort: HistoryOrder,
    /// Tenants of each period, at most
    #[arg(long, default_value_t = 5)]
    limit: usize,
}

/// The lengths of periods.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum PeriodName {
    Seconds,
    #[default]
    Minutes,
    Hours,
}

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum HistoryOrder {
    /// By CPU time of calls
    #[default]
    Cpu,
    /// By operations
    Requests,
    /// By the 99th percentile
    P99,
    /// By kills
    Kills,
    /// By memory
    Memory,
}

/// Periods that are shown if no time is given.
const SHOWN_PERIODS: usize = 20;

pub(super) fn run(session: &CliSession, args: &HistoryArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let query = HistoryQuery {
        tenant: session.named_tenant().map(str::to_owned),
        by: match args.by {
            PeriodName::Seconds => PeriodLength::Seconds,
            PeriodName::Minutes => PeriodLength::Minutes,
            PeriodName::Hours => PeriodLength::Hours,
        },
        since_ms: since_ms(args.since),
        limit: args.since.is_none().then_some(SHOWN_PERIODS),
    };
    let mut report = session.control().history(&query)?;
    for period in &mut report.periods {
        arrange(period, args.sort, args.limit);
    }
    out.show(&report, table)
}

/// Sorts and cuts the rows of a period: the whole server stays first.
fn arrange(period: &mut PeriodUse, order: HistoryOrder, limit: usize) {
    let value = |row: &PeriodUseRow| match order {
        HistoryOrder::Cpu => row.cpu_us,
        HistoryOrder::Requests => row.requests,
        HistoryOrder::P99 => row.p99_ns,
        HistoryOrder::Kills => row.killed,
        HistoryOrder::Memory => row.memory_bytes,
    };
    period.rows.sort_by_key(|row| (row.tenant.is_some(), Reverse(value(row))));
    let totals = period.rows.iter().filter(|row| row.tenant.is_none()).count();
    period.rows.truncate(totals + limit);
}

fn table(report: &HistoryReport) -> String {
    let mut rows = Vec::new();
    for PeriodUse { at_ms, length_ms, rows: used } in &report.periods {
        let seconds = (*length_ms).max(1) as f64 / 1e3;
        let rate = |count: u64| format!("{:.1}", count as f64 / seconds);
        for row in used {
            rows.push(vec![
                format_utc(*at_ms),
                row.tenant.clone().unwrap_or_else(|| "(all)".to_owned()),
                format!("{:.1}", row.cpu_us as f64 / seconds / 1e4),
                rate(row.requests),
                rate(row.calls),
                if row.p99_ns == 0 { "-".to_owned() } else { format_duration(row.p99_ns) },
                row.killed.to_string(),
                rate(row.switches),
                rate(row.over_quota),
                format!("{:.1}", row.throttled_per_mille as f64 / 10.0),
                if row.memory_bytes == 0 { "-".to_owned() } else { format_bytes(row.memory_bytes) },
            ]);
        }
    }
    let heads = [
        "UNTIL (UTC)",
        "TENANT",
        "CPU%",
        "REQ/S",
        "CALLS/S",
        "P99",
        "KILLS",
        "SWITCH/S",
        "REFUSED/S",
        "THROTTLED%",
        "MEMORY",
    ];
    columns(&heads, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_the_whole_server_and_then_the_first_by_what_is_asked_for() {
        let row = |tenant: Option<&str>, cpu_us, killed| PeriodUseRow {
            tenant: tenant.map(str::to_owned),
            cpu_us,
            killed,
            ..PeriodUseRow::default()
        };
        let rows = vec![
            row(None, 30_000_000, 9),
            row(Some("busy\u{1b}[2J"), 24_000_000, 0),
            row(Some("ill"), 6, 9),
            row(Some("c"), 1, 0),
        ];
        let period = PeriodUse { at_ms: 60_000, length_ms: 60_000, rows };
        let shown = |order, limit| {
            let mut period = period.clone();
            arrange(&mut period, order, limit);
            table(&HistoryReport { periods: vec![period] })
        };
        let by_cpu = shown(HistoryOrder::Cpu, 1);
        let lines: Vec<&str> = by_cpu.lines().collect();
        assert_eq!(lines.len(), 3, "{by_cpu}");
        assert!(lines[1].contains("(all)") && lines[1].contains(" 50.0 "), "{by_cpu}");
        assert!(lines[2].contains("busy\\u{1b}[2J") && lines[2].contains(" 40.0 "), "{by_cpu}");
        assert!(shown(HistoryOrder::Kills, 1).lines().nth(2).is_some_and(|line| line.contains("ill")));
    }
}
