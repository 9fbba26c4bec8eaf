//! Promise: of a log that has ended all changes behind a position are shown once, in order, or it is said from which
//! position on they are; and a replica keeps what its owner's triggers need, also where a checkpoint needs less.

use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::replicas::replica_on;
use super::tail::{SEGMENT, Shown, append, open};
use crate::disk::LogDisk;
use crate::disk::simulated::SimulatedDisk;
use crate::limits::GATHER_TIME;
use crate::replica_suite::{SourceLog, ship};
use crate::{LogError, LogOptions, LogReplica, LogShipper, ReplicaFolder, ReplicaState, read_behind};

/// What is shown behind a position, and from where on it is all.
fn behind(disk: &SimulatedDisk, position: u64) -> Result<(u64, Vec<Shown>), LogError> {
    let (disk, mut shown): (Arc<dyn LogDisk>, _) = (Arc::new(disk.clone()), Vec::new());
    let from = read_behind(&disk, position, &mut |end, change| {
        shown.push((end, change.key.to_vec(), change.value.to_vec()));
        Ok(())
    })?;
    Ok((from, shown))
}

#[test]
fn from_every_position_of_a_log_that_has_ended_all_changes_behind_it_are_shown_once() {
    let (mut disk, mut random) = (SimulatedDisk::default(), SmallRng::seed_from_u64(4));
    let mut written = Vec::new();
    assert_eq!(behind(&disk, 7), Ok((7, Vec::new())), "there is none yet");
    for _server in 0..4 {
        let log = open(&disk, u64::MAX);
        for _ in 0..40 {
            append(&log, &mut random, &mut written);
        }
        log.close();
        // Each goes on in another segment, perhaps before the last one's end.
        disk = disk.after_kill();
        let positions = written.iter().map(|(end, ..)| *end).step_by(5).chain([0, written[written.len() - 1].0]);
        for position in positions {
            let expected: Vec<Shown> = written.iter().filter(|(end, ..)| *end > position).cloned().collect();
            let (from, shown) = behind(&disk, position).expect("sound");
            assert_eq!(from, position);
            assert!(shown == expected, "from {position}: {} of {}", shown.len(), expected.len());
        }
    }
    let refused = read_behind(&(Arc::new(disk.clone()) as Arc<dyn LogDisk>), 0, &mut |_, change| {
        Err(LogError::unusable("x", &format!("{} bytes", change.key.len())))
    });
    assert!(refused.is_err(), "what it is shown to may end it");
    disk.damage("log-0000000000000002", |bytes| bytes[4_196] ^= 8);
    assert!(matches!(behind(&disk, 0), Err(LogError::Damaged { .. })));
    let last = written[written.len() - 1].0;
    assert_eq!(behind(&disk, last), Ok((last, Vec::new())), "what is before is not looked at");
}

const OPTIONS: LogOptions = LogOptions {
    segment_bytes: SEGMENT,
    feed_bytes: 0,
    retained_bytes: 64 << 20,
    gather_time: GATHER_TIME,
    writer_begins: || {},
};

/// Sends what there is, and removes what is not needed any more.
fn ship_and_trim(shipper: &mut LogShipper, replica: &mut ReplicaFolder) {
    ship(shipper, replica, 1).expect("it takes all");
    if let Some((checkpoint, segment)) = shipper.take_trim() {
        replica.trim(1, checkpoint, segment).expect("it has what is to stay");
    }
}

/// The position from which on a replica can be read, if it is asked for another one.
fn readable_from(disk: &SimulatedDisk, wanted: u64, source: &SourceLog) -> u64 {
    let (from, shown) = behind(disk, wanted).expect("sound");
    let ends: Vec<u64> = shown.iter().map(|(end, ..)| *end).collect();
    let expected: Vec<u64> = source.ends.iter().filter(|end| **end > from).copied().collect();
    assert_eq!(ends, expected);
    from
}

#[test]
fn a_replica_keeps_what_triggers_need_and_no_more() {
    let (mut source, disk) = (SourceLog::new(OPTIONS), SimulatedDisk::default());
    let mut replica = replica_on(&disk).expect("an empty folder");
    let mut shipper = LogShipper::begin(&source.log, &ReplicaState::default()).expect("sound").expect("it is new");
    (0..200).for_each(|_| source.write());
    let needed = source.ends[60];
    source.log.retain_from(Some(needed));
    for _ in 0..3 {
        ship_and_trim(&mut shipper, &mut replica);
        source.checkpoint();
        ship_and_trim(&mut shipper, &mut replica);
        assert_eq!(readable_from(&disk, needed, &source), needed);
        (0..50).for_each(|_| source.write());
    }
    // A new one gets it as well, and one that goes on with what there is.
    source.restart();
    source.log.retain_from(Some(needed));
    let state = replica.state(1).expect("open");
    let mut again = LogShipper::begin(&source.log, &state).expect("sound").expect("it goes on");
    let other = SimulatedDisk::default();
    let mut another = replica_on(&other).expect("an empty folder");
    let mut new = LogShipper::begin(&source.log, &ReplicaState::default()).expect("sound").expect("it is new");
    for _ in 0..2 {
        for (shipper, replica, disk) in [(&mut again, &mut replica, &disk), (&mut new, &mut another, &other)] {
            ship_and_trim(shipper, replica);
            assert_eq!(readable_from(disk, needed, &source), needed);
        }
        source.checkpoint();
    }
    // What is not needed any more goes with the next checkpoint, and it is said from where on it is all.
    let before = replica.bytes();
    source.log.retain_from(Some(source.log.end()));
    source.checkpoint();
    ship_and_trim(&mut again, &mut replica);
    assert!(readable_from(&disk, needed, &source) > needed && replica.bytes() < before);
}

#[test]
fn a_replica_that_has_begun_later_is_asked_for_nothing_that_it_has_not() {
    let (mut source, disk) = (SourceLog::new(OPTIONS), SimulatedDisk::default());
    // Nothing is removed at the owner.
    source.log.keep_for_copies(Some(0));
    (0..200).for_each(|_| source.write());
    source.checkpoint();
    (0..20).for_each(|_| source.write());
    // As earlier versions begin: with what the checkpoint needs.
    let mut replica = replica_on(&disk).expect("an empty folder");
    let mut shipper = LogShipper::begin(&source.log, &ReplicaState::default()).expect("sound").expect("it is new");
    ship_and_trim(&mut shipper, &mut replica);
    source.log.retain_from(Some(0));
    let begun = readable_from(&disk, 0, &source);
    assert!(begun > 0);
    (0..200).for_each(|_| source.write());
    source.checkpoint();
    ship_and_trim(&mut shipper, &mut replica);
    assert_eq!(readable_from(&disk, 0, &source), begun);
    assert!(replica.read(&mut |_, _| Ok(())).is_ok());
}
