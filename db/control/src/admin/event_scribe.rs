//! Records the changes that requests make: what, by which actor, from where.
//!
//! A layer around the routes knows which of them change something, and records those that succeed. A handler adds what
//! the path does not say ([`EventNote`]). Pushes record themselves: they go on when their client has gone.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::connect_info::ConnectInfo;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Extensions, Method};
use axum::middleware::Next;
use axum::response::Response;

use super::ControlState;
use crate::events::{EventActor, EventCode, NewEvent};
use crate::http_listener::HttpPeer;
use sandstorm_catalog::TenantView;

/// The routes that change something, but for pushes.
pub(super) const CHANGES: &[(&str, &str, EventCode)] = &[
    ("POST", "/v1/shutdown", EventCode::ServerStopping),
    ("POST", "/v1/operator/rotate", EventCode::OperatorTokenRotated),
    ("DELETE", "/v1/operator/old-token", EventCode::OperatorOldTokenRevoked),
    ("POST", "/v1/tokens", EventCode::TokenCreated),
    ("DELETE", "/v1/tokens/{name}", EventCode::TokenRevoked),
    ("POST", "/v1/tenants/{tenant}/tokens", EventCode::TokenCreated),
    ("DELETE", "/v1/tenants/{tenant}/tokens/{name}", EventCode::TokenRevoked),
    ("POST", "/v1/page/codes", EventCode::PageCodeMade),
    ("POST", "/v1/recheck", EventCode::NativeRechecked),
    ("PUT", "/v1/slow", EventCode::SlowThresholdChanged),
    ("POST", "/v1/scrub", EventCode::LogScrubBegun),
    ("POST", "/v1/cluster/moves", EventCode::SlotMovesBegun),
    ("POST", "/v1/cluster/moves/cancel", EventCode::SlotMovesCancelled),
    ("POST", "/v1/cluster/drain", EventCode::ClusterServerDrained),
    ("POST", "/v1/cluster/add", EventCode::ClusterServerAdded),
    ("POST", "/v1/cluster/balance", EventCode::ClusterBalanced),
    ("POST", "/v1/cluster/split", EventCode::ClusterSplit),
    ("POST", "/v1/cluster/remove", EventCode::ClusterServerRemoved),
    ("POST", "/v1/cluster/fail-over", EventCode::ClusterServerFailedOver),
    ("DELETE", "/v1/denied/{pattern}", EventCode::NativeDenialEnded),
    ("POST", "/v1/tenants", EventCode::TenantCreated),
    ("PATCH", "/v1/tenants/{tenant}", EventCode::TenantChanged),
    ("DELETE", "/v1/tenants/{tenant}", EventCode::TenantDeleted),
    ("POST", "/v1/tenants/{tenant}/rotate", EventCode::TenantTokenRotated),
    ("DELETE", "/v1/tenants/{tenant}/old-token", EventCode::TenantOldTokenRevoked),
    ("POST", "/v1/tenants/{tenant}/tables", EventCode::TableCreated),
    ("PATCH", "/v1/tenants/{tenant}/tables/{name}", EventCode::TableChanged),
    ("POST", "/v1/tenants/{tenant}/tables/{name}/flush", EventCode::TableFlushed),
    ("DELETE", "/v1/tenants/{tenant}/tables/{name}", EventCode::TableDropped),
    ("POST", "/v1/tenants/{tenant}/grants", EventCode::GrantGiven),
    ("DELETE", "/v1/tenants/{tenant}/grants/given/{table}/{to}", EventCode::GrantRevoked),
    ("DELETE", "/v1/tenants/{tenant}/grants/received/{owner}/{table}", EventCode::GrantGivenUp),
    ("PUT", "/v1/tenants/{tenant}/secrets/{name}", EventCode::SecretSet),
    ("DELETE", "/v1/tenants/{tenant}/secrets/{name}", EventCode::SecretRemoved),
    ("POST", "/v1/tenants/{tenant}/triggers", EventCode::TriggerCreated),
    ("PATCH", "/v1/tenants/{tenant}/triggers/{name}", EventCode::TriggerChanged),
    ("DELETE", "/v1/tenants/{tenant}/triggers/{name}", EventCode::TriggerDeleted),
    ("POST", "/v1/tenants/{tenant}/triggers/{name}/pause", EventCode::TriggerPaused),
    ("POST", "/v1/tenants/{tenant}/triggers/{name}/resume", EventCode::TriggerResumed),
    ("POST", "/v1/tenants/{tenant}/triggers/{name}/replay", EventCode::TriggerReplayed),
    ("DELETE", "/v1/tenants/{tenant}/triggers/{name}/dead-letters", EventCode::TriggerLettersDiscarded),
    ("DELETE", "/v1/tenants/{tenant}/extensions/{name}", EventCode::ExtensionUnloaded),
    ("POST", "/v1/tenants/{tenant}/extensions/{name}/rollback", EventCode::ExtensionRolledBack),
    ("PUT", "/v1/tenants/{tenant}/extensions/{name}/deployment", EventCode::ExtensionDeployed),
    ("POST", "/v1/catalogue/enable", EventCode::ExtensionEnabled),
    ("PUT", "/v1/tenants/{tenant}/extensions/{name}/share", EventCode::ExtensionShared),
    ("DELETE", "/v1/tenants/{tenant}/extensions/{name}/share", EventCode::ExtensionShareEnded),
    ("PUT", "/v1/tenants/{tenant}/extensions/{name}/enabled", EventCode::ExtensionEnabled),
    ("DELETE", "/v1/tenants/{tenant}/extensions/{name}/enabled", EventCode::ExtensionDisabled),
    ("POST", "/v1/tenants/{tenant}/extensions/{name}/suspend", EventCode::ExtensionSuspended),
    ("POST", "/v1/tenants/{tenant}/extensions/{name}/resume", EventCode::ExtensionResumed),
    ("PUT", "/v1/tenants/{tenant}/extensions/{name}/budget", EventCode::ExtensionBudgetChanged),
];

/// What a handler tells of its change, in the extensions of its response.
#[derive(Clone, Debug, Default)]
pub(super) struct EventNote {
    /// The tenant, if the path does not name it.
    pub(super) tenant: Option<String>,
    /// The extension, table, grant or pattern, if the path does not name it.
    pub(super) subject: Option<String>,
    /// Details, for people.
    pub(super) text: String,
    /// Whether nothing was changed: there is no event then.
    pub(super) is_no_change: bool,
}

/// The address that a request came from.
pub(super) fn address_of(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get().map(|ConnectInfo(HttpPeer(peer, _))| peer.ip().to_canonical())
}

/// The layer: see the head of this file.
pub(super) async fn record_change(State(control): State<Arc<ControlState>>, request: Request, next: Next) -> Response {
    let Some((template, code)) = change_of(&request) else { return next.run(request).await };
    let PathNames { tenant: in_path, subject } = PathNames::of(template, request.uri().path());
    let tenant_named = |name: &Option<String>| {
        let name = name.as_ref()?;
        control.directory.snapshot().by_name(name).map(|view| (name.clone(), view.tenant.id))
    };
    // It may be gone afterwards.
    let before = tenant_named(&in_path);
    let from = address_of(request.extensions());
    let mut response = next.run(request).await;
    // The check of access leaves the caller there.
    if let (true, Some(actor)) = (response.status().is_success(), response.extensions().get::<EventActor>().copied()) {
        let note = response.extensions_mut().remove::<EventNote>().unwrap_or_default();
        if note.is_no_change {
            return response;
        }
        let (tenant, subject) = (before.or_else(|| tenant_named(&note.tenant)), note.subject.or(subject));
        control.events.record(NewEvent { code, actor, from, tenant, subject, count: 1, text: note.text });
    }
    response
}

/// The route of a request and its code, if it changes something.
fn change_of(request: &Request) -> Option<(&'static str, EventCode)> {
    if *request.method() == Method::GET {
        return None;
    }
    let (method, path) = (request.method().as_str(), request.extensions().get::<MatchedPath>()?.as_str());
    CHANGES.iter().find(|(of, template, _)| (*of, *template) == (method, path)).map(|(_, path, code)| (*path, *code))
}

/// The names in a path.
#[derive(Debug, Default, PartialEq, Eq)]
struct PathNames {
    tenant: Option<String>,
    subject: Option<String>,
}

impl PathNames {
    /// The names in a path that has this template.
    fn of(template: &str, path: &str) -> PathNames {
        let mut names = PathNames::default();
        let parts = template.split('/').zip(path.split('/')).filter(|(part, _)| part.starts_with('{'));
        for (part, name) in parts {
            let name = decoded(name);
            match (part, &mut names.subject) {
                ("{tenant}", _) => names.tenant = Some(name),
                (_, subject @ None) => *subject = Some(name),
                (_, Some(subject)) => {
                    subject.push(if part == "{to}" { '>' } else { '/' });
                    subject.push_str(&name);
                }
            }
        }
        names
    }
}

/// A part of a path without percent encoding. The router has decoded it before: it is UTF-8.
pub(super) fn decoded(part: &str) -> String {
    let (bytes, mut text) = (part.as_bytes(), Vec::with_capacity(part.len()));
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digits = part.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let number = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        text.push(number.unwrap_or(*byte));
        at += if number.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The sender of a push, as its event tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct PushSource {
    /// The caller that pushes.
    pub(super) actor: EventActor,
    /// From where.
    pub(super) from: Option<IpAddr>,
}

/// Records a push that was loaded, or the reason that it was not.
pub(super) fn record_push(
    control: &ControlState,
    view: &TenantView,
    name: &str,
    source: PushSource,
    result: Result<String, &str>,
) {
    let (code, text) = match result {
        Ok(text) => (EventCode::ExtensionPushed, text),
        Err(why) => (EventCode::ExtensionRefused, why.to_owned()),
    };
    let PushSource { actor, from } = source;
    let (tenant, subject) = (Some((view.tenant.name.clone(), view.tenant.id)), Some(name.to_owned()));
    control.events.record(NewEvent { code, actor, from, tenant, subject, count: 1, text });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_from_paths_as_the_router_takes_them() {
        let names = |template, path| {
            let PathNames { tenant, subject } = PathNames::of(template, path);
            (tenant.unwrap_or_default(), subject.unwrap_or_default())
        };
        let given = "/v1/tenants/{tenant}/grants/given/{table}/{to}";
        assert_eq!(names(given, "/v1/tenants/a/grants/given/t%2F1/b"), ("a".into(), "t/1>b".into()));
        let received = "/v1/tenants/{tenant}/grants/received/{owner}/{table}";
        assert_eq!(names(received, "/v1/tenants/a/grants/received/o/t"), ("a".into(), "o/t".into()));
        assert_eq!(names("/v1/denied/{pattern}", "/v1/denied/%24_%C3%BC%"), (String::new(), "$_ü%".into()));
        assert_eq!(names("/v1/tenants", "/v1/tenants"), (String::new(), String::new()));
    }
}
