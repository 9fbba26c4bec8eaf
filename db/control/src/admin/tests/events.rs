//! Every change is an event: what, by which actor, from where; and no tenant sees another's.

use super::*;
use crate::admin::event_scribe::CHANGES;
use crate::events::EventCode;

fn events(server: &Server, token: &str, query: &str) -> Vec<Value> {
    let (status, page) = server.json("GET", &format!("/v1/events?limit=1000&{query}"), token, Value::Null);
    assert_eq!(status, 200, "{page}");
    page["events"].as_array().unwrap().clone()
}

#[test]
fn every_route_that_changes_something_has_an_event() {
    let page = include_str!("../../../../../docs/control.md");
    let routes = page.lines().filter_map(|line| {
        let (method, path) = line.strip_prefix("| `")?.split_once('`')?.0.split_once(' ')?;
        path.starts_with("/v1/").then_some((method, path))
    });
    let pushes = ["", "/artifact", "/module"].map(|what| format!("/v1/tenants/{{tenant}}/extensions/{{name}}{what}"));
    // What a call changes are records, and it is counted as a request.
    // Copies of slots are read by other servers, which also send commands of clients and calls of triggers.
    let is_call = |path: &str| {
        path.starts_with("/v1/call/")
            || ["copy", "replica", "copy-stream", "commands", "trigger-calls"]
                .iter()
                .any(|what| path == format!("/v1/cluster/{what}"))
    };
    let mut looked_at = 0;
    for (method, path) in routes.filter(|(method, path)| *method != "GET" && !is_call(path)) {
        looked_at += 1;
        let is_push = method == "PUT" && pushes.iter().any(|push| push == path);
        let has_event = CHANGES.iter().any(|(of, route, _)| (*of, *route) == (method, path));
        assert!(is_push != has_event, "{method} {path}");
    }
    assert_eq!(looked_at, CHANGES.len() + pushes.len());
}

#[test]
fn a_change_says_what_who_and_where_from_and_a_refused_one_is_none() {
    let server = Server::without_builder();
    let own = server.tenant("a");
    let other = server.tenant("b");
    server.operator("PATCH", "/v1/tenants/a", json!({"quotas": {"weight": 2}, "open": false}));
    server.json("POST", "/v1/tenants/a/tables", &own, json!({"name": "t"}));
    server.json("POST", "/v1/tenants/a/tables", &own, json!({"name": "t"}));
    server.json("POST", "/v1/tenants/a/grants", &own, json!({"table": "t", "to": "b"}));
    server.json("DELETE", "/v1/tenants/b/grants/received/a/t", &other, Value::Null);
    server.json("PUT", "/v1/tenants/a/extensions/x", &own, json!({"manifest": "", "files": []}));
    server.json("DELETE", "/v1/tenants/a/tables/t", &other, Value::Null);
    server.json("DELETE", "/v1/tenants/a/tables/t", &own, Value::Null);
    let all = events(&server, &server.operator, "");
    let told: Vec<[&str; 4]> = all
        .iter()
        .map(|event| ["code", "actor", "tenant", "subject"].map(|field| event[field].as_str().unwrap_or("-")))
        .collect();
    let expected = [
        ["tenant.created", "operator", "a", "-"],
        ["tenant.created", "operator", "b", "-"],
        ["tenant.changed", "operator", "a", "-"],
        ["table.created", "tenant", "a", "t"],
        ["grant.given", "tenant", "a", "t>b"],
        ["grant.given_up", "tenant", "b", "a/t"],
        ["extension.refused", "tenant", "a", "x"],
        ["table.dropped", "tenant", "a", "t"],
    ];
    assert_eq!(told, expected);
    assert!(all.iter().all(|event| event["from"] == "127.0.0.1"), "{all:?}");
    assert_eq!(all[2]["text"], "open = false, weight = 2");
    assert!(all[6]["text"].as_str().unwrap().contains("there is no builder"), "{}", all[6]);
    assert!(!serde_json::to_string(&all).unwrap().contains(&own), "no token is ever told");
    // Tenants see their own, and not where the operator sits.
    let of_other = events(&server, &other, "");
    assert_eq!(
        of_other.iter().map(|event| event["code"].as_str().unwrap()).collect::<Vec<_>>(),
        ["tenant.created", "grant.given_up"]
    );
    assert_eq!((&of_other[0]["from"], &of_other[1]["from"]), (&Value::Null, &json!("127.0.0.1")));
    // From a position, and by code.
    let after = all[4]["id"].as_u64().unwrap();
    assert_eq!(events(&server, &server.operator, &format!("after={after}")).len(), 3);
    assert_eq!(events(&server, &server.operator, "code=table").len(), 2);
    assert_eq!(events(&server, &server.operator, "tenant=b&code=grant.given_up").len(), 1);
}

#[test]
fn a_tenant_that_is_made_anew_sees_nothing_of_the_one_before() {
    let server = Server::without_builder();
    let create = || server.operator("POST", "/v1/tenants", json!({"name": "a", "id": 77})).1;
    let before = create()["token"].as_str().unwrap().to_owned();
    server.json("POST", "/v1/tenants/a/tables", &before, json!({"name": "secret"}));
    server.operator("DELETE", "/v1/tenants/a", Value::Null);
    let now = create()["token"].as_str().unwrap().to_owned();
    let seen = events(&server, &now, "");
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0]["code"], "tenant.created");
    assert_eq!(events(&server, &server.operator, "tenant=a").len(), 4, "the operator sees both");
}

#[test]
fn a_waiting_reader_is_answered_as_soon_as_something_happens() {
    let server = Server::without_builder();
    server.tenant("a");
    let position = events(&server, &server.operator, "").last().unwrap()["id"].as_u64().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| events(&server, &server.operator, &format!("after={position}&wait_s=30")));
        server.tenant("b");
        let found = waiting.join().unwrap();
        assert_eq!((found.len(), found[0]["tenant"].as_str()), (1, Some("b")));
    });
}

#[test]
fn kills_and_measures_become_events() {
    let server = Server::without_builder();
    server.tenant("a");
    let snapshot = server.control.directory.snapshot();
    let usage = &snapshot.by_name("a").unwrap().tenant.usage;
    let kill = |number: usize| sandstorm_accounts::KillRecord {
        extension: "x".into(),
        version: 3,
        cause: sandstorm_net::rpc::KillCause::Panic,
        cpu_us: 1,
        wall_us: 2,
        at_ms: 3,
        worker: 0,
        text: format!("oh no {number}"),
        places: Vec::new(),
        arguments: Vec::new(),
    };
    (0..100).for_each(|number| usage.record_kill(kill(number)));
    usage.record_policy_event(sandstorm_accounts::PolicyEvent {
        extension: "x".into(),
        version: 3,
        what: "slowed",
        at_ms: 4,
        text: "too many".into(),
    });
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let found = loop {
        let found: Vec<Value> = events(&server, &server.operator, "tenant=a")
            .into_iter()
            .filter(|event| event["actor"] == "server")
            .collect();
        if found.len() >= 3 || std::time::Instant::now() > until {
            break found;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let kills: u64 =
        found.iter().filter(|event| event["code"] == "call.killed").map(|event| event["count"].as_u64().unwrap()).sum();
    assert_eq!(kills, 100, "none is lost: {found:?}");
    assert!(found.iter().any(|event| event["text"] == "v3, panic: oh no 99" && event["subject"] == "x"), "{found:?}");
    assert!(found.iter().any(|event| event["code"] == "extension.slowed" && event["text"] == "v3: too many"));
}

#[test]
fn the_page_has_all_codes_with_their_meanings() {
    let page = include_str!("../../../../../docs/operations.md");
    for code in EventCode::ALL {
        let row = format!("| `{}` | {} |", code.name(), code.meaning());
        assert!(page.lines().any(|line| line == row), "docs/operations.md has no row: {row}");
    }
    let mut names: Vec<&str> = EventCode::ALL.iter().map(|code| code.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), EventCode::ALL.len());
}
