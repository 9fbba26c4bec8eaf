//! Limits of this crate: name, value, unit, reason.

use std::time::Duration;

/// Bytes of a line of the NATS protocol, at most: the longest is what a server tells of itself and of the others of its
/// cluster.
pub const LINE_BYTES: usize = 64 << 10;
/// Bytes of a message that is received, at most: servers send none of more than their `max_payload`, which may be
/// 64 MiB, but 8 MiB are advised.
pub const MESSAGE_BYTES: usize = 8 << 20;
/// Bytes of a batch in one message, at most. Below what a server takes if it is told nothing else, 1 MiB.
pub const PART_BYTES: usize = 768 << 10;
/// Bytes of a server's `max_payload` that a message has besides its part: headers, and the head of the part.
pub const PART_MARGIN_BYTES: usize = 1 << 10;
/// Bytes of a batch that was sent in parts, at most: a batch for a replica has two frames and a part of a checkpoint.
pub const BATCH_BYTES: usize = 8 << 20;
/// Time in which a server takes a connection; else another one is tried.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which a request has failed, repetitions included. A stream elects another leader in about as long.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until the answer to one attempt of a request is given up, and it is sent again.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time until a request is repeated that no server was there to answer: the stream has no leader.
pub const REPEAT_PAUSE: Duration = Duration::from_millis(100);
/// Time for which JetStream knows the ids of messages: some repetitions.
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
/// Messages that are asked for at once, at most.
pub const READ_MESSAGES: u64 = 256;
/// Bytes that are asked for at once, at most.
pub const READ_BYTES: usize = 4 << 20;
/// Pages of a list of streams that are asked for, at most: JetStream's have 1024 names.
pub const NAME_PAGES: usize = 64;
/// Times that a change is tried again which another one has forestalled.
pub const RACE_TRIES: u32 = 16;
/// Bytes of a message that is a question, with its headers, about.
pub const QUESTION_BYTES: u64 = 300;
/// Bytes of questions since the last trim, from which on another stream takes the place of one, if that is half of its
/// log as well: some twenty questions a second are this much in an hour and a half.
pub const WORN_BYTES: u64 = 32 << 20;
/// Bytes of the answer of a monitoring port, at most.
pub const VARZ_BYTES: u64 = 1 << 20;
/// Bytes of a file with a password or certificates, at most.
pub const ACCESS_FILE_BYTES: u64 = 64 << 10;
/// Servers that an address may name, at most.
pub const ADDRESSES: usize = 16;
/// The oldest version of a server that is spoken to, 2.15: what these tests have run against.
pub const OLDEST_VERSION: [u32; 2] = [2, 15];
/// Servers on which a stream has to be: two of three go on, and have what was confirmed.
pub const STREAM_REPLICAS: u32 = 3;
/// Bytes that stay free where a stream is read into a folder: the server's own log, which is on the same disk, goes on.
pub const STAGING_FREE_BYTES: u64 = 128 << 20;
