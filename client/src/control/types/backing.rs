//! Tables in front of something else.

use serde::{Deserialize, Serialize};

/// What becomes of writes to a table with a backing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WritePolicy {
    /// A write is answered when the backing has it.
    #[default]
    WriteThrough,
    /// A write is answered at once, and written to the backing later.
    WriteBack,
    /// Clients read only; a delete makes the table forget what it has in memory.
    ReadThrough,
}

impl WritePolicy {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            WritePolicy::WriteThrough => "write-through",
            WritePolicy::WriteBack => "write-back",
            WritePolicy::ReadThrough => "read-through",
        }
    }
}

/// What a new table is a cache of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackingSpec {
    /// `file:///FOLDER`, `s3://BUCKET/PREFIX`, `memory:NAME`.
    pub url: String,
    /// The name of the tenant's secret with the credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// What becomes of writes.
    pub policy: WritePolicy,
    /// Milliseconds for which a loaded record is not looked for again; left out: until it is evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fresh_ms: Option<u64>,
    /// Milliseconds after these for which it is still shown while it is loaded anew; left out: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_ms: Option<u64>,
    /// Milliseconds for which an absent key is remembered; left out: 5,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent_ms: Option<u64>,
    /// Milliseconds for which a changed record gathers further changes, with write-back; left out: 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_after_ms: Option<u64>,
    /// Bytes that may wait to be written; left out: 64 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_limit_bytes: Option<u64>,
}

/// How a table uses its backing from now on; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackingPatch {
    /// What becomes of writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<WritePolicy>,
    /// The name of the tenant's secret with the credentials, which are read anew; the operator's token is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// As in [`BackingSpec`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fresh_ms: Option<u64>,
    /// As above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_ms: Option<u64>,
    /// As above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent_ms: Option<u64>,
    /// As above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_after_ms: Option<u64>,
    /// As above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_limit_bytes: Option<u64>,
}

/// What a table is a cache of, and how that goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackingStatus {
    /// Where it is.
    pub url: String,
    /// The name of the tenant's secret with the credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// What becomes of writes.
    pub policy: WritePolicy,
    /// Milliseconds for which a loaded record is not looked for again; 0: until it is evicted.
    pub fresh_ms: u64,
    /// Milliseconds after these for which it is still shown while it is loaded anew.
    pub stale_ms: u64,
    /// Milliseconds for which an absent key is remembered.
    pub absent_ms: u64,
    /// Milliseconds for which a changed record gathers further changes, with write-back.
    pub flush_after_ms: u64,
    /// Keys that the backing does not have as they are.
    pub dirty_keys: u64,
    /// Their bytes; `dirty_limit_bytes` may wait.
    pub dirty_bytes: u64,
    /// Bytes that may wait to be written.
    pub dirty_limit_bytes: u64,
    /// Milliseconds since the oldest of them was changed.
    pub oldest_dirty_ms: u64,
    /// Of them, those that another writer has changed as well.
    pub conflicted_keys: u64,
    /// Records that were asked for there so far, and absent ones.
    pub loads: u64,
    /// Of them, those that failed.
    pub load_errors: u64,
    /// Objects that were written or deleted there so far.
    pub flushes: u64,
    /// Attempts that failed.
    pub flush_errors: u64,
    /// Conflicts with other writers so far.
    pub conflicts: u64,
    /// Changes that were refused so far.
    pub backing_refusals: u64,
    /// Whether it counts as down.
    pub is_down: bool,
    /// The last error, if the last request failed.
    pub last_error: Option<String>,
}

/// What a flush does with records that another writer has changed as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictRemedy {
    /// It leaves them as they are, and fails.
    #[default]
    Keep,
    /// This table's records replace the other's.
    Ours,
    /// The other's records replace this table's.
    Theirs,
}

/// `POST /v1/tenants/{tenant}/tables/{name}/flush`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushSpec {
    /// What becomes of records that another writer has changed as well.
    pub conflicts: ConflictRemedy,
    /// Milliseconds that it waits at most; left out: the server's limit, a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlushReport {
    /// Objects that were written or deleted meanwhile.
    pub flushes: u64,
}
