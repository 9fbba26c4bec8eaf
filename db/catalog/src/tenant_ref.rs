//! A reference to a tenant: its id or its name.

/// A reference to a tenant, for control threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantRef<'a> {
    /// By id.
    Id(u32),
    /// By name.
    Name(&'a str),
}

impl<'a> From<&'a str> for TenantRef<'a> {
    fn from(name: &'a str) -> Self {
        TenantRef::Name(name)
    }
}

impl<'a> From<&'a String> for TenantRef<'a> {
    fn from(name: &'a String) -> Self {
        TenantRef::Name(name)
    }
}

impl From<u32> for TenantRef<'_> {
    fn from(id: u32) -> Self {
        TenantRef::Id(id)
    }
}

impl std::fmt::Display for TenantRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TenantRef::Id(id) => id.fmt(f),
            TenantRef::Name(name) => name.fmt(f),
        }
    }
}
