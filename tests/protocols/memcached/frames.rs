//! The binary protocol: random frames, and the answers to them.
#![allow(dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::TcpStream;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// A number that no record has: memcached's begin at 1.
pub const NO_NUMBER: u64 = u64::MAX - 5;

/// A request.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub opcode: u8,
    /// The number that the record must have.
    pub cas: Cas,
    pub extras: Vec<u8>,
    pub key: String,
    pub value: Vec<u8>,
    /// Added to the body's length, which makes it wrong.
    pub too_long_by: i32,
}

/// A record's number, which differs between the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cas {
    /// None.
    #[default]
    Any,
    /// The record's current number.
    Right,
    /// One that no record has.
    Wrong,
}

/// An answer: command, status, whether it has a number, extras, key and value.
#[derive(Clone, PartialEq, Eq)]
pub struct Heard {
    pub opcode: u8,
    pub status: u16,
    pub opaque: u32,
    pub cas: u64,
    pub extras: Vec<u8>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl std::fmt::Debug for Heard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let Heard { opcode, status, opaque, cas, extras, key, value } = self;
        let cas = if *cas == 0 { "no number" } else { "a number" };
        let len = value.len();
        write!(f, "{opcode:#x}: {status:#x} {opaque} {cas} {extras:?} {:?} {:?} of {len}", text(key), text(value))
    }
}

impl Said {
    /// Encodes the request.
    pub fn encode(&self, opaque: u32, cas: u64) -> Vec<u8> {
        let len = self.extras.len() + self.key.len() + self.value.len();
        let mut frame = vec![0x80, self.opcode];
        frame.extend_from_slice(&(self.key.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[self.extras.len() as u8, 0, 0, 0]);
        frame.extend_from_slice(&(len as u32).wrapping_add_signed(self.too_long_by).to_be_bytes());
        frame.extend_from_slice(&opaque.to_be_bytes());
        frame.extend_from_slice(&cas.to_be_bytes());
        [&frame[..], &self.extras, self.key.as_bytes(), &self.value].concat()
    }

    /// A command on a key alone.
    pub fn of_key(opcode: u8, key: &str) -> Said {
        Said { opcode, key: key.into(), ..Said::default() }
    }
}

/// Reads one answer. `None`: the connection has ended.
pub fn read_until(stream: &mut TcpStream) -> Option<Heard> {
    let mut head = [0; 24];
    stream.read_exact(&mut head).ok()?;
    assert_eq!(head[0], 0x81, "no answer of the binary protocol: {head:?}");
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let mut body = vec![0; word(8) as usize];
    stream.read_exact(&mut body).ok()?;
    let value = body.split_off(usize::from(head[4]) + usize::from(half(2)));
    let key = body.split_off(usize::from(head[4]));
    let cas = u64::from(word(16)) << 32 | u64::from(word(20));
    Some(Heard { opcode: head[1], status: half(6), opaque: word(12), cas, extras: body, key, value })
}

/// Sends requests and reads all the answers: up to that of a no-op, or to the connection's end. Also returns whether it
/// has ended.
pub fn talk(stream: &mut TcpStream, sent: &[u8]) -> (Vec<Heard>, bool) {
    const NOTHING: u32 = 0xeeee_eeee;
    let nothing = Said { opcode: 0x0a, ..Said::default() }.encode(NOTHING, 0);
    let _may_be_closed = stream.write_all(&[sent, &nothing].concat());
    let mut received = Vec::new();
    loop {
        match read_until(stream) {
            Some(answer) if answer.opaque == NOTHING => return (received, false),
            Some(answer) => received.push(answer),
            None => return (received, true),
        }
    }
}

/// The number of a record, if it is there.
pub fn number(stream: &mut TcpStream, key: &str) -> Option<u64> {
    let (received, _) = talk(stream, &Said::of_key(0x00, key).encode(1, 0));
    received.first().filter(|received| received.status == 0).map(|received| received.cas)
}

fn one<T: Copy>(random: &mut StdRng, of: &[T]) -> T {
    *of.choose(random).expect("there are some")
}

/// A random request, sometimes malformed. It is not one that each server answers in its own words: statistics,
/// verbosity, the version, and unknown commands with a key (memcached skips some bytes of their bodies twice).
pub fn command(random: &mut StdRng) -> Said {
    let key = one(random, &["a", "b", "c", "d", "a key with blanks", "\u{1}\r\n"]).to_owned();
    let cas = one(random, &[Cas::Any, Cas::Any, Cas::Any, Cas::Right, Cas::Right, Cas::Wrong]);
    let time = one(random, &[0u32, 0, 100, 2_592_000, 2_592_001, 2_000_000_000]).to_be_bytes().to_vec();
    let letters = one(random, &[0, 1, 5, 30, 1000]);
    let value: Vec<u8> = match random.random_range(0..4) {
        0 => random.random_range(0..1000u32).to_string().into_bytes(),
        _ => (0..letters).map(|_| random.random_range(0..=255u8)).collect(),
    };
    let flags: u32 = random.random();
    let number = Said { key: one(random, &["n", "m"]).to_owned(), cas, ..Said::default() };
    let mut sent = match random.random_range(0..14) {
        0..=3 => {
            let opcode = one(random, &[0x01, 0x02, 0x03, 0x11, 0x12, 0x13]);
            let extras = [&flags.to_be_bytes()[..], &time].concat();
            Said { opcode, cas, extras, key, value, too_long_by: 0 }
        }
        4 => Said { cas, value, ..Said::of_key(one(random, &[0x0e, 0x0f, 0x19, 0x1a]), &key) },
        5 | 6 => Said::of_key(one(random, &[0x00, 0x09, 0x0c, 0x0d]), &key),
        7 => Said { extras: time, ..Said::of_key(one(random, &[0x1c, 0x1d, 0x1e, 0x23, 0x24]), &key) },
        8 => Said { cas, ..Said::of_key(one(random, &[0x04, 0x14]), &key) },
        9..=11 => {
            let [delta, initial] = [random.random_range(0..50u64), random.random_range(0..2_000u64)];
            let time = one(random, &[0, 100, u32::MAX]);
            let extras = [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &time.to_be_bytes()].concat();
            Said { opcode: one(random, &[0x05, 0x06, 0x15, 0x16]), extras, ..number }
        }
        12 if random.random_ratio(1, 4) => Said { opcode: one(random, &[0x08, 0x18]), ..Said::default() },
        12 => Said { value, ..Said::default() }.with_opcode(one(random, &[0x1f, 0x25, 0x40, 0x76, 0xff])),
        _ => Said { opcode: one(random, &[0x0a, 0x20, 0x21]), ..Said::default() },
    };
    // An error that ends the connection.
    if random.random_ratio(1, 30) && sent.opcode < 0x1f {
        match random.random_range(0..4) {
            0 => sent.extras.push(0),
            1 => sent.key = "k".repeat(251),
            2 => sent.key = String::new(),
            _ if sent.extras.is_empty() && sent.key.is_empty() => {}
            _ => sent.too_long_by = -(sent.value.len() as i32) - 1,
        }
    }
    sent
}

impl Said {
    fn with_opcode(self, opcode: u8) -> Said {
        Said { opcode, ..self }
    }
}
