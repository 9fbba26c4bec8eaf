//! Requests with clients' commands to another server's control port.

use std::time::Duration;

use crate::limits::{FORWARD_ANSWER_BYTES, FORWARD_CONNECT_TIMEOUT};
use crate::peer_link::{PEER_KEY_HEADER, PeerRefusal, peer_agent, read_answer};
use crate::state::ServerState;

/// The path of the requests.
pub const FORWARD_PATH: &str = "/v1/cluster/commands";

/// The statuses of answers after which it may be asked again: an unknown key, and too many requests.
const NOT_YET: [u16; 2] = [401, 503];

/// What became of a request.
pub(crate) enum LinkAnswer {
    /// The answers.
    Answered(Vec<u8>),
    /// It was not sent: the other server takes no connection.
    NotSent,
    /// The other server has run nothing, and may do so later: it has as many requests as it may have, or does not know
    /// the cluster's key yet, which has changed.
    NotYet,
    /// The other server has run nothing, and will not.
    NotRun,
    /// It is unknown whether they were run.
    Lost,
}

/// The link to a server as it has told of itself.
pub(crate) struct ForwardLink {
    agent: ureq::Agent,
    control: String,
    fingerprint: String,
}

impl ForwardLink {
    /// One to this server.
    ///
    /// # Errors
    /// One line: it has told of no certificate.
    pub(crate) fn new(server: &ServerState) -> Result<ForwardLink, String> {
        let agent = peer_agent(server, crate::limits::FORWARD_TIMEOUT)?;
        Ok(ForwardLink { agent, control: server.control.clone(), fingerprint: server.fingerprint.clone() })
    }

    /// Whether the server is still where it was.
    pub(crate) fn leads_to(&self, server: &ServerState) -> bool {
        self.control == server.control && self.fingerprint == server.fingerprint
    }

    /// Sends a request to a path, once, and waits for its answer.
    pub(crate) fn send(&self, path: &str, (key, request): (&str, &[u8]), time: Duration) -> LinkAnswer {
        let url = format!("{}{path}", self.control.trim_end_matches('/'));
        let connect = FORWARD_CONNECT_TIMEOUT.min(time);
        let asked = self.agent.post(&url).header(PEER_KEY_HEADER, key).config();
        let asked = asked.timeout_global(Some(time)).timeout_connect(Some(connect)).build();
        let sent = asked.send(request);
        match &sent {
            Err(error) if is_not_sent(error) => LinkAnswer::NotSent,
            _ => {
                let status = sent.as_ref().map_or(0, |response| response.status().as_u16());
                match read_answer(sent, FORWARD_ANSWER_BYTES) {
                    Ok(answers) => LinkAnswer::Answered(answers),
                    Err(PeerRefusal::Said(_)) if NOT_YET.contains(&status) => LinkAnswer::NotYet,
                    Err(PeerRefusal::Said(_)) => LinkAnswer::NotRun,
                    Err(PeerRefusal::Failed(_)) => LinkAnswer::Lost,
                }
            }
        }
    }
}

/// Whether an error is from before any of the request has left.
fn is_not_sent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Io(error) => matches!(
            error.kind(),
            std::io::ErrorKind::ConnectionRefused
                | std::io::ErrorKind::HostUnreachable
                | std::io::ErrorKind::NetworkUnreachable
        ),
        ureq::Error::Timeout(timeout) => matches!(timeout, ureq::Timeout::Resolve | ureq::Timeout::Connect),
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        _ => false,
    }
}
