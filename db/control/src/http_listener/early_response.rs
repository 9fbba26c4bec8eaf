//! Answers that need not wait for their request's body. Clients send header and body one after the other; where the
//! answer goes out in between, the HTTP server below closes the connection without a word, and the client's next
//! request on it, whatever that is, meets a closed connection and is lost. So a short body is read before anything is
//! answered, whoever asks for it or not; a connection with a long one says that it ends with the answer.

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::Response;

use crate::limits::{BODY_TIMEOUT, SHORT_BODY_BYTES};

/// Why a short body was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyReadError {
    /// It did not come in time.
    #[error("the body did not come in time")]
    TimedOut,
    /// What came was not what the header announced.
    #[error("the body cannot be read: {0}")]
    Malformed(axum::Error),
}

/// Whether a request's connection can take the next one, whatever is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyRemainder {
    /// The body has come.
    Drained,
    /// Some of the body may still come.
    Pending,
}

/// Reads the request's body if its length is said and short.
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

/// Has the client take a new connection for its next request.
pub(crate) fn close_after_response(response: &mut Response) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}
