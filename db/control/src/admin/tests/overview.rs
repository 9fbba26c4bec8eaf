//! All extensions and kills in one answer each: sorted, filtered, and nobody sees another's.

use super::*;
use sandstorm_accounts::{KillRecord, PolicyEvent};
use sandstorm_extension::{BudgetOverride, ExtensionLibrary, InvocationOutcome, LoadedExtension};
use sandstorm_net::rpc::KillCause;

/// Loads an extension with so many calls of a millisecond each, of which `kills` were killed.
fn load(server: &Server, tenant: &str, name: &str, (calls, kills): (u64, u64)) {
    let extension = LoadedExtension::new(name, 1, ExtensionLibrary::of_nothing(), BudgetOverride::default());
    for call in 0..calls {
        let killed = InvocationOutcome::Killed(KillCause::Panic);
        extension.begun(0);
        extension.stats.ended(0, if call < kills { killed } else { InvocationOutcome::Done }, 1_000_000);
        extension.latency.record(0, 2_000_000, 1_000_000);
    }
    server.control.directory.put_extension(tenant, Arc::new(extension)).unwrap();
}

#[test]
fn all_extensions_are_listed_in_the_order_that_is_asked_for() {
    let server = Server::without_builder();
    let (of_a, _) = (server.tenant("a"), server.tenant("b"));
    for (tenant, name, counts) in [("a", "quiet", (1, 0)), ("b", "busy", (9, 1)), ("a", "broken", (5, 5))] {
        load(&server, tenant, name, counts);
    }
    let list = |token: &str, query: &str| {
        let (status, list) = server.json("GET", &format!("/v1/extensions?{query}"), token, Value::Null);
        assert_eq!(status, 200, "{list}");
        list.as_array().unwrap().clone()
    };
    let names = |list: Vec<Value>| list.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(list(&server.operator, "")), ["broken", "quiet", "busy"], "by tenant and name");
    for sort in ["cpu", "calls"] {
        assert_eq!(names(list(&server.operator, &format!("sort={sort}"))), ["busy", "broken", "quiet"]);
    }
    assert_eq!(names(list(&server.operator, "sort=kills&limit=2")), ["broken", "busy"]);
    assert_eq!(names(list(&of_a, "sort=calls")), ["broken", "quiet"], "a tenant sees its own");
    let broken = &list(&server.operator, "sort=kills&tenant=a&limit=1")[0];
    let stats = &broken["stats"];
    assert_eq!((&stats["invocations"], &stats["killed"], &stats["cpu_us"]), (&json!(5), &json!(5), &json!(5_000)));
    let p99_ns = broken["p99_ns"].as_u64().unwrap();
    assert!(p99_ns.abs_diff(3_000_000) <= 3_000_000 / 64, "{broken}");
    assert_eq!(server.operator("GET", "/v1/extensions?sort=beauty", Value::Null).0, 400);
}

#[test]
fn kills_are_found_by_tenant_extension_cause_and_time() {
    let server = Server::without_builder();
    let (of_a, _) = (server.tenant("a"), server.tenant("b"));
    let snapshot = server.control.directory.snapshot();
    let usage = |tenant: &str| &snapshot.by_name(tenant).unwrap().tenant.usage;
    for (tenant, extension, cause, at_ms) in [
        ("a", "x", KillCause::Panic, 10),
        ("a", "y", KillCause::Panic, 20),
        ("a", "x", KillCause::TotalBudget, 30),
        ("b", "x", KillCause::Panic, 40),
    ] {
        let (extension, text) = (extension.to_owned(), String::new());
        usage(tenant).record_kill(KillRecord {
            extension,
            version: 1,
            cause,
            cpu_us: 1,
            wall_us: 2,
            at_ms,
            worker: 0,
            text,
        });
    }
    let (extension, text) = ("x".to_owned(), "often killed".to_owned());
    usage("a").record_policy_event(PolicyEvent { extension, version: 1, what: "slowed", at_ms: 25, text });
    let found = |token: &str, query: &str| {
        let (status, kills) = server.json("GET", &format!("/v1/kills?{query}"), token, Value::Null);
        assert_eq!(status, 200, "{kills}");
        kills.as_array().unwrap().iter().map(|kill| kill["at_ms"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let operator = server.operator.as_str();
    assert_eq!(found(operator, ""), [40, 30, 25, 20, 10]);
    assert_eq!(found(operator, "tenant=a"), [30, 25, 20, 10]);
    assert_eq!(found(operator, "extension=x"), [40, 30, 25, 10]);
    assert_eq!(found(operator, "cause=panic&limit=2"), [40, 20]);
    assert_eq!(found(operator, "cause=notice"), [25]);
    assert_eq!(found(operator, "since_ms=25&tenant=a"), [30, 25]);
    assert_eq!(found(operator, "tenant=a&extension=x&cause=total_budget"), [30]);
    assert_eq!(found(&of_a, "extension=x"), [30, 25, 10], "a tenant sees its own");
    let (status, error) = server.operator("GET", "/v1/kills?cause=boredom", Value::Null);
    assert_eq!((status, error["hint"].as_str().unwrap().contains("total_budget")), (400, true), "{error}");
}
