//! Datagrams of a UDP port that wait for other servers of the cluster. Each is run at most once, and answered at most
//! once; what does not fit into the port's budget is dropped, since its client asks again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sandstorm_dialects::memcached::{ForwardedDatagram, SuspendedDatagram};
use sandstorm_net::forwarding::ForwardedAnswer;
use sandstorm_net::r2p2::PeerAddr;

use super::forwarded::{NO_FORWARDER, count_answers};
use super::inbox::InboxMessage;
use crate::limits::{FORWARDED_ANSWERS_BYTES, FORWARDED_DATAGRAM_BYTES, FORWARDED_DATAGRAM_NS};
use crate::workers::context::WorkerContext;

/// Where a datagram came from.
#[derive(Clone, Copy)]
pub(super) struct DatagramOrigin {
    pub(super) peer: PeerAddr,
    /// The request's number, its client's own.
    pub(super) request: u16,
    /// When it was received, in the workers' nanoseconds.
    pub(super) received_ns: u64,
}

/// A datagram that waits.
pub(super) struct WaitingDatagram {
    pub(super) origin: DatagramOrigin,
    pub(super) suspended: SuspendedDatagram,
    /// How far the log has to be on the disk before its answers so far may be shown.
    pub(super) shown: u64,
    /// What the port's budget counts for it.
    bytes: usize,
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
    /// they have answered, or is dropped and counted: as much waits as may, or it has waited too long before.
    pub(super) fn begin(
        &mut self,
        (origin, shown): (DatagramOrigin, u64),
        forwarded: ForwardedDatagram,
        port: usize,
        context: &WorkerContext,
    ) {
        let ForwardedDatagram { suspended, batch } = forwarded;
        let bytes = suspended.used_bytes();
        let has_waited_ns = context.clock.now_ns.saturating_sub(origin.received_ns);
        if self.bytes + bytes > FORWARDED_DATAGRAM_BYTES || has_waited_ns > FORWARDED_DATAGRAM_NS {
            return context.counters.forwarded_datagrams_dropped.add(1);
        }
        let number = self.last + 1;
        (self.last, self.bytes) = (number, self.bytes + bytes);
        self.waiting.insert(number, WaitingDatagram { origin, suspended, shown, bytes });
        let Some(forwarder) = &context.shared.forwarder else {
            let refused = |_: &_| ForwardedAnswer::Refused(NO_FORWARDER.to_owned());
            return self.answered.push_back((number, batch.commands.iter().map(refused).collect()));
        };
        context.counters.commands_forwarded.add(batch.commands.len() as u64);
        let (shared, worker) = (Arc::downgrade(&context.shared), context.index);
        let done = move |answers| {
            if let Some(shared) = shared.upgrade() {
                shared.send_to_inbox(worker, InboxMessage::ForwardedDatagram { port, number, answers });
            }
        };
        forwarder.forward(batch, Box::new(done));
    }

    /// Notes what other servers have answered.
    pub(super) fn note_answers(&mut self, number: u64, answers: Vec<ForwardedAnswer>, context: &WorkerContext) {
        count_answers(&answers, &context.counters);
        let answered = |answer: &ForwardedAnswer| match answer {
            ForwardedAnswer::Answered(bytes) => bytes.len(),
            ForwardedAnswer::Later | ForwardedAnswer::Refused(_) | ForwardedAnswer::Dropped => 0,
        };
        let bytes: usize = answers.iter().map(answered).sum();
        let Some(datagram) = self.waiting.get_mut(&number) else { return };
        if self.bytes + bytes > FORWARDED_ANSWERS_BYTES {
            self.bytes -= datagram.bytes;
            self.waiting.remove(&number);
            return context.counters.forwarded_datagrams_dropped.add(1);
        }
        (datagram.bytes, self.bytes) = (datagram.bytes + bytes, self.bytes + bytes);
        self.answered.push_back((number, answers));
    }

    /// The next datagram that can go on, with what it has waited for. One dropped by the forwarder is counted.
    pub(super) fn take_answered(&mut self, context: &WorkerContext) -> Option<(WaitingDatagram, Vec<ForwardedAnswer>)> {
        while let Some((number, answers)) = self.answered.pop_front() {
            let Some(datagram) = self.waiting.remove(&number) else { continue };
            self.bytes -= datagram.bytes;
            if !answers.contains(&ForwardedAnswer::Dropped) {
                return Some((datagram, answers));
            }
            context.counters.forwarded_datagrams_dropped.add(1);
        }
        None
    }
}
