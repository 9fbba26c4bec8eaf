//! Promise: among 300 tenants one computes for ever, one allocates, one floods, one is suspended, one is near its quota
//! and one has a hot key. Each is named by `top`, by the page, by Prometheus' alerts and by `doctor --live`, and no
//! other tenant is. After a restart of the server its kills and slow requests are still told.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sandstorm_client::Config;
use sandstorm_client::blocking::Client;
use serde_json::Value;

use super::browser::{HeadlessBrowser, sign_in};
use super::http::has_program;
use super::monitoring::PrometheusProcess;
use crate::common::process::Server;
use crate::common::{Stop, eventually};

/// Tenants that do nothing, beside the six.
const QUIET_TENANTS: usize = 294;
/// Tenant, the finding and the alert that may name it.
const CULPRITS: [(&str, &[&str], &[&str]); 6] = [
    ("computes", &["extension_killed"], &["SandstormExtensionKilled"]),
    ("allocates", &["extension_killed"], &["SandstormExtensionKilled"]),
    ("floods", &["tenant_over_quota", "tenant_throttled"], &["SandstormTenantOverQuota", "SandstormTenantThrottled"]),
    ("suspended", &["extension_suspended"], &["SandstormExtensionSuspended"]),
    ("nearly-full", &["quota_nearly_used"], &["SandstormQuotaNearlyUsed"]),
    ("hot", &["hot_key"], &["SandstormHotKey"]),
];
/// Gets of one message: of each second one the key is the same.
const GETS: usize = 32;
/// Requests of one message of the tenant that floods, and the pause behind it.
const FLOOD: usize = 16;
const FLOOD_PAUSE: Duration = Duration::from_millis(20);

fn start(folder: &Arc<tempfile::TempDir>) -> Server {
    let config = folder.path().join("tenants.toml");
    let tenants: String = (0..QUIET_TENANTS)
        .map(|number| format!("[[tenants]]\nname = \"quiet-{number:03}\"\ntables = [{{ name = \"items\" }}]\n"))
        .collect();
    fs::write(&config, tenants).expect("room");
    let config = config.to_str().expect("a path").to_owned();
    Server::start_in(None, Arc::clone(folder), &["--data", "127.0.0.1:0", "--no-pin", "--config", &config])
}

/// Creates a tenant with a table `items`; returns a client of it, and the table's id.
fn tenant(server: &Server, name: &str, quotas: &str) -> (Client, u64) {
    let made = server.json(&format!("tenant create {name} {quotas}"));
    server.json(&format!("table create items --tenant {name}"));
    let id = u32::try_from(made["tenant"]["id"].as_u64().expect("an id")).expect("an id");
    let token = made["token"].as_str().expect("a token").to_owned();
    let client = Client::connect(Config::new(server.data.parse().expect("an address"), id).token(token));
    let table = server.json(&format!("table show items --tenant {name}"))["id"].as_u64().expect("an id");
    (client.expect("a connection"), table)
}

/// Calls of `ext/bad` that the server has to end, over and over.
fn calls(client: &Client, table: u64, kind: &str, over: &AtomicBool) {
    let arguments = [&table.to_le_bytes()[..], kind.as_bytes()].concat();
    while !over.load(Relaxed) {
        let ended = client.invoke("bad", &arguments);
        assert!(ended.is_err(), "{kind}: {ended:?}");
    }
}

/// Gets, of which half are of one key.
fn hot_gets(client: &Client, table: u64, over: &AtomicBool) {
    let mut number = 0_u32;
    while !over.load(Relaxed) {
        let batch = (0..GETS).fold(client.batch(), |batch, at| {
            number = number.wrapping_add(1);
            let other = (number % 5_000).to_le_bytes();
            batch.get(table, if at % 2 == 0 { b"the-hot-one" } else { &other })
        });
        // On a busy machine some have no answer in time.
        let _answers = client.send(batch);
    }
}

fn flood(client: &Client, table: u64, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let batch = (0..FLOOD).fold(client.batch(), |batch, _| batch.get(table, b"key"));
        // Most are refused.
        let _answers = client.send(batch);
        std::thread::sleep(FLOOD_PAUSE);
    }
}

/// The tenants of the rows of `top` whose column has at least that value.
fn in_top(server: &Server, view: &str, column: &str, least: f64) -> BTreeSet<String> {
    let top = server.json(&format!("top {view} --once"));
    let rows = top["rows"].as_array().expect("rows");
    assert!(rows.len() >= QUIET_TENANTS, "{view} has {} rows", rows.len());
    let has = |row: &&Value| row[column].as_f64().unwrap_or_else(|| panic!("{column}: {row}")) >= least;
    rows.iter().filter(has).map(|row| row["tenant"].as_str().expect("a name").to_owned()).collect()
}

fn top_names_them(server: &Server) {
    const SOME: f64 = f64::MIN_POSITIVE;
    for (view, column, least, expected) in [
        ("tenants", "kills_per_s", SOME, &["allocates", "computes"][..]),
        ("tenants", "calls_cpu_percent", SOME, &["allocates", "computes"]),
        // Requests without code take time, too.
        ("tenants", "cpu_percent", SOME, &["allocates", "computes", "floods", "hot"]),
        ("tenants", "over_quota_per_s", SOME, &["floods"]),
        ("tenants", "suspended", 1.0, &["suspended"]),
        // Of a rate that is reached the use is whole, too.
        ("tenants", "quota_percent", 90.0, &["floods", "nearly-full"]),
        ("tables", "hot_key_percent", 20.0, &["hot"]),
    ] {
        let mut named = BTreeSet::new();
        let is_named = eventually(|| {
            named = in_top(server, view, column, least);
            named.iter().eq(expected)
        });
        assert!(is_named, "top {view} by {column}: {named:?} instead of {expected:?}");
    }
}

fn doctor_names_them(server: &Server) {
    let mut found = Value::Null;
    let is_named = eventually(|| {
        found = server.json("doctor --live");
        let findings = found.as_array().expect("findings");
        CULPRITS.iter().all(|(tenant, codes, _)| {
            let names = |finding: &Value| {
                let (code, text) = (finding["code"].as_str(), finding["text"].as_str().unwrap_or_default());
                codes.iter().any(|known| Some(*known) == code) && text.contains(tenant)
            };
            findings.iter().any(names)
        })
    });
    assert!(is_named, "{found:#}");
    assert!(!found.to_string().contains("quiet-"), "{found:#}");
}

fn the_page_names_them(server: &Server) {
    if !has_program("chromium", "chromium") {
        return;
    }
    let mut browser = HeadlessBrowser::start();
    sign_in(&mut browser, server);
    for (tenant, ..) in CULPRITS {
        browser.wait_for(&format!("document.getElementById('findings')?.textContent.includes({tenant:?}) === true"));
    }
    browser.wait_for("document.getElementById('hot')?.textContent.includes('hot') === true");
    let quiet = browser.evaluate("document.getElementById('findings').textContent.includes('quiet-')");
    assert_eq!(quiet, Value::Bool(false));
    // All tenants are listed.
    browser.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', {key: '2', bubbles: true}))");
    browser.wait_for("document.querySelectorAll('#tenants tbody tr').length === 300");
    assert_eq!(browser.complaints, [""; 0], "the console is silent");
}

fn prometheus_names_them(server: &Server) {
    if !has_program("prometheus", "prometheus") {
        return;
    }
    let made = server.json("token create prometheus");
    let (address, token) = (server.control.trim_start_matches("http://"), made["token"].as_str().expect("a token"));
    let prometheus = PrometheusProcess::start(&[(address.to_owned(), token.to_owned())]);
    let mut firing = BTreeSet::new();
    let is_named = eventually(|| {
        firing = prometheus.firing_of_tenants();
        CULPRITS.iter().all(|(tenant, _, alerts)| {
            alerts.iter().any(|alert| firing.contains(&((*alert).to_owned(), (*tenant).to_owned())))
        })
    });
    assert!(is_named, "{firing:?}");
    let others: Vec<_> = firing.iter().filter(|(_, tenant)| tenant.starts_with("quiet-")).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn six_of_three_hundred_tenants_are_named_by_all_that_looks_and_still_after_a_restart() {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let server = start(&folder);
    // They go on as they are: neither slowed down nor suspended for it.
    let lets_go_on = "--quota slow_after_kills=0 --quota suspend_after_kills=0";
    let computes = tenant(&server, "computes", lets_go_on);
    let allocates = tenant(&server, "allocates", lets_go_on);
    let floods = tenant(&server, "floods", "--quota requests_per_s=50");
    let hot = tenant(&server, "hot", "");
    tenant(&server, "suspended", "");
    tenant(&server, "nearly-full", "--quota tables=1");
    for name in ["computes", "allocates", "suspended"] {
        server.json(&format!("ext push ../ext/bad --tenant {name}"));
    }
    server.json("ext suspend bad --tenant suspended");
    server.json("slow --threshold-us 1");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        scope.spawn(|| calls(&computes.0, computes.1, "loop", over));
        scope.spawn(|| calls(&allocates.0, allocates.1, "allocation", over));
        scope.spawn(|| flood(&floods.0, floods.1, over));
        scope.spawn(|| hot_gets(&hot.0, hot.1, over));
        let _ends = Stop(over);
        let views = [
            ("top", top_names_them as fn(&Server)),
            ("doctor --live", doctor_names_them),
            ("the page", the_page_names_them),
            ("Prometheus' alerts", prometheus_names_them),
        ];
        for (view, names_them) in views {
            let begun = Instant::now();
            names_them(&server);
            println!("all six are named by {view} after {:.1} s", begun.elapsed().as_secs_f64());
        }
    });
    drop(server);
    let server = start(&folder);
    let causes = |tenant: &str| -> BTreeSet<String> {
        let kills = server.json(&format!("kills --tenant {tenant}"));
        let kills = kills.as_array().expect("kills").iter();
        kills.map(|kill| kill["cause"].as_str().expect("a cause").to_owned()).collect()
    };
    assert!(causes("computes").contains("total_budget"), "{:?}", causes("computes"));
    assert!(!causes("allocates").is_empty() && causes("quiet-000").is_empty());
    // The hour and the minute had not ended.
    for by in ["minutes", "hours"] {
        let used = server.output(&format!("history --by {by}"));
        assert!(String::from_utf8_lossy(&used.stdout).contains("computes"), "{by}: {used:?}");
    }
    let slow = server.json("slow --tenant hot");
    let one = &slow["requests"][0];
    assert_eq!((&one["operation"], &one["key"]), (&Value::from("get"), &Value::Null), "{slow}");
    let explained = server.json(&format!("explain {}", one["id"]));
    assert_eq!(&explained["id"], &one["id"]);
    // Of a table with durability the key is told: to its tenant, and to the operator the digest that it has now.
    let token = server.json("tenant token hot");
    let own = server.json(&format!("explain {} --token {}", one["id"], token["token"].as_str().expect("a token")));
    assert_eq!((&own["key"], &own["key_digest"]), (&Value::from("the-hot-one"), &one["key_digest"]), "{own}");
    assert!(one["key_digest"].is_string(), "{one}");
}
