//! When a record expires, within a transaction: to be read, and to be changed.

use core::future::poll_fn;

use super::Transaction;
use super::log::LoggedValue;
use crate::Error;
use crate::abi::STATUS_CONTENDED;
use crate::expiry::TimeToLive;
use crate::record::TableId;

impl Transaction<'_> {
    /// Returns how long the record under a key has left, as [`Db::ttl`](crate::Db::ttl) does; of what the transaction
    /// has written itself, how long that has. It counts as a read of the record: when the transaction is committed, it
    /// must not have been written or touched since, nor have expired.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Moves a session to another name, for as long as it has left.
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let (sessions, tx) = (db.table("sessions")?, db.transaction());
    ///     let session = tx.get(sessions, b"ann").await?.ok_or(Error::not_found("no session"))?;
    ///     let left_ms = match tx.ttl(sessions, b"ann").await? {
    ///         Some(TimeToLive::Ms(left_ms)) => left_ms,
    ///         _ => 0,
    ///     };
    ///     tx.delete(sessions, b"ann").await?;
    ///     tx.put_with(sessions, args, session.value(), session.flags(), left_ms)
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let sessions = store.table("sessions");
    /// store.put_with(sessions, b"ann", b"open", 0, 500);
    /// assert_eq!(store.invoke(run, b"anna"), Ok(vec![]));
    /// assert_eq!(store.get(sessions, b"anna"), Some(&b"open"[..]));
    /// store.set_now_ms(store.now_ms() + 501);
    /// assert_eq!(store.get(sessions, b"anna"), None);
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`]. `Contended` where the record has changed since the transaction has read it: return it,
    /// and the call begins anew.
    pub async fn ttl(&self, table: TableId, key: &[u8]) -> Result<Option<TimeToLive>, Error> {
        if self.get(table, key).await?.is_none() {
            return Ok(None);
        }
        let hash = self.host.prefetch(table.0, key)?;
        let own = self.notes.borrow().own_expiry(table, hash, key);
        let expires_at_ms = match own {
            Some(expires_at_ms) => Some(expires_at_ms),
            // It may be of a later version than what was read: then the commit meets that version, too.
            None => poll_fn(|_| self.host.expiry(table.0, hash, key)).await?,
        };
        let expires_at_ms = expires_at_ms.ok_or_else(|| Error::from_status(STATUS_CONTENDED))?;
        Ok(Some(TimeToLive::until(expires_at_ms, self.host.now_ms())))
    }

    /// Lets the record under a key expire after this number of milliseconds from now (0: never), when the transaction
    /// is committed; returns whether there is one. It keeps its value and flags. It counts as a read, and as a write of
    /// the whole record.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Both halves of a session live for as long.
    /// async fn run(db: Db<'_>, name: &[u8]) -> Result<(), Error> {
    ///     let tx = db.transaction();
    ///     for table in ["sessions", "baskets"] {
    ///         if !tx.touch(db.table(table)?, name, 30 * 60_000).await? {
    ///             return Err(Error::not_found("log in again"));
    ///         }
    ///     }
    ///     Ok(())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let (sessions, baskets) = (store.table("sessions"), store.table("baskets"));
    /// store.put_with(sessions, b"ann", b"", 0, 500);
    /// assert!(store.invoke(run, b"ann").is_err());
    /// store.put_with(baskets, b"ann", b"tea", 7, 900);
    /// assert_eq!(store.invoke(run, b"ann"), Ok(vec![]));
    /// store.set_now_ms(store.now_ms() + 60_000);
    /// assert_eq!(store.get(baskets, b"ann"), Some(&b"tea"[..]));
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::put`].
    pub async fn touch(&self, table: TableId, key: &[u8], expires_in_ms: u64) -> Result<bool, Error> {
        let Some(found) = self.get(table, key).await? else { return Ok(false) };
        let hash = self.host.prefetch(table.0, key)?;
        let expires_at_ms = self.expires_at_ms(expires_in_ms);
        let mut notes = self.notes.borrow_mut();
        notes.check_write(table, hash, key, found.value.len())?;
        let Some(stored) = notes.stored(table, hash, key) else { return Ok(false) };
        notes.write(table, hash, key, Some(LoggedValue { expires_at_ms, ..stored }));
        Ok(true)
    }

    /// Returns when something expires that is to live for so many milliseconds from now; 0: never.
    pub(super) fn expires_at_ms(&self, expires_in_ms: u64) -> u64 {
        if expires_in_ms == 0 { 0 } else { self.host.now_ms().saturating_add(expires_in_ms) }
    }
}
