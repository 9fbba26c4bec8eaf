//! Promise: the same server runs over AF_XDP, by DPDK's driver of it, on one end of a pair of virtual interfaces. Every
//! packet that it sends leaves, many more than it has buffers, whether packet sockets or the kernel's own stack are at
//! the other end. Makes a network namespace, which takes root; without it, or without AF_XDP, it says so and ends. Runs
//! the real binary.

use std::sync::Arc;

use crate::common::namespaces::{Namespaces, run, run_in};
use crate::common::process::{Server, binary_in, serve};

const SERVER: &str = "10.69.0.1/24";
const ASKING: &str = "10.69.0.2/24";
/// The kernel's address, for clients on kernel sockets.
const KERNEL: &str = "10.69.0.3/24";
/// Several times the number of a queue's buffers.
const MANY: u64 = 20_000;

/// Options of the server.
const OPTIONS: [&str; 9] =
    ["--ephemeral", "--no-pin", "--no-builder", "--driver", "dpdk", "--address", SERVER, "--eal", EAL];
const EAL: &str = "--no-huge --no-pci --no-shconf -m 128 --vdev net_af_xdp0,iface=served0";

/// A namespace with a pair of interfaces. `None` if this machine does not allow it.
fn lab() -> Option<Namespaces<1>> {
    let protocols = std::fs::read_to_string("/proc/net/protocols").unwrap_or_default();
    if !protocols.lines().any(|line| line.starts_with("XDP")) {
        println!("skipped: this kernel has no AF_XDP");
        return None;
    }
    Namespaces::new(|[name]| {
        vec![
            format!("ip -n {name} link add served0 type veth peer name asking0"),
            // An XDP program sees packets before the kernel has filled in the checksums that it left to the interface.
            format!("ip netns exec {name} ethtool -K asking0 tx off"),
            format!("ip -n {name} link set served0 up"),
            format!("ip -n {name} link set asking0 up"),
        ]
    })
}

/// Packets that an interface has sent.
fn sent_by(name: &str, interface: &str) -> u64 {
    let sent = run_in(name, &format!("cat /sys/class/net/{interface}/statistics/tx_packets")).unwrap();
    sent.trim().parse().expect("a number")
}

impl Server {
    fn counter(&self, name: &str) -> u64 {
        let counters = self.json("stat --all");
        counters["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {counters}"))
    }

    /// Runs loads until so many packets have come and gone; all answers must be right.
    fn load_until_many_have_left(&self, tenant: &str, bytes: u32, way: &str) {
        let end = self.counter("packets_out") + MANY;
        // Longer and longer: the machine may stall.
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
    let Some(Namespaces { names: [lab] }) = &lab() else { return };
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let server = Server::start_in(Some(lab), folder, &[&OPTIONS[..], &["--workers", "1"]].concat());
    let network = server.json("health")["network"].as_str().unwrap().to_owned();
    assert!(network.contains("net_af_xdp") && network.contains("link up"), "{network}");
    let packet = format!("--driver packet --device asking0 --address {ASKING}");
    server.load_until_many_have_left("small", 100, &packet);
    server.load_until_many_have_left("large", 5000, &packet);
    run(&format!("ip -n {lab} addr add {KERNEL} dev asking0")).unwrap();
    server.load_until_many_have_left("kernel", 1400, "");
    let (sent, left) = (server.counter("packets_out"), sent_by(lab, "served0"));
    // Beside the packets that the workers count there are answers to the neighbours' requests.
    assert!(sent > 3 * MANY && left >= sent, "the server has sent {sent} packets, of which {left} left");
    for name in ["device_no_buffer", "device_send_errors", "frames_refused.udp_checksum"] {
        assert_eq!(server.counter(name), 0, "{name}");
    }
}

#[test]
fn what_a_neighbour_on_the_same_machine_has_to_do_is_said() {
    let Some(Namespaces { names: [lab] }) = &lab() else { return };
    let output = binary_in(Some(lab)).args(["doctor", "--eal", EAL]).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output_text.contains("DPDK port net_af_xdp0: net_af_xdp") && output_text.contains("ethtool -K"),
        "{output_text}"
    );
    // Such a pair has one queue: more workers are refused in words.
    let folder = tempfile::tempdir().unwrap();
    let options = [&OPTIONS[..], &["--workers", "2"]].concat();
    let output = serve(Some(lab), folder.path(), &options).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && output_text.contains("has 1 queues in each direction, and 2 workers need one each"),
        "{output_text}"
    );
}
