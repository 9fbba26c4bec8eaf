//! memcached's datagrams: requests of one datagram each, answered in one or more, for the tenant that the port speaks for.

use std::sync::Arc;

use sandstorm_net::driver::{Burst, Driver, Outbox, UdpDriver};
use sandstorm_net::memcached::udp::{Header, datagrams};
use sandstorm_net::r2p2::Transmit;

use crate::protocols::Entrance;
use crate::protocols::memcached::Session;
use crate::workers::Worker;

/// A socket of one worker, on an address that all workers have.
pub(in crate::workers) struct Wicket {
    pub(super) driver: UdpDriver,
    /// What all who send there say: each datagram stands for itself.
    session: Session,
    burst: Burst,
    outbox: Outbox,
    answer: Vec<u8>,
}

impl Wicket {
    pub(in crate::workers) fn new(driver: UdpDriver, entrance: &Arc<Entrance>) -> Wicket {
        let (session, burst) = (Session::new(entrance), driver.burst());
        Wicket { driver, session, burst, outbox: Outbox::default(), answer: Vec::new() }
    }

    /// Whether answers wait for room.
    pub(super) fn is_full(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Answers what has come, and sends what waits.
    pub(super) fn serve(&mut self, worker: &mut Worker) {
        self.driver.receive(&mut self.burst);
        let mut requests = 0u32;
        for (peer, datagram) in self.burst.iter() {
            worker.counters.connection_bytes_in.add(datagram.len() as u64);
            let Some((header, said)) = Header::decode(datagram).filter(|(_, said)| !is_answer(said)) else {
                worker.counters.packets_dropped.add(1);
                continue;
            };
            self.answer.clear();
            if header.count == 1 {
                let context = worker.context();
                self.session.run_datagram(&context, said, &mut self.answer);
                requests = requests.saturating_add(context.requests.get());
            } else {
                self.answer.extend_from_slice(b"SERVER_ERROR multi-packet request not supported\r\n");
            }
            worker.counters.connection_bytes_out.add(self.answer.len() as u64);
            for (header, part) in datagrams(header.request, &self.answer).into_iter().flatten() {
                self.outbox.send(peer, &[&header, part]);
            }
        }
        worker.bill_connection(self.session.identity(), requests);
        self.driver.transmit(&mut self.outbox);
    }
}

/// Whether that begins as answers do, and no command. Were it answered, two servers whose addresses somebody has forged as each
/// other's clients would tell each other of errors for ever.
fn is_answer(said: &[u8]) -> bool {
    said.first().is_some_and(|first| first.is_ascii_uppercase() || first.is_ascii_digit())
}
