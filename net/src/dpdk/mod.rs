//! DPDK: network devices driven from this process, without the kernel.
//!
//! From the ground up: [`Eal`] is DPDK started, [`MbufPool`] holds packet buffers, [`DpdkPort`] is a device,
//! [`QueuePair`] one receive and one transmit queue of it, which [`crate::stack`] makes a driver of, and [`FlowRule`] a
//! rule that the device keeps. Each holds what it needs, so that everything goes in the right order: rules, queues, the
//! port, pools, DPDK. [`DpdkDevice`] puts all that together for a server, [`ClientDevice`] for a client.

mod device;
mod dma;
mod dma_arena;
mod eal;
mod error;
mod flow;
mod info;
mod interrupt;
mod kernel;
mod merged_port;
mod payload_source;
mod pool;
mod port;
mod queue;
mod ring_pair;
mod shared_port;

pub use device::{ClientDevice, DeviceError, DeviceOptions, DpdkDevice, PacketSteering};
pub use dma::{DmaMemory, DmaUnavailable};
pub use eal::{Eal, version};
pub use error::{ConfigureStage, DpdkErrno, DpdkError, FlowError, InterruptsUnavailable, RulePart};
pub use flow::{FlowRule, UdpRule};
pub use info::PortDescription;
pub use merged_port::MergedPort;
pub use pool::MbufPool;
pub use port::{DpdkPort, PortCounters, PortOptions, PortStatus, PortWatch};
pub use queue::{QueuePair, RxBuffer};
pub use ring_pair::RingPair;
