//! A server's client of a builder on another host: frames over HTTP(S), with a token that only this service takes. The
//! server trusts a reply only by the keys in its configuration.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use sandstorm_net::trust::{TlsFailure, TlsHints, Trust, explain_tls_error};
use serde::de::DeserializeOwned;

use super::artifact::Artifact;
use super::limits::{REMOTE_BUILD_TIMEOUT, REMOTE_HELLO_TIMEOUT};
use super::protocol::{
    BuildReply, BuildRequest, BuilderHello, MAX_BLOB_BYTES, MAX_JSON_BYTES, read_frame, write_frame,
};
use super::{BuildError, BuilderConfig, Diagnostic};

/// The address of another host's builder, and its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// `https://host:port`; `http://` on loopback.
    pub url: String,
    /// File with the token that `sandstorm builder serve` asks for; mode 0600.
    pub token_file: PathBuf,
    /// The accepted certificate; not used without TLS.
    pub certificate: RemoteCertificate,
}

/// The accepted certificate of a builder on another host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RemoteCertificate {
    /// A certificate that a public authority has signed.
    #[default]
    Public,
    /// A certificate that is signed by one in this file (PEM).
    Ca(PathBuf),
    /// The certificate with this fingerprint (`sha256:…`), whatever its names and dates.
    Fingerprint(String),
}

impl RemoteCertificate {
    fn trust(&self) -> Result<Trust, String> {
        match self {
            RemoteCertificate::Public => Ok(Trust::Public),
            RemoteCertificate::Ca(file) => Trust::in_file(file).map_err(|error| format!("builder.remote_ca: {error}")),
            RemoteCertificate::Fingerprint(text) => Trust::pin(text).ok_or_else(|| {
                format!(
                    "builder.remote_fingerprint = {text:?} is none: write sha256: and 64 hexadecimal digits, as \
                     `sandstorm builder serve` prints it"
                )
            }),
        }
    }

    /// Checks the syntax. Files are read when the builder is opened.
    pub fn check(&self) -> Result<(), String> {
        match self {
            RemoteCertificate::Fingerprint(_) => self.trust().map(|_| ()),
            _ => Ok(()),
        }
    }
}

/// The text in an answer to a connection without TLS by which a client recognises the case.
pub const NOT_TLS_CODE: &str = "\"code\":\"tls\"";

/// Advice for a builder whose certificate is not accepted.
const WORDS: TlsHints = TlsHints {
    known: "set builder.remote_fingerprint to what `sandstorm builder serve` prints, or builder.remote_ca to a file with \
            its certificate",
    expired: "renew it on the builder's host; it is taken without a restart of either side",
    name: "use a name that it is for, have it made with that one too (--tls-name), or pin it (builder.remote_fingerprint)",
    pinned: "compare builder.remote_fingerprint with what `sandstorm builder serve` prints; if the certificate was not \
             replaced, another machine intercepts the connection",
    plain: "start `sandstorm builder serve` with --tls, or say http:// in builder.remote if it runs on this host",
    other: "is it a `sandstorm builder serve` of this version?",
};

impl RemoteConfig {
    /// Returns whether no machine in between can read the connection.
    pub fn is_sealed(&self) -> bool {
        self.url.starts_with("https://")
    }

    /// Returns whether the builder is on this host.
    pub fn is_local(&self) -> bool {
        let host = self.url.trim_start_matches("http://");
        ["127.0.0.1:", "localhost:", "[::1]:"].iter().any(|local| host.starts_with(local))
    }
}

/// A builder on another host.
pub struct RemoteBuilder {
    agent: ureq::Agent,
    url: String,
    token: String,
    compilers: usize,
    hello: Mutex<Option<BuilderHello>>,
}

impl RemoteBuilder {
    /// Reads token and certificates. If the builder does not answer yet, the first push asks it again.
    ///
    /// # Errors
    /// `Toolchain`: a file that cannot be read or is open to other users, or an invalid URL.
    pub fn open(remote: &RemoteConfig, builder: &BuilderConfig) -> Result<Arc<RemoteBuilder>, BuildError> {
        let wrong = |what: String| BuildError::Toolchain(format!("builder.remote: {what}"));
        if !remote.url.starts_with("http://") && !remote.url.starts_with("https://") {
            return Err(wrong(format!("{:?} is no URL: https://HOST:PORT", remote.url)));
        }
        let token = super::token_file::read(&remote.token_file).map_err(wrong)?;
        let trust = remote.certificate.trust().map_err(BuildError::Toolchain)?;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(REMOTE_HELLO_TIMEOUT))
            .proxy(None)
            .max_redirects(0)
            .user_agent(concat!("sandstorm/", env!("CARGO_PKG_VERSION")));
        let url = remote.url.trim_end_matches('/').to_owned();
        let compilers = builder.compilers;
        let opened = RemoteBuilder { agent: trust.agent(config), url, token, compilers, hello: Mutex::new(None) };
        if let Err(error) = opened.hello() {
            tracing::warn!(%error, "the remote builder cannot be used yet");
        }
        Ok(Arc::new(opened))
    }

    /// Sends the source to the builder, which checks, compiles and signs it.
    ///
    /// # Errors
    /// The builder's own; `Toolchain` when it cannot be reached or its answer is malformed.
    pub fn answer(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        let (answer, blob) = self.ask(request)?;
        let artifact = Artifact::decode(&blob).map_err(|error| self.broken(&error))?;
        if self.hello.lock().as_ref().is_none_or(|hello| hello.compiler != artifact.header.compiler) {
            // Its compiler has changed since the last hello.
            *self.hello.lock() = None;
            self.hello()?;
        }
        Ok((artifact, answer.warnings))
    }

    /// Sends the source to the builder, which checks it without compiling it.
    ///
    /// # Errors
    /// As for [`RemoteBuilder::answer`].
    pub fn check(&self, request: &BuildRequest) -> Result<(), BuildError> {
        self.ask(&BuildRequest { check_only: true, ..request.clone() }).map(|_| ())
    }

    fn ask(&self, request: &BuildRequest) -> Result<(BuildReply, Vec<u8>), BuildError> {
        let mut body = Vec::new();
        write_frame(&mut body, request, &[]).map_err(|error| self.broken(&error))?;
        let request = self.agent.post(format!("{}/v1/build", self.url));
        let request = request.header("authorization", format!("Bearer {}", self.token));
        let request = request.config().timeout_global(Some(REMOTE_BUILD_TIMEOUT)).build();
        self.read(request.content_type("application/octet-stream").send(&body[..]))
    }

    /// Fingerprint and version of its compiler, if it has answered.
    pub fn compiler(&self) -> Option<(u64, String)> {
        self.hello().ok().map(|hello| (hello.compiler, hello.release))
    }

    /// Builds that this server sends it at the same time.
    pub fn slots(&self) -> usize {
        self.compilers
    }

    /// Its hello from the first contact. Asked for again only while it is unknown.
    fn hello(&self) -> Result<BuilderHello, BuildError> {
        if let Some(hello) = self.hello.lock().clone() {
            return Ok(hello);
        }
        let request = self.agent.get(format!("{}/v1/hello", self.url));
        let request = request.header("authorization", format!("Bearer {}", self.token));
        let sent = request.config().timeout_global(Some(REMOTE_HELLO_TIMEOUT)).build().call();
        let (hello, _) = self.read::<BuilderHello>(sent)?;
        *self.hello.lock() = Some(hello.clone());
        Ok(hello)
    }

    fn read<T: DeserializeOwned>(
        &self,
        sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<(T, Vec<u8>), BuildError> {
        let mut answer = sent.map_err(|error| match explain_tls_error(&error, &WORDS) {
            Some(TlsFailure { reason, hint }) => self.broken(&format!("{reason}; {hint}")),
            None => self.broken(&error),
        })?;
        let status = answer.status().as_u16();
        match status {
            200 => {}
            401 => return Err(self.broken(&"it does not take the token in builder.remote_token_file")),
            503 => return Err(BuildError::Busy(format!("the builder at {} has too much waiting", self.url))),
            400 => {
                let body = answer.body_mut().with_config().limit(4096).read_to_string().unwrap_or_default();
                if body.contains(NOT_TLS_CODE) {
                    let what = format!("it speaks TLS; say https:// in builder.remote, and {}", WORDS.known);
                    return Err(self.broken(&what));
                }
                return Err(self.broken(&"it does not understand the request: is it of this version?"));
            }
            _ => return Err(self.broken(&format!("HTTP status {status}"))),
        }
        let limit = (MAX_JSON_BYTES + MAX_BLOB_BYTES + 8) as u64;
        let mut body = answer.body_mut().with_config().limit(limit).reader();
        let frame = read_frame::<Result<T, BuildError>>(&mut body).map_err(|error| self.broken(&error))?;
        let (answer, blob) = frame.ok_or_else(|| self.broken(&"its answer is empty"))?;
        Ok((answer?, blob))
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> BuildError {
        BuildError::Toolchain(format!("the builder at {}: {error}", self.url))
    }
}

impl std::fmt::Debug for RemoteBuilder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RemoteBuilder").field("url", &self.url).finish_non_exhaustive()
    }
}
