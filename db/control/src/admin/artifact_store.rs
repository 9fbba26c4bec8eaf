//! The signed artifacts of the loaded extensions, and of their versions that are kept, as files in the state directory.
//! A restart loads them again, through the same checks as any other artifact.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::artifact_builder::ArtifactSources;
use super::shared_artifacts::{SharedArtifact, SharedArtifacts};
use super::source_store::SourceStore;
use super::version_history::VersionMetadata;
use super::{MAX_ARTIFACT_BYTES, now_ms, remove_file};
use crate::config::{ConfigError, write_private};
use sandstorm_accounts::PolicyEvent;
use sandstorm_builder::{Artifact, PushedCode};
use sandstorm_catalog::{Directory, DirectorySnapshot, EnabledExtension, LoadedVersion, TenantView};
use sandstorm_extension::{BudgetOverride, LoadedExtension};
use sandstorm_net::CodeTier;

/// Name of the folder in the state directory.
const FOLDER: &str = "extensions";

/// The folder of the artifacts, none if nothing is persisted, and the sources that they were built from.
#[derive(Debug, Default)]
pub struct ArtifactStore {
    folder: Option<PathBuf>,
    sources: SourceStore,
    shared: SharedArtifacts,
}

/// An extension that was loaded again after a restart.
pub(super) struct ReloadedExtension {
    pub(super) tenant: u32,
    pub(super) extension: Arc<LoadedExtension>,
    pub(super) about: VersionMetadata,
    /// Whether it is a version that is kept, and not the one that is called.
    pub(super) is_kept: bool,
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
        let sources = SourceStore::in_folder(folder.clone());
        Ok(ArtifactStore { sources, folder: Some(folder), shared: SharedArtifacts::default() })
    }

    /// The same, of a server whose directory may be agreed with other servers: what is kept is kept for them as well.
    pub(super) fn shared_in(self, directory: &Directory) -> ArtifactStore {
        ArtifactStore { shared: SharedArtifacts::of(directory.agreement()), ..self }
    }

    /// What servers of a cluster share; nothing without one.
    pub(super) fn shared(&self) -> &SharedArtifacts {
        &self.shared
    }

    fn path(&self, tenant: u32, name: &str, version: u64) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{tenant}-{version}-{name}.artifact")))
    }

    /// Writes an artifact and the source that it was built from, if that is known. They are on the disk when this
    /// returns.
    pub(super) fn keep(&self, artifact: &Artifact, source: Option<&PushedCode>) -> Result<(), ConfigError> {
        let header = &artifact.header;
        let of = (header.tenant, &*header.name, header.version);
        let bytes = artifact.encode();
        // The others look for them as soon as the directory names the version.
        let shared = || {
            if let Some(source) = source {
                self.shared.keep_source(of, &SourceStore::encode(source)?)?;
            }
            self.shared.keep(of, header.tier, &bytes)
        };
        shared().map_err(|why| ConfigError::new(format!("the cluster's servers cannot share it: {why}")))?;
        if let Some(source) = source {
            self.sources.keep(header.tenant, header.version, source)?;
        }
        match self.path(header.tenant, &header.name, header.version) {
            Some(path) => write_private(&path, &bytes),
            None => Ok(()),
        }
    }

    /// The sources of the loaded versions.
    pub(super) fn sources(&self) -> &SourceStore {
        &self.sources
    }

    /// Removes an artifact that is no longer loaded, and its source. If that fails, the next start removes them.
    pub(super) fn forget(&self, tenant: u32, name: &str, version: u64) {
        self.forget_here(tenant, name, version);
        self.shared.forget((tenant, name, version));
    }

    fn forget_here(&self, tenant: u32, name: &str, version: u64) {
        self.sources.forget(tenant, name, version);
        let Some(path) = self.path(tenant, name, version) else { return };
        remove_file(&path);
    }

    /// Removes the artifacts of a deleted tenant.
    pub(super) fn remove_tenant(&self, view: &TenantView) {
        view.versions.all().for_each(|(name, loaded)| self.forget(view.tenant.id, name, loaded.version));
    }

    /// Removes the files of a deleted tenant that this server has: another server has deleted it.
    pub(super) fn remove_local(&self, view: &TenantView) {
        view.versions.all().for_each(|(name, loaded)| self.forget_here(view.tenant.id, name, loaded.version));
    }

    /// As [`ArtifactStore::forget_dropped`], of the files that this server has.
    pub(super) fn forget_dropped_here(&self, name: &str, before: &TenantView, snapshot: &DirectorySnapshot) {
        dropped(name, before, snapshot).for_each(|version| self.forget_here(before.tenant.id, name, version));
    }

    /// Removes the files of what was among an extension's versions before, and is no more.
    /// A version that others have enabled is needed still.
    pub(super) fn forget_dropped(&self, name: &str, before: &TenantView, snapshot: &DirectorySnapshot) {
        dropped(name, before, snapshot).for_each(|version| self.forget(before.tenant.id, name, version));
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
                    Err(why) => {
                        let tenant = view.tenant.id;
                        let again = pushing.builder.is_ok() && self.sources.has(tenant, name, loaded.version);
                        record_skipped(view, name, loaded.version, &why, what_next(again));
                    }
                }
                self.reload_kept(view, name, directory, pushing, &mut reloaded);
            }
        }
        self.reload_enabled(directory, pushing);
        reloaded
    }

    /// Loads the kept versions of an extension again. A version that fails the checks stays on the disk: it is built
    /// again from its source if it is asked for.
    fn reload_kept(
        &self,
        view: &TenantView,
        name: &str,
        directory: &Directory,
        pushing: &ArtifactSources,
        reloaded: &mut Vec<ReloadedExtension>,
    ) {
        for kept in view.versions.kept(name) {
            match self.reload_one(view, name, kept, pushing) {
                Ok(found) if directory.reload_kept(found.tenant, found.extension.clone()).is_ok() => {
                    reloaded.push(ReloadedExtension { is_kept: true, ..found });
                }
                Ok(_) => {}
                Err(why) => {
                    let (tenant, version) = (&*view.tenant.name, kept.version);
                    tracing::info!(tenant, extension = name, version, "a kept version is not loaded: {why}");
                }
            }
        }
    }

    /// Loads the extensions again that tenants have enabled of others, each version once.
    fn reload_enabled(&self, directory: &Directory, pushing: &ArtifactSources) {
        let mut known: HashMap<(u32, String, u64), Result<Arc<LoadedExtension>, String>> = HashMap::new();
        let snapshot = directory.snapshot();
        for view in snapshot.iter().filter(|view| view.check_code().is_ok()) {
            for (name, of) in &view.enabled {
                let key = (of.owner_id, of.extension.clone(), if of.follow { 0 } else { of.version });
                let code = known.entry(key).or_insert_with(|| self.shared_code(&snapshot, of, pushing));
                let loaded = code.as_ref().map_err(String::clone).and_then(|code| {
                    directory.reload_enabled(view.tenant.id, name, code).map_err(|error| error.to_string())
                });
                if let Err(why) = loaded {
                    record_skipped(view, name, of.version, &why, what_next(false));
                }
            }
        }
    }

    /// Loads an enabled extension with the owner's code, if that is loaded here or was kept.
    ///
    /// # Errors
    /// The reason, for people.
    pub(super) fn reload_one_enabled(
        &self,
        directory: &Directory,
        (tenant, name, of): (u32, &str, &EnabledExtension),
        pushing: &ArtifactSources,
    ) -> Result<(), String> {
        let code = self.shared_code(&directory.snapshot(), of, pushing)?;
        if code.version != of.version {
            return Err(format!("version {} of its owner's is not loaded here yet", of.version));
        }
        directory.reload_enabled(tenant, name, &code).map_err(|error| error.to_string())
    }

    /// The code of an enabled extension: what its owner has loaded, or the artifact that is kept for it.
    fn shared_code(
        &self,
        snapshot: &DirectorySnapshot,
        of: &EnabledExtension,
        pushing: &ArtifactSources,
    ) -> Result<Arc<LoadedExtension>, String> {
        let owner = snapshot.tenant(of.owner_id).ok_or("its owner is gone")?;
        let loaded = match of.follow {
            true => owner.extension(&of.extension),
            false => owner.loaded_version(&of.extension, of.version),
        };
        match loaded {
            Some(loaded) if loaded.tier == CodeTier::Sandboxed => Ok(Arc::clone(loaded)),
            Some(_) => Err("its owner's code is native now".to_owned()),
            None => {
                let version = LoadedVersion { version: of.version, ..LoadedVersion::default() };
                Ok(self.reload_one(owner, &of.extension, &version, pushing)?.extension)
            }
        }
    }

    /// Loads one artifact again: the one that this server has, or that another server of the cluster has kept. Nothing
    /// is published yet.
    ///
    /// # Errors
    /// The reason, for people.
    pub(super) fn reload_one(
        &self,
        view: &TenantView,
        name: &str,
        loaded: &LoadedVersion,
        pushing: &ArtifactSources,
    ) -> Result<ReloadedExtension, String> {
        let here = self.reload_from_file(view, name, loaded, pushing);
        let (Err(_), Some(tier)) = (&here, view.tier_of(name)) else { return here };
        let of = (view.tenant.id, name, loaded.version);
        let Some(SharedArtifact { artifact, source }) = self.shared.find(of, tier)? else { return here };
        let (Some(path), source_path) = (self.path(of.0, name, of.2), self.sources.path(of.0, name, of.2)) else {
            return here;
        };
        write_private(&path, &artifact).map_err(|error| error.to_string())?;
        if let (Some(source), Some(path)) = (source, source_path) {
            write_private(&path, &source).map_err(|error| error.to_string())?;
        }
        self.reload_from_file(view, name, loaded, pushing)
    }

    fn reload_from_file(
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
        let has_source = self.sources.has(tenant, name, loaded.version);
        let about = VersionMetadata::of(&artifact, &loaded.manifest_version, loaded.loaded_at_ms, has_source);
        let extension = LoadedExtension::new(name, loaded.version, library, BudgetOverride::default());
        let extension = Arc::new(extension.in_tier(header.tier).made_from(header.origin));
        Ok(ReloadedExtension { tenant, extension, about, is_kept: false })
    }

    /// Removes artifacts and sources of what no tenant has loaded or keeps: interrupted pushes, versions that are kept
    /// no more, deleted tenants.
    fn sweep(&self, snapshot: &DirectorySnapshot) {
        let Some(folder) = &self.folder else { return };
        let used: std::collections::HashSet<PathBuf> = snapshot
            .iter()
            .flat_map(|view| {
                view.versions.all().flat_map(|(name, loaded)| {
                    let (tenant, version) = (view.tenant.id, loaded.version);
                    [self.path(tenant, name, version), self.sources.path(tenant, name, version)].into_iter().flatten()
                })
            })
            .chain(snapshot.iter().flat_map(|view| {
                let of_enabled = |of: &EnabledExtension| self.path(of.owner_id, &of.extension, of.version);
                view.enabled.values().filter_map(of_enabled).collect::<Vec<_>>()
            }))
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

/// The versions of an extension that were known before, and that are neither kept nor enabled any more.
fn dropped(name: &str, before: &TenantView, snapshot: &DirectorySnapshot) -> std::vec::IntoIter<u64> {
    let tenant = before.tenant.id;
    let Some(now) = snapshot.tenant(tenant) else { return Vec::new().into_iter() };
    let is_dropped = |version: &u64| {
        let is_known = now.versions.all_of(name).any(|known| known.version == *version);
        !is_known && !snapshot.is_enabled(tenant, name, *version)
    };
    let versions = before.versions.all_of(name).map(|old| old.version);
    versions.filter(is_dropped).collect::<Vec<u64>>().into_iter()
}

/// What becomes of an extension that a restart has not loaded.
fn what_next(again: bool) -> &'static str {
    if again { "it is built again from its source, which was kept" } else { "push it again" }
}

/// Tells the tenant that an extension was left out, and what comes next.
pub(super) fn record_skipped(view: &TenantView, name: &str, version: u64, why: &str, next: &str) {
    let text = format!("not loaded: {why}; {next}");
    tracing::warn!(tenant = %view.tenant.name, extension = name, version, "extension {text}");
    view.tenant.usage.record_policy_event(PolicyEvent {
        extension: name.to_owned(),
        version,
        what: "left out",
        at_ms: now_ms(),
        text,
    });
}
