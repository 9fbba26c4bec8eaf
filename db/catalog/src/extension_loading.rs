//! The extensions in the directory: which tenants may load one, which are loaded, and their budgets.

use std::sync::Arc;

use super::error::{DirectoryError, check_extension_name, check_name, over_quota};
use super::tenant_ref::TenantRef;
use super::{Directory, LoadedVersion, TenantView};
use sandstorm_extension::{BudgetOverride, LoadedExtension};

impl Directory {
    /// Counts a push, and checks that the tenant may load an extension of that name. It is called before compiling.
    ///
    /// # Errors
    /// No such tenant; a name that is not allowed; a quota that is reached; a tenant that may have no code.
    pub fn admit_push<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        now_ms: u64,
    ) -> Result<Arc<TenantView>, DirectoryError> {
        check_extension_name(extension)?;
        let view = self.snapshot().find(tenant)?.clone();
        view.check_code()?;
        view.check_own(extension)?;
        check_extension_quota(&view, extension)?;
        let limit = view.tenant.quotas.pushes_per_hour;
        if !view.tenant.usage.admit_push(now_ms, limit) {
            return Err(DirectoryError::OverQuota {
                tenant: view.tenant.name.clone(),
                quota: "pushes_per_hour",
                limit: limit.into(),
            });
        }
        Ok(view)
    }

    /// Loads an extension in place of an older version of the same name, which is returned and stays among those that
    /// are kept. Later requests call the new one; running invocations of the old one go on and end there.
    ///
    /// # Errors
    /// No such tenant; a newer version is loaded; too many extensions; another tier than the tenant's.
    pub fn put_extension<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: Arc<LoadedExtension>,
    ) -> Result<Option<Arc<LoadedExtension>>, DirectoryError> {
        self.load_extension(tenant, extension, "", 0)
    }

    /// The same, with the metadata: the version that its manifest names, and the time of its loading.
    ///
    /// # Errors
    /// As [`Directory::put_extension`].
    pub fn load_extension<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: Arc<LoadedExtension>,
        manifest_version: &str,
        loaded_at_ms: u64,
    ) -> Result<Option<Arc<LoadedExtension>>, DirectoryError> {
        let name: Box<str> = (*extension.name).into();
        check_name("extension", &name)?;
        self.change_view(tenant, |_, view| {
            view.check_own(&name)?;
            check_extension_quota(view, &name)?;
            view.check_tier(&extension)?;
            let (version, origin) = (extension.version, extension.origin);
            let newest = view.versions.all_of(&name).map(|known| known.version).max();
            if let Some(current) = newest.filter(|newest| *newest > version) {
                return Err(DirectoryError::OldVersion { extension: name.to_string(), version, current });
            }
            let manifest_version = manifest_version.to_owned();
            let loaded = LoadedVersion { version, manifest_version, loaded_at_ms, origin, refused: None };
            Arc::make_mut(&mut view.versions).replace(&name, loaded);
            view.lift_until_replaced(&name);
            Ok(view.make_current(Arc::clone(&extension)))
        })
    }

    /// Loads a version again that was built anew, for another tier or under other rules: the number and what else is
    /// known of it stay. Returns what it replaces, if that was loaded. Running invocations of it go on and end there.
    ///
    /// # Errors
    /// No such tenant; another version was loaded since, or it was unloaded; another tier than the tenant's.
    pub fn reinstall_extension<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: Arc<LoadedExtension>,
    ) -> Result<Option<Arc<LoadedExtension>>, DirectoryError> {
        let name = extension.name.clone();
        self.change_view(tenant, |_, view| {
            let known = view.versions.loaded().find(|(loaded, _)| *loaded == &*name).map(|(_, loaded)| loaded.version);
            match known {
                Some(version) if version == extension.version => {}
                Some(current) => {
                    let (extension, version) = (name.to_string(), extension.version);
                    return Err(DirectoryError::OldVersion { extension, version, current });
                }
                None => return Err(unknown_extension(view, &name)),
            }
            view.check_tier(&extension)?;
            view.lift_until_replaced(&name);
            Ok(view.extensions.insert(name.clone(), Arc::clone(&extension)))
        })
    }

    /// Unloads an extension, and returns it. Running invocations go on.
    ///
    /// # Errors
    /// No such tenant or extension; others have it enabled.
    pub fn remove_extension<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
    ) -> Result<Arc<LoadedExtension>, DirectoryError> {
        self.change_unused(tenant, extension, |view| {
            view.check_own(extension)?;
            view.shared.remove(extension);
            if !view.suspended.get(extension).is_some_and(|suspension| suspension.binding) {
                view.suspended.remove(extension);
            }
            view.confined.remove(extension);
            let removed = view.extensions.remove(extension).ok_or_else(|| unknown_extension(view, extension))?;
            view.kept.remove(extension);
            view.deployments.remove(extension);
            Arc::make_mut(&mut view.versions).unload(extension);
            Ok(removed)
        })
    }

    /// Restores an extension that was loaded before a restart: nothing is written for it.
    ///
    /// # Errors
    /// No such tenant; another tier than the tenant's.
    pub fn reload_extension<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: Arc<LoadedExtension>,
    ) -> Result<(), DirectoryError> {
        self.change_view(tenant, |_, view| {
            view.check_tier(&extension)?;
            view.extensions.insert(extension.name.clone(), Arc::clone(&extension));
            Ok(())
        })
    }

    /// Has a version called here whose number another server of the cluster has made the one that is called. Returns
    /// what it replaces; running invocations of that go on and end there.
    ///
    /// # Errors
    /// No such tenant; another version is to be called by now; another tier than the tenant's.
    pub fn adopt_version<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: Arc<LoadedExtension>,
    ) -> Result<Option<Arc<LoadedExtension>>, DirectoryError> {
        let (name, version) = (extension.name.clone(), extension.version);
        self.change_view(tenant, |_, view| {
            let wanted = view.versions.loaded().find(|(loaded, _)| *loaded == &*name).map(|(_, loaded)| loaded.version);
            let current = wanted.ok_or_else(|| unknown_extension(view, &name))?;
            if current != version {
                return Err(DirectoryError::OldVersion { extension: name.to_string(), version, current });
            }
            view.check_tier(&extension)?;
            let before = view.extensions.insert(name.clone(), Arc::clone(&extension));
            view.settle_kept(&name, before.clone());
            Ok(before)
        })
    }

    /// Changes the view of a tenant, if no other tenant has an extension of it enabled as the change is made: in a
    /// cluster another server may have enabled it since this one has looked.
    fn change_unused<'a, T>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        mut change: impl FnMut(&mut TenantView) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        let tenant = tenant.into();
        self.change(|_, snapshot| {
            let mut view = TenantView::clone(snapshot.find(tenant)?);
            snapshot.check_unload(view.tenant.id, extension)?;
            let done = change(&mut view)?;
            snapshot.tenants.insert(view.tenant.id, Arc::new(view));
            Ok(done)
        })
    }

    /// Removes an extension that could not be loaded again after a restart; `false` if there is none of that name.
    ///
    /// # Errors
    /// No such tenant; others have it enabled.
    pub fn forget_extension<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
    ) -> Result<bool, DirectoryError> {
        self.change_unused(tenant, extension, |view| {
            if !view.extensions.contains_key(extension) {
                view.kept.remove(extension);
            }
            Ok(!view.extensions.contains_key(extension)
                && Arc::make_mut(&mut view.versions).unload(extension).is_some())
        })
    }

    /// Sets the budget of one extension where it differs from its tenant's; it need not be loaded yet.
    ///
    /// # Errors
    /// No such tenant; a name that is not allowed; a quota outside of its range; more of them than extensions allowed.
    pub fn set_budget<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        budget: BudgetOverride,
    ) -> Result<(), DirectoryError> {
        check_name("extension", extension)?;
        self.change_tenant(tenant, |_, tenant| {
            tenant.quotas.check_budget(&budget)?;
            if budget == BudgetOverride::default() {
                tenant.budgets.remove(extension);
                return Ok(());
            }
            if !tenant.budgets.contains_key(extension) {
                over_quota(tenant, "extensions", tenant.quotas.extensions, tenant.budgets.len())?;
            }
            tenant.budgets.insert(extension.into(), budget);
            Ok(())
        })
    }
}

pub(super) fn unknown_extension(view: &TenantView, extension: &str) -> DirectoryError {
    DirectoryError::UnknownExtension { tenant: view.tenant.name.clone(), extension: extension.into() }
}

fn check_extension_quota(view: &TenantView, extension: &str) -> Result<(), DirectoryError> {
    if view.extensions.contains_key(extension) {
        return Ok(());
    }
    over_quota(&view.tenant, "extensions", view.tenant.quotas.extensions, view.extensions.len())
}
