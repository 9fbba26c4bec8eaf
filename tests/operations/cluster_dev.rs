//! Promise (docs/cluster.md): `sandstorm cluster dev` starts a cluster on this machine that can be used at once, and
//! leaves nothing behind when it ends.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Duration;

use tempfile::TempDir;

use super::http::has_program;
use crate::common::eventually;
use crate::common::process::{binary, state_in};

/// Clusters that this program has started: each has other ports.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// Time in which the servers and a builder are there.
const PATIENCE: Duration = Duration::from_secs(600);
/// Ports of such a cluster, from its first.
const PORTS: [u16; 14] = [0, 1, 10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33];

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn are_free(first: u16) -> bool {
    PORTS.iter().all(|port| is_free(first + port))
}

/// A cluster of three servers, which ends with the test.
pub(super) struct DevCluster {
    process: Child,
    folder: TempDir,
    /// The first of its ports.
    first: u16,
}

impl Drop for DevCluster {
    fn drop(&mut self) {
        self.terminate();
        if !eventually(|| !matches!(self.process.try_wait(), Ok(None))) {
            let _ended_already = self.process.kill();
        }
        let _status = self.process.wait();
    }
}

impl DevCluster {
    /// Starts one with these options; `None`, with a line, if there is no etcd on this machine.
    pub(super) fn start(options: &[&str]) -> Option<DevCluster> {
        if !has_program("etcd", "etcd-server") {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        // Below the ports that the kernel gives to others.
        let first = (20_000..32_000).step_by(100).map(|port| port + std::process::id() as u16 % 60);
        let skipped = std::process::id() as usize % 50 + STARTED.fetch_add(1, Relaxed);
        let first = first.filter(|port| are_free(*port)).nth(skipped).unwrap();
        if options.contains(&"--builder") {
            // The one that builds has the sysroots of the tests: making them takes a while.
            std::fs::rename(state_in(folder.path()), folder.path().join("server-1")).unwrap();
        }
        let mut command = binary();
        command.args(["cluster", "dev", "--port", &first.to_string(), "--folder"]).arg(folder.path()).args(options);
        let errors = folder.path().join("errors");
        command.stderr(File::create(&errors).unwrap());
        let process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut cluster = DevCluster { process, folder, first };
        let (tell, said) = channel();
        let lines = BufReader::new(cluster.process.stdout.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let mut text = String::new();
        while !text.contains("Ctrl-C") {
            match said.recv_timeout(PATIENCE) {
                Ok(line) => text.push_str(&line),
                Err(why) => panic!("{why}: {text}{}", std::fs::read_to_string(&errors).unwrap()),
            }
        }
        Some(cluster)
    }

    /// Runs a command at one of the servers, 1 to 3.
    pub(super) fn output(&self, server: u16, words: &[&str]) -> Output {
        let mut command = binary();
        command.env("SANDSTORM_SERVER", format!("127.0.0.1:{}", self.first + 10 * server));
        command.env("SANDSTORM_STATE", self.folder.path().join(format!("server-{server}")));
        command.args(words).output().unwrap()
    }

    /// What a command prints, which must succeed.
    pub(super) fn run(&self, server: u16, words: &[&str]) -> String {
        let output = self.output(server, words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {error}");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// The address of a server's control port.
    pub(super) fn control(&self, server: u16) -> String {
        format!("127.0.0.1:{}", self.first + 10 * server)
    }

    /// The port of a server for Redis clients.
    pub(super) fn redis_port(&self, server: u16) -> u16 {
        self.first + 10 * server + 2
    }

    fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ended_already = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

#[test]
fn a_cluster_to_try_out_serves_and_leaves_nothing_behind() {
    let Some(mut cluster) = DevCluster::start(&[]) else { return };
    for number in 0..9_u16 {
        let (key, value) = (format!("key:{number}"), number.to_string());
        cluster.run(1 + number % 3, &["put", "items", &key, &value, "--tenant", "dev"]);
        assert_eq!(cluster.run(1 + (number + 1) % 3, &["get", "items", &key, "--tenant", "dev"]), value);
    }
    cluster.terminate();
    assert!(eventually(|| !matches!(cluster.process.try_wait(), Ok(None))), "it does not end");
    assert!(eventually(|| are_free(cluster.first)), "a process was left behind");
    assert!(cluster.process.wait().unwrap().success());
}
