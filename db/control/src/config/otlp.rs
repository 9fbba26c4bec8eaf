//! `[otlp]`: where metrics are pushed to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::push_target::{check_url, trust_of};
use super::{ConfigError, in_range};
use crate::limits::{
    METRIC_SERIES, METRIC_SERIES_MAX, OTLP_HEADERS, OTLP_HEADERS_FILE_BYTES, OTLP_INTERVAL_MAX_S, OTLP_INTERVAL_S,
};
use sandstorm_net::trust::Trust;

/// The section, as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OtlpSection {
    url: Option<String>,
    interval_s: Option<u64>,
    top: Option<usize>,
    headers_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    fingerprint: Option<String>,
}

/// Where metrics are pushed to, and how often.
#[derive(Clone)]
pub struct OtlpSettings {
    /// Where, with `http://` or `https://`, and the path.
    pub url: String,
    /// Time between two pushes.
    pub interval: Duration,
    /// Of how many extensions and tables there are series.
    pub top: usize,
    /// Headers of each request, such as the endpoint's token.
    pub headers: Vec<(String, String)>,
    /// The certificate that is believed.
    pub trust: Trust,
}

impl std::fmt::Debug for OtlpSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Headers hold tokens.
        f.debug_struct("OtlpSettings").field("url", &self.url).field("interval", &self.interval).finish_non_exhaustive()
    }
}

/// Checks the section. The command line's `url` overrides its own.
pub(super) fn build(section: OtlpSection, url: Option<String>) -> Result<Option<OtlpSettings>, ConfigError> {
    let OtlpSection { url: own, interval_s, top, headers_file, ca, fingerprint } = section;
    let of_key = |(key, text): (&str, String)| ConfigError::new(text).at(&[format!("otlp.{key}")]);
    let Some(url) = url.or(own) else {
        let given = [
            ("interval_s", interval_s.is_some()),
            ("top", top.is_some()),
            ("headers_file", headers_file.is_some()),
            ("ca", ca.is_some()),
            ("fingerprint", fingerprint.is_some()),
        ];
        return match given.iter().find(|(_, is_given)| *is_given) {
            Some((key, _)) => {
                Err(of_key((key, "otlp has no url: write http:// or https://, a host, and a path".into())))
            }
            None => Ok(None),
        };
    };
    check_url("otlp", &url, "the endpoint's token is in a line of headers_file")
        .map_err(|text| of_key(("url", text)))?;
    let interval_s = in_range("otlp.interval_s", interval_s.unwrap_or(OTLP_INTERVAL_S), 1, OTLP_INTERVAL_MAX_S)?;
    let top = in_range("otlp.top", top.unwrap_or(METRIC_SERIES), 0, METRIC_SERIES_MAX)?;
    let headers = headers_file.map(|file| read_headers(&file)).transpose();
    let headers = headers.map_err(|text| of_key(("headers_file", text)))?.unwrap_or_default();
    let trust = trust_of(ca, fingerprint).map_err(of_key)?;
    Ok(Some(OtlpSettings { url, interval: Duration::from_secs(interval_s), top, headers, trust }))
}

/// Headers that the server writes itself.
const OWN_HEADERS: [&str; 5] = ["content-type", "content-length", "transfer-encoding", "host", "connection"];

/// Reads lines of the form `name: value`; empty ones and those that begin with `#` say nothing. No error shows a value.
fn read_headers(file: &Path) -> Result<Vec<(String, String)>, String> {
    let at = file.display();
    let bytes = std::fs::metadata(file).map_err(|error| format!("{at}: {error}"))?.len();
    if bytes > OTLP_HEADERS_FILE_BYTES {
        return Err(format!("{at} has {bytes} bytes, more than {OTLP_HEADERS_FILE_BYTES}"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| format!("{at}: {error}"))?;
    let mut headers = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| format!("{at}:{number}: write NAME: VALUE, such as authorization: Bearer …"))?;
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        let is_value = !value.is_empty() && value.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        if !is_name || !is_value {
            return Err(format!(
                "{at}:{number}: that is no header: letters, digits and - in its name, ASCII in its value"
            ));
        }
        if OWN_HEADERS.contains(&name.as_str()) {
            return Err(format!("{at}:{number}: the server sets {name} itself"));
        }
        headers.push((name, value.to_owned()));
    }
    if headers.len() > OTLP_HEADERS {
        return Err(format!("{at} has {} headers, more than {OTLP_HEADERS}", headers.len()));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use crate::config::{CliOverrides, ServerSettings};

    #[test]
    fn what_is_wrong_with_an_endpoint_is_said_with_its_line_and_without_its_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("headers");
        let over = CliOverrides::default();
        let parse = |text: &str, over: &CliOverrides| {
            ServerSettings::parse(&text.replace("FILE", &file.display().to_string()), "c.toml", over)
        };
        std::fs::write(&file, "# of the collector\n\nAuthorization: Bearer very:secret\nx-scope: one\n").unwrap();
        let good = "[otlp]\nurl = 'https://ops.example/v1/metrics'\nheaders_file = 'FILE'\ninterval_s = 15\n";
        let settings = parse(good, &over).unwrap();
        let otlp = settings.otlp.clone().expect("it is there");
        assert_eq!(otlp.headers[0], ("authorization".to_owned(), "Bearer very:secret".to_owned()));
        assert_eq!((otlp.interval.as_secs(), otlp.top, otlp.headers.len()), (15, 50, 2));
        assert!(!format!("{settings:?}").contains("very:secret"), "the token is in no log");
        for (from, to, line, why) in [
            ("https://ops", "ops", 2, "write http://"),
            ("https://ops", "https://me:pw@ops", 2, "has no password"),
            ("FILE", "/none", 3, "/none"),
            ("15", "0", 4, "outside of 1 to 3600"),
            ("url = 'https://ops.example/v1/metrics'\n", "", 3, "otlp has no url"),
        ] {
            let error = parse(&good.replace(from, to), &over).unwrap_err().to_string();
            assert!(error.starts_with(&format!("c.toml:{line}: ")) && error.contains(why), "{error}");
        }
        for (text, why) in [
            ("Bearer secret-token", ":1: write NAME: VALUE"),
            ("a b: secret-token", ":1: that is no header"),
            ("\nx: secret-\u{7}token", ":2: that is no header"),
            ("Content-Type: secret-token", "the server sets content-type itself"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = parse(good, &over).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret-"), "{error}");
        }
        let of_line = CliOverrides { otlp: Some("http://[::1]:4318/v1/metrics".into()), ..CliOverrides::default() };
        assert_eq!(
            parse("[otlp]\nurl = 'http://a/'", &of_line).unwrap().otlp.unwrap().url,
            "http://[::1]:4318/v1/metrics"
        );
        assert!(parse("", &over).unwrap().otlp.is_none());
    }
}
