//! Paths with a reduced MTU: addresses to which datagrams have to be smaller, each for some time.
//!
//! The table is bounded, and shared by groups of networks that no sender can choose. When it is full, the group that
//! has most of it loses its oldest entry. So a sender with many addresses evicts entries of its own group, not of all
//! others.

use crate::limits::{REDUCED_PATH_GROUPS, REDUCED_PATH_LIFETIME_US, REDUCED_PATHS};
use hashbrown::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

/// A secret to hash with: no outsider can tell, or choose, which networks share a group.
#[derive(Debug)]
pub(crate) struct HashSecret(u64);

impl HashSecret {
    pub(crate) fn new() -> HashSecret {
        HashSecret(RandomState::new().build_hasher().finish())
    }

    #[inline]
    pub(crate) fn mix(&self, high: u64, low: u64, rest: u64) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a ^ self.0) * u128::from(b ^ 0xD1B5_4A32_D192_ED03);
            product as u64 ^ (product >> 64) as u64
        };
        // Another fold: networks that differed by ones in `high` alone fell on a few slots of 64 with one secret in
        // some hundreds.
        fold(fold(fold(low, rest), high ^ self.0.rotate_left(32)), 0)
    }
}

/// A path that bears less than is usual.
#[derive(Clone, Copy, Debug)]
struct ReducedMtu {
    bytes: usize,
    until_us: u64,
}

/// See the module. Shared by threads, whose clocks have one start.
#[derive(Debug)]
pub(crate) struct ReducedMtuTable {
    paths: RwLock<HashMap<IpAddr, ReducedMtu>>,
    /// The time at which the last of them is forgotten.
    until_us: AtomicU64,
    secret: HashSecret,
}

impl ReducedMtuTable {
    pub(crate) fn new() -> ReducedMtuTable {
        ReducedMtuTable { paths: RwLock::default(), until_us: AtomicU64::new(0), secret: HashSecret::new() }
    }

    /// The group of an address's network (/24, IPv6 /64), below [`REDUCED_PATH_GROUPS`].
    pub(crate) fn group(&self, ip: IpAddr) -> usize {
        // A peer seen by a socket of both families may be of IPv4: taken as IPv6, all such peers would be one network.
        let network = match ip.to_canonical() {
            IpAddr::V4(ip) => u64::from(ip.to_bits() >> 8),
            IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
        };
        (self.secret.mix(network, 0, 0) >> 32) as usize % REDUCED_PATH_GROUPS
    }

    /// Limits datagrams to this address to so many bytes, for some time.
    #[cold]
    pub(crate) fn reduce(&self, now_us: u64, ip: IpAddr, bytes: usize) {
        let mut paths = self.paths.write().unwrap_or_else(PoisonError::into_inner);
        if paths.len() >= REDUCED_PATHS && !paths.contains_key(&ip) {
            paths.retain(|_, path| path.until_us > now_us);
            if paths.len() >= REDUCED_PATHS
                && let Some(leaves) = self.oldest_of_largest_group(&paths)
            {
                paths.remove(&leaves);
            }
        }
        let until_us = now_us + REDUCED_PATH_LIFETIME_US;
        paths.insert(ip, ReducedMtu { bytes, until_us });
        self.until_us.fetch_max(until_us, Relaxed);
    }

    /// Returns the oldest path of the group that has most of them.
    fn oldest_of_largest_group(&self, paths: &HashMap<IpAddr, ReducedMtu>) -> Option<IpAddr> {
        let mut of = [0_usize; REDUCED_PATH_GROUPS];
        for ip in paths.keys() {
            if let Some(count) = of.get_mut(self.group(*ip)) {
                *count += 1;
            }
        }
        let (most, _) = of.iter().enumerate().max_by_key(|(_, count)| **count)?;
        let own = paths.iter().filter(|(ip, _)| self.group(**ip) == most);
        own.min_by_key(|(_, path)| path.until_us).map(|(ip, _)| *ip)
    }

    /// There never was one: the usual case costs one look.
    #[inline]
    pub(crate) fn was_never_used(&self) -> bool {
        self.until_us.load(Relaxed) == 0
    }

    /// The most bytes that may be sent to this address, if they are fewer than is usual.
    #[cold]
    pub(crate) fn most(&self, now_us: u64, ip: IpAddr) -> Option<usize> {
        if self.until_us.load(Relaxed) <= now_us {
            return None;
        }
        let paths = self.paths.read().unwrap_or_else(PoisonError::into_inner);
        paths.get(&ip).filter(|path| path.until_us > now_us).map(|path| path.bytes)
    }

    /// Returns the number of known paths.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.paths.read().unwrap().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngCore as _, SeedableRng as _};

    #[test]
    fn networks_side_by_side_are_of_many_groups_whatever_the_secret() {
        let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
        for _ in 0..4000 {
            let secret = HashSecret(rng.next_u64());
            let mut groups = [0; REDUCED_PATH_GROUPS];
            for network in 0..1000 {
                groups[(secret.mix(0x0A_0000 + network, 0, 0) >> 32) as usize % REDUCED_PATH_GROUPS] += 1;
            }
            let most = groups.into_iter().max();
            assert!(most < Some(1000 / REDUCED_PATH_GROUPS * 4), "{most:?} of 1000 in one group: {:#x}", secret.0);
        }
    }
}
