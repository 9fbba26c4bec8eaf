//! `/v1/cluster/copy-stream`: a connection over which another server asks about the copy of its log that is here. A
//! thread answers, so that a question does not go through the threads of this port.

use std::sync::{Arc, Weak};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::OnUpgrade;
use sandstorm_cluster::MoveCoordinator;
use sandstorm_cluster::copy_stream::{COPY_STREAM_PROTOCOL, serve_copy_stream};
use sandstorm_cluster::limits::COPY_STREAM_IDLE;

use super::ControlState;
use super::cluster_copies::{ClusterPeer, NO_COPIES};
use super::error::ApiError;
use crate::http_listener::BlockingStream;

/// A request that changes the protocol of its connection.
pub(super) struct ProtocolChange(OnUpgrade);

impl FromRequestParts<Arc<ControlState>> for ProtocolChange {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<ControlState>) -> Result<ProtocolChange, ApiError> {
        let names = |headers: &HeaderMap| {
            headers.get(header::UPGRADE).is_some_and(|name| name.as_bytes() == COPY_STREAM_PROTOCOL.as_bytes())
        };
        let change = parts.extensions.remove::<OnUpgrade>().filter(|_| names(&parts.headers));
        change.map(ProtocolChange).ok_or_else(|| {
            let text = format!("the request has to ask for the protocol {COPY_STREAM_PROTOCOL}");
            ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", text)
                .hint("servers of the cluster use it; there is nothing else here")
        })
    }
}

/// A connection that counts, until it ends.
struct CountedStream(Weak<MoveCoordinator>);

impl Drop for CountedStream {
    fn drop(&mut self) {
        if let Some(coordinator) = self.0.upgrade() {
            coordinator.copies_view().end_stream();
        }
    }
}

/// Begins such a connection.
pub(super) async fn begin(
    ClusterPeer(coordinator): ClusterPeer,
    ProtocolChange(change): ProtocolChange,
) -> Result<Response, ApiError> {
    if !coordinator.copies_view().begin_stream() {
        let text = "too many servers ask about copies here";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", text));
    }
    let counted = CountedStream(Arc::downgrade(&coordinator));
    drop(coordinator);
    tokio::spawn(async move {
        let taken = match change.await {
            Ok(upgraded) => BlockingStream::take(upgraded, COPY_STREAM_IDLE),
            // The client has gone.
            Err(_) => return,
        };
        let begun = taken.and_then(|stream| {
            let thread = std::thread::Builder::new().name("copy-stream".to_owned());
            thread.spawn(move || serve(stream, &counted))
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "a connection for questions about a copy was not begun");
        }
    });
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, COPY_STREAM_PROTOCOL)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

/// The thread of a connection.
fn serve(stream: BlockingStream, counted: &CountedStream) {
    let answer = |question: &[u8]| {
        // Not kept between questions: a server that stops waits for none.
        let coordinator = counted.0.upgrade()?;
        let answered = match coordinator.copies_view().copy_store() {
            Some(copy_store) => copy_store.answer(question),
            None => Err(NO_COPIES.to_owned()),
        };
        Some(answered)
    };
    if let Err(error) = serve_copy_stream(stream, answer) {
        tracing::debug!(%error, "a connection for questions about a copy has ended");
    }
}
