//! A port: one worker's socket and what belongs to its peers. Its worker serves it; an idle neighbour may, too, under the
//! same lock. The lock is never held while tenant code runs.

use parking_lot::{Mutex, MutexGuard};
use sandstorm_net::driver::{Driver, Outbox, UdpDriver, Waiter, Waker};
use sandstorm_net::once::OnceWindow;
use sandstorm_net::r2p2::{Peer, ServerEndpoint};

use super::assembly::{Assembly, Origin, Ticket, start_response};
use super::sessions::Sessions;
use crate::limits::POOLED_RESPONSE_BYTES;

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
    /// Where a response of several parts is put together.
    response: Vec<u8>,
    /// Where an answer is written.
    answer: Vec<u8>,
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
        Desk {
            endpoint,
            once,
            sessions,
            assembly: Assembly::new(),
            outbox,
            timer_us: None,
            response: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// Sends a response, and remembers it if its request must not run twice.
    pub(super) fn answer(&mut self, now_us: u64, origin: &Origin<Peer>, response: &[u8]) {
        if origin.remembered {
            let header = &origin.header;
            self.once.complete(origin.peer, header.tenant, header.session, header.sequence, response);
        }
        self.endpoint.respond(now_us, origin.peer, origin.request_id, response, &mut self.outbox);
    }

    /// Has the answer to one operation of a waiting response written; sends the response if nothing else of it is missing.
    pub(super) fn deliver(&mut self, now_us: u64, ticket: Ticket, part: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let mut answer = std::mem::take(&mut self.answer);
        if let Some(origin) = self.assembly.take_alone(ticket) {
            start_response(&origin.header, 1, &mut answer);
            write(&mut answer);
            self.answer(now_us, &origin, &answer);
        } else {
            answer.clear();
            write(&mut answer);
            let mut response = std::mem::take(&mut self.response);
            if let Some(origin) = self.assembly.part(ticket, part, &answer, &mut response) {
                self.answer(now_us, &origin, &response);
            }
            pooled(&mut response);
            self.response = response;
        }
        pooled(&mut answer);
        self.answer = answer;
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

/// Makes a buffer ready to be kept for the next use: not larger than what most responses take.
pub(super) fn pooled(buffer: &mut Vec<u8>) {
    if buffer.capacity() > POOLED_RESPONSE_BYTES {
        buffer.clear();
        buffer.shrink_to(POOLED_RESPONSE_BYTES);
    }
}
