//! The budget of TLS handshakes: one in a turn, and at most a tenth of a worker's time. Any client may ask for one
//! before it has authenticated, so waiting handshakes take turns by address.

use std::hash::{BuildHasher, RandomState};

use sandstorm_net::rate_limiter::RateLimiter;

use super::permit::Origin;
use super::ready_queue::ReadyQueue;
use crate::limits::ports::{TLS_HANDSHAKES, TLS_HANDSHAKES_PER_TURN};

/// The CPU time that handshakes of a worker may still take, and the connections that wait for it.
pub(super) struct TlsHandshakeQueue {
    /// Connections that wait, by address.
    pub(super) ready: ReadyQueue,
    hashes: RandomState,
    /// Limits the CPU time of handshakes.
    limiter: RateLimiter,
    /// Handshakes that began in this turn.
    pub(super) begun: usize,
}

impl Default for TlsHandshakeQueue {
    fn default() -> TlsHandshakeQueue {
        let (ready, limiter) = (ReadyQueue::default(), RateLimiter::default());
        TlsHandshakeQueue { ready, hashes: RandomState::new(), limiter, begun: 0 }
    }
}

impl TlsHandshakeQueue {
    /// Whether a handshake may go on now.
    pub(super) fn may_begin(&self, now_us: u64) -> bool {
        self.limiter.has_some_left(&TLS_HANDSHAKES, now_us) && self.begun < TLS_HANDSHAKES_PER_TURN
    }

    /// Charges a handshake for the CPU time that it has used.
    pub(super) fn charge(&mut self, now_us: u64, ns: u64) {
        self.begun += 1;
        self.limiter.charge(&TLS_HANDSHAKES, now_us, ns);
    }

    /// The time at which waiting handshakes may go on, if there are any.
    pub(super) fn due_us(&self) -> Option<u64> {
        (self.ready.len() > 0).then(|| self.limiter.has_some_left_from_us(&TLS_HANDSHAKES))
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
    use crate::limits::ports::{TLS_HANDSHAKE_BURST_NS, TLS_HANDSHAKE_NS_PER_S};

    #[test]
    fn handshakes_take_a_tenth_of_a_worker_and_one_a_turn() {
        let mut handshakes = TlsHandshakeQueue::default();
        let (mut spent_ns, cost_ns) = (0, 1_000_000);
        for at_us in (0..10_000_000).step_by(100) {
            handshakes.begun = 0;
            if handshakes.may_begin(at_us) {
                handshakes.charge(at_us, cost_ns);
                spent_ns += cost_ns;
                assert!(!handshakes.may_begin(at_us), "one in a turn");
            }
        }
        let most_ns = 10 * TLS_HANDSHAKE_NS_PER_S + TLS_HANDSHAKE_BURST_NS;
        assert!((most_ns - cost_ns..=most_ns + cost_ns).contains(&spent_ns), "{spent_ns}");
        assert_eq!(handshakes.due_us(), None, "none waits");
        handshakes.ready.push(1, ConnectionId::from_u64(0));
        handshakes.charge(10_000_000, cost_ns);
        let due_us = handshakes.due_us().expect("one waits");
        handshakes.begun = 0;
        assert!(!handshakes.may_begin(due_us - 20) && handshakes.may_begin(due_us));
    }
}
