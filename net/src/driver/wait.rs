//! Sleeping until a datagram or a signal comes.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The reason why a sleep ended. All false: its time was up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeReason {
    /// A datagram is there.
    pub readable: bool,
    /// There is room for datagrams that wait in an outbox.
    pub writable: bool,
    /// A thread called [`DriverWaker::wake`].
    pub signal: bool,
}

/// Ends the sleep of one [`DriverWaiter`]. A signal given while no thread sleeps ends the next sleep at once.
#[derive(Clone, Debug)]
pub struct DriverWaker {
    event: Arc<OwnedFd>,
}

impl DriverWaker {
    /// Ends the sleep. Never waits. It costs a system call, so use it only for a waiter that may be asleep.
    pub fn wake(&self) {
        // An error can only mean that the counter is full: then it is signalled already.
        let _ = write(&*self.event, &1u64.to_ne_bytes());
    }
}

/// Limits on a waiter's sleep, for a driver that has to be called now and then. Such a driver has timers of its own, or
/// cannot always be told when something comes. Both fields are read when a sleep begins.
#[derive(Debug)]
pub(crate) struct SleepPolicy {
    /// The longest sleep, microseconds.
    pub(crate) max_sleep_us: AtomicU64,
    /// True if the socket ends it.
    pub(crate) listens: AtomicBool,
}

/// Sleeps on a socket (if the driver has one) and a signal.
#[derive(Clone, Debug)]
pub struct DriverWaiter {
    socket: Option<Arc<OwnedFd>>,
    event: Arc<OwnedFd>,
    /// Its driver changes them.
    terms: Option<Arc<SleepPolicy>>,
}

impl DriverWaiter {
    /// A waiter on `socket`.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new(socket: Option<Arc<OwnedFd>>) -> io::Result<DriverWaiter> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(DriverWaiter { socket, event: Arc::new(event), terms: None })
    }

    /// The same, as `terms` say.
    ///
    /// # Errors
    /// As [`DriverWaiter::new`].
    pub(crate) fn with_policy(socket: Option<Arc<OwnedFd>>, terms: Arc<SleepPolicy>) -> io::Result<DriverWaiter> {
        Ok(DriverWaiter { terms: Some(terms), ..DriverWaiter::new(socket)? })
    }

    /// Returns the waker that ends this waiter's sleep.
    pub fn waker(&self) -> DriverWaker {
        DriverWaker { event: self.event.clone() }
    }

    /// Sleeps until a datagram or a signal comes, with `for_room` also until datagrams can be sent, at most
    /// `timeout_us`.
    ///
    /// # Errors
    /// The kernel's error from `poll`, other than an interruption, which counts as a time that is up.
    pub fn wait(&self, timeout_us: Option<u64>, for_room: bool) -> io::Result<WakeReason> {
        self.wait_with(timeout_us, for_room, None)
    }

    /// The same, and until there is something to read at `other`, such as a [`super::EpollSelector`]; the caller looks
    /// there then.
    ///
    /// # Errors
    /// As [`DriverWaiter::wait`].
    pub fn wait_with(
        &self,
        timeout_us: Option<u64>,
        for_room: bool,
        other: Option<BorrowedFd<'_>>,
    ) -> io::Result<WakeReason> {
        let terms = self.terms.as_deref();
        let max_sleep_us = terms.map(|terms| terms.max_sleep_us.load(Relaxed)).filter(|us| *us < u64::MAX);
        let timeout = timeout_us.into_iter().chain(max_sleep_us).min().map(|us| Timespec {
            tv_sec: i64::try_from(us / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: (us % 1_000_000 * 1000) as _,
        });
        let interest = if for_room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let listens = terms.is_none_or(|terms| terms.listens.load(Relaxed));
        let listened_to = self.socket.as_ref().filter(|_| listens);
        let socket = listened_to.unwrap_or(&self.event);
        // Without a socket, or another, the signal is polled in its stead: to poll it twice costs next to nothing.
        let interest = if listened_to.is_some() { interest } else { PollFlags::IN };
        let mut fds = [
            PollFd::from_borrowed_fd(self.event.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(socket.as_fd(), interest),
            PollFd::from_borrowed_fd(other.unwrap_or(self.event.as_fd()), PollFlags::IN),
        ];
        let count = if other.is_some() { 3 } else { 2 };
        match poll(fds.get_mut(..count).unwrap_or_default(), timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(WakeReason::default()),
            Err(error) => return Err(error.into()),
        }
        let on_socket = fds[1].revents();
        let woken = WakeReason {
            readable: listened_to.is_some() && on_socket.intersects(PollFlags::IN | PollFlags::ERR),
            writable: on_socket.contains(PollFlags::OUT),
            signal: !fds[0].revents().is_empty(),
        };
        if woken.signal {
            let mut counter = [0; 8];
            let _ = read(&*self.event, &mut counter);
        }
        Ok(woken)
    }
}
