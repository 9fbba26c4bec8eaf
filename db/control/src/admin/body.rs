//! Bodies of requests: read within a time and a size, and as JSON.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use super::{ControlState, MAX_ARTIFACT_BYTES, MAX_BODY_BYTES, MAX_PUSH_BYTES};
use crate::config::suggest;
use crate::http_listener::BodyReadError;
use crate::limits::{BODY_TIMEOUT, HTTP_CALL_BODY_BYTES};
use sandstorm_builder::limits::MODULE_BYTES;

/// A JSON body.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<ControlState>> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, control: &Arc<ControlState>) -> Result<JsonBody<T>, ApiError> {
        let bytes = read_body(request, control).await?;
        serde_json::from_slice(&bytes).map(JsonBody).map_err(|error| malformed(&error))
    }
}

/// A body as raw bytes.
pub(super) struct RawBody(pub(super) Bytes);

impl FromRequest<Arc<ControlState>> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, control: &Arc<ControlState>) -> Result<RawBody, ApiError> {
        read_body(request, control).await.map(RawBody)
    }
}

/// A JSON body; an empty body stands for the defaults.
pub(super) struct OptionalJsonBody<T>(pub(super) T);

impl<T: DeserializeOwned + Default> FromRequest<Arc<ControlState>> for OptionalJsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, control: &Arc<ControlState>) -> Result<OptionalJsonBody<T>, ApiError> {
        let bytes = read_body(request, control).await?;
        if bytes.is_empty() {
            return Ok(OptionalJsonBody(T::default()));
        }
        serde_json::from_slice(&bytes).map(OptionalJsonBody).map_err(|error| malformed(&error))
    }
}

async fn read_body(request: Request, control: &Arc<ControlState>) -> Result<Bytes, ApiError> {
    let bytes = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, control)).await;
    bytes.map_err(|_elapsed| body_read_error(&BodyReadError::TimedOut))?.map_err(|rejection| body_rejected(&rejection))
}

/// The error for a body that did not come, or was malformed.
pub(super) fn body_read_error(why: &BodyReadError) -> ApiError {
    match why {
        BodyReadError::TimedOut => ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", why.to_string())
            .hint(format!("send all of it within {} s", BODY_TIMEOUT.as_secs())),
        BodyReadError::Malformed(_) => {
            ApiError::invalid(why.to_string()).hint("send it whole, as JSON, with its length")
        }
    }
}

fn body_rejected(rejection: &BytesRejection) -> ApiError {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let message = format!(
            "the body is over its limit ({MAX_PUSH_BYTES} bytes for a push, {MODULE_BYTES} for a module, \
             {MAX_ARTIFACT_BYTES} for an artifact, {HTTP_CALL_BODY_BYTES} for a call, else {MAX_BODY_BYTES})"
        );
        return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).hint("send less");
    }
    ApiError::invalid(format!("the body cannot be read: {rejection}")).hint("send it whole, as JSON, with its length")
}

fn malformed(error: &serde_json::Error) -> ApiError {
    let message = error.to_string();
    let mut names = message.split('`').skip(1).step_by(2);
    if let (true, Some(unknown)) = (message.starts_with("unknown field"), names.next()) {
        return ApiError::invalid(format!("there is no {unknown:?} here")).hint(suggest(unknown, names));
    }
    let hint = "send a JSON object as docs/control.md has it for this route";
    ApiError::invalid(format!("the body is not what this route takes: {message}")).hint(hint)
}
