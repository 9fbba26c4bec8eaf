//! HTTP on a port for another protocol. A page in a browser may send any bytes to any port of the machine that it runs
//! on (`fetch` with `no-cors`). If the lines of such a request were answered with errors one by one, those of its body
//! would be run. So the connection ends at the first line that shows that it is HTTP.

use std::sync::atomic::{AtomicU64, Ordering};

use super::CommandContext;
use crate::limits::HTTP_LOG_EVERY;
use sandstorm_metrics::ConnectionReason;

/// Methods of HTTP. No request of a cache's client begins with one of them, has three words, and ends with a version of
/// HTTP.
const METHODS: [&str; 10] = ["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "PRI"];

/// The answer to such a client. A browser does not show it to a page, but `curl` shows it to a person.
pub(super) const HTTP_REJECTED: &str = "this port does not speak HTTP; the connection is closed";

/// Whether the words of a line are the first line of an HTTP request, or its `Host`. `POST` is no command of either
/// protocol, so any line with it counts.
pub(super) fn is_http_request<'w>(mut words: impl Iterator<Item = &'w [u8]>) -> bool {
    let first = words.next().unwrap_or_default();
    if first.eq_ignore_ascii_case(b"POST") || first.eq_ignore_ascii_case(b"Host:") {
        return true;
    }
    METHODS.iter().any(|method| first.eq_ignore_ascii_case(method.as_bytes()))
        && words.next().is_some()
        && words.last().is_some_and(|last| last.len() >= 5 && last[..5].eq_ignore_ascii_case(b"HTTP/"))
}

/// The time of the last log line, in the workers' microseconds; 0: none yet.
static LAST_LOGGED_US: AtomicU64 = AtomicU64::new(0);

/// Notes that a connection is closed because it speaks HTTP.
#[cold]
pub(super) fn count_http_rejection(context: &CommandContext<'_>, port: &str) {
    context.counters.connections_refused[ConnectionReason::Http as usize].add(1);
    let (now_us, logged_us) = (context.now_us.max(1), LAST_LOGGED_US.load(Ordering::Relaxed));
    let due = logged_us == 0 || now_us.saturating_sub(logged_us) >= HTTP_LOG_EVERY.as_micros() as u64;
    if due && LAST_LOGGED_US.compare_exchange(logged_us, now_us, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        tracing::warn!(
            "{port}: a connection spoke HTTP and was closed: perhaps a page in a browser on this machine tries to use the port"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::is_http_request;

    #[test]
    fn requests_of_browsers_are_seen_and_commands_are_not() {
        let is = |line: &str| is_http_request(line.split(' ').filter(|word| !word.is_empty()).map(str::as_bytes));
        for http in [
            "POST / HTTP/1.1",
            "GET /x?y HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "PUT / HTTP/1.0",
            "head / http/1.1",
            "CONNECT a:1 HTTP/1.1",
            "Host: a",
            "HOST: x",
            "post",
            "POST",
            "DELETE /a HTTP/2",
            "TRACE / HTTP/1.1",
            "PATCH / HTTP/1.1",
            "PRI * HTTP/2.0",
        ] {
            assert!(is(http), "{http}");
        }
        for command in
            ["GET /", "GET /x", "GET HTTP/1.1", "SET k HTTP/1.1", "DELETE k", "get / HTTP", "Host :", "PUT", "", "PING"]
        {
            assert!(!is(command), "{command}");
        }
    }
}
