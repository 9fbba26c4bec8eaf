//! Alerts for Prometheus: the rules, and for each the series that make it fire. `docs/monitoring/` has the files that
//! are made of them; a test keeps these current, another has Prometheus' own tool evaluate them.

use std::fmt::Write;

/// How soon somebody has to look.
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
    /// … for so many minutes.
    pub for_minutes: u32,
    /// How soon somebody has to look.
    pub severity: AlertSeverity,
    /// What is wrong, in one sentence, with labels.
    pub summary: &'static str,
    /// What to do.
    pub advice: &'static str,
    /// A series that makes it fire, and its values a minute apart, as `promtool test rules` writes them.
    pub provoked_by: &'static [(&'static str, &'static str)],
    /// Labels of the alert that these series make.
    pub labels: &'static [(&'static str, &'static str)],
    /// The value in the summary of that alert, as Prometheus writes it.
    pub shown_value: &'static str,
}

impl AlertRule {
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

use AlertSeverity::{Critical, Warning};

/// Shorthand for the table below.
macro_rules! alerts {
    ($( $name:literal $severity:ident $minutes:literal $expression:literal $summary:literal $advice:literal
        [$( $series:literal $values:literal ),*] [$( $label:literal $value:literal ),*] $shown:literal; )*) => {
        &[$( AlertRule {
            name: $name,
            expression: $expression,
            for_minutes: $minutes,
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
    "SandstormDown" Critical 2 "up{job=\"sandstorm\"} == 0"
        "the server {{ $labels.instance }} does not answer"
        "see whether the process runs, and its log"
        ["up{job=\"sandstorm\",instance=\"a\"}" "0x30"] ["job" "sandstorm", "instance" "a"] "";
    "SandstormRestarts" Warning 1 "resets(sandstorm_uptime_seconds[1h]) > 2"
        "the server {{ $labels.instance }} restarts again and again"
        "`sandstorm events --code server` says whether it stopped in order"
        ["sandstorm_uptime_seconds{instance=\"a\"}" "300 20 300 20 300 20 300 20 80+60x20"] ["instance" "a"] "";
    "SandstormWorkerSaturated" Warning 10 "rate(sandstorm_busy_seconds_total[5m]) > 0.95"
        "worker {{ $labels.worker }} of {{ $labels.instance }} has no time left"
        "move tenants to another home worker, or give the server more processors (`workers`)"
        ["sandstorm_busy_seconds_total{instance=\"a\",worker=\"0\"}" "0+60x40"] ["instance" "a", "worker" "0"] "";
    "SandstormRequestsSlow" Warning 10
        "histogram_quantile(0.99, sum by (instance, class, le) (rate(sandstorm_request_duration_seconds_bucket{class!=\"call\"}[5m]))) > 0.01"
        "one in a hundred requests ({{ $labels.class }}) takes {{ $value | humanizeDuration }} at {{ $labels.instance }}"
        "`sandstorm stat latency` says whose, and whether they wait"
        ["sandstorm_request_duration_seconds_bucket{instance=\"a\",class=\"get\",le=\"0.004194304\"}" "0+10x40",
         "sandstorm_request_duration_seconds_bucket{instance=\"a\",class=\"get\",le=\"0.067108864\"}" "0+100x40",
         "sandstorm_request_duration_seconds_bucket{instance=\"a\",class=\"get\",le=\"+Inf\"}" "0+100x40"]
        ["instance" "a", "class" "get"] "66.41ms";
    "SandstormPacketsDropped" Warning 5
        "sum by (instance) (rate(sandstorm_packets_dropped_early_total[5m]) + rate(sandstorm_packets_shed_total[5m])) > 100"
        "{{ $value | humanize }} packets a second are dropped at {{ $labels.instance }}"
        "`sandstorm top tenants --sort requests_per_s` shows who sends most; its quota requests_per_s bounds a tenant, a larger receive buffer (net.core.rmem_max) helps against bursts"
        ["sandstorm_packets_dropped_early_total{instance=\"a\",worker=\"0\"}" "0+60000x40",
         "sandstorm_packets_shed_total{instance=\"a\",worker=\"0\"}" "0x40"] ["instance" "a"] "1k";
    "SandstormAnswersNotSent" Warning 5 "sum by (instance) (rate(sandstorm_packets_unsent_total[5m])) > 10"
        "{{ $value | humanize }} answers a second find the socket of {{ $labels.instance }} full"
        "raise net.core.wmem_max, or see whether the network takes what is sent"
        ["sandstorm_packets_unsent_total{instance=\"a\",worker=\"0\"}" "0+6000x40"] ["instance" "a"] "100";
    "SandstormTenantThrottled" Warning 5 "sandstorm_tenant_dropped_early_ratio > 0"
        "tenant {{ $labels.tenant }} sends more than it may: a part of its packets is dropped"
        "raise its quota requests_per_s, or have it send less"
        ["sandstorm_tenant_dropped_early_ratio{instance=\"a\",tenant=\"t\"}" "0.2x40"] ["instance" "a", "tenant" "t"] "";
    "SandstormTenantOverQuota" Warning 10 "rate(sandstorm_tenant_over_quota_total[5m]) > 1"
        "{{ $value | humanize }} operations a second of tenant {{ $labels.tenant }} are refused by a quota"
        "`sandstorm doctor --live` names the quota; `sandstorm tenant set NAME --quota` raises it"
        ["sandstorm_tenant_over_quota_total{instance=\"a\",tenant=\"t\"}" "0+600x40"] ["instance" "a", "tenant" "t"] "10";
    "SandstormQuotaNearlyUsed" Warning 10 "sandstorm_tenant_quota_used_ratio > 0.9"
        "tenant {{ $labels.tenant }} has used {{ $value | humanizePercentage }} of its quota {{ $labels.quota }}"
        "`sandstorm tenant set NAME --quota` raises it"
        ["sandstorm_tenant_quota_used_ratio{instance=\"a\",tenant=\"t\",quota=\"tables\"}" "0.95x40"]
        ["instance" "a", "tenant" "t", "quota" "tables"] "95%";
    "SandstormExtensionKilled" Warning 5 "rate(sandstorm_extension_calls_total{result=\"killed\"}[5m]) > 0.1"
        "calls of extension {{ $labels.extension }} of tenant {{ $labels.tenant }} are killed, {{ $value | humanize }} a second"
        "`sandstorm kills --tenant NAME --extension NAME` says why"
        ["sandstorm_extension_calls_total{instance=\"a\",tenant=\"t\",extension=\"x\",result=\"killed\"}" "0+60x40"]
        ["instance" "a", "tenant" "t", "extension" "x", "result" "killed"] "1";
    "SandstormExtensionSuspended" Warning 1 "sandstorm_extension_suspended == 1"
        "calls of extension {{ $labels.extension }} of tenant {{ $labels.tenant }} are refused"
        "`sandstorm ext show` has the reason; `sandstorm ext resume` ends it"
        ["sandstorm_extension_suspended{instance=\"a\",tenant=\"t\",extension=\"x\"}" "1x40"]
        ["instance" "a", "tenant" "t", "extension" "x"] "";
    "SandstormExtensionSlowed" Warning 5 "sandstorm_extension_slowed == 1"
        "extension {{ $labels.extension }} of tenant {{ $labels.tenant }} keeps being killed, so its calls are bounded"
        "`sandstorm kills` says why; a new version ends it"
        ["sandstorm_extension_slowed{instance=\"a\",tenant=\"t\",extension=\"x\"}" "1x40"]
        ["instance" "a", "tenant" "t", "extension" "x"] "";
    "SandstormTableFull" Critical 5 "rate(sandstorm_table_refusals_total[5m]) > 0"
        "table {{ $labels.table }} of tenant {{ $labels.tenant }} is full: writes are refused"
        "raise the tenant's memory_bytes, delete records, or make the table a cache"
        ["sandstorm_table_refusals_total{instance=\"a\",tenant=\"t\",table=\"x\"}" "0+60x40"]
        ["instance" "a", "tenant" "t", "table" "x"] "";
    "SandstormTableNearlyFull" Warning 10 "sandstorm_table_quota_used_ratio > 0.9"
        "table {{ $labels.table }} of tenant {{ $labels.tenant }} has used {{ $value | humanizePercentage }} of its quota"
        "`sandstorm table set NAME --quota` raises it, within the tenant's memory_bytes; or delete records"
        ["sandstorm_table_quota_used_ratio{instance=\"a\",tenant=\"t\",table=\"x\"}" "0.95x40"]
        ["instance" "a", "tenant" "t", "table" "x"] "95%";
    "SandstormGarbageHeld" Warning 5 "sandstorm_garbage_bytes > 268435456"
        "{{ $value | humanize1024 }}B of replaced records wait for readers at {{ $labels.instance }}"
        "`sandstorm kills --cause crowded` names the extension that reads for long"
        ["sandstorm_garbage_bytes{instance=\"a\"}" "500000000x40"] ["instance" "a"] "476.8Mi";
    "SandstormOutOfMemory" Critical 0 "delta(sandstorm_writes_without_memory[10m]) > 0"
        "the machine has no memory for writes at {{ $labels.instance }}"
        "lower the quotas memory_bytes, or give the machine more memory"
        ["sandstorm_writes_without_memory{instance=\"a\"}" "0x20 0+10x20"] ["instance" "a"] "";
    "SandstormBuildQueueLong" Warning 10 "sandstorm_builds_waiting > 8"
        "{{ $value }} pushes wait for the builder of {{ $labels.instance }}"
        "give the builder more processors, or a host of its own (docs/builder.md)"
        ["sandstorm_builds_waiting{instance=\"a\"}" "20x40"] ["instance" "a"] "20";
    "SandstormNoBuilder" Warning 10 "sandstorm_builder_ready == 0"
        "pushes of source are refused at {{ $labels.instance }}: there is no builder"
        "`sandstorm health` has the reason"
        ["sandstorm_builder_ready{instance=\"a\"}" "0x40"] ["instance" "a"] "";
    "SandstormLogFailed" Critical 0 "sandstorm_log_failed == 1"
        "the log of records of {{ $labels.instance }} is closed: tables with durability take no writes"
        "see the server's log and the disk, then restart the server"
        ["sandstorm_log_failed{instance=\"a\"}" "1x40"] ["instance" "a"] "";
    "SandstormChangesRefused" Critical 1 "sandstorm_changes_refused == 1"
        "{{ $labels.instance }} cannot write changes of tenants, tables and tokens to its disk"
        "free space where the state directory is; `sandstorm health` has the reason"
        ["sandstorm_changes_refused{instance=\"a\"}" "1x40"] ["instance" "a"] "";
    "SandstormWatchdogLate" Warning 10 "rate(sandstorm_watchdog_late_total[5m]) > 10"
        "slices at {{ $labels.instance }} end late, {{ $value | humanize }} times a second: other programs use its processors"
        "leave the server a processor more than it has workers, and grant it real-time priority (CAP_SYS_NICE)"
        ["sandstorm_watchdog_late_total{instance=\"a\"}" "0+6000x40"] ["instance" "a"] "100";
    "SandstormWrongTokens" Warning 5 "rate(sandstorm_control_wrong_tokens_total[5m]) > 0.2"
        "somebody presents wrong tokens to the control port of {{ $labels.instance }}, {{ $value | humanize }} a second"
        "the server's log has the address"
        ["sandstorm_control_wrong_tokens_total{instance=\"a\"}" "0+60x40"] ["instance" "a"] "1";
    "SandstormRetransmissions" Warning 10
        "sum by (instance) (rate(sandstorm_retransmissions_total[5m])) > 0.02 * sum by (instance) (rate(sandstorm_packets_sent_total[5m]))"
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
            "      - alert: {}\n        expr: {}\n        for: {}m\n        labels:\n          severity: {severity}\n        \
             annotations:\n          summary: {}\n          description: {}\n",
            rule.name,
            quoted(rule.expression),
            rule.for_minutes,
            quoted(rule.summary),
            quoted(rule.advice)
        );
    }
    text
}

/// The file with a test of each rule, for `promtool test rules`: it fires with its series, and does not before.
pub fn rules_test_file(rules: &str) -> String {
    let mut text = format!(
        "# Tests of the alerts, made from db/metrics/src/alerts.rs (UPDATE_DOCS=1 cargo test -p sandstorm-metrics).\n\
         rule_files:\n  - {rules}\nevaluation_interval: 1m\ntests:\n"
    );
    for rule in ALERT_RULES {
        text.push_str("  - interval: 1m\n    input_series:\n");
        for (series, values) in rule.provoked_by {
            let _ = writeln!(text, "      - series: {}\n        values: {}", quoted(series), quoted(values));
        }
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "    alert_rule_test:\n      - eval_time: 25m\n        alertname: {}\n        exp_alerts:\n          - exp_labels:\n              \
             severity: {}\n",
            rule.name,
            rule.severity.name()
        );
        for (label, value) in rule.labels {
            let _ = writeln!(text, "              {label}: {}", quoted(value));
        }
        let _ =
            write!(text, "            exp_annotations:\n              summary: {}\n", quoted(&rule.rendered_summary()));
        let _ = writeln!(text, "              description: {}", quoted(rule.advice));
    }
    text
}

/// A text in YAML.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
