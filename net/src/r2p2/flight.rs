//! A request under way at the client's side.

use super::header::{Kind, Report, single};
use super::stream::{Name, Partial, Sender, Shape, announce};
use super::{Peer, Text, Transmit};
use crate::limits::MAX_RTO_US;

/// How the request goes out. What only long ones need lies elsewhere, so that those of one packet are moved as little.
#[derive(Debug)]
pub(super) enum Way {
    /// In one packet.
    Single,
    /// Announced; no ack came yet.
    Announced(Box<Sender>),
    /// In windows.
    Sending(Box<Sender>),
    /// All of it is acked; the answer has not come.
    Acked(Box<Sender>),
}

/// What was asked: the message, and what its sender wants to know of it when it has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked<K> {
    /// The RPC message.
    pub message: Vec<u8>,
    /// The sender's mark.
    pub mark: K,
}

#[derive(Debug)]
pub(super) struct Flight<K> {
    pub(super) asked: Asked<K>,
    pub(super) ident: u32,
    pub(super) incarnation: u32,
    pub(super) way: Way,
    pub(super) due_us: u64,
    pub(super) rto_us: u64,
    pub(super) ends_us: u64,
    pub(super) refused: bool,
    pub(super) partial: Option<Box<Partial>>,
}

impl<K> Flight<K> {
    pub(super) fn name(&self, request_id: u16) -> Name {
        Name { kind: Kind::Request, request_id, ident: self.ident, incarnation: self.incarnation }
    }

    /// How it is to be cut if its datagrams have more than `most` bytes: they came through once, or were thought to.
    pub(super) fn new_shape(&self, most: usize) -> Option<Shape> {
        let fits = match &self.way {
            Way::Single => single(Kind::Request, 0).len() + self.asked.message.len() <= most,
            Way::Announced(sender) | Way::Sending(sender) | Way::Acked(sender) => sender.shape.fits(most),
        };
        if fits { None } else { Shape::of(self.asked.message.len(), most) }
    }

    /// An ack came while the request goes out. Returns where it stands then, and packets resent.
    pub(super) fn advance(
        &mut self,
        mut sender: Box<Sender>,
        announced: bool,
        report: &Report,
        first_rto_us: u64,
        now_us: u64,
        mut pump: impl FnMut(&mut Sender, Text<'_>) -> u64,
    ) -> (Way, u64) {
        let moved = sender.ack(report, now_us);
        if moved {
            self.rto_us = first_rto_us;
            self.refused = false;
        }
        if moved || announced {
            self.due_us = now_us + self.rto_us;
        }
        if sender.done() {
            return (Way::Acked(sender), 0);
        }
        if !moved && !announced {
            return (Way::Sending(sender), 0);
        }
        sender.stalls = 0;
        let resent = pump(&mut sender, Text::of(&self.asked.message));
        (Way::Sending(sender), resent)
    }

    /// The timer expired. Returns packets sent.
    pub(super) fn resend(&mut self, now_us: u64, request_id: u16, server: Peer, tx: &mut impl Transmit) -> u64 {
        let name = self.name(request_id);
        self.rto_us = (self.rto_us * 2).min(MAX_RTO_US);
        self.due_us = now_us + self.rto_us;
        let (way, sent) = match std::mem::replace(&mut self.way, Way::Single) {
            Way::Single => {
                tx.send(server, &[&single(Kind::Request, request_id), &self.asked.message]);
                (Way::Single, 1)
            }
            Way::Announced(sender) => {
                announce(&name, &sender.shape, server, tx);
                (Way::Announced(sender), 1)
            }
            Way::Sending(mut sender) if sender.stalls == 0 => {
                sender.stalls = 1;
                let sent = sender.resend(&name, server, Text::of(&self.asked.message), tx);
                (Way::Sending(sender), sent)
            }
            Way::Sending(mut sender) | Way::Acked(mut sender) => {
                // The server may have given the message up, or its answer was lost: the announcement asks what it has. It
                // acks, sends the answer, or wants it all again.
                sender.restart();
                announce(&name, &sender.shape, server, tx);
                (Way::Announced(sender), 1)
            }
        };
        self.way = way;
        sent
    }
}
