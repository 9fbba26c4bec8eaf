//! Calls for changes of keys that another server owns by now, as requests to its control port.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::forward_link::{ForwardLink, LinkAnswer};
use crate::limits::CALLS_TIMEOUT;
use crate::move_coordinator::MoveCoordinator;

/// The path of the requests.
pub const CALLS_PATH: &str = "/v1/cluster/trigger-calls";
/// Digits of a server's id that are shown.
const SHOWN_DIGITS: usize = 8;

/// The links to other servers, by their ids.
pub struct CallLinks {
    coordinator: Arc<MoveCoordinator>,
    links: Mutex<HashMap<String, Arc<ForwardLink>>>,
}

impl std::fmt::Debug for CallLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallLinks").finish_non_exhaustive()
    }
}

impl CallLinks {
    /// The links of the server that has this coordinator.
    pub fn new(coordinator: &Arc<MoveCoordinator>) -> CallLinks {
        CallLinks { coordinator: Arc::clone(coordinator), links: Mutex::default() }
    }

    /// Sends a request, once, and waits for its answer.
    ///
    /// # Errors
    /// One line: there is no answer. Whether something has run is not known then.
    pub fn send(&self, server: &str, request: &[u8]) -> Result<Vec<u8>, String> {
        let shown = server.get(..SHOWN_DIGITS).unwrap_or(server);
        let Some((peer, key)) = self.coordinator.peer(server) else {
            return Err(format!("server {shown} belongs to the cluster no more"));
        };
        let link = {
            let mut links = self.links.lock();
            match links.get(server).filter(|link| link.leads_to(&peer)) {
                Some(link) => Arc::clone(link),
                None => {
                    let link = Arc::new(ForwardLink::new(&peer)?);
                    links.insert(server.to_owned(), Arc::clone(&link));
                    link
                }
            }
        };
        match link.send(CALLS_PATH, (&key, request), CALLS_TIMEOUT) {
            LinkAnswer::Answered(answer) => Ok(answer),
            LinkAnswer::NotSent => Err(format!("server {shown}, which has the key, is away")),
            LinkAnswer::NotYet => Err(format!("server {shown}, which has the key, takes no more calls now")),
            LinkAnswer::NotRun => {
                Err(format!("server {shown}, which has the key, takes no calls: has it this version?"))
            }
            LinkAnswer::Lost => Err(format!("server {shown}, which has the key, has not answered")),
        }
    }
}
