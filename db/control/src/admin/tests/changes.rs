//! Promise: requests that wait for changes keep exports and other feeds from nothing, and do not wait without a bound.

use std::path::Path;

use super::*;
use crate::limits::{CHANGE_WAITS, CHANGE_WAITS_PER_TENANT, MAX_CONNECTIONS, RECORD_PAGES_PER_TENANT};
use sandstorm_catalog::{NewTable, TableDurability};
use sandstorm_store::WriteOptions;

/// A server whose tables are logged, and the token of its tenant `a`, which has the table `t`.
fn server(folder: &Path) -> (Server, String) {
    let options = DirectoryOptions { workers: 1, can_keep_records: true, ..DirectoryOptions::default() };
    let directory = Directory::with_options(Epochs::new(), options);
    directory.restore_records(&folder.join("log"), 1, |log| log.start()).unwrap();
    let builder: Result<Arc<dyn ArtifactBuilder>, String> = Err("none".into());
    let server = Server::start_with(directory, ArtifactSources::from(builder).into());
    let token = server.tenant("a");
    let new = NewTable { durability: Some(TableDurability::Interval), ..NewTable::named("t") };
    server.control.directory.create_table("a", new).unwrap();
    (server, token)
}

fn put(server: &Server, key: &[u8]) {
    let (view, participant) = (server.control.directory.snapshot(), server.control.directory.participant());
    let table = &view.by_name("a").unwrap().table_by_name("t").unwrap().table;
    table.put(&participant, table.hash(key), key, b"v", &WriteOptions::default(), 1).unwrap();
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

const CHANGES: &str = "/v1/tenants/a/tables/t/changes";

#[test]
fn exports_and_other_feeds_go_on_while_as_many_wait_as_may() {
    let folder = tempfile::tempdir().unwrap();
    let (server, token) = server(folder.path());
    let tenant = server.control.directory.snapshot().by_name("a").unwrap().tenant.id;
    let end = server.json("GET", CHANGES, &token, Value::Null).1["next"].as_str().unwrap().to_owned();
    let waiting = format!("{CHANGES}?after={end}&wait_s=30");
    std::thread::scope(|scope| {
        let feeds: Vec<_> = (0..CHANGE_WAITS_PER_TENANT)
            .map(|_| scope.spawn(|| server.json("GET", &waiting, &token, Value::Null)))
            .collect();
        wait_until(|| server.control.change_waits.under_way(tenant) == CHANGE_WAITS_PER_TENANT);
        // More of them than there may be pages: each has looked once, and none keeps a page.
        const { assert!(CHANGE_WAITS_PER_TENANT > RECORD_PAGES_PER_TENANT) };
        wait_until(|| server.control.record_pages.under_way(tenant) == 0);
        let (status, page) = server.json("GET", "/v1/tenants/a/tables/t/records", &token, Value::Null);
        assert_eq!((status, page["records"].as_array().map(Vec::len)), (200, Some(0)));
        assert_eq!(server.json("GET", &format!("{CHANGES}?after={end}"), &token, Value::Null).0, 200);
        // One more is answered without a change, sooner than it asked for.
        let (status, page) = server.json("GET", &waiting, &token, Value::Null);
        assert_eq!((status, page["changes"].as_array().map(Vec::len), &page["at_end"]), (200, Some(0), &json!(true)));
        assert_eq!(server.control.change_waits.under_way(tenant), CHANGE_WAITS_PER_TENANT, "the others still wait");
        put(&server, b"key");
        for feed in feeds {
            let (status, page) = feed.join().unwrap();
            assert_eq!((status, &page["changes"][0]["key"]), (200, &json!("key")), "{page}");
        }
    });
    assert_eq!(server.control.change_waits.under_way(tenant), 0);
    const { assert!(2 * CHANGE_WAITS <= MAX_CONNECTIONS) };
}

/// A feed that has waited is not refused because others read at that moment.
#[test]
fn a_feed_that_waits_is_not_refused_while_all_pages_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (server, token) = server(folder.path());
    let tenant = server.control.directory.snapshot().by_name("a").unwrap().tenant.id;
    let end = server.json("GET", CHANGES, &token, Value::Null).1["next"].as_str().unwrap().to_owned();
    std::thread::scope(|scope| {
        let feed = scope.spawn(|| server.json("GET", &format!("{CHANGES}?after={end}&wait_s=30"), &token, Value::Null));
        wait_until(|| server.control.change_waits.under_way(tenant) == 1);
        let pages = || std::iter::from_fn(|| server.control.record_pages.begin(tenant)).collect::<Vec<_>>();
        let mut taken = pages();
        wait_until(|| {
            taken.extend(pages());
            taken.len() == RECORD_PAGES_PER_TENANT
        });
        put(&server, b"key");
        let log = server.control.directory.change_log().unwrap();
        assert!(log.wait(log.end(), Duration::from_secs(60)));
        let refused = server.json("GET", &format!("{CHANGES}?after={end}"), &token, Value::Null);
        assert_eq!(
            (refused.0, refused.1["error"]["code"].as_str().or(refused.1["code"].as_str())),
            (503, Some("busy"))
        );
        assert_eq!(server.control.change_waits.under_way(tenant), 1, "it waits for the pages, too");
        drop(taken);
        let (status, page) = feed.join().unwrap();
        assert_eq!((status, &page["changes"][0]["key"]), (200, &json!("key")), "{page}");
    });
}

/// What was granted or revoked while a feed waited holds for its answer.
#[test]
fn a_feed_that_waits_ends_with_its_grant_and_with_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let (server, token) = server(folder.path());
    let grantee = server.tenant("b");
    let granted = server.json("POST", "/v1/tenants/a/grants", &token, json!({"table": "t", "to": "b"}));
    assert!(granted.0 < 300, "{granted:?}");
    let end = server.json("GET", CHANGES, &token, Value::Null).1["next"].as_str().unwrap().to_owned();
    let (_, tables) = server.json("GET", "/v1/tenants/b/tables", &grantee, Value::Null);
    let name = tables[0]["name"].as_str().unwrap().replace('/', "%2F");
    let of_grantee = format!("/v1/tenants/b/tables/{name}/changes?after={end}&wait_s=30");
    let ended = |path: &str, token: &str, tenant: &str, end: &dyn Fn()| {
        let id = server.control.directory.snapshot().by_name(tenant).unwrap().tenant.id;
        std::thread::scope(|scope| {
            let feed = scope.spawn(|| server.json("GET", path, token, Value::Null));
            wait_until(|| server.control.change_waits.under_way(id) == 1);
            end();
            put(&server, b"key");
            feed.join().unwrap()
        })
    };
    let (status, answer) = ended(&of_grantee, &grantee, "b", &|| {
        let revoked = server.json("DELETE", "/v1/tenants/a/grants/given/t/b", &token, Value::Null);
        assert_eq!(revoked.0, 200, "{revoked:?}");
    });
    assert_eq!((status, answer["changes"].as_array()), (404, None), "{answer}");
    // What was put just now is not to end the next feed.
    let log = server.control.directory.change_log().unwrap();
    assert!(log.wait(log.end(), Duration::from_secs(60)));
    let (_, now) = server.json("GET", CHANGES, &token, Value::Null);
    let waiting = format!("{CHANGES}?after={}&wait_s=30", now["next"].as_str().unwrap());
    let (status, answer) = ended(&waiting, &token, "a", &|| {
        server.control.directory.rotate_token("a").unwrap();
    });
    assert_eq!((status, answer["changes"].as_array()), (401, None), "{answer}");
}
