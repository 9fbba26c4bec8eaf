//! Runs a compiler under limits and collects what it says.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::{BuildError, CompileLimits};

/// How compilers are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// As they are: only where the operator has allowed it, and in tests of other parts.
    Unsandboxed,
}

/// One command to run.
pub(super) struct Run<'a> {
    pub(super) program: &'a Path,
    pub(super) arguments: Vec<OsString>,
    /// Working folder; the only place where it may write.
    pub(super) folder: &'a Path,
    /// What else it may read.
    pub(super) readable: Vec<PathBuf>,
    pub(super) limits: &'a CompileLimits,
}

/// What came of it.
pub(super) struct Outcome {
    pub(super) success: bool,
    pub(super) stderr: String,
}

impl Launcher {
    /// Runs the command to its end, or ends it at its limits.
    ///
    /// # Errors
    /// `Limit` when it was ended or crashed; `Internal` when it could not be started.
    pub(super) fn run(&self, run: &Run<'_>) -> Result<Outcome, BuildError> {
        let mut command = match self {
            Launcher::Unsandboxed => {
                let mut command = Command::new(run.program);
                command.args(&run.arguments);
                command
            }
        };
        command
            .env_clear()
            .env("TMPDIR", run.folder)
            .env("RUST_BACKTRACE", "0")
            .env("RUSTC_ICE", "0")
            .current_dir(run.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        let child = command
            .spawn()
            .map_err(|error| BuildError::Internal(format!("starting {}: {error}", run.program.display())))?;
        supervise(child, run.limits)
    }
}

/// A process group that is ended when this goes out of scope, whatever happens.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(id) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) {
            // Gone already is fine: then there is nothing to end.
            let _gone_already = rustix::process::kill_process_group(id, rustix::process::Signal::KILL);
        }
        let _reaped_already = self.0.wait();
    }
}

fn supervise(mut child: Child, limits: &CompileLimits) -> Result<Outcome, BuildError> {
    let stderr = child.stderr.take();
    let mut group = Group(child);
    let Some(stderr) = stderr else { return Err(BuildError::Internal("no pipe to the compiler".to_owned())) };
    let deadline = Instant::now() + limits.wall;
    let (sender, receiver) = channel();
    let room = limits.output_bytes as u64;
    std::thread::Builder::new()
        .name("compiler-output".to_owned())
        .spawn(move || {
            let mut bytes = Vec::new();
            let read = stderr.take(room + 1).read_to_end(&mut bytes);
            // The receiver gives up at the deadline.
            let _receiver_gone = sender.send(read.map(|_| bytes));
        })
        .map_err(|error| BuildError::io("starting a thread", error))?;
    let bytes = match receiver.recv_timeout(limits.wall) {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => return Err(BuildError::io("reading the compiler's output", error)),
        Err(RecvTimeoutError::Timeout) => return Err(too_slow(limits)),
        Err(RecvTimeoutError::Disconnected) => {
            return Err(BuildError::Internal("the compiler's output was lost".to_owned()));
        }
    };
    if bytes.len() as u64 > room {
        return Err(BuildError::Limit(format!("the compiler printed more than {room} bytes")));
    }
    let status = wait_until(&mut group.0, deadline)?.ok_or_else(|| too_slow(limits))?;
    let stderr = String::from_utf8_lossy(&bytes).into_owned();
    if let Some(signal) = signal_of(status) {
        return Err(BuildError::Limit(died(signal, limits)));
    }
    Ok(Outcome { success: status.success(), stderr })
}

fn too_slow(limits: &CompileLimits) -> BuildError {
    BuildError::Limit(format!("the compiler was ended after {} s", limits.wall.as_secs()))
}

/// The signal that ended the process; a launcher in between passes it on as 128 + signal, as shells do.
fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal().or_else(|| status.code().filter(|code| *code > 128).map(|code| code - 128))
}

fn died(signal: i32, limits: &CompileLimits) -> String {
    use rustix::process::Signal;
    if signal == Signal::XCPU.as_raw() || signal == Signal::KILL.as_raw() {
        format!("the compiler used more than {} s of CPU time", limits.cpu.as_secs())
    } else if signal == Signal::XFSZ.as_raw() {
        format!("the compiler wrote a file of more than {} bytes", limits.file_bytes)
    } else if signal == Signal::ABORT.as_raw() {
        format!("the compiler gave up, most likely for want of memory ({} MiB)", limits.memory_bytes >> 20)
    } else {
        format!("the compiler died of signal {signal}: the source is too complex for it")
    }
}

/// Waits for a child until the deadline; `None`: it still runs.
fn wait_until(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>, BuildError> {
    let mut nap = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait().map_err(|error| BuildError::io("waiting for the compiler", error))? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(10));
    }
}
