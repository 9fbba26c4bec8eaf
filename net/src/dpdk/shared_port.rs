//! One port for several connections of a client, perhaps on several threads. A connection that polls has the port for
//! that time, and reads the frames in the port's buffers; the stack hands over those of other connections.

use super::{MergedPort, RxBuffer};
use crate::driver::ReceivePressure;
use crate::stack::{FramePort, MacAddress, PortOffloads, RxFrame, TxFrame};

/// A connection's view of a port: the port itself during its turn, else one without any frames.
#[derive(Debug)]
pub(super) struct SharedPort {
    port: Option<Box<MergedPort>>,
}

impl SharedPort {
    pub(super) fn new(port: Option<Box<MergedPort>>) -> SharedPort {
        SharedPort { port }
    }

    /// Begins a turn with the port.
    pub(super) fn give(&mut self, port: Option<Box<MergedPort>>) {
        self.port = port;
    }

    /// Ends the turn: the frames that it has received are gone for it.
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
