//! Writes of many records within a transaction: their cache misses overlap.

use alloc::vec::Vec;

use super::Transaction;
use super::log::LoggedValue;
use crate::Error;
use crate::abi::MAX_CALL_KEYS;
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
