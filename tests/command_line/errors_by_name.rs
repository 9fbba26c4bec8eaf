//! Promise: however a call ends, its error has the same name in each protocol, and in the client of each language.

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
use crate::common::{PATIENT, root};
use sandstorm_client::{Client, OpenOptions, TypedCallError};

/// How a call ends that is told a word: the code of its error, and its kind or cause.
type NamedEnd = (&'static str, &'static str, &'static str);

/// Of `shapes.end`. The kinds `contended`, `not_read`, `not_backed`, and `wrong_server` take a crowd, a broken disk, a
/// backing, and a cluster.
const ENDS: [NamedEnd; 13] = [
    ("not_found", "failed", "not_found"),
    ("conflict", "failed", "conflict"),
    ("unknown_table", "failed", "unknown_table"),
    ("out_of_memory", "failed", "out_of_memory"),
    ("too_large", "failed", "too_large"),
    ("not_a_number", "failed", "not_a_number"),
    ("invalid", "failed", "invalid"),
    ("read_only", "failed", "read_only"),
    ("any", "failed", "other"),
    ("panic", "killed", "panic"),
    ("loop", "killed", "total_budget"),
    ("stack", "killed", "stack_overflow"),
    ("memory", "killed", "out_of_memory"),
];

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
        for (word, code, name) in ends {
            match client.call::<_, ()>("shapes.end", word).await {
                Err(TypedCallError::Request(error)) => {
                    assert_eq!((error.code(), error.kind().unwrap_or_default()), (*code, *name), "{word}: {error}");
                }
                other => panic!("{word}: {other:?}"),
            }
        }
    }

    fn of_resp(&self, ends: &[NamedEnd]) {
        let stream = UnixStream::connect(self.given("UNIX").trim_start_matches("unix:")).unwrap();
        let mut client = RedisClient::new(BufReader::new(stream));
        for (word, code, name) in ends {
            let line = client.send(&["FCALL", "shapes.end", "0", &json!(word).to_string()]);
            let name = if name.is_empty() { String::new() } else { format!("({name}) ") };
            assert!(line.starts_with(&format!("-{} {name}", code.to_uppercase())), "{word}: {line}");
        }
    }

    fn of_http(&self, ends: &[NamedEnd]) {
        let address = self.given("HTTP").trim_start_matches("http://");
        for (word, code, name) in ends {
            let mut stream = TcpStream::connect(address).unwrap();
            let (body, token) = (json!(word).to_string(), self.given("TOKEN"));
            let head = format!(
                "POST /v1/call/shop/shapes.end HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n\
                 connection: close\r\nsandstorm-timeout-ms: 60000\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let said: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
            let found = said["kind"].as_str().or(said["cause"].as_str()).unwrap_or_default();
            assert_eq!((said["code"].as_str(), found), (Some(*code), *name), "{word}: {said}");
        }
    }
}

#[test]
fn an_error_has_the_same_name_in_each_protocol_and_language() {
    let folder = tempfile::tempdir().unwrap();
    let mut callers = Callers::new(folder.path());
    for line in [
        "table create small --quota 1MiB",
        "tenant create owner",
        "table create prices --tenant owner",
        "grant add prices --to shop --tenant owner",
    ] {
        callers.server.json(line);
    }
    callers.end_as(&ENDS);
}
