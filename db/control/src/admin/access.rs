//! Which callers may use a route. Every route has a rule in the table of `routes.rs`, and [`check_access`] is the one
//! place where rules are applied: before the handler, which finds the caller in the request.

use std::sync::Arc;

use axum::extract::{RawPathParams, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::ControlState;
use super::authentication::authenticate;
use super::caller::RequestCaller;
use super::cluster::newer_state;
use super::error::ApiError;
use super::role::AccessRole;

/// The rule of a route: the least role that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteAccess {
    /// Every caller, with a token or without one.
    Anyone,
    /// Any token. The answer shows what the token may see.
    Either,
    /// The operator, or a viewer.
    Viewer,
    /// The operator.
    Operator,
    /// The tenant of the path, or one of its viewers; and all callers that may see the whole server.
    TenantViewer,
    /// The tenant of the path, or one of its viewers; the operator only where the route's own rule says so.
    OwnViewer,
    /// The tenant of the path, or the operator: those that may change what the tenant has.
    Tenant,
}

impl RouteAccess {
    /// Whether a role is enough. For a role of a tenant that tenant has to be the path's, too.
    pub(super) fn admits(self, role: AccessRole) -> bool {
        match self {
            RouteAccess::Anyone | RouteAccess::Either | RouteAccess::TenantViewer => match role {
                AccessRole::Operator | AccessRole::Viewer | AccessRole::Tenant | AccessRole::TenantViewer => true,
            },
            RouteAccess::Viewer => matches!(role, AccessRole::Operator | AccessRole::Viewer),
            RouteAccess::Operator => role == AccessRole::Operator,
            RouteAccess::OwnViewer => role != AccessRole::Viewer,
            RouteAccess::Tenant => matches!(role, AccessRole::Operator | AccessRole::Tenant),
        }
    }

    /// The word for it in docs/control.md.
    #[cfg(test)]
    pub(super) fn name(self) -> &'static str {
        match self {
            RouteAccess::Anyone => "anyone",
            RouteAccess::Either => "either",
            RouteAccess::Viewer => "viewer",
            RouteAccess::Operator => "operator",
            RouteAccess::TenantViewer => "tenant viewer",
            RouteAccess::OwnViewer => "own viewer",
            RouteAccess::Tenant => "tenant",
        }
    }
}

/// A route's rule, with what its check needs.
#[derive(Clone)]
pub(super) struct AccessCheck {
    pub(super) control: Arc<ControlState>,
    pub(super) access: RouteAccess,
    /// Method and path, for the text of a refusal.
    pub(super) route: (&'static str, &'static str),
}

/// Finds the caller, and lets it through if the route's rule admits it.
pub(super) async fn check_access(
    State(AccessCheck { control, access, route }): State<AccessCheck>,
    path: RawPathParams,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match authenticate(&parts, &control).await.and_then(|caller| admit((access, route), &path, caller)) {
        Ok(caller) => {
            let named = path.iter().find(|(name, _)| *name == "tenant").map(|(_, tenant)| tenant);
            if named.is_some_and(|tenant| caller.sees_server() && control.directory.snapshot().find(tenant).is_err()) {
                newer_state(&control).await;
            }
            let actor = caller.actor();
            parts.extensions.insert(caller);
            let mut response = next.run(Request::from_parts(parts, body)).await;
            response.extensions_mut().insert(actor);
            response
        }
        Err(_) if access == RouteAccess::Anyone => next.run(Request::from_parts(parts, body)).await,
        Err(refused) => refused.into_response(),
    }
}

/// The caller, if its role is enough for the route, and the path's tenant is its own.
fn admit(
    (access, (method, template)): (RouteAccess, (&str, &str)),
    path: &RawPathParams,
    caller: RequestCaller,
) -> Result<RequestCaller, ApiError> {
    if !access.admits(caller.role()) {
        let role = caller.role().name();
        let message = format!("a token of the role {role:?} does not reach {method} {template}");
        let hint = match access {
            RouteAccess::Tenant => "use the tenant's token, or the operator's",
            RouteAccess::OwnViewer => "use the tenant's token, or that of one of its viewers",
            RouteAccess::Viewer => "use the operator's token, or a viewer's (`sandstorm token create`)",
            _ => "use the operator's token",
        };
        return Err(ApiError::forbidden(message).hint(hint));
    }
    match path.iter().find(|(name, _)| *name == "tenant") {
        Some((_, tenant)) => caller.check_tenant(tenant).map(|()| caller),
        None => Ok(caller),
    }
}
