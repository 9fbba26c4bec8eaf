//! The system calls of packet sockets.
//!
//! Guarantees: the functions here are safe to call with any arguments. Every pointer handed to the kernel points into a
//! slice, array or structure that outlives the call and is as long as the length that goes with it. The kernel's output
//! is read only as far as the kernel reports that it wrote.
#![allow(unsafe_code)]

use crate::driver::socket_filter::BpfInstruction;
use crate::limits::BURST;
use crate::stack::MacAddress;
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// Constants of Linux's if_packet.h.
mod packet {
    pub(super) const ADD_MEMBERSHIP: i32 = 1;
    pub(super) const STATISTICS: i32 = 6;
    pub(super) const AUXDATA: i32 = 8;
    pub(super) const VNET_HDR: i32 = 15;
    pub(super) const FANOUT: i32 = 18;
    pub(super) const QDISC_BYPASS: i32 = 20;
    pub(super) const FANOUT_DATA: i32 = 22;
    pub(super) const IGNORE_OUTGOING: i32 = 23;
    pub(super) const MR_MULTICAST: u16 = 0;
    pub(super) const FANOUT_CBPF: u32 = 6;
    pub(super) const FANOUT_NEW: u32 = 0x2000;
    pub(super) const STATUS_VLAN_VALID: u32 = 1 << 4;
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PacketMembership {
    interface: i32,
    kind: u16,
    len: u16,
    address: [u8; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PacketAuxdata {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    vlan: u16,
    vlan_kind: u16,
}

/// Space for one control message, aligned as the kernel wants it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct AuxdataBuffer([u8; 64]);

/// One received message.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedPacket {
    /// Bytes of the message.
    pub(super) len: usize,
    /// The message was longer than the buffer.
    pub(super) truncated: bool,
    /// The kernel removed a VLAN tag.
    pub(super) vlan: bool,
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn set<T: Copy>(fd: BorrowedFd<'_>, name: i32, value: &T) -> Result<(), Errno> {
    // SAFETY: `value` lives across the call and is as long as the length says; the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Types of the kernel's options: any bytes are a valid value.
trait PlainOption: Copy + Default {}
impl PlainOption for u32 {}
impl PlainOption for [u32; 2] {}

fn get<T: PlainOption>(fd: BorrowedFd<'_>, name: i32) -> Result<T, Errno> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` and `len` live across the call; the kernel writes at most `len` bytes, the size of `value`, whose
    // type takes any.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_PACKET, name, ptr::from_mut(&mut value).cast(), &raw mut len)
    };
    if result == 0 { Ok(value) } else { Err(last_error()) }
}

/// Opens a packet socket that receives nothing until it is bound.
pub(super) fn open() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a call without pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The kernel's attributes of an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkAttributes {
    /// The interface's number.
    pub(super) index: i32,
    pub(super) mac: MacAddress,
    pub(super) mtu: usize,
    /// The interface was brought up.
    pub(super) up: bool,
}

/// Looks an interface up.
pub(super) fn link_attributes(fd: BorrowedFd<'_>, name: &str) -> Result<LinkAttributes, Errno> {
    let name = CString::new(name).map_err(|_| Errno::NODEV)?;
    // SAFETY: an ifreq is plain data for which zeros are valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() >= request.ifr_name.len() {
        return Err(Errno::NODEV);
    }
    for (byte_slot, byte) in request.ifr_name.iter_mut().zip(bytes) {
        *byte_slot = *byte as libc::c_char;
    }
    let mut ioctl = |what: libc::Ioctl| {
        // SAFETY: `request` lives across the call and is what these requests read and write.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), what, ptr::from_mut(&mut request)) };
        if result == 0 { Ok(request.ifr_ifru) } else { Err(last_error()) }
    };
    // SAFETY: the request was for this member, which the kernel has written.
    let index = unsafe { ioctl(libc::SIOCGIFINDEX)?.ifru_ifindex };
    // SAFETY: as above.
    let mtu = unsafe { ioctl(libc::SIOCGIFMTU)?.ifru_mtu };
    // SAFETY: as above.
    let flags = unsafe { ioctl(libc::SIOCGIFFLAGS)?.ifru_flags };
    // SAFETY: as above.
    let address = unsafe { ioctl(libc::SIOCGIFHWADDR)?.ifru_hwaddr };
    if address.sa_family != libc::ARPHRD_ETHER {
        return Err(Errno::AFNOSUPPORT);
    }
    let mut mac = [0; 6];
    for (byte_slot, byte) in mac.iter_mut().zip(address.sa_data) {
        *byte_slot = byte as u8;
    }
    let up = i32::from(flags) & libc::IFF_UP != 0;
    Ok(LinkAttributes { index, mac: MacAddress(mac), mtu: usize::try_from(mtu).unwrap_or(0), up })
}

/// Returns the kernel's own addresses, with the names of the interfaces that have them; none if it does not report any.
pub(crate) fn kernel_addresses() -> Vec<(IpAddr, String)> {
    let mut first = ptr::null_mut();
    // SAFETY: `first` lives across the call, which sets it to a list that is given back below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let (mut found, mut next) = (Vec::new(), first);
    while !next.is_null() {
        // SAFETY: an entry of the list, which lives until it is given back.
        let entry = unsafe { &*next };
        // SAFETY: an entry's address is null or that of a socket address as long as its family says.
        if let Some(ip) = unsafe { read_ip(entry.ifa_addr) } {
            // SAFETY: an entry's name is a string that ends with a zero.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found.push((ip, name.to_string_lossy().into_owned()));
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list is given back once, and nothing of it is kept.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// Returns the address of IPv4 or IPv6 in a socket address.
///
/// # Safety
/// `address` is null or points to a socket address that is as long as its family says.
unsafe fn read_ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: as promised by the caller: each is read only where the family says that it is one.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = ptr::read_unaligned(address.cast::<libc::sockaddr_in>());
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = ptr::read_unaligned(address.cast::<libc::sockaddr_in6>());
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// Sets the common options of all these sockets: frames have a virtio header, VLAN tags are reported, and sent frames
/// do not come back.
pub(super) fn configure_socket(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set(fd, packet::VNET_HDR, &1i32)?;
    set(fd, packet::AUXDATA, &1i32)?;
    set(fd, packet::IGNORE_OUTGOING, &1i32)?;
    // Sending is faster without a queue in between; where the kernel refuses that, there is one.
    let _ = set(fd, packet::QDISC_BYPASS, &1i32);
    Ok(())
}

/// Lets all frames of an interface in.
pub(super) fn bind(fd: BorrowedFd<'_>, interface: i32) -> Result<(), Errno> {
    // SAFETY: a sockaddr_ll is plain data for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = interface;
    // SAFETY: `address` lives across the call and is as long as the length says.
    let result = unsafe {
        libc::bind(fd.as_raw_fd(), ptr::from_ref(&address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Lets frames to a group in.
pub(super) fn join_group(fd: BorrowedFd<'_>, interface: i32, group: MacAddress) -> Result<(), Errno> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&group.0);
    set(fd, packet::ADD_MEMBERSHIP, &PacketMembership { interface, kind: packet::MR_MULTICAST, len: 6, address })
}

/// Makes the socket one of group `id`, or the first of a new one, among whose sockets `program` chooses by their order.
/// Returns the group.
pub(super) fn join_fanout(fd: BorrowedFd<'_>, id: Option<u16>, program: &[BpfInstruction]) -> Result<u16, Errno> {
    let kind = id.map_or(packet::FANOUT_CBPF | packet::FANOUT_NEW, |_| packet::FANOUT_CBPF);
    set(fd, packet::FANOUT, &(u32::from(id.unwrap_or(0)) | kind << 16))?;
    let mut words: Vec<libc::sock_filter> =
        program.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    let len = u16::try_from(words.len()).map_err(|_| Errno::INVAL)?;
    // The kernel copies the instructions that this points to, and checks each of them; they live until then.
    set(fd, packet::FANOUT_DATA, &libc::sock_fprog { len, filter: words.as_mut_ptr() })?;
    // The number in the lower half, its kind in the upper one.
    get::<u32>(fd, packet::FANOUT).map(|group| group as u16)
}

/// Messages thrown away since the last call.
pub(super) fn take_drops(fd: BorrowedFd<'_>) -> u32 {
    let [_all, thrown_away] = get(fd, packet::STATISTICS).unwrap_or([0; 2]);
    thrown_away
}

/// Receives up to `most` messages, one per `stride` bytes of `bytes`, without waiting.
pub(super) fn receive(
    fd: BorrowedFd<'_>,
    bytes: &mut [u8],
    stride: usize,
    most: usize,
    arrived: &mut Vec<ReceivedPacket>,
) -> Result<(), Errno> {
    arrived.clear();
    let mut controls = [const { MaybeUninit::<AuxdataBuffer>::uninit() }; BURST];
    let mut slices = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BURST];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BURST];
    let mut count = 0;
    for (((buffer, slice), header), control) in
        bytes.chunks_exact_mut(stride.max(1)).zip(&mut slices).zip(&mut headers).zip(&mut controls).take(most)
    {
        *slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: an mmsghdr is plain data for which zeros are valid.
        let fields = header.write(unsafe { zeroed() });
        fields.msg_hdr.msg_iov = slice;
        fields.msg_hdr.msg_iovlen = 1;
        fields.msg_hdr.msg_control = control.as_mut_ptr().cast();
        fields.msg_hdr.msg_controllen = size_of::<AuxdataBuffer>() as _;
        count += 1;
    }
    // SAFETY: the first `count` headers are initialised; each points to a control buffer and a slice of `bytes` of the
    // lengths given, all of which live across the call and are borrowed nowhere else.
    let result = unsafe {
        libc::recvmmsg(fd.as_raw_fd(), headers.as_mut_ptr().cast(), count, libc::MSG_DONTWAIT, ptr::null_mut())
    };
    let Ok(filled) = usize::try_from(result) else { return Err(last_error()) };
    for header in headers.iter().take(filled) {
        // SAFETY: the kernel has filled this header, which was initialised above.
        let header = unsafe { header.assume_init_ref() };
        // SAFETY: the control buffer of this header lives, and the kernel has set `msg_controllen` to what it wrote.
        let vlan = unsafe { vlan_was_stripped(&header.msg_hdr) };
        let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        arrived.push(ReceivedPacket { len: (header.msg_len as usize).min(stride), truncated, vlan });
    }
    Ok(())
}

/// Returns whether the kernel reports that it removed a VLAN tag.
///
/// # Safety
/// `fields` was filled by the kernel, and its control buffer lives.
unsafe fn vlan_was_stripped(fields: &libc::msghdr) -> bool {
    // SAFETY: as promised by the caller; the CMSG functions stay within `msg_controllen`.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(fields);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_PACKET
                && (*head).cmsg_type == packet::AUXDATA
                && (*head).cmsg_len as usize >= libc::CMSG_LEN(size_of::<PacketAuxdata>() as u32) as usize
            {
                let data = ptr::read_unaligned(libc::CMSG_DATA(head).cast::<PacketAuxdata>());
                return data.status & packet::STATUS_VLAN_VALID != 0;
            }
            head = libc::CMSG_NXTHDR(fields, head);
        }
    }
    false
}

/// Sends the messages that lie at `ranges` of `bytes`, at most [`BURST`], without waiting. Returns how many of them the
/// kernel took.
pub(super) fn send(fd: BorrowedFd<'_>, bytes: &[u8], ranges: &[Range<usize>]) -> Result<usize, Errno> {
    let mut slices = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BURST];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BURST];
    let mut count = 0;
    for ((range, slice), header) in ranges.iter().zip(&mut slices).zip(&mut headers) {
        let Some(message) = bytes.get(range.clone()) else { break };
        // The kernel only reads through this pointer, although its type lets it write.
        *slice = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
        // SAFETY: an mmsghdr is plain data for which zeros are valid.
        let fields = header.write(unsafe { zeroed() });
        fields.msg_hdr.msg_iov = slice;
        fields.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    if count == 0 {
        return Ok(0);
    }
    // SAFETY: the first `count` headers are initialised; each points to a slice of `bytes` that lives across the call.
    let result = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr().cast(), count, libc::MSG_DONTWAIT) };
    usize::try_from(result).map_err(|_| last_error())
}
