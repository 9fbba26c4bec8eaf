//! A seeded simulator without sockets or clocks: one server endpoint with its at-most-once window and a small store, several
//! clients, and a network between them that loses, duplicates, delays and reorders. A run depends on its [`World`] alone;
//! [`World::check`] runs it and, if a promise was broken, runs it again and gives one line per event.

use crate::limits::{ClientLimits, OnceLimits, ServerLimits};
use crate::once::{Admit, OnceWindow};
use crate::r2p2::{ClientEndpoint, Failure, Peer, ServerEndpoint};
use crate::rpc::{FLAG_IDEMPOTENT, MessageHeader, Op, Operation, encode_message};
use crate::seal::{ClientSeal, ServerSeal};
use sealed::{CLOCK_MS, Door, In, Out, TOKEN, flood, new_seal};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use stored::Stored;

mod sealed;
mod stored;

/// Deterministic random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall as `seed` says.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
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

/// What a run is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// Seed of everything that is random.
    pub seed: u64,
    /// Datagrams lost, percent.
    pub loss: u64,
    /// Datagrams duplicated, percent.
    pub duplication: u64,
    /// Least time under way, microseconds.
    pub least_delay_us: u64,
    /// Further time under way, at most, microseconds: reorders.
    pub jitter_us: u64,
    /// Longest time that a request takes at the server, microseconds.
    pub service_us: u64,
    /// Clients.
    pub clients: usize,
    /// Requests of each client.
    pub requests: u64,
    /// Requests that a client has in flight, at most.
    pub in_flight: usize,
    /// Restarts of clients, in thousandths per request: same address, new session.
    pub restarts: u64,
    /// Longest message, bytes; most are far shorter.
    pub longest: u64,
    /// Life of a request, microseconds.
    pub timeout_us: u64,
    /// Whether all go in sealed sessions.
    pub sealed: bool,
    /// Datagrams in which a bit is changed or that are cut, percent; for sealed sessions only (UDP's checksum does not
    /// keep those away that an attacker makes).
    pub corruption: u64,
    /// Sealed sessions that the server forgets, clients that change their address, in thousandths per datagram.
    pub upsets: u64,
    /// Forged hellos, each from an address of its own, that come before each datagram for the server.
    pub flood: u64,
    /// Limits of the server.
    pub server: ServerLimits,
    /// Limits of its window.
    pub once: OnceLimits,
}

impl World {
    /// A world of ordinary size whose faults are drawn from `seed`.
    pub fn drawn(seed: u64) -> World {
        let mut dice = Dice::new(seed ^ 0x5EED);
        let fault = |dice: &mut Dice, most: u64| if dice.percent(40) { 0 } else { dice.below(most + 1) };
        World {
            seed,
            loss: fault(&mut dice, 25),
            duplication: fault(&mut dice, 25),
            least_delay_us: dice.below(500),
            jitter_us: fault(&mut dice, 20_000),
            service_us: fault(&mut dice, 60_000),
            clients: 1 + dice.below(4) as usize,
            requests: 20 + dice.below(60),
            in_flight: 1 + dice.below(24) as usize,
            restarts: fault(&mut dice, 30),
            longest: [1000, 20_000, 400_000][dice.below(3) as usize],
            timeout_us: 60_000_000,
            sealed: false,
            corruption: 0,
            upsets: 0,
            flood: 0,
            server: ServerLimits::default(),
            once: OnceLimits::default(),
        }
    }

    /// Runs the world and checks every promise.
    ///
    /// # Errors
    /// What was broken, the seed, and the last events, one line each.
    pub fn check(self) -> Result<Report, String> {
        match Run::new(self, false).play() {
            Ok(report) => Ok(report),
            Err(broken) => {
                let mut run = Run::new(self, true);
                let again = run.play().err().unwrap_or_else(|| "(not broken when run again)".into());
                let from = run.trace.len().saturating_sub(400);
                let lines = run.trace.get(from..).unwrap_or_default().join("\n");
                Err(format!("{lines}\nseed {}: {broken}\nagain: {again}\n{self:?}", self.seed))
            }
        }
    }
}

/// What happened in a run that kept its promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests answered.
    pub answered: u64,
    /// Requests whose time was up.
    pub timed_out: u64,
    /// Requests answered as stale.
    pub stale: u64,
    /// Requests abandoned by a restart.
    pub abandoned: u64,
    /// Datagrams that the network carried.
    pub datagrams: u64,
    /// Virtual time, microseconds.
    pub took_us: u64,
}

enum Event {
    ToServer(Peer, Vec<u8>),
    ToClient(usize, Vec<u8>),
    Served { peer: Peer, request_id: u16, message: Vec<u8> },
}

/// What a client knows of a request in flight.
struct Asked {
    sequence: u64,
    answer_len: usize,
    once: bool,
}

struct Client {
    peer: Peer,
    seal: Option<ClientSeal>,
    endpoint: ClientEndpoint,
    session: u64,
    sequence: u64,
    acked: u64,
    done: Vec<u64>,
    asked: HashMap<u16, Asked>,
    left: u64,
}

struct Run {
    world: World,
    dice: Dice,
    now_us: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: HashMap<u64, Event>,
    made: u64,
    server: ServerEndpoint,
    seal: Option<ServerSeal>,
    once: OnceWindow,
    stored: Stored,
    /// How often each request ran, by session and sequence.
    runs: HashMap<(u64, u64), u32>,
    counter: i64,
    clients: Vec<Client>,
    report: Report,
    tracing: bool,
    trace: Vec<String>,
}

type Sent = Vec<(Peer, Vec<u8>)>;

const SERVER: ([u8; 4], u16) = ([10, 0, 0, 1], 7000);
impl Run {
    fn new(world: World, tracing: bool) -> Run {
        let mut run = Run {
            world,
            dice: Dice::new(world.seed),
            now_us: 0,
            events: BinaryHeap::new(),
            bodies: HashMap::new(),
            made: 0,
            server: ServerEndpoint::new(world.server),
            seal: world.sealed.then(new_seal),
            once: OnceWindow::new(world.once),
            stored: Stored::default(),
            runs: HashMap::new(),
            counter: 0,
            clients: Vec::new(),
            report: Report::default(),
            tracing,
            trace: Vec::new(),
        };
        for number in 0..world.clients {
            let client = run.client(Peer::from(([10, 0, 1, number as u8], 9000)), world.requests);
            run.clients.push(client);
        }
        run
    }

    fn client(&mut self, peer: Peer, left: u64) -> Client {
        let mut limits = ClientLimits { timeout_us: self.world.timeout_us, in_flight: 32, ..ClientLimits::default() };
        let number = self.dice.any();
        let seal = self.world.sealed.then(|| ClientSeal::new(Peer::from(SERVER), 1, TOKEN, number, CLOCK_MS));
        limits.max_datagram -= if seal.is_some() { crate::seal::OVERHEAD } else { 0 };
        Client {
            peer,
            seal,
            endpoint: ClientEndpoint::new(Peer::from(SERVER), limits),
            session: self.dice.any(),
            sequence: 0,
            acked: 0,
            done: Vec::new(),
            asked: HashMap::new(),
            left,
        }
    }

    fn say(&mut self, line: impl FnOnce() -> String) {
        if self.tracing {
            self.trace.push(format!("{:>10} us  {}", self.now_us, line()));
        }
    }

    fn at(&mut self, time_us: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((time_us, self.made)));
        self.bodies.insert(self.made, event);
    }

    /// Gives datagrams to the network.
    fn carry(&mut self, sent: Sent, from: Option<usize>) {
        for (to, mut datagram) in sent {
            self.report.datagrams += 1;
            self.upset(from);
            if self.dice.percent(self.world.corruption) && !datagram.is_empty() {
                let at = self.dice.below(datagram.len() as u64) as usize;
                if self.dice.percent(50) {
                    datagram.truncate(at);
                } else {
                    datagram[at] ^= 1 << self.dice.below(8);
                }
            }
            if self.dice.percent(self.world.loss) {
                self.say(|| format!("network loses {} bytes to {to}", datagram.len()));
                continue;
            }
            let copies = 1 + u64::from(self.dice.percent(self.world.duplication));
            for _copy in 0..copies {
                let time_us = self.now_us + self.world.least_delay_us + self.dice.below(self.world.jitter_us + 1);
                let event = match from {
                    Some(client) => Event::ToServer(self.clients[client].peer, datagram.clone()),
                    None => match self.clients.iter().position(|client| client.peer == to) {
                        Some(client) => Event::ToClient(client, datagram.clone()),
                        None => continue,
                    },
                };
                self.at(time_us, event);
            }
        }
    }

    /// The server forgets all sealed sessions, or a client moves.
    fn upset(&mut self, client: Option<usize>) {
        if self.dice.below(1000) >= self.world.upsets {
            return;
        }
        match client {
            None => self.seal = self.seal.as_ref().map(|_| new_seal()),
            Some(client) => {
                let address = [10, 0, 2 + self.dice.below(100) as u8, client as u8];
                self.clients[client].peer = Peer::from((address, 9000));
            }
        }
    }

    fn play(&mut self) -> Result<Report, String> {
        let mut turns = 0u64;
        loop {
            for client in 0..self.clients.len() {
                self.ask(client)?;
            }
            let timer_us = self.timers()?;
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
                    self.happen(event)?;
                }
            }
            turns += 1;
            if turns * (1 + self.world.flood) > 5_000_000 {
                return Err("the run does not end".into());
            }
        }
        self.account()
    }

    fn timers(&mut self) -> Result<Option<u64>, String> {
        let mut sent = Sent::new();
        let mut next_us = self.server.poll_timers(self.now_us, &mut Out(&mut self.seal, &mut sent));
        if let Some(seal) = &mut self.seal {
            seal.work(self.now_us, &mut sent);
            let work_us = seal.timer_us(self.now_us);
            next_us = [next_us, work_us].into_iter().flatten().min();
        }
        self.carry(sent, None);
        for index in 0..self.clients.len() {
            let (mut sent, mut ended) = (Sent::new(), Vec::new());
            let client = &mut self.clients[index];
            let wanted = client.left > 0 || !client.asked.is_empty();
            let seal_us = client.seal.as_mut().and_then(|seal| seal.poll(self.now_us, wanted, &mut sent));
            let out = &mut In(&mut client.seal, &mut sent);
            let due_us = client.endpoint.poll_timers(self.now_us, out, &mut |end| ended.push(end));
            next_us = [next_us, due_us, seal_us].into_iter().flatten().min();
            self.carry(sent, Some(index));
            for end in ended {
                let client = &mut self.clients[index];
                let asked = client.asked.remove(&end.request_id).ok_or("a request ended that was not open")?;
                self.settle(index, &asked);
                self.report.timed_out += 1;
                let refused = end.failure == Failure::Refused;
                self.say(|| format!("client {index} gives up {} (refused: {refused})", asked.sequence));
                if asked.once {
                    self.ran_at_most_once(index, asked.sequence)?;
                }
            }
        }
        Ok(next_us)
    }

    /// A client restarts, or asks for something, if it may.
    fn ask(&mut self, index: usize) -> Result<(), String> {
        while self.clients[index].left > 0 && self.clients[index].asked.len() < self.world.in_flight.min(32) {
            if self.dice.below(1000) < self.world.restarts {
                let (peer, left) = (self.clients[index].peer, self.clients[index].left);
                self.report.abandoned += self.clients[index].asked.len() as u64;
                self.clients[index] = self.client(peer, left);
                self.say(|| format!("client {index} restarts"));
            }
            if let Some(seal) = self.clients[index].seal.as_mut().filter(|seal| !seal.is_ready()) {
                let mut sent = Sent::new();
                seal.begin(self.now_us, &mut sent);
                self.carry(sent, Some(index));
                return Ok(());
            }
            let (request_len, answer_len) = (self.size(), self.size());
            let once = self.dice.percent(60);
            let client = &mut self.clients[index];
            client.left -= 1;
            client.sequence += 1;
            let sequence = client.sequence;
            let flags = if once { 0 } else { FLAG_IDEMPOTENT };
            let (session, acked) = (client.session, client.acked);
            let header = MessageHeader { flags, operations: 1, tenant: 1, session, sequence, acked };
            let value = pattern(session ^ sequence, request_len);
            let operation = Operation { number: answer_len as u64, value: &value, ..Operation::new(Op::Put) };
            let mut message = Vec::new();
            encode_message(&header, &[operation], &mut message);
            let mut sent = Sent::new();
            let asked = client.endpoint.request(self.now_us, &message, &mut In(&mut client.seal, &mut sent));
            let id = asked.map_err(|error| format!("a request was not taken: {error}"))?;
            client.asked.insert(id, Asked { sequence, answer_len, once });
            self.say(|| {
                format!("client {index} asks {sequence} as {id}: {request_len} bytes for {answer_len}, once: {once}")
            });
            self.carry(sent, Some(index));
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

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let mut sent = Sent::new();
        match event {
            Event::ToServer(peer, mut datagram) => {
                let opened = match &mut self.seal {
                    Some(seal) => {
                        flood(seal, self.now_us, &mut self.dice, self.world.flood);
                        seal.receive(self.now_us, peer, &mut datagram, &Door(), &mut sent)
                    }
                    None => Some((peer, 0..datagram.len())),
                };
                if let Some((peer, part)) = opened {
                    self.serve(peer, &datagram[part], &mut sent)?;
                }
                self.carry(sent, None);
            }
            Event::Served { peer, request_id, message } => {
                let (header, _) = MessageHeader::decode(&message).map_err(|error| error.to_string())?;
                let out = &mut Out(&mut self.seal, &mut sent);
                if header.flags & FLAG_IDEMPOTENT == 0 {
                    self.once.complete(peer, header.tenant, header.session, header.sequence, &message);
                    self.server.respond(self.now_us, peer, request_id, &message, out);
                } else {
                    self.stored.respond(&mut self.server, (self.now_us, peer, request_id), message, out);
                }
                self.carry(sent, None);
            }
            Event::ToClient(index, datagram) => {
                let (client, mut opened) = (&mut self.clients[index], Vec::new());
                let part = match &mut client.seal {
                    Some(seal) => seal.receive(self.now_us, &datagram, &mut opened, &mut sent),
                    None => {
                        opened = datagram;
                        Some(0..opened.len())
                    }
                };
                let out = &mut In(&mut client.seal, &mut sent);
                let packet = part.and_then(|part| opened.get(part));
                let response = packet.and_then(|packet| client.endpoint.receive(self.now_us, packet, out));
                let got = response.map(|response| (response.request_id, response.message.into_vec()));
                self.carry(sent, Some(index));
                if let Some((id, message)) = got {
                    self.answered(index, id, &message)?;
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, peer: Peer, datagram: &[u8], sent: &mut Sent) -> Result<(), String> {
        let out = &mut Out(&mut self.seal, sent);
        let Some(request) = self.server.receive(self.now_us, peer, datagram, out) else { return Ok(()) };
        let request_id = request.request_id;
        let (header, mut operations) = MessageHeader::decode(&request.message).map_err(|error| error.to_string())?;
        let operation = operations.next().ok_or("no operation")?.map_err(|error| error.to_string())?;
        let (session, sequence) = (header.session, header.sequence);
        if operation.value != pattern(session ^ sequence, operation.value.len()) {
            return Err(format!("request {sequence} of {peer} arrived with other bytes"));
        }
        if !header.is_idempotent() {
            match self.once.admit(self.now_us, peer, header.tenant, session, sequence, header.acked) {
                Admit::Run => {}
                Admit::Running => return Ok(()),
                Admit::Answered(answer) => {
                    self.server.respond(self.now_us, peer, request_id, answer, out);
                    return Ok(());
                }
                Admit::Stale => {
                    let mut message = Vec::new();
                    let answer = operation.answer(crate::rpc::Status::Stale);
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
        let value = pattern(variant, operation.number as usize);
        let answer = Operation { number: variant, value: &value, ..Operation::new(operation.op) };
        let mut message = Vec::new();
        encode_message(&header.response(1), &[answer], &mut message);
        self.server.recycle(request.message);
        let time_us = self.now_us + self.dice.below(self.world.service_us + 1);
        self.at(time_us, Event::Served { peer, request_id, message });
        Ok(())
    }

    fn answered(&mut self, index: usize, id: u16, message: &[u8]) -> Result<(), String> {
        let client = &mut self.clients[index];
        let asked = client.asked.remove(&id).ok_or_else(|| format!("an answer to {id}, which is not open"))?;
        let (header, mut operations) = MessageHeader::decode(message).map_err(|error| error.to_string())?;
        let answer = operations.next().ok_or("no operation")?.map_err(|error| error.to_string())?;
        if (header.session, header.sequence) != (client.session, asked.sequence) {
            return Err(format!("client {index} got the answer to {} for {}", header.sequence, asked.sequence));
        }
        let sequence = asked.sequence;
        self.settle(index, &asked);
        if answer.status == crate::rpc::Status::Stale {
            self.report.stale += 1;
            self.say(|| format!("client {index} hears that {sequence} is stale"));
            return self.ran_at_most_once(index, sequence);
        }
        self.report.answered += 1;
        self.say(|| format!("client {index} has the answer to {sequence}"));
        if answer.value.len() != asked.answer_len || answer.value != pattern(answer.number, asked.answer_len) {
            return Err(format!("client {index} got other bytes for {sequence} than were sent"));
        }
        if asked.once {
            let runs = self.runs.get(&(header.session, sequence)).copied().unwrap_or(0);
            if runs != 1 {
                return Err(format!("request {sequence} of client {index} is answered and ran {runs} times"));
            }
        }
        Ok(())
    }

    /// Moves the client's `acked` on.
    fn settle(&mut self, index: usize, asked: &Asked) {
        let client = &mut self.clients[index];
        client.done.push(asked.sequence);
        while let Some(at) = client.done.iter().position(|done| *done == client.acked + 1) {
            client.done.swap_remove(at);
            client.acked += 1;
        }
    }

    fn ran_at_most_once(&self, index: usize, sequence: u64) -> Result<(), String> {
        let runs = self.runs.get(&(self.clients[index].session, sequence)).copied().unwrap_or(0);
        if runs > 1 {
            return Err(format!("request {sequence} of client {index} ran {runs} times"));
        }
        Ok(())
    }

    /// At the end: nothing ran twice, nothing is open, nothing is held.
    fn account(&mut self) -> Result<Report, String> {
        self.report.took_us = self.now_us;
        if let Some((name, runs)) = self.runs.iter().find(|(_, runs)| **runs > 1) {
            return Err(format!("request {name:?} ran {runs} times"));
        }
        if self.counter != self.runs.len() as i64 {
            return Err(format!("{} increments made {}", self.runs.len(), self.counter));
        }
        for (index, client) in self.clients.iter().enumerate() {
            if !client.asked.is_empty() || client.endpoint.held() != Default::default() {
                return Err(format!("client {index} holds {:?} at the end", client.endpoint.held()));
            }
        }
        if self.server.held() != Default::default() || self.stored.held() > 0 {
            return Err(format!(
                "the server holds {:?} and {} values at the end",
                self.server.held(),
                self.stored.held()
            ));
        }
        let settled = self.report.answered + self.report.timed_out + self.report.stale + self.report.abandoned;
        let asked = self.world.requests * self.world.clients as u64;
        if settled != asked {
            return Err(format!("{asked} requests were made and {settled} ended"));
        }
        Ok(self.report)
    }
}

/// Bytes that belong to `name`.
fn pattern(name: u64, len: usize) -> Vec<u8> {
    let mut dice = Dice::new(name);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&dice.any().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests;
