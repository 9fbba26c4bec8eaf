//! Alerts for Prometheus: the rules, and for each the series that make it fire. `docs/monitoring/` has the files that
//! are made of them; a test keeps these current, another has Prometheus' own tool evaluate them.

use std::fmt::Write;

/// How soon an operator has to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertSeverity {
    /// At once: requests fail, or records are at risk.
    Critical,
    /// Within a day.
    Warning,
}

impl AlertSeverity {
    /// Its name, the value of the label `severity`.
    pub fn name(self) -> &'static str {
        match self {
            AlertSeverity::Critical => "critical",
            AlertSeverity::Warning => "warning",
        }
    }
}

/// An alert.
#[derive(Clone, Copy, Debug)]
pub struct AlertRule {
    /// Its name.
    pub name: &'static str,
    /// Fires while this has a result …
    pub expression: &'static str,
    /// … for so many seconds.
    pub for_s: u32,
    /// Why for so long.
    pub why_so_long: &'static str,
    /// How soon an operator has to look.
    pub severity: AlertSeverity,
    /// What is wrong, in one sentence, with labels.
    pub summary: &'static str,
    /// What to do.
    pub advice: &'static str,
    /// A series that makes it fire, and its values, as `promtool test rules` writes them: a minute apart, or where
    /// [`AlertRule::is_of_now`] says so a scrape apart, and then with two minutes in which nothing is wrong before.
    pub provoked_by: &'static [(&'static str, &'static str)],
    /// Labels of the alert that these series make.
    pub labels: &'static [(&'static str, &'static str)],
    /// The value in the summary of that alert, as Prometheus writes it.
    pub shown_value: &'static str,
}

impl AlertRule {
    /// Whether it is about what a tenant does now, so that it is raised within a minute from then on.
    pub fn is_of_now(&self) -> bool {
        self.for_s <= OF_NOW_S
    }

    /// The summary of the alert that [`AlertRule::provoked_by`] makes.
    fn rendered_summary(&self) -> String {
        let mut text = self.summary.to_owned();
        for (label, value) in self.labels {
            text = text.replace(&format!("{{{{ $labels.{label} }}}}"), value);
        }
        // A filter behind the value is Prometheus' to apply: the table has what comes of it.
        while let (Some(from), Some(to)) = (text.find("{{ $value"), text.find("}}")) {
            text.replace_range(from..to + 2, self.shown_value);
        }
        text
    }
}

/// Seconds between two scrapes, and between two evaluations of the rules, for which the durations are made.
pub const SCRAPE_INTERVAL_S: u32 = 15;
/// Longest duration, in seconds, with which an alert is raised within a minute of its cause: a scrape sees it after
/// 15 s at most, and the rules are evaluated after 15 s more.
const OF_NOW_S: u32 = 30;
/// Seconds without anything wrong at the beginning of the tests of such alerts.
const QUIET_S: u32 = 120;

use AlertSeverity::{Critical, Warning};

/// Shorthand for the table below.
macro_rules! alerts {
    ($( $name:literal $severity:ident $for_s:literal $why:literal $expression:literal $summary:literal $advice:literal
        [$( $series:literal $values:literal ),*] [$( $label:literal $value:literal ),*] $shown:literal; )*) => {
        &[$( AlertRule {
            name: $name,
            expression: $expression,
            for_s: $for_s,
            why_so_long: $why,
            severity: $severity,
            summary: $summary,
            advice: $advice,
            provoked_by: &[$( ($series, $values) ),*],
            labels: &[$( ($label, $value) ),*],
            shown_value: $shown,
        } ),*]
    };
}

/// All alerts.
pub const ALERT_RULES: &[AlertRule] = alerts! {
    "SandstormDown" Critical 120 "a restart takes seconds, and a scrape may be lost" "up{job=\"sandstorm\"} == 0"
        "the server {{ $labels.instance }} does not answer"
        "see whether the process runs, and its log"
        ["up{job=\"sandstorm\",instance=\"a\"}" "0x30"] ["job" "sandstorm", "instance" "a"] "";
    "SandstormRestarts" Warning 60
        "three restarts in an hour are no chance, and nothing is lost by a minute"
        "resets(sandstorm_uptime_seconds[1h]) > 2"
        "the server {{ $labels.instance }} restarts again and again"
        "`sandstorm events --code server` says whether it stopped in order"
        ["sandstorm_uptime_seconds{instance=\"a\"}" "300 20 300 20 300 20 300 20 80+60x20"] ["instance" "a"] "";
    "SandstormWorkerSaturated" Warning 600
        "a worker may be busy for minutes with a load that ends, and nothing fails meanwhile"
        "rate(sandstorm_busy_seconds_total[5m]) > 0.95"
        "worker {{ $labels.worker }} of {{ $labels.instance }} has no time left"
        "move tenants to another home worker, or give the server more processors (`workers`)"
        ["sandstorm_busy_seconds_total{instance=\"a\",worker=\"0\"}" "0+60x40"] ["instance" "a", "worker" "0"] "";
    "SandstormRequestsSlow" Warning 600 "a build beside the workers, or a burst, slows requests for minutes and is over"
        "histogram_quantile(0.99, sum by (instance, class, le) \
         (rate(sandstorm_request_duration_seconds_bucket{class!=\"call\"}[5m]))) > 0.01"
        "one in a hundred requests ({{ $labels.class }}) takes {{ $value | humanizeDuration }} at {{ $labels.instance \
         }}"
        "`sandstorm stat latency` says whose, and whether they wait"
        ["sandstorm_request_duration_seconds_bucket{instance=\"a\",class=\"get\",le=\"0.004194304\"}" "0+10x40",
         "sandstorm_request_duration_seconds_bucket{instance=\"a\",class=\"get\",le=\"0.067108864\"}" "0+100x40",
         "sandstorm_request_duration_seconds_bucket{instance=\"a\",class=\"get\",le=\"+Inf\"}" "0+100x40"]
        ["instance" "a", "class" "get"] "66.41ms";
    "SandstormPacketsDropped" Warning 300
        "bursts are dropped and sent again within seconds: it is a fault where they do not end"
        "sum by (instance) (rate(sandstorm_packets_dropped_early_total[5m]) + rate(sandstorm_packets_shed_total[5m])) \
         > 100"
        "{{ $value | humanize }} packets a second are dropped at {{ $labels.instance }}"
        "`sandstorm top tenants --sort requests_per_s` shows who sends most; its quota requests_per_s bounds a \
         tenant, a larger receive buffer (net.core.rmem_max) helps against bursts"
        ["sandstorm_packets_dropped_early_total{instance=\"a\",worker=\"0\"}" "0+60000x40",
         "sandstorm_packets_shed_total{instance=\"a\",worker=\"0\"}" "0x40"] ["instance" "a"] "1k";
    "SandstormAnswersNotSent" Warning 300 "as with packets that are dropped"
        "sum by (instance) (rate(sandstorm_packets_unsent_total[5m])) > 10"
        "{{ $value | humanize }} answers a second find the socket of {{ $labels.instance }} full"
        "raise net.core.wmem_max, or see whether the network takes what is sent"
        ["sandstorm_packets_unsent_total{instance=\"a\",worker=\"0\"}" "0+6000x40"] ["instance" "a"] "100";
    "SandstormTenantThrottled" Warning 15 "what a tenant does now: two evaluations see it, so one burst raises nothing"
        "sandstorm_tenant_dropped_early_ratio > 0"
        "tenant {{ $labels.tenant }} sends more than it may: a part of its packets is dropped"
        "raise its quota requests_per_s, or have it send less"
        ["sandstorm_tenant_dropped_early_ratio{instance=\"a\",tenant=\"t\"}" "0x8 0.2x20"] ["instance" "a", "tenant"
        "t"] "";
    "SandstormTenantOverQuota" Warning 15 "as with one that is throttled"
        "rate(sandstorm_tenant_over_quota_total[1m]) > 1"
        "{{ $value | humanize }} operations a second of tenant {{ $labels.tenant }} are refused by a quota"
        "`sandstorm doctor --live` names the quota; `sandstorm tenant set NAME --quota` raises it"
        ["sandstorm_tenant_over_quota_total{instance=\"a\",tenant=\"t\"}" "0x8 150+150x20"] ["instance" "a", "tenant"
        "t"] "10";
    "SandstormTenantBesideNeighbours" Warning 120
        "what it says is of minutes already; two more show that it goes on, and no longer than its neighbours do"
        "sandstorm_tenant_isolation_ratio > 3 and sandstorm_tenant_beside_p99_seconds > 0.001"
        "requests ({{ $labels.class }}) of tenant {{ $labels.tenant }} take {{ $value | humanize }} times as long \
         beside its neighbours as without them"
        "`sandstorm top` shows who uses most of its worker: bound it by its weight or requests_per_s, or move one of \
         them (`sandstorm tenant set NAME --home NUMBER`)"
        ["sandstorm_tenant_isolation_ratio{instance=\"a\",tenant=\"t\",class=\"get\"}" "4x40",
         "sandstorm_tenant_beside_p99_seconds{instance=\"a\",tenant=\"t\",class=\"get\"}" "0.01x40"]
        ["instance" "a", "tenant" "t", "class" "get"] "4";
    "SandstormQuotaNearlyUsed" Warning 15 "what is nearly used may be used up within minutes; two evaluations see it"
        "sandstorm_tenant_quota_used_ratio > 0.9"
        "tenant {{ $labels.tenant }} has used {{ $value | humanizePercentage }} of its quota {{ $labels.quota }}"
        "`sandstorm tenant set NAME --quota` raises it"
        ["sandstorm_tenant_quota_used_ratio{instance=\"a\",tenant=\"t\",quota=\"tables\"}" "0.5x8 0.95x20"]
        ["instance" "a", "tenant" "t", "quota" "tables"] "95%";
    "SandstormExtensionKilled" Warning 15 "more than six kills in a minute are no chance; two evaluations see them"
        "rate(sandstorm_extension_calls_total{result=\"killed\"}[1m]) > 0.1"
        "calls of extension {{ $labels.extension }} of tenant {{ $labels.tenant }} are killed, {{ $value | humanize \
         }} a second"
        "`sandstorm kills --tenant NAME --extension NAME` says why"
        ["sandstorm_extension_calls_total{instance=\"a\",tenant=\"t\",extension=\"x\",result=\"killed\"}"
        "0x8 15+15x20"]
        ["instance" "a", "tenant" "t", "extension" "x", "result" "killed"] "1";
    "SandstormExtensionSuspended" Warning 0 "it is a decision, of the server or an operator, which does not flicker"
        "sandstorm_extension_suspended == 1"
        "calls of extension {{ $labels.extension }} of tenant {{ $labels.tenant }} are refused"
        "`sandstorm ext show` has the reason; `sandstorm ext resume` ends it"
        ["sandstorm_extension_suspended{instance=\"a\",tenant=\"t\",extension=\"x\"}" "0x8 1x20"]
        ["instance" "a", "tenant" "t", "extension" "x"] "";
    "SandstormExtensionSlowed" Warning 0 "it is the server's decision after many kills, which does not flicker"
        "sandstorm_extension_slowed == 1"
        "extension {{ $labels.extension }} of tenant {{ $labels.tenant }} keeps being killed, so its calls are bounded"
        "`sandstorm kills` says why; a new version ends it"
        ["sandstorm_extension_slowed{instance=\"a\",tenant=\"t\",extension=\"x\"}" "0x8 1x20"]
        ["instance" "a", "tenant" "t", "extension" "x"] "";
    "SandstormTableFull" Critical 15 "writes fail now; two evaluations see it"
        "rate(sandstorm_table_refusals_total[1m]) > 0"
        "table {{ $labels.table }} of tenant {{ $labels.tenant }} is full: writes are refused"
        "raise the tenant's memory_bytes, delete records, or make the table a cache"
        ["sandstorm_table_refusals_total{instance=\"a\",tenant=\"t\",table=\"x\"}" "0x8 15+15x20"]
        ["instance" "a", "tenant" "t", "table" "x"] "";
    "SandstormTableNearlyFull" Warning 15 "it may be full within minutes; two evaluations see it"
        "sandstorm_table_quota_used_ratio > 0.9"
        "table {{ $labels.table }} of tenant {{ $labels.tenant }} has used {{ $value | humanizePercentage }} of its \
         quota"
        "`sandstorm table set NAME --quota` raises it, within the tenant's memory_bytes; or delete records"
        ["sandstorm_table_quota_used_ratio{instance=\"a\",tenant=\"t\",table=\"x\"}" "0.5x8 0.95x20"]
        ["instance" "a", "tenant" "t", "table" "x"] "95%";
    "SandstormHotKey" Warning 30
        "a key may be asked for by one burst of clients; three evaluations see one that stays hot"
        "sandstorm_table_hot_key_ratio > 0.2 and sandstorm_table_hot_key_accesses_per_second > 1000"
        "one key of table {{ $labels.table }} of tenant {{ $labels.tenant }} takes {{ $value | humanizePercentage }} \
         of its accesses"
        "`sandstorm hot --tenant NAME` with the tenant's token shows the key: have its clients keep it for a while, or \
         divide it"
        ["sandstorm_table_hot_key_ratio{instance=\"a\",tenant=\"t\",table=\"x\"}" "0x8 0.5x20",
         "sandstorm_table_hot_key_accesses_per_second{instance=\"a\",tenant=\"t\",table=\"x\"}" "0x8 5000x20"]
        ["instance" "a", "tenant" "t", "table" "x"] "50%";
    "SandstormGarbageHeld" Warning 300 "one long call holds it for as long as its budget, and then it is freed"
        "sandstorm_garbage_bytes > 268435456"
        "{{ $value | humanize1024 }}B of replaced records wait for readers at {{ $labels.instance }}"
        "`sandstorm kills --cause crowded` names the extension that reads for long"
        ["sandstorm_garbage_bytes{instance=\"a\"}" "500000000x40"] ["instance" "a"] "476.8Mi";
    "SandstormOutOfMemory" Critical 0 "writes were refused although no quota was reached: once is too often"
        "delta(sandstorm_writes_without_memory[10m]) > 0"
        "the machine has no memory for writes at {{ $labels.instance }}"
        "lower the quotas memory_bytes, or give the machine more memory"
        ["sandstorm_writes_without_memory{instance=\"a\"}" "0x8 10+10x20"] ["instance" "a"] "";
    "SandstormBuildQueueLong" Warning 600 "a deployment of many extensions fills the queue for minutes"
        "sandstorm_builds_waiting > 8"
        "{{ $value }} pushes wait for the builder of {{ $labels.instance }}"
        "give the builder more processors, or a host of its own (docs/builder.md)"
        ["sandstorm_builds_waiting{instance=\"a\"}" "20x40"] ["instance" "a"] "20";
    "SandstormNoBuilder" Warning 600
        "a builder on another host restarts within minutes, and running code does not need it"
        "sandstorm_builder_ready == 0"
        "pushes of source are refused at {{ $labels.instance }}: there is no builder"
        "`sandstorm health` has the reason"
        ["sandstorm_builder_ready{instance=\"a\"}" "0x40"] ["instance" "a"] "";
    "SandstormLogFailed" Critical 0 "it does not end by itself" "sandstorm_log_failed == 1"
        "the log of records of {{ $labels.instance }} is closed: tables with durability take no writes"
        "see the server's log and the disk, then restart the server"
        ["sandstorm_log_failed{instance=\"a\"}" "0x8 1x20"] ["instance" "a"] "";
    "SandstormCopiesMissing" Critical 60 "a copy that is lost is replaced within seconds, if there is a server for it"
        "sandstorm_copies_stalled == 1"
        "no copy of the log of {{ $labels.instance }} confirms what is written: tables with copies take no writes"
        "`sandstorm cluster status` says what is wrong with its copies; start a server that can have one, or the NATS servers"
        ["sandstorm_copies_stalled{instance=\"a\"}" "1x40"] ["instance" "a"] "";
    "SandstormCopiesFewer" Warning 600 "a large log takes minutes to be copied anew"
        "sandstorm_copies_confirmed < sandstorm_copies_wanted"
        "the log of {{ $labels.instance }} has fewer copies than are wanted"
        "`sandstorm cluster status` shows which servers have one, and which are silent"
        ["sandstorm_copies_confirmed{instance=\"a\"}" "1x40",
            "sandstorm_copies_wanted{instance=\"a\"}" "2x40"] ["instance" "a"] "";
    "SandstormCopyDamaged" Warning 0 "its owner makes another copy by itself, but a disk that changes bytes goes on so"
        "sandstorm_copies_damaged > 0"
        "the disk of {{ $labels.instance }} has damaged the copy of another server's log"
        "look at that disk, and replace it: `sandstorm cluster status` there names file and byte"
        ["sandstorm_copies_damaged{instance=\"a\"}" "0x8 1x20"] ["instance" "a"] "";
    "SandstormLogDamaged" Critical 120 "a checkpoint takes the place of what is damaged within a minute or two"
        "sandstorm_log_damaged == 1"
        "the disk of {{ $labels.instance }} has damaged its log, and no checkpoint has taken its place: a start would fail"
        "do not restart it: give its disk room, look at its log, then `sandstorm log scrub`, and replace the disk"
        ["sandstorm_log_damaged{instance=\"a\"}" "0x8 1x20"] ["instance" "a"] "";
    "SandstormServerWithoutSuccessor" Critical 30
        "a server that is restarted is back within seconds, and one that is gone has a successor before"
        "sandstorm_servers_without_successor > 0"
        "a server of the cluster of {{ $labels.instance }} is gone, and nothing takes its place"
        "`sandstorm cluster status` there says why: start the server again, or `sandstorm cluster fail-over`"
        ["sandstorm_servers_without_successor{instance=\"a\"}" "0x8 1x20"] ["instance" "a"] "";
    "SandstormClusterUnreadable" Critical 60 "an election of etcd takes seconds, and so does a restart of a member"
        "sandstorm_cluster_unreadable == 1"
        "{{ $labels.instance }} cannot read the state of its cluster: it serves what it owns, and changes of owners, \
         tenants and tables wait"
        "`sandstorm cluster status` there has the reason: see to etcd, and to the network between the two"
        ["sandstorm_cluster_unreadable{instance=\"a\"}" "0x8 1x20"] ["instance" "a"] "";
    "SandstormChangesRefused" Critical 60 "the server tries again by itself: a full disk may be over within a minute"
        "sandstorm_changes_refused == 1"
        "{{ $labels.instance }} cannot write changes of tenants, tables and tokens to its disk"
        "free space where the state directory is; `sandstorm health` has the reason"
        ["sandstorm_changes_refused{instance=\"a\"}" "1x40"] ["instance" "a"] "";
    "SandstormWatchdogLate" Warning 600
        "another program's burst makes it late for minutes; calls are ended all the same, only later"
        "rate(sandstorm_watchdog_late_total[5m]) > 10"
        "slices at {{ $labels.instance }} end late, {{ $value | humanize }} times a second: other programs use its \
         processors"
        "leave the server a processor more than it has workers, and grant it real-time priority (CAP_SYS_NICE)"
        ["sandstorm_watchdog_late_total{instance=\"a\"}" "0+6000x40"] ["instance" "a"] "100";
    "SandstormWrongTokens" Warning 300
        "a program with a token that was revoked just now stops or is stopped within minutes"
        "rate(sandstorm_control_wrong_tokens_total[5m]) > 0.2"
        "a client presents wrong tokens to the control port of {{ $labels.instance }}, {{ $value | humanize }} a second"
        "the server's log has the address"
        ["sandstorm_control_wrong_tokens_total{instance=\"a\"}" "0+60x40"] ["instance" "a"] "1";
    "SandstormRetransmissions" Warning 600
        "a network heals by itself within minutes, and clients wait no longer than a retransmission"
        "sum by (instance) (rate(sandstorm_retransmissions_total[5m])) > 0.02 * sum by (instance) \
         (rate(sandstorm_packets_sent_total[5m]))"
        "more than one packet in 50 is sent again by {{ $labels.instance }}"
        "see the network for loss, and the clients for processors that are too busy"
        ["sandstorm_retransmissions_total{instance=\"a\",worker=\"0\"}" "0+600x40",
         "sandstorm_packets_sent_total{instance=\"a\",worker=\"0\"}" "0+6000x40"] ["instance" "a"] "";
};

/// The file of rules.
pub fn rules_file() -> String {
    let mut text = String::from(
        "# Alerts of Sandstorm, made from db/metrics/src/alerts.rs (UPDATE_DOCS=1 cargo test -p sandstorm-metrics).\n\
         groups:\n  - name: sandstorm\n    rules:\n",
    );
    for rule in ALERT_RULES {
        let severity = rule.severity.name();
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "      - alert: {}\n        expr: {}\n        for: {}\n        labels:\n          severity: {severity}\n\
             \x20       annotations:\n          summary: {}\n          description: {}\n",
            rule.name,
            quoted(rule.expression),
            duration(rule.for_s),
            quoted(rule.summary),
            quoted(rule.advice)
        );
    }
    text
}

/// The file with a test of each rule, for `promtool test rules`: it fires with its series, those of now within a minute
/// and not before anything is wrong.
pub fn rules_test_file(rules: &str) -> String {
    let mut text = format!(
        "# Tests of the alerts, made from db/metrics/src/alerts.rs (UPDATE_DOCS=1 cargo test -p sandstorm-metrics).\n\
         rule_files:\n  - {rules}\nevaluation_interval: {SCRAPE_INTERVAL_S}s\ntests:\n"
    );
    for rule in ALERT_RULES {
        let interval = if rule.is_of_now() { duration(SCRAPE_INTERVAL_S) } else { duration(60) };
        // Writing to a String does not fail.
        let _ = writeln!(text, "  - interval: {interval}\n    input_series:");
        for (series, values) in rule.provoked_by {
            let _ = writeln!(text, "      - series: {}\n        values: {}", quoted(series), quoted(values));
        }
        text.push_str("    alert_rule_test:\n");
        let fires_at = match rule.is_of_now() {
            true => {
                let quiet = duration(QUIET_S);
                let _ = writeln!(
                    text,
                    "      - eval_time: {quiet}\n        alertname: {}\n        exp_alerts: []",
                    rule.name
                );
                duration(QUIET_S + 60)
            }
            false => duration(25 * 60),
        };
        expect_alert(&mut text, rule, &fires_at);
    }
    text
}

/// Writes that the alert of a rule is raised by then.
fn expect_alert(text: &mut String, rule: &AlertRule, fires_at: &str) {
    // Writing to a String does not fail.
    let _ = write!(
        text,
        "      - eval_time: {fires_at}\n        alertname: {}\n        exp_alerts:\n          - exp_labels:\n\
         \x20             severity: {}\n",
        rule.name,
        rule.severity.name()
    );
    for (label, value) in rule.labels {
        let _ = writeln!(text, "              {label}: {}", quoted(value));
    }
    let _ = write!(text, "            exp_annotations:\n              summary: {}\n", quoted(&rule.rendered_summary()));
    let _ = writeln!(text, "              description: {}", quoted(rule.advice));
}

/// The page about the alerts, and why each has to last for as long as it does before it is raised.
pub fn alerts_page() -> String {
    let mut text = format!(
        "# Alerts\n\n\
         Made from `db/metrics/src/alerts.rs` (`UPDATE_DOCS=1 cargo test -p sandstorm-metrics` rewrites it). \
         [The rules](sandstorm.rules.yml), [a test of each](sandstorm.rules.test.yml) (`promtool test rules`), \
         [a board for Grafana](grafana.json).\n\n\
         The durations are made for `scrape_interval` and `evaluation_interval` of {SCRAPE_INTERVAL_S} s, so that what \
         a tenant does now is named within a minute: seen by the next scrape, by the next evaluation, and, where one \
         evaluation could be of a burst, by another one. The tests of these alerts begin with two minutes in which \
         nothing is wrong, and expect the alert a minute later. (Prometheus' own default is a minute for \
         either: with that it is up to three.)\n\n\
         | alert | severity | it lasts for | why so long |\n|---|---|---|---|\n"
    );
    for rule in ALERT_RULES {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            rule.name,
            rule.severity.name(),
            duration(rule.for_s),
            rule.why_so_long
        );
    }
    text
}

/// A duration as Prometheus writes it.
fn duration(seconds: u32) -> String {
    if seconds > 0 && seconds.is_multiple_of(60) { format!("{}m", seconds / 60) } else { format!("{seconds}s") }
}

/// A text in YAML.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
