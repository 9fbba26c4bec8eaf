//! The invocation that runs now, for what is not given a `Db`: the allocator, the panic handler, the log.
//!
//! Guarantees: in a library it is the worker's, in a module the only one. In a test it is the one that its thread
//! polls, from before the first poll until all of it is gone.
#![allow(unsafe_code)]

#[cfg(any(test, feature = "testing"))]
use core::cell::Cell;

use crate::abi::InvocationHeader;
#[cfg(target_arch = "wasm32")]
use crate::abi::MODULE_INVOCATION_ALIGN;
use crate::imports::host_calls;

/// The invocation that this worker is running: the first word of the worker's block, which `gs` points to.
#[cfg(not(target_arch = "wasm32"))]
#[inline]
pub(crate) fn current_invocation() -> *mut InvocationHeader {
    let invocation: *mut InvocationHeader;
    // SAFETY: library code only runs on a worker, whose gs base is its block; this reads the block's first word.
    unsafe { core::arch::asm!("mov {}, gs:[0]", out(reg) invocation, options(nostack, readonly, preserves_flags)) };
    invocation
}

/// The module's one invocation, which lies behind the module's own data: the linker knows where those end.
#[cfg(target_arch = "wasm32")]
#[inline]
pub(crate) fn current_invocation() -> *mut InvocationHeader {
    unsafe extern "C" {
        static __heap_base: u8;
    }
    let behind_data = &raw const __heap_base;
    behind_data.map_addr(|end| end.next_multiple_of(MODULE_INVOCATION_ALIGN)).cast_mut().cast()
}

/// As [`current_invocation`], but in tests, which run on no worker.
#[cfg(not(any(test, feature = "testing")))]
#[inline]
fn running_invocation() -> *mut InvocationHeader {
    current_invocation()
}

#[cfg(any(test, feature = "testing"))]
std::thread_local! {
    static RUNNING: Cell<*mut InvocationHeader> = const { Cell::new(core::ptr::null_mut()) };
}

/// The invocation that the test's thread runs; null: none.
#[cfg(any(test, feature = "testing"))]
fn running_invocation() -> *mut InvocationHeader {
    RUNNING.get()
}

/// An invocation's time as the one that its thread runs; the one before is it again afterwards.
#[cfg(any(test, feature = "testing"))]
pub(crate) struct RunningNow(*mut InvocationHeader);

#[cfg(any(test, feature = "testing"))]
impl RunningNow {
    pub(crate) fn begin(invocation: *mut InvocationHeader) -> RunningNow {
        RunningNow(RUNNING.replace(invocation))
    }
}

#[cfg(any(test, feature = "testing"))]
impl Drop for RunningNow {
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

/// The number of the least severe lines that the tenant's log keeps; 0: none.
#[inline]
pub(crate) fn log_level() -> u32 {
    let invocation = running_invocation();
    // A test may call functions of an extension without an invocation; a library's code never runs without one.
    if cfg!(any(test, feature = "testing")) && invocation.is_null() {
        return 0;
    }
    // SAFETY: a live invocation; a plain read of a field that only the host writes, before the code runs.
    unsafe { (*invocation).log_level }
}

/// Hands a line to the tenant's log. Called where [`log_level`] is not 0.
pub(crate) fn log_line(level: u32, text: &[u8]) {
    let invocation = running_invocation();
    if invocation.is_null() {
        return;
    }
    // SAFETY: a live invocation; the text outlives the call. There is nothing to be done about a line that is refused.
    unsafe { (host_calls(invocation).log_line)(invocation, level, text.as_ptr(), text.len()) };
}
