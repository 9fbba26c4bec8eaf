//! The directory's part of trying a version on a share of the calls: see [`super::deployment`].

use super::deployment::Deployment;
use super::error::DirectoryError;
use super::tenant_ref::TenantRef;
use super::{Directory, TenantView};

impl TenantView {
    /// The version that is tried on a share of an extension's calls.
    #[inline]
    pub fn deployment(&self, name: &str) -> Option<&Deployment> {
        if self.deployments.is_empty() { None } else { self.deployments.get(name) }
    }
}

impl Directory {
    /// Gives a kept version a share of an extension's calls, in place of any that had one; a share of 0 ends that.
    ///
    /// # Errors
    /// No such tenant or extension; no such kept version, or one that is not called; a share above 99.
    pub fn deploy_version<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        deployment: Deployment,
    ) -> Result<(), DirectoryError> {
        let Deployment { version, percent, .. } = deployment;
        self.change_view(tenant, |_, view| {
            if percent == 0 {
                view.deployments.remove(extension);
                return Ok(());
            }
            if percent > 99 {
                return Err(DirectoryError::DeployedShare(percent));
            }
            view.known_version(extension, version)?;
            if view.callable_version(extension, version).is_err() {
                return Err(view.unknown_version(extension, version));
            }
            view.deployments.insert(extension.into(), deployment);
            Ok(())
        })
    }

    /// Ends a deployment because of what the version did, whether or not that can be written: `false` if another one
    /// has begun meanwhile.
    ///
    /// # Errors
    /// No such tenant.
    pub fn end_deployment<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        of: Deployment,
    ) -> Result<bool, DirectoryError> {
        self.restrict_view(tenant, |_, view| {
            let is_same = view.deployments.get(extension).is_some_and(|current| *current == of);
            if is_same {
                view.deployments.remove(extension);
            }
            Ok(is_same)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{NewTenant, TenantChange};
    use sandstorm_extension::{BudgetOverride, CodePolicy, ExtensionLibrary, LoadedExtension};
    use sandstorm_net::call_key::call_key;
    use sandstorm_store::Epochs;

    #[test]
    fn a_share_has_its_part_of_the_keys_and_a_larger_one_has_those_of_the_smaller() {
        let of = |percent| Deployment { version: 1, percent, since_ms: 0 };
        let keys: Vec<u64> = (0..100_000_u32).map(|number| call_key(&number.to_le_bytes())).collect();
        for percent in [1, 5, 50, 99] {
            let count = keys.iter().filter(|key| of(percent).has_key(**key)).count();
            let expected = 1_000 * percent as usize;
            assert!(count.abs_diff(expected) < 300 + expected / 20, "{percent} %: {count}");
            assert!(keys.iter().all(|key| !of(percent).has_key(*key) || of(percent + 1).has_key(*key)));
        }
    }

    #[test]
    fn a_deployed_version_is_kept_as_long_as_it_is_tried() {
        let directory = Directory::new(Epochs::new());
        directory.create_tenant(NewTenant { code: Some(CodePolicy::Native), ..NewTenant::named("a") }).unwrap();
        let version = |number| {
            let library = ExtensionLibrary::of_nothing();
            Arc::new(LoadedExtension::new("e", number, library, BudgetOverride::default()))
        };
        let view = || directory.snapshot().by_name("a").unwrap().clone();
        directory.put_extension("a", version(1)).unwrap();
        let of = |version, percent| Deployment { version, percent, since_ms: 1 };
        directory.deploy_version("a", "e", of(2, 5)).expect_err("there is none");
        directory.stage_version("a", version(2), "", 0).unwrap();
        directory.deploy_version("a", "e", of(2, 100)).expect_err("a share, not all");
        directory.deploy_version("a", "e", of(2, 5)).unwrap();
        (3..=9).for_each(|number| directory.stage_version("a", version(number), "", 0).unwrap());
        assert!(view().callable_version("e", 2).is_ok(), "it is not among the last five, and tried");
        assert_eq!(view().versions.kept("e").len(), 4);
        assert!(!directory.end_deployment("a", "e", of(2, 6)).unwrap(), "that one is over");
        assert_eq!(view().deployment("e"), Some(&of(2, 5)));
        directory.activate_version("a", view().callable_version("e", 2).unwrap().clone()).unwrap();
        assert_eq!((view().deployment("e"), view().extension("e").unwrap().version), (None, 2));
        directory.deploy_version("a", "e", of(9, 5)).unwrap();
        directory.put_extension("a", version(10)).unwrap();
        assert_eq!(view().deployment("e"), None, "a push ends it");
        directory.deploy_version("a", "e", of(9, 5)).unwrap();
        directory.remove_extension("a", "e").unwrap();
        assert_eq!(view().deployment("e"), None);
        let code = Some(CodePolicy::Sandboxed);
        directory.update_tenant("a", &TenantChange { code, ..TenantChange::default() }).unwrap();
    }
}
