//! The clock of an interface.

use std::sync::Arc;
use std::time::Instant;

/// Microseconds since a moment that all workers share; never 0.
pub type StackClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The machine's monotonic time.
pub fn monotonic_clock() -> StackClock {
    let begin = Instant::now();
    // Starts at one second, so that a time of 0 ("never done") lies in the past.
    Arc::new(move || begin.elapsed().as_micros() as u64 + 1_000_000)
}
