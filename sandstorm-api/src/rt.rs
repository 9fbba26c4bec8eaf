//! What the generated wrapper around a tenant's crate is made of: the vtable, the allocator, the panic handler.
//!
//! Guarantees: tenant code is only entered with a live [`Invocation`] and a slot of the future's own size and alignment;
//! the allocator hands out memory of the running invocation's arena alone; a panic or an exhausted arena leaves through
//! [`HostCalls::abort`](crate::abi::HostCalls::abort), so nothing unwinds.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::fmt::Write;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use crate::abi::{
    ABORT_OUT_OF_MEMORY, ABORT_PANIC, ARENA_CLASSES, Arena, Invocation, POLL_DONE, POLL_FAILED, POLL_PENDING,
};
use crate::host::Host;
use crate::{Db, Error};

/// The database of a live invocation.
///
/// # Safety
/// `invocation` stays valid for `'a` and only this thread uses it meanwhile.
pub unsafe fn db<'a>(invocation: *mut Invocation) -> Db<'a> {
    // SAFETY: this function's own contract.
    Db::new(unsafe { Host::new(invocation) })
}

/// The arguments of a live invocation.
///
/// # Safety
/// As for [`db`].
pub unsafe fn args<'a>(invocation: *mut Invocation) -> &'a [u8] {
    // SAFETY: the host fills `args` and `args_len` with bytes that live as long as the invocation.
    unsafe { core::slice::from_raw_parts((*invocation).args, (*invocation).args_len) }
}

/// Polls the future in `slot` and hands an error to the host.
///
/// # Safety
/// `slot` holds a live, pinned `F`; `invocation` is live.
pub unsafe fn poll<F: Future<Output = Result<(), Error>>>(slot: *mut u8, invocation: *mut Invocation) -> u32 {
    // SAFETY: the caller's promise; the future stays where it is until it is dropped, so it is pinned.
    let future = unsafe { Pin::new_unchecked(&mut *slot.cast::<F>()) };
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => POLL_PENDING,
        Poll::Ready(Ok(())) => POLL_DONE,
        Poll::Ready(Err(error)) => {
            let text = error.text();
            // SAFETY: a live invocation; the text outlives the call.
            unsafe { ((*(*invocation).host).fail)(invocation, error.kind() as u32, text.as_ptr(), text.len()) };
            POLL_FAILED
        }
    }
}

/// The invocation that this worker is running: the first word of the worker's block, which `gs` points to.
fn current() -> *mut Invocation {
    let invocation: *mut Invocation;
    // SAFETY: library code only runs on a worker, whose gs base is its block; this reads the block's first word.
    unsafe { core::arch::asm!("mov {}, gs:[0]", out(reg) invocation, options(nostack, readonly, preserves_flags)) };
    invocation
}

/// Allocates from the running invocation's arena: power-of-two size classes over a bump pointer, so an extension that
/// allocates and frees in a loop stays within its quota.
#[derive(Debug)]
pub struct ArenaAllocator;

const SMALLEST: usize = 16;

fn class_of(layout: Layout) -> usize {
    layout.size().max(layout.align()).max(SMALLEST).next_power_of_two().trailing_zeros() as usize - 4
}

/// Takes a block of the class from the arena; null when the quota is reached.
///
/// # Safety
/// `arena` is live and used by this thread alone.
pub unsafe fn allocate(arena: *mut Arena, layout: Layout) -> *mut u8 {
    if layout.size() > isize::MAX as usize / 2 {
        return core::ptr::null_mut();
    }
    let class = class_of(layout);
    if class >= ARENA_CLASSES {
        return core::ptr::null_mut();
    }
    // SAFETY: the arena is ours; every block on a free list is at least one word, aligned to 16, and unused.
    unsafe {
        let head = (*arena).free[class];
        if !head.is_null() && head.addr() & (layout.align() - 1) == 0 {
            (*arena).free[class] = head.cast::<*mut u8>().read();
            return head;
        }
        let start = (*arena).next.addr().next_multiple_of(layout.align().max(SMALLEST));
        let size = SMALLEST << class;
        let end = (*arena).end.addr();
        if start > end || end - start < size {
            return core::ptr::null_mut();
        }
        let block = (*arena).next.with_addr(start);
        (*arena).next = block.add(size);
        block
    }
}

/// Gives a block back to its class.
///
/// # Safety
/// `block` came from [`allocate`] on this arena with this layout and is not used any more.
pub unsafe fn release(arena: *mut Arena, block: *mut u8, layout: Layout) {
    let class = class_of(layout);
    // SAFETY: the block is ours again and holds at least one word.
    unsafe {
        block.cast::<*mut u8>().write((*arena).free[class]);
        (*arena).free[class] = block;
    }
}

// SAFETY: blocks come from `allocate`, which hands out disjoint ranges with the layout's size and alignment, and are only
// reused after `dealloc`. One invocation runs on one worker at a time, so its arena has one user.
unsafe impl GlobalAlloc for ArenaAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let invocation = current();
        // SAFETY: the running invocation is live, and its arena is this thread's while it runs.
        let block = unsafe { allocate(&raw mut (*invocation).arena, layout) };
        if block.is_null() {
            let text = "the invocation's memory quota is used up";
            // SAFETY: a live invocation; `abort` does not return.
            unsafe { ((*(*invocation).host).abort)(invocation, ABORT_OUT_OF_MEMORY, text.as_ptr(), text.len()) }
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`; the block came from there.
        unsafe { release(&raw mut (*current()).arena, block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: GlobalAlloc's contract: a non-zero size that does not overflow when rounded up to the alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if class_of(new_layout) == class_of(layout) {
            return block;
        }
        // SAFETY: both layouts are valid; old and new blocks are disjoint, and the shorter length fits both.
        unsafe {
            let new_block = self.alloc(new_layout);
            core::ptr::copy_nonoverlapping(block, new_block, layout.size().min(new_size));
            self.dealloc(block, layout);
            new_block
        }
    }
}

/// A text on the stack, cut where it is full: a panic must not allocate.
struct Text {
    bytes: [u8; Text::LIMIT],
    len: usize,
}

impl Text {
    /// Bytes of a panic's text that reach the caller.
    const LIMIT: usize = 256;
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = Text::LIMIT - self.len;
        let mut take = text.len().min(room);
        while !text.is_char_boundary(take) {
            take -= 1;
        }
        self.bytes[self.len..self.len + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len += take;
        if take == text.len() { Ok(()) } else { Err(core::fmt::Error) }
    }
}

/// The wrapper's panic handler: leaves the library through the host with the panic's text.
pub fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let mut text = Text { bytes: [0; Text::LIMIT], len: 0 };
    let _cut_when_full = match info.location() {
        Some(at) => write!(text, "{} at {}:{}", info.message(), at.file(), at.line()),
        None => write!(text, "{}", info.message()),
    };
    let invocation = current();
    // SAFETY: library code only runs with a live current invocation; `abort` does not return.
    unsafe { ((*(*invocation).host).abort)(invocation, ABORT_PANIC, text.bytes.as_ptr(), text.len) }
}

/// Exports the vtable of an extension: `sandstorm_api::export!(tenant::run, 0x0123_4567_89ab_cdef);`.
#[macro_export]
#[doc(hidden)]
macro_rules! export {
    ($run:path, $api_fingerprint:expr) => {
        fn entry(
            invocation: *mut $crate::abi::Invocation,
        ) -> impl ::core::future::Future<Output = ::core::result::Result<(), $crate::Error>> {
            // For any lifetime: an extension that asks for `'static` does not compile.
            fn call<'a>(
                db: $crate::Db<'a>,
                args: &'a [u8],
            ) -> impl ::core::future::Future<Output = ::core::result::Result<(), $crate::Error>> + use<'a> {
                $run(db, args)
            }
            // SAFETY: the host calls with a live invocation, which outlives the future.
            call(unsafe { $crate::rt::db(invocation) }, unsafe { $crate::rt::args(invocation) })
        }
        const fn layout_of<F>(_: &fn(*mut $crate::abi::Invocation) -> F) -> (usize, usize) {
            (::core::mem::size_of::<F>(), ::core::mem::align_of::<F>())
        }
        fn poll_as<F: ::core::future::Future<Output = ::core::result::Result<(), $crate::Error>>>(
            _: fn(*mut $crate::abi::Invocation) -> F,
            slot: *mut u8,
            invocation: *mut $crate::abi::Invocation,
        ) -> u32 {
            // SAFETY: `create` put an `F` into the slot.
            unsafe { $crate::rt::poll::<F>(slot, invocation) }
        }
        fn drop_as<F>(_: fn(*mut $crate::abi::Invocation) -> F, slot: *mut u8) {
            // SAFETY: `create` put an `F` into the slot, and the host drops it once.
            unsafe { ::core::ptr::drop_in_place(slot.cast::<F>()) }
        }
        fn create_as<F>(
            make: fn(*mut $crate::abi::Invocation) -> F,
            slot: *mut u8,
            invocation: *mut $crate::abi::Invocation,
        ) {
            // SAFETY: the host gives a slot of the exported size and alignment.
            unsafe { slot.cast::<F>().write(make(invocation)) }
        }
        unsafe extern "C" fn create(slot: *mut u8, invocation: *mut $crate::abi::Invocation) {
            create_as(entry, slot, invocation)
        }
        unsafe extern "C" fn poll(slot: *mut u8, invocation: *mut $crate::abi::Invocation) -> u32 {
            poll_as(entry, slot, invocation)
        }
        unsafe extern "C" fn drop(slot: *mut u8) {
            drop_as(entry, slot)
        }
        unsafe extern "C" fn start(slot: *mut u8, invocation: *mut $crate::abi::Invocation) -> u32 {
            create_as(entry, slot, invocation);
            let answer = poll_as(entry, slot, invocation);
            if answer != $crate::abi::POLL_PENDING {
                drop_as(entry, slot);
            }
            answer
        }
        #[unsafe(no_mangle)]
        static SANDSTORM_EXTENSION: $crate::abi::Extension = $crate::abi::Extension {
            abi_version: $crate::abi::ABI_VERSION,
            reserved: 0,
            api_fingerprint: $api_fingerprint,
            future_size: layout_of(&(entry as fn(*mut $crate::abi::Invocation) -> _)).0,
            future_align: layout_of(&(entry as fn(*mut $crate::abi::Invocation) -> _)).1,
            create,
            poll,
            drop,
            start,
        };
    };
}
