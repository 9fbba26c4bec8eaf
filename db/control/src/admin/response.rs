//! The body of a successful response.

use serde::Serialize;

use super::error::ApiError;

pub(super) type ApiResult<T> = Result<axum::Json<T>, ApiError>;

/// A response without fields.
#[derive(Serialize)]
pub(super) struct EmptyResponse {}

pub(super) const EMPTY_RESPONSE: axum::Json<EmptyResponse> = axum::Json(EmptyResponse {});
