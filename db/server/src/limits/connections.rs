//! Limits of connections (memcached, Redis).

/// Connections of the server, at most; less where the process may not open as many files. A tenant alone gets two
/// thirds. An idle one takes less than 1 KiB here, and some of the kernel's.
pub const MAX_CONNECTIONS: usize = 65_536;
/// File descriptors that are left for everything else: control connections, builds, libraries.
pub const OTHER_FILES: usize = 1_024;
/// Connections that a worker accepts at one port in one turn: about 100 us of system calls.
pub const ACCEPTS_PER_TURN: usize = 32;
/// Microseconds for which nothing is accepted after the kernel had no file descriptor left.
pub const ACCEPT_PAUSE_US: u64 = 100_000;
/// Buffer that a worker keeps for its next use, bytes; larger ones are given back.
pub const RETAINED_BUFFER_BYTES: usize = 256 << 10;
/// Batches of commands that one connection gets in a row while few others wait.
pub const BATCHES_PER_TURN: usize = 4;
/// Bytes that are given to the kernel at once of a connection's answers: it copies them in 50 to 100 us, and on
/// loopback it does the receiver's work as well.
pub const SEND_BYTES: usize = 256 << 10;
/// Ready connections up to which that is so.
pub const FEW_READY: usize = 4;
/// Unsent answers of a connection beyond which nothing more of it is read or run, bytes. With the answers of one batch,
/// and one largest value, on top this bounds what a client that does not read can have held.
pub const UNSENT_PAUSE_BYTES: usize = 256 << 10;
/// Microseconds for which a connection may take no byte of answers that wait for it; then it is closed.
pub const SLOW_READER_TIMEOUT_US: u64 = 10_000_000;
/// Microseconds within which a connection has to show whose it is; then it is closed.
pub const AUTHENTICATION_TIMEOUT_US: u64 = 30_000_000;
/// Bytes that one that has not shown whose it is may have waiting: a user and a token take a tenth.
pub const UNAUTHENTICATED_INPUT_BYTES: usize = 16 << 10;
/// Connections that have not shown whose they are, of one address (IPv6: of one /64): so many clients of a machine may
/// wait for their handshakes at once when a server has restarted.
pub const STRANGERS_OF_ADDRESS: usize = 1_024;
/// The same as a part of all connections that there may be: one in so many, where files are few.
pub const STRANGERS_OF_ADDRESS_ONE_IN: usize = 4;
/// Nanoseconds after which a worker leaves the rest of its connections, or of a burst of datagrams, for its next turn,
/// so that packets, invocations and other tenants' connections have theirs: 64 small requests with a read and a write
/// each take as long.
pub const TURN_NS: u64 = 250_000;
/// Looks in a turn for connections that have something to say, while each finds as many as one can (64): where many
/// thousands have, those of other tenants are found sooner among them. One costs 5 us.
pub const SELECTS_PER_TURN: usize = 4;
/// Bytes of buffers of all connections of a worker. A tenant may have twice as many as are free; the connection that
/// would take more is closed.
pub const BUFFER_BYTES: usize = 512 << 20;
/// Microseconds between two looks for connections whose time is up.
pub const TIMEOUT_CHECK_US: u64 = 1_000_000;
