//! An in-memory stand-in for the store, so that an extension's own `#[test]`s run without a server.
//!
//! ```
//! use sandstorm_api::prelude::*;
//! use sandstorm_api::testing::TestStore;
//!
//! async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
//!     let table = db.table("numbers")?;
//!     let record = db.get(table, args).await?.ok_or(Error::not_found("no such number"))?;
//!     db.reply(record.value())
//! }
//!
//! let mut store = TestStore::new();
//! let numbers = store.table("numbers");
//! store.put(numbers, b"one", b"1");
//! assert_eq!(store.invoke(run, b"one"), Ok(b"1".to_vec()));
//! assert_eq!(store.invoke(run, b"two").unwrap_err().kind(), ErrorKind::NotFound);
//! ```
//!
//! It has the same interface as the server: records that an invocation has read stay as they were until it ends,
//! awaited reads yield (switch that off with [`TestStore::interleave`]), limits answer with the same errors. It does
//! not count CPU time, bound the arena, or end a panic quietly. [`TestStore::limit_polls`] stands in for the budget.
//!
//! Guarantees: every pointer that it hands out points into a record that the invocation holds until it ends; an
//! [`InvocationHeader`] is only live inside [`TestStore::invoke`].
#![allow(unsafe_code)]

mod arguments;
mod call_state;
mod calls;
mod commit;
mod invocation;
mod log;
mod nested;
mod order;
mod range;
mod record;
mod settings;
mod typed;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Waker};

use crate::abi::{self, InvocationHeader, RawWrite};
use crate::transaction::parse_decimal;
use crate::{Db, Error, TableId};
use call_state::TestCalls;
use calls::CALLS;
use invocation::RunningInvocation;
use log::TestLog;
use nested::TestExtensions;
pub use record::TestRecord;

/// Longest key in bytes, as in the server.
pub const MAX_KEY_LEN: usize = 64 << 10;
/// Longest value in bytes, as in the server.
pub const MAX_VALUE_LEN: usize = 8 << 20;
/// Longest reply in bytes unless [`TestStore::limit_reply`] says otherwise.
pub const DEFAULT_REPLY_LEN: usize = 8 << 20;
/// Polls of one invocation unless [`TestStore::limit_polls`] says otherwise.
pub const DEFAULT_POLLS: u64 = 1_000_000;
/// Initial time of the clock, in milliseconds since the Unix epoch; see [`TestStore::set_now_ms`].
pub const DEFAULT_NOW_MS: u64 = 1_700_000_000_000;

/// A table: `places` maps each key to the position at which a scan meets it. Positions look random on purpose, since
/// scans promise no order.
#[derive(Debug, Default)]
struct TestTable {
    access: TestAccess,
    ordered: bool,
    places: BTreeMap<Box<[u8]>, u64>,
    records: BTreeMap<u64, Arc<TestRecord>>,
}

impl TestTable {
    fn get(&self, key: &[u8], now_ms: u64) -> Option<&Arc<TestRecord>> {
        self.records.get(self.places.get(key)?).filter(|record| record.is_live_at(now_ms))
    }
}

/// The access of an invocation to a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TestAccess {
    #[default]
    ReadWrite,
    Read,
    Revoked,
}

type StoreHook = Box<dyn FnMut(&mut TestStore)>;

/// Tables in memory, a clock that stands still, and limits to run into. See the [module's example](self).
pub struct TestStore {
    tables: BTreeMap<u64, TestTable>,
    names: BTreeMap<String, u64>,
    now_ms: u64,
    /// Microseconds of the clock beyond whole milliseconds.
    now_rest_us: u64,
    seed: u64,
    secrets: BTreeMap<String, Box<[u8]>>,
    log: TestLog,
    extensions: TestExtensions,
    last_version: u64,
    last_place: u64,
    bytes: usize,
    interleave: bool,
    max_reply: usize,
    max_bytes: usize,
    max_polls: u64,
    polls: u64,
    tries: u32,
    reads: u64,
    hook: Option<StoreHook>,
    count_hook: Option<StoreHook>,
}

impl Default for TestStore {
    fn default() -> TestStore {
        TestStore::new()
    }
}

impl TestStore {
    /// A store without tables, with interleaving on.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// assert_eq!(store.invoke(async |db: Db<'_>, args: &[u8]| db.reply(args), b"hi"), Ok(b"hi".to_vec()));
    /// ```
    pub fn new() -> TestStore {
        TestStore {
            tables: BTreeMap::new(),
            names: BTreeMap::new(),
            now_ms: DEFAULT_NOW_MS,
            now_rest_us: 0,
            seed: 0,
            secrets: BTreeMap::new(),
            log: TestLog::default(),
            extensions: TestExtensions::default(),
            last_version: 0,
            last_place: 0,
            bytes: 0,
            interleave: true,
            max_reply: DEFAULT_REPLY_LEN,
            max_bytes: usize::MAX,
            max_polls: DEFAULT_POLLS,
            polls: 0,
            tries: 0,
            reads: 0,
            hook: None,
            count_hook: None,
        }
    }

    /// The id of the table of that name, which is made if there is none yet. `owner/table` is a table that another
    /// tenant granted, for reading and writing.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// let stock = store.table("stock");
    /// assert_eq!((store.table("stock"), store.len(stock)), (stock, 0));
    /// ```
    pub fn table(&mut self, name: &str) -> TableId {
        if let Some(id) = self.names.get(name) {
            return TableId(*id);
        }
        let id = self.tables.len() as u64 + 1;
        self.names.insert(name.to_string(), id);
        self.tables.insert(id, TestTable::default());
        TableId(id)
    }

    /// Returns the id of the ordered table of that name, which is made if there is none yet; see [`Db::range`].
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// async fn first(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let found = db.range(db.table("words")?, args, b"", 1, Direction::Forward).await?;
    ///     db.reply(found.first().ok_or("no further word")?.key())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let words = store.ordered_table("words");
    /// store.put(words, b"sand", b"");
    /// store.put(words, b"storm", b"");
    /// assert_eq!(store.invoke(first, b"sands"), Ok(b"storm".to_vec()));
    /// ```
    pub fn ordered_table(&mut self, name: &str) -> TableId {
        let id = self.table(name);
        if let Some(table) = self.tables.get_mut(&id.0) {
            table.ordered = true;
        }
        id
    }

    /// The id of a table that another tenant granted for reading only, named `owner/table`; it is made if there is none
    /// yet. An extension's writes to it get `ReadOnly`; the test's own ([`TestStore::put`]) are its owner's.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    ///     let prices = db.table("shop/prices")?;
    ///     db.put(prices, b"tea", b"0").await?;
    ///     Ok(())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let prices = store.read_only_table("shop/prices");
    /// assert_eq!(store.invoke(run, b"").unwrap_err().kind(), ErrorKind::ReadOnly);
    /// store.revoke(prices);
    /// assert_eq!(store.invoke(run, b"").unwrap_err().kind(), ErrorKind::UnknownTable);
    /// ```
    pub fn read_only_table(&mut self, name: &str) -> TableId {
        let id = self.table(name);
        self.set_access(id, TestAccess::Read);
        id
    }

    /// Ends the grant of a table, as its owner may at any moment, also between two polls
    /// ([`TestStore::between_polls`]). Calls of an invocation that has its id get `UnknownTable` from then on, and its
    /// name is not found. Records that were read stay readable.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn price(db: Db<'_>, key: &[u8]) -> Result<(), Error> {
    ///     db.get(db.table("shop/prices")?, key).await.map(|_| ())
    /// }
    /// let mut store = TestStore::new();
    /// let prices = store.table("shop/prices");
    /// store.revoke(prices);
    /// assert_eq!(store.invoke(price, b"tea").unwrap_err().kind(), ErrorKind::UnknownTable);
    /// ```
    pub fn revoke(&mut self, table: TableId) {
        self.set_access(table, TestAccess::Revoked);
        self.names.retain(|_, id| *id != table.0);
    }

    fn set_access(&mut self, table: TableId, access: TestAccess) {
        if let Some(table) = self.tables.get_mut(&table.0) {
            table.access = access;
        }
    }

    /// The table that an invocation reads.
    fn reach(&self, id: u64) -> Result<&TestTable, u32> {
        self.tables.get(&id).filter(|table| table.access != TestAccess::Revoked).ok_or(abi::STATUS_UNKNOWN_TABLE)
    }

    /// The table that an invocation writes.
    fn writable_table(&self, id: u64) -> Result<&TestTable, u32> {
        let table = self.reach(id)?;
        if table.access == TestAccess::Read { Err(abi::STATUS_READ_ONLY) } else { Ok(table) }
    }

    /// Writes a record that never expires and gives its version.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// let stock = store.table("stock");
    /// assert!(store.put(stock, b"apple", b"3") < store.put(stock, b"apple", b"4"));
    /// ```
    ///
    /// # Panics
    /// When there is no such table, or the write passes a limit: a test's own set-up must hold.
    pub fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> u64 {
        self.put_with(table, key, value, 0, 0)
    }

    /// Writes a record with flags that expires `ttl_ms` milliseconds from now (0: never) and gives its version.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// let stock = store.table("stock");
    /// store.put_with(stock, b"apple", b"3", 0, 1_000);
    /// store.set_now_ms(store.now_ms() + 1_000);
    /// assert_eq!(store.get(stock, b"apple"), None);
    /// ```
    ///
    /// # Panics
    /// As [`TestStore::put`].
    pub fn put_with(&mut self, table: TableId, key: &[u8], value: &[u8], flags: u32, ttl_ms: u64) -> u64 {
        let how = RawWrite { condition: abi::CONDITION_ALWAYS, flags, version: 0, ttl_ms };
        match self.write(table.0, key, value, &how) {
            Ok(version) => version,
            Err(status) => panic!("put into the test store: {}", Error::from_status(status)),
        }
    }

    /// The value under the key, if there is a record that has not expired.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// let stock = store.table("stock");
    /// store.put(stock, b"apple", b"3");
    /// assert_eq!((store.get(stock, b"apple"), store.get(stock, b"pear")), (Some(&b"3"[..]), None));
    /// ```
    pub fn get(&self, table: TableId, key: &[u8]) -> Option<&[u8]> {
        self.record(table, key).map(TestRecord::value)
    }

    /// The record under the key, if there is one that has not expired.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// let stock = store.table("stock");
    /// let version = store.put(stock, b"apple", b"3");
    /// assert_eq!(store.record(stock, b"apple").map(|record| record.version()), Some(version));
    /// ```
    pub fn record(&self, table: TableId, key: &[u8]) -> Option<&TestRecord> {
        self.tables.get(&table.0)?.get(key, self.now_ms).map(|record| &**record)
    }

    /// Deletes the record under the key; returns whether there was one.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// let stock = store.table("stock");
    /// store.put(stock, b"apple", b"3");
    /// assert_eq!((store.delete(stock, b"apple"), store.delete(stock, b"apple")), (true, false));
    /// ```
    pub fn delete(&mut self, table: TableId, key: &[u8]) -> bool {
        self.remove(table.0, key)
    }

    /// Number of records of the table that have not expired.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// let stock = store.table("stock");
    /// store.put(stock, b"apple", b"3");
    /// assert_eq!(store.len(stock), 1);
    /// ```
    pub fn len(&self, table: TableId) -> usize {
        let lives = |table: &TestTable| table.records.values().filter(|record| record.is_live_at(self.now_ms)).count();
        self.tables.get(&table.0).map_or(0, lives)
    }

    /// Returns whether the table holds no record that has not expired.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// let stock = store.table("stock");
    /// assert!(store.is_empty(stock));
    /// ```
    pub fn is_empty(&self, table: TableId) -> bool {
        self.len(table) == 0
    }

    /// Runs an extension to its end and returns its reply, or the error that its caller would get.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn sum(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let sum = db.increment(db.table("visits")?, args, 1).await?;
    ///     db.reply(sum.to_string().as_bytes())
    /// }
    /// let mut store = TestStore::new();
    /// assert_eq!(store.invoke(sum, b"home").unwrap_err().kind(), ErrorKind::UnknownTable);
    /// store.table("visits");
    /// assert_eq!(store.invoke(sum, b"home"), Ok(b"1".to_vec()));
    /// ```
    ///
    /// # Errors
    /// The extension's error; an `Other` error when it was polled more often than [`TestStore::limit_polls`] allows.
    ///
    /// # Panics
    /// When the extension does.
    pub fn invoke<F>(&mut self, run: F, args: &[u8]) -> Result<Vec<u8>, Error>
    where
        F: for<'a> AsyncFn(Db<'a>, &'a [u8]) -> Result<(), Error>,
    {
        (self.polls, self.reads, self.tries) = (0, 0, 0);
        let running = RunningInvocation::start(self, args, TestCalls::default(), &raw const CALLS);
        let invocation = running.at.cast::<InvocationHeader>();
        let outcome = loop {
            // SAFETY: the invocation lives until `running` is dropped, which is after the future below, and this thread
            // alone uses it. `F` works for any lifetime, so it cannot keep the `Db` or a record beyond the future.
            let db = unsafe { crate::rt::db(invocation) };
            let outcome = {
                let mut future = pin!(run(db, args));
                running.drive(|| future.as_mut().poll(&mut Context::from_waker(Waker::noop())))
            };
            // SAFETY: the future has ended; it is gone, and with it all that it was shown.
            match unsafe { running.end(outcome) } {
                Some(outcome) => break outcome,
                None => running.between(),
            }
        };
        outcome.map(|()| running.take_reply())
    }

    /// The hash that `prefetch` writes: never 0, the same for the same key.
    fn hash(key: &[u8]) -> u64 {
        key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
            | 1
    }

    fn remove(&mut self, table: u64, key: &[u8]) -> bool {
        let Some(table) = self.tables.get_mut(&table) else { return false };
        let Some(place) = table.places.remove(key) else { return false };
        match table.records.remove(&place) {
            Some(record) => {
                self.bytes -= record.bytes();
                record.is_live_at(self.now_ms)
            }
            None => false,
        }
    }

    fn check(&self, table: u64, key: &[u8], how: &RawWrite) -> Result<(), u32> {
        let table = self.tables.get(&table).ok_or(abi::STATUS_UNKNOWN_TABLE)?;
        let old = table.get(key, self.now_ms);
        let holds = match how.condition {
            abi::CONDITION_ALWAYS => true,
            abi::CONDITION_ABSENT => old.is_none(),
            abi::CONDITION_PRESENT => old.is_some(),
            abi::CONDITION_VERSION => old.is_some_and(|record| record.version == how.version),
            _ => return Err(abi::STATUS_INVALID),
        };
        if holds { Ok(()) } else { Err(abi::STATUS_CONFLICT) }
    }

    fn write(&mut self, table: u64, key: &[u8], value: &[u8], how: &RawWrite) -> Result<u64, u32> {
        if key.len() > MAX_KEY_LEN || value.len() > MAX_VALUE_LEN {
            return Err(abi::STATUS_TOO_LARGE);
        }
        self.check(table, key, how)?;
        let expires_at_ms = if how.ttl_ms == 0 { 0 } else { self.now_ms.saturating_add(how.ttl_ms) };
        self.replace(table, key, value, how.flags, expires_at_ms)
    }

    /// Replaces the key's record by a new one; readers of the old one keep it.
    fn replace(&mut self, id: u64, key: &[u8], value: &[u8], flags: u32, expires_at_ms: u64) -> Result<u64, u32> {
        let table = self.tables.get_mut(&id).ok_or(abi::STATUS_UNKNOWN_TABLE)?;
        let place = table.places.get(key).copied();
        let freed = place.and_then(|place| table.records.get(&place)).map_or(0, |record| record.bytes());
        let bytes = self.bytes - freed + key.len() + value.len();
        if bytes > self.max_bytes {
            return Err(abi::STATUS_OUT_OF_MEMORY);
        }
        let place = place.unwrap_or_else(|| {
            self.last_place += 1;
            // An odd factor: distinct positions for distinct numbers, in an order that looks random.
            self.last_place.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        self.last_version += 1;
        self.bytes = bytes;
        let record =
            TestRecord { key: key.into(), value: value.into(), version: self.last_version, flags, expires_at_ms };
        table.places.insert(key.into(), place);
        table.records.insert(place, Arc::new(record));
        Ok(self.last_version)
    }

    fn increment(&mut self, table: u64, key: &[u8], delta: i64) -> Result<i64, u32> {
        let old = self.tables.get(&table).ok_or(abi::STATUS_UNKNOWN_TABLE)?.get(key, self.now_ms).cloned();
        let (number, flags, expires_at_ms) = match &old {
            None => (0, 0, 0),
            Some(record) => {
                let number = parse_decimal(&record.value).ok_or(abi::STATUS_NOT_A_NUMBER)?;
                (number, record.flags, record.expires_at_ms)
            }
        };
        let sum = number.checked_add(delta).ok_or(abi::STATUS_NOT_A_NUMBER)?;
        if key.len() > MAX_KEY_LEN {
            return Err(abi::STATUS_TOO_LARGE);
        }
        self.replace(table, key, sum.to_string().as_bytes(), flags, expires_at_ms)?;
        Ok(sum)
    }
}

/// The state behind the [`InvocationHeader`] that the extension's side sees; the host's functions cast back to it.
#[repr(C)]
struct TestInvocation {
    invocation: InvocationHeader,
    store: TestStore,
    /// Every record that was handed out: kept until the invocation ends, even if it is written in that time.
    held: Vec<Arc<TestRecord>>,
    reply: Vec<u8>,
    calls: TestCalls,
}
