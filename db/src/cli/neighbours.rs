//! `sandstorm bench neighbours`: what a tenant feels of another that does its worst. One worker; a victim that asks at a fixed rate,
//! plain gets and calls by turns; rounds in which it is quiet, each attack runs alone, or all run at once.
//!
//! Victim and attackers are turned by one thread, one after the other, so that what is measured does not hang on how the kernel
//! shares the second core between them; an attacker's turn is about ten microseconds long.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sandstorm_client::PutOptions;
use sandstorm_client::control::{CreateTable, CreateTenant, Push, SourceFile, TableMode};
use sandstorm_client::raw::Connection;
use sandstorm_db::limits::SLICE_US;
use sandstorm_net::driver::{Burst, Driver, Outbox, UdpDriver, UdpOptions};
use sandstorm_net::r2p2::Transmit;
use sandstorm_net::r2p2::header::{Kind, single};
use sandstorm_net::rpc::{MessageHeader, Op, Operation, Status, encode_message};
use serde::Serialize;

use super::local::{BAD, GET, LONG, LocalServer, LocalTenant};
use super::output::{Failure, Out};

/// Records of either tenant.
const RECORDS: u64 = 1_000;
/// The victim's requests a second.
const RATE: u64 = 5_000;
/// Calls that an attacker has under way.
const CALLS: usize = 64;
/// Datagrams that a flood sends in one turn: one segmented send.
const FLOOD: usize = 64;
/// Reads of a long honest computation: about 3 ms.
const LONG_READS: u32 = 30_000;
/// Time for what is under way to end, before and after an attack.
const SETTLE: Duration = Duration::from_millis(150);

/// What is done to the server meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    Calls(&'static str),
    LongCalls,
    FloodGets,
    FloodCalls,
    Junk,
    Pushes,
}

const ATTACKS: [(&str, &[Attack]); 12] = [
    ("endless loops", &[Attack::Calls("loop")]),
    ("recursion", &[Attack::Calls("recursion")]),
    ("allocation", &[Attack::Calls("allocation")]),
    ("copying memory", &[Attack::Calls("memcpy")]),
    ("scans without a yield", &[Attack::Calls("loop-scans")]),
    ("gets without end", &[Attack::Calls("loop-gets")]),
    ("long honest calls", &[Attack::LongCalls]),
    ("flood of gets", &[Attack::FloodGets]),
    ("flood of calls", &[Attack::FloodCalls]),
    ("junk and forged packets", &[Attack::Junk]),
    ("pushes", &[Attack::Pushes]),
    (
        "all at once",
        &[
            Attack::Calls("loop"),
            Attack::Calls("recursion"),
            Attack::Calls("allocation"),
            Attack::Calls("loop-scans"),
            Attack::FloodGets,
            Attack::FloodCalls,
            Attack::Junk,
            Attack::Pushes,
        ],
    ),
];

/// The victim's latencies under one attack, and in the quiet round before it.
#[derive(Debug, Serialize)]
struct Row {
    attack: &'static str,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    quiet_p99_us: f64,
    /// p99 under attack over the quiet one: median, least, most.
    ratio: [f64; 3],
    bound_us: f64,
    reached: bool,
    /// Requests that were not answered within a second, or wrongly.
    lost: u64,
    wrong: u64,
    /// Thousand packets a second that the attack sent, and of them shed by the worker and dropped by the kernel (in its messages).
    sent: f64,
    shed: f64,
    dropped_early: f64,
}

/// What one measurement of the victim found.
#[derive(Default)]
struct Seen {
    latencies_ns: Vec<u64>,
    lost: u64,
    wrong: u64,
    sent: u64,
}

impl Seen {
    fn us(&mut self, quantile: f64) -> f64 {
        self.latencies_ns.sort_unstable();
        let at = (self.latencies_ns.len() as f64 * quantile) as usize;
        let last = self.latencies_ns.len().saturating_sub(1);
        self.latencies_ns.get(at.min(last)).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
    }
}

pub(super) struct Neighbours<'s> {
    server: &'s LocalServer,
    victim: LocalTenant,
    mallory: LocalTenant,
    connection: Connection,
    seconds: f64,
}

impl<'s> Neighbours<'s> {
    /// Makes the two tenants, their records and extensions.
    pub(super) fn new(server: &'s LocalServer, seconds: f64) -> Result<Neighbours<'s>, Failure> {
        let victim = server.tenant("victim", "t", TableMode::Store)?;
        // Neither slowed down nor suspended: what is measured is what holds while that has not happened yet.
        let quotas = [("slow_after_kills", 0), ("suspend_after_kills", 0), ("pushes_per_hour", 100_000)];
        let quotas = quotas.map(|(name, value)| (name.to_owned(), value)).into();
        let control = server.control();
        let created =
            control.create_tenant(&CreateTenant { name: "attacker".into(), quotas, ..CreateTenant::default() })?;
        let table = CreateTable { name: "t".into(), mode: TableMode::Store, ..CreateTable::default() };
        let table = control.create_table("attacker", &table)?.id;
        let mallory = LocalTenant { id: created.tenant.id, token: created.token, table };
        server.push("victim", &GET)?;
        for example in [&GET, &BAD, &LONG] {
            server.push("attacker", example)?;
        }
        let mut connection = Connection::connect(&server.client(&victim))?;
        fill(&mut connection, victim.table)?;
        fill(&mut Connection::connect(&server.client(&mallory))?, mallory.table)?;
        Ok(Neighbours { server, victim, mallory, connection, seconds })
    }

    /// Runs all rounds, and prints a line for each attack as its last round ends.
    pub(super) fn run(mut self, out: &Out, rounds: usize) -> Result<(), Failure> {
        if !out.json {
            out.line(
                "the worker has the first core; victim, attackers, control plane, builder and compilers share the others",
            )?;
        }
        let mut rows = Vec::new();
        for (name, attacks) in ATTACKS {
            let row = self.attack(name, attacks, rounds.max(1))?;
            if out.json {
                rows.push(row);
            } else {
                out.line(&line(&row))?;
            }
        }
        if out.json { out.json(&rows) } else { Ok(()) }
    }

    fn attack(&mut self, name: &'static str, attacks: &[Attack], rounds: usize) -> Result<Row, Failure> {
        let (mut all, mut ratios, mut quiets) = (Seen::default(), Vec::new(), Vec::new());
        let before = self.server.counters();
        for _ in 0..rounds {
            let mut quiet = self.measure(&[])?;
            let mut hit = self.measure(attacks)?;
            quiets.push(quiet.us(0.99));
            ratios.push(hit.us(0.99) / quiet.us(0.99));
            all.latencies_ns.append(&mut hit.latencies_ns);
            all.lost += hit.lost + quiet.lost;
            all.wrong += hit.wrong + quiet.wrong;
            all.sent += hit.sent;
        }
        ratios.sort_by(f64::total_cmp);
        quiets.sort_by(f64::total_cmp);
        let middle = |values: &[f64]| values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
        let (p99_us, quiet_p99_us) = (all.us(0.99), middle(&quiets));
        let bound_us = (2.0 * quiet_p99_us).max(SLICE_US as f64 + 100.0);
        let after = self.server.counters();
        let thousands = |count: u64| count as f64 / 1000.0 / (self.seconds * rounds as f64);
        Ok(Row {
            attack: name,
            p50_us: all.us(0.5),
            p99_us,
            p999_us: all.us(0.999),
            quiet_p99_us,
            ratio: [middle(&ratios), ratios[0], ratios[ratios.len() - 1]],
            bound_us,
            reached: p99_us <= bound_us && all.lost + all.wrong == 0,
            lost: all.lost,
            wrong: all.wrong,
            sent: thousands(all.sent),
            shed: thousands(after.0 - before.0),
            dropped_early: thousands(after.1 - before.1),
        })
    }

    /// Measures the victim while the attacks run.
    fn measure(&mut self, attacks: &[Attack]) -> Result<Seen, Failure> {
        let stop = AtomicBool::new(false);
        let pushed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            if attacks.contains(&Attack::Pushes) {
                let (server, stop, pushed) = (self.server, &stop, &pushed);
                scope.spawn(move || push_for_ever(server, stop, pushed));
            }
            let seen = self.measure_beside(attacks);
            stop.store(true, Relaxed);
            let mut seen = seen?;
            seen.sent += pushed.load(Relaxed);
            Ok(seen)
        })
    }

    fn measure_beside(&mut self, attacks: &[Attack]) -> Result<Seen, Failure> {
        let mut attackers = Vec::new();
        for attack in attacks {
            attackers.extend(Attacker::new(self.server, &self.mallory, &self.victim, *attack)?);
        }
        let mut seen = Seen::default();
        // What the victim asks in this time is not counted: the attack is beginning.
        self.victims_turns(&mut attackers, SETTLE, &mut Seen::default())?;
        self.victims_turns(&mut attackers, Duration::from_secs_f64(self.seconds), &mut seen)?;
        seen.sent = attackers.iter().map(|attacker| attacker.sent).sum();
        drop(attackers);
        std::thread::sleep(SETTLE);
        Ok(seen)
    }

    /// Sends the victim's requests at their times, and turns the attackers between them.
    fn victims_turns(&mut self, attackers: &mut [Attacker], time: Duration, seen: &mut Seen) -> Result<(), Failure> {
        let gap = Duration::from_nanos(1_000_000_000 / RATE);
        let (begun, mut next, mut number) = (Instant::now(), Duration::ZERO, 0u64);
        let mut under_way = std::collections::HashMap::new();
        let mut turn = 0;
        while next < time || !under_way.is_empty() {
            let now = begun.elapsed();
            while next <= now && next < time {
                let mut message = self.connection.message();
                let key = key(number % RECORDS);
                if number.is_multiple_of(2) {
                    message.get(self.victim.table, &key);
                } else {
                    message.invoke("get", 0, &[&self.victim.table.to_le_bytes()[..], &key].concat());
                }
                self.connection.send(number, message)?;
                under_way.insert(number, next);
                (next, number) = (next + gap, number + 1);
            }
            self.connection.poll(|mark, answer| {
                let Some(sent) = under_way.remove(&mark) else { return };
                seen.latencies_ns.push((begun.elapsed() - sent).as_nanos() as u64);
                let Ok(answer) = answer else { return seen.lost += 1 };
                let right = answer.operations().next().is_some_and(|operation| {
                    operation.is_ok_and(|o| o.status == Status::Ok && o.value == value(mark % RECORDS))
                });
                seen.wrong += u64::from(!right);
            });
            if now > time + Duration::from_secs(6) {
                seen.lost += under_way.len() as u64;
                break;
            }
            turn += 1;
            if next < time && !attackers.is_empty() {
                let attackers_turn = turn % attackers.len();
                attackers[attackers_turn].turn()?;
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"record--________";
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(number: u64) -> [u8; 100] {
    [number as u8; 100]
}

fn fill(connection: &mut Connection, table: u64) -> Result<(), Failure> {
    for number in 0..RECORDS {
        let mut message = connection.message();
        message.put(table, &key(number), &value(number), &PutOptions::default());
        connection.send(number, message)?;
        let mut failed = None;
        while connection.in_flight() > 0 {
            connection.poll(|_, answer| failed = answer.err());
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
    }
    // What `long` reads: a list of one key.
    let mut message = connection.message();
    let list = [&16u16.to_le_bytes()[..], &key(1)].concat();
    message.put(table, b"list", &list, &PutOptions::default());
    connection.send(0, message)?;
    while connection.in_flight() > 0 {
        connection.poll(|_, _| {});
    }
    Ok(())
}

/// One who attacks, by turns.
struct Attacker {
    how: How,
    sent: u64,
}

enum How {
    /// Keeps so many calls under way.
    Caller { connection: Box<Connection>, name: &'static str, args: Vec<u8> },
    /// Sends the same datagrams over and over and looks at no answer.
    Flooder { driver: Box<UdpDriver>, burst: Burst, outbox: Outbox, to: SocketAddr, datagrams: Vec<Vec<u8>>, at: usize },
}

impl Attacker {
    fn new(
        server: &LocalServer,
        mallory: &LocalTenant,
        victim: &LocalTenant,
        attack: Attack,
    ) -> Result<Option<Attacker>, Failure> {
        let config = server.client(mallory);
        let table = mallory.table.to_le_bytes();
        let call = |name, args: Vec<u8>| -> Result<How, Failure> {
            Ok(How::Caller { connection: Box::new(Connection::connect(&config)?), name, args })
        };
        let get = [&table[..], &key(7)].concat();
        let how = match attack {
            Attack::Calls(way) => call("bad", [&table[..], way.as_bytes()].concat())?,
            Attack::LongCalls => {
                call("long", [&table[..], &LONG_READS.to_le_bytes(), &0u32.to_le_bytes(), b"list"].concat())?
            }
            Attack::FloodGets => flooder(server, mallory, &Operation::get(mallory.table, &key(7)))?,
            Attack::FloodCalls => flooder(server, mallory, &Operation::invoke(b"get", &get))?,
            Attack::Junk => junk(server, mallory, victim)?,
            Attack::Pushes => return Ok(None),
        };
        Ok(Some(Attacker { how, sent: 0 }))
    }

    fn turn(&mut self) -> Result<(), Failure> {
        match &mut self.how {
            How::Caller { connection, name, args } => {
                connection.poll(|_, _| {});
                for _ in 0..8 {
                    if connection.in_flight() >= CALLS {
                        break;
                    }
                    let mut message = connection.message();
                    message.invoke(name, 0, args);
                    connection.send(0, message)?;
                    self.sent += 1;
                }
                connection.flush();
            }
            How::Flooder { driver, burst, outbox, to, datagrams, at } => {
                for _ in 0..FLOOD {
                    *at = (*at + 1) % datagrams.len();
                    outbox.send(*to, &[&datagrams[*at]]);
                }
                self.sent += FLOOD as u64;
                driver.transmit(outbox);
                outbox.clear();
                driver.receive(burst);
            }
        }
        Ok(())
    }
}

fn datagram(header: &MessageHeader, operation: &Operation<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    encode_message(header, std::slice::from_ref(operation), &mut message);
    [&single(Kind::Request, header.sequence as u16)[..], &message].concat()
}

fn header(tenant: u32, session: u64, sequence: u64) -> MessageHeader {
    MessageHeader { flags: sandstorm_net::rpc::FLAG_IDEMPOTENT, operations: 1, tenant, session, sequence, acked: 0 }
}

/// A flood under the tenant's own token.
fn flooder(server: &LocalServer, tenant: &LocalTenant, operation: &Operation<'_>) -> Result<How, Failure> {
    let mut how = raw(server)?;
    let How::Flooder { driver, burst, outbox, to, datagrams, .. } = &mut how else { return Ok(how) };
    let session = rand::random();
    outbox.send(*to, &[&datagram(&header(tenant.id, session, 1), &Operation::hello(tenant.token.as_bytes()))]);
    driver.transmit(outbox);
    let begun = Instant::now();
    while driver.receive(burst) == 0 {
        if begun.elapsed() > Duration::from_secs(5) {
            return Err(Failure::new("the flooder's hello was not answered"));
        }
    }
    datagrams.extend((2..2 + FLOOD as u64).map(|sequence| datagram(&header(tenant.id, session, sequence), operation)));
    Ok(how)
}

/// Noise, forged requests in the victim's name, wrong tokens, tenants that there are not, sealed packets that nobody sealed.
fn junk(server: &LocalServer, mallory: &LocalTenant, victim: &LocalTenant) -> Result<How, Failure> {
    let mut how = raw(server)?;
    let How::Flooder { datagrams, .. } = &mut how else { return Ok(how) };
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
            _ => datagram(&header(mallory.id, random, 1), &Operation::new(Op::Ping)),
        });
    }
    Ok(how)
}

fn raw(server: &LocalServer) -> Result<How, Failure> {
    let driver = UdpDriver::bind(([127, 0, 0, 1], 0).into(), UdpOptions::default())
        .map_err(|error| Failure::new(error.to_string()))?;
    let (burst, outbox, to) = (driver.burst(), Outbox::default(), server.address());
    Ok(How::Flooder { driver: Box::new(driver), burst, outbox, to, datagrams: Vec::new(), at: 0 })
}

/// Pushes one extension after the other, of which some never end to compile.
fn push_for_ever(server: &LocalServer, stop: &AtomicBool, pushed: &AtomicU64) {
    let bomb = "#![no_std]\nuse sandstorm_api::prelude::*;\nconst N: u64 = { let mut i = 0u64; while i < u64::MAX { i += 1; } i };\n\
        pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { db.reply(&N.to_le_bytes()) }\n";
    let manifest = "name = \"bomb\"\nversion = \"1.0.0\"\nedition = \"2024\"\napi = 1\nlibraries = []\n";
    let bomb =
        Push { manifest: manifest.into(), files: vec![SourceFile { path: "src/lib.rs".into(), text: bomb.into() }] };
    while !stop.load(Relaxed) {
        let bombs = pushed.fetch_add(1, Relaxed).is_multiple_of(8);
        let outcome = match bombs {
            true => server.control().push("attacker", "bomb", &bomb).map(drop),
            false => server.push("attacker", &GET).map(drop),
        };
        // A refusal is what a bomb is to get; the next one follows at once.
        drop(outcome);
    }
}

fn line(row: &Row) -> String {
    let Row { attack, p50_us, p99_us, p999_us, quiet_p99_us, ratio: [ratio, least, most], bound_us, .. } = row;
    let Row { lost, wrong, sent, shed, dropped_early, .. } = row;
    let verdict = if row.reached { "reached" } else { "NOT reached" };
    format!(
        "{attack:<24} p50 {p50_us:>7.1} p99 {p99_us:>8.1} p99.9 {p999_us:>8.1} us; quiet p99 {quiet_p99_us:>6.1}, ratio {ratio:.2} \
         ({least:.2} to {most:.2}); {lost} lost, {wrong} wrong; at most {bound_us:.0} us: {verdict} \
         [{sent:.0} k/s sent, {shed:.0} shed, {dropped_early:.1} dropped early]"
    )
}
