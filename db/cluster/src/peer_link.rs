//! Requests of the target of a move to its source's control port. The key of the cluster, which lies in etcd, proves
//! the asking server; the fingerprint there proves the answering one.

use std::time::{Duration, Instant};

use sandstorm_net::trust::Trust;

use crate::copy_format::{CopyAnswer, CopyRequest};
use crate::limits::{ALIVE_INTERVAL, COPY_ANSWER_BYTES, FORWARD_LINKS, PEER_TIMEOUT};
use crate::slot_copy::CopySource;
use crate::state::ServerState;

/// The header that has the cluster's key.
pub const PEER_KEY_HEADER: &str = "sandstorm-peer-key";
/// The path of the requests.
pub const COPY_PATH: &str = "/v1/cluster/copy";

/// The connection to a source.
pub(crate) struct PeerLink {
    agent: ureq::Agent,
    url: String,
    key: String,
    /// The time of the last question.
    asked: Instant,
}

/// What asks a server as it has told of itself. A request has failed after a time.
///
/// # Errors
/// One line: it has told of no certificate.
pub(crate) fn peer_agent(server: &ServerState, timeout: Duration) -> Result<ureq::Agent, String> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .proxy(None)
        .max_idle_connections_per_host(FORWARD_LINKS)
        .max_redirects(0)
        .user_agent(concat!("sandstorm/", env!("CARGO_PKG_VERSION")));
    let url = &server.control;
    let trust = match url.starts_with("https:") {
        true => Trust::pin(&server.fingerprint).ok_or_else(|| format!("{url} has told no fingerprint"))?,
        false => Trust::Public,
    };
    Ok(trust.agent(config))
}

/// Why a server has not answered a request.
pub(crate) enum PeerRefusal {
    /// What it has said.
    Said(String),
    /// There is no answer, or none that says more than its status.
    Failed(String),
}

impl std::fmt::Display for PeerRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (PeerRefusal::Said(text) | PeerRefusal::Failed(text)) = self;
        f.write_str(text)
    }
}

/// The body of a successful answer, of so many bytes at most.
pub(crate) fn read_answer(
    sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    most_bytes: u64,
) -> Result<Vec<u8>, PeerRefusal> {
    let failed = |error: &dyn std::fmt::Display| PeerRefusal::Failed(error.to_string());
    let mut response = sent.map_err(|error| failed(&error))?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(most_bytes).read_to_vec().map_err(|error| failed(&error))?;
    if status.is_success() {
        return Ok(body);
    }
    let said: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    Err(said["message"].as_str().map_or_else(|| failed(&status), |message| PeerRefusal::Said(message.to_owned())))
}

impl PeerLink {
    /// One to a server as it has told of itself.
    pub(crate) fn new(server: &ServerState, key: String) -> Result<PeerLink, String> {
        let (agent, url) = (peer_agent(server, PEER_TIMEOUT)?, server.control.clone());
        Ok(PeerLink { agent, url, key, asked: Instant::now() })
    }
}

impl CopySource for PeerLink {
    fn ask(&mut self, request: &CopyRequest) -> Result<CopyAnswer, String> {
        self.asked = Instant::now();
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.url);
        let url = format!("{}{COPY_PATH}", self.url.trim_end_matches('/'));
        let sent = self.agent.post(&url).header(PEER_KEY_HEADER, &self.key).send_json(request);
        match read_answer(sent, COPY_ANSWER_BYTES) {
            Ok(body) => CopyAnswer::decode(&body),
            Err(PeerRefusal::Said(message)) => Err(message),
            Err(PeerRefusal::Failed(why)) => Err(failed(&why)),
        }
    }

    fn is_quiet(&self) -> bool {
        self.asked.elapsed() >= ALIVE_INTERVAL
    }
}
