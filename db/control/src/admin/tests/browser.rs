//! The page without a browser: its headers, its size, its sign-in.

use super::*;
use crate::limits::{PAGE_SESSIONS, PAGE_SESSIONS_PER_TENANT, PAGE_SNAPSHOT_INTERVAL};

const FILES: [(&str, &str); 5] = [
    ("/ui", "text/html; charset=utf-8"),
    ("/ui/refused", "text/html; charset=utf-8"),
    ("/ui/page.css", "text/css; charset=utf-8"),
    ("/ui/icon.svg", "image/svg+xml"),
    ("/ui/page.js", "text/javascript; charset=utf-8"),
];

/// An answer: status, headers, body.
struct PageAnswer {
    status: u16,
    headers: ureq::http::HeaderMap,
    body: String,
}

impl PageAnswer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The session that it sets, as the browser sends it back.
    fn cookie(&self) -> String {
        self.header("set-cookie").split(';').next().unwrap_or_default().to_owned()
    }
}

fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> PageAnswer {
    let uri = format!("http://{}{path}", server.admin.address());
    let mut request = ureq::http::Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None).build();
    let mut response = config.new_agent().run(request.body(body.as_bytes()).unwrap()).unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    PageAnswer { status, headers, body: response.body_mut().read_to_string().unwrap() }
}

fn sign_in(server: &Server, secret: &str) -> PageAnswer {
    let origin = format!("http://{}", server.admin.address());
    let form = [("content-type", "application/x-www-form-urlencoded"), ("origin", origin.as_str())];
    ask(server, "POST", "/ui/session", &form, &format!("token={secret}"))
}

#[test]
fn the_page_is_small_and_asks_for_nothing_elsewhere() {
    let server = Server::without_builder();
    let mut size = 0;
    for (path, kind) in FILES {
        let answer = ask(&server, "GET", path, &[], "");
        assert_eq!((answer.status, answer.header("content-type")), (200, kind), "{path}");
        let policy = answer.header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self';",
            "style-src 'self';",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
        assert_eq!(
            ["x-content-type-options", "referrer-policy", "cache-control", "x-frame-options"]
                .map(|name| answer.header(name)),
            ["nosniff", "same-origin", "no-store", "DENY"],
            "{path}"
        );
        size += answer.body.len();
        // An address of SVG's names is no request.
        let text = answer.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("://") && !text.contains("url(") && !text.contains("@import"), "{path}");
        if kind.starts_with("text/html") {
            for inline in ["<style", " style=", "javascript:", " onclick", " onload", "<script>"] {
                assert!(!text.contains(inline), "{path} has {inline}");
            }
        }
    }
    let script = include_str!("../../page/page.js");
    for markup in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
        "srcdoc",
    ] {
        assert!(!script.contains(markup), "the script has {markup}");
    }
    size += include_str!("../../page/page.html").len();
    assert!(size <= 150 << 10, "{size} bytes");
}

#[test]
fn a_session_reads_what_its_token_reads_and_changes_nothing() {
    let server = Server::without_builder();
    let own = server.tenant("a");
    server.tenant("b");
    let signed_in = sign_in(&server, &server.operator);
    assert_eq!((signed_in.status, signed_in.header("location")), (303, "/ui"), "{}", signed_in.body);
    let set = signed_in.header("set-cookie");
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict") && set.contains("Path=/"), "{set}");
    assert!(!set.contains(&server.operator), "the cookie is not the token");
    let of_operator = signed_in.cookie();
    let of_tenant = sign_in(&server, &own).cookie();
    let get = |path: &str, cookie: &str| ask(&server, "GET", path, &[("cookie", cookie)], "");
    assert!(get("/ui", &of_operator).body.contains("/ui/page.js") && !get("/ui", "").body.contains("/ui/page.js"));
    assert_eq!(get("/v1/caller", &of_operator).body, r#"{"role":"viewer","tenant":null,"expires_ms":null}"#);
    assert_eq!(get("/v1/caller", &of_tenant).body, r#"{"role":"tenant-viewer","tenant":"a","expires_ms":null}"#);
    assert_eq!(get("/v1/overview?tenant=b", &of_tenant).status, 403);
    let overview: Value = serde_json::from_str(&get("/v1/overview", &of_operator).body).unwrap();
    assert_eq!((&overview["tenants_in_all"], overview["tenants"].as_array().unwrap().len()), (&json!(2), 2));
    for (method, path) in [("POST", "/v1/shutdown"), ("DELETE", "/v1/tenants/a"), ("POST", "/v1/tenants/a/rotate")] {
        for cookie in [&of_operator, &of_tenant] {
            assert_eq!(ask(&server, method, path, &[("cookie", cookie)], "").status, 403, "{method} {path}");
        }
    }
    assert_eq!(server.stops.load(Ordering::Relaxed), 0);
    // It ends with its token, or by hand.
    server.json("POST", "/v1/tenants/a/rotate", &own, json!({"grace_s": 0}));
    assert_eq!(get("/v1/overview", &of_tenant).status, 401);
    let out = ask(&server, "POST", "/ui/sign-out", &[("cookie", &of_operator)], "");
    assert!(out.status == 303 && out.header("set-cookie").contains("Max-Age=0"));
    assert_eq!(get("/v1/overview", &of_operator).status, 401);
    let (_, events) = server.operator("GET", "/v1/events?code=page", Value::Null);
    assert_eq!(events["events"].as_array().unwrap().len(), 2, "{events}");
}

/// As another server of a cluster does it: no request of this one says so.
#[test]
fn a_session_ends_with_a_token_that_was_replaced_elsewhere() {
    let server = Server::without_builder();
    let own = server.tenant("a");
    let cookie = sign_in(&server, &own).cookie();
    let get = || ask(&server, "GET", "/v1/overview", &[("cookie", &cookie)], "").status;
    assert_eq!(get(), 200);
    server.control.directory.rotate_with_grace("a", Duration::from_secs(3_600)).unwrap();
    assert_eq!(get(), 200, "the old token works for an hour");
    server.control.directory.revoke_old_token("a").unwrap();
    assert_eq!(get(), 401);
}

#[test]
fn a_thousand_readings_of_the_page_have_the_server_read_every_two_seconds_and_refuse_no_other_request() {
    let server = Server::without_builder();
    let (own, begun) = (server.tenant("a"), Instant::now());
    // Ten pages, which ask far more often than a page does.
    let sessions: Vec<String> = (0..10).map(|_| sign_in(&server, &server.operator).cookie()).collect();
    let of_tenant = sign_in(&server, &own).cookie();
    let readings = std::sync::Mutex::new(std::collections::BTreeSet::new());
    let asked = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for session in &sessions {
            let (server, readings, asked) = (&server, &readings, &asked);
            scope.spawn(move || {
                for _ in 0..100 {
                    let answer = ask(server, "GET", "/v1/overview", &[("cookie", session)], "");
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    let read: Value = serde_json::from_str(&answer.body).unwrap();
                    readings.lock().unwrap().insert(read["at_ms"].as_u64().unwrap());
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Beside them others are served.
        while asked.load(Ordering::Relaxed) < 1_000 && !std::thread::panicking() {
            assert_eq!(server.operator("GET", "/v1/health", Value::Null).0, 200);
            assert_eq!(ask(&server, "GET", "/v1/caller", &[("cookie", &of_tenant)], "").status, 200);
            if begun.elapsed() > Duration::from_secs(600) {
                break;
            }
        }
    });
    assert_eq!(asked.load(Ordering::Relaxed), 1_000);
    let most = 1 + begun.elapsed().as_secs() / PAGE_SNAPSHOT_INTERVAL.as_secs();
    let readings = readings.into_inner().unwrap().len() as u64;
    assert!(readings <= most, "{readings} readings in {:?}", begun.elapsed());
}

#[test]
fn a_code_works_once_and_a_foreign_page_cannot_sign_anybody_in() {
    let server = Server::without_builder();
    let (status, made) = server.operator("POST", "/v1/page/codes", Value::Null);
    let code = made["code"].as_str().unwrap().to_owned();
    assert!(status == 200 && code.len() == 16, "{made}");
    for wrong in ["", "x", &code[..15], "%zz%", "token=a"] {
        let refused = sign_in(&server, wrong);
        assert_eq!((refused.status, refused.header("location")), (303, "/ui/refused"), "{wrong:?}");
        assert_eq!(refused.header("set-cookie"), "");
    }
    let foreign = ask(&server, "POST", "/ui/session", &[("origin", "http://evil.example")], &format!("token={code}"));
    assert_eq!(foreign.status, 403);
    let typed = code.to_lowercase();
    let cookie = sign_in(&server, &format!("{}-{}", &typed[..8], &typed[8..])).cookie();
    assert_eq!(ask(&server, "GET", "/v1/overview", &[("cookie", &cookie)], "").status, 200);
    assert_eq!(sign_in(&server, &code).header("location"), "/ui/refused", "it is used up");
    assert_eq!(ask(&server, "GET", "/ui", &[("origin", "http://evil.example")], "").status, 403);
}

#[test]
fn sessions_are_bounded_and_tenants_take_none_from_operators() {
    let server = Server::without_builder();
    let own = server.tenant("a");
    let of_operator = sign_in(&server, &server.operator).cookie();
    let first = sign_in(&server, &own).cookie();
    for _ in 0..2 * PAGE_SESSIONS_PER_TENANT {
        assert_eq!(sign_in(&server, &own).status, 303);
    }
    assert_eq!(server.control.page_sessions.len(), 1 + PAGE_SESSIONS_PER_TENANT);
    let get = |cookie: &str| ask(&server, "GET", "/v1/caller", &[("cookie", cookie)], "").status;
    assert_eq!((get(&first), get(&of_operator)), (401, 200));
    const { assert!(PAGE_SESSIONS > PAGE_SESSIONS_PER_TENANT) };
    for junk in ["sandstorm-session=", "sandstorm-session", "=;;=", "x=sandstorm-session=1", &"y=1;".repeat(500)] {
        assert_eq!(get(junk), 401, "{junk}");
    }
}
