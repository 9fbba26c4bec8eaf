//! The process-wide signal handlers that end a library's code: the kill signal and the processor's faults.
//!
//! Guarantees: handlers only touch the calling thread's own block and the saved context, and call nothing that is not
//! async-signal-safe. A thread without an engine is told by a thread-local pointer of the executable itself (no lazy
//! initialisation, no destructor), never by reading through gs. Faults of the server's own code get the action that was
//! there before, so real bugs still end the process loudly.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use super::block::{Block, CALL, HOST, TENANT};
use super::stack::Mapping;
use super::switch::{LANDED, landing_pad};
use super::{KillCause, clock};
use crate::limits::{KILL_SIGNAL_OFFSET, SIGNAL_STACK_BYTES, STACK_GUARD_BYTES};

thread_local! {
    /// The calling thread's block; null without an engine.
    static BLOCK: Cell<*const Block> = const { Cell::new(null()) };
}

/// Faults that end an invocation where it is the library's code that met them.
const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

/// What the faults' actions were before ours, in the order of [`FAULTS`].
static PREVIOUS: OnceLock<[libc::sigaction; FAULTS.len()]> = OnceLock::new();

/// The signal that the watchdog sends, to probe a poll or to end it: the block says which.
pub(super) fn kill_signal() -> c_int {
    libc::SIGRTMIN() + KILL_SIGNAL_OFFSET
}

/// Installs the handlers; once, further calls do nothing.
///
/// # Errors
/// What the operating system says.
pub fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| install_handlers().map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL)))
        .map_err(io::Error::from_raw_os_error)
}

fn install_handlers() -> io::Result<()> {
    // SAFETY: all-zero is a valid `sigaction`: default action, empty mask.
    let mut previous: [libc::sigaction; FAULTS.len()] = unsafe { MaybeUninit::zeroed().assume_init() };
    for (signal, action) in FAULTS.iter().zip(&mut previous) {
        set_action(*signal, None, Some(action))?;
    }
    PREVIOUS.get_or_init(|| previous);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: sets of our own.
    unsafe {
        libc::sigemptyset(&raw mut action.sa_mask);
        for signal in FAULTS.into_iter().chain([kill_signal()]) {
            libc::sigaddset(&raw mut action.sa_mask, signal);
        }
    }
    for signal in FAULTS.into_iter().chain([kill_signal()]) {
        set_action(signal, Some(&action), None)?;
    }
    Ok(())
}

fn set_action(
    signal: c_int,
    action: Option<&libc::sigaction>,
    previous: Option<&mut libc::sigaction>,
) -> io::Result<()> {
    let action = action.map_or(null(), std::ptr::from_ref);
    let previous = previous.map_or(null_mut(), std::ptr::from_mut);
    // SAFETY: valid or null pointers; our handler keeps to what a handler may do.
    match unsafe { libc::sigaction(signal, action, previous) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's own errno, kept for the code that was interrupted.
    let errno = unsafe { *libc::__errno_location() };
    let block = BLOCK.get();
    // SAFETY: the pointer is null or the block of this thread's engine, which is alive while it is set. The kernel gives
    // valid `info` and `context`.
    unsafe {
        if signal == kill_signal() {
            if let Some(block) = block.as_ref() {
                on_watchdog(block, context.cast());
            }
        } else {
            on_fault(block.as_ref(), signal, info, context.cast());
        }
        *libc::__errno_location() = errno;
    }
}

/// # Safety
/// Called by the handler on the block's own thread, with the context that was interrupted.
unsafe fn on_watchdog(block: &Block, context: *mut ucontext_t) {
    let (sequence, state) = (block.sequence.load(Ordering::Relaxed), block.state.load(Ordering::Relaxed));
    if block.kill_for.load(Ordering::Acquire) == sequence {
        match state {
            // SAFETY: this function's contract; tenant state.
            TENANT => unsafe { land_context(block, context, KillCause::SliceBudget) },
            CALL => block.pending.store(1, Ordering::Relaxed),
            _ => {}
        }
    } else if block.probe_for.load(Ordering::Acquire) == sequence
        && state != HOST
        && block.seen.load(Ordering::Relaxed) != sequence
    {
        // The clock is read by a system call that handlers may make.
        block.seen_ns.store(clock::cpu_ns(libc::CLOCK_THREAD_CPUTIME_ID), Ordering::Relaxed);
        block.seen.store(sequence, Ordering::Release);
    }
}

/// # Safety
/// As for [`on_watchdog`]; `info` is the signal's.
unsafe fn on_fault(block: Option<&Block>, signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    // SAFETY: a valid `info`.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Codes above 0 are the kernel's own: a real fault of this thread, not a signal that somebody sent.
    if let Some(block) = block.filter(|block| code > 0 && block.state.load(Ordering::Relaxed) == TENANT) {
        let cause = match signal {
            libc::SIGFPE => KillCause::DivisionByZero,
            libc::SIGILL | libc::SIGTRAP => KillCause::IllegalInstruction,
            _ if (block.guard.0..block.guard.1).contains(&address) => KillCause::StackOverflow,
            _ => KillCause::MemoryFault,
        };
        // SAFETY: this function's contract; tenant state.
        unsafe { land_context(block, context, cause) };
        return;
    }
    // The server's own fault: what was there before deals with it when the instruction faults again.
    let previous = PREVIOUS.get().zip(FAULTS.iter().position(|fault| *fault == signal));
    if let Some(previous) = previous.and_then(|(actions, index)| actions.get(index)) {
        // SAFETY: sigaction and tgkill are async-signal-safe; a sent signal does not repeat by itself.
        unsafe {
            libc::sigaction(signal, previous, null_mut());
            if code <= 0 {
                libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal);
            }
        }
    }
}

/// Makes the interrupted code continue at the landing pad.
///
/// # Safety
/// As for [`on_watchdog`]; the block is in tenant state, so its saved stack pointer is that of the `enter` under way.
unsafe fn land_context(block: &Block, context: *mut ucontext_t, cause: KillCause) {
    /// Direction, alignment check, trap: what library code could have left set.
    const FLAGS: i64 = 1 << 10 | 1 << 18 | 1 << 8;
    block.pending.store(0, Ordering::Relaxed);
    block.state.store(HOST, Ordering::Relaxed);
    // SAFETY: the context is ours to change until the handler returns.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize] = landing_pad as *const () as i64;
    registers[libc::REG_RSP as usize] = block.saved_rsp.load(Ordering::Relaxed) as i64;
    registers[libc::REG_RAX as usize] = i64::from(LANDED + cause as u32);
    registers[libc::REG_EFL as usize] &= !FLAGS;
}

/// What a thread gets with its engine: gs, a stack for handlers, and a signal mask that keeps other signals' handlers off
/// the side stack. Dropping it, on the same thread, restores what was there.
#[derive(Debug)]
pub(super) struct Armour {
    /// What the thread's handlers look at: a signal that was sent before the engine unregistered may still arrive until
    /// `drop` is through, so the block outlives it.
    _block: Arc<Block>,
    previous_stack: libc::stack_t,
    previous_mask: libc::sigset_t,
    _signal_stack: Mapping,
}

impl Armour {
    /// Arms the calling thread.
    ///
    /// # Safety
    /// The value is dropped on the same thread.
    pub(super) unsafe fn put_on(block: Arc<Block>) -> io::Result<Armour> {
        if !BLOCK.get().is_null() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "this thread has an engine already"));
        }
        install()?;
        // SAFETY: reading the auxiliary vector.
        let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
        let signal_stack = Mapping::new(frame + SIGNAL_STACK_BYTES, STACK_GUARD_BYTES)?;
        let stack = libc::stack_t { ss_sp: signal_stack.low().cast(), ss_flags: 0, ss_size: signal_stack.len() };
        // SAFETY: all-zero is valid for both plain structs.
        let mut previous_stack: libc::stack_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: as above.
        let mut previous_mask: libc::sigset_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the new stack lives until `drop` has put the previous one back; gs of this thread is used by nobody
        // else on this platform (thread-local storage is behind fs).
        unsafe {
            if libc::sigaltstack(&raw const stack, &raw mut previous_stack) != 0 {
                return Err(io::Error::last_os_error());
            }
            if let Err(error) = set_gs(Arc::as_ptr(&block).addr()) {
                libc::sigaltstack(&raw const previous_stack, null_mut());
                return Err(error);
            }
            let mut mask: libc::sigset_t = MaybeUninit::zeroed().assume_init();
            libc::sigfillset(&raw mut mask);
            for signal in FAULTS.into_iter().chain([kill_signal()]) {
                libc::sigdelset(&raw mut mask, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, &raw mut previous_mask);
        }
        BLOCK.set(Arc::as_ptr(&block));
        Ok(Armour { _block: block, previous_stack, previous_mask, _signal_stack: signal_stack })
    }
}

impl Drop for Armour {
    fn drop(&mut self) {
        BLOCK.set(null());
        // SAFETY: what was there when the thread was armed; the thread is in host code, so gs is not needed any more.
        unsafe {
            let _gs_stays = set_gs(0);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.previous_mask, null_mut());
            libc::sigaltstack(&raw const self.previous_stack, null_mut());
        }
    }
}

/// A block must not go while the handlers of its thread look at it.
#[cfg(test)]
impl Drop for Block {
    fn drop(&mut self) {
        assert!(!std::ptr::eq(BLOCK.get(), self), "the block of an armed thread is freed");
    }
}

/// Sets the calling thread's gs base.
///
/// # Safety
/// Nothing on this thread relies on the present one.
unsafe fn set_gs(base: usize) -> io::Result<()> {
    const ARCH_SET_GS: c_int = 0x1001;
    // SAFETY: this function's contract.
    match unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
