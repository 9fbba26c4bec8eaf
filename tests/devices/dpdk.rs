//! Promise: the same server and the same load run on a device of DPDK: over shared memory (memif), with neither root
//! nor hugepages. They run with several workers, sealed and plain, calls included, in packets as large as both sides
//! support. After a client was killed in the middle the next one is served. Runs the real binary.

use std::process::{Command, Output, Stdio};

use crate::common::process::{Server, binary, eal_of_memif};
use serde_json::Value;

/// A server of two workers on the device.
fn start() -> Server {
    start_with(&[])
}

fn start_with(more: &[&str]) -> Server {
    let options = ["--no-pin", "--workers", "2", "--ephemeral", "--no-builder"];
    Server::start_over_memif(&["10.9.0.1/24", "fd09::1/64"], "10.9.0.2/24", &[&options, more].concat())
}

impl Server {
    /// A load from the other side of the shared memory.
    fn load(&self, options: &str) -> Command {
        let mut command = self.load_command();
        command.arg("--json").args(options.split_whitespace());
        command
    }

    /// As [`Self::load`], with further options of the memory.
    fn load_with(&self, memory: &str, options: &str) -> Command {
        let eal = eal_of_memif("client", &self.folder.path().join("socket")) + memory;
        let mut command = self.command();
        command.args(["load", "--driver", "dpdk", "--address", "10.9.0.2/24", "--json", "--eal", &eal]);
        command.args(options.split_whitespace());
        command
    }
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["wrong"], 0, "{report}");
    report
}

/// Operations of a class that succeeded.
fn answered(report: &Value, class: &str) -> u64 {
    let rows = report["classes"].as_array().unwrap();
    rows.iter().find(|row| row["class"] == class).and_then(|row| row["ok"].as_u64()).unwrap_or(0)
}

#[test]
fn a_load_runs_over_shared_memory_as_over_sockets() {
    let server = start();
    let health = server.json("health");
    assert_eq!(health["data_address"], "10.9.0.1:7400");
    let network = health["network"].as_str().unwrap();
    for word in ["net_memif", "hand over", "no flow rules", "LINK DOWN"] {
        assert!(network.contains(word), "{word}: {network}");
    }

    // Two tenants, with different home workers; values of several packets; sealed, since this is no loopback.
    for (tenant, home) in [("a", 0), ("b", 1)] {
        server.json(&format!("tenant create {tenant} --home {home}"));
        // Longer and longer: the machine may stall.
        let ran = ["1", "10", "60"].iter().any(|seconds| {
            let options = format!(
                "--tenant {tenant} --create --fill --records 300 --value-bytes 5000 --mix get=60,put=40 --depth 8 --verify-every 1 \
                 --warm-up 0 --deadline 60 --seconds {seconds}"
            );
            let output = server.load(&options).output().unwrap();
            if String::from_utf8_lossy(&output.stderr).contains("no request was sent") {
                return false;
            }
            let report = report(&output);
            answered(&report, "get") > 0 && answered(&report, "put") > 0
        });
        assert!(ran, "{tenant}: nothing was answered");
    }
    let stat = server.json("stat --all");
    assert!(stat["counters"]["packets_in"].as_u64() > Some(1000), "{stat}");
}

#[test]
fn a_value_is_one_packet_where_both_sides_have_large_ones() {
    let server = start_with(&["--mtu", "9000"]);
    server.json("tenant create shop");
    let counters = || {
        let counters = server.json("stat --all")["counters"].clone();
        ["packets_in", "bytes_in", "packets_out", "bytes_out"].map(|name| counters[name].as_u64().unwrap())
    };
    // Answers of 8 KiB to requests of 60 bytes, and the other way round. Longer and longer: the machine may stall.
    for (mix, packets, bytes) in [("get=100", 2, 3), ("put=100", 0, 1)] {
        let large = ["1", "10", "60"].iter().any(|seconds| {
            let before = counters();
            let options = format!(
                "--tenant shop --create --fill --records 100 --value-bytes 8192 --mix {mix} --depth 8 --warm-up 0 --deadline 60 --mtu 9000 \
                 --seconds {seconds}"
            );
            let output = server.load_with(",bsize=9216", &options).output().unwrap();
            if String::from_utf8_lossy(&output.stderr).contains("no request was sent") {
                return false;
            }
            report(&output);
            let after = counters();
            (after[bytes] - before[bytes]) / (after[packets] - before[packets]).max(1) > 6000
        });
        assert!(large, "{mix}: packets are small");
    }
    // A size that is too small for it is reported.
    let refused = server.load("--tenant shop --create --fill --records 10 --mtu 9000 --seconds 0").output().unwrap();
    let output_text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && output_text.contains("bsize=9018"), "{output_text}");
    // A client with small packets is served nevertheless.
    let small = "--tenant shop --records 100 --value-bytes 8192 --mix get=100 --seconds 1 --warm-up 0 --deadline 60";
    report(&server.load(small).output().unwrap());
}

#[test]
fn a_client_has_as_many_queues_as_the_server_has_workers_or_is_refused() {
    let server = start();
    server.json("tenant create shop");
    // The server's side would poll queues that do not exist.
    for queues in [1, 3] {
        let options = format!("--tenant shop --create --fill --records 10 --seconds 0 --queues {queues}");
        let refused = server.load(&options).output().unwrap();
        let output_text = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && output_text.contains("the server's 2 workers"), "{queues}: {output_text}");
    }
    let right = "--tenant shop --create --fill --records 10 --seconds 0 --deadline 60 --queues 2";
    assert!(server.load(right).output().unwrap().status.success());
}

#[test]
fn the_doctor_looks_at_shared_memory_without_connecting_to_who_is_at_the_other_end() {
    let folder = tempfile::tempdir().unwrap();
    let eal = eal_of_memif("client", &folder.path().join("socket"));
    let output = binary().args(["doctor", "--eal", &eal]).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(output_text.contains("DPDK port net_memif0") && output_text.contains("not opened"), "{output_text}");
}

#[test]
fn a_client_is_killed_and_the_next_one_is_served() {
    let server = start();
    server.json("tenant create shop --home 1");
    let fill = "--tenant shop --create --fill --records 200 --seconds 0 --deadline 60";
    assert!(server.load(fill).output().unwrap().status.success());
    for _ in 0..3 {
        let run = "--tenant shop --records 200 --mix ycsb-a --depth 32 --seconds 600 --deadline 60 --quiet";
        let before = server.json("stat --all")["counters"]["messages"].as_u64().unwrap();
        let mut load = server.load(run).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = std::time::Instant::now();
        while server.json("stat --all")["counters"]["messages"].as_u64().unwrap() < before + 1000 {
            assert!(begun.elapsed().as_secs() < 120 && load.try_wait().unwrap().is_none(), "the load does not run");
        }
        assert!(server.json("health")["network"].as_str().unwrap().contains("link up"));
        assert_eq!(server.json("stat --all")["counters"]["device_link_up"], 1);
        load.kill().unwrap();
        load.wait().unwrap();
        while server.json("stat --all")["counters"]["device_link_up"] != 0 {
            assert!(begun.elapsed().as_secs() < 240, "the link is still up");
        }
    }
    let last = "--tenant shop --records 200 --mix ycsb-a --depth 32 --seconds 10 --warm-up 0 --deadline 60";
    let report = report(&server.load(last).output().unwrap());
    assert!(answered(&report, "get") > 0, "{report}");
}
