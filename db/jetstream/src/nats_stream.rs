//! A stream of NATS JetStream: made, asked, and its answers.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use crate::access::NatsEndpoint;
use crate::connection::{NatsConnection, NatsReply};
use crate::limits::{
    ATTEMPT_TIMEOUT, DUPLICATE_WINDOW, NAME_PAGES, PART_BYTES, PART_MARGIN_BYTES, READ_BYTES, READ_MESSAGES,
    REPEAT_PAUSE, REQUEST_TIMEOUT,
};
use crate::stream_store::{MessageVisitor, StreamBounds, StreamError, StreamStore};

/// JetStream's numbers of its errors.
const NO_STREAM: u32 = 10_059;
const NAME_IN_USE: u32 = 10_058;
const WRONG_SEQUENCE: [u32; 2] = [10_071, 10_164];
/// A message with the same id is being added: what becomes of it is not known yet.
const IN_PROCESS: u32 = 10_158;
/// The stores are full: resources, storage, and bytes of the stream.
const NO_ROOM: [u32; 4] = [10_023, 10_028, 10_047, 10_077];
/// The code of an error that may be over in a moment: there is no leader, for example.
const NOT_NOW: u32 = 503;
/// The status of an answer that no server was there to give.
const NO_RESPONDERS: u32 = 503;
/// The status behind the last message that was asked for.
const END_OF_BATCH: u32 = 204;
const NOT_FOUND: u32 = 404;

/// An error of JetStream.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct JetStreamError {
    code: u32,
    err_code: u32,
    description: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamTold {
    first_seq: u64,
    last_seq: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PeerTold {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClusterTold {
    leader: String,
    replicas: Vec<PeerTold>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigTold {
    subjects: Vec<String>,
    retention: String,
    storage: String,
    num_replicas: u32,
    max_msgs: i64,
    max_bytes: i64,
    max_age: i64,
    max_msgs_per_subject: i64,
    discard: String,
    allow_direct: bool,
    deny_delete: bool,
}

/// An answer of JetStream, whatever was asked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiAnswer {
    error: Option<JetStreamError>,
    seq: u64,
    state: StreamTold,
    config: ConfigTold,
    cluster: Option<ClusterTold>,
    /// Names of streams, and how many there are of them all.
    streams: Option<Vec<String>>,
    total: usize,
}

/// See the head of this file.
pub struct NatsStream {
    endpoint: NatsEndpoint,
    connection: Option<NatsConnection>,
    /// The server that is tried next.
    server: usize,
    name: String,
    subject: String,
    message_bytes: usize,
    /// The time after which a request has failed, repetitions included.
    patience: Duration,
}

impl std::fmt::Debug for NatsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsStream").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What is asked: a subject, headers, a payload.
type NatsQuestion<'q> = (&'q str, &'q [(&'q str, String)], &'q [u8]);

fn error_of(error: JetStreamError) -> StreamError {
    let text = format!("JetStream refuses: {} ({})", error.description, error.err_code);
    match error.err_code {
        NO_STREAM => StreamError::Missing,
        code if WRONG_SEQUENCE.contains(&code) => StreamError::OtherSequence,
        code if NO_ROOM.contains(&code) => StreamError::Full(text),
        IN_PROCESS => StreamError::NoAnswer(text),
        _ if error.code == NOT_NOW => StreamError::NoAnswer(text),
        _ => StreamError::Refused(text),
    }
}

/// What of a stream's settings would lose or change messages; empty: nothing.
fn faults_of(config: &ConfigTold, subject: &str, replicas: u32) -> Vec<String> {
    let checks = [
        (config.subjects.as_slice() == [subject], format!("its subject is not {subject} alone")),
        (config.storage == "file", format!("its storage is {:?}, not file", config.storage)),
        (config.retention == "limits", format!("its retention is {:?}, not limits", config.retention)),
        (config.num_replicas >= replicas, format!("it has {} replicas, not {replicas}", config.num_replicas)),
        (config.max_msgs <= 0 && config.max_msgs_per_subject <= 0, "it bounds its messages".to_owned()),
        (config.max_age == 0, "it drops messages by their age".to_owned()),
        (config.max_bytes <= 0 || config.discard == "new", "it drops old messages where it is full".to_owned()),
        (config.deny_delete, "single messages may be deleted".to_owned()),
        (config.allow_direct, "its messages cannot be asked for directly".to_owned()),
    ];
    checks.into_iter().filter(|(is_right, _)| !is_right).map(|(_, what)| what).collect()
}

impl NatsStream {
    /// The stream of a copy of an owner's log, by whatever names these have. It is not asked for yet.
    pub fn new(endpoint: NatsEndpoint, owner: &str, copy: &str) -> NatsStream {
        let of = &endpoint.address.name;
        let (name, subject) = (format!("{of}-{owner}-{copy}"), format!("sandstorm.{of}.{owner}.{copy}"));
        let (message_bytes, patience) = (PART_BYTES, REQUEST_TIMEOUT);
        NatsStream { endpoint, connection: None, server: 0, name, subject, message_bytes, patience }
    }

    /// Sets the time after which a request has failed, repetitions included; else it is [`REQUEST_TIMEOUT`].
    pub fn with_patience(self, patience: Duration) -> NatsStream {
        NatsStream { patience, ..self }
    }

    /// Returns the name of the stream.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the stream, if it is not there, and looks whether it is one that keeps what it has.
    ///
    /// # Errors
    /// [`StreamError`]: it cannot be made, or has other settings.
    pub fn make(&mut self, replicas: u32) -> Result<(), StreamError> {
        let config = json!({
            "name": self.name, "subjects": [self.subject], "retention": "limits", "storage": "file",
            "num_replicas": replicas, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1,
            "discard": "new", "allow_direct": true, "deny_delete": true, "no_ack": false,
            "duplicate_window": DUPLICATE_WINDOW.as_nanos() as u64,
        });
        let subject = format!("$JS.API.STREAM.CREATE.{}", self.name);
        match self.api(&subject, config.to_string().as_bytes()) {
            Ok(_) => self.check(replicas),
            Err(StreamError::Refused(why)) if why.ends_with(&format!("({NAME_IN_USE})")) => self.check(replicas),
            Err(error) => Err(error),
        }
    }

    /// Looks whether the stream keeps what it has on so many servers.
    ///
    /// # Errors
    /// [`StreamError`]: it does not, or is not there.
    pub fn check(&mut self, replicas: u32) -> Result<(), StreamError> {
        let told = self.info()?;
        let faults = faults_of(&told.config, &self.subject, replicas);
        match faults.is_empty() {
            true => Ok(()),
            false => Err(StreamError::Refused(format!("the stream {} is no copy: {}", self.name, faults.join("; ")))),
        }
    }

    /// Returns the names of the servers that have the stream, as far as they are told.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn peers(&mut self) -> Result<Vec<String>, StreamError> {
        let cluster = self.info()?.cluster.unwrap_or_default();
        let names = cluster.replicas.into_iter().map(|peer| peer.name).chain([cluster.leader]);
        Ok(names.filter(|name| !name.is_empty()).collect())
    }

    /// Removes the stream with all that it has.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn remove(&mut self) -> Result<(), StreamError> {
        let subject = format!("$JS.API.STREAM.DELETE.{}", self.name);
        self.api(&subject, b"").map(drop)
    }

    /// Returns the owners and names of all copies that have streams under the address's name.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn all_copies(&mut self) -> Result<Vec<(String, String)>, StreamError> {
        let of = self.endpoint.address.name.clone();
        let told = self.names(&format!("sandstorm.{of}.>"))?;
        let copy = |name: &String| {
            let (owner, copy) = name.strip_prefix(&of)?.strip_prefix('-')?.split_once('-')?;
            Some((owner.to_owned(), copy.to_owned()))
        };
        Ok(told.iter().filter_map(copy).collect())
    }

    /// The names of the streams with such a subject. A list that changes meanwhile may lack some.
    fn names(&mut self, subject: &str) -> Result<Vec<String>, StreamError> {
        let mut found = Vec::new();
        for _ in 0..NAME_PAGES {
            let question = json!({ "subject": subject, "offset": found.len() }).to_string();
            let told = self.api("$JS.API.STREAM.NAMES", question.as_bytes())?;
            let page = told.streams.unwrap_or_default();
            let is_last = page.is_empty() || found.len() + page.len() >= told.total;
            found.extend(page);
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    fn info(&mut self) -> Result<ApiAnswer, StreamError> {
        let subject = format!("$JS.API.STREAM.INFO.{}", self.name);
        self.api(&subject, b"")
    }

    fn connected(&mut self) -> Result<&mut NatsConnection, String> {
        if self.connection.is_none() {
            let server = self.server;
            self.server = server.wrapping_add(1);
            let connection = NatsConnection::open(&self.endpoint, server)?;
            self.message_bytes = connection.max_payload();
            self.connection = Some(connection);
        }
        self.connection.as_mut().ok_or_else(|| "not connected".to_owned())
    }

    /// Asks until there is an answer that is `done`, of this server or another one: what is asked may be asked again.
    fn ask<T>(
        &mut self,
        (subject, headers, payload): NatsQuestion<'_>,
        mut done: impl FnMut(NatsReply) -> Option<Result<T, StreamError>>,
    ) -> Result<T, StreamError> {
        let until = Instant::now() + self.patience;
        loop {
            let attempt = (Instant::now() + ATTEMPT_TIMEOUT).min(until);
            let asked = match self.connected() {
                Ok(connection) => connection.ask(subject, (headers, payload), attempt, |reply| match reply.status {
                    Some(NO_RESPONDERS) => Some(Err(StreamError::NoAnswer("nobody serves JetStream".to_owned()))),
                    _ => done(reply),
                }),
                Err(why) => Err(why),
            };
            let why = match asked {
                Ok(Err(StreamError::NoAnswer(why))) => why,
                Ok(answer) => return answer,
                Err(why) => {
                    self.connection = None;
                    why
                }
            };
            if Instant::now() + REPEAT_PAUSE >= until {
                return Err(StreamError::NoAnswer(why));
            }
            std::thread::sleep(REPEAT_PAUSE);
        }
    }

    fn answer(reply: &NatsReply) -> Result<ApiAnswer, StreamError> {
        let answer: Result<ApiAnswer, _> = serde_json::from_slice(&reply.payload);
        match answer {
            Ok(ApiAnswer { error: Some(error), .. }) => Err(error_of(error)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(StreamError::Refused(format!("JetStream's answer is none: {error}"))),
        }
    }

    fn api(&mut self, subject: &str, payload: &[u8]) -> Result<ApiAnswer, StreamError> {
        self.ask((subject, &[], payload), |reply| Some(NatsStream::answer(&reply)))
    }

    /// Reads some messages; returns the sequence behind the last one.
    fn read_some(&mut self, from: u64, to: u64, visit: &mut MessageVisitor<'_>) -> Result<u64, StreamError> {
        let batch = READ_MESSAGES.min(to + 1 - from);
        let subject = format!("$JS.API.DIRECT.GET.{}", self.name);
        let question = json!({ "seq": from, "batch": batch, "max_bytes": READ_BYTES }).to_string();
        // Shown once all of them are here: an attempt that breaks off is made again.
        let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
        self.ask((&subject, &[], question.as_bytes()), |reply| {
            match reply.status {
                Some(END_OF_BATCH) => Some(Ok(())),
                // One that does not have it yet was asked.
                Some(NOT_FOUND) if found.is_empty() => {
                    Some(Err(StreamError::NoAnswer("the message is not there".to_owned())))
                }
                Some(status) => Some(Err(StreamError::Refused(format!("JetStream answers with {status}")))),
                None => {
                    let sequence = reply.sequence.unwrap_or_default();
                    if sequence == from {
                        // What an attempt before this one has brought comes again.
                        found.clear();
                    }
                    if sequence != found.last().map_or(from, |(last, _)| last + 1) {
                        return Some(Err(StreamError::OtherSequence));
                    }
                    found.push((sequence, reply.payload));
                    None
                }
            }
        })?;
        for (sequence, message) in &found {
            visit(*sequence, message).map_err(StreamError::Refused)?;
        }
        Ok(from + found.len() as u64)
    }
}

impl StreamStore for NatsStream {
    fn bounds(&mut self) -> Result<StreamBounds, StreamError> {
        let told = self.info()?.state;
        Ok(StreamBounds { first: told.first_seq.max(1), last: told.last_seq })
    }

    fn publish(&mut self, behind: u64, id: &str, message: &[u8]) -> Result<u64, StreamError> {
        let headers = [
            ("Nats-Expected-Stream", self.name.clone()),
            ("Nats-Expected-Last-Sequence", behind.to_string()),
            ("Nats-Msg-Id", id.to_owned()),
        ];
        let subject = self.subject.clone();
        self.ask((&subject, &headers, message), |reply| Some(NatsStream::answer(&reply).map(|answer| answer.seq)))
    }

    fn read(&mut self, from: u64, to: u64, visit: &mut MessageVisitor<'_>) -> Result<(), StreamError> {
        let (mut next, mut tried) = (from, Instant::now());
        while next <= to {
            let read = self.read_some(next, to, visit)?;
            if read > next {
                (next, tried) = (read, Instant::now());
            } else if tried.elapsed() >= self.patience {
                return Err(StreamError::OtherSequence);
            } else {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    }

    fn purge_before(&mut self, sequence: u64) -> Result<(), StreamError> {
        let subject = format!("$JS.API.STREAM.PURGE.{}", self.name);
        self.api(&subject, json!({ "seq": sequence }).to_string().as_bytes()).map(drop)
    }

    fn message_bytes(&self) -> usize {
        self.message_bytes.max(2 * PART_MARGIN_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_would_lose_or_change_messages_is_no_copy() {
        let right = || ConfigTold {
            subjects: vec!["s".to_owned()],
            retention: "limits".to_owned(),
            storage: "file".to_owned(),
            num_replicas: 3,
            max_msgs: -1,
            max_bytes: -1,
            discard: "new".to_owned(),
            allow_direct: true,
            deny_delete: true,
            ..ConfigTold::default()
        };
        assert_eq!(faults_of(&right(), "s", 3), Vec::<String>::new());
        let changes: [fn(&mut ConfigTold); 9] = [
            |config| config.subjects.push("t".to_owned()),
            |config| config.retention = "workqueue".to_owned(),
            |config| config.storage = "memory".to_owned(),
            |config| config.num_replicas = 1,
            |config| config.max_msgs = 5,
            |config| config.max_age = 5,
            |config| (config.max_bytes, config.discard) = (5, "old".to_owned()),
            |config| config.deny_delete = false,
            |config| config.allow_direct = false,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut config = right();
            change(&mut config);
            assert_eq!(faults_of(&config, "s", 3).len(), 1, "change {number}");
        }
    }
}
