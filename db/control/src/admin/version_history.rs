//! The history of pushes: versions of each extension, and the counters of replaced versions.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::latency;
use super::types::{self, ExtensionStatsResponse};
use sandstorm_builder::Artifact;
use sandstorm_catalog as tenants;
use sandstorm_catalog::{TenantView, VersionRefusal};
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
    /// Versions that are not called: those that are kept, and replaced ones that an invocation or a worker's snapshot
    /// may still use.
    others: Vec<Arc<LoadedExtension>>,
    /// The counters of versions that are gone.
    before: ExtensionStatsResponse,
}

impl ExtensionHistory {
    /// Drops replaced versions that are no longer used: their code is unmapped here, not on a worker.
    fn settle(&mut self) {
        let before = &mut self.before;
        self.others.retain(|extension| {
            let used = Arc::strong_count(extension) > 1;
            if !used {
                before.add(&extension.stats.read());
            }
            used
        });
    }

    /// Notes what is known of a version. What is built again replaces what it was built from.
    fn note(&mut self, version: u64, about: VersionMetadata) {
        self.versions.retain(|(other, old)| (*other, old.tier) != (version, about.tier));
        self.versions.push_front((version, about));
        self.versions.make_contiguous().sort_by_key(|(version, _)| Reverse(*version));
        // The lowest goes, unless it can still be called.
        let is_used = |version: u64| self.others.iter().any(|other| other.version == version);
        if self.versions.len() > MAX_SHOWN_VERSIONS
            && let Some(at) = self.versions.iter().rposition(|(other, _)| *other != version && !is_used(*other))
        {
            self.versions.remove(at);
        }
    }

    /// Notes which version is called from now on, and which one was.
    fn switch(&mut self, new: &Arc<LoadedExtension>, replaced: Option<Arc<LoadedExtension>>) {
        self.others.retain(|other| !Arc::ptr_eq(other, new));
        self.others.extend(replaced.filter(|replaced| !Arc::ptr_eq(replaced, new)));
    }

    /// The loaded version of that number and tier, besides the one that is called.
    fn other(&self, version: u64, tier: CodeTier) -> Option<&Arc<LoadedExtension>> {
        self.others.iter().find(|other| (other.version, other.tier) == (version, tier))
    }
}

impl VersionHistory {
    fn change(&self, tenant: u32, name: &str, change: impl FnOnce(&mut ExtensionHistory)) {
        change(self.tenants.lock().entry(tenant).or_default().extensions.entry(name.to_owned()).or_default());
    }

    /// Notes that a version was loaded, perhaps in place of another.
    pub(super) fn loaded(
        &self,
        tenant: u32,
        new: &Arc<LoadedExtension>,
        about: VersionMetadata,
        replaced: Option<Arc<LoadedExtension>>,
    ) {
        self.change(tenant, &new.name, |history| {
            history.switch(new, replaced);
            history.note(new.version, about);
        });
    }

    /// Notes that a version is loaded and kept, while another is called.
    pub(super) fn kept(&self, tenant: u32, kept: &Arc<LoadedExtension>, about: VersionMetadata) {
        self.change(tenant, &kept.name, |history| {
            history.others.push(Arc::clone(kept));
            history.note(kept.version, about);
        });
    }

    /// Notes that a kept version is called from now on, in place of another.
    pub(super) fn activated(&self, tenant: u32, new: &Arc<LoadedExtension>, replaced: Option<Arc<LoadedExtension>>) {
        self.change(tenant, &new.name, |history| history.switch(new, replaced));
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
            pushed.others.iter().for_each(|old| stats.add(&old.stats.read()));
            let state = |version: u64, tier: CodeTier| match pushed.other(version, tier) {
                _ if (extension.version, extension.tier) == (version, tier) => "current",
                other
                    if view
                        .kept_versions(&extension.name)
                        .iter()
                        .any(|kept| other.is_some_and(|other| Arc::ptr_eq(kept, other))) =>
                {
                    kept_state(view, &extension.name, version)
                }
                Some(old) if old.stats.read().live() > 0 => "draining",
                _ => "gone",
            };
            versions = pushed
                .versions
                .iter()
                .map(|(version, about)| show_version(*version, about, state(*version, about.tier)))
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
        add_unloaded(view, &extension.name, &mut versions);
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
            latency: latency::extension_row(view, extension, false),
            schema: extension.library.schema().map(|schema| (**schema).clone()),
            enabled_from: view.enabled.get(&extension.name).map(|of| types::EnabledFromResponse {
                owner: of.owner.clone(),
                extension: of.extension.clone(),
                follow: of.follow,
            }),
            deployment: view.deployment(&extension.name).copied().map(Into::into),
            versions,
        }
    }

    /// The same with what is counted of each version that can be called, and with its types.
    pub(super) fn show_in_full(&self, view: &TenantView, extension: &LoadedExtension) -> types::ExtensionResponse {
        let mut shown = self.show(view, extension);
        for version in &mut shown.versions {
            let kept = view.kept_versions(&extension.name).iter().find(|kept| kept.version == version.version);
            let counted = match version.state {
                "current" => Some(extension),
                "draining" | "gone" => None,
                _ => kept.map(|kept| &**kept),
            };
            if let Some(counted) = counted {
                version.stats.add(&counted.stats.read());
                let total = counted.latency.read().total;
                [version.p50_ns, version.p99_ns] = [500_000, 990_000].map(|per_million| total.quantile_ns(per_million));
            }
            if version.state == "kept" {
                version.schema = kept.and_then(|kept| kept.library.schema()).map(|schema| (**schema).clone());
            }
        }
        shown
    }
}

/// The state of a kept version that is loaded.
fn kept_state(view: &TenantView, name: &str, version: u64) -> &'static str {
    match view.callable_version(name, version) {
        Ok(_) => "kept",
        Err(VersionRefusal::Rule(_)) => "refused",
        Err(VersionRefusal::OtherTier) => "other_tier",
        Err(VersionRefusal::NotLoaded) => "not_loaded",
    }
}

/// Adds the kept versions that could not be loaded after a restart, and the reasons of those that rules refuse.
fn add_unloaded(view: &TenantView, name: &str, versions: &mut Vec<types::VersionResponse>) {
    for kept in view.versions.kept(name) {
        match versions.iter_mut().find(|shown| shown.version == kept.version && shown.state != "gone") {
            Some(shown) => shown.refused.clone_from(&kept.refused),
            None => {
                versions.retain(|shown| shown.version != kept.version);
                let state = if kept.refused.is_some() { "refused" } else { "not_loaded" };
                versions.push(types::VersionResponse {
                    version: kept.version,
                    manifest_version: kept.manifest_version.clone(),
                    tier: view.tier_for(name, kept.origin).unwrap_or_default(),
                    origin: kept.origin,
                    loaded_at_ms: kept.loaded_at_ms,
                    state,
                    refused: kept.refused.clone(),
                    ..types::VersionResponse::default()
                });
            }
        }
    }
    versions.sort_by_key(|shown| Reverse(shown.version));
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
        ..types::VersionResponse::default()
    }
}
