//! A seeded simulator without sockets or clocks: one server endpoint with its at-most-once window and a small store,
//! several clients, and a network between them that loses, duplicates, delays and reorders. The server may restart, and
//! clients may change their address. A run depends on its [`SimScenario`] alone;
//! [`SimScenario::check`] runs it and, if a promise was broken, runs it again and gives one line per event.

use crate::limits::ClientLimits;
use crate::r2p2::{ClientEndpoint, PeerAddr, RequestFailure, ServerEndpoint};
use crate::reply_cache::{ReplyCache, RequestAdmission};
use crate::rpc::{MESSAGE_FLAG_IDEMPOTENT, MessageHeader, OpKind, Operation, STALE_PREVIOUS_START, encode_message};
use crate::seal::{ClientSeal, ServerSeal};
use sealed::{CLOCK_MS, SimClientSink, SimServerSink, SimTokenSource, TOKEN, new_seal, send_forged_hellos};
use shared_values::SharedValues;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

mod scenario;
mod sealed;
mod shared_values;

pub use scenario::{SimReport, SimScenario};

/// Deterministic random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// Dice that fall as `seed` says.
    pub fn new(seed: u64) -> SeededRng {
        SeededRng(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below `limit` (0 for a limit of 0).
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.any() % limit }
    }

    /// True in `percent` of 100 throws.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

enum SimEvent {
    ToServer(PeerAddr, Vec<u8>),
    ToClient(usize, Vec<u8>),
    /// The number of the start of the server that responds.
    ResponseReady {
        start: u32,
        peer: PeerAddr,
        request_id: u16,
        message: Vec<u8>,
    },
}

/// A client's state of a request in flight.
struct SimRequest {
    session: u64,
    sequence: u64,
    answer_len: usize,
    once: bool,
}

struct SimClient {
    peer: PeerAddr,
    seal: Option<ClientSeal>,
    endpoint: ClientEndpoint,
    session: u64,
    sequence: u64,
    acked: u64,
    done: Vec<u64>,
    open: HashMap<u16, SimRequest>,
    left: u64,
}

struct SimRun {
    world: SimScenario,
    dice: SeededRng,
    now_us: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: HashMap<u64, SimEvent>,
    made: u64,
    /// The number of this start of the server.
    start: u32,
    server: ServerEndpoint,
    seal: Option<ServerSeal>,
    once: ReplyCache,
    stored: SharedValues,
    /// Number of runs of each request, by session and sequence.
    runs: HashMap<(u64, u64), u32>,
    counter: i64,
    clients: Vec<SimClient>,
    report: SimReport,
    tracing: bool,
    trace: Vec<String>,
}

type SentDatagrams = Vec<(PeerAddr, Vec<u8>)>;

const SERVER: ([u8; 4], u16) = ([10, 0, 0, 1], 7000);
impl SimRun {
    fn new(world: SimScenario, tracing: bool) -> SimRun {
        let mut run = SimRun {
            world,
            dice: SeededRng::new(world.seed),
            now_us: 0,
            events: BinaryHeap::new(),
            bodies: HashMap::new(),
            made: 0,
            start: 1,
            server: ServerEndpoint::new(world.server),
            seal: world.sealed.then(new_seal),
            once: ReplyCache::new(world.once).with_server_start(0, 1, false),
            stored: SharedValues::default(),
            runs: HashMap::new(),
            counter: 0,
            clients: Vec::new(),
            report: SimReport::default(),
            tracing,
            trace: Vec::new(),
        };
        for number in 0..world.clients {
            let client = run.client(PeerAddr::from(([10, 0, 1, number as u8], 9000)), world.requests);
            run.clients.push(client);
        }
        run
    }

    fn client(&mut self, peer: PeerAddr, left: u64) -> SimClient {
        let mut limits = ClientLimits { timeout_us: self.world.timeout_us, in_flight: 32, ..ClientLimits::default() };
        let number = self.dice.any();
        let seal = self.world.sealed.then(|| ClientSeal::new(PeerAddr::from(SERVER), 1, TOKEN, number, CLOCK_MS));
        limits.max_datagram -= if seal.is_some() { crate::seal::SEAL_OVERHEAD } else { 0 };
        SimClient {
            peer,
            seal,
            endpoint: ClientEndpoint::new(PeerAddr::from(SERVER), limits),
            session: self.dice.any(),
            sequence: first_sequence(self.start),
            acked: first_sequence(self.start),
            done: Vec::new(),
            open: HashMap::new(),
            left,
        }
    }

    fn log(&mut self, line: impl FnOnce() -> String) {
        if self.tracing {
            self.trace.push(format!("{:>10} us  {}", self.now_us, line()));
        }
    }

    fn at(&mut self, time_us: u64, event: SimEvent) {
        self.made += 1;
        self.events.push(Reverse((time_us, self.made)));
        self.bodies.insert(self.made, event);
    }

    /// Gives datagrams to the network.
    fn transmit(&mut self, sent: SentDatagrams, from: Option<usize>) {
        for (to, mut datagram) in sent {
            self.report.datagrams += 1;
            self.inject_fault(from);
            if self.dice.percent(self.world.corruption) && !datagram.is_empty() {
                let at = self.dice.below(datagram.len() as u64) as usize;
                if self.dice.percent(50) {
                    datagram.truncate(at);
                } else {
                    datagram[at] ^= 1 << self.dice.below(8);
                }
            }
            if self.dice.percent(self.world.loss) {
                self.log(|| format!("network loses {} bytes to {to}", datagram.len()));
                continue;
            }
            let copies = 1 + u64::from(self.dice.percent(self.world.duplication));
            for _copy in 0..copies {
                let time_us = self.now_us + self.world.least_delay_us + self.dice.below(self.world.jitter_us + 1);
                let event = match from {
                    Some(client) => SimEvent::ToServer(self.clients[client].peer, datagram.clone()),
                    None => match self.clients.iter().position(|client| client.peer == to) {
                        Some(client) => SimEvent::ToClient(client, datagram.clone()),
                        None => continue,
                    },
                };
                self.at(time_us, event);
            }
            if self.world.late > 0 && self.dice.percent(self.world.late) {
                let time_us = self.now_us + self.dice.below(self.world.max_late_us);
                let from = from.and_then(|client| self.clients.get(client)).map(|client| client.peer);
                let there = self.clients.iter().position(|client| client.peer == to);
                if let Some(peer) = from {
                    self.at(time_us, SimEvent::ToServer(peer, datagram));
                } else if let Some(client) = there {
                    self.at(time_us, SimEvent::ToClient(client, datagram));
                }
            }
        }
    }

    /// The server forgets all sealed sessions, or a client moves.
    fn inject_fault(&mut self, client: Option<usize>) {
        if self.world.server_restarts > 0 && self.dice.below(1000) < self.world.server_restarts {
            self.restart_server();
        }
        if self.dice.below(1000) >= self.world.faults_permille {
            return;
        }
        match client {
            None => self.seal = self.seal.as_ref().map(|_| new_seal()),
            Some(client) => self.move_client(client),
        }
    }

    /// A client has another address from here on.
    fn move_client(&mut self, client: usize) {
        let address = [10, 0, 2 + self.dice.below(100) as u8, client as u8];
        self.clients[client].peer = PeerAddr::from((address, 9000));
    }

    /// Replaces the server by another one, which knows no session. The old server's requests under way are lost.
    fn restart_server(&mut self) {
        self.start += 1;
        self.report.server_restarts += 1;
        self.server = ServerEndpoint::new(self.world.server).with_server_start(self.start);
        self.once = ReplyCache::new(self.world.once).with_server_start(self.now_us, self.start, true);
        self.seal = self.seal.as_ref().map(|_| new_seal());
        self.stored = SharedValues::default();
        let start = self.start;
        self.log(|| format!("the server restarts: it is start {start}"));
    }

    fn play(&mut self) -> Result<SimReport, String> {
        let mut turns = 0u64;
        loop {
            for client in 0..self.clients.len() {
                self.send_request(client)?;
            }
            let timer_us = self.run_timers()?;
            let event_us = self.events.peek().map(|Reverse((time_us, _))| *time_us);
            let Some(next_us) = [event_us, timer_us].into_iter().flatten().min() else {
                if self.clients.iter().any(|client| client.left > 0) {
                    continue;
                }
                break;
            };
            self.now_us = self.now_us.max(next_us);
            while let Some(Reverse((time_us, number))) = self.events.peek().copied()
                && time_us <= self.now_us
            {
                self.events.pop();
                if let Some(event) = self.bodies.remove(&number) {
                    self.handle_event(event)?;
                }
            }
            turns += 1;
            if turns * (1 + self.world.flood) > 5_000_000 {
                return Err("the run does not end".into());
            }
        }
        self.account()
    }

    fn run_timers(&mut self) -> Result<Option<u64>, String> {
        let mut sent = SentDatagrams::new();
        let mut next_us = self.server.poll_timers(self.now_us, &mut SimServerSink(&mut self.seal, &mut sent));
        if let Some(seal) = &mut self.seal {
            seal.work(self.now_us, &mut sent);
            let work_us = seal.timer_us(self.now_us);
            next_us = [next_us, work_us].into_iter().flatten().min();
        }
        self.transmit(sent, None);
        for index in 0..self.clients.len() {
            let (mut sent, mut ended) = (SentDatagrams::new(), Vec::new());
            let client = &mut self.clients[index];
            let wanted = client.left > 0 || !client.open.is_empty();
            let seal_us = client.seal.as_mut().and_then(|seal| seal.poll(self.now_us, wanted, &mut sent));
            let out = &mut SimClientSink(&mut client.seal, &mut sent);
            let due_us = client.endpoint.poll_timers(self.now_us, out, &mut |end| ended.push(end));
            next_us = [next_us, due_us, seal_us].into_iter().flatten().min();
            if self.world.moves_permille > 0 && !sent.is_empty() && self.dice.below(1000) < self.world.moves_permille {
                self.move_client(index);
            }
            self.transmit(sent, Some(index));
            for end in ended {
                let client = &mut self.clients[index];
                let open = client.open.remove(&end.request_id).ok_or("a request ended that was not open")?;
                self.settle(index, &open);
                self.report.timed_out += 1;
                let refused = end.failure == RequestFailure::Refused;
                self.log(|| format!("client {index} gives up {} (refused: {refused})", open.sequence));
                if open.once {
                    self.check_ran_at_most_once(index, &open)?;
                }
            }
        }
        Ok(next_us)
    }

    /// A client restarts, or asks for something, if it may.
    fn send_request(&mut self, index: usize) -> Result<(), String> {
        while self.clients[index].left > 0 && self.clients[index].open.len() < self.world.in_flight.min(32) {
            if self.dice.below(1000) < self.world.restarts {
                let (peer, left) = (self.clients[index].peer, self.clients[index].left);
                self.report.abandoned += self.clients[index].open.len() as u64;
                self.clients[index] = self.client(peer, left);
                self.log(|| format!("client {index} restarts"));
            }
            if let Some(seal) = self.clients[index].seal.as_mut().filter(|seal| !seal.is_ready()) {
                let mut sent = SentDatagrams::new();
                seal.begin(self.now_us, &mut sent);
                self.transmit(sent, Some(index));
                return Ok(());
            }
            let (request_len, answer_len) = (self.size(), self.size());
            let once = self.dice.percent(60);
            let client = &mut self.clients[index];
            client.left -= 1;
            client.sequence += 1;
            let sequence = client.sequence;
            let flags = if once { 0 } else { MESSAGE_FLAG_IDEMPOTENT };
            let (session, acked) = (client.session, client.acked);
            let header = MessageHeader { flags, operations: 1, tenant: 1, session, sequence, acked };
            let value = pattern_bytes(session ^ sequence, request_len);
            let operation = Operation { number: answer_len as u64, value: &value, ..Operation::new(OpKind::Put) };
            let mut message = Vec::new();
            encode_message(&header, &[operation], &mut message);
            let mut sent = SentDatagrams::new();
            let open = client.endpoint.request(self.now_us, &message, &mut SimClientSink(&mut client.seal, &mut sent));
            let id = open.map_err(|error| format!("a request was not taken: {error}"))?;
            client.open.insert(id, SimRequest { session, sequence, answer_len, once });
            self.log(|| {
                format!("client {index} asks {sequence} as {id}: {request_len} bytes for {answer_len}, once: {once}")
            });
            self.transmit(sent, Some(index));
        }
        Ok(())
    }

    /// A length: mostly small.
    fn size(&mut self) -> usize {
        let most = match self.dice.below(20) {
            0 => self.world.longest,
            1..=3 => self.world.longest.min(8000),
            _ => 400,
        };
        self.dice.below(most + 1) as usize
    }

    fn handle_event(&mut self, event: SimEvent) -> Result<(), String> {
        let mut sent = SentDatagrams::new();
        match event {
            SimEvent::ToServer(peer, mut datagram) => {
                let opened = match &mut self.seal {
                    Some(seal) => {
                        send_forged_hellos(seal, self.now_us, &mut self.dice, self.world.flood);
                        seal.receive(self.now_us, peer, &mut datagram, &SimTokenSource(), &mut sent)
                    }
                    None => Some((peer, 0..datagram.len())),
                };
                if let Some((peer, part)) = opened {
                    self.serve(peer, &datagram[part], &mut sent)?;
                }
                self.transmit(sent, None);
            }
            SimEvent::ResponseReady { start, .. } if start != self.start => {}
            SimEvent::ResponseReady { peer, request_id, message, .. } => {
                let (header, _) = MessageHeader::decode(&message).map_err(|error| error.to_string())?;
                let out = &mut SimServerSink(&mut self.seal, &mut sent);
                if header.flags & MESSAGE_FLAG_IDEMPOTENT == 0 {
                    self.once.complete(peer, header.tenant, header.session, header.sequence, &message);
                    self.server.respond(self.now_us, peer, request_id, &message, out);
                } else {
                    self.stored.respond(&mut self.server, (self.now_us, peer, request_id), message, out);
                }
                self.transmit(sent, None);
            }
            SimEvent::ToClient(index, datagram) => {
                let (client, mut opened) = (&mut self.clients[index], Vec::new());
                let part = match &mut client.seal {
                    Some(seal) => seal.receive(self.now_us, &datagram, &mut opened, &mut sent),
                    None => {
                        opened = datagram;
                        Some(0..opened.len())
                    }
                };
                let out = &mut SimClientSink(&mut client.seal, &mut sent);
                let packet = part.and_then(|part| opened.get(part));
                let response = packet.and_then(|packet| client.endpoint.receive(self.now_us, packet, out));
                let got = response.map(|response| (response.request_id, response.message.into_vec()));
                self.transmit(sent, Some(index));
                if let Some((id, message)) = got {
                    self.answered(index, id, &message)?;
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, peer: PeerAddr, datagram: &[u8], sent: &mut SentDatagrams) -> Result<(), String> {
        let out = &mut SimServerSink(&mut self.seal, sent);
        let Some(request) = self.server.receive(self.now_us, peer, datagram, out) else { return Ok(()) };
        let request_id = request.request_id;
        let (header, mut operations) = MessageHeader::decode(&request.message).map_err(|error| error.to_string())?;
        let operation = operations.next().ok_or("no operation")?.map_err(|error| error.to_string())?;
        let (session, sequence) = (header.session, header.sequence);
        if operation.value != pattern_bytes(session ^ sequence, operation.value.len()) {
            return Err(format!("request {sequence} of {peer} arrived with other bytes"));
        }
        if !header.is_idempotent() {
            match self.once.admit(self.now_us, peer, header.tenant, session, sequence, header.acked) {
                RequestAdmission::Execute => {}
                RequestAdmission::InProgress => return Ok(()),
                RequestAdmission::Replay(answer) => {
                    self.server.respond(self.now_us, peer, request_id, answer, out);
                    return Ok(());
                }
                refused @ (RequestAdmission::Stale | RequestAdmission::PreviousStart) => {
                    let number = if refused == RequestAdmission::PreviousStart { STALE_PREVIOUS_START } else { 0 };
                    let mut message = Vec::new();
                    let answer = Operation { number, ..operation.answer(crate::rpc::RpcStatus::Stale) };
                    encode_message(&header.response(1), &[answer], &mut message);
                    self.server.respond(self.now_us, peer, request_id, &message, out);
                    return Ok(());
                }
            }
            *self.runs.entry((session, sequence)).or_default() += 1;
            self.counter += 1;
            if self.tracing {
                self.trace.push(format!("{:>10} us  server runs {sequence} of {peer}", self.now_us));
            }
        }
        // An idempotent request's answer differs from run to run: two of them must not be mixed.
        let variant = if header.is_idempotent() { self.dice.any() } else { session ^ sequence };
        let value = pattern_bytes(variant, operation.number as usize);
        let answer = Operation { number: variant, value: &value, ..Operation::new(operation.op) };
        let mut message = Vec::new();
        encode_message(&header.response(1), &[answer], &mut message);
        self.server.recycle(request.message);
        let time_us = self.now_us + self.dice.below(self.world.service_us + 1);
        self.at(time_us, SimEvent::ResponseReady { start: self.start, peer, request_id, message });
        Ok(())
    }

    fn answered(&mut self, index: usize, id: u16, message: &[u8]) -> Result<(), String> {
        let client = &mut self.clients[index];
        let open = client.open.remove(&id).ok_or_else(|| format!("an answer to {id}, which is not open"))?;
        let (header, mut operations) = MessageHeader::decode(message).map_err(|error| error.to_string())?;
        let answer = operations.next().ok_or("no operation")?.map_err(|error| error.to_string())?;
        if (header.session, header.sequence) != (open.session, open.sequence) {
            return Err(format!("client {index} got the answer to {} for {}", header.sequence, open.sequence));
        }
        let sequence = open.sequence;
        self.settle(index, &open);
        if answer.status == crate::rpc::RpcStatus::Stale {
            self.report.stale += 1;
            self.log(|| format!("client {index} hears that {sequence} is stale"));
            if answer.number == STALE_PREVIOUS_START && self.clients[index].session == open.session {
                self.start_new_session(index);
            }
            return self.check_ran_at_most_once(index, &open);
        }
        self.report.answered += 1;
        self.log(|| format!("client {index} has the answer to {sequence}"));
        if answer.value.len() != open.answer_len || answer.value != pattern_bytes(answer.number, open.answer_len) {
            return Err(format!("client {index} got other bytes for {sequence} than were sent"));
        }
        if open.once {
            let runs = self.runs.get(&(header.session, sequence)).copied().unwrap_or(0);
            if runs != 1 {
                return Err(format!("request {sequence} of client {index} is answered and ran {runs} times"));
            }
        }
        Ok(())
    }

    /// A client says hello to the server that there is now, in a new session.
    fn start_new_session(&mut self, index: usize) {
        let (session, first) = (self.dice.any(), first_sequence(self.start));
        let client = &mut self.clients[index];
        (client.session, client.sequence, client.acked) = (session, first, first);
        client.done.clear();
    }

    /// Moves the client's `acked` on.
    fn settle(&mut self, index: usize, open: &SimRequest) {
        let client = &mut self.clients[index];
        if open.session != client.session {
            return;
        }
        client.done.push(open.sequence);
        while let Some(at) = client.done.iter().position(|done| *done == client.acked + 1) {
            client.done.swap_remove(at);
            client.acked += 1;
        }
    }

    fn check_ran_at_most_once(&self, index: usize, open: &SimRequest) -> Result<(), String> {
        let runs = self.runs.get(&(open.session, open.sequence)).copied().unwrap_or(0);
        if runs > 1 {
            return Err(format!("request {} of client {index} ran {runs} times", open.sequence));
        }
        Ok(())
    }

    /// At the end: nothing ran twice, nothing is open, nothing is held.
    fn account(&mut self) -> Result<SimReport, String> {
        self.report.took_us = self.now_us;
        if let Some((name, runs)) = self.runs.iter().find(|(_, runs)| **runs > 1) {
            return Err(format!("request {name:?} ran {runs} times"));
        }
        if self.counter != self.runs.len() as i64 {
            return Err(format!("{} increments made {}", self.runs.len(), self.counter));
        }
        for (index, client) in self.clients.iter().enumerate() {
            if !client.open.is_empty() || client.endpoint.usage() != Default::default() {
                return Err(format!("client {index} holds {:?} at the end", client.endpoint.usage()));
            }
        }
        if self.server.usage() != Default::default() || self.stored.held() > 0 {
            return Err(format!(
                "the server holds {:?} and {} values at the end",
                self.server.usage(),
                self.stored.held()
            ));
        }
        let settled = self.report.answered + self.report.timed_out + self.report.stale + self.report.abandoned;
        let open = self.world.requests * self.world.clients as u64;
        if settled != open {
            return Err(format!("{open} requests were made and {settled} ended"));
        }
        Ok(self.report)
    }
}

/// The offset of the sequences of a session that is bound to that start of the server.
const fn first_sequence(start: u32) -> u64 {
    (start as u64) << 32
}

/// Bytes that belong to `name`.
fn pattern_bytes(name: u64, len: usize) -> Vec<u8> {
    let mut dice = SeededRng::new(name);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&dice.any().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests;
