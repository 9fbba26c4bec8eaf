//! The async client.

use crate::config::Config;
use crate::cost_observer::CostObserver;
use crate::links::ServerLinks;
use crate::message::{Direction, KeyedRecord, Message, PutOptions, PutOutcome, RangePage, Record, Reply};
use crate::names::LearnedNames;
use crate::replies;
use crate::stats::Stats;
use crate::{Error, limits};
use bytes::Bytes;
use sandstorm_net::rpc::{MAX_KEY_LEN, MAX_MESSAGE_LEN, MAX_OPERATIONS, OP_HEADER_LEN};
use sandstorm_net::slots::slot_of;
use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection to a server as one tenant: one UDP socket (or driver), many requests in flight. Cheap to clone; all
/// clones share it.
///
/// Every request resends until its answer comes or its deadline passes, and the server runs it at most once. A future
/// that is dropped does not take its request back.
#[derive(Clone)]
pub struct Client {
    pub(crate) links: Arc<ServerLinks>,
    /// The server of the requests that name no key; `None`: the one that the client began with.
    near: Option<SocketAddr>,
    /// The key at whose server they are instead, and to which calls go wherever it moves.
    pub(crate) near_key: Option<Arc<[u8]>>,
    pub(crate) deadline: Duration,
    /// Is told what each call cost.
    pub(crate) cost_observer: Option<CostObserver>,
    names: Option<Arc<LearnedNames>>,
}

impl Client {
    /// Binds a socket, logs in, and learns which worker is the tenant's home. Needs a tokio runtime with I/O and time;
    /// the client lives as long as that runtime.
    ///
    /// # Errors
    /// [`Error::Timeout`] when no server answers, [`Error::Unauthenticated`] or [`Error::UnknownTenant`] when the
    /// client may not log in, [`Error::Io`] when no socket can be had.
    pub async fn connect(config: Config) -> Result<Client, Error> {
        let deadline = config.deadline;
        let links = Arc::new(ServerLinks::connect(config).await?);
        Ok(Client { links, near: None, near_key: None, deadline, cost_observer: None, names: None })
    }

    /// The same connection with another deadline for the requests made through it.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Client {
        Client { deadline, ..self.clone() }
    }

    /// The same connection, whose calls' cost is told to the observer.
    pub(crate) fn with_cost_observer(&self, observer: CostObserver) -> Client {
        Client { cost_observer: Some(observer), ..self.clone() }
    }

    /// The same connection, which knows where to ask for names.
    pub(crate) fn with_names(self, names: Arc<LearnedNames>) -> Client {
        Client { names: Some(names), ..self }
    }

    pub(crate) fn names(&self) -> Option<&Arc<LearnedNames>> {
        self.names.as_ref()
    }

    /// Number of the server's workers.
    pub fn workers(&self) -> u32 {
        self.links.first().workers()
    }

    /// The worker that is the tenant's home.
    pub fn home_worker(&self) -> u32 {
        self.links.first().home_worker()
    }

    /// Counts of what the connection has sent, resent and received so far.
    pub fn stats(&self) -> Stats {
        self.links.first().stats()
    }

    /// Asks for a sign of life; gives the time it took.
    pub async fn ping(&self) -> Result<Duration, Error> {
        let begun = Instant::now();
        let mut message = Message::new();
        message.ping(&[]);
        self.single(message).await?;
        Ok(begun.elapsed())
    }

    /// Reads the record under `key`; `None` when there is none.
    pub async fn get(&self, table: u64, key: &[u8]) -> Result<Option<Record>, Error> {
        let build = || Message::of(|message| message.get(table, key));
        match self.keyed(key, build).await? {
            Reply::Record(record) => Ok(record),
            other => Err(unexpected_reply("get", &other)),
        }
    }

    /// Reads the records under `keys`, in their order. One round trip carries [`limits::MESSAGE_KEYS`] keys; more are
    /// read in several, each with the whole deadline.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where the keys, or the records, of one round trip are over 8 MiB together: ask for fewer.
    pub async fn multi_get<K: AsRef<[u8]>>(&self, table: u64, keys: &[K]) -> Result<Vec<Option<Record>>, Error> {
        let (first, rest) = keys.split_at(keys.len().min(limits::MESSAGE_KEYS));
        let mut records = self.some(table, first).await?;
        for keys in rest.chunks(limits::MESSAGE_KEYS) {
            records.extend(self.some(table, keys).await?);
        }
        Ok(records)
    }

    async fn some<K: AsRef<[u8]>>(&self, table: u64, keys: &[K]) -> Result<Vec<Option<Record>>, Error> {
        if !self.links.is_cluster() {
            let message = Message::of(|message| message.multi_get(table, keys));
            match self.records(message, keys.len()).await {
                Err(Error::WrongServer { .. }) => self.links.note_cluster(),
                other => return other,
            }
        }
        self.multi_get_parts(table, keys).await
    }

    /// Like [`Client::multi_get`], with all records as of one moment: all that a transaction writes, or nothing of it.
    ///
    /// # Errors
    /// [`Error::TooLarge`], and nothing is sent, for more than [`limits::MESSAGE_KEYS`] keys: a moment cannot be split.
    pub async fn snapshot<K: AsRef<[u8]>>(&self, table: u64, keys: &[K]) -> Result<Vec<Option<Record>>, Error> {
        let build = || Message::of(|message| message.snapshot(table, keys));
        match keys {
            // They are at one server, whichever that is.
            [first, rest @ ..] if rest.iter().all(|key| slot_of(key.as_ref()) == slot_of(first.as_ref())) => {
                some_records(self.keyed(first.as_ref(), build).await?, keys.len())
            }
            _ => self.records(build(), keys.len()).await,
        }
    }

    pub(crate) async fn records(&self, message: Message, count: usize) -> Result<Vec<Option<Record>>, Error> {
        some_records(self.single(message).await?, count)
    }

    /// Reads up to `limit` records of an ordered table with `from <= key < to` (empty `to`: to the end), in the order
    /// of their keys. It asks again until it has them all, so the records of a long range are of different moments.
    pub async fn range(
        &self,
        table: u64,
        from: &[u8],
        to: &[u8],
        limit: usize,
        direction: Direction,
    ) -> Result<Vec<KeyedRecord>, Error> {
        let (mut from, mut to, mut records) = (from.to_vec(), to.to_vec(), Vec::new());
        loop {
            let page = self.page(table, &from, &to, limit - records.len(), direction, false).await?;
            records.extend(page.records);
            let Some(on) = page.on.filter(|_| records.len() < limit) else { break };
            match direction {
                // Before the empty key there is nothing, and as an end it would stand for none.
                Direction::Backward if on.is_empty() => break,
                Direction::Backward => to = on.to_vec(),
                Direction::Forward => match successor_key(&on) {
                    Some(next) => from = next,
                    None => break,
                },
            }
        }
        Ok(records)
    }

    /// The beginning of a range with all of its records as they were at one moment: as many as one message holds, at
    /// most `limit`.
    pub async fn range_at_once(
        &self,
        table: u64,
        from: &[u8],
        to: &[u8],
        limit: usize,
        direction: Direction,
    ) -> Result<RangePage, Error> {
        self.page(table, from, to, limit, direction, true).await
    }

    async fn page(
        &self,
        table: u64,
        from: &[u8],
        to: &[u8],
        limit: usize,
        direction: Direction,
        at_once: bool,
    ) -> Result<RangePage, Error> {
        let mut message = Message::new();
        message.range(table, from, to, limit.min(limits::RANGE_PAGE) as u32, direction, at_once);
        match self.single(message).await? {
            Reply::Range(page) => Ok(page),
            other => Err(unexpected_reply("range", &other)),
        }
    }

    /// Writes a record; `.await` sends it and gives the new version. Conditions and life are set before:
    /// `client.put(table, b"key", b"value").if_absent().ttl(Duration::from_secs(60)).await?`.
    pub fn put<'a>(&'a self, table: u64, key: &'a [u8], value: &'a [u8]) -> Put<'a> {
        Put { client: self, table, key, value, options: PutOptions::default() }
    }

    /// Deletes the record under `key`; whether there was one.
    pub async fn delete(&self, table: u64, key: &[u8]) -> Result<bool, Error> {
        self.delete_if(table, key, None).await
    }

    /// Deletes the record under `key` if it has that version; `false` when there is none, [`Error::Conflict`] when it
    /// has another.
    pub async fn delete_if_version(&self, table: u64, key: &[u8], version: u64) -> Result<bool, Error> {
        self.delete_if(table, key, Some(version)).await
    }

    async fn delete_if(&self, table: u64, key: &[u8], if_version: Option<u64>) -> Result<bool, Error> {
        let build = || Message::of(|message| message.delete(table, key, if_version));
        match self.keyed(key, build).await? {
            Reply::Deleted(was) => Ok(was),
            other => Err(unexpected_reply("delete", &other)),
        }
    }

    /// Adds `delta` to the decimal number under `key` (0 when absent); gives the sum.
    pub async fn increment(&self, table: u64, key: &[u8], delta: i64) -> Result<i64, Error> {
        let build = || Message::of(|message| message.increment(table, key, delta));
        match self.keyed(key, build).await? {
            Reply::Sum(sum) => Ok(sum),
            other => Err(unexpected_reply("increment", &other)),
        }
    }

    /// Several operations in one message: one round trip, run in order, each with its own result. They are not one
    /// transaction.
    pub fn batch(&self) -> Batch<'_> {
        Batch { client: self, message: Message::new() }
    }

    pub(crate) async fn single(&self, message: Message) -> Result<Reply, Error> {
        replies::decode_single_reply(&self.response(message).await?)
    }

    /// One result for each operation of a message, at the server of requests without keys.
    pub(crate) async fn all(&self, message: Message) -> Result<Vec<Result<Reply, Error>>, Error> {
        let requested = message.operations();
        let replies = replies::decode_replies(&self.response(message).await?)?;
        if replies.len() != requested {
            // A message refused as a whole is answered by one operation that says why.
            if let [Err(error)] = replies.as_slice() {
                return Err(error.clone());
            }
            return Err(Error::Protocol { text: format!("{} answers to {requested} operations", replies.len()) });
        }
        Ok(replies)
    }

    pub(crate) async fn response(&self, message: Message) -> Result<Bytes, Error> {
        self.links.link(self.place()).await?.request(message, self.deadline).await
    }

    /// Writes many records with the same options, in their order, as many in a message as fit; gives their versions. It
    /// is no transaction.
    ///
    /// # Errors
    /// That of the first record that was not written, such as [`Error::Conflict`]. Those of its message may be written,
    /// and those of earlier messages are.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        table: u64,
        records: &[(K, V)],
        options: &PutOptions,
    ) -> Result<Vec<u64>, Error> {
        let mut versions = Vec::with_capacity(records.len());
        while let Some(rest) = records.get(versions.len()..).filter(|rest| !rest.is_empty()) {
            let mut batch = self.batch();
            for (key, value) in rest.iter().take(MAX_OPERATIONS) {
                let (key, value) = (key.as_ref(), value.as_ref());
                // One that is too large by itself is refused, as a put is.
                if !batch.is_empty() && batch.bytes() + put_len(key, value) > MAX_MESSAGE_LEN {
                    break;
                }
                batch = batch.put_with(table, key, value, options);
            }
            for reply in batch.send().await? {
                match reply? {
                    Reply::Written(version) => versions.push(version),
                    other => return Err(unexpected_reply("put", &other)),
                }
            }
        }
        Ok(versions)
    }

    /// The server of requests that name no key; `None`: the one that the client began with.
    pub(crate) fn place(&self) -> Option<SocketAddr> {
        match &self.near_key {
            Some(key) => self.links.owner(key),
            None => self.near,
        }
    }

    /// The key that calls run near; empty: none.
    pub(crate) fn calls_key(&self) -> &[u8] {
        self.near_key.as_deref().unwrap_or_default()
    }

    /// Asks the server that owns the key.
    pub(crate) async fn keyed(&self, key: &[u8], build: impl Fn() -> Message) -> Result<Reply, Error> {
        replies::decode_single_reply(&self.links.request(key, build, self.deadline).await?)
    }

    /// The same connection for requests that name no key, which go to the server that has this one: in a
    /// cluster a call of an extension reaches the keys of the server that it runs at. A call runs only where the key
    /// is: when that moves, the call follows it within its deadline.
    pub async fn near(&self, table: u64, key: &[u8]) -> Result<Client, Error> {
        // Where it is, is told by an answer.
        if self.links.owner(key).is_none() {
            self.get(table, key).await?;
        }
        Ok(self.calls_near(key))
    }

    /// The same connection for calls of extensions, which run at the server that has this key: see [`Client::near`].
    /// Nothing is sent for it; the first call finds the server. A version that is tried on a share of the calls gets
    /// all calls of a key, or none: without one, the connection is the key.
    #[must_use]
    pub fn calls_near(&self, key: &[u8]) -> Client {
        Client { near: None, near_key: Some(key.into()), ..self.clone() }
    }

    /// The same connection for requests that name no key, which go to this server.
    pub(crate) fn at(&self, near: Option<SocketAddr>) -> Client {
        Client { near, near_key: None, ..self.clone() }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client {{ deadline: {:?} }}", self.deadline)
    }
}

/// Bytes of a put in a message, at most.
fn put_len(key: &[u8], value: &[u8]) -> usize {
    /// The time to live before the value.
    const TTL_LEN: usize = 8;
    OP_HEADER_LEN + key.len() + TTL_LEN + value.len()
}

/// The smallest key that can come after `key`; `None`: none can.
pub(crate) fn successor_key(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    if key.len() < MAX_KEY_LEN {
        next.push(0);
        return Some(next);
    }
    // No longer one is a key: the next is larger in the last byte that can be.
    while let Some(last) = next.pop() {
        if let Some(larger) = last.checked_add(1) {
            next.push(larger);
            return Some(next);
        }
    }
    None
}

/// The records of a reply to a multi-get of `count` keys.
fn some_records(reply: Reply, count: usize) -> Result<Vec<Option<Record>>, Error> {
    match reply {
        Reply::Records(records) if records.len() == count => Ok(records),
        Reply::Records(records) => {
            let text = format!("{} records for {count} keys", records.len());
            Err(Error::Protocol { text })
        }
        other => Err(unexpected_reply("multi-get", &other)),
    }
}

pub(crate) fn unexpected_reply(requested: &str, reply: &Reply) -> Error {
    Error::Protocol { text: format!("a {requested} was answered with {reply:?}") }
}

/// A put under way; see [`Client::put`].
#[must_use = "a put is sent by .await"]
#[derive(Debug)]
pub struct Put<'a> {
    client: &'a Client,
    table: u64,
    key: &'a [u8],
    value: &'a [u8],
    options: PutOptions,
}

impl<'a> Put<'a> {
    /// Only if the record has this version; else [`Error::Conflict`].
    pub fn if_version(mut self, version: u64) -> Put<'a> {
        self.options = self.options.if_version(version);
        self
    }

    /// Only if there is no record; else [`Error::Conflict`].
    pub fn if_absent(mut self) -> Put<'a> {
        self.options = self.options.if_absent();
        self
    }

    /// Only if there is a record; else [`Error::Conflict`].
    pub fn if_present(mut self) -> Put<'a> {
        self.options = self.options.if_present();
        self
    }

    /// The record expires after `ttl`, in whole milliseconds.
    pub fn ttl(mut self, ttl: Duration) -> Put<'a> {
        self.options.ttl = Some(ttl);
        self
    }

    /// All of the above at once.
    pub fn options(mut self, options: PutOptions) -> Put<'a> {
        self.options = options;
        self
    }

    /// Flags to store beside the value.
    pub fn flags(mut self, flags: u32) -> Put<'a> {
        self.options.flags = flags;
        self
    }

    /// Sends it as `.await` does. A condition that does not hold is an outcome and no error; the outcome tells the
    /// record's present version, so that another try needs no read.
    pub async fn outcome(self) -> Result<PutOutcome, Error> {
        let Put { client, table, key, value, options } = self;
        let build = || Message::of(|message| message.put(table, key, value, &options));
        let response = client.links.request(key, build, client.deadline).await?;
        replies::decode_put_outcome(&response)
    }
}

impl<'a> IntoFuture for Put<'a> {
    type Output = Result<u64, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<u64, Error>> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.outcome().await? {
                PutOutcome::Written { version } => Ok(version),
                PutOutcome::Conflict { .. } => Err(Error::Conflict),
            }
        })
    }
}

/// Several operations in one message; see [`Client::batch`]. At most 256 operations and about 8 MiB together, and
/// [`limits::MESSAGE_KEYS`] keys of multigets and records of ranges.
#[must_use = "a batch is sent by send()"]
#[derive(Debug)]
pub struct Batch<'a> {
    client: &'a Client,
    message: Message,
}

impl Batch<'_> {
    /// Adds a get: [`Reply::Record`].
    pub fn get(mut self, table: u64, key: &[u8]) -> Self {
        self.message.get(table, key);
        self
    }

    /// Adds a multi-get: [`Reply::Records`]. It is not split, as [`Client::multi_get`] is.
    pub fn multi_get<K: AsRef<[u8]>>(mut self, table: u64, keys: &[K]) -> Self {
        self.message.multi_get(table, keys);
        self
    }

    /// Adds a range, as [`Message::range`] says: [`Reply::Range`].
    pub fn range(mut self, table: u64, from: &[u8], to: &[u8], limit: u32, direction: Direction) -> Self {
        self.message.range(table, from, to, limit, direction, false);
        self
    }

    /// Adds a plain put: [`Reply::Written`].
    pub fn put(self, table: u64, key: &[u8], value: &[u8]) -> Self {
        self.put_with(table, key, value, &PutOptions::default())
    }

    /// Adds a put with conditions, flags or a life: [`Reply::Written`].
    pub fn put_with(mut self, table: u64, key: &[u8], value: &[u8], options: &PutOptions) -> Self {
        self.message.put(table, key, value, options);
        self
    }

    /// Adds a delete: [`Reply::Deleted`].
    pub fn delete(mut self, table: u64, key: &[u8]) -> Self {
        self.message.delete(table, key, None);
        self
    }

    /// Adds an increment: [`Reply::Sum`].
    pub fn increment(mut self, table: u64, key: &[u8], delta: i64) -> Self {
        self.message.increment(table, key, delta);
        self
    }

    /// Adds a count of keys, as [`Client::count`]: [`Reply::Counted`].
    pub fn count(mut self, table: u64, from: &[u8], to: &[u8]) -> Self {
        self.message.count_keys(table, from, to);
        self
    }

    /// Adds a rank, as [`Client::rank`]: [`Reply::Counted`].
    pub fn rank(mut self, table: u64, key: &[u8]) -> Self {
        self.message.rank(table, key);
        self
    }

    /// Adds the question for the key at a position, as [`Client::nth`]: [`Reply::Key`].
    pub fn nth(mut self, table: u64, position: u64) -> Self {
        self.message.nth(table, position);
        self
    }

    /// Adds the question how long a record has left, as [`Client::ttl`]: [`Reply::Expiry`].
    pub fn ttl(mut self, table: u64, key: &[u8]) -> Self {
        self.message.ttl(table, key);
        self
    }

    /// Adds a touch, as [`Client::touch`]: [`Reply::Touched`].
    pub fn touch(mut self, table: u64, key: &[u8], ttl: Option<Duration>) -> Self {
        self.message.touch(table, key, ttl);
        self
    }

    /// Adds a call of an extension: [`Reply::Invoked`].
    pub fn invoke(mut self, name: &str, args: &[u8]) -> Self {
        let key = self.client.near_key.as_deref();
        self.message.call(name, 0, args, (0, key));
        self
    }

    /// Adds a call that does no harm if it runs twice, as [`Client::query`]: [`Reply::Invoked`].
    pub fn query(mut self, name: &str, args: &[u8]) -> Self {
        let key = self.client.near_key.as_deref();
        self.message.harmless(|message| message.call(name, 0, args, (0, key)));
        self
    }

    /// Number of operations so far.
    pub fn len(&self) -> usize {
        self.message.operations()
    }

    /// Returns whether it has no operation yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the message so far.
    pub fn bytes(&self) -> usize {
        self.message.bytes()
    }

    /// Sends it; one result per operation, in order.
    ///
    /// # Errors
    /// The error of the message as a whole, such as [`Error::Timeout`], or [`Error::TooLarge`] when it was not sent at
    /// all.
    pub async fn send(self) -> Result<Vec<Result<Reply, Error>>, Error> {
        let requested = self.message.operations();
        let Batch { client, message } = self;
        if requested == 0 {
            // One that has left out what is too large says so.
            message.finish(0)?;
            return Ok(Vec::new());
        }
        if client.links.is_cluster() {
            return client.send_parts(message, Vec::new()).await;
        }
        let again = message.clone();
        let replies = client.all(message).await?;
        if replies.iter().all(|reply| !matches!(reply, Err(Error::WrongServer { .. }))) {
            return Ok(replies);
        }
        // Nothing was done for a key that is elsewhere.
        client.links.note_cluster();
        let operations = again.clone().each(client.calls_key())?;
        let settled = operations.iter().zip(replies).map(|((key, _), reply)| client.settled(key, reply)).collect();
        client.send_parts(again, settled).await
    }
}
