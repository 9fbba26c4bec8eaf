//! Limits of this crate: name, default, unit, reason.

use std::time::Duration;

use sandstorm_net::rate_limiter::RateLimit;

/// Connections at a time: bounds the file descriptors of the control port. One more evicts the connection that has
/// waited longest without a request in progress. It waits only if all of them have one.
pub const MAX_CONNECTIONS: usize = 256;
/// File descriptors of the process for each connection, if it may open fewer than a thousand files. The others are for
/// [`SPARE_FILES`] and, for other protocols' ports, `connections::OTHER_FILES`.
pub const FILES_PER_CONNECTION: usize = 4;
/// Least number of connections in that case.
pub const MIN_CONNECTIONS: usize = 8;
/// One slot in this many is neither for other machines (32 of 256) nor safe for tenants: the operator on this machine
/// always gets one.
pub const RESERVED_FOR_OPERATOR_ONE_IN: usize = 8;
/// Slots that one address (or /64) may have: it takes seven to fill them all.
pub const MAX_CONNECTIONS_PER_ADDRESS: usize = 32;
/// Spare file descriptors, closed when the process has no other left. One is for a connection to the control port, the
/// others for its requests, such as the files of the journal.
pub const SPARE_FILES: usize = 8;
/// Pause before the next accept if all that has not helped.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Timeout of a TLS handshake: three round trips to the far side of the world, several times over.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a request's header, longer than clients keep idle connections (15 s). Also the time in which a client
/// must take a byte of its answer.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest body that is read before the request is examined, bytes: that of every request but a push. All connections
/// together hold 16 MiB of them.
pub const SHORT_BODY_BYTES: usize = 64 << 10;
/// Timeout for the body of a request: the largest push at 140 KB/s.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for an answer: a push that waits for all the others before it, each at its limit.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3600);
/// Calls over HTTP under way at a time, which tenants share: a tenant alone gets two thirds. Each holds its arguments,
/// so all of them have 256 MiB at most.
pub const HTTP_CALLS: usize = 256;
/// Bytes of the arguments of a call over HTTP, at most. Longer ones go over a protocol for data.
pub const HTTP_CALL_BODY_BYTES: usize = 1 << 20;
/// Time that a caller over HTTP waits for its answer if it does not say, milliseconds.
pub const HTTP_CALL_TIMEOUT_MS: u64 = 10_000;
/// The same, at most.
pub const HTTP_CALL_TIMEOUT_MS_MAX: u64 = 60_000;
/// Bytes of a typed reply as JSON, about: 20 ms of the control port's thread. The names of a type's fields make JSON of
/// a hundred times the bytes that the call has returned, which its tenant's quota counts.
pub const HTTP_REPLY_JSON_BYTES: usize = 4 << 20;
/// Time for which the answer to a call with an idempotency key is remembered: longer than clients repeat a request.
pub const IDEMPOTENCY_LIFETIME: Duration = Duration::from_secs(600);
/// Bytes of an idempotency key, at most: a UUID has 36.
pub const IDEMPOTENCY_KEY_BYTES: usize = 128;
/// Bytes of the header that says what a call is about, at most: a name, an address or a UUID.
pub const CALL_KEY_BYTES: usize = 256;
/// Bytes of all remembered keys and answers, which tenants share. Where a new key has no room its call is not run;
/// where an answer has none, repeats are told that it ran.
pub const IDEMPOTENCY_BYTES: usize = 64 << 20;
/// Pause between two looks whether what a call shows is on the disk.
pub const DURABLE_LOOK: Duration = Duration::from_millis(1);
/// Bytes of a request's header, at most: ours have a few hundred; a longer one is not from a client of this server.
pub const MAX_HEADER_BYTES: usize = 64 << 10;
/// Wrong tokens of an address that are answered at once: a person's mistakes.
pub const FAILURES_WITHOUT_DELAY: u32 = 3;
/// Delay of the answer to the next wrong token; it doubles each time.
pub const FAILURE_DELAY: Duration = Duration::from_millis(100);
/// Largest such delay: the connection keeps its slot meanwhile.
pub const FAILURE_DELAY_MAX: Duration = Duration::from_secs(2);
/// Time without a wrong token after which an address's earlier ones are forgotten.
pub const FAILURES_FORGOTTEN: Duration = Duration::from_secs(60);
/// Addresses whose wrong tokens are remembered (100 KB); the one that was seen longest ago is dropped first.
pub const FAILURES_REMEMBERED: usize = 1024;
/// Least time between two log lines about wrong tokens: many attempts cannot fill a disk.
pub const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of a file with a certificate or a key, at most: a long chain has a tenth.
pub const MAX_PEM_BYTES: u64 = 1 << 20;
/// Validity of a self-signed certificate, years: clients pin it, so its end would be an unplanned outage.
pub const MADE_CERTIFICATE_YEARS: i32 = 20;
/// Interval between two checks of the certificate's files, milliseconds.
pub const CERTIFICATE_CHECK_MS: u64 = 1_000;
/// Default grace period of an old token: time to tell every client of a small fleet.
pub const OLD_TOKEN_GRACE: std::time::Duration = std::time::Duration::from_secs(3600);
/// Rebuilds of extensions under way at a time: an operator moves a few tenants at once, and each has one turn among the
/// pushes.
pub const REBUILDS_RUNNING: usize = 8;
/// Rebuilds that are remembered, ended ones included: enough for an operator to look at the last few.
pub const REBUILDS_KEPT: usize = 32;
/// Results that a rebuild lists, at most (2 MiB): more than an operator reads. The others are counted, and logged.
pub const REBUILD_RESULTS: usize = 10_000;
/// Times that an extension is built or checked while the machine is too busy, or the builder dies.
pub const REBUILD_ATTEMPTS: u32 = 3;
/// Pause between two of them.
pub const REBUILD_PAUSE: Duration = Duration::from_millis(500);
/// Pause of a rebuild that found the queue of pushes full: pushes go first.
pub const QUEUE_RETRY: Duration = Duration::from_millis(200);
/// Events of operators and of the server in one file, after which a new one is begun: two files of 700 bytes an event
/// have 3 MiB, and as much is in memory.
pub const OPERATOR_EVENTS_PER_FILE: usize = 2_048;
/// Events of tenants in one file: two files have 22 MiB, and as much is in memory. One file holds a day of 17 tenants
/// that do all that [`EVENTS_OF_TENANT`] lets them.
pub const TENANT_EVENTS_PER_FILE: usize = 16_384;
/// Events of one tenant that are told one by one, or as the number of many: 200 at once, and 30 an hour. What a team
/// does by hand, and what its builds push, is told one by one.
pub const EVENTS_OF_TENANT: RateLimit = RateLimit::once_in_us(120_000_000).with_burst(200);
/// The same of one code, and, of kills, of one extension: 50 at once, and 4 an hour, so that one kind leaves room for
/// the others.
pub const EVENTS_OF_KIND: RateLimit = RateLimit::once_in_us(900_000_000).with_burst(50);
/// The same of all tenants together: 4,096 at once, and four a second, so that thousands of them take an hour to write
/// a file full.
pub const EVENTS_OF_ALL_TENANTS: RateLimit = RateLimit::per_second(4).with_burst(4_096);
/// Microseconds in which events beyond are counted before their number is told. Each next time is twice as long.
pub const EVENT_FOLD_FIRST_US: u64 = 60_000_000;
/// The same, at most: as much of the counts is lost if the machine stops.
pub const EVENT_FOLD_MOST_US: u64 = 900_000_000;
/// Kinds of events of one tenant that are counted apart: beyond, the kills of all other extensions are one kind.
pub const EVENT_KINDS_PER_TENANT: usize = 128;
/// Versions and causes of kills that one event tells apart: they fit in its text.
pub const EVENT_FOLD_CAUSES: usize = 8;
/// Bytes of an event's text, and of the name of what it is about, at most: the reason of a refusal fits.
pub const EVENT_TEXT_BYTES: usize = 300;
/// Bytes of an event's line, at most: text and name with every byte escaped, and the rest.
pub const EVENT_LINE_BYTES: usize = 12 * EVENT_TEXT_BYTES + 1_024;
/// Events in one answer if the request gives no number.
pub const EVENTS_PER_PAGE: usize = 100;
/// The same, at most: a megabyte.
pub const EVENTS_PER_PAGE_MAX: usize = 1_000;
/// Seconds that a request for events may wait for one: shorter than clients' timeouts.
pub const EVENT_WAIT_MAX_S: u64 = 30;
/// Requests for events that wait at a time, at most: each has one of [`MAX_CONNECTIONS`]. One more is answered at once.
pub const EVENT_WAITERS: usize = 32;
/// The same of one tenant.
pub const EVENT_WAITERS_PER_TENANT: usize = 2;
/// Milliseconds between two looks for kills and the server's measures: a tenant whose calls are killed by the thousand
/// makes one event for each extension and cause in this time.
pub const EVENT_INTERVAL_MS: u64 = 1_000;
/// Webhooks, at most: each has a thread.
pub const WEBHOOKS: usize = 8;
/// Events of one delivery to a webhook, at most: a body stays under 256 KiB.
pub const WEBHOOK_EVENTS: usize = 100;
/// Time between two looks for events that a webhook has not got yet.
pub const WEBHOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Time that a webhook has for its answer, the connection included.
pub const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a webhook's first failure; twice as long after each further one.
pub const WEBHOOK_BACKOFF: Duration = Duration::from_secs(1);
/// The longest such pause.
pub const WEBHOOK_BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Seconds between two pushes of metrics if the configuration gives no number.
pub const OTLP_INTERVAL_S: u64 = 30;
/// The same, at most.
pub const OTLP_INTERVAL_MAX_S: u64 = 3_600;
/// Time that the endpoint of metrics has for its answer, the connection included.
pub const OTLP_TIMEOUT: Duration = Duration::from_secs(10);
/// Points of one request, at most: a body stays under 2 MiB, and collectors take 20 MiB or more.
pub const OTLP_POINTS: usize = 4_000;
/// Pause after the endpoint's first failure; twice as long after each further one.
pub const OTLP_BACKOFF: Duration = Duration::from_secs(1);
/// The longest one, also where the endpoint asks for more.
pub const OTLP_BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Bytes of the endpoint's answer that are read: it says in a sentence what it did not take.
pub const OTLP_ANSWER_BYTES: u64 = 64 << 10;
/// Characters of such a sentence that are kept.
pub const OTLP_ANSWER_CHARS: usize = 200;
/// Headers that the configuration adds to each request, at most.
pub const OTLP_HEADERS: usize = 16;
/// Bytes of the file that they are in, at most.
pub const OTLP_HEADERS_FILE_BYTES: u64 = 64 << 10;
/// Milliseconds between two looks at versions that are tried on a share of the calls.
pub const DEPLOY_JUDGE_MS: u64 = 250;
/// Milliseconds of calls that count for such a version, and for the one beside it: enough for a share of 1 % of a
/// hundred calls a second, short enough that what was wrong before does not count.
pub const DEPLOY_WINDOW_MS: u64 = 30_000;
/// Kills of it within the window, at least, before they count: one may be another's doing.
pub const DEPLOY_KILLS: u64 = 3;
/// Failed calls of it within the window, at least, before they count.
pub const DEPLOY_FAILURES: u64 = 10;
/// Calls of each of the two within the window, at least, before their p99 are compared: below, it is one call.
pub const DEPLOY_CALLS: u64 = 500;
/// How many times as often, or as slow, it has to be killed, to fail or to be, before it gets no calls any more.
pub const DEPLOY_WORSE_BY: u64 = 2;
/// And how many more of a hundred calls it has to be killed in or to fail.
pub const DEPLOY_MORE_PERCENT: u64 = 1;
/// And how much slower its p99 has to be, nanoseconds: below, it is the machine.
pub const DEPLOY_SLOWER_NS: u64 = 1_000_000;
/// Milliseconds without early drop after which a tenant counts as no longer throttled: floods come in waves.
pub const UNTHROTTLED_AFTER_MS: u64 = 10_000;
/// Periods of a second that are remembered: two minutes.
pub const HISTORY_SECONDS: usize = 120;
/// Periods of a minute that are remembered: a day. In files there are up to two.
pub const HISTORY_MINUTES: usize = 1_440;
/// Periods of an hour that are remembered: a month. In files there are up to two.
pub const HISTORY_HOURS: usize = 744;
/// Tenants of a period that are kept by name, at most: those that an operator asks about. With all periods full that is
/// 8 MB in memory, and twice as much in files.
pub const HISTORY_TENANTS: usize = 24;
/// Bytes of a period's line, at most: 25 rows of a name with every byte escaped, and 200 bytes of numbers.
pub const HISTORY_LINE_BYTES: usize = 64 << 10;
/// Periods in one answer, at most: a day of minutes, some 7 MB.
pub const HISTORY_PER_PAGE: usize = HISTORY_MINUTES;
/// Accesses of a table of which one is drawn, on average, to find hot keys; up to twice as many. A table that is used
/// less than 320 times a second has one of 32 drawn, another one ten a second. Enough that what comes in one message is
/// drawn like what comes alone, few enough that a quiet table has some drawn.
pub const HOT_SAMPLE_ACCESSES: u32 = 32;
/// Milliseconds after which what was drawn counts half.
pub const HOT_SAMPLE_HALF_MS: u64 = 30_000;
/// Milliseconds of which a table's rate is one value, all of equal weight: some ten accesses are drawn in them.
pub const HOT_RATE_STEP_MS: u64 = 1_000;
/// Milliseconds after which such a value counts half: the rate of ten seconds ago is a tenth of the one that is told.
pub const HOT_RATE_HALF_MS: u64 = 3_000;
/// Drawn accesses of a table, at least, before its keys are told: some eight seconds of a busy one.
pub const HOT_SAMPLES: u64 = 64;
/// Drawn accesses of a key, certainly its own, before it is told: of fewer it may be chance.
pub const HOT_SAMPLES_OF_KEY: f64 = 10.0;
/// Keys of a table that are counted: one with more than a 64th of what was drawn is among them.
pub const HOT_SAMPLE_COUNTERS: usize = 64;
/// Keys of one table that are told, at most.
pub const HOT_SAMPLE_KEYS: usize = 5;
/// Tables of which is known what was drawn, those that are used most: with 64 keys of up to 64 bytes each some 5 MiB.
pub const HOT_SAMPLE_TABLES: usize = 512;
/// A key that takes this percentage of its table's accesses is reported …
pub const HOT_KEY_PERCENT: f64 = 20.0;
/// … if these are so many a second: a worker answers a few of its own accord.
pub const HOT_KEY_PER_S: f64 = 1_000.0;
/// Of a thousand parts of a tenant's workers' time: in a second in which others use less, it has them to itself.
pub const QUIET_PER_MILLE: u64 = 100;
/// The same: in a second in which others use as much or more, it runs beside neighbours. What is in between is neither.
pub const BESIDE_PER_MILLE: u64 = 300;
/// Milliseconds of a half of the window of quiet seconds: a neighbour may be there for an hour, and what it costs is
/// compared with the time before it came.
pub const ISOLATION_QUIET_HALF_MS: u64 = 1_800_000;
/// The same of seconds beside neighbours: what they cost is over soon after they are.
pub const ISOLATION_BESIDE_HALF_MS: u64 = 150_000;
/// Requests of one kind in seconds of either kind, at least, before their p99 are compared: ten are slower than it.
pub const ISOLATION_REQUESTS: u64 = 1_000;
/// Tenants of which it is measured what neighbours cost them: those that send most. Each has up to five histograms of
/// 7 KiB for each kind of requests that it sends, so all of them some 2 to 5 MiB.
pub const ISOLATION_TENANTS: usize = 64;
/// Bytes of the router's own words about a request that it does not understand, at most: they name a parameter.
pub const REFUSAL_BYTES: usize = 4 << 10;
/// Seconds for which a table's hottest keys are counted if the request gives no number.
pub const HOT_SECONDS: u64 = 5;
/// The same, at most: what a person waits for. The connection keeps its slot meanwhile.
pub const HOT_SECONDS_MAX: u64 = 60;
/// Keys in one answer if the request gives no number.
pub const HOT_KEYS: usize = 10;
/// The same, at most: shares further down are too small for the counters.
pub const HOT_KEYS_MAX: usize = 100;
/// Stretches of time of a heat map, at most: one a second, up to a minute.
pub const HEAT_COLUMNS: usize = 60;
/// Key ranges of one if the request gives no number, and at most.
pub const HEAT_RANGES: usize = 24;
/// See there.
pub const HEAT_RANGES_MAX: usize = 200;
/// Records that are looked at for the largest ones: all of a smaller table, as many of a larger one, in some 50 ms.
pub const BIG_RECORDS: u64 = 200_000;
/// Places in a larger table where that begins: each of a stretch of its own, so that records are as likely to be seen
/// as others.
pub const BIG_PLACES: u64 = 4_000;
/// Records of a table that are looked at to know what its slots take of memory; as many of a larger table. Few
/// milliseconds for each of many tables.
pub const LOAD_TABLE_RECORDS: u64 = 50_000;
/// Places in a larger table where that begins.
pub const LOAD_TABLE_PLACES: u64 = 2_000;
/// Accesses that are drawn to know what each slot takes of the workers' time, at most: some MiB.
pub const LOAD_SAMPLES: u64 = 1_000_000;
/// Time between two draws of each table meanwhile: one thousand of a busy table in some seconds.
pub const LOAD_DRAW_PAUSE: Duration = Duration::from_millis(2);
/// Large records in one answer if the request gives no number, and at most.
pub const BIG_KEYS: usize = 10;
/// See there.
pub const BIG_KEYS_MAX: usize = 100;
/// Questions about calls under way that are asked of the workers at a time. Each takes a worker a millisecond at most,
/// and a worker answers one in a turn.
pub const CALL_LOOKS: usize = 8;
/// The same about one tenant's: by the tenant itself, and apart from these by viewers of the server.
pub const CALL_LOOKS_PER_TENANT: usize = 2;
/// The same by operators, beside all others: questions of viewers and tenants take none of these.
pub const OPERATOR_CALL_LOOKS: usize = 4;
/// Time that workers have to tell of calls under way: a turn of theirs takes some milliseconds at most.
pub const CALLS_TIMEOUT: Duration = Duration::from_secs(2);
/// Seconds for which a profile is taken if the request gives no number.
pub const PROFILE_SECONDS: u64 = 10;
/// The same, at most: what a person waits for.
pub const PROFILE_SECONDS_MAX: u64 = 60;
/// Tables that are watched at a time, at most: each takes 630 KB, and some of the time of its requests.
pub const HOT_WATCHES: usize = 4;
/// Bytes of keys and values in a page of records, about: as much more as the largest record has may follow. A page is
/// copied in less than a millisecond, and is worth its round trip.
pub const RECORD_PAGE_BYTES: usize = 1 << 20;
/// Records that one step of a page copies, at most.
pub const RECORD_SCAN_RECORDS: usize = 1_000;
/// Milliseconds that a page reads cold records from the disk: then it has those that it has read, one at least. A
/// client waits longer than that for any answer.
pub const RECORD_PAGE_READ_MS: u64 = 1_000;
/// Milliseconds that a page waits for the tenant's quota of cold reads. Then it has what it has read, or the client is
/// told to ask again: pages that wait count among the few that all tenants have together.
pub const RECORD_PAGE_QUOTA_MS: u64 = 100;
/// Steps of a page, at most: each visits a bounded number of buckets, so a page of an empty table ends.
pub const RECORD_PAGE_SCANS: usize = 64;
/// Pages of records that are made, or wait for their clients, at most: with a largest record each, 400 MiB.
pub const RECORD_PAGES: usize = 32;
/// The same of one tenant.
pub const RECORD_PAGES_PER_TENANT: usize = 4;
/// Bytes of keys and values in a page of changes, about: as for a page of records.
pub const CHANGE_PAGE_BYTES: usize = 1 << 20;
/// Changes in a page, at most: deletes are short.
pub const CHANGE_PAGE_CHANGES: usize = 4_096;
/// Bytes of the log that are read for a page, whichever tables they are about: some 10 ms of a thread.
pub const CHANGE_PAGE_SCAN_BYTES: u64 = 16 << 20;
/// Longest time that a request waits for a change, in seconds: below the idle time of proxies.
pub const CHANGE_WAIT_MAX_S: u64 = 30;
/// Requests that wait for a change at a time, at most: each has one of [`MAX_CONNECTIONS`], and half of them are left
/// for others. One more is answered after [`CHANGE_LATE_LOOK`], whether there is a change or not.
pub const CHANGE_WAITS: usize = 128;
/// The same of one tenant: one for each of many tables.
pub const CHANGE_WAITS_PER_TENANT: usize = 16;
/// Requests of other servers of the cluster with memcached clients' commands that are run at a time, at most: each has
/// one of [`MAX_CONNECTIONS`] for as long as it takes, and the others are for the servers' other requests, such as
/// whether one is alive. One more is answered that it was not run.
pub const COMMAND_REQUESTS: usize = 96;
/// The same of one address: half of [`MAX_CONNECTIONS_PER_ADDRESS`]. A server has eight at a time.
pub const COMMAND_REQUESTS_PER_ADDRESS: usize = 16;
/// Connections over which other servers ask about copies here, at a time: a quarter of [`MAX_CONNECTIONS`], and a
/// quarter of what the port has where that is fewer. Each has a thread. One more is answered by a request for each
/// question.
pub const COPY_STREAMS: usize = 64;
/// The same of one address. A server has one for each copy of its log.
pub const COPY_STREAMS_PER_ADDRESS: usize = 8;
/// How long a request that may not wait does so anyway: its client asks again, and at once would be too often.
pub const CHANGE_LATE_LOOK: Duration = Duration::from_secs(1);
/// Time between two looks for a change: half of what a change of durability `interval` takes to reach the disk.
pub const CHANGE_POLL: Duration = Duration::from_millis(20);
/// Incidents (kills and measures against extensions; slow requests) of one tenant that are kept over a restart: 16 at
/// once, and two an hour. Enough to see what went on in a night, few enough that one tenant does not displace others.
pub const INCIDENTS_OF_TENANT: RateLimit = RateLimit::once_in_us(1_800_000_000).with_burst(16);
/// The same of all tenants together: a file full at once, and one a second.
pub const INCIDENTS_OF_ALL_TENANTS: RateLimit = RateLimit::per_second(1).with_burst(1_024);
/// Incidents of either kind in one file, after which a new one is begun: a file holds a day of 21 tenants that have
/// some all the time. What is read of two files of each kind takes some 3 MB, 12 MB if all texts are as long as can be.
pub const INCIDENTS_PER_FILE: usize = 1_024;
/// Bytes of a text of an incident that are kept, at most: what a caller is told fits.
pub const INCIDENT_TEXT_BYTES: usize = 512;
/// Functions of a kill that are kept, the innermost first.
pub const INCIDENT_PLACES: usize = 8;
/// Bytes of an incident's line, at most: its texts with every byte escaped, and the rest.
pub const INCIDENT_LINE_BYTES: usize = 64 << 10;
/// Numbers of slow requests that a start of the server skips after a crash, at most, and gives between two writes of a
/// small file, at least half of them: more than the slow requests that are kept between two looks, 200 of each of two
/// thousand tenants.
pub const SLOW_NUMBERS_RESERVED: u64 = 1_000_000;
/// Microseconds between two looks for incidents.
pub const INCIDENT_INTERVAL_US: u64 = 1_000_000;
/// Kills in one answer if the request gives no number.
pub const KILLS_PER_PAGE: usize = 100;
/// Slow requests in one answer if the request gives no number.
pub const SLOW_PER_PAGE: usize = 100;
/// Lines of a tenant's log in one answer if the request gives no number.
pub const LOG_LINES_PER_PAGE: usize = 100;
/// The same, at most: more than a log has of usual lines.
pub const LOG_LINES_PER_PAGE_MAX: usize = 1_000;
/// Time between two looks of a request that waits for lines: workers do not wake it.
pub const LOG_LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Extensions in one answer if the request gives no number.
pub const EXTENSIONS_PER_PAGE: usize = 1_000;
/// The same, at most: 5 MB.
pub const EXTENSIONS_PER_PAGE_MAX: usize = 10_000;
/// Tokens of viewers, at most: each is compared with what a request presents.
pub const ACCESS_TOKENS_MAX: usize = 256;
/// The same of one tenant's viewers.
pub const ACCESS_TOKENS_PER_TENANT: usize = 8;
/// Bytes of such a token's name, at most.
pub const ACCESS_TOKEN_NAME_BYTES: usize = 64;
/// Seconds after which such a token ends, at most: ten years, after which it is forgotten rather than needed.
pub const ACCESS_TOKEN_LIFETIME_MAX_S: u64 = 10 * 365 * 86_400;
/// Sessions of the page at a time, at most: the oldest ends for one more.
pub const PAGE_SESSIONS: usize = 1_024;
/// The same of one tenant's.
pub const PAGE_SESSIONS_PER_TENANT: usize = 32;
/// A session ends after that time, whatever it does: a working day.
pub const PAGE_SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3_600);
/// A session ends if nothing asked for it for so long. A page that is open asks all the time.
pub const PAGE_SESSION_IDLE: Duration = Duration::from_secs(3_600);
/// Codes that begin a session, at most: the oldest goes for one more.
pub const PAGE_CODES: usize = 64;
/// Time in which such a code can be used: enough to type it.
pub const PAGE_CODE_LIFETIME: Duration = Duration::from_secs(120);
/// Least time between two readings for the page: as often as a page asks. However many look at it, the server is read
/// once.
pub const PAGE_SNAPSHOT_INTERVAL: Duration = Duration::from_secs(2);
/// Tenants in one overview, at most, those with most requests first: 400 KB.
pub const PAGE_TENANTS: usize = 1_024;
/// Extensions in one overview, at most, those with most CPU time first.
pub const PAGE_EXTENSIONS: usize = 256;
/// Kills and events in one overview, at most.
pub const PAGE_KILLS: usize = 50;
/// Tenants and extensions in the first view of the page, at most: those that it shows.
pub const PAGE_FRONT_ROWS: usize = 10;
/// The same of kills.
pub const PAGE_FRONT_KILLS: usize = 5;
/// Extensions, tables and tenants' quotas of which Prometheus gets series, if it does not say how many: 25 series of an
/// extension, 15 of a table, 45 of a tenant's quotas.
pub const METRIC_SERIES: usize = 50;
/// The same, at most.
pub const METRIC_SERIES_MAX: usize = 1_000;
/// Extensions that are suspended or slowed down, tables that are nearly full, and tenants that have nearly used a
/// quota, which get series besides those, at most: an alert about one must not end because others are larger. A server
/// with more has one cause for all.
pub const METRIC_SERIES_IN_TROUBLE: usize = 1_000;
/// Quotas of what is made by hand and then stays: a tenant that has all of it is in no trouble by that, so of tenants
/// that have nearly used a quota those come first that have nearly used another one.
pub const QUOTAS_FILLED_BY_HAND: &[&str] = &["tables", "extensions", "grants_given", "grants_received"];
/// From so many of a thousand parts on, a quota counts as nearly used.
pub const NEARLY_USED_PER_MILLE: u64 = 900;
/// Least time between two samples of counters for findings: growth is counted over one to two of these.
pub const LIVE_SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// Triggers of a tenant, at most: each reads the log by itself.
pub const TRIGGERS_PER_TENANT: usize = 16;
/// Triggers of the server, at most: with full queues and dead letters, 1.5 GiB. Sixteen tenants have them all if each
/// has as many as it may.
pub const TRIGGERS: usize = 256;
/// Changes of triggers that are made or wait at a time, at most: each has a thread until the disk has it.
pub const TRIGGER_CHANGES: usize = 16;
/// The same of one tenant: each waits for the one before.
pub const TRIGGER_CHANGES_PER_TENANT: usize = 4;
/// Shortest time between two calls of a schedule.
pub const TRIGGER_EVERY_MIN: Duration = Duration::from_millis(100);
/// Longest one.
pub const TRIGGER_EVERY_MAX: Duration = Duration::from_secs(30 * 86_400);
/// Bytes of a schedule's arguments, at most.
pub const TRIGGER_ARGS_BYTES: usize = 16 << 10;
/// Times that a failed call is made again, unless the trigger says it.
pub const TRIGGER_RETRIES: u32 = 8;
/// The same, at most: with the longest pause between them, an hour.
pub const TRIGGER_RETRIES_MAX: u32 = 120;
/// Pause before the first repeat of a call, in milliseconds; it doubles each time.
pub const TRIGGER_PAUSE_MIN_MS: u64 = 100;
/// The same, at most.
pub const TRIGGER_PAUSE_MAX_MS: u64 = 30_000;
/// Pause before a call is made whose key is between two servers of a cluster, in milliseconds: the last step of a move
/// takes some milliseconds.
pub const TRIGGER_MOVED_PAUSE_MS: u64 = 20;
/// Time for which moves of slots do not wait again for a trigger that was too late once, in milliseconds: a failing or
/// hostile trigger delays one move each ten minutes.
pub const TRIGGER_GIVEN_UP_MS: u64 = 600_000;
/// Time between two looks for triggers that other servers of a cluster have made or changed: as often as a server reads
/// the cluster's directory.
pub const TRIGGER_AGREED_LOOK: Duration = Duration::from_millis(100);
/// The same where they could not be taken over and nothing has changed since, at most, after it has doubled each time.
pub const TRIGGER_AGREED_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Time between two lines in the server's log that say the same of that.
pub const TRIGGER_AGREED_LOG: Duration = Duration::from_secs(60);
/// For how long what a schedule was due is due again where another server of a cluster takes its calls over, in
/// milliseconds: longer than a server that is gone counts as one that lives.
pub const TRIGGER_DUE_AGAIN_MS: u64 = 15_000;
/// Requests with calls for keys of one other server of a cluster that are sent at a time, at most: a thread each, which
/// waits for a minute where that server is silent. There are 63 others. A tenant has one at a time for each of them, of
/// all calls that its trigger begins in a turn.
pub const TRIGGER_REMOTE_THREADS: usize = 4;
/// Requests of a tenant that wait for the one under way to the same server, at most: calls beyond that are made again
/// later.
pub const TRIGGER_REMOTE_WAITING: usize = 32;
/// The same for all servers together.
pub const TRIGGER_REMOTE_WAITING_ALL: usize = 128;
/// Bytes of the arguments in requests of a tenant that wait for other servers, at most: what several of its triggers
/// have in their queues. One request waits in any case.
pub const TRIGGER_REMOTE_WAITING_BYTES: usize = 16 << 20;
/// Senders of such requests and tenants for which a server keeps which one was the last, at most: of 64 servers each
/// has [`TRIGGERS`] tenants with triggers at most. The one that has sent nothing for longest is forgotten.
pub const TRIGGER_REMOTE_ORDERS: usize = 64 * TRIGGERS;
/// Letters of a sender's id, at most: it has 40.
pub const TRIGGER_SENDER_LETTERS: usize = 64;
/// Bytes of the arguments in such a request from which on the next call is in another one: it has one call at least.
pub const TRIGGER_REMOTE_BYTES: usize = 1 << 20;
/// Time in which calls for another server of a cluster are run, until it is told that they still run. Less than that
/// server's patience.
pub const TRIGGER_REMOTE_RUN: Duration = Duration::from_secs(50);
/// Letters of the text of such a call that failed: what is kept of it.
pub const TRIGGER_REMOTE_TEXT: usize = 500;
/// Changes of a table that are handled at the same time: keys share so many slots.
pub const TRIGGER_SLOTS: usize = 64;
/// Calls of a trigger that wait or run, at most.
pub const TRIGGER_QUEUE_CALLS: usize = 4_096;
/// Bytes of their arguments from which on no more changes are read.
pub const TRIGGER_QUEUE_BYTES: usize = 4 << 20;
/// Calls of a trigger, those that are over among them, of which a list says whether they are: one that waits for its
/// next try keeps the list long. Calls from before it are looked up by number.
pub const TRIGGER_QUEUE_NUMBERS: usize = 4 * TRIGGER_QUEUE_CALLS;
/// Changes that a trigger may ask for in one call, at most: they are handled or fail together.
pub const TRIGGER_BATCH: u32 = 256;
/// Full batches that fit before one is tried that is larger, after one has taken more than its call's budget: what
/// takes too much is run for nothing.
pub const TRIGGER_BATCH_TRIAL_AFTER: u32 = 16;
/// The same, at most, after it has doubled with each try that took too much: ten thousand calls a second make ten
/// tries a minute, far fewer than the kills that slow an extension.
pub const TRIGGER_BATCH_TRIAL_AFTER_MAX: u32 = 65_536;
/// Bytes of changes that are put together for one call, at most: a call's arguments count in its memory.
pub const TRIGGER_BATCH_BYTES: usize = 64 << 10;
/// Bytes of the log that a trigger reads in a turn.
pub const TRIGGER_READ_BYTES: u64 = 1 << 20;
/// Calls that a trigger begins in a turn.
pub const TRIGGER_CALLS_PER_TURN: usize = 256;
/// Least time between two looks for a call that is due. Changes of tables and answers of calls wake the thread at once.
pub const TRIGGER_LOOK: Duration = Duration::from_millis(2);
/// The longest time between two looks: a trigger that waits for its table finds it then.
pub const TRIGGER_LOOK_MAX: Duration = Duration::from_millis(500);
/// Time between two writes of how far a trigger has come: after a crash the calls since the last one are made again.
pub const TRIGGER_WRITE_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks for triggers that are to be written.
pub const TRIGGER_WRITE_LOOK: Duration = Duration::from_millis(250);
/// Bytes of the log after which it is told again how far a table's trigger of a cluster has come, also where no call
/// has ended: the server that takes this one's place reads as much to find none.
pub const TRIGGER_NOTE_BYTES: u64 = 8 << 20;
/// So much more for each MiB of its file.
pub const TRIGGER_WRITE_PER_MIB: Duration = Duration::from_secs(1);
/// Dead letters of a trigger, at most; then it pauses.
pub const TRIGGER_DEAD_LETTERS: usize = 1_000;
/// Bytes of their arguments, at most.
pub const TRIGGER_DEAD_LETTER_BYTES: usize = 1 << 20;

/// Longest time that a flush of a table waits for its backing.
pub const FLUSH_MOST: Duration = Duration::from_secs(60);
/// Time between two looks of a server of a cluster whether others have pushed something.
pub const FOLLOW_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which what could not be loaded is tried again: its artifact may have come, or a key be trusted.
pub const FOLLOW_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which a request waits for the server's next look at its cluster, where it names what this server does not
/// know: the server looks ten times a second, and more seldom where etcd is slow.
pub const LOOK_PATIENCE: Duration = Duration::from_secs(2);
/// Time for which the answer to what takes rights away waits for the other servers of a cluster that live. Each takes a
/// change over within some tenths of a second.
pub const EVERYWHERE_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks for that: twice as many as a server makes by itself.
pub const EVERYWHERE_PAUSE: Duration = Duration::from_millis(50);
/// Pause between two questions whether it has looked.
pub const LOOK_PAUSE: Duration = Duration::from_millis(10);
