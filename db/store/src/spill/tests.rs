//! Spill files on a simulated disk: what comes back is what was written, or an error.

use super::AppendCause;
use super::file::{SpillFile, WriteOutcome};
use super::simulated::{SimulatedSpillDevice, SpillFault};
use super::{BLOCK_BYTES, SpillAddress, SpillReadError, SpillRecord, SpillRefusal};
use crate::limits::SPILL_WAITING_CHUNKS;

const SEGMENT_BYTES: u64 = 16 << 20;

fn record<'r>(number: u64, key: &'r [u8], value: &'r [u8]) -> SpillRecord<'r> {
    SpillRecord { hash: number, version: number + 1, expires_at_ms: 0, flags: number as u32, key, value }
}

fn file(segments: u64) -> (SpillFile, SimulatedSpillDevice) {
    let device = SimulatedSpillDevice::default();
    (SpillFile::new(Box::new(device.clone()), 9, segments * SEGMENT_BYTES), device)
}

/// Values of all kinds of lengths: shared blocks, one block, several.
fn value(number: u64) -> Vec<u8> {
    let len = [3, 90, 700, 4_000, 4_100, 20_000, 150_000][number as usize % 7] + number as usize % 50;
    vec![number as u8; len]
}

fn write_all(file: &SpillFile) {
    while matches!(file.write_waiting(), WriteOutcome::Written(_)) {}
}

/// Writes so many records; returns their addresses.
fn fill(file: &SpillFile, numbers: std::ops::Range<u64>) -> Vec<(u64, SpillAddress)> {
    let added = numbers.map(|number| {
        let (address, is_full) =
            file.append(&record(number, &number.to_le_bytes(), &value(number)), AppendCause::Leaves).expect("room");
        if is_full {
            write_all(file);
        }
        (number, address)
    });
    added.collect()
}

/// Returns whether a record reads as it was written; what else it reads as is an error, never other bytes.
fn reads(file: &SpillFile, number: u64, address: SpillAddress) -> Result<(), SpillReadError> {
    let read = file.read(address, number, number + 1)?;
    let SpillRecord { key, value: found, flags, .. } = read.record();
    assert_eq!((key, found, flags), (&number.to_le_bytes()[..], &value(number)[..], number as u32));
    Ok(())
}

#[test]
fn records_of_all_lengths_come_back_from_memory_and_from_the_disk() {
    let (file, device) = file(40);
    let added = fill(&file, 0..1_000);
    let mut from_memory = 0;
    for (number, address) in &added {
        let before = device.counts().0;
        reads(&file, *number, *address).expect("it is there");
        let reads = device.counts().0 - before;
        assert!(reads <= 1, "one read a record");
        from_memory += u64::from(reads == 0);
    }
    assert!((1..200).contains(&from_memory), "{from_memory} had not been written");
    let wrong = file.read(added[0].1, 77, 78).map(drop);
    assert_eq!(wrong, Err(SpillReadError::Missing));
}

#[test]
fn a_disk_that_lies_is_found_out() {
    for fault in [
        SpillFault::Torn,
        SpillFault::MisdirectedWrite,
        SpillFault::MisdirectedRead,
        SpillFault::Lost,
        SpillFault::ReadError,
    ] {
        let (file, device) = file(40);
        device.set_fault(Some(fault));
        let added = fill(&file, 0..700);
        let failed = added.iter().filter(|(number, address)| reads(&file, *number, *address).is_err()).count();
        assert!(failed > 100, "{fault:?}: {failed} of them cannot be read");
        device.set_fault(None);
        let failed = added.iter().filter(|(number, address)| reads(&file, *number, *address).is_err()).count();
        let is_of_reads = matches!(fault, SpillFault::MisdirectedRead | SpillFault::ReadError);
        assert_eq!(failed == 0, is_of_reads, "{fault:?}: {failed}");
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found_or_harms_nothing() {
    let (file, device) = file(40);
    let added = fill(&file, 0..200);
    let intact =
        |file: &SpillFile| added.iter().filter(|(number, address)| reads(file, *number, *address).is_ok()).count();
    assert_eq!(intact(&file), added.len());
    let mut found = 0;
    for at in (0..device.len()).step_by(device.len() / 200) {
        device.flip(at, 0x10);
        // `reads` compares whatever comes back.
        found += usize::from(intact(&file) < added.len());
        device.flip(at, 0x10);
    }
    assert!(found > 20, "{found}");
    assert_eq!(intact(&file), added.len());
}

#[test]
fn while_the_disk_takes_nothing_records_stay_readable_and_more_are_refused() {
    for (fault, refusal) in
        [(SpillFault::NoSpace, SpillRefusal::NoSpace), (SpillFault::WriteError, SpillRefusal::Failed)]
    {
        let (file, device) = file(40);
        device.set_fault(Some(fault));
        let large = vec![7; BLOCK_BYTES * 3];
        let (mut added, mut number) = (Vec::new(), 0);
        let refused = loop {
            match file.append(&record(number, b"key", &large), AppendCause::Leaves) {
                Ok((address, _)) => added.push(address),
                Err(refused) => break refused,
            }
            assert!(matches!(file.write_waiting(), WriteOutcome::Failed(_) | WriteOutcome::Idle));
            number += 1;
        };
        assert_eq!((refused, file.failure()), (refusal, Some(refusal)));
        assert!(added.len() > SPILL_WAITING_CHUNKS * 10);
        for (number, address) in (0..).zip(&added) {
            assert!(file.read(*address, number, number + 1).is_ok(), "it is in memory");
        }
        device.set_fault(None);
        write_all(&file);
        assert_eq!(file.failure(), None);
        assert!(file.append(&record(number, b"key", &large), AppendCause::Leaves).is_ok(), "it goes on by itself");
    }
}

#[test]
fn a_disk_that_is_only_slow_says_so() {
    let (file, _device) = file(40);
    let large = vec![7; BLOCK_BYTES * 3];
    let refused = (0..).find_map(|number| file.append(&record(number, b"key", &large), AppendCause::Leaves).err());
    assert_eq!(refused, Some(SpillRefusal::Slow));
    write_all(&file);
    assert!(file.append(&record(0, b"key", &large), AppendCause::Leaves).is_ok());
}

#[test]
fn room_is_used_again_and_the_file_keeps_within_its_limit() {
    let (file, device) = file(4);
    let large = vec![7; 150_000];
    let mut live: Vec<(u64, SpillAddress)> = Vec::new();
    for number in 0..2_000 {
        let (address, is_full) = file.append(&record(number, b"key", &large), AppendCause::Leaves).expect("room");
        if is_full {
            write_all(&file);
        }
        live.push((number, address));
        if live.len() > 100 {
            // Not in the order of their coming.
            let (_, gone) = live.swap_remove(number as usize * 7 % 100);
            file.release(gone);
        }
        while let Some(segment) = file.sparse_segment() {
            let mut moves = Vec::new();
            let sound = file.visit_segment(segment, &mut |address, record| {
                if let Some(at) = live.iter().position(|(number, of)| *number == record.hash && *of == address) {
                    moves.push(at);
                    let (to, is_full) = file.append(record, AppendCause::Copied).expect("room for copies");
                    if is_full {
                        write_all(&file);
                    }
                    live[at].1 = to;
                    file.release(address);
                }
                true
            });
            assert_eq!(sound, Ok(()));
        }
    }
    assert!(
        device.len() as u64 <= 4 * SEGMENT_BYTES && device.counts().2 > 10 * SEGMENT_BYTES,
        "{:?}",
        device.counts()
    );
    assert_eq!(file.usage().records, live.len() as u64);
    for (number, address) in &live {
        let read = file.read(*address, *number, number + 1).expect("it is there");
        assert_eq!(read.record().value, large);
    }
}

#[test]
fn a_full_file_refuses_more_until_something_goes() {
    let (file, _device) = file(1);
    let large = vec![7; 150_000];
    let mut added = Vec::new();
    let refused = (0..).find_map(|number| {
        let appended = file.append(&record(number, b"key", &large), AppendCause::Leaves);
        write_all(&file);
        appended.map(|(address, _)| added.push(address)).err()
    });
    assert_eq!(refused, Some(SpillRefusal::Full));
    assert!(added.len() > 90, "{}", added.len());
    added.drain(..).for_each(|address| file.release(address));
    assert_eq!(file.usage().records, 0);
}
