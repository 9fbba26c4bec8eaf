//! The real memcached, from Debian's package, and connections to it or to this server.
#![allow(dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Returns whether a command is installed; installs its package if possible.
pub fn need_package(command: &str, package: &str) -> bool {
    let there = || {
        let found = Command::new("sh").args(["-c", &format!("command -v {command}")]).stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    if there() {
        return true;
    }
    let install =
        format!("apt-get install -y -qq {package} || {{ apt-get update -qq && apt-get install -y -qq {package}; }}");
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let _tried = Command::new("sh").args(["-c", &install]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
    let there = there();
    if !there {
        println!("skipped: {command} is not here; install the package {package}");
    }
    there
}

/// A memcached process of the test's own; ended when dropped.
pub struct Memcached {
    child: Child,
    pub address: SocketAddr,
}

impl Memcached {
    /// Starts it, if it is installed.
    pub fn start(arguments: &[&str]) -> Option<Memcached> {
        if !need_package("memcached", "memcached") {
            return None;
        }
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let port = address.port().to_string();
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-p", &port, "-U", &port, "-t", "1", "-u", "nobody"]).args(arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("memcached starts");
        let memcached = Memcached { child, address };
        let asked = std::time::Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(asked.elapsed() < Duration::from_secs(60), "memcached listens");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(memcached)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A connection that waits for answers for up to a minute.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream.set_nodelay(true).expect("no delay");
    stream
}

/// Sends commands and reads all the answers, up to that of a no-op; or up to the connection's end, which is marked.
pub fn talk(stream: &mut TcpStream, said: &[u8]) -> Vec<u8> {
    // A closed connection accepts no more bytes: its earlier answers are there.
    let _may_be_closed = stream.write_all(said).and_then(|()| stream.write_all(b"\r\nmn\r\n"));
    hear(stream, b"MN\r\n")
}

/// As [`talk`], for input that may swallow a little of what follows (a line is lost to that), or may itself contain a
/// no-op. The end is the version's reply, which no case requests.
pub fn talk_through(stream: &mut TcpStream, said: &[u8]) -> Vec<u8> {
    let _may_be_closed = stream.write_all(&[said, b"\r\nlost\r\nversion\r\n"].concat());
    let version = |heard: &[u8]| {
        let from = heard.windows(8).rposition(|word| word == b"VERSION ")?;
        heard.ends_with(b"\r\n").then_some(from)
    };
    let mut heard = hear_until(stream, |heard| version(heard).is_some());
    heard.truncate(version(&heard).unwrap_or(heard.len()));
    heard
}

/// Reads until the answers end with `end`.
pub fn hear(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    hear_until(stream, |heard| heard.ends_with(end))
}

/// Reads until the received bytes are complete, or to the connection's end, which is marked.
fn hear_until(stream: &mut TcpStream, is_all: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let (mut heard, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while !is_all(&heard) {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => {
                heard.extend_from_slice(b"<closed>");
                break;
            }
            Ok(len) => heard.extend_from_slice(&buffer[..len]),
        }
    }
    heard
}

/// Sends commands on a connection of its own.
pub fn ask(address: SocketAddr, said: &[u8]) -> Vec<u8> {
    talk(&mut connect(address), said)
}

/// Bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
