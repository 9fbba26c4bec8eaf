//! The server on devices: packet sockets, AF_XDP, and DPDK, whose library starts once in a process.

#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "dpdk")]
mod buffers;
#[cfg(feature = "dpdk")]
mod dpdk;
#[cfg(feature = "dpdk")]
mod kept;
mod packet;
#[cfg(feature = "dpdk")]
mod xdp;
