//! Promise: the command line does what it says against a real server, from a tenant's creation to a reply. A failure is
//! one `error: …` line and a status that is not zero. Runs the real binary on free ports.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Output, Stdio};

use crate::common::process::{Server, binary};
use serde_json::Value;

impl Server {
    pub(super) fn start(options: &[&str]) -> Server {
        Server::start_as(&[&["--no-pin", "--workers", "2"], options].concat())
    }

    fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        self.command().args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that must succeed; returns its standard output.
    pub(super) fn ok(&self, line: &str) -> String {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let output = self.run(&arguments);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail; returns its standard error.
    pub(super) fn fails(&self, line: &str) -> String {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let output = self.run(&arguments);
        assert!(!output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.lines().any(|line| line.starts_with("error: ")), "{line}: {text}");
        text
    }
}

#[test]
fn tenants_tables_and_records_from_the_command_line() {
    let server = Server::start(&["--no-builder"]);
    assert!(server.ok("tenant create shop").contains("token: "));
    server.ok("table create carts --quota 1MiB --mode cache");
    assert_eq!(server.ok("put carts k hello"), "version 1\n", "the token of a tenant created here need not be typed");
    assert_eq!(server.ok("get carts k"), "hello\n");
    for (condition, output_text) in [
        ("k other --if-absent", "conflict: there is a record, of version 1"),
        ("k other --if-version 7", "conflict: the record has version 1, not 7"),
        ("nothing other --if-version 7", "conflict: there is no record"),
        ("nothing other --if-present", "conflict: there is no record"),
    ] {
        let shown = server.fails(&format!("put carts {condition}"));
        assert!(shown.contains(output_text), "{condition}: {shown}");
    }
    assert!(server.fails("del carts nothing --if-version 7").contains("no record under nothing"));
    assert!(server.fails("get carts nothing").contains("no record under nothing"));
    server.ok("put carts bin hex:00ff u32:1");
    assert_eq!(server.ok("get carts bin"), "hex:00ff01000000\n");
    assert_eq!(server.run(&["get", "carts", "bin", "--raw"]).stdout, b"\x00\xff\x01\0\0\0");
    assert_eq!(server.ok("incr carts n 5"), "5\n");
    assert_eq!(server.json("incr carts n -7")["sum"], -2);
    assert_eq!(server.json("get carts n k")[1]["record"]["value"]["text"], "hello");
    assert_eq!(server.json("table show carts")["records"], 3);
    server.ok("del carts k");
    assert!(server.fails("del carts k").contains("no record"));

    let mut put = server.command().args(["put", "carts", "in", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(b"from\0stdin").unwrap();
    assert!(put.wait().unwrap().success());
    assert_eq!(server.run(&["get", "carts", "in", "--raw"]).stdout, b"from\0stdin");

    server.ok("tenant create other --quota tables=1");
    assert!(server.fails("table list").contains("hint: --tenant NAME, one of: other, shop"));
    server.ok("table create t --tenant other");
    assert!(server.fails("table create u --tenant other").contains("tables = 1"));
    let old = server.json("tenant token other")["token"].as_str().unwrap().to_owned();
    server.ok("put t k v --tenant other");
    server.ok("tenant token other");
    let void = server.command().env("SANDSTORM_TOKEN", old).args(["table", "list"]).output().unwrap();
    assert!(!void.status.success(), "a rotated token is void");
    assert!(server.ok("stat --count 1 --interval 0.05").lines().count() == 2);
    let stat = server.json("stat --all");
    let counter = |name: &str| stat["counters"][name].as_u64().unwrap();
    assert!(counter("requests.put") >= 4);
    assert!(counter("records_read") >= 6, "one by one, and two at once");
    // No message is shorter than its headers.
    for (bytes, packets) in [("bytes_in", "packets_in"), ("bytes_out", "packets_out")] {
        assert!(counter(packets) > 0 && counter(bytes) > 32 * counter(packets), "{stat}");
    }
    let latency = server.json("stat latency --all --tenant shop");
    let gets = latency["rows"].as_array().unwrap().iter().find(|row| row["class"] == "get").expect("gets were served");
    assert!(gets["total"]["count"].as_u64() >= Some(3) && gets["total"]["p99_ns"].as_u64() > Some(0), "{latency}");
    assert!(server.ok("stat latency --interval 0.05").starts_with("TENANT "));
    server.ok("tenant delete other");
    let events = server.ok("events --code tenant --since 1h");
    let codes: Vec<&str> =
        events.lines().filter_map(|line| line.split_whitespace().find(|word| word.contains("tenant."))).collect();
    assert_eq!(codes.last(), Some(&"tenant.deleted"), "{events}");
    let started = server.run(&["events", "--code", "server", "--json"]).stdout;
    let started: serde_json::Value = serde_json::from_slice(&started).expect("one event");
    assert_eq!((started["code"].as_str(), started["actor"].as_str()), (Some("server.started"), Some("server")));
    assert!(server.fails("events --code nonsense").contains("docs/operations.md lists"));
    assert_eq!(server.json("tenant list").as_array().unwrap().len(), 1);
    assert!(server.fails("ext push ../ext/get").contains("builder"));
}

/// The line of a table in `table list`: its words.
fn listed(server: &Server, name: &str) -> Vec<String> {
    let list = server.ok("table list");
    let line = list.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.unwrap_or_else(|| panic!("{name}: {list}")).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_table_is_changed_and_renamed_while_it_has_records() {
    let server = Server::start(&["--no-builder"]);
    server.ok("tenant create shop");
    server.ok("table create carts --quota 1MiB --durability none");
    server.ok(&format!("put carts k {}", "x".repeat(5_000)));
    let list = server.ok("table list");
    let head: Vec<&str> = list.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["NAME", "ID", "MODE", "DURABILITY", "RECORDS", "BYTES", "QUOTA"]);
    let status = server.json("table show carts");
    let (bytes, quota) = (status["bytes"].as_u64().unwrap(), status["quota_bytes"].as_u64().unwrap());
    assert!(bytes >= 5_000 && quota == 1 << 20, "{status}");
    let before = listed(&server, "carts");
    assert_eq!(
        (&before[2], &before[4], &before[7..]),
        (&"store".into(), &"1".into(), &["1.0".into(), "MiB".into()][..])
    );
    assert_eq!(before[6], "KiB", "its records take {bytes} bytes: {before:?}");
    // A quota: what was too much fits from then on.
    let large = format!("put carts large {}", "y".repeat(100_000));
    let is_full = (0..11).any(|number| {
        let line = large.replace("large", &format!("large{number}"));
        !server.run(&line.split(' ').collect::<Vec<_>>()).status.success()
    });
    assert!(is_full, "11 of them are more than 1 MiB");
    server.fails(&large.replace("large", "last"));
    assert!(server.ok("table set carts --quota 8MiB").contains("carts"));
    assert_eq!(server.json("table show carts")["quota_bytes"], 8 << 20);
    assert_eq!(listed(&server, "carts")[7..], ["8.0", "MiB"]);
    server.ok(&large.replace("large", "last"));
    assert_eq!(server.ok("get carts k").trim_end().len(), 5_000, "its records stay");
    // A mode: of a table without records, since a store would not know which to evict.
    server.ok("table create visits --durability none");
    for mode in ["cache", "store"] {
        server.ok(&format!("table set visits --mode {mode}"));
        assert_eq!(listed(&server, "visits")[2], mode);
        assert_eq!(server.json("table show visits")["mode"], mode);
    }
    // A name: its id and records stay, and the old one is free.
    let id = server.json("table show carts")["id"].clone();
    assert!(server.ok("table rename carts baskets").contains("baskets"));
    assert_eq!(server.json("table show baskets")["id"], id);
    assert!(server.fails("get carts k").contains("no table \"carts\""));
    assert_eq!(server.ok("get baskets k").trim_end().len(), 5_000);
    server.ok("table create carts");
    assert!(server.fails("get carts k").contains("no record"));
}

#[test]
fn tenants_share_tables_from_the_command_line() {
    let server = Server::start(&["--no-builder"]);
    let token = |name: &str| server.json(&format!("tenant create {name}"))["token"].as_str().unwrap().to_owned();
    let tokens = [token("shop"), token("reports")];
    let run = |who: usize, line: &str| {
        let mut command = server.command();
        // A tenant on another machine: it has its token, and nothing else.
        command.env("SANDSTORM_STATE", server.folder.path().join("elsewhere")).env("SANDSTORM_TOKEN", &tokens[who]);
        let output = command.args(line.split_whitespace()).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(if output.status.success() { output.stdout } else { output.stderr }).unwrap();
        (output.status.success(), text)
    };
    let ok = |who, line: &str| {
        let (done, text) = run(who, line);
        assert!(done, "{line}: {text}");
        text
    };
    let fails = |who, line: &str| {
        let (done, text) = run(who, line);
        assert!(!done, "{line}: {text}");
        text
    };
    let (shop, reports) = (0, 1);
    ok(shop, "table create carts");
    ok(shop, "put carts k hello");
    assert!(fails(reports, "get shop/carts k").contains("has no table \"shop/carts\""));
    assert!(!ok(shop, "table list").contains("GRANTED"), "where nothing is shared nothing is said about it");

    // The owner must not learn whether such a tenant exists.
    let output_text = ["reports", "nobody"].map(|to| ok(shop, &format!("grant add carts --to {to}")).replace(to, "TO"));
    assert_eq!(output_text[0], output_text[1]);
    let operator = server.fails("grant add carts --to stranger --tenant shop");
    assert!(operator.contains("there is no tenant \"stranger\"") && operator.contains("hint: "), "{operator}");

    assert_eq!(ok(reports, "get shop/carts k"), "hello\n");
    assert!(ok(reports, "table list").contains("shop/carts"));
    let refused = fails(reports, "put shop/carts k other --json");
    assert_eq!(serde_json::from_str::<Value>(&refused).unwrap()["error"]["code"], "read_only", "{refused}");
    assert!(
        fails(reports, "incr shop/carts n").contains("error: the table was granted for reading only\nhint: its owner")
    );
    for not_its_own in ["table drop shop/carts", "grant add shop/carts --to shop"] {
        assert!(fails(reports, not_its_own).contains("another tenant's"), "{not_its_own}");
    }
    ok(shop, "grant add carts --to reports --read-write");
    ok(reports, "put shop/carts k other");
    assert_eq!(ok(shop, "get carts k"), "other\n");
    let listed: Value = serde_json::from_str(&ok(reports, "grant list --json")).unwrap();
    let id = listed["received"][0]["id"].as_u64().unwrap();
    assert!(id >= 1 << 48 && listed["received"][0]["access"] == "read_write", "{listed}");
    assert_eq!(server.json("table show carts --tenant shop")["granted_to"][1]["in_force"], false);
    assert!(ok(shop, "table list").contains("reports (read-write), nobody (read)"));
    assert!(ok(shop, "grant list").contains("shop/carts"));

    ok(shop, "grant revoke carts --from reports");
    assert!(fails(reports, "get shop/carts k").contains("has no table"));
    assert!(fails(shop, "grant revoke carts --from reports").contains("is not granted to \"reports\""));
    ok(shop, "grant add carts --to reports");
    ok(reports, "grant drop shop/carts");
    assert!(fails(reports, "grant drop shop/carts").contains("no table \"shop/carts\" is granted"));
    assert!(fails(reports, "grant drop carts").contains("OWNER/TABLE"));
    assert!(ok(shop, "grant list").contains("reports"), "nor is it for the owner to know who gave it up");
    assert_eq!(server.json("tenant show reports")["grants_received"], 0);
}

#[test]
fn ranges_of_ordered_tables_from_the_command_line() {
    let server = Server::start(&["--no-builder"]);
    server.ok("tenant create shop");
    server.ok("table create sorted --ordered");
    server.ok("table create plain");
    for (key, value) in
        [("cherry", "3"), ("hex:ff00", "last"), ("apple", "1"), ("hex:00ff", "hex:0102"), ("banana", "2")]
    {
        server.ok(&format!("put sorted {key} {value}"));
    }
    let all = "hex:00ff\thex:0102\napple\t1\nbanana\t2\ncherry\t3\nhex:ff00\tlast\n";
    assert_eq!(server.ok("range sorted"), all);
    let backward: String = all.lines().rev().flat_map(|line| [line, "\n"]).collect();
    assert_eq!(server.ok("range sorted --backward"), backward);
    assert_eq!(server.ok("range sorted apple cherry"), "apple\t1\nbanana\t2\n", "the end is left out");
    assert_eq!(server.ok("range sorted apple cherry --backward --limit 1"), "banana\t2\n");
    assert_eq!(server.ok("range sorted banana --limit 2"), "banana\t2\ncherry\t3\n");
    assert_eq!(server.ok("range sorted hex:00 hex:6170"), "hex:00ff\thex:0102\n", "keys as bytes");
    let until = server.run(&["range", "sorted", "", "apple"]);
    assert_eq!(until.stdout, b"hex:00ff\thex:0102\n", "an empty key is the smallest");
    for nothing in ["range sorted cherry apple", "range sorted apple apple", "range sorted hex:ffff"] {
        assert_eq!(server.ok(nothing), "", "{nothing}");
    }
    assert_eq!(server.json("range sorted cherry apple"), serde_json::json!([]));
    let found = server.json("range sorted hex:00 banana");
    assert_eq!(found.as_array().unwrap().len(), 2, "{found}");
    assert_eq!((&found[0]["key"]["hex"], &found[0]["key"]["text"]), (&"00ff".into(), &Value::Null), "{found}");
    assert_eq!((&found[1]["key"]["text"], &found[1]["value"]["text"]), (&"apple".into(), &"1".into()), "{found}");
    // Versions are counted by stripes of the table; two keys may share one.
    let got = &server.json("get sorted apple")["record"];
    assert!(found[1]["version"].as_u64().is_some_and(|version| (1..=5).contains(&version)), "{found}");
    assert_eq!((&found[1]["version"], &found[1]["flags"]), (&got["version"], &0.into()), "{found} {got}");

    // One record a line, whatever bytes it holds.
    assert!(server.run(&["put", "sorted", "two\nlines", "a\tb"]).status.success());
    assert_eq!(server.ok("range sorted two u"), "hex:74776f0a6c696e6573\thex:610962\n");
    let unordered = server.fails("range plain");
    assert!(unordered.contains("\"plain\" is not ordered") && unordered.contains("--ordered"), "{unordered}");
    let unordered: Value =
        serde_json::from_slice(&server.run(&["range", "plain", "--json"]).stderr).expect("an error for programs");
    assert_eq!(unordered["error"]["code"], "not_ordered", "{unordered}");
    assert!(server.fails("range nothing").contains("has no table \"nothing\""));
    assert!(server.fails("range sorted --limit 0").contains("--limit"));
}

#[test]
fn a_range_longer_than_one_answer_comes_whole_from_the_command_line() {
    let server = Server::start(&["--no-builder"]);
    server.ok("tenant create shop");
    let id = server.json("tenant show shop")["id"].as_u64().unwrap() as u32;
    server.ok("table create sorted --ordered");
    let table = server.json("table show sorted")["id"].as_u64().unwrap();
    let token = server.json("tenant token shop")["token"].as_str().unwrap().to_owned();
    let config = sandstorm_client::Config::new(server.data.parse().unwrap(), id).token(token);
    let client = sandstorm_client::blocking::Client::connect(config).unwrap();
    for some in (0..2_300_u32).collect::<Vec<_>>().chunks(100) {
        let batch = some.iter().fold(client.batch(), |batch, number| {
            batch.put(table, format!("k{number:04}").as_bytes(), &number.to_le_bytes())
        });
        client.send(batch).unwrap().into_iter().for_each(|put| drop(put.unwrap()));
    }
    let keys = |line: &str| -> Vec<String> {
        server.ok(line).lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    let all: Vec<String> = (0..2_300).map(|number| format!("k{number:04}")).collect();
    assert_eq!(keys("range sorted --limit 100000"), all);
    assert_eq!(keys("range sorted"), all[..100], "a hundred, where nothing is said");
    let mut backward = all[1..2_200].to_vec();
    backward.reverse();
    assert_eq!(keys("range sorted k0001 k2200 --limit 2500 --backward"), backward);
    assert_eq!(keys("range sorted k0001 k2200 --limit 1001 --backward"), backward[..1_001]);
    assert_eq!(server.json("range sorted --limit 2299").as_array().unwrap().len(), 2_299);
}

#[test]
fn a_new_extension_is_written_pushed_called_replaced_and_unloaded() {
    let server = Server::start(&[]);
    server.ok("tenant create shop");
    server.ok("table create t");
    let mine = server.folder.path().join("mine");
    server.ok(&format!("ext new {}", mine.display()));
    assert!(server.ok(&format!("ext push {}", mine.display())).starts_with("pushed mine version 1 to tenant shop"));
    assert!(server.fails("invoke mine home").contains("failed (unknown_table): the tenant has no table \"visits\""));
    assert!(server.fails("invoke mine").contains("failed (invalid): args: "));
    let ext = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ext");
    for name in ["get", "aggregate", "bad"] {
        server.ok(&format!("ext push {}", ext.join(name).display()));
    }
    server.ok("put t k value");
    assert_eq!(server.ok("invoke get table:t k"), "value\n");
    server.ok("put t a u64:5");
    server.ok("put t b u64:7");
    server.ok("put t list len16:a len16:b len16:c");
    assert_eq!(server.ok("invoke aggregate table:t u32:0 list --as u64,u32,u32"), "12 2 1\n");

    assert!(server.fails("invoke bad table:t loop").contains("killed (total_budget)"));
    assert!(server.fails("invoke bad table:t panic").contains("killed (panic)"));
    let kills = server.json("kills");
    assert_eq!((kills[0]["cause"].as_str(), kills[1]["cause"].as_str()), (Some("panic"), Some("total_budget")));
    assert_eq!(server.json("ext show bad")["stats"]["killed"], 2);
    let all = server.json("ext list --all --sort kills --limit 1");
    assert_eq!((all[0]["name"].as_str(), all[0]["stats"]["killed"].as_u64()), (Some("bad"), Some(2)), "{all}");
    assert_eq!(server.json("kills --extension bad --since 1h").as_array().map(Vec::len), Some(2));
    assert_eq!(server.json("kills --extension good").as_array().map(Vec::len), Some(0));
    assert_eq!(server.ok("invoke get table:t k"), "value\n", "others go on");

    server.ok(&format!("ext push {}", ext.join("get").display()));
    assert_eq!(server.json("ext show get")["version"], 2);
    assert_eq!(server.ok("invoke get table:t k --version 2"), "value\n");
    server.ok("ext suspend get");
    assert!(server.fails("invoke get table:t k").contains("suspended"));
    assert_eq!(server.ok("ext resume get"), "resumed get\n");
    assert_eq!(server.ok("ext resume get"), "get is not suspended: its calls are taken\n");
    assert!(server.fails("ext resume nothing").contains("has no extension \"nothing\""));
    assert_eq!(server.ok("invoke get table:t k"), "value\n");
    server.ok("ext unload get");
    assert!(server.fails("invoke get table:t k").contains("has no extension \"get\""));

    std::fs::write(mine.join("src/lib.rs"), "#![no_std]\npub fn run() { unsafe { } }\n").unwrap();
    let refused = server.fails(&format!("ext push {}", mine.display()));
    assert!(refused.contains("src/lib.rs:2:") && refused.contains("error: "), "{refused}");
}

/// A key with an escape, a mark that turns the direction of writing, and markup; and a line of the log.
fn keys_and_lines_reach_no_terminal_as_they_are(server: &Server, harmless: &dyn Fn(&str)) {
    let token = server.json("tenant token shop")["token"].as_str().unwrap().to_owned();
    server.ok("table create seen --ordered");
    server.ok("slow --threshold-us 1");
    server.ok("put seen hex:1b5b324ae280ae3c696d673e value");
    // One may be over within a microsecond.
    assert!(crate::common::eventually(|| {
        server.ok("get seen hex:1b5b324ae280ae3c696d673e");
        server.json("slow")["requests"].as_array().is_some_and(|requests| !requests.is_empty())
    }));
    for (line, shown) in [
        ("ext logs harmful", "\\u{202e}\\u{1b}]0;line"),
        ("big seen", "\\u{1b}[2J\\u{202e}<img>"),
        ("slow", "\\u{1b}[2J\\u{202e}<img>"),
        ("range seen", "hex:1b5b324ae280ae3c696d673e"),
    ] {
        let said = server.ok(&format!("{line} --token {token}"));
        harmless(&said.replace('\t', " "));
        assert!(said.contains(shown), "{line}: {said}");
    }
    for line in ["slow", "events", "history --by seconds", "top tables --once", "top tenants --batch -n 1", "hot"] {
        // Rows for scripts have tabs between their columns.
        harmless(&server.ok(line).replace('\t', " "));
    }
}

const HARMFUL: &str = r#"#![no_std]
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    info!("\u{202e}\u{1b}]0;line\u{7}\r\nerror: forged");
    match args {
        b"panic" => panic!("\u{202e}\u{1b}]0;title\u{7}\u{9b}2J\u{200b}\r\nerror: forged\nhint: forged"),
        b"error" => Err(Error::new("\u{2066}\u{1b}[2J\u{feff}\nerror: forged\nhint: forged")),
        _ => db.reply(b"\x1b[2J"),
    }
}
"#;

#[test]
fn texts_that_tenants_chose_reach_no_terminal_as_they_are() {
    let server = Server::start(&[]);
    server.ok("tenant create shop");
    let folder = server.folder.path().join("harmful");
    server.ok(&format!("ext new {}", folder.display()));
    std::fs::write(folder.join("src/lib.rs"), HARMFUL).unwrap();
    server.ok(&format!("ext push {}", folder.display()));
    let harmless = |output_text: &str| {
        let harmful = |c: &char| *c != '\n' && (c.is_control() || "\u{202e}\u{2066}\u{200b}\u{feff}".contains(*c));
        assert_eq!(output_text.chars().find(harmful), None, "{output_text:?}");
        assert!(
            !output_text.lines().any(|line| line.starts_with("error: forged") || line.starts_with("hint: forged")),
            "{output_text}"
        );
    };
    for (line, shown) in
        [("invoke harmful panic", "\\u{202e}\\u{1b}]0;title"), ("invoke harmful error", "\\u{2066}\\u{1b}[2J")]
    {
        let output_text = server.fails(line);
        harmless(&output_text);
        assert!(output_text.contains(shown), "{output_text}");
        let mut words: Vec<&str> = line.split(' ').collect();
        words.push("--json");
        harmless(&String::from_utf8(server.run(&words).stderr).unwrap());
    }
    let kills = server.ok("kills");
    harmless(&kills);
    assert!(kills.contains("\\u{202e}"), "{kills}");
    harmless(&server.ok("ext show harmful"));
    let json = server.ok("kills --json");
    harmless(&json);
    let parsed: Value = serde_json::from_str(&json).unwrap();
    assert!(parsed[0]["text"].as_str().unwrap().contains("\u{202e}\u{1b}]0;title"), "programs get what was said");
    assert_eq!(server.ok("invoke harmful reply"), "hex:1b5b324a\n");
    keys_and_lines_reach_no_terminal_as_they_are(&server, &harmless);
    assert_eq!(server.ok("invoke harmful reply --raw"), "\u{1b}[2J", "and exactly, if it is asked for");
}

#[test]
fn memory_of_large_values_goes_back_and_until_then_the_counters_tell_where_it_is() {
    let server = Server::start(&["--no-builder"]);
    let counters = || {
        let stat = server.json("stat --all");
        move |name: &str| stat["counters"][name].as_u64().unwrap_or_else(|| panic!("{name} in {stat}"))
    };
    let before = counters()("resident_bytes");
    // Sizes for which allocators behave differently, each written over the last one.
    for (records, bytes) in [(8_000, 9_000), (3_000, 60_000), (3_000, 100_000), (600, 400_000), (3_000, 40_000)] {
        let load = format!("load --tenants 1 --create --fill --records {records} --value-bytes {bytes} --seconds 0");
        let output = server.output(&load);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let now = counters();
        let output_told = now("slab_bytes") + now("bucket_bytes") + now("heap_bytes");
        let (resident, record_bytes) = (now("resident_bytes"), now("record_bytes"));
        // Untouched memory is not resident; code and stacks are resident, but in no report.
        assert!(resident < output_told + before + (48 << 20), "{resident} resident, {output_told} told");
        // A record is charged the most that it can take.
        let used = now("slab_bytes") - now("slab_free_bytes");
        assert!(used.abs_diff(record_bytes) < record_bytes / 20, "{used} used, {record_bytes} of records");
    }
    assert!(counters()("resident_bytes") > before + (100 << 20), "it was in memory");
    server.ok("tenant delete load-1");
    // What stays: 40 MiB of free slabs, and of the heap the log's buffers of large values and what the allocator keeps.
    let gone = || counters()("resident_bytes") < before + (128 << 20);
    let since = std::time::Instant::now();
    while !gone() {
        let waited = since.elapsed();
        let names =
            ["resident_bytes", "slab_bytes", "slab_free_bytes", "bucket_bytes", "heap_bytes", "heap_free_bytes"];
        let now = counters();
        assert!(waited.as_secs() < 60, "{before} before, now {:?}", names.map(|name| (name, now(name))));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn what_cannot_be_served_is_one_line_and_a_status() {
    let server = Server::start(&["--no-builder"]);
    let outer = tempfile::tempdir().unwrap();
    let open = outer.path().join("open.toml");
    std::fs::write(&open, "data = '0.0.0.0:0'\n[[tenants]]\nname = 'a'\nopen = true\n").unwrap();
    let state = outer.path().join("state");
    let missing = outer.path().join("missing");
    let free = "127.0.0.1:0";
    let cases: [(&[&str], &str); 6] = [
        (&["--data", &server.data, "--control", free, "--no-builder"], "in use"),
        (&["--data", free, "--control", &server.control, "--no-builder"], "is taken: does another server run?"),
        (&["--data", free, "--control", free, "--rustc", missing.to_str().unwrap()], "no builder: "),
        (&["--config", missing.to_str().unwrap()], "cannot read configuration"),
        (&["--config", open.to_str().unwrap()], "--allow-open"),
        (&["--workers", "0"], "workers = 0 is outside of"),
    ];
    for (arguments, expected) in cases {
        let output = binary().args(["serve", "--state"]).arg(&state).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(expected), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(text.starts_with("error: ") && output.stdout.is_empty());
    }
    let gone = binary().args(["tenant", "list", "--server", "127.0.0.1:1", "--json"]).output().unwrap();
    let error: Value = serde_json::from_slice(&gone.stderr).unwrap();
    assert_eq!((gone.status.code(), error["error"]["code"].as_str()), (Some(1), Some("unreachable")));
    let misused = binary().args(["get", "items", "--json"]).output().unwrap();
    let error: Value = serde_json::from_slice(&misused.stderr).unwrap();
    assert_eq!((misused.status.code(), error["error"]["code"].as_str()), (Some(2), Some("usage")));
}

#[test]
fn errors_name_what_was_meant_and_what_to_do() {
    let server = Server::start(&["--no-builder"]);
    let void = ["table", "list", "--token", "0123456789abcdef"];
    let text = String::from_utf8(server.run(&void).stderr).unwrap();
    assert!(text.contains("unknown token\nhint: ") && text.contains("SANDSTORM_TOKEN"), "{text}");
    server.ok("tenant create shop");
    assert!(server.fails("invoke nothing").contains("tenant \"shop\" has no extension \"nothing\"\nhint: "));
    assert!(server.fails("invoke nothing --version 7").contains("\"nothing\" in version 7"));
    let quota = server.fails("tenant set shop --quota slice_uss=500");
    assert!(quota.contains("there is no \"slice_uss\" here\nhint: did you mean `slice_us`?"), "{quota}");
    assert!(server.fails("ext new Not-A-Name").contains("\"Not-A-Name\" cannot be an extension's name"));
    server.ok("table create t");
    let line = ["put", "t", "k", "ends its line\n"];
    assert!(server.run(&line).status.success());
    assert_eq!(server.ok("get t k"), "ends its line\n", "shown on one line");
    assert_eq!(server.run(&["get", "t", "k", "--raw"]).stdout, b"ends its line\n");
}

#[test]
fn no_other_thread_runs_on_a_workers_processor() {
    let processors = std::thread::available_parallelism().unwrap().get();
    if processors < 2 {
        println!("skipped: there is one processor only");
        return;
    }
    let server = Server::start_as(&["--workers", "1"]);
    server.ok("tenant create shop");
    // This starts the threads of the control port and of the builder, too.
    server.ok("ext push ../ext/get");
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.process.id())).unwrap();
    let mut found = Vec::new();
    for task in tasks.flatten() {
        // A thread may have ended meanwhile.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned());
        found.extend(field("Name:").zip(field("Cpus_allowed_list:")));
    }
    let (workers, others): (Vec<_>, Vec<_>) = found.iter().partition(|(name, _)| name.starts_with("worker-"));
    let [(_, processor)] = workers[..] else { panic!("one worker: {found:?}") };
    assert!(processor.parse::<usize>().is_ok(), "bound to one processor: {found:?}");
    for name in ["watchdog", "janitor", "control", "control-blockin"] {
        assert!(others.iter().any(|(other, _)| other == name), "{name} is not there: {found:?}");
    }
    let is_on = |list: &str| {
        list.split(',').any(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            (from.parse::<usize>().unwrap()..=to.parse().unwrap()).contains(&processor.parse().unwrap())
        })
    };
    assert!(!others.iter().any(|(_, list)| is_on(list)), "{found:?}");
}

#[test]
fn homes_are_moved_by_a_thread_that_can_be_left_out() {
    let has_thread = |options: &[&str]| {
        let server = Server::start_as(options);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.process.id())).unwrap();
        let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.into_iter().any(|name| name.trim() == "homes")
    };
    assert!(has_thread(&["--workers", "2"]));
    assert!(!has_thread(&["--workers", "2", "--no-move-homes"]) && !has_thread(&["--workers", "1"]));
}

#[test]
fn counters_are_a_stream_of_lines_unless_one_row_is_asked_for() {
    let server = Server::start(&["--no-builder"]);
    let one = server.ok("stat --once --interval 0.05 --json");
    assert_eq!(one.lines().count(), 1, "{one}");
    let is_row = |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|row| row["now"]["messages"].is_u64());
    assert!(is_row(&one), "{one}");
    let mut stream = server.command();
    let mut stream = stream.args(["stat", "--json", "--interval", "0.05"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines: Vec<String> =
        BufReader::new(stream.stdout.take().unwrap()).lines().take(3).map(|line| line.unwrap()).collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| is_row(line)), "{lines:?}");
    // It ends by itself once no program reads it any more, or here.
    let _is_over = stream.kill();
    stream.wait().unwrap();
    let help = server.ok("stat --help");
    assert!(help.contains("until interrupted, or --once") && help.contains("Print one row and end"), "{help}");
}
