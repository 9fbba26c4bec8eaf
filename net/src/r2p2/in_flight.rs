//! A request under way at the client's side.

use super::header::{AckReport, R2p2Kind, single_header};
use super::transfer::{ChunkLayout, PartialMessage, TransferId, WindowSender, announce};
use super::{DatagramSink, MessageSlices, PeerAddr};
use crate::limits::MAX_RTO_US;

/// The form in which the request goes out. The state that only long requests need lies elsewhere, so that those of one
/// packet are small to move.
#[derive(Debug)]
pub(super) enum SendState {
    /// In one packet.
    Single,
    /// Announced; no ack came yet.
    Announced(Box<WindowSender>),
    /// In windows.
    Sending(Box<WindowSender>),
    /// All of it is acked; the answer has not come.
    Acked(Box<WindowSender>),
}

/// A request: the message, and its sender's tag for when it has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct TaggedRequest<K> {
    /// The RPC message.
    pub message: Vec<u8>,
    /// The sender's mark.
    pub tag: K,
}

#[derive(Debug)]
pub(super) struct InFlightRequest<K> {
    pub(super) request: TaggedRequest<K>,
    pub(super) ident: u32,
    pub(super) incarnation: u32,
    pub(super) send_state: SendState,
    pub(super) due_us: u64,
    pub(super) rto_us: u64,
    pub(super) ends_us: u64,
    pub(super) refused: bool,
    pub(super) partial: Option<Box<PartialMessage>>,
}

impl<K> InFlightRequest<K> {
    pub(super) fn name(&self, request_id: u16) -> TransferId {
        TransferId { kind: R2p2Kind::Request, request_id, ident: self.ident, incarnation: self.incarnation }
    }

    /// Returns the layout to change to if its datagrams have more than `most` bytes. Such datagrams came through once,
    /// or were thought to.
    pub(super) fn narrower_layout(&self, most: usize) -> Option<ChunkLayout> {
        let fits = match &self.send_state {
            SendState::Single => single_header(R2p2Kind::Request, 0).len() + self.request.message.len() <= most,
            SendState::Announced(sender) | SendState::Sending(sender) | SendState::Acked(sender) => {
                sender.shape.fits(most)
            }
        };
        if fits { None } else { ChunkLayout::of(self.request.message.len(), most) }
    }

    /// An ack came while the request goes out. Returns where it stands then, and packets resent.
    pub(super) fn advance(
        &mut self,
        mut sender: Box<WindowSender>,
        announced: bool,
        report: &AckReport,
        first_rto_us: u64,
        now_us: u64,
        mut pump: impl FnMut(&mut WindowSender, MessageSlices<'_>) -> u64,
    ) -> (SendState, u64) {
        let moved = sender.ack(report, now_us);
        if moved {
            self.rto_us = first_rto_us;
            self.refused = false;
        }
        if moved || announced {
            self.due_us = now_us + self.rto_us;
        }
        if sender.done() {
            return (SendState::Acked(sender), 0);
        }
        if !moved && !announced {
            return (SendState::Sending(sender), 0);
        }
        sender.stalls = 0;
        let resent = pump(&mut sender, MessageSlices::of(&self.request.message));
        (SendState::Sending(sender), resent)
    }

    /// The timer expired. Returns packets sent.
    pub(super) fn resend(&mut self, now_us: u64, request_id: u16, server: PeerAddr, tx: &mut impl DatagramSink) -> u64 {
        let name = self.name(request_id);
        self.rto_us = (self.rto_us * 2).min(MAX_RTO_US);
        self.due_us = now_us + self.rto_us;
        let (send_state, sent) = match std::mem::replace(&mut self.send_state, SendState::Single) {
            SendState::Single => {
                tx.send(server, &[&single_header(R2p2Kind::Request, request_id), &self.request.message]);
                (SendState::Single, 1)
            }
            SendState::Announced(sender) => {
                announce(&name, &sender.shape, server, tx);
                (SendState::Announced(sender), 1)
            }
            SendState::Sending(mut sender) if sender.stalls == 0 => {
                sender.stalls = 1;
                let sent = sender.resend(&name, server, MessageSlices::of(&self.request.message), tx);
                (SendState::Sending(sender), sent)
            }
            SendState::Sending(mut sender) | SendState::Acked(mut sender) => {
                // The server may have given the message up, or its answer was lost: the announcement asks for the
                // received chunks. The server acks, sends the answer, or wants it all again.
                sender.restart();
                announce(&name, &sender.shape, server, tx);
                (SendState::Announced(sender), 1)
            }
        };
        self.send_state = send_state;
        sent
    }
}
