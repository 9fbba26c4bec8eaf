//! Errors of devices.

use super::error::{DpdkError, FlowError};
use crate::stack::StackError;
use std::net::IpAddr;
use thiserror::Error;

/// The reason why a device cannot be used.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// DPDK or the device refused.
    #[error(transparent)]
    Dpdk(#[from] DpdkError),
    /// The link is down.
    #[error("the other end of {0} does not answer: start the server first, or check the cable")]
    NoLink(String),
    /// A client over shared memory with another number of queues than the server has workers.
    #[error(
        "{device} is shared memory, where each side looks at every queue that it has: one for each of the server's {workers} \
             workers, not {queues}; leave the number of queues out, or say {workers}"
    )]
    MemifQueues {
        /// The device.
        device: String,
        /// Queues asked for.
        queues: u16,
        /// Workers of the server.
        workers: usize,
    },
    /// Buffers of shared memory that are too small for the packets that are asked for.
    #[error(
        "packets of {mtu} bytes need places of {needed} bytes in the memory that {device} shares, which has {buffer_bytes}: add bsize={needed} to its \
             --vdev, on the side with role=client"
    )]
    MemifBufferSize {
        /// The device.
        device: String,
        /// The packets asked for.
        mtu: u16,
        /// Bytes that a buffer has.
        buffer_bytes: u32,
        /// Bytes that a buffer needs.
        needed: u32,
    },
    /// The addresses cannot be used.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A device that cannot be shared.
    #[error(
        "{device} ({driver}) cannot be shared with the kernel (isolate): {}; mlx5, and net_tap with remote=, can. Leave isolate out, and give \
         the server a device, or a virtual function, of its own",
        .why.words()
    )]
    Isolation {
        /// The device.
        device: String,
        /// Its driver in DPDK.
        driver: String,
        /// The driver's answer.
        why: FlowError,
    },
    /// A shared device that takes no rules.
    #[error(
        "{device} is shared with the kernel (isolate), and only what rules name comes to the server: {why}; leave isolate out, and give the server a \
         device, or a virtual function, of its own"
    )]
    IsolatedRules {
        /// The device.
        device: String,
        /// The driver's answer.
        why: FlowError,
    },
    /// No host would answer for the address.
    #[error(
        "on a device shared with the kernel (isolate) it is the kernel that says who has {0}, and it has no such address: `ip addr add {0}/{1} dev` the \
         device's interface, or name an address that it has"
    )]
    NotKernelAddress(IpAddr, u8),
    /// The kernel has the address on another interface, and does not answer for it on the device.
    #[error(
        "on a device shared with the kernel (isolate) the kernel has the server's address on the device's own interface, and it has {address} on \
         {interface}, whose Ethernet address is another than that of {device}: name an address that it has there"
    )]
    OtherInterface {
        /// The address.
        address: IpAddr,
        /// The interface that has it.
        interface: String,
        /// The device.
        device: String,
    },
}
