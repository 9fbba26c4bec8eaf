//! Limits of connections (memcached, Redis).

/// Connections of the server, at most; fewer if the process may not open as many files. One tenant alone gets two
/// thirds. An idle connection takes less than 1 KiB here, and some of the kernel's memory.
pub const MAX_CONNECTIONS: usize = 65_536;
/// File descriptors that are left for everything else: control connections, builds, libraries.
pub const OTHER_FILES: usize = 1_024;
/// Connections that a worker accepts at one port in one turn: about 100 us of system calls.
pub const ACCEPTS_PER_TURN: usize = 32;
/// Microseconds for which nothing is accepted after the kernel had no file descriptor left.
pub const ACCEPT_PAUSE_US: u64 = 100_000;
/// Largest buffer that a worker keeps for its next use, bytes; a larger one is freed.
pub const RETAINED_BUFFER_BYTES: usize = 256 << 10;
/// Batches of commands that one connection gets in a row while few others wait.
pub const BATCHES_PER_TURN: usize = 4;
/// Bytes of a connection's answers that are given to the kernel at once. The kernel copies them in 50 to 100 us, and on
/// loopback it does the receiver's work as well.
pub const SEND_BYTES: usize = 256 << 10;
/// Ready connections up to which one gets several batches.
pub const FEW_READY: usize = 4;
/// Unsent bytes of a connection beyond which it is neither read nor run. This, the answers of one batch and one largest
/// value bound the memory of a client that does not read.
pub const UNSENT_PAUSE_BYTES: usize = 256 << 10;
/// Microseconds after which a connection is closed if it takes no byte of its waiting answers.
pub const SLOW_READER_TIMEOUT_US: u64 = 10_000_000;
/// Microseconds after which an unauthenticated connection is closed.
pub const AUTHENTICATION_TIMEOUT_US: u64 = 30_000_000;
/// Bytes of input that an unauthenticated connection may have waiting: a user and a token take a tenth.
pub const UNAUTHENTICATED_INPUT_BYTES: usize = 16 << 10;
/// Unauthenticated connections of one address (IPv6: of one /64). As many clients of one machine may wait for their
/// handshakes after a restart of the server.
pub const UNAUTHENTICATED_PER_ADDRESS: usize = 1_024;
/// The same limit as a fraction of all possible connections, if files are few: one in this many.
pub const UNAUTHENTICATED_PER_ADDRESS_ONE_IN: usize = 4;
/// Nanoseconds after which a worker leaves the rest of its connections, or of a burst of datagrams, for its next turn.
/// So packets, invocations and other tenants' connections have their turns. 64 small requests with a read and a write
/// each take as long.
pub const TURN_NS: u64 = 250_000;
/// Calls of the selector in a turn, while each reports as many ready connections as one can (64). Among many thousands
/// of them, those of other tenants are found sooner. One call costs 5 us.
pub const SELECTS_PER_TURN: usize = 4;
/// Bytes of buffers of all connections of a worker. A tenant may use twice as many as are free; a connection that would
/// take more is closed.
pub const BUFFER_BYTES: usize = 512 << 20;
/// Microseconds between two checks for connections that have reached their timeouts.
pub const TIMEOUT_CHECK_US: u64 = 1_000_000;
