//! `sandstorm hot`.

use clap::Args;
use sandstorm_client::control::{HotKeyReport, HotReport, HotSpotReport, HotSpotsReport};

use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;

/// The keys that are used most. Those of a table are counted for some seconds, and nothing is counted before or after.
/// Without a table they are those that take much of any table's accesses, as far as is known without counting.
#[derive(Debug, Args)]
pub(super) struct HotArgs {
    /// Name of the table; without one, what is known of all tables is shown at once
    table: Option<String>,
    /// Seconds to count the accesses of TABLE, at most 60 [default: 5]
    #[arg(long, requires = "table")]
    seconds: Option<u64>,
    /// Keys to show: of each kind, or without TABLE of all tables
    #[arg(long, default_value_t = 10)]
    limit: usize,
}

/// Seconds for which accesses of a table are counted unless the caller says for how many.
const SECONDS: u64 = 5;

pub(super) fn run(session: &CliSession, args: &HotArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let Some(name) = &args.table else {
        let report = session.control().hot_spots(session.named_tenant(), args.limit)?;
        return out.show(&report, spots_table);
    };
    let report = session.control().hot(&session.tenant()?, name, args.seconds.unwrap_or(SECONDS), args.limit)?;
    out.show(&report, table)
}

fn spots_table(report: &HotSpotsReport) -> String {
    if report.keys.is_empty() {
        return "no key takes much of its table's accesses\n".to_owned();
    }
    let row = |spot: &HotSpotReport| {
        vec![
            spot.tenant.clone(),
            spot.table.clone(),
            spot.key.clone().unwrap_or_else(|| format!("#{}", spot.key_digest)),
            spot.key_bytes.to_string(),
            format!("{:.0}", spot.per_s),
            format!("{:.1}", 100.0 * spot.share),
            spot.samples.to_string(),
        ]
    };
    let heads = ["TENANT", "TABLE", "KEY", "KEY_BYTES", "REQ/S", "SHARE%", "DRAWN"];
    columns(&heads, &report.keys.iter().map(row).collect::<Vec<_>>())
}

fn table(report: &HotReport) -> String {
    let HotReport { seconds, requests, bytes, missed, by_requests, by_bytes, by_cpu, .. } = report;
    let seconds = *seconds.max(&1) as f64;
    let rate = |count: u64| format!("{:.1}", count as f64 / seconds);
    let row = |key: &HotKeyReport| {
        vec![
            key.key.clone().unwrap_or_else(|| format!("#{}", key.key_digest)),
            key.key_bytes.to_string(),
            rate(key.count),
            format!("{:.2}", 100.0 * key.share),
            format!("{:.2}", if key.count == 0 { 0.0 } else { 100.0 * key.error as f64 / key.count as f64 }),
        ]
    };
    let rows = |keys: &[HotKeyReport]| keys.iter().map(row).collect::<Vec<_>>();
    let mut text = format!("{} requests/s, {} bytes of values/s\n", rate(*requests), rate(*bytes));
    if *missed > 0 {
        text.push_str(&format!("{missed} requests were not counted: two were at the same time\n"));
    }
    text.push_str(&columns(&["KEY", "KEY_BYTES", "REQ/S", "SHARE%", "ERROR%"], &rows(by_requests)));
    text.push('\n');
    text.push_str(&columns(&["KEY", "KEY_BYTES", "BYTES/S", "SHARE%", "ERROR%"], &rows(by_bytes)));
    if !by_cpu.is_empty() {
        text.push_str("\nCPU time of calls, by the key that they read first\n");
        text.push_str(&columns(&["KEY", "KEY_BYTES", "CPU_NS/S", "SHARE%", "ERROR%"], &rows(by_cpu)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_keys_of_all_tables_have_their_tenant_and_table_and_a_digest_where_the_key_is_not_shown() {
        let spot = |key: Option<&str>| HotSpotReport {
            tenant: "a".into(),
            table: "t".into(),
            key: key.map(str::to_owned),
            key_digest: "00ff".into(),
            key_bytes: 9,
            share: 0.415,
            per_s: 12_345.6,
            samples: 400,
        };
        let text = spots_table(&HotSpotsReport { at_ms: 1, keys: vec![spot(Some("a\u{1b}[2J")), spot(None)] });
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["a", "t", "a\\u{1b}[2J", "9", "12346", "41.5", "400"], "{text}");
        assert_eq!(lines[2][2], "#00ff", "{text}");
        assert!(spots_table(&HotSpotsReport::default()).starts_with("no key"));
    }

    #[test]
    fn seconds_are_refused_without_a_table_since_nothing_is_counted_then() {
        use clap::Parser;

        #[derive(Debug, Parser)]
        struct HotCommand {
            #[command(flatten)]
            args: HotArgs,
        }
        let parse = |line: &[&str]| HotCommand::try_parse_from([&["hot"], line].concat()).map(|parsed| parsed.args);
        let refused = parse(&["--seconds", "3"]).expect_err("there is nothing to count").to_string();
        assert!(refused.contains("<TABLE>"), "{refused}");
        assert_eq!(parse(&["t", "--seconds", "3"]).expect("a table").seconds, Some(3));
        assert_eq!(parse(&["--limit", "3"]).expect("all tables").limit, 3);
    }

    #[test]
    fn keys_are_shown_escaped_with_their_rates_and_shares() {
        let key = |key: Option<&str>, count, share| HotKeyReport {
            key: key.map(str::to_owned),
            key_digest: "00ff".into(),
            key_bytes: 9,
            count,
            error: count / 10,
            share,
        };
        let report = HotReport {
            seconds: 5,
            requests: 1_000,
            bytes: 50,
            missed: 3,
            by_requests: vec![key(Some("a\u{1b}[2J\tb"), 500, 0.5)],
            by_bytes: vec![key(None, 50, 1.0)],
            cpu_ns: 0,
            by_cpu: Vec::new(),
        };
        let text = table(&report);
        assert!(text.starts_with("200.0 requests/s, 10.0 bytes of values/s\n3 requests were not counted"), "{text}");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[3], ["a\\u{1b}[2J\\tb", "9", "100.0", "50.00", "10.00"], "{text}");
        assert_eq!(lines[6], ["#00ff", "9", "10.0", "100.00", "10.00"], "{text}");
    }
}
