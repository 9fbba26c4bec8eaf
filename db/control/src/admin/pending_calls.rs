//! Calls over HTTP under way, and the answers to those with an idempotency key.
//!
//! A call goes on when its client has gone: a task of its own waits for it. So its permit counts until it has ended,
//! and a repeat finds its answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tokio::sync::{oneshot, watch};

use crate::limits::{DURABLE_LOOK, HTTP_CALLS, IDEMPOTENCY_BYTES, IDEMPOTENCY_LIFETIME};
use crate::record_sample::random_seed;
use sandstorm_net::dynamic_threshold::DynamicThreshold;
use sandstorm_net::rpc::RpcStatus;
use sandstorm_net::slots::slot_of;
use sandstorm_server::workers::{LocalCall, LocalCallResult, LocalCaller};
use sandstorm_store::slots::SlotOwnership;

/// How a call ended, as all callers that ask with its key are told.
#[derive(Debug)]
pub(super) enum CallOutcome {
    /// The worker's answer.
    Ended(LocalCallResult),
    /// It has run, and what it changed or showed is not known to be on the disk.
    NotDurable,
    /// The server stopped: it may have run.
    Unknown,
    /// It has run; its answer was too long to be kept for repeats.
    NotKept,
}

/// A tenant's id, and an idempotency key of its own.
type TenantKey = (u32, String);
/// Where the outcome of a call is told.
type OutcomeSender = watch::Sender<Option<Arc<CallOutcome>>>;
/// The outcome of a call, once there is one.
pub(super) type PendingOutcome = watch::Receiver<Option<Arc<CallOutcome>>>;

/// Why a call does not begin. It was not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallRefusal {
    /// The limit on calls under way is reached, or the tenant's share of it.
    Crowded,
    /// There is no room for another idempotency key.
    KeysFull,
    /// The key stands for another call.
    KeyReused,
    /// The call was sent before to a server that did not live as long as this one, and may have run there.
    OtherStart,
    /// Another server of the cluster has the key that the call is about.
    Elsewhere(MisdirectedCall),
}

/// A call whose key is not here: where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MisdirectedCall {
    /// The epoch of the map of slots.
    pub(super) epoch: u64,
    /// The slot of the key.
    pub(super) slot: u16,
    /// The URL of the owner's control port; `None`: the slot is changing its server, or no server owns it.
    pub(super) server: Option<String>,
}

impl MisdirectedCall {
    /// Where a key is, of a server of a cluster; `None`: here.
    pub(super) fn of(own: &SlotOwnership, key: &[u8]) -> Option<MisdirectedCall> {
        if own.owns(key) {
            return None;
        }
        let (slot, map) = (slot_of(key), own.map());
        let server = own.other_owner(&map, slot).map(|owner| owner.control.clone()).filter(|url| !url.is_empty());
        Some(MisdirectedCall { epoch: map.epoch, slot, server })
    }
}

/// A call, with the key that its repeats will have.
pub(super) struct CallOrder {
    /// The tenant's id, and its home worker.
    pub(super) tenant: (u32, u32),
    pub(super) extension: String,
    pub(super) version: u64,
    pub(super) args: Vec<u8>,
    pub(super) key: Option<String>,
    /// The start of the server to which an earlier request was sent, if its client says so.
    pub(super) sent_to: Option<String>,
    /// See [`LocalCall::about`].
    pub(super) about: Option<u64>,
}

/// The calls: see the head of this file.
#[derive(Debug)]
pub(super) struct PendingCalls {
    /// A number of this start of the server: what it knows of keys begins with it.
    start: String,
    state: Mutex<PendingCallsState>,
}

impl Default for PendingCalls {
    fn default() -> PendingCalls {
        PendingCalls { start: format!("{:016x}", random_seed()), state: Mutex::default() }
    }
}

#[derive(Debug, Default)]
struct PendingCallsState {
    under_way: HashMap<u32, usize>,
    keyed: HashMap<TenantKey, KeyedCall>,
    /// The keys in the order of their calls.
    order: VecDeque<(Instant, TenantKey)>,
    /// Bytes of keys and answers, of all and by tenant.
    bytes: usize,
    bytes_of: HashMap<u32, usize>,
}

#[derive(Debug)]
struct KeyedCall {
    begun: Instant,
    /// Of the extension, the version and the arguments.
    digest: [u8; 32],
    bytes: usize,
    outcome: PendingOutcome,
}

/// A call under way; it counts until it is dropped.
struct CallPermit {
    calls: Arc<PendingCalls>,
    tenant: u32,
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        release(&mut self.calls.state.lock().under_way, self.tenant, 1);
    }
}

/// Subtracts from a count, which is left out at 0.
fn release(counts: &mut HashMap<u32, usize>, tenant: u32, size: usize) {
    if let Some(own) = counts.get_mut(&tenant) {
        *own = own.saturating_sub(size);
        if *own == 0 {
            counts.remove(&tenant);
        }
    }
}

/// Bytes that a keyed call takes without its answer.
fn entry_bytes(key: &str) -> usize {
    2 * key.len() + size_of::<KeyedCall>() + size_of::<(Instant, TenantKey)>() + size_of::<CallOutcome>()
}

impl PendingCallsState {
    /// Whether a tenant may take so many bytes more.
    fn has_room(&self, tenant: u32, size: usize) -> bool {
        let own = self.bytes_of.get(&tenant).copied().unwrap_or(0);
        DynamicThreshold::of(IDEMPOTENCY_BYTES).admits_size(self.bytes, own, size)
    }

    fn charge(&mut self, tenant: u32, size: usize) {
        self.bytes += size;
        *self.bytes_of.entry(tenant).or_default() += size;
    }

    fn forget(&mut self, key: &TenantKey) {
        if let Some(call) = self.keyed.remove(key) {
            self.bytes -= call.bytes;
            release(&mut self.bytes_of, key.0, call.bytes);
        }
    }

    /// Forgets the keys whose time is over, if their calls have ended.
    fn expire(&mut self, now: Instant) {
        while let Some((begun, _)) = self.order.front()
            && now.duration_since(*begun) >= IDEMPOTENCY_LIFETIME
        {
            let Some((begun, key)) = self.order.pop_front() else { return };
            if self.keyed.get(&key).is_some_and(|call| call.begun == begun) {
                self.forget(&key);
            }
        }
    }

    fn permit(&mut self, tenant: u32) -> Result<(), CallRefusal> {
        let all = self.under_way.values().sum();
        let own = self.under_way.entry(tenant).or_default();
        if !DynamicThreshold::of(HTTP_CALLS).admits(all, *own) || all >= HTTP_CALLS {
            return Err(CallRefusal::Crowded);
        }
        *own += 1;
        Ok(())
    }
}

impl PendingCalls {
    /// The number of this start of the server, as answers have it.
    pub(super) fn start(&self) -> &str {
        &self.start
    }

    /// Begins a call, or finds that of the same key. Returns whether it is a repeat, and where its outcome will be.
    /// Whether the call is one of this server is asked for a call that is no repeat: a call that has run here has its
    /// answer here, whichever server owns its key by now.
    ///
    /// # Errors
    /// [`CallRefusal`]; it was not run by this request.
    pub(super) fn begin(
        self: &Arc<Self>,
        caller: &LocalCaller,
        order: CallOrder,
        elsewhere: impl FnOnce() -> Option<MisdirectedCall>,
    ) -> Result<(bool, PendingOutcome), CallRefusal> {
        let CallOrder { tenant: (tenant, home), extension, version, args, key, sent_to, about } = order;
        let (publish, outcome) = watch::channel(None);
        let key = key.map(|key| (tenant, key));
        let mut state = self.state.lock();
        state.expire(Instant::now());
        let digest = key.as_ref().map(|_| call_digest(&extension, version, &args));
        if let Some(call) = key.as_ref().and_then(|key| state.keyed.get(key)) {
            let is_same = digest == Some(call.digest);
            return if is_same { Ok((true, call.outcome.clone())) } else { Err(CallRefusal::KeyReused) };
        }
        if sent_to.is_some_and(|start| start != self.start) {
            return Err(CallRefusal::OtherStart);
        }
        if let Some(elsewhere) = elsewhere() {
            return Err(CallRefusal::Elsewhere(elsewhere));
        }
        if let Some((key, digest)) = key.as_ref().zip(digest) {
            let bytes = entry_bytes(&key.1);
            if !state.has_room(tenant, bytes) {
                return Err(CallRefusal::KeysFull);
            }
            state.permit(tenant)?;
            let begun = Instant::now();
            state.charge(tenant, bytes);
            state.order.push_back((begun, key.clone()));
            state.keyed.insert(key.clone(), KeyedCall { begun, digest, bytes, outcome: outcome.clone() });
        } else {
            state.permit(tenant)?;
        }
        drop(state);
        let permit = CallPermit { calls: Arc::clone(self), tenant };
        let (done, ended) = oneshot::channel();
        let done = Box::new(move |result| {
            // Its task waits for it, unless the control port has stopped.
            let _stopped = done.send(result);
        });
        let extension = extension.into();
        caller.call(home, LocalCall { tenant, extension, version, args, about, done });
        tokio::spawn(follow(permit, caller.clone(), ended, (key, publish)));
        Ok((false, outcome))
    }

    /// Notes how a keyed call ended, and returns what those that wait are told.
    fn settle(&self, key: &TenantKey, outcome: CallOutcome) -> Arc<CallOutcome> {
        let mut state = self.state.lock();
        if let CallOutcome::Ended(result) = &outcome {
            let size = result.value.len();
            if has_not_run(result.status) {
                // A repeat may run.
                state.forget(key);
            } else if state.has_room(key.0, size) {
                state.charge(key.0, size);
                if let Some(call) = state.keyed.get_mut(key) {
                    call.bytes += size;
                }
            } else if let Some(call) = state.keyed.get_mut(key) {
                call.outcome = watch::channel(Some(Arc::new(CallOutcome::NotKept))).1;
            }
        }
        Arc::new(outcome)
    }
}

/// Waits for a call's end, and tells the callers that wait for it.
async fn follow(
    permit: CallPermit,
    caller: LocalCaller,
    ended: oneshot::Receiver<LocalCallResult>,
    (key, publish): (Option<TenantKey>, OutcomeSender),
) {
    let outcome = match ended.await {
        Err(_) => CallOutcome::Unknown,
        Ok(mut result) => loop {
            match caller.is_on_disk(result.shown) {
                Some(true) => break CallOutcome::Ended(result),
                Some(false) => break CallOutcome::NotDurable,
                None => tokio::time::sleep(DURABLE_LOOK).await,
            }
            // Its answer is ready only now: the wait for the log is not its sending.
            if let Some(ended) = &mut result.ended {
                ended.at = Instant::now();
            }
        },
    };
    let outcome = match key {
        Some(key) => permit.calls.settle(&key, outcome),
        None => Arc::new(outcome),
    };
    publish.send_replace(Some(outcome));
}

/// Whether a status says that the call has not run.
fn has_not_run(status: RpcStatus) -> bool {
    !matches!(status, RpcStatus::Ok | RpcStatus::Conflict | RpcStatus::Killed | RpcStatus::Failed)
}

fn call_digest(extension: &str, version: u64, args: &[u8]) -> [u8; 32] {
    // The name has no zero byte.
    let parts = [extension.as_bytes(), &[0], &version.to_le_bytes(), args].concat();
    digest(&SHA256, &parts).as_ref().try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use sandstorm_store::slots::{ClusterServer, SlotMap, SlotRange, SlotSpan};

    use super::*;

    #[test]
    fn whatever_tenants_take_another_one_gets_calls_and_keys() {
        let mut state = PendingCallsState::default();
        for tenant in 0..4 {
            let mut own = 0;
            while state.permit(tenant).is_ok() {
                own += 1;
            }
            assert!(own >= 1, "tenant {tenant}");
            let size = entry_bytes("key");
            let mut kept = 0;
            while state.has_room(tenant, size) {
                state.charge(tenant, size);
                kept += 1;
            }
            assert!(kept >= 1, "tenant {tenant}");
        }
        assert!(state.under_way.values().sum::<usize>() <= HTTP_CALLS && state.bytes <= IDEMPOTENCY_BYTES);
        for tenant in 0..4 {
            while state.under_way.contains_key(&tenant) {
                release(&mut state.under_way, tenant, 1);
            }
        }
        assert!(state.permit(7).is_ok());
    }

    #[test]
    fn a_key_is_forgotten_after_its_time_with_its_bytes() {
        let mut state = PendingCallsState::default();
        let (begun, key) = (Instant::now(), (1, "key".to_owned()));
        let call = KeyedCall { begun, digest: [0; 32], bytes: 10, outcome: watch::channel(None).1 };
        state.charge(1, 10);
        state.order.push_back((begun, key.clone()));
        state.keyed.insert(key, call);
        state.expire(begun + IDEMPOTENCY_LIFETIME / 2);
        assert_eq!((state.keyed.len(), state.bytes), (1, 10));
        state.expire(begun + IDEMPOTENCY_LIFETIME);
        assert!(state.keyed.is_empty() && state.order.is_empty() && state.bytes == 0 && state.bytes_of.is_empty());
    }

    #[test]
    fn a_key_that_is_elsewhere_is_at_the_control_port_of_its_owner() {
        let server = |number: u8, control: &str| ClusterServer {
            id: format!("{number:040x}"),
            data: SocketAddr::from(([10, 0, 0, number], 7400)),
            redis: None,
            memcached: None,
            control: control.to_owned(),
            directory: String::new(),
            is_alive: true,
            is_draining: false,
        };
        let own = SlotOwnership::new(server(1, "").id);
        assert_eq!(MisdirectedCall::of(&own, b"foo"), None, "all keys are here");
        own.set_owned(|slot| slot < 10_000);
        let range = |first, last, server| SlotRange { first, last, server: Some(server) };
        let servers = |control| vec![server(1, "http://10.0.0.1:7399"), server(2, control)];
        let ranges = [range(0, 9_999, 0), range(10_000, 13_000, 1)];
        own.set_map(SlotMap::new(7, servers("http://10.0.0.2:7399"), &ranges));
        let elsewhere =
            |server: Option<&str>| Some(MisdirectedCall { epoch: 7, slot: 12_182, server: server.map(str::to_owned) });
        assert_eq!(MisdirectedCall::of(&own, b"foo"), elsewhere(Some("http://10.0.0.2:7399")));
        own.set_awaited(Some(SlotSpan { first: 12_000, last: 12_999 }));
        assert_eq!(MisdirectedCall::of(&own, b"foo"), elsewhere(None), "it is about to be here");
        own.set_awaited(None);
        own.set_map(SlotMap::new(7, servers(""), &ranges));
        assert_eq!(MisdirectedCall::of(&own, b"foo"), elsewhere(None), "its address is not known");
    }

    #[test]
    fn what_did_not_run_may_run_again() {
        for status in RpcStatus::ALL {
            let ran = ["Ok", "Conflict", "Killed", "Failed"].contains(&format!("{status:?}").as_str());
            assert_eq!(has_not_run(*status), !ran, "{status:?}");
        }
    }
}
