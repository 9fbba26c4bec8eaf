//! `/v1/cluster/commands`: memcached clients' commands that another server of the cluster forwards, since this server
//! owns their keys. A worker runs them; this module only passes bytes on, without a thread that waits.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use tokio::net::UnixStream;

use super::ControlState;
use super::body::RawBody;
use super::cluster_copies::{no_cluster, peer_coordinator};
use super::error::ApiError;
use super::peer_limiter::PeerPermit;
use crate::http_listener::HttpPeer;
use sandstorm_dialects::limits::protocols::{FORWARDED_REQUEST_BYTES, FORWARDED_RESPONSE_BYTES};
use sandstorm_net::forwarding::{ForwardedHead, ForwardedOutcome, push_answer};

/// Bytes of a request, at most.
pub(super) const REQUEST_BYTES: usize = FORWARDED_REQUEST_BYTES;
/// Commands of one request, at most. A connection sends 64 at a time.
const COMMANDS: u32 = 1_024;
/// Time in which they are run. The server that asks has less patience.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;

/// Another server of the cluster that sends commands. It is looked at before the body is read. At the limit on requests
/// there is no permit. The connection may then be closed for another one, such as a question whether this server is
/// alive. The body is read only so that the sender sees the answer.
pub(super) struct CommandPeer(pub(super) Option<PeerPermit>);

impl FromRequestParts<Arc<ControlState>> for CommandPeer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Arc<ControlState>) -> Result<CommandPeer, ApiError> {
        peer_coordinator(parts, control)?;
        let connection = parts.extensions.get();
        let begin = |ConnectInfo(HttpPeer(peer, visit)): &ConnectInfo<HttpPeer>| {
            let permit = control.commands.begin(*peer)?;
            visit.serve(true);
            Some(permit)
        };
        Ok(CommandPeer(connection.and_then(begin)))
    }
}

pub(super) async fn run(
    State(control): State<Arc<ControlState>>,
    CommandPeer(permit): CommandPeer,
    RawBody(body): RawBody,
) -> Result<Vec<u8>, ApiError> {
    let not_run = |why: String| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_run", why);
    let too_many = || not_run("as many requests with commands are under way as may be".to_owned());
    let _counts_until_the_end = permit.ok_or_else(too_many)?;
    let malformed = || ApiError::invalid("these are no commands of a server of this version");
    let (head, commands) = ForwardedHead::decode(&body).ok_or_else(malformed)?;
    if head.commands > COMMANDS {
        return Err(malformed());
    }
    let caller = control.calls.as_ref().ok_or_else(no_cluster)?;
    let busy = |error: io::Error| not_run(error.to_string());
    let mut answers = Vec::new();
    match caller.open_forwarded(&head).map_err(busy)? {
        // What becomes of it from here on is not an error: some of the commands may have been run.
        Some(stream) => {
            let _ends_early = tokio::time::timeout(RUN_TIMEOUT, pass_on(stream, commands, &mut answers)).await;
        }
        None => (0..head.commands).for_each(|_| push_answer(ForwardedOutcome::NotReady, b"", &mut answers)),
    }
    Ok(answers)
}

/// Writes the commands to a worker's connection, and reads the answers up to its end.
async fn pass_on(stream: StdUnixStream, commands: &[u8], answers: &mut Vec<u8>) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    let write = async {
        let mut rest = commands;
        while !rest.is_empty() {
            stream.writable().await?;
            match stream.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    // Both at once: the session runs nothing more while its answers are not read.
    let read = async {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            stream.readable().await?;
            match stream.try_read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) if answers.len() + read > FORWARDED_RESPONSE_BYTES => {
                    return Err(io::Error::other("the answers are too long"));
                }
                Ok(read) => answers.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    };
    // Where the worker has ended it early, its last answers say why.
    let (read, _written) = tokio::join!(read, write);
    read
}
