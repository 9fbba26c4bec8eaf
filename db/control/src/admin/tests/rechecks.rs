//! What the operator denies to native code while the server runs.

use std::time::Duration;

use super::rebuilds::{ScriptedBuilder, server, sources, started_with};
use super::*;
use sandstorm_net::{CodePolicy, CodeTier};

type Results = Vec<(String, u64, String, String)>;

impl Server {
    /// Denies a pattern, and waits until all that is loaded was looked at.
    fn revoked(&self, rule: &str, then: &str) -> Results {
        self.rechecked(json!({"rule": rule, "then": then}))
    }

    fn rechecked(&self, body: Value) -> Results {
        let (status, begun) = self.operator("POST", "/v1/recheck", body);
        assert_eq!(status, 202, "{begun}");
        self.results(begun["id"].as_u64().unwrap())
    }

    fn denied(&self) -> Vec<String> {
        let (_, denied) = self.operator("GET", "/v1/denied", Value::Null);
        denied.as_array().unwrap().iter().map(|one| one["pattern"].as_str().unwrap().to_owned()).collect()
    }
}

fn outcome<'a>(results: &'a Results, name: &str) -> (&'a str, &'a str) {
    let found = results.iter().find(|(one, ..)| one == name).unwrap_or_else(|| panic!("{name}: {results:?}"));
    (&found.2, &found.3)
}

#[test]
fn what_has_a_denied_pattern_moves_to_the_sandboxed_tier_under_its_name_and_version() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    server.create("b", CodePolicy::Sandboxed);
    for (tenant, name, comment) in [("a", "clean", ""), ("a", "has", "peekable"), ("b", "has", "peekable")] {
        assert_eq!(server.push_to(tenant, name, comment).0, 201);
    }
    let clean = server.view("a").extension("clean").unwrap().clone();
    let results = server.revoked("peekable", "sandbox");
    assert_eq!(results.len(), 2, "what is sandboxed is not concerned: {results:?}");
    assert_eq!(outcome(&results, "clean"), ("unchanged", ""));
    let (result, why) = outcome(&results, "has");
    assert!(result == "confined" && why.contains("the checker refuses it: src/lib.rs:4:") && why.contains("[denied]"));
    assert!(Arc::ptr_eq(server.view("a").extension("clean").unwrap(), &clean));
    let shown = server.extension("a", "has");
    assert_eq!(
        (&shown["tier"], &shown["version"], &shown["suspended"]),
        (&json!("sandboxed"), &json!(1), &json!(false))
    );
    assert!(
        shown["notice"].as_str().unwrap().contains("although the tenant is native: the checker refuses"),
        "{shown}"
    );
    assert_eq!(server.denied(), ["peekable"]);

    let (status, refused) = server.push_to("a", "new", "peekable");
    assert_eq!((status, &refused["diagnostics"][0]["rule"]), (422, &json!("denied")), "{refused}");
    let (status, pushed) = server.push_to("a", "has", "peekable still");
    assert_eq!(
        (status, &pushed["extension"]["tier"]),
        (201, &json!("sandboxed")),
        "its next version is, too: {pushed}"
    );
    let again = server.revoked("peekable", "sandbox");
    assert_eq!((again.len(), server.denied().len()), (1, 1), "only native code: {again:?}");

    let stays = server.moved("a", CodePolicy::Native);
    let (result, why) = outcome(&stays, "has");
    assert!(result == "unchanged" && why.contains("it stays in the sandboxed tier: "), "{result}: {why}");
    assert_eq!(server.operator("DELETE", "/v1/denied/peekable", Value::Null).0, 200);
    assert_eq!(server.operator("DELETE", "/v1/denied/peekable", Value::Null).0, 404);
    let back = server.moved("a", CodePolicy::Native);
    assert_eq!(outcome(&back, "has").0, "rebuilt");
    let shown = server.extension("a", "has");
    assert_eq!((&shown["tier"], &shown["version"]), (&json!("native"), &json!(2)));
    assert_eq!(server.push_to("a", "new", "peekable").0, 201);
}

#[test]
fn what_has_a_denied_pattern_is_suspended_until_a_version_without_it_is_pushed() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    for (name, comment) in [("one", "peekable"), ("two", "peekable"), ("clean", "")] {
        assert_eq!(server.push_to("a", name, comment).0, 201);
    }
    let asked = builder.asked().len();
    let results = server.revoked("peekable", "suspend");
    assert_eq!(builder.asked().len(), asked, "nothing is built");
    assert_eq!((outcome(&results, "one").0, outcome(&results, "clean").0), ("suspended", "unchanged"));
    let shown = server.extension("a", "one");
    let notice = shown["notice"].as_str().unwrap();
    assert!(shown["suspended"] == true && notice.contains("[denied]") && notice.contains("push it again"), "{shown}");
    assert_eq!(server.push_to("a", "one", "peekable").0, 422);
    assert_eq!(server.extension("a", "one")["suspended"], true);
    assert_eq!(server.push_to("a", "one", "better").0, 201);
    assert_eq!(server.extension("a", "one")["suspended"], false);

    let still = server.rechecked(Value::Null);
    assert_eq!((outcome(&still, "one").0, outcome(&still, "two").0), ("unchanged", "confined"), "the other remedy");
    server.moved("a", CodePolicy::Native);
    server.operator("DELETE", "/v1/denied/peekable", Value::Null);
    server.moved("a", CodePolicy::Native);
    assert_eq!(outcome(&server.revoked("peekable", "suspend"), "two").0, "suspended");
    server.operator("DELETE", "/v1/denied/peekable", Value::Null);
    assert_eq!(outcome(&server.rechecked(json!({"then": "suspend"})), "two").0, "unchanged");
    assert_eq!(server.extension("a", "two")["suspended"], false, "it passes again");
}

#[test]
fn what_passes_in_neither_tier_is_suspended_and_its_next_version_may_be_native() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    assert_eq!(server.push_to("a", "one", "peekable not-sandboxed").0, 201);
    let results = server.revoked("peekable", "sandbox");
    let (result, why) = outcome(&results, "one");
    assert!(result == "suspended" && why.contains("[static], and 1 more; and not natively: "), "{result}: {why}");
    assert!(server.view("a").confined.is_empty());
    let (status, pushed) = server.push_to("a", "one", "");
    assert_eq!((status, &pushed["extension"]["tier"]), (201, &json!("native")), "{pushed}");
    assert_eq!(server.extension("a", "one")["suspended"], false);
}

#[test]
fn what_cannot_be_looked_at_is_suspended_and_not_loaded() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    assert_eq!(server.push_to("a", "one", "").0, 201);
    let files = serde_json::from_value(source("up", "Ok(())")["files"].clone()).unwrap();
    let source = PushedSource::new("name = \"up\"", files).unwrap();
    let tenant = server.view("a").tenant.id;
    let request = |version| {
        let (tier, denied, source) = (CodeTier::Native, Vec::new(), source.clone());
        BuildRequest { tenant, version, source: source.into(), tier, denied, check_only: false }
    };
    let artifact = |version| builder.build(&request(version)).unwrap().0.encode();
    let upload = |artifact: &[u8]| {
        let path = "/v1/tenants/a/extensions/up/artifact";
        let (status, text) = server.raw("PUT", path, Some(&server.operator), artifact);
        (status, serde_json::from_str::<Value>(&text).unwrap()["code"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(upload(&artifact(1)).0, 201);
    assert_eq!(outcome(&server.rechecked(Value::Null), "up").0, "unchanged", "nothing is denied");
    let results = server.revoked("peekable", "sandbox");
    let (result, why) = outcome(&results, "up");
    assert!(result == "suspended" && why.contains("its source is not kept"), "{result}: {why}");
    assert_eq!(upload(&artifact(2)), (422, "artifact_unchecked".to_owned()));

    *builder.broken.lock() = true;
    let results = server.rechecked(Value::Null);
    let (result, why) = outcome(&results, "one");
    assert!(result == "suspended" && why.contains("it is broken"), "{result}: {why}");
    assert!(server.view("a").confined.is_empty(), "that is no fault of the source");
    *builder.broken.lock() = false;
    assert_eq!(outcome(&server.rechecked(Value::Null), "one").0, "unchanged");
    assert!(!server.view("a").is_suspended("one"));
}

#[test]
fn a_push_that_was_built_before_is_looked_at_again() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    builder.stop(true);
    std::thread::scope(|scope| {
        let push = scope.spawn(|| server.push_to("a", "has", "peekable"));
        let other = scope.spawn(|| {
            server.create("b", CodePolicy::Native);
            server.push_to("b", "clean", "")
        });
        while builder.asked().len() < 2 {
            std::thread::sleep(Duration::from_millis(2));
        }
        // It waits for nothing that is being built: nothing of it is loaded yet.
        assert_eq!(server.revoked("peekable", "sandbox"), []);
        builder.stop(false);
        let (status, refused) = push.join().unwrap();
        assert_eq!((status, &refused["diagnostics"][0]["rule"]), (422, &json!("denied")), "{refused}");
        assert_eq!(other.join().unwrap().0, 201);
    });
}

#[test]
fn what_is_no_pattern_changes_nothing_and_a_rule_of_the_checker_needs_none() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    assert_eq!(server.push_to("a", "one", "").0, 201);
    for (rule, why) in [("match-gard", "there is no shape of that name"), ("(", "neither a shape nor Rust tokens")] {
        let (status, refused) = server.operator("POST", "/v1/recheck", json!({"rule": rule}));
        assert_eq!((status, refused["code"].as_str()), (400, Some("invalid")), "{refused}");
        assert!(refused["message"].as_str().unwrap().contains(why), "{refused}");
    }
    let (status, refused) = server.operator("POST", "/v1/recheck", json!({"then": "ignore"}));
    assert_eq!(status, 400, "{refused}");
    assert_eq!(outcome(&server.revoked("guard", "sandbox"), "one").0, "unchanged");
    assert_eq!(server.denied(), [] as [String; 0], "the checker refuses that already");
    assert_eq!(outcome(&server.revoked("$_ . peekable()", "sandbox"), "one").0, "unchanged");
    assert_eq!(server.operator("DELETE", "/v1/denied/%24_%20.%20peekable%28%29", Value::Null).0, 200);
    let without = Server::without_builder();
    let (status, refused) = without.operator("POST", "/v1/recheck", json!({"rule": "peekable"}));
    assert_eq!((status, refused["code"].as_str()), (503, Some("builder")), "{refused}");
    assert_eq!(without.denied(), [] as [String; 0]);
}

#[test]
fn what_is_denied_survives_a_restart_and_what_the_file_denies_is_looked_for_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Arc::new(ScriptedBuilder::default());
    let started = |deny: &[&str]| started_with(folder.path(), sources(&builder), deny);
    let server = started(&[]);
    server.create("a", CodePolicy::Native);
    for (name, comment) in [("one", "peekable"), ("two", "flatten"), ("clean", "")] {
        assert_eq!(server.push_to("a", name, comment).0, 201);
    }
    server.revoked("peekable", "sandbox");
    drop(server);
    let server = started(&[]);
    assert_eq!(server.denied(), ["peekable"]);
    assert_eq!(server.extension("a", "one")["tier"], "sandboxed", "it is loaded as it was");
    assert_eq!(server.operator("GET", "/v1/rebuilds/1", Value::Null).0, 404, "nothing has to be looked at");
    assert_eq!(server.push_to("a", "new", "peekable").0, 422);
    drop(server);

    let server = started(&["flatten"]);
    assert_eq!(server.denied(), ["flatten", "peekable"]);
    let results = server.results(1);
    assert_eq!((outcome(&results, "two").0, outcome(&results, "clean").0), ("confined", "unchanged"), "{results:?}");
    let (status, refused) = server.operator("DELETE", "/v1/denied/flatten", Value::Null);
    assert_eq!((status, refused["code"].as_str()), (409, Some("exists")), "{refused}");
    drop(server);
    let server = started(&["flatten"]);
    assert_eq!(server.operator("GET", "/v1/rebuilds/1", Value::Null).0, 404, "that was done");
    assert_eq!(server.extension("a", "two")["tier"], "sandboxed");
    drop(server);

    // A server that cannot look lets nothing run that it has not looked at.
    let none = ArtifactSources { own_key: builder.key(), ..sources(&builder) };
    let none = ArtifactSources { builder: Err("none in this test".into()), ..none };
    let server = started_with(folder.path(), none, &["clean"]);
    assert_eq!(outcome(&server.results(1), "clean").0, "suspended");
    drop(server);
    let server = started(&["flatten"]);
    let results = server.results(1);
    assert_eq!(outcome(&results, "clean").0, "unchanged", "{results:?}");
    assert!(!server.view("a").is_suspended("clean"));
}
