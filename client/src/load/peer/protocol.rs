//! Builds requests to the servers, and reads their replies.

use std::io::{self, ErrorKind};

use rand::Rng;
use rand::rngs::SmallRng;

use super::super::keys::{self, KeyChooser, check_value, write_value};
use super::super::{Class, Data, Mix};

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerProtocol {
    /// memcached's classic text protocol over TCP.
    Memcached,
    /// The same over UDP.
    MemcachedUdp,
    /// Redis' protocol, version 2.
    Redis,
}

impl PeerProtocol {
    /// Returns whether it is spoken in datagrams.
    pub fn is_datagram(self) -> bool {
        self == PeerProtocol::MemcachedUdp
    }

    /// Returns the protocol that the same server speaks over TCP.
    pub fn over_tcp(self) -> PeerProtocol {
        if self == PeerProtocol::MemcachedUdp { PeerProtocol::Memcached } else { self }
    }
}

/// The kind of requests.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerWorkload {
    /// This number of records by their keys.
    Get(usize),
    /// Writes a record.
    Set,
    /// Gets, puts and deletes of one record each by their percentages; other classes count as gets. With a pool's data,
    /// some ask for missing records, as often as its share of misses says.
    Mixed(Mix),
    /// Code that lies on the server, by a Redis command of these words, a count of keys, one key, and more words.
    ServerCode {
        /// `EVALSHA` and a digest, or `FCALL` and a name.
        words: Vec<Vec<u8>>,
        /// Words after the key.
        more: Vec<Vec<u8>>,
        /// The kind of answer: [`Class::InvokeGet`] a record, [`Class::Chain`] the last link's value,
        /// [`Class::Aggregate`] anything.
        /// anything.
        class: Class,
    },
}

/// A request under way: the id of its record, or of the first of several.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerRequest {
    id: u64,
    seed: u64,
    verb: PeerVerb,
    /// It is about a record that is not there.
    expects_miss: bool,
}

/// The operation on one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerVerb {
    Get,
    Set,
    Delete,
}

/// A reply's bytes: all of them with what frames them, or an error's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerReply<'b> {
    Value(&'b [u8]),
    Error(&'b [u8]),
}

/// Buffers, reused.
#[derive(Debug, Default)]
pub(super) struct PeerBuffers {
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The frame of a memcached request in one datagram.
pub(super) fn datagram_header(id: u16) -> [u8; 8] {
    let [high, low] = id.to_be_bytes();
    [high, low, 0, 0, 0, 1, 0, 0]
}

impl PeerWorkload {
    /// Keys in one request.
    pub(super) fn keys(&self) -> usize {
        if let PeerWorkload::Get(keys) = self { *keys } else { 1 }
    }

    /// Returns the number of records that can be asked for.
    pub(super) fn population(&self, data: &Data) -> u64 {
        match self {
            PeerWorkload::ServerCode { class: Class::Chain, .. } => data.links,
            PeerWorkload::ServerCode { class: Class::Aggregate, .. } => data.lists,
            _ => data.records,
        }
    }

    pub(super) fn draw(&self, data: &Data, chooser: &KeyChooser, rng: &mut SmallRng) -> PeerRequest {
        let id = chooser.next(rng);
        let seed = if self.keys() > 1 { rng.random() } else { 0 };
        let class = match self {
            PeerWorkload::Mixed(mix) => mix.pick(rng.random()),
            PeerWorkload::Set => Class::Put,
            _ => Class::Get,
        };
        let verb = match class {
            Class::Put => PeerVerb::Set,
            Class::Delete => PeerVerb::Delete,
            _ => PeerVerb::Get,
        };
        let expects_miss = matches!(self, PeerWorkload::Mixed(_)) && data.draws_missing(class, rng);
        PeerRequest { id, seed, verb, expects_miss }
    }

    /// The record that key `at` of a request asks for.
    fn member(request: &PeerRequest, at: usize, data: &Data) -> u64 {
        if at == 0 { request.id } else { keys::mix64(request.seed.wrapping_add(at as u64)) % data.records.max(1) }
    }

    pub(super) fn write(
        &self,
        speech: PeerProtocol,
        data: &Data,
        request: &PeerRequest,
        out: &mut Vec<u8>,
        scratch: &mut PeerBuffers,
    ) {
        let PeerBuffers { key, value } = scratch;
        match self {
            PeerWorkload::Get(count) if *count != 1 => {
                match speech {
                    PeerProtocol::Redis => {
                        out.extend_from_slice(format!("*{}\r\n$4\r\nMGET\r\n", count + 1).as_bytes())
                    }
                    _ => out.extend_from_slice(b"get"),
                }
                for at in 0..*count {
                    data.write_record_key(PeerWorkload::member(request, at, data), key);
                    if speech == PeerProtocol::Redis {
                        push_bulk(out, key);
                    } else {
                        out.push(b' ');
                        out.extend_from_slice(key);
                    }
                }
                if speech != PeerProtocol::Redis {
                    out.extend_from_slice(b"\r\n");
                }
            }
            PeerWorkload::Get(_) | PeerWorkload::Set | PeerWorkload::Mixed(_) => {
                if request.expects_miss {
                    data.write_missing_key(request.id, key);
                } else {
                    data.write_record_key(request.id, key);
                }
                match request.verb {
                    PeerVerb::Get => push_key_command(speech, "GET", key, out),
                    PeerVerb::Delete if speech == PeerProtocol::Redis => push_key_command(speech, "DEL", key, out),
                    PeerVerb::Delete => push_key_command(speech, "DELETE", key, out),
                    PeerVerb::Set => {
                        // The value is as it was filled, so that a result computed from the records stays what it was.
                        write_value(request.id, Data::first_salt(request.id), data.value_len_of(request.id), value);
                        push_set(speech, key, value, out);
                    }
                }
            }
            PeerWorkload::ServerCode { words, more, class } => {
                data.write_key_of(*class, request.id, key);
                out.extend_from_slice(format!("*{}\r\n", words.len() + 2 + more.len()).as_bytes());
                words.iter().for_each(|word| push_bulk(out, word));
                push_bulk(out, b"1");
                push_bulk(out, key);
                more.iter().for_each(|word| push_bulk(out, word));
            }
        }
    }

    /// The first whole reply in `bytes`, and its length.
    pub(super) fn read<'b>(
        &self,
        speech: PeerProtocol,
        request: &PeerRequest,
        bytes: &'b [u8],
    ) -> io::Result<Option<(PeerReply<'b>, usize)>> {
        match (request.verb, speech) {
            (PeerVerb::Get, PeerProtocol::Memcached | PeerProtocol::MemcachedUdp) => read_values(bytes),
            _ => read_reply_frame(speech, bytes),
        }
    }

    /// Returns whether a reply is correct.
    pub(super) fn is_right(
        &self,
        speech: PeerProtocol,
        data: &Data,
        request: &PeerRequest,
        body: &[u8],
        scratch: &mut PeerBuffers,
    ) -> bool {
        let redis = speech == PeerProtocol::Redis;
        match self {
            PeerWorkload::Set | PeerWorkload::Mixed(_) if request.verb == PeerVerb::Set => {
                body == if redis { &b"+OK\r\n"[..] } else { b"STORED\r\n" }
            }
            PeerWorkload::Set | PeerWorkload::Mixed(_) if request.verb == PeerVerb::Delete => {
                let there = if redis { &b":1\r\n"[..] } else { b"DELETED\r\n" };
                let not_there = if redis { &b":0\r\n"[..] } else { b"NOT_FOUND\r\n" };
                body == if request.expects_miss { not_there } else { there }
            }
            PeerWorkload::Mixed(_) if request.expects_miss => body == if redis { &b"$-1\r\n"[..] } else { b"END\r\n" },
            PeerWorkload::Set | PeerWorkload::Mixed(_) => {
                PeerWorkload::Get(1).is_right(speech, data, request, body, scratch)
            }
            PeerWorkload::Get(count) => {
                let mut rest = body;
                (0..*count).all(|at| {
                    let id = PeerWorkload::member(request, at, data);
                    let Some((value, left)) = next_value(speech, *count > 1 && at == 0, rest) else { return false };
                    rest = left;
                    value.len() == data.value_len_of(id) && check_value(id, value)
                })
            }
            PeerWorkload::ServerCode { class: Class::InvokeGet, .. } => {
                next_value(speech, false, body).is_some_and(|(value, _)| check_value(request.id, value))
            }
            PeerWorkload::ServerCode { class: Class::Chain, .. } => {
                let last = (1..data.depth.max(1)).fold(request.id, |id, _| data.next_link(id));
                data.write_link(last, &mut scratch.value, &mut scratch.key);
                next_value(speech, false, body).is_some_and(|(value, _)| value == scratch.value)
            }
            PeerWorkload::ServerCode { .. } => true,
        }
    }

    /// Records, links and lists.
    pub(super) fn items(data: &Data) -> u64 {
        data.records + data.links + data.lists
    }

    /// Writes the request that puts item `index`: records come first, then links, then lists.
    pub(super) fn write_item(
        speech: PeerProtocol,
        data: &Data,
        index: u64,
        out: &mut Vec<u8>,
        scratch: &mut PeerBuffers,
    ) {
        let PeerBuffers { key, value } = scratch;
        data.write_item(index, key, value);
        push_set(speech, key, value, out);
    }
}

/// Whether a reply to a get of one key says that there is no such record.
pub(super) fn is_miss(speech: PeerProtocol, body: &[u8]) -> bool {
    body == if speech == PeerProtocol::Redis { &b"$-1\r\n"[..] } else { b"END\r\n" }
}

fn push_bulk(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b'$');
    push_decimal(out, word.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// A command of one word about one key.
fn push_key_command(speech: PeerProtocol, word: &str, key: &[u8], out: &mut Vec<u8>) {
    if speech == PeerProtocol::Redis {
        out.extend_from_slice(b"*2\r\n");
        push_bulk(out, word.as_bytes());
        push_bulk(out, key);
        return;
    }
    out.extend(word.bytes().map(|byte| byte.to_ascii_lowercase()));
    out.push(b' ');
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
}

fn push_decimal(out: &mut Vec<u8>, number: usize) {
    let mut digits = [0; 20];
    let (mut rest, mut at) = (number, digits.len());
    loop {
        at -= 1;
        if let Some(digit) = digits.get_mut(at) {
            *digit = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
}

fn push_set(speech: PeerProtocol, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if speech == PeerProtocol::Redis {
        out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
        push_bulk(out, key);
        push_bulk(out, value);
        return;
    }
    out.extend_from_slice(b"set ");
    out.extend_from_slice(key);
    out.extend_from_slice(b" 0 0 ");
    push_decimal(out, value.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The first line, without its end, and its length with that.
fn split_line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((bytes.get(..end)?, end + 2))
}

fn parse_decimal(text: &[u8]) -> io::Result<i64> {
    let text = std::str::from_utf8(text).map_err(|_| invalid_reply(text))?;
    text.parse().map_err(|_| invalid_reply(text.as_bytes()))
}

fn invalid_reply(text: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(text.get(..text.len().min(80)).unwrap_or_default()).into_owned();
    io::Error::new(ErrorKind::InvalidData, format!("this is no reply of the protocol: {text:?}"))
}

fn is_memcached_error(line: &[u8]) -> bool {
    line == b"ERROR" || line.starts_with(b"CLIENT_ERROR") || line.starts_with(b"SERVER_ERROR")
}

/// A memcached `get`'s reply: values, then `END`.
fn read_values(bytes: &[u8]) -> io::Result<Option<(PeerReply<'_>, usize)>> {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let Some((first, len)) = split_line(rest) else { return Ok(None) };
        if first == b"END" {
            return Ok(bytes.get(..at + len).map(|all| (PeerReply::Value(all), at + len)));
        }
        if is_memcached_error(first) {
            return Ok(Some((PeerReply::Error(first), at + len)));
        }
        let value_len = first.strip_prefix(b"VALUE ").and_then(|words| words.split(|byte| *byte == b' ').nth(2));
        let value_len = parse_decimal(value_len.ok_or_else(|| invalid_reply(first))?)? as usize;
        at += len + value_len + 2;
        if at > bytes.len() {
            return Ok(None);
        }
    }
}

/// Any other reply: a line of memcached's, or a value of Redis'.
pub(super) fn read_reply_frame(speech: PeerProtocol, bytes: &[u8]) -> io::Result<Option<(PeerReply<'_>, usize)>> {
    if speech == PeerProtocol::Redis {
        let Some(len) = resp_value_len(bytes, 0)? else { return Ok(None) };
        let whole = bytes.get(..len).unwrap_or_default();
        let reply = if whole.starts_with(b"-") { PeerReply::Error(whole) } else { PeerReply::Value(whole) };
        return Ok(Some((reply, len)));
    }
    let Some((first, len)) = split_line(bytes) else { return Ok(None) };
    let reply = if is_memcached_error(first) {
        PeerReply::Error(first)
    } else {
        PeerReply::Value(bytes.get(..len).unwrap_or_default())
    };
    Ok(Some((reply, len)))
}

/// Bytes of the first whole value of Redis' protocol, nested at most a few levels.
fn resp_value_len(bytes: &[u8], level: u32) -> io::Result<Option<usize>> {
    let Some((first, len)) = split_line(bytes) else { return Ok(None) };
    let Some((kind, rest)) = first.split_first() else { return Err(invalid_reply(first)) };
    match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' => Ok(Some(len)),
        b'$' => {
            let body = parse_decimal(rest)?;
            let all = if body < 0 { len } else { len + body as usize + 2 };
            Ok((bytes.len() >= all).then_some(all))
        }
        b'*' if level < 4 => {
            let mut at = len;
            for _ in 0..parse_decimal(rest)?.max(0) {
                let Some(part) = resp_value_len(bytes.get(at..).unwrap_or_default(), level + 1)? else {
                    return Ok(None);
                };
                at += part;
            }
            Ok(Some(at))
        }
        _ => Err(invalid_reply(first)),
    }
}

/// Returns the next value of a good reply, and the bytes behind it. `headed`: an array's header stands before it.
fn next_value(speech: PeerProtocol, headed: bool, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, mut at) = split_line(bytes)?;
    let mut first = first;
    if speech == PeerProtocol::Redis {
        if headed {
            let (second, len) = split_line(bytes.get(at..)?)?;
            (first, at) = (second, at + len);
        }
        let len = usize::try_from(parse_decimal(first.strip_prefix(b"$")?).ok()?).ok()?;
        return Some((bytes.get(at..at + len)?, bytes.get(at + len + 2..)?));
    }
    let len = first.strip_prefix(b"VALUE ")?.split(|byte| *byte == b' ').nth(2)?;
    let len = usize::try_from(parse_decimal(len).ok()?).ok()?;
    Some((bytes.get(at..at + len)?, bytes.get(at + len + 2..)?))
}
