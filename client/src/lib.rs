//! The Rust client of the Sandstorm storage server.
#![deny(unsafe_code)]

pub mod blocking;
mod client;
pub mod control;
mod driver;
mod error;
pub mod limits;
pub mod load;
mod message;
pub mod raw;
mod session;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use bytes::Bytes;
pub use client::{Batch, Client, Config, Put, Route, Stats};
pub use error::{Error, cause_name};
pub use message::{PutOptions, Record, Reply};
pub use sandstorm_net::rpc::{Condition, KillCause};
