//! A push: makes a loaded extension from source, or from an artifact that was signed elsewhere. Blocks while the
//! compiler works.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;

use super::artifact_builder::ArtifactBuilder;
use super::error::ApiError;
use super::event_scribe::PushSource;
use super::types::{PushRequest, PushResponse};
use super::version_history::VersionMetadata;
use super::{ControlState, catalogue, now_ms, triggers};
use crate::triggers::TriggerDefinition;
use sandstorm_builder::protocol::BuildRequest;
use sandstorm_builder::{Artifact, ArtifactError, BuildError, Diagnostic, PushedCode, PushedModule, PushedSource};
use sandstorm_catalog::{DirectoryError, TenantView};
use sandstorm_extension::{BudgetOverride, LoadError, LoadedExtension};
use sandstorm_net::{CodeOrigin, CodeTier};

/// Builds and loads a push that the directory has admitted; `view` is the tenant at that time.
pub(super) fn push(
    control: &ControlState,
    view: &TenantView,
    (name, staged): (&str, bool),
    (push, by): (&PushRequest, PushSource),
) -> Result<PushResponse, ApiError> {
    let started = Instant::now();
    let refused = |error| ApiError::build(&error, CodeOrigin::Source);
    find_builder(control)?;
    let source = PushedSource::new(&push.manifest, push.files.clone()).map_err(refused)?;
    if source.manifest.name != name {
        let message = format!("the manifest's name is {:?}, but {name:?} was pushed", source.manifest.name);
        return Err(ApiError::invalid(message).hint("push it under the name in extension.toml"));
    }
    let declared: Vec<TriggerDefinition> =
        source.manifest.triggers.iter().map(|one| triggers::declared(name, one)).collect::<Result<_, _>>()?;
    control.check_declared(view, &declared)?;
    let mut pushed = build(control, view, (source.into(), staged), (&declared, started))?;
    if !staged {
        control.declare_triggers(view, declared, by)?;
        pushed.diagnostics.extend(control.unfit_triggers(view.tenant.id, name));
    }
    Ok(pushed)
}

/// Builds and loads a WebAssembly module that was made elsewhere. It runs in the sandboxed tier.
pub(super) fn push_module(
    control: &ControlState,
    view: &TenantView,
    (name, staged): (&str, bool),
    wasm: &[u8],
) -> Result<PushResponse, ApiError> {
    let started = Instant::now();
    let refused = |error| ApiError::build(&error, CodeOrigin::Module);
    find_builder(control)?;
    let module = PushedModule::new(name, wasm.to_vec()).map_err(refused)?;
    build(control, view, (module.into(), staged), (&[], started))
}

fn find_builder(control: &ControlState) -> Result<&Arc<dyn ArtifactBuilder>, ApiError> {
    control.artifact_sources.builder.as_ref().map_err(|reason| ApiError::no_builder(reason))
}

fn build(
    control: &ControlState,
    view: &TenantView,
    (source, staged): (PushedCode, bool),
    (declared, started): (&[TriggerDefinition], Instant),
) -> Result<PushResponse, ApiError> {
    let (name, origin) = (source.name().to_owned(), source.origin());
    let name = name.as_str();
    let builder = find_builder(control)?;
    tracing::info!(tenant = &*view.tenant.name, extension = name, ?origin, "extension pushed");
    let version = reserve_version(control, view, name, view.versions.next(name))?;
    let (tenant, tier, denied) = (view.tenant.id, tier_for(view, name, origin)?, control.deny.all());
    let mut request = BuildRequest { tenant, version, source, tier, denied, check_only: false };
    let not_built = |error: BuildError| {
        let (tier, remarks) = (tier.name(), error.diagnostics().len());
        tracing::info!(tenant = &*view.tenant.name, extension = name, version, tier, remarks, "extension not built");
        ApiError::build(&error, origin)
    };
    let (artifact, diagnostics) = builder.build(&request).map_err(not_built)?;
    verify_artifact(control, view, name, request.tier, &artifact).map_err(|error| match error {
        ArtifactError::WrongKey => ApiError::no_builder("it signs with a key that this server does not trust")
            .hint("add what `sandstorm builder key` prints on its host to builder.trusted_keys"),
        error => ApiError::internal(format!("the builder's artifact: {error}")),
    })?;
    triggers::check_built(artifact.header.schema.as_deref(), declared)?;
    let load = |source: &PushedCode| {
        load_artifact(control, view, (&artifact, staged), Some(source), diagnostics.clone(), started)
    };
    if tier == CodeTier::Sandboxed {
        return load(&request.source);
    }
    loop {
        if let Some(loaded) = control.deny.while_unchanged(&request.denied, || load(&request.source)) {
            return loaded;
        }
        // The operator has denied something while the compiler worked.
        request.denied = control.deny.all();
        builder.check(&request).map_err(not_built)?;
    }
}

/// Loads an artifact that a trusted builder has made elsewhere.
pub(super) fn upload(
    control: &ControlState,
    view: &TenantView,
    (name, staged): (&str, bool),
    bytes: &[u8],
) -> Result<PushResponse, ApiError> {
    let started = Instant::now();
    tracing::info!(tenant = &*view.tenant.name, extension = name, "extension pushed, built elsewhere");
    let artifact = Artifact::decode(bytes).map_err(|error| ApiError::artifact(&error))?;
    let tier = tier_for(view, name, artifact.header.origin)?;
    verify_artifact(control, view, name, tier, &artifact).map_err(|error| ApiError::artifact(&error))?;
    let version = artifact.header.version;
    if reserve_version(control, view, name, version)? != version {
        let text = format!("version {version} of {name:?} was given to another push, at this server or another one");
        return Err(ApiError::new(StatusCode::CONFLICT, "exists", text).hint("build it with a higher version"));
    }
    let load = || load_artifact(control, view, (&artifact, staged), None, Vec::new(), started);
    if tier == CodeTier::Sandboxed {
        return load();
    }
    control.deny.while_unchanged(&[], load).unwrap_or_else(|| {
        let text = "the artifact has no source in which one could look for what is denied to native code";
        Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "artifact_unchecked", text)
            .hint("push the source; `sandstorm ext revoke --list` shows what is denied"))
    })
}

/// The number of the version that a push makes: in a cluster one that no other server is given.
fn reserve_version(control: &ControlState, view: &TenantView, name: &str, least: u64) -> Result<u64, ApiError> {
    let reserved = control.artifacts.shared().reserve_version(view.tenant.id, name, least);
    reserved.map_err(|why| DirectoryError::NoAgreement(why).into())
}

/// The tier in which an extension of that name and origin runs.
fn tier_for(view: &TenantView, name: &str, origin: CodeOrigin) -> Result<CodeTier, ApiError> {
    Ok(view.tier_for(name, origin).ok_or_else(|| DirectoryError::NoCode(view.tenant.name.clone()))?)
}

/// Checks all that must be true before one byte of the library is mapped.
fn verify_artifact(
    control: &ControlState,
    view: &TenantView,
    name: &str,
    tier: CodeTier,
    artifact: &Artifact,
) -> Result<(), ArtifactError> {
    let sources = &control.artifact_sources;
    artifact.verify(&sources.keys(), &sources.expected(view, name, tier, view.versions.highest(name)))
}

fn load_artifact(
    control: &ControlState,
    view: &TenantView,
    (artifact, staged): (&Artifact, bool),
    source: Option<&PushedCode>,
    diagnostics: Vec<Diagnostic>,
    started: Instant,
) -> Result<PushResponse, ApiError> {
    let header = &artifact.header;
    let library = (control.artifact_sources.loader)(artifact).map_err(|error| load_failure(&error, header.origin))?;
    let extension = LoadedExtension::new(header.name.as_str(), header.version, library, BudgetOverride::default());
    let extension = Arc::new(extension.in_tier(header.tier).made_from(header.origin));
    check_memory(view, &extension)?;
    let manifest_version = source.map_or("", PushedCode::manifest_version);
    let about = VersionMetadata::of(artifact, manifest_version, now_ms(), source.is_some());
    // The files are written before the directory publishes the extension: a restart looks for them.
    control.artifacts.keep(artifact, source).map_err(|error| ApiError::not_kept(error.to_string()))?;
    let shown = install_extension(control, view, (extension, staged), about).inspect_err(|error| {
        // Where no answer has come, the other servers may have the version; the next start removes unnamed ones.
        if !(error.is_unavailable() && control.directory.is_agreed()) {
            control.artifacts.forget(header.tenant, &header.name, header.version);
        }
    })?;
    Ok(PushResponse {
        extension: shown,
        version: header.version,
        diagnostics,
        build_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

fn install_extension(
    control: &ControlState,
    view: &TenantView,
    (extension, staged): (Arc<LoadedExtension>, bool),
    about: VersionMetadata,
) -> Result<super::types::ExtensionResponse, ApiError> {
    let (id, name) = (view.tenant.id, &*extension.name);
    // While the compiler worked, the tenant may have been deleted, and another one created with its id.
    let same = |now: &Arc<TenantView>| Arc::ptr_eq(&now.tenant.usage, &view.tenant.usage);
    if !control.directory.snapshot().tenant(id).is_some_and(same) {
        return Err(ApiError::not_found(format!("tenant {:?} was deleted during the push", view.tenant.name)));
    }
    let before = control.directory.snapshot().find(id)?.clone();
    let (manifest_version, loaded_at_ms) = (about.manifest_version.clone(), about.loaded_at_ms);
    if staged {
        control.directory.stage_version(id, extension.clone(), &manifest_version, loaded_at_ms)?;
        control.history.kept(id, &extension, about);
    } else {
        let replaced = control.directory.load_extension(id, extension.clone(), &manifest_version, loaded_at_ms)?;
        control.history.loaded(id, &extension, about, replaced);
        catalogue::follow(control, id, name);
    }
    let now = control.directory.snapshot().find(id)?.clone();
    control.artifacts.forget_dropped(name, &before, &control.directory.snapshot());
    let current = now.extension(name).map_or(&*extension, |current| &**current);
    Ok(control.history.show_in_full(&now, current))
}

/// Refuses a module from elsewhere none of whose calls could begin.
fn check_memory(view: &TenantView, extension: &LoadedExtension) -> Result<(), ApiError> {
    let allowed = view.budget(extension).memory_bytes;
    match extension.library.module().map(|module| module.layout().memory_bytes as usize) {
        Some(found) if extension.origin == CodeOrigin::Module && found > allowed => {
            let message = format!(
                "the module has {found} bytes of memory at the start: a call may have {allowed} (arena_bytes), arguments \
                 included"
            );
            let refused = ApiError::build(&BuildError::Refused(vec![Diagnostic::plain(&message)]), extension.origin);
            Err(refused
                .hint("link it with less memory, or have the operator raise arena_bytes of the tenant or extension"))
        }
        _ => Ok(()),
    }
}

fn load_failure(error: &LoadError, origin: CodeOrigin) -> ApiError {
    match error {
        LoadError::Refused(_) | LoadError::TooLarge { .. } => {
            ApiError::build(&BuildError::Refused(vec![Diagnostic::plain(&error.to_string())]), origin)
        }
        _ => ApiError::internal(error.to_string()),
    }
}
