//! A library of the sandboxed tier: the way from a source to machine code that addresses nothing but its own memory.

use super::{BuildError, BuiltLibrary, CompileJob, PushedSource, Toolchain};

/// Checks a source by the rules of the sandboxed tier, and builds its library.
///
/// # Errors
/// As for [`build_library`](super::build_library); `Refused` for what the rules of this tier refuse.
pub fn build_sandboxed(
    _toolchain: &Toolchain,
    _source: &PushedSource,
    _job: &CompileJob,
) -> Result<BuiltLibrary, BuildError> {
    Err(BuildError::Internal("the sandboxed tier is not built in yet".to_owned()))
}
