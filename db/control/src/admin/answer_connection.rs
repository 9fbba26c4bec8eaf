//! The connection on which a request is answered, for handlers that measure how long the answer is sent.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;

use super::ControlState;
use crate::http_listener::{HttpPeer, PermitHandle};
use sandstorm_catalog::TenantView;
use sandstorm_server::workers::LocalCallEnd;

/// The connection of a request; none of a request that came over no connection.
pub(super) struct AnswerConnection(Option<PermitHandle>);

impl FromRequestParts<Arc<ControlState>> for AnswerConnection {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<ControlState>) -> Result<AnswerConnection, Infallible> {
        let peer = parts.extensions.get::<ConnectInfo<HttpPeer>>();
        Ok(AnswerConnection(peer.map(|ConnectInfo(HttpPeer(_, visit))| visit.clone())))
    }
}

impl AnswerConnection {
    /// Counts, for the tenant and the extension, how long the answer to a call is sent that has ended, once it is with
    /// the kernel. Of a connection that ends before, nothing is counted.
    pub(super) fn count_sending(&self, view: Arc<TenantView>, ended: LocalCallEnd) {
        let Some(visit) = &self.0 else { return };
        visit.when_sent(move || {
            let sending_ns = ended.at.elapsed().as_nanos() as u64;
            view.tenant.usage.http_sending.record(sending_ns);
            ended.extension.latency.http_sending.record(sending_ns);
        });
    }
}
