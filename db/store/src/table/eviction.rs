//! The eviction order of one stripe of a cache table: S3-FIFO with one-bit counters.
//!
//! New keys enter the small queue, a tenth of all. A key that leaves it unread is evicted and leaves its fingerprint in
//! the ghost. A key that was read moves to the main queue, as does one that comes back while its fingerprint is there.
//! The main queue gives another turn to keys that were read since their last one. So one-hit wonders leave first, and a
//! scan flushes nothing.
//!
//! Queues hold hashes, not pointers: an entry whose record is gone, or is in the other queue, is stale and skipped.
//! Inserts and deletes without eviction would accumulate stale entries, so an insert checks two entries when there are
//! too many.

use std::collections::VecDeque;

const BLOCK_HASHES: usize = 256;

/// A queue of hashes in blocks: growing it never copies it.
#[derive(Default)]
struct HashFifo {
    blocks: VecDeque<Vec<u64>>,
    /// Entries already taken from the first block.
    taken: usize,
    len: usize,
}

impl HashFifo {
    fn push(&mut self, hash: u64) {
        match self.blocks.back_mut() {
            Some(block) if block.len() < BLOCK_HASHES => block.push(hash),
            _ => {
                // The first block of a small queue stays small.
                let mut block = Vec::with_capacity(if self.blocks.is_empty() { 4 } else { BLOCK_HASHES });
                block.push(hash);
                self.blocks.push_back(block);
            }
        }
        self.len += 1;
    }

    fn pop(&mut self) -> Option<u64> {
        let block = self.blocks.front()?;
        let hash = block.get(self.taken).copied()?;
        self.taken += 1;
        self.len -= 1;
        if self.taken == block.len() {
            self.blocks.pop_front();
            self.taken = 0;
        }
        Some(hash)
    }
}

/// The queues of one stripe; empty and unused in store mode.
#[derive(Default)]
pub(super) struct EvictionQueues {
    small: HashFifo,
    main: HashFifo,
    /// Fingerprints of the keys that left the small queue, each in a slot that its hash chooses. A new one overwrites
    /// an old one, so that they stay about as long as the queue is.
    ghost: Vec<u16>,
}

/// The queue that an entry is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionQueue {
    Small,
    Main,
}

impl EvictionQueues {
    /// Returns the queue that a new key enters.
    pub(super) fn admit(&mut self, hash: u64) -> EvictionQueue {
        let queue = if self.take_ghost(hash) { EvictionQueue::Main } else { EvictionQueue::Small };
        self.push(queue, hash);
        queue
    }

    pub(super) fn push(&mut self, queue: EvictionQueue, hash: u64) {
        match queue {
            EvictionQueue::Small => self.small.push(hash),
            EvictionQueue::Main => self.main.push(hash),
        }
    }

    /// Returns the next candidate: from the small queue while that holds more than a tenth of all entries.
    pub(super) fn pop(&mut self) -> Option<(u64, EvictionQueue)> {
        let small_is_full = self.small.len * 10 > self.len();
        if small_is_full || self.main.len == 0 {
            self.small.pop().map(|hash| (hash, EvictionQueue::Small))
        } else {
            self.main.pop().map(|hash| (hash, EvictionQueue::Main))
        }
    }

    /// Returns the oldest entry of the longer queue, to check whether it is stale.
    pub(super) fn pop_longer(&mut self) -> Option<(u64, EvictionQueue)> {
        if self.small.len >= self.main.len {
            self.small.pop().map(|hash| (hash, EvictionQueue::Small))
        } else {
            self.main.pop().map(|hash| (hash, EvictionQueue::Main))
        }
    }

    /// Returns the number of entries, stale ones included.
    pub(super) fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    /// Notes a key that left unread.
    pub(super) fn remember(&mut self, hash: u64) {
        if self.ghost.len() < self.len() {
            // Doubling clears the notes; that costs a few keys another turn in the small queue.
            self.ghost = vec![0; (self.len() * 2).next_power_of_two()];
        }
        if let Some((slot_of, print)) = self.slot_of(hash) {
            self.ghost[slot_of] = print;
        }
    }

    fn take_ghost(&mut self, hash: u64) -> bool {
        match self.slot_of(hash) {
            Some((slot_of, print)) if self.ghost[slot_of] == print => {
                self.ghost[slot_of] = 0;
                true
            }
            _ => false,
        }
    }

    /// Returns slot and fingerprint (never 0), from bits that the stripe does not fix.
    fn slot_of(&self, hash: u64) -> Option<(usize, u16)> {
        let mask = self.ghost.len().checked_sub(1)?;
        Some(((hash >> 16) as usize & mask, hash as u16 | 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_keeps_its_order_over_blocks() {
        let mut fifo = HashFifo::default();
        let mut expected = 0;
        for hash in 0..5_000u64 {
            fifo.push(hash);
            if hash % 3 == 0 {
                assert_eq!(fifo.pop(), Some(expected));
                expected += 1;
            }
        }
        while let Some(hash) = fifo.pop() {
            assert_eq!(hash, expected);
            expected += 1;
        }
        assert_eq!((expected, fifo.len), (5_000, 0));
    }

    #[test]
    fn a_key_that_left_unread_comes_back_to_the_main_queue() {
        let mut queues = EvictionQueues::default();
        let hash = 0xabcd_ef01_2345_6789;
        assert_eq!(queues.admit(hash), EvictionQueue::Small);
        assert_eq!(queues.pop(), Some((hash, EvictionQueue::Small)));
        queues.push(EvictionQueue::Main, 1);
        queues.remember(hash);
        assert_eq!(queues.admit(hash), EvictionQueue::Main);
        assert_eq!(queues.admit(hash), EvictionQueue::Small, "once only");
    }
}
