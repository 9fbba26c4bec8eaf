//! The blocking face, for scripts and the command line: the same client on its own single-threaded runtime.
//!
//! ```no_run
//! use sandstorm_client::{Config, blocking::Client};
//!
//! # fn main() -> Result<(), sandstorm_client::Error> {
//! let client = Client::connect(Config::new(([127, 0, 0, 1], 7400).into(), 1).token("secret"))?;
//! client.put(1, b"greeting", b"hello", &Default::default())?;
//! assert_eq!(client.get(1, b"greeting")?.expect("just put").value, "hello");
//! # Ok(())
//! # }
//! ```

use crate::transaction::pause_after;
use crate::{
    Batch, ClientOpenError, ClientTransaction, Config, Direction, Error, ExpectedRecord, KeyedRecord, MeasuredCall,
    OpenOptions, PutOptions, PutOutcome, RangePage, Record, RecordExpiry, Reply, TypedCallError, limits,
};
use bytes::Bytes;
use sandstorm_net::rpc::CallCost;
use sandstorm_schema::ExtensionSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// A blocking client. Cheap to clone, but its requests go one at a time: use [`crate::Client`] for many in flight.
#[derive(Clone, Debug)]
pub struct Client {
    runtime: Arc<Runtime>,
    client: crate::Client,
}

impl Client {
    /// See [`crate::Client::connect`].
    ///
    /// # Errors
    /// As there. This and every other call here panics inside of an async runtime: use [`crate::Client`] there.
    pub fn connect(config: Config) -> Result<Client, Error> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let client = runtime.block_on(crate::Client::connect(config))?;
        Ok(Client { runtime: Arc::new(runtime), client })
    }

    /// See [`crate::Client::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(server: &str, tenant: &str, token: &str) -> Result<Client, ClientOpenError> {
        Client::open_with(OpenOptions::new(server, tenant, token))
    }

    /// See [`crate::Client::open_with`].
    ///
    /// # Errors
    /// As there.
    pub fn open_with(options: OpenOptions) -> Result<Client, ClientOpenError> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(Error::from)?;
        let client = runtime.block_on(crate::Client::open_with(options))?;
        Ok(Client { runtime: Arc::new(runtime), client })
    }

    /// See [`crate::Client::table`].
    pub fn table(&self, name: &str) -> Result<u64, ClientOpenError> {
        self.runtime.block_on(self.client.table(name))
    }

    /// See [`crate::Client::schema`].
    pub fn schema(&self, extension: &str) -> Result<Option<Arc<ExtensionSchema>>, ClientOpenError> {
        self.runtime.block_on(self.client.schema(extension))
    }

    /// See [`crate::Client::call`].
    pub fn call<A: Serialize + ?Sized, R: DeserializeOwned>(&self, name: &str, args: &A) -> Result<R, TypedCallError> {
        self.runtime.block_on(self.client.call(name, args))
    }

    /// See [`crate::Client::call_version`].
    pub fn call_version<A: Serialize + ?Sized, R: DeserializeOwned>(
        &self,
        name: &str,
        version: u64,
        args: &A,
    ) -> Result<R, TypedCallError> {
        self.runtime.block_on(self.client.call_version(name, version, args))
    }

    /// Runs anything of the async client, such as several requests joined.
    pub fn run<F: Future>(&self, work: impl FnOnce(crate::Client) -> F) -> F::Output {
        self.runtime.block_on(work(self.client.clone()))
    }

    /// The same connection with another deadline for the requests made through it.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Client {
        Client { runtime: Arc::clone(&self.runtime), client: self.client.with_deadline(deadline) }
    }

    /// See [`crate::Client::ping`].
    pub fn ping(&self) -> Result<Duration, Error> {
        self.runtime.block_on(self.client.ping())
    }

    /// See [`crate::Client::get`].
    pub fn get(&self, table: u64, key: &[u8]) -> Result<Option<Record>, Error> {
        self.runtime.block_on(self.client.get(table, key))
    }

    /// See [`crate::Client::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, table: u64, keys: &[K]) -> Result<Vec<Option<Record>>, Error> {
        self.runtime.block_on(self.client.multi_get(table, keys))
    }

    /// See [`crate::Client::snapshot`].
    pub fn snapshot<K: AsRef<[u8]>>(&self, table: u64, keys: &[K]) -> Result<Vec<Option<Record>>, Error> {
        self.runtime.block_on(self.client.snapshot(table, keys))
    }

    /// See [`crate::Client::range`].
    pub fn range(
        &self,
        table: u64,
        from: &[u8],
        to: &[u8],
        limit: usize,
        direction: Direction,
    ) -> Result<Vec<KeyedRecord>, Error> {
        self.runtime.block_on(self.client.range(table, from, to, limit, direction))
    }

    /// See [`crate::Client::range_at_once`].
    pub fn range_at_once(
        &self,
        table: u64,
        from: &[u8],
        to: &[u8],
        limit: usize,
        direction: Direction,
    ) -> Result<RangePage, Error> {
        self.runtime.block_on(self.client.range_at_once(table, from, to, limit, direction))
    }

    /// Writes a record; gives its new version.
    pub fn put(&self, table: u64, key: &[u8], value: &[u8], options: &PutOptions) -> Result<u64, Error> {
        self.runtime.block_on(self.client.put(table, key, value).options(*options).into_future())
    }

    /// See [`crate::Put::outcome`].
    pub fn put_outcome(&self, table: u64, key: &[u8], value: &[u8], options: &PutOptions) -> Result<PutOutcome, Error> {
        self.runtime.block_on(self.client.put(table, key, value).options(*options).outcome())
    }

    /// See [`crate::Client::delete`].
    pub fn delete(&self, table: u64, key: &[u8]) -> Result<bool, Error> {
        self.runtime.block_on(self.client.delete(table, key))
    }

    /// See [`crate::Client::delete_if_version`].
    pub fn delete_if_version(&self, table: u64, key: &[u8], version: u64) -> Result<bool, Error> {
        self.runtime.block_on(self.client.delete_if_version(table, key, version))
    }

    /// See [`crate::Client::increment`].
    pub fn increment(&self, table: u64, key: &[u8], delta: i64) -> Result<i64, Error> {
        self.runtime.block_on(self.client.increment(table, key, delta))
    }

    /// See [`crate::Client::count`].
    pub fn count(&self, table: u64, from: &[u8], to: &[u8]) -> Result<u64, Error> {
        self.runtime.block_on(self.client.count(table, from, to))
    }

    /// See [`crate::Client::count_many`].
    pub fn count_many<K: AsRef<[u8]>>(&self, table: u64, spans: &[(K, K)]) -> Result<Vec<u64>, Error> {
        self.runtime.block_on(self.client.count_many(table, spans))
    }

    /// See [`crate::Client::rank`].
    pub fn rank(&self, table: u64, key: &[u8]) -> Result<u64, Error> {
        self.runtime.block_on(self.client.rank(table, key))
    }

    /// See [`crate::Client::nth`].
    pub fn nth(&self, table: u64, position: u64) -> Result<Option<Bytes>, Error> {
        self.runtime.block_on(self.client.nth(table, position))
    }

    /// See [`crate::Client::ttl`].
    pub fn ttl(&self, table: u64, key: &[u8]) -> Result<Option<RecordExpiry>, Error> {
        self.runtime.block_on(self.client.ttl(table, key))
    }

    /// See [`crate::Client::touch`].
    pub fn touch(&self, table: u64, key: &[u8], ttl: Option<Duration>) -> Result<bool, Error> {
        self.runtime.block_on(self.client.touch(table, key, ttl))
    }

    /// See [`crate::Client::invoke`].
    pub fn invoke(&self, name: &str, args: &[u8]) -> Result<Bytes, Error> {
        self.runtime.block_on(self.client.invoke(name, args))
    }

    /// See [`crate::Client::invoke_version`].
    pub fn invoke_version(&self, name: &str, version: u64, args: &[u8]) -> Result<Bytes, Error> {
        self.runtime.block_on(self.client.invoke_version(name, version, args))
    }

    /// See [`crate::Client::invoke_measured`].
    pub fn invoke_measured(&self, name: &str, version: u64, args: &[u8]) -> Result<MeasuredCall, Error> {
        self.runtime.block_on(self.client.invoke_measured(name, version, args))
    }

    /// See [`crate::Client::query`].
    pub fn query(&self, name: &str, args: &[u8]) -> Result<Bytes, Error> {
        self.runtime.block_on(self.client.query(name, args))
    }

    /// See [`crate::Client::on_cost`]. What is told the costs may not use a blocking client itself.
    #[must_use]
    pub fn on_cost(&self, observe: impl Fn(CallCost) + Send + Sync + 'static) -> Client {
        Client { runtime: Arc::clone(&self.runtime), client: self.client.on_cost(observe) }
    }

    /// See [`crate::Client::near`].
    pub fn near(&self, table: u64, key: &[u8]) -> Result<Client, Error> {
        let client = self.runtime.block_on(self.client.near(table, key))?;
        Ok(Client { runtime: Arc::clone(&self.runtime), client })
    }

    /// See [`crate::Client::calls_near`].
    #[must_use]
    pub fn calls_near(&self, key: &[u8]) -> Client {
        Client { runtime: Arc::clone(&self.runtime), client: self.client.calls_near(key) }
    }

    /// See [`crate::Client::transaction`].
    pub fn transaction(&self) -> BlockingTransaction {
        BlockingTransaction { runtime: Arc::clone(&self.runtime), transaction: self.client.transaction() }
    }

    /// See [`crate::Client::transact`].
    ///
    /// # Errors
    /// As there.
    pub fn transact<T, E: From<Error>>(
        &self,
        mut body: impl FnMut(&mut BlockingTransaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut tries = 1;
        loop {
            let mut transaction = self.transaction();
            let outcome = body(&mut transaction);
            let is_done = outcome.is_ok();
            let BlockingTransaction { runtime, transaction } = transaction;
            let ended = match is_done {
                true => runtime.block_on(transaction.commit()),
                false => runtime.block_on(transaction.check_reads()),
            };
            match ended {
                Err(Error::TransactionConflict { .. }) if tries < limits::TRANSACTION_TRIES => {
                    std::thread::sleep(pause_after(tries));
                    tries += 1;
                }
                Err(error) if is_done || matches!(error, Error::TransactionConflict { .. }) => return Err(error.into()),
                _ => return outcome,
            }
        }
    }

    /// See [`crate::Client::put_many`].
    ///
    /// # Errors
    /// As there.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        table: u64,
        records: &[(K, V)],
        options: &PutOptions,
    ) -> Result<Vec<u64>, Error> {
        self.runtime.block_on(self.client.put_many(table, records, options))
    }

    /// See [`crate::Client::batch`]; send it with [`Client::send`].
    pub fn batch(&self) -> Batch<'_> {
        self.client.batch()
    }

    /// Sends a batch.
    pub fn send(&self, batch: Batch<'_>) -> Result<Vec<Result<Reply, Error>>, Error> {
        self.runtime.block_on(batch.send())
    }
}

/// A [`ClientTransaction`] for scripts.
#[must_use = "nothing is written before commit()"]
#[derive(Debug)]
pub struct BlockingTransaction {
    runtime: Arc<Runtime>,
    transaction: ClientTransaction,
}

impl BlockingTransaction {
    /// See [`ClientTransaction::get`].
    pub fn get(&mut self, table: u64, key: &[u8]) -> Result<Option<Record>, Error> {
        self.runtime.block_on(self.transaction.get(table, key))
    }

    /// See [`ClientTransaction::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&mut self, table: u64, keys: &[K]) -> Result<Vec<Option<Record>>, Error> {
        self.runtime.block_on(self.transaction.multi_get(table, keys))
    }

    /// See [`ClientTransaction::range`].
    pub fn range(
        &mut self,
        table: u64,
        from: &[u8],
        to: &[u8],
        limit: usize,
        direction: Direction,
    ) -> Result<Vec<KeyedRecord>, Error> {
        self.runtime.block_on(self.transaction.range(table, from, to, limit, direction))
    }

    /// See [`ClientTransaction::count`].
    ///
    /// # Errors
    /// As there.
    pub fn count(&mut self, table: u64, from: &[u8], to: &[u8]) -> Result<u64, Error> {
        self.runtime.block_on(self.transaction.count(table, from, to))
    }

    /// See [`ClientTransaction::rank`].
    ///
    /// # Errors
    /// As there.
    pub fn rank(&mut self, table: u64, key: &[u8]) -> Result<u64, Error> {
        self.runtime.block_on(self.transaction.rank(table, key))
    }

    /// See [`ClientTransaction::nth`].
    ///
    /// # Errors
    /// As there.
    pub fn nth(&mut self, table: u64, position: u64) -> Result<Option<Bytes>, Error> {
        self.runtime.block_on(self.transaction.nth(table, position))
    }

    /// See [`ClientTransaction::ttl`].
    ///
    /// # Errors
    /// As there.
    pub fn ttl(&mut self, table: u64, key: &[u8]) -> Result<Option<RecordExpiry>, Error> {
        self.runtime.block_on(self.transaction.ttl(table, key))
    }

    /// See [`ClientTransaction::touch`].
    ///
    /// # Errors
    /// As there.
    pub fn touch(&mut self, table: u64, key: &[u8], ttl: Option<Duration>) -> Result<bool, Error> {
        self.runtime.block_on(self.transaction.touch(table, key, ttl))
    }

    /// See [`ClientTransaction::put`].
    pub fn put(&mut self, table: u64, key: &[u8], value: &[u8]) {
        self.transaction.put(table, key, value);
    }

    /// See [`ClientTransaction::put_with`].
    pub fn put_with(&mut self, table: u64, key: &[u8], value: &[u8], flags: u32, ttl: Option<Duration>) {
        self.transaction.put_with(table, key, value, flags, ttl);
    }

    /// See [`ClientTransaction::check`].
    ///
    /// # Errors
    /// As there.
    pub fn check(&mut self, table: u64, key: &[u8], expected: ExpectedRecord<'_>) -> Result<(), Error> {
        self.runtime.block_on(self.transaction.check(table, key, expected))
    }

    /// See [`ClientTransaction::put_if`].
    ///
    /// # Errors
    /// As there.
    pub fn put_if(&mut self, table: u64, key: &[u8], value: &[u8], expected: ExpectedRecord<'_>) -> Result<(), Error> {
        self.runtime.block_on(self.transaction.put_if(table, key, value, expected))
    }

    /// See [`ClientTransaction::increment`].
    ///
    /// # Errors
    /// As there.
    pub fn increment(&mut self, table: u64, key: &[u8], delta: i64) -> Result<i64, Error> {
        self.runtime.block_on(self.transaction.increment(table, key, delta))
    }

    /// See [`ClientTransaction::delete`].
    pub fn delete(&mut self, table: u64, key: &[u8]) {
        self.transaction.delete(table, key);
    }

    /// See [`ClientTransaction::delete_range`].
    ///
    /// # Errors
    /// As there.
    pub fn delete_range(&mut self, table: u64, from: &[u8], to: &[u8], limit: usize) -> Result<usize, Error> {
        self.runtime.block_on(self.transaction.delete_range(table, from, to, limit))
    }

    /// See [`ClientTransaction::commit`].
    ///
    /// # Errors
    /// As there.
    pub fn commit(self) -> Result<(), Error> {
        self.runtime.block_on(self.transaction.commit())
    }
}
