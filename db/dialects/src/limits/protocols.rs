//! Limits of requests on connections.

use sandstorm_extension::limits::{CONTENDED_SLICE_US, SLICE_US};
use sandstorm_store::limits::MAX_VALUE_BYTES;

/// Commands that are read before the first of them is run, so that their cache misses overlap. Also the keys of a
/// multiget that are answered at once.
pub const BATCH: usize = 64;
/// Bytes copied or scanned that count as one more request: a core moves as many from and to memory in that time.
pub const BYTES_PER_REQUEST: usize = 2 << 10;
/// Work of one piece, in plain requests, after which a session yields: as much as fits a slice. A piece may be longer
/// by its last step: 64 keys, or one value of 8 MiB, which is copied whole
/// ([`sandstorm_store::limits::MAX_VALUE_BYTES`]).
pub const PIECE_WORK: u32 = (SLICE_US * 1000 / super::REQUEST_NS) as u32;
/// The same while another tenant has recently sent requests to the worker.
pub const CONTENDED_PIECE_WORK: u32 = (CONTENDED_SLICE_US * 1000 / super::REQUEST_NS) as u32;
/// Work of one memcached datagram, in plain requests, at most. It is not cut: as many keys as a message may have.
pub const DATAGRAM_WORK: u32 = super::MULTIGET_KEYS as u32;
/// Bytes of answers after which a session lets them leave before it goes on.
pub const ANSWERS_FULL_BYTES: usize = 64 << 10;
/// Bytes of values that the commands of a batch write beside those that were received, after which the rest waits:
/// about 100 us. For example, a new time for a large value copies it.
pub const WRITTEN_AT_ONCE_BYTES: usize = 256 << 10;
/// Bytes of such a value that count as one more request against its tenant's share of the CPU: they are copied in about
/// that time.
pub const REWRITTEN_PER_REQUEST_BYTES: usize = 1 << 10;
/// Bytes of commands that a connection has with other servers of the cluster at a time, beside the last one of them.
/// Together with [`BATCH`] this bounds what is under way for a connection.
pub const FORWARDED_RUN_BYTES: usize = 1 << 20;
/// Work of forwarding commands at a time, in plain requests: 20 us of this server's processor go into the request to
/// the other one.
pub const FORWARDED_WORK: u64 = 100;
/// Bytes of answers to the commands of one request of another server, beside the last one of them. The rest is asked
/// for anew.
pub const FORWARDED_ANSWER_BYTES: usize = 1 << 20;
/// Bytes of a request of another server: [`FORWARDED_RUN_BYTES`], the largest value, and lines and headers.
pub const FORWARDED_REQUEST_BYTES: usize = FORWARDED_RUN_BYTES + MAX_VALUE_BYTES + (64 << 10);
/// Bytes of the answer to one.
pub const FORWARDED_RESPONSE_BYTES: usize = FORWARDED_ANSWER_BYTES + MAX_VALUE_BYTES + (64 << 10);
/// Turns of a datagram in a row without progress, at most: a key's slot may go to another server just when it is read.
pub const DATAGRAM_STALLS: u32 = 2;
/// Bytes of the answer to one datagram, at most: 750 datagrams, as many as a socket's buffer has room for.
pub const DATAGRAM_ANSWER_BYTES: usize = 1 << 20;
/// Bytes of user and password, at most: names and tokens have a few hundred together.
pub const AUTH_BYTES: usize = 1 << 10;
/// Wrong passwords, or commands in place of one, after which a connection is closed.
pub const AUTH_FAILURES: u32 = 5;
/// Work of emptying a table, beside its records: 64 locks and a new array, 10 us.
pub const EMPTY_WORK: u64 = 50;
/// Bytes of memcached's statistics that count as one plain request: each line is a formatted number.
pub const STATISTICS_PER_REQUEST_BYTES: usize = 32;
/// The reported version of memcached. No behaviour depends on it, but clients parse it.
pub const MEMCACHED_VERSION: &str = "1.6.18";
/// Bytes read from a connection at once: a turn's pipeline of small commands, and few enough for a core's cache.
pub const RECEIVE_BYTES: usize = 64 << 10;
