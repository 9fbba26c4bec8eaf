//! What the builds of all tiers share: the tenant's files in a scratch folder, the runs of the compiler over them and
//! over the generated wrapper, whose limits count together, and the reading of the result.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::confined_command::ConfinedCommand;
use super::debug_info::SourceNames;
use super::diagnostic::{self, Diagnostic, Severity};
use super::launcher::CompilerLauncher;
use super::sysroot::{Sysroot, Toolchain};
use super::{BuildError, CompileLimits, Manifest, PushedSource, ROOT_FILE, embedded, limits, typed};

/// The settings of one compilation.
#[derive(Clone, Debug)]
pub struct CompileJob {
    /// Starts the compiler.
    pub launcher: CompilerLauncher,
    /// The limits of the compiler.
    pub limits: CompileLimits,
}

/// A few runs of the compiler in one scratch folder, whose CPU and wall time count together.
pub(super) struct CompilerSession<'a> {
    toolchain: &'a Toolchain,
    sysroot: &'a Sysroot,
    job: &'a CompileJob,
    folder: TempDir,
    left: Cell<RemainingBudget>,
}

/// The build of a tenant's crate and of the wrapper around it.
pub(super) struct BuildRun<'a> {
    pub(super) session: CompilerSession<'a>,
    pub(super) source: &'a PushedSource,
    externs: Vec<(String, PathBuf)>,
    /// Whether the tenant's crate may contain unsafe code: only in tests of the sandbox.
    allows_unsafe: bool,
    /// Whether its arithmetic panics where it overflows: not only where that is measured.
    checks_overflow: bool,
}

/// The limits that are left for the following runs.
#[derive(Clone, Copy)]
struct RemainingBudget {
    cpu: Duration,
    until: Instant,
}

impl RemainingBudget {
    fn of(limits: &CompileLimits) -> RemainingBudget {
        RemainingBudget { cpu: limits.cpu, until: Instant::now() + limits.wall }
    }
}

/// Flags of every compilation of a tenant's own crate, its tests included, beside those of its target.
///
/// Arithmetic that overflows panics instead of going on with another number: a kill that names its line. A future that
/// is dropped instead of awaited has done nothing, and an ignored `Result` hides an error: neither is built.
pub(super) const TENANT_FLAGS: [&str; 2] = [CHECKED_ARITHMETIC, "-Dunused_must_use"];

const CHECKED_ARITHMETIC: &str = "-Coverflow-checks=on";

/// The file with the crate around the tenant's.
const WRAPPER_FILE: &str = "wrapper.rs";

impl<'a> BuildRun<'a> {
    /// Writes the source and the wrapper into a scratch folder. `items` are the wrapper's besides those of all targets.
    pub(super) fn begin(
        toolchain: &'a Toolchain,
        sysroot: &'a Sysroot,
        source: &'a PushedSource,
        job: &'a CompileJob,
        items: &str,
    ) -> Result<BuildRun<'a>, BuildError> {
        source.validate()?;
        let externs = externs(toolchain, sysroot, source)?;
        let session = CompilerSession::begin(toolchain, sysroot, job)?;
        let (entry, typed) = typed::entry_code(source)?;
        write_files(session.folder(), source, &wrapper(&[items, &typed].concat(), entry))?;
        Ok(BuildRun { session, source, externs, allows_unsafe: false, checks_overflow: true })
    }

    /// Lets the tenant's crate contain unsafe code.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn allow_unsafe(self) -> BuildRun<'a> {
        BuildRun { allows_unsafe: true, ..self }
    }

    /// Lets the tenant's arithmetic wrap around.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn without_overflow_checks(self) -> BuildRun<'a> {
        BuildRun { checks_overflow: false, ..self }
    }

    /// The scratch folder.
    pub(super) fn folder(&self) -> &Path {
        self.session.folder()
    }

    /// The moment at which the build must have ended.
    pub(super) fn until(&self) -> Instant {
        self.session.left.get().until
    }

    /// The flags of every compilation of the tenant's crate.
    pub(super) fn tenant_arguments(&self) -> Vec<OsString> {
        let mut arguments = arguments(self.session.sysroot, "tenant", "rlib", &self.externs);
        arguments.push(if self.allows_unsafe { "-Aunsafe_code" } else { "-Funsafe_code" }.into());
        arguments.extend(TENANT_FLAGS.map(OsString::from));
        arguments.push(self.overflow_flag().into());
        arguments.push(ROOT_FILE.into());
        arguments
    }

    /// Whether arithmetic that overflows panics. The wrapper's compilation has it, too: the machine code of a future,
    /// and of what is generic or inlined, is made where it is used, with or without the checks of that crate's flags.
    fn overflow_flag(&self) -> &'static str {
        if self.checks_overflow { CHECKED_ARITHMETIC } else { "-Coverflow-checks=off" }
    }

    /// Compiles the tenant's crate; returns the compiler's warnings.
    pub(super) fn tenant(&self) -> Result<Vec<Diagnostic>, BuildError> {
        let mut arguments = self.tenant_arguments();
        arguments.push("--emit=link=libtenant.rlib,dep-info=tenant.d".into());
        let messages = self.session.rustc(arguments)?;
        let read = fs::read_to_string(self.folder().join("tenant.d"))
            .map_err(|error| BuildError::io("reading tenant.d", error))?;
        check_dependencies(&read, self.source)?;
        Ok(messages)
    }

    /// Compiles the wrapper and links it with the tenant's crate into `output`.
    pub(super) fn wrapper(&self, linking: &[&str], output: &str) -> Result<(), BuildError> {
        let mut externs = self.externs.clone();
        externs.push(("tenant".to_owned(), self.folder().join("libtenant.rlib")));
        let mut arguments = arguments(self.session.sysroot, "wrapper", "cdylib", &externs);
        arguments.push(self.overflow_flag().into());
        arguments.extend(linking.iter().map(OsString::from));
        arguments.extend([format!("--emit=link={output}"), WRAPPER_FILE.to_owned()].map(OsString::from));
        match self.session.rustc(arguments) {
            Err(BuildError::Compile(diagnostics)) => Err(BuildError::Compile(explain_wrapper(diagnostics))),
            other => other.map(|_| ()),
        }
    }
}

impl<'a> CompilerSession<'a> {
    /// Makes a scratch folder; the job's limits count from now on.
    pub(super) fn begin(
        toolchain: &'a Toolchain,
        sysroot: &'a Sysroot,
        job: &'a CompileJob,
    ) -> Result<CompilerSession<'a>, BuildError> {
        let folder = toolchain.scratch.folder("build-")?;
        Ok(CompilerSession { toolchain, sysroot, job, folder, left: Cell::new(RemainingBudget::of(&job.limits)) })
    }

    /// Makes another scratch folder, for another target, under what is left of the limits.
    pub(super) fn next(&self, sysroot: &'a Sysroot) -> Result<CompilerSession<'a>, BuildError> {
        let folder = self.toolchain.scratch.folder("build-")?;
        Ok(CompilerSession { sysroot, folder, left: self.left.clone(), ..*self })
    }

    /// The scratch folder.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// How functions and files of an extension are called in the map of its library.
    pub(super) fn names(&self, manifest: &Manifest) -> SourceNames {
        SourceNames::new(&self.toolchain.scratch, manifest)
    }

    /// Flags of a crate of our own that needs nothing but core.
    pub(super) fn arguments(&self, crate_name: &str, kind: &str) -> Vec<OsString> {
        arguments(self.sysroot, crate_name, kind, &[])
    }

    /// Reads a linked file, which `what` names in messages.
    pub(super) fn output(&self, name: &str, what: &str) -> Result<Vec<u8>, BuildError> {
        let path = self.folder().join(name);
        let wrong = |error| BuildError::io(&format!("reading the {what}"), error);
        let metadata = fs::symlink_metadata(&path).map_err(wrong)?;
        if !metadata.is_file() {
            return Err(BuildError::Internal(format!("the {what} is no file")));
        }
        let (size, most) = (metadata.len(), self.job.limits.library_bytes);
        if size > most {
            return Err(BuildError::Limit(format!("the {what} has {size} bytes: at most {most} are allowed")));
        }
        fs::read(&path).map_err(wrong)
    }

    /// Runs the compiler; returns its warnings.
    pub(super) fn rustc(&self, arguments: Vec<OsString>) -> Result<Vec<Diagnostic>, BuildError> {
        let CompilerSession { toolchain, sysroot, job, .. } = *self;
        let folder = self.folder();
        let readable = vec![toolchain.rustc.sysroot.clone(), sysroot.root.clone()];
        let RemainingBudget { cpu, until } = self.left.get();
        let wall = until.saturating_duration_since(Instant::now());
        let program = &toolchain.rustc.program;
        let run = ConfinedCommand { program, arguments, folder, readable, limits: &job.limits, cpu, wall };
        let outcome = job.launcher.run(&run)?;
        self.left.set(RemainingBudget { cpu: cpu.saturating_sub(outcome.cpu), until });
        let mut diagnostics = diagnostic::from_rustc(&outcome.stderr);
        let prefix = format!("{}/", folder.display());
        for found in &mut diagnostics {
            for text in [&mut found.file, &mut found.message, &mut found.rendered] {
                *text = text.replace(&prefix, "");
            }
        }
        if outcome.success {
            diagnostics.truncate(limits::MAX_DIAGNOSTICS);
            return Ok(diagnostics);
        }
        diagnostics.retain(|found| found.severity == Severity::Error);
        diagnostics.truncate(limits::MAX_DIAGNOSTICS);
        if diagnostics.is_empty() {
            let first = outcome
                .stderr
                .lines()
                .find(|line| !line.starts_with('{') && !line.trim().is_empty())
                .unwrap_or("no message");
            return Err(BuildError::Internal(format!("rustc failed: {first}")));
        }
        Err(BuildError::Compile(diagnostics))
    }
}

/// The crates that the source may name: crate name and rlib.
fn externs(
    toolchain: &Toolchain,
    sysroot: &Sysroot,
    source: &PushedSource,
) -> Result<Vec<(String, PathBuf)>, BuildError> {
    let mut externs = vec![("sandstorm_api".to_owned(), sysroot.rlib("sandstorm_api"))];
    for crate_name in toolchain.crate_names(source)? {
        let rlib = sysroot.rlib(&crate_name);
        externs.push((crate_name, rlib));
    }
    Ok(externs)
}

fn write_files(folder: &Path, source: &PushedSource, wrapper: &str) -> Result<(), BuildError> {
    for file in &source.files {
        let path = folder.join(&file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| BuildError::io("creating a scratch folder", error))?;
        }
        fs::write(&path, &file.text).map_err(|error| BuildError::io("writing a scratch file", error))?;
    }
    fs::write(folder.join(WRAPPER_FILE), wrapper).map_err(|error| BuildError::io("writing the wrapper", error))
}

/// The crate around the tenant's: only this one contains unsafe code, all of it from the API's macro.
fn wrapper(items: &str, entry: &str) -> String {
    format!(
        "#![no_std]
extern crate sandstorm_api;
extern crate tenant;
#[global_allocator]
static ALLOCATOR: sandstorm_api::rt::ArenaAllocator = sandstorm_api::rt::ArenaAllocator;
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {{
    sandstorm_api::rt::panic(info)
}}
{items}sandstorm_api::export!({entry}, {:#018x});
",
        embedded::api_fingerprint()
    )
}

/// Flags that the compilations of the tenant's crate and of the wrapper share.
fn arguments(sysroot: &Sysroot, crate_name: &str, kind: &str, externs: &[(String, PathBuf)]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--sysroot".into(), sysroot.root.clone().into()];
    arguments.extend(["--crate-name", crate_name, "--crate-type", kind, "--edition=2024"].map(OsString::from));
    arguments.extend(sysroot.target.codegen.iter().map(OsString::from));
    arguments.extend(["--error-format=json".into(), "-L".into(), sysroot.crates().into()]);
    for (name, path) in externs {
        let mut value = OsString::from(format!("{name}="));
        value.push(path);
        arguments.extend(["--extern".into(), value]);
    }
    arguments
}

/// Checks that every file that the compiler read is one that was sent.
fn check_dependencies(dep_info: &str, source: &PushedSource) -> Result<(), BuildError> {
    for line in dep_info.lines() {
        if line.starts_with("# env-dep:") {
            let message = format!("the source reads the compiler's environment: {line}");
            return Err(BuildError::Refused(vec![Diagnostic::plain(&message)]));
        }
        let Some((_, inputs)) = line.split_once(": ") else { continue };
        for input in inputs.split_whitespace() {
            if !source.files.iter().any(|file| file.path == input) {
                let message = "the source makes the compiler read a file that was not pushed";
                return Err(BuildError::Refused(vec![Diagnostic::plain(message)]));
            }
        }
    }
    Ok(())
}

/// Errors inside the wrapper mean that the extension's entry has a wrong signature; the wrapper's own text would not
/// help.
fn explain_wrapper(diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let (wrapper, tenant): (Vec<_>, Vec<_>) = diagnostics.into_iter().partition(|found| {
        found.file == WRAPPER_FILE || found.file.starts_with("sandstorm_api/") || found.file.is_empty()
    });
    if wrapper.is_empty() {
        return tenant;
    }
    let why: Vec<&str> = wrapper.iter().map(|found| found.message.as_str()).collect();
    let message = format!(
        "the extension's entry in {ROOT_FILE} must be \
         `pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error>`, or typed functions such as \
         `pub async fn total(db: Db<'_>, args: Basket) -> Result<u64, Error>`: {}",
        why.join("; ")
    );
    let mut explained = Diagnostic::refused(ROOT_FILE, "", 0..0, "entry", &message);
    explained.file = ROOT_FILE.to_owned();
    std::iter::once(explained).chain(tenant).collect()
}
