//! Promise: a backup of a server that is written to has all that was there up to some moment, and a server on
//! what was restored of it is whole. It is restored to any moment that it has, or not at all. A damaged log stops a
//! start, unless what is sound of it is asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sandstorm_client::blocking::Client;
use sandstorm_client::{Config, PutOptions};
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{LogFolder, LogOptions, RecoveredLog};
use serde_json::Value;

use crate::common::process::{Server, binary, serve};

const LONG: Duration = Duration::from_secs(60);
const OPTIONS: [&str; 6] = ["--data", "127.0.0.1:0", "--no-pin", "--workers", "1", "--no-builder"];

fn start(folder: &Arc<tempfile::TempDir>) -> Server {
    Server::start_in(None, Arc::clone(folder), &OPTIONS)
}

fn new_folder() -> Arc<tempfile::TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

/// A server with two tenants, a table with durability that one grants to the other, and one without.
fn server_with_tables() -> Server {
    let server = start(&new_folder());
    for line in [
        "tenant create shop --open",
        "tenant create reports --open",
        "table create items --durability interval --tenant shop",
        "table create plain --ordered --durability none --tenant shop",
        "grant add items --to reports --tenant shop",
    ] {
        let output = server.output(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    server
}

fn client(server: &Server) -> (Client, u64, u64) {
    let id = server.json("tenant show shop")["id"].as_u64().unwrap() as u32;
    let table = |name: &str| server.json(&format!("table show {name} --tenant shop"))["id"].as_u64().unwrap();
    let client = Client::connect(Config::new(server.data.parse().unwrap(), id)).unwrap();
    (client, table("items"), table("plain"))
}

fn put(client: &Client, table: u64, number: u32) {
    let value = vec![number as u8; number as usize % 700];
    client.put(table, &number.to_be_bytes(), &value, &PutOptions { flags: number, ..PutOptions::default() }).unwrap();
}

/// The number of records 0 to n that are there; all are, and no other.
fn prefix(server: &Server) -> u32 {
    let (client, items, plain) = client(server);
    let records = server.json("table show items --tenant shop")["records"].as_u64().unwrap() as u32;
    for number in 0..records {
        let found = client.get(items, &number.to_be_bytes()).unwrap();
        let found = found.unwrap_or_else(|| panic!("{number} of {records} is missing"));
        assert!(found.flags == number && found.value == vec![number as u8; number as usize % 700]);
    }
    assert_eq!(client.get(plain, b"x").unwrap(), None, "a table in memory only is there, and empty");
    records
}

/// Waits until a record is on the disk.
fn wait_logged(state: &Path, number: u32) {
    let begun = Instant::now();
    loop {
        let disk: Arc<dyn LogDisk> = Arc::new(LogFolder::read(&state.join("log")));
        let mut found = false;
        // A checkpoint may remove a file while it is read.
        let _may_fail = RecoveredLog::read(disk, LogOptions::default(), &mut |change, _| {
            found |= change.key == number.to_be_bytes();
            Ok(())
        });
        if found {
            return;
        }
        assert!(begun.elapsed() < LONG, "what nobody waits for is written, too");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sandstorm(words: &[&str]) -> Output {
    binary().args(words).output().unwrap()
}

fn backup(state: &Path, folder: &Path) -> PathBuf {
    let output =
        sandstorm(&["backup", "create", folder.to_str().unwrap(), "--json", "--state", state.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    made["folder"].as_str().unwrap().into()
}

/// Restores a backup into a new folder's state directory.
fn restore(backup: &Path, options: &[&str]) -> Result<Arc<tempfile::TempDir>, String> {
    let folder = new_folder();
    let state = folder.path().join("state");
    let words = ["backup", "restore", backup.to_str().unwrap(), "--state", state.to_str().unwrap()];
    let output = sandstorm(&[&words[..], options].concat());
    if output.status.success() {
        return Ok(folder);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left of what was refused");
    Err(String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_backup_of_a_server_that_is_written_to_is_restored_as_a_whole_server() {
    let server = server_with_tables();
    let (writer, items, plain) = client(&server);
    put(&writer, plain, 1);
    (0..500).for_each(|number| put(&writer, items, number));
    wait_logged(&server.state(), 499);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let writing = std::thread::spawn(move || {
        let mut number = 500;
        while !stopped.load(Ordering::Relaxed) {
            put(&writer, items, number);
            number += 1;
        }
        number
    });
    let kept = new_folder();
    let folder = kept.path().join("backups");
    let backups: Vec<PathBuf> = (0..3).map(|_| backup(&server.state(), &folder)).collect();
    stop.store(true, Ordering::Relaxed);
    let written = writing.join().unwrap();
    let listed = sandstorm(&["backup", "list", folder.to_str().unwrap(), "--check", "--json"]);
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert!(listed.as_array().unwrap().iter().all(|backup| backup["state"] == "sound" && backup["tables"] == 2));
    assert_eq!(listed.as_array().unwrap().len(), 3);
    let token = fs::read(server.state().join("operator-token")).unwrap();
    drop(server);
    let mut least = 500;
    for backup in &backups {
        let folder = restore(backup, &[]).unwrap();
        assert_eq!(fs::read(folder.path().join("state/operator-token")).unwrap(), token);
        let server = start(&folder);
        let found = prefix(&server);
        assert!((least..=written).contains(&found), "{found} of {written}, and at least {least}");
        least = found;
        let tables = server.json("table list --tenant reports");
        assert_eq!(tables[0]["name"], "shop/items", "grants are there: {tables}");
        // It takes writes, and has them at the next start.
        put(&client(&server).0, client(&server).1, found);
        drop(server);
        assert_eq!(prefix(&start(&folder)), found + 1);
    }
    let taken = restore(&backups[0], &[]).unwrap();
    let state = taken.path().join("state");
    let words = ["backup", "restore", backups[0].to_str().unwrap(), "--state", state.to_str().unwrap()];
    let refused = sandstorm(&words);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("is not empty"));
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

#[test]
fn a_backup_is_restored_to_a_moment_that_it_has_and_a_damaged_one_not_at_all() {
    let server = server_with_tables();
    let (writer, items, _) = client(&server);
    (0..200).for_each(|number| put(&writer, items, number));
    wait_logged(&server.state(), 199);
    let moment_ms = now_ms() + 200;
    while now_ms() < moment_ms + 300 {
        std::thread::sleep(Duration::from_millis(20));
    }
    (200..300).for_each(|number| put(&writer, items, number));
    wait_logged(&server.state(), 299);
    let kept = new_folder();
    let folder = kept.path().join("backups");
    let made = backup(&server.state(), &folder);
    drop(server);
    let time = format!("{}.{:03}Z", sandstorm_catalog::format_utc(moment_ms).replace(' ', "T"), moment_ms % 1_000);
    assert_eq!(prefix(&start(&restore(&made, &["--to", &time]).unwrap())), 200);
    let manifest = fs::read_to_string(made.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(manifest.lines().next().unwrap()).unwrap();
    let end = manifest["log"]["end"].as_u64().unwrap();
    let some = prefix(&start(&restore(&made, &["--to", &(end / 2).to_string()]).unwrap()));
    assert!((1..300).contains(&some), "{some}");
    assert_eq!(prefix(&start(&restore(&made, &["--to", &end.to_string()]).unwrap())), 300);
    for (point, why) in [(&*(end + 1).to_string(), "it ends at"), ("yesterday", "neither a position nor a time")] {
        let refused = restore(&made, &["--to", point]).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    // Each file, at some bytes.
    for file in manifest["files"].as_array().unwrap() {
        let path = made.join("state").join(file["path"].as_str().unwrap());
        let sound = fs::read(&path).unwrap();
        for at in [0, sound.len() / 3, sound.len().saturating_sub(1)] {
            let mut flipped = sound.clone();
            let Some(byte) = flipped.get_mut(at) else { continue };
            *byte ^= 4;
            fs::write(&path, &flipped).unwrap();
            let refused = restore(&made, &[]).unwrap_err();
            assert!(refused.contains("is damaged") && refused.contains(path.to_str().unwrap()), "{refused}");
        }
        fs::write(&path, &sound[..sound.len() / 2]).unwrap();
        assert!(sound.is_empty() || restore(&made, &[]).is_err());
        fs::remove_file(&path).unwrap();
        assert!(restore(&made, &[]).unwrap_err().contains("not there"));
        fs::write(&path, &sound).unwrap();
    }
    restore(&made, &[]).unwrap();
    let nowhere = sandstorm(&["backup", "create", folder.to_str().unwrap(), "--state", made.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("is it the state directory of a server"));
}

/// The segments of a server's log, in their order.
fn segments(state: &Path) -> Vec<PathBuf> {
    let mut segments: Vec<PathBuf> =
        fs::read_dir(state.join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("log-"));
    segments.sort();
    segments
}

/// The offset of a byte of a segment that is in the midst of its frames, and no padding.
fn within_frames(segment: &[u8]) -> usize {
    let used = segment.iter().rposition(|byte| *byte != 0).unwrap();
    (used / 2..used).find(|at| segment[*at] != 0).expect("frames")
}

/// What `sandstorm log` says of a state directory.
fn log_command(state: &Path, words: &[&str]) -> Output {
    sandstorm(&[&["log"], words, &["--state", state.to_str().unwrap()]].concat())
}

/// The reason for which it refuses a log.
fn log_refusal(state: &Path) -> String {
    let outputs = ["check", "show"].map(|word| log_command(state, &[word]));
    assert!(outputs.iter().all(|output| !output.status.success() && output.stdout.is_empty()));
    let [check, show] = outputs.map(|output| String::from_utf8(output.stderr).unwrap());
    assert_eq!(check, show);
    check
}

#[test]
fn the_log_is_checked_and_shown_beside_a_server_and_what_is_wrong_with_it_is_said() {
    let server = server_with_tables();
    let (writer, items, _) = client(&server);
    (0..100).for_each(|number| put(&writer, items, number));
    (0..7_u32).for_each(|number| assert!(writer.delete(items, &number.to_be_bytes()).unwrap()));
    put(&writer, items, 100);
    wait_logged(&server.state(), 100);
    let check = log_command(&server.state(), &["check"]);
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(
        check.status.success() && text.contains("sound") && text.contains(server.state().to_str().unwrap()),
        "{text}"
    );
    let shown: Value = serde_json::from_slice(&log_command(&server.state(), &["show", "--json"]).stdout).unwrap();
    let tables: Vec<&Value> = shown["tables"].as_object().unwrap().values().collect();
    let [table] = &tables[..] else { panic!("the one table with durability: {shown}") };
    let counts = ["puts", "deletes", "clears"].map(|count| table[count].as_u64());
    assert_eq!((table["name"].as_str(), counts), (Some("shop/items"), [Some(101), Some(7), Some(0)]), "{shown}");
    let text = String::from_utf8(log_command(&server.state(), &["show"]).stdout).unwrap();
    assert!(text.lines().any(|line| line.contains("shop/items") && line.contains("101")), "{text}");

    // A second segment, after a kill.
    let (folder, state) = (Arc::clone(&server.folder), server.state());
    drop(server);
    let server = start(&folder);
    put(&client(&server).0, items, 101);
    wait_logged(&state, 101);
    drop(server);
    let all = segments(&state);
    let [first, .., last] = &all[..] else { panic!("two segments: {all:?}") };
    let sound = [first, last].map(|path| fs::read(path).unwrap());
    assert!(log_command(&state, &["check"]).status.success());

    // A byte of a frame that a later one relies on.
    let (mut damaged, at) = (sound[0].clone(), within_frames(&sound[0]));
    damaged[at] ^= 1;
    fs::write(first, &damaged).unwrap();
    let refused = log_refusal(&state);
    for part in ["is damaged at byte", first.to_str().unwrap(), "shop/items", "--salvage"] {
        assert!(refused.contains(part), "{part:?}: {refused}");
    }
    // A sound segment, but of another server.
    let other = server_with_tables();
    put(&client(&other).0, client(&other).1, 1);
    wait_logged(&other.state(), 1);
    fs::copy(segments(&other.state()).last().unwrap(), first).unwrap();
    let refused = log_refusal(&state);
    assert!(refused.contains("is of another log than") && refused.contains(last.to_str().unwrap()), "{refused}");
    fs::remove_file(first).unwrap();
    let refused = log_refusal(&state);
    assert!(refused.contains("is not there") && refused.contains(first.to_str().unwrap()), "{refused}");
    fs::write(first, &sound[0]).unwrap();
    assert!(log_command(&state, &["check"]).status.success(), "it was only read");
    let nowhere = log_refusal(&folder.path().join("nowhere"));
    assert!(nowhere.contains("there is no log in"), "{nowhere}");
}

#[test]
fn a_damaged_log_stops_a_start_and_what_is_sound_of_it_is_salvaged() {
    let server = server_with_tables();
    let (writer, items, _) = client(&server);
    for part in 0..10 {
        (part * 50..part * 50 + 50).for_each(|number| put(&writer, items, number));
        // Frames of their own, each of which says that the one before was on the disk.
        wait_logged(&server.state(), part * 50 + 49);
    }
    let folder = Arc::clone(&server.folder);
    let state = server.state();
    drop(server);
    let segments = segments(&state);
    let segment = segments.last().unwrap();
    let mut bytes = fs::read(segment).unwrap();
    let damaged = within_frames(&bytes);
    bytes[damaged] ^= 1;
    fs::write(segment, &bytes).unwrap();
    let started = |more: &[&str]| {
        let mut command = serve(None, folder.path(), &[&OPTIONS[..], more].concat());
        command.stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap()
    };
    let refused = String::from_utf8(started(&[]).stderr).unwrap();
    assert!(refused.contains("is damaged at byte") && refused.contains(segment.to_str().unwrap()), "{refused}");
    assert!(refused.contains("--salvage"), "{refused}");
    let options = [&OPTIONS[..], &["--salvage"]].concat();
    let server = Server::start_in(None, Arc::clone(&folder), &options);
    let records = server.json("table show items --tenant shop")["records"].as_u64().unwrap();
    assert!((100..=500).contains(&records), "{records} of 500");
    let aside: Vec<PathBuf> = fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("log.damaged-"))
        .collect();
    let [aside] = &aside[..] else { panic!("one folder: {aside:?}") };
    assert!(aside.join(segment.file_name().unwrap()).exists());
    let report = fs::read_to_string(aside.join("salvage-report.txt")).unwrap();
    assert!(report.contains("are sound") && report.contains("lost: ") && report.contains("bytes "), "{report}");
    put(&client(&server).0, items, 1_000);
    drop(server);
    let server = start(&folder);
    assert_eq!(server.json("table show items --tenant shop")["records"], records + 1);
    let (reader, items, _) = client(&server);
    for number in 0..500_u32 {
        let Some(found) = reader.get(items, &number.to_be_bytes()).unwrap() else { continue };
        assert!(found.flags == number && found.value == vec![number as u8; number as usize % 700]);
    }
}
