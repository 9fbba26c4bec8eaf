//! Promise (docs/cluster.md): a server that is killed or stopped is replaced by itself, by one that has a copy of its
//! log, and nothing that was acknowledged is lost. One that is stopped in order is not replaced, and none is where
//! failover is by command.
//!
//! How fast the machine is does not matter here. A server that lives, and has no processor for long, may be taken for
//! gone as well: it loses its place and no record, and gets its share of the slots again by command.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandstorm_client::{Config, PutOptions, blocking};
use serde_json::Value;
use tempfile::TempDir;

use super::cluster::{EtcdProcess, start, status};
use super::cluster_copies::{
    ITEMS, KnownKeys, SERVERS, await_succession, check, count_up, have_copies, id, options, shown,
};
use crate::common::eventually;
use crate::common::process::Server;

/// Three servers with a table of durability `copies`.
pub(super) struct CopyingCluster {
    pub(super) servers: Vec<Server>,
    pub(super) ids: Vec<String>,
    options: Vec<String>,
    _config: TempDir,
    pub(super) etcd: EtcdProcess,
}

impl CopyingCluster {
    /// Starts one; `None`, with a line, without etcd.
    pub(super) fn start(failover: &str) -> Option<CopyingCluster> {
        let etcd = EtcdProcess::start()?;
        let folder = tempfile::tempdir().unwrap();
        let config = write_tenant(&folder, COPIED_TABLE);
        assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
        let options = options(&etcd, &config, failover);
        let servers: Vec<Server> =
            (0..SERVERS).map(|_| start(Arc::new(tempfile::tempdir().unwrap()), &options)).collect();
        Some(CopyingCluster { options, ..CopyingCluster::of(servers, folder, etcd) })
    }

    /// One of servers that were just started; waits until it is whole.
    pub(super) fn of(servers: Vec<Server>, config: TempDir, etcd: EtcdProcess) -> CopyingCluster {
        let ids = servers.iter().map(id).collect();
        let cluster = CopyingCluster { servers, ids, options: Vec::new(), _config: config, etcd };
        assert!(eventually(|| status(cluster.last())["epoch"].as_u64() >= Some(1)));
        cluster.await_whole();
        cluster
    }

    /// The server that is never stopped.
    pub(super) fn last(&self) -> &Server {
        self.servers.last().expect("it is never removed")
    }

    /// Gives servers that run and own nothing their share again, which says that they are well, too.
    fn mend(&self, away: Option<&str>) {
        for id in self.ids.iter().filter(|id| Some(id.as_str()) != away) {
            if owns_nothing(&shown(self.last(), id)) {
                // Refused while a place is being taken: it is tried again.
                let _later = self.last().output(&format!("cluster add {id}"));
            }
        }
    }

    /// Waits until all servers own slots and have copies of their logs on others, and none moves.
    pub(super) fn await_whole(&self) {
        let all: Vec<&String> = self.ids.iter().collect();
        let is_whole = || {
            self.mend(None);
            let is_owner = |id: &String| {
                let server = shown(self.last(), id);
                server["lives"] == true && !owns_nothing(&server)
            };
            self.ids.iter().all(is_owner)
                && status(self.last())["moves"].as_array().is_some_and(Vec::is_empty)
                && have_copies(self.last(), &all)
        };
        assert!(eventually(is_whole), "{}", status(self.last()));
    }

    /// Waits until others have all slots of a server that is away.
    pub(super) fn await_replaced(&self, gone: &str) {
        let is_over = || {
            self.mend(Some(gone));
            let status = status(self.last());
            let generations = status["copies"]["generations"].as_array().cloned().unwrap_or_default();
            owns_nothing(&shown(self.last(), gone))
                && status["unowned"] == Value::Array(vec![])
                && generations.iter().all(|one| one["successor"].is_null())
        };
        assert!(eventually(is_over), "{}", status(self.last()));
    }

    /// Kills the first server; returns its folder.
    pub(super) fn kill_first(&mut self) -> Arc<TempDir> {
        let mut killed = self.servers.remove(0);
        let folder = Arc::clone(&killed.folder);
        killed.process.kill().unwrap();
        killed.process.wait().unwrap();
        folder
    }

    /// The servers have what is there of one's log, as the others are shown it.
    pub(super) fn suspicion(&self, of: &str) -> Option<Value> {
        let told = |server: &Server| {
            let status = status(server);
            let suspected = status["copies"]["suspected"].as_array().cloned().unwrap_or_default();
            suspected.into_iter().find(|one| one["server"] == of && one["obstacle"].is_string())
        };
        self.servers.iter().find_map(told)
    }

    fn has_event(&self, code: &str, of: &str) -> bool {
        let told = |server: &Server| {
            // A line each.
            let events = String::from_utf8(server.output("events --json").stdout).unwrap();
            let mut events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            events.any(|event| event["code"] == code && event["subject"] == of)
        };
        self.servers.iter().any(told)
    }
}

/// The table of the configuration.
pub(super) const COPIED_TABLE: &str = "{ name = 'items', id = 1, durability = 'copies' }";

/// Writes a configuration with these tables; returns its file.
pub(super) fn write_tenant(folder: &TempDir, tables: &str) -> PathBuf {
    let config = folder.path().join("tenants.toml");
    let tenant = format!("[[tenants]]\nname = 'shop'\nid = 1\nopen = true\ntables = [{tables}]\n");
    fs::write(&config, tenant).unwrap();
    config
}

pub(super) fn owns_nothing(server: &Value) -> bool {
    server["slots"].as_array().is_some_and(Vec::is_empty)
}

#[test]
fn a_server_that_is_killed_or_stopped_is_replaced_by_itself_and_loses_nothing() {
    let Some(mut cluster) = CopyingCluster::start("automatic") else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<JoinHandle<KnownKeys>> =
        (0..2).map(|number| count_up(&cluster.servers[2], number, &stop)).collect();
    let killed = cluster.ids[0].clone();
    let folder = cluster.kill_first();
    cluster.await_replaced(&killed);
    assert!(eventually(|| cluster.has_event("cluster.failover_begun", &killed)));
    assert!(eventually(|| cluster.has_event("cluster.failover_done", &killed)));
    // It starts again: it owns nothing, and is a member as any other.
    cluster.servers.insert(0, start(folder, &cluster.options));
    let by = &cluster.servers[2];
    let is_back = || shown(by, &killed)["lives"] == true && status(by)["moves"].as_array().is_some_and(Vec::is_empty);
    assert!(eventually(is_back), "{}", status(by));
    assert!(owns_nothing(&shown(&cluster.servers[0], &killed)));
    let client = blocking::Client::connect(Config::new(cluster.servers[0].data.parse().unwrap(), 1)).unwrap();
    assert!(eventually(|| client.put(ITEMS, b"member", b"1", &PutOptions::default()).is_ok()));

    // Again, where the server was taken for gone just before it was stopped.
    assert!(eventually(|| was_stopped_in_order(&mut cluster)));
    assert!(eventually(|| has_slept(&cluster)));
    stop.store(true, Ordering::Release);
    let known: KnownKeys = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    check(&cluster.servers[2], &known);
}

/// A server that is stopped in order keeps its place, and serves it when it is back. Returns whether it had it when it
/// was stopped.
fn was_stopped_in_order(cluster: &mut CopyingCluster) -> bool {
    let stopped = cluster.ids[1].clone();
    cluster.await_whole();
    let server = cluster.servers.remove(1);
    let folder = Arc::clone(&server.folder);
    drop(server);
    // The one that has the copy of its log says that it is gone, and why it does not take its place: at once, and when
    // it has looked a hundred times more.
    let is_kept = |silent_ms: u64| {
        let found = cluster.suspicion(&stopped);
        let is_long = |one: &Value| one["silent_ms"].as_u64() > Some(silent_ms);
        found.is_some_and(|one| one["obstacle"].to_string().contains("in order") && is_long(&one))
    };
    let is_taken = || owns_nothing(&shown(cluster.last(), &stopped));
    assert!(eventually(|| is_kept(0) || is_taken()), "{}", status(cluster.last()));
    let was_there = is_kept(0);
    if was_there {
        let slots = shown(cluster.last(), &stopped)["slots"].clone();
        assert!(eventually(|| is_kept(3_000)), "{}", status(cluster.last()));
        assert_eq!(shown(cluster.last(), &stopped)["slots"], slots);
    }
    cluster.servers.insert(1, start(folder, &cluster.options));
    assert!(eventually(|| shown(cluster.last(), &stopped)["lives"] == true));
    was_there
}

/// A server that is stopped by a signal is replaced, and does not show what it knows when it wakes. Returns whether it
/// was there until it was stopped.
fn has_slept(cluster: &CopyingCluster) -> bool {
    cluster.await_whole();
    let (sleeper, by, of) = (&cluster.servers[1], cluster.last(), &cluster.ids[1]);
    let client = blocking::Client::connect(Config::new(by.data.parse().unwrap(), 1)).unwrap();
    let slots = shown(by, of)["slots"].as_array().cloned().unwrap();
    let is_its = |key: &String| {
        let slot = u64::from(sandstorm_net::slots::slot_of(key.as_bytes()));
        slots.iter().any(|range| range[0].as_u64() <= Some(slot) && Some(slot) <= range[1].as_u64())
    };
    let Some(key) = (0..1_000).map(|number| format!("asleep{number}")).find(is_its) else { return false };
    assert!(eventually(|| client.put(ITEMS, key.as_bytes(), b"old", &PutOptions::default()).is_ok()));
    let redis = shown(by, of)["redis_address"].as_str().unwrap().to_owned();
    let mut stream = TcpStream::connect(&redis).unwrap();
    stream.write_all(format!("get {key}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).unwrap();
    if &answer != b"$3\r\nold\r\n" {
        // It has lost its place just before.
        return false;
    }

    let process = Pid::from_child(&sleeper.process);
    kill_process(process, Signal::STOP).unwrap();
    cluster.await_replaced(of);
    assert!(eventually(|| client.put(ITEMS, key.as_bytes(), b"new", &PutOptions::default()).is_ok()));
    // It finds these questions when it wakes, before anything else.
    stream.write_all(format!("get {key}\r\nget {key}\r\nget {key}\r\nquit\r\n").as_bytes()).unwrap();
    kill_process(process, Signal::CONT).unwrap();
    let mut all = Vec::new();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let _closed = stream.read_to_end(&mut all);
    let said = String::from_utf8_lossy(&all);
    assert!(!said.contains("old"), "{said}");
    // It is on probation: whatever it has not heard meanwhile, it takes no place by itself.
    assert!(eventually(|| owns_nothing(&shown(sleeper, of))));
    assert!(eventually(|| status(by)["unowned"] == Value::Array(vec![])));
    true
}

#[test]
fn where_failover_is_by_command_nothing_takes_the_place_of_a_server_that_is_killed() {
    let Some(mut cluster) = CopyingCluster::start("by-command") else { return };
    let killed = cluster.ids[0].clone();
    let slots = shown(&cluster.servers[1], &killed)["slots"].clone();
    cluster.kill_first();
    // The others know that it is gone, and say so.
    let is_known = || cluster.suspicion(&killed).is_some_and(|one| one["obstacle"].to_string().contains("by command"));
    assert!(eventually(is_known), "{}", status(&cluster.servers[1]));
    assert!(eventually(|| cluster.has_event("cluster.failover_not_possible", &killed)));
    let by = &cluster.servers[1];
    assert_eq!(shown(by, &killed)["slots"], slots);
    assert!(!cluster.has_event("cluster.failover_begun", &killed));
    let shown = cluster.servers.iter().map(|server| server.output("cluster status").stdout);
    assert!(shown.map(|text| String::from_utf8(text).unwrap()).any(|text| text.contains("nothing heard of")));
    by.json(&format!("cluster fail-over {killed}"));
    await_succession(by, &killed);
}
