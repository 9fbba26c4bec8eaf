//! A worker without a thread: its owner runs its turns, with a driver of its own. So what a turn takes can be counted.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crossbeam_deque::Worker as Deque;
use sandstorm_catalog::Directory;
use sandstorm_dialects::ServerProperties;
use sandstorm_metrics::ServerMetrics;
use sandstorm_net::driver::{AnyDriver, UdpOptions};
use sandstorm_runtime::{Engine, Watchdog};
use sandstorm_store::Epochs;

use super::connections::budget::ConnectionBudget;
use super::options::{NetworkOptions, WorkerOptions};
use super::start::{new_shared, new_worker, unix_ms};
use super::worker::Worker;

/// A worker whose turns its owner runs, on the thread that has made it.
pub struct SteppedWorker(Worker);

impl std::fmt::Debug for SteppedWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SteppedWorker(..)")
    }
}

impl SteppedWorker {
    /// The only worker of a server without connections, over this driver.
    ///
    /// # Errors
    /// The system's, for what an engine of calls needs.
    pub fn new(
        driver: AnyDriver,
        directory: Arc<Directory>,
        (epochs, watchdog): (&Arc<Epochs>, &Arc<Watchdog>),
        metrics: &Arc<ServerMetrics>,
    ) -> io::Result<SteppedWorker> {
        let options = WorkerOptions {
            workers: 1,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            pin: false,
            poll: true,
            steal: false,
            interleave: true,
            zero_copy: true,
            network: NetworkOptions::Sockets(UdpOptions::default()),
            allow_plaintext: true,
            listen: Vec::new(),
            tls: None,
            forwarder: None,
        };
        let connection_budget = ConnectionBudget::new();
        let (metrics, connections) = (Arc::clone(metrics), connection_budget.limit());
        let counters = metrics.worker(0).cloned().unwrap_or_default();
        let properties = ServerProperties { metrics, workers: 1, started_ms: unix_ms(), connections };
        let (engine, offered) = (Engine::new(watchdog, 0)?, Deque::new_lifo());
        let network = (vec![(driver, None)], vec![offered.stealer()]);
        let shared = new_shared(&options, directory, properties, network, connection_budget);
        Ok(SteppedWorker(new_worker(0, shared, (engine, offered), None, epochs.register(), counters)))
    }

    /// Runs a turn. Returns the amount of work that it found.
    pub fn turn(&mut self) -> usize {
        self.0.run_once()
    }
}
