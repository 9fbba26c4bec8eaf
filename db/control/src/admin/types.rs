//! The JSON bodies of the control API. The client has its own copy of these types (`client/src/control/types.rs`); a
//! test of the binary compares the two.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::TableModeSetting;
use sandstorm_builder::{Diagnostic, SourceFile};
use sandstorm_catalog::{BackingSettings, Grant, QuotaChanges, Quotas, TableDurability, TableEntry, TenantView};
use sandstorm_metrics::histogram::DurationCounts;
use sandstorm_net::{CodeOrigin, CodePolicy, CodeTier};
use sandstorm_schema::ExtensionSchema;
use sandstorm_store::StorageMode;

mod access_tokens;
mod backing;
mod big;
mod budget;
mod calls;
mod catalogue;
mod cluster;
mod events;
mod extension_stats;
mod grants;
mod heat;
mod history;
mod hot;
mod kills;
mod latency;
mod logs;
mod overview;
mod profile;
mod rebuild;
mod records;
mod scrub;
mod secrets;
mod slow;
mod spill;
mod top;
mod triggers;
mod versions;

pub use self::backing::{BackingResponse, ChangeBackingRequest, FlushRequest, FlushResponse};
pub use access_tokens::{AccessTokenResponse, CreateAccessTokenRequest, CreateAccessTokenResponse, PageCodeResponse};
pub use big::{BigRecordResponse, BigResponse};
pub use budget::{BudgetResponse, ChangeBudgetRequest};
pub use calls::{CallLevelResponse, CallResponse, CallsResponse};
pub use catalogue::{
    EnableExtensionRequest, EnableForManyRequest, EnabledFromResponse, EnabledResponse, ShareRequest,
    SharedExtensionResponse,
};
pub use cluster::{
    BalanceRequest, BalanceResponse, BeginMovesRequest, CancelMovesRequest, ChangeServerRequest, ClusterMoveResponse,
    ClusterResponse, ClusterServerResponse, CopiesResponse, CopyResponse, FailOverRequest, FailOverResponse,
    GenerationResponse, MovesResponse, PlannedMoveResponse, ServerBalanceResponse, ServerChangeResponse, SplitRequest,
    SplitResponse, StoredCopyResponse, SuspectedServerResponse,
};
pub use events::EventsResponse;
pub use extension_stats::ExtensionStatsResponse;
pub use grants::{CreateGrantRequest, GivenGrantResponse, GrantsResponse, ReceivedGrantResponse};
pub use heat::{HeatRangeResponse, HeatResponse};
pub use history::HistoryResponse;
pub use hot::{HotKeyResponse, HotResponse, HotSpotResponse, HotSpotsResponse};
pub use kills::{CodePlaceResponse, KillResponse};
pub use latency::{DurationResponse, LatencyResponse, LatencyRowResponse};
pub use logs::{LogLineResponse, LogResponse};
pub use overview::{CallerResponse, OverviewQuotaResponse, OverviewResponse, TenantRowResponse};
pub use profile::{ProfileResponse, ProfiledStackResponse};
pub use rebuild::{
    DeniedPatternResponse, RebuildResponse, RebuildResult, RebuiltExtensionResponse, RecheckRemedy, RecheckRequest,
};
pub use records::{ChangePageResponse, ChangeResponse, RecordPageResponse, RecordResponse};
pub use scrub::{ScrubPassResponse, ScrubResponse};
pub use secrets::SecretResponse;
pub use slow::{
    ChangeSlowRequest, RequestWaitsResponse, SlowCallResponse, SlowRequestResponse, SlowResponse, TurnShareResponse,
};
pub use spill::SpillResponse;
pub(super) use top::nearest_quota;
pub use top::{
    ExtensionUseResponse, IsolationResponse, QuotaUseResponse, TableUseResponse, TenantUseResponse, TopResponse,
};
pub use triggers::{
    DeadChangeResponse, DeadLetterResponse, ReplayTriggerRequest, ReplayTriggerResponse, TriggerResponse,
};
pub use versions::{DeployRequest, DeploymentResponse, RollBackRequest, VersionResponse};

/// `GET /v1/health`.
#[derive(Clone, Debug, Serialize)]
pub struct HealthResponse {
    /// The server's version.
    pub version: String,
    /// Address of the first worker's data port; worker `i` serves the port after it by `i`.
    pub data_address: String,
    /// Number of workers.
    pub workers: u32,
    /// Seconds since the server started.
    pub uptime_s: u64,
    /// `ok` and the compiler's version, or the reason that there is no builder.
    pub builder: String,
    /// The network driver, and what brings packets to their workers; for callers with a token.
    pub network: String,
    /// Missing things, for instance the tenant of a port: a line each, for the operator.
    pub warnings: Vec<String>,
    /// Whether changes of tenants, tables, grants, tokens and extensions survive a restart: `kept`, `not kept`
    /// (`--ephemeral`), or `refused`, if they cannot be written now. Callers with a token also get the reason.
    pub changes: String,
}

/// `POST /v1/tenants`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateTenantRequest {
    /// Its name.
    pub name: String,
    /// Its id; assigned if not given.
    #[serde(default)]
    pub id: Option<u32>,
    /// Whether it is reached without a token.
    #[serde(default)]
    pub open: bool,
    /// Its token; generated if not given.
    #[serde(default)]
    pub token: Option<String>,
    /// Its home worker; assigned if not given.
    #[serde(default)]
    pub home_worker: Option<u32>,
    /// The code that it may have; the server's default if not given.
    #[serde(default)]
    pub code: Option<CodePolicy>,
    /// Quotas that differ from the server's.
    #[serde(default)]
    pub quotas: QuotaChanges,
}

/// `PATCH /v1/tenants/{tenant}`: omitted fields stay.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeTenantRequest {
    /// Whether it is reached without a token.
    #[serde(default)]
    pub open: Option<bool>,
    /// Its home worker, which is fixed there.
    #[serde(default)]
    pub home_worker: Option<u32>,
    /// Whether its home worker is fixed, or follows its load.
    #[serde(default)]
    pub home_fixed: Option<bool>,
    /// The code that it may have; its extensions are moved to that tier.
    #[serde(default)]
    pub code: Option<CodePolicy>,
    /// Quotas.
    #[serde(default)]
    pub quotas: QuotaChanges,
}

impl ChangeTenantRequest {
    /// What it changes, on a line.
    pub fn summary(&self) -> String {
        let ChangeTenantRequest { open, home_worker, home_fixed, code, quotas } = self;
        let open = open.map(|open| format!("open = {open}"));
        let home_worker = home_worker.map(|worker| format!("home_worker = {worker}"));
        let home_fixed = home_fixed.map(|is_fixed| format!("home_fixed = {is_fixed}"));
        let code = code.map(|code| format!("code = {}", code.name()));
        let quotas = serde_json::to_value(quotas).ok();
        let quotas = quotas.as_ref().and_then(|quotas| quotas.as_object()).into_iter().flatten();
        let quotas = quotas.map(|(name, value)| format!("{name} = {value}"));
        [open, home_worker, home_fixed, code].into_iter().flatten().chain(quotas).collect::<Vec<_>>().join(", ")
    }
}

/// A tenant.
#[derive(Clone, Debug, Serialize)]
pub struct TenantResponse {
    /// Its id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Whether it is reached without a token.
    pub open: bool,
    /// The worker that serves it.
    pub home_worker: u32,
    /// Whether that worker is fixed; else it follows the tenant's load.
    pub home_fixed: bool,
    /// The code that it may have.
    pub code: CodePolicy,
    /// Its quotas.
    pub quotas: Quotas,
    /// Number of its tables.
    pub tables: u64,
    /// Number of its extensions.
    pub extensions: u64,
    /// Grants of its tables to others.
    pub grants_given: u64,
    /// Other tenants' tables that are granted to it.
    pub grants_received: u64,
    /// Bytes of its records.
    pub memory_bytes: u64,
    /// Invocations begun and not ended.
    pub running: u32,
    /// The end of its old token's grace period, in milliseconds since 1970; omitted if there is no old token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_token_until_ms: Option<u64>,
    /// The use of the quotas, by their names.
    pub used: BTreeMap<String, u64>,
    /// The rebuild that a change of its code has begun; omitted otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<u64>,
    /// Why a change that takes rights away is not known to hold at all servers of the cluster; omitted otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_everywhere: Option<String>,
}

impl TenantResponse {
    /// The response for the tenant of `view`.
    pub fn of(view: &TenantView) -> TenantResponse {
        let tenant = &view.tenant;
        TenantResponse {
            id: tenant.id,
            name: tenant.name.clone(),
            open: tenant.open,
            home_worker: tenant.home_worker,
            home_fixed: tenant.home_fixed,
            code: tenant.code.policy(),
            quotas: tenant.quotas.clone(),
            tables: view.tables.len() as u64,
            extensions: view.extensions.len() as u64,
            grants_given: view.given.len() as u64,
            grants_received: view.granted.len() as u64,
            memory_bytes: view.tables.values().map(|table| table.table.stats().bytes).sum(),
            running: tenant.usage.running(),
            old_token_until_ms: tenant.old_token().map(|old| old.until_ms()),
            used: view.used(super::now_ms()).into_iter().map(|(name, used)| (name.to_owned(), used)).collect(),
            rebuild: None,
            not_everywhere: None,
        }
    }
}

/// The answer to creating a tenant: the only time that its token is shown.
#[derive(Clone, Serialize)]
pub struct CreateTenantResponse {
    /// The tenant.
    pub tenant: TenantResponse,
    /// Its token.
    pub token: String,
}

/// `POST /v1/tenants/{tenant}/rotate`, `POST /v1/operator/rotate`; an empty body stands for the defaults.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RotateTokenRequest {
    /// Seconds that the old token still works; an hour by default, 0: not at all.
    pub grace_s: Option<u64>,
}

/// The answer to a rotation.
#[derive(Clone, Serialize)]
pub struct RotateTokenResponse {
    /// The new token.
    pub token: String,
    /// The end of the old token's grace period, in milliseconds since 1970; omitted if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_until_ms: Option<u64>,
    /// Why the new token, and the end of the old one, are not known to hold at all servers of the cluster; omitted if
    /// they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_everywhere: Option<String>,
}

/// `GET /v1/operator`.
#[derive(Clone, Debug, Serialize)]
pub struct OperatorTokenResponse {
    /// The end of the operator's old token's grace period, in milliseconds since 1970; omitted if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_until_ms: Option<u64>,
}

/// `POST /v1/tenants/{tenant}/tables`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateTableRequest {
    /// Its name.
    pub name: String,
    /// Its id; assigned if not given.
    #[serde(default)]
    pub id: Option<u64>,
    /// Its behaviour at its quota.
    #[serde(default)]
    pub mode: TableModeSetting,
    /// Its quota in bytes.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Whether its keys are kept in order as well, for ranges.
    #[serde(default)]
    pub ordered: bool,
    /// What a crash may take of its records; the server's default for its mode if not given.
    #[serde(default)]
    pub durability: Option<TableDurability>,
    /// What it is a cache of, if it is one.
    #[serde(default)]
    pub backing: Option<BackingSettings>,
}

/// `PATCH /v1/tenants/{tenant}/tables/{name}`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeTableRequest {
    /// Its name from now on.
    #[serde(default)]
    pub name: Option<String>,
    /// Its behaviour at its quota.
    #[serde(default)]
    pub mode: Option<TableModeSetting>,
    /// Its quota in bytes.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// What a crash may take of its records from now on.
    #[serde(default)]
    pub durability: Option<TableDurability>,
    /// How it uses its backing from now on.
    #[serde(default)]
    pub backing: Option<ChangeBackingRequest>,
    /// Whether its change feed has the records that expire from now on.
    #[serde(default)]
    pub feed_expiry: Option<bool>,
}

impl ChangeTableRequest {
    /// What it changes, for the list of changes.
    pub fn summary(&self) -> String {
        let ChangeTableRequest { name, mode, quota_bytes, durability, backing, feed_expiry } = self;
        let mode = mode.map(|mode| format!("mode {}", StorageMode::from(mode).name()));
        let name = name.as_ref().map(|name| format!("name {name}"));
        let quota = quota_bytes.map(|bytes| format!("quota_bytes {bytes}"));
        let durability = durability.map(|durability| format!("durability {}", durability.name()));
        let backing = backing.as_ref().map(ChangeBackingRequest::summary);
        let expiry = feed_expiry.map(|on| format!("feed_expiry {on}"));
        [name, mode, quota, durability, backing, expiry].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// A table.
#[derive(Clone, Debug, Serialize)]
pub struct TableResponse {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// `store` or `cache`.
    pub mode: &'static str,
    /// Whether it is ordered.
    pub ordered: bool,
    /// `none`, `interval`, `disk` or `copies`: what a crash may take of its records.
    pub durability: &'static str,
    /// Whether its change feed has the records that expire: it is set, or a trigger wants them.
    pub feed_expiry: bool,
    /// Its quota in bytes.
    pub quota_bytes: u64,
    /// Number of its records.
    pub records: u64,
    /// Bytes of its records.
    pub bytes: u64,
    /// Records evicted so far.
    pub evictions: u64,
    /// Records expired so far.
    pub expirations: u64,
    /// Writes refused at the quota so far.
    pub refusals: u64,
    /// Slots.
    pub capacity: u64,
    /// `own`, or the access that another tenant's grant of it allows: `read` or `read_write`.
    pub access: &'static str,
    /// The tenant that granted it, if it is not the tenant's own.
    pub owner: Option<String>,
    /// For an own table: its grantees.
    pub granted_to: Vec<GivenGrantResponse>,
    /// Of a table of mode `spill`: what of it is on the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<SpillResponse>,
    /// What it is a cache of, and how that goes; null if it is none.
    pub backing: Option<BackingResponse>,
}

impl TableResponse {
    /// The response for a tenant's own table. The state of its grants is shown only to the operator.
    pub fn own(view: &TenantView, entry: &TableEntry, to_operator: bool) -> TableResponse {
        let granted_to = GivenGrantResponse::all(view, Some(&entry.name()), to_operator);
        TableResponse { granted_to, ..TableResponse::of(entry) }
    }

    /// The response for a granted table, as its grantee sees it, without its backing; `None` if the grant has ended.
    pub fn granted(grant: &Grant) -> Option<TableResponse> {
        let (access, name, owner) = (grant.access()?.name(), grant.name().to_string(), Some(grant.owner.to_string()));
        Some(TableResponse { id: grant.id, name, access, owner, backing: None, ..TableResponse::of(grant.entry()) })
    }

    fn of(entry: &TableEntry) -> TableResponse {
        let stats = entry.table.stats();
        TableResponse {
            id: entry.id,
            name: entry.name().to_string(),
            mode: entry.mode().name(),
            ordered: entry.table.is_ordered(),
            durability: entry.durability().name(),
            feed_expiry: entry.table.logs_expiry(),
            quota_bytes: entry.quota_bytes(),
            records: stats.records,
            bytes: stats.bytes,
            evictions: stats.evictions,
            expirations: stats.expirations,
            refusals: stats.refusals,
            capacity: stats.capacity,
            access: "own",
            owner: None,
            granted_to: Vec::new(),
            spill: entry.table.spill_stats().map(SpillResponse::from),
            backing: entry.backing().map(|backing| BackingResponse::of(backing.settings(), backing.stats())),
        }
    }
}

/// `PUT /v1/tenants/{tenant}/extensions/{name}`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushRequest {
    /// Text of `extension.toml`.
    pub manifest: String,
    /// The `.rs` files.
    pub files: Vec<SourceFile>,
}

/// The response to an accepted push.
#[derive(Clone, Debug, Serialize)]
pub struct PushResponse {
    /// The extension as it now runs.
    pub extension: ExtensionResponse,
    /// The version that was pushed: the one that runs now, unless it was only staged.
    pub version: u64,
    /// The compiler's warnings.
    pub diagnostics: Vec<Diagnostic>,
    /// Milliseconds from the request to the first call that would have run the new version.
    pub build_ms: u64,
}

impl PushResponse {
    /// What was loaded, on a line.
    pub fn summary(&self) -> String {
        let version = self.version;
        let row = self.extension.versions.iter().find(|row| row.version == version);
        let (tier, source) = row.map_or((self.extension.tier, ""), |row| (row.tier, row.source_digest.as_str()));
        let staged = if version == self.extension.version { "" } else { "staged, " };
        let source = source.get(..16).unwrap_or(source);
        format!("v{version}, {staged}{}, source {source}, {} ms", tier.name(), self.build_ms)
    }
}

/// An extension.
#[derive(Clone, Debug, Serialize)]
pub struct ExtensionResponse {
    /// Its name.
    pub name: String,
    /// The version that runs now.
    pub version: u64,
    /// The tier that it runs in.
    pub tier: CodeTier,
    /// What it was built from: source, or a WebAssembly module that was made elsewhere.
    pub origin: CodeOrigin,
    /// The version that its manifest names.
    pub manifest_version: String,
    /// SHA-256 of its source or module, hexadecimal.
    pub source_digest: String,
    /// Whether the server keeps its source, and can build it again for another tier.
    pub source_kept: bool,
    /// Bytes of its library.
    pub library_bytes: u64,
    /// Whether calls are refused.
    pub suspended: bool,
    /// Calls a second that are admitted while they keep being killed; 0: no limit.
    pub slowed_to_per_s: u32,
    /// The reason that calls are refused, or the server's last measure against it.
    pub notice: Option<String>,
    /// The budget of one invocation.
    pub budget: BudgetResponse,
    /// Its counters since it was first pushed.
    pub stats: ExtensionStatsResponse,
    /// How long calls of this version took; `null`: there were none.
    pub latency: Option<LatencyRowResponse>,
    /// The types of its functions; `null`: it takes and gives bytes.
    pub schema: Option<ExtensionSchema>,
    /// Where it comes from, if it is another tenant's that is enabled here.
    pub enabled_from: Option<EnabledFromResponse>,
    /// The version that is tried on a share of the calls.
    pub deployment: Option<DeploymentResponse>,
    /// Its versions, newest first; older ones are draining or gone.
    pub versions: Vec<VersionResponse>,
}

/// `GET /v1/extensions`: an extension among those of all tenants.
#[derive(Clone, Debug, Serialize)]
pub struct ExtensionSummaryResponse {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The version that runs now.
    pub version: u64,
    /// The tier that it runs in.
    pub tier: CodeTier,
    /// Whether calls are refused.
    pub suspended: bool,
    /// Calls a second that are admitted while they keep being killed; 0: no limit.
    pub slowed_to_per_s: u32,
    /// Its counters since it was first pushed.
    pub stats: ExtensionStatsResponse,
    /// Half of the calls of this version took at most so many nanoseconds, from arrival to answer.
    pub p50_ns: u64,
    /// 99 of a hundred of them.
    pub p99_ns: u64,
}

impl ExtensionSummaryResponse {
    /// The summary of an extension, with how long calls of its version took.
    pub fn of(tenant: &str, shown: ExtensionResponse, total: &DurationCounts) -> ExtensionSummaryResponse {
        let ExtensionResponse { name, version, tier, suspended, slowed_to_per_s, stats, .. } = shown;
        let [p50_ns, p99_ns] = [500_000, 990_000].map(|per_million| total.quantile_ns(per_million));
        let tenant = tenant.to_owned();
        ExtensionSummaryResponse { tenant, name, version, tier, suspended, slowed_to_per_s, stats, p50_ns, p99_ns }
    }
}

/// `GET /v1/stat`.
#[derive(Clone, Debug, Serialize)]
pub struct StatResponse {
    /// When it was read, in milliseconds since 1970.
    pub at_ms: u64,
    /// Sums over all workers and the server's gauges; with a tenant's token, the tenant's own.
    pub counters: BTreeMap<String, u64>,
    /// Worker by worker; empty for a tenant.
    pub workers: Vec<BTreeMap<String, u64>>,
    /// Tenant by tenant; empty for a tenant.
    pub tenants: BTreeMap<String, BTreeMap<String, u64>>,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorResponse {
    /// A code for programs.
    pub code: &'static str,
    /// What the code was called in the release before, where it has another name now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_code: Option<&'static str>,
    /// The error, for people.
    pub message: String,
    /// A hint for people.
    pub hint: Option<String>,
    /// For a refused push: all diagnostics.
    pub diagnostics: Vec<Diagnostic>,
}
