//! Promise (docs/cluster.md): `sandstorm cluster dev` starts a cluster on this machine that can be used at once, and
//! leaves nothing behind when it ends.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::eventually;
use crate::common::process::binary;

/// Ports of such a cluster, from its first.
const PORTS: [u16; 11] = [0, 1, 10, 11, 12, 20, 21, 22, 30, 31, 32];

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn are_free(first: u16) -> bool {
    PORTS.iter().all(|port| is_free(first + port))
}

/// Ends with the test, whatever becomes of it.
struct DevCluster(Child);

impl Drop for DevCluster {
    fn drop(&mut self) {
        terminate(&self.0);
        if !eventually(|| !matches!(self.0.try_wait(), Ok(None))) {
            let _ended_already = self.0.kill();
        }
        let _status = self.0.wait();
    }
}

fn terminate(process: &Child) {
    let pid = rustix::process::Pid::from_child(process);
    let _ended_already = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
}

#[test]
fn a_cluster_to_try_out_serves_and_leaves_nothing_behind() {
    if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: no `etcd` here (Debian's package etcd-server)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Below the ports that the kernel gives to others.
    let first = (20_000..32_000).step_by(100).map(|port| port + std::process::id() as u16 % 60);
    let first = first.filter(|port| are_free(*port)).nth(usize::from(std::process::id() as u16 % 50)).unwrap();
    let mut command = binary();
    command.args(["cluster", "dev", "--port", &first.to_string(), "--folder"]).arg(folder.path());
    let errors = folder.path().join("errors");
    command.stderr(File::create(&errors).unwrap());
    let mut dev = DevCluster(command.stdout(Stdio::piped()).spawn().unwrap());
    let (tell, said) = channel();
    let lines = BufReader::new(dev.0.stdout.take().unwrap()).lines();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let mut text = String::new();
    while !text.contains("Ctrl-C") {
        match said.recv_timeout(Duration::from_secs(120)) {
            Ok(line) => text.push_str(&line),
            Err(why) => panic!("{why}: {text}{}", std::fs::read_to_string(&errors).unwrap()),
        }
    }
    let run = |server: u16, words: &[&str]| {
        let mut command = binary();
        command.env("SANDSTORM_SERVER", format!("127.0.0.1:{}", first + 10 * server));
        command.env("SANDSTORM_STATE", folder.path().join(format!("server-{server}")));
        let output = command.args(words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {error}");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    };
    for number in 0..9_u16 {
        let (key, value) = (format!("key:{number}"), number.to_string());
        run(1 + number % 3, &["put", "items", &key, &value, "--tenant", "dev"]);
        assert_eq!(run(1 + (number + 1) % 3, &["get", "items", &key, "--tenant", "dev"]), value);
    }
    terminate(&dev.0);
    assert!(eventually(|| !matches!(dev.0.try_wait(), Ok(None))), "it does not end");
    assert!(eventually(|| are_free(first)), "a process was left behind");
    assert!(dev.0.wait().unwrap().success());
}
