//! The signed artifacts of the loaded extensions, as files in the state directory. A restart loads them again, through
//! the same checks as any other artifact.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandstorm_api::abi::ABI_VERSION;

use super::version_history::VersionMetadata;
use super::{ArtifactSources, MAX_ARTIFACT_BYTES, now_ms};
use crate::config::{ConfigError, write_private};
use sandstorm_accounts::PolicyEvent;
use sandstorm_builder::{Artifact, ArtifactRequirements, api_fingerprint, checker_fingerprint};
use sandstorm_catalog::{Directory, DirectorySnapshot, LoadedVersion, TenantView};
use sandstorm_extension::{BudgetOverride, LoadedExtension};
use sandstorm_net::CodeTier;

/// Name of the folder in the state directory.
const FOLDER: &str = "extensions";

/// The folder of the artifacts; none if nothing is persisted.
#[derive(Clone, Debug, Default)]
pub struct ArtifactStore(Option<PathBuf>);

/// An extension that was loaded again after a restart.
pub(super) struct ReloadedExtension {
    pub(super) tenant: u32,
    pub(super) extension: Arc<LoadedExtension>,
    pub(super) about: VersionMetadata,
}

impl ArtifactStore {
    /// Opens the folder of a state directory.
    ///
    /// # Errors
    /// One line: the folder cannot be made.
    pub fn open(state: &Path) -> Result<ArtifactStore, ConfigError> {
        use std::os::unix::fs::DirBuilderExt;
        let folder = state.join(FOLDER);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| ConfigError::new(format!("cannot create {}: {error}", folder.display())))?;
        Ok(ArtifactStore(Some(folder)))
    }

    fn path(&self, tenant: u32, name: &str, version: u64) -> Option<PathBuf> {
        self.0.as_ref().map(|folder| folder.join(format!("{tenant}-{version}-{name}.artifact")))
    }

    /// Writes an artifact. It is on the disk when this returns.
    pub(super) fn keep(&self, artifact: &Artifact) -> Result<(), ConfigError> {
        let header = &artifact.header;
        match self.path(header.tenant, &header.name, header.version) {
            Some(path) => write_private(&path, &artifact.encode()),
            None => Ok(()),
        }
    }

    /// Removes an artifact that is no longer loaded. If that fails, the next start removes it.
    pub(super) fn forget(&self, tenant: u32, name: &str, version: u64) {
        let Some(path) = self.path(tenant, name, version) else { return };
        if let Err(error) = fs::remove_file(&path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        }) {
            tracing::warn!(%error, "cannot remove {}; the next start tries again", path.display());
        }
    }

    /// Removes the artifacts of a deleted tenant.
    pub(super) fn remove_tenant(&self, view: &TenantView) {
        view.versions.loaded().for_each(|(name, loaded)| self.forget(view.tenant.id, name, loaded.version));
    }

    /// Loads the extensions that were loaded before the restart. Leaves out and reports those that fail the checks.
    pub(super) fn reload(&self, directory: &Directory, pushing: &ArtifactSources) -> Vec<ReloadedExtension> {
        let snapshot = directory.snapshot();
        self.sweep(&snapshot);
        let mut reloaded = Vec::new();
        // A tenant that may have no code keeps its files for another policy.
        for view in snapshot.iter().filter(|view| view.check_code().is_ok()) {
            for (name, loaded) in view.versions.loaded() {
                match self.reload_one(view, name, loaded, pushing) {
                    Ok(found) if directory.reload_extension(found.tenant, found.extension.clone()).is_ok() => {
                        reloaded.push(found);
                    }
                    // The tenant was deleted meanwhile.
                    Ok(_) => {}
                    Err(why) => record_skipped(view, name, loaded.version, &why),
                }
            }
        }
        reloaded
    }

    fn reload_one(
        &self,
        view: &TenantView,
        name: &str,
        loaded: &LoadedVersion,
        pushing: &ArtifactSources,
    ) -> Result<ReloadedExtension, String> {
        let tenant = view.tenant.id;
        let path = self.path(tenant, name, loaded.version).ok_or_else(|| "it was not kept".to_owned())?;
        let unreadable = |error: io::Error| format!("{}: {error}", path.display());
        if fs::metadata(&path).map_err(unreadable)?.len() > MAX_ARTIFACT_BYTES as u64 {
            return Err(format!("{} is longer than any artifact", path.display()));
        }
        let bytes = fs::read(&path).map_err(unreadable)?;
        let artifact = Artifact::decode(&bytes).map_err(|error| error.to_string())?;
        // Exactly the version that was loaded, neither an older one nor a newer.
        let highest = loaded.version.checked_sub(1);
        let tier = view.tier_of(name).ok_or_else(|| "the tenant may have no code".to_owned())?;
        let expected = pushing.expected(view, name, tier, highest);
        artifact.verify(&pushing.keys(), &expected).map_err(|error| error.to_string())?;
        let header = &artifact.header;
        if header.version != loaded.version {
            return Err(format!("the artifact is version {}, but {} was loaded", header.version, loaded.version));
        }
        let library = (pushing.loader)(&artifact).map_err(|error| error.to_string())?;
        let about = VersionMetadata::of(&artifact, &loaded.manifest_version, loaded.loaded_at_ms);
        let extension = LoadedExtension::new(name, loaded.version, library, BudgetOverride::default());
        let extension = Arc::new(extension.in_tier(header.tier));
        Ok(ReloadedExtension { tenant, extension, about })
    }

    /// Removes artifacts that no tenant has loaded: interrupted pushes, replaced versions, deleted tenants.
    fn sweep(&self, snapshot: &DirectorySnapshot) {
        let Some(folder) = &self.0 else { return };
        let used: std::collections::HashSet<PathBuf> = snapshot
            .iter()
            .flat_map(|view| {
                view.versions.loaded().filter_map(|(name, loaded)| self.path(view.tenant.id, name, loaded.version))
            })
            .collect();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if !used.contains(&entry.path())
                && let Err(error) = fs::remove_file(entry.path())
            {
                tracing::warn!(%error, "{} cannot be removed", entry.path().display());
            }
        }
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

fn record_skipped(view: &TenantView, name: &str, version: u64, why: &str) {
    let text = format!("not loaded after the restart: {why}; push it again");
    tracing::warn!(tenant = %view.tenant.name, extension = name, version, "extension {text}");
    view.tenant.usage.record_policy_event(PolicyEvent {
        extension: name.to_owned(),
        version,
        what: "left out",
        at_ms: now_ms(),
        text,
    });
}
