//! The builder's limits: name, default, unit, reason. Those of [`CompileLimits`] are settings; the rest are fixed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Files of one extension. Plenty for one purpose; bounds what a push can make the builder open.
pub const SOURCE_FILES: usize = 128;
/// Bytes of one source file. The checker parses it whole in memory.
pub const FILE_BYTES: usize = 512 << 10;
/// Bytes of all source files of one extension; a push is one request.
pub const SOURCE_BYTES: usize = 2 << 20;
/// Bytes of a manifest.
pub const MANIFEST_BYTES: usize = 16 << 10;
/// Bytes of an extension's name and of its version: they appear in every listing.
pub const NAME_BYTES: usize = 64;
/// Libraries one manifest may name.
pub const LIBRARIES: usize = 32;
/// Bytes of a source file's path.
pub const PATH_BYTES: usize = 200;
/// Parts of a source file's path below `src/`.
pub const PATH_DEPTH: usize = 8;
/// Diagnostics returned for one push; the rest are counted. Bounds the answer.
pub const DIAGNOSTICS: usize = 100;
/// Bytes of one rendered diagnostic; the rest is cut.
pub const RENDERED_BYTES: usize = 8 << 10;

/// What one compiler run may use. Defaults leave room for honest extensions (tens of milliseconds, 150 MB) on a
/// machine ten times slower than ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CompileLimits {
    /// CPU time of one run; ends const-evaluation loops.
    pub cpu: Duration,
    /// Wall time of one run; ends what waits instead of computing.
    pub wall: Duration,
    /// Address space of one run, bytes; rustc maps its own 200 MB of libraries into it.
    pub memory_bytes: u64,
    /// Largest file that a run may write, bytes.
    pub file_bytes: u64,
    /// Bytes of messages that a run may print.
    pub output_bytes: usize,
    /// Open files of one run.
    pub open_files: u64,
    /// Processes and threads of one run, where the sandbox can count them apart from the rest of the machine; the kernel
    /// does not hold root's processes to it.
    pub processes: u64,
    /// Largest library that is accepted, bytes.
    pub library_bytes: u64,
}

impl Default for CompileLimits {
    fn default() -> CompileLimits {
        CompileLimits {
            cpu: Duration::from_secs(20),
            wall: Duration::from_secs(60),
            memory_bytes: 2 << 30,
            file_bytes: 64 << 20,
            output_bytes: 4 << 20,
            open_files: 256,
            processes: 64,
            library_bytes: 16 << 20,
        }
    }
}
