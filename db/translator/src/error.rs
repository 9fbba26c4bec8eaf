//! Why a module is not translated.

/// The reason why a module is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// It is not a valid module, or uses an extension of WebAssembly that is not allowed.
    #[error("the module is not valid: {message} (at offset {offset:#x})")]
    Invalid {
        /// What is wrong.
        message: String,
        /// Where in the module.
        offset: usize,
    },
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

impl From<wasmparser::BinaryReaderError> for TranslateError {
    fn from(error: wasmparser::BinaryReaderError) -> TranslateError {
        TranslateError::Invalid { message: error.message().to_owned(), offset: error.offset() as usize }
    }
}

/// A refusal in words.
pub(crate) fn refuse<T>(reason: impl Into<String>) -> Result<T, TranslateError> {
    Err(TranslateError::Refused(reason.into()))
}

/// Refuses more than a limit.
pub(crate) fn at_most(what: &'static str, found: usize, limit: usize) -> Result<(), TranslateError> {
    if found > limit { Err(TranslateError::TooMany { what, found, limit }) } else { Ok(()) }
}
