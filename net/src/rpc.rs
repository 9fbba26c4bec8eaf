//! The RPC codec: the content of one R2P2 message. Fixed little-endian headers, several operations a message.
//!
//! ```text
//! message  = message header (32 bytes), then `operations` operations
//! message header: version u8 | flags u8 | operations u16 | tenant u32 | session u64 | sequence u64 | acked u64
//! operation = operation header (32 bytes), key, value
//! operation header: op u8 | flags u8 | status u8 | condition u8 | key_len u32 | value_len u32 | user_flags u32 |
//!                   table u64 | number u64
//! ```
//! A response mirrors its request: the same session and sequence, and one operation per operation asked, in order, with
//! the same `op`. [`OpKind`] says for each operation what `number`, key and value mean.
//!
//! A session is one client endpoint's life towards one server port: a random number that the client picks. `sequence`
//! counts its messages from 1. `acked` says that every message up to it has been answered, so the server may forget
//! those answers. Together they make a repeated request run once (see [`crate::reply_cache`]). The upper half of both
//! names the start of the server that the session is bound to, as a hello's answer tells it; 0: it is bound to none.

mod body;
mod commit;
mod cost;
mod decode_error;
mod failure;
mod status;
#[cfg(test)]
mod tests;

pub use body::{
    BodyDecodeError, HelloResponse, MultiGetEntries, MultiGetEntry, MultiGetKeys, RangeEntries, RangeEntry, push_key,
    push_multiget_entry, push_range_entry, split_ttl, ttl_prefix,
};
pub use commit::{
    COMMIT_BYTES, COMMIT_RANGES, COMMIT_READS, COMMIT_ROW_BYTES, COMMIT_ROWS, COMMIT_STEPS, COMMIT_WRITES,
    CommitDecodeError, CommitRow, CommitRows, CommitStep, CommitStepIter, push_commit_row, push_commit_step,
};
pub use cost::{CALL_COST_BYTES, CallCost, OP_FLAG_COST};
pub use decode_error::MessageDecodeError;
pub use failure::failure_name;
pub use status::{KillCause, RpcStatus};

use status::from_byte;

/// The version of this format.
pub const VERSION: u8 = 1;
/// Bytes of a message header.
pub const MESSAGE_HEADER_LEN: usize = 32;
/// Bytes of an operation header.
pub const OP_HEADER_LEN: usize = 32;
/// Most operations in one message: all of them are checked before the first is run, and 256 puts take about as long as
/// a slice.
pub const MAX_OPERATIONS: usize = 256;
/// Longest key in bytes; a server may set its own limit lower.
pub const MAX_KEY_LEN: usize = 64 << 10;
/// Longest value, arguments or reply in bytes; a server may set its own limit lower.
pub const MAX_VALUE_LEN: usize = 8 << 20;
/// Longest value field of an operation in bytes: a largest value, and what may precede it there. That is a put's time
/// to live, a multiget's header of an answer, or a range's with the key.
pub const MAX_BODY_LEN: usize = MAX_VALUE_LEN + MAX_KEY_LEN + 64;
/// Longest message in bytes: one largest put and its headers, or as much of smaller operations.
pub const MAX_MESSAGE_LEN: usize = MESSAGE_HEADER_LEN + OP_HEADER_LEN + MAX_KEY_LEN + MAX_BODY_LEN;

/// Message flag: this is a response.
pub const MESSAGE_FLAG_RESPONSE: u8 = 0x01;
/// Message flag: running the request twice does no harm, so the server need not remember its answer.
pub const MESSAGE_FLAG_IDEMPOTENT: u8 = 0x02;
/// Flag of a response: the tenant's home worker is another than this port's. A hello tells which one it is.
pub const MESSAGE_FLAG_OTHER_HOME: u8 = 0x04;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// Nothing; answers `Ok`. Value: echoed back.
    Ping = 0,
    /// Presents the tenant's token (value) for this session on this port; number = [`HELLO_BIND_SESSION`] or 0. Answers
    /// with `number` = the worker that serves this port, value = `workers u32 | home worker u32` little-endian
    /// ([`HelloResponse`]), and user flags = the server's start.
    Hello = 1,
    /// Reads the record under key. Answer: value, user flags, number = version.
    Get = 2,
    /// Reads many: value = keys, each `len u32 | bytes` ([`MultiGetKeys`]); number = how many. Answer: value = for each
    /// key `status u8 | user_flags u32 | version u64 | len u32 | bytes` ([`MultiGetEntries`]); number = how many were
    /// found.
    MultiGet = 3,
    /// Writes a record under `condition`. `number` = the version that `Condition::Version` asks for. With the operation
    /// flag [`OP_FLAG_TTL`] the value starts with `ttl_ms u64`. Answer: number = new version.
    Put = 4,
    /// Deletes the record under `condition` (`Always`, or `Version` with `number`). Answer: `Ok` or `NotFound`.
    Delete = 5,
    /// Adds `number` (as i64) to the decimal value under key, 0 when absent. Answer: number = the sum (as i64).
    Increment = 6,
    /// Calls the extension whose name is key with value as arguments; number = version asked for, 0: newest.
    /// Answer: value = reply, number = the version that ran; on `Failed`: value = text, number = code; on `Killed`:
    /// value = text, number = cause (see [`KillCause`]). With [`OP_FLAG_COST`] the answer's key is a [`CallCost`].
    Invoke = 7,
    /// Reads the records of an ordered table with key <= their key < value (an empty value: to the end), in the order
    /// of keys; number = how many at most, with [`RANGE_BACKWARD`] from the largest on. Answer: value = for each
    /// `key_len u32 | key | user_flags u32 | version u64 | len u32 | bytes` ([`RangeEntries`]); number = how many, with
    /// [`RANGE_MORE`] where the answer ended before the range did: it goes on behind the last key; if there is none,
    /// behind the answer's key.
    Range = 8,
    /// Makes all changes of a transaction at one moment at which all that it has read still holds, or none. Value: its
    /// steps ([`CommitStep`]), each as an operation: reads, then what is to be written; number = how many. Answer:
    /// nothing; on `Conflict`: table and key of the step that does not hold, number = its index.
    Commit = 9,
    /// Counts the keys of an ordered table with key <= them < value (an empty value: to the end), in logarithmic time.
    /// It looks for no records: a key whose record has expired counts until that is removed. Answer: number = how many.
    Count = 10,
    /// Counts the keys of an ordered table before this key, whether or not it is there. Answer: number = how many.
    Rank = 11,
    /// Finds the key of an ordered table before which there are `number` others. Answer: value = the key, or
    /// `NotFound`.
    Nth = 12,
    /// Reads how long the record under key has left. Answer: number = milliseconds, 1 at least; 0: it never expires.
    Ttl = 13,
    /// Lets the record under key expire after `number` milliseconds; 0: never. It keeps its value and flags. Answer:
    /// number = its new version, or `NotFound`.
    Touch = 14,
}

impl OpKind {
    /// Whether it only reads: running it twice does no harm, so a server need not remember its answer.
    #[inline]
    pub const fn only_reads(self) -> bool {
        use OpKind::{Count, Get, Hello, MultiGet, Nth, Ping, Range, Rank, Ttl};
        matches!(self, Ping | Hello | Get | MultiGet | Range | Count | Rank | Nth | Ttl)
    }

    /// Whether it asks for positions in the order of a table's keys.
    #[inline]
    pub const fn is_of_positions(self) -> bool {
        matches!(self, OpKind::Count | OpKind::Rank | OpKind::Nth)
    }
}

/// Operation flag of a put: the value starts with `ttl_ms u64`, milliseconds until the record expires.
pub const OP_FLAG_TTL: u8 = 0x01;
/// Bit of a range's number: the largest key comes first.
pub const RANGE_BACKWARD: u64 = 1 << 32;
/// Bit of the number of a range's answer: there may be more.
pub const RANGE_MORE: u64 = 1 << 32;
/// Operation flag of an invoke: it runs only at the server of a cluster that owns the slot in its user flags. Another
/// one answers [`RpcStatus::WrongServer`], and it has not run.
pub const OP_FLAG_NEAR: u8 = 0x08;
/// Operation flag of an invoke: its table is the number of the key that the call is about ([`crate::call_key`]). A
/// version that is tried on a share of the calls gets all calls of a key, or none. Older servers ignore both.
pub const OP_FLAG_CALL_KEY: u8 = 0x10;
/// Operation flag of a multiget or a range: all records as they were at one moment, so that it finds all of a
/// transaction's writes or none.
pub const OP_FLAG_SNAPSHOT: u8 = 0x02;

/// Offset of the number in an operation's header.
pub const OP_NUMBER_OFFSET: usize = 24;
/// Number of a hello: the session's messages will be bound to the server's start, and the session will be known by its
/// number from any address.
pub const HELLO_BIND_SESSION: u64 = 1;
/// Number of an answer [`RpcStatus::Stale`]: the session belongs to an earlier start of the server, so all of its
/// requests are stale.
pub const STALE_PREVIOUS_START: u64 = 1;

/// Condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Condition {
    /// None.
    #[default]
    Always = 0,
    /// Only if the key is absent.
    Absent = 1,
    /// Only if the key is present.
    Present = 2,
    /// Only if the record has the version in `number`.
    Version = 3,
}

from_byte!(OpKind {
    Ping,
    Hello,
    Get,
    MultiGet,
    Put,
    Delete,
    Increment,
    Invoke,
    Range,
    Commit,
    Count,
    Rank,
    Nth,
    Ttl,
    Touch,
});
from_byte!(Condition { Always, Absent, Present, Version });

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// `FLAG_*`.
    pub flags: u8,
    /// Number of operations that follow.
    pub operations: u16,
    /// The tenant's id.
    pub tenant: u32,
    /// The client's session.
    pub session: u64,
    /// The message's number in its session, from 1.
    pub sequence: u64,
    /// Every message up to this one has been answered.
    pub acked: u64,
}

/// One operation, borrowed from its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<'m> {
    /// The operation to do, or that was done.
    pub op: OpKind,
    /// `OP_FLAG_*`.
    pub flags: u8,
    /// In a response: how it ended. In a request: `Ok`.
    pub status: RpcStatus,
    /// Condition of a write.
    pub condition: Condition,
    /// The record's user flags (get: answered, put: stored).
    pub user_flags: u32,
    /// The table's id.
    pub table: u64,
    /// See [`OpKind`].
    pub number: u64,
    /// Key, or extension name.
    pub key: &'m [u8],
    /// Value, arguments or reply.
    pub value: &'m [u8],
}

impl<'m> Operation<'m> {
    /// An operation with everything but `op` at rest.
    pub const fn new(op: OpKind) -> Operation<'m> {
        Operation {
            op,
            flags: 0,
            status: RpcStatus::Ok,
            condition: Condition::Always,
            user_flags: 0,
            table: 0,
            number: 0,
            key: &[],
            value: &[],
        }
    }

    /// Presents a token.
    pub const fn hello(token: &'m [u8]) -> Operation<'m> {
        Operation { value: token, ..Operation::new(OpKind::Hello) }
    }

    /// Reads a record.
    pub const fn get(table: u64, key: &'m [u8]) -> Operation<'m> {
        Operation { table, key, ..Operation::new(OpKind::Get) }
    }

    /// Reads many records; `body` holds `count` keys as [`push_key`] writes them.
    pub const fn multiget(table: u64, count: u64, body: &'m [u8]) -> Operation<'m> {
        Operation { table, number: count, value: body, ..Operation::new(OpKind::MultiGet) }
    }

    /// Reads up to `limit` records of an ordered table with `from <= key < to`.
    pub const fn range(table: u64, from: &'m [u8], to: &'m [u8], limit: u32, backward: bool) -> Operation<'m> {
        let number = limit as u64 | if backward { RANGE_BACKWARD } else { 0 };
        Operation { table, key: from, value: to, number, ..Operation::new(OpKind::Range) }
    }

    /// Counts the keys of an ordered table with `from <= key < to`.
    pub const fn count(table: u64, from: &'m [u8], to: &'m [u8]) -> Operation<'m> {
        Operation { table, key: from, value: to, ..Operation::new(OpKind::Count) }
    }

    /// Counts the keys of an ordered table before one.
    pub const fn rank(table: u64, key: &'m [u8]) -> Operation<'m> {
        Operation { table, key, ..Operation::new(OpKind::Rank) }
    }

    /// Finds the key at a position of an ordered table.
    pub const fn nth(table: u64, position: u64) -> Operation<'m> {
        Operation { table, number: position, ..Operation::new(OpKind::Nth) }
    }

    /// Reads how long a record has left.
    pub const fn ttl(table: u64, key: &'m [u8]) -> Operation<'m> {
        Operation { table, key, ..Operation::new(OpKind::Ttl) }
    }

    /// Lets a record expire after so many milliseconds; 0: never.
    pub const fn touch(table: u64, key: &'m [u8], ttl_ms: u64) -> Operation<'m> {
        Operation { table, key, number: ttl_ms, ..Operation::new(OpKind::Touch) }
    }

    /// Writes a record, even if there is one.
    pub const fn put(table: u64, key: &'m [u8], value: &'m [u8]) -> Operation<'m> {
        Operation { table, key, value, ..Operation::new(OpKind::Put) }
    }

    /// Writes a record that expires; `body` is the value behind a [`ttl_prefix`].
    pub const fn put_with_ttl(table: u64, key: &'m [u8], body: &'m [u8]) -> Operation<'m> {
        Operation { flags: OP_FLAG_TTL, ..Operation::put(table, key, body) }
    }

    /// Deletes a record.
    pub const fn delete(table: u64, key: &'m [u8]) -> Operation<'m> {
        Operation { table, key, ..Operation::new(OpKind::Delete) }
    }

    /// Adds to a decimal value.
    pub const fn increment(table: u64, key: &'m [u8], delta: i64) -> Operation<'m> {
        Operation { table, key, number: delta as u64, ..Operation::new(OpKind::Increment) }
    }

    /// Calls the newest version of an extension.
    pub const fn invoke(extension: &'m [u8], args: &'m [u8]) -> Operation<'m> {
        Operation { key: extension, value: args, ..Operation::new(OpKind::Invoke) }
    }

    /// Commits a transaction; `body` holds `count` steps as [`push_commit_step`] writes them.
    pub const fn commit(count: u64, body: &'m [u8]) -> Operation<'m> {
        Operation { number: count, value: body, ..Operation::new(OpKind::Commit) }
    }

    /// The same operation under a condition; `version` counts only for [`Condition::Version`].
    pub const fn under(mut self, condition: Condition, version: u64) -> Operation<'m> {
        self.condition = condition;
        self.number = version;
        self
    }

    /// The answer to this operation: same `op` and table, everything else at rest.
    pub const fn answer<'a>(&self, status: RpcStatus) -> Operation<'a> {
        Operation { status, table: self.table, ..Operation::new(self.op) }
    }

    /// Bytes of this operation in a message.
    pub const fn encoded_len(&self) -> usize {
        OP_HEADER_LEN + self.key.len() + self.value.len()
    }
}

// With an array and inlined, these are one load each; with a slice they were a call with eight checks (a request has
// fifteen of them).
#[inline(always)]
fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl MessageHeader {
    /// Reads the header and gives the operations behind it.
    ///
    /// # Errors
    /// [`MessageDecodeError`] for a short header, another version, or too many operations. The operations themselves
    /// are checked as [`OperationIter`] walks them.
    #[inline]
    pub fn decode(message: &[u8]) -> Result<(MessageHeader, OperationIter<'_>), MessageDecodeError> {
        let Some((head, body)) = message.split_first_chunk::<MESSAGE_HEADER_LEN>() else {
            return Err(MessageDecodeError::ShortHeader);
        };
        if head[0] != VERSION {
            return Err(MessageDecodeError::Version(head[0]));
        }
        let operations = u16::from_le_bytes([head[2], head[3]]);
        if usize::from(operations) > MAX_OPERATIONS {
            return Err(MessageDecodeError::Operations(operations));
        }
        let header = MessageHeader {
            flags: head[1],
            operations,
            tenant: u32_at(head, 4),
            session: u64_at(head, 8),
            sequence: u64_at(head, 16),
            acked: u64_at(head, 24),
        };
        Ok((header, OperationIter { rest: body, next: 0, count: operations }))
    }

    /// The header of the response to this request, with so many operations.
    pub const fn response(&self, operations: u16) -> MessageHeader {
        MessageHeader { flags: self.flags | MESSAGE_FLAG_RESPONSE, operations, ..*self }
    }

    /// Running the request twice does no harm.
    pub const fn is_idempotent(&self) -> bool {
        self.flags & MESSAGE_FLAG_IDEMPOTENT != 0
    }

    /// Begins a message: its operations are appended behind, and counted at the end with [`set_operation_count`].
    pub fn begin(&self, message: &mut Vec<u8>) {
        message.clear();
        message.extend_from_slice(&self.encode());
    }

    /// The header's bytes.
    #[inline]
    pub fn encode(&self) -> [u8; MESSAGE_HEADER_LEN] {
        let mut head = [0; MESSAGE_HEADER_LEN];
        head[0] = VERSION;
        head[1] = self.flags;
        head[2..4].copy_from_slice(&self.operations.to_le_bytes());
        head[4..8].copy_from_slice(&self.tenant.to_le_bytes());
        head[8..16].copy_from_slice(&self.session.to_le_bytes());
        head[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        head[24..32].copy_from_slice(&self.acked.to_le_bytes());
        head
    }
}

/// Walks the operations of a message. Ends after the first error.
#[derive(Clone, Debug)]
pub struct OperationIter<'m> {
    rest: &'m [u8],
    next: u16,
    count: u16,
}

impl<'m> OperationIter<'m> {
    #[inline(always)]
    fn take(&mut self) -> Result<Operation<'m>, MessageDecodeError> {
        let index = self.next;
        let Some((head, body)) = self.rest.split_first_chunk::<OP_HEADER_LEN>() else {
            return Err(MessageDecodeError::ShortOperation(index));
        };
        let key_len = u32_at(head, 4) as usize;
        let value_len = u32_at(head, 8) as usize;
        if key_len > MAX_KEY_LEN || value_len > MAX_BODY_LEN {
            return Err(MessageDecodeError::TooLarge(index));
        }
        if body.len() < key_len + value_len {
            return Err(MessageDecodeError::ShortBody(index));
        }
        let op = OpKind::from_byte(head[0]).ok_or(MessageDecodeError::UnknownOp(index, head[0]))?;
        let status = RpcStatus::from_byte(head[2]).ok_or(MessageDecodeError::UnknownEnum(index))?;
        let condition = Condition::from_byte(head[3]).ok_or(MessageDecodeError::UnknownEnum(index))?;
        let (key, behind_key) = body.split_at(key_len);
        let (value, rest) = behind_key.split_at(value_len);
        self.rest = rest;
        Ok(Operation {
            op,
            flags: head[1],
            status,
            condition,
            user_flags: u32_at(head, 12),
            table: u64_at(head, 16),
            number: u64_at(head, 24),
            key,
            value,
        })
    }
}

impl<'m> Iterator for OperationIter<'m> {
    type Item = Result<Operation<'m>, MessageDecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.count {
            let trailing = std::mem::take(&mut self.rest).len();
            return (trailing > 0).then_some(Err(MessageDecodeError::Trailing(trailing)));
        }
        let taken = self.take();
        self.next += 1;
        if taken.is_err() {
            self.rest = &[];
            self.next = self.count;
        }
        Some(taken)
    }
}

/// The bytes of an operation's header, for a key and value of the lengths that `operation` has.
#[inline]
pub fn encode_op_header(operation: &Operation<'_>) -> [u8; OP_HEADER_LEN] {
    encode_op_header_with_lens(operation, operation.key.len(), operation.value.len())
}

/// The bytes of an operation's header for a key and value that are sent from elsewhere.
#[inline]
pub fn encode_op_header_with_lens(operation: &Operation<'_>, key_len: usize, value_len: usize) -> [u8; OP_HEADER_LEN] {
    debug_assert!(key_len <= MAX_KEY_LEN && value_len <= MAX_BODY_LEN);
    let mut head = [0; OP_HEADER_LEN];
    head[0] = operation.op as u8;
    head[1] = operation.flags;
    head[2] = operation.status as u8;
    head[3] = operation.condition as u8;
    head[4..8].copy_from_slice(&(key_len as u32).to_le_bytes());
    head[8..12].copy_from_slice(&(value_len as u32).to_le_bytes());
    head[12..16].copy_from_slice(&operation.user_flags.to_le_bytes());
    head[16..24].copy_from_slice(&operation.table.to_le_bytes());
    head[24..32].copy_from_slice(&operation.number.to_le_bytes());
    head
}

/// Writes the number of operations into a message that has been begun.
pub fn set_operation_count(message: &mut [u8], operations: u16) {
    if let Some(field_bytes) = message.get_mut(2..4) {
        field_bytes.copy_from_slice(&operations.to_le_bytes());
    }
}

/// Appends an operation to a message.
#[inline]
pub fn encode_operation(operation: &Operation<'_>, message: &mut Vec<u8>) {
    message.reserve(operation.encoded_len());
    message.extend_from_slice(&encode_op_header(operation));
    // Answers have no key.
    if !operation.key.is_empty() {
        message.extend_from_slice(operation.key);
    }
    message.extend_from_slice(operation.value);
}

/// A whole message.
pub fn encode_message(header: &MessageHeader, operations: &[Operation<'_>], message: &mut Vec<u8>) {
    message.extend_from_slice(&header.encode());
    for operation in operations {
        encode_operation(operation, message);
    }
}
