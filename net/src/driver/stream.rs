//! Connections: a listener per worker on one address, streams that never wait, and a selector that reports which of
//! many connections are ready.

use super::socket_file::SocketFile;
use crate::limits::{ACCEPT_BACKLOG, EPOLL_EVENTS, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES};
use crate::r2p2::PeerAddr;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The reason why an address could not be listened on.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another process has the port.
    #[error("tcp address {0} is in use: another server runs there? stop it or choose another port")]
    InUse(PeerAddr),
    /// The machine does not have this address.
    #[error("tcp address {0} does not belong to this machine: choose one of its own, or 127.0.0.1")]
    NotLocal(PeerAddr),
    /// A low port without the right to it.
    #[error("no permission to bind tcp address {0}: choose a port from 1024 up")]
    Permission(PeerAddr),
    /// Anything else.
    #[error("cannot listen on tcp address {0}: {1}")]
    Other(PeerAddr, io::Error),
    /// A Unix socket cannot be had there.
    #[error("cannot listen on unix:{}: {what}", path.display())]
    Unix {
        /// The path.
        path: PathBuf,
        /// The reason, and advice.
        what: String,
    },
}

impl ListenError {
    fn new(address: PeerAddr, error: io::Error) -> ListenError {
        match error.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse(address),
            io::ErrorKind::AddrNotAvailable => ListenError::NotLocal(address),
            io::ErrorKind::PermissionDenied => ListenError::Permission(address),
            _ => ListenError::Other(address, error),
        }
    }
}

/// A socket that listens: of TCP, or a Unix socket ([`StreamListener::bind_unix`]).
#[derive(Debug)]
pub struct StreamListener {
    pub(super) socket: OwnedFd,
    pub(super) local: ListenerAddress,
}

/// The address of a listener.
#[derive(Clone, Debug)]
pub(super) enum ListenerAddress {
    Tcp(PeerAddr),
    /// The file is removed with the last of its listeners.
    Unix {
        _file: Arc<SocketFile>,
    },
}

/// A socket of that kind, bound to `address`. With `shared`, others that were made so may be bound to it, too.
pub(super) fn bind_socket(address: PeerAddr, kind: SocketType, shared: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if kind == SocketType::STREAM {
        // Connections of a server that ran here before do not keep the port from this one.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    if shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    Ok(socket)
}

impl StreamListener {
    /// Binds `count` listeners to one address: the kernel spreads connections over them. Port 0 lets it choose one.
    ///
    /// # Errors
    /// [`ListenError`] names the address and what to do.
    pub fn bind(address: PeerAddr, count: usize) -> Result<Vec<StreamListener>, ListenError> {
        let failed = |error: io::Error| ListenError::new(address, error);
        let listen = |socket: OwnedFd| {
            // Accepted connections inherit it: a client whose machine is gone leaves no connection behind.
            sockopt::set_socket_keepalive(&socket, true)?;
            sockopt::set_tcp_keepidle(&socket, Duration::from_secs(KEEPALIVE_IDLE_S))?;
            sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(KEEPALIVE_INTERVAL_S))?;
            sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
            net::listen(&socket, ACCEPT_BACKLOG)?;
            let local: SocketAddr = net::getsockname(&socket)?.try_into()?;
            Ok::<_, io::Error>((StreamListener { socket, local: ListenerAddress::Tcp(local) }, local))
        };
        // The first is bound alone, so that a port of another process is in use, not shared with it.
        let first = bind_socket(address, SocketType::STREAM, false).map_err(failed)?;
        sockopt::set_socket_reuseport(&first, true).map_err(|error| failed(error.into()))?;
        let (first, local) = listen(first).map_err(failed)?;
        let mut listeners = vec![first];
        while listeners.len() < count {
            let (next, _) = bind_socket(local, SocketType::STREAM, true).and_then(listen).map_err(failed)?;
            listeners.push(next);
        }
        Ok(listeners)
    }

    /// The address that clients connect to; none of a Unix socket.
    pub fn local(&self) -> Option<PeerAddr> {
        match self.local {
            ListenerAddress::Tcp(local) => Some(local),
            ListenerAddress::Unix { .. } => None,
        }
    }

    /// Returns a connection that waits to be accepted, if there is one.
    ///
    /// # Errors
    /// The kernel's error, most likely that the process has no file descriptor left.
    pub fn accept(&self) -> io::Result<Option<StreamSocket>> {
        loop {
            match net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    if matches!(self.local, ListenerAddress::Tcp(_)) {
                        // Answers leave in one piece; none waits for another one's acknowledgement.
                        let _only_slower_without = sockopt::set_tcp_nodelay(&socket, true);
                    }
                    return Ok(Some(StreamSocket { socket }));
                }
                Err(Errno::AGAIN) => return Ok(None),
                // It was there and has gone: the next one.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for StreamListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The outcome of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamProgress {
    /// This number of bytes was transferred; at least one.
    Bytes(usize),
    /// None can go now.
    WouldBlock,
    /// None will: the other side has ended the connection, or it broke.
    Closed,
}

impl StreamProgress {
    fn of(result: Result<usize, Errno>) -> StreamProgress {
        match result {
            Ok(0) => StreamProgress::Closed,
            Ok(bytes) => StreamProgress::Bytes(bytes),
            Err(Errno::AGAIN | Errno::INTR) => StreamProgress::WouldBlock,
            Err(_) => StreamProgress::Closed,
        }
    }
}

/// A connection. Reading and writing never wait.
#[derive(Debug)]
pub struct StreamSocket {
    socket: OwnedFd,
}

impl StreamSocket {
    /// Reads the received bytes, up to the length of `into`, which is not empty.
    pub fn receive(&self, into: &mut [u8]) -> StreamProgress {
        StreamProgress::of(net::recv(&self.socket, into, RecvFlags::empty()).map(|(bytes, _)| bytes))
    }

    /// Sends as much as there is room for of `bytes`, which are not empty.
    pub fn send(&self, bytes: &[u8]) -> StreamProgress {
        StreamProgress::of(net::send(&self.socket, bytes, SendFlags::NOSIGNAL))
    }

    /// The other side's address, and this side's; none at a Unix socket.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.peer().zip(net::getsockname(&self.socket).ok()?.try_into().ok())
    }

    /// The other side's address; none at a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        net::getpeername(&self.socket).ok()??.try_into().ok()
    }
}

impl From<OwnedFd> for StreamSocket {
    /// One end of a connection, which must not block.
    fn from(socket: OwnedFd) -> StreamSocket {
        StreamSocket { socket }
    }
}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The events that a selector is to look for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketInterest {
    /// Something to read, or a connection to accept.
    pub readable: bool,
    /// Room to write.
    pub writable: bool,
    /// The other side's end, even if its earlier bytes are not to be read.
    pub ended: bool,
}

impl SocketInterest {
    /// For reads only.
    pub const READ: SocketInterest = SocketInterest { readable: true, writable: false, ended: false };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.readable);
        flags.set(EventFlags::OUT, self.writable);
        flags.set(EventFlags::RDHUP, self.ended);
        flags
    }
}

/// A socket with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketEvent {
    /// The number that it was added under.
    pub token: u64,
    /// There is something to read: bytes, the end, or an error.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The connection is gone in both directions. Reported even if it is not asked for.
    pub broken: bool,
    /// The other side will say nothing more, if that is asked for.
    pub ended: bool,
}

/// Looks after many sockets at once (`epoll`, level-triggered).
pub struct EpollSelector {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl std::fmt::Debug for EpollSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Selector").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

impl EpollSelector {
    /// Makes a selector without sockets.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new() -> io::Result<EpollSelector> {
        Ok(EpollSelector { epoll: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(EPOLL_EVENTS) })
    }

    /// Looks after one more.
    ///
    /// # Errors
    /// When the kernel has no room for it.
    pub fn add(&self, socket: impl AsFd, token: u64, interest: SocketInterest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), interest.flags())?)
    }

    /// Looks for something else from now on.
    ///
    /// # Errors
    /// If it was not added.
    pub fn change(&self, socket: impl AsFd, token: u64, interest: SocketInterest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(token), interest.flags())?)
    }

    /// Looks after it no longer. (One that is closed is forgotten, too.)
    pub fn remove(&self, socket: impl AsFd) {
        let _was_not_there = epoll::delete(&self.epoll, socket);
    }

    /// Returns those that are ready now, up to [`EPOLL_EVENTS`] of them, in rotation.
    pub fn look(&mut self) -> impl ExactSizeIterator<Item = SocketEvent> + '_ {
        self.events.clear();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&at_once)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => debug_assert!(false, "an epoll that cannot be asked: {error}"),
        }
        self.events.iter().map(|event| {
            // Copied out: the kernel packs them.
            let (flags, data) = (event.flags, event.data);
            SocketEvent {
                token: data.u64(),
                readable: flags.contains(EventFlags::IN),
                writable: flags.contains(EventFlags::OUT),
                broken: flags.intersects(EventFlags::HUP | EventFlags::ERR),
                ended: flags.contains(EventFlags::RDHUP),
            }
        })
    }
}

impl AsFd for EpollSelector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A datagram socket on an address that others of this process are bound to as well.
pub(super) fn bind_shared_udp(address: PeerAddr) -> io::Result<UdpSocket> {
    Ok(UdpSocket::from(bind_socket(address, SocketType::DGRAM, true)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    fn look(selector: &mut EpollSelector) -> Vec<SocketEvent> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let ready: Vec<SocketEvent> = selector.look().collect();
            if !ready.is_empty() || Instant::now() > end {
                return ready;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn bytes_go_both_ways_and_the_end_is_seen() {
        let listeners = StreamListener::bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let mut selector = EpollSelector::new().unwrap();
        selector.add(&listeners[0], 7, SocketInterest::READ).unwrap();
        assert_eq!(selector.look().len(), 0);
        let mut client = TcpStream::connect(listeners[0].local().unwrap()).unwrap();
        assert_eq!(look(&mut selector)[0].token, 7);
        let stream = listeners[0].accept().unwrap().unwrap();
        assert!(listeners[0].accept().unwrap().is_none());
        assert_eq!(stream.peer(), client.local_addr().ok());
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), Duration::from_secs(KEEPALIVE_IDLE_S));
        selector.add(&stream, 8, SocketInterest { writable: true, ..SocketInterest::READ }).unwrap();
        let ready = look(&mut selector)[0];
        assert_eq!(ready, SocketEvent { token: 8, readable: false, writable: true, broken: false, ended: false });
        selector.change(&stream, 9, SocketInterest::READ).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(stream.receive(&mut buffer), StreamProgress::WouldBlock);
        client.write_all(b"ping").unwrap();
        assert_eq!(look(&mut selector)[0].token, 9);
        assert_eq!((stream.receive(&mut buffer), &buffer[..4]), (StreamProgress::Bytes(4), &b"ping"[..]));
        assert_eq!(stream.send(b"pong!"), StreamProgress::Bytes(5));
        client.read_exact(&mut buffer[..5]).unwrap();
        assert_eq!(&buffer[..5], b"pong!");
        selector.change(&stream, 9, SocketInterest { readable: false, writable: false, ended: true }).unwrap();
        client.write_all(b"ping").unwrap();
        assert_eq!(selector.look().len(), 0);
        drop(client);
        let ready = look(&mut selector)[0];
        assert!(ready.ended && !ready.readable);
        selector.change(&stream, 9, SocketInterest::READ).unwrap();
        assert!(look(&mut selector)[0].readable);
        assert_eq!(
            (stream.receive(&mut buffer), stream.receive(&mut buffer)),
            (StreamProgress::Bytes(4), StreamProgress::Closed)
        );
        selector.remove(&stream);
        assert_eq!(selector.look().len(), 0);
    }

    #[test]
    fn listeners_share_an_address_with_each_other_only() {
        let listeners = StreamListener::bind("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        let address = listeners[0].local().unwrap();
        assert!(listeners.iter().all(|listener| listener.local() == Some(address)));
        let error = StreamListener::bind(address, 1).unwrap_err();
        assert!(matches!(error, ListenError::InUse(_)), "{error}");
        let clients: Vec<_> = (0..60).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut accepted = 0;
        let end = Instant::now() + Duration::from_secs(60);
        while accepted < clients.len() && Instant::now() < end {
            accepted += listeners.iter().filter(|listener| listener.accept().unwrap().is_some()).count();
        }
        assert_eq!(accepted, clients.len());
    }
}
