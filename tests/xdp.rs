//! Promise: the same server runs over AF_XDP, by DPDK's driver of it, on one end of a pair of virtual interfaces: every packet that it sends leaves,
//! many more than it has buffers, whether packet sockets are at the other end or the kernel's own stack. Makes a network namespace, which takes
//! root; without it, or without AF_XDP, it says so and ends. Runs the real binary.
#![cfg(feature = "dpdk")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::Value;

const SERVER: &str = "10.69.0.1/24";
const ASKING: &str = "10.69.0.2/24";
/// Of the kernel, for clients on its own sockets.
const KERNEL: &str = "10.69.0.3/24";
/// More packets than a queue has buffers, some times over.
const MANY: u64 = 20_000;

/// A namespace with a pair of interfaces, gone when this is.
struct Lab {
    name: String,
    folder: tempfile::TempDir,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _its_interfaces_go_with_it = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn run(line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let output =
        Command::new(words.next().unwrap()).args(words).output().map_err(|error| format!("{line}: {error}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{line}: {complaint}")) }
}

impl Lab {
    /// None if this machine does not let us.
    fn new() -> Option<Lab> {
        let protocols = std::fs::read_to_string("/proc/net/protocols").unwrap_or_default();
        if !protocols.lines().any(|line| line.starts_with("XDP")) {
            println!("skipped: this kernel has no AF_XDP");
            return None;
        }
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("sandstorm-xdp-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let lab = Lab { name, folder: tempfile::tempdir().unwrap() };
        let n = &lab.name;
        let lines = [
            format!("ip netns add {n}"),
            format!("ip netns exec {n} sysctl -qw net.ipv6.conf.default.disable_ipv6=1"),
            format!("ip -n {n} link set lo up"),
            format!("ip -n {n} link add served0 type veth peer name asking0"),
            // A program of XDP's sees packets before the kernel has filled in the checksums that were left to the interface.
            format!("ip netns exec {n} ethtool -K asking0 tx off"),
            format!("ip -n {n} link set served0 up"),
            format!("ip -n {n} link set asking0 up"),
        ];
        for line in lines {
            if let Err(why) = run(&line) {
                println!("skipped: no network namespaces here: {why}");
                return None;
            }
        }
        Some(lab)
    }

    fn sandstorm(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, env!("CARGO_BIN_EXE_sandstorm")]).args(words);
        for name in ["SANDSTORM_SERVER", "SANDSTORM_TOKEN", "SANDSTORM_TENANT", "RUST_LOG"] {
            command.env_remove(name);
        }
        command.env("SANDSTORM_STATE", self.folder.path().join("state")).stdin(Stdio::null());
        command
    }

    fn start(&self) -> Server<'_> {
        let mut command = self.sandstorm(&["serve", "--json", "--ephemeral", "--no-pin", "--no-builder"]);
        command.args([
            "--workers",
            "1",
            "--control",
            "127.0.0.1:0",
            "--driver",
            "dpdk",
            "--address",
            SERVER,
            "--eal",
            EAL,
        ]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).expect("the server says where it is");
        Server { lab: self, process, control: said["control"].as_str().unwrap().to_owned() }
    }

    /// Packets that an interface has sent.
    fn sent_by(&self, interface: &str) -> u64 {
        let file = format!("/sys/class/net/{interface}/statistics/tx_packets");
        let output = Command::new("ip").args(["netns", "exec", &self.name, "cat", &file]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
    }
}

const EAL: &str = "--no-huge --no-pci --no-shconf -m 128 --vdev net_af_xdp0,iface=served0";

/// A server in the lab; ended when dropped.
struct Server<'l> {
    lab: &'l Lab,
    process: Child,
    control: String,
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

impl Server<'_> {
    fn json(&self, line: &str) -> Value {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = self.lab.sandstorm(&words).arg("--json").env("SANDSTORM_SERVER", &self.control).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.json("stat --all");
        counters["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {counters}"))
    }

    /// Loads, until so many packets have come and gone; all answers are right.
    fn load(&self, tenant: &str, bytes: u32, way: &str) {
        let end = self.counter("packets_out") + MANY;
        // Longer and longer: the machine may stand still.
        for seconds in ["1", "5", "20", "60", "120"] {
            let report = self.json(&format!(
                "load --tenant {tenant} --create --fill --records 300 --value-bytes {bytes} --mix get=60,put=40 --depth 16 --verify-every 1 \
                 --warm-up 0 --deadline 60 --seconds {seconds} {way}"
            ));
            assert_eq!(report["wrong"], 0, "{report}");
            if self.counter("packets_out") >= end {
                return;
            }
        }
        panic!("only {} of {end} packets have left", self.counter("packets_out"));
    }
}

#[test]
fn what_the_server_sends_over_af_xdp_leaves() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.start();
    let network = server.json("health")["network"].as_str().unwrap().to_owned();
    assert!(network.contains("net_af_xdp") && network.contains("link up"), "{network}");
    let packet = format!("--driver packet --device asking0 --address {ASKING}");
    server.load("small", 100, &packet);
    server.load("large", 5000, &packet);
    run(&format!("ip -n {} addr add {KERNEL} dev asking0", lab.name)).unwrap();
    server.load("kernel", 1400, "");
    let (sent, left) = (server.counter("packets_out"), lab.sent_by("served0"));
    // Beside what the workers count there are answers to the neighbours' questions.
    assert!(sent > 3 * MANY && left >= sent, "the server has sent {sent} packets, of which {left} left");
    for name in ["device_no_buffer", "device_send_errors", "frames_refused.udp_checksum"] {
        assert_eq!(server.counter(name), 0, "{name}");
    }
}

#[test]
fn what_a_neighbour_on_the_same_machine_has_to_do_is_said() {
    let Some(lab) = Lab::new() else { return };
    let output = lab.sandstorm(&["doctor", "--eal", EAL]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("DPDK port net_af_xdp0: net_af_xdp") && said.contains("ethtool -K"), "{said}");
    // One queue, as such a pair has: more workers are refused in words.
    let mut command = lab.sandstorm(&["serve", "--ephemeral", "--no-pin", "--no-builder", "--control", "127.0.0.1:0"]);
    let output =
        command.args(["--workers", "2", "--driver", "dpdk", "--address", SERVER, "--eal", EAL]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("has 1 queues each way, and 2 are asked for"), "{said}");
}
