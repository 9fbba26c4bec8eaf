//! Promise: clients of Redis and memcached use a table with a backing as any other: what memory does not have is loaded
//! once, however many ask, each answer comes in its place, and a write is answered when the backing has it. What such a
//! table cannot do is refused by what is wrong.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::spill_clients::{MEMCACHED, REDIS, RawClient, bulk};
use crate::common::{Wire, data_plane_with, eventually, tenant_with};
use sandstorm_backing::faulty::FaultyObjects;
use sandstorm_backing::{BackingStats, MemoryObjects, ObjectRecord, ObjectStore, WriteCondition, object_name};
use sandstorm_catalog::{BackingAlteration, BackingPolicy, BackingSettings, NewTable, QuotaChanges};
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{Operation, RpcStatus};
use sandstorm_store::StorageMode;

const BACKED: u64 = 2;

/// A server with ports for both protocols on its table with a backing, and what is behind it.
struct Bench {
    plane: DataPlane,
    tenant: u32,
    objects: Arc<MemoryObjects>,
    faults: Arc<FaultyObjects>,
}

impl Bench {
    fn new(settings: &BackingSettings) -> Bench {
        let plane = data_plane_with(
            "workers = 2\npin = false\n[[redis]]\naddress = '127.0.0.1:0'\ntenant = 'a'\ntable = 'backed'\n\
             [[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'a'\ntable = 'backed'\n",
        );
        plane.directory.open_backings().expect("threads");
        let (tenant, _) = tenant_with(&plane, "a", true, QuotaChanges::default());
        let backing = Some(settings.clone());
        let table = NewTable { id: Some(BACKED), mode: StorageMode::Cache, backing, ..NewTable::named("backed") };
        plane.directory.create_table("a", table).expect("a table");
        let objects = Arc::new(MemoryObjects::default());
        let faults = FaultyObjects::new(Arc::clone(&objects) as Arc<dyn ObjectStore>, 1);
        let bench = Bench { plane, tenant, objects, faults };
        bench.with_backing(|backing| backing.reopen(Arc::clone(&bench.faults) as Arc<dyn ObjectStore>));
        bench
    }

    fn with_policy(policy: BackingPolicy) -> Bench {
        Bench::new(&BackingSettings { policy, ..BackingSettings::of("memory:unused") })
    }

    fn with_backing<R>(&self, f: impl FnOnce(&sandstorm_backing::BackedTable) -> R) -> R {
        let snapshot = self.plane.directory.snapshot();
        let view = snapshot.iter().find(|view| &*view.tenant.name == "a").expect("the tenant");
        f(view.table_by_name("backed").and_then(|entry| entry.backing()).expect("a backing"))
    }

    fn stats(&self) -> BackingStats {
        self.with_backing(sandstorm_backing::BackedTable::stats)
    }

    fn set(&self, change: &BackingAlteration) {
        self.plane.directory.set_backing("a", "backed", change).expect("changed");
    }

    /// Puts an object behind the table, as another writer does.
    fn store(&self, key: &str, value: &str) {
        let record = ObjectRecord {
            writer: 7,
            version: 1,
            expires_at_ms: 0,
            flags: 5,
            key: key.as_bytes(),
            value: value.as_bytes(),
        };
        let name = object_name(key.as_bytes());
        self.objects.put(&name, &record.encode(), &WriteCondition::Always).expect("stored");
    }

    /// What is behind the table.
    fn stored(&self, key: &str) -> Option<String> {
        let object = self.objects.get(&object_name(key.as_bytes()), 1 << 20).expect("memory")?;
        let record = ObjectRecord::decode(&object.bytes, key.as_bytes()).expect("an object");
        Some(String::from_utf8(record.value.to_vec()).expect("text"))
    }

    fn client(&self, port: usize) -> RawClient {
        RawClient::new(&self.plane, port)
    }
}

/// Reads up to the end of a line.
fn line(client: &mut RawClient) -> String {
    let mut line = String::new();
    while !line.ends_with('\n') {
        line += &client.read(1);
    }
    line
}

#[test]
fn redis_clients_read_and_change_what_is_behind_the_table() {
    let bench = Bench::with_policy(BackingPolicy::WriteThrough);
    let mut redis = bench.client(REDIS);
    (0..300).for_each(|number| bench.store(&format!("k{number}"), &format!("v{number}")));
    for (key, value) in [("counter", "41"), ("float", "1.5"), ("bits", "ab"), ("from", "moved"), ("text", "x")] {
        bench.store(key, value);
    }
    // A pipeline over what is behind, what is in memory and what is nowhere, in its order.
    redis.expect("SET hot 1\r\n", "+OK\r\n");
    let commands = (0..60_u32).map(|number| match number % 3 {
        0 => ("GET hot\r\n".to_owned(), bulk("1")),
        1 => (format!("GET k{number}\r\n"), bulk(&format!("v{number}"))),
        _ => (format!("GET nothing{number}\r\n"), "$-1\r\n".to_owned()),
    });
    let (sent, expected): (Vec<_>, Vec<_>) = commands.unzip();
    redis.expect(&sent.concat(), &expected.concat());
    // More keys than a piece of a command has.
    let keys = |prefix: &str| (60..260_u32).map(|number| format!(" {prefix}{number}")).collect::<String>();
    let values: String = (60..260_u32).map(|number| bulk(&format!("v{number}"))).collect();
    redis.expect(&format!("MGET{}\r\n", keys("k")), &format!("*200\r\n{values}"));
    redis.expect(&format!("EXISTS k260 k261{}\r\n", keys("none")), ":2\r\n");
    redis.expect(&format!("DEL k262 k263 k262{}\r\n", keys("other")), ":2\r\n");
    assert_eq!((bench.stored("k262"), bench.stored("k264")), (None, Some("v264".to_owned())));
    // A plain put asks for nothing; what depends on what is there does, and is done once.
    let loads = bench.stats().loads;
    redis.expect(
        "SET k264 new\r\nSETEX k265 100 new\r\nMSET k266 a k267 b\r\nSET k268 c PX 100000\r\n",
        "+OK\r\n+OK\r\n+OK\r\n+OK\r\n",
    );
    assert_eq!(bench.stats().loads, loads);
    assert_eq!((bench.stored("k264"), bench.stored("k267")), (Some("new".to_owned()), Some("b".to_owned())));
    redis.expect("INCR counter\r\nINCRBYFLOAT float 1\r\nAPPEND k270 !\r\n", ":42\r\n$3\r\n2.5\r\n:5\r\n");
    redis.expect("SETNX k271 x\r\nSET k272 x NX\r\nSET new1 x NX\r\nSETNX new2 y\r\n", ":0\r\n$-1\r\n+OK\r\n:1\r\n");
    redis.expect("SET k273 x XX\r\nSET none1 x XX\r\n", "+OK\r\n$-1\r\n");
    redis.expect(
        "GETSET k274 new\r\nGETDEL k275\r\nGETRANGE k276 1 2\r\nSTRLEN k277\r\n",
        "$4\r\nv274\r\n$4\r\nv275\r\n$2\r\n27\r\n:4\r\n",
    );
    redis.expect("MSETNX fresh1 a k278 b\r\nMSETNX fresh2 a fresh3 b\r\n", ":0\r\n:1\r\n");
    redis.expect("RENAME from into\r\nCOPY text copied\r\nBITOP OR both bits text\r\n", "+OK\r\n:1\r\n:2\r\n");
    redis.expect(
        "RENAMENX k279 k280\r\nPEXPIRE k281 60000\r\nPERSIST k281\r\nTTL k281\r\nTYPE k282\r\n",
        ":0\r\n:1\r\n:1\r\n:-1\r\n+string\r\n",
    );
    for (key, value) in [
        ("counter", Some("42")),
        ("k270", Some("v270!")),
        ("k275", None),
        ("fresh1", None),
        ("fresh3", Some("b")),
        ("from", None),
        ("into", Some("moved")),
        ("copied", Some("x")),
    ] {
        assert_eq!(bench.stored(key).as_deref(), value, "{key}");
    }
    // What another writer has put there counts as well: nothing is known of it here.
    redis.expect("INCR fresh4\r\n", ":1\r\n");
    assert_eq!(bench.stats().load_errors, 0);
}

#[test]
fn transactions_of_redis_clients_load_what_they_need_before_anything_is_done() {
    let bench = Bench::with_policy(BackingPolicy::WriteThrough);
    let mut redis = bench.client(REDIS);
    (0..100).for_each(|number| bench.store(&format!("k{number}"), &format!("v{number}")));
    bench.store("counter", "41");
    redis.expect("WATCH k1 nothing k2\r\n", "+OK\r\n");
    let queued = "+QUEUED\r\n".repeat(6);
    redis.expect(
        "MULTI\r\nINCR counter\r\nSTRLEN k3\r\nAPPEND k4 x\r\nMSETNX k5 a n b\r\nSET k6 y\r\nDEL k7 none\r\n",
        &format!("+OK\r\n{queued}"),
    );
    redis.expect("EXEC\r\n", "*6\r\n:42\r\n:2\r\n:3\r\n:0\r\n+OK\r\n:1\r\n");
    assert_eq!((bench.stored("counter"), bench.stored("k7")), (Some("42".to_owned()), None));
    // A key that was watched while it was nowhere, and one that was behind the table.
    for key in ["nothing", "k2"] {
        redis.expect(&format!("WATCH {key}\r\n"), "+OK\r\n");
        bench.client(REDIS).expect(&format!("SET {key} other\r\n"), "+OK\r\n");
        redis.expect("MULTI\r\nINCR counter\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*-1\r\n");
    }
    // One that cannot be loaded: nothing of the transaction is done.
    bench.faults.is_gone.store(true, Relaxed);
    redis.expect("MULTI\r\nINCR counter\r\nGET k50\r\n", "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    redis.expect("EXEC\r\n", "-EXECABORT Transaction discarded because of:");
    assert!(line(&mut redis).contains("backing"));
    bench.faults.is_gone.store(false, Relaxed);
    assert!(eventually(|| !bench.stats().is_down));
    redis.expect("GET counter\r\n", "$2\r\n42\r\n");
    // Amounts are moved whole, by many at once, over accounts that are loaded meanwhile.
    (0..20).for_each(|number| bench.store(&format!("account{number}"), "100"));
    std::thread::scope(|scope| {
        for seed in 0..4_usize {
            let mut client = bench.client(REDIS);
            scope.spawn(move || {
                for step in 0..40 {
                    let (from, into) = ((seed * 7 + step) % 20, (seed * 3 + step * 11 + 1) % 20);
                    client.expect(
                        &format!("MULTI\r\nDECRBY account{from} 5\r\nINCRBY account{into} 5\r\nEXEC\r\n"),
                        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:",
                    );
                    line(&mut client);
                    line(&mut client);
                }
            });
        }
    });
    let sum: i64 = (0..20)
        .map(|number| bench.stored(&format!("account{number}")).expect("there"))
        .map(|sum| sum.parse::<i64>().expect("a number"))
        .sum();
    assert_eq!(sum, 2_000, "and the backing has all of it");
}

#[test]
fn memcached_clients_read_and_change_what_is_behind_the_table() {
    let bench = Bench::with_policy(BackingPolicy::WriteThrough);
    let mut client = bench.client(MEMCACHED);
    (0..200).for_each(|number| bench.store(&format!("k{number}"), &format!("v{number}")));
    bench.store("n", "41");
    let keys: String = (0..100).map(|number| format!(" k{number} none{number}")).collect();
    let values: String =
        (0..100).map(|number| format!("VALUE k{number} 5 {}\r\nv{number}\r\n", format!("v{number}").len())).collect();
    client.expect(&format!("get{keys}\r\n"), &format!("{values}END\r\n"));
    let loads = bench.stats().loads;
    client.expect("set k100 1 0 3\r\nnew\r\nms k101 3\r\nnew\r\n", "STORED\r\nHD\r\n");
    assert_eq!(bench.stats().loads, loads, "a plain set asks for nothing");
    assert_eq!((bench.stored("k100"), bench.stored("k101")), (Some("new".to_owned()), Some("new".to_owned())));
    client.expect("incr n 1\r\ndecr n 2\r\nincr none 1\r\n", "42\r\n40\r\nNOT_FOUND\r\n");
    client.expect(
        "add k102 0 0 1\r\nx\r\nadd made 0 0 1\r\nx\r\nreplace k103 0 0 1\r\ny\r\nreplace gone 0 0 1\r\ny\r\n",
        "NOT_STORED\r\nSTORED\r\nSTORED\r\nNOT_STORED\r\n",
    );
    client.expect(
        "append k104 0 0 1\r\n!\r\nprepend k105 0 0 1\r\n!\r\nget k104 k105\r\n",
        "STORED\r\nSTORED\r\nVALUE k104 5 5\r\nv104!\r\nVALUE k105 5 5\r\n!v105\r\nEND\r\n",
    );
    client.expect(
        "delete k106\r\ndelete k106\r\ndelete none7\r\ntouch k107 100\r\n",
        "DELETED\r\nNOT_FOUND\r\nNOT_FOUND\r\nTOUCHED\r\n",
    );
    client.expect("cas k108 0 0 1 12345\r\nx\r\ncas none8 0 0 1 1\r\nx\r\n", "EXISTS\r\nNOT_FOUND\r\n");
    client.expect("gets k109\r\n", "VALUE k109 5 4 ");
    let number = line(&mut client).trim().to_owned();
    client.expect("", "v109\r\nEND\r\n");
    client.expect(&format!("cas k109 0 0 1 {number}\r\nx\r\n"), "STORED\r\n");
    client.expect(
        "mg k110 v\r\nmg nowhere v\r\nma n D5\r\nmd k111\r\nms k112 1 ME\r\nx\r\n",
        "VA 4\r\nv110\r\nEN\r\nHD\r\nHD\r\nNS\r\n",
    );
    client.expect("gat 100 k113\r\n", "VALUE k113 5 4\r\nv113\r\nEND\r\n");
    for (key, value) in [
        ("n", Some("45")),
        ("k103", Some("y")),
        ("k104", Some("v104!")),
        ("k106", None),
        ("k109", Some("x")),
        ("k111", None),
    ] {
        assert_eq!(bench.stored(key).as_deref(), value, "{key}");
    }
    client.expect(
        "flush_all\r\nflush_all 10\r\n",
        &"SERVER_ERROR a table with a backing is not emptied as a whole\r\n".repeat(2),
    );
    assert_eq!(bench.stats().load_errors, 0);
}

#[test]
fn a_key_is_loaded_once_however_many_ask_and_an_absent_one_is_remembered() {
    let bench = Bench::with_policy(BackingPolicy::ReadThrough);
    bench.store("key", "value");
    bench.faults.slow_ms.store(200, Relaxed);
    let begun = Instant::now();
    let mut redis: Vec<RawClient> = (0..12).map(|_| bench.client(REDIS)).collect();
    let mut memcached: Vec<RawClient> = (0..12).map(|_| bench.client(MEMCACHED)).collect();
    std::thread::scope(|scope| {
        for client in &mut redis {
            scope.spawn(|| client.expect("GET key\r\nGET nothing\r\n", "$5\r\nvalue\r\n$-1\r\n"));
        }
        for client in &mut memcached {
            scope.spawn(|| client.expect("get key nothing\r\n", "VALUE key 5 5\r\nvalue\r\nEND\r\n"));
        }
        // A request that needs nothing from there does not wait.
        let mut wire = Wire::new(&bench.plane, 0, bench.tenant);
        assert_eq!(wire.one(Operation::get(1, b"other")).status, RpcStatus::NotFound);
    });
    let took = begun.elapsed();
    assert_eq!((bench.faults.reads.load(Relaxed), bench.stats().loads), (2, 2), "one load a key");
    // All of them took longer than what is slow, and say what they waited for.
    let snapshot = bench.plane.directory.snapshot();
    let usage = &snapshot.by_name("a").expect("the tenant").tenant.usage;
    assert!(eventually(|| !usage.slow_requests.recent().is_empty()));
    for slow in usage.slow_requests.recent() {
        let waits = slow.waits;
        assert!(waits.backing_ns > 0 && waits.sum_ns() == waits.backing_ns, "{slow:?}");
        assert!(waits.backing_ns <= slow.waiting_ns && slow.subject.operation == "get", "{slow:?}");
    }
    redis[0].expect(&"GET nothing\r\n".repeat(50), &"$-1\r\n".repeat(50));
    assert_eq!(bench.stats().loads, 2, "what is absent is remembered");
    assert!(took >= Duration::from_millis(200), "{took:?}");
    // Read-through: clients write nothing; a delete has the table load the record anew.
    redis[0].expect("SET key x\r\n", "-READONLY ");
    assert!(line(&mut redis[0]).contains("read-through"));
    memcached[0].expect("set key 0 0 1\r\nx\r\n", "SERVER_ERROR the table's policy is read-through");
    assert!(line(&mut memcached[0]).contains("backing"));
    bench.store("key", "other");
    redis[0].expect("GET key\r\nDEL key\r\nGET key\r\n", "$5\r\nvalue\r\n:1\r\n$5\r\nother\r\n");
}

#[test]
fn a_backing_that_fails_or_has_too_much_to_take_has_its_answers() {
    let bench = Bench::new(&BackingSettings { dirty_limit_bytes: 4_000, ..BackingSettings::of("memory:unused") });
    let (mut redis, mut memcached) = (bench.client(REDIS), bench.client(MEMCACHED));
    redis.expect("SET there 1\r\n", "+OK\r\n");
    // More than may wait: nothing is changed, and what was there stays, also for memcached's clients.
    let long = "v".repeat(5_000);
    redis.expect(&format!("SET there {long}\r\n"), "-NOTBACKED ");
    assert!(line(&mut redis).contains("as many bytes wait"));
    memcached.expect(&format!("set there 0 0 5000\r\n{long}\r\n"), "SERVER_ERROR ");
    assert!(line(&mut memcached).contains("as many bytes wait"));
    redis.expect("GET there\r\n", "$1\r\n1\r\n");
    // A write whose backing fails is told, and the connection ends behind it: it may have been others' as well.
    bench.faults.is_gone.store(true, Relaxed);
    redis.expect("SET there 2\r\nGET there\r\n", "-MISCONF ");
    assert!(line(&mut redis).contains("backing does not have"));
    assert_eq!(redis.0.read(&mut [0; 8]).expect("the end"), 0);
    // It counts as down: further writes are refused at once, loads as well, and what is in memory is served.
    let (mut redis, mut other) = (bench.client(REDIS), bench.client(MEMCACHED));
    assert!(eventually(|| bench.stats().is_down));
    redis.expect("GET nowhere\r\n", "-ERR the table's backing does not answer");
    line(&mut redis);
    other.0.write_all(b"get nowhere\r\n").expect("sent");
    assert!(line(&mut other).starts_with("SERVER_ERROR the table's backing does not answer"));
    bench.faults.is_gone.store(false, Relaxed);
    assert!(eventually(|| bench.stored("there").as_deref() == Some("2")), "it is tried again");
    let mut redis = bench.client(REDIS);
    redis.expect("GET there\r\n", "$1\r\n2\r\n");
}

#[test]
fn what_needs_all_records_is_refused_and_empties_nothing() {
    let bench = Bench::with_policy(BackingPolicy::WriteThrough);
    let mut redis = bench.client(REDIS);
    redis.expect("SET key value\r\n", "+OK\r\n");
    for command in ["SCAN 0", "KEYS *", "RANDOMKEY"] {
        redis.expect(&format!("{command}\r\n"), "-ERR the table is in front of a backing");
        assert!(line(&mut redis).contains("not listed"), "{command}");
    }
    redis.expect("FLUSHDB\r\n", "-ERR ");
    assert!(line(&mut redis).contains("not emptied as a whole"));
    let mut wire = Wire::new(&bench.plane, 0, bench.tenant);
    assert_eq!(wire.one(Operation::put(1, b"other", b"1")).status, RpcStatus::Ok);
    redis.expect("FLUSHALL\r\n", "-ERR one of the tables is in front of a backing");
    line(&mut redis);
    redis.expect("MULTI\r\nFLUSHALL\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*1\r\n-ERR one of the tables");
    line(&mut redis);
    assert_eq!(wire.one(Operation::get(1, b"other")).value, b"1", "no other table is emptied either");
    redis.expect("GET key\r\nDBSIZE\r\n", "$5\r\nvalue\r\n:1\r\n");
    // A change of the policy holds for the next command.
    bench.set(&BackingAlteration { policy: Some(BackingPolicy::ReadThrough), ..BackingAlteration::default() });
    redis.expect("INCRBY key 1\r\n", "-ERR value is not an integer");
    line(&mut redis);
    redis.expect("APPEND key x\r\n", "-READONLY ");
    line(&mut redis);
}

#[test]
fn times_to_live_are_read_and_changed_behind_the_table_too() {
    let bench = Bench::with_policy(BackingPolicy::WriteThrough);
    let mut wire = Wire::new(&bench.plane, 0, bench.tenant);
    let lives = |key: &str| {
        let object = bench.objects.get(&object_name(key.as_bytes()), 1 << 20).expect("memory").expect("an object");
        ObjectRecord::decode(&object.bytes, key.as_bytes()).expect("an object").expires_at_ms
    };
    ["read", "touched"].iter().for_each(|key| bench.store(key, "v"));
    let ttl = wire.one(Operation::ttl(BACKED, b"read"));
    assert_eq!((ttl.status, ttl.number), (RpcStatus::Ok, 0), "{}", ttl.text());
    let touched = wire.one(Operation::touch(BACKED, b"touched", 10_000_000));
    assert_eq!(touched.status, RpcStatus::Ok, "{}", touched.text());
    assert_eq!((lives("read"), lives("touched") > 0), (0, true));
    assert_eq!(bench.stored("touched").as_deref(), Some("v"));
    assert!(wire.one(Operation::ttl(BACKED, b"touched")).number > 1);
    assert_eq!(wire.one(Operation::touch(BACKED, b"touched", 0)).status, RpcStatus::Ok);
    assert_eq!(lives("touched"), 0);
    // What is nowhere is asked for behind the table, and is nowhere.
    let nowhere = [Operation::ttl(BACKED, b"nowhere"), Operation::touch(BACKED, b"nowhere", 1)];
    assert!(nowhere.iter().all(|operation| wire.one(*operation).status == RpcStatus::NotFound));
    // No order is known of what is behind.
    let count = wire.one(Operation::count(BACKED, b"", b""));
    assert!(count.status == RpcStatus::Malformed && count.text().contains("not ordered"), "{}", count.text());
    bench.set(&BackingAlteration { policy: Some(BackingPolicy::ReadThrough), ..BackingAlteration::default() });
    assert_eq!(wire.one(Operation::touch(BACKED, b"read", 1)).status, RpcStatus::ReadOnly);
}

#[test]
fn commands_that_change_several_keys_are_made_whole_or_not_at_all() {
    let bench = Bench::new(&BackingSettings { dirty_limit_bytes: 4_000, ..BackingSettings::of("memory:unused") });
    let mut redis = bench.client(REDIS);
    let long = "v".repeat(1_500);
    bench.store("from", &"v".repeat(3_600));
    bench.store("there", "1");
    // What was admitted stays dirty for as long as this takes, so that each later key would meet the bound.
    bench.faults.slow_ms.store(100, Relaxed);
    let refused = |redis: &mut RawClient, command: &str, kind: &str| {
        redis.expect(&format!("{command}\r\n"), kind);
        assert!(line(redis).contains("as many bytes wait"), "{command}");
    };
    refused(&mut redis, &format!("MSET a {long} b {long} c {long}"), "-NOTBACKED ");
    refused(&mut redis, &format!("MSETNX a {long} b {long} c {long}"), "-NOTBACKED ");
    redis.expect("EXISTS a b c\r\n", ":0\r\n");
    // Room for the new record, and none for the delete of the old one.
    refused(&mut redis, "RENAME from into", "-NOTBACKED ");
    refused(&mut redis, "RENAMENX from into", "-NOTBACKED ");
    redis.expect("EXISTS into from\r\nSTRLEN from\r\n", ":1\r\n:3600\r\n");
    let queue = |redis: &mut RawClient, commands: &[&str]| {
        redis.expect("MULTI\r\n", "+OK\r\n");
        commands.iter().for_each(|command| redis.expect(&format!("{command}\r\n"), "+QUEUED\r\n"));
    };
    let third = format!("SETEX c 100 {long}");
    queue(&mut redis, &["INCR there", &format!("MSET a {long} b 1"), "DEL nowhere", &third, "RENAME a d"]);
    refused(&mut redis, "EXEC", "-EXECABORT ");
    redis.expect("GET there\r\nEXISTS a b c d\r\n", "$1\r\n1\r\n:0\r\n");
    // What fits is made, also where a key is named more than once.
    bench.faults.slow_ms.store(0, Relaxed);
    redis.expect(&format!("MSET a {long} a x b {long}\r\n"), "+OK\r\n");
    queue(&mut redis, &["APPEND there 2", "APPEND there 3", "RENAME a d", "COPY d e", "DEL b"]);
    redis.expect("EXEC\r\n", "*5\r\n:2\r\n:3\r\n+OK\r\n:1\r\n:1\r\n");
    for (key, value) in [("there", Some("123")), ("a", None), ("b", None), ("d", Some("x")), ("e", Some("x"))] {
        assert_eq!(bench.stored(key).as_deref(), value, "{key}");
    }
    assert!(eventually(|| bench.stats().dirty_bytes == 0), "{:?}", bench.stats());
    // With read-through a transaction that writes is refused as a whole as well.
    bench.set(&BackingAlteration { policy: Some(BackingPolicy::ReadThrough), ..BackingAlteration::default() });
    queue(&mut redis, &["DEL there", "SET d y"]);
    redis.expect("EXEC\r\n", "-EXECABORT ");
    assert!(line(&mut redis).contains("read-through"));
    redis.expect("GET there\r\n", "$3\r\n123\r\n");
}

#[test]
fn a_command_over_several_keys_of_which_one_cannot_be_loaded_has_one_error_and_its_connection_stays() {
    let bench = Bench::with_policy(BackingPolicy::WriteThrough);
    let mut redis = bench.client(REDIS);
    (0..300).for_each(|number| bench.store(&format!("k{number}"), &format!("v{number}")));
    let keys = |count: usize| (0..count).map(|number| format!(" k{number}")).collect::<String>();
    let answer = |count: usize| -> String {
        let values = (0..count).map(|number| bulk(&format!("v{number}")));
        format!("*{count}\r\n{}", values.collect::<String>())
    };
    // The first pieces of each command are in memory, the further ones are not.
    redis.expect(&format!("MGET{}\r\n", keys(200)), &answer(200));
    bench.faults.is_gone.store(true, Relaxed);
    for name in ["MGET", "EXISTS", "TOUCH", "DEL", "UNLINK"] {
        redis.expect(&format!("{name}{}\r\n", keys(300)), "-ERR the table's backing does not answer");
        line(&mut redis);
        redis.expect("GET k0\r\nEXISTS k1 k199\r\n", "$2\r\nv0\r\n:2\r\n");
    }
    // A pipeline goes on behind it, and a connection that wants no answer gets none.
    redis.expect(
        &format!("CLIENT REPLY SKIP\r\nMGET{}\r\nGET k2\r\nMGET k3 k4\r\n", keys(300)),
        "$2\r\nv2\r\n*2\r\n$2\r\nv3\r\n$2\r\nv4\r\n",
    );
    bench.faults.is_gone.store(false, Relaxed);
    assert!(eventually(|| !bench.stats().is_down));
    redis.expect(&format!("MGET{}\r\nDEL{}\r\n", keys(300), keys(300)), &format!("{}:300\r\n", answer(300)));
    assert_eq!(bench.stored("k299"), None);
}
