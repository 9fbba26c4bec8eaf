//! Promise (docs/cluster.md): a call with a key, of a client that `ext generate` writes in TypeScript or Go, runs at
//! the server that has the key, and once, while slots move between servers. What is missing on the machine is left
//! out.

use std::path::Path;
use std::process::{Child, Command};

use serde_json::Value;

use super::cluster_dev::DevCluster;
use crate::common::process::binary;
use crate::common::{eventually, root};

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
    programs
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
fn calls_of_generated_clients_run_once_where_their_keys_are_while_slots_move() {
    let folder = tempfile::tempdir().unwrap();
    let programs = programs(folder.path());
    if programs.is_empty() {
        return;
    }
    let Some(cluster) = DevCluster::start(&["--builder"]) else { return };
    cluster.run(1, &["table", "create", "accounts", "--tenant", "dev"]);
    let bank = root().join("ext/bank");
    cluster.run(1, &["ext", "push", bank.to_str().unwrap(), "--tenant", "dev"]);
    for server in 2..=3 {
        assert!(eventually(|| cluster.output(server, &["ext", "show", "bank", "--tenant", "dev"]).status.success()));
    }
    let stop = folder.path().join("stop");
    let mut running: Vec<RunningProgram> = Vec::new();
    for (number, mut command) in programs.into_iter().enumerate() {
        let ready = folder.path().join(format!("ready{number}"));
        let server = format!("redis://127.0.0.1:{}", cluster.redis_port(1 + number as u16));
        command.env("RESP", server).env("READY", &ready).env("STOP", &stop);
        running.push(RunningProgram(command.spawn().unwrap()));
        let last = running.last_mut().unwrap();
        assert!(eventually(|| ready.exists() || !matches!(last.0.try_wait(), Ok(None))));
    }
    let ids = ids(&cluster);
    for (slots, to) in [("0-16383", &ids[2]), ("0-8191", &ids[0]), ("4000-16383", &ids[1])] {
        move_slots(&cluster, slots, to);
    }
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
