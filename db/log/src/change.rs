//! Changes, and units of them, as bytes.
//!
//! ```text
//! unit:   body_bytes u32 | changes u32 | change, change, …
//! change: kind u8 | zero u8, u16 | key_bytes u32 | value_bytes u32 | flags u32 | table u64 | version u64
//!         | expires_at_ms u64 | key | value
//! ```
//! Numbers are little-endian. A deletion with an `expires_at_ms` is an expiry: programs that do not know these take it
//! for a deletion, which it is as well. A unit happens as a whole: all of its changes are in the log, or none.

use crate::limits::{CHANGE_KEY_BYTES, UNIT_BYTES};

/// Bytes before a unit's changes.
pub const UNIT_HEADER_BYTES: usize = 8;
/// Bytes of a change before its key.
pub const CHANGE_HEADER_BYTES: usize = 40;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The key has this record from here on.
    Put,
    /// The key has no record from here on.
    Delete,
    /// The table has no record of this version or a lower one.
    Clear,
    /// The table was made; the key is its name, for people.
    MakeTable,
    /// The table was dropped.
    DropTable,
    /// The key has no record from here on, since its time was over.
    Expire,
    /// The key has this record from here on: it has come from another server of the cluster. Followers of a table's
    /// changes are not shown it.
    Arrive,
    /// The key has no record here from here on, since its slot is another server's. As above, no change of the table.
    Leave,
}

impl ChangeKind {
    const ALL: [ChangeKind; 7] = [
        ChangeKind::Put,
        ChangeKind::Delete,
        ChangeKind::Clear,
        ChangeKind::MakeTable,
        ChangeKind::DropTable,
        ChangeKind::Arrive,
        ChangeKind::Leave,
    ];

    fn number(self) -> u8 {
        match self {
            ChangeKind::Expire => ChangeKind::Delete.number(),
            kind => kind as u8 + 1,
        }
    }

    fn from_number(number: u8, expires_at_ms: u64) -> Option<ChangeKind> {
        let kind = ChangeKind::ALL.into_iter().find(|kind| kind.number() == number)?;
        Some(if kind == ChangeKind::Delete && expires_at_ms != 0 { ChangeKind::Expire } else { kind })
    }

    /// Returns its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            ChangeKind::Put => "put",
            ChangeKind::Delete => "delete",
            ChangeKind::Clear => "clear",
            ChangeKind::MakeTable => "make-table",
            ChangeKind::DropTable => "drop-table",
            ChangeKind::Expire => "expire",
            ChangeKind::Arrive => "arrive",
            ChangeKind::Leave => "leave",
        }
    }
}

/// One change of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedChange<'a> {
    /// Its kind.
    pub kind: ChangeKind,
    /// The table, by its number in the log.
    pub table: u64,
    /// The version of the record, or of the deletion; the highest one of a table that was emptied.
    pub version: u64,
    /// Milliseconds since the Unix epoch from which on the record counts as absent; 0: never. Of an expiry: when that
    /// was.
    pub expires_at_ms: u64,
    /// The flags of the record. Of a table that was made, at the beginning of its part of a checkpoint: about how many
    /// records it has there, or 0.
    pub flags: u32,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl<'a> LoggedChange<'a> {
    /// A deletion.
    pub fn delete(table: u64, version: u64, key: &'a [u8]) -> LoggedChange<'a> {
        LoggedChange { kind: ChangeKind::Delete, table, version, expires_at_ms: 0, flags: 0, key, value: b"" }
    }

    /// The end of a record whose time was over; `expires_at_ms` is not 0.
    pub fn expire(table: u64, version: u64, key: &'a [u8], expires_at_ms: u64) -> LoggedChange<'a> {
        LoggedChange { kind: ChangeKind::Expire, expires_at_ms, ..LoggedChange::delete(table, version, key) }
    }

    /// A change of a whole table: it was emptied, made or dropped.
    pub fn of_table(kind: ChangeKind, table: u64, version: u64, name: &'a [u8]) -> LoggedChange<'a> {
        LoggedChange { kind, table, version, expires_at_ms: 0, flags: 0, key: name, value: b"" }
    }

    /// Returns the bytes that it takes in a unit.
    pub fn encoded_bytes(&self) -> usize {
        change_bytes(self.key.len(), self.value.len())
    }

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&[self.kind.number(), 0, 0, 0]);
        into.extend_from_slice(&(self.key.len() as u32).to_le_bytes());
        into.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
        into.extend_from_slice(&self.flags.to_le_bytes());
        into.extend_from_slice(&self.table.to_le_bytes());
        into.extend_from_slice(&self.version.to_le_bytes());
        into.extend_from_slice(&self.expires_at_ms.to_le_bytes());
        into.extend_from_slice(self.key);
        into.extend_from_slice(self.value);
    }

    /// Reads a change from the front of `bytes`; returns it and the rest.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<(LoggedChange<'a>, &'a [u8])> {
        let (header, rest) = bytes.split_at_checked(CHANGE_HEADER_BYTES)?;
        if header[1..4] != [0, 0, 0] {
            return None;
        }
        let (key_bytes, value_bytes) = (u32_at(header, 4)? as usize, u32_at(header, 8)? as usize);
        if key_bytes > CHANGE_KEY_BYTES || value_bytes > UNIT_BYTES {
            return None;
        }
        let (key, rest) = rest.split_at_checked(key_bytes)?;
        let (value, rest) = rest.split_at_checked(value_bytes)?;
        let flags = u32_at(header, 12)?;
        let (table, version, expires_at_ms) = (u64_at(header, 16)?, u64_at(header, 24)?, u64_at(header, 32)?);
        let kind = ChangeKind::from_number(header[0], expires_at_ms)?;
        Some((LoggedChange { kind, table, version, expires_at_ms, flags, key, value }, rest))
    }
}

/// Returns the bytes that a change with a key and a value of these lengths takes in a unit.
pub fn change_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    CHANGE_HEADER_BYTES + key_bytes + value_bytes
}

/// Returns the bytes that such a change takes in the log at most: those of a unit of its own.
pub fn single_unit_bytes(key_bytes: usize, value_bytes: usize) -> u64 {
    (UNIT_HEADER_BYTES + change_bytes(key_bytes, value_bytes)) as u64
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Builds a unit.
#[derive(Clone, Debug, Default)]
pub struct UnitBuilder {
    bytes: Vec<u8>,
    changes: u32,
    /// The bits of its changes' tables: see [`table_bit`].
    tables: u64,
}

impl UnitBuilder {
    /// Adds a change.
    pub fn push(&mut self, change: &LoggedChange<'_>) {
        if self.bytes.is_empty() {
            self.bytes.resize(UNIT_HEADER_BYTES, 0);
        }
        change.encode(&mut self.bytes);
        self.changes += 1;
        self.tables |= table_bit(change.table);
    }

    /// The bits of its changes' tables: see [`table_bit`].
    pub(crate) fn tables(&self) -> u64 {
        self.tables
    }

    /// Returns whether there is no change in it.
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }

    /// Returns the encoded unit; empty if there is no change in it. The builder is empty after [`UnitBuilder::clear`].
    pub fn encoded(&mut self) -> &[u8] {
        let header = unit_header(self.bytes.len().saturating_sub(UNIT_HEADER_BYTES), self.changes);
        if let Some(first) = self.bytes.first_chunk_mut::<UNIT_HEADER_BYTES>() {
            *first = header;
        }
        &self.bytes
    }

    /// Returns the bytes of the encoded unit so far; 0 if there is no change in it.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the encoded unit with its memory, and empties the builder.
    pub fn take(&mut self) -> Vec<u8> {
        self.encoded();
        (self.changes, self.tables) = (0, 0);
        std::mem::take(&mut self.bytes)
    }

    /// Returns the encoded unit with its memory, as [`UnitBuilder::take`], and goes on in memory that was used before.
    pub fn take_and_reuse(&mut self, mut memory: Vec<u8>) -> Vec<u8> {
        memory.clear();
        let taken = self.take();
        self.bytes = memory;
        taken
    }

    /// Empties it; keeps up to `kept` bytes of memory.
    pub fn clear(&mut self, kept: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(kept);
        (self.changes, self.tables) = (0, 0);
    }
}

fn unit_header(body_bytes: usize, changes: u32) -> [u8; UNIT_HEADER_BYTES] {
    (u64::from(changes) << 32 | u64::from(body_bytes as u32)).to_le_bytes()
}

/// The bit of a table in a set of tables of which several may have the same one: one word says for most that they are
/// not in the set.
pub(crate) const fn table_bit(table: u64) -> u64 {
    1 << (table % u64::BITS as u64)
}

/// Appends a unit of one change.
pub(crate) fn encode_single(change: &LoggedChange<'_>, into: &mut Vec<u8>) {
    into.extend_from_slice(&unit_header(change.encoded_bytes(), 1));
    change.encode(into);
}

/// The start of a stream of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitParse<'a> {
    /// A whole unit: its changes, and its bytes in the stream.
    Unit(UnitChanges<'a>, usize),
    /// The stream ends within it.
    Incomplete,
    /// No unit begins like this.
    Malformed,
}

/// The changes of a unit, which was found whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitChanges<'a> {
    body: &'a [u8],
    count: u32,
}

impl UnitChanges<'_> {
    /// Returns the number of the changes.
    pub fn changes(&self) -> u64 {
        u64::from(self.count)
    }
}

impl<'a> Iterator for UnitChanges<'a> {
    type Item = LoggedChange<'a>;

    fn next(&mut self) -> Option<LoggedChange<'a>> {
        let (change, rest) = LoggedChange::decode(self.body)?;
        self.body = rest;
        self.count = self.count.saturating_sub(1);
        Some(change)
    }
}

/// Reads the unit at the front of `bytes`. All of its changes are looked at before one is shown.
pub fn parse_unit(bytes: &[u8]) -> UnitParse<'_> {
    let (Some(body_bytes), Some(count)) = (u32_at(bytes, 0), u32_at(bytes, 4)) else { return UnitParse::Incomplete };
    let body_bytes = body_bytes as usize;
    if body_bytes > UNIT_BYTES || count == 0 || count as usize > body_bytes / CHANGE_HEADER_BYTES {
        return UnitParse::Malformed;
    }
    let Some(body) = bytes.get(UNIT_HEADER_BYTES..UNIT_HEADER_BYTES + body_bytes) else {
        return UnitParse::Incomplete;
    };
    let mut rest = body;
    for _ in 0..count {
        let Some((_, behind)) = LoggedChange::decode(rest) else { return UnitParse::Malformed };
        rest = behind;
    }
    if rest.is_empty() {
        UnitParse::Unit(UnitChanges { body, count }, UNIT_HEADER_BYTES + body_bytes)
    } else {
        UnitParse::Malformed
    }
}
