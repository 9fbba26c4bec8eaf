//! What is known of the ways to peers: how large packets they bear, where a router on one has said so ("fragmentation needed", "packet too
//! big").
//!
//! Anybody can send such a message. So it is believed only if it quotes the addresses, ports and length of a packet that was sent of late, if it
//! asks for less than is known and no less than every way has to bear, at a bounded rate, and for some time; and it concerns the one address
//! alone. Rate and room are shared by groups of networks, which nobody can choose: one who has many addresses, and large answers sent to them,
//! takes those of his own group.

use super::interface::Clock;
use super::wire::Refused;
use crate::limits::{LOWERED_GROUPS, LOWERED_US, LOWERED_WAYS, SENT_PLACES};
use crate::r2p2::Peer;
use hashbrown::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{PoisonError, RwLock};

/// Bytes of a packet of IPv4 that every host takes; no way has to bear them, but whoever bears less is not believed.
pub(super) const LEAST4: usize = 576;
/// Bytes of a packet of IPv6 that every way bears.
pub(super) const LEAST6: usize = 1280;

/// The least that a way of this address's family may be said to bear.
pub(super) fn least(ip: IpAddr) -> usize {
    if ip.is_ipv4() { LEAST4 } else { LEAST6 }
}

/// What a router quotes of a packet that it did not pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quote {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// Bytes of the whole packet.
    pub(super) len: usize,
}

/// A way that bears less than the interface.
#[derive(Clone, Copy, Debug)]
struct Narrow {
    mtu: u16,
    until_us: u64,
}

/// See the module. Shared by the workers of an interface.
#[derive(Debug)]
pub(super) struct KnownWays {
    narrow: RwLock<HashMap<IpAddr, Narrow>>,
    /// When the last of them is forgotten.
    until_us: AtomicU64,
    /// Marks of large packets that were sent of late.
    sent: Box<[AtomicU32]>,
    /// Nobody else can tell which marks fall on one place.
    secret: u64,
}

impl KnownWays {
    pub(super) fn new() -> KnownWays {
        KnownWays {
            narrow: RwLock::new(HashMap::new()),
            until_us: AtomicU64::new(0),
            sent: (0..SENT_PLACES).map(|_| AtomicU32::new(0)).collect(),
            secret: RandomState::new().build_hasher().finish(),
        }
    }

    fn fold(&self, a: u64, b: u64) -> u64 {
        let product = u128::from(a ^ self.secret) * u128::from(b ^ 0xD1B5_4A32_D192_ED03);
        product as u64 ^ (product >> 64) as u64
    }

    /// The group of an address's network.
    pub(super) fn group(&self, ip: IpAddr) -> usize {
        let network = match ip {
            IpAddr::V4(ip) => u64::from(ip.to_bits() >> 8),
            IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
        };
        (self.fold(network, self.secret.rotate_left(32)) >> 32) as usize % LOWERED_GROUPS
    }

    /// The place and the mark of a packet.
    fn mark(&self, to: SocketAddr, len: usize) -> (usize, u32) {
        let (high, low) = match to.ip() {
            IpAddr::V4(ip) => (0, u64::from(ip.to_bits())),
            IpAddr::V6(ip) => ((ip.to_bits() >> 64) as u64, ip.to_bits() as u64),
        };
        let rest = u64::from(to.port()) << 32 | len as u64;
        let mixed = self.fold(self.fold(low, rest), high ^ self.secret.rotate_left(32));
        ((mixed >> 32) as usize % self.sent.len().max(1), mixed as u32 | 1)
    }

    /// A packet of so many bytes is sent.
    #[inline]
    pub(super) fn note(&self, to: Peer, len: usize) {
        if len > least(to.ip()) {
            let (place, mark) = self.mark(to, len);
            if let Some(place) = self.sent.get(place) {
                place.store(mark, Relaxed);
            }
        }
    }

    /// Believes that packets as the quoted one may have so many bytes at most, if it is to be believed, and `may` allows one more of its group.
    ///
    /// # Errors
    /// `Unheeded`: no such packet was sent of late, or nothing of it is new; `Rate`.
    #[cold]
    pub(super) fn hear(
        &self,
        now_us: u64,
        quote: &Quote,
        mtu: u16,
        may: impl FnOnce(usize) -> bool,
    ) -> Result<(), Refused> {
        let (ip, (place, mark)) = (quote.to.ip(), self.mark(quote.to, quote.len));
        let place = self.sent.get(place).filter(|place| place.load(Relaxed) == mark).ok_or(Refused::Unheeded)?;
        if self.look(now_us, ip).is_some_and(|known| known <= usize::from(mtu)) {
            return Err(Refused::Unheeded);
        }
        if !may(self.group(ip)) {
            return Err(Refused::Rate);
        }
        // Each packet that was sent is worth one word.
        place.store(0, Relaxed);
        self.lower(now_us, ip, mtu);
        Ok(())
    }

    /// Packets to this address may have so many bytes at most, for some time.
    pub(super) fn lower(&self, now_us: u64, ip: IpAddr, mtu: u16) {
        let mut narrow = self.narrow.write().unwrap_or_else(PoisonError::into_inner);
        if narrow.len() >= LOWERED_WAYS && !narrow.contains_key(&ip) {
            narrow.retain(|_, way| way.until_us > now_us);
            if narrow.len() >= LOWERED_WAYS
                && let Some(leaves) = self.first_of_most(&narrow)
            {
                narrow.remove(&leaves);
            }
        }
        let until_us = now_us + LOWERED_US;
        narrow.insert(ip, Narrow { mtu, until_us });
        self.until_us.fetch_max(until_us, Relaxed);
    }

    /// The oldest way of the group that has most of them.
    fn first_of_most(&self, narrow: &HashMap<IpAddr, Narrow>) -> Option<IpAddr> {
        let mut of = [0_usize; LOWERED_GROUPS];
        for ip in narrow.keys() {
            if let Some(count) = of.get_mut(self.group(*ip)) {
                *count += 1;
            }
        }
        let (most, _) = of.iter().enumerate().max_by_key(|(_, count)| **count)?;
        let own = narrow.iter().filter(|(ip, _)| self.group(**ip) == most);
        own.min_by_key(|(_, way)| way.until_us).map(|(ip, _)| *ip)
    }

    /// Bytes of a packet to this address, if a router said that it may not have as many as the interface's.
    #[inline]
    pub(super) fn most(&self, clock: &Clock, ip: IpAddr) -> Option<usize> {
        // The usual case costs one look.
        if self.until_us.load(Relaxed) == 0 {
            return None;
        }
        self.look(clock(), ip)
    }

    #[cold]
    fn look(&self, now_us: u64, ip: IpAddr) -> Option<usize> {
        if self.until_us.load(Relaxed) <= now_us {
            return None;
        }
        let narrow = self.narrow.read().unwrap_or_else(PoisonError::into_inner);
        narrow.get(&ip).filter(|way| way.until_us > now_us).map(|way| usize::from(way.mtu))
    }

    /// Ways that are known to be narrow.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.narrow.read().unwrap().len()
    }
}
