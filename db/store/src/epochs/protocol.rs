//! The small core of reclamation: one epoch, one announcement per thread, two pin counters per thread. No `unsafe`; it
//! is compiled a second time over loom's atomics by `model.rs`, which explores its interleavings.
//!
//! # Protocol
//! `G` is the global epoch. An online thread announces the `G` that it saw last (`seen`) at points where it holds no
//! reference. `G` moves from g to g + 1, under the registry's lock, when every thread is offline or announced g, and no
//! pin of epoch g - 1 is held. What a thread unlinks is stamped with its own `seen`, t, and freed once `G >= t + LAG`.
//!
//! # Why nothing is freed early
//! Write R for the thread that unlinks with stamp t, Q for a reader whose `seen` is s (or an invocation with a pin of
//! epoch s: it was taken by a thread whose `seen` was s).
//! 1. *While Q holds references, `G <= s + 1`*: the step to s + 2 needs Q (or its pin) to leave s. For a thread that
//!    announced s in the past this is the check of `seen`; for one that is just coming online see 4. For a pin it is
//!    the count: all `ended` are read before any `made`, so an end is never counted without its beginning, and the
//!    announcement of s + 1 (acquired just before) makes every pin of epoch s by that thread visible.
//! 2. *If Q can reach the object, then `t >= s - 1`*. If `t <= s - 2`, then R announced t + 1 after the unlinking
//!    (release). The step to t + 2 read that (acquire) and published `G = t + 2 <= s` (release). Q read `G` (acquire)
//!    before it announced s: the unlinking happened before all that Q reads. No fence is needed on this path.
//! 3. So it is freed at `G >= t + 3 >= s + 2 > s + 1`: after Q has released it. The step that made it possible read Q's
//!    announcement (acquire), so Q's reads happened before the freeing.
//! 4. *Coming online* is a store (`seen = e`), a SeqCst fence, and a second look at `G`, until it is still e. The step
//!    has a SeqCst fence before it reads `seen`. Suppose that the step from e + 1 missed the store. Then its fence
//!    would come first in the total order of fences. `G = e + 1` happened before that fence, so the second look would
//!    have seen it. So only the step from e to e + 1 may miss the store, which 1 and 2 allow.
//!
//! Counters have a single writer each: plain loads and stores, no contended read-modify-write. A thief that ends
//! another thread's pin counts it in its own `ended`.

use std::cell::Cell;
use std::sync::Arc;

use super::sync::{AtomicU64, Mutex, Ordering, fence, lock, try_lock};

/// The lag: memory unlinked with stamp t may be freed once the epoch is `t + LAG`.
pub(super) const GRACE_EPOCHS: u64 = 3;

const OFFLINE: u64 = 0;
const FIRST_EPOCH: u64 = 4;

/// The words that one thread publishes. They have their own cache lines: other threads only read them when they try a
/// step.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct EpochSlot {
    seen: AtomicU64,
    made: [AtomicU64; 2],
    ended: [AtomicU64; 2],
}

#[derive(Debug, Default)]
struct MemberRegistry {
    slots: Vec<Arc<EpochSlot>>,
    /// Pin counters of threads that left.
    made: [u64; 2],
    ended: [u64; 2],
}

/// The epoch and its members.
#[derive(Debug)]
pub(super) struct EpochCore {
    epoch: AtomicU64,
    registry: Mutex<MemberRegistry>,
}

/// One thread's own part.
#[derive(Debug)]
pub(super) struct EpochMember {
    slot: Arc<EpochSlot>,
    /// The value in `slot.seen`, for its only writer.
    seen: Cell<u64>,
}

fn add_one(counter: &AtomicU64) {
    // Single writer, so a load and a store do. Release: what was read under a pin happened before its end is counted.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
}

impl EpochCore {
    pub(super) fn new() -> EpochCore {
        EpochCore { epoch: AtomicU64::new(FIRST_EPOCH), registry: Mutex::new(MemberRegistry::default()) }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the epoch, exact in the order of steps: none happens during the call.
    pub(super) fn epoch_locked(&self) -> u64 {
        let _registry = lock(&self.registry);
        self.epoch.load(Ordering::Relaxed)
    }

    /// Adds a new member, offline.
    pub(super) fn join(&self) -> EpochMember {
        let counters = || [AtomicU64::new(0), AtomicU64::new(0)];
        let slot = Arc::new(EpochSlot { seen: AtomicU64::new(OFFLINE), made: counters(), ended: counters() });
        lock(&self.registry).slots.push(Arc::clone(&slot));
        EpochMember { slot, seen: Cell::new(OFFLINE) }
    }

    /// Removes the member for good; its pins stay counted.
    pub(super) fn leave(&self, member: &EpochMember) {
        member.offline();
        let mut registry = lock(&self.registry);
        for parity in 0..2 {
            let made = member.slot.made[parity].load(Ordering::Relaxed);
            let ended = member.slot.ended[parity].load(Ordering::Relaxed);
            registry.made[parity] = registry.made[parity].wrapping_add(made);
            registry.ended[parity] = registry.ended[parity].wrapping_add(ended);
        }
        registry.slots.retain(|slot| !Arc::ptr_eq(slot, &member.slot));
    }

    /// Moves the epoch by one if no member or pin blocks it. Gives up at once if another thread is trying.
    pub(super) fn try_advance(&self) -> bool {
        let Some(registry) = try_lock(&self.registry) else { return false };
        let epoch = self.epoch.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let passed = |seen: u64| seen == OFFLINE || seen == epoch;
        if !registry.slots.iter().all(|slot| passed(slot.seen.load(Ordering::Acquire))) {
            return false;
        }
        if registry.pins((epoch - 1) as usize & 1) != 0 {
            return false;
        }
        self.epoch.store(epoch + 1, Ordering::Release);
        true
    }

    /// Returns the numbers of members and of pins.
    pub(super) fn counts(&self) -> (u64, u64) {
        let registry = lock(&self.registry);
        (registry.slots.len() as u64, registry.pins(0).wrapping_add(registry.pins(1)))
    }
}

impl MemberRegistry {
    /// Returns the pins of a parity: at least those that exist during the whole call, of threads whose announcement the
    /// caller has read.
    fn pins(&self, parity: usize) -> u64 {
        let sum = |start: u64, counter: fn(&EpochSlot, usize) -> &AtomicU64| {
            let loads = self.slots.iter().map(|slot| counter(slot, parity).load(Ordering::Acquire));
            loads.fold(start, u64::wrapping_add)
        };
        let ended = sum(self.ended[parity], |slot, parity| &slot.ended[parity]);
        let made = sum(self.made[parity], |slot, parity| &slot.made[parity]);
        made.wrapping_sub(ended)
    }
}

impl EpochMember {
    /// Returns the announced epoch, which stamps what this thread unlinks. Meaningless while offline.
    pub(super) fn seen(&self) -> u64 {
        self.seen.get()
    }

    pub(super) fn is_online(&self) -> bool {
        self.seen.get() != OFFLINE
    }

    pub(super) fn online(&self, core: &EpochCore) {
        let mut epoch = core.epoch.load(Ordering::Acquire);
        loop {
            self.slot.seen.store(epoch, Ordering::Release);
            fence(Ordering::SeqCst);
            let again = core.epoch.load(Ordering::Acquire);
            if again == epoch {
                break;
            }
            epoch = again;
        }
        self.seen.set(epoch);
    }

    pub(super) fn offline(&self) {
        self.seen.set(OFFLINE);
        self.slot.seen.store(OFFLINE, Ordering::Release);
    }

    /// Announces the current epoch: one load of a line that rarely changes, and a store when it did.
    pub(super) fn quiescent(&self, core: &EpochCore) {
        let epoch = core.epoch.load(Ordering::Acquire);
        if epoch != self.seen.get() && self.is_online() {
            self.seen.set(epoch);
            self.slot.seen.store(epoch, Ordering::Release);
        }
    }

    /// Takes a pin; returns its parity. The member is online.
    pub(super) fn pin(&self) -> usize {
        let parity = self.seen.get() as usize & 1;
        add_one(&self.slot.made[parity]);
        parity
    }

    /// Ends a pin of any member.
    pub(super) fn unpin(&self, parity: usize) {
        add_one(&self.slot.ended[parity & 1]);
    }
}
