//! Limits of this crate: name, default, unit, reason.

use sandstorm_net::rate_limiter::RateLimit;

/// Memory that an invocation begins with, and grows by, bytes. Most need no more, and idle ones keep it.
pub const ARENA_CHUNK_BYTES: usize = 64 << 10;
/// Length of an invocation's reply up to which nothing more is charged, bytes.
pub const REPLY_FIRST_BYTES: usize = 4 << 10;
/// Unit in which memory of invocations is charged to their tenant, bytes: a page.
pub const MEMORY_UNIT_BYTES: usize = 4 << 10;
/// Memory units that every invocation is charged at its beginning, in the same step that counts it. They are its first
/// chunk and the beginning of its reply.
pub const INVOCATION_UNITS: u32 = ((ARENA_CHUNK_BYTES + REPLY_FIRST_BYTES) / MEMORY_UNIT_BYTES) as u32;
/// Entries of a tenant's slow log, as in Redis (`slowlog-max-len`): with all arguments at their limits 300 KB.
pub const SLOW_ENTRIES: usize = 128;
/// Arguments that an entry shows, as in Redis.
pub const SLOW_ARGS: usize = 32;
/// Bytes of each argument that it shows.
pub const SLOW_ARG_BYTES: usize = 64;
/// Slow requests of all protocols that are remembered for each tenant: enough to see a pattern. With the turns that
/// they waited for that is 30 KB.
pub const SLOW_REQUESTS: usize = 64;
/// Bytes of a key that a slow request has: most keys fit, and a get copies them before it is known to be slow.
pub const SLOW_KEY_BYTES: usize = 24;
/// Nanoseconds after a slow request in which no other one of its tenant is kept: 200 a second. Where all requests are
/// slow, that costs nothing.
pub const SLOW_INTERVAL_NS: u64 = 5_000_000;
/// Bytes of memory of a tenant's log: some 700 lines of the usual length. It is taken when the first line comes.
pub const LOG_BYTES: usize = 128 << 10;
/// Bytes that each line of it takes beside its text and its extension's name.
pub const LOG_ENTRY_BYTES: usize = 112;
/// Bytes of a line's text, at most: a line of code is shorter.
pub const LOG_TEXT_BYTES: usize = 1_024;
/// Lines a second that a tenant's log takes, over time: ten times as many as a person reads. Each costs the tenant's
/// calls a microsecond, and displaces an older one.
pub const LOG_LINES_PER_S: u64 = 200;
/// Lines that may come at once.
pub const LOG_LINES_BURST: u64 = 2_000;
/// The rate and burst of lines.
pub const LOG_LINES: RateLimit = RateLimit::per_second(LOG_LINES_PER_S).with_burst(LOG_LINES_BURST);
/// Seconds for which debug lines are kept after a request for them: longer than a request waits.
pub const LOG_DEBUG_S: u64 = 60;
/// Kills that are remembered for each tenant: enough to see a pattern, a few kilobytes a tenant.
pub const RECENT_KILLS: usize = 64;
/// Moves of a home worker kept for each tenant: they are told within seconds, and a tenant has one in ten seconds.
pub const RECENT_HOME_MOVES: usize = 8;
/// Changes a second, over time, that a tenant may make over the control port (tables, grants, tokens, suspensions).
/// Every worker takes over each one, so other tenants pay for them. Changes that only end something are not counted.
pub const CHANGES_PER_S: u64 = 20;
/// Changes that may come at once: for a program that creates all its tables.
pub const CHANGES_BURST: u64 = 200;
/// The rate and burst of changes.
pub const CHANGES: RateLimit = RateLimit::per_second(CHANGES_PER_S).with_burst(CHANGES_BURST);
/// Calls of a tenant over HTTP, a second: a thread serves them beside operators' requests, and tens of thousands are
/// all that it can do. A caller that needs more uses a client of another protocol.
pub const HTTP_CALLS_PER_S: u64 = 1_000;
/// Limit on calls over HTTP.
pub const HTTP_CALLS: RateLimit = RateLimit::per_second(HTTP_CALLS_PER_S);
/// Time that a tenant's requests may run ahead of its rate, nanoseconds: a tenth of a second's requests may come at
/// once.
pub const REQUESTS_BURST_NS: u64 = 100_000_000;
