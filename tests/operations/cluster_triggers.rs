//! Promise (docs/cluster.md): a trigger that is made at one server is one of all. Those of a table go on while its
//! slots move between servers: for each change the call succeeds, those of a key in the order of its versions, and none
//! is a dead letter for a key that is elsewhere by then. A trigger that is paused, or fails without an end, does not
//! hold up the move. A schedule runs at one server, also after moves, and its dead letters are replayed there.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandstorm_builder::{BuilderKey, prepare_folder};
use sandstorm_client::{Config, PutOptions, blocking};
use serde_json::Value;
use tempfile::TempDir;

use super::cluster::{EtcdProcess, status};
use crate::common::process::{Server, state_in};
use crate::common::{Stop, eventually};

const KEYS: usize = 48;
/// Moves of all slots, to and fro.
const MOVES: usize = 6;

/// Notes the last number of each key, and a key whose numbers did not come one after the other. One that comes again is
/// left out: calls are made at least once. Refuses a key until the record `{refused}open` is there.
const IN_ORDER: &str = r#"#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::change::Change;
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    if args.is_empty() {
        // By the clock.
        return Ok(());
    }
    let seen = db.table("seen")?;
    if args == b"refused" {
        return match db.get(seen, b"{refused}open").await? {
            Some(_) => Ok(()),
            None => Err(Error::new("not yet")),
        };
    }
    let change = Change::decode(args)?;
    if change.key == b"refused" && db.get(seen, b"{refused}open").await?.is_none() {
        return Err(Error::new("not yet"));
    }
    let last = match db.get(seen, change.key).await? {
        Some(last) => u64::from_le_bytes(last.value().try_into()?),
        None => 0,
    };
    let number = u64::from_le_bytes(change.value.try_into()?);
    if number > last + 1 {
        let gap = format!("{{{}}}gap", core::str::from_utf8(change.key).unwrap_or("?"));
        db.put(seen, gap.as_bytes(), change.value).await?;
    }
    if number > last {
        db.put(seen, change.key, change.value).await?;
    }
    Ok(())
}
"#;

struct TriggeredCluster {
    servers: Vec<Server>,
    items: u64,
    seen: u64,
    _folders: Vec<Arc<TempDir>>,
}

fn write_extension(folder: &Path) -> String {
    let extension = folder.join("in_order");
    fs::create_dir_all(extension.join("src")).unwrap();
    fs::write(extension.join("extension.toml"), "name = \"in_order\"\nversion = \"0.1.0\"\n").unwrap();
    fs::write(extension.join("src/lib.rs"), IN_ORDER).unwrap();
    extension.display().to_string()
}

impl TriggeredCluster {
    /// Two servers with tables and the extension.
    fn start(etcd: &EtcdProcess) -> TriggeredCluster {
        assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
        let folders: Vec<Arc<TempDir>> = (0..2).map(|_| Arc::new(tempfile::tempdir().unwrap())).collect();
        let builder = state_in(folders[0].path()).join("builder");
        prepare_folder(&builder).unwrap();
        let key = BuilderKey::open(&builder).unwrap().public();
        let config = folders[0].path().join("sandstorm.toml");
        fs::write(&config, format!("[builder]\ntrusted_keys = ['{key}']\n")).unwrap();
        let (cluster, config) = (etcd.cluster(), config.display().to_string());
        let start = |at: usize| {
            let mut options = vec!["--data", "127.0.0.1:0", "--workers", "1", "--config", &config];
            options.extend(["--cluster", &cluster, "--cluster-servers", "2"]);
            options.extend((at > 0).then_some("--no-builder"));
            Server::start_in(None, Arc::clone(&folders[at]), &options)
        };
        let servers: Vec<Server> = (0..2).map(start).collect();
        assert!(eventually(|| servers.iter().all(|server| status(server)["epoch"].as_u64() >= Some(1))));
        servers[0].json("tenant create shop --open");
        let table = |name: &str| {
            let made = servers[0].json(&format!("table create {name} --tenant shop --durability disk"));
            made["id"].as_u64().unwrap_or_else(|| panic!("an id: {made}"))
        };
        let (items, seen) = (table("items"), table("seen"));
        servers[0].json(&format!("ext push {} --tenant shop", write_extension(folders[0].path())));
        let has_it = |server: &Server| {
            let list = server.json("ext list --tenant shop");
            list.as_array().unwrap().iter().any(|one| one["name"] == "in_order" && one["version"] == 1)
        };
        assert!(eventually(|| servers.iter().all(has_it)));
        TriggeredCluster { servers, items, seen, _folders: folders }
    }

    fn client(&self, at: usize) -> blocking::Client {
        let config = Config::new(self.servers[at].data.parse().unwrap(), 1).deadline(Duration::from_secs(60));
        blocking::Client::connect(config).unwrap()
    }

    /// Moves all slots to a server, and waits for the end.
    fn move_all_to(&self, at: usize) {
        let id = status(&self.servers[at])["server"].as_str().unwrap().to_owned();
        let begun = self.servers[0].output(&format!("cluster move 0-16383 --to {id}"));
        let error = String::from_utf8_lossy(&begun.stderr);
        assert!(begun.status.success() || error.contains("owns these slots already"), "{error}");
        let is_over = |server: &Server| {
            let told = status(server);
            let servers = told["servers"].as_array().unwrap();
            let is_owner = servers.iter().all(|one| one["slots"].as_array().unwrap().is_empty() != (one["id"] == *id));
            is_owner && told["moves"].as_array().is_none_or(Vec::is_empty)
        };
        assert!(eventually(|| self.servers.iter().all(is_over)), "{}", status(&self.servers[0]));
    }

    /// The number that the extension has noted of a key, and whether there was a gap before one.
    fn seen(&self, client: &blocking::Client, key: &str) -> (u64, bool) {
        let get = |key: &str| client.get(self.seen, key.as_bytes()).unwrap();
        let number = get(key).map_or(0, |record| u64::from_le_bytes(record.value[..].try_into().unwrap()));
        (number, get(&format!("{{{key}}}gap")).is_some())
    }

    fn assert_no_dead_letters(&self) {
        for server in &self.servers {
            for trigger in server.json("trigger list --tenant shop").as_array().unwrap() {
                assert_eq!(trigger["dead_letters"], 0, "{trigger}");
            }
        }
    }
}

/// Puts the next number under each key, over and over; returns the last one.
fn count_up(cluster: &TriggeredCluster, stop: &AtomicBool) -> u64 {
    let (client, mut number) = (cluster.client(1), 0_u64);
    while !stop.load(Ordering::Acquire) {
        number += 1;
        for key in 0..KEYS {
            let (key, value) = (format!("k{key}"), number.to_le_bytes());
            client.put(cluster.items, key.as_bytes(), &value, &PutOptions::default()).unwrap();
        }
    }
    number
}

#[test]
fn triggers_go_on_in_the_order_of_each_key_while_slots_move() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let cluster = TriggeredCluster::start(&etcd);
    cluster.servers[0].json("trigger create order --extension in_order --on items --ops put --retries 2 --tenant shop");
    let has_it = |server: &Server| !server.json("trigger list --tenant shop").as_array().unwrap().is_empty();
    assert!(eventually(|| cluster.servers.iter().all(has_it)));
    let stop = AtomicBool::new(false);
    let last = std::thread::scope(|scope| {
        // Also if a check fails: the scope waits for the writer.
        let ends = Stop(&stop);
        let writer = scope.spawn(|| count_up(&cluster, &stop));
        (0..MOVES).for_each(|number| cluster.move_all_to(number % 2));
        drop(ends);
        writer.join().unwrap()
    });
    let client = cluster.client(0);
    for key in 0..KEYS {
        let key = format!("k{key}");
        assert!(
            eventually(|| cluster.seen(&client, &key).0 == last),
            "{key}: {:?}, {last}",
            cluster.seen(&client, &key)
        );
        assert!(!cluster.seen(&client, &key).1, "{key}: a call was made before that for an older change");
    }
    cluster.assert_no_dead_letters();
    check_lagging(&cluster, &client, last);
}

/// A trigger that is paused while all slots move, and one that fails all the time: the move ends, and what has waited
/// is called at the new owner.
fn check_lagging(cluster: &TriggeredCluster, client: &blocking::Client, last: u64) {
    cluster.move_all_to(0);
    cluster.servers[0].json("trigger set order --retries 100 --tenant shop");
    let put = |key: &str, number: u64| {
        client.put(cluster.items, key.as_bytes(), &number.to_le_bytes(), &PutOptions::default()).unwrap();
    };
    put("refused", 1);
    let fails = |server: &Server| {
        let list = server.json("trigger show order --tenant shop");
        list["last_error"].as_str().is_some_and(|error| error.contains("not yet"))
    };
    assert!(eventually(|| fails(&cluster.servers[0])));
    cluster.move_all_to(1);
    // Paused at one, so at all.
    cluster.servers[1].json("trigger pause order --tenant shop");
    let is_paused = |server: &Server| server.json("trigger show order --tenant shop")["state"] == "paused";
    assert!(eventually(|| cluster.servers.iter().all(is_paused)));
    cluster.move_all_to(0);
    (0..KEYS).for_each(|key| put(&format!("k{key}"), last + 1));
    cluster.move_all_to(1);
    assert!((0..KEYS).all(|key| cluster.seen(client, &format!("k{key}")).0 == last), "its trigger is paused");
    cluster.servers[0].json("trigger resume order --tenant shop");
    // What has failed is tried at the new owner, too. Keys that share its place in the queue have waited behind it.
    client.put(cluster.seen, b"{refused}open", b"1", &PutOptions::default()).unwrap();
    for key in 0..KEYS {
        let key = format!("k{key}");
        let is_seen = || cluster.seen(client, &key) == (last + 1, false);
        let lists = || cluster.servers.iter().map(|server| server.json("trigger list --tenant shop").to_string());
        assert!(
            eventually(is_seen),
            "{key}: {last}, {:?}: {}",
            cluster.seen(client, &key),
            lists().collect::<String>()
        );
    }
    assert!(eventually(|| cluster.seen(client, "refused") == (1, false)));
    cluster.assert_no_dead_letters();
}

/// What a server shows of a schedule.
fn schedule(cluster: &TriggeredCluster, at: usize, name: &str) -> Option<Value> {
    let told = cluster.servers[at].json("trigger list --tenant shop");
    told.as_array().unwrap().iter().find(|one| one["name"] == name).cloned()
}

/// Those of a server that makes the schedule's calls no more: all slots move from the first server to the second.
fn check_dead_letters_of_a_schedule(cluster: &TriggeredCluster) {
    let made = "trigger create strict --extension in_order --every 100ms --args refused --retries 0 --tenant shop";
    cluster.servers[0].json(made);
    let letters = |at: usize| schedule(cluster, at, "strict").and_then(|one| one["dead_letters"].as_u64());
    assert!(eventually(|| letters(0) >= Some(2)));
    cluster.client(0).put(cluster.seen, b"{refused}open", b"1", &PutOptions::default()).unwrap();
    cluster.move_all_to(1);
    assert!(eventually(|| schedule(cluster, 0, "strict").is_some_and(|one| one["state"] == "waiting")));
    assert!(letters(0) >= Some(2));
    cluster.servers[0].json("trigger replay strict --tenant shop");
    assert!(eventually(|| letters(0) == Some(0)), "{:?}", schedule(cluster, 0, "strict"));
}

/// Calls of the schedule that have succeeded at each server.
fn ticks(cluster: &TriggeredCluster) -> [u64; 2] {
    [0, 1].map(|at: usize| schedule(cluster, at, "clock").map_or(0, |one| one["succeeded"].as_u64().unwrap()))
}

#[test]
fn a_schedule_runs_at_one_server_whatever_moves() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let cluster = TriggeredCluster::start(&etcd);
    cluster.servers[1].json("trigger create clock --extension in_order --every 100ms --tenant shop");
    for home in [0, 1, 0] {
        cluster.move_all_to(home);
        // The former owner of the slot has read by now that it owns it no more.
        let shown = |at: usize, name: &str| schedule(&cluster, at, name);
        assert!(eventually(|| shown(home, "clock").is_some_and(|one| one["state"] == "running")));
        // A call that was not over there is made here.
        let is_over = |one: Value| one["state"] == "waiting" && one["open"] == 0;
        assert!(eventually(|| shown(1 - home, "clock").is_some_and(is_over)));
        let before = ticks(&cluster);
        assert!(eventually(|| ticks(&cluster)[home] >= before[home] + 3));
        assert_eq!(ticks(&cluster)[1 - home], before[1 - home], "two make the same calls");
    }
    cluster.servers[0].json("trigger delete clock --tenant shop");
    check_dead_letters_of_a_schedule(&cluster);
    cluster.servers[0].json("trigger delete strict --tenant shop");
    assert!(eventually(|| {
        cluster.servers.iter().all(|server| server.json("trigger list --tenant shop").as_array().unwrap().is_empty())
    }));
}
