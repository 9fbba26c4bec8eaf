//! Peers: memcached and Redis as processes of their own. They run on the core of this server's worker, which is idle
//! meanwhile. Both are Debian's packages; `scripts/bench` installs them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::bench_server;
use sandstorm_terminal::output::CliError;

pub(super) const MEMCACHED: &str = "memcached";
pub(super) const REDIS: &str = "redis-server";
/// Time that a peer may take until it listens, or until it answers one command.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);
/// Memory that memcached may use for records, MiB.
const MEMCACHED_MIB: u32 = 4096;
/// Commands that are sent to Redis before their replies are read.
const PIPELINE_COMMANDS: usize = 256;

/// Returns an error that says what to install where a peer is missing. Each package has its program's name.
pub(super) fn is_installed(program: &str) -> Result<(), CliError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        return Ok(());
    }
    let hint =
        format!("apt-get install {program}, or scripts/bench, or name experiments that do without: bench --help");
    Err(CliError::new(format!("{program} is not installed")).hint(hint))
}

/// An address of loopback whose port is free now.
pub(super) fn free_address() -> Result<SocketAddr, CliError> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// A peer process; ended when dropped.
pub(super) struct PeerServer {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        // It may have ended by itself; nothing of it is needed any more.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl PeerServer {
    fn start(name: &'static str, arguments: impl Fn(u16) -> Vec<String>) -> Result<PeerServer, CliError> {
        is_installed(name)?;
        let address = free_address()?;
        let child = Command::new("taskset")
            .args(["-c", &bench_server::first_processor().to_string(), name])
            .args(arguments(address.port()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.map_err(|error| CliError::new(format!("cannot start {name} under taskset: {error}")))?;
        let mut peer = PeerServer { child, address };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if peer.child.try_wait()?.is_some() {
                return Err(CliError::new(format!(
                    "{name} ends at once; what does it say when it is started by hand?"
                )));
            }
            if begun.elapsed() > PEER_TIMEOUT {
                return Err(CliError::new(format!("{name} does not listen on {address} after {PEER_TIMEOUT:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(peer)
    }

    pub(super) fn memcached() -> Result<PeerServer, CliError> {
        let user = if rustix::process::getuid().is_root() { vec!["-u".to_owned(), "root".to_owned()] } else { vec![] };
        PeerServer::start(MEMCACHED, |port| {
            let rest = format!("-l 127.0.0.1 -p {port} -U {port} -t 1 -m {MEMCACHED_MIB} -c 4096");
            rest.split(' ').map(str::to_owned).chain(user.clone()).collect()
        })
    }

    /// memcached that moves values to a file, with so much memory and so large a file, MiB.
    pub(super) fn memcached_with_file(path: &std::path::Path, mib: u64, file_mib: u64) -> Result<PeerServer, CliError> {
        let user = if rustix::process::getuid().is_root() { vec!["-u".to_owned(), "root".to_owned()] } else { vec![] };
        // Small pages and buffers: with the usual ones a file has to be of gigabytes. Without slabs that move soon it
        // drops two items of three while it is filled: all slabs are for whole items then, and none for what leads to
        // the file.
        let file = format!(
            "slab_automove=2,ext_page_size=16,ext_wbuf_size=8,ext_threads=8,ext_path={}:{file_mib}M",
            path.display()
        );
        PeerServer::start(MEMCACHED, |port| {
            let rest = format!("-l 127.0.0.1 -p {port} -U 0 -t 1 -m {mib} -c 4096 -o {file}");
            rest.split(' ').map(str::to_owned).chain(user.clone()).collect()
        })
    }

    pub(super) fn redis() -> Result<PeerServer, CliError> {
        PeerServer::start(REDIS, |port| {
            let rest = format!("--port {port} --bind 127.0.0.1 --appendonly no --io-threads 1 --save");
            rest.split(' ').map(str::to_owned).chain([String::new()]).collect()
        })
    }
}

impl PeerServer {
    /// Redis with its log of commands in a folder, which is made; `when`: when it is synced, as `appendfsync` says it.
    pub(super) fn redis_with_log(folder: &std::path::Path, when: &str) -> Result<PeerServer, CliError> {
        std::fs::create_dir_all(folder)?;
        PeerServer::start(REDIS, |port| {
            let rest = format!(
                "--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync {when} --auto-aof-rewrite-percentage 0 \
                 --io-threads 1 --dir {} --save",
                folder.display()
            );
            rest.split(' ').map(str::to_owned).chain([String::new()]).collect()
        })
    }
}

/// A connection to Redis for the commands before a measurement.
pub(super) struct RedisConnection {
    write: TcpStream,
    read: BufReader<TcpStream>,
}

impl RedisConnection {
    pub(super) fn connect(address: SocketAddr) -> Result<RedisConnection, CliError> {
        let write = TcpStream::connect(address)?;
        write.set_read_timeout(Some(PEER_TIMEOUT))?;
        Ok(RedisConnection { read: BufReader::new(write.try_clone()?), write })
    }

    /// Sends a command and returns its reply: a line, or a text.
    pub(super) fn command(&mut self, words: &[&[u8]]) -> Result<Vec<u8>, CliError> {
        self.write.write_all(&command(words))?;
        self.reply()
    }

    /// Puts records, many commands at a time.
    pub(super) fn put_all(
        &mut self,
        count: u64,
        mut write: impl FnMut(u64, &mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<(), CliError> {
        let (mut key, mut value, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let ids: Vec<u64> = (0..count).collect();
        for some in ids.chunks(PIPELINE_COMMANDS) {
            out.clear();
            for id in some {
                write(*id, &mut key, &mut value);
                out.extend_from_slice(&command(&[b"SET", &key, &value]));
            }
            self.write.write_all(&out)?;
            for _ in some {
                self.reply()?;
            }
        }
        Ok(())
    }

    /// The same for a command that may be refused: the inner error is what the server says then.
    pub(super) fn ask(&mut self, words: &[&[u8]]) -> Result<Result<Vec<u8>, String>, CliError> {
        self.write.write_all(&command(words))?;
        self.answer()
    }

    fn reply(&mut self) -> Result<Vec<u8>, CliError> {
        self.answer()?.map_err(|line| CliError::new(format!("redis-server answers: -{line}")))
    }

    fn answer(&mut self) -> Result<Result<Vec<u8>, String>, CliError> {
        let mut line = String::new();
        self.read.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            return Err(CliError::new("the server closed the connection"));
        }
        if let Some(refusal) = line.strip_prefix('-') {
            return Ok(Err(refusal.to_owned()));
        }
        let Some(len) = line.strip_prefix('$') else { return Ok(Ok(line.get(1..).unwrap_or_default().into())) };
        let len: usize = len.parse().map_err(|_| CliError::new(format!("redis-server answers: {line}")))?;
        let mut text = vec![0; len + 2];
        self.read.read_exact(&mut text)?;
        text.truncate(len);
        Ok(Ok(text))
    }
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}
