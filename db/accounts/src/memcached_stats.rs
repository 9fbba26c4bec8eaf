//! The counts of a tenant's memcached clients for memcached's `stats`. They are allocated only for a tenant with such
//! clients. Each worker's counts have one writer; a reset only notes their values.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use sandstorm_metrics::SingleWriterCounter;

/// Declares the counts.
macro_rules! tallies {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// A count.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Tally {
            $($(#[$doc])* $name,)+
        }

        impl Tally {
            /// All counts, in the order of their numbers.
            pub const ALL: &[Tally] = &[$(Tally::$name,)+];

            /// The name in memcached's `stats`.
            #[inline]
            pub fn name(self) -> &'static str {
                match self {
                    $(Tally::$name => $text,)+
                }
            }
        }
    };
}

tallies! {
    /// Connections that have sent a command.
    WorkerConnections = "total_connections",
    /// Values that were to be stored, with or without success.
    Sets = "cmd_set",
    /// Commands that empty the table.
    Flushes = "cmd_flush",
    /// Meta commands.
    Metas = "cmd_meta",
    /// Keys that were read and existed.
    GetHits = "get_hits",
    /// Keys that were read and did not exist.
    GetMisses = "get_misses",
    /// Keys to be deleted that did not exist.
    DeleteMisses = "delete_misses",
    /// Keys that were deleted.
    DeleteHits = "delete_hits",
    /// Keys to be incremented that did not exist.
    IncrMisses = "incr_misses",
    /// Keys that were incremented.
    IncrHits = "incr_hits",
    /// Keys to be decremented that did not exist.
    DecrMisses = "decr_misses",
    /// Keys that were decremented.
    DecrHits = "decr_hits",
    /// Compare-and-sets of keys that did not exist.
    CasMisses = "cas_misses",
    /// Compare-and-sets that stored something.
    CasHits = "cas_hits",
    /// Compare-and-sets that found another number.
    CasBad = "cas_badval",
    /// Keys that got a new time.
    TouchHits = "touch_hits",
    /// Keys that were to get a new time and did not exist.
    TouchMisses = "touch_misses",
    /// Values that were refused because they were too long.
    StoreTooLarge = "store_too_large",
    /// Values that were refused for lack of room.
    StoreNoMemory = "store_no_memory",
    /// Attempts to authenticate.
    Auths = "auth_cmds",
    /// Those of them with a wrong token.
    AuthErrors = "auth_errors",
    /// Bytes of requests.
    BytesRead = "bytes_read",
    /// Bytes of answers.
    BytesWritten = "bytes_written",
    /// Times that a connection yielded before it went on.
    Yields = "conn_yields",
    /// Values that were stored.
    Stored = "total_items",
}

/// The number of counts.
const COUNT: usize = Tally::ALL.len();

/// The counts of one worker.
#[derive(Debug, Default)]
pub struct WorkerMemcachedCounts([SingleWriterCounter; COUNT]);

impl WorkerMemcachedCounts {
    /// Adds to a count; only for the worker that owns these counts.
    #[inline]
    pub fn add(&self, tally: Tally, n: u64) {
        self.0[tally as usize].add(n);
    }
}

/// The counts of a tenant.
#[derive(Debug, Default)]
pub struct MemcachedStats {
    rows: OnceLock<Box<[CachePadded<WorkerMemcachedCounts>]>>,
    /// The values at the last reset.
    before: Mutex<[u64; COUNT]>,
}

impl MemcachedStats {
    /// The counts of a worker; `workers` is the number of workers.
    pub(crate) fn row(&self, worker: usize, workers: usize) -> &WorkerMemcachedCounts {
        let rows = self.rows.get_or_init(|| (0..workers.max(1)).map(|_| CachePadded::default()).collect());
        // There is one for each worker; a division for each request would take longer than the lookup.
        rows.get(worker).unwrap_or_else(|| &rows[worker % rows.len()])
    }

    fn sums(&self) -> [u64; COUNT] {
        let mut sums = [0; COUNT];
        for row in self.rows.get().into_iter().flatten() {
            sums.iter_mut().zip(&row.0).for_each(|(sum, counter)| *sum += counter.get());
        }
        sums
    }

    /// The counts since the last reset.
    #[inline]
    pub fn since_reset(&self) -> MemcachedTotals {
        let (mut sums, before) = (self.sums(), *self.before.lock());
        sums.iter_mut().zip(before).for_each(|(sum, before)| *sum = sum.saturating_sub(before));
        MemcachedTotals(sums)
    }

    /// Resets the counts.
    #[inline]
    pub fn reset(&self) {
        *self.before.lock() = self.sums();
    }
}

/// The counts of all workers together.
pub struct MemcachedTotals([u64; COUNT]);

impl MemcachedTotals {
    /// One of the counts.
    #[inline]
    pub fn of(&self, tally: Tally) -> u64 {
        self.0[tally as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_counts_are_added_up_and_begin_anew() {
        let tallies = MemcachedStats::default();
        assert_eq!(tallies.since_reset().of(Tally::GetHits), 0);
        tallies.row(0, 2).add(Tally::GetHits, 3);
        tallies.row(1, 2).add(Tally::GetHits, 4);
        tallies.row(1, 2).add(Tally::Stored, 1);
        let totals = tallies.since_reset();
        assert_eq!((totals.of(Tally::GetHits), totals.of(Tally::Stored), totals.of(Tally::GetMisses)), (7, 1, 0));
        tallies.reset();
        tallies.row(0, 2).add(Tally::GetHits, 1);
        assert_eq!(tallies.since_reset().of(Tally::GetHits), 1);
        let mut names: Vec<_> = Tally::ALL.iter().map(|tally| tally.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNT);
    }
}
