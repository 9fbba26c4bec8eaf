//! Promise (docs/cluster.md): a server is added to a running cluster and takes its share, is drained and removed, and
//! one whose disk is lost is replaced. What was acknowledged is there all the while, but for what was given up.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandstorm_client::{Config, blocking};
use serde_json::Value;

use super::cluster::EtcdProcess;
use crate::common::process::{Server, serve};
use crate::common::{Stop, eventually};

/// The id of the table in the configuration.
const ITEMS: u64 = 1;
const KEYS: usize = 600;
const SLOTS: usize = 16_384;

pub(super) fn options(etcd: &EtcdProcess, config: &Path) -> Vec<String> {
    let (cluster, config) = (etcd.cluster(), config.display().to_string());
    let all = ["--data", "127.0.0.1:0", "--workers", "1", "--no-builder", "--config", &config];
    all.iter().chain(&["--cluster", &cluster, "--cluster-servers", "2"]).map(|word| (*word).to_owned()).collect()
}

pub(super) fn start(options: &[String]) -> Server {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Server::start_in(None, Arc::new(tempfile::tempdir().unwrap()), &options)
}

fn id(server: &Server) -> String {
    server.json("cluster status")["server"].as_str().unwrap().to_owned()
}

/// How a server of some id is shown by another.
fn shown(by: &Server, id: &str) -> Option<Value> {
    let status = by.json("cluster status");
    status["servers"].as_array().unwrap().iter().find(|server| server["id"] == id).cloned()
}

fn slots_of(by: &Server, id: &str) -> usize {
    let ranges = shown(by, id).map(|server| server["slots"].as_array().cloned().unwrap_or_default());
    let length = |range: &Value| range[1].as_u64().unwrap() - range[0].as_u64().unwrap() + 1;
    ranges.unwrap_or_default().iter().map(length).sum::<u64>() as usize
}

/// Waits until a server owns so many slots, and nothing moves.
fn await_slots(by: &Server, id: &str, wanted: usize) {
    let is_there =
        || slots_of(by, id) == wanted && by.json("cluster status")["moves"].as_array().is_none_or(Vec::is_empty);
    assert!(eventually(is_there), "{wanted} slots of {id}: {}", by.json("cluster status"));
}

pub(super) fn client(server: &Server) -> blocking::Client {
    let config = Config::new(server.data.parse().unwrap(), 1).deadline(Duration::from_secs(60));
    blocking::Client::connect(config).unwrap()
}

/// Adds one to every key over and over, until it is told to stop; returns how often.
fn count_up(server: &Server, stop: &AtomicBool) -> i64 {
    let (client, mut rounds) = (client(server), 0);
    while !stop.load(Ordering::Acquire) {
        rounds += 1;
        for key in 0..KEYS {
            assert_eq!(client.increment(ITEMS, format!("k{key}").as_bytes(), 1).unwrap(), rounds, "k{key}");
        }
    }
    rounds
}

/// The keys that are there, all of which have been counted up so often.
fn check(server: &Server, rounds: i64) -> usize {
    let client = client(server);
    let found = |key: usize| client.get(ITEMS, format!("k{key}").as_bytes()).unwrap();
    let there = (0..KEYS).filter_map(found);
    there.map(|record| assert_eq!(String::from_utf8_lossy(&record.value), rounds.to_string())).count()
}

/// What a command that fails says.
pub(super) fn fails(server: &Server, line: &str) -> String {
    let output = server.output(line);
    assert!(!output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn servers_are_added_drained_removed_and_replaced_under_load() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenants.toml");
    let tenant =
        "[[tenants]]\nname = 'shop'\nid = 1\nopen = true\ntables = [{ name = 'items', id = 1, durability = 'disk' }]\n";
    fs::write(&config, tenant).unwrap();
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let options = options(&etcd, &config);
    let [first, second] = [start(&options), start(&options)];
    assert!(eventually(|| first.json("cluster status")["epoch"].as_u64() >= Some(1)));
    let third = start(&options);
    let [a, b, c] = [&first, &second, &third].map(id);
    assert!(eventually(|| shown(&first, &c).is_some_and(|server| server["lives"] == true)));

    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        // Also if a check fails: the scope waits for the writer.
        let ends = Stop(&stop);
        let writer = scope.spawn(|| count_up(&second, &stop));
        check_added(&first, &c);
        check_drained(&first, [&a, &b, &c]);
        drop(ends);
        writer.join().unwrap()
    });
    assert_eq!(check(&second, rounds), KEYS);
    let folder = Arc::clone(&first.folder);
    drop(first);
    check_removed(&second, &a);
    check_refused(&folder, &options);
    assert_eq!(check(&second, rounds), KEYS);
    check_lost(&second, third, &c, &options, rounds);
}

/// The third server gets a third of the slots, half of it from each.
fn check_added(first: &Server, c: &str) {
    let plan = first.json(&format!("cluster add {} --plan", &c[..12]));
    let planned = plan["planned"].as_array().unwrap();
    assert!(planned.len() == 2 && planned.iter().all(|one| one["to"] == c), "{plan}");
    assert_eq!(slots_of(first, c), 0, "a plan changes nothing");
    assert_eq!(first.json(&format!("cluster add {c}"))["moves"], 2);
    await_slots(first, c, SLOTS / 3);
    let again = first.output(&format!("cluster add {c}"));
    assert_eq!(String::from_utf8_lossy(&again.stdout), "it has its share of the slots already\n");
}

/// The first server gives all to the others, and gets nothing any more.
fn check_drained(first: &Server, [a, b, c]: [&str; 3]) {
    assert!(fails(first, &format!("cluster remove {a}")).contains("lives: stop it first"));
    assert!(first.json(&format!("cluster drain {a}"))["moves"].as_u64() >= Some(1));
    let refused = fails(first, &format!("cluster move 0-16383 --to {a}"));
    assert!(refused.contains("gives its slots away") || refused.contains("moved"), "{refused}");
    await_slots(first, a, 0);
    assert_eq!([slots_of(first, b), slots_of(first, c)], [SLOTS / 2; 2]);
    let status = first.output("cluster status");
    assert!(String::from_utf8_lossy(&status.stdout).contains("lives, drained"), "{status:?}");
    assert!(fails(first, &format!("cluster move 0-9 --to {a}")).contains("gives its slots away"));
}

/// The first server was stopped, and is removed.
fn check_removed(by: &Server, a: &str) {
    assert!(eventually(|| shown(by, a).is_some_and(|server| server["lives"] == false)));
    let removed = by.output(&format!("cluster remove {a}"));
    assert_eq!(String::from_utf8_lossy(&removed.stdout), "removed\n", "{removed:?}");
    assert!(eventually(|| shown(by, a).is_none()));
    assert!(fails(by, &format!("cluster remove {a}")).contains("no server of the cluster"));
    let events = by.output("events --json");
    assert!(String::from_utf8_lossy(&events.stdout).contains("cluster.server_removed"), "{events:?}");
}

/// What starts with the state of a server that was removed is told so, and does not serve.
fn check_refused(folder: &Arc<tempfile::TempDir>, options: &[String]) {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let output = serve(None, folder.path(), &options).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("was removed from this cluster"), "{text}");
}

/// A server whose disk is lost: its slots go to the others without their records, and it owns nothing if it is back.
fn check_lost(second: &Server, mut third: Server, c: &str, options: &[String], rounds: i64) {
    let fourth = start(options);
    let folder = Arc::clone(&third.folder);
    third.process.kill().unwrap();
    third.process.wait().unwrap();
    let d = id(&fourth);
    assert!(eventually(|| shown(second, c).is_some_and(|server| server["lives"] == false)));
    assert!(eventually(|| shown(second, &d).is_some_and(|server| server["lives"] == true)));
    assert!(fails(second, &format!("cluster remove {c}")).contains("--give-up-records"));
    second.json(&format!("cluster remove {c} --give-up-records"));
    assert!(eventually(|| shown(second, c).is_none()));
    assert!(eventually(|| slots_of(second, &d) == SLOTS / 2), "the one that has fewer gets them");
    // It has to have read that itself: else it sends its clients to the one that is gone, and they wait for that.
    assert!(eventually(|| slots_of(&fourth, &d) == SLOTS / 2 && shown(&fourth, c).is_none()));
    let there = check(&fourth, rounds);
    assert!((KEYS / 4..KEYS * 3 / 4).contains(&there), "{there} keys are left");
    // All slots are served.
    let client = client(second);
    for key in 0..KEYS {
        client.increment(ITEMS, format!("k{key}").as_bytes(), 1).unwrap();
    }
    drop(third);
    check_refused(&folder, options);
}
