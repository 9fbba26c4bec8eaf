//! Connections follow their tenants' homes: when a tenant has another home worker, its connections are handed over to
//! that one between two of their commands, or pieces of one.
//!
//! A connection takes all its state along: its input, its answers that have not left or wait for the log, an open
//! transaction, the keys that it watches. One that waits for an invocation, for another server, or for records on the
//! disk stays until that has come, since the result comes to the worker that began it.

use super::connection::ConnectionPhase;
use super::worker_connections::WorkerConnections;
use crate::limits::homes::{CONNECTIONS_LOOKED_AT_PER_TURN, CONNECTIONS_MOVED_PER_TURN};
use crate::workers::context::WorkerContext;

/// The home worker of a tenant; of one that is gone this worker.
pub(super) fn home_of(tenant: u32, context: &WorkerContext) -> usize {
    let home = context.snapshot.tenant(tenant).map(|view| view.tenant.home_worker as usize);
    home.map_or(context.index, |home| home % context.shared.ports.len())
}

impl WorkerConnections {
    /// Hands connections over to their tenants' homes, if these have changed. Returns their number.
    pub(super) fn follow_homes(&mut self, context: &WorkerContext) -> usize {
        self.find_leaving(context);
        let mut moved = 0;
        for _ in 0..self.leaving.queue.len().min(CONNECTIONS_LOOKED_AT_PER_TURN) {
            let next = if moved < CONNECTIONS_MOVED_PER_TURN { self.leaving.queue.pop_front() } else { None };
            let Some(id) = next else { break };
            let Some(connection) = self.slots.get(id) else { continue };
            match connection.state {
                ConnectionPhase::Serving => {
                    let home = home_of(connection.tenant, context);
                    if home != context.index {
                        moved += 1;
                        self.hand_over(id, home, context);
                    }
                }
                ConnectionPhase::Invoking | ConnectionPhase::Fetching => self.leaving.queue.push_back(id),
                ConnectionPhase::Closing => {}
            }
        }
        moved
    }

    /// Finds the connections whose tenants have another home, once for each change of the directory.
    fn find_leaving(&mut self, context: &WorkerContext) {
        let generation = context.snapshot.generation();
        let is_known = std::mem::replace(&mut self.leaving.generation, generation) == generation;
        let has_arrivals = std::mem::take(&mut self.leaving.has_arrivals);
        // Without ports the other workers may have no connections, and none that could take one over.
        if (is_known && !has_arrivals) || self.stream_ports.is_empty() || context.is_draining {
            return;
        }
        let is_elsewhere = |tenant: &u32| home_of(*tenant, context) != context.index;
        let tenants: Vec<u32> = self.slots.tenants().filter(is_elsewhere).collect();
        if !tenants.is_empty() {
            self.leaving.queue = self.slots.which(|connection| tenants.contains(&connection.tenant)).into();
        }
    }
}
