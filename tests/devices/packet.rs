//! Promise: the server serves over packet sockets (`--driver packet`), beside the kernel's stack, to clients on the
//! kernel's stack. This covers gets, puts, values of several packets, ranges, calls, several workers, IPv4 and IPv6,
//! and sealed sessions. Options that do not work are reported in words. Each test makes two network namespaces with a
//! pair of virtual interfaces between them, which takes root; without it each says so and ends. Runs the real binary.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::namespaces::{Pair, run, within};
use crate::common::process::{Server, binary_in, serve};
use sandstorm_client::blocking::Client;
use sandstorm_client::raw::Connection;
use sandstorm_client::{Config, Direction, PutOptions};
use serde_json::Value;

const KERNEL: [&str; 2] = ["10.67.0.1", "fd67::1"];
const OURS: [&str; 2] = ["10.67.0.2", "fd67::2"];
const TENANT: u32 = 1;
const TABLE: u64 = 1;
const TOKEN: &str = "a-token-of-twenty-letters-and-more";
/// Timeout of operations that may take long on a busy machine.
const PATIENT: Duration = sandstorm_client::limits::MAX_DEADLINE;

/// Options of all servers here.
const OPTIONS: [&str; 4] = ["--driver", "packet", "--ephemeral", "--no-pin"];

/// The kernel's namespace and the server's.
struct Lab {
    pair: Pair,
    folder: Arc<tempfile::TempDir>,
}

/// The error of a command that must fail.
fn error_of(output: &Output) -> String {
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output_text}");
    let last: Value =
        serde_json::from_str(output_text.lines().last().unwrap()).unwrap_or_else(|_| panic!("{output_text}"));
    last["error"]["message"].as_str().unwrap().to_owned()
}

impl Lab {
    /// `None` if this machine does not allow it.
    fn new() -> Option<Lab> {
        let pair = Pair::new(KERNEL, 1500)?;
        Some(Lab { pair, folder: Arc::new(tempfile::tempdir().unwrap()) })
    }

    /// A server with these options.
    fn serve(&self, options: &[&str]) -> Server {
        Server::start_in(Some(&self.pair.ours), Arc::clone(&self.folder), &[&OPTIONS, options].concat())
    }

    /// The error of a server that does not start.
    fn refused(&self, options: &[&str]) -> String {
        let options = [&OPTIONS, options].concat();
        error_of(&serve(Some(&self.pair.ours), self.folder.path(), &options).output().unwrap())
    }

    /// A server with a tenant and a table.
    fn start(&self, workers: &str) -> Server {
        let file = self.folder.path().join("server.toml");
        let text = format!(
            "[net]\ndriver = \"packet\"\ndevice = \"ours0\"\naddress = [\"{}/24\", \"{}/64\"]\n\n\
             [[tenants]]\nname = \"shop\"\nid = {TENANT}\ntoken = \"{TOKEN}\"\nhome_worker = 1\n\
             tables = [{{ name = \"t\", id = {TABLE}, ordered = true }}]\n",
            OURS[0], OURS[1]
        );
        std::fs::write(&file, text).unwrap();
        let server = self.serve(&["--workers", workers, "--config", file.to_str().unwrap()]);
        assert_eq!(server.data, format!("{}:7400", OURS[0]));
        server
    }
}

fn extension() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ext/get").canonicalize().unwrap()
}

#[test]
fn a_client_of_the_kernels_stack_is_served_over_packet_sockets() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.start("3");
    let network = server.json("health")["network"].as_str().unwrap().to_owned();
    assert!(network.contains("packet sockets, ours0") && network.contains("kernel brings"), "{network}");
    server.json(&format!("--tenant shop ext push {}", extension().display()));
    for ip in OURS {
        within(&lab.pair.kernel, || {
            let address = SocketAddr::new(ip.parse().unwrap(), 7400);
            let config = Config::new(address, TENANT).token(TOKEN).deadline(PATIENT);
            assert!(config.is_sealed(), "it is no loopback");
            let client = Client::connect(config).expect("the server answers");
            assert_eq!(
                (client.run(|client| async move { client.workers() }), client.get(TABLE, b"nobody")),
                (3, Ok(None))
            );
            // From zero bytes to hundreds of packets, each way.
            for len in [0usize, 1, 100, 1399, 1400, 1500, 5_000, 64 << 10, 500_000] {
                let key = format!("{ip} {len:07}").into_bytes();
                let value: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
                client.put(TABLE, &key, &value, &PutOptions::default()).expect("there is room");
                let record = client.get(TABLE, &key).expect("an answer").expect("just put");
                assert!(record.value == value, "{len} bytes by {ip}");
                let args = [&TABLE.to_le_bytes()[..], &key].concat();
                if len <= 64 << 10 {
                    assert!(client.invoke("get", &args).expect("an answer") == value, "{len} bytes by {ip}, called");
                }
            }
            let found = client.range(TABLE, ip.as_bytes(), b"", 3, Direction::Forward).expect("an answer");
            let lens: Vec<usize> = found.iter().map(|record| record.value.len()).collect();
            assert_eq!(lens, [0, 1, 100]);
            assert_eq!(client.delete(TABLE, format!("{ip} {:07}", 1).as_bytes()), Ok(true));
        });
    }
    let counters = server.json("stat --all")["counters"].clone();
    assert!(counters["packets_in"].as_u64() > Some(1000), "{counters}");
    assert_eq!(counters["packets_handed_over"], 0, "the kernel's program chooses the worker: {counters}");
}

/// A server on one end of a pair of interfaces with packets of up to so many bytes; the load runs at the other end.
fn near(lab: &Lab, mtu: usize) -> Server {
    run(&format!("ip -n {} link add far0 mtu {mtu} type veth peer name near0 mtu {mtu}", lab.pair.ours)).unwrap();
    for name in ["far0", "near0"] {
        run(&format!("ip -n {} link set {name} up", lab.pair.ours)).unwrap();
    }
    lab.serve(&["--device", "near0", "--address", "10.68.0.2/24", "--workers", "2", "--no-builder"])
}

#[test]
fn a_value_is_one_packet_where_both_interfaces_have_large_ones() {
    let Some(lab) = Lab::new() else { return };
    let server = near(&lab, 9000);
    let counters = || {
        let counters = server.json("stat --all")["counters"].clone();
        ["packets_in", "bytes_in", "packets_out", "bytes_out"].map(|name| counters[name].as_u64().unwrap())
    };
    for (mix, packets, bytes) in [("get=100", 2, 3), ("put=100", 0, 1)] {
        // Longer and longer: the machine may stall.
        let large = ["1", "10", "60"].iter().any(|seconds| {
            let before = counters();
            let line = format!(
                "load --tenant a --create --fill --records 100 --value-bytes 8192 --mix {mix} --depth 8 --warm-up 0 --deadline 60 \
                 --seconds {seconds} --driver packet --device far0 --address 10.68.0.1/24"
            );
            let report = server.json(&line);
            assert_eq!(report["wrong"], 0, "{report}");
            let after = counters();
            (after[bytes] - before[bytes]) / (after[packets] - before[packets]).max(1) > 6000
        });
        assert!(large, "{mix}: packets are small");
    }
}

#[test]
fn a_load_runs_over_packet_sockets_on_both_sides() {
    let Some(lab) = Lab::new() else { return };
    let server = near(&lab, 1500);
    // Longer and longer: the machine may stall.
    let ran = ["1", "10", "60"].iter().any(|seconds| {
        let line = format!(
            "load --tenant a --create --fill --records 300 --value-bytes 5000 --mix get=60,put=40 --depth 8 --verify-every 1 --warm-up 0 \
             --deadline 60 --connections 3 --seconds {seconds} --driver packet --device far0 --address 10.68.0.1/24"
        );
        let report = server.json(&line);
        assert_eq!(report["wrong"], 0, "{report}");
        report["classes"].as_array().unwrap().iter().all(|row| row["ok"].as_u64() > Some(0))
    });
    assert!(ran, "not all were answered");
}

/// The kernel would fragment what does not fit a route, and fragments are refused. It knows a route's MTU by its
/// interface, by a router's message, or, as here, by its own table.
#[test]
fn a_client_of_the_kernels_stack_sends_no_pieces_on_a_way_that_bears_less() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.start("2");
    for (ip, len) in OURS.iter().zip([32, 128]) {
        run(&format!("ip -n {} route add {ip}/{len} dev kern0 mtu 1300", lab.pair.kernel)).unwrap();
        let address = SocketAddr::new(ip.parse().unwrap(), 7400);
        let value: Vec<u8> = (0..50_000u32).map(|at| (at >> 3) as u8).collect();
        within(&lab.pair.kernel, || {
            let config = Config::new(address, TENANT).token(TOKEN).deadline(PATIENT);
            let client = Client::connect(config.clone()).expect("the server answers");
            client.put(TABLE, ip.as_bytes(), &value, &PutOptions::default()).expect("there is room");
            // The other kind of client, which lets the kernel segment its packets.
            let mut connection = Connection::connect(&config).expect("the server answers");
            let (mut message, key) = (connection.message(), [ip, " raw"].concat());
            message.put(TABLE, key.as_bytes(), &value, &PutOptions::default());
            connection.send(0, message).expect("there is room");
            while connection.in_flight() > 0 {
                connection.poll(|_, answer| assert!(answer.is_ok(), "{:?}", answer.err()));
            }
            for key in [ip, key.as_str()] {
                let record = client.get(TABLE, key.as_bytes()).expect("an answer").expect("just put");
                assert!(record.value == value, "{key}");
            }
        });
    }
    let counters = server.json("stat --all")["counters"].clone();
    assert_eq!(counters["frames_refused.fragment"], 0, "{counters}");
}

#[test]
fn what_it_cannot_be_started_with_is_said() {
    let Some(lab) = Lab::new() else { return };
    let there = ["--device", "ours0", "--no-builder", "--workers", "1"];
    run(&format!("ip -n {} addr add 10.67.0.9/24 dev ours0", lab.pair.ours)).unwrap();
    for (words, says) in [
        (&["--device", "nosuch0", "--address", "10.67.0.2/24"][..], "no network interface \"nosuch0\""),
        (&["--device", "lo", "--address", "10.67.0.2/24"], "does not carry Ethernet"),
        (&["--address", "10.67.0.2/24"], "--device eth1"),
        (&["--device", "ours0"], "--address 10.0.0.2/24"),
        (&["--device", "ours0", "--address", "10.67.0.9/24"], "the kernel has the address 10.67.0.9 on ours0"),
        (&["--device", "ours0", "--address", "10.67.0.0/24"], "stands for its network"),
    ] {
        let output_text = lab.refused(&[words, &there[2..]].concat());
        assert!(output_text.contains(says), "{words:?}: {output_text}");
    }
    // Without the privilege for packet sockets.
    let mut bare = Command::new("ip");
    bare.args(["netns", "exec", &lab.pair.ours, "setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"]);
    bare.args([env!("CARGO_BIN_EXE_sandstorm-under-test"), "serve", "--json", "--driver", "packet", "--ephemeral"]);
    bare.args(["--control", "127.0.0.1:0"]);
    bare.args(there).args(["--address", "10.67.0.2/24", "--state"]).arg(lab.folder.path().join("bare"));
    match bare.stdin(Stdio::null()).output() {
        Ok(output) => {
            let output_text = error_of(&output);
            assert!(output_text.contains("cap_net_raw"), "{output_text}");
        }
        Err(why) => println!("skipped: no setpriv here: {why}"),
    }
    let doctor = |name: &str| {
        let output = binary_in(Some(&lab.pair.ours)).args(["doctor", "--interface", name]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(doctor("ours0").starts_with("good  packet socket on ours0"), "{}", doctor("ours0"));
    run(&format!("ip -n {} link set ours0 down", lab.pair.ours)).unwrap();
    let output_text = lab.refused(&[&there[..], &["--address", "10.67.0.2/24"]].concat());
    assert!(output_text.contains("ip link set dev ours0 up"), "{output_text}");
    assert!(doctor("ours0").contains("-> ip link set dev ours0 up"), "{}", doctor("ours0"));
}
