//! Promise: whatever a newcomer does wrong is answered with what was wrong, where, and what to do. A failure prints
//! nothing on standard output, and its status is not zero. Each row is a mistake, made against a real server.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Output;

use super::common::root;
use super::readme::Terminal;

/// A command that is wrong, its status, and the parts of the answer that a reader needs.
struct Mistake {
    line: &'static str,
    status: i32,
    says: &'static [&'static str],
}

const fn mistake(line: &'static str, says: &'static [&'static str]) -> Mistake {
    Mistake { line, status: 1, says }
}

/// Words that the command line does not take.
const fn misused(line: &'static str, says: &'static [&'static str]) -> Mistake {
    Mistake { line, status: 2, says }
}

/// A source that cannot be pushed: its name, what stands behind the head, and what is said of it.
type WrongSource = (&'static str, &'static str, &'static [&'static str]);

const HEAD: &str = "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n";
const RUN: &str = "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {\n";

/// `RUN` stands for the head of the function, which is line 4 then.
const SOURCES: &[WrongSource] = &[
    ("nothing", "", &["src/lib.rs", "pub async fn run(db: Db<'_>, args: &[u8])", "typed functions"]),
    (
        "plain",
        "pub fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {\n    db.reply(args)\n}",
        &["pub async fn run"],
    ),
    (
        "misspelt",
        "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Eror> {\n    db.reply(args)\n}",
        &["src/lib.rs:4:57", "cannot find type `Eror`", "a struct with a similar name exists", "Error"],
    ),
    (
        "forgotten",
        "RUN    db.put(db.table(\"t\")?, args, b\"1\");\n    Ok(())\n}",
        &["src/lib.rs:5:5", "not awaited does nothing", "`.await?`"],
    ),
    ("pointers", "RUN    db.reply(&[unsafe { *args.as_ptr() }])\n}", &["src/lib.rs:5:16", "unsafe code", "safe Rust"]),
    (
        "files",
        "use std::fs;\nRUN    db.reply(&fs::read(\"/etc/passwd\")?)\n}",
        &["src/lib.rs:4:10", "there is no `std` here", "tables alone", "as arguments"],
    ),
    (
        "maps",
        "use std::collections::HashMap;\nRUN    let map = HashMap::from([(1, 2)]);\n    db.reply(args)\n}",
        &["src/lib.rs:4:10", "sandstorm_api::collections"],
    ),
    (
        "clocks",
        "RUN    let _now = std::time::Instant::now();\n    db.reply(args)\n}",
        &["src/lib.rs:5:16", "`db.now_ms()`"],
    ),
    (
        "crates",
        "use serde::Serialize;\nRUN    db.reply(args)\n}",
        &["src/lib.rs:4:5", "`serde`", "sandstorm_api", "libraries", "docs/libraries.md"],
    ),
    ("prints", "RUN    println!(\"{args:?}\");\n    db.reply(args)\n}", &["src/lib.rs:5:5", "`println!`", "`info!`"]),
    (
        "includes",
        "RUN    db.reply(include_str!(\"x\").as_bytes())\n}",
        &["src/lib.rs:5:14", "`include_str!`", "in the source"],
    ),
    (
        "sums",
        "pub async fn total(db: Db<'_>, prices: BTreeMap<String, u64>) -> Result<u64, Error> {\n    Ok(prices.values().sum())\n}",
        &["src/lib.rs:4:40", "a map: write `Vec<T>` of a `pub struct`"],
    ),
];

/// Faults of a call by the argument that brings them about, and what is said then.
const FAULTS: &[(&str, &str, &[&str])] = &[
    (
        "overflow",
        "db.reply(&[args.len() as u8 + 250])",
        &["killed (panic)", "attempt to add with overflow", "src/lib.rs:"],
    ),
    (
        "unwrap",
        "db.reply(db.get(db.table(\"t\")?, b\"absent\").await?.unwrap().value())",
        &["killed (panic)", "`Option::unwrap()` on a `None`", "src/lib.rs:"],
    ),
    ("index", "db.reply(&args[7..])", &["killed (panic)", "out of range for slice of length 5", "src/lib.rs:"]),
    ("loop", "loop { core::hint::spin_loop() }", &["killed (total_budget)", "src/lib.rs:", "ext profile", "total_us"]),
    ("recursion", "db.reply(&[deep(1)])", &["killed (stack_overflow)", "deep src/lib.rs:", "recursion"]),
    ("memory", "db.reply(&vec![7; 64 << 20])", &["killed (out_of_memory)", "src/lib.rs:", "arena_bytes"]),
    (
        "callee",
        "db.reply(&db.call(\"absent\", b\"\").await?)",
        &["failed (not_found)", "absent", "no extension of this name"],
    ),
    (
        "circle",
        "db.reply(&db.call(\"faults\", b\"circle\").await?)",
        &["failed (invalid)", "faults: faults", "8 deep at most"],
    ),
    (
        "table",
        "db.table(\"absent\").map(|_| ())",
        &["failed (unknown_table)", "no table \"absent\"", "sandstorm table create"],
    ),
    (
        "key",
        "db.put(db.table(\"t\")?, &vec![b'k'; 70_000], b\"\").await.map(|_| ())",
        &["failed (too_large)", "64 KiB", "8 MiB"],
    ),
    (
        "order",
        "db.range(db.table(\"t\")?, b\"\", b\"\", 10, Direction::Forward).await.map(|_| ())",
        &["failed (invalid)", "not ordered", "--ordered"],
    ),
    ("secret", "db.reply(&db.secret(\"payments\")?)", &["no secret \"payments\"", "sandstorm secret set payments"]),
    (
        "number",
        "db.increment(db.table(\"t\")?, b\"text\", 1).await.map(|_| ())",
        &["failed (not_a_number)", "the value under \"", "not a decimal number"],
    ),
    ("utf8", "db.reply(core::str::from_utf8(&[args[0], 255])?.as_bytes())", &["failed (invalid)", "not valid UTF-8"]),
];

/// What was wrong, at whatever a tenant types.
const COMMANDS: &[Mistake] = &[
    mistake("ext push empty", &["empty/extension.toml", "sandstorm ext new"]),
    mistake("ext push libraries", &["library \"serde\"", "extension.toml", "allowed: ", "docs/libraries.md"]),
    mistake("ext new faults", &["faults is not empty", "name a new folder"]),
    misused("ext new x --template blog", &["blog", "leaderboard"]),
    mistake("ext generate faults --lang python", &["no typed functions", "docs/types.md"]),
    misused("ext generate bank --lang cobol", &["cobol", "python"]),
    mistake("ext push --wasm faults/src/lib.rs", &["no WebAssembly module", "\\0asm"]),
    mistake(
        "ext push faults --tenant codeless",
        &["code policy", "none", "sandstorm tenant set NAME --code sandboxed"],
    ),
    mistake("ext rollback faults 99", &["no version 99", "kept are 1", "sandstorm ext versions"]),
    mistake("ext rollback faults", &["before 1", "sandstorm ext versions"]),
    misused("ext deploy faults@1 --percent 500", &["--percent", "0..=100"]),
    misused("ext deploy faults --percent 5", &["the extension's name, @ and the version"]),
    mistake("ext logs absent", &["no extension \"absent\"", "sandstorm ext list"]),
    mistake("invoke falts x", &["no extension \"falts\"", "sandstorm ext list", "sandstorm ext push"]),
    mistake("invoke falts.add 1", &["no extension \"falts\"", "sandstorm ext list", "ext push"]),
    mistake("invoke faults x --version 99", &["no extension \"faults\" in version 99", "sandstorm ext versions"]),
    mistake("invoke faults.add x", &["no typed functions", "call it by its name"]),
    mistake("invoke faults @big", &["arguments", "4194304", "split it"]),
    mistake("invoke faults @huge", &["huge", "8388608 bytes"]),
    mistake("invoke bank.transfr {}", &["no function \"transfr\"", "transfer, deposit"]),
    mistake("invoke bank {}", &["several functions", "EXTENSION.FUNCTION"]),
    mistake("invoke bank.deposit '{\"name\": \"ann\"}'", &["args.balance", "it is missing", "ext show"]),
    mistake("invoke bank.deposit '{\"name\": 7, \"balance\": 4}'", &["args.name", "String", "ext show"]),
    mistake("invoke bank.deposit '{\"name\": \"ann\", \"balance\": -4}'", &["args.balance", "-4 is no u64"]),
    mistake("invoke bank.deposit '{\"name\": \"ann\", \"balance\": 4, \"fee\": 1}'", &["\"fee\"", "name, balance"]),
    mistake("invoke notes ann", &["no JSON", "takes String", "'\"ann\"'"]),
    mistake("invoke bank.deposit ann 4", &["one argument: JSON", "ext show"]),
    mistake("get itmes apple", &["no table \"itmes\"", "sandstorm table list", "sandstorm table create"]),
    mistake("range t", &["\"t\" is not ordered", "--ordered"]),
    misused("put t k", &["<VALUE>", "--help"]),
    mistake("incr t text 1", &["under the key \"text\" is not a decimal number", "put a number there first"]),
    mistake("table create t", &["a table \"t\" already", "choose another name"]),
    mistake("table rename t sorted", &["a table \"sorted\" already", "choose another name"]),
    misused("table create frozen --mode frozen", &["frozen", "store, cache, spill"]),
    mistake("table create huge --quota 100GiB", &["memory_bytes", "sandstorm table set", "raise memory_bytes"]),
    mistake("table create many --tenant small", &["quota tables = 1", "raise the quota"]),
    mistake(
        "trigger create w --extension faults --on absent",
        &["no table \"absent\"", "sandstorm table list", "sandstorm table create absent"],
    ),
    mistake("trigger set absent --retries 1", &["no trigger \"absent\"", "sandstorm trigger list"]),
    mistake("trigger set w", &["nothing to change", "--every"]),
    mistake("trigger create w --extension faults --cron '0 25 * * *'", &["hour \"25\"", "0 to 23"]),
    mistake("trigger create w --extension faults --cron '0 3 * *'", &["4 fields", "minute, hour, day, month, weekday"]),
    mistake("trigger create w --extension faults", &["--every", "--cron", "--on"]),
    mistake("trigger create w --extension faults --every '5 parsecs'", &["5 parsecs", "such as 5s"]),
    mistake("trigger create w --extension bank.deposit --every 5s --args 7", &["args", "Account"]),
    mistake("secret set payments", &["standard input is empty", "echo VALUE"]),
    mistake("secret rm absent", &["no secret \"absent\"", "sandstorm secret list"]),
    mistake("grant add absent --to codeless", &["no table \"absent\"", "sandstorm table list"]),
    mistake("transaction 'check t text --is 3' 'del t text'", &["step 1", "is hello", "nothing is written"]),
    mistake(
        "transaction 'remove t text'",
        &["step 1", "get, range, check, put, del, del-range, incr, count, rank, nth, ttl and touch"],
    ),
    mistake("import absent.json", &["absent.json", "sandstorm export"]),
    misused("tabel list", &["tabel", "table"]),
    mistake("table list --tenant nobody", &["no tenant \"nobody\"", "sandstorm tenant list"]),
    misused("table list --fingerprint sha256:00", &["sha256:", "64 hexadecimal digits"]),
];

fn write_source(terminal: &mut Terminal, name: &str, text: &str) {
    terminal.run(&format!("sandstorm ext new {name}"));
    fs::write(terminal.here.join(name).join("src/lib.rs"), format!("{HEAD}{}", text.replace("RUN", RUN)))
        .expect("a file");
}

/// A server with three tenants, of which `shop` is meant unless another is named.
fn terminal() -> Terminal {
    let mut terminal = Terminal::open();
    for line in ["shop", "codeless --code none", "small --quota tables=1"] {
        terminal.run(&format!("sandstorm tenant create {line}"));
    }
    for line in ["t", "sorted --ordered", "accounts", "only --tenant small"] {
        terminal.run(&format!("{SHOP} sandstorm table create {line}"));
    }
    terminal
}

const SHOP: &str = "SANDSTORM_TENANT=shop; export SANDSTORM_TENANT;";

/// Makes a mistake, and looks at how it is answered.
fn answers(wrong: &mut Vec<String>, what: &str, output: &Output, (status, says): (i32, &[&str])) {
    let (printed, text) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let missing: Vec<&&str> = says.iter().filter(|part| !text.contains(**part)).collect();
    if output.status.code() != Some(status) || !missing.is_empty() || !text.contains("error: ") {
        wrong.push(format!("{what}: {:?}, without {missing:?}:\n{text}", output.status.code()));
    }
    if !printed.is_empty() {
        wrong.push(format!("{what} prints {printed:?}"));
    }
}

#[test]
fn a_source_that_cannot_be_pushed_is_answered_with_what_to_write() {
    let (mut terminal, mut wrong) = (terminal(), Vec::new());
    for (name, text, says) in SOURCES {
        write_source(&mut terminal, name, text);
        let output = terminal.shell(&format!("{SHOP} sandstorm ext push {name}")).output().expect("it runs");
        answers(&mut wrong, name, &output, (1, says));
    }
    let failing = "#[test]\n    fn it_says_no() {\n        assert_eq!(1 + 1, 3);\n    }";
    write_source(
        &mut terminal,
        "failing",
        &format!("RUN    db.reply(args)\n}}\n#[cfg(test)]\nmod tests {{\n    {failing}\n}}\n"),
    );
    let output = terminal.shell("sandstorm ext test failing").output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    // What tests print is the answer of this command.
    assert!(printed.contains("it_says_no ... FAILED") && printed.contains("src/lib.rs:11"), "{printed}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("error: the tests did not pass") && output.status.code() == Some(1), "{said}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_call_that_goes_wrong_says_why_and_where() {
    let (mut terminal, mut wrong) = (terminal(), Vec::new());
    let arms: String = FAULTS.iter().map(|(name, code, _)| format!("        b\"{name}\" => {code},\n")).collect();
    let deep = "#[inline(never)]\nfn deep(depth: u64) -> u8 {\n    let bytes = [depth as u8; 512];\n    \
                let more = if depth == u64::MAX { 0 } else { deep(depth + 1) };\n    \
                core::hint::black_box(&bytes)[7].wrapping_add(more)\n}\n";
    let source =
        format!("RUN    match args {{\n{arms}        _ => Err(Error::invalid(\"args: a fault\")),\n    }}\n}}\n{deep}");
    write_source(&mut terminal, "faults", &source);
    terminal.run(&format!("{SHOP} sandstorm ext push faults; sandstorm put t text hello"));
    for (name, _, says) in FAULTS {
        let output = terminal.shell(&format!("{SHOP} sandstorm invoke faults {name}")).output().expect("it runs");
        answers(&mut wrong, name, &output, (1, says));
    }

    let note = "pub async fn note(db: Db<'_>, text: String) -> Result<i64, Error> {\n    \
                db.increment(db.table(\"t\")?, text.as_bytes(), 1).await\n}\n";
    write_source(&mut terminal, "notes", note);
    terminal.run(&format!("{SHOP} sandstorm ext push notes"));
    let bank = root().join("ext/bank").display().to_string();
    terminal.run(&format!("{SHOP} sandstorm ext push {bank}; mkdir empty; sandstorm ext new libraries"));
    terminal.run("sed -i 's/^libraries.*/libraries = [\"serde\"]/' libraries/extension.toml");
    terminal.run("head -c 5000000 /dev/zero > big; head -c 9000000 /dev/zero > huge");
    for Mistake { line, status, says } in COMMANDS {
        let output = terminal.shell(&format!("{SHOP} sandstorm {line}")).output().expect("it runs");
        answers(&mut wrong, line, &output, (*status, says));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A server that speaks HTTP and knows none of our answers, at one connection after the other.
fn other_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let body = "{\"another\": \"program\"}";
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
            let _gone = write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    address
}

#[test]
fn a_wrong_address_or_token_is_told_as_such() {
    let (terminal, mut wrong) = (terminal(), Vec::new());
    let token = terminal.shell("sandstorm tenant token small --tenant small --json").output().expect("it runs").stdout;
    let token = serde_json::from_slice::<serde_json::Value>(&token).expect("JSON")["token"].as_str().map(str::to_owned);
    let (control, data) = (&terminal.control, terminal.said["data"].as_str().expect("an address"));
    let (nothing, other) = ("SANDSTORM_STATE=nowhere; export SANDSTORM_STATE;", other_server());
    let (control, stranger) = (control.trim_start_matches("http://"), token.expect("a token"));
    for (line, says) in [
        (format!("{nothing} sandstorm ext push x --tenant shop"), &["carries no token", "SANDSTORM_TOKEN"][..]),
        (format!("{nothing} sandstorm table list --token 0123456789abcdef"), &["unknown token", "SANDSTORM_TOKEN"]),
        (
            format!("{nothing} sandstorm table list --tenant shop --token {stranger}"),
            &["of tenant \"small\"", "\"shop\""],
        ),
        (format!("{nothing} sandstorm invoke faults --tenant shop --token {stranger}"), &["of tenant \"small\""]),
        (
            "sandstorm table list --server 127.0.0.1:1".to_owned(),
            &["127.0.0.1:1", "sandstorm serve", "control port", "7399"],
        ),
        (format!("sandstorm table list --server {data}"), &["sandstorm serve", "control port"]),
        ("sandstorm table list --server localhost".to_owned(), &["http://localhost", "control port", "7399"]),
        (format!("sandstorm table list --server {other}"), &["not understood", "control port of this version"]),
        (format!("sandstorm table list --server https://{control}"), &["does not speak TLS", "http://"]),
    ] {
        let line = if line.contains("ext push x") { format!("sandstorm ext new x >/dev/null; {line}") } else { line };
        let output = terminal.shell(&line).output().expect("it runs");
        answers(&mut wrong, &line, &output, (1, says));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let line = format!("{nothing} sandstorm table list --json --token 0123456789abcdef");
    let said = terminal.shell(&line).output().expect("it runs").stderr;
    let said: serde_json::Value = serde_json::from_slice(&said).expect("JSON");
    let codes = [&said["error"]["code"], &said["error"]["old_code"]];
    assert_eq!(codes, ["unauthenticated", "unauthorised"], "its name, and that of the release before");
}
