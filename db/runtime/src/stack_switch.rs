//! The switch onto a side stack and the returns from it.
//!
//! Guarantees: [`enter`] calls a library's function on the side stack that the block of the thread names. [`resume`]
//! continues one that was switched out, on this thread or another. Each returns once: because the function returned,
//! because the thread was landed, or because the function was switched out ([`switched_out`]). A landing is [`trap`]
//! from a host call, or the signal handler setting the instruction pointer to [`landing_pad`]. Between the two stores
//! of `state` the block holds all that these need, so they are right at every instruction. Code of this file on a side
//! stack reaches the block through gs in single instructions: the next instruction may run on another thread.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::sync::atomic::{Ordering, compiler_fence};

use sandstorm_api::abi;

use super::worker_block::{STATE_GUEST, STATE_HOST, WorkerBlock};
use super::xstate::{MXCSR_OFFSET, VECTOR_COMPONENTS, VECTORS_AVX512, VECTORS_UNKNOWN};
use sandstorm_extension::KillCause;

/// The type of a library's `start` and `poll`.
pub(super) type GuestFunction = unsafe extern "C" fn(*mut u8, *mut abi::InvocationHeader) -> u32;

/// Answers of [`enter`] from here on are landings: this plus the cause's number.
pub(super) const TRAPPED: u32 = 0x100;
/// Answer of [`enter`]: the function was switched out; the block's `context` is the address where to resume it.
pub(super) const SWITCHED_OUT: u32 = 0x200;

/// Bytes below the stack pointer that the code running there may use without moving it.
pub(super) const RED_ZONE_BYTES: usize = 128;
/// The words that the handler puts below that: flags and instruction pointer.
pub(super) const SIGNAL_FRAME_BYTES: usize = 16;
/// The stack bytes of [`switched_out`] beside the extended registers: the frame, fifteen registers, a word of its own
/// in a line of 64 bytes, and the cost of alignment.
pub(super) const SWITCH_BYTES: usize = RED_ZONE_BYTES + SIGNAL_FRAME_BYTES + 15 * 8 + 64 + 64;

/// The address where a switched-out function continues, on the stack that it ran on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedContext {
    pub(super) at: *mut u8,
}

/// Pushes the registers that a function keeps for its caller.
macro_rules! push_kept {
    () => {
        "push rbp
        push rbx
        push r12
        push r13
        push r14
        push r15"
    };
}
pub(super) use push_kept;

/// The reverse of [`push_kept`].
macro_rules! pop_kept {
    () => {
        "pop r15
        pop r14
        pop r13
        pop r12
        pop rbx
        pop rbp"
    };
}
pub(super) use pop_kept;

/// The beginning of `enter` and `resume`.
macro_rules! keep {
    () => {
        concat!(push_kept!(), "\nmov gs:[{saved}], rsp")
    };
}

/// The end of `enter` and `resume`: back on the worker's stack, with the answer in eax.
macro_rules! leave {
    () => {
        concat!("mov rsp, gs:[{saved}]\n", pop_kept!(), "\nret")
    };
}

/// Calls `function(slot, invocation)` on the side stack; returns the function's answer, a landing, or that it was
/// switched out.
///
/// # Safety
/// The calling thread has an engine and is in `STATE_HOST` state; `function` takes these arguments; nothing depends on
/// the state that it leaves behind when it is landed halfway.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn enter(
    function: GuestFunction,
    slot: *mut u8,
    invocation: *mut abi::InvocationHeader,
) -> u32 {
    std::arch::naked_asm!(
        keep!(),
        "mov rsp, gs:[{top}]",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov dword ptr gs:[{state}], {tenant}",
        "call rax",
        "mov dword ptr gs:[{state}], {host}",
        leave!(),
        saved = const offset_of!(WorkerBlock, saved_rsp),
        top = const offset_of!(WorkerBlock, stack_top),
        state = const offset_of!(WorkerBlock, state),
        tenant = const STATE_GUEST,
        host = const STATE_HOST,
    )
}

/// As [`enter`], with every other register in its initial state: no trace of earlier code is left in one.
///
/// XRSTOR from an image of initial registers sets all extended ones, whichever this processor has; it takes some
/// hundred nanoseconds. Where the processor says that none but vector and mask registers are in use, a few instructions
/// clear these, and MXCSR is loaded.
///
/// # Safety
/// As for [`enter`].
#[unsafe(naked)]
pub(super) unsafe extern "C" fn enter_clean(
    function: GuestFunction,
    slot: *mut u8,
    invocation: *mut abi::InvocationHeader,
) -> u32 {
    std::arch::naked_asm!(
        keep!(),
        "mov rsp, gs:[{top}]",
        "mov r8, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov r9, gs:[{initial}]",
        "cmp dword ptr gs:[{vectors}], {unknown}",
        "je 3f",
        // The components that are in use. Others are in their initial state.
        "mov ecx, 1",
        "xgetbv",
        "and eax, gs:[{mask}]",
        "and edx, gs:[{mask} + 4]",
        "and eax, {others}",
        "or eax, edx",
        "jnz 3f",
        "vzeroall",
        "ldmxcsr [r9 + {mxcsr}]",
        "cmp dword ptr gs:[{vectors}], {avx512}",
        "jne 4f",
        ".irp i,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vpxord zmm\\i, zmm\\i, zmm\\i
        .endr
        .irp i,0,1,2,3,4,5,6,7
        kxorw k\\i, k\\i, k\\i
        .endr",
        "jmp 4f",
        // All extended registers, whichever this processor has.
        "3:",
        "mov eax, gs:[{mask}]",
        "mov edx, gs:[{mask} + 4]",
        "xrstor64 [r9]",
        "4:",
        "mov rax, r8",
        "xor ebx, ebx",
        "xor ecx, ecx",
        "xor edx, edx",
        "xor ebp, ebp",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor r10d, r10d",
        "xor r11d, r11d",
        "xor r12d, r12d",
        "xor r13d, r13d",
        "xor r14d, r14d",
        "xor r15d, r15d",
        "mov dword ptr gs:[{state}], {tenant}",
        "call rax",
        "mov dword ptr gs:[{state}], {host}",
        leave!(),
        saved = const offset_of!(WorkerBlock, saved_rsp),
        top = const offset_of!(WorkerBlock, stack_top),
        state = const offset_of!(WorkerBlock, state),
        initial = const offset_of!(WorkerBlock, initial),
        mask = const offset_of!(WorkerBlock, xstate_mask),
        vectors = const offset_of!(WorkerBlock, vectors),
        unknown = const VECTORS_UNKNOWN,
        avx512 = const VECTORS_AVX512,
        others = const !VECTOR_COMPONENTS as i32,
        mxcsr = const MXCSR_OFFSET,
        tenant = const STATE_GUEST,
        host = const STATE_HOST,
    )
}

/// Continues a function that was switched out; answers as [`enter`] does.
///
/// # Safety
/// The calling thread has an engine, is in `STATE_HOST` state, and its block names the stack that `context` lies on;
/// `context` came from [`switched_out`] and is resumed once.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn resume(context: *mut u8) -> u32 {
    std::arch::naked_asm!(
        keep!(),
        "mov rsp, rdi",
        "mov eax, gs:[{mask}]",
        "mov edx, gs:[{mask} + 4]",
        "xrstor64 [rsp + 64]",
        "mov rsp, [rsp]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        "pop rbp",
        "pop rbx",
        "pop rdx",
        "pop rcx",
        "pop rax",
        // A switch or a landing may come from here on.
        "mov dword ptr gs:[{state}], {tenant}",
        "popfq",
        // To the instruction that was interrupted, past the red zone that the frame was put below.
        "ret {red_zone}",
        saved = const offset_of!(WorkerBlock, saved_rsp),
        mask = const offset_of!(WorkerBlock, xstate_mask),
        state = const offset_of!(WorkerBlock, state),
        tenant = const STATE_GUEST,
        red_zone = const RED_ZONE_BYTES,
    )
}

/// Keeps all registers on the side stack, notes their address in the block's `context`, and makes the current [`enter`]
/// or [`resume`] answer [`SWITCHED_OUT`]. Reached by a jump only, in `STATE_HOST` state, with the stack pointer at a
/// frame: flags, then instruction pointer, then a red zone.
///
/// # Safety
/// Never called; jumped to on a side stack that has [`SWITCH_BYTES`] and the extended registers' bytes to spare.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn switched_out() {
    std::arch::naked_asm!(
        "push rax",
        "push rcx",
        "push rdx",
        "push rbx",
        "push rbp",
        "push rsi",
        "push rdi",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov rbp, rsp",
        "sub rsp, gs:[{bytes}]",
        "and rsp, -64",
        // XSAVE leaves most of the header as it is, and XRSTOR wants it zero.
        "xor eax, eax",
        "mov [rsp + 512], rax",
        "mov [rsp + 520], rax",
        "mov [rsp + 528], rax",
        "mov [rsp + 536], rax",
        "mov [rsp + 544], rax",
        "mov [rsp + 552], rax",
        "mov [rsp + 560], rax",
        "mov [rsp + 568], rax",
        "mov eax, gs:[{mask}]",
        "mov edx, gs:[{mask} + 4]",
        "xsave64 [rsp]",
        "sub rsp, 64",
        "mov [rsp], rbp",
        "mov gs:[{context}], rsp",
        "mov eax, {switched_out}",
        "jmp {landing_pad}",
        bytes = const offset_of!(WorkerBlock, xstate_bytes),
        mask = const offset_of!(WorkerBlock, xstate_mask),
        context = const offset_of!(WorkerBlock, context),
        switched_out = const SWITCHED_OUT,
        landing_pad = sym landing_pad,
    )
}

/// Switches the calling code out at the end of a host call; returns when it is resumed, in `STATE_GUEST` state.
///
/// # Safety
/// On the side stack, in `STATE_GUEST` or `STATE_HOST_CALL` state, with as many bytes to spare as [`switched_out`]
/// requires.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn switch_out_in_call() {
    std::arch::naked_asm!(
        "mov dword ptr gs:[{state}], {host}",
        "mov dword ptr gs:[{pending}], 0",
        "lea rax, [rip + 2f]",
        "sub rsp, {red_zone}",
        "push rax",
        "pushfq",
        "jmp {switched_out}",
        "2:",
        "ret",
        state = const offset_of!(WorkerBlock, state),
        pending = const offset_of!(WorkerBlock, pending),
        host = const STATE_HOST,
        red_zone = const RED_ZONE_BYTES,
        switched_out = sym switched_out,
    )
}

/// Returns from the current [`enter`] or [`resume`] with the answer in eax. Reached by a jump only, in `STATE_HOST`
/// state.
///
/// # Safety
/// Never called; jumped to while the block's `saved_rsp` is that of the call under way.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn landing_pad() {
    std::arch::naked_asm!(
        "cld",
        "fninit",
        "fldcw gs:[{x87}]",
        "ldmxcsr gs:[{mxcsr}]",
        leave!(),
        x87 = const offset_of!(WorkerBlock, x87_control),
        mxcsr = const offset_of!(WorkerBlock, mxcsr),
        saved = const offset_of!(WorkerBlock, saved_rsp),
    )
}

/// Leaves the side stack from a host call; the [`enter`] or [`resume`] under way answers with the cause.
///
/// # Safety
/// The calling thread is on the side stack of `block`, its own, in `STATE_HOST_CALL` state. No value that has a `Drop`
/// or holds a lock is alive on that stack above the library's frames.
pub(super) unsafe fn trap(block: &WorkerBlock, cause: KillCause) -> ! {
    block.pending.store(0, Ordering::Relaxed);
    let stack: usize;
    // SAFETY: copies a register. The library's frames lie above.
    unsafe { std::arch::asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
    block.trap_stack.store(stack, Ordering::Relaxed);
    block.state.store(STATE_HOST, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // SAFETY: this function's contract is the pad's.
    unsafe {
        std::arch::asm!("jmp {}", sym landing_pad, in("eax") TRAPPED + cause as u32, options(noreturn));
    }
}
