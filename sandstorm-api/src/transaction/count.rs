//! Counts and positions within a transaction: the table's keys, with the transaction's own writes laid over them.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::Transaction;
use crate::Error;
use crate::abi::STATUS_CONTENDED;
use crate::host::RangeRemainder;
use crate::keys::Direction;
use crate::limits::TRANSACTION_TRIES;
use crate::record::TableId;

/// A key that the transaction writes.
struct OwnKey<'a> {
    key: &'a [u8],
    /// It is to be there, not deleted.
    stays: bool,
    /// The table has it.
    is_there: bool,
}

impl OwnKey<'_> {
    /// Whether it adds a key to the table, and whether it takes one away.
    fn change(&self) -> (u64, u64) {
        (u64::from(self.stays && !self.is_there), u64::from(!self.stays && self.is_there))
    }
}

impl<'a> Transaction<'a> {
    /// Counts the keys of a range as [`Db::count`](crate::Db::count) does, with the transaction's own writes laid over
    /// it. When the transaction is committed, the table must have as many keys in the range, whichever they are.
    ///
    /// A count is one of the `TRANSACTION_RANGES` ranges that a transaction may read, and so is each of its own writes
    /// in the range.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Takes a seat, if there is one left: never more than 2, however many ask at once.
    /// async fn run(db: Db<'_>, name: &[u8]) -> Result<(), Error> {
    ///     let (seats, tx) = (db.table("seats")?, db.transaction());
    ///     tx.put(seats, name, b"")?;
    ///     match tx.count(seats, b"", b"").await? {
    ///         ..=2 => Ok(()),
    ///         _ => Err(Error::new("sold out")),
    ///     }
    /// }
    ///
    /// let mut store = TestStore::new();
    /// store.ordered_table("seats");
    /// assert_eq!(store.invoke(run, b"ann"), Ok(vec![]));
    /// assert_eq!(store.invoke(run, b"ann"), Ok(vec![]));
    /// assert_eq!(store.invoke(run, b"bea"), Ok(vec![]));
    /// assert_eq!(store.invoke(run, b"cleo").unwrap_err().text(), "sold out");
    /// ```
    ///
    /// # Errors
    /// As [`Db::count`](crate::Db::count); `TooLarge` when the transaction has read `TRANSACTION_RANGES` ranges.
    pub async fn count(&self, table: TableId, from: &[u8], to: &[u8]) -> Result<u64, Error> {
        let mut count = self.counted(table, from, to)?;
        for own in self.own_keys(table, from, to)? {
            let (added, taken) = own.change();
            count = (count + added).saturating_sub(taken);
        }
        Ok(count)
    }

    /// Returns the number of keys before `key`, as [`Db::rank`](crate::Db::rank) does; the rest is as for
    /// [`Transaction::count`].
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let place = db.transaction().rank(table, b"apple").await? + 1;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::count`].
    pub async fn rank(&self, table: TableId, key: &[u8]) -> Result<u64, Error> {
        if key.is_empty() {
            // As an end it would stand for none; before it there is nothing. The table is looked at all the same.
            self.host.count(table.0, &RangeRemainder::new(&[], &[0], Direction::Forward))?;
            return Ok(0);
        }
        self.count(table, &[], key).await
    }

    /// Returns the key before which there are `position` others, as [`Db::nth`](crate::Db::nth) does, with the
    /// transaction's own writes laid over the table. When the transaction is committed, it must be at that position.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let first = db.transaction().nth(table, 0).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::count`].
    pub async fn nth(&self, table: TableId, position: u64) -> Result<Option<Vec<u8>>, Error> {
        // Keys that the transaction's own writes before the place have added to the table, and taken away.
        let (mut added, mut taken) = (0, 0);
        for own in self.own_keys(table, &[], &[])? {
            let before = if own.key.is_empty() { 0 } else { self.counted(table, &[], own.key)? };
            let own_position = (before + added).saturating_sub(taken);
            if position < own_position {
                break;
            }
            if position == own_position && own.stays {
                return Ok(Some(own.key.to_vec()));
            }
            let change = own.change();
            (added, taken) = (added + change.0, taken + change.1);
        }
        // Fewer than none: what was counted is of different moments, which the commit finds.
        let Some(position) = position.saturating_add(taken).checked_sub(added) else { return Ok(None) };
        self.found_at(table, position)
    }

    /// Returns the key at a position among those of the table itself, and notes that it is there; or that the table has
    /// no more keys than that.
    fn found_at(&self, table: TableId, position: u64) -> Result<Option<Vec<u8>>, Error> {
        let mut keys = 0;
        for _ in 0..TRANSACTION_TRIES {
            if let Some(key) = self.host.nth(table.0, position)? {
                if !key.is_empty() {
                    self.log_count(table, &[], &key, position)?;
                }
                self.log_count(table, &key, &next_key(&key), 1)?;
                return Ok(Some(key));
            }
            keys = self.host.count(table.0, &RangeRemainder::new(&[], &[], Direction::Forward))?;
            if keys <= position {
                self.log_count(table, &[], &[], keys)?;
                return Ok(None);
            }
            // Another worker's key has come between the two questions. That there are so many now would hold at the
            // commit, and that there is none at the position would not.
        }
        // Both answers are noted. They cannot hold at one moment, so `run` begins anew once it has returned the error.
        self.log_count(table, &[], &[], position)?;
        self.log_count(table, &[], &[], keys)?;
        Err(Error::from_status(STATUS_CONTENDED))
    }

    /// Returns the keys that the transaction writes between two keys, in their order.
    fn own_keys(&self, table: TableId, from: &[u8], to: &[u8]) -> Result<Vec<OwnKey<'a>>, Error> {
        let written = self.written(table, from, to, Direction::Forward);
        let own = |(key, stored): (&'a [u8], Option<_>)| {
            let is_there = self.counted(table, key, &next_key(key))? != 0;
            Ok(OwnKey { key, stays: stored.is_some(), is_there })
        };
        written.into_iter().map(own).collect()
    }

    /// Counts the table's keys, and notes that.
    fn counted(&self, table: TableId, from: &[u8], to: &[u8]) -> Result<u64, Error> {
        self.notes.borrow().check_range(0, from.len() + to.len())?;
        let count = self.host.count(table.0, &RangeRemainder::new(from, to, Direction::Forward))?;
        self.log_count(table, from, to, count)?;
        Ok(count)
    }

    fn log_count(&self, table: TableId, from: &[u8], to: &[u8], count: u64) -> Result<(), Error> {
        let mut notes = self.notes.borrow_mut();
        notes.check_range(0, from.len() + to.len())?;
        let count =
            usize::try_from(count).map_err(|_| Error::too_large("more keys than can be counted".to_string()))?;
        notes.log_count(table, (from, to), count);
        Ok(())
    }
}

/// Returns the key that comes directly after another.
fn next_key(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
