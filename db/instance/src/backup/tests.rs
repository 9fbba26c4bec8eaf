//! Promise: a manifest is read as it was written, in every format that there was; whatever else is read is damage.

use std::path::Path;

use proptest::prelude::*;

use super::*;

/// A manifest of format 1, as it was when that format was made.
const GOLDEN: &[u8] = include_bytes!("../../golden/manifest-format-1.json");

fn manifest() -> BackupManifest {
    let file = |path: &str, bytes| BackupFile { path: path.to_owned(), bytes, crc32c: 0xfeed_beef };
    BackupManifest {
        format: MANIFEST_FORMAT,
        program: "0.1.0".to_owned(),
        made_ms: 1_700_000_000_000,
        log: Some(BackupLog {
            id: "0123456789abcdef".to_owned(),
            earliest: Some(17),
            earliest_ms: 1_699_999_000_000,
            end: 4_711,
            end_ms: 1_699_999_999_900,
        }),
        tables: vec![BackupTable { tenant: "shop".to_owned(), name: "items".to_owned(), has_records: true }],
        files: vec![file("directory.journal", 300), file("log/log-0000000000000001", 33_554_432)],
    }
}

#[test]
fn the_golden_manifest_is_what_is_written_and_is_read_as_what_it_was() {
    let hint = "the format has changed: give it a new number, and keep a reader of the old one";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/manifest-format-1.json");
        std::fs::write(path, manifest().encode().unwrap()).unwrap();
    }
    assert_eq!(String::from_utf8_lossy(&manifest().encode().unwrap()), String::from_utf8_lossy(GOLDEN), "{hint}");
    assert_eq!(BackupManifest::decode(GOLDEN, Path::new("m")).unwrap(), manifest());
}

#[test]
fn a_newer_manifest_is_refused_by_name_and_a_path_that_leads_out_of_the_folder_is_refused() {
    let newer = BackupManifest { format: MANIFEST_FORMAT + 1, ..manifest() };
    let refused = BackupManifest::decode(&newer.encode().unwrap(), Path::new("m"));
    assert!(matches!(refused, Err(BackupError::Newer { format: 2, .. })), "{refused:?}");
    for path in ["../x", "/etc/passwd", "a/../../b", "", "."] {
        let mut bad = manifest();
        bad.files[0].path = path.to_owned();
        assert!(BackupManifest::decode(&bad.encode().unwrap(), Path::new("m")).is_err(), "{path:?}");
    }
}

#[test]
fn every_flipped_byte_of_a_manifest_is_damage() {
    for at in 0..GOLDEN.len() {
        for flip in [1, 0x20, 0x80] {
            let mut flipped = GOLDEN.to_vec();
            flipped[at] ^= flip;
            let read = BackupManifest::decode(&flipped, Path::new("m"));
            assert!(matches!(read, Err(BackupError::Damaged { .. })), "byte {at}: {read:?}");
        }
    }
}

/// Any manifest of this format, but with paths of its own.
fn any_manifest() -> impl Strategy<Value = BackupManifest> {
    let log = (any::<(u64, Option<u64>, u64)>(), any::<(u64, u64)>()).prop_map(|((id, earliest, end), times)| {
        BackupLog { id: format!("{id:016x}"), earliest, earliest_ms: times.0, end, end_ms: times.1 }
    });
    let table = any::<(String, String, bool)>();
    let table = table.prop_map(|(tenant, name, has_records)| BackupTable { tenant, name, has_records });
    let file = ("[a-z0-9.-]{1,9}[a-z](/[a-z]{1,9})?", any::<u64>(), any::<u32>());
    let file = file.prop_map(|(path, bytes, crc32c)| BackupFile { path, bytes, crc32c });
    let (tables, files) = (proptest::collection::vec(table, 0..4), proptest::collection::vec(file, 0..4));
    (any::<(String, u64)>(), proptest::option::of(log), tables, files).prop_map(
        |((program, made_ms), log, tables, files)| BackupManifest {
            format: MANIFEST_FORMAT,
            program,
            made_ms,
            log,
            tables,
            files,
        },
    )
}

proptest! {
    #[test]
    fn what_was_written_is_read_and_no_flipped_bit_or_cut_passes(
        manifest in any_manifest(), at: proptest::sample::Index, bit in 0..8_u8,
    ) {
        let bytes = manifest.encode().unwrap();
        prop_assert_eq!(&BackupManifest::decode(&bytes, Path::new("m")).unwrap(), &manifest);
        let at = at.index(bytes.len());
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << bit;
        let is_refused = |bytes: &[u8]| {
            matches!(BackupManifest::decode(bytes, Path::new("m")), Err(BackupError::Damaged { .. }))
        };
        prop_assert!(is_refused(&flipped));
        prop_assert!(is_refused(&bytes[..at]));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _either = BackupManifest::decode(&bytes, Path::new("m"));
    }
}

#[test]
fn a_backup_leaves_out_what_belongs_to_one_server_alone() {
    for (path, is_folder, belongs) in [
        ("triggers", true, true),
        ("triggers/1-t.json", false, true),
        ("secrets.key", false, true),
        ("builder", true, true),
        ("builder/sysroot", true, false),
        ("log", true, false),
        ("log.damaged-7", true, false),
        ("copies", true, false),
        ("spill", true, false),
        ("cluster.id", false, true),
        ("directory.lock", false, false),
        ("control.json", false, false),
    ] {
        let path = Path::new(path);
        let found = if is_folder { create::has_folder(path) } else { create::has_file(path) };
        assert_eq!(found, belongs, "{}", path.display());
    }
}
