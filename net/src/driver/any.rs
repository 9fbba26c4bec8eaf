//! A driver of any kind.

use super::socket_filter::BpfInstruction;
use super::{Burst, DatagramDriver, DriverCounters, DriverWaiter, DriverWaker, Outbox, ReceivePressure, UdpDriver};
use crate::r2p2::PeerAddr;

/// A driver of any kind. Kernel sockets, the usual one, are called directly and not through a pointer.
pub enum AnyDriver {
    /// A kernel socket.
    Udp(Box<UdpDriver>),
    /// Something else.
    Other(Box<dyn DatagramDriver>),
}

impl AnyDriver {
    /// Any other kind than a kernel socket.
    pub fn other(driver: impl DatagramDriver + 'static) -> AnyDriver {
        AnyDriver::Other(Box::new(driver))
    }
}

impl From<UdpDriver> for AnyDriver {
    fn from(driver: UdpDriver) -> AnyDriver {
        AnyDriver::Udp(Box::new(driver))
    }
}

impl std::fmt::Debug for AnyDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AnyDriver({})", self.local())
    }
}

/// Source of drivers for clients that do not use the kernel's.
pub trait DriverFactory: Send + Sync + std::fmt::Debug {
    /// Returns a driver to talk to a server with. It serves one connection at a time; a dropped one may be given out
    /// again.
    ///
    /// # Errors
    /// The reason why there is none, and advice.
    fn open(&self) -> Result<AnyDriver, String>;
}

/// Calls a method of whichever it is.
macro_rules! each {
    ($any:expr, $driver:ident => $call:expr) => {
        match $any {
            AnyDriver::Udp($driver) => $call,
            AnyDriver::Other($driver) => $call,
        }
    };
}

impl DatagramDriver for AnyDriver {
    fn local(&self) -> PeerAddr {
        each!(self, driver => driver.local())
    }

    fn burst(&self) -> Burst {
        each!(self, driver => driver.burst())
    }

    #[inline]
    fn receive(&mut self, burst: &mut Burst) -> usize {
        each!(self, driver => driver.receive(burst))
    }

    #[inline]
    fn transmit(&mut self, outbox: &mut Outbox) -> usize {
        each!(self, driver => driver.transmit(outbox))
    }

    fn may_sleep(&mut self) -> bool {
        each!(self, driver => driver.may_sleep())
    }

    fn waiter(&self) -> DriverWaiter {
        each!(self, driver => driver.waiter())
    }

    fn waker(&self) -> DriverWaker {
        each!(self, driver => driver.waker())
    }

    fn pressure(&mut self) -> ReceivePressure {
        each!(self, driver => driver.pressure())
    }

    fn set_filter(&mut self, program: &[BpfInstruction]) -> bool {
        each!(self, driver => driver.set_filter(program))
    }

    fn counters(&self) -> DriverCounters {
        each!(self, driver => driver.counters())
    }

    fn max_datagram(&self) -> usize {
        each!(self, driver => driver.max_datagram())
    }

    fn usual_datagram(&self) -> usize {
        each!(self, driver => driver.usual_datagram())
    }

    fn outbox(&self) -> Outbox {
        each!(self, driver => driver.outbox())
    }

    fn details(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each!(self, driver => driver.details(each))
    }
}
