//! One run of the compiler, confined: what is run, and what came of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::CompileLimits;

/// One command to run.
pub(super) struct ConfinedCommand<'a> {
    pub(super) program: &'a Path,
    pub(super) arguments: Vec<OsString>,
    /// Working folder; the only place where it may write.
    pub(super) folder: &'a Path,
    /// What else it may read.
    pub(super) readable: Vec<PathBuf>,
    /// What a whole build may use.
    pub(super) limits: &'a CompileLimits,
    /// What is left of it for this command.
    pub(super) cpu: Duration,
    pub(super) wall: Duration,
}

/// What came of it.
pub(super) struct CompilerOutcome {
    pub(super) success: bool,
    pub(super) code: Option<i32>,
    pub(super) stderr: String,
    /// CPU time that it took, as far as it was looked at.
    pub(super) cpu: Duration,
}
