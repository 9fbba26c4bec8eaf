//! Promise: a tail shows each change behind its position once, in order, when it is on the disk and not before; and
//! begins nowhere but where a unit ends.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::put;
use crate::disk::LogDisk;
use crate::disk::simulated::SimulatedDisk;
use crate::{
    ChangeKind, ChangeLog, CheckpointWriter, LogOptions, LogTail, LoggedChange, RecoveredLog, TailError, UnitBuilder,
};

const LONG: Duration = Duration::from_secs(60);
pub(super) const SEGMENT: u64 = 64 << 10;

/// Key and value of a change with the position behind its unit.
pub(super) type Shown = (u64, Vec<u8>, Vec<u8>);

pub(super) fn open(disk: &SimulatedDisk, retained_bytes: u64) -> Arc<ChangeLog> {
    let disk: Arc<dyn LogDisk> = Arc::new(disk.clone());
    let options = LogOptions { segment_bytes: SEGMENT, feed_bytes: 0, retained_bytes, ..LogOptions::default() };
    RecoveredLog::read(disk, options, &mut |_, _| Ok(())).expect("sound").start().expect("started")
}

pub(super) fn append(log: &Arc<ChangeLog>, random: &mut SmallRng, shown: &mut Vec<Shown>) {
    let mut unit = UnitBuilder::default();
    let changes: Vec<_> = (0..random.random_range(1..4))
        .map(|_| {
            let value = vec![random.random::<u8>(); random.random_range(0..9_000)];
            (random.random::<u32>().to_le_bytes().to_vec(), value)
        })
        .collect();
    changes.iter().for_each(|(key, value)| unit.push(&put(key, 1, value)));
    // As a server does when the log is busy.
    while log.admit_bytes(unit.bytes() as u64).map(drop).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let position = log.append_unit(&mut unit, true);
    shown.extend(changes.into_iter().map(|(key, value)| (position, key, value)));
}

/// All that a tail shows, by pieces of so many bytes.
fn rest(tail: &mut LogTail, bytes: u64) -> Vec<Shown> {
    let mut shown = Vec::new();
    while !tail.is_at_end() {
        tail.read(bytes, &mut |position, change| {
            shown.push((position, change.key.to_vec(), change.value.to_vec()));
            true
        })
        .expect("sound");
    }
    assert_eq!(shown.last().map_or(tail.position(), |(position, ..)| *position), tail.position());
    shown
}

#[test]
fn from_every_position_all_changes_behind_it_are_shown_once() {
    let disk = SimulatedDisk::default();
    let mut random = SmallRng::seed_from_u64(1);
    let mut written = Vec::new();
    for _server in 0..3 {
        let log = open(&disk, u64::MAX);
        for _ in 0..40 {
            append(&log, &mut random, &mut written);
        }
        assert!(log.wait(log.end(), LONG));
        let mut tail = LogTail::at(&log, 0).expect("the beginning");
        assert!(rest(&mut tail, 1) == written, "from the beginning");
        for at in (0..written.len()).step_by(7) {
            let position = written[at].0;
            let mut tail = LogTail::at(&log, position).expect("a unit ends there");
            let behind: Vec<_> = written.iter().filter(|(end, ..)| *end > position).cloned().collect();
            assert!(rest(&mut tail, 10_000) == behind, "from {position}");
        }
        // What comes later is shown by a tail that had nothing more to show.
        let shown_before = written.len();
        append(&log, &mut random, &mut written);
        assert!(log.wait(log.end(), LONG));
        assert!(rest(&mut tail, 1) == written[shown_before..], "what came later");
    }
}

#[test]
fn a_tail_ends_where_its_reader_wants_no_more_and_goes_on_behind_that() {
    let log = open(&SimulatedDisk::default(), 0);
    let positions: Vec<u64> = (0..9_u64).map(|number| log.append(&put(&[0], number + 1, b"value"), true)).collect();
    assert!(log.wait(log.end(), LONG));
    let (mut tail, mut seen) = (LogTail::at(&log, 0).expect("the beginning"), Vec::new());
    for _ in 0..20 {
        tail.read(u64::MAX, &mut |position, _| {
            seen.push(position);
            false
        })
        .expect("sound");
        assert_eq!(seen.last(), Some(&tail.position()));
    }
    assert_eq!(seen, positions);
}

#[test]
fn a_position_within_a_value_that_looks_like_a_unit_is_refused() {
    let log = open(&SimulatedDisk::default(), 0);
    // The value holds a unit that claims the bytes behind it, which are another tenant's.
    let mut forged = UnitBuilder::default();
    forged.push(&LoggedChange { kind: ChangeKind::Put, table: 1, ..put(b"key", 9, &[7; 100]) });
    let forged = forged.take();
    let end = log.append(&put(b"own", 1, &forged[..60]), true);
    let next = log.append(&put(b"another's", 1, &[1; 100]), true);
    assert!(log.wait(next, LONG));
    for position in (0..=next + 5).filter(|position| ![0, end, next].contains(position)) {
        let refused = LogTail::at(&log, position).map(drop);
        assert_eq!(refused, Err(TailError::NoPosition(position)));
    }
    for position in [0, end, next] {
        assert!(LogTail::at(&log, position).is_ok(), "{position}");
    }
}

#[test]
fn checkpoints_leave_what_tails_need_up_to_a_bound_also_over_a_restart() {
    let disk = SimulatedDisk::default();
    let mut random = SmallRng::seed_from_u64(2);
    let mut written = Vec::new();
    let checkpoint =
        |log: &Arc<ChangeLog>| CheckpointWriter::begin(log).and_then(CheckpointWriter::finish).expect("ok");
    let log = open(&disk, 10 * SEGMENT);
    for _ in 0..50 {
        append(&log, &mut random, &mut written);
        // What is pending is less than a segment, as a server has it.
        assert!(log.wait(log.end(), LONG));
    }
    let needed = written[written.len() / 2].0;
    log.retain_from(Some(needed));
    checkpoint(&log);
    let behind: Vec<_> = written.iter().filter(|(end, ..)| *end > needed).cloned().collect();
    assert!(rest(&mut LogTail::at(&log, needed).expect("it was left"), 1) == behind);
    drop(log);
    // The next server has what the checkpoint left, and removes it with its own first checkpoint.
    let log = open(&disk, 10 * SEGMENT);
    assert!(rest(&mut LogTail::at(&log, needed).expect("it was left"), 1) == behind);
    checkpoint(&log);
    let oldest = log.oldest_position();
    assert_eq!(LogTail::at(&log, needed).map(drop), Err(TailError::TooOld { oldest }));
    // A tail that needs too much gets what the bound leaves.
    log.retain_from(Some(log.end()));
    for _ in 0..400 {
        append(&log, &mut random, &mut written);
    }
    assert!(log.wait(log.end(), LONG));
    checkpoint(&log);
    assert!(log.oldest_position() + 13 * SEGMENT > log.end() && log.oldest_position() + 8 * SEGMENT < log.end());
}
