//! The suite of all replicas against real NATS servers, three in a cluster, that are killed.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandstorm_log::disk::simulated::SimulatedDisk;
use sandstorm_log::replica_suite::{ReplicaHost, conforms, survives};
use sandstorm_log::{LogReplica, ReplicaBatch, ReplicaError, ReplicaState};

use crate::limits::REQUEST_TIMEOUT;
use crate::stream_replica::StreamReplica;
use crate::stream_store::{StreamError, StreamStore};
use crate::sync_check::MonitorsReport;
use crate::{NatsAccess, NatsAddress, NatsStream};

/// Time for servers that start, and elect a leader, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Servers of a cluster.
const SERVERS: usize = 3;

/// Whether there is a server of NATS that is new enough; without one a test is left out.
fn has_nats() -> bool {
    let told = Command::new("nats-server").arg("--version").output();
    let told = told.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = told.trim().rsplit(" v").next().and_then(crate::connection::version_of);
    if version.is_some_and(|version| version >= crate::limits::OLDEST_VERSION) {
        return true;
    }
    let wanted = std::env::var("TEST_MUST_HAVE").unwrap_or_default();
    assert!(!wanted.split_ascii_whitespace().any(|name| name == "nats-server"), "nats-server is missing: {told:?}");
    println!("left out: there is no nats-server of version 2.15 or newer");
    false
}

/// A port that is not in use now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap().port()
}

struct NatsServer {
    config: PathBuf,
    port: u16,
    monitor: u16,
    process: Option<Child>,
}

/// Some servers in a folder, killed when dropped.
struct NatsServers {
    folder: tempfile::TempDir,
    servers: Vec<NatsServer>,
}

impl NatsServers {
    /// Starts so many; more than one are a cluster.
    fn start(count: usize, sync: &str) -> NatsServers {
        NatsServers::start_with(tempfile::tempdir().unwrap(), count, sync, "")
    }

    /// The same with more settings.
    fn start_with(folder: tempfile::TempDir, count: usize, sync: &str, more: &str) -> NatsServers {
        let routes: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let all = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect::<Vec<_>>().join(", ");
        let server = |(number, route): (usize, &u16)| {
            let (port, monitor) = (free_port(), free_port());
            let store = folder.path().join(format!("n{number}"));
            let cluster = format!("cluster {{ name: c, listen: \"127.0.0.1:{route}\", routes: [{all}] }}");
            let cluster = if count > 1 { cluster } else { String::new() };
            let text = format!(
                "server_name: n{number}\nlisten: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\n\
                 jetstream {{ store_dir: {store:?}{sync} }}\n{cluster}\n{more}\n"
            );
            let config = folder.path().join(format!("n{number}.conf"));
            std::fs::write(&config, text).unwrap();
            NatsServer { config, port, monitor, process: None }
        };
        let servers = routes.iter().enumerate().map(server).collect();
        let mut servers = NatsServers { folder, servers };
        (0..count).for_each(|number| servers.run(number));
        servers
    }

    fn run(&mut self, number: usize) {
        let server = &mut self.servers[number];
        let mut command = Command::new("nats-server");
        command.arg("-c").arg(&server.config).stdout(Stdio::null()).stderr(Stdio::null());
        server.process = Some(command.spawn().unwrap());
    }

    fn kill(&mut self, number: usize) {
        if let Some(mut process) = self.servers[number].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn stream(&self) -> NatsStream {
        let servers = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect::<Vec<_>>();
        let address: NatsAddress = format!("nats://{}/test", servers.join(",")).parse().unwrap();
        NatsStream::new(NatsAccess::default().read(&address).unwrap(), "log", "1")
    }

    /// The replica, whose requests fail after a time.
    fn replica(&self, patience: Duration) -> StreamReplica<NatsStream> {
        StreamReplica::new(self.stream().with_patience(patience), Box::new(|| Ok(Arc::new(SimulatedDisk::default()))))
    }

    /// The stream, once it is made.
    fn made(&self, replicas: u32) -> NatsStream {
        let mut stream = self.stream().with_patience(PATIENCE);
        let begun = Instant::now();
        loop {
            match stream.make(replicas) {
                Ok(()) => return stream,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until the stream has a leader.
    fn await_leader(&self) {
        let (mut stream, begun) = (self.stream(), Instant::now());
        while stream.peers().map_or(0, |peers| peers.len()) < self.servers.len() {
            assert!(begun.elapsed() < PATIENCE, "the stream has no leader");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn monitors(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("http://127.0.0.1:{}", server.monitor)).collect()
    }
}

impl Drop for NatsServers {
    fn drop(&mut self) {
        (0..self.servers.len()).for_each(|number| self.kill(number));
        assert!(self.folder.path().is_dir());
    }
}

impl ReplicaHost for NatsServers {
    fn open(&mut self) -> Result<Box<dyn LogReplica>, ReplicaError> {
        Ok(Box::new(self.replica(PATIENCE)))
    }

    fn crash(&mut self, seed: u64) {
        // All of them at once, or one.
        let killed: Vec<usize> =
            if seed.is_multiple_of(2) { (0..SERVERS).collect() } else { vec![seed as usize % SERVERS] };
        killed.iter().for_each(|number| self.kill(*number));
        killed.iter().for_each(|number| self.run(*number));
        self.await_leader();
    }
}

#[test]
fn three_servers_do_what_every_replica_has_to_do_and_lose_nothing_when_they_are_killed() {
    if !has_nats() {
        return;
    }
    let mut servers = NatsServers::start(SERVERS, ", sync_interval: always");
    let mut stream = servers.made(3);
    let report = MonitorsReport::ask(&servers.monitors()).unwrap();
    assert_eq!((report.check_all(3), report.check_new(&stream.peers().unwrap())), (Ok(()), Ok(())));
    let fewer = MonitorsReport::ask(&servers.monitors()[1..]).unwrap();
    let refused = fewer.check_known(&stream.peers().unwrap()).unwrap_err();
    assert!(refused.contains("n0"), "{refused}");
    conforms(&mut servers).unwrap_or_else(|why| panic!("{why}"));
    for seed in 0..2 {
        stream.remove().unwrap();
        stream = servers.made(3);
        survives(&mut servers, seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn one_of_three_may_be_gone_and_without_two_nothing_is_confirmed() {
    if !has_nats() {
        return;
    }
    let mut servers = NatsServers::start(SERVERS, ", sync_interval: always");
    drop(servers.made(3));
    let mut owner = servers.replica(PATIENCE);
    let empty = ReplicaBatch::default();
    assert_eq!(owner.state(1), Ok(ReplicaState::default()));
    servers.kill(0);
    let begun = Instant::now();
    while let Err(error) = owner.append(1, &empty) {
        assert!(begun.elapsed() < PATIENCE, "{error}");
    }
    let taken = owner.store().bounds().unwrap().last;
    servers.kill(1);
    let refused = servers.replica(REQUEST_TIMEOUT).append(1, &empty);
    assert!(matches!(refused, Err(ReplicaError::Log(_))), "{refused:?}");
    (0..2).for_each(|number| servers.run(number));
    servers.await_leader();
    // The owner asks what is there, and goes on; a later one ends it.
    owner.state(1).unwrap();
    owner.append(1, &empty).unwrap();
    assert!(owner.store().bounds().unwrap().last > taken);
    servers.replica(PATIENCE).state(2).unwrap();
    assert_eq!(owner.append(1, &empty), Err(ReplicaError::OldEpoch(2)));
}

#[test]
fn what_keeps_less_than_was_asked_for_is_refused() {
    if !has_nats() {
        return;
    }
    let servers = NatsServers::start(1, "");
    let begun = Instant::now();
    let refused = loop {
        // It may not be there yet.
        match MonitorsReport::ask(&servers.monitors()) {
            Err(why) if why.contains("sync_interval: always") => break why,
            told => assert!(begun.elapsed() < PATIENCE, "{told:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(refused.contains("n0"), "{refused}");
    // One copy, for trying out; three of one server are refused, and a stream of one is none of three.
    let mut stream = servers.made(1);
    assert_eq!(stream.peers(), Ok(vec!["n0".to_owned()]));
    let all = vec![("log".to_owned(), "1".to_owned())];
    assert_eq!(stream.all_copies(), Ok(all));
    assert!(matches!(stream.check(3), Err(StreamError::Refused(why)) if why.contains("1 replicas, not 3")));
    stream.remove().unwrap();
    assert_eq!((stream.bounds(), stream.all_copies()), (Err(StreamError::Missing), Ok(Vec::new())));
    assert!(matches!(stream.make(3), Err(StreamError::Refused(_) | StreamError::Full(_))));
    let mut gone = servers.replica(PATIENCE);
    assert_eq!(gone.state(1), Err(ReplicaError::Missing));
}

/// What a user has to be allowed, as docs/cluster.md has it.
const RIGHTS: &str = "publish: [\"$JS.API.STREAM.>\", \"$JS.API.DIRECT.GET.>\", \"sandstorm.>\"], \
                      subscribe: [\"_INBOX.>\"]";

#[test]
fn servers_are_spoken_to_over_tls_by_a_user() {
    if !has_nats() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let key = rcgen::KeyPair::generate().unwrap();
    let made = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(at("key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(at("certificate.pem"), made.pem()).unwrap();
    std::fs::write(at("password"), "geheim\n").unwrap();
    std::fs::write(at("wrong"), "falsch\n").unwrap();
    let (certificate, password) = (at("certificate.pem"), at("password"));
    let more = format!(
        "tls {{ cert_file: {certificate:?}, key_file: {:?} }}\n\
         authorization {{ users: [{{ user: shop, password: geheim, permissions: {{ {RIGHTS} }} }}] }}",
        at("key.pem")
    );
    let wrong = at("wrong");
    let servers = NatsServers::start_with(folder, 1, "", &more);
    let stream = |scheme: &str, password: &PathBuf, ca: Option<&PathBuf>| {
        let address: NatsAddress = format!("{scheme}://127.0.0.1:{}/test", servers.servers[0].port).parse().unwrap();
        let (user, password_file) = (Some("shop".to_owned()), Some(password.clone()));
        let access = NatsAccess { ca: ca.cloned(), user, password_file, ..NatsAccess::default() };
        NatsStream::new(access.read(&address).unwrap(), "log", "1")
    };
    let mut made = stream("natss", &password, Some(&certificate)).with_patience(PATIENCE);
    made.make(1).unwrap();
    assert_eq!(made.publish(0, "first", b"message"), Ok(1));
    assert_eq!(made.publish(1, "second", b"another"), Ok(2));
    let mut read = Vec::new();
    made.read(1, 2, &mut |sequence, message| {
        read.push((sequence, message.to_vec()));
        Ok(())
    })
    .unwrap();
    assert_eq!(read, [(1, b"message".to_vec()), (2, b"another".to_vec())]);
    made.purge_before(2).unwrap();
    assert_eq!(made.all_copies().map(|all| all.len()), Ok(1));
    made.remove().unwrap();
    // A user with another password, and one without TLS.
    let refused = stream("natss", &wrong, Some(&certificate)).bounds().unwrap_err().to_string();
    assert!(refused.contains("Authorization"), "{refused}");
    let refused = stream("nats", &password, None).bounds().unwrap_err().to_string();
    assert!(refused.contains("wants TLS"), "{refused}");
}
