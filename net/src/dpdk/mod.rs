//! DPDK: network devices driven from this process, without the kernel.
//!
//! From the ground up: [`Eal`] is DPDK started, [`Pool`] holds packet buffers, [`Port`] is a device, [`QueuePair`] one receive and one transmit
//! queue of it, which [`crate::stack`] makes a driver of, and [`Flow`] a rule that the device keeps. Each holds what it
//! needs, so that everything goes in the right order: rules, queues, the port, pools, DPDK. [`Device`] puts all that together for a server,
//! [`ClientDevice`] for a client.

mod arena;
mod cable;
mod device;
mod dma;
mod eal;
mod ends;
mod error;
mod flow;
mod info;
mod interrupt;
mod kernel;
mod merged;
mod pool;
mod port;
mod queue;
mod shared;

pub use cable::Cable;
pub use device::{ClientDevice, Device, DeviceError, DeviceOptions, Steering};
pub use dma::{Dma, NoDma};
pub use eal::{Eal, version};
pub use error::{Code, DpdkError, FlowError, NoInterrupts, RulePart, Stage};
pub use flow::{Flow, UdpRule};
pub use info::PortInfo;
pub use merged::Merged;
pub use pool::Pool;
pub use port::{Port, PortCounters, PortOptions, PortState, Watch};
pub use queue::{Held, QueuePair};
