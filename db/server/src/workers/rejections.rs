//! Limits of the answers to unauthenticated senders. A datagram's source address can be forged, so such an answer must
//! not be of use in an attack on that host. It is one packet that fits every path, never longer than the request. It is
//! sent once for each complete request, at a limited rate.

use sandstorm_net::r2p2::ReceivedMessage;
use sandstorm_net::rate_limiter::RateLimiter;
use sandstorm_net::rpc::{MESSAGE_HEADER_LEN, OP_HEADER_LEN, RpcStatus};

use crate::limits::{REJECTIONS, UNAUTHENTICATED_MESSAGE_BYTES};

/// The status and text of a rejection. They are the same whether the named tenant exists or not.
pub(super) type AuthRejection = (RpcStatus, &'static str);

/// For a message of a sealed session for another tenant.
pub(super) const WRONG_SESSION_TENANT: AuthRejection =
    (RpcStatus::Unauthenticated, "a sealed session acts only for the tenant whose token opened it");
/// For a message of a session that has shown no token.
pub(super) const HELLO_REQUIRED: AuthRejection = (
    RpcStatus::Unauthenticated,
    "the session has not shown the token of a tenant with this id: send a hello first, or check the id",
);
/// For a hello with a wrong token.
pub(super) const WRONG_TOKEN: AuthRejection =
    (RpcStatus::Unauthenticated, "no tenant has this id and this token: check both");

/// The text of an answer while the server is shutting down.
pub(super) const SHUTTING_DOWN: &str = "the server is shutting down and did not run this; ask again when it is back";

/// The rate limiter of one port's rejections.
#[derive(Debug, Default)]
pub(super) struct RejectionLimiter {
    limiter: RateLimiter,
    unsent: u64,
}

impl RejectionLimiter {
    /// Whether one more may be sent: an answer of `answer` bytes to a message of `request_bytes` bytes.
    pub(super) fn admits(&mut self, now_us: u64, answer: usize, request_bytes: usize) -> bool {
        let may = answer <= request_bytes.min(UNAUTHENTICATED_MESSAGE_BYTES) && self.limiter.admit(&REJECTIONS, now_us);
        self.unsent += u64::from(!may);
        may
    }

    /// Rejections that were not sent.
    pub(super) fn unsent(&self) -> u64 {
        self.unsent
    }
}

/// The text for long pings that name no tenant.
pub(super) const LONG_PING: &str = "a ping without a tenant has to fit one small packet";

/// Whether pings without a tenant are answered: they came in one packet, and their answer fits one.
pub(super) fn fits_one_packet(message: &ReceivedMessage<'_>) -> bool {
    matches!(message, ReceivedMessage::Datagram(_)) && message.len() <= UNAUTHENTICATED_MESSAGE_BYTES
}

/// The longest answer to a message, bytes: as long as the request. A request of several packets has had acks already,
/// at most one for each packet, each with a header of its own.
pub(super) fn reply_limit_bytes(message: &ReceivedMessage<'_>) -> usize {
    const ACKED: usize = 64;
    match message {
        ReceivedMessage::Datagram(bytes) => bytes.len(),
        ReceivedMessage::Reassembled(bytes) => bytes.len().saturating_sub(ACKED),
    }
}

/// The number of operations that a rejection answers: all of the request if they fit, with a text, into one packet;
/// else one that stands for all.
pub(super) fn reply_operations(request_bytes: u16) -> u16 {
    const FIT: u16 = 8;
    if request_bytes <= FIT { request_bytes } else { 1 }
}

/// As much of a text as fits into the answer to a message of `request_bytes` bytes; nothing if that would be too little
/// to make sense.
pub(super) fn truncate_to_fit(text: &str, request_bytes: usize, operations: u16) -> &str {
    const LEAST: usize = 16;
    let text_bytes = request_bytes
        .min(UNAUTHENTICATED_MESSAGE_BYTES)
        .saturating_sub(MESSAGE_HEADER_LEN + usize::from(operations) * OP_HEADER_LEN);
    let end = (0..=text_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let cut = text.get(..end).unwrap_or_default();
    if cut.len() < text.len().min(LEAST) { "" } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{REJECTION_BURST, REJECTIONS_PER_S};

    #[test]
    fn an_answer_is_not_longer_than_its_question_and_there_are_so_many_a_second() {
        let mut refusals = RejectionLimiter::default();
        assert!(!refusals.admits(0, 101, 100) && refusals.admits(0, 100, 100));
        assert!(!refusals.admits(0, UNAUTHENTICATED_MESSAGE_BYTES + 1, 10_000), "one packet");
        let left = (0..2_000_000).step_by(10).filter(|now_us| refusals.admits(*now_us, 1, 1)).count() as u64;
        assert!(
            (2 * REJECTIONS_PER_S..=2 * REJECTIONS_PER_S + REJECTION_BURST).contains(&left),
            "{left} in two seconds"
        );
        assert_eq!(refusals.unsent(), 200_003 - 1 - left);
    }

    #[test]
    fn a_text_is_cut_to_what_fits() {
        let headers = MESSAGE_HEADER_LEN + 2 * OP_HEADER_LEN;
        assert_eq!(truncate_to_fit("a text that is rather long", headers + 100, 2), "a text that is rather long");
        assert_eq!(truncate_to_fit("a text that is rather long", headers + 20, 2), "a text that is rathe");
        assert_eq!(truncate_to_fit("a text that is rather long", headers + 15, 2), "");
        assert_eq!(truncate_to_fit("a text that is rath\u{e9}r", headers + 20, 2), "a text that is rath");
        assert_eq!(truncate_to_fit("short", headers + 5, 2), "short");
        assert_eq!(truncate_to_fit("short", 0, 2), "");
        let most = MESSAGE_HEADER_LEN + 8 * OP_HEADER_LEN + truncate_to_fit(&"long ".repeat(1000), 10_000, 8).len();
        assert_eq!(most, UNAUTHENTICATED_MESSAGE_BYTES);
        assert_eq!(
            (reply_operations(1), reply_operations(8), reply_operations(9), reply_operations(1024)),
            (1, 8, 1, 1)
        );
    }
}
