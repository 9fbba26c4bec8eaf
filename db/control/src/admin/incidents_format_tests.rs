//! Promise: kills and slow requests are read in both formats of their files.

use super::*;
use crate::admin::types::{CodePlaceResponse, RequestWaitsResponse};
use crate::golden::{assert_golden, golden_file};

/// The values as a file, once they are read from that of the format before, and from their own.
fn rewritten<T: Serialize + DeserializeOwned>(name: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(format!("{name}.jsonl"));
    let open = |name: &str| JsonLineFiles::<T>::open(folder.path(), name, INCIDENTS_PER_FILE, INCIDENT_LINE_BYTES);
    let (mut files, _) = open("new").expect("no files");
    for format in [1, 2] {
        std::fs::write(file("old"), golden_file(&format!("{name}-format-{format}.jsonl"))).expect("room");
        let (_, values) = open("old").expect("a golden file");
        values.iter().for_each(|value| files.append(value));
    }
    std::fs::read(file("new")).expect("it was written")
}

/// Asserts that both golden files of a name have the same two values, and that they are written as the newest has them.
fn assert_both_golden<T: Serialize + DeserializeOwned>(name: &str) {
    let text = String::from_utf8(rewritten::<T>(name)).expect("ASCII");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), &lines[1..3]), (5, &lines[3..5]), "{name}");
    assert_golden(&format!("{name}-format-2.jsonl"), format!("{}\n", lines[..3].join("\n")).as_bytes());
}

#[test]
fn golden_files_of_incidents_are_read_in_both_formats_and_the_newest_is_what_is_written() {
    assert_both_golden::<IncidentLine<KillResponse>>("kills");
    assert_both_golden::<IncidentLine<KeptSlowRequest>>("slow");
}

#[test]
fn what_the_golden_files_say_is_what_was_written() {
    let state = tempfile::tempdir().expect("a folder");
    let folder = state.path().join(FOLDER);
    std::fs::create_dir(&folder).expect("room");
    for name in ["kills", "slow"] {
        let golden = golden_file(&format!("{name}-format-1.jsonl"));
        std::fs::write(folder.join(format!("{name}.jsonl")), golden).expect("room");
    }
    let directory = Directory::new(sandstorm_store::Epochs::new());
    let new = sandstorm_catalog::NewTenant { id: Some(7), ..sandstorm_catalog::NewTenant::named("shop") };
    directory.create_tenant(new).expect("a tenant");
    let log = IncidentLog::open(state.path(), &directory, &EventLog::in_memory()).expect("readable files");
    let snapshot = directory.snapshot();
    let view = snapshot.tenant(7).expect("the tenant");
    let place = CodePlaceResponse { function: "orders::f".into(), file: "src/lib.rs".into(), line: 3 };
    let kill = KillResponse {
        at_ms: 1_700_000_000_123,
        tenant: "shop".into(),
        extension: "orders".into(),
        version: 3,
        cause: "panic".into(),
        text: "index 7 of \"4\" – é".into(),
        cpu_us: 5,
        wall_us: 6,
        worker: 1,
        places: vec![place],
        arguments: "kept\\x00".into(),
    };
    assert_eq!(log.kills_of(view), [kill]);
    let slow = log.slow_of(view);
    assert_eq!((slow.len(), slow[0].shown.id, &slow[0].key_prefix[..]), (1, 12, &b"a\xff"[..]));
    let waits = RequestWaitsResponse { disk_ns: 1, backing_ns: 2, log_ns: 3, copies_ns: 4, backed_ns: 5 };
    assert_eq!((slow[0].shown.waits, slow[0].shown.table.as_deref()), (waits, Some("items")));
}
