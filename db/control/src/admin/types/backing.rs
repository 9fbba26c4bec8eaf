//! Tables in front of a backing, as the control API has them.

use sandstorm_catalog::{BackingAlteration, BackingPolicy, BackingSettings, BackingStats, ConflictChoice};
use serde::{Deserialize, Serialize};

use super::TableResponse;
use crate::admin::role::AccessRole;

/// How a table uses its backing from now on; what is left out stays.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeBackingRequest {
    /// What becomes of writes.
    pub policy: Option<BackingPolicy>,
    /// The name of the tenant's secret with the credentials, which are read anew.
    pub secret: Option<String>,
    /// Milliseconds for which a loaded record is not looked for again; 0: until it is evicted.
    pub fresh_ms: Option<u64>,
    /// Milliseconds after these for which it is still shown while it is loaded anew.
    pub stale_ms: Option<u64>,
    /// Milliseconds for which an absent key is remembered.
    pub absent_ms: Option<u64>,
    /// Milliseconds for which a changed record gathers further changes, with write-back.
    pub flush_after_ms: Option<u64>,
    /// Bytes that may wait to be written.
    pub dirty_limit_bytes: Option<u64>,
}

impl ChangeBackingRequest {
    /// As the directory takes it.
    pub fn alteration(self) -> BackingAlteration {
        let ChangeBackingRequest { policy, secret, fresh_ms, stale_ms, absent_ms, flush_after_ms, dirty_limit_bytes } =
            self;
        BackingAlteration { policy, secret, fresh_ms, stale_ms, absent_ms, flush_after_ms, dirty_limit_bytes }
    }

    /// What it changes, for the list of changes.
    pub fn summary(&self) -> String {
        let policy = self.policy.map(|policy| format!("policy {}", policy.name()));
        let secret = self.secret.as_ref().map(|secret| format!("backing secret {secret}"));
        let number = |name: &str, value: Option<u64>| value.map(|value| format!("{name} {value}"));
        let numbers = [
            number("fresh_ms", self.fresh_ms),
            number("stale_ms", self.stale_ms),
            number("absent_ms", self.absent_ms),
            number("flush_after_ms", self.flush_after_ms),
            number("dirty_limit_bytes", self.dirty_limit_bytes),
        ];
        [policy, secret].into_iter().chain(numbers).flatten().collect::<Vec<_>>().join(", ")
    }
}

/// What a table is a cache of, and how that goes.
#[derive(Clone, Debug, Serialize)]
pub struct BackingResponse {
    /// Where it is, and how it is used.
    #[serde(flatten)]
    pub settings: BackingSettings,
    /// Counters.
    #[serde(flatten)]
    pub stats: BackingStats,
}

impl TableResponse {
    /// Leaves out what a viewer may not see: an error of a backing may name an object, which is a key.
    #[must_use]
    pub(in crate::admin) fn withheld_from(mut self, role: AccessRole) -> TableResponse {
        if role.as_viewer() == role
            && let Some(error) = self.backing.as_mut().and_then(|backing| backing.stats.last_error.as_mut())
        {
            "(for the tenant and the operator)".clone_into(error);
        }
        self
    }
}

impl BackingResponse {
    /// Of a table.
    pub fn of(settings: BackingSettings, stats: BackingStats) -> BackingResponse {
        BackingResponse { settings, stats }
    }
}

/// `POST /v1/tenants/{tenant}/tables/{name}/flush`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlushRequest {
    /// What becomes of records that another writer has changed as well.
    pub conflicts: ConflictChoice,
    /// Milliseconds that it waits at most; left out, or more than the server's limit: that.
    pub wait_ms: Option<u64>,
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FlushResponse {
    /// Objects that were written or deleted meanwhile.
    pub flushes: u64,
}
