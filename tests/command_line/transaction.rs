//! Promise: `sandstorm transaction`, and a shell's `begin` and `commit`, make all steps at one moment or none of them,
//! and each reason not to has a name.

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::common::PATIENT;
use crate::common::process::Server;
use sandstorm_client::blocking::Client;
use sandstorm_client::{Config, Error, ExpectedRecord, PutOptions};

fn shop() -> Server {
    let server = Server::start_as(&["--no-pin", "--workers", "2", "--no-builder"]);
    server.json("tenant create shop");
    server.json("table create items");
    server.json("table create orders --ordered");
    server.json("put items apple 3 --flags 7");
    server
}

/// A transaction of these steps.
fn transaction(server: &Server, steps: &[&str]) -> Output {
    server.command().arg("transaction").args(steps).stdin(Stdio::null()).output().unwrap()
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The code and the text of its error, by `--json`.
fn refused(server: &Server, steps: &[&str]) -> (String, String) {
    let output = transaction(server, &[&["--json"], steps].concat());
    assert!(!output.status.success() && output.stdout.is_empty(), "{steps:?}: {output:?}");
    let error: Value = serde_json::from_slice(&output.stderr).unwrap_or_else(|_| panic!("{output:?}"));
    let text = |name: &str| error["error"][name].as_str().unwrap_or_default().to_owned();
    (text("code"), format!("{}; {}", text("message"), text("hint")))
}

/// Runs a command whose standard input are these lines.
fn with_lines(server: &Server, command: &str, lines: &str) -> Output {
    let mut command = {
        let mut made = server.command();
        made.args(command.split(' '));
        made
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn value(server: &Server, table: &str, key: &str) -> Value {
    server.json(&format!("get {table} {key}"))["record"]["value"]["text"].clone()
}

#[test]
fn steps_see_each_other_and_are_made_together() {
    let server = shop();
    let steps = [
        "check items apple --is 3",
        "incr items apple -1",
        "get items apple pear",
        "put orders 0001 'an apple' --if-absent",
        "put orders 0002 hex:00ff",
        "range orders '' 0002",
        "del items pear",
    ];
    let shown = succeeds(&transaction(&server, &steps));
    assert_eq!(shown, "2\napple\t2\nno record under pear\n0001\tan apple\ncommitted\n");
    assert_eq!(value(&server, "orders", "0001"), "an apple");
    assert_eq!(server.json("get items apple")["record"]["flags"], 7, "an increment keeps the flags");

    // For programs: what each step has found, with the versions.
    let found = succeeds(&transaction(&server, &["--json", "get items apple", "incr items pear 4", "get items pear"]));
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found["committed"], &found["tries"]), (&json!(true), &json!(1)));
    let version = server.json("get items apple")["record"]["version"].clone();
    assert_eq!(found["steps"][0][0]["record"]["version"], version);
    assert_eq!(found["steps"][1], json!({"sum": 4}));
    assert_eq!(found["steps"][2][0]["record"]["version"], 0, "what the transaction has written has none yet");

    // Lines may come from a file, with remarks; conditions of every kind.
    let lines = format!(
        "# a remark\n\ncheck items apple --version {version}\ncheck items nothing --absent\ncheck items pear --present\n\
         put items apple 9 --if-version {version} --ttl 3600\ndel items pear\n"
    );
    assert_eq!(succeeds(&with_lines(&server, "transaction", &lines)), "committed\n");
    assert_eq!(value(&server, "items", "apple"), "9");
    assert!(!server.output("get items pear").status.success());
}

#[test]
fn steps_ask_for_positions_and_times_to_live() {
    let server = shop();
    server.json("put orders 0001 x");
    server.json("put orders 0003 x --ttl 3600");
    let steps = [
        "put orders 0002 x",
        "del orders 0001",
        "count orders",
        "count orders 0002 0003",
        "rank orders 0003",
        "nth orders 0",
        "nth orders 2",
        "ttl orders 0002",
        "ttl orders 0004",
        "touch orders 0003 --never",
        "touch orders 0004 --ttl 5",
        "ttl orders 0003",
    ];
    let shown = succeeds(&transaction(&server, &steps));
    let lines = [
        "2\n1\n1\n0002\nno key at position 2\nit does not expire\nno record under 0004\nno record under 0004\n",
        "it does not expire\ncommitted\n",
    ];
    assert_eq!(shown, lines.concat());
    assert_eq!(server.json("ttl orders 0003"), json!({"expires": false}));
    assert_eq!(server.json("count orders"), json!({"count": 2}));

    let steps = ["count orders", "rank orders 0003", "nth orders 1", "nth orders 9", "ttl orders 0002", "ttl items x"];
    let touches = ["touch orders 0002 --ttl 60", "touch items x --ttl 60", "ttl orders 0002"];
    let found = succeeds(&transaction(&server, &[&["--json"], &steps[..], &touches].concat()));
    let found: Value = serde_json::from_str(&found).unwrap();
    let key = json!({"key": {"text": "0003", "hex": "30303033"}});
    let expected = json!([
        {"count": 2}, {"rank": 1}, key, {"key": null}, {"expires": false}, null,
        {"touched": true}, {"touched": false}, {"expires": true, "ttl_ms": 60_000},
    ]);
    assert_eq!(found["steps"], expected);

    // A range goes with what the transaction has written into it, and no more of it than a limit.
    let steps = ["put orders 0004 x", "del-range orders 0003 '' --limit 1", "del-range orders '' ''", "count orders"];
    let found = succeeds(&transaction(&server, &[&["--json"], &steps[..]].concat()));
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["steps"], json!([{"ok": true}, {"deleted": 1}, {"deleted": 2}, {"count": 0}]));
    assert_eq!(succeeds(&transaction(&server, &["del-range orders '' 0009"])), "0\ncommitted\n");
    assert_eq!(server.json("count orders"), json!({"count": 0}));
    server.json("put orders 0002 x");
    server.json("put orders 0003 x");

    // A write into what was counted is found.
    let lines = "begin\ncount orders\nput items counted 1\n";
    let mut command = server.command();
    command.arg("shell").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut keys, mut line) = (child.stdin.take().unwrap(), String::new());
    keys.write_all(lines.as_bytes()).unwrap();
    let mut answer = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut answer, &mut line).unwrap();
    assert_eq!(line, "2\n");
    server.json("put orders 0009 x");
    keys.write_all(b"commit\n").unwrap();
    drop(keys);
    let output = child.wait_with_output().unwrap();
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && shown.contains("conflict"), "{shown}");
    assert!(!server.output("get items counted").status.success());
}

#[test]
fn what_does_not_hold_or_is_no_step_has_a_name_and_writes_nothing() {
    let server = shop();
    let before = "put orders 1 written";
    for (step, code, text) in [
        ("check items apple --is 4", "condition_failed", "the value under apple is 3"),
        ("check items apple --absent", "condition_failed", "there is a record under apple"),
        ("check items pear --present", "condition_failed", "there is no record under pear"),
        ("check items pear --is 4", "condition_failed", "there is no record under pear"),
        ("check items apple --version 77", "condition_failed", "not 77"),
        ("put items apple 4 --if-absent", "condition_failed", "there is a record"),
        ("put items pear 4 --if-present", "condition_failed", "there is no record"),
        ("put items apple 4 --if-version 77", "condition_failed", "not 77"),
        ("del items apple --if-version 77", "condition_failed", "not 77"),
        ("check orders 1 --version 3", "condition_failed", "the transaction itself has written it"),
        ("incr orders 1", "not_a_number", "the value under the key \"1\" is not a decimal number"),
        ("incr items apple 9223372036854775807", "not_a_number", "does not fit"),
        ("range items a b", "not_ordered", "is not ordered"),
        ("count items", "not_ordered", "is not ordered"),
        ("rank items a", "not_ordered", "is not ordered"),
        ("del-range items a b", "not_ordered", "is not ordered"),
        ("del-range orders", "usage", "FROM"),
        ("del-range orders a b --limit 0", "usage", "0 is not in"),
        ("nth items 0", "not_ordered", "is not ordered"),
        ("nth orders", "usage", "POSITION"),
        ("touch items apple", "usage", "--never"),
        ("touch items apple --ttl 0", "invalid", "no time to live"),
        ("get nothing x", "unknown_table", "no table \"nothing\""),
        ("putt items apple 4", "usage", "steps are get, range, check"),
        ("put items apple", "usage", "VALUE"),
        ("put items apple -", "usage", "takes nothing from standard input"),
        ("put items apple 'x", "usage", "the quote ' is not closed"),
        ("check items apple", "usage", "--is"),
        ("check items apple --absent --present", "usage", "cannot be used"),
        ("put items apple u8:256", "invalid", "a number of 8 bits"),
        ("put items apple 4 --ttl 0", "invalid", "no time to live"),
    ] {
        let (found, shown) = refused(&server, &[before, step]);
        let is_named = shown.contains("step 2, `") && shown.contains(text);
        assert!(is_named && (found == code || code == "unknown_table"), "{step}: {found}: {shown}");
    }
    assert_eq!(refused(&server, &[]).0, "usage");
    assert_eq!(refused(&server, &["# only a remark"]).0, "usage");
    assert_eq!(value(&server, "items", "apple"), "3");
    assert!(!server.output("get orders 1").status.success(), "nothing is written");

    // More than a transaction may write.
    let many: String = (0..257).map(|number| format!("put items k{number} 1\n")).collect();
    let output = with_lines(&server, "transaction --json", &many);
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && shown.contains("too_large") && shown.contains("256"), "{shown}");
    let most: String = (0..256).map(|number| format!("put orders {number} x\n")).collect();
    succeeds(&with_lines(&server, "transaction", &most));
    server.json("put orders more x");
    let (code, shown) = refused(&server, &[before, "del-range orders '' ''"]);
    assert!(code == "too_large" && shown.contains("step 2, `") && shown.contains("smaller limit"), "{code}: {shown}");
    assert_eq!(server.json("count orders"), json!({"count": 257}));
}

/// Transfers of several processes at once: each is made once, though they meet at the same records.
#[test]
fn steps_are_run_again_while_others_come_first() {
    let server = shop();
    let begin = || {
        let mut command = server.command();
        command.args(["transaction", "incr items apple -1", "incr items sold 1"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap()
    };
    let begun: Vec<_> = (0..6).map(|_| begin()).collect();
    for child in begun {
        succeeds(&child.wait_with_output().unwrap());
    }
    assert_eq!((value(&server, "items", "apple"), value(&server, "items", "sold")), (json!("-3"), json!("6")));
}

#[test]
fn a_shell_keeps_a_transaction_open_until_it_is_committed() {
    let server = shop();
    let lines =
        "begin\nget items apple\nincr items apple 2\nput orders 1 x\nget items apple\ncommit\nget items apple\n";
    let shown = succeeds(&with_lines(&server, "shell", lines));
    assert_eq!(shown, "apple\t3\n5\napple\t5\ncommitted\n5\n");

    // Given up, left open, failed: nothing is written, and what follows a failed step is not run outside of it.
    let shown = succeeds(&with_lines(&server, "shell", "begin\nput items apple 0\nabort\nget items apple\n"));
    assert_eq!(shown, "nothing is written\n5\n");
    for (lines, text) in [
        ("begin\nput items apple 0\n", "the transaction was not committed"),
        ("begin\nput items apple 0\nexit\n", "the transaction was not committed"),
        ("begin\ncheck items apple --is 3\nput items apple 0\ncommit\n", "the value under apple is 5"),
        ("begin\nputt items apple\nput items apple 0\ncommit\n", "not committed: a step has failed"),
        ("begin\ntable list\nput items apple 0\ncommit\n", "a transaction is open"),
        ("begin\nuse shop\nput items apple 0\ncommit\n", "a transaction is open"),
        // What was meant by the word is not known: neither is it done.
        ("begin\nput items apple 0\ncommit now\ncommit\n", "`commit` takes no words: \"now\""),
        ("begin\nput items apple 0\nabort now\ncommit\n", "not committed: a step has failed"),
        ("commit now\n", "`commit` takes no words: \"now\""),
        ("commit\n", "no transaction is open"),
        ("abort\n", "no transaction is open"),
    ] {
        let output = with_lines(&server, "shell", lines);
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && shown.contains(text), "{lines}: {shown}");
    }
    // Without a tenant no line of the script is run.
    let output = with_lines(&server, "shell --tenant nobody", "begin\nput items apple 0\n");
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(value(&server, "items", "apple"), "5");

    // Another one writes between a shell's read and its commit.
    let mut command = server.command();
    command.args(["--json", "shell"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut keys = child.stdin.take().unwrap();
    keys.write_all(b"begin\nget items apple\nput items pear 1\n").unwrap();
    let mut answer = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut answer, &mut line).unwrap();
    assert!(line.contains("\"text\":\"5\""), "{line}");
    server.json("put items apple 6");
    keys.write_all(b"commit\n").unwrap();
    drop(keys);
    let output = child.wait_with_output().unwrap();
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && shown.contains("\"conflict\"") && shown.contains("apple of table \\\"items\\\""),
        "{shown}"
    );
    assert!(!server.output("get items pear").status.success());
}

/// The Rust client of the shop, the ids of its tables, and a record of `items`.
fn rust(server: &Server) -> (Client, u64) {
    let tenant = server.json("tenant show shop")["id"].as_u64().unwrap() as u32;
    let token = server.json("tenant token shop")["token"].as_str().unwrap().to_owned();
    let config = Config::new(server.data.parse().unwrap(), tenant).token(token).deadline(PATIENT);
    (Client::connect(config).unwrap(), server.json("table show items")["id"].as_u64().unwrap())
}

#[test]
fn a_transaction_in_rust_counts_and_checks() {
    let server = shop();
    let (client, items) = rust(&server);
    let mut transaction = client.transaction();
    assert_eq!(transaction.increment(items, b"apple", 39), Ok(42));
    assert_eq!(transaction.increment(items, b"apple", -1), Ok(41), "its own writes count");
    assert_eq!(transaction.increment(items, b"pear", 1), Ok(1));
    assert_eq!(client.get(items, b"pear").unwrap(), None, "nothing is written yet");
    transaction.commit().unwrap();
    let apple = client.get(items, b"apple").unwrap().expect("a record");
    assert_eq!((&apple.value[..], apple.flags), (&b"41"[..], 7));
    for wrong in [&b"three"[..], b"+3", b" 3", b"", b"9223372036854775807"] {
        client.put(items, b"wrong", wrong, &PutOptions::default()).unwrap();
        let refused = client.transaction().increment(items, b"wrong", 1);
        let names_key =
            |error: &Error| error.to_string().starts_with("the value under the key \"wrong\" is not a decimal");
        assert!(matches!(&refused, Err(error @ Error::NotANumber { .. }) if names_key(error)), "{refused:?}");
        assert_eq!(client.increment(items, b"wrong", 1), refused, "as the server's own");
    }
    // Two that count the same: one of them runs again.
    let (mut first, mut second) = (client.transaction(), client.transaction());
    assert_eq!((first.increment(items, b"apple", 1), second.increment(items, b"apple", 1)), (Ok(42), Ok(42)));
    first.commit().unwrap();
    assert_eq!(second.commit(), Err(Error::TransactionConflict { table: items, key: b"apple".to_vec() }));

    let version = client.get(items, b"apple").unwrap().expect("a record").version;
    for (key, holds, fails) in [
        (&b"apple"[..], ExpectedRecord::Version(version), ExpectedRecord::Version(version + 1)),
        (b"plum", ExpectedRecord::Absent, ExpectedRecord::Present),
        (b"apple", ExpectedRecord::Present, ExpectedRecord::Absent),
        (b"apple", ExpectedRecord::Value(b"42"), ExpectedRecord::Value(b"41")),
    ] {
        let mut transaction = client.transaction();
        assert_eq!(transaction.put_if(items, key, b"x", fails), Err(Error::Conflict), "{fails:?}");
        assert_eq!(transaction.check(items, key, holds), Ok(()), "{holds:?}");
        assert_eq!(transaction.put_if(items, key, b"x", holds), Ok(()), "{holds:?}");
        assert_eq!(transaction.check(items, key, ExpectedRecord::Version(0)), Err(Error::Conflict), "it has none yet");
        assert_eq!(transaction.check(items, key, ExpectedRecord::Value(b"x")), Ok(()), "its own writes count");
        // What held has to hold at the commit.
        client.put(items, key, b"42", &PutOptions::default()).unwrap();
        let conflict = Err(Error::TransactionConflict { table: items, key: key.to_vec() });
        assert_eq!(transaction.commit(), conflict, "{holds:?}");
        client.delete(items, b"plum").unwrap();
    }
    let mut transaction = client.transaction();
    transaction.put_if(items, b"apple", b"43", ExpectedRecord::Value(b"42")).unwrap();
    transaction.commit().unwrap();
    assert_eq!(value(&server, "items", "apple"), "43");
}

#[test]
fn many_puts_are_made_in_as_few_messages_as_they_fit() {
    let server = shop();
    let (client, items) = rust(&server);
    let options = PutOptions { flags: 5, ..PutOptions::default() };
    // More records than a message takes, then more bytes.
    for (count, size) in [(600, 10), (20, 1 << 20)] {
        let records: Vec<(String, Vec<u8>)> =
            (0..count).map(|number| (format!("many{number}"), vec![number as u8; size])).collect();
        let versions = client.put_many(items, &records, &options).unwrap();
        assert_eq!(versions.len(), count);
        for ((key, value), version) in records.iter().zip(&versions) {
            let found = client.get(items, key.as_bytes()).unwrap().expect("a record");
            assert_eq!((&found.value[..], found.version, found.flags), (&value[..], *version, 5), "{key}");
        }
    }
    assert_eq!(client.put_many::<&[u8], &[u8]>(items, &[], &options), Ok(Vec::new()));
    let absent = PutOptions::default().if_absent();
    let refused = client.put_many(items, &[("fresh", "1"), ("apple", "1"), ("later", "1")], &absent);
    assert_eq!(refused, Err(Error::Conflict));
    assert!(client.get(items, b"fresh").unwrap().is_some(), "it is no transaction");
    let too_large = client.put_many(items, &[(&b"k"[..], vec![0; 9 << 20])], &options);
    assert!(matches!(too_large, Err(Error::TooLarge { .. })), "{too_large:?}");
}
