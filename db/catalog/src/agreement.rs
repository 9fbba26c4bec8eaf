//! The state on which the servers of a cluster agree: tenants with their settings, tokens, quotas, tables, grants and
//! versions of extensions. Each change is made in the cluster first, on top of all before it, and then here. Changes of
//! other servers are applied in the same order ([`super::agreed_tenants`]).
//!
//! State of one server alone is left out: home workers, which depend on its number of workers. Numbers of tables in the
//! log are agreed, though each server has a log: they are random, and name the same table everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The state up to which a server has applied what was agreed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgreedRevision {
    /// Grows with each change; 0: nothing is agreed yet.
    pub revision: u64,
    /// Changes so far.
    pub changes: u64,
    /// Those of them that have removed tenants.
    pub removals: u64,
}

/// A change on which the servers are to agree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgreedChange {
    /// Tenants in their new state, as text.
    pub put: Vec<(u32, String)>,
    /// Ids of deleted ones.
    pub gone: Vec<u32>,
    /// The id of the next one.
    pub next_tenant: u32,
}

/// What was agreed since some revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgreedNews {
    /// The state after it.
    pub revision: AgreedRevision,
    /// Whether it has all tenants, and not only the changed ones.
    pub is_whole: bool,
    /// Tenants in their newest state, as text.
    pub put: BTreeMap<u32, String>,
    /// The id of the next one.
    pub next_tenant: u32,
}

/// The outcome of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalOutcome {
    /// It was made. If this is the revision on which it stands, others may have made changes on top of it.
    Made(AgreedRevision),
    /// It was not made: others have changed something since the revision on which it stands.
    Outdated,
}

/// How the servers of a cluster agree.
pub trait DirectoryAgreement: Send + Sync + std::fmt::Debug {
    /// Makes a change, if nothing was agreed since `base`.
    ///
    /// # Errors
    /// No answer, and it is not known whether it was made; or it is too large, and was not sent.
    fn propose(&self, base: AgreedRevision, change: &AgreedChange) -> Result<ProposalOutcome, String>;

    /// What was agreed since `base`; `None`: nothing.
    ///
    /// # Errors
    /// No answer, or one that is not understood.
    fn news(&self, base: AgreedRevision) -> Result<Option<AgreedNews>, String>;

    /// A number for the next version of a tenant's extension, at least `least`, that no other server is given.
    ///
    /// # Errors
    /// No answer.
    fn reserve_version(&self, tenant: u32, extension: &str, least: u64) -> Result<u64, String>;

    /// Keeps an artifact, or a source, for the other servers.
    ///
    /// # Errors
    /// No answer, or it is too large.
    fn put_artifact(&self, name: &str, bytes: &[u8]) -> Result<(), String>;

    /// An artifact, or a source, that a server has kept.
    ///
    /// # Errors
    /// No answer, or it is damaged.
    fn artifact(&self, name: &str) -> Result<Option<Vec<u8>>, String>;

    /// Removes an artifact or a source.
    ///
    /// # Errors
    /// No answer.
    fn remove_artifact(&self, name: &str) -> Result<(), String>;
}

/// A server's part in the agreement; behind the lock for changes.
#[derive(Debug)]
pub(super) struct AgreedState {
    pub(super) agreement: Arc<dyn DirectoryAgreement>,
    /// Up to where what was agreed is applied here.
    pub(super) applied: AgreedRevision,
    /// What was agreed later, of which some could not be applied here.
    pub(super) missed: Option<AgreedRevision>,
    /// Tenants whose rights this server has restricted while nothing could be agreed.
    pub(super) unproposed: BTreeSet<u32>,
}
