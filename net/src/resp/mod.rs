//! The Redis protocol, RESP2 and RESP3, without sockets: [`Parser`] finds commands in bytes, [`Reply`] writes answers.

mod inline;
mod parse;
mod reply;
#[cfg(any(test, feature = "fuzzing"))]
pub mod slow;

pub use parse::{Command, Parsed, Parser, ProtocolError};
pub use reply::{Reply, push_decimal};
