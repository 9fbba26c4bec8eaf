//! DPDK: network devices driven from this process, without the kernel.
//!
//! From the ground up: [`Eal`] is DPDK started, [`MbufPool`] holds packet buffers, and [`DpdkPort`] is a device.
//! [`QueuePair`] is one receive and one transmit queue of it, which [`crate::stack`] makes a driver of, and
//! [`FlowRule`] a rule that the device keeps. Each holds the parts that it needs, so that all are dropped in the right
//! order: rules, queues, the port, pools, DPDK. [`DpdkDevice`] puts all that together for a server, [`ClientDevice`]
//! for a client.

mod c_strings;
mod device;
mod device_error;
mod dma;
mod dma_arena;
mod eal;
mod error;
mod flow;
mod info;
mod interrupt;
mod kernel;
mod merged_port;
mod open_port;
mod payload_source;
mod pool;
mod port;
mod queue;
mod ring_pair;
mod rule_errors;
mod send_memory;
mod shared_port;

pub use c_strings::version;
pub use device::{ClientDevice, DeviceOptions, DpdkDevice, PacketSteering};
pub use device_error::DeviceError;
pub use dma::{DmaMemory, DmaUnavailable};
pub use eal::Eal;
pub use error::{ConfigureStage, DpdkErrno, DpdkError, FlowError, InterruptsUnavailable, RulePart};
pub use flow::{FlowRule, UdpRule};
pub use info::PortDescription;
pub use merged_port::MergedPort;
pub use open_port::{PortCounters, PortOptions};
pub use pool::MbufPool;
pub use port::{DpdkPort, PortStatus, PortWatch};
pub use queue::{QueuePair, RxBuffer};
pub use ring_pair::RingPair;
