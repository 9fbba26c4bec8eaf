//! Plain operations: get, multiget, put, delete, increment, range, positions, expiry. Each appends exactly one answer
//! to the response.

pub(super) mod commit;
mod expiry;
pub(super) mod operation_context;
mod positions;
mod range;

use arrayvec::ArrayVec;
use sandstorm_net::rpc::{
    self, MultiGetEntry, MultiGetKeys, OP_FLAG_SNAPSHOT, OP_HEADER_LEN, OpKind, Operation, RpcStatus,
    encode_op_header_with_lens, encode_operation, push_multiget_entry, split_ttl,
};
use sandstorm_net::shared_bytes::SharedBytes;

use self::operation_context::OperationContext;
use super::operation_response::{RESPONSE_FULL_TEXT, encode_refusal, has_room};
use sandstorm_catalog::{AccessError, TenantView};
use sandstorm_dialects::limits::PLAN_OPERATIONS;
use sandstorm_log::LogRefusal;
use sandstorm_store::backed::BackingRefusal;
use sandstorm_store::limits::ZERO_COPY_MIN_VALUE_BYTES;
use sandstorm_store::spill::SpillRefusal;
use sandstorm_store::transactions::snapshot;
use sandstorm_store::{EpochGuard, RecordRef, RecordTable, StoreCondition, StoreError, WriteOptions, expiry_ms};

/// Whether an operation changes records.
#[inline]
pub(crate) fn writes(op: OpKind) -> bool {
    matches!(op, OpKind::Put | OpKind::Delete | OpKind::Increment | OpKind::Touch)
}

/// The text for a write to a table that was granted for reading.
const READ_ONLY_TEXT: &str = "the table was granted for reading only; its owner may grant it with --read-write";
/// The text for a table that the tenant has not.
const UNKNOWN_TABLE_TEXT: &str = "the tenant has no table of this id; `sandstorm table list` shows those there are";

/// Appends the answer to an operation on a table that the tenant may not access, or not for writing.
#[cold]
pub(crate) fn encode_table_error(view: &TenantView, operation: &Operation<'_>, response: &mut Vec<u8>) -> RpcStatus {
    let (status, text) = match view.reach(operation.table, writes(operation.op)) {
        Err(AccessError::ReadOnly) => (RpcStatus::ReadOnly, READ_ONLY_TEXT),
        // A grant that was widened since the table was looked up is no reason to retry here: the client may.
        Err(AccessError::Unknown) | Ok(_) => (RpcStatus::UnknownTable, UNKNOWN_TABLE_TEXT),
    };
    encode_refusal(operation, status, text, response)
}

/// The buffers of an answer: its bytes and, if there is one, the slot for a value that is sent from its record.
pub(crate) type ResponseParts<'r> = (&'r mut Vec<u8>, Option<&'r mut Option<SharedBytes>>);

/// Runs one plain operation whose key hashes to `hash` and appends its answer.
pub(crate) fn run(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    hash: u64,
    (response, tail): ResponseParts<'_>,
) -> RpcStatus {
    match operation.op {
        OpKind::Get => get(context, table, operation, hash, (response, tail)),
        OpKind::MultiGet if operation.flags & OP_FLAG_SNAPSHOT != 0 => {
            get_snapshot(context, table, operation, response)
        }
        OpKind::MultiGet => multi_get(context, table, operation, response),
        OpKind::Put => charge_evictions(context, || put(context, table, operation, hash, response)),
        OpKind::Delete => charge_evictions(context, || delete(context, table, operation, hash, response)),
        OpKind::Increment => charge_evictions(context, || increment(context, table, operation, hash, response)),
        OpKind::Range => range::run(context, table, operation, response),
        OpKind::Count | OpKind::Rank | OpKind::Nth => positions::run(context, table, operation, response),
        OpKind::Ttl => expiry::ttl(context, table, operation, hash, response),
        OpKind::Touch => charge_evictions(context, || expiry::touch(context, table, operation, hash, response)),
        OpKind::Ping | OpKind::Hello | OpKind::Invoke | OpKind::Commit => {
            encode_refusal(operation, RpcStatus::Malformed, "not an operation on a record", response)
        }
    }
}

fn get(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    hash: u64,
    (response, tail): ResponseParts<'_>,
) -> RpcStatus {
    if !table.owns(operation.key) {
        return encode_wrong_server(table, operation, operation.key, response);
    }
    let guard = context.participant.guard();
    let found = table.get(&guard, hash, operation.key, context.now_ms);
    context.counters.records_read.add(u64::from(found.is_some()));
    if found.as_ref().is_some_and(|record| !has_room(response, record.value().len())) {
        return encode_refusal(operation, RpcStatus::TooLarge, RESPONSE_FULL_TEXT, response);
    }
    let answer = match &found {
        Some(record) => Operation {
            user_flags: record.flags(),
            number: record.version(),
            value: record.value(),
            ..operation.answer(RpcStatus::Ok)
        },
        None => operation.answer(RpcStatus::NotFound),
    };
    if answer.value.len() >= ZERO_COPY_MIN_VALUE_BYTES
        && let (Some(tail), Some(record)) = (tail, &found)
        && let Some(share) = record.share()
    {
        response.extend_from_slice(&encode_op_header_with_lens(&answer, 0, share.len()));
        *tail = Some(share);
        return answer.status;
    }
    encode_operation(&answer, response);
    answer.status
}

/// The condition that an operation asks for.
fn condition(operation: &Operation<'_>) -> StoreCondition {
    match operation.condition {
        rpc::Condition::Always => StoreCondition::Always,
        rpc::Condition::Absent => StoreCondition::Absent,
        rpc::Condition::Present => StoreCondition::Present,
        rpc::Condition::Version => StoreCondition::Version(operation.number),
    }
}

/// Runs a write, and bills a request for each record that it evicted: thousands, in a full cache.
fn charge_evictions(context: &OperationContext<'_>, write: impl FnOnce() -> RpcStatus) -> RpcStatus {
    let before = context.participant.retired();
    let status = write();
    // One is what it replaced itself.
    context.ranges.owe((context.participant.retired() - before).saturating_sub(1) as usize);
    status
}

fn put(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let Ok((ttl_ms, value)) = split_ttl(operation) else {
        let text = "a put with an expiry starts with 8 bytes of milliseconds";
        return encode_refusal(operation, RpcStatus::Malformed, text, response);
    };
    let expires_at_ms = match ttl_ms {
        None | Some(0) => 0,
        Some(ttl_ms) => expiry_ms(context.now_ms, ttl_ms),
    };
    let write = WriteOptions { condition: condition(operation), flags: operation.user_flags, expires_at_ms };
    let outside = context.packet.as_ref().and_then(|packet| packet.share(value));
    let put = match &outside {
        None => table.put(context.participant, hash, operation.key, value, &write, context.now_ms),
        Some(value) => table.put_shared(context.participant, hash, operation.key, value, &write, context.now_ms),
    };
    match put {
        Ok(version) => encode_done(operation, version, response),
        Err(StoreError::Conflict) => encode_conflict(context, table, operation, hash, response),
        Err(StoreError::ValueTooLarge) => {
            encode_refusal(operation, RpcStatus::TooLarge, &too_long_text(table, value), response)
        }
        Err(error) => encode_store_error(table, operation, error, response),
    }
}

/// The reason that a value is refused for its length.
fn too_long_text(table: &RecordTable, value: &[u8]) -> String {
    let (bytes, most) = (value.len(), table.max_value_len());
    format!("a value of {bytes} bytes is longer than the table allows: {most} at most")
}

fn delete(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> RpcStatus {
    match table.delete(context.participant, hash, operation.key, condition(operation), context.now_ms) {
        Ok(true) => encode_done(operation, 0, response),
        Ok(false) => {
            encode_operation(&operation.answer(RpcStatus::NotFound), response);
            RpcStatus::NotFound
        }
        Err(StoreError::Conflict) => encode_conflict(context, table, operation, hash, response),
        Err(error) => encode_store_error(table, operation, error, response),
    }
}

/// The answer to a write whose condition did not hold, with the record's current version, so that its writer need not
/// read it. Deleting an absent record always succeeds, whatever the expected version was.
#[cold]
fn encode_conflict(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let found =
        table.get(&context.participant.guard(), hash, operation.key, context.now_ms).map(|record| record.version());
    let status =
        if operation.op == OpKind::Delete && found.is_none() { RpcStatus::NotFound } else { RpcStatus::Conflict };
    encode_operation(&Operation { number: found.unwrap_or(0), ..operation.answer(status) }, response);
    status
}

fn increment(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> RpcStatus {
    match table.increment(context.participant, hash, operation.key, operation.number as i64, context.now_ms) {
        Ok((sum, _)) => encode_done(operation, sum as u64, response),
        Err(error) => encode_store_error(table, operation, error, response),
    }
}

fn encode_done(operation: &Operation<'_>, number: u64, response: &mut Vec<u8>) -> RpcStatus {
    encode_operation(&Operation { number, ..operation.answer(RpcStatus::Ok) }, response);
    RpcStatus::Ok
}

/// The answer to a refusal of the store. A conflict needs no text: it is part of normal work.
fn encode_store_error(
    table: &RecordTable,
    operation: &Operation<'_>,
    error: StoreError,
    response: &mut Vec<u8>,
) -> RpcStatus {
    match error {
        StoreError::Conflict => {
            encode_operation(&operation.answer(RpcStatus::Conflict), response);
            RpcStatus::Conflict
        }
        StoreError::WrongServer => encode_wrong_server(table, operation, operation.key, response),
        StoreError::NotANumber => {
            let text = not_a_number_text(operation.key);
            encode_refusal(operation, RpcStatus::NotANumber, &text, response)
        }
        _ => encode_refusal(operation, store_error_status(error), &error.to_string(), response),
    }
}

/// The text for an increment of what is no number, with as much of the key as tells which it is: of a message of many
/// increments nobody else does.
#[cold]
fn not_a_number_text(key: &[u8]) -> String {
    /// Bytes of a key that the text shows.
    const SHOWN_BYTES: usize = 64;
    let shown = key.get(..SHOWN_BYTES).unwrap_or(key).escape_ascii();
    let more = if key.len() > SHOWN_BYTES { "…" } else { "" };
    format!("the value under the key \"{shown}{more}\" is not a decimal number, or the sum does not fit in 64 bits")
}

/// The status that a refusal of the store is.
fn store_error_status(error: StoreError) -> RpcStatus {
    match error {
        StoreError::Conflict => RpcStatus::Conflict,
        StoreError::NotBacked(BackingRefusal::ReadOnly) => RpcStatus::ReadOnly,
        StoreError::NotBacked(_) => RpcStatus::NotBacked,
        // The disk is only slow: the client may ask again.
        StoreError::NotLogged(LogRefusal::Busy) | StoreError::NotSpilled(SpillRefusal::Slow) | StoreError::Cold => {
            RpcStatus::Overloaded
        }
        StoreError::OutOfMemory
        | StoreError::NoMemory
        | StoreError::ReclaimPressure
        | StoreError::NotLogged(_)
        | StoreError::NotSpilled(_) => RpcStatus::OutOfMemory,
        StoreError::KeyTooLarge | StoreError::ValueTooLarge => RpcStatus::TooLarge,
        StoreError::NotANumber => RpcStatus::NotANumber,
        StoreError::WrongServer => RpcStatus::WrongServer,
    }
}

/// The answer to an operation on a key that another server owns: its number is the epoch of the map, its value says
/// where the key is.
#[cold]
fn encode_wrong_server(
    table: &RecordTable,
    operation: &Operation<'_>,
    key: &[u8],
    response: &mut Vec<u8>,
) -> RpcStatus {
    let (epoch, text) = table.slots().map(|slots| slots.wrong_server(key)).unwrap_or_default();
    let value = if has_room(response, OP_HEADER_LEN + text.len()) { text.as_bytes() } else { &[] };
    encode_operation(&Operation { number: epoch, value, ..operation.answer(RpcStatus::WrongServer) }, response);
    RpcStatus::WrongServer
}

/// Reads many records: hashes and prefetches a batch of keys, then reads it, so that the cache misses overlap.
fn multi_get(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let guard = context.participant.guard();
    let start = response.len();
    response.resize(start + OP_HEADER_LEN, 0);
    let mut keys = MultiGetKeys::new(operation.number, operation.value);
    let mut found = 0;
    loop {
        let mut batch: ArrayVec<(u64, &[u8]), PLAN_OPERATIONS> = ArrayVec::new();
        for key in keys.by_ref().take(PLAN_OPERATIONS) {
            let Ok(key) = key else {
                response.truncate(start);
                return encode_refusal(operation, RpcStatus::Malformed, KEYS_TEXT, response);
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
                return encode_refusal(operation, RpcStatus::TooLarge, RESPONSE_FULL_TEXT, response);
            };
            found += u64::from(there);
        }
    }
    end_multi_get(context, operation, start, found, response)
}

/// The text for a multiget whose value is malformed.
const KEYS_TEXT: &str = "a multiget's value is as many keys as its number says, each length (4 bytes) and bytes";

/// Writes the header of a multiget's answer, which has `found` records.
fn end_multi_get(
    context: &OperationContext<'_>,
    operation: &Operation<'_>,
    start: usize,
    found: u64,
    response: &mut [u8],
) -> RpcStatus {
    context.counters.records_read.add(found);
    let answer = Operation { number: found, ..operation.answer(RpcStatus::Ok) };
    let header = encode_op_header_with_lens(&answer, 0, response.len() - start - OP_HEADER_LEN);
    response[start..start + OP_HEADER_LEN].copy_from_slice(&header);
    RpcStatus::Ok
}

/// Reads many records as they were at one moment.
fn get_snapshot(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let mut keys = Vec::new();
    for key in MultiGetKeys::new(operation.number, operation.value) {
        let Ok(key) = key else { return encode_refusal(operation, RpcStatus::Malformed, KEYS_TEXT, response) };
        let hash = table.hash(key);
        if !table.owns(key) {
            return encode_wrong_server(table, operation, key, response);
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
        if !append_answer(record.as_ref(), MultiGetEntry::NOT_FOUND, response) {
            response.truncate(start);
            return encode_refusal(operation, RpcStatus::TooLarge, RESPONSE_FULL_TEXT, response);
        }
    }
    let found = records.iter().flatten().count() as u64;
    end_multi_get(context, operation, start, found, response)
}

/// Appends one record of a multiget's answer. Returns whether it exists; `None` if it does not fit.
fn append_record(
    table: &RecordTable,
    guard: &EpochGuard<'_>,
    hash: u64,
    key: &[u8],
    now_ms: u64,
    response: &mut Vec<u8>,
) -> Option<bool> {
    // Looked at once: it may change meanwhile.
    let is_owner = table.owns(key);
    let record = if is_owner { table.get(guard, hash, key, now_ms) } else { None };
    let status = if is_owner { RpcStatus::NotFound } else { RpcStatus::WrongServer };
    let absent = MultiGetEntry { status, ..MultiGetEntry::NOT_FOUND };
    append_answer(record.as_ref(), absent, response).then_some(record.is_some())
}

/// Appends a record, or that there is none. Returns whether it fitted.
#[inline]
fn append_answer(record: Option<&RecordRef<'_>>, absent: MultiGetEntry<'_>, response: &mut Vec<u8>) -> bool {
    let answer = record.map_or(absent, |record| MultiGetEntry {
        status: RpcStatus::Ok,
        user_flags: record.flags(),
        version: record.version(),
        value: record.value(),
    });
    let fits = has_room(response, answer.encoded_len());
    if fits {
        push_multiget_entry(response, &answer);
    }
    fits
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::operation_context::RangeWork;
    use super::*;
    use sandstorm_metrics::ServerMetrics;
    use sandstorm_store::{Epochs, StorageMode, TableConfig};

    #[test]
    fn a_write_owes_a_request_for_each_record_that_it_evicts() {
        const SMALL: usize = 1_000;
        let (epochs, metrics) = (Epochs::new(), ServerMetrics::new(1));
        let config = TableConfig { mode: StorageMode::Cache, quota_bytes: 200_000, ..TableConfig::default() };
        let table = RecordTable::with_seed(config, Arc::clone(&epochs), 1);
        let participant = epochs.register();
        let put = |key: &[u8], value: &[u8]| {
            let (ranges, counters) = (RangeWork::new(), metrics.worker(0).expect("a worker"));
            let context =
                OperationContext { participant: &participant, now_ms: 1, counters, ranges: &ranges, packet: None };
            let operation = Operation { key, value, ..Operation::new(OpKind::Put) };
            let before = table.stats().evictions;
            let status = run(&context, &table, &operation, table.hash(key), (&mut Vec::new(), None));
            assert_eq!(status, RpcStatus::Ok);
            (u64::from(ranges.deferred_requests()), table.stats().evictions - before)
        };
        for number in 0..SMALL as u32 {
            let (deferred_requests, _) = put(&number.to_le_bytes(), &[1; 100]);
            assert!(deferred_requests < 8, "there is room, and growing takes a few: {deferred_requests}");
        }
        assert_eq!(put(&0_u32.to_le_bytes(), &[2; 100]), (0, 0), "what is replaced is the write itself");
        let (deferred_requests, evicted) = put(b"large", &[3; 150_000]);
        assert!(evicted > SMALL as u64 / 2 && deferred_requests + 1 >= evicted, "{deferred_requests} of {evicted}");
    }
}
