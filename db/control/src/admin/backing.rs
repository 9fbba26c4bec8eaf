//! Tables in front of a backing: which callers may make them, and flushes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};

use super::ControlState;
use super::body::JsonBody;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::response::ApiResult;
use super::types::{FlushRequest, FlushResponse};
use crate::limits::FLUSH_MOST;

/// Refuses a backing that a tenant asks for: it would have the server read files, or ask addresses, that the tenant may
/// not reach.
pub(super) fn check_backing_caller(caller: &RequestCaller, has_backing: bool) -> Result<(), ApiError> {
    if !has_backing || caller.sees_server() {
        return Ok(());
    }
    Err(ApiError::forbidden("what is behind a table is the operator's choice")
        .hint("ask the operator to create the table; its policy and its bounds may be changed with the tenant's token"))
}

/// Writes what the backing of a table does not have yet, and answers when it has it.
pub(super) async fn flush(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    JsonBody(request): JsonBody<FlushRequest>,
) -> ApiResult<FlushResponse> {
    let view = caller.authorize_change(&control, &tenant)?;
    let (directory, id) = (Arc::clone(&control.directory), view.tenant.id);
    let most = request.wait_ms.map_or(FLUSH_MOST, |ms| Duration::from_millis(ms).min(FLUSH_MOST));
    let flushed =
        tokio::task::spawn_blocking(move || directory.flush_backing(id, &name, request.conflicts, most)).await;
    let flushes = flushed.map_err(|_| ApiError::internal("the flush of the table had a fault"))??;
    Ok(axum::Json(FlushResponse { flushes }))
}
