//! A response under way.

use super::header::Kind;
use super::stream::{Name, Sender, Shape};
use super::{Peer, Text, Transmit};
use crate::share::Share;

/// A message of a peer: request id and digest of session and sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) peer: Peer,
    pub(super) request_id: u16,
    pub(super) ident: u32,
}

/// A response of several packets, until the client has acked all of it.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) sender: Sender,
    pub(super) owner: u32,
    pub(super) incarnation: u32,
    pub(super) bytes: Vec<u8>,
    /// What comes behind them, where it is stored.
    pub(super) tail: Option<Share>,
    pub(super) begun_us: u64,
    pub(super) ends_us: u64,
}

impl Outgoing {
    /// The sender, and what it sends.
    pub(super) fn parts(&mut self) -> (&mut Sender, Text<'_>) {
        (&mut self.sender, Text { own: &self.bytes, tail: self.tail.as_ref() })
    }

    /// The timer expired: resends what is not acked. If its datagrams do not come through any more it begins anew, in datagrams of `most` bytes,
    /// as another incarnation. Returns packets sent.
    pub(super) fn again(&mut self, key: &Key, most: usize, incarnation: u32, tx: &mut impl Transmit) -> u64 {
        let old = self.sender.shape;
        let shape = if old.fits(most) { None } else { Shape::of(old.message_len as usize, most) };
        if let Some(shape) = shape {
            self.incarnation = incarnation;
            self.sender.reshape(shape);
        }
        let (request_id, ident, incarnation) = (key.request_id, key.ident, self.incarnation);
        let name = Name { kind: Kind::Response, request_id, ident, incarnation };
        let (sender, text) = self.parts();
        if shape.is_some() {
            return sender.pump(&name, key.peer, text, tx);
        }
        sender.resend(&name, key.peer, text, tx)
    }
}
