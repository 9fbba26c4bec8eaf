//! The same records in memcached and Redis, filled through their protocols, one thread each, without persistence.

use std::io::{BufWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{PAYLOAD_BYTES, VALUE, key_of, resident_bytes};

/// Longest time until a server listens.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Records sent before their answers are read.
const PIPELINE: u64 = 500;

/// A server process; ended when dropped.
struct PeerProcess {
    child: Child,
    connection: TcpStream,
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server on a free port. Returns `None`, and prints the reason, where it is not installed.
fn start(program: &str, arguments: impl FnOnce(String) -> Vec<String>) -> Option<PeerProcess> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
    let mut command = Command::new(program);
    command.args(arguments(port.to_string())).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("{program}: {error}; install it with `apt-get install memcached redis-server`");
            return None;
        }
    };
    let begun = Instant::now();
    loop {
        if let Ok(connection) = TcpStream::connect(("127.0.0.1", port)) {
            return Some(PeerProcess { child, connection });
        }
        if begun.elapsed() > START_TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            println!("{program}: does not listen on port {port}");
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl PeerProcess {
    /// Sends every record as `command` writes it; the answer to each is `answer`.
    fn fill(&mut self, records: u64, answer: &[u8], command: impl Fn(&mut dyn Write, u64) -> std::io::Result<()>) {
        let mut answers = vec![0; answer.len() * PIPELINE as usize];
        let mut out = BufWriter::with_capacity(1 << 18, self.connection.try_clone().expect("a descriptor"));
        let mut n = 0;
        while n < records {
            let part = PIPELINE.min(records - n);
            (n..n + part).try_for_each(|n| command(&mut out, n)).and_then(|()| out.flush()).expect("the server reads");
            let answers = &mut answers[..answer.len() * part as usize];
            self.connection.read_exact(answers).expect("the server answers");
            assert!(answers.chunks(answer.len()).all(|got| got == answer), "a record was refused");
            n += part;
        }
    }

    fn print(&self, before: f64, records: u64) {
        let each = (resident_bytes(&self.child.id().to_string()) - before) / records as f64;
        println!("{records} records: {each:.1} resident bytes each, {:.1} over the payload", each - PAYLOAD_BYTES);
    }
}

pub(super) fn memcached(records: u64) {
    let megabytes = (records * 400 / (1 << 20)).max(64).to_string();
    let arguments = |port: String| {
        let words = ["-l", "127.0.0.1", "-p", &port, "-U", "0", "-m", &megabytes, "-t", "1", "-u", "root"];
        words.map(String::from).to_vec()
    };
    let Some(mut peer) = start("memcached", arguments) else { return };
    let before = resident_bytes(&peer.child.id().to_string());
    peer.fill(records, b"STORED\r\n", |out, n| {
        out.write_all(b"set ")?;
        out.write_all(&key_of(n))?;
        out.write_all(b" 0 0 100\r\n")?;
        out.write_all(&VALUE)?;
        out.write_all(b"\r\n")
    });
    peer.print(before, records);
}

pub(super) fn redis(records: u64) {
    let arguments = |port: String| {
        let words = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        words.map(String::from).to_vec()
    };
    let Some(mut peer) = start("redis-server", arguments) else { return };
    let before = resident_bytes(&peer.child.id().to_string());
    peer.fill(records, b"+OK\r\n", |out, n| {
        out.write_all(b"*3\r\n$3\r\nSET\r\n$30\r\n")?;
        out.write_all(&key_of(n))?;
        out.write_all(b"\r\n$100\r\n")?;
        out.write_all(&VALUE)?;
        out.write_all(b"\r\n")
    });
    peer.print(before, records);
}
