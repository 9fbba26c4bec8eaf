//! What tenants' code writes: which callers read it, and what a request asks for.

use super::*;
use sandstorm_accounts::{LineLevel, NewLogLine};

/// A server with two tenants, whose operator reads logs or not; tenant `a` has three lines.
fn server(operator_reads_logs: bool) -> (Server, [String; 2]) {
    let options = DirectoryOptions { workers: 2, operator_reads_logs, ..DirectoryOptions::default() };
    let directory = Directory::with_options(Epochs::new(), options);
    let builder: Result<Arc<dyn ArtifactBuilder>, String> = Err("none".into());
    let server = Server::start_with(directory, ArtifactSources::from(builder).into());
    let tokens = [server.tenant("a"), server.tenant("b")];
    let snapshot = server.control.directory.snapshot();
    let log = &snapshot.by_name("a").unwrap().tenant.usage.log;
    for (level, extension, call, text) in [
        (LineLevel::Info, "x", 1, "one"),
        (LineLevel::Error, "y", 2, "two \u{1b}[2J"),
        (LineLevel::Warn, "x", 2, "three"),
    ] {
        log.keep(&NewLogLine { level, extension, version: 4, call, text: text.as_bytes() });
    }
    (server, tokens)
}

#[test]
fn a_log_is_its_tenants_and_the_operators_only_by_the_configuration() {
    for operator_reads in [false, true] {
        let (server, [own, other]) = server(operator_reads);
        let made =
            |path: &str| server.operator("POST", path, json!({"name": "v"})).1["token"].as_str().unwrap().to_owned();
        let (viewer, of_own) = (made("/v1/tokens"), made("/v1/tenants/a/tokens"));
        for (who, token, reads) in [
            ("the tenant", &own, true),
            ("its viewer", &of_own, true),
            ("another tenant", &other, false),
            ("a viewer of the server", &viewer, false),
            ("the operator", &server.operator, operator_reads),
        ] {
            let (status, text) = server.raw("GET", "/v1/tenants/a/logs", Some(token), b"");
            assert_eq!((status == 200, text.contains("three")), (reads, reads), "{who}: {status} {text}");
        }
    }
}

#[test]
fn lines_are_asked_for_by_extension_level_call_and_position() {
    let (server, [own, _]) = server(false);
    let texts = |query: &str| {
        let (status, body) = server.json("GET", &format!("/v1/tenants/a/logs{query}"), &own, Value::Null);
        assert_eq!(status, 200, "{body}");
        let lines: Vec<String> =
            body["lines"].as_array().unwrap().iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect();
        (lines, body["next"].as_u64().unwrap())
    };
    assert_eq!(texts(""), (vec!["one".into(), "two \u{1b}[2J".into(), "three".into()], 3));
    assert_eq!(texts("?extension=x&level=warn").0, ["three"]);
    assert_eq!(texts("?call=2&limit=1").0, ["three"]);
    assert_eq!(texts("?after=0&limit=1"), (vec!["one".into()], 1));
    assert_eq!(texts("?after=3").0, [""; 0]);
    let begun = Instant::now();
    assert_eq!(texts("?after=3&wait_s=1").0, [""; 0]);
    assert!(begun.elapsed() >= Duration::from_secs(1), "it has waited");
    let log =
        |server: &Server| server.control.directory.snapshot().by_name("a").unwrap().tenant.usage.log.level_number();
    assert_eq!(log(&server), LineLevel::Info as u32);
    texts("?level=debug");
    assert_eq!(log(&server), LineLevel::Debug as u32, "from now on they are kept");
    assert_eq!(server.json("GET", "/v1/tenants/a/logs?level=loud", &own, Value::Null).0, 400);
}
