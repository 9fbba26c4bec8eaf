use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

/// Serves one connection: answers each request with the next of `answers`, and returns the requests.
fn serve(answers: Vec<(u16, String)>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let mut requests = Vec::new();
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
                head.push_str(&line);
            }
            let mut text = vec![0; length];
            reader.read_exact(&mut text).unwrap();
            requests.push(format!("{head}\n{}", String::from_utf8(text).unwrap()));
            write!(
                stream,
                "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            )
            .unwrap();
        }
        requests
    });
    (address, thread)
}

#[test]
fn a_request_carries_path_token_and_body_and_its_answer_is_typed() {
    let (address, server) = serve(vec![
        (200, r#"{"tenant":{"id":7,"name":"a/b","open":false,"news":1},"token":"t"}"#.into()),
        (200, "[]".into()),
        (200, String::new()),
    ]);
    let control = Control::new(&address, Some("secret"));
    let created = control.create_tenant(&TenantSpec { name: "a/b".into(), ..TenantSpec::default() }).unwrap();
    assert_eq!((created.tenant.id, created.token.as_str()), (7, "t"), "unknown fields are skipped");
    assert_eq!(control.kills(Some("a/b"), 5).unwrap(), vec![]);
    control.unload("a/b", "x y").unwrap();
    let requests = server.join().unwrap();
    assert!(requests[0].starts_with("POST /v1/tenants HTTP/1.1"), "{}", requests[0]);
    assert!(requests[0].to_lowercase().contains("authorization: bearer secret"));
    assert!(requests[0].contains(r#""name":"a/b""#));
    assert!(requests[1].starts_with("GET /v1/tenants/a%2Fb/kills?limit=5 "), "{}", requests[1]);
    assert!(requests[2].starts_with("DELETE /v1/tenants/a%2Fb/extensions/x%20y "), "{}", requests[2]);
}

#[test]
fn every_kind_of_refusal_has_its_own_error() {
    let refused = r#"{"code":"refused","message":"1 error","diagnostics":[{"severity":"error","file":"src/lib.rs",
        "line":3,"column":5,"message":"unsafe is not allowed"}]}"#;
    let (address, server) = serve(vec![
        (422, refused.into()),
        (401, r#"{"code":"unauthenticated","message":"no token"}"#.into()),
        (403, r#"{"code":"unauthorised","message":"of an older server"}"#.into()),
        (403, r#"{"code":"code_policy","message":"no code"}"#.into()),
        (404, r#"{"code":"not_found","message":"tenant x"}"#.into()),
        (409, r#"{"code":"exists","message":"tenant x"}"#.into()),
        (409, r#"{"code":"over_quota","message":"tables"}"#.into()),
        (503, r#"{"code":"builder","message":"no rustc","hint":"install it"}"#.into()),
        (500, "<html>".into()),
        (200, "not json".into()),
    ]);
    let control = Control::new(&address, None);
    let error = control.push("t", "e", &ExtensionSource::default()).unwrap_err();
    assert!(error.to_string().contains("src/lib.rs:3:5"), "{error}");
    assert_eq!(error.code(), "refused");
    let errors: Vec<ControlError> = (0..9).map(|_| control.health().unwrap_err()).collect();
    let codes: Vec<&str> = errors.iter().map(ControlError::code).collect();
    let known = ["unauthenticated", "unauthenticated", "code_policy", "not_found", "exists", "over_quota"];
    assert_eq!(codes, [&known[..], &["builder", "server", "protocol"]].concat());
    // The name of the release before is there beside the new one.
    let old: Vec<Option<&str>> = errors.iter().map(ControlError::old_code).collect();
    assert_eq!(old[..3], [Some("unauthorised"), Some("unauthorised"), None]);
    server.join().unwrap();
}

#[test]
fn a_server_that_is_not_there_is_unreachable_with_a_hint() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = Control::new(&address, None).health().unwrap_err();
    assert_eq!(error.code(), "unreachable", "{error:?}");
    assert!(error.to_string().contains("is the server running"), "{error}");
    // It may have been started a moment ago.
    assert!(error.hint().is_some_and(|hint| hint.contains("just started") && hint.contains("sandstorm serve")));
}

/// Serves connections that take a request and end, then one that is answered; gives back the methods that were asked
/// for.
fn drop_some(dropped: usize) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let mut requests = Vec::new();
        for connection in 0..=dropped {
            let (stream, _) = listener.accept().unwrap();
            let head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            requests.extend(head.collect::<Vec<_>>()[0].split(' ').next().map(str::to_owned));
            if connection == dropped {
                write!(&stream, "HTTP/1.1 200 x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]").unwrap();
            }
        }
        requests
    });
    (address, thread)
}

#[test]
fn what_changes_nothing_is_asked_again_when_its_connection_is_lost_and_a_change_is_not() {
    let (address, server) = drop_some(1);
    assert_eq!(Control::new(&address, None).tenants().unwrap(), vec![]);
    assert_eq!(server.join().unwrap(), ["GET", "GET"]);
    let (address, server) = drop_some(2);
    let control = Control::new(&address, None);
    let error = control.unload("t", "e").unwrap_err();
    assert_eq!(error.code(), "lost", "{error:?}");
    assert!(error.to_string().contains("look whether the change was made"), "{error}");
    assert_eq!(control.tenants().unwrap(), vec![]);
    assert_eq!(server.join().unwrap(), ["DELETE", "GET", "GET"]);
}

#[test]
fn a_token_crosses_no_network_in_the_clear_unless_http_is_written() {
    for (address, trusted, expected) in [
        ("127.0.0.1:7399", false, "http://127.0.0.1:7399"),
        ("127.8.8.8:7399/", false, "http://127.8.8.8:7399"),
        ("localhost:1", false, "http://localhost:1"),
        ("[::1]:1", false, "http://[::1]:1"),
        ("[::ffff:127.0.0.1]:1", false, "http://[::ffff:127.0.0.1]:1"),
        ("127.0.0.1:7399", true, "https://127.0.0.1:7399"),
        ("localhost:1", true, "https://localhost:1"),
        ("db.example:7399", false, "https://db.example:7399"),
        ("localhost.example:1", false, "https://localhost.example:1"),
        ("10.0.0.1:1", false, "https://10.0.0.1:1"),
        ("0.0.0.0:1", false, "https://0.0.0.0:1"),
        ("[fd00::1]:1", false, "https://[fd00::1]:1"),
        ("http://10.0.0.1:1/", true, "http://10.0.0.1:1"),
        ("https://127.0.0.1:1", false, "https://127.0.0.1:1"),
    ] {
        assert_eq!(url(address, trusted), expected, "{address} {trusted}");
    }
}

#[test]
fn a_port_whose_certificate_was_named_is_told_no_token_before_it_shows_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let received = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut first = [0; 6];
        stream.read_exact(&mut first).unwrap();
        first
    });
    let control = Control::with_trust(&address, Some("secret"), Duration::from_secs(60), &Trust::Pinned([7; 32]));
    assert!(control.unload("t", "e").is_err(), "nobody there has that certificate");
    let first = received.join().unwrap();
    assert_eq!(
        (first[0], first[5]),
        (0x16, 0x01),
        "a handshake record with a client's hello, no request: {first:02x?}"
    );
}

#[test]
fn a_server_that_says_hurdle_is_understood() {
    let report = r#"{"server": "a", "silent_ms": 7, "gone": false, "hurdle": "by command"}"#;
    let report: super::cluster::SuspectedServerReport = serde_json::from_str(report).unwrap();
    assert_eq!(report.obstacle.as_deref(), Some("by command"));
    assert!(serde_json::to_string(&report).unwrap().contains("\"obstacle\""));
}
