//! Hot keys: who sees what, that a table is watched once at a time, and that a caller who goes away ends its watch.

use super::*;
use sandstorm_store::{Participant, WriteOptions};

fn table(view: &sandstorm_catalog::TenantView) -> &sandstorm_store::RecordTable {
    &view.table_by_name("t").unwrap().table
}

fn write(server: &Server, participant: &Participant, name: &[u8], times: usize) {
    let snapshot = server.control.directory.snapshot();
    let table = table(snapshot.by_name("a").unwrap());
    for _ in 0..times {
        table.put(participant, table.hash(name), name, b"12345", &WriteOptions::default(), 1).unwrap();
    }
}

#[test]
fn the_hottest_keys_are_told_their_tenant_and_their_digests_the_operator() {
    let epochs = Epochs::new();
    let options = DirectoryOptions { workers: 2, code: testing::code(), ..DirectoryOptions::default() };
    let directory = Directory::with_options(Arc::clone(&epochs), options);
    let no_builder: Result<Arc<dyn ArtifactBuilder>, String> = Err("none in this test".into());
    let server = Server::start_with(directory, ArtifactSources::from(no_builder).into());
    let participant = epochs.register();
    let (of_a, of_b) = (server.tenant("a"), server.tenant("b"));
    assert_eq!(server.operator("POST", "/v1/tenants/a/tables", json!({"name": "t"})).0, 201);
    let path = "/v1/tenants/a/tables/t/hot?seconds=1";
    let ask = |token: &str| {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| server.json("GET", path, token, Value::Null));
            // Until it is watched nothing is counted.
            let mut written = 0;
            while !asked.is_finished() {
                write(&server, &participant, b"hot", 3);
                write(&server, &participant, b"cool", 1);
                written += 1;
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            assert!(written > 0);
            asked.join().unwrap()
        })
    };
    let (status, own) = ask(&of_a);
    assert_eq!(status, 200, "{own}");
    let keys = |shown: &Value| {
        let key = |key: &Value| key["key"].as_str().map(str::to_owned);
        shown["by_requests"].as_array().unwrap().iter().map(key).collect::<Vec<_>>()
    };
    assert_eq!(keys(&own), [Some("hot".to_owned()), Some("cool".to_owned())]);
    let hot = &own["by_requests"][0];
    let share = hot["share"].as_f64().unwrap();
    assert!(share > 0.6 && share < 0.9, "three of four: {own}");
    assert_eq!(hot["count"].as_u64().map(|count| 5 * count), own["by_bytes"][0]["count"].as_u64());
    let (status, shown) = ask(&server.operator);
    assert_eq!((status, keys(&shown)), (200, vec![None, None]), "{shown}");
    assert_eq!(shown["by_requests"][0]["key_digest"], hot["key_digest"]);
    assert_eq!(server.json("GET", path, &of_b, Value::Null).0, 403);
    assert_eq!(server.operator("GET", "/v1/tenants/a/tables/none/hot", Value::Null).0, 404);
    for seconds in ["0", "61"] {
        let path = format!("/v1/tenants/a/tables/t/hot?seconds={seconds}");
        assert_eq!(server.operator("GET", &path, Value::Null).0, 400);
    }
    // Watched by somebody else.
    let snapshot = server.control.directory.snapshot();
    assert!(table(snapshot.by_name("a").unwrap()).start_watch());
    let (status, busy) = server.operator("GET", path, Value::Null);
    assert_eq!((status, busy["code"].as_str()), (503, Some("busy")), "{busy}");
}
