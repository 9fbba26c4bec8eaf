//! Sealed sessions in the simulator: their token, and the sinks of both sides.

use super::{SeededRng, SentDatagrams};
use crate::r2p2::{DatagramSink, PeerAddr};
use crate::seal::limits::{HELLO_LEN, HELLO_WITH_COOKIE_LEN};
use crate::seal::{
    ClientSeal, SealHeader, SealLimits, SealPacketKind, ServerSeal, TokenKeys, TokenSource, TokenVerifier,
};

pub(super) const TOKEN: &[u8] = b"the token of all simulated clients";
pub(super) const CLOCK_MS: u64 = 1_700_000_000_000;

pub(super) fn new_seal() -> ServerSeal {
    ServerSeal::new(SealLimits::default(), CLOCK_MS)
}

/// Knows the one token.
pub(super) struct SimTokenSource();

impl TokenSource for SimTokenSource {
    fn verifier(&self, tenant: u32, which: usize) -> Option<(TokenVerifier, u64)> {
        static VERIFIER: std::sync::OnceLock<TokenVerifier> = std::sync::OnceLock::new();
        let verifier = VERIFIER.get_or_init(|| TokenKeys::of(TOKEN).verifier());
        (tenant == 1 && which == 0).then_some((*verifier, 1))
    }
}

/// Sends hellos without the token from forged addresses. Answers to those addresses are lost.
pub(super) fn send_forged_hellos(seal: &mut ServerSeal, now_us: u64, dice: &mut SeededRng, hellos: u64) {
    for _ in 0..hellos {
        let head = SealHeader { kind: SealPacketKind::Hello, flags: 0, tenant: 1, session: dice.any(), number: 1 };
        let length = if dice.percent(50) { HELLO_LEN } else { HELLO_WITH_COOKIE_LEN };
        let mut forged = head.encode().to_vec();
        forged.resize_with(length, || dice.any() as u8);
        let from = PeerAddr::from(((dice.any() as u32).to_be_bytes(), 9000));
        let mut sent = SentDatagrams::new();
        assert!(seal.receive(now_us, from, &mut forged, &SimTokenSource(), &mut sent).is_none());
        assert!(sent.iter().all(|(to, answer)| *to == from && 2 * answer.len() <= length));
    }
}

/// The sinks of the server, and of a client: sealed or not.
pub(super) struct SimServerSink<'a>(pub(super) &'a mut Option<ServerSeal>, pub(super) &'a mut SentDatagrams);
pub(super) struct SimClientSink<'a>(pub(super) &'a mut Option<ClientSeal>, pub(super) &'a mut SentDatagrams);

impl DatagramSink for SimServerSink<'_> {
    fn send(&mut self, peer: PeerAddr, parts: &[&[u8]]) {
        match self.0 {
            Some(seal) => seal.through(self.1).send(peer, parts),
            None => self.1.send(peer, parts),
        }
    }
}

impl DatagramSink for SimClientSink<'_> {
    fn send(&mut self, peer: PeerAddr, parts: &[&[u8]]) {
        match self.0 {
            Some(seal) => seal.through(self.1).send(peer, parts),
            None => self.1.send(peer, parts),
        }
    }
}
