//! An invocation: what the library sees of it, and what the host keeps behind that.
//!
//! Guarantees: the library's view is the first field of [`Body`], so the pointer that a host function is given is one to
//! the body; the body does not move between `begin` and `finish`; memory that one tenant's invocation has written is
//! zero before another tenant's begins in it.
#![allow(unsafe_code)]

use std::io;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use sandstorm_api::abi;

use super::extension::Outcome;
use super::host::HOST_CALLS;
use super::stack::Mapping;
use super::{Budget, Extension, kill_text};
use crate::limits::{ARENA_BYTES, ARENA_HOT_BYTES, ARENA_MAX_BYTES, ERROR_TEXT_BYTES, REPLY_HOT_BYTES};
use crate::store::Pin;
use crate::tenants::{TableEntry, TenantView};

/// Why an invocation cannot begin; nothing of it has run.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// Arguments and future do not fit into the memory quota.
    #[error("arguments and future take {needed} bytes, more than the invocation's memory quota of {quota} bytes")]
    TooLarge {
        /// Bytes that they take.
        needed: usize,
        /// The quota.
        quota: usize,
    },
    /// The operating system gives no memory.
    #[error("no memory for an invocation: {0}")]
    Memory(#[from] io::Error),
}

/// How far an invocation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Begun,
    Pending,
    Ended(Outcome),
}

/// What holds an invocation's things alive while it runs.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) view: Arc<TenantView>,
    pub(super) extension: Arc<Extension>,
    pub(super) pin: Pin,
}

/// The host's side of an invocation. Library code and host functions reach it by raw pointers only.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Body {
    pub(super) abi: abi::Invocation,
    pub(super) slot: *mut u8,
    pub(super) stage: Stage,
    pub(super) held: Option<Held>,
    /// The table that a host call used last, by its id; the view keeps it alive.
    pub(super) table: (u64, *const TableEntry),
    pub(super) reply: Vec<u8>,
    pub(super) reply_limit: usize,
    pub(super) text: Vec<u8>,
    pub(super) code: u32,
    pub(super) slice_ns: u64,
    pub(super) total_ns: u64,
    pub(super) spent_ns: u64,
    arena: Mapping,
    /// The tenant whose invocation was here last; 0: none.
    owner: u32,
    /// Bytes of the arena that may hold something of the owner's.
    dirty: usize,
}

/// An invocation under way. It may be polled by any worker's engine, one at a time, and has to be given back to one with
/// [`super::Engine::finish`]; dropping it instead holds the reclamation of records up for ever.
#[derive(Debug)]
pub struct Invocation(pub(super) NonNull<Body>);

// SAFETY: the value owns its body alone, and nothing in the body is bound to a thread: library code finds its worker
// through gs at each use.
unsafe impl Send for Invocation {}

impl Drop for Invocation {
    fn drop(&mut self) {
        // SAFETY: made from a Box, owned alone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Invocation {
    /// A body without an invocation.
    pub(super) fn idle() -> io::Result<Invocation> {
        let body = Box::new(Body {
            abi: abi::Invocation {
                host: &raw const HOST_CALLS,
                args: null(),
                args_len: 0,
                now_ms: 0,
                interleave: 0,
                reserved: 0,
                arena: abi::Arena { next: null_mut(), end: null_mut(), free: [null_mut(); abi::ARENA_CLASSES] },
            },
            slot: null_mut(),
            stage: Stage::Begun,
            held: None,
            table: (0, null()),
            reply: Vec::new(),
            reply_limit: 0,
            text: Vec::new(),
            code: 0,
            slice_ns: 0,
            total_ns: 0,
            spent_ns: 0,
            arena: Mapping::new(ARENA_BYTES, 0)?,
            owner: 0,
            dirty: 0,
        });
        Ok(Invocation(NonNull::from(Box::leak(body))))
    }

    fn body(&self) -> &Body {
        // SAFETY: owned alone; library code only runs within a poll, which borrows the value mutably.
        unsafe { self.0.as_ref() }
    }

    fn body_mut(&mut self) -> &mut Body {
        // SAFETY: as in `body`.
        unsafe { self.0.as_mut() }
    }

    /// The tenant whose invocation was here last.
    pub(super) fn owner(&self) -> u32 {
        self.body().owner
    }

    /// What the extension has replied so far; the reply once the invocation is done.
    pub fn reply(&self) -> &[u8] {
        &self.body().reply
    }

    /// Takes the reply's buffer, for one who sends it later.
    pub fn take_reply(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.body_mut().reply)
    }

    /// The text of the error that the extension returned, or why the server ended it.
    pub fn text(&self) -> &[u8] {
        let body = self.body();
        match body.stage {
            Stage::Ended(Outcome::Killed(cause)) if body.text.is_empty() => kill_text(cause).as_bytes(),
            _ => &body.text,
        }
    }

    /// CPU time that its polls took, nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        self.body().spent_ns
    }

    /// The extension; `None` only after `finish`.
    pub fn extension(&self) -> Option<&Arc<Extension>> {
        self.body().held.as_ref().map(|held| &held.extension)
    }

    /// The tenant and its things, as they were when the invocation began; `None` only after `finish`.
    pub fn view(&self) -> Option<&Arc<TenantView>> {
        self.body().held.as_ref().map(|held| &held.view)
    }

    /// Makes it ready for its first poll. On an error it is as idle as before.
    pub(super) fn begin(&mut self, held: Held, args: &[u8], budget: Budget) -> Result<(), (BeginError, Held)> {
        let vtable = held.extension.library.vtable();
        let body = self.body_mut();
        if let Err(error) = body.prepare_arena(held.view.tenant.id, budget.memory_bytes) {
            return Err((error.into(), held));
        }
        let quota = budget.memory_bytes.min(body.arena.len());
        let slot = args.len().next_multiple_of(vtable.future_align.max(MIN_ALIGN));
        let used = (slot + vtable.future_size).next_multiple_of(MIN_ALIGN);
        if used > quota {
            return Err((BeginError::TooLarge { needed: used, quota }, held));
        }
        let base = body.arena.low();
        // SAFETY: the arena holds `quota` bytes, of which the arguments are the first; they come from elsewhere.
        unsafe { base.copy_from_nonoverlapping(args.as_ptr(), args.len()) };
        let abi = &mut body.abi;
        (abi.args, abi.args_len) = (base, args.len());
        abi.arena.next = base.wrapping_add(used);
        abi.arena.end = base.wrapping_add(quota);
        body.slot = base.wrapping_add(slot);
        body.dirty = body.dirty.max(used);
        body.stage = Stage::Begun;
        body.held = Some(held);
        body.reply_limit = budget.reply_bytes;
        body.slice_ns = budget.slice_us.saturating_mul(1000);
        body.total_ns = budget.total_us.saturating_mul(1000);
        body.spent_ns = 0;
        Ok(())
    }

    /// Takes what the invocation held and makes the body idle. A future that is still there is forgotten with its memory.
    pub(super) fn end(&mut self) -> Option<Held> {
        let body = self.body_mut();
        let used = body.abi.arena.next.addr().saturating_sub(body.arena.low().addr()).min(body.arena.len());
        if used > ARENA_HOT_BYTES {
            body.arena.give_back(ARENA_HOT_BYTES, used);
        }
        body.dirty = body.dirty.max(used).min(ARENA_HOT_BYTES);
        body.abi.arena.free = [null_mut(); abi::ARENA_CLASSES];
        body.table = (0, null());
        body.reply.clear();
        body.reply.shrink_to(REPLY_HOT_BYTES);
        body.text.clear();
        body.code = 0;
        body.held.take()
    }
}

/// Alignment of the future and of what is allocated after it.
const MIN_ALIGN: usize = 16;

impl Body {
    /// Makes the arena large enough, and free of another tenant's bytes.
    fn prepare_arena(&mut self, tenant: u32, bytes: usize) -> io::Result<()> {
        if bytes > self.arena.len() && self.arena.len() < ARENA_MAX_BYTES {
            self.arena = Mapping::new(bytes.min(ARENA_MAX_BYTES), 0)?;
            self.dirty = 0;
        }
        if self.owner != tenant {
            self.arena.clear(self.dirty);
            self.owner = tenant;
            self.dirty = 0;
        }
        Ok(())
    }

    /// Keeps a text for the caller, cut to its limit.
    pub(super) fn set_text(&mut self, text: &[u8]) {
        let mut len = text.len().min(ERROR_TEXT_BYTES);
        // Not in the middle of a character.
        while len < text.len() && len > 0 && text[len] & 0xc0 == 0x80 {
            len -= 1;
        }
        self.text.clear();
        self.text.extend_from_slice(&text[..len]);
    }
}
