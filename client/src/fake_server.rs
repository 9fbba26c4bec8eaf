//! A server for tests: net's server endpoint and at-most-once window over real sockets on loopback. Behind them is a
//! plain map, and between client and server a network that loses and repeats datagrams as configured.

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sandstorm_net::limits::{ReplyCacheLimits, ServerLimits};
use sandstorm_net::r2p2::{DatagramSink, PeerAddr, ServerEndpoint};
use sandstorm_net::reply_cache::{ReplyCache, RequestAdmission};
use sandstorm_net::rpc::*;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) const TENANT: u32 = 7;
pub(crate) const TOKEN: &str = "open sesame";
pub(crate) const TABLE: u64 = 3;

#[derive(Clone, Copy)]
pub(crate) struct FakeServerOptions {
    pub(crate) workers: u32,
    pub(crate) home: u32,
    /// Probability that a datagram is lost, in each direction.
    pub(crate) loss: f64,
    /// Probability that a datagram arrives twice, in each direction.
    pub(crate) duplication: f64,
    /// A port that is bound but silent.
    pub(crate) silent_worker: Option<u32>,
    /// No session has to say hello.
    pub(crate) open: bool,
}

impl Default for FakeServerOptions {
    fn default() -> FakeServerOptions {
        FakeServerOptions { workers: 1, home: 0, loss: 0.0, duplication: 0.0, silent_worker: None, open: false }
    }
}

struct FakeRecord {
    value: Vec<u8>,
    version: u64,
    flags: u32,
    expires: Option<Instant>,
}

#[derive(Default)]
struct FakeStore {
    records: HashMap<(u64, Vec<u8>), FakeRecord>,
    version: u64,
    /// Number of runs of each message that changes something.
    runs: HashMap<(u64, u64), u32>,
}

struct FakeServerState {
    options: FakeServerOptions,
    store: Mutex<FakeStore>,
    stop: AtomicBool,
    stalled: AtomicBool,
    /// Ports that take no datagrams now.
    paused_ports: AtomicU64,
    /// Requests of one port after which all ports stop taking datagrams.
    stall_after: AtomicU64,
    /// One in this number of gets is answered with another value than is stored; 0: none.
    corrupt_every: AtomicU64,
    /// Gets answered, and how many of them with a lie.
    gets: AtomicU64,
    corrupted_gets: AtomicU64,
    /// Grows when the server "restarts" and forgets its sessions.
    life: AtomicU64,
    requests: Vec<AtomicU64>,
    /// The tenant's home worker.
    home: AtomicU64,
    /// What the next commits, puts and calls near a key are told of where their keys are.
    elsewhere: Mutex<VecDeque<String>>,
}

pub(crate) struct FakeServer {
    pub(crate) address: SocketAddr,
    shared: Arc<FakeServerState>,
    threads: Vec<JoinHandle<()>>,
}

impl FakeServer {
    pub(crate) fn start(options: FakeServerOptions) -> FakeServer {
        let sockets = bind_adjacent_ports(options.workers);
        let address = sockets[0].local_addr().unwrap();
        let shared = Arc::new(FakeServerState {
            options,
            store: Mutex::default(),
            stop: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            paused_ports: AtomicU64::new(0),
            stall_after: AtomicU64::new(u64::MAX),
            corrupt_every: AtomicU64::new(0),
            gets: AtomicU64::new(0),
            corrupted_gets: AtomicU64::new(0),
            life: AtomicU64::new(0),
            requests: (0..options.workers).map(|_| AtomicU64::new(0)).collect(),
            home: AtomicU64::new(options.home.into()),
            elsewhere: Mutex::default(),
        });
        let threads = (0..)
            .zip(sockets)
            .map(|(worker, socket)| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || FakeWorkerPort::new(shared, socket, worker).serve())
            })
            .collect();
        FakeServer { address, shared, threads }
    }

    /// Forgets all sessions, as a restarted server does (but keeps the records, so that tests can look at them).
    pub(crate) fn restart(&self) {
        self.shared.life.fetch_add(1, Relaxed);
    }

    /// Moves the tenant's home to another worker.
    pub(crate) fn move_home(&self, worker: u32) {
        self.shared.home.store(worker.into(), Relaxed);
    }

    /// Stops taking datagrams, or goes on with those that came in the meantime; has effect when it returns.
    pub(crate) fn stall(&self, stalled: bool) {
        self.shared.stalled.store(stalled, Relaxed);
        let ports = if stalled { u64::from(self.shared.options.workers) } else { 0 };
        while self.shared.paused_ports.load(Relaxed) != ports {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Stops taking datagrams by itself after this number of requests to a worker's port.
    pub(crate) fn stall_after(&self, requests: u64) {
        self.shared.stall_after.store(requests, Relaxed);
    }

    /// Answers one in `gets` gets with another value than is stored.
    pub(crate) fn corrupt_every(&self, gets: u64) {
        self.shared.corrupt_every.store(gets, Relaxed);
    }

    /// Returns the number of gets that were answered so.
    pub(crate) fn corrupted_gets(&self) -> u64 {
        self.shared.corrupted_gets.load(Relaxed)
    }

    /// Tells the next commits, puts and calls near a key, one text each, that another server has their keys.
    pub(crate) fn elsewhere(&self, texts: impl IntoIterator<Item = String>) {
        self.shared.elsewhere.lock().extend(texts);
    }

    /// Requests that arrived at a worker's port, repeated ones included.
    pub(crate) fn requests(&self, worker: usize) -> u64 {
        self.shared.requests[worker].load(Relaxed)
    }

    /// Returns the largest number of runs of one message, and the number of messages that were run. Only messages that
    /// change something count.
    pub(crate) fn runs(&self) -> (u32, usize) {
        let store = self.shared.store.lock();
        (store.runs.values().copied().max().unwrap_or(0), store.runs.len())
    }

    pub(crate) fn value(&self, key: &[u8]) -> Option<Vec<u8>> {
        let store = self.shared.store.lock();
        store.records.get(&(TABLE, key.to_vec())).map(|stored| stored.value.clone())
    }

    pub(crate) fn records(&self) -> usize {
        self.shared.store.lock().records.len()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the fake server panicked");
        }
    }
}

fn bind_adjacent_ports(count: u32) -> Vec<UdpSocket> {
    for _ in 0..100 {
        let first = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut address = first.local_addr().unwrap();
        let mut sockets = vec![first];
        for _ in 1..count {
            let Some(port) = address.port().checked_add(1) else { break };
            address.set_port(port);
            let Ok(socket) = UdpSocket::bind(address) else { break };
            sockets.push(socket);
        }
        if sockets.len() == count as usize {
            return sockets;
        }
    }
    panic!("no {count} neighbouring ports");
}

struct FakeWorkerPort {
    shared: Arc<FakeServerState>,
    socket: UdpSocket,
    worker: u32,
    endpoint: ServerEndpoint,
    once: ReplyCache,
    sessions: HashSet<u64>,
    life: u64,
    epoch: Instant,
    net: LossySink,
}

/// Sends through the bad network.
struct LossySink {
    socket: UdpSocket,
    rng: SmallRng,
    loss: f64,
    duplication: f64,
}

impl LossySink {
    fn copies(&mut self) -> usize {
        if self.rng.random_bool(self.loss) { 0 } else { 1 + usize::from(self.rng.random_bool(self.duplication)) }
    }
}

impl DatagramSink for LossySink {
    fn send(&mut self, peer: PeerAddr, parts: &[&[u8]]) {
        let datagram = parts.concat();
        for _ in 0..self.copies() {
            let _ = self.socket.send_to(&datagram, peer);
        }
    }
}

impl FakeWorkerPort {
    fn new(shared: Arc<FakeServerState>, socket: UdpSocket, worker: u32) -> FakeWorkerPort {
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20).unwrap();
        let FakeServerOptions { loss, duplication, .. } = shared.options;
        let rng = SmallRng::seed_from_u64(u64::from(worker) + 1);
        let net = LossySink { socket: socket.try_clone().unwrap(), rng, loss, duplication };
        FakeWorkerPort {
            shared,
            socket,
            worker,
            endpoint: ServerEndpoint::new(ServerLimits::default()),
            once: ReplyCache::new(ReplyCacheLimits::default()).with_server_start(0, 1, false),
            sessions: HashSet::new(),
            life: 0,
            epoch: Instant::now(),
            net,
        }
    }

    fn serve(mut self) {
        let mut buffer = vec![0; 65_536];
        while !self.shared.stop.load(Relaxed) {
            if self.shared.stalled.load(Relaxed) {
                self.shared.paused_ports.fetch_add(1, Relaxed);
                while self.shared.stalled.load(Relaxed) && !self.shared.stop.load(Relaxed) {
                    std::thread::sleep(Duration::from_micros(100));
                }
                self.shared.paused_ports.fetch_sub(1, Relaxed);
                continue;
            }
            let now_us = self.epoch.elapsed().as_micros() as u64;
            self.endpoint.poll_timers(now_us, &mut self.net);
            let Ok((len, peer)) = self.socket.recv_from(&mut buffer) else { continue };
            if self.shared.options.silent_worker == Some(self.worker) {
                continue;
            }
            self.restart_if_requested();
            for _ in 0..self.net.copies() {
                self.datagram(now_us, peer, &buffer[..len]);
            }
            if self.shared.requests[self.worker as usize].load(Relaxed) >= self.shared.stall_after.load(Relaxed) {
                self.shared.stalled.store(true, Relaxed);
            }
        }
    }

    fn restart_if_requested(&mut self) {
        let life = self.shared.life.load(Relaxed);
        if self.life != life {
            self.life = life;
            self.endpoint = ServerEndpoint::new(ServerLimits::default()).with_server_start(self.start());
            self.once = ReplyCache::new(ReplyCacheLimits::default()).with_server_start(0, self.start(), true);
            self.sessions.clear();
        }
    }

    fn start(&self) -> u32 {
        self.life as u32 + 1
    }

    fn datagram(&mut self, now_us: u64, peer: PeerAddr, datagram: &[u8]) {
        let Some(request) = self.endpoint.receive(now_us, peer, datagram, &mut self.net) else { return };
        self.shared.requests[self.worker as usize].fetch_add(1, Relaxed);
        let (header, operations) = MessageHeader::decode(&request.message).unwrap();
        let operations: Vec<Operation<'_>> = operations.map(Result::unwrap).collect();
        let once = header.flags & MESSAGE_FLAG_IDEMPOTENT == 0;
        let response = if once {
            match self.once.admit(now_us, peer, header.tenant, header.session, header.sequence, header.acked) {
                RequestAdmission::Execute => None,
                RequestAdmission::InProgress => return,
                RequestAdmission::Replay(answer) => Some(answer.to_vec()),
                RequestAdmission::Stale => Some(answer_all_with(&header, &operations, RpcStatus::Stale)),
                RequestAdmission::PreviousStart => {
                    let number = STALE_PREVIOUS_START;
                    let answers: Vec<Operation<'_>> = operations
                        .iter()
                        .map(|operation| Operation { number, ..operation.answer(RpcStatus::Stale) })
                        .collect();
                    Some(encode_message(&header, &answers))
                }
            }
        } else {
            None
        };
        let response = response.unwrap_or_else(|| {
            let known = self.shared.options.open || self.sessions.contains(&header.session);
            let hello = operations.iter().any(|operation| operation.op == OpKind::Hello);
            let (response, ran) = if header.tenant != TENANT {
                (answer_all_with(&header, &operations, RpcStatus::Unauthenticated), false)
            } else if hello {
                (self.hello(&header, &operations), false)
            } else if known {
                (self.run(&header, &operations), true)
            } else {
                (answer_all_with(&header, &operations, RpcStatus::Unauthenticated), false)
            };
            if once && ran {
                self.once.complete(peer, header.tenant, header.session, header.sequence, &response);
                *self.shared.store.lock().runs.entry((header.session, header.sequence)).or_default() += 1;
            } else if once {
                self.once.cancel(peer, header.tenant, header.session, header.sequence);
            }
            response
        });
        let mut response = response;
        if self.shared.home.load(Relaxed) != u64::from(self.worker) {
            response[1] |= MESSAGE_FLAG_OTHER_HOME;
        }
        self.endpoint.respond(now_us, peer, request.request_id, &response, &mut self.net);
    }

    fn hello(&mut self, header: &MessageHeader, operations: &[Operation<'_>]) -> Vec<u8> {
        if operations[0].value != TOKEN.as_bytes() {
            return answer_all_with(header, operations, RpcStatus::Unauthenticated);
        }
        assert_eq!(operations[0].number, HELLO_BIND_SESSION);
        self.sessions.insert(header.session);
        let (workers, home) = (self.shared.options.workers, self.shared.home.load(Relaxed) as u32);
        let value = [workers.to_le_bytes(), home.to_le_bytes()].concat();
        let (number, user_flags) = (u64::from(self.worker), self.start());
        encode_message(header, &[Operation { number, user_flags, value: &value, ..Operation::new(OpKind::Hello) }])
    }

    fn run(&mut self, header: &MessageHeader, operations: &[Operation<'_>]) -> Vec<u8> {
        let mut store = self.shared.store.lock();
        let mut bytes = response_header(header, operations.len()).to_vec();
        for operation in operations {
            let is_near = operation.op == OpKind::Invoke && operation.flags & OP_FLAG_NEAR != 0;
            let has_key = matches!(operation.op, OpKind::Commit | OpKind::Put) || is_near;
            if let Some(text) = has_key.then(|| self.shared.elsewhere.lock().pop_front()).flatten() {
                let (status, value) = (RpcStatus::WrongServer, text.as_bytes());
                encode_operation(&Operation { status, value, number: 1, ..Operation::new(operation.op) }, &mut bytes);
                continue;
            }
            let (status, number, user_flags, mut value) = store.run(operation);
            let FakeServerState { corrupt_every, gets, corrupted_gets, .. } = &*self.shared;
            let every = corrupt_every.load(Relaxed);
            if operation.op == OpKind::Get && every > 0 && (gets.fetch_add(1, Relaxed) + 1).is_multiple_of(every) {
                value.last_mut().into_iter().for_each(|last| *last ^= 1);
                corrupted_gets.fetch_add(1, Relaxed);
            }
            let answer = Operation { status, number, user_flags, ..Operation::new(operation.op) };
            // No record but more: it says where to go on.
            let goes_on = operation.op == OpKind::Range && number == RANGE_MORE;
            let answer =
                if goes_on { Operation { key: &value, ..answer } } else { Operation { value: &value, ..answer } };
            encode_operation(&answer, &mut bytes);
        }
        bytes
    }
}

type FakeOutcome = (RpcStatus, u64, u32, Vec<u8>);

impl FakeStore {
    fn run(&mut self, operation: &Operation<'_>) -> FakeOutcome {
        let Operation { op, table, key, value, number, .. } = *operation;
        if table != TABLE && !matches!(op, OpKind::Ping | OpKind::Invoke | OpKind::Commit) {
            return (RpcStatus::UnknownTable, 0, 0, Vec::new());
        }
        match op {
            OpKind::Ping | OpKind::Hello => (RpcStatus::Ok, 0, 0, value.to_vec()),
            OpKind::Get => self.get(key).map_or((RpcStatus::NotFound, 0, 0, Vec::new()), |stored| {
                (RpcStatus::Ok, stored.version, stored.flags, stored.value.clone())
            }),
            OpKind::MultiGet => self.multi_get(value),
            OpKind::Range => self.range(operation),
            OpKind::Put => self.put(operation),
            OpKind::Delete => match self.get(key).map(|stored| stored.version) {
                None => (RpcStatus::NotFound, 0, 0, Vec::new()),
                Some(version) if operation.condition == Condition::Version && version != number => {
                    (RpcStatus::Conflict, 0, 0, Vec::new())
                }
                Some(_) => {
                    self.records.remove(&(table, key.to_vec()));
                    (RpcStatus::Ok, 0, 0, Vec::new())
                }
            },
            OpKind::Increment => self.increment(key, number.cast_signed()),
            OpKind::Invoke => self.invoke(key, value),
            // As if another came and went between any two questions.
            OpKind::Nth => (RpcStatus::NotFound, 0, 0, Vec::new()),
            OpKind::Count => (RpcStatus::Ok, 5, 0, Vec::new()),
            OpKind::Commit | OpKind::Rank | OpKind::Ttl | OpKind::Touch => {
                (RpcStatus::Overloaded, 0, 0, b"the tests of these use a real server".to_vec())
            }
        }
    }

    fn get(&self, key: &[u8]) -> Option<&FakeRecord> {
        let stored = self.records.get(&(TABLE, key.to_vec()))?;
        stored.expires.is_none_or(|expires| Instant::now() < expires).then_some(stored)
    }

    /// Looks at three records at most, expired ones too, so that a client has to go on.
    fn range(&self, operation: &Operation<'_>) -> FakeOutcome {
        const MOST: usize = 3;
        let (backward, limit) = (operation.number & RANGE_BACKWARD != 0, operation.number & !RANGE_BACKWARD);
        let inside =
            |key: &&Vec<u8>| &key[..] >= operation.key && (operation.value.is_empty() || &key[..] < operation.value);
        let mut keys: Vec<_> = self.records.keys().map(|(_, key)| key).filter(inside).collect();
        keys.sort();
        if backward {
            keys.reverse();
        }
        let mut more = if keys.len() > MOST { RANGE_MORE } else { 0 };
        keys.truncate(MOST);
        let (mut answer, mut count) = (Vec::new(), 0);
        for (key, stored) in keys.iter().filter_map(|key| Some((*key, self.get(key)?))) {
            if count == limit {
                more = RANGE_MORE;
                break;
            }
            count += 1;
            let row = RangeEntry { key, user_flags: stored.flags, version: stored.version, value: &stored.value };
            push_range_entry(&mut answer, &row);
        }
        if let Some(last) = keys.last().filter(|_| count | more == RANGE_MORE) {
            answer.extend_from_slice(last);
        }
        (RpcStatus::Ok, count | more, 0, answer)
    }

    fn multi_get(&self, mut keys: &[u8]) -> FakeOutcome {
        let (mut found, mut answer) = (0, Vec::new());
        while let Some((len, rest)) = keys.split_first_chunk::<4>() {
            let (key, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
            keys = rest;
            let stored = self.get(key);
            found += u64::from(stored.is_some());
            answer.push(if stored.is_some() { 0 } else { RpcStatus::NotFound as u8 });
            answer.extend_from_slice(&stored.map_or(0, |stored| stored.flags).to_le_bytes());
            answer.extend_from_slice(&stored.map_or(0, |stored| stored.version).to_le_bytes());
            let value = stored.map_or(&[][..], |stored| &stored.value);
            answer.extend_from_slice(&(value.len() as u32).to_le_bytes());
            answer.extend_from_slice(value);
        }
        (RpcStatus::Ok, found, 0, answer)
    }

    fn put(&mut self, operation: &Operation<'_>) -> FakeOutcome {
        let old = self.get(operation.key).map(|stored| stored.version);
        let is_met = match operation.condition {
            Condition::Always => true,
            Condition::Absent => old.is_none(),
            Condition::Present => old.is_some(),
            Condition::Version => old == Some(operation.number),
        };
        if !is_met {
            return (RpcStatus::Conflict, 0, 0, Vec::new());
        }
        let (ttl, value) = if operation.flags & OP_FLAG_TTL != 0 {
            let (ttl_ms, value) = operation.value.split_first_chunk::<8>().unwrap();
            (Some(Duration::from_millis(u64::from_le_bytes(*ttl_ms))), value)
        } else {
            (None, operation.value)
        };
        self.version += 1;
        let expires = ttl.map(|ttl| Instant::now() + ttl);
        let stored = FakeRecord { value: value.to_vec(), version: self.version, flags: operation.user_flags, expires };
        self.records.insert((TABLE, operation.key.to_vec()), stored);
        (RpcStatus::Ok, self.version, 0, Vec::new())
    }

    fn increment(&mut self, key: &[u8], delta: i64) -> FakeOutcome {
        let old = self.get(key).map_or("0", |stored| std::str::from_utf8(&stored.value).unwrap_or("?"));
        let Some(sum) = old.parse::<i64>().ok().and_then(|old| old.checked_add(delta)) else {
            return (RpcStatus::NotANumber, 0, 0, Vec::new());
        };
        self.version += 1;
        let value = sum.to_string().into_bytes();
        let stored = FakeRecord { value, version: self.version, flags: 0, expires: None };
        self.records.insert((TABLE, key.to_vec()), stored);
        (RpcStatus::Ok, sum.cast_unsigned(), 0, Vec::new())
    }

    fn invoke(&mut self, name: &[u8], args: &[u8]) -> FakeOutcome {
        let ok = |value: Vec<u8>| (RpcStatus::Ok, 1, 0, value);
        match name {
            b"echo" => ok(args.to_vec()),
            b"fail" => (RpcStatus::Failed, 42, 0, b"as asked".to_vec()),
            b"bad" => (RpcStatus::Killed, KillCause::SliceBudget as u64, 0, b"after 1 ms".to_vec()),
            b"get" => self
                .get(&args[8..])
                .map_or((RpcStatus::Failed, 4, 0, b"not found".to_vec()), |stored| ok(stored.value.clone())),
            b"chain" => {
                let depth = u32::from_le_bytes(args[8..12].try_into().unwrap());
                let mut key = args[12..].to_vec();
                for _ in 1..depth {
                    let value = &self.get(&key).unwrap().value;
                    key = value[1..1 + usize::from(value[0])].to_vec();
                }
                ok(self.get(&key).unwrap().value.clone())
            }
            b"aggregate" => {
                let list = &self.get(&args[12..]).unwrap().value;
                let (mut rest, mut sum, mut counted) = (&list[..], 0u64, 0u32);
                while let Some((len, tail)) = rest.split_first_chunk::<2>() {
                    let (key, tail) = tail.split_at(usize::from(u16::from_le_bytes(*len)));
                    rest = tail;
                    let value = &self.get(key).unwrap().value;
                    sum = sum.wrapping_add(u64::from_le_bytes(value[..8].try_into().unwrap()));
                    counted += 1;
                }
                ok([&sum.to_le_bytes()[..], &counted.to_le_bytes(), &[0; 4]].concat())
            }
            b"checksum" => {
                let mut digest = hmac_sha256::Hash::new();
                let mut rest = &self.get(&args[8..]).unwrap().value[..];
                while let Some((len, tail)) = rest.split_first_chunk::<2>() {
                    let (key, tail) = tail.split_at(usize::from(u16::from_le_bytes(*len)));
                    rest = tail;
                    digest.update(&self.get(key).unwrap().value);
                }
                ok(digest.finalize().to_vec())
            }
            b"range" => {
                let (count, key) = args[8..].split_first_chunk::<4>().unwrap();
                let first: u64 = std::str::from_utf8(&key[1..]).unwrap().parse().unwrap();
                let mut reply = Vec::new();
                for id in first..first + u64::from(u32::from_le_bytes(*count)) {
                    let mut key = [b'k'].to_vec();
                    key.extend(format!("{id:0>width$}", width = args.len() - 13).bytes());
                    match self.get(&key) {
                        Some(stored) => {
                            reply.extend_from_slice(&(stored.value.len() as u32).to_le_bytes());
                            reply.extend_from_slice(&stored.value);
                        }
                        None => reply.extend_from_slice(&u32::MAX.to_le_bytes()),
                    }
                }
                ok(reply)
            }
            b"long" => {
                let gets = u32::from_le_bytes(args[8..12].try_into().unwrap());
                ok([&gets.to_le_bytes()[..], &[0; 8]].concat())
            }
            _ => (RpcStatus::UnknownExtension, 0, 0, Vec::new()),
        }
    }
}

fn response_header(header: &MessageHeader, operations: usize) -> [u8; MESSAGE_HEADER_LEN] {
    MessageHeader { flags: MESSAGE_FLAG_RESPONSE, operations: operations as u16, ..*header }.encode()
}

fn encode_message(header: &MessageHeader, operations: &[Operation<'_>]) -> Vec<u8> {
    let mut bytes = response_header(header, operations.len()).to_vec();
    for operation in operations {
        encode_operation(operation, &mut bytes);
    }
    bytes
}

/// Every operation answered with one status.
fn answer_all_with(header: &MessageHeader, operations: &[Operation<'_>], status: RpcStatus) -> Vec<u8> {
    let answers: Vec<Operation<'_>> =
        operations.iter().map(|operation| Operation { status, ..Operation::new(operation.op) }).collect();
    encode_message(header, &answers)
}
