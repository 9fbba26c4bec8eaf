//! Promise: a pushed extension is called for each change of a table and by the clock, over a kill of the server. Runs
//! the real binary.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::EVENTUALLY;
use crate::common::process::Server;

const OPTIONS: [&str; 3] = ["--no-pin", "--workers", "2"];

fn write_extension(folder: &Path, name: &str, body: &str) {
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("extension.toml"), format!("name = \"{name}\"\nversion = \"0.1.0\"\n")).unwrap();
    let text = format!(
        "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n\
         use sandstorm_api::change::{{Change, ChangeOp}};\n\
         pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {{\n{body}\n}}\n"
    );
    std::fs::write(folder.join("src/lib.rs"), text).unwrap();
}

/// Copies a table by its changes; refuses a key until the record `open` is there.
const COPY: &str = "
    let change = Change::decode(args)?;
    let copies = db.table(\"copies\")?;
    if change.key == b\"refused\" && db.get(copies, b\"open\").await?.is_none() {
        return Err(Error::invalid(\"not yet\"));
    }
    match change.op {
        ChangeOp::Put => db.put(copies, change.key, change.value).await.map(|_| ())?,
        ChangeOp::Delete | ChangeOp::Expire => db.delete(copies, change.key).await.map(|_| ())?,
        ChangeOp::Clear => return Err(Error::new(\"a copy is not cleared\")),
    }
    Ok(())";

/// The same for several changes in one call, or one.
const COPY_SEVERAL: &str = "
    let copies = db.table(\"copies\")?;
    for change in sandstorm_api::change::Changes::decode(args)? {
        let Change { op, key, value, .. } = change;
        match op {
            _ if key == b\"refused\" => return Err(Error::invalid(\"never\")),
            ChangeOp::Put => db.put(copies, key, value).await.map(|_| ())?,
            ChangeOp::Delete | ChangeOp::Expire => db.delete(copies, key).await.map(|_| ())?,
            ChangeOp::Clear => return Err(Error::new(\"a copy is not cleared\")),
        }
    }
    Ok(())";

const TICK: &str = "
    let _kinds = (ChangeOp::Put, Change::decode(args).is_ok());
    db.increment(db.table(\"copies\")?, args, 1).await.map(|_| ())";

/// A command's result, once it holds.
fn wait_for(server: &Server, line: &str, mut holds: impl FnMut(&Value) -> bool) -> Value {
    let until = Instant::now() + EVENTUALLY;
    loop {
        let value = server.json(line);
        if holds(&value) {
            return value;
        }
        assert!(Instant::now() < until, "{line}: {value}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server, with what a client needs beside its address.
struct Reader<'s>(&'s Server, String);

impl Reader<'_> {
    /// The value of a record of the copy; empty if there is none.
    fn value(&self, key: &str) -> String {
        let Reader(server, token) = self;
        String::from_utf8(server.output(&format!("get copies {key} --raw --token {token}")).stdout).unwrap()
    }

    fn wait_for(&self, key: &str, wanted: &str) {
        let until = Instant::now() + EVENTUALLY;
        while self.value(key) != wanted {
            let triggers = self.0.json("trigger list");
            assert!(Instant::now() < until, "{key}: {:?} and not {wanted:?}; {triggers}", self.value(key));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn reader(server: &Server) -> Reader<'_> {
    Reader(server, server.json("tenant token shop")["token"].as_str().unwrap().to_owned())
}

#[test]
fn a_copy_is_kept_by_a_trigger_and_a_clock_ticks_over_a_kill() {
    let server = Server::start_as(&OPTIONS);
    server.json("tenant create shop");
    for table in ["items", "copies"] {
        server.json(&format!("table create {table} --durability disk"));
    }
    for (name, body) in [("copy", COPY), ("tick", TICK)] {
        let folder = server.folder.path().join(name);
        write_extension(&folder, name, body);
        server.json(&format!("ext push {}", folder.display()));
    }
    let copies = reader(&server);
    server.json("put items early 0");
    server.json("trigger create copies --extension copy --on items --ops put,delete --retries 1");
    server.json("trigger create clock --extension tick --every 100ms --args ticks");
    server.json("put items a 1");
    server.json("put items a 2");
    server.json("put items b 1");
    copies.wait_for("a", "2");
    copies.wait_for("b", "1");
    server.json("del items b");
    copies.wait_for("b", "");
    assert_eq!(copies.value("early"), "", "a trigger begins with the next change");
    // An error of the extension is a dead letter, and others go on.
    server.json("put items refused x");
    let letters = wait_for(&server, "trigger dead-letters copies", |letters| !letters.as_array().unwrap().is_empty());
    assert!(letters[0]["error"].as_str().unwrap().contains("not yet"), "{letters}");
    server.json("put items c 3");
    copies.wait_for("c", "3");
    server.json("put copies open 1");
    server.json("trigger replay copies");
    copies.wait_for("refused", "x");
    wait_for(&server, "trigger list", |triggers| {
        let clock = triggers.as_array().unwrap().iter().find(|one| one["name"] == "clock").unwrap();
        clock["succeeded"].as_u64().unwrap() >= 3
    });

    // What was written while a trigger is paused, and before a kill, is handled after it.
    server.json("trigger pause copies");
    server.json("put items late 1");
    let folder = server.folder.clone();
    drop(server);
    let server = Server::start_in(None, folder, &["--data", "127.0.0.1:0", "--no-pin", "--workers", "2"]);
    let copies = reader(&server);
    let paused = wait_for(&server, "trigger list", |triggers| triggers.as_array().unwrap().len() == 2);
    assert!(paused.as_array().unwrap().iter().any(|one| one["state"] == "paused"), "{paused}");
    assert_eq!(copies.value("late"), "");
    server.json("trigger resume copies");
    copies.wait_for("late", "1");
    let ticks: u64 = copies.value("ticks").parse().unwrap();
    assert!(ticks >= 3);
    server.json("trigger delete clock");
    let refused = server.output("trigger create other --extension copy --on nowhere");
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("nowhere"));
    let events = String::from_utf8(server.output("events --code trigger").stdout).unwrap();
    assert!(events.contains("trigger.created") && events.contains("trigger.deleted"), "{events}");
}

/// What has gathered comes in one call. If that fails, all but the one that fails alone come in others.
fn copy_a_batch(reader: &Reader<'_>) {
    let Reader(server, _) = reader;
    server.json("trigger pause copy");
    for line in ["del orders apple", "put orders pear 1", "put orders refused x", "put orders plum 2"] {
        server.output(line);
    }
    server.json("trigger resume copy");
    [("apple", ""), ("pear", "1"), ("plum", "2")].into_iter().for_each(|(key, value)| reader.wait_for(key, value));
    let letters = wait_for(server, "trigger dead-letters copy", |letters| !letters.as_array().unwrap().is_empty());
    assert_eq!((letters.as_array().unwrap().len(), &letters[0]["tries"]), (1, &3.into()), "{letters}");
}

/// What a manifest declares is there after a push, changed after the next, and refused before anything is built if it
/// cannot be.
#[test]
fn a_trigger_is_changed_in_its_place_and_keeps_its_position_and_its_dead_letters() {
    let server = Server::start_as(&OPTIONS);
    server.json("tenant create shop");
    for table in ["items", "copies"] {
        server.json(&format!("table create {table} --durability disk"));
    }
    for (name, body) in [("copy", COPY), ("tick", TICK)] {
        let folder = server.folder.path().join(name);
        write_extension(&folder, name, body);
        server.json(&format!("ext push {}", folder.display()));
    }
    let copies = reader(&server);
    server.json("trigger create copies --extension copy --on items --ops put --retries 0");
    server.json("put items refused x");
    wait_for(&server, "trigger dead-letters copies", |letters| !letters.as_array().unwrap().is_empty());
    server.json("put items a 1");
    copies.wait_for("a", "1");
    // What is written while it is paused waits, and is called for by the new definition.
    wait_for(&server, "trigger show copies", |one| one["open"] == 0 && one["succeeded"] == 1);
    server.json("trigger pause copies");
    server.json("put items b 2");
    server.json("del items a");
    let before = server.json("trigger show copies");
    let set = server.json("trigger set copies --ops put,delete --retries 3 --batch 1");
    let wanted =
        serde_json::json!({"ops": ["put", "delete"], "retries": 3, "batch": 1, "table": "items", "name": "copies"});
    for (field, value) in wanted.as_object().unwrap() {
        assert_eq!(set[field], *value, "{field}");
    }
    for kept in ["state", "dead_letters", "succeeded", "failed", "extension"] {
        assert_eq!(set[kept], before[kept], "{kept}");
    }
    assert_eq!((set["dead_letters"].as_u64(), set["state"].as_str()), (Some(1), Some("paused")));
    server.json("trigger set copies --batch 0");
    assert!(server.json("trigger show copies")["batch"].is_null());
    server.json("trigger resume copies");
    copies.wait_for("b", "2");
    copies.wait_for("a", "");
    server.json("put copies open 1");
    server.json("trigger replay copies");
    copies.wait_for("refused", "x");

    server.json("trigger create clock --extension tick --every 1d --args slow");
    let due = server.json("trigger show clock")["next_due_ms"].clone();
    let set = server.json("trigger set clock --args fast");
    assert_eq!((&set["next_due_ms"], &set["args"]), (&due, &"fast".into()), "its time stays");
    server.json("trigger set clock --every 100ms");
    wait_for(&server, "trigger show clock", |clock| clock["succeeded"].as_u64().unwrap() >= 2);
    assert!(copies.value("fast").parse::<u64>().unwrap() >= 2 && copies.value("slow").is_empty());
    let by_cron = ["trigger", "set", "clock", "--cron", "0 3 * * *"];
    assert!(server.command().args(by_cron).output().unwrap().status.success());
    let shown = server.json("trigger show clock");
    assert_eq!((&shown["cron"], &shown["every"]), (&"0 3 * * *".into(), &Value::Null), "in place of the other");
}

#[test]
fn what_a_trigger_cannot_become_is_refused_and_it_stays_as_it_was() {
    let server = Server::start_as(&OPTIONS);
    server.json("tenant create shop");
    server.json("table create items --durability disk");
    let folder = server.folder.path().join("notes");
    write_notes(&folder, "text", "");
    server.json(&format!("ext push {}", folder.display()));
    server.json("trigger create watch --extension copy --on items");
    let clock =
        ["trigger", "create", "clock", "--extension", "notes.add", "--every", "1d", "--args", "{\"text\": \"a\"}"];
    assert!(server.command().args(clock).output().unwrap().status.success());
    let definitions = || {
        let fields = ["name", "extension", "every", "cron", "table", "ops", "batch", "args", "retries"];
        let of = |one: &Value| fields.map(|field| one[field].clone());
        server.json("trigger list").as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let before = definitions();
    for (words, wanted) in [
        (&["watch", "--every", "5s"][..], "becomes none of a schedule; create another trigger"),
        (&["watch", "--on", "copies"], "its position and dead letters are of that table; create another trigger"),
        (&["watch", "--args", "x"], "the arguments of a table's trigger are the change"),
        (&["watch", "--batch", "1000"], "a batch of 1000 changes: 1 to 256"),
        (&["clock", "--on", "items"], "becomes none of a table; create another trigger"),
        (&["clock", "--ops", "put"], "`ops` are those of a `table`"),
        (&["clock", "--every", "5 parsecs"], "such as 5s"),
        (&["clock", "--args", "{\"words\": 1}"], "args.text"),
        (&["clock", "--extension", "notes.ad"], "there are: add, forget"),
        (&["absent", "--retries", "1"], "sandstorm trigger list"),
    ] {
        let refused = server.command().args(["trigger", "set"]).args(words).output().unwrap();
        let shown = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && shown.contains(wanted), "{words:?}: {shown}");
    }
    assert_eq!(definitions(), before);
    let exists = server.output("trigger create watch --extension copy --on items");
    assert!(String::from_utf8_lossy(&exists.stderr).contains("sandstorm trigger set watch"));
    let events = String::from_utf8(server.output("events --code trigger.changed").stdout).unwrap();
    assert!(!events.contains("trigger.changed"), "{events}");
    server.json("trigger set watch --retries 1");
    let shown = String::from_utf8(server.output("trigger show watch").stdout).unwrap();
    assert!(shown.contains("on items") && shown.contains("retries") && shown.contains("dead letters"), "{shown}");
    let events = String::from_utf8(server.output("events --code trigger.changed").stdout).unwrap();
    assert!(events.contains("watch"), "{events}");
}

#[test]
fn a_push_makes_the_triggers_that_its_manifest_declares() {
    let server = Server::start_as(&OPTIONS);
    let token = server.json("tenant create shop")["token"].as_str().unwrap().to_owned();
    server.json("table create copies");
    server.json("table create orders --durability disk");
    server.json("table create cache --durability none");
    let folder = server.folder.path().join("copy");
    let push = |triggers: &str| {
        write_extension(&folder, "copy", COPY_SEVERAL);
        let manifest = folder.join("extension.toml");
        let text = std::fs::read_to_string(&manifest).unwrap();
        std::fs::write(&manifest, format!("{text}{triggers}")).unwrap();
        server.output(&format!("ext push {}", folder.display()))
    };
    let both = "[[trigger]]\nname = \"copy\"\non = \"orders\"\nops = [\"put\"]\n\
         [[trigger]]\nname = \"night\"\ncron = \"0 3 * * *\"\n";
    let pushed = push(both);
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    let listed = server.json("trigger list");
    let of = |listed: &Value, name: &str| {
        listed.as_array().unwrap().iter().find(|one| one["name"] == name).cloned().unwrap_or_else(|| panic!("{listed}"))
    };
    assert_eq!(of(&listed, "copy")["ops"], serde_json::json!(["put"]));
    assert_eq!(of(&listed, "night")["cron"], "0 3 * * *");
    server.output("put orders apple 3");
    Reader(&server, token.clone()).wait_for("apple", "3");

    // Another push changes one of them, in its place, and leaves the other.
    let changed = both.replace("ops = [\"put\"]", "ops = [\"put\", \"delete\"]\nretries = 2\nbatch = 16");
    assert!(push(&changed).status.success());
    let listed = server.json("trigger list");
    assert_eq!((&of(&listed, "copy")["retries"], listed.as_array().unwrap().len()), (&2.into(), 2));
    assert_eq!(of(&listed, "copy")["batch"], 16);
    copy_a_batch(&Reader(&server, token));
    // Pushes tell what they made and changed, as commands do.
    let events = String::from_utf8(server.output("events --code trigger").stdout).unwrap();
    let told =
        |code: &str, text: &str| events.lines().filter(|line| line.contains(code) && line.contains(text)).count();
    let told = [told("trigger.created", "copy"), told("trigger.created", "night"), told("trigger.changed", "copy")];
    assert_eq!(told, [2, 1, 1], "the first two call copy: {events}");

    let many = |number: u32| -> String {
        (0..number).map(|number| format!("[[trigger]]\nname = \"t{number}\"\nevery = \"1d\"\n")).collect()
    };
    let version = server.json("ext show copy")["version"].clone();
    for (wrong, text) in [
        ("[[trigger]]\nname = \"x\"\non = \"nothing\"\n", "nothing"),
        ("[[trigger]]\nname = \"x\"\non = \"cache\"\n", "durability"),
        ("[[trigger]]\nname = \"x\"\n", "needs one of `every`, `cron` and `on`"),
        ("[[trigger]]\nname = \"x\"\nevery = \"5 parsecs\"\n", "trigger \"x\" of extension.toml"),
        ("[[trigger]]\nname = \"x\"\non = \"orders\"\nops = [\"vanish\"]\n", "vanish"),
        ("[[trigger]]\nname = \"x\"\non = \"orders\"\nbatch = 1000\n", "batch"),
        ("[[trigger]]\nname = \"x\"\nwhen = \"5s\"\n", "when"),
        (&*many(17), "at most 16 triggers"),
        // There are two already.
        (&*many(15), "17 triggers, and may have 16"),
        (&*many(1).repeat(2), "declared twice"),
    ] {
        let refused = push(wrong);
        let shown = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && shown.contains(text), "{wrong}: {shown}");
    }
    assert_eq!(server.json("ext show copy")["version"], version, "nothing was loaded");
    // A trigger that the manifest names no more stays until it is deleted.
    assert!(push("").status.success());
    assert_eq!(server.json("trigger list").as_array().unwrap().len(), 2);
    server.json("trigger delete night");
    assert_eq!(server.json("trigger list").as_array().unwrap().len(), 1);
}

/// What expires is a change for triggers that ask: met by a sweep, and also if its time came while no server ran.
#[test]
fn expiries_reach_triggers_and_the_feed_also_over_a_restart() {
    let server = Server::start_as(&OPTIONS);
    server.json("tenant create shop");
    for table in ["items", "copies"] {
        server.json(&format!("table create {table} --durability disk"));
    }
    server.json("table create cache --durability none");
    let refused = server.output("table set cache --feed-expiry on");
    let shown = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && shown.contains("durability"), "{shown}");
    let folder = server.folder.path().join("copy");
    write_extension(&folder, "copy", COPY);
    let manifest = folder.join("extension.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let trigger = "[[trigger]]\nname = \"copy\"\non = \"items\"\nops = [\"put\", \"delete\", \"expire\"]\n";
    std::fs::write(&manifest, format!("{text}{trigger}")).unwrap();
    server.json(&format!("ext push {}", folder.display()));
    assert_eq!(server.json("table show items")["feed_expiry"], true);
    let end = server.output("changes items");
    let end = String::from_utf8(end.stdout).unwrap().trim().to_owned();
    let wait_for_expiry = |server: &Server, key: &str| {
        let until = Instant::now() + EVENTUALLY;
        loop {
            let feed = String::from_utf8(server.output(&format!("changes items --after {end}")).stdout).unwrap();
            if feed.lines().any(|line| line.contains(" expire ") && line.contains(key)) {
                return;
            }
            assert!(Instant::now() < until, "{key}: {feed}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };

    server.json("put items stays 1");
    server.json("put items short 1 --ttl 0.3");
    wait_for_expiry(&server, "short");
    let copies = reader(&server);
    copies.wait_for("stays", "1");
    copies.wait_for("short", "");

    // Its time comes while there is no server.
    server.json("put items late 1 --ttl 1.5");
    let folder = server.folder.clone();
    drop(server);
    std::thread::sleep(Duration::from_millis(1_600));
    let server = Server::start_in(None, folder, &["--data", "127.0.0.1:0", "--no-pin", "--workers", "2"]);
    wait_for_expiry(&server, "late");
    let copies = reader(&server);
    copies.wait_for("late", "");
    assert_eq!(copies.value("stays"), "1");
    server.json("trigger delete copy");
    assert_eq!(server.json("table show items")["feed_expiry"], false);
    let set = server.output("table set items --feed-expiry on");
    assert!(String::from_utf8_lossy(&set.stdout).contains("change feed with what expires"), "{set:?}");
    assert_eq!(server.json("table show items")["feed_expiry"], true);
}

/// Two typed functions; a note has this field.
fn write_notes(folder: &Path, field: &str, triggers: &str) {
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("extension.toml"), format!("name = \"notes\"\n{triggers}")).unwrap();
    let text = format!(
        "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n\
         pub struct Note {{ pub {field}: String }}\n\
         pub async fn add(db: Db<'_>, note: Note) -> Result<i64, Error> {{\n\
         db.increment(db.table(\"copies\")?, note.{field}.as_bytes(), 1).await\n}}\n\
         pub async fn forget(db: Db<'_>) -> Result<bool, Error> {{\n\
         db.delete(db.table(\"copies\")?, b\"ticks\").await\n}}\n"
    );
    std::fs::write(folder.join("src/lib.rs"), text).unwrap();
}

/// The JSON of a schedule is checked when it is made, and becomes bytes by the types of the code that is called.
#[test]
fn a_schedule_calls_a_typed_function_with_json() {
    let server = Server::start_as(&OPTIONS);
    server.json("tenant create shop");
    server.json("table create copies --durability disk");
    let folder = server.folder.path().join("notes");
    let push = |field: &str, triggers: &str| {
        write_notes(&folder, field, triggers);
        server.output(&format!("ext push {}", folder.display()))
    };
    let declared =
        "[[trigger]]\nname = \"declared\"\nfunction = \"add\"\nevery = \"100ms\"\nargs = '{\"text\": \"declared\"}'\n";
    let pushed = push("text", declared);
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    // What does not fit the types is refused before the new version is loaded.
    let version = server.json("ext show notes")["version"].clone();
    for (wrong, wanted) in [
        (declared.replace("\"text\"", "\"words\""), "args.text"),
        (declared.replace("\"add\"", "\"ad\""), "there are: add, forget"),
        ("[[trigger]]\nname = \"declared\"\non = \"copies\"\n".to_owned(), "several functions"),
    ] {
        let refused = push("text", &wrong);
        let shown = String::from_utf8_lossy(&refused.stderr);
        let is_refused = shown.contains("trigger \"declared\" of extension.toml") && shown.contains(wanted);
        assert!(!refused.status.success() && is_refused, "{wrong}: {shown}");
    }
    assert_eq!(server.json("ext show notes")["version"], version, "nothing was loaded");
    let create = |name: &str, extension: &str, args: &str| {
        let words = ["trigger", "create", name, "--extension", extension, "--every", "100ms", "--retries", "0"];
        server.command().args(words).args(["--args", args]).output().unwrap()
    };
    for (extension, args, wanted) in [
        ("notes.add", "ticks", "are JSON"),
        ("notes.add", "{}", "args.text"),
        ("notes.add", "{\"text\": 1}", "args.text"),
        ("notes.ad", "", "there are: add, forget"),
        ("notes", "", "several functions"),
    ] {
        let refused = create("clock", extension, args);
        let shown = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && shown.contains(wanted), "{extension} {args}: {shown}");
    }
    let refused = server.output("trigger create table --extension notes.add --on copies");
    let shown = String::from_utf8_lossy(&refused.stderr);
    let says = ["add takes Note", "write `pub async fn add(db: Db<'_>, change: Change<'_>)`"];
    assert!(!refused.status.success() && says.iter().all(|part| shown.contains(part)), "{shown}");
    assert!(create("clock", "notes.add", "{\"text\": \"ticks\"}").status.success());
    let copies = reader(&server);
    let has_come = |key: &str| {
        let until = Instant::now() + EVENTUALLY;
        while copies.value(key).is_empty() {
            assert!(Instant::now() < until, "{key}: {}", server.json("trigger list"));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    ["declared", "ticks"].into_iter().for_each(has_come);

    // A version of other types: what was said does not fit it, until it is called no more.
    server.json("trigger delete declared");
    let shown = String::from_utf8(push("words", "").stdout).unwrap();
    assert!(shown.contains("trigger \"clock\" calls this extension") && shown.contains("args.words"), "{shown}");
    let letters = wait_for(&server, "trigger dead-letters clock", |letters| !letters.as_array().unwrap().is_empty());
    assert!(letters[0]["error"].as_str().unwrap().contains("args.words"), "{letters}");
    assert!(create("forgets", "notes.forget", "").status.success());
    copies.wait_for("ticks", "");
    server.json("trigger delete forgets");
    server.json("ext rollback notes");
    has_come("ticks");
    server.json("trigger replay clock");
    wait_for(&server, "trigger dead-letters clock", |letters| letters.as_array().unwrap().is_empty());
}
