//! What a rebuild does with one extension. Blocks while the compiler works.

use std::sync::Arc;

use super::super::types::{RebuildResult, RebuiltExtensionResponse};
use super::super::version_history::VersionMetadata;
use super::super::{ControlState, now_ms};
use crate::limits::{REBUILD_ATTEMPTS, REBUILD_PAUSE};
use sandstorm_accounts::{PolicyEvent, TenantUsage};
use sandstorm_builder::protocol::BuildRequest;
use sandstorm_builder::{Artifact, BuildError, PushedCode};
use sandstorm_catalog::{DirectoryError, LoadedVersion, Suspension, TenantView};
use sandstorm_extension::{BudgetOverride, LoadedExtension};
use sandstorm_net::CodeTier;

/// The reason that an extension is not brought to its tier.
enum StepFailure {
    /// It was unloaded or replaced meanwhile.
    Gone,
    /// It cannot be: the rest of a sentence.
    Refused(String),
}

/// An extension, as it is at the beginning of a step.
struct RebuildStep<'a> {
    control: &'a ControlState,
    view: &'a TenantView,
    name: &'a str,
    loaded: &'a LoadedVersion,
}

/// Brings an extension to the tier in which it has to run; suspends it if that cannot be. `None`: there is no such
/// extension any more, or no such tenant.
pub(super) fn rebuild(
    control: &ControlState,
    tenant: u32,
    usage: &Arc<TenantUsage>,
    name: &str,
) -> Option<RebuiltExtensionResponse> {
    let snapshot = control.directory.snapshot();
    let view = snapshot.tenant(tenant).filter(|view| Arc::ptr_eq(&view.tenant.usage, usage))?;
    let (_, loaded) = view.versions.loaded().find(|(loaded, _)| *loaded == name)?;
    let Some(tier) = view.tier_of(name) else { return Some(refused_by_policy(view, name, loaded)) };
    let step = RebuildStep { control, view, name, loaded };
    match step.bring_to(tier) {
        Ok(result) => Some(step.response(result, tier, String::new())),
        Err(StepFailure::Gone) => None,
        Err(StepFailure::Refused(why)) => Some(step.suspend(tier, &why)),
    }
}

/// The result for an extension of a tenant that may have no code.
pub(super) fn refused_by_policy(view: &TenantView, name: &str, loaded: &LoadedVersion) -> RebuiltExtensionResponse {
    RebuiltExtensionResponse {
        tenant: view.tenant.name.clone(),
        extension: name.to_owned(),
        version: loaded.version,
        result: RebuildResult::Suspended,
        tier: None,
        text: "the tenant's code policy is none".to_owned(),
    }
}

/// The result for what is there no more.
pub(super) fn gone(tenant: &str, name: &str) -> RebuiltExtensionResponse {
    let (tenant, extension, text) = (tenant.to_owned(), name.to_owned(), String::new());
    RebuiltExtensionResponse { tenant, extension, version: 0, result: RebuildResult::Gone, tier: None, text }
}

/// Suspends an extension after a panic here, which is a bug: it may be in a tier that the policy does not allow.
pub(super) fn suspend_after_panic(
    control: &ControlState,
    tenant: u32,
    tenant_name: &str,
    name: &str,
) -> RebuiltExtensionResponse {
    let snapshot = control.directory.snapshot();
    let view = snapshot.tenant(tenant);
    let found = view.and_then(|view| Some((view, view.versions.loaded().find(|(loaded, _)| *loaded == name)?.1)));
    match found {
        Some((view, loaded)) => {
            let tier = view.tier_of(name).unwrap_or_default();
            RebuildStep { control, view, name, loaded }.suspend(tier, "the server failed to build it; see its log")
        }
        None => gone(tenant_name, name),
    }
}

impl RebuildStep<'_> {
    /// Has the extension run in that tier, which is the one that the directory asks for.
    fn bring_to(&self, tier: CodeTier) -> Result<RebuildResult, StepFailure> {
        let is_wanted =
            |current: &&Arc<LoadedExtension>| (current.version, current.tier) == (self.loaded.version, tier);
        if self.view.extension(self.name).filter(is_wanted).is_some() {
            self.control.directory.lift_until_replaced(self.view.tenant.id, self.name)?;
            return Ok(RebuildResult::Unchanged);
        }
        let sources = &self.control.artifact_sources;
        if let Ok(found) = self.control.artifacts.reload_one(self.view, self.name, self.loaded, sources) {
            self.install(found.extension, found.about)?;
            return Ok(RebuildResult::Rebuilt);
        }
        let source = self.source()?;
        let artifact = self.build(source, tier)?;
        let highest = self.loaded.version.checked_sub(1);
        let expected = sources.expected(self.view, self.name, tier, highest);
        let verified = artifact.verify(&sources.keys(), &expected);
        verified.map_err(|error| refused(&format!("the builder's artifact: {error}")))?;
        if artifact.header.version != self.loaded.version {
            return Err(refused(&"the builder's artifact is of another version"));
        }
        let library = (sources.loader)(&artifact).map_err(|error| refused(&error))?;
        let extension = LoadedExtension::new(self.name, self.loaded.version, library, BudgetOverride::default());
        let manifest_version = &self.loaded.manifest_version;
        let about = VersionMetadata::of(&artifact, manifest_version, self.loaded.loaded_at_ms, true);
        // The file is written before the directory publishes the extension. If that fails, the next start finds it.
        self.control.artifacts.keep(&artifact, None).map_err(|error| refused(&error))?;
        self.install(Arc::new(extension.in_tier(tier).made_from(artifact.header.origin)), about)?;
        Ok(RebuildResult::Rebuilt)
    }

    /// The kept source.
    fn source(&self) -> Result<PushedCode, StepFailure> {
        let read = self.control.artifacts.sources().read(self.view.tenant.id, self.name, self.loaded.version);
        read.map_err(|why| refused(&why))?.ok_or_else(|| {
            refused(&"its source is not kept: it was uploaded as an artifact, or pushed to an earlier version of the server")
        })
    }

    /// Builds the source, and tries again while the machine is too busy.
    fn build(&self, source: PushedCode, tier: CodeTier) -> Result<Artifact, StepFailure> {
        let builder = self.control.artifact_sources.builder.as_ref();
        let builder = builder.map_err(|reason| refused(&format!("there is no builder: {reason}")))?;
        let request = BuildRequest { tenant: self.view.tenant.id, version: self.loaded.version, source, tier };
        for _ in 1..REBUILD_ATTEMPTS {
            match builder.build(&request) {
                Err(BuildError::Busy(_)) => std::thread::sleep(REBUILD_PAUSE),
                built => return built.map(|(artifact, _)| artifact).map_err(|error| refused(&describe(&error))),
            }
        }
        builder.build(&request).map(|(artifact, _)| artifact).map_err(|error| refused(&describe(&error)))
    }

    /// Loads the version in place of the one that is there.
    fn install(&self, extension: Arc<LoadedExtension>, about: VersionMetadata) -> Result<(), StepFailure> {
        let id = self.view.tenant.id;
        let replaced = self.control.directory.reinstall_extension(id, extension.clone())?;
        self.control.history.loaded(id, &extension, about, replaced);
        let text = format!("it runs in the {} tier, built from its kept source", extension.tier);
        self.record("moved", text);
        Ok(())
    }

    /// Suspends the extension, whether or not that can be written.
    fn suspend(&self, tier: CodeTier, why: &str) -> RebuiltExtensionResponse {
        let text = format!("it does not run in the {tier} tier: {why}");
        let suspension = Suspension::until_replaced(now_ms(), &text);
        let suspended = self.control.directory.suspend_by_policy(self.view.tenant.id, self.name, suspension);
        let (result, what) = match suspended {
            Ok(()) => (RebuildResult::Suspended, "suspended"),
            // It was left out by a restart: there is nothing to call.
            Err(_) => (RebuildResult::NotLoaded, "left out"),
        };
        let (tenant, extension, version) = (&*self.view.tenant.name, self.name, self.loaded.version);
        tracing::warn!(tenant, extension, version, "extension {what}: {text}");
        self.record(what, text.clone());
        self.response(result, tier, text)
    }

    /// Notes for the tenant what the server did.
    fn record(&self, what: &'static str, text: String) {
        self.view.tenant.usage.record_policy_event(PolicyEvent {
            extension: self.name.to_owned(),
            version: self.loaded.version,
            what,
            at_ms: now_ms(),
            text,
        });
    }

    fn response(&self, result: RebuildResult, tier: CodeTier, text: String) -> RebuiltExtensionResponse {
        RebuiltExtensionResponse {
            tenant: self.view.tenant.name.clone(),
            extension: self.name.to_owned(),
            version: self.loaded.version,
            result,
            tier: Some(tier),
            text,
        }
    }
}

impl From<DirectoryError> for StepFailure {
    fn from(error: DirectoryError) -> StepFailure {
        match error {
            DirectoryError::UnknownTenant(_)
            | DirectoryError::UnknownExtension { .. }
            | DirectoryError::OldVersion { .. } => StepFailure::Gone,
            error => refused(&error),
        }
    }
}

fn refused(why: &dyn std::fmt::Display) -> StepFailure {
    StepFailure::Refused(why.to_string())
}

/// The first remark about a source, and how many there are.
fn describe(error: &BuildError) -> String {
    let remarks = error.diagnostics();
    let Some(first) = remarks.first() else { return error.to_string() };
    let rule = first.rule.as_ref().map_or(String::new(), |rule| format!(" [{rule}]"));
    let more = match remarks.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let (file, line, column) = (&first.file, first.line, first.column);
    let place = if file.is_empty() { String::new() } else { format!("{file}:{line}:{column}: ") };
    let what = if matches!(error, BuildError::Refused(_)) { "the checker refuses it" } else { "it does not compile" };
    format!("{what}: {place}{}{rule}{more}", first.message.lines().next().unwrap_or_default())
}
