//! memcached's binary protocol: frames of a header of 24 bytes, extras, a key and a value. No sockets, no clocks, no
//! allocation: a request borrows the bytes that it came in.
//!
//! [`parse`] takes one frame from the front of the input. The header alone decides which frame is permitted, so the
//! parser waits for no more of a frame than a permitted command can need. A frame that is too long is skipped and never
//! kept.

mod header;
#[cfg(any(test, feature = "fuzzing"))]
pub mod reference;
#[cfg(test)]
mod tests;

pub use header::{BinaryResponseHeader, BinaryStatus, HEADER_LEN, Opcode};

use super::MAX_KEY_LEN;
use super::text_request::{StoreMode, StoreRequest};

/// The first byte of requests.
pub const MAGIC: u8 = 0x80;
/// The first byte of answers.
pub const RESPONSE_MAGIC: u8 = 0x81;
/// Longest body, bytes. A longer one ends the connection, as in memcached: a gigabyte is not worth to be skipped.
pub const MAX_BODY_LEN: u32 = 1 << 30;
/// Longest name of a SASL mechanism, bytes.
pub const MAX_MECHANISM_LEN: usize = 32;
/// Longest credentials, bytes: the names of a tenant and a table and a token have a few hundred together.
pub const MAX_CREDENTIALS_LEN: usize = 1 << 10;

/// One step of SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslMessage<'i> {
    /// Asks for the mechanisms.
    List,
    /// Begins.
    Begin {
        /// The mechanism's name.
        mechanism: &'i [u8],
        /// The client's first message.
        data: &'i [u8],
    },
    /// Goes on.
    Step {
        /// The client's next message.
        data: &'i [u8],
    },
}

/// The command of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryCommand<'i> {
    /// get, gat.
    Get {
        /// The key.
        key: &'i [u8],
        /// A new time of expiry.
        exptime: Option<u32>,
        /// True if the answer names the key.
        with_key: bool,
    },
    /// touch.
    Touch {
        /// The key.
        key: &'i [u8],
        /// The new time of expiry.
        exptime: u32,
    },
    /// set, add, replace, append, prepend. With a number, which the record has to have, the first three become
    /// [`StoreMode::Cas`].
    Store {
        /// The value to be stored, and the mode.
        store: StoreRequest<'i>,
        /// The number that the record has to have which is appended to; 0: any.
        cas: u64,
    },
    /// A value longer than can be stored. It is to be skipped, and refused; a `set` also ends what was there.
    TooLarge {
        /// The key.
        key: &'i [u8],
        /// True if it was a `set`.
        set: bool,
    },
    /// delete.
    Delete {
        /// The key.
        key: &'i [u8],
        /// The number that the record has to have; 0: any.
        cas: u64,
    },
    /// incr, decr.
    Arithmetic {
        /// The key.
        key: &'i [u8],
        /// The difference.
        delta: u64,
        /// The number that is stored where there is no record.
        initial: u64,
        /// Time of expiry of such a record; all ones: none is made.
        exptime: u32,
        /// Up, or down.
        up: bool,
        /// The number that the record has to have; 0: any.
        cas: u64,
    },
    /// flush.
    Flush {
        /// The delay.
        delay: u32,
    },
    /// stat, of the named group.
    Stat {
        /// The name, empty for the general ones.
        name: &'i [u8],
    },
    /// noop, and the other commands that are accepted and do nothing.
    Noop,
    /// version.
    Version,
    /// quit.
    Quit,
    /// The steps of SASL.
    Sasl(SaslMessage<'i>),
    /// No command; its body is skipped.
    Unknown,
    /// A command whose parts have impossible lengths. It is answered with this status, and the connection ends.
    Malformed(BinaryStatus),
    /// A mechanism's name or credentials of a length that they cannot have; skipped, and answered with this status.
    Refused(BinaryStatus),
}

/// A frame that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinaryFrame<'i> {
    /// The command.
    pub command: BinaryCommand<'i>,
    /// The command's number, which the answer has, too.
    pub opcode: u8,
    /// The client's own number of the request, which the answer has, too.
    pub opaque: u32,
    /// True if no answer is wanted on success. A quiet get is answered if there is a record.
    pub quiet: bool,
}

/// The result of parsing the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryParse<'i> {
    /// A part of a frame: the whole takes at least so many bytes.
    Incomplete(usize),
    /// A frame.
    Frame {
        /// The frame.
        frame: BinaryFrame<'i>,
        /// Bytes that it takes of those that have come.
        used: usize,
        /// Bytes that are to be skipped of those behind them, which may not have come yet.
        skip: u64,
    },
    /// No request at all: the connection ends.
    Fatal,
}

/// The lengths of a frame's parts, and the rest of its header.
#[derive(Clone, Copy)]
struct BinaryFrameHeader {
    opcode: Option<Opcode>,
    number: u8,
    extras: usize,
    key: usize,
    body: u32,
    opaque: u32,
    cas: u64,
}

/// The bodies that a header permits.
enum BodyPolicy {
    /// The frame is waited for.
    Read,
    /// Extras and key are waited for; the value is skipped.
    SkipValue,
    /// It is answered at once, and its body skipped.
    Skip(BinaryStatus),
    /// It is answered at once, and the connection ends.
    Close(BinaryStatus),
}

/// The frame at the front of `input`. Values longer than `max_value` are to be skipped.
#[inline]
pub fn parse(input: &[u8], max_value: usize) -> BinaryParse<'_> {
    match input.first() {
        None => return BinaryParse::Incomplete(HEADER_LEN),
        Some(&MAGIC) => {}
        Some(_) => return BinaryParse::Fatal,
    }
    let Some((header, rest)) = input.split_first_chunk::<HEADER_LEN>() else {
        return BinaryParse::Incomplete(HEADER_LEN);
    };
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let head = BinaryFrameHeader {
        opcode: Opcode::of(header[1]),
        number: header[1],
        extras: usize::from(header[4]),
        key: usize::from(u16::from_be_bytes([header[2], header[3]])),
        body: word(8),
        opaque: word(12),
        cas: u64::from(word(16)) << 32 | u64::from(word(20)),
    };
    let permit = body_policy(&head, max_value);
    let front = head.extras + head.key;
    let taken = match permit {
        BodyPolicy::Read => head.body as usize,
        BodyPolicy::SkipValue => front,
        BodyPolicy::Skip(_) | BodyPolicy::Close(_) => 0,
    };
    let Some(body) = rest.get(..taken) else { return BinaryParse::Incomplete(HEADER_LEN + taken) };
    let (command, skip) = match permit {
        BodyPolicy::Read => (decode_command(&head, body), 0),
        BodyPolicy::SkipValue => {
            let set = head.opcode.is_some_and(|opcode| opcode.plain() == Opcode::Set);
            (BinaryCommand::TooLarge { key: &body[head.extras..], set }, head.body as usize - front)
        }
        BodyPolicy::Skip(BinaryStatus::UnknownCommand) => (BinaryCommand::Unknown, head.body as usize),
        BodyPolicy::Skip(status) => (BinaryCommand::Refused(status), head.body as usize),
        BodyPolicy::Close(status) => (BinaryCommand::Malformed(status), 0),
    };
    let quiet = head.opcode.is_some_and(|opcode| opcode.plain() != opcode);
    let frame = BinaryFrame { command, opcode: head.number, opaque: head.opaque, quiet };
    BinaryParse::Frame { frame, used: HEADER_LEN + taken, skip: skip as u64 }
}

/// Looks at the lengths. Nothing of a body is waited for before that.
fn body_policy(head: &BinaryFrameHeader, max_value: usize) -> BodyPolicy {
    let (body, front) = (head.body as usize, head.extras + head.key);
    if front > body {
        return BodyPolicy::Close(BinaryStatus::UnknownCommand);
    }
    if head.body > MAX_BODY_LEN || head.key > MAX_KEY_LEN {
        return BodyPolicy::Close(BinaryStatus::Invalid);
    }
    let Some(opcode) = head.opcode else { return BodyPolicy::Skip(BinaryStatus::UnknownCommand) };
    let value = body - front;
    let may_be = |extras: bool, key: bool, no_value: bool| extras && key && (no_value || value == 0);
    let (has_key, no_key) = (head.key > 0, head.key == 0);
    let whole = match opcode.plain() {
        Opcode::Get | Opcode::GetK | Opcode::Delete => may_be(head.extras == 0, has_key, false),
        Opcode::Set | Opcode::Add | Opcode::Replace => may_be(head.extras == 8, has_key, true),
        Opcode::Append | Opcode::Prepend => may_be(head.extras == 0, has_key, true),
        Opcode::Increment | Opcode::Decrement => may_be(head.extras == 20, has_key, false),
        Opcode::Touch | Opcode::Gat | Opcode::GatK => may_be(head.extras == 4, has_key, false),
        Opcode::Flush => may_be(matches!(head.extras, 0 | 4), no_key, false),
        Opcode::Verbosity => may_be(head.extras == 4, no_key, false),
        Opcode::Noop | Opcode::Version | Opcode::Quit | Opcode::SaslList => may_be(head.extras == 0, no_key, false),
        Opcode::Stat => may_be(head.extras == 0, true, false),
        Opcode::SaslAuth | Opcode::SaslStep => may_be(head.extras == 0, has_key, true),
        // These are the quiet ones, of which `plain` is another.
        _ => false,
    };
    match opcode.plain() {
        _ if !whole => BodyPolicy::Close(BinaryStatus::Invalid),
        Opcode::SaslAuth | Opcode::SaslStep if head.key > MAX_MECHANISM_LEN => BodyPolicy::Skip(BinaryStatus::Invalid),
        Opcode::SaslAuth | Opcode::SaslStep if value > MAX_CREDENTIALS_LEN => {
            BodyPolicy::Skip(BinaryStatus::OutOfMemory)
        }
        Opcode::Set | Opcode::Add | Opcode::Replace | Opcode::Append | Opcode::Prepend if value > max_value => {
            BodyPolicy::SkipValue
        }
        _ => BodyPolicy::Read,
    }
}

/// Decodes the command of a frame whose lengths are permitted and whose body is there.
fn decode_command<'i>(head: &BinaryFrameHeader, body: &'i [u8]) -> BinaryCommand<'i> {
    let (extras, rest) = body.split_at(head.extras);
    let (key, value) = rest.split_at(head.key);
    let word =
        |at: usize| extras.get(at..at + 4).map_or(0, |word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    let cas = head.cas;
    let store = |verb, flags, exptime: u32| {
        let (exptime, noreply) = (i64::from(exptime), false);
        BinaryCommand::Store { store: StoreRequest { verb, key, flags, exptime, value, noreply }, cas }
    };
    let verb = |verb| if cas == 0 { verb } else { StoreMode::Cas(cas) };
    let Some(opcode) = head.opcode else { return BinaryCommand::Unknown };
    match opcode.plain() {
        Opcode::Get | Opcode::GetK => {
            BinaryCommand::Get { key, exptime: None, with_key: opcode.plain() == Opcode::GetK }
        }
        Opcode::Gat | Opcode::GatK => {
            BinaryCommand::Get { key, exptime: Some(word(0)), with_key: opcode.plain() == Opcode::GatK }
        }
        Opcode::Touch => BinaryCommand::Touch { key, exptime: word(0) },
        Opcode::Set => store(verb(StoreMode::Set), word(0), word(4)),
        Opcode::Add => store(verb(StoreMode::Add), word(0), word(4)),
        Opcode::Replace => store(verb(StoreMode::Replace), word(0), word(4)),
        Opcode::Append => store(StoreMode::Append, 0, 0),
        Opcode::Prepend => store(StoreMode::Prepend, 0, 0),
        Opcode::Delete => BinaryCommand::Delete { key, cas },
        up @ (Opcode::Increment | Opcode::Decrement) => BinaryCommand::Arithmetic {
            key,
            delta: long(0),
            initial: long(8),
            exptime: word(16),
            up: up == Opcode::Increment,
            cas,
        },
        Opcode::Flush => BinaryCommand::Flush { delay: word(0) },
        Opcode::Stat => BinaryCommand::Stat { name: key },
        Opcode::Version => BinaryCommand::Version,
        Opcode::Quit => BinaryCommand::Quit,
        Opcode::SaslList => BinaryCommand::Sasl(SaslMessage::List),
        Opcode::SaslAuth => BinaryCommand::Sasl(SaslMessage::Begin { mechanism: key, data: value }),
        Opcode::SaslStep => BinaryCommand::Sasl(SaslMessage::Step { data: value }),
        _ => BinaryCommand::Noop,
    }
}
