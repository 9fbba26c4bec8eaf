//! The tier in which a tenant's code runs: the tenant's policy, which the operator sets, and single extensions of a
//! native tenant that are confined to the sandboxed tier.
//!
//! A version is only loaded in the tier that the policy names at that moment. While a tenant is moved to another tier,
//! its old versions serve until those of the new tier replace them, or until they are suspended.

use super::error::DirectoryError;
use super::extension_loading::unknown_extension;
use super::tenant_ref::TenantRef;
use super::{Directory, TenantView};
use sandstorm_extension::{CodeOrigin, CodeTier, LoadedExtension};

impl TenantView {
    /// The tier in which the loaded extension of that name runs; `None` if the tenant may have no code.
    pub fn tier_of(&self, extension: &str) -> Option<CodeTier> {
        self.tier_for(extension, self.versions.origin(extension))
    }

    /// The tier in which an extension of that name and origin runs; `None` if the tenant may have no code. A module
    /// runs in the sandboxed tier.
    pub fn tier_for(&self, extension: &str, origin: CodeOrigin) -> Option<CodeTier> {
        let is_confined = origin == CodeOrigin::Module || self.confined.contains_key(extension);
        match self.tenant.code.policy().tier() {
            Some(CodeTier::Native) if is_confined => Some(CodeTier::Sandboxed),
            tier => tier,
        }
    }

    /// Checks that the tenant may have code at all.
    ///
    /// # Errors
    /// [`DirectoryError::NoCode`].
    pub fn check_code(&self) -> Result<(), DirectoryError> {
        match self.tenant.code.refusal() {
            Some(_) => Err(DirectoryError::NoCode(self.tenant.name.clone())),
            None => Ok(()),
        }
    }

    /// Checks that the extension is of the tier in which it has to run.
    ///
    /// # Errors
    /// [`DirectoryError::NoCode`], [`DirectoryError::WrongTier`].
    pub(super) fn check_tier(&self, extension: &LoadedExtension) -> Result<(), DirectoryError> {
        self.check_code()?;
        match self.tier_for(&extension.name, extension.origin) {
            Some(expected) if expected != extension.tier => Err(DirectoryError::WrongTier {
                extension: extension.name.to_string(),
                found: extension.tier,
                expected,
            }),
            _ => Ok(()),
        }
    }

    /// Number of extensions whose calls are refused.
    pub fn suspended_extensions(&self) -> usize {
        if self.tenant.code.refusal().is_some() { self.extensions.len() } else { self.suspended.len() }
    }
}

impl Directory {
    /// Confines an extension of a native tenant to the sandboxed tier; `why` is the rest of a sentence. The loaded
    /// version goes on until one of that tier replaces it.
    ///
    /// # Errors
    /// No such tenant, no such extension.
    pub fn confine_extension<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        why: &str,
    ) -> Result<(), DirectoryError> {
        self.restrict_view(tenant, |_, view| {
            if !view.versions.loaded().any(|(name, _)| name == extension) {
                return Err(unknown_extension(view, extension));
            }
            view.confined.insert(extension.into(), why.into());
            Ok(())
        })
    }

    /// Ends a confinement: the next version of the extension runs in the tier that the tenant's policy names.
    ///
    /// # Errors
    /// No such tenant.
    pub fn release_extension<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
    ) -> Result<(), DirectoryError> {
        self.change_view(tenant, |_, view| {
            view.confined.remove(extension);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{DirectoryOptions, NewTenant, Suspension, TenantChange};
    use sandstorm_extension::{BudgetOverride, CodePolicy, ExtensionLibrary};
    use sandstorm_store::Epochs;

    fn version(number: u64, tier: CodeTier) -> Arc<LoadedExtension> {
        let library = ExtensionLibrary::of_nothing();
        Arc::new(LoadedExtension::new("e", number, library, BudgetOverride::default()).in_tier(tier))
    }

    fn with_code(code: CodePolicy) -> Arc<Directory> {
        let directory = Directory::new(Epochs::new());
        directory.create_tenant(NewTenant { code: Some(code), ..NewTenant::named("a") }).unwrap();
        directory
    }

    fn set(directory: &Directory, code: CodePolicy) {
        directory.update_tenant("a", &TenantChange { code: Some(code), ..TenantChange::default() }).unwrap();
    }

    #[test]
    fn a_new_tenant_has_the_servers_default_unless_its_own_is_given() {
        for code in [CodePolicy::Sandboxed, CodePolicy::Native, CodePolicy::None] {
            let options = DirectoryOptions { code, ..DirectoryOptions::default() };
            let directory = Directory::with_options(Epochs::new(), options);
            let (view, _) = directory.create_tenant(NewTenant::named("default")).unwrap();
            assert_eq!(view.tenant.code.policy(), code);
            let (view, _) =
                directory.create_tenant(NewTenant { code: Some(CodePolicy::None), ..NewTenant::named("own") }).unwrap();
            assert_eq!((view.tenant.code.policy(), view.tier_of("e")), (CodePolicy::None, None));
        }
        assert_eq!(DirectoryOptions::default().code, CodePolicy::Sandboxed);
    }

    #[test]
    fn only_what_is_of_the_policys_tier_is_loaded_and_what_is_there_goes_on_until_it_is_replaced() {
        let directory = with_code(CodePolicy::Native);
        let refused = directory.put_extension("a", version(1, CodeTier::Sandboxed)).unwrap_err();
        let (found, expected) = (CodeTier::Sandboxed, CodeTier::Native);
        assert_eq!(refused, DirectoryError::WrongTier { extension: "e".into(), found, expected });
        directory.put_extension("a", version(1, CodeTier::Native)).unwrap();
        set(&directory, CodePolicy::Sandboxed);
        let view = directory.snapshot().by_name("a").unwrap().clone();
        assert_eq!((view.extension("e").unwrap().tier, view.is_suspended("e")), (CodeTier::Native, false));
        directory.put_extension("a", version(2, CodeTier::Native)).expect_err("it was built for the other tier");
        directory.reload_extension("a", version(1, CodeTier::Native)).expect_err("nor after a restart");
        // The same version, built for the other tier.
        directory.reinstall_extension("a", version(2, CodeTier::Sandboxed)).expect_err("it is another version");
        directory.reinstall_extension("a", version(1, CodeTier::Native)).expect_err("it was built for the other tier");
        let replaced = directory.reinstall_extension("a", version(1, CodeTier::Sandboxed)).unwrap();
        assert_eq!(replaced.map(|replaced| replaced.tier), Some(CodeTier::Native));
        assert_eq!(directory.snapshot().by_name("a").unwrap().extension("e").unwrap().tier, CodeTier::Sandboxed);
        directory.remove_extension("a", "e").unwrap();
        directory.reinstall_extension("a", version(1, CodeTier::Sandboxed)).expect_err("it was unloaded meanwhile");
    }

    #[test]
    fn a_tenant_without_code_pushes_and_calls_nothing_and_is_told_what_the_operator_can_do() {
        let directory = with_code(CodePolicy::Native);
        directory.put_extension("a", version(1, CodeTier::Native)).unwrap();
        directory.set_suspended("a", "e", true, false).unwrap();
        set(&directory, CodePolicy::None);
        let view = directory.snapshot().by_name("a").unwrap().clone();
        let text = &view.suspension("e").unwrap().text;
        assert!(text.contains("code policy is none") && text.contains("`sandstorm tenant set a --code sandboxed`"));
        assert_eq!(view.suspended_extensions(), 1);
        let refused = directory.admit_push("a", "e", 0).unwrap_err();
        assert_eq!(refused, DirectoryError::NoCode("a".into()));
        assert!(refused.hint().contains("sandstorm tenant set NAME --code sandboxed"));
        directory.put_extension("a", version(2, CodeTier::Native)).expect_err("nor is it loaded");
        directory.set_suspended("a", "e", false, true).expect_err("nor does a resumption help");
        set(&directory, CodePolicy::Native);
        let view = directory.snapshot().by_name("a").unwrap().clone();
        assert!(view.suspension("e").unwrap().text.contains("the tenant asked for that"), "as it was before");
        assert_eq!(view.extension("e").unwrap().version, 1);
    }

    #[test]
    fn a_suspended_version_is_resumed_by_its_successor_and_by_nobody_in_the_wrong_tier() {
        let directory = with_code(CodePolicy::Native);
        directory.put_extension("a", version(1, CodeTier::Native)).unwrap();
        set(&directory, CodePolicy::Sandboxed);
        directory.suspend_by_policy("a", "e", Suspension::until_replaced(1, "its source is not kept")).unwrap();
        directory.set_suspended("a", "e", false, false).unwrap();
        let is_suspended = || directory.snapshot().by_name("a").unwrap().is_suspended("e");
        assert!(is_suspended(), "the tenant cannot lift it");
        directory.set_suspended("a", "e", false, true).expect_err("and the operator not in this tier");
        directory.put_extension("a", version(2, CodeTier::Sandboxed)).unwrap();
        assert!(!is_suspended(), "a version that passes is called");

        directory.suspend_by_policy("a", "e", Suspension::until_replaced(1, "a rule refuses it")).unwrap();
        directory.set_suspended("a", "e", true, true).unwrap();
        directory.put_extension("a", version(3, CodeTier::Sandboxed)).unwrap();
        assert!(is_suspended(), "the operator's own suspension outlives a push");
        directory.set_suspended("a", "e", false, true).unwrap();
        assert!(!is_suspended());
        directory.suspend_by_policy("a", "e", Suspension::until_replaced(1, "a rule refuses it")).unwrap();
        directory.remove_extension("a", "e").unwrap();
        assert!(!is_suspended(), "what is gone is not the reason any more");
    }

    #[test]
    fn a_module_runs_in_the_sandboxed_tier_whatever_the_policy_is_and_its_successor_as_the_policy_says() {
        let directory = with_code(CodePolicy::Native);
        let module = |number| {
            let extension =
                LoadedExtension::new("e", number, ExtensionLibrary::of_nothing(), BudgetOverride::default());
            Arc::new(extension.in_tier(CodeTier::Sandboxed).made_from(CodeOrigin::Module))
        };
        let tier_of = || directory.snapshot().by_name("a").unwrap().tier_of("e");
        directory.put_extension("a", module(1)).unwrap();
        assert_eq!(tier_of(), Some(CodeTier::Sandboxed));
        set(&directory, CodePolicy::Sandboxed);
        set(&directory, CodePolicy::Native);
        directory.reinstall_extension("a", module(1)).expect("as it was");
        directory.reload_extension("a", module(1)).expect("after a restart, too");
        directory.put_extension("a", version(2, CodeTier::Sandboxed)).expect_err("a source is native here");
        directory.put_extension("a", version(2, CodeTier::Native)).unwrap();
        assert_eq!(tier_of(), Some(CodeTier::Native));
        set(&directory, CodePolicy::None);
        directory.put_extension("a", module(3)).expect_err("no code is no code");
    }

    #[test]
    fn a_confined_extension_of_a_native_tenant_runs_in_the_sandboxed_tier_until_it_is_released() {
        let directory = with_code(CodePolicy::Native);
        directory.confine_extension("a", "e", "a rule refuses it").expect_err("there is none of that name");
        directory.put_extension("a", version(1, CodeTier::Native)).unwrap();
        directory.confine_extension("a", "e", "a rule refuses it").unwrap();
        directory.put_extension("a", version(2, CodeTier::Native)).expect_err("natively no more");
        directory.put_extension("a", version(1, CodeTier::Sandboxed)).unwrap();
        assert_eq!(directory.snapshot().by_name("a").unwrap().tier_of("other"), Some(CodeTier::Native));
        directory.release_extension("a", "e").unwrap();
        directory.put_extension("a", version(2, CodeTier::Native)).unwrap();
        directory.confine_extension("a", "e", "a rule refuses it").unwrap();
        directory.remove_extension("a", "e").unwrap();
        assert_eq!(directory.snapshot().by_name("a").unwrap().tier_of("e"), Some(CodeTier::Native), "ends with it");
    }
}
