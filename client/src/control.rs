//! The control API over HTTP, blocking: tenants, tables, extensions, kills, counters.
//!
//! It has a method for each route of docs/control.md that tools need; `/v1/workers` and `/metrics` are for monitoring.
//!
//! Every request but `health` carries `authorization: Bearer TOKEN`, the operator's or the tenant's. An answer that is
//! not a success (2xx) has a [`ControlErrorBody`].

mod access;
mod async_control;
mod call_reports;
mod catalogue;
mod cluster;
mod error;
mod logs;
mod secrets;
mod triggers;
mod types;
mod version_changes;
mod watches;

pub use async_control::AsyncControl;
pub use call_reports::{CallLevelReport, CallReport, CallsReport, CodePlaceReport, KillReport};
pub use catalogue::{EnableForMany, EnableSpec, EnabledOutcome, ShareSpec, SharedExtensionStatus};
pub use cluster::{
    BalanceReport, BalanceSpec, ClusterMemberStatus, ClusterStatus, CopiesReport, CopyReport, FailOverReport,
    FailOverSpec, GenerationReport, PlannedSlotMove, ServerBalanceReport, ServerChangeReport, ServerChangeSpec,
    SlotMoveCount, SlotMoveSpec, SlotMoveStatus, SplitReport, SplitSpec, StoredCopyReport, SuspectedServerReport,
};
pub use error::ControlError;
pub use sandstorm_net::trust::Trust;
pub use secrets::SecretStatus;
pub use types::{
    AccessTokenSpec, AccessTokenStatus, BackingPatch, BackingSpec, BackingStatus, BigRecordReport, BigReport, Budget,
    BuildDiagnostic, CallPausesReport, ChangePage, ConflictRemedy, ControlErrorBody, CreatedAccessToken, CreatedTenant,
    DeadLetterReport, DeniedToNative, Deploy, DurabilityLevel, DurationStats, EnabledFrom, EventBatch, EventQuery,
    EventRecord, ExportedRecord, ExtensionDeployment, ExtensionSort, ExtensionSource, ExtensionSourceFile,
    ExtensionStatus, ExtensionSummary, ExtensionTotals, ExtensionUse, ExtensionVersion, FlushReport, FlushSpec,
    GivenGrant, GrantList, GrantSpec, HeatMapRange, HeatMapReport, HistoryQuery, HistoryReport, HotKeyReport,
    HotReport, HotSpotReport, HotSpotsReport, KillQuery, LatencyReport, LatencyRow, LiveFinding, LogBatch,
    LogLineRecord, LogQuery, NativeRemedy, OperatorTokenStatus, PageCode, PeriodLength, PeriodUse, PeriodUseRow,
    ProfileReport, ProfiledStackReport, PushOutcome, QuotaMap, QuotaUse, RebuildStatus, RebuiltExtension,
    ReceivedGrant, RecheckSpec, RecordPage, RequestWaitsReport, RollBack, RotatedToken, ScrubPassReport, ScrubReport,
    ServerHealth, ServerStats, SlowCallReport, SlowPatch, SlowQuery, SlowReport, SlowRequestReport, SpillStatus,
    TableAccess, TableChange, TableMode, TablePatch, TableSpec, TableStatus, TableUse, TenantIsolation, TenantPatch,
    TenantSpec, TenantStatus, TenantUse, TokenRotation, TopReport, TopRows, TriggerPatch, TriggerReport, TriggerSpec,
    TurnShareReport, WaitSumReport, WritePolicy,
};

use crate::limits;
use sandstorm_net::trust::{TlsFailure, TlsHints, explain_tls_error};
use serde::{Serialize, de::DeserializeOwned};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

/// A connection to a server's control port. Cheap to clone; requests block the calling thread.
#[derive(Clone)]
pub struct Control {
    agent: ureq::Agent,
    address: String,
    token: Option<String>,
    /// Longest time to wait for an answer.
    timeout: Duration,
    /// See [`Control::staging`].
    stages: bool,
}

/// Advice about a control port whose certificate is not trusted.
const TLS_HINTS: TlsHints = TlsHints {
    known: "give --fingerprint sha256:..., as the server prints it at its start, or --ca FILE",
    expired: "renew it on the server; it is taken without a restart",
    name: "use a name that it is for, have it made with that one too (--control-name), or pin it (--fingerprint)",
    pinned: "ask the operator for the fingerprint; if the certificate was not replaced, another \
             machine intercepts the connection",
    plain: "is it a control port? one without TLS is reached with http:// before the address",
    other: "is it a sandstorm control port of this version?",
};

/// The body of requests that say nothing.
#[derive(Serialize)]
struct EmptyRequest {}

impl Control {
    /// A client of the control port at `address` (`host:port`, or a whole `http://…` or `https://…`: see [`url`]), with
    /// the operator's or a tenant's token. Nothing is sent yet.
    pub fn new(address: &str, token: Option<&str>) -> Control {
        Control::with_timeout(address, token, limits::CONTROL_TIMEOUT)
    }

    /// The same with another timeout for each request. For pushes, which wait for the compiler, it bounds only the
    /// connection.
    pub fn with_timeout(address: &str, token: Option<&str>, timeout: Duration) -> Control {
        Control::with_trust(address, token, timeout, &Trust::default())
    }

    /// The same with a say in which certificate is believed. With one named, TLS is spoken on loopback too, unless the
    /// address begins with `http://`.
    pub fn with_trust(address: &str, token: Option<&str>, timeout: Duration, trust: &Trust) -> Control {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(timeout))
            // This applies to a push, too.
            .timeout_connect(Some(timeout))
            .proxy(None)
            .max_redirects(0)
            .user_agent(concat!("sandstorm/", env!("CARGO_PKG_VERSION")));
        let address = url(address, !matches!(trust, Trust::Public));
        Control { agent: trust.agent(config), address, token: token.map(str::to_owned), timeout, stages: false }
    }

    /// Asks whether the server runs, and for the addresses of its data ports.
    ///
    /// # Errors
    /// As every request here: [`ControlError`].
    pub fn health(&self) -> Result<ServerHealth, ControlError> {
        self.get("/v1/health")
    }

    /// The servers of the cluster, if the server is in one; for the operator and viewers.
    pub fn cluster(&self) -> Result<ClusterStatus, ControlError> {
        self.get("/v1/cluster")
    }

    /// The counters: the operator's token sees the whole server, a tenant's its own.
    pub fn stat(&self) -> Result<ServerStats, ControlError> {
        self.get("/v1/stat")
    }

    /// How long requests took at the server, by tenant, kind and extension: all that the token may see, or those of one
    /// tenant. With `buckets` two reports can be subtracted ([`LatencyReport::since`]).
    pub fn latency(&self, tenant: Option<&str>, buckets: bool) -> Result<LatencyReport, ControlError> {
        let tenant = tenant.map(|tenant| format!("&tenant={}", path_segment(tenant))).unwrap_or_default();
        self.get(&format!("/v1/latency?buckets={buckets}{tenant}"))
    }

    /// What tenants, extensions and tables use: all that the token may see, or those of one tenant.
    pub fn top(&self, tenant: Option<&str>, rows: TopRows) -> Result<TopReport, ControlError> {
        let rows = match rows {
            TopRows::All => "",
            TopRows::Tenants => "rows=tenants",
            TopRows::Extensions => "rows=extensions",
            TopRows::Tables => "rows=tables",
        };
        let tenant = tenant.map(|tenant| format!("&tenant={}", path_segment(tenant))).unwrap_or_default();
        self.get(&format!("/v1/top?{rows}{tenant}"))
    }

    /// Requests that took longer than the threshold, newest first.
    pub fn slow(&self, query: &SlowQuery) -> Result<SlowReport, ControlError> {
        let SlowQuery { tenant, since_ms, after, limit } = query;
        let tenant = tenant.as_deref().map(|tenant| format!("&tenant={}", path_segment(tenant))).unwrap_or_default();
        let limit = limit.map(|limit| format!("&limit={limit}")).unwrap_or_default();
        self.get(&format!("/v1/slow?since_ms={since_ms}&after={after}{tenant}{limit}"))
    }

    /// One of them, by its number.
    pub fn slow_request(&self, id: u64) -> Result<SlowRequestReport, ControlError> {
        self.get(&format!("/v1/slow/{id}"))
    }

    /// Sets the time from which requests are slow, until the server restarts.
    pub fn set_slow_threshold(&self, patch: &SlowPatch) -> Result<(), ControlError> {
        self.send(self.agent.put(self.url("/v1/slow")), patch).map(|_: serde::de::IgnoredAny| ())
    }

    /// What was used in the last minutes, day or month, by the whole server and by the tenants that used most.
    pub fn history(&self, query: &HistoryQuery) -> Result<HistoryReport, ControlError> {
        let HistoryQuery { tenant, by, since_ms, limit } = query;
        let tenant = tenant.as_deref().map(|tenant| format!("&tenant={}", path_segment(tenant))).unwrap_or_default();
        let limit = limit.map(|limit| format!("&limit={limit}")).unwrap_or_default();
        self.get(&format!("/v1/history?by={}&since_ms={since_ms}{tenant}{limit}", by.name()))
    }

    /// Reads events: all that the token may see, or those of one tenant, of one code, after a position.
    pub fn events(&self, query: &EventQuery) -> Result<EventBatch, ControlError> {
        let EventQuery { after, since_ms, tenant, code, limit, wait_s } = query;
        let mut path = format!("/v1/events?since_ms={since_ms}&wait_s={wait_s}");
        for (name, value) in [
            ("after", after.map(|after| after.to_string())),
            ("tenant", tenant.as_deref().map(path_segment)),
            ("code", code.as_deref().map(path_segment)),
            ("limit", limit.map(|limit| limit.to_string())),
        ] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={value}"));
            }
        }
        self.get(&path)
    }

    /// Asks the server to stop.
    pub fn shutdown(&self) -> Result<(), ControlError> {
        self.post_nothing("/v1/shutdown")
    }

    /// All tenants.
    pub fn tenants(&self) -> Result<Vec<TenantStatus>, ControlError> {
        self.get("/v1/tenants")
    }

    /// Makes a tenant.
    pub fn create_tenant(&self, tenant: &TenantSpec) -> Result<CreatedTenant, ControlError> {
        self.post("/v1/tenants", tenant)
    }

    /// One tenant, by name.
    pub fn tenant(&self, tenant: &str) -> Result<TenantStatus, ControlError> {
        self.get(&format!("/v1/tenants/{}", path_segment(tenant)))
    }

    /// Changes a tenant.
    pub fn change_tenant(&self, tenant: &str, change: &TenantPatch) -> Result<TenantStatus, ControlError> {
        self.send(self.agent.patch(self.url(&format!("/v1/tenants/{}", path_segment(tenant)))), change)
    }

    /// The state of a rebuild of extensions, by the number that [`Control::change_tenant`] answers.
    pub fn rebuild(&self, id: u64) -> Result<RebuildStatus, ControlError> {
        self.get(&format!("/v1/rebuilds/{id}"))
    }

    /// Has all native code that is loaded checked again, perhaps with one more pattern that is denied. The answer is
    /// the rebuild that does it, at its beginning.
    pub fn recheck(&self, recheck: &RecheckSpec) -> Result<RebuildStatus, ControlError> {
        self.post("/v1/recheck", recheck)
    }

    /// The patterns that are denied to native code.
    pub fn denied(&self) -> Result<Vec<DeniedToNative>, ControlError> {
        self.get("/v1/denied")
    }

    /// Denies a pattern to native code no more.
    pub fn end_denied(&self, pattern: &str) -> Result<(), ControlError> {
        self.delete(&format!("/v1/denied/{}", path_segment(pattern)))
    }

    /// Deletes a tenant with all that it has.
    pub fn delete_tenant(&self, tenant: &str) -> Result<(), ControlError> {
        self.delete(&format!("/v1/tenants/{}", path_segment(tenant)))
    }

    /// Gives a tenant a new token; the old one is void.
    pub fn rotate_token(&self, tenant: &str) -> Result<RotatedToken, ControlError> {
        self.rotate_with_grace(tenant, Some(Duration::ZERO))
    }

    /// Gives a tenant a new token; the old one works until the grace is over (the server's default: an hour).
    pub fn rotate_with_grace(&self, tenant: &str, grace: Option<Duration>) -> Result<RotatedToken, ControlError> {
        let rotate = TokenRotation { grace_s: grace.map(|grace| grace.as_secs()) };
        self.post(&format!("/v1/tenants/{}/rotate", path_segment(tenant)), &rotate)
    }

    /// Ends the grace of a tenant's old token.
    pub fn revoke_old_token(&self, tenant: &str) -> Result<(), ControlError> {
        self.delete(&format!("/v1/tenants/{}/old-token", path_segment(tenant)))
    }

    /// Asks whether the operator's old token still works.
    pub fn operator(&self) -> Result<OperatorTokenStatus, ControlError> {
        self.get("/v1/operator")
    }

    /// Gives the operator a new token; the old one works until the grace is over (the server's default: an hour).
    pub fn rotate_operator(&self, grace: Option<Duration>) -> Result<RotatedToken, ControlError> {
        self.post("/v1/operator/rotate", &TokenRotation { grace_s: grace.map(|grace| grace.as_secs()) })
    }

    /// Ends the grace of the operator's old token.
    pub fn revoke_old_operator_token(&self) -> Result<(), ControlError> {
        self.delete("/v1/operator/old-token")
    }

    /// A tenant's tables.
    pub fn tables(&self, tenant: &str) -> Result<Vec<TableStatus>, ControlError> {
        self.get(&format!("/v1/tenants/{}/tables", path_segment(tenant)))
    }

    /// Makes a table.
    pub fn create_table(&self, tenant: &str, table: &TableSpec) -> Result<TableStatus, ControlError> {
        self.post(&format!("/v1/tenants/{}/tables", path_segment(tenant)), table)
    }

    /// One table, by name.
    pub fn table(&self, tenant: &str, table: &str) -> Result<TableStatus, ControlError> {
        self.get(&format!("/v1/tenants/{}/tables/{}", path_segment(tenant), path_segment(table)))
    }

    /// Changes a table while it is used. Returns when that holds: another durability in two minutes, or not at all.
    pub fn change_table(&self, tenant: &str, table: &str, change: &TablePatch) -> Result<TableStatus, ControlError> {
        let path = format!("/v1/tenants/{}/tables/{}", path_segment(tenant), path_segment(table));
        let Some(_) = change.durability else { return self.send(self.agent.patch(self.url(&path)), change) };
        self.send_within(limits::CONTROL_DURABILITY_TIMEOUT, self.agent.patch(self.url(&path)), change)
    }

    /// Writes what the backing of a table does not have yet, and returns when it has it.
    pub fn flush_table(&self, tenant: &str, table: &str, flush: &FlushSpec) -> Result<FlushReport, ControlError> {
        let path = format!("/v1/tenants/{}/tables/{}/flush", path_segment(tenant), path_segment(table));
        self.send_within(limits::CONTROL_FLUSH_TIMEOUT, self.agent.post(self.url(&path)), flush)
    }

    /// Drops a table with its records.
    pub fn drop_table(&self, tenant: &str, table: &str) -> Result<(), ControlError> {
        self.delete(&format!("/v1/tenants/{}/tables/{}", path_segment(tenant), path_segment(table)))
    }

    /// A page of a table's records, about a MiB, from a cursor on; `None` begins. Records that do not change between
    /// the first page and the last are in one of them.
    pub fn records(&self, tenant: &str, table: &str, cursor: Option<&str>) -> Result<RecordPage, ControlError> {
        let cursor = cursor.map(|cursor| format!("?cursor={}", path_segment(cursor))).unwrap_or_default();
        self.get(&format!("/v1/tenants/{}/tables/{}/records{cursor}", path_segment(tenant), path_segment(table)))
    }

    /// Changes of a table behind a position, in their order, as they are on the disk; `None` gives the end of the log.
    /// If there is none yet the answer comes with the next one, or after `wait_s` seconds.
    ///
    /// # Errors
    /// The code `too_old`: the log does not go back so far; `not_logged`: the table has durability `none`. Others as
    /// everywhere here.
    pub fn changes(
        &self,
        tenant: &str,
        table: &str,
        after: Option<&str>,
        wait_s: u64,
    ) -> Result<ChangePage, ControlError> {
        let after = after.map(|after| format!("&after={}", path_segment(after))).unwrap_or_default();
        let table = path_segment(table);
        let path = format!("/v1/tenants/{}/tables/{table}/changes?wait_s={wait_s}{after}", path_segment(tenant));
        let timeout = self.timeout + Duration::from_secs(wait_s);
        let request = self.agent.get(self.url(&path)).config().timeout_global(Some(timeout)).build();
        self.finish(timeout, self.with_token(request).call())
    }

    /// Pushes an extension's source under `name`: checked, compiled, signed, loaded; the former version drains.
    ///
    /// # Errors
    /// [`ControlError::Refused`] with the remarks of the checker or the compiler; others as everywhere here.
    pub fn push(&self, tenant: &str, name: &str, source: &ExtensionSource) -> Result<PushOutcome, ControlError> {
        let (tenant, name, query) = (path_segment(tenant), path_segment(name), self.push_query());
        let path = format!("/v1/tenants/{tenant}/extensions/{name}{query}");
        self.send_within(limits::PUSH_TIMEOUT, with_push_timeout(self.agent.put(self.url(&path))), source)
    }

    /// Loads an artifact that a builder elsewhere has signed for this tenant and name.
    ///
    /// # Errors
    /// [`ControlError::Server`] with a code of its own for each reason why the server does not load it.
    pub fn push_artifact(&self, tenant: &str, name: &str, artifact: &[u8]) -> Result<PushOutcome, ControlError> {
        self.push_bytes(tenant, name, "artifact", artifact)
    }

    /// Pushes a WebAssembly module that was made elsewhere: compiled, signed, loaded in the sandboxed tier.
    ///
    /// # Errors
    /// [`ControlError::Refused`] with what the module has that is not allowed; others as everywhere here.
    pub fn push_module(&self, tenant: &str, name: &str, wasm: &[u8]) -> Result<PushOutcome, ControlError> {
        self.push_bytes(tenant, name, "module", wasm)
    }

    fn push_bytes(&self, tenant: &str, name: &str, what: &str, bytes: &[u8]) -> Result<PushOutcome, ControlError> {
        let (tenant, name, query) = (path_segment(tenant), path_segment(name), self.push_query());
        let path = format!("/v1/tenants/{tenant}/extensions/{name}/{what}{query}");
        let request = self.with_token(with_push_timeout(self.agent.put(self.url(&path))));
        self.finish(limits::PUSH_TIMEOUT, request.content_type("application/octet-stream").send(bytes))
    }

    /// A tenant's extensions.
    pub fn extensions(&self, tenant: &str) -> Result<Vec<ExtensionStatus>, ControlError> {
        self.get(&format!("/v1/tenants/{}/extensions", path_segment(tenant)))
    }

    /// One extension.
    pub fn extension(&self, tenant: &str, name: &str) -> Result<ExtensionStatus, ControlError> {
        self.get(&format!("/v1/tenants/{}/extensions/{}", path_segment(tenant), path_segment(name)))
    }

    /// Unloads an extension; calls under way end first or are ended.
    pub fn unload(&self, tenant: &str, name: &str) -> Result<(), ControlError> {
        self.delete(&format!("/v1/tenants/{}/extensions/{}", path_segment(tenant), path_segment(name)))
    }

    /// Suspends an extension: calls are refused until it is resumed or pushed anew.
    pub fn suspend(&self, tenant: &str, name: &str) -> Result<(), ControlError> {
        self.post_nothing(&format!("/v1/tenants/{}/extensions/{}/suspend", path_segment(tenant), path_segment(name)))
    }

    /// Ends a suspension.
    pub fn resume(&self, tenant: &str, name: &str) -> Result<(), ControlError> {
        self.post_nothing(&format!("/v1/tenants/{}/extensions/{}/resume", path_segment(tenant), path_segment(name)))
    }

    /// Sets the budget of one invocation of an extension.
    pub fn set_budget(&self, tenant: &str, name: &str, budget: &Budget) -> Result<(), ControlError> {
        let path = format!("/v1/tenants/{}/extensions/{}/budget", path_segment(tenant), path_segment(name));
        self.send(self.agent.put(self.url(&path)), budget).map(|_: serde::de::IgnoredAny| ())
    }

    /// The extensions of all tenants that the token may see, or of one, in this order.
    pub fn all_extensions(
        &self,
        tenant: Option<&str>,
        sort: ExtensionSort,
        limit: usize,
    ) -> Result<Vec<ExtensionSummary>, ControlError> {
        let tenant = tenant.map(|tenant| format!("&tenant={}", path_segment(tenant))).unwrap_or_default();
        self.get(&format!("/v1/extensions?sort={}&limit={limit}{tenant}", sort.name()))
    }

    /// The latest kills, newest first: of one tenant, or of all (the operator's token only).
    pub fn kills(&self, tenant: Option<&str>, limit: usize) -> Result<Vec<KillReport>, ControlError> {
        self.find_kills(&KillQuery { tenant: tenant.map(str::to_owned), limit: Some(limit), ..KillQuery::default() })
    }

    /// The latest kills, newest first, of those that are asked for.
    pub fn find_kills(&self, query: &KillQuery) -> Result<Vec<KillReport>, ControlError> {
        let KillQuery { tenant, extension, cause, since_ms, limit } = query;
        let path = match tenant {
            Some(tenant) => format!("/v1/tenants/{}/kills", path_segment(tenant)),
            None => "/v1/kills".to_owned(),
        };
        let given = [
            ("limit", limit.map(|limit| limit.to_string())),
            ("since_ms", (*since_ms > 0).then(|| since_ms.to_string())),
            ("extension", extension.as_deref().map(path_segment)),
            ("cause", cause.as_deref().map(path_segment)),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        self.get(&format!("{path}?{}", given.collect::<Vec<_>>().join("&")))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    fn with_token<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    /// Sends a GET request, and repeats it once if the connection was lost. The connection may be an earlier request's,
    /// to a server that has stopped or restarted since. A GET changes nothing, so it may be repeated.
    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ControlError> {
        let send = || self.finish(self.timeout, self.with_token(self.agent.get(self.url(path))).call());
        match send() {
            Err(ControlError::ConnectionLost { .. }) => send(),
            answer => answer,
        }
    }

    fn delete(&self, path: &str) -> Result<(), ControlError> {
        self.finish(self.timeout, self.with_token(self.agent.delete(self.url(path))).call())
            .map(|_: serde::de::IgnoredAny| ())
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ControlError> {
        self.send(self.agent.post(self.url(path)), body)
    }

    /// Posts nothing, for its effect.
    fn post_nothing(&self, path: &str) -> Result<(), ControlError> {
        self.post(path, &EmptyRequest {}).map(|_: serde::de::IgnoredAny| ())
    }

    fn send<T: DeserializeOwned>(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithBody>,
        body: &impl Serialize,
    ) -> Result<T, ControlError> {
        self.send_within(self.timeout, request, body)
    }

    /// Sends a body whole, with its length said first (no chunks: a server's limit on bodies can then refuse at once).
    fn send_within<T: DeserializeOwned>(
        &self,
        timeout: Duration,
        request: ureq::RequestBuilder<ureq::typestate::WithBody>,
        body: &impl Serialize,
    ) -> Result<T, ControlError> {
        let json = serde_json::to_vec(body)
            .map_err(|error| ControlError::Protocol { address: self.address.clone(), reason: error.to_string() })?;
        self.finish(timeout, self.with_token(request).content_type("application/json").send(&json[..]))
    }

    fn finish<T: DeserializeOwned>(
        &self,
        timeout: Duration,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, ControlError> {
        let mut answer = answer.map_err(|error| self.broken(timeout, error))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(limits::CONTROL_MAX_RESPONSE_BYTES).lossy_utf8(true);
        let body = body.read_to_string().map_err(|error| self.broken(timeout, error))?;
        if !(200..300).contains(&status) {
            return Err(ControlError::from_answer(status, &body));
        }
        let text = if body.trim().is_empty() { "{}" } else { body.as_str() };
        serde_json::from_str(text)
            .map_err(|error| ControlError::Protocol { address: self.address.clone(), reason: error.to_string() })
    }

    fn broken(&self, timeout: Duration, error: ureq::Error) -> ControlError {
        let address = self.address.clone();
        if let Some(TlsFailure { reason, hint }) = explain_tls_error(&error, &TLS_HINTS) {
            return ControlError::Tls { address, reason, hint };
        }
        let reason = error.to_string();
        match error {
            ureq::Error::Io(error) if is_connection_lost(error.kind()) => {
                ControlError::ConnectionLost { address, reason }
            }
            ureq::Error::Timeout(ureq::Timeout::Connect) => {
                ControlError::TimedOut { address, seconds: self.timeout.as_secs() }
            }
            ureq::Error::Timeout(_) => ControlError::TimedOut { address, seconds: timeout.as_secs() },
            ureq::Error::Io(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::BodyStalled => ControlError::Unreachable { address, reason },
            _ => ControlError::Protocol { address, reason },
        }
    }
}

/// Returns whether that error comes after a connection was made.
fn is_connection_lost(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// A request that waits for its turn in the builder's queue and for a compiler.
fn with_push_timeout<B>(request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
    request.config().timeout_global(Some(limits::PUSH_TIMEOUT)).build()
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the token: this gets into logs.
        f.debug_struct("Control").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Returns a control port's address with its scheme. Without a written scheme, TLS is used with every other machine,
/// and wherever the port is `trusted`, that is, where a certificate was named. A token must not cross a network in the
/// clear because a user forgot six letters. Plain HTTP is left for loopback.
pub fn url(address: &str, trusted: bool) -> String {
    let address = address.trim_end_matches('/');
    if address.contains("://") {
        return address.to_owned();
    }
    let name = address.rsplit_once(':').map_or(address, |(name, _)| name).trim_matches(['[', ']']);
    let own = name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    let scheme = if own && !trusted { "http" } else { "https" };
    format!("{scheme}://{address}")
}

/// A name as one segment of a path: everything but letters, digits and `-_.~` percent-encoded.
fn path_segment(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests;
