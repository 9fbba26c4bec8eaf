//! Each finding is provoked by numbers, and by nothing else.

use super::reading::{ExtensionState, HotTableKey, LiveReading, MachineState, TableLoad, TenantPressure};
use super::rules;
use crate::admin::finding::FindingSeverity;
use crate::isolation::IsolationReading;

/// A server with which nothing is wrong.
fn healthy() -> LiveReading {
    LiveReading {
        seconds: 10.0,
        busy: vec![0.5, 0.2],
        keeps_changes: true,
        build_places: 64,
        tenants: vec![TenantPressure {
            name: "a".into(),
            quotas: vec![("tables", 3, 64), ("extensions", 0, 0)],
            ..TenantPressure::default()
        }],
        extensions: vec![ExtensionState { tenant: "a".into(), name: "x".into(), ..ExtensionState::default() }],
        tables: vec![TableLoad {
            tenant: "a".into(),
            name: "t".into(),
            records: 10,
            slots: 64,
            ..TableLoad::default()
        }],
        ends: vec![("The control port's certificate".into(), 86_400 * 365)],
        machine: MachineState {
            huge_pages: "madvise".into(),
            memory_bytes: 100 << 30,
            available_bytes: 50 << 30,
            open_files: 10,
            open_files_max: 1_024,
            disk_free_bytes: 50 << 30,
            disk_bytes: 100 << 30,
        },
        ..LiveReading::default()
    }
}

fn codes(reading: &LiveReading) -> Vec<&'static str> {
    rules::findings(reading).iter().map(|finding| finding.code).collect()
}

/// What is changed, and the one finding that this makes.
type FindingProvocation = (&'static str, fn(&mut LiveReading));

fn grow(reading: &mut LiveReading, name: &str, by: u64) {
    reading.growth.insert(name.to_owned(), by);
}

fn set(reading: &mut LiveReading, name: &str, to: u64) {
    reading.now.insert(name.to_owned(), to);
}

const PROVOCATIONS: &[FindingProvocation] = &[
    ("changes_refused", |reading| reading.changes_refused = Some("no space left".into())),
    ("log_failed", |reading| reading.log_failure = Some("input/output error".into())),
    ("log_stalled", |reading| set(reading, "log_pending_bytes", 100 << 20)),
    ("log_damaged", |reading| set(reading, "log_damaged", 1)),
    ("copy_damaged", |reading| set(reading, "copies_damaged", 2)),
    ("copies_missing", |reading| set(reading, "copies_stalled", 1)),
    ("cluster_unreadable", |reading| set(reading, "cluster_unreadable", 1)),
    ("server_without_successor", |reading| set(reading, "servers_without_successor", 1)),
    ("checkpoint_late", |reading| set(reading, "log_bytes_since_checkpoint", 1 << 30)),
    ("disk_nearly_full", |reading| reading.machine.disk_free_bytes = 1 << 30),
    ("ephemeral", |reading| reading.keeps_changes = false),
    ("quota_nearly_used", |reading| reading.tenants[0].quotas[0].1 = 60),
    ("tenant_throttled", |reading| reading.tenants[0].dropped_early_per_mille = 120),
    ("tenant_over_quota", |reading| reading.tenants[0].over_quota = 100),
    ("tenant_beside_neighbours", |reading| {
        reading.tenants[0].isolation = Some(IsolationReading {
            tenant: 1,
            class: 0,
            quiet_p99_ns: 500_000,
            beside_p99_ns: 2_000_000,
            own_per_mille: 200,
        });
    }),
    ("hot_key", |reading| {
        let (tenant, table) = ("a".to_owned(), "t".to_owned());
        reading.hot_keys = vec![HotTableKey { tenant, table, share: 0.4, per_s: 9_000.0, ..HotTableKey::default() }];
    }),
    ("table_full", |reading| reading.tables[0].refusals = 5),
    ("table_nearly_full", |reading| (reading.tables[0].used_per_mille, reading.tables[0].quota_bytes) = (910, 100)),
    ("extension_killed", |reading| {
        (reading.extensions[0].killed, reading.extensions[0].cause) = (20, "total_budget");
    }),
    ("extension_suspended", |reading| reading.extensions[0].suspended = Some("by the operator".into())),
    ("extension_slowed", |reading| reading.extensions[0].slowed_to_per_s = 10),
    ("calls_crowded", |reading| grow(reading, "invocations_killed.crowded", 50)),
    ("worker_saturated", |reading| reading.busy[1] = 0.99),
    ("watchdog_late", |reading| grow(reading, "watchdog_late", 500)),
    ("calls_crowd_workers", |reading| set(reading, "invocations_live", 3_000)),
    ("clock_stepped", |reading| reading.clock_step_ms = -5_000),
    ("packets_dropped", |reading| grow(reading, "packets_dropped_early", 1_000)),
    ("packets_unsent", |reading| grow(reading, "packets_unsent", 1_000)),
    ("retransmissions", |reading| {
        grow(reading, "retransmissions", 1_000);
        grow(reading, "packets_out", 10_000);
    }),
    ("device_link_down", |reading| set(reading, "device_link_up", 0)),
    ("no_builder", |reading| reading.no_builder = Some("no rustc".into())),
    ("build_queue_full", |reading| set(reading, "builds_waiting", 40)),
    ("garbage_held", |reading| reading.tables[0].garbage_bytes = 200 << 20),
    ("table_chains", |reading| reading.tables[0].records = 200),
    ("out_of_memory", |reading| grow(reading, "writes_without_memory", 3)),
    ("memory_low", |reading| reading.machine.available_bytes = 1 << 30),
    ("huge_pages_off", |reading| {
        reading.machine.huge_pages = "never".into();
        set(reading, "record_bytes", 8 << 30);
    }),
    ("files_nearly_used", |reading| reading.machine.open_files = 1_000),
    ("ends_soon", |reading| reading.ends[0].1 = 86_400),
    ("wrong_tokens", |reading| grow(reading, "control_wrong_tokens", 10)),
    ("control_crowded", |reading| grow(reading, "control_shed", 100)),
];

#[test]
fn a_healthy_server_has_no_findings() {
    assert_eq!(codes(&healthy()), [""; 0]);
}

#[test]
fn each_finding_is_made_by_its_numbers_alone_and_says_what_to_do() {
    for (code, provoke) in PROVOCATIONS {
        let mut reading = healthy();
        provoke(&mut reading);
        let found = rules::findings(&reading);
        assert_eq!(found.iter().map(|finding| finding.code).collect::<Vec<_>>(), [*code]);
        let finding = &found[0];
        let is_sentence = |text: &str| text.ends_with(['.', ')']) && text.len() > 10;
        assert!(is_sentence(&finding.title) && is_sentence(&finding.text) && !finding.advice.is_empty(), "{finding:?}");
    }
    assert!(PROVOCATIONS.len() >= 30);
}

#[test]
fn the_page_lists_the_findings() {
    let page = include_str!("../../../../../docs/operations.md");
    let listed: Vec<&str> = page
        .split("<!-- findings -->")
        .nth(1)
        .expect("a list")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(code, _)| code))
        .collect();
    let known: Vec<&str> = PROVOCATIONS.iter().map(|(code, _)| *code).collect();
    assert_eq!(listed, known);
}

#[test]
fn findings_name_the_table_the_tenant_and_the_quota() {
    let mut reading = healthy();
    let quiet = TenantPressure { name: "quiet".into(), requests: 10, ..TenantPressure::default() };
    let flood = TenantPressure { name: "flood".into(), requests: 5_000_000, ..TenantPressure::default() };
    reading.tenants.extend([quiet, flood]);
    let table = &mut reading.tables[0];
    (table.bytes, table.quota_bytes, table.used_per_mille) = (91 << 20, 100 << 20, 910);
    (reading.tenants[0].over_quota, reading.tenants[0].over_rate) = (14_690, 14_690);
    reading.tenants[0].requests_per_s = 1_000;
    grow(&mut reading, "packets_dropped_early", 1_000);
    let said = |reading: &LiveReading, code: &str| {
        let found = rules::findings(reading).into_iter().find(|finding| finding.code == code).expect("a finding");
        format!("{} {}", found.text, found.advice)
    };
    for (code, words) in [
        ("table_nearly_full", ["a/t has 91 MiB of its quota of 100 MiB (91 %)", "table set t --tenant a --quota"]),
        ("tenant_over_quota", ["1469 operations a second of a", "its quota requests_per_s (1000)"]),
        (
            "packets_dropped",
            ["flood sends most: 500000 operations a second", "tenant set flood --quota requests_per_s="],
        ),
    ] {
        let said = said(&reading, code);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    // Calls are refused by other quotas.
    reading.tenants[0].over_rate = 10;
    reading.tenants[0].quotas.push(("concurrent_invocations", 64, 200));
    assert!(said(&reading, "tenant_over_quota").contains("a quota of its calls: concurrent_invocations (200)"));
}

#[test]
fn texts_say_one_of_one_and_name_several() {
    let said = |change: fn(&mut LiveReading)| {
        let mut reading = healthy();
        change(&mut reading);
        rules::findings(&reading).pop().map(|finding| finding.text).expect("a finding")
    };
    assert!(said(|reading| reading.tables[0].refusals = 1).starts_with("One write to a/t was refused in 10 s"));
    assert!(said(|reading| reading.tables[0].refusals = 2).starts_with("2 writes to a/t were refused in 10 s"));
    assert!(said(|reading| reading.extensions[0].slowed_to_per_s = 1).contains("may be called once a second"));
    assert!(said(|reading| reading.extensions[0].slowed_to_per_s = 9).contains("may be called 9 times a second"));
    let killed = said(|reading| (reading.extensions[0].killed, reading.extensions[0].cause) = (20, "total_budget"));
    assert_eq!(killed, "120 calls of a/x are killed each minute, most because of total_budget.");
}

#[test]
fn neighbours_are_named_where_they_cost_much_and_not_where_no_client_notices() {
    let found = |quiet_p99_ns, beside_p99_ns, own_per_mille, workers| {
        let mut reading = LiveReading { busy: vec![0.5; workers], ..healthy() };
        let found = IsolationReading { tenant: 1, class: 3, quiet_p99_ns, beside_p99_ns, own_per_mille };
        reading.tenants[0].isolation = Some(found);
        rules::findings(&reading).pop()
    };
    let beside = |quiet, beside| found(quiet, beside, 100, 2).map(|finding| finding.text);
    let said = beside(1_000_000, 4_500_000).expect("a finding");
    assert!(said.contains("of a (call)") && said.contains("4.50 ms") && said.contains("4.5 times"), "{said}");
    assert_eq!(beside(1_000_000, 2_900_000), None, "less than three times as long");
    assert_eq!(beside(10_000, 900_000), None, "less than a millisecond");
    assert!(found(1_000_000, 4_500_000, 500, 2).is_some(), "it has no more than the others");
    assert!(found(1_000_000, 4_500_000, 501, 2).is_none(), "it has most of the worker itself: it is no victim");
    let advice = |workers| found(1_000_000, 4_500_000, 100, workers).expect("a finding").advice;
    assert!(advice(1).contains("`sandstorm top --sort requests_per_s`") && !advice(1).contains("--home"));
    assert!(advice(2).contains("`sandstorm tenant set a --home NUMBER`"), "{}", advice(2));
}

#[test]
fn a_hot_key_is_told_by_its_share_where_the_table_is_busy() {
    let hot = |share: f64, per_s: f64| {
        let (tenant, table, key_digest) = ("a".to_owned(), "t".to_owned(), "00ff".to_owned());
        let hot_keys = vec![HotTableKey { tenant, table, key_digest, share, per_s }];
        rules::findings(&LiveReading { hot_keys, ..healthy() }).pop().map(|finding| finding.text)
    };
    assert_eq!(
        hot(0.413, 12_345.0).expect("a finding"),
        "One key of table t of tenant a takes 41 % of its requests, 12345 a second (#00ff)."
    );
    assert_eq!((hot(0.9, 10.0), hot(0.1, 50_000.0)), (None, None), "few requests, or a small part");
}

#[test]
fn a_thousand_of_a_kind_are_a_few_lines_and_the_worst_come_first() {
    let mut reading = healthy();
    let tenant = |number: u64| TenantPressure {
        name: format!("t{number}"),
        dropped_early_per_mille: number,
        ..TenantPressure::default()
    };
    reading.tenants = (1..=1_000).map(tenant).collect();
    reading.changes_refused = Some("no space left".into());
    let found = rules::findings(&reading);
    assert_eq!(found.len(), 6);
    assert_eq!((found[0].code, found[0].severity), ("changes_refused", FindingSeverity::Bad));
    assert!(found[1].text.contains("t1000") && found[5].text.contains("995 more"), "{found:?}");
}

#[test]
fn nothing_is_divided_by_no_time() {
    let mut reading = LiveReading { seconds: 0.0, ..healthy() };
    for (_, provoke) in PROVOCATIONS {
        provoke(&mut reading);
    }
    for finding in rules::findings(&reading) {
        assert!(!finding.text.contains("NaN") && !finding.text.contains("inf"), "{finding:?}");
    }
}
