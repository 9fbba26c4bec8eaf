//! The tenant that a connection acts for. The right to do so ends at once when the token is replaced, or the tenant is
//! deleted or closed.

use std::sync::Arc;

use super::PortService;
use sandstorm_accounts::TokenHash;
use sandstorm_catalog::{DirectorySnapshot, TenantAccount, TenantView};

/// The reason that a connection may act for its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuthBasis {
    /// It has shown the token of this credential.
    Credential(u64),
    /// The tenant is open.
    Open,
    /// Its port is configured for the tenant, or it is another server's.
    Port,
}

/// A tenant that a connection acts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionIdentity {
    tenant: u32,
    serial: u64,
    basis: AuthBasis,
}

impl PortService {
    /// The missing tenant or table of a port, and the remedy; none if all exist.
    pub fn missing(&self, snapshot: &DirectorySnapshot) -> Option<String> {
        self.missing_tenant(snapshot).or_else(|| self.missing_table(snapshot))
    }

    /// The tenant of the port, if there is none of that name.
    pub(crate) fn missing_tenant(&self, snapshot: &DirectorySnapshot) -> Option<String> {
        let tenant = self.tenant.as_deref()?;
        snapshot.by_name(tenant).is_none().then(|| {
            format!("this port speaks for tenant {tenant:?}, which does not exist: sandstorm tenant create {tenant}")
        })
    }

    /// The default table of the port, if its tenant has none of that name.
    pub(crate) fn missing_table(&self, snapshot: &DirectorySnapshot) -> Option<String> {
        let (tenant, table) = (self.tenant.as_deref()?, self.table.as_deref()?);
        snapshot.by_name(tenant)?.id_of(table).is_none().then(|| {
            format!(
                "this port uses table {table:?} of tenant {tenant:?}, which does not exist: \
                 sandstorm table create {table} --tenant {tenant}"
            )
        })
    }
}

impl ConnectionIdentity {
    fn new(tenant: &TenantAccount, basis: AuthBasis) -> ConnectionIdentity {
        ConnectionIdentity { tenant: tenant.id, serial: tenant.serial, basis }
    }

    /// The identity of a client with a tenant's name and token; an open tenant needs no token. Takes as long for a name
    /// that no tenant has.
    pub(crate) fn from_token(snapshot: &DirectorySnapshot, name: &str, token: &[u8]) -> Option<ConnectionIdentity> {
        let Some(view) = snapshot.by_name(name) else {
            TokenHash::refuse(token);
            return None;
        };
        let basis = match view.tenant.credential_of(token) {
            Some(credential) => AuthBasis::Credential(credential),
            None if view.tenant.open => AuthBasis::Open,
            None => return None,
        };
        Some(ConnectionIdentity::new(&view.tenant, basis))
    }

    /// The identity of all clients at a port that is configured for a tenant.
    pub fn from_port(snapshot: &DirectorySnapshot, service: &PortService) -> Option<ConnectionIdentity> {
        let view = snapshot.by_name(service.tenant.as_deref()?)?;
        match service.public {
            true => view.tenant.open.then(|| ConnectionIdentity::new(&view.tenant, AuthBasis::Open)),
            false => Some(ConnectionIdentity::new(&view.tenant, AuthBasis::Port)),
        }
    }

    /// The identity of what another server of the cluster sends for a client of the tenant: that server has looked
    /// whether the client may act for it.
    pub(crate) fn of_peer(tenant: &TenantAccount) -> ConnectionIdentity {
        ConnectionIdentity::new(tenant, AuthBasis::Port)
    }

    /// The tenant's id.
    pub fn tenant(&self) -> u32 {
        self.tenant
    }

    /// The tenant as it is now, if the connection may still act for it.
    #[inline]
    pub fn view<'s>(&self, snapshot: &'s DirectorySnapshot) -> Option<&'s Arc<TenantView>> {
        let view = snapshot.tenant(self.tenant)?;
        let tenant = &view.tenant;
        let still_valid = match self.basis {
            AuthBasis::Credential(shown) => tenant.has_credential(shown),
            AuthBasis::Open => tenant.open,
            AuthBasis::Port => true,
        };
        (tenant.serial == self.serial && still_valid).then_some(view)
    }
}
