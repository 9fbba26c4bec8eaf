//! Promise: a file of an export is read as it was written, in every format that there was; a bad line is named, and a
//! damaged one is no other line's harm.

use proptest::prelude::*;
use sandstorm_client::control::{DurabilityLevel, TableMode};

use super::*;

/// The records of the golden file: text, base64, and all other fields.
fn golden_records() -> [ExportedRecord; 3] {
    let text = ExportedRecord {
        key: Some("apple".into()),
        value: Some("\u{1f600} \"3\"\n\u{1}".into()),
        version: 12,
        ..ExportedRecord::default()
    };
    let binary = ExportedRecord {
        key_base64: Some("AP8=".into()),
        value_base64: Some("/w==".into()),
        version: u64::MAX,
        flags: u32::MAX,
        expires_at_ms: 1_764_003_600_000,
        ..ExportedRecord::default()
    };
    let empty = ExportedRecord { key: Some("e".into()), value: Some(String::new()), ..ExportedRecord::default() };
    [text, binary, empty]
}

fn golden_tables() -> [TableSpec; 2] {
    let items = TableSpec {
        name: "items".into(),
        mode: TableMode::Cache,
        quota_bytes: Some(1 << 30),
        durability: Some(DurabilityLevel::Interval),
        ..TableSpec::default()
    };
    [items, TableSpec { name: "none".into(), ordered: true, ..TableSpec::default() }]
}

/// A file with these records in the first of the tables.
fn file_with(records: &[ExportedRecord]) -> Vec<u8> {
    let (mut file, all) = (Vec::new(), records.len() as u64);
    let header = HeaderLine {
        format: FORMAT_NAME,
        format_version: FORMAT_VERSION,
        program: "0.1.0",
        tenant: "shop",
        made_ms: 1_764_000_000_000,
    };
    let [items, none] = golden_tables();
    write_line(&mut file, &header).unwrap();
    write_line(&mut file, &TableLine { table: items }).unwrap();
    records.iter().for_each(|record| write_line(&mut file, record).unwrap());
    write_line(&mut file, &TableEndLine { end_of_table: "items", records: all }).unwrap();
    write_line(&mut file, &TableLine { table: none }).unwrap();
    write_line(&mut file, &TableEndLine { end_of_table: "none", records: 0 }).unwrap();
    write_line(&mut file, &EndLine { end: true, tables: 2, records: all }).unwrap();
    file
}

/// The lines of a file, or what is wrong with them.
fn lines_of(file: &[u8]) -> Vec<Result<ExportLine, String>> {
    let mut reader = LineReader::new(file);
    let mut lines = Vec::new();
    while let Some((_, line)) = reader.next_line().unwrap() {
        lines.push(line.and_then(ExportLine::parse));
    }
    lines
}

fn expected_lines(records: &[ExportedRecord]) -> Vec<Result<ExportLine, String>> {
    let (all, [items, none]) = (records.len() as u64, golden_tables());
    let records = records.iter().cloned().map(ExportLine::Record);
    let before = [ExportLine::Header, ExportLine::Table(items)];
    let behind = [
        ExportLine::TableEnd { records: all },
        ExportLine::Table(none),
        ExportLine::TableEnd { records: 0 },
        ExportLine::End { records: all },
    ];
    before.into_iter().chain(records).chain(behind).map(Ok).collect()
}

#[test]
fn the_golden_file_is_what_is_written_and_is_read_as_what_it_was() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/export-format-1.jsonl");
    let written = file_with(&golden_records());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &written).unwrap();
    }
    let golden = std::fs::read(path).unwrap();
    let hint = "the format has changed: give it a new number, and keep a reader of the old one";
    assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(&golden), "{hint}");
    assert_eq!(lines_of(&golden), expected_lines(&golden_records()));
}

#[test]
fn lines_are_what_they_say() {
    let parse = |line: &str| ExportLine::parse(line.as_bytes());
    let header = HeaderLine {
        format: FORMAT_NAME,
        format_version: FORMAT_VERSION,
        program: "0.1.0",
        tenant: "shop",
        made_ms: 1,
    };
    assert_eq!(parse(&serde_json::to_string(&header).unwrap()), Ok(ExportLine::Header));
    let newer = HeaderLine { format_version: 2, ..header };
    assert!(parse(&serde_json::to_string(&newer).unwrap()).unwrap_err().contains("version 2"));
    assert!(parse(r#"{"format":"other","format_version":1}"#).is_err());
    let table = TableSpec { name: "t".into(), ordered: true, ..TableSpec::default() };
    let line = serde_json::to_string(&TableLine { table: table.clone() }).unwrap();
    assert_eq!(parse(&line), Ok(ExportLine::Table(table)));
    let line = serde_json::to_string(&TableEndLine { end_of_table: "t", records: 3 }).unwrap();
    assert_eq!(parse(&line), Ok(ExportLine::TableEnd { records: 3 }));
    let line = serde_json::to_string(&EndLine { end: true, tables: 1, records: 3 }).unwrap();
    assert_eq!(parse(&line), Ok(ExportLine::End { records: 3 }));
    for wrong in [r#"{"kee":"a","value":"b"}"#, "", "[]", r#"{"key":1}"#, r#"{"records":1}"#] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn long_and_empty_lines_are_passed_and_counted() {
    let mut text = b"\n  \n{\"a\":1}\r\n".to_vec();
    text.extend(std::iter::repeat_n(b'x', MAX_LINE_BYTES + 5));
    text.extend_from_slice(b"\nlast");
    let mut lines = LineReader::new(&text[..]);
    assert_eq!(lines.next_line().unwrap(), Some((3, Ok(&b"{\"a\":1}"[..]))));
    assert!(matches!(lines.next_line().unwrap(), Some((4, Err(_)))));
    assert_eq!(lines.next_line().unwrap(), Some((5, Ok(&b"last"[..]))));
    assert_eq!(lines.next_line().unwrap(), None);
}

proptest! {
    #[test]
    fn no_line_panics(line in any::<Vec<u8>>()) {
        let _either = ExportLine::parse(&line);
    }

    #[test]
    fn no_json_panics(line in r#"\{("(key|value|key_base64|end|records|table|format|version)":("[a-zA-Z=]{0,5}"|-?[0-9]{1,22}|\{\}|null|true),?){0,4}\}"#) {
        let _either = ExportLine::parse(line.as_bytes());
    }

    #[test]
    fn what_was_written_is_read_and_a_flipped_bit_harms_no_other_line(
        records in proptest::collection::vec(any_record(), 0..5), at: proptest::sample::Index, bit in 0..8_u8,
    ) {
        let (file, expected) = (file_with(&records), expected_lines(&records));
        prop_assert_eq!(&lines_of(&file), &expected);
        let (mut flipped, at) = (file.clone(), at.index(file.len()));
        flipped[at] ^= 1 << bit;
        let line = file[..at].iter().filter(|byte| **byte == b'\n').count();
        let found = lines_of(&flipped);
        // A line feed may have come or gone.
        prop_assert_eq!(&found[..line], &expected[..line]);
        let behind = expected.len() - (line + 1 + usize::from(file[at] == b'\n')).min(expected.len());
        prop_assert_eq!(&found[found.len() - behind..], &expected[expected.len() - behind..]);
    }
}

/// A record that an export may have.
fn any_record() -> impl Strategy<Value = ExportedRecord> {
    let bytes = || (any::<bool>(), any::<String>(), "[A-Za-z0-9+/]{0,8}");
    (bytes(), bytes(), any::<(u64, u32, u64)>()).prop_map(|(key, value, (version, flags, expires_at_ms))| {
        let split = |(is_text, text, base64): (bool, String, String)| {
            if is_text { (Some(text), None) } else { (None, Some(base64)) }
        };
        let ((key, key_base64), (value, value_base64)) = (split(key), split(value));
        ExportedRecord { key, key_base64, value, value_base64, version, flags, expires_at_ms }
    })
}
