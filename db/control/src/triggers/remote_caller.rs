//! Sends calls to other servers of the cluster, on threads of its own, which end when there is nothing to send.
//!
//! Each server has its own: one that is silent keeps no calls for others waiting. Of those for one server a tenant has
//! one request under way: one whose calls are slow keeps no others waiting, and requests of a tenant come in the order
//! of their numbers ([`super::remote_order`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::remote_calls::{LateAnswer, RemoteCalls, RemoteOutcome};
use super::remote_order::RequestOrder;
use crate::limits::{
    TRIGGER_REMOTE_THREADS, TRIGGER_REMOTE_WAITING, TRIGGER_REMOTE_WAITING_ALL, TRIGGER_REMOTE_WAITING_BYTES,
};

/// Requests of a millisecond for whose numbers there is room before those of the next one, in bits.
const NUMBERS_PER_MS: u32 = 20;

/// Takes what became of calls, or why that is not known.
pub(crate) type RemoteDone = Box<dyn FnOnce(Result<Vec<RemoteOutcome>, String>) + Send>;

/// Calls for another server, by its id.
pub(crate) struct RemoteRequest {
    pub(crate) server: String,
    pub(crate) calls: RemoteCalls,
    pub(crate) done: RemoteDone,
}

impl RemoteRequest {
    /// Bytes of its calls' arguments.
    fn bytes(&self) -> usize {
        self.calls.calls.iter().map(|call| call.args.len()).sum()
    }
}

/// Sends a request to the server of an id, and waits for its answer.
pub(crate) type RemoteSend = Box<dyn Fn(&str, &[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

/// The requests for one server.
#[derive(Default)]
struct ServerQueue {
    /// By tenant.
    waiting: BTreeMap<u32, VecDeque<RemoteRequest>>,
    /// Tenants with a request under way.
    busy: BTreeSet<u32>,
    /// The tenant that was served last.
    last: u32,
    threads: usize,
}

impl ServerQueue {
    /// The next request: of the next tenant that has one, and none under way.
    fn next(&mut self) -> Option<RemoteRequest> {
        let free = |tenant: &&u32| !self.busy.contains(tenant);
        let behind = self.waiting.range(self.last.saturating_add(1)..).map(|(tenant, _)| tenant).find(free);
        let tenant = *behind.or_else(|| self.waiting.keys().find(free))?;
        let own = self.waiting.get_mut(&tenant)?;
        let request = own.pop_front();
        if own.is_empty() {
            self.waiting.remove(&tenant);
        }
        self.busy.insert(tenant);
        self.last = tenant;
        request
    }
}

/// Those for all servers, by their ids. One without requests and threads has none.
#[derive(Default)]
struct RemoteQueues(BTreeMap<String, ServerQueue>);

impl RemoteQueues {
    /// Whether one more request of a tenant, with so many bytes, may wait for a server.
    fn has_room(&self, (tenant, bytes): (u32, usize), server: &str) -> bool {
        let waiting_at = |queue: &ServerQueue| queue.waiting.get(&tenant).map_or(0, VecDeque::len);
        let (there, all) = (self.0.get(server).map_or(0, waiting_at), self.0.values().map(waiting_at).sum::<usize>());
        let waiting = self.0.values().filter_map(|queue| queue.waiting.get(&tenant)).flatten();
        let all_bytes: usize = waiting.map(RemoteRequest::bytes).sum();
        let fits = all == 0 || all_bytes + bytes <= TRIGGER_REMOTE_WAITING_BYTES;
        there < TRIGGER_REMOTE_WAITING && all < TRIGGER_REMOTE_WAITING_ALL && fits
    }

    /// Adds a request; returns whether it is to have a thread.
    fn push(&mut self, request: RemoteRequest) -> bool {
        let queue = self.0.entry(request.server.clone()).or_default();
        queue.waiting.entry(request.calls.tenant).or_default().push_back(request);
        let is_new = queue.threads < TRIGGER_REMOTE_THREADS;
        queue.threads += usize::from(is_new);
        is_new
    }

    /// The next request of a thread; `None`: it ends.
    fn next(&mut self, server: &str) -> Option<RemoteRequest> {
        let queue = self.0.get_mut(server)?;
        let next = queue.next();
        if next.is_none() {
            queue.threads = queue.threads.saturating_sub(1);
            if queue.threads == 0 && queue.waiting.is_empty() {
                self.0.remove(server);
            }
        }
        next
    }

    /// There is no thread for a server. Returns what is not sent then.
    fn no_thread(&mut self, server: &str) -> Vec<RemoteRequest> {
        let Some(queue) = self.0.get_mut(server) else { return Vec::new() };
        queue.threads = queue.threads.saturating_sub(1);
        if queue.threads > 0 {
            return Vec::new();
        }
        let queue = self.0.remove(server).unwrap_or_default();
        queue.waiting.into_values().flatten().collect()
    }

    fn end(&mut self, server: &str, tenant: u32) {
        self.0.get_mut(server).map(|queue| queue.busy.remove(&tenant));
    }
}

/// See the head of this file.
pub(crate) struct RemoteCaller {
    send: RemoteSend,
    own_id: String,
    /// The number of the next request. It begins with the time of the start, so that it goes on behind those of the one
    /// before.
    next_number: AtomicU64,
    queues: Mutex<RemoteQueues>,
}

impl RemoteCaller {
    /// That of the server with this id, which starts at this time, in milliseconds since 1970.
    pub(crate) fn new(own_id: &str, started_ms: u64, send: RemoteSend) -> Arc<RemoteCaller> {
        let next_number = AtomicU64::new(started_ms << NUMBERS_PER_MS);
        Arc::new(RemoteCaller { send, own_id: own_id.to_owned(), next_number, queues: Mutex::default() })
    }

    /// Has a request sent.
    pub(crate) fn push(self: &Arc<Self>, request: RemoteRequest) {
        let server = request.server.clone();
        let mut queues = self.queues.lock();
        if !queues.has_room((request.calls.tenant, request.bytes()), &server) {
            drop(queues);
            // Each replay or change of a trigger begins its calls anew, and those of before wait here still.
            (request.done)(Err("too many of the tenant's calls wait for other servers".to_owned()));
            return;
        }
        if !queues.push(request) {
            return;
        }
        drop(queues);
        let (own, of) = (Arc::clone(self), server.clone());
        let spawned = std::thread::Builder::new().name("trigger-remote".to_owned()).spawn(move || own.run(&of));
        if spawned.is_err() {
            // Another thread sends it, if there is one.
            let stuck = self.queues.lock().no_thread(&server);
            let refuse = |request: RemoteRequest| (request.done)(Err("the system gives no thread".to_owned()));
            stuck.into_iter().for_each(refuse);
        }
    }

    fn run(&self, server: &str) {
        loop {
            // Its lock is free while the request is sent.
            let next = self.queues.lock().next(server);
            let Some(RemoteRequest { calls, done, .. }) = next else { return };
            done(self.send_one(server, &calls));
            self.queues.lock().end(server, calls.tenant);
        }
    }

    fn send_one(&self, server: &str, calls: &RemoteCalls) -> Result<Vec<RemoteOutcome>, String> {
        let number = self.next_number.fetch_add(1, Ordering::SeqCst);
        let order = RequestOrder { sender: self.own_id.clone(), number };
        let answer = calls.encode(order).and_then(|request| (self.send)(server, &request))?;
        if let Some(outcomes) = RemoteOutcome::decode(&answer, calls.calls.len()) {
            return Ok(outcomes);
        }
        if let Ok(LateAnswer { behind }) = serde_json::from_slice(&answer) {
            // The clock of this server was set back between two starts.
            self.next_number.fetch_max(behind.saturating_add(1), Ordering::SeqCst);
            return Err(format!("server {server} has run later calls: these are sent again"));
        }
        Err(format!("server {server} has given no answer to these calls"))
    }
}

#[cfg(test)]
mod tests {
    //! Promise: each call for another server is told what became of it, once; no tenant waits for another one's, and
    //! none for a server that does not answer another one's calls.

    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use sandstorm_net::rpc::RpcStatus;

    use super::*;
    use crate::triggers::remote_calls::RemoteCall;

    const LONG: Duration = Duration::from_secs(60);

    type Told = Receiver<Result<Vec<RemoteOutcome>, String>>;

    fn calls(tenant: u32, count: usize) -> RemoteCalls {
        let trigger = serde_json::json!({"name": "t", "extension": "e", "table": "items"});
        let trigger = serde_json::from_value(trigger).expect("a definition");
        RemoteCalls { tenant, trigger, calls: vec![RemoteCall { slots: vec![7], args: b"a".to_vec() }; count] }
    }

    fn push(caller: &Arc<RemoteCaller>, tenant: u32, server: &str) -> Told {
        let (tell, told) = channel();
        let done = Box::new(move |outcomes| drop(tell.send(outcomes)));
        caller.push(RemoteRequest { server: server.to_owned(), calls: calls(tenant, 2), done });
        told
    }

    fn succeed(calls: &RemoteCalls) -> Result<Vec<u8>, String> {
        RemoteOutcome::encode(&vec![RemoteOutcome::of(RpcStatus::Ok, b""); calls.calls.len()])
    }

    #[test]
    fn a_tenant_whose_calls_are_slow_keeps_no_other_one_waiting() {
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let caller = RemoteCaller::new(
            "a",
            1,
            Box::new(move |server, request| {
                let (calls, _) = RemoteCalls::decode(request).expect("calls");
                if calls.tenant == 1 {
                    let _released = held.lock().recv();
                }
                if server == "away" { Err("it is away".to_owned()) } else { succeed(&calls) }
            }),
        );
        // More of one tenant than there are threads.
        let slow: Vec<_> = (0..2 * TRIGGER_REMOTE_THREADS).map(|_| push(&caller, 1, "there")).collect();
        for tenant in [2, 3] {
            let outcomes = push(&caller, tenant, "there").recv_timeout(LONG).expect("it waits for no other one");
            assert_eq!(outcomes.map(|outcomes| outcomes.len()), Ok(2));
        }
        assert_eq!(push(&caller, 2, "away").recv_timeout(LONG), Ok(Err("it is away".to_owned())));
        drop(release);
        for told in slow {
            assert!(told.recv_timeout(LONG).expect("it is told").is_ok());
        }
    }

    /// More tenants wait for it than there are threads, and of one tenant as many requests as may.
    #[test]
    fn a_server_that_is_silent_keeps_no_calls_for_others_waiting() {
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let caller = RemoteCaller::new(
            "a",
            1,
            Box::new(move |server, request| {
                if server.starts_with("silent") {
                    let _released = held.lock().recv();
                    return Err("it has not answered".to_owned());
                }
                succeed(&RemoteCalls::decode(request).expect("calls").0)
            }),
        );
        let mut silent: Vec<Told> = Vec::new();
        for server in ["silent", "silent too"] {
            silent.extend((2..40).map(|tenant| push(&caller, tenant, server)));
            silent.extend((0..TRIGGER_REMOTE_WAITING).map(|_| push(&caller, 1, server)));
        }
        for tenant in [1, 2, 50] {
            let outcomes = push(&caller, tenant, "there").recv_timeout(LONG).expect("it waits for no other server");
            assert_eq!(outcomes.map(|outcomes| outcomes.len()), Ok(2));
        }
        drop(release);
        for told in silent {
            assert!(told.recv_timeout(LONG).expect("it is told").is_err());
        }
    }

    #[test]
    fn a_tenant_has_so_many_requests_waiting_and_no_more() {
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let wait = move |_: &str, _: &[u8]| {
            let _released = held.lock().recv();
            Err("it is away".to_owned())
        };
        let caller = RemoteCaller::new("a", 1, Box::new(wait));
        let refused = Arc::new(Mutex::new(0));
        let push = |server: &str| {
            let refused = Arc::clone(&refused);
            let done = move |outcomes: Result<Vec<RemoteOutcome>, String>| {
                *refused.lock() += usize::from(outcomes.is_err_and(|why| why.contains("too many")));
            };
            caller.push(RemoteRequest { server: server.to_owned(), calls: calls(1, 1), done: Box::new(done) });
        };
        (0..TRIGGER_REMOTE_WAITING + 10).for_each(|_| push("there"));
        // One may be under way already.
        assert!((9..=10).contains(&*refused.lock()), "{}", refused.lock());
        *refused.lock() = 0;
        let servers = TRIGGER_REMOTE_WAITING_ALL / TRIGGER_REMOTE_WAITING + 2;
        for server in 0..servers {
            (0..TRIGGER_REMOTE_WAITING).for_each(|_| push(&format!("server {server}")));
        }
        assert!(*refused.lock() >= TRIGGER_REMOTE_WAITING, "{}", refused.lock());
        drop(release);
    }

    #[test]
    fn requests_of_a_tenant_that_wait_have_so_many_bytes_and_one_has_as_many_as_it_needs() {
        let large = |tenant: u32, bytes: usize| {
            let mut calls = calls(tenant, 1);
            calls.calls[0].args = vec![7; bytes];
            RemoteRequest { server: "there".to_owned(), calls, done: Box::new(drop) }
        };
        let mut queues = RemoteQueues::default();
        assert!(queues.has_room((1, 2 * TRIGGER_REMOTE_WAITING_BYTES), "there"));
        queues.push(large(1, TRIGGER_REMOTE_WAITING_BYTES - 10));
        assert!(queues.has_room((1, 10), "there") && !queues.has_room((1, 11), "there"));
        assert!(!queues.has_room((1, 11), "another one") && queues.has_room((2, 11), "there"));
        assert!(queues.next("there").is_some() && queues.has_room((1, 11), "there"));
    }

    /// Its clock was set back between two starts.
    #[test]
    fn a_sender_whose_numbers_are_too_low_goes_on_behind_those_of_before() {
        let seen = Mutex::new(700 << NUMBERS_PER_MS);
        let caller = RemoteCaller::new(
            "a",
            3,
            Box::new(move |_, request| {
                let (calls, order) = RemoteCalls::decode(request).expect("calls");
                let RequestOrder { sender, number } = order.expect("its order");
                let mut seen = seen.lock();
                if number <= *seen {
                    return serde_json::to_vec(&LateAnswer { behind: *seen }).map_err(|error| error.to_string());
                }
                *seen = number;
                assert_eq!(sender, "a");
                succeed(&calls)
            }),
        );
        let first = push(&caller, 1, "there").recv_timeout(LONG).expect("it is told");
        assert!(first.is_err_and(|why| why.contains("sent again")));
        assert!(push(&caller, 1, "there").recv_timeout(LONG).expect("it is told").is_ok());
    }
}
