//! Interactive transactions: reads and buffered writes of a client, which one message commits.

mod expiry;
mod positions;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;
use rand::Rng;
use sandstorm_net::rpc::{COMMIT_WRITES, CommitRow, CommitRows, CommitStep, push_commit_row};

use crate::client::{successor_key, unexpected_reply};
use crate::commit_message::{CommitMessage, TOO_MANY_DELETES};
use crate::error::not_a_number;
use crate::message::{Direction, KeyedRecord, Message, Record, Reply, whole_ms};
use crate::replies::decode_single_reply;
use crate::{Client, Error, limits};

/// What has to be so of a record that a transaction goes on from: see [`ClientTransaction::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedRecord<'v> {
    /// There is none.
    Absent,
    /// There is one.
    Present,
    /// It has this version.
    Version(u64),
    /// It has this value.
    Value(&'v [u8]),
}

impl ExpectedRecord<'_> {
    fn is_met_by(self, found: Option<&Record>) -> bool {
        match self {
            ExpectedRecord::Absent => found.is_none(),
            ExpectedRecord::Present => found.is_some(),
            // What the transaction writes itself has none yet, which is shown as 0.
            ExpectedRecord::Version(version) => {
                found.is_some_and(|record| record.version != 0 && record.version == version)
            }
            ExpectedRecord::Value(value) => found.is_some_and(|record| record.value == value),
        }
    }
}

/// A decimal number as the server's increment reads it: an optional minus and digits, nothing else.
fn decimal(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'))?;
    text.parse().ok()
}

/// A record that a transaction will write.
#[derive(Clone, Debug)]
struct BufferedPut {
    value: Bytes,
    flags: u32,
    ttl: Option<Duration>,
}

/// A range that a transaction has read.
#[derive(Clone, Debug)]
struct NotedRange {
    table: u64,
    from: Vec<u8>,
    to: Vec<u8>,
    direction: Direction,
    rows: Vec<(Bytes, u64)>,
}

/// How many keys of an ordered table a transaction has found with `from <= key < to` (empty `to`: to the end).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NotedCount {
    table: u64,
    from: Vec<u8>,
    to: Vec<u8>,
    keys: u64,
}

/// A transaction of this client; see [`Client::transaction`] and [`Client::transact`].
///
/// Reads go to the server one by one, so they may be of different moments until [`ClientTransaction::commit`] has said
/// that all of them hold together. Writes wait here until then, and the transaction's own reads show them. One that is
/// dropped has changed nothing.
#[must_use = "nothing is written before commit()"]
#[derive(Debug)]
pub struct ClientTransaction {
    client: Client,
    reads: HashMap<(u64, Vec<u8>), Option<Record>>,
    ranges: Vec<NotedRange>,
    /// What was found twice, and differs, stands here twice: the server refuses one of them.
    counts: BTreeSet<NotedCount>,
    /// `None`: the record is deleted.
    writes: BTreeMap<(u64, Vec<u8>), Option<BufferedPut>>,
    /// Whether a read had no answer: nothing is learned by asking again.
    has_failed: bool,
}

impl BufferedPut {
    /// The record as the transaction's own reads show it: it has no version yet.
    fn as_record(&self) -> Record {
        Record { value: self.value.clone(), version: 0, flags: self.flags }
    }
}

impl ClientTransaction {
    pub(crate) fn new(client: Client) -> ClientTransaction {
        let (reads, ranges, counts, writes) = Default::default();
        ClientTransaction { client, reads, ranges, counts, writes, has_failed: false }
    }

    /// Notes that a read has failed.
    fn noted<T>(&mut self, found: Result<T, Error>) -> Result<T, Error> {
        self.has_failed |= found.is_err();
        found
    }

    /// What is known of a key without asking: what was written, or read, before.
    fn known(&self, key: &(u64, Vec<u8>)) -> Option<Option<Record>> {
        match self.writes.get(key) {
            Some(written) => Some(written.as_ref().map(BufferedPut::as_record)),
            None => self.reads.get(key).cloned(),
        }
    }

    /// Reads the record under `key`, or what the transaction has written there (version 0); `None` when there is none.
    /// A key that was read before is not asked for again.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub async fn get(&mut self, table: u64, key: &[u8]) -> Result<Option<Record>, Error> {
        let place = (table, key.to_vec());
        if let Some(known) = self.known(&place) {
            return Ok(known);
        }
        let found = self.client.get(table, key).await;
        let found = self.noted(found)?;
        self.reads.insert(place, found.clone());
        Ok(found)
    }

    /// Reads the records under `keys`, in their order, as [`ClientTransaction::get`] does, those that it does not know
    /// in one round trip.
    ///
    /// # Errors
    /// As for [`Client::multi_get`].
    pub async fn multi_get<K: AsRef<[u8]>>(&mut self, table: u64, keys: &[K]) -> Result<Vec<Option<Record>>, Error> {
        let places: Vec<_> = keys.iter().map(|key| (table, key.as_ref().to_vec())).collect();
        let mut unknown: Vec<_> = places.iter().filter(|place| self.known(place).is_none()).cloned().collect();
        unknown.sort_unstable();
        unknown.dedup();
        if !unknown.is_empty() {
            let asked: Vec<&[u8]> = unknown.iter().map(|(_, key)| &key[..]).collect();
            let found = self.client.multi_get(table, &asked).await;
            let found = self.noted(found)?;
            self.reads.extend(unknown.into_iter().zip(found));
        }
        Ok(places.iter().map(|place| self.known(place).flatten()).collect())
    }

    /// Reads up to `limit` records of an ordered table with `from <= key < to` (empty `to`: to the end), with what the
    /// transaction itself has written and deleted there. The commit holds only if no other record has come meanwhile.
    ///
    /// # Errors
    /// As for [`Client::range`].
    pub async fn range(
        &mut self,
        table: u64,
        from: &[u8],
        to: &[u8],
        limit: usize,
        direction: Direction,
    ) -> Result<Vec<KeyedRecord>, Error> {
        if limit == 0 || (!to.is_empty() && to <= from) {
            return Ok(Vec::new());
        }
        // Each record that it deletes itself may hide one of those that are found.
        let deletes = self.written_within(table, from, to).filter(|(_, written)| written.is_none()).count();
        let asked = limit.saturating_add(deletes);
        let found = self.client.range(table, from, to, asked, direction).await;
        let found = self.noted(found)?;
        let (mut from, mut to) = (from.to_vec(), to.to_vec());
        if let Some(last) = found.last().filter(|_| found.len() >= asked) {
            // Only so far is known what there is.
            match direction {
                Direction::Forward => to = successor_key(&last.key).unwrap_or(to),
                Direction::Backward => from = last.key.to_vec(),
            }
        }
        let mut shown: BTreeMap<Bytes, KeyedRecord> =
            found.iter().map(|record| (record.key.clone(), record.clone())).collect();
        for ((_, key), written) in self.written_within(table, &from, &to) {
            match written {
                None => drop(shown.remove(&key[..])),
                Some(put) => {
                    let (key, record) = (Bytes::copy_from_slice(key), put.as_record());
                    let Record { value, version, flags } = record;
                    shown.insert(key.clone(), KeyedRecord { key, value, version, flags });
                }
            }
        }
        let rows = found.into_iter().map(|record| (record.key, record.version)).collect();
        self.ranges.push(NotedRange { table, from, to, direction, rows });
        let shown = shown.into_values();
        Ok(match direction {
            Direction::Forward => shown.take(limit).collect(),
            Direction::Backward => shown.rev().take(limit).collect(),
        })
    }

    /// What it writes with `from <= key < to` (empty `to`: to the end of the table).
    fn written_within<'t>(
        &'t self,
        table: u64,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = (&'t (u64, Vec<u8>), &'t Option<BufferedPut>)> {
        let end = match to {
            [] => table.checked_add(1).map_or(Bound::Unbounded, |next| Bound::Excluded((next, Vec::new()))),
            _ => Bound::Excluded((table, to.to_vec())),
        };
        self.writes.range((Bound::Included((table, from.to_vec())), end))
    }

    /// Writes a record when the transaction is committed.
    pub fn put(&mut self, table: u64, key: &[u8], value: &[u8]) {
        self.put_with(table, key, value, 0, None);
    }

    /// The same with flags, and the life of the record from the commit on, in whole milliseconds.
    pub fn put_with(&mut self, table: u64, key: &[u8], value: &[u8], flags: u32, ttl: Option<Duration>) {
        let put = BufferedPut { value: Bytes::copy_from_slice(value), flags, ttl };
        self.writes.insert((table, key.to_vec()), Some(put));
    }

    /// Goes on only if a record is so. What was found there is part of what the transaction has read, so it still is so
    /// at the commit. Of a record that the transaction has written itself its own writes count; it has no version.
    ///
    /// # Errors
    /// [`Error::Conflict`]: it is not so. Otherwise as for [`ClientTransaction::get`].
    pub async fn check(&mut self, table: u64, key: &[u8], expected: ExpectedRecord<'_>) -> Result<(), Error> {
        let found = self.get(table, key).await?;
        if expected.is_met_by(found.as_ref()) { Ok(()) } else { Err(Error::Conflict) }
    }

    /// Writes a record when the transaction is committed, if what stands there is so: a [`ClientTransaction::check`],
    /// then a [`ClientTransaction::put`].
    ///
    /// # Errors
    /// As for [`ClientTransaction::check`]; nothing is written then.
    pub async fn put_if(
        &mut self,
        table: u64,
        key: &[u8],
        value: &[u8],
        expected: ExpectedRecord<'_>,
    ) -> Result<(), Error> {
        self.check(table, key, expected).await?;
        self.put(table, key, value);
        Ok(())
    }

    /// Adds to the decimal number under `key`, 0 where there is no record, when the transaction is committed; gives the
    /// sum. Flags stay; a time to live ends, since what was read does not tell it.
    ///
    /// # Errors
    /// [`Error::NotANumber`], also if the sum does not fit. Otherwise as for [`ClientTransaction::get`].
    pub async fn increment(&mut self, table: u64, key: &[u8], delta: i64) -> Result<i64, Error> {
        let found = self.get(table, key).await?;
        let (text, flags) = found.as_ref().map_or((&b"0"[..], 0), |found| (&found.value[..], found.flags));
        let sum = decimal(text).and_then(|number| number.checked_add(delta)).ok_or_else(|| not_a_number(key))?;
        self.put_with(table, key, sum.to_string().as_bytes(), flags, None);
        Ok(sum)
    }

    /// Deletes a record when the transaction is committed, if there is one then.
    pub fn delete(&mut self, table: u64, key: &[u8]) {
        self.writes.insert((table, key.to_vec()), None);
    }

    /// Deletes records of an ordered table with `from <= key < to` (empty `to`: to the end), the smallest keys first
    /// and at most `limit`, when the transaction is committed; gives how many. If it is fewer than `limit`, nothing is
    /// left there: at the commit too, since a record that came into the range is a conflict. What the transaction
    /// itself has written is seen. The records travel to the client, as those of a [`ClientTransaction::range`].
    ///
    /// ```no_run
    /// # use sandstorm_client::{Client, Error};
    /// /// Empties a cart into an order: what is put into the cart meanwhile is not lost.
    /// async fn order(client: &Client, carts: u64, orders: u64) -> Result<usize, Error> {
    ///     client
    ///         .transact(async |transaction| {
    ///             let articles = transaction.delete_range(carts, b"ann:", b"ann;", 100).await?;
    ///             transaction.put(orders, b"ann", articles.to_string().as_bytes());
    ///             Ok(articles)
    ///         })
    ///         .await
    /// }
    /// ```
    ///
    /// # Errors
    /// As for [`Client::range`]; [`Error::TooLarge`] if they are more than the 256 records that a transaction may
    /// write: none of them is deleted then.
    pub async fn delete_range(&mut self, table: u64, from: &[u8], to: &[u8], limit: usize) -> Result<usize, Error> {
        // One more than may be written: that there are so many is all that has to be known.
        let found = self.range(table, from, to, limit.min(COMMIT_WRITES + 1), Direction::Forward).await?;
        let places: Vec<_> = found.iter().map(|record| (table, record.key.to_vec())).collect();
        let new = places.iter().filter(|place| !self.writes.contains_key(*place)).count();
        if self.writes.len() + new > COMMIT_WRITES {
            return Err(Error::TooLarge { what: TOO_MANY_DELETES.to_owned() });
        }
        let deleted = places.len();
        self.writes.extend(places.into_iter().map(|place| (place, None)));
        Ok(deleted)
    }

    /// Makes all of its writes at one moment at which all that it has read still holds, or none, in one message. As
    /// durable as a put: the answer waits for the log where the tables' durability says so.
    ///
    /// # Errors
    /// [`Error::TransactionConflict`] when others have changed what it has read: begin anew, or let
    /// [`Client::transact`] do that. [`Error::TooLarge`] over 1,024 keys read one by one, 256 ranges and counts
    /// with 2,048 records, 256 writes, or 1 MiB of keys and values. After any error but those of
    /// [requests that may have run](crate#what-a-request-promises) nothing is written.
    pub async fn commit(self) -> Result<(), Error> {
        match self.steps()? {
            Some(steps) => self.client.commit_steps(&steps).await,
            None => Ok(()),
        }
    }

    /// Asks whether all that it has read held at one moment, and writes nothing: an error that comes of
    /// reads of different moments does not stand. It does not ask after a read that has failed.
    pub(crate) async fn check_reads(mut self) -> Result<(), Error> {
        if self.has_failed {
            return Ok(());
        }
        self.writes.clear();
        self.commit().await
    }

    /// Its steps; `None`: it has neither read nor written anything.
    fn steps(&self) -> Result<Option<CommitMessage>, Error> {
        let has_read = !self.reads.is_empty() || !self.ranges.is_empty() || !self.counts.is_empty();
        if !has_read && self.writes.is_empty() {
            return Ok(None);
        }
        let mut steps = CommitMessage::default();
        for ((table, key), found) in &self.reads {
            let version = found.as_ref().map_or(0, |record| record.version);
            steps.push(&CommitStep::Read { table: *table, key, version })?;
        }
        for NotedRange { table, from, to, direction, rows } in &self.ranges {
            let mut encoded = Vec::new();
            rows.iter().for_each(|(key, version)| push_commit_row(&mut encoded, &CommitRow { key, version: *version }));
            let (rows, backward) = (CommitRows::new(rows.len() as u32, &encoded), *direction == Direction::Backward);
            steps.push(&CommitStep::Range { table: *table, from, to, backward, rows })?;
        }
        for NotedCount { table, from, to, keys } in &self.counts {
            steps.push(&CommitStep::Count { table: *table, from, to, keys: *keys })?;
        }
        for ((table, key), written) in &self.writes {
            steps.push(&match written {
                None => CommitStep::Delete { table: *table, key },
                Some(BufferedPut { value, flags, ttl }) => {
                    let ttl_ms = ttl.map_or(0, whole_ms);
                    CommitStep::Put { table: *table, key, value, user_flags: *flags, ttl_ms }
                }
            })?;
        }
        Ok(Some(steps))
    }
}

impl Client {
    /// Begins a transaction. Reads and writes of any number of tables are committed together, as those of an
    /// extension's call are; other clients and calls see all of its writes or none.
    ///
    /// ```no_run
    /// # async fn transfer(client: sandstorm_client::Client, table: u64) -> Result<(), sandstorm_client::Error> {
    /// let mut transaction = client.transaction();
    /// let stock = transaction.get(table, b"apples").await?;
    /// if stock.is_some_and(|stock| stock.value == "1") {
    ///     transaction.delete(table, b"apples");
    ///     transaction.put(table, b"order:7", b"the last apple");
    /// }
    /// transaction.commit().await
    /// # }
    /// ```
    pub fn transaction(&self) -> ClientTransaction {
        ClientTransaction::new(self.clone())
    }

    /// Commits a transaction whose reads and writes the caller has kept itself, as clients in other languages do.
    ///
    /// # Errors
    /// As for [`ClientTransaction::commit`].
    pub async fn commit_steps(&self, steps: &CommitMessage) -> Result<(), Error> {
        let message = || Message::of(|message| message.commit(steps));
        let response = match steps.first_key() {
            Some(key) => self.links.request(key, message, self.deadline).await?,
            // Ranges and counts alone: any server says whether it has all keys.
            None => self.response(message()).await?,
        };
        match decode_single_reply(&response)? {
            Reply::Committed => Ok(()),
            other => Err(unexpected_reply("commit", &other)),
        }
    }

    /// Runs `body` in a transaction and commits that. If others have changed what it has read, it is run again, after a
    /// pause that doubles from [`limits::TRANSACTION_PAUSE`] to [`limits::TRANSACTION_LONGEST_PAUSE`], up to
    /// [`limits::TRANSACTION_TRIES`] times in all. `body` does nothing else that counts: what it has read may not hold.
    /// After an error of `body` one message asks whether what it has read held at one moment; if not, `body` runs
    /// again, since the error may come of that, such as a [`ClientTransaction::check`] that is not met.
    ///
    /// ```no_run
    /// # async fn visit(client: sandstorm_client::Client, table: u64) -> Result<(), sandstorm_client::Error> {
    /// let visits: u64 = client.transact(async |transaction| {
    ///     let visits = transaction.get(table, b"visits").await?.map_or(0, |record| record.value.len() as u64);
    ///     transaction.put(table, b"visits", &vec![b'|'; visits as usize + 1]);
    ///     Ok::<_, sandstorm_client::Error>(visits + 1)
    /// }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `body`, and of [`ClientTransaction::commit`]: [`Error::TransactionConflict`] after the last try.
    pub async fn transact<T, E: From<Error>>(
        &self,
        mut body: impl AsyncFnMut(&mut ClientTransaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut tries = 1;
        loop {
            let mut transaction = self.transaction();
            let outcome = body(&mut transaction).await;
            let is_done = outcome.is_ok();
            let ended = if is_done { transaction.commit().await } else { transaction.check_reads().await };
            match ended {
                Err(Error::TransactionConflict { .. }) if tries < limits::TRANSACTION_TRIES => {
                    tokio::time::sleep(pause_after(tries)).await;
                    tries += 1;
                }
                Err(error) if is_done || matches!(error, Error::TransactionConflict { .. }) => return Err(error.into()),
                _ => return outcome,
            }
        }
    }
}

/// The pause after so many tries: half of it by chance, so that transactions that met do not meet again.
pub(crate) fn pause_after(tries: u32) -> Duration {
    let longest = limits::TRANSACTION_PAUSE.saturating_mul(1 << (tries - 1).min(16));
    let longest = longest.min(limits::TRANSACTION_LONGEST_PAUSE);
    longest.mul_f64(rand::rng().random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_have_an_end() {
        for tries in 1..40 {
            let pause = pause_after(tries);
            assert!(pause <= limits::TRANSACTION_LONGEST_PAUSE && pause >= limits::TRANSACTION_PAUSE / 2, "{pause:?}");
        }
        assert!(pause_after(30) >= limits::TRANSACTION_LONGEST_PAUSE / 2);
    }
}
