//! Datagrams that came to the wrong worker: put into the right worker's inbox, a burst at a time.

use crate::driver::DriverWaker;
use crate::limits::{HANDOVER_BYTES, HANDOVER_DATAGRAMS};
use crate::r2p2::PeerAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

/// Datagrams in one buffer, one after the other.
#[derive(Debug, Default)]
pub(super) struct HandoverBatch {
    bytes: Vec<u8>,
    list: Vec<(PeerAddr, u32, u32)>,
    /// The number of datagrams that were taken out.
    taken: usize,
}

impl HandoverBatch {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.list.len()
    }

    /// Appends a datagram. Returns false if there is no room.
    pub(super) fn push(&mut self, peer: PeerAddr, datagram: &[u8]) -> bool {
        if self.list.len() >= HANDOVER_DATAGRAMS || self.bytes.len() + datagram.len() > HANDOVER_BYTES {
            return false;
        }
        self.list.push((peer, self.bytes.len() as u32, datagram.len() as u32));
        self.bytes.extend_from_slice(datagram);
        true
    }

    /// Removes the next datagram if `take` accepts it.
    pub(super) fn pop(&mut self, take: impl FnOnce(PeerAddr, &[u8]) -> bool) -> bool {
        let Some((peer, start, len)) = self.list.get(self.taken).copied() else { return false };
        let bytes = self.bytes.get(start as usize..(start + len) as usize).unwrap_or_default();
        if !take(peer, bytes) {
            return false;
        }
        self.taken += 1;
        if self.is_empty() {
            self.clear();
        }
        true
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.list.clear();
        self.taken = 0;
    }
}

/// Where other workers put the datagrams for this one. Its owner reads one word to know whether there are any.
#[derive(Debug, Default)]
pub(super) struct HandoverInbox {
    count: AtomicUsize,
    /// The owner has found nothing and may sleep.
    idle: AtomicBool,
    /// The owner waits for changes of the neighbour table.
    awaits_neighbours: AtomicBool,
    waker: OnceLock<DriverWaker>,
    queue: Mutex<HandoverBatch>,
}

impl HandoverInbox {
    /// Makes a worker the owner. Returns false if there is one already.
    pub(super) fn own(&self, waker: DriverWaker) -> bool {
        self.waker.set(waker).is_ok()
    }

    /// Puts all of `batch` in and empties it. Returns how many datagrams there was no room for.
    pub(super) fn put(&self, batch: &mut HandoverBatch) -> usize {
        let mut lost = 0;
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            while batch.pop(|peer, datagram| {
                lost += usize::from(!queue.push(peer, datagram));
                true
            }) {}
            self.count.store(queue.list.len(), SeqCst);
        }
        self.wake_owner();
        lost
    }

    /// Wakes the owner if it may be asleep.
    fn wake_owner(&self) {
        if self.idle.swap(false, SeqCst)
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
    }

    /// Takes all datagrams out, into an empty batch. Takes nothing while another worker has the lock: the inbox is
    /// about to be fuller.
    pub(super) fn take(&self, into: &mut HandoverBatch) {
        if self.count.load(SeqCst) == 0 || !into.is_empty() {
            return;
        }
        let mut queue = match self.queue.try_lock() {
            Ok(queue) => queue,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        into.clear();
        std::mem::swap(&mut *queue, into);
        self.count.store(0, SeqCst);
    }

    /// Marks the owner as idle. Returns false if a datagram has come meanwhile.
    #[inline]
    pub(super) fn rest(&self) -> bool {
        // An owner that polls repeatedly has set it before.
        if !self.idle.load(SeqCst) {
            self.idle.store(true, SeqCst);
        }
        if self.count.load(SeqCst) == 0 {
            return true;
        }
        self.idle.store(false, SeqCst);
        false
    }

    /// Sets whether the owner waits for changes of the neighbour table.
    pub(super) fn set_awaits_neighbours(&self, awaits_neighbours: bool) {
        self.awaits_neighbours.store(awaits_neighbours, SeqCst);
    }

    /// Wakes the owner if it waits for changes of the neighbour table.
    pub(super) fn notify_neighbour_change(&self) {
        if self.awaits_neighbours.load(SeqCst) {
            self.wake_owner();
        }
    }
}
