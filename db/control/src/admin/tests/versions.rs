//! Versions of an extension that are kept, with a builder of which each answer is known.

use super::rebuilds::{ScriptedBuilder, server, sources, started_with};
use super::*;
use sandstorm_net::CodePolicy;

impl Server {
    /// The versions of an extension that are there, newest first, with their states.
    pub(super) fn versions(&self, name: &str) -> Vec<(u64, String)> {
        let shown = self.extension("a", name);
        let versions = shown["versions"].as_array().unwrap_or_else(|| panic!("{shown}")).iter();
        let row = |one: &Value| (one["version"].as_u64().unwrap(), one["state"].as_str().unwrap().to_owned());
        versions.map(row).filter(|(_, state)| state != "gone").collect()
    }

    pub(super) fn roll_back(&self, name: &str, body: Value) -> (u16, Value) {
        self.operator("POST", &format!("/v1/tenants/a/extensions/{name}/rollback"), body)
    }

    fn stage(&self, name: &str, comment: &str) -> (u16, Value) {
        let path = format!("/v1/tenants/a/extensions/{name}?stage=true");
        self.operator("PUT", &path, source(name, &format!("/* {comment} */ Ok(())")))
    }
}

fn rows(rows: &[(u64, &str)]) -> Vec<(u64, String)> {
    rows.iter().map(|(version, state)| (*version, (*state).to_owned())).collect()
}

/// The names of the files of extensions in a state directory.
fn files(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("extensions")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_last_five_are_kept_over_a_restart_and_any_of_them_is_called_again() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Arc::new(ScriptedBuilder::default());
    let server = started_with(folder.path(), sources(&builder), &[]);
    server.create("a", CodePolicy::Sandboxed);
    for version in 1..=7 {
        assert_eq!(server.push_to("a", "e", &format!("the {version}th")).0, 201);
    }
    let all = [(7, "current"), (6, "kept"), (5, "kept"), (4, "kept"), (3, "kept")];
    assert_eq!(server.versions("e"), rows(&all));
    assert_eq!(files(folder.path()).len(), 10, "artifact and source of each: {:?}", files(folder.path()));
    let (status, back) = server.roll_back("e", Value::Null);
    assert_eq!((status, &back["version"]), (200, &json!(6)), "{back}");
    let (status, back) = server.roll_back("e", json!({"version": 3}));
    assert_eq!((status, &back["version"]), (200, &json!(3)), "{back}");
    let (_, events) = server.operator("GET", "/v1/events?code=extension.rolled_back", Value::Null);
    assert_eq!(events["events"][1]["text"], "v6 -> v3", "{events}");
    for (version, code, hint) in [(3, "exists", "is the one"), (2, "not_found", "kept are 3, 4, 5, 6, 7")] {
        let (status, refused) = server.roll_back("e", json!({"version": version}));
        assert!(status >= 400 && refused["code"] == code, "{status} {refused}");
        assert!(refused["message"].as_str().unwrap().contains(hint), "{refused}");
    }
    assert_eq!(server.roll_back("e", Value::Null).0, 404, "nothing below is kept");
    let digests = server.extension("a", "e")["versions"].to_string();
    drop(server);

    let builds = builder.asked().len();
    let server = started_with(folder.path(), sources(&builder), &[]);
    let all = [(7, "kept"), (6, "kept"), (5, "kept"), (4, "kept"), (3, "current")];
    assert_eq!(server.versions("e"), rows(&all));
    for row in server.extension("a", "e")["versions"].as_array().unwrap() {
        assert!(digests.contains(row["source_digest"].as_str().unwrap()), "the digests are those of before: {row}");
    }
    assert_eq!(server.roll_back("e", json!({"version": 7})).1["version"], 7);
    assert_eq!(builder.asked().len(), builds, "nothing was built again");
    assert_eq!(server.push_to("a", "e", "the eighth").1["version"], 8);
    assert_eq!(server.versions("e")[4], (4, "kept".to_owned()));
    assert_eq!(files(folder.path()).len(), 10);
    assert_eq!(server.operator("DELETE", "/v1/tenants/a/extensions/e", Value::Null).0, 200);
    assert_eq!(files(folder.path()), [] as [String; 0]);
    assert_eq!(server.push_to("a", "e", "again").1["version"], 9, "no number comes twice");
}

#[test]
fn a_version_with_what_is_denied_since_is_kept_and_refused_by_the_rules_name() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    for comment in ["peekable", "clean"] {
        assert_eq!(server.push_to("a", "e", comment).0, 201);
    }
    let recheck = |body: Value| {
        let (_, begun) = server.operator("POST", "/v1/recheck", body);
        server.results(begun["id"].as_u64().unwrap())
    };
    recheck(json!({"rule": "peekable", "then": "sandbox"}));
    assert_eq!(server.versions("e"), rows(&[(2, "current"), (1, "refused")]));
    let shown = server.extension("a", "e");
    assert!(shown["versions"][1]["refused"].as_str().unwrap().contains("[denied]"), "{shown}");
    for body in [Value::Null, json!({"version": 1})] {
        let (status, refused) = server.roll_back("e", body.clone());
        assert!(status == 404 || (status == 403 && refused["message"].to_string().contains("[denied]")), "{refused}");
    }
    let view = server.view("a");
    assert!(view.callable_version("e", 1).is_err(), "nor is it called by its number");
    assert_eq!(server.operator("DELETE", "/v1/denied/peekable", Value::Null).0, 200);
    recheck(Value::Null);
    assert_eq!(server.versions("e"), rows(&[(2, "current"), (1, "kept")]), "once it is allowed again");
    assert_eq!(server.roll_back("e", Value::Null).1["version"], 1);
}

#[test]
fn a_version_of_another_tier_is_built_again_when_it_is_asked_for() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Sandboxed);
    for comment in ["not-native", "better", "best"] {
        assert_eq!(server.push_to("a", "e", comment).0, 201);
    }
    server.moved("a", CodePolicy::Native);
    assert_eq!(server.versions("e"), rows(&[(3, "current"), (2, "other_tier"), (1, "other_tier")]));
    let (status, back) = server.roll_back("e", Value::Null);
    assert_eq!((status, &back["version"], &back["tier"]), (200, &json!(2), &json!("native")), "{back}");
    let (status, refused) = server.roll_back("e", Value::Null);
    assert_eq!((status, &refused["code"]), (409, &json!("refused")), "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("the checker refuses it"), "{refused}");
    assert_eq!(server.extension("a", "e")["version"], 2, "the one that was called is called on");
}

#[test]
fn a_staged_version_is_not_called_until_it_is_asked_for() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Sandboxed);
    let (status, refused) = server.stage("e", "first");
    assert_eq!((status, builder.asked().len()), (404, 0), "there is none to be called meanwhile: {refused}");
    assert_eq!(server.push_to("a", "e", "first").0, 201);
    let (status, staged) = server.stage("e", "second");
    assert_eq!((status, &staged["version"], &staged["extension"]["version"]), (201, &json!(2), &json!(1)), "{staged}");
    assert_eq!(server.versions("e"), rows(&[(2, "kept"), (1, "current")]));
    assert_eq!(server.roll_back("e", json!({"version": 2})).1["version"], 2);
}

#[test]
fn a_shared_extension_is_enabled_pinned_followed_and_there_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Arc::new(ScriptedBuilder::default());
    let server = started_with(folder.path(), sources(&builder), &[]);
    for name in ["a", "b", "c"] {
        server.create(name, CodePolicy::Sandboxed);
    }
    let token = server.tenant("d");
    assert_eq!(server.push_to("a", "e", "first").0, 201);
    let of = |follow: bool| json!({"owner": "a", "extension": "e", "follow": follow});
    let everybody = json!({"of": of(false), "name": "e"});
    let (status, refused) = server.operator("POST", "/v1/catalogue/enable", everybody.clone());
    assert_eq!((status, &refused["code"]), (404, &json!("not_found")), "it is not shared: {refused}");
    assert_eq!(server.operator("PUT", "/v1/tenants/a/extensions/e/share", Value::Null).0, 200);
    let (status, enabled) = server.operator("POST", "/v1/catalogue/enable", everybody);
    assert_eq!((status, &enabled["tenants"], &enabled["version"]), (201, &json!(3), &json!(1)), "{enabled}");
    assert_eq!(server.json("DELETE", "/v1/tenants/d/extensions/e/enabled", &token, Value::Null).0, 200);
    assert_eq!(server.json("GET", "/v1/catalogue", &token, Value::Null).1[0]["enabled"], 0);
    let (status, refused) = server.json("PUT", "/v1/tenants/d/extensions/e/share", &token, Value::Null);
    assert_eq!(status, 400, "a tenant does not share with all: {refused}");

    let enable = server.operator("PUT", "/v1/tenants/b/extensions/e/enabled", of(true));
    assert_eq!(enable.0, 201, "{}", enable.1);
    (2..=7).for_each(|number| assert_eq!(server.push_to("a", "e", &number.to_string()).0, 201));
    let version = |server: &Server, tenant: &str| server.extension(tenant, "e")["version"].clone();
    assert_eq!((version(&server, "b"), version(&server, "c")), (json!(7), json!(1)), "who follows, and who does not");
    let from = json!({"owner": "a", "extension": "e", "follow": false});
    assert_eq!(server.extension("c", "e")["enabled_from"], from);
    let id = server.view("a").tenant.id;
    assert!(files(folder.path()).contains(&format!("{id}-1-e.artifact")), "it is needed still");
    let (status, refused) = server.operator("DELETE", "/v1/tenants/a/extensions/e", Value::Null);
    assert!(status == 409 && refused["message"].to_string().contains("enabled for 2 other tenants"), "{refused}");
    assert_eq!(server.push_to("c", "e", "mine").0, 409, "it is not pushed over");
    drop(server);

    let server = started_with(folder.path(), sources(&builder), &[]);
    assert_eq!((version(&server, "b"), version(&server, "c")), (json!(7), json!(1)));
    assert_eq!(server.operator("POST", "/v1/tenants/c/extensions/e/suspend", Value::Null).0, 200);
    let suspended = |tenant: &str| server.extension(tenant, "e")["suspended"].clone();
    assert_eq!((suspended("b"), suspended("c")), (json!(false), json!(true)), "each has a switch of its own");
    let moved = server.operator("PATCH", "/v1/tenants/a", json!({"code": "native"}));
    assert_eq!(moved.0, 400, "native code is not shared: {}", moved.1);
    assert_eq!(server.operator("DELETE", "/v1/tenants/a/extensions/e/share?disable=true", Value::Null).0, 200);
    assert_eq!(server.operator("GET", "/v1/tenants/b/extensions/e", Value::Null).0, 404);
    assert_eq!(server.operator("DELETE", "/v1/tenants/a/extensions/e", Value::Null).0, 200);
}
