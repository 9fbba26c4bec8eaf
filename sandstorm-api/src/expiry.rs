//! When a record expires: to be read, and to be changed.

use core::future::poll_fn;

use crate::Error;
use crate::db::Db;
use crate::record::TableId;

/// How long a record has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeToLive {
    /// It does not expire.
    Never,
    /// Milliseconds, 1 at least. A record is never gone before its time, and may be seen some milliseconds longer.
    Ms(u64),
}

impl TimeToLive {
    /// What is left until a record expires; 0: it does not.
    pub(crate) fn until(expires_at_ms: u64, now_ms: u64) -> TimeToLive {
        match expires_at_ms {
            0 => TimeToLive::Never,
            at_ms => TimeToLive::Ms(at_ms.saturating_sub(now_ms).max(1)),
        }
    }
}

impl Db<'_> {
    /// Returns how long the record under a key has left; `None`: there is none.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     db.reply(match db.ttl(db.table("sessions")?, args).await? {
    ///         None => b"gone",
    ///         Some(TimeToLive::Never) => b"for ever",
    ///         Some(TimeToLive::Ms(..=1_000)) => b"hurry",
    ///         Some(TimeToLive::Ms(_)) => b"go on",
    ///     })
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let sessions = store.table("sessions");
    /// store.put_with(sessions, b"ann", b"", 0, 500);
    /// assert_eq!(store.invoke(run, b"ann"), Ok(b"hurry".to_vec()));
    /// ```
    ///
    /// # Errors
    /// As [`Db::get`].
    pub async fn ttl(&self, table: TableId, key: &[u8]) -> Result<Option<TimeToLive>, Error> {
        let hash = self.host.prefetch(table.0, key)?;
        self.give_way().await;
        let expires_at_ms = poll_fn(|_| self.host.expiry(table.0, hash, key)).await?;
        Ok(expires_at_ms.map(|at_ms| TimeToLive::until(at_ms, self.host.now_ms())))
    }

    /// Lets the record under a key expire after this number of milliseconds from now (0: never); returns whether there
    /// is one. It keeps its value and flags, and gets a new version, as by any write.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// A session lives for half an hour after its last use.
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     match db.touch(db.table("sessions")?, args, 30 * 60_000).await? {
    ///         true => Ok(()),
    ///         false => Err(Error::not_found("log in again")),
    ///     }
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let sessions = store.table("sessions");
    /// store.put_with(sessions, b"ann", b"", 0, 500);
    /// assert_eq!(store.invoke(run, b"ann"), Ok(vec![]));
    /// store.set_now_ms(store.now_ms() + 60_000);
    /// assert!(store.get(sessions, b"ann").is_some());
    /// ```
    ///
    /// # Errors
    /// As [`Db::put`].
    pub async fn touch(&self, table: TableId, key: &[u8], expires_in_ms: u64) -> Result<bool, Error> {
        self.host.prefetch(table.0, key)?;
        self.give_way().await;
        poll_fn(|_| self.host.touch(table.0, key, expires_in_ms)).await
    }
}
