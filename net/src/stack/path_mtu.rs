//! What is known of the ways to peers: how large packets they bear, where a router on one has said so ("fragmentation
//! needed", "packet too big").
//!
//! Anybody can send such a message. So it is believed only if it quotes the addresses, ports and length of a packet
//! that was sent of late, if it asks for less than is known and no less than every way has to bear, at a bounded rate,
//! and for some time; and it concerns the one address alone. Rate and room are shared by groups of networks, which
//! nobody can choose: one who has many addresses, and large answers sent to them, takes those of his own group.

use super::clock::StackClock;
use super::wire::{FrameDropReason, IPV4_HEADER_LEN, IPV6_HEADER_LEN, UDP_HEADER_LEN};
use crate::driver::reduced_mtu::{HashSecret, ReducedMtuTable};
use crate::limits::{MIN_PATH_DATAGRAM, SENT_FINGERPRINTS};
use crate::r2p2::PeerAddr;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bytes of a packet of IPv4 that every host takes; no way has to bear them, but whoever bears less is not believed.
pub(super) const MIN_IPV4_MTU: usize = 576;
/// Bytes of a packet of IPv6 that every way bears.
pub(super) const MIN_IPV6_MTU: usize = 1280;

// Datagrams of so many bytes are sent without asking what their way bears.
const _: () = assert!(
    MIN_PATH_DATAGRAM <= MIN_IPV4_MTU - IPV4_HEADER_LEN - UDP_HEADER_LEN
        && MIN_PATH_DATAGRAM <= MIN_IPV6_MTU - IPV6_HEADER_LEN - UDP_HEADER_LEN
);

/// The least that a way of this address's family may be said to bear.
pub(super) fn min_mtu(ip: IpAddr) -> usize {
    if ip.is_ipv4() { MIN_IPV4_MTU } else { MIN_IPV6_MTU }
}

/// What a router quotes of a packet that it did not pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QuotedPacket {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// Bytes of the whole packet.
    pub(super) len: usize,
}

/// See the module. Shared by the workers of an interface.
#[derive(Debug)]
pub(super) struct PathMtuCache {
    /// Bytes of packets.
    narrow: ReducedMtuTable,
    /// Marks of large packets that were sent of late.
    sent: Box<[AtomicU32]>,
    /// Nobody else can tell which marks fall on one place.
    secret: HashSecret,
}

impl PathMtuCache {
    pub(super) fn new() -> PathMtuCache {
        let sent = (0..SENT_FINGERPRINTS).map(|_| AtomicU32::new(0)).collect();
        PathMtuCache { narrow: ReducedMtuTable::new(), sent, secret: HashSecret::new() }
    }

    /// The place and the mark of a packet.
    fn mark(&self, to: SocketAddr, len: usize) -> (usize, u32) {
        let (high, low) = match to.ip() {
            IpAddr::V4(ip) => (0, u64::from(ip.to_bits())),
            IpAddr::V6(ip) => ((ip.to_bits() >> 64) as u64, ip.to_bits() as u64),
        };
        let rest = u64::from(to.port()) << 32 | len as u64;
        let mixed = self.secret.mix(high, low, rest);
        ((mixed >> 32) as usize % self.sent.len().max(1), mixed as u32 | 1)
    }

    /// A packet of so many bytes is sent.
    #[inline]
    pub(super) fn note(&self, to: PeerAddr, len: usize) {
        if len > min_mtu(to.ip()) {
            let (place, mark) = self.mark(to, len);
            if let Some(place) = self.sent.get(place) {
                place.store(mark, Relaxed);
            }
        }
    }

    /// Believes that packets as the quoted one may have so many bytes at most, if it is to be believed, and `may`
    /// allows one more of its group.
    ///
    /// # Errors
    /// `Ignored`: no such packet was sent of late, or nothing of it is new; `Rate`.
    #[cold]
    pub(super) fn hear(
        &self,
        now_us: u64,
        quote: &QuotedPacket,
        mtu: u16,
        may: impl FnOnce(usize) -> bool,
    ) -> Result<(), FrameDropReason> {
        let (ip, (place, mark)) = (quote.to.ip(), self.mark(quote.to, quote.len));
        let place = self.sent.get(place).filter(|place| place.load(Relaxed) == mark).ok_or(FrameDropReason::Ignored)?;
        if self.narrow.most(now_us, ip).is_some_and(|known| known <= usize::from(mtu)) {
            return Err(FrameDropReason::Ignored);
        }
        if !may(self.narrow.group(ip)) {
            return Err(FrameDropReason::RateLimited);
        }
        // Each packet that was sent is worth one word.
        place.store(0, Relaxed);
        self.narrow.reduce(now_us, ip, usize::from(mtu));
        Ok(())
    }

    /// Bytes of a packet to this address, if a router said that it may not have as many as the interface's.
    #[inline]
    pub(super) fn most(&self, clock: &StackClock, ip: IpAddr) -> Option<usize> {
        // To read the clock costs more than that.
        if self.narrow.was_never_used() { None } else { self.narrow.most(clock(), ip) }
    }
}
