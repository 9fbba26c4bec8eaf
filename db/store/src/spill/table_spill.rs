//! A table's side of its spill file: reads under way, one for each record however many wait for it, and counters.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;

use super::cold_miss::{ColdMiss, ColdSource, ColdTicket};
use super::file::{SpillFile, WriteOutcome};
use super::pool::{PooledTable, SpillPool};
use super::{AppendCause, SpillAddress, SpillDevice, SpillReadError, SpillRecord, SpillRefusal};
use crate::Participant;

/// Time after which a thread that waits for a tenant's quota looks again: that of the threads of the pool.
const QUOTA_PAUSE: Duration = Duration::from_millis(1);

/// Counters of a table's cold records. Each is right at some moment of the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillStats {
    /// Records whose values are on the disk only.
    pub cold_records: u64,
    /// Bytes of the spill file in use.
    pub file_bytes: u64,
    /// Records that were read from the disk, or from blocks on their way there.
    pub reads: u64,
    /// Reads of these that failed, or found a damaged block.
    pub read_errors: u64,
    /// Bytes of the blocks that were read.
    pub read_bytes: u64,
    /// Times that an operation has met a cold record and waited; several may wait for one read.
    pub waits: u64,
    /// Reads that waited for the tenant's quota of reads or of bytes.
    pub held_by_quota: u64,
    /// Microseconds that reads took together, from the miss until the record was in memory.
    pub read_us: u64,
    /// Records that left memory.
    pub spilled: u64,
    /// Those among them that needed no write: the file had them already.
    pub spilled_clean: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Records that were copied so that their segment could be used again.
    pub copied: u64,
    /// Records that stayed in memory since the file had as many bytes as it may have.
    pub refused_by_quota: u64,
    /// Why writes fail at present, if they do.
    pub failure: Option<SpillRefusal>,
}

#[derive(Debug, Default)]
pub(crate) struct SpillCounters {
    pub(crate) cold_records: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_errors: AtomicU64,
    pub(crate) read_us: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) held_by_quota: AtomicU64,
    pub(crate) refused_by_quota: AtomicU64,
    pub(crate) spilled: AtomicU64,
    pub(crate) spilled_clean: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) copied: AtomicU64,
}

/// What a table of mode `spill` does with what was read.
pub(crate) trait ColdTable {
    /// Returns whether a record is still cold, with its run at this address.
    fn is_cold_at(&self, participant: &Participant, hash: u64, version: u64, address: SpillAddress) -> bool;

    /// Puts a record that was read into memory, unless it has changed meanwhile.
    fn promote(
        &self,
        participant: &Participant,
        hash: u64,
        address: SpillAddress,
        record: &SpillRecord<'_>,
    ) -> Result<(), SpillReadError>;

    /// Writes a record of a segment that is given up to another one; returns false if the file takes no more.
    fn relocate(&self, participant: &Participant, from: SpillAddress, record: &SpillRecord<'_>) -> bool;
}

/// Shows the table, which may go while its records are read, and returns whether it is there.
pub(crate) type TableAccess = Box<dyn Fn(&mut dyn FnMut(&dyn ColdTable)) -> bool + Send + Sync>;

/// The spill file of a table, with what is under way there.
pub(crate) struct TableSpill {
    pub(crate) file: SpillFile,
    pub(crate) counters: SpillCounters,
    with_table: TableAccess,
    pool: Arc<SpillPool>,
    /// The owner, for the log.
    tenant: u32,
    under_way: Mutex<HashMap<(u64, u64), ReadUnderWay>>,
    reads_begun: AtomicU64,
    /// 0: none; else the number in `SpillRefusal::ALL`, from 1 on.
    last_refusal: AtomicUsize,
}

/// A read that is under way, and the tickets that wait for it.
#[derive(Debug)]
struct ReadUnderWay {
    tickets: Vec<Arc<ColdTicket>>,
    /// The tenants that have asked for it: each once, by a read of its own.
    readers: Vec<u32>,
    /// Which read of the table it is: one that waits for longer than the others is not taken for the next one.
    number: u64,
    is_running: bool,
    begun: Instant,
}

impl std::fmt::Debug for TableSpill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableSpill").field("file", &self.file).finish_non_exhaustive()
    }
}

impl TableSpill {
    /// The spill file of a table, which takes `limit_bytes` of the disk at most.
    pub(crate) fn new(
        with_table: TableAccess,
        device: Box<dyn SpillDevice>,
        limit_bytes: u64,
        (pool, tenant): (&Arc<SpillPool>, u32),
    ) -> Arc<TableSpill> {
        let file = SpillFile::new(device, rand::random(), limit_bytes);
        let spill = Arc::new(TableSpill {
            file,
            counters: SpillCounters::default(),
            with_table,
            pool: Arc::clone(pool),
            tenant,
            under_way: Mutex::default(),
            reads_begun: AtomicU64::new(0),
            last_refusal: AtomicUsize::new(0),
        });
        pool.add_table(&spill.pooled());
        spill
    }

    fn pooled(self: &Arc<Self>) -> Arc<dyn PooledTable> {
        Arc::clone(self) as Arc<dyn PooledTable>
    }

    /// Notes why a record has stayed in memory.
    pub(crate) fn note_refusal(&self, refusal: SpillRefusal) {
        let number = SpillRefusal::ALL.iter().position(|known| *known == refusal).map_or(0, |number| number + 1);
        self.last_refusal.store(number, Relaxed);
        self.counters.refused_by_quota.fetch_add(u64::from(refusal == SpillRefusal::Full), Relaxed);
    }

    /// Returns why the last record that could not leave memory has stayed there.
    pub(crate) fn refusal(&self) -> Option<SpillRefusal> {
        let number = self.last_refusal.load(Relaxed).checked_sub(1)?;
        SpillRefusal::ALL.get(number).copied()
    }

    /// Notes that a record has left memory.
    pub(crate) fn note_spilled(&self, is_clean: bool) {
        if self.last_refusal.load(Relaxed) != 0 {
            self.last_refusal.store(0, Relaxed);
        }
        self.counters.cold_records.fetch_add(1, Relaxed);
        self.counters.spilled.fetch_add(1, Relaxed);
        self.counters.spilled_clean.fetch_add(u64::from(is_clean), Relaxed);
    }

    /// Adds a record to the file.
    pub(crate) fn append(
        self: &Arc<Self>,
        record: &SpillRecord<'_>,
        cause: AppendCause,
    ) -> Result<SpillAddress, SpillRefusal> {
        let (address, is_full) = self.file.append(record, cause)?;
        if is_full {
            self.pool.request_write(&self.pooled());
        }
        Ok(address)
    }

    /// Takes a read that this thread makes out of the quota of the tenant that reads, and counts it as the table's.
    /// Waits while the quota is used up; returns false if it still is at `until`.
    pub(crate) fn take_quota(&self, address: SpillAddress, reader: u32, until: Instant) -> bool {
        let mut was_held = false;
        while !self.pool.take_quota(reader, address.bytes()) {
            if !std::mem::replace(&mut was_held, true) {
                self.note_held();
            }
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(QUOTA_PAUSE);
        }
        self.counters.reads.fetch_add(1, Relaxed);
        self.counters.read_bytes.fetch_add(address.bytes(), Relaxed);
        true
    }

    /// Tells all tickets that wait for a record.
    fn end_read(&self, miss: &ColdMiss, done: Result<(), SpillReadError>) {
        let ended = match self.under_way.lock().entry((miss.hash, miss.version)) {
            Entry::Occupied(found) if found.get().number == miss.read => found.remove(),
            _ => return,
        };
        let ReadUnderWay { tickets, begun, .. } = ended;
        self.counters.read_us.fetch_add(begun.elapsed().as_micros() as u64, Relaxed);
        tickets.iter().for_each(|ticket| ticket.note_read(done));
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> SpillStats {
        let counters = &self.counters;
        SpillStats {
            cold_records: counters.cold_records.load(Relaxed),
            file_bytes: self.file.usage().bytes,
            reads: counters.reads.load(Relaxed),
            read_errors: counters.read_errors.load(Relaxed),
            read_us: counters.read_us.load(Relaxed),
            read_bytes: counters.read_bytes.load(Relaxed),
            waits: counters.waits.load(Relaxed),
            held_by_quota: counters.held_by_quota.load(Relaxed),
            refused_by_quota: counters.refused_by_quota.load(Relaxed),
            spilled: counters.spilled.load(Relaxed),
            spilled_clean: counters.spilled_clean.load(Relaxed),
            written_bytes: counters.written_bytes.load(Relaxed),
            write_errors: counters.write_errors.load(Relaxed),
            copied: counters.copied.load(Relaxed),
            failure: self.file.failure(),
        }
    }
}

impl ColdSource for TableSpill {
    fn is_backing(&self) -> bool {
        false
    }

    /// Has a record read, unless it is being read for that tenant already.
    fn fetch(self: Arc<Self>, mut miss: ColdMiss, ticket: &Arc<ColdTicket>) {
        self.counters.waits.fetch_add(1, Relaxed);
        let mut under_way = self.under_way.lock();
        let read = under_way.entry((miss.hash, miss.version)).or_insert_with(|| ReadUnderWay {
            tickets: Vec::with_capacity(1),
            readers: Vec::with_capacity(1),
            number: self.reads_begun.fetch_add(1, Relaxed) + 1,
            is_running: false,
            begun: Instant::now(),
        });
        read.tickets.push(Arc::clone(ticket));
        // Each tenant asks within its own quota, so that one that has used it up holds up no other.
        let is_new = !read.is_running && !read.readers.contains(&miss.reader);
        miss.read = read.number;
        if is_new {
            read.readers.push(miss.reader);
        }
        drop(under_way);
        if is_new {
            self.pool.request_read(self.pooled(), miss);
        }
    }
}

impl PooledTable for TableSpill {
    fn begin_read(&self, miss: &ColdMiss) -> bool {
        let mut under_way = self.under_way.lock();
        let found = under_way.get_mut(&(miss.hash, miss.version)).filter(|read| read.number == miss.read);
        found.is_some_and(|read| !std::mem::replace(&mut read.is_running, true))
    }

    fn run_read(&self, miss: &ColdMiss, participant: &Participant) {
        let read = self.file.read(miss.address, miss.hash, miss.version);
        // A table that is gone gets no second request.
        let mut done = Ok(());
        (self.with_table)(&mut |table| {
            done = match &read {
                Ok(record) => table.promote(participant, miss.hash, miss.address, &record.record()),
                // The table may have given the block back meanwhile: then there is nothing to be read any more.
                Err(_) if !table.is_cold_at(participant, miss.hash, miss.version, miss.address) => Ok(()),
                Err(error) => Err(*error),
            };
        });
        self.counters.reads.fetch_add(1, Relaxed);
        self.counters.read_bytes.fetch_add(miss.address.bytes(), Relaxed);
        self.counters.read_errors.fetch_add(u64::from(done.is_err()), Relaxed);
        self.end_read(miss, done);
    }

    fn note_held(&self) {
        self.counters.held_by_quota.fetch_add(1, Relaxed);
    }

    fn refuse_read(&self, miss: &ColdMiss) {
        self.end_read(miss, Err(SpillReadError::Device));
    }

    fn write_some(&self) -> bool {
        match self.file.write_waiting() {
            WriteOutcome::Idle => false,
            WriteOutcome::Written(bytes) => {
                self.counters.written_bytes.fetch_add(bytes as u64, Relaxed);
                true
            }
            WriteOutcome::Failed(error) => {
                self.counters.write_errors.fetch_add(1, Relaxed);
                if let Some(error) = error {
                    tracing::error!(tenant = self.tenant, %error, "cannot write a spill file: cold records stay in memory");
                }
                false
            }
        }
    }

    fn copy_some(&self, participant: &mut Participant) -> bool {
        let Some(segment) = self.file.sparse_segment() else { return false };
        let (mut goes_on, mut damaged) = (true, false);
        let is_there = (self.with_table)(&mut |table| {
            let damage = self.file.visit_segment(segment, &mut |address, record| {
                goes_on = table.relocate(participant, address, record);
                participant.quiescent();
                goes_on
            });
            damaged = damage.is_err();
        });
        self.counters.read_errors.fetch_add(u64::from(damaged), Relaxed);
        is_there && goes_on && !damaged
    }
}
