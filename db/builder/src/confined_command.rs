//! One run of the compiler, confined: its command and its outcome.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::CompileLimits;

/// One command to run.
pub(super) struct ConfinedCommand<'a> {
    pub(super) program: &'a Path,
    pub(super) arguments: Vec<OsString>,
    /// Working folder; the only folder that it may write to.
    pub(super) folder: &'a Path,
    /// Other files and folders that it may read.
    pub(super) readable: Vec<PathBuf>,
    /// The limits of a whole build.
    pub(super) limits: &'a CompileLimits,
    /// The CPU time that is left for this command.
    pub(super) cpu: Duration,
    pub(super) wall: Duration,
}

/// The outcome of a run.
pub(super) struct CompilerOutcome {
    pub(super) success: bool,
    pub(super) code: Option<i32>,
    pub(super) stderr: String,
    /// CPU time of the run, as far as it was sampled.
    pub(super) cpu: Duration,
}
