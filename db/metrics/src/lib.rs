//! Counters: each is declared once, with its name, its type and its meaning. `docs/metrics.md` and the Prometheus text
//! are made from the declarations.
//! A worker's counters are in cache lines of their own and have one writer, so counting costs a load and a store, and
//! no locked instruction. Readers add the workers up. A sum is a view of a moment; each counter in it is exact.
#![deny(unsafe_code)]

pub mod alerts;
pub mod dashboard;
mod device;
pub mod histogram;
pub mod latency;
pub mod limits;
mod memory;
mod naming;
pub mod series;
mod slow_threshold;
pub mod text;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use sandstorm_net::rpc;

use device::NetworkDescription;
pub use device::{DEVICE_METRICS, DeviceProbe, DeviceState};
pub use memory::{MEMORY_METRICS, memory_readings};
pub use naming::ConventionalName;
pub use series::{
    ALL_QUOTAS, BUILD_METRICS, BUILD_RESULTS, CALL_RESULTS, CONTROL_METRICS, EXTENSION_METRICS, HOT_KEY_METRICS,
    ISOLATION_METRICS, PERSISTENCE_METRICS, QUOTA_METRICS, SERVER_METRICS, SPILL_METRICS, TABLE_ACCESSES,
    TABLE_METRICS, TENANT_USE_METRICS, USED_QUOTAS, WATCHDOG_METRICS, WatchdogCounts, WatchdogProbe,
};
pub use slow_threshold::SlowThreshold;

/// A count with a single writer: that thread alone may call [`SingleWriterCounter::add`] and
/// [`SingleWriterCounter::set`], any may read. (A second writer would lose counts, nothing worse.)
#[derive(Debug, Default)]
pub struct SingleWriterCounter(AtomicU64);

impl SingleWriterCounter {
    /// A count of nothing.
    pub(crate) const fn new() -> SingleWriterCounter {
        SingleWriterCounter(AtomicU64::new(0))
    }

    /// Adds to the count; only for the thread that owns this counter.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets the count; only for the thread that owns this counter.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The value now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows while the server runs.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Durations by how long they were.
    Histogram,
    /// Quantiles of durations.
    Summary,
}

impl MetricKind {
    /// The word that Prometheus has for it.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Summary => "summary",
        }
    }
}

/// The declaration of a metric.
#[derive(Clone, Copy, Debug)]
pub struct MetricSpec {
    /// Its name, without the prefix `sandstorm_`.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: MetricKind,
    /// Its label and the label's values, when it is a family; the values are in the order of the counts.
    pub label: Option<(&'static str, &'static [&'static str])>,
    /// Its meaning.
    pub meaning: &'static str,
}

/// Operations, in the order of their numbers.
pub const OPERATIONS: &[&str] = &[
    "ping",
    "hello",
    "get",
    "multiget",
    "put",
    "delete",
    "increment",
    "invoke",
    "range",
    "commit",
    "count",
    "rank",
    "nth",
    "ttl",
    "touch",
];

/// Statuses of operations, in the order of their numbers.
pub const STATUSES: &[&str] = &[
    "ok",
    "not_found",
    "conflict",
    "malformed",
    "version",
    "unauthenticated",
    "unknown_tenant",
    "unknown_table",
    "unknown_extension",
    "wrong_server",
    "over_quota",
    "out_of_memory",
    "too_large",
    "killed",
    "failed",
    "overloaded",
    "stale",
    "not_a_number",
    "suspended",
    "shutting_down",
    "read_only",
    "seal_required",
    "not_durable",
    "not_read",
    "not_backed",
];

/// Reasons for refusing a packet of a sealed session, in the order of `SealCounters::refused_by_reason`.
pub const SEAL_REASONS: &[&str] = &sandstorm_net::seal::SealCounters::REASONS;

/// Reasons for which the UDP/IP stack of kernel-bypass drivers drops a frame, in the order of their numbers.
pub const FRAME_REASONS: &[&str] = &sandstorm_net::stack::FrameDropReason::NAMES;

/// Reasons for which a datagram cannot be sent.
pub const UNDELIVERABLE_REASONS: &[&str] = &["too_large", "no_route", "unresolved"];

/// Causes of kills, in the order of their numbers less one.
pub const KILL_CAUSES: &[&str] = &[
    "slice_budget",
    "total_budget",
    "panic",
    "out_of_memory",
    "stack_overflow",
    "division_by_zero",
    "illegal_instruction",
    "memory_fault",
    "unloaded",
    "crowded",
];

/// Kinds of malformed messages.
pub const MALFORMED_KINDS: &[&str] = &[
    "short_header",
    "version",
    "operations",
    "short_operation",
    "short_body",
    "too_large",
    "unknown_op",
    "unknown_enum",
    "trailing",
];

/// The index of a malformed message's kind in [`MALFORMED_KINDS`].
pub fn malformed_kind_index(malformed: &rpc::MessageDecodeError) -> usize {
    use rpc::MessageDecodeError as M;
    match malformed {
        M::ShortHeader => 0,
        M::Version(_) => 1,
        M::Operations(_) => 2,
        M::ShortOperation(_) => 3,
        M::ShortBody(_) => 4,
        M::TooLarge(_) => 5,
        M::UnknownOp(..) => 6,
        M::UnknownEnum(_) => 7,
        M::Trailing(_) => 8,
    }
}

/// The index of a kill's cause in [`KILL_CAUSES`].
pub fn cause_index(cause: rpc::KillCause) -> usize {
    cause as usize - 1
}

/// Reasons for closing or refusing a connection, in the order of [`ConnectionReason`].
pub const CONNECTION_REASONS: &[&str] =
    &["full", "no_files", "unauthenticated", "slow_reader", "memory", "protocol", "handshake", "http"];

/// A reason for closing or refusing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionReason {
    /// The server, or its tenant, had as many as allowed.
    Full,
    /// The process could open no more files.
    NoFiles,
    /// It did not authenticate in time, or within bounds.
    Unauthenticated,
    /// It did not read its answers.
    SlowReader,
    /// All buffers together were too large.
    Memory,
    /// It sent bytes that its protocol does not have.
    Protocol,
    /// Its TLS handshake failed, or took too long.
    Handshake,
    /// It spoke HTTP: a page in a browser may have made it.
    Http,
}

/// The name of a kill's cause.
pub fn cause_name(cause: rpc::KillCause) -> &'static str {
    KILL_CAUSES.get(cause_index(cause)).copied().unwrap_or("unknown")
}

/// Declares a structure of counters: `field: counter`, `field: gauge`, or `field: counter by("label", NAMES)`.
macro_rules! metrics {
    ($(#[doc = $what:literal])+ $name:ident, $prefix:literal {
        $( $(#[doc = $doc:literal])+ $field:ident: $kind:ident $(by($label:literal, $names:expr))?, )*
    }) => {
        $(#[doc = $what])+
        #[derive(Debug, Default)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: metrics!(@type $($names)?), )*
        }

        impl $name {
            /// The declarations, in the order of [`Self::values`].
            pub const METRICS: &'static [MetricSpec] = &[$( MetricSpec {
                name: concat!($prefix, stringify!($field)),
                kind: metrics!(@kind $kind),
                label: metrics!(@label $($label, $names)?),
                meaning: concat!($($doc),+),
            } ),*];

            /// The values now: one a metric, or one for each value of its label.
            pub fn values(&self) -> Vec<Vec<u64>> {
                vec![$( metrics!(@read self.$field $(, $names)?) ),*]
            }
        }
    };
    (@type) => { SingleWriterCounter };
    (@type $names:expr) => { [SingleWriterCounter; $names.len()] };
    (@kind counter) => { MetricKind::Counter };
    (@kind gauge) => { MetricKind::Gauge };
    (@label) => { None };
    (@label $label:literal, $names:expr) => { Some(($label, $names)) };
    (@read $field:expr) => { vec![$field.get()] };
    (@read $field:expr, $names:expr) => { $field.iter().map(SingleWriterCounter::get).collect() };
}

metrics! {
    /// What one worker counts.
    WorkerCounters, "" {
        /// Datagrams received.
        packets_in: counter,
        /// Datagrams sent.
        packets_out: counter,
        /// Bytes received in datagrams.
        bytes_in: counter,
        /// Bytes sent in datagrams.
        bytes_out: counter,
        /// Receive bursts that held at least one datagram.
        bursts: counter,
        /// Datagrams that are no R2P2 packet, or stand for no message here.
        packets_dropped: counter,
        /// Received datagrams that were dropped: their flow, of a tenant or of all unauthenticated senders, had more
        /// waiting than its share.
        packets_shed: counter,
        /// Messages that the kernel dropped before they were received: the socket's buffer was full, or early drop was
        /// active (a message may be many datagrams coalesced).
        packets_dropped_early: counter,
        /// Flows of which a part is dropped early now: tenants, and all unauthenticated senders as one flow.
        throttled: gauge,
        /// Datagrams that came to another worker's queue of the network's device, and were handed over.
        packets_handed_over: counter,
        /// Frames dropped by the UDP/IP stack of kernel-bypass drivers, by reason.
        frames_refused: counter by("reason", FRAME_REASONS),
        /// Datagrams that the stack did not send, by reason: too large for a packet, no route to their address, or a
        /// neighbour that does not answer.
        packets_undeliverable: counter by("reason", UNDELIVERABLE_REASONS),
        /// Rejections of unauthenticated senders that were not sent: longer than the request, or too many of them.
        refusals_unsent: counter,
        /// Datagrams that could not be sent because the socket was full; the sender's retransmission makes up for them.
        packets_unsent: counter,
        /// Datagrams that left one by one although the kernel segments others: the way to their peer takes none (a
        /// tunnel, a small MTU).
        packets_unsegmented: counter,
        /// Datagrams sent again because their acknowledgement did not come in time.
        retransmissions: counter,
        /// Messages that came a second time and were not run again.
        duplicates: counter,
        /// Whole messages received.
        messages: counter,
        /// Times that a message had to wait for a further turn of its tenant's, because a piece of work was over.
        messages_postponed: counter,
        /// Answers that waited until what they show was on the disk (tables with durability `disk`), those of
        /// connections by the batch.
        answers_delayed: counter,
        /// Those that waited in vain, since the log's disk has failed or takes too long, or too many waited.
        answers_not_durable: counter,
        /// Commands of memcached clients that were sent to the servers of the cluster that have their keys.
        commands_forwarded: counter,
        /// Those of them that were not answered by those servers, or were not run: their clients got `SERVER_ERROR`.
        forwards_refused: counter,
        /// Datagrams of memcached clients that were dropped: too many waited for other servers of the cluster.
        forwarded_datagrams_dropped: counter,
        /// The most that was run of messages in one go so far, in plain requests of 200 ns: 500, or 250 beside another
        /// tenant, and one operation more, which is 1,000 keys, or 8 MiB moved in and out (4,096).
        longest_piece: gauge,
        /// Messages or operations that are not well-formed, by kind.
        malformed: counter by("kind", MALFORMED_KINDS),
        /// Operations received, by what they ask for.
        requests: counter by("op", OPERATIONS),
        /// Operations answered, by how they ended.
        responses: counter by("status", STATUSES),
        /// Records whose value was read by plain operations.
        records_read: counter,
        /// Invocations begun.
        invocations_started: counter,
        /// Invocations that returned without an error.
        invocations_done: counter,
        /// Invocations that returned an error of their own.
        invocations_failed: counter,
        /// Invocations that the server ended, by cause.
        invocations_killed: counter by("cause", KILL_CAUSES),
        /// Polls of invocations.
        polls: counter,
        /// Polls of invocations that ended by a switch, because they computed past their slice.
        preemptions: counter,
        /// CPU time spent in invocations, in nanoseconds.
        invocation_cpu_ns: counter,
        /// Invocations taken over from another worker.
        steals: counter,
        /// Packets taken over from another worker's queue.
        packet_steals: counter,
        /// Turns of the loop.
        turns: counter,
        /// Turns of the loop that found nothing to do.
        idle_turns: counter,
        /// Time spent in turns of the loop that found something to do, in microseconds of the wall clock: what is left
        /// of a second is what the worker could still do, also while it polls.
        busy_us: counter,
        /// Times the worker went to sleep in the kernel.
        sleeps: counter,
        /// Records removed because they had expired, by the sweep.
        swept: counter,
        /// Invocations that are begun and not ended.
        invocations_live: gauge,
        /// Sessions that the worker remembers.
        sessions: gauge,
        /// Sealed sessions that the worker has keys of.
        sealed_sessions: gauge,
        /// Handshakes of sealed sessions.
        handshakes: counter,
        /// Packets of sealed sessions that were refused, by reason.
        sealed_refused: counter by("reason", SEAL_REASONS),
        /// Connections of memcached and Redis clients.
        connections: gauge,
        /// Connections accepted.
        connections_accepted: counter,
        /// Connections given to the worker that is their tenant's home.
        connections_handed_over: counter,
        /// Connections that the server closed or did not take, by reason.
        connections_refused: counter by("reason", CONNECTION_REASONS),
        /// Bytes received from connections.
        connection_bytes_in: counter,
        /// Bytes of answers to connections.
        connection_bytes_out: counter,
        /// Batches of commands that connections had run.
        connection_batches: counter,
        /// The most that a connection had run in one go so far, in plain requests of 200 ns: 500, or 250 beside another
        /// tenant, and one step more, which is 64 keys, or a value (4,096 for one of 8 MiB).
        connection_longest_piece: gauge,
    }
}

impl WorkerCounters {
    /// Stores the counts of a kernel-bypass driver, by the driver's names for them; only for the worker.
    pub fn set_detail(&self, name: &str, count: u64) {
        let families =
            [(FRAME_REASONS, &self.frames_refused[..]), (UNDELIVERABLE_REASONS, &self.packets_undeliverable[..])];
        if name == "handed_over" {
            self.packets_handed_over.set(count);
        }
        for (names, counters) in families {
            let counter = names.iter().zip(counters).find(|(reason, _)| **reason == name);
            if let Some((_, counter)) = counter {
                counter.set(count);
            }
        }
    }
}

/// The counters of one worker for one tenant.
pub use tenant_counters::TenantCounters;

mod tenant_counters {
    use super::{KILL_CAUSES, MetricKind, MetricSpec, SingleWriterCounter};

    metrics! {
        /// What one worker counts for one tenant.
        TenantCounters, "tenant_" {
            /// Operations received for the tenant.
            requests: counter,
            /// Operations refused because of a quota of the tenant.
            over_quota: counter,
            /// Received datagrams of the tenant that were dropped, because more of them waited than its share.
            packets_shed: counter,
            /// Of a thousand of the tenant's datagrams, those that are dropped early now (workers added up).
            dropped_early_per_mille: gauge,
            /// Large values that the tenant put and that were copied, because it had used its part of the receive
            /// buffers (`[net] kept_buffers`).
            rx_copied: counter,
            /// Invocations that returned without an error.
            invocations_done: counter,
            /// Invocations that returned an error of their own.
            invocations_failed: counter,
            /// Invocations that the server ended, by cause.
            invocations_killed: counter by("cause", KILL_CAUSES),
            /// Polls of the tenant's invocations that ended by a switch, because they computed past their slice.
            preemptions: counter,
            /// CPU time spent in the tenant's invocations, in nanoseconds.
            invocation_cpu_ns: counter,
            /// Invocations whose transaction was committed.
            transactions_committed: counter,
            /// Runs of invocations that were begun anew, because the transaction met the writes of others.
            transaction_retries: counter,
            /// Invocations that were answered `Conflict`, because the transaction met the writes of others each time.
            transaction_conflicts: counter,
            /// Places that the tenant's invocations hold on workers.
            invocations_live: gauge,
            /// Connections of the tenant's memcached and Redis clients.
            connections: gauge,
            /// Records asked for over such connections.
            connection_reads: counter,
            /// Those of them that were not there.
            connection_misses: counter,
            /// Values that were to be written over such connections.
            connection_writes: counter,
            /// Work of such connections, in plain requests: long commands and large values count as many.
            connection_work: counter,
            /// Work of the tenant's messages of the native protocol, and of calls of this process, in plain requests:
            /// each key of a multiget, each record that a range may answer, and each step of a commit counts as one,
            /// and a count, a rank or an nth as 16.
            packet_work: counter,
        }
    }
}

const fn counter(name: &'static str, meaning: &'static str) -> MetricSpec {
    MetricSpec { name, kind: MetricKind::Counter, label: None, meaning }
}

const fn gauge(name: &'static str, meaning: &'static str) -> MetricSpec {
    MetricSpec { name, kind: MetricKind::Gauge, label: None, meaning }
}

/// All counters of the server.
pub struct ServerMetrics {
    started: Instant,
    workers: Box<[Arc<CachePadded<WorkerCounters>>]>,
    /// A description of the workers' network.
    network: OnceLock<NetworkDescription>,
    watchdog: OnceLock<WatchdogProbe>,
    /// From when on a request counts as slow.
    pub slow: SlowThreshold,
}

impl std::fmt::Debug for ServerMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerMetrics").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

/// A metric and its values, one a label value.
#[derive(Clone, Debug)]
pub struct MetricReading {
    /// The declaration.
    pub metric: &'static MetricSpec,
    /// One value, or one for each value of the label.
    pub values: Vec<u64>,
}

impl ServerMetrics {
    /// Counters for that many workers.
    pub fn new(workers: usize) -> Arc<ServerMetrics> {
        let workers = (0..workers).map(|_| Arc::default()).collect();
        Arc::new(ServerMetrics {
            started: Instant::now(),
            workers,
            network: OnceLock::new(),
            watchdog: OnceLock::new(),
            slow: SlowThreshold::default(),
        })
    }

    /// Sets the description of the workers' network, and the probe of its device if there is one.
    pub fn set_network(&self, about: &str, device: Option<DeviceProbe>) {
        // It is set once, when the workers have started.
        let _was_set = self.network.set(NetworkDescription { about: about.to_owned(), device });
    }

    /// Sets where the watchdog's counts are read.
    pub fn set_watchdog(&self, probe: WatchdogProbe) {
        // It is set once, when the workers have started.
        let _was_set = self.watchdog.set(probe);
    }

    /// The watchdog's counts; none on a server without one.
    pub fn watchdog(&self) -> WatchdogCounts {
        self.watchdog.get().map(|probe| probe()).unwrap_or_default()
    }

    /// The description of the workers' network, and its state, as text.
    pub fn network(&self) -> String {
        let about = self.network.get().map_or("", |network| network.about.as_str());
        self.device().map_or_else(|| about.to_owned(), |state| format!("{about}; {state}"))
    }

    /// The state of the device, on a server with one. May ask the device itself.
    pub fn device(&self) -> Option<DeviceState> {
        self.network.get()?.device.as_ref()?()
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The counters of one worker, for that worker to keep.
    pub fn worker(&self, worker: usize) -> Option<&Arc<CachePadded<WorkerCounters>>> {
        self.workers.get(worker)
    }

    /// Invocations that the server ended, of all workers.
    pub fn kills(&self) -> u64 {
        let killed = self.workers.iter().flat_map(|counters| counters.invocations_killed.iter());
        killed.map(SingleWriterCounter::get).fold(0, u64::wrapping_add)
    }

    /// Seconds since the counters were made.
    pub fn uptime_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// The readings of one worker.
    pub fn read_worker(&self, worker: usize) -> Vec<MetricReading> {
        let values = self.workers.get(worker).map(|counters| counters.values()).unwrap_or_default();
        readings(WorkerCounters::METRICS, values)
    }

    /// The readings of all workers, added up.
    pub fn read(&self) -> Vec<MetricReading> {
        readings(WorkerCounters::METRICS, sum_rows(self.workers.iter().map(|counters| counters.values())))
    }
}

/// Pairs declarations with values.
pub fn readings(metrics: &'static [MetricSpec], values: Vec<Vec<u64>>) -> Vec<MetricReading> {
    metrics.iter().zip(values).map(|(metric, values)| MetricReading { metric, values }).collect()
}

/// Adds rows of values up.
pub fn sum_rows(rows: impl Iterator<Item = Vec<Vec<u64>>>) -> Vec<Vec<u64>> {
    rows.reduce(|mut total, row| {
        for (total, row) in total.iter_mut().flatten().zip(row.into_iter().flatten()) {
            *total = total.wrapping_add(row);
        }
        total
    })
    .unwrap_or_default()
}
