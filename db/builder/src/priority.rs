//! Scheduling of compilers: they get the processor time that the workers leave over.
//!
//! Builders run as batch work of the lowest weight (nice 19). Compilers start under `SCHED_IDLE`, which yields to
//! everything. Where all processors spin, that would take minutes, so a compiler that has got next to nothing for a
//! while is raised to nice 19 as well. An unprivileged builder cannot raise them, and starts them there.
//!
//! Guarantees: the unsafe blocks hold system calls that take numbers and one structure on the stack; they change how
//! threads are scheduled and nothing else.
#![allow(unsafe_code)]

use rustix::process::nice;

/// `ioprio_set`'s "this process" and "only when the disk is idle".
const IOPRIO_WHO_PROCESS: libc::c_long = 1;
const IOPRIO_IDLE: libc::c_long = 3 << 13;
/// The lowest weight.
const NICE: i32 = 19;

/// Lowers the priority of this process, and of all that it starts, below the server's. Settings that the system refuses
/// stay as they were: a builder that cannot lower its priority still builds.
pub(super) fn lower_priority() {
    let _refused = nice(NICE);
    set_policy(0, libc::SCHED_BATCH);
    // SAFETY: three numbers; affects this thread's disk priority alone, which children inherit.
    let _refused = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE) };
}

/// Lets all other threads on the machine run before this thread and its children.
pub(super) fn set_idle_policy() {
    set_policy(0, libc::SCHED_IDLE);
}

/// Gives a thread its small CPU share even where all processors are busy; `false` if the system refuses.
pub(super) fn raise_from_idle(thread: i32) -> bool {
    set_policy(thread, libc::SCHED_BATCH)
}

/// Returns whether this process may raise a thread out of `SCHED_IDLE`: tried on a thread of its own.
pub(super) fn can_raise_from_idle() -> bool {
    let tried = std::thread::Builder::new().name("priority".to_owned()).spawn(|| {
        set_idle_policy();
        set_policy(0, libc::SCHED_BATCH)
    });
    tried.is_ok_and(|thread| thread.join().unwrap_or(false))
}

fn set_policy(thread: i32, policy: i32) -> bool {
    // SAFETY: all zeroes is a value of this plain structure.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = 0;
    // SAFETY: the structure outlives the call.
    unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) == 0 }
}
