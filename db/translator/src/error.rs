//! Why a module is not translated.

use std::fmt;

/// The reason why a module is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslateError {
    /// What is wrong.
    pub reason: RefusalReason,
    /// Where in the module, bytes from its start; `None` when it is about the module as a whole.
    pub offset: Option<usize>,
}

/// What is wrong with a module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// It is not a valid module, or uses an extension of WebAssembly that is not allowed.
    #[error("the module is not valid: {0}")]
    Invalid(String),
    /// It has something that no module may.
    #[error("the module is refused: {0}")]
    Refused(String),
    /// It is larger than a limit.
    #[error("the module has {found} {what}: at most {limit} are allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many or how long.
        found: usize,
        /// The limit.
        limit: usize,
    },
}

impl TranslateError {
    /// Adds where it is, unless a place closer to it is known already.
    pub(crate) fn at(self, offset: u64) -> TranslateError {
        TranslateError { offset: self.offset.or(Some(offset as usize)), ..self }
    }
}

impl fmt::Display for TranslateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)?;
        match self.offset {
            Some(offset) => write!(f, " (at offset {offset:#x})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for TranslateError {}

impl From<RefusalReason> for TranslateError {
    fn from(reason: RefusalReason) -> TranslateError {
        TranslateError { reason, offset: None }
    }
}

impl From<wasmparser::BinaryReaderError> for TranslateError {
    fn from(error: wasmparser::BinaryReaderError) -> TranslateError {
        TranslateError::from(RefusalReason::Invalid(error.message().to_owned())).at(error.offset())
    }
}

/// A refusal in words.
pub(crate) fn refuse<T>(reason: impl Into<String>) -> Result<T, TranslateError> {
    Err(RefusalReason::Refused(reason.into()).into())
}

/// Refuses more than a limit.
pub(crate) fn at_most(what: &'static str, found: usize, limit: usize) -> Result<(), TranslateError> {
    if found > limit { Err(RefusalReason::TooMany { what, found, limit }.into()) } else { Ok(()) }
}
