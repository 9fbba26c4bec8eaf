//! Promise (docs/cluster.md): about half of what a server has to do goes to another one by one command, whose plan can
//! be read before, and no key is lost by it.

use std::fs;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use sandstorm_client::PutOptions;
use sandstorm_net::slots::slot_of;
use serde_json::{Value, json};

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

/// The ranges of slots of a server.
fn ranges(server: &Server, id: &str) -> Vec<[u64; 2]> {
    let status = server.json("cluster status");
    let found = status["servers"].as_array().unwrap().iter().find(|server| server["id"] == id);
    let range = |range: &Value| [range[0].as_u64().unwrap(), range[1].as_u64().unwrap()];
    found.unwrap()["slots"].as_array().unwrap().iter().map(range).collect()
}

fn count(ranges: &[[u64; 2]]) -> u64 {
    ranges.iter().map(|[first, last]| last - first + 1).sum()
}

fn owns(ranges: &[[u64; 2]], key: &str) -> bool {
    ranges.iter().any(|[first, last]| (*first..=*last).contains(&u64::from(slot_of(key.as_bytes()))))
}

/// Waits until no move is under way; the list is there all the same.
fn moves_end(server: &Server) {
    assert!(eventually(|| server.json("cluster status")["moves"] == json!([])), "{}", server.json("cluster status"));
}

#[test]
fn a_server_gives_half_of_its_slots_of_its_records_or_of_its_accesses() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenants.toml");
    let tenants = "[[tenants]]\nname = 'shop'\nid = 1\nopen = true\n\
         tables = [{ name = 'items', id = 1, durability = 'disk' }]\n\
         [[tenants]]\nname = 'other'\nid = 2\nopen = true\ntables = [{ name = 'items', id = 1 }]\n";
    fs::write(&config, tenants).unwrap();
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let options = options(&etcd, &config);
    let servers = [start(&options), start(&options)];
    let [first, second] = &servers;
    assert!(eventually(|| first.json("cluster status")["epoch"].as_u64() >= Some(1)));
    let status = first.json("cluster status");
    assert_eq!(status["moves"], json!([]), "{status}");
    let from = status["server"].as_str().unwrap().to_owned();
    let to = second.json("cluster status")["server"].as_str().unwrap().to_owned();
    let command = format!("cluster split --from {from} --to {to}");
    let before = ranges(first, &from);

    // Nothing is there: half of its slots. Any server may be asked.
    let plan = second.json(&format!("{command} --plan"));
    assert!(plan["begun"] == false && plan["measure"] == "slots", "{plan}");
    assert_eq!(plan["slots"].as_u64().unwrap(), count(&before) / 2, "{plan}");
    assert_eq!(ranges(first, &from), before, "a plan changes nothing");

    let own: Vec<String> = (0..KEYS).map(key).filter(|key| owns(&before, key)).collect();
    // The first tenth of the slots.
    let large_below = before[0][0] + count(&before) / 10;
    let is_large = |key: &String| u64::from(slot_of(key.as_bytes())) < large_below;
    let writer = client(second);
    for key in &own {
        let bytes = if is_large(key) { 2_000 } else { 1 };
        writer.put(ITEMS, key.as_bytes(), &vec![b'v'; bytes], &PutOptions::default()).unwrap();
    }
    half_of_the_records(second, &command);
    let asked: Vec<&String> = own.iter().filter(|key| !is_large(key)).collect();
    half_of_the_accesses([first, second], (&command, &to), &asked);
    let left = count(&ranges(first, &from));
    assert!(left > 0 && left < count(&before));
    let reader = client(first);
    assert!(own.iter().all(|key| reader.get(ITEMS, key.as_bytes()).unwrap().is_some()));
    what_cannot_be_is_said([first, second], [&from, &to]);
    drop(servers);
}

/// Most records are in few slots, and there are no accesses: half of the records would go.
fn half_of_the_records(server: &Server, command: &str) {
    let plan = || server.json(&format!("{command} --plan --tenant shop"));
    let by_bytes = || {
        let plan = plan();
        plan["measure"] == "bytes" && (plan["part"].as_f64().unwrap() - 0.5).abs() < 0.15
    };
    assert!(eventually(by_bytes), "{}", plan());
    let nothing = server.json(&format!("{command} --plan --tenant other"));
    assert_eq!(nothing["measure"], "slots", "it has no records: {nothing}");
}

/// Half of the accesses goes, to its end, while keys are asked for that are small: each is there all the while.
fn half_of_the_accesses([first, second]: [&Server; 2], (command, to): (&str, &str), asked: &[&String]) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = Stop(&stop);
        let load = || {
            let client = client(second);
            while !stop.load(Ordering::Acquire) {
                for key in asked {
                    assert!(client.get(ITEMS, key.as_bytes()).unwrap().is_some(), "{key}");
                }
            }
        };
        let loads = [scope.spawn(load), scope.spawn(load)];
        let by_accesses = || second.json(&format!("{command} --plan"))["measure"] == "accesses";
        assert!(eventually(by_accesses), "{}", second.json(&format!("{command} --plan")));
        let begun = first.json(&format!("{command} --rate 100"));
        assert!(begun["begun"] == true && begun["moves"].as_array().is_some_and(|moves| !moves.is_empty()), "{begun}");
        moves_end(first);
        for one in begun["moves"].as_array().unwrap() {
            let slots = [one["slots"][0].as_u64().unwrap(), one["slots"][1].as_u64().unwrap()];
            assert!(ranges(second, to).iter().any(|[first, last]| *first <= slots[0] && slots[1] <= *last), "{begun}");
        }
        drop(ends);
        loads.into_iter().for_each(|load| load.join().unwrap());
    });
}

/// What cannot be is said, with what to do.
fn what_cannot_be_is_said([first, second]: [&Server; 2], [from, to]: [&str; 2]) {
    let command = format!("cluster split --from {from} --to {to}");
    assert!(fails(first, &format!("cluster split --from {from} --to {from}")).contains("to itself"));
    assert!(fails(first, &format!("{command} --tenant nosuch")).contains("nosuch"));
    assert!(fails(first, &format!("cluster split --from {from} --to 00000000")).contains("no server of the cluster"));
    first.json(&format!("cluster drain {from}"));
    assert!(fails(second, &command).contains("go away already"));
    assert!(fails(second, &format!("cluster split --from {to} --to {from}")).contains("cluster add"));
}
