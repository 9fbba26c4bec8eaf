//! Promise: a request waits from the moment at which its host has received it. What lies in a server's sockets while no
//! worker comes to take it, as while the process is stopped, is told as waiting. A client that measures a server knows
//! when its own host has received an answer, however late it looks.

use std::fs;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use sandstorm_client::Config;
use sandstorm_client::raw::Connection;
use serde_json::Value;

use super::http::get;
use crate::common::process::Server;
use crate::common::{PATIENT, eventually};

/// How long the server is stopped after it has requests in its sockets.
const STALL: Duration = Duration::from_millis(300);
/// What of it has to be told.
const TOLD_NS: u64 = 100_000_000;
/// The tables' ids.
const ITEMS: u64 = 1;
/// The header of a datagram of memcached's: request 7, datagram 0 of 1.
const MEMCACHED_HEADER: [u8; 8] = [0, 7, 0, 0, 0, 1, 0, 0];

fn start() -> Server {
    let folder = tempfile::tempdir().expect("a folder");
    let tenants = ["own", "memcached"].into_iter().zip(1..).map(|(name, id)| {
        format!("[[tenants]]\nname = '{name}'\nid = {id}\nopen = true\ntables = [{{ name = 'items', id = {ITEMS} }}]\n")
    });
    let config = folder.path().join("tenants.toml");
    fs::write(&config, tenants.collect::<String>()).expect("room");
    let config = config.display().to_string();
    let port = ["--memcached", "127.0.0.1:0=memcached/items"];
    Server::start_as(&[&["--workers", "1", "--no-pin", "--no-builder", "--config", &config], &port[..]].concat())
}

/// A connection of the open tenant.
fn connect(server: &Server) -> Connection {
    let config = Config::new(server.data.parse().expect("an address"), 1).deadline(PATIENT);
    Connection::connect(&config).expect("a connection")
}

/// Sends a get of a key that there is not: it has left for the server's socket when this returns.
fn ask(connection: &mut Connection) {
    let mut message = connection.message();
    message.get(ITEMS, b"none");
    connection.send(0, message).expect("it is sent");
    connection.flush();
}

/// Waits for the answer; returns when it was received, as the kernel says it.
fn answer(connection: &mut Connection) -> Option<Instant> {
    let mut arrived = None;
    assert!(eventually(|| {
        connection.poll(|_, answer| arrived = Some(answer.expect("an answer").arrived()));
        arrived.is_some()
    }));
    arrived.flatten()
}

/// The row of a tenant's requests of one kind, once they are so many: a worker counts the last ones at its next turn.
/// There may be more, as a client repeats what is not answered at once.
fn latency(server: &Server, token: &str, (tenant, class): (&str, &str), count: u64) -> Value {
    let mut row = Value::Null;
    let is_counted = eventually(|| {
        let body = get(&server.control, &format!("/v1/latency?tenant={tenant}"), token).1;
        let all: Value = serde_json::from_str(&body).expect("JSON");
        let rows = all["rows"].as_array().expect("rows");
        row = rows.iter().find(|row| row["class"] == class).cloned().unwrap_or_default();
        row["total"]["count"].as_u64() >= Some(count)
    });
    assert!(is_counted, "{tenant}: {row}");
    row
}

/// Whether all threads of a process are stopped, by their folders.
fn are_stopped(tasks: &str) -> bool {
    let is_stopped = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    fs::read_dir(tasks).expect("its threads").flatten().all(is_stopped)
}

#[test]
fn what_lies_in_a_socket_while_the_server_is_stopped_is_told_as_waiting() {
    let server = start();
    let token = server.json("token create viewer")["token"].as_str().expect("a token").to_owned();
    let mut own = connect(&server);
    let memcached = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    memcached.set_read_timeout(Some(PATIENT)).expect("a timeout");
    memcached.connect(server.said["memcached"][0].as_str().expect("a port")).expect("an address");
    let process = Pid::from_child(&server.process);
    kill_process(process, Signal::STOP).expect("it is stopped");
    // A worker that still looks at its socket would take the request before it stops.
    let tasks = format!("/proc/{}/task", server.process.id());
    assert!(eventually(|| are_stopped(&tasks)), "all threads stop");
    ask(&mut own);
    let question = [&MEMCACHED_HEADER[..], b"get none\r\n"].concat();
    assert_eq!(memcached.send(&question).expect("it is sent"), question.len());
    std::thread::sleep(STALL);
    kill_process(process, Signal::CONT).expect("it goes on");
    answer(&mut own);
    let mut datagram = [0; 64];
    let len = memcached.recv(&mut datagram).expect("an answer");
    assert_eq!(&datagram[MEMCACHED_HEADER.len()..len], b"END\r\n");
    for (tenant, class) in [("own", "get"), ("memcached", "memcached")] {
        let row = latency(&server, &token, (tenant, class), 1);
        for part in ["waiting", "total"] {
            assert!(row[part]["p99_ns"].as_u64() >= Some(TOLD_NS), "{tenant}, {part}: {row}");
        }
        let service_ns = row["service"]["sum_ns"].as_u64().expect("a sum");
        assert_eq!(row["total"]["sum_ns"], row["waiting"]["sum_ns"].as_u64().expect("a sum") + service_ns, "{row}");
    }
    // What waits for nothing is not told as waiting: the least of some requests.
    let waited_ns = |row: &Value| row["waiting"]["p50_ns"].as_u64().expect("a median");
    for _ in 0..20 {
        ask(&mut own);
        answer(&mut own);
    }
    let row = latency(&server, &token, ("own", "get"), 21);
    assert!(waited_ns(&row) < TOLD_NS, "half of them came to a server that was awake: {row}");
}

#[test]
fn an_answer_came_when_the_host_had_received_it() {
    let server = start();
    let mut own = connect(&server);
    // Both clocks are read within some microseconds of each other.
    let slack = Duration::from_millis(1);
    // Something else than the answer may be what can be read first.
    let is_told = eventually(|| {
        let asked = Instant::now();
        ask(&mut own);
        {
            let socket = own.socket().expect("a socket of the kernel's");
            let mut both = [PollFd::new(&socket, PollFlags::IN)];
            poll(&mut both, None).expect("the answer comes");
        }
        std::thread::sleep(STALL);
        let looked = Instant::now();
        let arrived = answer(&mut own).expect("the kernel says when");
        assert!(arrived + slack >= asked, "{:?} before the question was sent", asked - arrived);
        arrived + STALL / 2 <= looked
    });
    assert!(is_told, "each answer came when it was looked at");
}
