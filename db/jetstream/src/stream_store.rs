//! What is needed of a stream: messages in order, each behind a sequence that its sender names.

use sandstorm_log::{LogError, ReplicaError};

/// What a stream has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamBounds {
    /// The sequence of its first message; behind the last one if it has none.
    pub first: u64,
    /// The sequence of the last message that it ever had; 0: none.
    pub last: u64,
}

/// Why a stream has not done what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Another message is behind that sequence, or none is there.
    #[error("another message is there")]
    OtherSequence,
    /// It is not known whether it was done.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// There is no such stream.
    #[error("the stream is not there")]
    Missing,
    /// It has no room.
    #[error("{0}")]
    Full(String),
    /// It does not do that.
    #[error("{0}")]
    Refused(String),
}

impl From<StreamError> for ReplicaError {
    fn from(error: StreamError) -> ReplicaError {
        match error {
            StreamError::Missing => ReplicaError::Missing,
            StreamError::Full(why) => ReplicaError::Full(why),
            error => ReplicaError::Log(LogError::unusable("the stream", &error.to_string())),
        }
    }
}

/// Shows a message: its sequence, and its bytes.
pub type MessageVisitor<'a> = dyn FnMut(u64, &[u8]) -> Result<(), String> + 'a;

/// A stream.
pub trait StreamStore {
    /// Returns what it has, or had a moment ago.
    ///
    /// # Errors
    /// [`StreamError`].
    fn bounds(&mut self) -> Result<StreamBounds, StreamError>;

    /// Adds a message, if the last one has that sequence. It is kept once this returns. Returns its sequence.
    ///
    /// # Errors
    /// [`StreamError`]; after [`StreamError::NoAnswer`] it may be added later still.
    fn publish(&mut self, behind: u64, id: &str, message: &[u8]) -> Result<u64, StreamError>;

    /// Shows the messages from a sequence up to another one, all of them, in order.
    ///
    /// # Errors
    /// [`StreamError`]: some are not there, among others; or what `visit` returns, as [`StreamError::Refused`].
    fn read(&mut self, from: u64, to: u64, visit: &mut MessageVisitor<'_>) -> Result<(), StreamError>;

    /// Removes the messages before a sequence.
    ///
    /// # Errors
    /// [`StreamError`].
    fn purge_before(&mut self, sequence: u64) -> Result<(), StreamError>;

    /// Bytes of a message, at most.
    fn message_bytes(&self) -> usize;
}
