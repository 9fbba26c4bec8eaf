//! What a rebuild does with one extension. Blocks while the compiler works.

use std::sync::Arc;

use super::super::artifact_builder::ArtifactBuilder;
use super::super::types::{RebuildResult, RebuiltExtensionResponse, RecheckRemedy};
use super::super::version_history::VersionMetadata;
use super::super::{ControlState, now_ms};
use crate::limits::{REBUILD_ATTEMPTS, REBUILD_PAUSE};
use sandstorm_accounts::{PolicyEvent, TenantUsage};
use sandstorm_builder::protocol::BuildRequest;
use sandstorm_builder::{Artifact, BuildError};
use sandstorm_catalog::{DirectoryError, LoadedVersion, Suspension, TenantView};
use sandstorm_extension::{BudgetOverride, LoadedExtension};
use sandstorm_net::{CodePolicy, CodeTier};

/// What a rebuild is for.
pub(super) enum RebuildPurpose {
    /// The tenant has another code policy.
    Move,
    /// Native code may not pass any more: other patterns are denied, or the server has other rules.
    Recheck {
        /// What becomes of what does not pass.
        then: RecheckRemedy,
        /// What was denied when it began.
        denied: Vec<String>,
    },
}

/// The reason that an extension is not brought to its tier.
enum StepFailure {
    /// It was unloaded or replaced meanwhile.
    Gone,
    /// Its source does not pass: the rest of a sentence.
    Refused(String),
    /// It cannot be, and the source is not at fault: the rest of a sentence.
    Failed(String),
}

/// A version that is ready to be published.
struct MadeExtension {
    extension: Arc<LoadedExtension>,
    about: VersionMetadata,
    /// Its artifact, if that is new.
    artifact: Option<Artifact>,
}

/// An extension, as it is at the beginning of a step.
struct RebuildStep<'a> {
    control: &'a ControlState,
    view: &'a TenantView,
    name: &'a str,
    loaded: &'a LoadedVersion,
}

/// Brings an extension to the tier in which it has to run; suspends it if that cannot be. Native versions of it that
/// are kept are looked at as well. `None`: there is no such extension any more, or no such tenant.
pub(super) fn rebuild(
    control: &ControlState,
    tenant: u32,
    usage: &Arc<TenantUsage>,
    name: &str,
    purpose: &RebuildPurpose,
) -> Option<RebuiltExtensionResponse> {
    let called = || control.directory.snapshot().tenant(tenant)?.extension(name).map(|called| called.version);
    let mut done = None;
    // If another version is called meanwhile, that one is brought to its tier, too.
    for _ in 0..REBUILD_ATTEMPTS {
        let before = called();
        done = rebuild_called(control, tenant, usage, name, purpose);
        check_kept(control, tenant, usage, name);
        if before.is_none() || before == called() {
            break;
        }
    }
    done
}

/// Looks for what is denied in the native versions that are kept: those that do not pass are not called any more.
fn check_kept(control: &ControlState, tenant: u32, usage: &Arc<TenantUsage>, name: &str) {
    let snapshot = control.directory.snapshot();
    let Some(view) = snapshot.tenant(tenant).filter(|view| Arc::ptr_eq(&view.tenant.usage, usage)) else { return };
    for kept in view.kept_versions(name).iter().filter(|kept| kept.tier == CodeTier::Native) {
        let Some(loaded) = view.versions.kept(name).iter().find(|loaded| loaded.version == kept.version) else {
            continue;
        };
        let why = match (RebuildStep { control, view, name, loaded }).check_native(&control.deny.all()) {
            Ok(()) | Err(StepFailure::Gone) => None,
            Err(StepFailure::Refused(why) | StepFailure::Failed(why)) => Some(why),
        };
        if why != loaded.refused {
            // It may be called by now, or be kept no more: the change that did so has it checked.
            let _gone = control.directory.refuse_kept(tenant, name, kept.version, why.as_deref());
        }
    }
}

/// A kept version that is not loaded, ready to be called: from its artifact, or built again from its source.
///
/// # Errors
/// The reason, the rest of a sentence.
pub(in super::super) fn make_kept(
    control: &ControlState,
    view: &TenantView,
    name: &str,
    loaded: &LoadedVersion,
) -> Result<(Arc<LoadedExtension>, VersionMetadata), String> {
    let tier = view.tier_for(name, loaded.origin).ok_or("the tenant may have no code")?;
    let step = RebuildStep { control, view, name, loaded };
    let words = |failure: StepFailure| match failure {
        StepFailure::Gone => "it is kept no more".to_owned(),
        StepFailure::Refused(why) | StepFailure::Failed(why) => why,
    };
    if tier == CodeTier::Native {
        step.check_native(&control.deny.all()).map_err(words)?;
    }
    let MadeExtension { extension, about, artifact } = step.make(tier).map_err(words)?;
    if let Some(artifact) = &artifact {
        control.artifacts.keep(artifact, None).map_err(|error| error.to_string())?;
    }
    Ok((extension, about))
}

fn rebuild_called(
    control: &ControlState,
    tenant: u32,
    usage: &Arc<TenantUsage>,
    name: &str,
    purpose: &RebuildPurpose,
) -> Option<RebuiltExtensionResponse> {
    let snapshot = control.directory.snapshot();
    let view = snapshot.tenant(tenant).filter(|view| Arc::ptr_eq(&view.tenant.usage, usage))?;
    let (_, loaded) = view.versions.loaded().find(|(loaded, _)| *loaded == name)?;
    let Some(tier) = view.tier_of(name) else { return Some(refused_by_policy(view, name, loaded)) };
    let step = RebuildStep { control, view, name, loaded };
    // Modules stay in the sandboxed tier.
    let is_confined = tier == CodeTier::Sandboxed
        && view.tenant.code.policy() == CodePolicy::Native
        && view.versions.origin(name).is_source();
    let done = match purpose {
        RebuildPurpose::Move if is_confined => step.release(),
        RebuildPurpose::Move => step.bring_to(tier, false).map(|result| step.response(result, tier, String::new())),
        RebuildPurpose::Recheck { then, .. } => step.recheck(tier, *then),
    };
    match done {
        Ok(response) => Some(response),
        Err(StepFailure::Gone) => None,
        Err(StepFailure::Refused(why) | StepFailure::Failed(why)) => Some(step.suspend(tier, &why)),
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

/// The result for a version that is gone.
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
    /// Brings an extension to its tier again, and looks whether native code still passes. If it does not, it is
    /// confined to the sandboxed tier, or suspended.
    fn recheck(&self, tier: CodeTier, then: RecheckRemedy) -> Result<RebuiltExtensionResponse, StepFailure> {
        let why = match (self.bring_to(tier, true), then) {
            (Ok(result), _) => return Ok(self.response(result, tier, String::new())),
            (Err(StepFailure::Refused(why)), RecheckRemedy::Sandbox) if tier == CodeTier::Native => why,
            (Err(error), _) => return Err(error),
        };
        let (id, directory) = (self.view.tenant.id, &self.control.directory);
        directory.confine_extension(id, self.name, &why)?;
        let confined = directory.snapshot().find(id)?.clone();
        let again = RebuildStep { view: &confined, ..*self };
        match again.bring_to(CodeTier::Sandboxed, false) {
            Ok(_) => Ok(again.response(RebuildResult::Confined, CodeTier::Sandboxed, why)),
            Err(StepFailure::Gone) => Err(StepFailure::Gone),
            Err(StepFailure::Refused(also) | StepFailure::Failed(also)) => {
                // Its next version is tried natively first.
                directory.release_extension(id, self.name)?;
                Ok(again.suspend(CodeTier::Sandboxed, &format!("{also}; and not natively: {why}")))
            }
        }
    }

    /// Lets a confined extension run natively again, if it passes; else it stays as it is.
    fn release(&self) -> Result<RebuiltExtensionResponse, StepFailure> {
        let (id, directory) = (self.view.tenant.id, &self.control.directory);
        if let Err(StepFailure::Refused(why) | StepFailure::Failed(why)) = self.check_native(&self.control.deny.all()) {
            let result = self.bring_to(CodeTier::Sandboxed, false)?;
            return Ok(self.response(result, CodeTier::Sandboxed, format!("it stays in the sandboxed tier: {why}")));
        }
        directory.release_extension(id, self.name)?;
        let released = directory.snapshot().find(id)?.clone();
        let again = RebuildStep { view: &released, ..*self };
        // What the checker passes, the compiler or the audit may refuse: then it is confined again.
        again.recheck(CodeTier::Native, RecheckRemedy::Sandbox)
    }

    /// Has the extension run in that tier, which is the one that the directory asks for. Native code that is there
    /// already is looked at only if it is to be checked `again`, or is suspended.
    fn bring_to(&self, tier: CodeTier, again: bool) -> Result<RebuildResult, StepFailure> {
        let is_wanted =
            |current: &&Arc<LoadedExtension>| (current.version, current.tier) == (self.loaded.version, tier);
        let is_there = self.view.extension(self.name).filter(is_wanted).is_some();
        let is_suspended = self.view.suspended.get(self.name).is_some_and(|suspension| suspension.until_replaced);
        if is_there && !is_suspended && (!again || tier == CodeTier::Sandboxed) {
            return Ok(RebuildResult::Unchanged);
        }
        let make = || if is_there { Ok(None) } else { self.make(tier).map(Some) };
        if tier == CodeTier::Sandboxed {
            return self.install(make()?);
        }
        loop {
            let denied = self.control.deny.all();
            self.check_native(&denied)?;
            // The compiler works before the list is compared: an operator's denial does not wait for it.
            let made = make()?;
            if let Some(installed) = self.control.deny.while_unchanged(&denied, || self.install(made)) {
                return installed;
            }
        }
    }

    /// Looks for these patterns in the kept source. The checker's other rules are those that its artifact names.
    fn check_native(&self, denied: &[String]) -> Result<(), StepFailure> {
        if denied.is_empty() {
            return Ok(());
        }
        let request = BuildRequest { denied: denied.to_vec(), ..self.request(CodeTier::Native)? };
        let builder = self.builder()?;
        patiently(|| builder.check(&request)).map_err(|error| failure(&error))
    }

    /// The extension for that tier, not published yet: from its artifact if that can be used, else built.
    fn make(&self, tier: CodeTier) -> Result<MadeExtension, StepFailure> {
        let sources = &self.control.artifact_sources;
        if let Ok(found) = self.control.artifacts.reload_one(self.view, self.name, self.loaded, sources) {
            return Ok(MadeExtension { extension: found.extension, about: found.about, artifact: None });
        }
        let artifact = self.build(tier)?;
        let highest = self.loaded.version.checked_sub(1);
        let verified = artifact.verify(&sources.keys(), &sources.expected(self.view, self.name, tier, highest));
        verified.map_err(|error| failed(&format!("the builder's artifact: {error}")))?;
        if artifact.header.version != self.loaded.version {
            return Err(failed(&"the builder's artifact is of another version"));
        }
        let library = (sources.loader)(&artifact).map_err(|error| failed(&error))?;
        let extension = LoadedExtension::new(self.name, self.loaded.version, library, BudgetOverride::default());
        let about = VersionMetadata::of(&artifact, &self.loaded.manifest_version, self.loaded.loaded_at_ms, true);
        let extension = Arc::new(extension.in_tier(tier).made_from(artifact.header.origin));
        Ok(MadeExtension { extension, about, artifact: Some(artifact) })
    }

    /// Builds the source.
    fn build(&self, tier: CodeTier) -> Result<Artifact, StepFailure> {
        let (builder, request) = (self.builder()?, self.request(tier)?);
        patiently(|| builder.build(&request)).map(|(artifact, _)| artifact).map_err(|error| failure(&error))
    }

    fn builder(&self) -> Result<&Arc<dyn ArtifactBuilder>, StepFailure> {
        let builder = self.control.artifact_sources.builder.as_ref();
        builder.map_err(|reason| failed(&format!("there is no builder: {reason}")))
    }

    /// The kept source, to be built for that tier.
    fn request(&self, tier: CodeTier) -> Result<BuildRequest, StepFailure> {
        let (tenant, version) = (self.view.tenant.id, self.loaded.version);
        let read = self.control.artifacts.sources().read(tenant, self.name, version).map_err(|why| failed(&why))?;
        let source = read.ok_or_else(|| {
            failed(&"its source is not kept: it was uploaded as an artifact, or pushed to an earlier version of the server")
        })?;
        let denied = if tier == CodeTier::Native { self.control.deny.all() } else { Vec::new() };
        Ok(BuildRequest { tenant, version, source, tier, denied, check_only: false })
    }

    /// Publishes the built version in place of the present one; nothing was built if that is right already.
    fn install(&self, made: Option<MadeExtension>) -> Result<RebuildResult, StepFailure> {
        let (id, directory) = (self.view.tenant.id, &self.control.directory);
        let Some(MadeExtension { extension, about, artifact }) = made else {
            directory.lift_until_replaced(id, self.name)?;
            return Ok(RebuildResult::Unchanged);
        };
        if let Some(artifact) = &artifact {
            // The file is written before the directory publishes the extension. If that fails, the next start finds it.
            self.control.artifacts.keep(artifact, None).map_err(|error| failed(&error))?;
        }
        let replaced = directory.reinstall_extension(id, extension.clone()).inspect_err(|error| {
            let now = directory.snapshot();
            let is_kept = now
                .tenant(id)
                .is_some_and(|view| view.versions.all_of(self.name).any(|known| known.version == self.loaded.version));
            if is_gone(error) && !is_kept {
                // It was unloaded or replaced while the compiler worked. Nothing else removes the new file.
                self.control.artifacts.forget(id, self.name, self.loaded.version);
            }
        })?;
        self.control.history.loaded(id, &extension, about, replaced);
        self.record("moved", format!("it runs in the {} tier now", extension.tier));
        Ok(RebuildResult::Rebuilt)
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
        if is_gone(&error) { StepFailure::Gone } else { failed(&error) }
    }
}

/// Whether a version was unloaded or replaced, or its tenant deleted.
fn is_gone(error: &DirectoryError) -> bool {
    use DirectoryError::{OldVersion, UnknownExtension, UnknownTenant};
    matches!(error, UnknownTenant(_) | UnknownExtension { .. } | OldVersion { .. })
}

/// Tries again while the machine is too busy, or the builder dies.
fn patiently<T>(work: impl Fn() -> Result<T, BuildError>) -> Result<T, BuildError> {
    for _ in 1..REBUILD_ATTEMPTS {
        match work() {
            Err(BuildError::Busy(_) | BuildError::Internal(_)) => std::thread::sleep(REBUILD_PAUSE),
            done => return done,
        }
    }
    work()
}

fn failed(why: &dyn std::fmt::Display) -> StepFailure {
    StepFailure::Failed(why.to_string())
}

/// The failure of a build or a check, by whose fault it is.
fn failure(error: &BuildError) -> StepFailure {
    match error {
        BuildError::Refused(_) | BuildError::Compile(_) | BuildError::Limit(_) => StepFailure::Refused(describe(error)),
        _ => StepFailure::Failed(describe(error)),
    }
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
