//! Limits what other servers of the cluster have under way here, all together and each address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::request_limiter::{RequestLimiter, RequestPermit};
use crate::http_listener::counted_address;

/// What is under way, by address. Connections of this machine have none: they count for one of their own each.
#[derive(Debug)]
pub(super) struct PeerLimiter(Arc<RequestLimiter<SocketAddr>>);

/// One of them, until it is dropped.
pub(super) type PeerPermit = RequestPermit<SocketAddr>;

impl PeerLimiter {
    /// A limiter with a bound on all, and one for each address.
    pub(super) fn new(most: usize, per_address: usize) -> PeerLimiter {
        PeerLimiter(RequestLimiter::new(most, per_address))
    }

    /// Begins one. `None`: as many as may be are under way.
    pub(super) fn begin(&self, peer: SocketAddr) -> Option<PeerPermit> {
        let owner = counted_address(peer.ip()).map_or(peer, |address: IpAddr| SocketAddr::new(address, 0));
        self.0.begin(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_listener::ConnectionLimiter;
    use crate::limits::{COMMAND_REQUESTS, COMMAND_REQUESTS_PER_ADDRESS};

    #[test]
    fn commands_leave_connections_for_other_questions_of_their_server_and_of_others() {
        let connections = ConnectionLimiter::new("port");
        let most = COMMAND_REQUESTS.min(connections.limit() / 2);
        let commands = PeerLimiter::new(most, COMMAND_REQUESTS_PER_ADDRESS);
        let place = |address: &str| connections.place(address.parse().unwrap());
        let begin = |address: &str| {
            let connection = place(address).unwrap();
            let permit = commands.begin(SocketAddr::new(address.parse().unwrap(), 7));
            permit.iter().for_each(|_| connection.visit().serve(true));
            (connection, permit)
        };
        // One server, with all the connections that it may have.
        let of_one: Vec<_> = (0..crate::limits::MAX_CONNECTIONS_PER_ADDRESS).map(|_| begin("10.0.0.1")).collect();
        let permits = of_one.iter().filter(|(_, permit)| permit.is_some()).count();
        assert_eq!(permits, COMMAND_REQUESTS_PER_ADDRESS);
        let question = place("10.0.0.1").expect("one that has no permit makes room");
        question.visit().serve(true);
        // All servers of a large cluster.
        let of_all: Vec<_> = (0..2_000).map(|number| begin(&format!("10.1.{}.1", number % 100))).collect();
        let permits = of_one.iter().chain(&of_all).filter(|(_, permit)| permit.is_some()).count();
        assert_eq!(permits, COMMAND_REQUESTS.min(connections.limit() / 2));
        assert!(place("10.2.0.1").is_some());
        drop((of_one, of_all));
        assert!(begin("10.0.0.1").1.is_some());
    }
}
