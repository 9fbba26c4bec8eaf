//! The sources of signed libraries: a builder, and the keys whose artifacts are accepted.

use std::sync::Arc;

use sandstorm_api::abi::ABI_VERSION;

use super::library_loader::{LibraryLoader, load_library};
use sandstorm_builder::protocol::BuildRequest;
use sandstorm_builder::{
    Artifact, ArtifactRequirements, BuildError, BuilderHandle, Diagnostic, InProcessBuilder, PublicKey, RemoteBuilder,
    api_fingerprint, checker_fingerprint,
};
use sandstorm_catalog::TenantView;
use sandstorm_net::CodeTier;

/// Makes a signed library from a source: the builder's processes, a builder in this process, or one on another host.
pub trait ArtifactBuilder: Send + Sync {
    /// Checks, compiles and signs for the tier that is asked for. Returns the compiler's warnings as well.
    ///
    /// # Errors
    /// The errors in the source, or the reason that it could not be compiled.
    fn build(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError>;

    /// Checks a native source, without compiling it.
    ///
    /// # Errors
    /// The errors in the source, or the reason that it could not be checked.
    fn check(&self, request: &BuildRequest) -> Result<(), BuildError>;

    /// The key that signs, if the server trusts it without configuration.
    fn key(&self) -> Option<PublicKey>;

    /// The fingerprint of the compiler, if it is known.
    fn compiler(&self) -> Option<u64>;

    /// The compiler's version, for people.
    fn release(&self) -> String;

    /// Builds that may run at the same time.
    fn slots(&self) -> usize {
        1
    }
}

impl ArtifactBuilder for BuilderHandle {
    fn build(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        self.answer(request)
    }

    fn check(&self, request: &BuildRequest) -> Result<(), BuildError> {
        BuilderHandle::check(self, request)
    }

    fn key(&self) -> Option<PublicKey> {
        Some(self.public_key())
    }

    fn compiler(&self) -> Option<u64> {
        Some(BuilderHandle::compiler(self))
    }

    fn release(&self) -> String {
        format!("{}; {}", BuilderHandle::release(self), self.confinement())
    }

    fn slots(&self) -> usize {
        BuilderHandle::slots(self)
    }
}

impl ArtifactBuilder for InProcessBuilder {
    fn build(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        self.answer(request)
    }

    fn check(&self, request: &BuildRequest) -> Result<(), BuildError> {
        InProcessBuilder::check(self, request)
    }

    fn key(&self) -> Option<PublicKey> {
        Some(self.public_key())
    }

    fn compiler(&self) -> Option<u64> {
        Some(InProcessBuilder::compiler(self))
    }

    fn release(&self) -> String {
        self.toolchain().rustc.release.clone()
    }
}

impl ArtifactBuilder for RemoteBuilder {
    fn build(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        self.answer(request)
    }

    fn check(&self, request: &BuildRequest) -> Result<(), BuildError> {
        RemoteBuilder::check(self, request)
    }

    fn key(&self) -> Option<PublicKey> {
        None
    }

    fn compiler(&self) -> Option<u64> {
        RemoteBuilder::compiler(self).map(|(fingerprint, _)| fingerprint)
    }

    fn release(&self) -> String {
        RemoteBuilder::compiler(self)
            .map_or_else(|| "unreachable".to_owned(), |(_, release)| format!("remote {release}"))
    }

    fn slots(&self) -> usize {
        RemoteBuilder::slots(self)
    }
}

/// The sources of libraries.
pub struct ArtifactSources {
    /// The builder, or the reason that there is none.
    pub builder: Result<Arc<dyn ArtifactBuilder>, String>,
    /// Keys of other hosts' builders whose artifacts are loaded too.
    pub trusted_keys: Vec<PublicKey>,
    /// The key of this server's own builder if it was not started: artifacts that it has signed are still loaded.
    pub own_key: Option<PublicKey>,
    /// Maps the libraries of verified artifacts.
    pub loader: LibraryLoader,
}

impl From<Result<Arc<dyn ArtifactBuilder>, String>> for ArtifactSources {
    fn from(builder: Result<Arc<dyn ArtifactBuilder>, String>) -> ArtifactSources {
        ArtifactSources { builder, trusted_keys: Vec::new(), own_key: None, loader: load_library }
    }
}

impl ArtifactSources {
    /// The keys whose artifacts are loaded.
    pub(super) fn keys(&self) -> Vec<sandstorm_builder::PublicKey> {
        let own = self.builder.as_ref().ok().and_then(|builder| builder.key());
        own.iter().chain(&self.own_key).chain(&self.trusted_keys).copied().collect()
    }

    /// The requirements on an artifact of that name and tier for a tenant, whose highest version so far is `highest`.
    pub(super) fn expected(
        &self,
        view: &TenantView,
        name: &str,
        tier: CodeTier,
        highest: Option<u64>,
    ) -> ArtifactRequirements {
        ArtifactRequirements {
            tenant: view.tenant.id,
            name: name.to_owned(),
            tier,
            compiler: self.builder.as_ref().ok().and_then(|builder| builder.compiler()),
            api_fingerprint: api_fingerprint(),
            checker: checker_fingerprint(),
            abi_version: ABI_VERSION,
            highest,
        }
    }
}
