//! Promise: a table larger than memory is listed whole, by clients of Redis and by calls, however little of it fits
//! into memory and whatever of it is damaged: what cannot be read is said, and keeps no client from what is behind it.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::spill::{LARGE, fill, server, stats, value};
use super::spill_clients::{REDIS, RawClient, bulk, server_with_ports, set, text_value};
use crate::common::{Wire, eventually, library_of, load_with, loaded};
use sandstorm_catalog::QuotaChanges;
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{Operation, RpcStatus};

/// What a whole SCAN has found, and the errors that it had on the way.
fn scan(redis: &mut RawClient, options: &str) -> (BTreeSet<String>, Vec<String>) {
    let (mut cursor, mut found, mut errors) = ("0".to_owned(), BTreeSet::new(), Vec::new());
    loop {
        redis.send(&format!("SCAN {cursor} {options}\r\n"));
        let head = redis.line();
        if let Some(error) = head.strip_prefix("-ERR ") {
            let behind = error.split_once("; SCAN ").and_then(|(_, behind)| behind.split(' ').next());
            cursor = behind.unwrap_or_else(|| panic!("no cursor to go on with: {error}")).to_owned();
            errors.push(error.to_owned());
            continue;
        }
        assert_eq!(head, "*2");
        redis.line();
        cursor = redis.line();
        let keys: usize = redis.line().trim_start_matches('*').parse().expect("a number");
        found.extend((0..keys).map(|_| {
            redis.line();
            redis.line()
        }));
        if cursor == "0" {
            return (found, errors);
        }
    }
}

#[test]
fn a_scan_passes_a_table_of_whose_records_memory_holds_few() {
    const RECORDS: u32 = 150;
    let (plane, _, _folder) = server_with_ports(QuotaChanges::default());
    let mut redis = RawClient::new(&plane, REDIS);
    // Memory has room for thirty of them, and a SCAN may meet 64.
    let large = |number: u32| format!("{number:0>65000}");
    (0..RECORDS).for_each(|number| redis.write(&set(&format!("k{number}"), &large(number)), "+OK\r\n"));
    assert!(stats(&plane).cold_records > 100, "{:?}", stats(&plane));
    for options in ["COUNT 1000", "MATCH k* COUNT 1000", "COUNT 1"] {
        let (found, errors) = scan(&mut redis, options);
        assert_eq!((found.len(), errors), (RECORDS as usize, Vec::new()), "{options}");
    }
    assert_eq!(stats(&plane).read_errors, 0);
}

#[test]
fn commands_that_wait_one_after_the_other_are_not_refused_for_the_waits_of_those_before() {
    let (plane, _, _folder) = server_with_ports(QuotaChanges::default());
    let mut redis = RawClient::new(&plane, REDIS);
    (0..8_000_u32).for_each(|number| redis.write(&set(&format!("k{number}"), &text_value(number)), "+OK\r\n"));
    assert!(stats(&plane).cold_records > 4_000);
    // The oldest ones are on the disk: each of these waits once, for both of its keys.
    for number in (0..80).step_by(2) {
        let values = [number, number + 1].map(|number| bulk(&text_value(number))).concat();
        redis.expect(&format!("MGET k{number} k{}\r\n", number + 1), &format!("*2\r\n{values}"));
    }
}

/// The spill file of the only table.
fn spill_file(folder: &Path) -> std::path::PathBuf {
    let mut files = fs::read_dir(folder).expect("a folder");
    files.next().expect("a spill file").expect("an entry").path()
}

/// Damages blocks of the file, which hold the oldest records.
fn damage(folder: &Path) {
    const BLOCK_BYTES: usize = 4096;
    let path = spill_file(folder);
    // What is full is written in pieces of 256 KiB.
    assert!(eventually(|| path.metadata().is_ok_and(|file| file.len() >= 1 << 20)), "the first pieces are written");
    let file = OpenOptions::new().write(true).open(path).expect("the spill file");
    for block in [1, 5, 40] {
        file.write_all_at(&[0xa5; BLOCK_BYTES], block * BLOCK_BYTES as u64).expect("written");
    }
    file.sync_all().expect("on the disk");
}

#[test]
fn a_scan_says_what_it_cannot_read_and_goes_on_behind_it() {
    const RECORDS: u32 = 6_000;
    let (plane, _, folder) = server_with_ports(QuotaChanges::default());
    let mut redis = RawClient::new(&plane, REDIS);
    (0..RECORDS).for_each(|number| redis.write(&set(&format!("k{number}"), &text_value(number)), "+OK\r\n"));
    damage(folder.path());
    let (found, errors) = scan(&mut redis, "COUNT 100");
    assert!(errors.len() >= 3 && errors.iter().all(|error| error.contains("damaged")), "{errors:?}");
    assert_eq!(found.len() + errors.len(), RECORDS as usize, "each is found, or has an error of its own");
    // Those that are missing are those that a GET does not read either.
    let missing: Vec<u32> = (0..RECORDS).filter(|number| !found.contains(&format!("k{number}"))).collect();
    for number in missing {
        redis.expect(&format!("GET k{number}\r\n"), "-ERR the record's block on the disk is damaged");
        redis.line();
    }
    redis.expect("GET k5999\r\n", &bulk(&text_value(5_999)));
}

/// A page of the table for each call: the number of the next page, or `u64::MAX`, and the keys. A ninth byte in the
/// arguments asks for a scan that does not wait.
const PAGES: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

/// See above.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let at = Cursor::at(args.first_chunk().map_or(0, |number| u64::from_le_bytes(*number)));
    let table = db.table(\"large\")?;
    let page = if args.len() > 8 { db.scan(table, at, 100)? } else { db.scan_page(table, at, 100).await? };
    db.reply(&page.next.map_or(u64::MAX, Cursor::number).to_le_bytes())?;
    for record in &page.records {
        if !record.value().starts_with(record.key()) {
            return Err(Error::new(\"the value of another record\"));
        }
        db.reply(record.key())?;
    }
    Ok(())
}
";

/// Gives the tenant the extensions that scan.
fn load_scans(plane: &DataPlane) {
    // Of a build for tests, a whole scan takes longer than a call may.
    let budget =
        BudgetOverride { total_us: Some(5_000_000), memory_bytes: Some(32 << 20), ..BudgetOverride::default() };
    let pages = loaded("pages", 1, library_of("pages", PAGES), budget);
    plane.directory.put_extension("a", std::sync::Arc::new(pages)).expect("an extension is loaded");
    load_with(plane, "a", "scan", 1, budget);
}

/// Asks for one page after the other; returns the keys, and the error that ended it.
fn pages(wire: &mut Wire) -> (BTreeSet<u32>, Option<String>) {
    let (mut next, mut keys) = (0_u64, BTreeSet::new());
    while next != u64::MAX {
        let answer = wire.one(Operation::invoke(b"pages", &next.to_le_bytes()));
        if answer.status != RpcStatus::Ok {
            return (keys, Some(answer.text()));
        }
        let (number, page) = answer.value.split_first_chunk::<8>().expect("a number");
        next = u64::from_le_bytes(*number);
        keys.extend(page.chunks(4).map(|key| u32::from_le_bytes(key.try_into().expect("four bytes"))));
    }
    (keys, None)
}

#[test]
fn calls_scan_a_table_larger_than_memory_a_page_at_a_time_and_as_a_whole() {
    const RECORDS: u32 = 5_000;
    let (plane, id, _folder) = server(QuotaChanges::default());
    let mut wire = Wire::new(&plane, 0, id);
    fill(&mut wire, RECORDS);
    load_scans(&plane);
    let before = stats(&plane);
    assert!(before.cold_records > 1_000, "{before:?}");
    assert_eq!(pages(&mut wire), ((0..RECORDS).collect(), None));
    let after = stats(&plane);
    assert!(after.reads > before.reads + 1_000 && after.read_errors == 0, "{before:?} {after:?}");
    // In one call, for whose sake all that it has read stays in memory.
    let args = [&LARGE.to_le_bytes()[..], &64_u32.to_le_bytes(), &1_u32.to_le_bytes(), &0_u64.to_le_bytes()].concat();
    let answer = wire.one(Operation::invoke(b"scan", &args));
    assert_eq!(answer.status, RpcStatus::Ok, "{}", answer.text());
    assert_eq!(answer.value[..8], u64::from(RECORDS).to_le_bytes());
    // A scan that does not wait is told which one does.
    let refused = wire.one(Operation::invoke(b"pages", &[0; 9]));
    assert_eq!(refused.status, RpcStatus::Failed);
    assert!(refused.text().contains("scan_page"), "{}", refused.text());
}

#[test]
fn a_call_that_meets_a_damaged_block_is_told_so() {
    let (plane, id, folder) = server(QuotaChanges::default());
    let mut wire = Wire::new(&plane, 0, id);
    fill(&mut wire, 6_000);
    load_scans(&plane);
    damage(folder.path());
    let (keys, error) = pages(&mut wire);
    let error = error.expect("some cannot be read");
    assert!(error.contains("cannot be read") && error.contains("of the page") && keys.len() < 6_000, "{error}");
    let answer = wire.one(Operation::get(LARGE, &5_999_u32.to_le_bytes()));
    assert_eq!((answer.status, answer.value), (RpcStatus::Ok, value(5_999)));
}
