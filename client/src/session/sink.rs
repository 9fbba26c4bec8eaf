//! The sink of a session's packets: they go to the transport as they are, or sealed.

use sandstorm_net::r2p2::{DatagramSink, PeerAddr};
use sandstorm_net::seal::{ClientSeal, ClientSealSink};

/// The packets' transport: as they are, or sealed.
pub(super) enum SessionSink<'s, T> {
    Plain(&'s mut T),
    Sealed(ClientSealSink<'s, T>),
}

impl<'s, T: DatagramSink> SessionSink<'s, T> {
    /// Sealed if there are keys.
    pub(super) fn of(seal: &'s mut Option<Box<ClientSeal>>, tx: &'s mut T) -> SessionSink<'s, T> {
        match seal {
            Some(seal) => SessionSink::Sealed(seal.through(tx)),
            None => SessionSink::Plain(tx),
        }
    }
}

impl<T: DatagramSink> DatagramSink for SessionSink<'_, T> {
    fn send(&mut self, peer: PeerAddr, parts: &[&[u8]]) {
        match self {
            SessionSink::Plain(tx) => tx.send(peer, parts),
            SessionSink::Sealed(tx) => tx.send(peer, parts),
        }
    }

    fn most(&mut self, peer: PeerAddr) -> usize {
        match self {
            SessionSink::Plain(tx) => tx.most(peer),
            SessionSink::Sealed(tx) => tx.most(peer),
        }
    }
}
