//! Promise (docs/cluster.md): slots of tables whose records are not all in memory move, too, while clients write to
//! them: a table larger than memory comes over with what is on the disk, a table with a backing leaves its objects
//! where they are. What was acknowledged is there afterwards, what was deleted is not, and no older object has won.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sandstorm_client::{Config, PutOptions, blocking};
use serde_json::Value;

use super::cluster::{EtcdProcess, start, status};
use crate::common::eventually;
use crate::common::process::Server;

/// The ids of the tables in the configuration.
const LARGE: u64 = 1;
const FRONT: u64 = 2;
/// Records of the table larger than memory, of which a quarter fits.
const RECORDS: u32 = 3_000;
const VALUE_BYTES: usize = 1_400;
/// Keys of a writer. It deletes with each fourth operation: no multiple of four, so that each key is deleted at times.
const KEYS: usize = 41;
const DEADLINE: Duration = Duration::from_secs(5);

/// What a client knows of a key: what it may have. One that is not known has one of several values.
type KnownKeys = BTreeMap<String, Vec<Option<String>>>;

/// Where the servers are now: their data ports.
type Addresses = Arc<Mutex<Vec<String>>>;

/// Two servers.
struct PartialCluster {
    servers: Vec<Server>,
    options: Vec<String>,
    addresses: Addresses,
}

impl PartialCluster {
    fn start(etcd: &EtcdProcess, config: &Path) -> PartialCluster {
        let (cluster, config) = (etcd.cluster(), config.display().to_string());
        let all = ["--data", "127.0.0.1:0", "--workers", "1", "--no-builder", "--config", &config];
        let more = ["--cluster", &cluster, "--cluster-servers", "2"];
        let options: Vec<String> = all.iter().chain(&more).map(|word| (*word).to_owned()).collect();
        let servers: Vec<Server> = (0..2).map(|_| start(Arc::new(tempfile::tempdir().unwrap()), &options)).collect();
        for server in &servers {
            assert!(eventually(|| status(server)["epoch"].as_u64() >= Some(1)), "{}", status(server));
        }
        let addresses = Arc::new(Mutex::new(servers.iter().map(|server| server.data.clone()).collect()));
        PartialCluster { servers, options, addresses }
    }

    /// Kills a server, and starts it again with its files.
    fn kill(&mut self, at: usize) {
        let mut killed = self.servers.remove(at);
        let folder = Arc::clone(&killed.folder);
        killed.process.kill().unwrap();
        killed.process.wait().unwrap();
        drop(killed);
        self.servers.insert(at, start(folder, &self.options));
        self.addresses.lock().unwrap()[at].clone_from(&self.servers[at].data);
    }

    fn id(&self, at: usize) -> String {
        status(&self.servers[at])["server"].as_str().unwrap().to_owned()
    }

    /// The number of slots of a server.
    fn slots(&self, at: usize) -> u64 {
        let (id, told) = (self.id(at), status(&self.servers[at]));
        let own = told["servers"].as_array().unwrap().iter().find(|server| server["id"] == id.as_str()).unwrap();
        let length = |range: &Value| range[1].as_u64().unwrap() - range[0].as_u64().unwrap() + 1;
        own["slots"].as_array().unwrap().iter().map(length).sum()
    }

    fn await_copying(&self, target: usize) {
        let copies = |one: &Value| one["records"].as_u64() > Some(0) || one["handed_over"] == true;
        assert!(eventually(|| {
            let moves = status(&self.servers[target])["moves"].as_array().cloned().unwrap_or_default();
            moves.is_empty() || moves.iter().any(copies)
        }));
    }

    fn await_end(&self) {
        let is_over = |server: &Server| status(server)["moves"].as_array().is_none_or(Vec::is_empty);
        assert!(eventually(|| self.servers.iter().all(is_over)), "{}", status(&self.servers[0]));
    }

    fn client(&self, at: usize) -> blocking::Client {
        let config = Config::new(self.servers[at].data.parse().unwrap(), 1).deadline(Duration::from_secs(60));
        blocking::Client::connect(config).unwrap()
    }
}

/// Puts and deletes keys of its own until it is told to stop. Returns what it knows of them, and how many records it
/// has deleted that were there.
fn start_writer(table: u64, addresses: &Addresses, stop: &Arc<AtomicBool>) -> JoinHandle<(KnownKeys, usize)> {
    let (addresses, stop) = (Arc::clone(addresses), Arc::clone(stop));
    thread::spawn(move || {
        let (mut known, mut number, mut client): (KnownKeys, usize, Option<blocking::Client>) = Default::default();
        let mut deleted = 0;
        while !stop.load(Ordering::Acquire) {
            number += 1;
            let key = format!("own:{}", number * 7 % KEYS);
            let value = (number % 4 != 0).then(|| format!("{number}:{}", "x".repeat(number % 900)));
            if client.is_none() {
                let address = addresses.lock().unwrap()[number % 2].parse().unwrap();
                client = blocking::Client::connect(Config::new(address, 1).deadline(DEADLINE)).ok();
            }
            let Some(connected) = &client else { continue };
            let done = match &value {
                Some(value) => connected.put(table, key.as_bytes(), value.as_bytes(), &PutOptions::default()).map(drop),
                None => connected.delete(table, key.as_bytes()).map(drop),
            };
            let may = known.entry(key).or_insert_with(|| vec![None]);
            if done.is_ok() {
                deleted += usize::from(value.is_none() && may.iter().all(Option::is_some));
                may.clear();
            } else {
                client = None;
            }
            may.push(value);
        }
        (known, deleted)
    })
}

/// Every key has what its writer was told, by either server.
fn check(cluster: &PartialCluster, table: u64, known: &KnownKeys) {
    for at in 0..2 {
        let client = cluster.client(at);
        for (key, may) in known {
            let found = client.get(table, key.as_bytes()).unwrap();
            let found = found.map(|record| String::from_utf8_lossy(&record.value).into_owned());
            let told = may.iter().map(|value| value.as_ref().map(String::len)).collect::<Vec<_>>();
            assert!(may.contains(&found), "table {table}, {key}: {:?} of {told:?}", found.map(|text| text.len()));
        }
    }
}

fn value_of(number: u32) -> Vec<u8> {
    vec![b'a' + (number % 26) as u8; VALUE_BYTES]
}

/// What was written before is there, most of it on the disk.
fn check_records(cluster: &PartialCluster) {
    let client = cluster.client(0);
    for number in 0..RECORDS {
        let found = client.get(LARGE, format!("old:{number}").as_bytes()).unwrap();
        assert!(found.is_some_and(|record| record.value[..] == value_of(number)[..]), "old:{number}");
    }
}

fn fill(cluster: &PartialCluster) {
    let client = cluster.client(0);
    for number in 0..RECORDS {
        let key = format!("old:{number}");
        client.put(LARGE, key.as_bytes(), &value_of(number), &PutOptions::default()).unwrap();
        if number.is_multiple_of(20) {
            client.put(FRONT, key.as_bytes(), &value_of(number), &PutOptions::default()).unwrap();
        }
    }
}

/// A move that is cancelled leaves all where it was.
fn check_cancel(cluster: &PartialCluster, source: usize, target: usize) {
    let (before, server) = (cluster.slots(source), &cluster.servers[source]);
    server.json(&format!("cluster move 0-16383 --to {} --rate 1", cluster.id(target)));
    cluster.await_copying(target);
    let _too_late_if_it_was_quick = server.output("cluster move 0-16383 --cancel");
    cluster.await_end();
    if cluster.slots(source) != before {
        cluster.servers[target].json(&format!("cluster move 0-8191 --to {}", cluster.id(source)));
        cluster.await_end();
    }
}

#[test]
fn slots_of_tables_that_are_not_all_in_memory_move_while_they_are_written_to() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (config, behind) = (folder.path().join("tenants.toml"), folder.path().join("behind"));
    let url = format!("file://{}", behind.display());
    let tables = format!(
        "{{ name = 'large', id = 1, mode = 'spill', durability = 'disk', quota_bytes = 1048576 }}, {{ name = 'front', \
         id = 2, mode = 'cache', durability = 'disk', quota_bytes = 4194304, backing = {{ url = '{url}', policy = \
         'write-back', flush_after_ms = 600000 }} }}"
    );
    let tenant = format!("[[tenants]]\nname = 'shop'\nid = 1\nopen = true\ntables = [{tables}]\n");
    fs::write(&config, tenant).unwrap();
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let mut cluster = PartialCluster::start(&etcd, &config);
    fill(&cluster);
    let source = usize::from(cluster.slots(1) > cluster.slots(0));
    let target = 1 - source;
    let stop = Arc::new(AtomicBool::new(false));
    let writers = [LARGE, FRONT].map(|table| (table, start_writer(table, &cluster.addresses, &stop)));

    check_cancel(&cluster, source, target);
    let all = |to: usize| format!("cluster move 0-16383 --to {}", cluster.id(to));
    let lines = [all(target), all(source)];
    cluster.servers[target].json(&format!("{} --rate 2", lines[0]));
    cluster.await_copying(target);
    cluster.kill(source);
    cluster.await_copying(target);
    cluster.kill(target);
    cluster.await_end();
    assert!(eventually(|| (cluster.slots(source), cluster.slots(target)) == (0, 16_384)));
    cluster.servers[source].json(&lines[1]);
    cluster.await_end();
    assert!(eventually(|| (cluster.slots(source), cluster.slots(target)) == (16_384, 0)));

    stop.store(true, Ordering::Release);
    let known = writers.map(|(table, writer)| {
        let (known, deleted) = writer.join().unwrap();
        assert!(deleted > 0, "nothing that was there was deleted in table {table}");
        (table, known)
    });
    known.iter().for_each(|(table, known)| check(&cluster, *table, known));
    check_records(&cluster);
    // What each has brought back from its log, or has not removed yet, changes nothing: not in the folder either.
    (0..2).for_each(|at| cluster.kill(at));
    known.iter().for_each(|(table, known)| check(&cluster, *table, known));
    let flushed = |at: usize| cluster.servers[at].output("--tenant shop table flush front").status.success();
    assert!(flushed(0) && flushed(1));
    let dirty = |at: usize| cluster.servers[at].json("--tenant shop table show front")["backing"]["dirty_keys"].clone();
    assert_eq!((dirty(0), dirty(1)), (0.into(), 0.into()));
    for (key, may) in &known[1].1 {
        let object = fs::read(behind.join(key.replace(':', "=3A"))).ok();
        // A value is the end of its object.
        let is_one = |value: &Option<String>| match (value, &object) {
            (Some(value), Some(object)) => object.ends_with(value.as_bytes()),
            (None, None) => true,
            _ => false,
        };
        assert!(may.iter().any(is_one), "the object of {key}");
    }
}
