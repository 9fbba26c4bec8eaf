//! `GET /v1/cluster`: the servers of the cluster, and who owns which slots.

use std::sync::Arc;

use axum::extract::State;

use super::ControlState;
use super::error::ApiError;
use super::response::ApiResult;
use super::types::{ClusterResponse, ClusterServerResponse};
use sandstorm_catalog::format_utc;
use sandstorm_store::slots::{SlotMap, SlotOwnership};

pub(super) async fn show(State(control): State<Arc<ControlState>>) -> ApiResult<ClusterResponse> {
    let Some(own) = control.directory.slots() else {
        return Err(ApiError::not_found("this server is in no cluster")
            .hint("a server joins one when it starts: sandstorm serve --cluster etcd://HOST:2379/NAME"));
    };
    Ok(axum::Json(describe(own, &own.map())))
}

/// The line of `health` about a cluster whose state cannot be read.
pub(super) fn warning(own: &Arc<SlotOwnership>) -> Option<String> {
    let (since_ms, why) = own.trouble()?;
    Some(format!("since {} UTC: {why}", format_utc(since_ms)))
}

fn describe(own: &SlotOwnership, map: &SlotMap) -> ClusterResponse {
    let ranges = map.ranges();
    let slots_of =
        |place| ranges.iter().filter(move |range| range.server == place).map(|range| [range.first, range.last]);
    let servers = map.servers.iter().enumerate().map(|(place, server)| ClusterServerResponse {
        id: server.id.clone(),
        is_this: server.id == own.own_id(),
        lives: server.is_alive,
        data_address: server.data.to_string(),
        redis_address: server.redis.map(|address| address.to_string()),
        memcached_address: server.memcached.map(|address| address.to_string()),
        control_url: server.control.clone(),
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
