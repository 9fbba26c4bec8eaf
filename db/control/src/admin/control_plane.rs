//! The control plane of a server: state directory, operator's token, builder, control port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use super::access_tokens::AccessTokens;
use super::artifact_store::ReloadedExtension;
use super::code_follower::CodeFollower;
use super::deferred_builder::DeferredBuilder;
use super::deny_list::DenyList;
use super::incidents::IncidentLog;
use super::prometheus::read_metrics;
use super::{AdminServer, ArtifactBuilder, ArtifactSources, ArtifactStore, ControlState, OperatorCredentials, now_ms};
use crate::config::{
    CONTROL_PORT, ConfigError, ControlFile, OPERATOR_TOKEN_FILE, ServerSettings, operator_token, prepare_state_dir,
    read_operator_token,
};
use crate::events::{EventCode, EventLog, NewEvent, WebhookSenders};
use crate::history::UsageHistory;
use crate::http_listener::{CertificateWatcher, ServerCertificate};
use crate::otlp::OtlpSender;
use crate::triggers::{CallSinks, RemoteCaller, TriggerRunner};
use sandstorm_builder::{BuildError, BuilderConfig, BuilderHandle, BuilderKey, PublicKey, RemoteBuilder};
use sandstorm_catalog::Directory;
use sandstorm_cluster::{CallLinks, MoveCoordinator};
use sandstorm_metrics::ServerMetrics;
use sandstorm_server::workers::{ListenerConfig, LocalCaller};

/// The reason that the control plane did not start: one line.
#[derive(Debug, thiserror::Error)]
pub enum ControlStartError {
    /// The state directory or the operator's token cannot be used.
    #[error(transparent)]
    State(#[from] ConfigError),
    /// The builder did not start.
    #[error("no builder: {0}; or start without pushes: --no-builder")]
    Builder(BuildError),
    /// Another process has the port.
    #[error("control port {0} is taken: does another server run? choose another with --control")]
    PortInUse(SocketAddr),
    /// The port cannot be bound.
    #[error("cannot serve the control port {0}: {1}")]
    Port(SocketAddr, std::io::Error),
}

/// The builder, and the extensions that were loaded before the restart: loaded again before the workers start.
pub struct RestoredExtensions {
    pub(super) artifact_sources: ArtifactSources,
    pub(super) artifacts: ArtifactStore,
    pub(super) deny: DenyList,
    pub(super) reloaded: Vec<ReloadedExtension>,
    pub(super) events: EventLog,
    pub(super) access_tokens: AccessTokens,
    pub(super) usage_history: UsageHistory,
    pub(super) incidents: IncidentLog,
}

impl RestoredExtensions {
    /// Starts the builder (unless it is switched off) and loads the stored artifacts.
    ///
    /// # Errors
    /// [`ControlStartError`]. An extension that cannot be loaded is no error: it is left out, and its tenant is told.
    pub fn load(config: &ServerSettings, directory: &Directory) -> Result<RestoredExtensions, ControlStartError> {
        RestoredExtensions::load_with(config, config.builder_config(), directory)
    }

    fn load_with(
        config: &ServerSettings,
        builder: BuilderConfig,
        directory: &Directory,
    ) -> Result<RestoredExtensions, ControlStartError> {
        prepare_state_dir(&config.state)?;
        let own_key = local_builder_key(config, &builder);
        let builder: Result<Arc<dyn ArtifactBuilder>, String> = match &config.builder {
            settings if !settings.enabled => Err("the server was started without one (--no-builder, or enabled = \
             false): what is loaded goes on to be called"
                .to_owned()),
            settings => match &settings.remote {
                Some(remote) => Ok(config
                    .beside_workers(|| RemoteBuilder::open(remote, &builder))
                    .map_err(ControlStartError::Builder)?),
                None => Ok(config.beside_workers(|| start_builder(builder)).map_err(ControlStartError::Builder)?),
            },
        };
        let trusted_keys = config.builder.trusted_keys.clone();
        let artifact_sources = ArtifactSources { trusted_keys, own_key, ..ArtifactSources::from(builder) };
        let denied = config.builder.deny.clone();
        let (artifacts, deny) = match config.ephemeral {
            true => (ArtifactStore::default(), DenyList::of(denied)),
            false => (ArtifactStore::open(&config.state)?.shared_in(directory), DenyList::open(&config.state, denied)?),
        };
        let events = if config.ephemeral { EventLog::in_memory() } else { EventLog::open(&config.state)? };
        let access_tokens =
            if config.ephemeral { AccessTokens::in_memory() } else { AccessTokens::open(&config.state)? };
        let usage_history =
            if config.ephemeral { UsageHistory::in_memory() } else { UsageHistory::open(&config.state)? };
        let incidents = match config.ephemeral {
            true => IncidentLog::default(),
            false => IncidentLog::open(&config.state, directory, &events)?,
        };
        let read = RestoredExtensions::read(artifacts, artifact_sources, deny, directory);
        Ok(RestoredExtensions { events, access_tokens, usage_history, incidents, ..read })
    }

    /// Loads the stored artifacts.
    pub(super) fn read(
        artifacts: ArtifactStore,
        artifact_sources: ArtifactSources,
        deny: DenyList,
        directory: &Directory,
    ) -> RestoredExtensions {
        let reloaded = artifacts.reload(directory, &artifact_sources);
        RestoredExtensions {
            artifact_sources,
            artifacts,
            deny,
            reloaded,
            events: EventLog::in_memory(),
            access_tokens: AccessTokens::in_memory(),
            usage_history: UsageHistory::in_memory(),
            incidents: IncidentLog::default(),
        }
    }
}

/// Starts pushing metrics, if the configuration names an endpoint.
fn start_otlp(config: &ServerSettings, control: &Arc<ControlState>) -> std::io::Result<Option<OtlpSender>> {
    let Some(settings) = &config.otlp else { return Ok(None) };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let instance = format!("{host}:{}", control.data.port());
    let (top, read) = (settings.top, Arc::clone(control));
    OtlpSender::start(settings.clone(), [host, instance], control, move || read_metrics(&read, top)).map(Some)
}

/// Starts the builder's processes, or their substitute while the disk accepts no writes.
fn start_builder(config: BuilderConfig) -> Result<Arc<dyn ArtifactBuilder>, BuildError> {
    match BuilderHandle::start(config.clone()) {
        Ok(handle) => Ok(handle),
        Err(error) => Ok(DeferredBuilder::instead(config, error)?),
    }
}

/// The key of this server's own builder, if it is not started. A builder signs for its server alone, so its key needs
/// no configuration. If the operator has another host build instead, only configured keys count.
fn local_builder_key(config: &ServerSettings, builder: &BuilderConfig) -> Option<PublicKey> {
    if config.builder.enabled || config.builder.remote.is_some() {
        return None;
    }
    BuilderKey::public_in(&builder.state).unwrap_or_else(|error| {
        tracing::error!(%error, "extensions signed by this server's own builder are not loaded");
        None
    })
}

impl<P: Into<ArtifactSources>> From<P> for RestoredExtensions {
    fn from(artifact_sources: P) -> RestoredExtensions {
        RestoredExtensions {
            artifact_sources: artifact_sources.into(),
            artifacts: ArtifactStore::default(),
            deny: DenyList::of(Vec::new()),
            reloaded: Vec::new(),
            events: EventLog::in_memory(),
            access_tokens: AccessTokens::in_memory(),
            usage_history: UsageHistory::in_memory(),
            incidents: IncidentLog::default(),
        }
    }
}

/// The running control plane; stops when dropped.
#[derive(Debug)]
pub struct ControlPlane {
    admin: AdminServer,
    control: Arc<ControlState>,
    state: PathBuf,
    renewal: Option<CertificateWatcher>,
    _webhooks: WebhookSenders,
    _otlp: Option<OtlpSender>,
    _follower: Option<CodeFollower>,
}

/// The parts of the data plane that the control plane sees.
#[derive(Clone, Debug)]
pub struct DataPlaneView {
    /// Tenants, tables and extensions.
    pub directory: Arc<Directory>,
    /// The counters of the workers.
    pub metrics: Arc<ServerMetrics>,
    /// The address of the first worker's port, as it was bound.
    pub data: SocketAddr,
    /// The ports for memcached and Redis clients, as they were bound.
    pub listen: Vec<ListenerConfig>,
    /// Where calls over HTTP go in; `None`: there are no workers.
    pub calls: Option<LocalCaller>,
    /// Looks where extensions' code is; `None`: nothing runs code.
    pub profiler: Option<sandstorm_runtime::Profiler>,
    /// The server's part in moves of slots, in a cluster.
    pub moves: Option<Arc<MoveCoordinator>>,
}

impl ControlPlane {
    /// Prepares the state directory, starts the builder (unless it is switched off), serves the control port. `stop` is
    /// called when the operator asks for a shutdown; it must not block.
    ///
    /// # Errors
    /// [`ControlStartError`]; nothing is left running.
    pub fn start(
        config: &ServerSettings,
        served: DataPlaneView,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Result<ControlPlane, ControlStartError> {
        ControlPlane::start_with(config, config.builder_config(), served, stop)
    }

    /// The same with another configuration of the builder, for instance another program for its process.
    ///
    /// # Errors
    /// As [`ControlPlane::start`].
    pub fn start_with(
        config: &ServerSettings,
        builder: BuilderConfig,
        served: DataPlaneView,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Result<ControlPlane, ControlStartError> {
        let extensions = RestoredExtensions::load_with(config, builder, &served.directory)?;
        ControlPlane::start_loaded(config, extensions, served, stop)
    }

    /// The same with the extensions already loaded.
    ///
    /// # Errors
    /// As [`ControlPlane::start`].
    pub fn start_loaded(
        config: &ServerSettings,
        extensions: RestoredExtensions,
        served: DataPlaneView,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Result<ControlPlane, ControlStartError> {
        prepare_state_dir(&config.state)?;
        let operator = operator_token(&config.state)?;
        let identity = ServerCertificate::open(&CONTROL_PORT, &config.control_tls, &config.state)?;
        let operator = OperatorCredentials::new(&operator, Some(config.state.clone()));
        let calls = served.calls.clone();
        let control = ControlState::new(served, extensions, operator, stop);
        if let Some(identity) = &identity {
            // It is set once.
            let _was_set = control.certificate.set(Arc::clone(identity));
        }
        let admin = config.beside_workers(|| AdminServer::start(config.control, control.clone(), identity.as_ref()));
        let admin = admin.map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => ControlStartError::PortInUse(config.control),
            _ => ControlStartError::Port(config.control, error),
        })?;
        let found = ControlFileWriter { state: config.state.clone(), address: admin.address() };
        if let Err(error) = found.write(identity.as_deref()) {
            let at = admin.address();
            tracing::error!("{error}; commands on this machine need --server {at}");
        }
        let changed = move |identity: &ServerCertificate| {
            if let Err(error) = found.write(Some(identity)) {
                tracing::error!(%error, "the command line on this machine does not know the new certificate");
            }
        };
        let renewal = identity.map(|identity| config.beside_workers(|| CertificateWatcher::start(identity, changed)));
        let renewal = renewal.transpose().map_err(|error| ControlStartError::Port(config.control, error))?;
        let state = Some(config.state.as_path()).filter(|_| !config.ephemeral);
        let webhooks = config.beside_workers(|| WebhookSenders::start(&config.webhooks, state, &control));
        let webhooks = webhooks?;
        let no_thread = |error| ControlStartError::Port(config.control, error);
        let otlp = config.beside_workers(|| start_otlp(config, &control));
        let otlp = otlp.map_err(no_thread)?;
        start_triggers(config, &control, calls)?;
        record_start(&control);
        let _follower = match control.directory.is_agreed() {
            true => Some(config.beside_workers(|| CodeFollower::start(&control)).map_err(no_thread)?),
            false => None,
        };
        let (state, _webhooks, _otlp) = (config.state.clone(), webhooks, otlp);
        Ok(ControlPlane { admin, control, state, renewal, _webhooks, _otlp, _follower })
    }

    /// The control port's address, as it was bound.
    pub fn address(&self) -> SocketAddr {
        self.admin.address()
    }

    /// The control port's address as a client writes it.
    pub fn url(&self) -> String {
        let scheme = if self.renewal.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address())
    }

    /// The certificate of the control port; `None` without TLS.
    pub fn identity(&self) -> Option<&Arc<ServerCertificate>> {
        self.renewal.as_ref().map(CertificateWatcher::identity)
    }

    /// Checks at once whether the certificate's files have changed.
    pub fn look_at_certificate(&self) {
        if let Some(renewal) = &self.renewal {
            renewal.wake();
        }
    }

    /// The path of the operator's token.
    pub fn token_file(&self) -> PathBuf {
        self.state.join(OPERATOR_TOKEN_FILE)
    }

    /// The operator's token, read from its file: the server itself does not keep it.
    ///
    /// # Errors
    /// One line: the file cannot be read, is open to others, or holds no token.
    pub fn operator_token(&self) -> Result<String, ConfigError> {
        read_operator_token(&self.state)
    }

    /// The state of the control port.
    pub fn control(&self) -> &Arc<ControlState> {
        &self.control
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Some(triggers) = self.control.triggers.get() {
            triggers.stop();
        }
        self.control.settle();
        self.control.incidents.look_last(&self.control.directory, &self.control.metrics.slow);
        self.control.usage_history.end(&self.control.directory, now_ms());
        self.control.events.record(NewEvent::of_server(EventCode::ServerStopped));
    }
}

/// Starts the triggers of a server that has workers.
fn start_triggers(
    config: &ServerSettings,
    control: &Arc<ControlState>,
    calls: Option<LocalCaller>,
) -> Result<(), ControlStartError> {
    let Some(calls) = calls else { return Ok(()) };
    let noting = Arc::downgrade(control);
    let note = move |event| {
        if let Some(control) = noting.upgrade() {
            control.events.record(event);
        }
    };
    let folder = (!config.ephemeral).then_some(&*config.state);
    let directory = Arc::clone(&control.directory);
    let mut sinks = CallSinks::here(Box::new(move |home, begun| calls.call_all(home, begun)));
    if let Some(coordinator) = &control.moves {
        let links = CallLinks::new(coordinator);
        let own_id = control.directory.slots().map(|slots| slots.own_id().to_owned()).unwrap_or_default();
        let send = move |server: &str, request: &[u8]| links.send(server, request);
        let remote = RemoteCaller::new(&own_id, sandstorm_store::clock_ms(0), Box::new(send));
        sinks.elsewhere = Box::new(move |request| remote.push(request));
    }
    let runner = config.beside_workers(|| TriggerRunner::start(directory, Box::new(note), folder, sinks))?;
    if let Some(coordinator) = &control.moves {
        coordinator.calls().set_caller(runner.change_caller());
    }
    // It is set once.
    let _was_set = control.triggers.set(runner);
    Ok(())
}

/// Records the start of the server, and how the server before it ended.
fn record_start(control: &ControlState) {
    let before = match control.events.last_stop_was_orderly() {
        Some(false) => "; the server before it did not stop in order",
        Some(true) | None => "",
    };
    let text = format!("version {}{before}", env!("CARGO_PKG_VERSION"));
    control.events.record(NewEvent { text, ..NewEvent::of_server(EventCode::ServerStarted) });
}

/// Writes the file by which the command line on this machine finds the control port.
struct ControlFileWriter {
    state: PathBuf,
    address: SocketAddr,
}

impl ControlFileWriter {
    /// Writes the address and the certificate of the control port.
    fn write(&self, identity: Option<&ServerCertificate>) -> Result<(), ConfigError> {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let scheme = if identity.is_some() { "https" } else { "http" };
        let file = ControlFile {
            address: format!("{scheme}://{address}"),
            fingerprint: identity.map(ServerCertificate::fingerprint),
        };
        file.write(&self.state)
    }
}
