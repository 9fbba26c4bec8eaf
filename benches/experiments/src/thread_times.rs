//! The CPU time of this process's threads, by name: what each part of a server in this process costs.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// The CPU time that threads of each name have used so far, nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadTimes(HashMap<String, u64>);

/// The folder of this process's threads.
const TASKS: &str = "/proc/self/task";

impl ThreadTimes {
    /// Reads the times of all threads that there are now. A thread that ends meanwhile is left out.
    pub(super) fn read() -> ThreadTimes {
        let mut times: HashMap<String, u64> = HashMap::new();
        for entry in fs::read_dir(TASKS).into_iter().flatten().flatten() {
            let read = |file: &str| fs::read_to_string(entry.path().join(file)).ok();
            let (Some(name), Some(statistics)) = (read("comm"), read("schedstat")) else { continue };
            if let Some(on_cpu_ns) = first_number(&statistics) {
                *times.entry(name.trim_end().to_owned()).or_default() += on_cpu_ns;
            }
        }
        ThreadTimes(times)
    }

    /// The time since an earlier reading of the threads whose names begin so; zero where the kernel tells none.
    pub(super) fn since(&self, earlier: &ThreadTimes, prefix: &str) -> Duration {
        let used_ns =
            |(name, now_ns): (&String, &u64)| now_ns.saturating_sub(earlier.0.get(name).copied().unwrap_or(0));
        Duration::from_nanos(self.0.iter().filter(|(name, _)| name.starts_with(prefix)).map(used_ns).sum())
    }
}

/// The first number of a line of `schedstat`: nanoseconds on a processor.
fn first_number(statistics: &str) -> Option<u64> {
    statistics.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn a_thread_that_computes_is_found_by_its_name() {
        let (before, stop) = (ThreadTimes::read(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let spin = || {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            };
            std::thread::Builder::new().name("computing-7".into()).spawn_scoped(scope, spin).unwrap();
            while ThreadTimes::read().since(&before, "computing").is_zero() {
                std::thread::yield_now();
            }
            assert!(ThreadTimes::read().since(&before, "idle").is_zero());
            stop.store(true, Relaxed);
        });
    }

    #[test]
    fn a_line_without_a_number_tells_nothing() {
        assert_eq!(first_number("1034294 2167313 22\n"), Some(1_034_294));
        assert_eq!(first_number(""), None);
        assert_eq!(first_number("- 1"), None);
    }
}
