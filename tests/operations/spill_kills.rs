//! Promise: nothing that was acknowledged of a table larger than memory with durability `disk` is lost, hot or cold,
//! when the server is killed, before a checkpoint and after one. `SANDSTORM_KILLS` sets how many times.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_client::control::{DurabilityLevel, TableMode, TablePatch, TableSpec, TenantSpec};

use super::records::{RecordServer, RespConnection};

const KEYS: u32 = 3_000;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A change of one key, and the value behind it.
fn change(random: &mut SmallRng, now: &BTreeMap<String, String>, number: u64) -> (Vec<String>, String, Option<String>) {
    let key = format!("key:{}", random.random_range(0..KEYS));
    let value = format!("{number}:{}", "x".repeat(random.random_range(500..2_000)));
    match random.random_range(0..20) {
        0 => (words(&["DEL", &key]), key, None),
        1..=3 => {
            let longer = now.get(&key).cloned().unwrap_or_default() + "+";
            (words(&["APPEND", &key, "+"]), key, Some(longer))
        }
        _ => (words(&["SET", &key, &value]), key, Some(value)),
    }
}

fn apply(values: &mut BTreeMap<String, String>, key: &str, value: Option<String>) {
    match value {
        Some(value) => drop(values.insert(key.to_owned(), value)),
        None => drop(values.remove(key)),
    }
}

fn get(connection: &mut RespConnection, key: &str) -> Option<String> {
    connection.send(&[words(&["GET", key])]).unwrap();
    connection.answer().unwrap()
}

#[test]
fn what_was_acknowledged_of_a_table_larger_than_memory_survives_kills() {
    let kills = std::env::var("SANDSTORM_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(4_u64);
    let folder = tempfile::tempdir().unwrap();
    let (folder, mut random) = (folder.path(), SmallRng::seed_from_u64(kills));
    let mut server = RecordServer::start(folder);
    server.control.create_tenant(&TenantSpec { name: "shop".into(), open: true, ..TenantSpec::default() }).unwrap();
    let of = |name: &str, mode, durability| TableSpec {
        name: name.to_owned(),
        mode,
        durability: Some(durability),
        quota_bytes: Some(1 << 20),
        ..TableSpec::default()
    };
    server.control.create_table("shop", &of("items", TableMode::Spill, DurabilityLevel::Disk)).unwrap();
    let (mut values, mut number) = (BTreeMap::new(), 0);
    for kill in 0..kills {
        let mut connection = server.connect();
        let mut pending = Vec::new();
        for batch in 0..60 {
            let mut ahead = values.clone();
            let changes: Vec<_> = (0..50)
                .map(|_| {
                    number += 1;
                    let (command, key, value) = change(&mut random, &ahead, number);
                    apply(&mut ahead, &key, value.clone());
                    (command, key, value)
                })
                .collect();
            connection.send(&changes.iter().map(|(command, _, _)| command.clone()).collect::<Vec<_>>()).unwrap();
            if batch == 59 {
                // No answer is awaited: the kill comes in the midst.
                pending = changes;
                break;
            }
            (0..changes.len()).for_each(|_| drop(connection.answer().unwrap()));
            values = ahead;
            if batch == 30 && kill % 2 == 1 {
                // A table that gets durability has a checkpoint of all tables written.
                let name = format!("other-{kill}");
                server.control.create_table("shop", &of(&name, TableMode::Store, DurabilityLevel::None)).unwrap();
                let change = TablePatch { durability: Some(DurabilityLevel::Interval), ..TablePatch::default() };
                server.control.change_table("shop", &name, &change).unwrap();
            }
        }
        let spill = server.control.table("shop", "items").unwrap().spill.expect("it has a spill file");
        assert!(spill.cold_records > u64::from(KEYS) / 4 && spill.read_errors == 0, "{spill:?}");
        drop(server);
        server = RecordServer::start(folder);
        let table = server.control.table("shop", "items").unwrap();
        assert!(table.bytes <= table.quota_bytes + table.quota_bytes / 8, "{table:?}");
        let mut connection = server.connect();
        for key in (0..KEYS).map(|number| format!("key:{number}")) {
            let found = get(&mut connection, &key);
            let of_key = pending.iter().filter(|(_, of, _)| *of == key).map(|(_, _, value)| value.clone());
            let allowed: Vec<_> = std::iter::once(values.get(&key).cloned()).chain(of_key).collect();
            assert!(allowed.contains(&found), "kill {kill}: {key} is {found:?}, not one of {allowed:?}");
            // It goes on from what is there.
            apply(&mut values, &key, found);
        }
    }
}
