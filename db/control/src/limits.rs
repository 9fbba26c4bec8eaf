//! Limits of this crate: name, default, unit, reason.

use std::time::Duration;

/// Connections at a time. Bounds the file descriptors that the control port can use up. One more takes the place of the
/// one that has waited longest without a request that is being worked on; it waits only while all of them are.
pub const MAX_CONNECTIONS: usize = 256;
/// A process that may open fewer than a thousand files has fewer connections, one for so many files; see
/// [`SPARE_FILES`] and, of other protocols' ports, `connections::OTHER_FILES` for the others.
pub const FILES_PER_CONNECTION: usize = 4;
/// But no fewer than this.
pub const MIN_CONNECTIONS: usize = 8;
/// One place of so many is not for other machines (32 of 256), nor safe for tenants: the operator on this machine
/// always gets one.
pub const RESERVED_FOR_OPERATOR_ONE_IN: usize = 8;
/// Of the places, as many as one address (or /64) may have: it takes seven to fill them.
pub const MAX_CONNECTIONS_PER_ADDRESS: usize = 32;
/// File descriptors that are held open, and closed when the process has no other left: one for a connection to the
/// control port, the others for what it asks for, such as the files of the journal.
pub const SPARE_FILES: usize = 8;
/// How long nothing is accepted when all that has not helped.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How long a TLS handshake may take: three round trips to the far side of the world, several times over.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may wait for a request, or send its header: longer than clients keep idle connections
/// (15 s). Also how long one may take no byte of its answer.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of a body that is read before the request is looked at, at most: those of every request but a push. All
/// connections together hold 16 MiB of them.
pub const SHORT_BODY_BYTES: usize = 64 << 10;
/// How long the body of a request may take: the largest push at 140 KB/s.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an answer may be worked on: a push that waits for all the others before it, each at its limit.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3600);
/// Bytes of a request's header, at most: ours have a few hundred; what carries more is no client of this server.
pub const MAX_HEADER_BYTES: usize = 64 << 10;
/// Wrong tokens of an address that are answered at once: a person's mistakes.
pub const FAILURES_WITHOUT_DELAY: u32 = 3;
/// By how much the answer to the next one is held back; twice as long each time.
pub const FAILURE_DELAY: Duration = Duration::from_millis(100);
/// The same at most: it holds a connection's place meanwhile.
pub const FAILURE_DELAY_MAX: Duration = Duration::from_secs(2);
/// After this long without one, an address's wrong tokens are forgotten.
pub const FAILURES_FORGOTTEN: Duration = Duration::from_secs(60);
/// Addresses whose wrong tokens are remembered (100 KB); the one that was seen longest ago leaves first.
pub const FAILURES_REMEMBERED: usize = 1024;
/// Between two log lines about wrong tokens, at least: who tries many cannot fill a disk.
pub const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of a file with a certificate or a key, at most: a long chain has a tenth.
pub const MAX_PEM_BYTES: u64 = 1 << 20;
/// Years for which a certificate is made: clients pin it, so its end would be an outage that nobody planned.
pub const MADE_CERTIFICATE_YEARS: i32 = 20;
/// How often the certificate's files are looked at, in milliseconds.
pub const CERTIFICATE_CHECK_MS: u64 = 1_000;
/// How long an old token works beside its successor if it is not said: time to tell every client of a small fleet.
pub const OLD_TOKEN_GRACE: std::time::Duration = std::time::Duration::from_secs(3600);
