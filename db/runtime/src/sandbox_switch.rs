//! The switches into sandboxed code and out of it: as `stack_switch`, with gs as the base of its memory.
//!
//! Changing gs takes as long as ten loads, so it is done where the memory changes ([`super::guest_runner`]) and not at
//! each call of the host. Until another memory or native code is entered, gs stays as it is. Nothing of the host's
//! looks through it meanwhile but the code below, which finds the worker's block by the control page: Rust, the C
//! library and the kernel do not use gs on this platform. So the host's functions run with gs at the memory of the
//! module that called them, and whatever would look through gs by mistake would find that module's own bytes.
//!
//! Guarantees: sandboxed code is entered, and returned to, with no trace of the host in a register that it can read,
//! and the host leaves nothing of its own on the stack that this code runs on: verified code may read there what it has
//! not written. So it is switched out in its own instructions alone, never in the host's around them
//! ([`interrupted_at`]); what is kept on its stack then are its own registers; and the host's functions run on the
//! worker's stack. Where it calls the host or returns, the control page names the block of the thread that this happens
//! on: the runner has written it there before.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::sync::atomic::{Ordering, compiler_fence};

use sandstorm_api::abi;
use sandstorm_extension::KillCause;
use sandstorm_sandbox::HostFunction;

use super::guest_memory::{BLOCK_AT, ENTRY_AT};
use super::stack_switch::{GuestFunction, RED_ZONE_BYTES, SWITCHED_OUT, TRAPPED, pop_kept, push_kept};
use super::worker_block::{CONTINUE_CALL, STATE_GUEST, STATE_HOST, STATE_HOST_CALL, WorkerBlock};
use crate::limits::CLOSED_CALL_BYTES;

/// Sets gs: to the base of a memory, or to the worker's block.
///
/// # Safety
/// The processor and the kernel allow it (a module was loaded, so they do); the calling thread is in `STATE_HOST`
/// state, and enters no code that relies on another base.
#[inline(always)]
pub(super) unsafe fn set_gs_base(base: usize) {
    // SAFETY: this function's contract.
    unsafe { std::arch::asm!("wrgsbase {}", in(reg) base, options(nostack, preserves_flags)) };
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
pub(super) const VECTORS_BYTES: usize = 16 * 16;

// Where a call of the host was allowed, its parameters are there, and the switch at its end has room on a closed stack.
const _: () = assert!(CLOSED_CALL_BYTES >= RED_ZONE_BYTES + 16 + 15 * 8 + VECTORS_BYTES);

/// A label that other code knows.
macro_rules! known_label {
    ($name:literal) => {
        concat!(".globl ", $name, "\n.hidden ", $name, "\n", $name, ":")
    };
}

/// Calls `function(slot, invocation)`, both addresses of the module's memory, on the side stack; answers as
/// [`super::stack_switch::enter`].
///
/// # Safety
/// `block` is the calling thread's, in `STATE_HOST` state; it names the memory, whose control page names the block and
/// whose base gs is; the function is verified code; the side stack has only ever been used by sandboxed code of one
/// tenant since it was wiped.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn enter_sandboxed(
    function: GuestFunction,
    slot: *mut u8,
    invocation: *mut abi::InvocationHeader,
    block: *const WorkerBlock,
) -> u32 {
    std::arch::naked_asm!(
        push_kept!(),
        "mov r11, rcx",
        "mov [r11 + {saved}], rsp",
        "mov rsp, [r11 + {top}]",
        "mov gs:[{entry}], rdi",
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
        "mov dword ptr [r11 + {state}], {guest}",
        known_label!("sandstorm_sandbox_enters"),
        "xor r11d, r11d",
        "call gs:[{entry}]",
        "mov r11, gs:[{block}]",
        "mov dword ptr [r11 + {state}], {host}",
        known_label!("sandstorm_sandbox_left"),
        "mov rsp, [r11 + {saved}]",
        pop_kept!(),
        "ret",
        saved = const offset_of!(WorkerBlock, saved_rsp),
        top = const offset_of!(WorkerBlock, stack_top),
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
/// As for [`super::stack_switch::resume`], with a context of [`sandboxed_switched_out`], and as for
/// [`enter_sandboxed`].
#[unsafe(naked)]
pub(super) unsafe extern "C" fn resume_sandboxed(context: *mut u8, block: *const WorkerBlock) -> u32 {
    std::arch::naked_asm!(
        push_kept!(),
        "mov [rsi + {saved}], rsp",
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
        "mov rax, gs:[{block}]",
        "mov dword ptr [rax + {state}], {guest}",
        known_label!("sandstorm_sandbox_resumes"),
        "pop rax",
        "popfq",
        "ret {red_zone}",
        known_label!("sandstorm_sandbox_resumed"),
        "ud2",
        saved = const offset_of!(WorkerBlock, saved_rsp),
        state = const offset_of!(WorkerBlock, state),
        block = const BLOCK_AT,
        guest = const STATE_GUEST,
        vectors = const VECTORS_BYTES,
        red_zone = const RED_ZONE_BYTES,
    )
}

/// As [`super::stack_switch::switched_out`], for sandboxed code. It keeps the registers that such code can use and no
/// others: in the upper halves of vector registers, say, are bytes that the host's code has copied for other tenants.
///
/// # Safety
/// As for [`super::stack_switch::switched_out`]; every register that sandboxed code can use is its own; gs is the base
/// of its memory.
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
        "mov rax, gs:[{block}]",
        "mov [rax + {context}], rsp",
        "mov eax, {switched_out}",
        "jmp {landing_pad}",
        vectors = const VECTORS_BYTES,
        block = const BLOCK_AT,
        context = const offset_of!(WorkerBlock, context),
        switched_out = const SWITCHED_OUT,
        landing_pad = sym sandboxed_landing_pad,
    )
}

/// As [`super::stack_switch::landing_pad`], for sandboxed code: gs is the base of its memory.
///
/// # Safety
/// As for [`super::stack_switch::landing_pad`].
#[unsafe(naked)]
pub(super) unsafe extern "C" fn sandboxed_landing_pad() {
    std::arch::naked_asm!(
        "mov r11, gs:[{block}]",
        "cld",
        "fninit",
        "fldcw [r11 + {x87}]",
        "ldmxcsr [r11 + {mxcsr}]",
        "mov rsp, [r11 + {saved}]",
        pop_kept!(),
        "ret",
        block = const BLOCK_AT,
        x87 = const offset_of!(WorkerBlock, x87_control),
        mxcsr = const offset_of!(WorkerBlock, mxcsr),
        saved = const offset_of!(WorkerBlock, saved_rsp),
    )
}

/// As [`super::stack_switch::trap`], from a host call of sandboxed code, which runs on the worker's own stack.
///
/// # Safety
/// As there.
pub(super) unsafe fn trap_sandboxed(block: &WorkerBlock, cause: KillCause) -> ! {
    block.pending.store(0, Ordering::Relaxed);
    block.trap_stack.store(block.guest_rsp.load(Ordering::Relaxed), Ordering::Relaxed);
    block.state.store(STATE_HOST, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // SAFETY: this function's contract is the pad's.
    unsafe {
        std::arch::asm!(
            "jmp {}",
            sym sandboxed_landing_pad,
            in("eax") TRAPPED + cause as u32,
            options(noreturn)
        );
    }
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

/// Switches the module out, to continue at the address in r11.
macro_rules! leave_module {
    () => {
        "sub rsp, {red_zone}
        push r11
        pushfq
        xor r11d, r11d
        jmp {switched_out}"
    };
}

/// Calls the host's function on the worker's stack, with the number in eax, the block in r11 and the parameters on the
/// module's stack. Leaves the block in r11.
macro_rules! call_host {
    () => {
        "mov dword ptr [r11 + {state}], {call}
        mov edi, eax
        mov rsi, rsp
        mov rdx, r11
        mov [r11 + {guest_rsp}], rsp
        mov rsp, [r11 + {saved}]
        and rsp, -16
        cld
        call [r11 + {host_function}]
        mov r11, gs:[{block}]
        mov rsp, [r11 + {guest_rsp}]"
    };
}

/// Clears the registers that a call may have changed, but for those of the result and of the block.
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

/// Where a stack is closed, touching what lies below opens it: still as the module's code, whose fault that is. Else
/// the invocation ends.
macro_rules! open_stack_or_end {
    () => {
        "cmp qword ptr [r11 + {closed_end}], 0
        je 9f
        or qword ptr [rsp - {closed_call}], 0
        jmp 8b
        9:
        mov [r11 + {trap_stack}], rsp
        mov dword ptr [r11 + {state}], {host}
        mov dword ptr [r11 + {pending}], 0
        mov eax, {overflow}
        jmp {landing_pad}"
    };
}

macro_rules! stubs {
    ($($number:literal)*) => {
        concat!($(".p2align 4\nmov eax, ", $number, "\njmp 2f\n"),*)
    };
}

const _: () = assert!(HostFunction::ALL.len() <= 48);

/// Bytes of the one form of a module's call of the host that the verifier passes.
const CALL_BYTES: usize = 8;

/// A stub for each of the host's functions, 16 bytes from one to the next, and what they share: the parameters are
/// pushed on the module's stack, and the call runs on the worker's stack, with the block in r11 around it.
///
/// Where a switch was requested meanwhile, the module is switched out as if the signal had interrupted it behind its
/// call; or before it, with its parameters, where the host wants to be called again.
///
/// # Safety
/// Never called by Rust; called by sandboxed code, with the parameters in registers.
#[unsafe(naked)]
unsafe extern "C" fn host_stubs() {
    std::arch::naked_asm!(
        stubs!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39
             40 41 42 43 44 45 46 47),
        ".p2align 4",
        "2:",
        push_parameters!(),
        "mov r11, gs:[{block}]",
        "8:",
        // A switch at the call's end needs room on the module's stack.
        "cmp rsp, [r11 + {floor}]",
        "jb 5f",
        call_host!(),
        clear_vectors!(),
        "test rdx, rdx",
        "jne 6f",
        "add rsp, 56",
        clear_parameters!(),
        "mov dword ptr [r11 + {state}], {guest}",
        "cmp dword ptr [r11 + {pending}], 0",
        known_label!("sandstorm_sandbox_call_returns"),
        "jne 4f",
        "xor r11d, r11d",
        "ret",
        "4:",
        "mov dword ptr [r11 + {state}], {host}",
        known_label!("sandstorm_sandbox_call_returned"),
        "mov dword ptr [r11 + {pending}], 0",
        "pop r11",
        "jmp 7f",
        // There is too little stack left.
        "5:",
        open_stack_or_end!(),
        // The call has more to do: it goes on, or is made again after others had their turn.
        "6:",
        "cmp dword ptr [r11 + {pending}], 0",
        "mov eax, {more}",
        "je 8b",
        "mov dword ptr [r11 + {state}], {host}",
        "mov dword ptr [r11 + {pending}], 0",
        pop_parameters!(),
        "pop r11\nsub r11, {call_bytes}\nxor eax, eax",
        // Switched out, to continue at the address in r11.
        "7:",
        leave_module!(),
        known_label!("sandstorm_sandbox_stubs_end"),
        "ud2",
        block = const BLOCK_AT,
        floor = const offset_of!(WorkerBlock, call_floor),
        closed_end = const offset_of!(WorkerBlock, closed_end),
        closed_call = const CLOSED_CALL_BYTES,
        state = const offset_of!(WorkerBlock, state),
        saved = const offset_of!(WorkerBlock, saved_rsp),
        guest_rsp = const offset_of!(WorkerBlock, guest_rsp),
        trap_stack = const offset_of!(WorkerBlock, trap_stack),
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
        landing_pad = sym sandboxed_landing_pad,
    )
}
