//! Promise: what was kept in any form is there after a start, and a start without it says what is wrong.

use std::os::unix::fs::PermissionsExt;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::definition::TriggerOp;
use super::*;
use crate::golden::{assert_golden, golden_file};

fn trigger(tenant: u32, name: &str, position: u64) -> StoredTrigger {
    let spec = serde_json::json!({"name": name, "extension": "count", "table": "items"});
    let letter = DeadLetter { id: 1, at_ms: 2, position: 3, tries: 4, error: "no".into(), args: None };
    StoredTrigger {
        tenant,
        tenant_name: format!("shop{tenant}"),
        spec: serde_json::from_value(spec).expect("a definition"),
        position,
        log_id: 0,
        last_due_ms: 7,
        paused: String::new(),
        agreed: None,
        dead_letters: vec![letter],
    }
}

/// What the golden files have: a trigger of a table, with all that one may have, and in the common file a schedule too.
fn golden_triggers() -> [StoredTrigger; 2] {
    let spec = TriggerDefinition {
        name: "restock".into(),
        extension: "orders.refill".into(),
        every: None,
        cron: None,
        table: Some("stock".into()),
        ops: vec![TriggerOp::Put, TriggerOp::Delete, TriggerOp::Clear, TriggerOp::Expire],
        batch: Some(16),
        args: String::new(),
        retries: 3,
    };
    let dead = |id, args: Option<&str>| DeadLetter {
        id,
        at_ms: 1_700_000_000_123,
        position: 4_000 + id,
        tries: 4,
        error: "killed: out of \"time\" – after 50 ms".into(),
        args: args.map(str::to_owned),
    };
    let of_table = StoredTrigger {
        tenant: 7,
        tenant_name: "shop".into(),
        spec: spec.clone(),
        position: 4_711,
        log_id: 0xfedc_ba98_7654_3210,
        last_due_ms: 0,
        paused: "the log was replaced".into(),
        agreed: None,
        dead_letters: vec![dead(1, Some("YXBwbGU=")), dead(2, None)],
    };
    let spec = TriggerDefinition {
        name: "nightly".into(),
        cron: Some("15 3 * * *".into()),
        table: None,
        ops: Vec::new(),
        batch: None,
        args: "all".into(),
        ..spec
    };
    let schedule = StoredTrigger {
        spec,
        position: 0,
        log_id: 0,
        last_due_ms: 1_700_000_000_000,
        paused: String::new(),
        agreed: None,
        dead_letters: Vec::new(),
        ..of_table.clone()
    };
    [of_table, schedule]
}

/// A state directory whose folder of triggers has a file of this name and content.
fn state_with(name: &str, bytes: &[u8]) -> tempfile::TempDir {
    let state = tempfile::tempdir().expect("a folder");
    fs::create_dir(state.path().join(TRIGGER_FOLDER)).expect("room");
    fs::write(state.path().join(TRIGGER_FOLDER).join(name), bytes).expect("room");
    state
}

fn read(state: &tempfile::TempDir) -> Result<Vec<StoredTrigger>, ConfigError> {
    TriggerFolder::open(state.path()).map(|(_, triggers)| triggers)
}

#[test]
fn triggers_are_read_as_they_were_written_and_what_a_crash_leaves_goes() {
    let state = tempfile::tempdir().expect("a folder");
    let (folder, none) = TriggerFolder::open(state.path()).expect("an empty one");
    assert!(none.is_empty() && !folder.path.exists(), "there is no folder before the first trigger");
    let written = [trigger(1, "a.b", 11), trigger(1, "a", 10), trigger(12, "a", 12)];
    for trigger in &written {
        folder.write(trigger).expect("room");
    }
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&folder.path), mode(&folder.path.join("1-a.json"))), (0o700, 0o600));
    fs::write(folder.path.join(".new-x"), b"{").expect("as a crash leaves it");
    assert_eq!(read(&state).expect("files"), written);
    assert!(!folder.path.join(".new-x").exists());
    folder.remove(1, "a.b").expect("it was there");
    folder.remove(1, "a.b").expect("it is gone");
    assert_eq!(read(&state).expect("files"), written[1..]);
}

#[test]
fn golden_files_of_all_formats_are_read_and_the_newest_is_what_is_written() {
    let [of_table, schedule] = golden_triggers();
    let state = tempfile::tempdir().expect("a folder");
    let (folder, _) = TriggerFolder::open(state.path()).expect("an empty one");
    folder.write(&of_table).expect("room");
    let file = folder.path.join("7-restock.json");
    assert_golden("trigger-format-3.json", &fs::read(&file).expect("it was written"));
    for format in ["trigger-format-2.json", "trigger-format-3.json"] {
        let state = state_with("7-restock.json", &golden_file(format));
        assert_eq!(read(&state).expect(format), std::slice::from_ref(&of_table), "{format}");
    }
    let state = tempfile::tempdir().expect("a folder");
    fs::write(state.path().join(COMMON_FILE), golden_file("triggers-format-1.json")).expect("room");
    for times in 0..2 {
        let mut triggers = read(&state).expect("the common file, then what it was moved to");
        triggers.sort_by_key(|trigger| trigger.position == 0);
        assert_eq!(triggers, [of_table.clone(), schedule.clone()], "start {times}");
    }
}

#[test]
fn what_was_written_is_read_and_no_flipped_bit_passes() {
    let text = |random: &mut SmallRng| -> String {
        (0..random.random_range(0..12)).map(|_| char::from(random.random_range(0..128_u8))).collect()
    };
    for seed in 0..20 {
        let random = &mut SmallRng::seed_from_u64(seed);
        let mut one = golden_triggers()[random.random_range(0..2)].clone();
        (one.tenant_name, one.paused) = (text(random), text(random));
        (one.position, one.log_id, one.last_due_ms) = (random.random(), random.random(), random.random());
        one.dead_letters.iter_mut().for_each(|letter| letter.error = text(random));
        let state = tempfile::tempdir().expect("a folder");
        let (folder, _) = TriggerFolder::open(state.path()).expect("an empty one");
        folder.write(&one).expect("room");
        assert_eq!(read(&state).expect("what was written"), [one.clone()], "seed {seed}");
        let file = folder.path.join(file_name(one.tenant, &one.spec.name));
        let written = fs::read(&file).expect("it was written");
        for _ in 0..100 {
            let (at, bit) = (random.random_range(0..written.len()), random.random_range(0..8));
            let mut other = written.clone();
            other[at] ^= 1 << bit;
            fs::write(&file, &other).expect("room");
            let why = read(&state).expect_err("a flipped bit").to_string();
            assert!(why.contains(&file.display().to_string()), "seed {seed}, byte {at}, bit {bit}: {why}");
        }
    }
}

#[test]
fn the_common_file_of_earlier_versions_is_moved_and_holds_while_it_is_there() {
    let state = tempfile::tempdir().expect("a folder");
    let triggers = vec![trigger(1, "a", 10), trigger(2, "b", 11)];
    let common = serde_json::json!({"format": 1, "triggers": triggers}).to_string();
    let path = state.path().join(COMMON_FILE);
    // As an interrupted move, or what an earlier version has changed since, leaves it.
    let (folder, _) = TriggerFolder::open(state.path()).expect("an empty one");
    folder.write(&trigger(1, "a", 5)).expect("room");
    folder.write(&trigger(1, "removed", 5)).expect("room");
    fs::write(&path, &common).expect("room");
    assert_eq!(read(&state).expect("both"), triggers);
    assert!(!path.exists());
    assert_eq!(read(&state).expect("files"), triggers);
    // A later format is not guessed at, and nothing is lost.
    fs::write(&path, br#"{"format":9,"triggers":[]}"#).expect("room");
    let refused = read(&state).expect_err("it is another format").to_string();
    assert!(refused.contains("format 9") && refused.contains(COMMON_FILE), "{refused}");
    fs::remove_file(&path).expect("it is there");
    assert_eq!(read(&state).expect("files"), triggers);
}

#[test]
fn a_damaged_file_is_named() {
    let state = tempfile::tempdir().expect("a folder");
    let (folder, _) = TriggerFolder::open(state.path()).expect("an empty one");
    folder.write(&trigger(1, "a", 10)).expect("room");
    let file = folder.path.join("1-a.json");
    let good = fs::read_to_string(&file).expect("it is there");
    let (json, _) = good.split_once('\n').expect("two lines");
    let summed = |json: String| checked_json::with_checksum(json.into_bytes());
    for (bad, word) in [
        (good.as_bytes()[..20].to_vec(), "EOF"),
        (json.as_bytes().to_vec(), "no checksum"),
        (good.replace("\"position\":10", "\"position\":11").into_bytes(), "checksum is wrong"),
        (summed(json.replace("\"format\":3", "\"format\":4")), "format 4, and this program reads formats up to 3"),
        (summed(json.replace("\"format\":3", "\"format\":1")), "format 1"),
        (summed(json.replace("\"table\":\"items\"", "\"every\":\"never\"")), "never"),
        (summed(json.replace("\"name\":\"a\"", "\"name\":\"b\"")), "another trigger"),
    ] {
        fs::write(&file, bad).expect("room");
        let why = read(&state).expect_err("it is damaged").to_string();
        assert!(why.contains("1-a.json") && why.contains(word) && why.contains("remove it"), "{why}");
    }
}
