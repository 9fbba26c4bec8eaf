//! When a record expires: to be read, and to be changed without its value.

use std::cell::Cell;

use sandstorm_net::rpc::{Condition, Operation, RpcStatus, encode_operation};
use sandstorm_store::{RecordTable, RecordUpdate, UpdateValue, expiry_ms};

use super::operation_context::OperationContext;
use super::{encode_done, encode_store_error, encode_wrong_server};
use crate::limits::COPY_BYTES_PER_GET;
use crate::workers::operation_response::encode_refusal;

/// Answers how long a record has left, in milliseconds; 0: it does not expire.
pub(super) fn ttl(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> RpcStatus {
    if !table.owns(operation.key) {
        return encode_wrong_server(table, operation, operation.key, response);
    }
    let guard = context.participant.guard();
    let found = table.get(&guard, hash, operation.key, context.now_ms);
    match found.map(|record| record.expires_at_ms()) {
        Some(0) => encode_done(operation, 0, response),
        Some(at_ms) => encode_done(operation, at_ms.saturating_sub(context.now_ms).max(1), response),
        None => encode_absent(operation, response),
    }
}

/// Lets a record expire after as many milliseconds as the operation says; 0: never.
pub(super) fn touch(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> RpcStatus {
    if operation.condition != Condition::Always {
        // One of later, which must not be run as if it had none.
        return encode_refusal(operation, RpcStatus::Malformed, "a touch has no condition", response);
    }
    // The value is not asked for, but it may be copied, and is in the log: that is work and room as of a put.
    let rewritten = Cell::new(0);
    let expires_at_ms = if operation.number == 0 { 0 } else { expiry_ms(context.now_ms, operation.number) };
    let touched = table.update(context.participant, hash, operation.key, context.now_ms, |found| match found {
        None => RecordUpdate::Keep(false),
        Some(record) => {
            let (value, flags) = (UpdateValue::unchanged(&record), record.flags());
            rewritten.set(if table.is_logged() { record.value().len() } else { value.copied_bytes() });
            RecordUpdate::Put { value, flags, expires_at_ms, answer: true }
        }
    });
    context.ranges.owe(rewritten.get() / COPY_BYTES_PER_GET);
    match touched {
        Ok((true, version)) => encode_done(operation, version, response),
        Ok((false, _)) => encode_absent(operation, response),
        Err(error) => encode_store_error(table, operation, error, response),
    }
}

fn encode_absent(operation: &Operation<'_>, response: &mut Vec<u8>) -> RpcStatus {
    encode_operation(&operation.answer(RpcStatus::NotFound), response);
    RpcStatus::NotFound
}
