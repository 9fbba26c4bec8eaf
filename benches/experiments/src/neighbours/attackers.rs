//! The attackers. The measuring thread drives each one between the victim's requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sandstorm_client::PutOptions;
use sandstorm_client::control::{ExtensionSource, ExtensionSourceFile};
use sandstorm_client::raw::{Connection, Message};
use sandstorm_net::driver::{Burst, DatagramDriver, Outbox, UdpDriver, UdpOptions};
use sandstorm_net::r2p2::DatagramSink;
use sandstorm_net::r2p2::header::{R2p2Kind, single_header};
use sandstorm_net::rpc::{MessageHeader, OpKind, Operation, encode_message};

use super::redis_attack::{RedisAttack, RedisCommand};
use super::{RECORDS, key};
use crate::local_server::{GET, LocalServer, LocalTenant};
use sandstorm_terminal::output::CliError;

/// Calls that an attacker has in flight. There are enough that its flow queue is never empty, and few enough that they
/// end within a quarter of a second after it stops.
const CALLS: usize = 24;
/// Large messages that an attacker has in flight.
const LARGE: usize = 4;
/// Keys of a large multiget: the limit of one message.
const LARGE_KEYS: usize = 1_000;
/// Writes of a large message (the limit of one message), and the bytes of each.
const LARGE_PUTS: usize = 256;
const LARGE_VALUE: [u8; 1_024] = [7; 1_024];
/// Datagrams that a flood sends in one turn: one segmented send.
const FLOOD: usize = 64;
/// Reads of a long honest computation: about 3 ms.
const LONG_READS: u32 = 30_000;

/// The kinds of attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttackKind {
    Calls(&'static str),
    LongCalls,
    LargeReads,
    LargeWrites,
    Redis(RedisCommand),
    FloodGets,
    FloodCalls,
    Junk,
    Pushes,
}

/// An attacker, driven in turns.
pub(super) struct AttackDriver {
    how: AttackTraffic,
    pub(super) sent: u64,
}

enum AttackTraffic {
    /// Keeps so many messages in flight.
    Caller { connection: Box<Connection>, at_once: usize, write: Box<dyn Fn(&mut Message)> },
    /// Sends the same datagrams over and over and ignores all answers.
    Flooder {
        driver: Box<UdpDriver>,
        burst: Box<Burst>,
        outbox: Outbox,
        to: SocketAddr,
        datagrams: Vec<Vec<u8>>,
        at: usize,
    },
    /// Sends long commands, one after another.
    Redis(Box<RedisAttack>),
}

impl AttackDriver {
    pub(super) fn new(
        server: &LocalServer,
        mallory: &LocalTenant,
        victim: &LocalTenant,
        attack: AttackKind,
    ) -> Result<Option<AttackDriver>, CliError> {
        let id = mallory.table;
        let table = id.to_le_bytes();
        let call = |name, args: Vec<u8>| {
            call_traffic(server, mallory, CALLS, move |message: &mut Message| message.invoke(name, 0, &args))
        };
        let get = [&table[..], &key(7)].concat();
        let how = match attack {
            AttackKind::Calls(way) => call("bad", [&table[..], way.as_bytes()].concat())?,
            AttackKind::LongCalls => {
                call("long", [&table[..], &LONG_READS.to_le_bytes(), &0u32.to_le_bytes(), b"list"].concat())?
            }
            AttackKind::LargeReads => {
                let keys: Vec<_> = (0..LARGE_KEYS as u64).map(|number| key(number % RECORDS)).collect();
                call_traffic(server, mallory, LARGE, move |message| message.multi_get(id, &keys))?
            }
            AttackKind::LargeWrites => call_traffic(server, mallory, LARGE, move |message| {
                for number in 0..LARGE_PUTS as u64 {
                    message.put(id, &key(RECORDS + number), &LARGE_VALUE, &PutOptions::default());
                }
            })?,
            AttackKind::Redis(what) => AttackTraffic::Redis(Box::new(RedisAttack::new(server, what)?)),
            AttackKind::FloodGets => flood_traffic(server, mallory, &Operation::get(mallory.table, &key(7)))?,
            AttackKind::FloodCalls => flood_traffic(server, mallory, &Operation::invoke(b"get", &get))?,
            AttackKind::Junk => junk_traffic(server, mallory, victim)?,
            AttackKind::Pushes => return Ok(None),
        };
        Ok(Some(AttackDriver { how, sent: 0 }))
    }

    pub(super) fn turn(&mut self) -> Result<(), CliError> {
        match &mut self.how {
            AttackTraffic::Caller { connection, at_once, write } => {
                connection.poll(|_, _| {});
                for _ in 0..8 {
                    if connection.in_flight() >= *at_once {
                        break;
                    }
                    let mut message = connection.message();
                    write(&mut message);
                    connection.send(0, message)?;
                    self.sent += 1;
                }
                connection.flush();
            }
            AttackTraffic::Flooder { driver, burst, outbox, to, datagrams, at } => {
                for _ in 0..FLOOD {
                    *at = (*at + 1) % datagrams.len();
                    outbox.send(*to, &[&datagrams[*at]]);
                }
                self.sent += FLOOD as u64;
                driver.transmit(outbox);
                outbox.clear();
                driver.receive(burst);
            }
            AttackTraffic::Redis(attack) => self.sent += u64::from(attack.turn()?),
        }
        Ok(())
    }

    /// Sends nothing more; returns whether all its requests have ended.
    pub(super) fn has_ended(&mut self) -> bool {
        match &mut self.how {
            AttackTraffic::Caller { connection, .. } => {
                connection.poll(|_, _| {});
                connection.in_flight() == 0
            }
            AttackTraffic::Flooder { driver, burst, .. } => driver.receive(burst) == 0,
            AttackTraffic::Redis(attack) => attack.has_ended(),
        }
    }
}

fn call_traffic(
    server: &LocalServer,
    tenant: &LocalTenant,
    at_once: usize,
    write: impl Fn(&mut Message) + 'static,
) -> Result<AttackTraffic, CliError> {
    let connection = Box::new(Connection::connect(&server.client(tenant))?);
    Ok(AttackTraffic::Caller { connection, at_once, write: Box::new(write) })
}

fn datagram(header: &MessageHeader, operation: &Operation<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    encode_message(header, std::slice::from_ref(operation), &mut message);
    [&single_header(R2p2Kind::Request, header.sequence as u16)[..], &message].concat()
}

fn header(tenant: u32, session: u64, sequence: u64) -> MessageHeader {
    MessageHeader {
        flags: sandstorm_net::rpc::MESSAGE_FLAG_IDEMPOTENT,
        operations: 1,
        tenant,
        session,
        sequence,
        acked: 0,
    }
}

/// A flood with the tenant's own token.
fn flood_traffic(
    server: &LocalServer,
    tenant: &LocalTenant,
    operation: &Operation<'_>,
) -> Result<AttackTraffic, CliError> {
    let mut how = raw_traffic(server)?;
    let AttackTraffic::Flooder { driver, burst, outbox, to, datagrams, .. } = &mut how else { return Ok(how) };
    let session = rand::random();
    outbox.send(*to, &[&datagram(&header(tenant.id, session, 1), &Operation::hello(tenant.token.as_bytes()))]);
    driver.transmit(outbox);
    let begun = Instant::now();
    while driver.receive(burst) == 0 {
        if begun.elapsed() > Duration::from_secs(5) {
            return Err(CliError::new("the flooder's hello was not answered"));
        }
    }
    datagrams.extend((2..2 + FLOOD as u64).map(|sequence| datagram(&header(tenant.id, session, sequence), operation)));
    Ok(how)
}

/// Random bytes, forged requests in the victim's name, wrong tokens, unknown tenants, and packets that only pretend to
/// be sealed.
fn junk_traffic(server: &LocalServer, mallory: &LocalTenant, victim: &LocalTenant) -> Result<AttackTraffic, CliError> {
    let mut how = raw_traffic(server)?;
    let AttackTraffic::Flooder { datagrams, .. } = &mut how else { return Ok(how) };
    for number in 0..FLOOD as u64 {
        let random: u64 = rand::random();
        let get = Operation::get(victim.table, b"key");
        datagrams.push(match number % 8 {
            0 => (0..80).map(|_| rand::random::<u8>()).collect(),
            1 | 2 => datagram(&header(victim.id, random, 1), &get),
            3 => datagram(&header(victim.id, random, 1), &Operation::hello(b"not the token")),
            4 => datagram(&header(random as u32 | 1 << 31, random, 1), &get),
            5 => [&[0xCE, 1, 1, 0][..], &victim.id.to_le_bytes(), &[random as u8; 72]].concat(),
            6 => [&[0xCC, 24, 0, 0x80][..], &random.to_be_bytes(), &[9; 68]].concat(),
            _ => datagram(&header(mallory.id, random, 1), &Operation::new(OpKind::Ping)),
        });
    }
    Ok(how)
}

fn raw_traffic(server: &LocalServer) -> Result<AttackTraffic, CliError> {
    let driver = UdpDriver::bind(([127, 0, 0, 1], 0).into(), UdpOptions::default())
        .map_err(|error| CliError::new(error.to_string()))?;
    let (burst, outbox, to) = (Box::new(driver.burst()), Outbox::default(), server.address());
    Ok(AttackTraffic::Flooder { driver: Box::new(driver), burst, outbox, to, datagrams: Vec::new(), at: 0 })
}

/// Pushes one extension after another; some of them never finish compiling.
pub(super) fn push_continuously(server: &LocalServer, stop: &AtomicBool, pushed: &AtomicU64) {
    let bomb = "#![no_std]\nuse sandstorm_api::prelude::*;\nconst N: u64 = { let mut i = 0u64; while i < u64::MAX { i += 1; } i };\n\
        pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { db.reply(&N.to_le_bytes()) }\n";
    let manifest = "name = \"bomb\"\nversion = \"1.0.0\"\nedition = \"2024\"\napi = 1\nlibraries = []\n";
    let bomb = ExtensionSource {
        manifest: manifest.into(),
        files: vec![ExtensionSourceFile { path: "src/lib.rs".into(), text: bomb.into() }],
    };
    while !stop.load(Relaxed) {
        let bombs = pushed.fetch_add(1, Relaxed).is_multiple_of(8);
        let outcome = match bombs {
            true => server.control().push("attacker", "bomb", &bomb).map(drop),
            false => server.push("attacker", &GET).map(drop),
        };
        // A source that is a bomb is meant to be refused; the next one follows at once.
        drop(outcome);
    }
}
