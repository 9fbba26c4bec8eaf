//! A small UDP/IP stack: datagrams over ports that move Ethernet frames, for drivers that go past the kernel.
//!
//! A [`FramePort`] is one queue pair of a network interface. The workers of an interface share an [`StackInterface`]:
//! its addresses, its routes (a network and a router), its table of neighbours. Each worker has a [`StackDriver`],
//! which is a [`crate::driver::DatagramDriver`]. It answers ARP, neighbour discovery and echoes, finds neighbours, and
//! checks what comes. It hands a datagram for another worker's UDP port over to that worker. The stack is no router,
//! reassembles no fragments, and accepts no source-route options.

mod clock;
mod counters;
mod driver;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod handover;
mod input;
mod interface;
mod interrupt_arming;
mod interrupt_fault;
#[cfg(any(test, feature = "sim"))]
mod memory;
mod neighbours;
mod packet;
mod path_mtu;
mod pending;
mod port;
#[cfg(test)]
mod tests;
mod wire;
mod worker;

pub use clock::{StackClock, monotonic_clock};
pub use counters::StackCounters;
pub use driver::StackDriver;
pub(crate) use interface::choose_client_port;
pub use interface::{InterfaceNetwork, StackError, StackInterface, StackOptions};
pub use interrupt_fault::InterruptFault;
#[cfg(any(test, feature = "sim"))]
pub use memory::{MemoryNetwork, MemoryPort, NetworkFaults};
pub use neighbours::NeighbourCounters;
#[cfg(feature = "dpdk")]
pub(crate) use packet::kernel_addresses;
pub use packet::{
    ClientInterface, InterfaceError, InterfaceOptions, PacketError, PacketOptions, PacketPort, open_interface,
};
pub use port::{
    ChecksumFill, ChecksumStatus, FramePart, FramePort, MacAddress, NoSharedBuffer, PortOffloads, RxFrame, TxFrame,
};
pub use wire::FrameDropReason;
