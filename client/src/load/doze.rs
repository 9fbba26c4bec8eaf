//! Sleeping between what there is to do, for a load beside a server that needs all processors.

use super::lane::Lane;
use crate::limits;
use sandstorm_net::driver::{Interest, Selector, Waiter};
use std::os::fd::AsFd;

/// What a thread sleeps on: the sockets of all of its lanes.
pub(super) struct Bed {
    selector: Selector,
    waiter: Waiter,
}

impl Bed {
    /// None where a lane has no socket, or the kernel no room: then the thread polls.
    pub(super) fn of(lanes: &[Lane<'_>]) -> Option<Bed> {
        let (selector, waiter) = (Selector::new().ok()?, Waiter::new(None).ok()?);
        for (token, lane) in (0..).zip(lanes) {
            selector.add(lane.socket()?, token, Interest::READ).ok()?;
        }
        Some(Bed { selector, waiter })
    }

    /// Sleeps until an answer comes, or one of the lanes has something to do.
    pub(super) fn sleep(&self, lanes: &[Lane<'_>], now_ns: u64) {
        let due_ns = lanes.iter().map(|lane| lane.due_ns()).min().unwrap_or(u64::MAX);
        let wait_us = due_ns.saturating_sub(now_ns).div_ceil(1_000).min(limits::LOAD_DOZE_US);
        // What is due and cannot go yet waits for room.
        if wait_us == 0 || self.waiter.wait_also(Some(wait_us), false, Some(self.selector.as_fd())).is_err() {
            std::thread::yield_now();
        }
    }
}
