//! Who sent a request, and what holds for every request whoever it is.

use std::sync::Arc;

use axum::extract::connect_info::ConnectInfo;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Failure;
use super::routes::unread;
use super::{Control, MAX_ARTIFACT_BYTES, MAX_PUSH_BYTES, now_ms};
use crate::gate::{Peer, Rest, end_connection, read_short};
use sandstorm_accounts::TokenHash;
use sandstorm_accounts::limits::CHANGES_PER_S;
use sandstorm_catalog::{Shown, TenantView};

/// Who sent a request, by its token.
pub(super) enum Caller {
    Operator,
    Tenant(Arc<TenantView>),
}

impl FromRequestParts<Arc<Control>> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, control: &Arc<Control>) -> Result<Caller, Failure> {
        identify(parts, control).await.map(|(caller, _)| caller)
    }
}

/// A caller whose token is not an old one: who has found an old token must not lock its owner out with it.
pub(super) struct Current(pub(super) Caller);

impl FromRequestParts<Arc<Control>> for Current {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, control: &Arc<Control>) -> Result<Current, Failure> {
        match identify(parts, control).await? {
            (caller, Shown::Current) => Ok(Current(caller)),
            (_, Shown::Old) => Err(Failure::forbidden("an old token, in its grace, does not change tokens")
                .hint("use the new one, or the operator's")),
        }
    }
}

/// Whose token it is. Looks at all of them, whoever it is; a token that is nobody's is noted.
async fn identify(parts: &Parts, control: &Control) -> Result<(Caller, Shown), Failure> {
    let Some(value) = parts.headers.get(header::AUTHORIZATION) else {
        return Err(Failure::unauthorised("the request carries no token"));
    };
    let Some(token) = value.as_bytes().strip_prefix(b"Bearer ") else {
        return Err(Failure::unauthorised("the authorization header is not `Bearer TOKEN`"));
    };
    let operator = TokenHash::of_presented(token).and_then(|presented| control.operator.shown(&presented));
    let tenant = control.directory.snapshot().shown(token).map(|(view, shown)| (view.clone(), shown));
    if let Some(ConnectInfo(Peer(_, visit))) = parts.extensions.get()
        && (operator.is_some() || tenant.is_some())
    {
        visit.serve(operator.is_some());
    }
    match (operator, tenant) {
        (Some(shown), _) => Ok((Caller::Operator, shown)),
        (None, Some((view, shown))) => Ok((Caller::Tenant(view), shown)),
        (None, None) => {
            if let Some(ConnectInfo(Peer(peer, _))) = parts.extensions.get() {
                tokio::time::sleep(control.door.failed(peer.ip())).await;
            }
            Err(Failure::unauthorised("the token is nobody's"))
        }
    }
}

/// What holds for every request: none comes from a page in a browser, strangers do not keep their connections, nor does who sends
/// more than was read, and every error has the same form.
pub(super) async fn guard(State(control): State<Arc<Control>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let stranger = !headers.contains_key(header::AUTHORIZATION);
    let mut rest = Rest::Something;
    let mut response = if headers.contains_key(header::ORIGIN) {
        let refused = Failure::forbidden("the request comes from a page in a browser (it has an `Origin`)");
        refused.hint("nothing here is for pages; use the command line or a client").into_response()
    } else if announced(headers) > MAX_ARTIFACT_BYTES.max(MAX_PUSH_BYTES) as u64 {
        // At once, rather than when as much has come.
        let message = "the body that the request announces is longer than any that is taken here";
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).hint("send less").into_response()
    } else {
        match read_short(request).await {
            Ok((request, left)) => {
                rest = left;
                next.run(request).await
            }
            Err(why) => unread(&why).into_response(),
        }
    };
    let status = response.status();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if status.is_client_error() && !is_json {
        let failure = Failure::new(status, "invalid", "the request's path or query is not understood");
        response = failure.hint("names are percent-encoded UTF-8, and a limit is a number").into_response();
    }
    if stranger || rest == Rest::Something || status == StatusCode::UNAUTHORIZED || control.door.is_crowded() {
        end_connection(&mut response);
    }
    response
}

/// Bytes of the body that a request announces.
fn announced(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Caller {
    /// The tenant of that name, if the caller may reach it. Another tenant is told the same whether it is there or not.
    pub(super) fn reach(&self, control: &Control, tenant: &str) -> Result<Arc<TenantView>, Failure> {
        match self {
            Caller::Operator => Ok(control.directory.snapshot().find(tenant)?.clone()),
            Caller::Tenant(own) if own.tenant.name == tenant => Ok(own.clone()),
            Caller::Tenant(own) => Err(Failure::forbidden(format!(
                "the token is of tenant {:?} and does not reach {tenant:?}",
                own.tenant.name
            ))
            .hint("use the operator's token, or that tenant's")),
        }
    }

    /// As [`Caller::reach`], for a change that makes something new: a tenant may ask for so many a second.
    pub(super) fn reach_to_change(&self, control: &Control, tenant: &str) -> Result<Arc<TenantView>, Failure> {
        let view = self.reach(control, tenant)?;
        if !self.is_operator() && !view.tenant.usage.admit_change(now_ms()) {
            let message = format!("tenant {tenant:?} changes too much: {CHANGES_PER_S} changes a second at most");
            return Err(Failure::new(StatusCode::TOO_MANY_REQUESTS, "over_quota", message)
                .hint("wait a second, and change less often"));
        }
        Ok(view)
    }

    pub(super) fn is_operator(&self) -> bool {
        matches!(self, Caller::Operator)
    }

    pub(super) fn operator(&self) -> Result<(), Failure> {
        match self {
            Caller::Operator => Ok(()),
            Caller::Tenant(_) => {
                Err(Failure::forbidden("a tenant's token does not reach this").hint("use the operator's token"))
            }
        }
    }
}
