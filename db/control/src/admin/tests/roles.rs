//! Roles: every route with every role, and the life of viewers' tokens.

use super::*;
use crate::admin::access_tokens::{AccessToken, AccessTokenError, AccessTokenTenant, AccessTokens, NewAccessToken};
use crate::admin::code_follower::FollowedCode;
use crate::admin::routes::ROUTES;
use crate::golden::{assert_golden, golden_file};
use sandstorm_catalog::{AgreedImage, DirectoryAgreement, NewTable};

/// The callers, in the order of [`tokens`].
const ASKERS: [&str; 7] =
    ["nobody", "operator", "viewer", "tenant", "its viewer", "another tenant", "another tenant's viewer"];

/// Tokens of all roles, with tenants `a` and `b` made anew.
fn tokens(server: &Server) -> [Option<String>; 7] {
    for tenant in ["a", "b"] {
        server.operator("DELETE", &format!("/v1/tenants/{tenant}"), Value::Null);
    }
    server.operator("DELETE", "/v1/tokens/all", Value::Null);
    let made = |path: &str| {
        let (status, created) = server.operator("POST", path, json!({"name": "all"}));
        assert_eq!(status, 201, "{created}");
        created["token"].as_str().unwrap().to_owned()
    };
    let (own, other) = (server.tenant("a"), server.tenant("b"));
    let (of_own, of_other) = (made("/v1/tenants/a/tokens"), made("/v1/tenants/b/tokens"));
    [
        None,
        Some(server.operator.clone()),
        Some(made("/v1/tokens")),
        Some(own),
        Some(of_own),
        Some(other),
        Some(of_other),
    ]
}

/// The callers that pass, by the words of docs/control.md.
fn admitted(who: &str, has_tenant: bool) -> &'static [&'static str] {
    match (who, has_tenant) {
        ("anyone", _) => &ASKERS,
        ("either", _) => &["operator", "viewer", "tenant", "its viewer", "another tenant", "another tenant's viewer"],
        ("operator", _) => &["operator"],
        ("viewer", _) => &["operator", "viewer"],
        ("tenant", false) => &["operator", "tenant", "another tenant"],
        ("tenant", true) => &["operator", "tenant"],
        ("own viewer", true) => &["tenant", "its viewer"],
        ("tenant viewer", true) => &["operator", "viewer", "tenant", "its viewer"],
        (who, _) => panic!("no rule {who:?}"),
    }
}

#[test]
fn every_route_takes_the_roles_of_its_rule_and_no_others() {
    for route in ROUTES {
        // A route may replace the operator's token, too.
        let server = Server::without_builder();
        let mut path = route.path.replace("{tenant}", "a");
        for name in ["{name}", "{table}", "{to}", "{owner}", "{pattern}"] {
            path = path.replace(name, "x");
        }
        let path = path.replace("{id}", "7");
        let admitted = admitted(route.access.name(), route.path.contains("{tenant}"));
        let tokens = tokens(&server);
        for (asker, token) in ASKERS.iter().zip(&tokens) {
            // What an earlier asker has changed may have ended this token.
            let is_known =
                token.as_ref().is_none_or(|token| server.raw("GET", "/v1/caller", Some(token), b"").0 == 200);
            let is_current = is_known && route.path != "/v1/tenants/{tenant}/rotate";
            let fresh = if is_current { tokens.clone() } else { self::tokens(&server) };
            let at = ASKERS.iter().position(|other| other == asker).unwrap();
            let (status, text) = server.raw(route.method, &path, fresh[at].as_deref(), b"");
            let is_refused = matches!(status, 401 | 403) && text.contains("\"unauthenticated\"");
            let what = format!("{} {path} by {asker}: {status} {text}", route.method);
            assert_eq!(!is_refused, admitted.contains(asker), "{what}");
            if *asker == "nobody" && is_refused {
                assert_eq!(status, 401, "{what}");
            }
        }
    }
}

#[test]
fn what_viewers_may_reach_only_reads() {
    for route in ROUTES.iter().filter(|route| route.access.admits(AccessRole::Viewer)) {
        // Copies of records are for servers that show the cluster's key.
        let cluster = ["/v1/cluster/copy", "/v1/cluster/replica", "/v1/cluster/commands"];
        let calls = ["/v1/cluster/trigger-calls", "/v1/cluster/copy-stream"];
        let others = ["/v1/page/codes", "/ui/session", "/ui/sign-out"];
        let named = [&others[..], &cluster[..], &calls[..]].concat();
        let is_harmless = route.method == "GET" || named.contains(&route.path);
        assert!(is_harmless, "{} {}", route.method, route.path);
        assert_eq!(
            route.access.admits(AccessRole::TenantViewer),
            !matches!(route.access.name(), "viewer"),
            "{}",
            route.path
        );
    }
}

#[test]
fn a_viewers_token_is_shown_once_works_at_once_and_ends() {
    let server = Server::without_builder();
    let own = server.tenant("a");
    let (status, made) = server.operator("POST", "/v1/tokens", json!({"name": "prometheus", "expires_s": 3600}));
    let token = made["token"].as_str().unwrap().to_owned();
    assert_eq!((status, made["access"]["role"].as_str()), (201, Some("viewer")));
    assert_eq!(server.raw("GET", "/metrics", Some(&token), b"").0, 200);
    let (_, listed) = server.operator("GET", "/v1/tokens", Value::Null);
    assert_eq!((&listed[0]["name"], listed.as_array().unwrap().len()), (&json!("prometheus"), 1));
    assert!(!listed.to_string().contains(&token) && listed[0]["expires_ms"].is_u64(), "{listed}");
    for (body, expected) in [
        (json!({"name": "prometheus"}), 409),
        (json!({"name": ""}), 400),
        (json!({"name": "<b>"}), 400),
        (json!({"name": "x".repeat(65)}), 400),
        (json!({"name": "y", "expires_s": 0}), 400),
        (json!({"name": "y", "expires_s": u64::MAX}), 400),
        (json!({"name": "y", "role": "operator"}), 400),
    ] {
        assert_eq!(server.operator("POST", "/v1/tokens", body.clone()).0, expected, "{body}");
    }
    let (_, of_own) = server.json("POST", "/v1/tenants/a/tokens", &own, json!({"name": "prometheus"}));
    let of_own = of_own["token"].as_str().unwrap().to_owned();
    let (_, seen) = server.json("GET", "/v1/tenants", &of_own, Value::Null);
    assert_eq!((seen[0]["name"].as_str(), seen.as_array().unwrap().len()), (Some("a"), 1));
    assert_eq!(server.operator("DELETE", "/v1/tokens/prometheus", Value::Null).0, 200);
    assert_eq!(server.operator("DELETE", "/v1/tokens/prometheus", Value::Null).0, 404);
    assert_eq!(server.raw("GET", "/metrics", Some(&token), b"").0, 401, "it is void at once");
    assert_eq!(server.raw("GET", "/v1/stat", Some(&of_own), b"").0, 200, "another of that name is not");
    // A tenant that is made anew has nothing of the one before.
    server.operator("DELETE", "/v1/tenants/a", Value::Null);
    server.operator("POST", "/v1/tenants", json!({"name": "a", "id": 1}));
    assert_eq!(server.raw("GET", "/v1/stat", Some(&of_own), b"").0, 401);
}

#[test]
fn a_viewer_of_the_server_is_not_told_what_panics_said() {
    let server = Server::without_builder();
    let own = server.tenant("a");
    let snapshot = server.control.directory.snapshot();
    snapshot.by_name("a").unwrap().tenant.usage.record_kill(sandstorm_accounts::KillRecord {
        extension: "x".into(),
        version: 1,
        cause: KillCause::Panic,
        cpu_us: 1,
        wall_us: 1,
        at_ms: now_ms(),
        worker: 0,
        text: "the secret record".into(),
        places: Vec::new(),
        arguments: Vec::new(),
    });
    server.control.collector.look(&server.control.directory, &server.control.events, now_ms() + 10_000);
    let (_, viewer) = server.operator("POST", "/v1/tokens", json!({"name": "v"}));
    let viewer = viewer["token"].as_str().unwrap();
    for path in ["/v1/kills", "/v1/tenants/a/kills", "/v1/events", "/v1/overview", "/v1/overview?tenant=a"] {
        let (status, text) = server.raw("GET", path, Some(viewer), b"");
        assert!(status == 200 && !text.contains("secret") && text.contains("panic"), "{path}: {text}");
    }
    for token in [&server.operator, &own] {
        assert!(server.raw("GET", "/v1/kills", Some(token), b"").1.contains("secret"));
        assert!(server.raw("GET", "/v1/events", Some(token), b"").1.contains("secret"));
    }
    assert!(server.raw("GET", "/v1/overview", Some(&own), b"").1.contains("secret"), "a tenant sees its own");
}

#[test]
fn tokens_of_viewers_survive_a_restart_and_a_damaged_file_gives_no_rights() {
    let state = tempfile::tempdir().unwrap();
    let new = |name: &str, expires_s| NewAccessToken { name: name.into(), tenant: None, expires_s };
    let shown = |tokens: &AccessTokens, token: &str| {
        tokens.shown(&sandstorm_accounts::TokenHash::of_presented(token.as_bytes()).unwrap()).map(|about| about.name)
    };
    let tokens = AccessTokens::open(state.path()).unwrap();
    let (_, lasting) = tokens.create(new("lasting", None), |_| true).unwrap();
    let (_, ending) = tokens.create(new("ending", Some(1)), |_| true).unwrap();
    assert_eq!(shown(&tokens, &ending), Some("ending".to_owned()));
    let path = state.path().join("access-tokens.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(&lasting) && text.contains("lasting"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let again = AccessTokens::open(state.path()).unwrap();
    assert_eq!(shown(&again, &lasting), Some("lasting".to_owned()));
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(shown(&again, &ending), None, "it has ended by itself");
    let tenant = AccessTokenTenant { name: "gone".into(), id: 9, made: 0 };
    let of_gone = again.create(NewAccessToken { tenant: Some(tenant), ..new("x", None) }, |_| false);
    assert!(matches!(of_gone, Err(AccessTokenError::TenantGone(_))));
    let full = (0..).find_map(|number| again.create(new(&format!("n{number}"), None), |_| true).err()).unwrap();
    assert!(matches!(full, AccessTokenError::TooMany(256)), "{full}");
    let written = std::fs::read_to_string(&path).unwrap();
    let flipped = written.replace("\"n1\"", "\"n0\"");
    let newer = written.replace("\"format\": 2", "\"format\": 3");
    for damage in [
        "{",
        flipped.as_str(),
        newer.as_str(),
        "{\"tokens\":[{}]}",
        "{\"tokens\":[{\"name\":\"a\",\"created_ms\":0,\"token_hash\":\"x\"}]}",
    ] {
        std::fs::write(&path, damage).unwrap();
        let error = AccessTokens::open(state.path()).unwrap_err().to_string();
        assert!(error.contains("access-tokens.json") && error.contains("move it away"), "{error}");
        assert_eq!(error.contains("format 3, and this program reads formats up to 2"), damage == newer, "{error}");
    }
}

#[test]
fn golden_files_of_viewers_tokens_are_read_and_the_newest_is_what_is_written() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("access-tokens.json");
    let listed = |tokens: &AccessTokens| {
        let about = |about: AccessToken| (about.name, about.tenant, about.created_ms, about.expires_ms);
        tokens.listed(None).into_iter().map(about).collect::<Vec<_>>()
    };
    // Its two tokens are those of the journal's golden file.
    let tenant = AccessTokenTenant { name: "shop".into(), id: 7, made: 0 };
    let (made_ms, ends_ms) = (1_700_000_000_000, 4_102_444_800_000);
    let expected =
        [("night".to_owned(), None, made_ms, None), ("audit".to_owned(), Some(tenant), made_ms + 1, Some(ends_ms))];
    for format in ["access-tokens-format-1.json", "access-tokens-format-2.json"] {
        std::fs::write(&path, golden_file(format)).unwrap();
        let tokens = AccessTokens::open(state.path()).unwrap();
        assert_eq!(listed(&tokens), expected, "{format}");
        let presented = sandstorm_accounts::TokenHash::of_presented(b"the-token-of-the-golden-journal").unwrap();
        assert!(tokens.shown(&presented).is_some(), "{format}");
        // A change writes the newest format, with what was there.
        tokens.create(NewAccessToken { name: "more".into(), tenant: None, expires_s: None }, |_| true).unwrap();
        tokens.revoke(&(None, "more".to_owned())).unwrap();
        assert_golden("access-tokens-format-2.json", &std::fs::read(&path).unwrap());
    }
}

#[test]
fn viewers_of_a_tenant_that_another_server_has_deleted_see_nothing_of_its_successor() {
    let agreement: Arc<dyn DirectoryAgreement> = Arc::new(testing::AgreedInMemory::default());
    let [here, there] = [(); 2].map(|()| {
        let directory = Directory::with_options(Epochs::new(), DirectoryOptions::default());
        let found = AgreedImage::read(&*agreement, &Default::default()).unwrap();
        directory.agree_with(&agreement, found.as_ref()).unwrap();
        directory
    });
    let extensions = ArtifactSources::from(Err("none in this test".to_owned()));
    let server = Server::start_with(Arc::clone(&here), extensions.into());
    let make = |name: &str, id: u32| {
        there.create_tenant(NewTenant { id: Some(id), ..NewTenant::named(name) }).unwrap();
        here.catch_up().unwrap();
    };
    let delete = |name: &str| {
        there.delete_tenant(name).unwrap();
        here.catch_up().unwrap();
    };
    let viewer = |tenant: &str| {
        let (status, made) = server.operator("POST", &format!("/v1/tenants/{tenant}/tokens"), json!({"name": "v"}));
        assert_eq!(status, 201, "{made}");
        made["token"].as_str().unwrap().to_owned()
    };
    let status = |token: &str| server.raw("GET", "/v1/caller", Some(token), b"").0;
    make("a", 7);
    make("b", 8);
    make("c", 9);
    let (of_a, of_b, of_c) = (viewer("a"), viewer("b"), viewer("c"));
    let mut follow = FollowedCode::new(&server.control, &Arc::default());
    assert_eq!([&of_a, &of_b].map(|token| status(token)), [200; 2]);
    // Both are seen at once, by the thread that follows. Its successor's token holds.
    delete("a");
    make("a", 7);
    let of_successor = viewer("a");
    follow.look(false);
    assert_eq!([&of_a, &of_b, &of_successor].map(|token| status(token)), [401, 200, 200]);
    // Both come with the same news.
    there.delete_tenant("c").unwrap();
    make("c", 9);
    assert_eq!(status(&of_c), 401);
    follow.look(false);
    assert_eq!(status(&viewer("c")), 200);
    here.create_table("c", NewTable { quota_bytes: Some(1 << 20), ..NewTable::named("t") }).unwrap();
    there.catch_up().unwrap();
    // One that was deleted while this server was down.
    delete("b");
    let _started = FollowedCode::new(&server.control, &Arc::default());
    make("b", 8);
    assert_eq!(status(&of_b), 401);
    let of = |token: AccessToken| token.tenant.unwrap().name;
    assert_eq!(server.control.access_tokens.listed(None).into_iter().map(of).collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn a_token_that_is_made_under_a_revoked_ones_name_is_another_one() {
    let tokens = AccessTokens::in_memory();
    let make = || {
        let new = NewAccessToken { name: "v".into(), tenant: None, expires_s: None };
        tokens.create(new, |_| true).unwrap().0.id()
    };
    let first = make();
    assert!(tokens.has(&first));
    tokens.revoke(&(None, "v".to_owned())).unwrap();
    let second = make();
    // A request that has waited since the first one was good is answered no more.
    assert_eq!((tokens.has(&first), tokens.has(&second)), (false, true));
}
