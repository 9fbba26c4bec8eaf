//! Promise: while the disk of the log is full, each write to a table with durability is refused by name, in every
//! protocol and by calls; reads, and tables without durability, go on; the server takes writes again by itself once
//! there is room, and has all that it acknowledged after a kill. A server that does not start for want of room says so.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use sandstorm_client::blocking::Client;
use sandstorm_client::control::{DurabilityLevel, ExtensionSource, ExtensionSourceFile, TableSpec};
use sandstorm_client::{Config, Error, PutOptions};

use crate::common::disk::SmallDisk;
use crate::common::{EVENTUALLY, eventually};
use crate::disk::{MemcachedCounting, RedisCounting, TOKEN, start_with, stream, text};
use crate::records::{LONG, RecordServer};
use crate::restart::{command, state};

/// An extension that writes what is behind a `=` under what is before it, if there is one, and replies with the value.
const CALLED: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

/// Replies with the value under the key in `args`, or under that before a `=`, where it first writes what is behind.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (items, args) = (db.table(\"items\")?, core::str::from_utf8(args)?);
    let key = match args.split_once('=') {
        Some((key, value)) => {
            db.put(items, key.as_bytes(), value.as_bytes()).await?;
            key
        }
        None => args,
    };
    let record = db.get(items, key.as_bytes()).await?.ok_or(\"no such record\")?;
    db.reply(record.value())
}
";

/// The size of the disk: the builder's files and four segments of the log fit, and it is soon full.
const DISK: &str = "size=352m,mode=700";
/// The same for a server that writes little.
const SMALL_DISK: &str = "size=288m,mode=700";
/// Sizes of the values that use up the log's room: the last ones leave no room for any other.
const FILLING_BYTES: [usize; 3] = [60_000, 1_000, 10];
/// More values than the log's segments have room for.
const MOST_VALUES: usize = 20_000;
/// Room that is less than the log needs at a start.
const LITTLE_ROOM: u64 = 10 << 20;

/// A client of one protocol.
trait KeyClient {
    fn put(&mut self, key: &str, value: &str) -> Result<(), String>;
    fn get(&mut self, key: &str) -> Result<String, String>;
}

impl KeyClient for RedisCounting {
    fn put(&mut self, key: &str, value: &str) -> Result<(), String> {
        self.ask(&["SET", key, value]).map(drop)
    }

    fn get(&mut self, key: &str) -> Result<String, String> {
        self.ask(&["GET", key])?;
        Ok(self.line()?.trim_end().to_owned())
    }
}

impl KeyClient for MemcachedCounting {
    fn put(&mut self, key: &str, value: &str) -> Result<(), String> {
        let command = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        self.0.get_ref().write_all(command.as_bytes()).map_err(text)?;
        self.line().map(drop)
    }

    fn get(&mut self, key: &str) -> Result<String, String> {
        self.0.get_ref().write_all(format!("get {key}\r\n").as_bytes()).map_err(text)?;
        self.line()?;
        let value = self.line()?.trim_end().to_owned();
        self.line()?;
        Ok(value)
    }
}

/// Sandstorm's own protocol: requests of one record, or calls of [`CALLED`].
struct OwnClient {
    client: Client,
    table: u64,
    calls: bool,
}

impl OwnClient {
    fn call(&self, args: &str) -> Result<String, String> {
        let reply = self.client.invoke("keep", args.as_bytes()).map_err(text)?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }
}

impl KeyClient for OwnClient {
    fn put(&mut self, key: &str, value: &str) -> Result<(), String> {
        if self.calls {
            return self.call(&format!("{key}={value}")).map(drop);
        }
        self.client.put(self.table, key.as_bytes(), value.as_bytes(), &PutOptions::default()).map(drop).map_err(text)
    }

    fn get(&mut self, key: &str) -> Result<String, String> {
        if self.calls {
            return self.call(key);
        }
        let record = self.client.get(self.table, key.as_bytes()).map_err(text)?.ok_or("no such record")?;
        Ok(String::from_utf8_lossy(&record.value).into_owned())
    }
}

fn own_client(server: &RecordServer) -> Client {
    let tenant = server.control.tenant("shop").unwrap().id;
    Client::connect(Config::new(server.data.parse().unwrap(), tenant).token(TOKEN).deadline(LONG)).unwrap()
}

/// A client of each protocol, with its name, and what it is told when the disk is full.
fn clients(server: &RecordServer, table: u64) -> Vec<(&'static str, &'static str, Box<dyn KeyClient>)> {
    let own = |calls| -> Box<dyn KeyClient> { Box::new(OwnClient { client: own_client(server), table, calls }) };
    vec![
        ("own", "the disk of the server's log is full; reads go on", own(false)),
        ("call", "the disk of the server's log is full", own(true)),
        ("redis", "-MISCONF", Box::new(RedisCounting(stream(&server.redis), false))),
        (
            "memcached",
            "SERVER_ERROR the change cannot be kept on disk",
            Box::new(MemcachedCounting(stream(&server.memcached))),
        ),
    ]
}

/// Writes until there is no room for any value. Returns what was acknowledged last.
fn use_up_the_room(server: &RecordServer, table: u64) -> String {
    let client = own_client(server);
    let mut last = String::new();
    for bytes in FILLING_BYTES {
        let is_refused = (0..MOST_VALUES).any(|number| {
            let value = format!("{number:0>bytes$}");
            match client.put(table, b"filling", value.as_bytes(), &PutOptions::default()) {
                Ok(_) => last = value,
                Err(Error::OutOfMemory { text }) if text.contains("the disk of the server's log is full") => {
                    return true;
                }
                // The disk is slow for a moment.
                Err(Error::Overloaded) => {}
                Err(error) => panic!("a put of {bytes} bytes: {error}"),
            }
            false
        });
        assert!(is_refused, "{MOST_VALUES} values of {bytes} bytes have room");
    }
    last
}

#[test]
fn a_full_disk_refuses_durable_writes_by_name_in_every_protocol_and_ends_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let Some(disk) = SmallDisk::mount(state(folder), DISK) else { return };
    let (server, table) = start_with(folder, DurabilityLevel::Disk);
    drop(server);
    // Only this one has a builder.
    let server = RecordServer::start_as(folder, "", &[]).0;
    let files = vec![ExtensionSourceFile { path: "src/lib.rs".into(), text: CALLED.into() }];
    server.control.push("shop", "keep", &ExtensionSource { manifest: "name = \"keep\"".into(), files }).unwrap();
    let durability = Some(DurabilityLevel::None);
    let memory = TableSpec { name: "memory".into(), durability, quota_bytes: Some(1 << 20), ..TableSpec::default() };
    let memory = server.control.create_table("shop", &memory).unwrap().id;
    let mut clients = clients(&server, table);
    for (name, _, client) in &mut clients {
        client.put(name, "first").unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    disk.fill();
    let mut filling = use_up_the_room(&server, table);
    disk.fill();
    // Twice: a refused write leaves nothing, and is not the last one that is refused.
    for round in 0..2 {
        for (name, expected, client) in &mut clients {
            let refused = client.put(name, "second-try").expect_err(name);
            assert!(refused.contains(*expected), "round {round}, {name}: {refused}");
            assert_eq!(client.get(name).as_deref(), Ok("first"), "round {round}, {name}: reads go on");
        }
        let own = own_client(&server);
        own.put(memory, b"k", b"v", &PutOptions::default()).expect("a table in memory is written");
    }

    disk.make_room();
    for (name, _, client) in &mut clients {
        let begun = Instant::now();
        while let Err(refused) = client.put(name, "third") {
            assert!(begun.elapsed() < EVENTUALLY, "{name} goes on by itself: {refused}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(client.get(name).as_deref(), Ok("third"), "{name}");
    }
    // It is full a second time, and killed then: nothing of what was acknowledged is gone.
    disk.fill();
    filling = Some(use_up_the_room(&server, table)).filter(|last| !last.is_empty()).unwrap_or(filling);
    drop((clients, server));
    disk.make_room();
    let server = RecordServer::start(folder);
    let own = own_client(&server);
    let found = |key: &str| own.get(table, key.as_bytes()).unwrap().map(|found| found.value);
    for name in ["own", "call", "redis", "memcached"] {
        assert_eq!(found(name).as_deref(), Some(&b"third"[..]), "{name}");
    }
    assert!(found("filling").as_deref() == Some(filling.as_bytes()), "the last value that was acknowledged");
}

/// Waits until a process has ended by itself.
fn ended(mut process: Child) -> ExitStatus {
    let is_over = eventually(|| process.try_wait().unwrap().is_some());
    if !is_over {
        process.kill().unwrap();
    }
    let status = process.wait().unwrap();
    assert!(is_over, "it ends by itself");
    status
}

#[test]
fn a_server_that_has_no_room_to_start_its_log_says_how_much_it_needs_and_starts_once_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let Some(disk) = SmallDisk::mount(state(folder), SMALL_DISK) else { return };
    let (server, table) = start_with(folder, DurabilityLevel::Disk);
    own_client(&server).put(table, b"kept", b"value", &PutOptions::default()).unwrap();
    drop(server);
    // A start would take the room of the segment that is there for later use. A server that has run until its disk was
    // full has none.
    for entry in fs::read_dir(state(folder).join("log")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with(".spare-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    disk.fill();
    for left in [0, LITTLE_ROOM] {
        disk.leave(left);
        let errors = folder.join("errors");
        let mut command = command(folder, "", &["--no-builder"]);
        command.stdout(Stdio::null()).stderr(fs::File::create(&errors).unwrap());
        let status = ended(command.spawn().unwrap());
        let said = fs::read_to_string(&errors).unwrap();
        assert!(!status.success(), "{left} bytes: {said}");
        let log = state(folder).join("log");
        for part in [&*log.to_string_lossy(), "No space left on device", "needs 32 MiB"] {
            assert!(said.contains(part), "{left} bytes, {part:?}: {said}");
        }
    }
    disk.make_room();
    let server = RecordServer::start(folder);
    let found = own_client(&server).get(table, b"kept").unwrap().map(|found| found.value);
    assert_eq!(found.as_deref(), Some(&b"value"[..]));
}

/// What says that a write of the log has failed.
const LOG_FAILED: &str = "the log of the records has failed";

/// A server with one table, its data port, and the file that has its errors.
fn server_of_one_table(folder: &Path, config: &str) -> (Child, SocketAddr, PathBuf) {
    let tenant = "[[tenants]]\nname = \"shop\"\nid = 9\nopen = true\n\
                  tables = [{ name = \"items\", id = 4, durability = \"disk\" }]\n";
    let errors = folder.join("errors");
    let mut command = command(folder, &format!("{tenant}{config}"), &["--no-builder"]);
    let mut process = command.stderr(fs::File::create(&errors).unwrap()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).expect("the server says where it is");
    (process, said["data"].as_str().unwrap().parse().unwrap(), errors)
}

/// Has the next write of the log fail: its segments' room goes to another file, as where a disk has promised too much.
fn break_the_log(folder: &Path, disk: &SmallDisk) {
    for entry in fs::read_dir(state(folder).join("log")).unwrap() {
        let file = fs::OpenOptions::new().write(true).open(entry.unwrap().path()).unwrap();
        file.set_len(0).unwrap();
    }
    disk.fill();
}

#[test]
fn a_server_whose_log_has_failed_serves_reads_or_ends_as_its_configuration_says() {
    for (config, exits) in [("", false), ("[log]\non_failure = \"exit\"\n", true)] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let Some(disk) = SmallDisk::mount(state(folder), SMALL_DISK) else { return };
        let (mut process, data, errors) = server_of_one_table(folder, config);
        let client = Client::connect(Config::new(data, 9).deadline(LONG)).unwrap();
        client.put(4, b"kept", b"value", &PutOptions::default()).unwrap();
        break_the_log(folder, &disk);
        let value = vec![7; FILLING_BYTES[0]];
        client.put(4, b"lost", &value, &PutOptions::default()).expect_err("whether it is on the disk is unknown");
        if exits {
            let status = ended(process);
            let said = fs::read_to_string(&errors).unwrap();
            assert!(!status.success() && said.contains(LOG_FAILED) && said.contains("log-"), "{said}");
            continue;
        }
        let refused = client.put(4, b"more", b"v", &PutOptions::default()).unwrap_err().to_string();
        assert!(refused.contains("the server's log is closed"), "{refused}");
        assert_eq!(client.get(4, b"kept").unwrap().map(|found| found.value).as_deref(), Some(&b"value"[..]));
        assert!(process.try_wait().unwrap().is_none(), "it serves what it can");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
