//! Answers to who has not shown who it is. The sender's address of a datagram can be forged, so such an answer must be
//! of no use against whoever has that address: it is one packet that every way bears, never longer than what asked for
//! it, sent once for each time that all of it was asked, and there is a bound on how many leave.

use sandstorm_net::r2p2::ReceivedMessage;
use sandstorm_net::rpc::{MESSAGE_HEADER_LEN, OP_HEADER_LEN};

use crate::limits::{REJECTION_BURST, REJECTIONS_PER_S, UNAUTHENTICATED_MESSAGE_BYTES};

/// What a port may still send of them.
#[derive(Debug, Default)]
pub(super) struct RejectionLimiter {
    /// From when on the rate is fully recovered, in the workers' microseconds.
    recovered_us: u64,
    unsent: u64,
}

impl RejectionLimiter {
    /// Whether one more may leave, as an answer of so many bytes to a message of so many.
    pub(super) fn admits(&mut self, now_us: u64, answer: usize, asked: usize) -> bool {
        const EACH_US: u64 = 1_000_000 / REJECTIONS_PER_S;
        let next_us = self.recovered_us.max(now_us) + EACH_US;
        if answer > asked.min(UNAUTHENTICATED_MESSAGE_BYTES) || next_us > now_us + REJECTION_BURST * EACH_US {
            self.unsent += 1;
            return false;
        }
        self.recovered_us = next_us;
        true
    }

    /// Those that did not leave.
    pub(super) fn unsent(&self) -> u64 {
        self.unsent
    }
}

/// What who names no tenant is told whose pings are not short.
pub(super) const LONG_PING: &str = "a ping without a tenant has to fit one small packet";

/// Whether pings of somebody who names no tenant are answered: they came in one packet, and their answer is no longer
/// than such may be.
pub(super) fn fits_one_packet(message: &ReceivedMessage<'_>) -> bool {
    matches!(message, ReceivedMessage::Datagram(_)) && message.len() <= UNAUTHENTICATED_MESSAGE_BYTES
}

/// Bytes that the answer to a message may have: as many as came. Of those of several packets acks have left already,
/// one for each at most, all with headers of their own.
pub(super) fn reply_limit_bytes(message: &ReceivedMessage<'_>) -> usize {
    const ACKED: usize = 64;
    match message {
        ReceivedMessage::Datagram(bytes) => bytes.len(),
        ReceivedMessage::Reassembled(bytes) => bytes.len().saturating_sub(ACKED),
    }
}

/// Operations of a refusal's answer: all that were asked for if that fits, with a text, what an answer to strangers may
/// have; else one that stands for all.
pub(super) fn reply_operations(asked: u16) -> u16 {
    const FIT: u16 = 8;
    if asked <= FIT { asked } else { 1 }
}

/// As much of a text as fits into the answer to a message of `reply_limit_bytes` bytes; nothing if that would not make
/// sense.
pub(super) fn truncate_to_fit(text: &str, asked: usize, operations: u16) -> &str {
    const LEAST: usize = 16;
    let room = asked
        .min(UNAUTHENTICATED_MESSAGE_BYTES)
        .saturating_sub(MESSAGE_HEADER_LEN + usize::from(operations) * OP_HEADER_LEN);
    let end = (0..=room.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let cut = text.get(..end).unwrap_or_default();
    if cut.len() < text.len().min(LEAST) { "" } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

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
