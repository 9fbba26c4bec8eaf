//! The structured values of a few operations: lists of keys, lists of answers, a time to live, a hello's answer.

use super::{MAX_KEY_LEN, MAX_VALUE_LEN, OP_FLAG_TTL, Operation, RpcStatus, u32_at, u64_at};
use thiserror::Error;

/// The reason why a value is not the body that its operation asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BodyDecodeError {
    /// The body ends inside an entry.
    #[error("body ends inside entry {0}")]
    Short(u64),
    /// Bytes behind the last entry.
    #[error("{0} bytes behind the last entry of the body")]
    Trailing(usize),
    /// An unknown status.
    #[error("entry {0} has an unknown status")]
    Status(u64),
    /// A key or value over the format's limits.
    #[error("entry {0} is longer than a key or value may be")]
    TooLarge(u64),
}

/// Splits off `len u32 | bytes`.
pub(super) fn split_length_prefixed(rest: &[u8], index: u64, max: usize) -> Result<(&[u8], &[u8]), BodyDecodeError> {
    let (head, rest) = rest.split_first_chunk::<4>().ok_or(BodyDecodeError::Short(index))?;
    let len = u32::from_le_bytes(*head) as usize;
    if len > max {
        return Err(BodyDecodeError::TooLarge(index));
    }
    rest.split_at_checked(len).ok_or(BodyDecodeError::Short(index))
}

/// Appends a key to the body of a multiget.
pub fn push_key(body: &mut Vec<u8>, key: &[u8]) {
    debug_assert!(key.len() <= MAX_KEY_LEN);
    body.extend_from_slice(&(key.len() as u32).to_le_bytes());
    body.extend_from_slice(key);
}

/// Walks the keys of a multiget. Ends after the first error.
#[derive(Clone, Debug)]
pub struct MultiGetKeys<'m> {
    rest: &'m [u8],
    next: u64,
    count: u64,
}

impl<'m> MultiGetKeys<'m> {
    /// The `count` keys in `body`: a multiget's number and value.
    pub const fn new(count: u64, body: &'m [u8]) -> MultiGetKeys<'m> {
        MultiGetKeys { rest: body, next: 0, count }
    }
}

impl<'m> Iterator for MultiGetKeys<'m> {
    type Item = Result<&'m [u8], BodyDecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.count {
            let trailing = std::mem::take(&mut self.rest).len();
            return (trailing > 0).then_some(Err(BodyDecodeError::Trailing(trailing)));
        }
        let taken = split_length_prefixed(self.rest, self.next, MAX_KEY_LEN);
        (self.rest, self.next) = match taken {
            Ok((_, rest)) => (rest, self.next + 1),
            Err(_) => (&[][..], self.count),
        };
        Some(taken.map(|(key, _)| key))
    }
}

/// A multiget's answer for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiGetEntry<'m> {
    /// [`RpcStatus::Ok`], [`RpcStatus::NotFound`], or the error of this key.
    pub status: RpcStatus,
    /// The record's user flags.
    pub user_flags: u32,
    /// The record's version.
    pub version: u64,
    /// The record's value.
    pub value: &'m [u8],
}

/// Bytes before the value of an answer: status, user flags, version, length.
pub(super) const MULTIGET_ENTRY_HEADER_LEN: usize = 17;

impl MultiGetEntry<'_> {
    /// No record under the key.
    pub const NOT_FOUND: MultiGetEntry<'static> =
        MultiGetEntry { status: RpcStatus::NotFound, user_flags: 0, version: 0, value: &[] };

    /// Bytes of this answer in a body.
    pub const fn encoded_len(&self) -> usize {
        MULTIGET_ENTRY_HEADER_LEN + self.value.len()
    }
}

/// Appends an answer to the body of a multiget's response.
pub fn push_multiget_entry(body: &mut Vec<u8>, answer: &MultiGetEntry<'_>) {
    debug_assert!(answer.value.len() <= MAX_VALUE_LEN);
    let mut head = [0; MULTIGET_ENTRY_HEADER_LEN];
    head[0] = answer.status as u8;
    head[1..5].copy_from_slice(&answer.user_flags.to_le_bytes());
    head[5..13].copy_from_slice(&answer.version.to_le_bytes());
    head[13..].copy_from_slice(&(answer.value.len() as u32).to_le_bytes());
    body.extend_from_slice(&head);
    body.extend_from_slice(answer.value);
}

/// Walks the answers of a multiget, as many as there are. Ends after the first error.
#[derive(Clone, Debug)]
pub struct MultiGetEntries<'m> {
    rest: &'m [u8],
    next: u64,
}

impl<'m> MultiGetEntries<'m> {
    /// The answers in `body`.
    pub const fn new(body: &'m [u8]) -> MultiGetEntries<'m> {
        MultiGetEntries { rest: body, next: 0 }
    }

    fn first(&self) -> Result<(MultiGetEntry<'m>, &'m [u8]), BodyDecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<13>().ok_or(BodyDecodeError::Short(self.next))?;
        let status = RpcStatus::from_byte(head[0]).ok_or(BodyDecodeError::Status(self.next))?;
        let (value, rest) = split_length_prefixed(rest, self.next, MAX_VALUE_LEN)?;
        Ok((MultiGetEntry { status, user_flags: u32_at(head, 1), version: u64_at(head, 5), value }, rest))
    }
}

impl<'m> Iterator for MultiGetEntries<'m> {
    type Item = Result<MultiGetEntry<'m>, BodyDecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.first();
        self.rest = taken.map_or(&[][..], |(_, rest)| rest);
        self.next += 1;
        Some(taken.map(|(answer, _)| answer))
    }
}

/// A record of a range's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeEntry<'m> {
    /// The record's key.
    pub key: &'m [u8],
    /// The record's user flags.
    pub user_flags: u32,
    /// The record's version.
    pub version: u64,
    /// The record's value.
    pub value: &'m [u8],
}

/// Bytes of a row beside its key and value: both lengths, user flags, version.
pub(super) const RANGE_ENTRY_HEADER_LEN: usize = 20;

impl RangeEntry<'_> {
    /// Bytes of this row in a body.
    pub const fn encoded_len(&self) -> usize {
        RANGE_ENTRY_HEADER_LEN + self.key.len() + self.value.len()
    }
}

/// Appends a record to the body of a range's response.
pub fn push_range_entry(body: &mut Vec<u8>, row: &RangeEntry<'_>) {
    debug_assert!(row.value.len() <= MAX_VALUE_LEN);
    push_key(body, row.key);
    body.extend_from_slice(&row.user_flags.to_le_bytes());
    body.extend_from_slice(&row.version.to_le_bytes());
    body.extend_from_slice(&(row.value.len() as u32).to_le_bytes());
    body.extend_from_slice(row.value);
}

/// Walks the records of a range's answer, as many as there are. Ends after the first error.
#[derive(Clone, Debug)]
pub struct RangeEntries<'m> {
    rest: &'m [u8],
    next: u64,
}

impl<'m> RangeEntries<'m> {
    /// The records in `body`.
    pub const fn new(body: &'m [u8]) -> RangeEntries<'m> {
        RangeEntries { rest: body, next: 0 }
    }

    fn first(&self) -> Result<(RangeEntry<'m>, &'m [u8]), BodyDecodeError> {
        let (key, rest) = split_length_prefixed(self.rest, self.next, MAX_KEY_LEN)?;
        let (head, rest) = rest.split_first_chunk::<12>().ok_or(BodyDecodeError::Short(self.next))?;
        let (value, rest) = split_length_prefixed(rest, self.next, MAX_VALUE_LEN)?;
        Ok((RangeEntry { key, user_flags: u32_at(head, 0), version: u64_at(head, 4), value }, rest))
    }
}

impl<'m> Iterator for RangeEntries<'m> {
    type Item = Result<RangeEntry<'m>, BodyDecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.first();
        self.rest = taken.map_or(&[][..], |(_, rest)| rest);
        self.next += 1;
        Some(taken.map(|(row, _)| row))
    }
}

/// The prefix of the value of a put with [`OP_FLAG_TTL`]: milliseconds until the record expires.
pub const fn ttl_prefix(ttl_ms: u64) -> [u8; 8] {
    ttl_ms.to_le_bytes()
}

/// The time to live (if it has one) and the value of a put.
///
/// # Errors
/// [`BodyDecodeError::Short`] if the flag is set and no time is there.
pub fn split_ttl<'m>(put: &Operation<'m>) -> Result<(Option<u64>, &'m [u8]), BodyDecodeError> {
    if put.flags & OP_FLAG_TTL == 0 {
        return Ok((None, put.value));
    }
    let (head, value) = put.value.split_first_chunk::<8>().ok_or(BodyDecodeError::Short(0))?;
    Ok((Some(u64::from_le_bytes(*head)), value))
}

/// The answer to a hello, beside its number (the worker that serves this port).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloResponse {
    /// Workers of the server: worker w serves the UDP port base + w.
    pub workers: u32,
    /// The tenant's home worker.
    pub home: u32,
}

impl HelloResponse {
    /// The answer's value.
    pub fn encode(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.workers.to_le_bytes());
        bytes[4..].copy_from_slice(&self.home.to_le_bytes());
        bytes
    }

    /// Reads an answer's value.
    ///
    /// # Errors
    /// [`BodyDecodeError`] if it has not 8 bytes.
    pub fn decode(value: &[u8]) -> Result<HelloResponse, BodyDecodeError> {
        let (head, rest) = value.split_first_chunk::<8>().ok_or(BodyDecodeError::Short(0))?;
        if !rest.is_empty() {
            return Err(BodyDecodeError::Trailing(rest.len()));
        }
        Ok(HelloResponse { workers: u32_at(head, 0), home: u32_at(head, 4) })
    }
}
