//! The kernel's path MTUs: the packet sizes that paths to peers bear, where they are below the usual one.
//!
//! Datagrams leave whole or not at all, since a stack past the kernel at the other end takes no fragments. The kernel
//! knows its interfaces, hears routers' messages, and refuses a datagram that is too large. The driver then asks it for
//! the packet size of the path to that peer. Each question takes a socket, and both routers' messages and requests for
//! large answers can be forged, so the rate is bounded. The answer is believed for some time.

use super::PathMtu;
use super::reduced_mtu::ReducedMtuTable;
use super::sys;
use crate::limits::{MAX_DATAGRAM_CEILING, MIN_PATH_DATAGRAM, REDUCED_PATH_GROUPS, REDUCED_PATHS_PER_S};
use crate::r2p2::PeerAddr;
use crate::rate_limiter::{RateLimit, RateLimiter};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// See the module.
#[derive(Debug)]
pub struct KernelPathMtu {
    local: IpAddr,
    /// Bytes of datagrams.
    narrow: ReducedMtuTable,
    /// Questions to the kernel, of each group of networks.
    questions: Mutex<Box<[RateLimiter]>>,
    /// The moment at which its times start.
    start: Instant,
}

impl KernelPathMtu {
    /// Returns the sizes for a socket at this address, whose datagrams the kernel does not fragment from now on.
    pub fn of(socket: BorrowedFd<'_>, local: IpAddr) -> Arc<KernelPathMtu> {
        sys::disable_fragmentation(socket, local.is_ipv6());
        Arc::new(KernelPathMtu::new(local))
    }

    fn new(local: IpAddr) -> KernelPathMtu {
        let questions = (0..REDUCED_PATH_GROUPS).map(|_| RateLimiter::default()).collect();
        KernelPathMtu { local, narrow: ReducedMtuTable::new(), questions: Mutex::new(questions), start: Instant::now() }
    }

    /// Asks for the size of a datagram to this peer, if the rate of its group allows one more question now. Keeps the
    /// answer if it is less than `bytes`. If the rate does not allow it, the next refused datagram asks.
    #[cold]
    fn learn(&self, now_us: u64, peer: PeerAddr, bytes: usize, query: impl FnOnce(PeerAddr) -> Option<usize>) {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = RateLimit::per_second(REDUCED_PATHS_PER_S);
        let may = questions.get_mut(self.narrow.group(peer.ip())).is_some_and(|rate| rate.admit(&limit, now_us));
        drop(questions);
        if may && let Some(datagram) = query(peer).filter(|datagram| *datagram < bytes) {
            self.narrow.reduce(now_us, peer.ip(), datagram.max(MIN_PATH_DATAGRAM));
        }
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Bytes of the largest datagram that the kernel would send there.
    fn query(&self, peer: PeerAddr) -> Option<usize> {
        // Nothing is sent by this one.
        let socket = UdpSocket::bind((self.local, 0)).ok()?;
        socket.connect(peer).ok()?;
        let headers = if peer.ip().to_canonical().is_ipv6() { 40 + 8 } else { 20 + 8 };
        sys::path_mtu(socket.as_fd(), peer.is_ipv6())?.checked_sub(headers)
    }
}

impl PathMtu for KernelPathMtu {
    #[inline]
    fn most(&self, peer: PeerAddr) -> usize {
        if self.narrow.was_never_used() {
            return MAX_DATAGRAM_CEILING;
        }
        self.narrow.most(self.now_us(), peer.ip()).unwrap_or(MAX_DATAGRAM_CEILING)
    }

    fn refused(&self, peer: PeerAddr, bytes: usize) {
        // Else it is known, and the datagram was made before.
        if bytes <= self.most(peer) {
            self.learn(self.now_us(), peer, bytes, |peer| self.query(peer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_ipv4_are_no_less_of_many_networks_on_a_socket_of_both_families() {
        let socket = match UdpSocket::bind("[::]:0") {
            Ok(socket) => socket,
            Err(error) => return println!("skipped: no IPv6 here: {error}"),
        };
        let paths = KernelPathMtu::of(socket.as_fd(), IpAddr::from([0; 16]));
        assert!(!sys::fragments_ipv4(socket.as_fd()));
        let group = |third: u8| paths.narrow.group(std::net::Ipv4Addr::new(10, 1, third, 1).to_ipv6_mapped().into());
        assert!((0..64).any(|third| group(third) != group(0)));
        let ipv4 = std::net::Ipv4Addr::new(10, 1, 0, 1);
        assert_eq!(paths.narrow.group(ipv4.into()), group(0));
    }

    #[test]
    fn the_kernel_is_asked_at_a_bounded_rate_however_many_peers_are_refused() {
        let paths = KernelPathMtu::new(IpAddr::from([0, 0, 0, 0]));
        let peer = |number: u32| PeerAddr::from((std::net::Ipv4Addr::from(0x0A00_0000 + (number << 8)), 7000));
        let mut queries = 0;
        let mut refuse = |now_us: u64, peer: PeerAddr| {
            let before = queries;
            paths.learn(now_us, peer, 1472, |_| {
                queries += 1;
                Some(1272)
            });
            queries > before
        };
        // All datagrams are refused in one second, from as many networks.
        let learned = (0..10_000).filter(|number| refuse(u64::from(*number) * 100, peer(*number))).count() as u64;
        let most = REDUCED_PATH_GROUPS as u64 * 2 * REDUCED_PATHS_PER_S;
        assert!((most / 4..=most).contains(&learned), "{learned} of 10,000");
        // A peer whose question was refused then may ask later.
        let late = peer(9999);
        assert!(refuse(2_000_000, late));
        assert_eq!(paths.narrow.most(2_000_000, late.ip()), Some(1272));
    }
}
