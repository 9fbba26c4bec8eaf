//! Control over HTTP: tenants, tables, extensions, kills, counters. It is JSON on one port, on a thread of its own; no
//! worker ever waits for it.
//!
//! docs/control.md lists the routes, their permissions, bodies and errors; a test compares it with `routes.rs`. The
//! types of the bodies are in [`types`].
//!
//! Every request but `health` carries `authorization: Bearer TOKEN`. An error has a [`types::ErrorResponse`] as its
//! body. Bytes that are no HTTP get a bare status, and the connection is closed. A request with an `Origin` comes from
//! a page in a browser and is refused.

mod access;
mod access_tokens;
mod answer_connection;
mod artifact_builder;
mod artifact_store;
mod authentication;
mod backing;
mod big;
mod body;
mod build_turn;
mod caller;
mod calls;
mod calls_under_way;
mod catalogue;
mod changes;
mod cluster;
mod cluster_balance;
mod cluster_commands;
mod cluster_copies;
mod cluster_split;
mod code_follower;
mod control_plane;
mod copy_streams;
mod deferred_builder;
mod deny_list;
mod deployments;
mod error;
mod event_scribe;
mod events;
mod extension_limits;
mod extension_lookup;
mod extension_memory;
mod finding;
mod findings;
mod grants;
mod heat;
mod history;
mod host_header;
mod hot;
mod incidents;
mod kept_slow_request;
mod key_digest;
mod latency;
mod library_loader;
mod logs;
mod operator_credentials;
mod overview;
mod overview_cache;
mod overview_page;
mod page;
mod page_sessions;
mod peer_limiter;
mod pending_calls;
mod persistence_status;
mod profile;
mod prometheus;
mod push;
mod push_counts;
mod quota_use;
mod rebuild;
mod recheck;
mod records;
mod request_limiter;
mod response;
mod revocations;
mod role;
mod routes;
mod scrub;
mod secrets;
mod series;
mod shared_artifacts;
mod slow;
mod slow_numbers;
mod source_store;
mod stat;
mod token_rotation;
mod tokens;
mod top;
mod totals;
mod trigger_calls;
mod triggers;
pub mod types;
mod version_history;
mod versions;

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use crate::config::CONTROL_PORT;
use crate::events::{EventCollector, EventLog};
use crate::history::UsageHistory;
use crate::hot_keys::HotKeySampler;
use crate::http_listener::{ConnectionLimiter, LimitedListener, ServerCertificate};
use crate::isolation::IsolationMeter;
use crate::limits::{
    CALL_LOOKS, CALL_LOOKS_PER_TENANT, CHANGE_WAITS, CHANGE_WAITS_PER_TENANT, COMMAND_REQUESTS,
    COMMAND_REQUESTS_PER_ADDRESS, COPY_STREAMS, COPY_STREAMS_PER_ADDRESS, OPERATOR_CALL_LOOKS, RECORD_PAGES,
    RECORD_PAGES_PER_TENANT, TRIGGER_CHANGES, TRIGGER_CHANGES_PER_TENANT,
};
use crate::triggers::{RemoteOrders, TriggerRunner};
use crate::use_meter::TenantUseMeter;
use access_tokens::AccessTokens;
pub use artifact_builder::{ArtifactBuilder, ArtifactSources};
pub use artifact_store::ArtifactStore;
use artifact_store::ReloadedExtension;
pub use control_plane::{ControlPlane, ControlStartError, DataPlaneView, RestoredExtensions};
pub use deny_list::DenyList;
use deployments::DeploymentMonitor;
pub use finding::{FindingSeverity, ServerFinding};
use findings::LiveSamples;
use hot::HotWatches;
use incidents::IncidentLog;
pub use library_loader::LibraryLoader;
pub use operator_credentials::OperatorCredentials;
use overview_cache::OverviewCache;
use page_sessions::PageSessions;
use peer_limiter::PeerLimiter;
use pending_calls::PendingCalls;
use push_counts::PushCounts;
use rebuild::RebuildJobs;
use request_limiter::RequestLimiter;
pub use role::AccessRole;
use sandstorm_builder::BuildQueue;
use sandstorm_catalog::Directory;
use sandstorm_cluster::MoveCoordinator;
use sandstorm_metrics::ServerMetrics;
use sandstorm_runtime::Profiler;
use sandstorm_server::workers::{ListenerConfig, LocalCaller};
use version_history::VersionHistory;

/// Bytes of a request's body, at most, other than a push.
pub const MAX_BODY_BYTES: usize = crate::limits::SHORT_BODY_BYTES;
/// Bytes of a push, at most: all source files as JSON, every second byte escaped, and the manifest.
pub const MAX_PUSH_BYTES: usize =
    2 * (sandstorm_builder::limits::SOURCE_BYTES + sandstorm_builder::limits::MANIFEST_BYTES);
/// Pushes that wait for the builder, at most, all tenants together. One more displaces a push of the tenant with most
/// waiting, or is rejected. This bounds the memory of their sources (256 MiB).
pub const MAX_PUSHES: usize = 64;
/// Bytes of an uploaded artifact, at most.
pub const MAX_ARTIFACT_BYTES: usize =
    sandstorm_extension::limits::LIBRARY_MAX_BYTES + sandstorm_builder::limits::ARTIFACT_EXTRA_BYTES;
/// Threads for blocking work: running pushes, files. Twice as many as pages of records that are made at a time.
const BLOCKING_THREADS: usize = 64;
/// Interval between two housekeeping runs.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(100);
/// Time that running requests have to finish when the server stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// The state of the control port: the parts of the server that it sees.
pub struct ControlState {
    /// Tenants, tables, extensions.
    pub directory: Arc<Directory>,
    /// Counters.
    pub metrics: Arc<ServerMetrics>,
    /// The builder, or the reason that there is none; the trusted keys.
    pub artifact_sources: ArtifactSources,
    /// Address of the first worker's data port.
    pub data: SocketAddr,
    /// Ports for memcached and Redis clients.
    pub listen: Vec<ListenerConfig>,
    /// The start of the clock for rates of changes: the time of day may be set back.
    started: Instant,
    operator: OperatorCredentials,
    access_tokens: AccessTokens,
    page_sessions: PageSessions,
    overviews: OverviewCache,
    builds: PushCounts,
    live_samples: LiveSamples,
    /// The control port's certificate, if it speaks TLS.
    certificate: OnceLock<Arc<ServerCertificate>>,
    limiter: Arc<ConnectionLimiter>,
    stop: Box<dyn Fn() + Send + Sync>,
    history: VersionHistory,
    artifacts: ArtifactStore,
    deny: DenyList,
    /// The queue of pushes.
    queue: BuildQueue,
    rebuilds: RebuildJobs,
    /// What has happened.
    pub events: EventLog,
    collector: EventCollector,
    deployment_judge: DeploymentMonitor,
    usage_history: UsageHistory,
    incidents: IncidentLog,
    isolation: IsolationMeter,
    tenant_use: TenantUseMeter,
    hot_keys: HotKeySampler,
    /// Held while the load of this server is looked at.
    load_turn: tokio::sync::Mutex<()>,
    hot_watches: HotWatches,
    /// `None`: nothing runs code here.
    profiler: Option<Profiler>,
    /// The server's part in moves of slots, in a cluster.
    moves: Option<Arc<MoveCoordinator>>,
    /// Pages of records and of changes that are made, or wait for their clients to take them.
    record_pages: Arc<RequestLimiter>,
    /// Requests that wait for changes of a table.
    change_waits: Arc<RequestLimiter>,
    /// Requests of other servers with commands.
    commands: PeerLimiter,
    /// Connections over which other servers ask about copies here.
    copy_streams: PeerLimiter,
    /// Changes of triggers under way.
    trigger_changes: Arc<RequestLimiter>,
    /// Which requests with calls of triggers other servers have sent.
    remote_orders: RemoteOrders,
    /// Questions to workers about calls under way, by the tenant's serial number, and by whether the caller sees the
    /// whole server. Those of operators are counted apart.
    call_looks: Arc<RequestLimiter<(u64, bool)>>,
    operator_call_looks: Arc<RequestLimiter<(u64, bool)>>,
    /// Where calls over HTTP go in, and those under way.
    calls: Option<LocalCaller>,
    pending_calls: Arc<PendingCalls>,
    /// Calls by the clock and for changes, once the workers run.
    triggers: OnceLock<TriggerRunner>,
}

impl ControlState {
    /// Control over a server. `stop` is called when the operator asks for a shutdown; it must not block.
    pub fn new(
        served: DataPlaneView,
        extensions: impl Into<RestoredExtensions>,
        operator: OperatorCredentials,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Arc<ControlState> {
        let DataPlaneView { directory, metrics, data, listen, calls, profiler, moves } = served;
        let extensions: RestoredExtensions = extensions.into();
        let RestoredExtensions {
            artifact_sources,
            artifacts,
            deny,
            reloaded,
            events,
            access_tokens,
            usage_history,
            incidents,
        } = extensions;
        metrics.slow.continue_after(incidents.last_slow_id());
        let history = VersionHistory::default();
        for ReloadedExtension { tenant, extension, about, is_kept } in reloaded {
            match is_kept {
                false => history.loaded(tenant, &extension, about, None),
                true => history.kept(tenant, &extension, about),
            }
        }
        let slots = artifact_sources.builder.as_ref().map_or(1, |builder| builder.slots());
        let limiter = ConnectionLimiter::new(CONTROL_PORT.name);
        Arc::new(ControlState {
            directory,
            metrics,
            artifact_sources,
            data,
            listen,
            started: Instant::now(),
            operator,
            access_tokens,
            page_sessions: PageSessions::default(),
            overviews: OverviewCache::default(),
            builds: PushCounts::default(),
            live_samples: LiveSamples::default(),
            certificate: OnceLock::new(),
            commands: PeerLimiter::new(COMMAND_REQUESTS.min(limiter.limit() / 2), COMMAND_REQUESTS_PER_ADDRESS),
            copy_streams: PeerLimiter::new(COPY_STREAMS.min(limiter.limit() / 4), COPY_STREAMS_PER_ADDRESS),
            limiter,
            stop: Box::new(stop),
            history,
            artifacts,
            deny,
            queue: BuildQueue::new(slots, MAX_PUSHES),
            rebuilds: RebuildJobs::default(),
            events,
            collector: EventCollector::default(),
            deployment_judge: DeploymentMonitor::default(),
            usage_history,
            incidents,
            isolation: IsolationMeter::default(),
            tenant_use: TenantUseMeter::default(),
            hot_keys: HotKeySampler::default(),
            load_turn: tokio::sync::Mutex::default(),
            hot_watches: HotWatches::default(),
            profiler,
            moves,
            record_pages: RequestLimiter::new(RECORD_PAGES, RECORD_PAGES_PER_TENANT),
            change_waits: RequestLimiter::new(CHANGE_WAITS, CHANGE_WAITS_PER_TENANT),
            trigger_changes: RequestLimiter::new(TRIGGER_CHANGES, TRIGGER_CHANGES_PER_TENANT),
            remote_orders: RemoteOrders::default(),
            call_looks: RequestLimiter::new(CALL_LOOKS, CALL_LOOKS_PER_TENANT),
            operator_call_looks: RequestLimiter::new(OPERATOR_CALL_LOOKS, OPERATOR_CALL_LOOKS),
            calls,
            pending_calls: Arc::default(),
            triggers: OnceLock::new(),
        })
    }

    /// Nanoseconds since the control port began.
    fn uptime_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Ends expired grace periods, frees unused dropped tables and replaced libraries, and looks for events.
    pub fn settle(&self) {
        self.directory.retry_journal();
        self.directory.expire_graces();
        self.operator.settle();
        self.directory.reap();
        self.history.settle();
        self.deployment_judge.look(self, now_ms());
        self.collector.look(&self.directory, &self.events, now_ms());
        self.moves.iter().for_each(|coordinator| cluster_copies::record_failovers(coordinator, &self.events));
        scrub::record_damage(self);
        self.incidents.look(&self.directory, &self.metrics.slow);
        self.live_samples.look(self);
        self.usage_history.look(&self.directory, now_ms());
        self.isolation.look(&self.directory, &self.metrics, now_ms());
        self.tenant_use.look(&self.directory, &self.metrics, self.uptime_ns() / 1_000_000);
        self.hot_keys.look(&self.directory.snapshot(), now_ms());
    }
}

impl AsRef<EventLog> for ControlState {
    fn as_ref(&self) -> &EventLog {
        &self.events
    }
}

impl std::fmt::Debug for ControlState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("data", &self.data).finish_non_exhaustive()
    }
}

/// The control port, served by a thread until this is dropped.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// Binds the control port and serves it, with TLS if there is a certificate.
    ///
    /// # Errors
    /// The address cannot be bound ([`io::ErrorKind::AddrInUse`]: another server has it), or no thread can be started.
    pub fn start(
        address: SocketAddr,
        control: Arc<ControlState>,
        identity: Option<&Arc<ServerCertificate>>,
    ) -> io::Result<AdminServer> {
        let tls = identity.map(ServerCertificate::acceptor).transpose().map_err(io::Error::other)?;
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("control-blocking")
            .build()?;
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            runtime.block_on(serve(listener, tls, control, stopped));
            // A push that still compiles ends with its builder; this thread does not wait for it.
            runtime.shutdown_background();
        })?;
        Ok(AdminServer { address, stop, thread: Some(thread) })
    }

    /// The address that is bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its hook.
            let _panicked = thread.join();
        }
    }
}

async fn serve(
    listener: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    control: Arc<ControlState>,
    stop: Arc<Notify>,
) {
    let plain = tls.is_none();
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => LimitedListener::new(listener, control.limiter.clone(), tls),
        Err(error) => {
            tracing::error!(%error, "the control port cannot be served");
            return;
        }
    };
    let settling = tokio::spawn(housekeeping_loop(control.clone()));
    rebuild::after_start(&control);
    let last_requests = Arc::new(Notify::new());
    let draining = last_requests.clone();
    let graceful = async move {
        stop.notified().await;
        draining.notify_one();
    };
    let served = axum::serve(listener, routes::service(control, plain)).with_graceful_shutdown(graceful);
    let too_long = async {
        last_requests.notified().await;
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    tokio::select! {
        result = served => if let Err(error) = result {
            tracing::error!(%error, "the control port stopped");
        },
        () = too_long => {}
    }
    settling.abort();
}

/// Frees unused memory from time to time, off this thread.
async fn housekeeping_loop(control: Arc<ControlState>) {
    loop {
        tokio::time::sleep(HOUSEKEEPING_INTERVAL).await;
        let control = control.clone();
        // It is cancelled only together with the whole runtime.
        let _cancelled = tokio::task::spawn_blocking(move || control.settle()).await;
    }
}

/// Removes a file that may be gone already. What cannot be removed is removed at the next start.
fn remove_file(path: &Path) {
    let removed = fs::remove_file(path).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    });
    if let Err(error) = removed {
        tracing::warn!(%error, "cannot remove {}; the next start tries again", path.display());
    }
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
