//! Positions in an ordered table: how many keys lie in a range, and which is the n-th.

use alloc::vec::Vec;

use crate::db::Db;
use crate::host::RangeRemainder;
use crate::keys::Direction;
use crate::record::TableId;
use crate::{Error, yield_now};

impl Db<'_> {
    /// Counts the keys of an ordered table with `from <= key < to` (empty `to`: to the end of the table), in
    /// logarithmic time: a few microseconds for a million.
    ///
    /// As in [`Db::range_keys`], no record is looked for: a key counts until its expired record is removed, which takes
    /// some seconds. For a count that holds when the invocation's writes are made, see [`Transaction::count`].
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Replies with the number of players whose names begin with `args`.
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let end = [args, &[0xff]].concat();
    ///     let players = db.count(db.table("players")?, args, &end).await?;
    ///     db.reply(players.to_string().as_bytes())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let players = store.ordered_table("players");
    /// for name in ["ann", "anton", "bea"] {
    ///     store.put(players, name.as_bytes(), b"");
    /// }
    /// assert_eq!(store.invoke(run, b"an"), Ok(b"2".to_vec()));
    /// ```
    ///
    /// # Errors
    /// `Invalid` for a table that is not ordered; `UnknownTable`; `TooLarge` for an end that is longer than a key and a
    /// byte.
    ///
    /// [`Transaction::count`]: crate::Transaction::count
    pub async fn count(&self, table: TableId, from: &[u8], to: &[u8]) -> Result<u64, Error> {
        self.host.count(table.0, &RangeRemainder::new(from, to, Direction::Forward))
    }

    /// Returns the number of keys before `key`, whether or not there is a record under it: its position from the
    /// beginning of the table, from 0. Its position from the end is `db.count(table, key, b"").await? - 1`, if it is
    /// there.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let rank = db.rank(db.table("words")?, args).await?;
    ///     db.reply(rank.to_string().as_bytes())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let words = store.ordered_table("words");
    /// store.put(words, b"sand", b"");
    /// store.put(words, b"storm", b"");
    /// assert_eq!(store.invoke(run, b"storm"), Ok(b"1".to_vec()));
    /// ```
    ///
    /// # Errors
    /// As [`Db::count`].
    pub async fn rank(&self, table: TableId, key: &[u8]) -> Result<u64, Error> {
        if key.is_empty() {
            // As an end it would stand for none; before it there is nothing.
            self.host.count(table.0, &RangeRemainder::new(&[], &[0], Direction::Forward))?;
            return Ok(0);
        }
        self.count(table, &[], key).await
    }

    /// Returns the key of an ordered table before which there are `position` others, in logarithmic time; `None` beyond
    /// the last. Keys count as in [`Db::count`].
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Replies with the median.
    /// async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    ///     let words = db.table("words")?;
    ///     let middle = db.count(words, b"", b"").await? / 2;
    ///     db.reply(&db.nth(words, middle).await?.ok_or(Error::not_found("no words"))?)
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let words = store.ordered_table("words");
    /// for word in ["dune", "sand", "storm"] {
    ///     store.put(words, word.as_bytes(), b"");
    /// }
    /// assert_eq!(store.invoke(run, b""), Ok(b"sand".to_vec()));
    /// ```
    ///
    /// # Errors
    /// As [`Db::count`].
    pub async fn nth(&self, table: TableId, position: u64) -> Result<Option<Vec<u8>>, Error> {
        self.host.nth(table.0, position)
    }

    /// Lets others run if they wait.
    pub(crate) async fn give_way(&self) {
        if self.host.interleave() {
            yield_now().await;
        }
    }
}
