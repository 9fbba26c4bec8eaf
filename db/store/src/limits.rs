//! Limits of this crate: name, default, unit, reason.

/// Servers of a cluster. Each polls the cluster's state ten times a second; one etcd bears that of this many.
pub const CLUSTER_SERVERS: usize = 64;
/// Longest key in bytes. What the wire carries; a record's header has room for twice that.
pub const MAX_KEY_BYTES: usize = 64 << 10;
/// Longest value in bytes. What the wire carries.
pub const MAX_VALUE_BYTES: usize = 8 << 20;
/// Smallest value, in bytes, that an answer sends from the record's own memory, which is held until then. Such a record
/// counts its holders, in eight bytes of its own. A smaller value is copied sooner than that: 2 KiB are copied three
/// times in some 150 ns.
pub const ZERO_COPY_MIN_VALUE_BYTES: usize = 2048;
/// Smallest value, in bytes, of which a record with the same value as its predecessor holds that one's memory instead
/// of a copy. From here on the copy takes longer than all else of the write, 5 us.
pub const RETAINED_VALUE_BYTES: usize = 64 << 10;
/// Such a value must be at least so many times as long as its key: the old key is held with it, and is not charged.
pub const RETAINED_VALUE_PER_KEY: usize = 16;
/// Bytes charged against a table's quota for each record beside its own allocation: its part of the bucket array at
/// middling load (25), and the slabs' own overhead. Overflow buckets are charged as they come and go, 64 bytes each,
/// however empty.
pub const RECORD_CHARGE_BYTES: u64 = 26;
/// Bytes charged against an ordered table's quota for each record's key beside the key's own bytes. They are its entry
/// in the order and what the allocator rounds a long key up by, 24. A tree's node has 15 to 31 entries of 40 bytes and
/// room for 8 more at most, so 75 bytes with the levels above, and 55 on average.
pub const INDEX_CHARGE_BYTES: u64 = 104;
/// Keys of ordered tables up to so many bytes lie in the order's nodes, which reserve this room whatever the key's
/// length. 32: two numbers and a time, or a name; with the length, an entry of 40 bytes.
pub const INDEX_INLINE_KEY_BYTES: usize = 32;
/// Bytes of memory that a thread keeps for the next unit of logged changes: what most transactions take.
pub const RETAINED_UNIT_BYTES: usize = 4 << 10;
/// Counters of a part of a watch of a table's hottest keys. With eight parts a key is found that has one in two
/// thousand of the requests; a request of a key without a counter looks at all of its part, 60 ns.
pub const WATCH_COUNTERS: usize = 256;
/// Parts of such a watch, each with a lock: more than there are workers on most machines.
pub const WATCH_PARTS: usize = 8;
/// Keys that a watch of a table's key ranges draws in each stretch of time and part: a range with a twentieth of the
/// accesses is then known within a third of that.
pub const HEAT_SAMPLES: usize = 64;
/// Bytes of a key by which it has its place in the ranges. With the samples that is 1 MB for 60 stretches of time.
pub const HEAT_KEY_BYTES: usize = 32;
/// Bytes of a key that a watch shows. With the counters that is 630 KB for a table, while it is watched.
pub const WATCH_KEY_BYTES: usize = 64;
/// Parts of a table's hashes, for each of which the log's position behind the last change is known: 32 KiB a table with
/// durability. Readers of a part with a change that is not on the disk wait for it, those of others do not.
pub const POSITION_PARTS: usize = 4096;
/// Versions that a start skips. A crash takes at most as many changes as can wait for the log's disk (24 MiB, half a
/// million), and their versions were shown: none of them is given to another record.
pub const RESTART_VERSIONS: u64 = 1 << 24;
/// Records that a range looks up together, so that their cache misses overlap.
pub const RANGE_GROUP: usize = 16;
/// Keys that one call for a range looks at, expired and vanished ones included: bounds what a call does between two
/// chances to be ended.
pub const RANGE_KEYS_PER_CALL: usize = 64;
/// Bytes of keys that one call for a range goes through, but for the last key: they are copied while the index is
/// locked, and compared.
pub const RANGE_CALL_KEY_BYTES: usize = 64 << 10;
/// Keys that the ranges of one message look at together, about 150 ns each. They are the records that the message may
/// return (`MULTIGET_KEYS`), one more for each range to tell whether there is more, and most of a thousand expired
/// ones.
pub const RANGE_KEYS_PER_MESSAGE: usize = 2_048;
/// Bytes of their keys together, but for the last one: copied, hashed and compared in about 100 us.
pub const RANGE_KEY_BYTES_PER_MESSAGE: usize = 256 << 10;
/// Bytes of keys that ranges go through beyond that, one key each, before further ranges of the message are refused:
/// all 256 with keys of up to 1 KiB, and 16 that meet one of the longest. About 0.4 ms.
pub const RANGE_KEY_BYTES_BEYOND: usize = 1 << 20;
/// Keys that a range looks at even where earlier ranges have used that up (one, if it is a long one). So the caller
/// makes progress each time, even if other threads are entering the first of them at that moment.
pub const RANGE_MIN_KEYS: usize = 4;
/// Bytes of keys that ranges go through which count as one more request against the tenant's CPU allowance.
pub const RANGE_KEY_BYTES_PER_REQUEST: usize = 1 << 10;
/// Expired records that a commit removes from the ranges that it checks again, while all writers of the table wait: 100
/// us by estimate. If there are more, they are removed while no thread waits ([`RANGE_EXPIRED_PER_COMMIT`]), and the
/// commit begins anew.
pub const RANGE_EXPIRED_LOCKED: usize = 256;
/// Bytes of the keys of those, likewise.
pub const RANGE_EXPIRED_KEY_BYTES_LOCKED: usize = 256 << 10;
/// Expired records that a commit removes at a time as any writer would. If there are more, it ends as a conflict, and
/// the transaction begins anew, with fewer left.
pub const RANGE_EXPIRED_PER_COMMIT: usize = 4096;
/// Bytes of the keys of those, likewise: as many as a transaction may meet in its ranges (`TRANSACTION_ROW_BYTES`).
pub const RANGE_EXPIRED_KEY_BYTES_PER_COMMIT: usize = 4 << 20;
/// Size of the extents that slabs come from, bytes: a huge page, so that 14,000 records of 150 bytes need one
/// translation. Memory that a device can be told to read is handed out in the same pieces.
pub const EXTENT_BYTES: usize = sandstorm_net::limits::DMA_EXTENT_BYTES;
/// A slab of records of one size, bytes. Sizes that are hardly used hold one each (12 MB with all of them); its header
/// is a thousandth of it.
pub const SLAB_BYTES: usize = 64 << 10;
/// Free memory in slabs that have a size, bytes, beyond which records come from the system's allocator. It must also be
/// more than half of the used memory. A slab with one record left serves that record's size alone, and no tenant is
/// charged for the rest of it.
pub const SLAB_WASTE_BYTES: usize = 256 << 20;
/// Granularity of records larger than the largest in slabs, bytes: a cache line. They lie in extents, too.
pub const SPAN_STEP_BYTES: usize = 64;
/// The longest of those records, bytes; larger ones have mappings of their own, and are copied into packets. A packet
/// in a device's ring holds its whole record. So a ring of 512 such packets holds at most 128 MiB of records that may
/// have left their tables.
pub const LONGEST_SPAN_BYTES: usize = 256 << 10;
/// Free memory kept when such an extent is given back, bytes: making a device forget one, and telling it of one again,
/// takes some 100 us.
pub const SPARE_SPAN_BYTES: usize = 8 << 20;
/// Free slabs kept when an extent is given back to the kernel: that costs about 50 us each way.
pub const SPARE_SLABS: usize = 64;
/// Free memory that a thread caches for each size of record, bytes: 27 to 53 objects of 150 bytes, so that the common
/// lock is taken for one write in 27. At most 1.5 MB with all sizes.
pub const CACHED_BYTES_PER_SIZE: usize = 8 << 10;
/// Turns after which a thread gives back its cache of one record size, one size after the other. Each comes round after
/// some 200,000 turns (a second, or ten, of a busy worker), and costs 3 us at most.
pub const TURNS_PER_SIZE_GIVEN_BACK: u32 = 1024;
/// Quota of a table whose creator asks for none, in bytes: practically unlimited.
pub const DEFAULT_TABLE_QUOTA_BYTES: u64 = 1 << 40;
/// Bytes of replaced records in all tables that may wait to be freed before long-running invocations are ended
/// (`RECLAIM_PRESSURE_LIFE_US`). One writer replaces as much in some 50 ms at 500 MB/s; without readers that block it,
/// far less waits.
pub const RECLAIM_PRESSURE_BYTES: u64 = 32 << 20;
/// Garbage of a table beyond which writes are refused, bytes, or one part in [`GARBAGE_ONE_IN`] of its quota, if that
/// is more. A writer replaces as much at 1 GB/s while the last readers of a crowded server end. Only a table whose
/// readers do not end is refused.
pub const GARBAGE_MIN_BYTES: u64 = 256 << 20;
/// See [`GARBAGE_MIN_BYTES`].
pub const GARBAGE_ONE_IN: u64 = 4;
/// Records freed at one quiescent point, beside an eighth of what waits. Freeing one costs 20-100 ns.
pub const RECLAIM_PER_TURN: usize = 128;
/// Rounds of freeing (of eight turns' worth each) before a thread sleeps; the rest moves to the other threads.
pub const RECLAIM_OFFLINE_ROUNDS: usize = 8;
/// Stripes of a table, each with the lock that its writers take: several times the cores that write to one table.
pub const STRIPES: usize = 64;
/// Buckets in the chain of one bucket's hashes. At three quarters full, one in five needs a second bucket, and about 1
/// in 10^12 an eighth: a write that would need that is refused with `OutOfMemory`.
pub const MAX_CHAIN_BUCKETS: usize = 7;
/// Records in so many buckets.
pub const CHAIN_RECORDS: usize = 3 * MAX_CHAIN_BUCKETS + 1;
/// Records among as many consecutive hashes as a bucket has, against a tenant that chooses keys by their hashes: 88. A
/// growing table never refuses to move a record, and inserts ensure that no more than these meet.
pub const MAX_CHAIN_GROUP_RECORDS: usize = 4 * CHAIN_RECORDS;
/// Length of the chain that such keys can build: 29 buckets, some 2 us to look through.
pub const MAX_MOVED_CHAIN_BUCKETS: usize = MAX_CHAIN_GROUP_RECORDS.div_ceil(3);
/// Bucket arrays double up to this many buckets (4 MiB) and grow by half from there, for less memory in reserve.
pub const DOUBLING_BUCKETS: usize = 1 << 16;
/// Buckets that a write moves while the table grows: about 1 us. The table has grown after one insert for every six
/// records, and grows again after one for every two.
pub const BUCKETS_MOVED_PER_WRITE: usize = 2;
/// The same while the larger array is itself three quarters full already.
pub const BUCKETS_MOVED_WHEN_FULL: usize = 16;
/// Slots that a sweep looks at for each bucket of a growing table that it moves: about as much work for each.
pub const SWEEP_SLOTS_PER_MOVED_BUCKET: usize = 16;
/// Slots that a sweep visits at a time, where it visits many: about a millisecond, between two quiescent points.
pub const SWEEP_STEP_SLOTS: usize = 64 << 10;
/// Buckets that one call of a scan visits: about 100 us. The call then returns a cursor, whatever it has found.
pub const SCAN_BUCKETS_PER_CALL: usize = 1024;
/// Records that one write to a cache evicts at most, about 1 ms; a write that needs more room is refused.
pub const EVICTIONS_PER_WRITE: usize = 4096;
/// The same for an ordered cache, each of whose records is looked for in the order as well: about as long.
pub const ORDERED_EVICTIONS_PER_WRITE: usize = 512;
/// Queue entries that are looked at for one eviction; those of the second half get no second chance.
pub const EVICTION_VISITS: usize = 64;
/// Times that a commit to a cache evicts and recalculates the room that it needs: it may have evicted records that it
/// replaces.
pub const COMMIT_EVICTION_ROUNDS: usize = 4;
/// Times that a snapshot of several records is tried without locks, before it locks out their writers.
pub const SNAPSHOT_TRIES: usize = 4;
/// Maximum by which the commits' time is ahead of the system's clock, milliseconds. It is more than the difference
/// between the clocks of workers, which read it once a turn, stalls of the machine included. It is less than the
/// lifetime of any record that a tenant would miss.
pub const COMMIT_AHEAD_MS: u64 = 10_000;
/// Records too long for a piece of an extent have mappings of their own, of whole pages of so many bytes.
pub const MAPPED_STEP_BYTES: usize = 4096;
/// Bytes of such mappings that are kept for the next records: the kernel has to zero a fresh page, which takes as long
/// as filling it.
pub const SPARE_MAPPED_BYTES: usize = 32 << 20;
/// Blocks of 4 KiB that are written to a spill file at once: 256 KiB, which a disk takes at nearly its full rate. They
/// are memory of the table until they are written.
pub const SPILL_CHUNK_BLOCKS: u32 = 64;
/// Such chunks of a table that wait for the disk, 4 MiB; beyond that records stay in memory, and writes of a full table
/// are refused.
pub const SPILL_WAITING_CHUNKS: usize = 16;
/// Threads that read cold records: the reads of a server that are under way together. Thirty records that are awaited
/// together take four reads' time.
pub const SPILL_READERS: usize = 8;
/// Milliseconds between two looks for failed writes to try again, and for sparse segments to copy.
pub const SPILL_RETRY_MS: u64 = 50;
/// Nanoseconds of a tenant's quota of cold reads that may be used at once: a tenth of a second.
pub const SPILL_QUOTA_BURST_NS: u64 = 100_000_000;
/// Bytes that a record counts against its table's quota beside its own while it is in memory and in the spill file: its
/// entry in the list of those that need no write to leave memory.
pub const CLEAN_CHARGE_BYTES: u64 = 40;
/// Part of the quota by which records that were read from the disk may exceed it, one in so many, while none can leave.
pub const SPILL_OVERDRAFT_ONE_IN: u64 = 16;
/// Milliseconds that a start waits for a disk that takes none of the cold records of a table that is restored.
pub const SPILL_RESTORE_WAITS: u32 = 10_000;
/// Bytes that a key counts beside its own while it is noted to have changed, in a slot that is copied elsewhere.
pub const NOTED_KEY_BYTES: usize = 48;
/// Bytes of such keys, at most, of all tables: about a million. Beyond that the copy begins again.
pub const NOTED_KEYS_BYTES: usize = 64 << 20;
/// Cold records that one operation has read at a time; the others follow.
pub const COLD_MISSES_PER_OPERATION: usize = 1024;
/// Part of a table's memory that the cold records take at most which one step of a scan waits for together: a few of
/// them may push others out, and not one another.
pub const AWAITED_MEMORY_ONE_IN: u64 = 8;
/// Cold records that a walk through a table gathers before it reads them, 24 bytes each: as many as a checkpoint, so
/// that those near each other on the disk are read by one read.
pub const WALK_COLD_RECORDS: usize = 65_536;
