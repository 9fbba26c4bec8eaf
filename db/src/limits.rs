//! Every limit of the server: name, default, unit, reason.

use sandstorm_net::limits::NARROWEST_DATAGRAM;
use sandstorm_net::r2p2::header::SINGLE_HEADER_LEN;
use sandstorm_net::seal::OVERHEAD;

// ---- extensions ----

/// CPU time of one poll of an invocation, microseconds; past it the invocation is switched out. A worker's other tasks wait as
/// long, and a switch took 2 us in a prototype.
pub const SLICE_US: u64 = 100;
/// The same at most while another tenant has asked the worker for something within [`SHARED_FOR_US`]: whoever asks waits for half a
/// slice on average, and for a whole one at worst. Each switch costs the computation about 2 us and the worker a look at the network.
pub const SHARED_SLICE_US: u64 = 50;
/// How long a tenant's last request counts for that, microseconds: ten requests a second keep a worker prompt.
pub const SHARED_FOR_US: u64 = 100_000;
/// CPU time of a whole invocation, microseconds. With [`LIFE_PER_TOTAL`] it bounds how long it pins records that others have replaced.
pub const TOTAL_US: u64 = 10_000;
/// Time from the end of an invocation's first poll for which it may be under way, as a multiple of its CPU time: one that always
/// yields uses little of that, and pins replaced records meanwhile. Clients have long given up by then.
pub const LIFE_PER_TOTAL: u64 = 100;
/// The same at least, microseconds: small budgets must not end calls that only waited for others' turns.
pub const LIFE_MIN_US: u64 = 1_000_000;
/// Polls that an invocation still has after that time: on a machine that stood still for a second nobody has had a turn, and
/// most end within a few.
pub const LIFE_LATE_POLLS: u32 = 16;
/// Memory of an invocation, bytes: arguments, future, allocations.
pub const ARENA_BYTES: usize = 4 << 20;
/// Memory that an invocation begins with, and gets more of at a time, bytes: most need no more, and it stays with idle ones.
pub const ARENA_CHUNK_BYTES: usize = ARENA_HOT_BYTES;
/// Length that an invocation's reply may have before more is charged for, bytes.
pub const REPLY_FIRST_BYTES: usize = 4 << 10;
/// Unit in which memory of invocations is charged to their tenant, bytes: a page.
pub const MEMORY_UNIT_BYTES: usize = 4 << 10;
/// Memory units that every invocation is charged for from its beginning, in the same step that counts it: its first chunk
/// and the beginning of its reply.
pub const INVOCATION_UNITS: u32 = ((ARENA_CHUNK_BYTES + REPLY_FIRST_BYTES) / MEMORY_UNIT_BYTES) as u32;
/// Memory that the invocations of a tenant may hold together, by default, bytes: 64 arenas of full size.
pub const INVOCATION_MEMORY_BYTES: u64 = 256 << 20;
/// Largest memory quota of an invocation that can be asked for, bytes: address space is reserved for it.
pub const ARENA_MAX_BYTES: usize = 1 << 30;
/// Length of an invocation's reply, bytes: the largest value and a little.
pub const REPLY_BYTES: usize = 8 << 20;
/// Length of a library's file, bytes. Examples are 6-33 KB.
pub const LIBRARY_MAX_BYTES: usize = 16 << 20;
/// Address space that a library may take, bytes.
pub const LIBRARY_MAX_MAPPED_BYTES: u64 = 64 << 20;
/// Size of an extension's future, bytes; it lies in the invocation's memory.
pub const FUTURE_MAX_BYTES: usize = 1 << 20;
/// Alignment of an extension's future, bytes: a page.
pub const FUTURE_MAX_ALIGN_BYTES: usize = 4096;

/// Kills of one extension within [`KILL_WINDOW_S`] after which its calls are slowed down, by default: nearly two a second.
pub const SLOW_AFTER_KILLS: u32 = 100;
/// Kills, counted so, after which the extension is suspended, by default.
pub const SUSPEND_AFTER_KILLS: u32 = 500;
/// Part of an extension's calls that kills have to be in order to count: one in so many.
pub const KILLS_ONE_IN: u64 = 100;
/// Calls a second that are let in of an extension that is slowed down, at the least: enough to see whether it has been repaired.
pub const SLOWED_CALLS_PER_S: u32 = 10;
/// Milliseconds between two looks at the kills: at full speed a tenant has hundreds more within that time, which cost itself.
pub const CONDUCT_EVERY_MS: u64 = 250;
/// Seconds for which kills count, by default: time for an operator to see them, and for a tenant to push a repaired version.
pub const KILL_WINDOW_S: u32 = 60;

/// The same while too much memory waits for readers ([`CROWDED_BYTES`]), microseconds, whatever the budgets: five times the
/// CPU time of a whole call. Memory waits for up to three such times, one for each step of the epoch.
pub const CROWDED_LIFE_US: u64 = 50_000;
/// Polls that an invocation still has after that time: a worker that stood still while others wrote is soon through with most.
pub const CROWDED_LATE_POLLS: u32 = 2;

// ---- store ----

/// Longest key in bytes. What the wire carries; a record's header has room for twice that.
pub const MAX_KEY_BYTES: usize = 64 << 10;

/// Longest value in bytes. What the wire carries.
pub const MAX_VALUE_BYTES: usize = 8 << 20;

/// Bytes of a value from which on an answer is sent from where the record lies, which is held until then: such a record counts its holders, in
/// eight bytes of its own. What is smaller is copied sooner than that: 2 KiB are copied three times in some 150 ns.
pub const HELD_VALUE_BYTES: usize = 2048;

/// Bytes charged against a table's quota for each record beside its own allocation: its part of the bucket array at middling load
/// (25), and what the slabs need themselves. Overflow buckets are charged as they come and go, 64 bytes each, however empty.
pub const RECORD_CHARGE_BYTES: u64 = 26;

/// Bytes charged against an ordered table's quota for each record's key beside the key's own bytes: its entry in the order (a tree's
/// node is of 5 to 11 of 40 bytes, so 110 bytes at most with the levels above) and what the allocator rounds a long key up by.
pub const INDEX_CHARGE_BYTES: u64 = 136;

/// Keys of ordered tables up to so many bytes lie in the order's nodes, which have room for as many whatever the key's length. 32: two
/// numbers and a time, or a name; with the length, an entry of 40 bytes.
pub const INDEX_INLINE_KEY_BYTES: usize = 32;

/// Records that a range looks up together, so that their cache misses overlap.
pub const RANGE_GROUP: usize = 16;

/// Keys that one call for a range looks at, expired and vanished ones included: bounds what a call does between two chances to be ended.
pub const RANGE_LOOKS_PER_CALL: usize = 64;

/// Bytes of keys that one call for a range goes through, but for the last key: they are copied while the index is locked, and compared.
pub const RANGE_CALL_KEY_BYTES: usize = 64 << 10;

/// Keys that the ranges of one message look at together, about 150 ns each: the records that they may answer ([`MULTIGET_KEYS`]), one
/// more for each range, which tells whether there is more, and most of a thousand expired ones. A message is served in one go.
pub const RANGE_LOOKS_PER_MESSAGE: usize = 2_048;

/// Bytes of their keys together, but for the last one: copied, hashed and compared in about 100 us.
pub const RANGE_KEY_BYTES_PER_MESSAGE: usize = 256 << 10;

/// Bytes of keys that ranges go through beyond that, one key each, before the further ones of the message are refused: all 256 with keys of up to 1
/// KiB, and 16 that meet one of the longest. About 0.4 ms.
pub const RANGE_KEY_BYTES_BEYOND: usize = 1 << 20;

/// Keys that a range looks at even where those before it have used that up (one, if it is a long one), so that whoever asks comes
/// nearer each time, though others be entering the first of them at that moment.
pub const RANGE_LOOKS_AT_LEAST: usize = 4;

/// Bytes of keys that ranges go through which count as one request more against their tenant's share of the CPU.
pub const RANGE_KEY_BYTES_PER_REQUEST: usize = 1 << 10;

/// Expired records that a commit removes from the ranges that it looks at again, while all writers of the table wait: 100 us by estimate. If
/// there are more, they go when nobody waits ([`RANGE_EXPIRED_PER_COMMIT`]), and the commit begins anew.
pub const RANGE_EXPIRED_HELD: usize = 256;

/// Bytes of the keys of those, likewise.
pub const RANGE_EXPIRED_KEY_BYTES_HELD: usize = 256 << 10;

/// Expired records that a commit removes at a time as any writer would. If there are more, it ends as a conflict, and the transaction
/// begins anew, with fewer left.
pub const RANGE_EXPIRED_PER_COMMIT: usize = 4096;

/// Bytes of the keys of those, likewise: as many as a transaction may meet in its ranges (`TRANSACTION_ROW_BYTES`).
pub const RANGE_EXPIRED_KEY_BYTES_PER_COMMIT: usize = 4 << 20;

/// Memory that slabs come from, bytes: a huge page, so that 14,000 records of 150 bytes need one translation.
/// What a device can be told to read is handed out in the same pieces.
pub const EXTENT_BYTES: usize = sandstorm_net::limits::DMA_EXTENT_BYTES;

/// A slab of records of one size, bytes. Sizes that are hardly used hold one each (12 MB with all of them); its header is a
/// thousandth of it.
pub const SLAB_BYTES: usize = 64 << 10;

/// Free memory in slabs that some size has, bytes, beyond which (if it is also more than half of what is used) records come from the
/// system's allocator: a slab with one record left serves that record's size alone, and nobody is charged for the rest of it.
pub const SLAB_WASTE_BYTES: usize = 256 << 20;

/// Records that are larger than the largest in slabs lie in extents, too, at multiples of this, bytes: a cache line.
pub const SPAN_STEP_BYTES: usize = 64;

/// The longest of those, bytes; larger ones have mappings of their own, and are copied into packets. A packet in a device's ring holds its whole
/// record, so a ring of 512 such packets holds 128 MiB of records at most that may be gone from their tables.
pub const LONGEST_SPAN_BYTES: usize = 256 << 10;

/// Free memory kept when such an extent goes back, bytes: to have a device forget one, and told of it again, takes some 100 us.
pub const SPARE_SPAN_BYTES: usize = 8 << 20;

/// Free slabs kept when an extent goes back to the kernel: that costs about 50 us each way.
pub const SPARE_SLABS: usize = 64;

/// Free memory that a thread keeps at hand for each size of record, bytes: 27 to 53 of 150 bytes, so that the common lock is taken
/// for one write in 27. At most 1.5 MB with all sizes.
pub const CACHED_BYTES_PER_SIZE: usize = 8 << 10;

/// Turns after which a thread gives back what it keeps at hand of one size of record, one size after the other: each comes round after some
/// 200,000 turns (a second, or ten, of a busy worker), and costs 3 us at most.
pub const TURNS_PER_SIZE_GIVEN_BACK: u32 = 1024;

/// Quota of a table that asks for none, in bytes: as good as none.
pub const DEFAULT_TABLE_QUOTA_BYTES: u64 = 1 << 40;

/// Bytes of replaced records in all tables that may wait to be freed before invocations that are under way for long are ended
/// ([`CROWDED_LIFE_US`]): what one writer replaces in some 50 ms at 500 MB/s; without readers that hold it up, it is far less.
pub const CROWDED_BYTES: u64 = 32 << 20;

/// Garbage of a table up to which records are put, bytes, or one part in [`GARBAGE_ONE_IN`] of its quota, if that is more: what
/// a writer replaces at 1 GB/s while the last readers of a crowded server end. Only a table whose readers do not end is refused.
pub const GARBAGE_MIN_BYTES: u64 = 256 << 20;

/// See [`GARBAGE_MIN_BYTES`].
pub const GARBAGE_ONE_IN: u64 = 4;

/// Records freed at one quiescent point, beside an eighth of what waits. Freeing one costs 20-100 ns.
pub const RECLAIM_PER_TURN: usize = 128;

/// Rounds of freeing (of eight turns' worth each) before a thread sleeps; what is left goes to the other threads.
pub const RECLAIM_OFFLINE_ROUNDS: usize = 8;

/// Stripes of a table, each with the lock that its writers take: several times the cores that write to one table.
pub const STRIPES: usize = 64;

/// Buckets in a row for one bucket's hashes. At three quarters full, one in five needs a second bucket, and about 1 in
/// 10^12 an eighth: a write that would need that is refused with `OutOfMemory`.
pub const MAX_CHAIN_BUCKETS: usize = 7;

/// Records in so many buckets.
pub const CHAIN_RECORDS: usize = 3 * MAX_CHAIN_BUCKETS + 1;

/// Records among as many hashes in a row as a bucket has, for who chooses keys by their hashes: 88. A growing table never refuses to
/// move a record, and inserts make sure that no more than these meet.
pub const MAX_CROWD_RECORDS: usize = 4 * CHAIN_RECORDS;

/// Buckets in a row that such keys can come to be in: 29, some 2 us to look through.
pub const MAX_MOVED_CHAIN_BUCKETS: usize = MAX_CROWD_RECORDS.div_ceil(3);

/// Bucket arrays double up to this many buckets (4 MiB) and grow by half from there, for less memory in reserve.
pub const DOUBLING_BUCKETS: usize = 1 << 16;

/// Buckets that a write moves while the table grows: about 1 us. The table has grown after one insert for every six
/// records, and grows again after one for every two.
pub const BUCKETS_MOVED_PER_WRITE: usize = 2;

/// The same while the larger array is itself three quarters full already.
pub const BUCKETS_MOVED_WHEN_FULL: usize = 16;

/// Slots that a sweep looks at for each bucket that it moves of a growing table: about as much work for each.
pub const SWEEP_SLOTS_PER_MOVED_BUCKET: usize = 16;

/// Buckets that one call of a scan visits: about 100 us. The call then answers with a cursor, whatever it has found.
pub const SCAN_BUCKETS_PER_CALL: usize = 1024;

/// Records that one write to a cache evicts at most, about 1 ms; a write that needs more room is refused.
pub const EVICTIONS_PER_WRITE: usize = 4096;

/// The same for an ordered cache, each of whose records is looked for in the order as well: about as long.
pub const ORDERED_EVICTIONS_PER_WRITE: usize = 512;

/// Queue entries that are looked at for one eviction; those of the second half get no second chance.
pub const EVICTION_VISITS: usize = 64;

// ---- transactions ----

/// Times that a commit to a cache evicts and adds up anew what it needs: what it evicted may have been what it replaces.
pub const COMMIT_EVICTION_ROUNDS: usize = 4;

/// Times that a snapshot of several records is tried without locks, before it holds their writers off.
pub const SNAPSHOT_TRIES: usize = 4;

/// How far the time that commits go by is ahead of the system's clock at most, milliseconds. More than the clocks of workers differ, which
/// look at it once a turn, stalls of the machine included; less than anybody lets records live who would miss them.
pub const COMMIT_AHEAD_MS: u64 = 10_000;

/// A side stack, bytes: how deep an extension may recurse.
pub const SIDE_STACK_BYTES: usize = 1 << 20;
/// Side stacks of the process, beside one for each worker: those that switched-out invocations take along, and those that
/// are kept for tenants. Each takes address space, and memory as far as it was used. Where none is left, a switched-out invocation goes on at once, until its total budget is spent.
pub const SIDE_STACKS: usize = 4_096;
/// Of these, as many as switched-out invocations can always have: the other half may be kept for tenants.
pub const PARKED_STACKS: usize = SIDE_STACKS / 2;
/// Stacks that a tenant's switched-out invocations may hold for each of [`PARKED_STACKS`] that is free: of `n` tenants that want all
/// they can get, each has 2 of `2n + 1` parts (one alone 1,365), and one part is left for the others.
pub const PARKED_PER_FREE: usize = 2;
/// Memory that a tenant is charged for while one of its invocations is switched out, at least, bytes: few use more of their stacks,
/// and those are charged for what they use. What lies deeper goes back to the kernel, so no more than that is in memory.
pub const PARKED_STACK_BYTES: usize = 64 << 10;
/// Side stacks that a worker keeps for tenants whose code it ran before: taking one costs no system call, clearing one does.
pub const KEPT_STACKS: usize = 1_024;
/// Cleared side stacks that a worker keeps: as many as are usually switched out at once.
pub const BLANK_STACKS: usize = 32;
/// Memory of a kept side stack that stays with it, bytes; what only deep recursion used goes back to the kernel.
pub const STACK_HOT_BYTES: usize = 16 << 10;
/// Bytes that the processor's extended registers may take: with AVX-512 about 2,700, and a host call must leave room for
/// them within its own part of the stack.
pub const XSTATE_MAX_BYTES: usize = 16 << 10;
/// Inaccessible bytes below a stack. The compiler touches large frames page by page, so one page would do.
pub const STACK_GUARD_BYTES: usize = 64 << 10;
/// Stack that a host call needs, bytes: with less left, the invocation ends with a stack overflow.
pub const HOST_CALL_STACK_BYTES: usize = 32 << 10;
/// Stack of the signal handlers, bytes, on top of what the processor's registers take.
pub const SIGNAL_STACK_BYTES: usize = 64 << 10;
/// The watchdog's signal, as an offset from the first real-time signal that programs may use.
pub const SWITCH_SIGNAL_OFFSET: i32 = 6;
/// Time between two looks of the watchdog, microseconds, while tenants' code runs: how late it may see that a slice is over.
/// In a prototype that took 6-12 % of a core.
pub const WATCHDOG_PERIOD_US: u64 = 100;
/// The same at least, where it knows when a slice will be over, microseconds.
pub const WATCHDOG_MIN_PERIOD_US: u64 = 10;
/// Calls of an extension on a worker without a poll that took longer than its slice, after which the watchdog naps while only such
/// extensions run: so a tenant that saves up for one long poll has let more time go than it gets, [`WATCHDOG_NAP_US`].
pub const PROVEN_CALLS: u64 = 8_192;
/// How long the watchdog naps, microseconds: how late it may see that the first slice after so many calls is over. At 40,000 calls a
/// second, one after another, fewer than 1 in 100 meets it, and a processor that has other work is interrupted 250 times a second.
pub const WATCHDOG_NAP_US: u64 = 4_000;
/// Time since anything else ran after which it naps, microseconds.
pub const WATCHDOG_WARY_US: u64 = 5_000;
/// How far past its slice a poll is charged at most, microseconds: the watchdog's delay, and a host call's that it waits for.
/// What is measured beyond is taken for time that a hypervisor took away.
pub const SWITCH_LATE_US: u64 = 1_000;
/// Time without any tenant's code running after which the watchdog parks, microseconds.
pub const WATCHDOG_IDLE_US: u64 = 5_000;
/// How long the watchdog parks at a time on a kernel without `membarrier`, microseconds.
pub const WATCHDOG_PARK_FALLBACK_US: u64 = 10_000;
/// Age of a reading of the worker's CPU clock up to which polls are judged by it, microseconds; a reading takes 0.3 us.
pub const CPU_MARK_AGE_US: u64 = 50;
/// Charges above this are checked against the worker's CPU clock, microseconds: it may have been descheduled meanwhile.
pub const CHARGE_CHECK_US: u64 = 20;
/// Memory of an idle invocation that stays with it for the next, bytes; what lies above goes back to the kernel.
pub const ARENA_HOT_BYTES: usize = 64 << 10;
/// Memory of ended invocations that goes back to the kernel in one turn of a worker's loop, bytes: about 15 us.
pub const TIDY_BYTES: usize = 256 << 10;
/// Ended invocations of an engine whose memory has yet to go back; with more of them, the next goes back at once and whole.
pub const SOILED_INVOCATIONS: usize = 16;
/// Reply buffer of an idle invocation that stays with it for the next, bytes.
pub const REPLY_HOT_BYTES: usize = 64 << 10;
/// Idle invocations that a worker keeps; of more, half go to a heap that all workers share.
pub const IDLE_INVOCATIONS: usize = 512;
/// Idle invocations in the heap that all workers share.
pub const SPARE_INVOCATIONS: usize = 1_024;
/// Length of the text of an error or panic that reaches the caller, bytes.
pub const ERROR_TEXT_BYTES: usize = 1_024;
/// Records that one scan call hands out at most: bounds what a host call does.
pub const SCAN_CALL_RECORDS: usize = 256;
// Workers.
// ---- workers ----

/// CPU nanoseconds of invocations that a tenant gets in one round, times its weight: less than half a turn, so that a
/// round of two tenants is over within one; enough for dozens of short polls to be interleaved.
pub const QUANTUM_NS: i64 = 20_000;
/// CPU nanoseconds that each operation, and each key of a multiget, counts as against its tenant's share of invocations: what
/// a plain one takes at the least, from the packet to the answer. Not measured one by one: reading the clock takes as long.
pub const REQUEST_NS: u64 = 200;
/// Tenants whose place in the round a worker remembers while they have no invocations there; of more, the idle are forgotten.
pub const LANES_KEPT: usize = 1_024;
/// Workers, at most: their idle marks are the bits of one word.
pub const MAX_WORKERS: usize = 64;
/// Datagrams taken from a port in one turn: enough to overlap the cache misses of their lookups (a batch of 16-32
/// brings a random get from 300-500 ns to 60-90 ns), few enough that the first one does not wait long for its answer.
pub const BURST: usize = 32;
/// Operations planned (hashed and prefetched) before they are run: as many as the processor has misses in flight,
/// and a little more, since a message may carry several.
pub const PLAN: usize = 64;
/// Keys of all multigets of one message, and records that its ranges may answer: at 60-90 ns each they hold a worker for about as long
/// as a slice. A message is served in one go, so this is what its neighbours wait, beside what its ranges look at in vain
/// ([`RANGE_LOOKS_PER_MESSAGE`]).
pub const MULTIGET_KEYS: u64 = 1_000;
/// Polls of invocations between two looks at the network: bounds how long a packet waits behind short invocations.
pub const POLLS_PER_TURN: usize = 1024;
/// Invocations under way on a worker beyond which it polls tasks after each part of its burst: each invocation touches
/// cache lines and pages of its own, and what was begun early is cold when its turn comes.
pub const BEGUN_AT_ONCE: usize = 256;
/// Bytes that take about as long to copy as a plain get takes: what a share of a part is charged for, beside its operations.
pub const BYTES_OF_A_GET: usize = 4_096;
/// Short invocations under way up to which a turn's other answers wait for theirs, so that all leave in one system call: that takes
/// as long as they do, and whoever awaits both kinds is woken once.
pub const ANSWERED_TOGETHER: usize = 4;
/// CPU time of a poll up to which invocations count as short, on average over a turn, nanoseconds.
pub const SHORT_POLL_NS: u64 = 2_000;
/// Invocations whose polls take turns: as many as it takes to hide their cache misses behind each other, and few enough
/// that the first ones end, and are answered, before all have begun.
pub const INTERLEAVED: usize = 32;
/// Polls before an invocation's next one at which the record that it awaits is prefetched: half a microsecond of other
/// invocations' polls, in which it comes, and the bucket has had twice as long to come before that.
pub const POLLS_AHEAD: usize = 10;
/// The same for a record of which it was seen then that it lies in an overflow bucket: half of those polls for each of the two.
pub const FURTHER_AHEAD: usize = 5;
/// Polls that an invocation gets before it goes back to the end of its tenant's lane: a chain of fifteen reads.
pub const POLLS_IN_A_ROW: usize = 16;
/// CPU nanoseconds of serving between two looks at the network, with more waiting: what came meanwhile waits no longer, and
/// then for its turn among the lanes. Answers leave in segments of 64, which takes about as long.
pub const SERVE_NS: u64 = 30_000;
/// CPU nanoseconds of one lane's turn while others wait: what a message waits for each tenant that floods. Of all lanes together that
/// are served at once, where each has little.
pub const PART_NS: u64 = 10_000;
/// Turns with packets of a worker that is busy between two times at which the counts of its port are taken over: some tens of microseconds of
/// plain operations, a millisecond or some with calls that take their time.
pub const COUNT_TURNS: usize = 16;
/// Datagrams that are served as they came, if nothing else waits and nothing more came: 10-20 us of work.
pub const DIRECT_DATAGRAMS: usize = 64;
/// Receives (of up to 32 messages of the kernel's) between two times of serving: the socket's buffer is emptied faster than one core
/// fills it, and a full one within about ten turns.
pub const RECEIVES_PER_SERVE: usize = 4;
/// Bursts that a worker holds while datagrams in them wait: 2 MiB each, touched as far as they are filled. Without them the
/// window of a client of 900 messages would be copied; only under a flood of large datagrams are all of them touched.
pub const HELD_BURSTS: usize = 12;
/// Of these, bursts no larger than a pack in which datagrams wait though they are not well filled: as many as are received before serving, so that
/// what is served at once is not copied.
pub const BURSTS_IN_PLACE: usize = RECEIVES_PER_SERVE;
/// Buffers of 64 KiB for datagrams that came one by one: 700 small ones each, 30,000 in all.
pub const HELD_PACKS: usize = 48;
/// Datagrams that a lane may have waiting though buffers are short: what a small client sends at once.
pub const SHED_LEAST: usize = 64;
/// A tenant's share of the worker in shares of all strangers together: what has no name, or no right to it, is the least urgent,
/// but a client that logs in is a stranger first.
pub const STRANGERS_SHARE: u64 = 4;
/// Time between two decisions about early drop, microseconds: some hundred turns of the loop; a new program costs the kernel about
/// 50 us.
pub const OVERLOAD_WINDOW_US: u64 = 10_000;
/// Datagrams in a window that a throttled lane may send beside its share: 6,400 a second, so that it is still heard.
pub const SPARE_DATAGRAMS: u64 = 64;
/// Least part of a lane that is let in: enough to notice that a flood has ended.
pub const KEEP_LEAST: f64 = 1.0 / 4096.0;
/// Answers a second and port to those who have not shown who they are: what a hundred clients with an old token need to notice,
/// and 10 MB a second at most towards whoever's address was forged.
pub const REFUSALS_PER_S: u64 = 20_000;
/// How many of them may leave at once.
pub const REFUSALS_AT_ONCE: u64 = 2_000;
/// Bytes of such an answer, at most, and of the pings that are answered without a tenant: one packet, which no way refuses, sealed or not. A
/// longer answer would have to be sent again until it is acked, which nobody does whose address was forged; and what a router says of ways is
/// heeded of larger packets alone, so that nobody brings it about with a forged address.
pub const STRANGERS_MESSAGE_BYTES: usize = NARROWEST_DATAGRAM - SINGLE_HEADER_LEN - OVERHEAD;
/// Time for which an address that showed a token counts as known when strangers are dropped, microseconds.
pub const KNOWN_FOR_US: u64 = 60_000_000;
/// CPU nanoseconds of invocations between two looks at the network: a finished invocation's answer and the packets that
/// came meanwhile wait no longer than this and one more poll.
pub const TURN_CPU_NS: u64 = 50_000;
/// Turns after which invocations that nobody took are the worker's own again: an idle one was woken and has looked by then.
pub const OFFERED_TURNS: u32 = 2;
/// Invocations that a worker offers to others at once, of those it cannot run soon.
pub const STEAL_BATCH: usize = 16;
/// Sessions of one port that have presented a token; the oldest leave first and present it again.
pub const SESSIONS_PER_PORT: usize = 65_536;
/// Invocations alive on one worker, waiting or running. Beyond that a call is answered `Overloaded`: each holds an
/// arena, and queues longer than this only add latency. One tenant alone gets 1,024 of them.
pub const INVOCATIONS_PER_WORKER: usize = 1_536;
/// Places of a worker that a tenant may hold for each one that is free: of `n` tenants that want all they can get, each has
/// 2 of `2n + 1` parts, and one part is left for the others.
pub const PLACES_PER_FREE: usize = 2;
/// How old the time of day may be by which records expire, microseconds: it is told in milliseconds, and a turn of a polling worker is shorter than
/// ten readings of a clock.
pub const DATE_US: u64 = 250;
/// Microseconds that an idle worker spins before it sleeps in the kernel: a wake-up costs 15-50 us, so spinning about as
/// long at most doubles the idle cost and keeps a busy closed loop out of the kernel's scheduler.
pub const SPIN_US: u64 = 50;
/// The same where its sleeps have been no longer than this: what Linux' haltpoll spins at most (`guest_halt_poll_ns`).
pub const SPIN_MOST_US: u64 = 200;
/// Sleeps in a row after which a longer spin is given up, since it spares none.
pub const SPIN_MISSES: u32 = 8;
/// Microseconds until it is tried again: the spins in vain are less than a twentieth of the time.
pub const SPIN_BAR_US: u64 = 50_000;
/// Milliseconds that a sleeping worker sleeps at most while another worker is awake, so that it looks around for
/// something to steal.
pub const STEAL_LOOK_MS: u64 = 1;
/// Milliseconds between two sweeps for expired records.
pub const SWEEP_EVERY_MS: u64 = 1_000;
/// Slots of each table that one sweep looks at: a million records in a quarter of a minute, for about a millisecond of
/// CPU time a second. Expired records are never read before that, either way.
pub const SWEEP_SLOTS: usize = 64 << 10;
/// Places for marks of queries that wait for their answers, a port: several times as many as wait at once, so that two seldom share one (32 KiB).
pub const QUERY_PLACES: usize = 4096;
/// Bytes that the responses of one tenant hold on one port while they wait for an invocation; what does not fit is answered
/// `TooLarge`. Eight of the largest; a tenant may have hundreds of messages under way.
pub const WAITING_BYTES_PER_TENANT: usize = 64 << 20;
/// Bytes of one response beyond which the answers of further operations are `TooLarge`: a message carries one largest
/// value, so a client that asks for many large records asks in several messages. The rest of the message is left for
/// those operations' headers.
pub const RESPONSE_BYTES: usize =
    sandstorm_net::rpc::MAX_MESSAGE_LEN - sandstorm_net::rpc::MAX_OPERATIONS * ANSWER_RESERVE_BYTES;
/// Bytes that are kept for each operation's answer beyond that: its header, and a few more.
pub const ANSWER_RESERVE_BYTES: usize = 48;
/// Bytes that a response buffer may keep when it goes back to its pool; a larger one is given back to the allocator.
pub const POOLED_RESPONSE_BYTES: usize = 64 << 10;

/// Limits of what is said on connections.
pub mod protocols {
    /// Commands that are read before the first of them is run, so that their cache misses overlap; and keys of a get of many that
    /// are answered at once.
    pub const BATCH: usize = 64;
    /// Bytes copied or looked at that count as one further request: what a core moves in as long, from and to memory.
    pub const BYTES_PER_REQUEST: usize = 2 << 10;
    /// Work of one piece, in plain requests, after which a conversation lets others have their turn: as much as fits a slice. A piece may be longer
    /// by what its last step takes: 64 keys, or one value of 8 MiB, which is copied whole ([`super::MAX_VALUE_BYTES`]).
    pub const PIECE_WORK: u32 = (super::SLICE_US * 1000 / super::REQUEST_NS) as u32;
    /// The same while another tenant has asked the worker for something of late.
    pub const SHARED_PIECE_WORK: u32 = (super::SHARED_SLICE_US * 1000 / super::REQUEST_NS) as u32;
    /// Work that one datagram of memcached's may ask for, in plain requests. It is served in one go: as many keys as a message may have.
    pub const DATAGRAM_WORK: u32 = super::MULTIGET_KEYS as u32;
    /// Bytes of answers after which a conversation lets them leave before it goes on.
    pub const ANSWERS_FULL_BYTES: usize = 64 << 10;
    /// Bytes of values that the commands of a batch write beside what they were sent (a new time for a large value is a copy of it),
    /// after which the rest waits for others: about 100 us.
    pub const WRITTEN_AT_ONCE_BYTES: usize = 256 << 10;
    /// Bytes of such a value that count as one request more against its tenant's share of the CPU: copied in about that time.
    pub const REWRITTEN_PER_REQUEST_BYTES: usize = 1 << 10;
    /// Bytes of the answer to one datagram, at most: 750 of its own, what a socket's buffer holds.
    pub const DATAGRAM_ANSWER_BYTES: usize = 1 << 20;
    /// Bytes of user and password, at most: names and tokens have a few hundred together.
    pub const AUTH_BYTES: usize = 1 << 10;
    /// Wrong passwords, or commands in place of one, after which a connection is closed.
    pub const AUTH_FAILURES: u32 = 5;
    /// The version of memcached that is spoken as. Nothing stands behind the numbers: clients take it apart.
    pub const COMPATIBLE: &str = "1.6.18";
}

/// Limits of connections (memcached, Redis).
pub mod connections {
    /// Connections of the server, at most; less where the process may not open as many files. A tenant alone gets two thirds. An
    /// idle one takes less than 1 KiB here, and some of the kernel's.
    pub const CONNECTIONS: usize = 65_536;
    /// File descriptors that are left for everything else: control connections, builds, libraries.
    pub const OTHER_FILES: usize = 1_024;
    /// Connections that a worker accepts at one port in one turn: about 100 us of system calls.
    pub const ACCEPTED_AT_ONCE: usize = 32;
    /// Microseconds for which nothing is accepted after the kernel had no file descriptor left.
    pub const ACCEPT_PAUSE_US: u64 = 100_000;
    /// Bytes read from a connection at once: what a pipeline of small commands sends in a turn, and what stays in a core's cache.
    pub const RECEIVE_BYTES: usize = 64 << 10;
    /// Buffer that a worker keeps for its next use, bytes; larger ones are given back.
    pub const KEPT_BUFFER_BYTES: usize = 256 << 10;
    /// Batches of commands that one connection gets in a row while few others wait.
    pub const BATCHES_AT_ONCE: usize = 4;
    /// Bytes that are given to the kernel at once of a connection's answers: it copies them in 50 to 100 us, and on loopback it does the receiver's
    /// work as well.
    pub const SEND_BYTES: usize = 256 << 10;
    /// Ready connections up to which that is so.
    pub const FEW_READY: usize = 4;
    /// Unsent answers of a connection beyond which nothing more of it is read or run, bytes. With the answers of one batch, and
    /// one largest value, on top this bounds what a client that does not read can have held.
    pub const UNSENT_PAUSE_BYTES: usize = 256 << 10;
    /// Microseconds for which a connection may take no byte of answers that wait for it; then it is closed.
    pub const SLOW_READER_US: u64 = 10_000_000;
    /// Microseconds within which a connection has to show whose it is; then it is closed.
    pub const STRANGER_US: u64 = 30_000_000;
    /// Bytes that one that has not shown whose it is may have waiting: a user and a token take a tenth.
    pub const STRANGER_INPUT_BYTES: usize = 16 << 10;
    /// Nanoseconds after which a worker leaves the rest of its connections, or of a burst of datagrams, for its next turn, so that
    /// packets, invocations and other tenants' connections have theirs: 64 small requests with a read and a write each take as long.
    pub const TURN_NS: u64 = 250_000;
    /// Looks in a turn for connections that have something to say, while each finds as many as one can (64): where many thousands have,
    /// those of other tenants are found sooner among them. One costs 5 us.
    pub const LOOKS: usize = 4;
    /// Bytes of buffers of all connections of a worker. A tenant may have twice as many as are free; the connection that would
    /// take more is closed.
    pub const BUFFER_BYTES: usize = 512 << 20;
    /// Microseconds between two looks for connections whose time is up.
    pub const LOOK_US: u64 = 1_000_000;
}

pub mod redis;

pub mod bits;
pub mod control;

pub mod kept;

pub mod memory;

pub mod ports;

pub mod tenants;
