//! Hot keys: what each role sees, that a table is watched once at a time, and that a caller that leaves ends its watch.

use super::*;
use sandstorm_store::{Participant, WriteOptions};

fn table(view: &sandstorm_catalog::TenantView) -> &sandstorm_store::RecordTable {
    &view.table_by_name("t").unwrap().table
}

/// A server with two tenants, a table of the first, and the means to write to it.
fn with_table() -> (Server, Participant, [String; 2]) {
    let epochs = Epochs::new();
    let options = DirectoryOptions { workers: 2, code: testing::code(), ..DirectoryOptions::default() };
    let directory = Directory::with_options(Arc::clone(&epochs), options);
    let no_builder: Result<Arc<dyn ArtifactBuilder>, String> = Err("none in this test".into());
    let server = Server::start_with(directory, ArtifactSources::from(no_builder).into());
    let participant = epochs.register();
    let tokens = ["a", "b"].map(|name| server.tenant(name));
    assert_eq!(server.operator("POST", "/v1/tenants/a/tables", json!({"name": "t"})).0, 201);
    (server, participant, tokens)
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
    let (server, participant, [of_a, of_b]) = with_table();
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
    // Watched by another caller.
    let snapshot = server.control.directory.snapshot();
    assert!(table(snapshot.by_name("a").unwrap()).start_watch());
    let (status, busy) = server.operator("GET", path, Value::Null);
    assert_eq!((status, busy["code"].as_str()), (503, Some("busy")), "{busy}");
}

#[test]
fn a_heat_map_is_not_shown_to_a_token_that_was_revoked_meanwhile() {
    let (server, ..) = with_table();
    let (status, made) = server.operator("POST", "/v1/tenants/a/tokens", json!({"name": "v"}));
    assert_eq!(status, 201, "{made}");
    let viewer = made["token"].as_str().unwrap();
    let (status, shown) = std::thread::scope(|scope| {
        let path = "/v1/tenants/a/tables/t/heat?seconds=8";
        let asked = scope.spawn(|| server.json("GET", path, viewer, Value::Null));
        while server.control.hot_watches.count() == 0 {
            assert!(!asked.is_finished(), "it counts for eight seconds");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(server.operator("DELETE", "/v1/tenants/a/tokens/v", Value::Null).0, 200);
        asked.join().unwrap()
    });
    assert_eq!(status, 401, "{shown}");
    assert_eq!(server.control.hot_watches.count(), 0);
}

#[test]
fn keys_of_all_tables_are_found_without_a_watch_and_shown_to_their_tenant_alone() {
    let (server, participant, [of_a, of_b]) = with_table();
    let viewer = |path: &str| {
        let (status, made) = server.operator("POST", path, json!({"name": "v"}));
        assert_eq!(status, 201, "{made}");
        made["token"].as_str().unwrap().to_owned()
    };
    let (of_all, of_own) = (viewer("/v1/tokens"), viewer("/v1/tenants/a/tokens"));
    assert_eq!(server.json("GET", "/v1/hot", &of_a, Value::Null).1["keys"], json!([]), "nothing is known yet");
    // More than are needed: the server itself draws some of them.
    for _ in 0..4 * crate::limits::HOT_SAMPLES {
        write(&server, &participant, b"hot", 30);
        write(&server, &participant, b"cool", 10);
        write(&server, &participant, b"hot", 30);
        server.control.hot_keys.look(&server.control.directory.snapshot(), now_ms());
    }
    let of = |token: &str, path: &str| {
        let (status, found) = server.json("GET", path, token, Value::Null);
        assert_eq!(status, 200, "{found}");
        found["keys"].as_array().unwrap().first().cloned().unwrap_or_default()
    };
    let own = of(&of_a, "/v1/hot");
    assert_eq!((&own["tenant"], &own["table"], &own["key"]), (&json!("a"), &json!("t"), &json!("hot")), "{own}");
    let share = own["share"].as_f64().unwrap();
    assert!((0.7..0.97).contains(&share) && own["per_s"].as_f64().unwrap() > 0.0, "six of seven: {own}");
    let path = "/v1/hot?tenant=a&limit=1";
    for (token, path) in [(&server.operator, path), (&of_all, "/v1/hot"), (&of_all, path), (&of_own, "/v1/hot")] {
        let shown = of(token, path);
        assert_eq!(
            (&shown["table"], &shown["key"], &shown["key_digest"]),
            (&json!("t"), &Value::Null, &own["key_digest"])
        );
    }
    assert_eq!(of(&of_b, "/v1/hot"), Value::Null, "another tenant sees nothing of it");
    assert_eq!(server.json("GET", path, &of_b, Value::Null).0, 403);
    for (token, path) in [(&server.operator, "/v1/overview"), (&of_a, "/v1/overview")] {
        let (_, page) = server.json("GET", path, token, Value::Null);
        assert_eq!((&page["hot"][0]["table"], &page["hot"][0]["key"]), (&json!("t"), &Value::Null), "{page}");
    }
}
