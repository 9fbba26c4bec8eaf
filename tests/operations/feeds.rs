//! Promise: a follower of a table's changes has what the table has, over kills of the server and of the reader, and
//! is never shown a change that a crash takes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_client::control::{
    ChangePage, Control, ControlError, DurabilityLevel, TableChange, TableMode, TablePatch, TableSpec,
};

use crate::records::{RecordServer, RespConnection};

/// A copy of a table that is made of its changes alone: versions and values.
#[derive(Clone, Debug, Default)]
struct TableCopy {
    records: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    next: String,
    changes: usize,
}

impl TableCopy {
    fn apply(&mut self, change: &TableChange) {
        self.changes += 1;
        let record = &change.record;
        if change.op == "clear" {
            self.records.retain(|_, (version, _)| *version > record.version);
            return;
        }
        let key = record.key_bytes().unwrap().into_owned();
        let known = self.records.get(&key).map_or(0, |(version, _)| *version);
        assert!(record.version > known, "{change:?} comes after version {known}");
        if change.op == "put" {
            self.records.insert(key, (record.version, record.value_bytes().unwrap().into_owned()));
        } else {
            self.records.remove(&key);
        }
    }

    /// Applies what comes up to the end of the log; false: the server is gone.
    fn follow(&mut self, control: &Control, wait_s: u64) -> bool {
        loop {
            let Ok(page) = control.changes("shop", "items", Some(&self.next), wait_s) else { return false };
            page.changes.iter().for_each(|change| self.apply(change));
            self.next = page.next;
            if page.at_end {
                return true;
            }
        }
    }
}

fn table_of(control: &Control) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
    let (mut records, mut cursor) = (BTreeMap::new(), None);
    loop {
        let page = control.records("shop", "items", cursor.as_deref()).unwrap();
        for record in page.records {
            let (key, value) = (record.key_bytes().unwrap().into_owned(), record.value_bytes().unwrap().into_owned());
            records.insert(key, (record.version, value));
        }
        match page.next {
            Some(next) => cursor = Some(next),
            None => return records,
        }
    }
}

/// Writes until the server is gone or this is told to end.
fn write(mut connection: RespConnection, seed: u64, ends: &AtomicBool) {
    let mut random = SmallRng::seed_from_u64(seed);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
    while !ends.load(Ordering::SeqCst) {
        let key = format!("key:{}", random.random_range(0..50));
        let value = format!("{}\u{7}{}", random.random::<u64>(), "y".repeat(random.random_range(0..400)));
        let commands = match random.random_range(0..20) {
            0..=9 => vec![words(&["SET", &key, &value])],
            10..=14 => vec![words(&["DEL", &key])],
            15..=18 => {
                vec![
                    words(&["MULTI"]),
                    words(&["SET", &key, &value]),
                    words(&["SET", "key:0", &value]),
                    words(&["EXEC"]),
                ]
            }
            _ => vec![words(&["FLUSHALL"])],
        };
        let answers = commands.len();
        if connection.send(&commands).is_err() || (0..answers).any(|_| connection.answer().is_err()) {
            return;
        }
    }
}

#[test]
fn a_copy_made_of_changes_alone_is_the_table_over_kills() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Some(RecordServer::with_table(folder.path(), TableMode::Store));
    let begin = server.as_ref().unwrap().control.changes("shop", "items", None, 0).unwrap();
    let mut copy = TableCopy { next: begin.next, ..TableCopy::default() };
    for round in 0..4 {
        let running = server.take().unwrap_or_else(|| RecordServer::start(folder.path()));
        let ends = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..2)
            .map(|number| {
                let (connection, ends) = (running.connect(), Arc::clone(&ends));
                std::thread::spawn(move || write(connection, 2 * round + number, &ends))
            })
            .collect();
        let at_least = copy.changes + 200;
        while copy.changes < at_least {
            assert!(copy.follow(&running.control, 1), "the server runs");
        }
        if round % 2 == 0 {
            drop(running);
        } else {
            ends.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            running.stop();
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let after = RecordServer::start(folder.path());
        assert!(copy.follow(&after.control, 0));
        let table = table_of(&after.control);
        assert!(copy.records == table, "round {round}: {} and {} records", copy.records.len(), table.len());
        server = Some(after);
    }
}

#[test]
fn transactions_come_whole_and_wrong_requests_are_told_why() {
    let folder = tempfile::tempdir().unwrap();
    let server = RecordServer::with_table(folder.path(), TableMode::Store);
    let begin = server.control.changes("shop", "items", None, 0).unwrap();
    assert!(begin.at_end && begin.changes.is_empty());
    let mut connection = server.connect();
    let command = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
    let transaction = ["a", "b", "c"].map(|key| command(&["SET", key, "1"]));
    let commands = [vec![command(&["MULTI"])], transaction.to_vec(), vec![command(&["EXEC"])]].concat();
    connection.send(&commands).unwrap();
    (0..5).for_each(|_| drop(connection.answer().unwrap()));
    let page = server.control.changes("shop", "items", Some(&begin.next), 20).unwrap();
    let ChangePage { changes, next, .. } = &page;
    assert_eq!(changes.iter().map(|change| change.record.key.as_deref().unwrap()).collect::<String>(), "abc");
    assert!(changes.iter().all(|change| change.position == changes[0].position), "{changes:?}");
    // Nothing is left out between a page and the next one, and the end stays the end.
    assert_eq!(server.control.changes("shop", "items", Some(next), 0).unwrap().changes, []);
    let code = |result: Result<ChangePage, ControlError>| match result {
        Err(ControlError::Server { code, .. }) => code,
        Err(ControlError::NotFound { .. }) => "not_found".to_owned(),
        other => panic!("{other:?}"),
    };
    let within = begin.next.parse::<u64>().unwrap() + 1;
    assert_eq!(code(server.control.changes("shop", "items", Some(&within.to_string()), 0)), "invalid");
    assert_eq!(code(server.control.changes("shop", "items", Some("99999999999"), 0)), "invalid");
    assert_eq!(code(server.control.changes("shop", "other", None, 0)), "not_found");
    let durability = Some(DurabilityLevel::None);
    server.control.create_table("shop", &TableSpec { name: "m".into(), durability, ..TableSpec::default() }).unwrap();
    assert_eq!(code(server.control.changes("shop", "m", None, 0)), "not_logged");
    server
        .control
        .change_table("shop", "m", &TablePatch { durability: Some(DurabilityLevel::Interval), ..TablePatch::default() })
        .unwrap();
    assert!(server.control.changes("shop", "m", None, 0).unwrap().at_end);
}
