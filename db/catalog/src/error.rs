//! The reasons for which the directory refuses a change.

use thiserror::Error;

use super::quotas::QuotaError;
use super::{TenantAccount, TenantView};
use crate::limits::{CHANGE_DURABILITY_MOST, SECRET_BYTES, SECRETS, SHARED_WITH};
use sandstorm_extension::CodeTier;

/// What to do where a table's new durability did not hold in time.
const LATE_DURABILITY_HINT: &str = "the disk did not write in time what it had to: its log, or a checkpoint of all \
     tables with durability. Try again while the disk has less to do; for more than it writes in that time, copy the \
     records to a table that is created with the durability";
/// The same where it holds already for what comes from then on.
const SLOW_DISK_HINT: &str = "nothing has to be done again: what was written before is on the disk once it writes; \
     `sandstorm doctor --live` tells whether it stalls";

/// What is said of a durability before its name and behind it.
fn late_text(holds: bool) -> [String; 2] {
    let seconds = CHANGE_DURABILITY_MOST.as_secs();
    match holds {
        true => {
            let behind = format!(" from now on, but what was written before was not on the disk after {seconds} s");
            ["has durability ".to_owned(), behind]
        }
        false => {
            let behind = format!(": its records were not on the disk after {seconds} s, so the change was undone");
            ["keeps durability ".to_owned(), behind]
        }
    }
}

/// The kind of a refusal, for a status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryErrorKind {
    /// The tenant, table, extension or grant does not exist.
    NotFound,
    /// The server cannot do it now.
    Unavailable,
    /// It exists already.
    Conflict,
    /// A quota or limit is reached.
    OverQuota,
    /// The tenant's code policy does not allow it.
    CodePolicy,
    /// The request is malformed.
    Invalid,
}

/// The reason that the directory refused a change. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DirectoryError {
    /// No tenant of that name or id.
    #[error("there is no tenant {0:?}")]
    UnknownTenant(String),
    /// A tenant of that name exists.
    #[error("there is a tenant {0:?} already")]
    TenantExists(String),
    /// A tenant of that id exists.
    #[error("tenant id {0} is taken by tenant {1:?}")]
    TenantIdTaken(u32, String),
    /// Ids start at 1.
    #[error("{0} id 0 is reserved; ids start at 1")]
    ZeroId(&'static str),
    /// All ids are in use.
    #[error("no {0} id is left; choose a free one")]
    NoIdLeft(&'static str),
    /// Too many tenants on this server.
    #[error("the server has {0} tenants, as many as it may hold")]
    TooManyTenants(usize),
    /// A name that is not allowed.
    #[error("{what} name {name:?} is not allowed: {why}")]
    InvalidName {
        /// The kind of thing that it should name.
        what: &'static str,
        /// The name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// The tenant has no such table.
    #[error("tenant {tenant:?} has no table {table:?}")]
    UnknownTable {
        /// The tenant.
        tenant: String,
        /// The requested name or id.
        table: String,
    },
    /// The tenant has a table of that name.
    #[error("tenant {tenant:?} has a table {table:?} already")]
    TableExists {
        /// The tenant.
        tenant: String,
        /// The name.
        table: String,
    },
    /// The tenant has a table of that id.
    #[error("table id {id} is taken by table {table:?}")]
    TableIdTaken {
        /// The id.
        id: u64,
        /// The table that has it.
        table: String,
    },
    /// Ids of a tenant's own tables end where those of granted ones start.
    #[error("table id {0} is too large: ids from 2^48 on are those of granted tables")]
    TableIdTooLarge(u64),
    /// The server has no folder for records.
    #[error(
        "table {0:?} cannot be kept on disk: the server keeps nothing (--ephemeral); leave out its durability, which is none here then"
    )]
    KeepsNothing(String),
    /// A table cannot have copies on other servers.
    #[error("table {table:?} cannot have the durability `copies`: {why}")]
    CannotCopy {
        /// The table.
        table: String,
        /// The reason.
        why: &'static str,
    },
    /// A table of mode `spill` cannot have another property.
    #[error("table {table:?} cannot be larger than memory: {why}")]
    CannotSpill {
        /// The table.
        table: String,
        /// What it would have to do without.
        why: &'static str,
    },
    /// The records of a table with a backing are not listed: memory has only some of them.
    #[error("table {0:?} is in front of a backing: its records are not listed or exported, since memory has only some")]
    CannotList(String),
    /// The file of a table of mode `spill` cannot be made.
    #[error("the spill file cannot be made: {0}")]
    NoSpillFile(String),
    /// A table cannot be in front of a backing, or not as is asked.
    #[error("table {table:?} cannot be used with a backing so: {why}")]
    CannotBack {
        /// The table.
        table: String,
        /// What is in the way.
        why: String,
    },
    /// The backing of a table does not take what it is given.
    #[error("{0}")]
    BackingUnavailable(String),
    /// A tenant can access all of its own tables already.
    #[error("tenant {0:?} cannot grant a table to itself")]
    GrantToSelf(String),
    /// A tenant has granted as many tables to another one as it may.
    #[error("{limit} tables are granted to {to:?} already, as many as one tenant may grant to another")]
    TooManyGrants {
        /// The other tenant.
        to: String,
        /// The limit.
        limit: usize,
    },
    /// An owner's operation was requested for a granted table.
    #[error("table {0:?} is another tenant's")]
    NotOwned(String),
    /// The tenant was granted no such table.
    #[error("no table {0:?} is granted")]
    NotGranted(String),
    /// The table is not granted to that tenant.
    #[error("table {table:?} is not granted to {to:?}")]
    UnknownGrant {
        /// The table.
        table: String,
        /// The tenant.
        to: String,
    },
    /// The tenant has no such extension.
    #[error("tenant {tenant:?} has no extension {extension:?}")]
    UnknownExtension {
        /// The tenant.
        tenant: String,
        /// The requested name.
        extension: String,
    },
    /// A push that came after a newer one.
    #[error("extension {extension:?} version {version} came after version {current} was loaded")]
    OldVersion {
        /// The extension.
        extension: String,
        /// The version of the push.
        version: u64,
        /// The version that is loaded.
        current: u64,
    },
    /// A version that is not among those that are kept.
    #[error("extension {extension:?} has no version {version}: kept are {kept}")]
    UnknownVersion {
        /// The extension.
        extension: String,
        /// The requested version.
        version: u64,
        /// The numbers of those that are kept.
        kept: String,
    },
    /// A kept version that a rule refuses since.
    #[error("version {version} of extension {extension:?} is not called any more: {why}")]
    RefusedVersion {
        /// The extension.
        extension: String,
        /// The version.
        version: u64,
        /// The reason, with the rule's name.
        why: String,
    },
    /// A share of calls that is none.
    #[error("a version gets 1 to 99 of a hundred keys, not {0}")]
    DeployedShare(u32),
    /// An extension that another tenant owns.
    #[error("{extension:?} is {owner}, which is enabled here: it is another tenant's")]
    SharedExtension {
        /// Its name here.
        extension: String,
        /// The owner, and its name there.
        owner: String,
    },
    /// An extension of that name is there.
    #[error("tenant {tenant:?} has an extension {extension:?} already, or had one")]
    ExtensionExists {
        /// The tenant.
        tenant: String,
        /// The name.
        extension: String,
    },
    /// An extension that is not shared with the tenant, or does not exist.
    #[error("no extension {0:?} is shared")]
    NotShared(String),
    /// An extension that others have enabled.
    #[error("{extension:?} is enabled for {tenants} other tenants")]
    StillEnabled {
        /// Its name at its owner.
        extension: String,
        /// Tenants that have it.
        tenants: usize,
    },
    /// Native code is not shared.
    #[error(
        "extension {0:?} is native, and only sandboxed code is shared: a tenant that enables it does not have to trust its author"
    )]
    NativeShare(String),
    /// The owner has it already.
    #[error("{0:?} is the tenant's own")]
    ShareWithSelf(String),
    /// An extension that is shared with too many.
    #[error("extension {0:?} can be shared with {SHARED_WITH} tenants by name")]
    TooManyShares(String),
    /// The tenant has as many as its quota allows.
    #[error("tenant {tenant:?} is at its quota {quota} = {limit}")]
    OverQuota {
        /// The tenant.
        tenant: String,
        /// The quota's name.
        quota: &'static str,
        /// Its value.
        limit: u64,
    },
    /// The tables' quotas do not fit into the tenant's memory.
    #[error(
        "a table of {wanted} bytes does not fit: tables of tenant {tenant:?} hold {reserved} of memory_bytes = {limit}"
    )]
    RecordMemory {
        /// The tenant.
        tenant: String,
        /// The requested bytes.
        wanted: u64,
        /// Bytes that the tenant's tables may use already.
        reserved: u64,
        /// The tenant's quota.
        limit: u64,
    },
    /// A table's quota is too small.
    #[error("a table's quota of {wanted} bytes is under the smallest, {min}")]
    TableTooSmall {
        /// The requested bytes.
        wanted: u64,
        /// The smallest quota.
        min: u64,
    },
    /// A quota below what the table holds.
    #[error("a quota of {wanted} bytes is less than the table holds, {holds} bytes")]
    TableHoldsMore {
        /// The requested bytes.
        wanted: u64,
        /// Bytes of its records.
        holds: u64,
    },
    /// A store with records that should become a cache.
    #[error(
        "table {table:?} has {records} records, and only an empty store becomes a cache: it would not know which to evict"
    )]
    NoCacheOfRecords {
        /// The table.
        table: String,
        /// Its records.
        records: u64,
    },
    /// A quota outside of its range.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The tenant may have no code.
    #[error("the code policy of tenant {0:?} is none: it may neither push nor call extensions")]
    NoCode(String),
    /// An extension of another tier than the tenant's policy names.
    #[error("extension {extension:?} is of the {found} tier, and the tenant's code policy asks for {expected}")]
    WrongTier {
        /// The extension.
        extension: String,
        /// Its tier.
        found: CodeTier,
        /// The tier in which it has to run.
        expected: CodeTier,
    },
    /// A token that is too weak.
    #[error("the token is not allowed: it needs 20 to 256 printable ASCII characters without blanks")]
    InvalidToken,
    /// An open tenant on a server whose data ports others can reach.
    #[error("tenant {0:?} may not be open: the data ports are bound to an address that other machines reach")]
    OpenRefused(String),
    /// The tenant has no such secret.
    #[error("tenant {tenant:?} has no secret {secret:?}")]
    UnknownSecret {
        /// The tenant.
        tenant: String,
        /// The requested name.
        secret: String,
    },
    /// A secret of a length that is not allowed.
    #[error("a secret of {0} bytes is not allowed: it needs 1 to {SECRET_BYTES}")]
    SecretLength(usize),
    /// The tenant has as many secrets as it may.
    #[error("tenant {0:?} has {SECRETS} secrets, as many as it may")]
    TooManySecrets(String),
    /// The change could not be written to the journal.
    #[error("{0}")]
    JournalUnavailable(String),
    /// A table's new durability does not hold in time.
    #[error("table {table:?} {}{durability}{}", late_text(*.holds)[0], late_text(*.holds)[1])]
    LateDurability {
        /// The table.
        table: String,
        /// The one that it has now.
        durability: &'static str,
        /// Whether that is the new one: what was written before is not on the disk yet.
        holds: bool,
    },
    /// Another server of the cluster has changed something since the state on which a change stands.
    #[error("other servers of the cluster change tenants all the time, and were faster: nothing was changed")]
    OutdatedChange,
    /// The servers of the cluster cannot agree on a change.
    #[error("the cluster cannot agree on the change: {0}")]
    NoAgreement(String),
    /// A home worker that the server does not have.
    #[error("home worker {wanted} is out of range: the server has workers 0 to {last}")]
    HomeWorker {
        /// The requested worker.
        wanted: u32,
        /// The last worker.
        last: u32,
    },
}

impl DirectoryError {
    /// The kind of this refusal.
    pub fn refusal(&self) -> DirectoryErrorKind {
        use DirectoryError as E;
        match self {
            E::UnknownTenant(_)
            | E::UnknownTable { .. }
            | E::UnknownExtension { .. }
            | E::UnknownVersion { .. }
            | E::NotShared(_)
            | E::UnknownGrant { .. }
            | E::UnknownSecret { .. }
            | E::NotGranted(_) => DirectoryErrorKind::NotFound,
            E::TenantExists(_)
            | E::TenantIdTaken(..)
            | E::TableExists { .. }
            | E::TableIdTaken { .. }
            | E::OldVersion { .. }
            | E::SharedExtension { .. }
            | E::StillEnabled { .. }
            | E::ExtensionExists { .. } => DirectoryErrorKind::Conflict,
            E::TooManyTenants(_)
            | E::OverQuota { .. }
            | E::RecordMemory { .. }
            | E::TooManyGrants { .. }
            | E::TooManyShares(_)
            | E::TooManySecrets(_) => DirectoryErrorKind::OverQuota,
            E::NoCode(_) | E::WrongTier { .. } | E::RefusedVersion { .. } => DirectoryErrorKind::CodePolicy,
            E::JournalUnavailable(_)
            | E::LateDurability { .. }
            | E::NoSpillFile(_)
            | E::BackingUnavailable(_)
            | E::OutdatedChange
            | E::NoAgreement(_) => DirectoryErrorKind::Unavailable,
            E::ZeroId(_)
            | E::NoIdLeft(_)
            | E::TableIdTooLarge(_)
            | E::KeepsNothing(_)
            | E::CannotCopy { .. }
            | E::DeployedShare(_)
            | E::NativeShare(_)
            | E::ShareWithSelf(_)
            | E::CannotSpill { .. }
            | E::CannotList(_)
            | E::CannotBack { .. }
            | E::GrantToSelf(_)
            | E::NotOwned(_)
            | E::InvalidName { .. }
            | E::TableTooSmall { .. }
            | E::TableHoldsMore { .. }
            | E::NoCacheOfRecords { .. }
            | E::Quota(_)
            | E::SecretLength(_)
            | E::InvalidToken
            | E::OpenRefused(_)
            | E::HomeWorker { .. } => DirectoryErrorKind::Invalid,
        }
    }

    /// Whether it may be over once another server's changes are known.
    pub(super) fn depends_on_state(&self) -> bool {
        use DirectoryErrorKind as K;
        matches!(self.refusal(), K::NotFound | K::Conflict | K::OverQuota | K::CodePolicy)
    }

    /// The remedy, for people.
    pub fn hint(&self) -> &'static str {
        use DirectoryError as E;
        match self {
            E::UnknownTenant(_) => "`sandstorm tenant list` shows them; `sandstorm tenant create NAME` makes one",
            E::TenantExists(_) => "choose another name, or delete that tenant first",
            E::ZeroId(_) | E::NoIdLeft(_) => "leave the id out to have a free one assigned, or choose another",
            E::TooManyTenants(_) => "delete a tenant, or raise limits.tenants in the server's configuration",
            E::InvalidName { what: "extension", .. } => {
                "use 1 to 64 letters, digits, '_' and '-', with a letter or digit first"
            }
            E::InvalidName { .. } => "use 1 to 64 letters, digits, '_', '-' and '.', with a letter or digit first",
            E::UnknownTable { .. } => "`sandstorm table list` shows them; `sandstorm table create NAME` makes one",
            E::TableExists { .. } => "choose another name, or drop that table first",
            E::KeepsNothing(_) => "start the server with a state directory",
            E::CannotCopy { .. } => "choose `disk`; docs/cluster.md says what copies need",
            E::CannotSpill { .. } => "leave out --ordered, or choose the mode `store`",
            E::CannotBack { .. } => "docs/backing.md says what a table with a backing may have",
            E::BackingUnavailable(_) => "`sandstorm table show` says what it said; try again when it is there",
            E::CannotList(_) => "get them by their keys, or list what the backing has",
            E::NoSpillFile(_) | E::JournalUnavailable(_) => {
                "see whether the disk of the state directory is full or broken, and try again"
            }
            E::LateDurability { holds: true, .. } => SLOW_DISK_HINT,
            E::LateDurability { holds: false, .. } => LATE_DURABILITY_HINT,
            E::GrantToSelf(_) | E::ShareWithSelf(_) => "name another tenant",
            E::NotOwned(_) => "its owner may; `sandstorm grant drop` gives up a table that was granted",
            E::UnknownGrant { .. } | E::NotGranted(_) => "`sandstorm grant list` shows what is granted",
            E::TooManyGrants { .. } => "revoke one that is not needed",
            E::TenantIdTaken(..) | E::TableIdTooLarge(_) | E::TableIdTaken { .. } => {
                "leave the id out to have a free one assigned"
            }
            E::UnknownExtension { .. } => "`sandstorm ext list` shows them; `sandstorm ext push DIR` makes one",
            E::SharedExtension { .. } => "`sandstorm catalogue disable NAME` takes it away; its owner changes it",
            E::StillEnabled { .. } => "`sandstorm catalogue unshare NAME --disable` takes it away from them first",
            E::ExtensionExists { .. } => "enable it under another name: --as NAME",
            E::NotShared(_) => "`sandstorm catalogue list` shows what is shared",
            E::NativeShare(_) => "the operator moves its tenant: `sandstorm tenant set NAME --code sandboxed`",
            E::TooManyShares(_) => "the operator can share it with all",
            E::DeployedShare(_) => "`--percent 100` has all calls go to it, `--percent 0` none",
            E::UnknownVersion { .. } => "`sandstorm ext versions NAME` shows those that are kept",
            E::RefusedVersion { .. } => {
                "push a version that passes; `sandstorm ext revoke --list` shows what is denied"
            }
            E::OldVersion { .. } => "push again if this source is the one you want",
            E::OverQuota { quota: "pushes_per_hour", .. } => "wait, or have the operator raise the quota",
            E::OverQuota { quota: "waiting_pushes", .. } => "wait until one of those that wait is built",
            E::OverQuota { .. } => "remove what is not needed, or have the operator raise the quota",
            E::RecordMemory { .. } => {
                "`sandstorm table set NAME --quota 64MiB` takes from another table what it need not have; or give this one \
                 a smaller quota, drop a table, or have the operator raise memory_bytes"
            }
            E::TableTooSmall { .. } => "give the table a larger quota",
            E::TableHoldsMore { .. } => "delete records first, or give it a larger quota",
            E::NoCacheOfRecords { .. } => {
                "create a table with --mode cache, and move the records: `sandstorm export`, `sandstorm import`"
            }
            E::Quota(_) => "choose a value in its range, and a slice no longer than the total",
            E::NoCode(_) => "the operator allows code: `sandstorm tenant set NAME --code sandboxed`",
            E::WrongTier { .. } => "push its source: the server builds it for the tier that the policy asks for",
            E::UnknownSecret { .. } => "`sandstorm secret list` shows the names; `sandstorm secret set NAME` sets one",
            E::SecretLength(_) => "keep larger values in a table that nobody else is granted",
            E::TooManySecrets(_) => "remove one that is not needed: `sandstorm secret rm NAME`",
            E::InvalidToken => "leave the token out to have one generated",
            E::OpenRefused(_) => "create the tenant with a token, or start the server with --allow-open",
            E::OutdatedChange => "try again",
            E::NoAgreement(_) => "`sandstorm cluster status` shows whether etcd answers; records are served meanwhile",
            E::HomeWorker { .. } => "leave the home worker out to have one assigned",
        }
    }
}

/// Longest name of a tenant, table or extension in bytes.
pub const MAX_NAME_LEN: usize = 64;

/// Checks the name of a tenant, table or extension (`what`): it has to fit into URLs, file names and command lines.
///
/// # Errors
/// [`DirectoryError::InvalidName`].
pub fn check_name(what: &'static str, name: &str) -> Result<(), DirectoryError> {
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > MAX_NAME_LEN {
        "it is longer than 64 bytes"
    } else if !name.as_bytes()[0].is_ascii_alphanumeric() {
        "it does not start with a letter or digit"
    } else if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')) {
        "it holds something else than letters, digits, '_', '-' and '.'"
    } else {
        return Ok(());
    };
    Err(DirectoryError::InvalidName { what, name: name.into(), why })
}

/// Checks the name of an extension: behind a dot one calls a typed function of it, so it has none itself.
///
/// # Errors
/// [`DirectoryError::InvalidName`].
pub fn check_extension_name(name: &str) -> Result<(), DirectoryError> {
    let what = "extension";
    check_name(what, name)?;
    if name.contains('.') {
        let why = "what follows a dot is a typed function of it";
        return Err(DirectoryError::InvalidName { what, name: name.into(), why });
    }
    Ok(())
}

pub(super) fn over_quota(
    tenant: &TenantAccount,
    quota: &'static str,
    limit: u32,
    has: usize,
) -> Result<(), DirectoryError> {
    if has >= limit as usize {
        return Err(DirectoryError::OverQuota { tenant: tenant.name.clone(), quota, limit: limit.into() });
    }
    Ok(())
}

pub(super) fn unknown_table(view: &TenantView, table: &str) -> DirectoryError {
    if view.granted_names.contains_key(table) {
        return DirectoryError::NotOwned(table.into());
    }
    DirectoryError::UnknownTable { tenant: view.tenant.name.clone(), table: table.into() }
}
