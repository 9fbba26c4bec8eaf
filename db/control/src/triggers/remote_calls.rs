//! What the servers of a cluster say to each other of calls for changes whose keys another one owns by now, and of
//! those of a schedule that were not over when the slot of its name moved. A server that was asked says of each what
//! became of it; where there is no answer, the call is made again.
//!
//! A request is the length of its head (four bytes, little endian), the head as JSON, and the changes of its calls, one
//! behind the other, as the log's server has put them together. Their bytes for a typed function are made where they
//! are run, by the code that is loaded there.

use serde::{Deserialize, Serialize};

use super::call_routes::CallRoutes;
use super::definition::TriggerDefinition;
use super::remote_order::RequestOrder;
use super::typed_calls;
use crate::limits::TRIGGER_REMOTE_TEXT;
use sandstorm_catalog::TenantView;
use sandstorm_net::rpc::RpcStatus;

/// A call for changes of keys of one other server, or of a schedule that this one makes no calls of any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteCall {
    /// The cluster's slots of its keys; of a schedule that of its name.
    pub(crate) slots: Vec<u16>,
    /// Its changes, or the arguments of the schedule.
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
    /// Earlier versions do not say it, and refuse requests that do.
    #[serde(default)]
    order: Option<RequestOrder>,
    tenant: u32,
    trigger: TriggerDefinition,
    /// Slots and bytes of each call.
    calls: Vec<(Vec<u16>, usize)>,
}

impl RemoteCalls {
    /// The bytes of a request.
    pub(crate) fn encode(&self, order: RequestOrder) -> Result<Vec<u8>, String> {
        let calls = self.calls.iter().map(|call| (call.slots.clone(), call.args.len())).collect();
        let head = RemoteHead { order: Some(order), tenant: self.tenant, trigger: self.trigger.clone(), calls };
        let head = serde_json::to_vec(&head).map_err(|error| error.to_string())?;
        let mut bytes = u32::try_from(head.len()).map_err(|error| error.to_string())?.to_le_bytes().to_vec();
        bytes.extend_from_slice(&head);
        self.calls.iter().for_each(|call| bytes.extend_from_slice(&call.args));
        Ok(bytes)
    }

    /// The calls of a request, and which one it is; `None`: it is none of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(RemoteCalls, Option<RequestOrder>)> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (head, mut rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let RemoteHead { order, tenant, trigger, calls: heads } = serde_json::from_slice(head).ok()?;
        let mut calls = Vec::new();
        for (slots, length) in heads {
            let (args, behind) = rest.split_at_checked(length)?;
            rest = behind;
            calls.push(RemoteCall { slots, args: args.to_vec() });
        }
        let is_whole = rest.is_empty() && trigger.source().is_ok() && calls.iter().all(|call| !call.slots.is_empty());
        is_whole.then_some((RemoteCalls { tenant, trigger, calls }, order))
    }
}

/// The answer to a request that has come behind a later one: nothing of it was run.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LateAnswer {
    /// The number of the later one.
    pub(crate) behind: u64,
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
    pub(crate) fn decode(bytes: &[u8], calls: usize) -> Option<Vec<RemoteOutcome>> {
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
    let bytes = typed_calls::bytes_of(view, trigger, args);
    bytes.map_err(|why| RemoteOutcome::of(RpcStatus::Failed, why.as_bytes()))
}

#[cfg(test)]
mod tests {
    //! Promise: calls for another server come to it as they were, and each is told what became of it, once.

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
        let order = || RequestOrder { sender: "a".to_owned(), number: 8 };
        let bytes = sent.encode(order()).expect("JSON");
        assert_eq!(RemoteCalls::decode(&bytes), Some((sent.clone(), Some(order()))));
        for end in 0..bytes.len() {
            assert_eq!(RemoteCalls::decode(&bytes[..end]), None, "{end} bytes");
        }
        assert_eq!(RemoteCalls::decode(&[&bytes[..], b"x"].concat()), None);
        let of_no_key = RemoteCall { slots: Vec::new(), args: Vec::new() };
        let none = RemoteCalls { calls: vec![of_no_key], ..sent.clone() };
        assert_eq!(RemoteCalls::decode(&none.encode(order()).expect("JSON")), None);
        let trigger = serde_json::json!({"name": "t", "extension": "e", "every": "5s"});
        let by_clock = RemoteCalls { trigger: serde_json::from_value(trigger).expect("a definition"), ..sent };
        let bytes = by_clock.encode(order()).expect("JSON");
        assert_eq!(RemoteCalls::decode(&bytes), Some((by_clock, Some(order()))), "it has the slot of its name");
        let outcomes = [RemoteOutcome::of(RpcStatus::Ok, b""), RemoteOutcome::of(RpcStatus::Failed, &[b'x'; 5_000])];
        let answer = RemoteOutcome::encode(&outcomes).expect("JSON");
        assert_eq!(RemoteOutcome::decode(&answer, 2), Some(outcomes.to_vec()));
        assert_eq!(outcomes[1].text.len(), TRIGGER_REMOTE_TEXT);
        assert_eq!((RemoteOutcome::decode(&answer, 1), RemoteOutcome::decode(b"[[99,\"\"]]", 1)), (None, None));
    }
}
