//! A client of memcached's protocol of one server, which sends on what others own: classic and meta commands by turns,
//! `gets` and `cas` among them. An error that says that a command was not run is taken at its word: no reader may ever
//! see what it would have written.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::common::key_history::{KeyAnswer, KeyRequest};
use crate::disk::text;
use crate::histories::HistoryClient;

/// Words of the errors to commands that were not run.
const NOT_RUN: [&str; 3] = ["was not run", "has not run it", "shutting down"];

/// A line of an answer, or what is known of a command that was refused.
type Told = Result<String, Option<KeyAnswer>>;

pub(super) struct MemcachedClient {
    stream: BufReader<TcpStream>,
    /// The value and the number of each record that it has read.
    read: HashMap<String, (u64, String)>,
    /// Whether the next request is a meta command.
    is_meta: bool,
}

/// The number of a record in the head of a meta answer: `VA 1 c123`.
fn cas_of(head: &str) -> Option<&str> {
    head.split_whitespace().find_map(|word| word.strip_prefix('c'))
}

impl MemcachedClient {
    pub(super) fn connect(address: SocketAddr, deadline: Duration) -> Option<MemcachedClient> {
        let stream = TcpStream::connect_timeout(&address, deadline).ok()?;
        stream.set_read_timeout(Some(deadline)).ok()?;
        Some(MemcachedClient { stream: BufReader::new(stream), read: HashMap::new(), is_meta: false })
    }

    /// The value that it has read of a key.
    pub(super) fn known(&self, key: &str) -> Option<u64> {
        self.read.get(key).map(|(value, _)| *value)
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line).map_err(text)? {
            0 => Err("the connection has ended".to_owned()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Sends a command, and reads the first line of its answer.
    fn command(&mut self, command: &str) -> Result<Told, String> {
        self.stream.get_mut().write_all(command.as_bytes()).map_err(text)?;
        let line = self.line()?;
        if !line.starts_with("SERVER_ERROR ") {
            return Ok(Ok(line));
        }
        let was_not_run = NOT_RUN.iter().any(|words| line.contains(words));
        Ok(Err(was_not_run.then_some(KeyAnswer::NotRun)))
    }

    fn store(&mut self, classic: String, meta: String, value: u64) -> Result<Told, String> {
        let (value, command) = (value.to_string(), if self.is_meta { meta } else { classic });
        let len = value.len().to_string();
        self.command(&format!("{}\r\n{value}\r\n", command.replace("LEN", &len)))
    }

    fn get(&mut self, key: &str) -> Result<Option<KeyAnswer>, String> {
        let command = if self.is_meta { format!("mg {key} v c\r\n") } else { format!("gets {key}\r\n") };
        let head = match self.command(&command)? {
            Ok(head) => head,
            Err(told) => return Ok(told),
        };
        if head == "EN" || head == "END" {
            return Ok(Some(KeyAnswer::Found(None)));
        }
        let cas = if self.is_meta { cas_of(&head) } else { head.split_whitespace().last() };
        let cas = cas.ok_or_else(|| format!("{key}: {head}"))?.to_owned();
        let value: u64 = self.line()?.trim().parse().map_err(text)?;
        if !self.is_meta && self.line()? != "END" {
            return Err(format!("{key}: no end behind {head}"));
        }
        self.read.insert(key.to_owned(), (value, cas));
        Ok(Some(KeyAnswer::Found(Some(value))))
    }

    fn count(&mut self, key: &str) -> Result<Option<KeyAnswer>, String> {
        let sum = |line: &str| line.trim().parse().map(|sum| Some(KeyAnswer::Sum(sum))).map_err(text);
        if self.is_meta {
            return match self.command(&format!("ma {key} N0 J1 v\r\n"))? {
                Ok(head) if head.starts_with("VA ") => sum(&self.line()?),
                Ok(head) => Err(format!("{key}: {head}")),
                Err(told) => Ok(told),
            };
        }
        // `incr` makes no record: what it does not find, `add` makes, unless another one was faster.
        loop {
            match self.command(&format!("incr {key} 1\r\n"))? {
                Ok(line) if line == "NOT_FOUND" => {}
                Ok(line) => return sum(&line),
                Err(told) => return Ok(told),
            }
            match self.command(&format!("add {key} 0 0 1\r\n1\r\n"))? {
                Ok(line) if line == "STORED" => return Ok(Some(KeyAnswer::Sum(1))),
                Ok(line) if line == "NOT_STORED" => {}
                Ok(line) => return Err(format!("{key}: {line}")),
                Err(told) => return Ok(told),
            }
        }
    }
}

impl HistoryClient for MemcachedClient {
    fn ask(&mut self, key: &str, request: KeyRequest) -> Result<Option<KeyAnswer>, String> {
        self.is_meta = !self.is_meta;
        let told = match request {
            KeyRequest::Get => return self.get(key),
            KeyRequest::Increment => return self.count(key),
            KeyRequest::Put(value) => self.store(format!("set {key} 0 0 LEN"), format!("ms {key} LEN"), value)?,
            KeyRequest::PutIf(None, value) => {
                self.store(format!("add {key} 0 0 LEN"), format!("ms {key} LEN ME"), value)?
            }
            KeyRequest::PutIf(Some(_), value) => {
                let cas = self.read[key].1.clone();
                self.store(format!("cas {key} 0 0 LEN {cas}"), format!("ms {key} LEN C{cas}"), value)?
            }
            KeyRequest::Delete => {
                let command = if self.is_meta { format!("md {key}\r\n") } else { format!("delete {key}\r\n") };
                self.command(&command)?
            }
        };
        let line = match told {
            Ok(line) => line,
            Err(told) => return Ok(told),
        };
        let is_put = matches!(request, KeyRequest::Put(_));
        match line.as_str() {
            "STORED" | "HD" if is_put => Ok(Some(KeyAnswer::Done)),
            "STORED" | "HD" | "DELETED" => Ok(Some(KeyAnswer::Said(true))),
            // The record may be the one that was read, with another number: moved slots have new ones.
            "EXISTS" | "EX" | "NOT_FOUND" | "NF" if matches!(request, KeyRequest::PutIf(Some(_), _)) => {
                Ok(Some(KeyAnswer::NotRun))
            }
            "NOT_STORED" | "NS" | "NOT_FOUND" | "NF" => Ok(Some(KeyAnswer::Said(false))),
            _ => Err(format!("{key}: {line}")),
        }
    }

    fn can_expect(&self, key: &str, value: u64) -> bool {
        self.known(key) == Some(value)
    }
}
