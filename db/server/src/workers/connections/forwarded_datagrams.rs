//! Datagrams of a UDP port that wait for other servers of the cluster. Each is run at most once, and answered at most
//! once. What does not fit into the port's budget is dropped, since its client asks again, unless a command of it has
//! run: then the answer says what has, and what has not.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sandstorm_dialects::memcached::{ForwardedDatagram, NOT_FORWARDED, SuspendedDatagram};
use sandstorm_net::forwarding::ForwardedAnswer;
use sandstorm_net::r2p2::PeerAddr;

use super::forwarded::{NO_FORWARDER, count_answers};
use super::inbox::InboxMessage;
use crate::limits::{
    FORWARDED_ANSWERS_BYTES, FORWARDED_DATAGRAM_BYTES, FORWARDED_DATAGRAM_NS, SHORT_FORWARDED_ANSWER_BYTES,
};
use crate::workers::context::WorkerContext;

/// What stands for an answer that there is no room for.
const NO_ROOM: &str = "SERVER_ERROR out of memory writing get response";

/// Where a datagram came from.
#[derive(Clone, Copy)]
pub(super) struct DatagramOrigin {
    pub(super) peer: PeerAddr,
    /// The request's number, its client's own.
    pub(super) request: u16,
    /// When its host received it, in the workers' nanoseconds.
    pub(super) received_ns: u64,
    /// When its worker took it.
    pub(super) taken_ns: u64,
}

/// A datagram that waits.
pub(super) struct WaitingDatagram {
    pub(super) origin: DatagramOrigin,
    pub(super) suspended: SuspendedDatagram,
    /// How far the log has to be on the disk before its answers so far may be shown.
    pub(super) shown: u64,
    /// What the port's budget counts for it.
    bytes: usize,
    /// Whether commands of it have run before it came here.
    has_run: bool,
}

/// The datagrams of one port: see the head of this file.
#[derive(Default)]
pub(super) struct ForwardedDatagrams {
    waiting: HashMap<u64, WaitingDatagram>,
    /// The number of the last one.
    last: u64,
    /// Bytes of all that wait.
    bytes: usize,
    /// Answers for those of these numbers.
    answered: VecDeque<(u64, Vec<ForwardedAnswer>)>,
}

impl ForwardedDatagrams {
    /// Whether any wait.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether some can go on.
    pub(super) fn has_answered(&self) -> bool {
        !self.answered.is_empty()
    }

    /// Sends the commands of a datagram of the UDP port `port` to the servers that have their keys. It waits here until
    /// they have answered. `has_waited`: it has done so before, for others. A datagram that may not wait, since as much
    /// waits as may, or since it has waited too long before, is dropped and counted if no command of it has run. Else
    /// it is returned, as its client is to be told what has.
    pub(super) fn begin(
        &mut self,
        (origin, shown, has_waited): (DatagramOrigin, u64, bool),
        forwarded: ForwardedDatagram,
        port: usize,
        context: &WorkerContext,
    ) -> Option<ForwardedDatagram> {
        let bytes = forwarded.suspended.used_bytes();
        let has_run = has_waited || forwarded.suspended.has_answers();
        let has_waited_ns = context.clock.now_ns.saturating_sub(origin.taken_ns);
        if self.bytes + bytes > FORWARDED_DATAGRAM_BYTES || has_waited_ns > FORWARDED_DATAGRAM_NS {
            if has_run {
                return Some(forwarded);
            }
            context.counters.forwarded_datagrams_dropped.add(1);
            return None;
        }
        let ForwardedDatagram { suspended, batch } = forwarded;
        let number = self.last + 1;
        (self.last, self.bytes) = (number, self.bytes + bytes);
        self.waiting.insert(number, WaitingDatagram { origin, suspended, shown, bytes, has_run });
        let Some(forwarder) = &context.shared.forwarder else {
            let refused = |_: &_| ForwardedAnswer::Refused(NO_FORWARDER.to_owned());
            self.answered.push_back((number, batch.commands.iter().map(refused).collect()));
            return None;
        };
        context.counters.commands_forwarded.add(batch.commands.len() as u64);
        let (shared, worker) = (Arc::downgrade(&context.shared), context.index);
        let done = move |answers| {
            if let Some(shared) = shared.upgrade() {
                shared.send_to_inbox(worker, InboxMessage::ForwardedDatagram { port, number, answers });
            }
        };
        forwarder.forward(batch, Box::new(done));
        None
    }

    /// Notes what other servers have answered.
    pub(super) fn note_answers(&mut self, number: u64, mut answers: Vec<ForwardedAnswer>, context: &WorkerContext) {
        count_answers(&answers, &context.counters);
        let Some(datagram) = self.waiting.get_mut(&number) else { return };
        if self.bytes + answered_bytes(&answers) > FORWARDED_ANSWERS_BYTES {
            leave_out_long(&mut answers);
        }
        let bytes = answered_bytes(&answers);
        (datagram.bytes, self.bytes) = (datagram.bytes + bytes, self.bytes + bytes);
        self.answered.push_back((number, answers));
    }

    /// The next datagram that can go on, with what it has waited for. One of which the forwarder has dropped all
    /// commands is counted, if none was run before.
    pub(super) fn take_answered(&mut self, context: &WorkerContext) -> Option<(WaitingDatagram, Vec<ForwardedAnswer>)> {
        while let Some((number, mut answers)) = self.answered.pop_front() {
            let Some(datagram) = self.waiting.remove(&number) else { continue };
            self.bytes -= datagram.bytes;
            let is_dropped = |answer: &ForwardedAnswer| *answer == ForwardedAnswer::Dropped;
            if datagram.has_run || !answers.iter().any(is_dropped) || answers.iter().any(has_run) {
                let dropped = answers.iter_mut().filter(|answer| is_dropped(answer));
                dropped.for_each(|answer| *answer = ForwardedAnswer::Refused(NOT_FORWARDED.to_owned()));
                return Some((datagram, answers));
            }
            context.counters.forwarded_datagrams_dropped.add(1);
        }
        None
    }
}

/// Whether another server has run the command, or may have.
fn has_run(answer: &ForwardedAnswer) -> bool {
    matches!(answer, ForwardedAnswer::Answered(_) | ForwardedAnswer::Refused(_))
}

/// Bytes of what other servers have answered.
fn answered_bytes(answers: &[ForwardedAnswer]) -> usize {
    let of = |answer: &ForwardedAnswer| match answer {
        ForwardedAnswer::Answered(bytes) => bytes.len(),
        ForwardedAnswer::Later | ForwardedAnswer::Refused(_) | ForwardedAnswer::Dropped => 0,
    };
    answers.iter().map(of).sum()
}

/// Has an error stand for each answer that there is no room for: those of reads, as writes have short ones.
fn leave_out_long(answers: &mut [ForwardedAnswer]) {
    let is_long = |answer: &ForwardedAnswer| match answer {
        ForwardedAnswer::Answered(bytes) => bytes.len() > SHORT_FORWARDED_ANSWER_BYTES,
        ForwardedAnswer::Later | ForwardedAnswer::Refused(_) | ForwardedAnswer::Dropped => false,
    };
    let long = answers.iter_mut().filter(|answer| is_long(answer));
    long.for_each(|answer| *answer = ForwardedAnswer::Refused(NO_ROOM.to_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_room_for_answers_those_of_writes_are_kept() {
        let stored = ForwardedAnswer::Answered(b"STORED\r\n".to_vec());
        let record = ForwardedAnswer::Answered(vec![b'v'; SHORT_FORWARDED_ANSWER_BYTES + 1]);
        let mut answers = vec![stored.clone(), record, ForwardedAnswer::Later, ForwardedAnswer::Dropped];
        assert_eq!(answered_bytes(&answers), 8 + SHORT_FORWARDED_ANSWER_BYTES + 1);
        leave_out_long(&mut answers);
        let left_out = ForwardedAnswer::Refused(NO_ROOM.to_owned());
        assert_eq!(answers, [stored, left_out, ForwardedAnswer::Later, ForwardedAnswer::Dropped]);
        assert_eq!(answers.iter().map(has_run).collect::<Vec<_>>(), [true, true, false, false]);
    }
}
