//! Promise (docs/cluster.md): slots move from one server to another while clients write to them, over their own
//! protocol and Redis'. What was acknowledged is there afterwards, and each increment counts once, though both servers
//! are killed meanwhile. A move that is cancelled leaves all where it was.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sandstorm_client::{Config, blocking};
use serde_json::Value;

use super::cluster::{EtcdProcess, start, status};
use crate::common::eventually;
use crate::common::process::Server;

/// The id of the table in the configuration.
const ITEMS: u64 = 1;
/// Keys of each writer: some are in the slots that move.
const KEYS: usize = 24;
/// Records that lie there, so that a copy has some pages: 8 MiB.
const RECORDS: usize = 8_000;
const VALUE_BYTES: usize = 1_000;
/// How long a writer waits for an answer. What is not answered is not known.
const DEADLINE: Duration = Duration::from_secs(5);

/// Where the servers are now: their data and Redis ports.
type Addresses = Arc<Mutex<Vec<(String, String)>>>;

/// What clients know of a key: the sum or the value that was acknowledged last, and what may have happened besides.
#[derive(Clone, Debug, Default)]
struct KnownKey {
    acknowledged: i64,
    unknown: i64,
}

type KnownKeys = BTreeMap<String, KnownKey>;

/// Something that writes to keys of its own.
trait KeyWriter {
    /// One write: adds one to a counter, or puts a number. `None`: whether it was done is not known.
    fn write(&mut self, key: &str, number: i64) -> Option<()>;
}

/// By the own protocol: increments.
struct OwnWriter {
    addresses: Addresses,
    first: usize,
    client: Option<blocking::Client>,
}

impl KeyWriter for OwnWriter {
    fn write(&mut self, key: &str, _number: i64) -> Option<()> {
        if self.client.is_none() {
            // The other one, next time: this one may be gone.
            self.first += 1;
            let addresses = self.addresses.lock().unwrap();
            let data = addresses[self.first % addresses.len()].0.parse().unwrap();
            drop(addresses);
            self.client = blocking::Client::connect(Config::new(data, 1).deadline(DEADLINE)).ok();
        }
        let done = self.client.as_ref()?.increment(ITEMS, key.as_bytes(), 1);
        if done.is_err() {
            self.client = None;
        }
        done.ok().map(drop)
    }
}

/// By Redis' protocol, as a client of Redis Cluster does it.
struct RedisWriter {
    addresses: Addresses,
    at: usize,
    links: BTreeMap<String, BufReader<TcpStream>>,
    increments: bool,
}

impl RedisWriter {
    fn ask(&mut self, address: &str, command: &str) -> std::io::Result<String> {
        if !self.links.contains_key(address) {
            let stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(DEADLINE))?;
            self.links.insert(address.to_owned(), BufReader::new(stream));
        }
        let link = self.links.get_mut(address).unwrap();
        link.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut line = String::new();
        if link.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl KeyWriter for RedisWriter {
    fn write(&mut self, key: &str, number: i64) -> Option<()> {
        let command = if self.increments { format!("incr {key}") } else { format!("set {key} {number}") };
        let mut address = {
            let addresses = self.addresses.lock().unwrap();
            addresses[self.at % addresses.len()].1.clone()
        };
        // Each of these answers says that nothing was done.
        for _ in 0..10_000 {
            match self.ask(&address, &command) {
                Ok(answer) if answer.starts_with("-MOVED ") => {
                    address = answer.split(' ').nth(2).unwrap().to_owned();
                }
                Ok(answer) if ["-TRYAGAIN", "-CLUSTERDOWN", "-LOADING"].iter().any(|word| answer.starts_with(word)) => {
                    thread::sleep(Duration::from_millis(2));
                }
                Ok(answer) => {
                    assert!(answer.starts_with(':') || answer == "+OK", "{command}: {answer}");
                    return Some(());
                }
                Err(_) => {
                    self.links.remove(&address);
                    self.at += 1;
                    return None;
                }
            }
        }
        None
    }
}

/// Writes to its keys until it is told to stop; returns what it knows of them.
fn start_writer(
    name: &str,
    mut writer: impl KeyWriter + Send + 'static,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<KnownKeys> {
    let (name, stop) = (name.to_owned(), Arc::clone(stop));
    thread::spawn(move || {
        let mut known = KnownKeys::new();
        let mut number = 0;
        while !stop.load(Ordering::Acquire) {
            number += 1;
            let key = format!("{name}:{}", number as usize % KEYS);
            let of_key = known.entry(key.clone()).or_default();
            match writer.write(&key, number) {
                Some(()) if name == "put" => *of_key = KnownKey { acknowledged: number, unknown: 0 },
                Some(()) => of_key.acknowledged += 1,
                None if name == "put" => of_key.unknown = number,
                None => of_key.unknown += 1,
            }
        }
        known
    })
}

/// The cluster of two, with its clients.
struct MovingCluster {
    servers: Vec<Server>,
    options: Vec<String>,
    addresses: Addresses,
}

fn own(server: &Server) -> Option<Value> {
    let told = status(server);
    told["servers"].as_array()?.iter().find(|server| server["is_this"] == true).cloned()
}

impl MovingCluster {
    fn start(etcd: &EtcdProcess, config: &Path) -> MovingCluster {
        let (cluster, config) = (etcd.cluster(), config.display().to_string());
        let all = ["--data", "127.0.0.1:0", "--workers", "1", "--no-builder", "--config", &config];
        let more = ["--redis", "127.0.0.1:0=shop/items", "--cluster", &cluster, "--cluster-servers", "2"];
        let options: Vec<String> = all.iter().chain(&more).map(|word| (*word).to_owned()).collect();
        let servers: Vec<Server> = (0..2).map(|_| start(Arc::new(tempfile::tempdir().unwrap()), &options)).collect();
        for server in &servers {
            assert!(eventually(|| status(server)["epoch"].as_u64() >= Some(1)), "{}", status(server));
        }
        let addresses = Arc::new(Mutex::new(vec![(String::new(), String::new()); 2]));
        let cluster = MovingCluster { servers, options, addresses };
        (0..2).for_each(|at| cluster.note_address(at));
        cluster
    }

    fn note_address(&self, at: usize) {
        let server = &self.servers[at];
        // Until it has told of itself the map has where it was before.
        assert!(eventually(|| own(server).is_some_and(|own| own["data_address"] == server.data.as_str())));
        let redis = own(server).unwrap()["redis_address"].as_str().unwrap().to_owned();
        self.addresses.lock().unwrap()[at] = (server.data.clone(), redis);
    }

    /// Kills a server, and starts it again with its files.
    fn kill(&mut self, at: usize) {
        let mut killed = self.servers.remove(at);
        let folder = Arc::clone(&killed.folder);
        killed.process.kill().unwrap();
        killed.process.wait().unwrap();
        drop(killed);
        self.servers.insert(at, start(folder, &self.options));
        self.note_address(at);
    }

    fn id(&self, at: usize) -> String {
        status(&self.servers[at])["server"].as_str().unwrap().to_owned()
    }

    fn moves(&self, at: usize) -> Vec<Value> {
        status(&self.servers[at])["moves"].as_array().cloned().unwrap_or_default()
    }

    /// The slots of a server, as both tell.
    fn slots(&self, at: usize) -> String {
        let id = self.id(at);
        let of = |told: Value| {
            let servers = told["servers"].as_array().cloned().unwrap_or_default();
            servers.iter().find(|server| server["id"] == id.as_str()).map(|server| server["slots"].to_string())
        };
        let told: Vec<Option<String>> = self.servers.iter().map(|server| of(status(server))).collect();
        format!("{told:?}")
    }

    /// Waits until records are copied to a server; also where the move is over by then.
    fn await_copying(&self, target: usize) {
        let copies = |one: &Value| one["records"].as_u64() > Some(0) || one["handed_over"] == true;
        assert!(eventually(|| {
            let moves = self.moves(target);
            moves.is_empty() || moves.iter().any(copies)
        }));
    }

    /// Waits until no move is under way.
    fn await_end(&self) {
        let ended = || (0..2).all(|at| self.moves(at).is_empty());
        assert!(eventually(ended), "{}", status(&self.servers[0]));
    }
}

/// Every key is as its writer was told. Returns how many are there.
fn check(cluster: &MovingCluster, known: &KnownKeys) -> u64 {
    let data = cluster.servers[0].data.parse().unwrap();
    let client = blocking::Client::connect(Config::new(data, 1).deadline(Duration::from_secs(60))).unwrap();
    let (mut acknowledged, mut there) = (0, 0);
    for (key, known) in known {
        let found = client.get(ITEMS, key.as_bytes()).unwrap();
        there += u64::from(found.is_some());
        let found: i64 = found.map_or(0, |record| String::from_utf8_lossy(&record.value).parse().unwrap());
        let KnownKey { acknowledged: least, unknown } = *known;
        let is_right = match key.starts_with("put:") {
            true => found == least || unknown > least && (least..=unknown).contains(&found),
            false => (least..=least + unknown).contains(&found),
        };
        assert!(is_right, "{key}: {found}, and the clients know of {known:?}");
        acknowledged += least;
    }
    assert!(acknowledged > 0, "nothing was written");
    there
}

/// All records of the load are there, each at one server.
fn count_records(cluster: &MovingCluster) -> u64 {
    let ports: Vec<String> = cluster.addresses.lock().unwrap().iter().map(|(_, redis)| redis.clone()).collect();
    let count = |port: &String| {
        let mut stream = TcpStream::connect(port).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(b"dbsize\r\nquit\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap().trim_start_matches(':').parse::<u64>().unwrap()
    };
    ports.iter().map(count).sum()
}

/// A load that goes on while slots move.
fn start_load(server: &Server) -> Child {
    let mut load = server.load_command();
    load.args([
        "--tenant",
        "shop",
        "--table",
        "items",
        "--mix",
        "ycsb-b",
        "--deadline",
        "30",
        "--seconds",
        "3",
        "--json",
    ]);
    load.args(["--records", &RECORDS.to_string(), "--value-bytes", &VALUE_BYTES.to_string()]);
    load.stdout(Stdio::piped()).spawn().unwrap()
}

fn check_load(mut load: Child) {
    if !eventually(|| load.try_wait().unwrap().is_some()) {
        load.kill().unwrap();
    }
    let output = load.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["tenants"][0]["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["wrong"] == 0 && row["ok"].as_u64() > Some(0)), "{report}");
}

#[test]
fn slots_move_under_load_while_both_servers_are_killed() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenants.toml");
    let tenant =
        "[[tenants]]\nname = 'shop'\nid = 1\nopen = true\ntables = [{ name = 'items', id = 1, durability = 'disk' }]\n";
    fs::write(&config, tenant).unwrap();
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let mut cluster = MovingCluster::start(&etcd, &config);
    let fill =
        format!("load --tenant shop --table items --records {RECORDS} --value-bytes {VALUE_BYTES} --fill --seconds 0");
    cluster.servers[0].json(&fill);
    assert_eq!(count_records(&cluster), RECORDS as u64);
    // The first server has the lower half of the slots, or the upper one.
    let source = usize::from(!cluster.slots(0).contains("[0,8191]"));
    let target = 1 - source;

    let stop = Arc::new(AtomicBool::new(false));
    let addresses = || Arc::clone(&cluster.addresses);
    let redis = |increments| RedisWriter { addresses: addresses(), at: 0, links: BTreeMap::new(), increments };
    let writers = [
        start_writer("own", OwnWriter { addresses: addresses(), first: 0, client: None }, &stop),
        start_writer("redis", redis(true), &stop),
        start_writer("put", redis(false), &stop),
    ];

    check_cancel(&cluster, source, target);
    let to = cluster.id(target);
    cluster.servers[target].json(&format!("cluster move 1000-8191 --to {} --rate 2", &to[..10]));
    cluster.await_copying(target);
    cluster.kill(source);
    cluster.await_copying(target);
    cluster.kill(target);
    cluster.await_end();
    assert!(eventually(|| cluster.slots(target) == r#"[Some("[[1000,16383]]"), Some("[[1000,16383]]")]"#));

    // And back, while a load follows its keys.
    let load = start_load(&cluster.servers[target]);
    cluster.servers[source].json(&format!("cluster move 1000-8191 --to {}", cluster.id(source)));
    cluster.await_end();
    assert!(eventually(|| cluster.slots(source) == r#"[Some("[[0,8191]]"), Some("[[0,8191]]")]"#));
    check_load(load);

    stop.store(true, Ordering::Release);
    let known: KnownKeys = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    let there = check(&cluster, &known);
    // What was copied for the moves that were cancelled goes behind them.
    let is_once = || count_records(&cluster) == RECORDS as u64 + there;
    assert!(eventually(is_once), "each record is at one server: {}", count_records(&cluster));
}

/// A move that is cancelled leaves the slots where they are, but for what was handed over before.
fn check_cancel(cluster: &MovingCluster, source: usize, target: usize) {
    let (before, to) = (cluster.slots(source), cluster.id(target));
    let server = &cluster.servers[source];
    let begun = server.json(&format!("cluster move 0-3999,4001-8191 --to {to} --rate 1"));
    assert_eq!(begun["moves"], 2);
    let cancelled = server.output("cluster move 0-8191 --cancel");
    cluster.await_end();
    if cluster.slots(source) != before {
        // One of them was quick, or both.
        server.json(&format!("cluster move 0-8191 --to {}", cluster.id(source)));
        cluster.await_end();
    }
    assert!(eventually(|| cluster.slots(source) == before), "{cancelled:?}");
    for (line, why) in [
        ("cluster move 0-8191 --cancel".to_owned(), "none of these slots is moving"),
        ("cluster move 50 --to ffffffffffffffffffffff".to_owned(), "no server of the cluster"),
        (format!("cluster move 50 --to {}", cluster.id(source)), "owns these slots already"),
        (format!("cluster move 9-5 --to {to}"), "no slot, nor a range"),
    ] {
        let refused = server.output(&line);
        assert!(String::from_utf8_lossy(&refused.stderr).contains(why), "{refused:?}");
    }
}
