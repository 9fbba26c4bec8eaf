//! Promise: a backup in an object store is whole or is none. It is made and restored through a store that is slow, that
//! answers with errors and cuts its answers; what is not as it was is found before anything is restored.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sandstorm_backing::fake_s3::{FakeS3, KEYS};
use sandstorm_client::blocking::Client;
use sandstorm_client::{Config, PutOptions};
use serde_json::Value;

use crate::common::eventually;
use crate::common::process::{Server, binary};

const OPTIONS: [&str; 6] = ["--data", "127.0.0.1:0", "--no-pin", "--workers", "1", "--no-builder"];
/// Records, and bytes of each: more than one part.
const RECORDS: u32 = 24;
const VALUE_BYTES: usize = 500_000;

fn value(number: u32) -> Vec<u8> {
    (0..VALUE_BYTES as u32).map(|at| (at.wrapping_mul(number + 7) >> 3) as u8).collect()
}

fn client(server: &Server) -> (Client, u64) {
    let id = server.json("tenant show shop")["id"].as_u64().unwrap() as u32;
    let table = server.json("table show items --tenant shop")["id"].as_u64().unwrap();
    (Client::connect(Config::new(server.data.parse().unwrap(), id)).unwrap(), table)
}

/// The command line, which would go astray if it followed a proxy of the environment.
fn command(words: &[&str], keys: Option<&str>) -> Command {
    let mut command = binary();
    command.args(words);
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"] {
        command.env_remove(name);
    }
    if let Some((access, secret)) = keys.and_then(|keys| keys.split_once(':')) {
        command.env("AWS_ACCESS_KEY_ID", access).env("AWS_SECRET_ACCESS_KEY", secret);
    }
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(name, "http://127.0.0.1:1");
    }
    command
}

fn backup(words: &[&str]) -> Output {
    command(&[&["backup"], words].concat(), Some(KEYS)).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn list(url: &str, more: &[&str]) -> (bool, Vec<Value>) {
    let output = backup(&[&["list", url, "--json"], more].concat());
    let found: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    (output.status.success(), found.and_then(|found| found.as_array().cloned()).unwrap_or_default())
}

fn restore(url: &str, folder: &Path) -> Output {
    let state = folder.join("state");
    backup(&["restore", url, "--state", state.to_str().unwrap()])
}

/// A server whose log has all records on the disk.
fn filled_server() -> Server {
    let server = Server::start_in(None, Arc::new(tempfile::tempdir().unwrap()), &OPTIONS);
    for line in ["tenant create shop --open", "table create items --durability disk --tenant shop"] {
        let output = server.output(line);
        assert!(output.status.success(), "{line}: {}", text(&output));
    }
    let (writer, items) = client(&server);
    for number in 0..RECORDS {
        writer.put(items, &number.to_be_bytes(), &value(number), &PutOptions::default()).unwrap();
    }
    server
}

#[test]
fn a_backup_goes_through_a_store_that_fails_now_and_then_and_comes_back_whole() {
    let server = filled_server();
    let state = server.state();
    let state = state.to_str().unwrap();
    let (store, place) = FakeS3::start().unwrap();
    let url = FakeS3::url(&place, "a/b");
    let staging = tempfile::tempdir().unwrap();
    let create = ["create", &url, "--state", state, "--staging", staging.path().to_str().unwrap(), "--json"];
    let faults = |failing: u32, cut: u32, slow_ms: u64| {
        store.failing_of_1000.store(failing, Relaxed);
        store.cut_of_1000.store(cut, Relaxed);
        store.slow_ms.store(slow_ms, Relaxed);
    };
    faults(80, 50, 5);
    let made = backup(&create);
    assert!(made.status.success(), "{}", text(&made));
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let made = made["folder"].as_str().unwrap();
    assert_eq!(std::fs::read_dir(staging.path()).unwrap().count(), 0, "nothing stays in between");
    let parts = store.names().iter().filter(|name| name.contains("/part-")).count();
    assert!(parts > 3, "more than one part of a file: {:?}", store.names());
    let (is_sound, found) = list(&url, &["--check"]);
    assert!(is_sound && found.len() == 1, "{found:?}");
    assert!(found[0]["state"] == "sound" && found[0]["folder"] == made && found[0]["tables"] == 1, "{found:?}");
    // Another one beside it, made while nothing fails.
    faults(0, 0, 0);
    assert!(backup(&create).status.success());
    assert_eq!(list(&url, &[]).1.len(), 2);
    drop(server);
    faults(80, 50, 5);
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let restored = restore(made, folder.path());
    assert!(restored.status.success(), "{}", text(&restored));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the state directory alone");
    let server = Server::start_in(None, Arc::clone(&folder), &OPTIONS);
    let (reader, items) = client(&server);
    for number in 0..RECORDS {
        assert_eq!(reader.get(items, &number.to_be_bytes()).unwrap().unwrap().value, value(number));
    }
}

/// A change of an object that the server does not notice.
type Damage = fn(&mut Vec<u8>);

#[test]
fn what_is_not_as_it_was_is_found_and_what_was_not_made_whole_is_no_backup() {
    let server = filled_server();
    let state = server.state();
    let state = state.to_str().unwrap();
    let (store, place) = FakeS3::start().unwrap();
    let url = FakeS3::url(&place, "a/b");
    let staging = tempfile::tempdir().unwrap();
    let create = ["create", &url, "--state", state, "--staging", staging.path().to_str().unwrap()];
    // A store that has no room after some writes, and one that answers nothing but errors.
    store.writes_until_full.store(4, Relaxed);
    let refused = backup(&create);
    assert!(!refused.status.success() && text(&refused).contains("InsufficientStorage"), "{}", text(&refused));
    assert_eq!(list(&url, &[]), (true, Vec::new()), "{:?}", store.names());
    assert_eq!(store.names(), Vec::<String>::new(), "what was uploaded is removed");
    store.writes_until_full.store(0, Relaxed);
    store.fails.store(503, Relaxed);
    let refused = backup(&create);
    assert!(!refused.status.success() && text(&refused).contains("503"), "{}", text(&refused));
    assert!(!list(&url, &[]).0);
    store.fails.store(0, Relaxed);
    // One that is killed in the middle: there is no manifest, so it is none.
    store.slow_ms.store(200, Relaxed);
    let mut killed = command(&[&["backup"][..], &create].concat(), Some(KEYS)).spawn().unwrap();
    assert!(eventually(|| store.names().iter().any(|name| name.contains("/part-"))));
    killed.kill().unwrap();
    killed.wait().unwrap();
    store.slow_ms.store(0, Relaxed);
    assert_eq!(list(&url, &["--check"]), (true, Vec::new()));
    // Parts that are longer, shorter, other or gone.
    assert!(backup(&create).status.success());
    let (_, found) = list(&url, &[]);
    let made = found[0]["folder"].as_str().unwrap().to_owned();
    let name = made.split('?').next().unwrap().rsplit('/').next().unwrap().to_owned();
    let parts: Vec<String> =
        store.names().into_iter().filter(|object| object.contains(&format!("{name}/part-"))).collect();
    let damage: [(&str, Damage); 3] = [
        ("bytes instead of", |bytes| bytes.truncate(bytes.len() / 2)),
        ("bytes instead of", |bytes| bytes.insert(0, 7)),
        ("checksum", |bytes| bytes.iter_mut().take(1).for_each(|byte| *byte ^= 8)),
    ];
    for (at, (says, change)) in damage.into_iter().enumerate() {
        let part = &parts[at * (parts.len() - 1) / 2];
        let mut before = Vec::new();
        store.change(part, |bytes| {
            before.clone_from(bytes);
            change(bytes);
        });
        let folder = tempfile::tempdir().unwrap();
        let refused = restore(&made, folder.path());
        let said = text(&refused);
        let is_named = part.ends_with(said.split("part-").nth(1).and_then(|rest| rest.get(..8)).unwrap_or("none"));
        assert!(!refused.status.success() && said.contains(says) && is_named, "{part}: {said}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left of what was refused");
        assert!(list(&url, &["--check"]).1[0]["state"].as_str().unwrap().contains(says));
        store.change(part, |bytes| *bytes = before);
    }
    store.remove(&parts[0]);
    let folder = tempfile::tempdir().unwrap();
    assert!(text(&restore(&made, folder.path())).contains("not there"));
    let manifest = format!("a/b/{name}/manifest.json");
    store.change(&manifest, |bytes| bytes[20] ^= 1);
    let (is_sound, found) = list(&url, &[]);
    assert!(!is_sound && found[0]["state"].as_str().unwrap().contains("damaged"), "{found:?}");
    store.remove(&manifest);
    assert_eq!(list(&url, &[]), (true, Vec::new()));
    assert!(text(&restore(&made, folder.path())).contains("there is no backup"));
}

#[test]
fn mistakes_are_named() {
    let (_store, place) = FakeS3::start().unwrap();
    let url = FakeS3::url(&place, "a/b");
    for (words, keys, says) in [
        (&["list", &url][..], None, "needs credentials"),
        (&["list", &url], Some("access:wrong"), "SignatureDoesNotMatch"),
        (&["list", &url, "--credentials", "/no/such/file"], None, "/no/such/file"),
        (&["list", "s3://b"], Some(KEYS), "3 or more"),
        (&["list", &format!("{url}&format=raw")], Some(KEYS), "for tables"),
        (&["restore", &url], Some(KEYS), "does not end with the name of a backup"),
        (&["create", "/tmp/x", "--staging", "/tmp"], None, "for object stores"),
    ] {
        let output = command(&[&["backup"], words].concat(), keys).output().unwrap();
        assert!(!output.status.success() && text(&output).contains(says), "{words:?}: {}", text(&output));
    }
}
