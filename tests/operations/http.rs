//! Requests to the control port, as monitoring programs and browsers send them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Sends a request with these header lines; returns its status and body.
pub(crate) fn request(url: &str, method: &str, path: &str, headers: &[String]) -> (u16, String) {
    let host = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).expect("a port");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{lines}content-length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it is sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let text = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    (status, if is_chunked { joined(body) } else { body.to_owned() })
}

/// GET with a token.
pub(crate) fn get(url: &str, path: &str, token: &str) -> (u16, String) {
    request(url, "GET", path, &[format!("authorization: Bearer {token}")])
}

fn joined(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap_or(0);
        if length == 0 {
            break;
        }
        body.push_str(&rest[..length]);
        chunks = rest[length..].trim_start_matches("\r\n");
    }
    body
}

/// Whether a program is installed; a test without it says so, and checks nothing. One that is named in
/// `TEST_MUST_HAVE` must be there: `scripts/test` names those that it has found or installed, so that no test with
/// them passes without them.
pub(crate) fn has_program(name: &str, package: &str) -> bool {
    let found =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|folder| folder.join(name).exists());
    let needed = std::env::var("TEST_MUST_HAVE").unwrap_or_default();
    assert!(
        found || !must_have(&needed, name),
        "TEST_MUST_HAVE names {name} (Debian's package {package}), and it is not there"
    );
    if !found {
        println!("skipped: there is no {name} (Debian's package {package})");
    }
    found
}

/// Whether a list of programs has this one.
fn must_have(needed: &str, name: &str) -> bool {
    needed.split_whitespace().any(|one| one == name)
}

#[test]
fn a_program_that_must_be_there_lets_no_test_pass_without_it() {
    assert!(must_have("promtool chromium", "chromium") && !must_have("promtool", "chromium") && !must_have("", "x"));
    let script = std::fs::read_to_string(crate::common::root().join("scripts/test")).expect("a script");
    for name in
        ["promtool", "prometheus", "chromium", "dpkg-deb", "script", "etcd", "etcdctl", "redis-cli", "nft", "faketime"]
    {
        assert!(script.contains(&format!(" {name}:")), "scripts/test installs {name}, or says that it is missing");
    }
    assert!(script.contains("export TEST_MUST_HAVE="), "and names those that are there");
}

/// A machine whose packages are not known asks for them once, and one that is not to be had keeps no other one away.
#[test]
fn the_list_of_packages_is_asked_for_once_and_each_package_alone() {
    let script = std::fs::read_to_string(crate::common::root().join("scripts/test")).expect("a script");
    let begin = script.find("can_install()").expect("how a package is installed");
    let end = begin + script[begin..].find("\nfor peer in").expect("what is installed so");
    let fakes = "set -eu; id() { echo 0; }; apt-get() { asked=\"$asked $1\"; [ \"${*: -1}\" != no-package ]; }; asked=";
    let tries = "try_package no-package || true; try_package one; try_package other; echo $asked";
    let commands = format!("{fakes}\n{}\n{tries}", &script[begin..end]);
    let output = std::process::Command::new("bash").args(["-c", &commands]).output().expect("a shell");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "update install install install\n");
    let peers = script[end..].split("\ndone").next().expect("the programs");
    assert!(!peers.contains("python3-redis"), "it is missing where redis-cli is not");
}
