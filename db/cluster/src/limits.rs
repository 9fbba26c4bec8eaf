//! Limits of this crate: name, default, unit, reason.

use std::time::Duration;

/// Time between two looks at the cluster's state. A change of it is known everywhere after as long; a look takes etcd
/// well below a millisecond.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a request to etcd has failed. Longer than an election of etcd takes by default, 1 s.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Life of a server's sign of life, unless it is renewed. Five times [`RENEWAL_INTERVAL`].
pub const LEASE_S: u64 = 10;
/// Time between two renewals of it.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(2);
/// Bytes of an answer of etcd, at most: of all servers of a cluster, and its map of slots.
pub const ANSWER_BYTES: u64 = 4 << 20;
/// Endpoints of an address, at most. An etcd has seven members at most.
pub const ENDPOINTS: usize = 7;
/// Time between two lines in the log about a store that does not answer.
pub const LOG_INTERVAL: Duration = Duration::from_secs(60);
