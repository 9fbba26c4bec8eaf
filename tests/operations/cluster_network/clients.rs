//! Clients of a cluster that note what they ask and what they are answered, each key for itself
//! (`common/key_history.rs`): the client library from each server on, with puts, conditional puts, deletes, gets, and
//! increments that count once; the same by a connection of memcached's protocol to each server, which sends on what
//! others own; and for each server a connection of Redis' protocol that reads from that server alone, whatever becomes
//! of it. An answer that is no error is the owner's: it has to be what one copy of the key would say.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_client::blocking::Client;
use sandstorm_client::{Config, PutOptions};

use super::links::{ADDRESSES, DATA_PORT, MEMCACHED_PORT, REDIS_PORT};
use super::memcached::MemcachedClient;
use crate::cluster_copies::{ITEMS, SERVERS};
use crate::common::key_history::{KeyAnswer, KeyHistories, KeyRequest};
use crate::common::namespaces::{enter, within};
use crate::common::{PATIENT, Stop, eventually};
use crate::histories::{HistoryClient, OwnHistory};

/// The id of the tenant in the configuration.
const TENANT: u32 = 1;
/// Keys that are counted up, and others: few, so that clients meet, and enough that each server has some.
const COUNTERS: usize = 8;
const VALUES: usize = 16;
/// Writes to a key that are not answered, at most, until another key takes its place. Each may have run or not, and the
/// checker follows both.
const MOST_UNKNOWN: u32 = 2;
/// How long a client waits for an answer. What is not answered is not known.
const DEADLINE: Duration = Duration::from_millis(1_500);
/// Between two requests of a client: the checker has to read all of them.
const PAUSE: Duration = Duration::from_millis(3);

/// The key at some place: how often it was replaced, and how many writes to it have no answer.
#[derive(Default)]
struct KeyPlace {
    replaced: u32,
    unknown: u32,
}

/// What clients ask in one part of a test, with keys of its own.
pub(super) struct ClientRound {
    number: u64,
    histories: KeyHistories,
    places: Vec<Mutex<KeyPlace>>,
    keys: Mutex<BTreeSet<String>>,
    /// The last value that was written: each is written once.
    values: AtomicU64,
    /// Answers to each of the clients: those of the library, then those of Redis' protocol, then of memcached's.
    answered: [AtomicU64; 3 * SERVERS],
    stop: AtomicBool,
}

fn address(at: usize, port: u16) -> SocketAddr {
    SocketAddr::new(ADDRESSES[at].parse().unwrap(), port)
}

fn connect(at: usize, deadline: Duration) -> Result<Client, sandstorm_client::Error> {
    Client::connect(Config::new(address(at, DATA_PORT), TENANT).deadline(deadline))
}

impl ClientRound {
    pub(super) fn new(number: u64) -> ClientRound {
        ClientRound {
            number,
            histories: KeyHistories::default(),
            places: (0..COUNTERS + VALUES).map(|_| Mutex::default()).collect(),
            keys: Mutex::default(),
            values: AtomicU64::new(0),
            answered: Default::default(),
            stop: AtomicBool::new(false),
        }
    }

    /// Runs something while clients in that namespace ask. Each that writes has an answer before.
    pub(super) fn run<T>(&self, hub: &str, what: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            let _ends = Stop(&self.stop);
            for at in 0..SERVERS {
                scope.spawn(move || {
                    enter(hub);
                    self.ask_by_library(at);
                });
                scope.spawn(move || {
                    enter(hub);
                    self.ask_by_memcached(at);
                });
                scope.spawn(move || {
                    enter(hub);
                    self.read_by_redis(at);
                });
            }
            // After moves a server may own so few slots that none of the keys is among them: its reader has no answers.
            let writers: Vec<usize> = (0..SERVERS).chain(2 * SERVERS..3 * SERVERS).collect();
            self.await_answers(&writers, || false);
            what()
        })
    }

    /// Waits until each of these clients has a further answer, or something else is so. Returns whether they have.
    /// Those before [`SERVERS`] begin at the server of that number, as many behind them read from one alone, and the
    /// last ones ask one for everything.
    pub(super) fn await_answers(&self, of: &[usize], or: impl Fn() -> bool) -> bool {
        let counts = || of.iter().map(|client| self.answered[*client].load(SeqCst)).collect::<Vec<_>>();
        let before = counts();
        let have_more = || counts().iter().zip(&before).all(|(count, before)| count > before);
        assert!(eventually(|| have_more() || or()), "{before:?} of {of:?}, and then {:?}", counts());
        have_more()
    }

    /// Draws a place; returns it with its key now.
    fn draw_key(&self, random: &mut SmallRng) -> (usize, String) {
        let place = random.random_range(0..self.places.len());
        let replaced = self.places[place].lock().unwrap().replaced;
        let kind = if place < COUNTERS { "count" } else { "value" };
        let key = format!("{kind}:{}:{place}:{replaced}", self.number);
        self.keys.lock().unwrap().insert(key.clone());
        (place, key)
    }

    fn draw_request(&self, place: usize, known: Option<u64>, random: &mut SmallRng) -> KeyRequest {
        let value = || self.values.fetch_add(1, SeqCst) + 1;
        match random.random_range(0..10) {
            0..=5 if place < COUNTERS => KeyRequest::Increment,
            0..=2 if place >= COUNTERS => KeyRequest::Put(value()),
            3 if place >= COUNTERS => KeyRequest::Delete,
            4..=5 => KeyRequest::PutIf(known, value()),
            _ => KeyRequest::Get,
        }
    }

    /// A write to this key was not answered.
    fn note_unknown(&self, place: usize, key: &str) {
        let mut place = self.places[place].lock().unwrap();
        if !key.ends_with(&format!(":{}", place.replaced)) {
            return;
        }
        place.unknown += 1;
        if place.unknown >= MOST_UNKNOWN {
            *place = KeyPlace { replaced: place.replaced + 1, unknown: 0 };
        }
    }

    /// Asks by the client library, which begins at this server, until it is told to stop.
    fn ask_by_library(&self, at: usize) {
        let connect = || {
            let client = connect(at, DEADLINE).ok()?;
            Some(OwnHistory { client, table: ITEMS, versions: HashMap::new() })
        };
        let known = |own: &OwnHistory, key: &str| own.versions.get(key).map(|(value, _)| *value);
        self.ask_by((at, at as u64), connect, known);
    }

    /// Asks this server for everything by memcached's protocol, until it is told to stop.
    fn ask_by_memcached(&self, at: usize) {
        let connect = || MemcachedClient::connect(address(at, MEMCACHED_PORT), DEADLINE);
        self.ask_by((2 * SERVERS + at, 20 + at as u64), connect, MemcachedClient::known);
    }

    /// Asks by a client that has this number among all, and draws by that seed.
    fn ask_by<C: HistoryClient>(
        &self,
        (own, seed): (usize, u64),
        connect: impl Fn() -> Option<C>,
        known: impl Fn(&C, &str) -> Option<u64>,
    ) {
        let mut random = SmallRng::seed_from_u64(self.number * 100 + seed);
        let mut client: Option<C> = None;
        while !self.stop.load(SeqCst) {
            thread::sleep(PAUSE);
            let Some(asked) = client.as_mut() else {
                client = connect();
                continue;
            };
            let (place, key) = self.draw_key(&mut random);
            let request = self.draw_request(place, known(asked, &key), &mut random);
            let number = self.histories.ask(&key, request);
            match asked.ask(&key, request) {
                Ok(Some(answer)) => {
                    self.histories.answer(&key, number, answer);
                    self.answered[own].fetch_add(u64::from(answer != KeyAnswer::NotRun), SeqCst);
                }
                without => {
                    if request != KeyRequest::Get {
                        self.note_unknown(place, &key);
                    }
                    if without.is_err() {
                        client = None;
                    }
                }
            }
        }
    }

    /// Reads from this server alone, until it is told to stop.
    fn read_by_redis(&self, at: usize) {
        let mut random = SmallRng::seed_from_u64(self.number * 100 + 50 + at as u64);
        let mut stream: Option<BufReader<TcpStream>> = None;
        while !self.stop.load(SeqCst) {
            thread::sleep(PAUSE);
            let Some(open) = stream.as_mut() else {
                stream = TcpStream::connect_timeout(&address(at, REDIS_PORT), DEADLINE).ok().map(BufReader::new);
                if let Some(open) = &stream {
                    open.get_ref().set_read_timeout(Some(DEADLINE)).unwrap();
                }
                continue;
            };
            let (_, key) = self.draw_key(&mut random);
            let number = self.histories.ask(&key, KeyRequest::Get);
            match read_key(open, &key) {
                Ok(Some(answer)) => {
                    self.histories.answer(&key, number, answer);
                    self.answered[SERVERS + at].fetch_add(1, SeqCst);
                }
                // Another server has it, or the cluster cannot say.
                Ok(None) => {}
                Err(_) => stream = None,
            }
        }
    }

    /// Reads all keys once more by a client of this server, and checks what all clients saw of each.
    pub(super) fn check(&self, hub: &str, at: usize) {
        let keys = self.keys.lock().unwrap();
        within(hub, || {
            let client = connect(at, PATIENT).unwrap();
            let mut last = OwnHistory { client, table: ITEMS, versions: HashMap::new() };
            for key in &*keys {
                let number = self.histories.ask(key, KeyRequest::Get);
                let answer = last.ask(key, KeyRequest::Get).unwrap().expect("an answer");
                self.histories.answer(key, number, answer);
            }
        });
        let answers = self.histories.check();
        println!("round {}: {} keys, {answers} answers, as of one copy of each key", self.number, keys.len());
    }
}

/// A server's answer to a get; `None`: it does not say.
fn read_key(stream: &mut BufReader<TcpStream>, key: &str) -> std::io::Result<Option<KeyAnswer>> {
    stream.get_mut().write_all(format!("get {key}\r\n").as_bytes())?;
    let mut line = || {
        let mut line = String::new();
        match stream.read_line(&mut line)? {
            0 => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
            _ => Ok(line),
        }
    };
    let head = line()?;
    Ok(match head.as_bytes()[0] {
        b'-' => None,
        _ if head.starts_with("$-1") => Some(KeyAnswer::Found(None)),
        _ => Some(KeyAnswer::Found(Some(line()?.trim_end().parse().map_err(std::io::Error::other)?))),
    })
}

/// A connection to one server that has read a key there, and reads it again after others have changed it.
pub(super) struct Reads {
    stream: TcpStream,
    key: String,
}

/// Puts a record by the last server.
pub(super) fn put(hub: &str, key: &str, value: &str, options: &PutOptions) {
    let is_put = || {
        let client = connect(SERVERS - 1, DEADLINE);
        client.is_ok_and(|client| client.put(ITEMS, key.as_bytes(), value.as_bytes(), options).is_ok())
    };
    assert!(within(hub, || eventually(is_put)), "{key} is put");
}

/// Whether a record is there, by the last server.
pub(super) fn is_there(hub: &str, key: &str) -> bool {
    within(hub, || connect(SERVERS - 1, PATIENT).unwrap().get(ITEMS, key.as_bytes()).unwrap().is_some())
}

impl Reads {
    /// Writes the key by the last server, and reads it at that one. `None`: it does not own it.
    pub(super) fn begin(hub: &str, at: usize, key: &str) -> Option<Reads> {
        put(hub, key, "old", &PutOptions::default());
        let mut stream = within(hub, || TcpStream::connect(address(at, REDIS_PORT))).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(format!("get {key}\r\n").as_bytes()).ok()?;
        let mut answer = [0; 9];
        stream.read_exact(&mut answer).ok()?;
        (&answer == b"$3\r\nold\r\n").then(|| Reads { stream, key: key.to_owned() })
    }

    /// Writes the key once more by the last server, and then asks for it by the connection. The server finds these
    /// questions when it wakes, or has them at once.
    pub(super) fn ask_after_a_change(&mut self, hub: &str) {
        put(hub, &self.key, "new", &PutOptions::default());
        let get = format!("get {}\r\n", self.key);
        self.stream.write_all(format!("{get}{get}{get}quit\r\n").as_bytes()).unwrap();
    }

    /// Waits for the answers.
    pub(super) fn answers(mut self) -> String {
        let mut all = Vec::new();
        let _closed = self.stream.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }
}
