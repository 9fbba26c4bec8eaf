//! The builder's work in one process: check, compile, sign.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use parking_lot::Mutex;
use sandstorm_api::abi::ABI_VERSION;
use serde::{Deserialize, Serialize};

use super::artifact::{Artifact, ArtifactHeader};
use super::signing_key::{BuilderKey, PublicKey, prepare_folder};
use super::{
    BuildError, BuiltLibrary, CompileJob, CompileLimits, CompilerLauncher, Diagnostic, PushedSource, Toolchain,
    ToolchainConfig,
};
use super::{api_fingerprint, build_library, check, checker_fingerprint};

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

/// A line on standard error.
fn print_to_stderr(line: &str) {
    eprintln!("sandstorm: {line}");
}

/// A builder in this process.
#[derive(Debug)]
pub struct InProcessBuilder {
    toolchain: Toolchain,
    key: BuilderKey,
    job: CompileJob,
    built: Mutex<VecDeque<(u32, [u8; 32], BuiltLibrary)>>,
}

/// Libraries that are remembered, so that the same source pushed again is only signed again: a few seconds' worth of a
/// tenant that deploys to several names or goes back and forth.
const MAX_RECENT_BUILDS: usize = 8;

impl InProcessBuilder {
    /// Opens the state folder: finds the compiler, makes sysroot and key at the first start.
    ///
    /// # Errors
    /// `Toolchain` when there is no usable compiler, `Sandbox` when it cannot be confined, `Internal` for files.
    pub fn open(config: &BuilderConfig) -> Result<InProcessBuilder, BuildError> {
        InProcessBuilder::open_as(config, 0)
    }

    /// As [`InProcessBuilder::open`], the `number`th of several that share the state folder.
    pub(super) fn open_as(config: &BuilderConfig, number: usize) -> Result<InProcessBuilder, BuildError> {
        prepare_folder(&config.state)?;
        let (state, rustc, libraries) = (config.state.clone(), config.rustc.clone(), config.libraries.clone());
        // The server's own standard error, or that of `sandstorm builder`: nobody waits for its first start in the
        // dark.
        let said = Some(print_to_stderr as fn(&str));
        let toolchain = Toolchain::prepare(&ToolchainConfig { state, rustc, libraries, said })?;
        let key = BuilderKey::open(&config.state)?;
        let launcher = CompilerLauncher::for_config(config, number, &toolchain)?;
        let job = CompileJob { launcher, limits: config.limits };
        Ok(InProcessBuilder { toolchain, key, job, built: Mutex::default() })
    }

    /// Checks, compiles and signs a source; also returns the compiler's warnings.
    ///
    /// # Errors
    /// What is wrong with the source, or why it could not be compiled.
    pub fn build(
        &self,
        tenant: u32,
        version: u64,
        source: &PushedSource,
    ) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        source.validate()?;
        check::check(source, &self.toolchain.crate_names(source)?)?;
        let built = self.library(tenant, source)?;
        let header = ArtifactHeader {
            tenant,
            abi_version: ABI_VERSION,
            version,
            compiler: self.compiler(),
            api_fingerprint: api_fingerprint(),
            checker: checker_fingerprint(),
            source_digest: source.digest(),
            elf_digest: [0; 32],
            name: source.manifest.name.clone(),
        };
        Ok((Artifact::sign(&self.key, header, built.elf), built.warnings))
    }

    /// Compiles a checked source, unless this tenant's last builds were of the very same one. Only the tenant's own:
    /// the time that a push takes must not say what others have pushed. Compiler, API and libraries stay as they are
    /// for as long as this process runs.
    fn library(&self, tenant: u32, source: &PushedSource) -> Result<BuiltLibrary, BuildError> {
        let digest = source.digest();
        let known = |(whose, what, _): &&(u32, [u8; 32], BuiltLibrary)| *whose == tenant && *what == digest;
        if let Some((_, _, built)) = self.built.lock().iter().find(known) {
            return Ok(built.clone());
        }
        let built = build_library(&self.toolchain, source, &self.job)?;
        let mut remembered = self.built.lock();
        remembered.push_front((tenant, digest, built.clone()));
        remembered.truncate(MAX_RECENT_BUILDS);
        Ok(built)
    }

    /// The key that servers must trust.
    pub fn public_key(&self) -> PublicKey {
        self.key.public()
    }

    /// Fingerprint of the compiler.
    pub fn compiler(&self) -> u64 {
        self.toolchain.rustc.fingerprint()
    }

    /// How compilers are confined, for people.
    pub fn confinement(&self) -> String {
        self.job.launcher.in_words()
    }

    /// The compiler with its sysroot.
    pub fn toolchain(&self) -> &Toolchain {
        &self.toolchain
    }
}
