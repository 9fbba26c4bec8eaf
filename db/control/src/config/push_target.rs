//! What webhooks and the endpoint of metrics have in common: a URL, and a certificate that is believed.

use std::path::PathBuf;

use sandstorm_net::trust::Trust;

/// Checks a URL, which ends up in errors and logs and so has no password.
pub(super) fn check_url(what: &str, url: &str, instead_of_password: &str) -> Result<(), String> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let is_bare = rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/'));
    // The password of a URL that cannot be read is not shown either.
    let has_password = rest.unwrap_or(url).split('/').next().unwrap_or_default().contains('@');
    if has_password {
        return Err(format!("the url of {what} has no password: {instead_of_password}"));
    }
    if is_bare || url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("{what} {url:?}: write http:// or https://, a host, and a path"));
    }
    Ok(())
}

/// What events and the log show of a URL, its scheme, host and port: viewers read them, and what follows may be a
/// secret.
pub(crate) fn origin_of(url: &str) -> &str {
    let from = url.find("://").map_or(0, |at| at + 3);
    let length = url[from..].find(['/', '?', '#']).unwrap_or(url.len() - from);
    &url[..from + length]
}

/// What is believed: the certificates in a file, the one with a digest, or those that the public authorities vouch for.
/// Otherwise the key that is wrong, and why.
pub(super) fn trust_of(ca: Option<PathBuf>, fingerprint: Option<String>) -> Result<Trust, (&'static str, String)> {
    match (ca, fingerprint) {
        (Some(_), Some(_)) => Err(("ca", "ca and fingerprint say each what is believed; leave one out".to_owned())),
        (Some(file), None) => Trust::in_file(&file).map_err(|error| ("ca", error.to_string())),
        (None, Some(text)) => {
            Trust::pin(&text).ok_or_else(|| ("fingerprint", "write sha256: and 64 hexadecimal digits".to_owned()))
        }
        (None, None) => Ok(Trust::Public),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_secret_of_a_url_is_shown() {
        for (url, shown) in [
            ("https://hooks.example/services/T0/secret", "https://hooks.example"),
            ("http://[::1]:4318/v1/metrics?key=secret", "http://[::1]:4318"),
            ("http://a?secret", "http://a"),
            ("http://a", "http://a"),
        ] {
            assert_eq!(super::origin_of(url), shown);
        }
    }
}
