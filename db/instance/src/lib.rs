//! A composed server: the data plane (directory, tables, workers), and the control plane's view of it.
#![forbid(unsafe_code)]

mod agreed_start;
pub mod backup;
mod salvage;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sandstorm_catalog::Directory;
use sandstorm_catalog::journal::{DirectoryImage, Journal, JournalError};
use sandstorm_cluster::member::MemberAddresses;
use sandstorm_cluster::{
    ClusterAgent, ClusterForwarder, ClusterStartError, JoiningServer, LogScrubber, MoveCoordinator,
};
use sandstorm_control::admin::DataPlaneView;
use sandstorm_control::config::{ConfigError, ServerSettings, prepare_state_dir};
use sandstorm_control::http_listener::{CertificateWatcher, ServerCertificate};
use sandstorm_control::triggers::TRIGGER_FOLDER;
use sandstorm_dialects::Protocol;
use sandstorm_log::LogError;
use sandstorm_metrics::{ServerMetrics, WatchdogCounts};
use sandstorm_runtime as extensions;
use sandstorm_runtime::{Profiler, Watchdog};
use sandstorm_server::checkpointer::Checkpointer;
use sandstorm_server::home_balancer::HomeBalancer;
use sandstorm_server::janitor::Janitor;
use sandstorm_server::workers::{ListenerConfig, PortAddress, WorkerOptions, WorkerStartError, Workers};
use sandstorm_store::Epochs;
use sandstorm_store::slots::SlotOwnership;

/// The reason why a server did not start. No part of it is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The stored state cannot be used.
    #[error(transparent)]
    Kept(#[from] JournalError),
    /// The log of the records cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A worker could not be started, or its port could not be bound.
    #[error(transparent)]
    Workers(#[from] WorkerStartError),
    /// The cluster cannot be joined.
    #[error(transparent)]
    Cluster(#[from] ClusterStartError),
    /// A system call failed.
    #[error("cannot start the server: {0}")]
    System(#[from] std::io::Error),
}

/// The parts that answer requests. Stops when dropped: the workers first, with their requests in flight.
pub struct DataPlane {
    /// First, so that the others of a cluster know that it stops.
    cluster: Option<ClusterAgent>,
    joining: Option<JoiningServer>,
    /// The server's part in moves of slots, in a cluster.
    moves: Option<Arc<MoveCoordinator>>,
    /// Moves tenants between the workers, unless it is turned off or there is only one worker.
    _homes: Option<HomeBalancer>,
    workers: Workers,
    _janitor: Janitor,
    _checkpointer: Checkpointer,
    _scrubber: Option<LogScrubber>,
    /// Tenants, tables and extensions.
    pub directory: Arc<Directory>,
    /// The workers' counters.
    pub metrics: Arc<ServerMetrics>,
    /// The epochs of threads that may still read replaced data.
    pub epochs: Arc<Epochs>,
    /// Ends invocations that exceed their budgets.
    pub watchdog: Arc<Watchdog>,
    /// Looks where extensions' code is, one caller at a time.
    pub profiler: Profiler,
    /// Watches the certificate of ports with TLS.
    renewal: Option<CertificateWatcher>,
}

/// The directory of a server whose workers have not started: extensions can be restored before any client calls them.
pub struct PreparedDataPlane {
    epochs: Arc<Epochs>,
    /// Tenants, tables and extensions.
    pub directory: Arc<Directory>,
}

impl DataPlane {
    /// [`DataPlane::prepare`], then [`PreparedDataPlane::start`].
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: &ServerSettings) -> Result<DataPlane, StartError> {
        DataPlane::prepare(config)?.start(config)
    }

    /// Restores the stored tenants, and creates the configured ones.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn prepare(config: &ServerSettings) -> Result<PreparedDataPlane, StartError> {
        extensions::install_process_handlers()?;
        let epochs = Epochs::new();
        if config.ephemeral {
            let directory = Directory::with_options(Arc::clone(&epochs), config.directory_options());
            config.beside_workers(|| directory.open_backings())?;
            config.create_tenants(&directory)?;
            return Ok(PreparedDataPlane { epochs, directory });
        }
        prepare_state_dir(&config.state)?;
        let (journal, stored) = Journal::open(&config.state)?;
        let directory = match &config.cluster {
            Some(cluster) => agreed_start::restore_agreed(config, cluster, &epochs, &stored)?,
            None => restore_directory(config, &epochs, None, stored)?,
        };
        // Before the journal knows of new tables: a start that fails here changes nothing.
        let folder = config.state.join(LOG_FOLDER);
        if config.salvage {
            salvage::salvage_folder(&folder)?;
        }
        directory.on_log_writer(extensions::run_log_writer_when_woken);
        directory.restore_records(&folder, unix_ms(), |log| config.beside_workers(|| log.start()))?;
        if config.salvage {
            salvage::log_kept(&directory);
        }
        directory.start_journal(journal)?;
        Ok(PreparedDataPlane { epochs, directory })
    }

    /// Tells the other servers of the cluster, if it is one's, where this one is: the URL of its control port, and the
    /// fingerprint of its certificate, empty without one. Requests for what it owns are
    /// answered before, too.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn join_cluster(
        &mut self,
        config: &ServerSettings,
        control: String,
        fingerprint: String,
    ) -> Result<(), StartError> {
        let (Some(cluster), Some(joining)) = (&config.cluster, self.joining.take()) else { return Ok(()) };
        let port = |protocol| {
            let ports = || self.ports().iter().filter(|port| port.service.protocol == protocol);
            let plain = ports().find_map(|port| match port.address {
                PortAddress::Tcp(bound) => Some(bound),
                _ => None,
            });
            let sealed = || {
                ports().find_map(|port| match port.address {
                    PortAddress::Tls(bound) => Some(bound),
                    _ => None,
                })
            };
            plain.or_else(sealed).map(|bound| cluster.reached(bound))
        };
        let directory = Arc::clone(&self.directory);
        let digest = move |known: u64| match directory.generation() {
            newest if newest == known => (known, None),
            _ => {
                let (change, digest) = directory.digest();
                (change, Some(digest))
            }
        };
        let addresses = MemberAddresses {
            data: cluster.reached(self.address()),
            redis: port(Protocol::Redis),
            memcached: port(Protocol::Memcached),
            control,
            fingerprint,
        };
        let directory = Arc::clone(&self.directory);
        let follow = move |newest: u64| match directory.is_behind(newest) {
            true => directory.catch_up().map_err(|error| error.to_string()),
            false => Ok(()),
        };
        self.cluster = Some(config.beside_workers(|| joining.start(&addresses, &self.directory, digest, follow))?);
        Ok(())
    }

    /// Stops for good as the process is about to end. Tables and records are left to the end of the process, which
    /// frees their memory at once. To free millions of records one by one takes seconds, in which no request would be
    /// answered.
    pub fn finish(self) {
        let DataPlane {
            cluster,
            joining: _,
            moves: _,
            _homes,
            workers,
            _janitor,
            _checkpointer,
            _scrubber,
            directory,
            metrics: _,
            epochs,
            watchdog,
            profiler: _,
            renewal,
        } = self;
        drop((cluster, _homes, workers, _janitor, _checkpointer, _scrubber, watchdog, renewal));
        directory.close_spill_folder();
        directory.close_backings();
        // What was acknowledged at the end is on the disk as well.
        directory.change_log().into_iter().for_each(|log| log.close());
        std::mem::forget((directory, epochs));
    }

    /// The TCP addresses of the ports for memcached and Redis clients, in the order of [`ServerSettings::listen`].
    pub fn listening(&self) -> &[SocketAddr] {
        self.workers.listening()
    }

    /// All these ports, in the order of [`ServerSettings::listen`], with the addresses that were bound.
    pub fn ports(&self) -> &[ListenerConfig] {
        self.workers.ports()
    }

    /// The view that the control plane gets.
    pub fn served(&self) -> DataPlaneView {
        DataPlaneView {
            directory: Arc::clone(&self.directory),
            metrics: Arc::clone(&self.metrics),
            data: self.address(),
            listen: self.ports().to_vec(),
            calls: Some(self.workers.local_caller()),
            profiler: Some(self.profiler.clone()),
            moves: self.moves.clone(),
        }
    }

    /// The ports whose tenant or table does not exist, each as a line with advice.
    pub fn ports_without_target(&self) -> Vec<String> {
        ListenerConfig::in_want(self.ports(), &self.directory.snapshot())
    }

    /// Checks at once whether the files of these ports' certificate have changed.
    pub fn look_at_certificate(&self) {
        if let Some(renewal) = &self.renewal {
            renewal.wake();
        }
    }

    /// Packet buffers of the network device in use: in its queues, or kept for values. `None` without such a device.
    pub fn packet_buffers(&self) -> Option<u32> {
        self.workers.packet_buffers()
    }

    /// The address of the first worker's port.
    pub fn address(&self) -> SocketAddr {
        self.workers.address()
    }
}

impl PreparedDataPlane {
    /// Starts the workers.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(self, config: &ServerSettings) -> Result<DataPlane, StartError> {
        let PreparedDataPlane { epochs, directory } = self;
        let joining = match (&config.cluster, directory.slots()) {
            (Some(cluster), Some(slots)) => {
                let (etcd, own) = (cluster.endpoint()?, (config.state.as_path(), cluster.copies.clone()));
                let joining = JoiningServer::read(&etcd, cluster.founders, slots, own)?;
                check_records(&directory, slots, cluster.founders)?;
                Some(joining)
            }
            _ => None,
        };
        let metrics = ServerMetrics::new(config.workers);
        metrics.slow.set_us(config.slow_us);
        let identity = ServerCertificate::of_ports(config)?;
        let watchdog = config.beside_workers(Watchdog::spawn)?;
        let options = WorkerOptions {
            workers: config.workers,
            address: config.data,
            pin: config.pin,
            poll: config.poll,
            steal: config.steal,
            interleave: config.interleave,
            zero_copy: config.net.zero_copy,
            network: config.net.network(config.data.port(), config.workers),
            allow_plaintext: config.allow_plaintext,
            listen: config.listen.clone(),
            tls: identity
                .as_ref()
                .map(ServerCertificate::worker_tls_config)
                .transpose()
                .map_err(std::io::Error::other)?,
            forwarder: joining.as_ref().map(|joining| ClusterForwarder::start(joining.coordinator())),
        };
        let workers = Workers::start(&options, Arc::clone(&directory), &epochs, &watchdog, &metrics)?;
        metrics.set_network(workers.network(), workers.device());
        // A reader of counters does not keep the watchdog's thread.
        let watched = Arc::downgrade(&watchdog);
        metrics.set_watchdog(Box::new(move || {
            let counts = |watched: Arc<Watchdog>| WatchdogCounts {
                looks: watched.samples(),
                requests: watched.requests(),
                late: watched.late(),
            };
            watched.upgrade().map(counts).unwrap_or_default()
        }));
        let janitor = config
            .beside_workers(|| Janitor::start(Arc::clone(&directory), Arc::clone(&epochs), Arc::clone(&metrics)))?;
        let checkpointer = start_checkpointer(config, &directory, &epochs)?;
        let _scrubber = start_scrubber(config, &directory, joining.as_ref())?;
        let renewal = identity.map(|identity| config.beside_workers(|| CertificateWatcher::start(identity, |_| ())));
        let renewal = renewal.transpose()?;
        let (_janitor, _checkpointer, profiler) = (janitor, checkpointer, Profiler::new(&watchdog));
        Ok(DataPlane {
            cluster: None,
            moves: joining.as_ref().map(|joining| Arc::clone(joining.coordinator())),
            joining,
            _homes: start_homes(config, &directory, &metrics)?,
            workers,
            _janitor,
            _checkpointer,
            _scrubber,
            directory,
            metrics,
            epochs,
            watchdog,
            profiler,
            renewal,
        })
    }
}

/// Starts to move tenants between the workers, unless that is turned off or there is only one worker.
fn start_homes(
    config: &ServerSettings,
    directory: &Arc<Directory>,
    metrics: &Arc<ServerMetrics>,
) -> Result<Option<HomeBalancer>, StartError> {
    if !config.move_homes || config.workers < 2 {
        return Ok(None);
    }
    let start = || HomeBalancer::start(Arc::clone(directory), Arc::clone(metrics));
    Ok(Some(config.beside_workers(start)?))
}

/// Starts the checkpointer. The log keeps all that triggers may need until they have said what that is: the first
/// checkpoint may be over before.
fn start_checkpointer(
    config: &ServerSettings,
    directory: &Arc<Directory>,
    epochs: &Arc<Epochs>,
) -> Result<Checkpointer, StartError> {
    if let Some(log) = directory.change_log().filter(|_| config.state.join(TRIGGER_FOLDER).exists()) {
        log.retain_from(Some(0));
    }
    Ok(config.beside_workers(|| Checkpointer::start(Arc::clone(directory), Arc::clone(epochs)))?)
}

fn start_scrubber(
    config: &ServerSettings,
    directory: &Arc<Directory>,
    joining: Option<&JoiningServer>,
) -> Result<Option<LogScrubber>, StartError> {
    if config.ephemeral {
        return Ok(None);
    }
    let coordinator = joining.map(|joining| Arc::clone(joining.coordinator()));
    Ok(Some(config.beside_workers(|| LogScrubber::start(Arc::clone(directory), coordinator))?))
}

/// A directory with the stored tenants and the configured ones, without records; of a cluster with the slots of this
/// server.
fn restore_directory(
    config: &ServerSettings,
    epochs: &Arc<Epochs>,
    slots: Option<&Arc<SlotOwnership>>,
    stored: DirectoryImage,
) -> Result<Arc<Directory>, StartError> {
    let directory = Directory::with_options(Arc::clone(epochs), config.directory_options());
    config.beside_workers(|| directory.open_backings())?;
    slots.into_iter().for_each(|slots| directory.join_cluster(slots));
    config.beside_workers(|| directory.open_spill_folder(&config.state.join(SPILL_FOLDER)))?;
    directory.open_secret_key(&config.state)?;
    for left in config.restore_tenants(stored, &directory)? {
        tracing::warn!("{left}");
    }
    Ok(directory)
}

/// Refuses a server with records that joins a cluster in which it owns nothing: they would be there, and never served.
fn check_records(directory: &Directory, slots: &SlotOwnership, founders: usize) -> Result<(), ConfigError> {
    // One that was a member before has what is left of slots that were moved.
    let is_member = slots.map().servers.iter().any(|server| server.id == slots.own_id());
    let owns_some = is_member || (0..=u16::MAX).any(|slot| slots.owns_slot(slot));
    let becomes_owner_of_all = founders == 1 && slots.map().epoch == 0;
    let snapshot = directory.snapshot();
    let mut tables = snapshot.iter().flat_map(|view| view.tables.values());
    if owns_some || becomes_owner_of_all || tables.all(|entry| entry.table.stats().records == 0) {
        return Ok(());
    }
    Err(ConfigError::new(
        "this server has records, and owns no keys of the cluster: its records would not be served. A cluster of several \
         servers begins with empty ones: `sandstorm export` the records before, start with another --state, and import them",
    ))
}

/// The folder of spill files in the state directory: tables larger than memory. It is emptied at each start.
pub const SPILL_FOLDER: &str = "spill";
/// The folder of the records' log in the state directory.
pub const LOG_FOLDER: &str = "log";
/// Beginning of the names of folders there with damaged logs that were put aside; the time in milliseconds since the
/// Unix epoch follows.
pub const DAMAGED_LOG_PREFIX: &str = "log.damaged-";
/// The builder's folder there.
const BUILDER_FOLDER: &str = "builder";

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
