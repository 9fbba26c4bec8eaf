//! A connection to a NATS server: requests, one after the other, and their answers. It blocks.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde::{Deserialize, Serialize};

use crate::access::NatsEndpoint;
use crate::limits::{CONNECT_TIMEOUT, LINE_BYTES, MESSAGE_BYTES, OLDEST_VERSION};
use crate::nats_protocol::{ServerWord, WordParse, parse_word};

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// A message, as it was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NatsReply {
    pub(crate) status: Option<u32>,
    /// Its place in a stream, if it was read from one.
    pub(crate) sequence: Option<u64>,
    pub(crate) payload: Vec<u8>,
}

/// What a server tells of itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NatsInfo {
    version: String,
    max_payload: u64,
    tls_required: bool,
    tls_available: bool,
    headers: bool,
    jetstream: bool,
}

/// What a client tells of itself.
#[derive(Serialize)]
struct NatsHello<'a> {
    verbose: bool,
    pedantic: bool,
    tls_required: bool,
    lang: &'a str,
    version: &'a str,
    name: &'a str,
    protocol: u32,
    echo: bool,
    headers: bool,
    no_responders: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pass: Option<&'a str>,
}

enum NatsSocket {
    Plain(TcpStream),
    Encrypted(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl NatsSocket {
    fn tcp(&self) -> &TcpStream {
        match self {
            NatsSocket::Plain(stream) => stream,
            NatsSocket::Encrypted(stream) => &stream.sock,
        }
    }

    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            NatsSocket::Plain(stream) => stream.read(into),
            NatsSocket::Encrypted(stream) => stream.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            NatsSocket::Plain(stream) => stream.write_all(bytes),
            NatsSocket::Encrypted(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

/// See the head of this file.
pub(crate) struct NatsConnection {
    socket: NatsSocket,
    received: Vec<u8>,
    /// Bytes of those that were read already.
    used: usize,
    inbox: String,
    asked: u64,
    max_payload: usize,
}

/// A version as numbers, the first two.
pub(crate) fn version_of(text: &str) -> Option<[u32; 2]> {
    let mut parts = text.split(['.', '-']);
    Some([parts.next()?.parse().ok()?, parts.next()?.parse().ok()?])
}

fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let failed = |error: std::io::Error| format!("{host}:{port}: {error}");
    let mut last = format!("{host}:{port}: no such host");
    for address in (host.trim_matches(['[', ']']), port).to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(failed)?;
                return Ok(stream);
            }
            Err(error) => last = failed(error),
        }
    }
    Err(last)
}

impl NatsConnection {
    /// Connects to one of the servers.
    ///
    /// # Errors
    /// One line: it cannot be reached, refuses, or is not one that has what is needed.
    pub(crate) fn open(endpoint: &NatsEndpoint, server: usize) -> Result<NatsConnection, String> {
        let servers = &endpoint.address.servers;
        let (host, port) = servers.get(server % servers.len().max(1)).ok_or("there is no server")?;
        let named = |why: String| format!("the NATS server {host}:{port} {why}");
        let socket = NatsSocket::Plain(dial(host, *port)?);
        let inbox = format!("_INBOX.{:016x}{:016x}", rand::random::<u64>(), rand::random::<u64>());
        let (received, used, asked, max_payload) = (Vec::new(), 0, 0, MESSAGE_BYTES);
        let mut connection = NatsConnection { socket, received, used, inbox, asked, max_payload };
        let until = Instant::now() + CONNECT_TIMEOUT;
        let told = connection.info(until)?;
        if version_of(&told.version).is_none_or(|version| version < OLDEST_VERSION) {
            let [major, minor] = OLDEST_VERSION;
            return Err(named(format!("has version {:?}: {major}.{minor} or newer is needed", told.version)));
        }
        if !told.headers || !told.jetstream {
            return Err(named("has no JetStream: start it with --jetstream".to_owned()));
        }
        match &endpoint.tls {
            Some(config) if told.tls_required || told.tls_available => {
                let name = host.trim_matches(['[', ']']).to_owned();
                let name =
                    ServerName::try_from(name).map_err(|error| named(format!("has no name for TLS: {error}")))?;
                let client = ClientConnection::new(Arc::clone(config), name).map_err(|error| error.to_string())?;
                let NatsSocket::Plain(stream) = connection.socket else {
                    return Err(named("is odd".to_owned()));
                };
                connection.socket = NatsSocket::Encrypted(Box::new(StreamOwned::new(client, stream)));
            }
            Some(_) => return Err(named("speaks no TLS, and natss:// asks for it".to_owned())),
            None if told.tls_required => return Err(named("wants TLS: write natss://".to_owned())),
            None => {}
        }
        connection.max_payload = usize::try_from(told.max_payload).unwrap_or(MESSAGE_BYTES).min(MESSAGE_BYTES);
        connection.greet(endpoint, until).map_err(named)?;
        Ok(connection)
    }

    fn info(&mut self, until: Instant) -> Result<NatsInfo, String> {
        self.next(until, |word| match word {
            ServerWord::Info(json) => {
                Some(serde_json::from_slice(json).map_err(|error| format!("tells nothing of itself: {error}")))
            }
            _ => Some(Err("is no NATS server".to_owned())),
        })?
    }

    fn greet(&mut self, endpoint: &NatsEndpoint, until: Instant) -> Result<(), String> {
        let user = endpoint.user.as_ref();
        let hello = NatsHello {
            verbose: false,
            pedantic: false,
            tls_required: endpoint.tls.is_some(),
            lang: "rust",
            version: env!("CARGO_PKG_VERSION"),
            name: "sandstorm",
            protocol: 1,
            echo: false,
            headers: true,
            no_responders: true,
            user: user.map(|user| user.name.as_str()),
            pass: user.map(|user| user.password.as_str()),
        };
        let hello = serde_json::to_string(&hello).map_err(|error| error.to_string())?;
        let greeting = format!("CONNECT {hello}\r\nSUB {}.* 1\r\nPING\r\n", self.inbox);
        self.send(greeting.as_bytes(), until)?;
        self.next(until, |word| match word {
            ServerWord::Pong => Some(Ok(())),
            ServerWord::Error(why) => Some(Err(format!("refuses this client: {why}"))),
            _ => None,
        })?
    }

    /// Bytes of the payload of a message, at most.
    pub(crate) fn max_payload(&self) -> usize {
        self.max_payload
    }

    fn send(&mut self, bytes: &[u8], until: Instant) -> Result<(), String> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("takes nothing in time".to_owned());
        }
        let set = self.socket.tcp().set_write_timeout(Some(left));
        set.and_then(|()| self.socket.write_all(bytes)).map_err(|error| error.to_string())
    }

    /// Reads words until `take` wants one.
    fn next<T>(&mut self, until: Instant, mut take: impl FnMut(&ServerWord<'_>) -> Option<T>) -> Result<T, String> {
        loop {
            let mut pings = 0;
            let taken = loop {
                match parse_word(self.received.get(self.used..).unwrap_or_default()) {
                    WordParse::Word(word, bytes) => {
                        self.used += bytes;
                        match &word {
                            ServerWord::Ping => pings += 1,
                            word => {
                                if let Some(taken) = take(word) {
                                    break Some(taken);
                                }
                            }
                        }
                    }
                    WordParse::Incomplete => break None,
                    WordParse::Malformed(what) => {
                        return Err(format!("does not speak NATS: {what}"));
                    }
                }
            };
            for _ in 0..pings {
                self.send(b"PONG\r\n", until)?;
            }
            if let Some(taken) = taken {
                return Ok(taken);
            }
            self.receive(until)?;
        }
    }

    fn receive(&mut self, until: Instant) -> Result<(), String> {
        self.received.drain(..std::mem::take(&mut self.used));
        if self.received.len() > MESSAGE_BYTES + 2 * LINE_BYTES {
            return Err("sends a message without an end".to_owned());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("does not answer in time".to_owned());
        }
        self.socket.tcp().set_read_timeout(Some(left)).map_err(|error| error.to_string())?;
        let before = self.received.len();
        self.received.resize(before + CHUNK_BYTES, 0);
        let read = self.socket.read(self.received.get_mut(before..).unwrap_or_default());
        self.received.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err("has ended the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            Err(error) if [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut].contains(&error.kind()) => {
                Err("does not answer in time".to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends a request and reads its answers until `take` has enough.
    ///
    /// # Errors
    /// One line. The connection is at its end then.
    pub(crate) fn ask<T>(
        &mut self,
        subject: &str,
        (headers, payload): (&[(&str, String)], &[u8]),
        until: Instant,
        mut take: impl FnMut(NatsReply) -> Option<T>,
    ) -> Result<T, String> {
        self.asked += 1;
        let inbox = format!("{}.{}", self.inbox, self.asked);
        let mut sent = Vec::with_capacity(payload.len() + 512);
        if headers.is_empty() {
            sent.extend_from_slice(format!("PUB {subject} {inbox} {}\r\n", payload.len()).as_bytes());
        } else {
            let fields: String = headers.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
            let fields = format!("NATS/1.0\r\n{fields}\r\n");
            let total = fields.len() + payload.len();
            sent.extend_from_slice(format!("HPUB {subject} {inbox} {} {total}\r\n{fields}", fields.len()).as_bytes());
        }
        sent.extend_from_slice(payload);
        sent.extend_from_slice(b"\r\n");
        self.send(&sent, until)?;
        self.next(until, |word| match word {
            // Answers to earlier requests may still come.
            ServerWord::Message(message) if message.subject == inbox => {
                let sequence = message.header("Nats-Sequence").and_then(|text| text.parse().ok());
                let reply = NatsReply { status: message.status(), sequence, payload: message.payload.to_vec() };
                take(reply).map(Ok)
            }
            ServerWord::Error(why) => Some(Err(format!("refuses: {why}"))),
            _ => None,
        })?
    }
}
