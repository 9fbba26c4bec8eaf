//! Copies of a log, cut off at any place, and what is salvaged of a damaged one.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{TableModel, put, read};
use crate::disk::LogDisk;
use crate::disk::simulated::SimulatedDisk;
use crate::log_copy::{CopyEnd, copy_log};
use crate::salvage::salvage_log;
use crate::{ChangeLog, CheckpointWriter, LogError, LogOptions, LoggedChange, RecoveredLog, UnitBuilder};

const SEGMENT: u64 = 40 << 10;
const LONG: std::time::Duration = std::time::Duration::from_secs(60);

/// A key, a version, and a value.
type WrittenChange = (Vec<u8>, u64, Vec<u8>);

/// A log, and its units, each with the position behind it.
struct WrittenLog {
    disk: SimulatedDisk,
    units: Vec<(u64, Vec<WrittenChange>)>,
}

impl WrittenLog {
    /// Writes a log of some segments over two starts, with a checkpoint in the middle or none.
    fn write(seed: u64, with_checkpoint: bool) -> WrittenLog {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut written = WrittenLog { disk: SimulatedDisk::default(), units: Vec::new() };
        for part in 0..2 {
            let log = written.start();
            for _ in 0..30 {
                written.append(&log, &mut random);
            }
            if part == 1 && with_checkpoint {
                let mut checkpoint = CheckpointWriter::begin(&log).expect("begun");
                // Records that are written while it is.
                for _ in 0..3 {
                    written.append(&log, &mut random);
                }
                for (key, (version, value)) in written.model(u64::MAX).0 {
                    checkpoint.push(&put(&key, version, &value)).expect("written");
                }
                checkpoint.finish().expect("finished");
                for _ in 0..20 {
                    written.append(&log, &mut random);
                }
            }
            assert!(log.wait(log.end(), LONG));
            log.close();
        }
        written
    }

    fn start(&self) -> Arc<ChangeLog> {
        let options = LogOptions { segment_bytes: SEGMENT, feed_bytes: 0, ..LogOptions::default() };
        RecoveredLog::read(self.disk(), options, &mut |_, _| Ok(())).expect("sound").start().expect("started")
    }

    fn disk(&self) -> Arc<dyn LogDisk> {
        Arc::new(self.disk.clone())
    }

    fn append(&mut self, log: &ChangeLog, random: &mut SmallRng) {
        let mut unit = UnitBuilder::default();
        let changes: Vec<_> = (0..random.random_range(1..4))
            .map(|change| {
                let version = self.units.len() as u64 * 10 + change + 1;
                let bytes = if random.random_bool(0.1) { 20_000 } else { random.random_range(0..900) };
                (random.random_range(0..12_u32).to_le_bytes().to_vec(), version, vec![version as u8; bytes])
            })
            .collect();
        changes.iter().for_each(|(key, version, value)| unit.push(&put(key, *version, value)));
        let end = log.append_unit(&mut unit, true);
        self.units.push((end, changes));
        if random.random_bool(0.5) {
            assert!(log.wait(end, LONG));
        }
    }

    /// The table after the units up to a position.
    fn model(&self, position: u64) -> TableModel {
        let mut model = TableModel::default();
        for (key, version, value) in self.units.iter().filter(|(end, _)| *end <= position).flat_map(|(_, unit)| unit) {
            model.apply(&put(key, *version, value));
        }
        model
    }
}

fn copy(from: &Arc<dyn LogDisk>, until: CopyEnd) -> Result<(crate::LogCopy, SimulatedDisk), LogError> {
    let into = SimulatedDisk::default();
    copy_log(from, &into, until).map(|copy| (copy, into))
}

#[test]
fn a_copy_has_what_was_there_up_to_any_position_that_it_has() {
    for with_checkpoint in [false, true] {
        let written = WrittenLog::write(1, with_checkpoint);
        let (all, disk) = copy(&written.disk(), CopyEnd::All).expect("copied");
        let end = written.units.last().expect("units").0;
        assert_eq!(all.end, end);
        assert_eq!(read(&(Arc::new(disk.clone()) as Arc<dyn LogDisk>)).expect("sound").0, written.model(u64::MAX));
        for file in &all.files {
            let bytes = disk.content(&file.name);
            assert_eq!((bytes.len() as u64, crc32c::crc32c(&bytes)), (file.bytes, file.crc32c), "{}", file.name);
        }
        let earliest = all.earliest.expect("of this format");
        assert!(with_checkpoint == (earliest > 0) && earliest < end);
        let copied: Arc<dyn LogDisk> = Arc::new(disk);
        let positions = written.units.iter().flat_map(|(end, _)| [*end - 1, *end, *end + 1]);
        for position in positions.filter(|position| *position <= end).step_by(4) {
            // Of the log itself, and of a copy.
            for from in [&written.disk(), &copied] {
                let cut = copy(from, CopyEnd::Position(position));
                if position < earliest {
                    let refused = cut.expect_err("too far back").to_string();
                    assert!(refused.contains(&format!("position {earliest}")), "{refused}");
                    continue;
                }
                let (cut, disk) = cut.expect("copied");
                assert_eq!(cut.end, position);
                let disk: Arc<dyn LogDisk> = Arc::new(disk);
                let (model, end) = read(&disk).expect("sound");
                assert_eq!(model, written.model(position), "{position}");
                // It can be gone on with.
                assert!(end.position + end.tail.len() as u64 <= position);
                let options = LogOptions { segment_bytes: SEGMENT, feed_bytes: 0, ..LogOptions::default() };
                drop(RecoveredLog::read(disk, options, &mut |_, _| Ok(())).expect("sound").start());
            }
        }
        assert!(
            copy(&copied, CopyEnd::Position(end + 1)).expect_err("behind the end").to_string().contains("it ends at")
        );
        let (at_once, _) = copy(&copied, CopyEnd::Time(u64::MAX)).expect("copied");
        assert_eq!(at_once, all);
        assert!(copy(&copied, CopyEnd::Time(1)).is_err() == with_checkpoint);
    }
}

#[test]
fn a_damaged_log_is_not_copied() {
    let written = WrittenLog::write(2, true);
    let names = written.disk().list().expect("names");
    for name in names.iter().filter(|name| name.starts_with("checkpoint-")) {
        written.disk.damage(name, |bytes| bytes[5_000] ^= 1);
    }
    assert!(matches!(copy(&written.disk(), CopyEnd::All), Err(LogError::Damaged { .. })));
}

/// What is salvaged of a log: its changes, and whether anything was lost.
fn salvage(from: &SimulatedDisk) -> (Vec<String>, TableModel, bool) {
    let (mut seen, from): (_, Arc<dyn LogDisk>) = (Vec::new(), Arc::new(from.clone()));
    let into: Arc<dyn LogDisk> = Arc::new(SimulatedDisk::default());
    let found = salvage_log(
        &from,
        &into,
        LogOptions { segment_bytes: SEGMENT, feed_bytes: 0, ..LogOptions::default() },
        &mut |change| {
            seen.push(of(change));
            Ok(())
        },
    )
    .expect("salvaged");
    assert_eq!(found.changes, seen.len() as u64);
    for lost in &found.lost {
        assert!(!lost.file.is_empty() && lost.from <= lost.to, "{lost:?}");
    }
    // What was written is a sound log of the same changes.
    let mut again = Vec::new();
    let read_again = crate::recovery::read_log(&into, &mut |change, _| {
        again.push(of(change));
        Ok(())
    });
    read_again.expect("sound");
    assert_eq!(again, seen);
    (seen, read(&into).expect("sound").0, !found.lost.is_empty())
}

fn of(change: &LoggedChange<'_>) -> String {
    format!("{} {:?} {:?} {}", change.version, change.key, change.value.first(), change.value.len())
}

fn of_written((key, version, value): &WrittenChange) -> String {
    format!("{version} {:?} {:?} {}", &key[..], value.first(), value.len())
}

fn changes(disk: &SimulatedDisk) -> Vec<String> {
    let (mut seen, disk): (_, Arc<dyn LogDisk>) = (Vec::new(), Arc::new(disk.clone()));
    let read = crate::recovery::read_log(&disk, &mut |change, _| {
        seen.push(of(change));
        Ok(())
    });
    read.expect("sound");
    seen
}

#[test]
fn nothing_is_lost_of_a_sound_log_and_nothing_wrong_is_taken_of_a_damaged_one() {
    for with_checkpoint in [false, true] {
        let written = WrittenLog::write(3, with_checkpoint);
        let all = changes(&written.disk);
        let (seen, model, has_lost) = salvage(&written.disk);
        assert!(seen == all && model == written.model(u64::MAX) && !has_lost);
        let all: BTreeSet<String> = all.into_iter().collect();
        // With a damaged checkpoint, what lies before it in its segment comes back too, where the frames have ended so.
        let ever: BTreeSet<String> = written.units.iter().flat_map(|(_, unit)| unit).map(of_written).collect();
        let (mut lost, mut damaged) = (0, 0);
        for name in written.disk().list().expect("names").iter().filter(|name| !name.starts_with('.')) {
            let bytes = written.disk.content(name).len();
            // Bytes of each block: those of the header, and some of the rest.
            for at in (0..bytes).filter(|at| at % 4096 < 64 && at % 11 == 0 || at % 6_101 == 0) {
                let disk = written.disk.after_kill();
                disk.damage(name, |bytes| bytes[at] ^= 0x41);
                let (seen, _, has_lost) = salvage(&disk);
                assert!(seen.iter().all(|change| ever.contains(change)), "{name} byte {at}");
                let is_sound = read(&(Arc::new(disk) as Arc<dyn LogDisk>)).is_ok();
                damaged += usize::from(!is_sound);
                let found: BTreeSet<&String> = seen.iter().collect();
                let is_whole = all.iter().all(|change| found.contains(change));
                assert!(is_sound || has_lost, "{name} byte {at}: damage is told of");
                assert!(is_whole || has_lost || is_sound, "{name} byte {at}: what is lost is told of");
                lost += usize::from(!is_whole);
                // One frame and the units that reach into it.
                assert!(seen.len() * 2 >= all.len(), "{name} byte {at}: {} of {}", seen.len(), all.len());
            }
        }
        assert!(lost > 20 && damaged > 20, "{lost} lost something, {damaged} were damaged");
    }
}

#[test]
fn a_missing_file_is_told_of_and_the_others_are_used() {
    let written = WrittenLog::write(4, false);
    let all: BTreeSet<String> = changes(&written.disk).into_iter().collect();
    let names = written.disk().list().expect("names");
    let mut segments: Vec<&String> = names.iter().filter(|name| name.starts_with("log-")).collect();
    segments.sort();
    assert!(segments.len() > 3, "{segments:?}");
    let disk = written.disk.after_kill();
    disk.remove(segments[1]).expect("removed");
    assert!(read(&(Arc::new(disk.clone()) as Arc<dyn LogDisk>)).is_err());
    let (seen, _, has_lost) = salvage(&disk);
    assert!(has_lost && seen.len() > all.len() / 3 && seen.iter().all(|change| all.contains(change)), "{}", seen.len());
}
