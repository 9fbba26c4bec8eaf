//! A server as users start it: the real binary, in a process of its own, on free ports, over shared memory, or in a
//! network namespace.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use super::eventually;
use sandstorm_catalog::testing::code;
use serde_json::Value;
use tempfile::TempDir;

/// A server process of the test's own; asked to end, and waited for, when dropped.
pub struct Server {
    pub process: Child,
    pub control: String,
    pub data: String,
    pub folder: Arc<TempDir>,
    /// What it said at its start.
    pub said: Value,
    /// The network namespace that it is in, if not the test's own.
    namespace: Option<String>,
    /// Additional options that a load needs to reach it.
    of_loads: Vec<String>,
}

/// The command line without environment variables that name another server.
pub fn binary() -> Command {
    binary_in(None)
}

/// As [`binary`], in a network namespace.
pub fn binary_in(namespace: Option<&str>) -> Command {
    let program = env!("CARGO_BIN_EXE_sandstorm-under-test");
    let mut command = Command::new(if namespace.is_some() { "ip" } else { program });
    if let Some(name) = namespace {
        command.args(["netns", "exec", name, program]);
    }
    for name in ["SERVER", "TOKEN", "TENANT", "STATE", "CA", "FINGERPRINT"] {
        command.env_remove(format!("SANDSTORM_{name}"));
    }
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// The state directory of a server in that folder. It has the sysroots of the tests' own toolchain: making them takes
/// each server some seconds.
pub fn state_in(folder: &Path) -> PathBuf {
    let state = folder.join("state");
    let builder = state.join("builder");
    if !builder.exists() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&builder).expect("a state directory");
        for sysroot in super::toolchain().sysroots() {
            link_folder(sysroot, &builder.join(sysroot.file_name().expect("a name")));
        }
    }
    state
}

/// A folder with hard links to the files of another one, or copies on another file system.
fn link_folder(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a readable folder") {
        let (from, to) = entry.map(|entry| (entry.path(), to.join(entry.file_name()))).expect("an entry");
        if from.is_dir() {
            link_folder(&from, &to);
        } else if fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to).expect("a copy");
        }
    }
}

/// `serve` with these options, in a network namespace or the test's own, with its state in that folder.
pub fn serve(namespace: Option<&str>, folder: &Path, options: &[&str]) -> Command {
    let mut command = binary_in(namespace);
    command.args(["serve", "--json", "--code", code().name()]).args(options);
    if !options.contains(&"--control") {
        command.args(["--control", "127.0.0.1:0"]);
    }
    command.arg("--state").arg(state_in(folder));
    command
}

fn new_folder() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

/// DPDK's arguments for one side of shared memory.
pub fn eal_of_memif(role: &str, socket: &Path) -> String {
    let vdev = format!("net_memif0,role={role},id=0,socket={},socket-abstract=no", socket.display());
    format!("--no-huge --no-pci --no-shconf -m 192 --vdev {vdev}")
}

impl Server {
    /// Starts one with these options, and waits until it serves.
    pub fn start_as(options: &[&str]) -> Server {
        Server::start_in(None, new_folder(), &[&["--data", "127.0.0.1:0"], options].concat())
    }

    /// Starts one over shared memory, with these addresses; a load on it has the address `client`.
    pub fn start_over_memif(addresses: &[&str], client: &str, options: &[&str]) -> Server {
        let folder = new_folder();
        let socket = folder.path().join("socket");
        let eal = eal_of_memif("server", &socket);
        let mut device = vec!["--driver", "dpdk", "--eal", &eal];
        addresses.iter().for_each(|address| device.extend(["--address", address]));
        let mut server = Server::start_in(None, folder, &[&device, options].concat());
        let of_loads = ["--driver", "dpdk", "--address", client, "--eal"].map(str::to_owned);
        server.of_loads = of_loads.into_iter().chain([eal_of_memif("client", &socket)]).collect();
        server
    }

    /// Starts one in a network namespace, or the test's own, with its state in that folder.
    pub fn start_in(namespace: Option<&str>, folder: Arc<TempDir>, options: &[&str]) -> Server {
        Server::started(serve(namespace, folder.path(), options), namespace, folder)
    }

    /// Starts one that writes what it logs, from `level` on, into a file.
    pub fn start_logging(folder: Arc<TempDir>, options: &[&str], (level, log): (&str, fs::File)) -> Server {
        let mut command = serve(None, folder.path(), options);
        command.env("RUST_LOG", level).stderr(log);
        Server::started(command, None, folder)
    }

    /// Starts one by a command that [`serve`] has made, and waits until it serves.
    pub fn started(mut command: Command, namespace: Option<&str>, folder: Arc<TempDir>) -> Server {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).expect("the server says where it is");
        let text = |name: &str| said[name].as_str().unwrap().to_owned();
        let (control, data, namespace) = (text("control"), text("data"), namespace.map(str::to_owned));
        Server { process, control, data, folder, said, namespace, of_loads: Vec::new() }
    }

    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A command towards this server.
    pub fn command(&self) -> Command {
        let mut command = binary_in(self.namespace.as_deref());
        command.env("SANDSTORM_SERVER", &self.control).env("SANDSTORM_STATE", self.state());
        command
    }

    /// A load on it.
    pub fn load_command(&self) -> Command {
        let mut command = self.command();
        command.arg("load").args(&self.of_loads);
        command
    }

    /// Runs a command line; returns its output.
    pub fn output(&self, line: &str) -> Output {
        let (mut command, words) = match line.strip_prefix("load ") {
            Some(words) => (self.load_command(), words),
            None => (self.command(), line),
        };
        command.args(words.split_whitespace()).output().unwrap()
    }

    /// Runs a command line that must succeed; returns its JSON.
    pub fn json(&self, line: &str) -> Value {
        let output = self.output(&format!("{line} --json"));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped = self.command().arg("stop").output();
        let is_ending = stopped.is_ok_and(|output| output.status.success());
        // One that says that it ends and does not must not hold up all tests.
        if !is_ending || !eventually(|| !matches!(self.process.try_wait(), Ok(None))) {
            let _ended_already = self.process.kill();
        }
        let _status = self.process.wait();
    }
}
