//! Promise: connections cost little, move to their tenant's home worker, end when their access ends, and do each other
//! no harm, whatever they send or do not read.

mod handshakes;
mod ports;
mod records;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::memcached::peer::{self, connect, read_until, request, talk, text};
use crate::common::{data_plane_with, eventually, tenant_with};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use sandstorm_catalog::{GrantAccess, GrantIssuer, NewTenant, QuotaChanges};
use sandstorm_instance::DataPlane;
use sandstorm_metrics::text::flat;

/// A server with a port that acts for tenant `shop`, and one where a client must name its tenant.
fn server(workers: usize, home: usize) -> (DataPlane, SocketAddr, SocketAddr) {
    let text = format!(
        "workers = {workers}\npin = false\n[[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\n\
         [[memcached]]\naddress = '127.0.0.1:0'\n\
         [[tenants]]\nname = 'shop'\nhome_worker = {home}\ntoken = 'the_token_of_the_shop'\ntables = [{{ name = 't' }}]\n"
    );
    let plane = data_plane_with(&text);
    let (port, open) = (plane.listening()[0], plane.listening()[1]);
    (plane, port, open)
}

fn metric(plane: &DataPlane, name: &str) -> u64 {
    flat(&plane.metrics.read()).find(|(found, _)| found == name).map_or(u64::MAX, |(_, value)| value)
}

/// Sends user and password; returns the reply.
fn login(stream: &mut TcpStream, sent: &str) -> String {
    stream.write_all(format!("set any 0 0 {}\r\n{sent}\r\n", sent.len()).as_bytes()).expect("said");
    text(&read_until(stream, b"\r\n"))
}

#[test]
fn requests_may_come_in_any_pieces() {
    let (_plane, port, _) = server(1, 0);
    let sent = b"set a 1 0 5\r\nab\r\nc\r\nget a b\r\nmg a v\r\nincr n 1\r\nset n 0 0 1 noreply\r\n1\r\nincr n 1\r\nget a b a\r\nbad\r\n";
    let expected = "STORED\r\nVALUE a 1 5\r\nab\r\nc\r\nEND\r\nVA 5\r\nab\r\nc\r\nNOT_FOUND\r\n2\r\nVALUE a 1 5\r\nab\r\nc\r\nVALUE a 1 5\r\n\
                    ab\r\nc\r\nEND\r\nERROR\r\nMN\r\n";
    for cut in 0..=sent.len() {
        assert_eq!(text(&request(port, b"flush_all")), "OK\r\nMN\r\n");
        let mut stream = connect(port);
        let (front, rest) = sent.split_at(cut);
        stream.write_all(front).expect("said");
        std::thread::yield_now();
        stream.write_all(rest).expect("said");
        stream.write_all(b"mn\r\n").expect("said");
        assert_eq!(text(&read_until(&mut stream, b"MN\r\n")), expected, "cut at {cut}");
    }
    let mut stream = connect(port);
    for byte in sent {
        stream.write_all(std::slice::from_ref(byte)).expect("said");
    }
    stream.write_all(b"mn\r\n").expect("said");
    assert!(text(&read_until(&mut stream, b"MN\r\n")).ends_with("ERROR\r\nMN\r\n"));
}

#[test]
fn long_values_and_endless_gets_are_answered_whole() {
    let (_plane, port, _) = server(1, 0);
    let value: Vec<u8> = (0..8 << 20).map(|byte: u32| (byte % 251) as u8).collect();
    let mut stream = connect(port);
    stream.write_all(format!("set large 0 0 {}\r\n", value.len()).as_bytes()).expect("said");
    stream.write_all(&value).expect("said");
    assert_eq!(text(&talk(&mut stream, b"")), "STORED\r\nMN\r\n");
    let answer = talk(&mut stream, b"get large");
    assert!(answer.ends_with(b"END\r\nMN\r\n") && answer[answer.len() - 11 - value.len()..].starts_with(&value));
    let too_long = (8 << 20) + 1;
    stream.write_all(format!("set large 0 0 {too_long}\r\n").as_bytes()).expect("said");
    stream.write_all(&vec![b'x'; too_long]).expect("said");
    let answer = text(&talk(&mut stream, b"\r\nget large"));
    assert_eq!(answer, "SERVER_ERROR object too large for cache\r\nEND\r\nMN\r\n");
    talk(&mut stream, b"set k 0 0 1\r\nv");
    let mut writer = stream.try_clone().expect("a second handle");
    let keys = 200_000;
    let sent = std::thread::spawn(move || {
        writer.write_all(b"get").expect("said");
        (0..keys).for_each(|_| writer.write_all(b" k missing").expect("said"));
        writer.write_all(b"\r\nmn\r\n").expect("said");
    });
    let answer = read_until(&mut stream, b"MN\r\n");
    sent.join().expect("all said");
    let value = b"VALUE k 0 1\r\nv\r\n";
    assert_eq!(answer.len(), keys * value.len() + b"END\r\nMN\r\n".len());
}

#[test]
fn a_connection_comes_to_its_home_worker() {
    let (plane, port, open) = server(3, 2);
    let mut streams: Vec<TcpStream> = (0..20).map(|_| connect(port)).collect();
    for stream in &mut streams {
        assert_eq!(text(&talk(stream, b"get a")), "END\r\nMN\r\n");
    }
    let mut others: Vec<TcpStream> = (0..20).map(|_| connect(open)).collect();
    for stream in &mut others {
        assert_eq!(login(stream, "shop the"), "CLIENT_ERROR authentication failure\r\n");
    }
    let at = |worker: usize| {
        flat(&plane.metrics.read_worker(worker)).find(|(name, _)| name == "connections").map_or(0, |(_, value)| value)
    };
    assert!(eventually(|| at(2) >= 20 && at(0) + at(1) + at(2) == 40));
    drop((streams, others));
    assert!(eventually(|| at(0) + at(1) + at(2) == 0));
}

#[test]
fn a_token_lets_in_as_long_as_it_is_one() {
    let config = "workers = 2\npin = false\n[[memcached]]\naddress = '127.0.0.1:0'\n";
    let plane = data_plane_with(config);
    let open = plane.listening()[0];
    let (_, token) = tenant_with(&plane, "bank", false, QuotaChanges::default());
    let mut stream = connect(open);
    stream.write_all(b"get a\r\n").expect("said");
    assert_eq!(text(&read_until(&mut stream, b"\r\n")), "CLIENT_ERROR unauthenticated\r\n");
    assert_eq!(login(&mut stream, "bank"), "CLIENT_ERROR bad authentication token format\r\n");
    assert_eq!(login(&mut stream, &format!("bank {token}x")), "CLIENT_ERROR authentication failure\r\n");
    assert_eq!(login(&mut stream, &format!("bank/t {token}")), "STORED\r\n");
    assert_eq!(text(&talk(&mut stream, b"set a 0 0 1\r\nx\r\nget a")), "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nMN\r\n");
    let mut other = connect(open);
    assert_eq!(login(&mut other, &format!("bank/nothing {token}")), "STORED\r\n");
    assert!(text(&talk(&mut other, b"get a")).starts_with("SERVER_ERROR the tenant has no such table\r\n"));
    let newer = plane.directory.rotate_token("bank").expect("a new token");
    assert!(text(&talk(&mut stream, b"get a")).ends_with("<closed>"));
    let mut stream = connect(open);
    assert_eq!(login(&mut stream, &format!("bank/t {newer}")), "STORED\r\n");
    assert_eq!(text(&talk(&mut stream, b"get a")), "VALUE a 0 1\r\nx\r\nEND\r\nMN\r\n");
    plane.directory.create_tenant(NewTenant::named("reader")).expect("a tenant");
    let token = plane.directory.rotate_token("reader").expect("its token");
    plane.directory.grant("bank", "t", "reader", GrantAccess::Read, GrantIssuer::Operator).expect("a grant");
    let mut reader = connect(open);
    assert_eq!(login(&mut reader, &format!("reader/bank/t {token}")), "STORED\r\n");
    let answer = text(&talk(&mut reader, b"get a\r\nset a 0 0 1\r\ny\r\nget a"));
    let refused = "SERVER_ERROR the table was granted for reading only\r\n";
    assert_eq!(answer, format!("VALUE a 0 1\r\nx\r\nEND\r\n{refused}VALUE a 0 1\r\nx\r\nEND\r\nMN\r\n"));
    plane.directory.delete_tenant("bank").expect("deleted");
    assert!(text(&talk(&mut stream, b"get a")).ends_with("<closed>"));
    let mut stranger = connect(open);
    (0..4).for_each(|_| assert_eq!(login(&mut stranger, "bank x"), "CLIENT_ERROR authentication failure\r\n"));
    assert!(text(&talk(&mut stranger, b"set a 0 0 3\r\na b")).ends_with("<closed>"), "who guesses is shown out");
}

#[test]
fn a_wrong_token_and_a_tenant_that_is_none_are_told_the_same_in_every_protocol() {
    let text_of_config = "workers = 1\npin = false\n[[memcached]]\naddress = '127.0.0.1:0'\n[[redis]]\naddress = '127.0.0.1:0'\n\
         [[tenants]]\nname = 'shop'\ntoken = 'the_token_of_the_shop'\ntables = [{ name = 't' }]\n";
    let plane = data_plane_with(text_of_config);
    let (memcached, redis) = (plane.listening()[0], plane.listening()[1]);
    let answers = |tenant: &str, token: &str| {
        let users = [tenant.to_owned(), format!("{tenant}/t"), format!("{tenant}/nosuch")];
        let mut told: Vec<String> =
            users.iter().map(|user| login(&mut connect(memcached), &format!("{user} {token}"))).collect();
        for command in [format!("AUTH {tenant} {token}"), format!("HELLO 3 AUTH {tenant} {token}")] {
            let mut stream = connect(redis);
            stream.write_all(format!("{command}\r\nGET k\r\nPING\r\nQUIT\r\n").as_bytes()).expect("said");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("answered");
            told.push(answer);
        }
        told
    };
    for token in ["a_token_that_is_nobodys", "x", &"y".repeat(300)] {
        assert_eq!(answers("shop", token), answers("nosuch", token), "{token}");
    }
}

#[test]
fn a_quota_on_requests_holds_here_too() {
    let (plane, port, _) = server(1, 0);
    plane
        .directory
        .set_quotas("shop", &QuotaChanges { requests_per_s: Some(10), ..QuotaChanges::default() })
        .expect("set");
    let sent = "get a\r\n".repeat(100) + "set b 0 0 1\r\nx\r\nget b";
    let answer = text(&request(port, sent.as_bytes()));
    assert!(answer.contains("END\r\n") && answer.contains("SERVER_ERROR quota requests_per_s"), "{answer}");
    assert!(answer.ends_with("MN\r\n"), "in step all the same");
}

#[test]
fn who_does_not_read_is_closed_and_others_do_not_notice() {
    let (plane, port, _) = server(1, 0);
    let value = vec![b'v'; 1 << 20];
    let mut stream = connect(port);
    stream.write_all(format!("set large 0 0 {}\r\n", value.len()).as_bytes()).expect("said");
    stream.write_all(&value).expect("said");
    stream.write_all(b"\r\n").expect("said");
    assert_eq!(text(&read_until(&mut stream, b"\r\n")), "STORED\r\n");
    let mut lazy = connect(port);
    lazy.set_nonblocking(true).expect("a stream that does not wait");
    let closed = eventually(|| {
        // Sends requests without end, as long as the server reads them.
        let sent = lazy.write(&b"get large\r\n".repeat(100));
        assert_eq!(text(&talk(&mut stream, b"get small")), "END\r\nMN\r\n");
        matches!(sent, Err(error) if error.kind() != std::io::ErrorKind::WouldBlock)
    });
    assert!(closed && metric(&plane, "connections_refused.slow_reader") == 1);
}

#[test]
fn what_one_has_begun_to_say_leaves_room_for_what_others_say() {
    let (plane, port, open) = server(1, 0);
    tenant_with(&plane, "other", true, QuotaChanges::default());
    let mut other = connect(open);
    assert_eq!(login(&mut other, "other/t x"), "STORED\r\n");
    let half = [&b"set a 0 0 8388608\r\n"[..], &vec![b'v'; 8 << 20]].concat();
    let mut begun: Vec<TcpStream> = Vec::new();
    // As many as one tenant may have: two thirds of 512 MiB, or fewer, as buffers grow.
    while metric(&plane, "connections_refused.memory") == 0 {
        let mut stream = connect(port);
        let _may_be_closed = stream.write_all(&half);
        begun.push(stream);
        assert!(begun.len() < 100, "it has no end");
        // The other one sends a request in two parts, of which the first has to wait.
        other.write_all(b"set b 0 0 100000\r\n").expect("said");
        other.write_all(&[b'v'; 70_000]).expect("said");
        assert_eq!(text(&request(port, b"get a")), "END\r\nMN\r\n");
        other.write_all(&[b'v'; 30_000]).expect("said");
        assert_eq!(text(&talk(&mut other, b"")), "STORED\r\nMN\r\n");
    }
}

#[test]
fn what_was_asked_for_is_answered_after_the_asking_has_ended() {
    let (_plane, port, _) = server(1, 0);
    let mut stream = connect(port);
    let value = vec![b'v'; 1 << 20];
    stream.write_all(&[&b"set large 0 0 1048576\r\n"[..], &value, b"\r\n"].concat()).expect("said");
    assert_eq!(text(&read_until(&mut stream, b"\r\n")), "STORED\r\n");
    stream.write_all(&b"get large\r\n".repeat(50)).expect("said");
    stream.shutdown(std::net::Shutdown::Write).expect("ended");
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("all of it");
    assert_eq!(received.len(), 50 * ("VALUE large 0 1048576\r\n".len() + value.len() + "\r\nEND\r\n".len()));
}

#[test]
fn junk_ends_its_own_connection_at_most() {
    let (plane, port, open) = server(1, 0);
    let mut stream = connect(port);
    let mut random = StdRng::seed_from_u64(7);
    for round in 0..100 {
        for address in [port, open] {
            let mut junk = vec![0; random.random_range(1..20_000)];
            match round % 3 {
                0 => random.fill_bytes(&mut junk),
                1 => junk.fill(b'x'),
                _ => junk
                    .iter_mut()
                    .for_each(|byte| *byte = *b"get \r\n019kms -".get(random.random_range(0..14)).unwrap_or(&b' ')),
            }
            let mut other = TcpStream::connect(address).expect("a connection");
            let _may_be_closed = other.write_all(&junk);
        }
        assert_eq!(text(&talk(&mut stream, b"get a")), "END\r\nMN\r\n");
    }
    assert!(metric(&plane, "connections_refused.protocol") > 0);
    assert!(eventually(|| metric(&plane, "connections") == 1));
}

#[test]
fn datagrams_are_answered_in_as_many_as_it_takes() {
    let (plane, port, _) = server(2, 0);
    let value = vec![b'v'; 10_000];
    let mut stream = connect(port);
    stream.write_all(format!("set large 3 0 {}\r\n", value.len()).as_bytes()).expect("said");
    stream.write_all(&value).expect("said");
    stream.write_all(b"\r\n").expect("said");
    assert_eq!(text(&read_until(&mut stream, b"\r\n")), "STORED\r\n");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(port).expect("an address");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let request = |request: u16, count: u16, sent: &str| {
        let [a, b] = request.to_be_bytes();
        let [c, d] = count.to_be_bytes();
        socket.send(&[&[a, b, 0, 0, c, d, 0, 0], sent.as_bytes()].concat()).expect("sent");
        let (mut whole, mut buffer, mut parts) = (Vec::new(), [0; 2000], 1u16);
        let mut next = 0;
        while next < parts {
            let len = socket.recv(&mut buffer).expect("an answer");
            let word = |at: usize| u16::from_be_bytes([buffer[at], buffer[at + 1]]);
            assert_eq!((word(0), word(2)), (request, next), "in order");
            assert!(len <= 1400);
            (parts, next) = (word(4), next + 1);
            whole.extend_from_slice(&buffer[8..len]);
        }
        (text(&whole), parts)
    };
    assert_eq!(request(1, 1, "set a 0 0 2\r\nhi\r\n"), ("STORED\r\n".to_owned(), 1));
    assert_eq!(request(0xfffe, 1, "get a\r\n").0, "VALUE a 0 2\r\nhi\r\nEND\r\n");
    let (answer, parts) = request(3, 1, "get a large\r\n");
    assert_eq!(parts, 8);
    assert!(answer.ends_with("vvv\r\nEND\r\n") && answer.len() == 10_000 + 45, "{}", answer.len());
    assert_eq!(request(4, 2, "get a\r\n").0, "SERVER_ERROR multi-packet request not supported\r\n");
    // An incomplete packet, or one without a request, has no answer; the next one has.
    for sent in [&b"\x00\x05"[..], b"\0\x05\0\0\0\x01\0\0get a", b"\0\x05\0\0\0\x01\0\0set a 0 0 10\r\nx\r\n"] {
        socket.send(sent).expect("sent");
    }
    assert_eq!(request(6, 1, "mn\r\n").0, "MN\r\n");
    // Neither has a packet that may be another server's answer, sent here by a forged sender: they would never stop.
    let dropped = metric(&plane, "packets_dropped");
    let answers = ["ERROR\r\n", "SERVER_ERROR multi-packet request not supported\r\n", "5\r\n", "END\r\n", "MN\r\n"];
    for sent in answers {
        socket.send(&[&b"\0\x07\0\0\0\x01\0\0"[..], sent.as_bytes()].concat()).expect("sent");
    }
    assert_eq!(request(8, 1, "mn\r\n").0, "MN\r\n");
    assert!(eventually(|| metric(&plane, "packets_dropped") >= dropped + answers.len() as u64));
}

#[test]
fn ten_thousand_idle_connections_take_little_memory_and_no_time() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let connections = 10_000usize;
    let files = getrlimit(Resource::Nofile);
    let enough = files.maximum.is_none_or(|most| most >= connections as u64 + 2_000);
    if !enough || setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum }).is_err() {
        println!("skipped: this process may not open {connections} connections (ulimit -n)");
        return;
    }
    let state = tempfile::tempdir().expect("a folder");
    let config = state.path().join("c.toml");
    let text = "[[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\n[[tenants]]\nname = 'shop'\ntables = [{ name = 't' }]\n";
    std::fs::write(&config, text).expect("written");
    let mut server = Command::new(env!("CARGO_BIN_EXE_sandstorm-under-test"));
    server.args(["--json", "--state"]).arg(state.path().join("state")).args([
        "serve",
        "--no-builder",
        "--no-pin",
        "--workers",
        "1",
    ]);
    server.args(["--data", "127.0.0.1:0", "--control", "127.0.0.1:0", "--config"]).arg(&config);
    let mut server = server.stdout(Stdio::piped()).spawn().expect("a server");
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
    let sent: serde_json::Value = serde_json::from_str(&line).expect("its addresses");
    let port: SocketAddr = sent["memcached"][0].as_str().and_then(|port| port.parse().ok()).expect("a port");
    let of = |name: &str| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("its status");
        let line = status.lines().find(|line| line.starts_with(name)).expect("a line").to_owned();
        line.split_whitespace().nth(1).and_then(|number| number.parse::<usize>().ok()).expect("a number")
    };
    let mut first = connect(port);
    assert!(peer::text(&talk(&mut first, b"get a")).starts_with("END"));
    let before_kib = of("VmRSS");
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..connections {
        let mut stream = TcpStream::connect(port).expect("a connection");
        stream.write_all(b"get a\r\n").expect("said");
        idle.push(stream);
    }
    let mut answer = [0; 5];
    for stream in &mut idle {
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"END\r\n");
    }
    let each = (of("VmRSS").saturating_sub(before_kib) << 10) / connections;
    println!("{each} bytes for each idle connection");
    assert!(each < 1024, "{each} bytes for each idle connection");
    // No client sends anything: the worker sleeps until one does.
    let slept = of("voluntary_ctxt_switches");
    std::thread::sleep(Duration::from_millis(500));
    assert!(of("voluntary_ctxt_switches") < slept + 100, "no polling");
    assert!(peer::text(&talk(&mut first, b"get a")).starts_with("END"));
    server.kill().expect("ended");
    server.wait().expect("reaped");
}
