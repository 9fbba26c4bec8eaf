//! The name of a session, and its binding to one start of the server.

use crate::r2p2::PeerAddr;
use crate::seal::peer_session;
use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Stands for every address: that of a bound session says nothing about it.
const ANY_ADDR: PeerAddr = PeerAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// The start of the server that a sequence is bound to: its upper half. 0: it is bound to none.
#[inline]
pub const fn bound_server_start(sequence: u64) -> u32 {
    (sequence >> 32) as u32
}

/// Returns the address by which a session is known. A bound session is the same for any address of its packets: a NAT
/// may give its client another port at any time. A sealed session has an address of its own in any case.
#[inline]
pub fn session_addr(peer: PeerAddr, is_bound: bool) -> PeerAddr {
    if is_bound && peer_session(peer).is_none() { ANY_ADDR } else { peer }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplySessionId {
    peer: PeerAddr,
    pub(super) tenant: u32,
    session: u64,
}

impl ReplySessionId {
    /// The session of that number that sends from there and numbers its messages so.
    #[inline]
    pub(super) fn of(peer: PeerAddr, tenant: u32, session: u64, sequence: u64) -> ReplySessionId {
        ReplySessionId { peer: session_addr(peer, bound_server_start(sequence) != 0), tenant, session }
    }
}

impl Hash for ReplySessionId {
    /// It hashes in whole words; the derived implementation feeds an address in piece by piece (measured: 24 ns per
    /// admit and complete, 20 so).
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.peer {
            PeerAddr::V4(address) => {
                state.write_u64(u64::from(address.ip().to_bits()) << 16 | u64::from(address.port()))
            }
            PeerAddr::V6(address) => {
                state.write_u128(address.ip().to_bits());
                state.write_u64(u64::from(address.scope_id()) << 16 | u64::from(address.port()));
            }
        }
        state.write_u64(self.session ^ u64::from(self.tenant).rotate_left(32));
    }
}
