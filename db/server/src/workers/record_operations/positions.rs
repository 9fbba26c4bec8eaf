//! Positions among the keys of ordered tables: counts, ranks, and the key at a position.

use sandstorm_net::rpc::{MAX_KEY_LEN, OP_HEADER_LEN, OpKind, Operation, RpcStatus, encode_operation};
use sandstorm_store::{KeyRange, NotOrdered, RecordTable};

use super::encode_done;
use super::operation_context::OperationContext;
use super::range::{encode_long_end, encode_not_ordered};
use crate::limits::POSITION_KEY_BYTES_PER_REQUEST;
use crate::workers::operation_response::{RESPONSE_FULL_TEXT, encode_refusal, has_room};

/// Answers a count, a rank or an nth. It looks for no records: a key whose record has expired counts until that is
/// removed.
pub(super) fn run(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let Operation { key, value, number, .. } = *operation;
    if value.len() > MAX_KEY_LEN + 1 {
        return encode_long_end(operation, response);
    }
    // Admission has counted the way through the tree.
    context.ranges.owe((key.len() + value.len()) / POSITION_KEY_BYTES_PER_REQUEST);
    let answered = match operation.op {
        OpKind::Nth => return nth(context, table, operation, number, response),
        // As an end the empty key would stand for none; before it there is nothing.
        OpKind::Rank if key.is_empty() => table.count_keys(&KeyRange::new(b"", &[0], false)).map(|_| 0),
        OpKind::Rank => table.count_keys(&KeyRange::new(b"", key, false)),
        _ => table.count_keys(&KeyRange::new(key, value, false)),
    };
    table.note_all_read(context.participant.shown());
    match answered {
        Ok(keys) => encode_done(operation, keys, response),
        Err(NotOrdered) => encode_not_ordered(operation, "positions", response),
    }
}

fn nth(
    context: &OperationContext<'_>,
    table: &RecordTable,
    operation: &Operation<'_>,
    position: u64,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let found = table.key_at(position);
    table.note_all_read(context.participant.shown());
    match found {
        Ok(Some(key)) if !has_room(response, OP_HEADER_LEN + key.len()) => {
            encode_refusal(operation, RpcStatus::TooLarge, RESPONSE_FULL_TEXT, response)
        }
        Ok(Some(key)) => {
            encode_operation(&Operation { value: &key, ..operation.answer(RpcStatus::Ok) }, response);
            RpcStatus::Ok
        }
        Ok(None) => {
            encode_operation(&operation.answer(RpcStatus::NotFound), response);
            RpcStatus::NotFound
        }
        Err(NotOrdered) => encode_not_ordered(operation, "positions", response),
    }
}
