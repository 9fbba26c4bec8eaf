//! What a tenant uses: counters, the gate of its concurrent invocations, its request rate, its pushes, its recent
//! kills. Outlives changes of the tenant's settings.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sandstorm_net::rate_limiter::{RateLimit, RateLimiter};
use sandstorm_net::rpc::KillCause;

use super::client_list::ClientList;
use super::command_stats::{self, CommandBaseline, CommandCounts, CommandStat};
use super::memcached_stats::{MemcachedStats, WorkerMemcachedCounts};
use super::slow_log::SlowLog;
use crate::limits::{CHANGES, RECENT_KILLS, REQUESTS_BURST_NS};
use crate::limits::{INVOCATION_UNITS, MEMORY_UNIT_BYTES};
use sandstorm_metrics as metrics;
use sandstorm_metrics::{MetricReading, TenantCounters};

/// An invocation that the server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillRecord {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// Why.
    pub cause: KillCause,
    /// CPU time it had used, in microseconds.
    pub cpu_us: u64,
    /// Time since it began, in microseconds.
    pub wall_us: u64,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The worker that ran it.
    pub worker: u32,
    /// What its caller was told.
    pub text: String,
}

/// Something that the server did about an extension, for those who look at its kills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEvent {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// What: `slowed`, `suspended`, `released`.
    pub what: &'static str,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Why.
    pub text: String,
}

/// What a tenant uses now and has used.
#[derive(Debug)]
pub struct TenantUsage {
    workers: Box<[CachePadded<WorkerUsage>]>,
    /// Invocations that are begun and not ended, above [`INVOCATION_SHIFT`] bits of the memory units that they hold:
    /// one step counts both, so that neither quota can be passed by a race.
    held: CachePadded<AtomicU64>,
    requests: CachePadded<RateLimiter>,
    /// Side stacks that its switched-out invocations hold.
    pub parked: AtomicUsize,
    kills: Mutex<VecDeque<KillRecord>>,
    kills_total: AtomicU64,
    /// Its Redis clients' commands that took long.
    pub slow: SlowLog,
    /// Its Redis clients.
    pub clients: ClientList,
    forgotten: CommandBaseline,
    /// What its memcached clients have done.
    pub tallies: MemcachedStats,
    policy_events: Mutex<VecDeque<PolicyEvent>>,
    changes: RateLimiter,
    /// Moments of the pushes of the last hour, in milliseconds since the Unix epoch.
    pushes: Mutex<VecDeque<u64>>,
}

/// What it uses of one worker.
#[derive(Debug, Default)]
struct WorkerUsage {
    counters: TenantCounters,
    kept: BufferCount,
    commands: command_stats::WorkerCommandCounts,
}

/// Places that are taken by one thread at a time, and given back by any.
#[derive(Debug, Default)]
pub struct BufferCount(AtomicU32);

impl BufferCount {
    /// How many are taken.
    #[inline]
    pub fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    #[inline]
    pub fn take(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    #[inline]
    pub fn give_back(&self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Bits of [`TenantUsage::held`] that count memory units: enough for 4 PiB. Those above count invocations.
const INVOCATION_SHIFT: u32 = 40;
const UNITS_MASK: u64 = (1 << INVOCATION_SHIFT) - 1;
const ONE_INVOCATION: u64 = (1 << INVOCATION_SHIFT) + INVOCATION_UNITS as u64;

/// What is said where memory is refused because of the tenant's quota.
pub const MEMORY_TEXT: &str =
    "quota invocation_memory_bytes: the tenant's invocations hold all the memory that they may have together";

/// Memory units that `bytes` take, the last one perhaps in part.
#[inline]
pub fn memory_units(bytes: usize) -> u32 {
    bytes.div_ceil(MEMORY_UNIT_BYTES) as u32
}

const HOUR_MS: u64 = 3_600_000;

impl TenantUsage {
    /// Nothing used so far, on so many workers.
    pub fn new(workers: usize) -> TenantUsage {
        TenantUsage {
            workers: (0..workers.max(1)).map(|_| CachePadded::default()).collect(),
            held: CachePadded::default(),
            requests: CachePadded::default(),
            parked: AtomicUsize::new(0),
            kills: Mutex::default(),
            kills_total: AtomicU64::new(0),
            slow: SlowLog::default(),
            clients: ClientList::default(),
            forgotten: CommandBaseline::default(),
            tallies: MemcachedStats::default(),
            policy_events: Mutex::default(),
            changes: RateLimiter::default(),
            pushes: Mutex::default(),
        }
    }

    /// The counters that worker number `worker`, and no other thread, writes.
    #[inline]
    pub fn worker(&self, worker: usize) -> &TenantCounters {
        &self.of(worker).counters
    }

    /// What its memcached clients have done at that worker, which alone counts there.
    #[inline]
    pub fn tallies(&self, worker: usize) -> &WorkerMemcachedCounts {
        self.tallies.row(worker, self.workers.len())
    }

    /// What worker number `worker` has. There is one for each; to divide for each request would take longer than to
    /// look.
    #[inline]
    fn of(&self, worker: usize) -> &WorkerUsage {
        self.workers.get(worker).unwrap_or_else(|| &self.workers[worker % self.workers.len()])
    }

    /// The packet buffers of queue number `port` in which values that the tenant has put are stored.
    #[inline]
    pub fn kept(&self, port: usize) -> &BufferCount {
        &self.of(port).kept
    }

    /// What worker number `worker`, and no other thread, counts of a command, by its number among `all`.
    #[inline]
    pub fn command(&self, worker: usize, number: usize, all: usize) -> &CommandCounts {
        let counts = self.of(worker).commands.get_or_init(|| (0..all).map(|_| CommandCounts::default()).collect());
        &counts[number]
    }

    /// What all workers have counted of commands, by their numbers.
    #[inline]
    pub fn commands(&self) -> Vec<CommandStat> {
        self.forgotten.since(self.workers.iter().map(|worker| &worker.commands))
    }

    /// Has what was counted of commands so far be forgotten.
    #[inline]
    pub fn reset_commands(&self) {
        self.forgotten.forget(self.workers.iter().map(|worker| &worker.commands));
    }

    /// The readings of all workers, added up.
    #[inline]
    pub fn read(&self) -> Vec<MetricReading> {
        metrics::readings(
            TenantCounters::METRICS,
            metrics::sum_rows(self.workers.iter().map(|worker| worker.counters.values())),
        )
    }

    /// Invocations that are begun and not ended.
    #[inline]
    pub fn running(&self) -> u32 {
        (self.held.load(Relaxed) >> INVOCATION_SHIFT) as u32
    }

    /// Bytes of memory that the tenant's invocations are charged for.
    #[inline]
    pub fn invocation_memory_bytes(&self) -> u64 {
        (self.held.load(Relaxed) & UNITS_MASK) * MEMORY_UNIT_BYTES as u64
    }

    /// Takes a place among `limit` concurrent invocations, with the memory that each has from its beginning. On an
    /// error nothing is taken.
    ///
    /// # Errors
    /// The text that names the quota which is reached.
    #[inline]
    pub fn begin(&self, limit: u32, memory_bytes: u64) -> Result<(), &'static str> {
        let before = self.held.fetch_add(ONE_INVOCATION, Relaxed);
        let units = (before & UNITS_MASK) + u64::from(INVOCATION_UNITS);
        let counted = before >> INVOCATION_SHIFT < u64::from(limit);
        if counted && units <= memory_bytes / MEMORY_UNIT_BYTES as u64 {
            return Ok(());
        }
        self.held.fetch_sub(ONE_INVOCATION, Relaxed);
        Err(if counted {
            MEMORY_TEXT
        } else {
            "quota concurrent_invocations: too many invocations of the tenant are under way"
        })
    }

    #[inline]
    /// Ends so many invocations, with the memory that each began with.
    pub fn end(&self, count: u32) {
        let held = u64::from(count) * ONE_INVOCATION;
        let before = self.held.fetch_sub(held, Relaxed);
        debug_assert!(before >= held, "an invocation ended that had not begun");
        debug_assert!(before & UNITS_MASK >= held & UNITS_MASK, "an invocation gave back more than it held");
    }

    /// Charges for memory units beyond those that every invocation has; `false`, and nothing is charged, if that would
    /// pass the quota.
    #[inline]
    pub fn charge(&self, units: u32, memory_bytes: u64) -> bool {
        let before = self.held.fetch_add(u64::from(units), Relaxed) & UNITS_MASK;
        let fits = before + u64::from(units) <= memory_bytes / MEMORY_UNIT_BYTES as u64;
        if !fits {
            self.uncharge(units);
        }
        fits
    }

    /// Gives units back that [`TenantUsage::charge`] took.
    #[inline]
    pub fn uncharge(&self, units: u32) {
        let before = self.held.fetch_sub(u64::from(units), Relaxed) & UNITS_MASK;
        debug_assert!(before >= u64::from(units), "more memory was given back than was charged");
    }

    /// Whether `requests` more at `now_ns` (the workers' clock) keep within `per_second`; 0: any do.
    #[inline]
    pub fn admit(&self, now_ns: u64, requests: u32, per_second: u32) -> bool {
        let limit = RateLimit::per_second(per_second.into()).with_burst_ns(REQUESTS_BURST_NS);
        per_second == 0 || self.requests.admit_shared(&limit, now_ns, requests)
    }

    /// Counts a change that the tenant asks for over the control port, unless too many came before. `now_ns` is of any
    /// clock that does not run back, the same for all calls.
    pub fn admit_change(&self, now_ns: u64) -> bool {
        self.changes.admit_shared(&CHANGES, now_ns, 1)
    }

    /// Counts a push unless there were `limit` in the hour before.
    pub fn admit_push(&self, now_ms: u64, limit: u32) -> bool {
        let mut pushes = self.pushes.lock();
        while pushes.front().is_some_and(|&at| at.saturating_add(HOUR_MS) <= now_ms) {
            pushes.pop_front();
        }
        if pushes.len() >= limit as usize {
            return false;
        }
        pushes.push_back(now_ms);
        true
    }

    /// Pushes that count at that moment.
    #[inline]
    pub fn pushes(&self, now_ms: u64) -> usize {
        self.pushes.lock().iter().filter(|&&at| at.saturating_add(HOUR_MS) > now_ms).count()
    }

    /// Remembers a kill; the oldest makes room. Takes a lock that is only ever held for such an insertion or a copy:
    /// kills are rare, and no lock is taken on the way of any other request.
    #[inline]
    pub fn record_kill(&self, kill: KillRecord) {
        self.kills_total.fetch_add(1, Relaxed);
        let mut kills = self.kills.lock();
        if kills.len() >= RECENT_KILLS {
            kills.pop_front();
        }
        kills.push_back(kill);
    }

    /// Kills since the tenant was created.
    #[inline]
    pub fn kills_total(&self) -> u64 {
        self.kills_total.load(Relaxed)
    }

    /// Remembers what the server did about an extension; the oldest makes room.
    #[inline]
    pub fn record_policy_event(&self, notice: PolicyEvent) {
        let mut policy_events = self.policy_events.lock();
        if policy_events.len() >= RECENT_KILLS {
            policy_events.pop_front();
        }
        policy_events.push_back(notice);
    }

    /// The recent notices, newest first.
    #[inline]
    pub fn policy_events(&self) -> Vec<PolicyEvent> {
        self.policy_events.lock().iter().rev().cloned().collect()
    }

    /// The recent kills, newest first.
    #[inline]
    pub fn kills(&self) -> Vec<KillRecord> {
        self.kills.lock().iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u32 = 5;
    const MEMORY_UNITS: u32 = 150;

    proptest! {
        /// Neither quota is ever passed, what is refused takes nothing, and when all is given back nothing is held.
        #[test]
        fn memory_is_charged_exactly_and_given_back(steps in prop::collection::vec((0u8..4, 0u32..60), 1..200)) {
            let usage = TenantUsage::new(1);
            let memory_bytes = u64::from(MEMORY_UNITS) * MEMORY_UNIT_BYTES as u64;
            // Units that each invocation has beyond those of every one.
            let mut live: Vec<u32> = Vec::new();
            for (what, units) in steps {
                let held: u32 = live.iter().map(|more| more + INVOCATION_UNITS).sum();
                match what {
                    0 => {
                        let fits = held + INVOCATION_UNITS <= MEMORY_UNITS;
                        let begun = usage.begin(LIMIT, memory_bytes);
                        prop_assert_eq!(begun.is_ok(), fits && live.len() < LIMIT as usize);
                        if let Err(text) = begun {
                            let quota = if live.len() < LIMIT as usize { "invocation_memory_bytes" } else { "concurrent_invocations" };
                            prop_assert!(text.contains(quota), "{}", text);
                        } else {
                            live.push(0);
                        }
                    }
                    1 if !live.is_empty() => {
                        let charged = usage.charge(units, memory_bytes);
                        prop_assert_eq!(charged, held + units <= MEMORY_UNITS);
                        let which = units as usize % live.len();
                        live[which] += if charged { units } else { 0 };
                    }
                    2 if !live.is_empty() => {
                        let more = live.swap_remove(units as usize % live.len());
                        usage.uncharge(more);
                        usage.end(1);
                    }
                    _ => {}
                }
                let held: u32 = live.iter().map(|more| more + INVOCATION_UNITS).sum();
                prop_assert_eq!(usage.invocation_memory_bytes(), u64::from(held) * MEMORY_UNIT_BYTES as u64);
                prop_assert_eq!(usage.running() as usize, live.len());
            }
            for more in live {
                usage.uncharge(more);
                usage.end(1);
            }
            prop_assert_eq!((usage.running(), usage.invocation_memory_bytes()), (0, 0));
        }
    }
}
