//! Promise: values are read as they were written, in both formats; a damaged line is left out, and no other; what a
//! later version wrote is refused.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::events::{EventActor, EventCode, EventFilter, EventLog, ServerEvent};
use crate::golden::{assert_golden, golden_file};
use crate::history::{HistoryPeriod, HistoryResolution, HistoryRow, UsageHistory};

/// Values of a file in these tests, and bytes of its lines.
const MOST: usize = 5;
const LINE_BYTES: usize = 4 << 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Note {
    id: u64,
    text: String,
}

fn note(id: u64) -> Note {
    Note { id, text: "\u{1f600} \"é\"\n".into() }
}

fn open(folder: &Path) -> io::Result<(JsonLineFiles<Note>, Vec<Note>)> {
    JsonLineFiles::open(folder, "notes", MOST, LINE_BYTES)
}

fn notes(folder: &Path) -> Vec<Note> {
    open(folder).expect("readable files").1
}

/// A folder whose `notes.jsonl` has this.
fn with_notes(bytes: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("notes.jsonl"), bytes).expect("room");
    folder
}

/// What the values are as the file of a folder.
fn written<T: Serialize + DeserializeOwned>(values: &[T]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut files, none) = JsonLineFiles::<T>::open(folder.path(), "x", 99, LINE_BYTES).expect("no files");
    assert!(none.is_empty());
    values.iter().for_each(|value| files.append(value));
    fs::read(folder.path().join("x.jsonl")).expect("it was written")
}

#[test]
fn each_file_says_its_format_and_both_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut all: Vec<Note> = Vec::new();
    // Each value by another run of the program, over two turns.
    for id in 0..2 * MOST as u64 + 2 {
        let (mut files, found) = open(folder.path()).expect("readable files");
        let kept = all.len().saturating_sub(if all.len() > 2 * MOST { MOST } else { 0 });
        assert_eq!(found, all[all.len() - kept..]);
        files.append(&note(id));
        all.push(note(id));
    }
    for name in ["notes.jsonl", "notes.1.jsonl"] {
        let text = fs::read_to_string(folder.path().join(name)).expect("a file");
        let formats = text.lines().filter(|line| line.starts_with("{\"format\":2,\"sum\":\"")).count();
        assert!(formats == 1 && text.starts_with("{\"format\":"), "{text}");
        assert!(text.lines().count() <= 1 + MOST && text.bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')));
    }
}

#[test]
fn a_file_of_the_format_before_is_read_and_goes_on_in_the_new_one() {
    let old = b"{\"id\":1,\"text\":\"a\"}\n\n{\"id\":2,\"text\":\"b\"}\nnothing\n{\"id\":3,\"te";
    let folder = with_notes(old);
    let (mut files, found) = open(folder.path()).expect("readable files");
    let ids = |notes: &[Note]| notes.iter().map(|note| note.id).collect::<Vec<_>>();
    assert_eq!(ids(&found), [1, 2]);
    files.append(&note(4));
    files.append(&note(5));
    let text = fs::read(folder.path().join("notes.jsonl")).expect("a file");
    let expected = [&old[..], b"\n", &written(&[note(4), note(5)])].concat();
    assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(&expected));
    assert_eq!(ids(&notes(folder.path())), [1, 2, 4, 5]);
    // A line without a sum is none of this format.
    fs::write(folder.path().join("notes.jsonl"), [&written(&[note(4)])[..], old].concat()).expect("room");
    assert_eq!(ids(&notes(folder.path())), [4]);
}

#[test]
fn a_file_of_a_later_version_is_refused_by_name() {
    let later = summed_line(&FormatLine { format: FORMAT + 1 }).expect("JSON");
    for former in [false, true] {
        let folder = with_notes(b"");
        let name = if former { "notes.1.jsonl" } else { "notes.jsonl" };
        fs::write(folder.path().join(name), later.clone() + "whatever it has\n").expect("room");
        let refused = open(folder.path()).expect_err("a later version").to_string();
        assert!(refused.contains(&format!("{name} has format 3, and this program reads formats up to 2")), "{refused}");
    }
    // As this program says it: the start ends with the folder and the file.
    for (folder, name) in [("events", "tenants.jsonl"), ("history", "hours.1.jsonl")] {
        let state = tempfile::tempdir().expect("a folder");
        fs::create_dir(state.path().join(folder)).expect("room");
        fs::write(state.path().join(folder).join(name), &later).expect("room");
        let events = EventLog::open(state.path()).map(drop);
        let refused = events.and_then(|()| UsageHistory::open(state.path()).map(drop)).expect_err("a later version");
        let refused = refused.to_string();
        assert!(refused.contains(folder) && refused.contains(&format!("{name} has format 3")), "{refused}");
    }
}

/// A flipped bit takes one line, or two where it was between them, and none is another one than was written.
#[test]
fn what_was_written_is_read_and_a_flipped_bit_takes_the_line_that_it_is_in() {
    for seed in 0..30 {
        let random = &mut SmallRng::seed_from_u64(seed);
        let mut text = || (0..random.random_range(0..20)).map(|_| random.random::<char>()).collect::<String>();
        let all: Vec<Note> = (0..MOST as u64).map(|id| Note { id, text: text() }).collect();
        let bytes = written(&all);
        assert_eq!(notes(with_notes(&bytes).path()), all, "seed {seed}");
        for _ in 0..100 {
            let (at, bit) = (random.random_range(0..bytes.len()), random.random_range(0..8));
            let mut other = bytes.clone();
            other[at] ^= 1 << bit;
            let folder = with_notes(&other);
            let (mut files, found) = open(folder.path()).unwrap_or_else(|error| panic!("byte {at}: {error}"));
            assert!(found.iter().all(|note| all.contains(note)), "seed {seed}, byte {at}, bit {bit}: {found:?}");
            let line = bytes[..at].iter().filter(|byte| **byte == b'\n').count();
            let lost = match (line, bytes[at]) {
                (0, b'\n') => 1,
                (0, _) => 0,
                (line, b'\n') if line < MOST => 2,
                _ => 1,
            };
            assert!(found.len() >= MOST - lost, "seed {seed}, byte {at}, bit {bit}: {} left", found.len());
            files.append(&note(77));
            assert_eq!(notes(folder.path()).last(), Some(&note(77)), "seed {seed}, byte {at}, bit {bit}: it goes on");
        }
    }
}

/// The events of the golden files.
fn golden_events() -> Vec<ServerEvent> {
    let refused = ServerEvent {
        id: 41,
        at_ms: 1_700_000_000_123,
        code: EventCode::ExtensionRefused,
        actor: EventActor::Tenant,
        from: Some("2001:db8::1".parse().expect("an address")),
        tenant: Some("shop".into()),
        tenant_id: Some(7),
        subject: Some("orders".into()),
        count: 1,
        text: "src/lib.rs:3: \"unsafe\" – line\n\u{1f600}".into(),
    };
    let started = ServerEvent {
        id: 42,
        at_ms: 1_700_000_001_000,
        code: EventCode::ServerStarted,
        actor: EventActor::Server,
        from: None,
        tenant: None,
        tenant_id: None,
        subject: None,
        count: 3,
        text: String::new(),
    };
    vec![refused, started]
}

#[test]
fn golden_files_of_events_are_read_in_both_formats_and_the_newest_is_what_is_written() {
    assert_golden("events-format-2.jsonl", &written(&golden_events()));
    for format in ["events-format-1.jsonl", "events-format-2.jsonl"] {
        let state = tempfile::tempdir().expect("a folder");
        fs::create_dir(state.path().join("events")).expect("room");
        fs::write(state.path().join("events/tenants.jsonl"), golden_file(format)).expect("room");
        let log = EventLog::open(state.path()).expect("a readable log");
        assert_eq!(log.read(&EventFilter::default(), 9).events, golden_events(), "{format}");
    }
}

/// The periods of the golden files: the whole server, and a tenant.
fn golden_periods() -> Vec<HistoryPeriod> {
    let row = HistoryRow {
        tenant: None,
        tenant_id: 0,
        cpu_us: 1,
        requests: 2,
        over_quota: 3,
        calls: 4,
        killed: 5,
        switches: 6,
        p99_ns: 7,
        memory_bytes: 8,
        throttled_per_mille: 9,
    };
    let of_tenant = HistoryRow { tenant: Some("shop–7".into()), tenant_id: 7, cpu_us: u64::MAX, ..row.clone() };
    let period = HistoryPeriod { at_ms: 1_700_003_600_000, length_ms: 3_600_000, rows: vec![row, of_tenant] };
    vec![HistoryPeriod { at_ms: 1_700_000_000_000, length_ms: 17, rows: Vec::new() }, period]
}

#[test]
fn golden_files_of_the_history_are_read_in_both_formats_and_the_newest_is_what_is_written() {
    assert_golden("history-format-2.jsonl", &written(&golden_periods()));
    for format in ["history-format-1.jsonl", "history-format-2.jsonl"] {
        let state = tempfile::tempdir().expect("a folder");
        fs::create_dir(state.path().join("history")).expect("room");
        for name in ["minutes.jsonl", "hours.1.jsonl"] {
            fs::write(state.path().join("history").join(name), golden_file(format)).expect("room");
        }
        let history = UsageHistory::open(state.path()).expect("a readable history");
        for resolution in [HistoryResolution::Minutes, HistoryResolution::Hours] {
            assert_eq!(history.since(resolution, 0, 9), golden_periods(), "{format}, {resolution:?}");
        }
    }
}
