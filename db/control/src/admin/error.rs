//! An error response: its status, a code for programs, a message and a hint for people.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::types::ErrorResponse;
use sandstorm_builder::{ArtifactError, BuildError};
use sandstorm_catalog::{DirectoryError, DirectoryErrorKind};
use sandstorm_net::CodeOrigin;

/// The code of a request without a token, with a wrong one, or with one that is not for this: the name that the error
/// has in our own protocol and in all clients.
const UNAUTHENTICATED: &str = "unauthenticated";
/// What it was called here in the release before. It stands beside the new name for one more.
const OLD_UNAUTHENTICATED: &str = "unauthorised";

/// The reason that a request fails.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    body: Box<ErrorResponse>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        let old_code = (code == UNAUTHENTICATED).then_some(OLD_UNAUTHENTICATED);
        let body = ErrorResponse { code, old_code, message: message.into(), hint: None, diagnostics: Vec::new() };
        ApiError { status, body: Box::new(body) }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.body.hint = Some(hint.into());
        self
    }

    /// Says what the error is about, before its message.
    pub(super) fn about(mut self, what: &str) -> ApiError {
        self.body.message = format!("{what}: {}", self.body.message);
        self
    }

    /// Whether something that is needed does not answer, so that what was asked for may have been done.
    pub(super) fn is_unavailable(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// Whether the server, its builder or its disk is at fault, and not what was asked for.
    pub(super) fn is_servers_fault(&self) -> bool {
        self.status.is_server_error()
    }

    /// What is wrong, for people.
    pub(super) fn message(&self) -> &str {
        &self.body.message
    }

    pub(super) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
            .hint("nothing was changed; the server's log may say more")
    }

    /// What was made could not be kept.
    pub(super) fn not_kept(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_kept", message).hint(
            "nothing was changed; see whether the disk of the state directory is full, or `sandstorm cluster status`",
        )
    }

    pub(super) fn busy(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).hint("try again in a moment")
    }

    /// The disk does not give what was written to it.
    pub(super) fn not_read(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_read", message)
            .hint("see the server's log, and whether the disk of the state directory is broken")
    }

    /// The request has no token, or a wrong one.
    pub(super) fn unauthorized(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, UNAUTHENTICATED, message).hint(
            "send `authorization: Bearer TOKEN`: a tenant's token is what `sandstorm tenant create` or `tenant \
                 token` printed, the operator's is in the server's state directory",
        )
    }

    /// The token does not allow this.
    pub(super) fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, UNAUTHENTICATED, message)
    }

    pub(super) fn no_builder(reason: &str) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "builder", format!("there is no builder: {reason}"))
            .hint("see [builder] in the server's configuration")
    }

    /// The artifact is not loaded.
    pub(super) fn artifact(error: &ArtifactError) -> ApiError {
        let status = match error {
            ArtifactError::Malformed(_) => StatusCode::BAD_REQUEST,
            ArtifactError::Downgraded { .. } | ArtifactError::Replayed(_) => StatusCode::CONFLICT,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        ApiError::new(status, error.code(), error.to_string()).hint(error.hint())
    }

    /// What was pushed, of that origin, is not built.
    pub(super) fn build(error: &BuildError, origin: CodeOrigin) -> ApiError {
        let (what, checked_by) = match origin {
            CodeOrigin::Source => ("source", "sandstorm ext check"),
            CodeOrigin::Module => ("module", "sandstorm ext check --wasm FILE"),
        };
        let message = match (error, origin) {
            // One reason, which stands for itself.
            (BuildError::Refused(remarks), CodeOrigin::Module) if remarks.len() == 1 => remarks[0].message.clone(),
            (BuildError::Refused(remarks), _) => {
                format!("the checker refused the {what} ({})", describe_remark_count(remarks.len()))
            }
            (BuildError::Compile(remarks), _) => {
                format!("the {what} does not compile ({})", describe_remark_count(remarks.len()))
            }
            (other, _) => other.to_string(),
        };
        let (status, code) = match error {
            BuildError::Refused(_) | BuildError::Compile(_) => (StatusCode::UNPROCESSABLE_ENTITY, "refused"),
            BuildError::Limit(_) => (StatusCode::UNPROCESSABLE_ENTITY, "limit"),
            BuildError::Busy(_) => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            BuildError::Toolchain(_) | BuildError::Sandbox(_) => (StatusCode::SERVICE_UNAVAILABLE, "builder"),
            BuildError::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "builder"),
        };
        let mut failure = ApiError::new(status, code, message);
        failure.body.diagnostics = error.diagnostics().to_vec();
        match error {
            BuildError::Refused(_) | BuildError::Compile(_) => {
                failure.hint(format!("`{checked_by}` says the same offline"))
            }
            BuildError::Limit(_) => failure.hint(format!("make the {what} smaller or simpler")),
            BuildError::Busy(_) => failure.hint("push it again in a moment"),
            _ => failure,
        }
    }
}

fn describe_remark_count(count: usize) -> String {
    if count == 1 { "1 remark".to_owned() } else { format!("{count} remarks") }
}

impl From<DirectoryError> for ApiError {
    fn from(error: DirectoryError) -> ApiError {
        let (status, code) = match error.refusal() {
            DirectoryErrorKind::NotFound => (StatusCode::NOT_FOUND, missing(&error)),
            DirectoryErrorKind::Conflict => (StatusCode::CONFLICT, "exists"),
            DirectoryErrorKind::CodePolicy => (StatusCode::FORBIDDEN, "code_policy"),
            DirectoryErrorKind::OverQuota => (StatusCode::CONFLICT, "over_quota"),
            DirectoryErrorKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "not_kept"),
            DirectoryErrorKind::Invalid => (StatusCode::BAD_REQUEST, "invalid"),
        };
        ApiError::new(status, code, error.to_string()).hint(error.hint())
    }
}

/// What is not there, by the name that calls and requests have for it in each protocol.
fn missing(error: &DirectoryError) -> &'static str {
    match error {
        DirectoryError::UnknownTenant(_) => "unknown_tenant",
        DirectoryError::UnknownTable { .. } => "unknown_table",
        DirectoryError::UnknownExtension { .. } => "unknown_extension",
        _ => "not_found",
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, axum::Json(&*self.body)).into_response()
    }
}
