//! Positions among the keys of ordered tables.

use bytes::Bytes;
use sandstorm_net::rpc::{MAX_MESSAGE_LEN, MAX_OPERATIONS, OP_HEADER_LEN};

use crate::Error;
use crate::client::{Client, unexpected_reply};
use crate::message::{Message, Reply};

impl Client {
    /// Counts the keys of an ordered table with `from <= key < to` (empty `to`: to the end), in logarithmic time. The
    /// server looks for no records: a key whose record has expired counts until that is removed, which takes some
    /// seconds.
    ///
    /// ```no_run
    /// # async fn example(client: sandstorm_client::Client, players: u64) -> Result<(), sandstorm_client::Error> {
    /// // Those whose names begin with `an`.
    /// println!("{} players", client.count(players, b"an", b"ao").await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Malformed`] for a table that is not ordered, or whose keys are not all at one server of a cluster.
    pub async fn count(&self, table: u64, from: &[u8], to: &[u8]) -> Result<u64, Error> {
        self.counted("count", Message::of(|message| message.count_keys(table, from, to))).await
    }

    /// Counts the keys of an ordered table within each of many ranges, `from <= key < to`, as many of them in a message
    /// as fit. The counts are not of one moment.
    ///
    /// ```no_run
    /// # async fn example(client: sandstorm_client::Client, players: u64) -> Result<(), sandstorm_client::Error> {
    /// let halves = client.count_many(players, &[(b"a", b"n"), (b"n", b"{")]).await?;
    /// println!("{halves:?} players in the halves of the alphabet");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`Client::count`].
    pub async fn count_many<K: AsRef<[u8]>>(&self, table: u64, spans: &[(K, K)]) -> Result<Vec<u64>, Error> {
        let (mut counts, mut batch) = (Vec::with_capacity(spans.len()), self.batch());
        for (from, to) in spans {
            let (from, to) = (from.as_ref(), to.as_ref());
            let bytes = OP_HEADER_LEN + from.len() + to.len();
            if batch.len() == MAX_OPERATIONS || (!batch.is_empty() && batch.bytes() + bytes > MAX_MESSAGE_LEN) {
                counts.extend(batch.send().await?);
                batch = self.batch();
            }
            batch = batch.count(table, from, to);
        }
        counts.extend(batch.send().await?);
        let counted = |reply| match reply? {
            Reply::Counted(keys) => Ok(keys),
            other => Err(unexpected_reply("count", &other)),
        };
        counts.into_iter().map(counted).collect()
    }

    /// Counts the keys of an ordered table before `key`, whether or not there is a record under it: its position, from
    /// 0. Keys count as in [`Client::count`].
    ///
    /// ```no_run
    /// # async fn example(client: sandstorm_client::Client, scores: u64) -> Result<(), sandstorm_client::Error> {
    /// let place = client.rank(scores, b"0042 ann").await? + 1;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`Client::count`].
    pub async fn rank(&self, table: u64, key: &[u8]) -> Result<u64, Error> {
        self.counted("rank", Message::of(|message| message.rank(table, key))).await
    }

    /// Finds the key of an ordered table before which there are `position` others; `None` beyond the last. Keys count
    /// as in [`Client::count`].
    ///
    /// ```no_run
    /// # async fn example(client: sandstorm_client::Client, scores: u64) -> Result<(), sandstorm_client::Error> {
    /// let half = client.count(scores, b"", b"").await? / 2;
    /// let median = client.nth(scores, half).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`Client::count`].
    pub async fn nth(&self, table: u64, position: u64) -> Result<Option<Bytes>, Error> {
        match self.single(Message::of(|message| message.nth(table, position))).await? {
            Reply::Key(key) => Ok(key),
            other => Err(unexpected_reply("nth", &other)),
        }
    }

    async fn counted(&self, what: &str, message: Message) -> Result<u64, Error> {
        match self.single(message).await? {
            Reply::Counted(keys) => Ok(keys),
            other => Err(unexpected_reply(what, &other)),
        }
    }
}
