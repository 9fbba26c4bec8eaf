//! Records, and the ids of the tables that they are in.

use crate::Error;
use crate::typed::{Typed, wrong_record};

/// The id of one of the tenant's tables, or of one granted to it, as the tenant's programs know it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u64);

/// One immutable record, borrowed from the table for the life of the invocation. A later write of its key makes a new
/// record and leaves this one as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) version: u64,
    pub(crate) flags: u32,
}

impl<'a> Record<'a> {
    /// The key.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let key = db.get(table, b"apple").await?.map(|record| record.key());
    /// # Ok(()) }
    /// ```
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The value.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let value = db.get(table, b"apple").await?.map_or(&b"none"[..], |record| record.value());
    /// # Ok(()) }
    /// ```
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// The version; grows with every write of the key.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let version = db.get(table, b"apple").await?.map_or(0, |record| record.version());
    /// # Ok(()) }
    /// ```
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The flags that the writer stored.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let is_packed = db.get(table, b"apple").await?.is_some_and(|record| record.flags() & 1 != 0);
    /// # Ok(()) }
    /// ```
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The value as one of a type of yours; see [`Typed`].
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let record = db.get(table, b"apple").await?;
    /// let count: u64 = record.ok_or(Error::not_found("no apples"))?.typed()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Invalid`, with the key: it is none.
    pub fn typed<T: Typed>(&self) -> Result<T, Error> {
        T::from_record(self.value).map_err(|error| wrong_record(self.key, &error))
    }
}
