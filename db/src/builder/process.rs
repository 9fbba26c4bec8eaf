//! The builder as a process of its own, and the server's handle on it.
//!
//! They speak in frames over the builder's standard input and output: length of the JSON (u32, little-endian), length of
//! the bytes that follow it (u32), JSON, bytes. The first frame to the builder is its configuration, answered by a hello
//! with its public key or by the reason why it cannot work; then one answer follows each request. Whatever happens to
//! the builder, the server sees a `BuildError`.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::artifact::Artifact;
use super::service::{Builder, BuilderConfig};
use super::sign::PublicKey;
use super::{BuildError, Diagnostic, Source};

/// JSON of one frame, bytes: a source of the largest size, escaped.
const JSON_BYTES: usize = 16 << 20;
/// Bytes of one frame: the largest library.
const BLOB_BYTES: usize = 64 << 20;
/// Pushes that wait for the builder; more are turned away, so that waiting stays bounded.
const WAITING: usize = 32;
/// Time for the first start: copying the standard library and compiling the API.
const START: Duration = Duration::from_secs(120);
/// How much lower than the server's the builder's CPU priority is.
const NICE: i32 = 15;

#[derive(Serialize, Deserialize)]
struct Request {
    tenant: u32,
    version: u64,
    source: Source,
}

#[derive(Serialize, Deserialize)]
struct Hello {
    public_key: String,
    compiler: u64,
    release: String,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    warnings: Vec<Diagnostic>,
}

fn write_frame(out: &mut impl Write, json: &impl Serialize, blob: &[u8]) -> io::Result<()> {
    let json = serde_json::to_vec(json)?;
    let length = |bytes: usize| u32::try_from(bytes).map_err(|_| io::Error::other("a frame is too long"));
    out.write_all(&length(json.len())?.to_le_bytes())?;
    out.write_all(&length(blob.len())?.to_le_bytes())?;
    out.write_all(&json)?;
    out.write_all(blob)?;
    out.flush()
}

/// Reads a frame; `None` at the end of the stream.
fn read_frame<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<Option<(T, Vec<u8>)>> {
    let mut word = [0_u8; 4];
    match input.read_exact(&mut word) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let json_len = u32::from_le_bytes(word) as usize;
    input.read_exact(&mut word)?;
    let blob_len = u32::from_le_bytes(word) as usize;
    if json_len > JSON_BYTES || blob_len > BLOB_BYTES {
        return Err(io::Error::other("a frame is too long"));
    }
    let mut json = vec![0; json_len];
    input.read_exact(&mut json)?;
    let mut blob = vec![0; blob_len];
    input.read_exact(&mut blob)?;
    Ok(Some((serde_json::from_slice(&json)?, blob)))
}

/// Runs the mode that the builder's own processes are started in, if this is one: `builder` (serves requests on standard
/// input) or `builder sandbox-exec` (becomes a confined compiler). The binary calls this before anything else: no thread
/// may have been started.
pub fn process_mode() -> Option<ExitCode> {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).take(3).collect();
    let words: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    match words.as_slice() {
        ["builder"] => Some(run_process()),
        ["builder", "sandbox-exec"] => Some(super::sandbox_exec()),
        _ => None,
    }
}

/// The builder's side: `sandstorm builder`. Serves requests until its input ends.
pub fn run_process() -> ExitCode {
    // A builder that cannot be made nicer still builds.
    let _priority_unchanged = rustix::process::nice(NICE);
    match serve(&mut BufReader::new(io::stdin().lock()), &mut BufWriter::new(io::stdout().lock())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: sandstorm builder: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(input: &mut impl Read, out: &mut impl Write) -> io::Result<()> {
    let Some((config, _)) = read_frame::<BuilderConfig>(input)? else { return Ok(()) };
    let builder = match Builder::open(&config) {
        Ok(builder) => builder,
        Err(error) => return write_frame(out, &Err::<Hello, BuildError>(error), &[]),
    };
    let hello = Hello {
        public_key: builder.public_key().to_hex(),
        compiler: builder.compiler(),
        release: builder.toolchain().rustc.release.clone(),
    };
    write_frame(out, &Ok::<Hello, BuildError>(hello), &[])?;
    while let Some((request, _)) = read_frame::<Request>(input)? {
        match builder.build(request.tenant, request.version, &request.source) {
            Ok((artifact, warnings)) => {
                write_frame(out, &Ok::<Answer, BuildError>(Answer { warnings }), &artifact.encode())?;
            }
            Err(error) => write_frame(out, &Err::<Answer, BuildError>(error), &[])?,
        }
    }
    Ok(())
}

/// One running builder process.
struct Process {
    child: Child,
    stdin: BufWriter<ChildStdin>,
    answers: Receiver<io::Result<(serde_json::Value, Vec<u8>)>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Process {
    fn start(config: &BuilderConfig) -> Result<(Process, Hello), BuildError> {
        let program = config.program()?;
        let mut child = Command::new(&program)
            .arg("builder")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| BuildError::io(&format!("starting {}", program.display()), error))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(BuildError::Internal("the builder has no pipes".to_owned()));
        };
        let (sender, answers) = sync_channel(1);
        let mut process = Process { child, stdin: BufWriter::new(stdin), answers };
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
        let (hello, _) = process.ask::<Hello>(config, START)?;
        Ok((process, hello))
    }

    /// Sends a frame and waits for its answer. After an error other than the answer's own the process is useless.
    fn ask<T: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        timeout: Duration,
    ) -> Result<(T, Vec<u8>), BuildError> {
        write_frame(&mut self.stdin, request, &[]).map_err(|error| broken("writing to the builder", error))?;
        match self.answers.recv_timeout(timeout) {
            Ok(Ok((answer, blob))) => {
                let answer: Result<T, BuildError> =
                    serde_json::from_value(answer).map_err(|error| broken("reading its answer", error))?;
                Ok((answer?, blob))
            }
            Ok(Err(error)) => Err(broken("reading from the builder", error)),
            Err(RecvTimeoutError::Timeout) => Err(broken("waiting for the builder", "it took too long and was ended")),
            Err(RecvTimeoutError::Disconnected) => Err(broken("waiting for the builder", "it ended")),
        }
    }
}

fn broken(what: &str, error: impl std::fmt::Display) -> BuildError {
    BuildError::Internal(format!("{what}: {error}"))
}

/// The server's handle on its builder process: starts it, restarts it when it dies, one build at a time.
pub struct BuilderHandle {
    config: BuilderConfig,
    process: Mutex<Option<Process>>,
    waiting: AtomicUsize,
    public_key: PublicKey,
    compiler: u64,
    release: String,
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
    /// Why it cannot work: `Toolchain`, `Sandbox`, `Internal`.
    pub fn start(config: BuilderConfig) -> Result<Arc<BuilderHandle>, BuildError> {
        let (process, hello) = Process::start(&config)?;
        let public_key = PublicKey::from_hex(&hello.public_key)
            .ok_or_else(|| BuildError::Internal("the builder's public key is none".to_owned()))?;
        Ok(Arc::new(BuilderHandle {
            config,
            process: Mutex::new(Some(process)),
            waiting: AtomicUsize::new(0),
            public_key,
            compiler: hello.compiler,
            release: hello.release,
        }))
    }

    /// Checks, compiles and signs a source. Blocks the calling thread while it does: not for workers.
    ///
    /// # Errors
    /// What is wrong with the source; `Limit` when too many wait; `Internal` when the builder died (the next call has a
    /// new one).
    pub fn build(&self, tenant: u32, version: u64, source: &Source) -> Result<Artifact, BuildError> {
        self.build_with_warnings(tenant, version, source).map(|(artifact, _)| artifact)
    }

    /// As [`BuilderHandle::build`], with the compiler's warnings.
    ///
    /// # Errors
    /// As for [`BuilderHandle::build`].
    pub fn build_with_warnings(
        &self,
        tenant: u32,
        version: u64,
        source: &Source,
    ) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        let _place = Place::take(&self.waiting)?;
        let mut slot = self.process.lock();
        let mut process = match slot.take() {
            Some(process) => process,
            None => self.restart()?,
        };
        let request = Request { tenant, version, source: source.clone() };
        // Three compiler runs at their wall limit, and the checker.
        let timeout = self.config.limits.wall * 3 + Duration::from_secs(30);
        match process.ask::<Answer>(&request, timeout) {
            Ok((answer, blob)) => {
                let artifact = Artifact::decode(&blob).map_err(|error| broken("reading the artifact", error))?;
                *slot = Some(process);
                Ok((artifact, answer.warnings))
            }
            // The process is not trusted any more; it is ended here and started anew by the next build.
            Err(error @ BuildError::Internal(_)) => Err(error),
            Err(error) => {
                *slot = Some(process);
                Err(error)
            }
        }
    }

    fn restart(&self) -> Result<Process, BuildError> {
        let (process, hello) = Process::start(&self.config)?;
        if hello.public_key != self.public_key.to_hex() || hello.compiler != self.compiler {
            return Err(BuildError::Internal(
                "the builder came back with another key or compiler: restart the server".to_owned(),
            ));
        }
        Ok(process)
    }

    /// Ends the builder process; the next build starts a new one. For an operator who has changed the compiler's
    /// surroundings, and for tests.
    pub fn end_process(&self) {
        *self.process.lock() = None;
    }

    /// The key that signs its artifacts.
    pub fn public_key(&self) -> PublicKey {
        self.public_key
    }

    /// Fingerprint of its compiler.
    pub fn compiler(&self) -> u64 {
        self.compiler
    }

    /// Version of its compiler, for people.
    pub fn release(&self) -> &str {
        &self.release
    }
}

/// A place in the queue.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize) -> Result<Place<'a>, BuildError> {
        let place = Place(waiting);
        if waiting.fetch_add(1, Ordering::Relaxed) >= WAITING {
            return Err(BuildError::Limit(format!("{WAITING} pushes wait for the builder already: try again later")));
        }
        Ok(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
