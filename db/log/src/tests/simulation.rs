//! Runs of the writer on a simulated disk that stops, fails and lies at each of its operations.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{TableModel, put, read};
use crate::disk::LogDisk;
use crate::disk::simulated::{DiskFault, SimulatedDisk};
use crate::segment_writer::{SegmentStart, SegmentWriter, SpareSegment, make_spare};
use crate::{LogError, UnitBuilder};

const SEGMENT: u64 = 40 << 10;
const KEYS: u32 = 12;

/// The key, the version and the value of each change of a unit.
type SimulatedUnit = Vec<(Vec<u8>, u64, Vec<u8>)>;

/// What a run has written: the units in their order, and how many of them were acknowledged.
#[derive(Default)]
struct SimulatedRun {
    units: Vec<SimulatedUnit>,
    acknowledged: usize,
    /// Those of them that a later frame says to be on the disk.
    promised: usize,
    version: u64,
}

impl SimulatedRun {
    /// The table after so many units.
    fn state(&self, units: usize) -> TableModel {
        let mut model = TableModel::default();
        for (key, version, value) in self.units.iter().take(units).flatten() {
            model.apply(&put(key, *version, value));
        }
        model
    }

    /// A unit that writes some keys; all of them name the unit.
    fn unit(&mut self, random: &mut SmallRng) -> UnitBuilder {
        let mut unit = UnitBuilder::default();
        let changes: Vec<_> = (0..random.random_range(1..4))
            .map(|_| {
                self.version += 1;
                let length = if random.random_bool(0.05) { 30_000 } else { random.random_range(0..900) };
                (random.random_range(0..KEYS).to_le_bytes().to_vec(), self.version, vec![self.version as u8; length])
            })
            .collect();
        changes.iter().for_each(|(key, version, value)| unit.push(&put(key, *version, value)));
        self.units.push(changes);
        unit
    }

    /// Starts the log on a disk, or goes on with it, and writes until something fails.
    fn go(&mut self, disk: &SimulatedDisk, random: &mut SmallRng, batches: usize) -> Result<(), LogError> {
        let disk: Arc<dyn LogDisk> = Arc::new(disk.clone());
        let (_, end) = read(&disk)?;
        let start = SegmentStart {
            log_id: if end.log_id == 0 { 77 } else { end.log_id },
            number: end.next_segment(),
            position: end.position,
            segment_bytes: SEGMENT,
        };
        let mut writer = SegmentWriter::start(Arc::clone(&disk), start, &end.tail)?;
        let mut spare: Option<SpareSegment> = None;
        for number in 0..batches {
            if spare.is_none() && random.random_bool(0.3) {
                spare = Some(make_spare(&*disk, 1_000 + number as u64, SEGMENT)?);
            }
            let mut batch = Vec::new();
            for _ in 0..random.random_range(0..4) {
                batch.extend_from_slice(self.unit(random).encoded());
            }
            writer.write(&batch, &mut spare)?;
            (self.promised, self.acknowledged) = (self.acknowledged, self.units.len());
        }
        Ok(())
    }

    /// Checks that a disk has what was acknowledged, and of the rest a prefix. The run goes on from there.
    fn check(&mut self, disk: &SimulatedDisk) -> Result<(), String> {
        let found = read(&(Arc::new(disk.clone()) as Arc<dyn LogDisk>));
        let (model, _) = found.map_err(|error| format!("after {} units: {error}", self.acknowledged))?;
        let kept = (self.acknowledged..=self.units.len()).find(|units| self.state(*units) == model);
        let kept =
            kept.ok_or_else(|| format!("{} of {} acknowledged: {model:?}", self.acknowledged, self.units.len()))?;
        self.units.truncate(kept);
        self.acknowledged = kept;
        Ok(())
    }
}

/// Crashes of a run at each of its operations, and a second one of what goes on from there.
///
/// # Errors
/// An acknowledged change is gone, or the log cannot be read.
pub(super) fn crash_at_every_operation() -> Result<(), String> {
    let all = {
        let disk = SimulatedDisk::default();
        SimulatedRun::default().go(&disk, &mut SmallRng::seed_from_u64(1), 40).map_err(|error| error.to_string())?;
        disk.operations()
    };
    assert!(all > 100, "{all} operations");
    for at in 1..=all {
        for seed in 0..3 {
            let disk = SimulatedDisk::with_faults(&[(at, DiskFault::Crash)]);
            let (mut run, mut random) = (SimulatedRun::default(), SmallRng::seed_from_u64(1));
            run.go(&disk, &mut random, 40).expect_err("it crashes");
            let disk = disk.after_crash(at * 10 + seed);
            run.check(&disk)?;
            // It goes on, crashes again soon, also while it recovers, and goes on.
            disk.fail_after(random.random_range(1..30), DiskFault::Crash);
            let _crashes = run.go(&disk, &mut random, 10);
            let disk = disk.after_crash(at + seed);
            run.check(&disk)?;
            run.go(&disk, &mut random, 5).map_err(|error| format!("operation {at}: {error}"))?;
            run.check(&disk.after_crash(seed))?;
            assert_eq!(run.acknowledged, run.units.len());
        }
    }
    Ok(())
}

/// A write or sync that fails at each operation of a run; another process goes on with what the system shows, and then
/// the machine loses power.
///
/// # Errors
/// As above.
pub(super) fn fail_at_every_operation(fault: DiskFault) -> Result<(), String> {
    for at in 1..120 {
        let disk = SimulatedDisk::with_faults(&[(at, fault)]);
        let (mut run, mut random) = (SimulatedRun::default(), SmallRng::seed_from_u64(1));
        // A short write is only possible of a write.
        let failed = run.go(&disk, &mut random, 40);
        assert!(failed.is_err() || fault == DiskFault::ShortWrite, "operation {at}");
        let disk = disk.after_kill();
        run.check(&disk)?;
        run.go(&disk, &mut random, 1).map_err(|error| format!("operation {at}: {error}"))?;
        run.check(&disk.after_crash(at))?;
    }
    Ok(())
}

/// Writes that go astray or change on their way, one in each run. Returns how many were found to be damage.
///
/// # Errors
/// One was read as something that was not written.
fn spoil_every_operation() -> Result<usize, String> {
    let mut found = 0;
    for fault in [DiskFault::Misdirected, DiskFault::Flipped] {
        for at in 1..200 {
            let disk = SimulatedDisk::with_faults(&[(at, fault)]);
            let (mut run, mut random) = (SimulatedRun::default(), SmallRng::seed_from_u64(1));
            run.go(&disk, &mut random, 60).expect("no operation fails");
            match read(&(Arc::new(disk.after_kill()) as Arc<dyn LogDisk>)) {
                // It met zeros, or padding; or the last frame, which nothing behind it proves to have been there.
                Ok((model, _)) => {
                    let mut states = run.promised..=run.units.len();
                    if !states.any(|units| run.state(units) == model) {
                        return Err(format!("{fault:?} at operation {at} of a run is taken for a record"));
                    }
                }
                Err(LogError::Damaged { .. }) => found += 1,
                Err(error) => return Err(error.to_string()),
            }
        }
    }
    Ok(found)
}

#[test]
fn a_crash_at_every_operation_takes_nothing_that_was_acknowledged() {
    crash_at_every_operation().unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn a_failed_or_short_write_or_sync_acknowledges_nothing_and_a_later_success_proves_nothing() {
    for fault in [DiskFault::Error, DiskFault::ShortWrite] {
        fail_at_every_operation(fault).unwrap_or_else(|why| panic!("{fault:?}: {why}"));
    }
}

#[test]
fn writes_that_go_astray_or_change_on_their_way_are_damage_and_never_read_as_something_else() {
    let found = spoil_every_operation().unwrap_or_else(|why| panic!("{why}"));
    assert!(found > 50, "{found} found");
}
