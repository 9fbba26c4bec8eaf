//! Refusals in the words of the text protocol.

use sandstorm_net::memcached::TOO_LARGE;
use sandstorm_net::memcached::binary::{BinaryResponseHeader, BinaryStatus};

use super::super::answers::{
    EXISTS, NO_TABLE, NO_TENANT, NOT_FOUND, NOT_NUMERIC, NOT_OWNER, NOT_STORED, READ_ONLY, UNAUTHENTICATED,
};

/// The prefix of texts for people; here the status carries its meaning.
pub(super) const SERVER_ERROR: &str = "SERVER_ERROR ";

/// The status for a text of the text protocol. Only memcached's own statuses are used, since clients close connections
/// over others; the text that follows has the details.
fn status_of(text: &str) -> BinaryStatus {
    match text {
        NOT_FOUND => BinaryStatus::NotFound,
        EXISTS => BinaryStatus::Exists,
        NOT_STORED => BinaryStatus::NotStored,
        TOO_LARGE => BinaryStatus::TooLarge,
        NOT_NUMERIC => BinaryStatus::NotANumber,
        READ_ONLY | NOT_OWNER | NO_TABLE | NO_TENANT | UNAUTHENTICATED => BinaryStatus::Unauthorized,
        _ => BinaryStatus::OutOfMemory,
    }
}

/// Appends a refusal in the words of the text protocol.
pub(in super::super) fn push_refusal(answer: BinaryResponseHeader<'_>, text: &str, out: &mut Vec<u8>) {
    let status = status_of(text);
    let message = text.strip_prefix(SERVER_ERROR).filter(|_| status != BinaryStatus::TooLarge);
    BinaryResponseHeader { status, cas: 0, extras: b"", key: b"", ..answer }
        .push(message.unwrap_or(status.text()).as_bytes(), out);
}
