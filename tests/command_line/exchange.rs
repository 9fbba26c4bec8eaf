//! Promise: what `sandstorm export` writes, `sandstorm import` makes again: keys, values, flags and times of any bytes,
//! of hashed and ordered tables, with durability and without. What cannot be taken is named. A Redis' strings and a
//! memcached's items come over as they are.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sandstorm_client::blocking::Client;
use sandstorm_client::control::ExportedRecord;
use sandstorm_client::{Config as ClientConfig, PutOptions};
use serde_json::Value;

use crate::common::ports::free_port;
use crate::common::process::Server;
use crate::common::{EVENTUALLY, Stop};

/// A key with what belongs to it: value, flags, and whether it expires.
type Records = BTreeMap<Vec<u8>, (Vec<u8>, u32, bool)>;

const LIFE_S: u64 = 3_600;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn server() -> Server {
    Server::start_as(&["--no-pin", "--workers", "1", "--no-builder"])
}

/// Runs a command; returns whether it succeeded, and all that it printed.
fn run(server: &Server, line: &[&str]) -> (bool, String) {
    let output = server.command().args(line).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn ok(server: &Server, line: &[&str]) -> String {
    let (succeeded, text) = run(server, line);
    assert!(succeeded, "{line:?}: {text}");
    text
}

/// A client of an open tenant.
fn client(server: &Server, tenant: &str) -> (Client, u64) {
    let id = server.json(&format!("tenant show {tenant}"))["id"].as_u64().unwrap() as u32;
    let table = server.json(&format!("table list --tenant {tenant}"))[0]["id"].as_u64().unwrap();
    (Client::connect(ClientConfig::new(server.data.parse().unwrap(), id)).unwrap(), table)
}

/// The records of a file, by table.
fn exported(text: &str) -> BTreeMap<String, Records> {
    let (mut tables, mut table) = (BTreeMap::new(), String::new());
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        if let Some(name) = value["table"]["name"].as_str() {
            table = name.to_owned();
            tables.insert(table.clone(), Records::new());
        } else if value["version"].is_u64() {
            let record: ExportedRecord = serde_json::from_value(value).unwrap();
            let (key, value) = (record.key_bytes().unwrap().into_owned(), record.value_bytes().unwrap().into_owned());
            if record.expires_at_ms != 0 {
                let left_ms = record.expires_at_ms.saturating_sub(now_ms());
                assert!((1..=LIFE_S * 1_000).contains(&left_ms), "{left_ms} ms are left");
            }
            let about = (value, record.flags, record.expires_at_ms != 0);
            assert_eq!(tables.get_mut(&table).unwrap().insert(key, about), None, "each record once");
        }
    }
    tables
}

fn records() -> impl Strategy<Value = Records> {
    let bytes = |most| {
        prop_oneof![
            "[ -~]{1,20}".prop_map(String::into_bytes),
            "\\PC{1,8}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 1..most),
        ]
    };
    let value =
        prop_oneof![4 => bytes(100), 1 => Just(Vec::new()), 1 => proptest::collection::vec(any::<u8>(), 40_000)];
    proptest::collection::btree_map(bytes(40), (value, any::<u32>(), any::<bool>()), 0..200)
}

#[test]
fn what_was_exported_is_imported() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let (file, again) = (folder.path().join("all.json"), folder.path().join("again.json"));
    let (file, again) = (file.to_str().unwrap(), again.to_str().unwrap());
    let mut runner = TestRunner::new(Config { cases: 6, failure_persistence: None, ..Config::default() });
    let cases = std::cell::Cell::new(0_u32);
    runner
        .run(&records(), |records| {
            let case = cases.replace(cases.get() + 1);
            let (from, to) = (format!("from{case}"), format!("to{case}"));
            ok(&server, &["tenant", "create", &from, "--open"]);
            ok(&server, &["tenant", "create", &to, "--open"]);
            let options: &[&str] =
                [&[][..], &["--ordered"], &["--durability", "interval", "--mode", "cache"]][case as usize % 3];
            ok(&server, &[&["table", "create", "items", "--quota", "64MiB", "--tenant", &from], options].concat());
            let (source, table) = client(&server, &from);
            for (key, (value, flags, expires)) in &records {
                let ttl = expires.then_some(Duration::from_secs(LIFE_S));
                source.put(table, key, value, &PutOptions { flags: *flags, ttl, ..PutOptions::default() }).unwrap();
            }
            ok(&server, &["export", "--all", file, "--tenant", &from]);
            let text = fs::read_to_string(file).unwrap();
            prop_assert_eq!(&exported(&text)["items"], &records);
            ok(&server, &["import", file, "--tenant", &to]);
            ok(&server, &["export", "items", again, "--tenant", &to]);
            prop_assert_eq!(&exported(&fs::read_to_string(again).unwrap())["items"], &records);
            let shown = |tenant: &str| {
                let mut table = server.json(&format!("table show items --tenant {tenant}"));
                for counter in ["bytes", "capacity", "id", "evictions", "expirations", "refusals"] {
                    table[counter] = Value::Null;
                }
                table
            };
            prop_assert_eq!(shown(&from), shown(&to), "the table is made as it was");
            // Once more changes nothing.
            ok(&server, &["import", file, "--keep-existing", "--tenant", &to]);
            Ok(())
        })
        .unwrap();
    assert!(cases.get() >= 6);
}

#[test]
fn a_table_larger_than_memory_is_exported_whole_and_stays_on_the_disk() {
    const RECORDS: u32 = 4_000;
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large.json");
    let file = file.to_str().unwrap();
    ok(&server, &["tenant", "create", "from", "--open"]);
    ok(&server, &["tenant", "create", "to", "--open"]);
    ok(&server, &["table", "create", "items", "--quota", "1MiB", "--mode", "spill", "--tenant", "from"]);
    let (source, table) = client(&server, "from");
    let value = |number: u32| vec![number as u8; 700 + number as usize % 600];
    let mut written = Records::new();
    for number in 0..RECORDS {
        let (key, flags, expires) = (number.to_le_bytes().to_vec(), number % 3, number % 5 == 0);
        let ttl = expires.then_some(Duration::from_secs(LIFE_S));
        let options = PutOptions { flags, ttl, ..PutOptions::default() };
        let until = Instant::now() + EVENTUALLY;
        // The disk may be slower than the writer.
        while let Err(error) = source.put(table, &key, &value(number), &options) {
            assert!(Instant::now() < until, "{error}");
        }
        written.insert(key, (value(number), flags, expires));
    }
    let spilled = |counter: &str| {
        server.json("table show items --tenant from")["spill"][counter].as_u64().expect("a table of this mode")
    };
    let (cold, reads) = (spilled("cold_records"), spilled("reads"));
    assert!(cold > u64::from(RECORDS) / 2, "{cold}");
    ok(&server, &["export", "items", file, "--tenant", "from"]);
    assert!(exported(&fs::read_to_string(file).unwrap())["items"] == written);
    assert!(spilled("cold_records") == cold && spilled("reads") >= reads + cold, "they stay where they are");
    ok(&server, &["import", file, "--tenant", "to"]);
    ok(&server, &["export", "items", file, "--tenant", "to"]);
    assert!(exported(&fs::read_to_string(file).unwrap())["items"] == written);
    // While others change the table, what they leave alone is there once; and reads are the tenant's quota.
    ok(&server, &["tenant", "set", "from", "--quota", "cold_reads_per_s=300"]);
    let (held, stop) = (spilled("held_by_quota"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            for number in (0..RECORDS).filter(|number| number % 4 == 0).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // One that the disk has no time for is left as it was.
                let _overloaded = source.put(table, &number.to_le_bytes(), b"changed", &PutOptions::default());
            }
        });
        ok(&server, &["export", "items", file, "--tenant", "from"]);
    });
    let now = exported(&fs::read_to_string(file).unwrap()).remove("items").unwrap();
    assert_eq!(now.len(), RECORDS as usize);
    for (key, record) in &now {
        let number = u32::from_le_bytes(key.as_slice().try_into().unwrap());
        let is_changed = number % 4 == 0 && record.0 == b"changed";
        assert!(is_changed || *record == written[key], "{number}");
    }
    assert!(spilled("held_by_quota") > held, "the export waits for the tenant's quota");
}

#[test]
fn what_cannot_be_taken_is_named_and_the_rest_is_imported() {
    let server = server();
    ok(&server, &["tenant", "create", "shop", "--open"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = path.to_str().unwrap();
    let header = r#"{"format":"sandstorm-export","format_version":1}"#;
    let table = r#"{"table":{"name":"t","ordered":true}}"#;
    let bad = [
        header,
        table,
        r#"{"key":"a","value":"1"}"#,
        r#"{"key":"b","valeu":"1"}"#,
        r#"{"key_base64":"?","value":"1"}"#,
        r#"{"key":"old","value":"1","expires_at_ms":1}"#,
        "nonsense",
        r#"{"key":"c","value":"2","flags":7}"#,
        r#"{"end_of_table":"t","records":6}"#,
        r#"{"end":true,"records":6}"#,
    ];
    fs::write(&path, bad.join("\n")).unwrap();
    let (succeeded, text) = run(&server, &["import", file]);
    assert!(!succeeded && text.contains("3 records were not taken"), "{text}");
    for at in ["line 4: ", "line 5: ", "line 7: ", "valeu"] {
        assert!(text.contains(at), "{at}: {text}");
    }
    assert_eq!(ok(&server, &["get", "t", "a", "c"]), "a\t1\nc\t2\n");
    assert!(run(&server, &["get", "t", "old"]).1.contains("no record"));
    // An import goes on at a line.
    fs::write(&path, [header, table, bad[2], r#"{"key":"d","value":"3"}"#].join("\n")).unwrap();
    ok(&server, &["del", "t", "a"]);
    let (succeeded, text) = run(&server, &["import", file, "--from-line", "4"]);
    assert!(!succeeded && text.contains("ends with line 4") && text.contains("cut off"), "{text}");
    assert_eq!(ok(&server, &["get", "t", "d"]), "3\n");
    assert!(run(&server, &["get", "t", "a"]).1.contains("no record"));
    for (lines, why) in [
        (vec![bad[2]], "no format"),
        (vec![r#"{"format":"sandstorm-export","format_version":9}"#], "version 9"),
        (vec![header, bad[2]], "before any table"),
        (vec![header, table, bad[2], r#"{"end_of_table":"t","records":2}"#], "some are missing"),
        (vec![], "cut off"),
    ] {
        fs::write(&path, lines.join("\n")).unwrap();
        let (succeeded, text) = run(&server, &["import", file]);
        assert!(!succeeded && text.contains(why), "{why}: {text}");
    }
    assert!(run(&server, &["import", file, "--redis", "127.0.0.1:1", "--table", "t"]).1.contains("cannot be used"));
    assert!(run(&server, &["export", "nothing", file]).1.contains("no table"));
}

/// Runs `import -` with these bytes; as `run`.
fn import_of_a_pipe(server: &Server, bytes: &[u8]) -> (bool, String) {
    let mut command = server.command();
    let piped = command.args(["import", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_file_that_was_cut_off_or_changed_is_refused_before_anything_of_it_is_imported() {
    let server = server();
    ok(&server, &["tenant", "create", "shop", "--open"]);
    ok(&server, &["table", "create", "t"]);
    for number in 0..50 {
        ok(&server, &["put", "t", &format!("key{number}"), "value"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = path.to_str().unwrap();
    ok(&server, &["export", "t", file]);
    ok(&server, &["table", "drop", "t"]);
    let whole = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let cut = lines[..30].join("\n") + "\n";
    let changed = whole.replacen("\"value\":\"value\"", "\"value\":\"eulav\"", 1);
    assert_ne!(changed, whole);
    for (bytes, why) in [(&cut, "ends with line 30"), (&changed, "checksum in line 54")] {
        fs::write(&path, bytes).unwrap();
        let (succeeded, text) = run(&server, &["import", file]);
        assert!(!succeeded && text.contains(why) && text.contains("nothing of it was imported"), "{text}");
        assert!(text.contains(file), "{text}");
        assert!(run(&server, &["table", "show", "t"]).1.contains("no table"), "not even the table is made");
        // What comes through a pipe is told at its end.
        let (succeeded, text) = import_of_a_pipe(&server, bytes.as_bytes());
        assert!(!succeeded && text.contains(why) && text.contains("what is there was imported"), "{text}");
        let first = serde_json::from_str::<Value>(lines[2]).unwrap();
        ok(&server, &["get", "t", first["key"].as_str().unwrap()]);
        ok(&server, &["table", "drop", "t"]);
    }
    // One without the end of its table: all that it has is written, as it says.
    let is_end_of_table = |line: &&&str| line.starts_with("{\"end_of_table\"");
    assert_eq!(lines.iter().filter(is_end_of_table).count(), 1);
    let without: Vec<&str> = lines.iter().copied().filter(|line| !is_end_of_table(&line)).collect();
    let (succeeded, text) = import_of_a_pipe(&server, (without.join("\n") + "\n").as_bytes());
    assert!(!succeeded && text.contains("what is there was imported"), "{text}");
    assert_eq!(server.json("table show t")["records"], 50);
    ok(&server, &["table", "drop", "t"]);
    // One that was changed on purpose.
    fs::write(&path, changed.replacen("\"format_version\":2", "\"format_version\":1", 1)).unwrap();
    ok(&server, &["import", file]);
    assert_eq!(server.json("table show t")["records"], 50);
    assert!(import_of_a_pipe(&server, whole.as_bytes()).0);
}

/// Another server, killed at the end.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Starts another server on a free port; `None`, and a line, if it is not installed.
fn peer(program: &str, arguments: &[&str]) -> Option<(Peer, String)> {
    let port = free_port().to_string();
    let arguments = arguments.iter().map(|argument| argument.replace("PORT", &port));
    let Ok(child) = Command::new(program).args(arguments).stdout(Stdio::null()).spawn() else {
        eprintln!("skipped: no {program} (Debian package {program})");
        return None;
    };
    let (peer, address) = (Peer(child), format!("127.0.0.1:{port}"));
    for _ in 0..6_000 {
        if TcpStream::connect(&address).is_ok() {
            return Some((peer, address));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the {program} that was started does not answer")
}

/// Sends lines, and reads as many lines of answers.
fn tell(address: &str, bytes: &[u8], answers: usize) {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (&stream).write_all(bytes).unwrap();
    let mut lines = BufReader::new(stream.take(1 << 20));
    for _ in 0..answers {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(!line.is_empty() && !line.contains("ERR"), "{line}");
    }
}

#[test]
fn a_redis_comes_over() {
    let arguments = ["--port", "PORT", "--bind", "127.0.0.1", "--save", "", "--requirepass", "secret", "--dir", "/tmp"];
    let Some((_redis, address)) = peer("redis-server", &arguments) else { return };
    let server = server();
    ok(&server, &["tenant", "create", "shop", "--open"]);
    ok(&server, &["table", "create", "items"]);
    let mut commands = b"AUTH secret\r\nSELECT 2\r\n".to_vec();
    for number in 0..2_000 {
        commands.extend_from_slice(format!("SET key:{number} value{number}\r\n").as_bytes());
    }
    commands.extend_from_slice(b"SET other x EX 3600\r\nSET \"bin\\x00\\xff\" \"\\x01\\n\"\r\nRPUSH list a b\r\nHSET hash f v\r\nSADD set a\r\nZADD zset 1 a\r\n");
    tell(&address, &commands, 2_008);
    let password = server.folder.path().join("password");
    fs::write(&password, "secret\n").unwrap();
    let password = password.to_str().unwrap();
    let base = ["import", "--redis", &address, "--table", "items", "--password-file", password, "--db", "2"];
    let (succeeded, text) = run(&server, &base);
    assert!(!succeeded, "types that cannot be imported make a status: {text}");
    assert!(text.contains("4 keys were skipped") && text.contains("hash, list, set, zset"), "{text}");
    let file = server.folder.path().join("file");
    ok(&server, &["export", "items", file.to_str().unwrap()]);
    let found = exported(&fs::read_to_string(&file).unwrap()).remove("items").unwrap();
    let mut expected: Records = (0..2_000)
        .map(|number| (format!("key:{number}").into_bytes(), (format!("value{number}").into_bytes(), 0, false)))
        .collect();
    expected.insert(b"other".to_vec(), (b"x".to_vec(), 0, true));
    expected.insert(b"bin\x00\xff".to_vec(), (b"\x01\n".to_vec(), 0, false));
    assert!(found == expected, "{} of {} records", found.len(), expected.len());
    ok(&server, &["table", "create", "some"]);
    let some = ["import", "--redis", &address, "--table", "some", "--password-file", password, "--db", "2"];
    ok(&server, &[&some[..], &["--match", "key:1?"]].concat());
    assert_eq!(server.json("table show some")["records"], 10);
    let (succeeded, text) = run(&server, &["import", "--redis", &address, "--table", "some"]);
    assert!(!succeeded && text.contains("NOAUTH"), "{text}");
    assert!(run(&server, &["import", "--redis", "127.0.0.1:1", "--table", "some"]).1.contains("the Redis at"));
}

#[test]
fn a_memcached_comes_over() {
    let Some((_memcached, address)) = peer("memcached", &["-p", "PORT", "-l", "127.0.0.1", "-u", "nobody"]) else {
        return;
    };
    let server = server();
    ok(&server, &["tenant", "create", "shop", "--open"]);
    ok(&server, &["table", "create", "items"]);
    let mut commands = Vec::new();
    let mut expected = Records::new();
    for number in 0..1_000_u32 {
        let (key, value, life_s) = (format!("key%{number}"), vec![number as u8; number as usize], number % 2 * 3_000);
        commands.extend_from_slice(format!("set {key} {number} {life_s} {}\r\n", value.len()).as_bytes());
        commands.extend_from_slice(&value);
        commands.extend_from_slice(b"\r\n");
        expected.insert(key.into_bytes(), (value, number, life_s != 0));
    }
    // A key that no text command can have.
    commands.extend_from_slice(b"ms AP8g 2 b\r\nhi\r\n");
    expected.insert(b"\x00\xff ".to_vec(), (b"hi".to_vec(), 0, false));
    tell(&address, &commands, 1_001);
    ok(&server, &["import", "--memcached", &address, "--table", "items"]);
    let file = server.folder.path().join("file");
    ok(&server, &["export", "items", file.to_str().unwrap()]);
    let found = exported(&fs::read_to_string(&file).unwrap()).remove("items").unwrap();
    assert!(found == expected, "{} of {} records", found.len(), expected.len());
    assert!(run(&server, &["import", "--memcached", "127.0.0.1:1", "--table", "items"]).1.contains("the memcached at"));
}
