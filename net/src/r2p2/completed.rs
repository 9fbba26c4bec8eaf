//! Requests of several packets that are complete: a repeated packet of one is answered with an ack, or the response,
//! and not by a second transfer.

use super::outgoing::MessageKey;
use crate::limits::{COMPLETED_REPLAYS, ServerLimits};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// One of them.
#[derive(Debug)]
pub(super) struct CompletedRequest {
    pub(super) incarnation: u32,
    /// Its packets.
    pub(super) count: u16,
    at_us: u64,
    /// The response, once it is known and if it fits one packet.
    pub(super) response: Option<Vec<u8>>,
    /// Times that the response may still be sent.
    left: u32,
}

impl CompletedRequest {
    /// Counts that the response is sent once more; returns whether that was the last time.
    pub(super) fn consume_replay(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

/// See the module. Bounded in number and time.
#[derive(Debug, Default)]
pub(super) struct CompletedRequests {
    of: HashMap<MessageKey, CompletedRequest>,
    /// The time at which each became complete.
    order: VecDeque<(MessageKey, u64)>,
}

impl CompletedRequests {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    pub(super) fn get_mut(&mut self, key: &MessageKey) -> Option<&mut CompletedRequest> {
        self.of.get_mut(key)
    }

    pub(super) fn remove(&mut self, key: &MessageKey) {
        self.of.remove(key);
    }

    /// Remembers a complete request of so many packets. The oldest is forgotten for it if the table is full.
    pub(super) fn remember(
        &mut self,
        now_us: u64,
        key: MessageKey,
        (incarnation, count): (u32, u16),
        limits: &ServerLimits,
    ) {
        while self.of.len() >= limits.completed.max(1) {
            let Some((oldest, at_us)) = self.order.pop_front() else { break };
            self.forget(&oldest, at_us);
        }
        if self.order.len() > 2 * limits.completed.max(32) {
            // Entries that were forgotten out of order are dropped before they pile up.
            let live = &self.of;
            self.order.retain(|(key, at_us)| live.get(key).is_some_and(|entry| entry.at_us == *at_us));
        }
        let completed = CompletedRequest { incarnation, count, at_us: now_us, response: None, left: COMPLETED_REPLAYS };
        self.of.insert(key, completed);
        self.order.push_back((key, now_us));
    }

    fn forget(&mut self, key: &MessageKey, at_us: u64) {
        if self.of.get(key).is_some_and(|entry| entry.at_us == at_us) {
            self.of.remove(key);
        }
    }

    /// Keeps the response to one that is still remembered.
    #[cold]
    pub(super) fn store_response(&mut self, key: &MessageKey, response: [&[u8]; 2]) {
        if let Some(completed) = self.of.get_mut(key) {
            completed.response = Some(response.concat());
        }
    }

    /// Forgets those that are older than `timeout_us`. Returns when the next one will be, if there is one.
    pub(super) fn expire(&mut self, now_us: u64, timeout_us: u64) -> Option<u64> {
        while let Some((key, at_us)) = self.order.front().copied() {
            let ends_us = at_us + timeout_us;
            if ends_us > now_us {
                return Some(ends_us);
            }
            self.order.pop_front();
            self.forget(&key, at_us);
        }
        None
    }
}
