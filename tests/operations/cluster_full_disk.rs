//! Promise (docs/cluster.md): a server whose disk is nearly full refuses copies of others' logs before it is full.
//! What a copy there has it confirms still, and its owner makes another one elsewhere. Where no disk has room, records
//! are shown, writes are refused, and both go on once there is some; nothing that was acknowledged is lost.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use sandstorm_client::{Config, PutOptions, blocking};
use serde_json::Value;
use tempfile::TempDir;

use super::cluster::{EtcdProcess, start, status};
use super::cluster_copies::{ITEMS, KnownKeys, SERVERS, await_succession, check, count_up, options};
use super::cluster_failover::{COPIED_TABLE, CopyingCluster, write_tenant};
use super::cluster_scrub::needed_copy;
use crate::common::disk::SmallDisk;
use crate::common::eventually;
use crate::common::process::{Server, state_in};

/// Room for the copies of a server. Little of it is used.
const ROOM: &str = "size=4g,mode=700";
/// What is left of it: less than what stays free of copies.
const LEFT_BYTES: u64 = 64 << 20;
/// The same as at first.
const ROOM_AGAIN: &str = "size=4g";

/// The copies of a server's log, as it shows them.
fn copies(server: &Server) -> Vec<Value> {
    status(server)["copies"]["copies"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_server_whose_disk_is_nearly_full_keeps_its_copies_and_another_one_gets_the_next() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let config = tempfile::tempdir().unwrap();
    let file = write_tenant(&config, COPIED_TABLE);
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let options = options(&etcd, &file, "by-command");
    let folders: Vec<Arc<TempDir>> = (0..SERVERS).map(|_| Arc::new(tempfile::tempdir().unwrap())).collect();
    let mut disks = Vec::new();
    for folder in &folders {
        let Some(disk) = SmallDisk::mount(state_in(folder.path()).join("copies"), ROOM) else { return };
        disks.push(disk);
    }
    let servers = folders.iter().map(|folder| start(Arc::clone(folder), &options)).collect();
    let mut cluster = CopyingCluster::of(servers, config, etcd);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<JoinHandle<KnownKeys>> =
        (0..2).map(|number| count_up(&cluster.servers[2], number, &stop)).collect();
    let owner = cluster.ids[0].clone();
    let (folder, holder) = {
        let mut found = None;
        assert!(eventually(|| {
            found = needed_copy(&cluster, &owner, None);
            found.is_some()
        }));
        found.unwrap()
    };

    let client = blocking::Client::connect(Config::new(cluster.servers[0].data.parse().unwrap(), 1)).unwrap();
    let put = |key: &str| client.put(ITEMS, key.as_bytes(), b"1", &PutOptions::default()).is_ok();
    let kept: Vec<String> = (0..40).map(|number| format!("kept{number}")).collect();
    kept.iter().for_each(|key| assert!(eventually(|| put(key))));

    disks[holder].shrink(LEFT_BYTES);
    let is_replaced = || {
        let confirms = |copy: &Value| copy["needed"] == true && copy["confirms"] == true;
        let copies = copies(&cluster.servers[0]);
        let found = needed_copy(&cluster, &owner, Some(&folder));
        found.is_some_and(|(_, at)| at != holder) && !copies.is_empty() && copies.iter().all(confirms)
    };
    assert!(eventually(is_replaced), "{}", status(&cluster.servers[0]));

    // No disk has room.
    disks.iter().for_each(|disk| disk.shrink(LEFT_BYTES));
    let is_told = || {
        let is_full = |copy: &Value| copy["trouble"].as_str().is_some_and(|why| why.contains("nearly full"));
        cluster.servers.iter().any(|server| copies(server).iter().any(is_full))
    };
    assert!(eventually(|| !put("refused")) && eventually(is_told), "{}", status(&cluster.servers[0]));
    // Some wait for what the writers have changed beside them.
    let is_shown = |key: &&String| client.get(ITEMS, key.as_bytes()).is_ok_and(|found| found.is_some());
    assert!(eventually(|| kept.iter().filter(is_shown).count() > 10), "{}", status(&cluster.servers[0]));

    disks.iter().for_each(|disk| disk.remount(ROOM_AGAIN));
    assert!(eventually(|| put("again")), "{}", status(&cluster.servers[0]));
    cluster.await_whole();
    // The owner is gone: another server takes its place, and nothing is lost.
    drop(cluster.kill_first());
    let by = &cluster.servers[1];
    by.json(&format!("cluster fail-over {owner}"));
    await_succession(by, &owner);
    stop.store(true, Ordering::Release);
    let known: KnownKeys = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    check(by, &known);
}
