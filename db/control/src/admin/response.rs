//! The body of a successful response, and work for one that is done off the control port's thread.

use serde::Serialize;

use super::error::ApiError;

pub(super) type ApiResult<T> = Result<axum::Json<T>, ApiError>;

/// A response without fields.
#[derive(Serialize)]
pub(super) struct EmptyResponse {}

pub(super) const EMPTY_RESPONSE: axum::Json<EmptyResponse> = axum::Json(EmptyResponse {});

/// Does what may wait for a disk or for another server. The control port has one thread, which goes on meanwhile.
pub(super) async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))
}
