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
/// Triggers of a manifest, at most: as many as a tenant may have.
pub const TRIGGERS: usize = 16;
/// Bytes of a source file's path.
pub const PATH_BYTES: usize = 200;
/// Parts of a source file's path below `src/`.
pub const PATH_DEPTH: usize = 8;
/// Diagnostics returned for one push; the rest are counted. Bounds the answer.
pub const MAX_DIAGNOSTICS: usize = 100;
/// Bytes of one rendered diagnostic; the rest is cut.
pub const RENDERED_BYTES: usize = 8 << 10;

/// Bytes of the compiler's intermediate form of an extension that the audit reads: as text, and of all functions. Half
/// a megabyte of source makes some 10 MiB; more is refused.
pub const MIR_BYTES: u64 = 128 << 20;

/// Bytes of a WebAssembly module that is pushed: what is translated, see there.
pub const MODULE_BYTES: usize = sandstorm_translator::limits::MODULE_MAX_BYTES;
/// Bytes of a module's stack, which begins at address 0 of its memory: as much as a native extension's.
pub const MODULE_STACK_BYTES: u64 = 1 << 20;
/// Patterns that an operator denies at a time: each is for one hole, until there is a rule for it.
pub const DENIED_PATTERNS: usize = 256;
/// Bytes of one of them.
pub const DENIED_BYTES: usize = 200;
/// Tokens of one of them.
pub const DENIED_TOKENS: usize = 64;

/// Highest version of an extension: what JSON's numbers carry exactly. Versions grow by one with each push, so none is
/// ever short of a successor.
pub const MAX_VERSION: u64 = 1 << 53;
/// Bytes of an artifact beside its library: magic, header with the longest name, signature, lengths; the types of its
/// functions; and the map of its code.
pub const ARTIFACT_EXTRA_BYTES: usize =
    512 + sandstorm_schema::limits::SCHEMA_BYTES + sandstorm_sandbox::code_map::CODE_MAP_MAX_BYTES;

/// Compilations at the same time, at most: each has a user id of its own where the builder runs as root, out of the 14
/// that distributions leave free (65520 to 65533).
pub const MAX_COMPILERS: usize = 14;

/// Compilations at the same time by default: a quarter of the machine's cores, at least two, so that one tenant's long
/// compilation never holds up another's.
pub fn default_compilers() -> usize {
    (std::thread::available_parallelism().map_or(1, usize::from) / 4).clamp(2, 8)
}

/// Longest wait of a server for a build on another host, including the time in that builder's queue.
pub const REMOTE_BUILD_TIMEOUT: Duration = Duration::from_secs(600);
/// Longest wait for a connection to that host, and for its hello.
pub const REMOTE_HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Builds of one tenant that wait at a builder's own service: its servers have queues of their own before it.
pub const MAX_SERVICE_WAITING: u32 = 4;

/// What one build (two or three runs of the compiler) may use. Defaults leave room for honest extensions (0.3 s of CPU
/// time, 150 MB; on a virtual machine beside busy neighbours the largest here took more than 10 s).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CompileLimits {
    /// CPU time of all runs and all their processes together; ends const-evaluation loops.
    pub cpu: Duration,
    /// Wall time of all runs together: where all processors are busy with requests, a build gets one in seventy of
    /// their time. A build that got no CPU time is told that the machine was busy.
    pub wall: Duration,
    /// Memory of one run, bytes: address space of each process, of which rustc takes 200 MB for its own libraries, and
    /// resident memory of all of them.
    pub memory_bytes: u64,
    /// Largest file that a run may write, bytes.
    pub file_bytes: u64,
    /// Bytes on disk of all files of a build.
    pub scratch_bytes: u64,
    /// Bytes of messages that a run may print.
    pub output_bytes: usize,
    /// Open files of one run.
    pub open_files: u64,
    /// Processes and threads of one run.
    pub processes: u64,
    /// Largest library that is accepted, bytes.
    pub library_bytes: u64,
}

impl Default for CompileLimits {
    fn default() -> CompileLimits {
        CompileLimits {
            cpu: Duration::from_secs(30),
            wall: Duration::from_secs(120),
            memory_bytes: 2 << 30,
            file_bytes: 64 << 20,
            scratch_bytes: 256 << 20,
            output_bytes: 4 << 20,
            open_files: 256,
            processes: 64,
            library_bytes: 16 << 20,
        }
    }
}
