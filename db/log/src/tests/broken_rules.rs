//! Promise: each rule by which a log is read again matters, and tests find it if one is broken.

use std::sync::Arc;
use std::time::Duration;

use super::simulation::{crash_at_every_operation, fail_at_every_operation};
use super::{TableModel, put, read};
use crate::broken_rules::{RecoveryRule, break_rule};
use crate::disk::LogDisk;
use crate::disk::simulated::{DiskFault, SimulatedDisk};
use crate::{CheckpointWriter, LogError, LogOptions, RecoveredLog};

const LONG: Duration = Duration::from_secs(60);
const SEGMENT: u64 = 64 << 10;

/// A log of some segments whose server was stopped, with a checkpoint at its end or not.
fn stopped_log(has_checkpoint: bool) -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    let options = LogOptions { segment_bytes: SEGMENT, feed_bytes: 0, ..LogOptions::default() };
    let read = RecoveredLog::read(Arc::new(disk.clone()), options, &mut |_, _| Ok(()));
    let log = read.expect("empty").start().expect("started");
    let mut all = TableModel::default();
    for number in 1..40u64 {
        let (key, value) = ((number % 7).to_le_bytes(), vec![number as u8; 7_000]);
        let put = put(&key, number, &value);
        all.apply(&put);
        let position = log.append(&put, true);
        assert!(log.wait(position, LONG));
    }
    if has_checkpoint {
        let mut checkpoint = CheckpointWriter::begin(&log).expect("begun");
        for (key, (version, value)) in &all.0 {
            checkpoint.push(&put(key, *version, value)).expect("pushed");
        }
        checkpoint.finish().expect("finished");
    }
    drop(log);
    disk
}

fn is_damaged(disk: SimulatedDisk) -> Result<(), String> {
    match read(&(Arc::new(disk) as Arc<dyn LogDisk>)) {
        Err(LogError::Damaged { .. }) => Ok(()),
        found => Err(format!("it is not found to be damaged: {:?}", found.map(|(model, _)| model.0.len()))),
    }
}

/// The segments of a disk, in their order.
fn segments(disk: &SimulatedDisk) -> Vec<String> {
    let mut names = disk.list().expect("names");
    names.retain(|name| name.starts_with("log-"));
    names.sort();
    names
}

/// The frames on which a checkpoint relies are gone.
fn lose_what_a_checkpoint_relies_on() -> Result<(), String> {
    let disk = stopped_log(true);
    let last = segments(&disk).pop().expect("a segment");
    disk.damage(&last, |bytes| bytes[4096..].fill(0));
    is_damaged(disk)
}

/// A frame of the last segment is not as it was written; the empty one behind it says that it was on the disk.
fn flip_what_a_later_frame_promises() -> Result<(), String> {
    let disk = stopped_log(false);
    let last = segments(&disk).pop().expect("a segment");
    disk.damage(&last, |bytes| bytes[4096 + 80] ^= 1);
    is_damaged(disk)
}

/// A frame of the first segment is not as it was written; later segments say that all of it was on the disk.
fn flip_what_a_later_segment_relies_on() -> Result<(), String> {
    let disk = stopped_log(false);
    // The first frame of a log is empty.
    disk.damage(&segments(&disk)[0], |bytes| bytes[2 * 4096 + 80] ^= 1);
    is_damaged(disk)
}

/// The first segment is gone.
fn lose_the_first_segment() -> Result<(), String> {
    let disk = stopped_log(false);
    let all = segments(&disk);
    assert!(all.len() > 2, "{all:?}");
    disk.remove(&all[0]).expect("removed");
    is_damaged(disk)
}

/// A run that breaks if its rule does.
type RuleRun<'a> = &'a dyn Fn() -> Result<(), String>;

#[test]
fn each_rule_of_recovery_that_is_broken_on_purpose_is_found() {
    let fail = || fail_at_every_operation(DiskFault::Error);
    let runs: [(RecoveryRule, RuleRun<'_>); 6] = [
        (RecoveryRule::UnitsAreWhole, &crash_at_every_operation),
        (RecoveryRule::TailIsWrittenAgain, &fail),
        (RecoveryRule::PromisedIsThere, &flip_what_a_later_frame_promises),
        (RecoveryRule::SegmentsGoOn, &flip_what_a_later_segment_relies_on),
        (RecoveryRule::CheckpointBoundIsThere, &lose_what_a_checkpoint_relies_on),
        (RecoveryRule::NeededSegmentsAreThere, &lose_the_first_segment),
    ];
    for (rule, run) in runs {
        run().unwrap_or_else(|why| panic!("{rule:?} holds: {why}"));
        break_rule(Some(rule));
        let found = run();
        break_rule(None);
        assert!(found.is_err(), "{rule:?} may be broken, and nothing notices");
    }
}
