//! Limits of Redis clients; the limits of one command are in `sandstorm_net::limits`.

use sandstorm_store::limits::MAX_VALUE_BYTES;

/// Databases that clients select by numbers below this, whether or not there is a table of the number as its id: tables
/// are made for them. As many as a Redis has if its configuration says nothing.
pub const DATABASES: u64 = 16;
/// Bytes of the JSON of a typed function's arguments in FCALL: it is parsed at once, in about a slice.
pub const TYPED_ARGS_BYTES: usize = 32 << 10;
/// Bytes of a typed function's reply that is written in RESP's types: at once, in about a slice or two.
pub const TYPED_REPLY_BYTES: usize = 64 << 10;
/// Bytes of such a reply as it is written, with the names of fields.
pub const TYPED_OUTPUT_BYTES: usize = 1 << 20;
/// Bytes of JSON that count as one more request, for parsing them.
pub const BYTES_PER_JSON_REQUEST: usize = 64;
/// Commands of a pipeline that are parsed, prefetched and then run: enough to overlap their cache misses, and a turn's
/// worth.
pub const BATCH: usize = 64;
/// Arguments, with the name, of a command that is not run in pieces: all of them are processed within a slice. The
/// options of any command are a tenth of that.
pub const SINGLE_STEP_ARGS: usize = 256;
/// Keys (and other arguments) of a command in pieces that are looked up together, so that their cache misses overlap.
pub const STEP_ARGS: usize = super::PLAN_OPERATIONS;
/// Arguments of all commands of a batch after which no further command is read into it: commands that are not run now
/// would be parsed again.
pub const BATCH_ARGS: usize = 512;
/// Arguments of a command that count as one more request, for any command: each is parsed, and compared with some
/// words.
pub const ARGS_PER_REQUEST: usize = 16;
/// Bytes of answers after which the rest of a batch waits until these have left.
pub const BATCH_ANSWER_BYTES: usize = 256 << 10;
/// Bytes of one answer that is completed before it leaves (that of KEYS); beyond that it is an error.
pub const ANSWER_BYTES: usize = 64 << 20;
/// Bytes of the answer to MGET that wait for the rest of it, of a table that does not have all records in memory: if
/// one cannot be read, the answer is an error. Of a longer answer a part has left then, and the connection ends. As
/// much as a transaction answers at most, and a connection's memory counts it.
pub const GATHERED_BYTES: usize = ATOMIC_BYTES;
/// Commands between MULTI and EXEC, and keys that they name together, with one key at least for each command; and pairs
/// of an MSET. They run in one go, while writers of their keys wait: 100 to 200 ns each, so a few slices.
pub const ATOMIC_KEYS: usize = 2_000;
/// Bytes of the commands between MULTI and EXEC, of their answers, and of an MSET: one largest value, and a little.
pub const ATOMIC_BYTES: usize = MAX_VALUE_BYTES + (1 << 20);
/// Work of a transaction, in plain requests; commands beyond it fail. The worker's other tenants wait for it. It allows
/// for all its keys, and one largest value that is read and written (`BYTES_PER_REQUEST`): some 2 ms.
pub const TRANSACTION_WORK: u32 = (ATOMIC_KEYS + 2 * (MAX_VALUE_BYTES / super::protocols::BYTES_PER_REQUEST)) as u32;
/// Bytes of a command on one key up to which it cannot take long, so that it is not timed.
pub const QUICK_BYTES: usize = 64 << 10;
/// Arguments of a command on several keys up to which it is not timed either.
pub const QUICK_ARGS: usize = 16;
/// Keys that a connection watches: EXEC checks them one by one while writers wait: 50 us.
pub const WATCHED_KEYS: usize = 1_000;
/// Bytes of these keys together.
pub const WATCHED_BYTES: usize = 1 << 20;
/// Records that one SCAN visits, whatever its COUNT: a slice.
pub const SCAN_RECORDS: usize = 1_000;
/// The same in a table larger than memory, where each may have to be read from the disk: so many are in memory
/// together.
pub const SCAN_COLD_RECORDS: usize = 64;
/// Records among these that are matched with a pattern between two checks of its cost.
pub const SCAN_MATCH_CHUNK: usize = 50;
/// Records of a table up to which KEYS is answered: about 10 ms, in pieces.
pub const KEYS_RECORDS: u64 = 100_000;
/// Records that KEYS visits in one step; fewer if the pattern is too expensive.
pub const KEYS_STEP_RECORDS: [usize; 3] = [250, 16, 1];
/// Bytes of answers of KEYS in one piece of memory until all are found.
pub const KEYS_CHUNK_BYTES: usize = 64 << 10;
/// Calls of a scan that a RANDOMKEY makes, 100 us each, in pieces. A table that was once large and is nearly empty gets
/// no more.
pub const RANDOM_SCANS: usize = 100;
/// The same in a transaction, which is not cut.
pub const TRANSACTION_RANDOM_SCANS: usize = 4;
/// Steps that a pattern may take in one go, for any text: 130 us, and more than the longest key has bytes. A SCAN that
/// reaches half of it returns what it has.
pub const PATTERN_STEPS: u64 = 80 << 10;
/// Steps that the pattern of one KEYS may take in all its pieces: about 50 ms. All keys that it visits take a third.
pub const KEYS_PATTERN_STEPS: u64 = 32 << 20;
/// Steps of a pattern that count as one request.
pub const PATTERN_STEPS_PER_REQUEST: u64 = 128;
/// Connections visited by CLIENT KILL that count as one request.
pub const CLIENTS_PER_REQUEST: usize = 8;
/// Counters of commands summed by INFO that count as one request.
pub const COUNTERS_PER_REQUEST: usize = 64;
/// Connections that one CLIENT LIST returns: about a millisecond.
pub const MAX_CLIENTS_LISTED: usize = 2_000;
/// Bytes of a number for INCRBYFLOAT, as in Redis.
pub const FLOAT_BYTES: usize = 5 * 1024;
