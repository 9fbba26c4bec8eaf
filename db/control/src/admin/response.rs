//! What a route answers with.

use serde::Serialize;

use super::error::ApiError;

pub(super) type ApiResult<T> = Result<axum::Json<T>, ApiError>;

/// The answer that says nothing.
#[derive(Serialize)]
pub(super) struct EmptyResponse {}

pub(super) const EMPTY_RESPONSE: axum::Json<EmptyResponse> = axum::Json(EmptyResponse {});
