//! What moves a [`crate::Client`]: its socket, its sessions, and a background task that receives and keeps time. Requests
//! are sent by the task that makes them.

use crate::client::{Config, Route, Stats};
use crate::message::Message;
use crate::session::{Answer, Session};
use crate::{Error, limits};
use bytes::Bytes;
use parking_lot::Mutex;
use sandstorm_net::limits::SOCKET_BUFFER;
use sandstorm_net::r2p2::{Peer, Transmit};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::UdpSocket;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

type Waiter = oneshot::Sender<Result<Bytes, Error>>;

/// Owns the background task; the last clone of a client drops it, and the task with it.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    socket: UdpSocket,
    state: Mutex<State>,
    /// Tells the task that there is a timer before the one it sleeps for, or something to be written.
    wake: Notify,
    epoch: Instant,
    /// The time in milliseconds since 1970 at `epoch`.
    epoch_ms: u64,
    config: Config,
}

struct State {
    /// One per server port that was ever talked to; few.
    sessions: Vec<Session<Waiter>>,
    /// Where new requests go.
    current: usize,
    route: Route,
    outbox: Outbox,
    /// What the task sleeps for at most.
    sleeps_until_us: u64,
    closed: bool,
    stats: Stats,
}

/// Datagrams that the socket has not taken yet.
#[derive(Default)]
struct Outbox {
    waiting: VecDeque<(Peer, Vec<u8>)>,
    bytes: usize,
    scratch: Vec<u8>,
    sent: u64,
}

/// Sends at once what the socket takes.
struct Sending<'a> {
    socket: &'a UdpSocket,
    outbox: &'a mut Outbox,
}

impl Transmit for Sending<'_> {
    fn send(&mut self, peer: Peer, parts: &[&[u8]]) {
        let Outbox { waiting, bytes, scratch, sent } = &mut *self.outbox;
        scratch.clear();
        for part in parts {
            scratch.extend_from_slice(part);
        }
        *sent += 1;
        if waiting.is_empty() {
            match self.socket.try_send_to(scratch, peer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                // Any other error loses the datagram, as a network may; retransmission and deadlines answer for it.
                _ => return,
            }
        }
        if *bytes + scratch.len() <= limits::OUTBOX_BYTES {
            *bytes += scratch.len();
            waiting.push_back((peer, scratch.clone()));
        }
    }
}

impl Outbox {
    fn flush(&mut self, socket: &UdpSocket) {
        while let Some((peer, datagram)) = self.waiting.front() {
            match socket.try_send_to(datagram, *peer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                _ => self.bytes -= datagram.len(),
            }
            self.waiting.pop_front();
        }
    }
}

/// Hands a result to whoever waits for it; a future that was dropped does not.
fn deliver(waiter: Waiter, result: Result<Answer<'_>, Error>) {
    let result = result.map(|answer| match answer {
        Answer::Datagram(bytes) => Bytes::copy_from_slice(bytes),
        Answer::Assembled(bytes) => Bytes::from(bytes),
    });
    let _ = waiter.send(result);
}

impl Driver {
    /// Binds, logs in at the first port, and moves to the one that the route names.
    pub(crate) async fn connect(config: Config) -> Result<Arc<Driver>, Error> {
        let socket = UdpSocket::bind(config.local_address()).await?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER).map_err(std::io::Error::from)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER).map_err(std::io::Error::from)?;
        let first = match config.route {
            Route::Home => 0,
            Route::Worker(worker) => worker,
        };
        let (epoch, epoch_ms) = (Instant::now(), now_ms());
        let session = Session::new(config.worker_address(first)?, config.login(epoch_ms), config.window);
        let route = config.route;
        let state = State {
            sessions: vec![session],
            current: 0,
            route,
            outbox: Outbox::default(),
            sleeps_until_us: 0,
            closed: false,
            stats: Stats::default(),
        };
        let (state, wake) = (Mutex::new(state), Notify::new());
        let shared = Arc::new(Shared { socket, state, wake, epoch, epoch_ms, config });
        let task = tokio::spawn(run(Guard(Arc::clone(&shared)))).abort_handle();
        let driver = Arc::new(Driver { shared, task });
        driver.settle_route().await?;
        Ok(driver)
    }

    /// Learns the home worker at the first port, and stays there if the home worker's own port does not answer.
    async fn settle_route(&self) -> Result<(), Error> {
        let deadline = self.shared.config.deadline;
        self.ping(deadline).await?;
        let moved = self.shared.state.lock().current != 0;
        if moved && let Err(Error::Timeout { .. }) = self.ping(deadline).await {
            tracing::warn!("the home worker's port does not answer; staying with the first port");
            let mut state = self.shared.state.lock();
            (state.route, state.current) = (Route::Worker(0), 0);
        }
        Ok(())
    }

    async fn ping(&self, deadline: Duration) -> Result<(), Error> {
        let mut message = Message::new();
        message.ping(&[]);
        self.request(message, deadline).await.map(drop)
    }

    /// Sends a message and awaits its answer.
    pub(crate) async fn request(&self, message: Message, deadline: Duration) -> Result<Bytes, Error> {
        let message = message.finish(self.shared.config.tenant)?;
        let (waiter, answer) = oneshot::channel();
        self.shared.submit(waiter, message, deadline)?;
        answer.await.unwrap_or(Err(Error::Closed))
    }

    pub(crate) fn workers(&self) -> u32 {
        self.shared.server().map_or(1, |server| server.workers)
    }

    pub(crate) fn home_worker(&self) -> u32 {
        self.shared.server().map_or(0, |server| server.home_worker)
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.shared.state.lock();
        let mut stats = Stats { datagrams_sent: state.outbox.sent, ..state.stats };
        for session in &state.sessions {
            let counters = session.counters();
            stats.datagrams_received += counters.datagrams;
            stats.retransmissions += counters.retransmissions;
            stats.answered += counters.responses;
            stats.timeouts += counters.timed_out;
            stats.sessions_renewed += session.renewed();
        }
        stats
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The time in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Shared {
    fn now_us(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }

    fn server(&self) -> Option<crate::session::Server> {
        let state = self.state.lock();
        state.sessions.get(state.current).and_then(Session::server)
    }

    fn submit(&self, waiter: Waiter, message: Vec<u8>, deadline: Duration) -> Result<(), Error> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.closed {
            return Err(Error::Closed);
        }
        let now_us = self.now_us();
        let Some(session) = state.sessions.get_mut(state.current) else { return Err(Error::Closed) };
        state.stats.requests += 1;
        let mut tx = Sending { socket: &self.socket, outbox: &mut state.outbox };
        session.submit(now_us, waiter, message, deadline, &mut tx, &mut deliver)?;
        let due_us = session.poll(now_us, &mut tx, &mut deliver).unwrap_or(u64::MAX);
        let wake = due_us < state.sleeps_until_us || !state.outbox.waiting.is_empty();
        state.sleeps_until_us = state.sleeps_until_us.min(due_us);
        drop(guard);
        if wake {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Receives what there is (up to a burst), runs timers, writes. Returns until when to sleep, and whether there may be
    /// more to receive, and whether something waits to be written.
    fn turn(&self, buffer: &mut [u8]) -> (u64, bool, bool) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let now_us = self.now_us();
        let mut more = true;
        state.outbox.flush(&self.socket);
        let mut tx = Sending { socket: &self.socket, outbox: &mut state.outbox };
        for _ in 0..limits::RECEIVE_BURST {
            // An error is about a datagram sent before; its request is resent.
            let Ok((len, peer)) = self.socket.try_recv_from(buffer) else {
                more = false;
                break;
            };
            let session = state.sessions.iter_mut().find(|session| session.peer() == peer);
            if let (Some(session), Some(datagram)) = (session, buffer.get(..len)) {
                session.receive(now_us, datagram, &mut tx, &mut deliver);
            }
        }
        let mut due_us = u64::MAX;
        for session in &mut state.sessions {
            due_us = due_us.min(session.poll(now_us, &mut tx, &mut deliver).unwrap_or(u64::MAX));
        }
        self.follow_home(state);
        state.sleeps_until_us = due_us;
        (due_us, more, !state.outbox.waiting.is_empty())
    }

    /// Sends new requests to the home worker's port, once it is known or after it moved.
    fn follow_home(&self, state: &mut State) {
        if state.route != Route::Home {
            return;
        }
        let Some(server) = state.sessions.get(state.current).and_then(Session::server) else { return };
        let Ok(home) = self.config.worker_address(server.home_worker) else { return };
        if state.sessions.get(state.current).is_some_and(|session| session.peer() == home) {
            return;
        }
        let known = state.sessions.iter().position(|session| session.peer() == home);
        state.current = known.unwrap_or_else(|| {
            state.sessions.push(Session::new(home, self.config.login(self.epoch_ms), self.config.window));
            state.sessions.len() - 1
        });
    }
}

/// Ends all requests when the task ends, whichever way.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        for session in &mut state.sessions {
            session.close(&Error::Closed, &mut deliver);
        }
    }
}

async fn run(guard: Guard) {
    let shared = &guard.0;
    let mut buffer = vec![0; sandstorm_net::limits::MAX_DATAGRAM_CEILING];
    loop {
        let (due_us, more, writing) = shared.turn(&mut buffer);
        if more {
            tokio::task::yield_now().await;
            continue;
        }
        let due = shared.epoch + Duration::from_micros(due_us.min(u64::from(u32::MAX) * 1_000_000));
        tokio::select! {
            // Errors of the socket come back from receiving and are dealt with there.
            _ = shared.socket.readable() => {}
            _ = shared.socket.writable(), if writing => {}
            () = shared.wake.notified() => {}
            () = tokio::time::sleep_until(due.into()), if due_us != u64::MAX => {}
        }
    }
}
