//! What is different about an invocation whose code is sandboxed: its arguments, future and arena lie in its own
//! memory.
//!
//! ```text
//!  0            stack      data      heap base        arguments  future  records  arena ...       limit
//!  |<- 1 MiB -->|<-------->|         |<- header ->|   |          |       |        |     |          |
//! ```
//!
//! Guarantees: the arguments are only read while no code of the module runs.
#![allow(unsafe_code)]

use sandstorm_accounts::limits::{ARENA_CHUNK_BYTES, MEMORY_UNIT_BYTES};
use sandstorm_accounts::memory_units;
use sandstorm_catalog::TenantView;
use sandstorm_extension::{Budget, SandboxModule};
use sandstorm_sandbox::ModuleLayout;
use sandstorm_sandbox::guest_types::{ARENA_CLASSES, GuestHeader};
use sandstorm_sandbox::layout::{CONTROL_AT, MEMORY_MAX_BYTES, PAGE_BYTES, RECORDS_AT, VARIABLES_AT, WASM_PAGE_BYTES};

use super::begin_error::BeginError;
use super::guest_layout::stack_high;
use super::guest_memory::{ENTRY_AT, GuestMemory};
use super::guest_memory_pool::{GuestMemoryPool, MemoryCharge, TakenMemory};
use super::guest_value::{GuestAddress, GuestAddresses};
use super::invocation::InvocationState;
use super::prefetch::{LINE_BYTES, prefetch};
use crate::limits::{GUEST_MODULE_HOT_BYTES, GUEST_NEAR_RECORD_BYTES, GUEST_UNCHARGED_BYTES};

/// Alignment of the header, the arguments and the arena.
const MIN_ALIGN: usize = 16;

/// What `memory.grow` answers when there is no more.
const GROW_FAILED: u32 = u32::MAX;

/// Where the parts of an invocation lie in its memory.
#[derive(Clone, Copy, Debug, Default)]
struct GuestParts {
    header: usize,
    args: usize,
    slot: usize,
    /// The part for the first records, and its end.
    near_records: (usize, usize),
    /// The arena's first free byte, its end, and how far it may grow; all 0 in modules from elsewhere, which have an
    /// allocator of their own.
    first_free: usize,
    end: usize,
    limit: usize,
    /// Bytes of the module's memory at the beginning, and of the record window.
    memory: usize,
    records: usize,
    /// Bytes that the tenant is charged for, those of every invocation among them.
    charged: usize,
}

impl GuestParts {
    fn new(layout: &ModuleLayout, args_len: usize, budget: &Budget) -> Result<GuestParts, BeginError> {
        if layout.is_ours() {
            GuestParts::behind_data(layout, args_len, budget)
        } else {
            GuestParts::in_window(layout, args_len, budget)
        }
    }

    /// Header, arguments, future and arena behind the module's data.
    fn behind_data(layout: &ModuleLayout, args_len: usize, budget: &Budget) -> Result<GuestParts, BeginError> {
        let align = layout.future_align.max(1) as usize;
        let header = (layout.heap_base as usize).next_multiple_of(MIN_ALIGN);
        let args = (header + size_of::<GuestHeader>()).next_multiple_of(MIN_ALIGN);
        let slot = (args + args_len).next_multiple_of(align.max(MIN_ALIGN));
        let future_end = (slot + layout.future_size as usize).next_multiple_of(MIN_ALIGN);
        let quota = budget.memory_bytes.min(MEMORY_MAX_BYTES.saturating_sub(args));
        if future_end - args > quota {
            return Err(BeginError::TooLarge { needed: future_end - args, quota });
        }
        let first_free = (future_end + GUEST_NEAR_RECORD_BYTES).next_multiple_of(PAGE_BYTES);
        let first_free = first_free.min((args + quota) / MIN_ALIGN * MIN_ALIGN).max(future_end);
        let used = first_free - args;
        let first = used.next_multiple_of(ARENA_CHUNK_BYTES).min(quota);
        let (end, limit) = (args + first, args + quota);
        let charged = first + (args - stack_high(layout)).saturating_sub(GUEST_UNCHARGED_BYTES);
        let near_records = (future_end, first_free);
        Ok(GuestParts { header, args, slot, near_records, first_free, end, limit, memory: end, records: 0, charged })
    }

    /// Header and arguments at the beginning of the record window, where the module's own memory never grows to.
    fn in_window(layout: &ModuleLayout, args_len: usize, budget: &Budget) -> Result<GuestParts, BeginError> {
        let (header, memory) = (RECORDS_AT, layout.memory_bytes as usize);
        let args = (header + size_of::<GuestHeader>()).next_multiple_of(MIN_ALIGN);
        let records = (args + args_len).next_multiple_of(MIN_ALIGN) - RECORDS_AT;
        let (needed, quota) = (memory + records, budget.memory_bytes);
        if needed > quota {
            return Err(BeginError::TooLarge { needed, quota });
        }
        Ok(GuestParts { header, args, memory, records, charged: needed, ..GuestParts::default() })
    }

    fn addresses(&self, layout: &ModuleLayout, budget: &Budget, memory: &GuestMemory) -> GuestAddresses {
        GuestAddresses {
            base: memory.base(),
            stack: memory.first_stack_pointer(layout),
            header: self.header as GuestAddress,
            args: self.args as GuestAddress,
            slot: self.slot as GuestAddress,
            first_free: self.first_free as GuestAddress,
            near_records: (self.near_records.0 as GuestAddress, self.near_records.1 as GuestAddress),
            end: self.end as GuestAddress,
            limit: self.limit as GuestAddress,
            module_bytes: if layout.is_ours() { 0 } else { self.memory as u32 },
            module_limit: budget.memory_bytes.min(layout.memory_max_bytes as usize) as u32,
        }
    }
}

impl InvocationState {
    /// Takes a memory, makes it as the module's is at the start, and puts the arguments there.
    pub(super) fn begin_sandboxed(
        &mut self,
        memories: &mut GuestMemoryPool,
        module: &SandboxModule,
        view: &TenantView,
        number: u64,
        args: &[u8],
        budget: &Budget,
    ) -> Result<(), BeginError> {
        let parts = GuestParts::new(module.layout(), args.len(), budget)?;
        let beyond = memory_units(parts.charged.saturating_sub(ARENA_CHUNK_BYTES));
        if beyond > 0 && !view.tenant.charge_memory(beyond) {
            return Err(BeginError::OverQuota);
        }
        let taken = memories.take(view).map_err(BeginError::Memory);
        let begun = taken.and_then(|taken| taken.ok_or(BeginError::NoMemoryLeft)).and_then(|mut taken| {
            let memory = &mut taken.memory;
            memory.prepare(view.tenant.serial, number, module.layout(), parts.memory, parts.limit)?;
            memory.reserve_records(parts.records)?;
            memory.set_near_records((parts.near_records.0 as GuestAddress, parts.near_records.1 as GuestAddress))?;
            let put = memory.write_bytes(parts.args as GuestAddress, args);
            put.map_err(|_| BeginError::TooLarge { needed: args.len(), quota: budget.memory_bytes })?;
            Ok(taken)
        });
        let TakenMemory { memory, charge } = begun.inspect_err(|_| view.tenant.uncharge_memory(beyond))?;
        self.set_charged(beyond + charge.map_or(0, MemoryCharge::into_units));
        self.abi.args_len = args.len();
        self.guest = parts.addresses(module.layout(), budget, &memory);
        self.copies.clear();
        self.abi.log_level = view.tenant.usage.log.level_number();
        self.abi.nested = 0;
        self.write_header(&memory);
        self.guest_memory = Some(memory);
        Ok(())
    }

    /// Writes the header of an invocation that has not run.
    fn write_header(&self, memory: &GuestMemory) {
        let header = GuestHeader {
            args: self.guest.args,
            args_len: self.abi.args_len as u32,
            arena_next: self.guest.first_free,
            arena_end: self.guest.end,
            arena_limit: self.guest.limit,
            arena_free: [0; ARENA_CLASSES],
            log_level: self.abi.log_level,
            nested: self.abi.nested,
            ..GuestHeader::default()
        };
        // The header lies in the granted part: `begin_sandboxed` has seen to that.
        let _written = memory.write(self.guest.header, header);
    }

    /// Tells the invocation, which has not run, that another has called it.
    pub(super) fn set_nested(&mut self) {
        self.abi.nested = 1;
        if let Some(memory) = &self.guest_memory {
            let at = self.guest.header + std::mem::offset_of!(GuestHeader, nested) as GuestAddress;
            // As in `write_header`.
            let _written = memory.write(at, self.abi.nested);
        }
    }

    /// Sets what changes from one poll to the next.
    #[inline]
    pub(super) fn set_guest_clock(&self, memory: &GuestMemory) {
        let at = |offset: usize| self.guest.header + offset as GuestAddress;
        let _written = memory.write(at(std::mem::offset_of!(GuestHeader, now_ms)), self.abi.now_ms);
        let _written = memory.write(at(std::mem::offset_of!(GuestHeader, interleave)), self.abi.interleave);
    }

    /// Prefetches the lines of its memory that the next poll of sandboxed code touches first: where hundreds of
    /// invocations are under way, each of these pages costs the poll a walk of the page tables otherwise.
    #[inline]
    pub(super) fn prefetch_guest(&self) {
        let Some(memory) = &self.guest_memory else { return };
        memory.prefetch();
        let GuestAddresses { base, header, slot, stack, .. } = self.guest;
        let base: *const u8 = std::ptr::without_provenance(base);
        for at in [CONTROL_AT, ENTRY_AT, VARIABLES_AT] {
            prefetch(base.wrapping_offset(at as isize));
        }
        let near =
            [header, slot, slot + LINE_BYTES as u32, stack.wrapping_sub(1), stack.wrapping_sub(1 + LINE_BYTES as u32)];
        for at in near {
            prefetch(base.wrapping_add(at as usize));
        }
    }

    /// Returns whether the module was not made by the server's builder: then header and arguments lie in the window.
    fn is_from_elsewhere(&self) -> bool {
        self.guest.header as usize >= RECORDS_AT
    }

    /// Bytes of the record window that header and arguments take.
    fn guest_window_bytes(&self) -> usize {
        let end = (self.guest.args as usize + self.abi.args_len).next_multiple_of(MIN_ALIGN);
        if self.is_from_elsewhere() { end - RECORDS_AT } else { 0 }
    }

    /// The arguments, as they are in the module's memory.
    fn guest_arguments<'a>(&self, memory: &GuestMemory) -> Result<&'a [u8], u32> {
        // SAFETY: no code of the module runs, and the caller copies them before anything is written.
        unsafe { memory.bytes(self.guest.args, self.abi.args_len as u32) }
    }

    /// Makes the memory as it was at the beginning, but for the arguments. Native code has none.
    ///
    /// # Errors
    /// The operating system's: the memory cannot be used by this invocation any more.
    #[cold]
    pub(super) fn restart_sandboxed(&mut self) -> Result<(), BeginError> {
        self.copies.clear();
        let Some(mut memory) = self.guest_memory.take() else { return Ok(()) };
        let begun = self.begin_again(&mut memory);
        self.guest_memory = Some(memory);
        begun
    }

    fn begin_again(&self, memory: &mut GuestMemory) -> Result<(), BeginError> {
        let library = self.refs.as_ref().map(|refs| &refs.extension.library);
        let Some((library, module)) = library.and_then(|library| Some((library, library.module()?))) else {
            return Ok(());
        };
        let (owner, len, args_len) = (memory.owner, memory.memory_len(), self.abi.args_len);
        let too_large = |_| BeginError::TooLarge { needed: args_len, quota: len };
        let args = self.guest_arguments(memory).map_err(too_large)?.to_vec();
        // A conflict is an end that the code has asked for: constants are as they were.
        memory.ended_well = true;
        memory.prepare(owner, library.number(), module.layout(), len, self.guest.limit as usize)?;
        memory.reserve_records(self.guest_window_bytes())?;
        memory.set_near_records(self.guest.near_records)?;
        memory.write_bytes(self.guest.args, &args).map_err(too_large)?;
        self.write_header(memory);
        Ok(())
    }

    /// Moves the arena's end up until `bytes` lie between its first free byte and it, as
    /// [`InvocationState::grow_arena`] does natively. What the module says of its arena is not believed.
    pub(super) fn grow_guest_arena(&mut self, memory: &mut GuestMemory, bytes: u32) -> bool {
        let at = |offset: usize| self.guest.header + offset as GuestAddress;
        let next_at = at(std::mem::offset_of!(GuestHeader, arena_next));
        let end_at = at(std::mem::offset_of!(GuestHeader, arena_end));
        self.over_tenant_quota = false;
        let Ok(next) = memory.read::<u32>(next_at) else { return false };
        let wanted = next.checked_add(bytes).filter(|wanted| *wanted <= self.guest.limit);
        let Some(wanted) = wanted else { return false };
        if wanted > self.guest.end {
            let more = ((wanted - self.guest.end) as usize).next_multiple_of(ARENA_CHUNK_BYTES);
            let more = more.min((self.guest.limit - self.guest.end) as usize);
            let end = self.guest.end as usize + more;
            if !self.charge(more) {
                return false;
            }
            if memory.set_memory_len(end.max(memory.memory_len())).is_err() {
                self.uncharge(more);
                return false;
            }
            self.guest.end = end as GuestAddress;
        }
        memory.write(end_at, self.guest.end).is_ok()
    }

    /// Pages of WebAssembly that a module from elsewhere has: the answer to `memory.size`.
    pub(super) fn module_pages(&self) -> u32 {
        self.guest.module_bytes / WASM_PAGE_BYTES as u32
    }

    /// Grows the memory of a module from elsewhere: `memory.grow`.
    pub(super) fn grow_module_memory(&mut self, memory: &mut GuestMemory, pages: u32) -> u32 {
        let before = self.module_pages();
        let more = (pages as usize).saturating_mul(WASM_PAGE_BYTES);
        let within_limit = self.guest.module_bytes as usize + more <= self.guest.module_limit as usize;
        if pages == 0 {
            return before;
        }
        if !self.is_from_elsewhere() || !within_limit || !self.charge(more) {
            return GROW_FAILED;
        }
        let end = self.guest.module_bytes as usize + more;
        if memory.set_memory_len(end.max(memory.memory_len())).is_err() {
            self.uncharge(more);
            return GROW_FAILED;
        }
        self.guest.module_bytes = end as u32;
        before
    }

    /// How much of its memory may stay with it for the next call.
    pub(super) fn guest_hot_len(&self) -> usize {
        if self.is_from_elsewhere() {
            (self.guest.module_bytes as usize).min(GUEST_MODULE_HOT_BYTES)
        } else {
            self.guest.header as usize + ARENA_CHUNK_BYTES
        }
    }
}

const _: () = assert!(MEMORY_UNIT_BYTES <= ARENA_CHUNK_BYTES);
