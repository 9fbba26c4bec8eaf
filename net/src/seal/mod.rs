//! Sealed sessions protect a tenant's packets where others can read, forge or repeat them.
//!
//! [`keys`] derives from a tenant's token what either side holds of it. [`ClientSeal`] and [`ServerSeal`] make a
//! session of it (`handshake`), and seal and open packets in place (`aead`); [`ReplayWindow`] takes each packet number
//! once. `packet` is the outside, which anyone can read. To R2P2 and the layers above a session is a peer like any
//! other, under an address that no packet can come from ([`session_peer`]).
//!
//! Nothing here has a socket or a clock: datagrams and times come in, datagrams go out. Randomness is the operating
//! system's, and only for ephemeral keys and probes.

mod aead;
mod client;
mod cookie;
mod counters;
mod handshake;
pub mod keys;
pub mod limits;
mod packet;
mod replay_window;
mod server;
mod session_table;
#[cfg(test)]
mod tests;

pub use client::{ClientSeal, ClientSealSink, HandshakeRefusal};
pub use counters::{ClientSealCounters, SealCounters};
pub use handshake::NOISE_PATTERN;
pub use keys::{TokenKeys, TokenVerifier};
pub use limits::{HEADER_LEN, SealLimits, TAG_LEN};
pub use packet::{
    MAGIC, REJECT_LEN, RejectReason, SEAL_OVERHEAD, SealHeader, SealPacketError, SealPacketKind, TENANT_BYTES, VERSION,
    is_sealed, peer_session, requires_opening, seal_overhead, session_peer,
};
pub use replay_window::{ReplayError, ReplayWindow};
pub use server::{ServerSeal, ServerSealSink, TokenSource};

use crate::r2p2::{DatagramSink, PeerAddr};

/// Parts of a packet that are sealed without being put together first. R2P2 has two.
const PARTS: usize = 4;

/// Sends a header, the parts of a packet, and room for a tag, which `seal` works on where they will be sent from.
#[inline]
fn send_sealed(
    to: PeerAddr,
    head: &[u8; HEADER_LEN],
    parts: &[&[u8]],
    tx: &mut impl DatagramSink,
    seal: &mut dyn FnMut(&mut [u8]),
) {
    const ROOM: [u8; TAG_LEN] = [0; TAG_LEN];
    let mut all: [&[u8]; PARTS + 2] = [&[]; PARTS + 2];
    all[0] = head;
    if let Some(slots) = all.get_mut(1..=parts.len()).filter(|_| parts.len() <= PARTS) {
        slots.copy_from_slice(parts);
        all[PARTS + 1] = &ROOM;
        tx.send_then(to, &all, seal);
    } else {
        tx.send_then(to, &[head, &parts.concat(), &ROOM], seal);
    }
}
