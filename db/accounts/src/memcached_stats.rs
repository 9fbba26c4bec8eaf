//! What a tenant's memcached clients have done, as memcached's `stats` counts it. A tenant without such clients has
//! none of it in memory. As with other counters a worker's have one writer; to reset them is to note what they were.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use sandstorm_metrics::SingleWriterCounter;

/// Names what is counted.
macro_rules! tallies {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// Something that is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Tally {
            $($(#[$doc])* $name,)+
        }

        impl Tally {
            /// All of them, in the order of their numbers.
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
    /// Connections that have said something.
    WorkerConnections = "total_connections",
    /// Values that came to be stored, whatever became of them.
    Sets = "cmd_set",
    /// Commands that empty the table.
    Flushes = "cmd_flush",
    /// Meta commands.
    Metas = "cmd_meta",
    /// Keys that were asked for and there.
    GetHits = "get_hits",
    /// Keys that were asked for and not there.
    GetMisses = "get_misses",
    /// Keys to be deleted that were not there.
    DeleteMisses = "delete_misses",
    /// Keys that were deleted.
    DeleteHits = "delete_hits",
    /// Keys to be added to that were not there.
    IncrMisses = "incr_misses",
    /// Keys that were added to.
    IncrHits = "incr_hits",
    /// Keys to be subtracted from that were not there.
    DecrMisses = "decr_misses",
    /// Keys that were subtracted from.
    DecrHits = "decr_hits",
    /// Compare-and-sets of keys that were not there.
    CasMisses = "cas_misses",
    /// Compare-and-sets that stored something.
    CasHits = "cas_hits",
    /// Compare-and-sets that found another number.
    CasBad = "cas_badval",
    /// Keys that got a new time.
    TouchHits = "touch_hits",
    /// Keys that were to get a new time and were not there.
    TouchMisses = "touch_misses",
    /// Values that were refused because they were too long.
    StoreTooLarge = "store_too_large",
    /// Values that were refused for lack of room.
    StoreNoMemory = "store_no_memory",
    /// Times that a token was shown.
    Auths = "auth_cmds",
    /// Times that it was not the right one.
    AuthErrors = "auth_errors",
    /// Bytes of requests.
    BytesRead = "bytes_read",
    /// Bytes of answers.
    BytesWritten = "bytes_written",
    /// Times that others had their turn before a connection went on.
    Yields = "conn_yields",
    /// Values that were stored.
    Stored = "total_items",
}

/// How many there are.
const COUNT: usize = Tally::ALL.len();

/// The counts of one worker.
#[derive(Debug, Default)]
pub struct WorkerMemcachedCounts([SingleWriterCounter; COUNT]);

impl WorkerMemcachedCounts {
    /// Counts; for the worker whose counts these are.
    #[inline]
    pub fn add(&self, tally: Tally, n: u64) {
        self.0[tally as usize].add(n);
    }
}

/// The counts of a tenant.
#[derive(Debug, Default)]
pub struct MemcachedStats {
    rows: OnceLock<Box<[CachePadded<WorkerMemcachedCounts>]>>,
    /// What they were when they were reset.
    before: Mutex<[u64; COUNT]>,
}

impl MemcachedStats {
    /// Those of one of so many workers.
    pub(crate) fn row(&self, worker: usize, workers: usize) -> &WorkerMemcachedCounts {
        let rows = self.rows.get_or_init(|| (0..workers.max(1)).map(|_| CachePadded::default()).collect());
        // There is one for each; to divide for each request would take longer than to look.
        rows.get(worker).unwrap_or_else(|| &rows[worker % rows.len()])
    }

    fn sums(&self) -> [u64; COUNT] {
        let mut sums = [0; COUNT];
        for row in self.rows.get().into_iter().flatten() {
            sums.iter_mut().zip(&row.0).for_each(|(sum, counter)| *sum += counter.get());
        }
        sums
    }

    /// All of them, since they were reset.
    #[inline]
    pub fn since_reset(&self) -> MemcachedTotals {
        let (mut sums, before) = (self.sums(), *self.before.lock());
        sums.iter_mut().zip(before).for_each(|(sum, before)| *sum = sum.saturating_sub(before));
        MemcachedTotals(sums)
    }

    /// Counts from here on.
    #[inline]
    pub fn reset(&self) {
        *self.before.lock() = self.sums();
    }
}

/// The counts of all workers together.
pub struct MemcachedTotals([u64; COUNT]);

impl MemcachedTotals {
    /// One of them.
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
