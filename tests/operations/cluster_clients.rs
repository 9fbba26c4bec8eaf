//! Promise (docs/cluster.md): a call with a key runs at the server that has the key, and once, while slots move between
//! servers: of the clients in Rust, Python and C, and of those that `ext generate` writes in TypeScript and Go, over
//! RESP and HTTP. What is missing on the machine is left out.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use sandstorm_client::{Client, Error, OpenOptions, TypedCallError};

use serde_json::{Value, json};

use super::cluster_dev::DevCluster;
use crate::common::process::binary;
use crate::common::{PATIENT, Stop, eventually, root};

/// Where the programs are.
const PROGRAMS: &str = "tests/operations/cluster_clients";

fn has(program: &str, argument: &str) -> bool {
    let found = Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success());
    if !found {
        println!("left out: there is no {program}");
    }
    found
}

/// Writes the client of `ext/bank`, and copies the program beside it.
fn write(folder: &Path, language: &str, client: &str, program: &str) {
    let bank = root().join("ext/bank");
    let output = binary().args(["ext", "generate", "--lang", language, "--folder"]).arg(bank).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(folder.join(client), output.stdout).unwrap();
    std::fs::copy(root().join(PROGRAMS).join(program), folder.join(program)).unwrap();
}

/// The programs of the languages that are here, each in a folder of its own: ready to be started.
fn programs(folder: &Path) -> Vec<Command> {
    let (mut programs, compiler) = (Vec::new(), std::env::var("SANDSTORM_TSC").unwrap_or_else(|_| "tsc".to_owned()));
    if has(&compiler, "--version") && has("node", "--version") {
        let folder = folder.join("typescript");
        std::fs::create_dir(&folder).unwrap();
        write(&folder, "typescript", "bank.ts", "use.ts");
        std::fs::write(folder.join("package.json"), "{\"type\": \"module\"}").unwrap();
        let options = ["--strict", "--target", "es2022", "--lib", "es2022,dom", "--module", "nodenext", "use.ts"];
        assert!(Command::new(compiler).args(options).current_dir(&folder).status().unwrap().success());
        let mut command = Command::new("node");
        command.arg("use.js").current_dir(&folder);
        programs.push(command);
    }
    if has("go", "version") {
        let folder = folder.join("go");
        std::fs::create_dir(&folder).unwrap();
        write(&folder, "go", "bank.go", "use_test.go");
        std::fs::write(folder.join("go.mod"), "module bank\n\ngo 1.18\n").unwrap();
        let mut command = Command::new("go");
        command.args(["test", "-timeout", "0", "."]).current_dir(&folder);
        command.env("GOCACHE", folder.join("cache")).env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local");
        programs.push(command);
    }
    if has("python3", "--version") {
        // Behind the Python client is the C one, which cargo has built beside this program.
        let _linked = sandstorm_c::interface::sandstorm_interface();
        let library = std::env::current_exe().unwrap().with_file_name("libsandstorm_c.so");
        let mut command = Command::new("python3");
        command.arg(root().join(PROGRAMS).join("use.py")).env("PYTHONPATH", root().join("clients/python/src"));
        command.env("SANDSTORM_CLIENT_LIBRARY", library).env("PYTHONDONTWRITEBYTECODE", "1");
        programs.push(command);
    }
    programs
}

/// Deposits again and again near many keys, until it is told to stop; how often all of them got one.
async fn deposit_by_rust(control: String, token: String, rounds: &AtomicBool, stop: &AtomicBool) {
    let options = OpenOptions { deadline: PATIENT, ..OpenOptions::new(&control, "dev", &token) };
    let (client, mut sums) = (Client::open_with(options).await.unwrap(), HashMap::<String, u64>::new());
    while !stop.load(Relaxed) {
        for number in 0..24 {
            let name = format!("rust:{number}");
            let near = client.calls_near(name.as_bytes());
            let sum = loop {
                match near.call::<_, u64>("bank.deposit", &json!({"name": name, "balance": 1})).await {
                    // Its slot was given away while it ran: its transaction has written nothing.
                    Err(TypedCallError::Request(error @ Error::Failed { .. }))
                        if error.kind() == Some("wrong_server") => {}
                    other => break other.unwrap(),
                }
            };
            let known = sums.entry(name).or_default();
            assert_eq!(sum, *known + 1);
            *known = sum;
        }
        rounds.store(true, Relaxed);
    }
}

/// A call over plain HTTP: the status and the body.
fn post(address: &str, token: &str, key: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = json!({"name": key, "balance": 1}).to_string();
    let head = format!(
        "POST /v1/call/dev/bank.deposit HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
         idempotency-key: {key}\r\nsandstorm-key: {key}\r\nsandstorm-timeout-ms: 60000\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

/// What docs/control.md says to do without a client: the answer names the server that has the key.
fn follow_by_hand(control: &str, token: &str) {
    let mut servers = vec![control.to_owned()];
    // Of so many keys each server has some.
    for number in 0..1_000 {
        let key = format!("hand:{number}");
        let (status, said) = post(control, token, &key);
        if status == 200 {
            assert_eq!(said, json!(1));
            continue;
        }
        assert_eq!((status, &said["code"]), (409, &json!("wrong_server")), "{said}");
        assert!(said["epoch"].as_u64().is_some_and(|epoch| epoch > 0), "{said}");
        let server = said["server"].as_str().unwrap().trim_start_matches("http://").to_owned();
        assert_eq!(post(&server, token, &key), (200, json!(1)));
        assert_eq!(post(&server, token, &key), (200, json!(1)), "it has run once");
        if !servers.contains(&server) {
            servers.push(server);
        }
        if servers.len() == 3 {
            return;
        }
    }
    panic!("not each server has a key: {servers:?}");
}

/// Ends with the test, whatever becomes of it.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _status = self.0.wait();
    }
}

/// The ids of the servers, in the order of their ports.
fn ids(cluster: &DevCluster) -> Vec<String> {
    (1..=3)
        .map(|server| {
            let status: Value = serde_json::from_str(&cluster.run(server, &["cluster", "status", "--json"])).unwrap();
            status["server"].as_str().unwrap().to_owned()
        })
        .collect()
}

/// Moves slots to a server, and waits until they are its own.
fn move_slots(cluster: &DevCluster, slots: &str, to: &str) {
    cluster.run(1, &["cluster", "move", slots, "--to", to]);
    let is_over = || {
        let status: Value = serde_json::from_str(&cluster.run(1, &["cluster", "status", "--json"])).unwrap();
        status["moves"].as_array().is_none_or(Vec::is_empty)
    };
    assert!(eventually(is_over), "slots {slots} do not move");
}

#[test]
fn calls_run_once_where_their_keys_are_while_slots_move() {
    let folder = tempfile::tempdir().unwrap();
    let programs = programs(folder.path());
    let Some(cluster) = DevCluster::start(&["--builder"]) else { return };
    cluster.run(1, &["table", "create", "accounts", "--tenant", "dev"]);
    let made: Value = serde_json::from_str(&cluster.run(1, &["tenant", "token", "dev", "--json"])).unwrap();
    let token = made["token"].as_str().unwrap();
    let bank = root().join("ext/bank");
    cluster.run(1, &["ext", "push", bank.to_str().unwrap(), "--tenant", "dev"]);
    for server in 2..=3 {
        assert!(eventually(|| cluster.output(server, &["ext", "show", "bank", "--tenant", "dev"]).status.success()));
    }
    follow_by_hand(&cluster.control(1), token);
    let stop = folder.path().join("stop");
    let mut running: Vec<RunningProgram> = Vec::new();
    for (number, mut command) in programs.into_iter().enumerate() {
        let ready = folder.path().join(format!("ready{number}"));
        let (server, control) = (1 + number as u16 % 3, cluster.control(1 + number as u16 % 3));
        command.env("RESP", format!("redis://127.0.0.1:{}", cluster.redis_port(server)));
        command.env("HTTP", format!("http://{control}")).env("CONTROL", control).env("TOKEN", token);
        command.env("READY", &ready).env("STOP", &stop);
        running.push(RunningProgram(command.spawn().unwrap()));
        let last = running.last_mut().unwrap();
        assert!(eventually(|| ready.exists() || !matches!(last.0.try_wait(), Ok(None))));
    }
    let (rounds, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let control = cluster.control(2);
        let (rounds, ends, token) = (&rounds, &ends, token.to_owned());
        let rust = scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(deposit_by_rust(control, token, rounds, ends));
        });
        let _ends = Stop(ends);
        assert!(eventually(|| rounds.load(Relaxed) || rust.is_finished()));
        let ids = ids(&cluster);
        for (slots, to) in [("0-16383", &ids[2]), ("0-8191", &ids[0]), ("4000-16383", &ids[1])] {
            move_slots(&cluster, slots, to);
            rounds.store(false, Relaxed);
            assert!(eventually(|| rounds.load(Relaxed) || rust.is_finished()), "no calls behind a move");
        }
    });
    std::fs::write(stop, "").unwrap();
    for program in &mut running {
        let mut status = None;
        assert!(eventually(|| {
            status = program.0.try_wait().unwrap();
            status.is_some()
        }));
        assert!(status.unwrap().success(), "a program failed: it has said why");
    }
}
