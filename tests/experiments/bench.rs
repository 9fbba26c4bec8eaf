//! Promise: `sandstorm bench` runs its experiments and writes a page and data that have all of their rows. The sizes
//! are tiny, and speed is not checked.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::toolchain;

/// Timeout of the retries. Where a machine stalls during the whole of a short measurement, nothing is measured, and the
/// command reports that. On a busy one a chain of requests by the client takes longer than its measurement, again and
/// again.
const PATIENCE: Duration = Duration::from_secs(300);

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandstorm-under-test"));
    // The compilers' libraries are the same for all runs: each would make them for seconds.
    let sysroots = toolchain().sysroots().next().and_then(Path::parent).expect("the toolchain's folder");
    command.arg("bench").args(arguments).arg("--sysroots").arg(sysroots);
    command.env_remove("RUST_LOG").output().expect("the program runs")
}

/// Serialises the runs: each starts servers that poll, up to eight of them, and compilers that get the remaining time.
/// Of five runs side by side on two processors one exceeded a compiler's time limit.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The data of a run in which every experiment measured something.
fn bench_until_measured(arguments: &[&str], data: &Path) -> (String, Value) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = Instant::now();
    loop {
        let output = bench(arguments);
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() {
            let data = std::fs::read_to_string(data).expect("the data");
            if !data.contains("\"median\": null") || begun.elapsed() > PATIENCE {
                return (text.into_owned(), serde_json::from_str(&data).expect("it is JSON"));
            }
        } else {
            assert!(errors.contains("nothing was measured") && begun.elapsed() < PATIENCE, "{errors}");
        }
    }
}

/// The numbers of rows of the experiment's tables, of its ratios and of its plots.
fn shape(experiment: &Value) -> (Vec<usize>, usize, usize) {
    let list = |name: &str| experiment[name].as_array().unwrap_or_else(|| panic!("no {name}: {experiment}"));
    let rows = |table: &Value| {
        let columns = table["columns"].as_array().expect("columns").len();
        let rows = table["rows"].as_array().expect("rows");
        for row in rows {
            let cells = row["cells"].as_array().expect("cells");
            assert_eq!(cells.len(), columns, "{row}");
            assert!(cells.iter().all(|cell| cell["median"].is_number()), "a cell that was not measured: {row}");
        }
        rows.len()
    };
    (list("tables").iter().map(rows).collect(), list("ratios").len(), list("plots").len())
}

fn check_page(path: &Path, names: &[&str]) {
    let page = std::fs::read_to_string(path).expect("the page");
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    for name in names {
        assert!(page.contains(&format!("<section id=\"{name}\">")), "{name} is not on the page");
    }
    assert!(!page.contains("NaN"), "what was not measured is no figure");
}

/// An experiment's name, and its [`shape`].
type Expected<'e> = (&'e str, (Vec<usize>, usize, usize));

/// Runs these with tiny sizes and few points; the results must have all of their rows.
fn measure_all(expected: &[Expected<'_>]) -> (String, Value) {
    measure_all_with(expected, &[])
}

/// The same with further arguments.
fn measure_all_with(expected: &[Expected<'_>], more: &[&str]) -> (String, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("made/here");
    let names: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
    let tiny = ["--quick", "--records", "2000", "--rounds", "1", "--seconds", "0.1", "--depth", "8"];
    let into = ["--out", out.to_str().expect("a name")];
    let (output_text, data) =
        bench_until_measured(&[&names[..], &tiny, more, &into].concat(), &out.join("report.json"));
    check_page(&out.join("report.html"), &names);
    let experiments = data["experiments"].as_array().expect("experiments");
    assert_eq!(experiments.len(), names.len());
    for (name, expected) in expected {
        let found = experiments.iter().find(|one| one["name"] == **name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(shape(found), *expected, "{name}");
    }
    (output_text, data)
}

#[test]
fn the_report_has_all_rows_of_what_was_asked() {
    let (output_text, data) = measure_all(&[
        ("invoke", (vec![2], 1, 0)),
        ("chain", (vec![2], 1, 0)),
        ("load", (vec![9, 9, 9], 0, 3)),
        ("table", (vec![4], 0, 1)),
    ]);
    assert!(output_text.contains("report.html") && output_text.contains("== table:"), "{output_text}");
    assert!(data["machine"]["kernel"].as_str().is_some_and(|kernel| kernel.starts_with("Linux ")));
}

#[test]
fn so_have_those_of_where_work_is_done() {
    measure_all(&[("crossover", (vec![8, 8], 16, 2)), ("interleave", (vec![2], 1, 0)), ("ycsb-t", (vec![5; 4], 5, 3))]);
    measure_all(&[("extensions", (vec![2; 5], 5, 0))]);
    measure_all(&[("tao", (vec![3; 8], 24, 2))]);
}

#[test]
fn so_has_that_of_triggers() {
    measure_all(&[("triggers", (vec![4, 2, 2, 4], 6, 0))]);
}

#[test]
fn so_has_that_of_ranks() {
    measure_all(&[("ranks", (vec![9, 2], 4, 0))]);
}

#[test]
fn so_has_that_of_a_process_for_each_tenant() {
    measure_all(&[("isolation", (vec![5, 8, 2, 2], 2, 3))]);
}

#[test]
fn so_has_that_of_many_tenants_with_code_of_their_own() {
    measure_all(&[("density", (vec![3, 3, 3, 3, 3, 3, 2], 15, 6))]);
}

#[test]
fn so_have_those_of_what_is_on_the_disk() {
    if !is_there("redis-server") {
        return;
    }
    measure_all(&[("durable", (vec![7, 5, 3, 2, 2], 9, 0)), ("recovery", (vec![3], 2, 0))]);
}

#[test]
fn so_has_that_of_a_server_whose_place_is_taken() {
    if !is_there("etcd") {
        return;
    }
    measure_all(&[("failover", (vec![3, 7], 0, 0))]);
}

fn is_there(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        println!("skipped: {program} is not installed");
    }
    is_there
}

#[test]
fn so_has_that_of_slots_that_move() {
    if !is_there("etcd") {
        return;
    }
    let redis_tables = if is_there("redis-server") && is_there("redis-cli") { vec![2] } else { vec![] };
    let tables = [vec![2, 4], redis_tables].concat();
    let (_, data) = measure_all_with(&[("migration", (tables, 6, 6))], &["--writes", "2000", "--share", "0.2"]);
    let found = &data["experiments"][0];
    for row in found["tables"][0]["rows"].as_array().expect("rows") {
        let failed = row["cells"].as_array().expect("cells").last().expect("the requests that failed");
        assert_eq!(failed["median"], 0.0, "requests wait while their slot is between servers: {row}");
    }
    let notes = found["notes"].to_string();
    assert!(notes.contains("records move"), "{notes}");
}

/// Whether there is a NATS that syncs with each message: version 2.10 is the first.
fn nats_syncs_each_message() -> bool {
    let Ok(output) = Command::new("nats-server").arg("--version").output() else { return false };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut numbers = text.rsplit('v').next().unwrap_or_default().split('.').map(|part| part.trim().parse::<u32>());
    matches!((numbers.next(), numbers.next()), (Some(Ok(2)), Some(Ok(10..))))
}

#[test]
fn so_has_that_of_what_a_cluster_costs_a_write() {
    if !is_there("etcd") {
        return;
    }
    let peers = usize::from(nats_syncs_each_message());
    let (_, data) = measure_all(&[("cluster-puts", (vec![2 + peers, 2, 2], 4 + peers, 0))]);
    let notes = data["experiments"][0]["notes"].to_string();
    assert_eq!(peers == 0, notes.contains("left out: JetStream"), "{notes}");
}

#[test]
fn so_has_that_of_multigets_of_keys_of_several_servers() {
    if !is_there("etcd") {
        return;
    }
    measure_all(&[("locality", (vec![7; 4], 2, 4))]);
}

#[test]
fn so_has_that_of_tables_larger_than_memory() {
    if !is_there("memcached") {
        return;
    }
    measure_all(&[("spill", (vec![3, 2, 2], 5, 0))]);
}

#[test]
fn so_has_that_of_looking_at_a_server() {
    measure_all(&[("observation", (vec![2, 2, 2], 5, 0)), ("tenant-tools", (vec![4, 2, 4, 3, 4], 11, 0))]);
}

#[test]
fn so_has_that_of_tables_with_a_backing() {
    measure_all(&[("backing", (vec![1, 1, 1, 1, 1, 2, 2, 2, 2], 3, 8))]);
}

#[test]
fn every_driver_is_a_row_or_says_why_it_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a name").to_owned();
    let tiny = ["backends", "--records", "2000", "--rounds", "1", "--seconds", "0.1", "--out", &out];
    let (_, data) = bench_until_measured(&tiny, &folder.path().join("report.json"));
    let found = &data["experiments"][0];
    let (rows, ratios, _) = shape(found);
    let tables = found["tables"].as_array().expect("tables");
    let is_of_drivers = |table: &&Value| table["of"] == "driver";
    assert_eq!(
        tables.iter().filter(is_of_drivers).count(),
        5,
        "two depths, each with how busy the server was, and two sizes of values"
    );
    assert!(rows.iter().all(|rows| *rows > 0) && ratios >= 10, "{found}");
    let notes = found["notes"].to_string();
    let drivers = ["one datagram a call", "GSO and GRO", "af_packet", "af_xdp", "memif"];
    for (at, driver) in drivers.iter().enumerate() {
        let has = |table: &Value| {
            let rows = table["rows"].as_array().expect("rows");
            rows.iter().any(|row| row["name"].as_str().is_some_and(|name| name.contains(driver)))
        };
        let in_all = tables.iter().filter(is_of_drivers).all(has);
        let why = at >= 2 && notes.contains(&format!("skipped: {driver}"));
        assert!(in_all != why, "{driver}: {found}");
    }
    println!("{notes}");
}

#[test]
fn what_there_is_not_is_said() {
    for (arguments, expected) in [
        (&["nonsense"][..], "invalid value 'nonsense'"),
        (&["table", "--seconds", "0"], "more than 0"),
        (&["table", "--records", "0"], "--records"),
        (&["neighbours", "--attack", "no such attack"], "no attack has"),
        (&["backends", "--driver", "no such driver"], "no driver has"),
    ] {
        let output = bench(arguments);
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output_text.contains(expected), "{arguments:?}: {output_text}");
    }
}
