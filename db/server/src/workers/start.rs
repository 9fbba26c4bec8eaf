//! Starting and stopping the workers.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crossbeam_deque::{Stealer, Worker as Deque};
use crossbeam_utils::CachePadded;
use sandstorm_catalog::Directory;
use sandstorm_dialects::ServerProperties;
use sandstorm_metrics::limits::MAX_WORKERS;
use sandstorm_metrics::{DeviceProbe, ServerMetrics, WorkerCounters};
use sandstorm_net::driver::{AnyDriver, DatagramDriver};
use sandstorm_net::limits as net_limits;
use sandstorm_net::r2p2::ServerEndpoint;
use sandstorm_net::reply_cache::ReplyCache;
use sandstorm_net::rx_budget::RxBufferBudget;
use sandstorm_net::seal::{SealLimits, ServerSeal};
use sandstorm_runtime::{Engine, Watchdog};
use sandstorm_store::{Epochs, Participant};

use super::connections::budget::ConnectionBudget;
use super::connections::worker_connections::WorkerConnections;
use super::context::{WorkerClock, WorkerContext};
use super::executor::RequestExecutor;
use super::idle::IdleController;
use super::invocations::InvocationScheduler;
use super::latency_ledger::LatencyLedger;
use super::listener_config::ListenerConfig;
use super::listeners::{ConnectionPorts, bind_listeners};
use super::local_caller::LocalCaller;
use super::local_calls::LocalCalls;
use super::log_watch::LogWatch;
use super::network::{self, DeviceHandle, OpenNetwork};
use super::options::{WorkerOptions, WorkerStartError};
use super::port::{PortContext, WorkerPort};
use super::recent_tenants::RecentTenants;
use super::serve::PacketServer;
use super::sessions::AuthenticatedSessions;
use super::shared::SharedWorkerState;
use super::tasks::InvocationTask;
use super::turn_history::TurnHistory;
use super::worker::Worker;
use crate::cpu_affinity;
use crate::limits::SESSIONS_PER_PORT;

/// The running workers.
pub struct Workers {
    shared: Arc<SharedWorkerState>,
    address: SocketAddr,
    listening: Vec<SocketAddr>,
    listen: Vec<ListenerConfig>,
    threads: Vec<JoinHandle<()>>,
    about: String,
    /// Dropped after the threads.
    device: DeviceHandle,
}

impl Workers {
    /// Binds the ports and starts the threads.
    ///
    /// # Errors
    /// [`WorkerStartError`]: a port in use, a number out of range, or an error of the system; no thread is left
    /// running.
    pub fn start(
        options: &WorkerOptions,
        directory: Arc<Directory>,
        epochs: &Arc<Epochs>,
        watchdog: &Arc<Watchdog>,
        metrics: &Arc<ServerMetrics>,
    ) -> Result<Workers, WorkerStartError> {
        if options.workers == 0 || options.workers > MAX_WORKERS {
            return Err(WorkerStartError::Workers(options.workers));
        }
        let OpenNetwork { drivers, rx_budgets, about, device } = network::open_network(options)?;
        let address = drivers[0].local();
        let rx_budgets = rx_budgets.into_iter().chain(std::iter::repeat(None));
        let (listen, worker_ports) = bind_listeners(options)?;
        let listening = listen.iter().filter_map(ListenerConfig::tcp).collect();
        let connection_budget = ConnectionBudget::new();
        let properties = ServerProperties {
            metrics: Arc::clone(metrics),
            workers: options.workers,
            started_ms: unix_ms(),
            connections: connection_budget.limit(),
        };
        let deques: Vec<Deque<_>> = drivers.iter().map(|_| Deque::new_lifo()).collect();
        let stealers = deques.iter().map(Deque::stealer).collect();
        let network = drivers.into_iter().zip(rx_budgets).collect();
        let shared = new_shared(options, directory, properties, (network, stealers), connection_budget);
        let waking = Arc::downgrade(&shared);
        shared.directory.wake_on_change(move || {
            if let Some(shared) = waking.upgrade() {
                shared.ports.iter().for_each(|port| port.waker.wake());
            }
        });
        let waking = Arc::downgrade(&shared);
        shared.directory.on_backing_progress(Arc::new(move || {
            if let Some(shared) = waking.upgrade() {
                shared.wake_holders();
            }
        }));
        let waking = Arc::downgrade(&shared);
        shared.directory.on_log_progress(Arc::new(move || {
            if let Some(shared) = waking.upgrade() {
                shared.wake_holders();
            }
        }));
        let mut workers = Workers { shared, address, listening, listen, threads: Vec::new(), about, device };
        for (index, (offered, ports)) in deques.into_iter().zip(worker_ports).enumerate() {
            // They start one by one: an error on the new thread is reported to this one, and the others are stopped.
            workers.start_one(index, (offered, ports), options.pin, epochs, watchdog, metrics)?;
        }
        Ok(workers)
    }

    fn start_one(
        &mut self,
        index: usize,
        (offered, ports): (Deque<InvocationTask>, ConnectionPorts),
        pin: bool,
        epochs: &Arc<Epochs>,
        watchdog: &Arc<Watchdog>,
        metrics: &ServerMetrics,
    ) -> Result<(), WorkerStartError> {
        let (shared, epochs, watchdog) = (Arc::clone(&self.shared), Arc::clone(epochs), Arc::clone(watchdog));
        let counters = metrics.worker(index).cloned().unwrap_or_default();
        let (report, started) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            if let Err(error) = if pin { cpu_affinity::bind_worker(index) } else { Ok(()) } {
                tracing::warn!(worker = index, %error, "cannot bind the worker to a processor; it runs where the kernel puts it");
            }
            let engine = match Engine::new(&watchdog, index) {
                Ok(engine) => engine,
                Err(error) => return drop(report.send(Err(error))),
            };
            let ConnectionPorts { stream_ports, udp_ports } = ports;
            let connections = match (!stream_ports.is_empty()).then(|| WorkerConnections::new(stream_ports, udp_ports)).transpose() {
                Ok(connections) => connections,
                Err(error) => return drop(report.send(Err(error))),
            };
            let worker = new_worker(index, shared, (engine, offered), connections, epochs.register(), counters);
            let _starter_waits = report.send(Ok(()));
            worker.run();
        })?;
        self.threads.push(thread);
        started.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended before it began")))?;
        Ok(())
    }

    /// The address of the first worker's port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where calls of this process go in.
    pub fn local_caller(&self) -> LocalCaller {
        LocalCaller { shared: Arc::downgrade(&self.shared) }
    }

    /// The TCP addresses of the ports for connections, in the order of the configuration.
    pub fn listening(&self) -> &[SocketAddr] {
        &self.listening
    }

    /// All ports for connections, at the addresses that were bound.
    pub fn ports(&self) -> &[ListenerConfig] {
        &self.listen
    }

    /// A description of the network that the workers use.
    pub fn network(&self) -> &str {
        &self.about
    }

    /// The state of the workers' device, if they use one.
    pub fn device(&self) -> Option<DeviceProbe> {
        network::device_state_reader(&self.device)
    }

    /// Packet buffers of the network's device in use: in its queues, or with values. None without such a device.
    pub fn packet_buffers(&self) -> Option<u32> {
        network::buffers_in_use(&self.device)
    }

    /// Number of workers.
    pub fn count(&self) -> usize {
        self.shared.ports.len()
    }
}

impl Drop for Workers {
    /// Stops the workers and waits until they have finished what is under way.
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.ports.iter().for_each(|port| port.waker.wake());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker had panicked");
            }
        }
    }
}

pub(super) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A port's driver, and the device buffers of its queue in which values may stay.
type PortDriver = (AnyDriver, Option<Arc<RxBufferBudget>>);

/// The state that workers with these drivers share.
pub(super) fn new_shared(
    options: &WorkerOptions,
    directory: Arc<Directory>,
    properties: ServerProperties,
    (network, stealers): (Vec<PortDriver>, Vec<Stealer<InvocationTask>>),
    connection_budget: ConnectionBudget,
) -> Arc<SharedWorkerState> {
    let (workers, restart) = (network.len(), (rand::random::<u32>().max(1), directory.was_restored()));
    Arc::new(SharedWorkerState {
        stealers,
        in_guest_code: (0..workers).map(|_| Default::default()).collect(),
        inboxes: (0..workers).map(|_| Default::default()).collect(),
        databases: Default::default(),
        local_calls: LocalCalls::new(workers),
        arrivals: (0..workers).map(|_| Default::default()).collect(),
        connection_budget,
        properties,
        ports: (0..)
            .zip(network)
            .map(|(index, (driver, rx_budget))| new_port(index, driver, rx_budget, restart))
            .collect(),
        directory,
        idle: Default::default(),
        holding_ports: Default::default(),
        holding_connections: Default::default(),
        stop: AtomicBool::new(false),
        epoch: Instant::now(),
        start: restart.0,
        poll: options.poll,
        steal: options.steal,
        interleave: options.interleave,
        zero_copy: options.zero_copy,
        allow_plaintext: options.allow_plaintext,
        forwarder: options.forwarder.clone(),
    })
}

/// A worker, on the thread that will run it.
pub(super) fn new_worker(
    index: usize,
    shared: Arc<SharedWorkerState>,
    (mut engine, offered): (Engine, Deque<InvocationTask>),
    connections: Option<WorkerConnections>,
    participant: Participant,
    counters: Arc<CachePadded<WorkerCounters>>,
) -> Worker {
    let snapshot = shared.directory.snapshot();
    engine.sees(snapshot.generation());
    let context = WorkerContext {
        index,
        participant,
        counters,
        snapshot,
        clock: WorkerClock::new(shared.epoch),
        recent_tenants: RecentTenants::default(),
        answered: LatencyLedger::default(),
        turns: RefCell::new(TurnHistory::new()),
        log: LogWatch::default(),
        is_draining: false,
        shared,
    };
    Worker {
        executor: RequestExecutor { context, invocations: InvocationScheduler::new(engine, offered) },
        packets: PacketServer::new(),
        connections: connections.map(Box::new),
        idle: IdleController::new(),
    }
}

/// A port of this start of the server. `known_before` is whether there was an earlier one.
fn new_port(
    index: usize,
    driver: AnyDriver,
    rx_budget: Option<Arc<RxBufferBudget>>,
    (start, known_before): (u32, bool),
) -> WorkerPort {
    let (max_datagram, largest_datagram) = (driver.usual_datagram(), driver.max_datagram());
    let limits = net_limits::ServerLimits { max_datagram, largest_datagram, ..Default::default() };
    let endpoint = ServerEndpoint::new(limits).with_server_start(start);
    let reply_cache =
        ReplyCache::new(net_limits::ReplyCacheLimits::default()).with_server_start(0, start, known_before);
    // The workers' microseconds start now; handshakes allow for the difference of two machines' clocks.
    let seal = ServerSeal::new(SealLimits::default(), unix_ms());
    let outbox = driver.outbox();
    WorkerPort::new(
        driver,
        PortContext::new(
            index,
            endpoint,
            reply_cache,
            seal,
            AuthenticatedSessions::new(SESSIONS_PER_PORT),
            outbox,
            rx_budget,
        ),
    )
}
