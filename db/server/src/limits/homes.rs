//! Limits of moves of tenants' home workers.

/// Milliseconds of a window of load. A busy pair is separated after at most four: one in which it begins, one in which
/// the first counts are read, and [`HOME_WINDOWS`]. That is less than two seconds.
pub const HOME_WINDOW_MS: u64 = 400;
/// Windows in each of which a move would have helped: a burst of half a second moves nothing.
pub const HOME_WINDOWS: usize = 2;
/// Load of a worker from which tenants leave it, as a part of its time: below it requests seldom wait for each other.
pub const HOME_BUSY_LOAD: f64 = 0.5;
/// Microseconds of a worker's time that one plain request can explain: it takes 0.2, and what receiving and sending it
/// alone by system calls takes, which is less than ten. The rest is no tenant's, such as handshakes.
pub const MOST_REQUEST_US: f64 = 20.0;
/// What the larger load of two workers has to lose by a move, as a part of a worker's time: less is noise, and a move
/// makes each client of the tenant change its port or its connections' worker.
pub const HOME_LEAST_GAIN: f64 = 0.1;
/// What a move costs for each part of a worker's time that the tenant takes, in the measure of gains: of two tenants
/// whose moves help nearly as much the smaller one goes.
pub const HOME_MOVE_COST: f64 = 0.1;
/// Load of a tenant from which it is moved: no smaller one can bring that gain.
pub const HOME_SMALLEST_LOAD: f64 = HOME_LEAST_GAIN;
/// Windows for which a tenant that was moved stays: ten seconds, in which its clients have followed and its load at its
/// new home is known.
pub const HOME_STAY_WINDOWS: u64 = 25;
/// Moves after one window: five tenants in two seconds. Each is a line of the journal and a new snapshot for all
/// workers, and what it does is seen before the next.
pub const HOME_MOVES_PER_WINDOW: usize = 1;
/// Connections that a worker hands to their new home in one turn: about 200 us of system calls.
pub const CONNECTIONS_MOVED_PER_TURN: usize = 64;
/// Connections at which it looks for these in one turn. Connections that wait for something stay until that has come.
pub const CONNECTIONS_LOOKED_AT_PER_TURN: usize = 256;
