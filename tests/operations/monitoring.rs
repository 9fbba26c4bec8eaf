//! Promise: what the server tells Prometheus follows its conventions, and its alerts fire. By Prometheus' own programs,
//! where Debian's package `prometheus` is installed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::http::{get, has_program};
use crate::common::process::Server;
use crate::common::{eventually, root};
use sandstorm_metrics::alerts::ALERT_RULES;

fn rules_folder() -> PathBuf {
    root().join("docs/monitoring")
}

/// A server with a tenant that has nearly used a quota, and a viewer's token.
fn provoked_server() -> (Server, String) {
    let server = Server::start_as(&["--no-builder"]);
    server.json("tenant create shop --quota tables=1");
    server.json("table create items --tenant shop");
    let made = server.json("token create prometheus");
    (server, made["token"].as_str().expect("a token").to_owned())
}

fn run_promtool(folder: &Path, arguments: &[&str], input: &str) -> String {
    let mut tool = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool");
    tool.stdin.take().expect("its input").write_all(input.as_bytes()).expect("it reads");
    let output = tool.wait_with_output().expect("it ends");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    said
}

#[test]
fn the_metrics_follow_the_conventions() {
    if !has_program("promtool", "prometheus") {
        return;
    }
    let server = Server::start_as(&[]);
    server.json("tenant create shop --quota tables=1");
    server.json("table create items --tenant shop");
    server.json("ext push ../ext/bad --tenant shop");
    let ended = server.output("invoke bad table:items panic --tenant shop");
    assert!(!ended.status.success(), "{ended:?}");
    let made = server.json("token create prometheus");
    let viewer = made["token"].as_str().expect("a token");
    let mut text = String::new();
    let has_extension = eventually(|| {
        let (status, metrics) = get(&server.control, "/metrics?old_names=false", viewer);
        assert_eq!(status, 200, "{metrics}");
        text = metrics;
        text.contains("\nsandstorm_extension_")
    });
    assert!(has_extension, "no series of the extension: {text}");
    let said = run_promtool(&root(), &["check", "metrics"], &text);
    assert_eq!(said, "", "it has remarks");
    // Each family has its meaning and its type, and every name in the rules is there.
    for rule in ALERT_RULES {
        for name in rule.expression.split("sandstorm_").skip(1) {
            let name = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
            let has_series = ["tenant_isolation", "tenant_beside", "table_hot_key", "up"]
                .iter()
                .all(|start| !name.starts_with(start));
            let line = format!("\nsandstorm_{name}");
            assert!(!has_series || text.contains(&line), "{}: the server does not tell {name}", rule.name);
        }
    }
}

#[test]
fn every_alert_is_made_by_the_series_that_provoke_it() {
    if !has_program("promtool", "prometheus") {
        return;
    }
    run_promtool(&rules_folder(), &["check", "rules", "sandstorm.rules.yml"], "");
    let said = run_promtool(&rules_folder(), &["test", "rules", "sandstorm.rules.test.yml"], "");
    assert!(said.contains("SUCCESS"), "{said}");
    let tested = fs::read_to_string(rules_folder().join("sandstorm.rules.test.yml")).expect("tests");
    assert_eq!(tested.matches("alert_rule_test").count(), ALERT_RULES.len());
}

/// Seconds of each `for`, other than none, in shortened rules: two evaluations see what is wrong.
const SHORT_FOR_S: u64 = 1;
/// So much shorter is a window: five minutes are ten seconds.
const WINDOW_ONE_IN: u64 = 30;
/// Seconds of a window, at least: it has some scrapes on a busy machine, too.
const SHORT_WINDOW_S: u64 = 10;

/// Seconds of a duration as Prometheus writes it, with one unit.
fn seconds_of(duration: &str) -> Option<u64> {
    let (number, unit) = duration.split_at_checked(duration.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return None,
    };
    Some(number.parse::<u64>().ok()? * seconds)
}

/// A text whose parts between `from` and `to` that are durations have passed through `change`, in seconds.
fn with_durations(text: &str, from: &str, to: &str, change: impl Fn(u64) -> u64) -> String {
    let mut parts = text.split(from);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |done, part| {
        let changed = part.split_once(to).and_then(|(duration, rest)| {
            let seconds = change(seconds_of(duration)?);
            Some(format!("{done}{from}{seconds}s{to}{rest}"))
        });
        changed.unwrap_or_else(|| format!("{done}{from}{part}"))
    })
}

/// The rules, each with a shorter `for` and shorter windows, and as they are otherwise: an alert that takes minutes is
/// raised within seconds.
fn shortened(rules: &str) -> String {
    let for_s = |seconds: u64| seconds.min(SHORT_FOR_S);
    let window_s = |seconds: u64| (seconds / WINDOW_ONE_IN).max(SHORT_WINDOW_S);
    with_durations(&with_durations(rules, " for: ", "\n", for_s), "[", "]", window_s)
}

#[test]
fn shortened_rules_are_the_rules_but_for_their_durations() {
    let rules = fs::read_to_string(rules_folder().join("sandstorm.rules.yml")).expect("rules");
    let short = shortened(&rules);
    assert_eq!(short.matches("- alert: ").count(), ALERT_RULES.len());
    for rule in ALERT_RULES {
        assert!(short.contains(&format!("- alert: {}\n", rule.name)), "{}", rule.name);
    }
    let waits: Vec<&str> = short.lines().filter_map(|line| line.trim().strip_prefix("for: ")).collect();
    assert!(waits.len() == ALERT_RULES.len() && waits.iter().all(|wait| ["0s", "1s"].contains(wait)), "{waits:?}");
    // With the same durations they are the same: nothing else has changed.
    let same = |text: &str| with_durations(&with_durations(text, " for: ", "\n", |_| 7), "[", "]", |_| 7);
    assert_eq!(same(&short), same(&rules));
    assert!(short.contains("[10s]") && !short.contains("m]"), "{short}");
    assert_eq!(shortened("expr: 'rate(a[5m]) > b[1h]'\n for: 10m\n"), "expr: 'rate(a[10s]) > b[120s]'\n for: 1s\n");
}

/// A real Prometheus, which reads its targets each second, with shortened rules; ended when dropped.
pub(super) struct PrometheusProcess {
    process: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Drop for PrometheusProcess {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

/// The configuration of Prometheus for targets with their tokens, all of one job.
fn configuration(targets: &[(String, String)]) -> String {
    let jobs = targets.iter().enumerate().map(|(number, (address, token))| {
        format!(
            "  - job_name: target-{number}\n    params: {{old_names: ['false']}}\n    authorization: {{credentials: \
             '{token}'}}\n    static_configs: [{{targets: ['{address}'], labels: {{job: sandstorm}}}}]\n"
        )
    });
    let head = "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\nscrape_configs:\n";
    head.to_owned() + &jobs.collect::<String>()
}

impl PrometheusProcess {
    /// Starts one for these targets: the address of each, and its viewer's token.
    pub(super) fn start(targets: &[(String, String)]) -> PrometheusProcess {
        let folder = tempfile::tempdir().expect("a folder");
        let rules = fs::read_to_string(rules_folder().join("sandstorm.rules.yml")).expect("rules");
        fs::write(folder.path().join("rules.yml"), shortened(&rules)).expect("room");
        fs::write(folder.path().join("prometheus.yml"), configuration(targets)).expect("room");
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port");
        let process = Command::new("prometheus")
            .current_dir(folder.path())
            .arg(format!("--web.listen-address={free}"))
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus");
        PrometheusProcess { process, url: format!("http://{free}"), _folder: folder }
    }

    /// What it answers under a path; nothing until it listens.
    fn ask(&self, path: &str) -> Value {
        if std::net::TcpStream::connect(self.url.trim_start_matches("http://")).is_err() {
            return Value::Null;
        }
        serde_json::from_str(&get(&self.url, path, "").1).unwrap_or_default()
    }

    /// The value of an expression without blanks that has one series; `None`: there is none.
    pub(super) fn value(&self, expression: &str) -> Option<f64> {
        let told = self.ask(&format!("/api/v1/query?query={expression}"));
        told["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }

    /// Names of the alerts that fire.
    fn firing(&self) -> Vec<String> {
        self.labels_of_firing().into_iter().filter_map(|of| of["alertname"].as_str().map(str::to_owned)).collect()
    }

    /// Alerts that fire and name a tenant, and these tenants.
    pub(super) fn firing_of_tenants(&self) -> BTreeSet<(String, String)> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let labels = self.labels_of_firing().into_iter();
        labels.filter_map(|of| Some((text(&of["alertname"])?, text(&of["tenant"])?))).collect()
    }

    /// The labels of each alert that fires.
    pub(super) fn labels_of_firing(&self) -> Vec<Value> {
        let told = self.ask("/api/v1/alerts");
        let alerts = told["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"].clone()).collect()
    }
}

#[test]
fn a_real_prometheus_raises_the_alerts_of_what_is_wrong_and_no_others() {
    if !has_program("prometheus", "prometheus") {
        return;
    }
    let (server, viewer) = provoked_server();
    let target = server.control.trim_start_matches("http://").to_owned();
    // Nothing listens at the other target.
    let prometheus = PrometheusProcess::start(&[(target, viewer.clone()), ("127.0.0.1:1".to_owned(), viewer)]);
    let expected = ["SandstormDown", "SandstormNoBuilder", "SandstormQuotaNearlyUsed"];
    let until = Instant::now() + Duration::from_secs(90);
    let mut firing = Vec::new();
    while Instant::now() < until && !expected.iter().all(|name| firing.iter().any(|found| found == name)) {
        std::thread::sleep(Duration::from_millis(200));
        firing = prometheus.firing();
    }
    firing.sort_unstable();
    firing.dedup();
    // A busy machine may make the watchdog late, too.
    firing.retain(|name| name != "SandstormWatchdogLate");
    assert_eq!(firing, expected);
}

#[test]
fn doctor_says_what_is_wrong_with_a_running_server() {
    let (server, _) = provoked_server();
    for _ in 0..5 {
        assert_eq!(get(&server.control, "/v1/stat", "wrong").0, 401);
    }
    let found = server.json("doctor --live");
    let text = |code: &str| {
        let of = found.as_array().expect("a list").iter().find(|finding| finding["code"] == code);
        of.map(|finding| format!("{} {}", finding["text"], finding["advice"])).unwrap_or_default()
    };
    assert!(text("quota_nearly_used").contains("shop uses 1 of 1"), "{found}");
    assert!(text("no_builder").contains("--no-builder"), "{found}");
    let hot = server.json("hot --tenant shop");
    assert!(hot["keys"].as_array().is_some_and(Vec::is_empty), "nothing has read or written a key: {hot}");
    let ephemeral = Server::start_as(&["--no-builder", "--ephemeral"]);
    assert!(ephemeral.json("doctor --live").to_string().contains("\"ephemeral\""));
    // For people it is prose.
    let output = server.output("doctor --live");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("The quota tables is nearly used.") && said.contains("-> `sandstorm tenant set shop"),
        "{said}"
    );
}
