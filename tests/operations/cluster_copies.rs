//! Promise (docs/cluster.md): what a table of durability `copies` acknowledges outlives its server. One that is killed,
//! or stopped, is succeeded by another one that has a copy of its log: nothing that was acknowledged is lost, and no
//! increment counts twice. The one that was stopped shows nothing of it when it wakes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandstorm_client::{Config, Error as ClientError, PutOptions, blocking};
use serde_json::Value;

use super::cluster::{EtcdProcess, start, status};
use super::cluster_servers::fails;
use crate::common::eventually;
use crate::common::process::Server;

/// The id of the table in the configuration.
pub(super) const ITEMS: u64 = 1;
pub(super) const SERVERS: usize = 3;
/// Keys that are counted up: all servers have some.
const KEYS: usize = 60;

/// How long a successor may take to have what it shows confirmed, on a machine that does much else.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);

/// What a client knows of a key: the increments that were acknowledged, and those of which it knows nothing.
pub(super) type KnownKeys = BTreeMap<String, (i64, i64)>;

/// The options of a server: one that takes places by itself, or by command.
pub(super) fn options(etcd: &EtcdProcess, config: &Path, failover: &str) -> Vec<String> {
    let (cluster, config) = (etcd.cluster(), config.display().to_string());
    let all = ["--data", "127.0.0.1:0", "--workers", "1", "--no-builder", "--config", &config];
    let redis = ["--redis", "127.0.0.1:0=shop/items", "--cluster-failover", failover];
    let more = [redis[0], redis[1], redis[2], redis[3], "--cluster", &cluster, "--cluster-servers", "3"];
    all.iter().chain(&more).map(|word| (*word).to_owned()).collect()
}

pub(super) fn id(server: &Server) -> String {
    status(server)["server"].as_str().unwrap().to_owned()
}

/// How a server of some id is shown by another.
pub(super) fn shown(by: &Server, id: &str) -> Value {
    let status = status(by);
    status["servers"].as_array().unwrap().iter().find(|server| server["id"] == id).cloned().unwrap_or_default()
}

/// Whether each of these servers has a copy of its log on another one, as one of them tells.
pub(super) fn have_copies(by: &Server, ids: &[&String]) -> bool {
    let status = status(by);
    let generations = status["copies"]["generations"].as_array().cloned().unwrap_or_default();
    let has_copy = |id: &&String| {
        let found = generations.iter().find(|one| one["owner"] == id.as_str());
        found.is_some_and(|one| !one["servers"].as_array().unwrap().is_empty() && one["successor"].is_null())
    };
    ids.iter().all(has_copy)
}

/// Waits until another server has all slots of one.
pub(super) fn await_succession(by: &Server, gone: &str) {
    let is_over = || {
        let status = status(by);
        let is_owner = !shown(by, gone)["slots"].as_array().is_none_or(Vec::is_empty);
        let generations = status["copies"]["generations"].as_array().cloned().unwrap_or_default();
        !is_owner
            && status["unowned"] == Value::Array(vec![])
            && generations.iter().all(|one| one["successor"].is_null())
    };
    assert!(eventually(is_over), "{}", status(by));
}

/// Counts keys up until it is told to stop; returns what it knows of them.
pub(super) fn count_up(server: &Server, number: usize, stop: &Arc<AtomicBool>) -> JoinHandle<KnownKeys> {
    let (data, stop) = (server.data.parse().unwrap(), Arc::clone(stop));
    thread::spawn(move || {
        let (mut known, mut client, mut round) = (KnownKeys::new(), None::<blocking::Client>, 0);
        while !stop.load(Ordering::Acquire) {
            round += 1;
            let key = format!("{number}:{}", round % KEYS);
            if client.is_none() {
                client = blocking::Client::connect(Config::new(data, 1).deadline(Duration::from_secs(5))).ok();
            }
            let done = client.as_ref().map(|client| client.increment(ITEMS, key.as_bytes(), 1));
            let of_key = known.entry(key).or_default();
            match done {
                Some(Ok(_)) => of_key.0 += 1,
                Some(Err(_)) => {
                    of_key.1 += 1;
                    client = None;
                }
                None => {}
            }
        }
        known
    })
}

/// Every key has what was acknowledged, and no more than what may have been done.
pub(super) fn check(server: &Server, known: &KnownKeys) {
    let config = Config::new(server.data.parse().unwrap(), 1).deadline(Duration::from_secs(60));
    let client = blocking::Client::connect(config).unwrap();
    let mut acknowledged = 0;
    for (key, (least, unknown)) in known {
        let mut asked = client.get(ITEMS, key.as_bytes());
        let since = Instant::now();
        // A copy of the successor that takes long to begin holds up what it has to confirm.
        while matches!(asked, Err(ClientError::NotDurable { .. })) && since.elapsed() < SHOWN_WITHIN {
            asked = client.get(ITEMS, key.as_bytes());
        }
        let found = asked.unwrap();
        let found: i64 = found.map_or(0, |record| String::from_utf8_lossy(&record.value).parse().unwrap());
        assert!((*least..=least + unknown).contains(&found), "{key}: {found}, known are {least} and {unknown}");
        acknowledged += least;
    }
    assert!(acknowledged > 0, "nothing was written");
}

#[test]
fn a_server_that_is_killed_or_stopped_is_succeeded_and_loses_nothing() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenants.toml");
    let table = "{ name = 'items', id = 1, durability = 'copies' }";
    let tenant = format!("[[tenants]]\nname = 'shop'\nid = 1\nopen = true\ntables = [{table}]\n");
    fs::write(&config, &tenant).unwrap();
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let options = options(&etcd, &config, "by-command");
    let mut servers: Vec<Server> =
        (0..SERVERS).map(|_| start(Arc::new(tempfile::tempdir().unwrap()), &options)).collect();
    let ids: Vec<String> = servers.iter().map(id).collect();
    assert!(eventually(|| status(&servers[2])["epoch"].as_u64() >= Some(1)));
    let all: Vec<&String> = ids.iter().collect();
    assert!(eventually(|| have_copies(&servers[2], &all)), "{}", status(&servers[2]));
    let streams = || servers.iter().map(copy_streams).collect::<Vec<_>>();
    assert!(eventually(|| streams().iter().sum::<usize>() >= SERVERS), "they go by requests: {:?}", streams());
    // An unauthenticated sender begins none.
    let mut stranger = TcpStream::connect(&servers[0].control).unwrap();
    let request = "POST /v1/cluster/copy-stream HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: \
                   sandstorm-copies\r\nsandstorm-peer-key: guessed\r\ncontent-length: 0\r\n\r\n";
    stranger.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stranger.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
    let texts = servers.iter().map(|server| String::from_utf8(server.output("cluster status").stdout).unwrap());
    let text = texts.collect::<Vec<_>>().join("\n");
    assert!(text.contains("copies of") && text.contains("confirms") && text.contains("kept here of"), "{text}");

    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<JoinHandle<KnownKeys>> = (0..2).map(|number| count_up(&servers[2], number, &stop)).collect();
    // One is killed, and another one takes its place while clients go on.
    let mut killed = servers.remove(0);
    let state = Arc::clone(&killed.folder);
    killed.process.kill().unwrap();
    killed.process.wait().unwrap();
    drop(killed);
    let by = &servers[1];
    assert!(fails(by, &format!("cluster fail-over {} --to {}", ids[0], ids[0])).contains("cannot read a copy"));
    by.json(&format!("cluster fail-over {}", ids[0]));
    await_succession(by, &ids[0]);
    // It starts again with its files: it owns nothing, and removes what it had.
    servers.insert(0, start(state, &options));
    let is_back = || {
        shown(&servers[2], &ids[0])["lives"] == true
            && status(&servers[2])["moves"].as_array().is_some_and(Vec::is_empty)
    };
    assert!(eventually(is_back), "{}", status(&servers[2]));
    assert!(eventually(|| have_copies(&servers[2], &all)), "{}", status(&servers[2]));

    check_asleep(&servers, &ids);
    stop.store(true, Ordering::Release);
    let known: KnownKeys = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    check(&servers[2], &known);
}

/// Threads of a server that answer questions about copies, each for a connection of its own.
fn copy_streams(server: &Server) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.process.id())).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "copy-stream").count()
}

#[test]
fn questions_about_a_copy_have_a_connection_of_their_own_also_with_tls() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenants.toml");
    let table = "{ name = 'items', id = 1, durability = 'copies' }";
    let tenant = format!("[[tenants]]\nname = 'shop'\nid = 1\nopen = true\ntables = [{table}]\n");
    fs::write(&config, &tenant).unwrap();
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let options = [options(&etcd, &config, "by-command"), vec!["--control-tls".to_owned()]].concat();
    let servers: Vec<Server> = (0..SERVERS).map(|_| start(Arc::new(tempfile::tempdir().unwrap()), &options)).collect();
    let mut plain = TcpStream::connect(&servers[0].control).unwrap();
    plain.write_all(b"GET /v1/health HTTP/1.1\r\n\r\n").unwrap();
    let mut said = String::new();
    let _closed = plain.read_to_string(&mut said);
    assert!(said.contains("this port speaks TLS"), "{said}");
    let client = blocking::Client::connect(Config::new(servers[0].data.parse().unwrap(), 1)).unwrap();
    let put = |key: &str| client.put(ITEMS, key.as_bytes(), b"1", &PutOptions::default()).is_ok();
    assert!((0..20).all(|number| eventually(|| put(&format!("key{number}")))));
    // Each log has a copy on another server.
    let streams = || servers.iter().map(copy_streams).collect::<Vec<_>>();
    assert!(eventually(|| streams().iter().sum::<usize>() >= SERVERS), "they go by requests: {:?}", streams());
}

/// A server that is stopped is succeeded, and does not show what it knows when it wakes.
fn check_asleep(servers: &[Server], ids: &[String]) {
    let (sleeper, by) = (&servers[1], &servers[2]);
    let client = blocking::Client::connect(Config::new(by.data.parse().unwrap(), 1)).unwrap();
    let slots = shown(by, &ids[1])["slots"].as_array().cloned().unwrap();
    let is_its = |key: &String| {
        let slot = u64::from(sandstorm_net::slots::slot_of(key.as_bytes()));
        slots.iter().any(|range| range[0].as_u64() <= Some(slot) && Some(slot) <= range[1].as_u64())
    };
    let key = (0..1_000).map(|number| format!("asleep{number}")).find(is_its).expect("it owns slots");
    client.put(ITEMS, key.as_bytes(), b"old", &PutOptions::default()).unwrap();
    let redis = shown(by, &ids[1])["redis_address"].as_str().unwrap().to_owned();
    let mut stream = TcpStream::connect(&redis).unwrap();
    stream.write_all(format!("get {key}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"$3\r\nold\r\n");

    let process = Pid::from_child(&sleeper.process);
    kill_process(process, Signal::STOP).unwrap();
    by.json(&format!("cluster fail-over {}", ids[1]));
    await_succession(by, &ids[1]);
    // The client begins with a server that lives, and follows the map.
    assert!(eventually(|| client.put(ITEMS, key.as_bytes(), b"new", &PutOptions::default()).is_ok()));
    // It finds this question when it wakes, before anything else.
    stream.write_all(format!("get {key}\r\nget {key}\r\nget {key}\r\nquit\r\n").as_bytes()).unwrap();
    kill_process(process, Signal::CONT).unwrap();
    let mut all = Vec::new();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let _closed = stream.read_to_end(&mut all);
    let said = String::from_utf8_lossy(&all);
    assert!(!said.contains("old"), "{said}");
    assert!(eventually(|| shown(sleeper, &ids[1])["slots"].as_array().is_some_and(Vec::is_empty)));
}

#[test]
fn what_cannot_be_copied_or_would_be_lost_is_refused() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenants.toml");
    let tables = "[{ name = 'items', id = 1, durability = 'disk' }]";
    fs::write(&config, format!("[[tenants]]\nname = 'shop'\nid = 1\nopen = true\ntables = {tables}\n")).unwrap();
    let alone = Server::start_as(&["--workers", "1", "--no-builder", "--config", &config.display().to_string()]);
    assert!(fails(&alone, "table set items --tenant shop --durability copies").contains("is in no cluster"));
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let mut options = options(&etcd, &config, "by-command");
    options.truncate(options.len() - 2);
    let server = start(Arc::new(tempfile::tempdir().unwrap()), &options);
    let own = id(&server);
    assert!(eventually(|| status(&server)["epoch"].as_u64() >= Some(1)));
    assert!(fails(&server, &format!("cluster fail-over {own}")).contains("another durability than `copies`"));
    let refused = fails(&server, &format!("cluster fail-over {own} --give-up-writes"));
    assert!(refused.contains("no other server has a copy"), "{refused}");
    let spilled = "table create large --tenant shop --mode spill --durability copies";
    assert!(fails(&server, spilled).contains("larger than memory"));
    // Without another server nothing is acknowledged or shown, and after a while nothing waits any more.
    server.output("table set items --tenant shop --durability copies");
    assert!(eventually(|| status(&server)["copies"]["stalled"] == true), "{}", status(&server));
    for line in ["put items apple 3 --tenant shop", "get items apple --tenant shop"] {
        let refused = fails(&server, line);
        assert!(refused.contains("not known to be on the disk"), "{refused}");
    }
    // With another durability it goes on.
    server.output("table set items --tenant shop --durability disk");
    assert!(eventually(|| server.output("put items apple 4 --tenant shop").status.success()));
}
