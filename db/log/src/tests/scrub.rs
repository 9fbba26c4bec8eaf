//! Files that are read again while they are used: what a disk has changed is found, whichever byte it is, and nothing
//! else is.

use std::sync::Arc;
use std::time::Duration;

use super::put;
use super::replicas::{replica_on, small_source};
use crate::disk::LogDisk;
use crate::disk::simulated::{DiskFault, SimulatedDisk};
use crate::limits::{BLOCK_BYTES, REPLICA_ZERO_BYTES};
use crate::replica_suite::{SourceLog, ship};
use crate::{
    ChangeLog, LogError, LogOptions, LogReplica, LogShipper, RecoveredLog, ReplicaError, ReplicaFolder, ReplicaState,
    ScrubDamage, ScrubStep, ScrubbedFile,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Reads a file again; returns the bytes that are sound.
fn scrub(disk: &dyn LogDisk, file: &ScrubbedFile) -> Result<u64, ScrubDamage> {
    let (mut opened, mut sound) = (file.open(disk).expect("files can be opened")?, 0);
    loop {
        match opened.step() {
            ScrubStep::Sound(bytes) => sound += bytes,
            ScrubStep::End => return Ok(sound),
            ScrubStep::Damage(damage) => {
                // The second look finds it, too.
                let again = file.open_again(disk, &damage).expect("it can be opened").map(|mut again| again.step());
                assert!(again.as_ref().is_ok_and(|step| *step == ScrubStep::Damage(damage.clone())), "{again:?}");
                return Err(damage);
            }
        }
    }
}

/// Reads a file again, also behind damage of its padding; returns all that is found.
fn scrub_on(disk: &dyn LogDisk, file: &ScrubbedFile) -> Vec<ScrubDamage> {
    let (mut opened, mut found) = (file.open(disk).unwrap().unwrap(), Vec::new());
    loop {
        match opened.step() {
            ScrubStep::Sound(_) => {}
            ScrubStep::End => return found,
            ScrubStep::Damage(damage) => {
                let is_over = !damage.is_padding;
                found.push(damage);
                if is_over {
                    return found;
                }
            }
        }
    }
}

/// A small replica with a checkpoint, and its disk.
fn small_replica() -> (SimulatedDisk, ReplicaFolder, SourceLog) {
    let (disk, mut source) = (SimulatedDisk::default(), small_source());
    let mut replica = replica_on(&disk).expect("it is new");
    (0..2).for_each(|_| source.write());
    source.checkpoint();
    source.write();
    let mut shipper = LogShipper::begin(&source.log, &ReplicaState::default()).unwrap().expect("it is empty");
    ship(&mut shipper, &mut replica, 1).unwrap();
    (disk, replica, source)
}

#[test]
fn each_byte_of_a_copy_that_a_disk_changes_is_found() {
    let (disk, replica, _source) = small_replica();
    let files = replica.scrubbed_files();
    assert!(files.len() >= 2, "a segment and a checkpoint");
    assert_eq!(files.iter().map(|file| scrub(&disk, file)).sum::<Result<u64, _>>(), Ok(replica.bytes()));
    let read = || RecoveredLog::read(Arc::new(disk.clone()), LogOptions::default(), &mut |_, _| Ok(()));
    let whole = read().unwrap().summary();
    let (mut flipped, mut of_padding) = (0, 0);
    for file in &files {
        let name = file.name();
        // Behind its frames a segment has zeros, which are for the next ones.
        let end = scrub(&disk, file).unwrap() as usize;
        for byte in 0..end {
            disk.damage(&name, |content| content[byte] ^= 1 << (byte % 8));
            let found = scrub(&disk, file).expect_err("it is damaged");
            assert!(found.offset <= byte as u64 && found.file.contains(&name), "byte {byte}: {found}");
            if found.is_padding {
                of_padding += 1;
                // All is there; some of them are enough to see it.
                let is_read = byte % 37 != 0 || read().is_ok_and(|read| read.summary() == whole);
                assert!(is_read, "byte {byte} of {name}");
                assert_eq!(scrub_on(&disk, file), [found], "and what is behind it is sound");
            }
            disk.damage(&name, |content| content[byte] ^= 1 << (byte % 8));
            flipped += 1;
        }
        // What is cut off, and what is gone.
        let whole = disk.content(&name);
        disk.damage(&name, |content| content.truncate(end - 1));
        assert!(scrub(&disk, file).is_err());
        disk.damage(&name, |content| *content = whole.clone());
        disk.rename(&name, "elsewhere").unwrap();
        assert!(scrub(&disk, file).unwrap_err().what.contains("cannot be opened"));
        disk.rename("elsewhere", &name).unwrap();
        assert!(scrub(&disk, file).is_ok());
    }
    assert!(flipped > 10_000 && of_padding > 5_000 && of_padding < flipped - 1_000, "{flipped}, {of_padding}");
    assert_eq!(replica.check_promise(), Ok(()));
    for byte in 0..disk.content("promise").len() {
        disk.damage("promise", |content| content[byte] ^= 0x10);
        assert!(replica.check_promise().is_err(), "byte {byte}");
        disk.damage("promise", |content| content[byte] ^= 0x10);
    }
    disk.remove("promise").unwrap();
    assert!(replica.check_promise().is_err());
}

#[test]
fn a_file_in_the_place_of_another_one_and_an_older_one_are_found() {
    let (disk, mut replica, mut source) = small_replica();
    let files = replica.scrubbed_files();
    let last = files.iter().rfind(|file| file.name().starts_with("log-")).unwrap().clone();
    let before = disk.content(&last.name());
    // The same file as it was before: what was confirmed since is not there.
    source.write();
    let state = replica.state(1).unwrap();
    let mut shipper = LogShipper::begin(&source.log, &state).unwrap().expect("it goes on");
    ship(&mut shipper, &mut replica, 1).unwrap();
    let now = replica.scrubbed_files().into_iter().find(|file| file.name() == last.name()).unwrap();
    assert!(scrub(&disk, &now).is_ok() && scrub(&disk, &last).is_ok(), "what is behind is not looked at");
    let sound = disk.content(&last.name());
    disk.damage(&last.name(), |content| *content = before);
    assert!(scrub(&disk, &now).is_err());
    disk.damage(&last.name(), |content| *content = sound);
    // A frame of another place: the last one, where the one before has to be.
    let end = scrub(&disk, &now).unwrap() as usize;
    disk.damage(&last.name(), |content| content.copy_within(end - 4_096.., end - 8_192));
    assert!(scrub(&disk, &now).is_err());
    // Of another log, and sound in itself.
    let (other, _replica, _source) = small_replica();
    disk.damage(&last.name(), |content| *content = other.content(&last.name()));
    assert!(scrub(&disk, &now).unwrap_err().what.contains("another file"));
    assert!(replica.has_file(&now));
}

#[test]
fn a_copy_whose_disk_is_full_is_not_damaged() {
    for fault in [None, Some(DiskFault::Error), Some(DiskFault::ShortWrite)] {
        let (disk, mut replica, mut source) = small_replica();
        let state = replica.state(1).unwrap();
        assert!(!replica.has_failed() && !replica.scrubbed_files().is_empty());
        match fault {
            None => disk.set_capacity(Some(disk.used())),
            Some(fault) => disk.fail_after(1, fault),
        }
        let mut shipper = LogShipper::begin(&source.log, &state).unwrap().expect("it goes on");
        // A full disk takes what the zeros of before have room for.
        let (mut bytes, mut ended) = (0, Ok(()));
        for _ in 0..2 * REPLICA_ZERO_BYTES / BLOCK_BYTES {
            source.write();
            bytes = replica.bytes();
            ended = ship(&mut shipper, &mut replica, 1).map(drop);
            if ended.is_err() {
                break;
            }
        }
        assert!(matches!(ended, Err(ReplicaError::Log(LogError::System { .. }))), "{ended:?}");
        assert_eq!(replica.bytes(), bytes, "it has no more than it had");
        // What is on such a disk is not known, and nothing of it is called damage.
        assert!(replica.has_failed() && replica.scrubbed_files().is_empty());
        disk.damage("promise", |content| content[20] ^= 1);
        assert_eq!((replica.check_promise(), replica.check_sealed()), (Ok(()), Ok(())));
    }
}

#[test]
fn what_a_start_needs_of_a_running_log_is_read_again_and_nothing_else() {
    let options =
        LogOptions { segment_bytes: 64 << 10, feed_bytes: 1 << 20, retained_bytes: 1 << 20, ..LogOptions::default() };
    let disk = SimulatedDisk::default();
    let start = |disk: &SimulatedDisk| -> Arc<ChangeLog> {
        RecoveredLog::read(Arc::new(disk.clone()), options, &mut |_, _| Ok(())).unwrap().start().unwrap()
    };
    let log = start(&disk);
    let write = |log: &Arc<ChangeLog>, number: u32| {
        let end = log.append(&put(&number.to_le_bytes(), u64::from(number) + 1, &[7; 9_000]), true);
        assert!(log.wait(end, PATIENCE));
    };
    let all_sound = |log: &ChangeLog, disk: &SimulatedDisk| {
        log.scrubbed_files().iter().for_each(|file| assert!(scrub(disk, file).is_ok(), "{file:?}"));
    };
    for number in 0..20 {
        write(&log, number);
        all_sound(&log, &disk);
    }
    let files = log.scrubbed_files();
    assert!(files.len() > 2, "{files:?}");
    // What is behind the last position that is known to be on the disk counts for nothing.
    let last = files.last().unwrap().name();
    disk.damage(&last, |content| *content.last_mut().unwrap() ^= 1);
    all_sound(&log, &disk);
    let first = files[0].clone();
    disk.damage(&first.name(), |content| content[5_000] ^= 1);
    let damage = scrub(&disk, &first).unwrap_err();
    assert_eq!(damage.offset, 4_096);
    assert!(log.needs_file(&first));
    // A checkpoint takes the place of what is damaged, and is read again itself.
    assert_eq!(log.checkpoint_bytes(), Ok(0), "there is none");
    let mut writer = crate::CheckpointWriter::begin(&log).unwrap();
    (0..20_u32).for_each(|number| {
        writer.push(&put(&number.to_le_bytes(), u64::from(number) + 1, b"of the checkpoint")).unwrap()
    });
    writer.finish().unwrap();
    assert!(!log.needs_file(&first), "though it stays for feeds");
    assert!(disk.list().unwrap().contains(&first.name()));
    write(&log, 20);
    let files = log.scrubbed_files();
    assert!(files[0].name().starts_with("checkpoint-"), "{files:?}");
    assert_eq!(log.checkpoint_bytes(), Ok(disk.content(&files[0].name()).len() as u64));
    all_sound(&log, &disk);
    disk.damage(&files[0].name(), |content| content[4_200] ^= 1);
    assert!(scrub(&disk, &files[0]).is_err() && log.needs_file(&files[0]));
    disk.damage(&files[0].name(), |content| content[4_200] ^= 1);
    // A start passes by what the checkpoint has made superfluous, though not even its header can be read.
    disk.damage(&first.name(), |content| content[20] ^= 1);
    // After a start, too, which writes its end again.
    log.close();
    let disk = disk.after_kill();
    let log = start(&disk);
    assert!(!disk.list().unwrap().contains(&first.name()));
    all_sound(&log, &disk);
    write(&log, 21);
    all_sound(&log, &disk);
}
