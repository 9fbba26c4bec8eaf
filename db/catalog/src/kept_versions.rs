//! The versions of an extension that are kept beside the one that is called: the last five in all.
//!
//! They stay loaded, so that going back to one is a swap of two pointers, as a push is: a call is answered by the one
//! or the other, and calls under way end in the version that they began with. A caller may name one by its number. One
//! that was built for another tier than the policy names is kept, and not called.

use std::sync::Arc;

use super::error::DirectoryError;
use super::extension_loading::unknown_extension;
use super::tenant_ref::TenantRef;
use super::{Directory, LoadedVersion, TenantView};
use sandstorm_extension::LoadedExtension;

/// The reason that a version is not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionRefusal<'v> {
    /// It is not kept, or not loaded.
    NotLoaded,
    /// It was built for another tier than the one that the extension has to run in.
    OtherTier,
    /// A rule refuses it since: the reason.
    Rule(&'v str),
}

impl TenantView {
    /// The kept versions of an extension that are loaded, without the one that is called.
    pub fn kept_versions(&self, name: &str) -> &[Arc<LoadedExtension>] {
        self.kept.get(name).map_or(&[], |kept| kept)
    }

    /// A loaded version by its number: the one that is called, or one that is kept.
    pub fn loaded_version(&self, name: &str, version: u64) -> Option<&Arc<LoadedExtension>> {
        let is = |one: &&Arc<LoadedExtension>| one.version == version;
        self.extension(name).filter(is).or_else(|| self.kept_versions(name).iter().find(is))
    }

    /// A version that a caller names by its number.
    ///
    /// # Errors
    /// The reason that it is not called.
    pub fn callable_version(&self, name: &str, version: u64) -> Result<&Arc<LoadedExtension>, VersionRefusal<'_>> {
        if let Some(current) = self.extension(name).filter(|current| current.version == version) {
            return Ok(current);
        }
        let refused = self.versions.kept(name).iter().find(|kept| kept.version == version);
        if let Some(why) = refused.and_then(|kept| kept.refused.as_deref()) {
            return Err(VersionRefusal::Rule(why));
        }
        let kept = self.kept_versions(name).iter().find(|kept| kept.version == version);
        let kept = kept.ok_or(VersionRefusal::NotLoaded)?;
        match self.tier_for(name, kept.origin) {
            Some(tier) if tier == kept.tier => Ok(kept),
            _ => Err(VersionRefusal::OtherTier),
        }
    }

    /// The error for a version that is not kept: it names those that are.
    pub fn unknown_version(&self, name: &str, version: u64) -> DirectoryError {
        let mut kept: Vec<u64> = self.versions.all_of(name).map(|known| known.version).collect();
        kept.sort_unstable();
        let kept = kept.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        DirectoryError::UnknownVersion { extension: name.to_owned(), version, kept }
    }

    /// A kept version that no rule refuses.
    pub(super) fn known_version(&self, name: &str, version: u64) -> Result<&LoadedVersion, DirectoryError> {
        if !self.versions.loaded().any(|(loaded, _)| loaded == name) {
            return Err(unknown_extension(self, name));
        }
        let kept = self.versions.kept(name).iter().find(|kept| kept.version == version);
        let kept = kept.ok_or_else(|| self.unknown_version(name, version))?;
        match &kept.refused {
            Some(why) => Err(DirectoryError::RefusedVersion { extension: name.to_owned(), version, why: why.clone() }),
            None => Ok(kept),
        }
    }

    /// Makes a version the one that is called; the one before stays among the kept ones if the list of versions has it.
    /// Returns it.
    pub(super) fn make_current(&mut self, extension: Arc<LoadedExtension>) -> Option<Arc<LoadedExtension>> {
        let name = extension.name.clone();
        // All calls go to the one that was pushed or asked for.
        self.deployments.remove(&name);
        let before = self.extensions.insert(name.clone(), extension);
        self.settle_kept(&name, before.clone());
        before
    }

    /// Brings the kept versions that are loaded to what the list of versions says.
    pub(super) fn settle_kept(&mut self, name: &str, more: Option<Arc<LoadedExtension>>) {
        let current = self.extension(name).map(|current| current.version);
        let mut kept: Vec<Arc<LoadedExtension>> = Vec::new();
        for one in more.into_iter().chain(self.kept_versions(name).iter().cloned()) {
            let is_listed = self.versions.kept(name).iter().any(|listed| listed.version == one.version);
            let is_new = Some(one.version) != current && kept.iter().all(|other| other.version != one.version);
            if is_listed && is_new {
                kept.push(one);
            }
        }
        if kept.is_empty() {
            self.kept.remove(name);
        } else {
            self.kept.insert(name.into(), kept.into());
        }
    }
}

impl Directory {
    /// Has a kept version called from now on, and keeps the one that was called. Returns that one, which serves the
    /// calls under way.
    ///
    /// # Errors
    /// No such tenant or extension; no such version among those that are kept; a rule refuses it, or it is of another
    /// tier than the tenant's policy names.
    pub fn activate_version<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: Arc<LoadedExtension>,
    ) -> Result<Option<Arc<LoadedExtension>>, DirectoryError> {
        let (name, version) = (extension.name.clone(), extension.version);
        self.change_view(tenant, |_, view| {
            let about = view.known_version(&name, version)?.clone();
            view.check_tier(&extension)?;
            Arc::make_mut(&mut view.versions).replace(&name, about);
            view.lift_until_replaced(&name);
            Ok(view.make_current(Arc::clone(&extension)))
        })
    }

    /// Adds a new version to those that are kept; calls go on to the one that is called now.
    ///
    /// # Errors
    /// No such tenant or extension; a newer version is known; another tier than the tenant's.
    pub fn stage_version<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: Arc<LoadedExtension>,
        manifest_version: &str,
        loaded_at_ms: u64,
    ) -> Result<(), DirectoryError> {
        let (name, version, origin) = (extension.name.clone(), extension.version, extension.origin);
        self.change_view(tenant, |_, view| {
            if view.extension(&name).is_none() {
                return Err(unknown_extension(view, &name));
            }
            view.check_tier(&extension)?;
            if let Some(current) = view.versions.highest(&name).filter(|highest| *highest >= version) {
                return Err(DirectoryError::OldVersion { extension: name.to_string(), version, current });
            }
            let manifest_version = manifest_version.to_owned();
            let staged = LoadedVersion { version, manifest_version, loaded_at_ms, origin, refused: None };
            let needed = view.deployment(&name).map(|deployment| deployment.version);
            Arc::make_mut(&mut view.versions).stage(&name, staged, needed);
            view.settle_kept(&name, Some(Arc::clone(&extension)));
            Ok(())
        })
    }

    /// Loads a kept version again after a restart: nothing is written for it.
    ///
    /// # Errors
    /// No such tenant; no such version among those that are kept.
    pub fn reload_kept<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: Arc<LoadedExtension>,
    ) -> Result<(), DirectoryError> {
        self.change_view(tenant, |_, view| {
            view.known_version(&extension.name, extension.version)?;
            let name = extension.name.clone();
            view.settle_kept(&name, Some(Arc::clone(&extension)));
            Ok(())
        })
    }

    /// Notes the reason for which a kept version is not called any more, or that there is none: whether or not a
    /// refusal can be written.
    ///
    /// # Errors
    /// No such tenant; no such version among those that are kept.
    pub fn refuse_kept<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        version: u64,
        why: Option<&str>,
    ) -> Result<(), DirectoryError> {
        self.restrict_view(tenant, |_, view| {
            let unknown = view.unknown_version(extension, version);
            let kept = Arc::make_mut(&mut view.versions).kept_mut(extension, version).ok_or(unknown)?;
            kept.refused = why.map(str::to_owned);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewTenant, TenantChange};
    use sandstorm_extension::{BudgetOverride, CodePolicy, CodeTier, ExtensionLibrary};
    use sandstorm_store::Epochs;

    fn version(number: u64) -> Arc<LoadedExtension> {
        let new = LoadedExtension::new("e", number, ExtensionLibrary::of_nothing(), BudgetOverride::default());
        Arc::new(new.in_tier(CodeTier::Native))
    }

    fn directory() -> Arc<Directory> {
        let directory = Directory::new(Epochs::new());
        directory.create_tenant(NewTenant { code: Some(CodePolicy::Native), ..NewTenant::named("a") }).unwrap();
        directory
    }

    fn view(directory: &Directory) -> Arc<TenantView> {
        directory.snapshot().by_name("a").unwrap().clone()
    }

    #[test]
    fn the_version_before_is_one_swap_away_and_the_next_push_counts_on() {
        let directory = directory();
        for number in 1..=7 {
            directory.put_extension("a", version(number)).unwrap();
        }
        let before = view(&directory);
        let sixth = before.callable_version("e", 6).unwrap().clone();
        assert_eq!(before.callable_version("e", 2).unwrap_err(), VersionRefusal::NotLoaded);
        let replaced = directory.activate_version("a", sixth.clone()).unwrap().unwrap();
        let now = view(&directory);
        assert!(replaced.version == 7 && Arc::ptr_eq(now.extension("e").unwrap(), &sixth));
        assert!(Arc::ptr_eq(now.callable_version("e", 7).unwrap(), &replaced), "the one before can be called");
        assert_eq!((now.kept_versions("e").len(), now.versions.next("e")), (4, 8));
        let old = directory.put_extension("a", version(6)).unwrap_err();
        assert!(matches!(old, DirectoryError::OldVersion { current: 7, .. }), "{old}");
        let unknown = directory.activate_version("a", version(2)).unwrap_err();
        assert!(unknown.to_string().contains("kept are 3, 4, 5, 6, 7"), "{unknown}");
        directory.remove_extension("a", "e").unwrap();
        assert!(view(&directory).kept_versions("e").is_empty());
        assert_eq!(view(&directory).versions.next("e"), 8);
    }

    #[test]
    fn a_version_of_another_tier_or_that_a_rule_refuses_is_kept_and_not_called() {
        let directory = directory();
        directory.put_extension("a", version(1)).unwrap();
        directory.put_extension("a", version(2)).unwrap();
        directory.refuse_kept("a", "e", 1, Some("it breaks match-guard")).unwrap();
        assert_eq!(
            view(&directory).callable_version("e", 1).unwrap_err(),
            VersionRefusal::Rule("it breaks match-guard")
        );
        let refused = directory.activate_version("a", version(1)).unwrap_err();
        assert!(refused.to_string().contains("match-guard"), "{refused}");
        directory.refuse_kept("a", "e", 1, None).unwrap();
        assert!(view(&directory).callable_version("e", 1).is_ok());
        let code = Some(CodePolicy::Sandboxed);
        directory.update_tenant("a", &TenantChange { code, ..TenantChange::default() }).unwrap();
        assert_eq!(view(&directory).callable_version("e", 1).unwrap_err(), VersionRefusal::OtherTier);
        directory.activate_version("a", version(1)).expect_err("native code of a sandboxed tenant");
    }

    #[test]
    fn a_staged_version_waits_among_the_kept_ones() {
        let directory = directory();
        directory.stage_version("a", version(1), "", 0).expect_err("there is none that could be called meanwhile");
        directory.put_extension("a", version(1)).unwrap();
        directory.stage_version("a", version(2), "", 0).unwrap();
        let now = view(&directory);
        assert_eq!((now.extension("e").unwrap().version, now.versions.next("e")), (1, 3));
        directory.activate_version("a", now.callable_version("e", 2).unwrap().clone()).unwrap();
        assert_eq!(view(&directory).extension("e").unwrap().version, 2);
    }
}
