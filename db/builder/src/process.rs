//! The builder's processes, and the server's handle on them.
//!
//! They exchange [`frames`](super::protocol) over the builder's standard input and output. The first frame to the
//! builder is its configuration. The reply is a hello with its public key, or the reason why it cannot work; then one
//! answer follows each request. Whatever happens to a builder, the server sees a `BuildError`, and the others go on.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sandstorm_net::CodeTier;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::artifact::Artifact;
use super::builder_config::BuilderConfig;
use super::pipeline::InProcessBuilder;
use super::protocol::{BuildReply, BuildRequest, BuilderHello, read_frame, write_frame};
use super::signing_key::PublicKey;
use super::{BuildError, Diagnostic, PushedCode, priority};

/// Time for the first start: copying the standard library and compiling the API. That takes seconds; at the lowest
/// priority, beside other work on all processors, minutes.
const START_TIMEOUT: Duration = Duration::from_secs(900);
/// Time for a build's work besides compiling: checking, reading, signing.
const CHECK_ALLOWANCE: Duration = Duration::from_secs(30);

/// The start parameters of a builder process.
#[derive(Serialize, Deserialize)]
struct BuilderStart {
    config: BuilderConfig,
    /// Its number among the processes of its handle: compilers of different numbers are different users.
    number: usize,
}

/// Runs the mode in which the builder's own processes are started, if the arguments name one. `builder process` serves
/// requests on standard input; `builder sandbox-exec` becomes a confined compiler. The binary calls this before
/// anything else: no thread may have been started.
pub fn process_mode() -> Option<ExitCode> {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).take(3).collect();
    let words: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    match words.as_slice() {
        ["builder", "process"] => Some(run_process()),
        ["builder", "sandbox-exec"] => Some(super::sandbox_exec()),
        _ => None,
    }
}

/// The builder's side: `sandstorm builder process`. Serves requests until its input ends.
pub fn run_process() -> ExitCode {
    priority::lower_priority();
    match serve(&mut BufReader::new(io::stdin().lock()), &mut BufWriter::new(io::stdout().lock())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: sandstorm builder: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(input: &mut impl Read, out: &mut impl Write) -> io::Result<()> {
    let Some((BuilderStart { config, number }, _)) = read_frame::<BuilderStart>(input)? else { return Ok(()) };
    let builder = match InProcessBuilder::open_as(&config, number) {
        Ok(builder) => builder,
        Err(error) => return write_frame(out, &Err::<BuilderHello, BuildError>(error), &[]),
    };
    let hello = BuilderHello {
        public_key: builder.public_key().to_hex(),
        compiler: builder.compiler(),
        release: builder.toolchain().rustc.release.clone(),
        confinement: builder.confinement(),
    };
    write_frame(out, &Ok::<BuilderHello, BuildError>(hello), &[])?;
    while let Some((request, _)) = read_frame::<BuildRequest>(input)? {
        let done = match request.check_only {
            true => builder.check(&request).map(|()| (Vec::new(), Vec::new())),
            false => builder.answer(&request).map(|(artifact, warnings)| (artifact.encode(), warnings)),
        };
        match done {
            Ok((blob, warnings)) => write_frame(out, &Ok::<BuildReply, BuildError>(BuildReply { warnings }), &blob)?,
            Err(error) => write_frame(out, &Err::<BuildReply, BuildError>(error), &[])?,
        }
    }
    Ok(())
}

/// One running builder process.
struct BuilderProcess {
    child: Child,
    stdin: BufWriter<ChildStdin>,
    answers: Receiver<io::Result<(serde_json::Value, Vec<u8>)>>,
    number: usize,
}

impl Drop for BuilderProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl BuilderProcess {
    fn start(config: &BuilderConfig, number: usize) -> Result<(BuilderProcess, BuilderHello), BuildError> {
        let program = config.program()?;
        let mut child = Command::new(&program)
            .args(["builder", "process"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| BuildError::io(&format!("starting {}", program.display()), error))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(BuildError::Internal("the builder has no pipes".to_owned()));
        };
        let (sender, answers) = sync_channel(1);
        let mut process = BuilderProcess { child, stdin: BufWriter::new(stdin), answers, number };
        std::thread::Builder::new()
            .name("builder-answers".to_owned())
            .spawn(move || {
                let mut stdout = BufReader::new(stdout);
                loop {
                    let frame = read_frame(&mut stdout)
                        .and_then(|frame| frame.ok_or_else(|| io::Error::other("the builder process ended")));
                    let last = frame.is_err();
                    if sender.send(frame).is_err() || last {
                        return;
                    }
                }
            })
            .map_err(|error| BuildError::io("starting a thread", error))?;
        let (hello, _) =
            process.ask::<BuilderHello>(&BuilderStart { config: config.clone(), number }, START_TIMEOUT)?;
        Ok((process, hello))
    }

    /// Sends a frame and waits for its answer. After an error other than the answer's own the process is unusable.
    fn ask<T: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        timeout: Duration,
    ) -> Result<(T, Vec<u8>), BuildError> {
        write_frame(&mut self.stdin, request, &[]).map_err(|error| protocol_error("writing to the builder", error))?;
        match self.answers.recv_timeout(timeout) {
            Ok(Ok((answer, blob))) => {
                let answer: Result<T, BuildError> =
                    serde_json::from_value(answer).map_err(|error| protocol_error("reading its answer", error))?;
                Ok((answer?, blob))
            }
            Ok(Err(error)) => Err(protocol_error("reading from the builder", error)),
            Err(RecvTimeoutError::Timeout) => {
                Err(protocol_error("waiting for the builder", format!("it was ended after {} s", timeout.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(protocol_error("waiting for the builder", "it ended")),
        }
    }
}

fn protocol_error(what: &str, error: impl std::fmt::Display) -> BuildError {
    BuildError::Internal(format!("{what}: {error}"))
}

/// The server's handle on its builder processes. It starts them as they are needed and replaces those that die; each
/// does one build at a time.
pub struct BuilderHandle {
    config: BuilderConfig,
    processes: Mutex<ProcessPool>,
    freed: Condvar,
    public_key: PublicKey,
    compiler: u64,
    release: String,
    confinement: String,
}

/// The idle processes, and the numbers of the absent ones.
struct ProcessPool {
    idle: Vec<BuilderProcess>,
    /// Numbers of processes that are neither idle nor building.
    absent: Vec<usize>,
}

impl std::fmt::Debug for BuilderHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("BuilderHandle").field("public_key", &self.public_key).finish_non_exhaustive()
    }
}

impl BuilderHandle {
    /// Starts the builder process and waits until it is ready: about a second at the first start, then milliseconds.
    ///
    /// # Errors
    /// The reason why it cannot work: `Toolchain`, `Sandbox`, `Internal`.
    pub fn start(config: BuilderConfig) -> Result<Arc<BuilderHandle>, BuildError> {
        let (process, hello) = BuilderProcess::start(&config, 0)?;
        let public_key = PublicKey::from_hex(&hello.public_key)
            .ok_or_else(|| BuildError::Internal("the builder's public key is none".to_owned()))?;
        let processes = ProcessPool { idle: vec![process], absent: (1..config.compilers.max(1)).rev().collect() };
        Ok(Arc::new(BuilderHandle {
            config,
            processes: Mutex::new(processes),
            freed: Condvar::new(),
            public_key,
            compiler: hello.compiler,
            release: hello.release,
            confinement: hello.confinement,
        }))
    }

    /// Checks, compiles and signs a source or a module for that tier. Blocks the calling thread meanwhile: not for
    /// workers.
    ///
    /// # Errors
    /// The errors of the source; `Internal` when the builder died (the next call has a new one).
    pub fn build(
        &self,
        tenant: u32,
        version: u64,
        source: impl Into<PushedCode>,
        tier: CodeTier,
    ) -> Result<Artifact, BuildError> {
        let (source, denied) = (source.into(), Vec::new());
        let request = BuildRequest { tenant, version, source, tier, denied, check_only: false };
        self.answer(&request).map(|(artifact, _)| artifact)
    }

    /// As [`BuilderHandle::build`], with the compiler's warnings.
    ///
    /// # Errors
    /// As for [`BuilderHandle::build`].
    pub fn answer(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        // The wall limit covers all runs of the compiler together.
        self.ask(request, self.config.limits.wall + CHECK_ALLOWANCE, |answer, blob| {
            let artifact = Artifact::decode(blob).map_err(|error| protocol_error("reading the artifact", error))?;
            Ok((artifact, answer.warnings))
        })
    }

    /// Checks a source without compiling it.
    ///
    /// # Errors
    /// As for [`BuilderHandle::build`].
    pub fn check(&self, request: &BuildRequest) -> Result<(), BuildError> {
        let request = BuildRequest { check_only: true, ..request.clone() };
        // Where all processors are busy with requests, the builder gets a small part of one.
        self.ask(&request, self.config.limits.wall + CHECK_ALLOWANCE, |_, _| Ok(()))
    }

    /// Has a process answer a request. A process that fails is replaced.
    fn ask<T>(
        &self,
        request: &BuildRequest,
        timeout: Duration,
        read: impl FnOnce(BuildReply, &[u8]) -> Result<T, BuildError>,
    ) -> Result<T, BuildError> {
        let mut process = self.take()?;
        let asked = process.ask::<BuildReply>(request, timeout);
        let read = asked.and_then(|(answer, blob)| read(answer, &blob));
        match &read {
            // The process is not trusted any more: it is ended now, and restarted when it is needed.
            Err(BuildError::Internal(_)) => {
                let number = process.number;
                self.put_back(Err(number), Some(process));
            }
            _ => self.put_back(Ok(process), None),
        }
        read
    }

    /// Takes an idle process, or starts a new one; waits while all are building.
    fn take(&self) -> Result<BuilderProcess, BuildError> {
        let mut processes = self.processes.lock();
        let number = loop {
            if let Some(process) = processes.idle.pop() {
                return Ok(process);
            }
            if let Some(number) = processes.absent.pop() {
                break number;
            }
            self.freed.wait(&mut processes);
        };
        drop(processes);
        self.start_another(number).inspect_err(|_| self.put_back(Err(number), None))
    }

    /// Returns a process, or the number of an ended one. `ended` is dropped before its number becomes free.
    fn put_back(&self, process: Result<BuilderProcess, usize>, ended: Option<BuilderProcess>) {
        drop(ended);
        let mut processes = self.processes.lock();
        match process {
            Ok(process) => processes.idle.push(process),
            Err(number) => processes.absent.push(number),
        }
        self.freed.notify_one();
    }

    fn start_another(&self, number: usize) -> Result<BuilderProcess, BuildError> {
        let (process, hello) = BuilderProcess::start(&self.config, number)?;
        if hello.public_key != self.public_key.to_hex() || hello.compiler != self.compiler {
            return Err(BuildError::Internal(
                "the builder came back with another key or compiler: restart the server".to_owned(),
            ));
        }
        Ok(process)
    }

    /// Ends the processes that are not building; the next build starts a new one. Used by an operator who has changed
    /// the compiler's environment, and by tests.
    pub fn end_processes(&self) {
        let mut processes = self.processes.lock();
        let ended: Vec<BuilderProcess> = processes.idle.drain(..).collect();
        processes.absent.extend(ended.iter().map(|process| process.number));
    }

    /// Builds that may run at the same time.
    pub fn slots(&self) -> usize {
        self.config.compilers.max(1)
    }

    /// The public key for its artifacts.
    pub fn public_key(&self) -> PublicKey {
        self.public_key
    }

    /// Fingerprint of its compiler.
    pub fn compiler(&self) -> u64 {
        self.compiler
    }

    /// Describes the confinement of its compilers for people.
    pub fn confinement(&self) -> &str {
        &self.confinement
    }

    /// Version of its compiler, for people.
    pub fn release(&self) -> &str {
        &self.release
    }
}
