//! The worker's block: what the stack switch, the host's functions, the signal handlers and the watchdog share about one
//! worker thread. The thread's gs base points at it while the thread has an engine.
//!
//! Guarantees: every field is atomic or constant, so the block may be read from anywhere; who writes what is said at each
//! field. [`Block::here`] is only called where gs is set, which is on library code's side of a host call.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use sandstorm_api::abi;

use crate::store::Participant;

/// The worker runs the server's own code.
pub(super) const HOST: u32 = 0;
/// The worker runs a library's code on the side stack: it may be landed at any instruction.
pub(super) const TENANT: u32 = 1;
/// The worker runs one of the host's functions on the side stack: a kill waits for its return.
pub(super) const CALL: u32 = 2;

/// One worker's block. The library's allocator reads the first word through gs; the stack switch uses the fields up to
/// `state` by their offsets.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Block {
    /// The invocation that is polled, or was last. Written by the worker.
    pub(super) current: AtomicPtr<abi::Invocation>,
    /// This block. Constant after `new`.
    this: AtomicPtr<Block>,
    /// The worker's own stack pointer while it is on the side stack. Written by the switch.
    pub(super) saved_rsp: AtomicUsize,
    /// Where the side stack starts. Constant.
    pub(super) stack_top: usize,
    /// The worker's SSE and x87 control words, which a landing restores. Constant.
    pub(super) mxcsr: u32,
    pub(super) x87_control: u32,
    /// `HOST`, `TENANT` or `CALL`. Written by the worker and by handlers on its thread.
    pub(super) state: AtomicU32,
    /// 1: a kill came during a host call. Written by the handler, cleared by landing.
    pub(super) pending: AtomicU32,
    /// Grows with every poll. Written by the worker.
    pub(super) sequence: AtomicU64,
    /// CPU time that the poll under way may take, nanoseconds. Written by the worker before `sequence`.
    pub(super) limit_ns: AtomicU64,
    /// Who reads and writes tables on this worker. Written by the worker before a poll.
    pub(super) participant: AtomicPtr<Participant>,
    /// A host call that finds the stack pointer below this lands with a stack overflow. Constant.
    pub(super) call_floor: usize,
    /// First byte of the guard pages and one past their last. Constant.
    pub(super) guard: (usize, usize),
    /// The sequence whose poll is to be ended. Written by the watchdog before it signals.
    pub(super) kill_for: AtomicU64,
    /// The sequence whose poll is to show that it runs. Written by the watchdog before it signals.
    pub(super) probe_for: AtomicU64,
    /// The thread's CPU clock when the poll of `seen` was found running. Written by the handler before `seen`.
    pub(super) seen_ns: AtomicU64,
    /// The sequence whose poll a probe found running. Written by the handler.
    pub(super) seen: AtomicU64,
    /// The worker's kernel thread id and the clock of its CPU time. Constant.
    pub(super) thread: libc::pid_t,
    pub(super) cpu_clock: libc::clockid_t,
}

impl Block {
    /// Makes the block of the calling thread.
    pub(super) fn new(stack_top: usize, call_floor: usize, guard: (usize, usize)) -> std::io::Result<Arc<Block>> {
        let mut cpu_clock = 0;
        // SAFETY: the calling thread's own handle; the clock id is written to a local.
        let error = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut cpu_clock) };
        if error != 0 {
            return Err(std::io::Error::from_raw_os_error(error));
        }
        let (mxcsr, x87_control) = control_words();
        let block = Arc::new(Block {
            current: AtomicPtr::default(),
            this: AtomicPtr::default(),
            saved_rsp: AtomicUsize::new(0),
            stack_top,
            mxcsr,
            x87_control,
            state: AtomicU32::new(HOST),
            pending: AtomicU32::new(0),
            sequence: AtomicU64::new(0),
            limit_ns: AtomicU64::new(0),
            participant: AtomicPtr::default(),
            call_floor,
            guard,
            kill_for: AtomicU64::new(0),
            probe_for: AtomicU64::new(0),
            seen_ns: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            // SAFETY: a system call without arguments.
            thread: unsafe { libc::gettid() },
            cpu_clock,
        });
        // An Arc's contents do not move.
        block.this.store(Arc::as_ptr(&block).cast_mut(), Ordering::Relaxed);
        Ok(block)
    }

    /// The block of the calling thread. Never kept across a host call's end: what runs next may run elsewhere.
    ///
    /// # Safety
    /// The calling thread has an engine, whose block outlives `'a`.
    #[inline(always)]
    pub(super) unsafe fn here<'a>() -> &'a Block {
        let block: *const Block;
        // SAFETY: gs points at the block (this function's contract); the asm reads its own address from it.
        unsafe {
            std::arch::asm!(
                "mov {}, gs:[{this}]",
                out(reg) block,
                this = const std::mem::offset_of!(Block, this),
                options(nostack, preserves_flags),
            );
            &*block
        }
    }
}

/// The calling thread's SSE and x87 control words.
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
