//! An answer that is not a success: status, a word for programs, a text and a hint for people.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::types::ErrorBody;
use sandstorm_builder::{BuildError, VerifyError};
use sandstorm_catalog::{DirectoryError, Refusal};

/// Why a request is not answered with a success.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    status: StatusCode,
    body: Box<ErrorBody>,
}

impl Failure {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Failure {
        let body = ErrorBody { code, message: message.into(), hint: None, diagnostics: Vec::new() };
        Failure { status, body: Box::new(body) }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.body.hint = Some(hint.into());
        self
    }

    pub(super) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
            .hint("nothing was changed; the server's log may say more")
    }

    pub(super) fn busy(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).hint("try again in a moment")
    }

    /// No token, or one that is nobody's.
    pub(super) fn unauthorised(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::UNAUTHORIZED, "unauthorised", message)
            .hint("send `authorization: Bearer TOKEN`; the operator's token is in the server's state directory")
    }

    /// A token that does not reach this.
    pub(super) fn forbidden(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::FORBIDDEN, "unauthorised", message)
    }

    pub(super) fn no_builder(reason: &str) -> Failure {
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "builder", format!("there is no builder: {reason}"))
            .hint("see [builder] in the server's configuration")
    }

    /// An artifact that is not loaded.
    pub(super) fn artifact(error: &VerifyError) -> Failure {
        let status = match error {
            VerifyError::Malformed(_) => StatusCode::BAD_REQUEST,
            VerifyError::Downgraded { .. } | VerifyError::Replayed(_) => StatusCode::CONFLICT,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Failure::new(status, error.code(), error.to_string()).hint(error.hint())
    }

    pub(super) fn build(error: &BuildError) -> Failure {
        let message = match error {
            BuildError::Refused(remarks) => {
                format!("the checker refused the source ({})", remarks_in_words(remarks.len()))
            }
            BuildError::Compile(remarks) => {
                format!("the source does not compile ({})", remarks_in_words(remarks.len()))
            }
            other => other.to_string(),
        };
        let (status, code) = match error {
            BuildError::Refused(_) | BuildError::Compile(_) => (StatusCode::UNPROCESSABLE_ENTITY, "refused"),
            BuildError::Limit(_) => (StatusCode::UNPROCESSABLE_ENTITY, "limit"),
            BuildError::Busy(_) => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            BuildError::Toolchain(_) | BuildError::Sandbox(_) => (StatusCode::SERVICE_UNAVAILABLE, "builder"),
            BuildError::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "builder"),
        };
        let mut failure = Failure::new(status, code, message);
        failure.body.diagnostics = error.diagnostics().to_vec();
        match error {
            BuildError::Refused(_) | BuildError::Compile(_) => {
                failure.hint("`sandstorm ext check` says the same offline")
            }
            BuildError::Limit(_) => failure.hint("make the source smaller or simpler"),
            BuildError::Busy(_) => failure.hint("push it again in a moment"),
            _ => failure,
        }
    }
}

fn remarks_in_words(count: usize) -> String {
    if count == 1 { "1 remark".to_owned() } else { format!("{count} remarks") }
}

impl From<DirectoryError> for Failure {
    fn from(error: DirectoryError) -> Failure {
        let (status, code) = match error.refusal() {
            Refusal::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Refusal::Conflict => (StatusCode::CONFLICT, "exists"),
            Refusal::OverQuota => (StatusCode::CONFLICT, "over_quota"),
            Refusal::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "not_kept"),
            Refusal::Invalid => (StatusCode::BAD_REQUEST, "invalid"),
        };
        Failure::new(status, code, error.to_string()).hint(error.hint())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, axum::Json(&*self.body)).into_response()
    }
}
