//! The Rust client of the Sandstorm storage server: records, extensions, control, and a load generator.
//!
//! ```no_run
//! use sandstorm_client::{Client, Config, Error};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Error> {
//!     // Address, tenant id and table id: `sandstorm tenant show alice` and `sandstorm table list --tenant alice`
//!     // print them.
//!     let config = Config::new("127.0.0.1:7400".parse().expect("an address"), 1).token("alice's token");
//!     let (client, table) = (Client::connect(config).await?, 1);
//!
//!     let version = client.put(table, b"greeting", b"hello").if_absent().await?;
//!     client.put(table, b"greeting", b"hello again").if_version(version).await?;
//!     let record = client.get(table, b"greeting").await?;
//!     println!("{:?}", record.map(|record| record.value));
//!
//!     // One round trip runs the pushed extension `get` next to the data.
//!     let args = [&table.to_le_bytes()[..], b"greeting"].concat();
//!     match client.invoke("get", &args).await {
//!         Ok(reply) => println!("{reply:?}"),
//!         Err(Error::UnknownExtension) => println!("push it first"),
//!         Err(Error::Killed { cause, text }) => println!("ended: {cause:?} {text}"),
//!         Err(error) => return Err(error),
//!     }
//!     Ok(())
//! }
//! ```
//!
//! docs/client.md is the guide: ids, deadlines, what to do about errors.
//!
//! # Faces
//! - [`Client`]: async, any number of requests in flight on one UDP socket. Clone it and share it.
//! - [`blocking::Client`]: the same for scripts, one request at a time.
//! - [`raw::Connection`]: polled by its owner, for benchmarks.
//! - [`control::Control`]: tenants, tables, extensions and counters over HTTP.
//! - [`load`]: the load generator.
//! - [`tao`]: a social graph, by the extension of that name.
//!
//! # What a request promises
//! - It is resent, with growing pauses, until its answer comes or its deadline passes ([`Config::deadline`], 2 s by
//!   default). The server runs it **at most once**, however often it arrives. A read, and a call that was sent as a
//!   [`Client::query`], may run again.
//! - After [`Error::Timeout`], [`Error::Stale`], [`Error::Io`], [`Error::Closed`] or [`Error::Protocol`] it may or may
//!   not have run; read before you write again. After any other error a get, put, delete or increment has changed
//!   nothing.
//! - A call of an extension has not run after [`Error::UnknownExtension`], [`Error::Suspended`], [`Error::OverQuota`]
//!   or [`Error::Overloaded`]. After [`Error::Failed`], [`Error::Killed`] or [`Error::Conflict`] it has, and its writes
//!   outside of a transaction stay. After [`Error::TooLarge`] in a batch it may have: a reply that does not fit beside
//!   the others is answered so.
//! - Requests in flight at the same time run in any order. The operations of one [`Batch`] run in order, but are not
//!   one transaction.
//! - The reads and writes of a [`ClientTransaction`] hold together or not at all.
//! - Values come as [`Bytes`]: slices of the message that brought them, so a small one kept for long keeps its message.
//!
//! # How it gets there
//! Packets to another machine are sealed ([`Sealing`]): encrypted and authenticated under keys that a handshake makes
//! from the tenant's token. The token itself never travels.
//!
//! A client logs in once for each server port with a random session number and its token. It sends a tenant's requests
//! to the port of its home worker (any other port serves them too, only slower). At most [`limits::WINDOW`] messages
//! are unanswered at a time; more wait inside the client. When the server restarts or forgets the session, the client
//! logs in anew and repeats what cannot have run before.
#![forbid(unsafe_code)]

pub mod blocking;
mod call_name;
mod client;
mod commit_message;
mod config;
pub mod control;
mod cost_observer;
mod dispatcher;
mod error;
mod expiry;
mod invoke;
pub mod limits;
mod links;
pub mod load;
mod message;
mod names;
mod open;
mod positions;
pub mod raw;
mod replies;
mod session;
mod split;
mod stats;
pub mod tao;
mod transaction;

/// The page on this client; its code has to compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/client.md")]
struct ClientGuide;

#[cfg(test)]
mod fake_server;
#[cfg(test)]
mod tests;

pub use bytes::Bytes;
pub use call_name::{CallName, split_name};
pub use client::{Batch, Client, Put};
pub use config::{Config, Route, Sealing};
pub use error::{Error, cause_name};
pub use invoke::MeasuredCall;
pub use message::{Direction, KeyedRecord, PutOptions, PutOutcome, RangePage, Record, RecordExpiry, Reply};
pub use names::ClientOpenError;
pub use open::{OpenOptions, TypedCallError};
pub use sandstorm_net::rpc::{CallCost, Condition, KillCause};
pub use sandstorm_schema::{self as schema, Blob};
pub use stats::Stats;
pub use transaction::{ClientTransaction, ExpectedRecord};
