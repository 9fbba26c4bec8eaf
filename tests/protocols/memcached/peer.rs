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
            assert!(asked.elapsed() < crate::common::EVENTUALLY, "memcached listens");
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
pub fn talk(stream: &mut TcpStream, sent: &[u8]) -> Vec<u8> {
    // A closed connection accepts no more bytes: its earlier answers are there.
    let _may_be_closed = stream.write_all(sent).and_then(|()| stream.write_all(b"\r\nmn\r\n"));
    read_until(stream, b"MN\r\n")
}

/// As [`talk`], for input that may swallow a little of what follows (a line is lost to that), or may itself contain a
/// no-op. The end is the version's reply, which no case requests.
pub fn talk_through(stream: &mut TcpStream, sent: &[u8]) -> Vec<u8> {
    let _may_be_closed = stream.write_all(&[sent, b"\r\nlost\r\nversion\r\n"].concat());
    let version = |received: &[u8]| {
        let from = received.windows(8).rposition(|word| word == b"VERSION ")?;
        received.ends_with(b"\r\n").then_some(from)
    };
    let mut received = read_all_until(stream, |received| version(received).is_some());
    received.truncate(version(&received).unwrap_or(received.len()));
    received
}

/// Reads until the answers end with `end`.
pub fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    read_all_until(stream, |received| received.ends_with(end))
}

/// Reads until the received bytes are complete, or to the connection's end, which is marked.
fn read_all_until(stream: &mut TcpStream, is_all: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while !is_all(&received) {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => {
                received.extend_from_slice(b"<closed>");
                break;
            }
            Ok(len) => received.extend_from_slice(&buffer[..len]),
        }
    }
    received
}

/// Sends commands on a connection of its own.
pub fn request(address: SocketAddr, sent: &[u8]) -> Vec<u8> {
    talk(&mut connect(address), sent)
}

/// Bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
