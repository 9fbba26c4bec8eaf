//! Promise: the last five versions of an extension are kept, over restarts too, and any of them is called again within
//! milliseconds and without a lost call. Runs the real binary.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::common::process::Server;
use crate::common::{PATIENT, eventually};
use sandstorm_client::blocking::Client;
use sandstorm_client::{Config, Error};
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

#[test]
fn a_bad_version_on_a_share_of_the_calls_loses_it_by_itself_and_no_call_is_lost_or_doubled() {
    let server = Server::start_as(&["--no-pin", "--workers", "2"]);
    server.json("tenant create shop --quota slow_after_kills=0 --quota suspend_after_kills=0");
    server.json("table create t");
    let folder = server.folder.path().join("counter");
    write_counter(&folder, &says("good"));
    server.json(&format!("ext push {}", folder.display()));
    write_counter(&folder, "if sum % 2 == 0 || args.is_empty() { panic!(\"bad\") }\n    db.reply(b\"bad\")");
    assert_eq!(server.json(&format!("ext push {} --stage", folder.display()))["version"], 2);
    let (done, good, killed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let config = config(&server);
    std::thread::scope(|scope| {
        // Each connection is a key: with so many, some are in the share, and some are not.
        for _ in 0..12 {
            scope.spawn(|| {
                let client = Client::connect(config.clone()).unwrap();
                while !done.load(Relaxed) {
                    match client.invoke("counter", b"") {
                        Ok(reply) => {
                            assert!(reply.starts_with(b"good"));
                            good.fetch_add(1, Relaxed);
                        }
                        Err(Error::Killed { .. }) => {
                            killed.fetch_add(1, Relaxed);
                        }
                        Err(error) => panic!("a call is lost: {error:?}"),
                    }
                }
            });
        }
        let deployed = server.json("ext deploy counter@2 --percent 50");
        assert_eq!((&deployed["deployment"]["version"], &deployed["version"]), (&2.into(), &1.into()), "{deployed}");
        assert!(eventually(|| server.json("ext show counter")["deployment"].is_null()), "it is judged");
        done.store(true, Relaxed);
    });
    let sum = String::from_utf8(server.output("get t n --raw").stdout).unwrap();
    let calls = good.load(Relaxed) + killed.load(Relaxed);
    assert_eq!(sum.trim().parse::<u64>().unwrap(), calls, "each call ran once, the killed ones up to their panic");
    let mut text = String::new();
    let is_told = eventually(|| {
        let events = server.output("events --json --code extension.deployment_ended");
        text = String::from_utf8(events.stdout).unwrap();
        text.contains("were killed, of the other version 0 of")
    });
    assert!(is_told, "{text}");
    assert_eq!(server.json("ext deploy counter@2 --percent 100")["version"], 2, "who insists gets it");
    assert_eq!(server.json("ext rollback counter")["version"], 1);
}

/// Calls `counter` over HTTP, about a key; returns which version has run.
fn version_for(server: &Server, token: &str, key: &str) -> String {
    let host = server.control.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).unwrap();
    let head = format!(
        "POST /v1/call/shop/counter HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
         sandstorm-key: {key}\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let version = answer.lines().find_map(|line| line.strip_prefix("sandstorm-version: "));
    version.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn calls_over_http_of_one_key_get_one_version() {
    let server = Server::start_as(&["--no-pin", "--workers", "2"]);
    let token = server.json("tenant create shop")["token"].as_str().unwrap().to_owned();
    server.json("table create t");
    let folder = server.folder.path().join("counter");
    write_counter(&folder, &says("one"));
    server.json(&format!("ext push {}", folder.display()));
    write_counter(&folder, &says("two"));
    server.json(&format!("ext push {} --stage", folder.display()));
    server.json("ext deploy counter@2 --percent 50");
    let of = |key: usize| version_for(&server, &token, &format!("user-{key}"));
    let first: Vec<String> = (0..16).map(of).collect();
    assert!(first.iter().any(|one| one == "1") && first.iter().any(|one| one == "2"), "a share of the keys: {first:?}");
    for _ in 0..3 {
        assert_eq!((0..16).map(of).collect::<Vec<_>>(), first, "each key keeps its version");
    }
}

/// A trial on a share of clients' calls is none of code: that calls the current version, whatever has called it.
#[test]
fn code_calls_the_current_version_while_another_is_tried() {
    let server = Server::start_as(&["--no-pin", "--workers", "1"]);
    server.json("tenant create shop");
    server.json("table create t");
    let folder = server.folder.path().join("counter");
    write_counter(&folder, &says("one"));
    server.json(&format!("ext push {}", folder.display()));
    let caller = server.folder.path().join("caller");
    std::fs::create_dir_all(caller.join("src")).unwrap();
    std::fs::write(caller.join("extension.toml"), "name = \"caller\"\n").unwrap();
    let text = "#![no_std]\nuse sandstorm_api::prelude::*;\n\
                pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {\n\
                db.reply(&db.call(\"counter\", args).await?)\n}\n";
    std::fs::write(caller.join("src/lib.rs"), text).unwrap();
    server.json(&format!("ext push {}", caller.display()));
    write_counter(&folder, &says("two"));
    server.json(&format!("ext push {} --stage", folder.display()));
    let called = || String::from_utf8(server.output("invoke caller x").stdout).unwrap();
    // Each command has a connection of its own, which is what calls without a key are shared out by.
    server.json("ext deploy counter@2 --percent 99");
    for _ in 0..8 {
        assert!(called().contains("one"), "{}", called());
    }
    server.json("ext deploy counter@2 --percent 100");
    assert!(called().contains("two"), "{}", called());
}
