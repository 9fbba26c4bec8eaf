//! Promise (docs/cluster.md, docs/durability.md): a server reads its log, and the copies of other servers' logs that it
//! has, again from its disk while it serves. A byte that the disk has changed is found and told; a copy is replaced, a
//! log gets a checkpoint in the place of what is damaged, and nothing that was acknowledged is lost.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use sandstorm_client::{Config, PutOptions, blocking};
use serde_json::Value;

use super::cluster::status;
use super::cluster_copies::{ITEMS, KnownKeys, await_succession, check, count_up};
use super::cluster_failover::CopyingCluster;
use crate::common::eventually;
use crate::common::process::Server;

/// A byte of the first change of a log. The first frame is empty: in its block are zeros that no start needs.
const OF_A_CHANGE: u64 = 2 * 4_096 + 70;
/// A byte of the header of a file.
const OF_THE_HEADER: u64 = 20;

/// Changes a byte of the first change of a log, or of a copy of one.
pub(super) fn flip_byte(path: &Path) {
    flip_byte_at(path, OF_A_CHANGE);
}

/// Changes a byte of a file.
fn flip_byte_at(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= 8;
    file.write_all_at(&byte, at).unwrap();
}

/// The first file of a folder whose name begins so.
pub(super) fn first_file(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.into_iter().next()
}

fn has_event(server: &Server, code: &str, says: &str) -> bool {
    let events = String::from_utf8(server.output("events --json").stdout).unwrap();
    let mut events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.any(|event| event["code"] == code && event["text"].as_str().is_some_and(|text| text.contains(says)))
}

/// The folder of a copy of a server's log on the server that its generation has, if it is not that one; and the number
/// of that server.
pub(super) fn needed_copy(
    cluster: &CopyingCluster,
    owner: &str,
    other_than: Option<&Path>,
) -> Option<(PathBuf, usize)> {
    let status = status(cluster.servers.last().unwrap());
    let generations = status["copies"]["generations"].as_array().cloned().unwrap_or_default();
    let holder = generations.iter().find(|one| one["owner"] == owner)?["servers"][0].as_str()?.to_owned();
    let at = cluster.ids.iter().position(|id| *id == holder)?;
    let copies = fs::read_dir(cluster.servers[at].state().join("copies")).ok()?.filter_map(Result::ok);
    let mut copies = copies.filter(|entry| entry.file_name().to_string_lossy().starts_with(owner));
    let found = copies.find(|entry| Some(entry.path().as_path()) != other_than)?.path();
    Some((found, at))
}

#[test]
fn a_byte_of_a_copy_that_a_disk_changes_is_found_and_the_copy_replaced() {
    let Some(mut cluster) = CopyingCluster::start("by-command") else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<JoinHandle<KnownKeys>> =
        (0..2).map(|number| count_up(&cluster.servers[2], number, &stop)).collect();
    let owner = cluster.ids[0].clone();
    let mut found = None;
    assert!(eventually(|| {
        found = needed_copy(&cluster, &owner, None);
        found.as_ref().is_some_and(|(folder, _)| first_file(folder, "log-").is_some())
    }));
    let (folder, holder) = found.unwrap();
    let server = &cluster.servers[holder];
    // Sound before: a whole pass says so.
    server.json("log scrub --now");
    let kept = || status(server)["copies"]["kept"].as_array().cloned().unwrap_or_default();
    let is_checked = || kept().iter().any(|copy| copy["owner"] == owner.as_str() && copy["checked_s_ago"].is_u64());
    assert!(eventually(is_checked), "{:?}", kept());
    assert!(eventually(|| server.json("log scrub")["last"]["damage"] == 0));

    flip_byte(&first_file(&folder, "log-").unwrap());
    server.json("log scrub --now");
    assert!(eventually(|| has_event(server, "cluster.copy_damaged", "is damaged at byte 8192")));
    let is_told = || {
        let findings = String::from_utf8(server.output("doctor --live").stdout).unwrap();
        findings.contains("The disk has damaged copies of other servers' logs")
    };
    assert!(eventually(is_told));
    let text = String::from_utf8(server.output("cluster status").stdout).unwrap();
    assert!(text.contains("damaged, counts for nothing"), "{text}");
    // Its owner has another one, on whichever server.
    let is_replaced = || {
        let confirms = |copy: &Value| copy["needed"] == true && copy["confirms"] == true;
        let copies = status(&cluster.servers[0])["copies"]["copies"].as_array().cloned().unwrap_or_default();
        needed_copy(&cluster, &owner, Some(&folder)).is_some() && !copies.is_empty() && copies.iter().all(confirms)
    };
    assert!(eventually(is_replaced), "{}", status(&cluster.servers[0]));

    // The owner is gone: another server takes its place with the copy that is sound, and nothing is lost.
    drop(cluster.kill_first());
    let by = &cluster.servers[1];
    by.json(&format!("cluster fail-over {owner}"));
    await_succession(by, &owner);
    stop.store(true, Ordering::Release);
    let known: KnownKeys = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    check(by, &known);
}

#[test]
fn a_byte_of_the_log_that_a_disk_changes_is_found_and_a_checkpoint_takes_its_place() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let config = folder.path().join("tenants.toml");
    let table = "{ name = 'items', id = 1, durability = 'disk' }";
    fs::write(&config, format!("[[tenants]]\nname = 'shop'\nid = 1\nopen = true\ntables = [{table}]\n")).unwrap();
    let config = config.display().to_string();
    let options = ["--data", "127.0.0.1:0", "--workers", "1", "--no-builder", "--config", &config];
    let mut server = Server::start_in(None, Arc::clone(&folder), &options);
    let client = |server: &Server| blocking::Client::connect(Config::new(server.data.parse().unwrap(), 1)).unwrap();
    let key = |number: u32| format!("key{number}").into_bytes();
    let put = |server: &Server, numbers: std::ops::Range<u32>| {
        let client = client(server);
        for number in numbers {
            client.put(ITEMS, &key(number), &number.to_le_bytes(), &PutOptions::default()).unwrap();
        }
    };
    put(&server, 0..100);
    server.json("log scrub --now");
    assert!(eventually(|| server.json("log scrub")["last"]["damage"] == 0));
    let damaged = first_file(&server.state().join("log"), "log-").unwrap();
    flip_byte(&damaged);
    server.json("log scrub --now");
    assert!(eventually(|| has_event(&server, "log.damaged", "is damaged at byte 8192")));
    let is_over = || {
        let report = server.json("log scrub");
        report["under_way"] == false && report["log_damage"].is_null()
    };
    assert!(eventually(is_over), "{}", server.json("log scrub"));
    put(&server, 100..110);
    // It stays for feeds. Not even its header is read by a start.
    flip_byte_at(&damaged, OF_THE_HEADER);
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    drop(server);
    let server = Server::start_in(None, folder, &options);
    let client = client(&server);
    for number in 0..110 {
        let found = client.get(ITEMS, &key(number)).unwrap().map(|record| record.value.to_vec());
        assert_eq!(found.as_deref(), Some(&number.to_le_bytes()[..]), "{number}");
    }
}
