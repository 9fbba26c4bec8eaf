//! Threads that run as soon as they are woken, even where others keep every processor busy: those that run for
//! microseconds at a time, and for which others wait.
//!
//! Guarantees: requests to the kernel about the calling thread alone. What it does not grant is done without.
#![allow(unsafe_code)]

use crate::limits::{LOG_WRITER_PRIORITY, LOG_WRITER_SLICE_US};

/// Has the calling thread, which writes the log of changes, run as soon as it is woken. Each answer that waits for the
/// disk waits for it twice: until it begins to write, and until it tells that it has written.
pub fn run_log_writer_when_woken() {
    run_when_woken(LOG_WRITER_PRIORITY, LOG_WRITER_SLICE_US);
}

/// Has the calling thread run as soon as it is woken: as a real-time thread of that priority, 1 to 99, where the kernel
/// grants it, else with slices of so many microseconds, which are favoured among equals. Its timers are exact to a
/// microsecond.
pub(super) fn run_when_woken(priority: i32, slice_us: u64) {
    // SAFETY: plain requests about the calling thread, with structs that outlive the calls.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_usize);
        let wanted = libc::sched_param { sched_priority: priority };
        if libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const wanted) == 0 {
            return;
        }
    }
    favour(slice_us);
}

/// Has the kernel prefer the calling thread for its short requests of processor time.
fn favour(slice_us: u64) {
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: as above. It keeps the niceness that it has.
    unsafe {
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        let request = SchedAttr { size, nice, runtime_ns: slice_us * 1_000, ..SchedAttr::default() };
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const request, 0);
    }
}

/// The kernel's `struct sched_attr`, its first version.
#[repr(C)]
#[derive(Debug, Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of the calling thread.
    fn granted() -> SchedAttr {
        let mut found = SchedAttr::default();
        // SAFETY: a plain question about the calling thread, with room for the answer.
        let answer =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, size_of::<SchedAttr>() as u32, 0) };
        assert_eq!(answer, 0);
        found
    }

    #[test]
    fn a_thread_is_real_time_or_favoured_and_others_are_as_before() {
        let (before, during) = std::thread::spawn(|| {
            let before = granted();
            run_log_writer_when_woken();
            (before, granted())
        })
        .join()
        .expect("it ends");
        assert_eq!(before.policy, libc::SCHED_OTHER as u32);
        match during.policy as i32 {
            libc::SCHED_FIFO => assert_eq!(during.priority, LOG_WRITER_PRIORITY as u32),
            // A kernel before 6.12 knows no slices, and tells 0.
            policy => {
                let slice_ns = LOG_WRITER_SLICE_US * 1_000;
                assert!(policy == libc::SCHED_OTHER && [0, slice_ns].contains(&during.runtime_ns), "{during:?}");
            }
        }
        assert_eq!(granted().policy, libc::SCHED_OTHER as u32, "this thread is as it was");
        std::thread::spawn(|| {
            favour(LOG_WRITER_SLICE_US);
            let slice_ns = granted().runtime_ns;
            assert!([0, LOG_WRITER_SLICE_US * 1_000].contains(&slice_ns), "{slice_ns}");
        })
        .join()
        .expect("it ends");
    }
}
