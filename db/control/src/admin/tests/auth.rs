//! Permissions and rejections: old and wrong tokens, malformed requests, unauthenticated senders.

use super::*;

#[test]
fn an_old_token_works_in_its_grace_but_changes_no_tokens() {
    let server = Server::without_builder();
    let first = server.tenant("a");
    let status = |method: &str, path: &str, token: &str| server.json(method, path, token, Value::Null).0;
    let (_, rotated) = server.json("POST", "/v1/tenants/a/rotate", &first, Value::Null);
    let second = rotated["token"].as_str().unwrap();
    let left_ms = rotated["old_until_ms"].as_u64().unwrap() - now_ms();
    assert!((3_000_000..=3_600_000).contains(&left_ms), "an hour by default: {left_ms}");
    assert_eq!((status("GET", "/v1/tenants/a", &first), status("GET", "/v1/tenants/a", second)), (200, 200));
    assert!(server.operator("GET", "/v1/tenants/a", Value::Null).1["old_token_until_ms"].is_u64());
    for (method, path) in [("POST", "/v1/tenants/a/rotate"), ("DELETE", "/v1/tenants/a/old-token")] {
        let (status, error) = server.json(method, path, &first, Value::Null);
        assert_eq!(status, 403, "{method} {path}");
        assert!(error["message"].as_str().unwrap().contains("old token"), "{error}");
    }
    assert_eq!(status("DELETE", "/v1/tenants/a/old-token", second), 200);
    assert_eq!((status("GET", "/v1/tenants/a", &first), status("GET", "/v1/tenants/a", second)), (401, 200));
    assert!(server.operator("GET", "/v1/tenants/a", Value::Null).1["old_token_until_ms"].is_null());
    for (body, text) in
        [(json!({"grace_s": 2_592_001}), "longer than"), (json!({"grace": 1}), "did you mean `grace_s`")]
    {
        let (status, error) = server.operator("POST", "/v1/tenants/a/rotate", body);
        assert!(status == 400 && error.to_string().contains(text), "{error}");
    }

    // The operator's own.
    let (_, rotated) = server.operator("POST", "/v1/operator/rotate", json!({"grace_s": 60}));
    let new = rotated["token"].as_str().unwrap();
    assert_eq!((status("GET", "/v1/workers", &server.operator), status("GET", "/v1/workers", new)), (200, 200));
    assert_eq!(status("POST", "/v1/operator/rotate", &server.operator), 403);
    assert_eq!(status("DELETE", "/v1/operator/old-token", &server.operator), 403);
    assert_eq!(status("POST", "/v1/operator/rotate", second), 403, "a tenant is no operator");
    assert!(server.json("GET", "/v1/operator", new, Value::Null).1["old_until_ms"].is_u64());
    assert_eq!(status("DELETE", "/v1/operator/old-token", new), 200);
    assert_eq!((status("GET", "/v1/workers", &server.operator), status("GET", "/v1/workers", new)), (401, 200));
    let shown = format!("{:?} {:?}", server.control, server.control.operator);
    assert!(![new, second, &server.operator].iter().any(|token| shown.contains(*token)), "{shown}");
}

#[test]
fn a_replaced_operators_token_is_written_for_its_owner_alone() {
    let state = tempfile::tempdir().unwrap();
    let first = crate::config::operator_token(state.path()).unwrap();
    let operator = OperatorCredentials::new(&first, Some(state.path().to_owned()));
    let (second, until) = operator.rotate(Duration::ZERO).unwrap();
    assert_eq!((crate::config::read_operator_token(state.path()).unwrap(), until), (second.clone(), None));
    let file = state.path().join(crate::config::OPERATOR_TOKEN_FILE);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 1, "nothing is left lying about");

    // If the file cannot be written nothing changes: an unreadable token would lock the operator out.
    let gone = OperatorCredentials::new(&first, Some(state.path().join("gone")));
    assert!(gone.rotate(Duration::ZERO).is_err());
    let presented = |token: &str| sandstorm_accounts::TokenHash::of_presented(token.as_bytes()).unwrap();
    assert!(gone.shown(&presented(&first)).is_some() && operator.shown(&presented(&first)).is_none());
}

/// Sends raw bytes. Returns the server's bytes until it closes. Without `whole`, the server is told that no more bytes
/// come, and may close at once.
fn exchange(address: SocketAddr, bytes: &[u8], whole: bool) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may have closed before it has read everything.
    let _closed = stream.write_all(bytes);
    if !whole {
        let _closed = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// A page whose own name resolves to this machine is no client, whichever headers it omits.
#[test]
fn a_plain_port_answers_to_its_own_names_alone_but_for_who_has_a_token() {
    let server = Server::without_builder();
    let bearer = format!("authorization: Bearer {}\r\n", server.operator);
    for (target, host, more, status) in [
        ("/v1/health", "evil.example", "", 421),
        ("/v1/health", "evil.example:7399", "", 421),
        ("http://evil.example/v1/health", "localhost", "", 421),
        ("/v1/health", "localhost:7399", "", 200),
        ("/v1/health", "[::1]:7399", "", 200),
        ("/v1/health", "sandstorm.example", bearer.as_str(), 200),
    ] {
        let sent = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n");
        let answer = exchange(server.admin.address(), sent.as_bytes(), true);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{sent}: {answer}");
        assert_eq!(
            answer.contains("\"code\":\"host\"") && answer.contains("--control-name"),
            status == 421,
            "{answer}"
        );
    }
}

#[test]
fn junk_gets_an_answer_or_a_close_and_the_port_goes_on() {
    let server = Server::without_builder();
    let address = server.admin.address();
    let generation = server.control.directory.generation();
    let bearer = format!("connection: close\r\nauthorization: Bearer {}\r\n", server.operator);
    let json = |status: u16| format!("HTTP/1.1 {status} ");
    let long = "x".repeat(crate::limits::MAX_HEADER_BYTES);
    let many: String = (0..2000).map(|n| format!("h{n}: x\r\n")).collect();
    let table: Vec<(String, String)> = vec![
        ("GET /v1/health HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), json(200)),
        ("GET /v1/health HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example\r\n\r\n".into(), json(403)),
        (format!("GET /v1/tenants HTTP/1.1\r\nhost: a\r\norigin: null\r\n{bearer}\r\n"), json(403)),
        ("OPTIONS /v1/tenants HTTP/1.1\r\nhost: localhost\r\norigin: http://a\r\n\r\n".into(), json(403)),
        ("OPTIONS /v1/tenants HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), json(405)),
        ("TRACE /v1/health HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), json(405)),
        ("BREW /v1/health HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), json(405)),
        ("CONNECT evil.example:443 HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), String::new()),
        (format!("GET /v1/tenants/%ff HTTP/1.1\r\nhost: a\r\n{bearer}\r\n"), json(400)),
        (format!("GET /v1/kills?limit=x HTTP/1.1\r\nhost: a\r\n{bearer}\r\n"), json(400)),
        (format!("GET /v1/tenants/..%2f..%2fetc HTTP/1.1\r\nhost: a\r\n{bearer}\r\n"), json(404)),
        (format!("GET /../../etc/passwd HTTP/1.1\r\nhost: a\r\n{bearer}\r\n"), json(404)),
        (format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "y".repeat(60_000)), json(404)),
        (format!("GET / HTTP/1.1\r\nx: {long}\r\n\r\n"), String::new()),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), String::new()),
        (format!("POST /v1/tenants HTTP/1.1\r\nhost: a\r\n{bearer}content-length: 99999999999\r\n\r\n"), json(413)),
        (
            format!("POST /v1/tenants HTTP/1.1\r\nhost: a\r\n{bearer}content-length: 1\r\ncontent-length: 2\r\n\r\nx"),
            String::new(),
        ),
        (
            format!("POST /v1/tenants HTTP/1.1\r\nhost: a\r\n{bearer}transfer-encoding: chunked\r\n\r\nzz\r\n"),
            json(400),
        ),
        ("GET /v1/health HTTP/9.9\r\n\r\n".into(), String::new()),
        ("GET /v1/health\r\n\r\n".into(), String::new()),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), String::new()),
        ("\r\n\r\n\r\n".into(), String::new()),
        ("\0\0\0\0".into(), String::new()),
        ("\u{16}\u{3}\u{1}\0\u{5}hello".into(), String::new()),
    ];
    for (sent, expected) in &table {
        let head: String = sent.chars().take(60).collect();
        let answer = exchange(address, sent.as_bytes(), !expected.is_empty());
        assert!(answer.starts_with(expected.as_str()), "{head:?}: {answer}");
        assert!(!answer.contains(&server.operator), "{head:?}");
        if !expected.is_empty() && !expected.contains("200") {
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            let error: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{head:?}: {answer}"));
            assert!(error["message"].is_string() && error["hint"].is_string(), "{head:?}: {answer}");
        }
    }
    // Bytes at random, from a fixed seed.
    let mut word = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..200 {
        let mut junk: Vec<u8> =
            b"GET /v1/tenants HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer x\r\n\r\n".to_vec();
        for _ in 0..4 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (word >> 33) as usize % junk.len();
            junk[at] = (word >> 25) as u8;
        }
        let answer = exchange(address, &junk, false);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1."), "{answer}");
        assert!(!answer.starts_with("HTTP/1.1 2") && !answer.starts_with("HTTP/1.1 5"), "{answer}");
    }
    assert_eq!(server.control.directory.generation(), generation, "none of it changed anything");
    assert_eq!(server.operator("GET", "/v1/tenants", Value::Null).0, 200);
}

#[test]
fn wrong_tokens_are_counted_and_health_tells_strangers_no_more_than_that_it_runs() {
    let server = Server::start(Err("no rustc in /home/someone/secret".into()));
    let own = server.tenant("a");
    for _ in 0..4 {
        assert_eq!(server.raw("GET", "/v1/tenants", Some("x"), b"").0, 401);
        assert_eq!(server.json("GET", "/v1/tenants/a", &own, Value::Null).0, 200, "a right token is not held back");
    }
    let (_, stat) = server.operator("GET", "/v1/stat", Value::Null);
    assert_eq!(stat["counters"]["control_wrong_tokens"], 4);
    let (_, text) = server.raw("GET", "/v1/health", None, b"");
    assert!(text.contains("\"builder\":\"none\"") && !text.contains("secret"), "{text}");
    assert!(server.raw("GET", "/v1/health", Some(&own), b"").1.contains("secret"));
}

/// The next answer of a connection: its status.
fn answer(stream: &mut impl std::io::BufRead) -> String {
    let (mut status, mut length) = (String::new(), 0);
    stream.read_line(&mut status).unwrap();
    loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the connection ended after {status:?}");
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    std::io::copy(&mut std::io::Read::take(stream, length), &mut std::io::sink()).unwrap();
    status.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// A refused request, or one that needs no body, could be answered after its header. The HTTP server would then close
/// the connection, and the next request on it would be lost.
#[test]
fn a_connection_takes_further_requests_although_a_body_comes_after_its_answer_could_have_gone() {
    use std::io::{BufReader, Write};
    let server = Server::without_builder();
    let token = server.tenant("a");
    let routes = [("a/extensions/x/suspend", "404"), ("b/extensions/x/resume", "403"), ("a/nowhere", "404")];
    for (route, status) in routes {
        let head = format!("host: x\r\nauthorization: Bearer {token}\r\n");
        let mut stream = std::net::TcpStream::connect(server.admin.address()).unwrap();
        write!(stream, "POST /v1/tenants/{route} HTTP/1.1\r\n{head}content-length: 2\r\n\r\n").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(stream.peek(&mut [0]).is_err(), "{route}: the answer waits for the body, however long that takes");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"{}").unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        assert_eq!(answer(&mut reader), status, "{route}");
        write!(stream, "GET /v1/tenants/a HTTP/1.1\r\n{head}\r\n").unwrap();
        assert_eq!(answer(&mut reader), "200", "{route}");
    }
    // For a body that is too long to wait for, the response states that the connection ends.
    let head = format!("host: x\r\nauthorization: Bearer {token}\r\ncontent-length: 100000\r\n\r\n");
    let told = exchange(server.admin.address(), format!("POST /v1/nowhere HTTP/1.1\r\n{head}").as_bytes(), true);
    assert!(told.starts_with("HTTP/1.1 404 ") && told.contains("connection: close\r\n"), "{told}");
    // What servers of a cluster send each other is large: nothing of it is read from others.
    for route in ["copy", "replica"] {
        let head = format!("POST /v1/cluster/{route} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n");
        let told = exchange(server.admin.address(), head.as_bytes(), true);
        assert!(told.starts_with("HTTP/1.1 404 ") && told.contains("connection: close\r\n"), "{told}");
    }
}

/// Another server of the cluster may have made it a moment ago.
#[test]
fn a_tenant_or_token_that_is_not_known_here_is_waited_for_until_the_next_look_at_the_cluster() {
    let server = Server::without_builder();
    let slots = Arc::new(sandstorm_store::slots::SlotOwnership::new("0".repeat(40)));
    server.control.directory.join_cluster(&slots);
    let status = |path: &str, token: &str| server.json("GET", path, token, Value::Null).0;
    let late = |name: &str, ask: &dyn Fn(&str) -> u16| {
        let token = format!("{name}-token-of-the-tenant");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                let made = NewTenant { token: Some(token.clone()), ..NewTenant::named(name) };
                server.control.directory.create_tenant(made).unwrap();
                (0..2).for_each(|_| slots.note_look());
            });
            ask(&token)
        })
    };
    assert_eq!(late("first", &|_| status("/v1/tenants/first", &server.operator)), 200);
    assert_eq!(late("second", &|token| status("/v1/tenants/second", token)), 200);
    // No request waits for what cannot be read.
    slots.set_trouble(Some((1, "etcd is away".to_owned())));
    assert_eq!(status("/v1/tenants/third", &server.operator), 404);
    assert_eq!(status("/v1/tenants/first", "no-token"), 401);
}
