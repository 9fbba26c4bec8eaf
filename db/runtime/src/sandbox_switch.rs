//! The switches into sandboxed code and out of it: as `stack_switch`, with the base of `gs` changed.
//!
//! While sandboxed code runs, gs is the base of its memory; everywhere else on a worker it is the worker's block.
//!
//! Guarantees: sandboxed code is entered, and returned to, with no trace of the host in a register that it can read,
//! and the host leaves nothing of its own on the stack that this code runs on: verified code may read there what it has
//! not written. So it is switched out in its own instructions alone, never in the host's around them
//! ([`interrupted_at`]); what is kept on its stack then are its own registers; and the host's functions run on the
//! worker's stack. Where it calls the host or returns, gs names the block of the thread that this happens on.
#![allow(unsafe_code)]

use std::mem::offset_of;

use sandstorm_api::abi;
use sandstorm_extension::KillCause;
use sandstorm_sandbox::HostFunction;

use super::guest_memory::{BLOCK_AT, ENTRY_AT};
use super::stack_switch::{GuestFunction, RED_ZONE_BYTES, SWITCHED_OUT, TRAPPED, landing_pad};
use super::worker_block::{CONTINUE_CALL, STATE_GUEST, STATE_HOST, STATE_HOST_CALL, WorkerBlock};

/// Makes gs name the worker's block.
///
/// # Safety
/// The processor and the kernel allow it (a module was loaded, so they do); `block` is the calling thread's.
#[inline(always)]
pub(super) unsafe fn set_gs_base(block: usize) {
    // SAFETY: this function's contract.
    unsafe { std::arch::asm!("wrgsbase {}", in(reg) block, options(nostack, preserves_flags)) };
}

unsafe extern "C" {
    // Labels of the code below: where the parts begin and end that run in `STATE_GUEST` and are the host's.
    static sandstorm_sandbox_enters: u8;
    static sandstorm_sandbox_left: u8;
    static sandstorm_sandbox_resumes: u8;
    static sandstorm_sandbox_resumed: u8;
    static sandstorm_sandbox_call_returns: u8;
    static sandstorm_sandbox_call_returned: u8;
    static sandstorm_sandbox_stubs_end: u8;
}

/// What a thread was doing in `STATE_GUEST` when a signal interrupted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterruptedCode {
    /// The module's instructions.
    Module,
    /// It was about to enter the module's code or to resume it, or had returned from it.
    Between,
    /// It was on the way from the module's call to the host's function, or back and about to look for a switch.
    Call,
    /// It was about to return to the module: the return address is on top of the stack, the result in rax.
    Return,
}

/// What the instruction at an address is part of.
pub(super) fn interrupted_at(address: usize) -> InterruptedCode {
    let within = |first: *const u8, end: *const u8| (first.addr()..end.addr()).contains(&address);
    let enters = within(&raw const sandstorm_sandbox_enters, &raw const sandstorm_sandbox_left);
    if enters || within(&raw const sandstorm_sandbox_resumes, &raw const sandstorm_sandbox_resumed) {
        return InterruptedCode::Between;
    }
    if within(&raw const sandstorm_sandbox_call_returns, &raw const sandstorm_sandbox_call_returned) {
        return InterruptedCode::Return;
    }
    if within((host_stubs as *const ()).cast(), &raw const sandstorm_sandbox_stubs_end) {
        return InterruptedCode::Call;
    }
    InterruptedCode::Module
}

/// Repeats instructions for each of the sixteen registers of SSE, whose number is `\i`.
macro_rules! each_vector {
    ($text:literal) => {
        concat!(".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n", $text, "\n.endr")
    };
}

/// Clears the registers of SSE: what the host's code has left there is others' bytes.
macro_rules! clear_vectors {
    () => {
        each_vector!("pxor xmm\\i, xmm\\i")
    };
}

/// Bytes that the registers of SSE take.
const VECTORS_BYTES: usize = 16 * 16;

/// Calls `function(slot, invocation)`, both addresses of the module's memory, on the side stack; answers as
/// [`super::stack_switch::enter`].
///
/// # Safety
/// The calling thread has an engine and is in `STATE_HOST` state; its block names the memory, whose control page names
/// the block; the function is verified code; the side stack has only ever been used by sandboxed code of one tenant
/// since it was wiped.
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
        "mov r11, gs:[{base}]",
        "mov [r11 + {entry}], rdi",
        "mov edi, esi",
        "mov esi, edx",
        "xor eax, eax",
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
        ".globl sandstorm_sandbox_enters",
        ".hidden sandstorm_sandbox_enters",
        "sandstorm_sandbox_enters:",
        "wrgsbase r11",
        "xor r11d, r11d",
        "call gs:[{entry}]",
        "mov r11, gs:[{block}]",
        "wrgsbase r11",
        "mov dword ptr gs:[{state}], {host}",
        ".globl sandstorm_sandbox_left",
        ".hidden sandstorm_sandbox_left",
        "sandstorm_sandbox_left:",
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
        entry = const ENTRY_AT,
        guest = const STATE_GUEST,
        host = const STATE_HOST,
    )
}

/// Continues sandboxed code that was switched out; answers as [`super::stack_switch::enter`].
///
/// # Safety
/// As for [`super::stack_switch::resume`], with a context of [`sandboxed_switched_out`]; the block names the memory,
/// whose control page names the block.
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
        each_vector!("movups xmm\\i, [rsp + 16 * \\i]"),
        "add rsp, {vectors}",
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
        "mov dword ptr gs:[{state}], {guest}",
        ".globl sandstorm_sandbox_resumes",
        ".hidden sandstorm_sandbox_resumes",
        "sandstorm_sandbox_resumes:",
        "wrgsbase rax",
        "pop rax",
        "popfq",
        "ret {red_zone}",
        ".globl sandstorm_sandbox_resumed",
        ".hidden sandstorm_sandbox_resumed",
        "sandstorm_sandbox_resumed:",
        "ud2",
        saved = const offset_of!(WorkerBlock, saved_rsp),
        base = const offset_of!(WorkerBlock, guest_base),
        state = const offset_of!(WorkerBlock, state),
        guest = const STATE_GUEST,
        vectors = const VECTORS_BYTES,
        red_zone = const RED_ZONE_BYTES,
    )
}

/// As [`super::stack_switch::switched_out`], for sandboxed code. It keeps the registers that such code can use and no
/// others: in the upper halves of vector registers, say, are bytes that the host's code has copied for other tenants.
///
/// # Safety
/// As for [`super::stack_switch::switched_out`]; every register that sandboxed code can use is its own.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn sandboxed_switched_out() {
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
        "sub rsp, {vectors}",
        each_vector!("movups [rsp + 16 * \\i], xmm\\i"),
        "mov gs:[{context}], rsp",
        "mov eax, {switched_out}",
        "jmp {landing_pad}",
        vectors = const VECTORS_BYTES,
        context = const offset_of!(WorkerBlock, context),
        switched_out = const SWITCHED_OUT,
        landing_pad = sym landing_pad,
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

/// The reverse of [`push_parameters`].
macro_rules! pop_parameters {
    () => {
        "pop rdi
        pop rsi
        pop rdx
        pop rcx
        pop r8
        pop r9
        pop r10"
    };
}

/// A label that other code knows.
macro_rules! known_label {
    ($name:literal) => {
        concat!(".globl ", $name, "\n.hidden ", $name, "\n", $name, ":")
    };
}

/// Switches the module out, to continue at the address in r11.
macro_rules! leave_module {
    () => {
        "mov dword ptr gs:[{pending}], 0
        sub rsp, {red_zone}
        push r11
        pushfq
        xor r11d, r11d
        jmp {switched_out}"
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

/// Bytes of the one form of a module's call of the host that the verifier passes.
const CALL_BYTES: usize = 8;

/// A stub for each of the host's functions, 16 bytes from one to the next, and what they share: the parameters are
/// pushed on the module's stack, gs becomes the worker's block, and the call runs on the worker's stack.
///
/// Where a switch was requested meanwhile, the module is switched out as if the signal had interrupted it behind its
/// call; or before it, with its parameters, where the host wants to be called again.
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
        "mov r11, gs:[{block}]",
        "wrgsbase r11",
        "8:",
        // A switch at the call's end needs room on the module's stack.
        "cmp rsp, gs:[{floor}]",
        "jb 5f",
        call_host!(),
        clear_vectors!(),
        "test rdx, rdx",
        "jne 6f",
        "add rsp, 56",
        "mov r11, gs:[{base}]",
        clear_parameters!(),
        "mov dword ptr gs:[{state}], {guest}",
        "cmp dword ptr gs:[{pending}], 0",
        known_label!("sandstorm_sandbox_call_returns"),
        "jne 4f",
        "wrgsbase r11",
        "xor r11d, r11d",
        "ret",
        "4:",
        "mov dword ptr gs:[{state}], {host}",
        known_label!("sandstorm_sandbox_call_returned"),
        "pop r11",
        "jmp 7f",
        // There is too little stack left.
        "5:",
        "mov dword ptr gs:[{state}], {host}",
        "mov dword ptr gs:[{pending}], 0",
        "mov eax, {overflow}",
        "jmp {landing_pad}",
        // The call has more to do: it goes on, or is made again after others had their turn.
        "6:",
        "cmp dword ptr gs:[{pending}], 0",
        "mov eax, {more}",
        "je 8b",
        "mov dword ptr gs:[{state}], {host}",
        pop_parameters!(),
        "pop r11\nsub r11, {call_bytes}\nxor eax, eax",
        // Switched out, to continue at the address in r11.
        "7:",
        leave_module!(),
        known_label!("sandstorm_sandbox_stubs_end"),
        "ud2",
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
        call_bytes = const CALL_BYTES,
        red_zone = const RED_ZONE_BYTES,
        host_function = const offset_of!(WorkerBlock, host_function),
        switched_out = sym sandboxed_switched_out,
        landing_pad = sym landing_pad,
    )
}
