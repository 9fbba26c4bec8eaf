//! A client's session with one server port, without sockets or clocks: log-in, window, sequences, deadlines, and the
//! recovery when the server forgets the session. [`crate::Client`] and [`crate::raw`] both drive it.
//!
//! A session begins with a `Hello`; requests wait until it is answered. Each message gets the next sequence number. At
//! most `window` numbers lie between the oldest unanswered one and the newest, which is what the server remembers. A
//! message that is given up counts as answered: if it arrives late after all, the server finds it acknowledged and does
//! not run it.
//!
//! The answer to the hello names the server's start, and every sequence after it is bound to that. So a server that has
//! restarted runs nothing that was meant for the one before. It says so, and later messages go in a new session.

use crate::message::{Message, is_idempotent, stamp_session};
use crate::replies::{ServerGreeting, decode_hello};
use crate::{Error, limits};
use home_watch::HomeWatch;
use rand::RngCore;
use rejection::SessionRejection;
use sandstorm_net::limits::{ClientLimits, FIRST_RTO_US, default_datagram};
use sandstorm_net::r2p2::{
    self, ClientEndpoint, DatagramSink, FailedRequest, PeerAddr, R2p2ClientCounters, RequestError, RequestFailure,
    TaggedRequest,
};
use sandstorm_net::seal::{ClientSeal, HandshakeRefusal, SEAL_OVERHEAD};
use sink::SessionSink;
use std::collections::VecDeque;
use std::time::Duration;

mod home_watch;
mod login;
mod rejection;
mod sink;

pub(crate) use login::{LoginCredentials, ServerTopology};

/// An answer as it comes from the network: borrowed from its datagram, or assembled from several.
pub(crate) type SessionResponse<'p> = r2p2::ReceivedMessage<'p>;

/// A request that has no answer yet: its message, and the rest of its state.
type PendingRequest<T> = TaggedRequest<RequestContext<T>>;

/// The state of a request besides its message.
struct RequestContext<T> {
    /// The caller's mark; `None` for the session's own hello.
    tag: Option<T>,
    deadline: Duration,
    ends_us: u64,
    sent_us: u64,
    session: u64,
    sequence: u64,
    /// Times that it went back to the queue because the server had forgotten the session.
    restarts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionPhase {
    /// No hello sent.
    LoggedOut,
    /// The hello is under way.
    LoggingIn,
    /// Requests may go.
    Ready,
}

/// A session towards one server port. `T` marks a request for its caller.
pub(crate) struct ClientSession<T> {
    /// It keeps the requests that are in flight.
    endpoint: ClientEndpoint<RequestContext<T>>,
    seal: Option<Box<ClientSeal>>,
    /// Buffer in which sealed packets are opened.
    opened: Vec<u8>,
    login: LoginCredentials,
    phase: SessionPhase,
    id: u64,
    /// The server's start that sequences are bound to, by their upper half; 0: none.
    start: u32,
    /// The last sequence number given out.
    sequence: u64,
    acked: u64,
    /// Entry `i` is true if message `acked + 1 + i` has been answered or given up.
    done: VecDeque<bool>,
    window: u64,
    queue: VecDeque<PendingRequest<T>>,
    /// The time at which the queue's deadlines are checked next; `None` while it is empty.
    queue_check_us: Option<u64>,
    server: Option<ServerTopology>,
    home: HomeWatch,
    renewals: u64,
    /// Requests in a row that no server answered in time, each sent after the one before it was given up.
    silent_timeouts: u32,
    /// The time of the last of these timeouts.
    last_timeout_us: u64,
    ended: Vec<FailedRequest<RequestContext<T>>>,
    buffers: Vec<Vec<u8>>,
}

impl<T> ClientSession<T> {
    /// A session towards `server` that has not said hello yet.
    pub(crate) fn new(server: PeerAddr, login: LoginCredentials, window: usize) -> ClientSession<T> {
        // The kernel would fragment longer ones, and a server past a kernel may take no fragments.
        ClientSession::within(default_datagram(server.is_ipv6()), server, login, window)
    }

    /// Like the function above, over a driver whose datagrams have at most so many bytes.
    pub(crate) fn within(
        max_datagram: usize,
        server: PeerAddr,
        login: LoginCredentials,
        window: usize,
    ) -> ClientSession<T> {
        let seal = login.sealed_clock_ms.map(|clock_ms| {
            let number = rand::rng().next_u64();
            Box::new(ClientSeal::new(server, login.tenant, login.token.as_bytes(), number, clock_ms))
        });
        let mut endpoint_limits = ClientLimits::default();
        let overhead = if seal.is_some() { SEAL_OVERHEAD } else { 0 };
        // Over IPv6 longer ones would not fit an Ethernet frame.
        endpoint_limits.max_datagram = default_datagram(server.is_ipv6()).min(max_datagram) - overhead;
        endpoint_limits.largest_datagram = max_datagram - overhead;
        ClientSession {
            endpoint: ClientEndpoint::new(server, endpoint_limits),
            seal,
            opened: Vec::new(),
            login,
            phase: SessionPhase::LoggedOut,
            id: rand::rng().next_u64(),
            start: 0,
            sequence: 0,
            acked: 0,
            done: VecDeque::new(),
            window: window.clamp(1, limits::WINDOW) as u64,
            queue: VecDeque::new(),
            queue_check_us: None,
            server: None,
            home: HomeWatch::default(),
            renewals: 0,
            silent_timeouts: 0,
            last_timeout_us: 0,
            ended: Vec::new(),
            buffers: Vec::new(),
        }
    }

    pub(crate) fn peer(&self) -> PeerAddr {
        self.endpoint.server()
    }

    /// Returns the answer to the last hello.
    pub(crate) fn server(&self) -> Option<ServerTopology> {
        self.server
    }

    pub(crate) fn counters(&self) -> &R2p2ClientCounters {
        self.endpoint.counters()
    }

    /// Times that the server had forgotten the session.
    pub(crate) fn renewals(&self) -> u64 {
        self.renewals
    }

    /// Requests without an answer, sent or waiting.
    pub(crate) fn waiting(&self) -> usize {
        self.endpoint.usage().requests + self.queue.len()
    }

    /// Messages that would be sent at once if they were submitted now.
    pub(crate) fn free_slots(&self) -> usize {
        if self.phase == SessionPhase::Ready && self.queue.is_empty() {
            (self.window - (self.sequence - self.acked).min(self.window)) as usize
        } else {
            0
        }
    }

    /// An empty buffer for a message, with the room of one that was answered.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    fn recycle_buffer(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < limits::SPARE_BUFFERS && buffer.capacity() <= limits::SPARE_BUFFER_BYTES {
            self.buffers.push(buffer);
        }
    }

    /// Takes back the buffer of an answer.
    pub(crate) fn recycle(&mut self, answer: SessionResponse<'_>) {
        self.endpoint.recycle(answer);
    }

    /// Takes a finished message to be sent now or as soon as the window has room.
    ///
    /// # Errors
    /// [`Error::Busy`] when too many wait already; `tag` is dropped then.
    pub(crate) fn submit(
        &mut self,
        now_us: u64,
        tag: T,
        message: Vec<u8>,
        deadline: Duration,
        tx: &mut impl DatagramSink,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) -> Result<(), Error> {
        if self.queue.len() >= limits::MAX_QUEUED {
            return Err(Error::Busy { waiting: self.waiting() });
        }
        let deadline = deadline.min(limits::MAX_DEADLINE);
        let ends_us = now_us + deadline.as_micros() as u64;
        let (tag, sent_us, session, sequence, restarts) = (Some(tag), 0, 0, 0, 0);
        let pending = TaggedRequest {
            message,
            tag: RequestContext { tag, deadline, ends_us, sent_us, session, sequence, restarts },
        };
        if self.queue.is_empty() && self.has_window() {
            // The usual case: it need not wait.
            let Some(pending) = self.dispatch(now_us, pending, tx, out) else { return Ok(()) };
            self.queue.push_back(pending);
        } else {
            self.queue.push_back(pending);
        }
        self.pump(now_us, tx, out);
        Ok(())
    }

    /// Returns whether the next message may go at once.
    #[inline]
    fn has_window(&self) -> bool {
        self.phase == SessionPhase::Ready && self.sequence - self.acked < self.window
    }

    /// Sends a message, or reports that it cannot be sent. Gives it back if there is no room for it now.
    #[inline]
    fn dispatch(
        &mut self,
        now_us: u64,
        pending: PendingRequest<T>,
        tx: &mut impl DatagramSink,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) -> Option<PendingRequest<T>> {
        match self.send(now_us, pending, tx) {
            Ok(()) => None,
            Err((pending, RequestError::Busy)) => Some(pending),
            Err((pending, error)) => {
                let what = error.to_string();
                self.finish(pending, Err(Error::TooLarge { what }), out);
                None
            }
        }
    }

    /// Sends the messages that the window has room for.
    fn pump(
        &mut self,
        now_us: u64,
        tx: &mut impl DatagramSink,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) {
        if self.phase == SessionPhase::LoggedOut && !self.queue.is_empty() {
            self.greet(now_us, tx);
        }
        while self.has_window() {
            let Some(pending) = self.queue.pop_front() else { break };
            if let Some(pending) = self.dispatch(now_us, pending, tx, out) {
                self.queue.push_front(pending);
                break;
            }
        }
        self.queue_check_us = match self.queue_check_us {
            _ if self.queue.is_empty() => None,
            None => Some(now_us + limits::QUEUE_CHECK_INTERVAL_US),
            tick => tick,
        };
    }

    /// Says hello under the present session id; requests wait for its answer.
    fn greet(&mut self, now_us: u64, tx: &mut impl DatagramSink) {
        let Some(deadline) = self.queue.front().map(|front| front.tag.deadline) else { return };
        if let Some(seal) = self.seal.as_mut().filter(|seal| !seal.is_ready()) {
            return seal.begin(now_us, tx);
        }
        if self.send_hello(now_us, deadline, tx) {
            self.phase = SessionPhase::LoggingIn;
        }
    }

    /// Says hello in the middle of the session, whose requests go on. The server may have forgotten the session, and
    /// answer so many other clients that no answer reaches us. It stays the same session, so that a server that knows
    /// it regards what was given up as answered.
    fn repeat_login(&mut self, now_us: u64, deadline: Duration, tx: &mut impl DatagramSink) {
        if let Some(seal) = &mut self.seal {
            // Its keys may be forgotten, too; they are good until there are others.
            seal.begin(now_us, tx);
        }
        if self.has_window() {
            self.send_hello(now_us, deadline, tx);
        }
    }

    fn send_hello(&mut self, now_us: u64, deadline: Duration, tx: &mut impl DatagramSink) -> bool {
        let mut hello = Message::reuse(self.buffer());
        // In a sealed session the handshake has shown the token; it does not travel.
        let token = if self.seal.is_some() { &[] } else { self.login.token.as_bytes() };
        hello.hello(token);
        let Ok(message) = hello.finish(self.login.tenant) else { return false };
        let ends_us = now_us + deadline.as_micros() as u64;
        let (sent_us, session, sequence, restarts) = (now_us, self.id, 0, 0);
        let about = RequestContext { tag: None, deadline, ends_us, sent_us, session, sequence, restarts };
        self.send(now_us, TaggedRequest { message, tag: about }, tx).is_ok()
    }

    fn send(
        &mut self,
        now_us: u64,
        mut pending: PendingRequest<T>,
        tx: &mut impl DatagramSink,
    ) -> Result<(), (PendingRequest<T>, RequestError)> {
        let (about, sequence) = (&mut pending.tag, self.sequence + 1);
        (about.session, about.sequence, about.sent_us) = (self.id, sequence, now_us);
        let life_us = about.ends_us.saturating_sub(now_us).max(1);
        stamp_session(&mut pending.message, self.id, sequence, self.acked);
        self.endpoint.send_tagged(now_us, life_us, pending, &mut SessionSink::of(&mut self.seal, tx))?;
        self.sequence = sequence;
        self.done.push_back(false);
        if sequence as u32 == u32::MAX {
            // The next number would be bound to another start.
            self.reset();
        }
        Ok(())
    }

    /// Counts a message as answered, so that the server may forget its answer.
    fn settle(&mut self, session: u64, sequence: u64) {
        if session != self.id {
            return;
        }
        let index = sequence.checked_sub(self.acked + 1).and_then(|index| usize::try_from(index).ok());
        if let Some(done) = index.and_then(|index| self.done.get_mut(index)) {
            *done = true;
        }
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.acked += 1;
        }
    }

    fn finish(
        &mut self,
        pending: PendingRequest<T>,
        result: Result<SessionResponse<'_>, Error>,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) {
        self.recycle_buffer(pending.message);
        if let Some(tag) = pending.tag.tag {
            out(tag, result);
        }
    }

    /// Takes a datagram from the server's port.
    pub(crate) fn receive(
        &mut self,
        now_us: u64,
        datagram: &[u8],
        tx: &mut impl DatagramSink,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) {
        let Some(seal) = &mut self.seal else { return self.packet(now_us, datagram, tx, out) };
        let mut opened = std::mem::take(&mut self.opened);
        let was_ready = seal.is_ready();
        let part = seal.receive(now_us, datagram, &mut opened, tx);
        let is_ready = seal.is_ready();
        if let Some(packet) = part.and_then(|part| opened.get(part)) {
            self.packet(now_us, packet, tx, out);
        }
        self.opened = opened;
        if is_ready && !was_ready {
            self.pump(now_us, tx, out);
        }
    }

    /// Takes an R2P2 packet of the server.
    fn packet(
        &mut self,
        now_us: u64,
        packet: &[u8],
        tx: &mut impl DatagramSink,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) {
        let Some(response) = self.endpoint.receive(now_us, packet, &mut SessionSink::of(&mut self.seal, tx)) else {
            return;
        };
        let (pending, answer) = (response.request, response.message);
        self.silent_timeouts = 0;
        self.settle(pending.tag.session, pending.tag.sequence);
        self.look_at_home(now_us, &answer, tx);
        if pending.tag.tag.is_none() {
            self.greeted(pending, &answer, out);
            self.endpoint.start_mtu_probing(now_us);
            self.recycle(answer);
        } else if let Some(unknown) = SessionRejection::of(&answer) {
            self.forgotten(now_us, pending, unknown, out);
        } else {
            self.finish(pending, Ok(answer), out);
        }
        self.pump(now_us, tx, out);
    }

    /// Handles the answer to a hello: requests may go, or all that wait have failed. After a repeated hello the
    /// requests themselves show the outcome.
    fn greeted(
        &mut self,
        hello: PendingRequest<T>,
        answer: &[u8],
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) {
        let current = hello.tag.session == self.id;
        self.recycle_buffer(hello.message);
        if !current {
            return;
        }
        match decode_hello(answer) {
            Ok(ServerGreeting { start, .. }) if self.phase == SessionPhase::Ready && start != self.start => {
                self.reset_after_restart()
            }
            Ok(ServerGreeting { workers, home_worker, start }) => {
                self.server = Some(ServerTopology { workers, home_worker });
                if self.phase != SessionPhase::Ready && start != 0 {
                    self.start = start;
                    self.sequence = u64::from(start) << 32;
                    self.acked = self.sequence;
                    self.done.clear();
                }
                self.phase = SessionPhase::Ready;
            }
            Err(_) if self.phase == SessionPhase::Ready => {}
            Err(error) => {
                self.reset();
                for pending in std::mem::take(&mut self.queue) {
                    self.finish(pending, Err(error.clone()), out);
                }
            }
        }
    }

    /// Begins anew under another id.
    fn reset(&mut self) {
        self.phase = SessionPhase::LoggedOut;
        self.id = rand::rng().next_u64();
        (self.start, self.sequence, self.acked) = (0, 0, 0);
        self.done.clear();
    }

    /// Begins anew because the server does not know the session any more.
    fn reset_after_restart(&mut self) {
        self.reset();
        self.renewals += 1;
    }

    /// The server does not know the session of this request: it restarted, or forgot us. Unless it is merely stale, the
    /// request was not run by this transmission; it may have been by an earlier one, if there was one.
    fn forgotten(
        &mut self,
        now_us: u64,
        mut pending: PendingRequest<T>,
        unknown: SessionRejection,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) {
        if pending.tag.session == self.id && self.phase == SessionPhase::Ready {
            self.reset_after_restart();
        }
        let sent_once = now_us.saturating_sub(pending.tag.sent_us) < FIRST_RTO_US && unknown != SessionRejection::Stale;
        if pending.tag.restarts >= limits::MAX_REQUEUES {
            self.finish(pending, Err(unknown.error()), out);
        } else if sent_once || is_idempotent(&pending.message) {
            pending.tag.restarts += 1;
            self.queue.push_front(pending);
        } else {
            self.finish(pending, Err(Error::Stale), out);
        }
    }

    /// Resends what is due and gives up expired requests. Returns when to call again at the latest.
    pub(crate) fn poll(
        &mut self,
        now_us: u64,
        tx: &mut impl DatagramSink,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) -> Option<u64> {
        let seal_us = self.poll_seal(now_us, tx, out);
        let ended = &mut self.ended;
        let route = &mut SessionSink::of(&mut self.seal, tx);
        let mut due_us = self.endpoint.poll_timers(now_us, route, &mut |one| ended.push(one));
        if !self.ended.is_empty() {
            if let Some(deadline) = self.give_up(now_us, out) {
                self.repeat_login(now_us, deadline, tx);
            }
            self.pump(now_us, tx, out);
            due_us = self.endpoint.poll_timers(now_us, &mut SessionSink::of(&mut self.seal, tx), &mut |_| {});
        }
        if self.queue_check_us.is_some_and(|queue_check_us| queue_check_us <= now_us) {
            self.expire_queue(now_us, out);
            self.pump(now_us, tx, out);
        }
        [due_us, self.queue_check_us, seal_us].into_iter().flatten().min()
    }

    /// Continues a handshake that a request waits for. If the server rejects us, all requests that it has certainly not
    /// run fail with the reason. The others may still be answered.
    fn poll_seal(
        &mut self,
        now_us: u64,
        tx: &mut impl DatagramSink,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) -> Option<u64> {
        let wanted = self.waiting() > 0;
        let seal = self.seal.as_mut()?;
        let due_us = seal.poll(now_us, wanted, tx);
        let Some(refusal) = seal.take_refusal(now_us) else { return due_us };
        let error = match refusal {
            HandshakeRefusal::Token => Error::Unauthenticated,
            HandshakeRefusal::Tenant => Error::UnknownTenant,
        };
        self.reset();
        self.fail_matching(&error, out, |pending| pending.tag.tag.is_none() || is_idempotent(&pending.message));
        None
    }

    /// Reports the requests whose time is up. If hello is to be said again, returns the time to wait for its answer.
    fn give_up(
        &mut self,
        now_us: u64,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
    ) -> Option<Duration> {
        let (mut ended, mut again) = (std::mem::take(&mut self.ended), None);
        for FailedRequest { request: pending, failure, .. } in ended.drain(..) {
            self.settle(pending.tag.session, pending.tag.sequence);
            let is_current = pending.tag.session == self.id;
            if is_current && pending.tag.tag.is_none() && self.phase == SessionPhase::LoggingIn {
                // No server answered the hello: the next request says it again.
                self.reset();
            } else if is_current && failure == RequestFailure::TimedOut && pending.tag.sent_us >= self.last_timeout_us {
                // One counts of many requests that the same silence ends at once.
                (self.silent_timeouts, self.last_timeout_us) = (self.silent_timeouts + 1, now_us);
                if self.silent_timeouts == limits::TIMEOUTS_BEFORE_HELLO {
                    (self.silent_timeouts, again) = (0, Some(pending.tag.deadline));
                }
            }
            let error = match failure {
                RequestFailure::Refused if is_idempotent(&pending.message) => Error::Overloaded,
                RequestFailure::Refused | RequestFailure::TimedOut => Error::Timeout { after: pending.tag.deadline },
            };
            self.finish(pending, Err(error), out);
        }
        self.ended = ended;
        again
    }

    fn expire_queue(&mut self, now_us: u64, out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>)) {
        self.queue_check_us = Some(now_us + limits::QUEUE_CHECK_INTERVAL_US);
        for _ in 0..self.queue.len() {
            let Some(pending) = self.queue.pop_front() else { break };
            if pending.tag.ends_us <= now_us {
                let after = pending.tag.deadline;
                self.finish(pending, Err(Error::Timeout { after }), out);
            } else {
                self.queue.push_back(pending);
            }
        }
    }

    /// Ends every request with `error`.
    pub(crate) fn close(&mut self, error: &Error, out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>)) {
        self.fail_matching(error, out, |_| true);
    }

    /// Ends those in flight that are so, and all that wait.
    fn fail_matching(
        &mut self,
        error: &Error,
        out: &mut impl FnMut(T, Result<SessionResponse<'_>, Error>),
        are_so: impl Fn(&PendingRequest<T>) -> bool,
    ) {
        let ids = self.endpoint.in_flight().filter(|(_, pending)| are_so(pending)).map(|(id, _)| id);
        for id in ids.collect::<Vec<u16>>() {
            if let Some(pending) = self.endpoint.cancel(id) {
                self.finish(pending, Err(error.clone()), out);
            }
        }
        for pending in std::mem::take(&mut self.queue) {
            self.finish(pending, Err(error.clone()), out);
        }
    }
}

#[cfg(test)]
mod tests;
