//! `/v1/cluster/trigger-calls`: calls of triggers that another server of the cluster sends, since their keys are this
//! server's by now. They run as its own, and each answer is given once what the call did is on the disk. None is begun
//! behind a later request of the same sender, or beside one.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ControlState;
use super::body::RawBody;
use super::cluster_commands::CommandPeer;
use super::cluster_copies::no_cluster;
use super::error::ApiError;
use crate::limits::{DURABLE_LOOK, TRIGGER_QUEUE_BYTES, TRIGGER_REMOTE_RUN};
use crate::triggers::{
    CallRoutes, LateAnswer, OrderRefusal, RemoteCall, RemoteCalls, RemoteOutcome, RunningCall, own_args,
};
use sandstorm_catalog::TenantView;
use sandstorm_net::rpc::RpcStatus;
use sandstorm_server::workers::{LocalCall, LocalCallResult, LocalCaller};
use sandstorm_store::limits::MAX_VALUE_BYTES;

/// Bytes of a request, at most: what a trigger's queue has, the largest value, and the head.
pub(super) const REQUEST_BYTES: usize = TRIGGER_QUEUE_BYTES + MAX_VALUE_BYTES + (256 << 10);

/// A call that was begun here, or why it was not.
enum BegunRemoteCall {
    Begun(Vec<u16>, oneshot::Receiver<LocalCallResult>),
    Refused(RemoteOutcome),
}

pub(super) async fn run(
    State(control): State<Arc<ControlState>>,
    CommandPeer(permit): CommandPeer,
    RawBody(body): RawBody,
) -> Result<Vec<u8>, ApiError> {
    let not_run = |why: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_run", why.to_owned());
    let _counts_until_the_end =
        permit.ok_or_else(|| not_run("as many requests of other servers are under way as may be"))?;
    let calls = RemoteCalls::decode(&body);
    let no_calls = || ApiError::invalid("these are no calls of a server of this version");
    let (calls, order) = calls.ok_or_else(no_calls)?;
    let caller = control.calls.as_ref().ok_or_else(no_cluster)?;
    let snapshot = control.directory.snapshot();
    let Some(view) = snapshot.tenant(calls.tenant) else {
        return Err(not_run("there is no such tenant here yet"));
    };
    let order = order.map(|order| control.remote_orders.begin(&order, calls.tenant)).transpose();
    let running = match order {
        Ok(running) => running,
        Err(OrderRefusal::NoServer) => return Err(no_calls()),
        Err(OrderRefusal::Late(behind)) => {
            return serde_json::to_vec(&LateAnswer { behind }).map_err(|error| ApiError::internal(error.to_string()));
        }
        Err(OrderRefusal::StillRuns) => {
            let still = RemoteOutcome::of(RpcStatus::Overloaded, b"calls that were sent before still run there");
            return RemoteOutcome::encode(&vec![still; calls.calls.len()]).map_err(ApiError::internal);
        }
    };
    let routes = CallRoutes::now(control.directory.slots());
    let begun = begin(caller, (view, &routes), calls, running);
    let (until, mut outcomes) = (Instant::now() + TRIGGER_REMOTE_RUN, Vec::new());
    for call in begun {
        outcomes.push(match call {
            BegunRemoteCall::Refused(outcome) => outcome,
            BegunRemoteCall::Begun(slots, result) => end(caller, (&routes, &slots), result, until).await,
        });
    }
    RemoteOutcome::encode(&outcomes).map_err(ApiError::internal)
}

/// Begins the calls whose keys are here. Each keeps `running` until it has ended, also if no server waits for it.
fn begin(
    caller: &LocalCaller,
    (view, routes): (&TenantView, &CallRoutes),
    calls: RemoteCalls,
    running: Option<RunningCall>,
) -> Vec<BegunRemoteCall> {
    let RemoteCalls { tenant, trigger, calls } = calls;
    let extension: Arc<str> = trigger.called().0.into();
    let mut local = Vec::new();
    let begin = |call: RemoteCall| {
        let slots = call.slots.clone();
        match own_args(view, &trigger, call, routes) {
            Err(outcome) => BegunRemoteCall::Refused(outcome),
            Ok(args) => {
                let (done, result) = oneshot::channel();
                let running = running.clone();
                let done = Box::new(move |result| {
                    drop(running);
                    // The asking server waits for it, unless its time is over.
                    let _late = done.send(result);
                });
                let extension = Arc::clone(&extension);
                local.push(LocalCall { tenant, extension, version: 0, args, about: None, done });
                BegunRemoteCall::Begun(slots, result)
            }
        }
    };
    let begun = calls.into_iter().map(begin).collect();
    caller.call_all(view.tenant.home_worker, local);
    begun
}

/// The outcome of a call, once it is on the disk.
async fn end(
    caller: &LocalCaller,
    (routes, slots): (&CallRoutes, &[u16]),
    result: oneshot::Receiver<LocalCallResult>,
    until: Instant,
) -> RemoteOutcome {
    let ended = async {
        let result = result.await.ok()?;
        while caller.is_on_disk(result.shown).is_none() {
            tokio::time::sleep(DURABLE_LOOK).await;
        }
        Some(result)
    };
    match tokio::time::timeout_at(until, ended).await {
        Err(_late) => RemoteOutcome::of(RpcStatus::Overloaded, b"it still runs at the server that has the key"),
        Ok(None) => RemoteOutcome::of(RpcStatus::ShuttingDown, b"the server that has the key stops"),
        Ok(Some(LocalCallResult { status, value, shown, .. })) => match status {
            RpcStatus::Ok if caller.is_on_disk(shown) != Some(true) => RemoteOutcome::of(
                RpcStatus::Overloaded,
                b"what it did is not on the disk of the server that has the key",
            ),
            RpcStatus::Ok => RemoteOutcome::of(RpcStatus::Ok, b""),
            _ if !routes.stayed(slots) => RemoteOutcome::of(RpcStatus::WrongServer, b"the key has left"),
            status => RemoteOutcome::of(status, &value),
        },
    }
}
