//! The sender of a request, and the rules for every request.

use std::sync::Arc;

use axum::extract::connect_info::ConnectInfo;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::body::body_read_error;
use super::error::ApiError;
use super::event_scribe::{CallerSlot, PushSource, address_of};
use super::{ControlState, MAX_ARTIFACT_BYTES, MAX_PUSH_BYTES};
use crate::events::EventActor;
use crate::http_listener::{BodyRemainder, HttpPeer, buffer_short_body, close_after_response};
use sandstorm_accounts::TokenHash;
use sandstorm_accounts::limits::CHANGES_PER_S;
use sandstorm_catalog::{TenantView, TokenMatch};

/// The sender of a request, found by its token.
pub(super) enum RequestCaller {
    Operator,
    Tenant(Arc<TenantView>),
}

impl FromRequestParts<Arc<ControlState>> for RequestCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Arc<ControlState>) -> Result<RequestCaller, ApiError> {
        authenticate(parts, control).await.map(|(caller, _)| caller)
    }
}

/// A caller with a current token. A caller that has found an old token must not lock out the owner with it.
pub(super) struct CurrentTokenCaller(pub(super) RequestCaller);

impl FromRequestParts<Arc<ControlState>> for CurrentTokenCaller {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        control: &Arc<ControlState>,
    ) -> Result<CurrentTokenCaller, ApiError> {
        match authenticate(parts, control).await? {
            (caller, TokenMatch::Current) => Ok(CurrentTokenCaller(caller)),
            (_, TokenMatch::Old) => Err(ApiError::forbidden("an old token, in its grace, does not change tokens")
                .hint("use the new one, or the operator's")),
        }
    }
}

/// A caller, and where it sits.
pub(super) struct PushCaller(pub(super) RequestCaller, pub(super) PushSource);

impl FromRequestParts<Arc<ControlState>> for PushCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Arc<ControlState>) -> Result<PushCaller, ApiError> {
        let (caller, _) = authenticate(parts, control).await?;
        let actor = if caller.is_operator() { EventActor::Operator } else { EventActor::Tenant };
        Ok(PushCaller(caller, PushSource { actor, from: address_of(&parts.extensions) }))
    }
}

/// Finds the owner of the token. Compares with all tokens, whether one matches or not; a wrong token is noted.
async fn authenticate(parts: &Parts, control: &ControlState) -> Result<(RequestCaller, TokenMatch), ApiError> {
    let Some(value) = parts.headers.get(header::AUTHORIZATION) else {
        return Err(ApiError::unauthorized("the request carries no token"));
    };
    let Some(token) = value.as_bytes().strip_prefix(b"Bearer ") else {
        return Err(ApiError::unauthorized("the authorization header is not `Bearer TOKEN`"));
    };
    let operator = TokenHash::of_presented(token).and_then(|presented| control.operator.shown(&presented));
    let tenant = control.directory.snapshot().shown(token).map(|(view, shown)| (view.clone(), shown));
    if let Some(ConnectInfo(HttpPeer(_, visit))) = parts.extensions.get()
        && (operator.is_some() || tenant.is_some())
    {
        visit.serve(operator.is_some());
    }
    match (operator, tenant) {
        (Some(shown), _) => {
            CallerSlot::fill(parts, EventActor::Operator);
            Ok((RequestCaller::Operator, shown))
        }
        (None, Some((view, shown))) => {
            CallerSlot::fill(parts, EventActor::Tenant);
            Ok((RequestCaller::Tenant(view), shown))
        }
        (None, None) => {
            if let Some(ConnectInfo(HttpPeer(peer, _))) = parts.extensions.get() {
                tokio::time::sleep(control.limiter.failed(peer.ip())).await;
            }
            Err(ApiError::unauthorized("unknown token"))
        }
    }
}

/// Applies the rules for every request. Requests of pages in a browser are refused. The connections of unauthenticated
/// senders are closed, and so are those with more bytes than were read. Every error has the same form.
pub(super) async fn guard(State(control): State<Arc<ControlState>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let stranger = !headers.contains_key(header::AUTHORIZATION);
    let mut rest = BodyRemainder::Pending;
    let mut response = if headers.contains_key(header::ORIGIN) {
        let refused = ApiError::forbidden("the request comes from a page in a browser (it has an `Origin`)");
        refused.hint("nothing here is for pages; use the command line or a client").into_response()
    } else if announced_body_len(headers) > MAX_ARTIFACT_BYTES.max(MAX_PUSH_BYTES) as u64 {
        // Refused at once, not after as many bytes have come.
        let message = "the body that the request announces is longer than any that is taken here";
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).hint("send less").into_response()
    } else {
        match buffer_short_body(request).await {
            Ok((request, left)) => {
                rest = left;
                next.run(request).await
            }
            Err(why) => body_read_error(&why).into_response(),
        }
    };
    let status = response.status();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if status.is_client_error() && !is_json {
        let failure = ApiError::new(status, "invalid", "the request's path or query is not understood");
        response = failure.hint("names are percent-encoded UTF-8, and a limit is a number").into_response();
    }
    if stranger || rest == BodyRemainder::Pending || status == StatusCode::UNAUTHORIZED || control.limiter.is_crowded()
    {
        close_after_response(&mut response);
    }
    response
}

/// Bytes of the body that a request announces.
fn announced_body_len(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl RequestCaller {
    /// The tenant of that name, if the caller may access it. Another tenant gets the same answer whether it exists or
    /// not.
    pub(super) fn reach(&self, control: &ControlState, tenant: &str) -> Result<Arc<TenantView>, ApiError> {
        match self {
            RequestCaller::Operator => Ok(control.directory.snapshot().find(tenant)?.clone()),
            RequestCaller::Tenant(own) if own.tenant.name == tenant => Ok(own.clone()),
            RequestCaller::Tenant(own) => Err(ApiError::forbidden(format!(
                "the token is of tenant {:?} and does not reach {tenant:?}",
                own.tenant.name
            ))
            .hint("use the operator's token, or that tenant's")),
        }
    }

    /// As [`RequestCaller::reach`], for a change that creates something: a tenant has a limited rate of these.
    pub(super) fn authorize_change(&self, control: &ControlState, tenant: &str) -> Result<Arc<TenantView>, ApiError> {
        let view = self.reach(control, tenant)?;
        if !self.is_operator() && !view.tenant.usage.admit_change(control.uptime_ns()) {
            let message = format!("tenant {tenant:?} changes too much: {CHANGES_PER_S} changes a second at most");
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "over_quota", message)
                .hint("wait a second, and change less often"));
        }
        Ok(view)
    }

    pub(super) fn is_operator(&self) -> bool {
        matches!(self, RequestCaller::Operator)
    }

    pub(super) fn operator(&self) -> Result<(), ApiError> {
        match self {
            RequestCaller::Operator => Ok(()),
            RequestCaller::Tenant(_) => {
                Err(ApiError::forbidden("a tenant's token does not reach this").hint("use the operator's token"))
            }
        }
    }
}
