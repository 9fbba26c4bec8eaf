//! Replicas: what one has confirmed it has, whatever becomes of it, of its owner and of what is sent in between.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::put;
use crate::broken_rules::{ReplicaRule, break_replica_rule};
use crate::disk::simulated::{DiskFault, SimulatedDisk};
use crate::frame::FileKind;
use crate::memory_replica::MemoryReplica;
use crate::replica_format::{BatchItem, ReplicaPromise};
use crate::replica_suite::{ReplicaHost, SourceLog, conforms, ship, survives};
use crate::{
    ChangeLog, ChangeVisitor, LogError, LogOptions, LogReplica, LogShipper, RecoveredLog, ReplaySummary, ReplicaBatch,
    ReplicaError, ReplicaFolder, ReplicaState,
};

const OPTIONS: LogOptions = LogOptions {
    segment_bytes: 64 << 10,
    feed_bytes: 0,
    retained_bytes: 1 << 20,
    gather_time: crate::limits::GATHER_TIME,
    writer_begins: || {},
};
const PATIENCE: Duration = Duration::from_secs(60);
/// Runs of the suite by a seed, for each implementation.
const SUITE_RUNS: u64 = 150;
/// Runs in which a broken rule is found at the latest.
const BROKEN_RUNS: u64 = 150;

fn start_with(disk: &SimulatedDisk, options: LogOptions) -> Arc<ChangeLog> {
    let read = RecoveredLog::read(Arc::new(disk.clone()), options, &mut |_, _| Ok(())).expect("it is sound");
    read.start().expect("it starts")
}

/// A server's log in small segments.
pub(super) fn small_source() -> SourceLog {
    SourceLog::new(OPTIONS)
}

pub(super) fn replica_on(disk: &SimulatedDisk) -> Result<ReplicaFolder, LogError> {
    ReplicaFolder::open(Arc::new(disk.clone()))
}

/// The keys that a replica has.
fn keys(replica: &mut dyn LogReplica) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let visit = &mut |change: &crate::LoggedChange<'_>, _| {
        found.insert(u32::from_le_bytes(change.key.try_into().expect("a number")));
        Ok(())
    };
    replica.read(visit).expect("it can be read");
    found
}

/// Whether a replica has all changes up to a position.
fn check(replica: &mut dyn LogReplica, source: &SourceLog, held: u64) {
    let there = keys(replica);
    for (number, end) in source.ends.iter().enumerate() {
        assert!(*end > held || there.contains(&(number as u32)), "change {number} of {held} is missing");
    }
}

/// A folder as a replica, which a crash of the machine leaves with what was synced.
struct FolderHost {
    disk: SimulatedDisk,
    /// `None`: it could not be opened.
    replica: Arc<Mutex<Option<ReplicaFolder>>>,
}

/// A handle to it, as a connection to the server is one.
struct FolderHandle(Arc<Mutex<Option<ReplicaFolder>>>);

impl FolderHost {
    fn new() -> FolderHost {
        let disk = SimulatedDisk::default();
        let replica = Arc::new(Mutex::new(replica_on(&disk).ok()));
        FolderHost { disk, replica }
    }
}

impl FolderHandle {
    fn ask<T>(&self, ask: impl FnOnce(&mut ReplicaFolder) -> Result<T, ReplicaError>) -> Result<T, ReplicaError> {
        let mut replica = self.0.lock();
        replica.as_mut().map_or_else(|| Err(ReplicaError::Damaged("it cannot be opened".to_owned())), ask)
    }
}

impl LogReplica for FolderHandle {
    fn state(&mut self, epoch: u64) -> Result<ReplicaState, ReplicaError> {
        self.ask(|replica| replica.state(epoch))
    }

    fn append(&mut self, epoch: u64, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        self.ask(|replica| replica.append(epoch, batch))
    }

    fn trim(&mut self, epoch: u64, checkpoint: u64, segment: u64) -> Result<(), ReplicaError> {
        self.ask(|replica| replica.trim(epoch, checkpoint, segment))
    }

    fn seal(&mut self) -> Result<(), ReplicaError> {
        self.ask(LogReplica::seal)
    }

    fn read(&mut self, visit: &mut ChangeVisitor<'_>) -> Result<ReplaySummary, ReplicaError> {
        self.ask(|replica| replica.read(visit))
    }
}

impl ReplicaHost for FolderHost {
    fn open(&mut self) -> Result<Box<dyn LogReplica>, ReplicaError> {
        Ok(Box::new(FolderHandle(Arc::clone(&self.replica))))
    }

    fn crash(&mut self, seed: u64) {
        self.disk = self.disk.after_crash(seed);
        *self.replica.lock() = replica_on(&self.disk).ok();
    }
}

/// The replica in memory, which no crash takes anything from.
struct MemoryHost(MemoryReplica);

impl ReplicaHost for MemoryHost {
    fn open(&mut self) -> Result<Box<dyn LogReplica>, ReplicaError> {
        Ok(Box::new(self.0.clone()))
    }

    fn crash(&mut self, _seed: u64) {}
}

/// Makes a replica that no sender has asked yet.
type HostMaker = fn() -> Box<dyn ReplicaHost>;

const FOLDER: HostMaker = || Box::new(FolderHost::new());
const MEMORY: HostMaker = || Box::new(MemoryHost(MemoryReplica::default()));

/// The whole suite, with so many runs.
fn suite(make: HostMaker, runs: u64) -> Result<(), String> {
    conforms(&mut *make())?;
    (0..runs).try_for_each(|seed| survives(&mut *make(), seed).map_err(|why| format!("seed {seed}: {why}")))
}

#[test]
fn a_folder_and_a_replica_in_memory_do_what_every_replica_has_to_do() {
    for (name, make) in [("folder", FOLDER), ("memory", MEMORY)] {
        suite(make, SUITE_RUNS).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

#[test]
fn each_rule_of_replicas_that_is_broken_on_purpose_is_found() {
    let both = [
        ReplicaRule::EarlierEpochsAreRefused,
        ReplicaRule::SealsAreForGood,
        ReplicaRule::FramesFollow,
        ReplicaRule::ReplacementsEndNoEarlier,
        ReplicaRule::TrimsLeaveACheckpoint,
    ];
    let of_a_disk = [ReplicaRule::PromisesAreOnDisk, ReplicaRule::ConfirmedIsOnDisk];
    let runs = both.iter().map(|rule| (MEMORY, *rule)).chain(both.iter().chain(&of_a_disk).map(|rule| (FOLDER, *rule)));
    for (number, (make, rule)) in runs.enumerate() {
        break_replica_rule(Some(rule));
        let found = suite(make, BROKEN_RUNS);
        break_replica_rule(None);
        assert!(found.is_err(), "{rule:?} may be broken, and nothing notices ({number})");
    }
}

#[test]
fn a_late_question_takes_back_nothing_that_was_confirmed_since() {
    let mut source = small_source();
    source.write();
    let mut shipper = LogShipper::begin(&source.log, &ReplicaState::default()).unwrap().unwrap();
    let first = shipper.next_batch(true).unwrap();
    let disk = SimulatedDisk::default();
    let mut replica = replica_on(&disk).unwrap();
    replica.append(1, &first).unwrap();
    shipper.acknowledge();
    source.write();
    let held = ship(&mut shipper, &mut replica, 1).unwrap().expect("all is there");
    // It begins the segment, and names it: what it has is a part of what is there.
    assert!(matches!(replica.append(1, &first), Err(ReplicaError::Gap(_))));
    let state = replica.state(1).unwrap();
    assert_eq!(state.files.last().map(|file| file.position), Some(held));
    // The owner goes on all the same.
    let mut shipper = LogShipper::begin(&source.log, &state).unwrap().expect("it goes on");
    source.write();
    let held = ship(&mut shipper, &mut replica, 1).unwrap();
    assert_eq!(held, source.ends.last().copied());
    check(&mut replica, &source, held.expect("all is there"));
}

#[test]
fn a_seal_and_an_epoch_outlive_the_machine() {
    let disk = SimulatedDisk::default();
    replica_on(&disk).unwrap().append(9, &ReplicaBatch::default()).unwrap();
    let disk = disk.after_crash(1);
    let mut replica = replica_on(&disk).unwrap();
    assert_eq!(replica.state(8), Err(ReplicaError::OldEpoch(9)));
    replica.seal().unwrap();
    for seed in 0..20 {
        let mut replica = replica_on(&disk.after_crash(seed)).unwrap();
        assert_eq!(replica.append(10, &ReplicaBatch::default()), Err(ReplicaError::Sealed));
    }
}

/// A run of a source and a replica that meet faults; the replica's disk meets one at an operation. Returns the
/// operations of the replica's disk.
fn run(at: u64, fault: DiskFault, seed: u64) -> u64 {
    let mut source = small_source();
    let mut disk = SimulatedDisk::with_faults(&[(at, fault)]);
    let (mut held, mut epoch, mut operations) = (0, 1, 0);
    let (mut sealed_early, mut has_failed) = (false, false);
    let mut replica = replica_on(&disk);
    let mut shipper: Option<LogShipper> = None;
    for step in 0..40_u64 {
        source.write();
        if step % 13 == 9 {
            source.checkpoint();
        }
        if step == 16 || step == 31 {
            source.restart();
            (shipper, epoch) = (None, epoch + 1);
        }
        let sent = replica.as_mut().map_err(|error| ReplicaError::Log(error.clone())).and_then(|replica| {
            if shipper.is_none() {
                // `None`: on a busy machine the log may have removed what comes next. Another replica takes its place.
                let Some(begun) = LogShipper::begin(&source.log, &replica.state(epoch)?)? else { return Ok(None) };
                shipper = Some(begun);
            }
            ship(shipper.as_mut().expect("just made"), replica, epoch)
        });
        match sent {
            Ok(Some(confirmed)) => (held, has_failed) = (held.max(confirmed), false),
            Ok(None) => {
                assert!(shipper.is_none(), "all was sent");
                operations += disk.operations();
                disk = SimulatedDisk::default();
                replica = replica_on(&disk);
                (held, epoch, has_failed) = (0, epoch + 1, true);
            }
            Err(ReplicaError::Sealed) if sealed_early => break,
            // Its disk has failed: the machine stops, or only the process, and it is there again.
            Err(_) => {
                operations += disk.operations();
                disk = if fault == DiskFault::Crash { disk.after_crash(at * 7 + seed) } else { disk.after_kill() };
                replica = replica_on(&disk);
                if let Ok(replica) = &mut replica {
                    check(replica, &source, held);
                    sealed_early = replica.is_sealed();
                }
                (shipper, epoch, has_failed) = (None, epoch + 1, true);
            }
        }
    }
    operations += disk.operations();
    // The machine loses its power, and what was confirmed is read.
    let mut last = replica_on(&disk.after_crash(seed)).expect("it is sound");
    last.seal().expect("it is sealed");
    check(&mut last, &source, held);
    assert!(sealed_early || has_failed || held == *source.ends.last().expect("some"), "all was confirmed in the end");
    operations
}

#[test]
fn what_a_replica_has_confirmed_is_there_after_a_crash_at_every_operation() {
    let all = run(u64::MAX, DiskFault::Crash, 1);
    assert!(all > 80, "{all} operations");
    for at in 1..=all {
        run(at, DiskFault::Crash, at % 5);
    }
}

#[test]
fn a_write_or_sync_that_fails_confirms_nothing_and_a_later_success_proves_nothing() {
    for fault in [DiskFault::Error, DiskFault::ShortWrite] {
        for at in 1..90 {
            run(at, fault, at % 3);
        }
    }
}

#[test]
fn damage_of_a_replica_is_said_and_not_read() {
    let mut source = small_source();
    (0..60).for_each(|_| source.write());
    let disk = SimulatedDisk::default();
    let mut replica = replica_on(&disk).unwrap();
    let mut shipper = LogShipper::begin(&source.log, &ReplicaState::default()).unwrap().unwrap();
    ship(&mut shipper, &mut replica, 1).unwrap();
    replica.seal().unwrap();
    drop(replica);
    assert_eq!(replica_on(&disk).unwrap().check_sealed(), Ok(()));
    disk.damage("log-0000000000000001", |bytes| bytes[16_584] ^= 8);
    let mut replica = replica_on(&disk).unwrap();
    // What it has ends there, as one whose end was being written; it is seen that it had more.
    assert!(matches!(replica.check_sealed(), Err(LogError::Damaged { offset, .. }) if offset <= 16_584));
    let read = replica.read(&mut |_, _| Ok(()));
    assert!(matches!(read, Err(ReplicaError::Log(LogError::Damaged { .. }))), "{read:?}");
    disk.damage("promise", |bytes| bytes[20] ^= 1);
    assert!(matches!(replica_on(&disk).map(drop), Err(LogError::Damaged { .. })));
}

/// A copy with more than two batches in its last segment, not sealed, and where that ends.
fn long_replica() -> (SimulatedDisk, u64) {
    let log = start_with(&SimulatedDisk::default(), LogOptions { segment_bytes: 16 << 20, ..OPTIONS });
    for number in 0..400_u32 {
        let end = log.append(&put(&number.to_le_bytes(), u64::from(number) + 1, &[7; 9_000]), true);
        assert!(log.wait(end, PATIENCE));
    }
    let disk = SimulatedDisk::default();
    let mut replica = replica_on(&disk).unwrap();
    let mut shipper = LogShipper::begin(&log, &ReplicaState::default()).unwrap().unwrap();
    let held = ship(&mut shipper, &mut replica, 1).unwrap().expect("all is there");
    (disk, held)
}

#[test]
fn damage_before_the_last_batch_is_said_where_a_copy_is_opened_again_and_sealed() {
    let (disk, held) = long_replica();
    let file = "log-0000000000000001";
    let mut replica = replica_on(&disk).unwrap();
    assert_eq!(replica.state(1).unwrap().files[0].position, held, "it is sound");
    drop(replica);
    // What was confirmed long before the end is no end.
    disk.damage(file, |bytes| bytes[600_000] ^= 8);
    let opened = replica_on(&disk).map(drop);
    assert!(matches!(opened, Err(LogError::Damaged { .. })), "{opened:?}");
    disk.damage(file, |bytes| bytes[600_000] ^= 8);
    // Near the end it may be what was being written when the machine stopped: the copy tells that it has less.
    disk.damage(file, |bytes| {
        let at = bytes.len() - 35_000;
        bytes[at] ^= 8;
    });
    let mut replica = replica_on(&disk).unwrap();
    let position = replica.state(1).unwrap().files[0].position;
    assert!(position < held && position + 100_000 > held, "{position} of {held}");
    replica.seal().unwrap();
    assert!(keys(&mut replica).len() > 390);
}

#[test]
fn a_segment_before_the_last_one_and_a_checkpoint_are_whole() {
    let mut source = small_source();
    (0..60).for_each(|_| source.write());
    source.checkpoint();
    (0..60).for_each(|_| source.write());
    let disk = SimulatedDisk::default();
    let mut replica = replica_on(&disk).unwrap();
    let mut shipper = LogShipper::begin(&source.log, &ReplicaState::default()).unwrap().unwrap();
    ship(&mut shipper, &mut replica, 1).unwrap();
    let files = replica.state(1).unwrap().files;
    let segments = files.iter().filter(|file| file.header.kind == FileKind::Segment).count();
    assert!(segments > 1 && files.len() > segments, "{files:?}");
    drop(replica);
    for found in files.iter().filter(|file| file.header != files[segments - 1].header) {
        let name = found.header.kind.file_name(found.header.number);
        disk.damage(&name, |bytes| bytes[4_196] ^= 8);
        let opened = replica_on(&disk).map(drop);
        assert!(matches!(opened, Err(LogError::Damaged { .. })), "{name}: {opened:?}");
        disk.damage(&name, |bytes| bytes[4_196] ^= 8);
    }
    assert!(replica_on(&disk).is_ok());
}

#[test]
fn a_checkpoint_has_its_name_only_where_the_log_is_that_it_has_seen() {
    let mut source = SourceLog::new(LogOptions { retained_bytes: 16 << 20, ..OPTIONS });
    (0..10).for_each(|_| source.write());
    let mut replica = replica_on(&SimulatedDisk::default()).unwrap();
    let mut shipper = LogShipper::begin(&source.log, &ReplicaState::default()).unwrap().unwrap();
    ship(&mut shipper, &mut replica, 1).unwrap();
    source.log.keep_for_copies(Some(0));
    // More than fits into a batch, and then a checkpoint that has seen all of it.
    (0..1_200).for_each(|_| source.write());
    source.checkpoint();
    let seen = source.ends[source.ends.len() - 1];
    let mut is_published = false;
    loop {
        let batch = shipper.next_batch(true).unwrap();
        if batch.is_empty() {
            break;
        }
        replica.append(1, &batch).unwrap();
        shipper.acknowledge();
        let files: Vec<_> = replica.published().collect();
        let segments = files.iter().filter(|(header, ..)| header.kind == FileKind::Segment);
        let last = segments.map(|(.., position)| *position).max();
        is_published = files.iter().any(|(header, ..)| header.kind == FileKind::Checkpoint);
        assert!(!is_published || last >= Some(seen), "{files:?} of {seen}");
    }
    assert!(is_published);
}

#[test]
fn a_promise_is_what_it_was_and_another_format_is_refused() {
    let promise = ReplicaPromise { log_id: 0x0123_4567_89ab_cdef, epoch: 7, is_sealed: true };
    let golden = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/promise-format-1.bin")).unwrap();
    assert_eq!(promise.encode(), golden, "a format that has changed needs another number");
    assert_eq!(ReplicaPromise::decode(&golden, "x"), Ok(promise));
    let mut newer = golden.clone();
    newer[8] = 2;
    let crc = crc32c::crc32c(&newer[..60]).to_le_bytes();
    newer[60..].copy_from_slice(&crc);
    assert!(matches!(ReplicaPromise::decode(&newer, "x"), Err(LogError::Newer { format: 2, .. })));
    for at in 0..golden.len() * 8 {
        let mut flipped = golden.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        assert!(ReplicaPromise::decode(&flipped, "x").is_err(), "bit {at}");
    }
}

fn batch_of_all() -> Vec<u8> {
    let mut source = small_source();
    (0..4).for_each(|_| source.write());
    LogShipper::begin(&source.log, &ReplicaState::default()).unwrap().unwrap().next_batch(true).unwrap().encode()
}

#[test]
fn a_batch_that_changes_on_its_way_is_refused() {
    let sent = batch_of_all();
    let batch = ReplicaBatch::decode(&sent).unwrap();
    let items: Vec<_> = batch.items().map(|item| item.expect("well formed")).collect();
    assert!(matches!(items.first(), Some(BatchItem::Begin(_))) && items.len() > 4, "{items:?}");
    assert!(matches!(items.last(), Some(BatchItem::Publish(FileKind::Segment, 1))));
    for at in 0..sent.len() {
        let mut flipped = sent.clone();
        flipped[at] ^= 0x10;
        assert_eq!(ReplicaBatch::decode(&flipped), None, "byte {at}");
        assert_eq!(ReplicaBatch::decode(&sent[..at]), None, "cut off at {at}");
    }
}

proptest! {
    /// Whatever a batch with a right checksum says: nothing panics, and nothing is confirmed that cannot be read.
    #[test]
    fn any_batch_is_taken_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut sent = batch_of_all();
        let end = sent.len() - 4;
        for (at, byte) in changes {
            let at = 8 + at.index(end - 8);
            sent[at] = byte;
        }
        let crc = crc32c::crc32c(&sent[..end]).to_le_bytes();
        sent[end..].copy_from_slice(&crc);
        let batch = ReplicaBatch::decode(&sent).unwrap();
        let disk = SimulatedDisk::default();
        let mut replica = replica_on(&disk).unwrap();
        let _taken_or_refused = replica.append(1, &batch);
        drop(replica);
        let mut replica = replica_on(&disk.after_crash(3)).unwrap();
        prop_assert!(replica.read(&mut |_, _| Ok(())).is_ok());
    }
}
