//! What a test sets of a store beside its tables, and reads of the last invocation.

use alloc::boxed::Box;

use super::TestStore;
use crate::limits::TRANSACTION_TRIES;

impl TestStore {
    /// On (as at first): awaited reads and writes yield, as in a server with more to do. Off: they do not.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn look(db: Db<'_>, key: &[u8]) -> Result<(), Error> {
    ///     db.get(db.table("stock")?, key).await.map(|_| ())
    /// }
    /// let mut store = TestStore::new();
    /// store.table("stock");
    /// store.interleave(false).invoke(look, b"apple").unwrap();
    /// assert_eq!(store.polls(), 1, "it has not yielded");
    /// ```
    pub fn interleave(&mut self, on: bool) -> &mut TestStore {
        self.interleave = on;
        self
    }

    /// Bytes that a reply may have.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// store.limit_reply(3);
    /// let error = store.invoke(async |db: Db<'_>, args: &[u8]| db.reply(args), b"long").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::TooLarge);
    /// ```
    pub fn limit_reply(&mut self, bytes: usize) -> &mut TestStore {
        self.max_reply = bytes;
        self
    }

    /// Bytes of keys and values that all tables together may hold: a write past it gets `OutOfMemory`.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn keep(db: Db<'_>, value: &[u8]) -> Result<(), Error> {
    ///     db.put(db.table("stock")?, b"apple", value).await.map(|_| ())
    /// }
    /// let mut store = TestStore::new();
    /// store.table("stock");
    /// store.limit_bytes(8);
    /// assert_eq!(store.invoke(keep, b"3"), Ok(vec![]));
    /// assert_eq!(store.invoke(keep, b"3000").unwrap_err().kind(), ErrorKind::OutOfMemory);
    /// ```
    pub fn limit_bytes(&mut self, bytes: usize) -> &mut TestStore {
        self.max_bytes = bytes;
        self
    }

    /// Sets the polls that one invocation may take, in place of the server's budget of CPU time.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn wait(_: Db<'_>, _: &[u8]) -> Result<(), Error> {
    ///     loop {
    ///         yield_now().await;
    ///     }
    /// }
    /// let mut store = TestStore::new();
    /// assert!(store.limit_polls(100).invoke(wait, b"").is_err());
    /// ```
    pub fn limit_polls(&mut self, polls: u64) -> &mut TestStore {
        self.max_polls = polls;
        self
    }

    /// Bytes of keys and values in all tables, expired records among them.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// let stock = store.table("stock");
    /// store.put(stock, b"apple", b"3");
    /// assert_eq!(store.bytes(), 6);
    /// ```
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of polls of the last invocation: its yields and one.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn twice(_: Db<'_>, _: &[u8]) -> Result<(), Error> {
    ///     yield_now().await;
    ///     Ok(())
    /// }
    /// let mut store = TestStore::new();
    /// store.invoke(twice, b"").unwrap();
    /// assert_eq!(store.polls(), 2);
    /// ```
    pub fn polls(&self) -> u64 {
        self.polls
    }

    /// Returns the number of records that the last invocation asked for by `get` and `get_many`.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn both(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    ///     db.get_many(db.table("stock")?, &[&b"apple"[..], b"pear"]).await.map(|_| ())
    /// }
    /// let mut store = TestStore::new();
    /// store.table("stock");
    /// store.invoke(both, b"").unwrap();
    /// assert_eq!(store.reads(), 2);
    /// ```
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Returns the number of runs of the last invocation: more than one if its transaction met the writes of others.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn count(db: Db<'_>, key: &[u8]) -> Result<(), Error> {
    ///     let sum = db.transaction().increment(db.table("visits")?, key, 1).await?;
    ///     yield_now().await;
    ///     db.reply(sum.to_string().as_bytes())
    /// }
    /// let mut store = TestStore::new();
    /// let visits = store.table("visits");
    /// let mut is_first = true;
    /// store.between_polls(move |store| {
    ///     if core::mem::take(&mut is_first) {
    ///         store.put(visits, b"home", b"10");
    ///     }
    /// });
    /// assert_eq!(store.interleave(false).invoke(count, b"home"), Ok(b"11".to_vec()));
    /// assert_eq!(store.tries(), 2);
    /// ```
    pub fn tries(&self) -> u32 {
        (self.tries + 1).min(TRANSACTION_TRIES)
    }

    /// Calls `hook` between any two polls of an invocation: it may write as others would in that time.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn count(db: Db<'_>, key: &[u8]) -> Result<(), Error> {
    ///     let sum = db.transaction().increment(db.table("visits")?, key, 1).await?;
    ///     db.reply(sum.to_string().as_bytes())
    /// }
    /// let mut store = TestStore::new();
    /// let visits = store.table("visits");
    /// let mut is_first = true;
    /// store.between_polls(move |store| {
    ///     if core::mem::take(&mut is_first) {
    ///         store.put(visits, b"home", b"10");
    ///     }
    /// });
    /// assert_eq!(store.invoke(count, b"home"), Ok(b"11".to_vec()));
    /// ```
    pub fn between_polls(&mut self, hook: impl FnMut(&mut TestStore) + 'static) -> &mut TestStore {
        self.hook = Some(Box::new(hook));
        self
    }

    /// Calls `hook` before each count and position that code asks for: it may write as other workers of a server would,
    /// between two questions of one poll. A `count`, `rank` or `nth` of a transaction with writes of its own asks
    /// several.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn seats(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    ///     let (table, tx) = (db.table("seats")?, db.transaction());
    ///     let (before, after) = (tx.count(table, b"", b"").await?, tx.count(table, b"", b"").await?);
    ///     db.reply(format!("{before} {after}").as_bytes())
    /// }
    /// let mut store = TestStore::new();
    /// let table = store.ordered_table("seats");
    /// let mut asked = 0;
    /// store.before_counts(move |store| {
    ///     asked += 1;
    ///     if asked == 2 {
    ///         store.put(table, b"ann", b"");
    ///     }
    /// });
    /// assert_eq!(store.invoke(seats, b""), Ok(b"1 1".to_vec()));
    /// assert_eq!(store.tries(), 2);
    /// ```
    pub fn before_counts(&mut self, hook: impl FnMut(&mut TestStore) + 'static) -> &mut TestStore {
        self.count_hook = Some(Box::new(hook));
        self
    }
}
