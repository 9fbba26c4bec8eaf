//! The bytes of answers.

use sandstorm_client::{ClientOpenError, Error, TypedCallError};
use serde::Serialize;

/// First byte of an answer with a result.
pub(crate) const RESULT: u8 = 0;
/// First byte of an answer that is an error.
const ERROR: u8 = 1;

/// An error as callers get it.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    /// The name of what an extension has failed for.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// The key that a transaction's conflict is about, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), cause: None, kind: None, key: None }
    }

    /// The bytes of an answer.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![ERROR];
        // A struct of texts and numbers always has a JSON.
        bytes.extend(serde_json::to_vec(self).unwrap_or_default());
        bytes
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (message, code) = (error.to_string(), error.code());
        match &error {
            Error::Killed { .. } => Failure { cause: error.kind(), ..Failure::new(code, message) },
            Error::Failed { .. } => Failure { kind: error.kind(), ..Failure::new(code, message) },
            Error::TransactionConflict { key, .. } => {
                let digits = key.iter().map(|byte| format!("{byte:02x}")).collect();
                Failure { key: Some(digits), ..Failure::new(code, message) }
            }
            _ => Failure::new(code, message),
        }
    }
}

impl From<ClientOpenError> for Failure {
    fn from(error: ClientOpenError) -> Failure {
        let code = match error {
            ClientOpenError::Data(error) => return error.into(),
            // What a change feed may be refused for is for programs.
            ClientOpenError::Control { ref source, .. } => match source.code() {
                "too_old" => "too_old",
                "not_logged" => "not_logged",
                "invalid" => "invalid",
                "busy" => "busy",
                _ => error.code(),
            },
            ref error => error.code(),
        };
        Failure::new(code, error.to_string())
    }
}

impl From<TypedCallError> for Failure {
    fn from(error: TypedCallError) -> Failure {
        match error {
            TypedCallError::Open(error) => error.into(),
            TypedCallError::Request(error) => error.into(),
            _ => Failure::new(error.code(), error.to_string()),
        }
    }
}

/// An answer under construction.
pub(crate) struct AnswerBytes(Vec<u8>);

impl AnswerBytes {
    /// A result without bytes yet.
    pub(crate) fn result() -> AnswerBytes {
        AnswerBytes(vec![RESULT])
    }

    pub(crate) fn put(mut self, bytes: &[u8]) -> AnswerBytes {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn bool(self, on: bool) -> AnswerBytes {
        self.put(&[u8::from(on)])
    }

    /// Bytes with their length.
    pub(crate) fn counted(self, bytes: &[u8]) -> AnswerBytes {
        self.put(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes()).put(bytes)
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}
