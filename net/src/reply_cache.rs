//! At-most-once execution: remembers which requests of a session have run, and their answers.
//!
//! A request is named by peer, tenant, session and sequence (see [`crate::rpc`]). A session's window covers the
//! sequences above the highest that the client has said to be answered (`acked`). An answer in it is remembered until
//! `acked` passes it. A request below the window is [`RequestAdmission::Stale`].
//!
//! Memory is bounded: answers per session, bytes, sessions. A session that was evicted for room may come back with a
//! request that has run already. Its name is therefore kept as a tombstone for as long as a client may repeat a request
//! ([`ReplyCacheLimits::retry_lifetime_us`]) and answered as stale. So a session that is unknown and has no tombstone
//! is new, or so old that nothing of it is still being repeated. A new one may begin at any sequence, since its first
//! packet may be late.
//!
//! Tenants share that room fairly: a tenant that needs room takes it from the one that holds the most, which is itself
//! once it holds its part. So a tenant that opens sessions without end loses its own. When too many of those were lost
//! lately, only that tenant is refused new ones.
//!
//! A server that restarts forgets its sessions together with the records that their requests wrote. Requests that were
//! sent to the server before it must not run. A session is *bound* to one start of the server by the upper half of its
//! sequences, which the server tells with its hello. Messages that are bound to another start are
//! [`RequestAdmission::PreviousStart`]. A bound session is known by its number alone, not by its address. A session
//! that is bound to no start counts as one of the previous start if it acknowledges answers that this server has not
//! given. That ends when no client may repeat a request to the server before ([`ReplyCache::with_server_start`]).

use crate::limits::ReplyCacheLimits;
use crate::r2p2::PeerAddr;
use hashbrown::{DefaultHashBuilder, HashMap, HashSet};
use name::ReplySessionId;
pub use name::{bound_server_start, session_addr};
use owners::SessionOwners;
use server_start::ServerStart;
use std::hash::BuildHasher;

mod name;
mod owners;
mod server_start;

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestAdmission<'w> {
    /// It is new: run it, then [`ReplyCache::complete`] it (or [`ReplyCache::cancel`] it if it was not run).
    Execute,
    /// It was admitted and has not completed: its answer will go out, do nothing.
    InProgress,
    /// It has run: this was the answer.
    Replay(&'w [u8]),
    /// It is below the window, or its answer was forgotten: it may or may not have run.
    Stale,
    /// Its session belongs to an earlier start of the server: it is not run, but may have been before.
    PreviousStart,
}

/// A window's counters since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyCacheCounters {
    /// Requests admitted to run.
    pub admitted: u64,
    /// Repeated requests that were answered from the window.
    pub answered: u64,
    /// Repeated requests that were still running.
    pub running: u64,
    /// Requests refused as stale.
    pub stale: u64,
    /// Sessions evicted for room.
    pub sessions_evicted: u64,
    /// Answers forgotten for room (bytes).
    pub replies_evicted: u64,
    /// New sessions refused as stale because too many were evicted lately.
    pub sessions_refused: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyState {
    Empty,
    InProgress,
    Completed,
    Forgotten,
}

#[derive(Debug)]
struct ReplyEntry {
    sequence: u64,
    state: ReplyState,
    answer: Vec<u8>,
}

impl ReplyEntry {
    const fn empty() -> ReplyEntry {
        ReplyEntry { sequence: 0, state: ReplyState::Empty, answer: Vec::new() }
    }
}

const NO_SLOT: u32 = u32::MAX;
const INITIAL_RING_LEN: usize = 16;
/// One owner may have this part of the tombstones.
const TOMBSTONE_OWNER_DIVISOR: usize = 8;

#[derive(Debug)]
struct ReplySession {
    name: ReplySessionId,
    /// Every sequence up to this one is below the window.
    low: u64,
    /// Entry `sequence % ring.len()` is that of `sequence`, for `low < sequence <= low + ring.len()`.
    ring: Vec<ReplyEntry>,
    /// Bytes of the ring and of its answers' buffers.
    bytes: usize,
    last_used_us: u64,
    /// Index of its tenant among the owners, and its neighbours in that tenant's list.
    owner: u32,
    newer: u32,
    older: u32,
}

/// The at-most-once window of one port.
#[derive(Debug)]
pub struct ReplyCache {
    limits: ReplyCacheLimits,
    hasher: DefaultHashBuilder,
    index: HashMap<ReplySessionId, u32>,
    /// The session that was asked for last: requests and answers come in runs.
    last: u32,
    sessions: Vec<ReplySession>,
    free: Vec<u32>,
    owners: SessionOwners,
    bytes: usize,
    /// Digests of evicted sessions: of this period of `retry_lifetime_us`, and of the one before.
    tombstones: [HashSet<u64>; 2],
    rotated_us: u64,
    /// The session that is looked at next for being over, and when one was.
    sweep_slot: usize,
    swept_us: u64,
    start: ServerStart,
    counters: ReplyCacheCounters,
}

impl ReplySession {
    fn entry(&mut self, sequence: u64) -> Option<&mut ReplyEntry> {
        let mask = self.ring.len() as u64 - 1;
        self.ring.get_mut((sequence & mask) as usize)
    }

    /// Moves the lower end of the window up to `low`, and forgets the answers below it. Returns bytes freed.
    fn raise(&mut self, low: u64, reusable_buffer_bytes: usize) -> usize {
        if low <= self.low {
            return 0;
        }
        let mut freed = 0;
        let steps = (low - self.low).min(self.ring.len() as u64);
        for step in 1..=steps {
            let sequence = self.low.wrapping_add(step);
            if let Some(entry) = self.entry(sequence) {
                entry.state = ReplyState::Empty;
                if entry.answer.capacity() > reusable_buffer_bytes {
                    freed += entry.answer.capacity();
                    entry.answer = Vec::new();
                }
            }
        }
        self.low = low;
        self.bytes -= freed;
        freed
    }

    /// Doubles the ring until `sequence` fits, up to `max` entries.
    fn grow(&mut self, sequence: u64, max: usize) {
        let want = (sequence - self.low).min(max as u64) as usize;
        let new_len = want.next_power_of_two().min(max);
        let mut ring: Vec<ReplyEntry> = (0..new_len).map(|_| ReplyEntry::empty()).collect();
        for entry in self.ring.drain(..) {
            if let Some(slot) = ring.get_mut((entry.sequence & (new_len as u64 - 1)) as usize)
                && entry.state != ReplyState::Empty
            {
                *slot = entry;
            }
        }
        let answer_bytes: usize = ring.iter().map(|entry| entry.answer.capacity()).sum();
        self.ring = ring;
        self.bytes = answer_bytes + new_len * size_of::<ReplyEntry>();
    }

    /// Frees the buffer of the oldest answer. Returns bytes freed, 0 if there is none.
    fn evict_oldest_reply(&mut self) -> usize {
        for step in 1..=self.ring.len() as u64 {
            let sequence = self.low.saturating_add(step);
            let Some(entry) = self.entry(sequence) else { break };
            let freed = entry.answer.capacity();
            if freed > 0 {
                entry.answer = Vec::new();
                if entry.state == ReplyState::Completed {
                    entry.state = ReplyState::Forgotten;
                }
                self.bytes -= freed;
                return freed;
            }
        }
        0
    }
}

impl ReplyCache {
    /// A window that knows nothing.
    pub fn new(mut limits: ReplyCacheLimits) -> ReplyCache {
        limits.replies_per_session = limits.replies_per_session.clamp(INITIAL_RING_LEN, 1 << 20).next_power_of_two();
        limits.sessions = limits.sessions.clamp(1, NO_SLOT as usize - 1);
        limits.retry_lifetime_us = limits.retry_lifetime_us.min(u64::MAX / 4);
        let hasher = DefaultHashBuilder::default();
        ReplyCache {
            limits,
            index: HashMap::with_hasher(hasher.clone()),
            last: NO_SLOT,
            hasher,
            sessions: Vec::new(),
            free: Vec::new(),
            owners: SessionOwners::default(),
            bytes: 0,
            tombstones: [HashSet::new(), HashSet::new()],
            rotated_us: 0,
            sweep_slot: 0,
            swept_us: 0,
            start: ServerStart::default(),
            counters: ReplyCacheCounters::default(),
        }
    }

    /// Sets the start of the server, a random number: messages that are bound to another one are
    /// [`RequestAdmission::PreviousStart`]. If the server `was_there_before`, so are unknown sessions that are bound to
    /// no start and acknowledge answers, until no client repeats older requests. Sessions that have greeted this server
    /// are excepted.
    #[must_use]
    pub fn with_server_start(mut self, now_us: u64, start: u32, was_there_before: bool) -> ReplyCache {
        let doubtful_us = if was_there_before { now_us.saturating_add(self.limits.retry_lifetime_us) } else { 0 };
        self.start = ServerStart::new(start, doubtful_us);
        self
    }

    /// A session says hello to this server.
    pub fn greet(&mut self, now_us: u64, peer: PeerAddr, tenant: u32, session: u64, sequence: u64) {
        self.start.greet(now_us, ReplySessionId::of(peer, tenant, session, sequence), sequence);
    }

    /// Returns the counters.
    pub fn counters(&self) -> &ReplyCacheCounters {
        &self.counters
    }

    /// Sessions known.
    pub fn sessions(&self) -> usize {
        self.index.len()
    }

    /// Returns the bytes held for them, answers and rings.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Decides whether to run the request `sequence` of `session`, which says that every request up to `acked` has been
    /// answered. Requests that are marked idempotent need not be admitted.
    #[inline]
    pub fn admit(
        &mut self,
        now_us: u64,
        peer: PeerAddr,
        tenant: u32,
        session: u64,
        sequence: u64,
        acked: u64,
    ) -> RequestAdmission<'_> {
        self.age(now_us);
        if self.start.is_other_start(sequence) {
            self.counters.stale += 1;
            return RequestAdmission::PreviousStart;
        }
        let name = ReplySessionId::of(peer, tenant, session, sequence);
        let slot = match self.find(&name) {
            Some(slot) => slot,
            None if self.start.may_be_previous_start(now_us, &name, sequence, acked) => {
                self.counters.stale += 1;
                return RequestAdmission::PreviousStart;
            }
            None => match self.open(now_us, name, sequence, acked) {
                Some(slot) => slot,
                None => {
                    self.counters.stale += 1;
                    return RequestAdmission::Stale;
                }
            },
        };
        self.touch(slot);
        let limits = self.limits;
        let Some(found) = self.sessions.get_mut(slot as usize) else { return RequestAdmission::Stale };
        found.last_used_us = now_us;
        let owner = found.owner;
        let mut freed = found.raise(acked, limits.reusable_buffer_bytes);
        if sequence <= found.low {
            self.freed(owner, freed);
            self.counters.stale += 1;
            return RequestAdmission::Stale;
        }
        freed += found.raise(sequence.saturating_sub(limits.replies_per_session as u64), limits.reusable_buffer_bytes);
        if freed > 0 {
            self.freed(owner, freed);
        }
        let Some(found) = self.sessions.get_mut(slot as usize) else { return RequestAdmission::Stale };
        if sequence - found.low > found.ring.len() as u64 {
            self.grow(slot, sequence);
        }
        let Some(found) = self.sessions.get_mut(slot as usize) else { return RequestAdmission::Stale };
        let Some(entry) = found.entry(sequence) else { return RequestAdmission::Stale };
        if entry.state == ReplyState::Empty || entry.sequence != sequence {
            entry.sequence = sequence;
            entry.state = ReplyState::InProgress;
            entry.answer.clear();
            self.counters.admitted += 1;
            return RequestAdmission::Execute;
        }
        match entry.state {
            ReplyState::InProgress | ReplyState::Empty => {
                self.counters.running += 1;
                RequestAdmission::InProgress
            }
            ReplyState::Completed => {
                self.counters.answered += 1;
                RequestAdmission::Replay(&entry.answer)
            }
            ReplyState::Forgotten => {
                self.counters.stale += 1;
                RequestAdmission::Stale
            }
        }
    }

    #[cold]
    fn grow(&mut self, slot: u32, sequence: u64) {
        let Some(found) = self.sessions.get_mut(slot as usize) else { return };
        let (before, owner) = (found.bytes, found.owner);
        found.grow(sequence, self.limits.replies_per_session);
        let after = found.bytes;
        self.freed(owner, before);
        self.taken(owner, after);
        while self.bytes > self.limits.bytes && self.evict(owner, slot) {}
    }

    /// Counts bytes that an owner's session takes.
    fn taken(&mut self, owner: u32, bytes: usize) {
        self.bytes += bytes;
        self.owners.add_bytes(owner, bytes);
    }

    /// Counts bytes that an owner's session has given back.
    fn freed(&mut self, owner: u32, bytes: usize) {
        self.bytes -= bytes;
        self.owners.remove_bytes(owner, bytes);
    }

    #[inline]
    fn find(&mut self, name: &ReplySessionId) -> Option<u32> {
        // A session that was removed is not the last one any more.
        if self.sessions.get(self.last as usize).is_some_and(|last| last.name == *name) {
            return Some(self.last);
        }
        self.last = *self.index.get(name)?;
        Some(self.last)
    }

    #[inline]
    fn running(&mut self, peer: PeerAddr, tenant: u32, session: u64, sequence: u64) -> Option<u32> {
        let slot = self.find(&ReplySessionId::of(peer, tenant, session, sequence))?;
        let entry = self.sessions.get_mut(slot as usize)?.entry(sequence)?;
        (entry.sequence == sequence && entry.state == ReplyState::InProgress).then_some(slot)
    }

    /// Remembers the answer of an admitted request. Does nothing if the session or its window has moved on since.
    #[inline]
    pub fn complete(&mut self, peer: PeerAddr, tenant: u32, session: u64, sequence: u64, response: &[u8]) {
        let Some(slot) = self.running(peer, tenant, session, sequence) else { return };
        let Some(found) = self.sessions.get_mut(slot as usize) else { return };
        let Some(entry) = found.entry(sequence) else { return };
        if entry.answer.capacity() < response.len() && !self.make_room(slot, sequence, response.len()) {
            if let Some(entry) = self.sessions.get_mut(slot as usize).and_then(|found| found.entry(sequence)) {
                entry.state = ReplyState::Forgotten;
            }
            self.counters.replies_evicted += 1;
            return;
        }
        let Some(found) = self.sessions.get_mut(slot as usize) else { return };
        let Some(entry) = found.entry(sequence) else { return };
        let before = entry.answer.capacity();
        entry.answer.clear();
        entry.answer.extend_from_slice(response);
        entry.state = ReplyState::Completed;
        let grown = entry.answer.capacity() - before;
        if grown > 0 {
            let owner = found.owner;
            found.bytes += grown;
            self.taken(owner, grown);
        }
    }

    /// Makes room for an answer of `size` bytes in place of a smaller buffer. Returns false if there can be none.
    #[cold]
    fn make_room(&mut self, slot: u32, sequence: u64, size: usize) -> bool {
        // No session takes more than a quarter: many others would have to go for it.
        let cap = self.limits.bytes / 4;
        let Some(found) = self.sessions.get_mut(slot as usize) else { return false };
        let owner = found.owner;
        if let Some(entry) = found.entry(sequence) {
            let old = std::mem::take(&mut entry.answer).capacity();
            found.bytes -= old;
            self.freed(owner, old);
        }
        loop {
            let Some(found) = self.sessions.get_mut(slot as usize) else { return false };
            let over_own = found.bytes + size > cap;
            if !over_own && self.bytes + size <= self.limits.bytes {
                return true;
            }
            if !over_own && self.evict(owner, slot) {
                continue;
            }
            let Some(found) = self.sessions.get_mut(slot as usize) else { return false };
            let freed = found.evict_oldest_reply();
            if freed == 0 {
                return false;
            }
            self.freed(owner, freed);
            self.counters.replies_evicted += 1;
        }
    }

    /// Takes an admission back: the request was not run, and may be admitted again.
    pub fn cancel(&mut self, peer: PeerAddr, tenant: u32, session: u64, sequence: u64) {
        let Some(slot) = self.running(peer, tenant, session, sequence) else { return };
        if let Some(entry) = self.sessions.get_mut(slot as usize).and_then(|found| found.entry(sequence)) {
            entry.state = ReplyState::Empty;
            self.counters.admitted -= 1;
        }
    }

    /// Forgets requests that no client can be repeating any more.
    #[inline]
    fn age(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.rotated_us) >= self.limits.retry_lifetime_us {
            self.tombstones.swap(0, 1);
            self.tombstones[0].clear();
            self.owners.turn();
            self.rotated_us = now_us;
            self.start.age(now_us);
        }
        if now_us == self.swept_us {
            return;
        }
        self.swept_us = now_us;
        self.sweep_slot = if self.sweep_slot + 1 < self.sessions.len() { self.sweep_slot + 1 } else { 0 };
        if let Some(session) = self.sessions.get(self.sweep_slot)
            && !session.ring.is_empty()
            && now_us.saturating_sub(session.last_used_us) > 2 * self.limits.retry_lifetime_us
        {
            self.remove(self.sweep_slot as u32);
        }
    }

    /// Begins a session that is not known. None if it may have been known before.
    #[cold]
    fn open(&mut self, now_us: u64, name: ReplySessionId, sequence: u64, acked: u64) -> Option<u32> {
        let tomb = self.hasher.hash_one(name);
        if sequence == 0 || acked >= sequence || self.tombstones.iter().any(|tombstones| tombstones.contains(&tomb)) {
            return None;
        }
        let owner = self.owners.index_of(name.tenant);
        if self.owners.is_closed(owner) {
            self.counters.sessions_refused += 1;
            return None;
        }
        let ring_bytes = INITIAL_RING_LEN * size_of::<ReplyEntry>();
        while self.index.len() >= self.limits.sessions
            || (self.bytes + ring_bytes > self.limits.bytes && !self.index.is_empty())
        {
            if !self.evict(owner, NO_SLOT) {
                self.counters.sessions_refused += 1;
                return None;
            }
        }
        let session = ReplySession {
            name,
            low: acked,
            ring: (0..INITIAL_RING_LEN).map(|_| ReplyEntry::empty()).collect(),
            bytes: ring_bytes,
            last_used_us: now_us,
            owner,
            newer: NO_SLOT,
            older: NO_SLOT,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                *self.sessions.get_mut(slot as usize)? = session;
                slot
            }
            None => {
                self.sessions.push(session);
                self.sessions.len() as u32 - 1
            }
        };
        self.taken(owner, ring_bytes);
        self.owners.add_session(owner);
        self.link_newest(slot);
        self.index.insert(name, slot);
        Some(slot)
    }

    /// Makes room for an owner, whose session `spared` must stay: evicts the longest idle session of the owner that
    /// holds the most. Returns false if that would be `spared`, or if the owner that asks has lost too many lately.
    fn evict(&mut self, owner: u32, spared: u32) -> bool {
        let limits = &self.limits;
        let mut victim = self.owners.largest(owner, limits.sessions, limits.bytes);
        let mut slot = self.owners.oldest(victim);
        if slot == spared {
            slot = self.sessions.get(slot as usize).map_or(NO_SLOT, |session| session.newer);
        }
        if slot == NO_SLOT {
            victim = self.owners.largest_other(owner, limits.sessions, limits.bytes);
            slot = self.owners.oldest(victim);
        }
        let Some(session) = self.sessions.get(slot as usize).filter(|_| slot != spared) else { return false };
        let all = limits.tombstones / 2;
        if self.owners.tombstones(victim) >= (all / TOMBSTONE_OWNER_DIVISOR).max(1)
            || self.tombstones[0].len() >= all.max(1)
        {
            if victim == owner {
                return false;
            }
            // It lost too many to name each: until all of that is over, every session of it that is unknown is taken
            // for one.
            self.owners.close(victim);
        } else {
            self.tombstones[0].insert(self.hasher.hash_one(session.name));
            self.owners.add_tombstone(victim);
        }
        self.counters.sessions_evicted += 1;
        self.remove(slot);
        true
    }

    fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        let Some(session) = self.sessions.get_mut(slot as usize) else { return };
        let (owner, bytes) = (session.owner, std::mem::take(&mut session.bytes));
        session.ring = Vec::new();
        self.index.remove(&session.name);
        self.last = NO_SLOT;
        self.free.push(slot);
        self.freed(owner, bytes);
        self.owners.remove_session(owner);
    }

    fn unlink(&mut self, slot: u32) {
        let Some(session) = self.sessions.get(slot as usize) else { return };
        let (owner, newer, older) = (session.owner, session.newer, session.older);
        match self.sessions.get_mut(newer as usize) {
            Some(session) => session.older = older,
            None => self.owners.set_newest(owner, older),
        }
        match self.sessions.get_mut(older as usize) {
            Some(session) => session.newer = newer,
            None => self.owners.set_oldest(owner, newer),
        }
    }

    fn link_newest(&mut self, slot: u32) {
        let Some(session) = self.sessions.get(slot as usize) else { return };
        let owner = session.owner;
        let before = self.owners.newest(owner);
        if let Some(session) = self.sessions.get_mut(slot as usize) {
            (session.newer, session.older) = (NO_SLOT, before);
        }
        match self.sessions.get_mut(before as usize) {
            Some(session) => session.newer = slot,
            None => self.owners.set_oldest(owner, slot),
        }
        self.owners.set_newest(owner, slot);
    }

    /// Makes a session the newest of its owner's.
    #[inline]
    fn touch(&mut self, slot: u32) {
        if self.sessions.get(slot as usize).is_some_and(|session| session.newer != NO_SLOT) {
            self.unlink(slot);
            self.link_newest(slot);
        }
    }
}

#[cfg(test)]
mod tests;
