//! `/v1/cluster/copy-stream`: a connection over which another server asks about the copy of its log that is here. A
//! thread answers, so that a question does not go through the threads of this port.

use std::sync::{Arc, Weak, mpsc};

use axum::extract::{ConnectInfo, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::OnUpgrade;
use sandstorm_cluster::copy_stream::{COPY_STREAM_PROTOCOL, serve_copy_stream};
use sandstorm_cluster::limits::COPY_STREAM_IDLE;
use sandstorm_cluster::slot_source::PEER_KEY_HEADER;

use super::ControlState;
use super::cluster_copies::{ClusterPeer, NO_COPIES};
use super::error::ApiError;
use super::peer_limiter::PeerPermit;
use crate::http_listener::{BlockingStream, HttpPeer};

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

/// What a connection is to be answered with: kept by its thread.
struct CopyAnswers {
    /// Gone once this server stops: it confirms nothing then that it may not have a moment later.
    control: Weak<ControlState>,
    /// The cluster's key, as the request had it. Questions end when it is another one.
    key: String,
    _permit: PeerPermit,
}

/// Begins such a connection.
pub(super) async fn begin(
    ClusterPeer(coordinator): ClusterPeer,
    State(control): State<Arc<ControlState>>,
    ConnectInfo(HttpPeer(peer, _)): ConnectInfo<HttpPeer>,
    headers: HeaderMap,
    ProtocolChange(change): ProtocolChange,
) -> Result<Response, ApiError> {
    drop(coordinator);
    let busy = |text: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", text);
    let permit = control.copy_streams.begin(peer).ok_or_else(|| busy("too many servers ask about copies here"))?;
    let key = headers.get(PEER_KEY_HEADER).and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
    let answers = CopyAnswers { control: Arc::downgrade(&control), key, _permit: permit };
    // Its thread first: without one there is no other protocol.
    let (taken, stream) = mpsc::channel();
    let thread = std::thread::Builder::new().name("copy-stream".to_owned());
    let begun = thread.spawn(move || stream.recv().into_iter().for_each(|stream| serve(stream, &answers)));
    begun.map_err(|error| busy(&format!("no thread can be started: {error}")))?;
    tokio::spawn(async move {
        // Otherwise the client has gone.
        let Ok(upgraded) = change.await else { return };
        match BlockingStream::take(upgraded, COPY_STREAM_IDLE) {
            Ok(stream) => drop(taken.send(stream)),
            Err(error) => tracing::debug!(%error, "a connection for questions about a copy was not begun"),
        }
    });
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, COPY_STREAM_PROTOCOL)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

/// The thread of a connection.
fn serve(stream: BlockingStream, answers: &CopyAnswers) {
    let answer = |question: &[u8]| {
        // Not kept between questions: a server that stops waits for none.
        let control = answers.control.upgrade()?;
        let coordinator = control.moves.as_ref().filter(|coordinator| coordinator.is_peer_key(&answers.key))?;
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
