//! The names that a plain control port answers to. A page in a browser may have its own name resolve to this machine
//! (DNS rebinding). Its requests then come without an `Origin`, but with that name in `Host`. With TLS no check is
//! needed: such a page's name is not in the certificate.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use crate::http_listener::close_after_response;

/// Refuses a request under a foreign name. One with a token passes: no browser adds a token, and a page that has one
/// needs no trick.
pub(super) async fn reject_foreign_host(request: Request, next: Next) -> Response {
    match foreign_host(&request) {
        Some(name) if !request.headers().contains_key(header::AUTHORIZATION) => {
            let message = format!(
                "the request is for the name {name:?}, which may point to this machine without its operator's consent"
            );
            let failure = ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host", message).hint(
                "call the server by its address or `localhost`, send a token, or have the control port speak TLS \
                 (`--control-tls`, with `--control-name NAME`)",
            );
            let mut response = failure.into_response();
            close_after_response(&mut response);
            response
        }
        _ => next.run(request).await,
    }
}

/// The name under which a request came, if it is neither an address nor a name that every machine has for itself.
fn foreign_host(request: &Request) -> Option<String> {
    let host = request.headers().get(header::HOST).map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    let target = request.uri().authority().map(|authority| authority.as_str().to_owned());
    [host, target].into_iter().flatten().find(|authority| !is_local_authority(authority))
}

/// Whether an authority (`NAME`, `NAME:PORT`) can only be an address or this machine. An empty one counts as local.
fn is_local_authority(authority: &str) -> bool {
    let name = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || port.starts_with(':') => address,
            _ => return false,
        },
        None => authority.rsplit_once(':').map_or(authority, |(name, _)| name),
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    authority.is_empty() || name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::is_local_authority;

    #[test]
    fn addresses_and_localhost_are_own_names_and_no_others() {
        for own in [
            "localhost",
            "localhost:7399",
            "LOCALHOST.:1",
            "a.localhost",
            "127.0.0.1",
            "10.1.2.3:7399",
            "[::1]",
            "[::1]:80",
            "",
        ] {
            assert!(is_local_authority(own), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:7399",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[::1].evil",
            "xlocalhost",
            "[::1",
            ":80",
        ] {
            assert!(!is_local_authority(foreign), "{foreign}");
        }
    }
}
