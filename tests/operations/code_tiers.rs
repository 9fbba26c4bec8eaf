//! Promise: the operator decides which code a tenant may have, while the server serves. Without code nothing is pushed
//! or called, calls that run end on their library, and everything is there again when the tenant may. What a start
//! cannot load is built again from the source that was kept. Callers of a tenant that is moved from one tier to the
//! other notice nothing. Runs the real binary.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::process::Server;
use crate::common::{PATIENT, eventually};
use sandstorm_client::blocking::Client;
use sandstorm_client::{Config, Error};
use serde_json::Value;

/// A server with a tenant `shop`, its table `t`, and `ext/get` and `ext/bad`.
fn with_a_tenant(code: &str) -> Server {
    let server = Server::start_as(&["--no-pin", "--workers", "2"]);
    server.json(&format!("tenant create shop --code {code} --quota total_us=3000000"));
    server.json("table create t");
    server.json("put t k value");
    for name in ["get", "bad"] {
        let folder = crate::common::root().join("ext").join(name);
        server.json(&format!("ext push {}", folder.display()));
    }
    server
}

/// Two clients of the tenant, with a new token.
fn clients(server: &Server) -> [Client; 2] {
    let tenant = server.json("tenant show shop")["id"].as_u64().unwrap() as u32;
    let token = server.json("tenant token shop")["token"].as_str().unwrap().to_owned();
    let config = Config::new(server.data.parse().unwrap(), tenant).token(token).deadline(PATIENT);
    [(); 2].map(|()| Client::connect(config.clone()).unwrap())
}

fn failure(server: &Server, line: &str) -> String {
    let output = server.output(line);
    assert!(!output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

fn results(moved: &Value) -> Vec<(&str, &str)> {
    let text = |one: &'_ Value, field: &str| one[field].as_str().unwrap().to_owned().leak();
    let results = moved["rebuild"]["results"].as_array().unwrap().iter();
    let mut found: Vec<(&str, &str)> = results.map(|one| (&*text(one, "extension"), &*text(one, "result"))).collect();
    found.sort();
    found
}

#[test]
fn without_code_nothing_is_called_and_calls_that_run_end_on_their_library() {
    let server = with_a_tenant("native");
    let [client, runner] = clients(&server);
    let table = server.json("table show t")["id"].as_u64().unwrap().to_le_bytes();
    let args = |name: &[u8]| [&table[..], name].concat();
    assert_eq!(&*client.invoke("get", &args(b"k")).unwrap(), b"value");
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| runner.invoke("bad", &args(b"loop")));
        assert!(eventually(|| server.json("tenant show shop")["running"] == 1));
        let moved = server.json("tenant set shop --code none");
        assert_eq!(results(&moved), [("bad", "suspended"), ("get", "suspended")], "{moved}");
        match client.invoke("get", &args(b"k")) {
            Err(Error::Suspended { text }) => {
                assert!(text.contains("code policy is none") && text.contains("tenant set shop --code"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(client.invoke("unheard-of", b""), Err(Error::Suspended { .. })), "whatever the name");
        match runs.join().unwrap() {
            Err(Error::Killed { cause, .. }) => assert_eq!(format!("{cause:?}"), "TotalBudget", "it ran to its end"),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(&*client.get(u64::from_le_bytes(table), b"k").unwrap().unwrap().value, b"value", "records are served");
    let refused = failure(&server, "ext push ../ext/get");
    assert!(refused.contains("code policy of tenant \"shop\" is none") && refused.contains("hint: "), "{refused}");
    assert!(failure(&server, "ext resume get").contains("code policy"), "not even the operator");
    assert!(String::from_utf8(server.output("tenant list").stdout).unwrap().contains("none"));

    let moved = server.json("tenant set shop --code native");
    assert_eq!(results(&moved), [("bad", "unchanged"), ("get", "unchanged")], "{moved}");
    assert_eq!(&*client.invoke("get", &args(b"k")).unwrap(), b"value");
    let wrong = failure(&server, "tenant set shop --code wasm");
    assert!(wrong.contains("write sandboxed, native or none"), "{wrong}");
}

#[test]
fn a_policy_outlives_a_restart_and_what_was_loaded_comes_back_with_its_version() {
    let server = with_a_tenant("native");
    let folder = server.folder.clone();
    server.json("ext push ../ext/get");
    assert_eq!(server.json("tenant set shop --code none")["tenant"]["code"], "none");
    drop(server);
    let options = ["--data", "127.0.0.1:0", "--no-pin", "--workers", "2"];
    let again = || {
        let server = Server::start_in(None, folder.clone(), &options);
        // The command line keeps tokens by the server's address, which is another now.
        server.json("tenant token shop");
        server
    };
    let server = again();
    assert_eq!(server.json("tenant show shop")["code"], "none");
    let refused = failure(&server, "invoke get table:t k");
    assert!(refused.contains("code policy is none"), "{refused}");
    let moved = server.json("tenant set shop --code native");
    assert_eq!(results(&moved), [("bad", "rebuilt"), ("get", "rebuilt")], "{moved}");
    let shown = server.json("ext show get");
    assert_eq!((&shown["version"], &shown["tier"], &shown["source_kept"]), (&2.into(), &"native".into(), &true.into()));
    server.json("table create u");
    server.json("put t k value");
    assert_eq!(server.json("invoke get table:t k --version 2")["text"], "value");
    drop(server);

    // As after an upgrade: the artifacts cannot be used any more.
    let kept = |ends: &str| -> Vec<PathBuf> {
        let files = fs::read_dir(folder.path().join("state/extensions")).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|extension| extension == ends)).collect()
    };
    // One of `bad`, and two versions of `get`.
    assert_eq!((kept("artifact").len(), kept("source").len()), (3, 3));
    for artifact in kept("artifact") {
        fs::write(artifact, b"sandart\x01").unwrap();
    }
    let server = again();
    assert!(eventually(|| server.json("ext list").as_array().unwrap().len() == 2), "built again by itself");
    assert_eq!(server.json("ext show get")["version"], 2);
    server.json("put t k value");
    assert_eq!(server.json("invoke get table:t k --version 2")["text"], "value");
    let kills = server.json("kills").to_string();
    assert!(kills.contains("older format") && kills.contains("built again from its source"), "{kills}");
}

/// Moves a tenant between the tiers while two clients call it; returns how many calls were answered, all of them right.
fn calls_while_moved(server: &Server, table: u64) -> [u64; 2] {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let callers = clients(server).map(|client| {
            let is_over = &is_over;
            scope.spawn(move || {
                let args = [&table.to_le_bytes()[..], b"k"].concat();
                let (mut calls, mut last) = (0, 0);
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(&*client.invoke("get", &args).expect("a get"), b"value", "after {calls} calls");
                    let sum = client.invoke("counter", b"").expect("a count");
                    let sum = std::str::from_utf8(&sum).expect("a number").parse().expect("a number");
                    assert!(sum > last, "{last}, then {sum}");
                    (calls, last) = (calls + 1, sum);
                    // The builder needs a processor.
                    std::thread::sleep(Duration::from_millis(1));
                }
                calls
            })
        });
        for tier in ["native", "sandboxed", "native"] {
            let moved = server.json(&format!("tenant set shop --code {tier}"));
            let rebuilt = [("bad", "rebuilt"), ("counter", "rebuilt"), ("get", "rebuilt")];
            assert_eq!(results(&moved), rebuilt, "{moved}");
            assert_eq!(server.json("ext show counter")["tier"], tier);
        }
        is_over.store(true, Ordering::Relaxed);
        callers.map(|caller| caller.join().expect("every answer is right"))
    })
}

#[test]
fn callers_of_a_tenant_that_is_moved_between_tiers_lose_nothing() {
    let server = with_a_tenant("sandboxed");
    let line = "let table = db.table(\"t\")?;\n    for n in 0..20_000u32 { if n % 64 == 0 { db.get(table, b\"k\").await?; } }\n    \
                let args = format!(\"{}\", db.increment(table, b\"n\", 1).await?);\n    let args = args.as_bytes();";
    server.json(&format!("ext push {}", extension(&server, "counter", line)));
    let table = server.json("table show t")["id"].as_u64().unwrap();
    let calls: u64 = calls_while_moved(&server, table).iter().sum();
    assert!(calls > 0);
    let counted = clients(&server)[0].get(table, b"n").unwrap().expect("the count").value;
    assert_eq!(counted, calls.to_string().as_bytes(), "each call ran once");
    for name in ["get", "counter"] {
        let shown = server.json(&format!("ext show {name}"));
        assert_eq!((&shown["version"], shown["stats"]["ok"].as_u64()), (&1.into(), Some(calls)), "{shown}");
    }
}

/// Writes an extension that answers with its version, and has this line.
fn extension(server: &Server, name: &str, line: &str) -> String {
    let folder = server.folder.path().join(name);
    fs::create_dir_all(folder.join("src")).unwrap();
    fs::write(folder.join("extension.toml"), format!("name = \"{name}\"\n")).unwrap();
    let text = format!(
        "#![no_std]\nuse sandstorm_api::prelude::*;\n\
         pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {{\n    {line}\n    db.reply(args)\n}}\n"
    );
    fs::write(folder.join("src/lib.rs"), text).unwrap();
    folder.display().to_string()
}

#[test]
fn what_the_operator_denies_is_found_in_what_is_loaded_and_in_what_is_pushed() {
    let server = Server::start_as(&["--no-pin", "--workers", "1"]);
    server.json("tenant create shop --code native");
    let guarded = "let _n = match args { [a, ..] if *a > 1 => 1, _ => 2 };";
    for (name, line) in [("plain", ""), ("guarded", guarded), ("other", guarded)] {
        server.json(&format!("ext push {}", extension(&server, name, line)));
    }
    let found = |ended: &Value, name: &str| {
        let results = ended["results"].as_array().unwrap();
        let one = results.iter().find(|one| one["extension"] == name).unwrap_or_else(|| panic!("{name}: {ended}"));
        (one["result"].as_str().unwrap().to_owned(), one["text"].as_str().unwrap().to_owned())
    };
    let suspended = server.json("ext revoke --rule match-guard --then suspend");
    assert_eq!(found(&suspended, "plain"), ("unchanged".to_owned(), String::new()), "{suspended}");
    for name in ["guarded", "other"] {
        let (result, why) = found(&suspended, name);
        assert_eq!(result, "suspended");
        assert!(why.contains("src/lib.rs:4:27: ") && why.contains("`match-guard`"), "{why}");
        assert!(failure(&server, &format!("invoke {name} x")).contains("denies `match-guard`"));
    }
    assert_eq!(server.json("invoke plain x")["text"], "x");
    assert!(
        failure(&server, &format!("ext push {}", server.folder.path().join("other").display())).contains("[denied]")
    );
    server.json(&format!("ext push {}", extension(&server, "other", "")));
    assert_eq!(server.json("invoke other x")["text"], "x", "a version without it is called");

    let listed = String::from_utf8(server.output("ext revoke --list").stdout).unwrap();
    assert!(listed.contains("match-guard"), "{listed}");
    server.json("ext revoke --end match-guard");
    assert_eq!(found(&server.json("ext recheck"), "guarded").0, "unchanged");
    assert_eq!(server.json("invoke guarded x")["text"], "x", "it passes, and is called again");
    let wrong = failure(&server, "ext revoke --rule match-gard");
    assert!(wrong.contains("there is no shape of that name") && wrong.contains("hint: name a shape"), "{wrong}");
    let text = String::from_utf8(server.output("ext revoke --rule peekable").stdout).unwrap();
    assert!(text.contains("peekable is denied to native code") && text.contains("3 unchanged"), "{text}");
}
