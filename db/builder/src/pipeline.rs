//! The builder's work in one process: check, compile, sign.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use sandstorm_api::abi::ABI_VERSION;
use sandstorm_net::CodeTier;

use super::artifact::{Artifact, ArtifactHeader};
use super::builder_config::BuilderConfig;
use super::denied::check_denied;
use super::protocol::BuildRequest;
use super::signing_key::{BuilderKey, PublicKey, prepare_folder};
use super::{
    BuildError, BuiltLibrary, CompileJob, CompilerLauncher, Diagnostic, PushedCode, Toolchain, ToolchainConfig,
};
use super::{
    api_fingerprint, build_library, build_sandboxed, build_uploaded_module, check, checker_fingerprint, schema_of,
};

/// Prints a line to standard error.
fn print_to_stderr(line: &str) {
    eprintln!("sandstorm: {line}");
}

/// A builder in this process.
#[derive(Debug)]
pub struct InProcessBuilder {
    toolchain: Toolchain,
    key: BuilderKey,
    job: CompileJob,
    deny: Vec<String>,
    built: Mutex<VecDeque<RecentBuild>>,
}

/// A library that was built a moment ago, its tenant, and its source.
#[derive(Debug)]
struct RecentBuild {
    tenant: u32,
    source_digest: [u8; 32],
    tier: CodeTier,
    library: BuiltLibrary,
}

/// Libraries that are remembered, so that the same source pushed again is only signed again. This covers a few seconds
/// of a tenant that deploys to several names or goes back and forth.
const MAX_RECENT_BUILDS: usize = 8;

impl InProcessBuilder {
    /// Opens the state folder: finds the compiler, makes sysroot and key at the first start.
    ///
    /// # Errors
    /// `Toolchain` when there is no usable compiler, `Sandbox` when it cannot be confined, `Internal` for files.
    pub fn open(config: &BuilderConfig) -> Result<InProcessBuilder, BuildError> {
        InProcessBuilder::open_as(config, 0)
    }

    /// As [`InProcessBuilder::open`], as the `number`th of several that share the state folder.
    pub(super) fn open_as(config: &BuilderConfig, number: usize) -> Result<InProcessBuilder, BuildError> {
        prepare_folder(&config.state)?;
        let (state, rustc, libraries) = (config.state.clone(), config.rustc.clone(), config.libraries.clone());
        // The server's own standard error, or that of `sandstorm builder`: the operator sees why the first start takes
        // time.
        let said = Some(print_to_stderr as fn(&str));
        let toolchain = Toolchain::prepare(&ToolchainConfig { state, rustc, libraries, said })?;
        let key = BuilderKey::open(&config.state)?;
        let launcher = CompilerLauncher::for_config(config, number, &toolchain)?;
        let job = CompileJob { launcher, limits: config.limits };
        Ok(InProcessBuilder { toolchain, key, job, deny: config.deny.clone(), built: Mutex::default() })
    }

    /// Checks, compiles and signs a source or a module for that tier; also returns the compiler's warnings.
    ///
    /// # Errors
    /// The errors of the source or the module, or the reason why it could not be compiled.
    pub fn build(
        &self,
        tenant: u32,
        version: u64,
        source: impl Into<PushedCode>,
        tier: CodeTier,
    ) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        let (source, denied) = (source.into(), Vec::new());
        self.answer(&BuildRequest { tenant, version, source, tier, denied, check_only: false })
    }

    /// As [`InProcessBuilder::build`], for a request as servers send it.
    ///
    /// # Errors
    /// As for [`InProcessBuilder::build`].
    pub fn answer(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        let BuildRequest { tenant, version, source, tier, .. } = request;
        self.check(request)?;
        let built = self.library(*tenant, source, *tier)?;
        let header = ArtifactHeader {
            tenant: *tenant,
            abi_version: ABI_VERSION,
            version: *version,
            compiler: self.compiler(),
            api_fingerprint: api_fingerprint(),
            checker: checker_fingerprint(),
            source_digest: source.digest(),
            elf_digest: [0; 32],
            tier: *tier,
            origin: source.origin(),
            name: source.name().to_owned(),
            schema: match source {
                PushedCode::Source(source) => schema_of(source)?.map(Arc::new),
                PushedCode::Module(_) => None,
            },
        };
        Ok((Artifact::sign(&self.key, header, built.elf), built.warnings))
    }

    /// Checks a source or a module without compiling it: by the checker's rules, and for what is denied.
    ///
    /// # Errors
    /// The errors of the source or the module.
    pub fn check(&self, request: &BuildRequest) -> Result<(), BuildError> {
        let source = match &request.source {
            PushedCode::Source(source) => source,
            PushedCode::Module(_) if request.tier != CodeTier::Sandboxed => {
                return Err(BuildError::Refused(vec![Diagnostic::plain(
                    "it is a WebAssembly module, which runs in the sandboxed tier and no other",
                )]));
            }
            PushedCode::Module(module) => return module.validate(),
        };
        source.validate()?;
        let libraries = self.toolchain.crate_names(source)?;
        check::check(source, &libraries, request.tier)?;
        match request.tier {
            // What is denied are shapes by which native code escapes.
            CodeTier::Sandboxed => Ok(()),
            CodeTier::Native => check_denied(source, &[&self.deny[..], &request.denied].concat()),
        }
    }

    /// Compiles what was checked, unless it is one of this tenant's last builds for that tier. Builds of other tenants
    /// do not count: the duration of a push must not reveal what they have pushed. Compiler, API and libraries stay the
    /// same for as long as this process runs.
    fn library(&self, tenant: u32, source: &PushedCode, tier: CodeTier) -> Result<BuiltLibrary, BuildError> {
        let source_digest = source.digest();
        let known =
            |recent: &&RecentBuild| (recent.tenant, recent.source_digest, recent.tier) == (tenant, source_digest, tier);
        if let Some(recent) = self.built.lock().iter().find(known) {
            return Ok(recent.library.clone());
        }
        let library = match (source, tier) {
            (PushedCode::Source(source), CodeTier::Native) => build_library(&self.toolchain, source, &self.job)?,
            (PushedCode::Source(source), CodeTier::Sandboxed) => build_sandboxed(&self.toolchain, source, &self.job)?,
            (PushedCode::Module(module), _) => build_uploaded_module(&self.toolchain, &module.wasm, &self.job)?,
        };
        let mut remembered = self.built.lock();
        remembered.push_front(RecentBuild { tenant, source_digest, tier, library: library.clone() });
        remembered.truncate(MAX_RECENT_BUILDS);
        Ok(library)
    }

    /// Compiles a source for the sandboxed tier that no checker has seen and that may contain unsafe code; returns the
    /// image.
    ///
    /// # Errors
    /// As for [`InProcessBuilder::build`].
    #[cfg(any(test, feature = "testing"))]
    pub fn build_unsafe(&self, source: &super::PushedSource) -> Result<Vec<u8>, BuildError> {
        super::build_sandboxed_unsafe(&self.toolchain, source, &self.job).map(|built| built.elf)
    }

    /// The public key that servers must trust.
    pub fn public_key(&self) -> PublicKey {
        self.key.public()
    }

    /// Fingerprint of the compiler.
    pub fn compiler(&self) -> u64 {
        self.toolchain.rustc.fingerprint()
    }

    /// Describes the confinement of compilers for people.
    pub fn confinement(&self) -> String {
        self.job.launcher.in_words()
    }

    /// The compiler with its sysroot.
    pub fn toolchain(&self) -> &Toolchain {
        &self.toolchain
    }
}
