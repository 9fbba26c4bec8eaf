//! Promise: however a call ends, its error has the same name in each protocol, and in the client of each language. Each
//! name that the page of calls over HTTP lists is provoked here, or has a reason why it is not.

mod apart;

use std::collections::BTreeSet;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::generated::{
    SHAPES, go_command, has, shapes_server, succeeds, type_script_command, type_script_compiler, written_of,
};
use super::python::{installed, python};
use super::typed_redis::RedisClient;
use crate::common::process::Server;
use crate::common::{PATIENT, eventually, root};
use sandstorm_client::{Client, OpenOptions, TypedCallError};

/// A call: the function, its argument, the code of its error, and its kind or cause.
type NamedEnd = (&'static str, &'static str, &'static str, &'static str);

/// What ends `shapes.end` in so many ways.
const END: &str = "shapes.end";

/// Calls that end so whatever the state of the server.
const ENDS: [NamedEnd; 23] = [
    (END, "not_found", "failed", "not_found"),
    (END, "conflict", "failed", "conflict"),
    (END, "unknown_table", "failed", "unknown_table"),
    (END, "out_of_memory", "failed", "out_of_memory"),
    (END, "too_large", "failed", "too_large"),
    (END, "not_a_number", "failed", "not_a_number"),
    (END, "invalid", "failed", "invalid"),
    (END, "read_only", "failed", "read_only"),
    // An object in the folder behind the table is none.
    (END, "not_read", "failed", "not_read"),
    // What waits for the folder would be more than may.
    (END, "not_backed", "failed", "not_backed"),
    (END, "any", "failed", "other"),
    (END, "panic", "killed", "panic"),
    (END, "loop", "killed", "total_budget"),
    (END, "stack", "killed", "stack_overflow"),
    (END, "memory", "killed", "out_of_memory"),
    (END, "meets itself", "conflict", ""),
    ("nothing", "x", "unknown_extension", ""),
    ("nothing.end", "x", "unknown_extension", ""),
    ("shapes.absent", "x", "unknown_function", ""),
    ("shapes", "x", "unknown_function", ""),
    ("shapes.integer", "x", "invalid", ""),
    // It is suspended.
    ("asleep.say", "x", "suspended", ""),
    // Its calls have the least memory, and less than the argument takes; over RESP arguments are shorter at any time.
    ("tight.say", LONG_TEXT, "too_large", ""),
];

/// While another call is the only one that the tenant may have at a time.
const BESIDE_ANOTHER: [NamedEnd; 1] = [(END, "any", "over_quota", "")];

/// Where another writer has changed what is behind a table in front of it. Over RESP the connection ends then.
const BEFORE_ANOTHER: [NamedEnd; 1] = [(END, "not_durable", "not_durable", "")];

/// Names that tests beside this one provoke, in those protocols where they can be had: `apart.rs`.
const APART: [(&str, &str); 4] = [
    ("busy", "a_tenant_has_its_share_of_the_calls_over_http"),
    ("not_kept", "a_repeat_whose_first_answer_had_no_room_is_told_that_it_ran"),
    ("overloaded", "a_worker_that_has_all_calls_that_it_can_hold_is_overloaded"),
    ("shutting_down", "who_calls_a_server_that_stops_is_told_so"),
];

/// Names that the page lists and that are not provoked here, each with the reason.
const NOT_PROVOKED: &[(&str, &str)] = &[
    ("callee_killed", "a kind: it takes an extension that calls another one; the control port's tests have it"),
    ("wrong_server", "it takes a cluster; operations::cluster_clients has it in each client"),
    ("unknown_tenant", "only the operator calls for a tenant that is not there: its own token is gone with it"),
    (
        "unauthenticated",
        "no client is opened with a token that is wrong; command_line::typed and operations::http_calls have it",
    ),
    ("reply", "of types that a client has from another version; the programs in shapes have it"),
    ("stale", "of repeats over HTTP; operations::http_calls has it"),
    ("key_reused", "of repeats over HTTP; operations::http_calls has it"),
    ("stopped", "it takes a server that ends while the call is under way"),
    ("timeout", "how long a call takes is left to the machine; operations::http_calls has it over HTTP"),
];

/// A small extension with a typed function.
const SAYS: &str = "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n\
                    pub async fn say(_db: Db<'_>, args: String) -> Result<String, Error> {\n    Ok(args)\n}\n";

/// An argument of 66,000 letters.
const LONG_TEXT: &str = match std::str::from_utf8(&[b'x'; 66_000]) {
    Ok(text) => text,
    Err(_) => unreachable!(),
};

/// How an error line of a port for Redis clients begins that has this code.
fn resp_words(code: &str) -> &'static [&'static str] {
    match code {
        "unknown_extension" => &["-ERR Function not found\r"],
        "unknown_function" => &["-ERR Function not found: "],
        "invalid" => &["-INVALID args: "],
        "too_large" => &["-TOOLARGE "],
        "over_quota" => &["-OVERQUOTA "],
        "failed" => &["-FAILED "],
        "killed" => &["-KILLED "],
        "conflict" => &["-CONFLICT "],
        "suspended" => &["-SUSPENDED "],
        "not_durable" => &["-MISCONF "],
        other => panic!("what a port for Redis clients says for {other}"),
    }
}

/// The programs of the languages that are here.
struct Callers {
    server: Server,
    environment: Vec<(&'static str, String)>,
    commands: Vec<Command>,
    folder: PathBuf,
}

impl Callers {
    fn new(folder: &Path) -> Callers {
        let (server, environment) = shapes_server(folder);
        let mut callers = Callers { server, environment, commands: Vec::new(), folder: folder.to_owned() };
        callers.add_python();
        callers.add_type_script();
        callers.add_go();
        callers
    }

    fn given(&self, name: &str) -> &str {
        self.environment.iter().find(|(one, _)| *one == name).map(|(_, value)| value).expect("it is given")
    }

    /// Tables in front of a folder with a damaged object, of one that takes little at a time, and of another table.
    fn add_backings(&self, folder: &Path) {
        let behind = folder.join("behind");
        std::fs::create_dir(&behind).unwrap();
        std::fs::write(behind.join("damaged"), "no object").unwrap();
        let token = folder.join("token");
        std::fs::write(&token, self.given("TOKEN")).unwrap();
        let control = self.server.control.trim_start_matches("http://");
        for line in [
            format!("--tenant shop table create behind --backing file://{}", behind.display()),
            format!("--tenant shop table create bounded --backing file://{}-too --dirty 1KiB", behind.display()),
            format!("--tenant shop secret set own --from {}", token.display()),
            format!(
                "--tenant shop table create front --backing sandstorm://{control}/shop/default?format=raw \
                 --backing-secret own"
            ),
        ] {
            let output = self.server.output(&line);
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// A folder with the client of a language and a program beside it.
    fn written(&self, language: &str, client: &str, program: &str) -> PathBuf {
        let folder = self.folder.join(format!("errors-{language}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(client), written_of(SHAPES, &[language])).unwrap();
        std::fs::copy(root().join(SHAPES).join(program), folder.join(program)).unwrap();
        folder
    }

    fn add_python(&mut self) {
        let Some(mut python) = python() else { return };
        let site = installed(&self.folder.join("python"));
        let folder = self.written("python", "shapes.py", "errors.py");
        python.arg("errors.py").current_dir(folder).env("PYTHONPATH", site);
        self.commands.push(python);
    }

    fn add_type_script(&mut self) {
        let compiler = type_script_compiler();
        if !has(&compiler, "--version") || !has("node", "--version") {
            return;
        }
        let folder = self.written("typescript", "shapes.ts", "errors.ts");
        std::fs::write(folder.join("package.json"), "{\"type\": \"module\"}").unwrap();
        succeeds(&mut type_script_command(&compiler, &folder, "errors.ts"));
        let mut node = Command::new("node");
        node.arg("errors.js").current_dir(folder);
        self.commands.push(node);
    }

    fn add_go(&mut self) {
        if !has("go", "version") {
            return;
        }
        let folder = self.written("go", "shapes.go", "errors_test.go");
        std::fs::write(folder.join("go.mod"), "module shapes\n\ngo 1.18\n").unwrap();
        self.commands.push(go_command(&folder, &["test", "-count=1", "./..."]));
    }

    /// Has all of them call, and end as they should.
    fn end_as(&mut self, ends: &[NamedEnd]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.of_the_rust_client(ends));
        self.of_resp(ends);
        self.of_http(ends);
        let control = self.server.control.trim_start_matches("http://");
        for command in &mut self.commands {
            command.envs(self.environment.clone()).env("CONTROL", control).env("ENDS", json!(ends).to_string());
            succeeds(command);
        }
    }

    async fn of_the_rust_client(&self, ends: &[NamedEnd]) {
        let control = self.server.control.trim_start_matches("http://");
        let options = OpenOptions { deadline: PATIENT, ..OpenOptions::new(control, "shop", self.given("TOKEN")) };
        let client = Client::open_with(options).await.unwrap();
        for (function, word, code, name) in ends {
            let error = client.call::<_, Value>(function, word).await.expect_err("an error");
            let kind = match &error {
                TypedCallError::Request(error) => error.kind().unwrap_or_default(),
                _ => "",
            };
            assert_eq!((error.code(), kind), (*code, *name), "{function}: {error}");
        }
    }

    fn of_resp(&self, ends: &[NamedEnd]) {
        let stream = UnixStream::connect(self.given("UNIX").trim_start_matches("unix:")).unwrap();
        let mut client = RedisClient::new(BufReader::new(stream));
        for (function, word, code, name) in ends {
            let line = client.send(&["FCALL", function, "0", &json!(word).to_string()]);
            let begins = |head: &&&str| format!("{line}\r").starts_with(**head);
            let head = resp_words(code).iter().find(begins).unwrap_or_else(|| panic!("{function}, {code}: {line}"));
            let name = if name.is_empty() { String::new() } else { format!("({name}) ") };
            assert!(name.is_empty() || line[head.len()..].starts_with(&name), "{function}, {code}: {line}");
        }
    }

    fn of_http(&self, ends: &[NamedEnd]) {
        let address = self.given("HTTP").trim_start_matches("http://");
        for (function, word, code, name) in ends {
            let said = http_call(address, self.given("TOKEN"), (function, word));
            let found = said["kind"].as_str().or(said["cause"].as_str()).unwrap_or_default();
            assert_eq!((said["code"].as_str(), found), (Some(*code), *name), "{function}: {said}");
        }
    }
}

/// Calls over HTTP; the answer's JSON.
fn http_call(address: &str, token: &str, (function, word): (&str, &str)) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = json!(word).to_string();
    let head = format!(
        "POST /v1/call/shop/{function} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n\
         connection: close\r\nsandstorm-timeout-ms: 60000\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// The names that the page of calls over HTTP has: of codes, and of kinds of `failed`.
fn listed_names() -> BTreeSet<String> {
    let page = std::fs::read_to_string(root().join("docs/control.md")).expect("the page");
    let (_, calls) = page.split_once("## Calls over HTTP").expect("the section");
    let (_, table) = calls.split_once("| status | `code` | |\n").expect("the table");
    let rows = table.lines().take_while(|line| line.starts_with('|')).skip(1);
    let of_row = |row: &str| {
        let cells: Vec<&str> = row.split('|').collect();
        let text =
            if cells[2].trim() == "`failed`" { format!("{} {}", cells[2], cells[3]) } else { cells[2].to_owned() };
        text.split('`').skip(1).step_by(2).filter(|name| *name != "kind").map(str::to_owned).collect::<Vec<_>>()
    };
    rows.flat_map(of_row).collect()
}

#[test]
fn each_name_that_is_listed_is_provoked_or_has_a_reason() {
    let ends = [&ENDS[..], &BESIDE_ANOTHER, &BEFORE_ANOTHER].concat();
    let kinds = ends.iter().filter(|end| end.2 == "failed").map(|end| end.3);
    let apart = APART.iter().map(|(name, _)| *name);
    let provoked: BTreeSet<&str> = ends.iter().map(|end| end.2).chain(kinds).chain(apart).collect();
    for (name, test) in APART {
        assert!(include_str!("errors_by_name/apart.rs").contains(&format!("fn {test}()")), "{name}: {test}");
    }
    let reasons: BTreeSet<&str> = NOT_PROVOKED.iter().map(|(name, _)| *name).collect();
    assert!(provoked.is_disjoint(&reasons), "{:?}", provoked.intersection(&reasons));
    let known: BTreeSet<String> = provoked.union(&reasons).map(|name| (*name).to_owned()).collect();
    assert_eq!(listed_names(), known, "docs/control.md, and what is provoked or has a reason here");
    // Of TypeScript, whose type lists them, each that a call without an idempotency key of its own may end with.
    let types = std::fs::read_to_string(root().join("schema/src/generate/support/transport.ts")).expect("the file");
    let missing: Vec<&&str> = provoked.iter().filter(|name| !types.contains(&format!("  | \"{name}\""))).collect();
    let kinds: BTreeSet<&str> = ends.iter().filter(|end| end.2 == "failed").map(|end| end.3).collect();
    assert!(missing.iter().all(|name| kinds.contains(**name)), "transport.ts lacks {missing:?}");
}

#[test]
fn an_error_has_the_same_name_in_each_protocol_and_language() {
    let folder = tempfile::tempdir().unwrap();
    let mut callers = Callers::new(folder.path());
    for name in ["asleep", "tight"] {
        let place = folder.path().join(name);
        std::fs::create_dir_all(place.join("src")).unwrap();
        std::fs::write(place.join("extension.toml"), format!("name = {name:?}\n")).unwrap();
        std::fs::write(place.join("src/lib.rs"), SAYS).unwrap();
        callers.server.json(&format!("ext push {}", place.display()));
    }
    for line in [
        "ext suspend asleep",
        "ext budget tight --arena-bytes 65536",
        "table create small --quota 1MiB",
        "tenant create owner",
        "table create prices --tenant owner",
        "grant add prices --to shop --tenant owner",
    ] {
        callers.server.json(line);
    }
    callers.add_backings(folder.path());
    callers.end_as(&ENDS);
    callers.end_as(&BEFORE_ANOTHER);

    callers.server.json("tenant set shop --quota total_us=3600000000 --quota concurrent_invocations=1");
    let address = callers.given("HTTP").trim_start_matches("http://").to_owned();
    let token = callers.given("TOKEN").to_owned();
    let call = |word| http_call(&address, &token, (END, word));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            loop {
                let ended = call("waits");
                // The call that looks whether this one has begun may be the one that runs.
                if ended["code"] != "over_quota" {
                    return ended;
                }
            }
        });
        let has_begun = eventually(|| other.is_finished() || call("any")["code"] == "over_quota");
        assert!(has_begun && !other.is_finished(), "the call that waits");
        callers.end_as(&BESIDE_ANOTHER);
        callers.server.json("ext unload shapes --tenant shop");
        let ended = other.join().expect("no panic");
        // Over HTTP its caller waits for a minute at most.
        assert!(ended["cause"] == "unloaded" || ended["code"] == "timeout", "{ended}");
    });
}
