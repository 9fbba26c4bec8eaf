//! The processors that belong to the workers, and those that all other threads use. Another thread on a worker's
//! processor costs its tenants up to a slice of the kernel's scheduler, some milliseconds.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may use: those that its first thread may use at the first call.
pub fn allowed_cpus() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let allowed = sched_getaffinity(Some(rustix::process::getpid())).or_else(|_| sched_getaffinity(None));
        allowed.map_or_else(|_| Vec::new(), |allowed| (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
    })
}

/// The processors that no worker is bound to, if each of `workers` workers has one of its own.
pub fn worker_free_cpus(workers: usize) -> &'static [usize] {
    allowed_cpus().get(workers..).unwrap_or_default()
}

/// Binds the calling thread to the processor of a worker. Several workers share one if there are too few.
pub fn bind_worker(index: usize) -> rustix::io::Result<()> {
    match allowed_cpus() {
        [] => Ok(()),
        all => bind_to(&all[index % all.len()..][..1]),
    }
}

/// Runs `act` on the processors that no worker is bound to, if there are any. The threads that it starts stay there,
/// and so do their own threads. The calling thread goes back to its processors.
pub fn run_off_worker_cpus<T>(workers: usize, act: impl FnOnce() -> T) -> T {
    /// Restores the thread's processors, even if `act` panics.
    struct AffinityGuard(CpuSet);
    impl Drop for AffinityGuard {
        fn drop(&mut self) {
            let _still_pinned = sched_setaffinity(None, &self.0);
        }
    }
    let free = worker_free_cpus(workers);
    let back = sched_getaffinity(None).ok().filter(|_| !free.is_empty() && bind_to(free).is_ok()).map(AffinityGuard);
    let done = act();
    drop(back);
    done
}

/// Binds the calling thread, and the threads that it will start, to these processors.
pub fn bind_to(processors: &[usize]) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    processors.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed_processors() -> Vec<usize> {
        let set = sched_getaffinity(None).expect("a set");
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    #[test]
    fn what_is_started_beside_workers_stays_off_their_processors() {
        let before = allowed_processors();
        for workers in 0..allowed_cpus().len() + 2 {
            let (own, child) = run_off_worker_cpus(workers, || {
                let child = std::thread::spawn(|| std::thread::spawn(allowed_processors).join().expect("a thread"));
                (allowed_processors(), child.join().expect("a thread"))
            });
            let expected = if workers < allowed_cpus().len() { &allowed_cpus()[workers..] } else { &before };
            assert_eq!((&own[..], &child[..]), (expected, expected), "{workers} workers");
            assert_eq!(allowed_processors(), before, "the caller is back");
        }
    }

    #[test]
    fn workers_take_processors_in_turn() {
        for index in 0..2 * allowed_cpus().len() {
            let bound =
                std::thread::spawn(move || bind_worker(index).map(|()| allowed_processors())).join().expect("a thread");
            assert_eq!(bound.expect("it may"), [allowed_cpus()[index % allowed_cpus().len()]]);
        }
    }
}
