//! The use of a tenant: counters, the limit of its concurrent invocations, its request rate, its pushes, its recent
//! kills. It outlives changes of the tenant's settings.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sandstorm_net::rate_limiter::{RateLimit, RateLimiter};

use super::client_list::ClientList;
use super::command_stats::{self, CommandBaseline, CommandCounts, CommandStat};
use super::home_move_record::HomeMoveRecord;
use super::kill_record::KillRecord;
use super::memcached_stats::{MemcachedStats, WorkerMemcachedCounts};
use super::recent_entries::{NewEntries, RecentEntries};
use super::slow_log::SlowLog;
use super::slow_requests::SlowRequests;
use super::tenant_log::TenantLog;
use crate::limits::{CHANGES, HTTP_CALLS, RECENT_HOME_MOVES, RECENT_KILLS, REQUESTS_BURST_NS};
use crate::limits::{INVOCATION_UNITS, MEMORY_UNIT_BYTES};
use sandstorm_metrics as metrics;
use sandstorm_metrics::histogram::{ClassLatencies, ReplySending, RequestClass};
use sandstorm_metrics::latency::LatencyByClass;
use sandstorm_metrics::{MetricReading, TenantCounters};

/// A measure of the server against an extension, listed among its kills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEvent {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// The measure: `slowed`, `suspended`, `released`.
    pub what: &'static str,
    /// Its time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The reason.
    pub text: String,
}

/// The main counters of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTotals {
    /// CPU time of its calls, nanoseconds.
    pub cpu_ns: u64,
    /// Operations received.
    pub requests: u64,
    /// Those of them that were refused because of a quota.
    pub over_quota: u64,
    /// Calls that ended.
    pub calls: u64,
    /// Those of them that returned an error.
    pub failed: u64,
    /// Those of them that the server ended.
    pub killed: u64,
    /// Polls that ended by a switch, because they computed past their slice.
    pub switches: u64,
    /// Records asked for, and values that were to be written, over memcached and Redis connections.
    pub connection_records: u64,
}

/// The current and past use of a tenant.
#[derive(Debug)]
pub struct TenantUsage {
    workers: Box<[CachePadded<WorkerUsage>]>,
    /// Running invocations, above [`INVOCATION_SHIFT`] bits of the memory units that they have. One step counts both,
    /// so that no race can exceed a quota.
    charged: CachePadded<AtomicU64>,
    is_deleted: AtomicBool,
    requests: CachePadded<RateLimiter>,
    over_rate: AtomicU64,
    /// Side stacks of its switched-out invocations.
    pub parked: AtomicUsize,
    /// Memories of its sandboxed code, in use or kept.
    pub guest_memories: AtomicUsize,
    kills: RecentEntries<KillRecord, RECENT_KILLS>,
    /// Slow commands of its Redis clients.
    pub slow: SlowLog,
    /// Its slow requests of all protocols.
    pub slow_requests: SlowRequests,
    /// The lines that its extensions write.
    pub log: TenantLog,
    /// Its Redis clients.
    pub clients: ClientList,
    forgotten: CommandBaseline,
    /// The counts of its memcached clients.
    pub tallies: MemcachedStats,
    policy_events: RecentEntries<PolicyEvent, RECENT_KILLS>,
    home_moves: RecentEntries<HomeMoveRecord, RECENT_HOME_MOVES>,
    changes: RateLimiter,
    http_calls: RateLimiter,
    /// The sending of replies to its calls over HTTP.
    pub http_sending: ReplySending,
    /// The times of the pushes of the last hour, in milliseconds since the Unix epoch.
    pushes: Mutex<VecDeque<u64>>,
}

/// The tenant's use of one worker.
#[derive(Debug, Default)]
struct WorkerUsage {
    counters: TenantCounters,
    rx_buffers: BufferCount,
    commands: command_stats::WorkerCommandCounts,
    latency: ClassLatencies,
}

/// A count of buffers that one thread at a time takes, and any thread gives back.
#[derive(Debug, Default)]
pub struct BufferCount(AtomicU32);

impl BufferCount {
    /// The number of buffers that are taken.
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

/// Bits of [`TenantUsage::charged`] that count memory units: enough for 4 PiB. Those above count invocations.
const INVOCATION_SHIFT: u32 = 40;
const UNITS_MASK: u64 = (1 << INVOCATION_SHIFT) - 1;
const ONE_INVOCATION: u64 = (1 << INVOCATION_SHIFT) + INVOCATION_UNITS as u64;

/// The text of an error when memory is refused because of the tenant's quota.
pub const MEMORY_TEXT: &str =
    "quota invocation_memory_bytes: the tenant's invocations hold all the memory that they may have together";

/// Memory units of `bytes`, rounded up.
#[inline]
pub fn memory_units(bytes: usize) -> u32 {
    bytes.div_ceil(MEMORY_UNIT_BYTES) as u32
}

const HOUR_MS: u64 = 3_600_000;

impl TenantUsage {
    /// The use of a new tenant, with `workers` workers.
    pub fn new(workers: usize) -> TenantUsage {
        TenantUsage {
            workers: (0..workers.max(1)).map(|_| CachePadded::default()).collect(),
            charged: CachePadded::default(),
            is_deleted: AtomicBool::new(false),
            requests: CachePadded::default(),
            parked: AtomicUsize::new(0),
            guest_memories: AtomicUsize::new(0),
            kills: RecentEntries::default(),
            slow: SlowLog::default(),
            slow_requests: SlowRequests::default(),
            log: TenantLog::default(),
            clients: ClientList::default(),
            forgotten: CommandBaseline::default(),
            tallies: MemcachedStats::default(),
            policy_events: RecentEntries::default(),
            home_moves: RecentEntries::default(),
            over_rate: AtomicU64::new(0),
            changes: RateLimiter::default(),
            http_calls: RateLimiter::default(),
            http_sending: ReplySending::default(),
            pushes: Mutex::default(),
        }
    }

    /// Whether the tenant is deleted. Calls of it that are under way keep its usage, and are ended soon.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Relaxed)
    }

    /// Notes that the tenant is deleted, once that is certain.
    pub fn set_deleted(&self) {
        self.is_deleted.store(true, Relaxed);
    }

    /// The counters that worker number `worker`, and no other thread, writes.
    #[inline]
    pub fn worker(&self, worker: usize) -> &TenantCounters {
        &self.of(worker).counters
    }

    /// The counts of its memcached clients at that worker, which alone counts there.
    #[inline]
    pub fn tallies(&self, worker: usize) -> &WorkerMemcachedCounts {
        self.tallies.row(worker, self.workers.len())
    }

    /// The use of worker number `worker`. There is one for each worker; a division for each request would take longer
    /// than the lookup.
    #[inline]
    fn of(&self, worker: usize) -> &WorkerUsage {
        self.workers.get(worker).unwrap_or_else(|| &self.workers[worker % self.workers.len()])
    }

    /// The packet buffers of queue number `port` that store values of the tenant.
    #[inline]
    pub fn rx_buffers(&self, port: usize) -> &BufferCount {
        &self.of(port).rx_buffers
    }

    /// The latency of the tenant's requests at worker number `worker`, which alone writes it.
    #[inline]
    pub fn latency(&self, worker: usize) -> &ClassLatencies {
        &self.of(worker).latency
    }

    /// The latency of the tenant's requests at all workers, by their kind.
    pub fn latencies(&self) -> LatencyByClass {
        let mut counts = LatencyByClass::default();
        self.workers.iter().for_each(|worker| worker.latency.read_into(&mut counts));
        self.http_sending.read_into(&mut counts[RequestClass::Call as usize]);
        counts
    }

    /// The counts of a command on worker number `worker`, by its number among `all`. No other thread writes them.
    #[inline]
    pub fn command(&self, worker: usize, number: usize, all: usize) -> &CommandCounts {
        let counts = self.of(worker).commands.get_or_init(|| (0..all).map(|_| CommandCounts::default()).collect());
        &counts[number]
    }

    /// The counts of commands on all workers, by their numbers.
    #[inline]
    pub fn commands(&self) -> Vec<CommandStat> {
        self.forgotten.since(self.workers.iter().map(|worker| &worker.commands))
    }

    /// Resets the counts of commands.
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

    /// The main counters of all workers, added up: what is read of every tenant each second.
    pub fn totals(&self) -> UsageTotals {
        let mut totals = UsageTotals::default();
        for TenantCounters {
            invocation_cpu_ns,
            requests,
            over_quota,
            invocations_done,
            invocations_failed,
            invocations_killed,
            preemptions,
            connection_reads,
            connection_writes,
            ..
        } in self.workers.iter().map(|worker| &worker.counters)
        {
            let killed: u64 = invocations_killed.iter().map(|counter| counter.get()).sum();
            totals.cpu_ns += invocation_cpu_ns.get();
            totals.requests += requests.get();
            totals.over_quota += over_quota.get();
            totals.calls += invocations_done.get() + invocations_failed.get() + killed;
            totals.failed += invocations_failed.get();
            totals.killed += killed;
            totals.switches += preemptions.get();
            totals.connection_records += connection_reads.get() + connection_writes.get();
        }
        totals
    }

    /// Running invocations.
    #[inline]
    pub fn running(&self) -> u32 {
        (self.charged.load(Relaxed) >> INVOCATION_SHIFT) as u32
    }

    /// Bytes of memory that the tenant's invocations are charged for.
    #[inline]
    pub fn invocation_memory_bytes(&self) -> u64 {
        (self.charged.load(Relaxed) & UNITS_MASK) * MEMORY_UNIT_BYTES as u64
    }

    /// Reserves one of `limit` concurrent invocations, with the memory that each begins with. On an error nothing is
    /// reserved.
    ///
    /// # Errors
    /// The text that names the quota that is reached.
    #[inline]
    pub fn begin(&self, limit: u32, memory_bytes: u64) -> Result<(), &'static str> {
        let before = self.charged.fetch_add(ONE_INVOCATION, Relaxed);
        let units = (before & UNITS_MASK) + u64::from(INVOCATION_UNITS);
        let counted = before >> INVOCATION_SHIFT < u64::from(limit);
        if counted && units <= memory_bytes / MEMORY_UNIT_BYTES as u64 {
            return Ok(());
        }
        self.charged.fetch_sub(ONE_INVOCATION, Relaxed);
        Err(if counted {
            MEMORY_TEXT
        } else {
            "quota concurrent_invocations: too many invocations of the tenant are under way"
        })
    }

    #[inline]
    /// Ends `count` invocations, with the memory that each began with.
    pub fn end(&self, count: u32) {
        let charged = u64::from(count) * ONE_INVOCATION;
        let before = self.charged.fetch_sub(charged, Relaxed);
        debug_assert!(before >= charged, "an invocation ended that had not begun");
        debug_assert!(before & UNITS_MASK >= charged & UNITS_MASK, "an invocation gave back more than it held");
    }

    /// Charges for memory units beyond those of every invocation. Returns `false`, and charges nothing, if that would
    /// exceed the quota.
    #[inline]
    pub fn charge(&self, units: u32, memory_bytes: u64) -> bool {
        let before = self.charged.fetch_add(u64::from(units), Relaxed) & UNITS_MASK;
        let fits = before + u64::from(units) <= memory_bytes / MEMORY_UNIT_BYTES as u64;
        if !fits {
            self.uncharge(units);
        }
        fits
    }

    /// Returns units that [`TenantUsage::charge`] took.
    #[inline]
    pub fn uncharge(&self, units: u32) {
        let before = self.charged.fetch_sub(u64::from(units), Relaxed) & UNITS_MASK;
        debug_assert!(before >= u64::from(units), "more memory was given back than was charged");
    }

    /// Whether `requests` more at `now_ns` (the workers' clock) are within the rate `per_second`; 0: no limit.
    #[inline]
    pub fn admit(&self, now_ns: u64, requests: u32, per_second: u32) -> bool {
        let limit = RateLimit::per_second(per_second.into()).with_burst_ns(REQUESTS_BURST_NS);
        if per_second == 0 || self.requests.admit_shared(&limit, now_ns, requests) {
            return true;
        }
        self.over_rate.fetch_add(requests.into(), Relaxed);
        false
    }

    /// Operations that [`TenantUsage::admit`] has refused.
    pub fn over_rate(&self) -> u64 {
        self.over_rate.load(Relaxed)
    }

    /// Counts a change that the tenant makes over the control port, unless too many came before. `now_ns` is of any
    /// monotonic clock, the same for all calls.
    pub fn admit_change(&self, now_ns: u64) -> bool {
        self.changes.admit_shared(&CHANGES, now_ns, 1)
    }

    /// Counts a call over HTTP, unless too many came before. `now_ns` as for changes.
    pub fn admit_http_call(&self, now_ns: u64) -> bool {
        self.http_calls.admit_shared(&HTTP_CALLS, now_ns, 1)
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

    /// The number of pushes that count at `now_ms`.
    #[inline]
    pub fn pushes(&self, now_ms: u64) -> usize {
        self.pushes.lock().iter().filter(|&&at| at.saturating_add(HOUR_MS) > now_ms).count()
    }

    /// Adds a kill; it displaces the oldest. Its lock is taken only for such an insertion or a copy: kills are rare,
    /// and no other request takes a lock.
    #[inline]
    pub fn record_kill(&self, kill: KillRecord) {
        self.kills.add(kill);
    }

    /// Kills since the tenant was created.
    #[inline]
    pub fn kills_total(&self) -> u64 {
        self.kills.total()
    }

    /// The recent kills, newest first.
    #[inline]
    pub fn kills(&self) -> Vec<KillRecord> {
        self.kills.newest_first()
    }

    /// The kills behind the one of a number: see [`NewEntries`].
    #[inline]
    pub fn kills_after(&self, number: u64) -> NewEntries<KillRecord> {
        self.kills.after(number)
    }

    /// Adds a measure of the server against an extension; it displaces the oldest.
    #[inline]
    pub fn record_policy_event(&self, event: PolicyEvent) {
        self.policy_events.add(event);
    }

    /// The recent policy events, newest first.
    #[inline]
    pub fn policy_events(&self) -> Vec<PolicyEvent> {
        self.policy_events.newest_first()
    }

    /// The policy events behind the one of a number: see [`NewEntries`].
    #[inline]
    pub fn policy_events_after(&self, number: u64) -> NewEntries<PolicyEvent> {
        self.policy_events.after(number)
    }

    /// Adds a move of its home worker after its load; it displaces the oldest.
    #[inline]
    pub fn record_home_move(&self, moved: HomeMoveRecord) {
        self.home_moves.add(moved);
    }

    /// The moves of its home worker behind the one of a number: see [`NewEntries`].
    #[inline]
    pub fn home_moves_after(&self, number: u64) -> NewEntries<HomeMoveRecord> {
        self.home_moves.after(number)
    }

    /// Of a thousand of the tenant's datagrams, those that are dropped early now, workers added up.
    pub fn dropped_early_per_mille(&self) -> u64 {
        self.workers.iter().map(|worker| worker.counters.dropped_early_per_mille.get()).sum()
    }

    /// Connections of the tenant's memcached and Redis clients.
    pub fn connections(&self) -> u64 {
        self.workers.iter().map(|worker| worker.counters.connections.get()).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u32 = 5;
    const MEMORY_UNITS: u32 = 150;

    proptest! {
        /// Neither quota is ever exceeded, a refusal takes nothing, and nothing is left when all is given back.
        #[test]
        fn memory_is_charged_exactly_and_given_back(steps in prop::collection::vec((0u8..4, 0u32..60), 1..200)) {
            let usage = TenantUsage::new(1);
            let memory_bytes = u64::from(MEMORY_UNITS) * MEMORY_UNIT_BYTES as u64;
            // Memory units of each invocation beyond those of every one.
            let mut live: Vec<u32> = Vec::new();
            for (what, units) in steps {
                let charged: u32 = live.iter().map(|more| more + INVOCATION_UNITS).sum();
                match what {
                    0 => {
                        let fits = charged + INVOCATION_UNITS <= MEMORY_UNITS;
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
                        let is_charged = usage.charge(units, memory_bytes);
                        prop_assert_eq!(is_charged, charged + units <= MEMORY_UNITS);
                        let which = units as usize % live.len();
                        live[which] += if is_charged { units } else { 0 };
                    }
                    2 if !live.is_empty() => {
                        let more = live.swap_remove(units as usize % live.len());
                        usage.uncharge(more);
                        usage.end(1);
                    }
                    _ => {}
                }
                let charged: u32 = live.iter().map(|more| more + INVOCATION_UNITS).sum();
                prop_assert_eq!(usage.invocation_memory_bytes(), u64::from(charged) * MEMORY_UNIT_BYTES as u64);
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
