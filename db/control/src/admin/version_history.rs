//! The history of pushes: versions of each extension, and the counters of replaced versions.

use std::collections::VecDeque;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::types::{self, ExtensionStatsResponse};
use sandstorm_builder::Artifact;
use sandstorm_catalog as tenants;
use sandstorm_catalog::TenantView;
use sandstorm_extension::LoadedExtension;
use sandstorm_net::{CodeOrigin, CodeTier};

/// Versions of an extension that are shown, at most.
const MAX_SHOWN_VERSIONS: usize = 16;
/// The metadata of a version beside its code.
#[derive(Clone, Debug)]
pub(super) struct VersionMetadata {
    pub(super) manifest_version: String,
    pub(super) source_digest: String,
    pub(super) library_bytes: u64,
    pub(super) tier: CodeTier,
    pub(super) origin: CodeOrigin,
    pub(super) loaded_at_ms: u64,
    /// Whether the source is kept.
    pub(super) has_source: bool,
}

impl VersionMetadata {
    /// The metadata of a loaded artifact.
    pub(super) fn of(
        artifact: &Artifact,
        manifest_version: &str,
        loaded_at_ms: u64,
        has_source: bool,
    ) -> VersionMetadata {
        VersionMetadata {
            manifest_version: manifest_version.to_owned(),
            source_digest: HEXLOWER.encode(&artifact.header.source_digest),
            library_bytes: artifact.elf.len() as u64,
            tier: artifact.header.tier,
            origin: artifact.header.origin,
            loaded_at_ms,
            has_source,
        }
    }
}

/// All pushes to this server since it started, and the extensions that the start loaded again.
#[derive(Debug, Default)]
pub(super) struct VersionHistory {
    tenants: Mutex<HashMap<u32, TenantHistory>>,
}

#[derive(Debug, Default)]
struct TenantHistory {
    extensions: HashMap<String, ExtensionHistory>,
}

#[derive(Debug, Default)]
struct ExtensionHistory {
    /// Newest first.
    versions: VecDeque<(u64, VersionMetadata)>,
    /// Replaced versions that an invocation or a worker's snapshot may still use.
    draining: Vec<Arc<LoadedExtension>>,
    /// The counters of versions that are gone.
    before: ExtensionStatsResponse,
}

impl ExtensionHistory {
    /// Drops replaced versions that are no longer used: their code is unmapped here, not on a worker.
    fn settle(&mut self) {
        let before = &mut self.before;
        self.draining.retain(|extension| {
            let used = Arc::strong_count(extension) > 1;
            if !used {
                before.add(&extension.stats.read());
            }
            used
        });
    }
}

impl VersionHistory {
    /// Notes that a version was loaded, perhaps in place of another.
    pub(super) fn loaded(
        &self,
        tenant: u32,
        new: &LoadedExtension,
        about: VersionMetadata,
        replaced: Option<Arc<LoadedExtension>>,
    ) {
        let mut tenants = self.tenants.lock();
        let pushed = tenants.entry(tenant).or_default().extensions.entry(new.name.to_string()).or_default();
        // What is built again replaces what it was built from.
        pushed.versions.retain(|(version, old)| (*version, old.tier) != (new.version, about.tier));
        pushed.versions.push_front((new.version, about));
        pushed.versions.truncate(MAX_SHOWN_VERSIONS);
        pushed.draining.extend(replaced);
    }

    /// Notes that an extension was unloaded.
    pub(super) fn unloaded(&self, tenant: u32, extension: &LoadedExtension) {
        let mut tenants = self.tenants.lock();
        if let Some(tenant) = tenants.get_mut(&tenant) {
            tenant.extensions.remove(&*extension.name);
        }
    }

    /// Notes that a tenant was deleted.
    pub(super) fn deleted(&self, tenant: u32) {
        self.tenants.lock().remove(&tenant);
    }

    /// Drops versions that are no longer used.
    pub(super) fn settle(&self) {
        self.tenants
            .lock()
            .values_mut()
            .flat_map(|tenant| tenant.extensions.values_mut())
            .for_each(ExtensionHistory::settle);
    }

    /// The response for a loaded extension.
    pub(super) fn show(&self, view: &TenantView, extension: &LoadedExtension) -> types::ExtensionResponse {
        let tenants = self.tenants.lock();
        let pushed = tenants.get(&view.tenant.id).and_then(|tenant| tenant.extensions.get(&*extension.name));
        let mut stats = pushed.map(|pushed| pushed.before.clone()).unwrap_or_default();
        let mut versions = Vec::new();
        if let Some(pushed) = pushed {
            pushed.draining.iter().for_each(|old| stats.add(&old.stats.read()));
            versions = pushed
                .versions
                .iter()
                .map(|(version, about)| {
                    // One version may have been built for both tiers.
                    let is = |one: &LoadedExtension| (one.version, one.tier) == (*version, about.tier);
                    let draining = pushed.draining.iter().any(|old| is(old) && old.stats.read().live() > 0);
                    let state = match (is(extension), draining) {
                        (true, _) => "current",
                        (false, true) => "draining",
                        (false, false) => "gone",
                    };
                    show_version(*version, about, state)
                })
                .collect();
        }
        stats.add(&extension.stats.read());
        let current = versions.iter().find(|version| version.state == "current").cloned();
        let source_kept = pushed
            .and_then(|pushed| pushed.versions.iter().find(|(version, _)| *version == extension.version))
            .is_some_and(|(_, about)| about.has_source);
        let (manifest_version, source_digest, library_bytes) = current
            .map(|version| (version.manifest_version, version.source_digest, version.library_bytes))
            .unwrap_or_default();
        types::ExtensionResponse {
            name: extension.name.to_string(),
            version: extension.version,
            tier: extension.tier,
            origin: extension.origin,
            manifest_version,
            source_digest,
            source_kept,
            library_bytes,
            suspended: view.is_suspended(&extension.name),
            slowed_to_per_s: extension.throttle.calls_per_s(),
            notice: notice(view, extension),
            budget: view.budget(extension).into(),
            stats,
            versions,
        }
    }
}

/// The reason that calls are refused, or the server's last measure against the extension.
fn notice(view: &TenantView, extension: &LoadedExtension) -> Option<String> {
    let last = || {
        let policy_events = view.tenant.usage.policy_events();
        let own = policy_events.into_iter().find(|notice| *notice.extension == *extension.name)?;
        Some(format!("{} {} UTC: {}", own.what, tenants::format_utc(own.at_ms), own.text))
    };
    let confined = || {
        let why = view.confined.get(&extension.name)?;
        Some(format!("it runs in the sandboxed tier, although the tenant is native: {why}"))
    };
    view.suspension(&extension.name).map(|suspension| suspension.text.to_string()).or_else(confined).or_else(last)
}

fn show_version(version: u64, about: &VersionMetadata, state: &'static str) -> types::VersionResponse {
    types::VersionResponse {
        version,
        manifest_version: about.manifest_version.clone(),
        source_digest: about.source_digest.clone(),
        library_bytes: about.library_bytes,
        tier: about.tier,
        origin: about.origin,
        loaded_at_ms: about.loaded_at_ms,
        state,
    }
}
