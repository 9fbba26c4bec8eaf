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
use crate::common::root;
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
    let (server, viewer) = provoked_server();
    let (status, text) = get(&server.control, "/metrics?old_names=false", &viewer);
    assert_eq!(status, 200, "{text}");
    let said = run_promtool(&root(), &["check", "metrics"], &text);
    assert_eq!(said, "", "it has remarks");
    // Each family has its meaning and its type, and every name in the rules is there.
    for rule in ALERT_RULES {
        for name in rule.expression.split("sandstorm_").skip(1) {
            let name = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
            let has_series = ["extension_", "tenant_isolation", "tenant_beside", "table_hot_key", "up"]
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

/// A real Prometheus; ended when dropped.
pub(super) struct PrometheusProcess {
    process: Child,
    url: String,
}

impl Drop for PrometheusProcess {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

impl PrometheusProcess {
    pub(super) fn start(folder: &Path, targets: &[&str]) -> PrometheusProcess {
        // Without the minutes for which an alert has to last.
        let rules = fs::read_to_string(rules_folder().join("sandstorm.rules.yml")).expect("rules");
        let rules: String = rules
            .lines()
            .map(|line| if line.contains(" for: ") { "        for: 0s\n".into() } else { format!("{line}\n") })
            .collect();
        fs::write(folder.join("rules.yml"), rules).expect("room");
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [rules.yml]\nscrape_configs:\n  - \
             job_name: sandstorm\n    \
             params: {{old_names: ['false']}}\n    authorization: {{credentials_file: token}}\n    static_configs: \
             [{{targets: {targets:?}}}]\n"
        );
        fs::write(folder.join("prometheus.yml"), config).expect("room");
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port");
        let process = Command::new("prometheus")
            .current_dir(folder)
            .arg(format!("--web.listen-address={free}"))
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus");
        PrometheusProcess { process, url: format!("http://{free}") }
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

    fn labels_of_firing(&self) -> Vec<Value> {
        if std::net::TcpStream::connect(self.url.trim_start_matches("http://")).is_err() {
            return Vec::new();
        }
        let (_, text) = get(&self.url, "/api/v1/alerts", "");
        let told: Value = serde_json::from_str(&text).unwrap_or_default();
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
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("token"), &viewer).expect("room");
    let target = server.control.trim_start_matches("http://");
    // Nothing listens at the other target.
    let prometheus = PrometheusProcess::start(folder.path(), &[target, "127.0.0.1:1"]);
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
