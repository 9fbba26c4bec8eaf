//! Promise (docs/cluster.md): a memcached client reaches all keys at any server of a cluster. It is answered as by one
//! server alone, but for the numbers of records: by each command, with keys of all servers, also while slots move. Of a
//! server that is killed or hangs it is told so by name, within a time, and never that a record is not there; what it
//! has changed has happened once, or the outcome is unknown.

mod datagrams;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::cluster::{EtcdProcess, start, status};
use crate::common::ports::free_port;
use crate::common::process::Server;
use crate::common::{PATIENT, Stop, eventually};

const SERVERS: usize = 3;
/// As many keys as that all servers have some.
const KEYS: usize = 40;
/// What the text protocol's `mn` answers: the end of what was asked for.
const END: &[u8] = b"MN\r\n";

/// Three servers that share the keys, and one that has all of its own.
struct MemcachedCluster {
    servers: Vec<Server>,
    options: Vec<Vec<String>>,
    ports: Vec<u16>,
    alone: Server,
    port_alone: u16,
    _etcd: EtcdProcess,
    _config: TempDir,
}

fn options(config: &Path, port: u16, cluster: Option<&str>) -> Vec<String> {
    let (config, port) = (config.display().to_string(), format!("127.0.0.1:{port}=shop/items"));
    let all = ["--data", "127.0.0.1:0", "--workers", "2", "--no-builder", "--config", &config, "--memcached", &port];
    let more = cluster.iter().flat_map(|cluster| ["--cluster", *cluster, "--cluster-servers", "3"]);
    all.into_iter().chain(more).map(str::to_owned).collect()
}

impl MemcachedCluster {
    /// Starts them; `None`, with a line, if there is no etcd.
    fn start() -> Option<MemcachedCluster> {
        let etcd = EtcdProcess::start()?;
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("tenants.toml");
        let tenant = "[[tenants]]\nname = 'shop'\nid = 1\nopen = true\n\
                      tables = [{ name = 'items', id = 1, durability = 'disk' }]\n";
        fs::write(&config, tenant).unwrap();
        assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
        let new = || Arc::new(tempfile::tempdir().unwrap());
        let (mut servers, mut all_options, mut ports) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..SERVERS {
            let port = free_port();
            let options = options(&config, port, Some(&etcd.cluster()));
            servers.push(start(new(), &options));
            all_options.push(options);
            ports.push(port);
        }
        let port_alone = free_port();
        let alone = start(new(), &options(&config, port_alone, None));
        assert!(servers.iter().all(|server| eventually(|| status(server)["epoch"].as_u64() >= Some(1))));
        let options = all_options;
        Some(MemcachedCluster { servers, options, ports, alone, port_alone, _etcd: etcd, _config: folder })
    }

    fn id(&self, server: usize) -> String {
        status(&self.servers[server])["server"].as_str().unwrap().to_owned()
    }

    fn kill(&mut self, server: usize) {
        let process = &mut self.servers[server].process;
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn restart(&mut self, server: usize) {
        let folder = Arc::clone(&self.servers[server].folder);
        self.servers[server] = start(folder, &self.options[server]);
    }

    /// Empties the tables of all.
    fn empty(&self) {
        for port in self.ports.iter().chain([&self.port_alone]) {
            assert_eq!(TextClient::connect(*port).ask("flush_all\r\n"), "OK\r\n");
        }
    }

    /// A number of a server that it counts itself.
    fn counted(&self, server: usize, name: &str) -> u64 {
        let server = &self.servers[server];
        let token = fs::read_to_string(server.state().join("operator-token")).unwrap();
        let (_, text) = super::http::get(&server.control, "/metrics?old_names=false", token.trim());
        let values = text.lines().filter_map(|line| line.strip_prefix(&format!("sandstorm_{name}"))?.rsplit_once(' '));
        values.map(|(_, value)| value.parse::<f64>().unwrap() as u64).sum()
    }
}

/// A connection of a client.
struct TextClient(TcpStream);

impl TextClient {
    fn connect(port: u16) -> TextClient {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        TextClient(stream)
    }

    /// The answers to some commands. `None`: the connection has ended before.
    fn try_ask(&mut self, commands: &str) -> Option<String> {
        self.0.write_all(format!("{commands}mn\r\n").as_bytes()).ok()?;
        let (mut answers, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        while !answers.ends_with(END) {
            match self.0.read(&mut buffer) {
                Ok(read) if read > 0 => answers.extend_from_slice(&buffer[..read]),
                _ => return None,
            }
        }
        answers.truncate(answers.len() - END.len());
        Some(String::from_utf8(answers).unwrap())
    }

    fn ask(&mut self, commands: &str) -> String {
        self.try_ask(commands).unwrap_or_else(|| panic!("no answer to {commands:?}"))
    }
}

/// Takes out the numbers of records, in which servers differ.
fn without_numbers(answers: &str) -> String {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let is_number = |word: &str| word.len() > 1 && word[1..].bytes().all(|byte| byte.is_ascii_digit());
        let shown = words.iter().enumerate().map(|(at, word)| match words[0] {
            "VALUE" if at == 4 => "N",
            "HD" | "VA" if at > 0 && word.starts_with('c') && is_number(word) && *word != "c0" => "cN",
            "ME" if word.starts_with("cas=") => "cas=N",
            // A moment may have passed between the two.
            "HD" | "VA" if at > 0 && word.starts_with('t') && is_number(word) => "tN",
            "ME" if word.starts_with("exp=") => "exp=N",
            _ => word,
        });
        shown.collect::<Vec<_>>().join(" ")
    };
    answers.split("\r\n").map(line).collect::<Vec<_>>().join("\r\n")
}

fn key(random: &mut StdRng) -> String {
    format!("k{}", random.random_range(0..KEYS))
}

fn keys(random: &mut StdRng) -> String {
    let count = if random.random_bool(0.1) { random.random_range(64..150) } else { random.random_range(2..12) };
    (0..count).map(|_| key(random)).collect::<Vec<_>>().join(" ")
}

/// A command. `plain`: one that says nothing of what a move does not carry over.
fn command(random: &mut StdRng, plain: bool) -> String {
    let one = key(random);
    let value = match random.random_range(0..30) {
        0 => "x".repeat(200_000),
        1..12 => random.random_range(0..1000).to_string(),
        _ => "x".repeat(random.random_range(0..30)),
    };
    let (len, noreply) = (value.len(), if random.random_bool(0.2) { " noreply" } else { "" });
    let verb = ["set", "add", "replace", "append", "prepend"].choose(random).copied().unwrap();
    match random.random_range(0..if plain { 17 } else { 24 }) {
        0..2 => format!("get {one}\r\n"),
        2 => format!("gets {one}\r\n"),
        3..6 => format!("get {}\r\n", keys(random)),
        6 => format!("gets {}\r\n", keys(random)),
        7 => format!("gat 10000 {}\r\n", keys(random)),
        8 => format!("gats 0 {one}\r\n"),
        9..13 => format!("{verb} {one} 7 10000 {len}{noreply}\r\n{value}\r\n"),
        13 => format!("incr {one} 5{noreply}\r\n"),
        14 => format!("decr {one} 3{noreply}\r\n"),
        15 => format!("touch {one} 10000{noreply}\r\n"),
        16 => format!("delete {one}{noreply}\r\n"),
        17 => format!("mg {one} t f s v k c Oab q\r\n"),
        18 => format!("mg {one} N10000 v t\r\nmg {one} R20000 v\r\n"),
        19 => format!("ms {one} {len} T10000 F3 c\r\n{value}\r\n"),
        20 => format!("md {one} I T10000\r\nme {one}\r\n"),
        21 => format!("ma {one} N0 J10 v t q\r\n"),
        22 => format!("cas {one} 1 0 {len} 1{noreply}\r\n{value}\r\n"),
        _ => format!("version\r\nget {}\r\nincr {one} x\r\n", "y".repeat(251)),
    }
}

fn check_pipelines(cluster: &MemcachedCluster, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut clients: Vec<TextClient> = cluster.ports.iter().map(|port| TextClient::connect(*port)).collect();
    let mut alone = TextClient::connect(cluster.port_alone);
    for round in 0..150 {
        let count = random.random_range(1..25);
        let commands: String = (0..count).map(|_| command(&mut random, false)).collect();
        let at = random.random_range(0..SERVERS);
        let answers = [&mut clients[at], &mut alone].map(|client| without_numbers(&client.ask(&commands)));
        assert!(answers[0] == answers[1], "seed {seed}, round {round}, of {commands:?}: {answers:#?}");
    }
}

/// The number of a record that `gets` tells is the one that `cas` takes, at whichever server.
fn check_numbers(cluster: &MemcachedCluster) {
    let mut clients: Vec<TextClient> = cluster.ports.iter().map(|port| TextClient::connect(*port)).collect();
    for number in 0..KEYS {
        let key = format!("cas:{number}");
        let [one, other] = [number % SERVERS, (number + 1) % SERVERS];
        assert_eq!(clients[one].ask(&format!("set {key} 3 0 1\r\na\r\n")), "STORED\r\n");
        let told = clients[other].ask(&format!("gets {key}\r\n"));
        let (head, rest) = told.split_once("\r\n").unwrap();
        let (front, number) = head.rsplit_once(' ').unwrap();
        assert_eq!((front, rest), (format!("VALUE {key} 3 1").as_str(), "a\r\nEND\r\n"));
        let swap = format!("cas {key} 4 0 1 {number}\r\nb\r\n");
        assert_eq!(clients[one].ask(&format!("{swap}{swap}")), "STORED\r\nEXISTS\r\n");
        assert_eq!(clients[other].ask(&format!("mg {key} v f\r\n")), "VA 1 f4\r\nb\r\n");
    }
}

/// One command, again and again until it was run. An unknown outcome is put right by a `set` of the key, at both.
fn ask_until_run(cluster: &mut [TextClient], at: usize, alone: &mut TextClient, command: &str) -> Option<String> {
    let mut answer = None;
    assert!(eventually(|| {
        let told = cluster[at].ask(command);
        let was_run = !told.contains("was not run") && !told.contains(": ask again\r\n");
        answer = was_run.then_some(told);
        was_run
    }));
    let told = answer.expect("it was run");
    if !told.contains("is not known") {
        return Some(told);
    }
    for key in command.split_whitespace().filter(|word| word.starts_with('k') && word.len() < 5) {
        let set = format!("set {key} 0 0 1\r\n1\r\n");
        assert!(eventually(|| cluster[at].ask(&set) == "STORED\r\n"));
        assert_eq!(alone.ask(&set), "STORED\r\n");
    }
    None
}

/// The same while slots move to and fro.
fn check_moves(cluster: &MemcachedCluster) {
    cluster.empty();
    let (stop, moves) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ids = [0, 1, 2].map(|server| cluster.id(server));
    let moving = || status(&cluster.servers[0])["moves"].as_array().is_some_and(|moves| !moves.is_empty());
    thread::scope(|scope| {
        let ends = Stop(&stop);
        let mover = scope.spawn(|| {
            for round in 0.. {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                let slots = ["0-8000", "4000-12000", "9000-16383"][round % SERVERS];
                let begun =
                    cluster.servers[0].output(&format!("cluster move {slots} --to {}", ids[round / 2 % SERVERS]));
                if begun.status.success() {
                    assert!(eventually(|| !moving()));
                    moves.fetch_add(1, Ordering::AcqRel);
                }
            }
        });
        let mut random = StdRng::seed_from_u64(11);
        let mut clients: Vec<TextClient> = cluster.ports.iter().map(|port| TextClient::connect(*port)).collect();
        let mut alone = TextClient::connect(cluster.port_alone);
        let mut compared = 0;
        while compared < 400 || moves.load(Ordering::Acquire) < 4 {
            // An answer says whether it was run.
            let command = command(&mut random, true).replace(" noreply", "");
            let at = random.random_range(0..SERVERS);
            let Some(told) = ask_until_run(&mut clients, at, &mut alone, &command) else { continue };
            let expected = without_numbers(&alone.ask(&command));
            let told = without_numbers(&told);
            assert!(told == expected, "of {command:?} at {at}, {compared} before: {told:?} and {expected:?}");
            compared += 1;
        }
        drop(ends);
        mover.join().unwrap();
    });
}

/// libmemcached's own checks of what has to do with one key, in both protocols.
fn check_memccapable(cluster: &MemcachedCluster) {
    if Command::new("memccapable").arg("-h").output().is_err() {
        println!("left out: there is no memccapable (Debian's package libmemcached-tools)");
        return;
    }
    let tests = ["set", "setq", "add", "addq", "replace", "replaceq", "append", "appendq", "prepend", "prependq"];
    let more = ["delete", "deleteq", "get", "getq", "getk", "getkq", "incr", "incrq", "decr", "decrq"];
    for port in &cluster.ports {
        for (protocol, name) in tests.iter().chain(&more).flat_map(|name| [("binary", name), ("ascii", name)]) {
            if protocol == "ascii" && (name.ends_with('q') || name.starts_with("getk")) {
                continue;
            }
            let name = format!("{protocol} {name}");
            // Each begins with nothing under its keys; a server empties its own part.
            cluster.empty();
            let ran = Command::new("memccapable")
                .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-T", &name])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success() && said.contains("[pass]"), "{name}: {said}");
        }
    }
}

#[test]
fn clients_are_answered_at_any_server_as_by_one_alone_and_while_slots_move() {
    let Some(cluster) = MemcachedCluster::start() else { return };
    for seed in 0..3 {
        check_pipelines(&cluster, seed);
    }
    check_numbers(&cluster);
    check_memccapable(&cluster);
    for server in 0..SERVERS {
        assert!(cluster.counted(server, "commands_forwarded_total") > 0);
        assert_eq!(cluster.counted(server, "forwards_refused_total"), 0);
    }
    check_moves(&cluster);
    drop(cluster.alone);
}

/// What clients know of a counter.
#[derive(Clone, Debug, Default)]
struct KnownCounter {
    acknowledged: u64,
    unknown: u64,
}

/// Adds one to counters of all servers, by one of them, until it is told to stop; returns what is known. `errors`
/// counts what it was told of the others.
fn count_up(port: u16, name: &str, stop: &AtomicBool, errors: &AtomicUsize) -> BTreeMap<String, KnownCounter> {
    let (mut known, mut client) = (BTreeMap::<String, KnownCounter>::new(), TextClient::connect(port));
    for number in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let key = format!("{name}:{}", number % KEYS);
        let counter = known.entry(key.clone()).or_default();
        let answer = client.try_ask(&format!("incr {key} 1\r\nget {key}\r\n"));
        let Some(answer) = answer else {
            counter.unknown += 1;
            client = TextClient::connect(port);
            continue;
        };
        let (summed, found) = answer.split_once("\r\n").unwrap();
        match summed.parse::<u64>() {
            Ok(sum) => {
                counter.acknowledged += 1;
                assert!(sum <= counter.acknowledged + counter.unknown, "{key}: {sum} of {counter:?}");
            }
            Err(_) => {
                assert!(summed.starts_with("SERVER_ERROR "), "{key}: {answer:?}");
                counter.unknown += u64::from(!summed.contains("was not run"));
                errors.fetch_add(1, Ordering::AcqRel);
            }
        }
        // Never a miss.
        assert!(found.starts_with("VALUE ") || found.starts_with("SERVER_ERROR "), "{key}: {answer:?}");
    }
    known
}

/// A process that is stopped, and goes on at the latest when the test ends.
struct StoppedProcess(Pid);

impl StoppedProcess {
    fn stop(server: &Server) -> StoppedProcess {
        let pid = Pid::from_child(&server.process);
        kill_process(pid, Signal::STOP).unwrap();
        StoppedProcess(pid)
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        let _ended_already = kill_process(self.0, Signal::CONT);
    }
}

#[test]
fn an_owner_that_is_killed_or_hangs_is_named_and_no_command_is_run_twice() {
    let Some(mut cluster) = MemcachedCluster::start() else { return };
    let (stop, errors) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ports = cluster.ports.clone();
    let mut client = TextClient::connect(ports[0]);
    for name in ["one", "other"] {
        for number in 0..KEYS {
            assert_eq!(client.ask(&format!("set {name}:{number} 0 0 1\r\n0\r\n")), "STORED\r\n");
        }
    }
    let gone = cluster.id(2);
    let known = thread::scope(|scope| {
        let ends = Stop(&stop);
        let writers = [("one", ports[0]), ("other", ports[1])].map(|(name, port)| {
            let (stop, errors) = (&stop, &errors);
            scope.spawn(move || count_up(port, name, stop, errors))
        });
        for round in 0..2 {
            let seen = errors.load(Ordering::Acquire);
            cluster.kill(2);
            assert!(eventually(|| errors.load(Ordering::Acquire) >= seen + 10));
            if round == 0 {
                check_named(&mut client, &gone, "is away: the command was not run");
            }
            cluster.restart(2);
            check_all_there(&mut client);
        }
        let stopped = StoppedProcess::stop(&cluster.servers[2]);
        check_named(&mut client, &gone, "has not answered: ");
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
    assert!(cluster.counted(0, "forwards_refused_total") > 0);
}

/// Some key's owner is named to the client, and others' keys are there.
fn check_named(client: &mut TextClient, server: &str, why: &str) {
    let named = format!("SERVER_ERROR server {}, which owns the key, {why}", &server[..8]);
    let (mut found, mut refused) = (0, 0);
    for number in 0..KEYS {
        let told = client.ask(&format!("get one:{number}\r\n"));
        match told.starts_with("VALUE ") {
            true => found += 1,
            false => {
                assert!(told.starts_with(&named), "{told}");
                refused += 1;
            }
        }
        if found > 0 && refused > 0 {
            break;
        }
    }
    assert!(found > 0 && refused > 0, "{found} found, {refused} refused");
    let all: String = (0..KEYS).map(|number| format!(" one:{number}")).collect();
    let told = client.ask(&format!("get{all}\r\n"));
    assert!(told.contains(&named) && !told.contains("END\r\n"), "a list that lacks records says so: {told}");
}

/// All keys are there again.
fn check_all_there(client: &mut TextClient) {
    let all: String = (0..KEYS).map(|number| format!(" one:{number}")).collect();
    assert!(eventually(|| client.ask(&format!("get{all}\r\n")).matches("VALUE ").count() == KEYS));
}
