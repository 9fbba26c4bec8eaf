//! Transactions: what an invocation reads is so, and what it writes is made, at one moment, when it ends well.
//!
//! Here is what a transaction remembers, in the invocation's own memory; the host learns of it when it is to be
//! committed. A transaction knows versions and shows none.

use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::cell::RefCell;

mod range;

use crate::abi::{CHANGE_DELETE, CHANGE_PUT, MAX_CALL_KEYS, RawChange, RawRead, RawRow, STATUS_NOT_A_NUMBER};
use crate::host::{HostHandle, InvocationBytes, OwnedCopies};
use crate::limits::{TRANSACTION_BYTES, TRANSACTION_READS, TRANSACTION_WRITES};
use crate::{Error, Record, TableId, yield_now};

/// An invocation's transaction; see [`Db::transaction`](crate::Db::transaction). Copy it freely.
#[derive(Clone, Copy)]
pub struct Transaction<'a> {
    host: HostHandle<'a>,
    notes: &'a RefCell<TransactionLog>,
}

/// A record as a transaction sees it: as it was when it first read it, or as the transaction has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    key: &'a [u8],
    value: &'a [u8],
    flags: u32,
}

impl<'a> Seen<'a> {
    /// The key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The value.
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// The flags that the writer stored.
    pub fn flags(&self) -> u32 {
        self.flags
    }
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(host: HostHandle<'a>) -> Transaction<'a> {
        Transaction { host, notes: host.notes() }
    }

    /// Reads a record: `None` when there is none under `key`. Finds what the transaction itself has written, and the
    /// same each time. Awaiting hides the cache misses.
    ///
    /// # Errors
    /// As [`Db::get`](crate::Db::get); `TooLarge` when the transaction has read [`TRANSACTION_READS`] keys, or keys of
    /// [`TRANSACTION_BYTES`].
    pub async fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Seen<'a>>, Error> {
        let hash = self.host.prefetch(table.0, key)?;
        if let Some(known) = self.known(table, hash, key) {
            return Ok(known);
        }
        if self.host.interleave() {
            // Meanwhile the server prefetches the record as well.
            yield_now().await;
            // Another future of the same transaction may have read or written it meanwhile.
            if let Some(known) = self.known(table, hash, key) {
                return Ok(known);
            }
        }
        self.read(table, hash, key)
    }

    /// Reads many records at once, each `None` when absent, in the order of `keys`. All their cache misses overlap.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn get_many<K: AsRef<[u8]>>(&self, table: TableId, keys: &[K]) -> Result<Vec<Option<Seen<'a>>>, Error> {
        let mut hashes = vec![0; keys.len()];
        for (keys, hashes) in keys.chunks(MAX_CALL_KEYS).zip(hashes.chunks_mut(MAX_CALL_KEYS)) {
            self.host.prefetch_many(table.0, keys, hashes)?;
        }
        if self.host.interleave() {
            yield_now().await;
        }
        hashes.chunks(MAX_CALL_KEYS).for_each(|hashes| self.host.prefetch_records(table.0, hashes));
        if self.host.interleave() {
            yield_now().await;
        }
        let mut records = Vec::with_capacity(keys.len());
        for (key, hash) in keys.iter().zip(hashes) {
            records.push(match self.known(table, hash, key.as_ref()) {
                Some(known) => known,
                None => self.read(table, hash, key.as_ref())?,
            });
        }
        Ok(records)
    }

    /// Writes a record when the transaction is committed.
    ///
    /// # Errors
    /// `UnknownTable`; `TooLarge` when the transaction writes more than [`TRANSACTION_WRITES`] keys or
    /// [`TRANSACTION_BYTES`]. What stands in the way of the write itself ends the invocation: see
    /// [`Db::transaction`](crate::Db::transaction).
    pub fn put(&self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.put_with(table, key, value, 0, 0)
    }

    /// The same with flags, and milliseconds from now after which the record expires (0: never).
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put_with(
        &self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expires_in_ms: u64,
    ) -> Result<(), Error> {
        let expires_at_ms = if expires_in_ms == 0 { 0 } else { self.host.now_ms().saturating_add(expires_in_ms) };
        let hash = self.host.prefetch(table.0, key)?;
        let mut notes = self.notes.borrow_mut();
        notes.check_write(table, hash, key, value.len())?;
        let value = notes.keeper.copy(value);
        notes.write(table, hash, key, Some(LoggedValue { value, flags, expires_at_ms }));
        Ok(())
    }

    /// Deletes a record when the transaction is committed; tells whether there is one, which counts as a read.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::put`].
    pub async fn delete(&self, table: TableId, key: &[u8]) -> Result<bool, Error> {
        let was = self.get(table, key).await?.is_some();
        let hash = self.host.prefetch(table.0, key)?;
        let mut notes = self.notes.borrow_mut();
        notes.check_write(table, hash, key, 0)?;
        notes.write(table, hash, key, None);
        Ok(was)
    }

    /// Adds `delta` to the decimal number under `key` (0 when absent) when the transaction is committed; tells the sum.
    /// Counts as a read and a write: the transaction's own writes are seen, and whoever else adds to the number
    /// meanwhile has `run` begin anew.
    ///
    /// The record keeps its flags. An expiry it keeps only if the transaction has written it itself: what the table's
    /// record has is not known here, and a transaction's write replaces it. [`Db::increment`](crate::Db::increment)
    /// keeps it.
    ///
    /// # Errors
    /// `NotANumber` when the value is none or the sum overflows; as [`Transaction::get`] and [`Transaction::put`].
    pub async fn increment(&self, table: TableId, key: &[u8], delta: i64) -> Result<i64, Error> {
        let found = self.get(table, key).await?;
        let number = found.map_or(Some(0), |record| parse_decimal(record.value()));
        let sum = number.and_then(|number| number.checked_add(delta));
        let sum = sum.ok_or_else(|| Error::from_status(STATUS_NOT_A_NUMBER))?;
        let text = sum.to_string();
        let hash = self.host.prefetch(table.0, key)?;
        let mut notes = self.notes.borrow_mut();
        notes.check_write(table, hash, key, text.len())?;
        let value = notes.keeper.copy(text.as_bytes());
        let expires_at_ms = notes.own_expiry(table, hash, key).filter(|_| found.is_some()).unwrap_or(0);
        let flags = found.map_or(0, |record| record.flags());
        notes.write(table, hash, key, Some(LoggedValue { value, flags, expires_at_ms }));
        Ok(sum)
    }

    /// What the transaction knows of a key, if anything.
    fn known(&self, table: TableId, hash: u64, key: &[u8]) -> Option<Option<Seen<'a>>> {
        let notes = self.notes.borrow();
        let note = &notes.list[notes.find(table, hash, key)?];
        let stored = match (&note.written, &note.read) {
            (Some(written), _) => written.filter(|stored| stored.is_live_at(self.host.now_ms())),
            (None, Some(read)) => read.stored,
            (None, None) => return None,
        };
        Some(stored.map(|stored| Seen {
            key: self.host.kept(note.key),
            value: self.host.kept(stored.value),
            flags: stored.flags,
        }))
    }

    /// Reads what the transaction does not know yet.
    fn read(&self, table: TableId, hash: u64, key: &[u8]) -> Result<Option<Seen<'a>>, Error> {
        if self.notes.borrow().reads >= TRANSACTION_READS {
            return Err(Error::too_large(format!("a transaction may read {TRANSACTION_READS} keys")));
        }
        if self.notes.borrow().read_bytes + key.len() > TRANSACTION_BYTES {
            return Err(Error::too_large(format!("a transaction may read keys of {TRANSACTION_BYTES} bytes together")));
        }
        let record = self.host.get(table.0, hash, key)?;
        self.notes.borrow_mut().log_read(table, hash, key, record);
        Ok(record.map(|record| Seen { key: record.key, value: record.value, flags: record.flags }))
    }
}

/// A decimal number in ASCII, as the server reads it: an optional minus and digits, nothing else.
pub(crate) fn parse_decimal(text: &[u8]) -> Option<i64> {
    if text.first() == Some(&b'+') {
        return None;
    }
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// What a transaction remembers.
#[derive(Default)]
pub(crate) struct TransactionLog {
    list: Vec<LoggedKey>,
    /// By table and hash, the last note of those.
    index: BTreeMap<(u64, u64), usize>,
    reads: usize,
    /// Bytes of the keys that it has read.
    read_bytes: usize,
    writes: usize,
    /// Bytes that it writes.
    bytes: usize,
    ranges: Vec<range::LoggedRange>,
    /// What was met in all ranges.
    rows: Vec<RawRow>,
    /// Bytes of the keys of rows, and of the ends of ranges.
    row_bytes: usize,
    keeper: OwnedCopies,
}

/// What a transaction remembers of a key.
struct LoggedKey {
    table: u64,
    hash: u64,
    key: InvocationBytes,
    read: Option<LoggedRead>,
    /// `Some(None)`: it is to be deleted.
    written: Option<Option<LoggedValue>>,
    /// The note before of the same table and hash: another key.
    before: Option<usize>,
}

struct LoggedRead {
    version: u64,
    stored: Option<LoggedValue>,
}

#[derive(Clone, Copy)]
struct LoggedValue {
    value: InvocationBytes,
    flags: u32,
    expires_at_ms: u64,
}

impl LoggedValue {
    fn is_live_at(&self, now_ms: u64) -> bool {
        self.expires_at_ms == 0 || now_ms < self.expires_at_ms
    }
}

impl LoggedKey {
    /// Bytes of it that are to be written.
    fn bytes(&self) -> usize {
        let value = |stored: &Option<LoggedValue>| stored.map_or(0, |stored| stored.value.len());
        self.written.as_ref().map_or(0, |written| self.key.len() + value(written))
    }
}

impl TransactionLog {
    fn find(&self, table: TableId, hash: u64, key: &[u8]) -> Option<usize> {
        let mut at = self.index.get(&(table.0, hash)).copied();
        while let Some(index) = at {
            if self.keeper.bytes(self.list[index].key) == key {
                break;
            }
            at = self.list[index].before;
        }
        at
    }

    fn note(&mut self, table: TableId, hash: u64, key: InvocationBytes) -> &mut LoggedKey {
        let index = self.list.len();
        let before = self.index.insert((table.0, hash), index);
        self.list.push(LoggedKey { table: table.0, hash, key, read: None, written: None, before });
        &mut self.list[index]
    }

    fn log_read(&mut self, table: TableId, hash: u64, key: &[u8], record: Option<Record<'_>>) {
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
        self.note(table, hash, key).read = Some(LoggedRead { version, stored });
    }

    /// When the record expires that the transaction has written under a key.
    fn own_expiry(&self, table: TableId, hash: u64, key: &[u8]) -> Option<u64> {
        let written = self.list[self.find(table, hash, key)?].written??;
        Some(written.expires_at_ms)
    }

    fn check_write(&self, table: TableId, hash: u64, key: &[u8], value_len: usize) -> Result<(), Error> {
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

    fn write(&mut self, table: TableId, hash: u64, key: &[u8], stored: Option<LoggedValue>) {
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

    /// What the host is to look at again.
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

    /// What the host is to change.
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
