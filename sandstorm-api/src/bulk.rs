//! Writes of many records, a few at a time: their cache misses overlap, and others run in between.

use alloc::vec::Vec;

use crate::Error;
use crate::abi::MAX_CALL_KEYS;
use crate::db::{Db, UNCONDITIONAL};
use crate::keys::Direction;
use crate::record::TableId;

impl Db<'_> {
    /// Writes many records, one after the other. All their cache misses overlap, 32 at a time; others run in between.
    ///
    /// It is no transaction: the first that is refused ends it, and those before it are written. For all or none, see
    /// [`Db::transaction`].
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Stores `key=value`, one a line.
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let lines = core::str::from_utf8(args)?.lines();
    ///     let entries: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once('=')).collect();
    ///     db.put_many(db.table("settings")?, &entries).await
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let settings = store.table("settings");
    /// assert_eq!(store.invoke(run, b"a=1\nb=2"), Ok(vec![]));
    /// assert_eq!(store.get(settings, b"b"), Some(&b"2"[..]));
    /// ```
    ///
    /// # Errors
    /// As [`Db::put`], with the number of the entry that was refused.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        table: TableId,
        entries: &[(K, V)],
    ) -> Result<(), Error> {
        for (part, chunk) in entries.chunks(MAX_CALL_KEYS).enumerate() {
            let keys: Vec<&[u8]> = chunk.iter().map(|(key, _)| key.as_ref()).collect();
            self.prefetch_chunk(table, &keys).await?;
            for (index, (key, (_, value))) in keys.iter().zip(chunk).enumerate() {
                let written = self.host.put(table.0, key, value.as_ref(), &UNCONDITIONAL);
                written.map_err(|error| error.at_entry(part * MAX_CALL_KEYS + index, entries.len()))?;
            }
        }
        Ok(())
    }

    /// Deletes many records, one after the other, as [`Db::put_many`] writes them; returns how many there were.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let keys: Vec<&[u8]> = args.split(|byte| *byte == b' ').collect();
    ///     let deleted = db.delete_many(db.table("settings")?, &keys).await?;
    ///     db.reply(deleted.to_string().as_bytes())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let settings = store.table("settings");
    /// store.put(settings, b"a", b"1");
    /// assert_eq!(store.invoke(run, b"a b"), Ok(b"1".to_vec()));
    /// ```
    ///
    /// # Errors
    /// As [`Db::delete`], with the number of the key.
    pub async fn delete_many<K: AsRef<[u8]>>(&self, table: TableId, keys: &[K]) -> Result<usize, Error> {
        let mut deleted = 0;
        for (part, chunk) in keys.chunks(MAX_CALL_KEYS).enumerate() {
            let chunk: Vec<&[u8]> = chunk.iter().map(AsRef::as_ref).collect();
            self.prefetch_chunk(table, &chunk).await?;
            for (index, key) in chunk.iter().enumerate() {
                let was = self.host.delete(table.0, key, &UNCONDITIONAL);
                deleted += usize::from(was.map_err(|error| error.at_entry(part * MAX_CALL_KEYS + index, keys.len()))?);
            }
        }
        Ok(deleted)
    }

    /// Deletes the records of an ordered table with `from <= key < to` (empty `to`: to the end of the table), the
    /// smallest keys first and at most `limit`; returns how many. If it is fewer than `limit`, nothing was left.
    ///
    /// It works in steps of 32 keys, between which others run. Each deleted record costs about a microsecond of the
    /// invocation's budget; so for a large range ask for some thousands a call, and call again. Records that are added
    /// meanwhile behind the place that it has come to are deleted, too.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Drops the events of up to 1,000 keys before `args`.
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let dropped = db.delete_range(db.table("events")?, b"", args, 1_000).await?;
    ///     db.reply(dropped.to_string().as_bytes())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let events = store.ordered_table("events");
    /// for day in ["2024", "2025", "2026"] {
    ///     store.put(events, day.as_bytes(), b"");
    /// }
    /// assert_eq!(store.invoke(run, b"2026"), Ok(b"2".to_vec()));
    /// assert_eq!(store.len(events), 1);
    /// ```
    ///
    /// # Errors
    /// As [`Db::range_keys`], but for the limit, which may be anything; as [`Db::delete`].
    pub async fn delete_range(&self, table: TableId, from: &[u8], to: &[u8], limit: usize) -> Result<usize, Error> {
        let (mut from, mut deleted) = (from.to_vec(), 0);
        while deleted < limit {
            let step = MAX_CALL_KEYS.min(limit - deleted);
            let keys = self.range_keys(table, &from, to, step, Direction::Forward).await?;
            let keys: Vec<&[u8]> = keys.iter().collect();
            deleted += self.delete_many(table, &keys).await?;
            match keys.last() {
                Some(last) if keys.len() == step => from = [last, &[0][..]].concat(),
                _ => break,
            }
        }
        Ok(deleted)
    }

    /// Prefetches what the keys of a chunk, of [`MAX_CALL_KEYS`] at most, are about to change.
    async fn prefetch_chunk(&self, table: TableId, keys: &[&[u8]]) -> Result<(), Error> {
        let mut hashes = [0; MAX_CALL_KEYS];
        let hashes = &mut hashes[..keys.len()];
        self.host.prefetch_many(table.0, keys, hashes)?;
        self.give_way().await;
        self.host.prefetch_records(table.0, hashes);
        self.give_way().await;
        Ok(())
    }
}
