//! Extensions whose calls are refused until they are resumed, or until another version replaces the loaded one.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::DirectoryError;
use super::extension_loading::unknown_extension;
use super::suspension::Suspension;
use super::tenant_ref::TenantRef;
use super::{Directory, TenantView};

fn insert_suspension(view: &mut TenantView, extension: &str, suspension: Suspension) -> Result<(), DirectoryError> {
    if !view.extensions.contains_key(extension) {
        return Err(unknown_extension(view, extension));
    }
    let binds_more = |old: &Arc<Suspension>| suspension.strength() > old.strength();
    if view.suspended.get(extension).is_none_or(binds_more) {
        view.suspended.insert(extension.into(), Arc::new(suspension));
    }
    Ok(())
}

impl Directory {
    /// Suspends an extension (its calls are answered `Suspended` from now on) or resumes it. A suspension by the
    /// operator stays when any other caller resumes it.
    ///
    /// # Errors
    /// No such tenant or extension.
    pub fn set_suspended<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        suspended: bool,
        by_operator: bool,
    ) -> Result<(), DirectoryError> {
        if suspended {
            let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
            let suspension = match by_operator {
                true => Suspension::binding(now_ms),
                false => Suspension::new(extension, now_ms, "the tenant asked for that"),
            };
            return self.suspend(tenant, extension, suspension);
        }
        self.change_view(tenant, |_, view| {
            let Some(loaded) = view.extensions.get(extension) else { return Err(unknown_extension(view, extension)) };
            if view.suspended.get(extension).is_some_and(|suspension| by_operator || suspension.is_tenants()) {
                // What is loaded for another tier than the policy's must not run.
                if !view.enabled.contains_key(extension) {
                    view.check_tier(loaded)?;
                }
                view.suspended.remove(extension);
            }
            Ok(())
        })
    }

    /// Lifts a suspension that waits for another version, because what is loaded has passed after all.
    ///
    /// # Errors
    /// No such tenant.
    pub fn lift_until_replaced<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
    ) -> Result<(), DirectoryError> {
        self.change_view(tenant, |_, view| {
            view.lift_until_replaced(extension);
            Ok(())
        })
    }

    /// Suspends an extension. An older suspension stays, with its reason, unless it is less binding.
    ///
    /// # Errors
    /// No such tenant or extension.
    pub fn suspend<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        suspension: Suspension,
    ) -> Result<(), DirectoryError> {
        self.change_view(tenant, |_, view| insert_suspension(view, extension, suspension.clone()))
    }

    /// The same for a suspension by the server: whether or not it can be persisted.
    ///
    /// # Errors
    /// No such tenant or extension.
    pub fn suspend_by_policy<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        suspension: Suspension,
    ) -> Result<(), DirectoryError> {
        self.restrict_view(tenant, |_, view| insert_suspension(view, extension, suspension.clone()))
    }
}
