//! Calls that come from the server's own process, as those over HTTP do: those that wait for a worker, and the callers
//! that wait for their results. No worker waits for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use parking_lot::Mutex;
use sandstorm_extension::LoadedExtension;
use sandstorm_net::rpc::{CallCost, RpcStatus};

use super::call_look::CallLook;
use super::connections::connection::ClientConnection;
use crate::limits::CALL_LOOKS_WAITING;

/// A call of a tenant's extension.
pub struct LocalCall {
    /// The tenant's id.
    pub tenant: u32,
    /// The extension's name.
    pub extension: Arc<str>,
    /// Its version; 0: the newest.
    pub version: u64,
    /// Its arguments.
    pub args: Vec<u8>,
    /// What the call is about, as [`sandstorm_net::call_key`] has it: a version that is tried on a share of the
    /// calls gets all calls of a key, or none. Without it each call is a key of its own.
    pub about: Option<u64>,
    /// Takes the result, on a worker's thread: it must not block. If the server stops before, it is dropped.
    pub done: LocalCallDone,
}

/// Takes the result of a call.
pub type LocalCallDone = Box<dyn FnOnce(LocalCallResult) + Send>;

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalCallResult {
    /// `Ok`, or the reason that there is no reply.
    pub status: RpcStatus,
    /// The version that ran; of `Killed` and `Failed` their number.
    pub number: u64,
    /// The reply, or a text.
    pub value: Vec<u8>,
    /// How far the log has to be on the disk before it may be shown.
    pub shown: u64,
    /// What it cost; `None`: it did not run.
    pub cost: Option<CallCost>,
    /// What ran, and until when; `None`: it did not run.
    pub ended: Option<LocalCallEnd>,
}

/// The end of a call.
#[derive(Clone, Debug)]
pub struct LocalCallEnd {
    /// When it ended.
    pub at: Instant,
    /// The version that ran.
    pub extension: Arc<LoadedExtension>,
}

impl PartialEq for LocalCallEnd {
    fn eq(&self, other: &LocalCallEnd) -> bool {
        self.at == other.at && Arc::ptr_eq(&self.extension, &other.extension)
    }
}

impl Eq for LocalCallEnd {}

/// The calls of all workers: those that wait for a worker, and what takes the results of those that run.
#[derive(Default)]
pub(super) struct LocalCalls {
    queues: Vec<CachePadded<LocalCallQueue>>,
    running: Mutex<HashMap<u64, LocalCallDone>>,
    next: AtomicU64,
}

/// Calls that wait for one worker.
#[derive(Default)]
struct LocalCallQueue {
    calls: Mutex<Vec<LocalCall>>,
    /// Connections within this process, which bring commands of other servers of the cluster.
    connections: Mutex<Vec<ClientConnection>>,
    /// Questions about calls under way.
    looks: Mutex<VecDeque<CallLook>>,
    /// Whether there are any of these.
    has_calls: AtomicBool,
}

impl LocalCalls {
    pub(super) fn new(workers: usize) -> LocalCalls {
        LocalCalls { queues: (0..workers).map(|_| Default::default()).collect(), ..LocalCalls::default() }
    }

    /// Whether calls wait for a worker.
    #[inline]
    pub(super) fn has_calls(&self, worker: usize) -> bool {
        self.queues[worker].has_calls.load(SeqCst)
    }

    pub(super) fn put(&self, worker: usize, calls: Vec<LocalCall>) {
        let queue = &self.queues[worker];
        queue.calls.lock().extend(calls);
        queue.has_calls.store(true, SeqCst);
    }

    pub(super) fn take(&self, worker: usize) -> Vec<LocalCall> {
        let queue = &self.queues[worker];
        // The flag is cleared before the calls are taken: later ones are seen next time.
        queue.has_calls.store(false, SeqCst);
        std::mem::take(&mut *queue.calls.lock())
    }

    pub(super) fn put_connection(&self, worker: usize, connection: ClientConnection) {
        let queue = &self.queues[worker];
        queue.connections.lock().push(connection);
        queue.has_calls.store(true, SeqCst);
    }

    /// Takes the connections, after the calls.
    pub(super) fn take_connections(&self, worker: usize) -> Vec<ClientConnection> {
        std::mem::take(&mut *self.queues[worker].connections.lock())
    }

    /// Puts a question; it is dropped where as many wait as may. Those whose callers have gone do not count.
    pub(super) fn put_look(&self, worker: usize, look: CallLook) {
        let queue = &self.queues[worker];
        let mut looks = queue.looks.lock();
        looks.retain(CallLook::is_wanted);
        if looks.len() < CALL_LOOKS_WAITING {
            looks.push_back(look);
        }
        queue.has_calls.store(true, SeqCst);
    }

    /// Takes a question for whose answer a caller waits, after the calls. The next one has to wait for another turn.
    pub(super) fn take_look(&self, worker: usize) -> Option<CallLook> {
        let queue = &self.queues[worker];
        let mut looks = queue.looks.lock();
        looks.retain(CallLook::is_wanted);
        let next = looks.pop_front();
        if !looks.is_empty() {
            queue.has_calls.store(true, SeqCst);
        }
        next
    }

    /// Notes the caller that waits for a call that begins; returns its number.
    pub(super) fn begin(&self, done: LocalCallDone) -> u64 {
        let number = self.next.fetch_add(1, SeqCst);
        self.running.lock().insert(number, done);
        number
    }

    /// Hands over the result of a call.
    pub(super) fn finish(&self, number: u64, result: LocalCallResult) {
        let done = self.running.lock().remove(&number);
        if let Some(done) = done {
            done(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn result(value: &[u8]) -> LocalCallResult {
        LocalCallResult { status: RpcStatus::Ok, number: 1, value: value.to_vec(), shown: 0, cost: None, ended: None }
    }

    #[test]
    fn each_result_reaches_who_waits_for_it_once() {
        let calls = LocalCalls::new(2);
        let heard = Arc::new(AtomicUsize::new(0));
        let numbers: Vec<u64> = (0..3)
            .map(|index| {
                let heard = Arc::clone(&heard);
                calls.begin(Box::new(move |result| {
                    assert_eq!(result.value, [index]);
                    heard.fetch_add(1, SeqCst);
                }))
            })
            .collect();
        for (index, number) in numbers.iter().enumerate().rev() {
            calls.finish(*number, result(&[index as u8]));
            calls.finish(*number, result(b"not for anybody"));
        }
        assert_eq!(heard.load(SeqCst), 3);
    }

    #[test]
    fn a_question_about_calls_has_a_turn_for_itself_and_none_once_nobody_waits_for_its_answer() {
        let calls = LocalCalls::new(1);
        let put = |tenant: u32, asked: &Arc<()>| {
            let asked = Arc::downgrade(asked);
            let look =
                CallLook { tenant, serial: 1, extension: None, with_places: true, asked, done: Box::new(|_| ()) };
            calls.put_look(0, look);
        };
        // As a worker does in a turn.
        let turn = || {
            assert!(calls.take(0).is_empty());
            calls.take_look(0).map(|look| look.tenant)
        };
        let [waits, leaves] = [Arc::new(()), Arc::new(())];
        (0..100).for_each(|_| put(7, &leaves));
        assert_eq!(calls.queues[0].looks.lock().len(), CALL_LOOKS_WAITING);
        drop(leaves);
        (1..=3).for_each(|tenant| put(tenant, &waits));
        assert_eq!(calls.queues[0].looks.lock().len(), 3, "nobody waits for the others");
        assert_eq!([turn(), turn()], [Some(1), Some(2)]);
        assert!(calls.has_calls(0), "the worker comes again for the next one");
        drop(waits);
        assert_eq!((turn(), calls.has_calls(0)), (None, false));
    }

    #[test]
    fn calls_wait_for_their_worker_alone() {
        let calls = LocalCalls::new(2);
        let call = LocalCall {
            tenant: 1,
            extension: "x".into(),
            version: 0,
            args: Vec::new(),
            about: None,
            done: Box::new(|_| unreachable!("it does not run")),
        };
        calls.put(1, vec![call]);
        assert_eq!((calls.has_calls(0), calls.has_calls(1)), (false, true));
        assert_eq!((calls.take(1).len(), calls.has_calls(1)), (1, false));
    }
}
