//! A tenant's extension, its budget and its counters.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use sandstorm_net::rate_limiter::{RateLimit, RateLimiter};
use sandstorm_net::rpc::KillCause;

use super::{CallTrust, CodeOrigin, CodeTier, ExtensionLibrary};
use crate::limits::{
    ARENA_BYTES, CALLS_BURST_NS, COUNTER_STRIPES, LIBRARY_TRUST_STEP, REPLY_BYTES, SLICE_US, TOTAL_US,
};
use sandstorm_metrics::cause_index;
use sandstorm_metrics::histogram::{LatencyCounts, ReplySending, RequestLatency};
use sandstorm_metrics::limits::MAX_WORKERS;

/// The resources that one invocation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// CPU time of one poll, microseconds: between two yields.
    pub slice_us: u64,
    /// CPU time of the whole invocation, microseconds.
    pub total_us: u64,
    /// Memory of the invocation, bytes: arguments, future and all that it allocates.
    pub memory_bytes: usize,
    /// Length of the reply, bytes.
    pub reply_bytes: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { slice_us: SLICE_US, total_us: TOTAL_US, memory_bytes: ARENA_BYTES, reply_bytes: REPLY_BYTES }
    }
}

impl Budget {
    /// Returns this budget with the override's values where it has some.
    #[inline]
    pub fn with(self, other: &BudgetOverride) -> Budget {
        Budget {
            slice_us: other.slice_us.unwrap_or(self.slice_us),
            total_us: other.total_us.unwrap_or(self.total_us),
            memory_bytes: other.memory_bytes.unwrap_or(self.memory_bytes),
            reply_bytes: other.reply_bytes.unwrap_or(self.reply_bytes),
        }
    }
}

/// The values of an extension's budget that replace its tenant's; `None`: the tenant's value applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetOverride {
    /// See [`Budget::slice_us`].
    pub slice_us: Option<u64>,
    /// See [`Budget::total_us`].
    pub total_us: Option<u64>,
    /// See [`Budget::memory_bytes`].
    pub memory_bytes: Option<usize>,
    /// See [`Budget::reply_bytes`].
    pub reply_bytes: Option<usize>,
}

/// One loaded version of a tenant's extension.
#[derive(Debug)]
pub struct LoadedExtension {
    /// The extension's name.
    pub name: Box<str>,
    /// The extension's version, which grows with every push.
    pub version: u64,
    /// The tier of the extension's code.
    pub tier: CodeTier,
    /// What the code was built from.
    pub origin: CodeOrigin,
    /// The extension's code.
    pub library: Arc<ExtensionLibrary>,
    /// The extension's own budget where it differs from its tenant's.
    pub budget: BudgetOverride,
    /// The extension's counters.
    pub stats: ExtensionCounters,
    /// The latency of its calls.
    pub latency: CallLatency,
    /// The memory of its calls.
    pub memory: CallMemory,
    /// The rate limit of the extension's calls.
    pub throttle: CallThrottle,
    /// See [`LoadedExtension::number`].
    number: u64,
}

/// The rate at which calls of an extension are admitted: unlimited, unless they keep being killed.
#[derive(Debug, Default)]
pub struct CallThrottle {
    /// 0: unlimited.
    calls_per_s: AtomicU32,
    pace: RateLimiter,
}

impl CallThrottle {
    /// Sets the rate, 0 for unlimited; returns whether it differs from the one before.
    #[inline]
    pub fn set(&self, calls_per_s: u32) -> bool {
        self.calls_per_s() != calls_per_s && self.calls_per_s.swap(calls_per_s, Ordering::Relaxed) != calls_per_s
    }

    /// The number of calls admitted per second; 0: unlimited.
    #[inline]
    pub fn calls_per_s(&self) -> u32 {
        self.calls_per_s.load(Ordering::Relaxed)
    }

    /// Returns whether a call at `now_ns` is admitted.
    #[inline]
    pub fn admits(&self, now_ns: u64) -> bool {
        let calls_per_s = self.calls_per_s();
        let limit = RateLimit::per_second(calls_per_s.into()).with_burst_ns(CALLS_BURST_NS);
        calls_per_s == 0 || self.pace.admit_shared(&limit, now_ns, 1)
    }
}

/// The memory of an extension's calls that are under way, beyond what each begins with. Few calls have any.
#[derive(Debug, Default)]
pub struct CallMemory(AtomicU64);

impl CallMemory {
    /// Counts memory units more.
    #[inline]
    pub fn add(&self, units: u32) {
        self.0.fetch_add(units.into(), Ordering::Relaxed);
    }

    /// Counts units less that were counted.
    #[inline]
    pub fn remove(&self, units: u32) {
        self.0.fetch_sub(units.into(), Ordering::Relaxed);
    }

    /// The memory units.
    pub fn units(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The latency of an extension's calls, worker by worker.
#[derive(Debug)]
pub struct CallLatency {
    workers: Box<[OnceLock<Box<RequestLatency>>; MAX_WORKERS]>,
    /// The sending of replies over HTTP.
    pub http_sending: ReplySending,
}

impl Default for CallLatency {
    fn default() -> CallLatency {
        let workers = Box::new([const { OnceLock::new() }; MAX_WORKERS]);
        CallLatency { workers, http_sending: ReplySending::default() }
    }
}

impl CallLatency {
    /// Counts a call that ended at a worker, for that worker alone: its CPU time, and the rest of its time.
    #[inline]
    pub fn record(&self, worker: usize, waiting_ns: u64, cpu_ns: u64) {
        if let Some(latency) = self.workers.get(worker) {
            latency.get_or_init(Box::default).record(waiting_ns, cpu_ns, 1);
        }
    }

    /// Counts that the replies of `count` of these calls were sent for so long, for that worker alone.
    pub fn record_sending(&self, worker: usize, sending_ns: u64, count: u64) {
        if let Some(latency) = self.workers.get(worker) {
            latency.get_or_init(Box::default).record_sending(sending_ns, count);
        }
    }

    /// The calls at all workers.
    pub fn read(&self) -> LatencyCounts {
        let mut counts = LatencyCounts::default();
        self.workers.iter().filter_map(OnceLock::get).for_each(|latency| latency.read_into(&mut counts));
        self.http_sending.read_into(&mut counts);
        counts
    }
}

impl LoadedExtension {
    /// Makes a version of an extension that has not run yet, of the native tier.
    #[inline]
    pub fn new(
        name: impl Into<Box<str>>,
        version: u64,
        library: Arc<ExtensionLibrary>,
        budget: BudgetOverride,
    ) -> LoadedExtension {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LoadedExtension {
            name: name.into(),
            version,
            tier: CodeTier::Native,
            origin: CodeOrigin::Source,
            library,
            budget,
            stats: ExtensionCounters::default(),
            latency: CallLatency::default(),
            memory: CallMemory::default(),
            throttle: CallThrottle::default(),
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// Its number in this process, from 1, which no other one has or will have: tenants that share a library each have
    /// an extension of their own.
    #[inline]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The same of another tier, which has to be that of its library.
    #[inline]
    pub fn in_tier(self, tier: CodeTier) -> LoadedExtension {
        LoadedExtension { tier, ..self }
    }

    /// Counts an invocation; returns the trust in its code on this worker. That is what the calls of this extension
    /// have earned, or those of all extensions with the same library.
    #[inline]
    pub fn begun(&self, worker: usize) -> CallTrust {
        let calls = self.stats.begun(worker);
        if calls.is_multiple_of(LIBRARY_TRUST_STEP) {
            self.library.trust.add_step(worker);
        }
        self.trust_after(calls, worker)
    }

    /// Returns the trust in its code on this worker.
    pub fn trust(&self, worker: usize) -> CallTrust {
        self.trust_after(self.stats.calls_since_long_poll(worker), worker)
    }

    #[inline]
    fn trust_after(&self, calls: u64, worker: usize) -> CallTrust {
        match CallTrust::after_calls(calls) {
            CallTrust::Proven => CallTrust::Proven,
            own => own.max(self.library.trust.on(worker)),
        }
    }

    /// Notes a poll that exceeded its slice: its code has to earn its trust anew on this worker.
    #[cold]
    pub fn note_long_poll(&self, worker: usize) {
        self.stats.note_long_poll(worker);
        self.library.trust.withdraw(worker);
    }

    /// The same, built from something else than source.
    #[must_use]
    pub fn made_from(self, origin: CodeOrigin) -> LoadedExtension {
        LoadedExtension { origin, ..self }
    }
}

/// The text of a killed invocation that has none of its own. It is shown after the word "killed".
pub fn kill_text(cause: KillCause) -> &'static str {
    match cause {
        KillCause::SliceBudget => "it exceeded its CPU budget between two yields",
        KillCause::TotalBudget => "it exceeded its CPU budget in total (total_us)",
        KillCause::Panic => "it panicked",
        KillCause::OutOfMemory => "it exhausted its memory quota (arena_bytes)",
        KillCause::StackOverflow => "it overflowed its stack",
        KillCause::DivisionByZero => "it divided by zero",
        KillCause::IllegalInstruction => "it executed an illegal instruction",
        KillCause::MemoryFault => "it accessed memory that is not its own",
        KillCause::Unloaded => "its tenant was deleted, or the server stopped",
        KillCause::ReclaimPressure => "its reads held up memory reclamation; retry",
    }
}

#[derive(Debug, Default)]
struct ExtensionStripe {
    begun: AtomicU64,
    /// The value of `begun` when a poll last exceeded its slice.
    last_long_poll: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    switches: AtomicU64,
    cpu_ns: AtomicU64,
    commits: AtomicU64,
    retries: AtomicU64,
    conflicts: AtomicU64,
    killed: [AtomicU64; KillCause::ALL.len()],
}

/// Counters of one extension, written by the workers without contention.
#[derive(Debug, Default)]
pub struct ExtensionCounters {
    stripes: Box<[CachePadded<ExtensionStripe>; COUNTER_STRIPES]>,
}

/// One reading of [`ExtensionCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InvocationTotals {
    /// Invocations begun.
    pub invocations: u64,
    /// Those of the begun invocations that returned `Ok(())`.
    pub ok: u64,
    /// Those of the begun invocations that returned an error.
    pub failed: u64,
    /// Those of the begun invocations that the server ended, in the order of [`KillCause::ALL`].
    pub killed: [u64; KillCause::ALL.len()],
    /// CPU time that ended invocations took, microseconds.
    pub cpu_us: u64,
    /// Polls that ended by a switch, because they computed past their slice.
    pub switches: u64,
    /// The outcomes of their transactions.
    pub transactions: TransactionCounts,
}

impl InvocationTotals {
    /// Returns the number of invocations under way.
    #[inline]
    pub fn live(&self) -> u64 {
        self.invocations.saturating_sub(self.ok + self.failed + self.killed_total())
    }

    /// Returns the number of invocations that the server ended, whatever the cause.
    #[inline]
    pub fn killed_total(&self) -> u64 {
        self.killed.iter().sum()
    }
}

/// The counts of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionCounts {
    /// The committed transactions.
    pub commits: u64,
    /// Runs of an invocation that began anew because its transaction conflicted with other writes.
    pub retries: u64,
    /// Invocations that were answered `Conflict`, since each of their runs conflicted. They count as failed.
    pub conflicts: u64,
}

/// The outcome of an invocation, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvocationOutcome {
    /// It returned `Ok(())`.
    Done,
    /// It returned an error.
    Failed,
    /// The server ended it.
    Killed(KillCause),
}

impl ExtensionCounters {
    /// Adds all stripes up. A counter that changes meanwhile may or may not be seen, each by itself.
    pub fn read(&self) -> InvocationTotals {
        let mut sum = InvocationTotals::default();
        let mut cpu_ns = 0;
        for stripe in self.stripes.iter() {
            sum.invocations += stripe.begun.load(Ordering::Relaxed);
            sum.ok += stripe.done.load(Ordering::Relaxed);
            sum.failed += stripe.failed.load(Ordering::Relaxed);
            sum.switches += stripe.switches.load(Ordering::Relaxed);
            sum.transactions.commits += stripe.commits.load(Ordering::Relaxed);
            sum.transactions.retries += stripe.retries.load(Ordering::Relaxed);
            sum.transactions.conflicts += stripe.conflicts.load(Ordering::Relaxed);
            cpu_ns += stripe.cpu_ns.load(Ordering::Relaxed);
            for (total, killed) in sum.killed.iter_mut().zip(&stripe.killed) {
                *total += killed.load(Ordering::Relaxed);
            }
        }
        sum.cpu_us = cpu_ns / 1000;
        sum
    }

    /// Returns a worker's stripe and the way to add there: as the only writer, or with other writers.
    fn stripe(&self, worker: usize) -> (&ExtensionStripe, impl Fn(&AtomicU64, u64)) {
        let alone = worker < COUNTER_STRIPES - 1;
        let add = move |counter: &AtomicU64, n: u64| {
            if alone {
                counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
            } else {
                counter.fetch_add(n, Ordering::Relaxed);
            }
        };
        (&self.stripes[worker.min(COUNTER_STRIPES - 1)], add)
    }

    /// Counts an invocation; returns how many there were on this worker since a poll last exceeded its slice.
    #[inline]
    fn begun(&self, worker: usize) -> u64 {
        let (stripe, add) = self.stripe(worker);
        add(&stripe.begun, 1);
        self.calls_since_long_poll(worker)
    }

    /// Returns the invocations on this worker since a poll last exceeded its slice.
    #[inline]
    fn calls_since_long_poll(&self, worker: usize) -> u64 {
        let (stripe, _) = self.stripe(worker);
        stripe.begun.load(Ordering::Relaxed).wrapping_sub(stripe.last_long_poll.load(Ordering::Relaxed))
    }

    /// Notes a poll that exceeded its slice.
    #[cold]
    fn note_long_poll(&self, worker: usize) {
        let (stripe, _) = self.stripe(worker);
        stripe.last_long_poll.store(stripe.begun.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Counts a poll that was switched out.
    #[cold]
    pub fn switched_out(&self, worker: usize) {
        let (stripe, add) = self.stripe(worker);
        add(&stripe.switches, 1);
    }

    /// Counts the outcome of an ended invocation's transaction.
    #[cold]
    pub fn transaction(&self, worker: usize, counted: TransactionCounts) {
        let (stripe, add) = self.stripe(worker);
        add(&stripe.commits, counted.commits);
        add(&stripe.retries, counted.retries);
        add(&stripe.conflicts, counted.conflicts);
    }

    /// Counts an invocation's end, and its total CPU time.
    #[inline]
    pub fn ended(&self, worker: usize, outcome: InvocationOutcome, cpu_ns: u64) {
        let (stripe, add) = self.stripe(worker);
        add(&stripe.cpu_ns, cpu_ns);
        match outcome {
            InvocationOutcome::Done => add(&stripe.done, 1),
            InvocationOutcome::Failed => add(&stripe.failed, 1),
            InvocationOutcome::Killed(cause) => add(&stripe.killed[cause_index(cause)], 1),
        }
    }
}
