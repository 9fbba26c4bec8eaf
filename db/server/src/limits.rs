//! Limits of this crate: name, default, unit, reason.

use sandstorm_dialects::limits::protocols::CONTENDED_PIECE_WORK;
use sandstorm_net::limits::MIN_PATH_DATAGRAM;
use sandstorm_net::r2p2::header::SINGLE_HEADER_LEN;
use sandstorm_net::rate_limiter::RateLimit;
use sandstorm_net::seal::SEAL_OVERHEAD;

/// Time for which a tenant's last request counts as recent, microseconds: ten requests a second keep a worker prompt.
pub const CONTENTION_WINDOW_US: u64 = 100_000;
/// CPU nanoseconds of invocations that a tenant gets in one round, times its weight: less than half a turn, so that a
/// round of two tenants is over within one; enough for dozens of short polls to be interleaved.
pub const QUANTUM_NS: i64 = 20_000;
/// Tenants without invocations whose queues a worker remembers. Beyond that, idle ones are forgotten.
pub const MAX_TENANT_QUEUES: usize = 1_024;
/// Datagrams taken from a port in one turn: enough to overlap the cache misses of their lookups, few enough that the
/// first one is answered soon. (A batch of 16-32 brings a random get from 300-500 ns to 60-90 ns.)
pub const BURST: usize = 32;
/// Polls of invocations between two looks at the network: bounds how long a packet waits behind short invocations.
pub const POLLS_PER_TURN: usize = 1024;
/// Running invocations on a worker beyond which it polls tasks after each part of its burst. Each touches cache lines
/// and pages of its own, and one that began early is cold when its turn comes.
pub const BEGUN_INVOCATIONS_PER_TURN: usize = 256;
/// Bytes that take about as long to copy as a plain get. A slice is charged for them, beside its operations.
pub const COPY_BYTES_PER_GET: usize = 4_096;
/// Plain gets that take about as long as a count, a rank or an nth: its ways through a tree of a million keys take
/// some microseconds, most of them cache misses (`sandstorm bench ranks`).
pub const POSITION_REQUESTS: u32 = 16;
/// Bytes of a key that take about as long as a plain get to find its position. A way through the tree compares it with
/// some 25 others, and all of them may begin alike.
pub const POSITION_KEY_BYTES_PER_REQUEST: usize = 128;
/// Running short invocations up to which a turn's other answers wait for theirs, so that all leave in one system call.
/// The call takes as long as they do, and a client that awaits both kinds is woken once.
pub const DEFER_REPLIES_UP_TO_LIVE: usize = 4;
/// CPU time of a poll up to which invocations count as short, on average over a turn, nanoseconds.
pub const SHORT_POLL_NS: u64 = 2_000;
/// Invocations whose polls take turns: as many as it takes to hide their cache misses behind each other, and few enough
/// that the first ones end, and are answered, before all have begun.
pub const MAX_INTERLEAVED: usize = 32;
/// Waiting invocations of one tenant that begin to take turns together. A change of tenant takes a tenth of a
/// microsecond, and is then shared by as many polls; several tenants still fit among those that take turns.
pub const GROUPED_TASKS: usize = 8;
/// Waiting invocations of a tenant among which those of one peer are looked for, so that they take turns together:
/// as many as take turns at most, in eight lines of the cache.
pub const PEER_SEARCH_TASKS: usize = 32;
/// Polls before an invocation's next one at which the record that it awaits is prefetched. Half a microsecond of other
/// polls is enough for the record, and its bucket had twice as long before.
pub const PREFETCH_POLLS_AHEAD: usize = 10;
/// The same for a record that the first prefetch found to be in an overflow bucket: half of the polls for each of the
/// two.
pub const SECOND_PREFETCH_POLLS_AHEAD: usize = 5;
/// Polls that an invocation gets before it goes back to the end of its tenant's queue: a chain of fifteen reads.
pub const POLLS_IN_A_ROW: usize = 16;
/// CPU nanoseconds of serving between two looks at the network while more waits: new packets wait no longer, and then
/// for their flow's turn. Answers leave in segments of 64, which takes about as long.
pub const SERVE_NS: u64 = 30_000;
/// CPU nanoseconds of one flow's turn while others wait: the delay of a message for each tenant that floods. The limit
/// is for all flows of a batch together, where each has little.
pub const BATCH_NS: u64 = 10_000;
/// Bytes of messages that wait on one port for a further turn of their tenants. A tenant may use twice as many as are
/// free. It is as much as four ports hold of incomplete messages; a message beyond is answered `Overloaded`.
pub const POSTPONED_BYTES: usize = 256 << 20;
/// Bytes of answers that are repeated in one piece because their requests were repeated. Further repeats are dropped.
/// It is a slice's worth of copying, and one largest answer.
pub const REPLAYED_BYTES_PER_PIECE: usize = CONTENDED_PIECE_WORK as usize * COPY_BYTES_PER_GET;
/// Turns with packets after which a busy worker publishes the counters of its port: some tens of microseconds of plain
/// operations, a millisecond or more with long calls.
pub const COUNTER_PUBLISH_TURNS: usize = 16;
/// Datagrams that are served unsorted if nothing else waits and nothing more came: 10-20 us of work.
pub const DIRECT_DATAGRAMS: usize = 64;
/// Receives (of up to 32 kernel messages each) before datagrams are served. They empty the socket's buffer faster than
/// one core fills it, and a full one within about ten turns.
pub const RECEIVES_PER_SERVE: usize = 4;
/// Bursts that a worker keeps while datagrams in them wait: 2 MiB each, touched only as far as they are filled. Without
/// them the window of a client of 900 messages would be copied. Only a flood of large datagrams touches all of them.
pub const MAX_BURSTS: usize = 12;
/// Those of them that are no larger than a pack and not well filled while datagrams in them wait. It is as many as are
/// received before serving, so that datagrams served at once are not copied.
pub const UNPACKED_BURSTS: usize = RECEIVES_PER_SERVE;
/// Buffers of 64 KiB for datagrams that came one by one: 700 small ones each, 30,000 in all.
pub const MAX_PACKS: usize = 48;
/// Datagrams of a flow that may wait although buffers are short: a small client's window.
pub const SHED_MIN_DATAGRAMS: usize = 64;
/// A tenant's weight in ingress scheduling, where all unauthenticated senders together have 1. They are the least
/// urgent, but a client is one of them until it has logged in.
pub const TENANT_TO_UNAUTHENTICATED_WEIGHT: u64 = 4;
/// Time between two decisions about early drop, microseconds: some hundred turns of the loop. A new program costs the
/// kernel about 50 us.
pub const OVERLOAD_WINDOW_US: u64 = 10_000;
/// Datagrams in a window that a throttled flow may send beyond its admitted fraction: 6,400 a second.
pub const THROTTLE_SLACK_DATAGRAMS: u64 = 64;
/// Least fraction of a flow that is admitted: enough to notice that a flood has ended.
pub const MIN_ADMIT_FRACTION: f64 = 1.0 / 4096.0;
/// Rejections a second and port to unauthenticated senders. A hundred clients with an old token need as many; a host
/// whose address was forged receives 10 MB a second at most.
pub const REJECTIONS_PER_S: u64 = 20_000;
/// Rejections that may leave at once.
pub const REJECTION_BURST: u64 = 2_000;
/// The rate and burst of rejections.
pub const REJECTIONS: RateLimit = RateLimit::per_second(REJECTIONS_PER_S).with_burst(REJECTION_BURST);
/// Bytes of a rejection, and of the answer to a ping without a tenant: one packet, which every path carries, sealed or
/// not. A longer answer would be resent until it is acked, and a host whose address was forged never acks. A router's
/// report of a smaller path MTU is heeded for larger packets alone, so a forged address cannot cause one.
pub const UNAUTHENTICATED_MESSAGE_BYTES: usize = MIN_PATH_DATAGRAM - SINGLE_HEADER_LEN - SEAL_OVERHEAD;
/// Time for which an address that showed a token counts as verified when unauthenticated senders are dropped,
/// microseconds.
pub const VERIFIED_PEER_US: u64 = 60_000_000;
/// CPU nanoseconds of invocations between two looks at the network. A finished invocation's answer and new packets wait
/// no longer than this and one more poll.
pub const TURN_CPU_NS: u64 = 50_000;
/// Turns after which invocations that no neighbour took are taken back: by then a woken neighbour has looked for them.
pub const STEAL_OFFER_TURNS: u32 = 2;
/// Invocations that a worker offers at once, of those that it cannot run soon.
pub const STEAL_BATCH: usize = 16;
/// Sessions of one port that have presented a token; the oldest leave first and present it again.
pub const SESSIONS_PER_PORT: usize = 65_536;
/// Invocations alive on one worker, waiting or running; beyond that a call is answered `Overloaded`. Each holds an
/// arena, and longer queues only add latency. One tenant alone gets 1,024 of them.
pub const INVOCATIONS_PER_WORKER: usize = 1_536;
/// Calls under way that a worker lists for one request: each takes less than a microsecond.
pub const CALLS_SHOWN: usize = 100;
/// Looks for the places of these, in one answer: a call may be polled for that, for [`CONTENDED_SLICE_US`] at most, and
/// its stack of 16 KiB copied and walked. So the worker serves no other request for a millisecond at most; a look takes
/// some 10 us, as a call that waits polls for a microsecond. A call that has nothing to look at counts for none.
///
/// [`CONTENDED_SLICE_US`]: sandstorm_extension::limits::CONTENDED_SLICE_US
pub const CALLS_LOOKED_AT: usize = 16;
/// Questions about calls that wait for a worker, which answers one in a turn; more than the control port has under way.
pub const CALL_LOOKS_WAITING: usize = 16;
/// Messages that the kernel received within this of each other, nanoseconds, are counted with the time of one of them.
/// Turns that take longer are those of a worker that was stopped, or was busy with a long call.
pub const SAME_ARRIVAL_NS: u64 = 500_000;
/// Age that the time of day may have when records expire by it, microseconds. It is read in milliseconds, and a turn of
/// a polling worker is shorter than ten readings of a clock.
pub const CLOCK_MAX_AGE_US: u64 = 250;
/// Microseconds that an idle worker spins before it sleeps in the kernel. A wake-up costs 15-50 us, so this at most
/// doubles the idle cost. It keeps a busy closed loop out of the kernel's scheduler.
pub const SPIN_US: u64 = 50;
/// Longest spin of a worker whose sleeps are short: the most that Linux' haltpoll spins (`guest_halt_poll_ns`).
pub const SPIN_MAX_US: u64 = 200;
/// Sleeps in a row after which a longer spin is given up, since it prevents none.
pub const SPIN_MAX_MISSES: u32 = 8;
/// Microseconds until a longer spin is tried again: useless spins take less than a twentieth of the time.
pub const SPIN_BACKOFF_US: u64 = 50_000;
/// Longest sleep of a worker while another one is awake, milliseconds, so that it looks for something to steal.
pub const STEAL_POLL_MS: u64 = 1;
/// Milliseconds between two sweeps for expired records.
pub const SWEEP_INTERVAL_MS: u64 = 1_000;
/// Slots of each table that one sweep visits: a million records in a quarter of a minute, for about a millisecond of
/// CPU time a second. Expired records are never read, swept or not.
pub const SWEEP_SLOTS: usize = 64 << 10;
/// Slots that one sweep visits of all the tables whose log is told of what expires, together: subscribers wait for
/// that. Four million take some 60 ms, so that a table of three million records is swept each second, and a larger one
/// in so many times as long.
pub const WATCHED_SWEEP_SLOTS: usize = 4 << 20;
/// Expired records that one sweep reads from the disk, for the log to know their keys: of all tables together, each of
/// which has an equal part, one at least. A tenth of a second of a slow SSD, some seconds of a disk that turns.
pub const COLD_EXPIRIES_PER_SWEEP: usize = 1024;
/// Quiescent points at which a sweep frees what other threads have left, 128 records each. A quarter of a million
/// records take 10 to 25 ms, on a processor without a worker if there is one.
pub const FREEING_ROUNDS_PER_SWEEP: usize = 2_048;
/// Slots for tags of queries that are being run, for each port. They are several times as many as run at once, so that
/// two seldom have the same one (32 KiB).
pub const QUERY_SLOTS: usize = 4096;
/// Bytes of one tenant's responses on one port that wait for an invocation: eight of the largest. An answer that does
/// not fit is `TooLarge`. A tenant may have hundreds of messages under way.
pub const WAITING_BYTES_PER_TENANT: usize = 64 << 20;
/// Bytes of one response beyond which the answers of further operations are `TooLarge`. A message carries one largest
/// value, so a client asks for many large records in several messages. The rest of the message is reserved for the
/// headers of those operations.
pub const RESPONSE_BYTES: usize =
    sandstorm_net::rpc::MAX_MESSAGE_LEN - sandstorm_net::rpc::MAX_OPERATIONS * ANSWER_RESERVE_BYTES;
/// Bytes that are reserved for each operation's answer beyond that: its header, and a few more.
pub const ANSWER_RESERVE_BYTES: usize = 48;
/// Bytes that a response buffer in its pool may keep; a larger one is shrunk.
pub const POOLED_RESPONSE_BYTES: usize = 64 << 10;
/// Microseconds from arrival to answer from which a request is slow if the configuration does not say otherwise, as in
/// Redis (`slowlog-log-slower-than`): a hundred slices, so nothing that is served in its turn.
pub const SLOW_US: u64 = 10_000;
/// The largest such threshold: no request takes a minute.
pub const SLOW_MAX_US: u64 = 60_000_000;
/// Slow requests of one turn that are kept, at most: where a turn answers hundreds late, they are alike.
pub const SLOW_PER_TURN: usize = 8;
/// Turns that answer of which one measures how long its answers are sent: a reading of the clock takes 20 ns or more,
/// which a turn with one get would notice.
pub const SENDING_SAMPLE: u32 = 16;
/// Nanoseconds of polls that are counted together, to tell a slow request whose turns it waited for: a tenth of
/// [`SLOW_US`].
pub const TURN_WINDOW_NS: u64 = 1_000_000;
/// Such windows of a worker: they reach back a second, and take 128 KiB.
pub const TURN_WINDOWS: usize = 1_024;
/// Such windows that are added up in a second to tell slow requests whose turns they waited for, at about 0.1 us each;
/// and how many at once: four requests of a second, or hundreds of some milliseconds.
pub const TURN_WINDOWS_PER_S: u64 = 20_000;
/// See [`TURN_WINDOWS_PER_S`].
pub const TURN_WINDOWS_BURST: u64 = 4 * TURN_WINDOWS as u64;

pub mod connections;
pub mod homes;
pub mod ports;
/// Milliseconds between two looks at whether a checkpoint of the log is due.
pub const CHECKPOINT_CHECK_MS: u64 = 500;
/// Bytes of the log from which a checkpoint is written, if the last one was not larger: a start reads as much in some
/// tenths of a second.
pub const CHECKPOINT_MIN_LOG_BYTES: u64 = 128 << 20;
/// Bytes of the log from which a checkpoint is written that was suggested: reading them again takes some milliseconds,
/// which counts where a server that takes another one's place reads its log.
pub const CHECKPOINT_SUGGESTED_LOG_BYTES: u64 = 1 << 20;
/// The part of the last checkpoint's bytes that the log has at least by then, as its divisor: so of each byte of the
/// log four bytes of checkpoints are written at most.
pub const CHECKPOINT_SUGGESTED_PART: u64 = 4;
/// Seconds after a failed checkpoint until the next attempt.
pub const CHECKPOINT_RETRY_S: u64 = 30;
/// Records that a checkpoint copies with one scan.
pub const CHECKPOINT_SCAN_RECORDS: usize = 8;
/// Scans that a checkpoint makes before it lets go of the table and writes what it has: replaced records wait until
/// these are copied, no longer.
pub const CHECKPOINT_SCANS: usize = 32;
/// Bytes of records after which it makes no further scan. It has at most the records of one scan more.
pub const CHECKPOINT_SCAN_BYTES: usize = 256 << 10;
/// Cold records whose places a checkpoint gathers before it reads them in the order in which they lie: the more, the
/// nearer they lie to each other. 24 bytes each.
pub const CHECKPOINT_COLD_RECORDS: usize = 64 << 10;
/// Bytes of a port's answers that wait for the log's disk, shared by tenants as other buffers are: beyond its part a
/// tenant's answers say that they do not know, which is small. While the disk keeps up, some hundred KiB wait.
pub const PENDING_ANSWERS_BYTES: usize = 64 << 20;
/// Buffers of such answers that a port keeps for the next ones: as many as wait for one write of the disk.
pub const POOLED_PENDING_ANSWERS: usize = 128;
/// Bytes of a UDP port's answers to memcached clients that wait for the log's disk: beyond it none is given, as if its
/// datagram had been lost.
pub const PENDING_DATAGRAM_BYTES: usize = 4 << 20;
/// Bytes of a UDP port's datagrams that wait for other servers of the cluster, with their answers so far; beyond it
/// they are dropped. As many as may wait for three servers, with a value of a KiB and a half each.
pub const FORWARDED_DATAGRAM_BYTES: usize = 4 << 20;
/// Bytes of the same with the answers of other servers, which wait until the worker sends them: an answer that would
/// exceed it is left out, unless it is short, and no further datagram waits meanwhile. Some values of the greatest
/// reply.
pub const FORWARDED_ANSWERS_BYTES: usize = 16 << 20;
/// Bytes of an answer that is never left out: what is said of a write. A datagram has some dozens of commands, so those
/// that may wait have some MiB of such answers at most.
pub const SHORT_FORWARDED_ANSWER_BYTES: usize = 64;
/// Time after which a datagram asks no further server, nanoseconds: longer than clients wait for an answer, and as long
/// as a command of a connection waits for one.
pub const FORWARDED_DATAGRAM_NS: u64 = 5_000_000_000;
/// Bytes of a port's messages that wait for cold records: shared as other buffers are. At 100 us a read, eight at a
/// time, as many as some hundred thousand gets.
pub const COLD_MESSAGES_BYTES: usize = 32 << 20;
/// Times that a message waits for the records of one operation. A record stays for a while once it was read; only in a
/// table whose memory is smaller than what is read at a time does it leave before it is used.
pub const COLD_TRIES: u32 = 8;
