//! The page for operators' and tenants' browsers: its files, which are part of the program, and the sign-in.
//!
//! The page asks for nothing from anywhere else, and the headers say so to the browser. It reads the same routes as
//! other clients, with a session in place of a token ([`super::page_sessions`]).

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::ControlState;
use super::authentication::{delay_wrong_token, token_caller};
use super::body::RawBody;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::event_scribe::{EventNote, address_of, decoded};
use super::page_sessions::{COOKIE, PageViewer, session_cookie};
use super::response::ApiResult;
use super::role::AccessRole;
use super::types::PageCodeResponse;
use crate::events::{EventActor, EventCode, NewEvent};
use crate::limits::PAGE_SESSION_LIFETIME;

const PAGE_HTML: &str = include_str!("../page/page.html");
const SIGN_IN_HTML: &str = include_str!("../page/sign_in.html");
const REFUSED_HTML: &str = include_str!("../page/refused.html");
const PAGE_CSS: &str = include_str!("../page/page.css");
const ICON_SVG: &str = include_str!("../page/icon.svg");
const PAGE_JS: &str = include_str!("../page/page.js");

/// What the browser lets the page do: its own files and the server's routes, in no other page's frame.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                              form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The headers of every file of the page, but for its type.
const PAGE_HEADERS: [(header::HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
    // Not `no-referrer`, for which browsers leave the origin out of what its forms send.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Whether the control port speaks TLS: only then may a browser be told to keep the cookie to TLS.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortHasTls(pub(super) bool);

fn page_file(kind: &'static str, text: &'static str) -> Response {
    let mut response = ([(header::CONTENT_TYPE, kind)], text).into_response();
    for (name, value) in PAGE_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// `GET /ui`
pub(super) async fn show(caller: Result<RequestCaller, ApiError>) -> Response {
    page_file("text/html; charset=utf-8", if caller.is_ok() { PAGE_HTML } else { SIGN_IN_HTML })
}

/// `GET /ui/refused`
pub(super) async fn refused() -> Response {
    page_file("text/html; charset=utf-8", REFUSED_HTML)
}

/// `GET /ui/page.css`
pub(super) async fn style() -> Response {
    page_file("text/css; charset=utf-8", PAGE_CSS)
}

/// `GET /ui/icon.svg`
pub(super) async fn icon() -> Response {
    page_file("image/svg+xml", ICON_SVG)
}

/// `GET /ui/page.js`
pub(super) async fn script() -> Response {
    page_file("text/javascript; charset=utf-8", PAGE_JS)
}

/// `POST /ui/session`: the form of the sign-in. Its one field is a token, or a code that `sandstorm ui` has printed.
pub(super) async fn sign_in(
    State(control): State<Arc<ControlState>>,
    Extension(PortHasTls(has_tls)): Extension<PortHasTls>,
    parts: Parts,
    RawBody(form): RawBody,
) -> Response {
    let secret = form_field(&form, "token").unwrap_or_default();
    let secret = secret.trim().as_bytes();
    let viewer = control.page_sessions.use_code(secret);
    let viewer = viewer.or_else(|| token_caller(secret, &control).map(|caller| PageViewer::of(&caller)));
    let Some(viewer) = viewer else {
        delay_wrong_token(&parts, &control).await;
        return see("/ui/refused");
    };
    record_sign_in(&control, &parts, &viewer);
    let Some(id) = control.page_sessions.begin(viewer) else { return see("/ui/refused") };
    set_cookie(see("/ui"), &id, PAGE_SESSION_LIFETIME.as_secs(), has_tls)
}

/// `POST /ui/sign-out`
pub(super) async fn sign_out(
    State(control): State<Arc<ControlState>>,
    Extension(PortHasTls(has_tls)): Extension<PortHasTls>,
    parts: Parts,
) -> Response {
    if let Some(id) = session_cookie(&parts.headers) {
        control.page_sessions.end(id);
    }
    set_cookie(see("/ui"), "", 0, has_tls)
}

/// `POST /v1/page/codes`
pub(super) async fn make_code(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
) -> Result<(Extension<EventNote>, axum::Json<PageCodeResponse>), ApiError> {
    let made = control.page_sessions.make_code(PageViewer::of(&caller));
    let (code, lifetime) = made.ok_or_else(|| ApiError::internal("no code could be made"))?;
    let note = EventNote {
        tenant: caller.own().map(|own| own.tenant.name.clone()),
        text: caller.role().as_viewer().name().to_owned(),
        ..EventNote::default()
    };
    Ok((Extension(note), axum::Json(PageCodeResponse { code, lifetime_s: lifetime.as_secs(), path: "/ui" })))
}

/// `GET /v1/caller`
pub(super) async fn show_caller(caller: RequestCaller) -> ApiResult<super::types::CallerResponse> {
    Ok(axum::Json(super::types::CallerResponse {
        role: caller.role().name(),
        tenant: caller.own().map(|own| own.tenant.name.clone()),
        expires_ms: caller.expires_ms(),
    }))
}

fn record_sign_in(control: &ControlState, parts: &Parts, viewer: &PageViewer) {
    let actor = match viewer.role {
        AccessRole::Operator | AccessRole::Viewer => EventActor::Operator,
        AccessRole::Tenant | AccessRole::TenantViewer => EventActor::Tenant,
    };
    control.events.record(NewEvent {
        actor,
        from: address_of(&parts.extensions),
        tenant: viewer.tenant.as_ref().map(|of| (of.name.clone(), of.id)),
        text: viewer.role.name().to_owned(),
        ..NewEvent::of_server(EventCode::PageSignedIn)
    });
}

fn see(path: &'static str) -> Response {
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, path)]).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn set_cookie(mut response: Response, id: &str, lifetime_s: u64, has_tls: bool) -> Response {
    let secure = if has_tls { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={id}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// A field of a form as browsers send it.
fn form_field(form: &[u8], wanted: &str) -> Option<String> {
    let form = std::str::from_utf8(form).ok()?;
    let (_, value) = form.split('&').filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == wanted)?;
    Some(decoded(&value.replace('+', " ")))
}
