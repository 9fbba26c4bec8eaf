//! Plain operations: get, multiget, put, delete, increment, range. Each appends exactly one answer to the response.

mod range;

use std::cell::Cell;

use arrayvec::ArrayVec;
use sandstorm_net::rpc::{
    self, Answer, Keys, OP_FLAG_SNAPSHOT, OP_HEADER_LEN, Op, Operation, Status, encode_operation, op_header,
    push_answer, split_ttl,
};
use sandstorm_net::share::Share;

use super::kept::Packet;
use crate::limits::RESPONSE_BYTES;
use sandstorm_catalog::{NoAccess, TenantView};
use sandstorm_dialects::limits::PLAN;
use sandstorm_metrics::WorkerCounters;
use sandstorm_store::limits::HELD_VALUE_BYTES;
use sandstorm_store::transactions::snapshot;
use sandstorm_store::{Condition, Guard, Looks, Participant, RecordRef, StoreError, Table, Write, ends_ms};

/// What a plain operation needs besides the table.
pub(crate) struct Context<'w> {
    pub(crate) participant: &'w Participant,
    pub(crate) now_ms: u64,
    pub(crate) counters: &'w WorkerCounters,
    pub(crate) ranges: &'w Ranges,
    /// The message's packet, if that stayed where it came: a large value may stay there, too.
    pub(crate) packet: Option<Packet<'w>>,
}

/// What the ranges of one message have done, and the requests that its operations are as much work as.
pub(crate) struct Ranges {
    looks: Cell<Looks>,
    /// Requests beyond those that the door has counted: of the looks of ranges, and of what writes have evicted.
    owed: Cell<u32>,
}

impl Ranges {
    pub(crate) fn new() -> Ranges {
        Ranges { looks: Cell::new(Looks::MESSAGE), owed: Cell::new(0) }
    }

    fn owe(&self, requests: usize) {
        self.owed.set(self.owed.get().saturating_add(u32::try_from(requests).unwrap_or(u32::MAX)));
    }

    /// Requests that are still to be billed.
    pub(crate) fn owed(&self) -> u32 {
        self.owed.get()
    }
}

/// Appends an answer with a text that says what was wrong, or without where the response is full.
pub(crate) fn refuse(operation: &Operation<'_>, status: Status, text: &str, response: &mut Vec<u8>) -> Status {
    let text = if has_room(response, OP_HEADER_LEN + text.len()) { text } else { "" };
    encode_operation(&Operation { value: text.as_bytes(), ..operation.answer(status) }, response);
    status
}

/// Whether an operation changes records.
#[inline]
pub(crate) fn writes(op: Op) -> bool {
    matches!(op, Op::Put | Op::Delete | Op::Increment)
}

/// Appends the answer to an operation on a table that the tenant does not reach, or not so.
#[cold]
pub(crate) fn refuse_table(view: &TenantView, operation: &Operation<'_>, response: &mut Vec<u8>) -> Status {
    let (status, text) = match view.reach(operation.table, writes(operation.op)) {
        Err(NoAccess::ReadOnly) => {
            (Status::ReadOnly, "the table was granted for reading only; its owner may grant it with --read-write")
        }
        // A grant that was widened since the table was looked up is no reason to try again here: the client may.
        Err(NoAccess::Unknown) | Ok(_) => {
            (Status::UnknownTable, "the tenant has no table of this id; `sandstorm table list` shows those there are")
        }
    };
    refuse(operation, status, text, response)
}

/// What an operation is told whose answer does not fit.
pub(crate) const FULL: &str = "the response is as long as one can be; ask for less in one message";

/// Whether a response may grow by so many bytes.
pub(crate) fn has_room(response: &[u8], bytes: usize) -> bool {
    response.len() + bytes <= RESPONSE_BYTES
}

/// Where an answer goes: its bytes, and where there is a place for it the value behind them, where it is stored.
pub(crate) type Place<'r> = (&'r mut Vec<u8>, Option<&'r mut Option<Share>>);

/// Runs one plain operation whose key hashes to `hash` and appends its answer.
pub(crate) fn run(
    context: &Context<'_>,
    table: &Table,
    operation: &Operation<'_>,
    hash: u64,
    (response, tail): Place<'_>,
) -> Status {
    match operation.op {
        Op::Get => get(context, table, operation, hash, (response, tail)),
        Op::MultiGet if operation.flags & OP_FLAG_SNAPSHOT != 0 => get_at_once(context, table, operation, response),
        Op::MultiGet => multi_get(context, table, operation, response),
        Op::Put => owing(context, || put(context, table, operation, hash, response)),
        Op::Delete => owing(context, || delete(context, table, operation, hash, response)),
        Op::Increment => owing(context, || increment(context, table, operation, hash, response)),
        Op::Range => range::run(context, table, operation, response),
        Op::Ping | Op::Hello | Op::Invoke => {
            refuse(operation, Status::Malformed, "not an operation on a record", response)
        }
    }
}

fn get(
    context: &Context<'_>,
    table: &Table,
    operation: &Operation<'_>,
    hash: u64,
    (response, tail): Place<'_>,
) -> Status {
    if !table.owns(hash) {
        return refuse_store(operation, StoreError::WrongServer, response);
    }
    let guard = context.participant.guard();
    let found = table.get(&guard, hash, operation.key, context.now_ms);
    context.counters.records_read.add(u64::from(found.is_some()));
    if found.as_ref().is_some_and(|record| !has_room(response, record.value().len())) {
        return refuse(operation, Status::TooLarge, FULL, response);
    }
    let answer = match &found {
        Some(record) => Operation {
            user_flags: record.flags(),
            number: record.version(),
            value: record.value(),
            ..operation.answer(Status::Ok)
        },
        None => operation.answer(Status::NotFound),
    };
    if answer.value.len() >= HELD_VALUE_BYTES
        && let (Some(tail), Some(record)) = (tail, &found)
        && let Some(share) = record.hold()
    {
        response.extend_from_slice(&op_header(&answer, 0, share.len()));
        *tail = Some(share);
        return answer.status;
    }
    encode_operation(&answer, response);
    answer.status
}

/// The condition that an operation asks for.
fn condition(operation: &Operation<'_>) -> Condition {
    match operation.condition {
        rpc::Condition::Always => Condition::Always,
        rpc::Condition::Absent => Condition::Absent,
        rpc::Condition::Present => Condition::Present,
        rpc::Condition::Version => Condition::Version(operation.number),
    }
}

/// Runs a write, which owes a request for each record that it evicted: thousands, in a cache that is full.
fn owing(context: &Context<'_>, write: impl FnOnce() -> Status) -> Status {
    let before = context.participant.retired();
    let status = write();
    // One is what it replaced itself.
    context.ranges.owe((context.participant.retired() - before).saturating_sub(1) as usize);
    status
}

fn put(context: &Context<'_>, table: &Table, operation: &Operation<'_>, hash: u64, response: &mut Vec<u8>) -> Status {
    let Ok((ttl_ms, value)) = split_ttl(operation) else {
        let text = "a put with an expiry starts with 8 bytes of milliseconds";
        return refuse(operation, Status::Malformed, text, response);
    };
    let expires_at_ms = match ttl_ms {
        None | Some(0) => 0,
        Some(ttl_ms) => ends_ms(context.now_ms, ttl_ms),
    };
    let write = Write { condition: condition(operation), flags: operation.user_flags, expires_at_ms };
    let outside = context.packet.as_ref().and_then(|packet| packet.hold(value));
    let put = match &outside {
        None => table.put(context.participant, hash, operation.key, value, &write, context.now_ms),
        Some(value) => table.put_shared(context.participant, hash, operation.key, value, &write, context.now_ms),
    };
    match put {
        Ok(version) => done(operation, version, response),
        Err(StoreError::Conflict) => conflict(context, table, operation, hash, response),
        Err(error) => refuse_store(operation, error, response),
    }
}

fn delete(
    context: &Context<'_>,
    table: &Table,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> Status {
    match table.delete(context.participant, hash, operation.key, condition(operation), context.now_ms) {
        Ok(true) => done(operation, 0, response),
        Ok(false) => {
            encode_operation(&operation.answer(Status::NotFound), response);
            Status::NotFound
        }
        Err(StoreError::Conflict) => conflict(context, table, operation, hash, response),
        Err(error) => refuse_store(operation, error, response),
    }
}

/// The answer to a write whose condition did not hold, with the version that the record has by now, so that its writer need not ask.
/// To delete what is not there asks for nothing, whatever its version should have been.
#[cold]
fn conflict(
    context: &Context<'_>,
    table: &Table,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> Status {
    let found =
        table.get(&context.participant.guard(), hash, operation.key, context.now_ms).map(|record| record.version());
    let status = if operation.op == Op::Delete && found.is_none() { Status::NotFound } else { Status::Conflict };
    encode_operation(&Operation { number: found.unwrap_or(0), ..operation.answer(status) }, response);
    status
}

fn increment(
    context: &Context<'_>,
    table: &Table,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> Status {
    match table.increment(context.participant, hash, operation.key, operation.number as i64, context.now_ms) {
        Ok((sum, _)) => done(operation, sum as u64, response),
        Err(error) => refuse_store(operation, error, response),
    }
}

fn done(operation: &Operation<'_>, number: u64, response: &mut Vec<u8>) -> Status {
    encode_operation(&Operation { number, ..operation.answer(Status::Ok) }, response);
    Status::Ok
}

/// The answer to what the store refused. A conflict needs no text: it is part of normal work.
fn refuse_store(operation: &Operation<'_>, error: StoreError, response: &mut Vec<u8>) -> Status {
    let status = match error {
        StoreError::Conflict => {
            encode_operation(&operation.answer(Status::Conflict), response);
            return Status::Conflict;
        }
        StoreError::OutOfMemory | StoreError::NoMemory | StoreError::StillRead => Status::OutOfMemory,
        StoreError::KeyTooLarge | StoreError::ValueTooLarge => Status::TooLarge,
        StoreError::NotANumber => Status::NotANumber,
        StoreError::WrongServer => Status::WrongServer,
    };
    refuse(operation, status, &error.to_string(), response)
}

/// Reads many records: hashes and prefetches a batch of keys, then reads it, so that the cache misses overlap.
fn multi_get(context: &Context<'_>, table: &Table, operation: &Operation<'_>, response: &mut Vec<u8>) -> Status {
    let guard = context.participant.guard();
    let start = response.len();
    response.resize(start + OP_HEADER_LEN, 0);
    let mut keys = Keys::new(operation.number, operation.value);
    let mut found = 0;
    loop {
        let mut batch: ArrayVec<(u64, &[u8]), PLAN> = ArrayVec::new();
        for key in keys.by_ref().take(PLAN) {
            let Ok(key) = key else {
                response.truncate(start);
                return refuse(operation, Status::Malformed, KEYS_TEXT, response);
            };
            let hash = table.hash(key);
            table.prefetch_bucket(hash);
            batch.push((hash, key));
        }
        if batch.is_empty() {
            break;
        }
        table.prefetch_records(&guard, batch.iter().map(|(hash, _)| *hash));
        for (hash, key) in batch {
            let Some(there) = append_record(table, &guard, hash, key, context.now_ms, response) else {
                response.truncate(start);
                return refuse(operation, Status::TooLarge, FULL, response);
            };
            found += u64::from(there);
        }
    }
    end_multi_get(context, operation, start, found, response)
}

/// What a multiget is told whose value is not what it should be.
const KEYS_TEXT: &str = "a multiget's value is as many keys as its number says, each length (4 bytes) and bytes";

/// Writes the header of a multiget's answer, which has `found` records.
fn end_multi_get(
    context: &Context<'_>,
    operation: &Operation<'_>,
    start: usize,
    found: u64,
    response: &mut [u8],
) -> Status {
    context.counters.records_read.add(found);
    let answer = Operation { number: found, ..operation.answer(Status::Ok) };
    let header = op_header(&answer, 0, response.len() - start - OP_HEADER_LEN);
    response[start..start + OP_HEADER_LEN].copy_from_slice(&header);
    Status::Ok
}

/// Reads many records as they were at one moment.
fn get_at_once(context: &Context<'_>, table: &Table, operation: &Operation<'_>, response: &mut Vec<u8>) -> Status {
    let mut keys = Vec::new();
    for key in Keys::new(operation.number, operation.value) {
        let Ok(key) = key else { return refuse(operation, Status::Malformed, KEYS_TEXT, response) };
        let hash = table.hash(key);
        if !table.owns(hash) {
            return refuse_store(operation, StoreError::WrongServer, response);
        }
        table.prefetch_bucket(hash);
        keys.push((hash, key));
    }
    let guard = context.participant.guard();
    table.prefetch_records(&guard, keys.iter().map(|(hash, _)| *hash));
    let records = snapshot(context.participant, &guard, table, &keys, context.now_ms);
    let start = response.len();
    response.resize(start + OP_HEADER_LEN, 0);
    for record in &records {
        if !append_answer(record.as_ref(), Answer::NOT_FOUND, response) {
            response.truncate(start);
            return refuse(operation, Status::TooLarge, FULL, response);
        }
    }
    let found = records.iter().flatten().count() as u64;
    end_multi_get(context, operation, start, found, response)
}

/// Appends one record of a multiget's answer; tells whether there was one, `None` if there is no room for it.
fn append_record(
    table: &Table,
    guard: &Guard<'_>,
    hash: u64,
    key: &[u8],
    now_ms: u64,
    response: &mut Vec<u8>,
) -> Option<bool> {
    let record = if table.owns(hash) { table.get(guard, hash, key, now_ms) } else { None };
    let status = if table.owns(hash) { Status::NotFound } else { Status::WrongServer };
    let absent = Answer { status, ..Answer::NOT_FOUND };
    append_answer(record.as_ref(), absent, response).then_some(record.is_some())
}

/// Appends a record, or that there is none; tells whether there was room for it.
#[inline]
fn append_answer(record: Option<&RecordRef<'_>>, absent: Answer<'_>, response: &mut Vec<u8>) -> bool {
    let answer = record.map_or(absent, |record| Answer {
        status: Status::Ok,
        user_flags: record.flags(),
        version: record.version(),
        value: record.value(),
    });
    let fits = has_room(response, answer.encoded_len());
    if fits {
        push_answer(response, &answer);
    }
    fits
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use sandstorm_metrics::Metrics;
    use sandstorm_store::{Epochs, Mode, TableConfig};

    #[test]
    fn a_write_owes_a_request_for_each_record_that_it_evicts() {
        const SMALL: usize = 1_000;
        let (epochs, metrics) = (Epochs::new(), Metrics::new(1));
        let config = TableConfig { mode: Mode::Cache, quota_bytes: 200_000, ..TableConfig::default() };
        let table = Table::with_seed(config, Arc::clone(&epochs), 1);
        let participant = epochs.register();
        let put = |key: &[u8], value: &[u8]| {
            let (ranges, counters) = (Ranges::new(), metrics.worker(0).expect("a worker"));
            let context = Context { participant: &participant, now_ms: 1, counters, ranges: &ranges, packet: None };
            let operation = Operation { key, value, ..Operation::new(Op::Put) };
            let before = table.stats().evictions;
            let status = run(&context, &table, &operation, table.hash(key), (&mut Vec::new(), None));
            assert_eq!(status, Status::Ok);
            (u64::from(ranges.owed()), table.stats().evictions - before)
        };
        for number in 0..SMALL as u32 {
            let (owed, _) = put(&number.to_le_bytes(), &[1; 100]);
            assert!(owed < 8, "there is room, and growing takes a few: {owed}");
        }
        assert_eq!(put(&0_u32.to_le_bytes(), &[2; 100]), (0, 0), "what is replaced is the write itself");
        let (owed, evicted) = put(b"large", &[3; 150_000]);
        assert!(evicted > SMALL as u64 / 2 && owed + 1 >= evicted, "{owed} of {evicted}");
    }
}
