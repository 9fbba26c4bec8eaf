//! Datagrams that wait for their neighbour's address, and frames that wait for room in the port.

use crate::limits::{CONTROL_FRAMES, PROBE_FRAMES, UNRESOLVED_BYTES, UNRESOLVED_DATAGRAMS, UNRESOLVED_PER_NEIGHBOUR};
use crate::r2p2::PeerAddr;
use std::collections::VecDeque;
use std::net::IpAddr;

/// A datagram that waits.
#[derive(Debug)]
pub(super) struct UnresolvedDatagram {
    pub(super) hop: IpAddr,
    pub(super) peer: PeerAddr,
    pub(super) payload: Vec<u8>,
}

/// Datagrams that wait for neighbours.
#[derive(Debug, Default)]
pub(super) struct UnresolvedQueue {
    list: Vec<UnresolvedDatagram>,
    bytes: usize,
    /// The generation of the neighbour table that was last looked at.
    pub(super) seen: u64,
    /// The time of the next look if the table has not changed.
    pub(super) due_us: u64,
}

impl UnresolvedQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a datagram. Returns false if too many wait.
    pub(super) fn push(&mut self, hop: IpAddr, peer: PeerAddr, payload: [&[u8]; 2]) -> bool {
        let same = self.list.iter().filter(|waiting| waiting.hop == hop).count();
        let len = payload.map(<[u8]>::len).iter().sum::<usize>();
        if self.list.len() >= UNRESOLVED_DATAGRAMS
            || same >= UNRESOLVED_PER_NEIGHBOUR
            || self.bytes + len > UNRESOLVED_BYTES
        {
            return false;
        }
        self.bytes += len;
        self.list.push(UnresolvedDatagram { hop, peer, payload: payload.concat() });
        true
    }

    /// Removes all datagrams. [`UnresolvedQueue::put_back`] puts back those that wait on.
    pub(super) fn take(&mut self) -> Vec<UnresolvedDatagram> {
        self.bytes = 0;
        std::mem::take(&mut self.list)
    }

    /// Puts a datagram back that waits on.
    pub(super) fn put_back(&mut self, waiting: UnresolvedDatagram) {
        self.bytes += waiting.payload.len();
        self.list.push(waiting);
    }
}

/// Frames that wait for the port, each in a reused buffer.
#[derive(Debug, Default)]
pub(super) struct FrameQueue {
    pub(super) frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl FrameQueue {
    /// Returns whether there is room for a further frame of the stack itself.
    pub(super) fn has_room(&self) -> bool {
        self.frames.len() < CONTROL_FRAMES - PROBE_FRAMES
    }

    /// Returns whether there is room for a question to a neighbour.
    pub(super) fn has_room_for_probe(&self) -> bool {
        self.frames.len() < CONTROL_FRAMES
    }

    /// Returns whether there is room for all datagrams that have waited.
    pub(super) fn has_room_for_unresolved(&self) -> bool {
        self.frames.len() <= CONTROL_FRAMES
    }

    /// Appends the frame that `write` writes. An empty frame is left out.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        write(&mut frame);
        if frame.is_empty() { self.spare.push(frame) } else { self.frames.push_back(frame) }
    }

    /// Removes the first `count` frames, which have left.
    pub(super) fn advance(&mut self, count: usize) {
        for frame in self.frames.drain(..count.min(self.frames.len())) {
            if self.spare.len() < CONTROL_FRAMES {
                self.spare.push(frame);
            }
        }
    }
}
