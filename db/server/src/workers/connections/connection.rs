//! One connection: its transport, its protocol session, its unused input and its unsent answers.

use sandstorm_accounts::RequestWaits;
use sandstorm_net::driver::{SocketInterest, StreamProgress};

use super::pending_output::{PendingOutput, ReadyOutput};
use super::permit::UnauthenticatedPermit;
use super::transport::ConnectionTransport;
use crate::limits::connections::{RETAINED_BUFFER_BYTES, SEND_BYTES, UNSENT_PAUSE_BYTES};
use sandstorm_dialects::ProtocolSession;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    /// Reads and runs.
    Serving,
    /// Waits for an invocation, or for other servers of the cluster.
    Invoking,
    /// Waits for cold records.
    Fetching,
    /// Ends when its answers have left.
    Closing,
}

/// One connection.
pub(in crate::workers) struct ClientConnection {
    pub(super) transport: ConnectionTransport,
    pub(super) session: ProtocolSession,
    pub(super) state: ConnectionPhase,
    /// The input, unused from `used` on. It has no allocation while it is empty.
    pub(super) input: Vec<u8>,
    pub(super) used: usize,
    /// The number of bytes of input that are needed to go on.
    pub(super) needed: usize,
    /// Answers, from `sent` on not sent.
    out: Vec<u8>,
    sent: usize,
    /// Answers that wait for the log.
    pub(super) pending: PendingOutput,
    /// What of its answers is ready and leaves with its next turn, where that is counted then.
    pub(super) ready_output: ReadyOutput,
    /// How far the log has to be on the disk before what its commands have seen may be shown.
    pub(super) shown: u64,
    /// What the commands that are answered next have waited for, if they have.
    pub(super) waits: Option<Box<RequestWaits>>,
    /// The events that the selector reports for it.
    pub(super) interest: SocketInterest,
    /// Whether its handshake waits for its turn; nothing is received then.
    pub(super) is_handshake_delayed: bool,
    /// Whether it is in the queue of ready connections.
    pub(super) is_queued: bool,
    /// Since when it has had input that is not answered, in the workers' nanoseconds.
    pub(super) ready_ns: Option<u64>,
    /// The bytes of its buffers when they were last checked against the budget.
    pub(super) checked_bytes: usize,
    /// The tenant that it counts for; 0: unauthenticated.
    pub(super) tenant: u32,
    /// Its permit, until it has authenticated.
    pub(super) permit: Option<UnauthenticatedPermit>,
    /// The time at which it came or last took a byte of its answers, in the workers' microseconds.
    pub(super) since_us: u64,
}

impl ClientConnection {
    pub(super) fn new(transport: ConnectionTransport, session: ProtocolSession, now_us: u64) -> ClientConnection {
        ClientConnection {
            transport,
            session,
            state: ConnectionPhase::Serving,
            input: Vec::new(),
            used: 0,
            needed: 1,
            out: Vec::new(),
            sent: 0,
            pending: PendingOutput::default(),
            ready_output: ReadyOutput::default(),
            shown: 0,
            waits: None,
            interest: SocketInterest::READ,
            is_handshake_delayed: false,
            is_queued: false,
            ready_ns: None,
            checked_bytes: 0,
            tenant: 0,
            permit: None,
            since_us: now_us,
        }
    }

    /// Bytes that wait to be sent, at least.
    #[inline]
    pub(super) fn unsent(&self) -> usize {
        self.out.len() - self.sent + usize::from(self.transport.has_unsent())
    }

    /// Bytes of its buffers and of its session, for instance of a transaction.
    pub(super) fn buffered(&self) -> usize {
        let own = self.input.capacity() + self.out.capacity() + self.pending.used_bytes();
        own + self.session.used_bytes() + self.transport.used_bytes()
    }

    /// Whether it may read and run more.
    pub(super) fn goes_on(&self) -> bool {
        self.state == ConnectionPhase::Serving && self.unsent() <= UNSENT_PAUSE_BYTES && !self.pending.is_some()
    }

    /// The events that the selector should report. Nothing, or the end alone, only if the connection goes on otherwise:
    /// when an invocation ends, or when a delayed handshake has its turn or its timeout.
    pub(super) fn wanted(&self) -> SocketInterest {
        if self.is_handshake_delayed && self.transport.is_handshaking() {
            // A client that has had an answer may have sent all it has, and waits for us.
            return SocketInterest { readable: false, writable: false, ended: !self.transport.saw_end() };
        }
        // Most clients wait for their answers before they send more: these cost no calls of the selector.
        let readable = self.goes_on() || self.pending.is_unreported();
        SocketInterest { readable, writable: self.unsent() > 0, ended: false }
    }

    /// Keeps input that was not used up.
    pub(super) fn keep_unread(&mut self, rest: &[u8]) {
        if self.used > 0 {
            self.input.drain(..self.used);
            self.used = 0;
        }
        self.input.extend_from_slice(rest);
    }

    /// Uses bytes of the input up; gives the buffer back once it is empty.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.used += bytes;
        if self.used >= self.input.len() {
            self.input = Vec::new();
            self.used = 0;
        } else if self.used > RETAINED_BUFFER_BYTES && self.input.len() - self.used <= self.used {
            // A large value was used up; the rest needs no such buffer.
            self.input = self.input.split_off(self.used);
            self.input.shrink_to_fit();
            self.used = 0;
        }
    }

    /// Appends `answers` to what waits to be sent, for the connection's next turn.
    pub(super) fn append(&mut self, answers: &mut Vec<u8>, now_us: u64) {
        if self.unsent() == 0 {
            self.since_us = now_us;
        }
        self.out.append(answers);
    }

    /// Sends `answers` after the waiting ones; bytes that do not fit wait. `answers` is empty then. Returns false if
    /// the connection is broken.
    pub(super) fn send(&mut self, answers: &mut Vec<u8>, now_us: u64) -> bool {
        if self.unsent() > 0 {
            self.out.append(answers);
            return self.flush(now_us);
        }
        if answers.is_empty() {
            return true;
        }
        let sent = match self.transport.send(&answers[..answers.len().min(SEND_BYTES)]) {
            StreamProgress::Bytes(sent) if sent == answers.len() => {
                answers.clear();
                if self.transport.has_unsent() {
                    self.since_us = now_us;
                }
                return true;
            }
            StreamProgress::Bytes(sent) => sent,
            StreamProgress::WouldBlock => 0,
            StreamProgress::Closed => {
                // The client is gone; the buffer is the next connection's.
                answers.clear();
                return false;
            }
        };
        self.since_us = now_us;
        if answers.capacity() > RETAINED_BUFFER_BYTES {
            self.out = std::mem::take(answers);
            self.sent = sent;
        } else {
            self.out.extend_from_slice(&answers[sent..]);
            self.sent = 0;
            answers.clear();
        }
        true
    }

    /// Tells the client that the server is shutting down. The connection ends after that. Returns false if it is
    /// broken.
    pub(super) fn turn_away(&mut self, received: &[u8], now_us: u64) -> bool {
        let mut answer = Vec::new();
        let waits = self.input.get(self.used..).filter(|waits| !waits.is_empty());
        self.session.stops(waits.unwrap_or(received), &mut answer);
        (self.input, self.used, self.state) = (Vec::new(), 0, ConnectionPhase::Closing);
        self.send(&mut answer, now_us)
    }

    /// Sends waiting bytes, as far as the kernel takes them and at most a turn's worth. Returns false if the connection
    /// is broken.
    pub(super) fn flush(&mut self, now_us: u64) -> bool {
        let end = self.out.len().min(self.sent + SEND_BYTES);
        while self.sent < end || self.transport.has_unsent() {
            match self.transport.send(&self.out[self.sent..end]) {
                StreamProgress::Bytes(sent) => {
                    self.sent += sent;
                    self.since_us = now_us;
                }
                StreamProgress::WouldBlock => break,
                StreamProgress::Closed => return false,
            }
        }
        if self.unsent() == 0 {
            (self.out, self.sent) = (Vec::new(), 0);
        } else if self.sent > RETAINED_BUFFER_BYTES && self.sent > self.out.len() / 2 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        true
    }
}
