//! Compiles a checked source to a library: the tenant's crate, then the generated wrapper around it.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::check::type_parameters;
use super::confined_command::ConfinedCommand;
use super::diagnostic::{self, Diagnostic, Severity};
use super::launcher::CompilerLauncher;
use super::sysroot::{CODEGEN, Toolchain};
use super::{BuildError, CompileLimits, PushedSource, ROOT_FILE, audit, embedded, limits};

/// The settings of one compilation.
#[derive(Clone, Debug)]
pub struct CompileJob {
    /// Starts the compiler.
    pub launcher: CompilerLauncher,
    /// The limits of the compiler.
    pub limits: CompileLimits,
}

/// A library and the compiler's warnings about its source.
#[derive(Clone, Debug)]
pub struct BuiltLibrary {
    /// The library.
    pub elf: Vec<u8>,
    /// The compiler's warnings.
    pub warnings: Vec<Diagnostic>,
}

/// One build: three runs of the compiler, whose CPU and wall time count together.
struct BuildRun<'a> {
    toolchain: &'a Toolchain,
    source: &'a PushedSource,
    job: &'a CompileJob,
    folder: &'a Path,
    externs: &'a [(String, PathBuf)],
    left: Cell<RemainingBudget>,
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

/// Compiles a source that the checker has passed and returns the library's bytes.
///
/// # Errors
/// `Compile` with the compiler's messages; `Limit` when it exceeds a limit; `Refused` for an unknown library; `Sandbox`
/// and `Internal` when the compiler could not be run.
pub fn compile(toolchain: &Toolchain, source: &PushedSource, job: &CompileJob) -> Result<Vec<u8>, BuildError> {
    build_library(toolchain, source, job).map(|built| built.elf)
}

/// As [`compile`], with the warnings.
///
/// # Errors
/// As for [`compile`].
pub fn build_library(
    toolchain: &Toolchain,
    source: &PushedSource,
    job: &CompileJob,
) -> Result<BuiltLibrary, BuildError> {
    source.validate()?;
    let externs = externs(toolchain, source)?;
    let folder = toolchain.scratch.folder("build-")?;
    let folder = folder.path();
    write_files(folder, source)?;
    let build = BuildRun {
        toolchain,
        source,
        job,
        folder,
        externs: &externs,
        left: Cell::new(RemainingBudget::of(&job.limits)),
    };
    let warnings = build.tenant()?;
    build.audit()?;
    build.wrapper()?;
    let path = folder.join("libwrapper.so");
    let metadata = fs::symlink_metadata(&path).map_err(|error| BuildError::io("reading the library", error))?;
    if !metadata.is_file() {
        return Err(BuildError::Internal("the library is no file".to_owned()));
    }
    let size = metadata.len();
    if size > job.limits.library_bytes {
        let message = format!("the library has {size} bytes: at most {} are allowed", job.limits.library_bytes);
        return Err(BuildError::Limit(message));
    }
    let elf = fs::read(&path).map_err(|error| BuildError::io("reading the library", error))?;
    Ok(BuiltLibrary { elf, warnings })
}

/// The crates that the source may name: crate name and rlib.
fn externs(toolchain: &Toolchain, source: &PushedSource) -> Result<Vec<(String, PathBuf)>, BuildError> {
    let mut externs = vec![("sandstorm_api".to_owned(), toolchain.rlib("sandstorm_api"))];
    for crate_name in toolchain.crate_names(source)? {
        let rlib = toolchain.rlib(&crate_name);
        externs.push((crate_name, rlib));
    }
    Ok(externs)
}

fn write_files(folder: &Path, source: &PushedSource) -> Result<(), BuildError> {
    for file in &source.files {
        let path = folder.join(&file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| BuildError::io("creating a scratch folder", error))?;
        }
        fs::write(&path, &file.text).map_err(|error| BuildError::io("writing a scratch file", error))?;
    }
    fs::write(folder.join("wrapper.rs"), wrapper()).map_err(|error| BuildError::io("writing the wrapper", error))
}

/// The crate around the tenant's: only this one contains unsafe code, all of it from the API's macro.
fn wrapper() -> String {
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
#[unsafe(no_mangle)]
extern \"C\" fn rust_eh_personality() {{}}
#[unsafe(no_mangle)]
extern \"C\" fn _Unwind_Resume() {{}}
sandstorm_api::export!(tenant::run, {:#018x});
",
        embedded::api_fingerprint()
    )
}

/// Flags that both compilations share.
fn arguments(toolchain: &Toolchain, crate_name: &str, kind: &str, externs: &[(String, PathBuf)]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--sysroot".into(), toolchain.root.clone().into()];
    arguments.extend(["--crate-name", crate_name, "--crate-type", kind, "--edition=2024"].map(OsString::from));
    arguments.extend(CODEGEN.map(OsString::from));
    arguments
        .extend(["--error-format=json", "--json=diagnostic-rendered-ansi"].map(OsString::from).into_iter().take(1));
    arguments.extend(["-L".into(), toolchain.crates().into()]);
    for (name, path) in externs {
        let mut value = OsString::from(format!("{name}="));
        value.push(path);
        arguments.extend(["--extern".into(), value]);
    }
    arguments
}

impl BuildRun<'_> {
    fn tenant(&self) -> Result<Vec<Diagnostic>, BuildError> {
        let mut arguments = arguments(self.toolchain, "tenant", "rlib", self.externs);
        arguments
            .extend(["-Funsafe_code", "--emit=link=libtenant.rlib,dep-info=tenant.d", ROOT_FILE].map(OsString::from));
        let messages = self.rustc(arguments)?;
        let read = fs::read_to_string(self.folder.join("tenant.d"))
            .map_err(|error| BuildError::io("reading tenant.d", error))?;
        check_dependencies(&read, self.source)?;
        Ok(messages)
    }

    /// Lets the compiler dump its intermediate form, and refuses what only shows there.
    fn audit(&self) -> Result<(), BuildError> {
        let mut arguments = arguments(self.toolchain, "tenant", "rlib", self.externs);
        // Optimised, it would also show the code of the standard library's own functions. With no optimisation at all
        // it also shows unused locals, whose types the audit would take for an object's hidden content.
        let unoptimised = ["-Copt-level=0", "-Zmir-opt-level=1", "-Funsafe_code", "--emit=mir=tenant.mir", ROOT_FILE];
        arguments.extend(unoptimised.map(OsString::from));
        // Each function as the borrow checker gets it, with the source locations of its statements.
        let bodies = ["-Zdump-mir=renumber", "-Zdump-mir-exclude-alloc-bytes", "-Zmir-include-spans=on"];
        arguments.extend(bodies.map(OsString::from));
        arguments.push(format!("-Zdump-mir-dir={MIR_FOLDER}").into());
        self.rustc(arguments)?;
        let text = read_text(&self.folder.join("tenant.mir"), limits::MIR_BYTES)?;
        let forms = audit::MirDump { text, bodies: read_bodies(&self.folder.join(MIR_FOLDER))? };
        let parameters = type_parameters(self.source)?;
        let refused = audit::audit_source(&forms, self.source, &parameters, self.left.get().until)?;
        if refused.is_empty() { Ok(()) } else { Err(BuildError::Refused(refused)) }
    }

    fn wrapper(&self) -> Result<(), BuildError> {
        let mut externs = self.externs.to_vec();
        externs.push(("tenant".to_owned(), self.folder.join("libtenant.rlib")));
        let mut arguments = arguments(self.toolchain, "wrapper", "cdylib", &externs);
        let linking = ["-Clinker-flavor=ld.lld", "-Clinker=rust-lld", "-Clink-arg=--threads=1", "-Cstrip=symbols"];
        arguments.extend(linking.map(OsString::from));
        arguments.extend(["--emit=link=libwrapper.so", "wrapper.rs"].map(OsString::from));
        match self.rustc(arguments) {
            Err(BuildError::Compile(diagnostics)) => Err(BuildError::Compile(explain_wrapper(diagnostics))),
            other => other.map(|_| ()),
        }
    }

    /// Runs the compiler; returns its warnings.
    fn rustc(&self, arguments: Vec<OsString>) -> Result<Vec<Diagnostic>, BuildError> {
        let BuildRun { toolchain, job, folder, .. } = *self;
        let readable = vec![toolchain.rustc.sysroot.clone(), toolchain.root.clone()];
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

/// Folder of the build in which the audit's run of the compiler writes functions.
const MIR_FOLDER: &str = "bodies";

/// Reads a text that the compiler wrote; the compiler writes nothing but UTF-8.
fn read_text(path: &Path, most: u64) -> Result<String, BuildError> {
    let wrong = |error| BuildError::io("reading the compiler's intermediate form", error);
    let metadata = fs::symlink_metadata(path).map_err(wrong)?;
    if !metadata.is_file() {
        return Err(BuildError::Internal(format!("{} is no file", path.display())));
    }
    if metadata.len() > most {
        let message = format!("the compiler's intermediate form has more than {} MiB", limits::MIR_BYTES >> 20);
        return Err(BuildError::Limit(message));
    }
    fs::read_to_string(path).map_err(wrong)
}

/// The texts of all functions that the compiler wrote.
fn read_bodies(folder: &Path) -> Result<Vec<String>, BuildError> {
    let wrong = |error| BuildError::io("reading the compiler's intermediate form", error);
    let mut paths = Vec::new();
    match fs::read_dir(folder) {
        // A source without a function.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(wrong(error)),
        Ok(entries) => {
            for entry in entries {
                let path = entry.map_err(wrong)?.path();
                if path.extension().is_some_and(|extension| extension == "mir") {
                    paths.push(path);
                }
            }
        }
    }
    // Refusals come in the same order each time.
    paths.sort();
    let mut left = limits::MIR_BYTES;
    let mut bodies = Vec::new();
    for path in paths {
        let text = read_text(&path, left)?;
        left -= text.len() as u64;
        bodies.push(text);
    }
    Ok(bodies)
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
        found.file == "wrapper.rs" || found.file.starts_with("sandstorm_api/") || found.file.is_empty()
    });
    if wrapper.is_empty() {
        return tenant;
    }
    let why: Vec<&str> = wrapper.iter().map(|found| found.message.as_str()).collect();
    let message = format!(
        "the extension's entry in {ROOT_FILE} must be \
         `pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error>`: {}",
        why.join("; ")
    );
    let mut explained = Diagnostic::refused(ROOT_FILE, "", 0..0, "entry", &message);
    explained.file = ROOT_FILE.to_owned();
    std::iter::once(explained).chain(tenant).collect()
}
