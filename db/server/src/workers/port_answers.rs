//! A port's answers: each waits until the log is on the disk up to what it shows, and leaves then.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use sandstorm_log::PositionState;
use sandstorm_net::r2p2::PeerAddr;
use sandstorm_net::shared_bytes::SharedBytes;

use super::call_latency::note_leaving;
use super::context::WorkerContext;
use super::latency_ledger::{AnswerLatency, ReadyCall};
use super::pending_answers::{PendingAnswer, not_durable_response};
use super::port::{PortContext, shrink_to_pool};
use super::response_assembly::{RequestOrigin, ResponseId, start_response};
use super::waits::add_answer_wait;

impl PortContext {
    /// Sends a response once the log is on the disk up to `shown`; if that is in doubt, an error instead. Returns
    /// whether it has left by now; else its calls go with it.
    #[inline]
    pub(super) fn respond_when_durable(
        &mut self,
        context: &WorkerContext,
        origin: &RequestOrigin<PeerAddr>,
        (response, tail): (&[u8], Option<SharedBytes>),
        shown: u64,
        latency: AnswerLatency<'_>,
        calls: &mut Vec<ReadyCall>,
    ) -> bool {
        match context.position_state(shown) {
            PositionState::OnDisk => self.respond_whole(context.clock.now_us, origin, response, tail),
            PositionState::Waits => return self.hold(context, origin, (response, tail), shown, latency, calls),
            PositionState::Uncertain => self.respond_not_durable(context, origin, response),
        }
        true
    }

    /// Sends an error in place of an answer that has waited in vain, or has no room to wait.
    fn respond_not_durable(&mut self, context: &WorkerContext, origin: &RequestOrigin<PeerAddr>, response: &[u8]) {
        context.counters.answers_not_durable.add(1);
        let instead = not_durable_response(&origin.header, response);
        self.respond(context.clock.now_us, origin, &instead);
    }

    fn respond_whole(
        &mut self,
        now_us: u64,
        origin: &RequestOrigin<PeerAddr>,
        response: &[u8],
        tail: Option<SharedBytes>,
    ) {
        match tail {
            Some(tail) => self.respond_shared(now_us, origin, response, tail),
            None => self.respond(now_us, origin, response),
        }
    }

    /// Keeps an answer until the log is on the disk. Its request counts as one that is being run.
    #[cold]
    fn hold(
        &mut self,
        context: &WorkerContext,
        origin: &RequestOrigin<PeerAddr>,
        (response, tail): (&[u8], Option<SharedBytes>),
        shown: u64,
        latency: AnswerLatency<'_>,
        calls: &mut Vec<ReadyCall>,
    ) -> bool {
        if !self.pending.push(shown, origin, response, tail, latency, (calls, context.clock.now_ns)) {
            self.respond_not_durable(context, origin, response);
            return true;
        }
        context.counters.answers_delayed.add(1);
        self.assembly.queries.begin(origin.query);
        context.log.want(shown);
        let is_over = || context.position_state(shown) != PositionState::Waits;
        context.shared.mark_holding_port(self.index, is_over);
        false
    }

    /// Sends the answers that need not wait any more, and notes each. Returns their number.
    pub(super) fn release_pending(&mut self, context: &mut WorkerContext) -> usize {
        let backed = self.pending.take_backed(|position| context.position_state(position) != PositionState::Waits);
        let mut released = backed.len();
        for answer in backed {
            let state = context.position_state(answer.position);
            self.release(context, answer, state);
        }
        for queue in 0..self.pending.first_positions().len() {
            while let Some(position) = self.pending.first_positions()[queue] {
                let state = context.position_state(position);
                if state == PositionState::Waits {
                    break;
                }
                let Some(answer) = self.pending.pop(queue) else { break };
                self.release(context, answer, state);
                released += 1;
            }
        }
        if !self.pending.is_empty() {
            return released;
        }
        let bit = 1 << self.index;
        if context.shared.holding_ports.load(Relaxed) & bit != 0 {
            context.shared.holding_ports.fetch_and(!bit, SeqCst);
        }
        released
    }

    fn release(&mut self, context: &mut WorkerContext, answer: PendingAnswer, state: PositionState) {
        self.assembly.queries.end(answer.origin.query);
        let now_us = context.clock.now_us;
        if state == PositionState::OnDisk {
            self.respond_whole(now_us, &answer.origin, &answer.bytes, answer.tail);
        } else {
            self.respond_not_durable(context, &answer.origin, &answer.bytes);
        }
        let (tenant, now_ns) = (answer.origin.header.tenant, context.clock.now_ns);
        if let Some(class) = answer.class {
            context.answered.begin_batch(now_ns);
            context.answered.note(tenant, class, answer.origin.received_ns, || answer.subject);
            let mut waits = answer.waits;
            add_answer_wait(&mut waits, answer.position, now_ns.saturating_sub(answer.since_ns));
            context.answered.note_waits(waits);
        }
        note_leaving(context, answer.calls, (answer.position, now_ns));
        self.pending.recycle(answer.bytes);
    }

    /// As [`PortContext::deliver`], of an operation that is no call. Counts the calls of the same message that waited
    /// for this answer alone.
    pub(super) fn deliver_plain(
        &mut self,
        context: &mut WorkerContext,
        place: (ResponseId, usize),
        shown: u64,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut calls = Vec::new();
        self.deliver(context, place, shown, &mut calls, write);
        let now_ns = context.clock.now_ns;
        note_leaving(context, calls, (shown, now_ns));
    }

    /// Writes the answer to one operation of a waiting response, which shows the log up to `shown`; sends the response
    /// if no other answer is missing. `calls` has the operation, if it is a call to be counted; afterwards the calls
    /// whose replies have left by now, or that wait for nothing.
    pub(super) fn deliver(
        &mut self,
        context: &WorkerContext,
        (id, operation): (ResponseId, usize),
        shown: u64,
        calls: &mut Vec<ReadyCall>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut answer = std::mem::take(&mut self.answer);
        let latency = AnswerLatency::default();
        if let Some(origin) = self.assembly.take_single(id) {
            start_response(&origin.header, 1, &mut answer);
            write(&mut answer);
            self.respond_when_durable(context, &origin, (&answer, None), shown, latency, calls);
        } else {
            answer.clear();
            write(&mut answer);
            let mut response = std::mem::take(&mut self.response);
            let part = (&answer[..], &mut *calls);
            if let Some((origin, shown)) = self.assembly.part(id, (operation, shown), part, &mut response) {
                self.respond_when_durable(context, &origin, (&response, None), shown, latency, calls);
            }
            shrink_to_pool(&mut response);
            self.response = response;
        }
        shrink_to_pool(&mut answer);
        self.answer = answer;
    }
}
