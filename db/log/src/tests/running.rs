//! The log with its threads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{TableModel, put, read};
use crate::disk::simulated::{DiskFault, SimulatedDisk};
use crate::disk::{LogDisk, LogFile};
use crate::limits::{SPARE_MARGIN_BYTES, SPARE_RETRY};
use crate::segment_writer::make_spare_with_margin;
use crate::{
    ChangeLog, CheckpointWriter, LogError, LogFolder, LogOptions, LogRefusal, LoggedChange, PositionState,
    RecoveredLog, UnitBuilder,
};

const LONG: Duration = Duration::from_secs(60);

fn open(disk: Arc<dyn LogDisk>, segment_bytes: u64) -> (Arc<ChangeLog>, TableModel) {
    open_with(disk, LogOptions { segment_bytes, feed_bytes: 0, ..LogOptions::default() })
}

fn open_with(disk: Arc<dyn LogDisk>, options: LogOptions) -> (Arc<ChangeLog>, TableModel) {
    let mut model = TableModel::default();
    let log = RecoveredLog::read(disk, options, &mut |change, _| {
        model.apply(change);
        Ok(())
    });
    (log.expect("read").start().expect("started"), model)
}

#[test]
fn what_is_durable_is_there_for_the_next_process_and_two_at_once_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let disk = Arc::new(LogFolder::lock(&path).expect("locked"));
    assert!(matches!(LogFolder::lock(&path), Err(LogError::Locked(_))));
    let (log, _) = open(disk, 1 << 20);
    let positions = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let (log, positions) = (Arc::clone(&log), Arc::clone(&positions));
            std::thread::spawn(move || {
                for number in 0..500u64 {
                    let key = (thread << 32 | number).to_le_bytes();
                    let permit = log.admit(8, 8).expect("room");
                    let position = log.append(&put(&key, 1, &key), true);
                    drop(permit);
                    positions.fetch_max(position, Ordering::SeqCst);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert!(log.wait(positions.load(Ordering::SeqCst), LONG));
    drop(log);
    let disk = LogFolder::lock(&path).expect("the lock is free");
    let (_log, model) = open(Arc::new(disk), 1 << 20);
    assert_eq!(model.0.len(), 2000);
}

#[test]
fn a_new_segment_that_is_asked_for_while_one_is_begun_is_begun_once() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(Arc::new(disk.clone()), 64 << 10);
    // There is a spare one once there is room for more than one.
    let await_spare = || while log.admit(8, 50_000).is_err() {};
    await_spare();
    let gate = disk.gate();
    let stopped = gate.lock();
    log.shared().begin_segment();
    // The writer is at work on it.
    while !matches!(log.admit(8, 8), Err(LogRefusal::Stalled)) {
        log.look_for_stall_of(Duration::ZERO);
    }
    log.shared().begin_segment();
    drop(stopped);
    for number in 0..3_u64 {
        let end = log.append(&put(b"k", number + 1, b"v"), true);
        assert!(log.wait(end, LONG));
        await_spare();
    }
    assert_eq!(log.shared().segment.load(Ordering::Relaxed), 2);
}

#[test]
fn changes_that_nobody_waits_for_are_written_as_well() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(Arc::new(disk.clone()), 1 << 20);
    let (moved, moves) = std::sync::mpsc::channel();
    log.on_progress(Box::new(move || moved.send(()).unwrap_or(())));
    let position = log.append(&put(b"k", 1, b"v"), false);
    while log.durable() < position {
        moves.recv_timeout(LONG).expect("it is written without a kick");
    }
    let (model, _) = read(&(Arc::new(disk.after_crash(1)) as Arc<dyn LogDisk>)).expect("sound");
    assert_eq!(model.0.len(), 1);
}

#[test]
fn changes_of_followed_tables_are_not_gathered_for_long() {
    let disk = SimulatedDisk::default();
    let options = LogOptions { gather_time: 24 * 60 * LONG, ..LogOptions::default() };
    let (log, _) = open_with(Arc::new(disk), options);
    let (moved, moves) = std::sync::mpsc::channel();
    log.on_progress(Box::new(move || moved.send(()).unwrap_or(())));
    let of = |table: u64, version| LoggedChange { table, ..put(b"k", version, b"v") };
    let await_written = |position: u64| {
        while log.durable() < position {
            moves.recv_timeout(LONG).expect("it is written without a kick");
        }
    };
    log.follow_tables([7]);
    let other = log.append(&of(8, 1), false);
    assert!(log.durable() < other, "no trigger follows its table");
    // What was gathered before goes with it.
    await_written(log.append(&of(7, 2), false));
    let mut unit = UnitBuilder::default();
    [of(8, 3), of(7, 4)].iter().for_each(|change| unit.push(change));
    await_written(log.append_unit(&mut unit, false));
    log.follow_tables([]);
    let last = log.append(&of(7, 5), false);
    assert!(log.durable() < last, "no trigger follows it any more");
    log.close();
    assert_eq!(log.durable(), last);
}

#[test]
fn a_failed_sync_closes_the_log_for_good_and_names_the_file() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(Arc::new(disk.clone()), 1 << 20);
    let first = log.append(&put(b"a", 1, b"v"), true);
    assert!(log.wait(first, LONG));
    // All that follows fails until the log has noticed; then the disk seems to work again.
    (1..40).for_each(|after| disk.fail_after(after, DiskFault::Error));
    let second = log.append(&put(b"b", 1, b"v"), true);
    assert!(!log.wait(second, LONG));
    let why = log.failure().expect("closed").to_string();
    assert!(why.contains("simulated/"), "{why}");
    assert_eq!(log.admit(1, 1).expect_err("closed"), LogRefusal::Closed);
    let third = log.append(&put(b"c", 1, b"v"), true);
    assert!(!log.wait(third, LONG) && log.durable() < second);
}

#[test]
fn a_full_disk_refuses_early_keeps_what_it_took_and_recovers() {
    const SEGMENT: u64 = 256 << 10;
    let disk = SimulatedDisk::default();
    disk.set_capacity(Some(SEGMENT + (64 << 10)));
    let (log, _) = open(Arc::new(disk.clone()), SEGMENT);
    let (value, mut taken, mut refusal) = ([7; 1000], Vec::new(), None);
    for number in 0..1000u64 {
        match log.admit(8, value.len()) {
            Ok(_permit) => {
                let key = number.to_le_bytes();
                let position = log.append(&put(&key, 1, &value), true);
                assert!(log.wait(position, LONG), "what was taken is written");
                taken.push(key);
            }
            Err(why) => {
                refusal = Some(why);
                break;
            }
        }
    }
    assert!(matches!(refusal, Some(LogRefusal::Full | LogRefusal::Busy)), "{refusal:?}");
    assert!(log.failure().is_none() && taken.len() > 20, "{} taken", taken.len());
    disk.set_capacity(None);
    while log.admit(8, value.len()).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let position = log.append(&put(b"later", 1, &value), true);
    assert!(log.wait(position, LONG));
    let (model, _) = read(&(Arc::new(disk.after_crash(3)) as Arc<dyn LogDisk>)).expect("sound");
    assert_eq!(model.0.len(), taken.len() + 1);
}

/// Writes, deletes and checkpoints until the disk stops. Returns the acknowledged table, and the one with all changes.
fn run_with_checkpoints(disk: &SimulatedDisk) -> Option<(TableModel, TableModel)> {
    let (mut acknowledged, mut all) = (TableModel::default(), TableModel::default());
    let recovered = RecoveredLog::read(
        Arc::new(disk.clone()),
        LogOptions { segment_bytes: 32 << 10, feed_bytes: 0, ..LogOptions::default() },
        &mut |_, _| Ok(()),
    );
    let log = recovered.ok()?.start().ok()?;
    for number in 1..120u64 {
        let (key, value) = ((number % 17).to_le_bytes(), vec![number as u8; 700]);
        let mut unit = UnitBuilder::default();
        let put = put(&key, number, &value);
        unit.push(&put);
        all.apply(&put);
        let gone = (number % 5).to_le_bytes();
        if number % 3 == 0 {
            let delete = LoggedChange::delete(1, number, &gone);
            unit.push(&delete);
            all.apply(&delete);
        }
        let position = log.append_unit(&mut unit, true);
        if !log.wait(position, LONG) {
            return Some((acknowledged, all));
        }
        acknowledged = all.clone();
        if number % 25 == 0
            && let Ok(mut checkpoint) = CheckpointWriter::begin(&log)
        {
            let pushed =
                all.0.iter().try_for_each(|(key, (version, value))| checkpoint.push(&super::put(key, *version, value)));
            let _a_failed_one_leaves_the_last = pushed.and_then(|()| checkpoint.finish());
        }
    }
    Some((acknowledged, all))
}

#[test]
fn a_crash_at_any_operation_with_checkpoints_takes_nothing_that_was_acknowledged() {
    let quiet = SimulatedDisk::default();
    let (acknowledged, _) = run_with_checkpoints(&quiet).expect("no fault");
    let disk: Arc<dyn LogDisk> = Arc::new(quiet.after_crash(1));
    assert_eq!(read(&disk).expect("sound").0, acknowledged);
    let names = disk.list().expect("names");
    assert!(names.iter().any(|name| name.starts_with("checkpoint-")), "{names:?}");
    assert!(!names.contains(&"log-0000000000000001".to_owned()), "the log is bounded: {names:?}");
    for at in (1..quiet.operations()).step_by(7) {
        let disk = SimulatedDisk::with_faults(&[(at, DiskFault::Crash)]);
        let Some((acknowledged, all)) = run_with_checkpoints(&disk) else { continue };
        let (found, _) = read(&(Arc::new(disk.after_crash(at)) as Arc<dyn LogDisk>)).expect("sound");
        assert!(found == acknowledged || found == all, "operation {at}");
    }
}

#[test]
fn starts_without_a_change_between_them_cost_one_segment() {
    let mut disk = SimulatedDisk::default();
    let segments = |disk: &SimulatedDisk| {
        let names = disk.list().expect("names");
        names.iter().filter(|name| name.starts_with("log-")).count()
    };
    let (log, _) = open(Arc::new(disk.clone()), 256 << 10);
    let position = log.append(&put(b"k", 1, b"v"), true);
    // It is killed before an empty frame says that the change is on the disk, or after that.
    assert!(log.wait(position, LONG));
    for number in 0..8 {
        disk = if number % 2 == 0 { disk.after_kill() } else { disk.after_crash(number) };
        let (log, model) = open(Arc::new(disk.clone()), 256 << 10);
        assert_eq!(model.0.len(), 1);
        drop(log);
        assert!(segments(&disk) <= 2, "start {number}: {:?}", disk.list());
    }
}

#[test]
fn a_segment_that_begins_within_a_unit_is_read_without_the_one_before() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(Arc::new(disk.clone()), 64 << 10);
    let mut all = TableModel::default();
    for number in 1..60u64 {
        let (key, value) = ((number % 7).to_le_bytes(), vec![number as u8; 7000]);
        let put = put(&key, number, &value);
        all.apply(&put);
        let position = log.append(&put, true);
        assert!(log.wait(position, LONG));
        if number % 10 == 0 {
            let mut checkpoint = CheckpointWriter::begin(&log).expect("begun");
            for (key, (version, value)) in &all.0 {
                checkpoint.push(&super::put(key, *version, value)).expect("pushed");
            }
            checkpoint.finish().expect("finished");
        }
        let (found, _) = read(&(Arc::new(disk.after_crash(number)) as Arc<dyn LogDisk>)).expect("sound");
        assert_eq!(found, all, "{number} changes");
    }
}

#[test]
fn a_log_that_ends_before_the_position_of_its_checkpoint_is_damaged() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(Arc::new(disk.clone()), 64 << 10);
    let position = log.append(&put(b"k", 1, b"v"), true);
    assert!(log.wait(position, LONG));
    let mut checkpoint = CheckpointWriter::begin(&log).expect("begun");
    checkpoint.push(&put(b"k", 1, b"v")).expect("pushed");
    checkpoint.finish().expect("finished");
    drop(log);
    let read_now = || read(&(Arc::new(disk.clone()) as Arc<dyn LogDisk>));
    read_now().expect("sound");
    disk.damage("log-0000000000000001", |bytes| bytes[4096..].fill(0));
    let why = read_now().expect_err("the frames that the checkpoint relies on are gone");
    assert!(matches!(why, LogError::Damaged { offset: 4096, .. }), "{why}");
}

#[test]
fn a_checkpoint_that_fails_leaves_no_file() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(Arc::new(disk.clone()), 64 << 10);
    let position = log.append(&put(b"k", 1, b"v"), true);
    assert!(log.wait(position, LONG));
    let is_there = || {
        let names = disk.list().expect("names");
        names.iter().any(|name| name.contains("checkpoint-"))
    };
    // The spare segment is whole, so nothing else needs room.
    while disk.used() < 2 * (64 << 10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let used = disk.used();
    disk.set_capacity(Some(used));
    CheckpointWriter::begin(&log).map(drop).expect_err("there is no room for its header");
    assert!(!is_there());
    disk.set_capacity(Some(used + 4096));
    let mut checkpoint = CheckpointWriter::begin(&log).expect("begun");
    checkpoint.push(&put(b"k", 1, b"v")).expect("gathered");
    assert!(is_there());
    checkpoint.finish().expect_err("there is no room for its frame");
    assert!(!is_there());
    disk.set_capacity(None);
    CheckpointWriter::begin(&log).expect("begun").finish().expect("finished");
    assert!(is_there());
}

/// A disk whose frames from an offset on are there only at the second look, as a running server writes them.
struct GrowingDisk(SimulatedDisk, u64);

struct GrowingFile {
    file: Box<dyn LogFile>,
    hidden_at: u64,
    looks: AtomicU64,
}

impl LogDisk for GrowingDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        self.0.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(GrowingFile { file: self.0.open(name)?, hidden_at: self.1, looks: AtomicU64::new(0) }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.0.sync_folder()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }

    fn path_of(&self, name: &str) -> String {
        self.0.path_of(name)
    }
}

impl LogFile for GrowingFile {
    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if offset == self.hidden_at && self.looks.fetch_add(1, Ordering::SeqCst) == 0 {
            into.fill(0);
            return Ok(into.len());
        }
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[test]
fn a_log_that_is_read_while_a_server_writes_it_is_not_damaged() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(Arc::new(disk.clone()), 64 << 10);
    for version in 1..5 {
        let position = log.append(&put(b"k", version, b"v"), true);
        assert!(log.wait(position, LONG));
    }
    drop(log);
    let (model, end) = read(&(Arc::new(GrowingDisk(disk, 2 * 4096)) as Arc<dyn LogDisk>)).expect("sound");
    assert_eq!((model.0.len(), end.summary.changes), (1, 4));
}

#[test]
fn a_spare_segment_that_has_no_room_is_not_begun() {
    let disk = SimulatedDisk::default();
    let (bytes, mut pause) = (256 << 10, SPARE_RETRY);
    disk.set_capacity(Some(bytes + SPARE_MARGIN_BYTES - 1));
    let why = make_spare_with_margin(&disk, 1, bytes, &mut pause).map(drop).expect_err("it would leave too little");
    assert!(why.is_full() && why.to_string().contains("simulated/"), "{why}");
    assert_eq!((disk.operations(), pause), (0, SPARE_RETRY));
    disk.set_capacity(Some(bytes + SPARE_MARGIN_BYTES));
    // The disk says that it has room, and has none: the pauses grow.
    for longer in [SPARE_RETRY * 2, SPARE_RETRY * 4] {
        disk.fail_after(1, DiskFault::Error);
        make_spare_with_margin(&disk, 1, bytes, &mut pause).map(drop).expect_err("it fails");
        assert_eq!((pause, disk.used()), (longer, 0));
    }
    make_spare_with_margin(&disk, 1, bytes, &mut pause).map(drop).expect("made");
    assert_eq!((pause, disk.used()), (SPARE_RETRY, bytes));
}

#[test]
fn a_log_of_many_segments_is_read_with_few_open_files() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(Arc::new(disk.clone()), 32 << 10);
    for version in 1..100 {
        let position = log.append(&put(b"k", version, &[7; 7000]), true);
        assert!(log.wait(position, LONG));
    }
    drop(log);
    let disk = disk.after_kill();
    let (_, end) = read(&(Arc::new(disk.clone()) as Arc<dyn LogDisk>)).expect("sound");
    assert!(end.segments.len() > 20 && disk.most_handles() < 5, "{} at once", disk.most_handles());
}

#[test]
fn while_one_write_takes_too_long_changes_are_refused_and_what_waits_is_uncertain() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(Arc::new(disk.clone()), 64 << 10);
    let (gate, calls) = (disk.gate(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&calls);
    log.on_progress(Box::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    let long_write = gate.lock();
    let position = log.append(&put(b"k", 1, b"v"), false);
    log.request(position);
    log.look_for_stall();
    assert_eq!(log.state_of(position), PositionState::Waits);
    while log.state_of(position) == PositionState::Waits {
        // Until the writer's thread has it in its hands.
        log.look_for_stall_of(Duration::ZERO);
    }
    assert_eq!(log.state_of(position), PositionState::Uncertain);
    assert!(calls.load(Ordering::SeqCst) > 0, "those who wait are told");
    assert!(matches!(log.admit(1, 1), Err(LogRefusal::Stalled)));
    drop(long_write);
    assert!(log.wait(position, LONG));
    assert_eq!(log.state_of(position), PositionState::OnDisk);
    log.look_for_stall_of(Duration::ZERO);
    log.admit(1, 1).map(drop).expect("the disk works again");
}

#[test]
fn a_position_that_somebody_waits_for_is_not_gathered_for_long() {
    let disk = SimulatedDisk::default();
    let (log, _) = open(Arc::new(disk.clone()), 64 << 10);
    for version in 1..200 {
        let position = log.append(&put(b"k", version, b"v"), false);
        log.request(position);
        while log.state_of(position) == PositionState::Waits {
            std::thread::yield_now();
        }
        assert_eq!(log.state_of(position), PositionState::OnDisk);
    }
    // Each had a write of its own: none has waited for others to come.
    assert!(disk.operations() > 2 * 199, "{} operations", disk.operations());
}

#[test]
fn the_thread_that_writes_is_set_up_before_its_first_write() {
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    let writer_begins: fn() = || {
        let thread = std::thread::current();
        assert_eq!(thread.name(), Some("log-writer"), "no other thread is");
        BEGUN.fetch_add(1, Ordering::SeqCst);
    };
    let (log, _) = open_with(Arc::new(SimulatedDisk::default()), LogOptions { writer_begins, ..LogOptions::default() });
    for version in 1..5 {
        assert!(log.wait(log.append(&put(b"k", version, b"v"), true), LONG));
        assert_eq!(BEGUN.load(Ordering::SeqCst), 1);
    }
}
