//! A response under way.

use super::header::R2p2Kind;
use super::transfer::{ChunkLayout, TransferId, WindowSender};
use super::{DatagramSink, MessageSlices, PeerAddr};
use crate::shared_bytes::SharedBytes;

/// A message of a peer: request id and digest of session and sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MessageKey {
    pub(super) peer: PeerAddr,
    pub(super) request_id: u16,
    pub(super) ident: u32,
}

/// A response of several packets, until the client has acked all of it.
#[derive(Debug)]
pub(super) struct OutgoingResponse {
    pub(super) sender: WindowSender,
    pub(super) owner: u32,
    pub(super) incarnation: u32,
    pub(super) bytes: Vec<u8>,
    /// The stored bytes that follow them.
    pub(super) tail: Option<SharedBytes>,
    pub(super) begun_us: u64,
    pub(super) ends_us: u64,
}

impl OutgoingResponse {
    /// Returns the sender, and the bytes that it sends.
    pub(super) fn parts(&mut self) -> (&mut WindowSender, MessageSlices<'_>) {
        (&mut self.sender, MessageSlices { own: &self.bytes, tail: self.tail.as_ref() })
    }

    /// The timer expired: resends what is not acked. If its datagrams do not come through any more, it begins anew as
    /// another incarnation, in datagrams of `most` bytes. Returns packets sent.
    pub(super) fn again(&mut self, key: &MessageKey, most: usize, incarnation: u32, tx: &mut impl DatagramSink) -> u64 {
        let old = self.sender.shape;
        let shape = if old.fits(most) { None } else { ChunkLayout::of(old.message_len as usize, most) };
        if let Some(shape) = shape {
            self.incarnation = incarnation;
            self.sender.restart_with_layout(shape);
        }
        let (request_id, ident, incarnation) = (key.request_id, key.ident, self.incarnation);
        let name = TransferId { kind: R2p2Kind::Response, request_id, ident, incarnation };
        let (sender, text) = self.parts();
        if shape.is_some() {
            return sender.pump(&name, key.peer, text, tx);
        }
        sender.resend(&name, key.peer, text, tx)
    }
}
