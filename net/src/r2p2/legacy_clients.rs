//! R2P2 as it was published. There, messages of several packets have headers of 8 bytes, which do not say which message
//! a late packet belongs to. The first packet of such a request is sent alone, and the client waits for an ack before
//! it sends the others. It gets a drop, which it understands, instead of silence.

use super::header::{FLAG_FIRST, FLAG_LAST, MAGIC, R2p2Kind, SINGLE_HEADER_LEN, single_header};
use super::{DatagramSink, PeerAddr};
use crate::limits::LEGACY_DROPS;
use crate::rate_limiter::RateLimiter;

/// The id of a request of which `datagram` is the first packet of several.
fn legacy_first_packet(datagram: &[u8]) -> Option<u16> {
    let [MAGIC, length, kind, flags, high, low, _, _] = *datagram.first_chunk::<SINGLE_HEADER_LEN>()? else {
        return None;
    };
    let is_request = usize::from(length) == SINGLE_HEADER_LEN && kind >> 4 == R2p2Kind::Request as u8;
    let is_first = flags & (FLAG_FIRST | FLAG_LAST) == FLAG_FIRST;
    (is_request && is_first).then(|| u16::from_be_bytes([high, low]))
}

/// Answers a foreign datagram by a drop if it is such a packet. The sender's address may be forged: the drop is no
/// longer than any such packet, and the rate of drops is bounded.
#[cold]
pub(super) fn answer_legacy(
    drops: &mut RateLimiter,
    now_us: u64,
    peer: PeerAddr,
    datagram: &[u8],
    tx: &mut impl DatagramSink,
) {
    let Some(request_id) = legacy_first_packet(datagram) else { return };
    if drops.admit(&LEGACY_DROPS, now_us) {
        tx.send(peer, &[&single_header(R2p2Kind::Drop, request_id)]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ServerEndpoint;
    use super::super::header::{AckReport, R2p2Body, R2p2Packet, report_packet};
    use super::*;
    use crate::limits::{LEGACY_DROP_BURST, LEGACY_DROPS_PER_S, ServerLimits};
    use crate::rpc::{MessageHeader, OpKind, Operation, encode_message};

    type Sent = Vec<(PeerAddr, Vec<u8>)>;

    fn message(len: usize) -> Vec<u8> {
        let header = MessageHeader { flags: 0, operations: 1, tenant: 1, session: 1, sequence: 1, acked: 0 };
        let mut message = Vec::new();
        encode_message(&header, &[Operation { value: &vec![9; len], ..Operation::new(OpKind::Ping) }], &mut message);
        message
    }

    fn peer() -> PeerAddr {
        PeerAddr::from(([10, 0, 0, 2], 9000))
    }

    #[test]
    fn the_first_packet_of_several_is_answered_by_a_drop_of_eight_bytes_and_no_other_one_is() {
        let mut server = ServerEndpoint::new(ServerLimits::default());
        // As published: 14 bytes of payload in the first packet, then full ones; the order of the first is their
        // number.
        let packet = |flags, order| [&[0xCC, 8, 0, flags, 0x12, 0x34, 0, order][..], &[7; 14]].concat();
        for (datagram, is_answered) in [
            (packet(0x80, 3), true),
            (packet(0x80, 3)[..8].to_vec(), true),
            (packet(0x80, 3)[..7].to_vec(), false),
            (packet(0x00, 1), false),
            (packet(0x40, 2), false),
            // A response; feedback.
            ([&[0xCC, 8, 0x10, 0x80, 1, 2, 0, 3][..], &[7; 14]].concat(), false),
            ([&[0xCC, 8, 0x20, 0x80, 1, 2, 0, 3][..], &[7; 14]].concat(), false),
            // A drop is not answered: two servers whose addresses were forged would go on for ever.
            (single_header(R2p2Kind::Drop, 1).to_vec(), false),
        ] {
            let mut sent = Sent::new();
            assert!(server.receive(0, peer(), &datagram, &mut sent).is_none());
            let expected = is_answered.then(|| (peer(), vec![0xCC, 8, 0x40, 0xC0, 0x12, 0x34, 0, 1]));
            assert_eq!(sent, expected.into_iter().collect::<Sent>(), "{datagram:?}");
            assert!(sent.iter().all(|(_, drop)| drop.len() <= datagram.len()));
        }
        assert_eq!(server.usage(), Default::default());
    }

    #[test]
    fn drops_are_so_many_a_second() {
        let (mut drops, mut sent) = (RateLimiter::default(), Sent::new());
        let packet = [0xCC, 8, 0, 0x80, 0, 1, 0, 2];
        (0..2_000_000).step_by(10).for_each(|now_us| answer_legacy(&mut drops, now_us, peer(), &packet, &mut sent));
        let most = 2 * LEGACY_DROPS_PER_S;
        assert!((most..=most + LEGACY_DROP_BURST).contains(&(sent.len() as u64)), "{}", sent.len());
    }

    #[test]
    fn a_response_without_acks_is_given_up_and_sent_again_for_a_repeated_request() {
        let mut server = ServerEndpoint::new(ServerLimits::default());
        let (mut sent, response) = (Sent::new(), message(4000));
        let mut repeated = false;
        server.respond(0, peer(), 5, &response, &mut sent);
        for at_us in (0..6_000_000).step_by(1000) {
            let before = sent.len();
            server.poll_timers(at_us, &mut sent);
            if at_us > 2_500_000 && !repeated {
                assert_eq!((server.usage(), sent.len()), (Default::default(), before), "{at_us}");
                repeated = true;
                server.respond(at_us, peer(), 5, &response, &mut sent);
                assert!(sent.len() > before && server.usage().outgoing == 1);
            }
        }
        assert_eq!((server.usage(), server.counters().responses_timed_out), (Default::default(), 2));
        assert!(sent.len() < 60, "{}", sent.len());
        // A client that has acked a part has all the time there is.
        sent.clear();
        server.respond(0, peer(), 6, &response, &mut sent);
        let Ok(R2p2Packet { body: R2p2Body::Fragment(part), .. }) = R2p2Packet::parse(&sent[0].1) else {
            panic!("a part")
        };
        let ack = report_packet(
            R2p2Kind::Ack,
            6,
            &AckReport { ident: part.ident, incarnation: part.incarnation, next: 1, map: 0 },
        );
        assert!(server.receive(0, peer(), &ack, &mut Sent::new()).is_none());
        for at_us in (0..4_000_000).step_by(1000) {
            server.poll_timers(at_us, &mut sent);
        }
        assert_eq!(server.usage().outgoing, 1);
    }
}
