//! A server, composed: the data plane (directory, tables, workers), and what the control plane sees of it.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use sandstorm_catalog::Directory;
use sandstorm_catalog::journal::{Journal, JournalError};
use sandstorm_control::admin::DataPlaneView;
use sandstorm_control::config::{ConfigError, ServerSettings, prepare_state_dir};
use sandstorm_control::http_listener::{CertificateWatcher, ServerCertificate};
use sandstorm_metrics::ServerMetrics;
use sandstorm_runtime as extensions;
use sandstorm_runtime::Watchdog;
use sandstorm_server::janitor::Janitor;
use sandstorm_server::workers::{ListenerConfig, WorkerOptions, WorkerStartError, Workers};
use sandstorm_store::Epochs;

/// Why a server did not start. Nothing of it is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What was configured cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What was kept cannot be used.
    #[error(transparent)]
    Kept(#[from] JournalError),
    /// A worker could not be started, or its port not be had.
    #[error(transparent)]
    Workers(#[from] WorkerStartError),
    /// The system refused something.
    #[error("cannot start the server: {0}")]
    System(#[from] std::io::Error),
}

/// Everything that answers requests. Stops when dropped: the workers first, with what they have under way.
pub struct DataPlane {
    workers: Workers,
    _janitor: Janitor,
    /// Tenants, tables and extensions.
    pub directory: Arc<Directory>,
    /// What the workers count.
    pub metrics: Arc<ServerMetrics>,
    /// Who may still be reading what was replaced.
    pub epochs: Arc<Epochs>,
    /// Ends invocations that are over their budgets.
    pub watchdog: Arc<Watchdog>,
    /// Looks after the certificate of ports with TLS.
    renewal: Option<CertificateWatcher>,
}

/// The directory of a server whose workers have not started: extensions can be put back before anybody calls them.
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

    /// Puts back the tenants that were kept, and creates the configured ones.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn prepare(config: &ServerSettings) -> Result<PreparedDataPlane, StartError> {
        extensions::install_process_handlers()?;
        let epochs = Epochs::new();
        let directory = Directory::with_options(Arc::clone(&epochs), config.directory_options());
        if config.ephemeral {
            config.create_tenants(&directory)?;
        } else {
            prepare_state_dir(&config.state)?;
            let (journal, kept) = Journal::open(&config.state)?;
            for left in config.restore_tenants(kept, &directory)? {
                tracing::warn!("{left}");
            }
            directory.start_journal(journal)?;
        }
        Ok(PreparedDataPlane { epochs, directory })
    }

    /// Stops for good, as the process is about to end: tables and records are left to the end of the process, which
    /// gives their memory back at once. To free millions of records one by one takes seconds, in which nobody would be
    /// answered.
    pub fn finish(self) {
        let DataPlane { workers, _janitor: janitor, directory, metrics: _, epochs, watchdog, renewal } = self;
        drop((workers, janitor, watchdog, renewal));
        std::mem::forget((directory, epochs));
    }

    /// The addresses of TCP of the ports for memcached and Redis clients, in the order of [`ServerSettings::listen`].
    pub fn listening(&self) -> &[SocketAddr] {
        self.workers.listening()
    }

    /// All these ports, in the order of [`ServerSettings::listen`], at the addresses that were bound.
    pub fn ports(&self) -> &[ListenerConfig] {
        self.workers.ports()
    }

    /// What the control plane is put before.
    pub fn served(&self) -> DataPlaneView {
        DataPlaneView {
            directory: Arc::clone(&self.directory),
            metrics: Arc::clone(&self.metrics),
            data: self.address(),
            listen: self.ports().to_vec(),
        }
    }

    /// Those of these ports whose tenant or table is not there, in a line each that says what to do.
    pub fn ports_without_target(&self) -> Vec<String> {
        ListenerConfig::in_want(self.ports(), &self.directory.snapshot())
    }

    /// Looks at once whether the files of these ports' certificate have changed.
    pub fn look_at_certificate(&self) {
        if let Some(renewal) = &self.renewal {
            renewal.wake();
        }
    }

    /// Packet buffers of the network's device that are out: in its queues, or held. None without such a device.
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
        let metrics = ServerMetrics::new(config.workers);
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
        };
        let workers = Workers::start(&options, Arc::clone(&directory), &epochs, &watchdog, &metrics)?;
        metrics.set_network(workers.network(), workers.device());
        let janitor = config
            .beside_workers(|| Janitor::start(Arc::clone(&directory), Arc::clone(&epochs), Arc::clone(&metrics)))?;
        let renewal = identity.map(|identity| config.beside_workers(|| CertificateWatcher::start(identity, |_| ())));
        let renewal = renewal.transpose()?;
        Ok(DataPlane { workers, _janitor: janitor, directory, metrics, epochs, watchdog, renewal })
    }
}
