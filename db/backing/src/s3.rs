//! Objects of a store that speaks S3: a few requests, signed by hand (AWS Signature Version 4), over the HTTP client
//! that the server has anyway. A table's objects are never listed; of a list of backups, names and one token are read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac_sha256::{HMAC, Hash};

use crate::format::hex;
use crate::limits::REQUEST_MOST;
use crate::memory::too_long;
use crate::object_store::{BackingError, ObjectStore, StoredObject, WriteCondition};

/// Bytes of an error's body that are looked at.
const ERROR_BYTES: u64 = 4 * 1024;
/// Bytes of a page of names: a store sends a thousand of them at most.
const LIST_BYTES: usize = 4 << 20;
/// Pages of a list, at most.
const LIST_PAGES: usize = 1_000;

/// A bucket, and the prefix of objects in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Place {
    /// The scheme and host of the store, without a slash at the end.
    pub endpoint: String,
    /// The bucket.
    pub bucket: String,
    /// What is in front of each object's name, without a slash at the end; may be empty.
    pub prefix: String,
    /// The region that requests are signed for.
    pub region: String,
}

/// What requests are signed with.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Credentials {
    access_key: String,
    secret_key: String,
    session_token: Option<String>,
}

impl S3Credentials {
    /// Reads `ACCESS_KEY:SECRET_KEY[:SESSION_TOKEN]`.
    pub fn parse(text: &str) -> Option<S3Credentials> {
        let mut parts = text.trim().splitn(3, ':').map(str::to_owned);
        let (access_key, secret_key, session_token) = (parts.next()?, parts.next()?, parts.next());
        (!access_key.is_empty() && !secret_key.is_empty()).then_some(S3Credentials {
            access_key,
            secret_key,
            session_token,
        })
    }
}

/// Objects of a bucket.
pub struct S3Objects {
    place: S3Place,
    credentials: S3Credentials,
    agent: ureq::Agent,
}

impl std::fmt::Debug for S3Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("S3Objects").field(&self.place.bucket).field(&self.place.prefix).finish()
    }
}

/// An answer, whatever its status.
struct S3Answer {
    status: u16,
    tag: Option<String>,
    body: Vec<u8>,
}

impl S3Objects {
    /// Makes those of a bucket. Nothing is asked yet.
    pub fn new(place: S3Place, credentials: S3Credentials) -> S3Objects {
        S3Objects::with_timeout(place, credentials, REQUEST_MOST)
    }

    /// The same, with another time that a request may take. Neither a redirect nor a proxy of the environment decides
    /// what is connected to.
    pub(crate) fn with_timeout(place: S3Place, credentials: S3Credentials, most: Duration) -> S3Objects {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(most))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .build();
        S3Objects { place, credentials, agent: config.new_agent() }
    }

    /// Returns the names of the folders directly below the prefix, in their order.
    ///
    /// # Errors
    /// [`BackingError`].
    pub fn list_folders(&self) -> Result<Vec<String>, BackingError> {
        let prefix = &self.place.prefix;
        let below = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let path = format!("/{}", self.place.bucket);
        let (mut names, mut token) = (Vec::new(), None::<String>);
        for _ in 0..LIST_PAGES {
            // In the order in which they are signed.
            let from =
                token.as_ref().map_or_else(String::new, |token| format!("continuation-token={}&", encoded(token)));
            let query = format!("{from}delimiter=%2F&list-type=2&prefix={}", encoded(&below));
            let answer = self.ask(("GET", &path, &query), b"", &WriteCondition::Always, LIST_BYTES)?;
            if answer.status != 200 {
                return Err(answer.error());
            }
            let text = String::from_utf8_lossy(&answer.body);
            let folders = text.split("<CommonPrefixes>").skip(1).filter_map(|part| between(part, "Prefix"));
            let folders = folders.filter_map(|path| path.strip_prefix(&*below)?.strip_suffix('/'));
            names.extend(folders.map(str::to_owned));
            if between(&text, "IsTruncated") != Some("true") {
                return Ok(names);
            }
            let next = between(&text, "NextContinuationToken").map(str::to_owned);
            if next.is_none() || next == token {
                break;
            }
            token = next;
        }
        Err(BackingError::Damaged("a list without an end".to_owned()))
    }

    /// The path of an object, as it is sent and signed.
    fn path(&self, name: &str) -> String {
        let prefix = &self.place.prefix;
        let slash = if prefix.is_empty() { "" } else { "/" };
        format!("/{}/{prefix}{slash}{name}", self.place.bucket).replace('=', "%3D")
    }

    fn ask(
        &self,
        (method, path, query): (&str, &str, &str),
        body: &[u8],
        condition: &WriteCondition,
        most_bytes: usize,
    ) -> Result<S3Answer, BackingError> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let headers = sign(&self.place, &self.credentials, (method, path, query), body, seconds);
        let mark = if query.is_empty() { "" } else { "?" };
        let uri = format!("{}{path}{mark}{query}", self.place.endpoint);
        let mut request = ureq::http::Request::builder().method(method).uri(uri);
        for (header, value) in &headers {
            request = request.header(*header, value);
        }
        match condition {
            WriteCondition::Always => {}
            WriteCondition::Absent => request = request.header("if-none-match", "*"),
            WriteCondition::Tag(tag) => request = request.header("if-match", tag),
        }
        let failed = |error: ureq::Error| BackingError::Unavailable(error.to_string());
        let mut response = if method == "PUT" {
            let request = request.body(body).map_err(|error| BackingError::Refused(error.to_string()))?;
            self.agent.run(request).map_err(failed)?
        } else {
            let request = request.body(()).map_err(|error| BackingError::Refused(error.to_string()))?;
            self.agent.run(request).map_err(failed)?
        };
        let status = response.status().as_u16();
        let text =
            |header: &str| response.headers().get(header).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (tag, length) = (text("etag"), text("content-length").and_then(|length| length.parse::<u64>().ok()));
        let limit = if status == 200 { most_bytes as u64 } else { ERROR_BYTES };
        if method == "HEAD" {
            return Ok(S3Answer { status, tag, body: Vec::new() });
        }
        if status == 200 && length.is_some_and(|length| length > limit) {
            return Err(too_long(length.unwrap_or(0) as usize, most_bytes));
        }
        let body = match response.body_mut().with_config().limit(limit + 1).read_to_vec() {
            Ok(body) => body,
            Err(_) if status != 200 => Vec::new(),
            Err(error) => return Err(failed(error)),
        };
        if status == 200 && length.is_some_and(|length| length != body.len() as u64) {
            return Err(BackingError::Damaged("an answer has another length than it says".to_owned()));
        }
        Ok(S3Answer { status, tag, body })
    }
}

/// Returns the text of the first element of a name. What is read here has nothing that XML would write otherwise.
fn between<'t>(text: &'t str, element: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{element}>"))?;
    rest.split_once(&format!("</{element}>")).map(|(text, _)| text)
}

fn error_code(body: &[u8]) -> String {
    let body = String::from_utf8_lossy(body);
    between(&body, "Code").unwrap_or("without a code").chars().take(64).collect()
}

/// A value as it stands in a query.
fn encoded(value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let of = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    value.bytes().map(of).collect()
}

impl S3Answer {
    /// What an answer that is no success means.
    fn error(&self) -> BackingError {
        let (status, code) = (self.status, error_code(&self.body));
        match status {
            409 | 412 => BackingError::Conflict,
            408 | 429 | 500..=506 | 508.. => BackingError::Unavailable(format!("status {status}, {code}")),
            _ => BackingError::Refused(format!("status {status}, {code}")),
        }
    }

    fn is_absent(&self) -> bool {
        self.status == 404 && !matches!(&*error_code(&self.body), "NoSuchBucket")
    }
}

impl ObjectStore for S3Objects {
    fn get(&self, name: &str, most_bytes: usize) -> Result<Option<StoredObject>, BackingError> {
        let answer = self.ask(("GET", &self.path(name), ""), b"", &WriteCondition::Always, most_bytes)?;
        match answer.status {
            200 => Ok(Some(StoredObject { bytes: answer.body, tag: answer.tag.unwrap_or_default() })),
            _ if answer.is_absent() => Ok(None),
            _ => Err(answer.error()),
        }
    }

    fn put(&self, name: &str, bytes: &[u8], condition: &WriteCondition) -> Result<String, BackingError> {
        let answer = self.ask(("PUT", &self.path(name), ""), bytes, condition, 0)?;
        match answer.status {
            200 | 201 | 204 => Ok(answer.tag.unwrap_or_default()),
            // The object that was to be replaced is not there.
            404 if answer.is_absent() && matches!(condition, WriteCondition::Tag(_)) => Err(BackingError::Conflict),
            _ => Err(answer.error()),
        }
    }

    /// Not every store knows conditions of deletes, so the object is looked at before: a writer that comes between the
    /// two loses its write.
    fn delete(&self, name: &str, condition: &WriteCondition) -> Result<(), BackingError> {
        let path = self.path(name);
        if *condition != WriteCondition::Always {
            let found = self.ask(("HEAD", &path, ""), b"", &WriteCondition::Always, 0)?;
            match found.status {
                200 if !condition.is_met(found.tag.as_deref()) => return Err(BackingError::Conflict),
                200 => {}
                404 => return Ok(()),
                _ => return Err(found.error()),
            }
        }
        let answer = self.ask(("DELETE", &path, ""), b"", &WriteCondition::Always, 0)?;
        if matches!(answer.status, 200 | 204) || answer.is_absent() { Ok(()) } else { Err(answer.error()) }
    }
}

/// Returns the headers of a signed request.
pub(crate) fn sign(
    place: &S3Place,
    credentials: &S3Credentials,
    (method, path, query): (&str, &str, &str),
    body: &[u8],
    seconds: u64,
) -> Vec<(&'static str, String)> {
    let (date, time) = date_and_time(seconds);
    let content = hex(&Hash::hash(body));
    let host = place.endpoint.split_once("://").map_or(&*place.endpoint, |(_, host)| host);
    let (mut signed, mut names) = (
        format!("host:{host}\nx-amz-content-sha256:{content}\nx-amz-date:{time}\n"),
        "host;x-amz-content-sha256;x-amz-date".to_owned(),
    );
    if let Some(token) = &credentials.session_token {
        signed.push_str(&format!("x-amz-security-token:{token}\n"));
        names.push_str(";x-amz-security-token");
    }
    let canonical = format!("{method}\n{path}\n{query}\n{signed}\n{names}\n{content}");
    let scope = format!("{date}/{}/s3/aws4_request", place.region);
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Hash::hash(canonical.as_bytes())));
    let mut key = HMAC::mac(date.as_bytes(), format!("AWS4{}", credentials.secret_key).as_bytes());
    for part in [&*place.region, "s3", "aws4_request"] {
        key = HMAC::mac(part.as_bytes(), key);
    }
    let signature = hex(&HMAC::mac(to_sign.as_bytes(), key));
    let access = &credentials.access_key;
    let authorization =
        format!("AWS4-HMAC-SHA256 Credential={access}/{scope}, SignedHeaders={names}, Signature={signature}");
    let token = credentials.session_token.iter().map(|token| ("x-amz-security-token", token.clone()));
    let fixed = [("x-amz-content-sha256", content), ("x-amz-date", time), ("authorization", authorization)];
    fixed.into_iter().chain(token).collect()
}

/// Returns a moment as `YYYYMMDD` and `YYYYMMDDThhmmssZ`.
pub(crate) fn date_and_time(seconds: u64) -> (String, String) {
    let moment = jiff::Timestamp::from_second(seconds as i64).unwrap_or_default();
    (moment.strftime("%Y%m%d").to_string(), moment.strftime("%Y%m%dT%H%M%SZ").to_string())
}

#[cfg(test)]
#[path = "s3_tests.rs"]
mod server_tests;

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of a PUT that the service's documentation has, for the host of its bucket.
    #[test]
    fn requests_are_signed_as_the_services_documentation_has_it() {
        let place = S3Place {
            endpoint: "https://examplebucket.s3.amazonaws.com".to_owned(),
            bucket: String::new(),
            prefix: String::new(),
            region: "us-east-1".to_owned(),
        };
        let credentials =
            S3Credentials::parse("AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY").unwrap();
        // 24 May 2013, 00:00:00.
        assert_eq!(date_and_time(1_369_353_600), ("20130524".to_owned(), "20130524T000000Z".to_owned()));
        let headers = sign(&place, &credentials, ("GET", "/test.txt", ""), b"", 1_369_353_600);
        let authorization = &headers.iter().find(|(name, _)| *name == "authorization").unwrap().1;
        assert!(authorization.starts_with(
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature="
        ));
        let content = &headers[0].1;
        assert_eq!(content, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(S3Credentials::parse("a:b:c").unwrap().session_token.as_deref(), Some("c"));
        assert!(S3Credentials::parse("only").is_none() && S3Credentials::parse(":b").is_none());
    }
}
