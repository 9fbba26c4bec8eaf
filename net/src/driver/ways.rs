//! What the kernel knows of the ways to peers: how large packets they bear, where that is less than is usual.
//!
//! Datagrams leave whole or not at all, since a stack past the kernel at the other end takes no pieces. The kernel knows its interfaces, hears what
//! routers say, and refuses what is too large; then it is asked how large a packet that peer's way bears. That is believed for some time.

use super::Ways;
use super::sys;
use crate::limits::{LOWERED_US, LOWERED_WAYS, MAX_DATAGRAM_CEILING, NARROWEST_DATAGRAM};
use crate::r2p2::Peer;
use hashbrown::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A way that bears less than is usual.
#[derive(Clone, Copy, Debug)]
struct Narrow {
    datagram: usize,
    until: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct KernelWays {
    local: IpAddr,
    narrow: RwLock<HashMap<IpAddr, Narrow>>,
    /// There is or was one: the usual case costs one look.
    any: AtomicBool,
}

impl KernelWays {
    /// Those of a socket at this address, whose datagrams the kernel does not cut into pieces from now on.
    pub fn of(socket: BorrowedFd<'_>, local: IpAddr) -> Arc<KernelWays> {
        sys::send_whole(socket, local.is_ipv6());
        Arc::new(KernelWays { local, narrow: RwLock::default(), any: AtomicBool::new(false) })
    }

    /// Asks how large a datagram to this peer may be, and keeps that if it is less than so many bytes.
    #[cold]
    fn learn(&self, peer: Peer, bytes: usize) {
        let Some(datagram) = self.ask(peer).filter(|datagram| *datagram < bytes) else { return };
        let (now, mut narrow) = (Instant::now(), self.narrow.write().unwrap_or_else(PoisonError::into_inner));
        if narrow.len() >= LOWERED_WAYS && !narrow.contains_key(&peer.ip()) {
            narrow.retain(|_, way| way.until > now);
            let first = narrow.iter().min_by_key(|(_, way)| way.until).map(|(ip, _)| *ip);
            if let Some(first) = first.filter(|_| narrow.len() >= LOWERED_WAYS) {
                narrow.remove(&first);
            }
        }
        let datagram = datagram.max(NARROWEST_DATAGRAM);
        narrow.insert(peer.ip(), Narrow { datagram, until: now + Duration::from_micros(LOWERED_US) });
        self.any.store(true, Relaxed);
    }

    /// Bytes of the largest datagram that the kernel would send there.
    fn ask(&self, peer: Peer) -> Option<usize> {
        // Nothing is sent by this one.
        let socket = UdpSocket::bind((self.local, 0)).ok()?;
        socket.connect(peer).ok()?;
        let headers = if peer.is_ipv6() { 40 + 8 } else { 20 + 8 };
        sys::path_mtu(socket.as_fd(), peer.is_ipv6())?.checked_sub(headers)
    }
}

impl Ways for KernelWays {
    #[inline]
    fn most(&self, peer: Peer) -> usize {
        if !self.any.load(Relaxed) {
            return MAX_DATAGRAM_CEILING;
        }
        let narrow = self.narrow.read().unwrap_or_else(PoisonError::into_inner);
        let way = narrow.get(&peer.ip()).filter(|way| way.until > Instant::now());
        way.map_or(MAX_DATAGRAM_CEILING, |way| way.datagram)
    }

    fn refused(&self, peer: Peer, bytes: usize) {
        // Else it is known, and the datagram was made before.
        if bytes <= self.most(peer) {
            self.learn(peer, bytes);
        }
    }
}
