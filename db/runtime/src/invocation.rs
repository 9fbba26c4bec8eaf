//! An invocation: the library's view of it, and the host's state behind that.
//!
//! Guarantees: the library's view is the first field of [`InvocationState`], so the pointer that a host function is
//! given is one to the body; the body does not move between `begin` and `finish`; memory that one tenant's invocation
//! has written is zero before another tenant's begins in it.
#![allow(unsafe_code)]

pub(super) mod nested_calls;

use std::io;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use sandstorm_api::abi::{self, HostCalls};

use super::begin_error::BeginError;
use super::call_notes::CallNotes;
use super::guest_memory_pool::{GuestMemoryPool, PooledMemory};
use super::guest_stacks::GuestStack;
use super::guest_value::GuestAddresses;
use super::invocation_random::InvocationRandom;
use super::invocation_trace::ColdWaits;
use super::mapping::GuardedMapping;
use super::pause_sums::{OpenPause, PauseSums};
use super::pending_copies::PendingCopies;
use super::prefetch::{LINE_BYTES, prefetch};
use super::stack_switch::{GuestFunction, SavedContext};
use super::tenant_permits::TenantPermit;
use super::transaction_state::TransactionState;
use crate::limits::{ARENA_HOT_BYTES, REPLY_HOT_BYTES};
use nested_calls::NestedCalls;
use sandstorm_accounts::limits::{ARENA_CHUNK_BYTES, REPLY_FIRST_BYTES};
use sandstorm_accounts::memory_units;
use sandstorm_catalog::{TableEntry, TenantView};
use sandstorm_extension::limits::{ARENA_BYTES, ARENA_MAX_BYTES};
use sandstorm_extension::{
    Budget, CallTrust, InvocationOutcome, LoadedExtension, SandboxModule, TransactionCounts, kill_text,
};
use sandstorm_store::{EpochPin, ShownPosition};

/// The caller's own data about an invocation, for its end. It lies with the invocation, so that queues only move a
/// pointer.
pub type UserData = [u64; 3];

/// See [`InvocationHandle::give_no_late_polls`]: more than any rule leaves.
pub(super) const NO_LATE_POLLS: u32 = u32::MAX;

/// The progress of an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InvocationStage {
    Begun,
    Pending,
    /// The invocation was switched out.
    Preempted,
    /// Its transaction conflicted with other writes: it begins anew.
    Retrying,
    Ended(InvocationOutcome),
}

/// A switched-out function: where it continues, and the stack that it is on.
#[derive(Debug)]
pub(super) struct PreemptedStack {
    pub(super) stack: GuestStack,
    pub(super) context: SavedContext,
    /// The bytes that its tenant is charged for it.
    pub(super) bytes: usize,
}

/// The next poll's action.
pub(super) enum NextPoll {
    Call(GuestFunction, *mut u8),
    Resume(PreemptedStack),
}

/// The references that keep an invocation's objects alive while it runs. An idle body keeps them for the next call of
/// the same, which then need not count references, until its engine sees another state of the directory.
#[derive(Debug)]
pub(super) struct InvocationRefs {
    pub(super) view: Arc<TenantView>,
    pub(super) extension: Arc<LoadedExtension>,
}

/// The host's side of an invocation. Library code and host functions reach it by raw pointers only. The fields are in
/// the order of their use, by cache lines: many invocations are under way at once.
#[repr(C)]
#[derive(Debug)]
pub(super) struct InvocationState {
    /// The first line, and the allocator's free lists behind it, which few invocations use.
    pub(super) abi: CachePadded<abi::InvocationHeader>,
    // The fields that polls use.
    pub(super) slot: *mut u8,
    pub(super) stage: InvocationStage,
    pub(super) code: u32,
    /// Polls since it became overdue; [`NO_LATE_POLLS`]: its next one then is one too many.
    pub(super) late_polls: u32,
    /// Polls, and those of them that ended by a switch.
    pub(super) polls: u32,
    pub(super) switches: u32,
    /// See [`sandstorm_extension::LoadedExtension::begun`].
    pub(super) trust: CallTrust,
    /// When it was looked up: see [`super::shared_trust::SharedTrust::epoch`].
    pub(super) trust_epoch: u64,
    /// The tenant of this invocation, or of the last one, by its serial number: another tenant may have its id by now.
    /// 0: none.
    pub(super) owner: u64,
    pub(super) slice_ns: u64,
    pub(super) total_ns: u64,
    pub(super) spent_ns: u64,
    /// The processor's counter at the end of the first poll.
    pub(super) first_poll_ticks: u64,
    /// Why it is not polled, and since when.
    pub(super) pause: OpenPause,
    pub(super) refs: Option<InvocationRefs>,
    pub(super) parked: Option<PreemptedStack>,
    /// Its tenant's permit for a stack, from its first switch until it ends.
    pub(super) place: Option<TenantPermit>,
    /// The address where the arena's free bytes began.
    first_free: *mut u8,
    // The fields that host calls use.
    /// The tenant's own table that a host call used last, by its id; the view keeps it alive.
    pub(super) table: (u64, *const TableEntry),
    /// Table and hash of the key whose bucket was requested last, until its record is. Hash 0: none.
    pub(super) asked: (u64, u64),
    /// Records that it read, and bytes of their values.
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) reply: Vec<u8>,
    pub(super) reply_limit: usize,
    /// Bytes of the reply that its tenant is charged for, from the beginning or since then.
    pub(super) reply_charged: usize,
    /// Memory units that the tenant is charged for beyond those of every invocation.
    pub(super) charged: u32,
    /// Those of them that its extension counts.
    pub(super) noted_units: u32,
    /// Whether the last refusal of memory was due to the tenant's quota, rather than the invocation's own.
    pub(super) over_tenant_quota: bool,
    pub(super) pin: Option<EpochPin>,
    /// How far the log has to be on the disk before its answer may leave.
    pub(super) shown: ShownPosition,
    pub(super) transaction: TransactionState,
    /// The memory of sandboxed code; `None`: the code is native, or has not begun.
    pub(super) guest_memory: Option<PooledMemory>,
    /// Where the parts of a sandboxed invocation lie in it.
    pub(super) guest: GuestAddresses,
    /// Bytes of its stack beyond the usual part that its tenant is charged for.
    pub(super) deep_charged: usize,
    /// Long copies into that memory that are under way.
    pub(super) copies: PendingCopies,
    // The fields that begin and end use.
    arena: GuardedMapping,
    pub(super) text: Vec<u8>,
    /// What a caller may ask for at its end.
    pub(super) notes: CallNotes,
    /// Its random numbers.
    pub(super) random: InvocationRandom,
    /// How it waited for records that were not in memory.
    pub(super) cold: ColdWaits,
    /// Its pauses between polls, where it has had any.
    pub(super) pauses: PauseSums,
    /// Its number in the tenant's log; 0: it has written no line.
    pub(super) log_call: u64,
    /// Its calls of other extensions; `None`: it has made none, nor was it called by one.
    pub(super) calls: Option<Box<NestedCalls>>,
    /// Bytes of the arena that may contain data of the owner's.
    dirty_bytes: usize,
    /// The end of the pages, beyond those that stay with it, that have yet to go back to the kernel.
    soiled: usize,
    /// The offset in its first page where the arena's use begins. Arenas that all begin at a page's start would compete
    /// for the few cache lines that the processor has for such addresses.
    cache_colour: u32,
    /// The state of the directory in which the invocation began.
    pub(super) generation: Option<u64>,
    label: UserData,
}

/// Lines from one colour to the next: as many as a small invocation uses; odd, so that all lines get their turn.
const COLOUR_LINES: usize = 5;
/// Bytes of an arena beside its quota, for its colour.
const COLOURS_BYTES: usize = 4096;

/// An invocation under way. It may be polled by any worker's engine, one at a time, and has to be given back to one
/// with [`super::Engine::finish`]; dropping it instead holds the reclamation of records up for ever.
#[derive(Debug)]
pub struct InvocationHandle(pub(super) NonNull<InvocationState>);

// SAFETY: the value owns its body alone, and nothing in the body is bound to a thread: library code finds its worker
// through gs at each use, in single instructions, so it may also be switched out between any two of them.
unsafe impl Send for InvocationHandle {}

impl Drop for InvocationHandle {
    fn drop(&mut self) {
        self.body_mut().uncharge_all();
        // SAFETY: made from a Box, owned alone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The library's view of no invocation.
fn idle_header(host: &'static HostCalls) -> abi::InvocationHeader {
    abi::InvocationHeader {
        host,
        args: null(),
        args_len: 0,
        now_ms: 0,
        interleave: 0,
        transaction: 0,
        arena: abi::InvocationArena {
            next: null_mut(),
            end: null_mut(),
            limit: null_mut(),
            free: [null_mut(); abi::ARENA_CLASSES],
        },
        notes: null_mut(),
        log_level: 0,
        nested: 0,
    }
}

impl InvocationHandle {
    /// Makes a body without an invocation. Its code calls the host through this table.
    pub(super) fn idle(host: &'static HostCalls) -> io::Result<InvocationHandle> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let cache_colour = MADE.fetch_add(COLOUR_LINES * LINE_BYTES, Ordering::Relaxed) % COLOURS_BYTES;
        let body = Box::new(InvocationState {
            abi: CachePadded::new(idle_header(host)),
            slot: null_mut(),
            stage: InvocationStage::Begun,
            code: 0,
            late_polls: 0,
            polls: 0,
            switches: 0,
            trust: CallTrust::Unknown,
            trust_epoch: 0,
            owner: 0,
            slice_ns: 0,
            total_ns: 0,
            spent_ns: 0,
            first_poll_ticks: 0,
            pause: OpenPause::default(),
            refs: None,
            parked: None,
            place: None,
            first_free: null_mut(),
            table: (0, null()),
            asked: (0, 0),
            random: InvocationRandom::default(),
            cold: ColdWaits::default(),
            pauses: PauseSums::default(),
            log_call: 0,
            calls: None,
            reads: 0,
            read_bytes: 0,
            reply: Vec::new(),
            reply_limit: 0,
            reply_charged: 0,
            charged: 0,
            noted_units: 0,
            over_tenant_quota: false,
            pin: None,
            shown: ShownPosition::default(),
            transaction: TransactionState::default(),
            guest_memory: None,
            guest: GuestAddresses::default(),
            deep_charged: 0,
            copies: PendingCopies::default(),
            arena: GuardedMapping::new(ARENA_BYTES + COLOURS_BYTES, 0)?,
            text: Vec::new(),
            notes: CallNotes::default(),
            dirty_bytes: 0,
            soiled: 0,
            cache_colour: cache_colour as u32,
            generation: None,
            label: UserData::default(),
        });
        Ok(InvocationHandle(NonNull::from(Box::leak(body))))
    }

    pub(super) fn body(&self) -> &InvocationState {
        // SAFETY: owned alone; library code only runs within a poll, which borrows the value mutably.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn body_mut(&mut self) -> &mut InvocationState {
        // SAFETY: as in `body`.
        unsafe { self.0.as_mut() }
    }

    /// Returns the data that [`InvocationHandle::set_user_data`] set last.
    pub fn label(&self) -> UserData {
        self.body().label
    }

    /// Sets the caller's data for its end.
    pub fn set_user_data(&mut self, label: UserData) {
        self.body_mut().label = label;
    }

    /// Prefetches the lines of the body that beginning and polling touch.
    #[inline]
    pub(super) fn prefetch(&self) {
        let body: *const u8 = self.0.as_ptr().cast();
        prefetch(body);
        for line in 0..BODY_LINES {
            prefetch(body.wrapping_add(std::mem::offset_of!(InvocationState, slot) + line * LINE_BYTES));
        }
    }

    /// Prefetches the first lines of the arena. It reads the body, so call it once that has come.
    #[inline]
    pub(super) fn prefetch_arena(&self) {
        let first = self.body().abi.args;
        prefetch(first);
        prefetch(first.wrapping_add(LINE_BYTES));
    }

    /// Returns the tenant of the last invocation here.
    pub(super) fn owner(&self) -> u64 {
        self.body().owner
    }

    /// Returns the extension's reply so far; the whole reply once the invocation is done.
    pub fn reply(&self) -> &[u8] {
        &self.body().reply
    }

    /// Takes the reply's buffer, for a caller that sends it later.
    pub fn take_reply(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.body_mut().reply)
    }

    /// Returns the text of the error that the extension returned, or why the server ended it.
    pub fn text(&self) -> &[u8] {
        let body = self.body();
        match body.stage {
            InvocationStage::Ended(InvocationOutcome::Killed(cause)) if body.text.is_empty() => {
                kill_text(cause).as_bytes()
            }
            _ => &body.text,
        }
    }

    /// Returns whether it was switched out and waits to be resumed.
    pub fn is_preempted(&self) -> bool {
        let body = self.body();
        let callee = body.calls.as_ref().and_then(|calls| calls.callee.as_ref());
        body.parked.is_some() || callee.is_some_and(InvocationHandle::is_preempted)
    }

    /// Returns the CPU time of its polls, nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        self.body().spent_ns
    }

    /// Returns how far the log has to be on the disk before its answer may leave.
    pub fn shown_position(&self) -> u64 {
        self.body().shown.get()
    }

    /// Returns the outcome of its transaction, for the counters.
    pub fn transactions(&self) -> Option<TransactionCounts> {
        self.body().transaction.counted()
    }

    /// Returns the extension; `None` only after `finish`.
    pub fn extension(&self) -> Option<&Arc<LoadedExtension>> {
        self.body().refs.as_ref().map(|refs| &refs.extension)
    }

    /// Returns the tenant and its objects, as they were when the invocation began; `None` only after `finish`.
    pub fn view(&self) -> Option<&Arc<TenantView>> {
        self.body().refs.as_ref().map(|refs| &refs.view)
    }

    /// Makes it ready for its first poll, without its pin. On an error it is as idle as before.
    pub(super) fn begin(
        &mut self,
        view: &Arc<TenantView>,
        extension: &Arc<LoadedExtension>,
        args: &[u8],
        budget: Budget,
    ) -> Result<(), BeginError> {
        let vtable = extension.library.vtable();
        let body = self.body_mut();
        body.prepare_arena(view.tenant.serial, budget.memory_bytes)?;
        // Offsets are aligned as far as the base is.
        let cache_colour = if vtable.future_align <= LINE_BYTES { body.cache_colour as usize } else { 0 };
        let quota = budget.memory_bytes.min(body.arena.len() - COLOURS_BYTES);
        let slot = args.len().next_multiple_of(vtable.future_align.max(MIN_ALIGN));
        let used = (slot + vtable.future_size).next_multiple_of(MIN_ALIGN);
        if used > quota {
            return Err(BeginError::TooLarge { needed: used, quota });
        }
        let first = used.next_multiple_of(ARENA_CHUNK_BYTES).min(quota);
        let beyond = memory_units(first.saturating_sub(ARENA_CHUNK_BYTES));
        if beyond > 0 && !view.tenant.charge_memory(beyond) {
            return Err(BeginError::OverQuota);
        }
        body.charged = beyond;
        let base = body.arena.low().wrapping_add(cache_colour);
        // SAFETY: the arena holds `quota` bytes from there, of which the arguments are the first; they come from
        // elsewhere.
        unsafe { base.copy_from_nonoverlapping(args.as_ptr(), args.len()) };
        let abi = &mut *body.abi;
        (abi.args, abi.args_len) = (base, args.len());
        abi.arena.next = base.wrapping_add(used);
        abi.arena.end = base.wrapping_add(first);
        abi.arena.limit = base.wrapping_add(quota);
        body.first_free = abi.arena.next;
        body.slot = base.wrapping_add(slot);
        body.dirty_bytes = body.dirty_bytes.max(cache_colour + used);
        body.abi.log_level = view.tenant.usage.log.level_number();
        body.start(view, extension, &budget);
        Ok(())
    }

    /// As [`InvocationHandle::begin`], for sandboxed code, in one of the memories.
    pub(super) fn begin_in(
        &mut self,
        memories: &mut GuestMemoryPool,
        module: &SandboxModule,
        view: &Arc<TenantView>,
        extension: &Arc<LoadedExtension>,
        args: &[u8],
        budget: Budget,
    ) -> Result<(), BeginError> {
        let body = self.body_mut();
        body.prepare_arena(view.tenant.serial, 0)?;
        body.begin_sandboxed(memories, module, view, extension.library.number(), args, &budget)?;
        body.abi.arena.next = body.first_free;
        body.slot = std::ptr::without_provenance_mut(body.guest.slot as usize);
        body.start(view, extension, &budget);
        Ok(())
    }

    /// Makes the body idle. A future that is still there is forgotten with its memory. Its references stay.
    pub(super) fn end(&mut self) {
        let body = self.body_mut();
        body.uncharge_all();
        body.place = None;
        body.forget_arena();
        body.dirty_bytes = body.dirty_bytes.min(ARENA_HOT_BYTES);
        body.reply.clear();
        if body.reply.capacity() > REPLY_HOT_BYTES {
            body.reply.shrink_to(REPLY_HOT_BYTES);
        }
        body.text.clear();
        body.notes.clear();
        body.random.forget();
        body.code = 0;
        body.shown = ShownPosition::default();
    }

    /// Returns the bytes of the arena that must go back to the kernel before the next invocation begins here.
    pub(super) fn unreclaimed_bytes(&self) -> usize {
        self.body().soiled.saturating_sub(ARENA_HOT_BYTES)
    }

    /// Gives up to so many of them back.
    pub(super) fn tidy(&mut self, bytes: usize) {
        let (soiled_bytes, body) = (self.unreclaimed_bytes(), self.body_mut());
        if soiled_bytes > 0 {
            let from = body.soiled - bytes.min(soiled_bytes);
            // The content of the last kept page goes with it.
            let from = if bytes < soiled_bytes { from.next_multiple_of(PAGE_BYTES) } else { from };
            body.arena.give_back(from, body.soiled);
            body.soiled = from;
        }
    }

    /// Releases the references of an ended invocation.
    pub(super) fn release(&mut self) {
        let body = self.body_mut();
        body.table = (0, null());
        body.refs = None;
    }
}

/// Bytes of a page of memory.
const PAGE_BYTES: usize = 4096;

/// Lines of a body that every invocation uses, from `slot` on.
const BODY_LINES: usize = 7;

/// Alignment of the future and of what is allocated after it.
const MIN_ALIGN: usize = 16;

impl InvocationState {
    /// Notes how far the arena was used, and forgets its allocations.
    fn forget_arena(&mut self) {
        // Where nothing was allocated, the free lists are as empty, and as much of the arena is dirty, as at the
        // beginning.
        if self.abi.arena.next != self.first_free {
            self.abi.arena.free = [null_mut(); abi::ARENA_CLASSES];
        }
        let used = self.abi.arena.next.addr().saturating_sub(self.arena.low().addr()).min(self.arena.len());
        // The remains of an earlier invocation, not all of which went back yet, may reach further.
        self.soiled = self.soiled.max(used);
        self.dirty_bytes = self.dirty_bytes.max(used);
    }

    /// Forgets all but the arguments, so that the invocation can begin anew.
    #[cold]
    pub(super) fn restart(&mut self) -> Result<(), BeginError> {
        self.restart_sandboxed()?;
        self.forget_calls();
        self.transaction.may_retry = false;
        self.forget_arena();
        self.abi.arena.next = self.first_free;
        self.abi.transaction = 0;
        self.asked.1 = 0;
        self.reply.clear();
        self.text.clear();
        self.code = 0;
        self.stage = InvocationStage::Retrying;
        Ok(())
    }

    /// It is not under way for too long: what was taken from it for the case that it would be is its own again.
    #[inline(always)]
    pub(super) fn restore_late_polls(&mut self) {
        if self.late_polls == NO_LATE_POLLS {
            self.late_polls = 0;
        }
    }

    /// Counts a poll after the end of the invocation's life, of which it may have so many; returns whether that was one
    /// too many.
    #[cold]
    pub(super) fn count_late_poll(&mut self, late_polls: u32) -> bool {
        self.late_polls = self.late_polls.saturating_add(1);
        self.late_polls > late_polls
    }

    /// Returns the trust in its extension on a worker, in this epoch of the worker's trust. It is looked up anew where
    /// the invocation began before the last long poll, or elsewhere: else those that are under way could be late one
    /// after the other.
    #[inline]
    pub(super) fn trust_on(&mut self, worker: usize, epoch: u64) -> CallTrust {
        if self.trust_epoch != epoch {
            self.trust = self.refs.as_ref().map_or(CallTrust::Unknown, |refs| refs.extension.trust(worker));
            self.trust_epoch = epoch;
        }
        self.trust
    }

    /// Makes the arena large enough, and free of another tenant's bytes.
    fn prepare_arena(&mut self, tenant: u64, bytes: usize) -> io::Result<()> {
        let len = self.arena.len() - COLOURS_BYTES;
        if bytes > len && len < ARENA_MAX_BYTES {
            self.arena = GuardedMapping::new(bytes.min(ARENA_MAX_BYTES) + COLOURS_BYTES, 0)?;
            (self.dirty_bytes, self.soiled) = (0, 0);
        }
        if self.owner != tenant {
            self.arena.clear(self.dirty_bytes);
            self.owner = tenant;
            self.dirty_bytes = 0;
        }
        Ok(())
    }

    /// Sets what every invocation begins with.
    fn start(&mut self, view: &Arc<TenantView>, extension: &Arc<LoadedExtension>, budget: &Budget) {
        self.stage = InvocationStage::Begun;
        self.hold(view, extension);
        self.note_first_memory();
        self.over_tenant_quota = false;
        self.reply_limit = budget.reply_bytes;
        self.reply_charged = REPLY_FIRST_BYTES;
        self.slice_ns = budget.slice_us.saturating_mul(1000);
        self.total_ns = budget.total_us.saturating_mul(1000);
        self.spent_ns = 0;
        self.late_polls = 0;
        (self.polls, self.switches) = (0, 0);
        self.forget_pauses();
        (self.reads, self.read_bytes, self.cold) = (0, 0, ColdWaits::default());
        self.deep_charged = 0;
        self.asked.1 = 0;
        self.abi.transaction = 0;
        (self.abi.nested, self.log_call, self.calls) = (0, 0, None);
        self.transaction = TransactionState::default();
    }

    /// Takes the references that the invocation needs, if it does not have them from an earlier one.
    fn hold(&mut self, view: &Arc<TenantView>, extension: &Arc<LoadedExtension>) {
        let same = |refs: &InvocationRefs| Arc::ptr_eq(&refs.view, view) && Arc::ptr_eq(&refs.extension, extension);
        if !self.refs.as_ref().is_some_and(same) {
            self.table = (0, null());
            self.refs = Some(InvocationRefs { view: Arc::clone(view), extension: Arc::clone(extension) });
        }
    }

    /// Notes a record that it reads.
    #[inline(always)]
    pub(super) fn note_read(&mut self, value_bytes: usize) {
        self.reads += 1;
        self.read_bytes += value_bytes as u64;
    }
}
