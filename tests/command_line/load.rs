//! Promise: `sandstorm load` puts a load on a running server, as one tenant or as many, checks the replies and reports
//! the results. It creates nothing that it was not asked for. Runs the real binary on free ports, with the real
//! extensions.

use std::process::Stdio;
use std::sync::OnceLock;

use crate::common::EVENTUALLY;
use crate::common::network::{is_ipv6, is_memif};
use crate::common::process::Server;
use serde_json::Value;

/// A configuration that gives compilers more time than users would wait: the machine may be busy with this and other
/// tests.
fn config_file() -> &'static str {
    static FILE: OnceLock<()> = OnceLock::new();
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/load.toml");
    FILE.get_or_init(|| std::fs::write(path, "[builder]\ncpu_s = 200\nwall_s = 600\n").unwrap());
    path
}

impl Server {
    fn start_for_loads(options: &[&str]) -> Server {
        let options = [&["--no-pin", "--workers", "1", "--config", config_file()], options].concat();
        if !is_memif() {
            return Server::start_as(&options);
        }
        let [server, client] = if is_ipv6() { ["fd09::1/64", "fd09::2/64"] } else { ["10.9.0.1/24", "10.9.0.2/24"] };
        Server::start_over_memif(&[server], client, &options)
    }

    /// Runs a command that must fail; returns its error.
    fn fails_in_json(&self, line: &str) -> Value {
        let output = self.output(&format!("{line} --json"));
        assert!(!output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
        let text = String::from_utf8(output.stderr).unwrap();
        serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap()["error"].clone()
    }

    /// Runs a load, with longer and longer runs until all these classes were asked and answered: the machine may stall.
    fn load(&self, options: &str, classes: &[&str]) -> Value {
        for seconds in [0.3, 1.0, 3.0, 9.0, 27.0] {
            let output = self.output(&format!("load --warm-up 0 --deadline 30 --seconds {seconds} {options} --json"));
            let output_text = String::from_utf8_lossy(&output.stderr);
            if output_text.contains("no request was sent") {
                continue;
            }
            assert!(output.status.success(), "{options}: {output_text}");
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["wrong"], 0, "{report}");
            let answered =
                |class: &&str| rows(&report).any(|row| row["class"] == **class && row["ok"].as_u64() > Some(0));
            if classes.iter().all(answered) {
                return report;
            }
        }
        panic!("{options}: not all of {classes:?} were answered");
    }
}

fn rows(report: &Value) -> impl Iterator<Item = &Value> {
    report["classes"].as_array().unwrap().iter()
}

#[test]
fn nothing_is_created_that_was_not_asked_for() {
    let server = Server::start_for_loads(&["--no-builder"]);
    assert!(server.fails_in_json("load --tenants 3 --fill")["message"].as_str().unwrap().contains("3 of 3 tenants"));
    assert!(server.fails_in_json("load --tenant a --fill")["message"].as_str().unwrap().contains("no tenant \"a\""));
    server.json("tenant create shop");
    let error = server.fails_in_json("load --fill");
    assert_eq!(error["message"], "tenant \"shop\" has no table \"load\"");
    assert!(error["hint"].as_str().unwrap().contains("--create makes it"), "{error}");
    assert_eq!(server.json("table list").as_array().unwrap().len(), 0);
    server.json("table create load");
    let error = server.fails_in_json("load --records 50");
    assert_eq!(error["code"], "not_filled", "{error}");
    assert!(error["message"].as_str().unwrap().contains("has 0 records, the load needs 50"), "{error}");
    let error = server.fails_in_json("load --records 50 --fill --mix chain");
    assert!(error["message"].as_str().unwrap().contains("has no extension \"chain\""), "{error}");
    assert!(server.fails_in_json("load --seconds 0")["hint"].as_str().unwrap().contains("--fill"));
    assert!(server.fails_in_json("load --mix scan --sizes etc")["message"].as_str().unwrap().contains("scan"));
    assert_eq!(server.json("table show load")["records"], 0);

    let filled = server.json("load --records 50 --fill --seconds 0");
    assert_eq!((filled["filled"]["records"].as_u64(), filled.get("classes")), (Some(50), None));
    // The records were filled with other options than the load asks for: wrong replies are an error.
    let wrong = [1, 10, 60].into_iter().any(|seconds| {
        let sizes = "--value-bytes 40 --mix get --verify-every 1";
        let error = server.fails_in_json(&format!("load --records 50 {sizes} --warm-up 0 --seconds {seconds}"));
        error["code"] == "wrong" && error["message"].as_str().unwrap().contains("were wrong")
    });
    assert!(wrong, "nobody noticed");
    let report = server.load("--records 50 --mix ycsb-a --verify-every 1", &["get", "put"]);
    let get = rows(&report).find(|row| row["class"] == "get").unwrap();
    assert_eq!((&get["verified"], &get["missed"]), (&get["ok"], &Value::from(0)));
    assert_eq!(report["tenants"][0]["name"], "shop");
}

#[test]
fn a_load_whose_server_stops_ends_with_it_and_is_a_failure() {
    let server = Server::start_for_loads(&["--no-builder"]);
    server.json("tenant create shop");
    server.json("table create load");
    server.json("load --records 50 --fill --seconds 0");
    let begun = std::time::Instant::now();
    let mut load = server.load_command();
    load.args("--records 50 --mix ycsb-b --warm-up 0 --deadline 30 --seconds 600 --json".split_whitespace());
    let mut load = load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It runs as soon as the server has answered some of its requests.
    let gets = || server.json("stat --all")["counters"]["requests.get"].as_u64().unwrap_or_default();
    while gets() < 1000 {
        if load.try_wait().unwrap().is_some() || begun.elapsed() > EVENTUALLY {
            let _ended = load.kill();
            panic!("the load does not begin: {:?}", load.wait_with_output().unwrap());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    server.json("stop");
    let output = load.wait_with_output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output_text}");
    assert!(begun.elapsed().as_secs() < 500, "it does not ask for ten minutes who is not there");
    let error: Value = serde_json::from_str(output_text.lines().last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "shutting_down", "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["per_s"].as_f64() > Some(0.0), "what was found until then is told: {report}");
}

#[test]
fn workloads_of_plain_operations_are_answered_rightly() {
    let server = Server::start_for_loads(&["--no-builder"]);
    server.json("tenant create shop");
    server.json("table create etc");
    let report = server.load(
        "--mix etc --table etc --records 200 --fill --verify-every 1 --rate 3000 --arrivals pareto",
        &["get", "put", "delete"],
    );
    let get = rows(&report).find(|row| row["class"] == "get").unwrap();
    assert!(get["missed"].as_u64().unwrap() < get["ok"].as_u64().unwrap(), "{report}");
    assert_eq!(server.json("table show etc")["records"], 200);
    let progress =
        String::from_utf8(server.output("load --table etc --records 200 --mix etc --seconds 2").stderr).unwrap();
    assert!(progress.lines().any(|line| line.contains("/s  errors") && line.contains("p99")), "{progress}");

    server.json("table create d");
    server.load("--mix ycsb-d --table d --records 200 --fill --verify-every 1", &["get", "insert"]);
    assert!(server.json("table show d")["records"].as_u64().unwrap() > 200);
    server.load(
        "--mix read-modify-write,delete,increment,multi-get --table d --records 200 --fill --verify-every 1",
        &["read-modify-write", "delete", "increment", "multi-get"],
    );
}

#[test]
fn every_extension_is_called_and_its_replies_are_right() {
    let server = Server::start_for_loads(&[]);
    let calls = "invoke-get,scan,chain,aggregate,checksum,analysis,auth,long";
    let extensions = calls.split(',').count();
    let by_gets = "chain-gets,aggregate-gets,checksum-gets,analysis-gets,auth-gets,long-gets";
    let calls = format!("{calls},{by_gets}");
    let classes: Vec<&str> = calls.split(',').collect();
    let options = format!("--tenant shop --mix {calls} --records 100 --verify-every 1 --depth 2");
    let report = server.load(&format!("{options} --create --fill"), &classes);
    assert_eq!(rows(&report).count(), classes.len());
    for row in rows(&report) {
        assert_eq!((&row["ok"], &row["verified"]), (&row["count"], &row["count"]), "{report}");
    }
    assert_eq!(server.json("ext list --tenant shop").as_array().unwrap().len(), extensions);
    server.load("--tenant shop --mix ycsb-e --records 100 --verify-every 1 --depth 2", &["scan", "insert"]);
    let report = server.load("--tenant shop --create --mix get --bad-every 50 --rate 2000 --records 100", &["get"]);
    let bad = rows(&report).find(|row| row["class"] == "bad").expect("bad calls");
    assert_eq!(bad["ok"], 0, "{bad}");
}

#[test]
fn what_is_moved_between_accounts_is_neither_lost_nor_made() {
    let server = Server::start_for_loads(&[]);
    let few = "ycsb-t --tenant shop --records 20 --keys uniform --depth 32 --verify-every 1";
    let report = server.load(&format!("{few} --create --fill"), &["balance", "transfer"]);
    let mut errors = rows(&report).flat_map(|row| row["errors"].as_object().unwrap().keys());
    assert!(errors.all(|error| error == "conflict"), "{report}");
    if is_memif() {
        return println!("skipped: `sandstorm put` talks over kernel sockets");
    }
    // The accounts hold more than at first: the check of the sum notices that.
    let account = format!("a{:029}", 7);
    assert!(server.output(&format!("put load {account} 12345678 --tenant shop")).status.success());
    let noticed = [0.3, 5.0, 60.0].into_iter().any(|seconds| {
        let error = server.fails_in_json(&format!("load {few} --warm-up 0 --deadline 30 --seconds {seconds}"));
        error["code"] == "wrong" && error["message"].as_str().unwrap().contains("in all")
    });
    assert!(noticed);
}

/// Every operation of the interface with the same frequency, whatever published mixes have.
const OF_GRAPHS: &str = "obj-get,obj-add,obj-update,obj-delete,assoc-get,assoc-count,assoc-range,assoc-time-range,assoc-add,\
    assoc-delete,assoc-change-type";

#[test]
fn a_graph_is_filled_and_asked_rightly_wherever_its_queries_are_run() {
    let server = Server::start_for_loads(&[]);
    let graph = "--tenant shop --objects 300 --limit 7 --most-edges 60 --depth 8 --verify-every 1 --keys uniform";
    server.load(&format!("tao-60-40 {graph} --create --fill --exact"), &["obj-get", "assoc-range"]);
    let queries = "obj-get,assoc-get,assoc-count,assoc-range,assoc-time-range";
    for placement in PLACEMENTS {
        let classes: Vec<&str> = queries.split(',').collect();
        let report = server.load(&format!("{queries} {graph} --exact --placement {placement}"), &classes);
        for row in rows(&report) {
            assert_eq!((&row["ok"], &row["verified"]), (&row["count"], &row["count"]), "{placement}: {report}");
        }
    }
    for placement in PLACEMENTS {
        let classes: Vec<&str> = OF_GRAPHS.split(',').collect();
        let report = server.load(&format!("{OF_GRAPHS} {graph} --placement {placement}"), &classes);
        let mut errors = rows(&report).flat_map(|row| row["errors"].as_object().unwrap().keys());
        assert!(errors.all(|error| error == "conflict"), "{placement}: {report}");
    }
    // The graph has changed since it was filled: `--exact` reports that.
    let noticed = [0.3, 5.0, 60.0].into_iter().any(|seconds| {
        let error = server
            .fails_in_json(&format!("load {queries} {graph} --exact --warm-up 0 --deadline 30 --seconds {seconds}"));
        error["code"] == "wrong"
    });
    assert!(noticed);
    server.load(&format!("tao {graph}"), &["obj-get", "assoc-get", "assoc-count", "assoc-range", "assoc-time-range"]);
    for (asked, most) in [("--limit 1001", "1000 at most"), ("--limit 16 --edge-bytes 65536", "15 at most")] {
        let refused = server.fails_in_json(&format!("load tao --tenant shop --objects 300 {asked}"));
        assert!(refused["message"].as_str().unwrap().contains(most), "{refused}");
    }
}

const PLACEMENTS: [&str; 3] = ["client", "invocation", "combined"];

#[test]
fn many_tenants_are_made_loaded_by_their_skew_and_removed() {
    let server = Server::start_for_loads(&["--no-builder"]);
    let many = "--tenants 20 --tenant-prefix t --records 30 --rate 4000 --tenant-skew 1 --arrivals even --quiet";
    let report = server.load(&format!("{many} --create --fill"), &["get"]);
    assert_eq!(report["filled"]["records"], 600);
    let tenants = report["tenants"].as_array().unwrap();
    assert_eq!((tenants.len(), &tenants[19]["name"]), (20, &Value::from("t-20")));
    let asked = |tenant: &Value| {
        tenant["rows"].as_array().unwrap().iter().map(|row| row["count"].as_u64().unwrap()).sum::<u64>()
    };
    // As many requests as planned, whether the machine kept up or not: a tenth for the tenth tenant.
    assert!(asked(&tenants[0]).abs_diff(10 * asked(&tenants[9])) <= 20, "{report}");
    assert_eq!(server.json("tenant list").as_array().unwrap().len(), 20);
    assert_eq!(server.json("table show load --tenant t-7")["records"], 30);

    // What existed before stays.
    let more = many.replace("20", "22");
    server.load(&format!("{more} --create --remove --fill"), &["get"]);
    assert_eq!(server.json("tenant list").as_array().unwrap().len(), 20);
    server.load(many, &["get"]);
}
