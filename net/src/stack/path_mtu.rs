//! A cache of path MTUs: the largest packets to a peer, where a router has reported one ("fragmentation needed",
//! "packet too big").
//!
//! Any host can send such a message. So it is accepted only if it quotes the addresses, ports and length of a packet
//! that was sent of late. It must ask for less than is known and for no less than every path has to bear. It counts at
//! a bounded rate, for some time, and for the one address alone. Rate and room are shared by groups of networks, which
//! no sender can choose. A sender with many addresses, and large answers sent to them, uses up those of its own group.

use super::clock::StackClock;
use super::wire::{FrameDropReason, IPV4_HEADER_LEN, IPV6_HEADER_LEN, UDP_HEADER_LEN};
use crate::driver::reduced_mtu::{HashSecret, ReducedMtuTable};
use crate::limits::{MIN_PATH_DATAGRAM, SENT_FINGERPRINTS};
use crate::r2p2::PeerAddr;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bytes of an IPv4 packet that every host takes. No path has to bear them, but a smaller limit is not accepted.
pub(super) const MIN_IPV4_MTU: usize = 576;
/// Bytes of an IPv6 packet that every path bears.
pub(super) const MIN_IPV6_MTU: usize = 1280;

// Datagrams of so many bytes are sent without a look-up of their path MTU.
const _: () = assert!(
    MIN_PATH_DATAGRAM <= MIN_IPV4_MTU - IPV4_HEADER_LEN - UDP_HEADER_LEN
        && MIN_PATH_DATAGRAM <= MIN_IPV6_MTU - IPV6_HEADER_LEN - UDP_HEADER_LEN
);

/// Returns the least path MTU that is accepted for this address's family.
pub(super) fn min_mtu(ip: IpAddr) -> usize {
    if ip.is_ipv4() { MIN_IPV4_MTU } else { MIN_IPV6_MTU }
}

/// The fields of a dropped packet that a router quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QuotedPacket {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// Bytes of the whole packet.
    pub(super) len: usize,
}

/// The path MTUs that the workers of an interface share. See the module.
#[derive(Debug)]
pub(super) struct PathMtuCache {
    /// Bytes of packets.
    narrow: ReducedMtuTable,
    /// Hashes of large packets that were sent of late.
    sent: Box<[AtomicU32]>,
    /// Keys the hashes, so that no sender can tell which packets share a slot.
    secret: HashSecret,
}

impl PathMtuCache {
    pub(super) fn new() -> PathMtuCache {
        let sent = (0..SENT_FINGERPRINTS).map(|_| AtomicU32::new(0)).collect();
        PathMtuCache { narrow: ReducedMtuTable::new(), sent, secret: HashSecret::new() }
    }

    /// Returns the slot and the hash of a packet.
    fn fingerprint(&self, to: SocketAddr, len: usize) -> (usize, u32) {
        let (high, low) = match to.ip() {
            IpAddr::V4(ip) => (0, u64::from(ip.to_bits())),
            IpAddr::V6(ip) => ((ip.to_bits() >> 64) as u64, ip.to_bits() as u64),
        };
        let rest = u64::from(to.port()) << 32 | len as u64;
        let mixed = self.secret.mix(high, low, rest);
        ((mixed >> 32) as usize % self.sent.len().max(1), mixed as u32 | 1)
    }

    /// Records that a packet of so many bytes is sent.
    #[inline]
    pub(super) fn note(&self, to: PeerAddr, len: usize) {
        if len > min_mtu(to.ip()) {
            let (slot, fingerprint) = self.fingerprint(to, len);
            if let Some(slot) = self.sent.get(slot) {
                slot.store(fingerprint, Relaxed);
            }
        }
    }

    /// Lowers the path MTU for packets like the quoted one, if the message is credible and `may` allows one more of its
    /// group.
    ///
    /// # Errors
    /// `Ignored`: no such packet was sent of late, or nothing of it is new; `Rate`.
    #[cold]
    pub(super) fn learn(
        &self,
        now_us: u64,
        quote: &QuotedPacket,
        mtu: u16,
        may: impl FnOnce(usize) -> bool,
    ) -> Result<(), FrameDropReason> {
        let (ip, (slot, fingerprint)) = (quote.to.ip(), self.fingerprint(quote.to, quote.len));
        let slot =
            self.sent.get(slot).filter(|slot| slot.load(Relaxed) == fingerprint).ok_or(FrameDropReason::Ignored)?;
        if self.narrow.most(now_us, ip).is_some_and(|known| known <= usize::from(mtu)) {
            return Err(FrameDropReason::Ignored);
        }
        if !may(self.narrow.group(ip)) {
            return Err(FrameDropReason::RateLimited);
        }
        // Each packet that was sent allows one message.
        slot.store(0, Relaxed);
        self.narrow.reduce(now_us, ip, usize::from(mtu));
        Ok(())
    }

    /// Returns the path MTU of this address, if a router reported one below the interface's.
    #[inline]
    pub(super) fn most(&self, clock: &StackClock, ip: IpAddr) -> Option<usize> {
        // Reading the clock costs more than that.
        if self.narrow.was_never_used() { None } else { self.narrow.most(clock(), ip) }
    }
}
