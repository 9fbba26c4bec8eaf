//! Writes of many records within a transaction: their cache misses overlap.

use alloc::vec::Vec;

use super::Transaction;
use super::log::LoggedValue;
use crate::Error;
use crate::abi::MAX_CALL_KEYS;
use crate::keys::Direction;
use crate::limits::TRANSACTION_WRITES;
use crate::record::TableId;

impl Transaction<'_> {
    /// Writes many records when the transaction is committed: with everything else that it writes, or not at all.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Stores `key=value`, one a line: all lines, or none.
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let lines = core::str::from_utf8(args)?.lines();
    ///     let entries = lines.map(|line| line.split_once('=').ok_or(Error::invalid("no `=`")));
    ///     let entries = entries.collect::<Result<Vec<(&str, &str)>, Error>>()?;
    ///     db.transaction().put_many(db.table("settings")?, &entries)
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let settings = store.table("settings");
    /// assert_eq!(store.invoke(run, b"a=1\nb=2"), Ok(vec![]));
    /// assert_eq!(store.get(settings, b"b"), Some(&b"2"[..]));
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::put`], with the number of the entry: those before it are noted, and written if the call ends
    /// well all the same.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(&self, table: TableId, entries: &[(K, V)]) -> Result<(), Error> {
        for (part, chunk) in entries.chunks(MAX_CALL_KEYS).enumerate() {
            let keys: Vec<&[u8]> = chunk.iter().map(|(key, _)| key.as_ref()).collect();
            let mut hashes = [0; MAX_CALL_KEYS];
            self.host.prefetch_many(table.0, &keys, &mut hashes)?;
            for (index, ((key, value), hash)) in chunk.iter().zip(hashes).enumerate() {
                let written = self.log_put(table, hash, (key.as_ref(), value.as_ref()), (0, 0));
                written.map_err(|error| error.of_entry(part * MAX_CALL_KEYS + index, entries.len()))?;
            }
        }
        Ok(())
    }

    /// Deletes many records when the transaction is committed; returns how many there are, which counts as a read of
    /// each. A key that is given twice is there once.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Gives back seats, if all of them were taken.
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let seats: Vec<&[u8]> = args.split(|byte| *byte == b' ').collect();
    ///     match db.transaction().delete_many(db.table("seats")?, &seats).await? {
    ///         there if there == seats.len() => Ok(()),
    ///         _ => Err(Error::not_found("not all of them are taken")),
    ///     }
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let seats = store.table("seats");
    /// store.put(seats, b"4a", b"ann");
    /// assert!(store.invoke(run, b"4a 4b").is_err());
    /// assert!(store.get(seats, b"4a").is_some());
    /// assert_eq!(store.invoke(run, b"4a"), Ok(vec![]));
    /// assert!(store.get(seats, b"4a").is_none());
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`], and as [`Transaction::put`] with the number of the key.
    pub async fn delete_many<K: AsRef<[u8]>>(&self, table: TableId, keys: &[K]) -> Result<usize, Error> {
        self.get_many(table, keys).await?;
        let mut deleted = 0;
        for (part, chunk) in keys.chunks(MAX_CALL_KEYS).enumerate() {
            let mut hashes = [0; MAX_CALL_KEYS];
            self.host.prefetch_many(table.0, chunk, &mut hashes)?;
            for (index, (key, hash)) in chunk.iter().zip(hashes).enumerate() {
                let key = key.as_ref();
                deleted += usize::from(self.known(table, hash, key).flatten().is_some());
                let mut notes = self.notes.borrow_mut();
                let written = notes.check_write(table, hash, key, 0);
                written.map_err(|error| error.of_entry(part * MAX_CALL_KEYS + index, keys.len()))?;
                notes.write(table, hash, key, None);
            }
        }
        Ok(deleted)
    }

    /// Deletes the records of an ordered table with `from <= key < to` (empty `to`: to the end of the table), the
    /// smallest keys first and at most `limit`, when the transaction is committed; returns how many. If it is fewer
    /// than `limit`, nothing is left: at the commit too, since a record that came into the range conflicts. The
    /// transaction's own writes are seen.
    ///
    /// The records are read as [`Transaction::range`] reads them, and each is one of the [`TRANSACTION_WRITES`] keys
    /// that a transaction may write. [`Db::delete_range`](crate::Db::delete_range) has no such bound, and deletes step
    /// by step.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Empties a cart into an order: what is put into the cart meanwhile is not lost.
    /// async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    ///     let (carts, orders, tx) = (db.table("carts")?, db.table("orders")?, db.transaction());
    ///     let articles = tx.delete_range(carts, b"ann:", b"ann;", 100).await?;
    ///     tx.put(orders, b"ann", articles.to_string().as_bytes())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let (carts, orders) = (store.ordered_table("carts"), store.table("orders"));
    /// for key in ["ann:tea", "ann:milk", "bob:tea"] {
    ///     store.put(carts, key.as_bytes(), b"1");
    /// }
    /// assert_eq!(store.invoke(run, b""), Ok(vec![]));
    /// assert_eq!(store.get(orders, b"ann"), Some(&b"2"[..]));
    /// assert_eq!(store.len(carts), 1);
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::range`], but for the limit, which may be anything; `TooLarge` when these deletes are more than
    /// a transaction may write, and then none of them is noted.
    pub async fn delete_range(&self, table: TableId, from: &[u8], to: &[u8], limit: usize) -> Result<usize, Error> {
        if limit == 0 {
            return Ok(0);
        }
        // One more than may be written: that there are so many is all that has to be known.
        let records = self.range(table, from, to, limit.min(TRANSACTION_WRITES + 1), Direction::Forward).await?;
        let keys: Vec<&[u8]> = records.iter().map(|record| record.key()).collect();
        let mut hashes = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(MAX_CALL_KEYS) {
            let mut some = [0; MAX_CALL_KEYS];
            self.host.prefetch_many(table.0, chunk, &mut some)?;
            hashes.extend_from_slice(&some[..chunk.len()]);
        }
        let mut notes = self.notes.borrow_mut();
        notes.check_deletes(table, &keys, &hashes)?;
        keys.iter().zip(hashes).for_each(|(key, hash)| notes.write(table, hash, key, None));
        Ok(keys.len())
    }

    /// Notes a write of a record, with its flags and the time at which it expires.
    pub(super) fn log_put(
        &self,
        table: TableId,
        hash: u64,
        (key, value): (&[u8], &[u8]),
        (flags, expires_at_ms): (u32, u64),
    ) -> Result<(), Error> {
        let mut notes = self.notes.borrow_mut();
        notes.check_write(table, hash, key, value.len())?;
        let value = notes.keeper.copy(value);
        notes.write(table, hash, key, Some(LoggedValue { value, flags, expires_at_ms }));
        Ok(())
    }
}
