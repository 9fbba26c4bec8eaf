//! Timers: responses to be sent again, and messages, responses and memory of answered requests that are given up.

use super::{DatagramSink, NEVER, OutgoingResponse, ServerEndpoint, TIMER_GRANULARITY_US};

impl ServerEndpoint {
    /// Resends what is due and gives up what has expired. Costs one comparison when nothing is due. Returns the time of
    /// the next timer, if there is one.
    #[inline]
    pub fn poll_timers(&mut self, now_us: u64, tx: &mut impl DatagramSink) -> Option<u64> {
        if now_us >= self.due_us {
            self.run_timers(now_us, tx);
        }
        (self.due_us != NEVER).then_some(self.due_us)
    }

    #[cold]
    fn run_timers(&mut self, now_us: u64, tx: &mut impl DatagramSink) {
        let mut due_us = NEVER;
        let mut over = std::mem::take(&mut self.scratch);
        for (key, partial) in &self.partials {
            let ends_us = partial.ends_us(self.limits.partial_timeout_us);
            if ends_us <= now_us { over.push(*key) } else { due_us = due_us.min(ends_us) }
        }
        for key in over.drain(..) {
            self.counters.partials_timed_out += 1;
            if let Some(partial) = self.end_reassembly(&key) {
                self.buffers.give(partial.bytes);
            }
        }
        let due = |outgoing: &OutgoingResponse| outgoing.ends_us.min(outgoing.sender.due_us);
        over.extend(self.outgoing.iter().filter(|(_, outgoing)| due(outgoing) <= now_us).map(|(key, _)| *key));
        // They are sorted, so that the sent packets do not depend on the table's hash seed.
        over.sort_unstable();
        over.retain(|key| {
            let Some(outgoing) = self.outgoing.get_mut(key) else { return false };
            if outgoing.ends_us <= now_us || outgoing.sender.is_unresponsive() {
                return true;
            }
            let most = self.sizes.most(key.peer, &self.limits, tx);
            self.incarnation = self.incarnation.wrapping_add(1);
            outgoing.sender.back_off(now_us);
            self.counters.retransmissions += outgoing.again(key, most, self.incarnation, tx);
            false
        });
        for key in over.drain(..) {
            self.counters.responses_timed_out += 1;
            self.end_outgoing(&key);
            self.completed.remove(&key);
        }
        self.scratch = over;
        due_us = self.outgoing.values().map(due).fold(due_us, u64::min);
        let completed_us = self.completed.expire(now_us, self.limits.completed_timeout_us);
        due_us = due_us.min(completed_us.unwrap_or(NEVER));
        self.due_us = due_us.max(now_us + TIMER_GRANULARITY_US);
    }
}
