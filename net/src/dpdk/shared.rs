//! One port for several connections of a client, each on a thread of its own perhaps: whoever looks takes what has come, and the stack hands
//! over what is another's.

use super::{Held, Merged};
use crate::driver::Pressure;
use crate::limits::BURST;
use crate::stack::{FramePort, InFrame, Mac, Offload, OutFrame};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A share of a port. Its frames are copied, since the port's own are gone when another share receives.
#[derive(Debug)]
pub(super) struct SharedPort {
    port: Arc<Mutex<Merged>>,
    bytes: Vec<u8>,
    frames: Vec<(Range<usize>, InFrame<'static>)>,
}

impl SharedPort {
    pub(super) fn new(port: Arc<Mutex<Merged>>) -> SharedPort {
        SharedPort { port, bytes: Vec::new(), frames: Vec::with_capacity(BURST) }
    }

    fn port(&self) -> MutexGuard<'_, Merged> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FramePort for SharedPort {
    type Shared = Held;

    fn mac(&self) -> Mac {
        self.port().mac()
    }

    fn mtu(&self) -> usize {
        self.port().mtu()
    }

    fn offload(&self) -> Offload {
        self.port().offload()
    }

    fn listen(&mut self, groups: &[Mac]) -> bool {
        self.port().listen(groups)
    }

    fn receive(&mut self, most: usize) -> usize {
        self.bytes.clear();
        self.frames.clear();
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let count = port.receive(most.min(BURST));
        for frame in (0..count).filter_map(|index| port.frame(index)) {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(frame.bytes);
            self.frames.push((start..self.bytes.len(), InFrame { bytes: &[], ..frame }));
        }
        count
    }

    fn frame(&self, index: usize) -> Option<InFrame<'_>> {
        let (place, about) = self.frames.get(index)?;
        Some(InFrame { bytes: self.bytes.get(place.clone())?, ..*about })
    }

    fn transmit(&mut self, frames: &[OutFrame<'_, Held>]) -> usize {
        self.port().transmit(frames)
    }

    fn pressure(&mut self) -> Pressure {
        self.port().pressure()
    }

    fn send_errors(&self) -> u64 {
        self.port().send_errors()
    }
}
