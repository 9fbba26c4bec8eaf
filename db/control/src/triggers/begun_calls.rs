//! Calls of triggers under way, at this server's workers or at another server of the cluster, and those that have
//! ended.

use std::sync::Arc;

use parking_lot::Mutex;

use super::active::{BegunTriggerCall, InvocationPlace, TriggerKey};
use super::call_routes::{CallPlace, CallRoutes};
use super::remote_caller::RemoteRequest;
use super::remote_calls::{RemoteCall, RemoteCalls, RemoteOutcome};
use super::trigger_store::KeptTrigger;
use super::typed_calls;
use crate::limits::{TRIGGER_CALLS_PER_TURN, TRIGGER_REMOTE_BYTES};
use sandstorm_catalog::TenantView;
use sandstorm_net::rpc::RpcStatus;
use sandstorm_server::workers::{LocalCall, LocalCallResult};

/// Makes calls of a tenant on its home worker.
pub(crate) type CallSink = Box<dyn Fn(u32, Vec<LocalCall>) + Send + Sync>;

/// What makes calls that begin.
pub(crate) struct CallSinks {
    /// At this server.
    pub(crate) here: CallSink,
    /// At another one of the cluster; without a cluster it is never asked.
    pub(crate) elsewhere: Box<dyn Fn(RemoteRequest) + Send + Sync>,
}

impl CallSinks {
    /// Of a server without a cluster.
    pub(crate) fn here(here: CallSink) -> CallSinks {
        let elsewhere = |request: RemoteRequest| (request.done)(Err("there is no other server".to_owned()));
        CallSinks { here, elsewhere: Box::new(elsewhere) }
    }
}

/// A call that has ended.
pub(super) struct EndedTriggerCall {
    pub(super) key: Arc<TriggerKey>,
    pub(super) place: InvocationPlace,
    /// `WrongServer`: the slots of its keys changed their server.
    pub(super) status: RpcStatus,
    /// The reply, or a text.
    pub(super) text: Vec<u8>,
}

/// The calls that have ended and that the thread has not taken yet. It is woken for the first of them alone.
pub(super) struct EndedCalls {
    calls: Mutex<Vec<EndedTriggerCall>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl EndedCalls {
    pub(super) fn new(wake: Box<dyn Fn() + Send + Sync>) -> Arc<EndedCalls> {
        Arc::new(EndedCalls { calls: Mutex::default(), wake })
    }

    fn push(&self, ended: Vec<EndedTriggerCall>) {
        if ended.is_empty() {
            return;
        }
        let mut calls = self.calls.lock();
        let is_first = calls.is_empty();
        calls.extend(ended);
        drop(calls);
        if is_first {
            (self.wake)();
        }
    }

    pub(super) fn take(&self) -> Vec<EndedTriggerCall> {
        std::mem::take(&mut *self.calls.lock())
    }
}

/// Calls of a trigger for another server, with their places.
struct OutgoingCalls {
    server: usize,
    bytes: usize,
    calls: Vec<(InvocationPlace, RemoteCall)>,
}

/// The calls that begin in a turn.
#[derive(Default)]
pub(super) struct BegunCalls {
    pub(super) here: Vec<LocalCall>,
    pub(super) elsewhere: Vec<RemoteRequest>,
}

/// Has the next calls of a trigger begin that may.
pub(super) fn begin_calls(
    kept: &mut KeptTrigger,
    (view, routes): (&TenantView, &CallRoutes),
    now_ms: u64,
    (ended, begun): (&Arc<EndedCalls>, &mut BegunCalls),
) {
    let (mut count, mut outgoing): (usize, Vec<OutgoingCalls>) = (0, Vec::new());
    while count < TRIGGER_CALLS_PER_TURN
        && let Some(BegunTriggerCall { place, args, at, slots }) = kept.trigger.begin_call(now_ms, routes)
    {
        count += 1;
        if let CallPlace::Server(server) = at {
            let bytes = args.len();
            let call = (place, RemoteCall { slots, args });
            match outgoing.iter_mut().find(|one| one.server == server && one.bytes < TRIGGER_REMOTE_BYTES) {
                Some(one) => {
                    one.bytes += bytes;
                    one.calls.push(call);
                }
                None => outgoing.push(OutgoingCalls { server, bytes, calls: vec![call] }),
            }
            continue;
        }
        match own_call(kept, (view, routes), (place, args, slots), ended) {
            Ok(call) => begun.here.push(call),
            Err(why) => {
                kept.is_changed = true;
                // Whether it has paused itself is looked at by the caller.
                kept.trigger.end_call(place, (RpcStatus::Failed, why.as_bytes()), now_ms);
            }
        }
    }
    let requests = outgoing.into_iter().map(|one| remote_request(kept, routes, one, ended));
    begun.elsewhere.extend(requests);
}

/// A call that this server's workers make.
fn own_call(
    kept: &KeptTrigger,
    (view, routes): (&TenantView, &CallRoutes),
    (place, args, slots): (InvocationPlace, Vec<u8>, Vec<u16>),
    ended: &Arc<EndedCalls>,
) -> Result<LocalCall, String> {
    let trigger = &kept.trigger;
    // At each try: the code may be another one by now.
    let args = typed_calls::bytes_of(view, &trigger.spec, args)?;
    let (key, ended, routes) = (Arc::clone(&trigger.key), Arc::clone(ended), routes.clone());
    let done = Box::new(move |LocalCallResult { status, value: text, .. }: LocalCallResult| {
        // What it has met may be that a slot has left: it is made again, there.
        let has_moved = status != RpcStatus::Ok && !routes.stayed(&slots);
        let status = if has_moved { RpcStatus::WrongServer } else { status };
        ended.push(vec![EndedTriggerCall { key, place, status, text }]);
    });
    let (tenant, extension) = (trigger.tenant, Arc::clone(&trigger.extension));
    Ok(LocalCall { tenant, extension, version: 0, args, about: None, done })
}

/// The request with calls for another server.
fn remote_request(
    kept: &KeptTrigger,
    routes: &CallRoutes,
    outgoing: OutgoingCalls,
    ended: &Arc<EndedCalls>,
) -> RemoteRequest {
    let trigger = &kept.trigger;
    let (key, ended) = (Arc::clone(&trigger.key), Arc::clone(ended));
    let (places, calls): (Vec<InvocationPlace>, Vec<RemoteCall>) = outgoing.calls.into_iter().unzip();
    let done = move |outcomes: Result<Vec<RemoteOutcome>, String>| {
        let end = |place, status, text| EndedTriggerCall { key: Arc::clone(&key), place, status, text };
        let all = match outcomes {
            Ok(outcomes) => {
                let of_each = places.into_iter().zip(outcomes);
                of_each.map(|(place, RemoteOutcome { status, text })| end(place, status, text.into_bytes())).collect()
            }
            // They may have run: they are made again.
            Err(why) => {
                let again = |place| end(place, RpcStatus::Overloaded, why.clone().into_bytes());
                places.into_iter().map(again).collect()
            }
        };
        ended.push(all);
    };
    RemoteRequest {
        server: routes.server_id(outgoing.server).unwrap_or_default().to_owned(),
        calls: RemoteCalls { tenant: trigger.tenant, trigger: trigger.spec.clone(), calls },
        done: Box::new(done),
    }
}
