//! Promise (docs/cluster.md): over UDP, too, a memcached client reaches all keys at any server of a cluster. A datagram
//! is run once at most and answered once at most, with its request's number. Beyond a bound datagrams are dropped and
//! counted, and keys of other servers are answered all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{END, KEYS, KnownCounter, MemcachedCluster, SERVERS, StoppedProcess, TextClient};
use super::{check_all_there, command, without_numbers};
use crate::common::{PATIENT, Stop, eventually};

/// Bytes of a datagram's header.
const HEADER: usize = 8;
/// Time after which a client that counts gives an answer up. What it does not know then it counts as unknown.
const SHORT_PATIENCE: Duration = Duration::from_millis(300);

/// A client of one server.
struct UdpClient {
    socket: UdpSocket,
    /// The number of the last request.
    request: u16,
}

impl UdpClient {
    fn connect(port: u16, patience: Duration) -> UdpClient {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        UdpClient { socket, request: 0 }
    }

    /// Sends commands, and returns the number of the request.
    fn send(&mut self, commands: &str) -> u16 {
        self.request = self.request.wrapping_add(1);
        let [high, low] = self.request.to_be_bytes();
        self.socket.send(&[&[high, low, 0, 0, 0, 1, 0, 0], commands.as_bytes()].concat()).unwrap();
        self.request
    }

    /// The next whole answer, with its request's number. `None`: there is none for a time.
    fn receive(&mut self) -> Option<(u16, String)> {
        let (mut parts, mut buffer) = (BTreeMap::new(), vec![0; 2048]);
        loop {
            let len = self.socket.recv(&mut buffer).ok()?;
            let word = |at: usize| u16::from_be_bytes([buffer[at], buffer[at + 1]]);
            let (request, index, count) = (word(0), word(2), word(4));
            assert!(len <= 1400 && index < count, "{len} bytes, {index} of {count}");
            let of_request: &mut Vec<Option<Vec<u8>>> =
                parts.entry(request).or_insert_with(|| vec![None; usize::from(count)]);
            let part = of_request[usize::from(index)].replace(buffer[HEADER..len].to_vec());
            assert_eq!(part, None, "a part comes once");
            if of_request.iter().all(Option::is_some) {
                let whole = of_request.iter().flatten().flatten().copied().collect();
                return Some((request, String::from_utf8(whole).unwrap()));
            }
        }
    }

    /// The answer to commands. What comes late for earlier ones is passed over.
    fn try_ask(&mut self, commands: &str) -> Option<String> {
        let request = self.send(commands);
        loop {
            let (of, answer) = self.receive()?;
            if of == request {
                return Some(answer);
            }
        }
    }

    fn ask(&mut self, commands: &str) -> String {
        self.try_ask(commands).unwrap_or_else(|| panic!("no answer to {commands:?}"))
    }
}

fn check_commands(cluster: &MemcachedCluster, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let connect = |port: &u16| UdpClient::connect(*port, PATIENT);
    let mut clients: Vec<UdpClient> = cluster.ports.iter().map(connect).collect();
    let mut alone = connect(&cluster.port_alone);
    let end = String::from_utf8_lossy(END);
    for round in 0..400 {
        let command = command(&mut random, false);
        // A `gat` asks for one key after the other, and a datagram asks others ten times at most.
        let asks_often = command.starts_with("gat ") && command.split(' ').count() > 10;
        if command.len() > 60_000 || asks_often {
            continue;
        }
        // A quiet command has an answer as well: the end.
        let sent = command.clone() + "mn\r\n";
        let at = random.random_range(0..SERVERS);
        let answers = [&mut clients[at], &mut alone].map(|client| without_numbers(&client.ask(&sent)));
        assert!(answers[0] == answers[1], "seed {seed}, round {round}, of {command:?}: {answers:#?}");
        assert!(answers[0].ends_with(&*end));
    }
}

#[test]
fn datagrams_are_answered_at_any_server_as_by_one_alone() {
    let Some(cluster) = MemcachedCluster::start() else { return };
    check_commands(&cluster, 1);
    let mut clients: Vec<UdpClient> = cluster.ports.iter().map(|port| UdpClient::connect(*port, PATIENT)).collect();
    // An answer of many datagrams, numbered over the whole of it.
    let value = |number: usize| format!("{number:04}").repeat(150);
    for number in 0..KEYS {
        let set = format!("set long:{number} 0 0 600\r\n{}\r\n", value(number));
        assert_eq!(clients[number % SERVERS].ask(&set), "STORED\r\n");
    }
    let keys: String = (0..KEYS).map(|number| format!(" long:{number}")).collect();
    let all: String = (0..KEYS).map(|number| format!("VALUE long:{number} 0 600\r\n{}\r\n", value(number))).collect();
    for client in &mut clients {
        assert!(client.ask(&format!("get{keys}\r\n")) == format!("{all}END\r\n"));
    }
    // Each datagram counts once.
    for number in 0..KEYS {
        let name = format!("sum:{number}");
        assert_eq!(clients[0].ask(&format!("set {name} 0 0 1\r\n0\r\n")), "STORED\r\n");
        for sum in 1..10 {
            assert_eq!(clients[sum % SERVERS].ask(&format!("incr {name} 1\r\n")), format!("{sum}\r\n"));
        }
    }
    for server in 0..SERVERS {
        assert!(cluster.counted(server, "commands_forwarded_total") > 0);
        assert_eq!(cluster.counted(server, "forwarded_datagrams_dropped_total"), 0);
    }
}

/// Sends gets of all keys until some datagrams were dropped. Returns the answers that have come by their requests.
fn flood(cluster: &MemcachedCluster, client: &mut UdpClient) -> BTreeMap<u16, usize> {
    let (mut answered, mut sent) = (BTreeMap::new(), 0);
    assert!(eventually(|| {
        for number in 0..KEYS {
            client.send(&format!("get one:{number}\r\n"));
            sent += 1;
        }
        while let Some((request, _)) = client.receive() {
            *answered.entry(request).or_default() += 1;
        }
        cluster.counted(0, "forwarded_datagrams_dropped_total") > 0
    }));
    assert!(sent > KEYS, "some wait before any is dropped");
    answered
}

#[test]
fn datagrams_for_an_owner_that_hangs_are_bounded_and_others_are_answered() {
    let Some(cluster) = MemcachedCluster::start() else { return };
    let mut connection = TextClient::connect(cluster.ports[0]);
    for number in 0..KEYS {
        assert_eq!(connection.ask(&format!("set one:{number} 0 0 1\r\n0\r\n")), "STORED\r\n");
    }
    let mut client = UdpClient::connect(cluster.ports[0], Duration::from_millis(1));
    let stopped = StoppedProcess::stop(&cluster.servers[2]);
    let answered = flood(&cluster, &mut client);
    assert!(answered.values().all(|times| *times == 1), "{answered:?}");
    // Keys of the others are answered, by datagrams and connections.
    let mut patient = UdpClient::connect(cluster.ports[0], SHORT_PATIENCE);
    let mut found = |number: usize| {
        let told = patient.try_ask(&format!("get one:{number}\r\n"));
        told.is_some_and(|told| told.starts_with("VALUE one:"))
    };
    let mut others = BTreeSet::new();
    assert!(eventually(|| {
        others.extend((0..KEYS).filter(|number| found(*number)));
        others.len() > KEYS / 3
    }));
    // What has run of a datagram is told, though what is behind it may not wait for the owner that hangs.
    let hangs: Vec<usize> = (0..KEYS).filter(|number| !others.contains(number)).collect();
    let other = others.first().expect("some are there");
    let mut teller = UdpClient::connect(cluster.ports[0], SHORT_PATIENCE);
    assert!(eventually(|| {
        for _ in 0..300 / hangs.len().max(1) {
            for number in &hangs {
                let _sent = client.send(&format!("get one:{number}\r\n"));
            }
        }
        while client.receive().is_some() {}
        let told = teller.try_ask(&format!("touch one:{other} 0\r\nget one:{}\r\n", hangs[0]));
        told.is_some_and(|told| {
            assert!(told.starts_with("TOUCHED\r\nSERVER_ERROR "), "{told}");
            told.contains("too much waits for other servers of the cluster: the command was not run")
        })
    }));
    for number in &others {
        assert!(connection.ask(&format!("get one:{number}\r\n")).starts_with("VALUE one:"));
    }
    drop(stopped);
    check_all_there(&mut connection);
    assert!((0..KEYS).all(|number| eventually(|| found(number))));
}

/// Adds one to counters of all servers over UDP, until it is told to stop; returns what is known.
fn count_up(port: u16, name: &str, stop: &AtomicBool, unanswered: &AtomicUsize) -> BTreeMap<String, KnownCounter> {
    let mut known = BTreeMap::<String, KnownCounter>::new();
    let mut client = UdpClient::connect(port, SHORT_PATIENCE);
    for number in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let key = format!("{name}:{}", number % KEYS);
        let counter = known.entry(key.clone()).or_default();
        match client.try_ask(&format!("incr {key} 1\r\n")) {
            Some(answer) if answer.trim().parse::<u64>().is_ok() => counter.acknowledged += 1,
            Some(answer) => {
                assert!(answer.starts_with("SERVER_ERROR "), "{key}: {answer:?}");
                counter.unknown += u64::from(!answer.contains("was not run"));
                unanswered.fetch_add(1, Ordering::AcqRel);
            }
            None => {
                counter.unknown += 1;
                unanswered.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
    known
}

#[test]
fn no_datagram_is_run_twice_while_its_owner_is_killed_and_hangs() {
    let Some(mut cluster) = MemcachedCluster::start() else { return };
    let (stop, unanswered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ports = cluster.ports.clone();
    let mut client = TextClient::connect(ports[0]);
    for name in ["one", "other"] {
        for number in 0..KEYS {
            assert_eq!(client.ask(&format!("set {name}:{number} 0 0 1\r\n0\r\n")), "STORED\r\n");
        }
    }
    let known = thread::scope(|scope| {
        let ends = Stop(&stop);
        let writers = [("one", ports[0]), ("other", ports[1])].map(|(name, port)| {
            let (stop, unanswered) = (&stop, &unanswered);
            scope.spawn(move || count_up(port, name, stop, unanswered))
        });
        let more = |seen: usize| eventually(|| unanswered.load(Ordering::Acquire) >= seen + 4);
        let seen = unanswered.load(Ordering::Acquire);
        cluster.kill(2);
        assert!(more(seen));
        cluster.restart(2);
        check_all_there(&mut client);
        let seen = unanswered.load(Ordering::Acquire);
        let stopped = StoppedProcess::stop(&cluster.servers[2]);
        assert!(more(seen));
        drop(stopped);
        check_all_there(&mut client);
        drop(ends);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<BTreeMap<_, _>>()
    });
    for (key, counter) in &known {
        let told = client.ask(&format!("get {key}\r\n"));
        let sum: u64 = told.lines().nth(1).unwrap().trim().parse().unwrap();
        let may_be = counter.acknowledged..=counter.acknowledged + counter.unknown;
        assert!(may_be.contains(&sum), "{key}: {sum}, and the clients know of {counter:?}");
    }
    assert!(known.values().map(|counter| counter.acknowledged).sum::<u64>() > 0);
}
