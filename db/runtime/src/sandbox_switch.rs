//! The switches into sandboxed code and out of it: as `stack_switch`, with the base of `gs` changed.
//!
//! While sandboxed code runs, gs is the base of its memory; everywhere else on a worker it is the worker's block.
//!
//! Guarantees: sandboxed code is entered with no trace of the host in a register that it can read. Where it calls the
//! host or returns, gs names the block of the thread that this happens on: the two instructions that load it are begun
//! anew if a switch comes between them ([`restart_point`]). The host's functions run on the worker's own stack, so
//! nothing of them is left on the module's.
#![allow(unsafe_code)]

use std::mem::offset_of;

use sandstorm_api::abi;
use sandstorm_extension::KillCause;
use sandstorm_sandbox::HostFunction;

use super::guest_memory::BLOCK_AT;
use super::stack_switch::{GuestFunction, TRAPPED, landing_pad, switch_out_in_call};
use super::worker_block::{CONTINUE_CALL, STATE_GUEST, STATE_HOST, STATE_HOST_CALL, WorkerBlock};

/// Reads the base of gs.
///
/// # Safety
/// The processor and the kernel allow it; a module was loaded, so they do.
#[inline(always)]
pub(super) unsafe fn gs_base() -> usize {
    let base: usize;
    // SAFETY: this function's contract.
    unsafe { std::arch::asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base
}

/// Makes gs name the worker's block.
///
/// # Safety
/// As for [`gs_base`]; `block` is the calling thread's.
#[inline(always)]
pub(super) unsafe fn set_gs_base(block: usize) {
    // SAFETY: this function's contract.
    unsafe { std::arch::asm!("wrgsbase {}", in(reg) block, options(nostack, preserves_flags)) };
}

unsafe extern "C" {
    // Labels of the code below: the instruction that names the worker's block, and the one that makes gs its address.
    static sandstorm_sandbox_return_load: u8;
    static sandstorm_sandbox_return_set: u8;
    static sandstorm_sandbox_call_load: u8;
    static sandstorm_sandbox_call_set: u8;
}

/// Returns where code continues that was interrupted at `address`: at the same address, unless it has loaded the
/// address of a worker's block and not used it yet. Then it loads that again, since it may continue on another worker.
pub(super) fn restart_point(address: usize) -> usize {
    let returns = (&raw const sandstorm_sandbox_return_load, &raw const sandstorm_sandbox_return_set);
    let calls = (&raw const sandstorm_sandbox_call_load, &raw const sandstorm_sandbox_call_set);
    [returns, calls].iter().find(|(_, set)| set.addr() == address).map_or(address, |(load, _)| load.addr())
}

/// Clears the vector registers, as far as sandboxed code can read them.
macro_rules! clear_vectors {
    () => {
        "pxor xmm0, xmm0
        pxor xmm1, xmm1
        pxor xmm2, xmm2
        pxor xmm3, xmm3
        pxor xmm4, xmm4
        pxor xmm5, xmm5
        pxor xmm6, xmm6
        pxor xmm7, xmm7
        pxor xmm8, xmm8
        pxor xmm9, xmm9
        pxor xmm10, xmm10
        pxor xmm11, xmm11
        pxor xmm12, xmm12
        pxor xmm13, xmm13
        pxor xmm14, xmm14
        pxor xmm15, xmm15"
    };
}

/// Calls `function(slot, invocation)`, both addresses of the module's memory, on the side stack; answers as
/// [`super::stack_switch::enter`].
///
/// # Safety
/// The calling thread has an engine and is in `STATE_HOST` state; its block names the memory, whose control page names
/// the block; the function is verified code.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn enter_sandboxed(
    function: GuestFunction,
    slot: *mut u8,
    invocation: *mut abi::InvocationHeader,
) -> u32 {
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
        "mov edi, esi",
        "mov esi, edx",
        "mov r11, gs:[{base}]",
        "xor ebx, ebx",
        "xor ecx, ecx",
        "xor edx, edx",
        "xor ebp, ebp",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor r10d, r10d",
        "xor r12d, r12d",
        "xor r13d, r13d",
        "xor r14d, r14d",
        "xor r15d, r15d",
        clear_vectors!(),
        "mov dword ptr gs:[{state}], {guest}",
        "wrgsbase r11",
        "xor r11d, r11d",
        "call rax",
        ".globl sandstorm_sandbox_return_load",
        ".hidden sandstorm_sandbox_return_load",
        "sandstorm_sandbox_return_load:",
        "mov r11, gs:[{block}]",
        ".globl sandstorm_sandbox_return_set",
        ".hidden sandstorm_sandbox_return_set",
        "sandstorm_sandbox_return_set:",
        "wrgsbase r11",
        "mov dword ptr gs:[{state}], {host}",
        "mov rsp, gs:[{saved}]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        saved = const offset_of!(WorkerBlock, saved_rsp),
        top = const offset_of!(WorkerBlock, stack_top),
        base = const offset_of!(WorkerBlock, guest_base),
        state = const offset_of!(WorkerBlock, state),
        block = const BLOCK_AT,
        guest = const STATE_GUEST,
        host = const STATE_HOST,
    )
}

/// Continues sandboxed code that was switched out while gs was the base of its memory; answers as
/// [`super::stack_switch::enter`].
///
/// # Safety
/// As for [`super::stack_switch::resume`]; the block names the memory, whose control page names the block.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn resume_sandboxed(context: *mut u8) -> u32 {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov gs:[{saved}], rsp",
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
        "mov rax, gs:[{base}]",
        // A switch or a landing may come from here on: what follows does not depend on the worker.
        "mov dword ptr gs:[{state}], {guest}",
        "wrgsbase rax",
        "pop rax",
        "popfq",
        "ret {red_zone}",
        saved = const offset_of!(WorkerBlock, saved_rsp),
        mask = const offset_of!(WorkerBlock, xstate_mask),
        base = const offset_of!(WorkerBlock, guest_base),
        state = const offset_of!(WorkerBlock, state),
        guest = const STATE_GUEST,
        red_zone = const super::stack_switch::RED_ZONE_BYTES,
    )
}

/// Bytes from one stub to the next.
const STUB_BYTES: usize = 16;

/// The address that sandboxed code calls for the host's function of this number.
pub(super) fn host_stub(number: usize) -> usize {
    (host_stubs as *const ()).addr() + number * STUB_BYTES
}

/// Pushes the registers of parameters, the first one last.
macro_rules! push_parameters {
    () => {
        "push r10
        push r9
        push r8
        push rcx
        push rdx
        push rsi
        push rdi"
    };
}

/// Calls the host's function on the worker's stack, with the number in eax and the parameters on the module's stack.
macro_rules! call_host {
    () => {
        "mov dword ptr gs:[{state}], {call}
        mov edi, eax
        mov rsi, rsp
        mov gs:[{guest_rsp}], rsp
        mov rsp, gs:[{saved}]
        and rsp, -16
        cld
        call gs:[{host_function}]
        mov rsp, gs:[{guest_rsp}]"
    };
}

/// Clears the registers that a call may have changed, but for those of the result and of the memory's base.
macro_rules! clear_parameters {
    () => {
        "xor ecx, ecx
        xor edx, edx
        xor esi, esi
        xor edi, edi
        xor r8d, r8d
        xor r9d, r9d
        xor r10d, r10d"
    };
}

macro_rules! stubs {
    ($($number:literal)*) => {
        concat!($(".p2align 4\nmov eax, ", $number, "\njmp 2f\n"),*)
    };
}

const _: () = assert!(HostFunction::ALL.len() <= 32);

/// A stub for each of the host's functions, 16 bytes from one to the next, and what they share: the parameters are
/// pushed on the module's stack, gs becomes the worker's block, and the call runs on the worker's stack.
///
/// # Safety
/// Never called by Rust; called by sandboxed code, with the parameters in registers.
#[unsafe(naked)]
unsafe extern "C" fn host_stubs() {
    std::arch::naked_asm!(
        stubs!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31),
        ".p2align 4",
        "2:",
        push_parameters!(),
        ".globl sandstorm_sandbox_call_load",
        ".hidden sandstorm_sandbox_call_load",
        "sandstorm_sandbox_call_load:",
        "mov r11, gs:[{block}]",
        ".globl sandstorm_sandbox_call_set",
        ".hidden sandstorm_sandbox_call_set",
        "sandstorm_sandbox_call_set:",
        "wrgsbase r11",
        "8:",
        // A switch at the call's end needs room on the module's stack.
        "cmp rsp, gs:[{floor}]",
        "jb 5f",
        call_host!(),
        "test rdx, rdx",
        "jne 6f",
        "add rsp, 56",
        "mov r11, gs:[{base}]",
        clear_parameters!(),
        clear_vectors!(),
        "mov dword ptr gs:[{state}], {guest}",
        // After a switch between these two, gs is another worker's block, which says 0.
        "cmp dword ptr gs:[{pending}], 0",
        "jne 4f",
        "3:",
        "wrgsbase r11",
        "xor r11d, r11d",
        "ret",
        "4:",
        "push rax",
        "push r11",
        "call {switch_out}",
        "pop r11",
        "pop rax",
        "jmp 3b",
        // The call has more to do: a switch may come, then it is continued.
        "6:",
        "mov dword ptr gs:[{state}], {guest}",
        "cmp dword ptr gs:[{pending}], 0",
        "je 7f",
        "call {switch_out}",
        "7:",
        "mov eax, {more}",
        "jmp 8b",
        "5:",
        "mov dword ptr gs:[{state}], {host}",
        "mov eax, {overflow}",
        "jmp {landing_pad}",
        block = const BLOCK_AT,
        floor = const offset_of!(WorkerBlock, call_floor),
        state = const offset_of!(WorkerBlock, state),
        saved = const offset_of!(WorkerBlock, saved_rsp),
        guest_rsp = const offset_of!(WorkerBlock, guest_rsp),
        base = const offset_of!(WorkerBlock, guest_base),
        pending = const offset_of!(WorkerBlock, pending),
        call = const STATE_HOST_CALL,
        more = const CONTINUE_CALL,
        guest = const STATE_GUEST,
        host = const STATE_HOST,
        overflow = const TRAPPED + KillCause::StackOverflow as u32,
        host_function = const offset_of!(WorkerBlock, host_function),
        switch_out = sym switch_out_in_call,
        landing_pad = sym landing_pad,
    )
}
