//! The format: a golden file of it, and parsers that meet anything.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::{put, read};
use crate::change::{UnitParse, parse_unit};
use crate::disk::simulated::SimulatedDisk;
use crate::disk::{LogDisk, LogFile};
use crate::frame::{FORMAT, FileHeader, FileKind, FrameHeader, FramePlace, OLDEST_FORMAT};
use crate::{ChangeKind, LogError, LoggedChange, UnitBuilder};

/// Files of each format, as they were when it was made: those of the last one are what is written, and those of the one
/// before are read still.
const GOLDEN: [(&str, u32, FileKind); 4] = [
    ("golden/segment-format-1.bin", 1, FileKind::Segment),
    ("golden/checkpoint-format-1.bin", 1, FileKind::Checkpoint),
    ("golden/segment-format-2.bin", 2, FileKind::Segment),
    ("golden/checkpoint-format-2.bin", 2, FileKind::Checkpoint),
];

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
    file_as(FORMAT, FileKind::Segment)
}

/// A file of three frames: a unit each, and an empty one.
fn file_as(format: u32, kind: FileKind) -> Vec<u8> {
    let (log_id, number) = (0x0123_4567_89ab_cdef, 1);
    let header = FileHeader { format, kind, log_id, number, first_position: 0, made_ms: 1_700_000_000_000 };
    let mut bytes = header.encode();
    let (mut first, mut second) = (UnitBuilder::default(), UnitBuilder::default());
    golden_changes().iter().take(3).for_each(|change| first.push(change));
    golden_changes().iter().skip(3).for_each(|change| second.push(change));
    let (mut position, mut durable, is_checkpoint) = (0, 0, kind == FileKind::Checkpoint);
    for payload in [first.encoded(), second.encoded(), b""] {
        let place = FramePlace { kind, log_id, number, offset: bytes.len() as u64 };
        let (payload_bytes, begins_unit) = (payload.len() as u32, !payload.is_empty());
        let is_last = is_checkpoint && payload.is_empty();
        let durable_then = match (is_checkpoint, is_last, format) {
            (false, ..) => durable,
            (true, true, 2) => 0x1234,
            _ => 0,
        };
        let header = FrameHeader { position, durable: durable_then, payload_bytes, begins_unit, age: 7, is_last };
        header.encode_as(format, &place, payload, &mut bytes);
        position += payload.len() as u64;
        durable = position;
    }
    bytes
}

fn disk_with(bytes: &[u8]) -> Arc<dyn LogDisk> {
    disk_with_files(&[("log-0000000000000001", bytes)])
}

fn disk_with_files(files: &[(&str, &[u8])]) -> Arc<dyn LogDisk> {
    let disk = SimulatedDisk::default();
    for (name, bytes) in files {
        let file: Box<dyn LogFile> = disk.create(name).expect("a file");
        file.write_at(0, bytes).expect("written");
    }
    Arc::new(disk)
}

#[test]
fn golden_files_of_the_last_two_formats_are_what_was_written_and_are_read_as_what_they_were() {
    assert!(GOLDEN.iter().all(|(_, format, _)| (OLDEST_FORMAT..=FORMAT).contains(format)));
    assert!((OLDEST_FORMAT..=FORMAT).eq([FORMAT - 1, FORMAT]), "readers for the last two formats");
    let expected: Vec<String> = golden_changes().iter().map(|change| format!("{change:?}")).collect();
    for (path, format, kind) in GOLDEN {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        if std::env::var_os("UPDATE_GOLDEN").is_some() && format == FORMAT {
            std::fs::write(&path, file_as(format, kind)).expect("written");
        }
        let golden = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let hint = "the format has changed: give it a new number, and keep a reader of the old one";
        assert!(golden == file_as(format, kind), "{}: {hint}", path.display());
        let (mut seen, mut of_checkpoint) = (Vec::new(), 0);
        let disk = match kind {
            FileKind::Segment => disk_with(&golden),
            FileKind::Checkpoint => {
                disk_with_files(&[("checkpoint-0000000000000001", &golden), ("log-0000000000000001", &segment())])
            }
        };
        let end = crate::recovery::read_log(&disk, &mut |change, is_of_checkpoint| {
            seen.push(format!("{change:?}"));
            of_checkpoint += usize::from(is_of_checkpoint);
            Ok(())
        })
        .expect("read");
        let seen_by_checkpoint = seen.drain(..of_checkpoint).collect::<Vec<_>>();
        assert_eq!(seen, expected);
        assert_eq!((end.summary.units, end.summary.changes, end.tail.len()), (2, 7, 0));
        if kind == FileKind::Checkpoint {
            assert_eq!(seen_by_checkpoint, expected);
            assert_eq!(end.seen, Some(if format == 1 { 0 } else { 0x1234 }));
        }
    }
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let mut bytes = segment();
    bytes[8] = 3;
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    let refused = read(&disk_with(&bytes)).expect_err("refused");
    assert!(matches!(refused, LogError::Newer { format: 3, .. }), "{refused}");
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
            (0usize..8, any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(),
             proptest::collection::vec(any::<u8>(), 0..40), proptest::collection::vec(any::<u8>(), 0..200)),
            1..20,
        ),
        cut in any::<proptest::sample::Index>(),
    ) {
        let kinds = [
            ChangeKind::Put, ChangeKind::Delete, ChangeKind::Clear, ChangeKind::MakeTable, ChangeKind::DropTable,
            ChangeKind::Expire, ChangeKind::Arrive, ChangeKind::Leave,
        ];
        let changes: Vec<_> = changes
            .iter()
            .map(|(kind, table, version, expires_at_ms, flags, key, value)| LoggedChange {
                kind: kinds[*kind], table: *table, version: *version, flags: *flags, key, value,
                // A deletion has none, and an expiry has one.
                expires_at_ms: match kinds[*kind] {
                    ChangeKind::Delete => 0,
                    ChangeKind::Expire => (*expires_at_ms).max(1),
                    _ => *expires_at_ms,
                },
            })
            .collect();
        let mut unit = UnitBuilder::default();
        changes.iter().for_each(|change| unit.push(change));
        let bytes = unit.encoded().to_vec();
        match parse_unit(&bytes) {
            UnitParse::Unit(found, length) => {
                prop_assert_eq!((found.changes(), length), (changes.len() as u64, bytes.len()));
                prop_assert_eq!(found.collect::<Vec<_>>(), changes);
            }
            other => panic!("{other:?}"),
        }
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

    #[test]
    fn files_whose_checksums_are_right_are_read_or_refused(input in proptest::collection::vec(any::<u8>(), 0..600)) {
        crate::fuzzing::log_files(&input);
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
