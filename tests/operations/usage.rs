//! Promise: `top` and Prometheus tell what each tenant uses, over all protocols: the workers' time that plain requests
//! take, how often its tables are read and written, and how near it is to quotas that are rates. What its calls have is
//! told by extension.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use sandstorm_client::blocking::Client;
use sandstorm_client::{Config, PutOptions};
use serde_json::Value;

use super::http::get;
use crate::common::process::Server;
use crate::common::{PATIENT, Stop, eventually};

/// The tenants, open, with ids from 1, and their quotas.
const TENANTS: [(&str, &str); 5] =
    [("own", ""), ("redis", ""), ("memcached", ""), ("bounded", "requests_per_s = 1000000"), ("idle", "")];
/// The id of each tenant's table.
const ITEMS: u64 = 1;
/// Requests of a message or a batch of commands.
const BATCH: usize = 16;

fn start() -> Server {
    let folder = tempfile::tempdir().expect("a folder");
    let tenants = (1..).zip(TENANTS).map(|(id, (name, quotas))| {
        format!(
            "[[tenants]]\nname = '{name}'\nid = {id}\nopen = true\nquotas = {{ {quotas} }}\n\
             tables = [{{ name = 'items', id = {ITEMS} }}]\n"
        )
    });
    let config = folder.path().join("tenants.toml");
    fs::write(&config, tenants.collect::<String>()).expect("room");
    let config = config.display().to_string();
    let ports = ["--redis", "127.0.0.1:0=redis/items", "--memcached", "127.0.0.1:0=memcached/items"];
    Server::start_as(&[&["--workers", "1", "--no-pin", "--no-builder", "--config", &config], &ports[..]].concat())
}

/// A get for each put, of one key.
fn own_requests(server: &Server, tenant: &str, over: &AtomicBool) {
    let id = TENANTS.iter().position(|(name, _)| *name == tenant).expect("a tenant") as u32 + 1;
    let config = Config::new(server.data.parse().expect("an address"), id).deadline(PATIENT);
    let client = Client::connect(config).expect("a connection");
    while !over.load(Relaxed) {
        client.put(ITEMS, b"key", b"value", &PutOptions::default()).expect("it is stored");
        client.get(ITEMS, b"key").expect("it is there");
    }
}

/// Commands over a connection, each of which has so many lines of an answer.
fn commands(server: &Server, port: &str, (command, lines): (&str, usize), over: &AtomicBool) {
    let stream = TcpStream::connect(server.said[port][0].as_str().expect("a port")).expect("a connection");
    stream.set_read_timeout(Some(PATIENT)).expect("a timeout");
    let batch = command.repeat(BATCH);
    let mut answers = BufReader::new(&stream);
    while !over.load(Relaxed) {
        (&stream).write_all(batch.as_bytes()).expect("it is read");
        for _ in 0..BATCH * lines {
            let mut line = String::new();
            assert!(answers.read_line(&mut line).expect("an answer") > 0, "{port} was closed");
        }
    }
}

/// The values of a metric's series for a tenant.
fn series(text: &str, metric: &str, tenant: &str, label: &str) -> Option<f64> {
    let has = |line: &&str| {
        line.starts_with(&format!("sandstorm_{metric}{{"))
            && line.contains(&format!("tenant=\"{tenant}\""))
            && line.contains(label)
    };
    text.lines().find(has)?.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn plain_requests_of_all_protocols_are_told_by_tenant_and_table() {
    let server = start();
    let viewer = server.json("token create prometheus")["token"].as_str().expect("a token").to_owned();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (server, over) = (&server, &over);
        scope.spawn(move || own_requests(server, "own", over));
        scope.spawn(move || own_requests(server, "bounded", over));
        scope.spawn(move || commands(server, "redis", ("SET key value\r\n", 1), over));
        scope.spawn(move || commands(server, "memcached", ("get key\r\n", 1), over));
        let _ends = Stop(over);
        let mut text = String::new();
        let of =
            |text: &str, metric: &str, tenant: &str, label: &str| series(text, metric, tenant, label).unwrap_or(0.0);
        let is_told = eventually(|| {
            text = get(&server.control, "/metrics?old_names=false", &viewer).1;
            let is_busy = |(name, _): &(&str, &str)| {
                *name == "idle" || of(&text, "tenant_plain_cpu_seconds_total", name, "") > 0.0
            };
            let rates = [("own", "read"), ("own", "write"), ("redis", "write"), ("memcached", "read")];
            let is_counted = |(name, kind): (&str, &str)| {
                of(&text, "table_accesses_per_second", name, &format!("kind=\"{kind}\"")) > 0.0
            };
            TENANTS.iter().all(is_busy)
                && rates.into_iter().all(is_counted)
                && of(&text, "tenant_quota_used_per_second", "bounded", "quota=\"requests_per_s\"") > 0.0
        });
        assert!(is_told, "{text}");
        assert_eq!(series(&text, "tenant_plain_cpu_seconds_total", "idle", ""), Some(0.0), "it has sent nothing");
        let limit = series(&text, "tenant_quota_limit_per_second", "bounded", "quota=\"requests_per_s\"");
        assert_eq!(limit, Some(1_000_000.0));
        for (name, kind) in [("redis", "read"), ("memcached", "write")] {
            let told = series(&text, "table_accesses_per_second", name, &format!("kind=\"{kind}\""));
            assert_eq!(told, Some(0.0), "{name} does no {kind}");
        }
        let served = series(&text, "tenant_request_service_seconds_count", "redis", "class=\"redis\"");
        assert!(served > Some(0.0), "{text}");
        top_has_them(server);
    });
}

/// The rows of `top`: tenants by their time, tables by their accesses.
fn top_has_them(server: &Server) {
    let rows = |view: &str| server.json(&format!("top {view} --once"))["rows"].as_array().expect("rows").clone();
    let value = |rows: &[Value], tenant: &str, column: &str| {
        let row = rows.iter().find(|row| row["tenant"] == tenant).expect("a row");
        row[column].as_f64().unwrap_or_else(|| panic!("{column}: {row}"))
    };
    let mut tenants = Vec::new();
    let has_all = eventually(|| {
        tenants = rows("tenants");
        ["own", "redis", "memcached", "bounded"].iter().all(|name| value(&tenants, name, "cpu_percent") > 0.0)
    });
    assert!(has_all, "{tenants:#?}");
    assert_eq!(value(&tenants, "idle", "cpu_percent"), 0.0);
    assert!(tenants.iter().all(|row| row["calls_cpu_percent"].as_f64() == Some(0.0)), "none calls: {tenants:#?}");
    let mut tables = Vec::new();
    let has_both = eventually(|| {
        tables = rows("tables");
        ["reads_per_s", "writes_per_s"].iter().all(|column| value(&tables, "own", column) > 0.0)
    });
    assert!(has_both, "{tables:#?}");
    assert_eq!(value(&tables, "idle", "reads_per_s"), 0.0);
}

#[test]
fn what_calls_have_is_told_by_extension_while_they_run_and_pushes_by_what_came_of_them() {
    let server = Server::start_as(&["--workers", "1", "--no-pin"]);
    let made = server.json("tenant create shop --quota total_us=60000000");
    let table = server.json("table create items --tenant shop")["id"].as_u64().expect("an id");
    server.json("ext push ../ext/bad --tenant shop");
    let viewer = server.json("token create prometheus")["token"].as_str().expect("a token").to_owned();
    let id = u32::try_from(made["tenant"]["id"].as_u64().expect("an id")).expect("an id");
    let token = made["token"].as_str().expect("a token");
    let config = Config::new(server.data.parse().expect("an address"), id).token(token).deadline(PATIENT);
    let client = Client::connect(config).expect("a connection");
    let text = || get(&server.control, "/metrics?old_names=false", &viewer).1;
    std::thread::scope(|scope| {
        let arguments = [&table.to_le_bytes()[..], b"loop"].concat();
        // It computes until its extension is unloaded, or for a minute.
        let ended = scope.spawn(move || client.invoke("bad", &arguments));
        let mut told = String::new();
        let runs = eventually(|| {
            told = text();
            series(&told, "extension_calls_running", "shop", "") == Some(1.0)
        });
        assert!(runs, "{told}");
        let memory = series(&told, "extension_memory_bytes", "shop", "");
        assert!(memory >= Some(65_536.0), "what each call begins with, and its stack: {memory:?}");
        let top = server.json("top extensions --once");
        let row = &top["rows"][0];
        assert_eq!((&row["extension"], row["running"].as_f64()), (&Value::from("bad"), Some(1.0)), "{top}");
        assert!(row["memory_bytes"].as_f64() >= Some(65_536.0), "{top}");
        assert!(eventually(|| series(&text(), "extension_switches_total", "shop", "") > Some(0.0)), "{}", text());
        server.json("ext unload bad --tenant shop");
        assert!(ended.join().expect("it ends").is_err());
    });
    let told = text();
    let pushes = |name: &str| {
        let line = told.lines().find(|line| line.starts_with(&format!("sandstorm_{name} ")));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
    };
    assert_eq!((pushes("push_duration_seconds_count"), pushes("push_waiting_seconds_count")), (Some(1.0), Some(1.0)));
    assert!(pushes("push_duration_seconds_sum") > Some(0.0), "{told}");
    assert!(told.contains("sandstorm_builds_total{result=\"failed\"} 0\n"), "{told}");
}
