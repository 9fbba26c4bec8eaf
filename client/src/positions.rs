//! Positions among the keys of ordered tables.

use bytes::Bytes;

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
