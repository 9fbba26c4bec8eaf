//! A small UDP/IP stack: datagrams over ports that move Ethernet frames, for drivers that go past the kernel.
//!
//! A [`FramePort`] is one queue pair of a network interface. The workers of an interface share an [`Interface`]: its addresses, its routes
//! (a network and a router), its table of neighbours. Each worker has a [`StackDriver`], which is a [`crate::driver::Driver`]: it
//! answers ARP, neighbour discovery and echoes, finds neighbours, checks what comes, and hands a datagram for another worker's UDP port
//! over to that worker. It is no router, puts no fragments together, and takes no options that route.

mod alarm;
mod counters;
mod driver;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod handover;
mod held;
mod input;
mod interface;
#[cfg(any(test, feature = "sim"))]
mod memory;
mod neighbours;
mod packet;
mod port;
#[cfg(test)]
mod tests;
mod ways;
mod wire;
mod worker;

pub use alarm::Forgone;
pub use counters::StackCounters;
pub use driver::StackDriver;
pub(crate) use interface::client_port;
pub use interface::{Clock, Interface, Network, StackError, StackOptions, machine_clock};
#[cfg(any(test, feature = "sim"))]
pub use memory::{Faults, MemoryNetwork, MemoryPort};
pub use neighbours::NeighbourCounters;
#[cfg(feature = "dpdk")]
pub(crate) use packet::kernels_addresses;
pub use packet::{
    ClientInterface, InterfaceError, InterfaceOptions, PacketError, PacketOptions, PacketPort, open_interface,
};
pub use port::{Fill, FramePort, InFrame, Mac, Never, Offload, OutFrame, Part, Verified};
pub use wire::Refused;
