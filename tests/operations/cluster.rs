//! Promise (docs/cluster.md): servers that are told of an etcd divide the slots of keys between them, and each serves
//! its own. Clients that know Redis Cluster find every key, whichever server they ask. While etcd is away all goes on;
//! a server that comes back owns what it owned.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sandstorm_client::{Config, Error, RecordExpiry, Reply, blocking};
use serde_json::Value;
use tempfile::TempDir;

use super::http::has_program;
use crate::common::eventually;
use crate::common::ports::free_port;
use crate::common::process::Server;

const SERVERS: usize = 3;
/// The id of the table in the configuration.
const ITEMS: u64 = 1;
/// As many keys as that all servers have some.
const KEYS: usize = 60;

/// An etcd of the test's own, or a member of one.
pub(super) struct EtcdProcess {
    process: Child,
    folder: TempDir,
    ports: [u16; 2],
    /// The scheme of its clients' port, and further options.
    clients: (&'static str, Vec<String>),
    place: EtcdPlace,
    /// Its name, and all members as `NAME=URL` of those that it begins with.
    name: String,
    members: String,
}

/// Where an etcd is: a network namespace, if it is not the test's own, and its address there.
#[derive(Clone)]
pub(super) struct EtcdPlace {
    pub(super) namespace: Option<String>,
    pub(super) address: &'static str,
}

impl EtcdProcess {
    /// Starts one; `None`, with a line, if there is none on this machine.
    pub(super) fn start() -> Option<EtcdProcess> {
        EtcdProcess::start_with(("http", Vec::new()))
    }

    /// As [`EtcdProcess::start`], with another scheme of its clients' port, and further options.
    pub(super) fn start_with(clients: (&'static str, Vec<String>)) -> Option<EtcdProcess> {
        EtcdProcess::start_at(EtcdPlace { namespace: None, address: "127.0.0.1" }, clients)
    }

    /// As [`EtcdProcess::start_with`], elsewhere.
    pub(super) fn start_at(place: EtcdPlace, clients: (&'static str, Vec<String>)) -> Option<EtcdProcess> {
        EtcdProcess::start_members(vec![place], clients)?.pop()
    }

    /// The members of one etcd, each elsewhere. `None`, with a line, if there is none on this machine.
    pub(super) fn start_members(
        places: Vec<EtcdPlace>,
        clients: (&'static str, Vec<String>),
    ) -> Option<Vec<EtcdProcess>> {
        if !has_program("etcd", "etcd-server") {
            return None;
        }
        let ports: Vec<[u16; 2]> = places.iter().map(|_| [(); 2].map(|()| free_port())).collect();
        let url = |(place, [_, peers]): (&EtcdPlace, &[u16; 2])| format!("http://{}:{peers}", place.address);
        let urls = places.iter().zip(&ports).map(url).enumerate();
        let members = urls.map(|(number, url)| format!("member{number}={url}")).collect::<Vec<_>>().join(",");
        let start = |(number, (place, ports)): (usize, (EtcdPlace, [u16; 2]))| {
            let folder = tempfile::tempdir().unwrap();
            let name = format!("member{number}");
            let process = EtcdProcess::spawn(folder.path(), ports, &clients, &place, (&name, &members));
            EtcdProcess { process, folder, ports, clients: clients.clone(), place, name, members: members.clone() }
        };
        Some(places.into_iter().zip(ports).enumerate().map(start).collect())
    }

    fn spawn(
        folder: &Path,
        ports: [u16; 2],
        (scheme, options): &(&'static str, Vec<String>),
        place: &EtcdPlace,
        (name, members): (&str, &str),
    ) -> Child {
        let [clients, peers] = ports.map(|port| format!("{}:{port}", place.address));
        let (clients, peers) = (format!("{scheme}://{clients}"), format!("http://{peers}"));
        let mut command = Command::new(if place.namespace.is_some() { "ip" } else { "etcd" });
        if let Some(namespace) = &place.namespace {
            command.args(["netns", "exec", namespace, "etcd"]);
        }
        command.args(options);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--name", name, "--initial-cluster", members, "--data-dir"]).arg(folder);
        command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).spawn().unwrap()
    }

    /// The port for clients.
    pub(super) fn port(&self) -> u16 {
        self.ports[0]
    }

    /// The same with its address.
    pub(super) fn endpoint(&self) -> String {
        format!("{}:{}", self.place.address, self.port())
    }

    /// The address of a cluster that it has.
    pub(super) fn cluster(&self) -> String {
        format!("etcd://{}/test", self.endpoint())
    }

    pub(super) fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(super) fn restart(&mut self) {
        let member = (self.name.as_str(), self.members.as_str());
        self.process = EtcdProcess::spawn(self.folder.path(), self.ports, &self.clients, &self.place, member);
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

/// The options of a server of the cluster.
fn options(etcd: &EtcdProcess, config: &Path) -> Vec<String> {
    let cluster = etcd.cluster();
    let config = config.display().to_string();
    let port = "127.0.0.1:0=shop/items";
    let all = ["--data", "127.0.0.1:0", "--workers", "1", "--no-builder", "--config", &config, "--redis", port];
    let more = ["--memcached", port, "--cluster", &cluster, "--cluster-servers", "3"];
    all.iter().chain(&more).map(|word| (*word).to_owned()).collect()
}

/// Starts a server in a folder.
pub(super) fn start(folder: Arc<TempDir>, options: &[String]) -> Server {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Server::start_in(None, folder, &options)
}

/// How a server shows the cluster.
pub(super) fn status(server: &Server) -> Value {
    server.json("cluster status")
}

/// The address of a server's port, as it tells the others.
fn own(server: &Server, name: &str) -> String {
    let status = status(server);
    let servers = status["servers"].as_array().unwrap();
    let this = servers.iter().find(|server| server["is_this"] == true).unwrap();
    this[name].as_str().unwrap().to_owned()
}

/// The answer of a port to some text.
fn ask(address: &str, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{text}quit\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    // Redis answers the end as well.
    answer.strip_suffix("+OK\r\n").unwrap_or(&answer).trim_end().to_owned()
}

fn redis_cli(address: &str, words: &[&str]) -> String {
    let (host, port) = address.rsplit_once(':').unwrap();
    let output = Command::new("redis-cli").args(["-c", "-h", host, "-p", port]).args(words).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// All servers have founded the cluster together, and have the slots between them.
fn check_division(servers: &[Server]) {
    for server in servers {
        assert!(eventually(|| status(server)["epoch"] == 1), "{}", status(server));
        let told = status(server);
        assert_eq!(told["unowned"].as_array().map(Vec::len), Some(0), "{told}");
        let all: BTreeSet<String> =
            told["servers"].as_array().unwrap().iter().map(|server| server["slots"].to_string()).collect();
        let divided = ["[[0,5460]]", "[[5461,10921]]", "[[10922,16383]]"].map(str::to_owned);
        assert_eq!(all, BTreeSet::from(divided), "{told}");
    }
}

/// What clients are told of keys that are elsewhere.
fn check_refusals(ports: &[String]) {
    // The slot of `foo` is 12182.
    let answers: Vec<String> = ports.iter().map(|port| ask(port, "get foo\r\n")).collect();
    let moved: Vec<&String> = answers.iter().filter(|answer| answer.starts_with("-MOVED 12182 127.0.0.1:")).collect();
    assert_eq!(moved.len(), SERVERS - 1, "{answers:?}");
    let owner = answers.iter().position(|answer| answer == "$-1").expect("one owns it");
    assert_eq!(*moved[0], format!("-MOVED 12182 {}", ports[owner]));
    let other = (owner + 1) % SERVERS;
    assert!(ask(&ports[owner], "mget foo bar\r\n").starts_with("-CROSSSLOT "));
    assert!(ask(&ports[other], "multi\r\nset foo 1\r\nexec\r\n").contains("MOVED"));
    assert!(ask(&ports[owner], "mget foo {foo}1\r\n").starts_with("*2"));
    assert_eq!(ask(&ports[other], "cluster keyslot foo\r\n"), ":12182");
}

/// Writes by one server's port, reads by another's; each key is where its slot is.
fn check_redis_cli(ports: &[String]) {
    if !has_program("redis-cli", "redis-tools") {
        return;
    }
    for number in 0..KEYS {
        let (key, value) = (format!("key:{number}"), number.to_string());
        assert_eq!(redis_cli(&ports[number % SERVERS], &["set", &key, &value]), "OK");
        assert_eq!(redis_cli(&ports[(number + 1) % SERVERS], &["get", &key]), value);
    }
    let counts: Vec<usize> =
        ports.iter().map(|port| ask(port, "dbsize\r\n").trim_start_matches(':').parse().unwrap()).collect();
    assert!(counts.iter().sum::<usize>() >= KEYS && counts.iter().all(|count| *count > 0), "{counts:?}");
}

const PYTHON: &str = "
import sys
from redis.cluster import RedisCluster
port = int(sys.argv[1])
client = RedisCluster(host='127.0.0.1', port=port)
for number in range(300):
    assert client.set(f'py:{number}', number)
assert [int(client.get(f'py:{number}')) for number in range(300)] == list(range(300))
assert client.mget('{a}1', '{a}2') == [None, None]
assert client.mset_nonatomic({f'many:{number}': number for number in range(50)})
assert client.incr('counter') == 1
pipe = client.pipeline()
for number in range(100):
    pipe.incr(f'py:{number}')
assert pipe.execute() == [number + 1 for number in range(100)]
assert len(client.get_nodes()) == 3
print('done')
";

fn check_redis_py(port: &str) {
    let python = ["/usr/bin/python3", "python3"].into_iter().find(|python| {
        let import = Command::new(python).args(["-c", "import redis.cluster"]).stderr(Stdio::null()).status();
        import.is_ok_and(|status| status.success())
    });
    let Some(python) = python else {
        eprintln!("skipped: no redis-py here (Debian's package python3-redis)");
        return;
    };
    let (_, port) = port.rsplit_once(':').unwrap();
    let output = Command::new(python).args(["-c", PYTHON, port]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "done", "{error}");
}

#[test]
fn three_servers_share_the_keys() {
    let Some(mut etcd) = EtcdProcess::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenants.toml");
    let tenant =
        "[[tenants]]\nname = 'shop'\nid = 1\nopen = true\ntables = [{ name = 'items', id = 1, durability = 'disk' }]\n";
    fs::write(&config, tenant).unwrap();
    // Clients of etcd are answered once it has found its leader.
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let options = options(&etcd, &config);
    let new = || Arc::new(tempfile::tempdir().unwrap());
    let mut servers: Vec<Server> = (0..2).map(|_| start(new(), &options)).collect();
    let early = ask(&own_when_known(&servers[0]), "get foo\r\n");
    assert!(early.starts_with("-CLUSTERDOWN "), "two of three own nothing yet: {early}");
    servers.push(start(new(), &options));
    check_division(&servers);
    let ports: Vec<String> = servers.iter().map(|server| own(server, "redis_address")).collect();
    check_refusals(&ports);
    check_redis_cli(&ports);
    check_redis_py(&ports[0]);
    check_client(&servers);
    check_command_line(&servers);
    check_load(&servers[0]);
    check_tenants(&servers);
    check_without_etcd(&mut etcd, &servers, &ports);
    check_restart(servers, &ports, &options);
}

/// The Rust client begins at one server, and finds all keys.
fn check_client(servers: &[Server]) {
    let data = servers[0].data.parse().unwrap();
    let client = blocking::Client::connect(Config::new(data, 1).deadline(Duration::from_secs(30))).unwrap();
    let keys: Vec<String> = (0..KEYS).map(|number| format!("rust:{number}")).collect();
    // Before it knows of other servers, and then again.
    for round in 0..2 {
        let all = client.multi_get(ITEMS, &keys).unwrap();
        assert_eq!(all.iter().filter(|found| found.is_some()).count(), round * KEYS);
        for key in &keys {
            client.put(ITEMS, key.as_bytes(), b"1", &Default::default()).unwrap();
        }
    }
    let again = blocking::Client::connect(Config::new(data, 1).deadline(Duration::from_secs(30))).unwrap();
    let increments = |client: &blocking::Client| {
        let mut batch = client.batch();
        for key in &keys {
            batch = batch.increment(ITEMS, key.as_bytes(), 1).get(ITEMS, key.as_bytes());
        }
        client.send(batch).unwrap()
    };
    for (client, sum) in [(&again, 2), (&again, 3), (&client, 4)] {
        let replies = increments(client);
        assert_eq!(replies.len(), 2 * KEYS);
        for pair in replies.chunks(2) {
            assert_eq!(pair[0], Ok(Reply::Sum(sum)));
            let Ok(Reply::Record(Some(record))) = &pair[1] else { panic!("{pair:?}") };
            assert_eq!(record.value, sum.to_string(), "operations on one key stay in order");
        }
    }
    assert_eq!(client.delete(ITEMS, keys[0].as_bytes()), Ok(true));
    assert_eq!(again.get(ITEMS, keys[0].as_bytes()), Ok(None));
    // Times to live are changed, and asked for, where the keys are, also by a client that knows one server.
    let fresh = blocking::Client::connect(Config::new(data, 1).deadline(Duration::from_secs(30))).unwrap();
    for (number, key) in keys.iter().enumerate() {
        let expected = if number == 0 { (None, false) } else { (Some(RecordExpiry::Never), true) };
        let asked = fresh.ttl(ITEMS, key.as_bytes()).unwrap();
        assert_eq!((asked, again.touch(ITEMS, key.as_bytes(), Some(Duration::from_secs(6_000))).unwrap()), expected);
    }
    let batch = keys.iter().fold(client.batch(), |batch, key| batch.ttl(ITEMS, key.as_bytes()));
    for (number, reply) in client.send(batch).unwrap().into_iter().enumerate() {
        let expires = matches!(reply, Ok(Reply::Expiry(Some(RecordExpiry::After(_)))));
        assert!(expires || (number == 0 && reply == Ok(Reply::Expiry(None))), "{number}: {reply:?}");
    }
    // No server has all keys.
    assert!(matches!(again.count(ITEMS, b"", b""), Err(Error::Malformed { .. })));
    // At one moment means at one server.
    let apart = again.snapshot(ITEMS, &keys);
    assert!(matches!(apart, Err(Error::WrongServer { .. })), "{apart:?}");
    assert_eq!(again.snapshot(ITEMS, &["{rust:1}a", "{rust:1}b"]).map(|found| found.len()), Ok(2));
    check_transactions(data, &keys);
}

/// A transaction is committed at the server that has its keys, which the client may have to find first.
fn check_transactions(data: std::net::SocketAddr, keys: &[String]) {
    let client = blocking::Client::connect(Config::new(data, 1).deadline(Duration::from_secs(30))).unwrap();
    for key in keys {
        let [one, other] = ["one", "other"].map(|name| format!("{{{key}}}:{name}"));
        let mut blind = client.transaction();
        blind.put(ITEMS, one.as_bytes(), b"1");
        assert_eq!(blind.commit(), Ok(()), "{key}");
        let moved: Result<bool, Error> = client.transact(|transaction| {
            let found = transaction.get(ITEMS, one.as_bytes())?.is_some();
            transaction.delete(ITEMS, one.as_bytes());
            transaction.put(ITEMS, other.as_bytes(), b"1");
            Ok(found)
        });
        assert_eq!(moved, Ok(true), "{key}");
        assert_eq!(client.get(ITEMS, one.as_bytes()), Ok(None));
    }
    let mut apart = client.transaction();
    keys.iter().for_each(|key| apart.put(ITEMS, key.as_bytes(), b"all"));
    let refused = apart.commit();
    assert!(matches!(refused, Err(Error::WrongServer { .. })), "{refused:?}");
}

fn check_command_line(servers: &[Server]) {
    for number in 0..KEYS / 10 {
        let (here, there) = (&servers[number % SERVERS], &servers[(number + 1) % SERVERS]);
        here.json(&format!("put --tenant shop items cli:{number} {number}"));
        let found = there.output(&format!("get --tenant shop items cli:{number}"));
        assert_eq!(String::from_utf8_lossy(&found.stdout).trim_end(), number.to_string());
    }
}

/// A load begins at one server, and follows its keys.
fn check_load(server: &Server) {
    server.json("load --tenant shop --table items --records 500 --fill --seconds 0");
    for more in ["", "--batch 8", "--rate 2000"] {
        let line =
            format!("load --tenant shop --table items --records 500 --mix ycsb-b --deadline 30 --seconds 1 {more}");
        let report = server.json(&line);
        let rows = report["tenants"][0]["rows"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["errors"].as_object().is_some_and(serde_json::Map::is_empty)), "{report}");
        assert!(rows.iter().all(|row| row["wrong"] == 0 && row["ok"].as_u64() > Some(0)), "{report}");
    }
}

fn own_when_known(server: &Server) -> String {
    let is_known = || status(server)["servers"].as_array().unwrap().iter().any(|server| server["is_this"] == true);
    assert!(eventually(is_known));
    own(server, "redis_address")
}

/// What is made at one server is at all.
fn check_tenants(servers: &[Server]) {
    let differ = |server: &Server| {
        let told = status(server);
        told["servers"].as_array().unwrap().iter().filter(|server| server["has_same_tenants"] == false).count()
    };
    assert!(eventually(|| servers.iter().all(|server| differ(server) == 0)));
    servers[0].json("table create more --tenant shop");
    let has_it = |server: &Server| server.json("table list --tenant shop").to_string().contains("\"more\"");
    assert!(eventually(|| servers.iter().all(has_it)));
    assert!(eventually(|| servers.iter().all(|server| differ(server) == 0)));
}

/// While etcd is away each server goes on with what it owns, and says so.
fn check_without_etcd(etcd: &mut EtcdProcess, servers: &[Server], ports: &[String]) {
    etcd.stop();
    assert!(eventually(|| status(&servers[0])["trouble"].is_string()));
    let health = servers[0].json("health");
    assert!(health["warnings"].to_string().contains("goes on with what it owns"), "{health}");
    let owner = ports.iter().position(|port| ask(port, "set foo bar\r\n") == "+OK").expect("still its owner");
    assert_eq!(ask(&ports[(owner + 1) % SERVERS], "get foo\r\n"), format!("-MOVED 12182 {}", ports[owner]));
    etcd.restart();
    assert!(eventually(|| status(&servers[0])["trouble"].is_null()), "{}", status(&servers[0]));
    assert_eq!(status(&servers[0])["epoch"], 1);
}

/// A server that stops takes its keys with it, and brings them back.
fn check_restart(mut servers: Vec<Server>, ports: &[String], options: &[String]) {
    let owner = ports.iter().position(|port| ask(port, "get foo\r\n").ends_with("bar")).expect("its owner");
    let (id, stopped) = (status(&servers[owner])["server"].clone(), servers.remove(owner));
    let folder = Arc::clone(&stopped.folder);
    drop(stopped);
    let of_stopped = |server: &Server| {
        let told = status(server);
        let found = told["servers"].as_array().unwrap().iter().find(|server| server["id"] == id).cloned();
        found.expect("it is still a member")
    };
    assert!(eventually(|| of_stopped(&servers[0])["lives"] == false));
    assert_eq!(of_stopped(&servers[0])["slots"].as_array().map(Vec::len), Some(1), "its slots stay its own");
    let back = start(folder, options);
    assert_eq!(status(&back)["server"], id);
    assert!(eventually(|| of_stopped(&servers[0])["lives"] == true));
    let port = own_when_known(&back);
    assert_eq!(ask(&port, "get foo\r\n"), "$3\r\nbar");
    assert!(eventually(|| of_stopped(&servers[0])["redis_address"] == port.as_str()));
}
