//! The JSON bodies of the control API (`/v1/`). Field names are snake_case. A field that a server does not send takes
//! its default, and an unknown one is skipped, so that either side may be a little older than the other.

use sandstorm_net::{CodeOrigin, CodePolicy, CodeTier};
use sandstorm_schema::ExtensionSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod access;
mod backing;
mod events;
mod heat;
mod history;
mod hot;
mod latency;
mod logs;
mod overview;
mod profile;
mod push;
mod records;
mod scrub;
mod slow;
mod top;
mod triggers;
mod versions;

pub use access::{AccessTokenSpec, AccessTokenStatus, CreatedAccessToken, LiveFinding, PageCode, RotatedToken};
pub use backing::{BackingPatch, BackingSpec, BackingStatus, ConflictRemedy, FlushReport, FlushSpec, WritePolicy};
pub use events::{EventBatch, EventQuery, EventRecord};
pub use heat::{BigRecordReport, BigReport, HeatMapRange, HeatMapReport};
pub use history::{HistoryQuery, HistoryReport, PeriodLength, PeriodUse, PeriodUseRow};
pub use hot::{HotKeyReport, HotReport, HotSpotReport, HotSpotsReport};
pub use latency::{DurationStats, LatencyReport, LatencyRow};
pub use logs::{LogBatch, LogLineRecord, LogQuery};
pub use overview::{ExtensionSort, ExtensionSummary, ExtensionTotals, KillQuery};
pub use profile::{ProfileReport, ProfiledStackReport};
pub use push::{ExtensionSource, ExtensionSourceFile, PushOutcome};
pub use records::{ChangePage, ExportedRecord, RecordPage, TableChange};
pub use scrub::{ScrubPassReport, ScrubReport};
pub use slow::{
    CallPausesReport, RequestWaitsReport, SlowCallReport, SlowPatch, SlowQuery, SlowReport, SlowRequestReport,
    TurnShareReport, WaitSumReport,
};
pub use top::{ExtensionUse, QuotaUse, TableUse, TenantIsolation, TenantUse, TopReport, TopRows};
pub use triggers::{DeadLetterReport, TriggerPatch, TriggerReport, TriggerSpec};
pub use versions::{Deploy, EnabledFrom, ExtensionDeployment, ExtensionVersion, RollBack};

/// `GET /v1/health`: that the server runs, and where its data ports are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerHealth {
    /// The server's version.
    pub version: String,
    /// Address of the first worker's data port; worker `i` serves the port after it by `i`.
    pub data_address: String,
    /// Number of workers, so of data ports.
    pub workers: u32,
    /// Seconds since the server started.
    pub uptime_s: u64,
    /// The builder's state: `ok`, or why it does not answer.
    pub builder: String,
    /// The kind of network driver that carries datagrams; empty without a token.
    pub network: String,
    /// Shortages, one line each, with advice; empty without the operator's token.
    pub warnings: Vec<String>,
    /// Durability of changes over a restart: `kept`, `not kept`, or `refused` (no disk); with a token also the reason.
    pub changes: String,
}

/// The limits of a tenant, by the name of each quota: `memory_bytes`, `slice_us`, `tables`, … A request names those
/// that differ from the server's defaults; the server refuses names that it does not know. An answer names all.
pub type QuotaMap = BTreeMap<String, u64>;

/// `POST /v1/tenants`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantSpec {
    /// Its name: 1-64 of `a-z 0-9 - _`.
    pub name: String,
    /// True if its data requests need no token (only where the data port is on loopback).
    pub open: bool,
    /// Its id; left out: the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// Its token; left out: a random one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Its home worker; left out: the server's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home_worker: Option<u32>,
    /// The code that it may push and call; left out: the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<CodePolicy>,
    /// Quotas that differ from the defaults.
    pub quotas: QuotaMap,
}

/// `PATCH /v1/tenants/{tenant}`: omitted fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantPatch {
    /// True if its data requests need no token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
    /// Its home worker, which is fixed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home_worker: Option<u32>,
    /// Whether its home worker is fixed, or follows its load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home_fixed: Option<bool>,
    /// The code that it may push and call; its extensions are moved to that tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<CodePolicy>,
    /// Quotas.
    pub quotas: QuotaMap,
}

/// A tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantStatus {
    /// Its id, as it travels in data requests.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// True if its data requests need no token.
    pub open: bool,
    /// The worker that serves it.
    pub home_worker: u32,
    /// Whether that worker is fixed; else it follows the tenant's load.
    pub home_fixed: bool,
    /// The code that it may push and call; `None`: the server is older than tiers, and runs it natively.
    pub code: Option<CodePolicy>,
    /// Its quotas, with the defaults filled in.
    pub quotas: QuotaMap,
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
    /// The time until which its old token works beside the new one, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_token_until_ms: Option<u64>,
    /// The used part of each quota, by name.
    pub used: BTreeMap<String, u64>,
    /// The rebuild that a change of its code has begun: see [`Control::rebuild`](super::Control::rebuild).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<u64>,
    /// Why a change that takes rights away is not known to hold at all servers of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_everywhere: Option<String>,
}

/// `GET /v1/rebuilds/{id}`: extensions that the server builds again from the sources that it keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RebuildStatus {
    /// Its number.
    pub id: u64,
    /// Its cause, for people.
    pub reason: String,
    /// Its beginning, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// True if it is over.
    pub done: bool,
    /// Extensions that are still to be rebuilt.
    pub waiting: u64,
    /// What became of the others.
    pub results: Vec<RebuiltExtension>,
    /// Results that are not listed, because there are too many.
    pub unlisted: u64,
}

/// `POST /v1/recheck`: native code that is loaded is checked again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecheckSpec {
    /// A pattern that is denied to native code from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// What becomes of what does not pass.
    pub then: NativeRemedy,
}

/// What becomes of native extensions that do not pass any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NativeRemedy {
    /// They are built for the sandboxed tier, and suspended if that fails.
    #[default]
    Sandbox,
    /// They are suspended.
    Suspend,
}

/// A pattern that is denied to native code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeniedToNative {
    /// The pattern.
    pub pattern: String,
    /// Since when, in milliseconds since 1970; left out if the configuration denies it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
}

/// What became of an extension in a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RebuiltExtension {
    /// The tenant.
    pub tenant: String,
    /// The extension.
    pub extension: String,
    /// Its version, which a rebuild does not change.
    pub version: u64,
    /// `unchanged`, `rebuilt`, `confined`, `suspended`, `not_loaded` or `gone`.
    pub result: String,
    /// The tier in which it runs, or would have to; `None` if the tenant may have no code.
    pub tier: Option<CodeTier>,
    /// The reason, for people; empty if there is nothing to say.
    pub text: String,
}

/// The answer to creating a tenant: the only time that its token is shown (and at `rotate`).
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CreatedTenant {
    /// The tenant.
    pub tenant: TenantStatus,
    /// Its secret; the server keeps only a hash.
    pub token: String,
}

/// `POST /v1/tenants/{tenant}/rotate`, `POST /v1/operator/rotate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenRotation {
    /// Seconds that the old token works on; left out: an hour; 0: not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u64>,
}

/// `GET /v1/operator`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperatorTokenStatus {
    /// The time until which the operator's old token works, in milliseconds since 1970; left out if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_until_ms: Option<u64>,
}

/// The behaviour of a table at its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableMode {
    /// Refuses writes.
    #[default]
    Store,
    /// Evicts.
    Cache,
    /// Moves cold records to the disk.
    Spill,
}

/// `POST /v1/tenants/{tenant}/tables`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableSpec {
    /// Its name: 1-64 of `a-z 0-9 - _`.
    pub name: String,
    /// Its id; left out: the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Behaviour at the quota.
    pub mode: TableMode,
    /// Bytes of records with their overhead; left out: an eighth of the tenant's `memory_bytes`, at most 1 GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// True if its keys are kept in order as well, for ranges.
    pub ordered: bool,
    /// What a crash may take of its records; left out: the server's default for its mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<DurabilityLevel>,
    /// What it is a cache of, if it is one; the operator's token is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing: Option<BackingSpec>,
}

/// What a crash may take of a table's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DurabilityLevel {
    /// All of them: they are in memory only.
    #[default]
    None,
    /// The writes of the last 100 ms.
    Interval,
    /// Nothing that was acknowledged or shown: answers wait for the disk.
    Disk,
    /// As above, also where the server's disk is lost: answers wait for the disks of other servers, too.
    Copies,
}

/// The change of a table; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TablePatch {
    /// Its name from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Behaviour at the quota. A store becomes a cache only while it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<TableMode>,
    /// Bytes of records with their overhead; of a store no less than it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// What a crash may take of its records from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<DurabilityLevel>,
    /// How it uses its backing from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing: Option<BackingPatch>,
    /// Whether its change feed has the records that expire from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feed_expiry: Option<bool>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableStatus {
    /// Its id, as it travels in data requests and in the arguments of extensions.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Behaviour at the quota.
    pub mode: TableMode,
    /// True if its keys are kept in order as well, for ranges.
    pub ordered: bool,
    /// What a crash may take of its records.
    pub durability: DurabilityLevel,
    /// Whether its change feed has the records that expire: it is set, or a trigger wants them.
    pub feed_expiry: bool,
    /// Its quota in bytes.
    pub quota_bytes: u64,
    /// Number of its records.
    pub records: u64,
    /// Bytes of its records with their overhead.
    pub bytes: u64,
    /// Records evicted so far.
    pub evictions: u64,
    /// Records expired so far.
    pub expirations: u64,
    /// Writes refused at the quota so far.
    pub refusals: u64,
    /// Slots of its index.
    pub capacity: u64,
    /// Tells whether it is the tenant's own, or what another tenant's grant of it allows.
    pub access: TableAccess,
    /// The tenant that granted it, if it is not an own one.
    pub owner: Option<String>,
    /// For an own table: the tenants that it is granted to.
    pub granted_to: Vec<GivenGrant>,
    /// Of a table of mode `spill`: what of it is on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<SpillStatus>,
    /// What it is a cache of, and how that goes.
    pub backing: Option<BackingStatus>,
}

/// What of a table of mode `spill` is on the disk. Counts are since the server's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SpillStatus {
    /// Records whose values are on the disk only.
    pub cold_records: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Cold records that were read.
    pub reads: u64,
    /// Bytes of the blocks that were read.
    pub read_bytes: u64,
    /// Microseconds that the reads took together, until the records were in memory.
    pub read_us: u64,
    /// Reads that failed, or found a damaged block.
    pub read_errors: u64,
    /// Requests and calls that waited for a cold record.
    pub waits: u64,
    /// Reads that waited for the tenant's quota.
    pub held_by_quota: u64,
    /// Records that left memory.
    pub spilled: u64,
    /// Times that a record stayed in memory, since the file had as many bytes as it may have.
    pub refused_by_quota: u64,
    /// Why the file cannot be written, if that is so.
    pub failure: Option<String>,
}

/// The access that a tenant has to a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableAccess {
    /// Everything: it is its own.
    #[default]
    Own,
    /// Read it: another tenant granted that.
    Read,
    /// Read and write it: another tenant granted that.
    ReadWrite,
}

/// `POST /v1/tenants/{tenant}/grants`: lets another tenant use a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GrantSpec {
    /// The table.
    pub table: String,
    /// Name of the tenant that gets it.
    pub to: String,
    /// `Read` or `ReadWrite`.
    pub access: TableAccess,
}

/// `GET /v1/tenants/{tenant}/grants`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GrantList {
    /// The grants that the tenant gave to others.
    pub given: Vec<GivenGrant>,
    /// The grants that it received from others.
    pub received: Vec<ReceivedGrant>,
}

/// A grant that a tenant gave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenGrant {
    /// The table.
    pub table: String,
    /// Name of the tenant that it was granted to.
    pub to: String,
    /// The access that the grant allows.
    pub access: TableAccess,
    /// For the operator: whether the grantee exists and has it. `None` for the owner, which is not told whether there
    /// is such a tenant.
    pub in_force: Option<bool>,
}

/// A grant that a tenant received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReceivedGrant {
    /// Its name here: `owner/table`.
    pub name: String,
    /// Its id here, as it travels in data requests.
    pub id: u64,
    /// The table's owner.
    pub owner: String,
    /// The access that the grant allows.
    pub access: TableAccess,
}

/// An extension and its counts since it was first pushed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtensionStatus {
    /// Its name.
    pub name: String,
    /// The version that runs now; each push gets a number that is higher than all before.
    pub version: u64,
    /// The tier that it runs in; `None`: the server is older than tiers, and runs it natively.
    pub tier: Option<CodeTier>,
    /// What it was built from.
    pub origin: CodeOrigin,
    /// The version that its manifest names; empty for a module, and for what was uploaded as an artifact.
    pub manifest_version: String,
    /// Digest of its source or module, hexadecimal.
    pub source_digest: String,
    /// True if the server keeps its source, and can build it again for another tier.
    pub source_kept: bool,
    /// Bytes of its library.
    pub library_bytes: u64,
    /// True if it is suspended (calls are refused).
    pub suspended: bool,
    /// Calls a second that are let in, where they keep being killed; 0: as they come.
    pub slowed_to_per_s: u32,
    /// The reason why calls are refused, or what the server did about it last.
    pub notice: Option<String>,
    /// The limits of one invocation.
    pub budget: Budget,
    /// Its counters.
    pub stats: ExtensionTotals,
    /// How long calls of this version took; `None`: there were none.
    pub latency: Option<LatencyRow>,
    /// The types of its functions; `None`: it takes and gives bytes.
    pub schema: Option<ExtensionSchema>,
    /// Where it comes from, if it is another tenant's that is enabled here.
    pub enabled_from: Option<EnabledFrom>,
    /// The version that is tried on a share of the calls.
    pub deployment: Option<ExtensionDeployment>,
    /// Its versions, newest first.
    pub versions: Vec<ExtensionVersion>,
}

/// The limits of one invocation of an extension. In a request, omitted fields take the values of the tenant's quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// CPU microseconds between two yields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice_us: Option<u64>,
    /// CPU microseconds in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_us: Option<u64>,
    /// Bytes of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arena_bytes: Option<u64>,
    /// Bytes of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_bytes: Option<u64>,
}

/// One remark of the checker or the compiler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BuildDiagnostic {
    /// `error` or `warning`.
    pub severity: String,
    /// File inside the extension.
    pub file: String,
    /// Line, from 1; 0: none.
    pub line: u32,
    /// Column, from 1; 0: none.
    pub column: u32,
    /// The rule that refused it, or the compiler's error code.
    pub rule: Option<String>,
    /// The compiler's message.
    pub message: String,
    /// The message as the compiler prints it, with the source line.
    pub rendered: String,
}

/// `GET /v1/stat`: counters since the server started, by name; `sandstorm stat` prints their growth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStats {
    /// Time at which they were read, in milliseconds since 1970.
    pub at_ms: u64,
    /// Sums over all workers (or, with a tenant's token, the tenant's own), each by its documented name.
    pub counters: BTreeMap<String, u64>,
    /// The same, worker by worker; empty for a tenant.
    pub workers: Vec<BTreeMap<String, u64>>,
    /// Tenant by tenant; empty for a tenant.
    pub tenants: BTreeMap<String, BTreeMap<String, u64>>,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlErrorBody {
    /// A word for programs: `refused`, `unauthenticated`, `not_found`, `exists`, `invalid`, `over_quota`, `builder`,
    /// `internal`, …
    pub code: String,
    /// What the code was called in the release before, where it has another name now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_code: Option<String>,
    /// A description of the failure for people.
    pub message: String,
    /// Advice.
    pub hint: Option<String>,
    /// For a refused push: every remark.
    pub diagnostics: Vec<BuildDiagnostic>,
}

/// Replaces a secret where it might get into a log.
const HIDDEN: &str = "(hidden)";

impl std::fmt::Debug for TenantSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.token.as_ref().map(|_| HIDDEN);
        let TenantSpec { name, open, id, home_worker, code, quotas, .. } = self;
        let mut shown = f.debug_struct("CreateTenant");
        shown.field("name", name).field("open", open).field("id", id).field("token", &token);
        shown.field("home_worker", home_worker).field("code", code).field("quotas", quotas).finish()
    }
}

impl std::fmt::Debug for CreatedTenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantCreated").field("tenant", &self.tenant).field("token", &HIDDEN).finish()
    }
}
