//! Ports of other kinds: Unix sockets, TLS, and those whose tenant does not exist; and the end of all of them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sandstorm_catalog::{NewTable, NewTenant};
use sandstorm_client::{Config, Error, blocking};
use sandstorm_instance::DataPlane;
use sandstorm_metrics::text::flat;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use super::metric;
use crate::common::certificates::certificate;
use crate::common::{data_plane_with, eventually};
use crate::memcached::peer::{connect, read_until, talk, text};

const MINUTE: Duration = Duration::from_secs(60);
const TOKEN: &str = "the_token_of_the_shop";
const TENANTS: &str =
    "[[tenants]]\nname = 'shop'\nhome_worker = 2\ntoken = 'the_token_of_the_shop'\ntables = [{ name = 't' }]\n";

/// Sends bytes, and reads until the answers end with `end`, or the connection is closed.
pub(super) fn read_from(stream: &mut (impl Read + Write), sent: &[u8], end: &[u8]) -> String {
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    // A closed connection accepts no more bytes: its earlier answers are there.
    let _may_be_closed = stream.write_all(sent);
    while !received.ends_with(end) {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => {
                received.extend_from_slice(b"<closed>");
                break;
            }
            Ok(len) => received.extend_from_slice(&buffer[..len]),
        }
    }
    text(&received)
}

/// Number of connections of worker `worker`.
pub(super) fn at(plane: &DataPlane, worker: usize) -> u64 {
    let read = plane.metrics.read_worker(worker);
    flat(&read).find(|(name, _)| name == "connections").map_or(0, |(_, value)| value)
}

/// The output of a tool; `None`, with a line of output, if it is not installed.
fn tool(name: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(name).args(args).stdin(Stdio::null()).output();
    let Ok(output) = output else {
        println!("skipped: no {name}");
        return None;
    };
    Some(format!("{}{}", text(&output.stdout), text(&output.stderr)))
}

#[test]
fn a_unix_socket_is_a_port_of_this_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let [redis, memcached] = ["redis", "memcached"].map(|name| folder.path().join(name));
    let plane = data_plane_with(&format!(
        "workers = 3\npin = false\n[[redis]]\naddress = 'unix:{}'\nmode = '660'\n\
         [[memcached]]\naddress = 'unix:{}'\ntenant = 'shop'\ntable = 't'\n{TENANTS}",
        redis.display(),
        memcached.display()
    ));
    let mode = |path: &Path| std::fs::metadata(path).expect("the socket").permissions().mode() & 0o777;
    assert_eq!((mode(&redis), mode(&memcached)), (0o660, 0o700));
    assert!(plane.listening().is_empty(), "no address of TCP");
    let connect = |path: &Path| {
        let stream = UnixStream::connect(path).expect("a connection");
        stream.set_read_timeout(Some(MINUTE)).expect("a timeout");
        stream
    };
    // Whichever worker accepted them, and however they authenticate: the home worker has them.
    let mut streams: Vec<UnixStream> = (0..10).map(|_| connect(&memcached)).collect();
    for stream in &mut streams {
        assert_eq!(
            read_from(stream, b"set a 0 0 1\r\nx\r\nget a\r\n", b"END\r\n"),
            "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
        );
    }
    let mut stream = connect(&redis);
    assert_eq!(read_from(&mut stream, b"GET a\r\n", b"\r\n"), "-NOAUTH Authentication required.\r\n");
    let login = format!("AUTH shop {TOKEN}\r\nGET a\r\n");
    assert_eq!(read_from(&mut stream, login.as_bytes(), b"x\r\n"), "+OK\r\n$1\r\nx\r\n");
    assert!(eventually(|| at(&plane, 2) == 11));
    let path = redis.display().to_string();
    if let Some(sent) =
        tool("redis-cli", &["-s", &path, "--user", "shop", "--pass", TOKEN, "--no-auth-warning", "GET", "a"])
    {
        assert_eq!(sent, "x\n");
    }
    drop(plane);
    assert!(!redis.exists() && !memcached.exists(), "the files go with the server");
}

/// A server with TLS on a port for each protocol. memcached's acts for the shop; at Redis' a client must name its
/// tenant.
pub(super) struct Secured {
    pub(super) plane: DataPlane,
    folder: tempfile::TempDir,
    pub(super) memcached: SocketAddr,
    redis: SocketAddr,
}

impl Secured {
    pub(super) fn start(workers: usize) -> Secured {
        let folder = tempfile::tempdir().expect("a folder");
        let (chain, key) = certificate(folder.path(), "localhost", 4000);
        let plane = data_plane_with(&format!(
            "workers = {workers}\npin = false\n[port_tls]\ncertificate = '{}'\nkey = '{}'\n\
             [[memcached]]\naddress = 'tls:127.0.0.1:0'\ntenant = 'shop'\ntable = 't'\n\
             [[redis]]\naddress = 'tls:127.0.0.1:0'\n{}",
            chain.display(),
            key.display(),
            TENANTS.replace("home_worker = 2", &format!("home_worker = {}", workers - 1)),
        ));
        let (memcached, redis) = (plane.listening()[0], plane.listening()[1]);
        Secured { plane, folder, memcached, redis }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }

    /// A client that accepts the certificate that is there now.
    pub(super) fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.certificate()).expect("a certificate")).expect("a root");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(versions).expect("versions");
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.resumption = Resumption::in_memory_sessions(8);
        Arc::new(config)
    }
}

pub(super) type Secure = StreamOwned<ClientConnection, TcpStream>;

/// A connection with TLS.
pub(super) fn secure(config: &Arc<ClientConfig>, port: SocketAddr) -> Secure {
    let name = ServerName::try_from("localhost").expect("a name");
    StreamOwned::new(ClientConnection::new(Arc::clone(config), name).expect("a client"), connect(port))
}

#[test]
fn over_tls_all_is_as_without() {
    let server = Secured::start(3);
    for versions in [&[&TLS13][..], &[&TLS12]] {
        let config = server.client(versions);
        let mut silent = secure(&config, server.memcached);
        silent.conn.complete_io(&mut silent.sock).expect("a handshake");
        assert!(eventually(|| at(&server.plane, 2) == 1), "it need not say a word to come to its home worker");
        let mut stream = secure(&config, server.redis);
        assert_eq!(read_from(&mut stream, b"PING\r\n", b"\r\n"), "-NOAUTH Authentication required.\r\n");
        let login = format!("AUTH shop {TOKEN}\r\nSET a x\r\n");
        assert_eq!(read_from(&mut stream, login.as_bytes(), b"OK\r\n+OK\r\n"), "+OK\r\n+OK\r\n");
        let mut stream = secure(&config, server.memcached);
        let times = 20_000;
        let expected = format!("{}MN\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n".repeat(times));
        let received = read_from(&mut stream, &[&b"get a\r\n".repeat(times)[..], b"mn\r\n"].concat(), b"MN\r\n");
        assert!(received == expected, "{} bytes of {}", received.len(), expected.len());
        let value: Vec<u8> = (0..8 << 20).map(|byte: u32| b'a' + (byte % 23) as u8).collect();
        let sent = [format!("set large 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        assert_eq!(read_from(&mut stream, &sent, b"\r\n"), "STORED\r\n");
        let received = read_from(&mut stream, b"get large\r\n", b"END\r\n");
        assert!(
            received.as_bytes().get(23..).is_some_and(|received| received.starts_with(&value)),
            "{} bytes",
            received.len()
        );
        // A connection that has closed its writing side still receives the answers to its requests.
        stream.write_all(b"get a\r\nget a\r\n").expect("said");
        stream.conn.send_close_notify();
        stream.flush().expect("said");
        assert_eq!(read_from(&mut stream, b"", b"<closed>"), "VALUE a 0 1\r\nx\r\nEND\r\n".repeat(2) + "<closed>");
        drop(silent);
        assert!(eventually(|| at(&server.plane, 2) == 1), "Redis' connection is left");
    }
    let port = server.redis.port().to_string();
    let file = server.certificate().display().to_string();
    let args = ["--tls", "--cacert", &file, "--sni", "localhost", "-p", &port, "--user", "shop", "--pass", TOKEN];
    if let Some(sent) = tool("redis-cli", &[&args[..], &["--no-auth-warning", "GET", "a"]].concat())
        && !sent.contains("Unrecognized option")
    {
        assert_eq!(sent, "x\n");
    }
}

#[test]
fn a_client_that_comes_back_is_known_by_its_ticket() {
    let server = Secured::start(1);
    for versions in [&[&TLS13][..], &[&TLS12]] {
        let config = server.client(versions);
        let kinds = [(); 2].map(|()| {
            let mut stream = secure(&config, server.memcached);
            assert_eq!(read_from(&mut stream, b"mn\r\n", b"\r\n"), "MN\r\n");
            stream.conn.handshake_kind()
        });
        assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]);
    }
}

#[test]
fn what_is_no_handshake_or_never_ends_one_is_closed_and_others_do_not_notice() {
    let server = Secured::start(1);
    let refused = || metric(&server.plane, "connections_refused.handshake");
    for sent in
        [&b"get a\r\nget b\r\n"[..], b"*1\r\n$4\r\nPING\r\n", b"\x80\x10\x80\x10", &[0x16, 3, 1, 0xff, 0xff, 1, 2, 3]]
    {
        let mut stream = connect(server.memcached);
        stream.write_all(sent).expect("said");
        // An alert at most.
        let received = read_until(&mut stream, b"<closed>");
        assert!(received.ends_with(b"<closed>") && received.len() < 40, "{sent:?}: {}", text(&received));
    }
    assert!(eventually(|| refused() == 4), "{}", refused());
    // Half a hello, in parts, from many connections; and some that send nothing.
    let config = server.client(&[&TLS13]);
    let mut hello = Vec::new();
    let name = ServerName::try_from("localhost").expect("a name");
    ClientConnection::new(Arc::clone(&config), name).expect("a client").write_tls(&mut hello).expect("a hello");
    let mut slow: Vec<TcpStream> = (0..40).map(|_| connect(server.memcached)).collect();
    for stream in &mut slow[..30] {
        stream.write_all(&hello[..hello.len() / 2]).expect("said");
    }
    let mut stream = secure(&config, server.memcached);
    assert_eq!(read_from(&mut stream, b"mn\r\n", b"\r\n"), "MN\r\n");
    for stream in &mut slow {
        let received = read_until(stream, b"<closed>");
        assert!(received.ends_with(b"<closed>") && received.len() < 40, "{}", text(&received));
    }
    assert!(refused() >= 44, "{}", refused());
    assert_eq!(read_from(&mut stream, b"mn\r\n", b"\r\n"), "MN\r\n", "it goes on");
}

#[test]
fn many_handshakes_at_once_are_all_ended_in_their_turn() {
    let server = Secured::start(1);
    let config = server.client(&[&TLS13]);
    let mut streams: Vec<Secure> = (0..100).map(|_| secure(&config, server.memcached)).collect();
    // All have sent their hello before the first continues.
    for stream in &mut streams {
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).expect("said");
        }
    }
    for stream in &mut streams {
        assert_eq!(read_from(stream, b"mn\r\n", b"\r\n"), "MN\r\n");
    }
}

#[test]
fn another_certificate_is_shown_without_a_restart_and_connections_go_on() {
    let server = Secured::start(1);
    let old = server.client(&[&TLS13]);
    let mut stream = secure(&old, server.memcached);
    assert_eq!(read_from(&mut stream, b"mn\r\n", b"\r\n"), "MN\r\n");
    certificate(server.folder.path(), "localhost", 4000);
    let new = server.client(&[&TLS13]);
    server.plane.look_at_certificate();
    assert!(eventually(|| read_from(&mut secure(&new, server.memcached), b"mn\r\n", b"\r\n") == "MN\r\n"));
    // An old ticket would suffice; a client without one does not accept the new certificate.
    let mut stranger = ClientConfig::clone(&old);
    stranger.resumption = Resumption::disabled();
    assert_eq!(read_from(&mut secure(&Arc::new(stranger), server.memcached), b"mn\r\n", b"\r\n"), "<closed>");
    assert_eq!(read_from(&mut stream, b"mn\r\n", b"\r\n"), "MN\r\n");
}

#[test]
fn a_port_says_what_it_speaks_for_and_is_not_there() {
    let plane = data_plane_with(
        "workers = 1\npin = false\n[[redis]]\naddress = '127.0.0.1:0'\ntenant = 'later'\ntable = 'things'\n\
         [[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'later'\ntable = 'things'\n",
    );
    let (redis, memcached) = (plane.listening()[1], plane.listening()[0]);
    let in_want = || plane.ports_without_target();
    assert_eq!(in_want().len(), 2);
    assert!(in_want()[1].starts_with(&format!("{redis}: this port speaks for tenant \"later\", which does not exist")));
    let mut stream = connect(redis);
    let no_tenant =
        "ERR this port speaks for tenant \"later\", which does not exist: sandstorm tenant create later\r\n";
    for sent in [&b"GET a\r\n"[..], b"HELLO 3\r\n"] {
        assert_eq!(read_from(&mut stream, sent, b"\r\n"), format!("-{no_tenant}"));
    }
    let sent = text(&talk(&mut connect(memcached), b"get a"));
    assert_eq!(sent, format!("SERVER_{}<closed>", no_tenant.replacen("ERR", "ERROR", 1)));
    plane.directory.create_tenant(NewTenant::named("later")).expect("a tenant");
    let no_table = "-ERR this port uses table \"things\" of tenant \"later\", which does not exist: sandstorm table create things --tenant later\r\n";
    assert_eq!(read_from(&mut stream, b"GET a\r\n", b"\r\n"), no_table);
    assert!(in_want()[1].contains("this port uses table \"things\" of tenant \"later\", which does not exist"));
    plane.directory.create_table("later", NewTable::named("things")).expect("a table");
    assert_eq!(read_from(&mut stream, b"SET a x\r\n", b"\r\n"), "+OK\r\n");
    assert_eq!(text(&talk(&mut connect(memcached), b"get a")), "VALUE a 0 1\r\nx\r\nEND\r\nMN\r\n");
    assert!(in_want().is_empty());
}

/// Repeats a request until its answer changes; returns the new answer.
fn request_on(mut stream: TcpStream, sent: &'static [u8], expected: &'static str) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        loop {
            let received = read_from(&mut stream, sent, b"\r\n");
            if received != expected {
                return received + &read_from(&mut stream, b"", b"<closed>");
            }
        }
    })
}

#[test]
fn a_stopping_server_says_so_to_every_client() {
    // On a machine without time for its threads one of them may not send while the server still answers.
    let told = (0..20).any(|_| {
        let plane = data_plane_with(&format!(
            "workers = 3\npin = false\n[[redis]]\naddress = '127.0.0.1:0'\n[[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\n{TENANTS}"
        ));
        let (redis, memcached) = (connect(plane.listening()[1]), connect(plane.listening()[0]));
        let snapshot = plane.directory.snapshot();
        let id = snapshot.by_name("shop").expect("the shop").tenant.id;
        let client = blocking::Client::connect(Config::new(plane.address(), id).token(TOKEN)).expect("a client");
        let udp = std::thread::spawn(move || (0..u64::MAX).find_map(|_| client.get(1, b"a").err()));
        let mut redis = redis;
        assert_eq!(read_from(&mut redis, format!("AUTH shop {TOKEN}\r\n").as_bytes(), b"\r\n"), "+OK\r\n");
        let redis = request_on(redis, b"PING\r\n", "+PONG\r\n");
        let memcached = request_on(memcached, b"mn\r\n", "MN\r\n");
        std::thread::sleep(Duration::from_millis(50));
        drop(plane);
        let [redis, memcached] = [redis, memcached].map(|thread| thread.join().expect("an answer"));
        let udp = udp.join().expect("an answer");
        redis == "-LOADING the server is shutting down and did not run the command\r\n<closed>"
            && memcached == "SERVER_ERROR shutting down\r\n<closed>"
            && udp == Some(Error::ShuttingDown)
    });
    assert!(told, "all three of them, once in twenty times");
}
