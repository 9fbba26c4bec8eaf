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
    let (mut bytes, all) = (Vec::new(), records.len() as u64);
    let mut file = ExportWriter::new(&mut bytes);
    let header = HeaderLine {
        format: FORMAT_NAME,
        format_version: FORMAT_VERSION,
        program: "0.1.0",
        tenant: "shop",
        made_ms: 1_764_000_000_000,
    };
    let [items, none] = golden_tables();
    file.line(&header).unwrap();
    file.line(&TableLine { table: items }).unwrap();
    records.iter().for_each(|record| file.line(record).unwrap());
    file.line(&TableEndLine { end_of_table: "items", records: all }).unwrap();
    file.line(&TableLine { table: none }).unwrap();
    file.line(&TableEndLine { end_of_table: "none", records: 0 }).unwrap();
    file.end(&EndLine { end: true, tables: 2, records: all }).unwrap();
    bytes
}

/// The checksum that the last line of a file has.
fn checksum_of(file: &[u8]) -> Option<u32> {
    let last = file.trim_ascii().rsplit(|byte| *byte == b'\n').next().unwrap();
    serde_json::from_slice::<serde_json::Value>(last).unwrap()["crc32c"].as_u64().map(|sum| sum as u32)
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

/// The lines of a file of that version and checksum with these records.
fn expected_lines(
    records: &[ExportedRecord],
    (version, crc32c): (u32, Option<u32>),
) -> Vec<Result<ExportLine, String>> {
    let (all, [items, none]) = (records.len() as u64, golden_tables());
    let records = records.iter().cloned().map(ExportLine::Record);
    let before = [ExportLine::Header { version }, ExportLine::Table(items)];
    let behind = [
        ExportLine::TableEnd { records: all },
        ExportLine::Table(none),
        ExportLine::TableEnd { records: 0 },
        ExportLine::End { records: all, crc32c },
    ];
    before.into_iter().chain(records).chain(behind).map(Ok).collect()
}

fn golden_path(version: u32) -> String {
    format!("{}/golden/export-format-{version}.jsonl", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn golden_files_of_both_formats_are_read_and_the_newest_is_what_is_written() {
    let written = file_with(&golden_records());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(golden_path(FORMAT_VERSION), &written).unwrap();
    }
    let [first, newest] = [1, FORMAT_VERSION].map(|version| std::fs::read(golden_path(version)).unwrap());
    let hint = "the format has changed: give it a new number, and keep a reader of the old one";
    assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(&newest), "{hint}");
    let sum = checksum_of(&newest);
    assert!(sum.is_some());
    assert_eq!(lines_of(&newest), expected_lines(&golden_records(), (2, sum)));
    assert_eq!(lines_of(&first), expected_lines(&golden_records(), (1, None)), "it has no checksum");
    assert_eq!([&first, &newest].map(|file| check_whole(&file[..]).unwrap()), [Ok(()), Ok(())]);
}

#[test]
fn what_is_wrong_with_a_file_as_a_whole_is_named() {
    let newest = std::fs::read_to_string(golden_path(2)).unwrap();
    let check = |file: &str| check_whole(file.as_bytes()).unwrap();
    let last = newest.lines().last().unwrap();
    let before = newest.strip_suffix(&format!("{last}\n")).unwrap();
    let lines = newest.lines().count() as u64;
    assert_eq!(check(before), Err((lines - 1, ExportFault::CutOff)));
    assert_eq!(check(&newest[..newest.len() - 3]), Err((lines, ExportFault::CutOff)), "within its last line");
    let unsummed = format!("{before}{}}}\n", last.split(",\"crc32c\"").next().unwrap());
    assert_eq!(check(&unsummed), Err((lines, ExportFault::NoChecksum)));
    let other_value = newest.replace("\"value\":\"\"", "\"value\":\"1\"");
    assert_ne!(other_value, newest);
    assert_eq!(check(&other_value), Err((lines, ExportFault::WrongChecksum)));
    assert_eq!(check(&newest.replace("\"tables\":2", "\"tables\":3")), Err((lines, ExportFault::WrongChecksum)));
    assert_eq!(check(&format!("{newest}{{}}\n")), Err((lines + 1, ExportFault::CutOff)), "there is more behind it");
    // What the importer names by itself.
    for other in ["", "nonsense\n", "{\"format\":\"sandstorm-export\",\"format_version\":1}\n"] {
        assert_eq!(check(other), Ok(()), "{other}");
    }
    for (fault, text) in [(ExportFault::CutOff, "cut off"), (ExportFault::NoChecksum, "no crc32c")] {
        assert!(fault.describe(7).contains("line 7") && fault.describe(7).contains(text), "{fault:?}");
    }
}

#[test]
fn the_sample_of_the_page_is_a_whole_file() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/durability.md")).unwrap();
    let sample = &page[page.find("{\"format\":\"sandstorm-export\"").expect("a sample")..];
    let sample = sample.split("```").next().unwrap();
    assert!(lines_of(sample.as_bytes()).iter().all(Result::is_ok), "{sample}");
    assert_eq!(check_whole(sample.as_bytes()).unwrap(), Ok(()));
    assert!(checksum_of(sample.as_bytes()).is_some());
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
    assert_eq!(parse(&serde_json::to_string(&header).unwrap()), Ok(ExportLine::Header { version: 2 }));
    let first = HeaderLine { format_version: 1, ..header };
    assert_eq!(parse(&serde_json::to_string(&first).unwrap()), Ok(ExportLine::Header { version: 1 }));
    let newer = HeaderLine { format_version: 3, ..first };
    assert!(parse(&serde_json::to_string(&newer).unwrap()).unwrap_err().contains("version 3"));
    assert!(parse(r#"{"format":"other","format_version":1}"#).is_err());
    let table = TableSpec { name: "t".into(), ordered: true, ..TableSpec::default() };
    let line = serde_json::to_string(&TableLine { table: table.clone() }).unwrap();
    assert_eq!(parse(&line), Ok(ExportLine::Table(table)));
    let line = serde_json::to_string(&TableEndLine { end_of_table: "t", records: 3 }).unwrap();
    assert_eq!(parse(&line), Ok(ExportLine::TableEnd { records: 3 }));
    let line = serde_json::to_string(&EndLine { end: true, tables: 1, records: 3 }).unwrap();
    assert_eq!(parse(&line), Ok(ExportLine::End { records: 3, crc32c: None }));
    let summed = r#"{"end":true,"records":3,"crc32c":4294967295}"#;
    assert_eq!(parse(summed), Ok(ExportLine::End { records: 3, crc32c: Some(u32::MAX) }));
    assert!(parse(r#"{"key":"a","value":"b","crc32c":1}"#).is_err());
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
        let file = file_with(&records);
        let expected = expected_lines(&records, (FORMAT_VERSION, checksum_of(&file)));
        prop_assert_eq!(&lines_of(&file), &expected);
        prop_assert_eq!(check_whole(&file[..]).unwrap(), Ok(()));
        let (mut flipped, at) = (file.clone(), at.index(file.len()));
        flipped[at] ^= 1 << bit;
        let line = file[..at].iter().filter(|byte| **byte == b'\n').count();
        let found = lines_of(&flipped);
        // The format's own number apart, which a flip may make that of the first format.
        let is_newest = found[0] == expected[0];
        prop_assert!(!is_newest || check_whole(&flipped[..]).unwrap().is_err(), "a flipped bit is found");
        let is_whole = at + 1 >= file.len();
        prop_assert!(is_whole || line == 0 || check_whole(&file[..at]).unwrap().is_err(), "and so is a cut");
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
