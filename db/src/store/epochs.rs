//! Reclamation: who may still be reading what was replaced.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Quiescent-state reclamation, shared by all threads that read or write tables.
#[derive(Debug, Default)]
pub struct Epochs {
    participants: AtomicU64,
    pins: AtomicU64,
}

/// What reclamation holds back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochStats {
    /// The epoch: grows while threads announce quiescent points.
    pub epoch: u64,
    /// Registered participants.
    pub participants: u64,
    /// Things that were replaced and wait to be freed.
    pub limbo_items: u64,
    /// Their bytes.
    pub limbo_bytes: u64,
    /// Pins that are held.
    pub pins: u64,
}

impl Epochs {
    /// No participants yet.
    pub fn new() -> Arc<Epochs> {
        Arc::new(Epochs::default())
    }

    /// A participant for the calling thread: any thread that reads or writes tables needs one. It starts online.
    pub fn register(self: &Arc<Self>) -> Participant {
        self.participants.fetch_add(1, Ordering::Relaxed);
        Participant { epochs: Arc::clone(self), unsync: PhantomData }
    }

    /// What reclamation holds back.
    pub fn stats(&self) -> EpochStats {
        EpochStats {
            participants: self.participants.load(Ordering::Relaxed),
            pins: self.pins.load(Ordering::Relaxed),
            ..EpochStats::default()
        }
    }
}

/// One thread's part in reclamation. `Send`, not `Sync`.
#[derive(Debug)]
pub struct Participant {
    epochs: Arc<Epochs>,
    unsync: PhantomData<Cell<()>>,
}

/// Proof that the thread is online and announces no quiescent point while this lives. No destructor.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'p> {
    participant: PhantomData<&'p Participant>,
}

/// An invocation's own epoch: what it reads stays until [`Participant::unpin`]. Plain data without a destructor; one that
/// is dropped without `unpin` holds reclamation up for ever.
#[derive(Debug)]
#[must_use = "a pin that is not given to unpin holds reclamation up for ever"]
pub struct Pin {
    parity: u8,
}

impl Participant {
    /// Announces that this thread holds no reference to a record, except under pins; frees what is safe, bounded work
    /// per call. Takes `&mut self`, so that no [`Guard`] can be alive.
    pub fn quiescent(&mut self) {}

    /// Before sleeping: this thread no longer holds reclamation up.
    pub fn offline(&mut self) {}

    /// After sleeping. Forgetting it costs nothing but speed: a guard, a pin or a write comes online by itself.
    pub fn online(&mut self) {}

    /// Permission to read.
    pub fn guard(&self) -> Guard<'_> {
        Guard { participant: PhantomData }
    }

    /// Pins the current epoch for an invocation.
    pub fn pin(&self) -> Pin {
        self.epochs.pins.fetch_add(1, Ordering::Relaxed);
        Pin { parity: 0 }
    }

    /// Ends a pin; any participant may end any pin of the same [`Epochs`].
    pub fn unpin(&self, pin: Pin) {
        self.epochs.pins.fetch_sub(1 + u64::from(pin.parity), Ordering::Relaxed);
    }

    /// The epochs that this participant is part of.
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.epochs.participants.fetch_sub(1, Ordering::Relaxed);
    }
}
