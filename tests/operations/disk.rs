//! Promise: in a table with durability `disk` nothing that a client was told is gone after a kill of the server: no
//! write that was acknowledged, and no record that was shown to another client, in any protocol, by calls too. Kills
//! the real binary with SIGKILL while clients of all protocols write and read. `SANDSTORM_KILLS` sets how many times.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_client::blocking::Client;
use sandstorm_client::control::{
    DurabilityLevel, ExtensionSource, ExtensionSourceFile, TableMode, TablePatch, TableSpec, TenantSpec,
};
use sandstorm_client::{Config, Error, PutOptions};

use crate::records::{LONG, RecordServer};

const KEYS: u64 = 20;
/// Longest time for which a client of the own protocol waits for a server that was killed.
pub(super) const OWN_DEADLINE: Duration = Duration::from_millis(300);

/// What the clients of one life of a server know.
#[derive(Default)]
struct Knowledge {
    /// The highest number that was acknowledged or shown, by key.
    known: Mutex<BTreeMap<String, u64>>,
    /// The highest number that was sent.
    sent: Mutex<BTreeMap<String, u64>>,
}

impl Knowledge {
    fn note(of: &Mutex<BTreeMap<String, u64>>, key: &str, number: u64) {
        let mut all = of.lock().unwrap();
        let last = all.entry(key.to_owned()).or_default();
        *last = number.max(*last);
    }
}

/// A client of one protocol. An error ends its work: the server is gone.
trait CountingClient {
    /// Writes a number under a key of its own.
    fn put(&mut self, key: &str, number: u64) -> Result<(), String>;
    /// Reads any key; `None`: there is none.
    fn get(&mut self, key: &str) -> Result<Option<u64>, String>;
}

pub(super) fn text<E: std::fmt::Display>(error: E) -> String {
    error.to_string()
}

pub(super) struct RedisCounting(pub(super) BufReader<TcpStream>, pub(super) bool);

impl RedisCounting {
    pub(super) fn ask(&mut self, words: &[&str]) -> Result<String, String> {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        self.0.get_ref().write_all(bytes.as_bytes()).map_err(text)?;
        self.line()
    }

    pub(super) fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        if self.0.read_line(&mut line).map_err(text)? == 0 || line.starts_with('-') {
            return Err(line);
        }
        Ok(line)
    }
}

impl CountingClient for RedisCounting {
    fn put(&mut self, key: &str, number: u64) -> Result<(), String> {
        let value = number.to_string();
        if !self.1 {
            return self.ask(&["SET", key, &value]).map(drop);
        }
        self.ask(&["MULTI"])?;
        self.ask(&["SET", key, &value])?;
        self.ask(&["SET", &format!("{key}:twin"), &value])?;
        self.ask(&["EXEC"])?;
        self.line()?;
        self.line().map(drop)
    }

    fn get(&mut self, key: &str) -> Result<Option<u64>, String> {
        if self.ask(&["GET", key])?.starts_with("$-1") {
            return Ok(None);
        }
        self.line()?.trim().parse().map(Some).map_err(text)
    }
}

pub(super) struct MemcachedCounting(pub(super) BufReader<TcpStream>);

impl MemcachedCounting {
    pub(super) fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        if self.0.read_line(&mut line).map_err(text)? == 0 || line.contains("ERROR") {
            return Err(line);
        }
        Ok(line)
    }
}

impl CountingClient for MemcachedCounting {
    fn put(&mut self, key: &str, number: u64) -> Result<(), String> {
        let value = number.to_string();
        let command = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        self.0.get_ref().write_all(command.as_bytes()).map_err(text)?;
        self.line().map(drop)
    }

    fn get(&mut self, key: &str) -> Result<Option<u64>, String> {
        self.0.get_ref().write_all(format!("get {key}\r\n").as_bytes()).map_err(text)?;
        if self.line()?.starts_with("END") {
            return Ok(None);
        }
        let number = self.line()?.trim().parse().map_err(text)?;
        self.line()?;
        Ok(Some(number))
    }
}

/// A client of memcached's binary protocol.
struct BinaryCounting(BufReader<TcpStream>);

impl BinaryCounting {
    /// Sends a request; returns the status and the value of its answer.
    fn ask(&mut self, opcode: u8, extras: &[u8], key: &str, value: &str) -> Result<(u16, Vec<u8>), String> {
        let body = (extras.len() + key.len() + value.len()) as u32;
        let mut request = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
        request.extend_from_slice(&body.to_be_bytes());
        request.extend_from_slice(&[0; 12]);
        let request = [&request[..], extras, key.as_bytes(), value.as_bytes()].concat();
        self.0.get_ref().write_all(&request).map_err(text)?;
        let mut head = [0; 24];
        self.0.read_exact(&mut head).map_err(text)?;
        let mut body = vec![0; u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize];
        self.0.read_exact(&mut body).map_err(text)?;
        let before = usize::from(head[4]) + usize::from(u16::from_be_bytes([head[2], head[3]]));
        Ok((u16::from_be_bytes([head[6], head[7]]), body.split_off(before)))
    }
}

impl CountingClient for BinaryCounting {
    fn put(&mut self, key: &str, number: u64) -> Result<(), String> {
        match self.ask(0x01, &[0; 8], key, &number.to_string())? {
            (0, _) => Ok(()),
            (status, said) => Err(format!("status {status}: {}", String::from_utf8_lossy(&said))),
        }
    }

    fn get(&mut self, key: &str) -> Result<Option<u64>, String> {
        match self.ask(0x00, &[], key, "")? {
            (0, value) => String::from_utf8_lossy(&value).parse().map(Some).map_err(text),
            // There is none.
            (1, _) => Ok(None),
            (status, said) => Err(format!("status {status}: {}", String::from_utf8_lossy(&said))),
        }
    }
}

/// A client of memcached over UDP, which asks again until there is an answer, or the server was killed.
struct DatagramCounting {
    socket: UdpSocket,
    request: u16,
    is_killed: Arc<AtomicBool>,
}

impl DatagramCounting {
    fn ask(&mut self, command: &str) -> Result<String, String> {
        self.request = self.request.wrapping_add(1);
        let number = self.request.to_be_bytes();
        let datagram = [&number[..], &[0, 0, 0, 1, 0, 0], command.as_bytes()].concat();
        let mut answer = [0; 1_500];
        while !self.is_killed.load(SeqCst) {
            self.socket.send(&datagram).map_err(text)?;
            // Answers to what was asked before are passed over.
            while let Ok(len) = self.socket.recv(&mut answer) {
                if answer[..2] == number {
                    return Ok(String::from_utf8_lossy(&answer[8..len]).into_owned());
                }
            }
        }
        Err("it was killed".into())
    }
}

impl CountingClient for DatagramCounting {
    fn put(&mut self, key: &str, number: u64) -> Result<(), String> {
        let value = number.to_string();
        let said = self.ask(&format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()))?;
        if said.starts_with("STORED") { Ok(()) } else { Err(said) }
    }

    fn get(&mut self, key: &str) -> Result<Option<u64>, String> {
        let said = self.ask(&format!("get {key}\r\n"))?;
        let mut lines = said.lines();
        match lines.next() {
            Some("END") => Ok(None),
            Some(head) if head.starts_with("VALUE") => lines.next().unwrap_or_default().parse().map(Some).map_err(text),
            _ => Err(said),
        }
    }
}

/// How a client of the own protocol writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnWrites {
    Puts,
    /// Calls of [`CALLED`].
    Calls,
    /// Transactions that write a key and its twin.
    Transactions,
}

struct OwnCounting {
    client: Client,
    table: u64,
    is_killed: Arc<AtomicBool>,
    writes: OwnWrites,
}

/// An extension that writes a number under a key and under its twin, at one moment.
const CALLED: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

/// Writes the number in `args`, behind a blank, under the key before it and under its twin.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (items, tx) = (db.table(\"items\")?, db.transaction());
    let (key, number) = core::str::from_utf8(args)?.split_once(' ').ok_or(\"a key and a number\")?;
    let twin = [key, \":twin\"].concat();
    tx.put(items, key.as_bytes(), number.as_bytes())?;
    tx.put(items, twin.as_bytes(), number.as_bytes())?;
    db.reply(number.as_bytes())
}
";

impl OwnCounting {
    /// Asks until there is an answer, or the server was killed.
    fn ask<T>(&self, request: impl Fn(&Client) -> Result<T, Error>) -> Result<T, String> {
        loop {
            match request(&self.client) {
                Err(Error::Timeout { .. }) if !self.is_killed.load(SeqCst) => {}
                result => return result.map_err(text),
            }
        }
    }
}

impl CountingClient for OwnCounting {
    fn put(&mut self, key: &str, number: u64) -> Result<(), String> {
        let (value, table) = (number.to_string(), self.table);
        let (key, value) = (key.as_bytes(), value.as_bytes());
        match self.writes {
            OwnWrites::Puts => self.ask(|client| client.put(table, key, value, &PutOptions::default())).map(drop),
            OwnWrites::Calls => {
                let args = [key, b" ", value].concat();
                let said = self.ask(|client| client.invoke("count", &args))?;
                if said == value { Ok(()) } else { Err(format!("{said:?} for {number}")) }
            }
            OwnWrites::Transactions => self.ask(|client| {
                client.transact(|transaction| {
                    transaction.put(table, key, value);
                    transaction.put(table, &[key, b":twin"].concat(), value);
                    Ok(())
                })
            }),
        }
    }

    fn get(&mut self, key: &str) -> Result<Option<u64>, String> {
        let record = self.ask(|client| client.get(self.table, key.as_bytes()))?;
        record.map(|record| String::from_utf8_lossy(&record.value).parse().map_err(text)).transpose()
    }
}

pub(super) fn stream(address: &str) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    BufReader::new(stream)
}

fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(OWN_DEADLINE)).unwrap();
    socket
}

/// The clients of all protocols; the sealed one does not see that it is on loopback.
fn clients(server: &RecordServer, table: u64, is_killed: &Arc<AtomicBool>) -> Vec<Box<dyn CountingClient + Send>> {
    let tenant = server.control.tenant("shop").unwrap().id;
    let own = |sealing, writes| {
        let config = Config::new(server.data.parse().unwrap(), tenant).sealing(sealing).deadline(LONG);
        let client = Client::connect(config.token(TOKEN)).unwrap().with_deadline(OWN_DEADLINE);
        Box::new(OwnCounting { client, table, is_killed: Arc::clone(is_killed), writes })
    };
    vec![
        Box::new(RedisCounting(stream(&server.redis), false)),
        Box::new(RedisCounting(stream(&server.redis), true)),
        Box::new(MemcachedCounting(stream(&server.memcached))),
        own(sandstorm_client::Sealing::default(), OwnWrites::Puts),
        own(sandstorm_client::Sealing::Always, OwnWrites::Puts),
        own(sandstorm_client::Sealing::default(), OwnWrites::Calls),
        Box::new(BinaryCounting(stream(&server.memcached))),
        Box::new(DatagramCounting { socket: socket(&server.memcached), request: 0, is_killed: Arc::clone(is_killed) }),
        own(sandstorm_client::Sealing::default(), OwnWrites::Transactions),
    ]
}

pub(super) const TOKEN: &str = "a-token-that-is-long-enough-for-a-test";

/// Writes and reads until an error; counts the rounds that were answered.
fn count_on(
    own: u64,
    client: &mut dyn CountingClient,
    knowledge: &Knowledge,
    (from, clients, answered): (u64, u64, &AtomicU64),
    random: &mut SmallRng,
) -> Result<(), String> {
    for number in from.. {
        let key = format!("{own}:{}", random.random_range(0..KEYS));
        Knowledge::note(&knowledge.sent, &key, number);
        client.put(&key, number)?;
        Knowledge::note(&knowledge.known, &key, number);
        let other = format!("{}:{}", random.random_range(0..clients), random.random_range(0..KEYS));
        if let Some(number) = client.get(&other)? {
            Knowledge::note(&knowledge.known, &other, number);
        }
        answered.fetch_add(1, SeqCst);
    }
    Ok(())
}

/// Has all clients write and read, and kills the server once each has had some answers.
fn write_and_kill(server: RecordServer, table: u64, from: u64, random: &mut SmallRng) -> Knowledge {
    let is_killed = Arc::new(AtomicBool::new(false));
    let (all, knowledge, least) =
        (clients(&server, table, &is_killed), Knowledge::default(), random.random_range(1..40));
    let (count, answered) = (all.len() as u64, all.iter().map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for ((own, mut client), answered) in (0..).zip(all).zip(&answered) {
            let (mut random, knowledge) = (SmallRng::seed_from_u64(random.random()), &knowledge);
            let is_killed = Arc::clone(&is_killed);
            threads.push(scope.spawn(move || {
                let ended = count_on(own, &mut *client, knowledge, (from, count, answered), &mut random);
                assert!(is_killed.load(SeqCst), "client {own} of a living server: {ended:?}");
            }));
        }
        let begun = Instant::now();
        while answered.iter().any(|answered| answered.load(SeqCst) < least)
            && !threads.iter().any(|thread| thread.is_finished())
        {
            if begun.elapsed() >= LONG {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        is_killed.store(true, SeqCst);
        drop(server);
    });
    assert!(answered.iter().all(|answered| answered.load(SeqCst) >= least), "each client is answered: {answered:?}");
    knowledge
}

fn table_with(durability: DurabilityLevel) -> TableSpec {
    let (name, mode) = ("items".to_owned(), TableMode::Store);
    let durability = Some(durability);
    TableSpec { name, mode, durability, quota_bytes: Some(64 << 20), ..TableSpec::default() }
}

pub(super) fn start_with(folder: &Path, durability: DurabilityLevel) -> (RecordServer, u64) {
    let server = RecordServer::start(folder);
    let token = Some(TOKEN.to_owned());
    server
        .control
        .create_tenant(&TenantSpec { name: "shop".into(), token, open: true, ..TenantSpec::default() })
        .unwrap();
    let table = server.control.create_table("shop", &table_with(durability)).unwrap();
    assert_eq!(table.durability, durability);
    (server, table.id)
}

#[test]
fn what_a_client_was_told_is_there_after_a_kill_whatever_its_protocol() {
    let kills = std::env::var("SANDSTORM_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(5);
    let folder = tempfile::tempdir().unwrap();
    let mut random = SmallRng::seed_from_u64(kills);
    let (server, table) = start_with(folder.path(), DurabilityLevel::Disk);
    drop(server);
    // Only this one has a builder.
    let mut server = RecordServer::start_as(folder.path(), "", &[]).0;
    let files = vec![ExtensionSourceFile { path: "src/lib.rs".into(), text: CALLED.into() }];
    server.control.push("shop", "count", &ExtensionSource { manifest: "name = \"count\"".into(), files }).unwrap();
    let mut from = 1;
    for kill in 0..kills {
        let knowledge = write_and_kill(server, table, from, &mut random);
        server = RecordServer::start(folder.path());
        let mut reader = RedisCounting(stream(&server.redis), false);
        let (known, sent) = (knowledge.known.into_inner().unwrap(), knowledge.sent.into_inner().unwrap());
        for (key, number) in &known {
            let found = reader.get(key).unwrap().unwrap_or(0);
            let most = sent.get(key).copied().unwrap_or(0).max(*number);
            assert!(found >= *number && found <= most, "kill {kill}, {key}: {found} instead of {number} to {most}");
            // The clients that write in transactions: MULTI, calls, and their own.
            if ["1:", "5:", "8:"].iter().any(|own| key.starts_with(own)) {
                assert_eq!(reader.get(&format!("{key}:twin")).unwrap(), Some(found), "a transaction is whole");
            }
        }
        from = sent.values().max().copied().unwrap_or(from) + 1;
    }
}

#[test]
fn a_table_in_memory_becomes_durable_while_it_is_used_and_is_so_when_that_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (server, table) = start_with(folder.path(), DurabilityLevel::None);
    let mut client = RedisCounting(stream(&server.redis), false);
    for key in 0..2_000 {
        client.put(&format!("before:{key}"), key).unwrap();
    }
    let set = |server: &RecordServer, durability| {
        server
            .control
            .change_table("shop", "items", &TablePatch { durability: Some(durability), ..TablePatch::default() })
            .unwrap()
            .durability
    };
    assert_eq!(set(&server, DurabilityLevel::Disk), DurabilityLevel::Disk);
    client.put("after", 7).unwrap();
    drop(server);

    let server = RecordServer::start(folder.path());
    assert_eq!(server.control.table("shop", "items").unwrap().durability, DurabilityLevel::Disk);
    let mut client = RedisCounting(stream(&server.redis), false);
    for key in 0..2_000 {
        assert_eq!(client.get(&format!("before:{key}")).unwrap(), Some(key));
    }
    assert_eq!(client.get("after").unwrap(), Some(7));
    // No longer, and again: what was written meanwhile is not lost, what was deleted does not come back.
    assert_eq!(set(&server, DurabilityLevel::None), DurabilityLevel::None);
    client.ask(&["DEL", "before:3"]).unwrap();
    client.put("between", 8).unwrap();
    assert_eq!(set(&server, DurabilityLevel::Interval), DurabilityLevel::Interval);
    assert_eq!(set(&server, DurabilityLevel::Disk), DurabilityLevel::Disk);
    drop(server);

    let server = RecordServer::start(folder.path());
    let mut client = RedisCounting(stream(&server.redis), false);
    assert_eq!((client.get("before:3").unwrap(), client.get("between").unwrap()), (None, Some(8)));
    assert_eq!(set(&server, DurabilityLevel::None), DurabilityLevel::None);
    drop(server);
    let server = RecordServer::start(folder.path());
    let mut client = RedisCounting(stream(&server.redis), false);
    assert_eq!(client.get("between").unwrap(), None, "it was in memory only");
    assert_eq!(clients(&server, table, &Arc::default()).len(), 9);
}

#[test]
fn a_pipeline_is_answered_in_its_order_when_its_writes_are_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = start_with(folder.path(), DurabilityLevel::Disk);
    let mut stream = stream(&server.redis);
    let mut commands = String::new();
    for number in 0..500 {
        commands += &format!("SET k{number} {number}\r\nPING\r\nGET k{number}\r\nINCR count\r\n");
    }
    // The last one closes the connection, behind all answers.
    commands += "QUIT\r\n";
    stream.get_ref().write_all(commands.as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let expected: String = (0..500)
        .map(|number: u32| {
            let value = number.to_string();
            format!("+OK\r\n+PONG\r\n${}\r\n{value}\r\n:{}\r\n", value.len(), number + 1)
        })
        .collect();
    assert_eq!(said, expected + "+OK\r\n");
}
