//! Limits of the ports of workers: how they end, TLS, Unix sockets.

use sandstorm_net::rate_limiter::RateLimit;

/// Microseconds for which a stopping server still answers that it stops, at most; longer only while an invocation runs.
/// Clients with requests under way, or repeats of them, need not wait for their deadlines.
pub const DRAIN_MAX_US: u64 = 150_000;
/// Microseconds without a request after which a stopping worker need not wait longer: a client repeats a request after
/// 20 ms.
pub const DRAIN_QUIET_US: u64 = 30_000;
/// Microseconds after which a stopping worker ends the invocations that still run. Those with the budgets that a tenant
/// has by default have ended by then; an operator may allow an hour, for which no stop waits.
pub const DRAIN_CALLS_US: u64 = 3_000_000;
/// Microseconds that a stopping worker waits for invocations that other workers run for its connections.
pub const DRAIN_ANSWERS_US: u64 = 10 * DRAIN_MAX_US;
/// Microseconds for which a stopping worker waits for answers that the log's disk holds up: until the log says that the
/// disk stalls (5 s), and somewhat more.
pub const DRAIN_PENDING_US: u64 = 7_000_000;
/// Default mode of a Unix socket's file: for the server's own user alone.
pub const SOCKET_MODE: u32 = 0o700;
/// Microseconds that a TLS handshake of one of these ports may take: as at the control port, with a busy worker in
/// between.
pub const TLS_HANDSHAKE_TIMEOUT_US: u64 = 10_000_000;
/// Bytes of a client's part of a TLS handshake: a hello of half a kilobyte, and as much again; some have long lists.
/// The client needs no certificate.
pub const TLS_HANDSHAKE_BYTES: usize = 16 << 10;
/// TLS handshakes that a worker continues in a turn. One takes 0.1 ms with an elliptic key and 1 ms with RSA, for which
/// all others wait.
pub const TLS_HANDSHAKES_PER_TURN: usize = 1;
/// Nanoseconds of each second that a worker spends on TLS handshakes, at most: any client may ask for one without a
/// token. Addresses take turns; 100 a second with RSA, some 700 with an elliptic key.
pub const TLS_HANDSHAKE_NS_PER_S: u64 = 100_000_000;
/// Nanoseconds of handshakes that may be spent at once after a pause: for the clients of a restarted server.
pub const TLS_HANDSHAKE_BURST_NS: u64 = 50_000_000;
/// The rate and burst of handshakes, counted in nanoseconds.
pub const TLS_HANDSHAKES: RateLimit = RateLimit::per_second(TLS_HANDSHAKE_NS_PER_S).with_burst(TLS_HANDSHAKE_BURST_NS);
/// Bytes of encrypted answers that wait for the client on one connection, beside those not encrypted yet: two records.
pub const TLS_SEND_BYTES: usize = 32 << 10;
/// Bytes that an idle connection takes for TLS: keys and buffers. Bytes of an incomplete record are counted separately.
pub const TLS_IDLE_BYTES: usize = 8 << 10;
/// Bytes that a connection with keys may send without a byte of plaintext: one largest record, and some. More is part
/// of a message that never ends, which the library would buffer.
pub const TLS_BUFFER_BYTES: usize = 18 << 10;
/// Records without plaintext after which a connection is closed, beyond those that [`TLS_BARE_RECORD_BYTES`] make up
/// for. Clients change their keys after millions of records, if ever.
pub const TLS_BARE_RECORDS: usize = 256;
/// Bytes of plaintext that make up for one record without any.
pub const TLS_BARE_RECORD_BYTES: usize = 64 << 10;
/// Work of a record beside its bytes, in plain requests.
pub const TLS_RECORD_WORK: u32 = 3;
/// Work of a record without plaintext: new keys, and those of the answer.
pub const TLS_BARE_RECORD_WORK: u32 = 25;
/// Work of decryption of one connection at once, in plain requests: as a command's piece while other tenants send, too.
pub const TLS_SLICE_WORK: u32 = sandstorm_dialects::limits::protocols::CONTENDED_PIECE_WORK;
