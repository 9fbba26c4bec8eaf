//! The format: a golden file of it, and parsers that meet anything.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::{put, read};
use crate::change::{UnitParse, parse_unit};
use crate::disk::simulated::SimulatedDisk;
use crate::disk::{LogDisk, LogFile};
use crate::frame::{FileHeader, FileKind, FrameHeader, FramePlace};
use crate::{ChangeKind, LogError, LoggedChange, UnitBuilder};

/// A segment of format 1, as it was when that format was made.
const GOLDEN: &str = "golden/segment-format-1.bin";

fn golden_changes() -> Vec<LoggedChange<'static>> {
    let expiring = LoggedChange { expires_at_ms: 1_800_000_000_000, flags: 0xfeed, ..put(b"key", 3, b"value") };
    vec![
        LoggedChange::of_table(ChangeKind::MakeTable, 1, 0, b"shop/items"),
        put(b"apple", 1, b"3"),
        LoggedChange::of_table(ChangeKind::Clear, 1, 2, b""),
        expiring,
        put(b"gone", 4, &[0xff; 100]),
        LoggedChange::delete(1, 5, b"gone"),
        LoggedChange::of_table(ChangeKind::DropTable, 9, 0, b""),
    ]
}

fn segment() -> Vec<u8> {
    let (kind, log_id, number) = (FileKind::Segment, 0x0123_4567_89ab_cdef, 1);
    let mut bytes = FileHeader { kind, log_id, number, first_position: 0, made_ms: 1_700_000_000_000 }.encode();
    let (mut first, mut second) = (UnitBuilder::default(), UnitBuilder::default());
    golden_changes().iter().take(3).for_each(|change| first.push(change));
    golden_changes().iter().skip(3).for_each(|change| second.push(change));
    let (mut position, mut durable) = (0, 0);
    for payload in [first.encoded(), second.encoded(), b""] {
        let place = FramePlace { kind, log_id, number, offset: bytes.len() as u64 };
        let header = FrameHeader { position, durable, payload_bytes: payload.len() as u32, is_last: false };
        header.encode(&place, payload, &mut bytes);
        position += payload.len() as u64;
        durable = position;
    }
    bytes
}

fn disk_with(bytes: &[u8]) -> Arc<dyn LogDisk> {
    let disk = SimulatedDisk::default();
    let file: Box<dyn LogFile> = disk.create("log-0000000000000001").expect("a file");
    file.write_at(0, bytes).expect("written");
    Arc::new(disk)
}

#[test]
fn the_golden_segment_is_what_is_written_and_is_read_as_what_it_was() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, segment()).expect("written");
    }
    let golden = std::fs::read(&path).expect("the golden segment");
    assert!(golden == segment(), "the format has changed: give it a new number, and keep a reader of the old one");
    let mut seen = Vec::new();
    let end = crate::recovery::read_log(&disk_with(&golden), &mut |change, _| {
        seen.push(format!("{change:?}"));
        Ok(())
    })
    .expect("read");
    assert_eq!(seen, golden_changes().iter().map(|change| format!("{change:?}")).collect::<Vec<_>>());
    assert_eq!((end.summary.units, end.summary.changes, end.tail.len()), (2, 7, 0));
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let mut bytes = segment();
    bytes[8] = 2;
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    let refused = read(&disk_with(&bytes)).expect_err("refused");
    assert!(matches!(refused, LogError::Newer { format: 2, .. }), "{refused}");
}

#[test]
fn every_flipped_byte_that_matters_is_damage() {
    let bytes = segment();
    let (whole, _) = read(&disk_with(&bytes)).expect("sound");
    for at in (0..bytes.len()).filter(|at| bytes[*at] != 0 || at % 512 < 64) {
        for flip in [1, 0x80] {
            let mut flipped = bytes.clone();
            flipped[at] ^= flip;
            // Padding may change, and the last frame, which is empty, may be gone.
            match read(&disk_with(&flipped)) {
                Ok((model, _)) => assert_eq!(model, whole, "byte {at}"),
                Err(LogError::Damaged { .. }) => assert!(at < 3 * 4096, "byte {at}"),
                Err(error) => panic!("byte {at}: {error}"),
            }
        }
    }
}

proptest! {
    #[test]
    fn units_come_back_as_they_were(
        changes in proptest::collection::vec(
            (0usize..5, any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(),
             proptest::collection::vec(any::<u8>(), 0..40), proptest::collection::vec(any::<u8>(), 0..200)),
            1..20,
        ),
        cut in any::<proptest::sample::Index>(),
    ) {
        let kinds = [ChangeKind::Put, ChangeKind::Delete, ChangeKind::Clear, ChangeKind::MakeTable, ChangeKind::DropTable];
        let changes: Vec<_> = changes
            .iter()
            .map(|(kind, table, version, expires_at_ms, flags, key, value)| LoggedChange {
                kind: kinds[*kind], table: *table, version: *version, expires_at_ms: *expires_at_ms, flags: *flags,
                key, value,
            })
            .collect();
        let mut unit = UnitBuilder::default();
        changes.iter().for_each(|change| unit.push(change));
        let bytes = unit.encoded().to_vec();
        prop_assert_eq!(parse_unit(&bytes), UnitParse::Unit(changes, bytes.len()));
        prop_assert_eq!(parse_unit(&bytes[..cut.index(bytes.len())]), UnitParse::Incomplete);
    }

    #[test]
    fn anything_is_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _unit = parse_unit(&bytes);
        let _header = FileHeader::decode(&bytes, FileKind::Checkpoint, 1, "f");
        let place = FramePlace { kind: FileKind::Segment, log_id: 1, number: 1, offset: 0 };
        let _frame = FrameHeader::decode(&bytes, &place);
        let _intact = FrameHeader::is_intact(&bytes, FileKind::Segment);
    }

    /// A segment in which anything was overwritten is read as far as it is sound, or is damage.
    #[test]
    fn an_overwritten_segment_is_never_read_as_something_else(
        at in 0usize..16_384,
        bytes in proptest::collection::vec(any::<u8>(), 1..64),
    ) {
        let mut changed = segment();
        let end = (at + bytes.len()).min(changed.len());
        changed[at..end].copy_from_slice(&bytes[..end - at]);
        let mut seen = Vec::new();
        let read = crate::recovery::read_log(&disk_with(&changed), &mut |change, _| {
            seen.push(format!("{change:?}"));
            Ok(())
        });
        let all: Vec<_> = golden_changes().iter().map(|change| format!("{change:?}")).collect();
        prop_assert!(all.starts_with(&seen));
        prop_assert!(read.is_err() || seen.len() == all.len() || seen.len() == 3);
    }
}
