//! Reads responses: the replies to a message's operations.

use std::time::Duration;

use bytes::Bytes;
use sandstorm_net::rpc::{
    CallCost, MessageHeader, OP_FLAG_COST, OpKind, Operation, RANGE_MORE, RangeEntries, RpcStatus,
};

use crate::message::{KeyedRecord, PutOutcome, RangePage, Record, RecordExpiry, Reply, protocol_error};
use crate::{Error, limits};

/// The replies of a response, one for each operation asked.
pub(crate) fn decode_replies(response: &Bytes) -> Result<Vec<Result<Reply, Error>>, Error> {
    let (header, operations) = MessageHeader::decode(response).map_err(|error| protocol_error(error.to_string()))?;
    let mut replies = Vec::with_capacity(usize::from(header.operations));
    for operation in operations {
        replies.push(decode_reply(response, &operation.map_err(|error| protocol_error(error.to_string()))?));
    }
    Ok(replies)
}

/// The only reply of a response to a message of one operation.
pub(crate) fn decode_single_reply(response: &Bytes) -> Result<Reply, Error> {
    let (_, mut operations) = MessageHeader::decode(response).map_err(|error| protocol_error(error.to_string()))?;
    match operations.next() {
        Some(Ok(operation)) => decode_reply(response, &operation),
        Some(Err(error)) => Err(protocol_error(error.to_string())),
        None => Err(protocol_error("a response without operations")),
    }
}

/// What the call of a response cost; `None`: it did not run, or the server does not tell.
pub(crate) fn decode_cost(response: &Bytes) -> Option<CallCost> {
    let (_, mut operations) = MessageHeader::decode(response).ok()?;
    let answer = operations.next()?.ok()?;
    (answer.flags & OP_FLAG_COST != 0).then(|| CallCost::decode(answer.key)).flatten()
}

/// The outcome of a put alone.
pub(crate) fn decode_put_outcome(response: &Bytes) -> Result<PutOutcome, Error> {
    let (_, mut operations) = MessageHeader::decode(response).map_err(|error| protocol_error(error.to_string()))?;
    match operations.next() {
        Some(Ok(answer)) if answer.op == OpKind::Put => match answer.status {
            RpcStatus::Conflict | RpcStatus::NotFound => {
                Ok(PutOutcome::Conflict { version: Some(answer.number).filter(|version| *version != 0) })
            }
            _ => Error::of(&answer).map_or(Ok(PutOutcome::Written { version: answer.number }), Err),
        },
        Some(Ok(answer)) => {
            Err(Error::of(&answer).unwrap_or_else(|| protocol_error("a put was answered as another operation")))
        }
        Some(Err(error)) => Err(protocol_error(error.to_string())),
        None => Err(protocol_error("a response without operations")),
    }
}

fn decode_reply(response: &Bytes, answer: &Operation<'_>) -> Result<Reply, Error> {
    if let Some(error) = Error::of(answer) {
        return Err(error);
    }
    let found = answer.status == RpcStatus::Ok;
    let conditional_miss = |reply| if found { Ok(reply) } else { Err(Error::Conflict) };
    match answer.op {
        OpKind::Ping | OpKind::Hello => Ok(Reply::Pong),
        OpKind::Get => Ok(Reply::Record(found.then(|| Record {
            value: response.slice_ref(answer.value),
            version: answer.number,
            flags: answer.user_flags,
        }))),
        OpKind::MultiGet => decode_multi_get(response, answer.value).map(Reply::Records),
        OpKind::Range => decode_range(response, answer).map(Reply::Range),
        // A server may say of a condition on an absent record that it is absent: to the writer it is a conflict.
        OpKind::Put => conditional_miss(Reply::Written(answer.number)),
        OpKind::Delete => Ok(Reply::Deleted(found)),
        OpKind::Increment => conditional_miss(Reply::Sum(answer.number.cast_signed())),
        OpKind::Count | OpKind::Rank if found => Ok(Reply::Counted(answer.number)),
        OpKind::Count | OpKind::Rank => Err(protocol_error("a count was answered as a record that is not there")),
        OpKind::Nth => Ok(Reply::Key(found.then(|| response.slice_ref(answer.value)))),
        OpKind::Ttl => Ok(Reply::Expiry(found.then(|| match answer.number {
            0 => RecordExpiry::Never,
            left_ms => RecordExpiry::After(Duration::from_millis(left_ms)),
        }))),
        OpKind::Touch => Ok(Reply::Touched(found)),
        OpKind::Invoke if found => Ok(Reply::Invoked(response.slice_ref(answer.value))),
        OpKind::Invoke => Err(Error::UnknownExtension),
        OpKind::Commit if found => Ok(Reply::Committed),
        OpKind::Commit => Err(protocol_error("a commit was answered as a record that is not there")),
    }
}

/// Bytes before the value of one record in a multi-get's answer: status, user flags, version, length.
const MULTI_GET_HEAD: usize = 1 + 4 + 8 + 4;

fn decode_multi_get(response: &Bytes, mut list: &[u8]) -> Result<Vec<Option<Record>>, Error> {
    let mut records = Vec::new();
    while let Some((head, rest)) = list.split_first_chunk::<MULTI_GET_HEAD>() {
        let [status, f0, f1, f2, f3, v0, v1, v2, v3, v4, v5, v6, v7, l0, l1, l2, l3] = *head;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let Some((value, rest)) = rest.split_at_checked(len) else {
            return Err(protocol_error("a record of a multi-get ends behind its message"));
        };
        list = rest;
        // Not there would be another answer.
        if status == RpcStatus::WrongServer as u8 {
            return Err(Error::WrongServer { epoch: 0, text: String::new() });
        }
        records.push((status == RpcStatus::Ok as u8).then(|| Record {
            value: response.slice_ref(value),
            version: u64::from_le_bytes([v0, v1, v2, v3, v4, v5, v6, v7]),
            flags: u32::from_le_bytes([f0, f1, f2, f3]),
        }));
    }
    if list.is_empty() { Ok(records) } else { Err(protocol_error("bytes behind the last record of a multi-get")) }
}

fn decode_range(response: &Bytes, answer: &Operation<'_>) -> Result<RangePage, Error> {
    let mut records = Vec::new();
    for row in RangeEntries::new(answer.value) {
        let row = row.map_err(|error| protocol_error(format!("the answer to a range: {error}")))?;
        let (key, value) = (response.slice_ref(row.key), response.slice_ref(row.value));
        records.push(KeyedRecord { key, value, version: row.version, flags: row.user_flags });
    }
    if answer.number & !RANGE_MORE != records.len() as u64 {
        return Err(protocol_error("the answer to a range has fewer records than it announces"));
    }
    let last = || records.last().map_or_else(|| response.slice_ref(answer.key), |record| record.key.clone());
    let on = (answer.number & RANGE_MORE != 0).then(last);
    Ok(RangePage { records, on })
}

/// The answer to a `Hello`.
pub(crate) struct ServerGreeting {
    pub(crate) workers: u32,
    pub(crate) home_worker: u32,
    /// The server's start, which requests are bound to; 0: the server does not tell.
    pub(crate) start: u32,
}

/// Reads the answer to a `Hello`.
pub(crate) fn decode_hello(response: &[u8]) -> Result<ServerGreeting, Error> {
    let (_, mut operations) = MessageHeader::decode(response).map_err(|error| protocol_error(error.to_string()))?;
    let answer = match operations.next() {
        Some(Ok(answer)) => answer,
        _ => return Err(protocol_error("the answer to a hello holds no operation")),
    };
    if let Some(error) = Error::of(&answer) {
        return Err(error);
    }
    match *answer.value {
        [w0, w1, w2, w3, h0, h1, h2, h3] => {
            let workers = u32::from_le_bytes([w0, w1, w2, w3]).clamp(1, limits::MAX_WORKERS);
            let home = u32::from_le_bytes([h0, h1, h2, h3]);
            let home_worker = if home < workers { home } else { 0 };
            Ok(ServerGreeting { workers, home_worker, start: answer.user_flags })
        }
        _ => Err(protocol_error("the answer to a hello is not 8 bytes")),
    }
}
