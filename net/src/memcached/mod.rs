//! The memcached protocol: classic text commands, meta commands, the binary protocol's frames ([`binary`]), and the
//! header of its datagrams. No sockets, no clocks, no allocation: a request borrows the bytes that it came in.
//!
//! [`parse`] takes one request from the front of the input. A wrong request is answered in memcached's own words. As in
//! memcached, the kind of error decides whether the data block behind a wrong line is skipped: clients stay in step or
//! not just as they would there.

pub mod binary;
mod data_block;
mod meta;
#[cfg(any(test, feature = "fuzzing"))]
pub mod reference;
mod request;
#[cfg(test)]
mod tests;
pub mod text;
mod text_request;
pub mod udp;

pub use request::parse;
pub use text_request::{MetaCommand, MetaFlags, MetaRequest, StoreMode, StoreRequest, TextParse, TextRequest};

/// Longest key, bytes: the protocol's own limit.
pub const MAX_KEY_LEN: usize = 250;
/// Bytes without an end of line after which they must be a get, whose keys are then taken one by one. Otherwise the
/// connection ends.
pub const MAX_LINE_LEN: usize = 2048;
/// Blanks that may stand before such a get.
pub const MAX_BLANKS: usize = 100;

/// Answer to a line with an unknown command, or with a wrong number of words.
pub const ERROR: &str = "ERROR";
/// Answer to a line whose words are malformed.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
/// Answer to an invalid time of expiry.
pub const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
/// Answer to a key that should be base64 and is not.
pub const BAD_KEY: &str = "CLIENT_ERROR error decoding key";
/// Answer to a data block that does not end where it should.
pub const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
/// Answer to a value that is too long.
pub const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
