//! The part that drives a [`crate::Client`]: its socket, its sessions, and a background task that receives and keeps
//! time. A request is sent by the task that makes it. Over a driver other than the kernel's sockets a thread takes the
//! place of the background task, since such a driver has to be polled.

use crate::config::{Config, Route};
use crate::message::Message;
use crate::session::{ClientSession, SessionResponse};
use crate::stats::Stats;
use crate::{Error, limits};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;
use sandstorm_net::driver::{self as net, AnyDriver, Burst, DatagramDriver, DriverWaker, PathMtu as _};
use sandstorm_net::limits::{MAX_DATAGRAM_CEILING, SOCKET_BUFFER};
use sandstorm_net::r2p2::{DatagramSink, PeerAddr};
use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::UdpSocket;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

type ReplySender = oneshot::Sender<Result<Bytes, Error>>;

/// Drives a client and owns what runs in the background. The last clone of a client drops it, and so ends that.
pub(crate) struct RequestDispatcher {
    shared: Arc<DispatcherShared>,
    background: BackgroundWorker,
}

/// The task or thread that receives and keeps time.
enum BackgroundWorker {
    Task(AbortHandle),
    /// There until it is dropped.
    Thread(Option<JoinHandle<()>>),
}

struct DispatcherShared {
    transport: ClientTransport,
    state: Mutex<DispatcherState>,
    /// Tells the task that there is a timer before the one it sleeps for, or something to be written.
    wake: Notify,
    epoch: Instant,
    /// The time in milliseconds since 1970 at `epoch`.
    epoch_ms: u64,
    config: Config,
}

struct DispatcherState {
    /// One per server port that was ever talked to; few.
    sessions: Vec<ClientSession<ReplySender>>,
    /// Index of the session that new requests go to.
    current: usize,
    route: Route,
    /// Whether the first requests were answered: from then on no request goes to a port that has not answered.
    is_connected: bool,
    outbox: SocketOutbox,
    other: Option<Box<DriverIo>>,
    /// Longest sleep of the task.
    wakeup_us: u64,
    closed: bool,
    stats: Stats,
}

/// The socket or driver that datagrams pass through.
enum ClientTransport {
    Socket(UdpSocket),
    /// The driver is part of the state; this ends the sleep of its thread.
    Driver(DriverWaker),
}

/// A driver of another kind, with its buffers.
struct DriverIo {
    driver: AnyDriver,
    burst: Burst,
    outbox: net::Outbox,
}

/// Datagrams that the socket has not taken yet.
#[derive(Default)]
struct SocketOutbox {
    /// The kernel's, of a socket.
    path_mtu: Option<Arc<net::KernelPathMtu>>,
    waiting: VecDeque<(PeerAddr, Vec<u8>)>,
    bytes: usize,
    scratch: Vec<u8>,
    sent: u64,
}

/// Sends at once what the socket takes, or queues what a driver sends in a moment.
enum TransportSink<'a> {
    Socket(&'a UdpSocket, &'a mut SocketOutbox),
    Driver(&'a mut net::Outbox, &'a mut u64),
}

impl<'a> TransportSink<'a> {
    /// None without anything to send over.
    fn over(
        transport: &'a ClientTransport,
        outbox: &'a mut SocketOutbox,
        other: Option<&'a mut Box<DriverIo>>,
    ) -> Option<TransportSink<'a>> {
        match (transport, other) {
            (ClientTransport::Socket(socket), _) => Some(TransportSink::Socket(socket, outbox)),
            (ClientTransport::Driver(_), other) => Some(TransportSink::Driver(&mut other?.outbox, &mut outbox.sent)),
        }
    }
}

impl DatagramSink for TransportSink<'_> {
    fn most(&mut self, peer: PeerAddr) -> usize {
        match self {
            TransportSink::Socket(_, outbox) => {
                outbox.path_mtu.as_ref().map_or(MAX_DATAGRAM_CEILING, |path_mtu| path_mtu.most(peer))
            }
            TransportSink::Driver(outbox, _) => outbox.most(peer),
        }
    }

    fn send(&mut self, peer: PeerAddr, parts: &[&[u8]]) {
        let (socket, outbox) = match self {
            TransportSink::Socket(socket, outbox) => (socket, outbox),
            TransportSink::Driver(outbox, sent) => {
                **sent += 1;
                return outbox.send(peer, parts);
            }
        };
        let SocketOutbox { path_mtu, waiting, bytes, scratch, sent } = &mut **outbox;
        scratch.clear();
        for part in parts {
            scratch.extend_from_slice(part);
        }
        *sent += 1;
        if waiting.is_empty() {
            match socket.try_send_to(scratch, peer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                // Any other error loses the datagram, as a network may; retransmission and deadlines answer for it.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::MSGSIZE) => {
                    return path_mtu.iter().for_each(|path_mtu| path_mtu.refused(peer, scratch.len()));
                }
                _ => return,
            }
        }
        if *bytes + scratch.len() <= limits::MAX_OUTBOX_BYTES {
            *bytes += scratch.len();
            waiting.push_back((peer, scratch.clone()));
        }
    }
}

impl SocketOutbox {
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

/// Hands a result to the future that waits for it, if that was not dropped.
fn deliver(waiter: ReplySender, result: Result<SessionResponse<'_>, Error>) {
    let result = result.map(|answer| match answer {
        SessionResponse::Datagram(bytes) => Bytes::copy_from_slice(bytes),
        SessionResponse::Reassembled(bytes) => Bytes::from(bytes),
    });
    let _ = waiter.send(result);
}

impl RequestDispatcher {
    /// Binds, logs in at the first port, and moves to the one that the route names.
    pub(crate) async fn connect(config: Config) -> Result<Arc<RequestDispatcher>, Error> {
        let first = match config.route {
            Route::Home => 0,
            Route::Worker(worker) => worker,
        };
        let (mut path_mtu, mut other) = (None, None);
        let transport = match &config.drivers {
            None => {
                let socket = bind_socket(&config).await?;
                path_mtu = Some(net::KernelPathMtu::of(socket.as_fd(), socket.local_addr()?.ip()));
                ClientTransport::Socket(socket)
            }
            Some(drivers) => {
                let driver = drivers.open().map_err(|text| Error::Io { text })?;
                let (burst, outbox) = (driver.burst(), driver.outbox());
                let transport = ClientTransport::Driver(driver.waker());
                other = Some(Box::new(DriverIo { driver, burst, outbox }));
                transport
            }
        };
        let waiter = other.as_ref().map(|other| other.driver.waiter());
        let (epoch, epoch_ms) = (Instant::now(), now_ms());
        let most = other.as_ref().map(|other| other.driver.max_datagram());
        let session = new_session(&config, most, config.worker_address(first)?, epoch_ms);
        let route = config.route;
        let state = DispatcherState {
            sessions: vec![session],
            current: 0,
            route,
            is_connected: false,
            outbox: SocketOutbox { path_mtu, ..SocketOutbox::default() },
            other,
            wakeup_us: 0,
            closed: false,
            stats: Stats::default(),
        };
        let (state, wake) = (Mutex::new(state), Notify::new());
        let shared = Arc::new(DispatcherShared { transport, state, wake, epoch, epoch_ms, config });
        let guard = ShutdownGuard(Arc::clone(&shared));
        let background = match waiter {
            None => BackgroundWorker::Task(tokio::spawn(run_socket_task(guard)).abort_handle()),
            Some(waiter) => {
                let thread = std::thread::Builder::new().name("sandstorm-client".to_owned());
                BackgroundWorker::Thread(Some(thread.spawn(move || run_driver_thread(&guard, &waiter))?))
            }
        };
        let mover = Arc::new(RequestDispatcher { shared, background });
        mover.resolve_route().await?;
        Ok(mover)
    }

    /// Learns the home worker at the first port, and stays there if the home worker's own port does not answer.
    async fn resolve_route(&self) -> Result<(), Error> {
        let deadline = self.shared.config.deadline;
        self.ping(deadline).await?;
        let moved = self.shared.state.lock().current != 0;
        if moved && let Err(Error::Timeout { .. }) = self.ping(deadline).await {
            tracing::warn!("the home worker's port does not answer; staying with the first port");
            let mut state = self.shared.state.lock();
            (state.route, state.current) = (Route::Worker(0), 0);
            state.sessions.iter_mut().for_each(ClientSession::stop_following);
        }
        self.shared.state.lock().is_connected = true;
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
            stats.sessions_renewed += session.renewals();
        }
        stats
    }
}

impl Drop for RequestDispatcher {
    fn drop(&mut self) {
        match &mut self.background {
            BackgroundWorker::Task(task) => task.abort(),
            BackgroundWorker::Thread(thread) => {
                self.shared.state.lock().closed = true;
                self.shared.wake();
                // The thread is between two polls: the driver is given back when this returns. A panic there was
                // reported where it happened.
                let _ended = thread.take().map(JoinHandle::join);
            }
        }
    }
}

/// The kernel's socket for a client.
async fn bind_socket(config: &Config) -> Result<UdpSocket, Error> {
    let socket = UdpSocket::bind(config.local_address()).await?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER).map_err(std::io::Error::from)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER).map_err(std::io::Error::from)?;
    Ok(socket)
}

/// A session with one of the server's ports; `most` is what a driver can send at once.
fn new_session(config: &Config, most: Option<usize>, port: PeerAddr, epoch_ms: u64) -> ClientSession<ReplySender> {
    let login = config.login(epoch_ms);
    let mut session = match most {
        Some(most) => ClientSession::within(most, port, login, config.window),
        None => ClientSession::new(port, login, config.window),
    };
    if config.route == Route::Home {
        session.follow_home();
    }
    session
}

/// The time in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl DispatcherShared {
    fn now_us(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }

    fn server(&self) -> Option<crate::session::ServerTopology> {
        let state = self.state.lock();
        state.sessions.get(state.current).and_then(ClientSession::server)
    }

    fn submit(&self, waiter: ReplySender, message: Vec<u8>, deadline: Duration) -> Result<(), Error> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.closed {
            return Err(Error::Closed);
        }
        let now_us = self.now_us();
        let Some(session) = state.sessions.get_mut(state.current) else { return Err(Error::Closed) };
        state.stats.requests += 1;
        let tx = TransportSink::over(&self.transport, &mut state.outbox, state.other.as_mut());
        let mut tx = tx.ok_or(Error::Closed)?;
        session.submit(now_us, waiter, message, deadline, &mut tx, &mut deliver)?;
        let due_us = session.poll(now_us, &mut tx, &mut deliver).unwrap_or(u64::MAX);
        let waits = match &mut state.other {
            Some(other) => {
                other.driver.transmit(&mut other.outbox);
                !other.outbox.is_empty()
            }
            None => !state.outbox.waiting.is_empty(),
        };
        let wake = due_us < state.wakeup_us || waits;
        state.wakeup_us = state.wakeup_us.min(due_us);
        drop(guard);
        if wake {
            self.wake();
        }
        Ok(())
    }

    /// Makes the background task or thread look again.
    fn wake(&self) {
        match &self.transport {
            ClientTransport::Socket(_) => self.wake.notify_one(),
            ClientTransport::Driver(waker) => waker.wake(),
        }
    }

    /// Receives what there is (up to a burst), runs timers, writes. Returns the time until which to sleep, whether
    /// there may be more to receive, and whether something waits to be written.
    fn turn(&self, socket: &UdpSocket, buffer: &mut [u8]) -> (u64, bool, bool) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let now_us = self.now_us();
        let mut more = true;
        state.outbox.flush(socket);
        let mut tx = TransportSink::Socket(socket, &mut state.outbox);
        for _ in 0..limits::RECEIVE_BURST {
            // An error is about a datagram sent before; its request is resent.
            let Ok((len, peer)) = socket.try_recv_from(buffer) else {
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
        due_us = due_us.min(self.switch_to_home_port(state, now_us));
        state.wakeup_us = due_us;
        (due_us, more, !state.outbox.waiting.is_empty())
    }

    /// The same over a driver; none when the client was dropped.
    fn poll_driver(&self) -> Option<(u64, bool, bool)> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let DriverIo { driver, burst, outbox } = &mut **state.other.as_mut().filter(|_| !state.closed)?;
        driver.transmit(outbox);
        let received = driver.receive(burst);
        let now_us = self.now_us();
        let mut tx = TransportSink::Driver(outbox, &mut state.outbox.sent);
        for (peer, datagram) in burst.iter().take(received) {
            if let Some(session) = state.sessions.iter_mut().find(|session| session.peer() == peer) {
                session.receive(now_us, datagram, &mut tx, &mut deliver);
            }
        }
        let mut due_us = u64::MAX;
        for session in &mut state.sessions {
            due_us = due_us.min(session.poll(now_us, &mut tx, &mut deliver).unwrap_or(u64::MAX));
        }
        due_us = due_us.min(self.switch_to_home_port(state, now_us));
        let DriverIo { driver, outbox, .. } = &mut **state.other.as_mut()?;
        driver.transmit(outbox);
        let waits = !outbox.is_empty();
        state.wakeup_us = due_us;
        Some((due_us, received > 0, waits))
    }

    /// Sends new requests to the home worker's port, once it is known, or after it moved and the new port has answered.
    /// What is under way ends at the old port. Returns when it has to be called again at the latest.
    fn switch_to_home_port(&self, state: &mut DispatcherState, now_us: u64) -> u64 {
        const NEVER: u64 = u64::MAX;
        if state.route != Route::Home {
            return NEVER;
        }
        let Some(server) = state.sessions.get(state.current).and_then(ClientSession::server) else { return NEVER };
        let Ok(home) = self.config.worker_address(server.home_worker) else { return NEVER };
        if state.sessions.get(state.current).is_some_and(|session| session.peer() == home) {
            return NEVER;
        }
        let known = state.sessions.iter().position(|session| session.peer() == home);
        let place = known.unwrap_or_else(|| {
            let most = state.other.as_ref().map(|other| other.driver.max_datagram());
            state.sessions.push(new_session(&self.config, most, home, self.epoch_ms));
            state.sessions.len() - 1
        });
        let Some(session) = state.sessions.get_mut(place) else { return NEVER };
        if session.is_ready() || !state.is_connected {
            // Its own last hello may tell of an older home, and requests would go back there.
            session.learn_home(server);
            state.current = place;
            return NEVER;
        }
        let Some(mut tx) = TransportSink::over(&self.transport, &mut state.outbox, state.other.as_mut()) else {
            return NEVER;
        };
        if session.waiting() == 0 {
            self.probe(session, now_us, &mut tx);
        }
        session.poll(now_us, &mut tx, &mut deliver).unwrap_or(NEVER)
    }

    /// Sends a ping that shows whether a port answers, and which server has the session.
    fn probe(&self, session: &mut ClientSession<ReplySender>, now_us: u64, tx: &mut TransportSink<'_>) {
        let mut message = Message::new();
        message.ping(&[]);
        if let Ok(message) = message.finish(self.config.tenant) {
            let (waiter, _dropped_answer) = oneshot::channel();
            // One that is not answered is followed by another one.
            let _refused = session.submit(now_us, waiter, message, limits::REQUEST_DEADLINE, tx, &mut deliver);
        }
    }
}

/// Ends all requests when the task ends, also by a panic.
struct ShutdownGuard(Arc<DispatcherShared>);

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        for session in &mut state.sessions {
            session.close(&Error::Closed, &mut deliver);
        }
        // Another sender may have it now.
        state.other = None;
    }
}

/// Looks after a driver until the client is dropped.
fn run_driver_thread(guard: &ShutdownGuard, waiter: &net::DriverWaiter) {
    let shared = &guard.0;
    while let Some((due_us, more, writing)) = shared.poll_driver() {
        if more {
            continue;
        }
        let wait_us = (due_us != u64::MAX).then(|| due_us.saturating_sub(shared.now_us()).max(1));
        if waiter.wait(wait_us, writing).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

async fn run_socket_task(guard: ShutdownGuard) {
    let shared = &guard.0;
    let ClientTransport::Socket(socket) = &shared.transport else { return };
    let mut buffer = vec![0; MAX_DATAGRAM_CEILING];
    loop {
        let (due_us, more, writing) = shared.turn(socket, &mut buffer);
        if more {
            tokio::task::yield_now().await;
            continue;
        }
        let due = shared.epoch + Duration::from_micros(due_us.min(u64::from(u32::MAX) * 1_000_000));
        tokio::select! {
            // Errors of the socket come back from receiving and are dealt with there.
            _ = socket.readable() => {}
            _ = socket.writable(), if writing => {}
            () = shared.wake.notified() => {}
            () = tokio::time::sleep_until(due.into()), if due_us != u64::MAX => {}
        }
    }
}
