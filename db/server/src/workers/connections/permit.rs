//! The permit of an unauthenticated connection: its origin and its number.

use std::net::IpAddr;

use sandstorm_net::driver::StreamSocket;

use super::connection_id::ConnectionId;

/// The origin of a connection: its client's address, of IPv6 the /64. All Unix sockets are one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Origin(pub(super) Option<u128>);

impl Origin {
    /// The origin of a stream.
    pub(super) fn of(stream: &StreamSocket) -> Origin {
        Origin(stream.peer().map(|peer| match peer.ip().to_canonical() {
            IpAddr::V6(ip) => u128::from(ip) >> 64,
            IpAddr::V4(ip) => u128::from(u32::from(ip)) << 64,
        }))
    }
}

/// The permit of an unauthenticated connection. Permits are numbered in the order of their connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnauthenticatedPermit {
    pub(super) origin: Origin,
    pub(super) number: u64,
}

/// A worker's number, and the id of its connection.
pub(super) type ConnectionLocation = (usize, ConnectionId);
