//! `sandstorm stop`: asks the server to stop, and waits until it has, so that the next one may start.

use std::fs::{File, TryLockError};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use sandstorm_catalog::journal::LOCK_FILE;

use super::output::{CliError, OutputPrinter};
use super::session::CliSession;

/// Time that a server has to end what is under way and to write what it keeps, before the command gives up waiting.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Time for a connection to a control port that may be gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(super) struct StopArgs {
    /// Return as soon as the server has been told, while it still ends what is under way
    #[arg(long)]
    no_wait: bool,
}

pub(super) fn stop(session: &CliSession, args: &StopArgs, out: &OutputPrinter) -> Result<(), CliError> {
    // One that keeps nothing has no lock, and that of a server elsewhere cannot be seen.
    let lock = session.is_of_state_directory().then(|| session.state().join(LOCK_FILE)).filter(|lock| is_locked(lock));
    session.control().shutdown()?;
    if args.no_wait {
        return out.done("the server stops");
    }
    let until = Instant::now() + STOP_TIMEOUT;
    while answers(session) || lock.as_ref().is_some_and(|lock| is_locked(lock)) {
        if Instant::now() >= until {
            let text = format!("the server was told to stop, and still runs after {} s", STOP_TIMEOUT.as_secs());
            return Err(CliError::new(text).hint("its log says what it waits for; --no-wait does not wait for its end"));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    out.done(if lock.is_some() { "the server has stopped" } else { "the server has closed its control port" })
}

/// Whether the server answers at its control port. What only takes the connection, as a tunnel does, is no server.
fn answers(session: &CliSession) -> bool {
    let mut addresses = session.server().to_socket_addrs().into_iter().flatten();
    let is_open = addresses.any(|address| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok());
    is_open && session.control().health().is_ok()
}

/// Whether a server has the state directory.
fn is_locked(lock: &Path) -> bool {
    File::open(lock).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
