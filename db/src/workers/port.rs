//! A port: one worker's socket and what belongs to its peers. Its worker serves it; an idle neighbour may, too, under the
//! same lock. The lock is never held while tenant code runs.

use parking_lot::{Mutex, MutexGuard};
use sandstorm_net::driver::{Driver, Outbox, UdpDriver, Waiter, Waker};
use sandstorm_net::once::OnceWindow;
use sandstorm_net::r2p2::{Peer, ServerEndpoint};

use super::assembly::{Assembly, Origin, Place, Ticket};
use super::sessions::Sessions;

/// What a port remembers of its peers, and the way to them.
pub(super) struct PortState {
    pub(super) driver: UdpDriver,
    pub(super) desk: Desk,
}

/// Everything of a port but its driver: what requests are admitted against and responses leave through.
pub(super) struct Desk {
    pub(super) endpoint: ServerEndpoint,
    pub(super) once: OnceWindow,
    pub(super) sessions: Sessions<Peer>,
    pub(super) assembly: Assembly<Peer>,
    pub(super) outbox: Outbox,
    /// When the endpoint wants to be looked at next, in the workers' microseconds.
    pub(super) timer_us: Option<u64>,
    /// Where a response is put together.
    response: Vec<u8>,
}

/// One worker's socket, shared with the workers that may steal from it.
pub(super) struct Port {
    state: Mutex<PortState>,
    /// To sleep on until a packet or a signal comes.
    pub(super) waiter: Waiter,
    /// To end that sleep.
    pub(super) waker: Waker,
}

impl Port {
    pub(super) fn new(driver: UdpDriver, desk: Desk) -> Port {
        Port { waiter: driver.waiter(), waker: driver.waker(), state: Mutex::new(PortState { driver, desk }) }
    }

    /// Opens the port: its own worker waits for a neighbour to be done, a neighbour does not wait.
    pub(super) fn open(&self, own: bool) -> Option<MutexGuard<'_, PortState>> {
        if own { Some(self.state.lock()) } else { self.state.try_lock() }
    }
}

impl Desk {
    pub(super) fn new(endpoint: ServerEndpoint, once: OnceWindow, sessions: Sessions<Peer>, outbox: Outbox) -> Desk {
        Desk { endpoint, once, sessions, assembly: Assembly::new(), outbox, timer_us: None, response: Vec::new() }
    }

    /// Sends a response, and remembers it if its request must not run twice.
    pub(super) fn answer(&mut self, now_us: u64, origin: &Origin<Peer>, response: &[u8]) {
        if origin.remembered {
            let (session, sequence) = (origin.header.session, origin.header.sequence);
            self.once.complete(origin.peer, session, sequence, response);
        }
        self.endpoint.respond(now_us, origin.peer, origin.request_id, response, &mut self.outbox);
    }

    /// Sends an answer that [`Place::begin`] has begun, or keeps it until the rest of its response is there.
    pub(super) fn deliver(&mut self, now_us: u64, place: &Place<Peer>, answer: &[u8]) {
        match place {
            Place::Alone(origin) => self.answer(now_us, origin, answer),
            Place::Part { ticket, part } => self.part(now_us, *ticket, *part, answer),
        }
    }

    /// Adds one operation's answer to a waiting response and sends it when it is whole.
    fn part(&mut self, now_us: u64, ticket: Ticket, part: usize, answer: &[u8]) {
        let mut response = std::mem::take(&mut self.response);
        if let Some(origin) = self.assembly.part(ticket, part, answer, &mut response) {
            self.answer(now_us, &origin, &response);
        }
        response.clear();
        response.shrink_to(crate::limits::POOLED_RESPONSE_BYTES);
        self.response = response;
    }

    /// Lets the endpoint resend what was not acknowledged in time.
    pub(super) fn timers(&mut self, now_us: u64) {
        self.timer_us = self.endpoint.poll_timers(now_us, &mut self.outbox);
    }
}

impl PortState {
    /// Sends what is queued.
    pub(super) fn transmit(&mut self) {
        if !self.desk.outbox.is_empty() {
            self.driver.transmit(&mut self.desk.outbox);
        }
    }
}
