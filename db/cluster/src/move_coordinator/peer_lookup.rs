//! The address of another server, and the cluster's key, by which servers authenticate each other.

use crate::change_calls::CallWaits;
use crate::move_coordinator::MoveCoordinator;
use crate::state::{ServerState, StoredMove};

impl MoveCoordinator {
    /// A server's own record in the cluster, and the cluster's key. `None`: it is no member.
    pub(crate) fn peer(&self, id: &str) -> Option<(ServerState, String)> {
        let state = self.state.lock();
        state.servers.get(id).map(|server| (server.clone(), state.peer_key.clone()))
    }

    /// Whether the slots of a move to this server are its own by now; `None`: they may still be handed over. One that
    /// is not in the map any more has ended: by a cancellation, or since its source has removed its records.
    pub(crate) fn is_taken(&self, wanted: &StoredMove) -> Option<bool> {
        let state = self.state.lock();
        match state.map.moves.iter().find(|one| one.id == wanted.id) {
            Some(one) => one.handed_over.then_some(true),
            None => Some(state.map.owns(self.slots.own_id(), wanted.first)),
        }
    }

    /// Whether a text is the key with which the servers of the cluster show each other that they are.
    pub fn is_peer_key(&self, text: &str) -> bool {
        let key = self.state.lock().peer_key.clone();
        // Digests, so that the time that it takes says nothing of the key.
        let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        !key.is_empty() && digest(&key).as_ref() == digest(text).as_ref()
    }

    /// What waits for the calls that are made for changes of this server's log.
    pub fn calls(&self) -> &CallWaits {
        &self.calls
    }
}
