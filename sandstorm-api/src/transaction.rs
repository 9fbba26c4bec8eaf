//! Transactions: an invocation's reads hold, and its writes are made, at one moment, when it ends well.
//!
//! The transaction's log (`log`) is in the invocation's own memory; the host learns of it when it is to be committed. A
//! transaction knows versions and shows none.

use alloc::string::ToString;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::cell::RefCell;
use core::future::poll_fn;
use core::task::Poll;

mod bulk;
mod count;
mod expiry;
pub(crate) mod log;
mod range;
mod transfer;

use crate::Error;
use crate::abi::MAX_CALL_KEYS;
use crate::host::HostHandle;
use crate::limits::{TRANSACTION_BYTES, TRANSACTION_READS};
use crate::record::TableId;
use crate::typed::{Typed, wrong_record};
use crate::yielding::yield_now;
use log::{LoggedValue, TransactionLog};

/// An invocation's transaction; see [`Db::transaction`](crate::Db::transaction). Copy it freely.
#[derive(Clone, Copy)]
pub struct Transaction<'a> {
    host: HostHandle<'a>,
    notes: &'a RefCell<TransactionLog>,
}

/// A record as a transaction sees it: as it was when it first read it, or as the transaction has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionRecord<'a> {
    key: &'a [u8],
    value: &'a [u8],
    flags: u32,
}

impl<'a> TransactionRecord<'a> {
    /// The key.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let tx = db.transaction();
    /// let key = tx.get(table, b"apple").await?.map(|record| record.key().to_vec());
    /// # Ok(()) }
    /// ```
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The value.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let tx = db.transaction();
    /// let bytes = tx.get(table, b"apple").await?.map_or(0, |record| record.value().len());
    /// # Ok(()) }
    /// ```
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// The flags that the writer stored.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let tx = db.transaction();
    /// let flags = tx.get(table, b"apple").await?.map_or(0, |record| record.flags());
    /// # Ok(()) }
    /// ```
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The value as one of a type of yours; see [`Typed`].
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let record = db.transaction().get(table, b"apple").await?;
    /// let count: u64 = record.ok_or(Error::not_found("no apples"))?.typed()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Invalid`, with the key: it is none.
    pub fn typed<T: Typed>(&self) -> Result<T, Error> {
        T::from_record(self.value).map_err(|error| wrong_record(self.key, &error))
    }
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(host: HostHandle<'a>) -> Transaction<'a> {
        Transaction { host, notes: host.notes() }
    }

    /// Reads a record: `None` when there is none under `key`. It finds the transaction's own writes, and the same
    /// record each time. Awaiting hides the cache misses.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let tx = db.transaction();
    /// let is_there = tx.get(table, b"apple").await?.is_some();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Db::get`](crate::Db::get); `TooLarge` when the transaction has read [`TRANSACTION_READS`] keys, or keys of
    /// [`TRANSACTION_BYTES`].
    pub async fn get(&self, table: TableId, key: &[u8]) -> Result<Option<TransactionRecord<'a>>, Error> {
        let hash = self.host.prefetch(table.0, key)?;
        if let Some(known) = self.known(table, hash, key) {
            return Ok(known);
        }
        if self.host.interleave() {
            // During the yield the server prefetches the record as well.
            yield_now().await;
            // Another future of the same transaction may have read or written it during the yield.
            if let Some(known) = self.known(table, hash, key) {
                return Ok(known);
            }
        }
        poll_fn(|_| self.read(table, hash, key)).await
    }

    /// Reads many records at once, each `None` when absent, in the order of `keys`. All their cache misses overlap.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let tx = db.transaction();
    /// let both = tx.get_many(table, &[b"ann", b"bob"]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        table: TableId,
        keys: &[K],
    ) -> Result<Vec<Option<TransactionRecord<'a>>>, Error> {
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
        poll_fn(|_| self.read_many(table, keys, &hashes)).await
    }

    /// Reads the records that the transaction does not know yet. Those on the disk are read together.
    fn read_many<K: AsRef<[u8]>>(
        &self,
        table: TableId,
        keys: &[K],
        hashes: &[u64],
    ) -> Poll<Result<Vec<Option<TransactionRecord<'a>>>, Error>> {
        let (mut records, mut waits) = (Vec::with_capacity(keys.len()), false);
        for (key, hash) in keys.iter().zip(hashes) {
            match self.known(table, *hash, key.as_ref()) {
                Some(known) => records.push(known),
                None => match self.read(table, *hash, key.as_ref()) {
                    Poll::Ready(record) => records.push(record?),
                    Poll::Pending => waits = true,
                },
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(Ok(records)) }
    }

    /// Writes a record when the transaction is committed.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// db.transaction().put(table, b"apple", b"3")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `UnknownTable`; `TooLarge` when the transaction writes more than `TRANSACTION_WRITES` keys or
    /// [`TRANSACTION_BYTES`]. A refusal of the write itself ends the invocation: see
    /// [`Db::transaction`](crate::Db::transaction).
    pub fn put(&self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.put_with(table, key, value, 0, 0)
    }

    /// The same with flags, and milliseconds from now after which the record expires (0: never).
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let (flags, hour_ms) = (7, 60 * 60 * 1000);
    /// db.transaction().put_with(table, b"apple", b"3", flags, hour_ms)?;
    /// # Ok(()) }
    /// ```
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
        let expires_at_ms = self.expires_at_ms(expires_in_ms);
        let hash = self.host.prefetch(table.0, key)?;
        self.log_put(table, hash, (key, value), (flags, expires_at_ms))
    }

    /// Deletes a record when the transaction is committed; returns whether there is one, which counts as a read.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let was_there = db.transaction().delete(table, b"apple").await?;
    /// # Ok(()) }
    /// ```
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

    /// Adds `delta` to the decimal number under `key` (0 when absent) when the transaction is committed; returns the
    /// sum. Counts as a read and a write: the transaction's own writes are seen. If another request adds to the number
    /// in the meantime, `run` begins anew.
    ///
    /// The record keeps its flags. It keeps an expiry only if the transaction has written it itself: that of the
    /// table's record is not looked up here ([`Transaction::ttl`] does), and a transaction's write replaces it.
    /// [`Db::increment`](crate::Db::increment) keeps it.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let sum = db.transaction().increment(table, b"visits", 1).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `NotANumber` when the value is none or the sum overflows; as [`Transaction::get`] and [`Transaction::put`].
    pub async fn increment(&self, table: TableId, key: &[u8], delta: i64) -> Result<i64, Error> {
        let found = self.get(table, key).await?;
        let number = found.map_or(Some(0), |record| parse_decimal(record.value()));
        let sum = number.and_then(|number| number.checked_add(delta));
        let sum = sum.ok_or_else(|| Error::not_a_number(key))?;
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

    /// Returns what the transaction knows of a key, if anything.
    fn known(&self, table: TableId, hash: u64, key: &[u8]) -> Option<Option<TransactionRecord<'a>>> {
        let notes = self.notes.borrow();
        let note = &notes.list[notes.find(table, hash, key)?];
        let stored = match (&note.written, &note.read) {
            (Some(written), _) => written.filter(|stored| stored.is_live_at(self.host.now_ms())),
            (None, Some(read)) if read.is_shown => read.stored,
            (None, _) => return None,
        };
        Some(stored.map(|stored| TransactionRecord {
            key: self.host.kept(note.key),
            value: self.host.kept(stored.value),
            flags: stored.flags,
        }))
    }

    /// Reads a record that the transaction does not know yet.
    fn read(&self, table: TableId, hash: u64, key: &[u8]) -> Poll<Result<Option<TransactionRecord<'a>>, Error>> {
        if self.notes.borrow().reads >= TRANSACTION_READS {
            let text = format!("a transaction may read {TRANSACTION_READS} keys");
            return Poll::Ready(Err(Error::too_large(text)));
        }
        if self.notes.borrow().read_bytes + key.len() > TRANSACTION_BYTES {
            let text = format!("a transaction may read keys of {TRANSACTION_BYTES} bytes together");
            return Poll::Ready(Err(Error::too_large(text)));
        }
        self.host.get(table.0, hash, key).map(|record| {
            let record = record?;
            self.notes.borrow_mut().show_read(table, hash, key, record)?;
            Ok(record.map(|record| TransactionRecord { key: record.key, value: record.value, flags: record.flags }))
        })
    }
}

/// A decimal number in ASCII, as the server reads it: an optional minus and digits, nothing else.
pub(crate) fn parse_decimal(text: &[u8]) -> Option<i64> {
    if text.first() == Some(&b'+') {
        return None;
    }
    core::str::from_utf8(text).ok()?.parse().ok()
}
