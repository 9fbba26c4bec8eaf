//! The interface of an extension of the Sandstorm storage server: its database, its arguments, its reply.
//!
//! An extension is one `async fn` that the server calls next to the data:
//!
//! ```
//! use sandstorm_api::prelude::*;
//!
//! /// Replies with the first byte of the record whose key is `args`.
//! pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
//!     let table = db.table("numbers")?;
//!     let record = db.get(table, args).await?.ok_or(Error::not_found("no such number"))?;
//!     let first = record.value().first().ok_or(Error::new("an empty record"))?;
//!     db.reply(&[*first])
//! }
//! ```
//!
//! The core concepts:
//! - [`Db`] is the invocation's view of its tenant's tables: the only way for an extension to reach anything outside.
//! - An `.await` on a read prefetches and yields: other invocations run while the cache miss is under way. A read
//!   hands out the record itself, borrowed for the life of the invocation, never a copy.
//! - [`Db::range`]: records of an ordered table, in the order of their keys; [`Db::range_keys`]: the keys alone.
//! - [`Db::count`], [`Db::rank`], [`Db::nth`]: positions in an ordered table, in logarithmic time.
//! - [`info!`], [`warn!`], [`error!`], [`debug!`]: lines for the tenant's log.
//! - [`Db::call`], [`Db::call_typed`]: another extension of the tenant, in the same transaction.
//! - [`Typed`], [`typed!`]: structs and enums of yours in records.
//! - [`json`], [`regex`], [`date`], [`encoding`], [`hash`], [`uuid`], [`collections`]: what code needs beside records.
//! - [`Db::transaction`]: reads and writes of any number of records, at one moment.
//! - A long computation need not yield: past its slice it is switched out, and resumed when others have run. A
//!   computation past its budget in all is ended. [`yield_now`] yields at less cost.
//! - Memory comes from an arena with a quota, which is freed whole when the invocation ends.
//! - A returned [`Error`] reaches the caller with its kind and text; a panic ends this invocation and nothing else.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "testing"))]
extern crate std;

#[doc(hidden)]
pub mod abi;
mod bulk;
mod calls;
mod chance;
pub mod change;
pub mod collections;
pub mod date;
mod db;
pub mod encoding;
mod error;
mod expiry;
pub mod hash;
mod host;
mod imports;
mod invocation_bytes;
pub mod json;
mod keys;
pub mod limits;
#[doc(hidden)]
pub mod logs;
mod order;
pub mod prelude;
mod range;
mod record;
pub mod redis;
pub mod regex;
#[doc(hidden)]
pub mod rt;
mod running;
mod scan;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transaction;
#[doc(hidden)]
pub mod typed;
pub mod uuid;
mod yielding;

pub use calls::ExtensionCall;
pub use db::{Db, Delete, Get, GetMany, Increment, Put};
pub use error::{Error, ErrorKind};
pub use expiry::TimeToLive;
pub use keys::{Direction, Keys, KeysIntoIter, KeysIter};
pub use logs::LogLevel;
pub use range::{Range, RangeKeys};
pub use record::{Record, TableId};
pub use scan::{Cursor, PageScan, ScanPage};
pub use transaction::{Transaction, TransactionRecord};
pub use typed::Typed;
pub use yielding::{YieldNow, yield_now};

/// The former name of [`TransactionRecord`], for one release.
pub type Seen<'a> = TransactionRecord<'a>;
