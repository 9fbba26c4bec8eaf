//! Promise: tenants' home workers follow their load, and what clients have under way keeps its promises while a home
//! changes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::memcached::peer::{connect, read_until, talk, text};
use crate::common::{self, Stop, data_plane_with, eventually, load, tenant};
use sandstorm_catalog::{NewTable, NewTenant, TenantChange};
use sandstorm_instance::DataPlane;
use sandstorm_metrics::text::flat;

/// A server of two workers with an open tenant `shop`, and ports that act for it: of memcached, and of Redis.
fn server() -> (DataPlane, SocketAddr, SocketAddr) {
    let plane = data_plane_with(
        "workers = 2\npin = false\n[[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\n\
         [[redis]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\ntable = 't'\n\
         [[tenants]]\nname = 'shop'\nopen = true\nhome_worker = 0\ntables = [{ name = 't' }]\n",
    );
    let (memcached, redis) = (plane.listening()[0], plane.listening()[1]);
    (plane, memcached, redis)
}

fn metric_of(plane: &DataPlane, worker: usize, name: &str) -> u64 {
    flat(&plane.metrics.read_worker(worker)).find(|(found, _)| found == name).map_or(0, |(_, value)| value)
}

fn home_of(plane: &DataPlane, name: &str) -> u32 {
    plane.directory.snapshot().by_name(name).expect("a tenant").tenant.home_worker
}

/// Moves the home of `shop` to and fro until it is told to stop.
fn move_to_and_fro(plane: &DataPlane, stop: &AtomicBool) {
    for home in (0..2u32).rev().cycle() {
        if stop.load(Relaxed) {
            return;
        }
        plane.directory.set_home_worker("shop", home).expect("a worker");
        std::thread::yield_now();
    }
}

#[test]
fn commands_under_way_run_once_and_in_order_while_the_home_moves() {
    let (plane, memcached, redis) = server();
    load(&plane, "shop", "total", 1);
    let stop = AtomicBool::new(false);
    let asked = 3_000;
    std::thread::scope(|scope| {
        let _stops = Stop(&stop);
        scope.spawn(|| move_to_and_fro(&plane, &stop));
        let mut clients = Vec::new();
        for number in 0..4 {
            clients.push(scope.spawn(move || {
                let mut stream = connect(redis);
                let mut writer = stream.try_clone().expect("a second handle");
                let sent = std::thread::spawn(move || {
                    for round in 0..asked {
                        // A command in pieces, and a call, are among them.
                        let more = match round % 50 {
                            0 => format!("MGET{}\r\n", " missing".repeat(2_000)),
                            1 => "FCALL total 1 apple t\r\n".to_owned(),
                            _ => String::new(),
                        };
                        writer.write_all(format!("INCR n{number}\r\n{more}").as_bytes()).expect("said");
                    }
                    writer.write_all(b"ECHO end\r\n").expect("said");
                });
                let answers = text(&read_until(&mut stream, b"$3\r\nend\r\n"));
                sent.join().expect("all said");
                let counts: Vec<u64> = answers
                    .lines()
                    .filter_map(|line| line.strip_prefix(':'))
                    .map(|count| count.parse().expect("a count"))
                    .filter(|count| *count > 0)
                    .collect();
                assert_eq!(counts, (1..=asked).collect::<Vec<u64>>(), "each once, in order");
                assert_eq!(answers.matches("*2000\r\n").count() as u64, asked.div_ceil(50));
                assert!(
                    !answers.contains("-ERR"),
                    "{}",
                    answers.lines().find(|line| line.starts_with('-')).unwrap_or("")
                );
            }));
        }
        clients.into_iter().for_each(|client| client.join().expect("a client"));
    });
    assert!(metric_of(&plane, 0, "connections_handed_over") + metric_of(&plane, 1, "connections_handed_over") > 0);
    // In the end they are where the home is, idle ones too.
    let mut streams: Vec<TcpStream> = (0..200).map(|_| connect(memcached)).collect();
    streams.iter_mut().for_each(|stream| assert_eq!(text(&talk(stream, b"get none")), "END\r\nMN\r\n"));
    for home in [1, 0] {
        plane.directory.set_home_worker("shop", home).expect("a worker");
        let at = |worker: u32| metric_of(&plane, worker as usize, "connections");
        assert!(eventually(|| at(home) == 200 && at(1 - home) == 0), "{} and {}", at(0), at(1));
        streams.iter_mut().for_each(|stream| assert_eq!(text(&talk(stream, b"get none")), "END\r\nMN\r\n"));
    }
}

#[test]
fn transactions_watched_keys_and_kills_go_along_with_a_connection() {
    let (plane, _, redis) = server();
    let ask = |reader: &mut BufReader<TcpStream>, command: &str| {
        reader.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("said");
        let mut line = String::new();
        reader.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    };
    let client = || BufReader::new(connect(redis));
    let moves = |home: u32, connections: u64| {
        plane.directory.set_home_worker("shop", home).expect("a worker");
        assert!(eventually(|| metric_of(&plane, home as usize, "connections") == connections));
    };
    let (mut first, mut second) = (client(), client());
    assert_eq!([ask(&mut first, "SET a 1"), ask(&mut first, "WATCH a")], ["+OK", "+OK"]);
    assert_eq!([ask(&mut first, "MULTI"), ask(&mut first, "INCR a")], ["+OK", "+QUEUED"]);
    assert_eq!(ask(&mut second, "PING"), "+PONG");
    moves(1, 2);
    assert_eq!(ask(&mut first, "INCR a"), "+QUEUED");
    assert_eq!(ask(&mut first, "EXEC"), "*2");
    let mut answers = [0; 8];
    first.read_exact(&mut answers).expect("both answers");
    assert_eq!(&answers, b":2\r\n:3\r\n");
    // What was watched there is watched here.
    assert_eq!(ask(&mut first, "WATCH a"), "+OK");
    moves(0, 2);
    assert_eq!(ask(&mut second, "SET a 5"), "+OK");
    assert_eq!(
        [ask(&mut first, "MULTI"), ask(&mut first, "SET a 9"), ask(&mut first, "EXEC")],
        ["+OK", "+QUEUED", "*-1"]
    );
    let id = ask(&mut first, "CLIENT ID");
    moves(1, 2);
    assert_eq!(ask(&mut second, &format!("CLIENT KILL ID {}", &id[1..])), ":1");
    let mut rest = Vec::new();
    assert_eq!(first.read_to_end(&mut rest).ok(), Some(0), "it is found where it is now");
}

#[test]
fn clients_of_the_native_protocol_follow_and_their_messages_run_once() {
    let plane = data_plane_with("workers = 2\npin = false\n");
    let (shop, _) = tenant(&plane, "shop", true);
    load(&plane, "shop", "total", 1);
    let client = common::client(&plane, shop);
    let mut count = 0;
    for home in [1, 0, 1] {
        plane.directory.set_home_worker("shop", home).expect("a worker");
        let before = metric_of(&plane, home as usize, "messages");
        let follows = eventually(|| {
            count += 1;
            assert_eq!(client.increment(1, b"n", 1), Ok(count));
            metric_of(&plane, home as usize, "messages") > before + 50
        });
        assert!(follows, "it does not come to worker {home}");
    }
}

/// Sends commands without end that take a worker's time and little of the client's, and reads the answers.
fn keep_busy(port: SocketAddr, login: &str, stop: &AtomicBool) {
    let mut stream = connect(port);
    stream.write_all(format!("{login}\r\n").as_bytes()).expect("said");
    assert_eq!(text(&read_until(&mut stream, b"\r\n")), "+OK\r\n");
    let command = format!("MGET{}\r\n", " missing".repeat(1_000));
    let answer_len = "*1000\r\n".len() + 1_000 * "$-1\r\n".len();
    let mut answer = vec![0; answer_len];
    (0..4).for_each(|_| stream.write_all(command.as_bytes()).expect("said"));
    while !stop.load(Relaxed) {
        stream.write_all(command.as_bytes()).expect("said");
        stream.read_exact(&mut answer).expect("an answer");
    }
}

#[test]
fn two_busy_tenants_of_one_worker_are_separated_and_a_fixed_one_stays() {
    let plane = data_plane_with("workers = 2\npin = false\n[[redis]]\naddress = '127.0.0.1:0'\n");
    let port = plane.listening()[0];
    let token = |name: &str| {
        let (_, token) = plane.directory.create_tenant(NewTenant::named(name)).expect("a tenant");
        plane.directory.create_table(name, NewTable::named("t")).expect("a table");
        format!("AUTH {name} {token}")
    };
    let logins = ["first", "beside", "second"].map(token);
    assert_eq!((home_of(&plane, "first"), home_of(&plane, "second")), (0, 0), "homes are given by turns");
    let busy = |names: [usize; 2], until: &dyn Fn() -> bool| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stops = Stop(&stop);
            for name in names {
                for _ in 0..3 {
                    let (login, stop) = (&logins[name], &stop);
                    scope.spawn(move || keep_busy(port, login, stop));
                }
            }
            assert!(eventually(until), "{} and {}", home_of(&plane, "first"), home_of(&plane, "second"));
        });
    };
    busy([0, 2], &|| home_of(&plane, "first") != home_of(&plane, "second"));
    assert!(plane.directory.homes_moved() >= 1);
    let moves = |name: &str| {
        let snapshot = plane.directory.snapshot();
        snapshot.by_name(name).expect("a tenant").tenant.usage.home_moves_after(0).entries
    };
    let moved = [moves("first"), moves("second")].concat();
    assert!(moved.iter().all(|one| one.from != one.to && one.from_per_mille >= 500), "{moved:?}");
    // An operator puts both together, and has one stay there: the other one leaves.
    plane.directory.set_home_worker("first", 1).expect("a worker");
    let follows = TenantChange { home_worker: Some(1), home_fixed: Some(false), ..TenantChange::default() };
    plane.directory.update_tenant("second", &follows).expect("a tenant");
    let before = moves("first").len();
    busy([0, 2], &|| home_of(&plane, "second") == 0);
    assert_eq!((home_of(&plane, "first"), moves("first").len()), (1, before));
    // Everything is answered where it is now.
    let mut stream = connect(port);
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream.write_all(format!("{}\r\nSET k 1\r\nGET k\r\n", logins[2]).as_bytes()).expect("said");
    assert_eq!(text(&read_until(&mut stream, b"$1\r\n1\r\n")), "+OK\r\n+OK\r\n$1\r\n1\r\n");
}
