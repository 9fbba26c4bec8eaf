//! When a record expires: to be read, and to be changed without its value.

use sandstorm_net::rpc::{Operation, RpcStatus, encode_operation};
use sandstorm_store::{RecordTable, RecordUpdate, UpdateValue, expiry_ms};

use super::operation_context::OperationContext;
use super::{encode_done, encode_store_error, encode_wrong_server};

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
    let expires_at_ms = if operation.number == 0 { 0 } else { expiry_ms(context.now_ms, operation.number) };
    let touched = table.update(context.participant, hash, operation.key, context.now_ms, |found| match found {
        None => RecordUpdate::Keep(false),
        Some(record) => {
            let (value, flags) = (UpdateValue::unchanged(&record), record.flags());
            RecordUpdate::Put { value, flags, expires_at_ms, answer: true }
        }
    });
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
