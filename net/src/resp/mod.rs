//! The Redis protocol, RESP2 and RESP3, without sockets: [`RespParser`] finds commands in bytes, [`RespWriter`] writes
//! answers.

mod inline;
mod parse;
#[cfg(any(test, feature = "fuzzing"))]
pub mod reference;
mod writer;

pub use parse::{ProtocolError, RespCommand, RespParse, RespParser};
pub use writer::{RespWriter, push_decimal};
