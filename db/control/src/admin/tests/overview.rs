//! All extensions and kills in one answer each: sorted, filtered, and no tenant sees another's.

use super::*;
use crate::limits::{CALL_LOOKS, CALL_LOOKS_PER_TENANT, OPERATOR_CALL_LOOKS};
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
    // Most calls of one become longer, and one of another, which is the longest.
    let snapshot = server.control.directory.snapshot();
    let extension = |tenant: &str, name: &str| Arc::clone(snapshot.by_name(tenant).unwrap().extension(name).unwrap());
    (0..20).for_each(|_| extension("b", "busy").latency.record(0, 4_000_000, 1_000_000));
    [2, 2, 8].iter().for_each(|ms| extension("a", "quiet").latency.record(0, ms * 1_000_000, 1_000_000));
    let by_time = |sort: &str| names(list(&server.operator, &format!("sort={sort}")));
    assert_eq!(by_time("p50"), ["busy", "broken", "quiet"]);
    assert_eq!(by_time("p99"), ["quiet", "busy", "broken"]);
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
            places: Vec::new(),
            arguments: Vec::new(),
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

#[test]
fn what_is_used_is_counted_by_tenant_extension_and_table_and_shown_to_its_owner() {
    let server = Server::without_builder();
    let (of_a, _) = (server.tenant("a"), server.tenant("b"));
    load(&server, "a", "broken", (5, 2));
    let table = json!({"name": "t", "quota_bytes": 1 << 20});
    assert_eq!(server.operator("POST", "/v1/tenants/a/tables", table).0, 201);
    let snapshot = server.control.directory.snapshot();
    let usage = &snapshot.by_name("a").unwrap().tenant.usage;
    usage.worker(0).invocation_cpu_ns.add(7_000);
    usage.worker(0).requests.add(4);
    usage.worker(0).preemptions.add(3);
    snapshot.by_name("a").unwrap().extension("broken").unwrap().stats.switched_out(0);
    let top = |token: &str, query: &str| {
        let (status, top) = server.json("GET", &format!("/v1/top?{query}"), token, Value::Null);
        assert_eq!(status, 200, "{top}");
        top
    };
    let all = top(&server.operator, "");
    let lengths = |top: &Value| ["tenants", "extensions", "tables"].map(|kind| top[kind].as_array().unwrap().len());
    assert_eq!(lengths(&all), [2, 1, 1]);
    let tenant = &all["tenants"][0];
    let numbers = ["cpu_ns", "requests", "switches", "suspended"].map(|field| tenant[field].as_u64().unwrap());
    assert_eq!((tenant["name"].as_str(), numbers), (Some("a"), [7_000, 4, 3, 0]));
    assert_eq!(tenant["quota"]["name"], "tables", "one of 64, and none of its bytes: {tenant}");
    let extension = &all["extensions"][0];
    let numbers = ["calls", "killed", "switches", "running", "cpu_ns"].map(|field| extension[field].as_u64().unwrap());
    assert_eq!(numbers, [5, 2, 1, 0, 5_000_000]);
    assert_eq!(extension["latency"]["buckets"].as_array().unwrap().len(), 1, "two reports can be subtracted");
    assert_eq!(all["tables"][0]["quota_bytes"], 1 << 20);
    assert_eq!(lengths(&top(&server.operator, "rows=tables&tenant=b")), [0, 0, 0]);
    assert_eq!(lengths(&top(&server.operator, "rows=extensions")), [0, 1, 0]);
    assert_eq!(lengths(&top(&of_a, "")), [1, 1, 1], "a tenant sees its own");
    assert_eq!(server.json("GET", "/v1/top?tenant=b", &of_a, Value::Null).0, 403);
    assert_eq!(server.operator("GET", "/v1/top?rows=keys", Value::Null).0, 400);
}

#[test]
fn what_alerts_are_about_has_series_although_others_are_larger() {
    use sandstorm_store::WriteOptions;
    let epochs = Epochs::new();
    let options = DirectoryOptions { workers: 2, code: testing::code(), ..DirectoryOptions::default() };
    let directory = Directory::with_options(Arc::clone(&epochs), options);
    let no_builder: Result<Arc<dyn ArtifactBuilder>, String> = Err("none in this test".into());
    let server = Server::start_with(directory, ArtifactSources::from(no_builder).into());
    let (_a, _b) = (server.tenant("a"), server.tenant("b"));
    for (tenant, name, counts) in [("a", "busy", (9, 0)), ("b", "quiet", (0, 0)), ("b", "idle", (0, 0))] {
        load(&server, tenant, name, counts);
    }
    let participant = epochs.register();
    for (tenant, name, mode, quota_bytes, value_bytes) in [
        ("a", "large", "store", 64 << 20, 1 << 20),
        ("b", "full", "store", 100_000, 92_000),
        ("b", "cache", "cache", 100_000, 92_000),
    ] {
        let table = json!({"name": name, "quota_bytes": quota_bytes, "mode": mode});
        let (status, made) = server.operator("POST", &format!("/v1/tenants/{tenant}/tables"), table);
        assert_eq!(status, 201, "{made}");
        let snapshot = server.control.directory.snapshot();
        let table = &snapshot.by_name(tenant).unwrap().table_by_name(name).unwrap().table;
        let value = vec![7; value_bytes];
        table.put(&participant, table.hash(b"k"), b"k", &value, &WriteOptions::default(), 1).unwrap();
    }
    assert_eq!(server.operator("POST", "/v1/tenants/b/extensions/quiet/suspend", Value::Null).0, 200);
    let (_, text) = server.raw("GET", "/metrics?old_names=false&top=1", Some(&server.operator), b"");
    let told = |line: &str| text.lines().any(|found| found.starts_with(line));
    assert!(told("sandstorm_extension_suspended{tenant=\"b\",extension=\"quiet\"} 1"), "{text}");
    assert!(told("sandstorm_extension_suspended{tenant=\"a\",extension=\"busy\"} 0"), "{text}");
    assert!(told("sandstorm_table_quota_used_ratio{tenant=\"b\",table=\"full\"} 0.9"), "{text}");
    assert!(told("sandstorm_table_quota_used_ratio{tenant=\"a\",table=\"large\"} 0.0"), "{text}");
    assert!(!told("sandstorm_extension_suspended{tenant=\"b\",extension=\"idle\"}"), "as many as were asked for");
    assert!(!told("sandstorm_table_records{tenant=\"b\",table=\"cache\"}"), "a full cache is in order");
    let (_, shown) = server.operator("GET", "/v1/overview", Value::Null);
    let row = shown["tenants"].as_array().unwrap().iter().find(|row| row["name"] == "b").unwrap();
    assert!(row["fullest"]["name"].as_str().unwrap().starts_with("table "), "{row}");
    let (_, found) = server.operator("GET", "/v1/findings", Value::Null);
    let nearly = found.as_array().unwrap().iter().find(|finding| finding["code"] == "table_nearly_full");
    assert!(nearly.is_some_and(|finding| finding["text"].as_str().unwrap().starts_with("b/full has ")), "{found}");
}

#[test]
fn a_view_of_the_page_is_the_same_for_all_who_look_at_it_and_has_what_it_shows() {
    let server = Server::without_builder();
    let of_a = server.tenant("a");
    for number in 0..12 {
        server.tenant(&format!("other-{number}"));
    }
    load(&server, "a", "busy", (5, 1));
    let record = KillRecord {
        extension: "busy".into(),
        version: 1,
        cause: KillCause::Panic,
        cpu_us: 1,
        wall_us: 2,
        at_ms: 1,
        worker: 0,
        text: "the secret record".into(),
        places: Vec::new(),
        arguments: Vec::new(),
    };
    server.control.directory.snapshot().by_name("a").unwrap().tenant.usage.record_kill(record);
    let (_, viewer) = server.operator("POST", "/v1/tokens", json!({"name": "v"}));
    let viewer = viewer["token"].as_str().unwrap();
    let read = |path: &str, token: &str| {
        let (status, text) = server.raw("GET", path, Some(token), b"");
        assert_eq!(status, 200, "{path}: {text}");
        text
    };
    // A machine that is slow may let a reading grow old between two questions.
    let is_same = |path: &str| (0..100).any(|_| read(path, viewer) == read(path, &server.operator));
    for (part, [tenants, extensions, kills]) in [
        ("all", [13, 1, 1]),
        ("front", [10, 1, 1]),
        ("tenants", [13, 0, 0]),
        ("extensions", [0, 1, 0]),
        ("kills", [0, 0, 1]),
        ("events", [0, 0, 0]),
        ("counters", [0, 0, 0]),
    ] {
        let path = format!("/v1/overview?show={part}");
        assert!(is_same(&path), "{part}");
        let shown: Value = serde_json::from_str(&read(&path, viewer)).unwrap();
        let lengths = ["tenants", "extensions", "kills"].map(|list| shown[list].as_array().unwrap().len());
        assert_eq!(lengths, [tenants, extensions, kills], "{part}");
        assert_eq!(!shown["events"].as_array().unwrap().is_empty(), ["all", "events"].contains(&part), "{part}");
        assert_eq!(shown["findings"].is_array(), ["all", "front"].contains(&part), "{part}");
        assert_eq!((&shown["tenants_in_all"], shown["counters"].is_object()), (&json!(13), true), "{part}");
    }
    // Texts of a tenant's code are its own, also where another caller has asked for the same tenant before.
    let of_tenant = "/v1/overview?tenant=a&show=counters";
    for _ in 0..2 {
        assert!(!read(of_tenant, &server.operator).contains("secret") && !read(of_tenant, viewer).contains("secret"));
        let own = read("/v1/overview?show=front", &of_a);
        assert!(own.contains("secret") && !own.contains("other-1"), "a tenant's is always whole: {own}");
    }
    assert_eq!(server.operator("GET", "/v1/overview?show=keys", Value::Null).0, 400);
}

#[test]
fn looks_at_calls_are_limited_by_tenant_and_in_all() {
    let server = Server::without_builder();
    let (of_a, of_b) = (server.tenant("a"), server.tenant("b"));
    let serial = server.control.directory.snapshot().by_name("a").unwrap().tenant.serial;
    let ask = |tenant: &str, token: &str| {
        let (status, answer) =
            server.json("GET", &format!("/v1/tenants/{tenant}/calls?where=true"), token, Value::Null);
        (status, answer["code"].as_str().unwrap_or_default().to_owned())
    };
    let (busy, goes_on) = ((503, "busy".to_owned()), (503, "no_workers".to_owned()));
    let (_, viewer) = server.operator("POST", "/v1/tokens", json!({"name": "v"}));
    let (viewer, operator) = (viewer["token"].as_str().unwrap(), server.operator.as_str());
    let looks = &server.control.call_looks;
    // Viewers ask as often as they may.
    let mut permits: Vec<_> = std::iter::from_fn(|| looks.begin((serial, true))).collect();
    assert_eq!((permits.len(), ask("a", viewer)), (CALL_LOOKS_PER_TENANT, busy.clone()));
    assert_eq!(
        (ask("a", &of_a), ask("a", operator)),
        (goes_on.clone(), goes_on.clone()),
        "they take no question from the operator or the tenant"
    );
    permits.extend(std::iter::from_fn(|| looks.begin((serial, false))));
    assert_eq!((permits.len(), ask("a", &of_a)), (2 * CALL_LOOKS_PER_TENANT, busy.clone()));
    assert_eq!(ask("b", &of_b), goes_on, "the other one waits for nothing");
    permits.extend((1..).map_while(|other| looks.begin((u64::MAX - other, false))));
    assert_eq!((permits.len(), ask("b", &of_b)), (CALL_LOOKS, busy.clone()));
    assert_eq!(ask("b", operator), goes_on, "operators have permits of their own");
    let own = &server.control.operator_call_looks;
    let of_operators: Vec<_> = std::iter::from_fn(|| own.begin((serial, true))).collect();
    assert_eq!((of_operators.len(), ask("b", operator)), (OPERATOR_CALL_LOOKS, busy));
    drop((permits, of_operators));
    assert_eq!(ask("a", &of_a), goes_on, "an answer gives its permit back");
    assert_eq!((ask("b", &of_b), ask("b", operator)), (goes_on.clone(), goes_on));
}

#[test]
fn keys_with_the_same_beginning_have_digests_of_their_own() {
    use sandstorm_store::WriteOptions;
    let epochs = Epochs::new();
    let options = DirectoryOptions { workers: 2, code: testing::code(), ..DirectoryOptions::default() };
    let directory = Directory::with_options(Arc::clone(&epochs), options);
    let no_builder: Result<Arc<dyn ArtifactBuilder>, String> = Err("none in this test".into());
    let server = Server::start_with(directory, ArtifactSources::from(no_builder).into());
    let _token = server.tenant("a");
    assert_eq!(server.operator("POST", "/v1/tenants/a/tables", json!({"name": "t"})).0, 201);
    let snapshot = server.control.directory.snapshot();
    let view = snapshot.by_name("a").unwrap();
    let table = &view.table_by_name("t").unwrap().table;
    let participant = epochs.register();
    let keys = [&b"users/0000000000000000000000000001"[..], b"users/0000000000000000000000000002", b"short"];
    for (at, key) in keys.into_iter().enumerate() {
        let value = vec![0; 30 - at];
        table.put(&participant, table.hash(key), key, &value, &WriteOptions::default(), 1).unwrap();
    }
    let (status, big) = server.operator("GET", "/v1/tenants/a/tables/t/big", Value::Null);
    assert_eq!(status, 200, "{big}");
    let digest = |at: usize| big["largest"][at]["key_digest"].as_str().unwrap().to_owned();
    assert_ne!(digest(0), digest(1), "{big}");
    // A slow request about a key of which it keeps all has the same digest.
    let table = view.table_by_name("t").map(|one| &**one);
    assert_eq!(super::super::key_digest::slow_key_digest((b"short", 5), table), digest(2));
}

/// A slow request of a tenant, about a key.
fn slow_request(id: u64, turns: Vec<sandstorm_accounts::TurnShare>) -> sandstorm_accounts::SlowRequest {
    use sandstorm_accounts::{CallPauses, RequestSubject, RequestWaits, SlowCall, SlowRequest, WaitSum};
    SlowRequest {
        id,
        at_ms: 10 * id,
        class: sandstorm_metrics::histogram::RequestClass::Call,
        subject: RequestSubject::new("invoke", 0, b"secret"),
        count: 1,
        waiting_ns: 8_000_000,
        service_ns: 3_000_000,
        waits: RequestWaits { log_ns: 2_000_000, ..RequestWaits::default() },
        worker: 0,
        call: Some(SlowCall {
            polls: 5,
            switches: 3,
            queue_ns: 400,
            pauses: CallPauses { switched: WaitSum::new(3, 700), vain_ns: 9, ..CallPauses::default() },
            outcome: "ok",
            arguments: b"pin\0".to_vec(),
            ..SlowCall::default()
        }),
        turns,
        known_ns: 11_000_000,
    }
}

#[test]
fn slow_requests_are_explained_to_their_tenant_without_the_names_of_others() {
    use sandstorm_accounts::TurnShare;
    let server = Server::without_builder();
    let (of_a, of_b) = (server.tenant("a"), server.tenant("b"));
    let snapshot = server.control.directory.snapshot();
    let id = |name: &str| snapshot.by_name(name).unwrap().tenant.id;
    let share = |tenant, cpu_ns| TurnShare { tenant, turns: 2, cpu_ns, requests: 10 };
    let slow = &snapshot.by_name("a").unwrap().tenant.usage.slow_requests;
    slow.keep(slow_request(1, Vec::new()));
    slow.keep(slow_request(7, vec![share(id("b"), 9), share(0, 5), share(id("a"), 3), share(u32::MAX, 1)]));
    slow.leave_out(4);
    let get = |token: &str, path: &str| server.json("GET", path, token, Value::Null);
    let ids = |(status, list): (u16, Value)| {
        assert_eq!(status, 200, "{list}");
        list["requests"].as_array().unwrap().iter().map(|one| one["id"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let operator = server.operator.as_str();
    assert_eq!(ids(get(operator, "/v1/slow")), [7, 1], "newest first");
    assert_eq!(ids(get(operator, "/v1/slow?after=1")), [7]);
    assert_eq!(ids(get(operator, "/v1/slow?since_ms=11&tenant=a")), [7]);
    assert_eq!(ids(get(operator, "/v1/slow?limit=1")), [7]);
    assert_eq!(ids(get(&of_b, "/v1/slow")), [0; 0]);
    assert_eq!(get(&of_b, "/v1/slow/7").0, 404, "another's is as one that is not there");
    let (_, shown) = get(operator, "/v1/slow/7");
    assert_eq!((&shown["key"], &shown["key_bytes"], &shown["call"]["waits"]), (&Value::Null, &json!(6), &json!(1)));
    assert_eq!((&shown["waits"]["log_ns"], &shown["call"]["arguments"]), (&json!(2_000_000), &json!("pin\\x00")));
    let (call, none) = (&shown["call"], json!({"count": 0, "ns": 0}));
    assert_eq!((&call["queue_ns"], &call["pauses"]["vain_ns"]), (&json!(400), &json!(9)));
    assert_eq!(call["pauses"]["switched"], json!({"count": 3, "ns": 700}));
    for kind in ["reads", "yields", "cold", "calls", "retries", "locks", "commits"] {
        assert_eq!(call["pauses"][kind], none, "{kind}");
    }
    let turns = |shown: &Value| {
        let share = |share: &Value| (share["tenant"].as_str().map(str::to_owned), share["cpu_ns"].as_u64().unwrap());
        shown["turns"].as_array().unwrap().iter().map(share).collect::<Vec<_>>()
    };
    assert_eq!(shown["turns"][1]["requests"], 20, "those of others are added up: {shown}");
    assert_eq!(turns(&shown), [(Some("b".to_owned()), 9), (None, 6), (Some("a".to_owned()), 3)]);
    let (_, own) = get(&of_a, "/v1/slow/7");
    assert_eq!((own["key"].as_str(), &own["key_digest"]), (Some("secret"), &shown["key_digest"]));
    assert_eq!(own["call"]["arguments"], "pin\\x00");
    assert_eq!(turns(&own), [(None, 15), (Some("a".to_owned()), 3)], "no other tenant has a name");
    // Viewers see as much of other tenants as the account that they belong to, and no keys.
    let viewer = |path: &str| {
        let (status, made) = server.operator("POST", path, json!({"name": "v"}));
        assert_eq!(status, 201, "{made}");
        made["token"].as_str().unwrap().to_owned()
    };
    let (of_all, of_own) = (viewer("/v1/tokens"), viewer("/v1/tenants/a/tokens"));
    for (token, expected) in [(&of_all, turns(&shown)), (&of_own, turns(&own))] {
        let (_, seen) = get(token, "/v1/slow/7");
        assert_eq!((&seen["key"], &seen["key_digest"], turns(&seen)), (&Value::Null, &shown["key_digest"], expected));
        assert_eq!(seen["call"].get("arguments"), None, "viewers see no arguments: {seen}");
        assert_eq!(ids(get(token, "/v1/slow")), [7, 1]);
        assert_eq!(server.json("PUT", "/v1/slow", token, json!({"threshold_us": 1})).0, 403);
    }
    assert_eq!(get(&of_a, "/v1/slow").1["left_out"], 4);
    assert_eq!(server.operator("PUT", "/v1/slow", json!({"threshold_us": 2500})).0, 200);
    assert_eq!(get(&of_a, "/v1/slow").1["threshold_us"], 2_500);
    assert_eq!(server.control.metrics.slow.ns(), 2_500_000);
    assert_eq!(server.operator("PUT", "/v1/slow", json!({"threshold_us": 0})).0, 200);
    assert_eq!(server.control.metrics.slow.ns(), u64::MAX);
}

#[test]
fn a_thousand_and_twenty_four_tenants_each_have_a_row_with_their_own_numbers() {
    const TENANTS: u64 = 1_024;
    let server = Server::without_builder();
    for number in 0..TENANTS {
        let (view, _) = server
            .control
            .directory
            .create_tenant(sandstorm_catalog::NewTenant::named(&format!("t{number:04}")))
            .expect("a tenant");
        let counters = view.tenant.usage.worker(0);
        counters.requests.add(3 * number);
        counters.invocations_done.add(number);
        counters.invocation_cpu_ns.add(7_000 * number);
        view.tenant.usage.latency(0).of(sandstorm_metrics::histogram::RequestClass::Get).record(0, 1_000, number);
    }
    load(&server, "t0007", "count", (3, 1));
    let (status, top) = server.operator("GET", "/v1/top", Value::Null);
    assert_eq!(status, 200);
    let rows = top["tenants"].as_array().unwrap();
    assert_eq!(rows.len() as u64, TENANTS);
    for row in rows {
        let number: u64 = row["name"].as_str().and_then(|name| name[1..].parse().ok()).unwrap();
        let found = ["requests", "calls", "cpu_ns"].map(|name| row[name].as_u64().unwrap());
        assert_eq!(found, [3 * number, number, 7_000 * number], "{row}");
        assert_eq!(row["latency"]["count"].as_u64(), Some(number), "{row}");
    }
    let extension = &top["extensions"][0];
    assert_eq!(
        (&extension["tenant"], &extension["calls"], &extension["running"]),
        (&json!("t0007"), &json!(3), &json!(0))
    );
    let budget = ["budget_cpu_ns", "budget_memory_bytes"].map(|name| extension[name].as_u64().unwrap());
    let quotas = sandstorm_catalog::Quotas::default();
    assert_eq!(budget, [quotas.total_us * 1_000, quotas.arena_bytes]);
    // A call that has begun has what each begins with, and what it has grown to.
    let snapshot = server.control.directory.snapshot();
    let loaded = snapshot.by_name("t0007").unwrap().extension("count").unwrap();
    loaded.begun(0);
    loaded.memory.add(5);
    let (_, top) = server.operator("GET", "/v1/top?rows=extensions&tenant=t0007", Value::Null);
    let first = u64::from(sandstorm_accounts::limits::INVOCATION_UNITS);
    let expected = (first + 5) * sandstorm_accounts::limits::MEMORY_UNIT_BYTES as u64;
    assert_eq!(
        (&top["extensions"][0]["running"], &top["extensions"][0]["memory_bytes"]),
        (&json!(1), &json!(expected))
    );
    // Prometheus has the same, and the parts of the time of the one extension.
    let (status, text) = server.raw("GET", "/metrics?old_names=false", Some(&server.operator), b"");
    assert_eq!(status, 200);
    for line in [
        format!("sandstorm_extension_memory_bytes{{tenant=\"t0007\",extension=\"count\"}} {expected}"),
        "sandstorm_extension_calls_running{tenant=\"t0007\",extension=\"count\"} 1".to_owned(),
        "sandstorm_extension_call_cpu_seconds_sum{tenant=\"t0007\",extension=\"count\"} 0.003".to_owned(),
        "sandstorm_extension_call_waiting_seconds_sum{tenant=\"t0007\",extension=\"count\"} 0.006".to_owned(),
        "sandstorm_tenant_quota_used{tenant=\"t0007\",quota=\"extensions\"} 1".to_owned(),
        "sandstorm_tenant_quota_limit{tenant=\"t0007\",quota=\"extensions\"} 64".to_owned(),
        "sandstorm_tenant_quota_limit{tenant=\"t0007\",quota=\"weight\"} 1".to_owned(),
        "sandstorm_tenant_quota_limit_seconds{tenant=\"t0007\",quota=\"slice_us\"} 0.0001".to_owned(),
        "sandstorm_tenant_quota_limit_bytes{tenant=\"t0007\",quota=\"reply_bytes\"} 8388608".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing");
    }
}

#[test]
fn the_series_of_quotas_are_those_of_the_tenants_that_are_nearest_to_one() {
    let server = Server::without_builder();
    for number in 0..2 * crate::limits::METRIC_SERIES {
        let tenant = sandstorm_catalog::NewTenant::named(&format!("t{number:04}"));
        server.control.directory.create_tenant(tenant).expect("a tenant");
    }
    load(&server, "t0007", "count", (3, 1));
    let with_quotas = |text: &str| {
        let limits = text.lines().filter(|line| line.starts_with("sandstorm_tenant_quota_limit{"));
        limits.filter(|line| line.contains("quota=\"weight\"")).map(str::to_owned).collect::<Vec<_>>()
    };
    let (_, text) = server.raw("GET", "/metrics?old_names=false", Some(&server.operator), b"");
    assert_eq!(with_quotas(&text).len(), crate::limits::METRIC_SERIES, "no more, however many tenants there are");
    let one = |top: usize| {
        let path = format!("/metrics?old_names=false&top={top}");
        with_quotas(&server.raw("GET", &path, Some(&server.operator), b"").1)
    };
    assert_eq!(one(1), ["sandstorm_tenant_quota_limit{tenant=\"t0007\",quota=\"weight\"} 1"], "the nearest to one");
    assert_eq!(one(0), [""; 0]);
    // One that has nearly used a quota has its series whatever is asked for.
    let few = json!({"quotas": {"extensions": 1}});
    assert_eq!(server.operator("PATCH", "/v1/tenants/t0007", few).0, 200);
    assert_eq!(one(0).len(), 1);
    assert_eq!(one(1).len(), 2);
}
