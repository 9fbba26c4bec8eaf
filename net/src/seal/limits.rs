//! Every limit of sealed sessions: default, unit, reason. A server takes those in [`SealLimits`], so that a test may
//! make them tiny; those that both sides must agree on are constants.

/// Bytes of the header of a sealed packet.
pub const HEADER_LEN: usize = 24;
/// Bytes of the tag at the end of a sealed packet.
pub const TAG_LEN: usize = 16;
/// Packet numbers below the newest that may still come. A window of 2,048 rides out any reordering that a burst of a
/// whole socket buffer (4 MiB) of full packets can make. It takes 264 bytes a session and direction.
pub const REPLAY_WINDOW: u64 = 2048;
/// Packets of one direction under one set of keys, after which the client makes new ones. 2^22 take four seconds at a
/// million a second, and leave time to retry before [`PACKETS_PER_KEY`].
pub const REKEY_AFTER_PACKETS: u64 = 1 << 22;
/// Packets of one direction under one set of keys, at most; then nothing is sent under them any more. AES-GCM loses its
/// margin of 2^-57 after 2^24.5 full packets (RFC 8446, 5.5; ours are far shorter than TLS's 16 KiB records).
pub const PACKETS_PER_KEY: u64 = 1 << 24;
/// Age at which the client makes new keys, microseconds: a stolen key opens no more than half an hour.
pub const REKEY_AFTER_US: u64 = 1_800_000_000;
/// Time for which old keys still open packets after new ones are in use, microseconds: well over a packet's time under
/// way.
pub const PREVIOUS_KEYS_LIFETIME_US: u64 = 10_000_000;
/// Bytes of a hello: header, ephemeral key, its sealed payload (time, and 8 bytes for later use), tag.
pub const HELLO_LEN: usize = HEADER_LEN + 32 + 16 + TAG_LEN;
/// Bytes of a welcome: 8 less than the hello that it answers, so that an attacker cannot use a server to send more than
/// it sends itself.
pub const WELCOME_LEN: usize = HEADER_LEN + 32 + 8 + TAG_LEN;
/// Bytes of a cookie.
pub const COOKIE_LEN: usize = 16;
/// Bytes of a hello that brings a cookie.
pub const HELLO_WITH_COOKIE_LEN: usize = HELLO_LEN + COOKIE_LEN;
/// Bytes of the packet that brings a client its cookie: less than half of the hello that it answers.
pub const RETRY_LEN: usize = HEADER_LEN + COOKIE_LEN;
/// Time for which a cookie is good at least, microseconds; at most it is twice as long. A client that gets one uses it
/// at once.
pub const COOKIE_LIFETIME_US: u64 = 30_000_000;
/// Addresses whose hellos are counted one by one, at most: 64 bytes each. Beyond it, all may begin anew.
pub const COOKIE_ADDRESSES: usize = 4096;
/// Times that a client sends its hello again at once because it was brought a cookie, in one handshake. Cookies are not
/// sealed, so they may be forged. After that it brings the newest one when it is time to repeat the hello.
pub const MAX_COOKIE_HELLOS: u32 = 4;
/// The most that a hello's time may differ from the server's, milliseconds: the lifetime of a recorded hello. A client
/// whose clock is wrong is told the server's time, at the price of one more round trip.
pub const HELLO_LIFETIME_MS: u64 = 30_000;
/// Times that a client corrects its clock in one handshake, at most.
pub const MAX_CLOCK_CORRECTIONS: u32 = 3;
/// Time for which a client goes on asking after a server has said that it does not know the token, microseconds. Such a
/// packet is not sealed, so it may be forged; a genuine welcome within that time wins.
pub const REFUSAL_GRACE_US: u64 = 200_000;
/// Least time between two handshakes that a client begins because it was told that its session is not known,
/// microseconds. It bounds the work that forged packets of that kind cause.
pub const MIN_REHANDSHAKE_INTERVAL_US: u64 = 200_000;

/// Answers that wait for a client's address to be proven, of one session: as many as a client with a few requests under
/// way waits for.
pub const PATH_QUEUE_PACKETS: usize = 32;
/// Bytes of them: one largest datagram.
pub const PATH_QUEUE_BYTES: usize = 64 << 10;
/// The same for all sessions of a port: those of some thousand clients that a failing gateway moves at once. A tenant's
/// sessions may hold twice what is left free.
pub const PATH_QUEUE_BYTES_TOTAL: usize = 4 << 20;

/// Limits of a server's sealed sessions (one port).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealLimits {
    /// Sessions. Default 16,384, about 2 KiB each. Beyond it the tenant with most of them loses its longest idle one.
    pub sessions: usize,
    /// Time without a packet after which a session is forgotten, microseconds. Default 10 min: coming back costs a
    /// client one round trip.
    pub idle_us: u64,
    /// Hellos whose token is checked in one turn. Default 8, at 4 us each; and as many of hellos with a cookie.
    pub checks_per_turn: u32,
    /// Hellos whose token is checked in a second. Default 20,000: 8 % of a worker under any flood. Half of them are
    /// kept for hellos with a cookie.
    pub checks_per_s: u32,
    /// The same of one address, of those that bring a cookie. Default 500: all clients of a machine that come back at
    /// once.
    pub checks_per_address_s: u32,
    /// Cookies sent in a second. Default 100,000, at 1 us each: 10 % of a worker under any flood.
    pub cookies_per_s: u32,
    /// Handshakes (curve operations, 110 us) done in one turn. Default 1: no request waits longer than a slice for
    /// them.
    pub handshakes_per_turn: u32,
    /// Handshakes of one tenant in a second. Default 100: 1 % of a worker.
    pub handshakes_per_s: u32,
    /// Handshakes of all tenants in a second. Default 2000: 20 % of a worker, and the memory for good hellos over two
    /// lifetimes (16 bytes each, 4 MiB).
    pub total_handshakes_per_s: u32,
    /// Handshakes that wait in the queue. Default 128.
    pub waiting: usize,
    /// The same of one tenant. Default 32.
    pub queued_handshakes_per_tenant: usize,
    /// Rejects in a second. Default 1000: a restarted server's clients learn of it at once, and a flood is not
    /// answered.
    pub rejects_per_s: u32,
}

impl Default for SealLimits {
    fn default() -> SealLimits {
        SealLimits {
            sessions: 16_384,
            idle_us: 600_000_000,
            checks_per_turn: 8,
            checks_per_s: 20_000,
            checks_per_address_s: 500,
            cookies_per_s: 100_000,
            handshakes_per_turn: 1,
            handshakes_per_s: 100,
            total_handshakes_per_s: 2000,
            waiting: 128,
            queued_handshakes_per_tenant: 32,
            rejects_per_s: 1000,
        }
    }
}
