//! Finds the owner of the token, or of the page's session, that a request carries.

use axum::extract::connect_info::ConnectInfo;
use axum::http::header;
use axum::http::request::Parts;

use super::ControlState;
use super::caller::{CallerSource, RequestCaller};
use super::cluster::newer_state;
use super::error::ApiError;
use super::page_sessions::session_cookie;
use super::role::AccessRole;
use crate::http_listener::HttpPeer;
use sandstorm_accounts::TokenHash;

/// Finds the sender of a request by its token, or, without one, by its session. A wrong token is noted.
pub(super) async fn authenticate(parts: &Parts, control: &ControlState) -> Result<RequestCaller, ApiError> {
    let found = match parts.headers.get(header::AUTHORIZATION) {
        Some(value) => {
            let Some(token) = value.as_bytes().strip_prefix(b"Bearer ") else {
                return Err(ApiError::unauthorized("the authorization header is not `Bearer TOKEN`"));
            };
            match token_caller(token, control) {
                // Another server of the cluster may just have made it.
                None if newer_state(control).await => token_caller(token, control),
                found => found,
            }
        }
        None => {
            let Some(session) = session_cookie(&parts.headers) else {
                return Err(ApiError::unauthorized("the request carries no token"));
            };
            // A session that is over is no wrong token: a page that is left open would be taken for a guesser.
            let found = session_caller(session, control);
            let ended = || ApiError::unauthorized("the session is over").hint("sign in again at /ui");
            return found.ok_or_else(ended).inspect(|caller| note_served(parts, caller));
        }
    };
    match found {
        Some(caller) => {
            note_served(parts, &caller);
            Ok(caller)
        }
        None => {
            delay_wrong_token(parts, control).await;
            Err(ApiError::unauthorized("unknown token"))
        }
    }
}

/// Holds a sender of wrong tokens back.
pub(super) async fn delay_wrong_token(parts: &Parts, control: &ControlState) {
    if let Some(ConnectInfo(HttpPeer(peer, _))) = parts.extensions.get() {
        tokio::time::sleep(control.limiter.failed(peer.ip())).await;
    }
}

/// The connection is of an authenticated caller: it does not make room for others.
fn note_served(parts: &Parts, caller: &RequestCaller) {
    if let Some(ConnectInfo(HttpPeer(_, visit))) = parts.extensions.get() {
        visit.serve(caller.is_operator());
    }
}

/// The owner of a token. Compares with all tokens, whether one matches or not.
pub(super) fn token_caller(token: &[u8], control: &ControlState) -> Option<RequestCaller> {
    let snapshot = control.directory.snapshot();
    let presented = TokenHash::of_presented(token)?;
    let operator = control.operator.shown(&presented);
    let made = control.access_tokens.shown(&presented);
    let tenant = snapshot.shown(token).map(|(view, shown)| (view.clone(), shown));
    if let Some(shown) = operator {
        return Some(RequestCaller::new(AccessRole::Operator, None, shown, CallerSource::Operator));
    }
    if let Some((view, shown)) = tenant {
        let source = CallerSource::Tenant(view.tenant.id);
        return Some(RequestCaller::new(AccessRole::Tenant, Some(view), shown, source));
    }
    let made = made?;
    let view = match &made.tenant {
        Some(tenant) => Some(tenant.find(&snapshot)?.clone()),
        None => None,
    };
    Some(RequestCaller::made(made.role(), view, CallerSource::Made(made.id()), made.expires_ms))
}

/// The owner of a session: a reader that changes nothing.
fn session_caller(session: &[u8], control: &ControlState) -> Option<RequestCaller> {
    let found = control.page_sessions.find(session)?;
    let view = match &found.tenant {
        Some(tenant) => {
            let view = tenant.find(&control.directory.snapshot())?.clone();
            if !found.credentials.iter().all(|one| view.tenant.has_credential(*one)) {
                return None;
            }
            Some(view)
        }
        None => None,
    };
    Some(RequestCaller::made(found.role, view, found.source, found.expires_ms))
}
