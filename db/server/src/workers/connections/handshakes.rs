//! TLS handshakes: one in a turn, and no more of a worker's time than a tenth. Whoever connects may ask for one before
//! it has shown anything, so those that wait take turns by address.

use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::time::Instant;

use sandstorm_net::driver::StreamProgress;
use sandstorm_net::rate_limiter::RateLimiter;

use super::WorkerConnections;
use super::budget::Origin;
use super::event_loop::ServeOutcome;
use super::inbox::ConnectionId;
use super::ready_queue::{RETAINED_TENANT_QUEUES, ReadyQueue};
use crate::limits::ports::{TLS_HANDSHAKES, TLS_HANDSHAKES_PER_TURN};
use crate::workers::Worker;
use sandstorm_metrics::ConnectionReason;

/// What handshakes may still take of a worker, and those that wait.
pub(super) struct TlsHandshakeQueue {
    /// By address.
    line: ReadyQueue,
    hashes: RandomState,
    /// Of the CPU time that they have taken.
    limiter: RateLimiter,
    /// Of this turn.
    begun: usize,
}

impl Default for TlsHandshakeQueue {
    fn default() -> TlsHandshakeQueue {
        let (line, limiter) = (ReadyQueue::default(), RateLimiter::default());
        TlsHandshakeQueue { line, hashes: RandomState::new(), limiter, begun: 0 }
    }
}

impl TlsHandshakeQueue {
    /// Whether one may go on now.
    fn may(&self, now_us: u64) -> bool {
        self.limiter.has_some_left(&TLS_HANDSHAKES, now_us) && self.begun < TLS_HANDSHAKES_PER_TURN
    }

    fn charge(&mut self, now_us: u64, ns: u64) {
        self.begun += 1;
        self.limiter.charge(&TLS_HANDSHAKES, now_us, ns);
    }

    /// When those that wait may go on, if there are some.
    pub(super) fn due_us(&self) -> Option<u64> {
        (self.line.len() > 0).then(|| self.limiter.has_some_left_from_us(&TLS_HANDSHAKES))
    }

    /// A lane for each address.
    fn lane(&self, origin: Option<Origin>) -> u32 {
        self.hashes.hash_one(origin) as u32
    }
}

impl WorkerConnections {
    /// Goes on with handshakes that had to wait. Tells how many.
    pub(super) fn resume_handshakes(&mut self, worker: &mut Worker) -> usize {
        self.handshakes.begun = 0;
        self.forget_the_gone();
        let mut done = 0;
        while self.handshakes.line.len() > 0
            && self.handshakes.may(worker.now_us)
            && let Some(name) = self.handshakes.line.pop()
        {
            done += 1;
            if let Some(connection) = self.places.get(name) {
                connection.held_back = false;
                self.continue_handshake(name, worker);
            }
        }
        done
    }

    /// Those that have ended while they waited leave the line, once they are most of it.
    fn forget_the_gone(&mut self) {
        let (line, places) = (&mut self.handshakes.line, &mut self.places);
        if line.len() > RETAINED_TENANT_QUEUES + 2 * places.held(0) {
            line.retain(|name| places.get(name).is_some());
        }
    }

    /// A connection that has no keys yet has something to say: at once, or when its turn has come.
    pub(super) fn continue_handshake(&mut self, name: ConnectionId, worker: &mut Worker) {
        let Some(connection) = self.places.get(name) else { return };
        if connection.held_back {
            return;
        }
        if !self.handshakes.may(worker.now_us) {
            connection.held_back = true;
            let lane = self.handshakes.lane(connection.seat.map(|seat| seat.origin));
            self.handshakes.line.push(lane, name);
            return self.watch(name);
        }
        let before = (connection.unsent(), connection.buffered());
        let mut received = mem::take(&mut self.received);
        let begun = Instant::now();
        let moved = connection.wire.receive(&mut received);
        self.handshakes.charge(worker.now_us, begun.elapsed().as_nanos() as u64);
        let _is_in_what_was_charged = connection.wire.take_work();
        let is_over = !connection.wire.is_handshaking();
        if is_over {
            connection.since_us = worker.now_us;
        }
        let fate = match moved {
            StreamProgress::Bytes(bytes) => {
                worker.refresh_snapshot();
                self.run_input(name, Some(&received[..bytes]), 1, worker)
            }
            // Whose it is may be known without a word.
            StreamProgress::WouldBlock if is_over => self.run_input(name, Some(&[]), 1, worker),
            StreamProgress::WouldBlock => ServeOutcome::Keep,
            StreamProgress::Closed => ServeOutcome::Close,
        };
        self.received = received;
        self.settle(name, before, fate, worker);
        if moved == StreamProgress::Closed && !is_over {
            super::count_refused(&worker.counters, ConnectionReason::Handshake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ports::{TLS_HANDSHAKE_BURST_NS, TLS_HANDSHAKE_NS_PER_S};

    #[test]
    fn handshakes_take_a_tenth_of_a_worker_and_one_a_turn() {
        let mut handshakes = TlsHandshakeQueue::default();
        let (mut spent_ns, cost_ns) = (0, 1_000_000);
        for at_us in (0..10_000_000).step_by(100) {
            handshakes.begun = 0;
            if handshakes.may(at_us) {
                handshakes.charge(at_us, cost_ns);
                spent_ns += cost_ns;
                assert!(!handshakes.may(at_us), "one in a turn");
            }
        }
        let most_ns = 10 * TLS_HANDSHAKE_NS_PER_S + TLS_HANDSHAKE_BURST_NS;
        assert!((most_ns - cost_ns..=most_ns + cost_ns).contains(&spent_ns), "{spent_ns}");
        assert_eq!(handshakes.due_us(), None, "nobody waits");
        handshakes.line.push(1, ConnectionId::from_u64(0));
        handshakes.charge(10_000_000, cost_ns);
        let due_us = handshakes.due_us().expect("one waits");
        handshakes.begun = 0;
        assert!(!handshakes.may(due_us - 20) && handshakes.may(due_us));
    }
}
