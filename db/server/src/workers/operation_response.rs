//! The answer of one operation: its space in the response, and refusals.

use sandstorm_net::rpc::{OP_HEADER_LEN, Operation, RpcStatus, encode_operation};

use crate::limits::RESPONSE_BYTES;

/// Appends an answer with the text of an error; without it if the response is full.
pub(crate) fn encode_refusal(
    operation: &Operation<'_>,
    status: RpcStatus,
    text: &str,
    response: &mut Vec<u8>,
) -> RpcStatus {
    let text = if has_room(response, OP_HEADER_LEN + text.len()) { text } else { "" };
    encode_operation(&Operation { value: text.as_bytes(), ..operation.answer(status) }, response);
    status
}

/// The text of an answer that does not fit into the response.
pub(crate) const RESPONSE_FULL_TEXT: &str = "the response is as long as one can be; ask for less in one message";

/// Whether a response may grow by `bytes`.
pub(crate) fn has_room(response: &[u8], bytes: usize) -> bool {
    response.len() + bytes <= RESPONSE_BYTES
}
