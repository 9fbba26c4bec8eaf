//! Promise: a memcached client works here unchanged. The real memcached and this server get the same commands and have to give the
//! same answers, byte by byte, but for what `docs/protocols.md` names; and the tools of others pass.

mod common;
#[path = "memcached/peer.rs"]
mod peer;

use std::net::SocketAddr;
use std::process::Command;

use common::{data_plane_with, root};
use peer::{Memcached, ask, connect, need_package, talk_through, text};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use sandstorm_db::server::DataPlane;

/// A server whose port speaks for a tenant with one table.
fn server(workers: usize) -> (DataPlane, SocketAddr) {
    let text = format!(
        "workers = {workers}\npin = false\n[[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\n\
         [[tenants]]\nname = 'shop'\ntables = [{{ name = 't' }}]\n"
    );
    let plane = data_plane_with(&text);
    let address = plane.listening()[0];
    (plane, address)
}

/// A memcached whose answers do not depend on when its threads run: the one that moves items about holds on to those that were
/// read, and then `incr` makes a new item in place of filling the old one with blanks, now and then.
fn start_peer() -> Option<Memcached> {
    Memcached::start(&["-o", "no_lru_maintainer"])
}

/// An answer without what must differ: the numbers of records, and seconds that pass.
fn comparable(answer: &[u8]) -> String {
    let answer = text(answer);
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["VALUE", key, flags, len, _] => format!("VALUE {key} {flags} {len} number"),
            ["VA" | "HD", ..] => {
                let of = |word: &&str| word.starts_with(['c', 't']) && word[1..].parse::<u64>().is_ok();
                let words = words.iter().map(|word| if of(word) { &word[..1] } else { word });
                words.collect::<Vec<_>>().join(" ")
            }
            _ => line.to_owned(),
        }
    };
    answer.split("\r\n").map(line).collect::<Vec<_>>().join("\n")
}

/// The cases of `memcached/cases.txt`: each line is what one connection says.
fn cases() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("tests/memcached/cases.txt")).expect("the cases");
    let long = |text: &str| {
        let keys: String = (0..3000).map(|key| format!("key{key} ")).collect();
        text.replace("{250}", &"k".repeat(250)).replace("{251}", &"k".repeat(251)).replace("{keys}", &keys)
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
            assert_eq!(text(&ask(peer, b"flush_all")), "OK\r\nMN\r\n");
        }
        let [expected, answer] =
            [memcached.address, address].map(|peer| comparable(&talk_through(&mut connect(peer), case.as_bytes())));
        assert_eq!(answer, expected, "of {case:?}");
    }
}

/// A command of those that are mostly used, with this and that wrong now and then.
fn command(random: &mut StdRng) -> String {
    let key = ["a", "b", "c", "d", "e"].choose(random).expect("one of five");
    // Blanks that fill a number up would stand before what is appended, but not where memcached just had to make a new item.
    let (texts, numbers) = (["a", "b", "c"].choose(random).expect("one"), ["d", "e"].choose(random).expect("one"));
    let time = ["0", "0", "100", "-1", "2000000000", "x"].choose(random).expect("one");
    let noreply = if random.random_ratio(1, 8) { " noreply" } else { "" };
    let value: String = match random.random_range(0..4) {
        0 => random.random_range(0..200u32).to_string(),
        1 => String::new(),
        2 => u64::MAX.to_string(),
        _ => (0..random.random_range(0..40)).map(|_| random.random_range('a'..='z')).collect(),
    };
    let len = if random.random_ratio(1, 20) { value.len() + 1 } else { value.len() };
    let delta = random.random_range(0..50u32);
    match random.random_range(0..12) {
        0..=2 => {
            let verb = ["set", "set", "add", "replace", "append", "prepend"].choose(random).expect("one of six");
            let key = if verb.ends_with("pend") { texts } else { key };
            format!("{verb} {key} {delta} {time} {len}{noreply}\r\n{value}")
        }
        3 => format!("get {key} b c"),
        4 => format!("gets {key}"),
        5 => format!("{} {time} {key} a", ["gat", "gats"].choose(random).expect("one of two")),
        6 => format!("delete {key}{noreply}"),
        7 => format!("{} {numbers} {delta}{noreply}", ["incr", "decr"].choose(random).expect("one of two")),
        8 => format!("touch {key} {time}{noreply}"),
        _ => meta(random, [key, texts, numbers], &value, len),
    }
}

fn meta(random: &mut StdRng, [key, texts, numbers]: [&str; 3], value: &str, len: usize) -> String {
    let verb = ["mg", "mg", "ms", "ms", "md", "ma"].choose(random).expect("one of six");
    let all: &[&str] = match *verb {
        "mg" => &["v", "f", "s", "t", "k", "O7", "q", "h", "N100", "N0", "R30", "R1000", "T200", "T0", "c", "v", "z"],
        "ms" => &["ME", "MA", "MP", "MR", "MS", "F7", "T100", "T0", "q", "O9", "k", "I", "C999999999", "Tx", "MX"],
        "md" => &["q", "I", "T50", "O3", "k", "C999999999", "z"],
        _ => &["MI", "MD", "D7", "J5", "N100", "N0", "T60", "v", "t", "c", "q", "O5", "k", "M+", "Dx"],
    };
    let count = random.random_range(0..5);
    let flags: Vec<&str> = (0..count).filter_map(|_| all.choose(random).copied()).collect();
    let key = match *verb {
        "ma" => numbers,
        "ms" if flags.iter().any(|flag| matches!(*flag, "MA" | "MP")) => texts,
        _ => key,
    };
    let flags = flags.join(" ");
    match *verb {
        "ms" => format!("ms {key} {len} {flags}\r\n{value}"),
        verb => format!("{verb} {key} {flags}"),
    }
}

#[test]
fn streams_of_commands_are_answered_as_memcached_answers_them() {
    let Some(memcached) = start_peer() else { return };
    let (_plane, address) = server(1);
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u64>);
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut theirs, mut ours) = (connect(memcached.address), connect(address));
    let mut history = Vec::new();
    for _ in 0..3000 {
        let said = command(&mut random);
        history.push(said.clone());
        let expected = comparable(&talk_through(&mut theirs, said.as_bytes()));
        let answer = comparable(&talk_through(&mut ours, said.as_bytes()));
        let recent = &history[history.len().saturating_sub(12)..];
        assert_eq!(answer, expected, "SEED={seed}: of the last of {recent:#?}");
    }
}

#[test]
fn memccapable_finds_all_of_the_text_protocol() {
    if !need_package("memccapable", "libmemcached-tools") {
        return;
    }
    let (_plane, address) = server(1);
    let mut command = Command::new("memccapable");
    let output = command.args(["-h", "127.0.0.1", "-a", "-p", &address.port().to_string()]).output().expect("it runs");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && !said.contains("[FAIL]"), "{said}");
}

#[test]
fn pymemcache_works() {
    if !need_package("python3", "python3-venv") {
        return;
    }
    let venv = root().join("target/pymemcache");
    let python = venv.join("bin/python");
    let installed = python.exists()
        || Command::new("python3").args(["-m", "venv"]).arg(&venv).output().is_ok_and(|made| made.status.success());
    let pip = || Command::new(&python).args(["-m", "pip", "install", "-q", "pymemcache"]).output();
    if !installed || !pip().is_ok_and(|pip| pip.status.success()) {
        println!("skipped: pymemcache cannot be installed from PyPI");
        return;
    }
    let (_plane, address) = server(1);
    let mut command = Command::new(python);
    let output = command.arg(root().join("tests/memcached/client.py")).arg(address.port().to_string()).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}
