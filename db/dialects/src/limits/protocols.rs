//! Limits of what is said on connections.

use sandstorm_extension::limits::{CONTENDED_SLICE_US, SLICE_US};

/// Commands that are read before the first of them is run, so that their cache misses overlap; and keys of a get of
/// many that are answered at once.
pub const BATCH: usize = 64;
/// Bytes copied or looked at that count as one further request: what a core moves in as long, from and to memory.
pub const BYTES_PER_REQUEST: usize = 2 << 10;
/// Work of one piece, in plain requests, after which a conversation lets others have their turn: as much as fits a
/// slice. A piece may be longer by what its last step takes: 64 keys, or one value of 8 MiB, which is copied whole
/// ([`sandstorm_store::limits::MAX_VALUE_BYTES`]).
pub const PIECE_WORK: u32 = (SLICE_US * 1000 / super::REQUEST_NS) as u32;
/// The same while another tenant has asked the worker for something of late.
pub const CONTENDED_PIECE_WORK: u32 = (CONTENDED_SLICE_US * 1000 / super::REQUEST_NS) as u32;
/// Work that one datagram of memcached's may ask for, in plain requests. It is served in one go: as many keys as a
/// message may have.
pub const DATAGRAM_WORK: u32 = super::MULTIGET_KEYS as u32;
/// Bytes of answers after which a conversation lets them leave before it goes on.
pub const ANSWERS_FULL_BYTES: usize = 64 << 10;
/// Bytes of values that the commands of a batch write beside what they were sent (a new time for a large value is a
/// copy of it), after which the rest waits for others: about 100 us.
pub const WRITTEN_AT_ONCE_BYTES: usize = 256 << 10;
/// Bytes of such a value that count as one request more against its tenant's share of the CPU: copied in about that
/// time.
pub const REWRITTEN_PER_REQUEST_BYTES: usize = 1 << 10;
/// Bytes of the answer to one datagram, at most: 750 of its own, what a socket's buffer holds.
pub const DATAGRAM_ANSWER_BYTES: usize = 1 << 20;
/// Bytes of user and password, at most: names and tokens have a few hundred together.
pub const AUTH_BYTES: usize = 1 << 10;
/// Wrong passwords, or commands in place of one, after which a connection is closed.
pub const AUTH_FAILURES: u32 = 5;
/// Work of emptying a table, beside its records: 64 locks and a new array, 10 us.
pub const EMPTY_WORK: u64 = 50;
/// Bytes of memcached's statistics that are one plain request: each line is a number that is written out.
pub const STATISTICS_PER_REQUEST_BYTES: usize = 32;
/// The version of memcached that is spoken as. Nothing stands behind the numbers: clients take it apart.
pub const MEMCACHED_VERSION: &str = "1.6.18";
/// Bytes read from a connection at once: what a pipeline of small commands sends in a turn, and what stays in a core's
/// cache.
pub const RECEIVE_BYTES: usize = 64 << 10;
