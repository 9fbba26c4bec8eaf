//! Promise: a value that is sent from its storage arrives as it was at the time of the request. This holds for
//! concurrent writes, deletes, evictions and expiry, and for losses in the network. Values that clients do not
//! acknowledge, or do not live to receive, are released.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::common::alone::ran_alone;
use crate::common::{data_plane_with, eventually, network::Socket, tenant};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sandstorm_catalog::NewTable;
use sandstorm_instance::DataPlane;
use sandstorm_net::limits::{ClientLimits, MAX_DATAGRAM_V6};
use sandstorm_net::r2p2::{ClientEndpoint, DatagramSink, PeerAddr};
use sandstorm_net::rpc::{
    MESSAGE_FLAG_IDEMPOTENT, MessageHeader, OP_FLAG_TTL, OpKind, Operation, RpcStatus, encode_message, ttl_prefix,
};
use sandstorm_store::{StorageMode, slab_bytes};

/// A table that evicts.
const CACHE: u64 = 2;
/// Keys of each table.
const KEYS: u64 = 6;
/// Longest value, bytes.
const LONGEST: usize = 60_000;
/// Timeout of a whole test, on a machine that stalls now and then.
const PATIENCE: Duration = Duration::from_secs(300);

/// The path to the server, which loses some packets in both directions.
struct Lossy {
    socket: Socket,
    random: SmallRng,
    loss: f64,
}

impl DatagramSink for Lossy {
    fn send(&mut self, _server: PeerAddr, parts: &[&[u8]]) {
        if !self.random.random_bool(self.loss) {
            // Packets for which the kernel has no room are lost, too.
            let _lost = self.socket.send(&parts.concat());
        }
    }
}

/// A client that gets values, with several requests in flight.
struct Reader {
    path: Lossy,
    endpoint: ClientEndpoint,
    session: u64,
    sequence: u64,
    begun: Instant,
    right: u64,
    absent: u64,
    failed: u64,
}

/// A value describes itself: the bytes after its seed follow from it.
fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut value = seed.to_le_bytes().to_vec();
    value.extend((0..len.saturating_sub(8)).map(|_| random.random::<u8>()));
    value
}

impl Reader {
    fn new(plane: &DataPlane, seed: u64, loss: f64) -> Reader {
        let socket = Socket::to(plane, 0);
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        let random = SmallRng::seed_from_u64(seed);
        let limits = ClientLimits { max_datagram: MAX_DATAGRAM_V6, ..ClientLimits::default() };
        let endpoint = ClientEndpoint::new(plane.address(), limits);
        let (right, absent, failed) = (0, 0, 0);
        let path = Lossy { socket, random, loss };
        Reader { path, endpoint, session: seed, sequence: 0, begun: Instant::now(), right, absent, failed }
    }

    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// Sends a message.
    fn send(&mut self, tenant: u32, flags: u8, operations: &[Operation<'_>]) {
        self.sequence += 1;
        let (session, sequence) = (self.session, self.sequence);
        let header = MessageHeader { flags, operations: operations.len() as u16, tenant, session, sequence, acked: 0 };
        let mut message = Vec::new();
        encode_message(&header, operations, &mut message);
        let now_us = self.now_us();
        self.endpoint.request(now_us, &message, &mut self.path).expect("room for a request");
    }

    /// Requests values: mostly one in a message, else some, of which the last may be sent from its storage.
    fn ask(&mut self, tenant: u32, keys: &[(u64, u64)]) {
        let names: Vec<[u8; 8]> = keys.iter().map(|(_, key)| key.to_le_bytes()).collect();
        let gets: Vec<Operation<'_>> =
            keys.iter().zip(&names).map(|((table, _), name)| Operation::get(*table, name)).collect();
        self.send(tenant, MESSAGE_FLAG_IDEMPOTENT, &gets);
    }

    /// Runs one operation and returns its status. To be used where no other request is in flight.
    fn one(&mut self, tenant: u32, operation: Operation<'_>) -> RpcStatus {
        self.send(tenant, 0, &[operation]);
        let mut buffer = vec![0; 65_536];
        loop {
            assert!(self.begun.elapsed() < PATIENCE, "no answer");
            let now_us = self.now_us();
            if let Ok(len) = self.path.socket.recv(&mut buffer)
                && let Some(response) = self.endpoint.receive(now_us, &buffer[..len], &mut self.path)
            {
                let (_, mut operations) = MessageHeader::decode(&response.message).expect("a message");
                return operations.next().expect("an answer").expect("well-formed").status;
            }
            self.endpoint.poll_timers(now_us, &mut self.path, &mut |end| panic!("{end:?}"));
        }
    }

    /// Receives answers for a moment, and checks them.
    fn look(&mut self, acks: bool) {
        let mut buffer = vec![0; 65_536];
        for _ in 0..64 {
            let Ok(len) = self.path.socket.recv(&mut buffer) else { break };
            if !acks || self.path.random.random_bool(self.path.loss) {
                continue;
            }
            let now_us = self.now_us();
            if let Some(response) = self.endpoint.receive(now_us, &buffer[..len], &mut self.path) {
                let (_, operations) = MessageHeader::decode(&response.message).expect("a message");
                for answer in operations {
                    let answer = answer.expect("well-formed");
                    match answer.status {
                        RpcStatus::Ok => {
                            let seed = u64::from_le_bytes(answer.value[..8].try_into().expect("eight bytes"));
                            assert!(answer.value == value(seed, answer.value.len()), "other bytes than were written");
                            self.right += 1;
                        }
                        status => {
                            assert_eq!(status, RpcStatus::NotFound);
                            self.absent += 1;
                        }
                    }
                }
            }
        }
        let (now_us, mut failed) = (self.now_us(), 0);
        self.endpoint.poll_timers(now_us, &mut self.path, &mut |_| failed += 1);
        self.failed += failed;
    }
}

/// Creates a tenant with a table that stores and one that evicts; returns its id.
fn tables(plane: &DataPlane) -> u32 {
    let (id, _) = tenant(plane, "a", true);
    let cache =
        NewTable { id: Some(CACHE), mode: StorageMode::Cache, quota_bytes: Some(200_000), ..NewTable::named("cache") };
    plane.directory.create_table("a", cache).expect("a table");
    id
}

/// Serialises the tests, because one of them measures the memory of the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn values_arrive_as_they_were_whatever_becomes_of_their_records_meanwhile() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let plane = data_plane_with("workers = 1\npin = false\n");
    let id = tables(&plane);
    let mut writer = Reader::new(&plane, 77, 0.0);
    let mut random = SmallRng::seed_from_u64(5);
    let mut readers: Vec<Reader> = (0..3u32).map(|n| Reader::new(&plane, u64::from(n), 0.1 * f64::from(n))).collect();
    let begun = Instant::now();
    let mut seed = 0;
    while readers.iter().any(|reader| reader.right < 400) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", readers.iter().map(|r| (r.right, r.failed)).collect::<Vec<_>>());
        for _ in 0..4 {
            seed += 1;
            let (table, key) = (random.random_range(1..=CACHE), random.random_range(0..KEYS).to_le_bytes());
            let bytes = value(seed, random.random_range(8..[3_000, 10_000, LONGEST][seed as usize % 3]));
            let answer = match random.random_range(0..10) {
                0 => writer.one(id, Operation::delete(table, &key)),
                1 => {
                    let bytes = [&ttl_prefix(2)[..], &bytes].concat();
                    writer.one(id, Operation { flags: OP_FLAG_TTL, ..Operation::put(table, &key, &bytes) })
                }
                _ => writer.one(id, Operation::put(table, &key, &bytes)),
            };
            assert!([RpcStatus::Ok, RpcStatus::NotFound].contains(&answer), "{answer:?}");
        }
        for reader in &mut readers {
            while reader.endpoint.usage().requests < 12 {
                let count = if random.random_bool(0.8) { 1 } else { 3 };
                let keys: Vec<_> =
                    (0..count).map(|_| (random.random_range(1..=CACHE), random.random_range(0..KEYS))).collect();
                reader.ask(id, &keys);
            }
            reader.look(true);
        }
    }
    assert!(readers.iter().all(|reader| reader.failed == 0 && reader.absent > 0), "every request was answered");
}

#[test]
fn unacknowledged_responses_are_released() {
    // It measures the process's memory.
    if ran_alone(module_path!(), "unacknowledged_responses_are_released") {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const RECORDS: u64 = 1500;
    let plane = data_plane_with("workers = 1\npin = false\n");
    let (id, _) = tenant(&plane, "b", true);
    let before = slab_bytes();
    let mut writer = Reader::new(&plane, 77, 0.0);
    for key in 0..RECORDS {
        assert_eq!(writer.one(id, Operation::put(1, &key.to_le_bytes(), &value(key, 7_000))), RpcStatus::Ok);
    }
    let full = slab_bytes();
    assert!(full > before + 8_000_000, "{before} {full}");
    // Clients that send requests and are gone, or never ack.
    let mut reader = Reader::new(&plane, 9, 0.0);
    for key in 0..RECORDS {
        if key % 500 == 0 {
            reader = Reader::new(&plane, 9 + key, 0.0);
        }
        reader.ask(id, &[(1, key)]);
        if key % 20 == 0 {
            reader.look(false);
        }
    }
    for key in 0..RECORDS {
        assert_eq!(writer.one(id, Operation::delete(1, &key.to_le_bytes())), RpcStatus::Ok);
    }
    let ping = Operation::new(OpKind::Ping);
    let gone = eventually(|| writer.one(id, ping) == RpcStatus::Ok && slab_bytes() < before + 6_000_000);
    assert!(gone, "{before} bytes before, {full} full, {} now", slab_bytes());
    drop(reader);
}
