//! Patterns that the operator denies to native code while the server runs, and the check of all that is loaded.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::body::OptionalJsonBody;
use super::deny_list::DenyError;
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::response::{ApiResult, EMPTY_RESPONSE, EmptyResponse};
use super::types::{DeniedPatternResponse, RecheckRequest};
use super::{ControlState, now_ms, rebuild};
use sandstorm_builder::{DeniedPattern, is_checker_rule};

/// `POST /v1/recheck`
pub(super) async fn recheck(
    State(control): State<Arc<ControlState>>,
    OptionalJsonBody(request): OptionalJsonBody<RecheckRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let RecheckRequest { rule, then } = request;
    let builder = control.artifact_sources.builder.as_ref();
    builder.map_err(|reason| {
        ApiError::no_builder(reason)
            .hint("nothing was checked or changed; `sandstorm tenant set NAME --code none` forbids a tenant's code")
    })?;
    let reason = match &rule {
        Some(rule) => format!("{rule} is denied to native code"),
        None => "the rules for native code are checked".to_owned(),
    };
    let note = EventNote { subject: rule.clone(), text: reason.clone(), ..EventNote::default() };
    let job = control.rebuilds.open(reason)?;
    // A rule of the checker refuses already; what it refuses now and did not refuse once was left out by the restart.
    if let Some(rule) = rule.filter(|rule| !is_checker_rule(rule)) {
        let pattern = DeniedPattern::parse(&rule)
            .map_err(|why| ApiError::invalid(format!("{rule:?} cannot be denied: {why}")).hint(PATTERN_HINT))?;
        control.deny.add(&pattern, now_ms())?;
        tracing::warn!(pattern = pattern.text(), "denied to native code");
    }
    Ok((StatusCode::ACCEPTED, Extension(note), axum::Json(rebuild::recheck_all(&control, job, then))))
}

/// Advice for a text that is no pattern.
const PATTERN_HINT: &str = "name a shape of syntax (docs/security.md lists them), an identifier, a path, or Rust tokens \
                            with `$_` for one and `$*` for any number of them";

/// `GET /v1/denied`
pub(super) async fn list(State(control): State<Arc<ControlState>>) -> ApiResult<Vec<DeniedPatternResponse>> {
    let (configured, revoked) = control.deny.listed();
    let configured = configured.into_iter().map(|pattern| DeniedPatternResponse { pattern, since_ms: None });
    let revoked =
        revoked.into_iter().map(|one| DeniedPatternResponse { pattern: one.pattern, since_ms: Some(one.since_ms) });
    Ok(axum::Json(configured.chain(revoked).collect()))
}

/// `DELETE /v1/denied/{pattern}`
pub(super) async fn end(
    State(control): State<Arc<ControlState>>,
    Path(pattern): Path<String>,
) -> ApiResult<EmptyResponse> {
    control.deny.remove(&pattern)?;
    tracing::warn!(pattern, "no longer denied to native code");
    Ok(EMPTY_RESPONSE)
}

impl From<DenyError> for ApiError {
    fn from(error: DenyError) -> ApiError {
        let (status, code, hint) = match &error {
            DenyError::TooMany => (StatusCode::CONFLICT, "over_quota", "end what is not needed (`ext revoke --end`)"),
            DenyError::Unknown(_) => {
                (StatusCode::NOT_FOUND, "not_found", "`sandstorm ext revoke --list` shows what is")
            }
            DenyError::Configured(_) => {
                (StatusCode::CONFLICT, "exists", "take it out of the file, and start the server again")
            }
            DenyError::Unwritable(_) => {
                let hint = "nothing was denied; see whether the disk of the state directory is full or broken";
                (StatusCode::SERVICE_UNAVAILABLE, "not_kept", hint)
            }
        };
        ApiError::new(status, code, error.to_string()).hint(hint)
    }
}
