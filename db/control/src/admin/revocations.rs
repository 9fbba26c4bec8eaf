//! A request that takes rights away in a cluster is answered once it holds at every server. An error names the servers
//! that have not confirmed it: the change is agreed all the same, and holds there as soon as they read it.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sandstorm_cluster::MoveCoordinator;
use sandstorm_cluster::move_coordinator::LaggingServer;

use super::ControlState;
use super::cluster::newer_state;
use super::error::ApiError;
use crate::limits::{EVERYWHERE_PATIENCE, EVERYWHERE_PAUSE};

/// The routes that take rights away, of those that the servers of a cluster agree on, and answer nothing else. Those of
/// a new token and of a tenant's settings are not among them: their answers, such as the token that is shown only once,
/// say it in a field ([`why_not_everywhere`]).
const REVOCATIONS: &[(&str, &str)] = &[
    ("DELETE", "/v1/tenants/{tenant}"),
    ("DELETE", "/v1/tenants/{tenant}/old-token"),
    ("DELETE", "/v1/tenants/{tenant}/grants/given/{table}/{to}"),
    ("DELETE", "/v1/tenants/{tenant}/extensions/{name}/share"),
    ("POST", "/v1/tenants/{tenant}/extensions/{name}/suspend"),
];

/// The layer: see the head of this file.
pub(super) async fn confirm_everywhere(
    State(control): State<Arc<ControlState>>,
    request: Request,
    next: Next,
) -> Response {
    let coordinator = control.moves.clone().filter(|_| is_revocation(&request));
    let response = next.run(request).await;
    let Some(coordinator) = coordinator.filter(|_| response.status().is_success()) else { return response };
    match confirmed(&control, &coordinator).await {
        Ok(()) => response,
        Err(why) => why.into_response(),
    }
}

fn is_revocation(request: &Request) -> bool {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    REVOCATIONS.iter().any(|(method, template)| Some(*template) == path && *method == request.method().as_str())
}

/// Waits as the layer does. Returns what its error would say: `None`, if all that was agreed before this moment holds
/// at every server, or there is no cluster.
pub(super) async fn why_not_everywhere(control: &ControlState) -> Option<String> {
    let coordinator = control.moves.as_ref()?;
    confirmed(control, coordinator).await.err().map(|error| error.message().to_owned())
}

/// Waits until every server has taken over all that was agreed before this moment.
async fn confirmed(control: &ControlState, coordinator: &MoveCoordinator) -> Result<(), ApiError> {
    coordinator.wake_agent();
    if !newer_state(control).await {
        return Err(not_confirmed(
            "this server cannot read the cluster's state, and does not know who has taken it over",
        ));
    }
    let (wanted, begun) = (coordinator.directory_revision(), Instant::now());
    loop {
        let behind = coordinator.servers_behind(wanted);
        if behind.is_empty() {
            return Ok(());
        }
        if begun.elapsed() >= EVERYWHERE_PATIENCE || !behind.iter().any(|server| server.lives) {
            let shown: Vec<String> = behind.iter().map(describe).collect();
            return Err(not_confirmed(&shown.join("; ")));
        }
        coordinator.wake_agent();
        tokio::time::sleep(EVERYWHERE_PAUSE).await;
    }
}

fn describe(server: &LaggingServer) -> String {
    match server.lives {
        true => format!("server {} has not taken it over yet", server.id),
        false => format!("server {} is silent, and may not know of it", server.id),
    }
}

fn not_confirmed(why: &str) -> ApiError {
    let message = format!("it is done, but not known to hold at all servers: {why}");
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "not_everywhere", message).hint(
        "it holds at each server as soon as that server reads the cluster's state; one that is gone for good is taken \
         out with `sandstorm cluster remove`",
    )
}
