//! Where another server is, and with which key it believes this one.

use crate::move_coordinator::MoveCoordinator;
use crate::state::ServerState;

impl MoveCoordinator {
    /// What a server of the cluster has told of itself, and the cluster's key. `None`: it is none.
    pub(crate) fn peer(&self, id: &str) -> Option<(ServerState, String)> {
        let state = self.state.lock();
        state.servers.get(id).map(|server| (server.clone(), state.peer_key.clone()))
    }
}
