//! Promise: a client that asks for a cold record waits for it, and gets it: clients of Redis and memcached, each answer
//! in its place, and calls, whose records are read together. A command that waits has changed nothing.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::spill::{LARGE, fill, server, spill_table, stats, value};
use crate::common::{Wire, client, data_plane_with, eventually, load, load_with, tenant, tenant_with};
use sandstorm_catalog::QuotaChanges;
use sandstorm_client::PutOptions;
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{KillCause, Operation, RpcStatus, ttl_prefix};
use sandstorm_store::clock_ms;
use sandstorm_store::limits::RECLAIM_PRESSURE_BYTES;

/// A server with ports for Redis and memcached that act for the tenant, in its large table.
pub(super) fn server_with_ports(quotas: QuotaChanges) -> (DataPlane, u32, tempfile::TempDir) {
    let plane = data_plane_with(
        "workers = 1\npin = false\n[[redis]]\naddress = '127.0.0.1:0'\ntenant = 'a'\ntable = 'large'\n\
         [[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'a'\ntable = 'large'\n",
    );
    let folder = tempfile::tempdir().expect("a folder");
    plane.directory.open_spill_folder(folder.path()).expect("a folder");
    let (id, _) = tenant_with(&plane, "a", true, quotas);
    plane.directory.create_table("a", spill_table("large")).expect("a table");
    (plane, id, folder)
}

/// Ports are numbered so, whatever the order of the configuration.
pub(super) const MEMCACHED: usize = 0;
pub(super) const REDIS: usize = 1;

pub(super) struct RawClient(pub(super) TcpStream);

impl RawClient {
    pub(super) fn new(plane: &DataPlane, port: usize) -> RawClient {
        let stream = TcpStream::connect(plane.listening()[port]).expect("a connection");
        // A disk that others write to may stand still for a minute.
        stream.set_read_timeout(Some(Duration::from_secs(300))).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        RawClient(stream)
    }

    pub(super) fn read(&mut self, bytes: usize) -> String {
        let mut answer = vec![0; bytes];
        self.0.read_exact(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A line of an answer, without its end.
    pub(super) fn line(&mut self) -> String {
        let mut line = self.read(2);
        while !line.ends_with("\r\n") {
            line += &self.read(1);
        }
        line.trim_end().to_owned()
    }

    pub(super) fn send(&mut self, sent: &str) {
        self.0.write_all(sent.as_bytes()).expect("sent");
    }

    pub(super) fn expect(&mut self, sent: &str, expected: &str) {
        self.0.write_all(sent.as_bytes()).expect("sent");
        let answer = self.read(expected.len());
        assert_eq!(answer, expected, "{sent:.60}");
    }

    /// Sends a write until it is taken: the disk may be slower than the writes.
    pub(super) fn write(&mut self, sent: &str, done: &str) {
        loop {
            self.0.write_all(sent.as_bytes()).expect("sent");
            let mut answer = self.read(done.len());
            if answer == done {
                return;
            }
            while !answer.ends_with('\n') {
                answer += &self.read(1);
            }
            assert!(answer.contains("disk"), "{answer}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub(super) fn text_value(number: u32) -> String {
    format!("{number:05}-{}", "v".repeat(300 + number as usize % 700))
}

pub(super) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

pub(super) fn set(key: &str, value: &str) -> String {
    format!("*3\r\n$3\r\nSET\r\n{}{}", bulk(key), bulk(value))
}

#[test]
fn redis_clients_wait_for_cold_records() {
    let (plane, _, _folder) = server_with_ports(QuotaChanges::default());
    let mut redis = RawClient::new(&plane, REDIS);
    (0..8_000_u32).for_each(|number| redis.write(&set(&format!("k{number}"), &text_value(number)), "+OK\r\n"));
    assert!(stats(&plane).cold_records > 4_000);
    for number in (0..8_000).step_by(131) {
        redis.expect(&format!("GET k{number}\r\n"), &bulk(&text_value(number)));
    }
    // A pipeline over cold and hot keys and such that are not there, in its order.
    redis.expect("SET hot 1\r\n", "+OK\r\n");
    let commands = (0..60_u32).map(|number| match number % 3 {
        0 => ("GET hot\r\n".to_owned(), bulk("1")),
        1 => (format!("GET k{}\r\n", number * 17 + 9), bulk(&text_value(number * 17 + 9))),
        _ => ("GET nothing\r\n".to_owned(), "$-1\r\n".to_owned()),
    });
    let (sent, expected): (Vec<_>, Vec<_>) = commands.unzip();
    redis.expect(&sent.concat(), &expected.concat());
    // Many keys of one command, more than a part of it has, some of which are not there.
    let keys: Vec<String> = (0..200_u32).map(|number| format!("k{}", number * 41 + 1)).collect();
    let values = (0..200_u32).map(|number| number * 41 + 1).map(|number| match number < 8_000 {
        true => bulk(&text_value(number)),
        false => "$-1\r\n".to_owned(),
    });
    redis.expect(&format!("MGET {}\r\n", keys.join(" ")), &format!("*200\r\n{}", values.collect::<String>()));
    assert_eq!(stats(&plane).read_errors, 0);
}

#[test]
fn what_redis_clients_change_of_cold_records_is_changed_once() {
    let (plane, _, _folder) = server_with_ports(QuotaChanges::default());
    let mut redis = RawClient::new(&plane, REDIS);
    // Numbers whose records are as large as others: the zeros in front are no part of a number that Redis takes.
    redis.write("SET counter 41\r\n", "+OK\r\n");
    redis.write("SET float 1.5\r\n", "+OK\r\n");
    (0..8_000_u32).for_each(|number| redis.write(&set(&format!("k{number}"), &text_value(number)), "+OK\r\n"));
    let before = stats(&plane);
    // What does not need the old value reads nothing.
    redis.expect("EXISTS k1 k2 nothing\r\n", ":2\r\n");
    redis.expect("SETNX k1 x\r\n", ":0\r\n");
    redis.expect("SET k2 x XX\r\n", "+OK\r\n");
    redis.expect("SET k3 x NX\r\n", "$-1\r\n");
    redis.expect("MSET k4 a k5 b\r\n", "+OK\r\n");
    redis.expect("DEL k6 k7 k6 nothing\r\n", ":2\r\n");
    redis.expect("MSETNX new1 a k8 b\r\n", ":0\r\n");
    redis.expect("EXISTS new1 k6\r\n", ":0\r\n");
    redis.expect("TYPE k9\r\n", "+string\r\n");
    assert_eq!(stats(&plane).reads, before.reads);
    redis.expect("GET k2\r\nGET k4\r\nGET k7\r\n", "$1\r\nx\r\n$1\r\na\r\n$-1\r\n");
    // What does is done once, however often the command was run.
    redis.expect("INCR counter\r\n", ":42\r\n");
    redis.expect("INCRBYFLOAT float 1\r\n", "$3\r\n2.5\r\n");
    let appended = text_value(77).len() + 3;
    redis.expect("APPEND k77 abc\r\n", &format!(":{appended}\r\n"));
    redis.expect("GETRANGE k77 -3 -1\r\n", "$3\r\nabc\r\n");
    redis.expect("INCR k78\r\n", "-ERR value is not an integer or out of range\r\n");
    redis.expect("RENAME k80 renamed\r\n", "+OK\r\n");
    redis.expect("GET renamed\r\nGET k80\r\n", &format!("{}$-1\r\n", bulk(&text_value(80))));
    redis.expect("COPY k81 copied\r\n", ":1\r\n");
    redis.expect("GET copied\r\n", &bulk(&text_value(81)));
    redis.expect("GETSET k82 new\r\n", &bulk(&text_value(82)));
    redis.expect("GETDEL k83\r\n", &bulk(&text_value(83)));
    redis.expect("BITOP AND both k85 k86\r\n", &format!(":{}\r\n", text_value(86).len()));
    redis.expect("STRLEN k85\r\n", &format!(":{}\r\n", text_value(85).len()));
    // Answers that are not wanted, of commands that wait.
    redis.expect("CLIENT REPLY SKIP\r\nGET k90\r\nGET k91\r\n", &bulk(&text_value(91)));
    // Expiry, of a record that leaves memory with it.
    redis.expect("PEXPIRE k92 60000\r\nPERSIST k92\r\nTTL k92\r\n", ":1\r\n:1\r\n:-1\r\n");
    assert_eq!(stats(&plane).read_errors, 0);
}

#[test]
fn redis_clients_list_the_keys_of_cold_records_step_by_step() {
    const RECORDS: u32 = 6_000;
    let (plane, _, _folder) = server_with_ports(QuotaChanges::default());
    let mut redis = RawClient::new(&plane, REDIS);
    (0..RECORDS).for_each(|number| redis.write(&set(&format!("k{number}"), &text_value(number)), "+OK\r\n"));
    assert!(stats(&plane).cold_records > 3_000);
    for (options, expected) in [("COUNT 100", RECORDS), ("", RECORDS), ("MATCH k?? COUNT 1000", 90)] {
        let (mut cursor, mut found, mut steps) = ("0".to_owned(), BTreeSet::new(), 0);
        loop {
            redis.0.write_all(format!("SCAN {cursor} {options}\r\n").as_bytes()).expect("sent");
            assert_eq!(redis.line(), "*2");
            redis.line();
            cursor = redis.line();
            let keys: usize = redis.line().trim_start_matches('*').parse().expect("a number");
            found.extend((0..keys).map(|_| {
                redis.line();
                redis.line()
            }));
            steps += 1;
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found.len(), expected as usize, "{options} in {steps} steps");
        assert!(found.iter().all(|key| key.starts_with('k')));
    }
    // A key at random, most of them from the disk.
    let random: BTreeSet<_> = (0..50)
        .map(|_| {
            redis.0.write_all(b"RANDOMKEY\r\n").expect("sent");
            let head = redis.line();
            assert!(head.starts_with('$') && head != "$-1", "a key: {head}");
            redis.line()
        })
        .collect();
    assert!(random.len() > 20 && random.iter().all(|key| key.starts_with('k')), "{random:?}");
    // All at once they are not listed, and a transaction does not wait.
    redis.expect("KEYS *\r\n", "-ERR the table is larger than memory");
    redis.line();
    redis.expect("MULTI\r\nSCAN 0\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*1\r\n-ERR the table is larger than memory");
    redis.line();
    redis.expect("GET k7\r\n", &bulk(&text_value(7)));
    assert_eq!(stats(&plane).read_errors, 0);
}

#[test]
fn transactions_of_redis_clients_meet_cold_records() {
    let (plane, _, _folder) = server_with_ports(QuotaChanges::default());
    let mut redis = RawClient::new(&plane, REDIS);
    redis.write("SET counter 41\r\n", "+OK\r\n");
    (0..8_000_u32).for_each(|number| redis.write(&set(&format!("k{number}"), &text_value(number)), "+OK\r\n"));
    let queued = "+QUEUED\r\n".repeat(5);
    redis.expect("WATCH k83 k90\r\n", "+OK\r\n");
    redis.expect(
        "MULTI\r\nINCR counter\r\nSTRLEN k83\r\nAPPEND k84 x\r\nGET k85\r\nMSET k86 a k87 b\r\n",
        &format!("+OK\r\n{queued}"),
    );
    let (of_83, of_84) = (text_value(83).len(), text_value(84).len() + 1);
    redis.expect("EXEC\r\n", &format!("*5\r\n:42\r\n:{of_83}\r\n:{of_84}\r\n{}+OK\r\n", bulk(&text_value(85))));
    redis.expect("GET counter\r\nSTRLEN k84\r\nGET k87\r\n", &format!("$2\r\n42\r\n:{of_84}\r\n$1\r\nb\r\n"));
    // A watched record that another client has changed while it was cold.
    redis.expect("WATCH k4000\r\n", "+OK\r\n");
    RawClient::new(&plane, REDIS).expect("SET k4000 other\r\n", "+OK\r\n");
    redis.expect("MULTI\r\nAPPEND k4001 x\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*-1\r\n");
    redis.expect("STRLEN k4001\r\n", &format!(":{}\r\n", text_value(4001).len()));
    // Many cold records at once: all of them are in memory together, and nothing is done before.
    let many = |gets: u32| {
        let gets: String = (0..gets).map(|number| format!("GET k{}\r\n", number + 5_000)).collect();
        format!("MULTI\r\nINCR counter\r\n{gets}EXEC\r\n")
    };
    let values = |gets: u32| (0..gets).map(|number| bulk(&text_value(number + 5_000))).collect::<String>();
    redis.expect(&many(40), &format!("+OK\r\n{}*41\r\n:43\r\n{}", "+QUEUED\r\n".repeat(41), values(40)));
    // So many that memory may have no room for them together: then it is refused as a whole.
    redis.expect(&many(900), &format!("+OK\r\n{}", "+QUEUED\r\n".repeat(901)));
    let done = match redis.read(1).as_str() {
        "*" => {
            let expected = format!("901\r\n:44\r\n{}", values(900));
            assert_eq!(redis.read(expected.len()), expected);
            44
        }
        _ => {
            let mut refused = String::new();
            while !refused.ends_with('\n') {
                refused += &redis.read(1);
            }
            assert!(refused.contains("left memory again"), "{refused}");
            43
        }
    };
    redis.expect("GET counter\r\n", &format!("$2\r\n{done}\r\n"));
    assert_eq!(stats(&plane).read_errors, 0);
}

#[test]
fn memcached_clients_wait_for_cold_records() {
    let (plane, _, _folder) = server_with_ports(QuotaChanges::default());
    let mut memcached = RawClient::new(&plane, MEMCACHED);
    memcached.write("set number 0 0 2\r\n41\r\n", "STORED\r\n");
    for number in 0..6_000_u32 {
        let value = text_value(number);
        memcached.write(&format!("set k{number} 7 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    }
    let found = |number: u32| format!("VALUE k{number} 7 {}\r\n{}\r\n", text_value(number).len(), text_value(number));
    for number in (0..6_000).step_by(111) {
        memcached.expect(&format!("get k{number}\r\n"), &format!("{}END\r\n", found(number)));
    }
    let keys: Vec<u32> = (0..60).map(|number| number * 93 + 5).collect();
    let named: Vec<String> = keys.iter().map(|key| format!("k{key}")).collect();
    let all: String = keys.iter().map(|key| found(*key)).collect();
    memcached.expect(&format!("get {} nothing\r\n", named.join(" ")), &format!("{all}END\r\n"));
    // Several in one packet, in their order.
    memcached.expect(
        "get k3001\r\nincr number 1\r\nget nothing\r\nget k3002\r\n",
        &format!("{}END\r\n42\r\nEND\r\n{}END\r\n", found(3001), found(3002)),
    );
    memcached.expect("append k50 0 0 1\r\nx\r\n", "STORED\r\n");
    memcached.expect("mg k50 s\r\n", &format!("HD s{}\r\n", text_value(50).len() + 1));
    memcached.expect("incr k51 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
    memcached.expect("mg k52 s f\r\n", &format!("HD s{} f7\r\n", text_value(52).len()));
    // A meta append to a cold record: it is there afterwards, and longer.
    memcached.expect("ms k53 1 MA\r\ny\r\n", "HD\r\n");
    memcached.expect("mg k53 s\r\n", &format!("HD s{}\r\n", text_value(53).len() + 1));
    memcached.expect("mg k54 s N30\r\n", &format!("HD s{}\r\n", text_value(54).len()));
    memcached.expect("touch k55 60\r\n", "TOUCHED\r\n");
    let value = text_value(56);
    memcached.expect("gat 60 k56\r\n", &format!("VALUE k56 7 {}\r\n{value}\r\nEND\r\n", value.len()));
    memcached.expect("add k57 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    memcached.expect("replace k58 0 0 1\r\nx\r\n", "STORED\r\n");
    memcached.expect("delete k59\r\n", "DELETED\r\n");
    memcached.expect("get k59\r\n", "END\r\n");
    // What the client asked for is counted once.
    let mut other = RawClient::new(&plane, MEMCACHED);
    other.0.write_all(b"stats\r\n").expect("sent");
    let mut text = String::new();
    while !text.ends_with("END\r\n") {
        text += &other.read(1);
    }
    let count = |name: &str| {
        let line = text.lines().find(|line| line.split(' ').nth(1) == Some(name)).expect("a line");
        line.rsplit(' ').next().expect("a number").trim().parse::<u64>().expect("a number")
    };
    assert_eq!(count("get_misses"), 3, "{text}");
    assert_eq!(stats(&plane).read_errors, 0);
}

#[test]
fn a_client_that_waits_for_the_disk_holds_up_no_other() {
    let quotas = QuotaChanges { cold_reads_per_s: Some(20), ..QuotaChanges::default() };
    let (plane, _, _folder) = server_with_ports(quotas);
    let (mut cold, mut hot) = (RawClient::new(&plane, REDIS), RawClient::new(&plane, REDIS));
    (0..6_000_u32).for_each(|number| cold.write(&set(&format!("k{number}"), &text_value(number)), "+OK\r\n"));
    hot.expect("SET hot 1\r\n", "+OK\r\n");
    let keys: Vec<String> = (0..40_u32).map(|number| format!("k{}", number * 50)).collect();
    let expected = (0..40_u32).map(|number| bulk(&text_value(number * 50))).collect::<String>();
    let (begun, mut answers) = (Instant::now(), 0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| cold.expect(&format!("MGET {}\r\n", keys.join(" ")), &format!("*40\r\n{expected}")));
        while !waits.is_finished() {
            hot.expect("GET hot\r\n", "$1\r\n1\r\n");
            answers += 1;
        }
        waits.join().expect("no panic");
    });
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(500) && answers > 100, "{answers} answers in {took:?}");
}

#[test]
fn calls_wait_for_cold_records_and_others_run_meanwhile() {
    let (plane, id, _folder) = server(QuotaChanges::default());
    let mut wire = Wire::new(&plane, 0, id);
    fill(&mut wire, 8_000);
    load(&plane, "a", "get", 1);
    let before = stats(&plane);
    let args = |key: &[u8]| [&LARGE.to_le_bytes()[..], key].concat();
    for number in (0..8_000_u32).step_by(97) {
        let answer = wire.one(Operation::invoke(b"get", &args(&number.to_le_bytes())));
        assert_eq!((answer.status, &answer.value), (RpcStatus::Ok, &value(number)), "{number}: {}", answer.text());
    }
    // Several calls of one message wait together; their answers are small, for one packet.
    let many: Vec<Vec<u8>> = (1..6_u32).map(|number| args(&(number * 1_000).to_le_bytes())).collect();
    let calls: Vec<_> = many.iter().map(|args| Operation::invoke(b"get", args)).collect();
    for (args, answer) in many.iter().zip(wire.ask(&calls)) {
        let number = u32::from_le_bytes(args[8..].try_into().expect("four bytes"));
        assert_eq!((answer.status, &answer.value), (RpcStatus::Ok, &value(number)), "{number}: {}", answer.text());
    }
    assert_eq!(wire.one(Operation::invoke(b"get", &args(b"nothing"))).status, RpcStatus::Failed);
    let after = stats(&plane);
    assert!(after.reads > before.reads + 50 && after.read_errors == 0, "{after:?}");
}

/// The arguments of `ext/total`: keys, then the table.
fn total_args(keys: &[Vec<u8>], table: &[u8]) -> Vec<u8> {
    let mut args = [keys.len(), keys.len() + 1].map(|count| (count as u32).to_le_bytes()).concat();
    for part in keys.iter().map(Vec::as_slice).chain([table]) {
        args.extend_from_slice(&(part.len() as u32).to_le_bytes());
        args.extend_from_slice(part);
    }
    args
}

/// Numbers with many zeros in front.
fn fill_with_numbers(wire: &mut Wire, records: u32) {
    for number in 0..records {
        while wire.one(Operation::put(LARGE, &number.to_le_bytes(), format!("{number:0>500}").as_bytes())).status
            != RpcStatus::Ok
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn thirty_cold_records_of_one_call_are_read_together() {
    // A read that is refused its turn waits for 50 ms: one after the other, thirty would take 1.5 s.
    let quotas = QuotaChanges { cold_reads_per_s: Some(20), ..QuotaChanges::default() };
    let (plane, id, _folder) = server(quotas);
    let mut wire = Wire::new(&plane, 0, id);
    fill_with_numbers(&mut wire, 8_000);
    load(&plane, "a", "total", 1);
    load(&plane, "a", "get", 1);
    assert_eq!(wire.one(Operation::put(1, b"hot", b"hot")).status, RpcStatus::Ok);
    let numbers = (0..30_u32).map(|number| number * 40).collect::<Vec<_>>();
    let keys: Vec<Vec<u8>> = numbers.iter().map(|number| number.to_le_bytes().to_vec()).collect();
    let args = total_args(&keys, b"large");
    let before = stats(&plane);
    // Endless reads of cold records beside it, and calls over what is hot, which do not wait for them.
    let (mut other, mut hot_answers, mut slowest) = (Wire::new(&plane, 1, id), 0, Duration::ZERO);
    let answer = std::thread::scope(|scope| {
        let waits = scope.spawn(move || wire.one(Operation::invoke(b"total", &args)));
        let hot = [&1_u64.to_le_bytes()[..], b"hot"].concat();
        while !waits.is_finished() {
            let begun = Instant::now();
            let answer = other.one(Operation::invoke(b"get", &hot));
            assert_eq!(answer.value, b"hot", "{}", answer.text());
            slowest = slowest.max(begun.elapsed());
            hot_answers += 1;
        }
        waits.join().expect("no panic")
    });
    let expected: u32 = numbers.iter().sum();
    assert_eq!((answer.status, answer.text()), (RpcStatus::Ok, expected.to_string()));
    let after = stats(&plane);
    assert_eq!((after.reads - before.reads, after.read_errors), (30, 0), "each is read once");
    assert!(hot_answers > 20 && slowest < Duration::from_secs(1), "{hot_answers} answers, the slowest {slowest:?}");
}

#[test]
fn a_call_that_waits_for_its_quota_holds_up_no_memory_that_others_replace() {
    // Its records take twenty seconds.
    let quotas = QuotaChanges { cold_reads_per_s: Some(2), ..QuotaChanges::default() };
    let (plane, id, _folder) = server(quotas);
    let mut wire = Wire::new(&plane, 0, id);
    fill_with_numbers(&mut wire, 8_000);
    // So that it is not ended for being under way for long, where 64 MiB take more than a second.
    let budget = BudgetOverride { total_us: Some(10_000_000), ..BudgetOverride::default() };
    load_with(&plane, "a", "total", 1, budget);
    let keys: Vec<Vec<u8>> = (0..40_u32).map(|number| (number * 40).to_le_bytes().to_vec()).collect();
    let args = total_args(&keys, b"large");
    let (bob, _) = tenant(&plane, "bob", true);
    let bob = client(&plane, bob);
    let (answer, written) = std::thread::scope(|scope| {
        let waits = scope.spawn(move || wire.one(Operation::invoke(b"total", &args)));
        assert!(eventually(|| plane.epochs.stats().pins > 0 && stats(&plane).held_by_quota > 0), "it waits");
        let (value, mut written) = (vec![7; 1 << 20], 0);
        while !waits.is_finished() {
            bob.put(1, b"key", &value, &PutOptions::default()).expect("bob is not refused");
            written += value.len() as u64;
        }
        (waits.join().expect("no panic"), written)
    });
    let (text, seen) = (answer.text(), (answer.status, answer.number));
    assert_eq!(seen, (RpcStatus::Killed, KillCause::ReclaimPressure as u64), "{text}");
    assert!(text.contains("held up memory reclamation") && written > RECLAIM_PRESSURE_BYTES, "{written} {text}");
    let left = || (plane.epochs.stats().limbo_bytes, plane.epochs.stats().pins);
    assert!(eventually(|| left() == (0, 0)), "{:?}", left());
}

#[test]
fn transactions_of_calls_meet_cold_records_and_move_each_amount_once() {
    let (plane, id, _folder) = server(QuotaChanges::default());
    let mut wire = Wire::new(&plane, 0, id);
    const ACCOUNTS: u64 = 200;
    let key = |number: u64| format!("{number:0>40}").into_bytes();
    for number in 0..ACCOUNTS {
        let put = wire.one(Operation::put(LARGE, &key(number), &100_u64.to_le_bytes()));
        assert_eq!(put.status, RpcStatus::Ok);
    }
    // What comes later pushes them out.
    fill(&mut wire, 6_000);
    load(&plane, "a", "transfer", 1);
    let before = stats(&plane);
    for number in 0..ACCOUNTS / 2 {
        let (from, to) = (key(number), key(number + ACCOUNTS / 2));
        let amount = 1 + number % 50;
        let table = LARGE.to_le_bytes();
        let from_len = (from.len() as u16).to_le_bytes();
        let args = [&table[..], &amount.to_le_bytes(), &from_len, &from, &to].concat();
        let answer = wire.one(Operation::invoke(b"transfer", &args));
        let expected = [(100 - amount).to_le_bytes(), (100 + amount).to_le_bytes()].concat();
        assert_eq!((answer.status, &answer.value), (RpcStatus::Ok, &expected), "{number}: {}", answer.text());
    }
    let after = stats(&plane);
    assert!(after.reads >= before.reads + ACCOUNTS / 2 && after.read_errors == 0, "{before:?} {after:?}");
    let sum = (0..ACCOUNTS).map(|number| {
        let answer = wire.one(Operation::get(LARGE, &key(number)));
        u64::from_le_bytes(answer.value.try_into().expect("eight bytes"))
    });
    assert_eq!(sum.sum::<u64>(), ACCOUNTS * 100);
}

#[test]
fn a_cold_record_expires_where_it_lies() {
    let (plane, id, _folder) = server(QuotaChanges::default());
    let mut wire = Wire::new(&plane, 0, id);
    let body = [&ttl_prefix(2_000)[..], &[7; 500]].concat();
    for number in 0..50_u32 {
        let key = [b"x", &number.to_le_bytes()[..]].concat();
        assert_eq!(wire.one(Operation::put_with_ttl(LARGE, &key, &body)).status, RpcStatus::Ok);
    }
    let gone_ms = clock_ms(0) + 2_050;
    fill(&mut wire, 6_000);
    while clock_ms(0) < gone_ms {
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = stats(&plane).reads;
    for number in 0..50_u32 {
        let key = [b"x", &number.to_le_bytes()[..]].concat();
        assert_eq!(wire.one(Operation::get(LARGE, &key)).status, RpcStatus::NotFound);
    }
    assert_eq!(stats(&plane).reads, before, "nothing is read for what has expired");
}
