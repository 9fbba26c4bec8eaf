//! Promise (docs/cluster.md): loads of servers are levelled by a plan that can be read before it runs, and no key is
//! lost by it.

use std::fs;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use sandstorm_client::PutOptions;
use serde_json::Value;

use super::cluster::EtcdProcess;
use super::cluster_servers::{client, fails, options, start};
use crate::common::process::Server;
use crate::common::{Stop, eventually};

/// The id of the table in the configuration.
const ITEMS: u64 = 1;
const KEYS: usize = 3_000;

fn key(number: usize) -> String {
    format!("k{number}")
}

/// Asks for keys of one server's slots over and over, until it is told to stop.
fn load(server: &Server, keys: &[String], stop: &AtomicBool) {
    let client = client(server);
    while !stop.load(Ordering::Acquire) {
        for key in keys {
            assert!(client.get(ITEMS, key.as_bytes()).unwrap().is_some(), "{key}");
        }
    }
}

/// The ranges of slots of each server, by its id.
fn ranges(server: &Server) -> Vec<(String, Vec<[u64; 2]>)> {
    let status = server.json("cluster status");
    let servers = status["servers"].as_array().unwrap().iter();
    let range = |range: &Value| [range[0].as_u64().unwrap(), range[1].as_u64().unwrap()];
    let of = |server: &Value| {
        let id = server["id"].as_str().unwrap().to_owned();
        (id, server["slots"].as_array().unwrap().iter().map(range).collect())
    };
    servers.map(of).collect()
}

fn owns(ranges: &[[u64; 2]], slot: u16) -> bool {
    ranges.iter().any(|[first, last]| (*first..=*last).contains(&u64::from(slot)))
}

#[test]
fn a_server_that_is_busier_gives_slots_by_a_plan_that_was_read() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenants.toml");
    let tenant =
        "[[tenants]]\nname = 'shop'\nid = 1\nopen = true\ntables = [{ name = 'items', id = 1, durability = 'disk' }]\n";
    fs::write(&config, tenant).unwrap();
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let options = options(&etcd, &config);
    let servers = [start(&options), start(&options)];
    let [first, second] = &servers;
    assert!(eventually(|| first.json("cluster status")["epoch"].as_u64() >= Some(1)));
    let before = ranges(first);
    let busy = before.iter().find(|(id, _)| first.json("cluster status")["server"] == **id).unwrap().clone();
    let writer = client(second);
    for number in 0..KEYS {
        writer.put(ITEMS, key(number).as_bytes(), b"v", &PutOptions::default()).unwrap();
    }
    let slot = |key: &String| sandstorm_net::slots::slot_of(key.as_bytes());
    let hot: Vec<String> = (0..KEYS).map(key).filter(|key| owns(&busy.1, slot(key))).collect();

    let stop = AtomicBool::new(false);
    let plan_file = folder.path().join("plan.json");
    std::thread::scope(|scope| {
        let ends = Stop(&stop);
        let loads: Vec<_> = (0..2).map(|_| scope.spawn(|| load(second, &hot, &stop))).collect();
        let mut plan = Value::Null;
        // What others do on the machine may level the loads for a while.
        let is_uneven = || {
            plan = first.json("cluster balance --plan --within 5");
            plan["moves"].as_array().is_some_and(|moves| moves.iter().any(|one| one["from"] == *busy.0))
        };
        assert!(eventually(is_uneven), "a plan");
        assert!(plan["begun"] == false && plan["servers"].as_array().unwrap().len() == 2, "{plan}");
        assert_eq!(ranges(first), before, "a plan changes nothing");
        fs::write(&plan_file, plan.to_string()).unwrap();
        let begun = first.json(&format!("cluster balance --apply {}", plan_file.display()));
        assert!(begun["begun"] == true && begun["moves"] == plan["moves"], "{begun}");
        let is_over = || {
            let owners = ranges(second);
            let moves = plan["moves"].as_array().unwrap();
            moves.iter().all(|one| {
                let taker = owners.iter().find(|(id, _)| one["to"] == **id).unwrap();
                owns(&taker.1, one["slots"][0].as_u64().unwrap() as u16)
            }) && second.json("cluster status")["moves"].as_array().is_none_or(Vec::is_empty)
        };
        assert!(eventually(is_over), "{}", second.json("cluster status"));
        drop(ends);
        loads.into_iter().for_each(|load| load.join().unwrap());
    });
    let reader = client(first);
    assert!((0..KEYS).all(|number| reader.get(ITEMS, key(number).as_bytes()).unwrap().is_some()));
    // The same plan again: its slots are not where they were.
    let refused = fails(second, &format!("cluster balance --apply {}", plan_file.display()));
    assert!(refused.contains("ask for a new one"), "{refused}");
    assert!(fails(second, "cluster balance --within 0.5").contains("within_percent"));
    // No client asks for anything: there is nothing to level.
    let idle = || first.json("cluster balance")["moves"] == Value::Array(Vec::new());
    assert!(eventually(idle));
    drop(servers);
}
