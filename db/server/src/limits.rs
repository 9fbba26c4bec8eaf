//! Limits of this crate: name, default, unit, reason.

use sandstorm_dialects::limits::protocols::CONTENDED_PIECE_WORK;
use sandstorm_net::limits::MIN_PATH_DATAGRAM;
use sandstorm_net::r2p2::header::SINGLE_HEADER_LEN;
use sandstorm_net::rate_limiter::RateLimit;
use sandstorm_net::seal::SEAL_OVERHEAD;

/// How long a tenant's last request counts for that, microseconds: ten requests a second keep a worker prompt.
pub const CONTENTION_WINDOW_US: u64 = 100_000;
/// CPU nanoseconds of invocations that a tenant gets in one round, times its weight: less than half a turn, so that a
/// round of two tenants is over within one; enough for dozens of short polls to be interleaved.
pub const QUANTUM_NS: i64 = 20_000;
/// Tenants whose place in the round a worker remembers while they have no invocations there; of more, the idle are
/// forgotten.
pub const MAX_TENANT_QUEUES: usize = 1_024;
/// Datagrams taken from a port in one turn: enough to overlap the cache misses of their lookups (a batch of 16-32
/// brings a random get from 300-500 ns to 60-90 ns), few enough that the first one does not wait long for its answer.
pub const BURST: usize = 32;
/// Polls of invocations between two looks at the network: bounds how long a packet waits behind short invocations.
pub const POLLS_PER_TURN: usize = 1024;
/// Invocations under way on a worker beyond which it polls tasks after each part of its burst: each invocation touches
/// cache lines and pages of its own, and what was begun early is cold when its turn comes.
pub const BEGUN_INVOCATIONS_PER_TURN: usize = 256;
/// Bytes that take about as long to copy as a plain get takes: what a share of a part is charged for, beside its
/// operations.
pub const COPY_BYTES_PER_GET: usize = 4_096;
/// Short invocations under way up to which a turn's other answers wait for theirs, so that all leave in one system
/// call: that takes as long as they do, and a client that awaits both kinds is woken once.
pub const DEFER_REPLIES_UP_TO_LIVE: usize = 4;
/// CPU time of a poll up to which invocations count as short, on average over a turn, nanoseconds.
pub const SHORT_POLL_NS: u64 = 2_000;
/// Invocations whose polls take turns: as many as it takes to hide their cache misses behind each other, and few enough
/// that the first ones end, and are answered, before all have begun.
pub const MAX_INTERLEAVED: usize = 32;
/// Polls before an invocation's next one at which the record that it awaits is prefetched: half a microsecond of other
/// invocations' polls, in which it comes, and the bucket has had twice as long to come before that.
pub const PREFETCH_POLLS_AHEAD: usize = 10;
/// The same for a record of which it was seen then that it lies in an overflow bucket: half of those polls for each of
/// the two.
pub const SECOND_PREFETCH_POLLS_AHEAD: usize = 5;
/// Polls that an invocation gets before it goes back to the end of its tenant's queue: a chain of fifteen reads.
pub const POLLS_IN_A_ROW: usize = 16;
/// CPU nanoseconds of serving between two looks at the network, with more waiting: what came meanwhile waits no longer,
/// and then for its turn among the flows. Answers leave in segments of 64, which takes about as long.
pub const SERVE_NS: u64 = 30_000;
/// CPU nanoseconds of one flow's turn while others wait: what a message waits for each tenant that floods. Of all flows
/// together that are served at once, where each has little.
pub const BATCH_NS: u64 = 10_000;
/// Bytes of messages that wait on one port for a further turn of their tenants' because a piece of work was over; a
/// tenant may have twice as many as are free. As many as four ports hold of messages that are not whole yet; a message
/// beyond is answered `Overloaded`.
pub const POSTPONED_BYTES: usize = 256 << 20;
/// Bytes of answers that are given once more in one piece, because a request was repeated, after which further repeats
/// are dropped: a slice's worth of copying, and one largest answer.
pub const REPLAYED_BYTES_PER_PIECE: usize = CONTENDED_PIECE_WORK as usize * COPY_BYTES_PER_GET;
/// Turns with packets of a worker that is busy between two times at which the counts of its port are taken over: some
/// tens of microseconds of plain operations, a millisecond or some with calls that take their time.
pub const COUNTER_PUBLISH_TURNS: usize = 16;
/// Datagrams that are served as they came, if nothing else waits and nothing more came: 10-20 us of work.
pub const DIRECT_DATAGRAMS: usize = 64;
/// Receives (of up to 32 messages of the kernel's) between two times of serving: the socket's buffer is emptied faster
/// than one core fills it, and a full one within about ten turns.
pub const RECEIVES_PER_SERVE: usize = 4;
/// Bursts that a worker holds while datagrams in them wait: 2 MiB each, touched as far as they are filled. Without them
/// the window of a client of 900 messages would be copied; only under a flood of large datagrams are all of them
/// touched.
pub const MAX_BURSTS: usize = 12;
/// Of these, bursts no larger than a pack in which datagrams wait though they are not well filled: as many as are
/// received before serving, so that what is served at once is not copied.
pub const UNPACKED_BURSTS: usize = RECEIVES_PER_SERVE;
/// Buffers of 64 KiB for datagrams that came one by one: 700 small ones each, 30,000 in all.
pub const MAX_PACKS: usize = 48;
/// Datagrams that a flow may have waiting though buffers are short: what a small client sends at once.
pub const SHED_MIN_DATAGRAMS: usize = 64;
/// A tenant's weight in ingress scheduling, where all unauthenticated senders together have 1. They are the least
/// urgent, but a client that logs in is one of them first.
pub const TENANT_TO_UNAUTHENTICATED_WEIGHT: u64 = 4;
/// Time between two decisions about early drop, microseconds: some hundred turns of the loop; a new program costs the
/// kernel about 50 us.
pub const OVERLOAD_WINDOW_US: u64 = 10_000;
/// Datagrams in a window that a throttled flow may send beside its share: 6,400 a second, so that it is still heard.
pub const THROTTLE_SLACK_DATAGRAMS: u64 = 64;
/// Least part of a flow that is let in: enough to notice that a flood has ended.
pub const MIN_ADMIT_FRACTION: f64 = 1.0 / 4096.0;
/// Rejections a second and port to unauthenticated senders: what a hundred clients with an old token need to notice,
/// and 10 MB a second at most towards a host whose address was forged.
pub const REJECTIONS_PER_S: u64 = 20_000;
/// How many of them may leave at once.
pub const REJECTION_BURST: u64 = 2_000;
/// The two together.
pub const REJECTIONS: RateLimit = RateLimit::per_second(REJECTIONS_PER_S).with_burst(REJECTION_BURST);
/// Bytes of such an answer, at most, and of the pings that are answered without a tenant: one packet, which every path
/// carries, sealed or not. A longer answer would have to be sent again until it is acked, which a host whose address
/// was forged never does. And what a router says of a path's MTU is heeded for larger packets alone, so a forged
/// address cannot bring it about.
pub const UNAUTHENTICATED_MESSAGE_BYTES: usize = MIN_PATH_DATAGRAM - SINGLE_HEADER_LEN - SEAL_OVERHEAD;
/// Time for which an address that showed a token counts as verified when unauthenticated senders are dropped,
/// microseconds.
pub const VERIFIED_PEER_US: u64 = 60_000_000;
/// CPU nanoseconds of invocations between two looks at the network: a finished invocation's answer and the packets that
/// came meanwhile wait no longer than this and one more poll.
pub const TURN_CPU_NS: u64 = 50_000;
/// Turns after which invocations that no neighbour took are taken back: an idle one was woken and has looked by then.
pub const STEAL_OFFER_TURNS: u32 = 2;
/// Invocations that a worker offers to others at once, of those it cannot run soon.
pub const STEAL_BATCH: usize = 16;
/// Sessions of one port that have presented a token; the oldest leave first and present it again.
pub const SESSIONS_PER_PORT: usize = 65_536;
/// Invocations alive on one worker, waiting or running. Beyond that a call is answered `Overloaded`: each holds an
/// arena, and queues longer than this only add latency. One tenant alone gets 1,024 of them.
pub const INVOCATIONS_PER_WORKER: usize = 1_536;
/// How old the time of day may be by which records expire, microseconds: it is told in milliseconds, and a turn of a
/// polling worker is shorter than ten readings of a clock.
pub const CLOCK_MAX_AGE_US: u64 = 250;
/// Microseconds that an idle worker spins before it sleeps in the kernel: a wake-up costs 15-50 us, so spinning about
/// as long at most doubles the idle cost and keeps a busy closed loop out of the kernel's scheduler.
pub const SPIN_US: u64 = 50;
/// The same where its sleeps have been no longer than this: what Linux' haltpoll spins at most (`guest_halt_poll_ns`).
pub const SPIN_MAX_US: u64 = 200;
/// Sleeps in a row after which a longer spin is given up, since it spares none.
pub const SPIN_MAX_MISSES: u32 = 8;
/// Microseconds until it is tried again: the spins in vain are less than a twentieth of the time.
pub const SPIN_BACKOFF_US: u64 = 50_000;
/// Milliseconds that a sleeping worker sleeps at most while another worker is awake, so that it looks around for
/// something to steal.
pub const STEAL_POLL_MS: u64 = 1;
/// Milliseconds between two sweeps for expired records.
pub const SWEEP_INTERVAL_MS: u64 = 1_000;
/// Slots of each table that one sweep looks at: a million records in a quarter of a minute, for about a millisecond of
/// CPU time a second. Expired records are never read before that, either way.
pub const SWEEP_SLOTS: usize = 64 << 10;
/// Quiescent points at which a sweep goes on freeing what others have left, 128 records each: a quarter of a million
/// records, 10 to 25 ms on a processor without a worker where there is one.
pub const FREEING_ROUNDS_PER_SWEEP: usize = 2_048;
/// Places for marks of queries that wait for their answers, a port: several times as many as wait at once, so that two
/// seldom share one (32 KiB).
pub const QUERY_SLOTS: usize = 4096;
/// Bytes that the responses of one tenant hold on one port while they wait for an invocation; what does not fit is
/// answered `TooLarge`. Eight of the largest; a tenant may have hundreds of messages under way.
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
/// Microseconds from which on a command stands in the tenant's slow log, as in Redis (`slowlog-log-slower-than`).
pub const SLOW_US: u64 = 10_000;

pub mod connections;
pub mod ports;
