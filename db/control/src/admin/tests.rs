//! The control port over real HTTP, in this process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sandstorm_net::rpc::KillCause;
use serde_json::{Value, json};

use super::*;
use sandstorm_accounts::{limits::CHANGES_BURST, limits::CHANGES_PER_S, token};
use sandstorm_builder::protocol::BuildRequest;
use sandstorm_builder::{
    Artifact, ArtifactHeader, BuildError, BuilderKey, CompileJob, CompileLimits, CompilerLauncher, Diagnostic,
    PublicKey, PushedCode, PushedSource, Toolchain, ToolchainConfig, api_fingerprint, check, checker_fingerprint,
    compile,
};
use sandstorm_catalog::{DirectoryOptions, NewTenant, QuotaChanges, testing};
use sandstorm_net::{CodeOrigin, CodeTier};
use sandstorm_store::Epochs;

mod auth;
mod browser;
mod changes;
mod events;
mod hot;
mod logs;
mod neighbours;
mod overview;
mod page;
mod pushes;
mod rebuilds;
mod rechecks;
mod roles;
mod versions;

/// A builder in this process, without the sandbox, which needs a program of its own.
struct TestBuilder {
    toolchain: Toolchain,
    key: BuilderKey,
}

fn test_builder() -> Arc<TestBuilder> {
    static BUILDER: OnceLock<Arc<TestBuilder>> = OnceLock::new();
    let make = || {
        let state = std::env::temp_dir().join("sandstorm-test-admin");
        std::fs::create_dir_all(&state).unwrap();
        let key = BuilderKey::open(&state).unwrap();
        let toolchain = Toolchain::prepare(&ToolchainConfig { state, ..ToolchainConfig::default() }).unwrap();
        Arc::new(TestBuilder { toolchain, key })
    };
    BUILDER.get_or_init(make).clone()
}

/// The source that is to be built; modules are not this builder's business.
fn source_of(request: &BuildRequest) -> Result<&PushedSource, BuildError> {
    match &request.source {
        PushedCode::Source(source) => Ok(source),
        PushedCode::Module(_) => Err(BuildError::Internal("this builder builds sources".to_owned())),
    }
}

impl ArtifactBuilder for TestBuilder {
    fn build(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        let BuildRequest { tenant, version, tier, .. } = request;
        let source = source_of(request)?;
        check(source, &[], CodeTier::Native)?;
        let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() };
        let elf = compile(&self.toolchain, source, &job)?;
        let header = ArtifactHeader {
            tenant: *tenant,
            abi_version: sandstorm_api::abi::ABI_VERSION,
            version: *version,
            compiler: 7,
            api_fingerprint: api_fingerprint(),
            checker: checker_fingerprint(),
            source_digest: source.digest(),
            elf_digest: [0; 32],
            tier: *tier,
            origin: CodeOrigin::Source,
            name: source.manifest.name.clone(),
            schema: None,
        };
        Ok((Artifact::sign(&self.key, header, elf), Vec::new()))
    }

    fn check(&self, request: &BuildRequest) -> Result<(), BuildError> {
        check(source_of(request)?, &[], CodeTier::Native)
    }

    fn key(&self) -> Option<PublicKey> {
        Some(self.key.public())
    }

    fn compiler(&self) -> Option<u64> {
        Some(7)
    }

    fn release(&self) -> String {
        self.toolchain.rustc.release.clone()
    }
}

struct Server {
    admin: AdminServer,
    control: Arc<ControlState>,
    operator: String,
    stops: Arc<AtomicUsize>,
    agent: ureq::Agent,
}

impl Server {
    fn start(builder: Result<Arc<dyn ArtifactBuilder>, String>) -> Server {
        Server::start_from(ArtifactSources::from(builder).into())
    }

    /// A server whose extensions come from there, with an empty directory.
    fn start_from(extensions: RestoredExtensions) -> Server {
        let options = DirectoryOptions { workers: 2, code: testing::code(), ..DirectoryOptions::default() };
        let directory = Directory::with_options(Epochs::new(), options);
        Server::start_with(directory, extensions)
    }

    /// The same with this directory.
    fn start_with(directory: Arc<Directory>, extensions: RestoredExtensions) -> Server {
        let (operator, stops) = (token::generate(), Arc::new(AtomicUsize::new(0)));
        let (stopped, data) = (stops.clone(), "127.0.0.1:7400".parse().unwrap());
        let (listen, metrics, keys) = (Vec::new(), ServerMetrics::new(2), OperatorCredentials::new(&operator, None));
        let served = DataPlaneView { directory, metrics, data, listen, calls: None, profiler: None, moves: None };
        let control = ControlState::new(served, extensions, keys, move || {
            stopped.fetch_add(1, Ordering::Relaxed);
        });
        let admin = AdminServer::start("127.0.0.1:0".parse().unwrap(), control.clone(), None).unwrap();
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .proxy(None)
            .build();
        Server { admin, control, operator, stops, agent: config.new_agent() }
    }

    fn without_builder() -> Server {
        Server::start(Err("none in this test".into()))
    }

    /// One request; status and body.
    fn raw(&self, method: &str, path: &str, token: Option<&str>, body: &[u8]) -> (u16, String) {
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("http://{}{path}", self.admin.address()));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = self.agent.run(request.body(body).unwrap()).unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    fn json(&self, method: &str, path: &str, token: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let (status, text) = self.raw(method, path, Some(token), &body);
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{method} {path}: {text}")))
    }

    fn operator(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.json(method, path, &self.operator, body)
    }

    /// A tenant and its token.
    fn tenant(&self, name: &str) -> String {
        let (status, created) = self.operator("POST", "/v1/tenants", json!({"name": name}));
        assert_eq!((status, created["tenant"]["name"].as_str()), (201, Some(name)));
        created["token"].as_str().unwrap().to_owned()
    }
}

/// Permissions: a route, a body, and the statuses for the operator, the tenant itself, another tenant, and no token.
const MATRIX: &[(&str, &str, &str, [u16; 4])] = &[
    ("GET", "/v1/health", "", [200, 200, 200, 200]),
    ("GET", "/v1/stat", "", [200, 200, 200, 401]),
    ("GET", "/v1/events", "", [200, 200, 200, 401]),
    ("GET", "/v1/events?tenant=a&code=table", "", [200, 200, 403, 401]),
    ("GET", "/v1/events?code=nonsense", "", [400, 400, 400, 401]),
    ("GET", "/v1/latency", "", [200, 200, 200, 401]),
    ("GET", "/v1/top", "", [200, 200, 200, 401]),
    ("GET", "/v1/tenants/a/tables/none/hot?seconds=1", "", [404, 404, 403, 401]),
    ("GET", "/v1/tenants/a/tables/none/heat", "", [404, 404, 403, 401]),
    ("GET", "/v1/tenants/a/tables/none/big", "", [404, 404, 403, 401]),
    ("GET", "/v1/tenants/a/extensions/none/profile", "", [404, 404, 403, 401]),
    ("GET", "/v1/history?by=hours", "", [200, 200, 200, 401]),
    ("GET", "/v1/history?tenant=a", "", [200, 200, 403, 401]),
    ("GET", "/v1/slow", "", [200, 200, 200, 401]),
    ("GET", "/v1/slow?tenant=a&limit=3", "", [200, 200, 403, 401]),
    ("PUT", "/v1/slow", r#"{"threshold_us":5000}"#, [200, 403, 403, 401]),
    ("PUT", "/v1/slow", r#"{"threshold_us":60000001}"#, [400, 403, 403, 401]),
    ("GET", "/v1/top?tenant=a&rows=tables", "", [200, 200, 403, 401]),
    ("GET", "/v1/latency?tenant=a", "", [200, 200, 403, 401]),
    ("GET", "/v1/extensions", "", [200, 200, 200, 401]),
    ("GET", "/v1/extensions?tenant=a&sort=cpu&limit=5", "", [200, 200, 403, 401]),
    ("GET", "/v1/kills?tenant=a&cause=panic&extension=x&since_ms=5", "", [200, 200, 403, 401]),
    ("GET", "/v1/kills?cause=boredom", "", [400, 400, 400, 401]),
    ("GET", "/v1/kills", "", [200, 200, 200, 401]),
    ("GET", "/v1/workers", "", [200, 403, 403, 401]),
    ("GET", "/metrics", "", [200, 403, 403, 401]),
    ("GET", "/v1/tenants", "", [200, 200, 200, 401]),
    ("POST", "/v1/tenants", r#"{"name":"new"}"#, [201, 403, 403, 401]),
    ("GET", "/v1/tenants/a", "", [200, 200, 403, 401]),
    ("GET", "/v1/tenants/nobody", "", [404, 403, 403, 401]),
    ("PATCH", "/v1/tenants/a", r#"{"quotas":{"weight":2}}"#, [200, 403, 403, 401]),
    ("GET", "/v1/tenants/a/tables", "", [200, 200, 403, 401]),
    ("POST", "/v1/tenants/a/tables", r#"{"name":"t"}"#, [201, 201, 403, 401]),
    ("GET", "/v1/tenants/a/tables/there", "", [200, 200, 403, 401]),
    ("GET", "/v1/tenants/a/tables/gone", "", [404, 404, 403, 401]),
    ("GET", "/v1/tenants/a/tables/there/records", "", [200, 200, 403, 401]),
    ("GET", "/v1/tenants/a/tables/there/records?cursor=18446744073709551615", "", [200, 200, 403, 401]),
    ("GET", "/v1/tenants/a/tables/there/records?cursor=-1", "", [400, 400, 403, 401]),
    ("GET", "/v1/tenants/a/tables/gone/records", "", [404, 404, 403, 401]),
    ("DELETE", "/v1/tenants/a/tables/there", "", [200, 200, 403, 401]),
    ("GET", "/v1/tenants/a/grants", "", [200, 200, 403, 401]),
    ("POST", "/v1/tenants/a/grants", r#"{"table":"there","to":"b"}"#, [201, 201, 403, 401]),
    // The operator is told that there is no such tenant, the owner is not.
    ("POST", "/v1/tenants/a/grants", r#"{"table":"there","to":"nobody"}"#, [404, 201, 403, 401]),
    ("POST", "/v1/tenants/a/grants", r#"{"table":"gone","to":"b"}"#, [404, 404, 403, 401]),
    ("DELETE", "/v1/tenants/a/grants/given/there/b", "", [404, 404, 403, 401]),
    ("DELETE", "/v1/tenants/a/grants/received/b/t", "", [404, 404, 403, 401]),
    ("GET", "/v1/tenants/a/extensions", "", [200, 200, 403, 401]),
    ("GET", "/v1/tenants/a/extensions/x", "", [404, 404, 403, 401]),
    ("DELETE", "/v1/tenants/a/extensions/x", "", [404, 404, 403, 401]),
    ("PUT", "/v1/tenants/a/extensions/x", r#"{"manifest":"","files":[]}"#, [503, 503, 403, 401]),
    ("PUT", "/v1/tenants/a/extensions/x/module", "", [503, 503, 403, 401]),
    ("POST", "/v1/tenants/a/extensions/x/suspend", "", [404, 404, 403, 401]),
    ("POST", "/v1/tenants/a/extensions/x/resume", "", [404, 404, 403, 401]),
    ("PUT", "/v1/tenants/a/extensions/x/budget", r#"{"slice_us":100}"#, [200, 403, 403, 401]),
    ("GET", "/v1/tenants/a/kills", "", [200, 200, 403, 401]),
    ("GET", "/v1/tenants/a/logs?level=warn&limit=5", "", [403, 200, 403, 401]),
    ("PATCH", "/v1/tenants/a", r#"{"code":"none"}"#, [200, 403, 403, 401]),
    ("GET", "/v1/rebuilds/7", "", [404, 403, 403, 401]),
    ("POST", "/v1/recheck", "", [503, 403, 403, 401]),
    ("GET", "/v1/scrub", "", [200, 403, 403, 401]),
    ("POST", "/v1/scrub", "", [409, 403, 403, 401]),
    ("GET", "/v1/cluster", "", [404, 403, 403, 401]),
    ("POST", "/v1/cluster/moves", r#"{"slots":[[0,1]],"to":"a"}"#, [404, 403, 403, 401]),
    ("POST", "/v1/cluster/moves/cancel", r#"{"slots":[[0,1]]}"#, [404, 403, 403, 401]),
    ("POST", "/v1/cluster/drain", r#"{"server":"a"}"#, [404, 403, 403, 401]),
    ("POST", "/v1/cluster/add", r#"{"server":"a","plan":true}"#, [404, 403, 403, 401]),
    ("POST", "/v1/cluster/balance", r#"{"plan":true}"#, [404, 403, 403, 401]),
    ("POST", "/v1/cluster/balance", r#"{"within_percent":0}"#, [400, 403, 403, 401]),
    ("POST", "/v1/cluster/split", r#"{"from":"a","to":"b"}"#, [404, 403, 403, 401]),
    ("GET", "/v1/cluster/load", "", [404, 404, 404, 404]),
    ("POST", "/v1/cluster/remove", r#"{"server":"a"}"#, [404, 403, 403, 401]),
    ("POST", "/v1/cluster/fail-over", r#"{"server":"a"}"#, [404, 403, 403, 401]),
    ("POST", "/v1/cluster/copy", "", [404, 404, 404, 404]),
    ("POST", "/v1/cluster/replica", "", [404, 404, 404, 404]),
    ("POST", "/v1/cluster/copy-stream", "", [404, 404, 404, 404]),
    ("POST", "/v1/cluster/commands", "", [404, 404, 404, 404]),
    ("POST", "/v1/cluster/trigger-calls", "", [404, 404, 404, 404]),
    ("GET", "/v1/denied", "", [200, 403, 403, 401]),
    ("DELETE", "/v1/denied/peekable", "", [404, 403, 403, 401]),
    ("POST", "/v1/shutdown", "", [200, 403, 403, 401]),
    ("POST", "/v1/tenants/a/rotate", "", [200, 200, 403, 401]),
    ("DELETE", "/v1/tenants/a", "", [200, 403, 403, 401]),
    ("GET", "/v1/tokens", "", [200, 403, 403, 401]),
    ("GET", "/v1/overview?tenant=a", "", [200, 200, 403, 401]),
    ("POST", "/v1/tenants/a/tokens", r#"{"name":"v"}"#, [201, 201, 403, 401]),
    ("GET", "/v1/nowhere", "", [404, 404, 404, 404]),
    ("PATCH", "/v1/stat", "", [405, 405, 405, 405]),
];

#[test]
fn every_route_answers_operator_tenant_stranger_and_nobody_as_the_matrix_says() {
    let server = Server::without_builder();
    for (method, path, body, expected) in MATRIX {
        for (who, expected) in expected.iter().enumerate() {
            let own = server.tenant("a");
            let other = server.tenant("b");
            server.operator("POST", "/v1/tenants/a/tables", json!({"name": "there"}));
            let token = [Some(server.operator.as_str()), Some(&own), Some(&other), None][who];
            let stops = server.stops.load(Ordering::Relaxed);
            let (status, text) = server.raw(method, path, token, body.as_bytes());
            assert_eq!(status, *expected, "{method} {path} as number {who}: {text}");
            if status >= 400 {
                let error: Value = serde_json::from_str(&text).unwrap();
                assert!(error["code"].is_string() && error["message"].is_string(), "{method} {path}: {text}");
                assert_eq!(server.stops.load(Ordering::Relaxed), stops, "a refused request stops nothing");
            }
            for tenant in ["a", "b", "new"] {
                server.operator("DELETE", &format!("/v1/tenants/{tenant}"), Value::Null);
            }
        }
    }
    assert_eq!(server.stops.load(Ordering::Relaxed), 1);
}

#[test]
fn an_owner_cannot_tell_who_it_grants_to_and_the_operator_can() {
    let server = Server::without_builder();
    let tokens = ["a", "there", "full", "unwilling"].map(|name| server.tenant(name));
    server.operator("POST", "/v1/tenants/a/tables", json!({"name": "t"}));
    server.operator("PATCH", "/v1/tenants/full", json!({"quotas": {"grants_received": 0}}));
    let names = ["there", "full", "unwilling", "nobody"];
    let grant = |to: &str| server.json("POST", "/v1/tenants/a/grants", &tokens[0], json!({"table": "t", "to": to}));
    for to in names {
        let expected = json!({"table": "t", "to": to, "access": "read", "in_force": null});
        assert_eq!(grant(to), (201, expected));
    }
    let received = "/v1/tenants/unwilling/grants/received/a/t";
    assert_eq!(server.json("DELETE", received, &tokens[3], Value::Null).0, 200);
    let in_force = |token: &str| {
        let (_, grants) = server.json("GET", "/v1/tenants/a/grants", token, Value::Null);
        let given = grants["given"].as_array().unwrap().iter();
        given.map(|given| (given["to"].as_str().unwrap().to_owned(), given["in_force"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(in_force(&tokens[0]), names.map(|to| (to.to_owned(), Value::Null)));
    assert_eq!(in_force(&server.operator), names.map(|to| (to.to_owned(), json!(to == "there"))));
    let (_, seen) = server.json("GET", "/v1/tenants/there/tables", &tokens[1], Value::Null);
    assert_eq!((&seen[0]["name"], &seen[0]["owner"], &seen[0]["access"]), (&json!("a/t"), &json!("a"), &json!("read")));
    for to in names {
        let path = format!("/v1/tenants/a/grants/given/t/{to}");
        assert_eq!(server.json("DELETE", &path, &tokens[0], Value::Null), (200, json!({})));
    }
    assert_eq!(server.operator("POST", "/v1/tenants/a/grants", json!({"table": "t", "to": "full"})).0, 409);
    let own_access = json!({"table": "t", "to": "there", "access": "own"});
    assert_eq!(server.json("POST", "/v1/tenants/a/grants", &tokens[0], own_access).0, 400);
}

#[test]
fn a_tenant_that_changes_without_end_has_to_wait_and_the_operator_has_not() {
    let server = Server::without_builder();
    let token = server.tenant("a");
    server.operator("POST", "/v1/tenants/a/tables", json!({"name": "t"}));
    let grant = |token: &str| {
        let (status, _) = server.json("POST", "/v1/tenants/a/grants", token, json!({"table": "t", "to": "b"}));
        status
    };
    server.tenant("b");
    // Some tokens recover on the way: it is enough that the server gets more requests a second than it admits.
    let most = CHANGES_BURST + 60 * CHANGES_PER_S;
    let refused = (0..most).map(|_| grant(&token)).find(|status| *status != 201);
    assert_eq!(refused, Some(429));
    assert_eq!(grant(&server.operator), 201);
    assert_eq!(
        server.json("DELETE", "/v1/tenants/a/grants/given/t/b", &token, Value::Null).0,
        200,
        "an end never waits"
    );
    let (_, stat) = server.json("GET", "/v1/stat", &token, Value::Null);
    assert!(stat["counters"].is_object(), "what changes nothing is not counted");
}

#[test]
fn a_tenant_sees_itself_only_and_a_rotated_token_is_void() {
    let server = Server::without_builder();
    let (token, _) = (server.tenant("a"), server.tenant("b"));
    let (_, tenants) = server.json("GET", "/v1/tenants", &token, Value::Null);
    assert_eq!(tenants.as_array().unwrap().len(), 1);
    assert_eq!(tenants[0]["name"], "a");
    let (_, stat) = server.json("GET", "/v1/stat", &token, Value::Null);
    assert!(stat["counters"]["tenant_requests"].is_u64() && stat["counters"]["packets_in"].is_null());
    assert_eq!((&stat["workers"], &stat["tenants"]), (&json!([]), &json!({})));

    let (_, rotated) = server.json("POST", "/v1/tenants/a/rotate", &token, json!({"grace_s": 0}));
    assert_eq!(server.json("GET", "/v1/tenants/a", &token, Value::Null).0, 401);
    let new = rotated["token"].as_str().unwrap();
    assert_eq!(server.json("GET", "/v1/tenants/a", new, Value::Null).0, 200);
}

#[test]
fn what_is_not_a_request_is_said_to_be_none_and_changes_nothing() {
    let server = Server::without_builder();
    let generation = server.control.directory.generation();
    let post = |body: &[u8]| server.raw("POST", "/v1/tenants", Some(&server.operator), body);
    let cases: &[(&[u8], u16, &str)] = &[
        (b"", 400, "EOF while parsing"),
        (b"{", 400, "EOF while parsing"),
        (b"[1,2]", 400, "invalid"),
        (b"{\"name\":7}", 400, "invalid type: integer `7`, expected a string"),
        (b"{\"nam\":\"x\"}", 400, "did you mean `name`?"),
        (b"{\"name\":\"x\",\"quotas\":{\"slice\":1}}", 400, "did you mean `slice_us`?"),
        (b"{\"name\":\"x\",\"quotas\":{\"weight\":0}}", 400, "outside of 1 to 1000"),
        (b"{\"name\":\"a/b\"}", 400, "is not allowed"),
        (b"{\"name\":\"x\",\"token\":\"short\"}", 400, "the token is not allowed"),
        (b"\xff\xfe", 400, "not what this route takes"),
        (&[b'x'; MAX_BODY_BYTES + 1], 413, "over its limit"),
    ];
    for (body, expected, text) in cases {
        let (status, answer) = post(body);
        assert_eq!(status, *expected, "{answer}");
        let error: Value = serde_json::from_str(&answer).unwrap();
        let said = format!("{} {}", error["message"].as_str().unwrap(), error["hint"].as_str().unwrap_or_default());
        assert!(said.contains(text), "{said:?} does not say {text:?}");
    }
    for header in ["Bearer", "Basic eDp5", "Bearer  ", ""] {
        let uri = format!("http://{}/v1/tenants", server.admin.address());
        let request = ureq::http::Request::builder().uri(uri).header("authorization", header).body(()).unwrap();
        assert_eq!(server.agent.run(request).unwrap().status().as_u16(), 401, "{header:?}");
    }
    assert_eq!(server.control.directory.generation(), generation);
}

#[test]
fn tenants_and_tables_are_made_shown_changed_and_removed() {
    let server = Server::without_builder();
    let body = json!({"name": "shop", "id": 9, "open": true, "home_worker": 1, "quotas": {"memory_bytes": 8 << 20}});
    let (status, created) = server.operator("POST", "/v1/tenants", body.clone());
    assert_eq!(status, 201);
    assert_eq!(created["tenant"]["id"], 9);
    let (status, error) = server.operator("POST", "/v1/tenants", body);
    assert_eq!((status, error["code"].as_str()), (409, Some("exists")));

    let table = json!({"name": "carts", "mode": "cache", "quota_bytes": 1 << 20});
    let (status, table) = server.operator("POST", "/v1/tenants/shop/tables", table);
    assert_eq!((status, table["mode"].as_str(), table["id"].as_u64()), (201, Some("cache"), Some(1)));
    let big = json!({"name": "big", "quota_bytes": 8 << 20});
    let (status, error) = server.operator("POST", "/v1/tenants/shop/tables", big);
    assert_eq!((status, error["code"].as_str()), (409, Some("over_quota")));

    let (_, changed) = server.operator("PATCH", "/v1/tenants/shop", json!({"home_worker": 0, "quotas": {"weight": 5}}));
    assert_eq!(
        (&changed["home_worker"], &changed["quotas"]["weight"], &changed["tables"]),
        (&json!(0), &json!(5), &json!(1))
    );
    let (status, _) = server.operator("PATCH", "/v1/tenants/shop", json!({"home_worker": 1, "quotas": {"weight": 0}}));
    let (_, unchanged) = server.operator("GET", "/v1/tenants/shop", Value::Null);
    assert_eq!((status, &unchanged["home_worker"]), (400, &json!(0)), "a change is made whole or not at all");
    let (_, stat) = server.operator("GET", "/v1/stat", Value::Null);
    assert_eq!((&stat["counters"]["tenants"], &stat["counters"]["tables"]), (&json!(1), &json!(1)));
    assert_eq!(stat["workers"].as_array().unwrap().len(), 2);
    assert!(stat["tenants"]["shop"]["tenant_requests"].is_u64());

    assert_eq!(server.operator("DELETE", "/v1/tenants/shop/tables/carts", Value::Null).0, 200);
    assert_eq!(server.operator("GET", "/v1/tenants/shop/tables", Value::Null).1, json!([]));
    assert_eq!(server.operator("DELETE", "/v1/tenants/shop", Value::Null).0, 200);
    assert_eq!(server.operator("GET", "/v1/tenants/shop", Value::Null).0, 404);
    server.control.settle();
    assert_eq!(server.control.directory.dropped_tables(), 0);
}

#[test]
fn kills_are_shown_newest_first_and_to_their_own_tenant_only() {
    let server = Server::without_builder();
    let (a, _) = (server.tenant("a"), server.tenant("b"));
    for (tenant, at_ms) in [("a", 10), ("b", 30), ("a", 20)] {
        server.control.directory.snapshot().by_name(tenant).unwrap().tenant.usage.record_kill(
            sandstorm_accounts::KillRecord {
                extension: "bad".into(),
                version: 3,
                cause: KillCause::TotalBudget,
                cpu_us: 10_001,
                wall_us: 20_002,
                at_ms,
                worker: 1,
                text: "ended".into(),
                places: Vec::new(),
                arguments: Vec::new(),
            },
        );
    }
    let times = |(status, kills): (u16, Value)| {
        assert_eq!(status, 200);
        kills.as_array().unwrap().iter().map(|kill| kill["at_ms"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(times(server.operator("GET", "/v1/kills", Value::Null)), [30, 20, 10]);
    assert_eq!(times(server.operator("GET", "/v1/kills?limit=2", Value::Null)), [30, 20]);
    assert_eq!(times(server.json("GET", "/v1/kills", &a, Value::Null)), [20, 10]);
    let (_, kills) = server.json("GET", "/v1/tenants/a/kills", &a, Value::Null);
    assert_eq!((&kills[0]["cause"], &kills[0]["cpu_us"]), (&json!("total_budget"), &json!(10_001)));
}

#[test]
fn prometheus_reads_workers_tenants_and_the_server() {
    let server = Server::without_builder();
    server.tenant("a");
    server.operator("POST", "/v1/tenants/a/tables", json!({"name": "t", "quota_bytes": 1_000_000}));
    server.control.metrics.worker(1).unwrap().packets_in.add(7);
    let (status, text) = server.raw("GET", "/metrics", Some(&server.operator), b"");
    assert_eq!(status, 200);
    for line in [
        "# TYPE sandstorm_packets_in counter",
        "sandstorm_packets_in{worker=\"1\"} 7",
        "# TYPE sandstorm_packets_received_total counter",
        "sandstorm_packets_received_total{worker=\"1\"} 7",
        "sandstorm_tenant_quota_used_ratio{tenant=\"a\",quota=\"tables\"} 0.016",
        "sandstorm_table_quota_bytes{tenant=\"a\",table=\"t\"} 1000000",
        "sandstorm_builds_waiting 0",
        "sandstorm_builder_ready 0",
        "sandstorm_tenants 1",
        "sandstorm_tenant_requests{tenant=\"a\"} 0",
        "sandstorm_requests{worker=\"0\",op=\"get\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing");
    }
    let (_, text) = server.raw("GET", "/metrics?old_names=false&top=0", Some(&server.operator), b"");
    assert!(!text.contains("sandstorm_packets_in") && !text.contains("sandstorm_table_quota_bytes"), "{text}");
}

fn source(name: &str, body: &str) -> Value {
    let text = format!(
        "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n\
         pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {{ {body} }}\n"
    );
    let manifest = format!("name = \"{name}\"\nversion = \"1.2.3\"\nedition = \"2024\"\napi = 1\n");
    json!({"manifest": manifest, "files": [{"path": "src/lib.rs", "text": text}]})
}

#[test]
fn a_push_loads_replaces_suspends_and_unloads() {
    let server = Server::start(Ok(test_builder()));
    let token = server.tenant("a");
    let path = "/v1/tenants/a/extensions/echo";
    let (status, pushed) = server.json("PUT", path, &token, source("echo", "db.reply(args)?; Ok(())"));
    assert_eq!(status, 201, "{pushed}");
    assert_eq!(
        (&pushed["extension"]["version"], &pushed["extension"]["manifest_version"]),
        (&json!(1), &json!("1.2.3"))
    );
    let first = server.control.directory.snapshot().by_name("a").unwrap().extension("echo").unwrap().clone();

    let (status, pushed) = server.json("PUT", path, &token, source("echo", "db.reply(b\"2\")?; let _ = args; Ok(())"));
    assert_eq!((status, &pushed["extension"]["version"]), (201, &json!(2)), "{pushed}");
    assert_eq!(server.control.directory.snapshot().by_name("a").unwrap().extension("echo").unwrap().version, 2);
    let states = |shown: &Value| {
        let versions = shown["versions"].as_array().unwrap().iter();
        versions.map(|version| version["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (_, shown) = server.json("GET", path, &token, Value::Null);
    assert_eq!(states(&shown), ["current", "kept"]);

    let (_, shown) = server.json("POST", &format!("{path}/suspend"), &token, Value::Null);
    assert_eq!(shown["suspended"], true);
    assert!(server.control.directory.snapshot().by_name("a").unwrap().is_suspended("echo"));
    assert_eq!(server.json("POST", &format!("{path}/resume"), &token, Value::Null).1["suspended"], false);
    assert_eq!(server.operator("POST", &format!("{path}/suspend"), Value::Null).0, 200);
    assert_eq!(server.json("POST", &format!("{path}/resume"), &token, Value::Null).0, 403, "the operator's word binds");
    assert_eq!(server.json("DELETE", path, &token, Value::Null).0, 200);
    assert_eq!(Arc::strong_count(&first), 1, "nobody else holds the old version then, and its library is closed");
    assert_eq!(server.json("PUT", path, &token, source("echo", "db.reply(args)?; Ok(())")).0, 201);
    assert!(server.control.directory.snapshot().by_name("a").unwrap().is_suspended("echo"), "and outlives the library");
    assert_eq!(server.operator("POST", &format!("{path}/resume"), Value::Null).1["suspended"], false);
    assert_eq!(server.operator("PUT", &format!("{path}/budget"), json!({"total_us": 5_000})).0, 200);
    let (_, shown) = server.json("GET", path, &token, Value::Null);
    assert_eq!(
        (&shown["budget"]["total_us"], &shown["budget"]["slice_us"]),
        (&json!(5_000), &json!(sandstorm_extension::limits::SLICE_US))
    );

    assert_eq!(server.json("DELETE", path, &token, Value::Null).0, 200);
    assert_eq!(server.json("GET", path, &token, Value::Null).0, 404);
    let (_, pushed) = server.json("PUT", path, &token, source("echo", "let _ = (db, args); Ok(())"));
    assert_eq!(pushed["extension"]["version"], 4, "a version is never given twice");
}

#[test]
fn a_push_that_is_refused_says_where_and_why_and_leaves_what_was_loaded() {
    let server = Server::start(Ok(test_builder()));
    let token = server.tenant("a");
    let path = "/v1/tenants/a/extensions/echo";
    assert_eq!(server.json("PUT", path, &token, source("echo", "let _ = (db, args); Ok(())")).0, 201);

    let (status, error) = server.json("PUT", path, &token, source("echo", "db.nothing(args)"));
    assert_eq!((status, error["code"].as_str()), (422, Some("refused")));
    let remark = &error["diagnostics"][0];
    assert_eq!((remark["file"].as_str(), remark["line"].as_u64()), (Some("src/lib.rs"), Some(4)), "{error}");
    assert!(remark["rendered"].as_str().unwrap().contains("no method named `nothing`"));

    let (status, error) =
        server.json("PUT", path, &token, source("echo", "unsafe { core::hint::unreachable_unchecked() }"));
    assert_eq!((status, error["code"].as_str()), (422, Some("refused")), "{error}");
    let (status, error) = server.json("PUT", path, &token, source("other", "Ok(())"));
    assert_eq!((status, error["code"].as_str()), (400, Some("invalid")), "{error}");
    let (status, error) = server.json("PUT", path, &token, json!({"manifest": "name = 3", "files": []}));
    assert_eq!((status, error["diagnostics"][0]["file"].as_str()), (422, Some("extension.toml")), "{error}");
    assert_eq!(server.json("GET", path, &token, Value::Null).1["version"], 1);

    let (status, _) = server.raw("PUT", path, Some(&token), &vec![b'x'; MAX_PUSH_BYTES + 1]);
    assert_eq!(status, 413);
    let quotas = QuotaChanges { pushes_per_hour: Some(1), ..QuotaChanges::default() };
    server.control.directory.create_tenant(NewTenant { quotas, ..NewTenant::named("few") }).unwrap();
    let few = "/v1/tenants/few/extensions/echo";
    assert_eq!(server.operator("PUT", few, source("echo", "broken")).0, 422);
    let (status, error) = server.operator("PUT", few, source("echo", "let _ = (db, args); Ok(())"));
    assert_eq!((status, error["code"].as_str()), (409, Some("over_quota")), "a refused push counts: {error}");
}

#[test]
fn a_second_server_on_the_port_is_told_so_and_a_stopped_one_frees_it() {
    let Server { control, .. } = Server::without_builder();
    // An address whose ports no other test uses: a freed port on the usual one may be taken at once.
    let first = AdminServer::start("127.44.55.66:0".parse().unwrap(), control.clone(), None).unwrap();
    let address = first.address();
    assert_eq!(AdminServer::start(address, control.clone(), None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    drop(first);
    // A process that another test is starting has all ports of this one until it runs its own program.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match AdminServer::start(address, control.clone(), None) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            again => break drop(again.unwrap()),
        }
    }
}
