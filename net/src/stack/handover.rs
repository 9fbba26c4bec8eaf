//! Datagrams that came to another worker than theirs: put into that worker's inbox, a burst at a time.

use crate::driver::DriverWaker;
use crate::limits::{HANDOVER_BYTES, HANDOVER_DATAGRAMS};
use crate::r2p2::PeerAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

/// Datagrams behind each other.
#[derive(Debug, Default)]
pub(super) struct HandoverBatch {
    bytes: Vec<u8>,
    list: Vec<(PeerAddr, u32, u32)>,
    /// How many of the list were taken out.
    taken: usize,
}

impl HandoverBatch {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.list.len()
    }

    /// Puts one in. False if there is no room.
    pub(super) fn push(&mut self, peer: PeerAddr, datagram: &[u8]) -> bool {
        if self.list.len() >= HANDOVER_DATAGRAMS || self.bytes.len() + datagram.len() > HANDOVER_BYTES {
            return false;
        }
        self.list.push((peer, self.bytes.len() as u32, datagram.len() as u32));
        self.bytes.extend_from_slice(datagram);
        true
    }

    /// Takes the next one out, if `take` takes it.
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

/// Where other workers put what came for this one. Its owner looks at one word to know whether something is there.
#[derive(Debug, Default)]
pub(super) struct HandoverInbox {
    count: AtomicUsize,
    /// The owner has found nothing and may sleep.
    idle: AtomicBool,
    /// The owner waits for news of neighbours.
    awaits_neighbours: AtomicBool,
    waker: OnceLock<DriverWaker>,
    queue: Mutex<HandoverBatch>,
}

impl HandoverInbox {
    /// Makes a worker the owner. False if there is one.
    pub(super) fn own(&self, waker: DriverWaker) -> bool {
        self.waker.set(waker).is_ok()
    }

    /// Puts all of `batch` in and empties it. Returns how many there was no room for.
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
        self.rouse();
        lost
    }

    /// Ends the owner's sleep, if it may be asleep.
    fn rouse(&self) {
        if self.idle.swap(false, SeqCst)
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
    }

    /// Takes all out, into an empty batch. Nothing is taken while somebody else has the inbox: it is about to be
    /// fuller.
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

    /// The owner has found nothing. False if something has come meanwhile.
    #[inline]
    pub(super) fn rest(&self) -> bool {
        // Who looks again and again has said it before.
        if !self.idle.load(SeqCst) {
            self.idle.store(true, SeqCst);
        }
        if self.count.load(SeqCst) == 0 {
            return true;
        }
        self.idle.store(false, SeqCst);
        false
    }

    /// Whether the owner waits for news of neighbours.
    pub(super) fn set_awaits_neighbours(&self, awaits_neighbours: bool) {
        self.awaits_neighbours.store(awaits_neighbours, SeqCst);
    }

    /// There are news of neighbours.
    pub(super) fn tell(&self) {
        if self.awaits_neighbours.load(SeqCst) {
            self.rouse();
        }
    }
}
