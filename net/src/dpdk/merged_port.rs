//! Several queue pairs as one port, for a client that is one thread.

use super::{QueuePair, RxBuffer};
use crate::driver::ReceivePressure;
use crate::limits::BURST;
use crate::stack::{FramePort, MacAddress, PortOffloads, RxFrame, TxFrame};

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// All queue pairs of a port, used by one thread. Frames for the server's worker `n` leave on queue `n`; over a direct
/// link they arrive at that worker.
#[derive(Debug)]
pub struct MergedPort {
    queues: Vec<QueuePair>,
    /// Frames of the last receive: the queue, and the number there.
    received: [(u8, u8); BURST],
    count: usize,
    /// The queue that is polled first.
    first: usize,
    /// The UDP port of the server's first worker.
    server_port: u16,
}

impl MergedPort {
    /// Merges these queues of one port, towards a server whose first worker has this UDP port. None without queues.
    pub fn new(queues: Vec<QueuePair>, server_port: u16) -> Option<MergedPort> {
        let some = !queues.is_empty() && queues.len() <= usize::from(u8::MAX);
        some.then(|| MergedPort { queues, received: [(0, 0); BURST], count: 0, first: 0, server_port })
    }

    /// Returns the queue that a frame leaves on.
    fn tx_queue(&self, frame: &TxFrame<'_>) -> usize {
        let at = ETHERNET + frame.ip_header_len + 2;
        let Some([high, low]) = frame.header.get(at..at + 2).filter(|_| frame.ip_header_len > 0) else { return 0 };
        usize::from(u16::from_be_bytes([*high, *low]).wrapping_sub(self.server_port)) % self.queues.len()
    }

    fn main(&self) -> Option<&QueuePair> {
        self.queues.first()
    }
}

impl FramePort for MergedPort {
    type Shared = RxBuffer;

    fn mac(&self) -> MacAddress {
        self.main().map_or(MacAddress::ZERO, FramePort::mac)
    }

    fn mtu(&self) -> usize {
        self.main().map_or(0, FramePort::mtu)
    }

    fn offload(&self) -> PortOffloads {
        self.main().map(FramePort::offload).unwrap_or_default()
    }

    fn listen(&mut self, groups: &[MacAddress]) -> bool {
        let deaf = self.queues.iter_mut().filter_map(|queue| (!queue.listen(groups)).then_some(())).count();
        deaf == 0
    }

    fn receive(&mut self, most: usize) -> usize {
        self.count = 0;
        let (most, queues) = (most.min(BURST), self.queues.len());
        for step in 0..queues {
            let which = (self.first + step) % queues;
            // A queue that is not polled releases its earlier frames, too.
            let room = most - self.count;
            let received_now = self.queues.get_mut(which).map_or(0, |queue| queue.receive(room));
            for (index, slot) in self.received.iter_mut().skip(self.count).take(received_now).enumerate() {
                *slot = (which as u8, index as u8);
            }
            self.count += received_now;
        }
        self.first = (self.first + 1) % queues.max(1);
        self.count
    }

    fn frame(&self, index: usize) -> Option<RxFrame<'_>> {
        let (queue, index) = *self.received.get(..self.count)?.get(index)?;
        self.queues.get(usize::from(queue))?.frame(usize::from(index))
    }

    fn worth_taking(&self) -> usize {
        self.main().map_or(usize::MAX, FramePort::worth_taking)
    }

    fn take(&mut self, index: usize) -> Option<RxBuffer> {
        let (queue, index) = *self.received.get(..self.count)?.get(index)?;
        self.queues.get_mut(usize::from(queue))?.take(usize::from(index))
    }

    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> usize {
        let mut done = 0;
        while let Some(first) = frames.get(done) {
            let queue = self.tx_queue(first);
            let rest = frames.get(done..).unwrap_or_default();
            let run = rest.iter().take_while(|frame| self.tx_queue(frame) == queue).count();
            let Some(port) = self.queues.get_mut(queue) else { break };
            let sent = port.transmit(rest.get(..run).unwrap_or_default());
            done += sent;
            if sent < run {
                break;
            }
        }
        done
    }

    fn pressure(&mut self) -> ReceivePressure {
        self.queues.iter_mut().map(FramePort::pressure).fold(ReceivePressure::default(), |sum, one| ReceivePressure {
            filled: sum.filled.max(one.filled),
            thrown_away: sum.thrown_away + one.thrown_away,
        })
    }

    fn send_errors(&self) -> u64 {
        self.queues.iter().map(FramePort::send_errors).sum()
    }
}
