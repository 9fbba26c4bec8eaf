//! The outside of a sealed packet: a header in the clear, then encrypted bytes.

use super::limits::{HEADER_LEN, HELLO_LEN, HELLO_WITH_COOKIE_LEN, RETRY_LEN, TAG_LEN, WELCOME_LEN};
use crate::r2p2::PeerAddr;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::ops::Range;
use thiserror::Error;

/// First byte of every packet of a sealed session. R2P2's is `0xCC`.
pub const MAGIC: u8 = 0x5E;
/// The version of this format.
pub const VERSION: u8 = 1;
/// Bytes that sealing adds to a packet.
pub const SEAL_OVERHEAD: usize = HEADER_LEN + TAG_LEN;
/// Position of the tenant's id, u32 little-endian, for code that has to choose packets before they are opened.
pub const TENANT_BYTES: Range<usize> = 4..8;
/// Bytes of a [`SealPacketKind::Reject`]: less than the least packet that it answers.
pub const REJECT_LEN: usize = HEADER_LEN + 8;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SealPacketKind {
    /// A sealed R2P2 packet from the client.
    ToServer = 0,
    /// A sealed R2P2 packet from the server.
    ToClient = 1,
    /// The client's half of a handshake.
    Hello = 2,
    /// The server's half of it.
    Welcome = 3,
    /// The server cannot open a packet, or does not shake hands: not sealed, a hint.
    Reject = 4,
    /// The server asks whether the client is at an address: sealed, 8 bytes.
    Probe = 5,
    /// The client says so by repeating them.
    Proof = 6,
    /// The server sends a cookie, which the client's hello is to bring: not sealed.
    Retry = 7,
}

impl SealPacketKind {
    const ALL: [SealPacketKind; 8] = [
        SealPacketKind::ToServer,
        SealPacketKind::ToClient,
        SealPacketKind::Hello,
        SealPacketKind::Welcome,
        SealPacketKind::Reject,
        SealPacketKind::Probe,
        SealPacketKind::Proof,
        SealPacketKind::Retry,
    ];

    fn from_byte(byte: u8) -> Option<SealPacketKind> {
        SealPacketKind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The reason why a server rejects a packet; stands in the flags of a [`SealPacketKind::Reject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectReason {
    /// It does not have this session, or not these keys of it.
    Session = 1,
    /// The hello was not made with the token of a tenant of that id: there may be no such tenant.
    Token = 2,
    /// There is no such tenant. Earlier servers said so to any sender; this one answers [`RejectReason::Token`].
    Tenant = 3,
    /// The hello's time is too far from the server's, which the packet tells.
    Clock = 4,
}

impl RejectReason {
    /// The reason of that number, if there is one.
    pub fn from_byte(byte: u8) -> Option<RejectReason> {
        [RejectReason::Session, RejectReason::Token, RejectReason::Tenant, RejectReason::Clock]
            .into_iter()
            .find(|it| *it as u8 == byte)
    }
}

/// The fault in the outside of a packet.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SealPacketError {
    /// Not all of it is there.
    #[error("the packet was cut short")]
    Cut,
    /// Another first byte.
    #[error("not a sealed packet")]
    Magic,
    /// An unknown version, kind or flag, or a length that the kind does not have.
    #[error("a sealed packet of an unknown version, kind or length")]
    Form,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealHeader {
    /// The kind.
    pub kind: SealPacketKind,
    /// In sealed packets the low 8 bits of their keys' epoch, in a reject its reason, else 0.
    pub flags: u8,
    /// The tenant's id.
    pub tenant: u32,
    /// The session's number: random, chosen by the client.
    pub session: u64,
    /// In sealed packets their number; in hello, welcome and retry the epoch; in a reject the number of the rejected
    /// packet.
    pub number: u64,
}

impl SealHeader {
    /// The header as bytes.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&[MAGIC, self.kind as u8, VERSION, self.flags]);
        bytes[TENANT_BYTES].copy_from_slice(&self.tenant.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_le_bytes());
        bytes[16..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Reads the header of a datagram whose length is one that its kind can have.
    ///
    /// # Errors
    /// [`SealPacketError`] says what is wrong with it.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<SealHeader, SealPacketError> {
        let Some((head, _)) = datagram.split_first_chunk::<HEADER_LEN>() else {
            return Err(if is_sealed(datagram) { SealPacketError::Cut } else { SealPacketError::Magic });
        };
        if head[0] != MAGIC {
            return Err(SealPacketError::Magic);
        }
        let kind = SealPacketKind::from_byte(head[1]).filter(|_| head[2] == VERSION).ok_or(SealPacketError::Form)?;
        let length = datagram.len();
        let (least, most) = match kind {
            SealPacketKind::ToServer | SealPacketKind::ToClient => {
                (SEAL_OVERHEAD + crate::r2p2::header::SINGLE_HEADER_LEN, usize::MAX)
            }
            SealPacketKind::Hello if length == HELLO_WITH_COOKIE_LEN => (length, length),
            SealPacketKind::Hello => (HELLO_LEN, HELLO_LEN),
            SealPacketKind::Welcome => (WELCOME_LEN, WELCOME_LEN),
            SealPacketKind::Reject => (REJECT_LEN, REJECT_LEN),
            SealPacketKind::Retry => (RETRY_LEN, RETRY_LEN),
            SealPacketKind::Probe | SealPacketKind::Proof => (SEAL_OVERHEAD + 8, SEAL_OVERHEAD + 8),
        };
        if length < least {
            return Err(SealPacketError::Cut);
        }
        if length > most
            || (matches!(kind, SealPacketKind::Hello | SealPacketKind::Welcome | SealPacketKind::Retry) && head[3] != 0)
        {
            return Err(SealPacketError::Form);
        }
        let word = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| head[at + byte]));
        let tenant = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        Ok(SealHeader { kind, flags: head[3], tenant, session: word(8), number: word(16) })
    }
}

/// Returns whether a datagram belongs to a sealed session (or pretends to), by its first byte.
#[inline]
pub fn is_sealed(datagram: &[u8]) -> bool {
    datagram.first() == Some(&MAGIC)
}

/// First half of the addresses under which sealed sessions appear: the discard prefix 100::/64 (RFC 6666), from which
/// no packet may come.
const SESSION_ADDR_PREFIX: u128 = 0x0100 << 112;

/// Returns the address under which a sealed session appears to all code that knows peers by their address. It holds the
/// tenant's id and the session's number, and stays the same when the client moves or renews its keys.
#[inline]
pub fn session_peer(tenant: u32, session: u64) -> PeerAddr {
    PeerAddr::V6(SocketAddrV6::new(Ipv6Addr::from_bits(SESSION_ADDR_PREFIX | u128::from(session)), 0, 0, tenant))
}

/// The tenant and number of the sealed session that appears under this address; `None` for any other peer.
#[inline]
pub fn peer_session(peer: PeerAddr) -> Option<(u32, u64)> {
    let PeerAddr::V6(address) = peer else { return None };
    let bits = address.ip().to_bits();
    (bits >> 64 == SESSION_ADDR_PREFIX >> 64).then(|| (address.scope_id(), bits as u64))
}

/// Returns whether a datagram has to be opened before any other step: it says that it is sealed, or comes from an
/// address under which only sealed sessions appear.
#[inline]
pub fn requires_opening(peer: PeerAddr, datagram: &[u8]) -> bool {
    is_sealed(datagram) || peer_session(peer).is_some()
}

/// Bytes that sealing adds to packets for this peer.
#[inline]
pub fn seal_overhead(peer: PeerAddr) -> usize {
    if peer_session(peer).is_some() { SEAL_OVERHEAD } else { 0 }
}
