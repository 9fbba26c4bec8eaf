//! Reads the strings of a Redis: SCAN for keys, TYPE, then GET and PTTL of strings.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use sandstorm_store::clock_ms;

use self::resp::{RespReply, read_reply};
use super::ImportArgs;
use super::record_sink::{IncomingRecord, RecordSink};
use crate::cli::byte_args::for_people;
use crate::cli::output::CliError;
use crate::cli::progress::ProgressLine;

mod resp;

/// Keys that are asked for in one round trip, about.
const SCAN_COUNT: &[u8] = b"256";
/// Time without an answer after which the server is given up.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a Redis.
struct RedisSource {
    address: String,
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    commands: Vec<u8>,
}

impl RedisSource {
    fn connect(address: &str) -> Result<RedisSource, CliError> {
        let failed = |error: std::io::Error| CliError::from(error).about(&format!("the Redis at {address}"));
        let writer = TcpStream::connect(address).map_err(failed)?;
        writer.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(failed)?;
        writer.set_write_timeout(Some(REPLY_TIMEOUT)).map_err(failed)?;
        writer.set_nodelay(true).map_err(failed)?;
        let reader = BufReader::with_capacity(256 << 10, writer.try_clone().map_err(failed)?);
        Ok(RedisSource { address: address.to_owned(), reader, writer, commands: Vec::new() })
    }

    fn failed(&self, why: impl std::fmt::Display) -> CliError {
        CliError::new(format!("the Redis at {}: {why}", self.address)).code("source")
    }

    fn push(&mut self, words: &[&[u8]]) {
        self.commands.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.commands.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.commands.extend_from_slice(word);
            self.commands.extend_from_slice(b"\r\n");
        }
    }

    fn send(&mut self) -> Result<(), CliError> {
        let sent = self.writer.write_all(&self.commands);
        self.commands.clear();
        sent.map_err(|error| self.failed(error))
    }

    fn reply(&mut self) -> Result<RespReply, CliError> {
        match read_reply(&mut self.reader) {
            Ok(RespReply::Error(text)) => Err(self.failed(text)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn unexpected(&self, command: &str, reply: &RespReply) -> CliError {
        self.failed(format!("{command} was answered with {reply:?}"))
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<RespReply, CliError> {
        self.push(words);
        self.send()?;
        self.reply()
    }

    /// The next keys from a cursor on, and the next cursor.
    fn scan(&mut self, cursor: &[u8], pattern: Option<&str>) -> Result<(Vec<u8>, Vec<Vec<u8>>), CliError> {
        let mut words: Vec<&[u8]> = vec![b"SCAN", cursor, b"COUNT", SCAN_COUNT];
        if let Some(pattern) = pattern {
            words.extend([b"MATCH", pattern.as_bytes()]);
        }
        let reply = self.ask(&words)?;
        let unexpected = self.unexpected("SCAN", &reply);
        let RespReply::Array(parts) = reply else { return Err(unexpected) };
        let Ok([RespReply::Bulk(next), RespReply::Array(keys)]) = <[RespReply; 2]>::try_from(parts) else {
            return Err(unexpected);
        };
        let keys = keys.into_iter().map(|key| if let RespReply::Bulk(key) = key { Some(key) } else { None });
        Ok((next, keys.collect::<Option<_>>().ok_or(unexpected)?))
    }
}

pub(super) fn import(
    address: &str,
    args: &ImportArgs,
    sink: &mut RecordSink,
    progress: &mut ProgressLine,
) -> Result<(), CliError> {
    let mut source = RedisSource::connect(address)?;
    if let Some(path) = &args.password_file {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| CliError::from(error).about(&path.display().to_string()))?;
        let password = text.trim_end_matches(['\r', '\n']).as_bytes();
        match &args.user {
            Some(user) => source.ask(&[b"AUTH", user.as_bytes(), password])?,
            None => source.ask(&[b"AUTH", password])?,
        };
    }
    if args.db != 0 {
        source.ask(&[b"SELECT", args.db.to_string().as_bytes()])?;
    }
    let mut cursor = b"0".to_vec();
    loop {
        let (next, keys) = source.scan(&cursor, args.pattern.as_deref())?;
        let strings = strings_among(&mut source, keys, sink)?;
        copy(&mut source, strings, sink)?;
        progress.tick(|| sink.counts());
        if next == b"0" {
            break;
        }
        cursor = next;
    }
    sink.flush()
}

/// Keeps the keys of strings; the others are counted by their type.
fn strings_among(
    source: &mut RedisSource,
    keys: Vec<Vec<u8>>,
    sink: &mut RecordSink,
) -> Result<Vec<Vec<u8>>, CliError> {
    keys.iter().for_each(|key| source.push(&[b"TYPE", key]));
    source.send()?;
    let mut strings = Vec::with_capacity(keys.len());
    for key in keys {
        match source.reply()? {
            RespReply::Simple(kind) if kind == "string" => strings.push(key),
            RespReply::Simple(kind) if kind == "none" => sink.note_gone(),
            RespReply::Simple(kind) => sink.skip(&kind),
            other => return Err(source.unexpected("TYPE", &other)),
        }
    }
    Ok(strings)
}

fn copy(source: &mut RedisSource, keys: Vec<Vec<u8>>, sink: &mut RecordSink) -> Result<(), CliError> {
    // Before it is asked: what is left of a time counts from then on.
    let now_ms = clock_ms(0);
    for key in &keys {
        source.push(&[b"GET", key]);
        source.push(&[b"PTTL", key]);
    }
    source.send()?;
    for key in keys {
        let value = match read_reply(&mut source.reader) {
            // Changed to another type since it was asked for.
            Ok(RespReply::Error(text)) if text.starts_with("WRONGTYPE") => Err(text),
            Ok(RespReply::Error(text)) => return Err(source.failed(text)),
            Ok(RespReply::Bulk(value)) => Ok(Some(value)),
            Ok(RespReply::Nil) => Ok(None),
            Ok(RespReply::LongBulk(bytes)) => Err(format!("its value has {bytes} bytes, which is over the limit")),
            Ok(other) => return Err(source.unexpected("GET", &other)),
            Err(error) => return Err(source.failed(error)),
        };
        let left_ms = match source.reply()? {
            RespReply::Integer(left_ms) => left_ms,
            other => return Err(source.unexpected("PTTL", &other)),
        };
        match value {
            // Less than no time: -1 says that it does not expire, -2 that it is gone.
            Ok(Some(value)) if left_ms != -2 => {
                let expires_at_ms = if left_ms < 0 { 0 } else { now_ms + left_ms as u64 };
                let shown = key.clone();
                let record = IncomingRecord { key, value, flags: 0, expires_at_ms };
                sink.push(record, &|| format!("key {}", for_people(&shown)))?;
            }
            Ok(_) => sink.note_gone(),
            Err(why) => sink.reject(format!("key {}", for_people(&key)), why),
        }
    }
    Ok(())
}
