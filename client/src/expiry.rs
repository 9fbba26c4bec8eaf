//! When a record expires: to be read, and to be changed without its value.

use std::time::Duration;

use crate::Error;
use crate::client::{Client, unexpected_reply};
use crate::message::{Message, RecordExpiry, Reply};

impl Client {
    /// Reads how long the record under `key` has left; `None` when there is none.
    ///
    /// ```no_run
    /// use sandstorm_client::RecordExpiry;
    /// # async fn example(client: sandstorm_client::Client, sessions: u64) -> Result<(), sandstorm_client::Error> {
    /// match client.ttl(sessions, b"ann").await? {
    ///     None => println!("gone"),
    ///     Some(RecordExpiry::Never) => println!("for ever"),
    ///     Some(RecordExpiry::After(left)) => println!("{} s", left.as_secs()),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub async fn ttl(&self, table: u64, key: &[u8]) -> Result<Option<RecordExpiry>, Error> {
        let build = || Message::of(|message| message.ttl(table, key));
        match self.keyed(key, build).await? {
            Reply::Expiry(expiry) => Ok(expiry),
            other => Err(unexpected_reply("ttl", &other)),
        }
    }

    /// Lets the record under `key` expire after `ttl`, in whole milliseconds and one at least (`None`: never); whether
    /// there is one. It keeps its value and flags, which do not travel, and gets a new version, as by any write.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// # async fn example(client: sandstorm_client::Client, sessions: u64) -> Result<(), sandstorm_client::Error> {
    /// // A session lives for half an hour after its last use.
    /// if !client.touch(sessions, b"ann", Some(Duration::from_secs(30 * 60))).await? {
    ///     println!("log in again");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`Client::put`].
    pub async fn touch(&self, table: u64, key: &[u8], ttl: Option<Duration>) -> Result<bool, Error> {
        let build = || Message::of(|message| message.touch(table, key, ttl));
        match self.keyed(key, build).await? {
            Reply::Touched(was) => Ok(was),
            other => Err(unexpected_reply("touch", &other)),
        }
    }
}
