//! Messages of several operations, and what their replies are.

use crate::commit_message::CommitMessage;
use crate::{Error, limits};
use bytes::Bytes;
use sandstorm_net::call_key::call_key;
use sandstorm_net::rpc::{
    Condition, HELLO_BIND_SESSION, MAX_KEY_LEN, MAX_MESSAGE_LEN, MAX_OPERATIONS, MAX_VALUE_LEN,
    MESSAGE_FLAG_IDEMPOTENT, MESSAGE_HEADER_LEN, MessageHeader, OP_FLAG_CALL_KEY, OP_FLAG_NEAR, OP_FLAG_SNAPSHOT,
    OP_FLAG_TTL, OP_HEADER_LEN, OpKind, Operation, encode_op_header_with_lens,
};
use sandstorm_net::slots::slot_of;
use std::time::Duration;

/// A record as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its value, a slice of the message that brought it.
    pub value: Bytes,
    /// Its version: grows with every write of the key.
    pub version: u64,
    /// The flags that its writer stored beside it.
    pub flags: u32,
}

/// A record of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedRecord {
    /// Its key, a slice of the message that brought it.
    pub key: Bytes,
    /// Its value, a slice of the message that brought it.
    pub value: Bytes,
    /// Its version: grows with every write of the key.
    pub version: u64,
    /// The flags that its writer stored beside it.
    pub flags: u32,
}

/// The end of a range that comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The smallest key.
    Forward,
    /// The largest key.
    Backward,
}

/// The beginning of a range, as one message holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangePage {
    /// The records, in the range's order.
    pub records: Vec<KeyedRecord>,
    /// The key behind which there may be more; `None`: this was all of the range.
    pub on: Option<Bytes>,
}

/// Options of a put.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutOptions {
    /// The condition that must hold for the write.
    pub condition: Condition,
    /// The version that [`Condition::Version`] asks for.
    pub version: u64,
    /// Flags to store beside the value.
    pub flags: u32,
    /// The record's life; `None`: without end. Rounded down to milliseconds, at least one.
    pub ttl: Option<Duration>,
}

impl PutOptions {
    /// Only if the record has this version.
    #[must_use]
    pub fn if_version(mut self, version: u64) -> PutOptions {
        (self.condition, self.version) = (Condition::Version, version);
        self
    }

    /// Only if there is no record.
    #[must_use]
    pub fn if_absent(mut self) -> PutOptions {
        (self.condition, self.version) = (Condition::Absent, 0);
        self
    }

    /// Only if there is a record.
    #[must_use]
    pub fn if_present(mut self) -> PutOptions {
        (self.condition, self.version) = (Condition::Present, 0);
        self
    }
}

/// How long a record has left; see [`crate::Client::ttl`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordExpiry {
    /// It does not expire.
    Never,
    /// It expires after this time, a millisecond at least. It is never gone before, and may be seen some milliseconds
    /// longer.
    After(Duration),
}

/// The outcome of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The record was written.
    Written {
        /// Its version now.
        version: u64,
    },
    /// The put's condition did not hold, and nothing was written.
    Conflict {
        /// The version that the record has instead; `None`: there is no record.
        version: Option<u64>,
    },
}

/// The answer to one operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answer to a ping.
    Pong,
    /// Answer to a get.
    Record(Option<Record>),
    /// Answer to a multi-get, in the order of its keys.
    Records(Vec<Option<Record>>),
    /// Answer to a range.
    Range(RangePage),
    /// Answer to a put: the new version.
    Written(u64),
    /// Answer to a delete: whether there was a record.
    Deleted(bool),
    /// Answer to an increment: the sum.
    Sum(i64),
    /// Answer to a count or a rank: so many keys.
    Counted(u64),
    /// Answer to an nth: the key, if there are so many.
    Key(Option<Bytes>),
    /// Answer to a ttl: when the record expires, if there is one.
    Expiry(Option<RecordExpiry>),
    /// Answer to a touch: whether there was a record.
    Touched(bool),
    /// Answer to an invocation: the extension's reply.
    Invoked(Bytes),
    /// Answer to a commit: all of its writes are made.
    Committed,
}

/// A request under construction: several operations that travel together, at most 256 and about 8 MiB, with
/// [`limits::MESSAGE_KEYS`] keys of multigets and records of ranges. An operation over a limit is left out; sending the
/// message reports that. Used with [`crate::raw`]; [`crate::Batch`] wraps it.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Vec<u8>,
    operations: usize,
    /// Keys of its multigets, and records that its ranges ask for.
    keys: usize,
    idempotent: bool,
    too_large: Option<&'static str>,
}

impl Message {
    pub(crate) fn new() -> Message {
        Message::reuse(Vec::with_capacity(256))
    }

    /// A message that a function fills.
    pub(crate) fn of(fill: impl FnOnce(&mut Message)) -> Message {
        let mut message = Message::new();
        fill(&mut message);
        message
    }

    /// Adds the operations of another message, of which both are parts.
    pub(crate) fn append(&mut self, other: &Message) {
        self.bytes.extend_from_slice(other.bytes.get(MESSAGE_HEADER_LEN..).unwrap_or_default());
        self.operations += other.operations;
        self.keys += other.keys;
        self.idempotent &= other.idempotent;
    }

    /// Each operation as a message of its own, with its key: of a call the one that it is near, if it is.
    pub(crate) fn each(self, near_key: &[u8]) -> Result<Vec<(Vec<u8>, Message)>, Error> {
        let idempotent = self.idempotent;
        let bytes = self.finish(0)?;
        let (_, operations) = MessageHeader::decode(&bytes).map_err(|error| protocol_error(error.to_string()))?;
        let mut each = Vec::new();
        for operation in operations {
            let operation = operation.map_err(|error| protocol_error(error.to_string()))?;
            let mut message = Message::of(|message| message.push(&operation, [operation.value, &[]]));
            message.idempotent |= idempotent;
            let key = match operation.op {
                OpKind::Invoke if operation.flags & OP_FLAG_NEAR != 0 => near_key,
                // Of a call the key is a name; a range has two, and positions are among all keys of a table.
                OpKind::Invoke | OpKind::Range | OpKind::Count | OpKind::Rank | OpKind::Nth => &[],
                _ => operation.key,
            };
            each.push((key.to_vec(), message));
        }
        Ok(each)
    }

    /// An empty message in the buffer of another.
    pub(crate) fn reuse(mut bytes: Vec<u8>) -> Message {
        bytes.clear();
        bytes.resize(MESSAGE_HEADER_LEN, 0);
        Message { bytes, operations: 0, keys: 0, idempotent: true, too_large: None }
    }

    /// Operations so far.
    pub fn operations(&self) -> usize {
        self.operations
    }

    /// Bytes so far, headers included.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends an operation whose value is in two parts. An operation over a limit is left out and remembered.
    pub(crate) fn push(&mut self, operation: &Operation<'_>, value: [&[u8]; 2]) {
        let value_len = value[0].len() + value[1].len();
        if operation.key.len() > MAX_KEY_LEN {
            self.too_large = Some("a key is over 64 KiB");
        } else if value_len > MAX_VALUE_LEN {
            self.too_large = Some("a value, arguments or list of keys is over 8 MiB");
        } else if self.operations == MAX_OPERATIONS {
            self.too_large = Some("over 256 operations in one message");
        } else if self.bytes.len() + OP_HEADER_LEN + operation.key.len() + value_len > MAX_MESSAGE_LEN {
            self.too_large = Some("the operations of one message are over its limit of about 8 MiB together");
        } else {
            self.bytes.extend_from_slice(&encode_op_header_with_lens(operation, operation.key.len(), value_len));
            self.bytes.extend_from_slice(operation.key);
            self.bytes.extend_from_slice(value[0]);
            self.bytes.extend_from_slice(value[1]);
            self.operations += 1;
            self.idempotent &= operation.op.only_reads();
        }
    }

    /// Appends a ping; its answer echoes the payload.
    pub fn ping(&mut self, payload: &[u8]) {
        self.push(&Operation::new(OpKind::Ping), [payload, &[]]);
    }

    pub(crate) fn hello(&mut self, token: &[u8]) {
        self.push(&Operation { number: HELLO_BIND_SESSION, ..Operation::new(OpKind::Hello) }, [token, &[]]);
    }

    /// Appends a get.
    pub fn get(&mut self, table: u64, key: &[u8]) {
        self.push(&Operation { table, key, ..Operation::new(OpKind::Get) }, [&[], &[]]);
    }

    /// Counts keys that the message asks for together.
    fn count(&mut self, keys: usize) {
        self.keys += keys;
        if self.keys > limits::MESSAGE_KEYS {
            self.too_large = Some("over 1,000 keys of multigets and records of ranges in one message");
        }
    }

    /// Appends a multi-get.
    pub fn multi_get<K: AsRef<[u8]>>(&mut self, table: u64, keys: &[K]) {
        self.multi_get_with(table, keys, 0);
    }

    /// The same, with all records as they were at one moment.
    pub fn snapshot<K: AsRef<[u8]>>(&mut self, table: u64, keys: &[K]) {
        self.multi_get_with(table, keys, OP_FLAG_SNAPSHOT);
    }

    fn multi_get_with<K: AsRef<[u8]>>(&mut self, table: u64, keys: &[K], flags: u8) {
        let mut list = Vec::with_capacity(keys.iter().map(|key| 4 + key.as_ref().len()).sum());
        for key in keys {
            let key = key.as_ref();
            if key.len() > MAX_KEY_LEN {
                self.too_large = Some("a key is over 64 KiB");
                return;
            }
            list.extend_from_slice(&(key.len() as u32).to_le_bytes());
            list.extend_from_slice(key);
        }
        let operation = Operation { table, flags, number: keys.len() as u64, ..Operation::new(OpKind::MultiGet) };
        self.count(keys.len());
        self.push(&operation, [&list, &[]]);
    }

    /// Appends a range: up to `limit` records of an ordered table with `from <= key < to` (empty `to`: to the end).
    /// With `at_once` all are of one moment. The answer may hold fewer though there are more: see [`RangePage::on`].
    pub fn range(&mut self, table: u64, from: &[u8], to: &[u8], limit: u32, direction: Direction, at_once: bool) {
        let operation = Operation::range(table, from, &[], limit, direction == Direction::Backward);
        let flags = if at_once { OP_FLAG_SNAPSHOT } else { 0 };
        self.count(limits::RANGE_PAGE.min(limit as usize));
        self.push(&Operation { flags, ..operation }, [to, &[]]);
    }

    /// Appends a count of the keys of an ordered table with `from <= key < to` (empty `to`: to the end).
    pub fn count_keys(&mut self, table: u64, from: &[u8], to: &[u8]) {
        self.push(&Operation::count(table, from, &[]), [to, &[]]);
    }

    /// Appends a count of the keys of an ordered table before one.
    pub fn rank(&mut self, table: u64, key: &[u8]) {
        self.push(&Operation::rank(table, key), [&[], &[]]);
    }

    /// Appends the question for the key at a position of an ordered table.
    pub fn nth(&mut self, table: u64, position: u64) {
        self.push(&Operation::nth(table, position), [&[], &[]]);
    }

    /// Appends the question how long a record has left.
    pub fn ttl(&mut self, table: u64, key: &[u8]) {
        self.push(&Operation::ttl(table, key), [&[], &[]]);
    }

    /// Appends a touch: the record expires after `ttl`, in whole milliseconds and one at least; `None`: never.
    pub fn touch(&mut self, table: u64, key: &[u8], ttl: Option<Duration>) {
        self.push(&Operation::touch(table, key, ttl.map_or(0, whole_ms)), [&[], &[]]);
    }

    /// Appends a put.
    pub fn put(&mut self, table: u64, key: &[u8], value: &[u8], options: &PutOptions) {
        let mut operation = Operation {
            table,
            key,
            condition: options.condition,
            number: options.version,
            user_flags: options.flags,
            ..Operation::new(OpKind::Put)
        };
        match options.ttl {
            None => self.push(&operation, [value, &[]]),
            Some(ttl) => {
                operation.flags |= OP_FLAG_TTL;
                self.push(&operation, [&whole_ms(ttl).to_le_bytes(), value]);
            }
        }
    }

    /// Appends a delete, with `if_version` only of that version.
    pub fn delete(&mut self, table: u64, key: &[u8], if_version: Option<u64>) {
        let condition = if if_version.is_some() { Condition::Version } else { Condition::Always };
        let number = if_version.unwrap_or(0);
        self.push(&Operation { table, key, condition, number, ..Operation::new(OpKind::Delete) }, [&[], &[]]);
    }

    /// Appends an increment.
    pub fn increment(&mut self, table: u64, key: &[u8], delta: i64) {
        let number = delta.cast_unsigned();
        self.push(&Operation { table, key, number, ..Operation::new(OpKind::Increment) }, [&[], &[]]);
    }

    /// Appends the commit of a transaction.
    pub fn commit(&mut self, steps: &CommitMessage) {
        self.push(&Operation { number: steps.count(), ..Operation::new(OpKind::Commit) }, [steps.body(), &[]]);
    }

    /// Appends a call of an extension; version 0 is the newest.
    pub fn invoke(&mut self, name: &str, version: u64, args: &[u8]) {
        self.push(&call_operation(name, version), [args, &[]]);
    }

    /// Appends a call of an extension with these flags. With a key it runs only at the server that owns it, and a
    /// version that is tried on a share of the calls gets all calls of the key, or none.
    pub(crate) fn call(&mut self, name: &str, version: u64, args: &[u8], (flags, key): (u8, Option<&[u8]>)) {
        let call = call_operation(name, version);
        let call = match key {
            None => Operation { flags, ..call },
            Some(key) => Operation {
                flags: flags | OP_FLAG_NEAR | OP_FLAG_CALL_KEY,
                user_flags: slot_of(key).into(),
                table: call_key(key),
                ..call
            },
        };
        self.push(&call, [args, &[]]);
    }

    /// Appends a call that does no harm if it runs twice, as of an extension that only reads: the server remembers no
    /// answer to it.
    pub fn query(&mut self, name: &str, version: u64, args: &[u8]) {
        self.harmless(|message| message.invoke(name, version, args));
    }

    /// Appends operations that do no harm if they run twice.
    pub(crate) fn harmless(&mut self, append: impl FnOnce(&mut Message)) {
        let idempotent = self.idempotent;
        append(self);
        self.idempotent = idempotent;
    }

    /// Returns the bytes, with a header that lacks the session's fields (session, sequence, acked).
    pub(crate) fn finish(mut self, tenant: u32) -> Result<Vec<u8>, Error> {
        if let Some(what) = self.too_large {
            return Err(Error::TooLarge { what: what.to_owned() });
        }
        let header = MessageHeader {
            flags: if self.idempotent { MESSAGE_FLAG_IDEMPOTENT } else { 0 },
            operations: self.operations as u16,
            tenant,
            session: 0,
            sequence: 0,
            acked: 0,
        };
        if let Some(head) = self.bytes.first_chunk_mut::<MESSAGE_HEADER_LEN>() {
            *head = header.encode();
        }
        Ok(self.bytes)
    }
}

/// A time to live on the wire, where 0 would be no end.
pub(crate) fn whole_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// A call of an extension, without its arguments.
fn call_operation(name: &str, version: u64) -> Operation<'_> {
    Operation { key: name.as_bytes(), number: version, ..Operation::new(OpKind::Invoke) }
}

/// Writes the session's fields into a finished message.
pub(crate) fn stamp_session(message: &mut [u8], session: u64, sequence: u64, acked: u64) {
    if let Some(head) = message.first_chunk_mut::<MESSAGE_HEADER_LEN>() {
        head[8..16].copy_from_slice(&session.to_le_bytes());
        head[16..24].copy_from_slice(&sequence.to_le_bytes());
        head[24..32].copy_from_slice(&acked.to_le_bytes());
    }
}

/// Returns whether a finished message may run twice without harm.
pub(crate) fn is_idempotent(message: &[u8]) -> bool {
    message.get(1).is_some_and(|flags| flags & MESSAGE_FLAG_IDEMPOTENT != 0)
}

pub(crate) fn protocol_error(text: impl Into<String>) -> Error {
    Error::Protocol { text: text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_of_reads_and_queries_may_run_twice() {
        let is_repeatable = |build: fn(&mut Message)| {
            let mut message = Message::new();
            message.get(1, b"k");
            build(&mut message);
            message.get(1, b"k");
            is_idempotent(&message.finish(1).expect("a small message"))
        };
        assert!(is_repeatable(|message| message.query("name", 0, b"")));
        assert!(!is_repeatable(|message| message.invoke("name", 0, b"")));
        for build in [(|message| message.put(1, b"k", b"v", &PutOptions::default())) as fn(&mut Message), |message| {
            message.invoke("name", 0, b"")
        }] {
            let mut message = Message::new();
            build(&mut message);
            message.query("name", 0, b"");
            assert!(!is_idempotent(&message.finish(1).expect("a small message")), "a query takes nothing back");
        }
    }
}
