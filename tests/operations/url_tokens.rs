//! Promise: a token in a URL is no token. It opens nothing, and neither a log line nor an event nor an answer has it.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use super::http::request;
use crate::common::process::Server;

/// Paths with a place for a token: of the API, of Prometheus, of the page, and one that does not exist.
const PATHS: [&str; 6] = [
    "/v1/stat?token=",
    "/v1/events?access_token=",
    "/metrics?token=",
    "/v1/overview?tenant=shop&token=",
    "/ui?token=",
    "/nothing/",
];

/// Files below a folder that contain a text.
fn files_with(text: &str, folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a readable folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            found.extend(files_with(text, &entry));
        } else if fs::read(&entry).is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes())) {
            found.push(entry.display().to_string());
        }
    }
    found
}

#[test]
fn a_token_in_a_url_opens_nothing_and_is_written_nowhere() {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let log = folder.path().join("log");
    let logged = ("debug", File::create(&log).expect("room"));
    let options = ["--data", "127.0.0.1:0", "--no-builder"];
    let server = Server::start_logging(Arc::clone(&folder), &options, logged);
    server.json("tenant create shop");
    let made = server.json("token create prometheus");
    let token = made["token"].as_str().expect("a token");
    let in_header = [format!("authorization: Bearer {token}")];
    assert_eq!(request(&server.control, "GET", "/v1/stat", &in_header).0, 200, "it is a token");
    for path in PATHS {
        let path = format!("{path}{token}");
        for method in ["GET", "POST"] {
            let (status, text) = request(&server.control, method, &path, &[]);
            let is_refused = (400..500).contains(&status);
            assert!(is_refused || path.starts_with("/ui"), "{method} {path}: {status} {text}");
            assert!(!text.contains(token), "{method} {path}: {text}");
            assert!(!text.contains("shop"), "it shows nothing of tenants: {method} {path}: {text}");
        }
        // Behind a token that is one, it is no reason to write it down either.
        let (_, text) = request(&server.control, "GET", &path, &in_header);
        assert!(!text.contains(token), "{path}: {text}");
    }
    for told in ["events", "kills", "slow", "doctor --live"] {
        let output = server.output(&format!("{told} --json"));
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(!text.is_empty() && !text.contains(token), "{told}: {text}");
    }
    let state = server.state();
    drop(server);
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("tenant created"), "it logs: {said}");
    assert!(!said.contains(token), "{said}");
    assert_eq!(files_with(token, &state), [""; 0], "the directory of tokens has a digest of it");
}
