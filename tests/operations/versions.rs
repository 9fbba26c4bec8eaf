//! Promise: the last five versions of an extension are kept, over restarts too, and any of them is called again within
//! milliseconds and without a lost call. Runs the real binary.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::common::PATIENT;
use crate::common::process::Server;
use sandstorm_client::Config;
use sandstorm_client::blocking::Client;
use serde_json::Value;

/// Writes an extension that counts its calls in the record `n`, and replies with `says` and the sum.
fn write_counter(folder: &Path, says: &str) {
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("extension.toml"), "name = \"counter\"\nversion = \"0.1.0\"\n").unwrap();
    let text = format!(
        "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n\
         pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {{\n    \
         let sum = db.increment(db.table(\"t\")?, b\"n\", 1).await?;\n    {says}\n}}\n"
    );
    std::fs::write(folder.join("src/lib.rs"), text).unwrap();
}

/// What clients of the tenant connect with: a new token.
fn config(server: &Server) -> Config {
    let tenant = server.json("tenant show shop")["id"].as_u64().unwrap() as u32;
    let token = server.json("tenant token shop")["token"].as_str().unwrap().to_owned();
    Config::new(server.data.parse().unwrap(), tenant).token(token).deadline(PATIENT)
}

fn says(word: &str) -> String {
    format!("let _ = args;\n    db.reply(format!(\"{word} {{sum}}\").as_bytes())")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn versions_change_under_load_without_a_lost_or_doubled_call() {
    let server = Server::start_as(&["--no-pin", "--workers", "2"]);
    server.json("tenant create shop");
    server.json("table create t");
    let folder = server.folder.path().join("counter");
    for word in ["one", "two", "three"] {
        write_counter(&folder, &says(word));
        server.json(&format!("ext push {}", folder.display()));
    }
    let (done, calls, config_of) = (AtomicBool::new(false), AtomicU64::new(0), config(&server));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let client = Client::connect(config_of.clone()).unwrap();
                while !done.load(Relaxed) {
                    let reply = client.invoke("counter", b"").expect("no call is lost");
                    assert!([&b"one"[..], b"two", b"three"].iter().any(|word| reply.starts_with(word)));
                    calls.fetch_add(1, Relaxed);
                }
            });
        }
        for round in 0..30 {
            let version = [1, 3, 2][round % 3];
            assert_eq!(server.json(&format!("ext rollback counter {version}"))["version"], version);
        }
        done.store(true, Relaxed);
    });
    let sum = String::from_utf8(server.output("get t n --raw").stdout).unwrap();
    assert_eq!(sum.trim().parse::<u64>().unwrap(), calls.load(Relaxed), "each call ran once");
    let versions = server.json("ext versions counter");
    let of_each: Vec<u64> = versions.as_array().unwrap().iter().map(|one| number(&one["stats"]["ok"])).collect();
    assert_eq!(of_each.iter().sum::<u64>(), calls.load(Relaxed), "and is counted for the version that ran it");
    assert!(versions.as_array().unwrap().iter().any(|one| number(&one["p99_ns"]) > 0), "{versions}");

    let folder = server.folder.clone();
    server.json("ext rollback counter 1");
    drop(server);
    let server = Server::start_in(None, folder, &["--data", "127.0.0.1:0", "--no-pin", "--workers", "2"]);
    let client = Client::connect(config(&server)).unwrap();
    assert!(client.invoke("counter", b"").unwrap().starts_with(b"one"), "what was rolled back to is called");
    assert!(client.invoke_version("counter", 3, b"").unwrap().starts_with(b"three"), "and the others are kept");
    assert!(client.invoke_version("counter", 9, b"").is_err());
    assert_eq!(server.json("ext rollback counter 3")["version"], 3);
    assert!(client.invoke("counter", b"").unwrap().starts_with(b"three"));
}
