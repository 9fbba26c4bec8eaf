//! Promise: `kills`, `events` and `ext logs` with `--follow` tell each thing once, as it comes, and go on; and a tenant
//! whose code writes lines without end takes no line from its neighbours, and is told what was left out.
//! A server that was stopped meanwhile may be started again at once.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};

use sandstorm_client::Config;
use sandstorm_client::blocking::Client;
use serde_json::Value;

use crate::common::process::Server;
use crate::common::{EVENTUALLY, PATIENT, Stop};

const MANIFEST: &str = "name = \"says\"\nversion = \"1.0.0\"\nedition = \"2024\"\napi = 1\n";
/// An extension that writes its argument into the log, as often as its first byte says in tens, or panics.
const SAYS: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (times, text) = args.split_first().ok_or(Error::invalid(\"a number and a text\"))?;
    let text = core::str::from_utf8(text)?;
    if *times == 0 {
        panic!(\"{text}\");
    }
    for at in 0..u32::from(*times) * 10 - 9 {
        info!(\"{text} {at}\");
    }
    db.reply(text.as_bytes())
}
";

/// A command that goes on until it is dropped.
struct FollowingCommand {
    process: Child,
    lines: Receiver<String>,
}

impl FollowingCommand {
    fn start(server: &Server, line: &str) -> FollowingCommand {
        let mut command = server.command();
        command.args(line.split_whitespace()).args(["--follow", "--json"]).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the command line");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let (said, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if said.send(line).is_err() {
                    return;
                }
            }
        });
        FollowingCommand { process, lines }
    }

    /// The next thing that it tells.
    fn next(&self) -> Value {
        let line = self.lines.recv_timeout(EVENTUALLY).expect("it goes on");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The next texts under a name, as many as there are.
    fn texts<const COUNT: usize>(&self, name: &str) -> [String; COUNT] {
        std::array::from_fn(|_| {
            let told = self.next();
            told[name].as_str().unwrap_or_else(|| panic!("{name} in {told}")).to_owned()
        })
    }
}

impl Drop for FollowingCommand {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Creates a tenant with the extension, whose kills have no consequences; returns a client of it.
fn tenant(server: &Server, name: &str, source: &Path) -> Client {
    let quotas = "--quota slow_after_kills=0 --quota suspend_after_kills=0";
    let made = server.json(&format!("tenant create {name} {quotas}"));
    server.json(&format!("ext push {} --tenant {name}", source.display()));
    let id = u32::try_from(made["tenant"]["id"].as_u64().expect("an id")).expect("an id");
    let token = made["token"].as_str().expect("a token");
    let config = Config::new(server.data.parse().expect("an address"), id).token(token).deadline(PATIENT);
    Client::connect(config).expect("a connection")
}

fn says(client: &Client, times: u8, text: &str) {
    let arguments = [&[times], text.as_bytes()].concat();
    let answer = client.invoke("says", &arguments);
    assert_eq!(answer.is_ok(), times > 0, "{answer:?}");
}

fn with_source() -> (Server, tempfile::TempDir) {
    let server = Server::start_as(&["--workers", "1", "--no-pin"]);
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("src")).expect("a folder");
    fs::write(folder.path().join("extension.toml"), MANIFEST).expect("room");
    fs::write(folder.path().join("src/lib.rs"), SAYS).expect("room");
    (server, folder)
}

#[test]
fn what_is_followed_is_told_once_as_it_comes() {
    let (server, folder) = with_source();
    let (shop, other) = (tenant(&server, "shop", folder.path()), tenant(&server, "other", folder.path()));
    // What there was before is told first, and what comes behind it.
    says(&shop, 0, "before");
    let kills = FollowingCommand::start(&server, "kills --tenant shop");
    assert!(kills.texts::<1>("text")[0].starts_with("before"));
    says(&other, 0, "of another");
    for number in 0..3 {
        says(&shop, 0, &format!("kill {number}"));
        let [told] = kills.texts("text");
        assert!(told.starts_with(&format!("kill {number}")), "{told}");
    }
    // Two that are the same in everything but their times are two.
    says(&shop, 0, "twice");
    says(&shop, 0, "twice");
    assert!(kills.texts::<2>("text").iter().all(|told| told.starts_with("twice")));

    let events = FollowingCommand::start(&server, "events --code table --limit 1");
    for name in ["one", "two"] {
        server.json(&format!("table create {name} --tenant shop"));
        server.json("tenant set shop --quota weight=2");
        assert_eq!(events.texts("subject"), [name], "of its codes alone");
    }
    server.json("table drop one --tenant shop");
    assert_eq!(events.texts("code"), ["table.dropped"]);

    says(&shop, 1, "old");
    let logs = FollowingCommand::start(&server, "ext logs says --tenant shop --limit 1");
    assert_eq!(logs.texts("text"), ["old 0"]);
    for number in 0..3 {
        says(&other, 1, "of another");
        says(&shop, 1, &format!("line {number}"));
        assert_eq!(logs.texts("text"), [format!("line {number} 0")]);
    }
    // Nothing is told twice: the next thing of each is told behind what there was.
    says(&shop, 1, "last");
    assert_eq!(logs.texts("text"), ["last 0"]);
    says(&shop, 0, "last");
    assert!(kills.texts::<1>("text")[0].starts_with("last"));
    server.json("table drop two --tenant shop");
    assert_eq!(events.texts("subject"), ["two"]);
}

#[test]
fn a_flood_of_lines_takes_none_of_its_neighbours() {
    let (server, folder) = with_source();
    let (floods, quiet) = (tenant(&server, "floods", folder.path()), tenant(&server, "quiet", folder.path()));
    let flood_log = FollowingCommand::start(&server, "ext logs --tenant floods");
    let quiet_log = FollowingCommand::start(&server, "ext logs --tenant quiet");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let _ends = Stop(over);
        scope.spawn(|| {
            let long = "x".repeat(200);
            while !over.load(Relaxed) {
                says(&floods, 255, &long);
            }
        });
        // Until it is told that lines were left out, or displaced before they were read.
        while flood_log.next()["notice"].as_str().is_none() {}
        for number in 0..50 {
            says(&quiet, 1, &format!("line {number}"));
            assert_eq!(quiet_log.texts("text"), [format!("line {number} 0")], "each is told, in order");
        }
    });
    // What is kept of the flood is bounded, and of the neighbour all is there.
    let kept = |tenant: &str| {
        let output = server.output(&format!("ext logs --tenant {tenant} --limit 1000000 --json"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("text");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter_map(|line| line["text"].as_str().map(str::to_owned)).collect::<Vec<String>>()
    };
    let flood: usize = kept("floods").iter().map(String::len).sum();
    assert!(flood > 0 && flood <= sandstorm_accounts::limits::LOG_BYTES, "{flood} bytes are kept");
    assert_eq!(kept("quiet").len(), 50);
}

#[test]
fn a_server_that_was_stopped_may_be_started_again_at_once() {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let options = ["--no-builder", "--no-pin", "--data", "127.0.0.1:0"];
    let mut server = Server::start_in(None, Arc::clone(&folder), &options);
    for number in 0..3 {
        server.json(&format!("tenant create tenant-{number}"));
        // Something that is under way when it is told to stop.
        let mut follows = server.command();
        let follows = follows.args(["events", "--follow"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        assert_eq!(server.json("stop")["ok"], Value::Bool(true));
        let again = Server::start_in(None, Arc::clone(&folder), &options);
        assert_eq!(again.json("tenant list").as_array().map(Vec::len), Some(number + 1));
        let mut follows = follows.unwrap();
        _ = follows.kill();
        follows.wait().unwrap();
        server = again;
    }
}
