//! The threads of spill files. Readers take the cold reads of all tenants by turns, within each tenant's quota; one
//! thread writes full chunks, and copies sparse segments when there is nothing to write.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use sandstorm_net::rate_limiter::{RateLimit, RateLimiter};

use super::cold_miss::ColdMiss;
use crate::limits::{SPILL_QUOTA_BURST_NS, SPILL_READERS, SPILL_RETRY_MS};
use crate::{Epochs, Participant};

/// What a tenant's cold reads may take of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillQuota {
    /// Reads a second.
    pub reads_per_second: u64,
    /// Bytes a second.
    pub bytes_per_second: u64,
}

impl SpillQuota {
    /// No limit but the disk's.
    pub const UNLIMITED: SpillQuota = SpillQuota { reads_per_second: u64::MAX, bytes_per_second: u64::MAX };
}

/// A table's side of its spill file, as the threads use it.
pub(super) trait PooledTable: Send + Sync {
    /// Begins a read; returns false where it is made or over already: another tenant that asked for the record, too,
    /// had its turn before.
    fn begin_read(&self, miss: &ColdMiss) -> bool;

    /// Reads a record, and puts it back into memory.
    fn run_read(&self, miss: &ColdMiss, participant: &Participant);

    /// Notes that a read waits for the tenant's quota.
    fn note_held(&self);

    /// Answers a read that is not made any more, since the server stops.
    fn refuse_read(&self, miss: &ColdMiss);

    /// Writes what waits for the disk; returns whether something could be done at once.
    fn write_some(&self) -> bool;

    /// Copies what is left of a sparse segment, so that it can be used again; returns whether there was one.
    fn copy_some(&self, participant: &mut Participant) -> bool;
}

/// A read, and the table for which it is made.
struct PooledRead {
    table: Arc<dyn PooledTable>,
    miss: ColdMiss,
    /// Whether it has waited for the tenant's quota.
    was_held: bool,
    /// Whether there is nothing to be read: it is dropped where no lock is held, since its table may go with it.
    is_over: bool,
}

impl PooledRead {
    fn run(&self, participant: &Participant) {
        if !self.is_over {
            self.table.run_read(&self.miss, participant);
        }
    }

    fn refuse(&self) {
        self.table.refuse_read(&self.miss);
    }
}

/// A tenant's reads that wait, and what it has used of its quota.
#[derive(Default)]
struct TenantReads {
    waiting: VecDeque<PooledRead>,
    reads: RateLimiter,
    bytes: RateLimiter,
    done: ColdReadCounts,
}

/// The cold reads of a tenant since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdReadCounts {
    /// Records that were read.
    pub reads: u64,
    /// Bytes of the disk that these took.
    pub bytes: u64,
}

#[derive(Default)]
struct PoolState {
    tenants: HashMap<u32, TenantReads>,
    quotas: HashMap<u32, SpillQuota>,
    /// Tenants with reads that wait, each once, in the order of their turns.
    turns: VecDeque<u32>,
    /// Tables with chunks that wait for the disk.
    writes: VecDeque<Weak<dyn PooledTable>>,
    tables: Vec<Weak<dyn PooledTable>>,
    is_stopping: bool,
}

/// The threads, and what waits for them.
pub struct SpillPool {
    state: Mutex<PoolState>,
    reads: Condvar,
    writes: Condvar,
    begun: Instant,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for SpillPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpillPool").finish_non_exhaustive()
    }
}

/// The next thing that a reader does.
enum NextRead {
    Read(PooledRead),
    /// Nothing may be read before this.
    Wait(Duration),
    Nothing,
}

impl PoolState {
    /// Takes the next read, by turns between tenants.
    fn next_read(&mut self, now_ns: u64) -> NextRead {
        for _ in 0..self.turns.len() {
            let Some(tenant) = self.turns.pop_front() else { break };
            let quota = self.quotas.get(&tenant).copied().unwrap_or(SpillQuota::UNLIMITED);
            let Some(of_tenant) = self.tenants.get_mut(&tenant) else { continue };
            if !of_tenant.may_read(&quota, now_ns) {
                self.turns.push_back(tenant);
                if let Some(read) = of_tenant.waiting.front_mut()
                    && !std::mem::replace(&mut read.was_held, true)
                {
                    read.table.note_held();
                }
                continue;
            }
            let Some(mut read) = of_tenant.waiting.pop_front() else { continue };
            read.is_over = !read.table.begin_read(&read.miss);
            if !read.is_over {
                of_tenant.charge(&quota, now_ns, read.miss.address.bytes());
            }
            if !of_tenant.waiting.is_empty() {
                self.turns.push_back(tenant);
            }
            return NextRead::Read(read);
        }
        if self.turns.is_empty() { NextRead::Nothing } else { NextRead::Wait(Duration::from_millis(1)) }
    }
}

fn rate(per_second: u64) -> RateLimit {
    RateLimit::per_second(per_second).with_burst_ns(SPILL_QUOTA_BURST_NS)
}

impl TenantReads {
    fn may_read(&self, quota: &SpillQuota, now_ns: u64) -> bool {
        let now_us = now_ns / 1_000;
        let has_left = |limiter: &RateLimiter, per_second: u64| {
            per_second == u64::MAX || limiter.has_some_left(&rate(per_second), now_us)
        };
        has_left(&self.reads, quota.reads_per_second) && has_left(&self.bytes, quota.bytes_per_second)
    }

    fn charge(&mut self, quota: &SpillQuota, now_ns: u64, bytes: u64) {
        let now_us = now_ns / 1_000;
        self.done.reads += 1;
        self.done.bytes += bytes;
        if quota.reads_per_second != u64::MAX {
            self.reads.charge(&rate(quota.reads_per_second), now_us, 1);
        }
        if quota.bytes_per_second != u64::MAX {
            self.bytes.charge(&rate(quota.bytes_per_second), now_us, bytes);
        }
    }
}

impl SpillPool {
    /// Makes a pool without threads.
    pub fn new() -> Arc<SpillPool> {
        Arc::new(SpillPool {
            state: Mutex::default(),
            reads: Condvar::new(),
            writes: Condvar::new(),
            begun: Instant::now(),
            threads: Mutex::default(),
        })
    }

    /// Starts the threads, which use tables of these epochs, until [`SpillPool::stop`].
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(self: &Arc<Self>, epochs: &Arc<Epochs>) -> std::io::Result<()> {
        let mut threads = self.threads.lock();
        for number in 0..SPILL_READERS {
            let (pool, epochs) = (Arc::clone(self), Arc::clone(epochs));
            let named = thread::Builder::new().name(format!("spill-read-{number}"));
            threads.push(named.spawn(move || pool.read_until_stopped(&epochs))?);
        }
        let (pool, epochs) = (Arc::clone(self), Arc::clone(epochs));
        let named = thread::Builder::new().name("spill-write".to_owned());
        threads.push(named.spawn(move || pool.write_until_stopped(&epochs))?);
        Ok(())
    }

    /// Ends the threads; reads that wait fail.
    pub fn stop(&self) {
        let tenants = {
            let mut state = self.state.lock();
            state.is_stopping = true;
            state.turns.clear();
            std::mem::take(&mut state.tenants)
        };
        self.reads.notify_all();
        self.writes.notify_all();
        tenants.values().flat_map(|tenant| &tenant.waiting).for_each(PooledRead::refuse);
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A thread that has panicked has said so.
            let _ended = thread.join();
        }
    }

    /// Sets what a tenant's cold reads may take from now on.
    pub fn set_quota(&self, tenant: u32, quota: SpillQuota) {
        self.state.lock().quotas.insert(tenant, quota);
    }

    /// Returns what a tenant's cold reads may take.
    #[cfg(any(test, feature = "testing"))]
    pub fn quota(&self, tenant: u32) -> Option<SpillQuota> {
        self.state.lock().quotas.get(&tenant).copied()
    }

    /// Returns what each tenant has read so far that has read anything.
    pub fn cold_reads(&self) -> HashMap<u32, ColdReadCounts> {
        self.state.lock().tenants.iter().map(|(tenant, reads)| (*tenant, reads.done)).collect()
    }

    /// Takes one read of so many bytes out of a tenant's quota; returns false if that is used up at present.
    pub(super) fn take_quota(&self, tenant: u32, bytes: u64) -> bool {
        let now_ns = self.begun.elapsed().as_nanos() as u64;
        let mut state = self.state.lock();
        let quota = state.quotas.get(&tenant).copied().unwrap_or(SpillQuota::UNLIMITED);
        let of_tenant = state.tenants.entry(tenant).or_default();
        let may_read = of_tenant.may_read(&quota, now_ns);
        if may_read {
            of_tenant.charge(&quota, now_ns, bytes);
        }
        may_read
    }

    pub(super) fn add_table(&self, table: &Arc<dyn PooledTable>) {
        let tables = &mut self.state.lock().tables;
        tables.retain(|table| table.strong_count() > 0);
        tables.push(Arc::downgrade(table));
    }

    pub(super) fn request_read(&self, table: Arc<dyn PooledTable>, miss: ColdMiss) {
        let tenant = miss.reader;
        let read = PooledRead { table, miss, was_held: false, is_over: false };
        let mut state = self.state.lock();
        if state.is_stopping {
            drop(state);
            return read.refuse();
        }
        let of_tenant = state.tenants.entry(tenant).or_default();
        let is_first = of_tenant.waiting.is_empty();
        of_tenant.waiting.push_back(read);
        if is_first {
            state.turns.push_back(tenant);
        }
        drop(state);
        self.reads.notify_one();
    }

    pub(super) fn request_write(&self, table: &Arc<dyn PooledTable>) {
        self.state.lock().writes.push_back(Arc::downgrade(table));
        self.writes.notify_one();
    }

    /// Does on this thread what the threads would do now: all reads and writes that wait, and one look for sparse
    /// segments.
    #[cfg(any(test, feature = "testing"))]
    pub fn drive(&self, participant: &mut Participant) {
        loop {
            let next = self.state.lock().next_read(self.begun.elapsed().as_nanos() as u64);
            match next {
                NextRead::Read(read) => read.run(participant),
                NextRead::Wait(time) => thread::sleep(time),
                NextRead::Nothing => break,
            }
        }
        self.state.lock().writes.clear();
        self.tidy(participant);
        participant.online();
    }

    fn read_until_stopped(&self, epochs: &Arc<Epochs>) {
        let mut participant = epochs.register();
        // Offline while it waits for the disk or for work: it delays no freeing of memory.
        participant.offline();
        while let Some(read) = self.wait_for_read() {
            read.run(&participant);
            participant.offline();
        }
    }

    fn wait_for_read(&self) -> Option<PooledRead> {
        let mut state = self.state.lock();
        while !state.is_stopping {
            match state.next_read(self.begun.elapsed().as_nanos() as u64) {
                NextRead::Read(read) => return Some(read),
                NextRead::Wait(time) => drop(self.reads.wait_for(&mut state, time)),
                NextRead::Nothing => self.reads.wait(&mut state),
            }
        }
        None
    }

    fn write_until_stopped(&self, epochs: &Arc<Epochs>) {
        let mut participant = epochs.register();
        participant.offline();
        loop {
            let next = {
                let mut state = self.state.lock();
                if state.writes.is_empty() && !state.is_stopping {
                    self.writes.wait_for(&mut state, Duration::from_millis(SPILL_RETRY_MS));
                }
                if state.is_stopping {
                    return;
                }
                state.writes.pop_front()
            };
            match next {
                Some(spill) => {
                    if let Some(spill) = spill.upgrade() {
                        spill.write_some();
                    }
                }
                // Once in a while: failed writes are tried again, and sparse segments copied.
                None => self.tidy(&mut participant),
            }
        }
    }

    fn tidy(&self, participant: &mut Participant) {
        let tables: Vec<_> = self.state.lock().tables.iter().filter_map(Weak::upgrade).collect();
        for spill in tables {
            while spill.write_some() {}
            let is_busy = || !self.state.lock().writes.is_empty();
            while !is_busy() && spill.copy_some(participant) {}
        }
        participant.offline();
    }
}
