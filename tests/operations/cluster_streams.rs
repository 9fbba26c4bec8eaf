//! Promise (docs/cluster.md): where the copies of servers' logs are in streams of NATS JetStream, any other server
//! takes the place of one that is killed, and nothing that was acknowledged is lost, also while a NATS server is gone.
//! Without NATS servers writes are refused, and that is said everywhere. Streams that are needed no more are removed.
//! NATS servers that do not sync each message are refused.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use sandstorm_client::{Config, Error as ClientError, PutOptions, blocking};
use serde_json::Value;
use tempfile::TempDir;

use super::cluster::{EtcdProcess, start, status};
use super::cluster_copies::{ITEMS, KnownKeys, SERVERS, check, count_up, id, options, shown};
use super::cluster_failover::{COPIED_TABLE, CopyingCluster, owns_nothing, write_tenant};
use super::http::{get, has_program};
use crate::common::eventually;
use crate::common::ports::free_port;
use crate::common::process::Server;

/// What has a stream survive a stop of all of its servers' machines.
const SYNCED: &str = ", sync_interval: always";

struct NatsServer {
    config: PathBuf,
    port: u16,
    monitor: u16,
    process: Option<Child>,
}

/// Whether the program is one that a server speaks to; `false`, with a line, where it is an older one.
fn is_new_enough() -> bool {
    let told = Command::new("nats-server").arg("--version").output().unwrap().stdout;
    let told = String::from_utf8_lossy(&told).trim().to_owned();
    let numbers = told.rsplit(" v").next().unwrap_or_default().split('.').map(|number| number.parse().unwrap_or(0));
    let is_new = numbers.take(2).collect::<Vec<u32>>() >= vec![2, 15];
    if !is_new {
        println!("skipped: {told} is older than 2.15");
    }
    is_new
}

/// Three NATS servers, killed when dropped.
struct NatsServers {
    folder: TempDir,
    routes: Vec<u16>,
    servers: Vec<NatsServer>,
}

impl NatsServers {
    /// Starts them; `None`, with a line, if there is no such program on this machine.
    fn start(sync: &str) -> Option<NatsServers> {
        if !has_program("nats-server", "golang-github-nats-io-nats-server") || !is_new_enough() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let server = |number: usize| {
            let config = folder.path().join(format!("n{number}.conf"));
            NatsServer { config, port: free_port(), monitor: free_port(), process: None }
        };
        let servers = (0..SERVERS).map(server).collect();
        let routes = (0..SERVERS).map(|_| free_port()).collect();
        let mut servers = NatsServers { folder, routes, servers };
        servers.run_all(sync);
        Some(servers)
    }

    fn run_all(&mut self, sync: &str) {
        let all = self.routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect::<Vec<_>>().join(", ");
        // Those that run go on.
        for (number, server) in self.servers.iter_mut().enumerate().filter(|(_, server)| server.process.is_none()) {
            let NatsServer { config, port, monitor, process } = server;
            let (route, store) = (self.routes[number], self.folder.path().join(format!("store{number}")));
            let text = format!(
                "server_name: n{number}\nlisten: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\n\
                 jetstream {{ store_dir: {store:?}{sync} }}\n\
                 cluster {{ name: c, listen: \"127.0.0.1:{route}\", routes: [{all}] }}\n"
            );
            fs::write(&*config, text).unwrap();
            let mut command = Command::new("nats-server");
            command.arg("-c").arg(&*config).stdout(Stdio::null()).stderr(Stdio::null());
            *process = Some(command.spawn().unwrap());
        }
    }

    fn kill(&mut self, number: usize) {
        if let Some(mut process) = self.servers[number].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn kill_all(&mut self) {
        (0..SERVERS).for_each(|number| self.kill(number));
    }

    /// The options of a server whose copies are there.
    fn options(&self, etcd: &EtcdProcess, config: &TempDir, failover: &str) -> Vec<String> {
        let hosts = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect::<Vec<_>>();
        let streams = ["--cluster-streams".to_owned(), format!("nats://{}/shop", hosts.join(","))];
        let monitors = self.servers.iter().map(|server| format!("http://127.0.0.1:{}", server.monitor));
        let monitors = monitors.flat_map(|url| ["--nats-monitor".to_owned(), url]);
        let file = write_tenant(config, COPIED_TABLE);
        let all = streams.into_iter().chain(monitors).chain(options(etcd, &file, failover));
        all.collect()
    }

    /// The names of the streams, as one of the servers tells them.
    fn streams(&self) -> Vec<String> {
        let folder = self.folder.path().join("store2/jetstream/$G/streams");
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }
}

impl Drop for NatsServers {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// Three servers whose copies are in streams, with a table of durability `copies` and clients that write to it.
struct StreamingCluster {
    cluster: CopyingCluster,
    nats: NatsServers,
    options: Vec<String>,
    client: blocking::Client,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<KnownKeys>>,
}

impl StreamingCluster {
    /// Starts one; `None`, with a line, without etcd or a NATS server.
    fn start() -> Option<StreamingCluster> {
        let etcd = EtcdProcess::start()?;
        let nats = NatsServers::start(SYNCED)?;
        let config = tempfile::tempdir().unwrap();
        let options = nats.options(&etcd, &config, "automatic");
        assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
        let servers: Vec<Server> =
            (0..SERVERS).map(|_| start(Arc::new(tempfile::tempdir().unwrap()), &options)).collect();
        let cluster = CopyingCluster::of(servers, config, etcd);
        let client = blocking::Client::connect(Config::new(cluster.last().data.parse().unwrap(), 1)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let writers = (0..2).map(|number| count_up(cluster.last(), number, &stop)).collect();
        let started = StreamingCluster { cluster, nats, options, client, stop, writers };
        assert!(eventually(|| started.put(b"before").is_ok()), "{}", status(started.cluster.last()));
        // The clients have something to lose.
        let is_counted =
            |key: usize| started.client.get(ITEMS, format!("0:{key}").as_bytes()).is_ok_and(|found| found.is_some());
        assert!(eventually(|| (0..100).any(is_counted)), "{}", status(started.cluster.last()));
        Some(started)
    }

    fn put(&self, key: &[u8]) -> Result<(), ClientError> {
        self.client.put(ITEMS, key, b"1", &PutOptions::default()).map(drop)
    }

    /// Whether there is a stream with the log of a server.
    fn has_stream_of(&self, server: &str) -> bool {
        self.nats.streams().iter().any(|name| name.contains(server))
    }

    /// Ends the clients: nothing that was acknowledged to them is lost.
    fn check_nothing_lost(&mut self) {
        self.stop.store(true, Ordering::Release);
        let known = self.writers.drain(..).flat_map(|writer| writer.join().unwrap()).collect();
        check(self.cluster.last(), &known);
    }
}

#[test]
fn a_server_whose_log_is_in_a_stream_is_killed_and_replaced_and_loses_nothing() {
    let Some(mut streaming) = StreamingCluster::start() else { return };
    let text = String::from_utf8(streaming.cluster.last().output("cluster status").stdout).unwrap();
    assert!(text.contains("nats") && text.contains("confirms"), "{text}");
    // One of three NATS servers may be gone.
    streaming.nats.kill(0);
    assert!(eventually(|| streaming.put(b"with two").is_ok()), "{}", status(streaming.cluster.last()));
    let killed = streaming.cluster.ids[0].clone();
    assert!(streaming.has_stream_of(&killed), "{:?}", streaming.nats.streams());
    let folder = streaming.cluster.kill_first();
    streaming.cluster.await_replaced(&killed);
    // Its stream was read, and is needed no more.
    assert!(eventually(|| !streaming.has_stream_of(&killed)), "{:?}", streaming.nats.streams());
    // To make another stream, all three have to be there.
    streaming.nats.run_all(SYNCED);
    // It starts again: it owns nothing, and is given its share again, with a copy in another stream.
    let started = start(folder, &streaming.options);
    streaming.cluster.servers.insert(0, started);
    let cluster = &streaming.cluster;
    assert!(eventually(|| shown(cluster.last(), &killed)["lives"] == true));
    assert!(owns_nothing(&shown(cluster.last(), &killed)));
    cluster.await_whole();
    streaming.check_nothing_lost();
    is_removed_with_its_stream(&mut streaming);
}

/// The first server leaves the cluster: its stream goes, too, though it is away by then.
fn is_removed_with_its_stream(streaming: &mut StreamingCluster) {
    let left = streaming.cluster.ids[0].clone();
    let by = |streaming: &StreamingCluster, line: &str| streaming.cluster.last().output(line);
    assert!(eventually(|| by(streaming, &format!("cluster drain {left}")).status.success()));
    let has_given = || {
        let moves = status(streaming.cluster.last())["moves"].as_array().is_some_and(Vec::is_empty);
        moves && owns_nothing(&shown(streaming.cluster.last(), &left))
    };
    assert!(eventually(has_given), "{}", status(streaming.cluster.last()));
    assert!(eventually(|| streaming.has_stream_of(&left)), "{:?}", streaming.nats.streams());
    drop(streaming.cluster.servers.remove(0));
    assert!(streaming.has_stream_of(&left), "{:?}", streaming.nats.streams());
    assert!(eventually(|| by(streaming, &format!("cluster remove {left}")).status.success()));
    assert!(eventually(|| !streaming.has_stream_of(&left)), "{:?}", streaming.nats.streams());
    let others = &streaming.cluster.ids[1..];
    assert!(others.iter().all(|id| streaming.has_stream_of(id)), "{:?}", streaming.nats.streams());
}

#[test]
fn without_nats_servers_writes_are_refused_and_no_place_is_taken_until_they_are_back() {
    let Some(mut streaming) = StreamingCluster::start() else { return };
    streaming.nats.kill_all();
    let cluster = &mut streaming.cluster;
    let is_refused = |put: Result<(), ClientError>| matches!(put, Err(ClientError::NotDurable { .. }));
    let is_stalled = || status(cluster.last())["copies"]["stalled"] == true;
    assert!(eventually(is_stalled), "{}", status(cluster.last()));
    // A key of the server that is asked for what is wrong.
    let key = own_key(cluster.last());
    let put = || streaming.client.put(ITEMS, key.as_bytes(), b"1", &PutOptions::default()).map(drop);
    assert!(eventually(|| is_refused(put())), "{:?}", put());
    // It is said everywhere.
    let is_told = || {
        let copies = status(cluster.last())["copies"]["copies"].as_array().cloned().unwrap_or_default();
        copies.iter().any(|copy| copy["server"] == "nats" && copy["trouble"].is_string())
    };
    assert!(eventually(is_told), "{}", status(cluster.last()));
    let found = String::from_utf8(cluster.last().output("doctor --live").stdout).unwrap();
    assert!(found.contains("No copy of the server's log confirms"), "{found}");
    let token = fs::read_to_string(cluster.last().state().join("operator-token")).unwrap();
    let metrics = get(&cluster.last().control, "/metrics", token.trim()).1;
    assert!(metrics.lines().any(|line| line == "sandstorm_copies_stalled 1"), "{metrics}");
    let killed = cluster.ids[0].clone();
    let folder = cluster.kill_first();
    let is_kept = || cluster.suspicion(&killed).is_some_and(|one| one["obstacle"].to_string().contains("NATS"));
    assert!(eventually(is_kept), "{}", status(cluster.last()));
    assert!(!owns_nothing(&shown(cluster.last(), &killed)));
    streaming.nats.run_all(SYNCED);
    streaming.cluster.await_replaced(&killed);
    streaming.check_nothing_lost();
    drop(folder);
}

/// A key whose slot the server owns that is asked.
fn own_key(server: &Server) -> String {
    let own = shown(server, &id(server))["slots"].as_array().cloned().unwrap();
    let is_own = |key: &String| {
        let slot = u64::from(sandstorm_net::slots::slot_of(key.as_bytes()));
        own.iter().any(|range| range[0].as_u64() <= Some(slot) && Some(slot) <= range[1].as_u64())
    };
    (0..10_000).map(|number| format!("own{number}")).find(is_own).unwrap()
}

#[test]
fn nats_servers_that_do_not_sync_each_message_are_refused_until_they_do() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let Some(mut nats) = NatsServers::start("") else { return };
    let config = tempfile::tempdir().unwrap();
    let mut options = nats.options(&etcd, &config, "by-command");
    // Alone.
    options.truncate(options.len() - 2);
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let server = start(Arc::new(tempfile::tempdir().unwrap()), &options);
    let is_told = || {
        let copies = status(&server)["copies"]["copies"].as_array().cloned().unwrap_or_default();
        let says = |copy: &Value| copy["trouble"].as_str().is_some_and(|why| why.contains("sync_interval: always"));
        copies.iter().any(says)
    };
    assert!(eventually(is_told), "{}", status(&server));
    assert!(eventually(|| status(&server)["copies"]["stalled"] == true), "{}", status(&server));
    assert!(!server.output("put items apple 3 --tenant shop").status.success());
    nats.kill_all();
    nats.run_all(SYNCED);
    let is_put = || server.output("put items apple 4 --tenant shop").status.success();
    assert!(eventually(is_put), "{}", status(&server));
}
