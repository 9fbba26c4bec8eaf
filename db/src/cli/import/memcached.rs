//! Reads the items of a memcached: `lru_crawler metadump all` for keys on one connection, `mg` with flags and times to
//! live on another.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use data_encoding::BASE64;
use sandstorm_net::rpc::MAX_VALUE_LEN;
use sandstorm_store::clock_ms;

use super::record_sink::{IncomingRecord, RecordSink};
use crate::cli::byte_args::for_people;
use crate::cli::output::CliError;
use crate::cli::progress::ProgressLine;

/// Keys that are asked for in one round trip.
const KEYS_PER_TRIP: usize = 128;
/// Bytes of a line, at most: a key of 250 bytes with every byte escaped, and numbers.
const MAX_LINE_BYTES: u64 = 8 << 10;
/// Time without an answer after which the server is given up.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a memcached.
struct MemcachedSource {
    address: String,
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl MemcachedSource {
    fn connect(address: &str) -> Result<MemcachedSource, CliError> {
        let failed = |error: io::Error| CliError::from(error).about(&format!("the memcached at {address}"));
        let writer = TcpStream::connect(address).map_err(failed)?;
        writer.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(failed)?;
        writer.set_write_timeout(Some(REPLY_TIMEOUT)).map_err(failed)?;
        writer.set_nodelay(true).map_err(failed)?;
        let reader = BufReader::with_capacity(256 << 10, writer.try_clone().map_err(failed)?);
        Ok(MemcachedSource { address: address.to_owned(), reader, writer })
    }

    fn failed(&self, why: impl std::fmt::Display) -> CliError {
        CliError::new(format!("the memcached at {}: {why}", self.address)).code("source")
    }

    fn send(&mut self, commands: &[u8]) -> Result<(), CliError> {
        self.writer.write_all(commands).map_err(|error| self.failed(error))
    }
}

pub(super) fn import(address: &str, sink: &mut RecordSink, progress: &mut ProgressLine) -> Result<(), CliError> {
    let (mut keys, mut values) = (MemcachedSource::connect(address)?, MemcachedSource::connect(address)?);
    keys.send(b"lru_crawler metadump all\r\n")?;
    let mut batch = Vec::with_capacity(KEYS_PER_TRIP);
    loop {
        let line = read_line(&mut keys.reader).map_err(|error| keys.failed(error))?;
        match dumped_key(&line) {
            Ok(Some(key)) => batch.push(key),
            Ok(None) => break,
            Err(text) => {
                return Err(keys.failed(text).hint("it has to know `lru_crawler metadump`: version 1.4.31 or later"));
            }
        }
        if batch.len() == KEYS_PER_TRIP {
            copy(&mut values, &mut batch, sink)?;
            progress.tick(|| sink.counts());
        }
    }
    copy(&mut values, &mut batch, sink)?;
    sink.flush()
}

/// The key of a line of a dump; `None` at its end.
fn dumped_key(line: &[u8]) -> Result<Option<Vec<u8>>, String> {
    if line == b"END" {
        return Ok(None);
    }
    let word = line.split(|byte| *byte == b' ').next().and_then(|word| word.strip_prefix(b"key="));
    let key = word.and_then(unescape).filter(|key| !key.is_empty());
    key.map(Some).ok_or_else(|| format!("metadump was answered with {:?}", String::from_utf8_lossy(line)))
}

/// Bytes of a text in which some are written as `%` and two digits.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
        bytes.push((digit(rest.next())? * 16 + digit(rest.next())?) as u8);
    }
    Some(bytes)
}

fn copy(source: &mut MemcachedSource, keys: &mut Vec<Vec<u8>>, sink: &mut RecordSink) -> Result<(), CliError> {
    let mut commands = Vec::new();
    for key in keys.iter() {
        // In base64 a key may have any bytes; those that came by the binary protocol do.
        commands.extend_from_slice(format!("mg {} b v f t\r\n", BASE64.encode(key)).as_bytes());
    }
    // Before it is asked: what is left of a time counts from then on.
    let now_ms = clock_ms(0);
    source.send(&commands)?;
    for key in keys.drain(..) {
        let shown = key.clone();
        let at = || format!("key {}", for_people(&shown));
        match read_item(&mut source.reader).map_err(|error| source.failed(error))? {
            FoundItem::Absent => sink.note_gone(),
            FoundItem::TooLong(bytes) => {
                sink.reject(at(), format!("its value has {bytes} bytes, which is over the limit"))
            }
            FoundItem::Item { value, flags, left_s } => {
                // -1: it does not expire.
                let expires_at_ms = u64::try_from(left_s).map_or(0, |left_s| now_ms + left_s * 1_000);
                sink.push(IncomingRecord { key, value, flags, expires_at_ms }, &at)?;
            }
        }
    }
    Ok(())
}

/// The answer to a meta get.
#[derive(Debug, PartialEq, Eq)]
enum FoundItem {
    Absent,
    /// A value of so many bytes, longer than any here; it was passed over.
    TooLong(u64),
    /// A value with its flags, and the seconds until it expires.
    Item {
        value: Vec<u8>,
        flags: u32,
        left_s: i64,
    },
}

fn read_item(reader: &mut impl BufRead) -> io::Result<FoundItem> {
    let line = read_line(reader)?;
    let text = String::from_utf8_lossy(&line).into_owned();
    let malformed = || io::Error::new(ErrorKind::InvalidData, format!("mg was answered with {text:?}"));
    if text == "EN" {
        return Ok(FoundItem::Absent);
    }
    let mut words = text.strip_prefix("VA ").ok_or_else(malformed)?.split(' ');
    let length: u64 = words.next().and_then(|word| word.parse().ok()).ok_or_else(malformed)?;
    let (mut flags, mut left_s) = (None, None);
    for word in words {
        match word.split_at_checked(1) {
            Some(("f", number)) => flags = number.parse().ok(),
            Some(("t", number)) => left_s = number.parse().ok(),
            // The key was in base64; a mark such as "stale".
            _ => {}
        }
    }
    let (flags, left_s) = (flags.ok_or_else(malformed)?, left_s.ok_or_else(malformed)?);
    let found = if length > MAX_VALUE_LEN as u64 {
        let passed = io::copy(&mut reader.by_ref().take(length), &mut io::sink())?;
        if passed < length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        FoundItem::TooLong(length)
    } else {
        let mut value = vec![0; length as usize];
        reader.read_exact(&mut value)?;
        FoundItem::Item { value, flags, left_s }
    };
    let mut end = [0; 2];
    reader.read_exact(&mut end)?;
    if end == *b"\r\n" { Ok(found) } else { Err(malformed()) }
}

fn read_line(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dumps_and_items_are_read() {
        assert_eq!(dumped_key(b"key=a%20b%25 exp=-1 la=1 cas=2 fetch=no cls=1 size=60"), Ok(Some(b"a b%".to_vec())));
        assert_eq!(dumped_key(b"END"), Ok(None));
        for wrong in ["ERROR", "BUSY currently processing crawler request", "key=%2", "key= x", ""] {
            assert!(dumped_key(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let read = |mut bytes: &[u8]| read_item(&mut bytes);
        let item = FoundItem::Item { value: b"xyz".to_vec(), flags: 7, left_s: -1 };
        assert_eq!(read(b"VA 3 b f7 t-1\r\nxyz\r\n").unwrap(), item);
        assert_eq!(read(b"EN\r\n").unwrap(), FoundItem::Absent);
        for wrong in
            ["VA 3 f7 t-1\r\nxy", "VA 3 t-1\r\nxyz\r\n", "VA x f1 t1\r\n", "ERROR\r\n", "VA 3 f7 t-1\r\nxyzabc"]
        {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in "(VA |EN|key=)?[0-9a-f% t\\-\r\n]{0,40}") {
            let _either = (read_item(&mut bytes.as_bytes()), dumped_key(bytes.as_bytes()));
        }
    }
}
