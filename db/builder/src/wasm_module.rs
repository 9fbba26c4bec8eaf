//! Compiles a checked source to a WebAssembly module, the first half of the sandboxed tier: the tenant's crate, then
//! the generated wrapper around it. What the module does is confined by what is made of it later, so nothing is audited
//! here.

use super::compiler_run::{BuildRun, CompileJob, CompilerSession};
use super::diagnostic::Diagnostic;
use super::sysroot::Toolchain;
use super::{BuildError, PushedSource, limits};

/// A module and the compiler's warnings about its source.
#[derive(Clone, Debug)]
pub struct BuiltModule {
    /// The module.
    pub wasm: Vec<u8>,
    /// The compiler's warnings.
    pub warnings: Vec<Diagnostic>,
}

/// The linked module.
const MODULE_FILE: &str = "wrapper.wasm";

/// Flags of the wrapper's compilation that choose the linker, and lay out the module's memory.
///
/// The stack comes first, so that its overflow is an access below zero and not a change of data. Names stay: the next
/// step tells read-only segments by theirs. Debug information stays until the [map](super::debug_info) is made.
const LINKING: [&str; 6] = [
    "-Clinker-flavor=wasm-ld",
    "-Clinker=rust-lld",
    "-Clink-arg=--threads=1",
    "-Clink-arg=--stack-first",
    "-Clink-arg=--export=__heap_base",
    "-Cstrip=none",
];

/// Compiles a source that the checker has passed for the sandboxed tier, and returns the module and the warnings.
///
/// # Errors
/// `Compile` with the compiler's messages; `Limit` when it exceeds a limit; `Refused` for an unknown library;
/// `Toolchain` when the compiler cannot make modules; `Sandbox` and `Internal` when the compiler could not be run.
pub fn build_module(toolchain: &Toolchain, source: &PushedSource, job: &CompileJob) -> Result<BuiltModule, BuildError> {
    build_module_in_session(toolchain, source, job).map(|(module, _)| module)
}

/// As [`build_module()`]; also returns the session that it was built in, whose limits go on in what follows.
pub(super) fn build_module_in_session<'a>(
    toolchain: &'a Toolchain,
    source: &'a PushedSource,
    job: &'a CompileJob,
) -> Result<(BuiltModule, CompilerSession<'a>), BuildError> {
    link_module(BuildRun::begin(toolchain, toolchain.module()?, source, job, "")?)
}

/// Compiles both crates of a build that has begun, and links them.
pub(super) fn link_module(build: BuildRun<'_>) -> Result<(BuiltModule, CompilerSession<'_>), BuildError> {
    let warnings = build.tenant()?;
    let stack = format!("-Clink-arg=-zstack-size={}", limits::MODULE_STACK_BYTES);
    let linking: Vec<&str> = LINKING.into_iter().chain([stack.as_str()]).collect();
    build.wrapper(&linking, MODULE_FILE)?;
    let wasm = build.session.output(MODULE_FILE, "module")?;
    Ok((BuiltModule { wasm, warnings }, build.session))
}
