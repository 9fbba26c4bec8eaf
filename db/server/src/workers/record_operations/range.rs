//! Ranges of ordered tables.

use sandstorm_api::limits::RANGE_LIMIT;
use sandstorm_net::rpc::{
    MAX_BODY_LEN, MAX_KEY_LEN, OP_FLAG_SNAPSHOT, OP_HEADER_LEN, Operation, RANGE_BACKWARD, RANGE_MORE, RangeEntry,
    RpcStatus, encode_op_header_with_lens, encode_operation, push_range_entry,
};

use super::operation_context::OperationContext;
use crate::limits::RESPONSE_BYTES;
use crate::workers::operation_response::{RESPONSE_FULL_TEXT, encode_refusal, has_room};
use sandstorm_dialects::limits::MULTIGET_KEYS;
use sandstorm_store::transactions::{RangeQuery, RangeSlice, read_range, snapshot_range};
use sandstorm_store::{KeyRange, NotOrdered, RecordRef, RecordTable};

/// Reads the beginning of a range: as much as is requested, as fits, and as one answer may have.
pub(super) fn run(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let limit = (operation.number & !RANGE_BACKWARD) as usize;
    if limit == 0 || limit > RANGE_LIMIT {
        let text = format!("a range's number is its limit, from 1 to {RANGE_LIMIT}, and bit 32 for backward");
        return encode_refusal(operation, RpcStatus::Malformed, &text, response);
    }
    if operation.value.len() > MAX_KEY_LEN + 1 {
        return encode_long_end(operation, response);
    }
    if context.ranges.scan_budget.get().is_exceeded() {
        return encode_refusal(operation, RpcStatus::TooLarge, KEY_BYTES_EXCEEDED_TEXT, response);
    }
    let guard = context.participant.guard();
    let span = KeyRange::new(operation.key, operation.value, operation.number & RANGE_BACKWARD != 0);
    let limit = limit.min(MULTIGET_KEYS as usize);
    let (begun, mut bytes) = (response.len() + OP_HEADER_LEN, 0);
    let mut fits = |index: usize, record: &RecordRef<'_>| {
        bytes = if index == 0 { 0 } else { bytes } + range_entry(record).encoded_len();
        begun + bytes <= RESPONSE_BYTES && bytes <= MAX_BODY_LEN
    };
    let (participant, now_ms) = (context.participant, context.now_ms);
    let wanted = RangeQuery { participant, guard: &guard, table, span, limit, now_ms };
    let read = if operation.flags & OP_FLAG_SNAPSHOT != 0 { snapshot_range } else { read_range };
    let mut scan_budget = context.ranges.scan_budget.get();
    let before = scan_budget.requests();
    let read = read(&wanted, &mut scan_budget, &mut fits);
    // Admission has counted as many as it may answer.
    let deferred_requests = (scan_budget.requests() - before).saturating_sub(limit + 1);
    context.ranges.owe(deferred_requests);
    context.ranges.scan_budget.set(scan_budget);
    match read {
        Ok(stretch) if stretch.none_fits() => {
            encode_refusal(operation, RpcStatus::TooLarge, RESPONSE_FULL_TEXT, response)
        }
        Ok(stretch) => answer(context, operation, &stretch, response),
        Err(NotOrdered) => encode_not_ordered(operation, "ranges", response),
    }
}

/// The answer to an operation on a range whose end no key can reach.
#[cold]
pub(super) fn encode_long_end(operation: &Operation<'_>, response: &mut Vec<u8>) -> RpcStatus {
    let text = format!("the end of a range is longer than a key may be: {MAX_KEY_LEN} bytes, and one");
    encode_refusal(operation, RpcStatus::TooLarge, &text, response)
}

/// The answer to an operation that needs an order of all keys, on a table that has none here.
#[cold]
pub(super) fn encode_not_ordered(operation: &Operation<'_>, what: &str, response: &mut Vec<u8>) -> RpcStatus {
    let table = operation.table;
    let text = format!(
        "table {table} is not ordered: {what} need one that was made with --ordered (sandstorm table create NAME --ordered), and whose keys are all on one server"
    );
    encode_refusal(operation, RpcStatus::Malformed, &text, response)
}

/// The text for a range if the message has scanned too many long keys, most of them expired.
const KEY_BYTES_EXCEEDED_TEXT: &str = "the ranges of this message have gone through as many bytes of keys as they may; ask for this one in another message";

fn range_entry<'g>(record: &RecordRef<'g>) -> RangeEntry<'g> {
    RangeEntry { key: record.key(), user_flags: record.flags(), version: record.version(), value: record.value() }
}

fn answer(
    context: &OperationContext<'_>,
    operation: &Operation<'_>,
    stretch: &RangeSlice<'_>,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let found = stretch.records.len() as u64;
    context.counters.records_read.add(found);
    let number = found | if stretch.on.is_some() { RANGE_MORE } else { 0 };
    let answer = Operation { number, ..operation.answer(RpcStatus::Ok) };
    if let Some(on) = stretch.on.filter(|_| found == 0) {
        if !has_room(response, OP_HEADER_LEN + on.len()) {
            return encode_refusal(operation, RpcStatus::TooLarge, RESPONSE_FULL_TEXT, response);
        }
        encode_operation(&Operation { key: on, ..answer }, response);
        return RpcStatus::Ok;
    }
    let start = response.len();
    response.resize(start + OP_HEADER_LEN, 0);
    stretch.records.iter().for_each(|record| push_range_entry(response, &range_entry(record)));
    let header = encode_op_header_with_lens(&answer, 0, response.len() - start - OP_HEADER_LEN);
    response[start..start + OP_HEADER_LEN].copy_from_slice(&header);
    RpcStatus::Ok
}

#[cfg(test)]
mod tests;
