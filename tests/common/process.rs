//! A server as people start it: the real binary, in a process of its own, on free ports.
#![allow(dead_code, unreachable_pub)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A server process of the test's own; told to end, and waited for, when dropped.
pub struct Server {
    pub process: Child,
    pub control: String,
    pub data: String,
    pub folder: tempfile::TempDir,
}

/// The command line, without what the environment says of another server.
pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandstorm"));
    for name in ["SANDSTORM_SERVER", "SANDSTORM_TOKEN", "SANDSTORM_TENANT", "SANDSTORM_STATE", "RUST_LOG"] {
        command.env_remove(name);
    }
    command
}

impl Server {
    /// Starts one with these options, and waits until it serves.
    pub fn start_as(options: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let mut process = binary()
            .args(["serve", "--json", "--data", "127.0.0.1:0", "--control", "127.0.0.1:0"])
            .args(options)
            .arg("--state")
            .arg(folder.path().join("state"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).expect("the server says where it is");
        let text = |name: &str| said[name].as_str().unwrap().to_owned();
        Server { process, control: text("control"), data: text("data"), folder }
    }

    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The command line towards this server.
    pub fn command(&self) -> Command {
        let mut command = binary();
        command.env("SANDSTORM_SERVER", &self.control).env("SANDSTORM_STATE", self.state());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped = self.command().arg("stop").output();
        if !stopped.is_ok_and(|output| output.status.success()) {
            let _ended_already = self.process.kill();
        }
        let _status = self.process.wait();
    }
}
