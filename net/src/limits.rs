//! Every limit of this crate: default, unit, reason. Endpoints take theirs from [`ServerLimits`], [`ClientLimits`] and
//! [`ReplyCacheLimits`], so that a server may set them downwards and a test may make them tiny.

use crate::rate_limiter::RateLimit;
use crate::rpc::MAX_MESSAGE_LEN;

/// Bytes of one datagram's UDP payload, R2P2 header included. 1472 fits an Ethernet frame of 1500 behind IPv4 and UDP.
pub const MAX_DATAGRAM: usize = 1472;
/// The same behind IPv6, whose header is 20 bytes longer.
pub const MAX_DATAGRAM_V6: usize = 1452;
/// The one of the two for this family: the size that networks usually bear.
pub const fn default_datagram(is_ipv6: bool) -> usize {
    if is_ipv6 { MAX_DATAGRAM_V6 } else { MAX_DATAGRAM }
}
/// Bytes of a datagram that every path bears, and the least that is sent because a path bears no larger ones. Linux
/// heeds no router that asks for packets of less than 552 bytes, 524 of them a datagram's behind IPv4 and UDP. The
/// stack past the kernel heeds none that asks for less than 576. IPv6's paths bear more.
pub const MIN_PATH_DATAGRAM: usize = 512;
/// Largest datagram that UDP over IPv4 can carry, bytes: upper bound of the setting.
pub const MAX_DATAGRAM_CEILING: usize = 65_507;
/// Least datagram setting and least chunk that is accepted, bytes: bounds the bookkeeping per byte of a message.
pub const MIN_DATAGRAM: usize = 256;
/// Datagrams that the kernel is asked for, or given, in one call. More gains nothing: its cost is per packet.
pub const BURST: usize = 32;
/// Longest time, nanoseconds, for which a message is believed to have waited in its socket: no client waits longer for
/// an answer. A message that says more was received before the machine's time of day was set.
pub const MAX_SOCKET_WAIT_NS: u64 = 1_000 * MAX_REQUEST_LIFETIME_US;
/// Difference between two readings of a clock's start, nanoseconds, from which on the time of day counts as set anew: a
/// thread that loses its processor between two readings has less, as a rule.
pub const ARRIVAL_CLOCK_STEP_NS: u64 = 1_000_000;
/// Packets of one message in flight before an ack: 47 KB at 1472 bytes, which fits the kernel's default socket buffer
/// four times. At most 64, the width of an ack's map.
pub const WINDOW: u16 = 32;
/// Packets of a message after which its receiver acks: a quarter of the window keeps the sender from waiting.
pub const ACK_EVERY: u16 = 8;
/// Packets resent at once when a timer expires: enough to restart a window, few enough not to flood a congested path.
pub const RESEND_BURST: usize = 8;
/// First wait before resending, microseconds: well over a loaded server's answer time (one invocation may take 10 ms).
pub const FIRST_RTO_US: u64 = 20_000;
/// Longest wait before resending, microseconds: the doubling stops here.
pub const MAX_RTO_US: u64 = 1_000_000;
/// Least time between two runs over an endpoint's timers, microseconds: bounds their cost to a small share of a core
/// however many messages are under way.
pub const TIMER_GRANULARITY_US: u64 = 1000;
/// Time that a request lives at its client unless told otherwise, microseconds.
pub const REQUEST_TIMEOUT_US: u64 = 5_000_000;
/// Longest life of a request, microseconds. No client repeats a request for longer, so a server that forgot a session
/// may take it up again after this time without running anything twice. Longer timeouts are cut to it.
pub const MAX_REQUEST_LIFETIME_US: u64 = 60_000_000;

/// Age from which a message under reassembly is given up for another one that needs its room, microseconds. This holds
/// if at its pace it would not be whole within [`MAX_REQUEST_LIFETIME_US`]. The age is five first waits before
/// resending, so its sender has had its chances.
pub const STALLED_AGE_US: u64 = 100_000;
/// The same if nothing of it came for so long, microseconds.
pub const STALLED_IDLE_US: u64 = 250_000;
/// Timers in a row without an ack after which a response is given up for another one that needs its room: 140 ms.
pub const STALLED_TIMERS: u32 = 3;
/// Timers after which a response is sent no more if its client has acked nothing of it: six times in 1.3 s, and another
/// second for its acks. A client that still wants it asks again, and has it sent anew.
pub const UNRESPONSIVE_TIMERS: u32 = 6;
/// Drops a second that a port answers to requests of several packets as R2P2 was published, which are not taken here,
/// at most.
pub const LEGACY_DROPS_PER_S: u64 = 1_000;
/// Most of these drops at once, after a pause.
pub const LEGACY_DROP_BURST: u64 = 100;
/// The two together.
pub const LEGACY_DROPS: RateLimit = RateLimit::per_second(LEGACY_DROPS_PER_S).with_burst(LEGACY_DROP_BURST);
/// Least time between two looks for such messages, microseconds: a look passes over all of them.
pub const STALL_SCAN_INTERVAL_US: u64 = 10_000;

/// Times that the response to a request of several packets is sent again, as one packet, before a repeat has to bring
/// all of the request once more. Repeats that only ask for it, 24 bytes each, come with any sender address, and count
/// in no tenant's rate. On a working network eight in a row are never lost.
pub const COMPLETED_REPLAYS: u32 = 8;

/// Tries of a datagram of one size, before a smaller one is tried: 60 ms in all.
pub const MTU_PROBE_TRIES: u32 = 2;
/// Time after which a client tries larger datagrams again where they did not come through, microseconds.
pub const MTU_PROBE_INTERVAL_US: u64 = 10_000_000;
/// Least time between two doubts of a client that large datagrams still come through, microseconds: each costs one.
pub const MTU_REPROBE_MIN_US: u64 = 1_000_000;
/// Sets of peers of which a server knows how large datagrams they get. A tenant's peers are in one of them.
pub const PEER_SIZE_SETS: usize = 64;
/// Peers of one set: with all of them 300 KB.
pub const PEER_SIZES_PER_SET: usize = 64;

/// Limits of a server endpoint (one port).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Bytes of a datagram sent. Default [`MAX_DATAGRAM`].
    pub max_datagram: usize,
    /// The same to a peer that has shown that it gets such. Default [`MAX_DATAGRAM`]: no larger ones.
    pub largest_datagram: usize,
    /// Bytes of one message, in either direction. Default [`MAX_MESSAGE_LEN`]; longer requests are refused with a drop.
    pub max_message: usize,
    /// Bytes of messages under reassembly, all peers. Default 64 MiB: seven largest puts at once. A tenant may hold
    /// twice what is left free, so a message may take two thirds of it at most.
    pub partial_bytes: usize,
    /// The same of one peer. Default 24 MiB: two largest puts, so that no peer takes all the room.
    pub partial_bytes_per_peer: usize,
    /// Messages under reassembly, all peers. Default 4096.
    pub partials: usize,
    /// The same of one peer. Default 256.
    pub partials_per_peer: usize,
    /// Time without a packet after which a message under reassembly is given up, microseconds. Default 5 s: over
    /// [`MAX_RTO_US`], so that no living client is given up between two of its attempts.
    pub partial_timeout_us: u64,
    /// Bytes of responses that wait for their acks, all peers. Default 128 MiB. Shared as `partial_bytes` is.
    pub outgoing_bytes: usize,
    /// The same of one peer. Default 32 MiB: three largest gets at once.
    pub outgoing_bytes_per_peer: usize,
    /// Responses that wait for their acks, all peers. Default 4096.
    pub outgoing: usize,
    /// Time after which a response that is never acked is given up, microseconds. Default 5 s.
    pub outgoing_timeout_us: u64,
    /// Multi-packet requests remembered after they were complete, so that a repeated packet is answered with an ack or
    /// the response and not by a second transfer. Default 1024.
    pub completed: usize,
    /// Time for which they are remembered, microseconds. Default 10 s.
    pub completed_timeout_us: u64,
    /// Packets in flight of one response. Default [`WINDOW`].
    pub window: u16,
    /// First wait before a response's packets are resent, microseconds. Default [`FIRST_RTO_US`].
    pub first_rto_us: u64,
    /// Bytes of buffers kept for reuse. Default 18 MiB: two largest messages.
    pub pooled_bytes: usize,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            max_datagram: MAX_DATAGRAM,
            largest_datagram: MAX_DATAGRAM,
            max_message: MAX_MESSAGE_LEN,
            partial_bytes: 64 << 20,
            partial_bytes_per_peer: 24 << 20,
            partials: 4096,
            partials_per_peer: 256,
            partial_timeout_us: 5_000_000,
            outgoing_bytes: 128 << 20,
            outgoing_bytes_per_peer: 32 << 20,
            outgoing: 4096,
            outgoing_timeout_us: 5_000_000,
            completed: 1024,
            completed_timeout_us: 10_000_000,
            window: WINDOW,
            first_rto_us: FIRST_RTO_US,
            pooled_bytes: 18 << 20,
        }
    }
}

/// Limits of a client endpoint (one server port).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Bytes of a datagram sent. Default [`MAX_DATAGRAM`].
    pub max_datagram: usize,
    /// The largest that is tried, and used if it comes through in both directions. Default [`MAX_DATAGRAM`]: none is
    /// tried.
    pub largest_datagram: usize,
    /// Bytes of one message, in either direction. Default [`MAX_MESSAGE_LEN`].
    pub max_message: usize,
    /// Requests in flight, rounded up to a power of two, at most 4096. Default 1024: what a server's window of answers
    /// holds for one session.
    pub in_flight: usize,
    /// Bytes of requests in flight. Default 64 MiB.
    pub request_bytes: usize,
    /// Bytes of responses under reassembly. Default 64 MiB; packets over it are left to be resent.
    pub response_bytes: usize,
    /// Life of a request, microseconds. Default [`REQUEST_TIMEOUT_US`], cut to [`MAX_REQUEST_LIFETIME_US`].
    pub timeout_us: u64,
    /// First wait before a request is resent, microseconds. Default [`FIRST_RTO_US`].
    pub first_rto_us: u64,
    /// Packets in flight of one request. Default [`WINDOW`].
    pub window: u16,
    /// Bytes of buffers kept for reuse. Default 18 MiB: two largest messages.
    pub pooled_bytes: usize,
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits {
            max_datagram: MAX_DATAGRAM,
            largest_datagram: MAX_DATAGRAM,
            max_message: MAX_MESSAGE_LEN,
            in_flight: 1024,
            request_bytes: 64 << 20,
            response_bytes: 64 << 20,
            timeout_us: REQUEST_TIMEOUT_US,
            first_rto_us: FIRST_RTO_US,
            window: WINDOW,
            pooled_bytes: 18 << 20,
        }
    }
}

/// Limits of an at-most-once window (one port).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyCacheLimits {
    /// Answers remembered for one session, a power of two. Default 1024; a client keeps `sequence - acked` below it.
    pub replies_per_session: usize,
    /// Bytes of remembered answers, all sessions. Default 64 MiB.
    pub bytes: usize,
    /// Sessions. Default 4096; beyond it the longest idle one is evicted.
    pub sessions: usize,
    /// Evicted sessions that are remembered as such for [`ReplyCacheLimits::retry_lifetime_us`]. Default 65,536 (8
    /// bytes each). When this many were evicted within that time, unknown sessions are refused as stale: not run,
    /// rather than run twice.
    pub tombstones: usize,
    /// Longest time for which a client repeats a request, microseconds. Default [`MAX_REQUEST_LIFETIME_US`].
    pub retry_lifetime_us: u64,
    /// Bytes of an answer's buffer that stay allocated for the next answer in its slot. Default 512.
    pub reusable_buffer_bytes: usize,
}

impl Default for ReplyCacheLimits {
    fn default() -> ReplyCacheLimits {
        ReplyCacheLimits {
            replies_per_session: 1024,
            bytes: 64 << 20,
            sessions: 4096,
            tombstones: 65_536,
            retry_lifetime_us: MAX_REQUEST_LIFETIME_US,
            reusable_buffer_bytes: 512,
        }
    }
}

/// Kernel buffer asked for a socket, each direction, bytes. The kernel grants up to its own limit (`net.core.rmem_max`)
/// to an unprivileged process, and doubles it for its own bookkeeping (768 bytes for a small datagram, 2304 for a full
/// one, 8 KB for 64 small ones coalesced). So 2 MiB hold 5,400 small datagrams, which is what six clients of 900
/// messages in flight each send at once. A worker that does nothing else takes them out within 1 ms, which is the
/// longest that a datagram waits here.
pub const SOCKET_BUFFER: usize = 2 << 20;
/// Bytes of datagrams that an outbox holds; beyond it a datagram is dropped and counted. 8 MiB: a full window of
/// responses to each datagram of a burst. Of it, up to a quarter may be taken by some that have left.
pub const OUTBOX_BYTES: usize = 8 << 20;
/// Datagrams that an outbox holds.
pub const OUTBOX_DATAGRAMS: usize = 16_384;
/// Datagrams that an outbox sorts among each other: half of a sealed session's replay window, so that none is too late
/// for it, and 16 segmented sends of one size.
pub const OUTBOX_SORT_WINDOW: usize = 1024;
/// Bytes of values that an outbox holds references to, for datagrams that are sent from there; beyond it they are
/// copied. 64 MiB: sixteen windows of the largest values, whose packets are a small part of them.
pub const OUTBOX_PINNED_BYTES: usize = 64 << 20;
/// Bytes of a value in one datagram from which on they are sent from where they lie. Fewer bytes are copied faster than
/// they are referenced, handed over in a piece of their own, and released.
pub const SHARED_SLICE_BYTES: usize = 512;
/// Datagrams in one segmented send, at most (the kernel's `UDP_MAX_SEGMENTS` is 64 or more).
pub const GSO_SEGMENTS: usize = 64;
/// Most datagrams that the kernel may have coalesced into one (its `UDP_MAX_SEGMENTS` is 128 since Linux 6.9). A frame
/// of a virtual machine says itself how many are in it. More come only from an attacker that would have the stack take
/// 65,000 out of one frame.
pub const GRO_SEGMENTS: usize = 128;
/// Bytes in one segmented send, at most: what an IPv4 datagram can carry.
pub const GSO_BYTES: usize = 65_507;
/// Messages of segments refused in a row that each double how many datagrams then leave one by one before segments are
/// tried again. Where none are ever taken, one group in eight is tried and fails. A peer whose path takes none does not
/// keep others from theirs for longer.
pub const UNSEGMENTED_BACKOFF_DOUBLINGS: u32 = 3;
/// Stretches of the outbox's buffer that one call hands to the kernel, at most. They take 8 KiB of stack, and are as
/// many as a burst of messages of 16 datagrams each that were queued apart from each other.
pub const GSO_SLICES: usize = 512;
/// Bytes of a receive buffer when the kernel coalesces datagrams (`UDP_GRO`).
pub const GRO_BUFFER: usize = 65_536;
/// Connections that wait to be accepted, each listener; the kernel may have less (`net.core.somaxconn`). A worker
/// accepts them within a turn of its loop, so these are many clients that start together.
pub const ACCEPT_BACKLOG: i32 = 4096;
/// Seconds of silence after which the kernel asks whether the other side of a connection is still there (as Redis
/// does), seconds between its questions, and unanswered questions after which it ends the connection. That is 10
/// minutes in all.
pub const KEEPALIVE_IDLE_S: u64 = 300;
/// See [`KEEPALIVE_IDLE_S`].
pub const KEEPALIVE_INTERVAL_S: u64 = 100;
/// See [`KEEPALIVE_IDLE_S`].
pub const KEEPALIVE_PROBES: u32 = 3;
/// Sockets that a selector reports at once; the others come next time, in rotation. It bounds the work of a worker
/// between two polls of its packets: 64 reads and writes are 100 us.
pub const EPOLL_EVENTS: usize = 64;

// ---- DPDK ----

/// Packets that a queue of a device holds, in each direction. 1024, as all devices offer it: 100 us at 10 million
/// packets a second, and what a worker takes out within a turn.
pub const DPDK_DESCRIPTORS: u16 = 1024;
/// Buffers that a thread keeps of each pool, so that most are taken and given back without a locked instruction; twice
/// a burst.
pub const DPDK_POOL_CACHE: u32 = 64;
/// Buffers of a queue's pool for bursts under way, beyond those that its rings and the threads' caches can hold, and
/// those that may be kept.
pub const DPDK_SPARE_BUFFERS: u32 = 1023;
/// Buffers that DPDK's driver of AF_XDP gives to the kernel for each queue when it starts, however few were asked for.
pub const XDP_FILL_BUFFERS: u16 = 2048;
/// Bytes that the kernel keeps free before each frame that it gives to a program of XDP.
pub const XDP_HEADROOM: u16 = 256;
/// Bytes of a datagram from which on it stays in its receive buffer, and of a value in it from which on its record may
/// leave it there, as long as so many buffers may be kept. From here on two copies cost more than an owner for the
/// buffer (docs/dpdk.md).
pub const DPDK_ZERO_COPY_MIN_BYTES: usize = 1024;
/// A value stays in its packet's buffer from one of so many parts of the largest packet on. 4: a record that stays
/// takes four times its bytes at most, and 4 KiB still stay in packets of 9000 bytes.
pub const DPDK_ZERO_COPY_MIN_PARTS: usize = 4;
/// Buffers of datagrams that only wait are to be one part in this number of those that may be kept. 2: a flood leaves
/// half to values.
pub const DPDK_QUEUED_BUFFER_PARTS: u32 = 2;
/// Sends in a row without room after which the device is asked whether its other end is connected. If it is not, the
/// waiting packets are dropped, as with an unplugged cable.
pub const DPDK_FULL_SENDS_BEFORE_LINK_CHECK: u32 = 1000;
/// Seconds for which a client waits for its device's link: copper takes some.
pub const DPDK_LINK_TIMEOUT_S: u64 = 15;
/// Milliseconds between two looks at a device's link: some drivers ask the kernel, or the wire, each time.
pub const DPDK_LINK_CHECK_MS: u64 = 1000;
/// Connections that a client's device serves at a time, each at a UDP port of its own: as many as a stack has workers.
pub const DPDK_CONNECTIONS: usize = 64;
/// Ports of which a client past the kernel begins at one, as the kernel chooses them; [`DPDK_CONNECTIONS`] follow the
/// last of them.
pub const CLIENT_PORTS: std::ops::Range<u16> = 32_768..60_935;
/// Bytes of memory that a device is told of at a time: a huge page.
pub const DMA_EXTENT_BYTES: usize = 2 << 20;
/// Most extents that a device is told of: Linux' `dma_entry_limit`. Memory beyond is copied.
pub const DMA_EXTENTS: usize = 65_535;
/// Addresses tried for memory that a device reads; the first free one is used. They are above what DPDK takes for
/// itself on a machine of one memory node or two, and below 2^39, beyond which many an IOMMU does not translate.
pub const DMA_ADDRESS_HINTS: [usize; 3] = [1 << 38, 3 << 37, 1 << 37];
/// Milliseconds after which a device that could not be told of more memory is told again. Each try costs some calls,
/// and DPDK logs each failure.
pub const DMA_RETRY_MS: u64 = 1000;
/// Receives in a row that brought nothing, after which a device is asked to release what it has sent: a value stays as
/// long as its packet does.
pub const DPDK_EMPTY_RECEIVES_BEFORE_CLEANUP: u32 = 1000;
/// Bytes of one of DPDK's arguments.
pub const DPDK_NAME_BYTES: usize = 4096;

// ---- RESP ----

/// Arguments of one command of a Redis client: a million keys of an `MGET`, and no more memory than they take.
pub const RESP_ARGUMENTS: usize = 1 << 20;
/// Arguments of a command that are read in one go, about 10 ns each: half a slice.
pub const RESP_ARGUMENTS_PER_CALL: usize = 4096;
/// Bytes of one command, line ends included: the largest value, and as much again for the many of an `MSET`.
pub const RESP_COMMAND_BYTES: usize = 16 << 20;
/// Bytes of a command that is typed as a line, and of a length.
pub const RESP_LINE_BYTES: usize = 64 << 10;
/// Arguments of a command before its client's tenant is known: `HELLO` with all its options.
pub const RESP_UNAUTHENTICATED_ARGUMENTS: usize = 10;
/// Bytes of an argument of such a command.
pub const RESP_UNAUTHENTICATED_ARGUMENT_BYTES: usize = 16 << 10;

// ---- The UDP/IP stack ----

/// Entries for neighbours in the table that all workers of an interface share; 48 bytes each. They suffice for the
/// hosts of a large network segment; with a router, one is used.
pub const NEIGHBOURS: usize = 4096;
/// Entries of one bucket of that table.
pub const NEIGHBOURS_PER_BUCKET: usize = 8;
/// The same entries where every peer has one: on a device shared with the kernel, which receives the answers of
/// neighbours and routers. As many peers may be heard of while a server thinks about an answer; they take 3 MB.
pub const LEARNED_NEIGHBOURS: usize = 65_536;
/// Time for which such an entry's time is not set anew, microseconds. A peer that is heard again after it is kept
/// before those that were heard once. A flood that is to drive out a peer heard within it has to fill all entries in
/// this time.
pub const NEIGHBOUR_REFRESH_US: u64 = 50_000;
/// Locks of these entries: new senders of different workers seldom wait for each other.
pub const NEIGHBOUR_LOCKS: usize = 64;
/// Time for which a neighbour's answer is believed, microseconds (as RFC 4861 has it). Then it is asked again, and the
/// answer is used until the next one comes.
pub const NEIGHBOUR_REACHABLE_US: u64 = 30_000_000;
/// Time for which an answer is not doubted, even if others claim the address, microseconds: a forger makes a neighbour
/// be asked once in this time.
pub const NEIGHBOUR_DISPUTE_US: u64 = 1_000_000;
/// Waits for an answer to the first, second and third broadcast question, microseconds.
pub const NEIGHBOUR_RETRIES_US: [u64; 3] = [250_000, 500_000, 1_000_000];
/// Questions to a neighbour that was known, before a broadcast; the wait for an answer is that of the first.
pub const NEIGHBOUR_UNICAST_PROBES: u8 = 2;
/// Time for which an address without an answer is given up, microseconds.
pub const NEIGHBOUR_FAILED_US: u64 = 3_000_000;
/// Age from which a question without an answer makes room for another one, microseconds. A host of the same network
/// answers within a few.
pub const NEIGHBOUR_PROBE_EVICT_US: u64 = 100_000;
/// Questions for neighbours a second, all workers together, and as many at once: more are caused by forged senders.
/// Routers are not counted.
pub const NEIGHBOUR_PROBES_PER_S: u64 = 1000;
/// Datagrams of one worker that wait for a neighbour's address: the first answers of some clients.
pub const UNRESOLVED_DATAGRAMS: usize = 256;
/// The same for one neighbour.
pub const UNRESOLVED_PER_NEIGHBOUR: usize = 32;
/// Bytes of those that wait.
pub const UNRESOLVED_BYTES: usize = 1 << 20;
/// Answers to echoes a second, each worker, and as many at once.
pub const ECHOES_PER_S: u64 = 1000;
/// Answers that a port is closed a second, each worker, and as many at once (Linux: 1000 of all kinds, 1 a
/// millisecond).
pub const CLOSED_PORTS_PER_S: u64 = 100;
/// Frames of the stack itself (answers of ARP, discovery and ICMP) that wait to be sent, each worker.
pub const CONTROL_FRAMES: usize = 64;
/// The part of these frames that only questions for neighbours may take: a flood that makes the stack answer must not
/// keep it from asking.
pub const PROBE_FRAMES: usize = 16;
/// Datagrams for one worker that arrived at others and wait for it: 30 bursts.
pub const HANDOVER_DATAGRAMS: usize = 1024;
/// Bytes of them.
pub const HANDOVER_BYTES: usize = 2 << 20;
/// Bursts of frames that one receive looks through if they hold no datagrams: bounds what a flood of junk costs a turn.
pub const MAX_JUNK_BURSTS: usize = 4;
/// Longest sleep of a worker whose port cannot wake it, microseconds: the most that a datagram waits on an idle server.
pub const POLLED_SLEEP_US: u64 = 50;
/// The same where no datagram came or went for [`POLLED_IDLE_AFTER_US`]: 2000 looks a second cost a hundredth of a
/// core, 20,000 a tenth.
pub const POLLED_IDLE_SLEEP_US: u64 = 500;
/// Time without a datagram after which a worker whose port cannot wake it polls less often, microseconds.
pub const POLLED_IDLE_AFTER_US: u64 = 1_000_000;
/// The same where no datagram came or went for [`POLLED_DEEP_IDLE_AFTER_US`], microseconds: 500 polls a second. A queue
/// of 1024 packets holds what comes in one sleep at half a million packets a second. A client sends again only after
/// ten times as long.
pub const POLLED_DEEP_SLEEP_US: u64 = 2000;
/// Time without a datagram after which a worker whose port cannot wake it polls least often, microseconds.
pub const POLLED_DEEP_IDLE_AFTER_US: u64 = 10_000_000;
/// Longest sleep of a worker whose port was asked for an interrupt, microseconds. The interrupt ends it. This bound is
/// for an interrupt that is lost, and for drivers whose interrupts do not come: either costs a packet a tenth of a
/// second, and no more. Ten polls a second cost next to nothing, and the periodic work of the stack and its driver (a
/// look at the link each second) is done in time.
pub const ARMED_SLEEP_US: u64 = 100_000;
/// Sleeps in a row that ended by time although packets were there, after which interrupts are not waited for any more.
/// A packet that comes at the very moment at which the time is up looks the same. That happens once, and not four times
/// in a row.
pub const INTERRUPTS_MISSED: u32 = 4;
/// Interrupts in a row without a packet, and with no sleep of full length, after which they are not waited for any
/// more. One or two come when the cause was dealt with before. Some drivers leave the cause standing, so that each
/// request for one is answered at once.
pub const INTERRUPTS_FOR_NOTHING: u32 = 16;
/// Paths that bear less than the interface, as a router said, for one interface; 40 bytes each.
pub const REDUCED_PATHS: usize = 1024;
/// Time for which that is believed, microseconds (RFC 8201 has it tried again after ten minutes).
pub const REDUCED_PATH_LIFETIME_US: u64 = 600_000_000;
/// Groups of networks (/24, IPv6 /64) that share the room for them, and the rate at which they may be lowered. As a
/// rule a sender that takes all of its group's room takes none from another group.
pub const REDUCED_PATH_GROUPS: usize = 64;
/// Messages a second, for each worker and group, that lower what a path bears, and questions to the kernel about it;
/// and as many at once.
pub const REDUCED_PATHS_PER_S: u64 = 10;
/// Large packets sent of late that such a message may quote: those of one round trip.
pub const SENT_FINGERPRINTS: usize = 4096;
/// Least time between two announcements in defence of an address that another host claims, microseconds (RFC 5227).
pub const ADDRESS_DEFENCE_US: u64 = 10_000_000;
/// Least time between two reports of groups, microseconds.
pub const GROUP_REPORT_US: u64 = 1_000_000;
