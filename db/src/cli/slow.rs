//! `sandstorm slow` and `sandstorm explain`.

use std::time::Duration;

use clap::Args;
use sandstorm_catalog::format_utc;
use sandstorm_client::control::{
    CallPausesReport, RequestWaitsReport, SlowCallReport, SlowPatch, SlowQuery, SlowReport, SlowRequestReport,
    TurnShareReport, WaitSumReport,
};

use super::events::{parse_age, since_ms};
use super::latency::format_duration;
use super::output::{CliError, OutputPrinter, columns, format_bytes};
use super::session::CliSession;
use sandstorm_terminal::escape_one_line;

/// The time between two looks for new ones.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Requests that took long, over all protocols.
#[derive(Debug, Args)]
pub(super) struct SlowArgs {
    /// Requests to show, at most; with --follow, before those that come
    #[arg(long, default_value_t = 20)]
    limit: usize,
    /// Requests from this long ago on, such as 90s, 30m, 12h, 7d
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    since: Option<Duration>,
    /// Go on with requests as they come, until interrupted
    #[arg(long, short = 'f')]
    follow: bool,
    /// Set the time from arrival to answer from which a request is slow, in microseconds, until the server restarts;
    /// 0: none is
    #[arg(long, value_name = "MICROSECONDS", conflicts_with_all = ["limit", "since", "follow"])]
    threshold_us: Option<u64>,
}

/// Where the time of a slow request went.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// Its number, which `sandstorm slow` shows
    id: u64,
}

pub(super) fn run(session: &CliSession, args: &SlowArgs, out: &OutputPrinter) -> Result<(), CliError> {
    if let Some(threshold_us) = args.threshold_us {
        session.control().set_slow_threshold(&SlowPatch { threshold_us })?;
        return out.done(&match threshold_us {
            0 => "no request is kept as slow".to_owned(),
            us => format!("requests of {} or more are kept as slow", format_duration(us.saturating_mul(1000))),
        });
    }
    let mut query = SlowQuery {
        tenant: session.named_tenant().map(str::to_owned),
        since_ms: since_ms(args.since),
        after: 0,
        limit: Some(args.limit),
    };
    let mut report = session.control().slow(&query)?;
    if !args.follow {
        return out.show(&report, table);
    }
    loop {
        for request in report.requests.iter().rev() {
            query.after = query.after.max(request.id);
            if out.json { out.json(request)? } else { out.line(&escape_one_line(&cells(request).join("  ")))? }
        }
        std::thread::sleep(FOLLOW_INTERVAL);
        query.limit = Some(usize::MAX);
        report = session.control().slow(&query)?;
    }
}

fn cells(request: &SlowRequestReport) -> Vec<String> {
    let SlowRequestReport { id, at_ms, tenant, class, operation, count, call, .. } = request;
    let what = match call {
        Some(call) => format!("{} v{}", call.extension, call.version),
        None => operation.clone(),
    };
    let key = request.key.clone().or_else(|| request.key_digest.as_ref().map(|digest| format!("#{digest}")));
    // A call is about its arguments.
    let key = key.or_else(|| call.as_ref().map(|call| call.arguments.clone()).filter(|text| !text.is_empty()));
    vec![
        id.to_string(),
        format_utc(*at_ms),
        tenant.clone(),
        class.clone(),
        what,
        request.table.clone().unwrap_or_else(|| "-".to_owned()),
        key.unwrap_or_else(|| "-".to_owned()),
        count.to_string(),
        format_duration(request.total_ns),
        format_duration(request.waiting_ns),
        format_duration(request.service_ns),
    ]
}

fn table(report: &SlowReport) -> String {
    let rows: Vec<Vec<String>> = report.requests.iter().map(cells).collect();
    let heads =
        ["ID", "TIME (UTC)", "TENANT", "CLASS", "OPERATION", "TABLE", "KEY", "COUNT", "TOOK", "WAITING", "SERVICE"];
    let mut text = columns(&heads, &rows);
    match report.threshold_us {
        0 => text.push_str("no request is kept as slow now: --threshold-us sets from when on\n"),
        us if rows.is_empty() => {
            text.push_str(&format!("none took {} or more\n", format_duration(us.saturating_mul(1000))));
        }
        _ => {}
    }
    if report.left_out > 0 {
        text.push_str(&format!("{} more were slow and are not kept: too many came at once\n", report.left_out));
    }
    text
}

pub(super) fn explain(session: &CliSession, args: &ExplainArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let request = session.control().slow_request(args.id)?;
    out.show(&request, explanation)
}

/// A part of the time, as a line.
fn line(ns: u64, text: &str) -> String {
    format!("{:>9}  {}\n", format_duration(ns), escape_one_line(text))
}

/// Where the time went, in prose.
fn explanation(request: &SlowRequestReport) -> String {
    let SlowRequestReport { id, at_ms, tenant, operation, total_ns, waiting_ns, service_ns, worker, .. } = request;
    let what = match &request.call {
        Some(call) => {
            format!("call of {} version {} by tenant {tenant}: {}", call.extension, call.version, call.outcome)
        }
        None => match (&request.table, request.count) {
            (Some(table), 1) => format!("{operation} of tenant {tenant} in table {table}"),
            (None, 1) => format!("{operation} of tenant {tenant}"),
            (_, count) => format!("{count} requests of tenant {tenant} that were answered together, {operation} first"),
        },
    };
    let mut text = format!("{id}: {}\n", escape_one_line(&what));
    text.push_str(&format!("answered at {} (UTC) by worker {worker}\n", format_utc(*at_ms)));
    text.push_str(&line(*total_ns, "from its arrival until it was answered"));
    match &request.call {
        Some(call) => text.push_str(&call_lines(call, *total_ns, &request.waits)),
        None => {
            let turn_ns = waiting_ns.saturating_sub(sum_ns(&request.waits));
            text.push_str(&line(turn_ns, "it waited: for its turn, or between its pieces"));
            text.push_str(&wait_lines(&request.waits));
            text.push_str(&line(*service_ns, "it was served, with what was answered beside it, and sent"));
        }
    }
    text.push_str(&turn_lines(request));
    text
}

/// The time of all waits together.
fn sum_ns(waits: &RequestWaitsReport) -> u64 {
    let RequestWaitsReport { disk_ns, backing_ns, log_ns, copies_ns, backed_ns } = waits;
    disk_ns + backing_ns + log_ns + copies_ns + backed_ns
}

/// What it waited for beside its turn, each kind of wait for itself.
fn wait_lines(waits: &RequestWaitsReport) -> String {
    let RequestWaitsReport { disk_ns, backing_ns, log_ns, copies_ns, backed_ns } = waits;
    let parts = [
        (disk_ns, "it waited for records that were on the disk"),
        (backing_ns, "it waited for records that were behind their table, in its backing"),
        (log_ns, "it was done, and waited for the log to be on the disk"),
        (copies_ns, "it was done, and waited for the log to be on its copies at other servers"),
        (backed_ns, "it was done, and waited for the backing of its table to have its change"),
    ];
    parts.iter().filter(|(ns, _)| **ns > 0).map(|(ns, what)| line(**ns, what)).collect()
}

fn call_lines(call: &SlowCallReport, total_ns: u64, waited: &RequestWaitsReport) -> String {
    let SlowCallReport { cpu_ns, turns, reads, read_bytes, first_turn_ns, .. } = call;
    let ended_ns = total_ns.saturating_sub(waited.log_ns + waited.copies_ns + waited.backed_ns);
    let mut text = String::new();
    if call.queue_ns > 0 {
        text.push_str(&line(call.queue_ns, "until its first turn began"));
    }
    text.push_str(&line(*first_turn_ns, "until its first turn was over"));
    let later = format!("from then on until it ended: {turns} turns in all");
    text.push_str(&line(ended_ns.saturating_sub(*first_turn_ns), &later));
    text.push_str(&line(*cpu_ns, "it computed itself"));
    if call.nested_calls > 0 {
        let of_others = format!("of that the {} calls of other extensions that it made", call.nested_calls);
        text.push_str(&line(call.nested_cpu_ns, &of_others));
    }
    text.push_str(&pause_lines(call, waited));
    text.push_str(&wait_lines(waited));
    text.push_str(&format!("           read {reads} records, {}\n", format_bytes(*read_bytes)));
    if call.log_call > 0 {
        text.push_str(&format!("           what it wrote: sandstorm ext logs --call {}\n", call.log_call));
    }
    if !call.arguments.is_empty() {
        text.push_str(&format!("           its arguments begin with {}\n", escape_one_line(&call.arguments)));
    }
    text
}

/// Why its turns ended, and how long it waited for the next one; what it waited for within them; what was in vain.
fn pause_lines(call: &SlowCallReport, waited: &RequestWaitsReport) -> String {
    let SlowCallReport { switches, waits, cold_waits, retries, pauses, .. } = call;
    let CallPausesReport { switched, reads, yields, cold, calls, locks, commits, vain_ns, .. } = pauses;
    if *pauses == CallPausesReport::default() && switches + waits > 0 {
        // An earlier version of the server has kept it, which did not tell them apart.
        return format!(
            "           switched out {switches} times, because it computed past its slice\n           \
             gave its turn away {waits} times, to wait for records or to yield\n"
        );
    }
    let after_cold = WaitSumReport { ns: cold.ns.saturating_sub(waited.disk_ns + waited.backing_ns), ..*cold };
    let parts = [
        (switched, "switched out", "because it computed past its slice, and waited for its next turn"),
        (reads, "gave its turn away", "while records came from memory, or between two parts of a range"),
        (yields, "gave its turn away", "by itself"),
        (calls, "waited", "for a turn to call another extension, or to go on behind one"),
        (&after_cold, "waited", "for a turn once records had come that were not in memory"),
        (&pauses.retries, "waited", "for a turn to begin anew"),
        (locks, "waited within its turns", "for a lock that another writer had"),
        (commits, "waited within its turns", "for another's commit to be complete"),
    ];
    let told = parts.iter().filter(|(sum, ..)| sum.count > 0);
    let mut text: String =
        told.map(|(sum, what, why)| line(sum.ns, &format!("{what} {} times, {why}", sum.count))).collect();
    if *cold_waits > 0 {
        text.push_str(&format!("           met records that were not in memory {cold_waits} times\n"));
    }
    if *retries > 0 {
        let times = format!("in vain: it began anew {retries} times, since others wrote what its transaction had read");
        text.push_str(&line(*vain_ns, &times));
    }
    text
}

/// Whose turns there were meanwhile.
fn turn_lines(request: &SlowRequestReport) -> String {
    let own_ns = request.call.as_ref().map_or(0, |call| call.cpu_ns);
    let mut text = String::new();
    if request.known_ns == 0 && request.turns.is_empty() {
        return "whose turns its worker served meanwhile is not known: too many requests were slow just then\n"
            .to_owned();
    }
    if request.known_ns < request.total_ns {
        text.push_str(&format!(
            "of the last {} of it the worker knows whose turns it served:\n",
            format_duration(request.known_ns)
        ));
    } else {
        text.push_str("meanwhile its worker served:\n");
    }
    let mut served_ns = 0;
    for TurnShareReport { tenant, turns, cpu_ns, .. } in request.turns.iter().filter(|share| share.turns > 0) {
        served_ns += cpu_ns;
        let is_own = tenant.as_deref() == Some(&request.tenant);
        let whose = match tenant {
            Some(tenant) if is_own && own_ns > 0 => format!("calls of {tenant}, this one among them"),
            Some(tenant) => format!("calls of {tenant}"),
            None => "calls of other tenants".to_owned(),
        };
        text.push_str(&line(*cpu_ns, &format!("{whose}: {turns} turns")));
    }
    let rest_ns = request.known_ns.saturating_sub(served_ns);
    text.push_str(&line(rest_ns, "packets and connections of all tenants, or nothing: the system ran something else"));
    for TurnShareReport { tenant, requests, .. } in request.turns.iter().filter(|share| share.requests > 0) {
        let whose = escape_one_line(tenant.as_deref().unwrap_or("other tenants"));
        text.push_str(&format!("           among them {requests} requests of {whose}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call of a tenant that waited for others, and for the disk and the log.
    fn slow_call() -> SlowRequestReport {
        let share = |tenant: Option<&str>, turns, cpu_ns, requests| TurnShareReport {
            tenant: tenant.map(str::to_owned),
            turns,
            cpu_ns,
            requests,
        };
        let call = SlowCallReport {
            extension: "sum".into(),
            version: 3,
            outcome: "ok".into(),
            cpu_ns: 2_000_000,
            turns: 22,
            switches: 20,
            waits: 3,
            cold_waits: 2,
            cold_ns: 1_200_000,
            retries: 1,
            queue_ns: 4_000_000,
            pauses: CallPausesReport {
                switched: WaitSumReport { count: 20, ns: 5_000_000 },
                yields: WaitSumReport { count: 1, ns: 70_000 },
                cold: WaitSumReport { count: 2, ns: 1_500_000 },
                locks: WaitSumReport { count: 3, ns: 40_000 },
                vain_ns: 2_500_000,
                ..CallPausesReport::default()
            },
            nested_calls: 2,
            nested_cpu_ns: 500_000,
            arguments: "k\\x00".into(),
            reads: 10,
            read_bytes: 2_048,
            first_turn_ns: 4_100_000,
            ..SlowCallReport::default()
        };
        SlowRequestReport {
            id: 17,
            tenant: "shop\u{1b}[2J".into(),
            operation: "invoke".into(),
            count: 1,
            total_ns: 14_000_000,
            waiting_ns: 12_000_000,
            waits: RequestWaitsReport { disk_ns: 1_200_000, log_ns: 900_000, ..RequestWaitsReport::default() },
            service_ns: 2_000_000,
            call: Some(call),
            turns: vec![
                share(Some("mallory"), 90, 9_000_000, 0),
                share(Some("shop\u{1b}[2J"), 22, 2_000_000, 1),
                share(None, 1, 500_000, 7_000),
                share(Some("flood"), 0, 0, 5_000),
            ],
            known_ns: 14_000_000,
            ..SlowRequestReport::default()
        }
    }

    #[test]
    fn what_a_plain_request_waited_for_is_told_apart_from_its_turn() {
        let put = SlowRequestReport {
            operation: "put".into(),
            count: 1,
            total_ns: 5_000_000,
            waiting_ns: 4_900_000,
            service_ns: 100_000,
            waits: RequestWaitsReport { copies_ns: 4_000_000, backed_ns: 800_000, ..RequestWaitsReport::default() },
            ..SlowRequestReport::default()
        };
        let told = explanation(&put);
        for line in [
            "    100us  it waited: for its turn, or between its pieces",
            "   4.00ms  it was done, and waited for the log to be on its copies at other servers",
            "    800us  it was done, and waited for the backing of its table to have its change",
        ] {
            assert!(told.lines().any(|shown| shown == line), "{line:?} is not in\n{told}");
        }
    }

    #[test]
    fn an_explanation_says_where_the_time_went_and_names_who_had_the_turns() {
        let request = slow_call();
        let text = explanation(&request);
        for line in [
            "17: call of sum version 3 by tenant shop\\u{1b}[2J: ok",
            "   14.0ms  from its arrival until it was answered",
            "   4.10ms  until its first turn was over",
            "   9.00ms  from then on until it ended: 22 turns in all",
            "   4.00ms  until its first turn began",
            "   5.00ms  switched out 20 times, because it computed past its slice, and waited for its next turn",
            "   70.0us  gave its turn away 1 times, by itself",
            "    300us  waited 2 times, for a turn once records had come that were not in memory",
            "   40.0us  waited within its turns 3 times, for a lock that another writer had",
            "   2.50ms  in vain: it began anew 1 times, since others wrote what its transaction had read",
            "    500us  of that the 2 calls of other extensions that it made",
            "           met records that were not in memory 2 times",
            "   1.20ms  it waited for records that were on the disk",
            "    900us  it was done, and waited for the log to be on the disk",
            "           its arguments begin with k\\x00",
            "           read 10 records, 2.0 KiB",
            "   9.00ms  calls of mallory: 90 turns",
            "   2.00ms  calls of shop\\u{1b}[2J, this one among them: 22 turns",
            "    500us  calls of other tenants: 1 turns",
            "   2.50ms  packets and connections of all tenants, or nothing: the system ran something else",
            "           among them 1 requests of shop\\u{1b}[2J",
            "           among them 7000 requests of other tenants",
            "           among them 5000 requests of flood",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line:?} is not in\n{text}");
        }
        let report = SlowReport { threshold_us: 10_000, left_out: 5, requests: vec![request] };
        assert!(!text.contains("calls of flood"), "it made none:\n{text}");
        assert!(!text.contains("another's commit") && !text.contains("from memory"), "it has not waited:\n{text}");
        assert!(table(&report).contains("5 more were slow"), "{}", table(&report));
        assert!(table(&SlowReport::default()).contains("--threshold-us"));
    }
}
