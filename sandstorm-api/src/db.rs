//! The invocation's database: tables, reads that prefetch and yield, writes, the reply.

use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::abi::{self, RawWrite};
use crate::host::{HostHandle, RangeRemainder};
use crate::keys::Direction;
use crate::range::{Range, RangeKeys};
use crate::record::{Record, TableId};
use crate::transaction::Transaction;
use crate::{Error, ErrorKind};

/// The invocation's view of its tenant's tables. Copy it freely; it lives as long as the invocation.
#[derive(Clone, Copy)]
pub struct Db<'a> {
    pub(crate) host: HostHandle<'a>,
}

impl<'a> Db<'a> {
    pub(crate) fn new(host: HostHandle<'a>) -> Db<'a> {
        Db { host }
    }

    /// Finds a table of the tenant by its name, or one that another tenant granted, as `owner/table`.
    ///
    /// A grant may end at any moment: calls get `UnknownTable` from then on. Records that were read stay readable.
    /// Writes to a table that was granted for reading only get `ReadOnly`.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let prices = db.table("shop/prices")?; // of another tenant, who has granted it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `UnknownTable` when the tenant has none of that name.
    pub fn table(&self, name: &str) -> Result<TableId, Error> {
        self.host.table_by_name(name).map(TableId).map_err(|error| error.with_table_name(name))
    }

    /// Reads a record: `None` when there is none under `key`. Awaiting hides the cache misses.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// if let Some(record) = db.get(table, b"apple").await? {
    ///     db.reply(record.value())?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn get<'k>(&self, table: TableId, key: &'k [u8]) -> Get<'a, 'k> {
        Get { host: self.host, table: table.0, key, hash: 0, step: PrefetchStage::Start }
    }

    /// Reads many records at once, each `None` when absent, in the order of `keys`. All their cache misses overlap.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let found = db.get_many(table, &[b"apple", b"grape"]).await?;
    /// let there = found.iter().flatten().count();
    /// # Ok(()) }
    /// ```
    pub fn get_many<'k, K: AsRef<[u8]>>(&self, table: TableId, keys: &'k [K]) -> GetMany<'a, 'k, K> {
        GetMany { host: self.host, table: table.0, keys, hashes: Vec::new(), step: PrefetchStage::Start }
    }

    /// Writes a record; awaiting gives its new version. The builder's methods add a condition, flags or an expiry:
    /// `db.put(table, key, value).if_absent().expires_in_ms(60_000).await?`.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let version = db.put(table, b"apple", b"3").await?;
    /// # Ok(()) }
    /// ```
    pub fn put<'k>(&self, table: TableId, key: &'k [u8], value: &'k [u8]) -> Put<'a, 'k> {
        let (how, step) = (UNCONDITIONAL, PrefetchStage::Start);
        Put { host: self.host, table: table.0, key, value, how, expected: None, step }
    }

    /// Deletes a record; awaiting returns whether there was one.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let was_there = db.delete(table, b"apple").await?;
    /// # Ok(()) }
    /// ```
    pub fn delete<'k>(&self, table: TableId, key: &'k [u8]) -> Delete<'a, 'k> {
        Delete { host: self.host, table: table.0, key, how: UNCONDITIONAL, step: PrefetchStage::Start }
    }

    /// Adds `delta` to the decimal number under `key` (0 when absent); awaiting gives the sum.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let sum = db.increment(table, b"visits", 1).await?;
    /// # Ok(()) }
    /// ```
    pub fn increment<'k>(&self, table: TableId, key: &'k [u8], delta: i64) -> Increment<'a, 'k> {
        Increment { host: self.host, table: table.0, key, delta, step: PrefetchStage::Start }
    }

    /// Reads the records of an ordered table with `from <= key < to` (empty `to`: to the end of the table), at most
    /// `limit`, in the order of their keys' bytes. Each is as it was at some moment of the call; for all of one moment,
    /// see [`Transaction::range`].
    ///
    /// To go on: forward from the last key followed by a byte 0, backward to the last key (unless that is the empty
    /// one).
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let first = db.range(table, b"a", b"b", 10, Direction::Forward).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Invalid` for a limit of 0 or above [`RANGE_LIMIT`](crate::limits::RANGE_LIMIT), and for a table that is not
    /// ordered; `UnknownTable`; `TooLarge` for an end that is longer than a key and a byte.
    pub fn range<'k>(
        &self,
        table: TableId,
        from: &'k [u8],
        to: &'k [u8],
        limit: usize,
        direction: Direction,
    ) -> Range<'a, 'k> {
        Range::new(self.host, table.0, RangeRemainder::new(from, to, direction), limit)
    }

    /// Returns the keys of an ordered table with `from <= key < to`, as in [`Db::range`], without their records. That
    /// saves a cache miss or two for each, for tables whose keys say it all, such as an index of another table.
    ///
    /// No record is looked for, so there may be keys whose record has expired, or is being written or deleted at this
    /// moment. The key of every record that exists during the whole call is among them.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// for key in &db.range_keys(table, b"a", b"b", 10, Direction::Forward).await? {
    ///     db.reply(key)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Db::range`].
    pub fn range_keys<'k>(
        &self,
        table: TableId,
        from: &'k [u8],
        to: &'k [u8],
        limit: usize,
        direction: Direction,
    ) -> RangeKeys<'a, 'k> {
        RangeKeys::new(self.host, table.0, RangeRemainder::new(from, to, direction), limit)
    }

    /// Returns the invocation's transaction, which begins with the first call of this.
    ///
    /// It sees its own writes, which no other invocation does before it is committed. That happens when `run` returns
    /// `Ok`. If all that it has read, absent records included, still holds, all of its writes are made at that moment,
    /// in any number of tables. If not, the reply is dropped and `run` begins anew with the same arguments: it must not
    /// count on being run once. After [`TRANSACTION_TRIES`](crate::limits::TRANSACTION_TRIES) runs the caller is
    /// answered `Conflict`. If it fails, is killed, or one of the writes is refused (by a quota, a limit of the table,
    /// a grant), then none of them is made.
    ///
    /// Its reads need not be of one moment until it is committed. An error that comes of that begins it anew as well; a
    /// panic ends it. Reads and writes through `Db` are no part of it: such a write is made at once, each time that it
    /// runs.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    ///
    /// /// Moves the record under `from` to `to`, unless there is one.
    /// async fn rename(db: Db<'_>, table: TableId, from: &[u8], to: &[u8]) -> Result<(), Error> {
    ///     let transaction = db.transaction();
    ///     let record = transaction.get(table, from).await?.ok_or(Error::not_found("nothing to rename"))?;
    ///     if transaction.get(table, to).await?.is_some() {
    ///         return Err(Error::new("the name is taken"));
    ///     }
    ///     transaction.put(table, to, record.value())?;
    ///     transaction.delete(table, from).await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn transaction(&self) -> Transaction<'a> {
        Transaction::new(self.host)
    }

    /// Appends bytes to the reply that the caller gets when the extension returns `Ok(())`.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// db.reply(b"3 apples")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `TooLarge` when the reply would pass its limit; bytes that were appended before stay.
    pub fn reply(&self, bytes: &[u8]) -> Result<(), Error> {
        self.host.reply(bytes)
    }

    /// Milliseconds since the Unix epoch, as of the last time the server polled this invocation.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let tomorrow_ms = db.now_ms() + 24 * 60 * 60 * 1000;
    /// # Ok(()) }
    /// ```
    pub fn now_ms(&self) -> u64 {
        self.host.now_ms()
    }
}

pub(crate) const UNCONDITIONAL: RawWrite =
    RawWrite { condition: abi::CONDITION_ALWAYS, flags: 0, version: 0, ttl_ms: 0 };

/// The progress of an awaited operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrefetchStage {
    Start,
    BucketRequested,
    RecordRequested,
}

/// A read under way; see [`Db::get`]. The first poll hashes the key and prefetches its bucket. While others run, the
/// server prefetches the record; the second poll reads it. If no other invocation waits, the first poll does it all.
#[must_use = "a read does nothing until it is awaited"]
pub struct Get<'a, 'k> {
    host: HostHandle<'a>,
    table: u64,
    key: &'k [u8],
    hash: u64,
    step: PrefetchStage,
}

impl<'a> Future for Get<'a, '_> {
    type Output = Result<Option<Record<'a>>, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this.step {
            PrefetchStage::Start if this.host.interleave() => match this.host.prefetch(this.table, this.key) {
                Ok(hash) => {
                    this.hash = hash;
                    this.step = PrefetchStage::BucketRequested;
                    Poll::Pending
                }
                Err(error) => Poll::Ready(Err(error)),
            },
            PrefetchStage::Start | PrefetchStage::BucketRequested | PrefetchStage::RecordRequested => {
                this.host.get(this.table, this.hash, this.key)
            }
        }
    }
}

/// Many reads under way; see [`Db::get_many`].
#[must_use = "reads do nothing until they are awaited"]
pub struct GetMany<'a, 'k, K> {
    host: HostHandle<'a>,
    table: u64,
    keys: &'k [K],
    hashes: Vec<u64>,
    step: PrefetchStage,
}

impl<'a, K: AsRef<[u8]>> GetMany<'a, '_, K> {
    fn prefetch_buckets(&mut self) -> Result<(), Error> {
        self.hashes.resize(self.keys.len(), 0);
        for (keys, hashes) in self.keys.chunks(abi::MAX_CALL_KEYS).zip(self.hashes.chunks_mut(abi::MAX_CALL_KEYS)) {
            self.host.prefetch_many(self.table, keys, hashes)?;
        }
        Ok(())
    }

    fn read(&self) -> Poll<Result<Vec<Option<Record<'a>>>, Error>> {
        let mut records = Vec::with_capacity(self.keys.len());
        let mut waits = false;
        for (keys, hashes) in self.keys.chunks(abi::MAX_CALL_KEYS).zip(self.hashes.chunks(abi::MAX_CALL_KEYS)) {
            match self.host.get_many(self.table, keys, hashes, |record| records.push(record)) {
                // The others' records are asked for as well, so that all of them are read together.
                Poll::Pending => waits = true,
                Poll::Ready(read) => read?,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(Ok(records)) }
    }
}

impl<'a, K: AsRef<[u8]>> Future for GetMany<'a, '_, K> {
    type Output = Result<Vec<Option<Record<'a>>>, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.step == PrefetchStage::Start {
            if let Err(error) = this.prefetch_buckets() {
                return Poll::Ready(Err(error));
            }
            this.step = PrefetchStage::BucketRequested;
            if this.host.interleave() {
                return Poll::Pending;
            }
        }
        if this.step == PrefetchStage::BucketRequested {
            for hashes in this.hashes.chunks(abi::MAX_CALL_KEYS) {
                this.host.prefetch_records(this.table, hashes);
            }
            this.step = PrefetchStage::RecordRequested;
            if this.host.interleave() {
                return Poll::Pending;
            }
        }
        this.read()
    }
}

/// Yields once so that a write's cache misses overlap with other invocations.
fn prefetch_before_write(
    host: &HostHandle<'_>,
    table: u64,
    key: &[u8],
    step: &mut PrefetchStage,
) -> Poll<Result<(), Error>> {
    if *step == PrefetchStage::Start && host.interleave() {
        *step = PrefetchStage::RecordRequested;
        return match host.prefetch(table, key) {
            Ok(_) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        };
    }
    Poll::Ready(Ok(()))
}

/// A write under way; see [`Db::put`].
#[must_use = "a write does nothing until it is awaited"]
pub struct Put<'a, 'k> {
    host: HostHandle<'a>,
    table: u64,
    key: &'k [u8],
    value: &'k [u8],
    how: RawWrite,
    expected: Option<&'k [u8]>,
    step: PrefetchStage,
}

impl<'k> Put<'_, 'k> {
    /// Only if there is no record under the key; else `Conflict`.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let is_first = db.put(table, b"lock", b"me").if_absent().await.is_ok();
    /// # Ok(()) }
    /// ```
    pub fn if_absent(mut self) -> Self {
        self.how.condition = abi::CONDITION_ABSENT;
        self.expected = None;
        self
    }

    /// Only if there is a record under the key; else `Conflict`.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// db.put(table, b"apple", b"4").if_present().await?;
    /// # Ok(()) }
    /// ```
    pub fn if_present(mut self) -> Self {
        self.how.condition = abi::CONDITION_PRESENT;
        self.expected = None;
        self
    }

    /// Only if the record's version is `version`; else `Conflict`.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// if let Some(found) = db.get(table, b"apple").await? {
    ///     db.put(table, b"apple", b"4").if_version(found.version()).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn if_version(mut self, version: u64) -> Self {
        self.how.condition = abi::CONDITION_VERSION;
        self.how.version = version;
        self.expected = None;
        self
    }

    /// Only if there is a record with this value; else `Conflict`. Another condition takes its place, or it another's.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Moves an order from one state to the next, once.
    /// async fn run(db: Db<'_>, order: &[u8]) -> Result<(), Error> {
    ///     db.put(db.table("orders")?, order, b"paid").if_value(b"open").await?;
    ///     Ok(())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let orders = store.table("orders");
    /// store.put(orders, b"7", b"open");
    /// assert_eq!(store.invoke(run, b"7"), Ok(vec![]));
    /// assert_eq!(store.invoke(run, b"7").unwrap_err().kind(), ErrorKind::Conflict);
    /// ```
    pub fn if_value(mut self, expected: &'k [u8]) -> Self {
        self.expected = Some(expected);
        self
    }

    /// Stores these flags with the record.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// db.put(table, b"apple", b"3").flags(7).await?;
    /// # Ok(()) }
    /// ```
    pub fn flags(mut self, flags: u32) -> Self {
        self.how.flags = flags;
        self
    }

    /// Lets the record expire after this number of milliseconds; 0: never.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// db.put(table, b"session", b"ann").expires_in_ms(30 * 60 * 1000).await?;
    /// # Ok(()) }
    /// ```
    pub fn expires_in_ms(mut self, ttl_ms: u64) -> Self {
        self.how.ttl_ms = ttl_ms;
        self
    }
}

impl Put<'_, '_> {
    fn write(&self) -> Poll<Result<u64, Error>> {
        let Some(expected) = self.expected else {
            return Poll::Ready(self.host.put(self.table, self.key, self.value, &self.how));
        };
        loop {
            let Poll::Ready(found) = self.host.get(self.table, 0, self.key) else { return Poll::Pending };
            let found = found?.filter(|record| record.value == expected);
            let version = found.ok_or_else(|| Error::from_status(abi::STATUS_CONFLICT))?.version;
            let how = RawWrite { condition: abi::CONDITION_VERSION, version, ..self.how };
            match self.host.put(self.table, self.key, self.value, &how) {
                // It was written in between, maybe with the same value.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl Future for Put<'_, '_> {
    type Output = Result<u64, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match prefetch_before_write(&this.host, this.table, this.key, &mut this.step) {
            Poll::Ready(Ok(())) => this.write(),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A delete under way; see [`Db::delete`].
#[must_use = "a delete does nothing until it is awaited"]
pub struct Delete<'a, 'k> {
    host: HostHandle<'a>,
    table: u64,
    key: &'k [u8],
    how: RawWrite,
    step: PrefetchStage,
}

impl Delete<'_, '_> {
    /// Only if the record's version is `version`; else `Conflict`.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let deleted = db.delete(table, b"apple").if_version(3).await?;
    /// # Ok(()) }
    /// ```
    pub fn if_version(mut self, version: u64) -> Self {
        self.how.condition = abi::CONDITION_VERSION;
        self.how.version = version;
        self
    }
}

impl Future for Delete<'_, '_> {
    type Output = Result<bool, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match prefetch_before_write(&this.host, this.table, this.key, &mut this.step) {
            Poll::Ready(Ok(())) => Poll::Ready(this.host.delete(this.table, this.key, &this.how)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// An increment under way; see [`Db::increment`].
#[must_use = "an increment does nothing until it is awaited"]
pub struct Increment<'a, 'k> {
    host: HostHandle<'a>,
    table: u64,
    key: &'k [u8],
    delta: i64,
    step: PrefetchStage,
}

impl Future for Increment<'_, '_> {
    type Output = Result<i64, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match prefetch_before_write(&this.host, this.table, this.key, &mut this.step) {
            Poll::Ready(Ok(())) => {
                let sum = this.host.increment(this.table, this.key, this.delta);
                sum.map_err(|error| error.of_increment(this.key))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}
