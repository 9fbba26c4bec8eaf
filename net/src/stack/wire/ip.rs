//! Headers of IPv4 and IPv6.

use super::checksum::{InternetChecksum, is_valid};
use super::{FrameDropReason, IPV4_HEADER_LEN, IPV6_HEADER_LEN, ipv4_at, ipv6_at, protocol, u16_at};
use crate::stack::ChecksumStatus;
use std::net::IpAddr;

/// A packet of IP, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) struct IpPacket<'f> {
    pub(in crate::stack) from: IpAddr,
    pub(in crate::stack) to: IpAddr,
    pub(in crate::stack) protocol: u8,
    /// The number of routers that it might still pass: 255 if it has passed none.
    pub(in crate::stack) hops: u8,
    /// The payload behind the last header.
    pub(in crate::stack) payload: &'f [u8],
    /// The whole packet, headers included.
    pub(in crate::stack) whole: &'f [u8],
}

/// The largest number of extension headers in a packet: no sound sender has more.
const MAX_EXTENSIONS: usize = 4;
/// The number of options in one extension header that are read.
const MAX_OPTIONS: usize = 16;

/// Reads a packet of IPv4; bytes behind it (Ethernet fills short frames up) are left out.
#[inline]
pub(in crate::stack) fn read_ipv4(
    bytes: &[u8],
    header_checked: ChecksumStatus,
) -> Result<IpPacket<'_>, FrameDropReason> {
    let (Some(first), Some(total)) = (bytes.first(), u16_at(bytes, 2)) else { return Err(FrameDropReason::Short) };
    let header_len = usize::from(first & 15) * 4;
    if first >> 4 != 4 || header_len < IPV4_HEADER_LEN {
        return Err(FrameDropReason::IpHeader);
    }
    let header = bytes.get(..header_len).ok_or(FrameDropReason::Short)?;
    match header_checked {
        ChecksumStatus::Valid => {}
        ChecksumStatus::Unknown if is_valid(header) => {}
        _ => return Err(FrameDropReason::IpChecksum),
    }
    let whole = bytes.get(..usize::from(total)).ok_or(FrameDropReason::IpLength)?;
    let payload = whole.get(header_len..).ok_or(FrameDropReason::IpLength)?;
    let (Some(fragment), Some(hops), Some(protocol)) = (u16_at(header, 6), header.get(8), header.get(9)) else {
        return Err(FrameDropReason::Short);
    };
    let (Some(from), Some(to)) = (ipv4_at(header, 12), ipv4_at(header, 16)) else { return Err(FrameDropReason::Short) };
    // More fragments follow, or this is not the first.
    if fragment & 0x3FFF != 0 {
        return Err(FrameDropReason::Fragment);
    }
    if header_len > IPV4_HEADER_LEN {
        check_ipv4_options(header.get(IPV4_HEADER_LEN..).unwrap_or_default())?;
    }
    Ok(IpPacket { from: from.into(), to: to.into(), protocol: *protocol, hops: *hops, payload, whole })
}

/// Checks the options of IPv4, which are skipped, but for source routes.
fn check_ipv4_options(mut options: &[u8]) -> Result<(), FrameDropReason> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const LOOSE_ROUTE: u8 = 131;
    const STRICT_ROUTE: u8 = 137;
    while let Some((kind, rest)) = options.split_first() {
        options = match *kind {
            END => return Ok(()),
            NOTHING => rest,
            LOOSE_ROUTE | STRICT_ROUTE => return Err(FrameDropReason::SourceRoute),
            _ => {
                let len = usize::from(*rest.first().ok_or(FrameDropReason::Options)?);
                if len < 2 {
                    return Err(FrameDropReason::Options);
                }
                options.get(len..).ok_or(FrameDropReason::Options)?
            }
        };
    }
    Ok(())
}

/// Reads a packet of IPv6.
#[inline]
pub(in crate::stack) fn read_ipv6(bytes: &[u8]) -> Result<IpPacket<'_>, FrameDropReason> {
    let header = bytes.get(..IPV6_HEADER_LEN).ok_or(FrameDropReason::Short)?;
    let (Some(len), Some(next), Some(hops)) = (u16_at(header, 4), header.get(6), header.get(7)) else {
        return Err(FrameDropReason::Short);
    };
    let (Some(from), Some(to)) = (ipv6_at(header, 8), ipv6_at(header, 24)) else { return Err(FrameDropReason::Short) };
    if header.first().is_none_or(|first| first >> 4 != 6) {
        return Err(FrameDropReason::IpHeader);
    }
    let whole = bytes.get(..IPV6_HEADER_LEN + usize::from(len)).ok_or(FrameDropReason::IpLength)?;
    let payload = whole.get(IPV6_HEADER_LEN..).unwrap_or_default();
    let (protocol, payload) = match *next {
        protocol::UDP_HEADER_LEN | protocol::ICMPV6 => (*next, payload),
        next => skip_extensions(next, payload)?,
    };
    Ok(IpPacket { from: from.into(), to: to.into(), protocol, hops: *hops, payload, whole })
}

/// Skips the headers between IPv6's own and the payload. Returns the payload's protocol.
fn skip_extensions(mut next: u8, mut rest: &[u8]) -> Result<(u8, &[u8]), FrameDropReason> {
    for number in 0..=MAX_EXTENSIONS {
        match next {
            protocol::HOP_BY_HOP if number > 0 => return Err(FrameDropReason::Options),
            protocol::HOP_BY_HOP | protocol::DESTINATION | protocol::ROUTING => {}
            protocol::FRAGMENT => return Err(FrameDropReason::Fragment),
            other => return Ok((other, rest)),
        }
        let (Some(following), Some(len)) = (rest.first(), rest.get(1)) else { return Err(FrameDropReason::Short) };
        let len = (usize::from(*len) + 1) * 8;
        let header = rest.get(..len).ok_or(FrameDropReason::Short)?;
        match next {
            // Hosts are still to be visited: this is not the last.
            protocol::ROUTING if header.get(3) != Some(&0) => return Err(FrameDropReason::SourceRoute),
            protocol::ROUTING => {}
            _ => check_ipv6_options(header.get(2..).unwrap_or_default())?,
        }
        next = *following;
        rest = rest.get(len..).unwrap_or_default();
    }
    Err(FrameDropReason::Options)
}

/// Checks the options of IPv6, each of which states whether a host that does not know it may skip it.
fn check_ipv6_options(mut options: &[u8]) -> Result<(), FrameDropReason> {
    for _ in 0..MAX_OPTIONS {
        let Some((kind, rest)) = options.split_first() else { return Ok(()) };
        if *kind == 0 {
            options = rest;
            continue;
        }
        if kind >> 6 != 0 {
            return Err(FrameDropReason::Options);
        }
        let len = usize::from(*rest.first().ok_or(FrameDropReason::Options)?);
        options = rest.get(1 + len..).ok_or(FrameDropReason::Options)?;
    }
    // Padding of one byte each may be up to seven; longer runs are malformed.
    if options.is_empty() { Ok(()) } else { Err(FrameDropReason::Options) }
}

/// The number of routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

/// Writes a header for `len` bytes of payload to the start of `out`. Returns its length, or 0 if the addresses are of
/// two families, or IP does not allow the length.
#[inline]
pub(in crate::stack) fn write(
    out: &mut [u8],
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    len: usize,
    with_checksum: bool,
) -> usize {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let (Ok(total), Some(header)) = (u16::try_from(IPV4_HEADER_LEN + len), out.get_mut(..IPV4_HEADER_LEN))
            else {
                return 0;
            };
            let [a, b] = total.to_be_bytes();
            // The packet must not be fragmented, so it needs no identification (RFC 6864).
            header.copy_from_slice(&[0x45, 0, a, b, 0, 0, 0x40, 0, HOP_LIMIT, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            header[12..16].copy_from_slice(&from.octets());
            header[16..20].copy_from_slice(&to.octets());
            if with_checksum {
                // The sum of the fields as written, without reading them again.
                let mut sum = InternetChecksum::pseudo_header_v4(from, to, protocol, usize::from(total));
                [0x4500, 0x4000, u16::from(HOP_LIMIT) << 8].into_iter().for_each(|word| sum.add_u16(word));
                header[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
            }
            IPV4_HEADER_LEN
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let (Ok(len), Some(header)) = (u16::try_from(len), out.get_mut(..IPV6_HEADER_LEN)) else { return 0 };
            let [a, b] = len.to_be_bytes();
            // Neighbour discovery is accepted only if it has passed no router.
            let hops = if protocol == protocol::ICMPV6 { 255 } else { HOP_LIMIT };
            header[..8].copy_from_slice(&[0x60, 0, 0, 0, a, b, protocol, hops]);
            header[8..24].copy_from_slice(&from.octets());
            header[24..40].copy_from_slice(&to.octets());
            IPV6_HEADER_LEN
        }
        _ => 0,
    }
}
