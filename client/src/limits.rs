//! Every limit of the client: name, default, unit, reason.

use std::time::Duration;

/// Time for a push, from connect to the last byte: its wait in the queue, and the builder's own limit on the
/// compilation (two minutes).
pub const PUSH_TIMEOUT: Duration = Duration::from_secs(600);
/// Any other control request, from connect to the last byte.
pub const CONTROL_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a control answer: the remarks of a compiler about the largest push stay far under it.
pub const CONTROL_MAX_RESPONSE_BYTES: u64 = 16 << 20;
/// A data request, from the call to its answer, retries included.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(2);
/// The longest deadline that can be set; a server counts on no request being repeated for longer.
pub const MAX_DEADLINE: Duration = Duration::from_micros(sandstorm_net::limits::MAX_REQUEST_LIFETIME_US);
/// Messages without an answer of one session: one less than the answers that a server remembers for it.
pub const WINDOW: usize = 1023;
/// Requests that wait inside a client for room in the window; beyond it they are refused at once.
pub const MAX_QUEUED: usize = 65_536;
/// Interval at which the deadlines of waiting requests are checked, in microseconds.
pub const QUEUE_CHECK_INTERVAL_US: u64 = 5_000;
/// Most times that one request goes back to the queue because the server had forgotten the session.
pub const MAX_REQUEUES: u32 = 3;
/// Requests without an answer, one after the other, after which a session says hello again. The server may have
/// restarted, and it answers only a bounded number of unknown senders a second. One or two are usual under overload or
/// loss.
pub const TIMEOUTS_BEFORE_HELLO: u32 = 3;
/// Interval at which a session asks where its tenant's home worker is, while answers say that it is elsewhere, in
/// microseconds: a tenth of the time for which a home stays, and one small message.
pub const HOME_QUESTION_INTERVAL_US: u64 = 1_000_000;
/// Message buffers kept for reuse, of one session: a whole window of them.
pub const SPARE_BUFFERS: usize = 1024;
/// Bytes of a message buffer above which it is not kept.
pub const SPARE_BUFFER_BYTES: usize = 4096;
/// Workers that a server may claim to have.
pub const MAX_WORKERS: u32 = 4096;
/// Datagrams taken from the socket before the lock is given to others.
pub const RECEIVE_BURST: usize = 64;
/// Bytes of datagrams that wait for the socket to take them; beyond it they are dropped and sent again later.
pub const MAX_OUTBOX_BYTES: usize = 8 << 20;
/// Operations of a load generator's message stop before this many bytes, so that it stays one packet (less in a sealed
/// session).
pub const MAX_PACKET_BYTES: usize =
    sandstorm_net::limits::MAX_DATAGRAM - sandstorm_net::r2p2::header::SINGLE_HEADER_LEN;
/// Interval at which a polled connection checks its timers while nothing arrives, in microseconds.
pub const RAW_TIMER_INTERVAL_US: u64 = 500;
/// Interval at which a polled connection compares its clock with the kernel's time of day, in microseconds: the two
/// differ by a constant until somebody sets the machine's time.
pub const CLOCK_COMPARISON_INTERVAL_US: u64 = 1_000;
/// Messages of a loader under way: enough to keep a server busy, few enough not to overrun its socket.
pub const FILL_DEPTH: usize = 128;
/// Most times that a loader writes one record.
pub const FILL_ATTEMPTS: u32 = 200;
/// Pause of a loader when the server says that it has too much to do: its disk may be slower than the writes.
pub const FILL_PAUSE: Duration = Duration::from_millis(5);
/// Pause before a load asks again for a key whose slot no server owns at the moment, in nanoseconds: short beside the
/// pause of a slot's move, which its latencies are to show.
pub const LOAD_MOVE_PAUSE_NS: u64 = 500_000;
/// Records that a load draws at most until one is in the slots that it asks for.
pub const LOAD_SLOT_DRAWS: usize = 10_000;
/// Time that a load waits for answers after its end, beyond the requests' own deadline.
pub const LOAD_DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval at which a load's thread publishes its counts for the line of progress, in nanoseconds.
pub const LOAD_PUBLISH_INTERVAL_NS: u64 = 100_000_000;
/// Longest sleep of a load's thread that dozes, in microseconds: requests whose answers are lost must be resent in
/// time.
pub const LOAD_MAX_SLEEP_US: u64 = 1_000;
/// Polls without an answer after which a load's thread over a driver past the kernel yields to others, each time. So
/// many polls take longer than an answer that is under way, and a yield takes longer than most answers.
pub const LOAD_SPINS_BEFORE_YIELD: u32 = 64;
/// Interval at which the line of progress looks at the time.
pub const LOAD_PROGRESS_POLL: Duration = Duration::from_millis(20);
/// Lists, and rows for a decision tree, that a load makes by itself: a list is some tens of times as large as a record.
pub const LOAD_MAX_LISTS: u64 = 10_000;
/// Users with passwords that a load makes by itself: to hash one takes half a millisecond.
pub const LOAD_MAX_USERS: u64 = 1_000;
/// Tenants of a load up to which each has histograms of three digits; beyond it they have two, for 230 KB each are too
/// much.
pub const LOAD_FINE_HISTOGRAM_TENANTS: usize = 64;
/// A datagram of another server's protocol is given up after this long without an answer, and the next is sent.
pub const PEER_DATAGRAM_TIMEOUT: Duration = Duration::from_millis(100);
/// Time that another server may take to answer a greeting, or to answer what is under way at the end of a load.
pub const PEER_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of writes that a fill of another server hands to the kernel at once.
pub const PEER_FILL_BYTES: usize = 256 << 10;
/// Records that a message asks a range for: as many as the server's answer may have.
pub const RANGE_PAGE: usize = 1_000;
/// Keys of the multigets of one message, and records that its ranges ask for, together. A server refuses more, since it
/// serves a message without a break.
pub const MESSAGE_KEYS: usize = 1_000;
/// Bytes of edges at which the extension `tao` ends a reply, and says how to go on; a load's queries stay below.
pub const TAO_REPLY_BYTES: usize = 1 << 20;

/// Time that [`crate::control::Control::flush_table`] waits: longer than the server does.
pub const CONTROL_FLUSH_TIMEOUT: Duration = Duration::from_secs(75);
/// Time that [`crate::control::Control::change_table`] waits for another durability: longer than the server does.
pub const CONTROL_DURABILITY_TIMEOUT: Duration = Duration::from_secs(135);
/// Servers of a cluster that a client is connected to, at most: as many as a cluster has.
pub const CLUSTER_SERVERS: usize = 64;
/// Pause before a server is asked again for a key that no server has at the moment. A change of a slot's owner is known
/// everywhere after 100 ms.
pub const CLUSTER_PAUSE: Duration = Duration::from_millis(20);
/// Time that such a further attempt is given at least: a round trip to another place, and a busy machine.
pub const CLUSTER_LAST_HOP: Duration = Duration::from_millis(100);
/// The same as a part of the request's deadline, where that is short: one in so many.
pub const CLUSTER_LAST_HOP_ONE_IN: u32 = 4;
/// Keys of a multi-get that are asked for alone at a time, where it is not known which servers have them.
pub const CLUSTER_KEYS: usize = 64;
/// Times that a request is sent on from server to server before it pauses.
pub const CLUSTER_HOPS: u32 = 4;

/// Runs of a transaction's body, the first included, while others change what it reads: as many as a call has.
pub const TRANSACTION_TRIES: u32 = 16;
/// Pause after a transaction's first conflict; it doubles with each. Longer than a round trip in a data centre.
pub const TRANSACTION_PAUSE: Duration = Duration::from_micros(500);
/// The longest pause between two tries.
pub const TRANSACTION_LONGEST_PAUSE: Duration = Duration::from_millis(64);
