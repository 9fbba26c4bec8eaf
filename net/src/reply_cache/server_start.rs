//! Recognises messages that were meant for an earlier start of the server.

use super::name::{ReplySessionId, bound_server_start};
use hashbrown::{DefaultHashBuilder, HashMap, HashSet};
use std::hash::BuildHasher;

/// Sessions bound to no start that are known to have greeted this one, 8 bytes each.
const MAX_HELLO_SESSIONS: usize = 65_536;
/// The most for one tenant: one that says hello without end takes no other tenant's room.
const MAX_HELLO_SESSIONS_PER_TENANT: usize = MAX_HELLO_SESSIONS / 8;

/// This start of the server. The default one takes every message for its own.
#[derive(Debug, Default)]
pub(super) struct ServerStart {
    /// The number that bound sessions have to name; 0: any.
    number: u32,
    /// The time until which a session that is bound to no start may be one of the server before.
    previous_start_until_us: u64,
    /// Digests of such sessions that have said hello to this server.
    greeted: HashSet<u64>,
    /// Number of them for each tenant.
    per_tenant: HashMap<u32, usize>,
    hasher: DefaultHashBuilder,
}

impl ServerStart {
    pub(super) fn new(number: u32, previous_start_until_us: u64) -> ServerStart {
        ServerStart { number, previous_start_until_us, ..ServerStart::default() }
    }

    /// A session says hello to this server.
    pub(super) fn greet(&mut self, now_us: u64, name: ReplySessionId, sequence: u64) {
        if now_us >= self.previous_start_until_us
            || bound_server_start(sequence) != 0
            || self.greeted.len() >= MAX_HELLO_SESSIONS
        {
            return;
        }
        let of_tenant = self.per_tenant.entry(name.tenant).or_default();
        if *of_tenant < MAX_HELLO_SESSIONS_PER_TENANT && self.greeted.insert(self.hasher.hash_one(name)) {
            *of_tenant += 1;
        }
    }

    /// Returns whether a message is bound to another start.
    #[inline]
    pub(super) fn is_other_start(&self, sequence: u64) -> bool {
        let bound_to = bound_server_start(sequence);
        bound_to != 0 && bound_to != self.number && self.number != 0
    }

    /// Returns whether an unknown session that is bound to no start may be of an earlier one: it acknowledges answers.
    #[inline]
    pub(super) fn may_be_previous_start(&self, now_us: u64, name: &ReplySessionId, sequence: u64, acked: u64) -> bool {
        let doubtful = now_us < self.previous_start_until_us && bound_server_start(sequence) == 0 && acked > 0;
        doubtful && !self.greeted.contains(&self.hasher.hash_one(name))
    }

    /// Forgets what matters no more.
    pub(super) fn age(&mut self, now_us: u64) {
        if now_us >= self.previous_start_until_us {
            (self.greeted, self.per_tenant) = Default::default();
        }
    }
}
