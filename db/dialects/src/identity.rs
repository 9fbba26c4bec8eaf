//! Whom a connection acts for, and for how long: a token that is replaced, a tenant that is deleted or closed ends it at once.

use std::sync::Arc;

use super::Entrance;
use sandstorm_accounts::TokenHash;
use sandstorm_catalog::{Snapshot, Tenant, TenantView};

/// What a connection's right stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// It has shown a token, under this credential.
    Credential(u64),
    /// The tenant is open.
    Open,
    /// Its port speaks for the tenant.
    Port,
}

/// A tenant that a connection acts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    tenant: u32,
    serial: u64,
    basis: Basis,
}

impl Entrance {
    /// What is not there of what the port speaks for, and what to do; none if all is.
    pub fn missing(&self, snapshot: &Snapshot) -> Option<String> {
        self.missing_tenant(snapshot).or_else(|| self.missing_table(snapshot))
    }

    /// The tenant that everybody there acts for, if there is none of that name.
    pub(crate) fn missing_tenant(&self, snapshot: &Snapshot) -> Option<String> {
        let tenant = self.tenant.as_deref()?;
        snapshot.by_name(tenant).is_none().then(|| {
            format!("this port speaks for tenant {tenant:?}, which does not exist: sandstorm tenant create {tenant}")
        })
    }

    /// The table that is used there at first, if its tenant has none of that name.
    pub(crate) fn missing_table(&self, snapshot: &Snapshot) -> Option<String> {
        let (tenant, table) = (self.tenant.as_deref()?, self.table.as_deref()?);
        snapshot.by_name(tenant)?.id_of(table).is_none().then(|| {
            format!(
                "this port uses table {table:?} of tenant {tenant:?}, which does not exist: \
                 sandstorm table create {table} --tenant {tenant}"
            )
        })
    }
}

impl Identity {
    fn new(tenant: &Tenant, basis: Basis) -> Identity {
        Identity { tenant: tenant.id, serial: tenant.serial, basis }
    }

    /// Of one who shows a tenant's name and token; an open tenant needs no token. Takes as long for a name that no tenant has.
    pub(crate) fn of_token(snapshot: &Snapshot, name: &str, token: &[u8]) -> Option<Identity> {
        let Some(view) = snapshot.by_name(name) else {
            TokenHash::refuse(token);
            return None;
        };
        let basis = match view.tenant.credential_of(token) {
            Some(credential) => Basis::Credential(credential),
            None if view.tenant.open => Basis::Open,
            None => return None,
        };
        Some(Identity::new(&view.tenant, basis))
    }

    /// Of everybody at a port that speaks for a tenant.
    pub fn of_port(snapshot: &Snapshot, entrance: &Entrance) -> Option<Identity> {
        let view = snapshot.by_name(entrance.tenant.as_deref()?)?;
        match entrance.public {
            true => view.tenant.open.then(|| Identity::new(&view.tenant, Basis::Open)),
            false => Some(Identity::new(&view.tenant, Basis::Port)),
        }
    }

    /// The tenant's id.
    pub fn tenant(&self) -> u32 {
        self.tenant
    }

    /// The tenant as it is now, if the connection may still act for it.
    #[inline]
    pub fn view<'s>(&self, snapshot: &'s Snapshot) -> Option<&'s Arc<TenantView>> {
        let view = snapshot.tenant(self.tenant)?;
        let tenant = &view.tenant;
        let stands = match self.basis {
            Basis::Credential(shown) => tenant.has_credential(shown),
            Basis::Open => tenant.open,
            Basis::Port => true,
        };
        (tenant.serial == self.serial && stands).then_some(view)
    }
}
