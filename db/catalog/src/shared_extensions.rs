//! Sharing, enabling and disabling extensions: see [`super::shared_extension`].

use std::sync::Arc;

use super::error::{DirectoryError, check_extension_name, check_name, over_quota};
use super::extension_loading::unknown_extension;
use super::shared_extension::{EnabledExtension, ShareAudience};
use super::snapshot::DirectorySnapshot;
use super::tenant_ref::TenantRef;
use super::{Directory, TenantView};
use crate::limits::SHARED_WITH;
use sandstorm_extension::{BudgetOverride, CodeTier, LoadedExtension};

/// What is to be enabled.
#[derive(Clone, Debug)]
pub struct EnableRequest {
    /// The owner's name.
    pub owner: String,
    /// The extension's name at its owner.
    pub extension: String,
    /// Its name at the tenants that enable it.
    pub name: String,
    /// The version; the one that the owner has called now, if not given.
    pub version: Option<u64>,
    /// See [`EnabledExtension::follow`].
    pub follow: bool,
    /// Whether the operator asks: no share is needed then.
    pub by_operator: bool,
}

impl DirectorySnapshot {
    /// The tenants that have an extension enabled: the tenant's name, its name for it, and what it is.
    pub fn enabled_of(&self, owner: u32, extension: &str) -> Vec<(&str, &str, &EnabledExtension)> {
        let mut found = Vec::new();
        for view in self.iter() {
            let own = view.enabled.iter().filter(|(_, one)| one.is_of(owner, extension));
            found.extend(own.map(|(name, one)| (view.tenant.name.as_str(), &**name, one)));
        }
        found.sort_unstable_by_key(|(tenant, name, _)| (*tenant, *name));
        found
    }

    /// Refuses to unload an extension that others have enabled.
    pub(super) fn check_unload(&self, owner: u32, extension: &str) -> Result<(), DirectoryError> {
        match self.enabled_of(owner, extension).len() {
            0 => Ok(()),
            tenants => Err(DirectoryError::StillEnabled { extension: extension.to_owned(), tenants }),
        }
    }

    /// Unloads an extension of an owner, or all of them, wherever they are enabled. Returns how many tenants had one.
    pub(super) fn disable_all(&mut self, owner: u32, extension: Option<&str>) -> usize {
        let is_of =
            |one: &EnabledExtension| one.owner_id == owner && extension.is_none_or(|name| one.extension == name);
        let have = self.iter().filter(|view| view.enabled.values().any(is_of));
        let have: Vec<Arc<TenantView>> = have.cloned().collect();
        for view in &have {
            let mut view = TenantView::clone(view);
            let names: Vec<Box<str>> =
                view.enabled.iter().filter(|(_, one)| is_of(one)).map(|(name, _)| name.clone()).collect();
            for name in names {
                view.enabled.remove(&name);
                view.extensions.remove(&name);
                view.suspended.remove(&name);
            }
            self.tenants.insert(view.tenant.id, Arc::new(view));
        }
        have.len()
    }

    /// Whether any tenant has that version of an extension enabled.
    pub fn is_enabled(&self, owner: u32, extension: &str, version: u64) -> bool {
        let is = |one: &EnabledExtension| one.is_of(owner, extension) && one.version == version;
        self.iter().any(|view| view.enabled.values().any(is))
    }
}

impl TenantView {
    /// Loads an enabled extension.
    fn put_enabled(&mut self, name: &str, of: EnabledExtension, library: &LoadedExtension) {
        let shared = LoadedExtension::new(name, of.version, Arc::clone(&library.library), BudgetOverride::default());
        let shared = shared.in_tier(library.tier).made_from(library.origin);
        self.extensions.insert(name.into(), Arc::new(shared));
        self.enabled.insert(name.into(), of);
    }

    /// Refuses to change what another tenant owns.
    pub(super) fn check_own(&self, name: &str) -> Result<(), DirectoryError> {
        match self.enabled.get(name) {
            Some(of) => Err(DirectoryError::SharedExtension {
                extension: name.to_owned(),
                owner: format!("{}/{}", of.owner, of.extension),
            }),
            None => Ok(()),
        }
    }
}

impl Directory {
    /// Lets others enable an extension; `None` ends that. Tenants that have it enabled keep it.
    ///
    /// # Errors
    /// No such tenant or extension; it is not sandboxed; it is another tenant's; too many names.
    pub fn share_extension<'a>(
        &self,
        owner: impl Into<TenantRef<'a>>,
        extension: &str,
        with: Option<ShareAudience>,
    ) -> Result<(), DirectoryError> {
        self.change_view(owner, |_, view| {
            view.check_own(extension)?;
            let Some(with) = with.clone() else {
                view.shared.remove(extension);
                return Ok(());
            };
            let loaded = view.extension(extension).ok_or_else(|| unknown_extension(view, extension))?;
            if loaded.tier != CodeTier::Sandboxed {
                return Err(DirectoryError::NativeShare(extension.to_owned()));
            }
            if let ShareAudience::Tenants(names) = &with {
                names.iter().try_for_each(|name| check_name("tenant", name))?;
                if names.len() > SHARED_WITH {
                    return Err(DirectoryError::TooManyShares(extension.to_owned()));
                }
            }
            view.shared.insert(extension.into(), with);
            Ok(())
        })
    }

    /// Enables an extension for tenants, for all of them or for none. It is mapped once for all.
    ///
    /// # Errors
    /// No such tenant; it is not shared with one of them; no such version; a name that is taken; a tenant that may have
    /// no code, or has as many extensions as it may.
    pub fn enable_extension(&self, tenants: &[u32], request: &EnableRequest) -> Result<u64, DirectoryError> {
        check_extension_name(&request.name)?;
        self.change(|_, snapshot| {
            let (of, library, with) = shared_version(snapshot, request)?;
            for tenant in tenants {
                let mut view = TenantView::clone(snapshot.find(*tenant)?);
                check_enabling(&view, &of, &with, request)?;
                view.put_enabled(&request.name, of.clone(), &library);
                snapshot.tenants.insert(*tenant, Arc::new(view));
            }
            Ok(of.version)
        })
    }

    /// Unloads an enabled extension. Running invocations go on.
    ///
    /// # Errors
    /// No such tenant, or no such extension is enabled there.
    pub fn disable_extension<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        name: &str,
    ) -> Result<EnabledExtension, DirectoryError> {
        self.change_view(tenant, |_, view| {
            let Some(of) = view.enabled.remove(name) else { return Err(unknown_extension(view, name)) };
            view.extensions.remove(name);
            view.suspended.remove(name);
            Ok(of)
        })
    }

    /// Unloads an extension of an owner wherever it is enabled, whether or not that can be written. Returns how many
    /// had it.
    ///
    /// # Errors
    /// None but those of the change itself.
    pub fn disable_everywhere(&self, owner: u32, extension: Option<&str>) -> Result<usize, DirectoryError> {
        self.restrict(|_, snapshot| Ok(snapshot.disable_all(owner, extension)))
    }

    /// Brings the followers of an owner's extension to the version that the owner has called now. Returns how many do.
    ///
    /// # Errors
    /// The change cannot be written.
    pub fn follow_owner(&self, owner: u32, extension: &str) -> Result<usize, DirectoryError> {
        self.change(|_, snapshot| {
            let Some(library) = snapshot.tenant(owner).and_then(|view| view.extension(extension)).cloned() else {
                return Ok(0);
            };
            if library.tier != CodeTier::Sandboxed {
                return Ok(0);
            }
            let is_behind =
                |one: &EnabledExtension| one.is_of(owner, extension) && one.follow && one.version != library.version;
            let have = |view: &&Arc<TenantView>| view.enabled.values().any(is_behind);
            let ids: Vec<u32> = snapshot.iter().filter(have).map(|view| view.tenant.id).collect();
            for id in &ids {
                let mut view = TenantView::clone(snapshot.find(*id)?);
                let behind: Vec<(Box<str>, EnabledExtension)> = view
                    .enabled
                    .iter()
                    .filter(|(_, one)| is_behind(one))
                    .map(|(name, one)| (name.clone(), one.clone()))
                    .collect();
                for (name, of) in behind {
                    view.put_enabled(&name, EnabledExtension { version: library.version, ..of }, &library);
                }
                snapshot.tenants.insert(*id, Arc::new(view));
            }
            Ok(ids.len())
        })
    }

    /// Loads an enabled extension again after a restart, with the owner's code: nothing is written for it.
    ///
    /// # Errors
    /// No such tenant, or it is not enabled there.
    pub fn reload_enabled(&self, tenant: u32, name: &str, code: &LoadedExtension) -> Result<(), DirectoryError> {
        self.change_view(tenant, |_, view| {
            let Some(of) = view.enabled.get(name).cloned() else { return Err(unknown_extension(view, name)) };
            view.put_enabled(name, EnabledExtension { version: code.version, ..of }, code);
            Ok(())
        })
    }
}

/// The version that a request asks for, and its code.
fn shared_version(
    snapshot: &DirectorySnapshot,
    request: &EnableRequest,
) -> Result<(EnabledExtension, Arc<LoadedExtension>, ShareAudience), DirectoryError> {
    let EnableRequest { owner, extension, version, follow, .. } = request;
    let not_shared = || DirectoryError::NotShared(format!("{owner}/{extension}"));
    // Whether there is such a tenant is not told to others.
    let view = snapshot.by_name(owner).ok_or_else(not_shared)?;
    let with = view.shared.get(extension.as_str()).ok_or_else(not_shared)?.clone();
    let called = view.extension(extension).ok_or_else(not_shared)?;
    let code = match version {
        None => called,
        Some(version) => {
            view.callable_version(extension, *version).map_err(|_| view.unknown_version(extension, *version))?
        }
    };
    if code.tier != CodeTier::Sandboxed {
        return Err(DirectoryError::NativeShare(extension.clone()));
    }
    let (owner_id, owner, extension) = (view.tenant.id, owner.clone(), extension.clone());
    let of = EnabledExtension { owner_id, owner, extension, version: code.version, follow: *follow };
    Ok((of, Arc::clone(code), with))
}

fn check_enabling(
    view: &TenantView,
    of: &EnabledExtension,
    with: &ShareAudience,
    request: &EnableRequest,
) -> Result<(), DirectoryError> {
    view.check_code()?;
    let not_shared = || DirectoryError::NotShared(format!("{}/{}", of.owner, of.extension));
    if view.tenant.id == of.owner_id {
        return Err(DirectoryError::ShareWithSelf(of.extension.clone()));
    }
    if !request.by_operator && !with.admits(&view.tenant.name) {
        return Err(not_shared());
    }
    match view.enabled.get(request.name.as_str()) {
        Some(same) if same.is_of(of.owner_id, &of.extension) => Ok(()),
        _ if view.versions.highest(&request.name).is_some() || view.extensions.contains_key(request.name.as_str()) => {
            let (tenant, extension) = (view.tenant.name.clone(), request.name.clone());
            Err(DirectoryError::ExtensionExists { tenant, extension })
        }
        _ => over_quota(&view.tenant, "extensions", view.tenant.quotas.extensions, view.extensions.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewTenant;
    use sandstorm_extension::{CodePolicy, ExtensionLibrary};
    use sandstorm_store::Epochs;

    fn version(number: u64, tier: CodeTier) -> Arc<LoadedExtension> {
        let new = LoadedExtension::new("rank", number, ExtensionLibrary::of_nothing(), BudgetOverride::default());
        Arc::new(new.in_tier(tier))
    }

    fn request(version: Option<u64>, follow: bool) -> EnableRequest {
        let (owner, extension, name) = ("lab".to_owned(), "rank".to_owned(), "rank".to_owned());
        EnableRequest { owner, extension, name, version, follow, by_operator: false }
    }

    /// A directory whose tenant `lab` has two versions of `rank`, and so many others.
    fn directory(others: u32) -> (Arc<Directory>, Vec<u32>) {
        let directory = Directory::new(Epochs::new());
        let new = |name: &str| NewTenant { code: Some(CodePolicy::Sandboxed), ..NewTenant::named(name) };
        directory.create_tenant(new("lab")).unwrap();
        directory.put_extension("lab", version(1, CodeTier::Sandboxed)).unwrap();
        directory.put_extension("lab", version(2, CodeTier::Sandboxed)).unwrap();
        let others = (0..others).map(|number| directory.create_tenant(new(&format!("t{number}"))).unwrap().0.tenant.id);
        let others = others.collect();
        (directory, others)
    }

    #[test]
    fn a_thousand_tenants_run_one_mapping_and_each_counts_and_stops_for_itself() {
        let (directory, all) = directory(1_000);
        directory.enable_extension(&all, &request(None, false)).expect_err("it is not shared");
        directory.share_extension("lab", "rank", Some(ShareAudience::Everyone)).unwrap();
        assert_eq!(directory.enable_extension(&all, &request(None, false)).unwrap(), 2);
        let snapshot = directory.snapshot();
        let of = |id: u32| snapshot.tenant(id).unwrap().extension("rank").unwrap().clone();
        let lab = snapshot.by_name("lab").unwrap().extension("rank").unwrap().clone();
        assert!(all.iter().all(|id| Arc::ptr_eq(&of(*id).library, &lab.library)), "mapped once");
        of(all[0]).begun(0);
        let calls = |one: &LoadedExtension| one.stats.read().invocations;
        assert_eq!((calls(&of(all[0])), calls(&of(all[1])), calls(&lab)), (1, 0, 0), "counted for each");
        directory.set_suspended(all[3], "rank", true, true).unwrap();
        let now = directory.snapshot();
        assert!(now.tenant(all[3]).unwrap().is_suspended("rank") && !now.tenant(all[4]).unwrap().is_suspended("rank"));
        assert_eq!(now.enabled_of(lab_id(&now), "rank").len(), 1_000);
        assert_eq!(directory.disable_everywhere(lab_id(&now), Some("rank")).unwrap(), 1_000);
        assert!(directory.snapshot().tenant(all[0]).unwrap().extension("rank").is_none());
    }

    fn lab_id(snapshot: &DirectorySnapshot) -> u32 {
        snapshot.by_name("lab").unwrap().tenant.id
    }

    #[test]
    fn an_enabled_version_stays_unless_its_tenant_follows() {
        let (directory, all) = directory(2);
        directory.share_extension("lab", "rank", Some(ShareAudience::Everyone)).unwrap();
        directory.enable_extension(&all[..1], &request(Some(1), false)).unwrap();
        directory.enable_extension(&all[1..], &request(None, true)).unwrap();
        directory.put_extension("lab", version(3, CodeTier::Sandboxed)).unwrap();
        let lab = lab_id(&directory.snapshot());
        assert_eq!(directory.follow_owner(lab, "rank").unwrap(), 1);
        let version_of = |id: u32| directory.snapshot().tenant(id).unwrap().extension("rank").unwrap().version;
        assert_eq!((version_of(all[0]), version_of(all[1])), (1, 3));
        assert!(directory.snapshot().is_enabled(lab, "rank", 1) && !directory.snapshot().is_enabled(lab, "rank", 2));
    }

    #[test]
    fn only_who_it_is_shared_with_enables_it_and_under_a_name_that_is_free() {
        let (directory, all) = directory(2);
        let with = ShareAudience::Tenants(["t0".to_owned()].into());
        directory.share_extension("lab", "rank", Some(with)).unwrap();
        let refused = directory.enable_extension(&all[1..], &request(None, false)).unwrap_err();
        let unknown = EnableRequest { owner: "none".to_owned(), ..request(None, false) };
        let unknown = directory.enable_extension(&all[1..], &unknown).unwrap_err();
        assert_eq!(
            refused.to_string().replace("lab/", "none/"),
            unknown.to_string(),
            "whether there is one is not told"
        );
        let all_or_none = directory.enable_extension(&all, &request(None, false));
        assert!(all_or_none.is_err() && directory.snapshot().tenant(all[0]).unwrap().enabled.is_empty());
        directory.put_extension(all[0], version(1, CodeTier::Sandboxed)).unwrap();
        directory.enable_extension(&all[..1], &request(None, false)).expect_err("it has one of that name");
        let dotted = EnableRequest { name: "lab.rank".to_owned(), ..request(None, false) };
        let refused = directory.enable_extension(&all[..1], &dotted).unwrap_err();
        assert!(refused.to_string().contains("dot") && !refused.hint().contains("'.'"), "{refused}");
        let other = EnableRequest { name: "lab-rank".to_owned(), ..request(None, false) };
        directory.enable_extension(&all[..1], &other).unwrap();
        let push = LoadedExtension::new("lab-rank", 1, ExtensionLibrary::of_nothing(), BudgetOverride::default());
        let push = Arc::new(push.in_tier(CodeTier::Sandboxed));
        let refused = directory.put_extension(all[0], push).unwrap_err();
        assert!(refused.to_string().contains("lab/rank") && refused.hint().contains("catalogue disable"), "{refused}");
        directory.remove_extension(all[0], "lab-rank").expect_err("it is disabled, not unloaded");
        directory.disable_extension(all[0], "lab-rank").unwrap();
        directory.share_extension("lab", "rank", None).unwrap();
        directory.enable_extension(&all[..1], &other).expect_err("it is shared no more");
    }
}
