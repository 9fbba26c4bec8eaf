//! Errors of DPDK, typed and in words.

use super::c_strings::error_text;
use crate::stack::InterruptFault;
use std::fmt;
use thiserror::Error;

/// DPDK's number for the reason of a refusal: the system's `errno`, or one of its own from 1000 on; 0 if unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DpdkErrno(pub i32);

impl DpdkErrno {
    /// Converts the result of a DPDK function: most return the number negated.
    pub(super) fn of(returned: i32) -> DpdkErrno {
        DpdkErrno(returned.saturating_abs())
    }

    /// Returns whether the driver does not support the function.
    pub fn is_unsupported(self) -> bool {
        [libc::ENOTSUP, libc::EOPNOTSUPP, libc::ENOSYS].contains(&self.0)
    }
}

impl fmt::Display for DpdkErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("it gave no reason");
        }
        write!(f, "{} (error {})", error_text(self.0), self.0)
    }
}

impl fmt::Debug for DpdkErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The step of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigureStage {
    /// The port with its number of queues and offloads.
    Device,
    /// The largest packet.
    Mtu,
    /// A receive queue.
    ReceiveQueue,
    /// A transmit queue.
    TransmitQueue,
    /// The start of the port.
    Start,
    /// Interrupts of a receive queue.
    Interrupt,
}

impl fmt::Display for ConfigureStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConfigureStage::Device => "its queues and offloads",
            ConfigureStage::Mtu => "its MTU",
            ConfigureStage::ReceiveQueue => "a receive queue",
            ConfigureStage::TransmitQueue => "a transmit queue",
            ConfigureStage::Start => "its start",
            ConfigureStage::Interrupt => "those of a receive queue",
        })
    }
}

/// The reason why DPDK, or a part of it, cannot be used.
#[derive(Debug, Error)]
pub enum DpdkError {
    /// A second start.
    #[error("DPDK was started in this process before: it starts once in a process's life")]
    StartedBefore,
    /// An argument that is not one for DPDK.
    #[error("DPDK's argument {0:?} cannot be used here: {1}")]
    Argument(String, &'static str),
    /// DPDK did not start.
    #[error("DPDK does not start with the arguments {arguments:?}: {code}; {hint}")]
    Start {
        /// The arguments.
        arguments: Vec<String>,
        /// DPDK's answer.
        code: DpdkErrno,
        /// Advice.
        hint: &'static str,
    },
    /// DPDK found another process with the same memory, and attached itself to that.
    #[error(
        "another process uses DPDK's --file-prefix, and each server is a primary process of its own: leave --proc-type out, and name another prefix"
    )]
    Secondary,
    /// The system provided no thread for it.
    #[error("cannot start DPDK's thread: {0}")]
    Thread(std::io::Error),
    /// No such port.
    #[error("DPDK has no port {requested:?}; it has: {present}")]
    NoPort {
        /// The name or number asked for.
        requested: String,
        /// The ports that exist.
        present: String,
    },
    /// The port is open in this process already.
    #[error("DPDK's port {0} is open already")]
    PortInUse(u16),
    /// More queues than the device has.
    #[error(
        "port {port} has {most} queues in each direction, and {requested} workers need one each: run fewer workers"
    )]
    Queues {
        /// The port.
        port: u16,
        /// Queues asked for.
        requested: u16,
        /// Queues that the port has.
        most: u16,
    },
    /// Two ports of this process could not be connected.
    #[error("cannot connect two ports of the name {name:?}: {code}; a name is used once in a process")]
    RingPair {
        /// The name.
        name: String,
        /// DPDK's answer.
        code: DpdkErrno,
    },
    /// No memory for packets.
    #[error(
        "no memory for {mbufs} packets of {data_bytes} bytes: {code}; give DPDK more (hugepages, or `-m` in --eal)"
    )]
    Pool {
        /// Number of packets.
        mbufs: u32,
        /// Bytes of each.
        data_bytes: u32,
        /// DPDK's answer.
        code: DpdkErrno,
    },
    /// The device refused its configuration.
    #[error("port {port} refuses {stage}: {code}")]
    Configure {
        /// The port.
        port: u16,
        /// The refused step.
        stage: ConfigureStage,
        /// The driver's answer.
        code: DpdkErrno,
    },
    /// The device cannot be shared with the kernel.
    #[error("port {port} cannot be shared with the kernel (isolate): {}", .why.words())]
    Isolation {
        /// The port.
        port: u16,
        /// The driver's answer.
        why: FlowError,
    },
    /// The device does not describe itself.
    #[error("cannot query the capabilities of port {port}: {code}")]
    Info {
        /// The port.
        port: u16,
        /// The driver's answer.
        code: DpdkErrno,
    },
}

/// The reason why no interrupt wakes the workers of a device.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InterruptsUnavailable {
    /// The options did not ask for them.
    #[error("workers never sleep")]
    NotRequested,
    /// The driver is known to have none.
    #[error("its driver has no interrupts")]
    Driver,
    /// The port refused them.
    #[error("with interrupts the port refused {stage}: {code}")]
    Refused {
        /// The refused step.
        stage: ConfigureStage,
        /// The driver's answer.
        code: DpdkErrno,
    },
    /// Several queues share one descriptor: a thread that reads it would take the event from the others.
    #[error("its queues share one interrupt")]
    Shared,
    /// The system provided no descriptor for them.
    #[error("no file descriptor is left to wait for one")]
    Descriptor,
    /// Interrupts worked at first and then failed: see [`InterruptFault`].
    #[error("given up: {0}")]
    Faulty(InterruptFault),
}

/// The part of a flow rule that a driver refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulePart {
    /// The driver does not say, or supports no rules at all.
    Unspecified,
    /// The rule as such.
    Rule,
    /// Group, priority or direction.
    Attributes,
    /// The match on packets.
    Pattern,
    /// The action for matching packets.
    Action,
    /// The state of the device, such as stopped.
    State,
}

/// The reason why a flow rule was refused.
#[derive(Clone, Debug, Error)]
#[error("the driver refuses the rule ({part:?}): {}", self.words())]
pub struct FlowError {
    /// The refused part.
    pub part: RulePart,
    /// The driver's answer.
    pub code: DpdkErrno,
    /// The driver's message, if it has any.
    pub message: String,
}

impl FlowError {
    /// Returns the number's meaning, and the driver's own message.
    pub(super) fn words(&self) -> String {
        let FlowError { code, message, .. } = self;
        if message.is_empty() { code.to_string() } else { format!("{code}: {message}") }
    }
}
