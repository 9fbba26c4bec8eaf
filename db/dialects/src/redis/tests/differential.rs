//! Sends the same commands to a real Redis, and compares the answers byte by byte. Passes with a message if there is no
//! `redis-server`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// A Redis of its own.
struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start() -> Option<(Redis, TcpStream)> {
    let port = std::net::TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
    let child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--dir", "/tmp", "--proto-max-bulk-len", "8388608"])
        .stdout(Stdio::null())
        .spawn()
        .ok()?;
    let redis = Redis(child);
    for _ in 0..6_000 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            return Some((redis, stream));
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the redis-server that was started does not answer")
}

/// Reads one answer, whole.
fn answer(from: &mut impl BufRead, out: &mut Vec<u8>) {
    let start = out.len();
    from.read_until(b'\n', out).expect("an answer");
    let line = String::from_utf8_lossy(&out[start..]).trim().to_owned();
    let number = || line[1..].parse::<i64>().unwrap_or(-1).max(0) as usize;
    match line.as_bytes()[0] {
        b'$' | b'=' if line != "$-1" => {
            let len = number() + 2;
            from.take(len as u64).read_to_end(out).expect("the bytes");
        }
        b'*' | b'~' | b'>' => (0..number()).for_each(|_| answer(from, out)),
        b'%' => (0..2 * number()).for_each(|_| answer(from, out)),
        _ => {}
    }
}

fn choose(random: &mut StdRng, words: &[&'static str]) -> &'static str {
    words[random.random_range(0..words.len())]
}

const KEYS: [&str; 6] = ["a", "b", "c", "key:1", "key:2", ""];
const VALUES: [&str; 14] = [
    "",
    "0",
    "1",
    "-1",
    "12",
    "abc",
    "10.5",
    "3.0e3",
    "9223372036854775807",
    "-9223372036854775808",
    " 1",
    "01",
    "hello world",
    "0.1",
];
const NUMBERS: [&str; 12] =
    ["0", "1", "-1", "5", "-3", "100", "1000000", "9223372036854775807", "-9223372036854775808", "x", "1.5", ""];
/// Hours at least, and never two relative ones that are to be compared: each side has its own clock.
const TIMES: [&str; 8] =
    ["100000000", "200000000", "-1", "0", "x", "9223372036854775807", "4102444800", "4102444800000"];
/// Kinds of fields of BITFIELD, and where they are.
const FIELDS: [&str; 16] =
    ["u1", "u2", "u7", "u8", "u13", "u32", "u63", "u64", "i1", "i2", "i8", "i16", "i33", "i63", "i64", "x8"];
const OFFSETS: [&str; 12] = ["0", "1", "3", "7", "8", "17", "100", "#0", "#1", "#3", "-1", "#x"];
const SHAPES: &[&str] = &[
    "GET k",
    "GET k",
    "SET k v",
    "SET k v",
    "SET k v NX",
    "SET k v XX GET",
    "SET k v EX t",
    "SET k v PXAT t",
    "SET k v KEEPTTL",
    "SET k v NX XX",
    "SET k v EX",
    "SET k v EX t PX t",
    "SETNX k v",
    "SETEX k t v",
    "PSETEX k t v",
    "GETSET k v",
    "GETDEL k",
    "GETEX k",
    "GETEX k PERSIST",
    "GETEX k EXAT t",
    "GETEX k FOO",
    "MGET k k k",
    "MSET k v k v",
    "MSET k v k",
    "MSETNX k v k v",
    "APPEND k v",
    "STRLEN k",
    "GETRANGE k n n",
    "SUBSTR k n n",
    "SETRANGE k m v",
    "INCR k",
    "DECR k",
    "INCRBY k n",
    "DECRBY k n",
    "INCRBYFLOAT k v",
    "INCRBYFLOAT k f",
    "GETBIT k m",
    "SETBIT k m b",
    "BITCOUNT k",
    "BITCOUNT k n n",
    "BITCOUNT k n n BIT",
    "BITPOS k b",
    "BITPOS k b n",
    "BITPOS k b n n",
    "BITPOS k b n n BIT",
    "BITOP p k k k",
    "BITOP p k k",
    "BITFIELD k GET y o",
    "BITFIELD k SET y o n",
    "BITFIELD k OVERFLOW w INCRBY y o n",
    "BITFIELD k INCRBY y o n OVERFLOW w SET y o n GET y o INCRBY y o n",
    "BITFIELD_RO k GET y o GET y o",
    "LCS k k",
    "LCS k k LEN",
    "LCS k k IDX",
    "LCS k k IDX MINMATCHLEN m WITHMATCHLEN",
    "SET k v EXAT t EXAT t",
    "GETEX k PXAT t PXAT t",
    "DEL k k",
    "UNLINK k",
    "EXISTS k k k",
    "TOUCH k k",
    "EXPIRE k t",
    "EXPIRE k t NX",
    "PEXPIREAT k t GT",
    "EXPIREAT k t LT",
    "PEXPIREAT k t XX GT",
    "EXPIRE k t GT LT",
    "EXPIRE k t FOO",
    "PERSIST k",
    "TYPE k",
    "RENAME k k",
    "RENAMENX k k",
    "COPY k k",
    "COPY k k REPLACE",
    "STRLEN k",
    "NOSUCH k v",
    "GET k k",
];

/// Rare or wrong arguments.
const RARE: &[&str] = &[
    "SET k",
    "SET k v FOO",
    "SET k v GET",
    "SET k v NX GET",
    "SET k v GET GET",
    "SET k v PX t",
    "SET k v EXAT t",
    "SET k v KEEPTTL EX t",
    "SET k v EX t KEEPTTL",
    "SET k v XX KEEPTTL",
    "SET k v PERSIST",
    "SETNX k",
    "SETEX k v",
    "GETEX",
    "GETEX k EX t",
    "GETEX k PX t",
    "GETEX k PXAT t",
    "GETEX k PERSIST EX",
    "GETEX k PERSIST EX t",
    "GETSET k",
    "GETDEL k k",
    "MGET",
    "MSET k",
    "MSETNX k v k",
    "APPEND k",
    "STRLEN",
    "GETRANGE k n",
    "SUBSTR k n",
    "SETRANGE k n v",
    "SETRANGE k 8388607 v",
    "SETRANGE k 8388608 v",
    "SETRANGE k 8388608 ",
    "INCR",
    "INCRBY k",
    "DECRBY k x",
    "INCRBYFLOAT k",
    "GETBIT k",
    "GETBIT k 67108864",
    "SETBIT k 67108864 1",
    "SETBIT k 67108863 x",
    "SETBIT k m",
    "BITCOUNT",
    "BITCOUNT k n",
    "BITCOUNT k n n BYTE",
    "BITCOUNT k n n FOO",
    "BITCOUNT k n n BIT n",
    "BITPOS",
    "BITPOS k x",
    "BITPOS k 2 n n",
    "BITPOS k b n n BYTE",
    "BITPOS k b n n FOO",
    "BITPOS k b n n BIT n",
    "BITPOS k b x",
    "BITOP",
    "BITOP p k",
    "BITOP FOO k k",
    "BITOP NOT k k",
    "BITFIELD",
    "BITFIELD k",
    "BITFIELD k GET",
    "BITFIELD k GET y",
    "BITFIELD k SET y o",
    "BITFIELD k FOO y o",
    "BITFIELD k OVERFLOW FOO",
    "BITFIELD k OVERFLOW",
    "BITFIELD k OVERFLOW FAIL SET u2 100 9",
    "BITFIELD_RO k",
    "BITFIELD_RO k SET u8 0 1",
    "BITFIELD_RO k OVERFLOW WRAP GET y o",
    "LCS k",
    "LCS k k FOO",
    "LCS k k LEN IDX",
    "LCS k k MINMATCHLEN",
    "LCS k k MINMATCHLEN x",
    "LCS k k WITHMATCHLEN IDX IDX",
    "SET k v NX NX",
    "SET k v KEEPTTL KEEPTTL",
    "SET k v EX t EX 100000000",
    "SET k v PX t EX t",
    "SET k v EXAT t PXAT t",
    "SET k v KEEPTTL PX t",
    "GETEX k PERSIST PERSIST",
    "GETEX k PERSIST EX t",
    "GETEX k EX t EX t",
    "GETEX k NX",
    "GETEX k GET",
    "GETEX k KEEPTTL",
    "DEL",
    "UNLINK",
    "EXISTS",
    "TOUCH",
    "EXPIRE k",
    "PEXPIRE k t",
    "PEXPIRE k t GT",
    "EXPIREAT k t NX XX",
    "EXPIRE k t XX XX",
    "PERSIST",
    "TTL",
    "TYPE k k",
    "RENAME k",
    "RENAMENX k k k",
    "COPY k",
    "COPY k k FOO",
    "COPY k k DB",
    "COPY k k DB 0",
    "COPY k k DB 0 REPLACE",
    "COPY k k DB x",
    "COPY k k DB 99999",
    "COPY k k DB -1",
    "DBSIZE x",
    "FLUSHDB",
    "FLUSHDB ASYNC",
    "FLUSHDB FOO",
    "FLUSHALL SYNC",
    "FLUSHALL SYNC x",
    "SELECT 0",
    "SELECT 99999",
    "SELECT -1",
    "SELECT",
    "KEYS nothing*",
    "KEYS",
    "SCAN x",
    "SCAN",
    "SCAN 0 COUNT 0",
    "SCAN 0 COUNT x",
    "SCAN 0 MATCH",
    "SCAN 0 FOO 1",
    "SCAN 99999999999999999999999",
    "RANDOMKEY x",
    "OBJECT",
    "OBJECT FOO k",
    "OBJECT ENCODING",
    "OBJECT ENCODING nothing",
    "OBJECT FREQ k",
    "OBJECT FREQ k k",
    "OBJECT REFCOUNT nothing",
    "MEMORY",
    "MEMORY FOO",
    "MEMORY USAGE",
    "MEMORY USAGE k FOO",
    "MEMORY USAGE k SAMPLES",
    "MEMORY USAGE nothing",
    "MEMORY USAGE nothing SAMPLES 5",
    "CLIENT",
    "CLIENT FOO",
    "CLIENT ID x",
    "CLIENT GETNAME",
    "CLIENT GETNAME x",
    "CLIENT SETNAME one",
    "CLIENT SETNAME two words",
    "CLIENT SETNAME",
    "CLIENT SETNAME ",
    "CLIENT NO-EVICT x",
    "CLIENT NO-EVICT ON",
    "CLIENT REPLY FOO",
    "CLIENT REPLY ON",
    "CLIENT UNBLOCK 99999",
    "CLIENT UNBLOCK x",
    "CLIENT UNBLOCK 99999 FOO",
    "CLIENT UNBLOCK 99999 ERROR",
    "CLIENT LIST TYPE foo",
    "CLIENT LIST TYPE pubsub",
    "CLIENT LIST FOO",
    "CLIENT LIST ID x",
    "CLIENT LIST ID 99999",
    "CLIENT GETREDIR",
    "CLIENT TRACKING OFF",
    "CLIENT KILL",
    "CLIENT KILL 1.2.3.4:5",
    "CLIENT KILL ID x",
    "CLIENT KILL ID 99999",
    "CLIENT KILL FOO BAR",
    "CLIENT KILL ID",
    "CONFIG",
    "CONFIG FOO",
    "CONFIG GET",
    "CONFIG GET save",
    "CONFIG GET appendonly",
    "CONFIG GET nothing",
    "CONFIG GET cluster-enabled",
    "CONFIG GET SLOWLOG-MAX-LEN",
    "CONFIG RESETSTAT",
    "CONFIG RESETSTAT x",
    "COMMAND FOO",
    "COMMAND INFO nothing",
    "COMMAND COUNT x",
    "COMMAND DOCS nothing",
    "COMMAND LIST FOO",
    "COMMAND LIST FILTERBY PATTERN nothing",
    "COMMAND GETKEYS",
    "COMMAND GETKEYS GET k",
    "COMMAND GETKEYS GET",
    "COMMAND GETKEYS MSET k v k v",
    "COMMAND GETKEYS NOSUCH k",
    "COMMAND GETKEYS ECHO x",
    "COMMAND GETKEYS FCALL f 2 a b c",
    "SLOWLOG",
    "SLOWLOG FOO",
    "SLOWLOG LEN x",
    "SLOWLOG GET x",
    "SLOWLOG GET -2",
    "SLOWLOG GET 1 x",
    "SLOWLOG RESET",
    "WAIT x 0",
    "WAIT 0 x",
    "WAIT 0 -1",
    "WAIT 0 0",
    "WAIT 0",
    "ROLE",
    "ROLE x",
    "LASTSAVE x",
    "ECHO",
    "PING a b",
    "HELLO 9",
    "HELLO x",
    "HELLO 3 FOO",
    "HELLO 2 SETNAME",
    "RESET x",
    "INFO nothing",
    "FCALL",
    "FUNCTION",
    "FUNCTION FOO",
    "FUNCTION LIST",
    "FUNCTION LIST FOO",
    "FUNCTION LIST LIBRARYNAME",
    "FUNCTION LIST LIBRARYNAME nothing",
    "CLUSTER INFO",
    "MULTI x",
    "EXEC x",
    "DISCARD x",
    "UNWATCH x",
];

fn command(random: &mut StdRng) -> Vec<String> {
    let shape = if random.random_ratio(1, 6) { choose(random, RARE) } else { choose(random, SHAPES) };
    let word = |(at, word): (usize, &'static str), random: &mut StdRng| match word {
        "k" if at > 0 => choose(random, &KEYS),
        "v" => choose(random, &VALUES),
        "n" => choose(random, &NUMBERS),
        "t" => choose(random, &TIMES),
        "m" => choose(random, &["0", "1", "5", "100", "-1", "x", "99999999999"]),
        "b" => choose(random, &["0", "1", "2"]),
        "p" => choose(random, &["AND", "or", "XOR", "NOT", "and"]),
        "w" => choose(random, &["WRAP", "SAT", "FAIL", "sat"]),
        "y" => choose(random, &FIELDS),
        "o" => choose(random, &OFFSETS),
        "f" => choose(
            random,
            &["0.1", "1.1", "-2.5", "1e3", "5000.1", "0.00000001", "123456789.123456789", "nan", "inf", "x"],
        ),
        other => other,
    };
    shape.split(' ').enumerate().map(|one| word(one, random).to_owned()).collect()
}

#[test]
fn a_real_redis_gives_the_same_answers() {
    let Some((_redis, stream)) = start() else {
        eprintln!("skipped: no redis-server (Debian package redis-server)");
        return;
    };
    let mut to = stream.try_clone().expect("a second handle");
    let mut from = BufReader::new(stream);
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    let (mut sent, mut different) = (Vec::new(), Vec::new());
    // REDIS_SEEDS=500 runs more of them.
    let seeds = std::env::var("REDIS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(12);
    for seed in 0..seeds {
        sent.clear();
        let mut found = 0;
        let mut random = StdRng::seed_from_u64(seed);
        let version = if seed % 2 == 0 { "2" } else { "3" };
        to.write_all(&encoded(&[b"HELLO", version.as_bytes()])).expect("sent");
        answer(&mut from, &mut Vec::new());
        world.send(&mut client, &encoded(&[b"HELLO", version.as_bytes()]));
        for step in 0..1_500 {
            let args = match step {
                0 => vec!["FLUSHALL".to_owned()],
                _ => wrapped(&mut random),
            };
            let bytes = match random.random_ratio(1, 10) {
                true => typed(&args),
                false => encoded(&args.iter().map(String::as_bytes).collect::<Vec<_>>()),
            };
            to.write_all(&bytes).expect("sent");
            let mut theirs = Vec::new();
            answer(&mut from, &mut theirs);
            let (ours, _) = world.send(&mut client, &bytes);
            let (theirs, ours) = (String::from_utf8_lossy(&theirs), String::from_utf8_lossy(&ours));
            sent.push(format!("{args:?} -> {theirs:?}"));
            if theirs != ours {
                let last = sent.len().saturating_sub(6);
                different.push(format!("seed {seed}: Redis {theirs:?}, here {ours:?}\n{}", sent[last..].join("\n")));
                found += 1;
                if found == 3 {
                    break;
                }
            }
        }
        // The rest of a transaction would belong to another conversation.
        for args in [&b"DISCARD"[..], b"UNWATCH"] {
            to.write_all(&encoded(&[args])).expect("sent");
            answer(&mut from, &mut Vec::new());
            world.send(&mut client, &encoded(&[args]));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n\n"));
}

/// Conversations that random commands seldom have, one after the other, on each side from an empty table on.
const CONVERSATIONS: &[&[&str]] = &[
    &[
        "SET k abc",
        "BITCOUNT k -1 -5 FOO",
        "BITCOUNT k -1 -5 BIT x",
        "BITCOUNT k -1 x FOO",
        "BITCOUNT k 5 1 FOO",
        "BITCOUNT k -5 -1 FOO",
        "BITCOUNT k -1 -5 BIT",
        "BITCOUNT none -1 -5 FOO",
        "BITCOUNT none x y FOO",
        "BITCOUNT none 1",
    ],
    &["SET k v", "WATCH k", "GETEX k PERSIST", "MULTI", "GET k", "EXEC"],
    &["SET k v EX 100000", "WATCH k", "GETEX k PERSIST", "MULTI", "GET k", "EXEC"],
    &["SET k v", "WATCH k", "GETEX k", "PERSIST k", "EXPIRE k 100000 XX", "MULTI", "GET k", "EXEC"],
    &["SET k v", "WATCH k", "GETEX k EXAT 4102444800", "MULTI", "GET k", "EXEC"],
    &["WATCH none", "GETEX none PERSIST", "PERSIST none", "MULTI", "PING", "EXEC"],
    &["SET k v EX 100000", "GETEX k PERSIST", "TTL k", "GETEX k PERSIST", "TTL k"],
];

#[test]
fn a_real_redis_says_the_same_in_these_conversations() {
    let Some((_redis, stream)) = start() else {
        eprintln!("skipped: no redis-server (Debian package redis-server)");
        return;
    };
    let mut to = stream.try_clone().expect("a second handle");
    let mut from = BufReader::new(stream);
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    for conversation in CONVERSATIONS {
        for line in ["FLUSHALL"].iter().chain(*conversation) {
            let bytes = format!("{line}\r\n").into_bytes();
            to.write_all(&bytes).expect("sent");
            let mut theirs = Vec::new();
            answer(&mut from, &mut theirs);
            let ours = world.send(&mut client, &bytes).0;
            let (theirs, ours) = (String::from_utf8_lossy(&theirs), String::from_utf8_lossy(&ours));
            assert_eq!(ours, theirs, "{line} of {conversation:?}");
        }
    }
}

/// A command as a person types it, with all in quotes.
fn typed(args: &[String]) -> Vec<u8> {
    let words: Vec<_> = args.iter().map(|arg| format!("\"{}\"", arg.escape_default())).collect();
    (words.join(" ") + "\r\n").into_bytes()
}

/// A command, or now and then one that begins or ends a transaction.
fn wrapped(random: &mut StdRng) -> Vec<String> {
    let words = match random.random_range(0..40) {
        0 => "MULTI",
        1 | 2 => "EXEC",
        3 => {
            choose(random, &["DISCARD", "WATCH a b", "UNWATCH", "MULTI", "WATCH", "PING", "PING x", "ECHO x", "TIME x"])
        }
        _ => return command(random),
    };
    words.split(' ').map(str::to_owned).collect()
}
