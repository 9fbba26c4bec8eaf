//! `GET /v1/cluster`: the servers of the cluster, and who owns which slots. And requests that name what another server
//! may just have made.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;

use super::ControlState;
use super::error::ApiError;
use super::response::ApiResult;
use super::types::{ClusterResponse, ClusterServerResponse};
use crate::limits::{LOOK_PATIENCE, LOOK_PAUSE};
use sandstorm_catalog::format_utc;
use sandstorm_store::slots::{SlotMap, SlotOwnership};

pub(super) async fn show(State(control): State<Arc<ControlState>>) -> ApiResult<ClusterResponse> {
    let Some(own) = control.directory.slots() else {
        return Err(ApiError::not_found("this server is in no cluster")
            .hint("a server joins one when it starts: sandstorm serve --cluster etcd://HOST:2379/NAME"));
    };
    Ok(axum::Json(describe(own, &own.map())))
}

/// Waits until all that other servers have changed before this moment holds here. Returns whether it does: false
/// without a cluster, and at once where its state cannot be read.
pub(super) async fn newer_state(control: &ControlState) -> bool {
    let Some(slots) = control.directory.slots() else { return false };
    let wanted = slots.looks() + 2;
    let begun = Instant::now();
    while slots.looks() < wanted && slots.trouble().is_none() && begun.elapsed() < LOOK_PATIENCE {
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    slots.looks() >= wanted
}

/// The lines of `health` about a cluster whose state cannot be read, or whose servers do not agree.
pub(super) fn warnings(own: &Arc<SlotOwnership>) -> Vec<String> {
    let trouble = own.trouble().map(|(since_ms, why)| format!("since {} UTC: {why}", format_utc(since_ms)));
    let map = own.map();
    let this = map.servers.iter().find(|server| server.id == own.own_id());
    let others = map.servers.iter().filter(|server| this.is_some_and(|this| this.directory != server.directory));
    let differs = others.map(|other| {
        format!(
            "server {} of the cluster, at {}, has other tenants, tables or extensions than this one: what was changed a \
             moment ago may be under way; else its log says why it does not take something over, such as an artifact of \
             a builder whose key it does not trust",
            other.id, other.data
        )
    });
    trouble.into_iter().chain(differs).collect()
}

fn describe(own: &SlotOwnership, map: &SlotMap) -> ClusterResponse {
    let ranges = map.ranges();
    let slots_of =
        |place| ranges.iter().filter(move |range| range.server == place).map(|range| [range.first, range.last]);
    let this = map.servers.iter().find(|server| server.id == own.own_id());
    let own_digest = this.map(|server| &server.directory);
    let servers = map.servers.iter().enumerate().map(|(place, server)| ClusterServerResponse {
        id: server.id.clone(),
        is_this: server.id == own.own_id(),
        lives: server.is_alive,
        data_address: server.data.to_string(),
        redis_address: server.redis.map(|address| address.to_string()),
        memcached_address: server.memcached.map(|address| address.to_string()),
        control_url: server.control.clone(),
        has_same_tenants: own_digest.is_none_or(|own| *own == server.directory),
        slots: slots_of(Some(place)).collect(),
    });
    let (since_ms, trouble) = own.trouble().unzip();
    ClusterResponse {
        server: own.own_id().to_owned(),
        epoch: map.epoch,
        servers: servers.collect(),
        unowned: slots_of(None).collect(),
        trouble,
        trouble_since_ms: since_ms,
    }
}
