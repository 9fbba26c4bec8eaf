//! Metrics that the control port reads where they are asked for: of the directory and the store, of extensions, tables
//! and quotas, of the builder, the watchdog and the log.

use super::{MetricKind, MetricSpec, counter, gauge};

/// The metrics of the directory, which workers do not count, in the order in which the control port reads them.
pub const SERVER_METRICS: &[MetricSpec] = &[
    gauge("uptime_seconds", "Seconds since the server started."),
    gauge("tenants", "Tenants."),
    gauge("tables", "Tables of all tenants."),
    gauge("extensions", "Extensions loaded for all tenants."),
    gauge("extensions_sandboxed", "Those of them that run in the sandboxed tier; the others are native."),
    gauge("extensions_suspended", "Extensions whose calls are refused until they are resumed."),
    gauge("extensions_slowed", "Extensions whose calls are admitted at a bounded rate because they keep being killed."),
    gauge("records", "Records in all tables."),
    gauge("record_bytes", "Bytes of records, with overhead, in all tables."),
    gauge("records_evicted", "Records evicted from the tables that are there now."),
    gauge("records_expired", "Records expired in the tables that are there now."),
    gauge(
        "garbage_bytes",
        "Bytes of replaced and deleted records that are not freed yet, since they may still be read.",
    ),
    gauge(
        "writes_held_back",
        "Writes refused because too many replaced records of their table were still being read, in the tables that \
         are there now.",
    ),
    gauge(
        "writes_without_memory",
        "Writes refused because the system gave the server no memory, though no quota was reached, in the tables \
         that are there now.",
    ),
    gauge(
        "slab_bytes",
        "Bytes that all tables' records and overflow buckets have of the kernel, in slabs and beside them, free room \
         among them.",
    ),
    gauge("grants", "Tables that are granted to another tenant than their owner, counted once for each."),
    gauge("dropped_tables", "Dropped tables whose memory is still in use by an invocation or a worker."),
    counter("homes_moved", "Moves of tenants' home workers after their load (`move_homes`)."),
];

/// The metrics of the control port, in the order in which `admin` reads them.
pub const CONTROL_METRICS: &[MetricSpec] = &[
    counter("control_wrong_tokens", "Control requests with an unknown token."),
    counter(
        "control_connections_limited",
        "Control connections closed because their address, or all other machines together, reached the limit of \
         connections, and all of these were busy.",
    ),
    counter("control_shed", "Control connections closed in favour of a later one: they were idle for longest."),
    counter(
        "control_too_slow",
        "Control connections closed because a handshake, a request or its answer took too long.",
    ),
    counter("control_not_tls", "Connections to a control port with TLS that spoke something else."),
    counter("control_handshakes_failed", "TLS handshakes of the control port that failed."),
    counter(
        "events_held_back",
        "Events that were not told one by one because all tenants together had too many: they are told \
         later, as a number.",
    ),
];

/// Results of an extension's calls, in the order of the counts of `extension_calls`.
pub const CALL_RESULTS: &[&str] = &["ok", "failed", "killed"];

/// Quotas that have a use: those that are used up, in the order in which the catalogue lists them, and rates.
pub const USED_QUOTAS: &[&str] = &[
    "memory_bytes",
    "invocation_memory_bytes",
    "concurrent_invocations",
    "spill_bytes",
    "tables",
    "extensions",
    "pushes_per_hour",
    "grants_given",
    "grants_received",
    "requests_per_s",
    "cold_reads_per_s",
    "cold_bytes_per_s",
];

/// All quotas, in the order of the catalogue's table.
pub const ALL_QUOTAS: &[&str] = &[
    "memory_bytes",
    "invocation_memory_bytes",
    "arena_bytes",
    "concurrent_invocations",
    "requests_per_s",
    "spill_bytes",
    "cold_reads_per_s",
    "cold_bytes_per_s",
    "tables",
    "extensions",
    "pushes_per_hour",
    "waiting_pushes",
    "reply_bytes",
    "slice_us",
    "total_us",
    "slow_after_kills",
    "suspend_after_kills",
    "kill_window_s",
    "weight",
    "grants_given",
    "grants_received",
];

/// Results of builds, in the order of the counts of `builds`.
pub const BUILD_RESULTS: &[&str] = &["loaded", "refused", "failed"];

/// Kinds of accesses, in the order of the rates of `table_accesses_per_second`.
pub const TABLE_ACCESSES: &[&str] = &["read", "write"];

/// Of an extension (labels `tenant` and `extension`).
pub const EXTENSION_METRICS: &[MetricSpec] = &[
    family("extension_calls", MetricKind::Counter, ("result", CALL_RESULTS), "Calls that ended, by how."),
    counter("extension_cpu_us", "CPU time of calls that ended, in microseconds."),
    counter("extension_switches", "Polls that ended by a switch, because they computed past their slice."),
    gauge("extension_calls_running", "Calls that have begun and not ended."),
    gauge("extension_memory_bytes", "Bytes of memory that its tenant is charged for these."),
    gauge("extension_suspended", "1 while its calls are refused until it is resumed."),
    gauge("extension_slowed", "1 while its calls are admitted at a bounded rate, because they keep being killed."),
];

/// Of a table (labels `tenant` and `table`).
pub const TABLE_METRICS: &[MetricSpec] = &[
    gauge("table_records", "Records."),
    gauge("table_record_bytes", "Bytes of records, with overhead."),
    gauge("table_quota_bytes", "Its quota in bytes."),
    gauge(
        "table_quota_used_per_mille",
        "Of a thousand parts of its quota, those that are used; 0 unless its mode is store, as others make room.",
    ),
    gauge("table_garbage_bytes", "Bytes of replaced and deleted records that are not freed yet."),
    counter("table_evictions", "Records evicted to make room."),
    counter("table_expirations", "Records removed because they had expired."),
    counter("table_refusals", "Writes refused because of the quota."),
    gauge(
        "table_dirty_bytes",
        "Bytes of changed records that the table's backing does not have yet; 0 without a backing.",
    ),
    gauge("table_oldest_dirty_us", "Time since the oldest of them was changed, in microseconds."),
    counter("table_backing_loads", "Records that the backing was asked for."),
    counter("table_backing_flushes", "Objects that were written to the backing, or deleted."),
    counter("table_backing_errors", "Requests to the backing that failed, and conflicts with other writers."),
    family(
        "table_accesses_per_second",
        MetricKind::Gauge,
        ("kind", TABLE_ACCESSES),
        "About so many keys that are read, and written, a second, as of the last seconds: of accesses that are drawn, \
         which costs a request nothing. Known of the 512 tables that are used most; 0 of others.",
    ),
];

/// Of the hottest key of a table (labels `tenant` and `table`).
pub const HOT_KEY_METRICS: &[MetricSpec] = &[
    gauge(
        "table_hot_key_per_mille",
        "Of a thousand accesses of the table in the last half a minute, those of its hottest key, at least.",
    ),
    gauge("table_hot_key_accesses_per_second", "About so many accesses of that key a second, as of the last seconds."),
];

/// Quotas with a use that are sizes.
pub const USED_BYTES_QUOTAS: &[&str] = &["memory_bytes", "invocation_memory_bytes", "spill_bytes"];
/// All quotas that are sizes.
pub const BYTES_QUOTAS: &[&str] =
    &["memory_bytes", "invocation_memory_bytes", "arena_bytes", "spill_bytes", "reply_bytes"];
/// Quotas that are numbers a second.
pub const RATE_QUOTAS: &[&str] = &["requests_per_s", "cold_reads_per_s"];
/// Quotas that are bytes a second.
pub const BYTE_RATE_QUOTAS: &[&str] = &["cold_bytes_per_s"];
/// Quotas that are times.
pub const TIME_QUOTAS: &[&str] = &["slice_us", "total_us", "kill_window_s"];
/// Quotas with a use that are numbers.
pub const USED_NUMBER_QUOTAS: &[&str] =
    &["concurrent_invocations", "tables", "extensions", "pushes_per_hour", "grants_given", "grants_received"];
/// All quotas that are numbers.
pub const NUMBER_QUOTAS: &[&str] = &[
    "concurrent_invocations",
    "tables",
    "extensions",
    "pushes_per_hour",
    "waiting_pushes",
    "slow_after_kills",
    "suspend_after_kills",
    "weight",
    "grants_given",
    "grants_received",
];

/// Of the quotas of the tenants that are nearest to one (label `tenant`). A metric has quotas of one unit: what is
/// used of them, and what they are.
pub const QUOTA_METRICS: &[MetricSpec] = &[
    family(
        "tenant_quota_used_per_mille",
        MetricKind::Gauge,
        ("quota", USED_QUOTAS),
        "Of a thousand parts of a quota, those that are used; 0 where the quota is 0. `spill_bytes` is that of the \
         table with the largest file; what is a second is as of the last one.",
    ),
    family(
        "tenant_quota_used",
        MetricKind::Gauge,
        ("quota", USED_NUMBER_QUOTAS),
        "What is used of a quota that is a number.",
    ),
    family(
        "tenant_quota_limit",
        MetricKind::Gauge,
        ("quota", NUMBER_QUOTAS),
        "What a quota is that is a number. 0 is never, for `slow_after_kills` and `suspend_after_kills`.",
    ),
    family(
        "tenant_quota_used_bytes",
        MetricKind::Gauge,
        ("quota", USED_BYTES_QUOTAS),
        "Bytes that are used of a quota; of `spill_bytes` those of the table with the largest file.",
    ),
    family("tenant_quota_limit_bytes", MetricKind::Gauge, ("quota", BYTES_QUOTAS), "Bytes that a quota is."),
    family(
        "tenant_quota_used_per_second",
        MetricKind::Gauge,
        ("quota", RATE_QUOTAS),
        "What was used in the last second of a quota that is a number a second.",
    ),
    family(
        "tenant_quota_limit_per_second",
        MetricKind::Gauge,
        ("quota", RATE_QUOTAS),
        "What a quota is that is a number a second; 0: there is no limit.",
    ),
    family(
        "tenant_quota_used_bytes_per_second",
        MetricKind::Gauge,
        ("quota", BYTE_RATE_QUOTAS),
        "Bytes that were used in the last second of a quota that is bytes a second.",
    ),
    family(
        "tenant_quota_limit_bytes_per_second",
        MetricKind::Gauge,
        ("quota", BYTE_RATE_QUOTAS),
        "Bytes a second that a quota is; 0: there is no limit.",
    ),
    family("tenant_quota_limit_us", MetricKind::Gauge, ("quota", TIME_QUOTAS), "What a quota is that is a time."),
];

/// Of each tenant, beside what workers count (label `tenant`).
pub const TENANT_USE_METRICS: &[MetricSpec] = &[counter(
    "tenant_plain_cpu_us",
    "Time that workers were busy with its requests other than the computing of calls, in microseconds: each second's \
     time of a worker, divided among tenants by their work there.",
)];

/// Of a tenant's requests of one kind (labels `tenant` and `class`).
pub const ISOLATION_METRICS: &[MetricSpec] = &[
    gauge(
        "tenant_isolation_per_mille",
        "How many times as long 99 of a hundred requests take beside neighbours as when it is quiet: the third of \
         these over the second.",
    ),
    gauge(
        "tenant_quiet_p99_ns",
        "99 of a hundred requests took at most so long, from arrival to answer, in quiet seconds of the last 30 to \
         60 minutes.",
    ),
    gauge("tenant_beside_p99_ns", "The same in seconds beside neighbours, of the last 2.5 to 5 minutes."),
];

/// What the readings of [`ISOLATION_METRICS`] mean, and what they do not tell, for the page.
pub(crate) const ISOLATION_NOTE: &str = "A second of a tenant is *quiet* if others used less than 10 % of its \
    workers' time, and *beside neighbours* if they \
     used 30 % or more; a second in between counts for neither. A worker's time is the wall clock of the turns in \
     which it had \
     something to do. Of it a tenant used the CPU time of its calls, and of the rest as much as of the worker's \
     operations were its own; \
     of several workers each counts by how many of the tenant's requests came there. There is a series where a \
     tenant had 1,000 requests of a kind in seconds of either kind, for the 64 tenants that send most, and of these \
     for those that neighbours \
     cost most (`top`).\n\n\
     It is blind to neighbours that were there all the time (there is no quiet second to compare with), to what \
     happens within a \
     second, to tenants that send little, and to what comes before the worker has a packet: the network, the \
     kernel's queue, packets \
     that were dropped. It takes plain operations for equally long, so a neighbour with large values uses more than \
     it is told to. It does not know causes: a \
     tenant that sends other requests, or more of them, in just the seconds in which its neighbours are busy has a \
     ratio as well, and so has one on a machine whose other programs are busy then.";

/// Of the builder.
pub const BUILD_METRICS: &[MetricSpec] = &[
    gauge("builder_ready", "1 while there is a builder: pushes of source can be built."),
    gauge("builds_running", "Builds that run."),
    gauge("builds_waiting", "Pushes that wait for the builder."),
    family(
        "builds",
        MetricKind::Counter,
        ("result", BUILD_RESULTS),
        "Pushes that were decided, by how: refused because of what was pushed, or failed because of the builder, the \
         server or its disk.",
    ),
    counter("build_us", "Time in which pushes were checked, compiled and loaded, without waiting, in microseconds."),
];

/// Of the thread that ends slices.
pub const WATCHDOG_METRICS: &[MetricSpec] = &[
    counter("watchdog_looks", "Times that the watchdog looked at the workers."),
    counter("watchdog_requests", "Switches of a poll that it asked for."),
    counter(
        "watchdog_late",
        "Looks that came more than a millisecond later than planned, so that slices were as much longer: the machine \
         has too few processors for what runs on it.",
    ),
];

/// Of what is kept on the disk.
pub const PERSISTENCE_METRICS: &[MetricSpec] = &[
    gauge("changes_refused", "1 while changes of tenants, tables, grants and tokens cannot be written to the disk."),
    gauge("log_failed", "1 if the log of records was closed because a write failed."),
    gauge("log_pending_bytes", "Bytes of changes to records that are not on the disk yet."),
    gauge("log_bytes_since_checkpoint", "Bytes of changes to records since the last checkpoint began."),
    gauge(
        "cluster_unreadable",
        "1 while the state of the cluster cannot be read, or is not understood: the server goes on with the slots \
         that it owns.",
    ),
    gauge("cluster_epoch", "The epoch of the cluster's map of slots; 0 without a cluster."),
    gauge("copies_wanted", "Copies of the server's log that are wanted on other servers; 0: no table needs them."),
    gauge("copies_confirmed", "Copies of its generation that have confirmed something in the last two seconds."),
    gauge("copies_generation", "The number of the generation of copies; 0: there is none."),
    gauge("copies_behind_bytes", "Bytes of the log that the slowest of these copies has not confirmed."),
    gauge(
        "copies_stalled",
        "1 while writes to tables of durability `copies` are refused, since not all copies confirm them.",
    ),
    gauge("copies_kept", "Copies of other servers' logs that the server has."),
    gauge("copies_sealed", "Those of them that are sealed: the server takes another one's place, or has."),
    gauge("copies_kept_bytes", "Bytes of these copies' files."),
    gauge(
        "servers_without_successor",
        "Servers that are gone, and whose place is not taken: this server has a copy of the log and does not take it by \
         itself, or the server that was to take it is gone as well.",
    ),
    counter("failovers_automatic", "Places of other servers that the server has taken by itself."),
    counter("failovers_by_command", "Places of other servers that the server has taken by command."),
    counter(
        "scrubbed_bytes",
        "Bytes of the log, and of copies of other servers' logs, that were read again from the disk and were sound.",
    ),
    gauge("scrub_age_s", "Seconds since all of them were read last; since the start, if they were not."),
    counter("scrub_damage", "Files of the log, and copies, that were found to be damaged."),
    gauge("log_damaged", "1 while a part of the log is damaged on the disk that a start would read."),
    gauge("copies_damaged", "Copies of other servers' logs here that are damaged, and count for nothing."),
];

/// Of all tables of mode `spill` together.
pub const SPILL_METRICS: &[MetricSpec] = &[
    gauge("cold_records", "Records of tables of mode `spill` whose values are on the disk only."),
    gauge("spill_file_bytes", "Bytes of spill files in use."),
    gauge("spill_failed", "Tables of mode `spill` whose files cannot be written."),
    counter("cold_reads", "Cold records that were read from the disk."),
    counter("cold_read_bytes", "Bytes of the blocks that were read for them."),
    counter("cold_read_us", "Time of these reads, from the miss until the record was in memory, in microseconds."),
    counter("cold_read_errors", "Cold records that could not be read, or were in a damaged block."),
    counter("cold_waits", "Requests and calls that have met a cold record and waited; several may wait for one read."),
    counter("cold_reads_held", "Cold reads that waited for their tenant's `cold_reads_per_s` or `cold_bytes_per_s`."),
    counter("records_spilled", "Records that left memory for the disk."),
    counter("spill_written_bytes", "Bytes written to spill files."),
    counter("spill_write_errors", "Writes to spill files that failed."),
    counter(
        "spill_refused_by_quota",
        "Times that a record stayed in memory, since its table's file had `spill_bytes`.",
    ),
];

const fn family(
    name: &'static str,
    kind: MetricKind,
    label: (&'static str, &'static [&'static str]),
    meaning: &'static str,
) -> MetricSpec {
    MetricSpec { name, kind, label: Some(label), meaning }
}

/// Of an extension's calls (labels `tenant` and `extension`).
pub(crate) const EXTENSION_LATENCY_METRICS: &[MetricSpec] = &[
    summary("extension_call_duration_seconds", "Time from a call's arrival until its reply may leave."),
    summary("extension_call_waiting_seconds", "The part of it in which nothing was computed."),
    summary("extension_call_cpu_seconds", "The other part: the CPU time of a call."),
];

/// Of pushes.
pub(crate) const PUSH_LATENCY_METRICS: &[MetricSpec] = &[
    MetricSpec {
        name: "push_waiting_seconds",
        kind: MetricKind::Histogram,
        label: None,
        meaning: "Time for which pushes waited for the builder.",
    },
    MetricSpec {
        name: "push_duration_seconds",
        kind: MetricKind::Histogram,
        label: None,
        meaning: "Time in which pushes were checked, compiled and loaded, whatever came of them, without waiting.",
    },
];

const fn summary(name: &'static str, meaning: &'static str) -> MetricSpec {
    MetricSpec { name, kind: MetricKind::Summary, label: None, meaning }
}

/// Counts of the watchdog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchdogCounts {
    /// Looks at the workers.
    pub looks: u64,
    /// Switches that were asked for.
    pub requests: u64,
    /// Looks that came late.
    pub late: u64,
}

/// Reads the counts of the watchdog.
pub type WatchdogProbe = Box<dyn Fn() -> WatchdogCounts + Send + Sync>;
