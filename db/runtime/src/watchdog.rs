//! The thread that requests a switch of polls whose slice is over.
//!
//! It samples each worker's (state, sequence) about every 100 us while any runs tenants' code; it signals a poll that
//! has run for its slice. While no worker runs tenants' code the thread sleeps until one wakes it. Workers do nothing
//! for it but a few stores a poll.
//!
//! While all running code is *proven*, thousands of calls without a long poll, the thread naps. Looking 10,000 times a
//! second for a rare event costs the processor's other users more than it saves. A worker that is about to enter other
//! code ends the nap. So the first long poll after thousands of short calls may continue for a nap, and there are
//! thousands of calls between that and the next. Code that is *known* allows shorter naps, for fewer calls or for those
//! of all tenants together (`shared_trust`): so new tenants do not keep the thread awake, either.
//!
//! (A timer for each worker would interrupt all of them all the time instead. In a prototype on a shared virtual
//! machine, arming and disarming one took 17-43 us. A thread that slept for 100 us took 6-12 % of one processor and,
//! with both processors busy, woke after 116 us, in 99 of 100 cases within 130 us.)
//!
//! Guarantees: signals only go to threads of registered engines, which unregister before their thread can end.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::preemption_policy::{PollReading, PreemptionAction, PreemptionPolicy};
use super::tenant_permits::ProcessPermits;
use super::thread_priority::run_when_woken;
use super::worker_block::{STATE_HOST, STATE_HOST_CALL, WorkerBlock};
use super::{InvocationHandle, clock, signals};
use crate::limits::{
    SPARE_INVOCATIONS, WATCHDOG_IDLE_US, WATCHDOG_LATE_US, WATCHDOG_NAP_AFTER_US, WATCHDOG_NAP_US,
    WATCHDOG_PARK_FALLBACK_US, WATCHDOG_PERIOD_US, WATCHDOG_PRIORITY, WATCHDOG_SHORT_NAP_US,
};
use sandstorm_extension::CallTrust;

/// The watchdog: one per process is enough. Dropping it ends its thread once the last engine is gone.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<WatchdogState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watchdog {
    /// Installs the signal handlers and starts the thread.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn spawn() -> io::Result<Arc<Watchdog>> {
        signals::install_process_handlers()?;
        let has_membarrier = membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED);
        let shared = Arc::new(WatchdogState { has_membarrier, ..WatchdogState::default() });
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(move || watched.watch())?;
        Ok(Arc::new(Watchdog { shared, thread: Mutex::new(Some(thread)) }))
    }

    /// Returns whether it sleeps until a worker runs tenants' code again.
    pub fn is_parked(&self) -> bool {
        self.shared.sleep_state.load(Ordering::Relaxed) == PARKED
    }

    /// Returns how often it has looked at the workers.
    pub fn samples(&self) -> u64 {
        self.shared.samples.load(Ordering::Relaxed)
    }

    /// Returns how often it has requested a switch of a poll.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Returns how often it has looked more than [`WATCHDOG_LATE_US`] later than planned.
    pub fn late(&self) -> u64 {
        self.shared.late.load(Ordering::Relaxed)
    }

    pub(super) fn shared(&self) -> &Arc<WatchdogState> {
        &self.shared
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake();
        // With engines left the thread continues to watch them and ends by itself afterwards.
        let idle = self.shared.workers.lock().is_empty();
        if let Some(thread) = self.thread.lock().take().filter(|_| idle) {
            let _its_panic_is_reported_by_itself = thread.join();
        }
    }
}

/// The state that the watchdog and the engines share.
#[derive(Debug, Default)]
pub(super) struct WatchdogState {
    /// The thread's way to sleep: [`AWAKE`], [`NAPPING_SHORT`], [`NAPPING`] or [`PARKED`]. A futex.
    sleep_state: AtomicU32,
    stop: AtomicBool,
    /// Whether the kernel can make all threads' earlier stores visible at once.
    has_membarrier: bool,
    samples: AtomicU64,
    requests: AtomicU64,
    late: AtomicU64,
    workers: Mutex<Vec<WatchedWorker>>,
    /// Idle invocations that one engine has in excess and another can use.
    spare: Mutex<Vec<InvocationHandle>>,
    /// The resources of which the process has a fixed number.
    pub(super) permits: ProcessPermits,
}

/// It looks, or will within its period.
const AWAKE: u32 = CallTrust::Unknown as u32;
/// A worker that enters tenant code of which nothing is known wakes it; otherwise it wakes by itself, soon.
const NAPPING_SHORT: u32 = CallTrust::Known as u32;
/// A worker that enters unproven tenant code wakes it; otherwise it wakes by itself.
const NAPPING: u32 = CallTrust::Proven as u32;
/// A worker that enters tenant code wakes it.
const PARKED: u32 = NAPPING + 1;

#[derive(Debug)]
struct WatchedWorker {
    block: Arc<WorkerBlock>,
    judge: PreemptionPolicy,
    /// The block's `unproven` and `unknown` as they were at the last look.
    unproven: u64,
    unknown: u64,
    /// The block's `sequence` when a profile looked last.
    profiled: u64,
}

/// The result of one look at the workers.
struct WatchdogSample {
    /// A worker ran tenants' code, now or since the last look, or is about to.
    busy: bool,
    /// The least trust in code that a worker ran since the last look, or runs.
    trust: CallTrust,
    /// The time until the next look.
    next: Duration,
}

impl WatchdogState {
    pub(super) fn register(&self, block: &Arc<WorkerBlock>) {
        self.workers.lock().push(WatchedWorker {
            block: Arc::clone(block),
            judge: PreemptionPolicy::default(),
            unproven: 0,
            unknown: 0,
            profiled: 0,
        });
    }

    pub(super) fn unregister(&self, block: &Arc<WorkerBlock>) {
        self.workers.lock().retain(|watched| !Arc::ptr_eq(&watched.block, block));
        if self.stop.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Asks each worker where it is that runs tenants' code, or has run some since the last call of this; returns all
    /// workers, and to how many of them a signal was sent.
    ///
    /// It also asks workers that it does not see in a call. A call of less than a microsecond is over before the signal
    /// comes, and the worker's next work, such as sending answers, takes longer than the signal. The handler finds out
    /// whether there is code to sample. A worker without calls is left alone: it sleeps, or serves others.
    pub(super) fn sample_workers(&self, workers: &mut Vec<Arc<WorkerBlock>>) -> usize {
        let mut signalled = 0;
        for watched in self.workers.lock().iter_mut() {
            let block = &watched.block;
            let sequence = block.sequence.load(Ordering::Acquire);
            let has_run = std::mem::replace(&mut watched.profiled, sequence) != sequence;
            let is_running = block.ended.load(Ordering::Acquire) != sequence;
            if (has_run || is_running) && block.sample.want() {
                signalled += 1;
                // SAFETY: as in `ask`.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), block.thread, signals::switch_signal()) };
            }
            workers.push(Arc::clone(block));
        }
        signalled
    }

    /// Moves up to `count` spare invocations to `idle`.
    pub(super) fn take_spare(&self, idle: &mut Vec<InvocationHandle>, count: usize) {
        let mut spare = self.spare.lock();
        let from = spare.len().saturating_sub(count);
        idle.extend(spare.drain(from..));
    }

    /// Takes invocations that an engine does not need; frees the excess.
    pub(super) fn give_spare(&self, idle: impl Iterator<Item = InvocationHandle>) {
        let mut spare = self.spare.lock();
        for invocation in idle {
            if spare.len() < SPARE_INVOCATIONS {
                spare.push(invocation);
            }
        }
    }

    /// Called by a worker after it has stored a new sequence, before it enters tenant code.
    #[inline(always)]
    pub(super) fn ensure_awake(&self, trust: CallTrust) {
        // The worker's store and this load may pass each other: the watchdog fences all threads between parking and its
        // last look, so either it sees the new sequence, or this load sees that it parks.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        if (trust as u32) < self.sleep_state.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.sleep_state.swap(AWAKE, Ordering::SeqCst) != AWAKE {
            // SAFETY: a futex of our own.
            unsafe {
                let word = self.sleep_state.as_ptr();
                libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
            }
        }
    }

    fn watch(&self) {
        run_when_woken(WATCHDOG_PRIORITY, WATCHDOG_PERIOD_US);
        let mut busy_at = Instant::now();
        let (mut unknown_at, mut unproven_at) = (busy_at, busy_at);
        while !(self.stop.load(Ordering::SeqCst) && self.workers.lock().is_empty()) {
            let (sample, now) = (self.look(), Instant::now());
            if sample.trust < CallTrust::Proven {
                unproven_at = now;
            }
            if sample.trust < CallTrust::Known {
                unknown_at = now;
            }
            if sample.busy {
                busy_at = now;
            } else if now - busy_at >= Duration::from_micros(WATCHDOG_IDLE_US) {
                self.park();
                busy_at = Instant::now();
                continue;
            }
            let calm = |last: Instant| now - last >= Duration::from_micros(WATCHDOG_NAP_AFTER_US);
            match (calm(unproven_at), calm(unknown_at)) {
                (true, _) => self.nap(NAPPING, WATCHDOG_NAP_US),
                (false, true) => self.nap(NAPPING_SHORT, WATCHDOG_SHORT_NAP_US),
                (false, false) => self.sleep_until_next(now, sample.next),
            }
        }
    }

    /// Sleeps until the next look, and counts it if it comes late.
    fn sleep_until_next(&self, now: Instant, next: Duration) {
        std::thread::sleep(next);
        if now.elapsed() > next + Duration::from_micros(WATCHDOG_LATE_US) {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sleeps for a while, or until a worker enters code with less trust than that takes. A worker that is about to
    /// while this begins may not see it, and the watchdog not see that worker: then it is seen after the nap.
    fn nap(&self, sleep_state: u32, longest_us: u64) {
        self.sleep_state.store(sleep_state, Ordering::SeqCst);
        self.sleep_as(sleep_state, Some(Duration::from_micros(longest_us)));
    }

    /// Sleeps until it is woken, or for so long, if no worker has woken it since it announced this sleep.
    fn sleep_as(&self, sleep_state: u32, longest: Option<Duration>) {
        let longest = longest.map(|longest| libc::timespec {
            tv_sec: longest.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(longest.subsec_nanos() as i32),
        });
        let timeout = longest.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: a futex of our own and a timeout that outlives the call; a spurious return only makes another look.
        unsafe {
            let word = self.sleep_state.as_ptr();
            libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, sleep_state, timeout);
        }
        self.sleep_state.store(AWAKE, Ordering::SeqCst);
    }

    /// Sleeps until a worker enters tenant code.
    fn park(&self) {
        self.sleep_state.store(PARKED, Ordering::SeqCst);
        let has_membarrier = self.has_membarrier && membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
        if self.look().busy || self.stop.load(Ordering::SeqCst) {
            self.sleep_state.store(AWAKE, Ordering::SeqCst);
            return;
        }
        self.sleep_as(PARKED, (!has_membarrier).then(|| Duration::from_micros(WATCHDOG_PARK_FALLBACK_US)));
    }

    fn look(&self) -> WatchdogSample {
        self.samples.fetch_add(1, Ordering::Relaxed);
        let next = Duration::from_micros(WATCHDOG_PERIOD_US);
        let mut sample = WatchdogSample { busy: false, trust: CallTrust::Proven, next };
        for watched in self.workers.lock().iter_mut() {
            let wait_us = watched.look(&mut sample, &self.requests);
            sample.next = sample.next.min(Duration::from_micros(wait_us));
        }
        sample
    }
}

impl WatchedWorker {
    /// Looks at one worker; returns the microseconds until the next look.
    fn look(&mut self, sample: &mut WatchdogSample, requests: &AtomicU64) -> u64 {
        let block = &*self.block;
        let (unproven, unknown) = (block.unproven.load(Ordering::Acquire), block.unknown.load(Ordering::Acquire));
        if std::mem::replace(&mut self.unproven, unproven) != unproven {
            sample.trust = sample.trust.min(CallTrust::Known);
        }
        if std::mem::replace(&mut self.unknown, unknown) != unknown {
            sample.trust = CallTrust::Unknown;
        }
        let sequence = block.sequence.load(Ordering::Acquire);
        let running = block.state.load(Ordering::Acquire) != STATE_HOST;
        let moved = self.judge.sees(sequence);
        // A worker that has seen the watchdog awake may lose its processor for long before it enters tenant code, and
        // does not look again after that.
        let entering = block.ended.load(Ordering::Acquire) != sequence;
        sample.busy |= moved || running || entering;
        if !running {
            return self.judge.rests(block.limit_ns.load(Ordering::Relaxed));
        }
        let (limit_ns, started) = (block.limit_ns.load(Ordering::Acquire), block.started.load(Ordering::Acquire));
        let asked = block.preempt_sequence.load(Ordering::Acquire) == sequence;
        let elapsed_ns = block.tick.ns(clock::ticks().saturating_sub(started));
        // The poll is the same before and after the readings: all of them are of this poll.
        let state = block.state.load(Ordering::Acquire);
        if state == STATE_HOST || block.sequence.load(Ordering::Acquire) != sequence {
            return WATCHDOG_PERIOD_US;
        }
        let reading = PollReading { elapsed_ns, limit_ns, asked, in_call: state == STATE_HOST_CALL };
        let verdict = self.judge.decide(&reading);
        if verdict.act == PreemptionAction::Preempt && self.ask() {
            sample.trust = CallTrust::Unknown;
            requests.fetch_add(1, Ordering::Relaxed);
            self.judge.note_requested(&reading);
        }
        verdict.next_us
    }

    /// Asks the worker to switch the poll under judgement out; returns whether the signal is on its way.
    fn ask(&self) -> bool {
        let block = &*self.block;
        block.preempt_sequence.store(self.judge.sequence(), Ordering::SeqCst);
        // SAFETY: the thread is a registered engine's, and unregistering waits for the lock that is held here.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), block.thread, signals::switch_signal()) == 0 }
    }
}

const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Asks the kernel for a barrier on all threads of the process (or to be ready for that); returns whether it did.
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a system call that changes nothing but the order of memory accesses.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
