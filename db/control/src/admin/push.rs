//! A push: makes a loaded extension from source, or from an artifact that was signed elsewhere. Blocks while the
//! compiler works.

use std::sync::Arc;
use std::time::Instant;

use super::error::ApiError;
use super::library_loader::{LibraryLoader, load_library};
use super::types::{PushRequest, PushResponse};
use super::version_history::VersionMetadata;
use super::{ControlState, now_ms};
use sandstorm_builder::protocol::BuildRequest;
use sandstorm_builder::{
    Artifact, BuildError, BuilderHandle, Diagnostic, InProcessBuilder, PublicKey, PushedSource, RemoteBuilder,
    VerifyError,
};
use sandstorm_catalog::{DirectoryError, TenantView};
use sandstorm_extension::{BudgetOverride, LoadError, LoadedExtension};
use sandstorm_net::CodeTier;

/// Makes a signed library from a source: the builder's processes, a builder in this process, or one on another host.
pub trait ArtifactBuilder: Send + Sync {
    /// Checks, compiles and signs for the tier that is asked for. Returns the compiler's warnings as well.
    ///
    /// # Errors
    /// The errors in the source, or the reason that it could not be compiled.
    fn build(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError>;

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

/// Builds and loads a push that the directory has admitted; `view` is the tenant at that time.
pub(super) fn push(
    control: &ControlState,
    view: &TenantView,
    name: &str,
    push: &PushRequest,
) -> Result<PushResponse, ApiError> {
    let started = Instant::now();
    let builder = control.artifact_sources.builder.as_ref().map_err(|reason| ApiError::no_builder(reason))?;
    tracing::info!(tenant = &*view.tenant.name, extension = name, "extension pushed");
    let source = PushedSource::new(&push.manifest, push.files.clone()).map_err(|error| ApiError::build(&error))?;
    if source.manifest.name != name {
        let message = format!("the manifest's name is {:?}, but {name:?} was pushed", source.manifest.name);
        return Err(ApiError::invalid(message).hint("push it under the name in extension.toml"));
    }
    let version = view.versions.next(name);
    let request = BuildRequest { tenant: view.tenant.id, version, source, tier: tier_of(view, name)? };
    let (artifact, diagnostics) = builder.build(&request).map_err(|error| {
        let (tier, remarks) = (request.tier.name(), error.diagnostics().len());
        tracing::info!(tenant = &*view.tenant.name, extension = name, version, tier, remarks, "extension not built");
        ApiError::build(&error)
    })?;
    verify_artifact(control, view, name, request.tier, &artifact).map_err(|error| match error {
        VerifyError::WrongKey => ApiError::no_builder("it signs with a key that this server does not trust")
            .hint("add what `sandstorm builder key` prints on its host to builder.trusted_keys"),
        error => ApiError::internal(format!("the builder's artifact: {error}")),
    })?;
    load_artifact(control, view, &artifact, &request.source.manifest.version, diagnostics, started)
}

/// Loads an artifact that a trusted builder has made elsewhere.
pub(super) fn upload(
    control: &ControlState,
    view: &TenantView,
    name: &str,
    bytes: &[u8],
) -> Result<PushResponse, ApiError> {
    let started = Instant::now();
    tracing::info!(tenant = &*view.tenant.name, extension = name, "extension pushed, built elsewhere");
    let tier = tier_of(view, name)?;
    let artifact = Artifact::decode(bytes).map_err(|error| ApiError::artifact(&error))?;
    verify_artifact(control, view, name, tier, &artifact).map_err(|error| ApiError::artifact(&error))?;
    load_artifact(control, view, &artifact, "", Vec::new(), started)
}

/// The tier in which the extension of that name runs.
fn tier_of(view: &TenantView, name: &str) -> Result<CodeTier, ApiError> {
    Ok(view.tier_of(name).ok_or_else(|| DirectoryError::NoCode(view.tenant.name.clone()))?)
}

/// Checks all that must be true before one byte of the library is mapped.
fn verify_artifact(
    control: &ControlState,
    view: &TenantView,
    name: &str,
    tier: CodeTier,
    artifact: &Artifact,
) -> Result<(), VerifyError> {
    let sources = &control.artifact_sources;
    artifact.verify(&sources.keys(), &sources.expected(view, name, tier, view.versions.highest(name)))
}

fn load_artifact(
    control: &ControlState,
    view: &TenantView,
    artifact: &Artifact,
    manifest_version: &str,
    diagnostics: Vec<Diagnostic>,
    started: Instant,
) -> Result<PushResponse, ApiError> {
    let library = (control.artifact_sources.loader)(artifact).map_err(|error| load_failure(&error))?;
    let header = &artifact.header;
    let extension = LoadedExtension::new(header.name.as_str(), header.version, library, BudgetOverride::default());
    let extension = Arc::new(extension.in_tier(header.tier));
    let about = VersionMetadata::of(artifact, manifest_version, now_ms());
    // The file is written before the directory publishes the extension: a restart looks for it.
    control.artifacts.keep(artifact).map_err(|error| ApiError::internal(error.to_string()))?;
    let shown = install_extension(control, view, extension, about).inspect_err(|_| {
        control.artifacts.forget(header.tenant, &header.name, header.version);
    })?;
    Ok(PushResponse {
        extension: shown,
        diagnostics,
        build_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

fn install_extension(
    control: &ControlState,
    view: &TenantView,
    extension: Arc<LoadedExtension>,
    about: VersionMetadata,
) -> Result<super::types::ExtensionResponse, ApiError> {
    let (id, name) = (view.tenant.id, &*extension.name);
    // While the compiler worked, the tenant may have been deleted, and another one created with its id.
    let same = |now: &Arc<TenantView>| Arc::ptr_eq(&now.tenant.usage, &view.tenant.usage);
    if !control.directory.snapshot().tenant(id).is_some_and(same) {
        return Err(ApiError::not_found(format!("tenant {:?} was deleted during the push", view.tenant.name)));
    }
    let before = view.versions.loaded().find(|(loaded, _)| *loaded == name).map(|(_, loaded)| loaded.version);
    let replaced =
        control.directory.load_extension(id, extension.clone(), &about.manifest_version, about.loaded_at_ms)?;
    if let Some(before) = before.filter(|before| *before != extension.version) {
        control.artifacts.forget(id, name, before);
    }
    control.history.loaded(id, &extension, about, replaced);
    let now = control.directory.snapshot();
    Ok(control.history.show(now.find(id)?, &extension))
}

fn load_failure(error: &LoadError) -> ApiError {
    match error {
        LoadError::Refused(_) | LoadError::TooLarge { .. } => {
            ApiError::build(&BuildError::Refused(vec![Diagnostic::plain(&error.to_string())]))
        }
        _ => ApiError::internal(error.to_string()),
    }
}
