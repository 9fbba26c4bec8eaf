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

/// Whether a program is installed; a test without it says so, and checks nothing.
pub(crate) fn has_program(name: &str, package: &str) -> bool {
    let found =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|folder| folder.join(name).exists());
    if !found {
        println!("skipped: there is no {name} (Debian's package {package})");
    }
    found
}
