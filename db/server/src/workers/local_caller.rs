//! Where calls of the server's own process go in, and how a worker begins them.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};

use sandstorm_log::PositionState;
use sandstorm_net::forwarding::ForwardedHead;
use sandstorm_net::rpc::{OpKind, Operation, RpcStatus};
use sandstorm_store::backed::waits::{self, WaitState};

use super::call_look::CallLook;
use super::connections::forwarded::{give_up, peer_connection};
use super::connections::inbox::InboxMessage;
use super::connections::worker_connections::WorkerConnections;
use super::context::count;
use super::executor::RequestExecutor;
use super::local_calls::{LocalCall, LocalCallResult};
use super::shared::SharedWorkerState;
use super::tasks::{InvocationCaller, ReplyTarget};

/// Where calls of this process go in. It does not keep the workers.
#[derive(Clone)]
pub struct LocalCaller {
    pub(super) shared: Weak<SharedWorkerState>,
}

impl std::fmt::Debug for LocalCaller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalCaller").finish_non_exhaustive()
    }
}

impl LocalCaller {
    /// Whether the log is on the disk up to a position that a result has shown: `None` while that is still to come,
    /// false if that is unknown.
    pub fn is_on_disk(&self, position: u64) -> Option<bool> {
        if position == 0 {
            return Some(true);
        }
        if waits::is_wait(position) {
            return match waits::state_of(position) {
                WaitState::Waits => None,
                WaitState::Ended(position) => self.is_on_disk(position),
                WaitState::Failed => Some(false),
            };
        }
        let log = self.shared.upgrade().and_then(|shared| shared.directory.change_log());
        let Some(log) = log else { return Some(false) };
        match log.state_of(position) {
            PositionState::OnDisk => Some(true),
            PositionState::Uncertain => Some(false),
            PositionState::Waits => {
                log.request(position);
                None
            }
        }
    }

    /// Opens a connection on which commands of another server of the cluster are run, at the tenant's home worker: they
    /// go in without their head, and their answers come out, in the formats of [`sandstorm_net::forwarding`]. It ends
    /// behind the last one. `None`: there is no such tenant here yet.
    ///
    /// # Errors
    /// The workers have stopped, or the server has as many connections as it may have. Nothing is run.
    pub fn open_forwarded(&self, head: &ForwardedHead) -> io::Result<Option<UnixStream>> {
        let Some(shared) = self.shared.upgrade().filter(|shared| !shared.is_stopping()) else {
            return Err(io::Error::other("the server is shutting down"));
        };
        let Some((worker, connection, outer)) = peer_connection(&shared, head)? else { return Ok(None) };
        shared.local_calls.put_connection(worker, connection);
        shared.wake_if_idle(worker);
        Ok(Some(outer))
    }

    /// Hands a call to the worker of that number, the tenant's home; if the workers have stopped it is dropped.
    pub fn call(&self, home: u32, call: LocalCall) {
        self.call_all(home, vec![call]);
    }

    /// The number of workers; 0: they have stopped.
    pub fn workers(&self) -> usize {
        self.shared.upgrade().filter(|shared| !shared.is_stopping()).map_or(0, |shared| shared.ports.len())
    }

    /// Asks the worker of that number about a tenant's calls; if the workers have stopped the question is dropped.
    pub fn look(&self, worker: usize, look: CallLook) {
        let Some(shared) = self.shared.upgrade().filter(|shared| !shared.is_stopping()) else { return };
        if worker < shared.ports.len() {
            shared.local_calls.put_look(worker, look);
            shared.wake_if_idle(worker);
        }
    }

    /// Hands calls to the worker of that number at once, which is woken once for all of them.
    pub fn call_all(&self, home: u32, calls: Vec<LocalCall>) {
        let Some(shared) = self.shared.upgrade().filter(|shared| !shared.is_stopping()) else { return };
        let worker = home as usize % shared.ports.len();
        shared.local_calls.put(worker, calls);
        if shared.idle.load(SeqCst) & (1 << worker) != 0 {
            shared.ports[worker].waker.wake();
        }
    }
}

/// Begins the calls that wait for this worker. Returns their number.
#[cold]
pub(super) fn begin_local_calls(executor: &mut RequestExecutor) -> usize {
    let shared = Arc::clone(&executor.context.shared);
    let calls = shared.local_calls.take(executor.context.index);
    let begun = calls.len();
    for call in calls {
        begin_local_call(executor, &shared, call);
    }
    begun
}

/// Answers a question about calls under way at this worker: one in a turn, since that may take a millisecond. Returns
/// the number of questions.
#[cold]
pub(super) fn answer_look(executor: &mut RequestExecutor) -> usize {
    let RequestExecutor { context, invocations } = executor;
    let Some(look) = context.shared.local_calls.take_look(context.index) else { return 0 };
    let found = invocations.locate_calls(context, &look);
    (look.done)(found);
    1
}

/// Takes the connections of this process that wait for this worker, which may be its first ones. Returns their number.
#[cold]
pub(super) fn take_local_connections(
    executor: &RequestExecutor,
    connections: &mut Option<Box<WorkerConnections>>,
) -> usize {
    let context = &executor.context;
    let waiting = context.shared.local_calls.take_connections(context.index);
    if waiting.is_empty() {
        return 0;
    }
    if connections.is_none() {
        match WorkerConnections::new(Vec::new(), Vec::new()) {
            Ok(made) => *connections = Some(Box::new(made)),
            // Their other ends see that they have ended.
            Err(error) => tracing::warn!(worker = context.index, %error, "no commands of other servers can be taken"),
        }
    }
    let count = waiting.len();
    for connection in waiting {
        match connections {
            Some(connections) => connections.take_message(InboxMessage::Connection(Box::new(connection)), context),
            None => give_up(&context.shared, &connection),
        }
    }
    count
}

fn begin_local_call(executor: &mut RequestExecutor, shared: &SharedWorkerState, call: LocalCall) {
    let LocalCall { tenant, extension, version, args, about, done } = call;
    executor.charge_requests(tenant, 1);
    let RequestExecutor { context, invocations } = executor;
    let number = shared.local_calls.begin(done);
    let refuse = |status: RpcStatus, text: &str| {
        count(&context.counters.responses, status as usize);
        let value = text.as_bytes().to_vec();
        let refused = LocalCallResult { status, number: 0, value, shown: 0, cost: None, ended: None };
        shared.local_calls.finish(number, refused);
    };
    let Some(view) = context.snapshot.tenant(tenant) else {
        return refuse(RpcStatus::UnknownTenant, "the tenant was deleted; this was not run");
    };
    if context.is_draining {
        return refuse(RpcStatus::ShuttingDown, "the server is shutting down; this was not run");
    }
    let usage = view.tenant.usage.worker(context.index);
    if !view.tenant.admit_requests(context.clock.now_us.saturating_mul(1000), 1) {
        usage.over_quota.add(1);
        return refuse(RpcStatus::OverQuota, "quota requests_per_s: too many requests a second");
    }
    usage.requests.add(1);
    usage.packet_work.add(1);
    let operation =
        Operation { key: extension.as_bytes(), value: &args, number: version, ..Operation::new(OpKind::Invoke) };
    let target = ReplyTarget::Local { call: number };
    let peer = about.unwrap_or(number) as u32;
    let caller = InvocationCaller { target, peer, key: about, received_ns: context.clock.now_ns };
    if let Err((status, text)) = invocations.begin(context, view, &operation, &caller) {
        refuse(status, &text);
    }
}
