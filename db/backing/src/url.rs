//! The address of a backing, as text.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::folder::FolderObjects;
use crate::memory::MemoryObjects;
use crate::object_store::ObjectStore;
use crate::s3::{S3Credentials, S3Objects, S3Place};

/// What a secret for S3 has.
const S3_SECRET: &str = "ACCESS_KEY:SECRET_KEY, or ACCESS_KEY:SECRET_KEY:SESSION_TOKEN";

/// Where the objects of a table are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackingPlace {
    /// `memory:NAME`: in the server's memory, for trials.
    Memory(String),
    /// `file:///FOLDER`.
    Folder(PathBuf),
    /// `s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME]`.
    S3(S3Place),
    /// `sandstorm://HOST:PORT/TENANT/TABLE`: of this server, or another one.
    Table(OtherTable),
}

/// Where the objects are, and what they have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingUrl {
    /// Where they are.
    pub place: BackingPlace,
    /// Whether they are values alone (`format=raw`).
    pub is_raw: bool,
}

/// The reason why a backing cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackingOpenError {
    /// The URL is not one of a backing.
    #[error("the backing {url:?} is not understood: {why}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The credentials are missing, or not as they should be.
    #[error("it needs a secret with {0}")]
    Credentials(&'static str),
    /// Only the server's own program opens tables of other servers.
    #[error("this program does not open tables of other servers")]
    NoTables,
    /// The folder cannot be used.
    #[error("the backing's folder cannot be used: {0}")]
    Folder(String),
}

/// Opens a table of a server with a token: what this is linked into may know how.
pub type TableOpener = fn(&OtherTable, &str) -> Arc<dyn ObjectStore>;

static TABLE_OPENER: OnceLock<TableOpener> = OnceLock::new();

/// Says how tables of other servers are opened: through the client, which servers do not know.
pub fn set_table_opener(opener: TableOpener) {
    let _once = TABLE_OPENER.set(opener);
}

/// Where another table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherTable {
    /// Host and port of its server's control port.
    pub server: String,
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub table: String,
}

impl BackingUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Url`.
    pub fn parse(url: &str) -> Result<BackingUrl, BackingOpenError> {
        let wrong = |why: String| BackingOpenError::Url { url: url.to_owned(), why };
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut is_raw, mut endpoint, mut region) = (false, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (name, value) {
                ("format", "raw") => is_raw = true,
                ("format", "record") => is_raw = false,
                ("endpoint", value) if value.starts_with("http://") || value.starts_with("https://") => {
                    endpoint = Some(value.trim_end_matches('/').to_owned());
                }
                ("region", value) if !value.is_empty() => region = Some(value.to_owned()),
                _ => return Err(wrong(format!("{pair:?} is no option; there are format, endpoint and region"))),
            }
        }
        let is_s3 = place.starts_with("s3://");
        if !is_s3 && (endpoint.is_some() || region.is_some()) {
            return Err(wrong("endpoint and region are for s3:// alone".to_owned()));
        }
        let place = if let Some(name) = place.strip_prefix("memory:").filter(|name| !name.is_empty()) {
            BackingPlace::Memory(name.to_owned())
        } else if let Some(folder) =
            place.strip_prefix("file://").filter(|path| path.starts_with('/') && path.len() > 1)
        {
            BackingPlace::Folder(folder.into())
        } else if let Some(rest) = place.strip_prefix("sandstorm://") {
            let parts: Vec<&str> = rest.split('/').collect();
            let [server, tenant, table] = parts[..] else {
                return Err(wrong(
                    "it has a control port, a tenant and a table: sandstorm://HOST:PORT/TENANT/TABLE".to_owned(),
                ));
            };
            if !server.contains(':') || tenant.is_empty() || table.is_empty() {
                return Err(wrong(
                    "it has a control port, a tenant and a table: sandstorm://HOST:PORT/TENANT/TABLE".to_owned(),
                ));
            }
            let [server, tenant, table] = [server, tenant, table].map(str::to_owned);
            BackingPlace::Table(OtherTable { server, tenant, table })
        } else if let Some(rest) = place.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            if bucket.len() < 3 || !bucket.bytes().all(is_letter) {
                return Err(wrong("a bucket's name has 3 or more small letters, digits, '-' and '.'".to_owned()));
            }
            let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=".contains(&byte);
            if !prefix.bytes().all(is_safe) {
                return Err(wrong("the prefix may have letters, digits, '-', '_', '.', '/' and '='".to_owned()));
            }
            let region = region.unwrap_or_else(|| "us-east-1".to_owned());
            BackingPlace::S3(S3Place {
                bucket: bucket.to_owned(),
                prefix: prefix.trim_matches('/').to_owned(),
                endpoint: endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com")),
                region,
            })
        } else {
            return Err(wrong(
                "there are file:///FOLDER, s3://BUCKET/PREFIX, sandstorm://HOST:PORT/TENANT/TABLE and memory:NAME"
                    .to_owned(),
            ));
        };
        Ok(BackingUrl { place, is_raw })
    }
}

/// Opens the objects of a URL. `secret`: the text of the secret that the table names.
///
/// # Errors
/// [`BackingOpenError`].
pub fn open_objects(url: &BackingUrl, secret: Option<&str>) -> Result<Arc<dyn ObjectStore>, BackingOpenError> {
    Ok(match &url.place {
        BackingPlace::Memory(name) => MemoryObjects::shared(name),
        BackingPlace::Folder(folder) => Arc::new(
            FolderObjects::open(folder)
                .map_err(|error| BackingOpenError::Folder(format!("{}: {error}", folder.display())))?,
        ),
        BackingPlace::Table(place) => {
            let token = secret.ok_or(BackingOpenError::Credentials("the token of the other table's tenant"))?;
            let opener = TABLE_OPENER.get().ok_or(BackingOpenError::NoTables)?;
            opener(place, token)
        }
        BackingPlace::S3(place) => {
            let needed = BackingOpenError::Credentials(S3_SECRET);
            let secret = secret.ok_or_else(|| needed.clone())?;
            let credentials = S3Credentials::parse(secret).ok_or(needed)?;
            Arc::new(S3Objects::new(place.clone(), credentials))
        }
    })
}

/// Opens a bucket for other uses than a table's: `s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME]`. Its requests may
/// take `most`.
///
/// # Errors
/// [`BackingOpenError`].
pub fn open_s3(url: &str, secret: &str, most: Duration) -> Result<S3Objects, BackingOpenError> {
    let wrong = |why: &str| BackingOpenError::Url { url: url.to_owned(), why: why.to_owned() };
    let BackingUrl { place, is_raw } = BackingUrl::parse(url)?;
    let BackingPlace::S3(place) = place else { return Err(wrong("it is s3://BUCKET/PREFIX")) };
    if is_raw {
        return Err(wrong("format is for tables"));
    }
    let credentials = S3Credentials::parse(secret).ok_or(BackingOpenError::Credentials(S3_SECRET))?;
    Ok(S3Objects::with_timeout(place, credentials, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_understood_or_refused_with_what_is_wrong() {
        let parsed = |url| BackingUrl::parse(url).unwrap();
        assert_eq!(parsed("memory:a").place, BackingPlace::Memory("a".into()));
        assert_eq!(
            parsed("file:///var/x?format=raw"),
            BackingUrl { place: BackingPlace::Folder("/var/x".into()), is_raw: true }
        );
        let BackingPlace::S3(place) = parsed("s3://bucket/a/b/?endpoint=http://127.0.0.1:9000/&region=eu").place else {
            panic!()
        };
        assert_eq!((&*place.bucket, &*place.prefix), ("bucket", "a/b"));
        assert_eq!((&*place.endpoint, &*place.region), ("http://127.0.0.1:9000", "eu"));
        for wrong in [
            "",
            "memory:",
            "file://",
            "file://relative",
            "s3://",
            "sandstorm://h/a/t",
            "sandstorm://h:1/a",
            "s3://b",
            "s3://BUCKET",
            "http://x/",
            "s3://bucket/a b",
            "file:///x?region=a",
            "s3://bucket?endpoint=ftp://x",
            "memory:a?format=xml",
        ] {
            let error = BackingUrl::parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains("is not understood"), "{error}");
        }
    }
}
