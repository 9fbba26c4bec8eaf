//! Names compared with the protocol's numbers, sums, the page, the text.

use super::*;
use sandstorm_net::rpc::{KillCause, OpKind, RpcStatus};

/// `SomeName` as `some_name`.
fn snake(debug: &str) -> String {
    let mut text = String::new();
    for c in debug.chars() {
        if c.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(c.to_lowercase());
    }
    text
}

#[test]
fn every_number_of_the_protocol_has_its_name_in_its_place() {
    let ops: Vec<String> =
        OpKind::ALL.iter().map(|op| snake(&format!("{op:?}")).replace("multi_get", "multiget")).collect();
    assert_eq!(OPERATIONS, ops);
    let statuses: Vec<String> = RpcStatus::ALL.iter().map(|status| snake(&format!("{status:?}"))).collect();
    assert_eq!(STATUSES, statuses);
    // Dashboards know this one by its older name.
    let of_cause = |cause: &KillCause| snake(&format!("{cause:?}")).replace("reclaim_pressure", "crowded");
    let causes: Vec<String> = KillCause::ALL.iter().map(of_cause).collect();
    assert_eq!(KILL_CAUSES, causes);
    for cause in KillCause::ALL {
        assert_eq!(cause_name(*cause), of_cause(cause));
    }
    let ops: Vec<usize> = OpKind::ALL.iter().map(|op| *op as usize).collect();
    assert_eq!(ops, (0..OPERATIONS.len()).collect::<Vec<_>>());
}

#[test]
fn every_kind_of_malformed_message_is_counted_under_its_name() {
    use sandstorm_net::rpc::MessageDecodeError as M;
    let kinds = [
        (M::ShortHeader, "short_header"),
        (M::Version(9), "version"),
        (M::Operations(9), "operations"),
        (M::ShortOperation(9), "short_operation"),
        (M::ShortBody(9), "short_body"),
        (M::TooLarge(9), "too_large"),
        (M::UnknownOp(9, 9), "unknown_op"),
        (M::UnknownEnum(9), "unknown_enum"),
        (M::Trailing(9), "trailing"),
    ];
    assert_eq!(kinds.len(), MALFORMED_KINDS.len());
    for (malformed, name) in kinds {
        assert_eq!(MALFORMED_KINDS[malformed_kind_index(&malformed)], name);
    }
}

#[test]
fn names_are_unique_and_each_has_a_meaning() {
    let all: Vec<&MetricSpec> = text::SECTIONS.iter().flat_map(|(_, metrics)| metrics.iter()).collect();
    let mut names: Vec<&str> = all.iter().map(|metric| metric.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
    // Old and new ones together: a name has one meaning.
    let mut shown: Vec<String> = all.iter().map(|metric| ConventionalName::of(metric).name).collect();
    let kept = all.iter().map(|metric| metric.name.to_owned()).filter(|name| !shown.contains(name));
    shown.extend(kept.collect::<Vec<_>>());
    let count = shown.len();
    shown.sort_unstable();
    shown.dedup();
    assert_eq!(shown.len(), count);
    assert!(all.iter().all(|metric| metric.meaning.trim().ends_with('.')));
}

/// Against the stack's own names: each that has a metric is counted there, and nothing else.
#[test]
fn what_the_stack_counts_is_found_under_its_reason() {
    let stack = sandstorm_net::stack::StackCounters::default();
    let details: Vec<_> = stack.named().zip(1u64..).map(|((name, _), number)| (name, number)).collect();
    let number = |name: &str| {
        let mut all = details.iter().filter(|(other, _)| *other == name);
        let (one, more) = (all.next(), all.next());
        assert!(more.is_none(), "{name} is the name of two counts");
        one.unwrap_or_else(|| panic!("the stack has no {name}")).1
    };
    let counters = WorkerCounters::default();
    details.iter().for_each(|(name, count)| counters.set_detail(name, *count));
    let readings = readings(WorkerCounters::METRICS, counters.values());
    let mut found = 0;
    for (name, value) in text::flat(&readings) {
        let expected = match name.split_once('.') {
            Some(("frames_refused" | "packets_undeliverable", reason)) => number(reason),
            _ if name == "packets_handed_over" => number("handed_over"),
            _ => 0,
        };
        assert_eq!(value, expected, "{name}");
        found += usize::from(value > 0);
    }
    assert_eq!(found, 1 + FRAME_REASONS.len() + UNDELIVERABLE_REASONS.len());
    assert_eq!(FRAME_REASONS.len(), sandstorm_net::stack::FrameDropReason::ALL.len());
}

#[test]
fn workers_are_summed_and_each_is_read_alone() {
    let metrics = ServerMetrics::new(2);
    for (worker, n) in [(0, 3), (1, 4)] {
        let counters = metrics.worker(worker).unwrap();
        counters.packets_in.add(n);
        counters.requests[OpKind::Put as usize].add(n);
        counters.invocations_live.set(n);
    }
    let get =
        |readings: &[MetricReading], wanted: &str| text::flat(readings).find(|(name, _)| name == wanted).unwrap().1;
    for (name, sum, second) in
        [("packets_in", 7, 4), ("requests.put", 7, 4), ("requests.get", 0, 0), ("invocations_live", 7, 4)]
    {
        assert_eq!(get(&metrics.read(), name), sum);
        assert_eq!(get(&metrics.read_worker(1), name), second);
    }
    assert!(metrics.worker(2).is_none() && metrics.read_worker(2).is_empty());
}

#[test]
fn workers_do_not_share_cache_lines() {
    let metrics = ServerMetrics::new(2);
    let at = |worker| std::ptr::from_ref::<WorkerCounters>(metrics.worker(worker).unwrap()).addr();
    assert!(at(0) % 128 == 0 && at(1) % 128 == 0);
}

#[test]
fn prometheus_text_says_each_metric_once_and_escapes_labels() {
    let counters = TenantCounters::default();
    counters.requests.add(5);
    let group = |tenant: &str| text::LabelledReadings {
        labels: vec![("tenant", tenant.to_owned())],
        readings: readings(TenantCounters::METRICS, counters.values()),
    };
    let groups = [group("a"), group("b\"\n")];
    let text = text::prometheus(&groups, text::OldNames::Hidden);
    let name = "sandstorm_tenant_requests_total";
    assert_eq!(text.matches(&format!("# TYPE {name} counter\n")).count(), 1);
    assert!(text.contains(&format!("{name}{{tenant=\"a\"}} 5\n{name}{{tenant=\"b\\\"\\n\"}} 5\n")), "{text}");
    assert!(text.contains("sandstorm_tenant_invocations_killed_total{tenant=\"a\",cause=\"panic\"} 0\n"));
    assert!(!text.contains("sandstorm_tenant_requests{"), "the old name is hidden");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').unwrap();
        value.parse::<f64>().unwrap();
    }
    let both = text::prometheus(&groups, text::OldNames::Shown);
    assert!(both.contains("\nsandstorm_tenant_requests{tenant=\"a\"} 5\n"));
    assert!(both.contains("# HELP sandstorm_tenant_requests Old name of sandstorm_tenant_requests_total,"));
}

#[test]
fn a_renamed_metric_is_read_under_its_old_name_too() {
    let renamed = readings(CONTROL_METRICS, CONTROL_METRICS.iter().map(|_| vec![4]).collect());
    let flat: Vec<_> = text::flat(&renamed).collect();
    for name in ["control_connections_limited", "control_crowded"] {
        assert!(flat.contains(&(name.to_owned(), 4)), "{flat:?}");
    }
    let groups = [text::LabelledReadings { labels: Vec::new(), readings: renamed }];
    let text = text::prometheus(&groups, text::OldNames::Shown);
    assert!(text.contains("\nsandstorm_control_connections_limited_total 4\n"), "{text}");
    assert!(text.contains("\nsandstorm_control_crowded 4\n"), "{text}");

    let counters = WorkerCounters::default();
    counters.connections_refused[ConnectionReason::Unauthenticated as usize].add(2);
    let refused = readings(WorkerCounters::METRICS, counters.values());
    let of = |reason: &str| text::flat(&refused).find(|(name, _)| *name == format!("connections_refused.{reason}"));
    assert_eq!((of("unauthenticated").unwrap().1, of("stranger").unwrap().1), (2, 2));
    let groups = [text::LabelledReadings { labels: Vec::new(), readings: refused }];
    let text = text::prometheus(&groups, text::OldNames::Hidden);
    assert!(
        text.contains("reason=\"unauthenticated\"} 2\n") && !text.contains("reason=\"stranger\""),
        "sums count it once"
    );
}

#[test]
fn the_page_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, text::markdown_page()).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, text::markdown_page(), "docs/metrics.md is old: UPDATE_DOCS=1 cargo test -p sandstorm-metrics");
}

/// A file below docs/, which `UPDATE_DOCS` writes.
fn is_current(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, text, "docs/{name} is old: UPDATE_DOCS=1 cargo test -p sandstorm-metrics");
}

#[test]
fn the_files_for_prometheus_and_grafana_are_current() {
    is_current("monitoring/sandstorm.rules.yml", &alerts::rules_file());
    is_current("monitoring/sandstorm.rules.test.yml", &alerts::rules_test_file("sandstorm.rules.yml"));
    is_current("monitoring/README.md", &alerts::alerts_page());
    is_current("monitoring/grafana.json", &dashboard::dashboard_file());
}

/// Names of metrics in a text, without the prefix.
fn named_in(text: &str) -> Vec<&str> {
    let parts = text.split("sandstorm_").skip(1);
    parts
        .map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())])
        .collect()
}

#[test]
fn alerts_and_the_board_ask_for_metrics_that_there_are() {
    let all = text::SECTIONS.iter().flat_map(|(_, metrics)| metrics.iter());
    let names: Vec<String> = all.map(|metric| ConventionalName::of(metric).name).collect();
    let is_there = |name: &str| {
        names.iter().any(|known| known == name || name.strip_suffix("_bucket").is_some_and(|stem| known == stem))
    };
    for rule in alerts::ALERT_RULES {
        for name in named_in(rule.expression) {
            assert!(is_there(name), "{}: {name}", rule.name);
            let is_provoked = rule.provoked_by.iter().any(|(series, _)| named_in(series).contains(&name));
            assert!(is_provoked, "{}: nothing provokes {name}", rule.name);
        }
    }
    let board = dashboard::dashboard_file();
    let on_board = named_in(&board);
    for name in &on_board {
        assert!(is_there(name), "{name}");
    }
    let of_now = alerts::ALERT_RULES.iter().filter(|rule| rule.is_of_now()).count();
    assert!(of_now >= 8, "what a tenant does now is named within a minute: {of_now}");
    for rule in alerts::ALERT_RULES {
        assert!(!rule.why_so_long.is_empty(), "{} lasts for no reason", rule.name);
    }
    assert!(on_board.len() > 100 && alerts::ALERT_RULES.len() >= 20);
    let mut rules: Vec<&str> = alerts::ALERT_RULES.iter().map(|rule| rule.name).collect();
    rules.sort_unstable();
    rules.dedup();
    assert_eq!(rules.len(), alerts::ALERT_RULES.len());
}
