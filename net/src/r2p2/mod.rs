//! R2P2: one request, one response, each of one or more packets, over an unreliable datagram network.
//!
//! [`ServerEndpoint`] and [`ClientEndpoint`] are sans-IO: datagrams and the time in microseconds come in, datagrams go
//! out through [`DatagramSink`]. Neither has a clock, a socket, or randomness: they depend only on their input.
//!
//! A request of one packet costs the server no state and no copy. A longer one is announced, acked, and then sent in
//! windows. Responses longer than a packet are sent in windows at once, acked by the client, and resent until then. A
//! request is resent until its response comes or its time is up; that it runs at most once is the matter of
//! [`crate::reply_cache`].

mod budget;
mod client;
mod completed;
mod counters;
pub mod header;
mod in_flight;
mod legacy_clients;
mod mtu_probe;
mod outgoing;
mod server;
#[cfg(test)]
mod tests;
mod transfer;

pub use client::{
    ClientEndpoint, ClientUsage, FailedRequest, R2p2ClientCounters, R2p2Response, RequestError, RequestFailure,
};
pub use counters::{R2p2ServerCounters, ServerUsage};
pub use in_flight::TaggedRequest;
pub use server::{R2p2Request, ServerEndpoint};

use crate::limits::{MAX_DATAGRAM_CEILING, MIN_DATAGRAM};
use crate::shared_bytes::SharedBytes;
use header::R2p2PacketError;
use std::ops::{Deref, Range};

/// The other side's address.
pub type PeerAddr = std::net::SocketAddr;

/// Takes datagrams to be sent.
pub trait DatagramSink {
    /// Appends one datagram, the parts behind each other. It may be lost: there is no error.
    fn send(&mut self, peer: PeerAddr, parts: &[&[u8]]);

    /// Returns the size of the largest datagram to `peer` that leaves this host, and passes the known part of the path,
    /// in one piece.
    fn most(&mut self, _peer: PeerAddr) -> usize {
        MAX_DATAGRAM_CEILING
    }

    /// The same as [`DatagramSink::send`], and lets `finish` change the datagram's bytes before it is sent, where they
    /// are if possible.
    fn send_then(&mut self, peer: PeerAddr, parts: &[&[u8]], finish: &mut dyn FnMut(&mut [u8])) {
        let mut datagram = parts.concat();
        finish(&mut datagram);
        self.send(peer, &[&datagram]);
    }

    /// Appends one datagram: two parts, and behind them a range of shared bytes, none if they do not have it. They may
    /// be sent later from where they lie; the sink then holds a reference until they are sent.
    fn send_shared(&mut self, peer: PeerAddr, parts: [&[u8]; 2], share: &SharedBytes, range: Range<usize>) {
        let [head, own] = parts;
        self.send(peer, &[head, own, share.get(range).unwrap_or_default()]);
    }
}

impl DatagramSink for Vec<(PeerAddr, Vec<u8>)> {
    fn send(&mut self, peer: PeerAddr, parts: &[&[u8]]) {
        self.push((peer, parts.concat()));
    }
}

/// A complete message: of one packet, then it borrows the datagram, or reassembled.
#[derive(Debug, PartialEq, Eq)]
pub enum ReceivedMessage<'p> {
    /// Came in one packet.
    Datagram(&'p [u8]),
    /// Came in several. Hand it back with `recycle` to have its buffer reused.
    Reassembled(Vec<u8>),
}

impl Deref for ReceivedMessage<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            ReceivedMessage::Datagram(bytes) => bytes,
            ReceivedMessage::Reassembled(bytes) => bytes,
        }
    }
}

impl ReceivedMessage<'_> {
    /// The message as bytes of its own.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            ReceivedMessage::Datagram(bytes) => bytes.to_vec(),
            ReceivedMessage::Reassembled(bytes) => bytes,
        }
    }
}

/// A message to be sent: bytes, and behind them perhaps shared ones.
#[derive(Clone, Copy, Debug)]
struct MessageSlices<'m> {
    own: &'m [u8],
    tail: Option<&'m SharedBytes>,
}

impl<'m> MessageSlices<'m> {
    /// A message without shared bytes.
    fn of(own: &'m [u8]) -> MessageSlices<'m> {
        MessageSlices { own, tail: None }
    }

    /// Sends a packet: a header, and the bytes of this range.
    #[inline]
    fn send(self, peer: PeerAddr, head: &[u8], range: Range<usize>, tx: &mut impl DatagramSink) {
        let len = self.own.len();
        let own = self.own.get(range.start.min(len)..range.end.min(len)).unwrap_or_default();
        match self.tail.filter(|_| range.end > len) {
            Some(tail) => tx.send_shared(peer, [head, own], tail, range.start.saturating_sub(len)..range.end - len),
            None => tx.send(peer, &[head, own]),
        }
    }
}

/// Datagrams that were no packets for this side, by the fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MalformedCounters {
    /// Shorter than their header.
    pub short: u64,
    /// Another first byte.
    pub magic: u64,
    /// A header length that the type does not have.
    pub header_length: u64,
    /// An unknown type, or one for the other side.
    pub kind: u64,
    /// Flags, order and message length contradict each other.
    pub order: u64,
    /// A payload of the wrong length.
    pub length: u64,
    /// The last packet of a message whose digest differs from the one that its packets name.
    pub ident: u64,
}

impl MalformedCounters {
    fn count(&mut self, bad: R2p2PacketError) {
        let counter = match bad {
            R2p2PacketError::Short => &mut self.short,
            R2p2PacketError::Magic => &mut self.magic,
            R2p2PacketError::HeaderLength => &mut self.header_length,
            R2p2PacketError::Kind => &mut self.kind,
            R2p2PacketError::Order => &mut self.order,
            R2p2PacketError::Length => &mut self.length,
        };
        *counter += 1;
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.short + self.magic + self.header_length + self.kind + self.order + self.length + self.ident
    }
}

/// The session and sequence in a message's RPC header; zeros if the message is too short to have them.
fn session_and_sequence(message: &[u8]) -> [u8; 16] {
    match message.get(8..24) {
        Some(bytes) => bytes.try_into().unwrap_or([0; 16]),
        None => [0; 16],
    }
}

/// The tenant in a message's RPC header; 0 if the message is too short to have one.
fn message_tenant(message: &[u8]) -> u32 {
    message.get(4..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// A 32-bit digest of a message's session and sequence.
fn message_ident(message: &[u8]) -> u32 {
    let id = u128::from_le_bytes(session_and_sequence(message));
    let (session, sequence) = (id as u64, (id >> 64) as u64);
    // Two rounds of multiply and fold: neighbouring sequences of one session land far apart.
    let product = u128::from(session ^ 0x9E37_79B9_7F4A_7C15) * u128::from(sequence ^ 0xD1B5_4A32_D192_ED03);
    let folded = (product as u64) ^ (product >> 64) as u64;
    (folded.wrapping_mul(0xA076_1D64_78BD_642F) >> 32) as u32
}

/// The digest that names a message on the wire, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn ident_of(message: &[u8]) -> u32 {
    message_ident(message)
}

fn clamp_datagram_len(setting: usize) -> usize {
    setting.clamp(MIN_DATAGRAM, MAX_DATAGRAM_CEILING)
}

/// Buffers kept for reuse, bounded in bytes.
#[derive(Debug, Default)]
struct MessageBufferPool {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    limit: usize,
}

impl MessageBufferPool {
    const COUNT: usize = 64;

    fn new(limit: usize) -> MessageBufferPool {
        MessageBufferPool { buffers: Vec::new(), bytes: 0, limit }
    }

    /// A buffer for `want` bytes, of any content; empty if there is none of about that size. (A small message in a
    /// large buffer would hold more than its limit counts.)
    fn take(&mut self, want: usize) -> Vec<u8> {
        let sizes = want..=2 * want + 4096;
        let fits = self.buffers.iter().rposition(|buffer| sizes.contains(&buffer.capacity()));
        let Some(at) = fits else { return Vec::new() };
        let buffer = self.buffers.swap_remove(at);
        self.bytes -= buffer.capacity();
        buffer
    }

    fn give(&mut self, buffer: Vec<u8>) {
        let size = buffer.capacity();
        if size > 0 && self.buffers.len() < MessageBufferPool::COUNT && self.bytes + size <= self.limit {
            self.bytes += size;
            self.buffers.push(buffer);
        }
    }
}
