//! Promise: a server pushes to a collector what Prometheus would read, with the headers of the configuration; one that
//! never answers, or is not there, costs no request anything, and an event tells of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use serde_json::Value;

use super::http::get;
use crate::common::process::Server;

/// A collector that takes what is posted: its URL, and the heads and bodies that it gets.
fn collector() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/v1/metrics", listener.local_addr().expect("an address"));
    let (got, gets) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(&stream);
            // As many requests as the connection has.
            loop {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
                });
                let Some(length) = length else { break };
                let mut body = vec![0; length];
                if reader.read_exact(&mut body).is_err() {
                    break;
                }
                let body = serde_json::from_slice(&body).expect("JSON");
                if got.send((head, body)).is_err() {
                    return;
                }
                let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                if (&stream).write_all(answer).is_err() {
                    break;
                }
            }
        }
    });
    (url, gets)
}

/// Names and values of a body: a value for metrics without labels.
fn values(body: &Value) -> BTreeMap<String, Option<u64>> {
    let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().expect("metrics");
    let value = |metric: &Value| {
        let points = ["sum", "gauge"].iter().find_map(|kind| metric[*kind]["dataPoints"].as_array());
        points.and_then(|points| points[0]["asInt"].as_str()?.parse().ok())
    };
    metrics.iter().map(|metric| (metric["name"].as_str().expect("a name").to_owned(), value(metric))).collect()
}

#[test]
fn a_collector_gets_what_prometheus_would_read() {
    let (url, gets) = collector();
    let folder = tempfile::tempdir().expect("a folder");
    let (headers, config) = (folder.path().join("headers"), folder.path().join("sandstorm.toml"));
    fs::write(&headers, "authorization: Bearer of-the-collector\n").expect("room");
    let text = format!("[otlp]\nurl = '{url}'\ninterval_s = 1\nheaders_file = '{}'\n", headers.display());
    fs::write(&config, text).expect("room");
    let server = Server::start_as(&["--no-builder", "--config", config.to_str().expect("text")]);
    server.json("tenant create shop");
    server.json("table create items --tenant shop");
    for number in 0..20 {
        server.json(&format!("put items key{number} value --tenant shop"));
    }
    let until = Instant::now() + crate::common::EVENTUALLY;
    let pushed = loop {
        let (head, body) = gets.recv_timeout(until - Instant::now()).expect("a push with what is there now");
        assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
        assert!(head.to_ascii_lowercase().contains("authorization: bearer of-the-collector\r\n"), "{head}");
        let values = values(&body);
        if values.get("sandstorm_records") == Some(&Some(20)) {
            break values;
        }
    };
    let operator = fs::read_to_string(server.state().join("operator-token")).expect("a token");
    let (_, text) = get(&server.control, "/metrics?old_names=false", operator.trim());
    // Some have no values: those of extensions, of which there are none.
    let lines: Vec<&str> = text.lines().collect();
    let typed: BTreeSet<String> = lines
        .windows(2)
        .filter(|two| !two[1].starts_with('#'))
        .filter_map(|two| two[0].strip_prefix("# TYPE ")?.split(' ').next())
        .map(|name| name.trim_end_matches("_total").to_owned())
        .collect();
    let only_one: Vec<&String> = pushed
        .keys()
        .filter(|name| !typed.contains(*name))
        .chain(typed.iter().filter(|name| !pushed.contains_key(*name)))
        .collect();
    assert_eq!(only_one, ["sandstorm_build_info"], "which is the resource's version");
}

/// Reads a push by the types that OpenTelemetry publishes, which refuse unknown fields and wrong kinds of values; says
/// how many metrics and points there are.
const READER: &str = "
import sys
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
request = json_format.Parse(sys.stdin.read(), ExportMetricsServiceRequest())
metrics = [metric for of in request.resource_metrics for scope in of.scope_metrics for metric in scope.metrics]
points = 0
for metric in metrics:
    kind = metric.WhichOneof('data')
    assert kind, metric.name
    data = getattr(metric, kind)
    points += len(data.data_points)
    if kind in ('sum', 'histogram'):
        assert data.aggregation_temporality == 2, metric.name
    for point in data.data_points:
        assert point.time_unix_nano > 0, metric.name
        if kind == 'histogram':
            assert len(point.bucket_counts) == len(point.explicit_bounds) + 1, metric.name
            assert sum(point.bucket_counts) == point.count, metric.name
print(len(metrics), points)
";

#[test]
fn what_is_pushed_is_read_by_the_types_that_opentelemetry_publishes() {
    let packages = tempfile::tempdir().expect("a folder");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--target"]);
    pip.arg(packages.path()).arg("opentelemetry-proto").stderr(Stdio::null());
    if !pip.status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: Python's package opentelemetry-proto cannot be installed");
        return;
    }
    let (url, gets) = collector();
    let server = Server::start_as(&["--no-builder", "--ephemeral", "--otlp", &url]);
    server.json("tenant create shop");
    server.json("table create items --tenant shop");
    server.json("put items key value --tenant shop");
    let (_, body) = gets.recv_timeout(crate::common::EVENTUALLY).expect("a push");
    let mut reader = Command::new("python3")
        .args(["-c", READER])
        .env("PYTHONPATH", packages.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3");
    reader.stdin.take().expect("a pipe").write_all(body.to_string().as_bytes()).expect("it reads");
    let output = reader.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let counts: Vec<usize> = said.split_whitespace().map(|count| count.parse().expect("a count")).collect();
    assert!(counts[0] == values(&body).len() && counts[1] >= counts[0], "{said}");
}

#[test]
fn a_collector_that_never_answers_or_is_not_there_costs_nobody_anything() {
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/v1/metrics", silent.local_addr().expect("an address"));
    let server = Server::start_as(&["--no-builder", "--ephemeral", "--otlp", &url]);
    let (mut connection, _) = silent.accept().expect("it connects");
    connection.read_exact(&mut [0; 4]).expect("it sends");
    server.json("tenant create shop");
    server.json("table create items --tenant shop");
    server.json("put items key value --tenant shop");
    let operator = fs::read_to_string(server.state().join("operator-token")).expect("a token");
    let (status, text) = get(&server.control, "/metrics", operator.trim());
    assert!(status == 200 && text.contains("\nsandstorm_records 1\n"), "{text}");
    drop(server);

    let closed = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port");
    let url = format!("http://{closed}/v1/metrics?key=secret");
    let server = Server::start_as(&["--no-builder", "--ephemeral", "--otlp", &url]);
    let until = Instant::now() + crate::common::EVENTUALLY;
    loop {
        let events = server.json("events --code otlp.failing");
        let found = events.to_string();
        assert!(!found.contains("secret"), "{found}");
        if found.contains(&format!("http://{closed}\"")) {
            break;
        }
        assert!(Instant::now() < until, "no event: {found}");
    }
    let output = server.command().args(["serve", "--otlp", "http://me:secret@collector/"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("no password") && !said.contains("secret@"), "{said}");
}
