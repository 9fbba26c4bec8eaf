//! The builder: takes a tenant's source, checks it, compiles it, signs the library.
//!
//! [`PushedSource`] is what a tenant pushes. [`Toolchain`] is the compiler with a sysroot of our own: core, alloc, the
//! extension API and the vetted libraries, nothing else. [`compile()`] makes a library of a checked source, and
//! [`build_module`] a WebAssembly module.
#![deny(unsafe_code)]

mod artifact;
#[cfg(test)]
mod artifact_tests;
mod audit;
mod build_queue;
mod builder_config;
pub mod check;
mod compile;
mod compiler_run;
mod confined_command;
mod debug_info;
#[cfg(test)]
mod debug_info_tests;
mod denied;
mod diagnostic;
pub mod editor_project;
mod embedded;
mod extension_template;
#[cfg(test)]
mod hostile_tests;
mod launcher;
pub mod limits;
mod manifest;
#[cfg(test)]
mod module_tests;
mod mounts;
pub mod offline;
#[cfg(test)]
mod ordinary_tests;
mod pipeline;
mod priority;
mod process;
mod process_tree;
pub mod protocol;
mod pushed_code;
mod remote;
mod rustc;
mod sandbox;
#[cfg(test)]
mod sandbox_tests;
mod sandboxed;
mod scratch;
mod signing_key;
mod supervise;
mod sysroot;
pub mod test_build;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tier_tests;
pub mod token_file;
mod typed;
#[cfg(test)]
mod variant_tests;
mod wasm_module;

pub use artifact::{Artifact, ArtifactError, ArtifactHeader, ArtifactRequirements};
pub use build_queue::{BuildPermit, BuildQueue, QueueRefusal, QueueTicket};
pub use builder_config::BuilderConfig;
pub use check::check;
#[cfg(any(test, feature = "testing"))]
pub use compile::build_library_unchecked;
pub use compile::{BuiltLibrary, build_library, compile};
pub use compiler_run::CompileJob;
pub use denied::shapes::{SHAPES, SyntaxShape};
pub use denied::{DeniedPattern, is_checker_rule};
pub use diagnostic::{Diagnostic, Severity};
pub use embedded::{api_fingerprint, checker_fingerprint};
pub use extension_template::{ExtensionTemplate, TEMPLATES, TemplateTable};
pub use launcher::{CompilerLauncher, ConfinementOptions};
pub use limits::CompileLimits;
pub use manifest::{MANIFEST_FILE, Manifest, ManifestTrigger, PushedSource, ROOT_FILE, SourceFile};
pub use pipeline::InProcessBuilder;
pub use process::{BuilderHandle, process_mode, run_process};
pub use pushed_code::{PushedCode, PushedModule};
pub use remote::{NOT_TLS_CODE, RemoteBuilder, RemoteCertificate, RemoteConfig};
pub use rustc::{CompilerSearch, MODULE_TARGET, Rustc};
pub use sandbox::sandbox_exec;
pub use sandboxed::{build_sandboxed, build_translation, build_uploaded_module};
#[cfg(any(test, feature = "testing"))]
pub use sandboxed::{build_sandboxed_unchecked, build_sandboxed_unsafe};
pub use scratch::ScratchDir;
pub use signing_key::{BuilderKey, KEY_FILE, PublicKey, prepare_folder};
pub use sysroot::{Toolchain, ToolchainConfig, VettedLibrary};
pub use token_file::TOKEN_FILE;
pub use typed::schema_of;
pub use wasm_module::{BuiltModule, build_module};

use serde::{Deserialize, Serialize};

/// The reason why a source was not built.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "detail")]
pub enum BuildError {
    /// The checker refuses the source.
    #[error("refused:\n{}", rendered(.0))]
    Refused(Vec<Diagnostic>),
    /// The compiler refuses it.
    #[error("does not compile:\n{}", rendered(.0))]
    Compile(Vec<Diagnostic>),
    /// Compiling it exceeds a limit.
    #[error("too expensive to compile: {0}")]
    Limit(String),
    /// The machine had no time for it; the source is not at fault.
    #[error("the machine was too busy to compile: {0}")]
    Busy(String),
    /// There is no usable compiler.
    #[error("{0}")]
    Toolchain(String),
    /// The compiler cannot be confined.
    #[error("{0}")]
    Sandbox(String),
    /// The builder failed; the source is not at fault.
    #[error("the builder failed: {0}")]
    Internal(String),
}

impl BuildError {
    /// The messages about the source, if it is at fault.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        match self {
            BuildError::Refused(diagnostics) | BuildError::Compile(diagnostics) => diagnostics,
            _ => &[],
        }
    }

    pub(crate) fn io(what: &str, error: std::io::Error) -> BuildError {
        BuildError::Internal(format!("{what}: {error}"))
    }
}

fn rendered(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(|diagnostic| diagnostic.rendered.as_str()).collect()
}
