//! Promise: `sandstorm ext dev` pushes what is saved in an extension's folder, and says when it does not.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use crate::common::EVENTUALLY;
use crate::common::process::Server;

/// A command that runs until it is dropped, and its lines.
struct RunningCommand(Child, Receiver<String>);

impl RunningCommand {
    fn wait_for(&self, text: &str) {
        let (until, mut seen) = (Instant::now() + EVENTUALLY, Vec::new());
        loop {
            match self.1.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(text) => return,
                Ok(line) => seen.push(line),
                // It has ended, or takes too long.
                Err(_) => panic!("{text:?} is not among {seen:?}"),
            }
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _has_ended = self.0.kill();
        let _status = self.0.wait();
    }
}

#[test]
fn what_is_saved_is_pushed_and_what_does_not_compile_is_not() {
    let server = Server::start_as(&["--no-pin", "--workers", "2"]);
    server.json("tenant create shop");
    server.json("table create visits");
    let folder = server.folder.path().join("hello");
    let shown = folder.display().to_string();
    server.json(&format!("ext new {shown}"));
    let refused = server.output("ext dev nowhere --once");
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("nowhere"), "{refused:?}");
    let once = server.output(&format!("ext dev {shown} --once"));
    assert!(once.status.success(), "{}", String::from_utf8_lossy(&once.stderr));
    assert!(String::from_utf8_lossy(&once.stdout).contains("pushed hello version 1"), "{once:?}");

    let mut command = server.command();
    command.args(["ext", "dev", "--no-test", &shown]).stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null());
    let mut child = command.spawn().unwrap();
    let (lines, found) = channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    // Ends when the child's output does.
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    let dev = RunningCommand(child, found);
    dev.wait_for("-- pushed");
    let write = |body: &str| {
        let text = format!(
            "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n\
             pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {{ {body} }}\n"
        );
        std::fs::write(folder.join("src/lib.rs"), text).unwrap();
    };
    write("let number: u64 = args; db.reply(b\"x\")");
    dev.wait_for("-- not pushed");
    write("info!(\"{} bytes\", args.len()); db.reply(b\"new\")");
    dev.wait_for("-- pushed");
    let reply = server.output("invoke hello four");
    assert_eq!(String::from_utf8_lossy(&reply.stdout), "new\n", "{reply:?}");
    // Its log is shown.
    dev.wait_for("4 bytes");
}

/// With what the command writes, rust-analyzer knows the API; the builder's own tests compile what it names.
#[test]
fn an_editor_is_told_of_the_crates() {
    let server = Server::start_as(&["--no-pin", "--workers", "1", "--no-builder"]);
    let folder = server.folder.path().join("hello");
    server.json(&format!("ext new {}", folder.display()));
    let written = server.json(&format!("ext editor {}", folder.display()));
    let text = std::fs::read_to_string(written["file"].as_str().unwrap()).unwrap();
    let project: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names: Vec<&str> =
        project["crates"].as_array().unwrap().iter().filter_map(|one| one["display_name"].as_str()).collect();
    assert_eq!(names, ["sandstorm_api", "hello"]);
    assert!(!server.output("ext editor nowhere").status.success());
}
