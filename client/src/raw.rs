//! The fast path without a runtime: one thread, one connection, busy polling, for load generators and benchmarks. It
//! has no locks, no wake-ups, and no allocation per request in the steady state. It uses net's UDP driver, so that
//! neighbouring datagrams leave and arrive in one system call where the kernel can segment; or it uses the drivers that
//! the configuration names.
//!
//! ```no_run
//! use sandstorm_client::{Config, raw::Connection};
//!
//! # fn main() -> Result<(), sandstorm_client::Error> {
//! let mut connection = Connection::connect(&Config::new(([127, 0, 0, 1], 7400).into(), 1))?;
//! for mark in 0..32 {
//!     let mut message = connection.message();
//!     message.get(1, b"some key");
//!     message.get(1, b"another key");
//!     connection.send(mark, message)?;
//! }
//! let mut answered = 0;
//! while answered < 32 {
//!     answered += connection.poll(|mark, answer| {
//!         println!("{mark}: {} bytes", answer.map_or(0, |answer| answer.len()));
//!     });
//! }
//! # Ok(())
//! # }
//! ```

pub use crate::commit_message::CommitMessage;
pub use crate::message::Message;
pub use sandstorm_net::rpc::{CommitRow, CommitRows, CommitStep, push_commit_row};

use crate::config::{Config, Route};
use crate::dispatcher::now_ms;
use crate::session::{ClientSession, ServerTopology, SessionResponse};
use crate::{Error, limits};
use sandstorm_net::driver::{AnyDriver, ArrivalClock, Burst, DatagramDriver, Outbox, UdpDriver, UdpOptions};
use sandstorm_net::r2p2::R2p2ClientCounters;
use sandstorm_net::rpc::{MessageHeader, Operation};
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A connection that its owner polls.
pub struct Connection {
    driver: AnyDriver,
    /// Its own receive buffers, if its driver is not a kernel socket: see [`ReceiveBuffers`].
    burst: Option<Box<Burst>>,
    outbox: Outbox,
    session: ClientSession<u64>,
    epoch: Instant,
    tenant: u32,
    deadline: Duration,
    /// Requests that failed while they were sent; reported at the next poll.
    failed: Vec<(u64, Error)>,
    next_timer_us: u64,
    arrivals: ArrivalClock,
    /// When the clocks are compared next, in microseconds since `epoch`.
    next_comparison_us: u64,
}

impl Connection {
    /// Binds a socket, logs in, and moves to the home worker's port (or where the route says). Waits for the server,
    /// polling.
    ///
    /// # Errors
    /// As [`crate::Client::connect`].
    pub fn connect(config: &Config) -> Result<Connection, Error> {
        let first = match config.route {
            Route::Home => 0,
            Route::Worker(worker) => worker,
        };
        let mut connection = Connection::open(config, first, open_driver(config)?)?;
        let server = connection.greet()?;
        if config.route == Route::Home && server.home_worker != 0 {
            // The driver is reused for another port; later packets from the first port are not the home's, and are
            // ignored.
            connection = Connection::open(config, server.home_worker, connection.driver)?;
            connection.greet()?;
        }
        connection.deadline = config.deadline;
        Ok(connection)
    }

    fn open(config: &Config, worker: u32, driver: AnyDriver) -> Result<Connection, Error> {
        let (server, login) = (config.worker_address(worker)?, config.login(now_ms()));
        Ok(Connection {
            burst: match &driver {
                AnyDriver::Udp(_) => None,
                AnyDriver::Other(_) => Some(Box::new(driver.burst())),
            },
            outbox: driver.outbox(),
            session: ClientSession::within(driver.max_datagram(), server, login, config.window),
            driver,
            epoch: Instant::now(),
            tenant: config.tenant,
            deadline: config.deadline,
            failed: Vec::new(),
            next_timer_us: 0,
            arrivals: ArrivalClock::default(),
            next_comparison_us: 0,
        })
    }

    /// Says hello by way of a ping, and waits for both.
    fn greet(&mut self) -> Result<ServerTopology, Error> {
        let mut message = self.message();
        message.ping(&[]);
        self.send(0, message)?;
        let mut result = None;
        while result.is_none() {
            if self.poll(|_, answer| result = Some(answer.map(|_| ()))) == 0 {
                std::thread::yield_now();
            }
        }
        result.unwrap_or(Err(Error::Closed))?;
        self.session.server().ok_or_else(|| Error::Protocol { text: "a ping was answered before the hello".into() })
    }

    /// Finds out what Unix time the connection's clock began at.
    #[cold]
    fn compare_clocks(&mut self, now_us: u64) {
        let now_ns = self.epoch.elapsed().as_nanos() as u64;
        let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        self.arrivals.note(now_ns, unix_ns);
        self.next_comparison_us = now_us + limits::CLOCK_COMPARISON_INTERVAL_US;
    }

    fn us_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_micros() as u64
    }

    /// Returns what the server said at log-in: number of workers and home worker.
    pub fn server(&self) -> Option<(u32, u32)> {
        self.session.server().map(|server| (server.workers, server.home_worker))
    }

    /// Returns the counts of the R2P2 endpoint.
    pub fn counters(&self) -> &R2p2ClientCounters {
        self.session.counters()
    }

    /// The kernel's socket, if the connection has one: something may have arrived when it can be read.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.driver {
            AnyDriver::Udp(driver) => Some(driver.as_fd()),
            AnyDriver::Other(_) => None,
        }
    }

    /// Requests without an answer.
    pub fn in_flight(&self) -> usize {
        self.session.waiting()
    }

    /// Messages that the window has room for at present. More can be sent; they wait.
    pub fn free_slots(&self) -> usize {
        self.session.free_slots()
    }

    /// The former name of [`Connection::free_slots`].
    #[deprecated(note = "call `free_slots`")]
    pub fn room(&self) -> usize {
        self.free_slots()
    }

    /// An empty message, in a buffer used before.
    pub fn message(&mut self) -> Message {
        Message::reuse(self.session.buffer())
    }

    /// Queues a message for the next [`Connection::flush`] or [`Connection::poll`]. Its answer comes with `tag`.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Busy`]; it will not be sent then.
    pub fn send(&mut self, tag: u64, message: Message) -> Result<(), Error> {
        self.send_at(Instant::now(), tag, message)
    }

    /// The same for a caller that has just read the clock.
    pub(crate) fn send_at(&mut self, now: Instant, tag: u64, message: Message) -> Result<(), Error> {
        let now_us = self.us_at(now);
        let message = message.finish(self.tenant)?;
        let failed = &mut self.failed;
        self.session.submit(now_us, tag, message, self.deadline, &mut self.outbox, &mut |tag, result| {
            if let Err(error) = result {
                failed.push((tag, error));
            }
        })
    }

    /// Hands queued datagrams to the kernel.
    pub fn flush(&mut self) {
        if !self.outbox.is_empty() {
            self.driver.transmit(&mut self.outbox);
        }
    }

    /// Sends what is queued, takes what has arrived, runs timers. `each` gets the mark of every request that ended and
    /// its answer. Returns the number that ended. Never waits.
    pub fn poll(&mut self, each: impl FnMut(u64, Result<Response<'_>, Error>)) -> usize {
        self.poll_at(Instant::now(), each)
    }

    /// The same for a caller that has just read the clock.
    pub(crate) fn poll_at(&mut self, now: Instant, mut each: impl FnMut(u64, Result<Response<'_>, Error>)) -> usize {
        let now_us = self.us_at(now);
        self.flush();
        let mut ended = 0;
        for (tag, error) in self.failed.drain(..) {
            ended += 1;
            each(tag, Err(error));
        }
        // When the kernel received the datagram that is looked at.
        let arrived = Cell::new(None);
        let mut out = |tag: u64, result: Result<SessionResponse<'_>, Error>| {
            ended += 1;
            each(tag, result.map(|answer| Response { answer, arrived: arrived.get() }));
        };
        let own = self.burst.is_some();
        let mut burst = self.burst.take().unwrap_or_else(ReceiveBuffers::take);
        let received = self.driver.receive(&mut burst);
        if received > 0 {
            if now_us >= self.next_comparison_us {
                self.compare_clocks(now_us);
            }
            let (server, now_ns) = (self.session.peer(), self.epoch.elapsed().as_nanos() as u64);
            let mut messages = burst.arrivals().iter().peekable();
            for (index, (peer, datagram)) in burst.iter().enumerate() {
                if let Some(message) = messages.next_if(|message| message.first as usize == index) {
                    let received_ns = self.arrivals.received_ns(message.unix_ns, now_ns);
                    arrived.set(Some(self.epoch + Duration::from_nanos(received_ns)));
                }
                if peer == server {
                    self.session.receive(now_us, datagram, &mut self.outbox, &mut out);
                }
            }
        }
        if own {
            self.burst = Some(burst);
        } else {
            ReceiveBuffers::give_back(burst);
        }
        if received > 0 || now_us >= self.next_timer_us {
            self.session.poll(now_us, &mut self.outbox, &mut out);
            self.next_timer_us = now_us + limits::RAW_TIMER_INTERVAL_US;
        }
        self.flush();
        ended
    }
}

/// The receive buffers that all connections of a thread over kernel sockets share: a poll leaves nothing in them.
///
/// They are 2 MiB. A thread with a thousand connections would take 2 GiB for buffers of their own, and receive each
/// answer into memory that no cache has.
struct ReceiveBuffers;

thread_local! {
    static RECEIVE_BUFFERS: Cell<Option<Box<Burst>>> = const { Cell::new(None) };
}

impl ReceiveBuffers {
    /// New ones if a poll is under way on this thread: an answer's handler may poll another connection.
    fn take() -> Box<Burst> {
        RECEIVE_BUFFERS.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    fn give_back(mut burst: Box<Burst>) {
        burst.clear();
        // A thread that ends keeps none.
        let _ended = RECEIVE_BUFFERS.try_with(|kept| kept.set(Some(burst)));
    }
}

/// Opens a driver to the server, one that says when answers came if it can.
fn open_driver(config: &Config) -> Result<AnyDriver, Error> {
    if let Some(drivers) = &config.drivers {
        return drivers.open().map_err(|text| Error::Io { text });
    }
    let options = UdpOptions { receive_times: true, ..UdpOptions::default() };
    let bound = UdpDriver::bind(config.local_address(), options);
    bound.map(AnyDriver::from).map_err(|error| Error::Io { text: error.to_string() })
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection {{ to {}, tenant {} }}", self.session.peer(), self.tenant)
    }
}

/// An answered message.
#[derive(Debug)]
pub struct Response<'p> {
    answer: SessionResponse<'p>,
    arrived: Option<Instant>,
}

impl Response<'_> {
    /// Bytes of the message.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.answer.len()
    }

    /// When the kernel received the last packet of the message. `None` if it does not say: the message was there when
    /// the connection was polled.
    pub fn arrived(&self) -> Option<Instant> {
        self.arrived
    }

    /// The answers, one per operation asked, in order, as they travel.
    ///
    /// # Errors
    /// Each item may be [`Error::Protocol`] when it cannot be read; it is the last one then.
    pub fn operations(&self) -> impl Iterator<Item = Result<Operation<'_>, Error>> {
        let protocol = |error: sandstorm_net::rpc::MessageDecodeError| Error::Protocol { text: error.to_string() };
        let (header, operations) = match MessageHeader::decode(&self.answer) {
            Ok((_, operations)) => (None, Some(operations)),
            Err(error) => (Some(Err(protocol(error))), None),
        };
        header.into_iter().chain(operations.into_iter().flatten().map(move |operation| operation.map_err(protocol)))
    }
}

/// The error that an answered operation means; `None` when it is a success or a record not found.
pub fn operation_error(operation: &Operation<'_>) -> Option<Error> {
    Error::of(operation)
}
