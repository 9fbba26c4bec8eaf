//! Promise: a table's trigger calls a typed function with the change, or with several. Runs the real binary.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::EVENTUALLY;
use crate::common::process::Server;

/// Copies a table, by a change or by several; a third function takes no changes.
const COPIES: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::change::{Change, ChangeOp};
use sandstorm_api::prelude::*;

async fn apply(db: &Db<'_>, table: &str, change: &Change<'_>) -> Result<(), Error> {
    let table = db.table(table)?;
    match change.op {
        ChangeOp::Put if change.version == 0 => Err(Error::invalid(\"a change has a version\")),
        ChangeOp::Put => db.put(table, change.key, change.value).await.map(|_| ()),
        _ => db.delete(table, change.key).await.map(|_| ()),
    }
}
pub async fn one(db: Db<'_>, change: Change<'_>) -> Result<(), Error> {
    apply(&db, \"ones\", &change).await
}
pub async fn many(db: Db<'_>, changes: Vec<Change<'_>>) -> Result<u64, Error> {
    for change in &changes {
        apply(&db, \"manies\", change).await?;
    }
    Ok(u64::try_from(changes.len())?)
}
pub async fn count(db: Db<'_>, name: String) -> Result<u64, Error> {
    db.count(db.table(&name)?, b\"\", b\"\").await
}
";

fn write(folder: &Path, triggers: &str) {
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("extension.toml"), format!("name = \"copies\"\n{triggers}")).unwrap();
    std::fs::write(folder.join("src/lib.rs"), COPIES).unwrap();
}

#[test]
fn a_tables_trigger_calls_a_typed_function() {
    let server = Server::start_as(&["--no-pin", "--workers", "2"]);
    let token = server.json("tenant create shop")["token"].as_str().unwrap().to_owned();
    for table in ["orders", "ones", "manies"] {
        server.json(&format!("table create {table} --durability disk --ordered"));
    }
    let folder = server.folder.path().join("copies");
    let trigger = |function: &str, more: &str| {
        format!("[[trigger]]\nname = \"{function}\"\nfunction = \"{function}\"\non = \"orders\"\n{more}")
    };
    let push = || server.output(&format!("ext push {}", folder.display()));
    // What does not fit is refused with the push, and says what to write.
    for (triggers, part) in [
        (trigger("count", ""), "count takes String: write `pub async fn count(db: Db<'_>, change: Change<'_>)`"),
        (trigger("one", "batch = 8\n"), "write `changes: Vec<Change<'_>>`"),
        (trigger("non", ""), "there are: one, many, count"),
    ] {
        write(&folder, &triggers);
        let refused = push();
        let shown = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && shown.contains(part), "{triggers}: {shown}");
    }
    write(&folder, &trigger("many", "batch = 8\n"));
    let pushed = push();
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    server.json("trigger create one --extension copies.one --on orders");
    let refused = server.output("trigger create other --extension copies.count --on orders");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("change: Change<'_>"), "{refused:?}");

    for number in 0..20 {
        server.json(&format!("put orders key{number} value{number} --token {token}"));
    }
    server.json(&format!("del orders key7 --token {token}"));
    let value = |table: &str, key: &str| {
        String::from_utf8(server.output(&format!("get {table} {key} --raw --token {token}")).stdout).unwrap()
    };
    for table in ["ones", "manies"] {
        let until = Instant::now() + EVENTUALLY;
        while (value(table, "key19"), value(table, "key7")) != ("value19".to_owned(), String::new()) {
            assert!(Instant::now() < until, "{table}: {}", server.json("trigger list"));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(value(table, "key3"), "value3");
    }
    let listed = server.json("trigger list");
    for one in listed.as_array().unwrap() {
        assert_eq!((&one["failed"], &one["dead_letters"]), (&0.into(), &0.into()), "{listed}");
    }
    // A caller by hand writes the change as JSON.
    let change = r#"{"op": "Put", "key": "YQ==", "value": "Yg==", "version": 1, "expires_at_ms": 0, "position": 1}"#;
    let called = server.command().args(["invoke", "copies.one", change, "--token", &token]).output().unwrap();
    assert!(called.status.success(), "{}", String::from_utf8_lossy(&called.stderr));
    assert_eq!(value("ones", "a"), "b");
}
