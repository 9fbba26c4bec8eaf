//! The process-wide signal handlers: the watchdog's signal, which switches a library's code out, and the processor's
//! faults, which end it.
//!
//! Guarantees: handlers only touch the calling thread's own block, the saved context and, where code is switched out,
//! the unused part of the side stack that it runs on. They call nothing that is not async-signal-safe. A thread without
//! an engine is recognised by a thread-local pointer of the executable itself (no lazy initialisation, no destructor),
//! never by reading through gs. Faults of the server's own code get the action that was there before, so real bugs
//! still end the process loudly.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use super::clock;
use super::code_sampling::take_sample;
use super::guest_registers::GuestRegisters;
use super::mapping::GuardedMapping;
use super::sandbox_switch::{InterruptedCode, interrupted_at, sandboxed_landing_pad, sandboxed_switched_out};
use super::stack_switch::{RED_ZONE_BYTES, SIGNAL_FRAME_BYTES, SWITCH_BYTES, TRAPPED, landing_pad, switched_out};
use super::worker_block::{STATE_GUEST, STATE_HOST, STATE_HOST_CALL, WorkerBlock};
use crate::limits::{SIGNAL_STACK_BYTES, STACK_GUARD_BYTES, SWITCH_SIGNAL_OFFSET};
use sandstorm_extension::KillCause;

thread_local! {
    /// The calling thread's block; null without an engine.
    static BLOCK: Cell<*const WorkerBlock> = const { Cell::new(null()) };
}

/// Faults that end an invocation where its library's code caused them.
const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

/// The faults' former actions, in the order of [`FAULTS`].
static PREVIOUS_ACTIONS: OnceLock<[libc::sigaction; FAULTS.len()]> = OnceLock::new();

/// The signal that the watchdog sends to request a switch of a poll.
pub(super) fn switch_signal() -> c_int {
    libc::SIGRTMIN() + SWITCH_SIGNAL_OFFSET
}

/// Installs the handlers; once, further calls do nothing.
///
/// # Errors
/// The operating system's error.
pub fn install_process_handlers() -> io::Result<()> {
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
    PREVIOUS_ACTIONS.get_or_init(|| previous);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: sets of our own.
    unsafe {
        libc::sigemptyset(&raw mut action.sa_mask);
        for signal in FAULTS.into_iter().chain([switch_signal()]) {
            libc::sigaddset(&raw mut action.sa_mask, signal);
        }
    }
    for signal in FAULTS.into_iter().chain([switch_signal()]) {
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
    // SAFETY: the pointer is null or the block of this thread's engine, which is alive while it is set. The kernel
    // gives valid `info` and `context`.
    unsafe {
        if signal == switch_signal() {
            if let Some(block) = block.as_ref() {
                if block.sample.is_wanted() {
                    take_sample(block, registers_of(context.cast()));
                }
                on_preempt_signal(block, context.cast());
            }
        } else {
            on_fault(block.as_ref(), signal, info, context.cast());
        }
        *libc::__errno_location() = errno;
    }
}

/// Where the interrupted code was.
///
/// # Safety
/// A valid context.
unsafe fn registers_of(context: *const ucontext_t) -> GuestRegisters {
    // SAFETY: this function's contract.
    let registers = unsafe { &(*context).uc_mcontext.gregs };
    let register = |number: c_int| registers[number as usize] as usize;
    let (stack, frame) = (register(libc::REG_RSP), register(libc::REG_RBP));
    GuestRegisters { instruction: register(libc::REG_RIP), stack, frame }
}

/// Switches out the poll that the watchdog has asked for, if it is still under way.
///
/// # Safety
/// Called by the handler on the block's own thread, with the context that was interrupted.
unsafe fn on_preempt_signal(block: &WorkerBlock, context: *mut ucontext_t) {
    let state = block.state.load(Ordering::Relaxed);
    // A signal may come late: it is for one poll only.
    if state == STATE_HOST || block.preempt_sequence.load(Ordering::Acquire) != block.sequence.load(Ordering::Relaxed) {
        return;
    }
    block.preempt_sequence.store(0, Ordering::Release);
    if state == STATE_HOST_CALL {
        block.pending.store(1, Ordering::Relaxed);
        return;
    }
    // SAFETY: this function's contract; tenant state.
    unsafe {
        if block.guest_base.load(Ordering::Relaxed) != 0 && !is_at_module(block, context) {
            return;
        }
        if !switch_context(block, context) && refused_for_too_long(block) {
            trap_context(block, context, KillCause::TotalBudget);
        }
    }
}

/// Makes the interrupted code continue with the switch, which keeps all its registers on its stack and returns to it
/// once it is resumed. The switch is not within the handler: its frame would stay below those of later signals.
/// `false`: the stack has no room for that, and nothing is changed.
///
/// # Safety
/// As for [`on_preempt_signal`]; tenant state.
unsafe fn switch_context(block: &WorkerBlock, context: *mut ucontext_t) -> bool {
    // SAFETY: the context is ours to change until the handler returns.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let stack = block.stack_low.load(Ordering::Relaxed)..=block.stack_top.load(Ordering::Relaxed);
    let pointer = registers[libc::REG_RSP as usize] as usize;
    let needed = SWITCH_BYTES + block.xstate_bytes;
    let closed_end = block.closed_end.load(Ordering::Relaxed);
    if closed_end != 0 && pointer < closed_end + needed && !block.open_stack() {
        return false;
    }
    let room = pointer.saturating_sub(*stack.start());
    if !stack.contains(&pointer) || room < needed {
        return false;
    }
    let frame = pointer - RED_ZONE_BYTES - SIGNAL_FRAME_BYTES;
    let words = std::ptr::with_exposed_provenance_mut::<i64>(frame);
    // SAFETY: within the stack, as just checked, and below what the interrupted code uses of it. The frame may not be
    // aligned where that code is not.
    unsafe {
        words.write_unaligned(registers[libc::REG_EFL as usize]);
        words.add(1).write_unaligned(registers[libc::REG_RIP as usize]);
    }
    block.pending.store(0, Ordering::Relaxed);
    block.state.store(STATE_HOST, Ordering::Relaxed);
    registers[libc::REG_RSP as usize] = frame as i64;
    let is_native = block.guest_base.load(Ordering::Relaxed) == 0;
    let switch = if is_native { switched_out as *const () } else { sandboxed_switched_out as *const () };
    registers[libc::REG_RIP as usize] = switch as i64;
    registers[libc::REG_EFL as usize] &= !CLEARED_FLAGS;
    true
}

/// Returns whether sandboxed code was interrupted where it can be switched out: in its own instructions. On the way to
/// the host's function it is at the call's end; on the way back the return is completed here. Around its entry and its
/// resumption nothing is changed, and the watchdog asks again.
///
/// # Safety
/// As for [`on_preempt_signal`]; tenant state, sandboxed code.
unsafe fn is_at_module(block: &WorkerBlock, context: *mut ucontext_t) -> bool {
    // SAFETY: the context is ours to change until the handler returns.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    match interrupted_at(registers[libc::REG_RIP as usize] as usize) {
        InterruptedCode::Module => true,
        InterruptedCode::Between => false,
        InterruptedCode::Call => {
            block.pending.store(1, Ordering::Relaxed);
            false
        }
        InterruptedCode::Return => {
            let top = std::ptr::with_exposed_provenance::<i64>(registers[libc::REG_RSP as usize] as usize);
            // SAFETY: the module's call has pushed its return address, which is on top.
            registers[libc::REG_RIP as usize] = unsafe { top.read_unaligned() };
            registers[libc::REG_RSP as usize] += 8;
            registers[libc::REG_R11 as usize] = 0;
            true
        }
    }
}

/// Counts how long a poll has continued that could not be switched out; returns whether that is all that its invocation
/// has left. The time between two signals counts as two slices at most: the processor may have been taken away
/// meanwhile.
fn refused_for_too_long(block: &WorkerBlock) -> bool {
    let sequence = block.sequence.load(Ordering::Relaxed);
    if block.refused_for.swap(sequence, Ordering::Relaxed) != sequence {
        block.refused_ticks.store(0, Ordering::Relaxed);
        block.refused_at.store(block.started.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let now = clock::ticks();
    let passed = now.saturating_sub(block.refused_at.swap(now, Ordering::Relaxed));
    let most = block.tick.ticks(block.limit_ns.load(Ordering::Relaxed).saturating_mul(2));
    let all = block.refused_ticks.load(Ordering::Relaxed).saturating_add(passed.min(most));
    block.refused_ticks.store(all, Ordering::Relaxed);
    block.tick.ns(all) >= block.left_ns.load(Ordering::Relaxed)
}

/// # Safety
/// As for [`on_preempt_signal`]; `info` is the signal's.
unsafe fn on_fault(block: Option<&WorkerBlock>, signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    // SAFETY: a valid `info`.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Codes above 0 are the kernel's own: a real fault of this thread, not a signal that a process sent.
    if let Some(block) = block.filter(|block| code > 0 && block.state.load(Ordering::Relaxed) == STATE_GUEST) {
        // SAFETY: null, or the memory of the invocation that this thread polls.
        let memory = unsafe { block.guest_memory.load(Ordering::Relaxed).as_ref() };
        if signal == libc::SIGSEGV && memory.is_some_and(|memory| memory.grow(address)) {
            // The instruction is executed again.
            return;
        }
        let closed = block.stack_low.load(Ordering::Relaxed)..block.closed_end.load(Ordering::Relaxed);
        if signal == libc::SIGSEGV && closed.contains(&address) && block.open_stack() {
            return;
        }
        let cause = match signal {
            libc::SIGSEGV if memory.is_some_and(|memory| memory.is_stack_overflow(address)) => KillCause::StackOverflow,
            libc::SIGFPE => KillCause::DivisionByZero,
            libc::SIGILL | libc::SIGTRAP => KillCause::IllegalInstruction,
            _ if is_in_stack_guard(block, address) => KillCause::StackOverflow,
            _ => KillCause::MemoryFault,
        };
        // SAFETY: this function's contract; tenant state.
        unsafe { trap_context(block, context, cause) };
        return;
    }
    // The server's own fault: the former action handles it when the instruction faults again.
    let previous = PREVIOUS_ACTIONS.get().zip(FAULTS.iter().position(|fault| *fault == signal));
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

/// Returns whether an address lies in the guard of the stack that the thread runs on.
fn is_in_stack_guard(block: &WorkerBlock, address: usize) -> bool {
    (block.guard.load(Ordering::Relaxed)..block.stack_low.load(Ordering::Relaxed)).contains(&address)
}

/// Direction, alignment check, trap: flags that library code could have set and the server's must not run with.
const CLEARED_FLAGS: i64 = 1 << 10 | 1 << 18 | 1 << 8;

/// Makes the interrupted code continue at the landing pad.
///
/// # Safety
/// As for [`on_preempt_signal`]; the block is in tenant state, so its saved stack pointer is that of the `enter` under
/// way.
unsafe fn trap_context(block: &WorkerBlock, context: *mut ucontext_t, cause: KillCause) {
    block.pending.store(0, Ordering::Relaxed);
    block.state.store(STATE_HOST, Ordering::Relaxed);
    let is_native = block.guest_base.load(Ordering::Relaxed) == 0;
    let pad = if is_native { landing_pad as *const () } else { sandboxed_landing_pad as *const () };
    // SAFETY: a valid context.
    let at = unsafe { registers_of(context) };
    block.trap_instruction.store(at.instruction, Ordering::Relaxed);
    block.trap_stack.store(at.stack, Ordering::Relaxed);
    block.trap_frame.store(at.frame, Ordering::Relaxed);
    // SAFETY: the context is ours to change until the handler returns.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize] = pad as i64;
    registers[libc::REG_RSP as usize] = block.saved_rsp.load(Ordering::Relaxed) as i64;
    registers[libc::REG_RAX as usize] = i64::from(TRAPPED + cause as u32);
    registers[libc::REG_EFL as usize] &= !CLEARED_FLAGS;
}

/// A thread's settings for its engine: gs, a stack for handlers, and a signal mask that keeps other signals' handlers
/// off the side stack. Dropping it, on the same thread, restores the former settings.
#[derive(Debug)]
pub(super) struct SignalGuard {
    /// The block that the thread's handlers use. A signal that was sent before the engine unregistered may still arrive
    /// until `drop` is through, so the block outlives it.
    _block: Arc<WorkerBlock>,
    previous_stack: libc::stack_t,
    previous_mask: libc::sigset_t,
    _signal_stack: GuardedMapping,
}

impl SignalGuard {
    /// Arms the calling thread.
    ///
    /// # Safety
    /// The value is dropped on the same thread.
    pub(super) unsafe fn install(block: Arc<WorkerBlock>) -> io::Result<SignalGuard> {
        if !BLOCK.get().is_null() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "this thread has an engine already"));
        }
        install_process_handlers()?;
        // SAFETY: reading the auxiliary vector.
        let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
        let signal_stack = GuardedMapping::new(frame + SIGNAL_STACK_BYTES, STACK_GUARD_BYTES)?;
        let stack = libc::stack_t { ss_sp: signal_stack.low().cast(), ss_flags: 0, ss_size: signal_stack.len() };
        // SAFETY: all-zero is valid for both plain structs.
        let mut previous_stack: libc::stack_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: as above.
        let mut previous_mask: libc::sigset_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the new stack lives until `drop` has put the previous one back; gs of this thread has no other user
        // on this platform (thread-local storage is behind fs).
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
            for signal in FAULTS.into_iter().chain([switch_signal()]) {
                libc::sigdelset(&raw mut mask, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, &raw mut previous_mask);
        }
        BLOCK.set(Arc::as_ptr(&block));
        Ok(SignalGuard { _block: block, previous_stack, previous_mask, _signal_stack: signal_stack })
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        BLOCK.set(null());
        // SAFETY: the settings from before the thread was armed; the thread is in host code, so gs is not needed any
        // more.
        unsafe {
            let _gs_stays = set_gs(0);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.previous_mask, null_mut());
            libc::sigaltstack(&raw const self.previous_stack, null_mut());
        }
    }
}

/// A block must not go while the handlers of its thread look at it.
#[cfg(test)]
impl Drop for WorkerBlock {
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
