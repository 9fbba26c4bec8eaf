//! The system calls of the UDP driver that no safe wrapper offers: `recvmmsg` and `sendmmsg` with the control messages
//! of segmentation offload, and the socket's filter and memory.
//!
//! Guarantees: the functions here are safe to call with any arguments. Every pointer handed to the kernel points into a
//! slice or array that outlives the call and is as long as the length that goes with it. Results are read only as far
//! as the kernel says that it wrote.
#![allow(unsafe_code)]

use super::socket_filter::BpfInstruction;
use crate::limits::{BURST, GSO_SEGMENTS, GSO_SLICES};
use crate::r2p2::PeerAddr;
use crate::shared_bytes::SharedBytes;
use rustix::io::Errno;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// One received message.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketMessage {
    /// Its sender; none if the kernel gave an address of another family.
    pub(super) peer: Option<PeerAddr>,
    /// Its bytes.
    pub(super) len: usize,
    /// Bytes of each datagram in it but the last, 0: it is one datagram.
    pub(super) segment: usize,
    /// Unix time, nanoseconds, at which the kernel received it; 0: it does not say.
    pub(super) unix_ns: u64,
    /// It was longer than the buffer.
    pub(super) truncated: bool,
}

/// A datagram that waits: `len` bytes, of which `own` are the outbox's, from `start` on, and those behind them are
/// shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutboxEntry {
    pub(super) peer: PeerAddr,
    pub(super) start: u32,
    pub(super) own: u32,
    pub(super) len: u32,
    /// Index of the slice with its shared bytes; [`OutboxEntry::OWN`]: it has none.
    pub(super) slice: u32,
}

impl OutboxEntry {
    /// All of its bytes are the outbox's own.
    pub(super) const OWN: u32 = u32::MAX;
}

/// Shared bytes at the end of a datagram.
#[derive(Debug)]
pub(super) struct SharedSlice {
    pub(super) share: SharedBytes,
    pub(super) range: Range<usize>,
}

impl SharedSlice {
    pub(super) fn bytes(&self) -> &[u8] {
        self.share.get(self.range.clone()).unwrap_or_default()
    }
}

/// The buffers of which a queue's datagrams are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutboxBuffers<'o> {
    pub(super) bytes: &'o [u8],
    /// None where the datagram has left.
    pub(super) slices: &'o [Option<SharedSlice>],
}

impl<'o> OutboxBuffers<'o> {
    /// The shared bytes of a datagram.
    #[inline]
    pub(super) fn slice(&self, queued: &OutboxEntry) -> Option<&'o SharedSlice> {
        self.slices.get(queued.slice as usize)?.as_ref()
    }

    /// A datagram's own bytes, and those that are shared; none if there are no such.
    #[inline]
    pub(super) fn parts(&self, queued: &OutboxEntry) -> Option<(&'o [u8], &'o [u8])> {
        let shared = if queued.slice == OutboxEntry::OWN { &[][..] } else { self.slice(queued)?.bytes() };
        let start = queued.start as usize;
        Some((self.bytes.get(start..start + queued.own as usize)?, shared))
    }
}

/// One message to be sent: `count` datagrams of a queue from the `first` on, `len` bytes together, of `segment` bytes
/// each (the last may be shorter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GsoMessage {
    pub(super) peer: PeerAddr,
    pub(super) first: usize,
    pub(super) len: u32,
    pub(super) segment: u32,
    pub(super) count: u32,
    /// A further datagram may be added.
    pub(super) open: bool,
}

/// Room for the control messages of one message, aligned as the kernel wants it: at most 24 bytes for segments, and 32
/// for the time of receipt.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct UdpControlBuffer([u8; 64]);

fn setsockopt(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> bool {
    // SAFETY: `value` lives across the call and is as long as the length says.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, ptr::from_ref(&value).cast(), size_of::<i32>() as libc::socklen_t)
    };
    result == 0
}

fn getsockopt(fd: BorrowedFd<'_>, level: i32, name: i32) -> Option<i32> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` and `len` live across the call; the kernel writes at most `len` bytes, the size of `value`.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, ptr::from_mut(&mut value).cast(), &raw mut len) };
    (result == 0).then_some(value)
}

/// Asks for large kernel buffers; [`socket_buffers`] returns the granted sizes.
pub(crate) fn set_socket_buffers(fd: BorrowedFd<'_>, bytes: usize) {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    for (force, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        // The forced one needs a privilege that a server need not have.
        let _granted = setsockopt(fd, libc::SOL_SOCKET, force, bytes) || setsockopt(fd, libc::SOL_SOCKET, plain, bytes);
    }
}

/// Bytes of the kernel's receive and send buffers.
pub(super) fn socket_buffers(fd: BorrowedFd<'_>) -> (usize, usize) {
    let read = |name| getsockopt(fd, libc::SOL_SOCKET, name).and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    (read(libc::SO_RCVBUF), read(libc::SO_SNDBUF))
}

/// Returns the bytes that wait in a socket's receive buffer, and its capacity.
pub(crate) fn receive_buffer_usage(fd: BorrowedFd<'_>) -> (u64, u64) {
    let used = receive_queue_state(fd).map_or(0, |(bytes, _)| u64::from(bytes));
    (used, socket_buffers(fd).0 as u64)
}

/// Bytes that wait in a socket's receive buffer, and the messages that the kernel threw away before they came there.
pub(super) fn receive_queue_state(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    /// Words that the kernel reports of a socket's memory (`SO_MEMINFO`), and the wanted ones.
    const WORDS: usize = 9;
    const RECEIVE_ALLOCATED: usize = 0;
    const DROPS: usize = 8;
    let mut words = [0u32; WORDS];
    let mut len = size_of_val(&words) as libc::socklen_t;
    // SAFETY: `words` and `len` live across the call; the kernel writes at most `len` bytes, the size of `words`.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_MEMINFO, words.as_mut_ptr().cast(), &raw mut len)
    };
    (result == 0).then_some((words[RECEIVE_ALLOCATED], words[DROPS]))
}

/// `SO_MEMINFO` of Linux's asm-generic/socket.h.
const SO_MEMINFO: i32 = 55;

/// Makes the kernel run `program` over every datagram before it takes room in the buffer. It replaces the program
/// before; an empty one lets all in. Returns false if the kernel refuses: the program before stays then.
pub(super) fn set_filter(fd: BorrowedFd<'_>, program: &[BpfInstruction]) -> bool {
    let Ok(len) = u16::try_from(program.len()) else { return false };
    if len == 0 {
        // There may be none to take away, which is as well.
        setsockopt(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
        return true;
    }
    let mut words: Vec<libc::sock_filter> =
        program.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    let program = libc::sock_fprog { len, filter: words.as_mut_ptr() };
    // SAFETY: `program` and the `len` instructions that it points to live across the call; the kernel copies them and
    // checks each before it takes the program.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    result == 0
}

/// Makes the kernel refuse datagrams that do not fit one packet on their path, rather than fragment them.
pub(super) fn disable_fragmentation(fd: BorrowedFd<'_>, is_ipv6: bool) {
    // Every kernel has this option; without it, datagrams are fragmented as before. A socket of IPv6 may have peers of
    // IPv4, too, to which the other setting applies.
    let _set = setsockopt(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO);
    if is_ipv6 {
        let _set = setsockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO);
    }
}

/// Returns whether the kernel would fragment what it sends by IPv4.
#[cfg(test)]
pub(super) fn fragments_ipv4(fd: BorrowedFd<'_>) -> bool {
    getsockopt(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) != Some(libc::IP_PMTUDISC_DO)
}

/// Returns the largest packet, in bytes, that the kernel knows to fit the path of a connected socket.
pub(super) fn path_mtu(fd: BorrowedFd<'_>, is_ipv6: bool) -> Option<usize> {
    let (level, name) = if is_ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    getsockopt(fd, level, name).and_then(|bytes| usize::try_from(bytes).ok())
}

/// Lets the kernel coalesce received datagrams. False if it cannot.
pub(super) fn enable_gro(fd: BorrowedFd<'_>) -> bool {
    setsockopt(fd, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Has the kernel say when it received each message. False if it cannot.
pub(super) fn enable_receive_times(fd: BorrowedFd<'_>) -> bool {
    setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Returns whether the kernel can segment sent messages.
pub(super) fn has_gso(fd: BorrowedFd<'_>) -> bool {
    getsockopt(fd, libc::SOL_UDP, libc::UDP_SEGMENT).is_some()
}

/// Receives waiting messages, one per `stride` bytes of `bytes`, without waiting.
pub(super) fn receive(
    fd: BorrowedFd<'_>,
    bytes: &mut [u8],
    stride: usize,
    arrived: &mut Vec<SocketMessage>,
) -> Result<(), Errno> {
    arrived.clear();
    let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; BURST];
    let mut controls = [const { MaybeUninit::<UdpControlBuffer>::uninit() }; BURST];
    let mut slices = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BURST];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BURST];
    let mut count = 0;
    for (((buffer, slice), header), (name, control)) in bytes
        .chunks_exact_mut(stride.max(1))
        .zip(&mut slices)
        .zip(&mut headers)
        .zip(names.iter_mut().zip(&mut controls))
    {
        *slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        header.write(libc::mmsghdr {
            msg_hdr: new_msghdr(
                name.as_mut_ptr().cast(),
                size_of::<libc::sockaddr_storage>() as libc::socklen_t,
                std::slice::from_mut(slice),
                control.as_mut_ptr().cast(),
                size_of::<UdpControlBuffer>(),
            ),
            msg_len: 0,
        });
        count += 1;
    }
    // SAFETY: the first `count` headers are initialised; each points to a name, a control buffer, and a slice of
    // `bytes` of the lengths given. All of these live across the call, and nothing else borrows them.
    let result = unsafe {
        libc::recvmmsg(fd.as_raw_fd(), headers.as_mut_ptr().cast(), count, libc::MSG_DONTWAIT, ptr::null_mut())
    };
    let Ok(filled) = usize::try_from(result) else { return Err(last_error()) };
    for (header, name) in headers.iter().zip(&names).take(filled) {
        // SAFETY: the kernel has filled this header, which was initialised above.
        let header = unsafe { header.assume_init_ref() };
        // SAFETY: the kernel has written `msg_namelen` bytes of the name.
        let peer = unsafe { read_sockaddr(name.as_ptr(), header.msg_hdr.msg_namelen) };
        // SAFETY: the control buffer of this header lives, and the kernel has set `msg_controllen` to what it wrote.
        let ControlFields { segment, unix_ns } = unsafe { read_control(&header.msg_hdr) };
        let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        arrived.push(SocketMessage { peer, len: (header.msg_len as usize).min(stride), segment, unix_ns, truncated });
    }
    Ok(())
}

/// Sends messages of a queue's datagrams, without waiting. Returns how many of them the kernel took.
pub(super) fn send(
    fd: BorrowedFd<'_>,
    stock: OutboxBuffers<'_>,
    queue: &[OutboxEntry],
    groups: &[GsoMessage],
) -> Result<usize, Errno> {
    let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; BURST];
    let mut controls = [UdpControlBuffer([0; 64]); BURST];
    let mut room = [const { MaybeUninit::<libc::iovec>::uninit() }; GSO_SLICES];
    let mut room = room.as_mut_slice();
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BURST];
    let mut count = 0;
    for ((group, header), (name, control)) in groups.iter().zip(&mut headers).zip(names.iter_mut().zip(&mut controls)) {
        let datagrams = queue.get(group.first..).and_then(|queue| queue.get(..group.count as usize));
        let Some(slices) = datagrams.and_then(|datagrams| write_iovecs(stock, datagrams, &mut room)) else { break };
        let name_len = write_sockaddr(group.peer, name);
        let mut fields = new_msghdr(name.as_mut_ptr().cast(), name_len, slices, ptr::null_mut(), 0);
        if group.count > 1 {
            fields.msg_control = ptr::from_mut(control).cast();
            // SAFETY: CMSG_SPACE and CMSG_LEN only compute; the control buffer is 64 bytes, zeroed and aligned, and the
            // message needs 24, so that CMSG_FIRSTHDR gives its start and the u16 behind the header lies in it.
            unsafe {
                fields.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
                let head = libc::CMSG_FIRSTHDR(&raw const fields);
                (*head).cmsg_level = libc::SOL_UDP;
                (*head).cmsg_type = libc::UDP_SEGMENT;
                (*head).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
                ptr::write_unaligned(libc::CMSG_DATA(head).cast::<u16>(), group.segment as u16);
            }
        }
        header.write(libc::mmsghdr { msg_hdr: fields, msg_len: 0 });
        count += 1;
    }
    debug_assert!(groups.iter().all(|group| group.count as usize <= GSO_SEGMENTS));
    if count == 0 {
        return Ok(0);
    }
    // SAFETY: the first `count` headers are initialised; each points to a name, a control buffer, and initialised
    // slices of the datagrams' buffers, all of which live across the call.
    let result = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr().cast(), count, libc::MSG_DONTWAIT) };
    usize::try_from(result).map_err(|_| last_error())
}

/// Takes slices of the room for some datagrams; those whose own bytes follow each other share one slice. Returns `None`
/// if the room is too small.
fn write_iovecs<'s>(
    stock: OutboxBuffers<'_>,
    datagrams: &[OutboxEntry],
    room: &mut &'s mut [MaybeUninit<libc::iovec>],
) -> Option<&'s mut [libc::iovec]> {
    // The kernel only reads through this pointer, although its type lets it write.
    let slice = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut count = 0;
    let mut end = None;
    for queued in datagrams {
        let (own, shared) = stock.parts(queued)?;
        if end == Some(queued.start) && count > 0 {
            // SAFETY: the slices up to `count` have been written.
            unsafe { room.get_mut(count - 1)?.assume_init_mut() }.iov_len += own.len();
        } else {
            room.get_mut(count)?.write(slice(own));
            count += 1;
        }
        end = Some(queued.start + queued.len);
        if !shared.is_empty() {
            room.get_mut(count)?.write(slice(shared));
            (count, end) = (count + 1, None);
        }
    }
    let (written, rest) = std::mem::take(room).split_at_mut(count);
    *room = rest;
    // SAFETY: the loop has written each of the first `count`.
    Some(unsafe { written.assume_init_mut() })
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn new_msghdr(
    name: *mut libc::c_void,
    name_len: libc::socklen_t,
    slices: &mut [libc::iovec],
    control: *mut libc::c_void,
    control_len: usize,
) -> libc::msghdr {
    // SAFETY: a msghdr is plain data for which zeros are valid (there are padding fields on some C libraries).
    let mut fields: libc::msghdr = unsafe { std::mem::zeroed() };
    fields.msg_name = name;
    fields.msg_namelen = name_len;
    fields.msg_iov = slices.as_mut_ptr();
    fields.msg_iovlen = slices.len() as _;
    fields.msg_control = control;
    fields.msg_controllen = control_len as _;
    fields
}

/// Writes a socket address. Returns its length.
fn write_sockaddr(peer: PeerAddr, name: &mut MaybeUninit<libc::sockaddr_storage>) -> libc::socklen_t {
    match peer {
        PeerAddr::V4(address) => {
            let fields = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is at least as large and as aligned as any socket address.
            unsafe { name.as_mut_ptr().cast::<libc::sockaddr_in>().write(fields) };
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        PeerAddr::V6(address) => {
            let fields = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: sockaddr_storage is at least as large and as aligned as any socket address.
            unsafe { name.as_mut_ptr().cast::<libc::sockaddr_in6>().write(fields) };
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

/// Reads a socket address.
///
/// # Safety
/// `name` points to an aligned sockaddr_storage of which the first `len` bytes are initialised.
unsafe fn read_sockaddr(name: *const libc::sockaddr_storage, len: libc::socklen_t) -> Option<PeerAddr> {
    let len = len as usize;
    if len < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the family is the first field of every socket address, and that many bytes are initialised.
    let family = unsafe { name.cast::<libc::sa_family_t>().read() };
    match i32::from(family) {
        libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the family says that it is this kind of address, and the kernel wrote all of it.
            let fields = unsafe { name.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(fields.sin_addr.s_addr.to_ne_bytes());
            Some(PeerAddr::V4(SocketAddrV4::new(ip, u16::from_be(fields.sin_port))))
        }
        libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: the family says that it is this kind of address, and the kernel wrote all of it.
            let fields = unsafe { name.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(fields.sin6_addr.s6_addr);
            // The flow label is not part of a peer's identity.
            Some(PeerAddr::V6(SocketAddrV6::new(ip, u16::from_be(fields.sin6_port), 0, fields.sin6_scope_id)))
        }
        _ => None,
    }
}

/// What the kernel says of a received message beside its bytes; 0 where it says nothing.
#[derive(Clone, Copy, Default)]
struct ControlFields {
    /// Bytes of each datagram but the last in a coalesced message.
    segment: usize,
    /// Unix time, nanoseconds, at which it was received.
    unix_ns: u64,
}

/// Reads the control messages.
///
/// # Safety
/// `fields` was filled by the kernel, and its control buffer lives.
unsafe fn read_control(fields: &libc::msghdr) -> ControlFields {
    let mut control = ControlFields::default();
    // SAFETY: as promised by the caller; the CMSG functions stay within `msg_controllen`, and what is read lies within
    // the length of its message.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(fields);
        while !head.is_null() {
            let (level, kind, len) = ((*head).cmsg_level, (*head).cmsg_type, (*head).cmsg_len as usize);
            if level == libc::SOL_UDP
                && kind == libc::UDP_GRO
                && len >= libc::CMSG_LEN(size_of::<i32>() as u32) as usize
            {
                let segment = ptr::read_unaligned(libc::CMSG_DATA(head).cast::<i32>());
                control.segment = usize::try_from(segment).unwrap_or(0);
            } else if level == libc::SOL_SOCKET
                && kind == libc::SCM_TIMESTAMPNS
                && len >= libc::CMSG_LEN(size_of::<libc::timespec>() as u32) as usize
            {
                let time = ptr::read_unaligned(libc::CMSG_DATA(head).cast::<libc::timespec>());
                let (seconds, rest_ns) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
                control.unix_ns =
                    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(rest_ns.unwrap_or(0));
            }
            head = libc::CMSG_NXTHDR(fields, head);
        }
    }
    control
}
