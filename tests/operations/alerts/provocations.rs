//! What is done to the servers.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Scope, sleep};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use sandstorm_client::blocking::Client;
use sandstorm_client::{Config, PutOptions};
use sandstorm_net::rpc::{MessageHeader, Operation, encode_message};

use super::super::cluster_scrub::{first_file, flip_byte};
use super::AlertWatch;
use super::servers::{ITEMS, LARGE, ProvokedServers, RestartedServer, id_of};
use crate::common::process::Server;
use crate::common::{PATIENT, eventually, single_packet};
use crate::http::get;

/// Gets of one message: of each second one the key is the same.
const GETS: u32 = 32;
/// Datagrams that are sent at once, and the pause behind them.
const FLOOD: usize = 500;
const FLOOD_PAUSE: Duration = Duration::from_millis(10);
/// Keys of a Redis command that takes long.
const KEYS: usize = 100_000;
/// Time for which a process is stopped, and for which it runs then.
const STOPPED: Duration = Duration::from_millis(3);
const RUNNING: Duration = Duration::from_millis(30);
/// Pushes that wait.
const PUSHES: usize = 12;
/// Bytes of a value of many packets, and pause between two requests for it.
const LARGE_BYTES: usize = 1 << 20;
const LARGE_PAUSE: Duration = Duration::from_millis(200);
/// Bytes of the values that fill memory, and of what is left for them.
const FILLING_BYTES: usize = 64 << 10;
const MEMORY_LEFT: u64 = 48 << 20;

/// A client of an open tenant.
pub(super) fn client(server: &Server, tenant: u32) -> Client {
    let config = Config::new(server.data.parse().expect("an address"), tenant).deadline(PATIENT);
    Client::connect(config).expect("a connection")
}

/// Begins what goes on until it is over.
pub(super) fn begin<'scope>(
    scope: &'scope Scope<'scope, '_>,
    servers: &'scope ProvokedServers,
    over: &'scope AtomicBool,
) {
    let ProvokedServers { busy, alone, .. } = servers;
    busy.json("tenant set nearly --quota tables=1");
    busy.json("ext suspend bad --tenant suspended");
    if servers.has("SandstormCopiesMissing") {
        // It says that it waits in vain.
        busy.output("table list --tenant nearly");
        alone.output("table set items --tenant shop --durability copies");
    }
    scope.spawn(move || end_badly(busy, "killed", b"loop", over));
    scope.spawn(move || end_badly(busy, "slowed", b"panic", over));
    scope.spawn(move || flood(busy, over));
    scope.spawn(move || hot_gets(busy, over));
    scope.spawn(move || fill_table(busy, over));
    scope.spawn(move || long_commands(busy, over));
    scope.spawn(move || stop_again_and_again(busy, over));
    scope.spawn(move || wait_for_builder(servers, over));
    scope.spawn(move || acknowledge_nothing(alone, over));
    scope.spawn(move || {
        while !over.load(Relaxed) {
            assert_eq!(get(&alone.control, "/v1/stat", "wrong").0, 401);
        }
    });
}

/// Calls of `ext/bad` that the server ends, or refuses since it has ended many.
fn end_badly(server: &Server, tenant: &str, kind: &[u8], over: &AtomicBool) {
    let client = client(server, id_of(tenant));
    let arguments = [&ITEMS.to_le_bytes()[..], kind].concat();
    while !over.load(Relaxed) {
        let ended = client.invoke("bad", &arguments);
        assert!(ended.is_err(), "{tenant}: {ended:?}");
    }
}

/// A socket for a server's datagrams, and messages on it that acknowledge nothing.
struct RawSender {
    socket: UdpSocket,
    tenant: u32,
    session: u64,
    sequence: u64,
}

impl RawSender {
    fn new(server: &Server, tenant: u32) -> RawSender {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(&server.data).expect("an address");
        RawSender { socket, tenant, session: rand::random(), sequence: 0 }
    }

    fn send(&mut self, operation: Operation<'_>) {
        self.sequence += 1;
        let (tenant, session, sequence) = (self.tenant, self.session, self.sequence);
        let header = MessageHeader { flags: 0, operations: 1, tenant, session, sequence, acked: 0 };
        let mut datagram = single_packet(0, sequence as u16).to_vec();
        encode_message(&header, &[operation], &mut datagram);
        // The kernel may drop it.
        let _sent = self.socket.send(&datagram);
    }
}

/// Requests of a tenant, far more than it may have.
fn flood(server: &Server, over: &AtomicBool) {
    let mut sender = RawSender::new(server, id_of("floods"));
    while !over.load(Relaxed) {
        (0..FLOOD).for_each(|_| sender.send(Operation::get(ITEMS, b"key")));
        sleep(FLOOD_PAUSE);
    }
}

/// Asks for a large value over and over, and acknowledges none of its packets.
fn acknowledge_nothing(server: &Server, over: &AtomicBool) {
    let writer = client(server, 1);
    let value = vec![7; LARGE_BYTES];
    let is_put = || writer.put(LARGE, b"large", &value, &PutOptions::default()).is_ok();
    // A cluster of its own has slots after a moment.
    assert!(over.load(Relaxed) || eventually(is_put), "a large value is stored");
    let mut sender = RawSender::new(server, 1);
    while !over.load(Relaxed) {
        sender.send(Operation::get(LARGE, b"large"));
        sleep(LARGE_PAUSE);
    }
}

fn hot_gets(server: &Server, over: &AtomicBool) {
    let client = client(server, id_of("hot"));
    let mut number = 0_u32;
    while !over.load(Relaxed) {
        let batch = (0..GETS).fold(client.batch(), |batch, at| {
            number = number.wrapping_add(1);
            let other = (number % 5_000).to_le_bytes();
            batch.get(ITEMS, if at % 2 == 0 { b"the-hot-one" } else { &other })
        });
        // On a busy machine some have no answer in time.
        let _answers = client.send(batch);
    }
}

/// Writes into a table beyond its quota.
fn fill_table(server: &Server, over: &AtomicBool) {
    let client = client(server, id_of("full"));
    let (value, mut number) = (vec![7; FILLING_BYTES], 0_u64);
    while !over.load(Relaxed) {
        number += 1;
        if client.put(ITEMS, &number.to_le_bytes(), &value, &PutOptions::default()).is_err() {
            sleep(FLOOD_PAUSE);
        }
    }
}

/// Commands of Redis that take long.
fn long_commands(server: &Server, over: &AtomicBool) {
    let address = server.said["redis"][0].as_str().expect("a port");
    let stream = TcpStream::connect(address).expect("a port");
    stream.set_read_timeout(Some(PATIENT)).expect("a timeout");
    let mut command = format!("*{}\r\n$6\r\nEXISTS\r\n", KEYS + 1);
    (0..KEYS).for_each(|key| command += &format!("$6\r\n{key:06}\r\n"));
    let mut answers = BufReader::new(&stream);
    while !over.load(Relaxed) {
        (&stream).write_all(command.as_bytes()).expect("it is read");
        let mut line = String::new();
        answers.read_line(&mut line).expect("an answer");
        assert_eq!(line, ":0\r\n");
    }
}

/// Stops a process for a moment, over and over, as a machine with too few processors does.
fn stop_again_and_again(server: &Server, over: &AtomicBool) {
    let process = Pid::from_child(&server.process);
    while !over.load(Relaxed) {
        kill_process(process, Signal::STOP).expect("it runs");
        sleep(STOPPED);
        kill_process(process, Signal::CONT).expect("it is there");
        sleep(RUNNING);
    }
}

/// Pushes that wait for a builder that is stopped.
fn wait_for_builder(servers: &ProvokedServers, over: &AtomicBool) {
    servers.stop_builder();
    let push = |_| {
        let mut command = servers.busy.command();
        command.args(["ext", "push", "../ext/get", "--tenant", "pushes"]);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().expect("a push")
    };
    let mut pushes: Vec<_> = (0..PUSHES).map(push).collect();
    while !over.load(Relaxed) {
        sleep(FLOOD_PAUSE);
    }
    for push in &mut pushes {
        let _ended_already = push.kill();
        let _status = push.wait();
    }
}

/// Makes what [`fill_disk`] and [`fill_memory`] fill.
pub(super) fn make_tables(server: &Server) {
    server.json("tenant create shop --open");
    server.json("table create items --tenant shop --durability disk --quota 134217728");
    server.json("table create memory --tenant shop --durability none --quota 536870912");
}

/// Restarts a server, fills its disk and its memory, and kills it.
pub(super) fn of_restarts(mut restarted: RestartedServer, watch: &AlertWatch<'_>) {
    let server = restarted.server.as_ref().expect("it runs");
    make_tables(server);
    let instance = server.control.trim_start_matches("http://").to_owned();
    let uptime = format!("sandstorm_uptime_seconds{{instance=\"{instance}\"}}");
    for _ in 0..3 {
        // Prometheus sees that it starts again if it has seen that it ran for longer.
        assert!(eventually(|| watch.prometheus.value(&uptime) >= Some(2.0)), "{uptime}");
        restarted.restart(Some("--no-builder"));
        assert!(eventually(|| watch.prometheus.value(&uptime) < Some(2.0)), "{uptime}");
    }
    watch.await_alert("SandstormRestarts");
    watch.await_alert("SandstormNoBuilder");
    if fill_disk(&restarted, || watch.await_alert("SandstormLogDamaged")) {
        watch.await_alert("SandstormChangesRefused");
        watch.await_alert("SandstormLogFailed");
    }
    let server = restarted.server.as_mut().expect("it runs");
    fill_memory(server);
    watch.await_alert("SandstormOutOfMemory");
    server.process.kill().expect("it runs");
    watch.await_alert("SandstormDown");
}

/// Has changes and the log meet a disk that is full, after a byte of the log was flipped and that was noticed; `false`:
/// there is no disk of the test's own.
pub(super) fn fill_disk(restarted: &RestartedServer, damaged: impl FnOnce()) -> bool {
    let (Some(disk), Some(server)) = (&restarted.disk, &restarted.server) else { return false };
    let shop = server.json("tenant show shop")["id"].as_u64().expect("an id") as u32;
    let items = server.json("table show items --tenant shop")["id"].as_u64().expect("an id");
    let client = client(server, shop);
    for number in 0..100_u32 {
        client.put(items, &number.to_le_bytes(), b"logged", &PutOptions::default()).expect("room");
    }
    disk.fill();
    let log = restarted.state().join("log");
    flip_byte(&first_file(&log, "log-").expect("a segment"));
    server.json("log scrub --now");
    damaged();
    // The room that segments of the log were given goes to another file, as where a disk has promised too much.
    for entry in fs::read_dir(log).expect("the log's folder").flatten() {
        let file = OpenOptions::new().write(true).open(entry.path()).expect("a segment");
        file.set_len(0).expect("it is cut");
    }
    // The journal may have room for some lines yet, and the server may give some back.
    let is_refused = |number: &u32| {
        disk.fill();
        !server.output(&format!("tenant create more-{number}")).status.success()
    };
    assert!((0..100).any(|number| is_refused(&number)), "the disk is full");
    assert!(client.put(items, b"key", &vec![7; FILLING_BYTES], &PutOptions::default()).is_err());
    true
}

/// Lets a process have little more memory than it has, and writes records until there is none.
pub(super) fn fill_memory(server: &Server) {
    let shop = server.json("tenant show shop")["id"].as_u64().expect("an id") as u32;
    let memory = server.json("table show memory --tenant shop")["id"].as_u64().expect("an id");
    let client = client(server, shop);
    let process = Pid::from_child(&server.process);
    let status = fs::read_to_string(format!("/proc/{}/status", server.process.id())).expect("it runs");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("its size");
    let bytes = size.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10;
    let limit = Some(bytes + MEMORY_LEFT);
    prlimit(Some(process), Resource::As, Rlimit { current: limit, maximum: limit }).expect("it is root's");
    let value = vec![7; FILLING_BYTES];
    let refused = (0..8_192_u64)
        .find_map(|number| client.put(memory, &number.to_le_bytes(), &value, &PutOptions::default()).err());
    assert!(refused.is_some(), "there is no more memory");
}
