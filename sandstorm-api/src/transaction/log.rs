//! The log of a transaction: the keys and ranges that it has read, and its pending writes.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use crate::Error;
use crate::abi::{
    CHANGE_DELETE, CHANGE_PUT, RANGE_COUNTED, RawChange, RawRangeRead, RawRead, RawRow, STATUS_CONTENDED,
};
use crate::invocation_bytes::{InvocationBytes, OwnedCopies};
use crate::keys::Direction;
use crate::limits::{
    TRANSACTION_BYTES, TRANSACTION_RANGES, TRANSACTION_ROW_BYTES, TRANSACTION_ROWS, TRANSACTION_WRITES,
};
use crate::record::{Record, TableId};

/// The log of a transaction.
#[derive(Default)]
pub(crate) struct TransactionLog {
    pub(super) list: Vec<LoggedKey>,
    /// Index of the last note for each table and hash.
    pub(super) index: BTreeMap<(u64, u64), usize>,
    pub(super) reads: usize,
    /// Bytes of the keys that it has read.
    pub(super) read_bytes: usize,
    pub(super) writes: usize,
    /// Bytes that it writes.
    pub(super) bytes: usize,
    pub(super) ranges: Vec<LoggedRange>,
    /// The rows that were met in all ranges.
    pub(super) rows: Vec<RawRow>,
    /// Bytes of the keys of rows, and of the ends of ranges.
    pub(super) row_bytes: usize,
    pub(super) keeper: OwnedCopies,
}

/// A transaction's knowledge of a key.
pub(super) struct LoggedKey {
    pub(super) table: u64,
    pub(super) hash: u64,
    pub(super) key: InvocationBytes,
    pub(super) read: Option<LoggedRead>,
    /// `Some(None)`: it is to be deleted.
    pub(super) written: Option<Option<LoggedValue>>,
    /// The note before of the same table and hash: another key.
    pub(super) before: Option<usize>,
}

pub(super) struct LoggedRead {
    pub(super) version: u64,
    /// The record, once this extension was shown it.
    pub(super) stored: Option<LoggedValue>,
    /// `false`: another extension of the transaction has read it, and the record is not known here.
    pub(super) is_shown: bool,
}

#[derive(Clone, Copy)]
pub(super) struct LoggedValue {
    pub(super) value: InvocationBytes,
    pub(super) flags: u32,
    pub(super) expires_at_ms: u64,
}

impl LoggedValue {
    pub(super) fn is_live_at(&self, now_ms: u64) -> bool {
        self.expires_at_ms == 0 || now_ms < self.expires_at_ms
    }
}

impl LoggedKey {
    /// Bytes of it that are to be written.
    pub(super) fn bytes(&self) -> usize {
        let value = |stored: &Option<LoggedValue>| stored.map_or(0, |stored| stored.value.len());
        self.written.as_ref().map_or(0, |written| self.key.len() + value(written))
    }
}

impl TransactionLog {
    pub(super) fn find(&self, table: TableId, hash: u64, key: &[u8]) -> Option<usize> {
        let mut at = self.index.get(&(table.0, hash)).copied();
        while let Some(index) = at {
            if self.keeper.bytes(self.list[index].key) == key {
                break;
            }
            at = self.list[index].before;
        }
        at
    }

    pub(super) fn note(&mut self, table: TableId, hash: u64, key: InvocationBytes) -> &mut LoggedKey {
        let index = self.list.len();
        let before = self.index.insert((table.0, hash), index);
        self.list.push(LoggedKey { table: table.0, hash, key, read: None, written: None, before });
        &mut self.list[index]
    }

    pub(super) fn log_read(&mut self, table: TableId, hash: u64, key: &[u8], record: Option<Record<'_>>) {
        self.reads += 1;
        self.read_bytes += key.len();
        let key = match record {
            Some(record) => InvocationBytes::record(record.key),
            None => self.keeper.copy(key),
        };
        let stored = record.map(|record| LoggedValue {
            value: InvocationBytes::record(record.value),
            flags: record.flags,
            expires_at_ms: 0,
        });
        let version = record.map_or(0, |record| record.version);
        self.note(table, hash, key).read = Some(LoggedRead { version, stored, is_shown: true });
    }

    /// Notes a record that was read. What another extension of the transaction has read before must be the same record:
    /// if it is not, all begins anew when this one has returned the error.
    pub(super) fn show_read(
        &mut self,
        table: TableId,
        hash: u64,
        key: &[u8],
        record: Option<Record<'_>>,
    ) -> Result<(), Error> {
        let known = self.find(table, hash, key).and_then(|index| self.list[index].read.as_mut());
        let Some(known) = known.filter(|known| !known.is_shown) else {
            self.log_read(table, hash, key, record);
            return Ok(());
        };
        if known.version != record.map_or(0, |record| record.version) {
            return Err(Error::from_status(STATUS_CONTENDED));
        }
        known.is_shown = true;
        known.stored = record.map(|record| LoggedValue {
            value: InvocationBytes::record(record.value),
            flags: record.flags,
            expires_at_ms: 0,
        });
        Ok(())
    }

    /// Returns the expiry of the record that the transaction has written under a key.
    pub(super) fn own_expiry(&self, table: TableId, hash: u64, key: &[u8]) -> Option<u64> {
        let written = self.list[self.find(table, hash, key)?].written??;
        Some(written.expires_at_ms)
    }

    /// Returns what stands under a key for the transaction, as far as it knows: what it has written there, or has read.
    pub(super) fn stored(&self, table: TableId, hash: u64, key: &[u8]) -> Option<LoggedValue> {
        let known = &self.list[self.find(table, hash, key)?];
        known.written.unwrap_or_else(|| known.read.as_ref()?.stored)
    }

    pub(super) fn check_write(&self, table: TableId, hash: u64, key: &[u8], value_len: usize) -> Result<(), Error> {
        let note = self.find(table, hash, key).map(|index| &self.list[index]);
        let is_first = note.is_none_or(|note| note.written.is_none());
        if is_first && self.writes >= TRANSACTION_WRITES {
            return Err(Error::too_large(format!("a transaction may write {TRANSACTION_WRITES} keys")));
        }
        if self.bytes - note.map_or(0, LoggedKey::bytes) + key.len() + value_len > TRANSACTION_BYTES {
            let text = format!("a transaction may write {TRANSACTION_BYTES} bytes of keys and values");
            return Err(Error::too_large(text));
        }
        Ok(())
    }

    /// Checks whether it may delete all of these keys, each of which is given once.
    pub(super) fn check_deletes(&self, table: TableId, keys: &[&[u8]], hashes: &[u64]) -> Result<(), Error> {
        let (mut writes, mut bytes) = (self.writes, self.bytes);
        for (key, hash) in keys.iter().zip(hashes) {
            let note = self.find(table, *hash, key).map(|index| &self.list[index]);
            let written = note.filter(|note| note.written.is_some());
            writes += usize::from(written.is_none());
            bytes = bytes - written.map_or(0, LoggedKey::bytes) + key.len();
        }
        if writes > TRANSACTION_WRITES {
            return Err(Error::too_large(format!(
                "a transaction may write {TRANSACTION_WRITES} keys, and the range has more: delete it by a smaller \
                 limit in several calls, or outside of the transaction"
            )));
        }
        if bytes > TRANSACTION_BYTES {
            let text = format!("a transaction may write {TRANSACTION_BYTES} bytes of keys and values");
            return Err(Error::too_large(text));
        }
        Ok(())
    }

    pub(super) fn write(&mut self, table: TableId, hash: u64, key: &[u8], stored: Option<LoggedValue>) {
        let index = match self.find(table, hash, key) {
            Some(index) => index,
            None => {
                let key = self.keeper.copy(key);
                self.note(table, hash, key);
                self.list.len() - 1
            }
        };
        let note = &mut self.list[index];
        self.bytes -= note.bytes();
        self.writes += usize::from(note.written.is_none());
        note.written = Some(stored);
        self.bytes += note.bytes();
    }

    /// Returns the reads that the host is to check again.
    pub(crate) fn raw_reads(&self) -> Vec<RawRead> {
        let mut reads = Vec::with_capacity(self.reads);
        for note in &self.list {
            if let Some(read) = &note.read {
                let (key, key_len) = note.key.parts();
                reads.push(RawRead { table: note.table, hash: note.hash, key, key_len, version: read.version });
            }
        }
        reads
    }

    /// Returns the changes that the host is to make.
    pub(crate) fn raw_changes(&self) -> Vec<RawChange> {
        let mut changes = Vec::with_capacity(self.writes);
        for note in &self.list {
            let Some(written) = &note.written else { continue };
            let (key, key_len) = note.key.parts();
            let (value, value_len) = written.map_or(note.key, |stored| stored.value).parts();
            changes.push(RawChange {
                table: note.table,
                key,
                key_len,
                value,
                value_len: if written.is_some() { value_len } else { 0 },
                expires_at_ms: written.map_or(0, |stored| stored.expires_at_ms),
                flags: written.map_or(0, |stored| stored.flags),
                kind: if written.is_some() { CHANGE_PUT } else { CHANGE_DELETE },
            });
        }
        changes
    }
}

/// A range that was read, as far as it was shown.
pub(super) struct LoggedRange {
    pub(super) table: u64,
    pub(super) from: InvocationBytes,
    pub(super) to: InvocationBytes,
    /// `to` is part of it.
    pub(super) included: bool,
    pub(super) backward: bool,
    pub(super) met: RangeContent,
}

/// What was met in a range.
pub(super) enum RangeContent {
    /// These among the rows of all ranges.
    Rows(Range<usize>),
    /// So many keys.
    Count(usize),
}

impl TransactionLog {
    /// Checks whether it may read one more range, of so many records, and bytes of their keys and its ends.
    pub(super) fn check_range(&self, rows: usize, bytes: usize) -> Result<(), Error> {
        if self.ranges.len() >= TRANSACTION_RANGES {
            return Err(Error::too_large(format!("a transaction may read {TRANSACTION_RANGES} ranges")));
        }
        if self.rows.len() + rows > TRANSACTION_ROWS {
            return Err(Error::too_large(format!("a transaction may meet {TRANSACTION_ROWS} records in its ranges")));
        }
        if self.row_bytes + bytes > TRANSACTION_ROW_BYTES {
            let text = format!("a transaction may meet keys of {TRANSACTION_ROW_BYTES} bytes in its ranges");
            return Err(Error::too_large(text));
        }
        Ok(())
    }

    /// Notes a range of which everything up to `last` was shown, or everything.
    pub(super) fn log_range(
        &mut self,
        table: TableId,
        (from, to): (&[u8], &[u8]),
        last: Option<&[u8]>,
        direction: Direction,
        records: &[Record<'_>],
    ) {
        let first_row = self.rows.len();
        for record in records {
            let (key, key_len) = InvocationBytes::record(record.key).parts();
            self.rows.push(RawRow { key, key_len, version: record.version });
            self.row_bytes += key_len;
        }
        let (from, to, included) = match (last, direction) {
            // The shown bytes are parts of records or copies, which stay.
            (Some(last), Direction::Forward) => (self.keeper.copy(from), InvocationBytes::record(last), true),
            (Some(last), Direction::Backward) => (InvocationBytes::record(last), self.keeper.copy(to), false),
            (None, _) => (self.keeper.copy(from), self.keeper.copy(to), false),
        };
        self.row_bytes += from.parts().1 + to.parts().1;
        self.ranges.push(LoggedRange {
            table: table.0,
            from,
            to,
            included,
            backward: direction == Direction::Backward,
            met: RangeContent::Rows(first_row..self.rows.len()),
        });
    }

    /// Notes that a range has so many keys.
    pub(super) fn log_count(&mut self, table: TableId, (from, to): (&[u8], &[u8]), count: usize) {
        self.row_bytes += from.len() + to.len();
        let (from, to) = (self.keeper.copy(from), self.keeper.copy(to));
        let met = RangeContent::Count(count);
        self.ranges.push(LoggedRange { table: table.0, from, to, included: false, backward: false, met });
    }

    /// The ranges that the host is to look at again.
    pub(crate) fn raw_ranges(&self) -> Vec<RawRangeRead> {
        let raw = |range: &LoggedRange| {
            let ((from, from_len), (to, to_len)) = (range.from.parts(), range.to.parts());
            let included = u32::from(range.included);
            let (rows, rows_len, backward) = match &range.met {
                RangeContent::Rows(rows) => {
                    let rows = &self.rows[rows.clone()];
                    (rows.as_ptr(), rows.len(), u32::from(range.backward))
                }
                RangeContent::Count(count) => (self.rows.as_ptr(), *count, RANGE_COUNTED),
            };
            RawRangeRead { table: range.table, from, from_len, to, to_len, rows, rows_len, included, backward }
        };
        self.ranges.iter().map(raw).collect()
    }
}
