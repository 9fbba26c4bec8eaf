//! All tenants at one moment, and their lookup.

use std::sync::Arc;

use hashbrown::HashMap;

use super::TenantView;
use super::error::DirectoryError;
use super::tenant_ref::TenantRef;
use super::token_match::TokenMatch;
use sandstorm_accounts::token::TokenHash;
use sandstorm_store::slots::SlotOwnership;

/// All tenants at one moment.
#[derive(Clone, Debug, Default)]
pub struct DirectorySnapshot {
    pub(super) generation: u64,
    pub(super) tenants: HashMap<u32, Arc<TenantView>>,
    pub(super) names: HashMap<Box<str>, u32>,
    pub(super) slots: Option<Arc<SlotOwnership>>,
}

impl DirectorySnapshot {
    /// The number of the change that made it.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The slots that this server owns, in a cluster.
    #[inline]
    pub fn slots(&self) -> Option<&Arc<SlotOwnership>> {
        self.slots.as_ref()
    }

    /// The tenant of that id.
    #[inline]
    pub fn tenant(&self, id: u32) -> Option<&Arc<TenantView>> {
        self.tenants.get(&id)
    }

    /// The tenant of that name.
    #[inline]
    pub fn by_name(&self, name: &str) -> Option<&Arc<TenantView>> {
        self.tenants.get(self.names.get(name)?)
    }

    /// The tenant that is named so.
    ///
    /// # Errors
    /// [`DirectoryError::UnknownTenant`].
    #[inline]
    pub fn find<'a>(&self, tenant: impl Into<TenantRef<'a>>) -> Result<&Arc<TenantView>, DirectoryError> {
        let tenant = tenant.into();
        let found = match tenant {
            TenantRef::Id(id) => self.tenant(id),
            TenantRef::Name(name) => self.by_name(name),
        };
        found.ok_or_else(|| DirectoryError::UnknownTenant(tenant.to_string()))
    }

    /// The tenant whose token this is, current or old. Compares with every tenant, and takes the same time whether or
    /// not one matches.
    #[inline]
    pub fn by_token(&self, token: &[u8]) -> Option<&Arc<TenantView>> {
        self.shown(token).map(|(view, _)| view)
    }

    /// The same, with which of its tokens it is.
    pub fn shown(&self, token: &[u8]) -> Option<(&Arc<TenantView>, TokenMatch)> {
        let presented = TokenHash::of_presented(token)?;
        let mut found = None;
        for view in self.tenants.values() {
            for (credential, verifier) in view.tenant.verifiers() {
                if verifier.same(&presented) {
                    let current = credential == view.tenant.credential;
                    found = Some((view, if current { TokenMatch::Current } else { TokenMatch::Old }));
                }
            }
        }
        found
    }

    /// All tenants, in no order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Arc<TenantView>> {
        self.tenants.values()
    }

    /// All tenants in the order of their names.
    #[inline]
    pub fn sorted(&self) -> Vec<&Arc<TenantView>> {
        let mut tenants: Vec<_> = self.tenants.values().collect();
        tenants.sort_by(|a, b| a.tenant.name.cmp(&b.tenant.name));
        tenants
    }

    /// Number of tenants.
    #[inline]
    pub fn len(&self) -> usize {
        self.tenants.len()
    }

    /// Whether there is no tenant.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }
}
