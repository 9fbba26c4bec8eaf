//! Which workers a profile asks where they are: those that run code, and those that have run some since it asked last.
//!
//! Guarantees: the only unsafe code stands for a library's and touches nothing.
#![allow(unsafe_code)]

use sandstorm_api::abi;

use super::*;
use crate::sample_slot::CodeSample;

/// A call that is over at once.
unsafe extern "C" fn returns(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    abi::POLL_DONE
}

#[test]
fn a_worker_whose_calls_are_over_is_asked_and_one_without_calls_is_not() {
    let (mut world, extension) = (World::new(), native(returns));
    let watchdog = Arc::clone(world.shared.watchdog.shared());
    let (mut workers, mut sample) = (Vec::new(), CodeSample::default());
    assert_eq!(watchdog.sample_workers(&mut workers), 0, "it has never run a call");
    for _ in 0..3 {
        for _ in 0..100 {
            assert_eq!(world.run(&extension, b"", long()).0, PollOutcome::Done);
        }
        workers.clear();
        assert_eq!(watchdog.sample_workers(&mut workers), 1, "each of its calls was over before the look");
        // The signal was for this thread, whose handler has run by now.
        let slot = &workers.first().expect("the worker").sample;
        assert!(!slot.is_wanted() && !slot.take(&mut sample), "the handler found the server's own code");
        assert_eq!(watchdog.sample_workers(&mut workers), 0, "it has run none since");
    }
}
