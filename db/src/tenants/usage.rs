//! What a tenant uses: counters, the gate of its concurrent invocations, its request rate, its pushes, its recent kills.
//! Outlives changes of the tenant's settings.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sandstorm_net::rpc::KillCause;

use crate::limits::tenants::RECENT_KILLS;
use crate::metrics::{self, Reading, TenantCounters};

/// An invocation that the server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
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

/// What a tenant uses now and has used.
#[derive(Debug)]
pub struct Usage {
    counters: Box<[CachePadded<TenantCounters>]>,
    running: CachePadded<AtomicU32>,
    /// The moment from which on the rate is fully recovered, in nanoseconds of the callers' clock.
    recovered_ns: CachePadded<AtomicU64>,
    kills: Mutex<VecDeque<Kill>>,
    /// Moments of the pushes of the last hour, in milliseconds since the Unix epoch.
    pushes: Mutex<VecDeque<u64>>,
}

const HOUR_MS: u64 = 3_600_000;
const SECOND_NS: u64 = 1_000_000_000;
/// How much of a second's requests may come at once.
const BURST_NS: u64 = SECOND_NS / 10;

impl Usage {
    pub(super) fn new(workers: usize) -> Usage {
        Usage {
            counters: (0..workers.max(1)).map(|_| CachePadded::default()).collect(),
            running: CachePadded::default(),
            recovered_ns: CachePadded::default(),
            kills: Mutex::default(),
            pushes: Mutex::default(),
        }
    }

    /// The counters that worker number `worker`, and no other thread, writes.
    #[inline]
    pub fn worker(&self, worker: usize) -> &TenantCounters {
        &self.counters[worker % self.counters.len()]
    }

    /// The readings of all workers, added up.
    pub fn read(&self) -> Vec<Reading> {
        metrics::readings(TenantCounters::METRICS, metrics::sum(self.counters.iter().map(|c| c.values())))
    }

    /// Invocations that are begun and not ended.
    pub fn running(&self) -> u32 {
        self.running.load(Relaxed)
    }

    /// Takes a place among `limit` concurrent invocations; `false` if all are taken.
    #[inline]
    pub(super) fn begin(&self, limit: u32) -> bool {
        if self.running.fetch_add(1, Relaxed) < limit {
            return true;
        }
        self.running.fetch_sub(1, Relaxed);
        false
    }

    #[inline]
    pub(super) fn end(&self) {
        let before = self.running.fetch_sub(1, Relaxed);
        debug_assert!(before > 0, "an invocation ended that had not begun");
    }

    /// Whether `requests` more keep within `per_second`, by a virtual clock that each request moves by its share of a
    /// second and that may run ahead by a tenth of a second.
    pub(super) fn admit(&self, now_ns: u64, requests: u32, per_second: u32) -> bool {
        if per_second == 0 {
            return true;
        }
        let cost = u64::from(requests).saturating_mul(SECOND_NS) / u64::from(per_second);
        // A rate under ten a second still lets one through when nothing came before.
        let horizon = now_ns.saturating_add(BURST_NS.max(SECOND_NS / u64::from(per_second)));
        let admitted = self.recovered_ns.fetch_update(Relaxed, Relaxed, |recovered| {
            let start = recovered.max(now_ns);
            let next = start.saturating_add(cost);
            // A message of more operations than a tenth of a second's share passes when the tenant is at rest: it pays by
            // the wait behind it. Otherwise it could never pass.
            (next <= horizon || recovered <= now_ns).then_some(next)
        });
        admitted.is_ok()
    }

    /// Counts a push unless there were `limit` in the hour before.
    pub(super) fn admit_push(&self, now_ms: u64, limit: u32) -> bool {
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

    /// Remembers a kill; the oldest makes room. Takes a lock that is only ever held for such an insertion or a copy: kills
    /// are rare, and no lock is taken on the way of any other request.
    pub fn record_kill(&self, kill: Kill) {
        let mut kills = self.kills.lock();
        if kills.len() >= RECENT_KILLS {
            kills.pop_front();
        }
        kills.push_back(kill);
    }

    /// The recent kills, newest first.
    pub fn kills(&self) -> Vec<Kill> {
        self.kills.lock().iter().rev().cloned().collect()
    }
}
