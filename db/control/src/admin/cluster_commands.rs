//! `/v1/cluster/commands`: commands of memcached clients that another server of the cluster sends, since their keys are
//! this server's. A worker runs them; bytes are only passed on here, without a thread that waits.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use tokio::net::UnixStream;

use super::ControlState;
use super::body::RawBody;
use super::cluster_copies::{ClusterPeer, no_cluster};
use super::error::ApiError;
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

pub(super) async fn run(
    State(control): State<Arc<ControlState>>,
    ClusterPeer(_): ClusterPeer,
    RawBody(body): RawBody,
) -> Result<Vec<u8>, ApiError> {
    let malformed = || ApiError::invalid("these are no commands of a server of this version");
    let (head, commands) = ForwardedHead::decode(&body).ok_or_else(malformed)?;
    if head.commands > COMMANDS {
        return Err(malformed());
    }
    let caller = control.calls.as_ref().ok_or_else(no_cluster)?;
    let busy = |error: io::Error| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_run", error.to_string());
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
