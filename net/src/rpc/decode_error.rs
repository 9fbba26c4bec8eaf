//! The reasons why bytes are not a message.

use thiserror::Error;

use super::{MAX_BODY_LEN, MAX_KEY_LEN, MAX_OPERATIONS, MESSAGE_HEADER_LEN, VERSION};

/// The reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageDecodeError {
    /// Shorter than a message header.
    #[error("message shorter than its {MESSAGE_HEADER_LEN}-byte header")]
    ShortHeader,
    /// Another format version.
    #[error("message format version {0}, this side speaks {VERSION}")]
    Version(u8),
    /// None, or more operations than allowed.
    #[error("{0} operations in a message, 1 to {MAX_OPERATIONS} are allowed")]
    Operations(u16),
    /// The message ends inside an operation's header.
    #[error("message ends inside the header of operation {0}")]
    ShortOperation(u16),
    /// The message ends inside an operation's key or value.
    #[error("operation {0} is longer than its message")]
    ShortBody(u16),
    /// A key or value over the format's limits.
    #[error("operation {0} has a key over {MAX_KEY_LEN} bytes or a value over {MAX_BODY_LEN}")]
    TooLarge(u16),
    /// An unknown operation number.
    #[error("operation {0} has the unknown number {1}")]
    UnknownOp(u16, u8),
    /// An unknown condition or status.
    #[error("operation {0} has an unknown condition or status")]
    UnknownEnum(u16),
    /// Bytes behind the last operation.
    #[error("{0} bytes behind the last operation")]
    Trailing(usize),
}
