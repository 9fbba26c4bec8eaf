//! The R2P2 packet header, network byte order.
//!
//! ```text
//! magic 0xCC u8 | header length u8 | type << 4 | policy u8 | flags u8 | request id u16 | packet order u16
//! ```
//! A message of one packet has both flags and order 1, and a header of 8 bytes. The packets of a longer message have
//! 24: behind the 8 stand `ident u32 | incarnation u32 | message length u32 | chunk length u16 | 0 u16`. Packet k
//! carries chunk k; packet 0 has the flag first and order = number of packets, the others order = k; the last one has
//! the flag last. Packet 0 without a payload announces the message. An ack or drop has 24 too: behind the 8 stand
//! `ident u32 | incarnation u32 | map u64`. An ack's order is the number of chunks received without a gap. Bit i of its
//! map says that chunk order + 1 + i was received as well. A packet of the type size has
//! `number u32 | 0 u32 | bytes u32 | 0 u32` there, and a [`MtuProbeStep`] as its order. One that asks, or answers, is
//! filled up to so many bytes with zeros.
//!
//! `ident` is a digest of the RPC session and sequence: request ids wrap within a fraction of a second, and a late
//! packet must not end up in another message. `incarnation` tells apart two transmissions of one message whose bytes
//! may differ.

use thiserror::Error;

/// First byte of every packet.
pub const MAGIC: u8 = 0xCC;
/// Bytes of the header of a message of one packet.
pub const SINGLE_HEADER_LEN: usize = 8;
/// Bytes of the header of all other packets.
pub const LONG_HEADER_LEN: usize = 24;
/// Flag: first packet of a message.
pub const FLAG_FIRST: u8 = 0x80;
/// Flag: last packet of a message.
pub const FLAG_LAST: u8 = 0x40;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum R2p2Kind {
    /// Part of a request.
    Request = 0,
    /// Part of a response.
    Response = 1,
    /// Feedback to a request router; not used here.
    Feedback = 2,
    /// Reports the received parts of a message.
    Ack = 3,
    /// A message was refused for lack of room.
    Drop = 4,
    /// Negotiates the size of datagrams in both directions.
    MtuProbe = 5,
}

/// The reason why a datagram is not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum R2p2PacketError {
    /// Shorter than its header.
    #[error("datagram shorter than its header")]
    Short,
    /// Another first byte.
    #[error("datagram does not start with the R2P2 magic")]
    Magic,
    /// A header length that its type does not have.
    #[error("header length does not fit the packet's type")]
    HeaderLength,
    /// An unknown type, or one that this side does not take.
    #[error("packet type is unknown or not for this side")]
    Kind,
    /// Flags, order and message length contradict each other.
    #[error("flags, order and message length contradict each other")]
    Order,
    /// The payload does not have the length that its position in the message requires.
    #[error("payload length does not fit its place in the message")]
    Length,
}

/// One packet of a longer message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageFragment<'p> {
    /// Digest of the message's RPC session and sequence.
    pub ident: u32,
    /// The transmission.
    pub incarnation: u32,
    /// Bytes of the message.
    pub message_len: u32,
    /// Bytes of each chunk but the last.
    pub chunk_len: u16,
    /// Number of this packet, from 0.
    pub index: u16,
    /// Number of packets.
    pub count: u16,
    /// The chunk; empty in an announcement.
    pub chunk: &'p [u8],
}

/// The content of an ack or drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckReport {
    /// Digest of the message's RPC session and sequence.
    pub ident: u32,
    /// The transmission.
    pub incarnation: u32,
    /// Chunks received without a gap.
    pub next: u16,
    /// Bit i: chunk `next + 1 + i` was received as well.
    pub map: u64,
}

/// The steps by which client and server find out how large datagrams come through in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum MtuProbeStep {
    /// The client sends one that large.
    Probe = 0,
    /// It has come, and the server sends one back that is as large, or as large as it can.
    Echo = 1,
    /// The large datagram has come: the client tells the server how large its datagrams may be from now on.
    Confirm = 2,
}

/// The content of a packet about sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtuProbePacket {
    /// The step.
    pub step: MtuProbeStep,
    /// The client's choice, the same in the answer.
    pub number: u32,
    /// Bytes of a datagram, with this header and without the seal.
    pub bytes: u32,
}

/// The bytes behind the first 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum R2p2Body<'p> {
    /// A whole message.
    Single(&'p [u8]),
    /// A part of one.
    Fragment(MessageFragment<'p>),
    /// Ack or drop.
    Report(AckReport),
    /// About how large datagrams may be.
    MtuProbe(MtuProbePacket),
    /// Feedback, not looked at.
    Ignored,
}

/// A parsed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2p2Packet<'p> {
    /// The kind.
    pub kind: R2p2Kind,
    /// The request that it belongs to.
    pub request_id: u16,
    /// The rest.
    pub body: R2p2Body<'p>,
}

fn u32_at(head: &[u8; LONG_HEADER_LEN], at: usize) -> u32 {
    u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

impl<'p> R2p2Packet<'p> {
    /// Parses a datagram.
    ///
    /// # Errors
    /// [`R2p2PacketError`] says what is wrong with it.
    #[inline]
    pub fn parse(datagram: &'p [u8]) -> Result<R2p2Packet<'p>, R2p2PacketError> {
        let Some((head, payload)) = datagram.split_first_chunk::<SINGLE_HEADER_LEN>() else {
            return Err(R2p2PacketError::Short);
        };
        if head[0] != MAGIC {
            return Err(R2p2PacketError::Magic);
        }
        let kind = match head[2] >> 4 {
            0 => R2p2Kind::Request,
            1 => R2p2Kind::Response,
            2 => R2p2Kind::Feedback,
            3 => R2p2Kind::Ack,
            4 => R2p2Kind::Drop,
            5 => R2p2Kind::MtuProbe,
            _ => return Err(R2p2PacketError::Kind),
        };
        let flags = head[3];
        let request_id = u16::from_be_bytes([head[4], head[5]]);
        let order = u16::from_be_bytes([head[6], head[7]]);
        let single = usize::from(head[1]) == SINGLE_HEADER_LEN;
        let body = match kind {
            R2p2Kind::Request | R2p2Kind::Response if single => {
                if flags != FLAG_FIRST | FLAG_LAST || order != 1 {
                    return Err(R2p2PacketError::Order);
                }
                R2p2Body::Single(payload)
            }
            R2p2Kind::Feedback => R2p2Body::Ignored,
            _ if usize::from(head[1]) != LONG_HEADER_LEN => return Err(R2p2PacketError::HeaderLength),
            R2p2Kind::Request | R2p2Kind::Response => R2p2Body::Fragment(parse_fragment(datagram, flags, order)?),
            R2p2Kind::Ack | R2p2Kind::Drop => R2p2Body::Report(parse_report(datagram, order)?),
            R2p2Kind::MtuProbe => R2p2Body::MtuProbe(parse_mtu_probe(datagram, order)?),
        };
        Ok(R2p2Packet { kind, request_id, body })
    }
}

fn parse_fragment(datagram: &[u8], flags: u8, order: u16) -> Result<MessageFragment<'_>, R2p2PacketError> {
    let Some((head, chunk)) = datagram.split_first_chunk::<LONG_HEADER_LEN>() else {
        return Err(R2p2PacketError::Short);
    };
    let message_len = u32_at(head, 16);
    let chunk_len = u16::from_be_bytes([head[20], head[21]]);
    if usize::from(chunk_len) < crate::limits::MIN_DATAGRAM - LONG_HEADER_LEN {
        return Err(R2p2PacketError::Length);
    }
    let count = u16::try_from(message_len.div_ceil(u32::from(chunk_len))).map_err(|_| R2p2PacketError::Length)?;
    let first = flags & FLAG_FIRST != 0;
    let index = if first { 0 } else { order };
    let order_fits = if first { order == count } else { order > 0 && order < count };
    // `index` is any number of 16 bits: one more may not be.
    let last_fits = (flags & FLAG_LAST != 0) == (Some(index) == count.checked_sub(1));
    if count < 2 || !order_fits || !last_fits || flags & !(FLAG_FIRST | FLAG_LAST) != 0 {
        return Err(R2p2PacketError::Order);
    }
    let announces = first && chunk.is_empty();
    let left = message_len - u32::from(index) * u32::from(chunk_len);
    if !announces && chunk.len() != left.min(u32::from(chunk_len)) as usize {
        return Err(R2p2PacketError::Length);
    }
    Ok(MessageFragment {
        ident: u32_at(head, 8),
        incarnation: u32_at(head, 12),
        message_len,
        chunk_len,
        index,
        count,
        chunk,
    })
}

fn parse_report(datagram: &[u8], order: u16) -> Result<AckReport, R2p2PacketError> {
    let Some((head, rest)) = datagram.split_first_chunk::<LONG_HEADER_LEN>() else {
        return Err(R2p2PacketError::Short);
    };
    if !rest.is_empty() {
        return Err(R2p2PacketError::Length);
    }
    let map = u64::from(u32_at(head, 16)) << 32 | u64::from(u32_at(head, 20));
    Ok(AckReport { ident: u32_at(head, 8), incarnation: u32_at(head, 12), next: order, map })
}

fn parse_mtu_probe(datagram: &[u8], order: u16) -> Result<MtuProbePacket, R2p2PacketError> {
    let Some((head, _zeros)) = datagram.split_first_chunk::<LONG_HEADER_LEN>() else {
        return Err(R2p2PacketError::Short);
    };
    let step = match order {
        0 => MtuProbeStep::Probe,
        1 => MtuProbeStep::Echo,
        2 => MtuProbeStep::Confirm,
        _ => return Err(R2p2PacketError::Order),
    };
    let bytes = u32_at(head, 16);
    let probed = bytes as usize;
    let whole = if step == MtuProbeStep::Confirm { LONG_HEADER_LEN } else { probed };
    let sizes = crate::limits::MIN_DATAGRAM..=crate::limits::MAX_DATAGRAM_CEILING;
    if datagram.len() != whole || !sizes.contains(&probed) {
        return Err(R2p2PacketError::Length);
    }
    Ok(MtuProbePacket { step, number: u32_at(head, 8), bytes })
}

/// The header of a message of one packet.
#[inline]
pub fn single_header(kind: R2p2Kind, request_id: u16) -> [u8; SINGLE_HEADER_LEN] {
    let id = request_id.to_be_bytes();
    [MAGIC, SINGLE_HEADER_LEN as u8, (kind as u8) << 4, FLAG_FIRST | FLAG_LAST, id[0], id[1], 0, 1]
}

fn long_header(
    kind: R2p2Kind,
    flags: u8,
    request_id: u16,
    order: u16,
    ident: u32,
    incarnation: u32,
) -> [u8; LONG_HEADER_LEN] {
    let mut head = [0; LONG_HEADER_LEN];
    head[0] = MAGIC;
    head[1] = LONG_HEADER_LEN as u8;
    head[2] = (kind as u8) << 4;
    head[3] = flags;
    head[4..6].copy_from_slice(&request_id.to_be_bytes());
    head[6..8].copy_from_slice(&order.to_be_bytes());
    head[8..12].copy_from_slice(&ident.to_be_bytes());
    head[12..16].copy_from_slice(&incarnation.to_be_bytes());
    head
}

/// The header of a part of a longer message. `part.chunk` is not looked at.
pub fn fragment_header(kind: R2p2Kind, request_id: u16, part: &MessageFragment<'_>) -> [u8; LONG_HEADER_LEN] {
    let first = part.index == 0;
    let last = part.index + 1 == part.count;
    let flags = if first { FLAG_FIRST } else { 0 } | if last { FLAG_LAST } else { 0 };
    let order = if first { part.count } else { part.index };
    let mut head = long_header(kind, flags, request_id, order, part.ident, part.incarnation);
    head[16..20].copy_from_slice(&part.message_len.to_be_bytes());
    head[20..22].copy_from_slice(&part.chunk_len.to_be_bytes());
    head
}

/// A packet about sizes, without the zeros behind it.
pub fn mtu_probe_header(size: &MtuProbePacket) -> [u8; LONG_HEADER_LEN] {
    let mut head = long_header(R2p2Kind::MtuProbe, FLAG_FIRST | FLAG_LAST, 0, size.step as u16, size.number, 0);
    head[16..20].copy_from_slice(&size.bytes.to_be_bytes());
    head
}

/// An ack or drop.
pub fn report_packet(kind: R2p2Kind, request_id: u16, report: &AckReport) -> [u8; LONG_HEADER_LEN] {
    let mut head = long_header(kind, FLAG_FIRST | FLAG_LAST, request_id, report.next, report.ident, report.incarnation);
    head[16..24].copy_from_slice(&report.map.to_be_bytes());
    head
}
