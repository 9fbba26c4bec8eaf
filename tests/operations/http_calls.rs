//! Promise: a client that has nothing but HTTP can call extensions: once for each idempotency key, with an error by
//! name for each way in which a call can end, and without taking the control port from others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{data_plane, eventually, get_args, load, tenant};
use sandstorm_control::admin::{AdminServer, ArtifactBuilder, ArtifactSources, ControlState, OperatorCredentials};
use sandstorm_instance::DataPlane;
use sandstorm_metrics::histogram::RequestClass;
use serde_json::Value;

const OPERATOR: &str = "the operator's token of this test";

struct HttpServer {
    plane: DataPlane,
    admin: AdminServer,
    token: String,
}

/// A response: its status, its header in lower case, its body.
#[derive(Debug)]
struct HttpResponse {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl HttpResponse {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// Status, code and whatever says more.
    fn error(&self) -> (u16, String) {
        let body = self.json();
        let more = body["cause"].as_str().or(body["kind"].as_str()).unwrap_or("");
        (self.status, format!("{} {more}", body["code"].as_str().unwrap_or_default()).trim().to_owned())
    }
}

impl HttpServer {
    fn start(extensions: &[&str]) -> HttpServer {
        let plane = data_plane(2);
        let (_, token) = tenant(&plane, "shop", false);
        extensions.iter().for_each(|name| load(&plane, "shop", name, 1));
        let none: Result<Arc<dyn ArtifactBuilder>, String> = Err("none in this test".to_owned());
        let operator = OperatorCredentials::new(OPERATOR, None);
        let control = ControlState::new(plane.served(), ArtifactSources::from(none), operator, || {});
        let admin = AdminServer::start("127.0.0.1:0".parse().unwrap(), control, None).unwrap();
        HttpServer { plane, admin, token }
    }

    /// Sends a call without waiting for its answer.
    fn send(&self, path: &str, token: &str, headers: &[&str], body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.admin.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\nconnection: close\r\n{lines}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        stream
    }

    fn call_as(&self, token: &str, path: &str, headers: &[&str], body: &[u8]) -> HttpResponse {
        receive(self.send(path, token, headers, body))
    }

    fn call(&self, name: &str, headers: &[&str], body: &[u8]) -> HttpResponse {
        self.call_as(&self.token, &format!("/v1/call/shop/{name}"), headers, body)
    }
}

fn receive(mut stream: TcpStream) -> HttpResponse {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&answer[..at]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    HttpResponse { status, head, body: answer[at + 4..].to_vec() }
}

fn put_args(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&1u64.to_le_bytes()[..], &(key.len() as u32).to_le_bytes(), key, value].concat()
}

fn bad_args(kind: &str) -> Vec<u8> {
    [&1u64.to_le_bytes()[..], kind.as_bytes()].concat()
}

#[test]
fn calls_over_http_reply_and_fail_by_name() {
    let server = HttpServer::start(&["get", "put", "bad"]);
    assert_eq!(server.call("put", &[], &put_args(b"k", b"value")).status, 200);
    let got = server.call("get", &["content-type: application/octet-stream"], &get_args(b"k"));
    assert_eq!((got.status, &got.body[..]), (200, &b"value"[..]), "{got:?}");
    assert!(got.head.contains("sandstorm-version: 1") && !got.head.contains("sandstorm-cost"), "{got:?}");
    let costly = server.call("get?cost=true", &[], &get_args(b"k"));
    assert!(costly.head.contains("reads=1, read_bytes=5,"), "{costly:?}");

    for (called, error) in [
        (server.call("get", &[], &get_args(b"nothing")), (404, "failed not_found")),
        (server.call("get", &[], b"x"), (400, "failed invalid")),
        (server.call("bad", &[], &bad_args("panic")), (500, "killed panic")),
        (server.call("bad", &[], &bad_args("loop")), (500, "killed total_budget")),
        (server.call("nothing", &[], b""), (404, "unknown_extension")),
        (server.call("get?version=7", &[], b""), (404, "unknown_extension")),
        (server.call("get", &["sandstorm-timeout-ms: 0"], b""), (400, "invalid")),
        (server.call("get", &["idempotency-key: "], b""), (400, "invalid")),
        (server.call("get", &[], &vec![0; 2 << 20]), (413, "too_large")),
        (server.call_as("wrong", "/v1/call/shop/get", &[], b""), (401, "unauthenticated")),
        (server.call_as(&server.token, "/v1/call/other/get", &[], b""), (403, "unauthenticated")),
    ] {
        let (status, code) = called.error();
        assert_eq!((status, code.as_str()), error, "{called:?}");
    }
    // A code that had another name has that beside it.
    let wrong = server.call_as("wrong", "/v1/call/shop/get", &[], b"").json();
    assert_eq!(wrong["old_code"], "unauthorised", "{wrong}");
    assert_eq!(server.call("nothing", &[], b"").json()["old_code"], serde_json::Value::Null);
    // The operator may call for a tenant.
    assert_eq!(server.call_as(OPERATOR, "/v1/call/shop/get", &[], &get_args(b"k")).body, b"value");
}

#[test]
fn the_sending_of_calls_over_http_is_counted_for_their_tenant_and_their_extension() {
    let server = HttpServer::start(&["get", "put"]);
    assert_eq!(server.call("put", &[], &put_args(b"k", b"value")).status, 200);
    for _ in 0..3 {
        assert_eq!(server.call("get", &[], &get_args(b"k")).status, 200);
    }
    // An error of the extension's own is an answer; what did not run has none, and that of a repeat left before.
    assert_eq!(server.call("get", &[], &get_args(b"nothing")).status, 404);
    assert_eq!(server.call("nothing", &[], b"").status, 404);
    for _ in 0..2 {
        assert_eq!(server.call("get", &["idempotency-key: 7"], &get_args(b"k")).status, 200);
    }
    let snapshot = server.plane.directory.snapshot();
    let view = snapshot.by_name("shop").expect("the tenant");
    let of_tenant = || view.tenant.usage.latencies()[RequestClass::Call as usize].clone();
    let of_gets = || view.extension("get").expect("it is loaded").latency.read();
    assert!(eventually(|| of_tenant().sending.count() >= 6 && of_gets().sending.count() >= 5));
    let (all, gets) = (of_tenant(), of_gets());
    assert_eq!((all.total.count(), all.sending.count()), (6, 6), "each once");
    assert_eq!((gets.total.count(), gets.sending.count()), (5, 5));
    assert!(all.sending.sum_ns > gets.sending.sum_ns && gets.sending.quantile_ns(500_000) > 0, "{all:?}");
}

#[test]
fn a_call_with_a_key_runs_once_however_often_it_is_sent() {
    let server = HttpServer::start(&["put", "bad"]);
    let key = ["idempotency-key: 11111111-2222"];
    let put = |value: &[u8]| server.call("put", &key, &put_args(b"k", value));
    let first = put(b"1");
    assert_eq!((first.status, first.head.contains("sandstorm-repeated")), (200, false), "{first:?}");
    for _ in 0..3 {
        let again = put(b"1");
        assert_eq!((again.status, &again.body), (200, &first.body), "the version of the one write");
        assert!(again.head.contains("sandstorm-repeated: true"), "{again:?}");
    }
    assert_eq!(put(b"2").error(), (422, "key_reused".to_owned()));
    // Without the key it is another call.
    assert_ne!(server.call("put", &[], &put_args(b"k", b"1")).body, first.body);
    // A killed call has run, too; one that was refused may run.
    let killed = |name: &str| server.call(name, &["idempotency-key: killed"], &bad_args("panic"));
    assert_eq!(killed("bad").error(), (500, "killed panic".to_owned()));
    assert!(killed("bad").head.contains("sandstorm-repeated"));
    assert_eq!(server.call("later", &["idempotency-key: later"], b"").status, 404);
    load(&server.plane, "shop", "put", 2);
    assert!(!server.call("later", &["idempotency-key: later"], b"").head.contains("sandstorm-repeated"));
}

#[test]
fn a_repeat_is_not_run_by_a_later_start_of_the_server() {
    let start_of = |answer: &HttpResponse| {
        let line = answer.head.lines().find_map(|line| line.strip_prefix("sandstorm-start: "));
        line.expect("a start").to_owned()
    };
    let (server, key) = (HttpServer::start(&["put"]), "idempotency-key: one");
    let first = server.call("put", &[key], &put_args(b"k", b"1"));
    let start = start_of(&first);
    assert_eq!(start_of(&server.call("nothing", &[], b"")), start, "errors have it, too");
    let (own, other) = (format!("sandstorm-start: {start}"), "sandstorm-start: of an earlier one");
    // What the server knows has its answer, whatever the repeat says.
    for header in [own.as_str(), other] {
        let again = server.call("put", &[key, header], &put_args(b"k", b"1"));
        assert_eq!((again.status, &again.body), (200, &first.body), "{again:?}");
    }
    // What it does not know may have run at an earlier start.
    let stale = server.call("put", &["idempotency-key: two", other], &put_args(b"k", b"2"));
    assert_eq!(stale.error(), (409, "stale".to_owned()));
    assert_eq!(server.call("put", &["idempotency-key: two", &own], &put_args(b"k", b"2")).status, 200);
    // Nor does a repeat without a key run at another start.
    let stale = server.call("put", &[other], &put_args(b"k", b"3"));
    assert_eq!(stale.error(), (409, "stale".to_owned()));
    assert_eq!(server.call("put", &[&own], &put_args(b"k", b"3")).status, 200);
    let restarted = HttpServer::start(&["put"]);
    let lost = restarted.call("put", &[key, &own], &put_args(b"k", b"1"));
    assert_eq!(lost.error(), (409, "stale".to_owned()));
    assert_ne!(start_of(&lost), start);
}

#[test]
fn operators_are_served_beside_as_many_calls_as_there_may_be() {
    let server = HttpServer::start(&["bad"]);
    // Each computes until it is killed, which the workers do one after another.
    let under_way: Vec<TcpStream> =
        (0..24).map(|_| server.send("/v1/call/shop/bad", &server.token, &[], &bad_args("loop"))).collect();
    let mut stream = TcpStream::connect(server.admin.address()).unwrap();
    let head = format!(
        "GET /v1/tenants HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {OPERATOR}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(receive(stream).status, 200);
    for stream in under_way {
        let (status, code) = receive(stream).error();
        assert!(
            matches!((status, code.as_str()), (500, "killed total_budget") | (429, "over_quota")),
            "{status} {code}"
        );
    }
}
