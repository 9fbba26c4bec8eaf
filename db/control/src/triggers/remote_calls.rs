//! Calls for changes whose keys another server of the cluster owns by now: how they are sent there, and how it runs
//! them. The answering server reports the outcome of each call; without an answer, the call is made again.
//!
//! A request is the length of its head (four bytes, little endian), the head as JSON, and the changes of its calls, one
//! behind the other, as the log's server has put them together. Their bytes for a typed function are made where they
//! are run, by the code that is loaded there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::call_routes::CallRoutes;
use super::definition::{TriggerDefinition, TriggerSource};
use super::typed_calls;
use crate::limits::{TRIGGER_REMOTE_TEXT, TRIGGER_REMOTE_THREADS, TRIGGER_REMOTE_WAITING};
use sandstorm_catalog::TenantView;
use sandstorm_net::rpc::RpcStatus;

/// A call for changes of keys of one other server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteCall {
    /// The cluster's slots of its keys.
    pub(crate) slots: Vec<u16>,
    /// Its changes.
    pub(crate) args: Vec<u8>,
}

/// Calls of a trigger for one other server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteCalls {
    pub(crate) tenant: u32,
    pub(crate) trigger: TriggerDefinition,
    pub(crate) calls: Vec<RemoteCall>,
}

/// The outcome of a call there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteOutcome {
    /// `WrongServer`: the keys are not there, or left while it ran.
    pub(crate) status: RpcStatus,
    pub(crate) text: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoteHead {
    tenant: u32,
    trigger: TriggerDefinition,
    /// Slots and bytes of each call.
    calls: Vec<(Vec<u16>, usize)>,
}

impl RemoteCalls {
    /// The bytes of a request.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        let calls = self.calls.iter().map(|call| (call.slots.clone(), call.args.len())).collect();
        let head = RemoteHead { tenant: self.tenant, trigger: self.trigger.clone(), calls };
        let head = serde_json::to_vec(&head).map_err(|error| error.to_string())?;
        let mut bytes = u32::try_from(head.len()).map_err(|error| error.to_string())?.to_le_bytes().to_vec();
        bytes.extend_from_slice(&head);
        self.calls.iter().for_each(|call| bytes.extend_from_slice(&call.args));
        Ok(bytes)
    }

    /// The calls of a request; `None`: it is malformed, or of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<RemoteCalls> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (head, mut rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let RemoteHead { tenant, trigger, calls: heads } = serde_json::from_slice(head).ok()?;
        let mut calls = Vec::new();
        for (slots, length) in heads {
            let (args, behind) = rest.split_at_checked(length)?;
            rest = behind;
            calls.push(RemoteCall { slots, args: args.to_vec() });
        }
        let is_of_table = matches!(trigger.source(), Ok(TriggerSource::Table(_)));
        let is_whole = rest.is_empty() && is_of_table && calls.iter().all(|call| !call.slots.is_empty());
        is_whole.then_some(RemoteCalls { tenant, trigger, calls })
    }
}

impl RemoteOutcome {
    /// One with the text of an answer, of which the beginning is kept.
    pub(crate) fn of(status: RpcStatus, text: &[u8]) -> RemoteOutcome {
        RemoteOutcome { status, text: String::from_utf8_lossy(text).chars().take(TRIGGER_REMOTE_TEXT).collect() }
    }

    /// The bytes of an answer.
    pub(crate) fn encode(outcomes: &[RemoteOutcome]) -> Result<Vec<u8>, String> {
        let outcomes: Vec<(u8, &str)> = outcomes.iter().map(|one| (one.status as u8, one.text.as_str())).collect();
        serde_json::to_vec(&outcomes).map_err(|error| error.to_string())
    }

    /// The outcomes of an answer to that number of calls; `None`: it is malformed.
    fn decode(bytes: &[u8], calls: usize) -> Option<Vec<RemoteOutcome>> {
        let outcomes: Vec<(u8, String)> = serde_json::from_slice(bytes).ok()?;
        let known = |(status, text)| Some(RemoteOutcome { status: RpcStatus::from_byte(status)?, text });
        let outcomes: Vec<RemoteOutcome> = outcomes.into_iter().map(known).collect::<Option<_>>()?;
        (outcomes.len() == calls).then_some(outcomes)
    }
}

/// The arguments with which a call that another server has sent is run here, or why it is not.
pub(crate) fn own_args(
    view: &TenantView,
    trigger: &TriggerDefinition,
    RemoteCall { slots, args }: RemoteCall,
    routes: &CallRoutes,
) -> Result<Vec<u8>, RemoteOutcome> {
    if !routes.stayed(&slots) {
        return Err(RemoteOutcome::of(RpcStatus::WrongServer, b"the key is not here"));
    }
    let bytes = typed_calls::change_bytes(view, trigger, args);
    bytes.map_err(|why| RemoteOutcome::of(RpcStatus::Failed, why.as_bytes()))
}

/// Takes the outcomes of calls, or why they are not known.
pub(crate) type RemoteDone = Box<dyn FnOnce(Result<Vec<RemoteOutcome>, String>) + Send>;

/// Calls for another server, by its id.
pub(crate) struct RemoteRequest {
    pub(crate) server: String,
    pub(crate) calls: RemoteCalls,
    pub(crate) done: RemoteDone,
}

/// Sends a request to the server of an id, and waits for its answer.
pub(crate) type RemoteSend = Box<dyn Fn(&str, &[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

#[derive(Default)]
struct RemoteQueue {
    /// By tenant.
    waiting: BTreeMap<u32, VecDeque<RemoteRequest>>,
    /// Tenants with a request under way.
    busy: BTreeSet<u32>,
    /// The tenant that was served last.
    last: u32,
    threads: usize,
}

impl RemoteQueue {
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

/// Sends calls to other servers on threads of its own, which end when there is nothing to send. A tenant has one
/// request under way: one whose calls are slow keeps no others waiting.
pub(crate) struct RemoteCaller {
    send: RemoteSend,
    queue: Mutex<RemoteQueue>,
}

impl RemoteCaller {
    pub(crate) fn new(send: RemoteSend) -> Arc<RemoteCaller> {
        Arc::new(RemoteCaller { send, queue: Mutex::default() })
    }

    /// Has a request sent.
    pub(crate) fn push(self: &Arc<Self>, request: RemoteRequest) {
        let mut queue = self.queue.lock();
        let own = queue.waiting.entry(request.calls.tenant).or_default();
        if own.len() >= TRIGGER_REMOTE_WAITING {
            drop(queue);
            // Each replay or change of a trigger begins its calls anew, and those of before wait here still.
            (request.done)(Err("too many of the tenant's calls wait for other servers".to_owned()));
            return;
        }
        own.push_back(request);
        if queue.threads >= TRIGGER_REMOTE_THREADS {
            return;
        }
        queue.threads += 1;
        drop(queue);
        let own = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("trigger-remote".to_owned()).spawn(move || own.run());
        if spawned.is_err() {
            let mut queue = self.queue.lock();
            queue.threads -= 1;
            // Another thread sends it, if there is one.
            let stuck = if queue.threads == 0 { std::mem::take(&mut queue.waiting) } else { BTreeMap::new() };
            drop(queue);
            let refuse = |request: RemoteRequest| (request.done)(Err("the system gives no thread".to_owned()));
            stuck.into_values().flatten().for_each(refuse);
        }
    }

    fn run(&self) {
        loop {
            let mut queue = self.queue.lock();
            let Some(RemoteRequest { server, calls, done }) = queue.next() else {
                queue.threads -= 1;
                return;
            };
            drop(queue);
            let answered = calls.encode().and_then(|request| (self.send)(&server, &request)).and_then(|answer| {
                let outcomes = RemoteOutcome::decode(&answer, calls.calls.len());
                outcomes.ok_or_else(|| format!("server {server} has given no answer to these calls"))
            });
            done(answered);
            self.queue.lock().busy.remove(&calls.tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Promise: calls for another server come to it as they were, and each is told what became of it, once; no tenant
    //! waits for another one's.

    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    fn calls(tenant: u32, args: &[&[u8]]) -> RemoteCalls {
        let trigger = serde_json::json!({"name": "t", "extension": "e", "table": "items"});
        let trigger = serde_json::from_value(trigger).expect("a definition");
        let calls = args.iter().map(|args| RemoteCall { slots: vec![7, 9], args: args.to_vec() }).collect();
        RemoteCalls { tenant, trigger, calls }
    }

    #[test]
    fn calls_come_as_they_were_and_what_is_none_is_refused() {
        let sent = calls(3, &[b"one", b"", b"three"]);
        let bytes = sent.encode().expect("JSON");
        assert_eq!(RemoteCalls::decode(&bytes), Some(sent.clone()));
        for end in 0..bytes.len() {
            assert_eq!(RemoteCalls::decode(&bytes[..end]), None, "{end} bytes");
        }
        assert_eq!(RemoteCalls::decode(&[&bytes[..], b"x"].concat()), None);
        let of_no_key = RemoteCall { slots: Vec::new(), args: Vec::new() };
        let none = RemoteCalls { calls: vec![of_no_key], ..sent.clone() };
        assert_eq!(RemoteCalls::decode(&none.encode().expect("JSON")), None);
        let trigger = serde_json::json!({"name": "t", "extension": "e", "every": "5s"});
        let by_clock = RemoteCalls { trigger: serde_json::from_value(trigger).expect("a definition"), ..sent };
        assert_eq!(RemoteCalls::decode(&by_clock.encode().expect("JSON")), None, "a schedule has no key");
        let outcomes = [RemoteOutcome::of(RpcStatus::Ok, b""), RemoteOutcome::of(RpcStatus::Failed, &[b'x'; 5_000])];
        let answer = RemoteOutcome::encode(&outcomes).expect("JSON");
        assert_eq!(RemoteOutcome::decode(&answer, 2), Some(outcomes.to_vec()));
        assert_eq!(outcomes[1].text.len(), TRIGGER_REMOTE_TEXT);
        assert_eq!((RemoteOutcome::decode(&answer, 1), RemoteOutcome::decode(b"[[99,\"\"]]", 1)), (None, None));
    }

    #[test]
    fn a_tenant_whose_calls_are_slow_keeps_no_other_one_waiting() {
        const LONG: Duration = Duration::from_secs(60);
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let caller = RemoteCaller::new(Box::new(move |server, request| {
            let calls = RemoteCalls::decode(request).expect("calls");
            if calls.tenant == 1 {
                let _released = held.lock().recv();
            }
            match server {
                "away" => Err("it is away".to_owned()),
                _ => RemoteOutcome::encode(&vec![RemoteOutcome::of(RpcStatus::Ok, b""); calls.calls.len()]),
            }
        }));
        let push = |tenant: u32, server: &str| {
            let (tell, told) = channel();
            let done = Box::new(move |outcomes| drop(tell.send(outcomes)));
            caller.push(RemoteRequest { server: server.to_owned(), calls: calls(tenant, &[b"a", b"b"]), done });
            told
        };
        // More of one tenant than there are threads.
        let slow: Vec<_> = (0..2 * TRIGGER_REMOTE_THREADS).map(|_| push(1, "there")).collect();
        for tenant in [2, 3] {
            let outcomes = push(tenant, "there").recv_timeout(LONG).expect("it waits for no other one");
            assert_eq!(outcomes.map(|outcomes| outcomes.len()), Ok(2));
        }
        assert_eq!(push(2, "away").recv_timeout(LONG), Ok(Err("it is away".to_owned())));
        drop(release);
        for told in slow {
            assert!(told.recv_timeout(LONG).expect("it is told").is_ok());
        }
    }

    #[test]
    fn a_tenant_has_so_many_requests_waiting_and_no_more() {
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let caller = RemoteCaller::new(Box::new(move |_, _| {
            let _released = held.lock().recv();
            Err("it is away".to_owned())
        }));
        let refused = Arc::new(Mutex::new(0));
        for _ in 0..TRIGGER_REMOTE_WAITING + 10 {
            let refused = Arc::clone(&refused);
            let done = move |outcomes: Result<Vec<RemoteOutcome>, String>| {
                *refused.lock() += usize::from(outcomes.is_err_and(|why| why.contains("too many")));
            };
            caller.push(RemoteRequest { server: "there".to_owned(), calls: calls(1, &[b"a"]), done: Box::new(done) });
        }
        // One may be under way already.
        assert!((9..=10).contains(&*refused.lock()), "{}", refused.lock());
        drop(release);
    }
}
