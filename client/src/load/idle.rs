//! Sleeps while no request is due, for a load beside a server that needs all processors.

use super::connection::LoadConnection;
use crate::limits;
use sandstorm_net::driver::{DriverWaiter, EpollSelector, SocketInterest};
use std::os::fd::AsFd;

/// Lets a thread sleep on the sockets of all of its connections.
pub(super) struct IdleWaiter {
    selector: EpollSelector,
    waiter: DriverWaiter,
}

impl IdleWaiter {
    /// Returns `None` where a connection has no socket, or the kernel no room: then the thread polls.
    pub(super) fn of(connections: &[LoadConnection<'_>]) -> Option<IdleWaiter> {
        let (selector, waiter) = (EpollSelector::new().ok()?, DriverWaiter::new(None).ok()?);
        for (token, connection) in (0..).zip(connections) {
            selector.add(connection.socket()?, token, SocketInterest::READ).ok()?;
        }
        Some(IdleWaiter { selector, waiter })
    }

    /// Sleeps until an answer comes, or one of the connections has something to do.
    pub(super) fn sleep(&self, connections: &[LoadConnection<'_>], now_ns: u64) {
        let due_ns = connections.iter().map(|connection| connection.due_ns()).min().unwrap_or(u64::MAX);
        let wait_us = due_ns.saturating_sub(now_ns).div_ceil(1_000).min(limits::LOAD_MAX_SLEEP_US);
        // A request that is due and cannot go yet waits for room.
        if wait_us == 0 || self.waiter.wait_with(Some(wait_us), false, Some(self.selector.as_fd())).is_err() {
            std::thread::yield_now();
        }
    }
}
