//! The configuration of a builder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{BuildError, CompileLimits};

/// How a builder is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BuilderConfig {
    /// Folder for its key, its sysroot and the scratch files of builds.
    pub state: PathBuf,
    /// The rustc to use; `None`: the one on the path, or in `~/.cargo/bin`.
    pub rustc: Option<PathBuf>,
    /// The operator's own vetted libraries: package name -> folder of a `no_std` crate without dependencies.
    pub libraries: BTreeMap<String, PathBuf>,
    /// Whether compilers may run unconfined where the kernel offers no sandbox. Never for tenants that are not trusted.
    pub allow_unsandboxed: bool,
    /// The program that runs as `PROGRAM builder …`; `None`: this one.
    pub program: Option<PathBuf>,
    /// Patterns that native sources must not have, beside the checker's rules.
    pub deny: Vec<String>,
    /// What one compilation may use.
    pub limits: CompileLimits,
    /// Compilations that may run at the same time.
    pub compilers: usize,
    /// Processors that compilers keep to; empty: all.
    pub cores: Vec<usize>,
}

impl Default for BuilderConfig {
    fn default() -> BuilderConfig {
        BuilderConfig {
            state: PathBuf::from("sandstorm-builder"),
            rustc: None,
            libraries: BTreeMap::new(),
            allow_unsandboxed: false,
            program: None,
            deny: Vec::new(),
            limits: CompileLimits::default(),
            compilers: super::limits::default_compilers(),
            cores: Vec::new(),
        }
    }
}

impl BuilderConfig {
    /// The program whose `builder` modes are used.
    pub(super) fn program(&self) -> Result<PathBuf, BuildError> {
        match &self.program {
            Some(program) => Ok(program.clone()),
            None => std::env::current_exe().map_err(|error| BuildError::io("finding this program", error)),
        }
    }
}
