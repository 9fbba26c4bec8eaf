//! Counts a part of a program's instructions by running it step by step, as a debugger does. Valgrind cannot run
//! sandboxed code: it does not know the instruction that sets gs.
//!
//! The child calls [`trace_me`] and then [`mark`] before and after the part. Only its own thread is counted, without
//! what the kernel does for it, but with handlers of signals.

use std::io;
use std::process::Command;

/// The exit code of a child that the operating system does not let its parent look at.
pub(super) const NOT_TRACED: u8 = 77;

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Lets the parent look at the calling thread.
pub(super) fn trace_me() -> io::Result<()> {
    // SAFETY: it changes nothing of this process's memory.
    checked(unsafe { libc::ptrace(libc::PTRACE_TRACEME) }).map(drop)
}

/// Begins or ends the part.
pub(super) fn mark() {
    // SAFETY: the parent, which is told of it, lets this thread go on.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Waits until a child stops; returns the signal that it stops for, or an error if it has ended.
fn wait(child: libc::pid_t) -> io::Result<libc::c_int> {
    let mut status = 0;
    // SAFETY: the status is a local; the child is this thread's own.
    checked(unsafe { libc::waitpid(child, &raw mut status, 0) }.into())?;
    if libc::WIFSTOPPED(status) {
        return Ok(libc::WSTOPSIG(status));
    }
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == libc::c_int::from(NOT_TRACED) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Err(io::Error::other(format!("it ended, with status {status:#x}")))
}

/// Lets a stopped child go on, with a signal or without (0).
fn resume(request: libc::c_uint, child: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
    let (nowhere, signal) = (std::ptr::null_mut::<libc::c_void>(), libc::c_long::from(signal));
    // SAFETY: a stopped child of this thread; nothing of this process changes.
    checked(unsafe { libc::ptrace(request, child, nowhere, signal) }).map(drop)
}

/// Counts the instructions of the part that the program marks.
///
/// # Errors
/// The operating system's; the program ends too early; `PermissionDenied`: it may not be looked at.
pub(super) fn count(program: &mut Command) -> io::Result<u64> {
    let mut child = program.spawn()?;
    let counted = count_marked(child.id() as libc::pid_t);
    // It has no more to do, if it is still there.
    let _it_has_ended = child.kill().and_then(|()| child.wait());
    counted
}

fn count_marked(child: libc::pid_t) -> io::Result<u64> {
    let mut signal = wait(child)?;
    while signal != libc::SIGSTOP {
        resume(libc::PTRACE_CONT, child, signal)?;
        signal = wait(child)?;
    }
    let (mut counted, mut last, mut pass_on) = (0, 0, 0);
    loop {
        resume(libc::PTRACE_SINGLESTEP, child, pass_on)?;
        match wait(child)? {
            libc::SIGSTOP => return Ok(counted),
            libc::SIGTRAP => {
                let next = next_instruction(child)?;
                // An instruction that repeats itself stops each time, but is one.
                counted += u64::from(next != last);
                (last, pass_on) = (next, 0);
            }
            other => pass_on = other,
        }
    }
}

/// The address of a stopped child's next instruction.
fn next_instruction(child: libc::pid_t) -> io::Result<libc::c_long> {
    const AT: usize = std::mem::offset_of!(libc::user, regs) + std::mem::offset_of!(libc::user_regs_struct, rip);
    let (at, nothing) = (std::ptr::without_provenance_mut::<libc::c_void>(AT), std::ptr::null_mut::<libc::c_void>());
    // SAFETY: a stopped child of this thread; nothing of this process changes.
    checked(unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, child, at, nothing) })
}
