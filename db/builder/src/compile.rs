//! Compiles a checked source to a library: the tenant's crate, then the generated wrapper around it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::check::type_parameters;
use super::compiler_run::{BuildRun, CompileJob};
use super::debug_info::{native_map, without_debug_sections};
use super::diagnostic::Diagnostic;
use super::sysroot::Toolchain;
use super::{BuildError, PushedSource, audit, limits};
use sandstorm_sandbox::code_map::with_code_map;

/// A library and the compiler's warnings about its source.
#[derive(Clone, Debug)]
pub struct BuiltLibrary {
    /// The library, and its map behind it.
    pub elf: Vec<u8>,
    /// The compiler's warnings.
    pub warnings: Vec<Diagnostic>,
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
    link_library(BuildRun::begin(toolchain, toolchain.native(), source, job, UNWINDING)?)
}

/// As [`build_library()`], with arithmetic that wraps around: to measure what its checks cost.
///
/// # Errors
/// As for [`compile`].
#[cfg(any(test, feature = "testing"))]
pub fn build_library_unchecked(
    toolchain: &Toolchain,
    source: &PushedSource,
    job: &CompileJob,
) -> Result<BuiltLibrary, BuildError> {
    let build = BuildRun::begin(toolchain, toolchain.native(), source, job, UNWINDING)?;
    link_library(build.without_overflow_checks())
}

/// Compiles both crates of a build that has begun, audits the tenant's, and links them.
fn link_library(build: BuildRun<'_>) -> Result<BuiltLibrary, BuildError> {
    let warnings = build.tenant()?;
    audit(&build)?;
    build.wrapper(&LINKING, LIBRARY_FILE)?;
    let linked = build.session.output(LIBRARY_FILE, "library")?;
    let map = native_map(&linked, &build.session.names(&build.source.manifest));
    Ok(BuiltLibrary { elf: with_code_map(without_debug_sections(linked), &map), warnings })
}

/// The linked library.
const LIBRARY_FILE: &str = "libwrapper.so";

/// Flags of the wrapper's compilation that choose the linker.
const LINKING: [&str; 4] = ["-Clinker-flavor=ld.lld", "-Clinker=rust-lld", "-Clink-arg=--threads=1", "-Cstrip=none"];

/// What the wrapper of a library has besides: functions that the standard library's code for unwinding names. Nothing
/// unwinds, so nothing calls them.
const UNWINDING: &str = "#[unsafe(no_mangle)]
extern \"C\" fn rust_eh_personality() {}
#[unsafe(no_mangle)]
extern \"C\" fn _Unwind_Resume() {}
";

/// Lets the compiler dump its intermediate form, and refuses what only shows there.
fn audit(build: &BuildRun<'_>) -> Result<(), BuildError> {
    let mut arguments = build.tenant_arguments();
    // Optimised, it would also show the code of the standard library's own functions. With no optimisation at all it
    // also shows unused locals, whose types the audit would take for an object's hidden content.
    let unoptimised = ["-Cdebuginfo=0", "-Copt-level=0", "-Zmir-opt-level=1", "--emit=mir=tenant.mir"];
    arguments.extend(unoptimised.map(OsString::from));
    // Each function as the borrow checker gets it, with the source locations of its statements.
    let bodies = ["-Zdump-mir=renumber", "-Zdump-mir-exclude-alloc-bytes", "-Zmir-include-spans=on"];
    arguments.extend(bodies.map(OsString::from));
    arguments.push(format!("-Zdump-mir-dir={MIR_FOLDER}").into());
    build.session.rustc(arguments)?;
    let text = read_text(&build.folder().join("tenant.mir"), limits::MIR_BYTES)?;
    let forms = audit::MirDump { text, bodies: read_bodies(&build.folder().join(MIR_FOLDER))? };
    let parameters = type_parameters(build.source)?;
    let refused = audit::audit_source(&forms, build.source, &parameters, build.until())?;
    if refused.is_empty() { Ok(()) } else { Err(BuildError::Refused(refused)) }
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
