//! Promise: records of tables with durability survive a kill of the server, in an order that existed: what is found is
//! what was asked up to some request, all that was on the disk is among it, and a transaction is whole or absent. Kills
//! the real binary with SIGKILL while a Redis client writes. `SANDSTORM_KILLS` sets how many times.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_client::control::{Control, DurabilityLevel, TableMode, TableSpec, TenantSpec, Trust};
use sandstorm_client::limits::CONTROL_TIMEOUT;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{ChangeKind, LogFolder, LogOptions, RecoveredLog};
use serde_json::Value;

use crate::restart::{command, state};

pub(super) const LONG: Duration = Duration::from_secs(60);

/// A server process with a port for Redis clients; killed when dropped.
pub(super) struct RecordServer {
    process: Child,
    pub(super) data: String,
    pub(super) redis: String,
    pub(super) memcached: String,
    pub(super) control: Control,
}

impl RecordServer {
    pub(super) fn start(folder: &Path) -> RecordServer {
        RecordServer::start_as(folder, "", &["--no-builder"]).0
    }

    /// With these lines of the configuration and these options. Returns what it says at its start, too.
    pub(super) fn start_as(folder: &Path, config: &str, more: &[&str]) -> (RecordServer, Value) {
        let port = "127.0.0.1:0=shop/items";
        let options = [&["--redis", port, "--memcached", port], more].concat();
        let mut process = command(folder, config, &options).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).expect("the server says where it is");
        let token = fs::read_to_string(state(folder).join("operator-token")).unwrap();
        let url = said["control_url"].as_str().unwrap();
        let control = Control::with_trust(url, Some(token.trim()), CONTROL_TIMEOUT, &Trust::default());
        let address = |name: &str| said[name][0].as_str().or(said[name].as_str()).unwrap().to_owned();
        let (data, redis, memcached) = (address("data"), address("redis"), address("memcached"));
        (RecordServer { process, data, redis, memcached, control }, said)
    }

    /// A server whose tenant has a table with durability.
    pub(super) fn with_table(folder: &Path, mode: TableMode) -> RecordServer {
        let server = RecordServer::start(folder);
        server.control.create_tenant(&TenantSpec { name: "shop".into(), open: true, ..TenantSpec::default() }).unwrap();
        let (name, durability) = ("items".to_owned(), DurabilityLevel::Interval);
        let new =
            TableSpec { name, mode, durability: Some(durability), quota_bytes: Some(8 << 20), ..TableSpec::default() };
        assert_eq!(server.control.create_table("shop", &new).unwrap().durability, durability);
        server
    }

    pub(super) fn connect(&self) -> RespConnection {
        let stream = TcpStream::connect(&self.redis).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        RespConnection { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    /// Ends it as an operator would, and waits.
    pub(super) fn stop(mut self) {
        self.control.shutdown().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for RecordServer {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

/// A connection that speaks RESP2.
pub(super) struct RespConnection {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl RespConnection {
    pub(super) fn send(&mut self, commands: &[Vec<String>]) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        for command in commands {
            write!(bytes, "*{}\r\n", command.len())?;
            command.iter().try_for_each(|word| write!(bytes, "${}\r\n{word}\r\n", word.len()))?;
        }
        self.stream.write_all(&bytes)
    }

    /// Reads an answer as text; nil is none. Elements of an array are read one by one.
    pub(super) fn answer(&mut self) -> std::io::Result<Option<String>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "$" if rest == "-1" => Ok(None),
            "$" => {
                let mut value = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.reader.read_exact(&mut value)?;
                value.truncate(value.len() - 2);
                Ok(Some(String::from_utf8(value).unwrap()))
            }
            "*" => {
                let elements: Result<Vec<_>, _> = (0..rest.parse::<usize>().unwrap()).map(|_| self.answer()).collect();
                Ok(Some(format!("{:?}", elements?)))
            }
            "-" => panic!("an error: {rest}"),
            _ => Ok(Some(rest.to_owned())),
        }
    }
}

/// A step of the client, which happens as a whole.
#[derive(Clone, Debug)]
enum ClientStep {
    Set(String, String),
    Increment(String),
    Delete(String),
    /// MULTI, two SETs, EXEC.
    SetTwo([String; 2], String),
}

/// The values by key.
type KeyValues = BTreeMap<String, String>;

impl ClientStep {
    fn random(random: &mut SmallRng, number: u64) -> ClientStep {
        let key = format!("key:{}", random.random_range(0..40));
        let value = format!("{number}:{}", "x".repeat(random.random_range(0..300)));
        match random.random_range(0..10) {
            0..=4 => ClientStep::Set(key, value),
            5..=6 => ClientStep::Increment(format!("count:{}", random.random_range(0..5))),
            7 => ClientStep::Delete(key),
            _ => ClientStep::SetTwo([format!("left:{number}"), format!("right:{number}")], value),
        }
    }

    fn commands(&self) -> Vec<Vec<String>> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self {
            ClientStep::Set(key, value) => vec![words(&["SET", key, value])],
            ClientStep::Increment(key) => vec![words(&["INCR", key])],
            ClientStep::Delete(key) => vec![words(&["DEL", key])],
            ClientStep::SetTwo([left, right], value) => {
                vec![words(&["MULTI"]), words(&["SET", left, value]), words(&["SET", right, value]), words(&["EXEC"])]
            }
        }
    }

    fn apply(&self, values: &mut KeyValues) {
        match self {
            ClientStep::Set(key, value) => drop(values.insert(key.clone(), value.clone())),
            ClientStep::Delete(key) => drop(values.remove(key)),
            ClientStep::Increment(key) => {
                let count = values.get(key).map_or(0, |count| count.parse::<u64>().unwrap());
                values.insert(key.clone(), (count + 1).to_string());
            }
            ClientStep::SetTwo(keys, value) => {
                keys.iter().for_each(|key| drop(values.insert(key.clone(), value.clone())));
            }
        }
    }
}

/// All values that a server has.
fn values_of(server: &RecordServer) -> KeyValues {
    let mut connection = server.connect();
    let ask = |connection: &mut RespConnection, words: &[&str]| {
        connection.send(&[words.iter().map(|word| (*word).to_owned()).collect()]).unwrap();
        connection.answer().unwrap()
    };
    let listed = ask(&mut connection, &["KEYS", "*"]).unwrap();
    let keys = listed.split('"').skip(1).step_by(2).map(str::to_owned);
    keys.map(|key| (key.clone(), ask(&mut connection, &["GET", &key]).expect("it is there"))).collect()
}

/// The value of a key in the log on the disk, as another process reads it while the server writes.
fn logged(folder: &Path, wanted: &str) -> Option<String> {
    let disk: Arc<dyn LogDisk> = Arc::new(LogFolder::read(&state(folder).join("log")));
    let mut found = None;
    let read = RecoveredLog::read(disk, LogOptions::default(), &mut |change, _| {
        if change.key == wanted.as_bytes() && change.kind == ChangeKind::Put {
            found = Some(String::from_utf8(change.value.to_vec()).unwrap());
        }
        Ok(())
    });
    // A frame may be under way at this moment.
    read.ok().and(found)
}

/// Writes steps until the server is killed after some of them. Returns all that were sent, and how many were known to
/// be on the disk.
fn write_and_kill(server: RecordServer, folder: &Path, random: &mut SmallRng, from: u64) -> (Vec<ClientStep>, usize) {
    let mut connection = server.connect();
    let (batches, mut steps, mut certain) = (random.random_range(5..60), Vec::new(), 0);
    for batch in 0..batches {
        let mut sent: Vec<ClientStep> =
            (0..random.random_range(1..20)).map(|_| ClientStep::random(random, from + steps.len() as u64)).collect();
        if batch == batches / 2 {
            sent.push(ClientStep::Set("mark".into(), from.to_string()));
        }
        let commands: Vec<_> = sent.iter().flat_map(ClientStep::commands).collect();
        let answers = commands.len();
        connection.send(&commands).unwrap();
        steps.extend(sent);
        if batch + 1 == batches {
            // No answer is awaited: the kill comes in the midst.
            break;
        }
        (0..answers).for_each(|_| drop(connection.answer().unwrap()));
        if batch == batches / 2 {
            let begun = Instant::now();
            while logged(folder, "mark") != Some(from.to_string()) {
                assert!(begun.elapsed() < LONG, "what nobody waits for is written, too");
                std::thread::sleep(Duration::from_millis(5));
            }
            certain = steps.len();
        }
    }
    drop(server);
    (steps, certain)
}

#[test]
fn records_survive_kills_up_to_a_moment_behind_all_that_was_on_the_disk() {
    let kills = std::env::var("SANDSTORM_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(6);
    let folder = tempfile::tempdir().unwrap();
    let (folder, mut random) = (folder.path(), SmallRng::seed_from_u64(kills));
    let (mut server, mut values, mut from) = (RecordServer::with_table(folder, TableMode::Store), KeyValues::new(), 0);
    for kill in 0..kills {
        let (steps, certain) = write_and_kill(server, folder, &mut random, from);
        from += steps.len() as u64 + 1;
        server = RecordServer::start(folder);
        let found = values_of(&server);
        let mut reached = None;
        for (number, step) in (1..).zip(&steps) {
            step.apply(&mut values);
            if number >= certain && values == found {
                reached = Some(number);
                break;
            }
        }
        assert!(reached.is_some(), "kill {kill}: {certain} of {} steps were on the disk; found {found:?}", steps.len());
    }
}

#[test]
fn a_server_that_is_stopped_keeps_every_write_that_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for mode in [TableMode::Store, TableMode::Cache] {
        let folder = folder.join(format!("{mode:?}"));
        fs::create_dir(&folder).unwrap();
        let server = RecordServer::with_table(&folder, mode);
        let (mut random, mut values) = (SmallRng::seed_from_u64(3), KeyValues::new());
        let mut connection = server.connect();
        for number in 0..300 {
            let step = ClientStep::random(&mut random, number);
            let commands = step.commands();
            connection.send(&commands).unwrap();
            (0..commands.len()).for_each(|_| drop(connection.answer().unwrap()));
            step.apply(&mut values);
        }
        server.stop();
        let server = RecordServer::start(&folder);
        assert_eq!(values_of(&server), values, "{mode:?}");
        // Dropped with its records, which do not come back in a table of the same name.
        server.control.drop_table("shop", "items").unwrap();
        let (name, durability) = ("items".to_owned(), DurabilityLevel::Interval);
        let again =
            TableSpec { name, mode, durability: Some(durability), quota_bytes: Some(8 << 20), ..TableSpec::default() };
        server.control.create_table("shop", &again).unwrap();
        server.stop();
        assert_eq!(values_of(&RecordServer::start(&folder)), KeyValues::new());
    }
}

#[test]
fn a_server_does_not_start_on_a_damaged_log_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = RecordServer::with_table(folder, TableMode::Store);
    let mut connection = server.connect();
    for number in 0..3 {
        connection.send(&ClientStep::Set(format!("k{number}"), "v".into()).commands()).unwrap();
        connection.answer().unwrap();
        while logged(folder, &format!("k{number}")).is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    server.stop();
    let log = state(folder).join("log");
    let mut segments: Vec<_> = fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("log-"));
    segments.sort();
    let segment = segments.last().unwrap();
    let whole = fs::read(segment).unwrap();
    let mut damaged = whole.clone();
    // The first frame is empty.
    damaged[2 * 4096 + 95] ^= 1;
    fs::write(segment, &damaged).unwrap();
    let options = ["--no-builder", "--redis", "127.0.0.1:0=shop/items"];
    let output = command(folder, "", &options).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let name = segment.file_name().unwrap().to_string_lossy().into_owned();
    assert!(!output.status.success() && said.contains(&name) && said.contains("damaged at byte"), "{said}");
    assert!(said.contains("changes of shop/items are there"), "{said}");
    fs::write(segment, &whole).unwrap();
    assert_eq!(values_of(&RecordServer::start(folder)).len(), 3);
}

#[test]
fn new_tables_have_the_durability_that_the_configuration_says_and_old_ones_keep_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let create = |server: &RecordServer, name: &str, mode, durability| {
        let new = TableSpec { name: name.into(), mode, durability, quota_bytes: Some(1 << 20), ..TableSpec::default() };
        server.control.create_table("shop", &new).map(|table| table.durability)
    };
    let (store, cache) = (TableMode::Store, TableMode::Cache);
    let (none, interval, disk) = (DurabilityLevel::None, DurabilityLevel::Interval, DurabilityLevel::Disk);
    let said = |server: &Value| (server["durability"]["store"].clone(), server["durability"]["cache"].clone());

    let (server, line) = RecordServer::start_as(folder.path(), "", &["--no-builder"]);
    assert_eq!(said(&line), ("interval".into(), "none".into()));
    server.control.create_tenant(&TenantSpec { name: "shop".into(), open: true, ..TenantSpec::default() }).unwrap();
    assert_eq!(create(&server, "items", store, None).unwrap(), interval);
    assert_eq!(create(&server, "views", cache, None).unwrap(), none);
    assert_eq!(create(&server, "scratch", store, Some(none)).unwrap(), none);
    drop(server);

    let config = "[durability]\nstore = \"disk\"\ncache = \"interval\"\n[[tenants]]\nname = \"shop\"\nopen = true\n\
                  tables = [{ name = \"scratch\" }, { name = \"made\" }, { name = \"plain\", durability = \"none\" }]\n";
    let (server, line) = RecordServer::start_as(folder.path(), config, &["--no-builder"]);
    assert_eq!(said(&line), ("disk".into(), "interval".into()));
    assert_eq!(create(&server, "later", cache, None).unwrap(), interval);
    let found = server.control.tables("shop").unwrap();
    let found: BTreeMap<_, _> = found.iter().map(|table| (table.name.as_str(), table.durability)).collect();
    let expected =
        [("items", interval), ("later", interval), ("made", disk), ("plain", none), ("scratch", none), ("views", none)];
    assert_eq!(found, expected.into_iter().collect());
    drop(server);

    // A server that keeps nothing says so, and its tables are in memory.
    let (server, line) = RecordServer::start_as(folder.path(), config, &["--no-builder", "--ephemeral"]);
    assert_eq!((said(&line), line["ephemeral"].as_bool()), (("none".into(), "none".into()), Some(true)));
    assert_eq!(create(&server, "items", store, None).unwrap(), none);
    let refused = create(&server, "orders", store, Some(disk)).unwrap_err().to_string();
    assert!(refused.contains("--ephemeral"), "{refused}");
}
