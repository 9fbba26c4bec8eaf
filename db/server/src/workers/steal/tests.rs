//! The duration and the size of an offer.

use super::*;

#[test]
fn an_offer_of_long_ones_waits_for_a_thief_while_there_is_something_else_to_do() {
    let mut queue = RunQueue::new();
    let mut offer = OfferPolicy::default();
    (0..6).for_each(|call| queue.push(1, 1, 0, call));
    queue.requeue();
    assert_eq!(offer.begin(queue.waiting(), true), 3);
    let mut offered = Vec::new();
    queue.take_from_back(3, |call| offered.push(call));
    for _ in 0..3 {
        let turn = queue.next().expect("three are left");
        assert!(!offer.should_reclaim(&queue), "others are here");
        queue.done(turn);
    }
    assert!(offer.should_reclaim(&queue), "nothing else is left to do");
    assert!((0..STEAL_OFFER_TURNS).all(|_| !offer.has_expired()) && offer.has_expired());
    // Short ones: only those beyond the run queue's slots are offered, and come back when a slot is free.
    assert_eq!(offer.begin(MAX_INTERLEAVED, false), 0);
    assert_eq!(offer.begin(MAX_INTERLEAVED + 5, false), 5);
    assert!(offer.should_reclaim(&queue));
    assert_eq!((offer.begin(1, true), offer.begin(10 * STEAL_BATCH, true)), (0, STEAL_BATCH));
}
