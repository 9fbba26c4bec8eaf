//! The worker's block: the state of one worker thread that the stack switch, the host's functions, the signal handlers
//! and the watchdog share. The thread's gs base points at it while native code runs.
//!
//! Guarantees: every field is atomic or constant, so the block may be read from anywhere; each field names its writer.
//! [`WorkerBlock::here`] is only called within a host call of native code: gs is set there, and the thread stays the
//! same.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use sandstorm_api::abi;

use super::clock::TickLength;
use super::guest_memory::GuestMemory;
use super::guest_stacks::{GuestStack, is_sandboxed};
use super::mapping::set_open;
use super::sample_slot::SampleSlot;
use super::xstate::XState;
use crate::limits::{CLOSED_CALL_BYTES, HOST_CALL_STACK_BYTES};
use sandstorm_store::Participant;

/// The worker runs the server's own code.
pub(super) const STATE_HOST: u32 = 0;
/// The worker runs a library's code on the side stack: it may be landed or switched out at any instruction.
pub(super) const STATE_GUEST: u32 = 1;
/// The worker runs one of the host's functions on the side stack: a switch waits for its return.
pub(super) const STATE_HOST_CALL: u32 = 2;

/// What a host call of sandboxed code answers: the result, or that the call has more to do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct HostAnswer {
    /// The result.
    pub(super) value: u64,
    /// 1: the call is to be continued after others had their turn, with the number [`CONTINUE_CALL`].
    pub(super) more: u64,
}

/// The number of a function that stands for the rest of the call under way.
pub(super) const CONTINUE_CALL: u32 = u32::MAX;

/// The function that serves the host calls of sandboxed code: the function's number, its seven parameters, and the
/// block of the calling thread.
pub(super) type HostFunctionEntry = unsafe extern "C" fn(u32, *const [u64; 7], *const WorkerBlock) -> HostAnswer;

/// One worker's block. The library's allocator reads the first word through gs; the stack switch and host calls use
/// other fields by their offsets.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct WorkerBlock {
    /// The invocation that is polled, or was last. Written by the worker.
    pub(super) current: AtomicPtr<abi::InvocationHeader>,
    /// This block. Constant after `new`.
    this: AtomicPtr<WorkerBlock>,
    /// The worker's own stack pointer while it is on the side stack. Written by the switch.
    pub(super) saved_rsp: AtomicUsize,
    /// The start of the side stack. Written by the worker, as are the other words about the stack, when it takes
    /// another.
    pub(super) stack_top: AtomicUsize,
    /// The worker's SSE and x87 control words, which a landing restores. Constant.
    pub(super) mxcsr: u32,
    pub(super) x87_control: u32,
    /// `STATE_HOST`, `STATE_GUEST` or `STATE_HOST_CALL`. Written by the worker and by handlers on its thread.
    pub(super) state: AtomicU32,
    /// 1: a switch was requested during a host call. Written by the handler, cleared when the worker leaves the stack.
    pub(super) pending: AtomicU32,
    /// Grows with every poll. Written by the worker.
    pub(super) sequence: AtomicU64,
    /// The sequence of the last poll that is over: while it differs from `sequence`, tenant code runs or is about to.
    /// Written by the worker.
    pub(super) ended: AtomicU64,
    /// The sequence of the last poll of an extension that is not proven, and of the last one of which nothing is known.
    /// Written by the worker.
    pub(super) unproven: AtomicU64,
    pub(super) unknown: AtomicU64,
    /// CPU time that the current poll may take before it is switched out, nanoseconds. Written by the worker before
    /// `sequence`, as are the next two.
    pub(super) limit_ns: AtomicU64,
    /// CPU time that its invocation has left in all, nanoseconds.
    pub(super) left_ns: AtomicU64,
    /// The processor's counter when the poll began.
    pub(super) started: AtomicU64,
    /// The participant that reads and writes tables on this worker. Written by the worker before a poll.
    pub(super) participant: AtomicPtr<Participant>,
    /// The sequence whose poll is to be switched out. Written by the watchdog before it signals; the handler clears it
    /// once it has dealt with that.
    pub(super) preempt_sequence: AtomicU64,
    /// The address where a switched-out function is to be resumed. Written by the switch, cleared by the worker.
    pub(super) context: AtomicUsize,
    /// First usable byte of the side stack.
    pub(super) stack_low: AtomicUsize,
    /// A host call that finds the stack pointer below this lands with a stack overflow, or opens the stack.
    pub(super) call_floor: AtomicUsize,
    /// The end of the stack's closed part, which begins at `stack_low`; 0: it is open. Written by the worker, as those
    /// words, and by the handler that opens it.
    pub(super) closed_end: AtomicUsize,
    /// First byte of the stack's guard pages; they end at `stack_low`.
    pub(super) guard: AtomicUsize,
    /// The sequence whose poll could not be switched out; the time that it was found to have run since, in ticks; the
    /// counter at that moment. Written by the handler.
    pub(super) refused_for: AtomicU64,
    pub(super) refused_ticks: AtomicU64,
    pub(super) refused_at: AtomicU64,
    /// Where code was that has been landed: instruction, stack and frame pointer. Written by the handler and by what
    /// lands; taken by the worker, which leaves 0.
    pub(super) trap_instruction: AtomicUsize,
    pub(super) trap_stack: AtomicUsize,
    pub(super) trap_frame: AtomicUsize,
    /// Where it is, if a sampler asks.
    pub(super) sample: SampleSlot,
    /// The base of the memory of the sandboxed code that is polled; 0: the code is native. Written by the worker, as is
    /// the next.
    pub(super) guest_base: AtomicUsize,
    /// That memory.
    pub(super) guest_memory: AtomicPtr<GuestMemory>,
    /// The module's stack pointer during a host call. Written by the stubs.
    pub(super) guest_rsp: AtomicUsize,
    /// The function that the stubs of sandboxed code call. Constant.
    pub(super) host_function: usize,
    /// XSAVE's mask, the bytes that it takes, the image of initial registers, and how vector registers are cleared.
    /// Constant.
    pub(super) xstate_mask: u64,
    pub(super) xstate_bytes: usize,
    pub(super) initial: usize,
    pub(super) vectors: u32,
    /// The length of a tick of the processor's counter. Constant.
    pub(super) tick: TickLength,
    /// The worker's kernel thread id and the clock of its CPU time. Constant.
    pub(super) thread: libc::pid_t,
    pub(super) cpu_clock: libc::clockid_t,
}

impl WorkerBlock {
    /// Makes the block of the calling thread, without a stack. `host_function` serves the calls of sandboxed code.
    pub(super) fn new(host_function: HostFunctionEntry) -> std::io::Result<Arc<WorkerBlock>> {
        let xstate = XState::of_this_processor()?;
        let mut cpu_clock = 0;
        // SAFETY: the calling thread's own handle; the clock id is written to a local.
        let error = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut cpu_clock) };
        if error != 0 {
            return Err(std::io::Error::from_raw_os_error(error));
        }
        let (mxcsr, x87_control) = control_words();
        let block = Arc::new(WorkerBlock {
            current: AtomicPtr::default(),
            this: AtomicPtr::default(),
            saved_rsp: AtomicUsize::new(0),
            stack_top: AtomicUsize::new(0),
            mxcsr,
            x87_control,
            state: AtomicU32::new(STATE_HOST),
            pending: AtomicU32::new(0),
            sequence: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            unproven: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            limit_ns: AtomicU64::new(0),
            left_ns: AtomicU64::new(0),
            started: AtomicU64::new(0),
            participant: AtomicPtr::default(),
            preempt_sequence: AtomicU64::new(0),
            context: AtomicUsize::new(0),
            stack_low: AtomicUsize::new(0),
            call_floor: AtomicUsize::new(0),
            closed_end: AtomicUsize::new(0),
            guard: AtomicUsize::new(0),
            refused_for: AtomicU64::new(0),
            refused_ticks: AtomicU64::new(0),
            refused_at: AtomicU64::new(0),
            trap_instruction: AtomicUsize::new(0),
            trap_stack: AtomicUsize::new(0),
            trap_frame: AtomicUsize::new(0),
            sample: SampleSlot::default(),
            guest_base: AtomicUsize::new(0),
            guest_memory: AtomicPtr::default(),
            guest_rsp: AtomicUsize::new(0),
            host_function: host_function as usize,
            xstate_mask: xstate.mask,
            xstate_bytes: xstate.bytes,
            initial: xstate.initial,
            vectors: xstate.vectors,
            tick: TickLength::measured(),
            // SAFETY: a system call without arguments.
            thread: unsafe { libc::gettid() },
            cpu_clock,
        });
        // An Arc's contents do not move.
        block.this.store(Arc::as_ptr(&block).cast_mut(), Ordering::Relaxed);
        Ok(block)
    }

    /// Names the side stack that the next poll runs on. Only in `STATE_HOST` state.
    pub(super) fn set_stack(&self, stack: &GuestStack) {
        let (mapping, closed) = (stack.mapping(), stack.closed_bytes());
        let low = mapping.low().expose_provenance();
        let top = low + mapping.len();
        self.stack_top.store(top, Ordering::Relaxed);
        self.stack_low.store(low, Ordering::Relaxed);
        self.guard.store(low - mapping.guard(), Ordering::Relaxed);
        let (closed_end, floor) = match closed {
            0 => (0, low + HOST_CALL_STACK_BYTES),
            _ if is_sandboxed(stack.owner()) => (low + closed, low + closed + CLOSED_CALL_BYTES),
            // The host's functions would need more of it than is open.
            _ => (low + closed, top),
        };
        self.closed_end.store(closed_end, Ordering::Relaxed);
        self.call_floor.store(floor, Ordering::Relaxed);
    }

    /// Opens the closed part of the stack; returns whether it had one. Called by the handlers too.
    pub(super) fn open_stack(&self) -> bool {
        let (low, closed_end) = (self.stack_low.load(Ordering::Relaxed), self.closed_end.load(Ordering::Relaxed));
        if closed_end == 0 || set_open(low, closed_end - low, true).is_err() {
            return false;
        }
        self.closed_end.store(0, Ordering::Relaxed);
        self.call_floor.store(low + HOST_CALL_STACK_BYTES, Ordering::Relaxed);
        true
    }

    /// Returns the block of the calling thread.
    ///
    /// # Safety
    /// The calling thread has an engine, whose block outlives `'a`, runs native code, and is in `STATE_HOST_CALL` state
    /// until the block is not used any more: in `STATE_GUEST` state the code may be switched out between any two
    /// instructions, and go on on another thread.
    #[inline(always)]
    pub(super) unsafe fn here<'a>() -> &'a WorkerBlock {
        let block: *const WorkerBlock;
        // SAFETY: gs points at the block (this function's contract); the asm reads its own address from it.
        unsafe {
            std::arch::asm!(
                "mov {}, gs:[{this}]",
                out(reg) block,
                this = const std::mem::offset_of!(WorkerBlock, this),
                options(nostack, preserves_flags),
            );
            &*block
        }
    }
}

/// Returns the calling thread's SSE and x87 control words.
fn control_words() -> (u32, u32) {
    let mut mxcsr = 0_u32;
    let mut x87 = 0_u32;
    // SAFETY: both instructions store to the given locals and change nothing else.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags));
        std::arch::asm!("fnstcw [{}]", in(reg) &raw mut x87, options(nostack, preserves_flags));
    }
    // The status flags of earlier arithmetic are not part of what a landing restores.
    (mxcsr & !0x3f, x87)
}
