//! Connections follow their tenants' homes: when a tenant gets another home worker, its connections are handed over to
//! that worker between two of their commands, or pieces of one.
//!
//! A connection takes all its state along: its input, answers that have not left or wait for the log, an open
//! transaction, the keys that it watches. A connection that waits for an invocation, another server, or records on the
//! disk stays until the result has come, since it comes to the worker that began it.

use hashbrown::HashSet;

use super::answered::home_of;
use super::connection::ConnectionPhase;
use super::connection_id::ConnectionId;
use super::worker_connections::WorkerConnections;
use crate::limits::homes::{CONNECTIONS_LOOKED_AT_PER_TURN, CONNECTIONS_MOVED_PER_TURN};
use crate::workers::context::WorkerContext;

impl WorkerConnections {
    /// Hands connections over to their tenants' homes, if these have changed. Returns their number.
    pub(super) fn follow_homes(&mut self, context: &WorkerContext) -> usize {
        if context.is_draining {
            // The other worker may have ended, and a command that has run must be answered.
            self.leaving.queue.clear();
            return 0;
        }
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

    /// Notes a connection that has arrived, if its home is elsewhere: the worker that sent it may have known an older
    /// one.
    pub(super) fn note_arrival(&mut self, id: ConnectionId, tenant: u32, context: &WorkerContext) {
        if self.may_hand_over() && home_of(tenant, context) != context.index {
            self.leaving.queue.push_back(id);
        }
    }

    /// Whether connections may go to other workers. Without ports these may have no connections, and none that could
    /// take one over.
    fn may_hand_over(&self) -> bool {
        !self.stream_ports.is_empty()
    }

    /// Finds the connections whose tenants have another home, once for each change of the directory.
    fn find_leaving(&mut self, context: &WorkerContext) {
        let generation = context.snapshot.generation();
        let is_known = std::mem::replace(&mut self.leaving.generation, generation) == generation;
        if is_known || !self.may_hand_over() {
            return;
        }
        let is_elsewhere = |tenant: &u32| home_of(*tenant, context) != context.index;
        let tenants: HashSet<u32> = self.slots.tenants().filter(is_elsewhere).collect();
        if !tenants.is_empty() {
            // Connections that have arrived and wait in the queue are among these, unless their home is here now.
            self.leaving.queue = self.slots.which(|connection| tenants.contains(&connection.tenant)).into();
        }
    }
}
