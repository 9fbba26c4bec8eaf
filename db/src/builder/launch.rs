//! Runs a compiler under limits and collects what it says.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::sandbox::{self, Policy};
use super::{BuildError, BuilderConfig, CompileLimits, Toolchain};

/// How compilers are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// As they are: only where the operator has allowed it, and in tests of other parts.
    Unsandboxed,
    /// Through the sandbox.
    Sandboxed {
        /// The program that calls [`sandbox_exec`](super::sandbox_exec) when it is given `arguments`.
        program: PathBuf,
        /// For the `sandstorm` binary: `builder sandbox-exec`.
        arguments: Vec<String>,
        /// Whether compilers get namespaces of their own too.
        namespaces: bool,
    },
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
    pub(super) code: Option<i32>,
    pub(super) stderr: String,
}

impl Launcher {
    /// Runs the command to its end, or ends it at its limits.
    ///
    /// # Errors
    /// `Limit` when it was ended or crashed; `Internal` when it could not be started.
    pub(super) fn run(&self, run: &Run<'_>) -> Result<Outcome, BuildError> {
        let mut command = self.command(run)?;
        command
            .current_dir(run.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        let child = command
            .spawn()
            .map_err(|error| BuildError::Internal(format!("starting {}: {error}", run.program.display())))?;
        let outcome = supervise(child, run.limits)?;
        if *self != Launcher::Unsandboxed && outcome.code == Some(i32::from(sandbox::NOT_RUN)) {
            return Err(BuildError::Sandbox(outcome.stderr.trim().to_owned()));
        }
        Ok(outcome)
    }

    fn command(&self, run: &Run<'_>) -> Result<Command, BuildError> {
        let folder = run.folder.to_string_lossy().into_owned();
        let environment = BTreeMap::from(
            [("TMPDIR", folder.as_str()), ("RUST_BACKTRACE", "0"), ("RUSTC_ICE", "0")]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        let Launcher::Sandboxed { program, arguments, namespaces } = self else {
            let mut command = Command::new(run.program);
            command.args(&run.arguments).env_clear().envs(environment);
            return Ok(command);
        };
        let text = |argument: &OsString| match argument.to_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(BuildError::Sandbox(format!("{} is not UTF-8", argument.display()))),
        };
        let mut readable = sandbox::system_libraries();
        readable.extend(run.readable.iter().cloned());
        let policy = Policy {
            readable,
            writable: vec![run.folder.to_owned()],
            namespaces: *namespaces,
            cpu_s: run.limits.cpu.as_secs().max(1),
            memory_bytes: run.limits.memory_bytes,
            file_bytes: run.limits.file_bytes,
            open_files: run.limits.open_files,
            processes: run.limits.processes,
            second_stage: false,
            program: run.program.to_owned(),
            arguments: run.arguments.iter().map(text).collect::<Result<_, _>>()?,
            environment,
        };
        let policy = serde_json::to_string(&policy).map_err(|error| BuildError::Sandbox(error.to_string()))?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env(sandbox::POLICY_VARIABLE, policy);
        Ok(command)
    }

    /// The strongest way that works here: with namespaces, without, or, where the operator allows it, unconfined.
    ///
    /// # Errors
    /// `Sandbox`: what the kernel does not offer, and how to allow builds all the same.
    pub fn for_config(config: &BuilderConfig, toolchain: &Toolchain) -> Result<Launcher, BuildError> {
        let program = config.program()?;
        let arguments = ["builder", "sandbox-exec"].map(str::to_owned).to_vec();
        Launcher::strongest(program, arguments, config.allow_unsandboxed, toolchain)
    }

    /// As [`Launcher::for_config`], with the launching program named.
    ///
    /// # Errors
    /// As for [`Launcher::for_config`].
    pub fn strongest(
        program: PathBuf,
        arguments: Vec<String>,
        allow_unsandboxed: bool,
        toolchain: &Toolchain,
    ) -> Result<Launcher, BuildError> {
        let mut why = String::new();
        for namespaces in [true, false] {
            let launcher = Launcher::Sandboxed { program: program.clone(), arguments: arguments.clone(), namespaces };
            match launcher.try_out(toolchain) {
                Ok(()) => return Ok(launcher),
                Err(error) => why = format!("{why}{}{error}", if why.is_empty() { "" } else { "; " }),
            }
        }
        if allow_unsandboxed {
            tracing::warn!(%why, "compilers run without a sandbox, as configured");
            return Ok(Launcher::Unsandboxed);
        }
        Err(BuildError::Sandbox(format!(
            "the compiler cannot be confined here ({why}); it needs Landlock (Linux 5.13) and seccomp, and better user \
             namespaces; set allow_unsandboxed to build without, for tenants that you trust"
        )))
    }

    /// Runs the compiler for nothing, the way builds will.
    fn try_out(&self, toolchain: &Toolchain) -> Result<(), BuildError> {
        let folder = tempfile::Builder::new()
            .prefix("probe-")
            .tempdir_in(&toolchain.scratch)
            .map_err(|error| BuildError::io("creating a scratch folder", error))?;
        let run = Run {
            program: &toolchain.rustc.program,
            arguments: vec!["-vV".into()],
            folder: folder.path(),
            readable: vec![toolchain.rustc.sysroot.clone()],
            limits: &CompileLimits::default(),
        };
        let outcome = self.run(&run)?;
        if outcome.success { Ok(()) } else { Err(BuildError::Sandbox(outcome.stderr.trim().to_owned())) }
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
    Ok(Outcome { success: status.success(), code: status.code(), stderr })
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
