//! Quiescent-state reclamation: replaced records stay until no thread can be reading them.
//!
//! A worker announces a quiescent point once a loop turn, which costs about a nanosecond; readers do nothing else.
//! Invocations outlive loop turns and move between threads, so each takes an [`EpochPin`] of its own. The protocol, its
//! memory orderings and the proof are in `protocol`. `model.rs` checks it with loom, as a test program of its own
//! (`epochs`). Twins of the model break one rule each on purpose, and must fail.
//!
//! Garbage lies in a queue of the thread that unlinked it. A thread that goes offline or leaves frees what it can and
//! moves the rest to a common queue. Every thread takes from that at its quiescent points.

mod garbage;
mod grace;
mod protocol;
pub(super) mod refcount;
mod sync;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

pub(super) use self::garbage::{Garbage, GarbageAccount, GarbageCharge, IncrementalDrop, OwnedRecord};
pub use self::grace::GracePeriod;
use self::protocol::{EpochCore, EpochMember, GRACE_EPOCHS};
use crate::limits::{
    COMMIT_AHEAD_MS, RECLAIM_OFFLINE_ROUNDS, RECLAIM_PER_TURN, RECLAIM_PRESSURE_BYTES, TURNS_PER_SIZE_GIVEN_BACK,
};
use crate::shown_position::ShownPosition;
use crate::slabs;
use crate::unit_of_changes::UnitOfChanges;

/// Quiescent-state reclamation, shared by all threads that read or write tables.
pub struct Epochs {
    core: EpochCore,
    orphans: Mutex<LimboQueue>,
    /// Length of `orphans`, read without the lock.
    orphan_count: AtomicU64,
    limbo_items: AtomicU64,
    limbo_bytes: AtomicU64,
    freed_items: AtomicU64,
    freed_bytes: AtomicU64,
    /// Bytes of replaced records that wait to be freed, without those that threads retired since their last quiescent
    /// point. Garbage that is freed piece by piece is left out: a large dropped table waits for the work, not for a
    /// reader.
    waiting_bytes: CachePadded<AtomicU64>,
    /// The latest time that a commit has used, milliseconds since the Unix epoch.
    commit_ms: AtomicU64,
}

/// The records and pins that reclamation waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochStats {
    /// The epoch: grows while there is garbage and threads announce quiescent points.
    pub epoch: u64,
    /// Registered participants.
    pub participants: u64,
    /// The number of replaced objects that wait to be freed.
    pub limbo_items: u64,
    /// Their bytes.
    pub limbo_bytes: u64,
    /// The number of pins.
    pub pins: u64,
}

/// Garbage, the epoch in which it was unlinked, and the account that is charged for it.
struct PendingGarbage {
    stamp: u64,
    garbage: Garbage,
    charge: GarbageCharge,
}

impl PendingGarbage {
    /// The part of it that counts in [`Epochs::waiting_bytes`].
    fn waiting_bytes(&self) -> u64 {
        if matches!(self.garbage, Garbage::Record(_)) { self.charge.bytes() } else { 0 }
    }
}

/// Bytes of the queue entry itself while garbage waits.
pub(super) const PENDING_OVERHEAD_BYTES: u64 = size_of::<PendingGarbage>() as u64;

/// Garbage, oldest first (nearly: handed-over queues are appended).
type LimboQueue = VecDeque<PendingGarbage>;

impl std::fmt::Debug for Epochs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}

impl Epochs {
    /// Makes epochs without participants.
    pub fn new() -> Arc<Epochs> {
        Arc::new(Epochs {
            core: EpochCore::new(),
            orphans: Mutex::default(),
            orphan_count: AtomicU64::new(0),
            limbo_items: AtomicU64::new(0),
            limbo_bytes: AtomicU64::new(0),
            freed_items: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
            waiting_bytes: CachePadded::default(),
            commit_ms: AtomicU64::new(0),
        })
    }

    /// Registers the calling thread: any thread that reads or writes tables needs a participant. It starts online.
    pub fn register(self: &Arc<Self>) -> Participant {
        let member = self.core.join();
        member.online(&self.core);
        Participant {
            epochs: Arc::clone(self),
            member,
            limbo: RefCell::default(),
            retired: Cell::new(0),
            counted: Cell::new(0),
            uncounted_bytes: Cell::new(0),
            uncounted_waiting_bytes: Cell::new(0),
            turns: 0,
            is_freeing: false,
            unit_of_changes: UnitOfChanges::default(),
            shown: ShownPosition::default(),
        }
    }

    /// Returns whether so many replaced records wait to be freed that long-running readers should stop.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.waiting_bytes.load(Ordering::Relaxed) > RECLAIM_PRESSURE_BYTES
    }

    /// Returns the time that a commit uses, given its thread's `now_ms`. It is never before that of a commit that ended
    /// before this one began, so no transaction finds a record that an earlier one found expired.
    ///
    /// The exception is a system clock that was ahead and was put back. Then commits use a time ahead of it until it
    /// has caught up, and records expire for them that much earlier. The difference is at most [`COMMIT_AHEAD_MS`]:
    /// beyond that, time goes back here, too.
    pub(super) fn commit_time(&self, now_ms: u64) -> u64 {
        let time = |latest_ms: u64| latest_ms.clamp(now_ms, now_ms.saturating_add(COMMIT_AHEAD_MS));
        let later = |latest_ms| Some(time(latest_ms)).filter(|time_ms| *time_ms != latest_ms);
        let (Ok(latest_ms) | Err(latest_ms)) = self.commit_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
        time(latest_ms)
    }

    /// Returns the latest time that a commit has used. A read that uses it has the clock by which its commit is judged.
    #[inline]
    pub fn latest_commit_ms(&self) -> u64 {
        self.commit_ms.load(Ordering::Acquire)
    }

    /// Returns what reclamation waits for, without what threads retired since their last quiescent point.
    pub fn stats(&self) -> EpochStats {
        let (participants, pins) = self.core.counts();
        // Freed first: it never counts what limbo does not.
        let freed_items = self.freed_items.load(Ordering::Acquire);
        let freed_bytes = self.freed_bytes.load(Ordering::Acquire);
        EpochStats {
            epoch: self.core.epoch(),
            participants,
            limbo_items: self.limbo_items.load(Ordering::Acquire).wrapping_sub(freed_items),
            limbo_bytes: self.limbo_bytes.load(Ordering::Acquire).wrapping_sub(freed_bytes),
            pins,
        }
    }

    /// Takes garbage from a thread that is not a participant.
    pub(super) fn retire_unregistered(&self, garbage: Garbage) {
        let stamp = self.core.epoch_locked();
        self.count(1, garbage.bytes() as u64, 0);
        let mut orphans = self.orphans.lock();
        orphans.push_back(PendingGarbage { stamp, garbage, charge: GarbageCharge::NONE });
        self.orphan_count.store(orphans.len() as u64, Ordering::Relaxed);
    }

    fn count(&self, items: u64, bytes: u64, waiting_bytes: u64) {
        self.waiting_bytes.fetch_add(waiting_bytes, Ordering::Relaxed);
        self.limbo_items.fetch_add(items, Ordering::Relaxed);
        self.limbo_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Frees the entries at the front of a queue that are old enough, up to `units` records' worth.
    fn free_ready(&self, limbo: &mut LimboQueue, units: usize) -> bool {
        let epoch = self.core.epoch();
        let (mut left, mut items, mut bytes, mut waiting_bytes) = (units, 0, 0, 0);
        let mut charge = GarbageCharge::NONE;
        while left > 0 {
            match limbo.front_mut() {
                Some(PendingGarbage { stamp, garbage, .. }) if *stamp + GRACE_EPOCHS <= epoch => {
                    if let Garbage::Incremental(garbage) = garbage {
                        let used = garbage.free_some(left);
                        left = left.saturating_sub(used.max(1));
                        if used != 0 {
                            continue;
                        }
                    }
                }
                _ => break,
            }
            if let Some(freed) = limbo.pop_front() {
                left = left.saturating_sub(1);
                items += 1;
                bytes += freed.garbage.bytes() as u64;
                waiting_bytes += freed.waiting_bytes();
                drop(freed.garbage);
                charge.join(freed.charge);
            }
        }
        drop(charge);
        if items != 0 {
            self.waiting_bytes.fetch_sub(waiting_bytes, Ordering::Relaxed);
            self.freed_items.fetch_add(items, Ordering::Release);
            self.freed_bytes.fetch_add(bytes, Ordering::Release);
        }
        left != units
    }

    fn free_orphans(&self, units: usize) -> bool {
        if self.orphan_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let Some(mut orphans) = self.orphans.try_lock() else { return false };
        let has_freed = self.free_ready(&mut orphans, units);
        self.orphan_count.store(orphans.len() as u64, Ordering::Relaxed);
        has_freed
    }
}

/// One thread's part in reclamation. `Send`, not `Sync`. When it is dropped, its garbage moves to the common queue.
pub struct Participant {
    epochs: Arc<Epochs>,
    member: EpochMember,
    limbo: RefCell<LimboQueue>,
    /// Objects retired so far.
    retired: Cell<u64>,
    /// Those of them that are in the common counters, which are updated once a turn, not once a write.
    counted: Cell<u64>,
    uncounted_bytes: Cell<u64>,
    uncounted_waiting_bytes: Cell<u64>,
    /// Quiescent points, modulo 2^32.
    turns: u32,
    /// See [`Participant::is_freeing`].
    is_freeing: bool,
    /// Changes under the stripes that this thread holds.
    unit_of_changes: UnitOfChanges,
    /// See [`ShownPosition`].
    shown: ShownPosition,
}

impl std::fmt::Debug for Participant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Participant").field("epoch", &self.member.seen()).finish_non_exhaustive()
    }
}

/// Proof that the thread is online and announces no quiescent point while this lives. No destructor.
#[derive(Clone, Copy, Debug)]
pub struct EpochGuard<'p> {
    participant: &'p Participant,
}

impl EpochGuard<'_> {
    /// See [`Participant::shown`].
    #[inline]
    pub(super) fn shown(&self) -> &ShownPosition {
        &self.participant.shown
    }

    /// The epochs that the guard belongs to.
    pub(super) fn epochs(&self) -> &Arc<Epochs> {
        &self.participant.epochs
    }
}

/// An invocation's own epoch: the records that it reads stay until [`Participant::unpin`]. Plain data without a
/// destructor; a lost pin blocks reclamation for ever.
#[derive(Debug)]
#[must_use = "a pin that is not given to unpin holds reclamation up for ever"]
pub struct EpochPin {
    /// Address of the epochs that it belongs to.
    epochs: usize,
    parity: usize,
}

impl Participant {
    /// Announces that this thread holds no reference to a record, except under pins; frees garbage that is old enough,
    /// a bounded amount per call. Takes `&mut self`, so that no [`EpochGuard`] can be alive.
    pub fn quiescent(&mut self) {
        self.member.quiescent(&self.epochs.core);
        let waiting = self.limbo.get_mut().len();
        self.is_freeing = false;
        if waiting != 0 || self.epochs.orphan_count.load(Ordering::Relaxed) != 0 {
            self.reclaim(RECLAIM_PER_TURN + waiting / 8);
        }
        // A thread that never sleeps would keep a few objects, and the slabs that contain them, of each size that it
        // ever used.
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_SIZE_GIVEN_BACK) {
            slabs::flush_size_class((self.turns / TURNS_PER_SIZE_GIVEN_BACK) as usize);
        }
    }

    /// Returns whether the last quiescent point freed something. Then there may be more, and an otherwise idle thread
    /// announces another point before it sleeps. What it leaves is freed at the pace of the threads that are awake.
    #[inline]
    pub fn is_freeing(&self) -> bool {
        self.is_freeing
    }

    /// Goes offline before sleeping: this thread no longer blocks reclamation. The garbage that it cannot free goes to
    /// the common queue, and its cached memory goes back too.
    #[inline]
    pub fn offline(&mut self) {
        self.hand_over();
        slabs::flush_thread_cache();
    }

    fn hand_over(&mut self) {
        self.member.offline();
        for _ in 0..RECLAIM_OFFLINE_ROUNDS {
            if self.limbo.get_mut().is_empty() && self.epochs.orphan_count.load(Ordering::Relaxed) == 0 {
                return;
            }
            self.reclaim(8 * RECLAIM_PER_TURN);
        }
        let limbo = self.limbo.get_mut();
        if !limbo.is_empty() {
            let mut orphans = self.epochs.orphans.lock();
            orphans.append(limbo);
            self.epochs.orphan_count.store(orphans.len() as u64, Ordering::Relaxed);
        }
    }

    /// Goes online after sleeping. Forgetting this only costs speed: a guard, a pin or a write goes online by itself.
    #[inline]
    pub fn online(&mut self) {
        self.enter();
    }

    /// Takes a guard, the permission to read.
    #[inline]
    pub fn guard(&self) -> EpochGuard<'_> {
        self.enter();
        EpochGuard { participant: self }
    }

    /// Pins the current epoch for an invocation: every record that it reads from now on, through
    /// [`super::RecordTable::get_pinned`] or a guard, stays until the pin ends.
    #[inline]
    pub fn pin(&self) -> EpochPin {
        self.enter();
        EpochPin { epochs: Arc::as_ptr(&self.epochs).addr(), parity: self.member.pin() }
    }

    /// Ends a pin; any participant may end any pin of the same [`Epochs`].
    ///
    /// # Panics
    /// When the pin is of other epochs: counted here, it would release a pin of these.
    #[inline]
    pub fn unpin(&self, pin: EpochPin) {
        assert_eq!(
            pin.epochs,
            Arc::as_ptr(&self.epochs).addr(),
            "the pin belongs to other epochs than the participant"
        );
        self.member.unpin(pin.parity);
    }

    /// Returns the changes under the stripes that this thread holds.
    /// Returns how far the log has to be on the disk before what this thread has seen may be shown.
    #[inline]
    pub fn shown(&self) -> &ShownPosition {
        &self.shown
    }

    pub(super) fn unit_of_changes(&self) -> &UnitOfChanges {
        &self.unit_of_changes
    }

    /// Returns the epochs that this participant is part of.
    #[inline]
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    fn enter(&self) {
        if !self.member.is_online() {
            self.member.online(&self.epochs.core);
        }
    }

    fn reclaim(&mut self, units: usize) {
        self.count();
        self.epochs.core.try_advance();
        self.member.quiescent(&self.epochs.core);
        let own = self.epochs.free_ready(self.limbo.get_mut(), units);
        self.is_freeing = self.epochs.free_orphans(units) || own;
    }

    fn count(&self) {
        let retired = self.retired.get();
        let (items, bytes) = (retired - self.counted.replace(retired), self.uncounted_bytes.take());
        if items != 0 {
            self.epochs.count(items, bytes, self.uncounted_waiting_bytes.take());
        }
    }

    /// Returns the number of objects that this thread has retired so far. The difference around a write counts what it
    /// replaced, deleted or evicted.
    #[inline]
    pub fn retired(&self) -> u64 {
        self.retired.get()
    }

    /// Frees what can be freed in the middle of a turn. This thread announces nothing, so what it may be reading stays,
    /// as for any other reader.
    pub(super) fn reclaim_early(&self) {
        self.count();
        self.epochs.core.try_advance();
        self.epochs.free_ready(&mut self.limbo.borrow_mut(), 8 * RECLAIM_PER_TURN);
        self.epochs.free_orphans(8 * RECLAIM_PER_TURN);
    }

    /// Keeps `garbage` until no thread can be reading it. This thread unlinked it before, under a guard. The charge for
    /// it is given back when it is freed.
    pub(super) fn retire(&self, garbage: Garbage, charge: GarbageCharge) {
        self.enter();
        let waiting = PendingGarbage { stamp: self.member.seen(), garbage, charge };
        self.retired.set(self.retired.get() + 1);
        self.uncounted_bytes.set(self.uncounted_bytes.get() + waiting.garbage.bytes() as u64);
        self.uncounted_waiting_bytes.set(self.uncounted_waiting_bytes.get() + waiting.waiting_bytes());
        self.limbo.borrow_mut().push_back(waiting);
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.offline();
        self.epochs.core.leave(&self.member);
    }
}
