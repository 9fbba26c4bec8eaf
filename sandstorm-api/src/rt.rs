//! The runtime of the generated wrapper around a tenant's crate: the vtable of a library or the exports of a module,
//! the allocator, the panic handler.
//!
//! Guarantees: tenant code is only entered with a live [`InvocationHeader`] and a slot of the future's own size and
//! alignment. The allocator hands out only memory of the running invocation's arena. A panic, and an allocation that
//! fails where the code does not expect it to, leave through [`HostCalls::abort`](crate::abi::HostCalls::abort), so
//! nothing unwinds.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::fmt::Write;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use crate::abi::{
    ABORT_OUT_OF_MEMORY, ABORT_PANIC, ARENA_CLASSES, InvocationArena, InvocationHeader, POLL_AGAIN, POLL_DONE,
    POLL_FAILED, POLL_PENDING, STATUS_CONFLICT, STATUS_CONTENDED, STATUS_OK,
};
use crate::host::HostHandle;
use crate::imports::host_calls;
use crate::running::current_invocation;
use crate::{Db, Error};

/// The database of a live invocation.
///
/// # Safety
/// `invocation` stays valid for `'a` and only this thread uses it during that.
pub unsafe fn db<'a>(invocation: *mut InvocationHeader) -> Db<'a> {
    // SAFETY: this function's own contract.
    Db::new(unsafe { HostHandle::new(invocation) })
}

/// The arguments of a live invocation.
///
/// # Safety
/// As for [`db`].
pub unsafe fn args<'a>(invocation: *mut InvocationHeader) -> &'a [u8] {
    // SAFETY: the host fills `args` and `args_len` with bytes that live as long as the invocation.
    unsafe { core::slice::from_raw_parts((*invocation).args, (*invocation).args_len) }
}

/// Polls the future in `slot`, hands an error to the host, and drops the future if it is ready.
///
/// # Safety
/// `slot` holds a live, pinned `F`, which is gone after a ready answer; `invocation` is live.
pub unsafe fn poll<F: Future<Output = Result<(), Error>>>(slot: *mut u8, invocation: *mut InvocationHeader) -> u32 {
    // SAFETY: the caller's promise; the future stays where it is until it is dropped, so it is pinned.
    let future = unsafe { Pin::new_unchecked(&mut *slot.cast::<F>()) };
    let Poll::Ready(outcome) = future.poll(&mut Context::from_waker(Waker::noop())) else { return POLL_PENDING };
    // SAFETY: a live invocation; the future has ended.
    let Some(outcome) = (unsafe { finish_transaction(invocation, outcome) }) else { return POLL_AGAIN };
    let answer = match outcome {
        Ok(()) => POLL_DONE,
        Err(error) => {
            let text = error.text();
            // SAFETY: a live invocation; the text outlives the call.
            unsafe { (host_calls(invocation).fail)(invocation, error.kind() as u32, text.as_ptr(), text.len()) };
            POLL_FAILED
        }
    };
    // SAFETY: the future is ready; nothing touches it again.
    unsafe { core::ptr::drop_in_place(slot.cast::<F>()) };
    answer
}

/// Returns an extension's outcome with its transaction, which is committed if it ended well; `None`: it is to be run
/// again.
///
/// # Safety
/// `invocation` is live, and its future has ended.
pub unsafe fn finish_transaction(
    invocation: *mut InvocationHeader,
    outcome: Result<(), Error>,
) -> Option<Result<(), Error>> {
    // SAFETY: this function's contract.
    if unsafe { (*invocation).transaction } == 0 {
        return Some(outcome);
    }
    // SAFETY: as above.
    let host = unsafe { HostHandle::new(invocation) };
    if host.is_nested() { hand_back_transaction(host, outcome) } else { commit_transaction(host, outcome) }
}

/// Forgets an invocation's transaction, if it has one.
///
/// # Safety
/// `invocation` is live, its future is gone, and so is all that it was shown.
#[cfg(any(test, feature = "testing"))]
pub(crate) unsafe fn forget_transaction(invocation: *mut InvocationHeader) {
    // SAFETY: this function's contract.
    unsafe { HostHandle::new(invocation).forget_transaction() }
}

#[cold]
fn commit_transaction(host: HostHandle<'_>, outcome: Result<(), Error>) -> Option<Result<(), Error>> {
    match host.commit(outcome.is_ok()) {
        STATUS_CONFLICT => None,
        STATUS_OK => Some(outcome),
        STATUS_CONTENDED => Some(Err(Error::from_commit_status(STATUS_CONTENDED))),
        // The extension's own error says more than that its reads cannot be checked again.
        status => Some(outcome.and(Err(Error::from_commit_status(status)))),
    }
}

/// The same of an extension that was called: its caller gets the transaction, and the first one commits it.
#[cold]
fn hand_back_transaction(host: HostHandle<'_>, outcome: Result<(), Error>) -> Option<Result<(), Error>> {
    if outcome.is_err() && host.commit(false) == STATUS_CONFLICT {
        return None;
    }
    match host.return_notes(outcome.is_ok()) {
        STATUS_OK => Some(outcome),
        status => Some(outcome.and(Err(Error::from_commit_status(status)))),
    }
}

/// Allocates from the running invocation's arena: power-of-two size classes over a bump pointer, so an extension that
/// allocates and frees in a loop stays within its quota.
#[derive(Debug)]
pub struct ArenaAllocator;

const MIN_BLOCK_BYTES: usize = 16;

#[inline]
fn size_class(layout: Layout) -> usize {
    layout.size().max(layout.align()).max(MIN_BLOCK_BYTES).next_power_of_two().trailing_zeros() as usize - 4
}

/// Length of the block at `block` of a class: all of the class's size, but for the one that the quota's end cuts short.
/// Never depends on how far the arena has grown: a block has the same length when it is given back.
#[inline]
fn block_len(arena: &InvocationArena, block: *mut u8, class: usize) -> usize {
    (MIN_BLOCK_BYTES << class).min(arena.limit.addr() - block.addr())
}

/// Returns whether the arena's end lies at `to` or above, if need be after asking the host for more. `to` is not above
/// the quota.
///
/// # Safety
/// `arena` is live and used by this thread alone; where its end is below its limit, it is the running invocation's.
#[inline]
unsafe fn ensure_arena_end(arena: *mut InvocationArena, to: usize) -> bool {
    // SAFETY: this function's contract. No reference into the arena lives while the host moves its end.
    unsafe { to <= (*arena).end.addr() || ((*arena).end.addr() < (*arena).limit.addr() && grow_arena(arena, to)) }
}

/// Asks the host to move the running invocation's end to `to`; returns whether it did.
///
/// # Safety
/// As for [`ensure_arena_end`].
#[cold]
unsafe fn grow_arena(arena: *mut InvocationArena, to: usize) -> bool {
    // SAFETY: this function's contract; library code only runs with a live current invocation.
    unsafe {
        let (invocation, bytes) = (current_invocation(), to - (*arena).next.addr());
        (host_calls(invocation).grow)(invocation, bytes) == STATUS_OK
    }
}

/// Takes a block from the arena; null when a quota is reached.
///
/// # Safety
/// `arena` is live and used by this thread alone; where its end is below its limit, it is the running invocation's.
#[inline]
pub unsafe fn allocate(arena: *mut InvocationArena, layout: Layout) -> *mut u8 {
    if layout.size() > isize::MAX as usize / 2 {
        return core::ptr::null_mut();
    }
    let class = size_class(layout);
    if class >= ARENA_CLASSES {
        return core::ptr::null_mut();
    }
    // SAFETY: the arena is ours; every block on a free list is at least one word, aligned to 16, and unused.
    unsafe {
        let head = (*arena).free[class];
        if !head.is_null()
            && head.addr() & (layout.align() - 1) == 0
            && layout.size() <= block_len(&*arena, head, class)
        {
            (*arena).free[class] = head.cast::<*mut u8>().read();
            return head;
        }
        let start = (*arena).next.addr().next_multiple_of(layout.align().max(MIN_BLOCK_BYTES));
        let limit = (*arena).limit.addr();
        if start > limit || limit - start < layout.size().max(MIN_BLOCK_BYTES) {
            return core::ptr::null_mut();
        }
        let len = (MIN_BLOCK_BYTES << class).min(limit - start);
        if !ensure_arena_end(arena, start + len) {
            return core::ptr::null_mut();
        }
        let block = (*arena).next.with_addr(start);
        (*arena).next = block.add(len);
        block
    }
}

/// Gives a block back to its class.
///
/// # Safety
/// `block` came from [`allocate`] or [`extend_last_block`] on this arena with this layout and is not used any more.
#[inline]
pub unsafe fn release(arena: *mut InvocationArena, block: *mut u8, layout: Layout) {
    let class = size_class(layout);
    // SAFETY: the block is ours again and holds at least one word.
    unsafe {
        block.cast::<*mut u8>().write((*arena).free[class]);
        (*arena).free[class] = block;
    }
}

/// Makes a block longer where it lies, which the last one can be: a growing vector neither moves nor leaves holes.
/// Returns whether it did; the block's layout is `new` then.
///
/// # Safety
/// As for [`release`], but the block stays in use; `new` has the alignment of `old`.
pub unsafe fn extend_last_block(arena: *mut InvocationArena, block: *mut u8, old: Layout, new: Layout) -> bool {
    // SAFETY: the arena is ours; what lies behind its last block is unused.
    unsafe {
        let class = size_class(new);
        let is_last = block.addr() + block_len(&*arena, block, size_class(old)) == (*arena).next.addr();
        if !is_last || class >= ARENA_CLASSES {
            return false;
        }
        let len = block_len(&*arena, block, class);
        if new.size() > len || !ensure_arena_end(arena, block.addr() + len) {
            return false;
        }
        (*arena).next = block.add(len);
        true
    }
}

// SAFETY: blocks come from `allocate`, which hands out disjoint ranges with the layout's size and alignment, and are
// only reused after `dealloc`. One invocation runs on one worker at a time, so its arena has one user.
unsafe impl GlobalAlloc for ArenaAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the running invocation is live, and its arena is this thread's while it runs.
        unsafe { allocate(&raw mut (*current_invocation()).arena, layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`; the block came from there.
        unsafe { release(&raw mut (*current_invocation()).arena, block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`; the block came from there; GlobalAlloc's contract is that of `reallocate`.
        unsafe { reallocate(&raw mut (*current_invocation()).arena, block, layout, new_size) }
    }
}

/// Changes a block's length; null, and the block stays as it is, when the quota is reached.
///
/// # Safety
/// As for [`release`]; `new_size` is not zero and does not overflow when it is rounded up to the layout's alignment.
pub unsafe fn reallocate(arena: *mut InvocationArena, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
    // SAFETY: this function's contract; old and new blocks are disjoint, and the shorter length fits both.
    unsafe {
        let new_layout = Layout::from_size_align_unchecked(new_size, layout.align());
        let shrinks = new_size <= layout.size();
        let stays = shrinks && size_class(new_layout) == size_class(layout);
        if stays || (!shrinks && grow_in_place(arena, block, layout, new_layout)) {
            return block;
        }
        let new_block = allocate(arena, new_layout);
        if new_block.is_null() {
            // A block may be longer than its class.
            return if shrinks { block } else { new_block };
        }
        core::ptr::copy_nonoverlapping(block, new_block, layout.size().min(new_size));
        release(arena, block, layout);
        new_block
    }
}

/// Returns whether a block can grow to `new` where it lies: within its class, or as the last one.
///
/// # Safety
/// As for [`extend_last_block`].
unsafe fn grow_in_place(arena: *mut InvocationArena, block: *mut u8, old: Layout, new: Layout) -> bool {
    // SAFETY: this function's contract.
    unsafe {
        let class = size_class(old);
        (size_class(new) == class && new.size() <= block_len(&*arena, block, class))
            || extend_last_block(arena, block, old, new)
    }
}

/// A text on the stack, cut where it is full: a panic must not allocate.
struct PanicText {
    bytes: [u8; PanicText::LIMIT],
    len: usize,
}

impl PanicText {
    /// Bytes of a panic's text that reach the caller.
    const LIMIT: usize = 256;
}

impl Write for PanicText {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = PanicText::LIMIT - self.len;
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
    let mut text = PanicText { bytes: [0; PanicText::LIMIT], len: 0 };
    let _cut_when_full = match info.location() {
        // A location in `core` or `alloc` says nothing about the extension.
        Some(at) if at.file().starts_with("/rustc/") => write!(text, "{}", info.message()),
        Some(at) => write!(text, "{} at {}:{}", info.message(), at.file(), at.line()),
        None => write!(text, "{}", info.message()),
    };
    // This is the text of `alloc` where a failed allocation cannot be answered with an error.
    let exhausted = text.bytes.starts_with(b"memory allocation of ");
    let cause = if exhausted { ABORT_OUT_OF_MEMORY } else { ABORT_PANIC };
    let invocation = current_invocation();
    // SAFETY: library code only runs with a live current invocation; `abort` does not return.
    unsafe { (host_calls(invocation).abort)(invocation, cause, text.bytes.as_ptr(), text.len) }
}

/// Exports an extension, as a library by its vtable, as a module of wasm32 by its functions and the section that
/// describes it: `sandstorm_api::export!(tenant::run, 0x0123_4567_89ab_cdef);`.
#[macro_export]
#[doc(hidden)]
macro_rules! export {
    ($run:path, $api_fingerprint:expr) => {
        fn entry(
            invocation: *mut $crate::abi::InvocationHeader,
        ) -> impl ::core::future::Future<Output = ::core::result::Result<(), $crate::Error>> {
            // This must hold for any lifetime: an extension that asks for `'static` does not compile.
            fn call<'a>(
                db: $crate::Db<'a>,
                args: &'a [u8],
            ) -> impl ::core::future::Future<Output = ::core::result::Result<(), $crate::Error>> + use<'a> {
                $run(db, args)
            }
            // SAFETY: the host calls with a live invocation, which outlives the future.
            call(unsafe { $crate::rt::db(invocation) }, unsafe { $crate::rt::args(invocation) })
        }
        const fn layout_of<F>(_: &fn(*mut $crate::abi::InvocationHeader) -> F) -> (usize, usize) {
            (::core::mem::size_of::<F>(), ::core::mem::align_of::<F>())
        }
        fn poll_as<F: ::core::future::Future<Output = ::core::result::Result<(), $crate::Error>>>(
            _: fn(*mut $crate::abi::InvocationHeader) -> F,
            slot: *mut u8,
            invocation: *mut $crate::abi::InvocationHeader,
        ) -> u32 {
            // SAFETY: `create` put an `F` into the slot.
            unsafe { $crate::rt::poll::<F>(slot, invocation) }
        }
        #[cfg(not(target_arch = "wasm32"))]
        fn drop_as<F>(_: fn(*mut $crate::abi::InvocationHeader) -> F, slot: *mut u8) {
            // SAFETY: `create` put an `F` into the slot, and the host drops it once.
            unsafe { ::core::ptr::drop_in_place(slot.cast::<F>()) }
        }
        fn create_as<F>(
            make: fn(*mut $crate::abi::InvocationHeader) -> F,
            slot: *mut u8,
            invocation: *mut $crate::abi::InvocationHeader,
        ) {
            // SAFETY: the host gives a slot of the exported size and alignment.
            unsafe { slot.cast::<F>().write(make(invocation)) }
        }
        #[cfg(not(target_arch = "wasm32"))]
        unsafe extern "C" fn create(slot: *mut u8, invocation: *mut $crate::abi::InvocationHeader) {
            create_as(entry, slot, invocation)
        }
        #[cfg(not(target_arch = "wasm32"))]
        unsafe extern "C" fn poll(slot: *mut u8, invocation: *mut $crate::abi::InvocationHeader) -> u32 {
            poll_as(entry, slot, invocation)
        }
        #[cfg(not(target_arch = "wasm32"))]
        unsafe extern "C" fn drop(slot: *mut u8) {
            drop_as(entry, slot)
        }
        #[cfg(not(target_arch = "wasm32"))]
        unsafe extern "C" fn start(slot: *mut u8, invocation: *mut $crate::abi::InvocationHeader) -> u32 {
            create_as(entry, slot, invocation);
            poll_as(entry, slot, invocation)
        }
        #[cfg(not(target_arch = "wasm32"))]
        #[unsafe(no_mangle)]
        static SANDSTORM_EXTENSION: $crate::abi::ExtensionVtable = $crate::abi::ExtensionVtable {
            abi_version: $crate::abi::ABI_VERSION,
            reserved: 0,
            api_fingerprint: $api_fingerprint,
            future_size: layout_of(&(entry as fn(*mut $crate::abi::InvocationHeader) -> _)).0,
            future_align: layout_of(&(entry as fn(*mut $crate::abi::InvocationHeader) -> _)).1,
            create,
            poll,
            drop,
            start,
        };
        #[cfg(target_arch = "wasm32")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn sandstorm_start(slot: *mut u8, invocation: *mut $crate::abi::InvocationHeader) -> u32 {
            create_as(entry, slot, invocation);
            poll_as(entry, slot, invocation)
        }
        #[cfg(target_arch = "wasm32")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn sandstorm_poll(slot: *mut u8, invocation: *mut $crate::abi::InvocationHeader) -> u32 {
            poll_as(entry, slot, invocation)
        }
        #[cfg(target_arch = "wasm32")]
        #[used]
        #[unsafe(link_section = "sandstorm")]
        static SANDSTORM_MODULE: [u8; $crate::abi::MODULE_SECTION_BYTES] = $crate::abi::module_section(
            layout_of(&(entry as fn(*mut $crate::abi::InvocationHeader) -> _)),
            $api_fingerprint,
        );
    };
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    struct Live {
        block: *mut u8,
        layout: Layout,
        tag: u8,
    }

    fn arena(memory: &mut [u8]) -> InvocationArena {
        let range = memory.as_mut_ptr_range();
        InvocationArena {
            next: range.start,
            end: range.end,
            limit: range.end,
            free: [core::ptr::null_mut(); ARENA_CLASSES],
        }
    }

    fn fill(live: &Live) {
        // SAFETY: the block is live and of that size.
        unsafe { live.block.write_bytes(live.tag, live.layout.size()) }
    }

    fn check(live: &Live, memory: &core::ops::Range<usize>) {
        let (start, size) = (live.block.addr(), live.layout.size());
        assert!(start >= memory.start && start + size <= memory.end, "inside the arena");
        assert_eq!(start % live.layout.align(), 0, "aligned");
        // SAFETY: the block is live and of that size.
        let bytes = unsafe { core::slice::from_raw_parts(live.block, size) };
        assert!(bytes.iter().all(|byte| *byte == live.tag), "nobody else wrote into the block");
    }

    /// Small numbers of a small generator; nothing here depends on their quality.
    fn random(state: &mut u64) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize
    }

    #[test]
    fn blocks_never_overlap_and_keep_their_bytes() {
        // Under miri each byte that is written or looked at costs about a microsecond.
        let (seeds, steps) = if cfg!(miri) { (3, 120) } else { (200, 2000_u32) };
        for seed in 0..seeds {
            let mut state = seed;
            let mut memory = vec![0_u8; 1 << 16];
            let mut arena = arena(&mut memory[3..]);
            let range = arena.next.addr()..arena.end.addr();
            let mut live: Vec<Live> = Vec::new();
            for step in 0..steps {
                let layout =
                    Layout::from_size_align(1 + random(&mut state) % 3000, 1 << (random(&mut state) % 8)).unwrap();
                let tag = step as u8;
                let kind = random(&mut state) % 4;
                if kind < 2 || live.is_empty() {
                    // SAFETY: the arena is this test's.
                    let block = unsafe { allocate(&mut arena, layout) };
                    if !block.is_null() {
                        live.push(Live { block, layout, tag });
                        fill(live.last().unwrap());
                    }
                    continue;
                }
                let mut one = live.swap_remove(random(&mut state) % live.len());
                check(&one, &range);
                if kind == 2 {
                    // SAFETY: the block is live and has this layout.
                    unsafe { release(&mut arena, one.block, one.layout) };
                    continue;
                }
                // SAFETY: as above.
                let block = unsafe { reallocate(&mut arena, one.block, one.layout, layout.size()) };
                if !block.is_null() {
                    let kept = one.layout.size().min(layout.size());
                    one.layout = Layout::from_size_align(layout.size(), one.layout.align()).unwrap();
                    one.block = block;
                    check(&Live { layout: Layout::from_size_align(kept, 1).unwrap(), ..one }, &range);
                    one.tag = tag;
                    fill(&one);
                }
                live.push(one);
            }
            live.iter().for_each(|one| check(one, &range));
        }
    }

    #[test]
    fn a_growing_vector_gets_nearly_the_whole_quota_and_freed_memory_comes_back() {
        let mut memory = vec![0_u64; 1 << 17];
        let bytes = memory.len() * 8;
        // SAFETY: as bytes, the same memory.
        let memory = unsafe { core::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<u8>(), bytes) };
        let mut arena = arena(memory);
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        let mut size = 64;
        // SAFETY: the arena is this test's, and the layouts are the blocks'.
        unsafe {
            let mut block = allocate(&mut arena, layout(size));
            while size < bytes - 64 {
                let new = (size * 2).min(bytes - 64);
                block = reallocate(&mut arena, block, layout(size), new);
                assert!(!block.is_null(), "{new} of {bytes}");
                size = new;
            }
            assert!(allocate(&mut arena, layout(4096)).is_null(), "the quota is reached");
            for _ in 0..3 {
                release(&mut arena, block, layout(size));
                block = allocate(&mut arena, layout(size));
                assert!(!block.is_null(), "a block that the quota cut short is used again");
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let mut memory = vec![0_u8; 4096];
        let mut arena = arena(&mut memory);
        for size in [4097, 1 << 28, 1 << 40, isize::MAX as usize - 15] {
            // SAFETY: the arena is this test's.
            assert!(unsafe { allocate(&mut arena, Layout::from_size_align(size, 16).unwrap()) }.is_null());
        }
        // SAFETY: as above.
        assert!(unsafe { allocate(&mut arena, Layout::from_size_align(8, 1 << 30).unwrap()) }.is_null());
    }

    #[test]
    fn a_long_panic_text_is_cut_at_a_character() {
        let mut text = PanicText { bytes: [0; PanicText::LIMIT], len: 0 };
        assert!(write!(text, "{:255}\u{e4}", "").is_err());
        assert_eq!(text.len, 255);
        assert!(write!(text, "x").is_ok());
        assert_eq!(core::str::from_utf8(&text.bytes[..text.len]).unwrap().len(), 256);
    }
}
