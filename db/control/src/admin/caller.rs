//! The sender of a request, and the rules for every request.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::access_tokens::AccessTokenId;
use super::body::body_read_error;
use super::error::ApiError;
use super::event_scribe::{PushSource, address_of};
use super::role::AccessRole;
use super::{ControlState, MAX_ARTIFACT_BYTES, MAX_PUSH_BYTES};
use crate::events::EventActor;
use crate::http_listener::{BodyRemainder, buffer_short_body, close_after_response};
use crate::limits::REFUSAL_BYTES;
use sandstorm_accounts::limits::CHANGES_PER_S;
use sandstorm_catalog::{TenantView, TokenMatch};
use sandstorm_cluster::slot_source::PEER_KEY_HEADER;

/// The paths that forms of the page are posted to.
const PAGE_FORMS: [&str; 2] = ["/ui/session", "/ui/sign-out"];

/// What a caller is known by: when that ends, sessions that came of it end, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallerSource {
    /// The operator's token.
    Operator,
    /// A tenant's token, by the tenant's id.
    Tenant(u32),
    /// A token that was made for a viewer.
    Made(AccessTokenId),
}

/// The sender of a request, found by its token or session before the handler runs (`access.rs`).
#[derive(Clone)]
pub(super) struct RequestCaller {
    role: AccessRole,
    own: Option<Arc<TenantView>>,
    token: TokenMatch,
    source: CallerSource,
    expires_ms: Option<u64>,
}

impl FromRequestParts<Arc<ControlState>> for RequestCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _control: &Arc<ControlState>) -> Result<RequestCaller, ApiError> {
        let known = parts.extensions.get::<RequestCaller>().cloned();
        known.ok_or_else(|| ApiError::unauthorized("the request carries no token that is known"))
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
        let caller = RequestCaller::from_request_parts(parts, control).await?;
        match caller.token {
            TokenMatch::Current => Ok(CurrentTokenCaller(caller)),
            TokenMatch::Old => Err(ApiError::forbidden("an old token, in its grace, does not change tokens")
                .hint("use the new one, or the operator's")),
        }
    }
}

/// A caller, and where it sits.
pub(super) struct PushCaller(pub(super) RequestCaller, pub(super) PushSource);

impl FromRequestParts<Arc<ControlState>> for PushCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Arc<ControlState>) -> Result<PushCaller, ApiError> {
        let caller = RequestCaller::from_request_parts(parts, control).await?;
        let actor = caller.actor();
        Ok(PushCaller(caller, PushSource { actor, from: address_of(&parts.extensions) }))
    }
}

/// Applies the rules for every request. Requests of pages in a browser are refused. The connections of unauthenticated
/// senders are closed, and so are those with more bytes than were read. Every error has the same form.
pub(super) async fn guard(State(control): State<Arc<ControlState>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    // Also the key of another server of the cluster.
    let has_token = headers.contains_key(header::AUTHORIZATION) || headers.contains_key(PEER_KEY_HEADER);
    let mut rest = BodyRemainder::Pending;
    let mut response = if headers.contains_key(header::ORIGIN) && !is_from_own_page(&request) {
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
        // What the router says, such as which parameter has no such name.
        let why = axum::body::to_bytes(response.into_body(), REFUSAL_BYTES).await.unwrap_or_default();
        let why = String::from_utf8_lossy(&why);
        let text = "the request's path or query is not understood";
        let text = if why.is_empty() { text.to_owned() } else { format!("{text}: {why}") };
        let failure = ApiError::new(status, "invalid", text);
        response = failure.hint("names are percent-encoded UTF-8, and a limit is a number").into_response();
    }
    let is_known = has_token || response.extensions().get::<EventActor>().is_some();
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let is_refused = status == StatusCode::UNAUTHORIZED;
    let ends = !is_known || rest == BodyRemainder::Pending || is_refused || control.limiter.is_crowded();
    if ends && status != StatusCode::SWITCHING_PROTOCOLS {
        close_after_response(&mut response);
    }
    response
}

/// Whether a request comes from the form of this server's own page: browsers name the page's origin in it.
fn is_from_own_page(request: &Request) -> bool {
    let of = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let (Some(origin), Some(host)) = (of(header::ORIGIN), of(header::HOST)) else { return false };
    let own = origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
    own && PAGE_FORMS.contains(&request.uri().path())
}

/// Bytes of the body that a request announces.
fn announced_body_len(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl RequestCaller {
    /// The owner of a token that the operator or a tenant has.
    pub(super) fn new(
        role: AccessRole,
        own: Option<Arc<TenantView>>,
        token: TokenMatch,
        source: CallerSource,
    ) -> RequestCaller {
        RequestCaller { role, own, token, source, expires_ms: None }
    }

    /// The owner of a token or session that was made, which may end by itself.
    pub(super) fn made(
        role: AccessRole,
        own: Option<Arc<TenantView>>,
        source: CallerSource,
        expires_ms: Option<u64>,
    ) -> RequestCaller {
        RequestCaller { role, own, token: TokenMatch::Current, source, expires_ms }
    }

    /// What its token stands for.
    pub(super) fn role(&self) -> AccessRole {
        self.role
    }

    /// What it is known by.
    pub(super) fn source(&self) -> &CallerSource {
        &self.source
    }

    /// The end of its token, in milliseconds since 1970, if that is set.
    pub(super) fn expires_ms(&self) -> Option<u64> {
        self.expires_ms
    }

    /// The tenant that is all it sees; `None`: it sees the whole server.
    pub(super) fn own(&self) -> Option<&Arc<TenantView>> {
        self.own.as_ref()
    }

    /// The actor that events name.
    pub(super) fn actor(&self) -> EventActor {
        if self.own.is_some() { EventActor::Tenant } else { EventActor::Operator }
    }

    /// Refuses a tenant that is not the caller's own. Another tenant gets the same answer whether it exists or not.
    pub(super) fn check_tenant(&self, tenant: &str) -> Result<(), ApiError> {
        match &self.own {
            Some(own) if own.tenant.name != tenant => Err(ApiError::forbidden(format!(
                "the token is of tenant {:?} and does not reach {tenant:?}",
                own.tenant.name
            ))
            .hint("use the operator's token, or that tenant's")),
            _ => Ok(()),
        }
    }

    /// The tenant of that name, if the caller may access it.
    pub(super) fn reach(&self, control: &ControlState, tenant: &str) -> Result<Arc<TenantView>, ApiError> {
        self.check_tenant(tenant)?;
        match &self.own {
            Some(own) => Ok(own.clone()),
            None => Ok(control.directory.snapshot().find(tenant)?.clone()),
        }
    }

    /// The tenants that a request is about: the named one, or all that the caller sees.
    pub(super) fn views(&self, control: &ControlState, tenant: Option<&str>) -> Result<Vec<Arc<TenantView>>, ApiError> {
        Ok(match (tenant, &self.own) {
            (Some(tenant), _) => vec![self.reach(control, tenant)?],
            (None, Some(own)) => vec![own.clone()],
            (None, None) => control.directory.snapshot().sorted().into_iter().cloned().collect(),
        })
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

    /// Refuses a request that has waited, if what its sender was known by has ended since: the token was revoked or
    /// replaced, or the tenant deleted. (The operator's token is not looked at again.)
    pub(super) fn check_current(&self, control: &ControlState) -> Result<(), ApiError> {
        let has_tenant = self.own.as_ref().is_none_or(|own| {
            let credentials = match (&self.source, self.token) {
                (CallerSource::Tenant(_), TokenMatch::Current) => vec![own.tenant.credential],
                (CallerSource::Tenant(_), TokenMatch::Old) => own.tenant.credentials().collect(),
                _ => Vec::new(),
            };
            let snapshot = control.directory.snapshot();
            let now = snapshot.tenant(own.tenant.id).filter(|now| now.tenant.serial == own.tenant.serial);
            now.is_some_and(|now| credentials.iter().all(|one| now.tenant.has_credential(*one)))
        });
        let has_token = match &self.source {
            CallerSource::Made(id) => control.access_tokens.has(id),
            CallerSource::Operator | CallerSource::Tenant(_) => true,
        };
        if has_tenant && has_token {
            return Ok(());
        }
        Err(ApiError::unauthorized("the token has ended since the request began"))
    }

    /// Whether it may do everything.
    pub(super) fn is_operator(&self) -> bool {
        self.role == AccessRole::Operator
    }

    /// Whether it may see keys: those of its own tenant's records.
    pub(super) fn sees_keys(&self) -> bool {
        self.role == AccessRole::Tenant
    }

    /// Whether it sees the whole server, as an operator does.
    pub(super) fn sees_server(&self) -> bool {
        self.own.is_none()
    }
}
