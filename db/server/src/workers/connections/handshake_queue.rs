//! The budget of TLS handshakes: one in a turn, and no more of a worker's time than a tenth. Any client may ask for one
//! before it has authenticated, so those that wait take turns by address.

use std::hash::{BuildHasher, RandomState};

use super::ready_queue::ReadyQueue;
use super::seat::Origin;
use crate::limits::ports::{TLS_HANDSHAKE_BURST_NS, TLS_HANDSHAKE_NS_PER_S, TLS_HANDSHAKES_PER_TURN};

/// The CPU time that handshakes may still take of a worker, and those that wait for it.
pub(super) struct TlsHandshakeQueue {
    /// Connections that wait, by address.
    pub(super) ready: ReadyQueue,
    hashes: RandomState,
    /// CPU time that they may take; negative: debt.
    credit_ns: i64,
    /// When the credit was last renewed, in the workers' microseconds.
    credited_us: u64,
    /// Handshakes that were begun in this turn.
    pub(super) begun: usize,
}

impl Default for TlsHandshakeQueue {
    fn default() -> TlsHandshakeQueue {
        let credit_ns = TLS_HANDSHAKE_BURST_NS as i64;
        TlsHandshakeQueue {
            ready: ReadyQueue::default(),
            hashes: RandomState::new(),
            credit_ns,
            credited_us: 0,
            begun: 0,
        }
    }
}

const CREDIT_NS_PER_US: u64 = TLS_HANDSHAKE_NS_PER_S / 1_000_000;

impl TlsHandshakeQueue {
    /// Whether a handshake may go on now.
    pub(super) fn may_begin(&mut self, now_us: u64) -> bool {
        let gained_ns =
            now_us.saturating_sub(self.credited_us).saturating_mul(CREDIT_NS_PER_US).min(TLS_HANDSHAKE_BURST_NS * 2);
        self.credited_us = now_us;
        self.credit_ns = (self.credit_ns + gained_ns as i64).min(TLS_HANDSHAKE_BURST_NS as i64);
        self.credit_ns > 0 && self.begun < TLS_HANDSHAKES_PER_TURN
    }

    /// Charges one that has used so much CPU time.
    pub(super) fn charge(&mut self, ns: u64) {
        self.begun += 1;
        self.credit_ns = self.credit_ns.saturating_sub_unsigned(ns);
    }

    /// When those that wait may go on, if there are any.
    pub(super) fn due_us(&self) -> Option<u64> {
        let owed_ns = u64::try_from(-self.credit_ns).unwrap_or(0);
        (self.ready.len() > 0).then(|| self.credited_us + owed_ns / CREDIT_NS_PER_US + 1)
    }

    /// The key of an address in the queue.
    pub(super) fn key(&self, origin: Option<Origin>) -> u32 {
        self.hashes.hash_one(origin) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection_id::ConnectionId;
    use super::*;

    #[test]
    fn handshakes_take_a_tenth_of_a_worker_and_one_a_turn() {
        let mut handshakes = TlsHandshakeQueue::default();
        let (mut spent_ns, cost_ns) = (0, 1_000_000);
        for at_us in (0..10_000_000).step_by(100) {
            handshakes.begun = 0;
            if handshakes.may_begin(at_us) {
                handshakes.charge(cost_ns);
                spent_ns += cost_ns;
                assert!(!handshakes.may_begin(at_us), "one in a turn");
            }
        }
        let most_ns = 10 * TLS_HANDSHAKE_NS_PER_S + TLS_HANDSHAKE_BURST_NS;
        assert!((most_ns - cost_ns..=most_ns + cost_ns).contains(&spent_ns), "{spent_ns}");
        assert_eq!(handshakes.due_us(), None, "none waits");
        handshakes.ready.push(1, ConnectionId::from_u64(0));
        handshakes.charge(cost_ns);
        let due_us = handshakes.due_us().expect("one waits");
        handshakes.begun = 0;
        assert!(!handshakes.may_begin(due_us - 20) && handshakes.may_begin(due_us));
    }
}
