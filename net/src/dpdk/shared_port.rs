//! One port for several connections of a client, each on a thread of its own perhaps: whoever looks has the port as
//! long as it looks, and takes what has come where it lies; the stack hands over what is another's.

use super::{MergedPort, RxBuffer};
use crate::driver::ReceivePressure;
use crate::stack::{FramePort, MacAddress, PortOffloads, RxFrame, TxFrame};

/// A share of a port: the port itself while it is this one's turn, else one to which nothing comes and from which
/// nothing leaves.
#[derive(Debug)]
pub(super) struct SharedPort {
    port: Option<Box<MergedPort>>,
}

impl SharedPort {
    pub(super) fn new(port: Option<Box<MergedPort>>) -> SharedPort {
        SharedPort { port }
    }

    /// Its turn begins.
    pub(super) fn give(&mut self, port: Option<Box<MergedPort>>) {
        self.port = port;
    }

    /// Its turn ends: frames that it has received are gone for it.
    pub(super) fn take_back(&mut self) -> Option<Box<MergedPort>> {
        self.port.take()
    }

    fn port(&self) -> Option<&MergedPort> {
        self.port.as_deref()
    }
}

impl FramePort for SharedPort {
    type Shared = RxBuffer;

    fn mac(&self) -> MacAddress {
        self.port().map_or(MacAddress::ZERO, FramePort::mac)
    }

    fn mtu(&self) -> usize {
        self.port().map_or(0, FramePort::mtu)
    }

    fn offload(&self) -> PortOffloads {
        self.port().map(FramePort::offload).unwrap_or_default()
    }

    fn listen(&mut self, groups: &[MacAddress]) -> bool {
        self.port.as_mut().is_some_and(|port| port.listen(groups))
    }

    fn receive(&mut self, most: usize) -> usize {
        self.port.as_mut().map_or(0, |port| port.receive(most))
    }

    fn frame(&self, index: usize) -> Option<RxFrame<'_>> {
        self.port()?.frame(index)
    }

    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> usize {
        self.port.as_mut().map_or(0, |port| port.transmit(frames))
    }

    fn pressure(&mut self) -> ReceivePressure {
        self.port.as_mut().map(|port| port.pressure()).unwrap_or_default()
    }

    fn send_errors(&self) -> u64 {
        self.port().map_or(0, FramePort::send_errors)
    }
}
