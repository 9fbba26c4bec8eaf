//! Every limit of the client: name, default, unit, reason.

use std::time::Duration;

/// A control request, from connect to the last byte. A push waits for the builder, whose own limit is shorter.
pub const CONTROL_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a control answer: the remarks of a compiler about the largest push stay far under it.
pub const CONTROL_MAX_ANSWER: u64 = 16 << 20;
/// A data request, from the call to its answer, retries included.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(2);
