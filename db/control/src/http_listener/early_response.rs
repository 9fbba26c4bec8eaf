//! Responses that need not wait for their request's body. Clients send the header and the body one after the other. If
//! the answer leaves in between, the HTTP server closes the connection without notice, and the client's next request on
//! it is lost. So a short body is always read before the answer. A connection with a long body states in its answer
//! that it ends.

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::Response;

use crate::limits::{BODY_TIMEOUT, SHORT_BODY_BYTES};

/// The reason that a short body was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyReadError {
    /// It did not come in time.
    #[error("the body did not come in time")]
    TimedOut,
    /// The body was not what the header announced.
    #[error("the body cannot be read: {0}")]
    Malformed(axum::Error),
}

/// Whether a request's connection can take the next request after any answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyRemainder {
    /// The body has come.
    Drained,
    /// Some of the body may still come.
    Pending,
}

/// Reads the request's body if its length is known and short.
pub(crate) async fn buffer_short_body(request: Request) -> Result<(Request, BodyRemainder), BodyReadError> {
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return Ok((Request::from_parts(head, body), BodyRemainder::Drained));
    }
    if body.size_hint().upper().is_none_or(|length| length > SHORT_BODY_BYTES as u64) {
        return Ok((Request::from_parts(head, body), BodyRemainder::Pending));
    }
    let read = tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(body, SHORT_BODY_BYTES));
    let bytes = read.await.map_err(|_elapsed| BodyReadError::TimedOut)?.map_err(BodyReadError::Malformed)?;
    Ok((Request::from_parts(head, Body::from(bytes)), BodyRemainder::Drained))
}

/// Makes the client open a new connection for its next request.
pub(crate) fn close_after_response(response: &mut Response) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}
