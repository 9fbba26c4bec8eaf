//! Promise: a memcached client works here unchanged. The real memcached and this server get the same commands and must
//! give the same answers, byte by byte, except for the differences in `docs/protocols.md`. Other projects' tools pass,
//! too.

mod frames;
pub(crate) mod peer;
mod stream;

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use crate::common::{data_plane_with, root};
use frames::{Cas, Said};
use peer::{Memcached, connect, need_package, request, talk_through, text};
use rand::SeedableRng;
use rand::rngs::StdRng;
use sandstorm_instance::DataPlane;

/// A server whose port acts for a tenant with one table.
fn server(workers: usize) -> (DataPlane, SocketAddr) {
    let text = format!(
        "workers = {workers}\npin = false\n[[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\n\
         [[tenants]]\nname = 'shop'\ntables = [{{ name = 't' }}]\n"
    );
    let plane = data_plane_with(&text);
    let address = plane.listening()[0];
    (plane, address)
}

/// A memcached whose answers do not depend on the timing of its threads. The thread that moves items keeps references
/// to those that were read. Then `incr` sometimes makes a new item instead of filling the old one with blanks.
fn start_peer() -> Option<Memcached> {
    Memcached::start(&["-o", "no_lru_maintainer"])
}

/// An answer without the parts that must differ: the numbers of records, and elapsed seconds. The remaining times
/// differ by so much that no slow run confuses them.
fn comparable(answer: &[u8]) -> String {
    let answer = text(answer);
    let word = |word: &str| match (word.as_bytes().first(), word.get(1..).and_then(|number| number.parse::<u64>().ok()))
    {
        (Some(b'c'), Some(0)) => "c0".to_owned(),
        (Some(b'c'), Some(_)) => "c".to_owned(),
        (Some(b't'), Some(left)) => {
            let span = [3_000, 30_000, 300_000, 2_590_000].iter().filter(|border| left > **border).count();
            format!("t-span{span}")
        }
        _ => word.to_owned(),
    };
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["VALUE", key, flags, len, _] => format!("VALUE {key} {flags} {len} number"),
            ["VA" | "HD" | "NS" | "EX" | "NF", ..] => words.into_iter().map(word).collect::<Vec<_>>().join(" "),
            _ => line.to_owned(),
        }
    };
    answer.split("\r\n").map(line).collect::<Vec<_>>().join("\n")
}

/// The cases of `memcached/cases.txt`: each line is the input of one connection.
fn cases() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("tests/protocols/memcached/cases.txt")).expect("the cases");
    let long = |text: &str| {
        let keys: String = (0..3000).map(|key| format!("key{key} ")).collect();
        text.replace("{250}", &"k".repeat(250))
            .replace("{251}", &"k".repeat(251))
            .replace("{keys}", &keys)
            .replace("{9M}", &"x".repeat(9_000_000))
    };
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| long(line).replace("\\r", "\r").replace("\\n", "\n")).collect()
}

#[test]
fn each_case_is_answered_as_memcached_answers_it() {
    let Some(memcached) = start_peer() else { return };
    let (_plane, address) = server(1);
    for case in cases() {
        for peer in [memcached.address, address] {
            assert_eq!(text(&request(peer, b"flush_all")), "OK\r\nMN\r\n");
        }
        let [expected, answer] =
            [memcached.address, address].map(|peer| comparable(&talk_through(&mut connect(peer), case.as_bytes())));
        assert_eq!(answer, expected, "of {case:?}");
    }
}

#[test]
fn streams_of_commands_are_answered_as_memcached_answers_them() {
    let Some(memcached) = start_peer() else { return };
    let (_plane, address) = server(1);
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u64>);
    println!("SEED={seed}");
    let wide = std::env::var("WIDE").is_ok();
    let mut random = StdRng::seed_from_u64(seed);
    let mut streams = [connect(memcached.address), connect(address)];
    let mut history = Vec::new();
    for _ in 0..3000 {
        let (key, sent) = stream::command(&mut random, wide);
        history.push(sent.clone());
        let needs_number = sent.contains("{cas}") || sent.contains("{older}");
        let [expected, answer] = streams.each_mut().map(|stream| {
            // Each server has numbers of its own.
            let found = if needs_number {
                text(&talk_through(stream, format!("gets {key}").as_bytes()))
            } else {
                String::new()
            };
            let number = found.lines().next().and_then(|line| line.split(' ').nth(4)?.parse::<u64>().ok()).unwrap_or(5);
            let sent = sent.replace("{cas}", &number.to_string()).replace("{older}", &(number - 1).to_string());
            comparable(found.as_bytes()) + &comparable(&talk_through(stream, sent.as_bytes()))
        });
        let recent = &history[history.len().saturating_sub(12)..];
        assert_eq!(answer, expected, "SEED={seed}: of the last of {recent:#?}");
    }
}

/// The bytes of a frame for each server: with the number of its own record.
fn encoded(stream: &mut std::net::TcpStream, sent: &Said, opaque: u32) -> Vec<u8> {
    let number = match sent.cas {
        Cas::Any => 0,
        Cas::Right => frames::number(stream, &sent.key).unwrap_or(frames::NO_NUMBER),
        Cas::Wrong => frames::NO_NUMBER,
    };
    sent.encode(opaque, number)
}

#[test]
fn frames_are_answered_as_memcached_answers_them() {
    let Some(memcached) = start_peer() else { return };
    let (_plane, address) = server(1);
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u64>);
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let peers = [memcached.address, address];
    let mut streams = peers.map(connect);
    let mut history = Vec::new();
    let (mut in_one, mut parts) = (1, [Vec::new(), Vec::new()]);
    for round in 0..6000u32 {
        let sent = frames::command(&mut random);
        let ends = sent.cas == Cas::Right || parts[0].len() > 20_000;
        for (stream, part) in streams.iter_mut().zip(&mut parts) {
            let frame = if sent.cas == Cas::Right && !part.is_empty() {
                // Its number now depends on requests that are not sent yet.
                sent.encode(round, frames::NO_NUMBER)
            } else {
                encoded(stream, &sent, round)
            };
            part.extend_from_slice(&frame);
        }
        history.push(sent);
        in_one -= 1;
        if in_one > 0 && !ends {
            continue;
        }
        in_one =
            if rand::Rng::random_ratio(&mut random, 1, 2) { 1 } else { rand::Rng::random_range(&mut random, 1..100) };
        let mut received = Vec::new();
        for (stream, part) in streams.iter_mut().zip(&mut parts) {
            let (answers, has_ended) = frames::talk(stream, &std::mem::take(part));
            received.push((answers.into_iter().map(|answer| format!("{answer:?}")).collect::<Vec<_>>(), has_ended));
        }
        let recent = &history[history.len().saturating_sub(20)..];
        assert_eq!(received[1], received[0], "SEED={seed}: of the last of {recent:#?}");
        if received[0].1 {
            streams = peers.map(connect);
        }
    }
    for opcode in [0x01, 0x0e, 0x11] {
        let extras = if opcode == 0x0e { vec![] } else { vec![0; 8] };
        let sent = Said { value: vec![b'x'; 9_000_000], extras, ..Said::of_key(opcode, "a") };
        let [expected, received] = peers.map(|peer| {
            let mut stream = connect(peer);
            frames::talk(&mut stream, &[Said::of_key(0, "a").encode(1, 0), sent.encode(2, 0)].concat());
            frames::talk(&mut stream, &[sent.encode(2, 0), Said::of_key(0, "a").encode(3, 0)].concat())
        });
        assert_eq!(format!("{received:?}"), format!("{expected:?}"), "too large, and skipped");
    }
}

/// The counts that both servers report after the same commands.
const COUNTED: [&str; 17] = [
    "cmd_get",
    "cmd_set",
    "cmd_flush",
    "cmd_touch",
    "get_hits",
    "get_misses",
    "delete_misses",
    "delete_hits",
    "incr_misses",
    "incr_hits",
    "decr_misses",
    "decr_hits",
    "cas_misses",
    "cas_hits",
    "cas_badval",
    "touch_hits",
    "touch_misses",
];

#[test]
fn statistics_count_as_memcached_counts() {
    let Some(memcached) = start_peer() else { return };
    let (_plane, address) = server(2);
    let counts = |peer| {
        let stats = text(&request(peer, b"stats"));
        let count = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")).map(str::to_owned));
            format!("{name} {}", line.unwrap_or_else(|| panic!("no {name}: {stats}")))
        };
        COUNTED.map(count).to_vec()
    };
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u64>);
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut streams = [memcached.address, address].map(connect);
    for _ in 0..500 {
        let (key, sent) = stream::command(&mut random, false);
        // Each server counts a malformed beginning in its own way.
        let is_counted = !sent.starts_with(['m', ' ']) && !sent.contains('x') && !sent.contains("CLIENT");
        if !is_counted {
            continue;
        }
        let before = counts(address);
        for stream in &mut streams {
            talk_through(stream, sent.as_bytes());
        }
        assert_eq!(
            counts(address),
            counts(memcached.address),
            "SEED={seed}: of {sent:?} about {key}, before {before:?}"
        );
    }
    for (round, sent) in (0..500).map(|round| (round, frames::command(&mut random))).collect::<Vec<_>>() {
        for peer in [memcached.address, address] {
            let mut stream = connect(peer);
            let frame = encoded(&mut stream, &sent, round);
            frames::talk(&mut stream, &frame);
        }
        assert_eq!(counts(address), counts(memcached.address), "SEED={seed}: of {sent:?}");
    }
    assert_eq!(text(&request(address, b"stats reset")), "RESET\r\nMN\r\n");
    let zeros = COUNTED.map(|name| format!("{name} 0")).to_vec();
    assert_eq!(counts(address), zeros);
}

#[test]
fn datagrams_are_answered_as_memcached_answers_them() {
    let Some(memcached) = start_peer() else { return };
    let (_plane, address) = server(1);
    let large = format!("set large 5 0 4000\r\n{}", "v".repeat(4000));
    let sockets = [memcached.address, address].map(|peer| {
        assert!(text(&request(peer, large.as_bytes())).starts_with("STORED"));
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(peer).expect("an address");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        socket
    });
    let cases: [(&[u8], &[u8]); 8] = [
        (b"\x01\x02\0\0\0\x01\0\0", b"get large\r\n"),
        (b"\xff\xff\0\0\0\x01\0\0", b"set a 0 0 3\r\nabc\r\n"),
        (b"\0\x03\0\0\0\x01\0\0", b"get a\r\n"),
        (b"\0\x05\0\x01\0\x01\0\0", b"get a\r\n"),
        (b"\0\x07\0\0\0\x01\x12\x34", b"get none\r\n"),
        (b"\0\x08\0\0\0\x01\0\0", b"foo\r\n"),
        (b"\0\x09\0\0\0\x01\0\0", b"mn\r\n"),
        (b"\0\x0a\0\0\0\x01\0\0", b"mg a v t s\r\n"),
    ];
    for (header, sent) in cases {
        let [expected, answer] = sockets.each_ref().map(|socket| {
            socket.send(&[header, sent].concat()).expect("sent");
            let (mut received, mut parts, mut buffer) = (Vec::new(), 1, vec![0; 1 << 16]);
            while received.len() < parts {
                let len = socket.recv(&mut buffer).expect("an answer");
                parts = usize::from(u16::from_be_bytes([buffer[4], buffer[5]]));
                received.push(text(&buffer[..len]));
            }
            received
        });
        assert_eq!(answer, expected, "of {:?} behind {header:?}", text(sent));
    }
}

#[test]
fn memccapable_finds_all_of_both_protocols() {
    if !need_package("memccapable", "libmemcached-tools") {
        return;
    }
    for protocol in ["-a", "-b"] {
        let (_plane, address) = server(1);
        let mut command = Command::new("memccapable");
        let port = address.port().to_string();
        let output = command.args(["-h", "127.0.0.1", protocol, "-p", &port]).output().expect("it runs");
        let sent = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && !sent.contains("[FAIL]"), "{sent}");
    }
}

/// A Python with a package from PyPI, in a folder of its own.
fn python_with(package: &str, folder: &str) -> Option<std::path::PathBuf> {
    if !need_package("python3", "python3-venv") {
        return None;
    }
    let venv = root().join("target").join(folder);
    let python = venv.join("bin/python");
    let installed = python.exists()
        || Command::new("python3").args(["-m", "venv"]).arg(&venv).output().is_ok_and(|made| made.status.success());
    let pip = || Command::new(&python).args(["-m", "pip", "install", "-q", package]).output();
    if !installed || !pip().is_ok_and(|pip| pip.status.success()) {
        println!("skipped: {package} cannot be installed from PyPI");
        return None;
    }
    Some(python)
}

#[test]
fn a_client_of_the_binary_protocol_works_and_shows_who_it_is() {
    let Some(python) = python_with("python-binary-memcached", "bmemcached") else { return };
    let plane = data_plane_with(
        "workers = 2\npin = false\n[[memcached]]\naddress = '127.0.0.1:0'\n\
         [[tenants]]\nname = 'shop'\ntoken = 'a-token-of-twenty-characters'\ntables = [{ name = 's' }, { name = 't' }]\n",
    );
    let port = plane.listening()[0].port().to_string();
    let script = root().join("tests/protocols/memcached/sasl.py");
    let output = Command::new(python).arg(script).arg(port).output().expect("it runs");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn pymemcache_works() {
    let Some(python) = python_with("pymemcache", "pymemcache") else { return };
    let (_plane, address) = server(1);
    let mut command = Command::new(python);
    let output =
        command.arg(root().join("tests/protocols/memcached/client.py")).arg(address.port().to_string()).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn nodes_client_works() {
    let here = root().join("target/clients-node-memcached");
    let has = here.join("node_modules/memcached/package.json");
    if !has.exists() {
        std::fs::create_dir_all(&here).expect("a folder");
        let _had = Command::new("npm").args(["install", "--silent", "memcached"]).current_dir(&here).output();
    }
    if !has.exists() {
        println!("skipped: no node, or no package `memcached` for it");
        return;
    }
    let (_plane, address) = server(1);
    let mut command = Command::new("node");
    command.arg(root().join("tests/protocols/memcached/client.js")).arg(address.port().to_string());
    let output = command.env("NODE_PATH", here.join("node_modules")).output().expect("node was there");
    assert_eq!(text(&output.stdout) + &text(&output.stderr), "all good\n");
}

#[test]
fn memtier_benchmark_finds_no_error() {
    let (_plane, address) = server(1);
    let mut command = Command::new("memtier_benchmark");
    command.args(["-s", "127.0.0.1", "-p", &address.port().to_string(), "-P", "memcache_text", "--hide-histogram"]);
    let Ok(output) = command.args(["-n", "300", "-c", "5", "-t", "2", "--pipeline", "8"]).output() else {
        println!("skipped: memtier_benchmark is not here; Debian has no package of it");
        return;
    };
    let sent = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && sent.contains("Totals") && !sent.contains("error"), "{sent}");
}
