//! Waiting for readers: those that have begun before a moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Participant;
use super::garbage::{Garbage, GarbageCharge, IncrementalDrop};

/// The time until every thread and invocation that may have been reading when it began is done.
#[derive(Debug)]
pub struct GracePeriod(Arc<AtomicBool>);

/// Garbage that takes no memory: it is freed when no reader could have it any more.
struct GraceMarker(Arc<AtomicBool>);

impl Drop for GraceMarker {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl IncrementalDrop for GraceMarker {
    fn free_some(&mut self, _units: usize) -> usize {
        0
    }

    fn bytes(&self) -> usize {
        0
    }
}

impl GracePeriod {
    /// Begins one. It ends only if the participant's quiescent points go on.
    pub fn begin(participant: &Participant) -> GracePeriod {
        let is_over = Arc::new(AtomicBool::new(false));
        let marker = Box::new(GraceMarker(Arc::clone(&is_over)));
        participant.retire(Garbage::Incremental(marker), GarbageCharge::NONE);
        GracePeriod(is_over)
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Epochs;
    use super::*;

    #[test]
    fn a_grace_period_waits_for_readers_and_for_pins() {
        let epochs = Epochs::new();
        let (mut waiter, mut reader) = (epochs.register(), epochs.register());
        reader.online();
        let pin = reader.pin();
        let grace = GracePeriod::begin(&waiter);
        let turn = |waiter: &mut Participant| (0..8).for_each(|_| waiter.quiescent());
        turn(&mut waiter);
        assert!(!grace.is_over(), "the reader has announced nothing");
        (0..8).for_each(|_| {
            reader.quiescent();
            waiter.quiescent();
        });
        assert!(!grace.is_over(), "its invocation goes on");
        reader.unpin(pin);
        (0..8).for_each(|_| {
            reader.quiescent();
            waiter.quiescent();
        });
        assert!(grace.is_over());
        let grace = GracePeriod::begin(&waiter);
        reader.offline();
        turn(&mut waiter);
        assert!(grace.is_over(), "a sleeping thread reads nothing");
    }
}
