//! The way onto the side stack and the ways back.
//!
//! Guarantees: [`enter`] calls a library's function on the side stack of the worker whose block gs points to. It returns
//! once, either because the function returned or because the thread was landed: [`land`] from a host call, or the signal
//! handler setting the thread's instruction pointer to [`landing_pad`]. Between the two stores of `state` the block holds
//! all that a landing needs, so it is right at every instruction.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::sync::atomic::{Ordering, compiler_fence};

use sandstorm_api::abi;

use super::KillCause;
use super::block::{Block, HOST, TENANT};

/// What `start` and `poll` of a library look like.
pub(super) type Entry = unsafe extern "C" fn(*mut u8, *mut abi::Invocation) -> u32;

/// Answers of [`enter`] from here on are landings: this plus the cause's number.
pub(super) const LANDED: u32 = 0x100;

/// Calls `function(slot, invocation)` on the side stack; answers what it returned, or a landing.
///
/// # Safety
/// The calling thread has an engine and is in `HOST` state; `function` takes these arguments; whatever it leaves behind
/// when it is landed halfway is nobody's business.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn enter(function: Entry, slot: *mut u8, invocation: *mut abi::Invocation) -> u32 {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov gs:[{saved}], rsp",
        "mov rsp, gs:[{top}]",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov dword ptr gs:[{state}], {tenant}",
        "call rax",
        "mov dword ptr gs:[{state}], {host}",
        "mov rsp, gs:[{saved}]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        saved = const offset_of!(Block, saved_rsp),
        top = const offset_of!(Block, stack_top),
        state = const offset_of!(Block, state),
        tenant = const TENANT,
        host = const HOST,
    )
}

/// Returns from the [`enter`] under way with what is in eax. Reached by a jump only, in `HOST` state.
///
/// # Safety
/// Never called; jumped to while the block's `saved_rsp` is that of the `enter` under way.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn landing_pad() {
    std::arch::naked_asm!(
        "cld",
        "fninit",
        "fldcw gs:[{x87}]",
        "ldmxcsr gs:[{mxcsr}]",
        "mov rsp, gs:[{saved}]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        x87 = const offset_of!(Block, x87_control),
        mxcsr = const offset_of!(Block, mxcsr),
        saved = const offset_of!(Block, saved_rsp),
    )
}

/// Leaves the side stack from a host call; the [`enter`] under way answers with the cause.
///
/// # Safety
/// The calling thread is on the side stack of `block`, its own, in `CALL` state, and no value that has a `Drop` or holds
/// a lock is alive on that stack above the library's frames.
pub(super) unsafe fn land(block: &Block, cause: KillCause) -> ! {
    block.pending.store(0, Ordering::Relaxed);
    block.state.store(HOST, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // SAFETY: this function's contract is the pad's.
    unsafe {
        std::arch::asm!("jmp {}", sym landing_pad, in("eax") LANDED + cause as u32, options(noreturn));
    }
}
