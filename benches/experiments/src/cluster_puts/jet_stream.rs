//! NATS JetStream: three servers on this machine, with a stream of three replicas that are synced with each message.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandstorm_terminal::output::CliError;
use serde_json::{Value, json};

use super::super::cluster_server::{ClusterProcess, await_that};
use super::super::durable::measured;
use super::super::measure::LoadMeasurement;
use super::super::peer_server::{free_address, is_installed};
use super::SERVERS;

/// The program; Debian's package has the same name.
const NATS: &str = "nats-server";
/// Longest wait for one answer: a cluster that has no leader yet gives none.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The subject of the stream, and that of the answers to this client.
const SUBJECT: &str = "bench";
const INBOX: &str = "_INBOX.bench";
/// Bytes of a message: as many as key and value of a put have.
const MESSAGE: [u8; 130] = [7; 130];

/// A stream with its servers, and a connection to its leader.
pub(super) struct JetStream {
    client: NatsClient,
    _processes: Vec<ClusterProcess>,
    _folder: tempfile::TempDir,
}

/// A connection with one question under way at a time.
struct NatsClient {
    write: TcpStream,
    read: BufReader<TcpStream>,
}

impl NatsClient {
    fn connect(address: SocketAddr) -> Result<NatsClient, CliError> {
        let write = TcpStream::connect(address)?;
        write.set_nodelay(true)?;
        write.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut client = NatsClient { read: BufReader::new(write.try_clone()?), write };
        let hello = format!("CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {INBOX} 1\r\nPING\r\n");
        client.write.write_all(hello.as_bytes())?;
        while client.line()?.trim_end() != "PONG" {}
        Ok(client)
    }

    fn line(&mut self) -> Result<String, CliError> {
        let mut line = String::new();
        if self.read.read_line(&mut line)? == 0 || line.starts_with("-ERR") {
            return Err(CliError::new(format!("{NATS} closes the connection: {}", line.trim_end())));
        }
        Ok(line)
    }

    /// Publishes a message, and waits for its answer.
    fn ask(&mut self, subject: &str, body: &[u8]) -> Result<Value, CliError> {
        let mut out = format!("PUB {subject} {INBOX} {}\r\n", body.len()).into_bytes();
        out.extend_from_slice(body);
        out.extend_from_slice(b"\r\n");
        self.write.write_all(&out)?;
        loop {
            let line = self.line()?;
            if line.starts_with("PING") {
                self.write.write_all(b"PONG\r\n")?;
            }
            // An answer with headers says that no subscriber listens: there is no such stream yet.
            if line.starts_with("HMSG") {
                return Err(CliError::new(format!("{NATS} answers: {}", line.trim_end())));
            }
            let Some(rest) = line.strip_prefix("MSG ") else { continue };
            let bytes = rest.split_whitespace().last().and_then(|bytes| bytes.parse::<usize>().ok()).unwrap_or(0);
            let mut answer = vec![0; bytes + 2];
            self.read.read_exact(&mut answer)?;
            let answer: Value = serde_json::from_slice(answer.get(..bytes).unwrap_or_default())
                .map_err(|error| CliError::new(format!("{NATS} answers no JSON: {error}")))?;
            return match answer.get("error") {
                None => Ok(answer),
                Some(error) => Err(CliError::new(format!("{NATS} answers: {error}"))),
            };
        }
    }
}

/// Why there is nothing to compare with, if so.
fn obstacle(config: &std::path::Path) -> Result<Option<String>, CliError> {
    let mut command = Command::new(NATS);
    command.arg("-t").arg("-c").arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let takes_it = command.status()?.success();
    let why = format!("left out: JetStream, since this {NATS} cannot sync with each message (2.10 can)");
    Ok((!takes_it).then_some(why))
}

impl JetStream {
    /// Starts it; or says why it is left out.
    pub(super) fn start() -> Result<Result<JetStream, String>, CliError> {
        if is_installed(NATS).is_err() {
            return Ok(Err(format!("left out: JetStream, since there is no `{NATS}` here")));
        }
        let folder = tempfile::tempdir()?;
        let mut addresses = Vec::new();
        for _ in 0..SERVERS {
            addresses.push((free_address()?, free_address()?));
        }
        let routes: Vec<String> = addresses.iter().map(|(_, route)| format!("\"nats://{route}\"")).collect();
        let mut processes = Vec::new();
        for (number, (address, route)) in addresses.iter().enumerate() {
            let config = folder.path().join(format!("{number}.conf"));
            let text = format!(
                "server_name: n{number}\nlisten: \"{address}\"\n\
                 jetstream {{ store_dir: \"{}/store-{number}\", sync_interval: always }}\n\
                 cluster {{ name: bench, listen: \"{route}\", routes: [{}] }}\n",
                folder.path().display(),
                routes.join(", ")
            );
            std::fs::write(&config, text)?;
            if let Some(why) = obstacle(&config)? {
                return Ok(Err(why));
            }
            processes.push(ClusterProcess::start(Command::new(NATS).arg("-c").arg(config))?);
        }
        let client = connect_to_leader(&addresses)?;
        Ok(Ok(JetStream { client, _processes: processes, _folder: folder }))
    }

    /// Publishes one message after the other for so long, after a quarter of that which does not count.
    pub(super) fn publish_on(&mut self, seconds: f64) -> Result<LoadMeasurement, CliError> {
        let warm_up = Instant::now();
        while warm_up.elapsed().as_secs_f64() < seconds / 4.0 {
            self.client.ask(SUBJECT, &MESSAGE)?;
        }
        let (begun, mut took_us) = (Instant::now(), Vec::new());
        while begun.elapsed().as_secs_f64() < seconds {
            let at = Instant::now();
            self.client.ask(SUBJECT, &MESSAGE)?;
            took_us.push(at.elapsed().as_nanos() as f64 / 1_000.0);
        }
        Ok(measured(took_us, 1, begun.elapsed()))
    }
}

/// Makes the stream as soon as the servers agree on anything, and connects to its leader: no other server is as fast.
fn connect_to_leader(addresses: &[(SocketAddr, SocketAddr)]) -> Result<NatsClient, CliError> {
    let of = |number: usize| {
        let found = addresses.get(number).map(|(address, _)| *address);
        found.ok_or_else(|| CliError::new(format!("{NATS} names a leader that is none")))
    };
    let stream = json!({"name": "BENCH", "subjects": [SUBJECT], "num_replicas": SERVERS, "storage": "file"});
    let mut leader = None;
    await_that("the servers of NATS do not make a stream", || {
        let mut client = NatsClient::connect(of(0)?)?;
        // The same stream again is an answer as well.
        let made = client.ask("$JS.API.STREAM.CREATE.BENCH", stream.to_string().as_bytes())?;
        let name = made["cluster"]["leader"].as_str().and_then(|name| name.strip_prefix('n')?.parse::<usize>().ok());
        leader = name;
        let Some(name) = name else { return Ok(false) };
        NatsClient::connect(of(name)?)?.ask(SUBJECT, &MESSAGE)?;
        Ok(true)
    })?;
    NatsClient::connect(of(leader.unwrap_or_default())?)
}
